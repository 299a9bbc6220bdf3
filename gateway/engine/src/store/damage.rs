//! What can go wrong below a commit, and the count of what damage cost.
//!
//! A value that fails its seal is counted once and copied aside; rows that are missing between two
//! positions are counted once. Knows no recovery: whoever meets [`Trouble`] decides.

use std::any::Any;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::disk::Disk;
use super::format::{Kind, key, put_bytes};

/// Why an operation on the file failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The device or the file system said no: open the file again and look.
    Io(String),
    /// No room on the file system: wait, then as [`Trouble::Io`].
    Full(String),
    /// The file's structure is broken: carry over what can be read.
    Damaged(String),
}

impl Trouble {
    /// The text for a person.
    pub(super) fn text(&self) -> &str {
        match self {
            Trouble::Io(text) | Trouble::Full(text) | Trouble::Damaged(text) => text,
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
    disk: Arc<dyn Disk>,
}

impl Damage {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Self {
        Damage { records: 0, rows: 0, seen: HashSet::new(), disk }
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
        // One byte more than any key of ours, so that it never meets one of `bad`.
        let mut mark = key(kind, name, from);
        mark.push(0);
        if self.first_time(mark) {
            self.rows += to - from;
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
