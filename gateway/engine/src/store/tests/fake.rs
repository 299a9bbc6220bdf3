//! A disk that keeps "on the device" and "written, not synced" apart, and fails when told.
//!
//! Names are kept apart as well, as ext4 does (`data=ordered`): a creation, a rename and a removal are
//! durable when the folder was synced, and with nothing else; a rename is seen as a whole or not at all.
//! What was not synced a power cut keeps or loses by dice: names up to one of their changes, or any of
//! them. A sync of the folder that fails leaves its changes unsynced and the next one may succeed: a
//! journal that failed takes no more, so that no later sync would lie.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use redb::StorageBackend;

use super::medium::{Change, FakeFile, Inode, NameChange, Names, apply, apply_name, left_of};
use crate::store::disk::Disk;
use crate::store::files::TREE;
use crate::store::identity::Birth;

/// A small generator (xorshift64*), so that a seed names a run.
#[derive(Debug, Clone)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.roll() % bound as u64).unwrap()
    }
}

/// What goes with a start of the machine.
#[derive(Debug, Clone, Copy, Default)]
struct Machine {
    /// Which one it is, where it tells.
    boot: Option<u64>,
    /// Something was shown in this epoch that was not durable.
    stalled: Option<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    /// What a look into the folder shows.
    files: Names,
    /// The names that a power cut leaves.
    durable: Names,
    /// Changes of names since the folder was synced, in order.
    unsynced: Vec<NameChange>,
    operations: u64,
    crash_at: Option<u64>,
    fail_at: Option<(u64, io::ErrorKind)>,
    /// Reads of the tree, and which of them panics.
    reads: u64,
    panic_at: Option<u64>,
    full: bool,
    /// A sync of the folder says that it was done, and does nothing.
    forgets_names: bool,
    /// Bytes that all files may have together.
    capacity: Option<usize>,
    /// Beginnings of the names of files that take no writes.
    broken: Vec<String>,
    /// Syncs of files whose names begin so fail, and leave any part of what was written on the device; without
    /// dice all of it.
    dying: Option<(String, Option<Dice>)>,
    machine: Machine,
    crashed: bool,
    /// Syncs of each file that succeeded.
    syncs: BTreeMap<String, u64>,
    /// When the folder's files were made.
    born: u128,
    /// Told when it crashes.
    death: Arc<tokio::sync::Notify>,
}

impl Inner {
    fn rename(&mut self, change: NameChange) {
        apply_name(&mut self.files, &change);
        self.unsynced.push(change);
    }

    /// The names after a power cut: those that are durable, and with `dice` what changed since up to a
    /// point, or any of it.
    fn names_left(&self, dice: &mut Option<Dice>) -> Names {
        let mut names = self.durable.clone();
        let Some(dice) = dice else { return names };
        let prefix = (dice.below(2) == 0).then(|| dice.below(self.unsynced.len() + 1));
        for (index, change) in self.unsynced.iter().enumerate() {
            if prefix.map_or_else(|| dice.below(2) == 0, |prefix| index < prefix) {
                apply_name(&mut names, change);
            }
        }
        names
    }
}

/// The disk; clones are the same one.
#[derive(Debug, Clone, Default)]
pub(super) struct FakeDisk {
    inner: Arc<Mutex<Inner>>,
    locked: Arc<AtomicBool>,
    /// Held while a file is synced.
    syncing: Arc<Mutex<()>>,
}

impl FakeDisk {
    /// The files are copies that were made at this moment.
    pub(super) fn set_born(&self, born: u128) {
        self.inner.lock().unwrap().born = born;
    }

    /// From the `operation`th on nothing reaches the disk any more.
    pub(super) fn crash_at(&self, operation: u64) {
        self.inner.lock().unwrap().crash_at = Some(operation);
    }

    /// The `operation`th fails; later ones work.
    pub(super) fn fail_at(&self, operation: u64, kind: io::ErrorKind) {
        self.inner.lock().unwrap().fail_at = Some((operation, kind));
    }

    /// The `read`th read of the tree panics, as redb does over pages that it trusts; later ones work.
    pub(super) fn panic_at(&self, read: u64) {
        self.inner.lock().unwrap().panic_at = Some(read);
    }

    /// Reads of the tree so far.
    pub(super) fn reads(&self) -> u64 {
        self.inner.lock().unwrap().reads
    }

    /// From now on syncs of the folder do nothing.
    pub(super) fn forget_names(&self) {
        self.inner.lock().unwrap().forgets_names = true;
    }

    /// The file cannot grow until this is taken back.
    pub(super) fn set_full(&self, full: bool) {
        self.inner.lock().unwrap().full = full;
    }

    /// All files together cannot grow by more than that.
    pub(super) fn set_room(&self, bytes: usize) {
        let used = self.used();
        self.inner.lock().unwrap().capacity = Some(used + bytes);
    }

    /// Bytes of all files. No file may be held.
    fn used(&self) -> usize {
        let files = self.inner.lock().unwrap().files.clone();
        files.values().map(|file| file.lock().unwrap().cache.len()).sum()
    }

    /// Bytes that files can still grow by. No file may be held.
    fn left(&self) -> usize {
        let capacity = self.inner.lock().unwrap().capacity;
        capacity.map_or(usize::MAX, |capacity| capacity.saturating_sub(self.used()))
    }

    /// Writes to files whose names begin so fail until this is taken back; others work.
    pub(super) fn set_broken(&self, names: &[&str]) {
        self.inner.lock().unwrap().broken = names.iter().map(|&name| name.to_owned()).collect();
    }

    /// Reads of these bytes of the files whose names begin so now get no answer until they are written, or this is
    /// taken back.
    pub(super) fn set_unread(&self, unread: &[(&str, Range<u64>)]) {
        for (name, file) in self.inner.lock().unwrap().files.clone() {
            let of_this = unread.iter().filter(|(beginning, _)| name.starts_with(beginning));
            file.lock().unwrap().unread = of_this.map(|(_, bytes)| bytes.clone()).collect();
        }
    }

    /// Syncs of files whose names begin so fail until this is taken back, and leave any part of what was
    /// written on the device; without a seed all of it.
    pub(super) fn set_dying(&self, dying: Option<(&str, Option<u64>)>) {
        let dice = |seed: Option<u64>| seed.map(|seed| Dice(seed | 1));
        let dying = dying.map(|(name, seed)| (name.to_owned(), dice(seed)));
        self.inner.lock().unwrap().dying = dying;
    }

    /// The machine tells its starts apart: each power cut is another one.
    pub(super) fn tell_boots(&self) {
        self.inner.lock().unwrap().machine.boot = Some(1);
    }

    /// Resolves when the disk has crashed.
    pub(super) async fn death(&self) {
        let death = Arc::clone(&self.inner.lock().unwrap().death);
        death.notified().await;
    }

    pub(super) fn operations(&self) -> u64 {
        self.inner.lock().unwrap().operations
    }

    /// What the power leaves behind when it goes now: nothing unsynced, or with `seed` any part
    /// of it, torn at 512 bytes.
    pub(super) fn power_cut(&self, seed: Option<u64>) -> FakeDisk {
        let mut dice = seed.map(|seed| Dice(seed | 1));
        // Not held while files are: a store that has not noticed yet holds one and asks for it.
        let (names, born, boot) = {
            let inner = self.inner.lock().unwrap();
            let mut of_names = seed.map(|seed| Dice(seed.rotate_left(17) | 1));
            (inner.names_left(&mut of_names), inner.born, inner.machine.boot)
        };
        let left = names.into_iter().map(|(name, file)| {
            let file = left_of(&file.lock().unwrap(), &mut dice);
            (name, Arc::new(Mutex::new(file)))
        });
        let files: Names = left.collect();
        let machine = Machine { boot: boot.map(|boot| boot + 1), stalled: None };
        FakeDisk::new(Inner { durable: files.clone(), files, born, machine, ..Inner::default() })
    }

    /// What the next process finds when this one is killed now: all that was written, synced or not.
    pub(super) fn killed(&self) -> FakeDisk {
        let (files, durable, unsynced, (born, machine)) = {
            let inner = self.inner.lock().unwrap();
            let names = (inner.files.clone(), inner.durable.clone(), inner.unsynced.clone());
            (names.0, names.1, names.2, (inner.born, inner.machine))
        };
        // The same file stays one file under all its names.
        let mut copies: Vec<(Inode, Inode)> = Vec::new();
        let mut copy = |inode: &Inode| {
            if let Some((_, copy)) = copies.iter().find(|(of, _)| Arc::ptr_eq(of, inode)) {
                return Arc::clone(copy);
            }
            let copy = Arc::new(Mutex::new(inode.lock().unwrap().clone()));
            copies.push((Arc::clone(inode), Arc::clone(&copy)));
            copy
        };
        let mut names = |names: Names| -> Names {
            names.iter().map(|(name, inode)| (name.clone(), copy(inode))).collect()
        };
        let (files, durable) = (names(files), names(durable));
        let unsynced = unsynced.into_iter().map(|change| match change {
            NameChange::Put(name, inode) => NameChange::Put(name, copy(&inode)),
            NameChange::Rename(from, to, inode) => NameChange::Rename(from, to, copy(&inode)),
            NameChange::Remove(name) => NameChange::Remove(name),
        });
        let unsynced = unsynced.collect();
        FakeDisk::new(Inner { files, durable, unsynced, machine, born, ..Inner::default() })
    }

    fn new(inner: Inner) -> FakeDisk {
        FakeDisk { inner: Arc::new(Mutex::new(inner)), ..FakeDisk::default() }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.inner.lock().unwrap().files.keys().cloned().collect()
    }

    /// Every file on the device.
    pub(super) fn contents(&self) -> Vec<(String, Vec<u8>)> {
        let files = self.inner.lock().unwrap().files.clone();
        files.into_iter().map(|(name, file)| (name, file.lock().unwrap().device.clone())).collect()
    }

    /// Changes the bytes on the device.
    pub(super) fn edit(&self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let file = Arc::clone(&self.inner.lock().unwrap().files[name]);
        let mut file = file.lock().unwrap();
        edit(&mut file.device);
        file.cache = file.device.clone();
        file.dirty.clear();
    }

    /// Puts a file on the device.
    pub(super) fn place(&self, name: &str, bytes: &[u8]) {
        let (device, cache) = (bytes.to_vec(), bytes.to_vec());
        let file = Arc::new(Mutex::new(FakeFile { device, cache, ..FakeFile::default() }));
        let mut inner = self.inner.lock().unwrap();
        inner.files.insert(name.to_owned(), Arc::clone(&file));
        inner.durable.insert(name.to_owned(), file);
    }

    /// Removes a file from the device.
    pub(super) fn forget(&self, name: &str) {
        let mut inner = self.inner.lock().unwrap();
        inner.files.remove(name).unwrap();
        inner.durable.remove(name);
    }

    /// Others that hold the disk, such as files that are open.
    pub(super) fn holders(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Syncs of files whose names begin so.
    pub(super) fn syncs(&self, beginning: &str) -> u64 {
        let inner = self.inner.lock().unwrap();
        inner.syncs.iter().filter(|(name, _)| name.starts_with(beginning)).map(|(_, n)| n).sum()
    }

    /// Keeps everybody from the disk until what it returns is dropped.
    pub(super) fn hold(&self) -> impl Drop {
        self.inner.lock().unwrap()
    }

    /// Keeps syncs from ending until what it returns is dropped.
    pub(super) fn hold_syncs(&self) -> impl Drop {
        self.syncing.lock().unwrap()
    }

    fn step(&self, grows: bool) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap();
        inner.operations += 1;
        inner.crashed |= inner.crash_at == Some(inner.operations);
        if inner.crashed {
            inner.death.notify_one();
            return Err(io::Error::other("crashed"));
        }
        if inner.full && grows {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        match inner.fail_at {
            Some((at, kind)) if at == inner.operations => Err(io::Error::new(kind, "injected")),
            _ => Ok(()),
        }
    }

    fn file(&self, name: &str) -> Option<Inode> {
        self.inner.lock().unwrap().files.get(name).cloned()
    }

    fn rename(&self, change: NameChange) {
        self.inner.lock().unwrap().rename(change);
    }

    /// The file of that name, made where there is none. What it held stays.
    fn file_or_new(&self, name: &str) -> Inode {
        self.file(name).unwrap_or_else(|| {
            let file = Inode::default();
            self.rename(NameChange::Put(name.to_owned(), Arc::clone(&file)));
            file
        })
    }
}

#[derive(Debug)]
struct Guard(Arc<AtomicBool>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Disk for FakeDisk {
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/fake").join(name)
    }

    fn lock(&self, _: &str) -> io::Result<Option<Box<dyn Debug + Send>>> {
        if self.locked.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        Ok(Some(Box::new(Guard(Arc::clone(&self.locked)))))
    }

    fn length(&self, name: &str) -> io::Result<Option<u64>> {
        Ok(self.file(name).map(|file| file.lock().unwrap().cache.len() as u64))
    }

    fn birth(&self, name: &str) -> io::Result<Option<Birth>> {
        let born_ns = Some(self.inner.lock().unwrap().born);
        Ok(self.file(name).map(|_| Birth { inode: 1, born_ns }))
    }

    fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn StorageBackend>> {
        self.step(false)?;
        let file = if create {
            let file = self.file_or_new(name);
            file.lock().unwrap().change(Change::Length(0));
            file
        } else {
            self.file(name).ok_or(io::ErrorKind::NotFound)?
        };
        {
            // Clean pages are dropped, dirty ones stay: as fadvise does.
            let mut file = file.lock().unwrap();
            let mut cache = file.device.clone();
            file.dirty.iter().for_each(|change| apply(&mut cache, change));
            file.cache = cache;
        }
        Ok(Box::new(FakeBackend { name: name.to_owned(), file, disk: self.clone() }))
    }

    fn publish(&self, from: &str, to: &str, aside: Option<&str>) -> io::Result<()> {
        self.step(false)?;
        if let Some(aside) = aside {
            let old = self.file(to).ok_or(io::ErrorKind::NotFound)?;
            self.rename(NameChange::Put(aside.to_owned(), old));
            self.step(false)?;
        }
        let file = self.file(from).ok_or(io::ErrorKind::NotFound)?;
        self.rename(NameChange::Rename(from.to_owned(), to.to_owned(), file));
        self.sync_names()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.step(false)?;
        Ok(FakeDisk::names(self))
    }

    fn room(&self) -> io::Result<u64> {
        Ok((self.left() as u64).min(1 << 40))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.step(false)?;
        let mut inner = self.inner.lock().unwrap();
        if inner.forgets_names {
            return Ok(());
        }
        inner.durable = inner.files.clone();
        inner.unsynced.clear();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.step(false)?;
        if self.file(name).is_some() {
            self.rename(NameChange::Remove(name.to_owned()));
        }
        Ok(())
    }

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.step(false)?;
        let Some(file) = self.file(name) else { return Ok(None) };
        let file = file.lock().unwrap();
        if !file.unread.is_empty() {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
        Ok(Some(file.cache.clone()))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.step(false)?;
        if bytes.len() > self.left() {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let beside = format!("{name}.new");
        let file = self.file_or_new(&beside);
        file.lock().unwrap().change(Change::Length(0));
        file.lock().unwrap().change(Change::Bytes(0, bytes.to_vec()));
        self.step(false)?;
        file.lock().unwrap().sync();
        self.publish(&beside, name, None)
    }

    fn boot(&self) -> Option<String> {
        self.inner.lock().unwrap().machine.boot.map(|boot| format!("boot-{boot}"))
    }

    fn note_stall(&self, epoch: Option<u64>) -> io::Result<()> {
        self.inner.lock().unwrap().machine.stalled = epoch;
        Ok(())
    }

    fn was_stalled(&self) -> Option<u64> {
        self.inner.lock().unwrap().machine.stalled
    }

    fn append(&self, name: &str, bytes: &[u8], _: u64) -> io::Result<()> {
        let file = self.file_or_new(name);
        let mut file = file.lock().unwrap();
        let end = file.cache.len();
        file.change(Change::Bytes(end, bytes.to_vec()));
        Ok(())
    }
}

#[derive(Debug)]
struct FakeBackend {
    name: String,
    file: Inode,
    disk: FakeDisk,
}

impl FakeBackend {
    fn change(&self, change: Change) -> io::Result<()> {
        let left = self.disk.left();
        let mut file = self.file.lock().unwrap();
        let grows = matches!(change, Change::Length(length) if length > file.cache.len());
        self.disk.step(grows)?;
        if matches!(change, Change::Length(length) if length > file.cache.len().saturating_add(left))
        {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let broken = self.disk.inner.lock().unwrap().broken.clone();
        if broken.iter().any(|broken| self.name.starts_with(broken)) {
            return Err(io::Error::other("a broken file"));
        }
        file.change(change);
        Ok(())
    }
}

impl StorageBackend for FakeBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.lock().unwrap().cache.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let panics = {
            let mut inner = self.disk.inner.lock().unwrap();
            inner.reads += u64::from(self.name == TREE);
            self.name == TREE && inner.panic_at == Some(inner.reads)
        };
        assert!(!panics, "a panic below the store");
        self.disk.step(false)?;
        let end = offset + out.len() as u64;
        let file = self.file.lock().unwrap();
        if file.unread.iter().any(|bytes| bytes.start < end && offset < bytes.end) {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
        let offset = usize::try_from(offset).unwrap();
        let bytes = file.cache.get(offset..offset + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Change::Length(usize::try_from(len).unwrap()))
    }

    fn sync_data(&self) -> io::Result<()> {
        let turn = self.disk.syncing.lock().unwrap();
        let outcome = self.disk.step(false);
        let mut file = self.file.lock().unwrap();
        {
            let mut inner = self.disk.inner.lock().unwrap();
            if inner.crashed {
                return outcome;
            }
            if let Some((name, dice)) = &mut inner.dying
                && self.name.starts_with(&*name)
            {
                let name = "a dying device";
                let Some(dice) = dice else {
                    file.sync();
                    return Err(io::Error::other(name));
                };
                let left = left_of(&file, &mut Some(Dice(dice.roll() | 1)));
                (file.device, file.dirty) = (left.device, Vec::new());
                return Err(io::Error::other(name));
            }
            *inner.syncs.entry(self.name.clone()).or_default() += 1;
        }
        // A failed sync leaves the pages clean and the device without them: the next one succeeds.
        if outcome.is_ok() {
            file.sync();
        } else {
            file.dirty.clear();
        }
        drop(turn);
        outcome
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        let is_left = |bytes: &Range<u64>| bytes.start < offset || end < bytes.end;
        self.file.lock().unwrap().unread.retain(is_left);
        self.change(Change::Bytes(usize::try_from(offset).unwrap(), data.to_vec()))
    }
}
