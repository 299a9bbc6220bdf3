//! From whatever lies in the folder to a store that works.
//!
//! New files are made under another name, synced, renamed, and the folder synced, so that no crash
//! leaves half a file. The tree says what was known at the last checkpoint, the ring what came after.
//! A tree that cannot be opened, or of which any record fails its check, is moved aside and made again
//! from the ring and the shelves, which hold everything but old dead letters. Where progress may be
//! lost the epoch grows, so that no id is given twice. `rings` finds the ring, `salvage` does without a
//! tree. Knows no queue and no commit.

mod epoch;
mod rings;
mod salvage;

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redb::{Database, StorageBackend};

use super::aside;
use super::book::{Book, Piece, Place, Side};
use super::border::{Layout, Recovery, StoreError, StoreOptions};
use super::checkpoint::checkpoint;
use super::damage::{Damage, Trouble, contained};
use super::disk::{Disk, Traffic};
use super::files::{
    Broken, Files, RESERVE, RING, RING_NEW, TREE, TREE_NEW, open_tree, records, unread_part,
    verify_tree,
};
use super::format::{FORMAT, FORMAT_REDB_ALONE, FORMAT_USUAL, Kind, NAME_BYTES_MAX, key};
use super::load::{Loaded, load};
use super::reconcile::{count_missing, is_needed, prune, rebuild, take_in, unclaimed};
use super::replay::{Replayed, replay};
use super::ring::{self, BLOCK};
use super::shelf::{Shelves, is_no_room};
use super::state::State;
use super::unread::Unread;
use super::{states, upgrade};

pub(super) use rings::keep_reserve;
use rings::new_ring_id;

const LOCK: &str = "store.lock";
const EPOCH: &str = "store.epoch";

/// A store that works, and what it took.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) book: Book,
    pub(super) state: State,
    pub(super) recovery: Recovery,
}

/// The folder while it is being opened.
struct Opening<'a> {
    disk: &'a Arc<dyn Disk>,
    traffic: Arc<Traffic>,
    options: &'a StoreOptions,
    layout: &'a Layout,
    recovery: Recovery,
    /// The name that a broken tree gets when a new one takes its place.
    aside: Option<String>,
    /// The new tree, where states of the broken one were carried over.
    rescued: Option<Database>,
    /// States of the tree that failed their check.
    bad_states: Vec<(Arc<str>, u64)>,
    /// The ring is new.
    made_ring: Cell<bool>,
    /// Blocks of the ring that could not be read.
    unread_blocks: u64,
}

/// Opens, repairs or makes the store. Where the disk has no room for that, files that were kept aside give way,
/// then the reserve.
pub(super) fn open(
    disk: &Arc<dyn Disk>,
    options: &StoreOptions,
    layout: &Layout,
) -> Result<Opened, StoreError> {
    check_names(layout)?;
    // What this start moves aside itself stays: it is the only copy of it.
    let mut aside = aside::names(&**disk);
    loop {
        let opened = open_as_it_is(disk, options, layout);
        let is_full = matches!(&opened, Err(StoreError::Io { source, .. }) if is_no_room(source));
        if !is_full || !give_way(&**disk, &mut aside) {
            return opened;
        }
    }
}

/// Removes what nobody needs for the store to open, the first of `aside` first; `false` where there is nothing of it.
fn give_way(disk: &dyn Disk, aside: &mut VecDeque<String>) -> bool {
    while let Some(name) = aside.pop_front() {
        if disk.remove(&name).is_ok() {
            tracing::warn!(name, "the disk is full: a damaged file is removed to open the store");
            return true;
        }
    }
    let gives =
        disk.length(RESERVE).is_ok_and(|length| length.is_some()) && disk.remove(RESERVE).is_ok();
    if gives {
        tracing::warn!("the disk is full: the store's reserve is given up to open it");
    }
    gives
}

fn open_as_it_is(
    disk: &Arc<dyn Disk>,
    options: &StoreOptions,
    layout: &Layout,
) -> Result<Opened, StoreError> {
    let lock = disk.lock(LOCK).map_err(|error| io_error(&**disk, LOCK, error))?;
    let Some(lock) = lock else {
        return Err(StoreError::Locked { path: disk.path(LOCK) });
    };
    let mut opening = Opening {
        disk,
        traffic: Arc::default(),
        options,
        layout,
        recovery: Recovery::default(),
        aside: None,
        rescued: None,
        bad_states: Vec::new(),
        made_ring: Cell::new(false),
        unread_blocks: 0,
    };
    // Names that a process gave, and was killed before it synced them, are relied on from here.
    disk.sync_names().map_err(|error| io_error(&**disk, LOCK, error))?;
    for name in [TREE_NEW, RING_NEW] {
        disk.remove(name).map_err(|error| io_error(&**disk, name, error))?;
    }
    let (mut book, mut state, replayed) = opening.gather(lock)?;
    opening.settle(&mut book, &mut state, &replayed)?;
    let mut recovery = opening.recovery;
    recovery.corrupt_records = book.damage.records;
    recovery.unclaimed = unclaimed(&state, layout);
    // Making a ring is no part of what commits cost.
    book.files.traffic.written.store(0, Ordering::Relaxed);
    Ok(Opened { book, state, recovery })
}

pub(super) fn check_names(layout: &Layout) -> Result<(), StoreError> {
    let tables = layout.tables.iter().map(|table| &table.name);
    let streams = layout.tables.iter().flat_map(|table| &table.readers);
    let names = tables.chain(streams).chain(layout.sinks.iter().map(|sink| &sink.name));
    for name in names {
        if name.len() > NAME_BYTES_MAX {
            return Err(StoreError::Unknown(format!("name of {} bytes", name.len())));
        }
    }
    Ok(())
}

fn io_error(disk: &dyn Disk, name: &str, error: io::Error) -> StoreError {
    StoreError::Io { path: disk.path(name), source: Arc::new(error) }
}

/// What the tree was found to be.
enum Tree {
    /// There is none.
    None,
    /// It opened, and every record passed its check.
    Whole(Database, Box<Loaded>),
    /// It cannot be relied on.
    Broken(Option<Broken>, String),
}

impl Opening<'_> {
    fn error(&self, name: &str, error: io::Error) -> StoreError {
        io_error(&**self.disk, name, error)
    }

    fn failed(&self, trouble: &Trouble) -> StoreError {
        let (path, reason) = (self.disk.path(TREE), trouble.text().to_owned());
        if matches!(trouble, Trouble::Full(_)) {
            let source = Arc::new(io::Error::new(io::ErrorKind::StorageFull, reason));
            return StoreError::Io { path, source };
        }
        if matches!(trouble, Trouble::Io(_) | Trouble::Unread(_)) {
            return StoreError::Unanswered { path, reason };
        }
        StoreError::Unreadable { path, reason }
    }

    /// Opens what is there, or makes it, and takes up the ring.
    fn gather(
        &mut self,
        lock: Box<dyn std::fmt::Debug + Send>,
    ) -> Result<(Book, State, Replayed), StoreError> {
        match self.tree()? {
            Tree::Whole(tree, loaded) => {
                let Some(state) = loaded.state.clone() else {
                    return Err(self.failed(&Trouble::Damaged("no meta record".to_owned())));
                };
                if state.meta.format == FORMAT_REDB_ALONE {
                    self.recovery.upgraded_from = Some(FORMAT_REDB_ALONE);
                    let ring = self.make_ring(None)?;
                    let mut book = self.book(lock, Some(tree), ring, new_ring_id(), 1);
                    // Over a page that is damaged redb may panic.
                    let state = contained(|| upgrade::upgrade(&mut book, state))
                        .map_err(|trouble| self.failed(&trouble))?;
                    for (sink, position, letter) in loaded.letters {
                        book.letters.entry(sink).or_default().insert(position, letter);
                    }
                    for (key, value) in &loaded.bad {
                        book.damage.bad(key, value);
                    }
                    let broken = loaded.bad.len() as u64;
                    return Ok((book, state, Replayed { broken, ..Replayed::default() }));
                }
                self.take_up(lock, tree, *loaded, state)
            }
            Tree::None => self.without_tree(lock, false, None),
            Tree::Broken(tree, reason) => {
                tracing::error!(reason, "the store's checkpoint is broken; making it again");
                self.without_tree(lock, true, tree)
            }
        }
    }

    fn tree(&mut self) -> Result<Tree, StoreError> {
        let disk = &**self.disk;
        let length = disk.length(TREE).map_err(|error| io_error(disk, TREE, error))?;
        let Some(length) = length else {
            return Ok(Tree::None);
        };
        // An empty file would be taken for a new one by redb; ours are never published empty.
        if length == 0 {
            return Ok(Tree::Broken(None, "the file is empty".to_owned()));
        }
        let cache = self.options.cache_bytes;
        match verify_tree(disk, cache, TREE) {
            Ok(()) => {}
            Err(Trouble::Damaged(reason)) => return self.damaged_tree(reason),
            Err(trouble) if self.gives_up_tree() => {
                return self.damaged_tree(trouble.text().to_owned());
            }
            Err(trouble) => return Err(self.failed(&trouble)),
        }
        let tree = match open_tree(disk, &self.traffic, cache, TREE, false) {
            Ok(tree) => tree,
            Err(Trouble::Damaged(reason)) => return Ok(Tree::Broken(None, reason)),
            Err(trouble) => return Err(self.failed(&trouble)),
        };
        match contained(|| load(&records(&tree)?)) {
            Ok(loaded) if loaded.is_later() => Err(self.later(&loaded)),
            // The rows of format 1 are in the tree: what is readable of it counts, whatever is not.
            Ok(loaded)
                if loaded.state.is_some()
                    && (loaded.bad.is_empty() || loaded.is_format(FORMAT_REDB_ALONE)) =>
            {
                Ok(Tree::Whole(tree, Box::new(loaded)))
            }
            Ok(loaded) => Ok(Tree::Broken(
                Some(Broken::Sound(tree)),
                format!("{} records fail their check", loaded.bad.len().max(1)),
            )),
            Err(Trouble::Damaged(reason)) => Ok(Tree::Broken(Some(Broken::Sound(tree)), reason)),
            Err(trouble) => Err(self.failed(&trouble)),
        }
    }

    /// Whether a part of the tree cannot be read, and is not waited for.
    fn gives_up_tree(&self) -> bool {
        self.options.impatient && unread_part(&**self.disk, TREE).is_some()
    }

    /// Takes note of what of the ring could not be read: an error where that is waited for.
    fn count_unread(
        &mut self,
        book: &mut Book,
        replayed: &mut Replayed,
        clean: bool,
    ) -> Result<(), StoreError> {
        if book.unread.refused.get() {
            let (path, reason) = (self.disk.path(RING), "a part of it cannot be read".to_owned());
            return Err(StoreError::Unanswered { path, reason });
        }
        // The newest frame may have been there.
        if self.unread_blocks > 0 && !clean {
            self.recovery.newest_lost = true;
            book.damage.records += 1;
            replayed.broken += 1;
        }
        Ok(())
    }

    fn later(&self, loaded: &Loaded) -> StoreError {
        let found = loaded.state.as_ref().map_or(0, |state| state.meta.format);
        StoreError::NewerFormat { path: self.disk.path(TREE), found, known: FORMAT }
    }

    fn book(
        &self,
        lock: Box<dyn std::fmt::Debug + Send>,
        tree: Option<Database>,
        ring: Arc<dyn StorageBackend>,
        ring_id: u64,
        run: u32,
    ) -> Book {
        let (disk, traffic) = (Arc::clone(self.disk), Arc::clone(&self.traffic));
        let ring_length = ring.len().unwrap_or(0) / BLOCK * BLOCK;
        let files = Files {
            shelves: Shelves::new(Arc::clone(&disk), Arc::clone(&traffic)),
            disk,
            traffic,
            ring,
            ring_length,
            ring_id,
            run,
            tree,
            cache_bytes: self.options.cache_bytes,
            aside_bytes: 0,
            _lock: lock,
        };
        let mut book = Book::new(files, Damage::new(Arc::clone(self.disk)), 1);
        if self.options.impatient {
            book.unread = Unread::impatient();
        }
        book
    }

    /// The usual start: a checkpoint, and the frames behind it.
    fn take_up(
        &mut self,
        lock: Box<dyn std::fmt::Debug + Send>,
        tree: Database,
        loaded: Loaded,
        mut state: State,
    ) -> Result<(Book, State, Replayed), StoreError> {
        let (ring, id, found) = self.ring_of(&state.meta)?;
        let runs = found.iter().map(|(_, header)| header.run).max();
        let run = runs.unwrap_or(0).max(state.meta.run).saturating_add(1).min(ring::RUN_MAX);
        let mut book = self.book(lock, Some(tree), ring, id, run);
        let commit = state.meta.commit;
        for (side, name, piece) in loaded.pieces {
            list_shelved(&mut book, side, name, piece);
        }
        for (sink, position, letter) in loaded.letters {
            book.letters.entry(sink).or_default().insert(position, letter);
        }
        for queue in book.outboxes.values_mut().chain(book.logs.values_mut()) {
            queue.saved = queue.end();
        }
        for (stream, number, kept) in loaded.states {
            states::keep(&mut book, &stream, number, kept);
        }
        book.states_gone.extend(loaded.bad_states.iter().cloned());
        self.bad_states = loaded.bad_states;
        if state.meta.format < FORMAT_USUAL {
            self.recovery.upgraded_from = Some(state.meta.format);
            state.meta.format = FORMAT_USUAL;
        }
        let mut replayed = replay(&mut book, &mut state, found, commit, false);
        let clean = state.meta.clean;
        self.count_unread(&mut book, &mut replayed, clean)?;
        // Frames that were there last are not found: others may have been there behind them.
        let is_short = book.files.ring_length != state.meta.ring_length;
        let is_new = self.made_ring.get();
        if (is_new || is_short || replayed.ends_early) && !state.meta.clean {
            tracing::error!(is_new, is_short, "the end of the store's ring is gone");
            self.recovery.newest_lost = true;
            book.damage.records += 1;
            replayed.broken += 1;
        }
        self.recovery.clean = state.meta.clean && replayed.new_frames == 0 && !replayed.torn;
        state.meta.clean = false;
        Ok((book, state, replayed))
    }

    /// What follows from what was found: states without a record, the epoch, the first checkpoint.
    fn settle(
        &mut self,
        book: &mut Book,
        state: &mut State,
        replayed: &Replayed,
    ) -> Result<(), StoreError> {
        let rebuilt = rebuild(book, state, self.layout).map_err(|trouble| self.failed(&trouble))?;
        if replayed.broken > 0 {
            take_in(book, state).map_err(|trouble| self.failed(&trouble))?;
        }
        prune(book, state);
        for (key, value) in &replayed.suspects {
            if is_needed(book, state, key) {
                book.damage.bad(key, value);
            }
        }
        let judgement = self.judge()?;
        let asked = self.options.restored || self.options.forget_stream.is_some();
        if let Some(stream) = &self.options.forget_stream {
            if state.progress.remove(stream).is_none() {
                return Err(StoreError::Unknown(format!("stream {stream}")));
            }
            states::take_all(book, stream);
            state.marks.remove(stream);
        }
        self.recovery.copied = judgement.copied;
        let renamed = state.meta.gateway != self.options.gateway;
        let mut lost = self.lose_unfit(book, state);
        // Where frames are missing, any stream may have been in them.
        if replayed.broken > 0 {
            lost.extend(state.progress.keys().cloned());
        }
        let is_broken = replayed.broken > 0 || !lost.is_empty();
        let doubt = self.doubt(&judgement);
        if is_broken {
            self.recovery.progress_lost = lost.iter().map(ToString::to_string).collect();
        }
        self.recovery.newest_torn = replayed.torn;
        self.renew_epoch(state, is_broken, asked || judgement.copied, doubt)?;
        if judgement.copied {
            let epoch = state.meta.epoch;
            tracing::warn!(epoch, "the store's files are a copy that was put here: new epoch");
        }
        state.meta.gateway.clone_from(&self.options.gateway);
        count_missing(book, state);
        // Until the checkpoint names it, its frames would be those of no ring.
        let new_ring = self.made_ring.get();
        let mut is_noted = true;
        let upgraded = self.recovery.upgraded_from.is_some() || state.format_is_due();
        if book.files.tree.is_none() {
            self.make_tree(book, state)?;
        } else if upgraded
            || rebuilt
            || renamed
            || is_broken
            || asked
            || judgement.copied
            || new_ring
        {
            checkpoint(book, state, false).map_err(|trouble| self.failed(&trouble))?;
        } else if doubt.is_some()
            && let Err(trouble) = checkpoint(book, state, false)
        {
            tracing::warn!(reason = trouble.text(), "the new epoch is noted with the first commit");
            is_noted = false;
        }
        if is_noted {
            self.note_start(judgement.note.as_deref());
        }
        book.files.shelves.sweep_folder().map_err(|error| self.error(TREE, error))?;
        book.files.shelves.sweep();
        keep_reserve(&**self.disk, book.files.ring_length);
        Ok(())
    }

    /// Lets go of the progress and the states of each stream whose states are not those that its
    /// progress was written with; returns their names.
    fn lose_unfit(&self, book: &mut Book, state: &mut State) -> BTreeSet<Arc<str>> {
        let lost: BTreeSet<Arc<str>> = states::unfit(book, state).into_iter().collect();
        for (stream, number) in &self.bad_states {
            if lost.contains(stream) {
                book.damage.bad(&key(Kind::State, stream, *number), &[]);
            }
        }
        for stream in &lost {
            tracing::error!(%stream, "states are missing or damaged: its progress is lost");
            states::take_all(book, stream);
            state.marks.remove(stream);
            // Where there is no progress, its record or its frame is counted already.
            book.damage.records += u64::from(state.progress.remove(stream).is_some());
        }
        lost
    }
}

fn list_shelved(book: &mut Book, side: Side, name: Arc<str>, piece: Piece) {
    if let Place::Shelf { file, at } = piece.place {
        book.files.shelves.hold(file, at + u64::from(piece.length));
    }
    book.queues_mut(side).entry(name).or_default().pieces.push_back(piece);
}
