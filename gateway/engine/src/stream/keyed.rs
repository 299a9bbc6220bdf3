//! Windows that a key's own rows begin and end: sessions, and those between two conditions.
//!
//! Promise: a key has one open window at a time, and its rows come to it in order of time; which
//! windows there are depends on the rows and the watermark alone. A window that was open at a
//! restart gets back exactly the rows that it had: what tells them, its key, its first row and the
//! rows of its key that were late, stands beside the progress, and is written when it changes.
//! Source: design page "The engine", section Windows.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::StreamError;
use super::frames::{Ended, Run, Settled};
use super::growing::{Growing, Windows};
use super::keys::{Key, KeyColumns, Keys};
use super::late::{Late, PLACE_BYTES, Pieces, put_place, read_piece, read_place};
use super::order::{Order, Place, Waiting, place};
use super::progress::{Reader, put_length};
use super::refill::Arrival;
use crate::sql::{Condition, SqlError};
use crate::store::StateChange;
use crate::watermark::Watermark;
use crate::window::Bounds;

/// When a key's window begins and ends.
#[derive(Debug)]
pub(super) enum Rule {
    /// It ends `gap` after its last row, or `length_max` after its first.
    Session { gap: i64, length_max: Option<i64> },
    /// From a row for which `begin` holds to the next one for which `end` does, both inside, or
    /// until `length_max` after the first.
    State { begin: Condition, end: Condition, length_max: i64 },
}

/// In which order windows close: by their end; those that time ends before those that a row ends,
/// and these in the order of the rows; then by their first rows.
type Rank = (i64, Option<Place>, Place);

/// All windows of a stream.
#[derive(Debug)]
pub(super) struct Keyed {
    rule: Rule,
    order: Order,
    keys: Keys,
    open: Windows,
    /// Each open window once, by when it is due.
    ends: BTreeSet<(i64, Key)>,
    /// Windows that have ended and were not taken out yet.
    ended: BTreeMap<Rank, Box<Growing>>,
    /// Late rows of keys that may have a window.
    behind: Vec<(Key, Place)>,
    /// Number of the next window or piece.
    next: u64,
    /// Open windows whose states in the store are not those of now, and states without a window.
    changed: BTreeMap<u64, Key>,
    gone: Vec<u64>,
    pieces: Pieces,
    settled: Settled,
}

impl Keyed {
    pub(super) fn new(rule: Rule, by: Vec<String>, tables: usize) -> Self {
        // What ends a session is not which row comes first, so tables may be mixed; there a row
        // waits until none of its time can come.
        let at_once = matches!(rule, Rule::State { .. });
        Self {
            rule,
            order: Order::new(tables, at_once),
            keys: Keys::new(by),
            open: Windows::default(),
            ends: BTreeSet::new(),
            ended: BTreeMap::new(),
            behind: Vec::new(),
            next: 0,
            changed: BTreeMap::new(),
            gone: Vec::new(),
            pieces: Pieces::default(),
            settled: Settled::default(),
        }
    }

    pub(super) fn assign(
        &mut self,
        arrival: &Arrival,
        new: usize,
        watermark: &mut Watermark,
    ) -> Result<Vec<u32>, StreamError> {
        let keys = self.keys.columns(&arrival.columns)?;
        let (mut taken, late) = Order::judge(arrival, new, watermark);
        let marks = self.marks(arrival);
        let before = taken.len();
        taken.retain(|row| !marks.failed.contains_key(row));
        if let Some(error) = marks.failed.values().next().filter(|_| taken.len() < before) {
            self.settled.failed.push(((before - taken.len()) as u64, error.clone()));
        }
        self.order.keep(arrival, &taken)?;
        self.wait(arrival, &keys, &taken, &marks);
        let mut text = Vec::new();
        for &row in &late {
            keys.write(row, &mut text);
            if let Some(key) = self.keys.find(&text) {
                self.keys.hold_again(key);
                self.behind.push((key, place(arrival, row)));
            }
        }
        Ok(late)
    }

    /// Evaluates the conditions over an arrival.
    fn marks(&self, arrival: &Arrival) -> Marks {
        let Rule::State { begin, end, .. } = &self.rule else {
            return Marks::default();
        };
        let batch = arrival.columns.batch();
        let (begins, failed) = begin.holds_each(batch);
        let (ends, more) = end.holds_each(batch);
        let failed = failed.into_iter().chain(more);
        let failed = failed.filter_map(|(row, error)| Some((u32::try_from(row).ok()?, error)));
        let bits = begins.values().iter().zip(ends.values().iter());
        Marks { rows: bits.collect(), failed: failed.collect() }
    }

    fn wait(&mut self, arrival: &Arrival, keys: &KeyColumns, rows: &[u32], marks: &Marks) {
        let (mut text, mut held) = (Vec::new(), Vec::new());
        let mut last: Option<Key> = None;
        for &row in rows {
            keys.write(row, &mut text);
            let key = match last {
                Some(key) if text == held => {
                    self.keys.hold_again(key);
                    key
                }
                _ => self.keys.hold(&text),
            };
            last = Some(key);
            std::mem::swap(&mut text, &mut held);
            let (begins, ends) = marks.of(row);
            let quality = arrival.columns.quality(row as usize);
            self.order.wait(Waiting { place: place(arrival, row), key, begins, ends, quality });
        }
    }

    pub(super) fn refill(
        &mut self,
        arrival: &Arrival,
        known: usize,
        closed: Option<i64>,
    ) -> Result<u64, StreamError> {
        let keys = self.keys.columns(&arrival.columns)?;
        let marks = self.marks(arrival);
        let (mut text, mut rows, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for (row, &time) in (0_u32..).zip(&arrival.columns.times()[..known]) {
            if marks.failed.contains_key(&row) {
                continue;
            }
            // What the watermark had not passed was in time, and waited.
            if closed.is_none_or(|closed| !self.order.is_out(time, closed)) {
                waiting.push(row);
                rows.push(row);
                continue;
            }
            keys.write(row, &mut text);
            let place = place(arrival, row);
            let open = self.keys.find(&text).and_then(|key| self.open.get_mut(key));
            if let Some(open) = open.filter(|open| open.first <= place && !open.missed(place)) {
                open.take(place, arrival.columns.quality(row as usize));
                self.open.members += 1;
                rows.push(row);
            }
        }
        self.order.keep(arrival, &rows)?;
        self.wait(arrival, &keys, &waiting, &marks);
        Ok(rows.len() as u64)
    }

    /// Lets rows come to their windows, ends those that are over at `mark`, and gives out the first
    /// of those that have ended.
    pub(super) fn close(&mut self, mark: i64) -> Option<Run> {
        while let Some(row) = self.order.next(mark) {
            self.come(row);
            self.keys.release(row.key);
        }
        while let Some(&(due, key)) = self.ends.first().filter(|(due, _)| *due <= mark) {
            self.expire(due, key, mark);
        }
        for (key, place) in std::mem::take(&mut self.behind) {
            self.miss(key, place);
            self.keys.release(key);
        }
        self.give()
    }

    /// Notes a late row that could be taken for one of its key's window at a restart.
    fn miss(&mut self, key: Key, place: Place) {
        let Some(open) = self.open.get_mut(key).filter(|open| open.first <= place) else {
            return;
        };
        if open.late.note((place.table, place.position)) {
            if let Some(piece) = open.late.split(open.number, self.next) {
                self.pieces.made(self.next, piece);
                self.next += 1;
            }
            self.changed.insert(open.number, key);
            self.open.late += 1;
        }
    }

    /// Takes out windows that have ended, some at once.
    fn give(&mut self) -> Option<Run> {
        let tables = self.order.kept.tables();
        let (mut run, mut places) = (Run::new(tables), Vec::new());
        while !run.is_full(places.len()) {
            let Some(((end, ..), mut open)) = self.ended.pop_first() else {
                break;
            };
            if !open.members.is_sorted() {
                open.members.sort_unstable();
            }
            let mut rows = vec![0; tables];
            open.members.iter().for_each(|place| rows[place.table] += 1);
            let settled = open.members.len() as u64;
            self.open.members -= settled;
            // None are left where the log has lost them.
            if settled > 0 {
                let bounds = Bounds { start: open.first.time, end };
                run.windows.push(Ended { bounds, rows, settled, quality: open.mix.worst() });
                places.append(&mut open.members);
            }
        }
        if run.windows.is_empty() {
            return None;
        }
        run.gather(&self.order.kept, &places);
        for place in &places {
            self.order.kept.free(place.table, place.position);
        }
        Some(run)
    }

    /// A row comes to its key's window, or begins one, or is in none.
    fn come(&mut self, row: Waiting) {
        let time = row.place.time;
        let end = self.open.get(row.key).map(|open| self.rule.end_of(open));
        if let Some(end) = end.filter(|end| time >= *end) {
            self.end(row.key, end, None);
        }
        if let Some(open) = self.open.get_mut(row.key) {
            open.take(row.place, row.quality);
            self.open.members += 1;
            if row.ends {
                self.end(row.key, time, Some(row.place));
            }
        } else if row.begins || matches!(self.rule, Rule::Session { .. }) {
            let mut open = Growing::new(row.place, self.next);
            open.take(row.place, row.quality);
            self.open.members += 1;
            self.keys.hold_again(row.key);
            self.changed.insert(open.number, row.key);
            self.begin(row.key, open);
        } else {
            self.settled.filtered += 1;
            self.order.kept.free(row.place.table, row.place.position);
        }
    }

    /// Opens a window of a key that the caller has taken hold of.
    fn begin(&mut self, key: Key, mut open: Growing) {
        open.due = self.rule.end_of(&open);
        self.next = self.next.max(open.number + 1);
        self.ends.insert((open.due, key));
        self.open.put(key, open);
    }

    /// Ends a window that is over at `mark`, or finds when it is next to be looked at.
    fn expire(&mut self, due: i64, key: Key, mark: i64) {
        let Some(open) = self.open.get_mut(key) else {
            self.ends.remove(&(due, key));
            return;
        };
        let end = self.rule.end_of(open);
        if end <= mark {
            self.end(key, end, None);
            return;
        }
        self.ends.remove(&(due, key));
        open.due = end;
        self.ends.insert((end, key));
    }

    fn end(&mut self, key: Key, end: i64, by: Option<Place>) {
        if let Some(open) = self.open.remove(key) {
            self.ends.remove(&(open.due, key));
            self.keys.release(key);
            self.open.late -= open.late.len();
            self.pieces.remove(open.late.pieces());
            self.changed.remove(&open.number);
            if open.stored {
                self.gone.push(open.number);
            }
            self.ended.insert((end, by, open.first), open);
        }
    }

    pub(super) fn settled(&mut self) -> Settled {
        std::mem::take(&mut self.settled)
    }

    /// A watermark before which nothing happens.
    pub(super) fn first_end(&self) -> Option<i64> {
        let due = self.ends.first().map(|(due, _)| *due);
        due.into_iter().chain(self.order.first_out()).min()
    }

    pub(super) fn first_position(&self, table: usize) -> Option<u64> {
        self.order.kept.first_position(table)
    }

    pub(super) fn bytes(&self) -> usize {
        self.order.bytes() + self.keys.bytes() + self.open.bytes()
    }

    pub(super) fn rows(&self) -> u64 {
        self.open.members + self.order.len() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// What has changed of the open windows since [`Keyed::submitted`]: for each its key, its first
    /// row, and the latest of the rows that were late for it; others of these have states of their
    /// own.
    pub(super) fn changes(&self) -> Vec<StateChange> {
        let gone = self.gone.iter().map(|number| StateChange { key: *number, bytes: None });
        let changed = self.changed.iter().filter_map(|(number, key)| {
            let bytes = Some(self.write(*key, self.open.get(*key)?).into());
            Some(StateChange { key: *number, bytes })
        });
        let pieces = self.pieces.changes().map(|(key, bytes)| StateChange { key, bytes });
        gone.chain(changed).chain(pieces).collect()
    }

    fn write(&self, key: Key, open: &Growing) -> Vec<u8> {
        let text = self.keys.text(key);
        // As long as it becomes: some begin with each batch, and all are copied as they are.
        let mut out = Vec::with_capacity(4 + text.len() + 8 + PLACE_BYTES + open.late.bytes());
        put_length(&mut out, text.len());
        out.extend(text);
        out.extend(open.first.time.to_le_bytes());
        put_place(&mut out, open.first.table, open.first.position);
        open.late.write(&mut out);
        out
    }

    /// What is stored is damaged: says all of it again.
    pub(super) fn store_anew(&mut self) {
        for (key, open) in self.open.iter_mut() {
            self.pieces.remove(&open.late.gather());
            self.changed.insert(open.number, key);
        }
    }

    /// Those changes are on their way into the store.
    pub(super) fn submitted(&mut self) {
        self.gone.clear();
        self.pieces.submitted();
        for key in std::mem::take(&mut self.changed).into_values() {
            if let Some(open) = self.open.get_mut(key) {
                open.stored = true;
            }
        }
    }

    /// Opens the windows that were, without their rows.
    pub(super) fn load(&mut self, states: &[(u64, Bytes)]) -> Result<(), StreamError> {
        let tables = self.order.kept.tables();
        let (mut pieces, mut keys) = (Vec::new(), BTreeMap::new());
        for (number, state) in states {
            match read_piece(state, tables)? {
                Some(piece) => pieces.push((*number, piece)),
                None => drop(keys.insert(*number, self.load_window(*number, state)?)),
            }
        }
        for (number, piece) in pieces {
            let window = keys.get(&piece.window).and_then(|key| self.open.get_mut(*key));
            let Some(window) = window else {
                return Err(StreamError::Progress("late rows of no window".into()));
            };
            let known = window.late.len();
            window.late.join(number, piece.rows);
            self.open.late += window.late.len() - known;
            self.next = self.next.max(number.saturating_add(1));
        }
        Ok(())
    }

    fn load_window(&mut self, number: u64, state: &[u8]) -> Result<Key, StreamError> {
        let (mut rest, tables) = (Reader(state), self.order.kept.tables());
        let length = rest.u32()? as usize;
        let key = self.keys.hold(rest.bytes(length)?);
        let time = i64::from_le_bytes(rest.take()?);
        let (table, position) = read_place(&mut rest, tables)?;
        let mut open = Growing::new(Place { time, table, position }, number);
        open.late = Late::read(&mut rest, tables)?;
        rest.end()?;
        if self.open.get(key).is_some() {
            return Err(StreamError::Progress("two windows of one key".into()));
        }
        open.stored = true;
        self.open.late += open.late.len();
        self.begin(key, open);
        Ok(key)
    }
}

/// For each row of a batch whether it begins and whether it ends a window; empty where no condition
/// says so.
#[derive(Default)]
struct Marks {
    rows: Vec<(bool, bool)>,
    /// Rows for which the conditions cannot be computed: they are in no window.
    failed: BTreeMap<u32, SqlError>,
}

impl Marks {
    fn of(&self, row: u32) -> (bool, bool) {
        self.rows.get(row as usize).copied().unwrap_or_default()
    }
}

impl Rule {
    /// When time ends a window.
    fn end_of(&self, open: &Growing) -> i64 {
        match self {
            Self::Session { gap, length_max } => {
                let end = open.last.saturating_add(*gap);
                length_max.map_or(end, |max| end.min(open.first.time.saturating_add(max)))
            }
            Self::State { length_max, .. } => open.first.time.saturating_add(*length_max),
        }
    }
}
