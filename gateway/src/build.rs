//! From a checked configuration to parts: what each of them is made of. Runs nothing; `running`
//! does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use tidegate_config::{
    Device, DeviceDriver, Document, Environment, EventTime, Future, LookupSection, Priority,
    ReplayMark, ReplayOrder, Route, SinkDriver, SinkSection, StreamSection, Table as TableConfig,
    WhenFull, Window as WindowConfig, resolve_secret,
};
use tidegate_drivers::bus::{BusHandle, BusOwner};
use tidegate_drivers::north::Encode;
use tidegate_drivers::north::file::FileNorth;
use tidegate_drivers::north::mqtt::MqttNorth;
use tidegate_drivers::north::stdout::StdoutNorth;
use tidegate_drivers::south::generate::GenerateSouth;
use tidegate_drivers::south::modbus::ModbusSouth;
use tidegate_drivers::south::mqtt::MqttSouth;
use tidegate_drivers::south::replay::ReplaySouth;
use tidegate_drivers::south::serial::SerialSouth;
use tidegate_drivers::types::{Rate, Secret, Span};
use tidegate_drivers::{Fault, North, South};
use tidegate_engine::store::{self, Layout, SinkLayout, StoreOptions, TableLayout};
use tidegate_engine::{
    Calendar, FutureRule, Latest, Lookup, StreamSpec, TableSchema, Window, Zone,
};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::chain::{self, StreamTables};
use crate::clock::SharedClock;
use crate::ledger;
use crate::pump::{Plan, Writer};
use crate::route::Target;
use crate::source::WhenBusy;
use crate::stream::Routes;
use crate::supervisor::{Exit, Part};

/// Runtimes of their own for what must not wait for others.
#[derive(Debug, Clone)]
pub struct Crews {
    /// Links and polled devices.
    pub poll: Handle,
    /// Streams: no driver shares it.
    pub compute: Handle,
}

/// What the gateway takes from outside.
#[derive(Clone)]
pub struct Surroundings {
    /// The time of day.
    pub clock: SharedClock,
    /// Environment variables and files, for secrets.
    pub environment: Arc<dyn Environment + Send + Sync>,
    /// Where polled devices and streams run.
    pub crews: Crews,
}

/// Bytes that are gathered before the store commits without being asked.
const COMMIT_BYTES: usize = 256 << 10;

/// redb's page cache; its default is 1 GiB.
const STORE_CACHE_BYTES: usize = 8 << 20;

pub(crate) fn store_options(document: &Document, around: &Surroundings) -> StoreOptions {
    StoreOptions {
        dir: PathBuf::from(&document.store.path),
        commit_bytes: COMMIT_BYTES,
        queue: document.limits.store_queue as usize,
        cache_bytes: STORE_CACHE_BYTES,
        max_bytes: document.store.max_bytes.get(),
        ring_bytes: document.store.effective_ring().get(),
        gateway: document.gateway.name.to_string(),
        impatient: false,
        epoch_hint: u64::try_from(around.clock.now() / 1_000_000).unwrap_or(0),
        restored: false,
        forget_stream: None,
    }
}

pub(crate) fn layout(document: &Document) -> Layout {
    let readers = |table: &str| -> Vec<Arc<str>> {
        chain::readers_of(document, table).map(|stream| stream.name.as_str().into()).collect()
    };
    let tables = document.tables().into_iter().map(|table| TableLayout {
        readers: readers(&table.name),
        name: table.name.as_str().into(),
        history_us: table.history.map(Span::micros),
    });
    // A stream has a log where others read it; its rows stay until they have passed them.
    let streams = document.streams.iter().map(|stream| TableLayout {
        readers: readers(stream.name.as_str()),
        name: stream.name.as_str().into(),
        history_us: None,
    });
    let tables = tables.chain(streams.filter(|stream| !stream.readers.is_empty()));
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
        priority: match sink.store.priority {
            Priority::Low => -1,
            Priority::Normal => 0,
            Priority::High => 1,
        },
    });
    Layout { tables: tables.collect(), sinks: sinks.collect() }
}

/// What two configurations want of the store together, where `after` may be undone: the more of both, so that
/// nothing goes which the one before would have kept.
pub(crate) fn layout_of_both(before: &Layout, after: Layout) -> Layout {
    let Layout { mut tables, mut sinks } = after;
    for old in &before.tables {
        let Some(table) = tables.iter_mut().find(|table| table.name == old.name) else {
            tables.push(old.clone());
            continue;
        };
        let missing = old.readers.iter().filter(|reader| !table.readers.contains(reader));
        let missing: Vec<Arc<str>> = missing.cloned().collect();
        table.readers.extend(missing);
        table.history_us = table.history_us.max(old.history_us);
    }
    for old in &before.sinks {
        let Some(sink) = sinks.iter_mut().find(|sink| sink.name == old.name) else {
            sinks.push(old.clone());
            continue;
        };
        sink.max_bytes = sink.max_bytes.max(old.max_bytes);
        // None is no bound.
        sink.max_age_us = sink.max_age_us.zip(old.max_age_us).map(|(new, old)| new.max(old));
        sink.max_records = sink.max_records.zip(old.max_records).map(|(new, old)| new.max(old));
    }
    Layout { tables, sinks }
}

/// What the engine needs to know of a stream; also used by `check`, `explain` and `test`. `streams`
/// are the columns of those that others read.
pub fn stream_spec(
    document: &Document,
    stream: &StreamSection,
    event_time: EventTime,
    streams: &StreamTables,
) -> StreamSpec {
    let devices = document.tables();
    let mut spec = StreamSpec {
        name: stream.name.to_string(),
        tables: Vec::new(),
        side_tables: 0,
        latest: Vec::new(),
        sources: Vec::new(),
        window: stream.window.as_ref().map(|kind| window(kind, document)),
        allowed_lateness: stream.allowed_lateness.micros(),
        idle_after: micros(stream.effective_idle_after(document)),
        lag: micros(stream.lag(document)),
        future: stream.effective_max_future().map(|span| FutureRule {
            max: span.micros(),
            restamp: stream.future == Future::Restamp,
        }),
        keep_failed: stream.on_error.is_some(),
        memory_max: document.stream_memory().len(),
    };
    let schema = |name: &str| match devices.iter().find(|table| table.name == name) {
        Some(table) => Some(table_schema(table, event_time)),
        None => streams.get(name).map(|columns| stream_schema(name, columns)),
    };
    for name in &stream.from {
        let Some(table) = schema(name.as_str()) else {
            continue;
        };
        let at = spec.tables.len();
        match devices.iter().find(|table| table.name == name.as_str()) {
            Some(known) => {
                let names = known.devices.iter().map(|d| document.devices[*d].name.to_string());
                spec.sources.extend(names.map(|name| (at, name)));
            }
            // A stream that gives its rows devices of its own is known when they come.
            None if !streams.has_devices(name.as_str()) => {
                spec.sources.push((at, name.to_string()));
            }
            None => {}
        }
        spec.tables.push(table);
    }
    for name in chain::latest(&stream.sql) {
        let Some(of) = document.latest_of(&name) else {
            continue;
        };
        let known = spec.tables.iter().position(|table| table.name == of.table);
        let table = match (known, schema(&of.table)) {
            (Some(at), _) => at,
            (None, Some(table)) => {
                spec.side_tables += 1;
                spec.tables.push(table);
                spec.tables.len() - 1
            }
            (None, None) => continue,
        };
        spec.latest.push(Latest { name, table, device: of.device });
    }
    spec
}

/// The tables that a stream's queue brings rows of, in the order of its specification.
pub(crate) fn tables_of(spec: &StreamSpec) -> Vec<Arc<str>> {
    spec.tables.iter().map(|table| table.name.as_str().into()).collect()
}

/// The lookups of a configuration, without rows.
pub fn lookups(document: &Document) -> Vec<Arc<Lookup>> {
    let lookup = |l: &LookupSection| Arc::new(Lookup::new(l.name.as_str(), l.schema()));
    document.lookups.iter().map(lookup).collect()
}

fn stream_schema(name: &str, columns: &SchemaRef) -> TableSchema {
    TableSchema { name: name.to_owned(), schema: columns.clone(), time_column: "time".to_owned() }
}

/// The window of days by the calendar of a place, where there is one.
fn days(zone: Option<&str>, size: i64, offset: i64, step: Option<i64>) -> Option<Window> {
    let days = Calendar::new(Zone::named(zone?)?, size, offset)?;
    Some(Window::Calendar { days, step })
}

/// A window as the engine knows it.
fn window(kind: &WindowConfig, document: &Document) -> Window {
    match kind {
        WindowConfig::Tumbling(t) => {
            let (size, offset) = (t.size.micros(), t.offset.micros());
            days(kind.zone(document), size, offset, None)
                .unwrap_or(Window::Tumbling { size, offset })
        }
        WindowConfig::Hopping(h) => Window::Hopping {
            size: h.size.micros(),
            step: h.step.micros(),
            offset: h.offset.micros(),
        },
        WindowConfig::Cumulative(c) => {
            let (size, step) = (c.size.micros(), c.step.micros());
            days(kind.zone(document), size, 0, Some(step))
                .unwrap_or(Window::Cumulative { size, step })
        }
        WindowConfig::Sliding(s) => {
            Window::Sliding { size: s.size.micros(), delay: s.delay.micros() }
        }
        WindowConfig::Session(s) => Window::Session {
            gap: s.gap.micros(),
            length_max: s.length_max.map(Span::micros),
            by: s.by.clone(),
        },
        WindowConfig::Count(c) => Window::Count { rows: c.rows, step: c.effective_step() },
        WindowConfig::State(s) => Window::State {
            begin: s.begin.clone(),
            end: s.end.clone(),
            by: s.by.clone(),
            length_max: s.length_max.micros(),
        },
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

impl Surroundings {
    /// Makes a device's driver; an error is a fault of its configuration.
    pub(crate) fn south(
        &self,
        document: &Document,
        device: &Device,
        group: usize,
        bus: Option<&BusHandle>,
    ) -> Result<Box<dyn South>, Fault> {
        let name = device.name.as_str();
        Ok(match &device.driver {
            DeviceDriver::Modbus(modbus) => {
                let bus = bus
                    .cloned()
                    .ok_or_else(|| Fault::Config(format!("there is no link `{}`", modbus.link)))?;
                Box::new(ModbusSouth::new(device.part_name(group), modbus.group(group), bus)?)
            }
            DeviceDriver::Mqtt(feed) => {
                let password = self.secret(feed.password.as_ref())?;
                let id = client_id(document, name);
                Box::new(MqttSouth::new(feed.clone(), id, password)?)
            }
            DeviceDriver::Generate(generate) => Box::new(GenerateSouth::new(generate.clone())),
            DeviceDriver::Serial(serial) => Box::new(SerialSouth::new(serial.clone())?),
            DeviceDriver::Replay(replay) => Box::new(ReplaySouth::new(replay.clone())?),
        })
    }

    /// Makes a sink's driver; an error is a fault of its configuration.
    pub(crate) fn north(
        &self,
        document: &Document,
        sink: &SinkSection,
    ) -> Result<Box<dyn North>, Fault> {
        Ok(match &sink.driver {
            SinkDriver::Mqtt(mqtt) => {
                let password = self.secret(mqtt.password.as_ref())?;
                let id = client_id(document, sink.name.as_str());
                let gateway = document.gateway.name.as_str();
                let north = MqttNorth::new(mqtt.clone(), id, gateway, password)?;
                Box::new(north.with_replay_topic(sink.replay.topic.clone()))
            }
            SinkDriver::File(file) => Box::new(FileNorth::new(file.clone())),
            SinkDriver::Stdout(stdout) => Box::new(StdoutNorth::new(stdout.clone())),
        })
    }

    fn secret(&self, secret: Option<&Secret>) -> Result<Option<String>, Fault> {
        secret
            .map(|s| resolve_secret(s, &*self.environment))
            .transpose()
            .map_err(|error| Fault::Config(error.to_string()))
    }

    /// The secret that a part's driver uses, to tell whether it has changed; none where there is
    /// none, or where it cannot be read, which the driver then tells.
    pub(crate) fn current_secret(&self, secret: Option<&Secret>) -> Option<String> {
        self.secret(secret).ok().flatten()
    }
}

/// The link that a device is reached over.
pub(crate) fn link_of(device: &Device) -> Option<&str> {
    match &device.driver {
        DeviceDriver::Modbus(modbus) => Some(modbus.link.as_str()),
        DeviceDriver::Mqtt(_)
        | DeviceDriver::Generate(_)
        | DeviceDriver::Serial(_)
        | DeviceDriver::Replay(_) => None,
    }
}

/// The secret of a device's driver.
pub(crate) fn device_secret(device: &Device) -> Option<&Secret> {
    match &device.driver {
        DeviceDriver::Mqtt(feed) => feed.password.as_ref(),
        DeviceDriver::Modbus(_)
        | DeviceDriver::Generate(_)
        | DeviceDriver::Serial(_)
        | DeviceDriver::Replay(_) => None,
    }
}

/// The secret of a sink's driver.
pub(crate) fn sink_secret(sink: &SinkSection) -> Option<&Secret> {
    match &sink.driver {
        SinkDriver::Mqtt(mqtt) => mqtt.password.as_ref(),
        SinkDriver::File(_) | SinkDriver::Stdout(_) => None,
    }
}

/// What a device does when its table's queue is full.
pub(crate) fn when_busy(device: &Device) -> WhenBusy {
    match device.driver {
        // Neither waits for us.
        DeviceDriver::Modbus(_) | DeviceDriver::Serial(_) => WhenBusy::Drop,
        DeviceDriver::Mqtt(_) | DeviceDriver::Generate(_) | DeviceDriver::Replay(_) => {
            WhenBusy::Wait
        }
    }
}

/// A device's pauses between two attempts to connect.
pub(crate) fn device_pauses(device: &Device) -> (Duration, Duration) {
    match &device.driver {
        DeviceDriver::Mqtt(feed) => pauses(feed.backoff_min, feed.backoff_max),
        DeviceDriver::Serial(serial) => pauses(serial.backoff_min, serial.backoff_max),
        DeviceDriver::Modbus(_) | DeviceDriver::Generate(_) | DeviceDriver::Replay(_) => {
            DEFAULT_PAUSES
        }
    }
}

/// A sink's pauses between two attempts to connect.
pub(crate) fn sink_pauses(sink: &SinkSection) -> (Duration, Duration) {
    match &sink.driver {
        SinkDriver::Mqtt(mqtt) => pauses(mqtt.backoff_min, mqtt.backoff_max),
        SinkDriver::File(_) | SinkDriver::Stdout(_) => DEFAULT_PAUSES,
    }
}

/// A link's owner under its supervisor.
pub(crate) struct LinkPart {
    /// The owner.
    pub(crate) owner: BusOwner,
    /// Ends it, whether or not devices use it.
    pub(crate) stop: CancellationToken,
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

fn client_id(document: &Document, part: &str) -> String {
    format!("tidegate-{}-{part}", document.gateway.name)
}

/// How a sink delivers what waited for it.
pub(crate) fn plan(sink: &SinkSection) -> Plan {
    Plan {
        rate: sink.replay.rate.map(Rate::per_second),
        share: sink.replay.share,
        newest: sink.replay.order == ReplayOrder::Newest,
    }
}

/// What makes payloads of a sink's records.
pub(crate) fn writer(document: &Document, sink: &SinkSection) -> Writer {
    Writer {
        gateway: document.gateway.name.to_string(),
        encode: encode(&sink.driver),
        mark: sink.replay.mark == ReplayMark::Replayed,
    }
}

/// How a sink's records are written.
pub(crate) fn encode(driver: &SinkDriver) -> Encode {
    match driver {
        SinkDriver::Mqtt(sink) => sink.encode.clone(),
        SinkDriver::File(sink) => sink.encode.clone(),
        SinkDriver::Stdout(sink) => sink.encode.clone(),
    }
}

/// Where a stream's rows go.
pub(crate) fn routes(document: &Document, stream: &StreamSection) -> Routes {
    let targets = |routes: &[Route]| -> Vec<Target> {
        let target = |route: &Route| {
            let sink = document.sinks.iter().find(|sink| sink.name == route.sink)?;
            Some(Target {
                sink: sink.name.as_str().into(),
                encode: encode(&sink.driver),
                results: ledger::results(sink.name.as_str()),
                when: route.when.clone(),
            })
        };
        routes.iter().filter_map(target).collect()
    };
    Routes {
        results: targets(&stream.to),
        late: targets(stream.late.as_ref().map_or(&[], |late| &late.to)),
        failed: targets(stream.on_error.as_ref().map_or(&[], |failed| &failed.to)),
    }
}
