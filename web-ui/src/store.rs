//! What the store holds and how it does, as status shows it and as commands ask for it.
//!
//! Promise: plain values that are the same beside a running gateway and without one. Does not
//! know how bytes lie on flash.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use serde::{Deserialize, Serialize};

/// The store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// Durable commits since the process started.
    pub commits: u64,
    /// Size of the store's files.
    pub file_bytes: u64,
    /// Bound of what it holds (`store.max_bytes`): of `held_bytes`; the files take somewhat more.
    pub file_bytes_max: u64,
    /// Bytes of rows, waiting records and dead letters.
    pub held_bytes: u64,
    /// Bytes of the states of streams: what open windows came to so far. They are on top.
    pub state_bytes: u64,
    /// Bytes of the values committed since the process started.
    pub bytes_committed: u64,
    /// Bytes that were written for them.
    pub bytes_written: u64,
    /// Bytes written for each byte committed; none before the first commit.
    pub write_amplification: Option<f64>,
    /// Bytes written on the present day (UTC), across restarts.
    pub written_today: u64,
    /// Bytes that may be written in a day before there is an alarm (`store.daily_writes`).
    pub daily_writes: Option<u64>,
    /// Records whose checksum was wrong and that were passed over.
    pub corrupt_records: u64,
    /// Rows that were in them.
    pub corrupt_rows: u64,
    /// Logged rows that were dropped because the store was full.
    pub log_rows_dropped: u64,
    /// The disk has no room, and what may be dropped is dropped for it.
    #[serde(default)]
    pub gives_way: bool,
    /// Commits that wait.
    pub queue_len: u64,
    /// Commits that may wait (`limits.store_queue`).
    pub queue_capacity: u64,
    /// Times that the files were opened again after an error.
    pub reopened: u64,
    /// Why nothing can be made durable at present.
    pub stalled: Option<String>,
    /// Sinks whose new records are dropped while nothing can be made durable.
    #[serde(default)]
    pub refuses: Vec<String>,
    /// Why something that is stored cannot be read at present, while that is so.
    #[serde(default)]
    pub unread: Option<String>,
    /// Last error in words.
    pub last_error: Option<String>,
    /// What was found when the store was opened.
    pub recovery: RecoveryStatus,
    /// Tables and sinks that the store holds and the configuration does not name.
    pub unclaimed: Vec<Unclaimed>,
}

/// What opening the store found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each answers a question of its own")]
pub struct RecoveryStatus {
    /// The store was made anew.
    pub created: bool,
    /// It was closed in order the last time.
    pub clean: bool,
    /// A file that could not be opened was moved here.
    pub quarantined: Option<String>,
    /// What was readable of it was carried over.
    pub salvaged: bool,
    /// The files are a copy that was put in the place of those that were written: records have a new
    /// epoch.
    #[serde(default)]
    pub copied: bool,
    /// The end of the ring was gone: what was stored last may be lost, and nobody can tell how much.
    #[serde(default)]
    pub newest_lost: bool,
    /// The last frame was not whole: a crash cut it off before it was promised, or it is damaged. Records have a
    /// new epoch.
    #[serde(default)]
    pub newest_torn: bool,
    /// Records may have been delivered from memory that are not stored: the process was killed while the device
    /// took no writes, or the power went and nobody knows. Records have a new epoch.
    #[serde(default)]
    pub ids_doubted: bool,
    /// The format that it came from, where that was an older one.
    pub upgraded_from: Option<u32>,
    /// Records that failed their check.
    pub corrupt_records: u64,
    /// Streams whose progress, or a state that belongs to it, could not be read: they begin anew.
    pub progress_lost: Vec<String>,
}

/// Something that nobody asks for any more, and that takes room until somebody drops it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unclaimed {
    /// `table`, `sink` or `stream`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Rows, records that wait, or states.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Two lanes of one outbox, by positions in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkLanes {
    /// Position of the last record of the backlog.
    pub split: u64,
    /// Every position beyond it up to here is settled.
    pub live: u64,
}

/// Everything that the store holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreContents {
    /// The epoch of new records.
    pub epoch: u64,
    /// Whether a gateway runs on it, so that what it names is known.
    pub running: bool,
    /// How the store does.
    pub status: StoreStatus,
    /// Logs of tables.
    pub tables: Vec<TableContents>,
    /// Outboxes of sinks.
    pub sinks: Vec<SinkContents>,
    /// Streams whose progress is kept.
    pub streams: Vec<StreamContents>,
    /// Durable counters by name.
    pub counters: BTreeMap<String, u64>,
}

/// The log of one table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableContents {
    /// The table's name.
    pub name: String,
    /// Position of the first row that is kept.
    pub start: u64,
    /// Position of the next row.
    pub end: u64,
    /// Rows between them that are kept.
    pub rows: u64,
    /// Stored bytes.
    pub bytes: u64,
    /// Rows that were dropped because the store was full.
    pub dropped: u64,
    /// Whether the running configuration has it; none where no gateway runs.
    pub claimed: Option<bool>,
}

/// The progress of one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamContents {
    /// The stream's name.
    pub name: String,
    /// States of its windows that are kept beside the progress.
    pub states: u64,
    /// Their bytes, and those of the progress.
    pub bytes: u64,
    /// Whether the running configuration has it; none where no gateway runs.
    pub claimed: Option<bool>,
}

/// The outbox of one sink.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SinkContents {
    /// The sink's name.
    pub name: String,
    /// Records that wait.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When the oldest of them came about, RFC 3339.
    pub oldest: Option<String>,
    /// Notices of missing records that wait.
    pub gaps: u64,
    /// Records that the far side took, ever.
    pub delivered: u64,
    /// Records that were given up, by reason, ever.
    pub dropped: BTreeMap<String, u64>,
    /// Records that the far side refused, ever.
    pub rejected: u64,
    /// Of these, records that are kept as dead letters.
    pub letters: u64,
    /// Bytes of dead letters.
    pub letter_bytes: u64,
    /// Dead letters that gave way to newer ones, or because the store was full, ever.
    pub letters_dropped: u64,
    /// Nothing is delivered until somebody resumes it.
    pub paused: bool,
    /// The backlog and live records are delivered beside each other.
    pub lanes: Option<SinkLanes>,
    /// Whether the running configuration has it; none where no gateway runs.
    pub claimed: Option<bool>,
}

/// What a check of everything stored found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreVerified {
    /// Rows and records that were read back and passed.
    pub rows: u64,
    /// Stored values that failed, since the store was opened.
    pub corrupt_records: u64,
    /// Rows that are missing because of it, since the store was opened.
    pub corrupt_rows: u64,
}

/// What giving unused space back brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreCompacted {
    /// Bytes of files before.
    pub bytes_before: u64,
    /// Bytes of files after.
    pub bytes_after: u64,
}

/// A record that the far side refused for good.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedRecord {
    /// Names it in `redrive` and `drop`.
    pub position: u64,
    /// The stream that it came from.
    pub stream: String,
    /// The epoch in its id.
    pub epoch: u64,
    /// The number in its id.
    pub seq: u64,
    /// When it came about, RFC 3339.
    pub created: String,
    /// What the far side said.
    pub reason: String,
    /// The record, as it would be sent.
    pub body: String,
}

/// How many records something was done to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Records {
    /// Their number.
    pub records: u64,
}

/// Which dead letters are meant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Letters {
    /// Their positions; empty: all.
    pub positions: Vec<u64>,
}

/// The rate of a backlog.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplayRate {
    /// Records a second at most, above zero; none: as many as the far side takes.
    pub per_second: Option<f64>,
}

/// What is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exportable {
    /// The log of a table.
    Tables,
    /// The outbox of a sink.
    Sinks,
}

impl Exportable {
    /// The word in paths.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tables => "tables",
            Self::Sinks => "sinks",
        }
    }
}

/// A part of an export: an Arrow IPC stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Where the next part begins.
    pub next: u64,
    /// The bytes of the stream.
    pub arrow: Vec<u8>,
}

/// Why something could not be done to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is nothing of this name.
    Unknown(String),
    /// Not in this state: the text says why.
    NotNow(String),
}

impl Refusal {
    /// What to tell a person.
    pub fn detail(&self) -> &str {
        let (Self::Unknown(detail) | Self::NotNow(detail)) = self;
        detail
    }
}

/// What somebody may do to the store, beside a running gateway or without one. Dropping a future
/// changes nothing that was not begun.
pub trait Keeper: Send + Sync + 'static {
    /// Everything that the store holds.
    fn contents(&self) -> Kept<StoreContents>;

    /// Reads everything back and checks it.
    fn verify(&self) -> Kept<StoreVerified>;

    /// Gives unused space back.
    fn compact(&self) -> Kept<StoreCompacted>;

    /// Drops what is kept for a table or sink of this name that no configuration has; refused for one
    /// that the running configuration has.
    fn forget(&self, name: String) -> Kept<Records>;

    /// A part of a log from position `from`, or of an outbox from beyond it; none at the end.
    fn export(&self, what: Exportable, name: String, from: u64) -> Kept<Option<Exported>>;

    /// Ends delivery to a sink, durably, or goes on with it.
    fn pause(&self, sink: String, paused: bool) -> Kept<()>;

    /// Delivers the present backlog of a sink at another rate.
    fn replay(&self, sink: String, rate: ReplayRate) -> Kept<()>;

    /// The newest dead letters of a sink, oldest first.
    fn rejected(&self, sink: String, limit: usize) -> Kept<Vec<RejectedRecord>>;

    /// Puts dead letters back into the outbox.
    fn redrive(&self, sink: String, letters: Letters) -> Kept<Records>;

    /// Forgets dead letters for good.
    fn discard(&self, sink: String, letters: Letters) -> Kept<Records>;
}

/// An answer that takes its time, or a refusal.
pub type Kept<T> = Pin<Box<dyn Future<Output = Result<T, Refusal>> + Send>>;
