//! One stream at work: feeds rows and time to the engine, encodes what comes out for each sink, and
//! queues results and progress as one commit.
//!
//! The engine's state lives here and nowhere else. After a failure it is thrown away and built
//! again from the stream's progress and the tables' logs, so that no row is counted twice and none
//! is missed.

mod joined;
mod listening;
mod reading;
mod routers;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use tidegate_engine::store::{Commit, Store, StoredStates, StreamProgress};
use tidegate_engine::{Counts, Effects, Event, Lookup, Mode, Query, Sql, Stream, StreamSpec};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::chain::Upstream;
use crate::clock::{ClockWait, DurableTime, SharedClock};
use crate::process::{Losses, Program};
use crate::supervisor::{Exit, Health, Part};
use crate::table::Positioned;
use crate::tap::{Passed, Taps, rows_of};
use joined::joined;
pub use listening::Feeds;
use listening::{HEARTBEAT, Listening};
pub use routers::{Routers, Routes, Who};

/// What a stream counts beside the engine's own counts.
#[derive(Debug, Default)]
pub struct StreamCounts {
    /// Executions that failed; their windows are lost and counted by the engine.
    pub errors: AtomicU64,
    /// Batches waiting in the stream's queue.
    pub queue_len: AtomicU64,
    /// Plans made: one, and one more for each start after a failure.
    pub plans: AtomicU64,
    /// As it was planned last, rows are folded into states.
    pub incremental: AtomicBool,
    /// What the engine had counted when the process started.
    pub before: OnceLock<Counts>,
}

/// A stream and what it needs.
pub struct StreamPart {
    /// What the engine needs to know.
    pub spec: StreamSpec,
    /// The stream's name.
    pub name: Arc<str>,
    /// The tables' names, in the order of the specification.
    pub tables: Vec<Arc<str>>,
    /// Its results as a table, where other streams read them.
    pub upstream: Option<Upstream>,
    /// The devices whose rows come here, also through other streams.
    pub heard: Vec<String>,
    /// The lookups that the SQL may name.
    pub lookups: Vec<Arc<Lookup>>,
    /// The stream's SQL.
    pub sql_text: String,
    /// The planner of all streams.
    pub sql: Arc<Sql>,
    /// How many bytes of its memory the stream's SQL may hold.
    pub sql_memory: usize,
    /// How long one execution may take.
    pub sql_time: Duration,
    /// What the tables bring.
    pub queue: mpsc::Receiver<Positioned>,
    /// The store.
    pub store: Store,
    /// Where rows go.
    pub routes: Routes,
    /// The durable counter of results that no route took.
    pub unrouted: Arc<str>,
    /// The durable counter of rows that were gone before it read them.
    pub missed: Arc<str>,
    /// `gateway/epoch`, the beginning of each record id.
    pub id_prefix: String,
    /// Whether windows that cannot go on with changed SQL are ended by the old one.
    pub closes_old: bool,
    /// Whether each result is committed at once.
    pub sync_each: bool,
    /// The time of day.
    pub clock: SharedClock,
    /// The stream's own counts.
    pub counts: Arc<StreamCounts>,
    /// The engine's counts and the query's explanation, for status.
    pub shown: watch::Sender<Option<Counts>>,
    /// The part's state, for failures that do not end it.
    pub health: Arc<Health>,
    /// The gateway's feeds, whose far sides keep what they could not send.
    pub feeds: Arc<Feeds>,
    /// After how long a silent source is idle.
    pub idle_after: Duration,
    /// Who looks at its results.
    pub taps: Arc<Taps>,
    /// How many pieces of a batch are computed at the same time.
    pub workers: usize,
    /// The program that makes other rows of its results.
    pub program: Option<ProgramSpec>,
    /// Over which results the program was lost.
    pub losses: Losses,
    /// Tells why the program is away, while the stream waits for it.
    pub away: (mpsc::Sender<String>, mpsc::Receiver<String>),
    /// How far time has come in what is durable.
    pub durable_time: Arc<DurableTime>,
    /// Whether rows wait for the time of day: then the stream does.
    pub wait: Arc<ClockWait>,
    /// The targets with their conditions planned; made with the SQL's plan.
    pub routers: Routers,
    /// The stream's last look at the clock.
    pub looked: Option<(i64, Instant)>,
    /// The time at which the logs are read after a start.
    pub reading: Option<i64>,
}

/// How a stream's program is reached, and what it gives.
#[derive(Debug, Clone)]
pub struct ProgramSpec {
    /// The socket that it listens on.
    pub socket: PathBuf,
    /// How long an answer may take.
    pub timeout: Duration,
    /// The columns of its rows.
    pub columns: SchemaRef,
}

/// How long a start waits for a lookup that was never loaded before it is tried again.
const LOOKUP_WAIT: Duration = Duration::from_secs(5);
/// A clock that went on by so much more than time did was set.
const STEP_MIN: i64 = 2_000_000;

/// Batches that are taken from the queue into one commit at most.
const GATHER_MAX: usize = 64;

impl Part for StreamPart {
    async fn run(&mut self) -> Exit {
        let worked = if self.clock_is_awaited().await {
            match self.restore().await {
                Ok(mut stream) => self.work(&mut stream).await,
                Err(error) => Err(error),
            }
        } else {
            Ok(())
        };
        match worked {
            Ok(()) => {
                // Its readers' input ends with its own.
                if let Some(upstream) = &self.upstream {
                    upstream.readers.clear();
                }
                Exit::Done
            }
            Err(error) => Exit::Failed(error),
        }
    }

    /// Drains the queue while the stream is down: its rows are in the log and are read from there.
    async fn wait(&mut self, pause: Duration) {
        let until = tokio::time::Instant::now() + pause;
        while let Ok(Some(_)) = tokio::time::timeout_at(until, self.queue.recv()).await {}
        tokio::time::sleep_until(until).await;
    }
}

impl StreamPart {
    /// Waits while rows wait for the time of day: whatever clock windows followed meanwhile, they would
    /// be closed before their rows are there. False where the stream's input ended first.
    async fn clock_is_awaited(&mut self) -> bool {
        if !self.wait.is_waiting() {
            return true;
        }
        let progress = self.store.progress(&self.name);
        let counts = progress.and_then(|progress| Stream::counts_in(&progress.state).ok());
        self.shown.send_replace(Some(counts.unwrap_or_default()));
        loop {
            tokio::select! {
                () = self.wait.over() => return true,
                rows = self.queue.recv() => if rows.is_none() {
                    return false;
                },
            }
        }
    }

    /// Builds the engine's state from the stored progress and the rows after it.
    async fn restore(&mut self) -> Result<Stream, String> {
        self.counts.plans.fetch_add(1, Ordering::Relaxed);
        let sql = self.sql.share(self.sql_memory, self.sql_time);
        let query = sql.and_then(|sql| self.spec.plan_with(&sql, &self.sql_text, &self.lookups));
        let mut query = query.map_err(|e| format!("SQL: {e}"))?;
        let is_incremental = *query.mode() == Mode::Incremental;
        self.counts.incremental.store(is_incremental, Ordering::Relaxed);
        for lookup in query.lookups() {
            // Its rows are in the log meanwhile: none is joined with a table that is not there.
            if timeout(LOOKUP_WAIT, lookup.loaded()).await.is_err() {
                return Err(format!("the lookup `{}` was never loaded", lookup.name()));
            }
        }
        // What was told of the program before is no news.
        while self.away.1.try_recv().is_ok() {}
        self.equip(&mut query);
        (self.looked, self.reading) = (None, None);
        // All rows that were queued before this commit are readable after it.
        self.commit(Commit { wait: true, ..Commit::default() }, true).await?;
        if self.closes_old {
            self.close_old(&query).await?;
        }
        self.routers = self.routers(&query)?;
        let mut stream = match self.store.progress(&self.name) {
            Some(progress) => self.resume(query, &progress).await?,
            None => Stream::new(self.spec.clone(), query, self.clock.now())
                .map_err(|e| e.to_string())?,
        };
        self.counts.before.get_or_init(|| stream.counts());
        self.take_up_log(&stream);
        // No source falls silent while the rows of another one are read.
        let begun = self.clock.now();
        self.reading = Some(begun);
        let at = stream.progress();
        for (table, (from, upto)) in at.replay_from.iter().zip(&at.processed).enumerate() {
            if from < upto {
                self.read_log(&mut stream, table, *from, Some(*upto), false).await?;
            }
        }
        // Rows that came since wait for no other table, and so not in memory.
        let mut commit = Commit::default();
        self.apply(&mut stream, Event::Replayed, &mut commit).await?;
        self.submit(&mut stream, commit).await?;
        self.read_since(&mut stream).await?;
        self.reading = None;
        stream.forgive(self.clock.now().saturating_sub(begun).max(0));
        Ok(stream)
    }

    /// Finds where the results of a stream that was taken up go on as rows of its table. Nothing of
    /// it is in the store's queue.
    fn take_up_log(&mut self, stream: &Stream) {
        if let Some(upstream) = &mut self.upstream {
            upstream.resume(self.store.log_end(&self.name), stream.counts().results);
        }
    }

    /// Gives a query its workers and its program.
    fn equip(&self, query: &mut Query) {
        query.set_workers(self.workers);
        if let Some(program) = &self.program {
            query.set_process(Box::new(Program::new(
                program.socket.clone(),
                program.timeout,
                (query.schema(), program.columns.clone()),
                self.name.to_string(),
                self.losses.clone(),
                self.away.0.clone(),
            )));
        }
    }

    fn routers(&self, query: &Query) -> Result<Routers, String> {
        Routers::plan(&self.sql, &self.spec.tables, &query.schema(), &self.routes)
    }

    /// The stream where `progress` left it, before its logs are read.
    async fn resume(&self, query: Query, progress: &StreamProgress) -> Result<Stream, String> {
        let stored = self.store.states(&self.name).await;
        let StoredStates { whole, damaged } = stored.map_err(|e| format!("its states: {e}"))?;
        if !damaged.is_empty() {
            let (damaged, all) = (damaged.len(), damaged.len() + whole.len());
            self.failed(&format!(
                "{damaged} of the {all} states that are stored of its windows are damaged"
            ));
        }
        let (spec, now) = (self.spec.clone(), self.clock.now());
        Stream::restore_damaged(spec, query, &progress.state, &whole, &damaged, now)
            .map_err(|e| e.to_string())
    }

    /// Ends the windows whose rows were folded for other SQL than `query`, by that SQL, and makes
    /// their results durable. Where it cannot be planned any more, they are dropped later.
    async fn close_old(&mut self, query: &Query) -> Result<(), String> {
        let Some(progress) = self.store.progress(&self.name) else {
            return Ok(());
        };
        let outdated = Stream::outdated(&self.spec, query, &progress.state);
        let Some(text) = outdated.map_err(|e| e.to_string())? else {
            return Ok(());
        };
        let sql = self.sql.share(self.sql_memory, self.sql_time);
        let plan = |sql| self.spec.plan_old(&sql, &text, &self.lookups, &progress.state);
        let old = sql.and_then(plan);
        let mut old = match old {
            Ok(old) => old,
            Err(error) => {
                tracing::warn!(stream = &*self.name, %error, "the SQL of before cannot end its windows");
                return Ok(());
            }
        };
        self.equip(&mut old);
        match self.routers(&old) {
            Ok(routers) => self.routers = routers,
            Err(error) => {
                tracing::warn!(stream = &*self.name, error, "results of before fit no route");
                return Ok(());
            }
        }
        let mut stream = self.resume(old, &progress).await?;
        self.take_up_log(&stream);
        for table in 0..self.tables.len() {
            let at = stream.progress();
            let upto = Some(at.processed[table]);
            self.read_log(&mut stream, table, at.replay_from[table], upto, false).await?;
        }
        let mut commit = Commit::default();
        self.apply(&mut stream, Event::Replayed, &mut commit).await?;
        let before = stream.counts();
        let effects = tokio::select! {
            effects = stream.close_all() => effects,
            Some(why) = self.away.1.recv() => return Err(why),
        };
        self.note(&effects);
        self.encode(&effects, &before, self.clock.now(), &mut commit)?;
        self.submit(&mut stream, commit).await?;
        self.commit(Commit { wait: true, ..Commit::default() }, true).await
    }

    async fn work(&mut self, stream: &mut Stream) -> Result<(), String> {
        let mut gathered = Vec::with_capacity(GATHER_MAX);
        let mut listening = Listening::default();
        loop {
            listening.look(stream, self.feeds_down(), self.idle_after);
            let now = self.clock.now();
            let due = stream.next_deadline(now).map(|at| at.saturating_sub(now).max(0));
            let due = due.map(|micros| Duration::from_micros(micros.unsigned_abs()));
            let pause = due.map_or(HEARTBEAT, |due| due.min(HEARTBEAT));
            let mut commit = Commit { wait: self.sync_each, ..Commit::default() };
            let anew = self.store.take_spoiled(&self.name);
            if anew {
                tracing::warn!(
                    stream = &*self.name,
                    "states that are damaged in the store are stored anew"
                );
                stream.store_anew();
            }
            tokio::select! {
                // Rows that are there come before time that has passed.
                biased;
                count = self.queue.recv_many(&mut gathered, GATHER_MAX) => {
                    if count == 0 {
                        return Ok(());
                    }
                    let waiting = self.queue.len() as u64;
                    self.counts.queue_len.store(waiting, Ordering::Relaxed);
                    for rows in joined(&mut gathered, self.workers) {
                        self.rows(stream, rows, &mut commit).await?;
                    }
                }
                () = tokio::time::sleep(pause) => {
                    listening.look(stream, self.feeds_down(), self.idle_after);
                    if !anew && due.is_none_or(|due| due > pause) {
                        continue;
                    }
                    self.apply(stream, Event::Tick, &mut commit).await?;
                }
            }
            self.submit(stream, commit).await?;
        }
    }

    fn feeds_down(&self) -> bool {
        self.heard.iter().any(|device| self.feeds.is_down(device))
    }

    /// Applies rows from the queue. Rows that were read from the log already are passed over; rows
    /// that are missing before them are read from the log.
    async fn rows(
        &mut self,
        stream: &mut Stream,
        rows: Positioned,
        commit: &mut Commit,
    ) -> Result<(), String> {
        let Positioned { table, position, batch } = rows;
        let expected = stream.processed(table);
        let end = position + batch.num_rows() as u64;
        if end <= expected {
            return Ok(());
        }
        if position > expected {
            self.submit(stream, std::mem::take(commit)).await?;
            self.commit(Commit { wait: true, ..Commit::default() }, true).await?;
            self.read_log(stream, table, expected, Some(position), true).await?;
        }
        let skip = usize::try_from(expected.saturating_sub(position)).unwrap_or(0);
        let rest = batch.slice(skip, batch.num_rows() - skip);
        let event = Event::Rows { table, position: position + skip as u64, batch: rest };
        self.apply(stream, event, commit).await
    }

    async fn apply(
        &mut self,
        stream: &mut Stream,
        event: Event,
        commit: &mut Commit,
    ) -> Result<(), String> {
        let now = self.reading.unwrap_or_else(|| self.clock.now());
        if self.reading.is_none() {
            self.forgive_step(stream, now);
        }
        let before = stream.counts();
        self.count_missed(stream, &event, commit);
        let effects = tokio::select! {
            effects = stream.apply(event, now) => effects.map_err(|e| e.to_string())?,
            // The stream is thrown away with what it was doing, and built again from the store.
            Some(why) = self.away.1.recv() => return Err(why),
        };
        self.note(&effects);
        self.encode(&effects, &before, now, commit)
    }

    /// Shows what failed.
    fn note(&self, effects: &Effects) {
        for error in &effects.failures {
            self.failed(&error.to_string());
        }
    }

    /// A clock that was set forward makes no source silent: it would be, for the time that nobody has
    /// lived through.
    fn forgive_step(&mut self, stream: &mut Stream, now: i64) {
        let instant = Instant::now();
        if let Some((before, then)) = self.looked.replace((now, instant)) {
            let passed = i64::try_from((instant - then).as_micros()).unwrap_or(i64::MAX);
            let step = now.saturating_sub(before).saturating_sub(passed);
            if step > STEP_MIN {
                stream.forgive(step);
            }
        }
    }

    fn failed(&self, error: &str) {
        self.counts.errors.fetch_add(1, Ordering::Relaxed);
        self.health.error(error.to_owned());
        tracing::error!(stream = &*self.name, error, "its rows are counted");
    }

    /// Writes what came out for each sink. What was counted `before` numbers late and failed rows.
    fn encode(
        &self,
        effects: &Effects,
        before: &Counts,
        now: i64,
        commit: &mut Commit,
    ) -> Result<(), String> {
        for output in &effects.results {
            self.taps.offer(&self.name, || Passed {
                first: output.first_seq,
                batch: output.batch.clone(),
                quality: Some(output.quality),
            });
        }
        let who = Who { stream: &self.name, id_prefix: &self.id_prefix, unrouted: &self.unrouted };
        let upstream = self.upstream.as_ref();
        let errors = self.routers.put(&who, upstream, effects, before, now, commit)?;
        for error in &errors {
            self.failed(error);
        }
        Ok(())
    }

    /// Queues results together with the progress that they stand for.
    async fn submit(&mut self, stream: &mut Stream, mut commit: Commit) -> Result<(), String> {
        let progress = stream.progress();
        let named = |positions: Vec<u64>| self.tables.iter().cloned().zip(positions).collect();
        commit.progress = Some(StreamProgress {
            stream: self.name.clone(),
            state: progress.state,
            processed: named(progress.processed),
            replay_from: named(progress.replay_from),
            states: progress.states,
        });
        // The watermark may have followed the clock: no row may be stamped behind it.
        commit.counts.extend(self.durable_time.growth(self.clock.now()));
        stream.submitted();
        self.shown.send_replace(Some(stream.counts()));
        let rows = commit.rows.iter().map(|rows| (rows.position, rows.batch.clone()));
        let rows: Vec<_> = rows.collect();
        self.commit(commit, false).await?;
        if let Some(upstream) = &self.upstream {
            for (first, batch) in &rows {
                let passed = || Passed { first: *first, batch: batch.clone(), quality: None };
                self.taps.offer(&rows_of(&self.name), passed);
            }
            upstream.hand_on(rows).await;
        }
        Ok(())
    }

    async fn commit(&self, commit: Commit, durable: bool) -> Result<(), String> {
        let ticket = self.store.submit(commit).await.map_err(|e| format!("store: {e}"))?;
        if durable {
            ticket.await.map_err(|e| format!("store: {e}"))?;
        }
        Ok(())
    }
}
