//! An outbox in memory and a far side by script, on time that stands still.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use tidegate_drivers::stats::Stats;
use tidegate_drivers::{Delivered, Fault, North, Payload};
use tidegate_engine::store::{Gap, GapReason, Lanes, OutboxRow, StoreError};
use tokio::sync::watch;
use tokio::time::Instant;

use super::outbox::Outbox;

/// Rows of one stream from position `first` on; `seq` is the position.
pub(super) fn rows(first: u64, count: u64) -> Vec<OutboxRow> {
    (first..first + count)
        .map(|position| OutboxRow {
            position,
            epoch: 1,
            stream: "s".into(),
            seq: position,
            body: Bytes::from(format!("{{\"n\":{position}}}")),
            window: None,
            created: 0,
            gap: None,
        })
        .collect()
}

/// An outbox as the store keeps it, after its documentation.
#[derive(Default)]
pub(super) struct Memory {
    state: Mutex<State>,
    end: watch::Sender<u64>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) rows: BTreeMap<u64, OutboxRow>,
    pub(super) cursor: u64,
    pub(super) lanes: Option<Lanes>,
    pub(super) kept: u64,
    pub(super) rejected: Vec<(u64, String)>,
    /// How often lanes were begun.
    pub(super) splits: u32,
}

impl Memory {
    pub(super) fn new(waiting: u64) -> Arc<Self> {
        let memory = Arc::new(Self::default());
        memory.push(waiting);
        memory
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Makes `count` more rows durable.
    pub(super) fn push(&self, count: u64) {
        let first = *self.end.borrow() + 1;
        self.state().rows.extend(rows(first, count).into_iter().map(|row| (row.position, row)));
        self.end.send_modify(|end| *end += count);
    }

    /// Drops everything up to `position`, as a bound does: a notice takes the last place.
    pub(super) fn drop_upto(&self, position: u64) {
        let mut state = self.state();
        let first = state.rows.keys().next().copied().unwrap_or(position);
        let gap = Gap { from: first, to: position, reason: GapReason::Dropped };
        let live = state.lanes.take().map_or(0, |lanes| lanes.live);
        let place = position.max(live);
        state.rows.retain(|at, _| *at > place);
        let row = rows(place, 1).remove(0);
        let row = OutboxRow { gap: Some(gap), seq: gap.to, body: Bytes::new(), ..row };
        state.rows.insert(place, row);
        state.cursor = place - 1;
        drop(state);
        // Whoever waits looks again.
        self.end.send_modify(|_| {});
    }

    /// A notice stays in the last position that was settled, which passed it untold.
    pub(super) fn keep_notice(&self, gap: Gap) {
        let mut state = self.state();
        let position = state.cursor;
        let row = rows(position, 1).remove(0);
        let row = OutboxRow { gap: Some(gap), seq: gap.to, body: Bytes::new(), ..row };
        state.rows.insert(position, row);
        state.cursor = position - 1;
        state.kept += 1;
    }

    /// Makes `count` rows durable that cannot be read back.
    pub(super) fn push_unreadable(&self, count: u64) {
        self.end.send_modify(|end| *end += count);
    }

    /// Makes the notice of a gap durable.
    pub(super) fn push_gap(&self, gap: Gap) {
        let position = *self.end.borrow() + 1;
        let row = rows(position, 1).remove(0);
        let row = OutboxRow { gap: Some(gap), seq: gap.to, body: Bytes::new(), ..row };
        self.state().rows.insert(position, row);
        self.end.send_modify(|end| *end += 1);
    }
}

/// What an `Arc` of a memory is asked.
pub(super) struct Handle(pub(super) Arc<Memory>);

impl Outbox for Handle {
    fn next(
        &self,
        after: u64,
        max_rows: usize,
        _: usize,
    ) -> BoxFuture<'static, Result<Vec<OutboxRow>, StoreError>> {
        let memory = self.0.clone();
        async move {
            let mut end = memory.end.subscribe();
            loop {
                end.wait_for(|end| *end > after).await.map_err(|_| StoreError::Closed)?;
                // The store's thread answers later.
                tokio::task::yield_now().await;
                let beyond = after + 1..;
                let rows: Vec<_> =
                    memory.state().rows.range(beyond).take(max_rows).map(|r| r.1.clone()).collect();
                if !rows.is_empty() {
                    return Ok(rows);
                }
                end.changed().await.map_err(|_| StoreError::Closed)?;
            }
        }
        .boxed()
    }

    fn end(&self) -> u64 {
        *self.0.end.borrow()
    }

    fn waiting(&self) -> u64 {
        self.0.state().rows.len() as u64
    }

    fn cursor(&self) -> u64 {
        self.0.state().cursor
    }

    fn notices_kept(&self) -> u64 {
        self.0.state().kept
    }

    fn lanes(&self) -> Option<Lanes> {
        self.0.state().lanes
    }

    fn split(&self) -> BoxFuture<'static, Result<Option<Lanes>, StoreError>> {
        let (memory, end) = (self.0.clone(), self.end());
        async move {
            tokio::task::yield_now().await;
            let mut state = memory.state();
            if state.lanes.is_none() && end > state.cursor {
                state.lanes = Some(Lanes { split: end, live: end });
                state.splits += 1;
            }
            Ok(state.lanes)
        }
        .boxed()
    }

    fn delivered(&self, upto: u64) {
        let mut state = self.0.state();
        state.cursor = state.cursor.max(upto);
        if let Some(lanes) = state.lanes
            && state.cursor >= lanes.split
        {
            state.cursor = state.cursor.max(lanes.live);
            state.lanes = None;
        }
        let cursor = state.cursor;
        state.rows.retain(|position, _| *position > cursor);
    }

    fn delivered_live(&self, upto: u64) {
        let mut state = self.0.state();
        let Some(Lanes { split, .. }) = state.lanes else {
            // The backlog has ended.
            drop(state);
            return self.delivered(upto);
        };
        state.rows.retain(|position, _| *position <= split || *position > upto);
        if let Some(lanes) = &mut state.lanes {
            lanes.live = lanes.live.max(upto);
        }
    }

    fn reject(&self, position: u64, reason: &str) {
        let split = {
            let mut state = self.0.state();
            state.rows.remove(&position).expect("a row that waits");
            state.rejected.push((position, reason.to_owned()));
            state.lanes.map(|lanes| lanes.split)
        };
        match split {
            Some(split) if position > split => self.delivered_live(position),
            _ => self.delivered(position),
        }
    }
}

/// One record that the far side took, and when.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Arrived {
    pub(super) position: u64,
    pub(super) at: Duration,
    pub(super) replayed: bool,
}

/// What the far side says to a record.
type Answer = Box<dyn FnMut(u64) -> Option<Fault> + Send>;

/// A far side that takes time and says no by script.
pub(super) struct FarSide {
    /// Time of each delivery, and of each record in it.
    pub(super) takes: (Duration, Duration),
    pub(super) answer: Answer,
    pub(super) started: Instant,
    pub(super) arrived: Arc<Mutex<Vec<Arrived>>>,
    pub(super) connects: Arc<Mutex<Vec<Duration>>>,
    /// How often a connection is refused first.
    pub(super) refuses: u32,
}

impl North for FarSide {
    fn stats(&self) -> Arc<Stats> {
        Arc::default()
    }

    fn connect(&mut self) -> BoxFuture<'_, Result<(), Fault>> {
        self.connects.lock().unwrap().push(self.started.elapsed());
        let refused = self.refuses > 0;
        self.refuses = self.refuses.saturating_sub(1);
        let result = if refused { Err(Fault::Link("refused".to_owned())) } else { Ok(()) };
        std::future::ready(result).boxed()
    }

    fn deliver<'a>(&'a mut self, payloads: &'a [Payload]) -> BoxFuture<'a, Delivered> {
        async move {
            tokio::time::sleep(self.takes.0).await;
            for (count, payload) in payloads.iter().enumerate() {
                let position = payload.id.rsplit(['/', '-']).next().unwrap().parse().unwrap();
                if let Some(fault) = (self.answer)(position) {
                    return Delivered { count, fault: Some(fault) };
                }
                tokio::time::sleep(self.takes.1).await;
                let (at, replayed) = (self.started.elapsed(), payload.replayed);
                self.arrived.lock().unwrap().push(Arrived { position, at, replayed });
            }
            Delivered { count: payloads.len(), fault: None }
        }
        .boxed()
    }
}
