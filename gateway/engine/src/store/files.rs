//! The files of an open store: ring, shelves, and the tree that holds the checkpoint.

use std::io;
use std::sync::Arc;

use redb::{
    Builder, Database, ReadOnlyDatabase, ReadOnlyTable, ReadableDatabase, StorageBackend, Table,
    TableDefinition,
};

use super::damage::{Trouble, contained, drop_contained};
use super::disk::{Counted, Disk, Traffic};
use super::overlay::Layer;
use super::ring::read_blocks;
use super::shelf::Shelves;
use super::unread::is_of_device;

/// The checkpoint's file.
pub(super) const TREE: &str = "store.redb";
/// Where a new checkpoint file is made.
pub(super) const TREE_NEW: &str = "store.redb.new";
/// The ring's file.
pub(super) const RING: &str = "store.ring";
/// Where a new ring is made.
pub(super) const RING_NEW: &str = "store.ring.new";
/// Bytes that are given back when the disk is full, so that the checkpoint has room to let go.
pub(super) const RESERVE: &str = "store.reserve";

/// The one tree.
pub(super) const RECORDS: TableDefinition<'static, &'static [u8], &'static [u8]> =
    TableDefinition::new("records");

/// The tree, open for reading.
pub(super) type ReadRecords = ReadOnlyTable<&'static [u8], &'static [u8]>;
/// The tree, open for writing.
pub(super) type Records<'txn> = Table<'txn, &'static [u8], &'static [u8]>;

/// The folder, locked, and what is open in it.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) traffic: Arc<Traffic>,
    /// Shared with the thread that writes frames to it.
    pub(super) ring: Arc<dyn StorageBackend>,
    pub(super) ring_length: u64,
    pub(super) ring_id: u64,
    /// The number of this process in the frames it writes.
    pub(super) run: u32,
    pub(super) shelves: Shelves,
    pub(super) tree: Option<Database>,
    pub(super) cache_bytes: usize,
    /// Bytes of damaged files that are kept aside.
    pub(super) aside_bytes: u64,
    pub(super) _lock: Box<dyn std::fmt::Debug + Send>,
}

/// Opens a file for the tree; with `create`, an empty one.
pub(super) fn open_tree(
    disk: &dyn Disk,
    traffic: &Arc<Traffic>,
    cache_bytes: usize,
    name: &str,
    create: bool,
) -> Result<Database, Trouble> {
    contained(|| {
        let inner = disk.open(name, create).map_err(redb::Error::Io)?;
        let backend = Counted { inner, traffic: Arc::clone(traffic), is_tree: true };
        Ok(Builder::new().set_cache_size(cache_bytes).create_with_backend(backend)?)
    })
}

/// Verifies the checksum of every page of the tree, and changes nothing: what redb writes for it goes to a
/// layer in memory. redb trusts pages that it reads: over a damaged one a write may panic twice at once,
/// which ends the process, and each start after it would do the same.
pub(super) fn verify_tree(disk: &dyn Disk, cache_bytes: usize, name: &str) -> Result<(), Trouble> {
    contained(|| {
        let layer = disk.open(name, false).and_then(Layer::over).map_err(redb::Error::Io)?;
        let mut builder = Builder::new();
        builder.set_cache_size(cache_bytes).set_check_integrity_on_open(true);
        drop(builder.create_with_backend(layer)?);
        Ok(())
    })
}

/// A tree that is damaged, to read what can be read of it.
pub(super) enum Broken {
    /// As it lies in the file. Closing a [`Database`] would write over its pages.
    AsItIs(ReadOnlyDatabase),
    /// As redb repairs it over a layer, or where it could not be opened for reading only.
    Repaired(Repaired),
    /// Its pages are sound, and records are not.
    Sound(Database),
}

impl Broken {
    /// Opens the file and changes nothing in it; `None` where nothing can be read.
    pub(super) fn open(disk: &dyn Disk, cache_bytes: usize) -> Option<Broken> {
        let mut builder = Builder::new();
        builder.set_cache_size(cache_bytes);
        let layer = || disk.open(TREE, false).and_then(Layer::over).map_err(redb::Error::Io);
        // One that was not closed needs repair, which this refuses.
        let opened = contained(|| Ok(builder.open_read_only_with_backend(layer()?)?));
        let opened = opened.map(Broken::AsItIs).or_else(|_| {
            contained(|| {
                let layer = layer()?;
                // Nothing is cached, so that each read asks the layer: see `Repaired`.
                let tree = builder.set_cache_size(0).create_with_backend(layer.clone())?;
                Ok(Broken::Repaired(Repaired { tree: Some(tree), layer }))
            })
        });
        opened
            .inspect_err(|trouble| tracing::error!(reason = trouble.text(), "it cannot be read"))
            .ok()
    }

    /// What it holds.
    pub(super) fn records(&self) -> Result<ReadRecords, Trouble> {
        contained(|| match self {
            Broken::AsItIs(tree) => Ok(tree.begin_read()?.open_table(RECORDS)?),
            Broken::Repaired(Repaired { tree, .. }) => match tree {
                Some(tree) => records(tree),
                None => Err(Trouble::Io("it is being closed".to_owned())),
            },
            Broken::Sound(tree) => records(tree),
        })
    }
}

/// A damaged tree over a layer. Closing it as it is could panic twice at once, over pages that redb would change
/// for it. So the layer lets go of everything first, and a read fails: redb then closes without a look at a page.
pub(super) struct Repaired {
    tree: Option<Database>,
    layer: Layer,
}

impl Drop for Repaired {
    fn drop(&mut self) {
        self.layer.let_go();
        let Some(tree) = self.tree.take() else { return };
        if contained(|| records(&tree)).is_ok() {
            // It would look at pages.
            tracing::debug!("what the broken file had in memory is given up");
            std::mem::forget(tree);
        } else if !drop_contained(tree) {
            tracing::debug!("the broken file did not close cleanly");
        }
    }
}

/// Opens the ring.
pub(super) fn open_ring(
    disk: &dyn Disk,
    traffic: &Arc<Traffic>,
) -> io::Result<Arc<dyn StorageBackend>> {
    let inner = disk.open(RING, false)?;
    Ok(Arc::new(Counted { inner, traffic: Arc::clone(traffic), is_tree: false }))
}

impl Files {
    /// Forgets every open file that is read from, so that the next read asks the device.
    pub(super) fn forget(&mut self) {
        self.shelves.forget();
        if let Err(error) = self.reopen_ring() {
            tracing::debug!(%error, "the ring cannot be opened again");
        }
    }

    /// Opens the ring anew, on what the device holds.
    pub(super) fn reopen_ring(&mut self) -> io::Result<()> {
        self.ring = open_ring(&*self.disk, &self.traffic)?;
        Ok(())
    }

    /// Opens the tree anew: after an error redb writes no more.
    pub(super) fn reopen_tree(&mut self) -> Result<(), Trouble> {
        if let Some(tree) = self.tree.take()
            && !drop_contained(tree)
        {
            tracing::debug!("the failed checkpoint file did not close cleanly");
        }
        let tree = open_tree(&*self.disk, &self.traffic, self.cache_bytes, TREE, false)?;
        self.tree = Some(tree);
        Ok(())
    }

    /// Why a part of the tree cannot be read, where one cannot.
    pub(super) fn unread_tree(&self) -> Option<io::Error> {
        unread_part(&*self.disk, TREE)
    }

    /// The tree as of the last checkpoint.
    pub(super) fn records(&self) -> Result<ReadRecords, Trouble> {
        match &self.tree {
            Some(tree) => records(tree),
            None => Err(Trouble::Io("the checkpoint is not open".to_owned())),
        }
    }
}

/// Why the device does not answer for a part of a file, where it does not. Reads the whole file.
pub(super) fn unread_part(disk: &dyn Disk, name: &str) -> Option<io::Error> {
    let mut why = None;
    let read = disk.open(name, false).and_then(|file| {
        let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(0)];
        read_blocks(&*file, 0, &mut bytes, &mut |_, error| {
            why = is_of_device(error).then(|| copy_of(error));
            why.is_none()
        })
    });
    why.or_else(|| read.err().filter(is_of_device))
}

fn copy_of(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(
        || io::Error::new(error.kind(), error.to_string()),
        io::Error::from_raw_os_error,
    )
}

/// The tree as of the last transaction.
pub(super) fn records(tree: &Database) -> Result<ReadRecords, Trouble> {
    Ok(tree.begin_read()?.open_table(RECORDS)?)
}

/// Runs one durable transaction.
pub(super) fn write<T>(
    tree: &Database,
    work: impl FnOnce(&mut Records<'_>) -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    contained(|| {
        let txn = tree.begin_write()?;
        let mut records = txn.open_table(RECORDS)?;
        let result = work(&mut records)?;
        drop(records);
        txn.commit()?;
        Ok(result)
    })
}
