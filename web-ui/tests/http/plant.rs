//! A gateway that exists only as numbers, with a name that no configuration would allow: what a
//! far side or a driver says may hold anything.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_web_ui::{
    Answer, Applied, ApplyOutcome, ClockTable, ClockWait, ConfigProblem, ConfigStatus, Console,
    Control, DeviceStatus, GatewayStatus, Ledger, LinkStatus, LogLevels, LogLevelsWanted,
    LookupStatus, PartState, Readiness, Reason, RowsByQuality, SinkHop, SinkLanes, SinkStatus,
    SourceHop, Status, StoreStatus, StreamHop, StreamStatus,
};

/// A sink's name with all that a label value must escape.
pub(crate) const HOSTILE: &str = "a\"b\\c\nd} 1";

pub(crate) struct Plant {
    pub(crate) readiness: Mutex<Readiness>,
    pub(crate) stops: AtomicUsize,
}

impl Plant {
    pub(crate) fn new(reasons: Vec<Reason>) -> Self {
        Self { readiness: Mutex::new(Readiness { reasons }), stops: AtomicUsize::new(0) }
    }
}

impl Console for Plant {
    fn status(&self) -> Status {
        status()
    }

    fn ready(&self) -> Readiness {
        self.readiness.lock().unwrap().clone()
    }
}

impl Control for Plant {
    fn stop(&self) {
        self.stops.fetch_add(1, Ordering::SeqCst);
    }

    /// Answers by the length of the text.
    fn apply(&self, name: String, text: String) -> Answer<Applied> {
        let outcome = match text.len() {
            0 => ApplyOutcome::Unchanged,
            1..100 => ApplyOutcome::Applied,
            100..1000 => ApplyOutcome::Refused,
            1000..10_000 => ApplyOutcome::NotNow,
            _ => ApplyOutcome::RolledBack,
        };
        let detail = format!("{name}: {} bytes", text.len());
        Box::pin(std::future::ready(Applied { outcome, detail, ..Applied::default() }))
    }

    fn log_levels(&self) -> LogLevels {
        LogLevels { levels: "info".into(), resets_in_s: None }
    }

    fn set_log_levels(&self, wanted: &LogLevelsWanted) -> Result<LogLevels, String> {
        if wanted.levels.contains('!') {
            return Err("no such level".into());
        }
        Ok(LogLevels { levels: wanted.levels.clone(), resets_in_s: Some(wanted.for_s) })
    }
}

fn counts<const N: usize>(counts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    counts.into_iter().map(|(name, n)| (name.to_owned(), n)).collect()
}

pub(crate) fn status() -> Status {
    Status {
        gateway: GatewayStatus {
            name: "press-shop-07".into(),
            version: "0.1.0".into(),
            epoch: 3,
            boot_id: Some("6f1c7a52-9d2f-4b53-8f0e-1d5c2f7a9b10".into()),
            started: "2026-11-02T07:00:00.000000Z".into(),
            uptime_s: 86400.5,
            time: "2026-11-03T07:00:00.500000Z".into(),
            clock: "certain".into(),
        },
        clock_wait: ClockWait {
            left_s: Some(90.5),
            rebased_by_s: None,
            tables: vec![ClockTable { table: "press".into(), waiting: 7, rebased: 30, doubted: 2 }],
        },
        config: ConfigStatus { revision: "c0ffee".into(), ..ConfigStatus::default() },
        config_problems: vec![ConfigProblem {
            code: "E0203".into(),
            severity: "warning".into(),
            path: "links[0]".into(),
            span: "press-shop.yaml:9:5".into(),
            message: "the bus is busy for 85 % of the poll interval".into(),
            hint: None,
        }],
        links: vec![LinkStatus {
            name: "press_plc".into(),
            driver: "tcp".into(),
            state: PartState::Up,
            counters: counts([("requests", 120), ("bytes_in", 4096), ("bytes_out", 1440)]),
            ..LinkStatus::default()
        }],
        devices: vec![device()],
        streams: vec![stream()],
        sinks: vec![sink()],
        lookups: vec![LookupStatus {
            name: "limits".into(),
            source: "csv".into(),
            state: PartState::Down,
            rows: 3,
            bytes: 400,
            loaded: Some("2026-11-29T10:00:00.000000Z".into()),
            age_s: Some(12.5),
            kept: true,
            loads: 2,
            failures: 1,
            last_error: Some("limits.csv: no such file".into()),
        }],
        store: StoreStatus {
            commits: 86_400,
            file_bytes: 1_048_576,
            file_bytes_max: 536_870_912,
            bytes_committed: 100_000_000,
            bytes_written: 150_000_000,
            write_amplification: Some(1.5),
            written_today: 2_000_000_000,
            daily_writes: Some(1_000_000_000),
            queue_len: 64,
            queue_capacity: 256,
            stalled: Some("no room".into()),
            ..StoreStatus::default()
        },
        alarms: vec![Reason { part: "store".into(), reason: "no room".into() }],
        ledger: ledger(),
        ledger_since_start: Ledger::default(),
    }
}

fn device() -> DeviceStatus {
    DeviceStatus {
        name: "main_meter".into(),
        table: "meters".into(),
        driver: "modbus".into(),
        state: PartState::Down,
        last_error: Some("exception 02 at input register 40".into()),
        restarts: 1,
        rows: RowsByQuality { good: 118, uncertain: 1, bad: 1 },
        last_row: Some("2026-11-03T07:00:00.250000Z".into()),
        last_row_age_s: Some(0.25),
        counters: counts([("exceptions", 1)]),
        learnt_holes: vec!["input 40..44".into()],
    }
}

fn stream() -> StreamStatus {
    StreamStatus {
        name: "energy_10s".into(),
        state: PartState::Up,
        mode: "recompute".into(),
        window: Some("tumbling 10s".into()),
        accepted: 120,
        windowed: 110,
        late: 2,
        future: 0,
        restamped: 3,
        filtered: 0,
        failed: 0,
        dropped: 0,
        open_rows: 8,
        open_windows: 1,
        missed: 7,
        results: 11,
        unrouted: 4,
        watermark: Some("2026-11-03T06:59:58.250000Z".into()),
        watermark_lag_s: Some(2.25),
        plans: 1,
        queue_len: 16,
        queue_capacity: 64,
        ..StreamStatus::default()
    }
}

fn sink() -> SinkStatus {
    SinkStatus {
        name: HOSTILE.into(),
        driver: "mqtt".into(),
        state: PartState::Connecting,
        paused: true,
        delivered: 5,
        replayed: 4,
        buffered_records: 2,
        buffered_bytes: 512,
        buffered_bytes_max: 2048,
        oldest_age_s: None,
        dropped: counts([("max_bytes", 3)]),
        rejected: 3,
        letters: 1,
        letter_bytes: 640,
        letters_dropped: 2,
        gaps: 1,
        lanes: Some(SinkLanes { split: 10, live: 12 }),
        ..SinkStatus::default()
    }
}

fn ledger() -> Ledger {
    Ledger {
        sources: vec![SourceHop {
            device: "main_meter".into(),
            read: 121,
            accepted: 120,
            refused: counts([("future", 1)]),
        }],
        streams: vec![StreamHop {
            stream: "energy_10s".into(),
            carried: 0,
            accepted: 120,
            windowed: 110,
            late: 2,
            future: 0,
            filtered: 0,
            failed: 0,
            dropped: 0,
            open: 8,
            missed: 7,
            unrouted: 4,
        }],
        sinks: vec![SinkHop {
            sink: HOSTILE.into(),
            carried: 0,
            results: 12,
            delivered: 5,
            buffered: 2,
            dropped: counts([("max_bytes", 3)]),
            rejected: 1,
        }],
    }
}
