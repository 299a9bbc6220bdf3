//! JSON: an array of objects, or an object a line.
//!
//! A field that is missing or null has no value; fields that no column names are passed over.
//! Source: RFC 8259.

use serde_json::Value as Json;
use tidegate_config::LookupSection;

use super::columns::{Columns, Value};

/// Reads all rows into the columns.
pub(super) fn read(
    section: &LookupSection,
    text: &str,
    columns: &mut Columns,
) -> Result<(), String> {
    if text.trim_start().starts_with('[') {
        let rows: Vec<Json> = serde_json::from_str(text).map_err(|e| e.to_string())?;
        for (number, row) in (1..).zip(&rows) {
            row_into(section, row, &format!("row {number}"), columns)?;
        }
        return Ok(());
    }
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let at = format!("line {number}");
        match serde_json::from_str(line) {
            Ok(row) => row_into(section, &row, &at, columns)?,
            Err(error) => columns.refuse(&at, &error.to_string()),
        }
    }
    Ok(())
}

fn row_into(
    section: &LookupSection,
    row: &Json,
    at: &str,
    columns: &mut Columns,
) -> Result<(), String> {
    if !row.is_object() {
        columns.refuse(at, "it is no object");
        return Ok(());
    }
    let values = section.columns.iter().map(|column| {
        let mut keys = column.source_name().split('.');
        value(keys.try_fold(row, |value, key| value.get(key)))
    });
    columns.push(at, values)
}

fn value(json: Option<&Json>) -> Value<'_> {
    match json {
        None | Some(Json::Null) => Value::Missing,
        Some(Json::Bool(bool)) => Value::Bool(*bool),
        Some(Json::Number(number)) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(int), ..) => Value::Int(int),
            (None, Some(int), _) => Value::UInt(int),
            (None, None, Some(float)) => Value::Float(float),
            (None, None, None) => Value::Other("a number beyond 64 bits"),
        },
        Some(Json::String(text)) => Value::Text(text),
        Some(Json::Array(_) | Json::Object(_)) => Value::Other("a list or an object"),
    }
}
