//! The parts at work: how they start, how they become those of another configuration, how they end.
//!
//! Wired as sources → tables → streams → store → pumps. An end comes from the sources and goes
//! downstream, because the input of each part ends; a change ends only parts that are not wanted
//! as they are, and starts those that are missing. Every future here may be dropped: parts on
//! their way out are then aborted, the others are where they were.

mod assemble;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use tidegate_config::{Bytes, Document, Link, LookupSection};
use tidegate_drivers::ArrayPool;
use tidegate_drivers::bus::BusHandle;
use tidegate_drivers::types::Span;
use tidegate_engine::Sql;
use tidegate_engine::store::{Commit, Store, StoreError};
use tidegate_web_ui::{Declined, StreamVerb};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::build::{self, Surroundings};
use crate::chain::{self, StreamTables};
use crate::clock::{Ages, Ahead, ClockWait, DurableTime, Machine, keep_ahead, kept_ahead};
use crate::floor::stopped;
use crate::ledger;
use crate::status::{DeviceView, GatewayStatus, LinkView, LookupView, SinkView, StreamView, Views};
use crate::stream::Feeds;
use crate::table::{Arrival, Readers};
use crate::tap::Taps;
use crate::wanted::{DeviceWish, SinkWish, StreamWish, Wanted};
use assemble::start_link;
use worker::{END_MAX, Workers, add, differing, end, ended, missing, same, stop};

/// Why a gateway could not be started, or its parts not be changed. A part that cannot work is not
/// among these: it is shown in status and the others run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be opened, or takes no commits.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// The SQL engine cannot be set up.
    #[error("SQL engine: {0}")]
    Sql(#[from] tidegate_engine::SqlError),
    /// The store did not answer in time.
    #[error("store: nothing was committed within {0:?}")]
    StoreBusy(Duration),
}

/// Keeps a step of the clock over a restart.
async fn keep_step(folder: PathBuf, ahead: Vec<Ahead>) {
    let kept = tokio::task::spawn_blocking(move || keep_ahead(&folder, &ahead)).await;
    if let Ok(Err(error)) = kept {
        tracing::warn!(%error, "a step of the clock is forgotten at a restart");
    }
}

/// How often old records are looked for.
const EXPIRE_EVERY: Duration = Duration::from_secs(10);
/// How often the store tries what it could not read: its patience is counted in these.
const AGAIN_EVERY: Duration = Duration::from_secs(1);

/// A table's entrance, and who reads it.
struct TableEnds {
    arrivals: mpsc::Sender<Arrival>,
    readers: Arc<Readers>,
}

/// A gateway at work.
pub struct Running {
    /// What status and metrics show.
    pub status: Arc<GatewayStatus>,
    /// The store's handle.
    pub store: Store,
    /// Who looks at rows.
    pub taps: Arc<Taps>,
    around: Surroundings,
    document: Arc<Document>,
    /// Streams that somebody stopped.
    stopped: BTreeSet<String>,
    sql: Arc<Sql>,
    /// The columns of streams that others read.
    stream_tables: StreamTables,
    /// What polled rows are put into.
    arrays: ArrayPool,
    links: Workers<Link, (LinkView, BusHandle)>,
    tables: Workers<SchemaRef, TableEnds>,
    devices: Workers<DeviceWish, DeviceView>,
    streams: Workers<StreamWish, (StreamView, Arc<Readers>)>,
    lookups: Workers<LookupSection, LookupView>,
    sinks: Workers<SinkWish, SinkView>,
    timers: Option<(Span, AbortOnDropHandle<()>)>,
    /// `seq` that a device goes on with when it is started again.
    seqs: BTreeMap<String, u64>,
    /// The connections of the feeds, which streams look at.
    feeds: Arc<Feeds>,
    /// How far time has come in what is durable.
    durable_time: Arc<DurableTime>,
    /// Whether rows wait for the time of day, and who looks whether they still have to.
    wait: Arc<ClockWait>,
    _waiting: AbortOnDropHandle<()>,
    /// The longest age that anything stored may have, in seconds.
    ages_max: Arc<AtomicU64>,
    /// By which time records are judged.
    ages: Arc<Mutex<Ages>>,
    /// The store keeps what a configuration that was tried wants as well.
    bounds_are_loose: bool,
    /// Parts that were asked to end and have not yet.
    ending: Vec<AbortOnDropHandle<()>>,
}

/// What a change did, by part, such as `device press`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Parts that were stopped.
    pub stopped: Vec<String>,
    /// Parts that were started.
    pub started: Vec<String>,
}

/// Opens the store and starts every part of `document`, which has passed `check`.
pub fn start(document: Document, around: Surroundings) -> Result<Running, StartError> {
    start_patiently(document, around, true)
}

/// The same; without patience what the device does not answer for counts as damaged.
pub fn start_patiently(
    document: Document,
    around: Surroundings,
    patiently: bool,
) -> Result<Running, StartError> {
    let mut options = build::store_options(&document, &around);
    options.impatient = !patiently;
    let (store, recovery) = Store::open(options, build::layout(&document))?;
    tracing::info!(?recovery, path = document.store.path, "store opened");
    let name = document.gateway.name.as_str();
    let sinks = document.sinks.iter().map(|sink| sink.name.as_str());
    let parts = document.device_parts();
    let sources = parts.map(|(device, group)| (device.part_name(group), device.table_of(group)));
    let seqs = ledger::begin(&store, sinks, sources);
    let clock = around.clock.clone();
    let sql = Arc::new(Sql::new(sql_memory(&document))?);
    let durable_time = DurableTime::from_seconds(store.count(DurableTime::COUNTER));
    if let Some(last) = durable_time.micros() {
        clock.resume(last);
    }
    let kept = kept_ahead(Path::new(&document.store.path));
    let ages = Ages::resumed(&kept, clock.now(), longest_age(&document));
    let bound = document.gateway.wait_for_clock.duration();
    let wait = Arc::new(ClockWait::begin(&store, &clock, bound, Machine::read));
    let waiting = wait.clone().run(clock.clone(), store.clone());
    let mut running = Running {
        status: Arc::new(GatewayStatus::new(name, (clock, wait.clone()), store.clone(), recovery)),
        store,
        stream_tables: StreamTables::plan(&document, &sql),
        sql,
        arrays: ArrayPool::default(),
        stopped: stopped::read(Path::new(&document.store.path)),
        taps: Arc::default(),
        around,
        document: Arc::new(document),
        links: BTreeMap::new(),
        tables: BTreeMap::new(),
        devices: BTreeMap::new(),
        streams: BTreeMap::new(),
        lookups: BTreeMap::new(),
        sinks: BTreeMap::new(),
        timers: None,
        seqs,
        feeds: Arc::default(),
        durable_time: Arc::new(durable_time),
        wait,
        _waiting: AbortOnDropHandle::new(tokio::spawn(waiting)),
        ages_max: Arc::default(),
        ages: Arc::new(Mutex::new(ages)),
        bounds_are_loose: false,
        ending: Vec::new(),
    };
    running.raise();
    Ok(running)
}

fn sql_memory(document: &Document) -> usize {
    document.limits.memory.len() / 2
}

impl Running {
    /// The configuration that runs.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// Where streams run.
    pub fn compute(&self) -> tokio::runtime::Handle {
        self.around.crews.compute.clone()
    }

    /// Whether `document`, with the secrets as they are now, wants nothing that does not run.
    pub fn is_equal(&self, document: &Document) -> bool {
        let wanted = Wanted::new(document, &self.around, &self.stream_tables);
        *document == *self.document
            && same(&self.devices, &wanted.devices)
            && same(&self.sinks, &wanted.sinks)
    }

    /// Runs another configuration, which has passed `check` and [`needs_restart`]. Parts that it
    /// wants as they are go on untouched. What the old one keeps stays until [`Running::hold_bounds`]: it may
    /// come back. An error means that the old configuration runs.
    ///
    /// [`needs_restart`]: crate::wanted::needs_restart
    pub async fn change(&mut self, document: Document) -> Result<Changes, StartError> {
        let sql = if sql_memory(&document) == sql_memory(&self.document) {
            self.sql.clone()
        } else {
            Arc::new(Sql::new(sql_memory(&document))?)
        };
        let stream_tables = StreamTables::plan(&document, &sql);
        // Nothing is stopped for a store that takes nothing.
        let commit = Commit { wait: true, ..Commit::default() };
        in_time(async { self.store.submit(commit).await?.await }).await?;

        let stopped = self.lower(&document, &stream_tables).await;
        let (before, layout) = (build::layout(&self.document), build::layout(&document));
        let bytes_max = document.store.max_bytes.get().max(self.document.store.max_bytes.get());
        let laid_out =
            in_time(self.store.relayout(build::layout_of_both(&before, layout), bytes_max)).await;
        self.bounds_are_loose = true;
        if laid_out.is_ok() {
            self.wait.set_bound(document.gateway.wait_for_clock.duration());
            self.document = Arc::new(document);
            self.sql = sql;
            self.stream_tables = stream_tables;
        }
        let started = self.raise();
        laid_out.map(|()| Changes { stopped, started })
    }

    /// From now on the store keeps what the configuration that runs wants, and no more.
    pub async fn hold_bounds(&mut self) {
        let (layout, bytes_max) =
            (build::layout(&self.document), self.document.store.max_bytes.get());
        match in_time(self.store.relayout(layout, bytes_max)).await {
            Ok(()) => self.bounds_are_loose = false,
            Err(error) => {
                tracing::warn!(%error, "what the configuration before kept is kept a while longer");
            }
        }
    }

    /// Whether the store keeps more than the configuration wants: [`Running::hold_bounds`] is due.
    pub fn bounds_are_loose(&self) -> bool {
        self.bounds_are_loose
    }

    /// Ends the parts that `document` does not want as they are; returns their names.
    async fn lower(&mut self, document: &Document, tables: &StreamTables) -> Vec<String> {
        let wanted = Wanted::new(document, &self.around, tables);
        let mut stopped = Vec::new();
        let devices = differing(&mut self.devices, &wanted.devices);
        let counts: Vec<_> =
            devices.iter().map(|(name, d)| (name.clone(), d.ends.counts.clone())).collect();
        end("device", devices, &mut stopped).await;
        for (name, counts) in counts {
            let next = counts.get().next_seq;
            let seq = self.seqs.entry(name).or_default();
            *seq = next.max(*seq);
        }
        end("link", differing(&mut self.links, &wanted.links), &mut stopped).await;
        // A stream is cut off wherever it is: its state is in the store, as after a crash, and
        // whoever takes its place begins there.
        let streams = differing(&mut self.streams, &wanted.streams);
        streams.values().filter_map(|s| s.task.as_ref()).for_each(AbortOnDropHandle::abort);
        end("stream", streams, &mut stopped).await;
        end("lookup", differing(&mut self.lookups, &wanted.lookups), &mut stopped).await;
        end("table", differing(&mut self.tables, &wanted.tables), &mut stopped).await;
        end("sink", differing(&mut self.sinks, &wanted.sinks), &mut stopped).await;
        stopped
    }

    /// Starts the parts that the configuration wants and that are not there, from the sinks
    /// upwards; returns their names.
    fn raise(&mut self) -> Vec<String> {
        let document = self.document.clone();
        let wanted = Wanted::new(&document, &self.around, &self.stream_tables);
        let mut started = Vec::new();
        for sink in &document.sinks {
            let name = sink.name.as_str();
            if let Some(wish) = missing(&self.sinks, &wanted.sinks, name) {
                let worker = self.sink(sink, wish);
                add("sink", &mut self.sinks, name, worker, &mut started);
            }
        }
        for table in document.tables() {
            if let Some(wish) = missing(&self.tables, &wanted.tables, &table.name) {
                let worker = self.table(&table, wish);
                add("table", &mut self.tables, &table.name, worker, &mut started);
            }
        }
        for lookup in &document.lookups {
            let name = lookup.name.as_str();
            if let Some(wish) = missing(&self.lookups, &wanted.lookups, name) {
                let worker = self.lookup(lookup, wish);
                add("lookup", &mut self.lookups, name, worker, &mut started);
            }
        }
        // What others read comes first, so that they can be added to its readers.
        for at in document.stream_order(&chain::latest).sound {
            let stream = &document.streams[at];
            let name = stream.name.as_str();
            if let Some(wish) = missing(&self.streams, &wanted.streams, name) {
                let worker = self.stream(stream, wish, Arc::default());
                add("stream", &mut self.streams, name, worker, &mut started);
            }
        }
        for link in &document.links {
            let name = link.name.as_str();
            if let Some(wish) = missing(&self.links, &wanted.links, name) {
                let worker = start_link(&self.around.crews.poll, link, wish);
                add("link", &mut self.links, name, worker, &mut started);
            }
        }
        for (device, group) in document.device_parts() {
            let name = device.part_name(group);
            if let Some(wish) = missing(&self.devices, &wanted.devices, &name) {
                let worker = self.device(device, group, wish);
                add("device", &mut self.devices, &name, worker, &mut started);
            }
        }
        self.timers();
        self.status.show(self.views());
        started
    }

    /// Runs a stream no more, or again, or anew; durable. An error says why nothing was done.
    pub async fn set_stream(&mut self, name: &str, verb: StreamVerb) -> Result<String, Declined> {
        let document = self.document.clone();
        let Some(section) = document.streams.iter().find(|s| s.name.as_str() == name) else {
            return Err(Declined::Unknown(format!("there is no stream `{name}`")));
        };
        let was_stopped = self.stopped.contains(name);
        let detail = match verb {
            StreamVerb::Stop if was_stopped => return Ok(format!("{name} is stopped already")),
            StreamVerb::Start if !was_stopped => return Ok(format!("{name} runs already")),
            StreamVerb::Restart if was_stopped => {
                return Err(Declined::NotNow(format!("{name} is stopped: start it")));
            }
            StreamVerb::Stop => format!(
                "{name} is stopped, also after a restart; its tables keep rows for it, within \
                 `store.max_bytes`"
            ),
            StreamVerb::Start => format!("{name} runs again, from where it was"),
            StreamVerb::Restart => format!("{name} was started anew from the store"),
        };
        if verb != StreamVerb::Restart {
            let mut stopped = self.stopped.clone();
            if verb == StreamVerb::Stop {
                stopped.insert(name.to_owned());
            } else {
                stopped.remove(name);
            }
            self.keep_stopped(stopped).await?;
        }
        // Cut off wherever it is, as after a crash: its state is in the store.
        let old = self.streams.remove(name).into_iter();
        let old: Workers<StreamWish, _> = old.map(|w| (name.to_owned(), w)).collect();
        old.values().filter_map(|w| w.task.as_ref()).for_each(AbortOnDropHandle::abort);
        // Streams that read it go on listening: what they do not hear is in its log.
        let kept = old.values().next().map(|w| (w.wish.clone(), w.ends.1.clone()));
        end("stream", old, &mut Vec::new()).await;
        // What it had handed to the store counts as its state.
        let barrier = Commit { wait: true, ..Commit::default() };
        if let Err(error) = in_time(async { self.store.submit(barrier).await?.await }).await {
            tracing::warn!(stream = name, %error, "its last results may not be shown yet");
        }
        if let Some((wish, readers)) = kept {
            let worker = self.stream(section, wish, readers);
            self.streams.insert(name.to_owned(), worker);
        }
        self.status.show(self.views());
        tracing::info!(stream = name, ?verb, "asked for");
        Ok(detail)
    }

    async fn keep_stopped(&mut self, stopped: BTreeSet<String>) -> Result<(), Declined> {
        let (store, names) = (self.document.store.path.clone(), stopped.clone());
        let written =
            tokio::task::spawn_blocking(move || stopped::write(Path::new(&store), &names)).await;
        let failed = match written {
            Ok(Ok(())) => {
                self.stopped = stopped;
                return Ok(());
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        Err(Declined::NotNow(format!("it cannot be kept over a restart: {failed}")))
    }

    /// The store knows no clock: what it does by time is told to it from here.
    fn timers(&mut self) {
        self.ages_max.store(longest_age(&self.document).as_secs(), Ordering::Relaxed);
        let every = self.document.store.commit_every;
        if self.timers.as_ref().is_some_and(|(now, _)| *now == every) {
            return;
        }
        let (store, clock) = (self.store.clone(), self.around.clock.clone());
        let (ages_max, ages) = (self.ages_max.clone(), self.ages.clone());
        let (folder, status) = (PathBuf::from(&self.document.store.path), self.status.clone());
        let task = tokio::spawn(async move {
            let mut commit = tokio::time::interval(every.duration());
            let mut expire = tokio::time::interval(EXPIRE_EVERY);
            let mut again = tokio::time::interval(AGAIN_EVERY);
            loop {
                tokio::select! {
                    _ = commit.tick() => store.flush(),
                    _ = again.tick() => store.try_again(),
                    _ = expire.tick() => {
                        let longest = Duration::from_secs(ages_max.load(Ordering::Relaxed));
                        let now = clock.now();
                        let (by, ahead) = {
                            let mut ages = ages.lock().unwrap_or_else(PoisonError::into_inner);
                            let before = ages.step();
                            let by = ages.judge(now, longest);
                            (by, (ages.step() != before).then(|| ages.ahead(now)))
                        };
                        if let Some(ahead) = ahead {
                            keep_step(folder.clone(), ahead).await;
                        }
                        store.expire(by);
                        status.look_for_losses();
                    }
                }
            }
        });
        self.timers = Some((every, AbortOnDropHandle::new(task)));
    }

    /// All parts in the order of the configuration.
    fn views(&self) -> Views {
        let (document, store) = (&self.document, &self.document.store);
        let parts = document.device_parts().map(|(device, group)| device.part_name(group));
        let devices = parts.filter_map(|name| self.devices.get(&name));
        let links = document.links.iter().filter_map(|l| self.links.get(l.name.as_str()));
        let streams = document.streams.iter().filter_map(|s| self.streams.get(s.name.as_str()));
        let lookups = document.lookups.iter().filter_map(|l| self.lookups.get(l.name.as_str()));
        let sinks = document.sinks.iter().filter_map(|sink| {
            let bytes_max = sink.store.max_bytes.get();
            Some(SinkView { bytes_max, ..self.sinks.get(sink.name.as_str())?.ends.clone() })
        });
        let read = self.streams.keys().filter(|name| self.stream_tables.get(name).is_some());
        let read = read.cloned();
        Views {
            document: Some(self.document.clone()),
            store_bytes_max: store.max_bytes.get(),
            daily_writes: store.daily_writes.map(Bytes::get),
            tables: self.tables.keys().cloned().chain(read).collect(),
            devices: devices.map(|d| d.ends.clone()).collect(),
            links: links.map(|l| l.ends.0.clone()).collect(),
            streams: streams.map(|s| s.ends.0.clone()).collect(),
            lookups: lookups.map(|l| l.ends.clone()).collect(),
            sinks: sinks.collect(),
        }
    }

    /// Ends reading and waits until every accepted row has passed its streams and what came of it
    /// is durable, but not longer than `bound`. Sinks go on delivering. False when the bound was
    /// reached first.
    pub async fn stop_sources(&mut self, bound: Duration) -> bool {
        let devices = std::mem::take(&mut self.devices);
        let tables = std::mem::take(&mut self.tables);
        let streams = std::mem::take(&mut self.streams);
        self.ending.extend(stop(devices));
        // The tables' entrances are closed with this, and each then lets its streams go.
        self.ending.extend(stop(tables));
        self.ending.extend(stop(streams));
        ended(&mut self.ending, Instant::now() + bound).await
    }

    /// Waits until nothing is left to deliver, but not longer than `bound`.
    pub async fn drained(&self, bound: Duration) -> bool {
        let empty = async {
            let mut poll = tokio::time::interval(Duration::from_millis(50));
            loop {
                self.store.flush();
                let sinks = self.document.sinks.iter();
                if sinks.into_iter().all(|s| self.store.backlog(s.name.as_str()).records == 0) {
                    return;
                }
                poll.tick().await;
            }
        };
        tokio::time::timeout(bound, empty).await.is_ok()
    }

    /// Ends everything in order within about `grace`: sources, tables, streams, sinks, store. Open
    /// windows are stored, not closed. What is still undelivered stays in the store.
    pub async fn shutdown(mut self, grace: Duration) -> Result<(), StoreError> {
        // What the grace is for, in parts: reading ends, deliveries under way end, the store closes.
        let begin = Instant::now();
        let (deadline, last) = (begin + grace.mul_f64(0.8), begin + grace.mul_f64(0.95));
        if !self.stop_sources(grace.mul_f64(0.5)).await {
            tracing::warn!("some parts did not end in time");
        }
        let mut pumps = stop(std::mem::take(&mut self.sinks));
        if !ended(&mut pumps, deadline).await {
            tracing::warn!("a delivery under way was cut off; it will be sent again");
        }
        let Self { store, links, lookups, timers, ending, .. } = self;
        drop((links, lookups, timers, ending, pumps));
        // A commit that is cut off is as safe as one that a power cut ends.
        tokio::time::timeout_at(last, store.close()).await.unwrap_or_else(|_| {
            tracing::warn!("the store was not closed in time; it recovers when it is opened");
            Ok(())
        })
    }
}

/// The longest age that records of any sink, or rows of any table, may have.
fn longest_age(document: &Document) -> Duration {
    let sinks = document.sinks.iter().filter_map(|sink| sink.store.max_age);
    let tables = document.devices.iter().filter_map(|device| device.history);
    sinks.chain(tables).map(Span::duration).max().unwrap_or_default()
}

async fn in_time(work: impl Future<Output = Result<(), StoreError>>) -> Result<(), StartError> {
    match tokio::time::timeout(END_MAX, work).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(StartError::StoreBusy(END_MAX)),
    }
}
