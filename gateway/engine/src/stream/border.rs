//! What goes into a stream and what comes out of it.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;

use super::Stream;
use crate::lookup::Lookup;
use crate::sql::{Query, Sql, SqlError, TableSchema, Tables};
use crate::store::StateChange;
use crate::window::{Bounds, Window};

pub use super::judge::FutureRule;

/// What a stream is, apart from its SQL. All spans in microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSpec {
    /// The stream's name.
    pub name: String,
    /// The tables that it reads, in the order that the query was planned with; last those that it
    /// only looks at.
    pub tables: Vec<TableSchema>,
    /// How many of the tables, from the end, are only looked at by `latest('…')`: their rows are in
    /// no window and move no watermark.
    pub side_tables: usize,
    /// What the SQL reads by `latest('…')`.
    pub latest: Vec<Latest>,
    /// Sources that are known beforehand, as (index of the table, value of its `device` column).
    /// They hold the watermark from the start until they are silent for `idle_after`.
    pub sources: Vec<(usize, String)>,
    /// The window, or `None` for SQL over each batch.
    pub window: Option<Window>,
    /// How long rows may come behind the newest one of their source.
    pub allowed_lateness: i64,
    /// After how long without a row a source no longer holds the watermark.
    pub idle_after: i64,
    /// How long after their event time rows may come because windows of other streams have to close
    /// first: when the clock is followed, it is so much behind.
    pub lag: i64,
    /// What becomes of rows from the future; `None` where no row is judged. Its `max`, but an hour at
    /// least, is as well how far a source may be behind the others without catching up, and still
    /// hold the watermark; and from which step back on a clock is taken for one that was wrong.
    pub future: Option<FutureRule>,
    /// Whether rows that the SQL failed on are given out.
    pub keep_failed: bool,
    /// How many bytes of rows open windows may hold.
    pub memory_max: usize,
}

/// One name in `latest('…')`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latest {
    /// The name as the SQL has it.
    pub name: String,
    /// Index of the table whose rows are looked at.
    pub table: usize,
    /// The one device that counts; none where each device of the table has its row.
    pub device: Option<String>,
}

impl StreamSpec {
    /// How many tables have rows that come into windows or batches; they stand first.
    pub(crate) fn tables_in_from(&self) -> usize {
        self.tables.len().saturating_sub(self.side_tables)
    }

    /// Plans the stream's SQL, and the conditions of its window; many windows are computed at once
    /// where there are many.
    pub fn plan(&self, sql: &Sql, text: &str) -> Result<Query, SqlError> {
        self.plan_with(sql, text, &[])
    }

    /// The same where the SQL may look at these lookups.
    pub fn plan_with(
        &self,
        sql: &Sql,
        text: &str,
        lookups: &[Arc<Lookup>],
    ) -> Result<Query, SqlError> {
        let latest = self.latest.iter().filter_map(|latest| {
            let table = self.tables.get(latest.table)?;
            Some(TableSchema { name: latest.name.clone(), ..table.clone() })
        });
        let latest: Vec<TableSchema> = latest.collect();
        let from = &self.tables[..self.tables_in_from()];
        let tables = Tables { from, latest: &latest, lookups };
        let query = sql.plan_with(text, &tables, self.window.is_some())?;
        let conditions = match (&self.window, self.tables.first()) {
            (Some(Window::State { begin, end, .. }), Some(table)) => {
                let plan = |text: &String| sql.condition(text, &table.schema);
                vec![plan(begin)?, plan(end)?]
            }
            _ => Vec::new(),
        };
        let mut query = query.with_conditions(conditions);
        if let Some(window) = &self.window {
            query = query.folding_over(window, self.keep_failed);
        }
        let alone = self.window.as_ref().is_none_or(Window::is_aligned);
        if alone { Ok(query) } else { query.with_twin(sql) }
    }

    /// Plans the SQL by which states beside `progress` were made ([`Stream::outdated`]), so that it can go
    /// on with them; also where they were made by a version whose plans had other states.
    pub fn plan_old(
        &self,
        sql: &Sql,
        text: &str,
        lookups: &[Arc<Lookup>],
        progress: &[u8],
    ) -> Result<Query, SqlError> {
        let goes_on = |query: &Query| matches!(Stream::outdated(self, query, progress), Ok(None));
        let query = self.plan_with(sql, text, lookups)?;
        if goes_on(&query) {
            return Ok(query);
        }
        let before = self.plan_with(&sql.as_before()?, text, lookups)?;
        Ok(if goes_on(&before) { before } else { query })
    }
}

/// What happens to a stream.
#[derive(Debug, Clone)]
pub enum Event {
    /// New rows of a table. Rows of one table come in the order of their positions; rows that
    /// were applied before are skipped.
    Rows {
        /// Index of the table.
        table: usize,
        /// Log position of the batch's first row; the others follow without a gap.
        position: u64,
        /// The rows, in the table's schema.
        batch: RecordBatch,
    },
    /// Rows that are read from the log again after [`Stream::restore`]. Those below
    /// [`Progress::processed`] only refill windows that were open; the others are new. Windows do
    /// not close until every table has been refilled, so the order of tables is free.
    Replay {
        /// Index of the table.
        table: usize,
        /// Log position of the batch's first row.
        position: u64,
        /// The rows, in the table's schema.
        batch: RecordBatch,
    },
    /// The logs have been read to their ends. Needed only where a log may have lost rows that the
    /// stream had processed; otherwise the stream sees it by itself.
    Replayed,
    /// Time has passed.
    Tick,
}

/// What an event brought.
#[derive(Debug, Default)]
pub struct Effects {
    /// Results, in the order of their sequence numbers.
    pub results: Vec<Output>,
    /// Rows whose windows were all closed when they came, as they came.
    pub late: Vec<LateRows>,
    /// Windows or batches whose SQL failed. They are counted; the stream goes on.
    pub failures: Vec<StreamError>,
    /// The rows of these, where [`StreamSpec::keep_failed`] asks for them and they are still held.
    pub failed: Vec<FailedRows>,
}

/// Rows of one result.
#[derive(Debug, Clone)]
pub struct Output {
    /// The rows, in the query's schema; at least one.
    pub batch: RecordBatch,
    /// The window, where there is one.
    pub window: Option<Bounds>,
    /// Sequence number of the first row; the others follow without a gap.
    pub first_seq: u64,
    /// `good` if all input rows were good, `bad` if all were bad, else `uncertain`.
    pub quality: &'static str,
}

/// Rows that came after the last of their windows was closed.
#[derive(Debug, Clone)]
pub struct LateRows {
    /// Index of the table.
    pub table: usize,
    /// Why they are in no window.
    pub reason: LateReason,
    /// The rows, in arrival order.
    pub batch: RecordBatch,
}

/// Why a row is in no window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LateReason {
    /// Its windows were closed when it came.
    Late,
    /// Its time is too far ahead of its arrival.
    Future,
}

impl LateReason {
    /// The word in the column that says why a row is here.
    pub fn name(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Future => "future",
        }
    }
}

/// Rows that the SQL failed on.
#[derive(Debug, Clone)]
pub struct FailedRows {
    /// Index of the table.
    pub table: usize,
    /// What failed, in words.
    pub error: String,
    /// The rows, as they were held; of a window whose rows were folded those that were not.
    pub batch: RecordBatch,
}

/// What a restart needs, to be made durable together with the results that it accounts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Watermarks, sequence number and counts, for [`Stream::restore`].
    pub state: Vec<u8>,
    /// For each table the next log position to apply.
    pub processed: Vec<u64>,
    /// For each table the lowest log position that an open window still needs; equal to
    /// `processed` where there is none. Rows below it are in `states` or may be forgotten.
    pub replay_from: Vec<u64>,
    /// What has changed of the states that the store keeps beside `state`, since
    /// [`Stream::submitted`](super::Stream::submitted).
    pub states: Vec<StateChange>,
}

/// The stream's ledger:
/// `accepted = windowed + late + future + filtered + failed + dropped + open_rows`.
/// Kept across restarts, apart from `plans`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Rows taken.
    pub accepted: u64,
    /// Rows in windows that were computed, each counted once, with the last of its windows; without
    /// a window, rows that passed.
    pub windowed: u64,
    /// Rows whose windows were all closed when they came.
    pub late: u64,
    /// Rows whose time was too far ahead of their arrival.
    pub future: u64,
    /// Rows that were given the time of their arrival for that reason; they are counted elsewhere.
    pub restamped: u64,
    /// Rows given out as [`Effects::failed`]; where windows overlap, once with each.
    pub failed_out: u64,
    /// Rows that are in no window between two conditions; without a window, rows that the SQL left
    /// out.
    pub filtered: u64,
    /// Rows of batches whose SQL failed, or whose last window's did.
    pub failed: u64,
    /// Rows of open windows that a changed window definition, or changed SQL that cannot go on with
    /// what they were folded into, left without a place.
    pub dropped: u64,
    /// Rows in open windows.
    pub open_rows: u64,
    /// Open windows.
    pub open_windows: u64,
    /// Bytes of the rows and states in open windows.
    pub open_bytes: u64,
    /// The stream's watermark; `None` before the first, and without a window.
    pub watermark: Option<i64>,
    /// Result rows.
    pub results: u64,
    /// How often the SQL was planned.
    pub plans: u64,
}

/// Why a stream could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The SQL failed over one window or batch; its rows are dropped and counted. Only inside
    /// [`Effects::failures`].
    #[error("SQL failed{}: {error}", window.map_or(String::new(), |w| format!(" in window {}..{} µs", w.start, w.end)))]
    Query {
        /// The window; `None` for a batch of a stream without windows.
        window: Option<Bounds>,
        /// How many rows are counted as failed by it: those whose last window it was.
        rows: u64,
        /// What failed.
        error: SqlError,
    },
    /// Open windows hold more than they may. The event was not applied and may be tried again;
    /// `Tick` still works.
    #[error("open windows hold {held} bytes of rows, more than the {max} that this stream may")]
    Memory {
        /// Bytes held.
        held: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The caller broke the contract: a batch of another schema, a null time, a bad spec. Nothing
    /// was applied.
    #[error("{0}")]
    Input(String),
    /// The saved progress cannot be read.
    #[error("saved progress of stream cannot be read: {0}")]
    Progress(String),
}
