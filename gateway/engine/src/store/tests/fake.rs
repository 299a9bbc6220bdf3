//! A disk that keeps "on the device" and "written, not synced" apart, and fails when told.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use redb::StorageBackend;

use crate::store::disk::Disk;
use crate::store::identity::Birth;

/// A small generator (xorshift64*), so that a seed names a run.
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

#[derive(Debug, Clone)]
enum Change {
    Length(usize),
    Bytes(usize, Vec<u8>),
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Length(length) => bytes.resize(*length, 0),
        Change::Bytes(offset, data) => {
            let end = offset + data.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*offset..end].copy_from_slice(data);
        }
    }
}

#[derive(Debug, Default, Clone)]
struct FakeFile {
    /// What a power cut leaves.
    device: Vec<u8>,
    /// What is written and not synced, in order.
    dirty: Vec<Change>,
    /// What a read sees.
    cache: Vec<u8>,
}

#[derive(Debug, Default)]
struct Inner {
    files: BTreeMap<String, Arc<Mutex<FakeFile>>>,
    operations: u64,
    crash_at: Option<u64>,
    fail_at: Option<(u64, io::ErrorKind)>,
    full: bool,
    /// Bytes that all files may have together.
    capacity: Option<usize>,
    /// Beginnings of the names of files that take no writes.
    broken: Vec<String>,
    crashed: bool,
    /// Syncs of each file that succeeded.
    syncs: BTreeMap<String, u64>,
    /// When the folder's files were made.
    born: u128,
    /// Told when it crashes.
    death: Arc<tokio::sync::Notify>,
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
        // Not held while files are: a store that has not noticed yet holds one and asks for it.
        let files = self.inner.lock().unwrap().files.clone();
        let mut dice = seed.map(|seed| Dice(seed | 1));
        let files = files.iter().map(|(name, file)| {
            let file = file.lock().unwrap();
            let mut device = file.device.clone();
            for change in &file.dirty {
                let Some(dice) = &mut dice else { continue };
                match change {
                    Change::Bytes(offset, data) => {
                        for (index, sector) in data.chunks(512).enumerate() {
                            if dice.roll() & 1 == 1 {
                                let at = offset + index * 512;
                                apply(&mut device, &Change::Bytes(at, sector.to_vec()));
                            }
                        }
                    }
                    Change::Length(_) => apply(&mut device, change),
                }
            }
            let file = FakeFile { cache: device.clone(), device, dirty: Vec::new() };
            (name.clone(), Arc::new(Mutex::new(file)))
        });
        let born = self.inner.lock().unwrap().born;
        let inner = Inner { files: files.collect(), born, ..Inner::default() };
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
        self.put(name, FakeFile { device, cache, dirty: Vec::new() });
    }

    /// Removes a file from the device.
    pub(super) fn forget(&self, name: &str) {
        self.inner.lock().unwrap().files.remove(name).unwrap();
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

    fn file(&self, name: &str) -> Option<Arc<Mutex<FakeFile>>> {
        self.inner.lock().unwrap().files.get(name).cloned()
    }

    fn put(&self, name: &str, file: FakeFile) {
        self.inner.lock().unwrap().files.insert(name.to_owned(), Arc::new(Mutex::new(file)));
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
        if create {
            self.put(name, FakeFile::default());
        }
        let file = self.file(name).ok_or(io::ErrorKind::NotFound)?;
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
        let mut inner = self.inner.lock().unwrap();
        if let Some(aside) = aside {
            let old = inner.files[to].clone();
            inner.files.insert(aside.to_owned(), old);
        }
        let file = inner.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        inner.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.step(false)?;
        Ok(FakeDisk::names(self))
    }

    fn room(&self) -> io::Result<u64> {
        Ok((self.left() as u64).min(1 << 40))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.step(false)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.step(false)?;
        self.inner.lock().unwrap().files.remove(name);
        Ok(())
    }

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.step(false)?;
        Ok(self.file(name).map(|file| file.lock().unwrap().cache.clone()))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.step(false)?;
        if bytes.len() > self.left() {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let (device, cache) = (bytes.to_vec(), bytes.to_vec());
        self.put(name, FakeFile { device, cache, dirty: Vec::new() });
        Ok(())
    }

    fn append(&self, name: &str, bytes: &[u8], _: u64) -> io::Result<()> {
        let mut all = self.file(name).map_or(Vec::new(), |f| f.lock().unwrap().cache.clone());
        all.extend_from_slice(bytes);
        self.put(name, FakeFile { device: all.clone(), cache: all, dirty: Vec::new() });
        Ok(())
    }
}

#[derive(Debug)]
struct FakeBackend {
    name: String,
    file: Arc<Mutex<FakeFile>>,
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
        apply(&mut file.cache, &change);
        file.dirty.push(change);
        Ok(())
    }
}

impl StorageBackend for FakeBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.lock().unwrap().cache.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.step(false)?;
        let file = self.file.lock().unwrap();
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
            *inner.syncs.entry(self.name.clone()).or_default() += 1;
        }
        // A failed sync leaves the pages clean and the device without them: the next one succeeds.
        let dirty = std::mem::take(&mut file.dirty);
        if outcome.is_ok() {
            for change in &dirty {
                apply(&mut file.device, change);
            }
        }
        drop(turn);
        outcome
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Change::Bytes(usize::try_from(offset).unwrap(), data.to_vec()))
    }
}
