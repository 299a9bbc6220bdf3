//! SQL tried over the rows that tables still have, and over new ones for a while.
//!
//! Promise: it uses the engine as a stream does, so windows and watermarks are those that the stream
//! would have; it writes nothing, holds nobody up, and is bounded in rows, bytes and time. Rows are
//! taken in the order of their event time between tables and of the log within one. A stream's
//! `process:` is left out: its program sees only what is committed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::TimestampMicrosecondType;
use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use tidegate_config::{Document, StreamSection};
use tidegate_engine::encode::{JsonOptions, json_rows};
use tidegate_engine::store::{BootTime, Store};
use tidegate_engine::{Effects, Event, Lookup, Query, Sql, Stream, StreamSpec, TableSchema};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::build::stream_spec;
use crate::chain::StreamTables;
use crate::clock::SharedClock;
use crate::tap::{Tap, Taps, rows_of};

/// Memory that a preview's operators and open windows may hold each, beside that of the streams.
const MEMORY: usize = 16 << 20;
/// Time for one execution, shorter than that of streams: somebody waits.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Time for planning.
const PLANNING_MAX: Duration = Duration::from_secs(20);
/// Values (rows times columns) that are read from the logs at most, the newest ones.
const VALUES_MAX: u64 = 2 << 20;
/// Rows that are read at once.
const READ_ROWS: usize = 8192;
/// How long accepted rows may take to be readable.
const DURABLE_MAX: Duration = Duration::from_secs(3);
/// Pause between two looks whether they are.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is said where stored rows have no time yet.
const WAITS: &str = "rows that wait for the clock to be set are left out";

/// What a preview is made of.
pub struct Preview {
    /// The gateway's configuration.
    pub document: Arc<Document>,
    /// The lookups that SQL may name, with the rows that they have.
    pub lookups: Vec<Arc<Lookup>>,
    /// The stream that is tried.
    pub section: StreamSection,
    /// The store whose logs are read.
    pub store: Store,
    /// New rows.
    pub taps: Arc<Taps>,
    /// The time of day.
    pub clock: SharedClock,
    /// Results at most.
    pub rows_max: u64,
    /// How old a row may be, in microseconds.
    pub last: Option<i64>,
    /// For how long new rows are taken.
    pub lasting: Duration,
}

/// A preview that was planned and can run.
pub struct Planned {
    preview: Preview,
    spec: StreamSpec,
    query: Query,
    taps: Vec<Tap>,
}

/// A preview at work.
struct Running {
    preview: Preview,
    stream: Stream,
    taps: Vec<Tap>,
    lines: mpsc::Sender<Bytes>,
    summary: Summary,
}

/// The newest rows of each table, with their positions.
type History = Vec<VecDeque<(u64, RecordBatch)>>;

/// What is told at the end.
#[derive(Debug, Default, Serialize)]
struct Summary {
    rows_read: u64,
    rows_live: u64,
    results: u64,
    late: u64,
    failed: u64,
    open_rows: u64,
    /// What was left out, and why.
    notes: Vec<String>,
}

impl Preview {
    /// Plans the SQL. An error says what is wrong with it, for the person who wrote it. Blocks for
    /// some milliseconds.
    pub fn plan(self) -> Result<Planned, String> {
        let (document, section) = (&self.document, &self.section);
        let sql = Sql::new(MEMORY).and_then(|sql| sql.share(MEMORY, TIME_MAX));
        let sql = sql.map_err(|error| error.message)?.planning_within(PLANNING_MAX);
        let streams = StreamTables::plan(document, &sql);
        for table in &section.from {
            no_table(document, &streams, table.as_str())?;
        }
        let mut spec = stream_spec(document, section, section.event_time, &streams);
        spec.memory_max = MEMORY;
        let query = spec.plan_with(&sql, &section.sql, &self.lookups).map_err(|error| {
            let place =
                error.position.map(|(line, column)| format!("line {line}, column {column}: "));
            let hint = error.hint.map(|hint| format!(" ({hint})"));
            format!("{}{}{}", place.unwrap_or_default(), error.message, hint.unwrap_or_default())
        })?;
        if let Some(lookup) = query.lookups().find(|lookup| lookup.rows().is_none()) {
            return Err(format!("the lookup `{}` was not loaded yet", lookup.name()));
        }
        // From here on no new row is missed, also of tables that are only looked at.
        let live = !self.lasting.is_zero();
        let taps = spec.tables.iter().filter(|_| live).map(|table| {
            let name = &table.name;
            match streams.get(name) {
                Some(_) => self.taps.look(&rows_of(name)),
                None => self.taps.look(name),
            }
        });
        Ok(Planned { taps: taps.collect(), preview: self, spec, query })
    }
}

/// Says where there is no table of a name.
fn no_table(document: &Document, streams: &StreamTables, name: &str) -> Result<(), String> {
    let tables = document.tables();
    if tables.iter().any(|table| table.name == name) || streams.get(name).is_some() {
        return Ok(());
    }
    if document.streams.iter().any(|stream| stream.name.as_str() == name) {
        return Err(format!(
            "the results of `{name}` are no table: no other stream reads them, so they are not kept \
             as rows (`tidegate tap {name}` shows them as they come)"
        ));
    }
    let read = document.streams.iter().map(|stream| stream.name.as_str());
    let read = read.filter(|stream| streams.get(stream).is_some());
    let names: Vec<_> = tables.iter().map(|table| table.name.as_str()).chain(read).collect();
    Err(format!("there is no table `{name}`; there are: {}", names.join(", ")))
}

impl Planned {
    /// Runs it, and tells the results as lines of JSON, last what was read. Ends when nobody listens
    /// any more. Belongs where streams run.
    pub async fn run(self, lines: mpsc::Sender<Bytes>) {
        let mut summary = Summary::default();
        let told = lines.clone();
        let summary = match self.read(&mut summary).await {
            Err(note) => Summary { notes: vec![note], ..summary },
            Ok(history) => self.work(history, lines, summary).await,
        };
        let line = serde_json::json!({ "_preview": summary });
        // Who listened may have gone.
        drop(told.send(Bytes::from(format!("{line}\n"))).await);
    }

    async fn work(self, history: History, lines: mpsc::Sender<Bytes>, summary: Summary) -> Summary {
        let Self { preview, spec, query, taps } = self;
        let rows: Vec<_> = in_time_order(history, &spec).collect();
        // Time begins with the rows.
        let first = rows.first().map(|(table, _, batch)| first_time(batch, &spec.tables[*table]));
        let begin = first.unwrap_or_else(|| preview.clock.now());
        let stream = match Stream::new(spec.clone(), query, begin) {
            Ok(stream) => stream,
            Err(error) => return Summary { notes: vec![error.to_string()], ..summary },
        };
        let mut running = Running { preview, stream, taps, lines, summary };
        if let Err(note) = running.apply_all(rows, &spec).await {
            running.summary.notes.push(note);
        }
        let counts = running.stream.counts();
        Summary {
            late: counts.late,
            failed: counts.failed,
            open_rows: counts.open_rows,
            ..running.summary
        }
    }

    /// Whether rows are not to be read before the clock is set; then it is noted.
    fn waits_for_clock(&self, summary: &mut Summary) -> bool {
        let boots = self.preview.store.boots();
        let waits = boots.iter().any(|(_, time)| *time == BootTime::Waiting);
        if waits && !summary.notes.iter().any(|note| note == WAITS) {
            summary.notes.push(WAITS.to_owned());
        }
        waits
    }

    /// The newest rows of each table's log, in the order of the log.
    async fn read(&self, summary: &mut Summary) -> Result<History, String> {
        let Preview { store, clock, last, .. } = &self.preview;
        let since = last.map(|last| clock.now().saturating_sub(last));
        let mut all = Vec::new();
        for table in &self.spec.tables {
            let columns = table.schema.fields().len().max(1) as u64;
            let most = VALUES_MAX / columns / self.spec.tables.len() as u64;
            let end = store.log_end(&table.name);
            let start = store.tables().into_iter().find(|t| *t.name == *table.name);
            let start = start.map_or(0, |table| table.start);
            let mut from = end.saturating_sub(most).max(start);
            if from > start {
                let note = format!("only the newest {most} rows of {} are read", table.name);
                summary.notes.push(note);
            }
            let (mut rows, patience) = (VecDeque::new(), Instant::now() + DURABLE_MAX);
            while from < end {
                let read = store.read_log(&table.name, from, READ_ROWS).await;
                let read = read.map_err(|error| format!("the log of {}: {error}", table.name))?;
                if read.is_empty() && self.waits_for_clock(summary) {
                    break;
                }
                if read.is_empty() {
                    // What was accepted last is readable with the next commit.
                    if self.taps.is_empty() {
                        break;
                    }
                    if Instant::now() > patience {
                        let (rows, name) = (end - from, &table.name);
                        summary.notes.push(format!("{rows} rows of {name} are not durable yet"));
                        break;
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                for (position, batch) in read {
                    from = position + batch.num_rows() as u64;
                    if since.is_none_or(|since| last_time(&batch, table) >= since) {
                        rows.push_back((position, batch));
                    }
                }
            }
            all.push(rows);
        }
        Ok(all)
    }
}

impl Running {
    /// An error is a note about why it ended early.
    async fn apply_all(
        &mut self,
        rows: Vec<(usize, u64, RecordBatch)>,
        spec: &StreamSpec,
    ) -> Result<(), String> {
        let mut now = i64::MIN;
        for (table, position, batch) in rows {
            self.summary.rows_read += batch.num_rows() as u64;
            // Time goes on as it did when the rows came, as far as they tell.
            let told = last_time(&batch, &spec.tables[table]);
            now = now.max(told.min(self.preview.clock.now()));
            self.apply(Event::Rows { table, position, batch }, now).await?;
        }
        let until = Instant::now() + self.preview.lasting;
        while !self.taps.is_empty() {
            let event = tokio::select! {
                () = tokio::time::sleep_until(until) => break,
                () = self.lines.closed() => return Err("nobody listens any more".to_owned()),
                (table, passed) = next_of(&mut self.taps) => {
                    self.summary.rows_live += passed.batch.num_rows() as u64;
                    Event::Rows { table, position: passed.first, batch: passed.batch }
                }
                () = tokio::time::sleep(LOOK_EVERY) => Event::Tick,
            };
            now = now.max(self.preview.clock.now());
            self.apply(event, now).await?;
            let lost: u64 = self.taps.iter().map(Tap::take_lost).sum();
            if lost > 0 {
                return Err(format!("{lost} rows came faster than they could be taken"));
            }
        }
        self.apply(Event::Tick, now.max(self.preview.clock.now())).await
    }

    async fn apply(&mut self, event: Event, now: i64) -> Result<(), String> {
        let effects = self.stream.apply(event, now).await.map_err(|error| error.to_string())?;
        let notes = &mut self.summary.notes;
        notes.extend(effects.failures.iter().map(ToString::to_string));
        if notes.len() > NOTES_MAX {
            notes.truncate(NOTES_MAX);
            return Err("it fails again and again".to_owned());
        }
        for piece in pieces(effects, self.preview.rows_max, &mut self.summary)? {
            let sent = self.lines.send(piece).await;
            sent.map_err(|_| "nobody listens any more".to_owned())?;
        }
        if self.summary.results < self.preview.rows_max {
            return Ok(());
        }
        Err(format!("ended after {} results", self.summary.results))
    }
}

/// Notes that are told at most.
const NOTES_MAX: usize = 8;

/// Results as lines, up to `rows_max` in all.
fn pieces(effects: Effects, rows_max: u64, summary: &mut Summary) -> Result<Vec<Bytes>, String> {
    let options = JsonOptions::default();
    let mut pieces = Vec::new();
    for output in effects.results {
        let rows = json_rows(&output.batch, &options, output.first_seq);
        let rows = rows.map_err(|error| error.to_string())?;
        let mut text = BytesMut::new();
        for row in rows {
            if summary.results == rows_max {
                break;
            }
            text.put(row);
            text.put_u8(b'\n');
            summary.results += 1;
        }
        pieces.push(text.freeze());
    }
    Ok(pieces)
}

/// Puts the batches of several tables in one order, by the time of their first rows.
fn in_time_order(
    mut tables: History,
    spec: &StreamSpec,
) -> impl Iterator<Item = (usize, u64, RecordBatch)> {
    std::iter::from_fn(move || {
        let fronts = tables.iter().enumerate();
        let fronts = fronts.filter_map(|(table, rows)| {
            let (_, batch) = rows.front()?;
            Some((first_time(batch, &spec.tables[table]), table))
        });
        let (_, table) = fronts.min()?;
        let (position, batch) = tables[table].pop_front()?;
        Some((table, position, batch))
    })
}

fn times<'b>(batch: &'b RecordBatch, column: &str) -> Option<&'b [i64]> {
    let column = batch.column_by_name(column).or_else(|| batch.column_by_name("time"))?;
    Some(column.as_primitive_opt::<TimestampMicrosecondType>()?.values())
}

fn first_time(batch: &RecordBatch, table: &TableSchema) -> i64 {
    let times = times(batch, &table.time_column);
    times.and_then(|times| times.first().copied()).unwrap_or(i64::MIN)
}

/// The latest time of rows of a table.
pub(crate) fn last_time(batch: &RecordBatch, table: &TableSchema) -> i64 {
    let times = times(batch, &table.time_column);
    times.and_then(|times| times.iter().max().copied()).unwrap_or(i64::MIN)
}

/// The next rows of any of the taps, with its index.
async fn next_of(taps: &mut [Tap]) -> (usize, crate::tap::Passed) {
    let next = taps.iter_mut().enumerate().map(|(table, tap)| {
        Box::pin(async move {
            match tap.next().await {
                Some(passed) => (table, passed),
                None => std::future::pending().await,
            }
        })
    });
    futures::future::select_all(next).await.0
}
