//! The border between the routes and the running gateway.
//!
//! Promise: one plain tree, [`Status`], holds all that status and metrics show; it is asked for
//! anew with each request, so it tells of the running parts and never of the file.
//! Does not know: the engine, the drivers' I/O, any clock. Moments arrive as RFC 3339 text and ages
//! as numbers, both made by the gateway.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use serde::{Deserialize, Serialize};

use crate::clock::ClockWait;
use crate::ledger::Ledger;
use crate::store::{SinkLanes, StoreStatus};

/// What the routes ask of the running gateway.
pub trait Console: Send + Sync + 'static {
    /// All parts as they are now. Called on the I/O runtime: must not block.
    fn status(&self) -> Status;

    /// Whether the streams do their work now. Called on the I/O runtime: must not block.
    fn ready(&self) -> Readiness;
}

/// What the control socket may ask for in addition.
pub trait Control: Send + Sync + 'static {
    /// Starts an orderly stop, as SIGTERM does, and returns at once. May be called again.
    fn stop(&self);

    /// Runs another configuration in place of this one, or says why not. `name` is what problems
    /// call the text. Dropping the future changes nothing: what was begun is brought to its end.
    fn apply(&self, name: String, text: String) -> Answer<Applied>;

    /// What is logged now.
    fn log_levels(&self) -> LogLevels;

    /// Logs by other levels for a while; an error says what is wrong with them.
    fn set_log_levels(&self, wanted: &LogLevelsWanted) -> Result<LogLevels, String>;
}

/// An answer that takes its time.
pub type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What became of a configuration that was to be applied.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Applied {
    /// How it ended.
    pub outcome: ApplyOutcome,
    /// The same in words, with the reason where it was not taken.
    pub detail: String,
    /// What is wrong or doubtful in the text.
    pub problems: Vec<ConfigProblem>,
    /// The problems as `tidegate check` prints them.
    pub text: String,
    /// Parts that were stopped, such as `device press`.
    pub stopped: Vec<String>,
    /// Parts that were started.
    pub started: Vec<String>,
}

/// How an attempt to apply a configuration ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApplyOutcome {
    /// It runs.
    Applied,
    /// It is what runs already; nothing was touched.
    #[default]
    Unchanged,
    /// It has errors; nothing was touched.
    Refused,
    /// It cannot be taken while the gateway runs, or cannot be kept; nothing was touched.
    NotNow,
    /// It was tried and did not work; the one before runs again.
    RolledBack,
}

/// What is logged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLevels {
    /// Levels, such as `info,tidegate_drivers=debug`.
    pub levels: String,
    /// Seconds until they are what they were at the start; none where they are.
    pub resets_in_s: Option<u64>,
}

/// What is to be logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLevelsWanted {
    /// Levels, such as `info,tidegate_drivers=debug`.
    pub levels: String,
    /// For how many seconds.
    pub for_s: u64,
}

/// The gateway and all its parts.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Status {
    /// The process.
    pub gateway: GatewayStatus,
    /// Rows that were accepted before the clock was set.
    pub clock_wait: ClockWait,
    /// Which configuration runs.
    pub config: ConfigStatus,
    /// Warnings of the configuration that runs, or all problems of one that was refused since.
    pub config_problems: Vec<ConfigProblem>,
    /// One for each link of the configuration.
    pub links: Vec<LinkStatus>,
    /// One for each device of the configuration.
    pub devices: Vec<DeviceStatus>,
    /// One for each lookup of the configuration.
    pub lookups: Vec<LookupStatus>,
    /// One for each stream of the configuration.
    pub streams: Vec<StreamStatus>,
    /// One for each sink of the configuration.
    pub sinks: Vec<SinkStatus>,
    /// The store.
    pub store: StoreStatus,
    /// What a person should look at, though the gateway may do its work.
    pub alarms: Vec<Reason>,
    /// Where every row went, hop by hop, since the store was made: durable.
    pub ledger: Ledger,
    /// The same since the process started.
    pub ledger_since_start: Ledger,
}

/// The process.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GatewayStatus {
    /// `gateway.name` of the configuration.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// The store's epoch: part of each record id, grows when the store is created anew.
    pub epoch: u64,
    /// Boot id of the machine, where the system tells it.
    pub boot_id: Option<String>,
    /// When the process started, RFC 3339.
    pub started: String,
    /// Seconds since then, monotonic.
    pub uptime_s: f64,
    /// The gateway's time of day, RFC 3339.
    pub time: String,
    /// How far that can be trusted: `certain`; `ahead` of the operating system's clock, which was set
    /// back; `unknown` while that was never set since power came.
    pub clock: String,
}

/// Which configuration runs, and what became of the last change.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ConfigStatus {
    /// Where the running configuration came from.
    pub origin: ConfigOrigin,
    /// Names the text that runs: equal texts have equal revisions.
    pub revision: String,
    /// Revision of the text that stands in the file, where it was seen to be another one.
    pub file_revision: Option<String>,
    /// The last attempt to change it while the gateway ran.
    pub last_change: Option<ConfigChange>,
}

/// Where a configuration came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfigOrigin {
    /// The file or folder that the gateway was started with.
    #[default]
    File,
    /// The last one that worked, because the file was refused.
    LastGood,
}

/// One attempt to change the configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigChange {
    /// When, RFC 3339.
    pub at: String,
    /// What asked for it: `signal`, `file` or `request`.
    pub by: &'static str,
    /// How it ended.
    pub outcome: ApplyOutcome,
    /// The same in words, with the reason where it was not taken.
    pub detail: String,
}

/// One problem of the configuration, as `tidegate check` shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ConfigProblem {
    /// Stable code, such as `E0123`.
    pub code: String,
    /// `error` or `warning`.
    pub severity: String,
    /// Path in the document, such as `devices[0].driver`.
    pub path: String,
    /// `file:line:column`.
    pub span: String,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: Option<String>,
}

/// Where a part stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PartState {
    /// Not tried yet, or trying.
    #[default]
    Connecting,
    /// Connected, or in no need of a connection.
    Up,
    /// Lost or refused; tried again after its backoff.
    Down,
    /// Will not work until the configuration or the far side changes.
    Failed,
    /// Stopped on purpose.
    Stopped,
}

impl PartState {
    /// All states, in the order of their declaration.
    pub const ALL: [Self; 5] =
        [Self::Connecting, Self::Up, Self::Down, Self::Failed, Self::Stopped];

    /// The word in status and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Up => "up",
            Self::Down => "down",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// One bus or connection that devices share.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LinkStatus {
    /// The link's name.
    pub name: String,
    /// Kind of bus, such as `tcp`.
    pub driver: String,
    /// Where it stands.
    pub state: PartState,
    /// Last error in words.
    pub last_error: Option<String>,
    /// Times the part was started anew after a panic or fault.
    pub restarts: u64,
    /// What the driver counted since the process started, by name.
    pub counters: BTreeMap<String, u64>,
}

/// One device or feed that is read.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DeviceStatus {
    /// The device's name.
    pub name: String,
    /// The SQL table that its rows go to.
    pub table: String,
    /// Kind of driver, such as `modbus`.
    pub driver: String,
    /// Where it stands.
    pub state: PartState,
    /// Last error in words.
    pub last_error: Option<String>,
    /// Times the part was started anew after a panic or fault.
    pub restarts: u64,
    /// Rows read since the process started, by quality.
    pub rows: RowsByQuality,
    /// Time of the last row, RFC 3339.
    pub last_row: Option<String>,
    /// Seconds since the last row, monotonic.
    pub last_row_age_s: Option<f64>,
    /// What the driver counted since the process started, by name.
    pub counters: BTreeMap<String, u64>,
    /// Address ranges that the device answered exception 02 for, now left out of merged requests.
    pub learnt_holes: Vec<String>,
}

/// Rows by their quality.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RowsByQuality {
    /// All points read.
    pub good: u64,
    /// Some points read.
    pub uncertain: u64,
    /// No point read.
    pub bad: u64,
}

/// One table that is loaded as a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LookupStatus {
    /// The table's name in SQL.
    pub name: String,
    /// Kind of source, such as `csv`.
    pub source: String,
    /// `up` when the last load succeeded, `down` when it failed and the rows before it stay.
    pub state: PartState,
    /// Rows that SQL sees.
    pub rows: u64,
    /// Their bytes in memory.
    pub bytes: u64,
    /// When they were loaded, RFC 3339; none before the first load.
    pub loaded: Option<String>,
    /// Seconds since then.
    pub age_s: Option<f64>,
    /// They were kept from before the process started, and no load has succeeded since.
    pub kept: bool,
    /// Loads that succeeded since the process started.
    pub loads: u64,
    /// Loads that failed since then.
    pub failures: u64,
    /// Why the last load failed; none where it succeeded.
    pub last_error: Option<String>,
}

/// One stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct StreamStatus {
    /// The stream's name.
    pub name: String,
    /// Where it stands; `failed` where its query cannot run.
    pub state: PartState,
    /// How its query is computed, `stateless`, `incremental` or `recompute`.
    pub mode: String,
    /// Its window in words, such as `tumbling 10s`; none for a stateless stream.
    pub window: Option<String>,
    /// Which time decides: `source`, what rows say of themselves, or `arrival`.
    pub event_time: String,
    /// Rows that reached the stream.
    pub accepted: u64,
    /// Of these, rows that are in a closed window's result.
    pub windowed: u64,
    /// Of these, rows that came after their window had closed.
    pub late: u64,
    /// Of these, rows whose time was too far ahead of the clock.
    pub future: u64,
    /// Rows whose time was too far ahead and was put to that of their arrival.
    pub restamped: u64,
    /// Of these, rows that a stateless query left out.
    pub filtered: u64,
    /// Of these, rows of windows or batches that the query failed on.
    pub failed: u64,
    /// Of these, rows of open windows that were given up, such as after a changed window.
    pub dropped: u64,
    /// Rows of its tables that were gone before the stream read them.
    pub missed: u64,
    /// Rows in windows that are still open.
    pub open_rows: u64,
    /// Windows that are still open.
    pub open_windows: u64,
    /// Output rows.
    pub results: u64,
    /// Of these, rows that no route took.
    pub unrouted: u64,
    /// The watermark, RFC 3339; none before the first row.
    pub watermark: Option<String>,
    /// Seconds from the watermark to the gateway's clock.
    pub watermark_lag_s: Option<f64>,
    /// Windows or batches that the query failed on.
    pub errors: u64,
    /// Last error in words.
    pub last_error: Option<String>,
    /// Times the part was started anew after a panic or fault.
    pub restarts: u64,
    /// Times the SQL was planned; stays at one while a plan is reused.
    pub plans: u64,
    /// Batches that wait for the stream.
    pub queue_len: u64,
    /// Batches that may wait (`limits.stream_queue`).
    pub queue_capacity: u64,
}

/// One sink.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SinkStatus {
    /// The sink's name.
    pub name: String,
    /// Kind of driver, such as `mqtt`.
    pub driver: String,
    /// Where it stands.
    pub state: PartState,
    /// Nothing is delivered until somebody resumes it; `state` goes on to tell of the connection.
    pub paused: bool,
    /// Records that the far side has taken responsibility for since the process started.
    pub delivered: u64,
    /// Of these, records that had waited when the connection was made.
    pub replayed: u64,
    /// Records in the store that are not delivered yet.
    pub buffered_records: u64,
    /// Their bytes.
    pub buffered_bytes: u64,
    /// The most bytes that may wait (`store.max_bytes` of the sink).
    pub buffered_bytes_max: u64,
    /// Age of the oldest of them in seconds.
    pub oldest_age_s: Option<f64>,
    /// Records given up because a bound was reached, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Records that the far side refused.
    pub rejected: u64,
    /// Of these, records that are kept as dead letters.
    pub letters: u64,
    /// Bytes of dead letters.
    pub letter_bytes: u64,
    /// Dead letters that gave way to newer ones, or because the store was full, ever.
    pub letters_dropped: u64,
    /// Notices of missing records that wait.
    pub gaps: u64,
    /// The backlog and live records are delivered beside each other.
    pub lanes: Option<SinkLanes>,
    /// Last error in words.
    pub last_error: Option<String>,
    /// Times the part was started anew after a panic or fault.
    pub restarts: u64,
    /// What the driver counted since the process started, by name.
    pub counters: BTreeMap<String, u64>,
}

/// Whether the streams do their work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// What keeps the gateway from being ready; ready where empty.
    pub reasons: Vec<Reason>,
}

impl Readiness {
    /// True where nothing is in the way.
    pub fn is_ready(&self) -> bool {
        self.reasons.is_empty()
    }
}

/// One part that is in the way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The part, such as `stream energy_10s`.
    pub part: String,
    /// What is wrong with it, in words.
    pub reason: String,
}
