//! What a medium knows of files and of names, and what a power cut leaves of each.
//!
//! Bytes are durable when their file was synced, names when the folder was. Knows no operation and no
//! failure: `fake` has those.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::fake::Dice;

#[derive(Debug, Clone)]
pub(super) enum Change {
    Length(usize),
    Bytes(usize, Vec<u8>),
}

pub(super) fn apply(bytes: &mut Vec<u8>, change: &Change) {
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
pub(super) struct FakeFile {
    /// What a power cut leaves.
    pub(super) device: Vec<u8>,
    /// What is written and not synced, in order.
    pub(super) dirty: Vec<Change>,
    /// What a read sees.
    pub(super) cache: Vec<u8>,
    /// Bytes of which a read gets no answer.
    pub(super) unread: Vec<Range<u64>>,
}

impl FakeFile {
    pub(super) fn change(&mut self, change: Change) {
        apply(&mut self.cache, &change);
        self.dirty.push(change);
    }

    pub(super) fn sync(&mut self) {
        for change in std::mem::take(&mut self.dirty) {
            apply(&mut self.device, &change);
        }
    }
}

/// A file without a name, as an inode is.
pub(super) type Inode = Arc<Mutex<FakeFile>>;
pub(super) type Names = BTreeMap<String, Inode>;

/// What became of names.
#[derive(Debug, Clone)]
pub(super) enum NameChange {
    /// The name is this file's: it was made, or linked.
    Put(String, Inode),
    /// The first name is gone, and the second one is this file's.
    Rename(String, String, Inode),
    Remove(String),
}

pub(super) fn apply_name(names: &mut Names, change: &NameChange) {
    match change {
        NameChange::Put(name, inode) => drop(names.insert(name.clone(), Arc::clone(inode))),
        NameChange::Rename(from, to, inode) => {
            names.remove(from);
            names.insert(to.clone(), Arc::clone(inode));
        }
        NameChange::Remove(name) => drop(names.remove(name)),
    }
}

/// A file as a power cut leaves it: with `dice`, any part of what was not synced, torn at 512 bytes.
pub(super) fn left_of(file: &FakeFile, dice: &mut Option<Dice>) -> FakeFile {
    let mut device = file.device.clone();
    for change in &file.dirty {
        let Some(dice) = dice else { continue };
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
    FakeFile { cache: device.clone(), device, ..FakeFile::default() }
}
