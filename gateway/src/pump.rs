//! One sink at work: takes records from its outbox in order, delivers them, and moves the cursor.
//!
//! The cursor is a contiguous low-water mark: it moves over what the far side has taken, and over
//! what was refused often enough to be set aside, and over nothing else. `queue` says what comes
//! next, `lane` holds rows, `pace` says how many, `write` what they look like; `outbox` is what all
//! of it needs of the store.

mod lane;
mod outbox;
mod pace;
mod queue;
mod write;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_drivers::stats::LinkState;
use tidegate_drivers::{Delivered, Fault, North, Payload};
use tidegate_engine::store::OutboxRow;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, seed};
use crate::progress::Pulse;
use crate::supervisor::{Exit, Part, Said};

use lane::Suspicion;
pub use outbox::SinkOutbox;
pub use queue::{Plan, Queue};
use queue::{Side, Turn};
pub use write::Writer;

/// What one sink has delivered since the process started, beside what the store counts.
#[derive(Debug, Default)]
pub struct SinkCounts {
    /// Records that the far side has taken.
    pub delivered: AtomicU64,
    /// Of these, records that had waited when the connection was made.
    pub replayed: AtomicU64,
    /// Notices of gaps that the far side has taken.
    pub gaps: AtomicU64,
}

/// What somebody asks of a sink at work.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Asked {
    /// Nothing is delivered.
    pub paused: bool,
    /// For the present backlog, this many records a second instead of what the configuration
    /// says; none inside: as many as the far side takes.
    pub rate: Option<Option<f64>>,
}

/// Why a record is set aside that was never refused.
const ENDED_AGAIN: &str = "the connection ended with it again and again, and not without it";

/// A sink and what it needs.
pub struct Pump {
    /// The sink's name.
    pub name: Arc<str>,
    /// The driver.
    pub north: Box<dyn North>,
    /// What waits, and in which order it goes.
    pub queue: Queue,
    /// From a row to a payload.
    pub writer: Writer,
    /// Records of the backlog in a second at most, where nobody asks for another rate.
    pub rate: Option<f64>,
    /// What somebody asks; taken note of at once.
    pub asked: watch::Sender<Asked>,
    /// Ends delivery.
    pub stop: CancellationToken,
    /// Shortest and longest pause between two attempts to connect.
    pub pauses: (Duration, Duration),
    /// Attempts before a refused record is set aside.
    pub refusals_max: u32,
    /// What the sink has delivered.
    pub counts: Arc<SinkCounts>,
    /// Beats with each step.
    pub pulse: Arc<Pulse>,
}

impl Part for Pump {
    async fn run(&mut self) -> Exit {
        let mut backoff = Backoff::new(self.pauses.0, self.pauses.1, seed(&self.name));
        let mut said = Said::default();
        let mut asked = self.asked.subscribe();
        loop {
            let fault = match self.connected(&mut asked, &mut backoff, &mut said).await {
                Ok(()) => return Exit::Done,
                Err(fault) => fault,
            };
            self.north.stats().set_error(Some(fault.to_string()));
            match fault {
                Fault::Config(error) => return Exit::Hopeless(error),
                Fault::Refused(error) | Fault::Link(error) => {
                    self.north.stats().set_state(LinkState::Down);
                    let pause = backoff.pause();
                    if said.is_new(&error) {
                        tracing::warn!(sink = &*self.name, error, ?pause, "no connection");
                    } else {
                        tracing::debug!(sink = &*self.name, error, ?pause, "no connection again");
                    }
                    let was_paused = asked.borrow_and_update().paused;
                    let resumed = async {
                        // Ends with the sender, which is this pump's own.
                        let resumed = asked.wait_for(|asked| was_paused && !asked.paused).await;
                        drop(resumed);
                    };
                    tokio::select! {
                        () = self.pulse.waiting(tokio::time::sleep(pause)) => {}
                        () = resumed => backoff.reset(),
                        () = self.stop.cancelled() => return Exit::Done,
                    }
                }
            }
        }
    }
}

impl Pump {
    /// Connects and delivers until stopped (`Ok`) or until the connection fails.
    async fn connected(
        &mut self,
        asked: &mut watch::Receiver<Asked>,
        backoff: &mut Backoff,
        said: &mut Said,
    ) -> Result<(), Fault> {
        tokio::select! {
            result = self.north.connect() => result?,
            () = self.stop.cancelled() => return Ok(()),
        }
        self.pulse.beat();
        tracing::info!(sink = &*self.name, "connected");
        let mut now = *asked.borrow_and_update();
        self.queue.begin(now.rate.unwrap_or(self.rate), Instant::now());
        loop {
            if now.paused {
                tracing::info!(sink = &*self.name, "paused");
                // What is held may be dropped by a bound meanwhile.
                self.queue.forget();
                if !self.resumed(asked).await {
                    return Ok(());
                }
                tracing::info!(sink = &*self.name, "resumed");
                now = *asked.borrow_and_update();
                self.queue.begin(now.rate.unwrap_or(self.rate), Instant::now());
            }
            self.end_rate();
            let turn = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(()),
                // Its sender is this pump's own: there is a change whenever this resolves.
                _ = asked.changed() => {
                    let before = now.rate;
                    now = *asked.borrow_and_update();
                    if now.rate != before {
                        self.queue.set_rate(now.rate.unwrap_or(self.rate), Instant::now());
                    }
                    continue;
                }
                turn = self.pulse.waiting(self.queue.turn()) => {
                    turn.map_err(|e| Fault::Link(format!("store: {e}")))?
                }
            };
            if self.deliver(turn).await? {
                backoff.reset();
                said.reset();
            }
        }
    }

    /// Waits until the sink is not paused; false where it is stopped instead.
    async fn resumed(&mut self, asked: &mut watch::Receiver<Asked>) -> bool {
        let resumed = async { asked.wait_for(|asked| !asked.paused).await.is_ok() };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            resumed = self.pulse.waiting(resumed) => resumed,
        }
    }

    /// A rate that was asked for ends with the backlog that it was asked for.
    fn end_rate(&self) {
        if !self.queue.has_backlog() {
            self.asked.send_if_modified(|asked| asked.rate.take().is_some());
        }
    }

    /// Delivers what it is the turn of. True where the far side has taken something; an error means
    /// that the connection is to be made again.
    async fn deliver(&mut self, turn: Turn) -> Result<bool, Fault> {
        let backlog_end = self.queue.backlog_end();
        let waited = |row: &OutboxRow| row.position <= backlog_end;
        let lane = self.queue.lane(turn.side);
        let sent = lane.range(turn.rows);
        let rows = lane.rows()[sent.clone()].iter();
        let payloads: Vec<Payload> =
            rows.map(|row| self.writer.payload(row, waited(row))).collect();
        let begun = Instant::now();
        let Delivered { count, fault } = self.north.deliver(&payloads).await;
        let took = begun.elapsed();
        self.pulse.beat();

        let held = self.queue.lane(turn.side).rows();
        let (first, rest) = (Told::of(&held[0]), &held[sent.start..]);
        let refused = rest.get(count).map(Told::of);
        let (taken, last) = (Taken::of(&rest[..count], waited), rest[..count].last());
        let last = last.map(|row| row.position);
        // What a lost connection took along was sent as well.
        let gone = if fault.is_none() { count } else { payloads.len() };
        let old = rest[..gone].iter().filter(|row| waited(row)).count();
        self.queue.learn(turn, count, old, took);
        let is_probe = sent.start > 0;
        if let Some(last) = last {
            self.count(&taken);
            if is_probe {
                self.queue.lane(turn.side).suspicion.passed_behind(last);
            } else {
                let suspicion = std::mem::take(&mut self.queue.lane(turn.side).suspicion);
                self.queue.delivered(turn.side, last);
                self.settle_behind(turn.side, first, &suspicion);
            }
        }
        match (fault, refused) {
            (None, _) => Ok(count > 0),
            (Some(Fault::Refused(reason)), Some(row)) => {
                self.north.stats().set_error(Some(reason.clone()));
                self.refused(turn.side, row, &reason, is_probe);
                Ok(count > 0)
            }
            (Some(fault), _) => {
                if count == 0 && self.queue.lane(turn.side).suspicion.ended_with(first.position) {
                    self.set_head_aside(turn.side, first, ENDED_AGAIN);
                }
                Err(fault)
            }
        }
    }

    fn count(&self, taken: &Taken) {
        let add = |counter: &AtomicU64, n: usize| counter.fetch_add(n as u64, Ordering::Relaxed);
        add(&self.counts.gaps, taken.gaps);
        add(&self.counts.delivered, taken.records);
        add(&self.counts.replayed, taken.replayed);
    }

    /// The far side said no to the record at the head of a lane, or to the `probe` behind one that
    /// ends connections: that one is remembered until the head is settled.
    fn refused(&mut self, side: Side, row: Told, reason: &str, probe: bool) {
        let lane = self.queue.lane(side);
        if lane.refusals.again(row.position) < self.refusals_max {
            return;
        }
        if probe {
            lane.suspicion.refused_behind(row.position, reason);
        } else {
            self.set_head_aside(side, row, reason);
        }
    }

    /// Sets the record at the head aside, and settles what was found out about those behind it.
    fn set_head_aside(&mut self, side: Side, head: Told, reason: &str) {
        let suspicion = std::mem::take(&mut self.queue.lane(side).suspicion);
        self.set_aside(side, head, reason);
        self.settle_behind(side, head, &suspicion);
    }

    /// The head being settled, settles the one behind it that was taken before, and those between
    /// them, each of which was refused.
    fn settle_behind(&mut self, side: Side, head: Told, suspicion: &Suspicion) {
        let Some(passed) = suspicion.passed(head.position) else {
            return;
        };
        let lane = self.queue.lane(side);
        let behind = lane.held_upto(passed);
        let behind: Vec<Told> = lane.rows()[..behind].iter().map(Told::of).collect();
        for row in behind {
            if row.position == passed {
                self.queue.delivered(side, passed);
            } else if let Some(reason) = suspicion.refusal(row.position) {
                self.set_aside(side, row, reason);
            } else {
                // Nothing is known of it: it goes its way, and what is behind it once more.
                return;
            }
        }
    }

    /// Puts a record among the dead letters and lets the cursor pass. The notice of a gap is no
    /// record that somebody could send again: it is let go.
    fn set_aside(&mut self, side: Side, row: Told, reason: &str) {
        let Told { position, notice } = row;
        tracing::warn!(sink = &*self.name, position, reason, notice, "record set aside");
        if notice {
            self.queue.delivered(side, position);
        } else {
            self.queue.reject(side, position, reason);
        }
    }
}

/// A row, as far as it matters where it is refused.
#[derive(Debug, Clone, Copy)]
struct Told {
    position: u64,
    /// It tells of a gap.
    notice: bool,
}

impl Told {
    fn of(row: &OutboxRow) -> Self {
        Self { position: row.position, notice: row.gap.is_some() }
    }
}

/// What the far side has taken of a delivery.
#[derive(Debug, Clone, Copy)]
struct Taken {
    records: usize,
    gaps: usize,
    /// Of all of these, what waited when the connection was made.
    replayed: usize,
}

impl Taken {
    fn of(rows: &[OutboxRow], waited: impl Fn(&OutboxRow) -> bool) -> Self {
        let gaps = rows.iter().filter(|row| row.gap.is_some()).count();
        let replayed = rows.iter().filter(|row| waited(row)).count();
        Self { records: rows.len() - gaps, gaps, replayed }
    }
}
