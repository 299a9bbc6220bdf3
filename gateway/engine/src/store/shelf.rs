//! Shelves: files that rows go to when they stay longer than the ring can hold them.
//!
//! Each outbox and each log has shelves of its own, so that one that waits for months, or keeps a
//! long history, keeps no other's bytes. A shelf is appended to in runs of entries that begin at a block boundary, and
//! removed as a whole when nothing on it is needed any more. What lies behind the end that the
//! checkpoint knows of is overwritten. Knows entries as bytes: no row, no state.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use redb::StorageBackend;

use super::disk::{Counted, Disk, Traffic};
use super::format::Entry;
use super::ring::{BLOCK, read_blocks};

/// Length at which a shelf takes no more.
const SHELF_BYTES: u64 = 4 << 20;
const PREFIX: &str = "store.shelf-";

/// One file.
#[derive(Debug, Clone, Default)]
struct Shelf {
    /// Where the next run begins.
    end: u64,
    /// Pieces on it that are needed.
    live: u64,
    /// Bytes of pieces that are not needed any more.
    dead: u64,
}

/// All shelves of a store.
#[derive(Debug)]
pub(super) struct Shelves {
    disk: Arc<dyn Disk>,
    traffic: Arc<Traffic>,
    files: BTreeMap<u32, Shelf>,
    /// The shelf that an owner's next rows go to.
    open: BTreeMap<Arc<str>, u32>,
    next: u32,
    /// Those that were appended to and not synced since, by number, with whose they are.
    written: BTreeMap<u32, (Arc<str>, Box<dyn StorageBackend>)>,
    /// Files were made whose names are not durable yet.
    made: BTreeSet<u32>,
    /// The one that was read last.
    reading: Option<(u32, Box<dyn StorageBackend>)>,
}

fn name(number: u32) -> String {
    format!("{PREFIX}{number:08}")
}

fn append(file: &dyn StorageBackend, at: u64, bytes: &[u8]) -> io::Result<()> {
    if file.len()? < at + bytes.len() as u64 {
        file.set_len(at + bytes.len() as u64)?;
    }
    file.write(at, bytes)
}

/// Whether the file system has no room.
pub(super) fn is_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Where a run of entries was put.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) file: u32,
    pub(super) at: u64,
}

impl Shelves {
    pub(super) fn new(disk: Arc<dyn Disk>, traffic: Arc<Traffic>) -> Self {
        let (files, open) = (BTreeMap::new(), BTreeMap::new());
        let (written, made) = (BTreeMap::new(), BTreeSet::new());
        Shelves { disk, traffic, files, open, next: 1, written, made, reading: None }
    }

    /// The numbers of all shelves in the folder.
    pub(super) fn in_folder(&self) -> io::Result<Vec<u32>> {
        let names = self.disk.names()?;
        let numbers = names.iter().filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok());
        Ok(numbers.collect())
    }

    fn open(&self, number: u32, create: bool) -> io::Result<Box<dyn StorageBackend>> {
        let inner = self.disk.open(&name(number), create)?;
        Ok(Box::new(Counted { inner, traffic: Arc::clone(&self.traffic), is_tree: false }))
    }

    /// A piece on a shelf is needed; called for each at the start and when it is put there.
    pub(super) fn hold(&mut self, number: u32, end: u64) {
        let file = self.files.entry(number).or_default();
        file.live += 1;
        file.end = file.end.max(end.next_multiple_of(BLOCK));
        self.next = self.next.max(number.saturating_add(1));
    }

    /// A piece of `length` bytes on a shelf is not needed any more.
    pub(super) fn release(&mut self, number: u32, length: u32) {
        if let Some(shelf) = self.files.get_mut(&number) {
            shelf.live = shelf.live.saturating_sub(1);
            shelf.dead += u64::from(length);
        }
    }

    /// Appends entries for an owner; durable with [`Shelves::sync`]. Nothing is kept of a failed one.
    pub(super) fn put(&mut self, owner: &Arc<str>, mut bytes: Vec<u8>) -> io::Result<Run> {
        let number = self.open_for(owner)?;
        let at = self.files.get(&number).map_or(0, |shelf| shelf.end);
        bytes.resize(bytes.len().next_multiple_of(usize::try_from(BLOCK).unwrap_or(4096)), 0);
        let Some((_, file)) = self.written.get(&number) else {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        };
        if let Err(error) = append(&**file, at, &bytes) {
            // On a full disk half a run would take what room there is.
            if let Err(again) = file.set_len(at) {
                tracing::debug!(error = %again, number, "half a run stays on a shelf");
            }
            // Blocks that fail may fail for ever: the next try is on another shelf.
            if at == 0 || !is_no_room(&error) {
                self.leave(owner, number);
            }
            return Err(error);
        }
        if let Some(shelf) = self.files.get_mut(&number) {
            shelf.end = at + bytes.len() as u64;
        }
        self.reading = self.reading.take().filter(|(reading, _)| *reading != number);
        Ok(Run { file: number, at })
    }

    /// The shelf that the owner's next entries go to, open for writing; a new one where none has room.
    fn open_for(&mut self, owner: &Arc<str>) -> io::Result<u32> {
        let known = self.open.get(owner).copied().filter(|number| {
            // One that is half let go gets no more, so that it goes as a whole before long.
            let has_room = |file: &Shelf| file.end < SHELF_BYTES && file.dead * 2 < file.end;
            self.files.get(number).is_some_and(has_room)
        });
        let number = known.unwrap_or(self.next);
        if known.is_some() && self.written.contains_key(&number) {
            return Ok(number);
        }
        let file = self.open(number, known.is_none())?;
        if known.is_none() {
            self.next += 1;
            self.made.insert(number);
            self.files.insert(number, Shelf::default());
            self.open.insert(owner.clone(), number);
        }
        self.written.insert(number, (owner.clone(), file));
        Ok(number)
    }

    /// Makes durable what was put since the last time, with one sync for each shelf and one for the
    /// names of new ones. Returns the shelves on which nothing of it counts, and why.
    pub(super) fn sync(&mut self) -> (BTreeSet<u32>, io::Result<()>) {
        let mut failed = BTreeSet::new();
        let mut outcome = Ok(());
        let written = std::mem::take(&mut self.written);
        for (number, (_, file)) in &written {
            if let Err(error) = file.sync_data() {
                failed.insert(*number);
                outcome = Err(error);
            }
        }
        let made = std::mem::take(&mut self.made);
        if !made.is_empty()
            && let Err(error) = self.disk.sync_names()
        {
            failed.extend(made);
            outcome = Err(error);
        }
        // A later sync would succeed and prove nothing.
        for number in &failed {
            if let Some((owner, _)) = written.get(number) {
                self.leave(owner, *number);
            }
        }
        (failed, outcome)
    }

    /// Puts nothing more on a shelf, and removes it if nothing on it counts.
    fn leave(&mut self, owner: &Arc<str>, number: u32) {
        if self.open.get(owner) == Some(&number) {
            self.open.remove(owner);
        }
        self.written.remove(&number);
        if self.files.get(&number).is_none_or(|shelf| shelf.live > 0) {
            return;
        }
        match self.disk.remove(&name(number)) {
            Ok(()) => drop(self.files.remove(&number)),
            Err(error) => tracing::debug!(%error, number, "a shelf cannot be removed yet"),
        }
    }

    /// Reads bytes of a shelf.
    pub(super) fn read(&mut self, number: u32, at: u64, out: &mut [u8]) -> io::Result<()> {
        if self.reading.as_ref().is_none_or(|(reading, _)| *reading != number) {
            self.reading = Some((number, self.open(number, false)?));
        }
        match &self.reading {
            Some((_, file)) => file.read(at, out),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    /// Forgets an open file, so that the next read asks the device.
    pub(super) fn forget(&mut self) {
        self.reading = None;
    }

    /// Removes the shelves that nobody needs; what cannot be removed is tried again later.
    pub(super) fn sweep(&mut self) {
        let empty: Vec<u32> =
            self.files.iter().filter(|(_, shelf)| shelf.live == 0).map(|(n, _)| *n).collect();
        for number in empty {
            self.reading = self.reading.take().filter(|(reading, _)| *reading != number);
            self.open.retain(|_, open| *open != number);
            match self.disk.remove(&name(number)) {
                Ok(()) => {
                    self.files.remove(&number);
                }
                Err(error) => tracing::debug!(%error, number, "a shelf cannot be removed yet"),
            }
        }
    }

    /// Removes the shelves in the folder that nothing refers to: a crash came between.
    pub(super) fn sweep_folder(&mut self) -> io::Result<()> {
        let known: BTreeSet<u32> = self.files.keys().copied().collect();
        for number in self.in_folder()? {
            self.next = self.next.max(number.saturating_add(1));
            if !known.contains(&number) {
                self.disk.remove(&name(number))?;
            }
        }
        Ok(())
    }

    /// The lengths of the shelves that something is on; 0 for one that is gone, and none for one of which
    /// that cannot be told.
    pub(super) fn lengths(&self) -> BTreeMap<u32, u64> {
        let length = |number: u32| self.disk.length(&name(number)).ok();
        let known = self.files.keys().filter_map(|number| Some((*number, length(*number)?)));
        known.map(|(number, length)| (number, length.unwrap_or(0))).collect()
    }

    /// Bytes of all shelves.
    pub(super) fn bytes(&self) -> u64 {
        self.files.values().map(|shelf| shelf.end).sum()
    }

    /// Visits the entries of a shelf by looking at its bytes alone; `at` is where each lies. Blocks for whose
    /// error `lost` has `true` are passed over.
    pub(super) fn entries(
        &mut self,
        number: u32,
        lost: &mut impl FnMut(u64, &io::Error) -> bool,
        mut visit: impl FnMut(u64, &Entry<'_>),
    ) -> io::Result<()> {
        let file = self.open(number, false)?;
        let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(0)];
        read_blocks(&*file, 0, &mut bytes, lost)?;
        let block = usize::try_from(BLOCK).unwrap_or(4096);
        let mut at = 0;
        while at < bytes.len() {
            match Entry::take(&bytes[at..]).filter(|entry| entry.body().is_some()) {
                Some(entry) => {
                    visit(at as u64, &entry);
                    at += entry.length;
                }
                None => at = (at + 1).next_multiple_of(block),
            }
        }
        Ok(())
    }
}
