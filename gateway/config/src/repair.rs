//! All refusals of a tree at once.
//!
//! A deserializer stops at its first error. So each refused value is noted and taken out of the
//! tree, and reading begins again, until it succeeds. What only follows from a value that was
//! taken out (a field that is now missing, a choice that is now empty) is not noted: the item
//! around it goes instead. What was lost is remembered by name, so that later checks keep quiet
//! about it.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::code::Code;
use crate::path::{Path, Step};
use crate::problem::{Problem, Problems};
use crate::read::SourceFile;
use crate::schema::Shape;
use crate::similar::{nearest, suggest};
use crate::span::problem_in;
use crate::typed::{self, Kind};
use crate::yaml::{At, Map, Meaning, Node, Scalar, Style, Value};

/// Nodes that are read in all attempts together: beyond, the problems found so far must do.
const WORK_MAX: usize = 20_000_000;

/// Names of things by their section, such as `devices`; tables stand under `tables`.
pub(crate) type Names = BTreeMap<&'static str, BTreeSet<String>>;

/// Reads a typed value from `root` and notes every problem; in `root` stays what was used. `None`
/// where not enough was left. `damaged` gets the names of items that lost something.
pub(crate) fn read<T: DeserializeOwned + JsonSchema>(
    root: &mut Node,
    sources: &[SourceFile],
    problems: &mut Problems,
    damaged: &mut Names,
) -> Option<T> {
    let shape = Shape::of::<T>();
    let size = count(root);
    let mut work_left = WORK_MAX;
    loop {
        let refusal = match typed::read::<T>(root) {
            Ok(value) => return Some(value),
            Err(refusal) => refusal,
        };
        let path = refusal.path();
        let refused = Refused { root, path: &path, sources, shape: &shape };
        refused.describe(&refusal.kind).into_iter().for_each(|problem| problems.push(problem));
        work_left = work_left.saturating_sub(size);
        let taken = match refusal.kind {
            Kind::Unknown { field, known } => take_out_key(root, &path, &field, known, damaged),
            _ => take_out(root, &path, damaged),
        };
        if !taken || problems.is_full() || work_left == 0 {
            return None;
        }
    }
}

fn count(node: &Node) -> usize {
    1 + match &node.value {
        Value::Scalar(_) | Value::Gone => 0,
        Value::List(items) => items.iter().map(count).sum(),
        Value::Map(map) => map.entries.iter().map(|e| count(&e.node)).sum(),
    }
}

/// Takes a value out of the tree. False for the root, which cannot go.
pub(crate) fn take_out(root: &mut Node, path: &Path, damaged: &mut Names) -> bool {
    note_damage(root, path, damaged);
    let Some((last, parent)) = path.0.split_last() else {
        return false;
    };
    match (node_mut(root, parent).map(|n| &mut n.value), last) {
        (Some(Value::Map(map)), Step::Key(key)) => {
            let before = map.entries.len();
            map.entries.retain(|e| e.key != *key);
            map.dropped.push(key.clone());
            map.entries.len() < before
        }
        (Some(Value::List(items)), Step::Index(index)) => match items.get_mut(*index) {
            Some(item) if !matches!(item.value, Value::Gone) => {
                item.value = Value::Gone;
                true
            }
            _ => false,
        },
        _ => false,
    }
}

/// Takes out a key that its type does not know. The one that was probably meant is not missing.
fn take_out_key(
    root: &mut Node,
    path: &Path,
    key: &str,
    known: &[&str],
    damaged: &mut Names,
) -> bool {
    let meant = nearest(key, known.iter().copied());
    if meant.is_some() {
        note_damage(root, path, damaged);
    }
    let Some(Value::Map(map)) = node_mut(root, &path.0).map(|n| &mut n.value) else {
        return false;
    };
    let before = map.entries.len();
    map.entries.retain(|e| e.key != key);
    map.dropped.extend(meant.map(str::to_owned));
    map.entries.len() < before
}

/// Remembers which named item of which section lost something.
fn note_damage(root: &mut Node, path: &Path, damaged: &mut Names) {
    let [Step::Key(section), Step::Index(index), ..] = path.0.as_slice() else {
        return;
    };
    let sections = ["links", "devices", "streams", "sinks", "lookups", "tests"];
    let Some(section) = sections.into_iter().find(|s| s == section) else {
        return;
    };
    let item = node_mut(root, &[Step::Key(section.to_owned()), Step::Index(*index)]);
    let Some(Value::Map(item)) = item.map(|n| &n.value) else {
        return;
    };
    let word = |key: &str| match item.get(key).map(|e| &e.node.value) {
        Some(Value::Scalar(scalar)) => Some(scalar.text.clone()),
        _ => None,
    };
    let name = word("name");
    if section == "devices" {
        damaged.entry("tables").or_default().extend(word("table").or_else(|| name.clone()));
    }
    damaged.entry(section).or_default().extend(name);
}

fn node<'a>(root: &'a Node, steps: &[Step]) -> Option<&'a Node> {
    steps.iter().try_fold(root, |node, step| match (&node.value, step) {
        (Value::Map(map), Step::Key(key)) => map.get(key).map(|e| &e.node),
        (Value::List(items), Step::Index(index)) => items.get(*index),
        _ => None,
    })
}

fn node_mut<'a>(root: &'a mut Node, steps: &[Step]) -> Option<&'a mut Node> {
    steps.iter().try_fold(root, |node, step| match (&mut node.value, step) {
        (Value::Map(map), Step::Key(key)) => {
            map.entries.iter_mut().find(|e| e.key == *key).map(|e| &mut e.node)
        }
        (Value::List(items), Step::Index(index)) => items.get_mut(*index),
        _ => None,
    })
}

/// A node that was refused, and all that is needed to say so.
struct Refused<'a> {
    root: &'a Node,
    path: &'a Path,
    sources: &'a [SourceFile],
    shape: &'a Shape,
}

impl Refused<'_> {
    fn describe(&self, kind: &Kind) -> Vec<Problem> {
        let Some(node) = node(self.root, &self.path.0) else {
            return Vec::new();
        };
        let one = |code, message: String, hint: Option<String>| {
            vec![self.problem(node.at, code, self.path, message, hint)]
        };
        match kind {
            Kind::Known => Vec::new(),
            Kind::Missing(field) => self.missing(node, field),
            Kind::Unknown { field, known } => {
                let at = map_of(node).and_then(|m| m.get(field)).map_or(node.at, |e| e.at);
                let message = format!("there is no field `{field}` here");
                let path = self.path.then(field.as_str());
                // The rest of a text that was cut at its comma.
                let cut = field.contains(' ').then(|| {
                    "inside `{ }` and `[ ]` a text with a comma needs quotes around it".to_owned()
                });
                let hint = cut.or_else(|| suggest(field, known));
                vec![self.problem(at, Code::UnknownField, &path, message, hint)]
            }
            Kind::Mismatch { found, expected } => {
                let message = match found.as_str() {
                    "empty" => format!("{} is empty: expected {expected}", self.last()),
                    _ => format!("expected {expected}, found {found}"),
                };
                one(Code::WrongKind, message, respell(node, expected))
            }
            Kind::Range { found, expected } => {
                one(Code::BadValue, format!("expected {expected}, found {found}"), None)
            }
            Kind::Choice { found, known } => {
                let word = found.trim_matches('`');
                let at = map_of(node).and_then(|m| m.entries.first()).map_or(node.at, |e| e.at);
                let message = match found.as_str() {
                    "empty" => format!("{} is empty", self.last()),
                    // What stands there is the password itself.
                    _ if map_of(node).is_none()
                        && self.path.0.last() == Some(&"password".into()) =>
                    {
                        format!("{} is not written in clear, but by reference", self.last())
                    }
                    _ => format!("{found} is no choice for {}", self.last()),
                };
                let hint = suggest(word, known);
                vec![self.problem(at, Code::UnknownChoice, self.path, message, hint)]
            }
            Kind::Form { message, hint } => {
                one(Code::BadChoice, format!("{}: {message}", self.last()), Some(hint.clone()))
            }
            Kind::Value(message) => one(Code::BadValue, message.clone(), None),
        }
    }

    /// The refused value's own name, for the middle of a sentence.
    fn last(&self) -> String {
        match self.path.0.last() {
            Some(Step::Key(key)) => format!("`{key}`"),
            Some(Step::Index(index)) => format!("item {}", index + 1),
            None => "the document".to_owned(),
        }
    }

    /// All fields that a mapping lacks. serde names only the first.
    fn missing(&self, node: &Node, first: &str) -> Vec<Problem> {
        let Some(map) = map_of(node) else {
            return Vec::new();
        };
        let mut fields = self.shape.required(self.path);
        if !fields.iter().any(|f| f == first) {
            fields.push(first.to_owned());
        }
        fields.retain(|field| map.get(field).is_none() && !map.dropped.contains(field));
        let describe = |field: String| {
            let path = self.path.then(field.as_str());
            let hint = self.shape.description(&path).map(|text| format!("`{field}`: {text}"));
            let message = format!("`{field}` is missing");
            self.problem(node.at, Code::MissingField, &path, message, hint)
        };
        fields.into_iter().map(describe).collect()
    }

    fn problem(
        &self,
        at: At,
        code: Code,
        path: &Path,
        message: String,
        hint: Option<String>,
    ) -> Problem {
        let node = node(self.root, &path.0).map(|n| &n.value);
        let message = match node {
            Some(Value::Scalar(scalar)) => masked(scalar, message),
            _ => message,
        };
        Problem { hint, ..problem_in(self.sources, at, code, path, message) }
    }
}

/// A message about a value that came from a reference shows the reference: the value may be a
/// secret.
pub(crate) fn masked(scalar: &Scalar, message: String) -> String {
    match &scalar.written {
        Some(written) if !scalar.text.is_empty() => message.replace(&scalar.text, written),
        _ => message,
    }
}

fn map_of(node: &Node) -> Option<&Map> {
    match &node.value {
        Value::Map(map) => Some(map),
        _ => None,
    }
}

/// How a value of the wrong kind is probably meant to be written.
fn respell(node: &Node, expected: &str) -> Option<String> {
    let Value::Scalar(scalar) = &node.value else {
        return None;
    };
    let text = scalar.written.as_deref().unwrap_or(&scalar.text);
    let unquoted = Scalar { style: Style::Plain, ..scalar.clone() };
    match (scalar.meaning(), unquoted.meaning()) {
        (Meaning::Unsigned(_), _) if expected.contains("duration") => {
            Some(format!("write it with its unit, such as `{text}s` or `{text}ms`"))
        }
        (Meaning::Unsigned(_), _) if expected.contains("size") => {
            Some(format!("write it with its unit, such as `{text}B` or `{text}MiB`"))
        }
        (Meaning::Bool(_) | Meaning::Signed(_) | Meaning::Unsigned(_) | Meaning::Float(_), _)
            if expected.contains("text") || expected.contains("name") =>
        {
            Some(format!("write it in quotes: \"{text}\""))
        }
        (Meaning::Text(word), _) if expected.contains("true") => {
            let word = word.to_ascii_lowercase();
            matches!(word.as_str(), "yes" | "no" | "on" | "off" | "true" | "false")
                .then(|| "write `true` or `false`, without quotes".to_owned())
        }
        (Meaning::Text(_), Meaning::Unsigned(_) | Meaning::Signed(_) | Meaning::Float(_))
            if expected.contains("number") =>
        {
            Some(if scalar.written.is_some() {
                "write the reference without quotes, on a line of its own".to_owned()
            } else {
                format!("write it without quotes: {text}")
            })
        }
        _ => None,
    }
}
