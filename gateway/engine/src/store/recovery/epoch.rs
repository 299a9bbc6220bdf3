//! The epoch of a start: a new one where ids may have been given that the store does not know.
//!
//! It is noted in a file of its own before anything has it. Knows no record.

use super::super::border::StoreError;
use super::super::identity::{IDENTITY, Judgement};
use super::super::state::State;
use super::super::unread::is_of_device;
use super::{EPOCH, Opening};

impl Opening<'_> {
    /// Takes a new epoch where progress may be lost, somebody asks for it, or ids may have been given that the
    /// store does not know.
    pub(super) fn renew_epoch(
        &mut self,
        state: &mut State,
        is_broken: bool,
        asked: bool,
        doubt: Option<&str>,
    ) -> Result<(), StoreError> {
        if is_broken {
            state.meta.epoch = self.next_epoch(state.meta.epoch)?;
            let epoch = state.meta.epoch;
            tracing::error!(epoch, "progress may be lost: new epoch");
        } else if asked {
            state.meta.epoch = self.next_epoch(state.meta.epoch)?;
        } else if self.recovery.newest_torn {
            self.doubt_newest(state, "the last frame is not whole: never promised, or damaged");
        } else if let Some(why) = doubt {
            self.recovery.ids_doubted = true;
            self.doubt_newest(state, why);
        }
        Ok(())
    }

    /// Why ids may have been given that the store does not know: what was in memory, while the device took
    /// no writes, was delivered from there, and is gone.
    pub(super) fn doubt(&self, judgement: &Judgement) -> Option<&'static str> {
        if self.recovery.created {
            return None;
        }
        if self.disk.was_stalled().is_some() {
            return Some("the store could not be written to when its process ended");
        }
        // Whether it could when the power went nobody knows any more.
        let is_cut = judgement.rebooted && !self.recovery.clean;
        is_cut.then_some("the machine was started anew, and the store was not closed before")
    }

    /// Notes what the next start is to compare with. After the epoch: a crash in between raises it once
    /// more, as does a disk that has no room.
    pub(super) fn note_start(&self, identity: Option<&str>) {
        if let Some(note) = identity
            && let Err(error) = self.disk.write(IDENTITY, note.as_bytes())
        {
            tracing::warn!(%error, "a copy of the store will not be told from it yet");
        }
        if self.disk.was_stalled().is_some()
            && let Err(error) = self.disk.note_stall(None)
        {
            tracing::warn!(%error, "the next start will take a new epoch as well");
        }
    }

    /// The last frame is not whole. A crash cut it off before anybody was told of it; or it was told, its
    /// results went out, and it rotted since: nobody can tell. Or others were given out and are gone. So no
    /// number of them is given twice. The first frame says the new epoch, which needs no room on the disk.
    fn doubt_newest(&self, state: &mut State, why: &str) {
        // A start before this one may have had a later one, and was never able to say so.
        let known = state.meta.epoch.max(self.disk.was_stalled().unwrap_or(0));
        state.meta.epoch = self.next_epoch(known).unwrap_or_else(|error| {
            tracing::warn!(%error, "the new epoch is noted with the first commit");
            self.options.epoch_hint.max(known.saturating_add(1))
        });
        let epoch = state.meta.epoch;
        tracing::warn!(
            epoch,
            why,
            "the last records that were given out may not be stored: new epoch"
        );
    }

    /// Takes an epoch above every one that this folder has seen, and notes it durably first.
    pub(super) fn next_epoch(&self, known: u64) -> Result<u64, StoreError> {
        let noted = match self.disk.read(EPOCH) {
            Err(error) if self.options.impatient && is_of_device(&error) => None,
            noted => noted.map_err(|error| self.error(EPOCH, error))?,
        };
        let noted = noted.and_then(|bytes| std::str::from_utf8(&bytes).ok()?.trim().parse().ok());
        let epoch = self.options.epoch_hint.max(noted.unwrap_or(0).max(known).saturating_add(1));
        self.disk
            .write(EPOCH, format!("{epoch}\n").as_bytes())
            .map_err(|error| self.error(EPOCH, error))?;
        Ok(epoch)
    }
}
