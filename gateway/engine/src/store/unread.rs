//! Reads that get no answer, and for how long: what cannot be read now need not be damaged.
//!
//! eMMC and USB sticks reset themselves and answer nothing for seconds, and a process may have no file left
//! to open. Who reads waits then. It is tried again more and more seldom, because a bad sector may take seconds to say
//! so, in which the store does nothing else. Only what the device itself refuses counts as damage, and only after
//! [`PATIENCE`] looks, of which one comes each second. Knows no file, no value and no clock.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;

use rustix::io::Errno;

use super::book::Place;

/// Looks with reads that get no answer, after which they count as damage: a minute.
pub(super) const PATIENCE: u32 = 60;
/// Looks without any after which patience begins anew.
const QUIET: u32 = 60;
/// Looks between two tries at most.
const TRY_EVERY: u32 = 32;

/// Whether this process or the system is short of something, or may not do it, which says nothing of what is stored.
fn is_shortage(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let is_of_memory =
        matches!(error.kind(), Kind::Interrupted | Kind::OutOfMemory | Kind::WouldBlock);
    let is_of_writing = matches!(
        error.kind(),
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem | Kind::StorageFull | Kind::QuotaExceeded
    );
    is_of_memory
        || is_of_writing
        || matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Whether it is the device that does not answer.
pub(super) fn is_of_device(error: &io::Error) -> bool {
    !is_shortage(error) && !is_gone(error)
}

/// Whether the file is there and ends before the value, or is not there.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, NotFound, UnexpectedEof};
    matches!(error.kind(), NotFound | UnexpectedEof | InvalidInput)
}

/// For how long reads have got no answer, in looks.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each answers a question of its own")]
pub(super) struct Unread {
    /// What the last one was told, until none was met between two looks.
    pub(super) why: Option<String>,
    /// Since the last look there was one.
    met: bool,
    /// What is not to be read before another look.
    waits: BTreeSet<Place>,
    /// Looks since the first of these.
    since: u32,
    /// Those of them in which the device took writes.
    without: u32,
    /// Looks since the last of these.
    quiet: u32,
    /// Patience never begins anew: nothing that counts as damaged is noted.
    pub(super) is_never_patient: bool,
    /// The device takes no writes either.
    pub(super) is_dead: bool,
    /// What stands in the way of writing is that something cannot be read.
    pub(super) stalls: bool,
    /// A read of the start got no answer, and its value does not count as damaged.
    pub(super) refused: Cell<bool>,
}

impl Unread {
    /// One that has had patience already.
    pub(super) fn impatient() -> Self {
        Unread { without: PATIENCE, ..Unread::default() }
    }

    /// Why a place is not to be read yet.
    pub(super) fn waits_for(&self, place: Place) -> Option<&str> {
        self.why.as_deref().filter(|_| self.waits.contains(&place))
    }

    /// A place is not to be read again at once.
    pub(super) fn wait(&mut self, place: Place) {
        self.waits.insert(place);
    }

    /// The device is back, as far as writes tell: what waits is tried at once.
    pub(super) fn try_again(&mut self) {
        self.waits.clear();
        self.since = 0;
        self.is_dead = false;
    }

    /// Whether nothing was refused lately.
    pub(super) fn is_well(&self) -> bool {
        self.why.is_none()
    }

    /// A read ended so; whether its value counts as damaged.
    pub(super) fn meets(&mut self, error: &io::Error) -> bool {
        if is_gone(error) {
            return true;
        }
        self.notes(&error.to_string()) && is_of_device(error)
    }

    /// The device did not answer a read; whether patience has ended.
    pub(super) fn notes(&mut self, why: &str) -> bool {
        self.met = true;
        if self.why.as_deref() != Some(why) {
            tracing::error!(why, "what is stored cannot be read");
            self.why = Some(why.to_owned());
        }
        self.without >= PATIENCE && !self.is_dead
    }

    /// The same for a read of the start, which is told of its end.
    pub(super) fn gives_up(&self, error: &io::Error) -> bool {
        let gives_up = is_gone(error) || (self.without >= PATIENCE && is_of_device(error));
        if !gives_up {
            self.refused.set(true);
        }
        gives_up
    }

    /// Counts, each second. While `is_dead`, the device takes no writes either, and nothing that is given up
    /// would be noted: patience does not end.
    pub(super) fn look(&mut self, is_dead: bool) {
        self.is_dead = is_dead;
        if std::mem::take(&mut self.met) || !self.waits.is_empty() {
            self.quiet = 0;
            self.since = self.since.saturating_add(1);
            self.without = self.without.saturating_add(u32::from(!is_dead));
            if self.without == PATIENCE && !is_dead {
                tracing::error!(
                    why = self.why,
                    "what cannot be read counts as damaged from here on"
                );
            }
            let is_due = self.since.is_power_of_two() || self.since.is_multiple_of(TRY_EVERY);
            if is_due || self.without >= PATIENCE {
                self.waits.clear();
            }
            return;
        }
        self.since = 0;
        if self.why.take().is_some() {
            tracing::info!("what is stored can be read again");
        }
        self.quiet = self.quiet.saturating_add(1);
        if self.quiet >= QUIET && !self.is_never_patient {
            self.without = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(number: Errno) -> io::Error {
        io::Error::from_raw_os_error(number.raw_os_error())
    }

    #[test]
    fn f07_a_device_is_given_time_and_a_shortage_all_of_it() {
        let mut unread = Unread::default();
        for _ in 0..PATIENCE {
            assert!(!unread.meets(&error(Errno::IO)));
            unread.look(false);
        }
        assert!(unread.meets(&error(Errno::IO)), "a sector that stays bad");
        assert!(!unread.meets(&error(Errno::MFILE)), "no file to open is no damage");
        assert!(!unread.meets(&error(Errno::NOMEM)));
        unread.look(false);
        for _ in 0..QUIET {
            assert!(unread.meets(&error(Errno::NOENT)), "what is gone is gone");
            unread.look(false);
            assert_eq!(unread.why, None);
        }
        assert!(!unread.meets(&error(Errno::IO)), "another outage is another one");
    }

    #[test]
    fn f07_a_place_is_tried_more_and_more_seldom() {
        let place = Place::Shelf { file: 1, at: 0 };
        let mut unread = Unread::default();
        let mut tried = Vec::new();
        for flush in 0..PATIENCE {
            if unread.waits_for(place).is_none() {
                assert!(!unread.meets(&error(Errno::IO)));
                unread.wait(place);
                tried.push(flush);
            }
            unread.look(false);
        }
        assert_eq!(tried, [0, 1, 2, 4, 8, 16, 32]);
        assert_eq!(unread.waits_for(place), None, "once more, and for good");
    }

    #[test]
    fn f07_nothing_is_given_up_that_could_not_be_noted() {
        let mut unread = Unread::default();
        for _ in 0..10 * PATIENCE {
            assert!(!unread.meets(&error(Errno::IO)));
            unread.look(true);
        }
        // Nor where a bad sector has used it up before.
        for _ in 0..=PATIENCE {
            unread.meets(&error(Errno::IO));
            unread.look(false);
        }
        assert!(unread.meets(&error(Errno::IO)));
        unread.look(true);
        assert!(!unread.meets(&error(Errno::IO)));
    }
}
