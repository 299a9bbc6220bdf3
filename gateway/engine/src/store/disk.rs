//! The folder that holds the store, as few operations as it needs.
//!
//! [`Folder`] is the real one; the tests put a disk in its place that loses what was not synced.
//! Files are 0600, the folder 0700. Knows no record.

use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::ops::Bound;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};
use rustix::fs::{Advice, fadvise};

use super::identity::Birth;

/// The files of a store. Names have no folder in them.
pub(super) trait Disk: Debug + Send + Sync {
    /// What a person calls the file.
    fn path(&self, name: &str) -> PathBuf;

    /// Makes the folder where it is missing and takes the lock on it, until the guard is dropped.
    /// `None` when another process has it.
    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Debug + Send>>>;

    /// The length of a file, or `None` where there is none.
    fn length(&self, name: &str) -> io::Result<Option<u64>>;

    /// What tells a file from a copy of it, or `None` where there is none.
    fn birth(&self, name: &str) -> io::Result<Option<Birth>>;

    /// Opens a file; with `create` an empty one in place of any that is there.
    /// What is read afterwards comes from the device, not from pages that a failed sync left clean.
    fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn StorageBackend>>;

    /// Gives a file the name `to`, replacing what had it, durably. With `aside`, what had the name
    /// `to` is found under `aside` afterwards; at no moment is there nothing under `to`.
    fn publish(&self, from: &str, to: &str, aside: Option<&str>) -> io::Result<()>;

    /// The names of all files in the folder.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Bytes that files can still grow by.
    fn room(&self) -> io::Result<u64>;

    /// Makes the names of all files durable, as they are now.
    fn sync_names(&self) -> io::Result<()>;

    /// Removes a file if it is there.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Reads a small file.
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;

    /// Writes a small file as a whole, durably.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// The start of the machine that this is, where it is known: what was only in memory is gone with the
    /// one before.
    fn boot(&self) -> Option<String>;

    /// Notes in which epoch something is delivered that is in memory only, if anything is, for as long as the
    /// machine runs at least. This disk alone would not do: it may take no writes.
    fn note_stall(&self, epoch: Option<u64>) -> io::Result<()>;

    /// The epoch that was noted last.
    fn was_stalled(&self) -> Option<u64>;

    /// Appends to a file unless it would grow beyond `bytes_max`. Not synced.
    fn append(&self, name: &str, bytes: &[u8], bytes_max: u64) -> io::Result<()>;
}

/// Where files are in memory where the service manager names no folder for that.
const MEMORY: &str = "/dev/shm";
/// The note that a process ended while it could not write.
const STALLED: &str = "store.stalled";

/// A folder of the file system.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Its device and inode, from when it was locked on.
    number: OnceLock<(u64, u64)>,
}

impl Folder {
    /// A folder that may not be there yet.
    pub(super) fn new(path: PathBuf) -> Self {
        Folder { path, number: OnceLock::new() }
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Makes the folder, and those that it lies in, where they are missing; durably, so that no power cut
    /// takes the whole store along.
    fn make(&self) -> io::Result<()> {
        let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let missing: Vec<&Path> = self.path.ancestors().take_while(is_missing).collect();
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        for folder in missing {
            let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
            match File::open(parent.unwrap_or(Path::new("."))) {
                Ok(parent) => parent.sync_all()?,
                // One that may be written to and not read cannot be synced.
                Err(error) => tracing::warn!(%error, folder = %folder.display(), "not synced"),
            }
        }
        Ok(())
    }

    /// A file in memory, named by what the folder is, not by what it is called; and one in the folder: a
    /// container's memory may go with its process, and a full disk often takes a small file.
    pub(super) fn stall_notes(&self) -> io::Result<[PathBuf; 2]> {
        let number = |folder: &Path| fs::metadata(folder).map(|meta| (meta.dev(), meta.ino()));
        // A file system that has failed may tell nothing any more.
        let (device, inode) = match self.number.get() {
            Some(known) => *known,
            None => number(&self.path)?,
        };
        let runtime = std::env::var_os("RUNTIME_DIRECTORY").map(PathBuf::from);
        let memory = runtime.filter(|folder| folder.is_dir()).unwrap_or_else(|| MEMORY.into());
        let name = format!("tidegate-stall-{device:x}-{inode:x}");
        Ok([memory.join(name), self.path(STALLED)])
    }

    fn options() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.mode(0o600);
        options
    }
}

fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Disk for Folder {
    fn path(&self, name: &str) -> PathBuf {
        self.path.join(Path::new(name))
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Debug + Send>>> {
        self.make()?;
        let meta = fs::metadata(&self.path)?;
        self.number.get_or_init(|| (meta.dev(), meta.ino()));
        let file =
            Self::options().create(true).truncate(false).write(true).open(self.path(name))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn length(&self, name: &str) -> io::Result<Option<u64>> {
        Ok(found(fs::metadata(self.path(name)))?.map(|meta| meta.len()))
    }

    fn birth(&self, name: &str) -> io::Result<Option<Birth>> {
        let Some(meta) = found(fs::metadata(self.path(name)))? else {
            return Ok(None);
        };
        let since = meta.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Ok(Some(Birth { inode: meta.ino(), born_ns: since.map(|since| since.as_nanos()) }))
    }

    fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn StorageBackend>> {
        let mut options = Self::options();
        options.read(true).write(true).create(create).truncate(create);
        let file = options.open(self.path(name))?;
        // After a failed sync Linux marks the pages clean: they would be read back from memory as
        // if they were on the device. Dropped from the cache, they are read from where they count.
        if let Err(error) = fadvise(&file, 0, None, Advice::DontNeed) {
            tracing::warn!(%error, "cached pages cannot be dropped: a failed sync may go unseen");
        }
        Ok(Box::new(FileBackend::new(file).map_err(io::Error::other)?))
    }

    fn publish(&self, from: &str, to: &str, aside: Option<&str>) -> io::Result<()> {
        if let Some(aside) = aside {
            self.remove(aside)?;
            // A file system without hard links gets a moment with nothing under `to`.
            fs::hard_link(self.path(to), self.path(aside))
                .or_else(|_| fs::rename(self.path(to), self.path(aside)))?;
        }
        fs::rename(self.path(from), self.path(to))?;
        self.sync()
    }

    fn room(&self) -> io::Result<u64> {
        let figures = rustix::fs::statvfs(&self.path)?;
        Ok(figures.f_bavail.saturating_mul(figures.f_frsize))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.sync()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.path)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        found(fs::remove_file(self.path(name))).map(drop)
    }

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = found(File::open(self.path(name)))? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        file.take(4096).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let beside = format!("{name}.new");
        let mut file =
            Self::options().create(true).truncate(true).write(true).open(self.path(&beside))?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if let Err(error) = written {
            // On a full disk half a file would take what room there is.
            self.remove(&beside)?;
            return Err(error);
        }
        self.publish(&beside, name, None)
    }

    fn boot(&self) -> Option<String> {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(id.trim().to_owned())
    }

    fn note_stall(&self, epoch: Option<u64>) -> io::Result<()> {
        let notes = self.stall_notes()?;
        let gone = notes.each_ref().map(|note| found(fs::remove_file(note)).map(drop));
        let Some(epoch) = epoch else {
            return gone.into_iter().collect();
        };
        // Not through a link that somebody else put there.
        let [memory, disk] = notes.map(|note| {
            let mut file = Self::options().create_new(true).write(true).open(note)?;
            file.write_all(epoch.to_string().as_bytes())
        });
        memory.or(disk)
    }

    fn was_stalled(&self) -> Option<u64> {
        let told = |note: PathBuf| {
            note.symlink_metadata().ok()?;
            let text = fs::read_to_string(note).ok();
            // A full disk takes the name and no content.
            Some(text.and_then(|text| text.parse().ok()).unwrap_or(0))
        };
        self.stall_notes().ok()?.into_iter().filter_map(told).max()
    }

    fn append(&self, name: &str, bytes: &[u8], bytes_max: u64) -> io::Result<()> {
        let mut file = Self::options().create(true).append(true).open(self.path(name))?;
        let length = file.metadata()?.len().saturating_add(bytes.len() as u64);
        if length > bytes_max {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        file.write_all(bytes)
    }
}

/// What went through the backends, for figures.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// Bytes written to any file.
    pub(super) written: AtomicU64,
    /// Length of the tree's file.
    pub(super) tree_length: AtomicU64,
}

/// Passes everything on and counts it.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) inner: Box<dyn StorageBackend>,
    pub(super) traffic: Arc<Traffic>,
    /// Whether this is the file of the tree, whose length is a figure.
    pub(super) is_tree: bool,
}

impl Counted {
    fn note_length(&self, length: u64) {
        if self.is_tree {
            self.traffic.tree_length.store(length, Ordering::Relaxed);
        }
    }
}

impl StorageBackend for Counted {
    fn len(&self) -> io::Result<u64> {
        let length = self.inner.len()?;
        self.note_length(length);
        Ok(length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)?;
        self.note_length(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)?;
        self.traffic.written.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}
