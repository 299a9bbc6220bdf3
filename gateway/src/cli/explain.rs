//! `tidegate explain`: a configuration's values and their origin, what is polled, how each stream
//! is computed; or an error code.

use std::path::Path;
use std::time::Duration;

use tidegate_config::{Document, StreamSection, explain as explain_document, explain_code};
use tidegate_engine::{Mode, Query, Sql, Window};

use super::FAILURE;
use super::check::{fail, load_or_explain};
use crate::build::{lookups, stream_spec};
use crate::chain::{StreamTables, readers_of};
use crate::cli::print::say;

/// Memory that planning may use; nothing is executed.
const PLAN_MEMORY: usize = 16 << 20;

/// Explains `subject` (a stream or an error code), or the whole configuration.
pub fn explain(subject: Option<&str>, config: &Path, plan: bool) -> u8 {
    if let Some(code) = subject.filter(|s| is_code(s)) {
        return match explain_code(code) {
            Some(text) => {
                say!("{code}\n\n{text}");
                0
            }
            None => fail(format_args!("there is no error code {code}")),
        };
    }
    let checked = match load_or_explain(config) {
        Ok(checked) => checked,
        Err(code) => return code,
    };
    let document = &checked.loaded.document;
    let streams: Vec<&StreamSection> = document
        .streams
        .iter()
        .filter(|s| subject.is_none_or(|name| s.name.as_str() == name))
        .collect();
    if let (Some(name), true) = (subject, streams.is_empty()) {
        return fail(format_args!("there is no stream `{name}`"));
    }
    if subject.is_none() {
        say!("{}", explain_document(&checked.loaded).trim_end());
    }
    let sql = match Sql::new(PLAN_MEMORY) {
        Ok(sql) => sql,
        Err(error) => return fail(error),
    };
    let (tables, lookups) = (StreamTables::plan(document, &sql), lookups(document));
    for stream in streams {
        let spec = stream_spec(document, stream, stream.event_time, &tables);
        let query = match spec.plan_with(&sql, &stream.sql, &lookups) {
            Ok(query) => query,
            Err(error) => {
                eprintln!("tidegate: stream {}: {error}", stream.name);
                return FAILURE;
            }
        };
        // Below a whole document, what the engine says is a comment: the text stays YAML.
        let mark = if subject.is_none() { "# " } else { "" };
        say!("{}stream {}", if subject.is_none() { "\n# " } else { "" }, stream.name);
        let (from, aside) = spec.tables.split_at(spec.tables.len() - spec.side_tables);
        for table in from {
            say!("{mark}  reads {} by its column `{}`", table.name, table.time_column);
        }
        for table in aside {
            say!("{mark}  looks at the last rows of {}", table.name);
        }
        if tables.get(stream.name.as_str()).is_some() {
            let readers = readers_of(document, stream.name.as_str());
            let readers: Vec<_> = readers.map(|stream| stream.name.to_string()).collect();
            say!("{mark}  is read by {}", readers.join(", "));
        }
        if spec.lag > 0 {
            let seconds = Duration::from_micros(spec.lag.unsigned_abs());
            say!(
                "{mark}  waits {seconds:?} longer for silent sources: windows before it close first"
            );
        }
        for line in query.explain().lines().take(if plan { usize::MAX } else { 1 }) {
            say!("{mark}  {line}");
        }
        if let Some(window) = &spec.window {
            say!("{mark}  memory: {}", memory(document, stream, window, &query));
        }
    }
    0
}

/// What open windows hold, as far as it can be known before rows come.
fn memory(document: &Document, stream: &StreamSection, window: &Window, query: &Query) -> String {
    let max = document.stream_memory();
    let held = match (query.mode(), stream.held_rows(document)) {
        (Mode::Incremental, _) => {
            let panes = match window.panes() {
                1 => String::new(),
                panes => format!(" in each of {panes} panes"),
            };
            let rows = match query.waits().map(|behind| stream.waiting_rows(document, behind)) {
                None => "the newest rows until they are folded".to_owned(),
                Some(None) => "rows until the watermark has passed them".to_owned(),
                Some(Some(bytes)) => {
                    let mib = bytes.get().div_ceil(1 << 20);
                    format!("about {mib} MiB of rows until the watermark has passed them")
                }
            };
            format!("a state of each group{panes}, and {rows}")
        }
        (_, Some(bytes)) => {
            let mib = bytes.get().div_ceil(1 << 20);
            format!("about {mib} MiB of rows at the rates of its devices")
        }
        (_, None) => "rows, at a rate or for a time that is not known before they come".to_owned(),
    };
    format!("{held}; at most {max}")
}

fn is_code(text: &str) -> bool {
    text.len() == 5 && text.starts_with('E') && text[1..].bytes().all(|b| b.is_ascii_digit())
}
