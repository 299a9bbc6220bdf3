//! The thread that owns the files: takes all that waits into one frame, again and again.
//!
//! What a commit changes is decided once, in memory; the frame that says so is written until it is
//! durable. After an error the same frame is written again, elsewhere in the ring if need be, and
//! read back from the device before anybody is told. While nothing can be written, what comes is held
//! in memory within a bound, and delivered from there; nobody is told that it is durable. Panics of
//! redb stay in here. Knows no clock: when to commit comes from the queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::book::Book;
use super::border::{StoreError, StoreStats, Verified};
use super::checkpoint::checkpoint;
use super::damage::{Trouble, contained, drop_contained};
use super::files::TREE;
use super::fold::fold;
use super::inbox::{Holding, Shared};
use super::letters;
use super::log;
use super::outbox;
use super::recovery::{Opened, keep_reserve};
use super::ring;
use super::state::State;
use super::states;
use super::transaction::Transaction;
use super::verify::Verifying;
use super::work::{Answer, Ask, Work, answer};

/// Times that one frame is tried before it is left for the next flush.
const ATTEMPTS_MAX: u32 = 3;
/// Bytes that are held in memory at most while nothing can be written.
const MEMORY_BYTES_MAX: u64 = 8 << 20;
/// Bytes of dead letters that wait for the checkpoint at most.
const LETTER_BYTES_MAX: usize = 256 << 10;
/// Microseconds of a day.
const DAY_US: i64 = 86_400_000_000;

/// Who waits for a frame.
struct Held {
    sequence: u64,
    answers: Vec<Answer>,
}

pub(super) struct Committer {
    shared: Arc<Shared>,
    book: Book,
    state: State,
    stats: StoreStats,
    held: VecDeque<Held>,
    /// The next frame says everything, not only what changed: the tree could be made again from it.
    snapshot_due: bool,
    now: Option<i64>,
    /// Bytes written when the day began, less what the day had before this process.
    day_base: u64,
    /// The oldest frames could not be folded: tried again with the next flush.
    reclaim_failed: bool,
    /// The disk is full, the ring nearly, and nothing may give way: what is left of the ring is for
    /// deliveries, which free room. Why.
    held_back: Option<String>,
    /// The tree says that the store was closed in order, and nothing was written since.
    tree_is_clean: bool,
    /// Who waits for a check of everything stored.
    verifying: VecDeque<Verifying>,
}

impl Committer {
    pub(super) fn new(shared: Arc<Shared>, opened: Opened) -> Self {
        let Opened { book, state, recovery } = opened;
        Committer {
            shared,
            book,
            state,
            stats: StoreStats::default(),
            held: VecDeque::new(),
            snapshot_due: true,
            now: None,
            day_base: 0,
            reclaim_failed: false,
            held_back: None,
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
        for answer in self.held.drain(..).flat_map(|held| held.answers) {
            answer(Err(end.clone()));
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
            let blocked = self.book.memory() >= MEMORY_BYTES_MAX;
            let held = match (blocked, self.held_back.is_some()) {
                (true, _) => Holding::Yes,
                (false, true) => Holding::UntilClose,
                (false, false) => Holding::No,
            };
            let turn = self.shared.wait(held, !self.verifying.is_empty());
            for ask in turn.asks {
                self.answer(ask);
            }
            let mut taken = None;
            if let Some(mut work) = turn.work {
                self.note_time(work.expire);
                if self.is_needed(&work) {
                    self.take(&mut work);
                    taken = Some(work);
                }
            }
            let writes = self.book.memory() > 0 && (self.stats.stalled.is_none() || turn.flush);
            if writes {
                self.persist();
            }
            if writes || taken.is_some() {
                self.shared.publish(&self.state, self.figures(), taken.as_ref());
            }
            self.tell(taken);
            if self.stats.stalled.is_none() && (turn.flush || !self.reclaim_failed) {
                self.keep_room();
            }
            self.verify_some();
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

    /// Applies the work: from now on it is in memory, in a frame that waits to be written.
    fn take(&mut self, work: &mut Work) {
        let before = self.state.clone();
        let claims = self.shared.claims();
        let (layout, max_bytes) = (&claims.layout, claims.max_bytes);
        let (book, state, now) = (&mut self.book, &mut self.state, self.now);
        let mut transaction = Transaction { book, state, layout, max_bytes, now };
        let orders = std::mem::take(&mut work.orders);
        let answers: Vec<Answer> =
            orders.into_iter().map(|order| transaction.order(order)).collect();
        transaction.apply(work);
        // What was only looked at, such as the age of a record behind a notice, is no reason to write.
        let is_same = self.state.sinks == before.sinks && self.state.tables == before.tables;
        if work.commits.is_empty() && answers.is_empty() && is_same && self.book.is_draft_empty() {
            return;
        }
        self.note_written();
        let before = (!self.snapshot_due).then_some(&before);
        self.state.note_changes(&mut self.book, before);
        self.snapshot_due = false;
        self.stats.bytes_committed += (self.book.draft.len() - ring::HEADER) as u64;
        self.held.push_back(Held { sequence: self.book.sequence, answers });
        self.book.close_draft();
    }

    /// Writes the frames that are only in memory; says in the figures what stands in the way.
    fn persist(&mut self) {
        let mut trouble = None;
        for attempt in 0..ATTEMPTS_MAX {
            let Err(met) = contained(|| self.write_frames(attempt)) else {
                if self.stats.stalled.take().is_some() {
                    tracing::info!("the store can write again");
                }
                return;
            };
            if self.stats.stalled.as_deref() == Some(met.text()) {
                tracing::debug!(reason = met.text(), attempt, "the store still cannot write");
            } else {
                tracing::error!(reason = met.text(), attempt, "the store cannot write");
            }
            self.stats.last_error = Some(met.text().to_owned());
            self.stats.reopened += 1;
            self.book.files.forget();
            let is_full = matches!(met, Trouble::Full(_));
            trouble = Some(met);
            if is_full {
                break;
            }
        }
        self.stats.stalled = trouble.map(|trouble| trouble.text().to_owned());
    }

    fn write_frames(&mut self, attempt: u32) -> Result<(), Trouble> {
        while self.book.memory() > 0 {
            let first = self.book.frames.partition_point(|frame| frame.memory.is_none());
            let (mut head, mut tail) = (self.book.head, self.book.tail());
            let capacity = self.book.files.ring_length;
            let mut placed = Vec::new();
            let Book { frames, files, .. } = &mut self.book;
            for frame in frames.iter_mut().skip(first).take(ring::TOGETHER_MAX) {
                // What failed twice in one place may have bad blocks under it: the next free one.
                if attempt > 1 && placed.is_empty() {
                    let failed = ring::place(capacity, tail, head, frame.length);
                    head = failed.map_or(head, |offset| offset + frame.length);
                }
                let Some(offset) = ring::place(capacity, tail, head, frame.length) else {
                    break;
                };
                if let Some(memory) = &mut frame.memory {
                    ring::set_ahead(memory, placed.len());
                    files.ring.write(offset, memory).map_err(io)?;
                }
                head = offset + frame.length;
                tail = tail.or(Some(offset));
                placed.push(offset);
            }
            if placed.is_empty() {
                return self.commit_by_checkpoint();
            }
            self.book.files.ring.sync_data().map_err(io)?;
            if attempt > 0 || self.stats.stalled.is_some() {
                self.verify_frames(first, &placed)?;
            }
            let mut free = Vec::new();
            for (frame, offset) in self.book.frames.iter_mut().skip(first).zip(placed) {
                frame.offset = Some(offset);
                free.extend(frame.memory.take());
            }
            for memory in free {
                self.book.reuse(memory);
            }
            self.book.head = head;
        }
        Ok(())
    }

    /// After an error a sync that succeeds proves nothing: what is on the device is read.
    fn verify_frames(&mut self, first: usize, placed: &[u64]) -> Result<(), Trouble> {
        self.book.files.reopen_ring().map_err(io)?;
        for (frame, offset) in self.book.frames.iter().skip(first).zip(placed) {
            let Some(memory) = &frame.memory else { continue };
            let mut found = vec![0; memory.len()];
            self.book.files.ring.read(*offset, &mut found).map_err(io)?;
            if found != *memory {
                return Err(Trouble::Io("what was synced is not on the device".to_owned()));
            }
        }
        Ok(())
    }

    /// For frames that have no place in the ring: their rows go to shelves, their states into the
    /// tree, and they need not be written.
    fn commit_by_checkpoint(&mut self) -> Result<(), Trouble> {
        let all = self.book.sequence;
        loop {
            let Err(trouble) = fold(&mut self.book, &self.state, all) else {
                return self.checkpoint();
            };
            // Until the memory is full as well, the disk may get room again. What gives way then is in
            // no frame that the ring has room for: its shelf goes at once, and after a crash before
            // the checkpoint it counts as lost, not as dropped.
            let is_full = matches!(trouble, Trouble::Full(_));
            if !is_full || self.book.memory() < MEMORY_BYTES_MAX || !self.give_way() {
                return Err(trouble);
            }
            self.book.files.shelves.sweep();
        }
    }

    /// Tells those whose frames are durable, and lets go of the queue slots of the others.
    fn tell(&mut self, work: Option<Work>) {
        if let Some(work) = work {
            let tickets = work.commits.into_iter().map(|pending| {
                let ticket = pending.ticket;
                Box::new(move |end| answer(ticket, end)) as Answer
            });
            if let Some(held) = self.held.back_mut() {
                held.answers.extend(tickets);
            }
        }
        let waiting = self.book.frames.iter().find(|frame| frame.memory.is_some());
        let durable = waiting.map_or(self.book.sequence, |frame| frame.sequence);
        let told = self.held.iter().take_while(|held| held.sequence < durable).count();
        self.stats.commits += told as u64;
        self.shared.show(self.figures());
        for answer in self.held.drain(..told).flat_map(|held| held.answers) {
            answer(Ok(()));
        }
    }

    /// Keeps at least half of the ring free.
    fn keep_room(&mut self) {
        let capacity = self.book.files.ring_length;
        let letters = self.book.letters.values().flat_map(|letters| letters.values());
        let waiting: usize = letters.map(|letter| letter.body.as_ref().map_or(0, Vec::len)).sum();
        self.book.files.shelves.sweep();
        self.book.free(self.state.meta.commit);
        if self.book.used() <= capacity / 2 && waiting <= LETTER_BYTES_MAX {
            self.reclaim_failed = false;
            self.held_back = None;
            return;
        }
        let mut kept = 0;
        let stays = |frame: &&super::book::Frame| {
            kept += frame.length;
            kept <= capacity / 4
        };
        let keep_from =
            self.book.frames.iter().rev().take_while(stays).last().map(|frame| frame.sequence);
        let keep_from = keep_from.unwrap_or(self.book.sequence);
        let outcome = contained(|| self.reclaim(keep_from));
        self.reclaim_failed = outcome.is_err();
        self.held_back = match &outcome {
            Err(Trouble::Full(reason)) if self.is_tight() => Some(reason.clone()),
            _ => None,
        };
        if let Err(trouble) = outcome {
            tracing::error!(reason = trouble.text(), "the ring cannot be freed yet");
            self.stats.last_error = Some(trouble.text().to_owned());
        }
    }

    fn is_tight(&self) -> bool {
        self.book.used() > self.book.files.ring_length / 4 * 3
    }

    /// Folds the frames before `keep_from`. Where the disk has no room for that, what is settled is
    /// let go, and only when the ring gets full the policies decide what gives way.
    fn reclaim(&mut self, keep_from: u64) -> Result<(), Trouble> {
        loop {
            let folded = fold(&mut self.book, &self.state, keep_from);
            let Err(trouble) = self.checkpoint().and(folded) else {
                return Ok(());
            };
            let is_full = matches!(trouble, Trouble::Full(_));
            if !is_full || !self.is_tight() || !self.give_way_durably()? {
                return Err(trouble);
            }
        }
    }

    /// Lets the policies decide what gives way, and makes it durable in a frame before its shelves are
    /// removed: a crash in between must not find a shelf missing that something still names. Every
    /// frame before it is durable. `false` when nothing is left that may give way.
    fn give_way_durably(&mut self) -> Result<bool, Trouble> {
        let before = (!self.snapshot_due).then(|| self.state.clone());
        if !self.give_way() {
            return Ok(false);
        }
        self.state.note_changes(&mut self.book, before.as_ref());
        self.book.close_draft();
        self.write_frames(0)?;
        self.snapshot_due = false;
        self.book.files.shelves.sweep();
        Ok(true)
    }

    fn checkpoint(&mut self) -> Result<(), Trouble> {
        self.note_written();
        checkpoint(&mut self.book, &mut self.state, false)?;
        self.snapshot_due = true;
        self.tree_is_clean = false;
        keep_reserve(&*self.book.files.disk, self.book.files.ring_length);
        Ok(())
    }

    /// Lets the policies decide what gives way; `false` when nothing is left that may. In no frame
    /// yet: the next one says everything.
    fn give_way(&mut self) -> bool {
        let claims = self.shared.claims();
        let (layout, max_bytes) = (&claims.layout, claims.max_bytes);
        let (book, state, now) = (&mut self.book, &mut self.state, self.now);
        let mut transaction = Transaction { book, state, layout, max_bytes, now };
        let gave = transaction.give_way(GIVE_WAY_BYTES);
        self.snapshot_due = true;
        gave
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

    fn note_written(&mut self) {
        let written = self.written();
        self.state.meta.written_today += written.saturating_sub(self.day_base);
        self.day_base = written;
    }

    /// Answers a question. The figures are shown before the answer, so that who has read past damage
    /// sees it counted.
    fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Next { sink, after, max_rows, max_bytes, reply } => {
                let rows = match self.state.sinks.get(&sink) {
                    Some(state) => {
                        outbox::read(&mut self.book, &sink, state, after, max_rows, max_bytes)
                    }
                    None => (vec![], after),
                };
                self.shared.show(self.figures());
                answer(reply, Ok(rows));
            }
            Ask::States { stream, reply } => {
                let found = contained(|| states::read(&mut self.book, &stream));
                self.shared.show(self.figures());
                answer(reply, found.map_err(|trouble| self.unreadable(&trouble)));
            }
            Ask::Log { table, wanted, reply } => {
                let rows = log::read(&mut self.book, &table, &self.state, wanted);
                self.shared.show(self.figures());
                answer(reply, Ok(rows));
            }
            Ask::Alive { reply } => answer(reply, Ok(())),
            Ask::Rejected { sink, limit, reply } => {
                let letters = self.book.letters.get(&sink);
                let newest = letters.into_iter().flat_map(|l| l.keys().rev().take(limit).copied());
                let mut positions: Vec<u64> = newest.collect();
                positions.reverse();
                let letters = contained(|| {
                    let records = self.book.files.records()?;
                    letters::read(&records, &mut self.book, &sink, &positions)
                });
                self.shared.show(self.figures());
                answer(reply, letters.map_err(|trouble| self.unreadable(&trouble)));
            }
            Ask::Verify { reply } => self.verifying.push_back(Verifying::new(reply)),
            Ask::Compact { reply } => {
                let compacted = contained(|| self.compact());
                self.shared.show(self.figures());
                answer(reply, compacted.map_err(|trouble| self.unreadable(&trouble)));
            }
        }
    }

    fn unreadable(&self, trouble: &Trouble) -> StoreError {
        let (path, reason) = (self.book.files.disk.path(TREE), trouble.text().to_owned());
        StoreError::Unreadable { path, reason }
    }

    /// Goes on with the first check that somebody asked for; commits and questions come in between.
    fn verify_some(&mut self) {
        let Some(verifying) = self.verifying.front_mut() else {
            return;
        };
        let step = contained(|| verifying.step(&mut self.book, &self.state));
        if matches!(step, Ok(false)) && !verifying.is_abandoned() {
            return;
        }
        self.shared.show(self.figures());
        if let Some(verifying) = self.verifying.pop_front() {
            let damage = &self.book.damage;
            let (corrupt_records, corrupt_rows) = (damage.records, damage.rows);
            let verified =
                step.map(|_| Verified { rows: verifying.rows, corrupt_records, corrupt_rows });
            let verified = verified.map_err(|trouble| self.unreadable(&trouble));
            answer(verifying.reply, verified);
        }
    }

    fn compact(&mut self) -> Result<(u64, u64), Trouble> {
        let before = self.figures().file_bytes;
        if self.book.memory() == 0 {
            self.checkpoint()?;
        }
        if let Some(tree) = &mut self.book.files.tree {
            let compacted = tree.compact();
            compacted.map_err(|error| Trouble::Io(error.to_string()))?;
        }
        Ok((before, self.figures().file_bytes))
    }

    fn figures(&self) -> StoreStats {
        let files = &self.book.files;
        let tree = files.traffic.tree_length.load(Ordering::Relaxed);
        let today = self.written().saturating_sub(self.day_base);
        StoreStats {
            bytes_written: self.written(),
            written_today: self.state.meta.written_today + today,
            file_bytes: tree + files.ring_length + files.shelves.bytes(),
            corrupt_records: self.book.damage.records,
            corrupt_rows: self.book.damage.rows,
            stalled: self.stats.stalled.clone().or_else(|| self.held_back.clone()),
            ..self.stats.clone()
        }
    }
}

/// Bytes that give way at a time when the disk has no room.
const GIVE_WAY_BYTES: u64 = 1 << 20;

fn io(error: std::io::Error) -> Trouble {
    Trouble::from(redb::Error::Io(error))
}
