//! From a checked configuration to running parts, and from running parts to an orderly end.
//!
//! The wiring in one place: sources → tables → streams → store → pumps. Cancellation reaches the
//! sources only; everything downstream ends because its input ends.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_config::{Device, DeviceDriver, Document, EventTime, SinkDriver, SinkSection};
use tidegate_config::{Environment, StreamSection, Table as TableConfig, WhenFull};
use tidegate_config::{Window as WindowConfig, resolve_secret};
use tidegate_drivers::bus::{self, BusHandle, BusOwner};
use tidegate_drivers::north::Encode;
use tidegate_drivers::north::file::FileNorth;
use tidegate_drivers::north::mqtt::MqttNorth;
use tidegate_drivers::north::stdout::StdoutNorth;
use tidegate_drivers::south::generate::GenerateSouth;
use tidegate_drivers::south::modbus::ModbusSouth;
use tidegate_drivers::south::mqtt::MqttSouth;
use tidegate_drivers::types::{Secret, Span};
use tidegate_drivers::{Fault, North, South, TableBuilder};
use tidegate_engine::store::{self, Layout, SinkLayout, Store, StoreOptions, TableLayout};
use tidegate_engine::{Sql, StreamSpec, TableSchema, Window};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::batch::Batcher;
use crate::clock::SharedClock;
use crate::pump::{Pump, SinkCounts};
use crate::source::{Source, SourceCounts, Unsettled, WhenBusy};
use crate::status::{DeviceView, GatewayStatus, LinkView, SinkView, StreamView};
use crate::stream::{StreamCounts, StreamPart, Target};
use crate::supervisor::{Exit, Health, Part, State, supervise};
use crate::table::{Arrival, Positioned, Reader, Table};

/// Why a gateway could not be started. A part that cannot work is not among these: it is shown in
/// status and the others run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be opened.
    #[error("store: {0}")]
    Store(#[from] store::StoreError),
    /// The SQL engine cannot be set up.
    #[error("SQL engine: {0}")]
    Sql(#[from] tidegate_engine::SqlError),
}

/// Runtimes of their own for what must not wait for others.
#[derive(Debug, Clone)]
pub struct Crews {
    /// Links and polled devices.
    pub poll: Handle,
    /// Streams: no driver shares it.
    pub compute: Handle,
}

/// What the gateway takes from outside.
pub struct Surroundings {
    /// The time of day.
    pub clock: SharedClock,
    /// Environment variables and files, for secrets.
    pub environment: Arc<dyn Environment + Send + Sync>,
    /// Where polled devices and streams run.
    pub crews: Crews,
    /// The warnings of the configuration, for status.
    pub warnings: Vec<tidegate_web_ui::ConfigProblem>,
}

/// A gateway at work.
pub struct Running {
    /// What status and metrics show.
    pub status: Arc<GatewayStatus>,
    /// The store's handle.
    pub store: Store,
    stop_sources: CancellationToken,
    stop_pumps: CancellationToken,
    inner: JoinSet<()>,
    pumps: JoinSet<()>,
    background: JoinSet<()>,
}

/// Bytes that are gathered before the store commits without being asked.
const COMMIT_BYTES: usize = 256 << 10;

/// redb's page cache; its default is 1 GiB.
const STORE_CACHE_BYTES: usize = 8 << 20;

/// How often old records are looked for.
const EXPIRE_EVERY: Duration = Duration::from_secs(10);

/// Opens the store and starts every part of `document`, which has passed `check`.
pub fn start(document: &Document, around: &Surroundings) -> Result<Running, StartError> {
    let tables = document.tables();
    let (store, recovery) = Store::open(store_options(document, around), layout(document))?;
    tracing::info!(?recovery, path = document.store.path, "store opened");
    let sql = Arc::new(Sql::new(document.limits.memory.len() / 2)?);
    let mut builder = Builder {
        document,
        tables: &tables,
        around,
        id_prefix: format!("{}/{}", document.gateway.name, store.epoch()),
        store,
        sql,
        running: JoinSets::default(),
        stop_sources: CancellationToken::new(),
        stop_pumps: CancellationToken::new(),
        views: Views::default(),
    };
    let mut readers: BTreeMap<&str, Vec<Reader>> = BTreeMap::new();
    for stream in &document.streams {
        let queue = builder.stream(stream);
        for (index, name) in stream.from.iter().enumerate() {
            let reader = Reader { queue: queue.clone(), table: index };
            readers.entry(name.as_str()).or_default().push(reader);
        }
    }
    let links = builder.links();
    for table in &tables {
        let readers = readers.remove(table.name.as_str()).unwrap_or_default();
        let arrivals = builder.table(table, readers);
        for device in &table.devices {
            builder.device(&document.devices[*device], table, arrivals.clone(), &links);
        }
    }
    for sink in &document.sinks {
        builder.sink(sink);
    }
    builder.timers();
    Ok(builder.finish())
}

fn store_options(document: &Document, around: &Surroundings) -> StoreOptions {
    StoreOptions {
        dir: PathBuf::from(&document.store.path),
        commit_bytes: COMMIT_BYTES,
        queue: document.limits.store_queue as usize,
        cache_bytes: STORE_CACHE_BYTES,
        max_bytes: document.store.max_bytes.get(),
        gateway: document.gateway.name.to_string(),
        epoch_hint: u64::try_from(around.clock.now() / 1_000_000).unwrap_or(0),
    }
}

fn layout(document: &Document) -> Layout {
    let tables = document.tables().into_iter().map(|table| TableLayout {
        readers: document
            .streams
            .iter()
            .filter(|s| s.from.iter().any(|from| from.as_str() == table.name))
            .map(|s| s.name.as_str().into())
            .collect(),
        name: table.name.as_str().into(),
    });
    let sinks = document.sinks.iter().map(|sink| SinkLayout {
        name: sink.name.as_str().into(),
        max_bytes: sink.store.max_bytes.get(),
        max_age_us: sink.store.max_age.map(Span::micros),
        max_records: sink.store.max_records,
        when_full: match sink.store.when_full {
            WhenFull::DropOldest => store::WhenFull::DropOldest,
            WhenFull::DropNewest => store::WhenFull::DropNewest,
            WhenFull::Block => store::WhenFull::Block,
        },
    });
    Layout { tables: tables.collect(), sinks: sinks.collect() }
}

/// What the engine needs to know of a stream; also used by `check`, `explain` and `test`.
pub fn stream_spec(
    document: &Document,
    stream: &StreamSection,
    event_time: EventTime,
) -> StreamSpec {
    spec_over(&document.tables(), document, stream, event_time)
}

/// The same over tables that are there already, so that a table's rows and its streams share one
/// schema object, which need not be compared for each batch.
fn spec_over(
    tables: &[TableConfig],
    document: &Document,
    stream: &StreamSection,
    event_time: EventTime,
) -> StreamSpec {
    let from: Vec<&TableConfig> = stream
        .from
        .iter()
        .filter_map(|name| tables.iter().find(|t| t.name == name.as_str()))
        .collect();
    let sources = from.iter().enumerate().flat_map(|(index, table)| {
        table.devices.iter().map(move |d| (index, document.devices[*d].name.to_string()))
    });
    StreamSpec {
        name: stream.name.to_string(),
        sources: sources.collect(),
        tables: from.iter().map(|table| table_schema(table, event_time)).collect(),
        window: stream.window.as_ref().map(|window| match window {
            WindowConfig::Tumbling(t) => {
                Window::Tumbling { size: t.size.micros(), offset: t.offset.micros() }
            }
        }),
        allowed_lateness: stream.allowed_lateness.micros(),
        idle_after: micros(stream.effective_idle_after(document)),
        memory_max: document.limits.memory.len() / 2 / document.streams.len().max(1),
    }
}

fn table_schema(table: &TableConfig, event_time: EventTime) -> TableSchema {
    let arrival = event_time == EventTime::Arrival && table.feed;
    TableSchema {
        name: table.name.clone(),
        schema: table.columns.clone(),
        time_column: if arrival { "received_at" } else { "time" }.to_owned(),
    }
}

#[derive(Default)]
struct JoinSets {
    inner: JoinSet<()>,
    pumps: JoinSet<()>,
    background: JoinSet<()>,
}

#[derive(Default)]
struct Views {
    devices: Vec<DeviceView>,
    links: Vec<LinkView>,
    streams: Vec<StreamView>,
    sinks: Vec<SinkView>,
}

struct Builder<'a> {
    document: &'a Document,
    tables: &'a [TableConfig],
    around: &'a Surroundings,
    id_prefix: String,
    store: Store,
    sql: Arc<Sql>,
    running: JoinSets,
    stop_sources: CancellationToken,
    stop_pumps: CancellationToken,
    views: Views,
}

impl Builder<'_> {
    fn stream(&mut self, stream: &StreamSection) -> mpsc::Sender<Positioned> {
        let (tx, rx) = mpsc::channel(self.document.limits.stream_queue as usize);
        let spec = spec_over(self.tables, self.document, stream, stream.event_time);
        let (health, counts) = (Arc::new(Health::default()), Arc::new(StreamCounts::default()));
        let (shown, view) = watch::channel(None);
        self.views.streams.push(StreamView {
            name: stream.name.to_string(),
            window: stream.window.clone(),
            health: health.clone(),
            counts: counts.clone(),
            engine: view,
            queue_capacity: self.document.limits.stream_queue,
        });
        let name: Arc<str> = stream.name.as_str().into();
        let part = StreamPart {
            spec,
            name: name.clone(),
            tables: stream.from.iter().map(|name| name.as_str().into()).collect(),
            sql_text: stream.sql.clone(),
            sql: self.sql.clone(),
            queue: rx,
            store: self.store.clone(),
            targets: self.targets(stream.to.iter().map(|route| route.sink.as_str())),
            late_targets: self.targets(
                stream.late.iter().flat_map(|late| &late.to).map(|route| route.sink.as_str()),
            ),
            id_prefix: self.id_prefix.clone(),
            sync_each: stream.sync == tidegate_config::Sync::Each,
            clock: self.around.clock.clone(),
            counts,
            shown,
            health: health.clone(),
        };
        let stop = self.stop_sources.clone();
        self.running.inner.spawn_on(
            async move { supervise("stream", &name, health, stop, part).await },
            &self.around.crews.compute,
        );
        tx
    }

    fn targets<'n>(&self, names: impl Iterator<Item = &'n str>) -> Vec<Target> {
        names
            .filter_map(|name| self.document.sinks.iter().find(|s| s.name.as_str() == name))
            .map(|sink| Target { sink: sink.name.as_str().into(), encode: encode(&sink.driver) })
            .collect()
    }

    fn table(&mut self, table: &TableConfig, readers: Vec<Reader>) -> mpsc::Sender<Arrival> {
        let (tx, rx) = mpsc::channel(self.document.limits.table_queue as usize);
        let part = Table {
            name: table.name.as_str().into(),
            arrivals: rx,
            store: self.store.clone(),
            readers,
            many_sources: table.devices.len() > 1,
            held: None,
            next_position: self.store.log_end(&table.name),
        };
        let (name, health) = (table.name.clone(), Arc::new(Health::default()));
        let stop = self.stop_sources.clone();
        self.running
            .inner
            .spawn(async move { supervise("table", &name, health, stop, part).await });
        tx
    }

    fn links(&mut self) -> BTreeMap<String, BusHandle> {
        let mut handles = BTreeMap::new();
        for link in &self.document.links {
            let name = link.name.to_string();
            let (handle, owner) = bus::open(&name, &link.bus);
            let health = Arc::new(Health::default());
            self.views.links.push(LinkView {
                name: name.clone(),
                bus: link.bus.clone(),
                health: health.clone(),
                stats: handle.stats(),
            });
            handles.insert(name.clone(), handle);
            let stop = self.stop_pumps.clone();
            let part = LinkPart { owner, stop: stop.clone() };
            self.running.background.spawn_on(
                async move { supervise("link", &name, health, stop, part).await },
                &self.around.crews.poll,
            );
        }
        handles
    }

    fn device(
        &mut self,
        device: &Device,
        table: &TableConfig,
        arrivals: mpsc::Sender<Arrival>,
        links: &BTreeMap<String, BusHandle>,
    ) {
        let name = device.name.to_string();
        let (health, counts) = (Arc::new(Health::default()), Arc::new(SourceCounts::default()));
        let south = self.south(device, links);
        self.views.devices.push(DeviceView {
            name: name.clone(),
            table: table.name.clone(),
            driver: device.driver.kind(),
            health: health.clone(),
            stats: south.as_ref().ok().map(|s| s.stats()),
            counts: counts.clone(),
        });
        let south = match south {
            Ok(south) => south,
            Err(fault) => return show_failed("device", &name, &health, &fault),
        };
        let clock = self.around.clock.clone();
        let first_seq = self.store.log_end(&table.name);
        let part = Source {
            rows: TableBuilder::sharing(south.shared_points(), device.point_quality),
            south,
            batcher: Batcher::new(&name, table.columns.clone(), table.feed, clock, first_seq),
            name: name.clone(),
            table: arrivals,
            when_busy: match device.driver {
                DeviceDriver::Modbus(_) => WhenBusy::Drop,
                DeviceDriver::Mqtt(_) | DeviceDriver::Generate(_) => WhenBusy::Wait,
            },
            pauses: match &device.driver {
                DeviceDriver::Mqtt(feed) => pauses(feed.backoff_min, feed.backoff_max),
                DeviceDriver::Modbus(_) | DeviceDriver::Generate(_) => DEFAULT_PAUSES,
            },
            counts,
            stop: self.stop_sources.clone(),
            unsettled: Unsettled::default(),
        };
        let stop = self.stop_sources.clone();
        let work = async move { supervise("device", &name, health, stop, part).await };
        match device.driver {
            DeviceDriver::Modbus(_) => {
                self.running.inner.spawn_on(work, &self.around.crews.poll);
            }
            DeviceDriver::Mqtt(_) | DeviceDriver::Generate(_) => {
                self.running.inner.spawn(work);
            }
        }
    }

    fn south(
        &self,
        device: &Device,
        links: &BTreeMap<String, BusHandle>,
    ) -> Result<Box<dyn South>, Fault> {
        let name = device.name.as_str();
        Ok(match &device.driver {
            DeviceDriver::Modbus(modbus) => {
                let bus = links
                    .get(modbus.link.as_str())
                    .cloned()
                    .ok_or_else(|| Fault::Config(format!("there is no link `{}`", modbus.link)))?;
                Box::new(ModbusSouth::new(name, modbus.clone(), bus)?)
            }
            DeviceDriver::Mqtt(feed) => {
                let password = self.secret(feed.password.as_ref())?;
                Box::new(MqttSouth::new(feed.clone(), self.client_id(name), password)?)
            }
            DeviceDriver::Generate(generate) => Box::new(GenerateSouth::new(generate.clone())),
        })
    }

    fn sink(&mut self, sink: &SinkSection) {
        let name: Arc<str> = sink.name.as_str().into();
        let (health, counts) = (Arc::new(Health::default()), Arc::new(SinkCounts::default()));
        let north = self.north(sink);
        self.views.sinks.push(SinkView {
            name: name.to_string(),
            driver: sink.driver.kind(),
            bytes_max: sink.store.max_bytes.get(),
            health: health.clone(),
            stats: north.as_ref().ok().map(|n| n.stats()),
            counts: counts.clone(),
        });
        let north = match north {
            Ok(north) => north,
            Err(fault) => return show_failed("sink", &name, &health, &fault),
        };
        let part = Pump {
            name: name.clone(),
            north,
            store: self.store.clone(),
            stop: self.stop_pumps.clone(),
            pauses: match &sink.driver {
                SinkDriver::Mqtt(mqtt) => pauses(mqtt.backoff_min, mqtt.backoff_max),
                SinkDriver::File(_) | SinkDriver::Stdout(_) => DEFAULT_PAUSES,
            },
            rows_max: self.document.limits.deliver_rows as usize,
            refusals_max: self.document.limits.refusals_max,
            gateway: self.document.gateway.name.to_string(),
            counts,
        };
        let stop = self.stop_pumps.clone();
        self.running.pumps.spawn(async move { supervise("sink", &name, health, stop, part).await });
    }

    fn north(&self, sink: &SinkSection) -> Result<Box<dyn North>, Fault> {
        Ok(match &sink.driver {
            SinkDriver::Mqtt(mqtt) => {
                let password = self.secret(mqtt.password.as_ref())?;
                let id = self.client_id(sink.name.as_str());
                let gateway = self.document.gateway.name.as_str();
                Box::new(MqttNorth::new(mqtt.clone(), id, gateway, password)?)
            }
            SinkDriver::File(file) => Box::new(FileNorth::new(file.clone())),
            SinkDriver::Stdout(stdout) => Box::new(StdoutNorth::new(stdout.clone())),
        })
    }

    fn client_id(&self, part: &str) -> String {
        format!("tidegate-{}-{part}", self.document.gateway.name)
    }

    fn secret(&self, secret: Option<&Secret>) -> Result<Option<String>, Fault> {
        secret
            .map(|s| resolve_secret(s, &*self.around.environment))
            .transpose()
            .map_err(|error| Fault::Config(error.to_string()))
    }

    /// The store knows no clock: what it does by time is told to it from here.
    fn timers(&mut self) {
        let (store, stop) = (self.store.clone(), self.stop_pumps.clone());
        let clock = self.around.clock.clone();
        let mut commit = tokio::time::interval(self.document.store.commit_every.duration());
        let mut expire = tokio::time::interval(EXPIRE_EVERY);
        self.running.background.spawn(async move {
            loop {
                tokio::select! {
                    _ = commit.tick() => store.flush(),
                    _ = expire.tick() => store.expire(clock.now()),
                    () = stop.cancelled() => return,
                }
            }
        });
    }

    fn finish(self) -> Running {
        let gateway = &self.document.gateway;
        Running {
            status: Arc::new(GatewayStatus {
                name: gateway.name.to_string(),
                warnings: self.around.warnings.clone(),
                started: self.around.clock.now(),
                started_at: tokio::time::Instant::now(),
                clock: self.around.clock.clone(),
                store: self.store.clone(),
                store_bytes_max: self.document.store.max_bytes.get(),
                devices: self.views.devices,
                links: self.views.links,
                streams: self.views.streams,
                sinks: self.views.sinks,
            }),
            store: self.store,
            stop_sources: self.stop_sources,
            stop_pumps: self.stop_pumps,
            inner: self.running.inner,
            pumps: self.running.pumps,
            background: self.running.background,
        }
    }
}

impl Running {
    /// Ends reading and waits until every accepted row has passed its streams and what came of it
    /// is durable, but not longer than `bound`. Sinks go on delivering. False when the bound was
    /// reached first.
    pub async fn stop_sources(&mut self, bound: Duration) -> bool {
        self.stop_sources.cancel();
        let all = async { while self.inner.join_next().await.is_some() {} };
        tokio::time::timeout(bound, all).await.is_ok()
    }

    /// Waits until nothing is left to deliver, but not longer than `bound`.
    pub async fn drained(&self, bound: Duration) -> bool {
        let empty = async {
            let mut poll = tokio::time::interval(Duration::from_millis(50));
            loop {
                self.store.flush();
                if self.status.sinks.iter().all(|s| self.store.backlog(&s.name).records == 0) {
                    return;
                }
                poll.tick().await;
            }
        };
        tokio::time::timeout(bound, empty).await.is_ok()
    }

    /// Ends everything in order within about `grace`: sources, tables, streams, sinks, store. Open
    /// windows are stored, not closed. What is still undelivered stays in the store.
    pub async fn shutdown(mut self, grace: Duration) -> Result<(), store::StoreError> {
        // What the grace is for, in parts: reading ends, deliveries under way end, the store closes.
        let deadline = tokio::time::Instant::now() + grace.mul_f64(0.8);
        if !self.stop_sources(grace.mul_f64(0.5)).await {
            tracing::warn!("some parts did not end in time");
            self.inner.abort_all();
        }
        self.stop_pumps.cancel();
        let pumps = async { while self.pumps.join_next().await.is_some() {} };
        if tokio::time::timeout_at(deadline, pumps).await.is_err() {
            tracing::warn!("a delivery under way was cut off; it will be sent again");
            self.pumps.abort_all();
        }
        self.background.abort_all();
        self.store.close().await
    }
}

/// A link's owner under its supervisor.
struct LinkPart {
    owner: BusOwner,
    stop: CancellationToken,
}

impl Part for LinkPart {
    async fn run(&mut self) -> Exit {
        tokio::select! {
            // It ends when the last device of the link has ended.
            () = self.owner.run() => Exit::Done,
            () = self.stop.cancelled() => Exit::Done,
        }
    }
}

/// Pauses between attempts for drivers that have no setting of their own.
const DEFAULT_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

fn pauses(min: Span, max: Span) -> (Duration, Duration) {
    (min.duration(), max.duration())
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

fn encode(driver: &SinkDriver) -> Encode {
    match driver {
        SinkDriver::Mqtt(sink) => sink.encode.clone(),
        SinkDriver::File(sink) => sink.encode.clone(),
        SinkDriver::Stdout(sink) => sink.encode.clone(),
    }
}

fn show_failed(kind: &str, name: &str, health: &Health, fault: &Fault) {
    tracing::error!(kind, name, error = %fault, "it cannot work as configured; the others run");
    health.error(fault.to_string());
    health.set(State::Failed);
}
