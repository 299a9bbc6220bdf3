//! One stream: rows in with their log positions, results out with their sequence numbers.
//!
//! Promise: each accepted row is in exactly one result per window, or counted as late, filtered or
//! failed; the results do not depend on how rows were cut into batches nor on where a restart fell.
//! Sans-I/O: it reads no log, writes no store and asks no clock; one task owns it.
//! Source: design page "The engine", sections Event time and State and exactly once.

mod aligned;
mod blocks;
mod border;
mod counted;
mod ends;
mod frames;
mod growing;
mod judge;
mod kept;
mod keyed;
mod keys;
mod late;
mod latest;
mod merged;
mod order;
mod passed;
mod piece;
mod progress;
mod refill;
mod restore;
mod results;
mod rows;
mod runs;
mod sliding;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;

pub use border::{
    Counts, Effects, Event, FailedRows, FutureRule, LateReason, LateRows, Latest, Output, Progress,
    StreamError, StreamSpec,
};

use crate::sql::{Query, TableSchema};
use crate::store::StateChange;
use crate::watermark::Watermark;
use crate::window::Window;
use frames::Frames;
use latest::Last;
use progress::{Plan, Saved};
use refill::{Arrival, Refill};
use rows::Columns;

/// So far behind the others, in microseconds, a source may be for good, however little rows may be
/// ahead: an hour, for what a link held back.
const BEHIND_MIN: i64 = 3_600_000_000;

/// The state of one stream.
#[derive(Debug)]
pub struct Stream {
    spec: StreamSpec,
    query: Query,
    watermark: Watermark,
    /// Open windows; `None` for SQL over each batch.
    frames: Option<Frames>,
    last: Last,
    refill: Option<Refill>,
    /// Keys of stored states that have no meaning any more.
    discarded: Vec<u64>,
    processed: Vec<u64>,
    next_seq: u64,
    counts: Counts,
    /// The latest that the clock has ever said.
    clock_high: i64,
}

impl Stream {
    /// Starts a stream that has no past. `now` in microseconds since 1970, UTC. Sequence numbers
    /// start at 1. An error is [`StreamError::Input`].
    pub fn new(spec: StreamSpec, query: Query, now: i64) -> Result<Self, StreamError> {
        let input =
            |what: String| Err(StreamError::Input(format!("stream `{}`: {what}", spec.name)));
        let future = spec.future.map_or(0, |rule| rule.max);
        if spec.allowed_lateness < 0 || spec.idle_after < 0 || spec.lag < 0 || future < 0 {
            return input("a negative span".into());
        }
        if query.windowed() != spec.window.is_some() {
            return input("the query was planned for another kind of stream".into());
        }
        for table in &spec.tables {
            rows::time_column(table)?;
        }
        if let Some(window) = &spec.window {
            query.over(window);
        }
        let tables = spec.tables_in_from();
        let watermark = Watermark::new(tables, spec.allowed_lateness, spec.idle_after, now);
        let behind_max = spec.future.map(|rule| rule.max.max(BEHIND_MIN));
        let mut watermark = watermark.with_behind_max(behind_max);
        watermark.set_lag(spec.lag);
        for (table, device) in &spec.sources {
            if *table >= tables {
                return input(format!("source `{device}` belongs to no table"));
            }
            watermark.declare(*table, device, None, true);
        }
        Ok(Self {
            watermark,
            frames: Frames::new(&spec, &query)?,
            last: Last::new(&spec, &query)?,
            refill: None,
            discarded: Vec::new(),
            processed: vec![0; spec.tables.len()],
            next_seq: 1,
            counts: Counts::default(),
            clock_high: now,
            spec,
            query,
        })
    }

    /// Closes all open windows as if time had come to their ends; the watermark stays where it is,
    /// so that rows which come for one of them later open it again.
    ///
    /// Not cancel safe, as [`Stream::apply`].
    pub async fn close_all(&mut self) -> Effects {
        let mut effects = Effects::default();
        self.close_to(Some(i64::MAX), &mut effects).await;
        effects
    }

    /// Applies an event. `now` in microseconds since 1970, UTC. Runs SQL: belongs on a thread that
    /// may compute.
    ///
    /// Not cancel safe: when the future is dropped, rows of the windows that it was closing are
    /// lost; the stream must then be restored from the last durable progress. After `Err` the
    /// event was not applied, but time has passed.
    pub async fn apply(&mut self, event: Event, now: i64) -> Result<Effects, StreamError> {
        let mut effects = Effects::default();
        self.watermark.advance(now);
        if self.refill.is_none() {
            self.clock_high = self.clock_high.max(now);
        }
        let waiting = match event {
            Event::Rows { table, position, batch } | Event::Replay { table, position, batch } => {
                let mut waiting = Vec::new();
                for arrival in self.arrivals(table, position, &batch)? {
                    waiting.extend(self.refill(arrival)?);
                }
                waiting
            }
            Event::Replayed => self.end_refill(true),
            Event::Tick => {
                self.watermark.follow();
                Vec::new()
            }
        };
        self.fold().await;
        self.rebase(now, &mut effects).await;
        for arrival in waiting {
            if arrival.future {
                self.set_aside(&arrival, &mut effects);
            } else {
                self.take(arrival, &mut effects).await?;
            }
        }
        self.close(&mut effects).await;
        Ok(effects)
    }

    /// Applies the rows of an arrival that are new.
    async fn take(&mut self, arrival: Arrival, effects: &mut Effects) -> Result<(), StreamError> {
        let table = arrival.table;
        let new = arrival.row_at(self.processed[table]);
        if table >= self.spec.tables_in_from() {
            self.last.note(&arrival, new)?;
            self.processed[table] = self.processed[table].max(arrival.end());
            return Ok(());
        }
        if !self.last.looks_at(table) {
            return self.take_rows(&arrival, effects).await;
        }
        // What the SQL sees by `latest` must not depend on which rows came in one batch.
        for row in new..arrival.columns.len() {
            let one = arrival.columns.batch().slice(row, 1);
            let columns = Columns::new(&self.spec.tables[table], &one)?;
            let restamped = arrival.restamped.iter().any(|at| *at as usize == row);
            let one = Arrival {
                table,
                position: arrival.position + row as u64,
                columns,
                future: false,
                restamped: if restamped { vec![0] } else { Vec::new() },
            };
            self.last.note(&one, 0)?;
            self.take_rows(&one, effects).await?;
            self.close(effects).await;
        }
        Ok(())
    }

    async fn take_rows(
        &mut self,
        arrival: &Arrival,
        effects: &mut Effects,
    ) -> Result<(), StreamError> {
        if self.frames.is_some() {
            self.assign(arrival, effects)?;
            self.fold().await;
            Ok(())
        } else {
            self.pass(arrival, effects).await
        }
    }

    /// What to make durable with the effects of all events so far.
    pub fn progress(&self) -> Progress {
        let replay_from: Vec<u64> = (0..self.processed.len()).map(|t| self.needed(t)).collect();
        let table = |((spec, processed), replay_from): ((&TableSchema, &u64), &u64)| {
            (spec.name.clone(), *processed, *replay_from)
        };
        let tables = self.spec.tables.iter().zip(&self.processed).zip(&replay_from).map(table);
        let counts = self.counts();
        let refill = self.refill.as_ref();
        let stores = self.frames.as_ref().is_some_and(Frames::stores);
        let saved = Saved {
            fingerprint: fingerprint(&self.spec),
            // Until the refill is done, windows that ended since then have not been closed.
            watermark: refill.map_or(self.watermark.current(), |refill| refill.closed),
            next_seq: self.next_seq,
            accepted: counts.accepted,
            windowed: counts.windowed,
            late: counts.late,
            filtered: counts.filtered,
            failed: counts.failed,
            dropped: counts.dropped,
            results: counts.results,
            open_rows: refill.map_or(counts.open_rows, |refill| refill.rows),
            tables: tables.collect(),
            sources: Vec::new(),
            frames: self.frames.as_ref().map_or(Vec::new(), |frames| frames.save(&replay_from)),
            latest: self.last.save().to_vec(),
            clock_high: self.clock_high,
            future: counts.future,
            restamped: counts.restamped,
            failed_out: counts.failed_out,
            panes: stores.then(|| Plan::of(&self.query)),
        };
        let gone = |key: &u64| StateChange { key: *key, bytes: None };
        let mut states: Vec<StateChange> = self.discarded.iter().map(gone).collect();
        states.extend(self.frames.as_ref().map_or(Vec::new(), Frames::changes));
        let change = |(key, bytes): (u64, Option<Vec<u8>>)| StateChange {
            key,
            bytes: bytes.map(Bytes::from),
        };
        states.extend(self.query.memory().changes().into_iter().map(change));
        Progress {
            state: saved.write_with(self.watermark.marks()),
            processed: self.processed.clone(),
            replay_from,
            states,
        }
    }

    /// Says every state beside the progress again, because what the store has of them is damaged: those
    /// of panes with the next event, since all of them must be of one moment.
    pub fn store_anew(&mut self) {
        self.query.memory().store_anew();
        if let Some(frames) = &mut self.frames {
            frames.store_anew();
        }
    }

    /// The present [`Stream::progress`] is on its way into the store: its changes of states are not
    /// said again.
    pub fn submitted(&mut self) {
        self.discarded.clear();
        self.query.memory().saved();
        let needed: Vec<u64> = (0..self.processed.len()).map(|t| self.needed(t)).collect();
        if let Some(frames) = &mut self.frames {
            frames.submitted(&needed);
        }
    }

    /// The next log position of a table to apply.
    ///
    /// # Panics
    /// Where there is no such table.
    pub fn processed(&self, table: usize) -> u64 {
        self.processed[table]
    }

    /// The ledger.
    pub fn counts(&self) -> Counts {
        let frames = self.frames.as_ref();
        Counts {
            open_rows: frames.map_or(0, Frames::rows),
            open_windows: frames.map_or(0, Frames::len) as u64,
            open_bytes: frames.map_or(0, Frames::bytes) as u64,
            watermark: frames.and(self.watermark.current()),
            plans: self.query.plans(),
            ..self.counts
        }
    }

    /// While held, the stream does not follow the clock when all its sources are silent: one of them
    /// has no connection, and what it has to say comes later.
    pub fn hold(&mut self, held: bool) {
        self.watermark.hold(held);
    }

    /// Takes `span` microseconds for time in which no source could have been heard, such as while
    /// the process was stopped: nobody becomes idle by it.
    pub fn forgive(&mut self, span: i64) {
        self.watermark.forgive(span);
    }

    /// When a `Tick` could next change something, not before `now`; `None` where only rows can,
    /// as while a restart still reads the logs.
    pub fn next_deadline(&self, now: i64) -> Option<i64> {
        if self.refill.is_some() {
            return None;
        }
        let first_end = self.frames.as_ref()?.first_end()?;
        let idle = self.watermark.next_idle();
        idle.or_else(|| self.watermark.clock_reaches(first_end)).map(|at| at.max(now))
    }

    /// Lowest log position of a table that is still needed.
    fn needed(&self, table: usize) -> u64 {
        if let Some(refill) = &self.refill {
            return refill.from[table];
        }
        if table >= self.spec.tables_in_from() {
            return self.processed[table];
        }
        let first = self.frames.as_ref().and_then(|frames| frames.first_position(table));
        first.unwrap_or(self.processed[table])
    }

    /// Checks rows before anything changes.
    fn admit(&self, table: usize, batch: &RecordBatch) -> Result<Columns, StreamError> {
        let open = self.frames.as_ref().map_or(0, Frames::bytes);
        let held = open + self.refill.as_ref().map_or(0, |r| r.waiting_bytes);
        // What was folded and is read again weighs more until all of it is back.
        let more = self.refill.as_ref().map_or(0, |_| self.spec.memory_max / 4);
        let max = self.spec.memory_max.saturating_add(more);
        if held > max {
            return Err(StreamError::Memory { held, max });
        }
        match self.spec.tables.get(table) {
            Some(table) => Columns::new(table, batch),
            None => Err(StreamError::Input(format!("there is no table {table}"))),
        }
    }

    /// Puts rows that were not applied before into their windows.
    fn assign(&mut self, arrival: &Arrival, effects: &mut Effects) -> Result<(), StreamError> {
        let Some(frames) = &mut self.frames else {
            return Ok(());
        };
        let table = arrival.table;
        let new = arrival.row_at(self.processed[table]);
        self.counts.restamped += arrival.restamped_from(new);
        let late = frames.assign(arrival, new, &mut self.watermark)?;
        self.watermark.catch_up();
        self.counts.accepted += (arrival.columns.len() - new) as u64;
        self.counts.late += late.len() as u64;
        self.processed[table] = self.processed[table].max(arrival.end());
        if !late.is_empty() {
            let batch = arrival.columns.take(late)?;
            effects.late.push(LateRows { table, reason: LateReason::Late, batch });
        }
        Ok(())
    }
}

/// What must be the same for rows to find their windows again.
fn fingerprint(spec: &StreamSpec) -> u32 {
    let mut text = spec.window.as_ref().map_or_else(|| "none".to_owned(), Window::definition);
    let from = &spec.tables[..spec.tables_in_from()];
    let columns: BTreeSet<&str> = from.iter().map(|t| t.time_column.as_str()).collect();
    // Where open windows are saved, rows are named by the table's place among these.
    let named = spec.window.as_ref().is_some_and(|window| !window.is_aligned());
    let tables = from.iter().filter(|_| named).map(|table| table.name.as_str());
    for word in columns.into_iter().chain(tables) {
        text.push(' ');
        text.push_str(word);
    }
    crc32fast::hash(text.as_bytes())
}
