//! How frames become durable: the usual way, beside the making of the next one, or one step after the
//! other where anything stands in the way.
//!
//! A frame that failed stays in memory and is tried again with those behind it, elsewhere in the ring
//! from the third time on, and read back from the device before anybody is told. Nothing of a frame is
//! written before the one ahead of it is durable or has failed. Knows no work and no answer.

use std::sync::Arc;

use super::book::Book;
use super::committer::{Committer, MEMORY_BYTES_MAX};
use super::damage::{Trouble, contained};
use super::fold::fold;
use super::ring;
use super::room::GIVE_WAY_BYTES;
use super::shed::Refused;
use super::writer::Job;

/// Times that one frame is tried before it is left for the next flush.
const ATTEMPTS_MAX: u32 = 3;

impl Committer {
    /// Gives the only frame that waits to the thread that writes; `false` when it must be written in
    /// steps.
    pub(super) fn launch(&mut self) -> bool {
        let first = self.book.first_waiting();
        let (head, tail) = (self.book.head, self.book.tail());
        let capacity = self.book.files.ring_length;
        let Some(waiting) =
            self.book.frames.get(first).filter(|_| first + 1 == self.book.frames.len())
        else {
            return false;
        };
        let place = ring::place(capacity, tail, head, waiting.length);
        let Some((offset, frame)) = place.zip(waiting.memory.clone()) else {
            return false;
        };
        let job = Job { ring: Arc::clone(&self.book.files.ring), offset, frame };
        if !self.writer.hand_over(job) {
            return false;
        }
        self.flight = Some(offset);
        true
    }

    /// Takes up how the writing of a frame ended. After an error it is written again, with what has
    /// come since.
    pub(super) fn land(&mut self, outcome: Result<(), Trouble>) {
        let Some(offset) = self.flight.take() else {
            return;
        };
        match outcome {
            Ok(()) => self.book.land(self.book.first_waiting(), offset),
            Err(trouble) => {
                self.seal();
                self.persist(Some(trouble));
            }
        }
    }

    /// Writes the frames that are only in memory, after `met` went wrong with the first one; says in
    /// the figures what stands in the way. No frame is with the writer, and none is being made.
    pub(super) fn persist(&mut self, met: Option<Trouble>) {
        let (mut met, mut attempt) = (met, 0);
        loop {
            if let Some(trouble) = met.take() {
                self.note_trouble(&trouble, attempt);
                attempt += 1;
                if attempt == ATTEMPTS_MAX || matches!(trouble, Trouble::Full(_)) {
                    self.stall(&trouble);
                    return;
                }
            }
            match contained(|| self.write_frames(attempt)) {
                Ok(()) => break,
                Err(trouble) => met = Some(trouble),
            }
        }
        if self.stats.stalled.take().is_some() {
            self.repack_at = 0;
            self.book.unread.try_again();
            self.refused = Refused::default();
            self.note_stall(None);
            tracing::info!("the store can write again");
        }
    }

    /// From here on what is in memory is shown and delivered. Should it be lost, the next start must know
    /// that ids were given which the store does not know.
    fn stall(&mut self, trouble: &Trouble) {
        self.want.stalls = matches!(trouble, Trouble::Full(_));
        self.book.unread.stalls = matches!(trouble, Trouble::Unread(_));
        self.book.unread.is_dead = matches!(trouble, Trouble::Io(_));
        if self.stats.stalled.replace(trouble.text().to_owned()).is_none() {
            self.note_stall(Some(self.state.meta.epoch));
        }
    }

    fn note_stall(&self, epoch: Option<u64>) {
        if let Err(error) = self.book.files.disk.note_stall(epoch) {
            tracing::warn!(%error, epoch, "what is in memory only cannot be told from what is stored");
        }
    }

    fn note_trouble(&mut self, met: &Trouble, attempt: u32) {
        if self.stats.stalled.as_deref() == Some(met.text()) {
            tracing::debug!(reason = met.text(), attempt, "the store still cannot write");
        } else {
            tracing::error!(reason = met.text(), attempt, "the store cannot write");
        }
        self.stats.last_error = Some(met.text().to_owned());
        self.stats.reopened += 1;
        self.book.files.forget();
    }

    pub(super) fn write_frames(&mut self, attempt: u32) -> Result<(), Trouble> {
        while self.book.memory() > 0 {
            let first = self.book.first_waiting();
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
                    // Nobody else has it: no frame is with the writer.
                    ring::set_ahead(Arc::<Vec<u8>>::make_mut(memory), placed.len());
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
            for (index, offset) in (first..).zip(placed) {
                self.book.land(index, offset);
            }
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
            if found != **memory {
                return Err(Trouble::Io("what was synced is not on the device".to_owned()));
            }
        }
        Ok(())
    }

    /// For frames that have no place in the ring: their rows go to shelves, their states into the
    /// tree, and they need not be written.
    fn commit_by_checkpoint(&mut self) -> Result<(), Trouble> {
        let all = self.book.sequence;
        // Beside a small ring less may wait: who asks for something to be dropped waits as well.
        let patience = self.book.files.ring_length.clamp(GIVE_WAY_BYTES, MEMORY_BYTES_MAX);
        loop {
            let folded = fold(&mut self.book, &self.state, all);
            let Err(trouble) = folded.and_then(|()| self.checkpoint()) else {
                return Ok(());
            };
            // Until there is as much in memory, the disk may get room again. What gives way then is in
            // no frame that the ring has room for: its shelf goes at once, and after a crash before
            // the checkpoint it counts as lost, not as dropped.
            let is_full = matches!(trouble, Trouble::Full(_));
            self.want.met |= is_full;
            if is_full && self.give_way_aside() {
                continue;
            }
            if !is_full || self.book.memory() < patience || !self.give_way() {
                return Err(trouble);
            }
            self.book.files.shelves.sweep();
        }
    }
}

fn io(error: std::io::Error) -> Trouble {
    Trouble::from(redb::Error::Io(error))
}
