//! Waiting batches as one, where several workers compute it.

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::concat_batches;

use crate::table::Positioned;

/// Puts what waited together where several work on a batch: rows of one table that follow each other
/// and are all good. Others stay by themselves, so that each row keeps its quality.
pub(super) fn joined(gathered: &mut Vec<Positioned>, workers: usize) -> Vec<Positioned> {
    if workers < 2 {
        return std::mem::take(gathered);
    }
    let mut joined: Vec<Positioned> = Vec::with_capacity(gathered.len());
    for rows in gathered.drain(..) {
        let together = joined.last().filter(|last| {
            last.table == rows.table
                && last.position + last.batch.num_rows() as u64 == rows.position
                && last.batch.num_rows() < JOINED_ROWS
                && last.batch.schema_ref() == rows.batch.schema_ref()
                && is_good(&last.batch)
                && is_good(&rows.batch)
        });
        let batch = together.and_then(|last| {
            concat_batches(rows.batch.schema_ref(), [&last.batch, &rows.batch]).ok()
        });
        match (batch, joined.last_mut()) {
            (Some(batch), Some(last)) => last.batch = batch,
            _ => joined.push(rows),
        }
    }
    joined
}

/// Rows that are put together for several workers.
const JOINED_ROWS: usize = 8192;

fn is_good(batch: &RecordBatch) -> bool {
    let quality = batch.column_by_name("quality").and_then(|column| column.as_string_opt::<i32>());
    quality.is_some_and(|quality| quality.iter().all(|quality| quality == Some("good")))
}
