//! SQL over named tables: refused early with a clear text, planned once, executed many times.
//!
//! Promise: a [`Query`] gives the same rows as a freshly planned one, whatever ran before it; a text
//! that could touch files, the network, the clock or the stack is refused when it is planned.
//! It knows nothing of watermarks, logs and sinks. How a window is computed is its secret.
//! Source: design page "The engine", sections A stream and Execution; DataFusion 55.2.

mod error;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

pub use error::SqlError;

use crate::window::Bounds;

/// A table that SQL may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSchema {
    /// The name in SQL.
    pub name: String,
    /// The columns, in order: `time`, `device`, `quality`, `seq`, … and the points.
    pub schema: SchemaRef,
    /// The column that is event time: `time`, or `received_at` where arrival is taken for it. Its
    /// type is `Timestamp(Microsecond, _)` and it has no nulls.
    pub time_column: String,
}

/// Plans SQL. One per process: it holds the memory pool that all queries share.
#[derive(Debug)]
pub struct Sql {}

impl Sql {
    /// Makes a planner whose queries together may hold `memory_max` bytes in their operators.
    pub fn new(memory_max: usize) -> Result<Self, SqlError> {
        todo!("{memory_max}")
    }

    /// Plans one SELECT over `tables`. `windowed` says whether it will run over windows; without
    /// one, whatever needs more than one row is refused.
    pub fn plan(
        &self,
        sql: &str,
        tables: &[TableSchema],
        windowed: bool,
    ) -> Result<Query, SqlError> {
        todo!("{sql} {tables:?} {windowed}")
    }
}

/// A planned SELECT.
#[derive(Debug)]
pub struct Query {
    schema: SchemaRef,
}

impl Query {
    /// The columns of the result.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// How the query is computed and why, and its plans, as text for a person.
    pub fn explain(&self) -> String {
        todo!()
    }

    /// How often this query was planned since it was made: 1, however often it ran.
    pub fn plans(&self) -> u64 {
        1
    }

    /// Runs the query over `inputs`: for each table, in the order given to [`Sql::plan`], its rows.
    /// `bounds` is what `window_start()` and `window_end()` return. The rows come in an order that
    /// depends on the inputs alone. After an error or a dropped future the query can be run again.
    pub async fn execute(
        &mut self,
        inputs: Vec<Vec<RecordBatch>>,
        bounds: Option<Bounds>,
    ) -> Result<Vec<RecordBatch>, SqlError> {
        todo!("{inputs:?} {bounds:?}")
    }
}
