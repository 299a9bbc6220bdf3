//! Tables that are loaded as a whole, from somewhere that is not known here, and the copy that
//! carries their rows over a restart.
//!
//! Promise: whoever reads sees all rows of one load or all of another, never a mixture; a copy is
//! read back as it was written or refused. It does no I/O and asks no clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use tokio::sync::watch;

/// A table of which SQL sees the rows that were loaded last.
#[derive(Debug)]
pub struct Lookup {
    name: String,
    schema: SchemaRef,
    rows: watch::Sender<Option<RecordBatch>>,
    /// How often rows were put in place.
    loads: AtomicU64,
}

impl Lookup {
    /// A table that was not loaded yet.
    pub fn new(name: &str, schema: SchemaRef) -> Self {
        Self {
            name: name.to_owned(),
            schema,
            rows: watch::Sender::new(None),
            loads: AtomicU64::new(0),
        }
    }

    /// The name in SQL.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The rows that were loaded last; none before the first load.
    pub fn rows(&self) -> Option<RecordBatch> {
        self.rows.borrow().clone()
    }

    /// The number of the load that the rows are of, or of the one before.
    pub(crate) fn load(&self) -> u64 {
        self.loads.load(Ordering::Acquire)
    }

    /// Puts other rows in place, for every execution that begins from now on.
    ///
    /// # Errors
    /// Where they have other columns; the old ones stay.
    pub fn replace(&self, rows: RecordBatch) -> Result<(), ArrowError> {
        if rows.schema_ref().fields() != self.schema.fields() {
            let what = format!("rows of other columns for the lookup `{}`", self.name);
            return Err(ArrowError::SchemaError(what));
        }
        self.rows.send_replace(Some(rows));
        self.loads.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Resolves when there are rows, be it none in number. Cancel safe.
    pub async fn loaded(&self) {
        let mut rows = self.rows.subscribe();
        // The sender lives as long as this does.
        drop(rows.wait_for(Option::is_some).await);
    }
}

const MAGIC: &[u8; 4] = b"TGL1";

/// The rows of a lookup, when they were loaded (microseconds since 1970, UTC) and from what, as bytes:
/// magic, CRC32 of what follows, the time, CRC32 of `source` (numbers are little-endian), and an
/// Arrow IPC stream.
pub fn write_copy(rows: &RecordBatch, loaded: i64, source: &str) -> Result<Vec<u8>, ArrowError> {
    let mut body = loaded.to_le_bytes().to_vec();
    body.extend(crc32fast::hash(source.as_bytes()).to_le_bytes());
    let mut writer = StreamWriter::try_new(&mut body, rows.schema_ref())?;
    writer.write(rows)?;
    writer.finish()?;
    drop(writer);
    let crc = crc32fast::hash(&body).to_le_bytes();
    Ok([&MAGIC[..], &crc, &body].concat())
}

/// What [`write_copy`] made. None where the bytes are damaged, or the rows are not of `schema` or from
/// another source.
pub fn read_copy(bytes: &[u8], schema: &SchemaRef, source: &str) -> Option<(RecordBatch, i64)> {
    let (crc, body) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<4>()?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let (loaded, stream) = body.split_first_chunk::<8>()?;
    let (of, stream) = stream.split_first_chunk::<4>()?;
    if crc32fast::hash(source.as_bytes()) != u32::from_le_bytes(*of) {
        return None;
    }
    let mut reader = StreamReader::try_new(stream, None).ok()?;
    if reader.schema().fields() != schema.fields() {
        return None;
    }
    let rows = reader.next()?.ok()?;
    let rows = RecordBatch::try_new(Arc::clone(schema), rows.columns().to_vec()).ok()?;
    Some((rows, i64::from_le_bytes(*loaded)))
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Float64Array, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    fn rows() -> RecordBatch {
        let schema = Schema::new(vec![
            Field::new("device", DataType::Utf8, true),
            Field::new("high", DataType::Float64, true),
        ]);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from(vec![Some("a"), None])),
            Arc::new(Float64Array::from(vec![None, Some(2.5)])),
        ];
        RecordBatch::try_new(Arc::new(schema), columns).unwrap()
    }

    #[test]
    fn a_copy_is_read_back_or_refused() {
        let rows = rows();
        let bytes = write_copy(&rows, 17, "s").unwrap();
        assert_eq!(read_copy(&bytes, &rows.schema(), "s"), Some((rows.clone(), 17)));
        for length in 0..bytes.len() {
            assert_eq!(read_copy(&bytes[..length], &rows.schema(), "s"), None, "{length}");
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert_eq!(read_copy(&bad, &rows.schema(), "s"), None, "{at}");
        }
        let fewer = Arc::new(rows.schema().project(&[0]).unwrap());
        assert_eq!(read_copy(&bytes, &fewer, "s"), None);
        assert_eq!(read_copy(&bytes, &rows.schema(), "t"), None);
        let empty = rows.slice(0, 0);
        let bytes = write_copy(&empty, -1, "s").unwrap();
        assert_eq!(read_copy(&bytes, &rows.schema(), "s"), Some((empty, -1)));
    }

    #[tokio::test]
    async fn rows_of_other_columns_are_refused() {
        let lookup = Lookup::new("limits", rows().schema());
        assert_eq!(lookup.rows(), None);
        lookup.replace(rows().project(&[0]).unwrap()).unwrap_err();
        assert_eq!(lookup.rows(), None);
        lookup.replace(rows()).unwrap();
        lookup.loaded().await;
        assert_eq!(lookup.rows(), Some(rows()));
    }
}
