//! What a restart reads again: rows that open windows had held.
//!
//! Promise: a row from before the restart goes back into its window if that was still open, and
//! nowhere else; no window closes and no new row is applied until every table has been read up to
//! where the stream was, so the order in which tables are read is free.

use super::rows::Columns;
use super::{Stream, StreamError};

/// Rows of one table on their way into the stream.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) table: usize,
    pub(super) position: u64,
    pub(super) columns: Columns,
    /// All of them are from the future, and none belongs into a window.
    pub(super) future: bool,
    /// Rows that were given the time of their arrival.
    pub(super) restamped: Vec<u32>,
}

impl Arrival {
    /// Log position after the last row.
    pub(super) fn end(&self) -> u64 {
        self.position.saturating_add(self.columns.len() as u64)
    }

    /// How many rows from index `new` on were given the time of their arrival.
    pub(super) fn restamped_from(&self, new: usize) -> u64 {
        self.restamped.iter().filter(|row| **row as usize >= new).count() as u64
    }

    /// Index of the row with log position `position`, at most the number of rows.
    pub(super) fn row_at(&self, position: u64) -> usize {
        let ahead = position.saturating_sub(self.position);
        usize::try_from(ahead).unwrap_or(usize::MAX).min(self.columns.len())
    }
}

/// What is still to be read again after a restart. New rows wait until it is done, so that the
/// progress of before the restart stays true to its last byte.
#[derive(Debug)]
pub(super) struct Refill {
    /// Windows that end at or before this were closed before the restart.
    pub(super) closed: Option<i64>,
    /// For each table: from where, and up to which position, rows refill.
    pub(super) from: Vec<u64>,
    pub(super) until: Vec<u64>,
    pub(super) done: Vec<bool>,
    /// Rows that open windows held, and how many came back.
    pub(super) rows: u64,
    pub(super) refilled: u64,
    pub(super) waiting: Vec<Arrival>,
    pub(super) waiting_bytes: usize,
}

impl Stream {
    /// Puts rows from before the restart back into their windows. Gives back what is to be applied
    /// as new: nothing until all tables are refilled.
    pub(super) fn refill(&mut self, arrival: Arrival) -> Result<Vec<Arrival>, StreamError> {
        let (Some(refill), Some(frames)) = (&mut self.refill, &mut self.frames) else {
            return Ok(vec![arrival]);
        };
        let table = arrival.table;
        let known = arrival.row_at(refill.until[table]);
        // Rows that are only looked at are in no window.
        if !arrival.future && table < self.spec.tables_in_from() {
            refill.refilled += frames.refill(&arrival, known, refill.closed)?;
        }
        if arrival.end() >= refill.until[table] {
            refill.done[table] = true;
        }
        if arrival.end() > refill.until[table] {
            refill.waiting_bytes += arrival.columns.batch().get_array_memory_size();
            refill.waiting.push(arrival);
        }
        Ok(self.end_refill(false))
    }

    /// Ends the refill if it is complete, or where there is no more to come, and gives back the
    /// rows that waited for it. Rows that did not come back are dropped.
    pub(super) fn end_refill(&mut self, no_more: bool) -> Vec<Arrival> {
        let complete = |refill: &mut Refill| no_more || refill.done.iter().all(|done| *done);
        match self.refill.take_if(complete) {
            None => Vec::new(),
            Some(refill) => {
                self.counts.dropped += refill.rows.saturating_sub(refill.refilled);
                refill.waiting
            }
        }
    }
}
