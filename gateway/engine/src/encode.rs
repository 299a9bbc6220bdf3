//! Results as JSON text.

use arrow::record_batch::RecordBatch;
use bytes::Bytes;

/// How rows become JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JsonOptions {
    /// Write 64-bit integers beyond ±2^53 as strings.
    pub int64_as_string: bool,
    /// Adds `_id` and `_quality` to each row.
    pub meta: Option<Meta>,
}

/// What the `meta` envelope says of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// `gateway/epoch/stream`; the row's id is this, `/` and its sequence number.
    pub id_prefix: String,
    /// `good`, `uncertain` or `bad`.
    pub quality: &'static str,
}

/// Why rows could not become JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A column has a type that JSON output does not know; the SQL has to cast it.
    #[error("column `{column}` has type {data_type}, which JSON output does not know: cast it")]
    Type {
        /// The column.
        column: String,
        /// Its Arrow type.
        data_type: String,
    },
}

/// Writes one JSON object per row, without a line end.
pub fn json_rows(
    batch: &RecordBatch,
    options: &JsonOptions,
    first_seq: u64,
) -> Result<Vec<Bytes>, EncodeError> {
    todo!("{batch:?} {options:?} {first_seq}")
}
