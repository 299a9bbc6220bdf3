//! Windows whose bounds follow from the time alone: tumbling, hopping, cumulative.
//!
//! Promise: a row is held once, in its pane; a window is a run of panes. A row belongs to those of
//! its windows that are not over when it comes, and is late when none is left. Rows of one pane
//! that came while other windows were open lie apart, so that a row that is too late for a window
//! is not in it although a batch brought it before that window was computed.

use std::collections::{BTreeMap, BTreeSet};

use super::StreamError;
use super::frames::{Closed, Sources};
use super::refill::Arrival;
use super::rows::{Held, Mix};
use crate::watermark::Watermark;
use crate::window::{Bounds, Window};

/// Start of a pane, and the end of the first window that its rows belong to. Rows that came later
/// have a later end, so that panes in order hold rows of equal time in arrival order.
type Key = (i64, i64);

/// The panes of a stream.
#[derive(Debug)]
pub(super) struct Aligned {
    window: Window,
    tables: usize,
    panes: BTreeMap<Key, Held>,
    /// For each pane the end of its next window; windows without rows are not in here.
    ends: BTreeSet<i64>,
    bytes: usize,
    rows: u64,
}

impl Aligned {
    pub(super) fn new(window: Window, tables: usize) -> Self {
        let (panes, ends) = (BTreeMap::new(), BTreeSet::new());
        Self { window, tables, panes, ends, bytes: 0, rows: 0 }
    }

    pub(super) fn assign(
        &mut self,
        arrival: &Arrival,
        new: usize,
        watermark: &mut Watermark,
    ) -> Result<Vec<u32>, StreamError> {
        let columns = &arrival.columns;
        let mut panes: BTreeMap<Key, Vec<u32>> = BTreeMap::new();
        let mut late: Vec<u32> = Vec::new();
        let mut sources = Sources::of(arrival);
        // The rows at hand of one pane. It starts as one that holds nothing.
        let mut pane = Bounds { start: 0, end: 0 };
        let (mut end, mut run): (i64, Vec<u32>) = (0, Vec::new());
        for (row, &time) in (0_u32..).zip(columns.times()).skip(new) {
            let same = pane.start <= time && time < pane.end;
            if !same || watermark.has_passed(end) {
                let next = if same { pane } else { self.window.pane_of(time) };
                let open = self.open_end(next, watermark);
                if !run.is_empty() && (next != pane || open != Some(end)) {
                    panes.entry((pane.start, end)).or_default().append(&mut run);
                }
                // That of a pane without open windows has passed, whenever it is asked again.
                (pane, end) = (next, open.unwrap_or(next.end));
                if open.is_none() {
                    late.push(row);
                } else {
                    run.push(row);
                }
            } else {
                run.push(row);
            }
            sources.observe(watermark, row, time);
        }
        if !run.is_empty() {
            panes.entry((pane.start, end)).or_default().extend(run);
        }
        for (key, rows) in panes {
            self.add(key, arrival, rows)?;
        }
        Ok(late)
    }

    /// End of the first window of a pane that is not over.
    fn open_end(&self, pane: Bounds, watermark: &mut Watermark) -> Option<i64> {
        let first = self.window.first_end(pane, None)?;
        if watermark.has_passed(first) {
            self.window.first_end(pane, watermark.current())
        } else {
            Some(first)
        }
    }

    pub(super) fn refill(
        &mut self,
        arrival: &Arrival,
        known: usize,
        closed: Option<i64>,
    ) -> Result<u64, StreamError> {
        let mut panes: BTreeMap<Key, Vec<u32>> = BTreeMap::new();
        for (row, &time) in (0_u32..).zip(&arrival.columns.times()[..known]) {
            // A window that is open now was open when the row came: a row that was late has none.
            let pane = self.window.pane_of(time);
            if let Some(end) = self.window.first_end(pane, closed) {
                panes.entry((pane.start, end)).or_default().push(row);
            }
        }
        let mut refilled = 0;
        for (key, rows) in panes {
            refilled += rows.len() as u64;
            self.add(key, arrival, rows)?;
        }
        Ok(refilled)
    }

    fn add(&mut self, key: Key, arrival: &Arrival, rows: Vec<u32>) -> Result<(), StreamError> {
        let (bytes, count) = (&mut self.bytes, rows.len() as u64);
        let held = self.panes.entry(key).or_insert_with(|| {
            let held = Held::new(self.tables);
            *bytes += held.bytes();
            self.ends.insert(key.1);
            held
        });
        *bytes -= held.bytes();
        let added = held.add(arrival.table, arrival.position, &arrival.columns, rows);
        *bytes += held.bytes();
        self.rows += count;
        added
    }

    pub(super) fn close(&mut self, mark: i64) -> Option<Closed> {
        let end = *self.ends.first()?;
        if end > mark {
            return None;
        }
        self.ends.pop_first();
        let bounds = self.window.ending_at(end);
        let mut batches = vec![Vec::new(); self.tables];
        let (mut mix, mut done) = (Mix::default(), Vec::new());
        for (&(start, first), held) in self.panes.range((bounds.start, i64::MIN)..(end, i64::MIN)) {
            if first > end {
                continue;
            }
            mix.merge(held.mix());
            for (table, batches) in batches.iter_mut().enumerate() {
                batches.extend_from_slice(held.batches(table));
            }
            match self.window.first_end(self.window.pane_of(start), Some(end)) {
                Some(next) => {
                    self.ends.insert(next);
                }
                None => done.push((start, first)),
            }
        }
        let mut settled = 0;
        for held in done.iter().filter_map(|key| self.panes.remove(key)) {
            settled += held.mix().rows();
            self.bytes -= held.bytes();
        }
        self.rows -= settled;
        Some(Closed { bounds, batches, settled, quality: mix.worst() })
    }

    pub(super) fn first_end(&self) -> Option<i64> {
        self.ends.first().copied()
    }

    pub(super) fn first_position(&self, table: usize) -> Option<u64> {
        self.panes.values().filter_map(|held| held.first_position(table)).min()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Open windows that have rows: the ends of each pane's windows, each counted once.
    pub(super) fn len(&self) -> usize {
        let (mut open, mut counted) = (0, None);
        for &(start, first) in self.panes.keys() {
            let pane = self.window.pane_of(start);
            // Ends rise from pane to pane: what the pane before had is counted.
            let closed = self.ends.first().map(|end| end - 1);
            let after = [counted, closed, Some(first - 1)].into_iter().flatten().max();
            let mut next = self.window.first_end(pane, after);
            while let Some(end) = next {
                (open, counted) = (open + 1, Some(end));
                next = self.window.first_end(pane, counted);
            }
        }
        open
    }
}
