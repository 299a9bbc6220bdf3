//! A feed of JSON messages from an MQTT 3.1.1 broker.

use arrow_schema::DataType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::point::Point;
use crate::types::{Bytes, MqttUrl, Name, Secret, Span};

/// A feed of messages.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MqttFeed {
    /// The broker.
    pub url: MqttUrl,
    /// Topic filters to subscribe to.
    pub topics: Vec<String>,
    /// 0: at most once. 1: acknowledged after the rows are durable.
    #[serde(default = "default_qos")]
    pub qos: u8,
    /// The session's client id; left out, `tidegate-<gateway>-<device>`.
    #[serde(default)]
    pub client_id: Option<String>,
    /// User name.
    #[serde(default)]
    pub username: Option<String>,
    /// Password, by reference.
    #[serde(default)]
    pub password: Option<Secret>,
    /// Keep-alive interval.
    #[serde(default = "default_keep_alive")]
    pub keep_alive: Span,
    /// Largest message that is accepted; a larger one is counted and passed over.
    #[serde(default = "default_max_packet")]
    pub max_packet: Bytes,
    /// How a message becomes rows.
    #[serde(default)]
    pub decode: Decode,
    /// Rows of one batch at most.
    #[serde(default = "default_batch_rows")]
    pub batch_rows: u32,
    /// How long a batch waits for more rows.
    #[serde(default = "default_linger")]
    pub linger: Span,
    /// First pause before the connection is made again; doubles with jitter.
    #[serde(default = "default_backoff_min")]
    pub backoff_min: Span,
    /// Longest pause before the connection is made again.
    #[serde(default = "default_backoff_max")]
    pub backoff_max: Span,
    /// The fields that become columns.
    pub points: Vec<FieldPoint>,
}

/// How a message becomes rows.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Decode {
    /// One JSON object, or an array of objects, a message.
    Json(JsonDecode),
}

impl Default for Decode {
    fn default() -> Self {
        Self::Json(JsonDecode::default())
    }
}

/// How JSON becomes rows.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JsonDecode {
    /// Path to the row's own time: RFC 3339 text, or a number in `time_unit`.
    #[serde(default)]
    pub time: Option<String>,
    /// Unit of a numeric time.
    #[serde(default)]
    pub time_unit: EpochUnit,
    /// Path to the array of rows; left out, the message is one row or an array of rows.
    #[serde(default)]
    pub rows: Option<String>,
}

/// The unit of a numeric time since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EpochUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    #[default]
    Ms,
    /// Microseconds.
    Us,
}

/// One field of a message.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FieldPoint {
    /// The column's name.
    pub name: Name,
    /// The column's type.
    #[serde(rename = "type")]
    pub value_type: FieldType,
    /// Path to the field, dots between the keys; the name where left out.
    #[serde(default)]
    pub path: Option<String>,
    /// The value's unit, for people.
    #[serde(default)]
    pub unit: Option<String>,
}

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FieldType {
    /// true or false.
    Bool,
    /// Whole number, 64 bit.
    I64,
    /// Whole number without sign, 64 bit.
    U64,
    /// Floating point, 64 bit.
    F64,
    /// Text.
    String,
}

impl FieldType {
    /// The Arrow type of the column.
    pub fn data_type(self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::I64 => DataType::Int64,
            Self::U64 => DataType::UInt64,
            Self::F64 => DataType::Float64,
            Self::String => DataType::Utf8,
        }
    }
}

impl MqttFeed {
    /// The columns of the feed's table: the points, then `topic`, `qos`, `retained`.
    pub fn columns(&self) -> Vec<Point> {
        let points = self.points.iter().map(|p| Point {
            unit: p.unit.clone(),
            ..Point::new(p.name.as_str(), p.value_type.data_type())
        });
        points
            .chain([
                Point::metadata("topic", DataType::Utf8),
                Point::metadata("qos", DataType::UInt8),
                Point::metadata("retained", DataType::Boolean),
            ])
            .collect()
    }
}

fn default_qos() -> u8 {
    1
}

fn default_keep_alive() -> Span {
    Span::from_secs(30)
}

fn default_max_packet() -> Bytes {
    Bytes::new(256 << 10)
}

fn default_batch_rows() -> u32 {
    1000
}

fn default_linger() -> Span {
    Span::from_millis(20)
}

fn default_backoff_min() -> Span {
    Span::from_secs(1)
}

fn default_backoff_max() -> Span {
    Span::from_secs(300)
}
