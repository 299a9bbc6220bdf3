//! When the store's thread is woken, and what it gets then.
//!
//! A commit is due when somebody waits for it, when much has come or was delivered, or when a flush or the
//! close says so.
//! The thread is woken only for what it wants at present: a call of the system for each commit would
//! cost more than the commit. Knows no file.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use super::damage::Trouble;
use super::inbox::{Inbox, Shared, lock};
use super::work::{Ask, Work};

/// Refusals that wait at most before they make a commit due.
const REJECTS_MAX: usize = 256;

/// Rows that a sink may have delivered since its last durable cursor before they make a commit due: after
/// a crash they come again. No window of a sink's own, which may be 1: a sync for each delivery would
/// cost more than a few records that come twice.
const DELIVERED_MAX: u64 = 1_000;

/// Whether commits stay in the queue, so that only what frees room is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holding {
    No,
    /// There is little room, which the close may use up.
    UntilClose,
    /// There is none.
    Yes,
}

/// How eagerly the thread takes what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// Nothing is being written: whatever is due.
    Free,
    /// A frame is being written: what is due, a bite at a time, so that it is not woken for each commit.
    Beside,
    /// The next frame is large enough already: nothing.
    Shut,
}

/// Commits that are worth a turn while a frame is being written.
const BITE_COMMITS: usize = 32;
/// Bytes of commits that are.
const BITE_BYTES: usize = 64 << 10;

/// What the thread does next.
pub(super) struct Turn {
    /// How the writing of a frame ended.
    pub(super) written: Option<Result<(), Trouble>>,
    pub(super) asks: Vec<Ask>,
    pub(super) work: Option<Work>,
    pub(super) flush: bool,
    pub(super) close: bool,
}

impl Inbox {
    /// Whether commits stay where they are.
    fn holds(&self, held: Holding) -> bool {
        held == Holding::Yes || (held == Holding::UntilClose && !self.close)
    }
}

impl Shared {
    /// Whether the thread should commit now.
    fn is_due(&self, inbox: &Inbox) -> bool {
        inbox.waits > 0
            || inbox.bytes >= self.commit_bytes
            || inbox.work.commits.len() * 2 > self.queue
            || inbox.work.refusals.len() >= REJECTS_MAX
            || !inbox.work.orders.is_empty()
            || (inbox.blocked > 0
                && !(inbox.work.delivered.is_empty() && inbox.work.delivered_live.is_empty()))
            || self.is_far_ahead(&inbox.work)
    }

    /// Whether a sink has delivered much that is not durably so. Compared with what can be seen of the
    /// store: marks that are being committed do not count again.
    fn is_far_ahead(&self, work: &Work) -> bool {
        let Work { delivered, delivered_live, .. } = work;
        if delivered.is_empty() && delivered_live.is_empty() {
            return false;
        }
        let state = self.state();
        delivered.keys().chain(delivered_live.keys()).any(|name| {
            state.sinks.get(name).is_some_and(|sink| {
                let mark = |marks: &BTreeMap<_, u64>| marks.get(name).copied().unwrap_or(0);
                let live = sink.lanes.map_or(sink.cursor, |lanes| lanes.live);
                let beyond = mark(delivered).saturating_sub(sink.cursor);
                beyond.saturating_add(mark(delivered_live).saturating_sub(live)) >= DELIVERED_MAX
            })
        })
    }

    /// Says how the writing of a frame ended.
    pub(super) fn written(&self, outcome: Result<(), Trouble>) {
        let mut inbox = lock(&self.inbox);
        inbox.written = Some(outcome);
        self.rouse(&mut inbox);
    }

    /// Whether there is anything to take.
    fn takes(&self, inbox: &Inbox, held: Holding, pace: Pace) -> bool {
        let is_due =
            if inbox.holds(held) { !inbox.work.orders.is_empty() } else { self.is_due(inbox) };
        match pace {
            Pace::Free => is_due || inbox.flush || inbox.close,
            Pace::Beside => {
                let commits = inbox.work.commits.len();
                is_due && (commits >= BITE_COMMITS || inbox.bytes >= BITE_BYTES)
            }
            Pace::Shut => false,
        }
    }

    fn is_called(&self, inbox: &Inbox, held: Holding, pace: Pace) -> bool {
        inbox.written.is_some() || !inbox.asks.is_empty() || self.takes(inbox, held, pace)
    }

    /// Wakes the thread if it sleeps and there is something that it wants: a call of the system for
    /// each commit would cost more than the commit.
    pub(super) fn rouse(&self, inbox: &mut Inbox) {
        if inbox.sleeping.is_some_and(|(held, pace)| self.is_called(inbox, held, pace)) {
            inbox.sleeping = None;
            self.wake.notify_one();
        }
    }

    /// Waits for something to do, unless the thread is `busy` with something of its own. While commits
    /// are `held` they stay in the queue; marks and orders, which free room, do not. When a frame has
    /// been written nothing else is taken in the same turn, so that the next one does not wait.
    pub(super) fn wait(&self, held: Holding, pace: Pace, busy: bool) -> Turn {
        let mut inbox = lock(&self.inbox);
        while !busy && !self.is_called(&inbox, held, pace) {
            inbox.sleeping = Some((held, pace));
            inbox = self.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner);
            inbox.sleeping = None;
        }
        let written = inbox.written.take();
        let take = written.is_none() && self.takes(&inbox, held, pace);
        let is_free = take && pace == Pace::Free;
        let flush = is_free && (std::mem::take(&mut inbox.flush) || inbox.close);
        let keeps = inbox.holds(held);
        let work = take.then(|| {
            let mut work = std::mem::take(&mut inbox.work);
            if keeps {
                inbox.work.commits = std::mem::take(&mut work.commits);
            } else {
                inbox.bytes = 0;
                inbox.waits = 0;
            }
            work
        });
        let asks = std::mem::take(&mut inbox.asks);
        Turn { written, asks, work, flush, close: is_free && inbox.close }
    }
}
