//! What is handed to the store's thread: commits, marks and questions.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::border::{Commit, Layout, OutboxRow, Rejected, StoreError, WhenFull};
use super::recovery::State;

/// The answer to a question that the thread reads from the file.
pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// Questions that need the file.
pub(super) enum Ask {
    Next {
        sink: Arc<str>,
        after: u64,
        max_rows: usize,
        max_bytes: usize,
        /// Rows, and the position up to which everything has been looked at.
        reply: Reply<(Vec<OutboxRow>, u64)>,
    },
    Log {
        table: Arc<str>,
        from: u64,
        max_rows: usize,
        reply: Reply<Vec<(u64, RecordBatch)>>,
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
}

impl Ask {
    /// Answers that there will be no answer.
    pub(super) fn refuse(self, reason: &StoreError) {
        match self {
            Ask::Next { reply, .. } => answer(reply, Err(reason.clone())),
            Ask::Log { reply, .. } => answer(reply, Err(reason.clone())),
            Ask::Rejected { reply, .. } => answer(reply, Err(reason.clone())),
            Ask::Alive { reply } => answer(reply, Err(reason.clone())),
        }
    }

    /// Whether nobody waits for the answer any more.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Ask::Next { reply, .. } => reply.is_closed(),
            Ask::Log { reply, .. } => reply.is_closed(),
            Ask::Rejected { reply, .. } => reply.is_closed(),
            Ask::Alive { reply } => reply.is_closed(),
        }
    }
}

/// A commit in the queue.
pub(super) struct Pending {
    pub(super) commit: Commit,
    pub(super) ticket: oneshot::Sender<Result<(), StoreError>>,
    /// Given back when the commit is durable or has failed.
    pub(super) _slot: OwnedSemaphorePermit,
}

/// A row that its sink refused.
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
    pub(super) refusals: Vec<Refusal>,
    pub(super) expire: Option<i64>,
}

/// Sends an answer. Nobody may be waiting for it any more, which is no fault.
pub(super) fn answer<T>(reply: oneshot::Sender<T>, value: T) {
    drop(reply.send(value));
}

/// Bytes of outboxes that may be dropped for room: those of `DropOldest` sinks, and of sinks that
/// the layout does not name.
pub(super) fn droppable(state: &State, layout: &Layout) -> u64 {
    let kept = |name: &Arc<str>| {
        layout.sinks.iter().any(|s| s.name == *name && s.when_full != WhenFull::DropOldest)
    };
    state.sinks.iter().filter(|(name, _)| !kept(name)).map(|(_, sink)| sink.bytes).sum()
}
