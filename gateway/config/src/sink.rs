//! Sinks: where results go, and what waits for them in the store.
//!
//! The registry of northbound drivers is [`SinkDriver`]: a driver is one variant here, one file in
//! `tidegate-drivers`, and one example in `board-configs/examples`.

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_drivers::north::file::FileSink;
use tidegate_drivers::north::mqtt::MqttSink;
use tidegate_drivers::north::stdout::StdoutSink;
use tidegate_drivers::types::{Bytes, Name, Rate, Span};

/// Where results go.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SinkSection {
    /// The sink's name, which streams refer to.
    pub name: Name,
    /// The driver and its settings.
    pub driver: SinkDriver,
    /// What may wait in the store for this sink.
    #[serde(default)]
    pub store: SinkStore,
    /// How what waited while there was no connection is delivered afterwards.
    #[serde(default)]
    pub replay: SinkReplay,
}

/// The northbound drivers.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SinkDriver {
    /// An MQTT broker.
    Mqtt(MqttSink),
    /// A file with one line a record.
    File(FileSink),
    /// Standard output, one line a record.
    Stdout(StdoutSink),
}

impl SinkDriver {
    /// The driver's name as it is written in the document.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mqtt(_) => "mqtt",
            Self::File(_) => "file",
            Self::Stdout(_) => "stdout",
        }
    }
}

/// What may wait in the store for one sink.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = with_ttl)]
pub struct SinkStore {
    /// Bytes of records that may wait. Records that the far side refused take at most an eighth as much
    /// besides, and 1,000 of them are kept: the oldest give way.
    #[serde(default = "default_max_bytes")]
    pub max_bytes: Bytes,
    /// Age at which a waiting record is dropped and counted; left out, never. `ttl` is another word
    /// for it.
    #[serde(default, alias = "ttl")]
    pub max_age: Option<Span>,
    /// Records that may wait; left out, only bytes count.
    #[serde(default)]
    pub max_records: Option<u64>,
    /// What happens where a bound is reached.
    #[serde(default)]
    pub when_full: WhenFull,
    /// Where the whole store is full, records of sinks with a lower priority give way first.
    #[serde(default)]
    pub priority: Priority,
}

impl Default for SinkStore {
    fn default() -> Self {
        Self {
            max_bytes: default_max_bytes(),
            max_age: None,
            max_records: None,
            when_full: WhenFull::default(),
            priority: Priority::default(),
        }
    }
}

/// The other words of a sink's store: what is written by them stands in the document by the first.
pub(crate) const STORE_ALIASES: [(&str, &str); 1] = [("ttl", "max_age")];

/// Serde's aliases are unknown to the schema.
fn with_ttl(schema: &mut Schema) {
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    if let Some(properties) = properties {
        for (alias, field) in STORE_ALIASES {
            if let Some(mut meant) = properties.get(field).cloned() {
                meant["description"] = format!("Another word for `{field}`.").into();
                properties.insert(alias.to_owned(), meant);
            }
        }
    }
}

/// What happens to records where a bound is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// The oldest waiting records are dropped and counted.
    #[default]
    DropOldest,
    /// New records are dropped and counted.
    DropNewest,
    /// The streams wait; polled devices then lose readings, which is counted.
    Block,
}

/// Who keeps its records longest where the whole store is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Gives way before the others.
    Low,
    /// Gives way by size.
    #[default]
    Normal,
    /// Gives way last, as alarms should.
    High,
}

/// How what waited while there was no connection, or while the sink was paused, is delivered
/// afterwards.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SinkReplay {
    /// Such records in a time at most; left out, as many as the far side takes.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// Of the records that are delivered while such records and live ones wait, the part that live
    /// ones have at least: above 0 and below 1. Left out, all go strictly in order.
    #[serde(default)]
    pub share: Option<f64>,
    /// What goes first.
    #[serde(default)]
    pub order: ReplayOrder,
    /// How such records are told from live ones.
    #[serde(default)]
    pub mark: ReplayMark,
    /// A topic for such records, for sinks that have topics; `{stream}` and `{gateway}` are
    /// replaced. Left out, the same as for live ones.
    #[serde(default)]
    pub topic: Option<String>,
}

impl SinkReplay {
    /// Whether live records may pass those that waited.
    pub fn has_live_lane(&self) -> bool {
        self.share.is_some() || self.order == ReplayOrder::Newest
    }
}

/// What goes first after a time without a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayOrder {
    /// What waited longest.
    #[default]
    Oldest,
    /// Live records; those that waited follow, the oldest first, while no live one waits.
    Newest,
}

/// How records that waited are told from live ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayMark {
    /// Not at all: a record that is delivered twice is the same each time.
    #[default]
    None,
    /// The `meta` envelope says `"_replayed":true`.
    Replayed,
}

fn default_max_bytes() -> Bytes {
    Bytes::from_mib(64)
}
