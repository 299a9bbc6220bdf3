//! Stored rows as parts of Arrow IPC streams: a log with its table's columns, an outbox with what
//! the store knows of each record.
//!
//! Reads only what is durable, and changes nothing.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array};
use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use tidegate_engine::store::{OutboxRow, Store, StoreError};
use tidegate_web_ui::{Exported, Refusal};

use super::refusal;

/// Rows of a part at most, to whole stored values.
const ROWS_MAX: usize = 8_192;
/// Bytes of records of a part at most.
const BYTES_MAX: usize = 4 << 20;
/// How long the store may take to read on: beyond, the device does not answer.
const READ_MAX: Duration = Duration::from_secs(20);

/// What was asked of the store, or why it cannot be read: half of an export would pass for all of it.
async fn in_time<T>(
    store: &Store,
    read: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, Refusal> {
    if let Ok(read) = tokio::time::timeout(READ_MAX, read).await {
        return read.map_err(|e| refusal(&e));
    }
    let why = store.stats().unread.unwrap_or_else(|| "it gives no answer".to_owned());
    Err(Refusal::NotNow(format!("the store cannot be read on: {why}")))
}

/// A part of a table's log from position `from`; none at its end.
pub(super) async fn log(
    store: &Store,
    table: &str,
    from: u64,
) -> Result<Option<Exported>, Refusal> {
    let rows = in_time(store, store.read_whole_log(table, from, ROWS_MAX)).await?;
    let Some((position, last)) = rows.last() else {
        return Ok(None);
    };
    let next = position + last.num_rows() as u64;
    let batches: Vec<RecordBatch> = rows.into_iter().map(|(_, batch)| batch).collect();
    Ok(Some(Exported { next, arrow: stream(&batches).map_err(|e| unwritten(&e))? }))
}

/// A part of a sink's outbox beyond position `after`; none at its end.
pub(super) async fn outbox(
    store: &Store,
    sink: &str,
    after: u64,
) -> Result<Option<Exported>, Refusal> {
    let rows = in_time(store, store.waiting(sink, after, ROWS_MAX, BYTES_MAX)).await?;
    let Some(next) = rows.last().map(|row| row.position) else {
        return Ok(None);
    };
    let batch = records(&rows).and_then(|batch| stream(&[batch])).map_err(|e| unwritten(&e))?;
    Ok(Some(Exported { next, arrow: batch }))
}

fn unwritten(error: &ArrowError) -> Refusal {
    Refusal::NotNow(format!("the rows cannot be written as Arrow: {error}"))
}

fn stream(batches: &[RecordBatch]) -> Result<Vec<u8>, ArrowError> {
    let mut bytes = Vec::new();
    if let Some(first) = batches.first() {
        let mut writer = StreamWriter::try_new(&mut bytes, first.schema_ref())?;
        for batch in batches {
            writer.write(batch)?;
        }
        writer.finish()?;
    }
    Ok(bytes)
}

/// Waiting records with what the store knows of them; `body` is empty where `gap_reason` says why
/// records from `gap_from` to `seq` are missing.
fn records(rows: &[OutboxRow]) -> Result<RecordBatch, ArrowError> {
    let number = |of: &dyn Fn(&OutboxRow) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(of)))
    };
    let time = |of: &dyn Fn(&OutboxRow) -> Option<i64>| -> ArrayRef {
        let times: TimestampMicrosecondArray = rows.iter().map(of).collect();
        Arc::new(times.with_timezone("UTC"))
    };
    let gap_from: UInt64Array = rows.iter().map(|row| row.gap.map(|gap| gap.from)).collect();
    let reason: StringArray =
        rows.iter().map(|row| row.gap.map(|gap| gap.reason.as_str())).collect();
    let bodies = rows.iter().map(|row| String::from_utf8_lossy(&row.body));
    RecordBatch::try_from_iter_with_nullable([
        ("position", number(&|row| row.position), false),
        ("stream", Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &*r.stream))), false),
        ("epoch", number(&|row| row.epoch), false),
        ("seq", number(&|row| row.seq), false),
        ("created", time(&|row| Some(row.created)), false),
        ("window_start", time(&|row| row.window.map(|window| window.0)), true),
        ("window_end", time(&|row| row.window.map(|window| window.1)), true),
        ("gap_from", Arc::new(gap_from), true),
        ("gap_reason", Arc::new(reason), true),
        ("body", Arc::new(StringArray::from_iter_values(bodies)), false),
    ])
}
