//! The thread that owns the store: takes all that waits into one frame, again and again.
//!
//! What a commit changes is decided once, in memory; the frame that says so is written until it is
//! durable. While one is written by a thread of its own (`writer`), what comes goes into the next, which
//! is a draft until then; nobody is told or shown anything of it. While nothing can be written, what
//! comes is held in memory within a bound, and delivered from there; nobody is told that it is durable.
//! Panics of redb stay in here. Knows no clock: when to commit comes from the queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::book::Book;
use super::border::{StoreError, StoreStats};
use super::checkpoint::checkpoint;
use super::compact;
use super::damage::{contained, drop_contained};
use super::format::row_bytes;
use super::inbox::Shared;
use super::recovery::Opened;
use super::ring;
use super::room::Want;
use super::shed::Refused;
use super::state::State;
use super::transaction::{Left, Transaction};
use super::turns::{Holding, Pace};
use super::verify::Verifying;
use super::work::{Answer, Ask, Coming, Pending, Work, answer};
use super::writer::Writer;

/// Bytes that are held in memory at most while nothing can be written.
pub(super) const MEMORY_BYTES_MAX: u64 = 8 << 20;
/// Bytes of the frame being made, from which on it takes no more while another one is written.
const DRAFT_BYTES_MAX: usize = 4 << 20;
/// Microseconds of a day.
const DAY_US: i64 = 86_400_000_000;

/// Who waits for a frame.
#[derive(Default)]
pub(super) struct Group {
    answers: Vec<Answer>,
    tickets: Vec<oneshot::Sender<Result<(), StoreError>>>,
    /// The places in the queue, all in one.
    slots: Option<OwnedSemaphorePermit>,
    /// What it puts into outboxes.
    coming: Vec<Coming>,
}

impl Group {
    /// Takes in who waits for a later frame. Who does not wait any more is left out.
    pub(super) fn join(&mut self, later: Group) {
        self.answers.extend(later.answers);
        self.tickets.extend(later.tickets);
        self.tickets.retain(|ticket| !ticket.is_closed());
        match (&mut self.slots, later.slots) {
            (Some(slots), Some(more)) => slots.merge(more),
            (slots @ None, more) => *slots = more,
            _ => {}
        }
        self.coming.extend(later.coming);
    }

    fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.tickets.is_empty()
    }

    fn add(&mut self, commits: Vec<Pending>) {
        self.tickets.reserve(commits.len());
        for Pending { commit, ticket, slot } in commits {
            self.tickets.push(ticket);
            match &mut self.slots {
                Some(slots) => slots.merge(slot),
                None => self.slots = Some(slot),
            }
            for rows in commit.outbox {
                let bytes = rows.bodies.iter().map(row_bytes).sum();
                let coming = Coming { sink: rows.sink, rows: rows.bodies.len() as u64, bytes };
                self.coming.push(coming);
            }
        }
    }

    /// Gives the places back and answers: in this order, so that who has an answer has room for more.
    fn tell(self, end: &Result<(), StoreError>) {
        drop(self.slots);
        for tell in self.answers {
            tell(end.clone());
        }
        for ticket in self.tickets {
            answer(ticket, end.clone());
        }
    }
}

/// A frame that is not durable, or of which nobody was told.
pub(super) struct Held {
    pub(super) sequence: u64,
    pub(super) group: Group,
    /// What is shown of the store once it may be seen.
    pub(super) state: Option<Arc<State>>,
}

pub(super) struct Committer {
    /// Goes first: behind that nothing is written any more, and the lock may be released.
    pub(super) writer: Writer,
    pub(super) shared: Arc<Shared>,
    pub(super) book: Book,
    pub(super) state: State,
    pub(super) stats: StoreStats,
    /// Who waits for the frame that is being made.
    group: Group,
    pub(super) held: VecDeque<Held>,
    /// The writer has the first frame that is not durable, and this is its place in the ring.
    pub(super) flight: Option<u64>,
    /// The state as of the last frame, durable or not.
    pub(super) last: Arc<State>,
    /// The state that everybody sees.
    pub(super) shown: Arc<State>,
    /// Questions that wait until no frame is being written.
    pub(super) deferred: Vec<Ask>,
    /// Questions for what cannot be read now.
    pub(super) unanswered: Vec<Ask>,
    /// Marks that pass what cannot be read now.
    left: Left,
    /// The next frame says everything, not only what changed: the tree could be made again from it.
    pub(super) snapshot_due: bool,
    pub(super) now: Option<i64>,
    /// Bytes written when the day began, less what the day had before this process.
    day_base: u64,
    /// The oldest frames could not be folded: tried again with the next flush.
    pub(super) reclaim_failed: bool,
    /// Bytes in memory from which on it is tried to put them together.
    pub(super) repack_at: u64,
    /// The disk is full, the ring nearly, and nothing may give way: what is left of the ring is for
    /// deliveries, which free room. Why.
    pub(super) held_back: Option<String>,
    /// For how long the disk has had no room.
    pub(super) want: Want,
    /// Sinks that get no new rows while nothing can be written.
    pub(super) refused: Refused,
    /// Flushes until the tree is looked at again for what is free in it.
    pub(super) compact_in: u32,
    /// Length of the tree as the last compaction left it: what could not be gained then cannot be now.
    pub(super) compacted: u64,
    /// The tree says that the store was closed in order, and nothing was written since.
    pub(super) tree_is_clean: bool,
    /// Who waits for a check of everything stored.
    pub(super) verifying: VecDeque<Verifying>,
}

impl Committer {
    pub(super) fn new(shared: Arc<Shared>, writer: Writer, opened: Opened) -> Self {
        let Opened { book, state, recovery } = opened;
        let last = Arc::new(state.clone());
        Committer {
            writer,
            shared,
            book,
            state,
            stats: StoreStats::default(),
            group: Group::default(),
            held: VecDeque::new(),
            flight: None,
            shown: Arc::clone(&last),
            last,
            deferred: Vec::new(),
            unanswered: Vec::new(),
            left: Left::default(),
            snapshot_due: true,
            now: None,
            day_base: 0,
            reclaim_failed: false,
            repack_at: 0,
            held_back: None,
            want: Want::default(),
            refused: Refused::default(),
            compact_in: compact::LOOK_EVERY,
            compacted: 0,
            tree_is_clean: recovery.clean,
            verifying: VecDeque::new(),
        }
    }

    /// Works until the store is closed or fails; then everybody is told.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let end = match contained(|| Ok(self.work())) {
            Ok(Ok(())) => StoreError::Closed,
            Ok(Err(reason)) => StoreError::Failed(reason),
            Err(trouble) => StoreError::Failed(trouble.text().to_owned()),
        };
        if let StoreError::Failed(reason) = &end {
            tracing::error!(reason, "the store has failed");
        }
        for held in self.held.drain(..) {
            held.group.tell(&Err(end.clone()));
        }
        std::mem::take(&mut self.group).tell(&Err(end.clone()));
        for ask in self.deferred.drain(..).chain(self.unanswered.drain(..)) {
            ask.refuse(&end);
        }
        // The lock is released before anybody hears that the store is closed.
        if !drop_contained(self) {
            tracing::warn!("the store's files did not close cleanly");
        }
        shared.finish(&end);
    }

    fn work(&mut self) -> Result<(), String> {
        self.shared.show(self.figures());
        loop {
            let blocked = self.flight.is_none() && self.book.memory() >= self.memory_max();
            let held = match (blocked, self.held_back.is_some()) {
                (true, _) => Holding::Yes,
                (false, true) => Holding::UntilClose,
                (false, false) => Holding::No,
            };
            let pace = match self.flight {
                None => Pace::Free,
                Some(_) if self.book.draft.len() < DRAFT_BYTES_MAX => Pace::Beside,
                Some(_) => Pace::Shut,
            };
            let turn = self.shared.wait(held, pace, !self.verifying.is_empty());
            if let Some(outcome) = turn.written {
                self.land(outcome);
            }
            for ask in turn.asks {
                self.ask(ask);
            }
            if let Some(mut work) = turn.work {
                std::mem::take(&mut self.left).join(&mut work);
                self.note_time(work.expire);
                if self.is_needed(&work) {
                    self.take(work);
                }
            }
            if self.flight.is_none() {
                self.write(turn.flush, turn.close);
            }
            self.tell();
            if self.flight.is_none() {
                self.rest(turn.flush);
            }
            self.verify_some();
            self.tell_spoiled();
            self.shared.show(self.figures());
            if turn.close {
                match &self.stats.stalled {
                    Some(reason) => return Err(reason.clone()),
                    None if !blocked => {
                        self.end();
                        return Ok(());
                    }
                    None => {}
                }
            }
        }
    }

    /// Ends the frame that was being made, and writes what is not durable: beside the making of the
    /// next one where several wait and nothing else is to be done, else before anything else.
    fn write(&mut self, flush: bool, close: bool) {
        let several = self.group.tickets.len() > 1;
        if flush && self.stats.stalled.is_some() {
            self.share_memory();
        }
        self.seal();
        if self.book.memory() == 0 || !(self.stats.stalled.is_none() || flush) {
            return;
        }
        let pauses = close || !self.deferred.is_empty() || self.needs_room();
        if !several || pauses || self.stats.stalled.is_some() || !self.launch() {
            self.persist(None);
            if self.stats.stalled.is_some() {
                self.shed_history();
                self.repack();
            }
        }
    }

    /// What is done between frames, when none is being written or made.
    fn rest(&mut self, flush: bool) {
        for ask in std::mem::take(&mut self.deferred) {
            self.answer(ask);
        }
        if self.stats.stalled.is_none() && (flush || !self.reclaim_failed) {
            self.keep_room();
        }
        if flush {
            self.look_for_room();
            self.book.slim();
            self.compact_sometimes();
        }
    }

    /// The last checkpoint, so that the next start has nothing to take up. What is in the ring is
    /// durable without it.
    fn end(&mut self) {
        if self.book.sequence - 1 > self.state.meta.commit || !self.tree_is_clean {
            self.note_written();
            if let Err(trouble) = checkpoint(&mut self.book, &mut self.state, true) {
                tracing::warn!(reason = trouble.text(), "no last checkpoint");
            }
        }
    }

    /// Whether there is anything to write: nothing is written when nothing happened.
    fn is_needed(&self, work: &Work) -> bool {
        let (state, claims) = (&self.state, self.shared.claims());
        let moved = |(name, upto): (&Arc<str>, &u64)| {
            state.sinks.get(name).is_some_and(|sink| *upto > sink.cursor && sink.open() > 0)
        };
        let is_old = |now: i64| {
            let aged = claims.layout.sinks.iter().filter_map(|s| Some((s, s.max_age_us?)));
            aged.into_iter().any(|(sink, age)| {
                state.sinks.get(&sink.name).is_some_and(|sink| {
                    let limit = now.saturating_sub(age);
                    let head = sink.front.is_empty().then_some(sink.head_created).flatten();
                    sink.records() > 0 && head.is_none_or(|created| created < limit)
                })
            })
        };
        !work.commits.is_empty()
            || !work.refusals.is_empty()
            || !work.orders.is_empty()
            || work.delivered.iter().chain(&work.delivered_live).any(moved)
            || work.expire.is_some_and(is_old)
    }

    /// Applies the work: from now on it is in memory, in the frame that is being made.
    fn take(&mut self, mut work: Work) {
        let claims = self.shared.claims();
        let (layout, max_bytes) = (&claims.layout, claims.max_bytes);
        let (book, state, now) = (&mut self.book, &mut self.state, self.now);
        let refused = &self.refused.sinks;
        let mut transaction = Transaction { book, state, layout, max_bytes, now, refused };
        for order in std::mem::take(&mut work.orders) {
            self.group.answers.push(transaction.order(order));
        }
        self.left = transaction.apply(&work);
        self.group.add(work.commits);
        if self.flight.is_some() {
            self.book.sum_draft();
        }
    }

    /// Ends the frame that is being made, if there is anything in it: it waits to be written.
    pub(super) fn seal(&mut self) {
        let (state, last) = (&self.state, &self.last);
        // What was only looked at, such as the age of a record behind a notice, is no reason to write.
        let is_same = state.sinks == last.sinks && state.tables == last.tables;
        if self.group.is_empty() && is_same && self.book.is_draft_empty() {
            return;
        }
        self.note_written();
        let before = (!self.snapshot_due).then_some(&*self.last);
        self.state.note_changes(&mut self.book, before);
        self.snapshot_due = false;
        self.stats.bytes_committed += (self.book.draft.len() - ring::HEADER) as u64;
        self.last = Arc::new(self.state.clone());
        let (sequence, group) = (self.book.sequence, std::mem::take(&mut self.group));
        self.held.push_back(Held { sequence, group, state: Some(Arc::clone(&self.last)) });
        self.book.close_draft();
    }

    /// Shows what is durable and tells those who wait for it. Where nothing can be written, what is in
    /// memory is shown as well, and the queue slots of its commits are let go.
    fn tell(&mut self) {
        let durable = self.book.first_undurable();
        let told = self.held.partition_point(|held| held.sequence < durable);
        let seen = if self.stats.stalled.is_some() { self.held.len() } else { told };
        self.stats.commits += told as u64;
        let (mut newest, mut coming) = (None, Vec::new());
        for held in self.held.iter_mut().take(seen) {
            newest = held.state.take().or(newest);
            coming.append(&mut held.group.coming);
            if held.sequence >= durable {
                held.group.slots = None;
            }
        }
        if let Some(newest) = newest {
            self.shared.publish(&newest, self.figures(), &coming);
            self.shown = newest;
        } else {
            self.shared.show(self.figures());
        }
        for held in self.held.drain(..told) {
            held.group.tell(&Ok(()));
        }
    }

    fn note_time(&mut self, now: Option<i64>) {
        let Some(now) = now else { return };
        self.now = Some(now);
        let day = now.div_euclid(DAY_US);
        if day != self.state.meta.day {
            self.note_written();
            self.day_base = self.written();
            self.state.meta.day = day;
            self.state.meta.written_today = 0;
        }
    }

    fn written(&self) -> u64 {
        self.book.files.traffic.written.load(Ordering::Relaxed)
    }

    pub(super) fn note_written(&mut self) {
        let written = self.written();
        self.state.meta.written_today += written.saturating_sub(self.day_base);
        self.day_base = written;
    }

    pub(super) fn figures(&self) -> StoreStats {
        let files = &self.book.files;
        let tree = files.traffic.tree_length.load(Ordering::Relaxed);
        let today = self.written().saturating_sub(self.day_base);
        StoreStats {
            bytes_written: self.written(),
            written_today: self.state.meta.written_today + today,
            file_bytes: tree + files.ring_length + files.shelves.bytes() + files.aside_bytes,
            corrupt_records: self.book.damage.records,
            corrupt_rows: self.book.damage.rows,
            stalled: self.stats.stalled.clone().or_else(|| self.held_back.clone()),
            unread: self.book.unread.why.clone(),
            refuses: self.refused.sinks.iter().cloned().collect(),
            ..self.stats.clone()
        }
    }
}
