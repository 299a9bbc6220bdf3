//! Checks of lookups: what is declared of them. Their sources are not looked at.

use std::collections::BTreeSet;

use super::{Checker, SqlPlanner, path_of};
use crate::code::Code;
use crate::{Bytes, LookupFormat, LookupSection, LookupSource, Span, SqliteSource};

/// Rows at most: beyond, a join is no look at a small table.
const ROWS_MAX: u32 = 1_000_000;
/// Bytes of a source at most: it is held as a whole while it is read.
const BYTES_MAX: Bytes = Bytes::from_mib(64);
/// Shortest time between two loads.
const REFRESH_MIN: Span = Span::from_secs(1);
/// Longest time that an answer may take.
const TIMEOUT_MAX: Span = Span::from_secs(300);

impl Checker<'_> {
    pub(super) fn lookups(&mut self, planner: &dyn SqlPlanner) {
        for (index, lookup) in self.document.lookups.iter().enumerate() {
            if self.is_damaged("lookups", &lookup.name) {
                continue;
            }
            let path = path_of("lookups").then(index);
            let mut say = |code: Code, field: &str, message: String, hint: &str| {
                self.say(code, &path.join(field), message, Some(hint));
            };
            columns(lookup, &mut say);
            source(lookup, planner, &mut say);
            if !(1..=ROWS_MAX).contains(&lookup.max_rows) {
                let message = format!("`max_rows` is {}", lookup.max_rows);
                let hint = format!("write a number from 1 to {ROWS_MAX}");
                say(Code::LimitRange, "max_rows", message, &hint);
            }
            if lookup.max_bytes.is_empty() || lookup.max_bytes > BYTES_MAX {
                let message = format!("{} of a lookup are not read", lookup.max_bytes);
                let hint = format!("write up to {BYTES_MAX}: it is held in memory as a whole");
                say(Code::LimitRange, "max_bytes", message, &hint);
            }
            if lookup.refresh < REFRESH_MIN {
                let message = format!("a lookup is not loaded each {}", lookup.refresh);
                say(Code::SpanRange, "refresh", message, "write 1s or more; 5m is the default");
            }
        }
    }
}

type Say<'a> = dyn FnMut(Code, &str, String, &str) + 'a;

fn columns(lookup: &LookupSection, say: &mut Say<'_>) {
    if lookup.columns.is_empty() {
        let hint = "name them with their types: `{ name: limit, type: f64 }`";
        say(Code::EmptyList, "columns", format!("`{}` has no column", lookup.name), hint);
    }
    let mut names = BTreeSet::new();
    for (index, column) in lookup.columns.iter().enumerate() {
        if !names.insert(&column.name) {
            let message = format!("two columns are called `{}`", column.name);
            let field = format!("columns[{index}].name");
            say(Code::Lookup, &field, message, "give each its own name");
        }
        let empty = match lookup.source.format() {
            None | Some(LookupFormat::Csv) => column.source_name().is_empty(),
            Some(LookupFormat::Json) => column.source_name().split('.').any(str::is_empty),
        };
        if empty {
            let field = format!("columns[{index}].path");
            let hint = "write the name that it has in the source";
            say(Code::Lookup, &field, "the path has an empty key".to_owned(), hint);
        }
    }
}

fn source(lookup: &LookupSection, planner: &dyn SqlPlanner, say: &mut Say<'_>) {
    let kind = lookup.source.kind();
    match &lookup.source {
        LookupSource::Csv(file) | LookupSource::Json(file) => {
            file_path(&file.path, kind, say);
        }
        LookupSource::Sqlite(source) => sqlite(source, planner, say),
        LookupSource::Http(http) => {
            if http.timeout.duration().is_zero() || http.timeout > TIMEOUT_MAX {
                let message = format!("no server answers within {}", http.timeout);
                let hint = format!("write a time from 1s to {TIMEOUT_MAX}");
                say(Code::SpanRange, "source.http.timeout", message, &hint);
            }
            if http.ca_file.is_empty() {
                let hint = "name a file of certificates, or leave it out";
                let message = "nobody could vouch for the server".to_owned();
                say(Code::Lookup, "source.http.ca_file", message, hint);
            }
        }
    }
}

fn file_path(path: &str, kind: &str, say: &mut Say<'_>) {
    if path.is_empty() || path.ends_with('/') {
        let field = format!("source.{kind}.path");
        say(Code::Lookup, &field, "this is no file's path".to_owned(), "name a file");
    }
}

fn sqlite(source: &SqliteSource, planner: &dyn SqlPlanner, say: &mut Say<'_>) {
    if !planner.reads_sqlite() {
        let message = "this program was built without SQLite".to_owned();
        let hint = "build it with `--features sqlite`, or export the table as CSV or JSON";
        say(Code::NotBuilt, "source.sqlite", message, hint);
    }
    file_path(&source.path, "sqlite", say);
    let word = first_word(&source.query);
    if !["SELECT", "WITH", "VALUES"].iter().any(|begin| word.eq_ignore_ascii_case(begin)) {
        let message = "the query is no SELECT".to_owned();
        let hint = "write one such as `SELECT device, high FROM limits`; nothing else is run";
        say(Code::Lookup, "source.sqlite.query", message, hint);
    }
}

/// The first word of SQL behind its comments.
fn first_word(sql: &str) -> &str {
    let mut rest = sql.trim_start();
    loop {
        let behind = match (rest.strip_prefix("--"), rest.strip_prefix("/*")) {
            (Some(line), _) => line.split_once('\n'),
            (_, Some(block)) => block.split_once("*/"),
            (None, None) => break,
        };
        rest = behind.map_or("", |(_, behind)| behind.trim_start());
    }
    let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
    &rest[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_behind_comments() {
        for (sql, word) in [
            ("SELECT 1", "SELECT"),
            (" -- why\n/* a\n b */ with x AS (SELECT 1) SELECT * FROM x", "with"),
            ("VALUES(1)", "VALUES"),
            ("DELETE FROM t", "DELETE"),
            ("-- nothing", ""),
            ("/* open", ""),
            ("", ""),
        ] {
            assert_eq!(first_word(sql), word, "{sql}");
        }
    }
}
