//! Keeps what was accepted and what was not yet delivered, through power cuts and bad flash.
//!
//! A thread of its own owns the files; everybody else holds a [`Store`]. It knows rows, positions
//! and bytes: no protocol, no SQL, no clock ("now" and the commit timer come from outside).
//!
//! `inbox` queues and `turns` wakes, `committer` owns the files, `transaction` says what changes, `outbox`, `letters`,
//! `log` and `states` how, `book` where it lies, `format`, `record` and `rows` in which bytes. A commit is one frame in the `ring`,
//! which a `writer` thread may write while the next is made; `persist` sees that it lands, `answers` to those who ask; `room` has
//! `fold` move what stays to a `shelf`, `checkpoint` notes it in a redb tree. `recovery` starts from
//! whatever is there (`identity`: and whether it is a copy), `replay` takes up the frames, `reconcile` what is missing, `upgrade` an older format.
//! `damage` counts what failed its check, `unread` is patient with what cannot be read now, `compact` gives room in the tree back, `overlay` is a folder that is only looked at.

mod answers;
mod aside;
mod book;
mod border;
mod checkpoint;
mod committer;
mod compact;
mod damage;
mod disk;
mod files;
mod fold;
mod format;
mod identity;
mod inbox;
mod letters;
mod load;
mod log;
mod outbox;
mod overlay;
mod persist;
mod reconcile;
mod record;
mod recovery;
mod remake;
mod repack;
mod replay;
mod ring;
mod room;
mod rows;
mod shed;
mod shelf;
mod stamps;
mod state;
mod states;
mod transaction;
mod turns;
mod unread;
mod upgrade;
mod verify;
mod work;
mod writer;

#[cfg(test)]
mod tests;

pub use border::{
    Backlog, Commit, Gap, GapReason, Lanes, Layout, LogRows, OutboxRow, OutboxRows, Recovery,
    Rejected, SinkLayout, StateChange, StoreError, StoreOptions, StoreStats, StreamContents,
    StreamProgress, TableContents, TableLayout, Ticket, Verified, WhenFull,
};

pub use states::StoredStates;

pub use stamps::{BootTime, LATEST, Stamps, doubted, moved};

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use arrow::record_batch::RecordBatch;
use tokio::sync::oneshot;

use committer::Committer;
use disk::{Disk, Folder};
use inbox::Shared;
use log::Wanted;
use overlay::Overlay;
use work::{Ask, Order, Reply, What};
use writer::Writer;

/// A handle to the open store. Clones are the same store; when the last one is dropped, what waits
/// is committed and the files are closed, without anybody to hear how it went.
pub struct Store {
    shared: Arc<Shared>,
}

impl Clone for Store {
    fn clone(&self) -> Self {
        self.shared.handles.fetch_add(1, Ordering::Relaxed);
        Store { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.release();
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("epoch", &self.shared.epoch).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store in `options.dir`, or makes one, and starts its thread. Blocks on the disk.
    ///
    /// A file that cannot be opened is moved aside and reported, never fatal.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "nobody has a use for the options afterwards"
    )]
    pub fn open(options: StoreOptions, layout: Layout) -> Result<(Store, Recovery), StoreError> {
        let disk: Arc<dyn Disk> = Arc::new(Folder::new(options.dir.clone()));
        Self::open_on(&disk, &options, layout)
    }

    /// Opens the store in `options.dir` to look at it: everything works, nothing in the folder changes,
    /// and what is done to it goes with the last handle. Blocks on the disk. Nothing is made where
    /// there is no store.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "nobody has a use for the options afterwards"
    )]
    pub fn look(options: StoreOptions, layout: Layout) -> Result<(Store, Recovery), StoreError> {
        let disk: Arc<dyn Disk> = Arc::new(Overlay::new(options.dir.clone()));
        Self::open_at(&disk, &options, layout, true)
    }

    fn open_on(
        disk: &Arc<dyn Disk>,
        options: &StoreOptions,
        layout: Layout,
    ) -> Result<(Store, Recovery), StoreError> {
        Self::open_at(disk, options, layout, false)
    }

    fn open_at(
        disk: &Arc<dyn Disk>,
        options: &StoreOptions,
        layout: Layout,
        only_looks: bool,
    ) -> Result<(Store, Recovery), StoreError> {
        let path = disk.path(files::TREE);
        let mut opened = recovery::open(disk, options, &layout)?;
        if only_looks {
            opened.book.unread.is_never_patient = options.impatient;
        } else {
            opened.book.unread = unread::Unread::default();
            opened.book.files.aside_bytes = aside::bound(&**disk, options.max_bytes);
        }
        let recovery = opened.recovery.clone();
        let state = Arc::new(opened.state.clone());
        let shared = Arc::new(Shared::new(options, layout, state));
        let failed = |error| StoreError::Io { path: path.clone(), source: Arc::new(error) };
        let writer = Writer::start(Arc::clone(&shared)).map_err(failed)?;
        let committer = Committer::new(Arc::clone(&shared), writer, opened);
        thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || committer.run())
            .map_err(failed)?;
        Ok((Store { shared }, recovery))
    }

    /// Takes the tables and sinks of another configuration, without reopening anything.
    ///
    /// What was submitted before is made durable first, under the old layout. Rows, results and
    /// progress of tables, sinks and streams that `layout` does not name stay in the file: they
    /// come back with the name, and give way first when the store is full. The caller has ended
    /// whoever submits to what is not named any more. An error means that nothing has changed.
    /// Cancel safe.
    pub async fn relayout(&self, layout: Layout, max_bytes: u64) -> Result<(), StoreError> {
        recovery::check_names(&layout)?;
        self.submit(Commit { wait: true, ..Commit::default() }).await?.await?;
        self.shared.claim(layout, max_bytes);
        // Bounds that are lower than they were hold now, and not from the next row on. Nothing may be waited
        // for from here on: the layout is claimed.
        if let Err(error) = self.shared.order(Order { name: "".into(), what: What::Bounds }) {
            tracing::debug!(%error, "the store ended with its new layout");
        }
        Ok(())
    }

    /// Resolves when the store's thread has taken a turn: it neither hangs in the disk nor has
    /// ended. Cancel safe.
    pub async fn alive(&self) -> Result<(), StoreError> {
        self.ask(|reply| Ask::Alive { reply }).await
    }

    /// The epoch of new records: part of every id.
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// Queues a commit, in the order of the calls, and resolves when it is queued.
    ///
    /// Waits while the queue is full, of commits or of 8 MiB, or a `Block` sink has no room. Cancel safe: dropped before it
    /// resolves, nothing was queued.
    pub async fn submit(&self, commit: Commit) -> Result<Ticket, StoreError> {
        self.shared.submit(commit).await
    }

    /// Commits what waits; the caller's timer calls this every `commit_every`. Writes nothing when
    /// nothing waits. Does not block.
    pub fn flush(&self) {
        self.shared.flush();
    }

    /// Tries what could not be read again, if it is due; the caller's timer calls this every second, which is what
    /// patience is counted in. Does not block.
    pub fn try_again(&self) {
        self.shared.try_again();
    }

    /// The progress that a stream committed last, or `None` for a new stream. Its states are read with
    /// [`Store::states`].
    pub fn progress(&self, stream: &str) -> Option<StreamProgress> {
        self.shared.state().progress.get(stream).map(|progress| (**progress).clone())
    }

    /// The states of a stream, as of its newest progress, and which of them are damaged. An error means
    /// that the device does not answer. Cancel safe.
    pub async fn states(&self, stream: &str) -> Result<StoredStates, StoreError> {
        let stream = Arc::from(stream);
        self.ask(|reply| Ask::States { stream, reply }).await
    }

    /// Whether a stored state of a stream was found damaged since this was last asked. Who holds its
    /// states in memory loses nothing by putting all of them into the next commit.
    pub fn take_spoiled(&self, stream: &str) -> bool {
        self.shared.spoiled.take(stream)
    }

    /// The position that the next row of `table` must have; rows in the queue included.
    pub fn log_end(&self, table: &str) -> u64 {
        self.shared.log_end(table)
    }

    /// Reads durable log rows from position `from` on: batches with the position of their first
    /// row, whole stored values until `max_rows` are reached; empty at the end of the log. A jump
    /// in the positions is rows that were trimmed or could not be read (counted). Rows that wait for
    /// their time ([`LogRows::stamps`]) are an end of the log. Cancel safe.
    pub async fn read_log(
        &self,
        table: &str,
        from: u64,
        max_rows: usize,
    ) -> Result<Vec<(u64, RecordBatch)>, StoreError> {
        let wanted = Wanted { from, max_rows, waiting: false };
        self.ask(|reply| Ask::Log { table: Arc::from(table), wanted, reply }).await
    }

    /// The same with the rows that wait for their time, as [`doubted`] shows them until then.
    pub async fn read_whole_log(
        &self,
        table: &str,
        from: u64,
        max_rows: usize,
    ) -> Result<Vec<(u64, RecordBatch)>, StoreError> {
        let wanted = Wanted { from, max_rows, waiting: true };
        self.ask(|reply| Ask::Log { table: Arc::from(table), wanted, reply }).await
    }

    /// What is known of the machine's starts of which rows were kept without a time.
    pub fn boots(&self) -> Vec<(u128, BootTime)> {
        self.shared.state().boots.all().to_vec()
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
        let Some((name, mut durable)) = self.shared.watch_sink(sink) else {
            return Err(StoreError::Unknown(format!("sink {sink}")));
        };
        let mut end = self.shared.watch_end();
        let mut after = after;
        loop {
            tokio::select! {
                biased;
                ended = end.wait_for(Option::is_some) => {
                    return Err(ended.ok().and_then(|end| end.clone()).unwrap_or(StoreError::Closed));
                }
                last = durable.wait_for(|last| *last > after) => if last.is_err() {
                    // Another layout, in which the sink has no place.
                    return Err(StoreError::Unknown(format!("sink {name}")));
                },
            }
            let (rows, seen) = self.read(&name, after, (max_rows, max_bytes), true).await?;
            if !rows.is_empty() {
                return Ok(rows);
            }
            after = after.max(seen);
        }
    }

    /// Rows beyond position `after` that wait for a sink now, also for one that the layout does not name; none
    /// where there are none. As [`Store::next`] else. Cancel safe.
    pub async fn waiting(
        &self,
        sink: &str,
        after: u64,
        max_rows: usize,
        max_bytes: usize,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        let name: Arc<str> = Arc::from(sink);
        let mut after = after;
        while self.shared.state().sinks.get(sink).is_some_and(|sink| sink.next - 1 > after) {
            let (rows, seen) = self.read(&name, after, (max_rows, max_bytes), false).await?;
            if !rows.is_empty() || seen <= after {
                return Ok(rows);
            }
            after = seen;
        }
        Ok(Vec::new())
    }

    /// The durable low-water mark: every row of the sink up to this position is settled.
    pub fn cursor(&self, sink: &str) -> u64 {
        self.shared.state().sinks.get(sink).map_or(0, |sink| sink.cursor)
    }

    /// How often since the start notices of gaps stayed at the front of an outbox that a mark would have passed
    /// untold: they stand right behind the cursor then, before what the mark was for.
    pub fn notices_kept(&self, sink: &str) -> u64 {
        self.shared.state().sinks.get(sink).map_or(0, |sink| sink.kept)
    }

    /// Position of the last row that can be read from the outbox of a sink that the layout names,
    /// settled or not; 0 before the first.
    pub fn outbox_end(&self, sink: &str) -> u64 {
        self.shared.watch_sink(sink).map_or(0, |(_, last)| *last.borrow())
    }

    /// Says that the far side has taken every row up to `upto`. Cheap; durable with the next
    /// commit or flush, and 1,000 rows of a sink that are not yet durably delivered make a commit due.
    /// Positions that are already settled change nothing.
    pub fn delivered(&self, sink: &str, upto: u64) {
        self.shared.delivered(sink, upto, false);
    }

    /// As [`Store::delivered`], for the live lane: positions beyond its `split`. After the backlog
    /// has ended it is the same.
    pub fn delivered_live(&self, sink: &str, upto: u64) {
        self.shared.delivered(sink, upto, true);
    }

    /// Begins a live lane behind the last durable row of a sink. Where there are two lanes already
    /// nothing changes; where nothing waits there is none (`None`). Cancel safe.
    pub async fn split(&self, sink: &str) -> Result<Option<Lanes>, StoreError> {
        self.order(sink, |reply| What::Split { reply }).await
    }

    /// The lanes of a sink, while there are two.
    pub fn lanes(&self, sink: &str) -> Option<Lanes> {
        self.shared.state().sinks.get(sink)?.lanes
    }

    /// Notes durably whether a sink is paused. The store goes on giving rows out: keeping them back
    /// is for whoever delivers. Cancel safe.
    pub async fn pause(&self, sink: &str, paused: bool) -> Result<(), StoreError> {
        self.order(sink, |reply| What::Pause { paused, reply }).await
    }

    /// Says that the far side refused the row at `position` for good, and took every row before
    /// it: the next commit or flush moves the row to the dead letters with `reason` and lets the
    /// cursor pass, at once.
    pub fn reject(&self, sink: &str, position: u64, reason: &str) {
        self.shared.reject(sink, position, reason);
    }

    /// The newest dead letters of a sink, oldest first, at most `limit`.
    pub async fn rejected(&self, sink: &str, limit: usize) -> Result<Vec<Rejected>, StoreError> {
        let sink = Arc::from(sink);
        self.ask(|reply| Ask::Rejected { sink, limit, reply }).await
    }

    /// Puts dead letters, by the position they had, back at the end of the outbox under the ids that
    /// they had; no positions are all of them. Returns how many. Cancel safe.
    pub async fn redrive(&self, sink: &str, positions: Vec<u64>) -> Result<u64, StoreError> {
        self.order(sink, |reply| What::Letters { positions, again: true, reply }).await
    }

    /// Forgets dead letters for good; no positions are all of them. Returns how many. Cancel safe.
    pub async fn discard(&self, sink: &str, positions: Vec<u64>) -> Result<u64, StoreError> {
        self.order(sink, |reply| What::Letters { positions, again: false, reply }).await
    }

    /// Drops what is kept for a sink and a table of this name that the layout does not name: it would come
    /// back with the name. Returns how many rows, records and dead letters that were; they count as
    /// dropped. Positions and counters stay. Cancel safe.
    pub async fn forget(&self, name: &str) -> Result<u64, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.shared.order(Order { name: name.into(), what: What::Forget { reply } })?;
        answer.await.unwrap_or_else(|_| Err(self.shared.ended()))
    }

    /// A durable counter: the sum of what commits have added to it.
    pub fn count(&self, name: &str) -> u64 {
        self.shared.state().counts.get(name).copied().unwrap_or(0)
    }

    /// All durable counters, in the order of their names.
    pub fn counts(&self) -> Vec<(Arc<str>, u64)> {
        let state = self.shared.state();
        state.counts.iter().map(|(name, count)| (name.clone(), *count)).collect()
    }

    /// The tables that the store holds, also those that no layout names.
    pub fn tables(&self) -> Vec<TableContents> {
        let state = self.shared.state();
        let tables = state.tables.iter().map(|(name, table)| TableContents {
            name: name.clone(),
            start: table.start,
            end: table.end,
            rows: table.count(table.start..table.end),
            bytes: table.bytes,
            dropped: table.dropped,
        });
        tables.collect()
    }

    /// The sinks that the store holds, also those that no layout names.
    pub fn sinks(&self) -> Vec<Arc<str>> {
        self.shared.state().sinks.keys().cloned().collect()
    }

    /// The streams of which the store has progress, also those that no layout names.
    pub fn streams(&self) -> Vec<StreamContents> {
        let state = self.shared.state();
        let streams = state.progress.iter().map(|(name, progress)| {
            let mark = state.mark(name);
            let bytes = mark.bytes + progress.state.len() as u64;
            StreamContents { name: name.clone(), states: mark.count, bytes }
        });
        streams.collect()
    }

    /// Reads everything that is stored and checks it, a MiB at a time between other work. What is
    /// stored meanwhile may or may not be among it. Cancel safe: dropped, the check ends.
    pub async fn verify(&self) -> Result<Verified, StoreError> {
        self.ask(|reply| Ask::Verify { reply }).await
    }

    /// Gives unused room in the files back; returns their bytes before and after. Nothing else is
    /// done meanwhile. Cancel safe.
    pub async fn compact(&self) -> Result<(u64, u64), StoreError> {
        self.ask(|reply| Ask::Compact { reply }).await
    }

    /// What waits for a sink. Rows that are delivered but not yet durably so do not wait.
    pub fn backlog(&self, sink: &str) -> Backlog {
        self.shared.backlog(sink)
    }

    /// Figures for status and metrics.
    pub fn stats(&self) -> StoreStats {
        self.shared.stats()
    }

    /// Drops rows that are older than their sink's `max_age_us` at `now`, with the next flush or
    /// commit. Counted.
    pub fn expire(&self, now: i64) {
        self.shared.expire(now);
    }

    /// Resolves when the store has failed for good, with the reason. Cancel safe.
    pub async fn failed(&self) -> StoreError {
        let mut end = self.shared.watch_end();
        let failed = end.wait_for(|end| matches!(end, Some(StoreError::Failed(_)))).await;
        // The sender lives as long as this handle, so that there is an answer.
        failed.ok().and_then(|end| end.clone()).unwrap_or(StoreError::Closed)
    }

    /// Commits what waits, closes the files and releases the lock. Later calls on other handles
    /// answer [`StoreError::Closed`].
    pub async fn close(self) -> Result<(), StoreError> {
        self.shared.close();
        let mut end = self.shared.watch_end();
        let end = end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        match end {
            Some(StoreError::Failed(reason)) => Err(StoreError::Failed(reason)),
            _ => Ok(()),
        }
    }

    async fn order<T>(
        &self,
        sink: &str,
        what: impl FnOnce(Reply<T>) -> What,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let name = self.shared.sink_name(sink)?;
        self.shared.order(Order { name, what: what(reply) })?;
        answer.await.unwrap_or_else(|_| Err(self.shared.ended()))
    }

    /// Rows of a sink, and the position up to which everything has been looked at.
    async fn read(
        &self,
        sink: &Arc<str>,
        after: u64,
        (max_rows, max_bytes): (usize, usize),
        delivers: bool,
    ) -> Result<(Vec<OutboxRow>, u64), StoreError> {
        let sink = sink.clone();
        self.ask(|reply| Ask::Next { sink, after, max_rows, max_bytes, delivers, reply }).await
    }

    async fn ask<T>(&self, ask: impl FnOnce(Reply<T>) -> Ask) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.shared.ask(ask(reply))?;
        answer.await.unwrap_or_else(|_| Err(self.shared.ended()))
    }
}
