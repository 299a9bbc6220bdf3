//! Where each value of a document was written.
//!
//! Holds the tree of the document as it was used: merged, with references replaced, without what
//! was refused. A document that came otherwise than as text has no positions, only paths.

use std::fmt;

use crate::code::Code;
use crate::path::{Path, Step};
use crate::problem::Problem;
use crate::read::SourceFile;
use crate::repair::masked;
use crate::yaml::{At, Node, Scalar, Style, Value};

/// Positions of a document's values, and the texts that they are in.
#[derive(Clone, Default)]
pub struct Spans {
    pub(crate) root: Option<Node>,
    pub(crate) sources: Vec<SourceFile>,
}

impl fmt::Debug for Spans {
    /// Names only: the texts may hold what came from a referenced file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.sources.iter().map(|s| &s.name)).finish()
    }
}

/// A position in a source file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The file's name as it was given.
    pub file: String,
    /// 1-based line.
    pub line: u32,
    /// 1-based column in characters.
    pub column: u32,
}

impl Spans {
    /// The node at a path, where the document says something there.
    pub(crate) fn node(&self, path: &Path) -> Option<&Node> {
        path.0.iter().try_fold(self.root.as_ref()?, |node, step| Some(child(node, step)?.0))
    }

    /// Where the value at `path` was written; `None` for a default.
    pub fn position(&self, path: &Path) -> Option<Position> {
        let at = self.node(path)?.at;
        let file = self.sources.get(at.file)?.name.clone();
        Some(Position { file, line: at.line, column: at.column })
    }

    /// The scalar at a path.
    pub(crate) fn scalar(&self, path: &Path) -> Option<&Scalar> {
        match &self.node(path)?.value {
            Value::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    /// Where to point for `path`: the value, its key where it is a mapping, or where it is a
    /// default, the nearest mapping around.
    fn nearest(&self, path: &Path) -> At {
        let Some(mut node) = self.root.as_ref() else {
            return At::default();
        };
        let mut at = node.at;
        for step in &path.0 {
            let Some((next, _)) = child(node, step) else {
                break;
            };
            at = match (&next.value, step, &node.value) {
                (Value::Map(_), Step::Key(key), Value::Map(map)) => {
                    map.get(key).map_or(next.at, |entry| entry.at)
                }
                _ => next.at,
            };
            node = next;
        }
        at
    }

    /// The path as the user counts: items that were taken out of lists count too.
    fn as_written(&self, path: &Path) -> Path {
        let mut written = path.clone();
        let mut node = self.root.as_ref();
        for (step, shown) in path.0.iter().zip(&mut written.0) {
            let Some((next, index)) = node.and_then(|node| child(node, step)) else {
                break;
            };
            if let Some(index) = index {
                *shown = Step::Index(index);
            }
            node = Some(next);
        }
        written
    }

    /// A problem with the value at `path`.
    pub(crate) fn problem(&self, code: Code, path: &Path, message: impl Into<String>) -> Problem {
        self.problem_at(self.nearest(path), code, path, message)
    }

    /// A problem with the key of the value at `path`.
    pub(crate) fn problem_with_key(
        &self,
        code: Code,
        path: &Path,
        message: impl Into<String>,
    ) -> Problem {
        let key = path.0.split_last().and_then(|(last, parent)| {
            match (&self.node(&Path(parent.to_vec()))?.value, last) {
                (Value::Map(map), Step::Key(key)) => map.get(key).map(|entry| entry.at),
                _ => None,
            }
        });
        self.problem_at(key.unwrap_or_else(|| self.nearest(path)), code, path, message)
    }

    /// A problem at a position that is known already.
    pub(crate) fn problem_at(
        &self,
        at: At,
        code: Code,
        path: &Path,
        message: impl Into<String>,
    ) -> Problem {
        let message = match self.scalar(path) {
            Some(scalar) => masked(scalar, message.into()),
            None => message.into(),
        };
        problem_in(&self.sources, at, code, &self.as_written(path), message)
    }

    /// A problem at a line and a column inside of the text at `path`, both from 1.
    pub(crate) fn problem_inside(
        &self,
        inside: (u32, u32),
        code: Code,
        path: &Path,
        message: impl Into<String>,
    ) -> Problem {
        let at = self.inside(path, inside).unwrap_or_else(|| self.nearest(path));
        self.problem_at(at, code, path, message)
    }

    /// Finds a position inside of a text in the file that it was written in. Exact for literal
    /// blocks and for texts on one line; `None` where folding has lost the place.
    fn inside(&self, path: &Path, (line, column): (u32, u32)) -> Option<At> {
        let node = self.node(path)?;
        let Value::Scalar(scalar) = &node.value else {
            return None;
        };
        let source = &self.sources.get(node.at.file)?.text;
        match scalar.style {
            Style::Literal => {
                let index = usize::try_from(line).ok()?.checked_sub(1)?;
                let wanted = scalar.written.as_ref().unwrap_or(&scalar.text).lines().nth(index)?;
                let at_line = node.at.line + line;
                let written = source.lines().nth(usize::try_from(at_line).ok()?.checked_sub(1)?)?;
                let indent = written.len().checked_sub(wanted.len())?;
                let indent = u32::try_from(indent).ok()?;
                Some(At { line: at_line, column: indent + column, ..node.at })
            }
            Style::Plain | Style::Quoted if line == 1 && !scalar.text.contains('\n') => {
                let quote = u32::from(scalar.style == Style::Quoted);
                Some(At { column: node.at.column + quote + column - 1, ..node.at })
            }
            _ => None,
        }
    }
}

/// A problem at a position in one of several sources.
pub(crate) fn problem_in(
    sources: &[SourceFile],
    at: At,
    code: Code,
    path: &Path,
    message: impl Into<String>,
) -> Problem {
    let source = sources.get(at.file);
    let line = usize::try_from(at.line).ok().and_then(|line| line.checked_sub(1));
    Problem {
        code,
        severity: code.severity(),
        path: path.to_string(),
        file: source.map(|s| s.name.clone()).unwrap_or_default(),
        line: at.line,
        column: at.column,
        message: message.into(),
        hint: None,
        source_line: line
            .and_then(|line| source?.text.lines().nth(line))
            .filter(|text| !may_hold_secret(text))
            .map(str::to_owned),
    }
}

/// Whether a line should not be repeated in a log: it speaks of a password, which somebody may
/// have written in clear, or has an address with a user in it.
fn may_hold_secret(line: &str) -> bool {
    let user = line.split_once("://").is_some_and(|(_, rest)| rest.contains('@'));
    user || line.to_ascii_lowercase().contains("password")
}

/// The child of a node, and for an item of a list its index as it was written.
fn child<'a>(node: &'a Node, step: &Step) -> Option<(&'a Node, Option<usize>)> {
    match (&node.value, step) {
        (Value::Map(map), Step::Key(key)) => map.get(key).map(|entry| (&entry.node, None)),
        (Value::List(items), Step::Index(index)) => items
            .iter()
            .enumerate()
            .filter(|(_, item)| !matches!(item.value, Value::Gone))
            .nth(*index)
            .map(|(written, item)| (item, Some(written))),
        _ => None,
    }
}
