//! What is wrong with a SQL text or its execution, for a person who wrote it.
//!
//! Promise: one sentence, where it stands if that is known, and a hint where there is one; never a
//! debug print of DataFusion's types and never a backtrace.

/// Why SQL was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SqlError {
    /// What is wrong, in one sentence.
    pub message: String,
    /// Line and column in the SQL text, both from 1, where they are known.
    pub position: Option<(u32, u32)>,
    /// What would be right.
    pub hint: Option<String>,
}
