//! How a query is computed, and the steps of one that is computed in pieces.
//!
//! Promise: [`Query::fold`], [`Query::reduce`] and [`Query::finish`] together give what
//! [`Query::execute`] gives over all rows. They are there where [`Query::mode`] is
//! [`Mode::Incremental`]; which rows make a piece, and what is kept of it, is for others to say.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use super::incremental::Incremental;
use super::{Query, SqlError};
use crate::window::{Bounds, PANES_MAX, PATIENCE, Window};

/// How a query is computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// Row by row: there is no window.
    Stateless,
    /// In pieces whose states are kept in place of their rows.
    Incremental,
    /// Over all rows of a window at once.
    Recompute {
        /// What in the SQL needs all rows, in a few words.
        reason: String,
    },
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stateless => f.write_str(
                "stateless: each row is filtered and shaped by itself, and nothing is kept",
            ),
            Self::Incremental => f.write_str(
                "incremental: rows are folded into one state for each group, and only states are kept",
            ),
            Self::Recompute { reason } => write!(
                f,
                "recompute: a window's rows are kept, and the whole plan runs over them when it \
                 closes, because {reason}"
            ),
        }
    }
}

/// What is said of a query that goes by the order of its rows.
pub(super) fn in_order() -> String {
    format!(
        "; functions over time take rows in order, so a row that comes more than {} s behind the \
         watermark, or when one of its windows is over, is late",
        PATIENCE / 1_000_000
    )
}

impl Query {
    /// The query as it is computed over these windows: rows of some kinds are kept, so are those of
    /// windows of too many panes, and those that are given out where the SQL fails.
    pub(crate) fn folding_over(mut self, window: &Window, keep_failed: bool) -> Self {
        if self.parts.is_none() {
            return self;
        }
        let reason = if keep_failed {
            "rows on which it fails go to `on_error`".to_owned()
        } else if !window.is_aligned() {
            "windows of this kind are made of their rows".to_owned()
        } else if window.is_uneven() {
            let panes = window.panes();
            format!(
                "its size is no multiple of its step, so that its windows are made of {panes} short panes"
            )
        } else if window.panes() > PANES_MAX {
            let panes = window.panes();
            format!("its windows are made of {panes} panes, which is more than {PANES_MAX}")
        } else {
            return self;
        };
        self.parts = None;
        self.ordered = false;
        self.mode = Mode::Recompute { reason };
        self
    }

    /// Whether rows must come to it in the order of their times, as far as the watermark has passed
    /// them: what comes later than that is late.
    pub(crate) fn goes_by_order(&self) -> bool {
        self.ordered
    }

    /// How far the watermark passes rows before they are folded, where they are folded in order.
    pub fn waits(&self) -> Option<Duration> {
        self.ordered.then(|| Duration::from_micros(PATIENCE.unsigned_abs()))
    }

    /// The same query over all rows of each window, whatever its SQL allows: what a benchmark or a
    /// test compares with. Which rows are late does not change.
    #[must_use]
    pub fn recomputed(mut self) -> Self {
        if self.parts.take().is_some() {
            self.mode = Mode::Recompute { reason: "it was asked to be".to_owned() };
        }
        self
    }

    /// Which table's rows are folded.
    pub(crate) fn folded_table(&self) -> Option<usize> {
        self.parts.as_ref().map(|parts| parts.table)
    }

    /// The columns of states.
    pub(crate) fn state_schema(&self) -> Option<SchemaRef> {
        self.parts.as_ref().map(|parts| Arc::clone(&parts.schema))
    }

    /// Two plans with equal fingerprints make the same of their states.
    pub(crate) fn fingerprint(&self) -> u32 {
        self.parts.as_ref().map_or(0, |parts| parts.fingerprint)
    }

    fn parts(&self) -> Result<&Incremental, SqlError> {
        let none = || SqlError::new("this query is not computed in pieces");
        self.parts.as_ref().ok_or_else(none)
    }

    /// Rows of the folded table → states, one row for each group that they have. The same that is
    /// said of [`Query::execute`] holds here.
    pub(crate) async fn fold(&mut self, rows: Vec<RecordBatch>) -> Result<RecordBatch, SqlError> {
        let parts = self.parts()?;
        let feed = &self.feeds[parts.table];
        feed.fill(rows);
        let states = self.run(&parts.fold).await;
        feed.fill(Vec::new());
        Ok(parts.compact(&states?)?)
    }

    /// States → states with one row for each group. Groups come in the order in which they are in
    /// `states`.
    pub(crate) async fn reduce(
        &mut self,
        states: Vec<RecordBatch>,
    ) -> Result<RecordBatch, SqlError> {
        let parts = self.parts()?;
        parts.states.fill(states);
        let states = self.run(&parts.reduce).await;
        parts.states.fill(Vec::new());
        Ok(parts.compact(&states?)?)
    }

    /// States → the results of a window.
    pub(crate) async fn finish(
        &mut self,
        states: Vec<RecordBatch>,
        bounds: Bounds,
    ) -> Result<Vec<RecordBatch>, SqlError> {
        let parts = self.parts()?;
        self.cell.set(bounds);
        parts.states.fill(parts.with_constants(states)?);
        let results = self.run_once(&parts.finish).await;
        parts.states.fill(Vec::new());
        self.processed(results, Some(bounds)).await
    }
}
