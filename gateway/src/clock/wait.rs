//! Waits for the time of day, while nobody has set the clock since the power came.
//!
//! Promise: rows that are accepted meanwhile lie in their tables' logs with the stamps of the monotonic
//! clock, and no stream reads them. Once the clock is set, one durable decision moves all of them by what
//! the clock moved; when nobody sets it in time, one leaves them where they are, as doubtful. Until then
//! no row behind them is read either, so that streams see rows in their order. Where the clock is right
//! from the start this costs one comparison for each batch. It knows no windows and no drivers.
//! Source: design page "Architecture", section Time; fault F11.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use futures::FutureExt;
use tidegate_engine::store::{BootTime, Commit, Stamps, Store, doubted, moved};
use tokio::sync::{RwLock, RwLockReadGuard, watch};
use tokio::time::Instant;

use super::{SharedClock, Trust};
use crate::ledger::{self, ClockKeys};

/// How often it is looked whether the clock was set.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long it is waited for the system's figure to go on.
const EDGE_MAX: Duration = Duration::from_millis(20);

/// What becomes of rows that are stamped by the monotonic clock alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// They wait.
    Waiting,
    /// The clock was set: they are moved by so many microseconds.
    Set(i64),
    /// There are none, or nobody waits for the clock any more.
    Over,
}

/// How rows were moved when the clock was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebased {
    /// By how many microseconds.
    pub by: i64,
    /// How many rows of all tables.
    pub rows: u64,
}

/// The machine's monotonic clock, one reading of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// The start that it counts from: the bytes of the boot id.
    pub boot: u128,
    /// Microseconds since then.
    pub up: i64,
}

impl Machine {
    /// Reads both from the system. Takes up to 10 ms, because it waits until the system's figure, which
    /// has two decimals, goes on. Where the system tells none, the start is one that nobody else has.
    pub fn read() -> Self {
        let boot = boot_id().and_then(|id| u128::from_str_radix(&id.replace('-', ""), 16).ok());
        let (begun, first) = (Instant::now(), up());
        let mut now = first;
        while first.is_some() && now == first && begun.elapsed() < EDGE_MAX {
            now = up();
        }
        // Twice 64 bits of which nobody else has the same.
        let unknown = || {
            let random = RandomState::new();
            (u128::from(random.hash_one(0)) << 64) | u128::from(random.hash_one(1))
        };
        Self { boot: boot.unwrap_or_else(unknown), up: now.unwrap_or(0) }
    }
}

/// The boot id of the machine, where the system tells it.
pub fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// Microseconds since the machine started, in steps of 10 ms.
fn up() -> Option<i64> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    let (seconds, hundredths) = text.split_whitespace().next()?.split_once('.')?;
    let (seconds, hundredths): (i64, i64) = (seconds.parse().ok()?, hundredths.parse().ok()?);
    Some(seconds * 1_000_000 + hundredths * 10_000)
}

/// Whether rows wait for the time of day, and what became of them.
#[derive(Debug)]
pub struct ClockWait {
    /// By which clock rows are stamped; none where none ever waits.
    stamps: Option<Stamps>,
    phase: watch::Sender<Phase>,
    /// Tables submit waiting rows on one side, the decision is submitted on the other: no row waits
    /// behind it in the store's queue.
    door: RwLock<()>,
    began: Instant,
    bound_ms: AtomicU64,
    /// Rows that wait, by table.
    waiting: Mutex<BTreeMap<Arc<str>, u64>>,
    rebased: OnceLock<Rebased>,
}

impl Default for ClockWait {
    fn default() -> Self {
        Self::new(None, Duration::ZERO, BTreeMap::new())
    }
}

impl ClockWait {
    fn new(stamps: Option<Stamps>, bound: Duration, waiting: BTreeMap<Arc<str>, u64>) -> Self {
        let phase = if stamps.is_some() { Phase::Waiting } else { Phase::Over };
        let wait = Self {
            stamps,
            phase: watch::Sender::new(phase),
            door: RwLock::default(),
            began: Instant::now(),
            bound_ms: AtomicU64::new(0),
            waiting: Mutex::new(waiting),
            rebased: OnceLock::new(),
        };
        wait.set_bound(bound);
        wait
    }

    /// Waits up to `bound` from now on, where `clock` was not set since the power came; and decides on
    /// rows that an earlier process left waiting. Those of another start of the machine wait in vain;
    /// those of this one are moved where the clock is right by now. `machine` reads the monotonic clock,
    /// if it is needed. Called before anything else is submitted, so that the queue has room.
    pub fn begin(
        store: &Store,
        clock: &SharedClock,
        bound: Duration,
        machine: impl FnOnce() -> Machine,
    ) -> Self {
        let boots = store.boots();
        let left = boots.iter().filter(|(_, time)| *time == BootTime::Waiting);
        let left: Vec<u128> = left.map(|(boot, _)| *boot).collect();
        if !clock.moment().unset && left.is_empty() {
            return Self::default();
        }
        let machine = machine();
        let moment = clock.moment();
        let ahead = moment.time.saturating_sub(machine.up);
        let known = boots.iter().find(|(boot, _)| *boot == machine.boot).map(|(_, time)| *time);
        if let (true, Some(BootTime::Set(ahead))) = (moment.unset, known) {
            // It was set once, and its monotonic clock goes on.
            clock.resume(ahead.saturating_add(machine.up));
        }
        let is_open = matches!(known, None | Some(BootTime::Waiting));
        let waits = moment.unset && is_open && !bound.is_zero();
        let mut waiting = ledger::clock_waiting(store);
        for boot in left {
            let own = boot == machine.boot;
            if own && waits {
                continue;
            }
            let is_set = own && !moment.unset && moment.trust == Trust::Certain;
            let time = if is_set { BootTime::Set(ahead) } else { BootTime::Never };
            let commit = decision(boot, time, &std::mem::take(&mut waiting));
            tracing::info!(?time, "rows of an earlier run waited for the clock");
            if !matches!(store.submit(commit).now_or_never(), Some(Ok(_))) {
                tracing::error!("what becomes of rows that waited for the clock is not kept");
            }
        }
        if !waits {
            return Self::default();
        }
        tracing::warn!(?bound, "the clock is not set: rows wait for it");
        let stamps = Stamps { boot: machine.boot, anchor: ahead };
        Self::new(Some(stamps), bound, waiting)
    }

    /// Waits so long from the start on.
    pub fn set_bound(&self, bound: Duration) {
        let millis = u64::try_from(bound.as_millis()).unwrap_or(u64::MAX);
        self.bound_ms.store(millis, Ordering::Relaxed);
    }

    /// Whether rows wait.
    pub fn is_waiting(&self) -> bool {
        self.stamps.is_some() && *self.phase.borrow() == Phase::Waiting
    }

    /// Whether rows of a clock that was not set are to be stamped by the monotonic clock alone: their
    /// table then knows what becomes of them.
    pub fn keeps_stamps(&self) -> bool {
        self.stamps.is_some() && *self.phase.borrow() != Phase::Over
    }

    /// How long rows wait at most from now on; none where none waits.
    pub fn left(&self) -> Option<Duration> {
        let bound = Duration::from_millis(self.bound_ms.load(Ordering::Relaxed));
        self.is_waiting().then(|| bound.saturating_sub(self.began.elapsed()))
    }

    /// Resolves when no row waits any more. Cancel safe.
    pub async fn over(&self) {
        let mut phase = self.phase.subscribe();
        // The sender lives as long as this.
        drop(phase.wait_for(|phase| *phase != Phase::Waiting).await);
    }

    /// Rows that wait, by table.
    pub fn waiting(&self) -> BTreeMap<Arc<str>, u64> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How rows were moved, once the clock was set.
    pub fn rebased(&self) -> Option<Rebased> {
        self.rebased.get().copied()
    }

    /// Lets a table submit rows: while the entry is held, it stays as it says. Cancel safe.
    pub async fn enter(&self) -> Entry<'_> {
        let now = || *self.phase.borrow();
        if self.stamps.is_none() || now() != Phase::Waiting {
            return Entry { wait: self, phase: now(), _door: None };
        }
        let door = self.door.read().await;
        Entry { wait: self, phase: now(), _door: Some(door) }
    }

    /// Looks at the clock until it is decided what becomes of the rows that wait, and has that kept.
    /// Cancel safe: dropped before it ends, they go on waiting.
    pub async fn run(self: Arc<Self>, clock: SharedClock, store: Store) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        while let Some(stamps) = self.stamps.filter(|_| self.is_waiting()) {
            look.tick().await;
            let Some(left) = self.left() else { return };
            let moment = clock.moment();
            if moment.unset && !left.is_zero() {
                continue;
            }
            // Where the time is ahead of the clock that was set, the rows are as far ahead.
            let set = (!moment.unset && moment.trust == Trust::Certain).then(|| clock.first_set());
            if let Err(error) = self.decide(stamps, set.flatten(), &store).await {
                tracing::error!(%error, "rows go on waiting for the clock");
                return;
            }
        }
    }

    /// Moves the rows that wait by so many microseconds, or leaves them where they are.
    async fn decide(
        &self,
        stamps: Stamps,
        by: Option<i64>,
        store: &Store,
    ) -> Result<(), tidegate_engine::store::StoreError> {
        let _door = self.door.write().await;
        let waiting = self.waiting();
        let time = match by {
            Some(by) => BootTime::Set(stamps.anchor.saturating_add(by)),
            None => BootTime::Never,
        };
        let commit = Commit { wait: true, ..decision(stamps.boot, time, &waiting) };
        // What streams make of the rows is queued behind this, so it need not be durable yet.
        drop(store.submit(commit).await?);
        let rows = waiting.values().sum();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if let Some(by) = by {
            self.rebased.get_or_init(|| Rebased { by, rows });
            tracing::info!(by_s = by / 1_000_000, rows, "the clock was set: rows that waited move");
        } else {
            tracing::warn!(
                rows,
                "rows do not wait for the clock any more: their times are doubtful"
            );
        }
        self.phase.send_replace(by.map_or(Phase::Over, Phase::Set));
        Ok(())
    }
}

/// What is known of a start from now on, with the rows that it decides on counted.
fn decision(boot: u128, time: BootTime, waiting: &BTreeMap<Arc<str>, u64>) -> Commit {
    let counts = waiting.iter().filter(|(_, rows)| **rows > 0).map(|(table, rows)| {
        let keys = ClockKeys::new(table);
        (if matches!(time, BootTime::Set(_)) { keys.rebased } else { keys.doubted }, *rows)
    });
    Commit { boot: Some((boot, time)), counts: counts.collect(), ..Commit::default() }
}

/// What holds for rows while they are submitted.
#[derive(Debug)]
pub struct Entry<'a> {
    wait: &'a ClockWait,
    phase: Phase,
    _door: Option<RwLockReadGuard<'a, ()>>,
}

impl Entry<'_> {
    /// Whether no stream reads on: what is submitted now is read from the log later.
    pub fn is_waiting(&self) -> bool {
        self.phase == Phase::Waiting
    }

    /// Rows as they are to be kept, and by which clock they were stamped if they wait. `unset` are those
    /// that were stamped by the monotonic clock alone.
    pub fn stamp(
        &self,
        rows: RecordBatch,
        unset: bool,
    ) -> Result<(RecordBatch, Option<Stamps>), ArrowError> {
        match self.phase {
            _ if !unset => Ok((rows, None)),
            Phase::Waiting => Ok((rows, self.wait.stamps)),
            Phase::Set(by) => Ok((moved(&rows, by)?, None)),
            Phase::Over => Ok((doubted(&rows)?, None)),
        }
    }

    /// Counts rows of a table that were submitted and wait.
    pub fn note(&self, table: &Arc<str>, rows: u64) {
        let mut waiting = self.wait.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting.entry(table.clone()).or_default() += rows;
    }
}

#[cfg(test)]
mod tests;
