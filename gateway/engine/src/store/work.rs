//! What is handed to the store's thread: commits, marks and questions.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::border::{Commit, Lanes, Layout, OutboxRow, Rejected, StoreError, Verified, WhenFull};
use super::log::Wanted;
use super::state::State;
use super::states::StoredStates;

/// The answer to a question that the thread reads from the file.
pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// Questions that need the file.
pub(super) enum Ask {
    Next {
        sink: Arc<str>,
        after: u64,
        max_rows: usize,
        max_bytes: usize,
        /// Who asks delivers them.
        delivers: bool,
        /// Rows, and the position up to which everything has been looked at.
        reply: Reply<(Vec<OutboxRow>, u64)>,
    },
    Log {
        table: Arc<str>,
        wanted: Wanted,
        reply: Reply<Vec<(u64, RecordBatch)>>,
    },
    States {
        stream: Arc<str>,
        reply: Reply<StoredStates>,
    },
    Rejected {
        sink: Arc<str>,
        limit: usize,
        reply: Reply<Vec<Rejected>>,
    },
    /// Whether the thread still takes its turns.
    Alive {
        reply: Reply<()>,
    },
    /// What could not be read is tried again, if it is due.
    Again,
    /// Whether everything stored passes its check.
    Verify {
        reply: Reply<Verified>,
    },
    /// Gives unused room back: bytes of the files before and after.
    Compact {
        reply: Reply<(u64, u64)>,
    },
}

impl Ask {
    /// Answers that there will be no answer.
    pub(super) fn refuse(self, reason: &StoreError) {
        match self {
            Ask::Next { reply, .. } => answer(reply, Err(reason.clone())),
            Ask::Log { reply, .. } => answer(reply, Err(reason.clone())),
            Ask::States { reply, .. } => answer(reply, Err(reason.clone())),
            Ask::Rejected { reply, .. } => answer(reply, Err(reason.clone())),
            Ask::Alive { reply } => answer(reply, Err(reason.clone())),
            Ask::Again => {}
            Ask::Verify { reply } => answer(reply, Err(reason.clone())),
            Ask::Compact { reply } => answer(reply, Err(reason.clone())),
        }
    }

    /// Whether nobody waits for the answer any more.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Ask::Next { reply, .. } => reply.is_closed(),
            Ask::Log { reply, .. } => reply.is_closed(),
            Ask::States { reply, .. } => reply.is_closed(),
            Ask::Rejected { reply, .. } => reply.is_closed(),
            Ask::Alive { reply } => reply.is_closed(),
            Ask::Again => false,
            Ask::Verify { reply } => reply.is_closed(),
            Ask::Compact { reply } => reply.is_closed(),
        }
    }
}

/// A commit in the queue.
pub(super) struct Pending {
    pub(super) commit: Commit,
    pub(super) ticket: oneshot::Sender<Result<(), StoreError>>,
    /// Given back when the commit is durable or has failed, or is held in memory.
    pub(super) slot: OwnedSemaphorePermit,
}

/// Rows that a commit puts into the outbox of a sink.
pub(super) struct Coming {
    pub(super) sink: Arc<str>,
    pub(super) rows: u64,
    pub(super) bytes: u64,
}

/// What somebody wants done to a sink, or to whatever has the name.
pub(super) struct Order {
    pub(super) name: Arc<str>,
    pub(super) what: What,
}

/// Orders, each answered when it is durable.
pub(super) enum What {
    Pause {
        paused: bool,
        reply: Reply<()>,
    },
    Split {
        reply: Reply<Option<Lanes>>,
    },
    /// Dead letters go, `again` into the outbox; no positions are all of them.
    Letters {
        positions: Vec<u64>,
        again: bool,
        reply: Reply<u64>,
    },
    /// Nothing: the bounds of another layout hold from now on.
    Bounds,
    /// What is kept for a sink or table that the layout does not name goes.
    Forget {
        reply: Reply<u64>,
    },
}

impl What {
    /// Answers that nothing was done.
    pub(super) fn refuse(self, reason: &StoreError) {
        match self {
            What::Bounds => {}
            What::Pause { reply, .. } => answer(reply, Err(reason.clone())),
            What::Split { reply } => answer(reply, Err(reason.clone())),
            What::Letters { reply, .. } | What::Forget { reply } => {
                answer(reply, Err(reason.clone()));
            }
        }
    }
}

/// Tells whoever waits how it ended.
pub(super) type Answer = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// A row that its sink refused.
#[derive(Clone)]
pub(super) struct Refusal {
    pub(super) sink: Arc<str>,
    pub(super) position: u64,
    pub(super) reason: String,
}

/// Everything that one transaction makes durable.
#[derive(Default)]
pub(super) struct Work {
    pub(super) commits: Vec<Pending>,
    pub(super) delivered: BTreeMap<Arc<str>, u64>,
    pub(super) delivered_live: BTreeMap<Arc<str>, u64>,
    pub(super) orders: Vec<Order>,
    pub(super) refusals: Vec<Refusal>,
    pub(super) expire: Option<i64>,
}

/// Sends an answer. Nobody may be waiting for it any more, which is no fault.
pub(super) fn answer<T>(reply: oneshot::Sender<T>, value: T) {
    drop(reply.send(value));
}

/// Bytes that all logs of a store of `max_bytes` may have: what the sinks' own bounds leave, or a quarter.
pub(super) fn logs_max(layout: &Layout, max_bytes: u64) -> u64 {
    let sinks_max = layout.sinks.iter().fold(0_u64, |sum, sink| sum.saturating_add(sink.max_bytes));
    max_bytes.saturating_sub(sinks_max).max(max_bytes / 4)
}

/// Bytes that may be dropped for room: those of logs beyond their share, of dead letters, and in the
/// outboxes of `DropOldest` sinks and of sinks that the layout does not name.
pub(super) fn droppable(state: &State, layout: &Layout, max_bytes: u64) -> u64 {
    let logs: u64 = state.tables.values().map(|table| table.bytes).sum();
    let excess = logs.saturating_sub(logs_max(layout, max_bytes));
    let kept = |name: &Arc<str>| {
        layout.sinks.iter().any(|s| s.name == *name && s.when_full != WhenFull::DropOldest)
    };
    let sinks = state.sinks.iter();
    let sinks =
        sinks.map(|(name, sink)| sink.letter_bytes + if kept(name) { 0 } else { sink.bytes });
    sinks.sum::<u64>().saturating_add(excess)
}
