//! Windows that have not ended, by the number of their key.
//!
//! Promise: a key has one window at most, which is found without a search. It knows neither when
//! a window ends nor what is stored of it.

use super::late::Late;
use super::order::Place;
use super::rows::Mix;

/// What a window costs beside its rows, in bytes, and each of its rows.
const WINDOW_COST: usize = 256;
const MEMBER_COST: usize = size_of::<Place>();

/// A window that has not ended.
#[derive(Debug)]
pub(super) struct Growing {
    pub(super) first: Place,
    /// Time of the last row.
    pub(super) last: i64,
    pub(super) members: Vec<Place>,
    /// Rows of the key that came too late for it.
    pub(super) late: Late,
    pub(super) mix: Mix,
    /// The window does not end before, and is looked at then.
    pub(super) due: i64,
    /// Its state's key in the store, and whether it is there.
    pub(super) number: u64,
    pub(super) stored: bool,
}

impl Growing {
    pub(super) fn new(first: Place, number: u64) -> Self {
        Self {
            number,
            stored: false,
            first,
            last: first.time,
            members: Vec::new(),
            late: Late::default(),
            mix: Mix::default(),
            due: first.time,
        }
    }

    /// Whether a row was late for it.
    pub(super) fn missed(&self, place: Place) -> bool {
        self.late.contains((place.table, place.position))
    }

    pub(super) fn take(&mut self, place: Place, quality: &'static str) {
        self.last = self.last.max(place.time);
        self.members.push(place);
        self.mix.add(quality);
    }
}

/// All of them. Boxed, so that a key without a window costs a word.
#[derive(Debug, Default)]
pub(super) struct Windows {
    by_key: Vec<Option<Box<Growing>>>,
    count: usize,
    /// Rows in them, and in those that have ended and were not given out.
    pub(super) members: u64,
    /// Rows that were late for them.
    pub(super) late: usize,
}

impl Windows {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn get(&self, key: u32) -> Option<&Growing> {
        self.by_key.get(key as usize)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut Growing> {
        self.by_key.get_mut(key as usize)?.as_deref_mut()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Growing)> {
        (0..).zip(&mut self.by_key).filter_map(|(key, window)| Some((key, window.as_deref_mut()?)))
    }

    /// Adds the window of a key that has none.
    pub(super) fn put(&mut self, key: u32, window: Growing) {
        let at = key as usize;
        if self.by_key.len() <= at {
            self.by_key.resize_with(at + 1, || None);
        }
        self.by_key[at] = Some(Box::new(window));
        self.count += 1;
    }

    pub(super) fn remove(&mut self, key: u32) -> Option<Box<Growing>> {
        let window = self.by_key.get_mut(key as usize)?.take()?;
        self.count -= 1;
        Some(window)
    }

    /// What they hold beside the rows themselves, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let members = usize::try_from(self.members).unwrap_or(usize::MAX);
        self.count * WINDOW_COST + members.saturating_add(self.late).saturating_mul(MEMBER_COST)
    }
}
