//! The two borders of this crate: [`South`] reads, [`North`] delivers.
//!
//! Data goes one way; the only arrow back is "you may forget it now": [`South::settle`] for rows
//! that are durable, [`Delivered`] for payloads that the far side has taken.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::point::Point;
use crate::stats::Stats;
use crate::table::TableBuilder;

/// Why a driver could not do what it was asked. The variant is the caller's decision; the text is
/// for a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The connection is gone or cannot be made: reconnect with backoff.
    #[error("{0}")]
    Link(String),
    /// The far side answered "no": keep the link; the same request will be refused again.
    #[error("{0}")]
    Refused(String),
    /// It will never work with this configuration: stop this part and show the text.
    #[error("{0}")]
    Config(String),
}

/// Names rows that a source wants to hear about once they are durable, in the order of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Receipt(pub u64);

/// A device or a feed that is read.
pub trait South: Send {
    /// The columns that every row has, in order. Fixed by the configuration.
    fn points(&self) -> &[Point];

    /// The same, shared where the driver can share it.
    fn shared_points(&self) -> Arc<[Point]> {
        self.points().into()
    }

    /// Counters and state, shared with whoever shows them.
    fn stats(&self) -> Arc<Stats>;

    /// Makes the connection. Called again after each [`Fault::Link`], with backoff by the caller.
    /// A driver whose link is owned by a bus returns at once.
    fn connect(&mut self) -> BoxFuture<'_, Result<(), Fault>>;

    /// Appends whole rows to `rows`. A polled driver waits for its next due time and returns after
    /// one cycle; a listening driver returns when rows are there, up to its `batch_rows` or
    /// `linger`. Returns a receipt where the far side waits for [`South::settle`].
    ///
    /// Cancel safe: when the future is dropped, no row is lost and none is appended twice by the
    /// next call.
    fn read<'a>(
        &'a mut self,
        rows: &'a mut TableBuilder,
    ) -> BoxFuture<'a, Result<Option<Receipt>, Fault>>;

    /// Ends reading: completes the cycle that is under way, if there is one, and starts no other.
    /// Whole rows may be appended. A listening driver has nothing to complete.
    fn finish<'a>(&'a mut self, rows: &'a mut TableBuilder) -> BoxFuture<'a, Result<(), Fault>> {
        debug_assert!(!rows.is_open(), "a driver with cycles completes the open one");
        Box::pin(std::future::ready(Ok(())))
    }

    /// Says that all rows up to and including `receipt` are durable: the far side may forget them.
    /// Receipts come in the order in which `read` gave them. Cancel safe.
    fn settle(&mut self, receipt: Receipt) -> BoxFuture<'_, Result<(), Fault>>;
}

/// One record on its way out, encoded, with the id that never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// `gateway/epoch/stream/seq`.
    pub id: String,
    /// The stream's name, for topic templates.
    pub stream: Arc<str>,
    /// The encoded record, without a line end.
    pub body: Bytes,
    /// It waited while there was no connection, so that it may belong on another topic.
    pub replayed: bool,
}

/// How far a delivery came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// The far side has taken responsibility for the first `count` payloads (PUBACK, fsync).
    pub count: usize,
    /// What stopped the delivery. `Refused` speaks of payload `count`; `Link` and `Config` of the
    /// connection.
    pub fault: Option<Fault>,
}

/// A place that results are delivered to.
pub trait North: Send {
    /// Counters and state, shared with whoever shows them.
    fn stats(&self) -> Arc<Stats>;

    /// Makes the connection. Called again after each [`Fault::Link`], with backoff by the caller.
    fn connect(&mut self) -> BoxFuture<'_, Result<(), Fault>>;

    /// Delivers payloads strictly in order, pipelined up to the sink's in-flight window, and
    /// returns when all are taken or at the first fault. May be called again with the same ids.
    /// When the future is dropped, payloads that were under way may arrive once more later, with
    /// the same id.
    fn deliver<'a>(&'a mut self, payloads: &'a [Payload]) -> BoxFuture<'a, Delivered>;
}
