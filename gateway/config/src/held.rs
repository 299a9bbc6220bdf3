//! What the rows of open windows weigh, as far as the document tells.
//!
//! Devices that are polled bring rows at a rate that stands in the document; feeds do not. Whether a
//! window's rows are kept at all is the engine's affair.

use std::time::Duration;

use arrow_schema::{DataType, Schema};

use crate::{Bytes, Device, DeviceDriver, Document, Span, StreamSection, Window};

/// Bytes of a text in a row: names of devices and qualities are short.
const TEXT_BYTES: u64 = 16;
/// Bytes of a value of a type that has no width of its own.
const OTHER_BYTES: u64 = 32;

/// Which of its rows a stream keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptRows {
    /// All of a window, until it is over; why, in a few words.
    OfWindows(String),
    /// Those that the watermark has not passed by so much: they are folded in order.
    Waiting(Duration),
}

impl Document {
    /// How much of `limits.memory` the open windows of each stream may hold; the other half is for
    /// running SQL.
    pub fn stream_memory(&self) -> Bytes {
        let streams = u64::try_from(self.streams.len().max(1)).unwrap_or(u64::MAX);
        Bytes::new(self.limits.memory.get() / 2 / streams)
    }

    /// How much of the store all tables' logs may take: what the sinks' bounds leave, or a quarter.
    pub fn log_bytes(&self) -> Bytes {
        let max = self.store.max_bytes.get();
        let sinks = self.sinks.iter().map(|sink| sink.store.max_bytes.get());
        let left = max.saturating_sub(sinks.fold(0, u64::saturating_add));
        Bytes::new(left.max(max / 4))
    }
}

impl StreamSection {
    /// What the rows of all open windows weigh at most at the rates of the stream's devices. `None`
    /// where one of them is a feed, or the window's length is not known.
    pub fn held_rows(&self, document: &Document) -> Option<Bytes> {
        let window = self.window.as_ref()?;
        if let Window::Count(count) = window {
            // All devices share the table, and so the rows.
            let (device, group) = self.parts(document).next()?;
            let row = row_bytes(&device.schema_of(group));
            return Some(Bytes::new(row.saturating_mul(count.rows)));
        }
        self.rows_of(document, span_of(window)?.micros())
    }

    /// What the rows weigh at those rates that wait until the watermark has passed them by `behind`.
    pub fn waiting_rows(&self, document: &Document, behind: Duration) -> Option<Bytes> {
        self.rows_of(document, i64::try_from(behind.as_micros()).unwrap_or(i64::MAX))
    }

    /// What the rows weigh that come within `span` microseconds and the allowed lateness.
    fn rows_of(&self, document: &Document, span: i64) -> Option<Bytes> {
        let span = span.saturating_add(self.allowed_lateness.micros());
        let mut held = 0_u64;
        for (device, group) in self.parts(document) {
            let rows = rows_in(device, group, span)?;
            held = held.saturating_add(row_bytes(&device.schema_of(group)).saturating_mul(rows));
        }
        Some(Bytes::new(held))
    }

    /// The poll groups of devices that it reads.
    fn parts<'a>(&'a self, document: &'a Document) -> impl Iterator<Item = (&'a Device, usize)> {
        let reads = |table: &str| self.from.iter().any(|from| from.as_str() == table);
        document.device_parts().filter(move |(d, group)| reads(&d.table_of(*group)))
    }
}

/// For how long a row is in an open window at most.
fn span_of(window: &Window) -> Option<Span> {
    match window {
        Window::Tumbling(window) => Some(window.size),
        Window::Hopping(window) => Some(window.size),
        Window::Cumulative(window) => Some(window.size),
        Window::Sliding(window) => {
            let ahead = window.size.duration().saturating_add(window.delay.duration());
            Some(Span::from_secs(ahead.as_secs().saturating_add(1)))
        }
        // As a rule much shorter than they may be.
        Window::Session(_) | Window::State(_) | Window::Count(_) => None,
    }
}

/// Rows that a device's poll group brings in `span` microseconds.
fn rows_in(device: &Device, group: usize, span: i64) -> Option<u64> {
    let every = u64::try_from(device.every(group)?.as_micros()).ok()?.max(1);
    let polls = u64::try_from(span).unwrap_or(0).div_ceil(every);
    let rows = match &device.driver {
        DeviceDriver::Generate(generate) => u64::from(generate.rows),
        _ => 1,
    };
    Some(polls.saturating_mul(rows))
}

/// What a row weighs in memory, and about as much in the log.
fn row_bytes(schema: &Schema) -> u64 {
    let width = |data_type: &DataType| match data_type {
        DataType::Boolean => 1,
        DataType::Utf8 => TEXT_BYTES,
        other => other.primitive_width().map_or(OTHER_BYTES, |width| width as u64),
    };
    schema.fields().iter().map(|field| width(field.data_type())).sum()
}
