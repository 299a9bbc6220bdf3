//! Rows that wait until the watermark has passed them, for windows that need them in order.
//!
//! Promise: rows come out in order of (time, table, log position), whatever the order in which they
//! came, because a row behind the watermark is late and is not taken. It knows neither keys nor
//! windows.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

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
    waiting: Line,
    /// Whether a row comes out when the watermark is at its time, rather than past it. Right where
    /// rows of equal time come in the order of their positions: with one table.
    at_once: bool,
}

impl Order {
    pub(super) fn new(tables: usize, at_once: bool) -> Self {
        Self { kept: Kept::new(tables), waiting: Line::default(), at_once }
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
        if watermark.none_is_behind(&arrival.columns.times()[new..]) {
            sources.observe_rows(watermark, new..arrival.columns.len());
            return ((0_u32..).take(arrival.columns.len()).skip(new).collect(), late);
        }
        for (row, &time) in (0_u32..).zip(arrival.columns.times()).skip(new) {
            // Behind the watermark: it has come to the microsecond after.
            let behind = watermark.has_passed(time.saturating_add(1));
            if behind { &mut late } else { &mut taken }.push(row);
            sources.observe(watermark, row as usize, time);
        }
        (taken, late)
    }

    /// Holds these rows of an arrival.
    pub(super) fn keep(&mut self, arrival: &Arrival, rows: &[u32]) -> Result<(), StreamError> {
        self.kept.add(arrival.table, arrival.position, &arrival.columns, rows)
    }

    /// Lets a row wait for the watermark.
    pub(super) fn wait(&mut self, waiting: Waiting) {
        self.waiting.push(waiting);
    }

    /// Whether a row of `time` is out once the watermark is at `mark`.
    pub(super) fn is_out(&self, time: i64, mark: i64) -> bool {
        time < mark || self.at_once && time == mark
    }

    /// The next row that the watermark `mark` lets out.
    pub(super) fn next(&mut self, mark: i64) -> Option<Waiting> {
        let first = self.waiting.first()?;
        if self.is_out(first.place.time, mark) { self.waiting.pop() } else { None }
    }

    /// At which watermark the next row comes out.
    pub(super) fn first_out(&self) -> Option<i64> {
        let first = self.waiting.first()?;
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

/// Runs that are in order, at most: sources whose clocks differ make one each.
const RUNS_MAX: usize = 8;

/// Rows in order. They nearly come in it, so that to put one in and to take one out is a look at
/// the ends of a few runs; what fits none of them lies in a heap.
#[derive(Debug, Default)]
struct Line {
    runs: Vec<VecDeque<Waiting>>,
    others: BinaryHeap<Reverse<Waiting>>,
    /// The run whose first row is the first of all runs.
    least: usize,
    len: usize,
}

impl Line {
    fn len(&self) -> usize {
        self.len
    }

    fn push(&mut self, row: Waiting) {
        self.len += 1;
        let fits = |run: &VecDeque<Waiting>| run.back().is_none_or(|last| *last <= row);
        let at = match self.runs.iter().position(fits) {
            Some(at) => at,
            None if self.runs.len() < RUNS_MAX => {
                self.runs.push(VecDeque::new());
                self.runs.len() - 1
            }
            None => return self.others.push(Reverse(row)),
        };
        let was_empty = self.runs[at].is_empty();
        self.runs[at].push_back(row);
        if was_empty && self.runs[self.least].front().is_none_or(|least| row < *least) {
            self.least = at;
        }
    }

    fn first(&self) -> Option<&Waiting> {
        let run = self.runs.get(self.least).and_then(VecDeque::front);
        let other = self.others.peek().map(|Reverse(row)| row);
        run.into_iter().chain(other).min()
    }

    fn pop(&mut self) -> Option<Waiting> {
        let run = self.runs.get(self.least).and_then(VecDeque::front);
        if let Some(Reverse(other)) = self.others.peek()
            && run.is_none_or(|run| other < run)
        {
            self.len -= 1;
            return self.others.pop().map(|Reverse(row)| row);
        }
        let row = self.runs.get_mut(self.least)?.pop_front()?;
        self.len -= 1;
        if self.runs.len() > 1 {
            let fronts = self.runs.iter().enumerate();
            let fronts = fronts.filter_map(|(at, run)| Some((run.front()?, at)));
            self.least = fronts.min().map_or(0, |(_, at)| at);
        }
        Some(row)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However far rows are out of order, they come out in it.
        #[test]
        fn rows_come_out_in_order(
            times in proptest::collection::vec((0_i64..1000, any::<bool>()), 1..200),
            step in 0_i64..12,
        ) {
            let (mut line, mut model) = (Line::default(), std::collections::BTreeSet::new());
            for (at, (jitter, pop)) in (0..).zip(times) {
                let position = u64::try_from(at).unwrap();
                let place = Place { time: at * step * 10 + jitter, table: 0, position };
                let row = Waiting { place, key: 0, begins: false, ends: false, quality: "good" };
                line.push(row);
                model.insert(row);
                if pop {
                    prop_assert_eq!(line.first(), model.first());
                    prop_assert_eq!(line.pop(), model.pop_first());
                }
                prop_assert_eq!(line.len(), model.len());
            }
            while let Some(row) = line.pop() {
                prop_assert_eq!(Some(row), model.pop_first());
            }
            prop_assert!(model.is_empty());
        }
    }
}
