//! A store without a checkpoint to rely on: made again from the ring and the shelves, or anew.
//!
//! The new tree begins with what could be read of the broken one, under another name, and takes its place
//! as a whole; the broken one is kept aside. Knows no commit.

use std::cmp::Reverse;
use std::sync::Arc;

use redb::Database;

use super::super::aside;
use super::super::book::{Book, Place, Queue, Side};
use super::super::border::StoreError;
use super::super::checkpoint::{checkpoint, for_each};
use super::super::damage::{Trouble, contained, drop_contained};
use super::super::files::{Broken, ReadRecords, TREE, TREE_NEW, open_tree, write};
use super::super::format::{FORMAT_REDB_ALONE, Kind, split_key};
use super::super::load::{load, rescue_letters, rescue_states};
use super::super::record::Meta;
use super::super::replay::{self, Replayed, replay};
use super::super::ring;
use super::super::state::State;
use super::super::unread;
use super::rings::new_ring_id;
use super::{Opening, Tree, list_shelved};

impl Opening<'_> {
    /// What a tree is good for of which a page fails its checksum.
    pub(super) fn damaged_tree(&self, reason: String) -> Result<Tree, StoreError> {
        let (disk, cache) = (&**self.disk, self.options.cache_bytes);
        let Some(broken) = Broken::open(disk, cache) else {
            return Ok(Tree::Broken(None, reason));
        };
        match contained(|| load(&broken.records()?)) {
            Ok(loaded) if loaded.is_later() => Err(self.later(&loaded)),
            Ok(loaded) if loaded.is_format(FORMAT_REDB_ALONE) => {
                drop(broken);
                let tree = open_tree(disk, &self.traffic, cache, TREE, false);
                let tree = tree.map_err(|trouble| self.failed(&trouble))?;
                Ok(Tree::Whole(tree, Box::new(loaded)))
            }
            // A state that rots explains it, and every other record can be read: the tree is copied, because
            // redb must not write to this one.
            Ok(loaded)
                if loaded.state.is_some()
                    && loaded.bad.is_empty()
                    && !loaded.bad_states.is_empty()
                    && loaded.has_all_states() =>
            {
                tracing::error!(reason, "the store's checkpoint is copied record by record");
                let copy = self.copied(&broken).map_err(|trouble| self.failed(&trouble))?;
                Ok(Tree::Whole(copy, Box::new(loaded)))
            }
            _ => Ok(Tree::Broken(Some(broken), reason)),
        }
    }

    /// Puts a copy of a tree in its place, with every record as it is.
    fn copied(&self, tree: &Broken) -> Result<Database, Trouble> {
        let (disk, cache) = (&**self.disk, self.options.cache_bytes);
        let copy = open_tree(disk, &self.traffic, cache, TREE_NEW, true)?;
        write(&copy, |target| {
            let mut outcome = Ok(());
            for_each(&tree.records()?, 0..u8::MAX, |key, value| {
                if outcome.is_ok() {
                    outcome = target.insert(key, value).map(|_| ()).map_err(Trouble::from);
                }
            })?;
            outcome
        })?;
        contained(|| copy.close().map_err(Trouble::from))?;
        let published = disk.publish(TREE_NEW, TREE, None);
        published.map_err(|error| Trouble::from(redb::Error::Io(error)))?;
        open_tree(disk, &self.traffic, cache, TREE, false)
    }

    /// No tree to rely on: everything comes from the ring and the shelves, or is made anew.
    pub(super) fn without_tree(
        &mut self,
        lock: Box<dyn std::fmt::Debug + Send>,
        broken: bool,
        tree: Option<Broken>,
    ) -> Result<(Book, State, Replayed), StoreError> {
        let ring = self.ring()?;
        let found = match &ring {
            Some(ring) => self.scan(&**ring, None, 0)?,
            None => Vec::new(),
        };
        // All frames of one ring have one id; the newest frame knows which.
        let newest = found.iter().max_by_key(|(_, header)| (header.run, header.sequence));
        let newest = newest.map(|(_, header)| *header);
        let (ring, id) = match (ring, newest) {
            (Some(ring), Some(newest)) => (ring, newest.ring),
            (Some(ring), None) if ring::is_written(&*ring) => {
                self.recovery.newest_lost = true;
                let aside = self.ring_aside()?;
                (self.make_ring(Some(&aside))?, new_ring_id())
            }
            (Some(ring), None) if ring.len().is_ok_and(|l| l >= self.options.ring_bytes) => {
                (ring, new_ring_id())
            }
            _ => (self.make_ring(None)?, new_ring_id()),
        };
        let found: Vec<_> = found.into_iter().filter(|(_, header)| header.ring == id).collect();
        let run = newest.map_or(0, |header| header.run).saturating_add(1).min(ring::RUN_MAX);
        let mut book = self.book(lock, None, ring, id, run);
        let mut letters_lost = 0;
        let mut aside = None;
        if broken {
            let records = tree.as_ref().and_then(|tree| tree.records().ok());
            letters_lost = rescue_letters(&mut book, records.as_ref());
            self.rescued = records.map(|records| self.rescue(&mut book, &records)).transpose()?;
            if !drop_contained(tree) {
                tracing::debug!("the broken file did not close cleanly");
            }
            let name = aside::name_for(&**self.disk, TREE);
            aside = Some(name.map_err(|error| self.error(TREE, error))?);
        }
        let mut state = State::new(Meta::new(0, &self.options.gateway, id));
        self.list_shelves(&mut book)?;
        let mut replayed = replay(&mut book, &mut state, found, 0, true);
        self.count_unread(&mut book, &mut replayed, false)?;
        let is_new = book.frames.is_empty() && book.outboxes.is_empty() && book.logs.is_empty();
        self.recovery.created = is_new;
        self.recovery.salvaged = aside.is_some() && !is_new;
        if let Some(name) = &aside {
            self.recovery.quarantined = Some(self.disk.path(name));
        }
        if aside.is_some() {
            book.damage.records += 1;
        }
        for (name, letters) in &book.letters {
            if let Some(sink) = state.sinks.get_mut(name) {
                sink.letters = letters.len() as u64;
                sink.letter_bytes = letters.values().map(|letter| letter.bytes).sum();
            }
        }
        book.damage.records += letters_lost;
        // Some frame said everything, and no frame behind it is missing.
        let knows_all = state.meta.epoch > 0;
        replayed.broken += u64::from(!is_new && !knows_all);
        self.aside = aside;
        if is_new {
            state.meta.epoch = self.next_epoch(state.meta.epoch)?;
        }
        Ok((book, state, replayed))
    }

    /// Begins the new tree with the states of the broken one.
    fn rescue(&self, book: &mut Book, broken: &ReadRecords) -> Result<Database, StoreError> {
        let cache = self.options.cache_bytes;
        let rescued = open_tree(&**self.disk, &self.traffic, cache, TREE_NEW, true)
            .and_then(|tree| rescue_states(book, broken, &tree).map(|()| tree));
        rescued.map_err(|trouble| self.failed(&trouble))
    }

    fn list_shelves(&self, book: &mut Book) -> Result<(), StoreError> {
        let numbers = book.files.shelves.in_folder().map_err(|e| self.error(TREE, e))?;
        let mut found = Vec::new();
        for number in numbers {
            let mut lost = |_: u64, error: &std::io::Error| {
                self.options.impatient && unread::is_of_device(error)
            };
            let listed = book.files.shelves.entries(number, &mut lost, |at, entry| {
                let place = Place::Shelf { file: number, at };
                let piece = split_key(entry.key).zip(entry.body()).and_then(|(key, body)| {
                    let (kind, name, first) = key;
                    let side = match kind {
                        Kind::Outbox => Side::Outbox,
                        Kind::Log => Side::Log,
                        _ => return None,
                    };
                    let piece = replay::piece(side, first, entry.length, body, place)?;
                    Some((side, Arc::<str>::from(name), piece))
                });
                found.extend(piece);
            });
            listed.map_err(|error| self.error(TREE, error))?;
        }
        // A fold that a crash cut off was made again: of two pieces with the same rows one counts.
        found.sort_by_key(|(_, _, piece)| (piece.first, Reverse(piece.rows)));
        for (side, name, piece) in found {
            let end = book.queues(side).get(&name).map_or(0, Queue::end);
            if piece.first >= end {
                list_shelved(book, side, name, piece);
            }
        }
        Ok(())
    }

    /// Makes a tree under another name, with the first checkpoint in it, and puts it in place.
    pub(super) fn make_tree(
        &mut self,
        book: &mut Book,
        state: &mut State,
    ) -> Result<(), StoreError> {
        let disk = &**self.disk;
        let cache = self.options.cache_bytes;
        let begun = self
            .rescued
            .take()
            .map_or_else(|| open_tree(disk, &self.traffic, cache, TREE_NEW, true), Ok);
        let made = begun.and_then(|tree| {
            book.files.tree = Some(tree);
            checkpoint(book, state, false)?;
            match book.files.tree.take() {
                Some(tree) => contained(|| tree.close().map_err(Trouble::from)),
                None => Ok(()),
            }
        });
        made.map_err(|trouble| self.failed(&trouble))?;
        disk.publish(TREE_NEW, TREE, self.aside.as_deref())
            .map_err(|error| self.error(TREE, error))?;
        book.files.reopen_tree().map_err(|trouble| self.failed(&trouble))
    }
}
