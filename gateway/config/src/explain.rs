//! What a configuration amounts to: every setting with its origin, the requests that are sent,
//! how busy each link is, and which time decides in each stream.
//!
//! The whole text is YAML that loads to the same document; what is not YAML stands in comments.
//! Values that came from references are shown as references: they may be secrets.

use std::time::Duration;

use serde_yaml::Value;
use tidegate_drivers::modbus::Block;
use tidegate_drivers::south::modbus::Bus;

use crate::check::bus::{LinkLoad, TCP_REQUEST, loads};
use crate::path::Path;
use crate::read::Loaded;
use crate::yaml::Style;
use crate::{EventTime, Span, Spans, StreamSection, Window};

/// Column that origins begin in, where the text before is not longer.
const ORIGIN_COLUMN: usize = 56;
/// Points of a request that are named.
const POINTS_SHOWN: usize = 8;

/// Explains a document, as far as that needs no engine.
pub fn explain(loaded: &Loaded) -> String {
    let mut lines = effective(loaded);
    let loads = loads(&loaded.document);
    if !loads.is_empty() {
        lines.extend([String::new(), "# Requests of each link".to_owned()]);
        for load in &loads {
            link(load, loaded, &mut lines);
        }
    }
    if !loaded.document.streams.is_empty() {
        lines.extend([String::new(), "# Streams".to_owned()]);
        lines.extend(loaded.document.streams.iter().map(|s| stream(s, &loaded.document)));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// The effective configuration as YAML, each setting with its origin.
fn effective(loaded: &Loaded) -> Vec<String> {
    // Choices as mappings, as the document writes them, and not as YAML tags.
    let value = serde_yaml::with::singleton_map_recursive::serialize(
        &loaded.document,
        serde_yaml::value::Serializer,
    );
    let mut writer = Writer { spans: &loaded.spans, lines: Vec::new() };
    if let Ok(Value::Mapping(map)) = &value {
        writer.map(map, &Path::default(), 0);
    }
    writer.lines
}

struct Writer<'a> {
    spans: &'a Spans,
    lines: Vec<String>,
}

impl Writer<'_> {
    fn map(&mut self, map: &serde_yaml::Mapping, path: &Path, indent: usize) {
        for (key, value) in map {
            let Value::String(key) = key else { continue };
            // What may be left out and is left out has nothing to show.
            if value.is_null() && self.spans.node(&path.then(key.as_str())).is_none() {
                continue;
            }
            let path = path.then(key.as_str());
            self.value(&format!("{}{}:", " ".repeat(indent), scalar(key)), value, &path, indent);
        }
    }

    /// Writes a value behind `head`: a key with its colon, or the dash of an item.
    fn value(&mut self, head: &str, value: &Value, path: &Path, indent: usize) {
        match value {
            Value::Mapping(map) if !map.is_empty() => {
                self.lines.push(head.to_owned());
                let before = self.lines.len();
                self.map(map, path, indent + 2);
                if self.lines.len() == before {
                    self.lines.pop();
                    self.leaf(&format!("{head} {{}}"), path);
                }
            }
            Value::Sequence(items) if !items.is_empty() => {
                self.lines.push(head.to_owned());
                for (index, item) in items.iter().enumerate() {
                    self.item(item, &path.then(index), indent + 2);
                }
            }
            Value::Mapping(_) => self.leaf(&format!("{head} {{}}"), path),
            Value::Sequence(_) => self.leaf(&format!("{head} []"), path),
            Value::String(text) if self.reference(path).is_none() && text.contains('\n') => {
                self.block(head, text, path, indent + 2);
            }
            leaf => {
                let text = self.reference(path).unwrap_or_else(|| yaml(leaf));
                self.leaf(&format!("{head} {text}"), path);
            }
        }
    }

    fn item(&mut self, item: &Value, path: &Path, indent: usize) {
        let dash = format!("{}-", " ".repeat(indent));
        match item {
            Value::Mapping(map) if !map.is_empty() => {
                let first = self.lines.len();
                self.map(map, path, indent + 2);
                if let Some(line) = self.lines.get_mut(first) {
                    line.replace_range(..=indent, &dash);
                }
            }
            other => self.value(&dash, other, path, indent),
        }
    }

    /// Text of several lines, as it was probably written.
    fn block(&mut self, head: &str, text: &str, path: &Path, indent: usize) {
        let body = text.strip_suffix('\n').unwrap_or(text);
        let awkward = body.is_empty()
            || body.starts_with([' ', '\n'])
            || body.ends_with('\n')
            || body.chars().any(|c| c.is_control() && c != '\n');
        if awkward {
            let quoted = serde_json::Value::from(text).to_string();
            return self.leaf(&format!("{head} {quoted}"), path);
        }
        let mark = if body.len() < text.len() { "|" } else { "|-" };
        self.leaf(&format!("{head} {mark}"), path);
        let indent = " ".repeat(indent);
        self.lines.extend(body.lines().map(|line| format!("{indent}{line}").trim_end().to_owned()));
    }

    /// A line with the origin of its value.
    fn leaf(&mut self, text: &str, path: &Path) {
        let origin = match self.spans.position(path) {
            Some(at) => format!("{}:{}", at.file, at.line),
            None if self.spans.root.is_none() => return self.lines.push(text.to_owned()),
            None => "default".to_owned(),
        };
        self.lines.push(format!("{text:ORIGIN_COLUMN$}  # {origin}"));
    }

    /// The reference that a value came from, as it was written.
    fn reference(&self, path: &Path) -> Option<String> {
        let found = self.spans.scalar(path)?;
        let written = found.written.as_ref()?;
        Some(match found.style {
            Style::Plain => written.clone(),
            _ => serde_json::Value::from(written.as_str()).to_string(),
        })
    }
}

fn scalar(text: &str) -> String {
    yaml(&Value::String(text.to_owned()))
}

/// A single value on one line.
fn yaml(value: &Value) -> String {
    let text = serde_yaml::to_string(value).unwrap_or_default();
    let text = text.trim_end();
    match value {
        // Longer texts may be folded over several lines: quote those.
        Value::String(string) if text.contains('\n') => {
            serde_json::Value::from(string.as_str()).to_string()
        }
        _ => text.to_owned(),
    }
}

fn link(load: &LinkLoad<'_>, loaded: &Loaded, lines: &mut Vec<String>) {
    let how = match &load.link.bus {
        Bus::Tcp(bus) => {
            format!("{} ms a request", millis(TCP_REQUEST + bus.inter_request_delay.duration()))
        }
        Bus::Rtu(bus) => format!("{} bits a second", bus.baud),
    };
    let (name, kind) = (&load.link.name, load.link.bus.kind());
    lines.push(format!("#   {name}: {kind}, busy {:.1} % at {how}", load.busy * 100.0));
    for part in &load.devices {
        let device = &loaded.document.devices[part.index];
        let when = match part.every {
            Duration::ZERO => "once a connection".to_owned(),
            every => format!("each {} ms", millis(every)),
        };
        let name = device.part_name(part.group);
        lines.push(format!("#     {name}: {} requests {when}", part.blocks.len()));
        let points = device.driver.columns_of(part.group);
        for block in &part.blocks {
            let names: Vec<_> = block.points.iter().map(|p| points[*p].name.as_str()).collect();
            lines.push(format!("#       {}: {}", request_line(block), shortened(&names)));
        }
    }
}

fn request_line(block: &Block) -> String {
    let kind = block.kind.name();
    match block.quantity {
        1 => format!("{kind} {}", block.start),
        quantity => format!("{kind} {} to {} ({quantity})", block.start, block.end() - 1),
    }
}

fn shortened(names: &[&str]) -> String {
    let shown = names.len().min(POINTS_SHOWN);
    let more = names.len() - shown;
    let mut text = names[..shown].join(", ");
    if more > 0 {
        text = format!("{text} and {more} more");
    }
    text
}

fn stream(stream: &StreamSection, document: &crate::Document) -> String {
    let time = match stream.event_time {
        EventTime::Source => "the rows' own time",
        EventTime::Arrival => "the time of arrival",
    };
    let zone = stream.window.as_ref().and_then(|window| window.zone(document));
    let days = zone.map_or(String::new(), |zone| format!(", days of {zone}"));
    let from: Vec<_> = stream.from.iter().map(|table| read_by(stream, table, document)).collect();
    let how = match &stream.window {
        None => "each batch as it comes".to_owned(),
        Some(Window::Tumbling(tumbling)) => {
            let offset = match tumbling.offset {
                offset if offset == Span::from_secs(0) => String::new(),
                offset => format!(" offset by {offset}"),
            };
            format!(
                "tumbling windows of {}{offset}{days} by {time}, {} late, idle after {:?}",
                tumbling.size,
                stream.allowed_lateness,
                stream.effective_idle_after(document)
            )
        }
        Some(window @ Window::Count(_)) => {
            format!("windows ({}) in the order in which rows come", window.summary())
        }
        Some(window) => format!(
            "windows ({}{days}) by {time}, {} late, idle after {:?}",
            window.summary(),
            stream.allowed_lateness,
            stream.effective_idle_after(document)
        ),
    };
    format!("#   {}: {} in {how}", stream.name, from.join(", "))
}

/// A table as a stream reads it, with where its rows' time comes from.
fn read_by(stream: &StreamSection, table: &crate::Name, document: &crate::Document) -> String {
    let tables = document.tables();
    let found = tables.iter().find(|known| known.name == table.as_str());
    let device = found.and_then(|found| document.devices.get(*found.devices.first()?));
    let Some(driver) = device.map(|device| &device.driver) else {
        return table.to_string();
    };
    match (stream.event_time, driver.time_field()) {
        (EventTime::Source, Some(field)) => format!("{table} (by its `{field}`)"),
        (EventTime::Source, None) if driver.is_feed() => format!("{table} (by arrival: no `time`)"),
        (EventTime::Arrival, Some(field)) => format!("{table} (its `{field}` does not count)"),
        _ => table.to_string(),
    }
}

fn millis(time: Duration) -> u128 {
    time.as_millis()
}
