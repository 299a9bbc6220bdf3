//! Delivery to a file, one line a record.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::types::Bytes;

/// A file that results are appended to.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSink {
    /// The file's path; its folder must exist.
    pub path: String,
    /// A new file is begun before the current one would grow beyond this.
    #[serde(default = "default_rotate")]
    pub rotate: Bytes,
    /// Older files that are kept, as `path.1` (the newest) to `path.N`.
    #[serde(default = "default_keep")]
    pub keep: u32,
    /// How records are written.
    #[serde(default)]
    pub encode: super::Encode,
}

fn default_rotate() -> Bytes {
    Bytes::from_mib(16)
}

fn default_keep() -> u32 {
    5
}
