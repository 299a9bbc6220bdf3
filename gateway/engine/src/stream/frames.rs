//! Where a stream's rows wait until their window is over: one seam for all kinds of windows.
//!
//! Promise: which windows a row belongs to depends on the rows, their order and the watermark at
//! each of them, never on how they were cut into batches; after [`Frames::load`] and
//! [`Frames::refill`] the open windows are what they were. It runs no SQL, counts nothing but rows
//! and bytes that it holds, and knows no clock. Adding a kind means a variant here and its module.

use std::ops::Range;

use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;

use super::aligned::Aligned;
use super::counted::Counted;
use super::kept::Kept;
use super::keyed::{Keyed, Rule};
use super::order::Place;
use super::refill::Arrival;
use super::rows::time_column;
use super::sliding::Sliding;
use super::{StreamError, StreamSpec};
use crate::sql::{Query, SqlError};
use crate::store::StateChange;
use crate::watermark::Watermark;
use crate::window::{Bounds, PANES_MAX, Window};

/// The open windows of a stream.
#[derive(Debug)]
pub(super) enum Frames {
    /// Windows whose bounds follow from the time alone.
    Aligned(Box<Aligned>),
    /// Windows that a key's rows begin and end.
    Keyed(Box<Keyed>),
    /// A window for each row.
    Sliding(Sliding),
    /// Windows of a number of rows.
    Counted(Counted),
}

/// A window that is over.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) bounds: Bounds,
    pub(super) input: Input,
    /// Rows of which this was the last window, so that each row is counted once.
    pub(super) settled: u64,
    pub(super) quality: &'static str,
}

/// What a window is computed from.
#[derive(Debug)]
pub(super) enum Input {
    /// For each table its rows, those of equal time in arrival order.
    Rows(Vec<Vec<RecordBatch>>),
    /// The same where the query does not go by the order of rows.
    Unordered(Vec<Vec<RecordBatch>>),
    /// States that rows were folded into.
    States(Vec<RecordBatch>),
    /// Rows could not be folded.
    Failed(SqlError),
}

/// How many rows, and how many windows, are computed together at most.
const RUN_ROWS: usize = 65_536;
const RUN_WINDOWS: usize = 8_192;

/// Windows that are over, one after the other, to be computed together: of some kinds, many are
/// over at once and few rows are in each.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) windows: Vec<Ended>,
    /// For each table the rows of all windows, those of each in order of time.
    pub(super) batches: Vec<Vec<RecordBatch>>,
    /// Why there are none, if they could not be brought together.
    pub(super) error: Option<ArrowError>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) bounds: Bounds,
    /// How many rows of each table are its.
    pub(super) rows: Vec<usize>,
    /// Rows of which this was the last window.
    pub(super) settled: u64,
    pub(super) quality: &'static str,
}

impl Run {
    pub(super) fn new(tables: usize) -> Self {
        Self { windows: Vec::new(), batches: vec![Vec::new(); tables], error: None }
    }

    /// Whether, with so many rows, no further window is to be added.
    pub(super) fn is_full(&self, rows: usize) -> bool {
        rows >= RUN_ROWS || self.windows.len() >= RUN_WINDOWS
    }

    /// Brings the rows together, in the order of `places`.
    pub(super) fn gather(&mut self, kept: &Kept, places: &[Place]) {
        for (table, batches) in self.batches.iter_mut().enumerate() {
            let places = places.iter().filter(|place| place.table == table);
            match kept.gather(table, places.map(|place| place.position)) {
                Ok(rows) => *batches = rows,
                Err(error) => self.error = Some(error),
            }
        }
    }
}

/// Rows that are counted without a window.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// They were in windows of others, and have none of their own.
    pub(super) windowed: u64,
    /// They are in no window.
    pub(super) filtered: u64,
    /// A condition failed on them.
    pub(super) failed: Vec<(u64, SqlError)>,
}

impl Frames {
    /// Frames for a stream's window; `None` where it has none. The query brings the window's
    /// conditions. An error is [`StreamError::Input`].
    pub(super) fn new(spec: &StreamSpec, query: &Query) -> Result<Option<Self>, StreamError> {
        let input = |what: &str| StreamError::Input(format!("stream `{}`: {what}", spec.name));
        let Some(window) = &spec.window else {
            return Ok(None);
        };
        if let Some(problem) = window.problem() {
            return Err(input(&problem));
        }
        let tables = spec.tables_in_from();
        if window.is_of_one_table() && tables != 1 {
            return Err(input("a window of this kind is over one table"));
        }
        for name in window.by() {
            let lacks =
                |table: &&crate::sql::TableSchema| table.schema.column_with_name(name).is_none();
            if let Some(table) = spec.tables[..tables].iter().find(lacks) {
                let what = format!("table `{}` has no column `{name}` for `by`", table.name);
                return Err(input(&what));
            }
        }
        Ok(Some(match window.clone() {
            Window::Session { gap, length_max, by } => {
                Self::Keyed(Box::new(Keyed::new(Rule::Session { gap, length_max }, by, tables)))
            }
            Window::State { length_max, by, .. } => {
                let [begin, end] = query.conditions() else {
                    return Err(input("the window's conditions were not planned"));
                };
                let (begin, end) = (begin.clone(), end.clone());
                Self::Keyed(Box::new(Keyed::new(
                    Rule::State { begin, end, length_max },
                    by,
                    tables,
                )))
            }
            Window::Sliding { size, delay } => Self::Sliding(Sliding::new(size, delay, tables)),
            Window::Count { rows, step } => Self::Counted(Counted::new(rows, step)),
            window => {
                let folds = !spec.keep_failed && window.panes() <= PANES_MAX;
                let states = query.state_schema().filter(|_| folds);
                let times = spec.tables[..tables].iter().map(time_column).collect::<Result<_, _>>();
                let ordered = query.goes_by_order();
                let max = spec.memory_max;
                Self::Aligned(Box::new(Aligned::new(window, times?, states, ordered, max)))
            }
        }))
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
            Self::Keyed(keyed) => keyed.assign(arrival, new, watermark),
            Self::Sliding(sliding) => sliding.assign(arrival, new, watermark),
            Self::Counted(counted) => counted.assign(arrival, new, watermark),
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
            Self::Keyed(keyed) => keyed.refill(arrival, known, closed),
            Self::Sliding(sliding) => sliding.refill(arrival, known, closed),
            Self::Counted(counted) => counted.refill(arrival, known),
        }
    }

    /// Puts states in the place of rows, where the query allows it and enough have come. With
    /// `may_store` states may become part of the next progress: all that was read again after a
    /// restart has been. The watermark is at `mark`, and all rows below `processed` have come.
    pub(super) async fn fold(
        &mut self,
        query: &mut Query,
        may_store: bool,
        mark: Option<i64>,
        processed: &[u64],
    ) {
        if let Self::Aligned(aligned) = self {
            aligned.fold(query, may_store, mark, processed).await;
        }
    }

    /// Takes out the earliest window if the watermark `mark` has come to its end. For kinds whose
    /// windows hold many rows each.
    pub(super) async fn close(&mut self, mark: i64, query: &mut Query) -> Option<Closed> {
        match self {
            Self::Aligned(aligned) => aligned.close(mark, query).await,
            Self::Keyed(_) | Self::Sliding(_) | Self::Counted(_) => None,
        }
    }

    /// Takes out windows that the watermark `mark` ends, if there is one; the earliest first, and
    /// not all of them at once. For the other kinds.
    pub(super) fn close_run(&mut self, mark: Option<i64>) -> Option<Run> {
        match self {
            Self::Aligned(_) => None,
            Self::Keyed(keyed) => keyed.close(mark?),
            Self::Sliding(sliding) => sliding.close(mark?),
            Self::Counted(counted) => counted.close(),
        }
    }

    /// Rows that were counted without a window since the last call.
    pub(super) fn settled(&mut self) -> Settled {
        match self {
            Self::Aligned(_) | Self::Counted(_) => Settled::default(),
            Self::Keyed(keyed) => keyed.settled(),
            Self::Sliding(sliding) => sliding.settled(),
        }
    }

    /// A watermark before which no window closes; `None` where none waits for one.
    pub(super) fn first_end(&self) -> Option<i64> {
        match self {
            Self::Aligned(aligned) => aligned.first_end(),
            Self::Keyed(keyed) => keyed.first_end(),
            Self::Sliding(sliding) => sliding.first_end(),
            Self::Counted(_) => None,
        }
    }

    /// Lowest log position of a table's row that is held.
    pub(super) fn first_position(&self, table: usize) -> Option<u64> {
        match self {
            Self::Aligned(aligned) => aligned.first_position(table),
            Self::Keyed(keyed) => keyed.first_position(table),
            Self::Sliding(sliding) => sliding.first_position(table),
            Self::Counted(counted) => counted.first_position(),
        }
    }

    /// What is held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Aligned(aligned) => aligned.bytes(),
            Self::Keyed(keyed) => keyed.bytes(),
            Self::Sliding(sliding) => sliding.bytes(),
            Self::Counted(counted) => counted.bytes(),
        }
    }

    /// Rows that are held and not counted yet, each once however many windows it is in.
    pub(super) fn rows(&self) -> u64 {
        match self {
            Self::Aligned(aligned) => aligned.rows(),
            Self::Keyed(keyed) => keyed.rows(),
            Self::Sliding(sliding) => sliding.rows(),
            Self::Counted(counted) => counted.rows(),
        }
    }

    /// Open windows that have rows.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Aligned(aligned) => aligned.len(),
            Self::Keyed(keyed) => keyed.len(),
            Self::Sliding(sliding) => sliding.len(),
            Self::Counted(counted) => counted.len(),
        }
    }

    /// What [`Frames::refill`] cannot tell from the rows, where it is little. Rows are read again from
    /// the positions `needed` on.
    pub(super) fn save(&self, needed: &[u64]) -> Vec<u8> {
        match self {
            Self::Aligned(aligned) => aligned.save(needed),
            Self::Keyed(_) => Vec::new(),
            Self::Sliding(sliding) => sliding.save(),
            Self::Counted(counted) => counted.save(),
        }
    }

    /// Takes up what [`Frames::save`] gave, before states and the first refill; `places` says for each
    /// table of then which it is now.
    pub(super) fn load(
        &mut self,
        saved: &[u8],
        places: &[Option<usize>],
    ) -> Result<(), StreamError> {
        match self {
            Self::Aligned(aligned) => aligned.resume(saved, places),
            Self::Keyed(_) if saved.is_empty() => Ok(()),
            Self::Keyed(_) => {
                Err(StreamError::Progress("windows that are not saved with it".into()))
            }
            Self::Sliding(sliding) => sliding.load(saved),
            Self::Counted(counted) => counted.load(saved),
        }
    }
}

impl Frames {
    /// Whether states beside the progress were not made by the SQL, and so go with any.
    pub(super) fn any_sql(&self) -> bool {
        matches!(self, Self::Keyed(_))
    }

    /// Whether the progress needs states beside it that the SQL made.
    pub(super) fn stores(&self) -> bool {
        matches!(self, Self::Aligned(aligned) if aligned.stores())
    }

    /// What has changed of the states beside the progress since [`Frames::submitted`].
    pub(super) fn changes(&self) -> Vec<StateChange> {
        match self {
            Self::Aligned(aligned) => aligned.changes(),
            Self::Keyed(keyed) => keyed.changes(),
            Self::Sliding(_) | Self::Counted(_) => Vec::new(),
        }
    }

    /// Says every state again, as soon as all of them can be of one moment.
    pub(super) fn store_anew(&mut self) {
        match self {
            Self::Aligned(aligned) => aligned.store_anew(),
            Self::Keyed(keyed) => keyed.store_anew(),
            Self::Sliding(_) | Self::Counted(_) => {}
        }
    }

    /// Those changes are on their way into the store, by whose progress rows are read again from
    /// `needed` on.
    pub(super) fn submitted(&mut self, needed: &[u64]) {
        match self {
            Self::Aligned(aligned) => aligned.submitted(needed),
            Self::Keyed(keyed) => keyed.submitted(),
            Self::Sliding(_) | Self::Counted(_) => {}
        }
    }

    /// Takes up states from beside a progress whose closed windows end at or before `closed`. Gives
    /// back how many rows they stand for.
    pub(super) fn load_states(
        &mut self,
        states: &[(u64, Bytes)],
        closed: Option<i64>,
    ) -> Result<u64, StreamError> {
        match self {
            Self::Aligned(aligned) => aligned.load(states, closed),
            Self::Keyed(keyed) => keyed.load(states).map(|()| 0),
            Self::Sliding(_) | Self::Counted(_) if states.is_empty() => Ok(0),
            Self::Sliding(_) | Self::Counted(_) => {
                Err(StreamError::Progress("states of windows that keep none".into()))
            }
        }
    }
}

/// After so many rows that came out of turn it is looked again whether rows come in turn.
const TURN_RETRY: usize = 8;

/// Shows rows to the watermark; rows of one source in a row are looked up once.
pub(super) struct Sources<'a> {
    arrival: &'a Arrival,
    last: Option<(&'a str, usize)>,
}

impl<'a> Sources<'a> {
    pub(super) fn of(arrival: &'a Arrival) -> Self {
        Self { arrival, last: None }
    }

    /// These rows have been applied, one after the other.
    pub(super) fn observe_rows(&mut self, watermark: &mut Watermark, rows: Range<usize>) {
        let columns = &self.arrival.columns;
        let (devices, times) = (columns.devices(), &columns.times()[..rows.end]);
        let (mut row, mut next_try, mut failed) = (rows.start, rows.start, false);
        while row < rows.end {
            if let Some(devices) = devices.filter(|_| row >= next_try) {
                let turn = watermark.observe_turn(devices, times, row);
                if turn > 0 {
                    (row, self.last, failed) = (row + turn, None, false);
                    continue;
                }
                // Where only one device was left out, its successor is found with this row.
                next_try = row + if failed { TURN_RETRY } else { 1 };
                failed = true;
            }
            self.observe(watermark, row, times[row]);
            row += 1;
        }
    }

    /// A row with this time has been applied.
    pub(super) fn observe(&mut self, watermark: &mut Watermark, row: usize, time: i64) {
        let device = self.arrival.columns.device(row);
        let source = match self.last {
            Some((known, source)) if known == device => source,
            _ => watermark.source(self.arrival.table, device),
        };
        self.last = Some((device, source));
        watermark.observe(source, time);
    }
}
