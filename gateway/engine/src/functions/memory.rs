//! What functions remember from one execution to the next, for each call and each key.
//!
//! Promise: an execution that fails leaves no trace; what is remembered depends on the rows and their
//! order alone, not on how they were cut into executions; [`Memory::load`] of all [`Memory::changes`]
//! gives the same answers. Bounded: of a call's keys the ones that were not seen for longest are
//! forgotten beyond [`KEYS_MAX`] or [`BYTES_MAX`]. It does not know what a key or a function means.
//!
//! Saved form: keys lie in parts by their CRC, so that a change of one key writes little. A part has a
//! number: bit 63, then the CRC of its call's name in bits 16 to 47, then the part. Its bytes,
//! little-endian: version u8; each key: when it was seen u64, length u32, bytes; what is held: tag u8
//! and its content.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::span::Sample;

/// Keys (devices, groups) that one call remembers.
pub(crate) const KEYS_MAX: usize = 10_000;
/// Bytes of keys and values that one call remembers.
pub(crate) const BYTES_MAX: usize = 1 << 20;

/// What a key costs beside its bytes.
const KEY_COST: usize = 32;
const VERSION: u8 = 1;
/// Into how many parts a call's keys are put.
const PARTS: u32 = 1024;
/// The mark of a part's number, which tells it from other states of a stream.
const MARK: u64 = 1 << 63;

/// Whether a state that stands under `number` beside a stream's progress is memory of functions.
pub(crate) fn is_memory(number: u64) -> bool {
    number & MARK != 0
}

fn part_of(key: &[u8]) -> u32 {
    crc32fast::hash(key) % PARTS
}

/// What is remembered under one key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Held {
    /// The last value, as text.
    Text(Box<str>),
    /// The last value that was reported.
    Number(f64),
    /// Whether it is on.
    On(bool),
    /// The two latest samples that came before the start of some window.
    Samples(Pair<f64>),
    /// The same for counters.
    Counts(Pair<i128>),
}

/// Two samples in order of time. The older one is needed where a window is computed once more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pair<T> {
    pub(super) old: Option<Sample<T>>,
    pub(super) new: Sample<T>,
}

/// The place of one key.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Place {
    held: Option<Held>,
    changed: bool,
}

impl Place {
    pub(super) fn get(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    pub(super) fn set(&mut self, held: Held) {
        self.held = Some(held);
        self.changed = true;
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    place: Place,
    /// The larger, the later it was seen.
    seen: u64,
    /// In which execution it was last copied to the undo list.
    copied: u64,
}

impl Entry {
    fn cost(&self, key: &[u8]) -> usize {
        let text = match self.place.get() {
            Some(Held::Text(text)) => text.len(),
            _ => 0,
        };
        KEY_COST + key.len() + text
    }
}

/// What one call remembers.
#[derive(Debug, Default)]
pub(super) struct Keys {
    entries: HashMap<Box<[u8]>, Entry>,
    bytes: usize,
    seen: u64,
    execution: u64,
    undo: Vec<(Box<[u8]>, Option<Entry>)>,
    /// Parts that are not as they were saved.
    unsaved: BTreeSet<u32>,
}

impl Keys {
    /// Lets `change` see and replace what is held under a key.
    pub(super) fn hold<R>(&mut self, key: &[u8], change: impl FnOnce(&mut Place) -> R) -> R {
        self.seen += 1;
        let (result, changed);
        if let Some(entry) = self.entries.get_mut(key) {
            if entry.copied != self.execution {
                self.undo.push((key.into(), Some(entry.clone())));
                entry.copied = self.execution;
            }
            self.bytes -= entry.cost(key);
            result = change(&mut entry.place);
            changed = std::mem::take(&mut entry.place.changed);
            entry.seen = self.seen;
            self.bytes += entry.cost(key);
        } else {
            let mut place = Place::default();
            result = change(&mut place);
            changed = std::mem::take(&mut place.changed);
            let entry = Entry { place, seen: self.seen, copied: self.execution };
            self.undo.push((key.into(), None));
            self.bytes += entry.cost(key);
            self.entries.insert(key.into(), entry);
        }
        if changed {
            self.unsaved.insert(part_of(key));
        }
        if self.entries.len() > KEYS_MAX || self.bytes > BYTES_MAX {
            self.forget();
        }
        result
    }

    /// Forgets the keys that were not seen for longest, a tenth more than needed, so that it is
    /// not done for each row.
    fn forget(&mut self) {
        let mut order: Vec<(u64, Box<[u8]>)> =
            self.entries.iter().map(|(key, entry)| (entry.seen, key.clone())).collect();
        order.sort_unstable();
        for (_, key) in order {
            if self.entries.len() <= KEYS_MAX - KEYS_MAX / 10
                && self.bytes <= BYTES_MAX - BYTES_MAX / 10
            {
                break;
            }
            if let Some(entry) = self.entries.remove(&key) {
                self.bytes -= entry.cost(&key);
                self.unsaved.insert(part_of(&key));
                self.undo.push((key, Some(entry)));
            }
        }
    }

    fn begin(&mut self) {
        self.execution += 1;
        self.undo.clear();
    }

    fn rollback(&mut self) {
        while let Some((key, entry)) = self.undo.pop() {
            // What was saved of it may have been saved since.
            self.unsaved.insert(part_of(&key));
            if let Some(gone) = self.entries.remove(&key) {
                self.bytes -= gone.cost(&key);
            }
            if let Some(entry) = entry {
                self.bytes += entry.cost(&key);
                self.entries.insert(key, entry);
            }
        }
    }

    /// The saved form of each part that is not as it was saved; `None` for one without keys.
    fn changes(&self) -> BTreeMap<u32, Option<Vec<u8>>> {
        let mut parts: BTreeMap<u32, Vec<_>> =
            self.unsaved.iter().map(|part| (*part, Vec::new())).collect();
        for (key, entry) in &self.entries {
            if let (Some(part), Some(held)) = (parts.get_mut(&part_of(key)), entry.place.get()) {
                part.push((entry.seen, &key[..], held));
            }
        }
        let written = parts.into_iter().map(|(part, mut keys)| {
            keys.sort_unstable_by_key(|(seen, ..)| *seen);
            (part, (!keys.is_empty()).then(|| write(&keys)))
        });
        written.collect()
    }

    /// Takes up one part.
    fn load(&mut self, mut rest: &[u8]) -> Result<(), &'static str> {
        if take::<1>(&mut rest)? != [VERSION] {
            return Err("memory of functions of another version");
        }
        while !rest.is_empty() {
            let seen = u64::from_le_bytes(take(&mut rest)?);
            let key: Box<[u8]> = text(&mut rest)?.into();
            let place = Place { held: Some(get(&mut rest)?), changed: false };
            let entry = Entry { place, seen, copied: self.execution };
            self.seen = self.seen.max(seen);
            self.bytes += entry.cost(&key);
            if self.entries.insert(key, entry).is_some() {
                return Err("memory of functions has a key twice");
            }
        }
        Ok(())
    }
}

fn write(keys: &[(u64, &[u8], &Held)]) -> Vec<u8> {
    let mut out = vec![VERSION];
    for (seen, key, held) in keys {
        out.extend(seen.to_le_bytes());
        put_length(&mut out, key.len());
        out.extend(key.iter());
        put(&mut out, held);
    }
    out
}

/// One call of a function that remembers.
#[derive(Debug)]
pub(super) struct Slot {
    name: u32,
    /// Begins anew with each execution and is not saved.
    fleeting: bool,
    keys: Mutex<Keys>,
}

impl Slot {
    fn number(&self, part: u32) -> u64 {
        MARK | u64::from(self.name) << 16 | u64::from(part)
    }

    pub(super) fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all calls of one query remember.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    slots: Vec<Arc<Slot>>,
    running: AtomicBool,
}

impl Memory {
    /// A place for a call. By its name it finds again what was saved.
    pub(super) fn slot(&mut self, name: &str, fleeting: bool) -> Arc<Slot> {
        // Equal calls in one query remember each for itself.
        let equal = self.slots.len();
        let crc = |number: usize| crc32fast::hash(format!("{number} {name}").as_bytes());
        let name = (0..=equal)
            .map(crc)
            .find(|crc| self.slots.iter().all(|slot| slot.name != *crc))
            .unwrap_or_default();
        let slot = Arc::new(Slot { name, fleeting, keys: Mutex::default() });
        self.slots.push(Arc::clone(&slot));
        slot
    }

    /// Whether there is any call that remembers.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// An execution begins. One that has not come to its end is taken for a failure.
    pub(crate) fn begin(&self) {
        if self.running.swap(true, Ordering::AcqRel) {
            self.rollback();
            self.running.store(true, Ordering::Release);
        }
        for slot in &self.slots {
            let mut keys = slot.keys();
            if slot.fleeting {
                *keys = Keys::default();
            }
            keys.begin();
        }
    }

    /// The execution succeeded.
    pub(crate) fn commit(&self) {
        self.running.store(false, Ordering::Release);
    }

    /// The execution failed: everything is as it was when it began.
    pub(crate) fn rollback(&self) {
        self.running.store(false, Ordering::Release);
        for slot in &self.slots {
            slot.keys().rollback();
        }
    }

    /// What is to be saved since [`Memory::saved`]: numbers of parts, and their bytes; `None` where
    /// there is nothing any more.
    pub(crate) fn changes(&self) -> Vec<(u64, Option<Vec<u8>>)> {
        let lasting = self.slots.iter().filter(|slot| !slot.fleeting);
        let changes = lasting.flat_map(|slot| {
            let changes = slot.keys().changes();
            changes.into_iter().map(|(part, bytes)| (slot.number(part), bytes))
        });
        changes.collect()
    }

    /// What was saved is damaged: every part is a change again.
    pub(crate) fn store_anew(&self) {
        for slot in &self.slots {
            let keys = &mut *slot.keys();
            keys.unsaved.extend(keys.entries.keys().map(|key| part_of(key)));
        }
    }

    /// The present changes are on their way into the store.
    pub(crate) fn saved(&self) {
        for slot in &self.slots {
            slot.keys().unsaved.clear();
        }
    }

    /// Takes up what was saved, all parts of it. Gives back the numbers of those that belong to no
    /// call of this query any more. `Err` says why a part cannot be read; then nothing is taken up.
    pub(crate) fn load<'a>(
        &self,
        parts: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Result<Vec<u64>, &'static str> {
        let lasting = || self.slots.iter().filter(|slot| !slot.fleeting);
        let mut read: Vec<Keys> = lasting().map(|_| Keys::default()).collect();
        let mut strange = Vec::new();
        for (number, bytes) in parts {
            let part =
                u32::from(u16::from_le_bytes([number.to_le_bytes()[0], number.to_le_bytes()[1]]));
            match lasting().position(|slot| slot.number(part) == number) {
                Some(at) => read[at].load(bytes)?,
                None => strange.push(number),
            }
        }
        for (slot, keys) in lasting().zip(read) {
            *slot.keys() = keys;
        }
        Ok(strange)
    }
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    // Bounded by `BYTES_MAX`, far below 2^32.
    out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

fn put(out: &mut Vec<u8>, held: &Held) {
    match held {
        Held::Text(text) => {
            out.push(1);
            put_length(out, text.len());
            out.extend(text.as_bytes());
        }
        Held::Number(value) => {
            out.push(2);
            out.extend(value.to_le_bytes());
        }
        Held::On(on) => out.extend([3, u8::from(*on)]),
        Held::Samples(pair) => {
            out.push(4);
            put_pair(out, pair, |out, value| out.extend(value.to_le_bytes()));
        }
        Held::Counts(pair) => {
            out.push(5);
            put_pair(out, pair, |out, value| out.extend(value.to_le_bytes()));
        }
    }
}

fn put_pair<T: Copy>(out: &mut Vec<u8>, pair: &Pair<T>, value: impl Fn(&mut Vec<u8>, T)) {
    out.push(u8::from(pair.old.is_some()));
    for sample in pair.old.iter().chain([&pair.new]) {
        out.extend(sample.time.to_le_bytes());
        value(out, sample.value);
    }
}

const CUT: &str = "memory of functions is cut short";

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], &'static str> {
    let (taken, after) = rest.split_first_chunk::<N>().ok_or(CUT)?;
    *rest = after;
    Ok(*taken)
}

fn text<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], &'static str> {
    let length = u32::from_le_bytes(take(rest)?) as usize;
    let (taken, after) = rest.split_at_checked(length).ok_or(CUT)?;
    *rest = after;
    Ok(taken)
}

fn get(rest: &mut &[u8]) -> Result<Held, &'static str> {
    Ok(match take(rest)? {
        [1] => {
            let text = std::str::from_utf8(text(rest)?).map_err(|_| "a held text is not UTF-8")?;
            Held::Text(text.into())
        }
        [2] => Held::Number(f64::from_le_bytes(take(rest)?)),
        [3] => Held::On(take(rest)? != [0]),
        [4] => Held::Samples(get_pair(rest, f64::from_le_bytes)?),
        [5] => Held::Counts(get_pair(rest, i128::from_le_bytes)?),
        _ => return Err("a held value of an unknown kind"),
    })
}

fn get_pair<T, const N: usize>(
    rest: &mut &[u8],
    value: impl Fn([u8; N]) -> T,
) -> Result<Pair<T>, &'static str> {
    let [two] = take(rest)?;
    let mut sample = || -> Result<Sample<T>, &'static str> {
        let time = i64::from_le_bytes(take(rest)?);
        Ok(Sample { time, value: value(take(rest)?) })
    };
    let old = if two == 0 { None } else { Some(sample()?) };
    Ok(Pair { old, new: sample()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Saved = BTreeMap<u64, Vec<u8>>;

    fn number(slot: &Slot, key: &[u8], value: f64) -> Option<Held> {
        slot.keys().hold(key, |place| {
            let before = place.get().cloned();
            place.set(Held::Number(value));
            before
        })
    }

    fn held(slot: &Slot, key: &[u8]) -> Option<Held> {
        slot.keys().entries.get(key).and_then(|entry| entry.place.get().cloned())
    }

    /// Brings what is saved up to date; gives back how many parts were written.
    fn save(memory: &Memory, saved: &mut Saved) -> usize {
        let changes = memory.changes();
        let written = changes.len();
        for (number, bytes) in changes {
            assert!(is_memory(number));
            match bytes {
                Some(bytes) => saved.insert(number, bytes),
                None => saved.remove(&number),
            };
        }
        memory.saved();
        written
    }

    fn load(memory: &Memory, saved: &Saved) -> Result<Vec<u64>, &'static str> {
        memory.load(saved.iter().map(|(number, bytes)| (*number, &bytes[..])))
    }

    #[test]
    fn what_is_saved_is_read_and_anything_else_is_refused() {
        let calls =
            |memory: &mut Memory| ["a", "b", "b"].map(|name| memory.slot(name, false)).to_vec();
        let mut memory = Memory::default();
        let slots = calls(&mut memory);
        let mut saved = Saved::new();
        assert_eq!(save(&memory, &mut saved), 0);
        let sample = |time, value| Sample { time, value };
        let all = [
            Held::Text("größe".into()),
            Held::Number(-0.5),
            Held::On(true),
            Held::Samples(Pair { old: None, new: sample(-7, 2.5) }),
            Held::Counts(Pair {
                old: Some(Sample { time: 1, value: -1 }),
                new: Sample { time: i64::MAX, value: 1 << 100 },
            }),
        ];
        for (number, held) in (0_u8..).zip(&all) {
            slots[0].keys().hold(&[number], |place| place.set(held.clone()));
        }
        number(&slots[2], b"x", 9.0);
        assert_eq!(save(&memory, &mut saved), 6);
        assert_eq!(save(&memory, &mut saved), 0, "nothing changed since");
        // What is seen and not changed is not written.
        slots[0].keys().hold(&[1], |place| assert_eq!(place.get(), Some(&all[1])));
        assert_eq!(save(&memory, &mut saved), 0);
        number(&slots[0], &[1], 1.5);
        assert_eq!(save(&memory, &mut saved), 1);
        let mut again = Memory::default();
        let fresh = calls(&mut again);
        assert_eq!(load(&again, &saved), Ok(vec![]));
        assert_eq!(held(&fresh[0], &[1]), Some(Held::Number(1.5)));
        assert_eq!(held(&fresh[0], &[4]), Some(all[4].clone()));
        assert_eq!((held(&fresh[1], b"x"), held(&fresh[2], b"x")), (None, Some(Held::Number(9.0))));
        assert_eq!(save(&again, &mut saved), 0);
        for (number, bytes) in &saved {
            for end in 0..bytes.len() {
                let cut = Saved::from([(*number, bytes[..end].to_vec())]);
                // A part of its version alone has no keys.
                assert_eq!(load(&again, &cut).is_ok(), end == 1, "{number} to {end}");
            }
            for garbage in [[&[2], &bytes[1..]].concat(), [&bytes[..], &[0]].concat()] {
                load(&again, &Saved::from([(*number, garbage)])).unwrap_err();
            }
        }
        // A query without these calls has no use for them.
        assert_eq!(load(&Memory::default(), &saved).unwrap().len(), 6);
    }

    #[test]
    fn a_failed_execution_leaves_no_trace() {
        let mut memory = Memory::default();
        let slot = memory.slot("a", false);
        memory.begin();
        number(&slot, b"x", 1.0);
        number(&slot, b"y", 2.0);
        memory.commit();
        let mut saved = Saved::new();
        save(&memory, &mut saved);
        let before = slot.keys().entries.clone();
        // One fails, one is dropped half way.
        for failed in [true, false] {
            memory.begin();
            number(&slot, b"x", 5.0);
            number(&slot, b"x", 6.0);
            number(&slot, b"z", 7.0);
            if failed {
                memory.rollback();
            } else {
                memory.begin();
            }
            assert_eq!(slot.keys().entries, before);
            let was = saved.clone();
            save(&memory, &mut saved);
            assert_eq!(saved, was);
        }
        assert_eq!(slot.keys().bytes, 2 * (KEY_COST + 1));
    }

    #[test]
    fn the_longest_unseen_keys_are_forgotten() {
        let mut memory = Memory::default();
        let slot = memory.slot("a", false);
        let key = |n: usize| n.to_le_bytes();
        for n in 0..KEYS_MAX {
            number(&slot, &key(n), 0.0);
        }
        number(&slot, &key(0), 1.0);
        let mut saved = Saved::new();
        assert_eq!(save(&memory, &mut saved), PARTS as usize);
        memory.begin();
        let before = slot.keys().entries.clone();
        number(&slot, &key(KEYS_MAX), 0.0);
        assert_eq!(slot.keys().entries.len(), KEYS_MAX - KEYS_MAX / 10);
        assert_eq!(held(&slot, &key(1)), None);
        assert_eq!(held(&slot, &key(0)), Some(Held::Number(1.0)));
        let mut forgot = saved.clone();
        save(&memory, &mut forgot);
        let mut again = Memory::default();
        let fresh = again.slot("a", false);
        load(&again, &forgot).unwrap();
        assert_eq!(fresh.keys().entries.len(), KEYS_MAX - KEYS_MAX / 10);
        memory.rollback();
        assert_eq!(slot.keys().entries, before);
        save(&memory, &mut forgot);
        assert_eq!(forgot, saved);
        // A long text counts by its length.
        let text: Box<str> = "x".repeat(BYTES_MAX / 2).into();
        for key in [b"p", b"q", b"r"] {
            slot.keys().hold(key, |place| place.set(Held::Text(text.clone())));
            assert!(slot.keys().bytes <= BYTES_MAX);
        }
    }

    #[test]
    fn what_is_fleeting_begins_anew_and_is_not_saved() {
        let mut memory = Memory::default();
        let slot = memory.slot("a", true);
        memory.begin();
        number(&slot, b"x", 1.0);
        memory.commit();
        assert_eq!(memory.changes(), []);
        memory.begin();
        assert_eq!(number(&slot, b"x", 2.0), None);
    }
}
