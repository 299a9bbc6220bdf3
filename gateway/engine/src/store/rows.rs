//! Rows of a table's log as bytes: as few as possible per payload byte.
//!
//! Arrow IPC spends 64 to 80 bytes of framing and padding per column, which is ten times the
//! payload of a batch of one row. The form here has one flag byte a column, values without
//! padding, validity only where something is null, and one copy of a value that all rows share
//! (device, quality). The schema is stored once per table and named by number. A batch with a
//! column type that the form does not know falls back to Arrow IPC. Knows no file.

use std::io::Cursor;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, make_array};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::MetadataVersion;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use super::format::{Reader, put_size};
use super::stamps::Stamps;

const COMPACT: u8 = 0;
const IPC: u8 = 1;
/// Added to the form where it is said by which clock the rows were stamped.
const STAMPED: u8 = 2;

/// Column flags.
const ALL_VALID: u8 = 0;
const SOME_NULL: u8 = 1;
const ALL_NULL: u8 = 2;
const ONE_VALUE: u8 = 3;

/// Encodes a schema alone.
pub(super) fn encode_schema(schema: &SchemaRef) -> Result<Vec<u8>, ArrowError> {
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), schema, options()?)?;
    writer.finish()?;
    writer.into_inner()
}

/// Decodes what [`encode_schema`] wrote.
pub(super) fn decode_schema(bytes: &[u8]) -> Option<SchemaRef> {
    Some(StreamReader::try_new(Cursor::new(bytes), None).ok()?.schema())
}

/// Appends rows whose schema is known as number `schema` in their table; `stamps` where their time is
/// not that of day.
pub(super) fn encode_rows(
    out: &mut Vec<u8>,
    schema: u64,
    stamps: Option<Stamps>,
    batch: &RecordBatch,
) -> Result<(), ArrowError> {
    out.extend_from_slice(&schema.to_le_bytes());
    put_size(out, batch.num_rows());
    let is_compact = batch.columns().iter().all(|column| is_compact(column.data_type()));
    let form = if is_compact { COMPACT } else { IPC };
    out.push(form | stamps.map_or(0, |_| STAMPED));
    if let Some(stamps) = stamps {
        stamps.put(out);
    }
    if is_compact {
        for column in batch.columns() {
            encode_column(out, column);
        }
        return Ok(());
    }
    let mut writer = StreamWriter::try_new_with_options(out, &batch.schema(), options()?)?;
    writer.write(batch)?;
    writer.finish()
}

/// How many rows an encoded value holds, and the number of their schema.
pub(super) fn row_count(body: &[u8]) -> Option<(u64, usize)> {
    let mut reader = Reader(body);
    Some((reader.u64()?, reader.size()?))
}

/// By which clock the rows of an encoded value were stamped, where that is said.
pub(super) fn stamps_of(body: &[u8]) -> Option<Stamps> {
    let mut reader = Reader(body);
    let (_, _, form) = (reader.u64()?, reader.size()?, reader.u8()?);
    if form & STAMPED == 0 { None } else { Stamps::take(&mut reader) }
}

/// Decodes what [`encode_rows`] wrote, with the times that they were given; `None` when the bytes do not fit the schema.
pub(super) fn decode_rows(schema: &SchemaRef, body: &[u8]) -> Option<RecordBatch> {
    let mut reader = Reader(body);
    let (_, rows, form) = (reader.u64()?, reader.size()?, reader.u8()?);
    if form & STAMPED != 0 {
        Stamps::take(&mut reader)?;
    }
    if form & !STAMPED == IPC {
        let batch = StreamReader::try_new(Cursor::new(reader.0), None).ok()?.next()?.ok()?;
        return (batch.num_rows() == rows && batch.schema() == *schema).then_some(batch);
    }
    let columns: Option<Vec<ArrayRef>> = schema
        .fields()
        .iter()
        .map(|field| decode_column(&mut reader, field.data_type(), rows))
        .collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(Arc::clone(schema), columns?, &options).ok()?;
    reader.0.is_empty().then_some(batch)
}

/// The smallest framing that Arrow allows.
fn options() -> Result<IpcWriteOptions, ArrowError> {
    IpcWriteOptions::try_new(8, false, MetadataVersion::V5)
}

fn is_compact(data_type: &DataType) -> bool {
    data_type.primitive_width().is_some() || matches!(data_type, DataType::Boolean | DataType::Utf8)
}

fn encode_column(out: &mut Vec<u8>, column: &ArrayRef) {
    let rows = column.len();
    if rows > 0 && column.null_count() == rows {
        out.push(ALL_NULL);
        return;
    }
    if let Some(nulls) = column.nulls().filter(|nulls| nulls.null_count() > 0) {
        out.push(SOME_NULL);
        out.extend_from_slice(&nulls.inner().sliced().as_slice()[..rows.div_ceil(8)]);
        encode_values(out, column);
    } else if rows > 1 && is_one_value(column) {
        out.push(ONE_VALUE);
        encode_values(out, &column.slice(0, 1));
    } else {
        out.push(ALL_VALID);
        encode_values(out, column);
    }
}

/// Whether all rows (none is null) hold the same value. Booleans are small enough as they are.
fn is_one_value(column: &ArrayRef) -> bool {
    if let Some(strings) = column.as_string_opt::<i32>() {
        return (1..strings.len()).all(|row| strings.value(row) == strings.value(0));
    }
    let data = column.to_data();
    fixed_values(&data).is_some_and(|(values, width)| {
        values.chunks_exact(width).all(|value| value == &values[..width])
    })
}

/// The bytes of a fixed-width column's rows, and the width of one.
fn fixed_values(data: &ArrayData) -> Option<(&[u8], usize)> {
    let width = data.data_type().primitive_width()?;
    let bytes = data.buffers()[0].as_slice();
    Some((&bytes[data.offset() * width..][..data.len() * width], width))
}

fn encode_values(out: &mut Vec<u8>, column: &ArrayRef) {
    if let Some(strings) = column.as_string_opt::<i32>() {
        for row in 0..strings.len() {
            put_size(out, if strings.is_null(row) { 0 } else { strings.value(row).len() });
        }
        for text in strings.iter().flatten() {
            out.extend_from_slice(text.as_bytes());
        }
    } else if let Some(booleans) = column.as_boolean_opt() {
        let bits = booleans.values().sliced();
        out.extend_from_slice(&bits.as_slice()[..column.len().div_ceil(8)]);
    } else if let Some((values, _)) = fixed_values(&column.to_data()) {
        out.extend_from_slice(values);
    }
}

fn decode_column(reader: &mut Reader<'_>, data_type: &DataType, rows: usize) -> Option<ArrayRef> {
    let flag = reader.u8()?;
    if flag == ALL_NULL {
        return Some(arrow::array::new_null_array(data_type, rows));
    }
    let validity = match flag {
        SOME_NULL => Some(Buffer::from(reader.take(rows.div_ceil(8))?)),
        _ => None,
    };
    let stored = if flag == ONE_VALUE { 1 } else { rows };
    let buffers = match data_type {
        DataType::Utf8 => decode_text(reader, stored, rows)?,
        DataType::Boolean => vec![Buffer::from(reader.take(stored.div_ceil(8))?)],
        fixed => {
            let width = fixed.primitive_width()?;
            let values = reader.take(stored.checked_mul(width)?)?;
            match flag {
                ONE_VALUE => vec![Buffer::from(values.repeat(rows).as_slice())],
                _ => vec![Buffer::from(values)],
            }
        }
    };
    let data = ArrayData::builder(data_type.clone())
        .len(rows)
        .null_bit_buffer(validity)
        .buffers(buffers)
        .align_buffers(true)
        .build()
        .ok()?;
    Some(make_array(data))
}

/// Offsets and text of `rows` strings, of which `stored` (all, or one that is repeated) are there.
fn decode_text(reader: &mut Reader<'_>, stored: usize, rows: usize) -> Option<Vec<Buffer>> {
    let lengths: Vec<usize> = (0..stored).map(|_| reader.size()).collect::<Option<_>>()?;
    let total = lengths.iter().try_fold(0_usize, |sum, length| sum.checked_add(*length))?;
    let text = reader.take(total)?;
    let repeats = if stored == rows { 1 } else { rows };
    let mut offsets: Vec<i32> = Vec::with_capacity(rows + 1);
    let mut end = 0_usize;
    offsets.push(0);
    for _ in 0..repeats {
        for length in &lengths {
            end = end.checked_add(*length)?;
            offsets.push(i32::try_from(end).ok()?);
        }
    }
    Some(vec![Buffer::from_vec(offsets), Buffer::from(text.repeat(repeats).as_slice())])
}
