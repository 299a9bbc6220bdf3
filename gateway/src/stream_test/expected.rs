//! What came of a test beside what was expected, in words.

use std::collections::BTreeMap;

use tidegate_config::{Scalar, StreamTest};

use super::world::Came;

/// All that is not as the test expects.
pub(super) fn differences(test: &StreamTest, came: &Came) -> Vec<String> {
    let mut differences = Vec::new();
    if let Some(expected) = &test.expect.rows {
        differences.extend(list_differences(expected, &came.rows));
    }
    let late = came.counts.late;
    if let Some(expected) = test.expect.late.filter(|expected| *expected != late) {
        differences.push(format!("{expected} late rows expected, {late} came"));
    }
    for (stream, (failed, reasons)) in &came.failed {
        let expected = test.expect.failed.of(stream, &test.stream);
        if expected == *failed {
            continue;
        }
        let rows = if *failed == 1 { "row" } else { "rows" };
        let said = match expected {
            0 => "and was to fail on none".to_owned(),
            _ => format!("and was to fail on {expected}"),
        };
        differences.push(format!("the stream `{stream}` failed on {failed} {rows}, {said}"));
        differences.extend(reasons.iter().map(|reason| format!("the stream `{stream}`: {reason}")));
    }
    differences.extend(came.troubles.iter().cloned());
    for (sink, expected) in &test.expect.sinks {
        let sent = came.sent.get(sink.as_str()).map_or(&[][..], Vec::as_slice);
        let list = list_differences(expected, sent).into_iter();
        differences.extend(list.map(|difference| format!("sink {sink}: {difference}")));
    }
    differences
}

fn list_differences(
    expected: &[BTreeMap<String, Scalar>],
    rows: &[serde_json::Value],
) -> Vec<String> {
    let mut differences = Vec::new();
    if expected.len() != rows.len() {
        differences.push(format!("{} rows expected, {} came", expected.len(), rows.len()));
    }
    for (index, expected) in expected.iter().enumerate() {
        differences.extend(row_differences(index, expected, rows.get(index)));
    }
    for (index, row) in rows.iter().enumerate().skip(expected.len()) {
        differences.push(format!("row {}: not expected: {row}", index + 1));
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
