//! What can go wrong below a commit, and the count of what damage cost.
//!
//! A value that fails its seal is counted once and copied aside; a row that is missing is counted once,
//! whoever comes upon it and in whatever company. Knows no recovery: whoever meets [`Trouble`] decides.

use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::disk::Disk;
use super::format::{Kind, put_bytes};

/// Why an operation on the file failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The device or the file system said no: open the file again and look.
    Io(String),
    /// No room on the file system: wait, then as [`Trouble::Io`].
    Full(String),
    /// What is stored cannot be read now, and is not known to be damaged: wait.
    Unread(String),
    /// The file's structure is broken: carry over what can be read.
    Damaged(String),
}

impl Trouble {
    /// The text for a person.
    pub(super) fn text(&self) -> &str {
        match self {
            Trouble::Io(text)
            | Trouble::Full(text)
            | Trouble::Unread(text)
            | Trouble::Damaged(text) => text,
        }
    }
}

impl From<redb::Error> for Trouble {
    fn from(error: redb::Error) -> Self {
        use std::io::ErrorKind;
        let text = error.to_string();
        match error {
            redb::Error::Io(source) => match source.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Trouble::Full(text),
                ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput => {
                    Trouble::Damaged(text)
                }
                _ => Trouble::Io(text),
            },
            redb::Error::Corrupted(_)
            | redb::Error::TableDoesNotExist(_)
            | redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. }
            | redb::Error::UpgradeRequired(_) => Trouble::Damaged(text),
            _ => Trouble::Io(text),
        }
    }
}

macro_rules! trouble_from {
    ($($error:ty),*) => {
        $(impl From<$error> for Trouble {
            fn from(error: $error) -> Self {
                Trouble::from(redb::Error::from(error))
            }
        })*
    };
}

trouble_from!(
    redb::StorageError,
    redb::TableError,
    redb::TransactionError,
    redb::CommitError,
    redb::DatabaseError
);

/// Runs an operation on the file and turns a panic in it into [`Trouble::Damaged`]: redb trusts
/// the pages that it reads.
pub(super) fn contained<T>(work: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(Trouble::Damaged(format!("panic: {}", panic_text(&*panic)))))
}

/// Drops what may panic on its way out; `false` when it did.
pub(super) fn drop_contained<T>(value: T) -> bool {
    catch_unwind(AssertUnwindSafe(move || drop(value))).is_ok()
}

/// What a panic said.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text")
}

/// Copies of damaged values go here.
pub(super) const QUARANTINE_FILE: &str = "quarantine";
/// Bytes of damaged values that are kept at most; later ones are only counted.
const QUARANTINE_BYTES_MAX: u64 = 1 << 20;
/// Damage that is remembered so as not to count it twice; beyond it counting begins anew.
const SEEN_MAX: usize = 10_000;

/// Counts damage, each piece once.
#[derive(Debug)]
pub(super) struct Damage {
    pub(super) records: u64,
    pub(super) rows: u64,
    seen: HashSet<Vec<u8>>,
    /// Positions of missing rows that are counted, by kind and name: first to the one behind the last.
    missing: BTreeMap<(u8, String), BTreeMap<u64, u64>>,
    disk: Arc<dyn Disk>,
}

impl Damage {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Self {
        Damage { records: 0, rows: 0, seen: HashSet::new(), missing: BTreeMap::new(), disk }
    }

    /// A value failed its check.
    pub(super) fn bad(&mut self, key: &[u8], value: &[u8]) {
        if !self.first_time(key.to_vec()) {
            return;
        }
        self.records += 1;
        let mut copy = Vec::with_capacity(key.len() + value.len() + 8);
        put_bytes(&mut copy, key);
        put_bytes(&mut copy, value);
        let kept = self.disk.append(QUARANTINE_FILE, &copy, QUARANTINE_BYTES_MAX);
        tracing::error!(
            key = %key.escape_ascii(), bytes = value.len(), copy_kept = kept.is_ok(),
            "a stored value failed its check and is passed over"
        );
    }

    /// Another value has taken the place of what may have been bad: it counts anew.
    pub(super) fn mended(&mut self, key: impl FnOnce() -> Vec<u8>) {
        if !self.seen.is_empty() {
            self.seen.remove(&key());
        }
    }

    /// Rows `from .. to` should be there and are not.
    pub(super) fn gap(&mut self, kind: Kind, name: &str, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let known = self.missing.entry((kind as u8, name.to_owned())).or_default();
        if known.len() >= SEEN_MAX {
            known.clear();
        }
        let rows = join(known, from, to);
        self.rows += rows;
        if rows > 0 {
            tracing::error!(?kind, name, from, to, "stored rows are missing");
        }
    }

    fn first_time(&mut self, mark: Vec<u8>) -> bool {
        if self.seen.len() >= SEEN_MAX {
            self.seen.clear();
        }
        self.seen.insert(mark)
    }
}

/// Adds `from .. to` to ranges that do not touch each other; returns how much of it was in none.
fn join(ranges: &mut BTreeMap<u64, u64>, from: u64, to: u64) -> u64 {
    let mut whole = (from, to);
    let mut known = 0;
    while let Some((&first, &end)) = ranges.range(..=whole.1).next_back() {
        if end < whole.0 {
            break;
        }
        known += end.min(to).saturating_sub(first.max(from));
        whole = (whole.0.min(first), whole.1.max(end));
        ranges.remove(&first);
    }
    ranges.insert(whole.0, whole.1);
    to - from - known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_row_is_counted_once_in_whatever_company() {
        let mut ranges = BTreeMap::new();
        for (from, to, new) in [
            (10, 20, 10),
            (10, 20, 0),
            (12, 15, 0),
            (5, 12, 5),
            (18, 25, 5),
            (40, 50, 10),
            (30, 35, 5),
            (25, 26, 1),
            (1, 60, 59 - 21 - 5 - 10),
            (1, 60, 0),
        ] {
            assert_eq!(join(&mut ranges, from, to), new, "{from}..{to} with {ranges:?}");
        }
        assert_eq!(ranges, BTreeMap::from([(1, 60)]));
    }
}
