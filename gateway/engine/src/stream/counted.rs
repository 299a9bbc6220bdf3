//! Windows of a number of rows, in the order of the log.
//!
//! Promise: a window closes with its last row, whatever the time; no row is late. Rows are counted as
//! they come, so that one that was set aside is none of them. What is held begins with the first row of
//! the next window, which is all that a restart has to know. It asks no watermark.
//! Source: design page "The engine", section Windows.

use std::collections::VecDeque;

use super::StreamError;
use super::frames::{Ended, Run, Sources};
use super::kept::Kept;
use super::order::Place;
use super::progress::Reader;
use super::refill::Arrival;
use super::rows::Mix;
use crate::watermark::Watermark;
use crate::window::Bounds;

/// What a row costs beside its values, in bytes.
const ROW_COST: usize = size_of::<(Place, &str)>();

/// The one table.
const TABLE: usize = 0;

/// All windows of a stream.
#[derive(Debug)]
pub(super) struct Counted {
    size: usize,
    step: usize,
    kept: Kept,
    /// Rows from the first one of the next window on, in the order of the log.
    rows: VecDeque<(Place, &'static str)>,
    /// Log position of the first of them, at the restart.
    from: u64,
}

impl Counted {
    pub(super) fn new(size: u64, step: u64) -> Self {
        // More rows than can be counted are more than fit the memory.
        let count = |rows: u64| usize::try_from(rows).unwrap_or(usize::MAX);
        let (size, step) = (count(size), count(step));
        Self { size, step, kept: Kept::new(1), rows: VecDeque::new(), from: 0 }
    }

    pub(super) fn assign(
        &mut self,
        arrival: &Arrival,
        new: usize,
        watermark: &mut Watermark,
    ) -> Result<Vec<u32>, StreamError> {
        Sources::of(arrival).observe_rows(watermark, new..arrival.columns.len());
        let known = (0_u32..).take(arrival.columns.len());
        self.take(arrival, &known.skip(new).collect::<Vec<u32>>())?;
        Ok(Vec::new())
    }

    pub(super) fn refill(&mut self, arrival: &Arrival, known: usize) -> Result<u64, StreamError> {
        let rows: Vec<u32> = (0_u32..).take(known).skip(arrival.row_at(self.from)).collect();
        self.take(arrival, &rows)?;
        Ok(rows.len() as u64)
    }

    fn take(&mut self, arrival: &Arrival, rows: &[u32]) -> Result<(), StreamError> {
        self.kept.add(TABLE, arrival.position, &arrival.columns, rows)?;
        for &row in rows {
            let place = super::order::place(arrival, row);
            self.rows.push_back((place, arrival.columns.quality(row as usize)));
        }
        Ok(())
    }

    /// Gives out the first windows whose rows have all come.
    pub(super) fn close(&mut self) -> Option<Run> {
        let (mut run, mut places, mut gone) = (Run::new(1), Vec::new(), Vec::new());
        while self.rows.len() >= self.size && !run.is_full(places.len()) {
            run.windows.extend(self.window(&mut places));
            gone.extend(self.rows.drain(..self.step).map(|(place, _)| place));
        }
        if run.windows.is_empty() {
            return None;
        }
        run.gather(&self.kept, &places);
        for place in gone {
            self.kept.free(place.table, place.position);
        }
        Some(run)
    }

    /// The next window; puts its rows behind `places`.
    fn window(&self, places: &mut Vec<Place>) -> Option<Ended> {
        let (mut mix, first) = (Mix::default(), places.len());
        for (place, quality) in self.rows.range(..self.size) {
            mix.add(quality);
            places.push(*place);
        }
        // Functions see rows in order of time.
        places[first..].sort_unstable();
        let bounds = Bounds { start: places.get(first)?.time, end: places.last()?.time };
        let (rows, settled) = (vec![self.size], self.step as u64);
        Some(Ended { bounds, rows, settled, quality: mix.worst() })
    }

    pub(super) fn first_position(&self) -> Option<u64> {
        self.kept.first_position(TABLE)
    }

    pub(super) fn bytes(&self) -> usize {
        self.kept.bytes() + self.rows.len() * ROW_COST
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Open windows that have rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len().div_ceil(self.step)
    }

    /// The first row's log position.
    pub(super) fn save(&self) -> Vec<u8> {
        let first = self.rows.front().map(|(place, _)| place.position);
        first.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    pub(super) fn load(&mut self, saved: &[u8]) -> Result<(), StreamError> {
        let mut rest = Reader(saved);
        if !saved.is_empty() {
            self.from = rest.u64()?;
        }
        rest.end()
    }
}
