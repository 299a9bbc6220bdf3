//! Delivery to standard output, one line a record.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Standard output.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StdoutSink {
    /// How records are written.
    #[serde(default)]
    pub encode: super::Encode,
}
