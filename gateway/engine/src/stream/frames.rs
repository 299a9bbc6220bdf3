//! Where a stream's rows wait until their window is over: one seam for all kinds of windows.
//!
//! Promise: which windows a row belongs to depends on the rows, their order and the watermark at
//! each of them, never on how they were cut into batches; after [`Frames::load`] and
//! [`Frames::refill`] the open windows are what they were. It runs no SQL, counts nothing but rows
//! and bytes that it holds, and knows no clock. Adding a kind means a variant here and its module.

use super::StreamError;
use super::aligned::Aligned;
use super::refill::Arrival;
use crate::watermark::Watermark;
use crate::window::{Bounds, Window};
use arrow::record_batch::RecordBatch;

/// The open windows of a stream.
#[derive(Debug)]
pub(super) enum Frames {
    /// Windows whose bounds follow from the time alone.
    Aligned(Aligned),
}

/// A window that is over.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) bounds: Bounds,
    /// For each table its rows, those of equal time in arrival order.
    pub(super) batches: Vec<Vec<RecordBatch>>,
    /// Rows of which this was the last window, so that each row is counted once.
    pub(super) settled: u64,
    pub(super) quality: &'static str,
}

impl Frames {
    pub(super) fn new(window: &Window, tables: usize) -> Self {
        Self::Aligned(Aligned::new(window.clone(), tables))
    }

    /// Takes the rows of an arrival from index `new` on, one after the other, and shows each to
    /// the watermark. Gives back those that are late: all their windows were over when they came.
    pub(super) fn assign(
        &mut self,
        arrival: &Arrival,
        new: usize,
        watermark: &mut Watermark,
    ) -> Result<Vec<u32>, StreamError> {
        match self {
            Self::Aligned(aligned) => aligned.assign(arrival, new, watermark),
        }
    }

    /// Puts those of the first `known` rows, which were applied before a restart, back into the
    /// windows that were open then: those that end after `closed`. Gives back how many found one.
    pub(super) fn refill(
        &mut self,
        arrival: &Arrival,
        known: usize,
        closed: Option<i64>,
    ) -> Result<u64, StreamError> {
        match self {
            Self::Aligned(aligned) => aligned.refill(arrival, known, closed),
        }
    }

    /// Takes out the earliest window if the watermark `mark` has come to its end.
    pub(super) fn close(&mut self, mark: i64) -> Option<Closed> {
        match self {
            Self::Aligned(aligned) => aligned.close(mark),
        }
    }

    /// At which watermark the next window closes.
    pub(super) fn first_end(&self) -> Option<i64> {
        match self {
            Self::Aligned(aligned) => aligned.first_end(),
        }
    }

    /// Lowest log position of a table's row that is held.
    pub(super) fn first_position(&self, table: usize) -> Option<u64> {
        match self {
            Self::Aligned(aligned) => aligned.first_position(table),
        }
    }

    /// What is held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Aligned(aligned) => aligned.bytes(),
        }
    }

    /// Rows that are held, each once however many windows it is in.
    pub(super) fn rows(&self) -> u64 {
        match self {
            Self::Aligned(aligned) => aligned.rows(),
        }
    }

    /// Open windows that have rows.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Aligned(aligned) => aligned.len(),
        }
    }

    /// What [`Frames::refill`] cannot tell from the rows.
    pub(super) fn save(&self) -> Vec<u8> {
        match self {
            Self::Aligned(_) => Vec::new(),
        }
    }

    /// Takes up what [`Frames::save`] gave, before the first refill.
    pub(super) fn load(&mut self, saved: &[u8]) -> Result<(), StreamError> {
        match self {
            Self::Aligned(_) if saved.is_empty() => Ok(()),
            Self::Aligned(_) => Err(StreamError::Progress("windows that need no saving".into())),
        }
    }
}

/// Shows rows to the watermark; rows of one source in a row are looked up once.
pub(super) struct Sources<'a> {
    arrival: &'a Arrival,
    last: Option<(&'a str, usize)>,
}

impl<'a> Sources<'a> {
    pub(super) fn of(arrival: &'a Arrival) -> Self {
        Self { arrival, last: None }
    }

    /// A row with this time has been applied.
    pub(super) fn observe(&mut self, watermark: &mut Watermark, row: u32, time: i64) {
        let device = self.arrival.columns.device(row as usize);
        let source = match self.last {
            Some((known, source)) if known == device => source,
            _ => watermark.source(self.arrival.table, device),
        };
        self.last = Some((device, source));
        watermark.observe(source, time);
    }
}
