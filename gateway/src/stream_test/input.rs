//! A row of a test as a batch of its table.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array,
    Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, UInt8Array, UInt16Array,
    UInt32Array, UInt64Array, new_null_array,
};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field};
use tidegate_config::{Document, Scalar, TestRow};
use tidegate_engine::TableSchema;

/// Makes a batch of one row. `at` is its event time, `now` that of its arrival, both in microseconds
/// since 1970; `seq` its number.
pub(super) fn batch(
    document: &Document,
    table: &TableSchema,
    input: &TestRow,
    (at, now): (i64, i64),
    seq: u64,
) -> Result<RecordBatch, String> {
    let device = match &input.device {
        Some(device) => device.to_string(),
        None => document
            .tables()
            .iter()
            .find(|t| t.name == table.name)
            .and_then(|t| document.devices.get(*t.devices.first()?))
            .map_or_else(|| table.name.clone(), |d| d.name.to_string()),
    };
    let schema = &table.schema;
    if let Some(name) = input.values.keys().find(|name| schema.field_with_name(name).is_err()) {
        return Err(format!("the table `{}` has no column `{name}`", table.name));
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
            ("time", None) => Ok(utc(at)),
            ("received_at", None) => Ok(utc(now)),
            ("device", None) => Ok(text(&device)),
            ("quality", None) => Ok(text("good")),
            ("seq", None) => Ok(Arc::new(UInt64Array::from(vec![seq])) as ArrayRef),
            (_, None) => Ok(new_null_array(field.data_type(), 1)),
        })
        .collect();
    RecordBatch::try_new(schema.clone(), columns?).map_err(|e| e.to_string())
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
        // A time, or what else has no literal of its own.
        (data_type, Scalar::Text(v)) if !data_type.is_numeric() => {
            let options = CastOptions { safe: false, ..CastOptions::default() };
            let text = StringArray::from(vec![v.as_str()]);
            cast_with_options(&text, data_type, &options).ok()
        }
        _ => None,
    };
    array.ok_or_else(refuse)
}
