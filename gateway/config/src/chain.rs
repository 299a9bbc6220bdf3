//! Streams as tables of other streams: their columns, in which order they follow from each other,
//! and how far behind the clock a windowed one is.
//!
//! Knows names, columns and spans; what SQL reads by `latest('…')` is told from outside, because
//! no SQL is read here. Source: design page "The engine", section Tables.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};

use crate::{Device, Document, Span, StreamSection, Window};

/// Names in `latest('…')` of a SQL text.
pub type Latest<'a> = &'a dyn Fn(&str) -> Vec<String>;

/// What `latest('…')` of a name reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatestOf {
    /// The table whose rows are looked at.
    pub table: String,
    /// The one device that counts; none where all devices of the table do.
    pub device: Option<String>,
}

/// Why a stream's results cannot be read as a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoTable {
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: String,
}

/// The streams of a document in the order in which they follow from each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamOrder {
    /// Indices into [`Document::streams`]: each stands behind all that it reads.
    pub sound: Vec<usize>,
    /// Streams that read themselves in the end, each circle once, in the order of reading.
    pub circles: Vec<Vec<usize>>,
}

impl Document {
    /// The streams that a stream reads, by index, each once.
    pub fn inputs_of(&self, stream: &StreamSection, latest: Latest<'_>) -> Vec<usize> {
        let from = stream.from.iter().map(ToString::to_string);
        let tables: BTreeSet<String> = self.tables().into_iter().map(|t| t.name).collect();
        let mut found = Vec::new();
        for name in from.chain(latest(&stream.sql)) {
            let at = self.streams.iter().position(|s| s.name.as_str() == name);
            if let Some(at) = at
                && !tables.contains(&name)
                && !found.contains(&at)
            {
                found.push(at);
            }
        }
        found
    }

    /// All streams, each behind those that it reads.
    pub fn stream_order(&self, latest: Latest<'_>) -> StreamOrder {
        let inputs: Vec<Vec<usize>> =
            self.streams.iter().map(|stream| self.inputs_of(stream, latest)).collect();
        let mut sound: Vec<usize> = Vec::new();
        let mut left: BTreeSet<usize> = (0..self.streams.len()).collect();
        loop {
            let ready = |at: &usize| inputs[*at].iter().all(|input| !left.contains(input));
            let Some(next) = left.iter().copied().find(ready) else {
                break;
            };
            left.remove(&next);
            sound.push(next);
        }
        let mut circles: Vec<Vec<usize>> = Vec::new();
        for start in &left {
            let mut way: Vec<usize> = Vec::new();
            let mut at = *start;
            // Whoever is left reads somebody who is left, so this comes back to where it was.
            let circle = loop {
                if let Some(begin) = way.iter().position(|seen| *seen == at) {
                    break way.split_off(begin);
                }
                way.push(at);
                match inputs[at].iter().find(|input| left.contains(input)) {
                    Some(input) => at = *input,
                    None => break Vec::new(),
                }
            };
            let known = circles.iter().any(|c| circle.iter().any(|at| c.contains(at)));
            if !circle.is_empty() && !known {
                circles.push(circle);
            }
        }
        StreamOrder { sound, circles }
    }

    /// The streams that a stream follows from, nearest or not, by index and in order.
    pub fn upstream_of(&self, stream: &StreamSection, latest: Latest<'_>) -> BTreeSet<usize> {
        let mut all = BTreeSet::new();
        let mut new = self.inputs_of(stream, latest);
        while let Some(at) = new.pop() {
            if all.insert(at) {
                new.extend(self.inputs_of(&self.streams[at], latest));
            }
        }
        all
    }

    /// The devices, with their poll groups, whose rows come to a stream, through others or not.
    pub fn devices_behind<'d>(
        &'d self,
        stream: &'d StreamSection,
    ) -> impl Iterator<Item = (&'d Device, usize)> {
        let upstream = self.upstream_of(stream, &|_| Vec::new());
        let through = upstream.into_iter().map(|at| &self.streams[at]);
        let names: BTreeSet<&str> = std::iter::once(stream)
            .chain(through)
            .flat_map(|stream| stream.from.iter().map(crate::Name::as_str))
            .collect();
        self.device_parts().filter(move |(d, group)| names.contains(d.table_of(*group).as_str()))
    }

    /// What `latest(name)` reads; none where there is neither a table, nor a stream, nor a device
    /// of that name. A device that is read in several poll groups is looked at in the first.
    pub fn latest_of(&self, name: &str) -> Option<LatestOf> {
        let whole = || LatestOf { table: name.to_owned(), device: None };
        let is_table = self.tables().iter().any(|table| table.name == name);
        if is_table || self.streams.iter().any(|stream| stream.name.as_str() == name) {
            return Some(whole());
        }
        let device = self.devices.iter().find(|device| device.name.as_str() == name)?;
        Some(LatestOf { table: device.table_of(0), device: Some(name.to_owned()) })
    }

    /// How long after its event time a row may come to each stream because windows of other
    /// streams have to close first; by name.
    fn lags(&self) -> BTreeMap<&str, Duration> {
        let (mut lags, mut passed_on) = (BTreeMap::new(), BTreeMap::<&str, Duration>::new());
        for at in self.stream_order(&|_| Vec::new()).sound {
            let stream = &self.streams[at];
            let inputs = stream.from.iter().filter_map(|name| passed_on.get(name.as_str()));
            let lag = inputs.max().copied().unwrap_or_default();
            let own = stream.window.as_ref().map_or(Duration::ZERO, |window| {
                let closes = stream.allowed_lateness.duration() + stream.own_idle_after(self);
                closes + window.length()
            });
            lags.insert(stream.name.as_str(), lag);
            passed_on.insert(stream.name.as_str(), lag + own);
        }
        lags
    }
}

impl StreamSection {
    /// How long after its event time a row may come to this stream because windows of the streams
    /// that it reads have to close first: their length, their allowed lateness, and the time until
    /// they follow the clock. Zero where it reads devices alone.
    pub fn lag(&self, document: &Document) -> Duration {
        document.lags().get(self.name.as_str()).copied().unwrap_or_default()
    }
}

impl Window {
    /// From a row to the end of its window at most, where that is bounded.
    fn length(&self) -> Duration {
        match self {
            Self::Tumbling(window) => window.size.duration(),
            Self::Hopping(window) => window.size.duration(),
            Self::Cumulative(window) => window.size.duration(),
            Self::Sliding(window) => window.size.duration() + window.delay.duration(),
            Self::Session(window) => {
                let longest = window.length_max.map_or(Duration::ZERO, Span::duration);
                window.gap.duration() + longest
            }
            Self::Count(_) => Duration::ZERO,
            Self::State(window) => window.length_max.duration(),
        }
    }
}

/// The columns of a stream's results as a table for other streams: `time`, `device`, `quality`,
/// `seq`, then what the SELECT gives besides.
///
/// # Errors
/// Where rows would have no time, or one of the first three is selected with another type.
pub fn stream_table(name: &str, result: &Schema, windowed: bool) -> Result<SchemaRef, NoTable> {
    let no = |message: String, hint: &str| Err(NoTable { message, hint: hint.to_owned() });
    match result.field_with_name("time").map(Field::data_type) {
        Ok(DataType::Timestamp(..)) => {}
        Ok(other) => {
            let message = format!(
                "`{name}` cannot be read as a table: its column `time` is {other}, not a time"
            );
            return no(
                message,
                "select the rows' event time as `time`, or call the column otherwise",
            );
        }
        Err(_) if windowed => {}
        Err(_) => {
            let message =
                format!("`{name}` cannot be read as a table: it has no window, and no `time`");
            return no(message, "add `time` to its SELECT: a row is read by its time");
        }
    }
    for text in ["device", "quality"] {
        let is_text =
            |t: &DataType| matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
        if let Ok(field) = result.field_with_name(text)
            && !is_text(field.data_type())
        {
            let message = format!(
                "`{name}` cannot be read as a table: its column `{text}` is {}, not a text",
                field.data_type()
            );
            return no(message, "call the column otherwise with AS");
        }
    }
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let mut fields = vec![
        Arc::new(Field::new("time", utc, false)),
        Arc::new(Field::new("device", DataType::Utf8, false)),
        Arc::new(Field::new("quality", DataType::Utf8, false)),
        Arc::new(Field::new("seq", DataType::UInt64, false)),
    ];
    let own = ["time", "device", "quality", "seq"];
    let others = result.fields().iter().filter(|field| !own.contains(&field.name().as_str()));
    fields.extend(others.map(|f| Arc::new(Field::new(f.name(), f.data_type().clone(), true))));
    Ok(Arc::new(Schema::new(fields)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Environment, SourceFile, load};

    struct Nothing;

    impl Environment for Nothing {
        fn var(&self, _: &str) -> Option<String> {
            None
        }
        fn read(&self, _: &str) -> Result<String, String> {
            Err("is not there".to_owned())
        }
    }

    /// Streams as `name: what it reads`; those that begin with `w` have windows of 10 s.
    fn document(streams: &[(&str, &str)]) -> Document {
        let streams: Vec<String> = streams
            .iter()
            .map(|(name, from)| {
                let window = if name.starts_with('w') {
                    "window: { tumbling: { size: 10s } }, allowed_lateness: 2s, "
                } else {
                    ""
                };
                format!("  - {{ name: {name}, from: [{from}], {window}sql: SELECT 1 }}\n")
            })
            .collect();
        let device = "devices:\n  - name: m\n    driver: { generate: { every: 4s, points: [ { name: \
                      v, value: { constant: 1 } } ] } }\n";
        let streams = streams.concat();
        let text = format!("version: 1\ngateway: {{ name: g }}\n{device}streams:\n{streams}");
        load(&[SourceFile { name: "t".into(), text }], &Nothing).unwrap().document
    }

    fn names(document: &Document, order: &[usize]) -> String {
        let names: Vec<_> = order.iter().map(|at| document.streams[*at].name.as_str()).collect();
        names.join(" ")
    }

    #[test]
    fn each_stream_stands_behind_what_it_reads() {
        let document = document(&[("c", "b, a"), ("b", "a"), ("a", "m"), ("d", "m")]);
        let order = document.stream_order(&|_| Vec::new());
        assert_eq!(names(&document, &order.sound), "a b c d");
        assert!(order.circles.is_empty());
        let upstream: Vec<_> =
            document.upstream_of(&document.streams[0], &|_| Vec::new()).into_iter().collect();
        assert_eq!(names(&document, &upstream), "b a");
        assert_eq!(document.devices_behind(&document.streams[0]).count(), 1);
        // By `latest` too.
        let d = document.stream_order(&|sql| match sql {
            "SELECT 1" => vec!["d".to_owned(), "m".to_owned()],
            _ => Vec::new(),
        });
        assert_eq!(names(&document, &d.circles[0]), "d");
    }

    #[test]
    fn circles_are_told_once_and_hold_up_what_follows_from_them() {
        let document =
            document(&[("e", "c"), ("a", "c"), ("b", "a"), ("c", "b"), ("s", "s"), ("d", "m")]);
        let order = document.stream_order(&|_| Vec::new());
        assert_eq!(names(&document, &order.sound), "d");
        let circles: Vec<_> = order.circles.iter().map(|c| names(&document, c)).collect();
        assert_eq!(circles, ["c b a", "s"]);
        assert_eq!(document.streams[0].lag(&document), Duration::ZERO);
    }

    /// By hand: a device that is polled each 4 s is idle after 8 s; windows of 10 s with 2 s of
    /// lateness over it are told 20 s after their start at the latest, and so on from stream to
    /// stream.
    #[test]
    fn windows_below_make_a_stream_wait() {
        let document =
            document(&[("w1", "m"), ("p", "w1"), ("w2", "p"), ("w3", "w2, m"), ("q", "m")]);
        let of = |at: usize| document.streams[at].lag(&document).as_secs();
        assert_eq!([of(0), of(1), of(2), of(3), of(4)], [0, 20, 20, 40, 0]);
        let idle = |at: usize| document.streams[at].effective_idle_after(&document).as_secs();
        assert_eq!([idle(0), idle(2), idle(3)], [8, 28, 48]);
    }

    #[test]
    fn columns_of_a_stream_as_a_table() {
        let field = |name: &str, of: DataType| Field::new(name, of, true);
        let time = DataType::Timestamp(TimeUnit::Millisecond, None);
        let shown = |fields: Vec<Field>, windowed: bool| {
            stream_table("s", &Schema::new(fields), windowed).map(|schema| {
                let of = |f: &Arc<Field>| format!("{}:{}", f.name(), f.is_nullable());
                schema.fields().iter().map(of).collect::<Vec<_>>().join(" ")
            })
        };
        let own = "time:false device:false quality:false seq:false";
        let seq = field("seq", DataType::Int64);
        assert_eq!(shown(vec![field("v", DataType::Float64)], true), Ok(format!("{own} v:true")));
        let all = vec![field("v", DataType::Boolean), seq, field("time", time)];
        assert_eq!(shown(all, false), Ok(format!("{own} v:true")));
        for (fields, windowed, part) in [
            (vec![field("v", DataType::Float64)], false, "no `time`"),
            (vec![field("time", DataType::Utf8)], true, "not a time"),
            (vec![field("quality", DataType::Float64)], true, "not a text"),
        ] {
            let error = shown(fields, windowed).unwrap_err();
            assert!(error.message.contains(part), "{error:?}");
        }
    }
}
