//! Delivery to an MQTT 3.1.1 broker.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::mqtt::{self, Common};
use crate::types::{Bytes, MqttUrl, Secret, Span};

#[cfg(feature = "io")]
mod io;
#[cfg(feature = "io")]
pub use io::MqttNorth;

/// An MQTT 3.1.1 broker that results are published to.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MqttSink {
    /// The broker.
    pub url: MqttUrl,
    /// Topic; `{stream}` and `{gateway}` are replaced.
    #[serde(default = "default_topic")]
    pub topic: String,
    /// 0: sent once, lost where the connection breaks. 1: resent until the broker has it.
    #[serde(default = "default_qos")]
    pub qos: u8,
    /// Whether the broker keeps the last message of the topic.
    #[serde(default)]
    pub retain: bool,
    /// The session's client id; left out, `tidegate-<gateway>-<sink>`.
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
    /// QoS 1 messages that may wait for their acknowledgement.
    #[serde(default = "default_in_flight")]
    pub in_flight: u16,
    /// How long an acknowledgement may take before the connection counts as lost.
    #[serde(default = "default_ack_timeout")]
    pub ack_timeout: Span,
    /// Largest packet; a larger record is refused alone.
    #[serde(default = "default_max_packet")]
    pub max_packet: Bytes,
    /// First pause before the connection is made again; doubles with jitter.
    #[serde(default = "default_backoff_min")]
    pub backoff_min: Span,
    /// Longest pause before the connection is made again.
    #[serde(default = "default_backoff_max")]
    pub backoff_max: Span,
    /// How records are written.
    #[serde(default)]
    pub encode: super::Encode,
}

impl MqttSink {
    /// Everything that makes this sink impossible: the field, what is wrong, what would be right.
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
        if let Some((message, hint)) = topic_problem(&self.topic) {
            problems.push(("topic", message, hint));
        }
        if self.in_flight == 0 {
            problems.push((
                "in_flight",
                "with no message in flight nothing is ever sent".to_owned(),
                "write 1 to 65535; 100 is the default".to_owned(),
            ));
        }
        if self.ack_timeout.duration().is_zero() {
            problems.push((
                "ack_timeout",
                "an acknowledgement needs some time".to_owned(),
                "write 1s or more; 10s is the default".to_owned(),
            ));
        }
        problems
    }
}

/// What makes `topic` impossible as a topic of records, and what would be right.
pub fn topic_problem(topic: &str) -> Option<(String, String)> {
    let fault = mqtt::template_fault(topic)?;
    let hint = "write a topic name; `{stream}` and `{gateway}` are replaced";
    Some((format!("the topic `{topic}` {fault}"), hint.to_owned()))
}

fn default_topic() -> String {
    "tidegate/{gateway}/{stream}".to_owned()
}

fn default_qos() -> u8 {
    1
}

fn default_keep_alive() -> Span {
    Span::from_secs(30)
}

fn default_in_flight() -> u16 {
    100
}

fn default_ack_timeout() -> Span {
    Span::from_secs(10)
}

fn default_max_packet() -> Bytes {
    Bytes::new(256 << 10)
}

fn default_backoff_min() -> Span {
    Span::from_secs(1)
}

fn default_backoff_max() -> Span {
    Span::from_secs(300)
}
