//! The queue between everybody and the store's thread, and what everybody may see of the store.
//!
//! Bounded in commits and bytes: a commit holds a slot from [`Shared::submit`] until it is durable. The thread takes all
//! that waits at once, in order; `turns` says when. Knows no file.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::border::{
    Backlog, Commit, Layout, LogRows, StateChange, StoreError, StoreOptions, StoreStats,
    StreamProgress, Ticket, WhenFull,
};
use super::damage::Trouble;
use super::format::row_bytes;
use super::letters;
use super::outbox;
use super::state::State;
use super::states::Spoiled;
use super::turns::{Holding, Pace};
use super::work::{Ask, Coming, Order, Pending, Refusal, Work, answer, droppable};
use crate::bytes::batch_bytes;

/// Bytes of commits that wait in the queue, from which on [`Shared::submit`] waits: one commit may pass
/// it. The thread takes what waits at 256 KiB, so that only a store that cannot write gets there.
const QUEUE_BYTES_MAX: usize = 8 << 20;

/// Characters of a reason that are kept: it comes from the far side.
const REASON_CHARS_MAX: usize = 1_000;

/// What waits for the thread.
pub(super) struct Inbox {
    pub(super) work: Work,
    /// How the writing of a frame ended, until the thread has heard it.
    pub(super) written: Option<Result<(), Trouble>>,
    /// What the thread that sleeps wants to be woken for; `None` while it is awake.
    pub(super) sleeping: Option<(Holding, Pace)>,
    pub(super) asks: Vec<Ask>,
    pub(super) bytes: usize,
    pub(super) waits: usize,
    pub(super) flush: bool,
    pub(super) close: bool,
    pub(super) blocked: usize,
    /// Rows and bytes per sink that are queued or being committed.
    coming: HashMap<Arc<str>, (u64, u64)>,
    /// Positions that log rows must continue at, queued rows included.
    log_ends: HashMap<Arc<str>, u64>,
}

impl Inbox {
    fn new(log_ends: HashMap<Arc<str>, u64>) -> Self {
        Inbox {
            work: Work::default(),
            written: None,
            sleeping: None,
            asks: Vec::new(),
            bytes: 0,
            waits: 0,
            flush: false,
            close: false,
            blocked: 0,
            coming: HashMap::new(),
            log_ends,
        }
    }
}

/// What was durable after the last commit.
struct View {
    state: Arc<State>,
    stats: StoreStats,
}

/// Shared by the handles and the thread.
pub(super) struct Shared {
    pub(super) inbox: Mutex<Inbox>,
    pub(super) wake: Condvar,
    view: Mutex<View>,
    slots: Arc<Semaphore>,
    /// A `Block` sink may have room again.
    room: Notify,
    /// Set once: why nothing is stored any more.
    end: watch::Sender<Option<StoreError>>,
    /// Handles that are left; the last one closes the store.
    pub(super) handles: AtomicU64,
    claims: Mutex<Arc<Claims>>,
    pub(super) epoch: u64,
    pub(super) queue: usize,
    pub(super) commit_bytes: usize,
    pub(super) spoiled: Spoiled,
}

/// What the running configuration claims of the store. Replaced as a whole: who holds one sees one
/// configuration.
pub(super) struct Claims {
    pub(super) layout: Layout,
    pub(super) max_bytes: u64,
    /// Per sink: the position of the last durable row.
    durable: HashMap<Arc<str>, watch::Sender<u64>>,
}

impl Claims {
    /// The claims of `layout`; who waits for a sink that `before` had too goes on waiting.
    fn new(layout: Layout, max_bytes: u64, state: &State, before: Option<&Claims>) -> Self {
        let sender = |name: &Arc<str>| {
            before.and_then(|before| before.durable.get(name)).cloned().unwrap_or_else(|| {
                watch::Sender::new(state.sinks.get(name).map_or(0, |sink| sink.next - 1))
            })
        };
        let durable = layout.sinks.iter().map(|sink| (sink.name.clone(), sender(&sink.name)));
        Claims { durable: durable.collect(), layout, max_bytes }
    }
}

/// Bytes that a progress brings.
fn progress_bytes(progress: &StreamProgress) -> usize {
    let states = progress.states.iter().filter_map(|change| change.bytes.as_ref());
    states.fold(progress.state.len(), |sum, bytes| sum.saturating_add(bytes.len()))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held leaves counters at worst; the thread's own panics are met
    // where it ends.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(options: &StoreOptions, layout: Layout, state: Arc<State>) -> Self {
        let log_ends = layout.tables.iter().map(|table| {
            let end = state.tables.get(&table.name).map_or(0, |table| table.end);
            (table.name.clone(), end)
        });
        let queue = options.queue.clamp(1, Semaphore::MAX_PERMITS);
        Shared {
            inbox: Mutex::new(Inbox::new(log_ends.collect())),
            wake: Condvar::new(),
            slots: Arc::new(Semaphore::new(queue)),
            room: Notify::new(),
            end: watch::Sender::new(None),
            handles: AtomicU64::new(1),
            claims: Mutex::new(Arc::new(Claims::new(layout, options.max_bytes, &state, None))),
            epoch: state.meta.epoch,
            queue,
            commit_bytes: options.commit_bytes,
            spoiled: Spoiled::default(),
            view: Mutex::new(View { state, stats: StoreStats::default() }),
        }
    }

    /// What is claimed now. Never held over a change of the inbox: a copy of the pointer.
    pub(super) fn claims(&self) -> Arc<Claims> {
        Arc::clone(&lock(&self.claims))
    }

    /// Puts other claims in place, for all that is queued or asked from now on.
    pub(super) fn claim(&self, layout: Layout, max_bytes: u64) {
        let mut inbox = lock(&self.inbox);
        let state = self.state();
        for table in &layout.tables {
            let end = state.tables.get(&table.name).map_or(0, |table| table.end);
            inbox.log_ends.entry(table.name.clone()).or_insert(end);
        }
        let mut claims = lock(&self.claims);
        *claims = Arc::new(Claims::new(layout, max_bytes, &state, Some(&claims)));
        drop((claims, inbox));
        // Bounds may have grown, and `Block` may be gone.
        self.room.notify_waiters();
    }

    /// See [`Store::submit`](super::Store::submit).
    pub(super) async fn submit(&self, commit: Commit) -> Result<Ticket, StoreError> {
        let mut commit = Some(commit);
        loop {
            let slot = Arc::clone(&self.slots).acquire_owned().await;
            let Ok(slot) = slot else {
                return Err(self.ended());
            };
            // It hears of all that is said from here on, also before it is waited for.
            let room = self.room.notified();
            if let Some(ticket) = self.push(&mut commit, slot)? {
                return Ok(ticket);
            }
            let _blocked = Blocked::new(self);
            room.await;
        }
    }

    /// Queues the commit, or leaves it where it is when a `Block` sink has no room.
    fn push(
        &self,
        commit: &mut Option<Commit>,
        slot: OwnedSemaphorePermit,
    ) -> Result<Option<Ticket>, StoreError> {
        let mut inbox = lock(&self.inbox);
        if inbox.close || self.end.borrow().is_some() {
            return Err(self.ended());
        }
        let Some(held) = commit.as_ref() else {
            return Err(StoreError::Closed);
        };
        self.check(&inbox, held)?;
        let is_full = inbox.bytes >= QUEUE_BYTES_MAX && !inbox.work.commits.is_empty();
        if is_full || !self.has_room(&inbox, held) {
            return Ok(None);
        }
        let Some(taken) = commit.take() else {
            return Err(StoreError::Closed);
        };
        for rows in &taken.rows {
            // It is there: the check has found it.
            if let Some(end) = inbox.log_ends.get_mut(&rows.table) {
                *end = rows.end();
            }
            inbox.bytes += batch_bytes(&rows.batch);
        }
        for rows in &taken.outbox {
            let bytes: u64 = rows.bodies.iter().map(row_bytes).sum();
            let coming = inbox.coming.entry(rows.sink.clone()).or_default();
            coming.0 += rows.bodies.len() as u64;
            coming.1 += bytes;
            inbox.bytes += usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        inbox.bytes += taken.progress.as_ref().map_or(0, progress_bytes);
        inbox.waits += usize::from(taken.wait);
        let (ticket, done) = oneshot::channel();
        inbox.work.commits.push(Pending { commit: taken, ticket, slot });
        self.rouse(&mut inbox);
        Ok(Some(Ticket(done)))
    }

    fn check(&self, inbox: &Inbox, commit: &Commit) -> Result<(), StoreError> {
        let claims = self.claims();
        for (index, rows) in commit.rows.iter().enumerate() {
            let claimed = claims.layout.tables.iter().any(|table| table.name == rows.table);
            let Some(end) = inbox.log_ends.get(&rows.table).filter(|_| claimed) else {
                return Err(StoreError::Unknown(format!("table {}", rows.table)));
            };
            // A commit has rows of few tables, and mostly of one.
            let before =
                commit.rows[..index].iter().rev().find(|before| before.table == rows.table);
            let expected = before.map_or(*end, LogRows::end);
            if rows.position != expected {
                let (table, position) = (rows.table.clone(), rows.position);
                return Err(StoreError::Position { table, position, expected });
            }
        }
        if let Some(progress) = &commit.progress {
            let bytes = progress_bytes(progress);
            if bytes > StateChange::BYTES_MAX {
                return Err(StoreError::TooLarge { stream: progress.stream.clone(), bytes });
            }
        }
        for rows in &commit.outbox {
            if !claims.durable.contains_key(&rows.sink) {
                return Err(StoreError::Unknown(format!("sink {}", rows.sink)));
            }
        }
        Ok(())
    }

    /// Whether every `Block` sink of the commit is below its bounds and the store below its own.
    fn has_room(&self, inbox: &Inbox, commit: &Commit) -> bool {
        if commit.outbox.is_empty() {
            return true;
        }
        let claims = self.claims();
        let Claims { layout, max_bytes, .. } = &*claims;
        if layout.sinks.iter().all(|sink| sink.when_full != WhenFull::Block) {
            return true;
        }
        let view = lock(&self.view);
        let coming = |name| inbox.coming.get(name).copied().unwrap_or_default();
        let store_full = || {
            let queued: u64 = inbox.coming.values().map(|(_, bytes)| bytes).sum();
            droppable(&view.state, layout, *max_bytes) == 0
                && view.state.held_bytes().saturating_add(queued) >= *max_bytes
        };
        commit.outbox.iter().all(|rows| {
            let sink = layout.sinks.iter().find(|sink| sink.name == rows.sink);
            let Some(sink) = sink.filter(|sink| sink.when_full == WhenFull::Block) else {
                return true;
            };
            let (records, bytes) = coming(&rows.sink);
            let held = view.state.sinks.get(&rows.sink);
            let (held_records, held_bytes) =
                held.map_or((0, 0), |sink| (sink.records(), sink.bytes));
            !outbox::is_full(sink, held_records + records, held_bytes + bytes) && !store_full()
        })
    }

    pub(super) fn ask(&self, ask: Ask) -> Result<(), StoreError> {
        let mut inbox = lock(&self.inbox);
        if inbox.close || self.end.borrow().is_some() {
            return Err(self.ended());
        }
        // Nobody waits any more for the answers of futures that were dropped.
        inbox.asks.retain(|ask| !ask.is_abandoned());
        inbox.asks.push(ask);
        self.rouse(&mut inbox);
        Ok(())
    }

    pub(super) fn try_again(&self) {
        let mut inbox = lock(&self.inbox);
        if !inbox.close && !inbox.asks.iter().any(|ask| matches!(ask, Ask::Again)) {
            inbox.asks.push(Ask::Again);
            self.rouse(&mut inbox);
        }
    }

    pub(super) fn flush(&self) {
        let mut inbox = lock(&self.inbox);
        inbox.flush = true;
        self.rouse(&mut inbox);
    }

    pub(super) fn expire(&self, now: i64) {
        lock(&self.inbox).work.expire = Some(now);
    }

    /// Queues an order; it makes a commit due.
    pub(super) fn order(&self, order: Order) -> Result<(), StoreError> {
        let mut inbox = lock(&self.inbox);
        if inbox.close || self.end.borrow().is_some() {
            return Err(self.ended());
        }
        inbox.work.orders.push(order);
        self.rouse(&mut inbox);
        Ok(())
    }

    /// The name of a sink that the store holds or the layout names.
    pub(super) fn sink_name(&self, sink: &str) -> Result<Arc<str>, StoreError> {
        let claims = self.claims();
        let view = lock(&self.view);
        let claimed = claims.durable.get_key_value(sink).map(|(name, _)| name);
        claimed
            .or_else(|| view.state.sinks.get_key_value(sink).map(|(name, _)| name))
            .cloned()
            .ok_or_else(|| StoreError::Unknown(format!("sink {sink}")))
    }

    pub(super) fn delivered(&self, sink: &str, upto: u64, live: bool) {
        let claims = self.claims();
        let Some((name, _)) = claims.durable.get_key_value(sink) else {
            return;
        };
        let mut inbox = lock(&self.inbox);
        let Work { delivered, delivered_live, .. } = &mut inbox.work;
        let marks = if live { delivered_live } else { delivered };
        let mark = marks.entry(name.clone()).or_default();
        *mark = upto.max(*mark);
        self.rouse(&mut inbox);
    }

    pub(super) fn reject(&self, sink: &str, position: u64, reason: &str) {
        let claims = self.claims();
        let Some((sink, _)) = claims.durable.get_key_value(sink) else {
            return;
        };
        let mut inbox = lock(&self.inbox);
        let (sink, reason) = (sink.clone(), reason.chars().take(REASON_CHARS_MAX).collect());
        inbox.work.refusals.push(Refusal { sink, position, reason });
        self.rouse(&mut inbox);
    }

    /// Asks the thread to commit what waits and to end.
    pub(super) fn close(&self) {
        let mut inbox = lock(&self.inbox);
        inbox.close = true;
        self.rouse(&mut inbox);
        drop(inbox);
        self.room.notify_waiters();
    }

    /// Shows what can be read now; `came` is what has come into outboxes with it.
    pub(super) fn publish(&self, state: &Arc<State>, figures: StoreStats, came: &[Coming]) {
        let mut inbox = lock(&self.inbox);
        for rows in came {
            if let Some(coming) = inbox.coming.get_mut(&rows.sink) {
                coming.0 = coming.0.saturating_sub(rows.rows);
                coming.1 = coming.1.saturating_sub(rows.bytes);
            }
        }
        *lock(&self.view) = View { state: Arc::clone(state), stats: figures };
        drop(inbox);
        for (name, durable) in &self.claims().durable {
            let last = state.sinks.get(name).map_or(0, |sink| sink.next - 1);
            durable.send_if_modified(|known| std::mem::replace(known, last) != last);
        }
        self.room.notify_waiters();
    }

    /// Shows figures that changed without a commit.
    pub(super) fn show(&self, stats: StoreStats) {
        lock(&self.view).stats = stats;
    }

    /// Ends the store for everybody: what waits gets `reason`.
    pub(super) fn finish(&self, reason: &StoreError) {
        let mut inbox = lock(&self.inbox);
        inbox.close = true;
        let work = std::mem::take(&mut inbox.work);
        let asks = std::mem::take(&mut inbox.asks);
        self.slots.close();
        drop(inbox);
        if matches!(reason, StoreError::Failed(_)) {
            let mut view = lock(&self.view);
            view.stats.failed = true;
            view.stats.last_error = Some(reason.to_string());
        }
        self.end.send_if_modified(|end| end.is_none() && end.replace(reason.clone()).is_none());
        for pending in work.commits {
            answer(pending.ticket, Err(reason.clone()));
        }
        for order in work.orders {
            order.what.refuse(reason);
        }
        for ask in asks {
            ask.refuse(reason);
        }
        self.room.notify_waiters();
    }

    pub(super) fn ended(&self) -> StoreError {
        self.end.borrow().clone().unwrap_or(StoreError::Closed)
    }

    pub(super) fn watch_end(&self) -> watch::Receiver<Option<StoreError>> {
        self.end.subscribe()
    }

    pub(super) fn watch_sink(&self, sink: &str) -> Option<(Arc<str>, watch::Receiver<u64>)> {
        let claims = self.claims();
        let (name, durable) = claims.durable.get_key_value(sink)?;
        Some((name.clone(), durable.subscribe()))
    }

    pub(super) fn state(&self) -> Arc<State> {
        Arc::clone(&lock(&self.view).state)
    }

    pub(super) fn log_end(&self, table: &str) -> u64 {
        lock(&self.inbox).log_ends.get(table).copied().unwrap_or(0)
    }

    pub(super) fn backlog(&self, sink: &str) -> Backlog {
        let inbox = lock(&self.inbox);
        let marked = inbox.work.delivered.get(sink).copied().unwrap_or(0);
        let view = lock(&self.view);
        let Some(state) = view.state.sinks.get(sink) else {
            return Backlog::default();
        };
        // Those of which the mark is not durable yet among them, so that the sum never dips.
        let settled = match state.lanes {
            Some(lanes) => marked.min(lanes.split).max(state.cursor),
            None => marked.min(state.next - 1).max(state.cursor),
        };
        let count = |key: String| view.state.counts.get(&*key).copied().unwrap_or(0);
        let passed = (settled - state.cursor).saturating_sub(state.front.len() as u64);
        let records = state.records().saturating_sub(passed);
        Backlog {
            records,
            bytes: if records == 0 { 0 } else { state.bytes },
            oldest_created: state.head_created.filter(|_| records > 0),
            delivered: state.delivered + (state.records() - records),
            dropped: state.dropped,
            no_room: count(outbox::no_room(sink)),
            expired: state.expired,
            rejected: state.rejected,
            lost: state.lost,
            redriven: state.redriven,
            gaps: state.gaps,
            letters: state.letters,
            letter_bytes: state.letter_bytes,
            letters_dropped: count(letters::dropped(sink)),
            lanes: state.lanes,
            paused: state.paused,
        }
    }

    pub(super) fn stats(&self) -> StoreStats {
        let queue_len = lock(&self.inbox).work.commits.len();
        let view = lock(&self.view);
        let dropped = view.state.tables.values().map(|table| table.dropped).sum();
        StoreStats {
            queue_len,
            queue_capacity: self.queue,
            held_bytes: view.state.held_bytes(),
            state_bytes: view.state.marks.values().map(|mark| mark.bytes).sum(),
            log_rows_dropped: dropped,
            ..view.stats.clone()
        }
    }

    pub(super) fn release(&self) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.close();
        }
    }
}

/// Counts submitters that wait for room, so that deliveries are committed at once meanwhile.
struct Blocked<'a>(&'a Shared);

impl<'a> Blocked<'a> {
    fn new(shared: &'a Shared) -> Self {
        let mut inbox = lock(&shared.inbox);
        inbox.blocked += 1;
        shared.rouse(&mut inbox);
        Blocked(shared)
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        lock(&self.0.inbox).blocked -= 1;
    }
}
