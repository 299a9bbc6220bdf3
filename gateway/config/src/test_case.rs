//! Tests of streams, as they are written in the document and run by `tidegate test`, and which
//! streams a test runs.
//!
//! Rows are mappings of column names to scalars, so their types are written by hand here: serde's
//! `flatten` would hide the line of an error.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, MapAccess, Unexpected, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use tidegate_drivers::types::{Name, Span};

use crate::chain::Latest;
use crate::{Document, EventTime};

/// A test of a stream, and of those that it reads, on virtual time.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamTest {
    /// What the test shows, in words.
    pub name: String,
    /// The stream that is tested. Streams that it reads run as well, except those whose rows stand in
    /// `input`.
    pub stream: Name,
    /// Which time decides about windows in this test; left out, what each stream says.
    #[serde(default)]
    pub event_time: Option<EventTime>,
    /// Whether results are handed to the programs of the streams (`process:`), which must run, or be
    /// started by `tidegate test --program`; `rows` are then what the program gives. Left out, `rows`
    /// are what the program would be given.
    #[serde(default)]
    pub programs: bool,
    /// The rows, in the order of their arrival.
    pub input: Vec<TestRow>,
    /// How far time goes on without rows, counted as `at` is; left out, it ends with the last row.
    #[serde(default)]
    pub until: Option<Span>,
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
    /// How many rows the SQL, or the program, failed on: a number for the tested stream, or numbers by
    /// the names of streams, such as `{ energy_10s: 1 }`. Those that are not named may fail on none.
    #[serde(default)]
    pub failed: Failed,
    /// What the sinks are sent by all streams of the test, in order: results, late rows with their
    /// `_reason` and failed ones with their `_error`, as far as routes take them. `_stream` is the
    /// stream that the record names, such as `energy.late`.
    #[serde(default)]
    pub sinks: BTreeMap<Name, Vec<BTreeMap<String, Scalar>>>,
}

/// On how many rows streams are expected to fail.
#[derive(Debug, Clone, PartialEq)]
pub enum Failed {
    /// The tested stream.
    Tested(u64),
    /// Each stream that is named.
    Streams(BTreeMap<Name, u64>),
}

impl Failed {
    /// On how many rows `stream` is to fail in a test of `tested`.
    pub fn of(&self, stream: &str, tested: &Name) -> u64 {
        match self {
            Self::Tested(rows) if stream == tested.as_str() => *rows,
            Self::Tested(_) => 0,
            Self::Streams(streams) => streams
                .iter()
                .find(|(name, _)| name.as_str() == stream)
                .map_or(0, |(_, rows)| *rows),
        }
    }
}

impl Default for Failed {
    fn default() -> Self {
        Self::Tested(0)
    }
}

/// What a test runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestRun {
    /// The streams that run, each behind those that it reads: indices into [`Document::streams`].
    pub streams: Vec<usize>,
    /// The tables and streams that they read.
    pub reads: BTreeSet<String>,
}

impl Document {
    /// What a test runs: its stream and those that it reads, but for those whose rows it gives. None
    /// where there is no such stream.
    pub fn test_run(&self, test: &StreamTest, latest: Latest<'_>) -> Option<TestRun> {
        let tested = self.streams.iter().position(|s| s.name == test.stream)?;
        let given: BTreeSet<&str> = test
            .input
            .iter()
            .filter_map(|row| self.given_to(test, row))
            .map(Name::as_str)
            .collect();
        let mut running = BTreeSet::from([tested]);
        let (mut new, mut reads) = (vec![tested], BTreeSet::new());
        while let Some(at) = new.pop() {
            let stream = &self.streams[at];
            reads.extend(stream.from.iter().map(ToString::to_string));
            let looked_at = latest(&stream.sql).into_iter();
            reads.extend(looked_at.filter_map(|name| self.latest_of(&name)).map(|of| of.table));
            for input in self.inputs_of(stream, latest) {
                if !given.contains(self.streams[input].name.as_str()) && running.insert(input) {
                    new.push(input);
                }
            }
        }
        let mut streams = self.stream_order(latest).sound;
        streams.retain(|at| running.contains(at));
        Some(TestRun { streams, reads })
    }

    /// The table that a row of a test is given to: what it says, or the only one in the `from` of the
    /// tested stream.
    pub fn given_to<'d>(&'d self, test: &StreamTest, row: &'d TestRow) -> Option<&'d Name> {
        row.table.as_ref().or_else(|| {
            let stream = self.streams.iter().find(|s| s.name == test.stream)?;
            let [only] = stream.from.as_slice() else { return None };
            Some(only)
        })
    }
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

impl<'de> Deserialize<'de> for Failed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Rows;
        impl<'de> Visitor<'de> for Rows {
            type Value = Failed;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of rows, or numbers by the names of streams")
            }
            fn visit_unit<E>(self) -> Result<Failed, E> {
                Ok(Failed::default())
            }
            fn visit_i64<E: de::Error>(self, rows: i64) -> Result<Failed, E> {
                let refused = || E::invalid_value(Unexpected::Signed(rows), &self);
                Ok(Failed::Tested(u64::try_from(rows).map_err(|_| refused())?))
            }
            fn visit_u64<E>(self, rows: u64) -> Result<Failed, E> {
                Ok(Failed::Tested(rows))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Failed, A::Error> {
                let mut streams = BTreeMap::new();
                while let Some((name, rows)) = map.next_entry()? {
                    streams.insert(name, rows);
                }
                Ok(Failed::Streams(streams))
            }
        }
        deserializer.deserialize_any(Rows)
    }
}

impl Serialize for Failed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Tested(rows) => serializer.serialize_u64(*rows),
            Self::Streams(streams) => streams.serialize(serializer),
        }
    }
}

impl JsonSchema for Failed {
    fn schema_name() -> Cow<'static, str> {
        "Failed".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let rows = json_schema!({ "type": "integer", "minimum": 0 });
        json_schema!({
            "description": "A number of rows of the tested stream, or numbers by the names of streams.",
            "anyOf": [
                rows,
                { "type": "object", "additionalProperties": rows },
            ],
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
