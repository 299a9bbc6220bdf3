//! Keeps what was accepted and what was not yet delivered, through power cuts and bad flash.
//!
//! A thread of its own owns the files; everybody else holds a [`Store`]. It knows rows, positions
//! and bytes: no protocol, no SQL, no clock ("now" and the commit timer come from outside). Design:
//! `design/store.md`; promises P1–P3, P5, P7, P11, P12 have their tests here.

mod border;

pub use border::{
    Backlog, Commit, Layout, LogRows, OutboxRow, OutboxRows, Recovery, Rejected, SinkLayout,
    StoreError, StoreOptions, StoreStats, StreamProgress, TableLayout, Ticket, WhenFull,
};

use std::sync::Arc;

use arrow::record_batch::RecordBatch;

/// A handle to the open store. Clones are the same store.
#[derive(Debug, Clone)]
pub struct Store {
    shared: Arc<()>,
}

impl Store {
    /// Opens the store in `options.dir`, or makes one, and starts its thread. Blocks on the disk.
    ///
    /// A file that cannot be opened is moved aside and reported, never fatal.
    pub fn open(options: StoreOptions, layout: Layout) -> Result<(Store, Recovery), StoreError> {
        let _ = (options, layout);
        Ok((
            Store {
                shared: Arc::new(()),
            },
            Recovery::default(),
        ))
    }

    /// The epoch of new records: part of every id.
    pub fn epoch(&self) -> u64 {
        unimplemented!("{:?}", self.shared)
    }

    /// Queues a commit, in the order of the calls, and resolves when it is queued.
    ///
    /// Waits while the queue is full or a `Block` sink has no room. Cancel safe: dropped before it
    /// resolves, nothing was queued.
    pub async fn submit(&self, commit: Commit) -> Result<Ticket, StoreError> {
        unimplemented!("{commit:?}")
    }

    /// Commits what waits; the caller's timer calls this every `commit_every`. Writes nothing when
    /// nothing waits. Does not block.
    pub fn flush(&self) {
        unimplemented!()
    }

    /// The progress that a stream committed last, or `None` for a new stream.
    pub fn progress(&self, stream: &str) -> Option<StreamProgress> {
        unimplemented!("{stream}")
    }

    /// The position that the next row of `table` must have; rows in the queue included.
    pub fn log_end(&self, table: &str) -> u64 {
        unimplemented!("{table}")
    }

    /// Reads durable log rows from position `from` on: batches with the position of their first
    /// row, whole stored values until `max_rows` are reached; empty at the end of the log. A jump
    /// in the positions is rows that were trimmed or could not be read (counted). Cancel safe.
    pub async fn read_log(
        &self,
        table: &str,
        from: u64,
        max_rows: usize,
    ) -> Result<Vec<(u64, RecordBatch)>, StoreError> {
        unimplemented!("{table} {from} {max_rows}")
    }

    /// Waits until durable rows lie beyond position `after` and returns them in order: at least
    /// one, at most `max_rows`, and no more than `max_bytes` of bodies after the first. A jump in
    /// the positions is rows that were dropped or could not be read (counted). Cancel safe.
    pub async fn next(
        &self,
        sink: &str,
        after: u64,
        max_rows: usize,
        max_bytes: usize,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        unimplemented!("{sink} {after} {max_rows} {max_bytes}")
    }

    /// The durable low-water mark: every row of the sink up to this position is settled.
    pub fn cursor(&self, sink: &str) -> u64 {
        unimplemented!("{sink}")
    }

    /// Says that the far side has taken every row up to `upto`. Cheap; durable with the next
    /// commit or flush. Positions that are already settled change nothing.
    pub fn delivered(&self, sink: &str, upto: u64) {
        unimplemented!("{sink} {upto}")
    }

    /// Says that the far side refused the row at `position` for good, and took every row before
    /// it: the next commit or flush moves the row to the dead letters with `reason` and lets the
    /// cursor pass, at once.
    pub fn reject(&self, sink: &str, position: u64, reason: &str) {
        unimplemented!("{sink} {position} {reason}")
    }

    /// The newest dead letters of a sink, oldest first, at most `limit`.
    pub async fn rejected(&self, sink: &str, limit: usize) -> Result<Vec<Rejected>, StoreError> {
        unimplemented!("{sink} {limit}")
    }

    /// What waits for a sink. Rows that are delivered but not yet durably so do not wait.
    pub fn backlog(&self, sink: &str) -> Backlog {
        unimplemented!("{sink}")
    }

    /// Figures for status and metrics.
    pub fn stats(&self) -> StoreStats {
        unimplemented!()
    }

    /// Drops rows that are older than their sink's `max_age_us` at `now`, with the next flush or
    /// commit. Counted.
    pub fn expire(&self, now: i64) {
        unimplemented!("{now}")
    }

    /// Resolves when the store has failed for good, with the reason. Cancel safe.
    pub async fn failed(&self) -> StoreError {
        unimplemented!()
    }

    /// Commits what waits, closes the files and releases the lock. Later calls on other handles
    /// answer [`StoreError::Closed`].
    pub async fn close(self) -> Result<(), StoreError> {
        unimplemented!()
    }
}
