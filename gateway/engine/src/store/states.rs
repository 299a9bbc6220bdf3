//! The states that streams keep beside their progress: values by key, of which a commit brings those
//! that changed.
//!
//! A state lies in a frame until the next checkpoint copies it to the tree; memory holds where it is
//! and its check, some 60 bytes, never the value. Progress carries a [`Mark`] of exactly the states
//! that belong to it. Whatever was lost, torn or stayed behind, a stream whose states do not give its
//! mark is seen when the store is opened, and its progress is lost: a state of another moment would
//! be a wrong value. Knows no meaning of a key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::book::{Book, Place};
use super::border::StateChange;
use super::damage::{Trouble, contained};
use super::format::{Entry, Kind, SEAL_BYTES, key, seal_of, unseal};
use super::inbox::lock;
use super::state::State;

/// The states of a stream as they are found in the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredStates {
    /// Keys and values, in the order of the keys.
    pub whole: Vec<(u64, Bytes)>,
    /// Keys of those that failed their check, which is counted. They stay until a commit removes them
    /// or puts others in their place; before that, the next start finds the progress lost.
    pub damaged: Vec<u64>,
}

/// Streams of which a state was found damaged, until they ask.
#[derive(Debug, Default)]
pub(super) struct Spoiled {
    any: AtomicBool,
    streams: Mutex<BTreeSet<Arc<str>>>,
}

impl Spoiled {
    pub(super) fn add(&self, streams: BTreeSet<Arc<str>>) {
        lock(&self.streams).extend(streams);
        self.any.store(true, Ordering::Release);
    }

    /// Whether there was any of this stream since it was last asked.
    pub(super) fn take(&self, stream: &str) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut streams = lock(&self.streams);
        let found = streams.remove(stream);
        self.any.store(!streams.is_empty(), Ordering::Release);
        found
    }
}

/// A state that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    /// Where its frame has it: until the checkpoint, which puts it into the tree.
    pub(super) frame: Option<Place>,
    /// The tree has a record under its key, though maybe an older one.
    pub(super) in_tree: bool,
    /// The CRC that seals it.
    pub(super) crc: u32,
    /// Bytes of the value.
    pub(super) length: u32,
    /// Sequence of the first frame with any value under its key that no checkpoint contains.
    pub(super) since: u64,
}

/// The kept states of every stream.
pub(super) type States = BTreeMap<Arc<str>, BTreeMap<u64, Kept>>;

/// What all states of a stream give together, in whatever order they came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) count: u64,
    pub(super) bytes: u64,
    /// The sum of one number for each state, made of its key, length and CRC.
    pub(super) digest: u64,
}

impl Mark {
    /// The mark of these states.
    pub(super) fn of(states: Option<&BTreeMap<u64, Kept>>) -> Mark {
        let mut mark = Mark::default();
        for (key, kept) in states.into_iter().flatten() {
            mark.add(*key, kept);
        }
        mark
    }

    fn add(&mut self, key: u64, kept: &Kept) {
        self.count += 1;
        self.bytes += u64::from(kept.length);
        self.digest = self.digest.wrapping_add(term(key, kept));
    }

    fn remove(&mut self, key: u64, kept: &Kept) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(u64::from(kept.length));
        self.digest = self.digest.wrapping_sub(term(key, kept));
    }
}

/// Spreads one number over all bits (the finisher of splitmix64), so that sums of them meet by chance
/// alone.
fn spread(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn term(key: u64, kept: &Kept) -> u64 {
    let seal = u64::from(kept.length) << 32 | u64::from(kept.crc);
    spread(spread(key.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ seal)
}

/// Puts what changed into the draft, in the order given; of several changes of one key the last counts.
pub(super) fn apply<'a>(
    book: &mut Book,
    state: &mut State,
    stream: &Arc<str>,
    changes: impl Iterator<Item = &'a StateChange>,
) {
    let last: BTreeMap<u64, Option<&Bytes>> =
        changes.map(|change| (change.key, change.bytes.as_ref())).collect();
    if last.is_empty() {
        return;
    }
    let mark = state.marks.entry(stream.clone()).or_default();
    let durable = book.first_undurable();
    let mut gone = Gone::default();
    for (key, bytes) in last {
        let old = take(book, stream, key);
        if let Some(old) = &old {
            mark.remove(key, old);
            if bytes.is_none() {
                gone.add(key, old, durable);
            }
        }
        if let Some(bytes) = bytes {
            let at = book.draft.len();
            book.note(Kind::State, stream, key, bytes);
            let entry = book.draft.get(at..).and_then(Entry::take);
            let Some((crc, length)) = entry.and_then(|entry| seal_of(entry.value)) else {
                continue;
            };
            let at = u32::try_from(at).unwrap_or(u32::MAX);
            let frame = Some(Place::Frame { sequence: book.sequence, at });
            let since = old.map_or(book.sequence, |old| old.since);
            let kept = Kept { frame, in_tree: false, crc, length, since };
            let kept = keep(book, stream, key, kept);
            book.damage.mended(|| super::format::key(Kind::State, stream, key));
            mark.add(key, &kept);
        }
    }
    for (since, keys) in [(0, gone.durable), gone.waiting] {
        if !keys.is_empty() {
            book.note(Kind::StatesGone, stream, since, &keys);
        }
    }
}

/// Keys of states that are gone, as they are written.
#[derive(Debug, Default)]
struct Gone {
    /// Those of which something is in the tree, or in a durable frame.
    durable: Vec<u8>,
    /// The others, and the first frame that has anything of them: who leaves it out, and all behind it,
    /// need not be told.
    waiting: (u64, Vec<u8>),
}

impl Gone {
    /// Takes a key with its state; frames from `undurable` on are not durable.
    fn add(&mut self, key: u64, old: &Kept, undurable: u64) {
        if old.in_tree || old.since < undurable {
            self.durable.extend_from_slice(&key.to_le_bytes());
            return;
        }
        let (since, keys) = &mut self.waiting;
        *since = if keys.is_empty() { old.since } else { old.since.min(*since) };
        keys.extend_from_slice(&key.to_le_bytes());
    }
}

/// Lists a state; what the tree still has under its key is overwritten by the next checkpoint.
pub(super) fn keep(book: &mut Book, stream: &Arc<str>, key: u64, kept: Kept) -> Kept {
    let was_in_tree = book.states_gone.remove(&(stream.clone(), key));
    let states = book.states.entry(stream.clone()).or_default();
    let known = states.get(&key).is_some_and(|known| known.in_tree);
    let kept = Kept { in_tree: kept.in_tree || known || was_in_tree, ..kept };
    states.insert(key, kept);
    kept
}

/// Takes a state out; what the tree has under its key, or may have, goes with the next checkpoint.
pub(super) fn take(book: &mut Book, stream: &Arc<str>, key: u64) -> Option<Kept> {
    let taken = book.states.get_mut(stream)?.remove(&key)?;
    if taken.in_tree || book.undecided > 0 {
        book.states_gone.insert((stream.clone(), key));
    }
    Some(taken)
}

/// Takes out every state of a stream.
pub(super) fn take_all(book: &mut Book, stream: &Arc<str>) {
    for (key, kept) in book.states.remove(stream).unwrap_or_default() {
        if kept.in_tree || book.undecided > 0 {
            book.states_gone.insert((stream.clone(), key));
        }
    }
}

/// The streams whose states are not those that their progress was written with.
pub(super) fn unfit(book: &Book, state: &State) -> Vec<Arc<str>> {
    let streams = book.states.keys().chain(state.progress.keys()).chain(state.marks.keys());
    let streams: BTreeSet<&Arc<str>> = streams.collect();
    let fits = |stream: &Arc<str>| {
        let mark = state.marks.get(stream).copied().unwrap_or_default();
        mark == Mark::of(book.states.get(stream))
            && (state.progress.contains_key(stream) || mark == Mark::default())
    };
    streams.into_iter().filter(|stream| !fits(stream)).cloned().collect()
}

/// The states that only frames have: stream and key.
pub(super) fn in_frames(book: &Book) -> Vec<(Arc<str>, u64)> {
    let mut found = Vec::new();
    for (stream, states) in &book.states {
        let dirty = states.iter().filter(|(_, kept)| kept.frame.is_some());
        found.extend(dirty.map(|(key, _)| (stream.clone(), *key)));
    }
    found
}

/// The states that only the tree has: stream and key.
pub(super) fn in_tree(book: &Book) -> Vec<(Arc<str>, u64)> {
    let mut found = Vec::new();
    for (stream, states) in &book.states {
        let clean = states.iter().filter(|(_, kept)| kept.frame.is_none());
        found.extend(clean.map(|(key, _)| (stream.clone(), *key)));
    }
    found
}

/// A value that was found for a state; `None` when it is not what was kept, which is counted.
pub(super) fn checked(
    book: &mut Book,
    stream: &str,
    number: u64,
    found: Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let kept = *book.states.get(stream)?.get(&number)?;
    whole(book, stream, &key(Kind::State, stream, number), kept, found)
}

/// A state as it is sealed in its frame; `None` when it is not what was written, which is counted. An error
/// means that it cannot be read now.
pub(super) fn sealed(
    book: &mut Book,
    stream: &str,
    number: u64,
) -> Result<Option<Vec<u8>>, Trouble> {
    let kept = book.states.get(stream).and_then(|states| states.get(&number)).copied();
    let Some((kept, frame)) = kept.and_then(|kept| Some((kept, kept.frame?))) else {
        return Ok(None);
    };
    let at = key(Kind::State, stream, number);
    let length = usize::try_from(kept.length).unwrap_or(usize::MAX);
    let value = book.entry(&at, frame, (2 + at.len() + SEAL_BYTES).saturating_add(length))?;
    let value = value.map(|mut bytes| {
        bytes.drain(..2 + at.len());
        bytes
    });
    Ok(whole(book, stream, &at, kept, value))
}

/// The value if it is what was kept. Another one is counted, and so is none, and the stream is told.
fn whole(
    book: &mut Book,
    stream: &str,
    at: &[u8],
    kept: Kept,
    value: Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let value = value.unwrap_or_default();
    if unseal(at, &value).is_some() && seal_of(&value) == Some((kept.crc, kept.length)) {
        return Some(value);
    }
    book.damage.bad(at, &value);
    book.spoiled.insert(Arc::from(stream));
    None
}

/// All states of a stream. An error means that the device does not answer; nothing is lost by it.
pub(super) fn read(book: &mut Book, stream: &str) -> Result<StoredStates, Trouble> {
    let keys: Vec<u64> =
        book.states.get(stream).into_iter().flat_map(|s| s.keys().copied()).collect();
    let mut found = StoredStates::default();
    for key in keys {
        match read_one(book, stream, key)? {
            Some(bytes) => found.whole.push((key, bytes)),
            None => found.damaged.push(key),
        }
    }
    Ok(found)
}

/// Reads one state, from its frame or from the tree; `None` when it is not what was written, which is
/// counted.
pub(super) fn read_one(
    book: &mut Book,
    stream: &str,
    number: u64,
) -> Result<Option<Bytes>, Trouble> {
    let Some(kept) = book.states.get(stream).and_then(|states| states.get(&number)).copied() else {
        return Ok(None);
    };
    let value = if kept.frame.is_some() {
        sealed(book, stream, number)?
    } else {
        let at = key(Kind::State, stream, number);
        let found = contained(|| {
            let found = book.files.records()?.get_owned(at.as_slice())?;
            Ok(found.map(|found| found.value().to_vec()))
        });
        let value = match found {
            Ok(value) => value,
            // The tree around it is broken.
            Err(Trouble::Damaged(_)) => None,
            Err(trouble) => return Err(trouble),
        };
        whole(book, stream, &at, kept, value)
    };
    Ok(value.map(|value| Bytes::from(value).slice(SEAL_BYTES..)))
}
