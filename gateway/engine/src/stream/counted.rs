//! Windows of a number of rows, in the order of the log.
//!
//! Promise: a window closes with its last row, whatever the time; no row is late. Windows are
//! counted by log positions from the stream's first row on, so that a restart finds the same ones;
//! one of which the log has lost rows holds what is left. It asks no watermark.
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
    size: u64,
    step: u64,
    kept: Kept,
    /// Rows that a window may need, in the order of the log.
    rows: VecDeque<(Place, &'static str)>,
    /// Log position of the first row that there ever was.
    origin: Option<u64>,
    /// Number of the next window to close.
    next: u64,
    /// Log position after the last row.
    end: u64,
}

impl Counted {
    pub(super) fn new(size: u64, step: u64) -> Self {
        let rows = VecDeque::new();
        Self { size, step, kept: Kept::new(1), rows, origin: None, next: 0, end: 0 }
    }

    pub(super) fn assign(
        &mut self,
        arrival: &Arrival,
        new: usize,
        watermark: &mut Watermark,
    ) -> Result<Vec<u32>, StreamError> {
        let mut sources = Sources::of(arrival);
        for (row, &time) in (0_u32..).zip(arrival.columns.times()).skip(new) {
            sources.observe(watermark, row, time);
        }
        let known = (0_u32..).take(arrival.columns.len());
        self.take(arrival, &known.skip(new).collect::<Vec<u32>>())?;
        Ok(Vec::new())
    }

    pub(super) fn refill(&mut self, arrival: &Arrival, known: usize) -> Result<u64, StreamError> {
        let needed = arrival.row_at(self.start_of(self.next));
        let rows: Vec<u32> = (0_u32..).take(known).skip(needed).collect();
        self.take(arrival, &rows)?;
        Ok(rows.len() as u64)
    }

    fn take(&mut self, arrival: &Arrival, rows: &[u32]) -> Result<(), StreamError> {
        self.kept.add(TABLE, arrival.position, &arrival.columns, rows)?;
        for &row in rows {
            let place = super::order::place(arrival, row);
            self.rows.push_back((place, arrival.columns.quality(row as usize)));
            self.origin.get_or_insert(place.position);
            self.end = place.position + 1;
        }
        Ok(())
    }

    /// Log position of a window's first row.
    fn start_of(&self, window: u64) -> u64 {
        self.origin.unwrap_or(0).saturating_add(window.saturating_mul(self.step))
    }

    /// Gives out the first windows whose rows have all come.
    pub(super) fn close(&mut self) -> Option<Run> {
        let (mut run, mut places) = (Run::new(1), Vec::new());
        while !run.is_full(places.len()) {
            self.skip_empty();
            let start = self.start_of(self.next);
            let end = start.saturating_add(self.size);
            if end > self.end || self.rows.is_empty() {
                break;
            }
            run.windows.extend(self.window(end, &mut places));
            self.next += 1;
            let needed = self.start_of(self.next);
            let gone = self.rows.partition_point(|(place, _)| place.position < needed);
            if let Some(window) = run.windows.last_mut() {
                window.settled = gone as u64;
            }
            self.rows.drain(..gone);
        }
        if run.windows.is_empty() {
            return None;
        }
        run.gather(&self.kept, &places);
        let needed = self.start_of(self.next);
        for place in places.iter().filter(|place| place.position < needed) {
            self.kept.free(place.table, place.position);
        }
        Some(run)
    }

    /// Goes to the first window that has rows.
    fn skip_empty(&mut self) {
        let first = self.rows.front().map(|(place, _)| place.position);
        let start = self.start_of(self.next);
        if let Some(ahead) =
            first.and_then(|first| first.checked_sub(start.saturating_add(self.size)))
        {
            self.next += ahead / self.step + 1;
        }
    }

    /// The window that ends before log position `end`; puts its rows behind `places`.
    fn window(&self, end: u64, places: &mut Vec<Place>) -> Option<Ended> {
        let rows = self.rows.partition_point(|(place, _)| place.position < end);
        let mut mix = Mix::default();
        let first = places.len();
        for (place, quality) in self.rows.range(..rows) {
            mix.add(quality);
            places.push(*place);
        }
        // Functions see rows in order of time.
        places[first..].sort_unstable();
        let bounds = Bounds { start: places.get(first)?.time, end: places.last()?.time };
        Some(Ended { bounds, rows: vec![rows], settled: 0, quality: mix.worst() })
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
        let open = self.end.saturating_sub(self.start_of(self.next)).div_ceil(self.step);
        if self.rows.is_empty() { 0 } else { usize::try_from(open).unwrap_or(usize::MAX) }
    }

    /// The first row's position, and the next window's number.
    pub(super) fn save(&self) -> Vec<u8> {
        let numbers = self.origin.map(|origin| [origin, self.next]);
        numbers.into_iter().flatten().flat_map(u64::to_le_bytes).collect()
    }

    pub(super) fn load(&mut self, saved: &[u8]) -> Result<(), StreamError> {
        let mut rest = Reader(saved);
        if !saved.is_empty() {
            (self.origin, self.next) = (Some(rest.u64()?), rest.u64()?);
        }
        rest.end()
    }
}
