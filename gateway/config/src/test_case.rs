//! Tests of streams, as they are written in the document and run by `tidegate test`.
//!
//! Rows are mappings of column names to scalars, so their types are written by hand here: serde's
//! `flatten` would hide the line of an error.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use tidegate_drivers::types::{Name, Span};

use crate::EventTime;

/// A test of one stream on virtual time.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamTest {
    /// What the test shows, in words.
    pub name: String,
    /// The stream that is tested.
    pub stream: Name,
    /// Which time decides about windows in this test; left out, what the stream says.
    #[serde(default)]
    pub event_time: Option<EventTime>,
    /// The rows, in the order of their arrival.
    pub input: Vec<TestRow>,
    /// What must come out.
    pub expect: Expect,
}

/// What must come out of a stream.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// The results in order; columns that are not named may be anything.
    #[serde(default)]
    pub rows: Option<Vec<BTreeMap<String, Scalar>>>,
    /// How many rows came too late.
    #[serde(default)]
    pub late: Option<u64>,
}

/// One row of a test's input: `at`, optionally `table` and `device`, and column values.
#[derive(Debug, Clone, PartialEq)]
pub struct TestRow {
    /// Event time since the start of the test.
    pub at: Span,
    /// The table; may be left out where the stream reads only one.
    pub table: Option<Name>,
    /// The device; may be left out where the table has only one.
    pub device: Option<Name>,
    /// The columns that have a value; all others are null.
    pub values: BTreeMap<String, Scalar>,
}

/// A single value.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    /// No value.
    Null,
    /// true or false.
    Bool(bool),
    /// A whole number that fits 64 bits with sign.
    Int(i64),
    /// A whole number beyond that.
    UInt(u64),
    /// Any other number.
    Float(f64),
    /// Text.
    Text(String),
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyScalar;
        impl Visitor<'_> for AnyScalar {
            type Value = Scalar;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a single value: a number, a text, true, false or null")
            }
            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar::Bool(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar::Int(value))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(i64::try_from(value).map_or(Scalar::UInt(value), Scalar::Int))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar::Float(value))
            }
            fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.to_owned()))
            }
        }
        deserializer.deserialize_any(AnyScalar)
    }
}

impl Serialize for Scalar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(value) => serializer.serialize_i64(*value),
            Self::UInt(value) => serializer.serialize_u64(*value),
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(value) => serializer.serialize_str(value),
        }
    }
}

impl JsonSchema for Scalar {
    fn schema_name() -> Cow<'static, str> {
        "Scalar".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["null", "boolean", "number", "string"],
            "description": "A single value: a number, a text, true, false or null.",
        })
    }
}

impl<'de> Deserialize<'de> for TestRow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Row;
        impl<'de> Visitor<'de> for Row {
            type Value = TestRow;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a row: `at` and columns, such as { at: 1s, voltage: 230.0 }")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TestRow, A::Error> {
                let (mut at, mut table, mut device) = (None, None, None);
                let mut values = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "at" => at = Some(map.next_value()?),
                        "table" => table = map.next_value()?,
                        "device" => device = map.next_value()?,
                        _ => {
                            values.insert(key, map.next_value()?);
                        }
                    }
                }
                let at = at.ok_or_else(|| de::Error::missing_field("at"))?;
                Ok(TestRow { at, table, device, values })
            }
        }
        deserializer.deserialize_map(Row)
    }
}

impl Serialize for TestRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("at", &self.at)?;
        if let Some(table) = &self.table {
            map.serialize_entry("table", table)?;
        }
        if let Some(device) = &self.device {
            map.serialize_entry("device", device)?;
        }
        for (name, value) in &self.values {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl JsonSchema for TestRow {
    fn schema_name() -> Cow<'static, str> {
        "TestRow".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (span, name) = (generator.subschema_for::<Span>(), generator.subschema_for::<Name>());
        let scalar = generator.subschema_for::<Scalar>();
        json_schema!({
            "type": "object",
            "description": "One row: `at`, optionally `table` and `device`, and column values.",
            "properties": { "at": span, "table": name, "device": name },
            "required": ["at"],
            "additionalProperties": scalar,
        })
    }
}
