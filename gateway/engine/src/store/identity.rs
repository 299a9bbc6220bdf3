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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Noted {
    birth: Birth,
    /// Starts in a row at which the inode number was another and nothing else could be told.
    guesses: u32,
}

/// What follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Judgement {
    /// The files are a copy: ids that follow from it need a new epoch.
    pub(super) copied: bool,
    /// What is to be noted from now on, if that is something else.
    pub(super) note: Option<String>,
}

impl fmt::Display for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Birth { inode, born_ns } = self.birth;
        let born = born_ns.map_or("-".to_owned(), |born| born.to_string());
        writeln!(f, "{inode} {born} {}", self.guesses)
    }
}

impl Noted {
    fn read(text: &str) -> Option<Noted> {
        let mut words = text.split_whitespace();
        let inode = words.next()?.parse().ok()?;
        let born = words.next()?;
        let born_ns = if born == "-" { None } else { Some(born.parse().ok()?) };
        let guesses = words.next()?.parse().ok()?;
        Some(Noted { birth: Birth { inode, born_ns }, guesses })
    }
}

/// Compares what was noted, if anything readable was, with what is there. With `made`, the ring has just
/// been made here.
pub(super) fn judge(noted: Option<&[u8]>, found: Birth, made: bool) -> Judgement {
    let noted = noted.and_then(|bytes| Noted::read(std::str::from_utf8(bytes).ok()?));
    let note = |guesses| Some(Noted { birth: found, guesses }.to_string());
    let Some(noted) = noted.filter(|_| !made) else {
        return Judgement { copied: false, note: note(0) };
    };
    if let (Some(known), Some(born)) = (noted.birth.born_ns, found.born_ns) {
        let copied = known != born;
        return Judgement { copied, note: if copied { note(0) } else { None } };
    }
    if noted.birth.inode == found.inode {
        return Judgement { copied: false, note: if noted.guesses > 0 { note(0) } else { None } };
    }
    if noted.guesses < GUESSES_MAX {
        return Judgement { copied: true, note: note(noted.guesses + 1) };
    }
    Judgement { copied: false, note: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn birth(inode: u64, born_ns: impl Into<Option<u128>>) -> Birth {
        Birth { inode, born_ns: born_ns.into() }
    }

    fn noted(text: &str, found: Birth) -> (bool, Option<String>) {
        let Judgement { copied, note } = judge(Some(text.as_bytes()), found, false);
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
        let fresh = Judgement { copied: false, note: Some("3 7 0\n".to_owned()) };
        assert_eq!(judge(None, birth(3, 7), false), fresh);
        assert_eq!(judge(Some(b"2 5 0\n"), birth(3, 7), true), fresh);
        for text in [&b""[..], b"2", b"2 x 0", b"2 - ", b"\xff"] {
            assert_eq!(judge(Some(text), birth(3, 7), false), fresh, "{text:?}");
        }
    }
}
