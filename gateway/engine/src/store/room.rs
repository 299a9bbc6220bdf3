//! Room in the ring: what is old goes to shelves, and where the disk is full something gives way.
//!
//! All of it happens between frames, when each one is durable. Knows no work and no answer.

use std::sync::Arc;

use super::aside;
use super::book::{Frame, Queue};
use super::border::{Layout, WhenFull};
use super::checkpoint::checkpoint;
use super::committer::Committer;
use super::damage::{Trouble, contained};
use super::fold::fold;
use super::outbox;
use super::recovery::keep_reserve;
use super::remake::remake;
use super::transaction::{GivesWay, Transaction};

/// Bytes of dead letters that wait for the checkpoint at most.
const LETTER_BYTES_MAX: usize = 256 << 10;
/// Bytes that give way at a time when the disk has no room.
pub(super) const GIVE_WAY_BYTES: u64 = 1 << 20;
/// Flushes without room before logs give way: some seconds, where one comes each second. Who fills a disk
/// for a moment costs no rows that a stream still needs.
const PATIENCE: u32 = 10;
/// Flushes without want of room after which it is over, where there is room then: a minute.
const QUIET: u32 = 60;
/// Flushes without want of room after which it is over wherever nobody can tell: what gives way leaves some
/// room itself, and a small disk may never have more.
const QUIET_ANYWAY: u32 = 600;

/// For how long the disk has had no room, in flushes.
#[derive(Debug, Default)]
pub(super) struct Want {
    /// Since the last flush there was none.
    pub(super) met: bool,
    /// Frames wait because there is none.
    pub(super) stalls: bool,
    /// Flushes that found none, since there was last enough for long.
    without: u32,
    /// Flushes since the last of these.
    quiet: u32,
}

impl Committer {
    /// Whether half of the ring is taken, too many dead letters wait, or the checkpoint is to say another
    /// format.
    pub(super) fn needs_room(&self) -> bool {
        let letters = self.book.letters.values().flat_map(|letters| letters.values());
        let waiting: usize = letters.map(|letter| letter.body.as_ref().map_or(0, Vec::len)).sum();
        self.book.used() > self.book.files.ring_length / 2
            || waiting > LETTER_BYTES_MAX
            || self.state.format_is_due()
    }

    /// Keeps at least half of the ring free. Every frame is durable, and none is being made: what lets
    /// go of a frame or a shelf must be durable before that is written over or removed.
    pub(super) fn keep_room(&mut self) {
        let capacity = self.book.files.ring_length;
        self.book.files.shelves.sweep();
        self.book.free(self.state.meta.commit);
        if !self.needs_room() {
            self.reclaim_failed = false;
            self.held_back = None;
            return;
        }
        let mut kept = 0;
        let stays = |frame: &&Frame| {
            kept += frame.length;
            // The newest one stays also where it is larger: under a rush its rows are soon let go, and
            // would have been written twice.
            let is_newest = kept == frame.length;
            kept <= capacity / 4 || (is_newest && kept <= capacity / 8 * 3)
        };
        let keep_from =
            self.book.frames.iter().rev().take_while(stays).last().map(|frame| frame.sequence);
        let keep_from = keep_from.unwrap_or(self.book.sequence);
        let outcome = contained(|| self.reclaim(keep_from));
        self.reclaim_failed = outcome.is_err();
        // A frame that is only in memory says that something gave way, and found no place. What comes is
        // taken then: the policies go on once there is too much of it.
        let is_held = self.is_tight() && self.book.memory() == 0;
        self.held_back = match &outcome {
            Err(Trouble::Full(reason)) if is_held => Some(reason.clone()),
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
            self.want.met |= is_full;
            if is_full && self.give_way_aside() {
                continue;
            }
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
        self.last = Arc::new(self.state.clone());
        self.book.files.shelves.sweep();
        // No commit may follow for long that would show it.
        self.shown = Arc::clone(&self.last);
        self.shared.publish(&self.shown, self.figures(), &[]);
        Ok(true)
    }

    pub(super) fn checkpoint(&mut self) -> Result<(), Trouble> {
        self.note_written();
        match checkpoint(&mut self.book, &mut self.state, false) {
            Err(Trouble::Damaged(reason)) => self.remake(&reason)?,
            Err(Trouble::Io(reason)) => match self.book.files.unread_tree() {
                None => return Err(Trouble::Io(reason)),
                Some(error) if !self.book.unread.meets(&error) => {
                    return Err(Trouble::Unread(reason));
                }
                Some(_) => self.remake(&reason)?,
            },
            outcome => outcome?,
        }
        self.snapshot_due = true;
        self.last = Arc::new(self.state.clone());
        self.tree_is_clean = false;
        keep_reserve(&*self.book.files.disk, self.book.files.ring_length);
        Ok(())
    }

    fn remake(&mut self, reason: &str) -> Result<(), Trouble> {
        tracing::error!(reason, "the store's checkpoint is damaged; making it again");
        remake(&mut self.book, &mut self.state)?;
        let (disk, max_bytes) = (&*self.book.files.disk, self.shared.claims().max_bytes);
        self.book.files.aside_bytes = aside::bound(disk, max_bytes);
        Ok(())
    }

    /// Lets a damaged file go that was kept aside, before anything that somebody waits for.
    pub(super) fn give_way_aside(&mut self) -> bool {
        let files = &mut self.book.files;
        let gone = aside::give_way(&*files.disk);
        files.aside_bytes = files.aside_bytes.saturating_sub(gone.unwrap_or(0));
        gone.is_some()
    }

    /// Lets the policies decide what gives way; `false` when nothing is left that may. In no frame
    /// yet: the next one says everything.
    pub(super) fn give_way(&mut self) -> bool {
        let claims = self.shared.claims();
        let (layout, max_bytes) = (&claims.layout, claims.max_bytes);
        let gives =
            GivesWay { is_pinned: self.is_pinned(layout), logs: self.want.without >= PATIENCE };
        let before: Vec<(Arc<str>, u64)> =
            self.state.sinks.iter().map(|(name, sink)| (name.clone(), sink.dropped)).collect();
        let (book, state, now) = (&mut self.book, &mut self.state, self.now);
        let refused = &self.refused.sinks;
        let mut transaction = Transaction { book, state, layout, max_bytes, now, refused };
        let gave = transaction.give_way(GIVE_WAY_BYTES, gives);
        for (name, dropped) in before {
            let now = self.state.sinks.get(&name).map_or(0, |sink| sink.dropped);
            if now > dropped {
                let count = self.state.counts.entry(outbox::no_room(&name).into()).or_default();
                *count += now - dropped;
            }
        }
        self.snapshot_due = true;
        self.stats.gives_way |= gave;
        gave
    }

    /// Counts for how long there has been no room, at each flush; takes back that rows are dropped for want
    /// of it once there has been some for long enough.
    pub(super) fn look_for_room(&mut self) {
        let want = &mut self.want;
        if std::mem::take(&mut want.met) {
            (want.without, want.quiet) = (want.without.saturating_add(1), 0);
            return;
        }
        want.quiet = want.quiet.saturating_add(1);
        if want.without == 0 || want.quiet < QUIET {
            return;
        }
        let wanted = self.book.files.ring_length / 4;
        let has_room = self.book.files.disk.room().is_ok_and(|room| room >= wanted);
        if has_room || want.quiet >= QUIET_ANYWAY {
            self.want = Want { stalls: self.want.stalls, ..Want::default() };
            if std::mem::take(&mut self.stats.gives_way) {
                tracing::info!("the disk has room again: nothing is dropped for want of it");
            }
        }
    }

    /// Whether the oldest frame of the ring has rows of a sink that drops none for newer ones. Then the
    /// ring gets no room by what else is let go from it.
    fn is_pinned(&self, layout: &Layout) -> bool {
        let oldest = self.book.frames.iter().find(|frame| frame.live > 0);
        let keepers = layout.sinks.iter().filter(|sink| sink.when_full != WhenFull::DropOldest);
        let outboxes = keepers.filter_map(|sink| self.book.outboxes.get(&sink.name));
        let mut held = outboxes.filter_map(Queue::oldest_frame);
        oldest.is_some_and(|oldest| held.any(|sequence| sequence == oldest.sequence))
    }
}
