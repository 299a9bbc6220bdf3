//! Whether the files that are opened are those that were written, or a copy that was put in their place.
//!
//! A copy knows what the store knew when it was taken, and what follows from that was done already, under
//! ids that were given. It is seen by the ring's time of birth, which no way of copying a file keeps. Where
//! the file system tells none, its inode number has to do; one that changes from start to start, as in
//! file systems that make up these numbers, is not listened to any more. What keeps both is not seen: the
//! image of a whole device, a snapshot, or a copy that was written into the files that were there.

use std::fmt;

/// Where it is noted.
pub(super) const IDENTITY: &str = "store.identity";
/// Starts in a row at which another inode number alone is taken for a copy.
const GUESSES_MAX: u32 = 2;

/// What tells one file from another of the same content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Birth {
    pub(super) inode: u64,
    /// Nanoseconds since 1970, where the file system knows.
    pub(super) born_ns: Option<u128>,
}

/// The birth of the ring that was written last.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Noted {
    birth: Birth,
    /// Starts in a row at which the inode number was another and nothing else could be told.
    guesses: u32,
    /// The start of the machine at which it was written, where that is known.
    boot: Option<String>,
}

/// What follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Judgement {
    /// The files are a copy: ids that follow from it need a new epoch.
    pub(super) copied: bool,
    /// The machine has started anew since the files were written.
    pub(super) rebooted: bool,
    /// What is to be noted from now on, if that is something else.
    pub(super) note: Option<String>,
}

impl fmt::Display for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Birth { inode, born_ns } = self.birth;
        let born = born_ns.map_or("-".to_owned(), |born| born.to_string());
        write!(f, "{inode} {born} {}", self.guesses)?;
        self.boot.as_ref().map_or(Ok(()), |boot| write!(f, " {boot}"))?;
        writeln!(f)
    }
}

impl Noted {
    fn read(text: &str) -> Option<Noted> {
        let mut words = text.split_whitespace();
        let inode = words.next()?.parse().ok()?;
        let born = words.next()?;
        let born_ns = if born == "-" { None } else { Some(born.parse().ok()?) };
        let guesses = words.next()?.parse().ok()?;
        let boot = words.next().map(str::to_owned);
        Some(Noted { birth: Birth { inode, born_ns }, guesses, boot })
    }
}

/// Compares what was noted, if anything readable was, with what is there, at the start `boot` of the machine.
/// With `made`, the ring has just been made here.
pub(super) fn judge(
    noted: Option<&[u8]>,
    found: Birth,
    boot: Option<String>,
    made: bool,
) -> Judgement {
    let noted = noted.and_then(|bytes| Noted::read(std::str::from_utf8(bytes).ok()?));
    let Some(noted) = noted.filter(|_| !made) else {
        let note = Noted { birth: found, guesses: 0, boot };
        return Judgement { copied: false, rebooted: false, note: Some(note.to_string()) };
    };
    let rebooted = noted.boot.as_ref().zip(boot.as_ref()).is_some_and(|(then, now)| then != now);
    let (copied, birth, guesses) = noted.compare(found);
    let next = Noted { birth, guesses, boot: boot.or_else(|| noted.boot.clone()) };
    let note = (next != noted).then(|| next.to_string());
    Judgement { copied, rebooted, note }
}

impl Noted {
    /// Whether the files found are a copy, and what to note of their birth.
    fn compare(&self, found: Birth) -> (bool, Birth, u32) {
        if let (Some(known), Some(born)) = (self.birth.born_ns, found.born_ns) {
            let copied = known != born;
            return if copied { (true, found, 0) } else { (false, self.birth, self.guesses) };
        }
        if self.birth.inode == found.inode {
            let birth = if self.guesses > 0 { found } else { self.birth };
            return (false, birth, 0);
        }
        if self.guesses < GUESSES_MAX {
            return (true, found, self.guesses + 1);
        }
        (false, self.birth, self.guesses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn birth(inode: u64, born_ns: impl Into<Option<u128>>) -> Birth {
        Birth { inode, born_ns: born_ns.into() }
    }

    fn noted(text: &str, found: Birth) -> (bool, Option<String>) {
        let Judgement { copied, rebooted, note } = judge(Some(text.as_bytes()), found, None, false);
        assert!(!rebooted);
        (copied, note)
    }

    #[test]
    fn another_time_of_birth_is_a_copy_whatever_the_inode_says() {
        assert_eq!(noted("9 1700 0\n", birth(9, 1700)), (false, None));
        // A number is given again when its file is removed.
        assert_eq!(noted("9 1700 0\n", birth(9, 1701)), (true, Some("9 1701 0\n".to_owned())));
        // A file system that makes numbers up, and keeps times.
        assert_eq!(noted("9 1700 0\n", birth(10, 1700)), (false, None));
    }

    #[test]
    fn where_no_time_is_known_the_inode_counts_until_it_changes_at_each_start() {
        assert_eq!(noted("9 - 0\n", birth(9, None)), (false, None));
        assert_eq!(noted("9 - 0\n", birth(10, None)), (true, Some("10 - 1\n".to_owned())));
        assert_eq!(noted("10 - 1\n", birth(11, None)), (true, Some("11 - 2\n".to_owned())));
        assert_eq!(noted("11 - 2\n", birth(12, None)), (false, None));
        assert_eq!(noted("11 - 2\n", birth(13, None)), (false, None));
        assert_eq!(noted("11 - 2\n", birth(11, None)), (false, Some("11 - 0\n".to_owned())));
        // Moved to a file system that knows times: by the inode alone.
        assert_eq!(noted("9 - 0\n", birth(10, 5)), (true, Some("10 5 1\n".to_owned())));
        assert_eq!(noted("9 5 0\n", birth(9, None)), (false, None));
    }

    #[test]
    fn what_is_new_or_unreadable_is_noted() {
        let note = Some("3 7 0\n".to_owned());
        let fresh = Judgement { copied: false, rebooted: false, note };
        assert_eq!(judge(None, birth(3, 7), None, false), fresh);
        assert_eq!(judge(Some(b"2 5 0 b\n"), birth(3, 7), None, true), fresh);
        for text in [&b""[..], b"2", b"2 x 0", b"2 - ", b"\xff"] {
            assert_eq!(judge(Some(text), birth(3, 7), None, false), fresh, "{text:?}");
        }
    }

    #[test]
    fn another_start_of_the_machine_is_seen_where_both_are_known() {
        let judged = |text: &str, boot: Option<&str>| {
            let boot = boot.map(str::to_owned);
            let judged = judge(Some(text.as_bytes()), birth(9, 1700), boot, false);
            assert!(!judged.copied);
            (judged.rebooted, judged.note)
        };
        let note = |text: &str| Some(text.to_owned());
        assert_eq!(judged("9 1700 0 a-1\n", Some("a-1")), (false, None));
        assert_eq!(judged("9 1700 0 a-1\n", Some("b-2")), (true, note("9 1700 0 b-2\n")));
        // As the version before this one wrote it, and where the system tells none.
        assert_eq!(judged("9 1700 0\n", Some("b-2")), (false, note("9 1700 0 b-2\n")));
        assert_eq!(judged("9 1700 0 a-1\n", None), (false, None));
    }
}
