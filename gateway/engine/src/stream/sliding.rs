//! One window for each row: from `size` before it to `delay` after it, both ends inside.
//!
//! Promise: each row of the first table has one result, in order of time, over all rows that are
//! near enough and were not late. A row is held until no later one can reach back to it. After a
//! restart the rows that were held come back by their time; of what was late, as much is saved as
//! could be taken for these.
//! Source: design page "The engine", section Windows.

use std::collections::{BTreeMap, BTreeSet};

use super::StreamError;
use super::frames::{Ended, Run, Settled};
use super::late::{put_place, read_place};
use super::order::{Order, Place, Waiting, place};
use super::progress::{Reader, put_length};
use super::refill::Arrival;
use super::rows::Mix;
use crate::watermark::Watermark;
use crate::window::Bounds;

/// What a row costs beside its values, in bytes.
const ROW_COST: usize = 2 * size_of::<Place>() + size_of::<&str>();

/// The table whose rows have windows.
const LEADER: usize = 0;

/// All windows of a stream.
#[derive(Debug)]
pub(super) struct Sliding {
    size: i64,
    delay: i64,
    order: Order,
    /// Rows that the watermark has passed, with their quality, as long as a window can need them.
    rows: BTreeMap<Place, &'static str>,
    /// Those of them whose own window is still open.
    open: BTreeSet<Place>,
    late: BTreeSet<Place>,
    settled: Settled,
}

impl Sliding {
    pub(super) fn new(size: i64, delay: i64, tables: usize) -> Self {
        Self {
            size,
            delay,
            order: Order::new(tables, false),
            rows: BTreeMap::new(),
            open: BTreeSet::new(),
            late: BTreeSet::new(),
            settled: Settled::default(),
        }
    }

    pub(super) fn assign(
        &mut self,
        arrival: &Arrival,
        new: usize,
        watermark: &mut Watermark,
    ) -> Result<Vec<u32>, StreamError> {
        let (taken, late) = Order::judge(arrival, new, watermark);
        self.late.extend(late.iter().map(|row| place(arrival, *row)));
        self.order.keep(arrival, &taken)?;
        for &row in &taken {
            self.wait(arrival, row);
        }
        Ok(late)
    }

    fn wait(&mut self, arrival: &Arrival, row: u32) {
        let quality = arrival.columns.quality(row as usize);
        let place = place(arrival, row);
        self.order.wait(Waiting { place, key: 0, begins: false, ends: false, quality });
    }

    pub(super) fn refill(
        &mut self,
        arrival: &Arrival,
        known: usize,
        closed: Option<i64>,
    ) -> Result<u64, StreamError> {
        let (mut rows, mut refilled) = (Vec::new(), 0);
        for row in (0_u32..).take(known) {
            let place = place(arrival, row);
            let out = closed.filter(|closed| self.order.is_out(place.time, *closed));
            if let Some(closed) = out {
                let reach = closed.saturating_sub(self.delay).saturating_sub(self.size);
                if place.time < reach || self.late.contains(&place) {
                    continue;
                }
                self.rows.insert(place, arrival.columns.quality(row as usize));
                if place.table == LEADER && self.is_open(place, closed) {
                    self.open.insert(place);
                    refilled += 1;
                }
            } else {
                self.wait(arrival, row);
                refilled += 1;
            }
            rows.push(row);
        }
        self.order.keep(arrival, &rows)?;
        Ok(refilled)
    }

    /// Whether rows may still come into the window of a row.
    fn is_open(&self, place: Place, mark: i64) -> bool {
        place.time.saturating_add(self.delay) >= mark
    }

    /// Lets rows come to their windows, and gives out the first of those that are over at `mark`.
    pub(super) fn close(&mut self, mark: i64) -> Option<Run> {
        while let Some(row) = self.order.next(mark) {
            self.rows.insert(row.place, row.quality);
            if row.place.table == LEADER {
                self.open.insert(row.place);
            } else {
                // It has no window of its own to be counted with.
                self.settled.windowed += 1;
            }
        }
        let tables = self.order.kept.tables();
        let (mut run, mut places) = (Run::new(tables), Vec::new());
        while !run.is_full(places.len()) {
            let first = self.open.first().copied();
            let Some(row) = first.filter(|row| !self.is_open(*row, mark)) else {
                break;
            };
            self.open.pop_first();
            run.windows.push(self.window(row, &mut places));
        }
        if !run.windows.is_empty() {
            run.gather(&self.order.kept, &places);
        }
        self.forget(mark);
        (!run.windows.is_empty()).then_some(run)
    }

    /// The window of a row; puts its rows behind `places`.
    fn window(&self, row: Place, places: &mut Vec<Place>) -> Ended {
        let bounds = Bounds {
            start: row.time.saturating_sub(self.size),
            end: row.time.saturating_add(self.delay),
        };
        let at = |time| Place { time, table: 0, position: 0 };
        let after = Place { time: bounds.end, table: usize::MAX, position: u64::MAX };
        let (mut mix, mut rows) = (Mix::default(), vec![0; self.order.kept.tables()]);
        for (place, quality) in self.rows.range(at(bounds.start)..=after) {
            mix.add(quality);
            rows[place.table] += 1;
            places.push(*place);
        }
        Ended { bounds, rows, settled: 1, quality: mix.worst() }
    }

    /// Lets go what no window can need any more: rows still to come are not before `mark`.
    fn forget(&mut self, mark: i64) {
        let next = self.open.first().map_or(mark, |row| row.time);
        let reach = next.saturating_sub(self.size);
        let from = Place { time: reach, table: 0, position: 0 };
        while let Some((&place, _)) = self.rows.first_key_value().filter(|(p, _)| **p < from) {
            self.rows.remove(&place);
            self.order.kept.free(place.table, place.position);
        }
        if self.late.first().is_some_and(|place| *place < from) {
            self.late = self.late.split_off(&from);
        }
    }

    pub(super) fn settled(&mut self) -> Settled {
        std::mem::take(&mut self.settled)
    }

    /// A watermark before which nothing happens.
    pub(super) fn first_end(&self) -> Option<i64> {
        let over = |row: &Place| row.time.saturating_add(self.delay).saturating_add(1);
        self.open.first().map(over).into_iter().chain(self.order.first_out()).min()
    }

    pub(super) fn first_position(&self, table: usize) -> Option<u64> {
        self.order.kept.first_position(table)
    }

    pub(super) fn bytes(&self) -> usize {
        self.order.bytes() + (self.rows.len() + self.open.len() + self.late.len()) * ROW_COST
    }

    /// Rows that are not counted yet: those whose own window is open, and those that wait.
    pub(super) fn rows(&self) -> u64 {
        (self.open.len() + self.order.len()) as u64
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// The late rows that a window could need, had they been in time.
    pub(super) fn save(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.late.is_empty() {
            put_length(&mut out, self.late.len());
            for late in &self.late {
                out.extend(late.time.to_le_bytes());
                put_place(&mut out, late.table, late.position);
            }
        }
        out
    }

    pub(super) fn load(&mut self, saved: &[u8]) -> Result<(), StreamError> {
        if saved.is_empty() {
            return Ok(());
        }
        let mut rest = Reader(saved);
        for _ in 0..rest.u32()? {
            let time = i64::from_le_bytes(rest.take()?);
            let (table, position) = read_place(&mut rest, self.order.kept.tables())?;
            self.late.insert(Place { time, table, position });
        }
        rest.end()
    }
}
