//! Comma separated values, with quotes and line breaks inside them.
//!
//! The first record names the columns. An empty field is missing, one of two quotes is an empty
//! text; empty lines are passed over. Source: RFC 4180; a line may end in LF alone.

use std::borrow::Cow;

use tidegate_config::LookupSection;

use super::columns::{Columns, Value};

/// Reads all records into the columns.
pub(super) fn read(
    section: &LookupSection,
    text: &str,
    columns: &mut Columns,
) -> Result<(), String> {
    let mut records = Records { rest: text, line: 1 };
    let Some((_, head)) = records.next()? else {
        return Err("it is empty: the first line names the columns".to_owned());
    };
    let mut places = Vec::with_capacity(section.columns.len());
    for column in &section.columns {
        let name = column.source_name();
        match head.iter().position(|field| field.text == name) {
            Some(at) => places.push(at),
            None => return Err(format!("line 1 names no column `{name}`")),
        }
    }
    while let Some((line, fields)) = records.next()? {
        let at = format!("line {line}");
        if fields.len() != head.len() {
            let wrong = format!("{} fields, where line 1 has {}", fields.len(), head.len());
            columns.refuse(&at, &wrong);
            continue;
        }
        columns.push(&at, places.iter().map(|place| fields[*place].value()))?;
    }
    Ok(())
}

#[derive(Debug, PartialEq)]
struct Field<'a> {
    text: Cow<'a, str>,
    quoted: bool,
}

impl Field<'_> {
    fn value(&self) -> Value<'_> {
        if self.text.is_empty() && !self.quoted {
            Value::Missing
        } else {
            Value::Written(&self.text)
        }
    }
}

struct Records<'a> {
    rest: &'a str,
    /// Line of the next record, from 1.
    line: usize,
}

impl<'a> Records<'a> {
    /// The next record and the line that it begins on.
    fn next(&mut self) -> Result<Option<(usize, Vec<Field<'a>>)>, String> {
        while let Some(rest) = line_end(self.rest) {
            self.rest = rest;
            self.line += 1;
        }
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (line, mut fields) = (self.line, Vec::new());
        loop {
            fields.push(self.field()?);
            if let Some(rest) = self.rest.strip_prefix(',') {
                self.rest = rest;
                continue;
            }
            if let Some(rest) = line_end(self.rest) {
                self.rest = rest;
                self.line += 1;
            }
            return Ok(Some((line, fields)));
        }
    }

    fn field(&mut self) -> Result<Field<'a>, String> {
        let Some(quoted) = self.rest.strip_prefix('"') else {
            let end = self.rest.find([',', '\n']).unwrap_or(self.rest.len());
            let (text, rest) = self.rest.split_at(end);
            let ended = rest.starts_with('\n') && text.ends_with('\r');
            let text = if ended { &text[..text.len() - 1] } else { text };
            if text.contains('"') {
                return Err(format!("line {}: a quote inside a field without quotes", self.line));
            }
            self.rest = rest;
            return Ok(Field { text: Cow::Borrowed(text), quoted: false });
        };
        let (begin, mut text) = (self.line, Cow::Borrowed(""));
        self.rest = quoted;
        loop {
            let Some(end) = self.rest.find('"') else {
                return Err(format!("line {begin}: a quote that is not closed"));
            };
            let (part, rest) = self.rest.split_at(end);
            self.line += part.matches('\n').count();
            self.rest = &rest[1..];
            text += part;
            match self.rest.strip_prefix('"') {
                Some(rest) => {
                    text += "\"";
                    self.rest = rest;
                }
                None => break,
            }
        }
        let ends = self.rest.is_empty() || self.rest.starts_with(',');
        if !ends && line_end(self.rest).is_none() {
            return Err(format!("line {}: text behind a closing quote", self.line));
        }
        Ok(Field { text, quoted: true })
    }
}

/// What follows a line end that stands here.
fn line_end(text: &str) -> Option<&str> {
    text.strip_prefix('\n').or_else(|| text.strip_prefix("\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Result<Vec<(usize, Vec<String>)>, String> {
        let mut records = Records { rest: text, line: 1 };
        let mut all = Vec::new();
        while let Some((line, fields)) = records.next()? {
            all.push((line, fields.into_iter().map(|f| f.text.into_owned()).collect()));
        }
        Ok(all)
    }

    /// RFC 4180, section 2: the examples of rules 1, 2, 5, 6 and 7.
    #[test]
    fn the_examples_of_the_rfc() {
        let abc = ["aaa", "bbb", "ccc"];
        for (text, first, second) in [
            ("aaa,bbb,ccc\r\nzzz,yyy,xxx\r\n", abc, Some(2)),
            ("aaa,bbb,ccc\r\nzzz,yyy,xxx", abc, Some(2)),
            ("\"aaa\",\"bbb\",\"ccc\"\r\nzzz,yyy,xxx", abc, Some(2)),
            ("\"aaa\",\"b\r\nbb\",\"ccc\"\r\nzzz,yyy,xxx", ["aaa", "b\r\nbb", "ccc"], Some(3)),
            ("\"aaa\",\"b\"\"bb\",\"ccc\"", ["aaa", "b\"bb", "ccc"], None),
        ] {
            let read = all(text).unwrap();
            assert_eq!(read[0], (1, first.map(str::to_owned).to_vec()), "{text}");
            let expected =
                second.map(|line| (line, vec!["zzz".into(), "yyy".into(), "xxx".into()]));
            assert_eq!(read.get(1).cloned(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_at_the_edges() {
        let one = |text: &str| all(text).unwrap();
        assert_eq!(one(""), []);
        assert_eq!(one("\n\r\n"), []);
        assert_eq!(one("a,,"), [(1, vec!["a".into(), String::new(), String::new()])]);
        assert_eq!(one("\n\n\"\"\n"), [(3, vec![String::new()])]);
        assert_eq!(one("a\n\nb"), [(1, vec!["a".into()]), (3, vec!["b".into()])]);
        for (text, part) in [
            ("a\nb,\"c", "line 2: a quote that is not closed"),
            ("a\"b", "line 1: a quote inside"),
            ("\"a\nb\"c", "line 2: text behind"),
        ] {
            assert!(all(text).unwrap_err().contains(part), "{text}");
        }
    }
}
