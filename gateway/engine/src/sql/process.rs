//! Where a program beside the engine takes a query's results and gives others in their place.
//!
//! It stands behind the SQL and before results are numbered, so that whatever it gives is committed
//! with the progress that it stands for, or not at all. How it is reached is not known here.

use std::fmt::Debug;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use futures::future::BoxFuture;

use crate::window::Bounds;

/// Makes other rows of a query's results.
pub trait Process: Debug + Send + Sync {
    /// The columns of the rows that it gives.
    fn schema(&self) -> SchemaRef;

    /// Makes rows of the results of one window or batch, of which there is at least one. An error
    /// says why it refuses these rows, which then count as failed. Where it cannot be said whether it
    /// would, because nobody answers, the future does not end: the caller drops it with its stream,
    /// which is restored later. The same results may be given to it again after that.
    fn process(
        &mut self,
        results: Vec<RecordBatch>,
        window: Option<Bounds>,
    ) -> BoxFuture<'_, Result<Vec<RecordBatch>, String>>;
}
