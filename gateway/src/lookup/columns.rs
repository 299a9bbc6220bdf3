//! The columns of a lookup while it is read: typed values, and what is wrong with rows.
//!
//! Nothing is coerced: a value of another type makes its row bad, and one bad row refuses the load,
//! because a join with a table that lacks rows is wrong without a sign.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanBuilder, Float64Builder, Int64Builder, RecordBatch, StringBuilder,
    UInt64Builder,
};
use arrow::datatypes::SchemaRef;
use tidegate_config::LookupSection;
use tidegate_drivers::south::mqtt::FieldType;

/// Bad rows that are told.
const TOLD_MAX: usize = 3;
/// Characters of a bad value that are shown.
const SHOWN_MAX: usize = 40;

/// A value as it stands in the source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    /// No value.
    Missing,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Float(f64),
    /// A text that is one.
    Text(&'a str),
    /// A field of a format that has texts alone: what it means follows from the column.
    Written(&'a str),
    /// What fits no column, in words: a list, for example.
    Other(&'static str),
}

enum Builder {
    Bool(BooleanBuilder),
    I64(Int64Builder),
    U64(UInt64Builder),
    F64(Float64Builder),
    Text(StringBuilder),
}

/// The columns.
pub(super) struct Columns {
    schema: SchemaRef,
    builders: Vec<Builder>,
    rows: usize,
    rows_max: usize,
    /// The first bad rows in words, and how many there are.
    told: Vec<String>,
    bad: usize,
}

impl Columns {
    pub(super) fn new(section: &LookupSection) -> Self {
        let builder = |of: FieldType| match of {
            FieldType::Bool => Builder::Bool(BooleanBuilder::new()),
            FieldType::I64 => Builder::I64(Int64Builder::new()),
            FieldType::U64 => Builder::U64(UInt64Builder::new()),
            FieldType::F64 => Builder::F64(Float64Builder::new()),
            FieldType::String => Builder::Text(StringBuilder::new()),
        };
        Self {
            schema: section.schema(),
            builders: section.columns.iter().map(|column| builder(column.value_type)).collect(),
            rows: 0,
            rows_max: section.max_rows as usize,
            told: Vec::new(),
            bad: 0,
        }
    }

    /// Adds a row, whose place is `at` in words. An error ends the reading: there are too many.
    pub(super) fn push<'v>(
        &mut self,
        at: &str,
        values: impl Iterator<Item = Value<'v>>,
    ) -> Result<(), String> {
        self.rows += 1;
        if self.rows > self.rows_max {
            return Err(format!("more than {} rows (`max_rows`)", self.rows_max));
        }
        let mut wrong = None;
        for ((builder, field), value) in
            self.builders.iter_mut().zip(self.schema.fields()).zip(values)
        {
            if let Some(wanted) = builder.append(value) {
                let shown = shown(value);
                wrong.get_or_insert_with(|| format!("`{}` is {wanted}, not {shown}", field.name()));
            }
        }
        if let Some(wrong) = wrong {
            self.refuse(at, &wrong);
        }
        Ok(())
    }

    /// Notes a bad row.
    pub(super) fn refuse(&mut self, at: &str, wrong: &str) {
        self.bad += 1;
        if self.told.len() < TOLD_MAX {
            self.told.push(format!("{at}: {wrong}"));
        }
    }

    /// The rows, or what is wrong with some.
    pub(super) fn finish(self) -> Result<RecordBatch, String> {
        if self.bad > 0 {
            let more = self.bad - self.told.len();
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            return Err(format!("bad rows: {}{more}", self.told.join("; ")));
        }
        let arrays = self.builders.into_iter().map(Builder::finish).collect();
        RecordBatch::try_new(self.schema, arrays).map_err(|error| error.to_string())
    }
}

impl Builder {
    /// Adds a value; where it is of another type, nothing, and says what it should be.
    fn append(&mut self, value: Value<'_>) -> Option<&'static str> {
        let (fits, wanted) = match self {
            Self::Bool(builder) => {
                let bool = match value {
                    Value::Bool(bool) => Some(bool),
                    Value::Written(text) if text.eq_ignore_ascii_case("true") => Some(true),
                    Value::Written(text) if text.eq_ignore_ascii_case("false") => Some(false),
                    _ => None,
                };
                builder.append_option(bool);
                (bool.is_some(), "`true` or `false`")
            }
            Self::I64(builder) => {
                let int = match value {
                    Value::Int(int) => Some(int),
                    Value::Written(text) => text.parse().ok(),
                    _ => None,
                };
                builder.append_option(int);
                (int.is_some(), "a whole number of 64 bits")
            }
            Self::U64(builder) => {
                let int = match value {
                    Value::Int(int) => u64::try_from(int).ok(),
                    Value::UInt(int) => Some(int),
                    Value::Written(text) => text.parse().ok(),
                    _ => None,
                };
                builder.append_option(int);
                (int.is_some(), "a whole number without sign")
            }
            Self::F64(builder) => {
                let float = match value {
                    Value::Int(int) => Some(int as f64),
                    Value::UInt(int) => Some(int as f64),
                    Value::Float(float) => Some(float),
                    Value::Written(text) => text.parse().ok(),
                    _ => None,
                };
                // `nan` and `inf` are numbers to Rust and poison to an aggregate.
                let float = float.filter(|float| float.is_finite());
                builder.append_option(float);
                (float.is_some(), "a number")
            }
            Self::Text(builder) => {
                let text = match value {
                    Value::Text(text) | Value::Written(text) => Some(text),
                    _ => None,
                };
                builder.append_option(text);
                (text.is_some(), "a text")
            }
        };
        (!fits && value != Value::Missing).then_some(wanted)
    }

    fn finish(self) -> ArrayRef {
        match self {
            Self::Bool(mut builder) => Arc::new(builder.finish()),
            Self::I64(mut builder) => Arc::new(builder.finish()),
            Self::U64(mut builder) => Arc::new(builder.finish()),
            Self::F64(mut builder) => Arc::new(builder.finish()),
            Self::Text(mut builder) => Arc::new(builder.finish()),
        }
    }
}

fn shown(value: Value<'_>) -> String {
    match value {
        Value::Missing => "nothing".to_owned(),
        Value::Bool(bool) => format!("`{bool}`"),
        Value::Int(int) => format!("{int}"),
        Value::UInt(int) => format!("{int}"),
        Value::Float(float) => format!("{float:?}"),
        Value::Text(text) | Value::Written(text) => {
            let short: String = text.chars().take(SHOWN_MAX).collect();
            if short.len() < text.len() { format!("`{short}…`") } else { format!("`{short}`") }
        }
        Value::Other(what) => what.to_owned(),
    }
}
