//! What a pump needs of the store: one sink's outbox, so that lanes can be tried without a disk.
//!
//! Means what the methods of [`Store`] of the same names mean; knows one sink and no files.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tidegate_engine::store::{Lanes, OutboxRow, Store, StoreError};

/// One sink's outbox.
pub trait Outbox: Send + Sync {
    /// Waits for durable rows beyond position `after`: see [`Store::next`].
    fn next(
        &self,
        after: u64,
        max_rows: usize,
        max_bytes: usize,
    ) -> BoxFuture<'static, Result<Vec<OutboxRow>, StoreError>>;

    /// Position of the last durable row, delivered or not.
    fn end(&self) -> u64;

    /// Records that wait.
    fn waiting(&self) -> u64;

    /// The durable low-water mark: see [`Store::cursor`].
    fn cursor(&self) -> u64;

    /// How often notices of gaps stayed before what was marked: see [`Store::notices_kept`].
    fn notices_kept(&self) -> u64;

    /// The two lanes, where there are two.
    fn lanes(&self) -> Option<Lanes>;

    /// Begins a live lane: see [`Store::split`].
    fn split(&self) -> BoxFuture<'static, Result<Option<Lanes>, StoreError>>;

    /// Says that everything up to `upto` is taken, in the backlog or where there is one lane.
    fn delivered(&self, upto: u64);

    /// The same in the live lane.
    fn delivered_live(&self, upto: u64);

    /// Sets a record aside that was refused for good, all before it in its lane being settled.
    fn reject(&self, position: u64, reason: &str);
}

/// The outbox of one sink in the store.
pub struct SinkOutbox {
    /// The store.
    pub store: Store,
    /// The sink's name.
    pub sink: Arc<str>,
}

impl Outbox for SinkOutbox {
    fn next(
        &self,
        after: u64,
        max_rows: usize,
        max_bytes: usize,
    ) -> BoxFuture<'static, Result<Vec<OutboxRow>, StoreError>> {
        let (store, sink) = (self.store.clone(), self.sink.clone());
        async move { store.next(&sink, after, max_rows, max_bytes).await }.boxed()
    }

    fn end(&self) -> u64 {
        self.store.outbox_end(&self.sink)
    }

    fn waiting(&self) -> u64 {
        self.store.backlog(&self.sink).records
    }

    fn cursor(&self) -> u64 {
        self.store.cursor(&self.sink)
    }

    fn notices_kept(&self) -> u64 {
        self.store.notices_kept(&self.sink)
    }

    fn lanes(&self) -> Option<Lanes> {
        self.store.lanes(&self.sink)
    }

    fn split(&self) -> BoxFuture<'static, Result<Option<Lanes>, StoreError>> {
        let (store, sink) = (self.store.clone(), self.sink.clone());
        async move { store.split(&sink).await }.boxed()
    }

    fn delivered(&self, upto: u64) {
        self.store.delivered(&self.sink, upto);
    }

    fn delivered_live(&self, upto: u64) {
        self.store.delivered_live(&self.sink, upto);
    }

    fn reject(&self, position: u64, reason: &str) {
        self.store.reject(&self.sink, position, reason);
    }
}
