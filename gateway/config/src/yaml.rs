//! YAML text to a tree in which every key and value knows where it stands.
//!
//! This is the one place where YAML is read. Budgets come before everything else: bytes, nodes,
//! depth. Anchors, aliases, tags and second documents are refused, keys stand once. Plain scalars
//! are resolved by the core schema (YAML 1.2.2, section 10.3.2) when they are used, so that
//! references can be replaced first.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, options};

use crate::code::Code;

/// Bytes of one file, and of a folder's files together, at most.
pub(crate) const BYTES_MAX: usize = 16 << 20;
/// Values of one file at most: scalars, lists and mappings.
const NODES_MAX: usize = 2_000_000;
/// Levels of nesting at most, of each style.
const DEPTH_MAX: usize = 64;

/// Where a key or a value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct At {
    /// Index of the source file.
    pub file: usize,
    /// 1-based line; 0 for nowhere.
    pub line: u32,
    /// 1-based column in characters.
    pub column: u32,
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub at: At,
    pub value: Value,
}

/// A value as it was written.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Map),
    /// An item of a list that was found wrong and taken out; those behind it keep their index.
    Gone,
}

/// A mapping; keys stand once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Map {
    pub entries: Vec<Entry>,
    /// Keys whose values were found wrong and taken out, so that their absence is no news.
    pub dropped: Vec<String>,
}

/// A key with its value.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub key: String,
    pub at: At,
    pub node: Node,
}

/// A single value.
#[derive(Debug, Clone)]
pub(crate) struct Scalar {
    /// The text, after references were replaced.
    pub text: String,
    pub style: Style,
    /// The text as it was written, where references were replaced.
    pub written: Option<String>,
}

/// How a scalar was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Without quotes: may be a number, true, false or null.
    Plain,
    /// In quotes: always text.
    Quoted,
    /// After `|`: always text, line by line.
    Literal,
    /// After `>`: always text.
    Folded,
}

impl Style {
    fn is_block(self) -> bool {
        matches!(self, Self::Literal | Self::Folded)
    }
}

/// What a scalar means.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Meaning<'a> {
    Null,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(&'a str),
}

/// Why a text could not be read.
#[derive(Debug)]
pub(crate) struct Unread {
    pub code: Code,
    pub at: At,
    pub message: String,
    pub hint: Option<String>,
}

impl Map {
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.key == key)
    }
}

impl Scalar {
    /// Resolves the scalar by YAML's core schema; what was quoted is text. NaN and infinity are
    /// no numbers here: no setting means them.
    pub(crate) fn meaning(&self) -> Meaning<'_> {
        let text = self.text.as_str();
        if self.style != Style::Plain {
            return Meaning::Text(text);
        }
        match text {
            "" | "~" | "null" | "Null" | "NULL" => Meaning::Null,
            "true" | "True" | "TRUE" => Meaning::Bool(true),
            "false" | "False" | "FALSE" => Meaning::Bool(false),
            _ => number(text).unwrap_or(Meaning::Text(text)),
        }
    }
}

fn number(text: &str) -> Option<Meaning<'static>> {
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(digits) = text.strip_prefix(prefix) {
            let digits = digits.chars().all(|c| c.is_digit(radix)).then_some(digits)?;
            return u64::from_str_radix(digits, radix).ok().map(Meaning::Unsigned);
        }
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let first = unsigned.chars().next()?;
    if !first.is_ascii_digit() && first != '.' || unsigned == "." {
        return None;
    }
    if unsigned.bytes().all(|b| b.is_ascii_digit()) {
        if let Ok(value) = text.parse::<u64>() {
            return Some(Meaning::Unsigned(value));
        }
        if let Ok(value) = text.parse::<i64>() {
            return Some(Meaning::Signed(value));
        }
    }
    // What is left of Rust's spellings that YAML does not know begins with a letter.
    let float: f64 = text.parse().ok()?;
    float.is_finite().then_some(Meaning::Float(float))
}

impl Node {
    /// True for nothing at all, `~` and `null`.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.meaning() == Meaning::Null)
    }
}

/// Reads one file. `None` where the text cannot be used any further; duplicate keys are noted in
/// `unread`, and the first one counts.
pub(crate) fn parse(text: &str, file: usize, unread: &mut Vec<Unread>) -> Option<Node> {
    parse_within(NODES_MAX, text, file, unread)
}

fn parse_within(
    nodes_max: usize,
    text: &str,
    file: usize,
    unread: &mut Vec<Unread>,
) -> Option<Node> {
    if text.len() > BYTES_MAX {
        unread.push(Unread {
            code: Code::TooLarge,
            at: At { file, line: 0, column: 0 },
            message: format!("{} bytes are more than the {BYTES_MAX} that are read", text.len()),
            hint: None,
        });
        return None;
    }
    let mut builder =
        Builder { file, nodes: 0, nodes_max, documents: 0, frames: Vec::new(), root: None };
    let settings = options! { flow_nesting_limit: DEPTH_MAX, block_nesting_limit: DEPTH_MAX };
    for step in Parser::new_from_str_with_options(text, settings) {
        let refused = match step {
            Ok((event, span)) => {
                let at = builder.at(span.start.line(), span.start.col());
                builder.take(event, at, unread)
            }
            Err(error) => {
                let at = builder.at(error.marker().line(), error.marker().col());
                Err(not_yaml(&error, at, text))
            }
        };
        if let Err(refused) = refused {
            unread.push(refused);
            return None;
        }
    }
    let empty = Node { at: builder.at(1, 0), value: Value::Map(Map::default()) };
    Some(builder.root.filter(|root| !root.is_null()).unwrap_or(empty))
}

/// A syntax error, with a hint where the line shows what the reason probably is.
fn not_yaml(error: &granit_parser::ScanError, at: At, text: &str) -> Unread {
    use granit_parser::ErrorKind;
    let too_deep = matches!(error.kind(), ErrorKind::RecursionLimitExceeded);
    let code = if too_deep { Code::TooLarge } else { Code::Syntax };
    let line_index = usize::try_from(at.line).unwrap_or(0).saturating_sub(1);
    let mut near = text.lines().skip(line_index.saturating_sub(1)).take(2);
    let hint = if near.clone().any(|line| line.contains("${")) {
        Some("inside { } and [ ], a value with ${…} must stand in quotes".to_owned())
    } else if near.any(|line| line.starts_with('\t')) {
        Some("indent with spaces; YAML does not allow tabs there".to_owned())
    } else {
        None
    };
    Unread { code, at, message: format!("this is not YAML: {}", error.info()), hint }
}

/// A list or a mapping that is not finished. Of a key: its text, where it stands, and whether it is
/// the first of its name.
enum Frame {
    List { at: At, items: Vec<Node> },
    Map { at: At, map: Map, lines: HashMap<String, u32>, key: Option<(String, At, bool)> },
}

struct Builder {
    file: usize,
    nodes: usize,
    nodes_max: usize,
    documents: usize,
    frames: Vec<Frame>,
    root: Option<Node>,
}

impl Builder {
    fn at(&self, line: usize, column: usize) -> At {
        let cap = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        At { file: self.file, line: cap(line), column: cap(column).saturating_add(1) }
    }

    fn take(&mut self, event: Event<'_>, at: At, unread: &mut Vec<Unread>) -> Result<(), Unread> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.count(at, anchor, tag.is_some())?;
                let style = match style {
                    ScalarStyle::Plain => Style::Plain,
                    ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => Style::Quoted,
                    ScalarStyle::Literal => Style::Literal,
                    ScalarStyle::Folded => Style::Folded,
                };
                let scalar = Scalar { text: text.into_owned(), style, written: None };
                self.scalar(scalar, at, unread);
                Ok(())
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.count(at, anchor, tag.is_some())?;
                self.no_key(at)?;
                self.frames.push(Frame::List { at, items: Vec::new() });
                Ok(())
            }
            Event::MappingStart(_, anchor, tag) => {
                self.count(at, anchor, tag.is_some())?;
                self.no_key(at)?;
                let (map, lines) = (Map::default(), HashMap::new());
                self.frames.push(Frame::Map { at, map, lines, key: None });
                Ok(())
            }
            Event::SequenceEnd | Event::MappingEnd => {
                match self.frames.pop() {
                    Some(Frame::List { at, items }) => {
                        self.value(Node { at, value: Value::List(items) });
                    }
                    Some(Frame::Map { at, map, .. }) => {
                        self.value(Node { at, value: Value::Map(map) });
                    }
                    None => {}
                }
                Ok(())
            }
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(unsupported(at, "a second document in one file"));
                }
                Ok(())
            }
            Event::Alias(_) | Event::UnresolvedAlias(_) => Err(unsupported(at, "an alias")),
            _ => Ok(()),
        }
    }

    /// Counts a node against the budget and refuses what stands before it.
    fn count(&mut self, at: At, anchor: usize, tag: bool) -> Result<(), Unread> {
        self.nodes += 1;
        if self.nodes > self.nodes_max {
            return Err(Unread {
                code: Code::TooLarge,
                at,
                message: format!("more than {} values", self.nodes_max),
                hint: None,
            });
        }
        if anchor != 0 {
            return Err(unsupported(at, "an anchor"));
        }
        if tag {
            return Err(unsupported(at, "a tag"));
        }
        Ok(())
    }

    /// Refuses a list or a mapping where a key belongs.
    fn no_key(&self, at: At) -> Result<(), Unread> {
        match self.frames.last() {
            Some(Frame::Map { key: None, .. }) => Err(Unread {
                code: Code::BadKey,
                at,
                message: "a list or a mapping cannot be a key".to_owned(),
                hint: Some("a value with { or [ must stand in quotes".to_owned()),
            }),
            _ => Ok(()),
        }
    }

    fn scalar(&mut self, scalar: Scalar, at: At, unread: &mut Vec<Unread>) {
        let Some(Frame::Map { lines, key: key @ None, .. }) = self.frames.last_mut() else {
            return self.value(Node { at, value: Value::Scalar(scalar) });
        };
        let first_line = lines.get(&scalar.text).copied();
        if let Some(first) = first_line {
            unread.push(Unread {
                code: Code::DuplicateKey,
                at,
                message: format!("`{}` stands here for the second time", scalar.text),
                hint: Some(format!("the first one is on line {first}; remove one of them")),
            });
        } else {
            lines.insert(scalar.text.clone(), at.line);
        }
        *key = Some((scalar.text, at, first_line.is_none()));
    }

    fn value(&mut self, mut node: Node) {
        match self.frames.last_mut() {
            Some(Frame::List { items, .. }) => items.push(node),
            Some(Frame::Map { map, key, .. }) => {
                let Some((key, at, first)) = key.take() else {
                    return;
                };
                // The parser places nothing at all, and the text of a block, on a later line: the
                // key's place is what a reader looks for, and a block begins below its key.
                if let Value::Scalar(scalar) = &node.value
                    && (scalar.style.is_block() || scalar.meaning() == Meaning::Null)
                {
                    node.at = at;
                }
                if first {
                    map.entries.push(Entry { key, at, node });
                }
            }
            None => self.root = Some(node),
        }
    }
}

fn unsupported(at: At, what: &str) -> Unread {
    Unread {
        code: Code::Unsupported,
        at,
        message: format!("{what} is not accepted"),
        hint: Some("write each thing where it stands".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning_of(text: &str, check: impl Fn(Meaning<'_>) -> bool) -> bool {
        let scalar = Scalar { text: text.to_owned(), style: Style::Plain, written: None };
        check(scalar.meaning())
    }

    /// The examples of YAML 1.2.2, section 10.3.2, and what YAML 1.1 took otherwise.
    #[test]
    fn plain_scalars_follow_the_core_schema() {
        for (text, expected) in [
            ("null", Meaning::Null),
            ("~", Meaning::Null),
            ("", Meaning::Null),
            ("true", Meaning::Bool(true)),
            ("False", Meaning::Bool(false)),
            ("0", Meaning::Unsigned(0)),
            ("0o7", Meaning::Unsigned(7)),
            ("0x3A", Meaning::Unsigned(58)),
            ("-19", Meaning::Signed(-19)),
            ("+12", Meaning::Unsigned(12)),
            ("18446744073709551615", Meaning::Unsigned(u64::MAX)),
            ("0.", Meaning::Float(0.0)),
            ("-0.0", Meaning::Float(-0.0)),
            (".5", Meaning::Float(0.5)),
            ("+12e03", Meaning::Float(12000.0)),
            ("-2E+05", Meaning::Float(-200_000.0)),
            (".inf", Meaning::Text(".inf")),
            (".NAN", Meaning::Text(".NAN")),
            ("yes", Meaning::Text("yes")),
            ("1_000", Meaning::Text("1_000")),
            ("0b11", Meaning::Text("0b11")),
            ("0xG", Meaning::Text("0xG")),
            ("0x", Meaning::Text("0x")),
            ("infinity", Meaning::Text("infinity")),
            ("12:30", Meaning::Text("12:30")),
            (".", Meaning::Text(".")),
            ("-", Meaning::Text("-")),
            ("1e999", Meaning::Text("1e999")),
        ] {
            assert!(meaning_of(text, |m| m == expected), "{text} is not {expected:?}");
        }
    }

    #[test]
    fn the_node_budget_holds() {
        let mut unread = Vec::new();
        // The mapping, the list and three items, without the key.
        assert!(parse_within(6, "x: [1, 2, 3]", 0, &mut unread).is_some());
        assert!(unread.is_empty());
        assert!(parse_within(5, "x: [1, 2, 3]", 0, &mut unread).is_none());
        assert_eq!(unread[0].code, Code::TooLarge);
        assert_eq!((unread[0].at.line, unread[0].at.column), (1, 11));
    }
}
