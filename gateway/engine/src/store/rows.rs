//! Rows of a table's log as bytes: as few as possible per payload byte.
//!
//! Arrow IPC spends 64 to 80 bytes of framing and padding per column, which is ten times the
//! payload of a batch of one row. The form here has one flag byte a column, values without
//! padding, validity only where something is null, and one copy of a value that all rows share
//! (device, quality). The schema is stored once per table and named by number. A batch with a
//! column type that the form does not know falls back to Arrow IPC. Knows no file.

use std::borrow::Borrow;
use std::io::Cursor;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BooleanBufferBuilder, StringArray, make_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::downcast_primitive_array;
use arrow::error::ArrowError;
use arrow::ipc::MetadataVersion;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use super::format::{Reader, put_bytes, put_size};
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

/// Appends rows whose schema is known as number `schema` in their table; batches that follow each other
/// are written as one. `stamps` where their time is not that of day.
pub(super) fn encode_rows<B: Borrow<RecordBatch>>(
    out: &mut Vec<u8>,
    schema: u64,
    stamps: Option<Stamps>,
    batches: &[B],
) -> Result<(), ArrowError> {
    let Some(first) = batches.first().map(B::borrow) else {
        return Ok(());
    };
    out.extend_from_slice(&schema.to_le_bytes());
    put_size(out, batches.iter().map(|batch| batch.borrow().num_rows()).sum());
    let is_compact = first.columns().iter().all(|column| is_compact(column.data_type()));
    let form = if is_compact { COMPACT } else { IPC };
    out.push(form | stamps.map_or(0, |_| STAMPED));
    if let Some(stamps) = stamps {
        stamps.put(out);
    }
    if is_compact {
        let mut parts: Vec<&ArrayRef> = Vec::with_capacity(batches.len());
        for index in 0..first.num_columns() {
            parts.clear();
            parts.extend(batches.iter().map(|batch| batch.borrow().column(index)));
            encode_column(out, &parts);
        }
        return Ok(());
    }
    let joined;
    let batch = if let [batch] = batches {
        batch.borrow()
    } else {
        joined = concat_batches(first.schema_ref(), batches.iter().map(B::borrow))?;
        &joined
    };
    let mut writer = StreamWriter::try_new_with_options(out, batch.schema_ref(), options()?)?;
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

/// Appends a column of which the rows lie in several arrays of one type.
fn encode_column(out: &mut Vec<u8>, parts: &[&ArrayRef]) {
    let width = parts.first().and_then(|part| part.data_type().primitive_width());
    // Each part is asked once: of small batches the asking is what costs.
    let fixed: Vec<&[u8]> = match width {
        Some(_) => parts.iter().filter_map(|part| fixed_values(&***part)).collect(),
        None => Vec::new(),
    };
    let rows: usize = match width {
        Some(width) => fixed.iter().map(|values| values.len()).sum::<usize>() / width,
        None => parts.iter().map(Array::len).sum(),
    };
    let nulls: usize = parts.iter().map(|part| (***part).null_count()).sum();
    let put_all = |out: &mut Vec<u8>| match width {
        Some(_) => fixed.iter().for_each(|values| out.extend_from_slice(values)),
        None => encode_values(out, parts),
    };
    if rows > 0 && nulls == rows {
        out.push(ALL_NULL);
    } else if nulls > 0 {
        out.push(SOME_NULL);
        put_bits(out, parts.iter().map(|part| (part.len(), part.nulls().map(NullBuffer::inner))));
        put_all(out);
    } else if let Some(value) = width.filter(|_| rows > 1).and_then(|w| one_value(&fixed, w)) {
        out.push(ONE_VALUE);
        out.extend_from_slice(value);
    } else if let Some(text) = one_text(parts).filter(|_| rows > 1) {
        out.push(ONE_VALUE);
        put_bytes(out, text.as_bytes());
    } else {
        out.push(ALL_VALID);
        put_all(out);
    }
}

/// Appends bits; where there are none, as many ones.
fn put_bits<'a>(
    out: &mut Vec<u8>,
    parts: impl Iterator<Item = (usize, Option<&'a BooleanBuffer>)>,
) {
    let mut bits = BooleanBufferBuilder::new(0);
    for (length, part) in parts {
        match part {
            Some(part) => bits.append_buffer(part),
            None => bits.append_n(length, true),
        }
    }
    out.extend_from_slice(bits.as_slice());
}

/// The bytes of the value, where all rows of a fixed-width column hold the same.
fn one_value<'a>(parts: &[&'a [u8]], width: usize) -> Option<&'a [u8]> {
    let value = parts.iter().find_map(|part| part.get(..width))?;
    parts.iter().all(|part| repeats(part, value)).then_some(value)
}

/// The text, where all rows of a column of texts (none is null) hold the same.
fn one_text<'a>(parts: &[&'a ArrayRef]) -> Option<&'a str> {
    let first = parts.iter().find(|part| !part.is_empty())?;
    let text = first.as_string_opt::<i32>()?.value(0);
    let mut strings = parts.iter().filter_map(|part| part.as_string_opt::<i32>());
    strings.all(|part| is_repeated(part, text)).then_some(text)
}

/// Whether bytes are `value` again and again: they begin with it, and are the same one further on.
fn repeats(bytes: &[u8], value: &[u8]) -> bool {
    bytes.is_empty()
        || (bytes.starts_with(value) && bytes[value.len()..] == bytes[..bytes.len() - value.len()])
}

/// Whether every string is `value`.
fn is_repeated(strings: &StringArray, value: &str) -> bool {
    let offsets = strings.value_offsets();
    let is_long = |ends: &[i32]| usize::try_from(ends[1] - ends[0]) == Ok(value.len());
    let (from, to) = (offsets[0], offsets[strings.len()]);
    let (Ok(from), Ok(to)) = (usize::try_from(from), usize::try_from(to)) else {
        return false;
    };
    let text = &strings.value_data()[from..to];
    offsets.windows(2).all(is_long) && repeats(text, value.as_bytes())
}

/// The bytes of a fixed-width column's rows.
fn fixed_values(column: &dyn Array) -> Option<&[u8]> {
    downcast_primitive_array!(
        column => Some(column.values().inner().as_slice()),
        _ => None,
    )
}

/// Appends the values of a column of texts or booleans.
fn encode_values(out: &mut Vec<u8>, parts: &[&ArrayRef]) {
    let Some(data_type) = parts.first().map(Array::data_type) else {
        return;
    };
    match data_type {
        DataType::Utf8 => {
            let strings = || parts.iter().filter_map(|part| part.as_string_opt::<i32>());
            for part in strings() {
                for row in 0..part.len() {
                    put_size(out, if part.is_null(row) { 0 } else { part.value(row).len() });
                }
            }
            for text in strings().flat_map(|part| part.iter().flatten()) {
                out.extend_from_slice(text.as_bytes());
            }
        }
        DataType::Boolean => {
            let booleans = parts.iter().filter_map(|part| part.as_boolean_opt());
            put_bits(out, booleans.map(|part| (part.len(), Some(part.values()))));
        }
        _ => {}
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
