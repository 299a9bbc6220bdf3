//! How each kind of part is put together and started, with what the running gateway has for it.

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tidegate_config::{
    Device, DeviceDriver, Link, LookupSection, ProcessSection, SinkSection, StreamSection,
    Table as TableConfig,
};
use tidegate_drivers::bus::{self, BusHandle};
use tidegate_drivers::{ArrayPool, Fault, TableBuilder};
use tidegate_engine::{Counts, Lookup, TableSchema};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::worker::{Worker, run};
use super::{Running, TableEnds};
use crate::batch::Batcher;
use crate::build::{self, LinkPart};
use crate::chain::Upstream;
use crate::ledger::{self, ClockKeys, SourceKeys};
use crate::lookup::{Loads, LookupPart, lookup_copy};
use crate::process::Losses;
use crate::progress::Pulse;
use crate::pump::{Asked, Pump, Queue, SinkCounts, SinkOutbox};
use crate::source::{Source, SourceCounts, Unsettled};
use crate::status::{DeviceView, LinkView, LookupView, SinkView, StreamView};
use crate::stream::{ProgramSpec, Routers, StreamCounts, StreamPart};
use crate::supervisor::{Health, State};
use crate::table::{Positioned, Reader, Readers, Table};
use crate::wanted::{DeviceWish, SinkWish, StreamWish};

fn program(process: &ProcessSection) -> ProgramSpec {
    ProgramSpec {
        socket: process.socket.as_str().into(),
        timeout: process.timeout.duration(),
        columns: process.schema(),
    }
}

impl Running {
    pub(super) fn stream(
        &self,
        stream: &StreamSection,
        wish: StreamWish,
        readers: Arc<Readers>,
    ) -> Worker<StreamWish, (StreamView, Arc<Readers>)> {
        if self.stopped.contains(stream.name.as_str()) {
            return self.stopped_stream(stream, wish, readers);
        }
        let mut spec =
            build::stream_spec(&self.document, stream, stream.event_time, &self.stream_tables);
        let (tx, queue) = mpsc::channel(self.document.limits.stream_queue as usize);
        self.listen(&mut spec.tables, &tx);
        let (health, counts) = (Arc::new(Health::default()), Arc::new(StreamCounts::default()));
        let (shown, engine) = watch::channel(None);
        let name: Arc<str> = stream.name.as_str().into();
        let columns = self.stream_tables.get(&name).cloned();
        let upstream = columns.map(|columns| Upstream::new(name.clone(), columns, readers.clone()));
        let heard = self.document.devices_behind(stream).map(|(d, group)| d.part_name(group));
        let part = StreamPart {
            tables: build::tables_of(&spec),
            spec,
            name,
            upstream,
            heard: heard.collect(),
            lookups: self.lookups.values().map(|lookup| lookup.ends.lookup.clone()).collect(),
            sql_text: stream.sql.clone(),
            sql: self.sql.clone(),
            sql_memory: super::sql_memory(&self.document) / self.document.streams.len().max(1),
            sql_time: self.document.limits.sql_time.duration(),
            queue,
            store: self.store.clone(),
            routes: build::routes(&self.document, stream),
            unrouted: ledger::unrouted(stream.name.as_str()),
            missed: ledger::missed(stream.name.as_str()),
            id_prefix: format!("{}/{}", self.document.gateway.name, self.store.epoch()),
            closes_old: stream.on_change == tidegate_config::OnChange::Close,
            sync_each: stream.sync == tidegate_config::Sync::Each,
            clock: self.around.clock.clone(),
            counts: counts.clone(),
            shown,
            health: health.clone(),
            feeds: self.feeds.clone(),
            idle_after: stream.effective_idle_after(&self.document),
            taps: self.taps.clone(),
            workers: stream.workers as usize,
            program: stream.process.as_ref().map(program),
            losses: Losses::default(),
            away: mpsc::channel(1),
            durable_time: self.durable_time.clone(),
            wait: self.wait.clone(),
            routers: Routers::default(),
            looked: None,
            reading: None,
        };
        let view = StreamView { counts, ..self.stream_view(stream, health.clone(), engine) };
        let stop = CancellationToken::new();
        let task =
            run(&self.around.crews.compute, "stream", stream.name.as_str(), &health, &stop, part);
        Worker { wish, ends: (view, readers), stop, task: Some(task) }
    }

    /// Has the tables' rows come to a stream's queue. Both then have one schema object, which need
    /// not be compared.
    fn listen(&self, tables: &mut [TableSchema], queue: &mpsc::Sender<Positioned>) {
        for (index, table) in tables.iter_mut().enumerate() {
            let device = self.tables.get(&table.name);
            let stream = self.streams.get(&table.name).map(|stream| &stream.ends.1);
            if let Some(readers) = device.map(|table| &table.ends.readers).or(stream) {
                readers.add(Reader { queue: queue.clone(), table: index });
            }
            if let Some(worker) = device.filter(|worker| worker.wish == table.schema) {
                table.schema = worker.wish.clone();
            }
        }
    }

    fn stream_view(
        &self,
        stream: &StreamSection,
        health: Arc<Health>,
        engine: watch::Receiver<Option<Counts>>,
    ) -> StreamView {
        StreamView {
            name: stream.name.to_string(),
            window: stream.window.clone(),
            zone: stream.window.as_ref().and_then(|w| w.zone(&self.document)).map(str::to_owned),
            event_time: stream.event_time,
            unrouted: ledger::unrouted(stream.name.as_str()),
            missed: ledger::missed(stream.name.as_str()),
            health,
            counts: Arc::new(StreamCounts::default()),
            engine,
            queue_capacity: self.document.limits.stream_queue,
            stopped: false,
        }
    }

    pub(super) fn lookup(
        &self,
        section: &LookupSection,
        wish: LookupSection,
    ) -> Worker<LookupSection, LookupView> {
        let name = section.name.as_str();
        let lookup = Arc::new(Lookup::new(name, section.schema()));
        let (health, stop) = (Arc::new(Health::default()), CancellationToken::new());
        let loads = Arc::new(Loads::default());
        let view = LookupView {
            name: name.to_owned(),
            source: section.source.kind(),
            lookup: lookup.clone(),
            health: health.clone(),
            loads: loads.clone(),
        };
        let part = LookupPart {
            section: section.clone(),
            lookup,
            copy: lookup_copy(Path::new(&self.document.store.path), name),
            clock: self.around.clock.clone(),
            health: health.clone(),
            loads,
            stop: stop.clone(),
        };
        let task = run(&Handle::current(), "lookup", name, &health, &stop, part);
        Worker { wish, ends: view, stop, task: Some(task) }
    }

    /// A stream that somebody stopped: its tables go on keeping what it has not read.
    fn stopped_stream(
        &self,
        stream: &StreamSection,
        wish: StreamWish,
        readers: Arc<Readers>,
    ) -> Worker<StreamWish, (StreamView, Arc<Readers>)> {
        let health = Arc::new(Health::default());
        health.set(State::Stopped);
        let progress = self.store.progress(stream.name.as_str());
        let counts = progress.and_then(|progress| {
            tidegate_engine::Stream::counts_in(&progress.state).map_err(|e| e.to_string()).ok()
        });
        let view = self.stream_view(stream, health, watch::channel(counts).1);
        let view = StreamView { stopped: true, ..view };
        Worker { wish, ends: (view, readers), stop: CancellationToken::new(), task: None }
    }

    pub(super) fn table(
        &self,
        table: &TableConfig,
        wish: SchemaRef,
    ) -> Worker<SchemaRef, TableEnds> {
        let (arrivals, rx) = mpsc::channel(self.document.limits.table_queue as usize);
        let readers = Arc::new(Readers::default());
        let part = Table {
            name: table.name.as_str().into(),
            arrivals: rx,
            store: self.store.clone(),
            readers: readers.clone(),
            held: None,
            next_position: self.store.log_end(&table.name),
            clock: self.around.clock.clone(),
            taps: self.taps.clone(),
            durable_time: self.durable_time.clone(),
            wait: self.wait.clone(),
            clock_keys: ClockKeys::new(&table.name),
        };
        let (health, stop) = (Arc::new(Health::default()), CancellationToken::new());
        let task = run(&Handle::current(), "table", &table.name, &health, &stop, part);
        Worker { wish, ends: TableEnds { arrivals, readers }, stop, task: Some(task) }
    }

    pub(super) fn device(
        &self,
        device: &Device,
        group: usize,
        wish: DeviceWish,
    ) -> Worker<DeviceWish, DeviceView> {
        let name = device.part_name(group);
        let keys = SourceKeys::new(&name);
        // Where it ran before in this process, its counters may be on their way to the store.
        let running = self.seqs.get(&name).copied();
        let first_seq = running.unwrap_or(0).max(keys.next_seq(&self.store));
        let counts = Arc::new(SourceCounts::starting_at(first_seq));
        let health = Arc::new(Health::default());
        let bus = build::link_of(device).and_then(|link| self.links.get(link));
        let south = self.around.south(&self.document, device, group, bus.map(|link| &link.ends.1));
        let (pulse, stop) = (Arc::new(Pulse::default()), CancellationToken::new());
        let feed = device.driver.is_feed();
        let table = device.table_of(group);
        let table = table.as_str();
        let view = DeviceView {
            name: name.clone(),
            table: table.to_owned(),
            driver: device.driver.kind(),
            health: health.clone(),
            stats: south.as_ref().ok().map(|s| s.stats()),
            counts: counts.clone(),
            pulse: (pulse.clone(), device.every(group).unwrap_or_default()),
        };
        if let Some(stats) = view.stats.clone().filter(|_| feed) {
            self.feeds.put(&name, stats);
        }
        let entrance = self.tables.get(table).map(|table| (&table.wish, &table.ends.arrivals));
        let (south, (columns, arrivals)) = match (south, entrance) {
            (Ok(south), Some(entrance)) => (south, entrance),
            (Err(fault), _) => {
                show_failed("device", &name, &health, &fault);
                return Worker { wish, ends: view, stop, task: None };
            }
            (Ok(_), None) => {
                let fault = Fault::Config(format!("there is no table `{table}`"));
                show_failed("device", &name, &health, &fault);
                return Worker { wish, ends: view, stop, task: None };
            }
        };
        let clocks = (self.around.clock.clone(), self.wait.clone());
        // Polled devices share a thread, and so the arrays that are used again.
        let (crew, arrays) = match device.driver {
            DeviceDriver::Modbus(_) => (self.around.crews.poll.clone(), self.arrays.clone()),
            DeviceDriver::Mqtt(_)
            | DeviceDriver::Generate(_)
            | DeviceDriver::Serial(_)
            | DeviceDriver::Replay(_) => (Handle::current(), ArrayPool::default()),
        };
        let part = Source {
            rows: TableBuilder::sharing(south.shared_points(), device.point_quality, arrays),
            south,
            batcher: Batcher::new(device.name.as_str(), columns.clone(), feed, clocks, first_seq),
            name: name.clone(),
            table: arrivals.clone(),
            when_busy: build::when_busy(device),
            listens: feed,
            pauses: build::device_pauses(device),
            counts,
            keys,
            owed: Vec::new(),
            pulse,
            stop: stop.clone(),
            unsettled: Unsettled::default(),
        };
        let task = run(&crew, "device", &name, &health, &stop, part);
        Worker { wish, ends: view, stop, task: Some(task) }
    }

    pub(super) fn sink(&self, sink: &SinkSection, wish: SinkWish) -> Worker<SinkWish, SinkView> {
        let name: Arc<str> = sink.name.as_str().into();
        let (health, counts) = (Arc::new(Health::default()), Arc::new(SinkCounts::default()));
        let (pulse, stop) = (Arc::new(Pulse::default()), CancellationToken::new());
        let north = self.around.north(&self.document, sink);
        let paused = self.store.backlog(&name).paused;
        let asked = watch::Sender::new(Asked { paused, rate: None });
        let view = SinkView {
            name: name.to_string(),
            driver: sink.driver.kind(),
            bytes_max: sink.store.max_bytes.get(),
            health: health.clone(),
            stats: north.as_ref().ok().map(|n| n.stats()),
            counts: counts.clone(),
            asked: asked.clone(),
            pulse: pulse.clone(),
        };
        let north = match north {
            Ok(north) => north,
            Err(fault) => {
                show_failed("sink", &name, &health, &fault);
                return Worker { wish, ends: view, stop, task: None };
            }
        };
        let outbox = SinkOutbox { store: self.store.clone(), sink: name.clone() };
        let (plan, rows_max) = (build::plan(sink), self.document.limits.deliver_rows as usize);
        let part = Pump {
            name: name.clone(),
            north,
            queue: Queue::new(Arc::new(outbox), plan, rows_max),
            writer: build::writer(&self.document, sink),
            rate: plan.rate,
            asked,
            stop: stop.clone(),
            pauses: build::sink_pauses(sink),
            refusals_max: self.document.limits.refusals_max,
            counts,
            pulse,
        };
        let task = run(&Handle::current(), "sink", &name, &health, &stop, part);
        Worker { wish, ends: view, stop, task: Some(task) }
    }
}

pub(super) fn start_link(
    crew: &Handle,
    link: &Link,
    wish: Link,
) -> Worker<Link, (LinkView, BusHandle)> {
    let name = link.name.to_string();
    let (handle, owner) = bus::open(&name, &link.bus);
    let (health, stop) = (Arc::new(Health::default()), CancellationToken::new());
    let view = LinkView {
        name: name.clone(),
        bus: link.bus.clone(),
        health: health.clone(),
        stats: handle.stats(),
    };
    let part = LinkPart { owner, stop: stop.clone() };
    let task = run(crew, "link", &name, &health, &stop, part);
    Worker { wish, ends: (view, handle), stop, task: Some(task) }
}

fn show_failed(kind: &str, name: &str, health: &Health, fault: &Fault) {
    tracing::error!(kind, name, error = %fault, "it cannot work as configured; the others run");
    health.error(fault.to_string());
    health.set(State::Failed);
}
