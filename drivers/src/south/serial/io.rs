//! Reads lines from a port and makes rows of those that match.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use regex::Regex;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, sleep_until};

use super::{LineEnd, SerialDevice};
use crate::border::{Fault, Receipt, South};
use crate::point::Point;
use crate::serial;
use crate::south::mqtt::FieldType;
use crate::south::text::typed;
use crate::stats::{Counter, LinkState, Stats};
use crate::table::{Reason, TableBuilder};

/// What comes so soon after opening may be the rest of a line, and is not taken for a whole one.
const OPENING: Duration = Duration::from_secs(1);
/// Bytes of one read.
const READ_BYTES: usize = 4096;
/// Characters of a line that did not match which are shown.
const SHOWN_MAX: usize = 80;

/// Cuts bytes into lines. Holds one line that is coming and what was read with its end.
#[derive(Debug)]
struct Splitter {
    end: u8,
    line_bytes_max: usize,
    bytes: Vec<u8>,
    /// Where the line that is coming begins, and up to where no end was found.
    start: usize,
    searched: usize,
    /// The line is too long, or its beginning was not seen: nothing up to its end counts.
    skipping: bool,
}

/// What the splitter finds.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Whole(&'a [u8]),
    TooLong,
}

impl Splitter {
    fn new(end: LineEnd, line_bytes_max: usize) -> Self {
        let end = match end {
            LineEnd::Lf => b'\n',
            LineEnd::Cr => b'\r',
        };
        Self { end, line_bytes_max, bytes: Vec::new(), start: 0, searched: 0, skipping: false }
    }

    /// Forgets what came; with `skip` also what comes up to the next end of a line.
    fn restart(&mut self, skip: bool) {
        self.bytes.clear();
        (self.start, self.searched, self.skipping) = (0, 0, skip);
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    fn next(&mut self) -> Option<Line<'_>> {
        loop {
            let found = self.bytes[self.searched..].iter().position(|b| *b == self.end);
            let Some(at) = found.map(|at| self.searched + at) else {
                self.searched = self.bytes.len();
                if self.skipping {
                    self.start = self.searched;
                    return None;
                }
                // Room for a carriage return before the end.
                if self.searched - self.start > self.line_bytes_max + 1 {
                    (self.skipping, self.start) = (true, self.searched);
                    return Some(Line::TooLong);
                }
                return None;
            };
            let from = std::mem::replace(&mut self.start, at + 1);
            self.searched = at + 1;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            let line = without_ends(&self.bytes[from..at]);
            let len = if line.last() == Some(&b'\r') { line.len() - 1 } else { line.len() };
            match len {
                0 => {}
                _ if len > self.line_bytes_max => return Some(Line::TooLong),
                _ => {
                    let from = at - line.len();
                    return Some(Line::Whole(&self.bytes[from..from + len]));
                }
            }
        }
    }
}

/// `line` without the line ends that it begins with, such as a `\n` behind the `\r` that ended the
/// one before.
fn without_ends(line: &[u8]) -> &[u8] {
    let begin = line.iter().position(|b| !b"\r\n".contains(b)).unwrap_or(line.len());
    &line[begin..]
}

/// A stream of bytes.
trait Port: AsyncRead + Unpin + Send {}
impl<T: AsyncRead + Unpin + Send> Port for T {}

/// Reads a serial device that sends lines.
pub struct SerialSouth {
    config: SerialDevice,
    points: Vec<Point>,
    pattern: Regex,
    /// The group of each point, and its type.
    groups: Vec<(usize, FieldType)>,
    stats: Arc<Stats>,
    port: Option<Box<dyn Port>>,
    opened: Instant,
    /// Nothing came since the port was opened.
    fresh: bool,
    splitter: Splitter,
    /// When the oldest row that was not handed over came.
    waiting_since: Option<Instant>,
    /// The last line did not match.
    rejecting: bool,
}

impl std::fmt::Debug for SerialSouth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SerialSouth").field("port", &self.config.port).finish_non_exhaustive()
    }
}

impl SerialSouth {
    /// Prepares the reading. [`Fault::Config`] where the device has a problem, in the words of the
    /// configuration check.
    pub fn new(config: SerialDevice) -> Result<Self, Fault> {
        if let Some((field, message, hint)) = config.problems().first() {
            return Err(Fault::Config(format!("{field}: {message}: {hint}")));
        }
        let pattern = Regex::new(&config.pattern).map_err(|e| Fault::Config(e.to_string()))?;
        let names: Vec<_> = pattern.capture_names().collect();
        let group = |name: &str| names.iter().position(|n| *n == Some(name));
        let groups =
            config.points.iter().filter_map(|p| Some((group(p.group())?, p.value_type))).collect();
        let longest = usize::try_from(config.line_bytes_max).unwrap_or(usize::MAX);
        Ok(Self {
            points: config.columns(),
            splitter: Splitter::new(config.line_end, longest),
            config,
            pattern,
            groups,
            stats: Arc::default(),
            port: None,
            opened: Instant::now(),
            fresh: true,
            waiting_since: None,
            rejecting: false,
        })
    }

    fn take_over(&mut self, port: Box<dyn Port>) {
        self.port = Some(port);
        self.opened = Instant::now();
        self.fresh = true;
        self.splitter.restart(false);
        self.stats.add(Counter::Connects, 1);
        self.stats.set_state(LinkState::Up);
        self.stats.set_error(None);
    }

    /// Makes rows of the lines at hand, up to a batch.
    fn parse(&mut self, rows: &mut TableBuilder, batch_rows: usize) {
        while rows.len() < batch_rows {
            let Some(line) = self.splitter.next() else { return };
            let text = match line {
                Line::Whole(bytes) => String::from_utf8_lossy(bytes),
                Line::TooLong => {
                    self.stats.add(Counter::Rejected, 1);
                    let text = format!("a line is longer than {}", self.config.line_bytes_max);
                    self.rejecting = true;
                    self.stats.set_error(Some(text));
                    continue;
                }
            };
            let Some(found) = self.pattern.captures(&text) else {
                self.stats.add(Counter::Rejected, 1);
                if !std::mem::replace(&mut self.rejecting, true) {
                    let shown: String = text.chars().take(SHOWN_MAX).collect();
                    self.stats.set_error(Some(format!("the pattern does not match {shown:?}")));
                }
                continue;
            };
            if std::mem::take(&mut self.rejecting) {
                self.stats.set_error(None);
            }
            self.stats.add(Counter::Replies, 1);
            rows.begin();
            for (column, (group, of)) in self.groups.iter().enumerate() {
                let value = found.get(*group).ok_or(Reason::Missing);
                match value.and_then(|value| typed(value.as_str(), *of)) {
                    Ok(value) => rows.value(column, value),
                    Err(reason) => rows.fail(column, reason),
                }
            }
            rows.end(Instant::now());
        }
    }

    /// Takes bytes as received.
    fn received(&mut self, bytes: &[u8]) {
        if std::mem::take(&mut self.fresh) && self.opened.elapsed() < OPENING {
            self.splitter.restart(true);
        }
        self.stats.add(Counter::BytesIn, bytes.len() as u64);
        self.splitter.push(bytes);
    }

    fn lost(&mut self, why: &str) -> Fault {
        self.port = None;
        self.stats.add(Counter::LinkFaults, 1);
        self.stats.set_state(LinkState::Down);
        Fault::Link(format!("{}: {why}", self.config.port))
    }
}

impl South for SerialSouth {
    fn points(&self) -> &[Point] {
        &self.points
    }

    fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// Opens the port; returns at once.
    fn connect(&mut self) -> BoxFuture<'_, Result<(), Fault>> {
        // The old one is closed first, so that its lock is gone.
        self.port = None;
        let result = match serial::open(&self.config.settings()) {
            Ok(port) => {
                self.take_over(Box::new(port));
                Ok(())
            }
            Err(error) => Err(self.lost(&format!("cannot be opened: {error}"))),
        };
        Box::pin(std::future::ready(result))
    }

    /// Returns when rows are there: a whole batch, or those that came within `linger` of the first.
    fn read<'a>(
        &'a mut self,
        rows: &'a mut TableBuilder,
    ) -> BoxFuture<'a, Result<Option<Receipt>, Fault>> {
        Box::pin(async move {
            let batch_rows = usize::try_from(self.config.batch_rows).unwrap_or(usize::MAX);
            let mut bytes = [0; READ_BYTES];
            loop {
                self.parse(rows, batch_rows);
                if rows.is_empty() {
                    self.waiting_since = None;
                } else {
                    let since = *self.waiting_since.get_or_insert_with(Instant::now);
                    let until = since + self.config.linger.duration();
                    if rows.len() >= batch_rows || Instant::now() >= until {
                        self.waiting_since = None;
                        return Ok(None);
                    }
                }
                let until = self.waiting_since.map(|since| since + self.config.linger.duration());
                let Some(port) = &mut self.port else {
                    return Err(self.lost("is not open"));
                };
                let count = tokio::select! {
                    count = port.read(&mut bytes) => count,
                    () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                        continue;
                    }
                };
                match count {
                    // Reading on would spin.
                    Ok(0) => return Err(self.lost("is unplugged")),
                    Ok(count) => self.received(&bytes[..count]),
                    Err(error) => return Err(self.lost(&error.to_string())),
                }
            }
        })
    }

    /// A device does not wait for anything: nothing to do.
    fn settle(&mut self, _: Receipt) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
