//! A feed of JSON messages from an MQTT 3.1.1 broker.

use arrow_schema::DataType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::mqtt::{self, Common};
use crate::point::Point;
use crate::types::{Bytes, MqttUrl, Name, Secret, Span};

#[cfg(feature = "io")]
mod io;
#[cfg(feature = "io")]
pub use io::MqttSouth;

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

/// Columns that every table has, or that every feed has: no point may have such a name.
const RESERVED: [&str; 8] =
    ["time", "device", "quality", "seq", "received_at", "topic", "qos", "retained"];

impl MqttFeed {
    /// Everything that makes this feed impossible: the field, what is wrong, what would be right.
    pub fn problems(&self) -> Vec<(&'static str, String, String)> {
        let common = Common {
            client_id: self.client_id.as_deref(),
            username: self.username.as_deref(),
            password: self.password.as_ref(),
            qos: self.qos,
            keep_alive: self.keep_alive,
            max_packet: self.max_packet,
            backoff_min: self.backoff_min,
            backoff_max: self.backoff_max,
        };
        let mut problems = common.problems();
        self.topic_problems(&mut problems);
        self.point_problems(&mut problems);
        let Decode::Json(json) = &self.decode;
        for path in json.time.iter().chain(&json.rows) {
            if path.split('.').any(str::is_empty) {
                problems.push((
                    "decode",
                    format!("the path `{path}` has an empty key"),
                    "write the keys with one dot between them".to_owned(),
                ));
            }
        }
        if self.batch_rows == 0 {
            problems.push((
                "batch_rows",
                "a batch has at least one row".to_owned(),
                "write 1 or more; 1000 is the default".to_owned(),
            ));
        }
        problems
    }

    fn topic_problems(&self, problems: &mut Vec<mqtt::Problem>) {
        if self.topics.is_empty() {
            problems.push((
                "topics",
                "the feed subscribes to nothing".to_owned(),
                "name at least one topic filter, such as `line/+/event`".to_owned(),
            ));
        }
        for (index, topic) in self.topics.iter().enumerate() {
            if let Some(fault) = mqtt::filter_fault(topic) {
                problems.push((
                    "topics",
                    format!("the topic filter `{topic}` {fault}"),
                    "`+` stands for one level, `#` for all that follow".to_owned(),
                ));
            }
            if self.topics[..index].contains(topic) {
                problems.push((
                    "topics",
                    format!("`{topic}` is named twice"),
                    "name each filter once".to_owned(),
                ));
            }
        }
    }

    fn point_problems(&self, problems: &mut Vec<mqtt::Problem>) {
        if self.points.is_empty() {
            problems.push((
                "points",
                "no field of a message becomes a column".to_owned(),
                "name at least one point".to_owned(),
            ));
        }
        for (index, point) in self.points.iter().enumerate() {
            let name = point.name.as_str();
            if RESERVED.contains(&name) {
                problems.push((
                    "points",
                    format!("`{name}` is a column that every feed has"),
                    format!("rename the point and keep `path: {name}`"),
                ));
            }
            if self.points[..index].iter().any(|p| p.name == point.name) {
                problems.push((
                    "points",
                    format!("two points have the name `{name}`"),
                    "names are unique within a device".to_owned(),
                ));
            }
            if point.path.as_deref().is_some_and(|p| p.split('.').any(str::is_empty)) {
                problems.push((
                    "points",
                    format!("the path of `{name}` has an empty key"),
                    "write the keys with one dot between them".to_owned(),
                ));
            }
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, path: Option<&str>) -> FieldPoint {
        let path = path.map(str::to_owned);
        FieldPoint { name: name.parse().unwrap(), value_type: FieldType::I64, path, unit: None }
    }

    fn feed(topics: &[&str], points: Vec<FieldPoint>) -> MqttFeed {
        MqttFeed {
            url: "mqtt://b".parse().unwrap(),
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            qos: default_qos(),
            client_id: None,
            username: None,
            password: None,
            keep_alive: default_keep_alive(),
            max_packet: default_max_packet(),
            decode: Decode::default(),
            batch_rows: default_batch_rows(),
            linger: default_linger(),
            backoff_min: default_backoff_min(),
            backoff_max: default_backoff_max(),
            points,
        }
    }

    #[test]
    fn topics_and_points_are_judged_one_by_one() {
        assert_eq!(feed(&["line/+/event"], vec![field("n", None)]).problems(), []);
        let n = || field("n", None);
        for (feed, field, word) in [
            (feed(&[], vec![n()]), "topics", "nothing"),
            (feed(&["a/#/b"], vec![n()]), "topics", "`a/#/b`"),
            (feed(&["a", "a"], vec![n()]), "topics", "twice"),
            (feed(&["a"], vec![]), "points", "no field"),
            (feed(&["a"], vec![n(), n()]), "points", "two points"),
            (feed(&["a"], vec![field("topic", None)]), "points", "every feed has"),
            (feed(&["a"], vec![field("seq", Some("x"))]), "points", "every feed has"),
            (feed(&["a"], vec![field("n", Some("a..b"))]), "points", "empty key"),
        ] {
            let problems = feed.problems();
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert_eq!(problems[0].0, field);
            assert!(problems[0].1.contains(word), "{}", problems[0].1);
        }
    }
}
