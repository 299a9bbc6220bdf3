//! What status and metrics show: read from the running parts each time it is asked for.

mod clock;
mod hops;
mod losses;
pub mod store;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_config::{Document, EventTime, Severity, Window};
use tidegate_drivers::south::modbus::Bus;
use tidegate_drivers::stats::{LinkState, Stats};
use tidegate_engine::store::{Recovery, Store};
use tidegate_engine::{Counts, Lookup};
use tidegate_web_ui as web;
use tokio::sync::watch;

use crate::clock::{ClockWait, SharedClock, boot_id};
use crate::lookup::Loads;
use crate::progress::{Pulse, Watched};
use crate::pump::{Asked, SinkCounts};
use crate::source::SourceCounts;
use crate::stream::StreamCounts;
use crate::supervisor::{Health, State};
use hops::Before;
use losses::Losses;
use store::alarms;

/// A device as status sees it.
#[derive(Clone)]
pub struct DeviceView {
    /// Its name.
    pub name: String,
    /// Its table's name.
    pub table: String,
    /// Its driver's name.
    pub driver: &'static str,
    /// Its supervisor's view.
    pub health: Arc<Health>,
    /// Its driver's view; none where the driver could not be made.
    pub stats: Option<Arc<Stats>>,
    /// Its ledger.
    pub counts: Arc<SourceCounts>,
    /// Its beats, and the time between two of them.
    pub pulse: (Arc<Pulse>, Duration),
}

/// A link as status sees it.
#[derive(Clone)]
pub struct LinkView {
    /// Its name.
    pub name: String,
    /// How it reaches its devices.
    pub bus: Bus,
    /// Its supervisor's view.
    pub health: Arc<Health>,
    /// Its owner's view.
    pub stats: Arc<Stats>,
}

/// A stream as status sees it.
#[derive(Clone)]
pub struct StreamView {
    /// Its name.
    pub name: String,
    /// Its window, where it has one.
    pub window: Option<Window>,
    /// The time zone whose days that is, where it is of days.
    pub zone: Option<String>,
    /// Which time decides.
    pub event_time: EventTime,
    /// The durable counter of results that no route took.
    pub unrouted: Arc<str>,
    /// The durable counter of rows that were gone before it read them.
    pub missed: Arc<str>,
    /// Its supervisor's view.
    pub health: Arc<Health>,
    /// What it counts itself.
    pub counts: Arc<StreamCounts>,
    /// What the engine counts.
    pub engine: watch::Receiver<Option<Counts>>,
    /// Batches that may wait for it.
    pub queue_capacity: u32,
    /// Somebody stopped it.
    pub stopped: bool,
}

/// A lookup as status sees it.
#[derive(Clone)]
pub struct LookupView {
    /// Its name.
    pub name: String,
    /// Kind of its source.
    pub source: &'static str,
    /// Its rows.
    pub lookup: Arc<Lookup>,
    /// Its supervisor's view.
    pub health: Arc<Health>,
    /// What became of its loads.
    pub loads: Arc<Loads>,
}

/// A sink as status sees it.
#[derive(Clone)]
pub struct SinkView {
    /// Its name.
    pub name: String,
    /// Its driver's name.
    pub driver: &'static str,
    /// Bytes that may wait for it.
    pub bytes_max: u64,
    /// Its supervisor's view.
    pub health: Arc<Health>,
    /// Its driver's view; none where the driver could not be made.
    pub stats: Option<Arc<Stats>>,
    /// What it has delivered.
    pub counts: Arc<SinkCounts>,
    /// What somebody asks of it.
    pub asked: watch::Sender<Asked>,
    /// Its beats.
    pub pulse: Arc<Pulse>,
}

/// What status can see of the running configuration. Replaced as a whole when it changes.
#[derive(Clone, Default)]
pub struct Views {
    /// The configuration itself; none before the first part has started.
    pub document: Option<Arc<Document>>,
    /// Bytes that the store may hold.
    pub store_bytes_max: u64,
    /// Bytes that may be written in a day before there is an alarm.
    pub daily_writes: Option<u64>,
    /// The names of all tables.
    pub tables: Vec<String>,
    /// All devices.
    pub devices: Vec<DeviceView>,
    /// All links.
    pub links: Vec<LinkView>,
    /// All lookups.
    pub lookups: Vec<LookupView>,
    /// All streams.
    pub streams: Vec<StreamView>,
    /// All sinks.
    pub sinks: Vec<SinkView>,
}

impl Views {
    /// The names of all parts that are shown, such as `device press`.
    pub fn names(&self) -> Vec<String> {
        let devices = self.devices.iter().map(|d| format!("device {}", d.name));
        let links = self.links.iter().map(|l| format!("link {}", l.name));
        let streams = self.streams.iter().map(|s| format!("stream {}", s.name));
        let sinks = self.sinks.iter().map(|s| format!("sink {}", s.name));
        devices.chain(links).chain(streams).chain(sinks).collect()
    }
}

/// What is known of the configuration itself.
#[derive(Clone, Default)]
pub struct ConfigView {
    /// What is wrong or doubtful: warnings of the configuration that runs, or everything about
    /// one that was refused since.
    pub problems: Vec<web::ConfigProblem>,
    /// Which configuration runs, and what became of the last change.
    pub config: web::ConfigStatus,
}

/// Everything that status can see.
pub struct GatewayStatus {
    /// The gateway's name.
    pub name: String,
    /// When the process started, microseconds since 1970 UTC.
    pub started: i64,
    /// The same on the monotonic clock.
    pub started_at: tokio::time::Instant,
    /// The time of day.
    pub clock: SharedClock,
    /// Whether rows wait for it.
    pub wait: Arc<ClockWait>,
    /// The store.
    pub store: Store,
    /// The ways to the status page and to the control socket.
    pub entrances: [Arc<web::Entrance>; 2],
    recovery: Recovery,
    boot_id: Option<String>,
    before: Before,
    losses: Losses,
    views: Mutex<Arc<Views>>,
    config: Mutex<Arc<ConfigView>>,
}

impl web::Console for GatewayStatus {
    fn status(&self) -> web::Status {
        let now = self.clock.now();
        let (views, config) = (self.views(), self.config());
        let store = self.store_status(&views);
        web::Status {
            gateway: web::GatewayStatus {
                name: self.name.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                epoch: self.store.epoch(),
                boot_id: self.boot_id.clone(),
                started: rfc3339(self.started),
                uptime_s: self.started_at.elapsed().as_secs_f64(),
                time: rfc3339(now),
                clock: self.clock.trust().name().to_owned(),
            },
            clock_wait: clock::wait(&self.wait, &self.store),
            config: config.config.clone(),
            config_problems: config.problems.clone(),
            links: views.links.iter().map(link).collect(),
            devices: views.devices.iter().map(device).collect(),
            lookups: views.lookups.iter().map(|l| lookup(l, now)).collect(),
            streams: views.streams.iter().map(|s| self.stream(s, now)).collect(),
            sinks: views.sinks.iter().map(|sink| self.sink(sink, now)).collect(),
            alarms: clock::alarm(self.clock.trust(), self.wait.left())
                .into_iter()
                .chain(alarms(&store, self.store.stats().failed))
                .chain(views.lookups.iter().filter_map(lookup_alarm))
                .chain(views.streams.iter().filter(|s| s.stopped).map(stopped))
                .chain(views.sinks.iter().flat_map(|sink| self.sink_alarms(sink)))
                .chain(self.entrances.iter().filter_map(|entrance| entrance.alarm()))
                .collect(),
            store,
            ledger: self.ledger(&views),
            ledger_since_start: self.ledger_since_start(&views),
        }
    }

    fn ready(&self) -> web::Readiness {
        let mut reasons = Vec::new();
        let mut add = |part: String, reason: String| reasons.push(web::Reason { part, reason });
        let store = self.store.stats();
        if store.failed {
            let reason = store.last_error.unwrap_or_else(|| "failed".to_owned());
            add("store".to_owned(), reason);
        } else if let Some(reason) = store.stalled {
            add("store".to_owned(), reason);
        }
        if self.config().config.origin == web::ConfigOrigin::LastGood {
            let reason = "the configuration was refused; the last good one runs";
            add("configuration".to_owned(), reason.to_owned());
        }
        for stream in &self.views().streams {
            // One that somebody stopped is an alarm, and no reason to restart anything.
            if stream.health.state() != State::Running && !stream.stopped {
                let reason = stream.health.last_error();
                let reason = reason.unwrap_or_else(|| stream.health.state().name().to_owned());
                add(format!("stream {}", stream.name), reason);
            }
        }
        for sink in &self.views().sinks {
            if sink.health.state() == State::Failed {
                let reason = sink.health.last_error().unwrap_or_else(|| "failed".to_owned());
                add(format!("sink {}", sink.name), reason);
            }
        }
        web::Readiness { reasons }
    }
}

impl GatewayStatus {
    /// Status of a gateway without parts, whose store was opened with `recovery`.
    pub fn new(
        name: &str,
        (clock, wait): (SharedClock, Arc<ClockWait>),
        store: Store,
        recovery: Recovery,
    ) -> Self {
        Self {
            name: name.to_owned(),
            started: clock.now(),
            started_at: tokio::time::Instant::now(),
            clock,
            wait,
            entrances: ["web", "control socket"].map(|part| Arc::new(web::Entrance::new(part))),
            before: Before::new(&store),
            losses: Losses::new(
                store
                    .sinks()
                    .iter()
                    .map(|sink| (sink.to_string(), losses::count(&store.backlog(sink)))),
            ),
            store,
            recovery,
            boot_id: boot_id(),
            views: Mutex::default(),
            config: Mutex::default(),
        }
    }

    /// The parts as they are now.
    pub fn views(&self) -> Arc<Views> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shows other parts.
    pub fn show(&self, views: Views) {
        *self.views.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(views);
    }

    /// What is known of the configuration.
    pub fn config(&self) -> Arc<ConfigView> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shows another state of the configuration.
    pub fn show_config(&self, config: ConfigView) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// The parts that must make progress: polls and deliveries.
    pub fn watched(&self) -> Vec<Watched> {
        let views = self.views();
        let devices = views.devices.iter().map(|device| Watched {
            name: format!("device {}", device.name),
            pulse: device.pulse.0.clone(),
            health: device.health.clone(),
            stats: device.stats.clone(),
            allowance: device.pulse.1,
        });
        let sinks = views.sinks.iter().map(|sink| Watched {
            name: format!("sink {}", sink.name),
            pulse: sink.pulse.clone(),
            health: sink.health.clone(),
            stats: sink.stats.clone(),
            allowance: Duration::ZERO,
        });
        devices.chain(sinks).collect()
    }

    fn stream(&self, view: &StreamView, now: i64) -> web::StreamStatus {
        let (missed, unrouted) = (self.store.count(&view.missed), self.store.count(&view.unrouted));
        web::StreamStatus { missed, unrouted, ..stream(view, now) }
    }

    fn sink(&self, sink: &SinkView, now: i64) -> web::SinkStatus {
        let backlog = self.store.backlog(&sink.name);
        web::SinkStatus {
            name: sink.name.clone(),
            driver: sink.driver.to_owned(),
            state: part_state(&sink.health, sink.stats.as_deref()),
            paused: backlog.paused,
            delivered: sink.counts.delivered.load(Ordering::Relaxed),
            replayed: sink.counts.replayed.load(Ordering::Relaxed),
            buffered_records: backlog.records,
            buffered_bytes: backlog.bytes,
            buffered_bytes_max: sink.bytes_max,
            oldest_age_s: backlog.oldest_created.map(|at| seconds(now - at).max(0.0)),
            dropped: hops::dropped(&backlog),
            rejected: backlog.rejected,
            letters: backlog.letters,
            letter_bytes: backlog.letter_bytes,
            letters_dropped: backlog.letters_dropped,
            gaps: backlog.gaps,
            lanes: backlog.lanes.map(store::lanes),
            last_error: last_error(&sink.health, sink.stats.as_deref()),
            restarts: sink.health.restarts(),
            counters: counters(sink.stats.as_deref()),
        }
    }
}

/// The problems of a configuration, as status shows them.
pub fn problems(problems: &tidegate_config::Problems) -> Vec<web::ConfigProblem> {
    problems
        .iter()
        .map(|p| web::ConfigProblem {
            code: p.code.to_string(),
            severity: match p.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            }
            .to_owned(),
            path: p.path.clone(),
            span: format!("{}:{}:{}", p.file, p.line, p.column),
            message: p.message.clone(),
            hint: p.hint.clone(),
        })
        .collect()
}

fn link(link: &LinkView) -> web::LinkStatus {
    web::LinkStatus {
        name: link.name.clone(),
        driver: link.bus.kind().to_owned(),
        state: part_state(&link.health, Some(&link.stats)),
        last_error: last_error(&link.health, Some(&link.stats)),
        restarts: link.health.restarts(),
        counters: counters(Some(&link.stats)),
    }
}

fn device(device: &DeviceView) -> web::DeviceStatus {
    let ledger = device.counts.get();
    let uncertain = ledger.read.saturating_sub(ledger.good + ledger.bad);
    web::DeviceStatus {
        name: device.name.clone(),
        table: device.table.clone(),
        driver: device.driver.to_owned(),
        state: part_state(&device.health, device.stats.as_deref()),
        last_error: last_error(&device.health, device.stats.as_deref()),
        restarts: device.health.restarts(),
        rows: web::RowsByQuality { good: ledger.good, uncertain, bad: ledger.bad },
        last_row: ledger.last_row.map(|(micros, _)| rfc3339(micros)),
        last_row_age_s: ledger.last_row.map(|(_, at)| at.elapsed().as_secs_f64()),
        counters: counters(device.stats.as_deref()),
        learnt_holes: device.stats.as_deref().map(Stats::notes).unwrap_or_default(),
    }
}

fn lookup(lookup: &LookupView, now: i64) -> web::LookupStatus {
    let loaded = lookup.loads.get();
    let rows = lookup.lookup.rows();
    web::LookupStatus {
        name: lookup.name.clone(),
        source: lookup.source.to_owned(),
        state: match (lookup.health.state(), &loaded.failed, loaded.at) {
            (State::Failed, ..) => web::PartState::Failed,
            (State::Stopped, ..) => web::PartState::Stopped,
            (State::Waiting, ..) | (_, Some(_), _) => web::PartState::Down,
            (_, None, None) => web::PartState::Connecting,
            (_, None, Some(_)) => web::PartState::Up,
        },
        rows: rows.as_ref().map_or(0, |rows| rows.num_rows() as u64),
        bytes: rows.as_ref().map_or(0, |rows| rows.get_array_memory_size() as u64),
        loaded: loaded.at.map(rfc3339),
        age_s: loaded.at.map(|at| seconds(now - at).max(0.0)),
        kept: loaded.kept,
        loads: loaded.loads,
        failures: loaded.failures,
        last_error: loaded.failed,
    }
}

/// A lookup whose last load failed: SQL goes on with rows that grow old.
fn lookup_alarm(lookup: &LookupView) -> Option<web::Reason> {
    let failed = lookup.loads.get().failed?;
    let reason = format!("not loaded: {failed}");
    Some(web::Reason { part: format!("lookup {}", lookup.name), reason })
}

fn stopped(stream: &StreamView) -> web::Reason {
    let reason = "stopped by request: its tables keep rows for it until it is started";
    web::Reason { part: format!("stream {}", stream.name), reason: reason.to_owned() }
}

fn stream(stream: &StreamView, now: i64) -> web::StreamStatus {
    let engine = stream.engine.borrow().unwrap_or_default();
    web::StreamStatus {
        name: stream.name.clone(),
        state: match stream.health.state() {
            State::Starting => web::PartState::Connecting,
            State::Running => web::PartState::Up,
            State::Waiting => web::PartState::Down,
            State::Failed => web::PartState::Failed,
            State::Stopped => web::PartState::Stopped,
        },
        mode: match &stream.window {
            None => "stateless",
            Some(_) if stream.counts.incremental.load(Ordering::Relaxed) => "incremental",
            Some(_) => "recompute",
        }
        .to_owned(),
        window: stream.window.as_ref().map(|window| match &stream.zone {
            Some(zone) => format!("{} in {zone}", window.summary()),
            None => window.summary(),
        }),
        event_time: match stream.event_time {
            EventTime::Source => "source",
            EventTime::Arrival => "arrival",
        }
        .to_owned(),
        accepted: engine.accepted,
        windowed: engine.windowed,
        late: engine.late,
        future: engine.future,
        restamped: engine.restamped,
        filtered: engine.filtered,
        failed: engine.failed,
        dropped: engine.dropped,
        open_rows: engine.open_rows,
        open_windows: engine.open_windows,
        results: engine.results,
        watermark: engine.watermark.map(rfc3339),
        watermark_lag_s: engine.watermark.map(|at| seconds(now - at)),
        errors: stream.counts.errors.load(Ordering::Relaxed),
        last_error: stream.health.last_error(),
        restarts: stream.health.restarts(),
        plans: stream.counts.plans.load(Ordering::Relaxed),
        queue_len: stream.counts.queue_len.load(Ordering::Relaxed),
        queue_capacity: u64::from(stream.queue_capacity),
        ..web::StreamStatus::default()
    }
}

/// A part's state from its supervisor and its driver: the supervisor's word counts where the part
/// does not run.
pub fn part_state(health: &Health, stats: Option<&Stats>) -> web::PartState {
    match health.state() {
        State::Failed => web::PartState::Failed,
        State::Stopped => web::PartState::Stopped,
        State::Waiting => web::PartState::Down,
        State::Starting | State::Running => match stats.map(Stats::state) {
            Some(LinkState::Up) => web::PartState::Up,
            Some(LinkState::Down) => web::PartState::Down,
            Some(LinkState::Connecting) | None => web::PartState::Connecting,
        },
    }
}

fn last_error(health: &Health, stats: Option<&Stats>) -> Option<String> {
    stats.and_then(Stats::last_error).or_else(|| health.last_error())
}

fn counters(stats: Option<&Stats>) -> BTreeMap<String, u64> {
    stats.map(|s| s.counters().map(|(name, n)| (name.to_owned(), n)).collect()).unwrap_or_default()
}

fn seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}

/// Microseconds since 1970 UTC as RFC 3339 text.
pub fn rfc3339(micros: i64) -> String {
    match arrow::temporal_conversions::timestamp_us_to_datetime(micros) {
        Some(time) => format!("{}Z", time.format("%Y-%m-%dT%H:%M:%S%.6f")),
        None => format!("{micros} us since 1970"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_utc_with_microseconds() {
        // The first event of field case A59, as `date -u -d @1541152486` gives it.
        assert_eq!(rfc3339(1_541_152_486_000_000), "2018-11-02T09:54:46.000000Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59.999999Z");
    }
}
