//! A folder that is only looked at: what is written to it stays in memory and goes with it.
//!
//! A store opens on it as on any disk, with whatever recovery that takes, and not a byte, name or time in
//! the folder changes: the next start finds what it would have found. The lock of the folder is shared with
//! others who look, where there is one, so that nobody writes meanwhile. Memory is what recovery writes: of a store that
//! was closed nothing but a few blocks. Knows no record.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use redb::StorageBackend;

use super::disk::{Disk, Folder};
use super::identity::Birth;
use super::inbox::lock;

/// Bytes that are copied when one of them is written.
const BLOCK: u64 = 4_096;

/// The folder, and what would have been written to it.
#[derive(Debug)]
pub(super) struct Overlay {
    folder: Folder,
    /// What became of files; `None` where one was removed.
    files: Mutex<BTreeMap<String, Option<Layer>>>,
}

impl Overlay {
    pub(super) fn new(path: PathBuf) -> Self {
        Overlay { folder: Folder::new(path), files: Mutex::default() }
    }

    /// A file as it would be now.
    fn layer(&self, name: &str) -> io::Result<Option<Layer>> {
        let mut files = lock(&self.files);
        if let Some(layer) = files.get(name) {
            return Ok(layer.clone());
        }
        let layer = match File::open(self.folder.path(name)) {
            Ok(file) => {
                let length = file.metadata()?.len();
                Layer::new(Some((Box::new(file), length)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        files.insert(name.to_owned(), Some(layer.clone()));
        Ok(Some(layer))
    }

    fn put(&self, name: &str, layer: Option<Layer>) {
        lock(&self.files).insert(name.to_owned(), layer);
    }
}

impl Disk for Overlay {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Debug + Send>>> {
        match File::open(self.path(name)) {
            Ok(file) => match file.try_lock_shared() {
                Ok(()) => Ok(Some(Box::new(file))),
                Err(TryLockError::WouldBlock) => Ok(None),
                Err(TryLockError::Error(error)) => Err(error),
            },
            // Nobody has ever run on it here.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(Box::new(()))),
            Err(error) => Err(error),
        }
    }

    fn length(&self, name: &str) -> io::Result<Option<u64>> {
        self.layer(name)?.map(|layer| layer.len()).transpose()
    }

    fn birth(&self, name: &str) -> io::Result<Option<Birth>> {
        self.folder.birth(name)
    }

    fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn StorageBackend>> {
        if create {
            self.put(name, Some(Layer::new(None)));
        }
        let layer = self.layer(name)?.ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(layer))
    }

    fn publish(&self, from: &str, to: &str, aside: Option<&str>) -> io::Result<()> {
        let new = self.layer(from)?.ok_or(io::ErrorKind::NotFound)?;
        if let Some(aside) = aside {
            let old = self.layer(to)?;
            self.put(aside, old);
        }
        self.put(to, Some(new));
        self.put(from, None);
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names: BTreeSet<String> = match self.folder.names() {
            Ok(names) => names.into_iter().collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => return Err(error),
        };
        for (name, layer) in &*lock(&self.files) {
            if layer.is_some() {
                names.insert(name.clone());
            } else {
                names.remove(name);
            }
        }
        Ok(names.into_iter().collect())
    }

    fn room(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.put(name, None);
        Ok(())
    }

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let Some(layer) = self.layer(name)? else {
            return Ok(None);
        };
        let length = usize::try_from(layer.len()?).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        layer.read(0, &mut bytes)?;
        Ok(Some(bytes))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let layer = Layer::new(None);
        layer.append(bytes)?;
        self.put(name, Some(layer));
        Ok(())
    }

    fn boot(&self) -> Option<String> {
        self.folder.boot()
    }

    fn note_stall(&self, _: Option<u64>) -> io::Result<()> {
        Ok(())
    }

    fn was_stalled(&self) -> Option<u64> {
        self.folder.was_stalled()
    }

    fn append(&self, name: &str, bytes: &[u8], bytes_max: u64) -> io::Result<()> {
        let layer = self.layer(name)?.unwrap_or_else(|| Layer::new(None));
        if layer.len()?.saturating_add(bytes.len() as u64) > bytes_max {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        layer.append(bytes)?;
        self.put(name, Some(layer));
        Ok(())
    }
}

/// What lies below a layer, and is only read.
trait Below: Debug + Send {
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

impl Below for File {
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(out, offset)
    }
}

impl Below for Box<dyn StorageBackend> {
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        (**self).read(offset, out)
    }
}

/// A file and the blocks of it that were written. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct Layer(Arc<Mutex<Blocks>>);

#[derive(Debug)]
struct Blocks {
    /// The file below, of which so many bytes still count.
    below: Option<(Box<dyn Below>, u64)>,
    length: u64,
    written: BTreeMap<u64, Vec<u8>>,
}

impl Layer {
    /// Over a file that is open already: what is written to the layer goes with it.
    pub(super) fn over(file: Box<dyn StorageBackend>) -> io::Result<Self> {
        let length = file.len()?;
        Ok(Self::new(Some((Box::new(file), length))))
    }

    fn new(below: Option<(Box<dyn Below>, u64)>) -> Self {
        let length = below.as_ref().map_or(0, |(_, length)| *length);
        Layer(Arc::new(Mutex::new(Blocks { below, length, written: BTreeMap::new() })))
    }

    /// Closes the file below and gives up what was written: of an empty file every read fails.
    pub(super) fn let_go(&self) {
        let nothing = Blocks { below: None, length: 0, written: BTreeMap::new() };
        let gone = std::mem::replace(&mut *lock(&self.0), nothing);
        drop(gone);
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut blocks = lock(&self.0);
        let end = blocks.length;
        blocks.write(end, bytes)
    }
}

impl Blocks {
    /// Fills `out` with what lies at `offset`, block by block.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let (number, within) = (at / BLOCK, usize::try_from(at % BLOCK).unwrap_or(0));
            let block = usize::try_from(BLOCK).unwrap_or(usize::MAX);
            let (part, next) = rest.split_at_mut((block - within).min(rest.len()));
            match self.written.get(&number) {
                Some(bytes) => part.copy_from_slice(&bytes[within..within + part.len()]),
                None => self.read_below(at, part)?,
            }
            at += part.len() as u64;
            rest = next;
        }
        Ok(())
    }

    /// The same from the file below; zeros behind its end.
    fn read_below(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        out.fill(0);
        let Some((file, length)) = &self.below else {
            return Ok(());
        };
        let there = length.saturating_sub(offset).min(out.len() as u64);
        let there = usize::try_from(there).unwrap_or(0);
        file.read(offset, &mut out[..there])
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let block = usize::try_from(BLOCK).unwrap_or(usize::MAX);
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let (number, within) = (at / BLOCK, usize::try_from(at % BLOCK).unwrap_or(0));
            let (part, next) = rest.split_at((block - within).min(rest.len()));
            if !self.written.contains_key(&number) {
                let mut bytes = vec![0; block];
                self.read_below(number * BLOCK, &mut bytes)?;
                self.written.insert(number, bytes);
            }
            if let Some(bytes) = self.written.get_mut(&number) {
                bytes[within..within + part.len()].copy_from_slice(part);
            }
            at += part.len() as u64;
            rest = next;
        }
        self.length = self.length.max(offset + data.len() as u64);
        Ok(())
    }

    fn set_len(&mut self, length: u64) {
        if length < self.length {
            // What is cut off comes back as zeros.
            let first_gone = length.div_ceil(BLOCK);
            self.written.retain(|number, _| *number < first_gone);
            let within = usize::try_from(length % BLOCK).unwrap_or(0);
            if let Some(last) = self.written.get_mut(&(length / BLOCK)) {
                last[within..].fill(0);
            }
            if let Some((_, below)) = &mut self.below {
                *below = (*below).min(length);
            }
        }
        self.length = length;
    }
}

impl StorageBackend for Layer {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.0).length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let blocks = lock(&self.0);
        if offset.saturating_add(out.len() as u64) > blocks.length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        blocks.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        lock(&self.0).set_len(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        lock(&self.0).write(offset, data)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// 10,000 bytes, each the number of its place modulo 251.
    fn below() -> (Layer, Vec<u8>) {
        let bytes: Vec<u8> = (0..10_000_u32).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let path = std::env::temp_dir().join(format!("tidegate-overlay-{}", std::process::id()));
        {
            use std::io::Write;
            File::create(&path).unwrap().write_all(&bytes).unwrap();
        }
        let file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        (Layer::new(Some((Box::new(file), 10_000))), bytes)
    }

    fn all(layer: &Layer) -> Vec<u8> {
        let mut bytes = vec![9; usize::try_from(layer.len().unwrap()).unwrap()];
        layer.read(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_is_written_is_seen_and_what_is_cut_off_is_zero() {
        let (layer, mut model) = below();
        assert_eq!(all(&layer), model);
        // Across two borders of blocks, and behind the end.
        layer.write(4_000, &[7; 5_000]).unwrap();
        model[4_000..9_000].fill(7);
        assert_eq!(all(&layer), model);
        layer.write(10_100, &[8; 10]).unwrap();
        model.resize(10_100, 0);
        model.extend([8; 10]);
        assert_eq!(all(&layer), model);
        for cut in [8_500, 4_096, 100] {
            layer.set_len(cut).unwrap();
            layer.set_len(12_000).unwrap();
            model.truncate(usize::try_from(cut).unwrap());
            model.resize(12_000, 0);
            assert_eq!(all(&layer), model, "cut at {cut}");
        }
        let behind = layer.read(11_999, &mut [0; 2]).unwrap_err();
        assert_eq!(behind.kind(), io::ErrorKind::UnexpectedEof);
    }
}
