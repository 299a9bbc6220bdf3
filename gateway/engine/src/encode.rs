//! Results as JSON text, one object per row.
//!
//! Promise: columns in their order; timestamps as RFC 3339 in UTC with microseconds and `Z`
//! (finer is cut off), dates as `2026-11-29`, times of day as `13:45:00.000000`; numbers as
//! numbers, the shortest text that reads back equal; null for a missing value, for NaN and the
//! infinities, and for a timestamp outside the years 0000 to 9999; bytes as Base64 (RFC 4648
//! section 4, padded); lists as arrays, structs as objects; durations and intervals as Arrow's
//! text. Bytes are written straight from the columns. It knows no sink and no envelope but `meta`.
//! Source: design page "What leaves the gateway"; RFC 8259, RFC 3339.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, FieldRef, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimeUnit, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
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

/// Largest integer that every JSON reader keeps exactly: 2^53.
const EXACT_MAX: u64 = 1 << 53;

/// Writes one JSON object per row, without a line end. With `meta` the row starts with `_id` and
/// `_quality`. All texts share one allocation.
pub fn json_rows(
    batch: &RecordBatch,
    options: &JsonOptions,
    first_seq: u64,
) -> Result<Vec<Bytes>, EncodeError> {
    write_rows(batch, options, |row| first_seq + row as u64)
}

/// The same for rows whose sequence numbers are not one behind the other.
///
/// # Panics
/// Where there are not as many numbers as rows.
pub fn json_rows_at(
    batch: &RecordBatch,
    options: &JsonOptions,
    seqs: &[u64],
) -> Result<Vec<Bytes>, EncodeError> {
    assert_eq!(seqs.len(), batch.num_rows(), "a number for each row");
    write_rows(batch, options, |row| seqs[row])
}

fn write_rows(
    batch: &RecordBatch,
    options: &JsonOptions,
    seq: impl Fn(usize) -> u64,
) -> Result<Vec<Bytes>, EncodeError> {
    let schema = batch.schema();
    let mut arrays = Vec::with_capacity(batch.num_columns());
    for (field, array) in schema.fields().iter().zip(batch.columns()) {
        arrays.push((field.name(), plain(field.name(), array)?));
    }
    let mut columns = Vec::with_capacity(arrays.len());
    for (name, array) in &arrays {
        columns.push((key(name), writer(name, array, options)?));
    }
    let mut text = Vec::with_capacity(batch.num_rows() * 32 * (1 + columns.len()));
    let mut ends = Vec::with_capacity(batch.num_rows());
    for row in 0..batch.num_rows() {
        text.push(b'{');
        if let Some(meta) = &options.meta {
            text.extend_from_slice(b"\"_id\":");
            string(&mut text, &format!("{}/{}", meta.id_prefix, seq(row)));
            text.extend_from_slice(b",\"_quality\":");
            string(&mut text, meta.quality);
        }
        for (column, (key, write)) in columns.iter().enumerate() {
            if column > 0 || options.meta.is_some() {
                text.push(b',');
            }
            text.extend_from_slice(key);
            write(&mut text, row);
        }
        text.push(b'}');
        ends.push(text.len());
    }
    let text = Bytes::from(text);
    let starts = std::iter::once(0).chain(ends.iter().copied());
    Ok(starts.zip(&ends).map(|(start, &end)| text.slice(start..end)).collect())
}

type Writer<'a> = Box<dyn Fn(&mut Vec<u8>, usize) + 'a>;

fn key(name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(name.len() + 3);
    string(&mut key, name);
    key.push(b':');
    key
}

/// The column in one of the types that [`writer`] writes; most are already.
fn plain(column: &str, array: &ArrayRef) -> Result<ArrayRef, EncodeError> {
    let to = plain_type(array.data_type());
    if to == *array.data_type() {
        return Ok(Arc::clone(array));
    }
    cast(array, &to).map_err(|_| unknown(column, array.data_type()))
}

fn plain_type(data_type: &DataType) -> DataType {
    let inner = |field: &FieldRef| {
        let plain = plain_type(field.data_type());
        Arc::new(field.as_ref().clone().with_data_type(plain))
    };
    match data_type {
        DataType::Float16 => DataType::Float32,
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            DataType::Binary
        }
        DataType::Date64 => DataType::Date32,
        DataType::Time32(_) | DataType::Time64(_) => DataType::Time64(TimeUnit::Microsecond),
        DataType::Dictionary(_, value) => plain_type(value),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::FixedSizeList(field, _) => DataType::List(inner(field)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
        other => other.clone(),
    }
}

/// A function that writes the value of a row, or `null`.
fn writer<'a>(
    column: &str,
    array: &'a ArrayRef,
    options: &JsonOptions,
) -> Result<Writer<'a>, EncodeError> {
    let write: Writer<'a> = match array.data_type() {
        DataType::Null => Box::new(|_, _| {}),
        DataType::Boolean => {
            let array = array.as_boolean();
            Box::new(move |out, row| {
                out.extend_from_slice(if array.value(row) { b"true" } else { b"false" });
            })
        }
        DataType::Int8 => number::<Int8Type>(array),
        DataType::Int16 => number::<Int16Type>(array),
        DataType::Int32 => number::<Int32Type>(array),
        DataType::UInt8 => number::<UInt8Type>(array),
        DataType::UInt16 => number::<UInt16Type>(array),
        DataType::UInt32 => number::<UInt32Type>(array),
        DataType::Int64 => wide::<Int64Type>(array, options.int64_as_string, i64::unsigned_abs),
        DataType::UInt64 => wide::<UInt64Type>(array, options.int64_as_string, |value| value),
        // serde_json writes null for what is not finite.
        DataType::Float32 => number::<Float32Type>(array),
        DataType::Float64 => number::<Float64Type>(array),
        DataType::Utf8 => {
            let array = array.as_string::<i32>();
            Box::new(move |out, row| string(out, array.value(row)))
        }
        DataType::Binary => {
            let array = array.as_binary::<i32>();
            Box::new(move |out, row| base64(out, array.value(row)))
        }
        DataType::Timestamp(unit, _) => timestamp(column, array, *unit)?,
        DataType::Date32 | DataType::Time64(_) | DataType::Duration(_) | DataType::Interval(_) => {
            displayed(column, array, true)?
        }
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => displayed(column, array, false)?,
        DataType::List(_) => list(column, array, options)?,
        DataType::Struct(_) => structure(column, array, options)?,
        other => return Err(unknown(column, other)),
    };
    Ok(Box::new(move |out, row| {
        if array.is_null(row) || *array.data_type() == DataType::Null {
            out.extend_from_slice(b"null");
        } else {
            write(out, row);
        }
    }))
}

fn unknown(column: &str, data_type: &DataType) -> EncodeError {
    EncodeError::Type { column: column.to_owned(), data_type: data_type.to_string() }
}

/// Writing to a vector cannot fail, and numbers and strings always have a JSON form.
fn json<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let length = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(length);
        out.extend_from_slice(b"null");
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    json(out, text);
}

fn number<T>(array: &ArrayRef) -> Writer<'_>
where
    T: ArrowPrimitiveType,
    T::Native: serde::Serialize,
{
    let array: &PrimitiveArray<T> = array.as_primitive();
    Box::new(move |out, row| json(out, &array.value(row)))
}

fn wide<T>(array: &ArrayRef, as_string: bool, size: fn(T::Native) -> u64) -> Writer<'_>
where
    T: ArrowPrimitiveType,
    T::Native: serde::Serialize,
{
    let array: &PrimitiveArray<T> = array.as_primitive();
    Box::new(move |out, row| {
        let value = array.value(row);
        if as_string && size(value) > EXACT_MAX {
            out.push(b'"');
            json(out, &value);
            out.push(b'"');
        } else {
            json(out, &value);
        }
    })
}

fn displayed<'a>(
    column: &str,
    array: &'a ArrayRef,
    quoted: bool,
) -> Result<Writer<'a>, EncodeError> {
    let options = FormatOptions::new().with_time_format(Some("%H:%M:%S%.6f"));
    let formatter =
        ArrayFormatter::try_new(array, &options).map_err(|_| unknown(column, array.data_type()))?;
    Ok(Box::new(move |out, row| {
        let text = formatter.value(row).to_string();
        if quoted {
            string(out, &text);
        } else {
            out.extend_from_slice(text.as_bytes());
        }
    }))
}

fn list<'a>(
    column: &str,
    array: &'a ArrayRef,
    options: &JsonOptions,
) -> Result<Writer<'a>, EncodeError> {
    let array = array.as_list::<i32>();
    let write = writer(column, array.values(), options)?;
    Ok(Box::new(move |out, row| {
        let bound = |at: usize| usize::try_from(array.value_offsets()[at]).unwrap_or(0);
        out.push(b'[');
        for item in bound(row)..bound(row + 1) {
            if item > bound(row) {
                out.push(b',');
            }
            write(out, item);
        }
        out.push(b']');
    }))
}

fn structure<'a>(
    column: &str,
    array: &'a ArrayRef,
    options: &JsonOptions,
) -> Result<Writer<'a>, EncodeError> {
    let array = array.as_struct();
    let mut fields = Vec::new();
    for (field, values) in array.fields().iter().zip(array.columns()) {
        fields.push((key(field.name()), writer(column, values, options)?));
    }
    Ok(Box::new(move |out, row| {
        out.push(b'{');
        for (at, (key, write)) in fields.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            out.extend_from_slice(key);
            write(out, row);
        }
        out.push(b'}');
    }))
}

fn timestamp<'a>(
    column: &str,
    array: &ArrayRef,
    unit: TimeUnit,
) -> Result<Writer<'a>, EncodeError> {
    // All units hold an i64 per row; only what one step means differs.
    let values = cast(array, &DataType::Int64).map_err(|_| unknown(column, array.data_type()))?;
    let values = values.as_primitive::<Int64Type>().clone();
    Ok(Box::new(move |out, row| {
        let value = values.value(row);
        let micros = match unit {
            TimeUnit::Second => value.checked_mul(1_000_000),
            TimeUnit::Millisecond => value.checked_mul(1_000),
            TimeUnit::Microsecond => Some(value),
            TimeUnit::Nanosecond => Some(value.div_euclid(1_000)),
        };
        if micros.is_none_or(|micros| !rfc3339(out, micros)) {
            out.extend_from_slice(b"null");
        }
    }))
}

/// Writes `"2026-11-29T13:45:00.000000Z"`; false and nothing outside the years that RFC 3339 has.
fn rfc3339(out: &mut Vec<u8>, micros: i64) -> bool {
    let (days, of_day) = (micros.div_euclid(86_400_000_000), micros.rem_euclid(86_400_000_000));
    let (year, month, day) = civil(days);
    if !(0..=9999).contains(&year) {
        return false;
    }
    out.push(b'"');
    for (value, width, after) in [
        (year, 4, b'-'),
        (month, 2, b'-'),
        (day, 2, b'T'),
        (of_day / 3_600_000_000, 2, b':'),
        (of_day / 60_000_000 % 60, 2, b':'),
        (of_day / 1_000_000 % 60, 2, b'.'),
        (of_day % 1_000_000, 6, b'Z'),
    ] {
        digits(out, value, width);
        out.push(after);
    }
    out.push(b'"');
    true
}

fn digits(out: &mut Vec<u8>, value: i64, width: u32) {
    for place in (0..width).rev() {
        let digit = value / 10_i64.pow(place) % 10;
        out.push(b'0' + u8::try_from(digit).unwrap_or(0));
    }
}

/// Year, month and day of a day count since 1970-01-01 in the proleptic Gregorian calendar: eras of
/// 400 years (146,097 days) that start on 1 March, so that the leap day comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    out.push(b'"');
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let sextet = bits >> (18 - 6 * place) & 63;
            out.push(if place > chunk.len() { b'=' } else { ALPHABET[sextet as usize] });
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests;
