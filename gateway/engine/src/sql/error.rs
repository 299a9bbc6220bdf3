//! What is wrong with a SQL text or its execution, for the person who wrote it.
//!
//! Promise: one sentence, where it stands if that is known, and a hint where there is one; never a
//! debug print of DataFusion's types and never a backtrace.

use arrow::error::ArrowError;
use datafusion::common::DataFusionError;
use datafusion::common::diagnostic::Diagnostic;
use datafusion::sql::sqlparser::parser::ParserError;

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

impl SqlError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), position: None, hint: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert(hint.into());
        self
    }

    pub(super) fn at(mut self, line: u64, column: u64) -> Self {
        self.position = match (u32::try_from(line), u32::try_from(column)) {
            (Ok(line), Ok(column)) if line > 0 => Some((line, column)),
            _ => None,
        };
        self
    }
}

impl From<DataFusionError> for SqlError {
    fn from(error: DataFusionError) -> Self {
        let text = match error.find_root() {
            DataFusionError::SQL(parser, _) => return from_parser(parser),
            DataFusionError::Internal(what) => format!("DataFusion cannot do this: {what}"),
            root => root.message().into_owned(),
        };
        let text = text.replace("datafusion.public.", "");
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let mut found = Self::new(first.trim_end_matches(['.', ':']));
        let mut advice = rest.trim().replace('\n', " ");
        if let Some(diagnostic) = error.diagnostic() {
            if let Some(span) = diagnostic.span {
                found = found.at(span.start.line, span.start.column);
            }
            advice = advice_of(diagnostic).unwrap_or(advice);
        }
        if advice.is_empty() { found } else { found.hint(advice) }
    }
}

impl From<ArrowError> for SqlError {
    fn from(error: ArrowError) -> Self {
        DataFusionError::from(error).into()
    }
}

fn advice_of(diagnostic: &Diagnostic) -> Option<String> {
    let helps = diagnostic.helps.iter().map(|help| help.message.as_str());
    let notes = diagnostic.notes.iter().map(|note| note.message.as_str());
    let all: Vec<&str> = helps.chain(notes).collect();
    (!all.is_empty()).then(|| all.join("; ").replace("datafusion.public.", ""))
}

/// The parser puts the position at the end of its text: `… at Line: 2, Column: 7`.
fn from_parser(error: &ParserError) -> SqlError {
    let text = match error {
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => text,
        ParserError::RecursionLimitExceeded => {
            return SqlError::new("the SQL is nested too deep").hint("use a CTE (WITH …)");
        }
    };
    let parsed = text.rsplit_once(" at Line: ").and_then(|(message, place)| {
        let (line, column) = place.split_once(", Column: ")?;
        Some((message, line.trim().parse().ok()?, column.trim().parse().ok()?))
    });
    match parsed {
        Some((message, line, column)) => SqlError::new(message).at(line, column),
        None => SqlError::new(text.clone()),
    }
}
