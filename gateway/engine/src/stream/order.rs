//! Rows that wait until the watermark has passed them, for windows that need them in order.
//!
//! Promise: rows come out in order of (time, table, log position), whatever the order in which they
//! came, because a row behind the watermark is late and is not taken. It knows neither keys nor
//! windows.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::StreamError;
use super::frames::Sources;
use super::kept::Kept;
use super::refill::Arrival;
use crate::watermark::Watermark;

/// Where a row stands in the order of all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) time: i64,
    pub(super) table: usize,
    pub(super) position: u64,
}

/// A row that waits, with what its windows know of it. Ordered by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Waiting {
    pub(super) place: Place,
    pub(super) key: u32,
    /// Whether it begins, and whether it ends, a window that its conditions decide about.
    pub(super) begins: bool,
    pub(super) ends: bool,
    pub(super) quality: &'static str,
}

/// The rows that wait, and all rows that are held.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) kept: Kept,
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// Whether a row comes out when the watermark is at its time, rather than past it. Right where
    /// rows of equal time come in the order of their positions: with one table.
    at_once: bool,
}

impl Order {
    pub(super) fn new(tables: usize, at_once: bool) -> Self {
        Self { kept: Kept::new(tables), waiting: BinaryHeap::new(), at_once }
    }

    /// Tells the rows of an arrival from index `new` on that are in time from those that are late,
    /// one after the other, and shows each to the watermark.
    pub(super) fn judge(
        arrival: &Arrival,
        new: usize,
        watermark: &mut Watermark,
    ) -> (Vec<u32>, Vec<u32>) {
        let (mut taken, mut late) = (Vec::new(), Vec::new());
        let mut sources = Sources::of(arrival);
        for (row, &time) in (0_u32..).zip(arrival.columns.times()).skip(new) {
            // Behind the watermark: it has come to the microsecond after.
            let behind = watermark.has_passed(time.saturating_add(1));
            if behind { &mut late } else { &mut taken }.push(row);
            sources.observe(watermark, row, time);
        }
        (taken, late)
    }

    /// Holds these rows of an arrival.
    pub(super) fn keep(&mut self, arrival: &Arrival, rows: &[u32]) -> Result<(), StreamError> {
        self.kept.add(arrival.table, arrival.position, &arrival.columns, rows)
    }

    /// Lets a row wait for the watermark.
    pub(super) fn wait(&mut self, waiting: Waiting) {
        self.waiting.push(Reverse(waiting));
    }

    /// Whether a row of `time` is out once the watermark is at `mark`.
    pub(super) fn is_out(&self, time: i64, mark: i64) -> bool {
        time < mark || self.at_once && time == mark
    }

    /// The next row that the watermark `mark` lets out.
    pub(super) fn next(&mut self, mark: i64) -> Option<Waiting> {
        let Reverse(first) = self.waiting.peek()?;
        if !self.is_out(first.place.time, mark) {
            return None;
        }
        self.waiting.pop().map(|Reverse(waiting)| waiting)
    }

    /// At which watermark the next row comes out.
    pub(super) fn first_out(&self) -> Option<i64> {
        let Reverse(first) = self.waiting.peek()?;
        Some(if self.at_once { first.place.time } else { first.place.time.saturating_add(1) })
    }

    /// Rows that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// What is held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.kept.bytes() + self.waiting.len() * size_of::<Waiting>()
    }
}

/// The place of a row of an arrival.
pub(super) fn place(arrival: &Arrival, row: u32) -> Place {
    Place {
        time: arrival.columns.times()[row as usize],
        table: arrival.table,
        position: arrival.position + u64::from(row),
    }
}
