//! Sinks: where results go, and what waits for them in the store.
//!
//! The registry of northbound drivers is [`SinkDriver`]: a driver is one variant here, one file in
//! `tidegate-drivers`, and one example in `board-configs/examples`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_drivers::north::file::FileSink;
use tidegate_drivers::north::mqtt::MqttSink;
use tidegate_drivers::north::stdout::StdoutSink;
use tidegate_drivers::types::{Bytes, Name, Span};

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
pub struct SinkStore {
    /// Bytes of records that may wait.
    #[serde(default = "default_max_bytes")]
    pub max_bytes: Bytes,
    /// Age at which a waiting record is dropped and counted; left out, never.
    #[serde(default)]
    pub max_age: Option<Span>,
    /// Records that may wait; left out, only bytes count.
    #[serde(default)]
    pub max_records: Option<u64>,
    /// What happens where a bound is reached.
    #[serde(default)]
    pub when_full: WhenFull,
}

impl Default for SinkStore {
    fn default() -> Self {
        Self {
            max_bytes: default_max_bytes(),
            max_age: None,
            max_records: None,
            when_full: WhenFull::default(),
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

fn default_max_bytes() -> Bytes {
    Bytes::from_mib(64)
}
