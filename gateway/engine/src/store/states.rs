//! The states that streams keep beside their progress: values by key, of which a commit brings those
//! that changed.
//!
//! A state lies in a frame until the next checkpoint copies it to the tree; memory holds where it is
//! and its check, some 60 bytes, never the value. Progress carries a [`Mark`] of exactly the states
//! that belong to it. Whatever was lost, torn or stayed behind, a stream whose states do not give its
//! mark is seen when the store is opened, and its progress is lost: a state of another moment would
//! be a wrong value. Knows no meaning of a key.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::book::{Book, Place};
use super::border::StateChange;
use super::damage::Trouble;
use super::format::{Entry, Kind, SEAL_BYTES, key, seal_of, unseal};
use super::state::State;

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
    let mut gone = Vec::new();
    for (key, bytes) in last {
        if let Some(old) = take(book, stream, key) {
            mark.remove(key, &old);
            if bytes.is_none() {
                gone.extend_from_slice(&key.to_le_bytes());
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
            let kept = keep(book, stream, key, Kept { frame, in_tree: false, crc, length });
            mark.add(key, &kept);
        }
    }
    if !gone.is_empty() {
        book.note(Kind::StatesGone, stream, 0, &gone);
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

/// Takes a state out; what the tree has under its key goes with the next checkpoint.
pub(super) fn take(book: &mut Book, stream: &Arc<str>, key: u64) -> Option<Kept> {
    let taken = book.states.get_mut(stream)?.remove(&key)?;
    if taken.in_tree {
        book.states_gone.insert((stream.clone(), key));
    }
    Some(taken)
}

/// Takes out every state of a stream.
pub(super) fn take_all(book: &mut Book, stream: &Arc<str>) {
    for (key, kept) in book.states.remove(stream).unwrap_or_default() {
        if kept.in_tree {
            book.states_gone.insert((stream.clone(), key));
        }
    }
}

/// The streams whose states are not those that their progress was written with.
pub(super) fn unfit(book: &Book, state: &State) -> Vec<Arc<str>> {
    let streams = book.states.keys().chain(state.progress.keys()).chain(state.marks.keys());
    let streams: std::collections::BTreeSet<&Arc<str>> = streams.collect();
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

/// A state as it is sealed in its frame; `None` when it cannot be read or is not what was written,
/// which is counted.
pub(super) fn sealed(book: &mut Book, stream: &str, number: u64) -> Option<Vec<u8>> {
    let kept = *book.states.get(stream)?.get(&number)?;
    let at = key(Kind::State, stream, number);
    let length = 2 + at.len() + SEAL_BYTES + usize::try_from(kept.length).ok()?;
    let mut bytes = book.entry(&at, kept.frame?, length)?;
    bytes.drain(..2 + at.len());
    is_kept(&kept, &bytes).then_some(bytes)
}

fn is_kept(kept: &Kept, value: &[u8]) -> bool {
    seal_of(value) == Some((kept.crc, kept.length))
}

/// All states of a stream, in the order of their keys. An error means that one of them cannot be
/// read: it is counted, and all of them are useless.
pub(super) fn read(book: &mut Book, stream: &str) -> Result<Vec<(u64, Bytes)>, Trouble> {
    let keys: Vec<u64> =
        book.states.get(stream).into_iter().flat_map(|s| s.keys().copied()).collect();
    keys.into_iter().map(|key| Ok((key, read_one(book, stream, key)?))).collect()
}

/// Reads one state, from its frame or from the tree.
pub(super) fn read_one(book: &mut Book, stream: &str, number: u64) -> Result<Bytes, Trouble> {
    let lost = || Trouble::Damaged(format!("state {number} of {stream} is not what was stored"));
    let kept = book.states.get(stream).and_then(|states| states.get(&number)).copied();
    let kept = kept.ok_or_else(lost)?;
    if kept.frame.is_some() {
        let value = sealed(book, stream, number).ok_or_else(lost)?;
        return Ok(Bytes::from(value).slice(SEAL_BYTES..));
    }
    let at = key(Kind::State, stream, number);
    let found = book.files.records()?.get_owned(at.as_slice())?;
    let value = found.as_ref().map_or(&[][..], |found| found.value());
    let body = unseal(&at, value).filter(|_| is_kept(&kept, value)).map(Bytes::copy_from_slice);
    if body.is_none() {
        book.damage.bad(&at, value);
    }
    body.ok_or_else(lost)
}
