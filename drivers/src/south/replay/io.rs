//! Reads a recording line by line and makes a row of each when its time has come.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::timezone::Tz;
use futures::future::BoxFuture;
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::time::{Instant, sleep_until};

use super::{Format, Pace, Replay, csv};
use crate::border::{Fault, Receipt, South};
use crate::json::{self, rfc3339, whole};
use crate::point::Point;
use crate::south::mqtt::{FieldType, JsonDecode};
use crate::south::text::typed;
use crate::stats::{Counter, LinkState, Stats};
use crate::table::{Reason, TableBuilder};

/// Bytes of a line at most.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// How a line becomes a row.
enum Lines {
    Json(Box<json::Decoder>),
    Csv(Csv),
}

/// Lines of comma separated values.
struct Csv {
    types: Vec<FieldType>,
    /// The column of each point; known once the first line was read.
    columns: Vec<usize>,
    time: usize,
    fields: Vec<String>,
}

/// The recording, open.
struct Open {
    file: BufReader<File>,
    /// The line that is being read, or was read last.
    line: Vec<u8>,
    number: u64,
}

/// Reads a recording.
pub struct ReplaySouth {
    config: Replay,
    points: Vec<Point>,
    stats: Arc<Stats>,
    lines: Lines,
    utc: Option<Tz>,
    open: Option<Open>,
    /// The time of the row that was read and not yet appended.
    ready: Option<i64>,
    /// When the first row was due, and its time.
    origin: Option<(Instant, i64)>,
    ended: bool,
}

impl std::fmt::Debug for ReplaySouth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplaySouth").field("file", &self.config.file).finish_non_exhaustive()
    }
}

impl ReplaySouth {
    /// Prepares the reading. [`Fault::Config`] where the device has a problem, in the words of the
    /// configuration check.
    pub fn new(config: Replay) -> Result<Self, Fault> {
        if let Some((field, message, hint)) = config.problems().first() {
            return Err(Fault::Config(format!("{field}: {message}: {hint}")));
        }
        let lines = match config.format {
            Format::JsonLines => {
                let decode = JsonDecode {
                    time: Some(config.time.clone()),
                    time_unit: config.time_unit,
                    rows: None,
                };
                Lines::Json(Box::new(json::Decoder::new(&config.points, &decode)))
            }
            Format::Csv => Lines::Csv(Csv {
                types: config.points.iter().map(|p| p.value_type).collect(),
                columns: Vec::new(),
                time: 0,
                fields: Vec::new(),
            }),
        };
        Ok(Self {
            points: config.columns(),
            config,
            stats: Arc::default(),
            lines,
            utc: "+00:00".parse().ok(),
            open: None,
            ready: None,
            origin: None,
            ended: false,
        })
    }

    async fn open(&mut self) -> Result<(), Fault> {
        if self.ended || self.open.is_some() {
            return Ok(());
        }
        let path = &self.config.file;
        let file = File::open(path).await.map_err(|e| self.unreadable(&e))?;
        let open = Open { file: BufReader::new(file), line: Vec::new(), number: 0 };
        self.open = Some(open);
        if let Lines::Csv(_) = self.lines {
            if !self.next_line().await? {
                return Err(Fault::Config(format!("{}: has no line", self.config.file)));
            }
            self.header()?;
        }
        self.stats.add(Counter::Connects, 1);
        self.stats.set_state(LinkState::Up);
        Ok(())
    }

    fn unreadable(&self, error: &std::io::Error) -> Fault {
        self.stats.set_state(LinkState::Down);
        Fault::Link(format!("{}: {error}", self.config.file))
    }

    /// Reads the next line into `open.line`. False at the end. Cancel safe: half a line is kept.
    async fn next_line(&mut self) -> Result<bool, Fault> {
        let Some(open) = &mut self.open else { return Ok(false) };
        // A line that is whole was used; one that is not is gone on with.
        if open.line.last() == Some(&b'\n') {
            open.line.clear();
        }
        let room = LINE_BYTES_MAX.saturating_sub(open.line.len() as u64);
        let read = (&mut open.file).take(room).read_until(b'\n', &mut open.line).await;
        let (count, number) = (read, open.number + 1);
        if let Err(error) = count {
            return Err(self.unreadable(&error));
        }
        if open.line.is_empty() {
            return Ok(false);
        }
        if open.line.last() != Some(&b'\n') {
            if open.line.len() as u64 >= LINE_BYTES_MAX {
                let text = format!("{}:{number}: the line is too long", self.config.file);
                return Err(Fault::Config(text));
            }
            // The last line of a file may lack its end.
            open.line.push(b'\n');
        }
        open.number = number;
        self.stats.add(Counter::BytesIn, open.line.len() as u64);
        Ok(true)
    }

    /// The line that was read last, without its end.
    fn line(&self) -> &[u8] {
        self.open.as_ref().map_or(&[], |open| open.line.trim_ascii_end())
    }

    /// Finds the points' columns in the first line.
    fn header(&mut self) -> Result<(), Fault> {
        let line = String::from_utf8_lossy(self.line()).into_owned();
        let line = line.trim_start_matches('\u{FEFF}');
        let Lines::Csv(csv) = &mut self.lines else { return Ok(()) };
        if !csv::split(line, &mut csv.fields) {
            return Err(Fault::Config(format!("{}:1: is no CSV", self.config.file)));
        }
        let find = |name: &str| {
            csv.fields.iter().position(|field| field == name).ok_or_else(|| {
                let has = csv.fields.join(", ");
                Fault::Config(format!("{}: has no column `{name}`: it has {has}", self.config.file))
            })
        };
        csv.time = find(&self.config.time)?;
        let paths = self.config.points.iter().map(|p| p.path.as_deref().unwrap_or(p.name.as_str()));
        csv.columns = paths.map(find).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Reads lines up to one that is a row, and gives the row's time; `None` at the end.
    async fn next_row(&mut self) -> Result<Option<i64>, Fault> {
        while self.next_line().await? {
            let Some(open) = &self.open else { break };
            let line = open.line.trim_ascii_end();
            if line.is_empty() {
                continue;
            }
            let parsed = match &mut self.lines {
                Lines::Json(decoder) => match decoder.read(line) {
                    Ok(1) => decoder.first_time().ok_or_else(no_time),
                    Ok(count) => Err(format!("is {count} rows, and should be one")),
                    Err(error) => Err(error),
                },
                Lines::Csv(csv) => {
                    let text = String::from_utf8_lossy(line);
                    if csv::split(&text, &mut csv.fields) {
                        let text = csv.fields.get(csv.time).map_or("", String::as_str);
                        let number = |text: &str| {
                            let unit = self.config.time_unit.micros();
                            match text.parse::<i64>() {
                                Ok(number) => number.checked_mul(unit),
                                Err(_) => whole(text.parse::<f64>().ok()? * unit as f64),
                            }
                        };
                        let time = self.utc.and_then(|utc| rfc3339(text, utc));
                        time.or_else(|| number(text)).ok_or_else(no_time)
                    } else {
                        Err("is no CSV".to_owned())
                    }
                }
            };
            match parsed {
                Ok(time) => return Ok(Some(time)),
                Err(error) => {
                    let text = format!("{}:{}: {error}", self.config.file, open.number);
                    self.stats.add(Counter::Rejected, 1);
                    self.stats.set_error(Some(text));
                }
            }
        }
        Ok(None)
    }

    /// When the row of `time` is due.
    fn due(&mut self, time: i64) -> Instant {
        let now = Instant::now();
        if self.config.pace == Pace::Fast {
            return now;
        }
        let (start, first) = *self.origin.get_or_insert((now, time));
        let micros = u64::try_from(time.saturating_sub(first)).unwrap_or(0);
        let after = Duration::from_micros(micros).as_secs_f64() / self.config.speed;
        Duration::try_from_secs_f64(after)
            .ok()
            .and_then(|after| start.checked_add(after))
            .unwrap_or(now)
    }

    /// Appends the row that was read.
    fn append(&self, rows: &mut TableBuilder, time: i64) {
        let arrived = Instant::now();
        self.stats.add(Counter::Replies, 1);
        let restamp = self.config.restamp;
        match &self.lines {
            Lines::Json(decoder) => {
                decoder.append_with(rows, arrived, !restamp, |_| {});
            }
            Lines::Csv(csv) => {
                rows.begin();
                for (point, (column, of)) in csv.columns.iter().zip(&csv.types).enumerate() {
                    let text = csv.fields.get(*column).filter(|text| !text.is_empty());
                    let value = text.ok_or(Reason::Missing);
                    match value.and_then(|text| typed(text, *of)) {
                        Ok(value) => rows.value(point, value),
                        Err(reason) => rows.fail(point, reason),
                    }
                }
                if !restamp {
                    rows.time(time);
                }
                rows.end(arrived);
            }
        }
    }
}

fn no_time() -> String {
    "has no time that can be read".to_owned()
}

impl South for ReplaySouth {
    fn points(&self) -> &[Point] {
        &self.points
    }

    fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// Opens the recording; goes on where it was where it is open already.
    fn connect(&mut self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(self.open())
    }

    /// Returns when a batch is full, or when the next row is not due yet. Pends for ever behind the
    /// last row.
    fn read<'a>(
        &'a mut self,
        rows: &'a mut TableBuilder,
    ) -> BoxFuture<'a, Result<Option<Receipt>, Fault>> {
        Box::pin(async move {
            let batch_rows = usize::try_from(self.config.batch_rows).unwrap_or(usize::MAX);
            while rows.len() < batch_rows {
                if self.ready.is_none() && !self.ended {
                    self.ready = self.next_row().await?;
                    if self.ready.is_none() {
                        tracing::info!(file = %self.config.file, "the recording is at its end");
                        self.stats.set_notes(vec!["the recording is at its end".to_owned()]);
                        (self.ended, self.open) = (true, None);
                    }
                }
                let Some(time) = self.ready else {
                    if rows.is_empty() {
                        return std::future::pending().await;
                    }
                    break;
                };
                let due = self.due(time);
                if due > Instant::now() {
                    if !rows.is_empty() {
                        break;
                    }
                    sleep_until(due).await;
                }
                self.append(rows, time);
                self.ready = None;
            }
            Ok(None)
        })
    }

    /// A file does not wait for anything: nothing to do.
    fn settle(&mut self, _: Receipt) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
