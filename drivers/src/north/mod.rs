//! What is delivered to: one file per driver.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub mod file;
#[cfg(feature = "io")]
mod lines;
pub mod mqtt;
pub mod stdout;

/// How records are written.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Encode {
    /// One JSON object a row.
    Json(JsonEncode),
}

impl Default for Encode {
    fn default() -> Self {
        Self::Json(JsonEncode::default())
    }
}

/// How JSON is written.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JsonEncode {
    /// What goes beside the row's own columns. Left out: what the transport cannot carry itself.
    #[serde(default)]
    pub envelope: Option<Envelope>,
    /// How whole numbers beyond 2^53 are written.
    #[serde(default)]
    pub int64: Int64Style,
}

/// What goes beside a row's own columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Envelope {
    /// The row alone.
    None,
    /// `_id`, and `_quality` where the row has no `quality` column of its own but its table has.
    Meta,
}

/// How 64 bit whole numbers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Int64Style {
    /// As numbers, always.
    #[default]
    Number,
    /// As strings where they are beyond 2^53.
    String,
}
