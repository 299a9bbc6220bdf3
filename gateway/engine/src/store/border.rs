//! What crosses the store's border: options, layout, commits, and what is read back.
//!
//! Nothing here knows how bytes lie on flash, so that the layout may change without its users.
//! Times are microseconds since 1970 UTC; positions count rows.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use tokio::sync::oneshot;

use super::stamps::{BootTime, Stamps};

/// How a store is opened. The bounds have names because each of them is a setting.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The folder that holds the store's files; made (0700) where it is missing.
    pub dir: PathBuf,
    /// Payload that waits for [`Store::flush`](super::Store::flush) at most; more commits at once.
    pub commit_bytes: usize,
    /// Commits that may wait in the queue; [`Store::submit`](super::Store::submit) waits beyond it.
    pub queue: usize,
    /// Memory for cached pages.
    pub cache_bytes: usize,
    /// Bytes of log values, waiting rows and dead letters that the store holds at most; see
    /// [`WhenFull`] for what gives way. The file itself carries free pages on top.
    pub max_bytes: u64,
    /// Length of the ring that a store made anew gets, at least 64 KiB, and at most a quarter of the
    /// disk's room and of `max_bytes`. What is not needed any more before the ring comes round is
    /// written once. A store that exists keeps its own.
    pub ring_bytes: u64,
    /// The gateway's name, kept in the file for whoever finds it.
    pub gateway: String,
    /// Read errors of the device are not waited for: what it does not answer for counts as damaged, and the
    /// store opens with the rest. Without it such an error is an error of [`Store::open`](super::Store::open).
    pub impatient: bool,
    /// The epoch of a store that is made anew, if it is larger than any epoch known here: Unix
    /// seconds. A store that exists keeps its own.
    pub epoch_hint: u64,
    /// The folder is an older copy, put in the place of a store that had gone on: new records get a new
    /// epoch, because ids that follow from what the copy knows were given already.
    pub restored: bool,
    /// A stream whose progress and states go. New records get a new epoch: the stream, should it come
    /// again, begins with number 1. An unknown one is [`StoreError::Unknown`], and nothing changes.
    pub forget_stream: Option<Arc<str>>,
}

impl StoreOptions {
    /// The defaults for a store in `dir`: 256 KiB a commit, 256 commits in the queue, 8 MiB of
    /// cache, 512 MiB on flash, a ring of 16 MiB.
    pub fn new(dir: impl Into<PathBuf>, gateway: impl Into<String>, epoch_hint: u64) -> Self {
        StoreOptions {
            dir: dir.into(),
            commit_bytes: 256 << 10,
            queue: 256,
            cache_bytes: 8 << 20,
            max_bytes: 512 << 20,
            ring_bytes: 16 << 20,
            gateway: gateway.into(),
            impatient: false,
            epoch_hint,
            restored: false,
            forget_stream: None,
        }
    }
}

/// The tables and sinks of the running configuration. What the file holds beyond them is kept.
#[derive(Debug, Clone, Default)]
pub struct Layout {
    /// Tables with a log.
    pub tables: Vec<TableLayout>,
    /// Sinks with an outbox.
    pub sinks: Vec<SinkLayout>,
}

/// A table and who reads its log.
#[derive(Debug, Clone)]
pub struct TableLayout {
    /// The table's name.
    pub name: Arc<str>,
    /// Streams that read it. A row stays in the log until each of them has committed a
    /// `replay_from` beyond it; a stream without progress holds every row.
    pub readers: Vec<Arc<str>>,
    /// How long rows stay readable beyond that, counted from [`LogRows::accepted`] and applied by
    /// [`Store::expire`](super::Store::expire).
    pub history_us: Option<i64>,
}

/// A sink and the bounds of its outbox.
#[derive(Debug, Clone)]
pub struct SinkLayout {
    /// The sink's configured name, which is its identity.
    pub name: Arc<str>,
    /// Bytes of waiting rows at most; a row counts its body and 4 bytes. Dead letters take an eighth as
    /// much at most, besides, and those of all sinks together an eighth of the store.
    pub max_bytes: u64,
    /// Age at most, counted from `created`, applied by [`Store::expire`](super::Store::expire).
    pub max_age_us: Option<i64>,
    /// Waiting rows at most.
    pub max_records: Option<u64>,
    /// What gives way when a bound is reached.
    pub when_full: WhenFull,
    /// Where the whole store is full, sinks of a lower priority lose their rows first.
    pub priority: i32,
}

/// What gives way when an outbox, or the whole store, is full.
///
/// When the store reaches `max_bytes` dead letters go, the oldest of the sink that has most; where
/// there are none the `DropOldest` sink that holds most loses its oldest rows;
/// where no such sink holds any, new rows of `DropNewest` sinks are dropped, `Block` sinks make
/// their submitters wait, and last the log that holds most loses its oldest rows. Drops are
/// counted and durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// The oldest rows that were not delivered.
    DropOldest,
    /// The rows that were about to be stored.
    DropNewest,
    /// Nothing: [`Store::submit`](super::Store::submit) waits while the outbox is at its bound. It
    /// admits a commit whenever there is any room, so the bound is passed by one commit at most.
    Block,
}

/// What becomes durable together, or not at all.
#[derive(Debug, Clone, Default)]
pub struct Commit {
    /// Somebody waits for the ticket: commit as soon as the previous commit has ended.
    pub wait: bool,
    /// Accepted rows, for the tables' logs.
    pub rows: Vec<LogRows>,
    /// Results, for the sinks' outboxes.
    pub outbox: Vec<OutboxRows>,
    /// How far the stream that produced the results has come.
    pub progress: Option<StreamProgress>,
    /// Durable counters and how much each of them grows with this commit.
    pub counts: Vec<(Arc<str>, u64)>,
    /// What is known from now on of a start of the machine: see [`Stamps`]. The first decision counts,
    /// for the rows of all tables.
    pub boot: Option<(u128, BootTime)>,
}

/// Accepted rows of one table.
#[derive(Debug, Clone)]
pub struct LogRows {
    /// The table.
    pub table: Arc<str>,
    /// Log position of the first row: exactly [`Store::log_end`](super::Store::log_end).
    pub position: u64,
    /// When the rows were accepted, for the table's history.
    pub accepted: i64,
    /// By which clock they were stamped, where that does not tell the time of day: they are not read
    /// until [`Commit::boot`] says what becomes of them. `None` for all others.
    pub stamps: Option<Stamps>,
    /// The rows, with every column of the table.
    pub batch: RecordBatch,
}

impl LogRows {
    /// The log position behind the last row.
    pub(super) fn end(&self) -> u64 {
        self.position + self.batch.num_rows() as u64
    }
}

/// Encoded results of one stream for one sink.
#[derive(Debug, Clone)]
pub struct OutboxRows {
    /// The sink.
    pub sink: Arc<str>,
    /// The stream.
    pub stream: Arc<str>,
    /// `seq` of the first body; the others follow without a hole.
    pub first_seq: u64,
    /// The window that the results belong to: start and end.
    pub window: Option<(i64, i64)>,
    /// When the results were made.
    pub created: i64,
    /// One encoded record per row.
    pub bodies: Vec<Bytes>,
}

/// How far a stream has come, written together with what it produced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamProgress {
    /// The stream.
    pub stream: Arc<str>,
    /// The stream's own state: watermarks, open panes, next `seq`.
    pub state: Vec<u8>,
    /// Per table: the first log position that was not processed.
    pub processed: Vec<(Arc<str>, u64)>,
    /// Per table: the first log position that is needed to rebuild the state.
    pub replay_from: Vec<(Arc<str>, u64)>,
    /// States that changed since the stream's last commit. What is read back has none: see
    /// [`Store::states`](super::Store::states).
    pub states: Vec<StateChange>,
}

/// A value that a stream keeps beside its progress, under a key of its own, as it is from now on.
///
/// Only what changed is written: once with its commit, and once more with the next checkpoint, if it
/// is still there then. All states of one commit are at most [`StateChange::BYTES_MAX`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateChange {
    /// The key, unique within the stream.
    pub key: u64,
    /// The value; `None` removes it.
    pub bytes: Option<Bytes>,
}

impl StateChange {
    /// Bytes of the states in one commit at most: a frame names its places in 32 bits.
    pub const BYTES_MAX: usize = 1 << 30;
}

/// One record that waits for its sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its place in the sink's outbox: contiguous per sink, from 1.
    pub position: u64,
    /// The epoch it was produced in, part of its id.
    pub epoch: u64,
    /// The stream it came from.
    pub stream: Arc<str>,
    /// Its number in the stream.
    pub seq: u64,
    /// The encoded record.
    pub body: Bytes,
    /// The window it belongs to: start and end.
    pub window: Option<(i64, i64)>,
    /// When it was made.
    pub created: i64,
    /// This is no record but the notice that records are missing here: the body is empty, and
    /// `seq` is the last one of them.
    pub gap: Option<Gap>,
}

/// Records of one stream that will never come, told in their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// `seq` of the first one.
    pub from: u64,
    /// `seq` of the last one.
    pub to: u64,
    /// Why they are missing.
    pub reason: GapReason,
}

/// Why records are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GapReason {
    /// A bound of the sink or of the store dropped them.
    Dropped,
    /// They became older than the sink's `max_age`.
    Expired,
}

impl GapReason {
    /// The word for it in a gap record.
    pub fn as_str(self) -> &'static str {
        match self {
            GapReason::Dropped => "dropped",
            GapReason::Expired => "expired",
        }
    }
}

/// Two lanes of one outbox, each in order with a contiguous cursor of its own: records up to
/// `split` are the backlog, later ones are live. They end when the backlog is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lanes {
    /// Position of the last record of the backlog.
    pub split: u64,
    /// The live lane's low-water mark: every position beyond `split` up to it is settled.
    pub live: u64,
}

/// A record that its sink refused for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The record as it was.
    pub row: OutboxRow,
    /// What the far side said.
    pub reason: String,
}

/// What waits for a sink, and what became of the rest: `delivered + dropped + expired + rejected +
/// lost + records` is what was ever put into the outbox, redriven rows again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Rows that wait.
    pub records: u64,
    /// Their bytes; a row counts its body and 4 bytes.
    pub bytes: u64,
    /// `created` of the oldest one.
    pub oldest_created: Option<i64>,
    /// Rows that the far side has taken.
    pub delivered: u64,
    /// Rows dropped by a bound. One that was under way may have arrived all the same.
    pub dropped: u64,
    /// How many of these the disk had no room for, and no bound of the configuration asked for.
    pub no_room: u64,
    /// Rows dropped by age; as above.
    pub expired: u64,
    /// Rows refused by the far side.
    pub rejected: u64,
    /// Rows that could not be read back.
    pub lost: u64,
    /// Dead letters that were put back into the outbox, and count again since.
    pub redriven: u64,
    /// Notices of missing rows that wait; see [`Gap`].
    pub gaps: u64,
    /// Dead letters that are kept.
    pub letters: u64,
    /// Their bytes, reasons and headers included.
    pub letter_bytes: u64,
    /// Dead letters that gave way to newer ones, or because the store was full. As records they are in
    /// `rejected`, and nowhere else.
    pub letters_dropped: u64,
    /// Where the backlog ends and live records begin, while there are two lanes.
    pub lanes: Option<Lanes>,
    /// Nothing is delivered until somebody resumes the sink.
    pub paused: bool,
}

/// What the store holds for one table, for `inspect`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableContents {
    /// The table.
    pub name: Arc<str>,
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
}

/// What the store holds for one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamContents {
    /// The stream.
    pub name: Arc<str>,
    /// States that it keeps beside its progress.
    pub states: u64,
    /// Their bytes, and those of the progress.
    pub bytes: u64,
}

/// What a check of everything stored found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Log rows and outbox rows that were read back and passed.
    pub rows: u64,
    /// Stored values that failed, since the store was opened.
    pub corrupt_records: u64,
    /// Rows that are missing because of it, since the store was opened.
    pub corrupt_rows: u64,
}

/// Figures of the store since it was opened, for status and metrics.
#[derive(Debug, Clone, Default)]
pub struct StoreStats {
    /// Durable commits.
    pub commits: u64,
    /// Encoded bytes given to durable commits.
    pub bytes_committed: u64,
    /// Bytes that the store wrote to its file, headers and pages included.
    pub bytes_written: u64,
    /// Length of the file.
    pub file_bytes: u64,
    /// Bytes of log values, waiting rows and dead letters.
    pub held_bytes: u64,
    /// Bytes of the states that streams keep; they are on top of `held_bytes` and of no bound here,
    /// because a stream holds them in memory as well.
    pub state_bytes: u64,
    /// Stored records that failed their check.
    pub corrupt_records: u64,
    /// Rows that were in them, or missing without a trace.
    pub corrupt_rows: u64,
    /// Log rows dropped because the store was full.
    pub log_rows_dropped: u64,
    /// The disk has no room, and rows are dropped for it: until there is room again.
    pub gives_way: bool,
    /// Commits that wait in the queue.
    pub queue_len: usize,
    /// Commits that may wait in the queue.
    pub queue_capacity: usize,
    /// Times that the file was opened again after an error.
    pub reopened: u64,
    /// The last error, for a person.
    pub last_error: Option<String>,
    /// Why nothing can be made durable at present, while that is so: no room, read-only, or an
    /// error of the device. What comes is held in memory within bounds, and delivered from there.
    pub stalled: Option<String>,
    /// Sinks that get no new rows while nothing can be made durable: these are dropped.
    pub refuses: Vec<Arc<str>>,
    /// Why something that is stored cannot be read at present, while that is so. Who waits for it goes on
    /// waiting; what the device refuses for long counts as damaged.
    pub unread: Option<String>,
    /// Bytes written on the day of [`Store::expire`](super::Store::expire)'s last `now` (UTC), across restarts.
    pub written_today: u64,
    /// Nothing will be stored any more: see [`Store::failed`](super::Store::failed).
    pub failed: bool,
}

/// What opening a store found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each answers a question of its own")]
pub struct Recovery {
    /// The store was made anew.
    pub created: bool,
    /// A file that could not be opened was moved here.
    pub quarantined: Option<PathBuf>,
    /// What was readable of a damaged file was carried over into a new one.
    pub salvaged: bool,
    /// The store was closed in order the last time, so that nothing in memory was lost.
    pub clean: bool,
    /// The files are a copy that was put in the place of those that were written. The epoch has grown, so
    /// that no id repeats.
    pub copied: bool,
    /// The end of the ring was gone: what was stored last may be lost, and nobody can tell how much.
    pub newest_lost: bool,
    /// The last frame was not whole: a crash cut it off before it was promised, or it is damaged; nobody can tell.
    /// The epoch has grown, so that no id repeats.
    pub newest_torn: bool,
    /// Records may have been delivered from memory that are not stored: the process was killed while the device
    /// took no writes, or the power went and nobody knows. The epoch has grown, so that no id repeats.
    pub ids_doubted: bool,
    /// The store came from an older format.
    pub upgraded_from: Option<u32>,
    /// Records that failed their check.
    pub corrupt_records: u64,
    /// Streams whose progress, or a state that belongs to it, could not be read. The epoch has grown, so that no id repeats.
    pub progress_lost: Vec<String>,
    /// Sinks and tables that the file holds and the layout does not name; they are kept.
    pub unclaimed: Vec<String>,
}

/// Why the store could not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Another process has the store: exit and let the supervisor try again.
    #[error("{} is locked: another process uses this store", .path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The file cannot be opened and cannot be moved aside: a person must look.
    #[error("{} cannot be read: {reason}", .path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What stood in the way.
        reason: String,
    },
    /// The device gives no answer for a part of what is stored. It may later; see [`StoreOptions::impatient`].
    #[error("{} cannot be read: {reason}", .path.display())]
    Unanswered {
        /// The file.
        path: PathBuf,
        /// The system's word.
        reason: String,
    },
    /// The file was written by a later version.
    #[error("{} has format {found}; this version reads up to {known}", .path.display())]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format known here.
        known: u32,
    },
    /// An operation on the files failed while opening.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's word.
        source: Arc<io::Error>,
    },
    /// Log rows do not continue their table's log: a fault of the caller.
    #[error("rows of table {table} at position {position}, but its log ends at {expected}")]
    Position {
        /// The table.
        table: Arc<str>,
        /// The position that came.
        position: u64,
        /// The position that must come next.
        expected: u64,
    },
    /// The states of one commit are larger than a frame can be: a fault of the caller.
    #[error("states of stream {stream} with {bytes} bytes in one commit")]
    TooLarge {
        /// The stream.
        stream: Arc<str>,
        /// Bytes of all its states in the commit.
        bytes: usize,
    },
    /// The layout names it, so that it cannot be forgotten.
    #[error("{0} is in the running configuration; take it out of that first")]
    Claimed(Arc<str>),
    /// The layout knows no such sink or table.
    #[error("the store knows no {0}")]
    Unknown(String),
    /// The files failed again and again; nothing is stored any more. Exit for the supervisor.
    #[error("the store has failed: {0}")]
    Failed(String),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// Resolves when a commit is durable. Dropping it changes nothing.
#[derive(Debug)]
#[must_use = "a ticket that nobody awaits says that nobody cares whether the commit is durable"]
pub struct Ticket(pub(super) oneshot::Receiver<Result<(), StoreError>>);

impl Future for Ticket {
    type Output = Result<(), StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or(Err(StoreError::Closed)))
    }
}

impl StoreError {
    /// Whether the device gave no answer when the store was opened.
    pub fn is_unanswered(&self) -> bool {
        match self {
            StoreError::Unanswered { .. } => true,
            StoreError::Io { source, .. } => super::unread::is_of_device(source),
            _ => false,
        }
    }
}
