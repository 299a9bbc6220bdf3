//! What functions remember from one execution to the next, for each call and each key.
//!
//! Promise: an execution that fails leaves no trace; what is remembered depends on the rows and their
//! order alone, not on how they were cut into executions; [`Memory::load`] after [`Memory::save`]
//! gives the same answers. Bounded: of a call's keys the ones that were not seen for longest are
//! forgotten beyond [`KEYS_MAX`] or [`BYTES_MAX`]. It does not know what a key or a function means.
//!
//! Saved form, little-endian: version u8; for each call: its name's CRC u32, count u32, then, least
//! recently seen first, each key (length u32, bytes) and what is held: tag u8 and its content.

use std::collections::HashMap;
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

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    held: Option<Held>,
    /// The larger, the later it was seen.
    seen: u64,
    /// In which execution it was last copied to the undo list.
    copied: u64,
}

impl Entry {
    fn cost(&self, key: &[u8]) -> usize {
        let text = match &self.held {
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
    /// The saved form, until something changes.
    saved: Option<Vec<u8>>,
}

impl Keys {
    /// Lets `change` see and replace what is held under a key.
    pub(super) fn hold<R>(&mut self, key: &[u8], change: impl FnOnce(&mut Option<Held>) -> R) -> R {
        self.saved = None;
        self.seen += 1;
        let result;
        if let Some(entry) = self.entries.get_mut(key) {
            if entry.copied != self.execution {
                self.undo.push((key.into(), Some(entry.clone())));
                entry.copied = self.execution;
            }
            self.bytes -= entry.cost(key);
            result = change(&mut entry.held);
            entry.seen = self.seen;
            self.bytes += entry.cost(key);
        } else {
            let mut entry = Entry { held: None, seen: self.seen, copied: self.execution };
            result = change(&mut entry.held);
            self.undo.push((key.into(), None));
            self.bytes += entry.cost(key);
            self.entries.insert(key.into(), entry);
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
            if let Some(gone) = self.entries.remove(&key) {
                self.bytes -= gone.cost(&key);
            }
            if let Some(entry) = entry {
                self.bytes += entry.cost(&key);
                self.entries.insert(key, entry);
            }
        }
        self.saved = None;
    }

    fn save(&mut self, out: &mut Vec<u8>) {
        let saved = self.saved.take().unwrap_or_else(|| self.write());
        out.extend(&saved);
        self.saved = Some(saved);
    }

    fn write(&self) -> Vec<u8> {
        let mut order: Vec<_> = self.entries.iter().collect();
        order.sort_unstable_by_key(|(_, entry)| entry.seen);
        let kept = order.iter().filter_map(|(key, entry)| Some((key, entry.held.as_ref()?)));
        let mut out = Vec::new();
        put_length(&mut out, kept.clone().count());
        for (key, held) in kept {
            put_length(&mut out, key.len());
            out.extend(key.iter());
            put(&mut out, held);
        }
        out
    }
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

    /// What a restart needs; empty where there is nothing.
    pub(crate) fn save(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for slot in self.slots.iter().filter(|slot| !slot.fleeting) {
            let mut keys = slot.keys();
            if keys.entries.is_empty() {
                continue;
            }
            if out.is_empty() {
                out.push(VERSION);
            }
            out.extend(slot.name.to_le_bytes());
            keys.save(&mut out);
        }
        out
    }

    /// Takes up what was saved. Calls that are not in this query any more are forgotten. `Err` says
    /// why the bytes cannot be read; then nothing is taken up.
    pub(crate) fn load(&self, saved: &[u8]) -> Result<(), &'static str> {
        let mut rest = saved;
        if rest.is_empty() {
            return Ok(());
        }
        if take::<1>(&mut rest)? != [VERSION] {
            return Err("memory of functions of another version");
        }
        let mut read = Vec::new();
        while !rest.is_empty() {
            let name = u32::from_le_bytes(take(&mut rest)?);
            let mut keys = Keys::default();
            for _ in 0..u32::from_le_bytes(take(&mut rest)?) {
                let key = text(&mut rest)?.to_vec();
                let held = get(&mut rest)?;
                keys.hold(&key, |place| *place = Some(held));
            }
            read.push((name, keys));
        }
        for (name, keys) in read {
            let slot = self.slots.iter().find(|slot| slot.name == name && !slot.fleeting);
            if let Some(slot) = slot {
                *slot.keys() = keys;
            }
        }
        Ok(())
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

    fn number(slot: &Slot, key: &[u8], value: f64) -> Option<Held> {
        slot.keys().hold(key, |held| held.replace(Held::Number(value)))
    }

    fn held(slot: &Slot, key: &[u8]) -> Option<Held> {
        slot.keys().entries.get(key).and_then(|entry| entry.held.clone())
    }

    #[test]
    fn what_is_saved_is_read_and_anything_else_is_refused() {
        let calls =
            |memory: &mut Memory| ["a", "b", "b"].map(|name| memory.slot(name, false)).to_vec();
        let mut memory = Memory::default();
        let slots = calls(&mut memory);
        assert_eq!(memory.save(), [0; 0]);
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
            slots[0].keys().hold(&[number], |place| *place = Some(held.clone()));
        }
        number(&slots[2], b"x", 9.0);
        let bytes = memory.save();
        let mut again = Memory::default();
        let fresh = calls(&mut again);
        again.load(&bytes).unwrap();
        assert_eq!(again.save(), bytes);
        assert_eq!(held(&fresh[0], &[4]), Some(all[4].clone()));
        assert_eq!((held(&fresh[1], b"x"), held(&fresh[2], b"x")), (None, Some(Held::Number(9.0))));
        // Only a cut between two calls cannot be told from a shorter list of calls.
        let read = (1..bytes.len()).filter(|&end| again.load(&bytes[..end]).is_ok());
        assert_eq!(read.count(), 2);
        again.load(&[2]).unwrap_err();
        again.load(&[&bytes[..], &[0]].concat()).unwrap_err();
        // A query without these calls forgets what they held.
        Memory::default().load(&bytes).unwrap();
    }

    #[test]
    fn a_failed_execution_leaves_no_trace() {
        let mut memory = Memory::default();
        let slot = memory.slot("a", false);
        memory.begin();
        number(&slot, b"x", 1.0);
        number(&slot, b"y", 2.0);
        memory.commit();
        let before = memory.save();
        // One fails, one is dropped half way.
        for failed in [true, false] {
            memory.begin();
            number(&slot, b"x", 5.0);
            number(&slot, b"x", 6.0);
            number(&slot, b"z", 7.0);
            assert_ne!(memory.save(), before);
            if failed {
                memory.rollback();
            } else {
                memory.begin();
            }
            assert_eq!(memory.save(), before);
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
        memory.begin();
        let before = memory.save();
        number(&slot, &key(KEYS_MAX), 0.0);
        assert_eq!(slot.keys().entries.len(), KEYS_MAX - KEYS_MAX / 10);
        assert_eq!(held(&slot, &key(1)), None);
        assert_eq!(held(&slot, &key(0)), Some(Held::Number(1.0)));
        memory.rollback();
        assert_eq!(memory.save(), before);
        // A long text counts by its length.
        let text: Box<str> = "x".repeat(BYTES_MAX / 2).into();
        for key in [b"p", b"q", b"r"] {
            slot.keys().hold(key, |held| *held = Some(Held::Text(text.clone())));
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
        assert_eq!(memory.save(), [0; 0]);
        memory.begin();
        assert_eq!(number(&slot, b"x", 2.0), None);
    }
}
