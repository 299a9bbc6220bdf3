//! Problems: what is wrong, where it stands, and what would be right.
//!
//! A problem has a stable code (see `code`), the path of the value inside the document and its
//! position in the file that the user wrote. How problems are shown is `render`'s affair.

use serde::Serialize;

use crate::code::Code;

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The configuration is refused.
    Error,
    /// The configuration runs, but probably not as it was meant.
    Warning,
}

/// One problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The stable code, such as `E0201`; `tidegate explain E0201` tells more.
    pub code: Code,
    /// How bad it is.
    pub severity: Severity,
    /// The value's path inside the document, such as `streams[0].window`; empty for the whole.
    pub path: String,
    /// The file's name as the user gave it; empty where there is none.
    pub file: String,
    /// 1-based line; 0 where there is none.
    pub line: u32,
    /// 1-based column in characters; 0 where there is none.
    pub column: u32,
    /// What is wrong.
    pub message: String,
    /// What would be right, where that is known.
    pub hint: Option<String>,
    /// The text of that line, for the caret below it. Never part of JSON: it may hold a secret.
    #[serde(skip)]
    pub(crate) source_line: Option<String>,
}

/// The problems of a configuration, in the order of files, lines and columns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Problems {
    list: Vec<Problem>,
}

/// Problems that are collected at most.
pub const PROBLEMS_MAX: usize = 100;

impl Problems {
    /// No problem.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a problem, unless [`PROBLEMS_MAX`] are known already or this one is.
    pub(crate) fn push(&mut self, problem: Problem) {
        if !self.is_full() && !self.list.contains(&problem) {
            self.list.push(problem);
        }
    }

    /// Adds all of `other`'s problems.
    pub(crate) fn extend(&mut self, other: Self) {
        other.list.into_iter().for_each(|problem| self.push(problem));
    }

    /// True where no more is collected.
    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= PROBLEMS_MAX
    }

    /// Brings the problems into the order in which one reads the files.
    pub(crate) fn sorted(mut self) -> Self {
        self.list.sort_by(|a, b| {
            (&a.file, a.line, a.column, a.code).cmp(&(&b.file, b.line, b.column, b.code))
        });
        self
    }

    /// True where at least one problem refuses the configuration.
    pub fn has_errors(&self) -> bool {
        self.list.iter().any(|p| p.severity == Severity::Error)
    }

    /// True without any problem.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The number of problems.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The problems in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.list.iter()
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl std::fmt::Display for Problems {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.human())
    }
}

impl std::error::Error for Problems {}
