//! Runs the tests that stand in a configuration, on virtual time.
//!
//! A test's rows go through the very engine that runs in production: the same plan, windows and
//! watermarks. Virtual time is the largest `at` so far; it does not go on after the last row, so a
//! window that is still open then has no result yet, as in production.

#[cfg(test)]
mod readme;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array};
use arrow::array::{
    BooleanArray, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array,
    UInt8Array, UInt16Array, UInt32Array, new_null_array,
};
use arrow::datatypes::{DataType, Field};
use tidegate_config::{Document, Scalar, StreamSection, StreamTest, TestRow};
use tidegate_engine::encode::{JsonOptions, json_rows};
use tidegate_engine::{Effects, Event, LateReason, Sql, Stream, StreamSpec};

use crate::build::stream_spec;
use crate::chain::StreamTables;
use crate::lookup::loaded_lookups;

/// When a test's virtual time begins: 2000-01-01T00:00:00Z, the start of a day, an hour and every
/// window of a size that divides a day.
const START: i64 = 946_684_800_000_000;

/// What came of one test.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The test's name.
    pub name: String,
    /// What was not as expected; empty where the test passed.
    pub differences: Vec<String>,
}

/// Runs one test. An error says why it could not be run at all.
pub async fn run(document: &Document, sql: &Sql, test: &StreamTest) -> Result<Outcome, String> {
    let section = document
        .streams
        .iter()
        .find(|s| s.name == test.stream)
        .ok_or_else(|| format!("there is no stream `{}`", test.stream))?;
    let event_time = test.event_time.unwrap_or(section.event_time);
    let spec = stream_spec(document, section, event_time, &StreamTables::plan(document, sql));
    let lookups = loaded_lookups(document).await?;
    let query = spec.plan_with(sql, &section.sql, &lookups).map_err(|e| e.to_string())?;
    let mut stream = Stream::new(spec.clone(), query, START).map_err(|e| e.to_string())?;
    let (mut rows, mut late, mut now) = (Vec::new(), 0, START);
    let mut positions = vec![0; spec.tables.len()];
    for (index, input) in test.input.iter().enumerate() {
        now = now.max(START + input.at.micros());
        collect(apply(&mut stream, Event::Tick, now).await?, &mut rows, &mut late)?;
        let place = |text: String| format!("input row {}: {text}", index + 1);
        let (table, batch) =
            batch(document, section, &spec, input, now, &positions).map_err(place)?;
        let event = Event::Rows { table, position: positions[table], batch };
        positions[table] += 1;
        collect(apply(&mut stream, event, now).await?, &mut rows, &mut late)?;
    }
    Ok(Outcome { name: test.name.clone(), differences: differences(test, &rows, late) })
}

async fn apply(stream: &mut Stream, event: Event, now: i64) -> Result<Effects, String> {
    let effects = stream.apply(event, now).await.map_err(|e| e.to_string())?;
    match effects.failures.first() {
        Some(error) => Err(error.to_string()),
        None => Ok(effects),
    }
}

fn collect(
    effects: Effects,
    rows: &mut Vec<serde_json::Value>,
    late: &mut u64,
) -> Result<(), String> {
    let options = JsonOptions { int64_as_string: false, meta: None };
    for output in effects.results {
        let lines =
            json_rows(&output.batch, &options, output.first_seq).map_err(|e| e.to_string())?;
        for line in lines {
            rows.push(serde_json::from_slice(&line).map_err(|e| e.to_string())?);
        }
    }
    let too_late = effects.late.iter().filter(|rows| rows.reason == LateReason::Late);
    *late += too_late.map(|rows| rows.batch.num_rows() as u64).sum::<u64>();
    Ok(())
}

/// Makes a batch of one row for the table that the input names.
fn batch(
    document: &Document,
    section: &StreamSection,
    spec: &StreamSpec,
    input: &TestRow,
    now: i64,
    positions: &[u64],
) -> Result<(usize, RecordBatch), String> {
    let table = match (&input.table, section.from.len()) {
        (Some(name), _) => spec
            .tables
            .iter()
            .position(|table| table.name == name.as_str())
            .ok_or_else(|| format!("the stream does not read the table `{name}`"))?,
        (None, 1) => 0,
        (None, _) => return Err("say which `table` the row belongs to".to_owned()),
    };
    let schema = spec.tables[table].schema.clone();
    let device = match &input.device {
        Some(device) => device.to_string(),
        None => document
            .tables()
            .iter()
            .find(|t| t.name == spec.tables[table].name)
            .and_then(|t| document.devices.get(*t.devices.first()?))
            .map_or_else(|| spec.tables[table].name.clone(), |d| d.name.to_string()),
    };
    if let Some(name) = input.values.keys().find(|name| schema.field_with_name(name).is_err()) {
        return Err(format!("the table `{}` has no column `{name}`", spec.tables[table].name));
    }
    let utc = |t: i64| -> ArrayRef {
        Arc::new(TimestampMicrosecondArray::from(vec![t]).with_timezone("UTC"))
    };
    let text = |t: &str| -> ArrayRef { Arc::new(StringArray::from(vec![t])) };
    let columns: Result<Vec<ArrayRef>, String> = schema
        .fields()
        .iter()
        .map(|field| match (field.name().as_str(), input.values.get(field.name())) {
            (_, Some(value)) => array(field, value),
            ("time", None) => Ok(utc(START + input.at.micros())),
            ("received_at", None) => Ok(utc(now)),
            ("device", None) => Ok(text(&device)),
            ("quality", None) => Ok(text("good")),
            ("seq", None) => Ok(Arc::new(UInt64Array::from(vec![positions[table]])) as ArrayRef),
            (_, None) => Ok(new_null_array(field.data_type(), 1)),
        })
        .collect();
    let batch = RecordBatch::try_new(schema, columns?).map_err(|e| e.to_string())?;
    Ok((table, batch))
}

/// A column of one value. Nothing is coerced: a value must be of the column's type.
fn array(field: &Field, value: &Scalar) -> Result<ArrayRef, String> {
    let refuse =
        || format!("column `{}` is {}: {value:?} does not fit", field.name(), field.data_type());
    macro_rules! int {
        ($array:ty, $native:ty) => {
            match value {
                Scalar::Int(v) => <$native>::try_from(*v).ok(),
                Scalar::UInt(v) => <$native>::try_from(*v).ok(),
                _ => None,
            }
            .map(|v| Arc::new(<$array>::from(vec![v])) as ArrayRef)
        };
    }
    let float = match value {
        Scalar::Float(v) => Some(*v),
        Scalar::Int(v) => Some(*v as f64),
        _ => None,
    };
    let array: Option<ArrayRef> = match (field.data_type(), value) {
        (data_type, Scalar::Null) => Some(new_null_array(data_type, 1)),
        (DataType::Boolean, Scalar::Bool(v)) => Some(Arc::new(BooleanArray::from(vec![*v]))),
        (DataType::Utf8, Scalar::Text(v)) => Some(Arc::new(StringArray::from(vec![v.as_str()]))),
        (DataType::Int8, _) => int!(Int8Array, i8),
        (DataType::Int16, _) => int!(Int16Array, i16),
        (DataType::Int32, _) => int!(Int32Array, i32),
        (DataType::Int64, _) => int!(Int64Array, i64),
        (DataType::UInt8, _) => int!(UInt8Array, u8),
        (DataType::UInt16, _) => int!(UInt16Array, u16),
        (DataType::UInt32, _) => int!(UInt32Array, u32),
        (DataType::UInt64, _) => int!(UInt64Array, u64),
        (DataType::Float64, _) => float.map(|v| Arc::new(Float64Array::from(vec![v])) as ArrayRef),
        #[expect(clippy::cast_possible_truncation, reason = "rounded as the device's float is")]
        (DataType::Float32, _) => {
            float.map(|v| Arc::new(Float32Array::from(vec![v as f32])) as ArrayRef)
        }
        _ => None,
    };
    array.ok_or_else(refuse)
}

fn differences(test: &StreamTest, rows: &[serde_json::Value], late: u64) -> Vec<String> {
    let mut differences = Vec::new();
    if let Some(expected) = &test.expect.rows {
        if expected.len() != rows.len() {
            differences.push(format!("{} rows expected, {} came", expected.len(), rows.len()));
        }
        for (index, expected) in expected.iter().enumerate() {
            differences.extend(row_differences(index, expected, rows.get(index)));
        }
        for (index, row) in rows.iter().enumerate().skip(expected.len()) {
            differences.push(format!("row {}: not expected: {row}", index + 1));
        }
    }
    if let Some(expected) = test.expect.late.filter(|expected| *expected != late) {
        differences.push(format!("{expected} late rows expected, {late} came"));
    }
    differences
}

fn row_differences(
    index: usize,
    expected: &BTreeMap<String, Scalar>,
    row: Option<&serde_json::Value>,
) -> Vec<String> {
    let Some(row) = row else {
        return vec![format!("row {}: missing: {expected:?}", index + 1)];
    };
    expected
        .iter()
        .filter(|(column, value)| !row.get(column).is_some_and(|came| equal(value, came)))
        .map(|(column, value)| {
            let came = row.get(column).map_or("no such column".to_owned(), ToString::to_string);
            format!("row {}: {column}: {value:?} expected, {came} came", index + 1)
        })
        .collect()
}

/// A time without the zeros at the end of its fraction, as a person writes it.
fn short_time(time: &str) -> Option<String> {
    let (seconds, fraction) = time.strip_suffix('Z')?.split_once('.')?;
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    Some(format!("{seconds}{point}{fraction}Z"))
}

/// Equal as a person would say: numbers by value, within a billionth; times by their instant; a list
/// as its JSON text.
fn equal(expected: &Scalar, came: &serde_json::Value) -> bool {
    match expected {
        Scalar::Null => came.is_null(),
        Scalar::Bool(v) => came.as_bool() == Some(*v),
        Scalar::Text(v) => match came.as_str() {
            Some(came) => came == v || short_time(came).as_ref() == Some(v),
            // A list, written as JSON.
            None => came.is_array() && serde_json::from_str(v).ok().as_ref() == Some(came),
        },
        Scalar::Int(v) if came.is_i64() || came.is_u64() => came.as_i64() == Some(*v),
        Scalar::UInt(v) if came.is_u64() => came.as_u64() == Some(*v),
        Scalar::Int(v) => close(*v as f64, came),
        Scalar::UInt(v) => close(*v as f64, came),
        Scalar::Float(v) => close(*v, came),
    }
}

fn close(expected: f64, came: &serde_json::Value) -> bool {
    came.as_f64().is_some_and(|came| (came - expected).abs() <= 1e-9 * expected.abs().max(1.0))
}
