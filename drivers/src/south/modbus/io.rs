//! Reads one Modbus device over its link: pacing, asking, and one row a cycle.
//!
//! What to ask and what an answer means is [`Scheduler`]'s decision; how bytes travel is the bus's.
//! Here is only waiting: deadlines on a fixed grid, so that nothing drifts.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::ModbusDevice;
use crate::backoff::Backoff;
use crate::border::{Fault, Receipt, South};
use crate::bus::{Answer, BusHandle, Gone, NewJob};
use crate::modbus::plan::Hole;
use crate::modbus::scheduler::{Outcome, Scheduler};
use crate::modbus::transaction::Failure;
use crate::point::Point;
use crate::stats::{Counter, LinkState, Stats};
use crate::table::TableBuilder;

/// How often something that is read once is tried until the device has answered.
const ONCE_RETRY: Duration = Duration::from_secs(10);

/// Where a device is between two calls of `read`.
enum Phase {
    /// Waits for the next cycle.
    Idle,
    /// In a cycle, between two requests.
    Running,
    /// In a cycle, waiting for an answer.
    Asked(oneshot::Receiver<Answer>),
}

/// Reads a Modbus device: one row a cycle.
///
/// While the link is down there are no rows, because nothing was read; a unit that does not
/// answer gives rows of nulls.
pub struct ModbusSouth {
    name: String,
    unit: u8,
    points: Arc<[Point]>,
    period: Duration,
    timeout: Duration,
    bus: BusHandle,
    scheduler: Scheduler,
    stats: Arc<Stats>,
    phase: Phase,
    /// When the next cycle starts, or the one under way should have.
    due: Option<Instant>,
    /// Read once a connection: the number of the one for which that is done.
    once: Option<u64>,
    /// Where in `period` cycles start, counted from the first reading.
    offset: Duration,
    /// Pause after a reply, and when the one under way ends.
    delay: Duration,
    ready_at: Option<Instant>,
    /// Travels with each request and comes back with its data.
    buffer: Vec<u8>,
}

impl std::fmt::Debug for ModbusSouth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModbusSouth").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ModbusSouth {
    /// Prepares the reading of `device` over `bus`. [`Fault::Config`] where the device has a
    /// problem, with the words of the configuration check.
    pub fn new(
        name: impl Into<String>,
        device: ModbusDevice,
        bus: BusHandle,
    ) -> Result<Self, Fault> {
        let name = name.into();
        if let Some(problem) = device.problems().first() {
            return Err(Fault::Config(format!(
                "device {name}: {}: {}",
                problem.message, problem.hint
            )));
        }
        let [poll] = device.polls.as_slice() else {
            let text = format!("device {name}: only one poll group can be read at once");
            return Err(Fault::Config(text));
        };
        let (period, once) = match poll.every.period() {
            Some(period) => (period, None),
            None => (ONCE_RETRY, Some(0)),
        };
        let spread = poll.spread;
        Ok(Self {
            once,
            offset: if spread { phase(&name, period) } else { Duration::ZERO },
            delay: device.inter_request_delay.duration(),
            ready_at: None,
            name,
            unit: device.unit_id.get(),
            points: device.points.columns(),
            period,
            timeout: device.timeout.duration(),
            scheduler: Scheduler::new(device),
            stats: Arc::default(),
            phase: Phase::Idle,
            due: None,
            buffer: Vec::new(),
            bus,
        })
    }

    /// What the device has refused to read so far; also shown in [`Stats::notes`].
    pub fn holes(&self) -> &[Hole] {
        self.scheduler.holes()
    }

    /// Waits for the next cycle's due time and for the link. `false` where the link was down
    /// for the whole cycle.
    async fn wait(&mut self) -> Result<bool, Fault> {
        if self.once.is_some() {
            self.reconnected().await?;
        }
        let due = *self.due.get_or_insert_with(|| Instant::now() + self.offset);
        sleep_until(due).await;
        if self.bus.state() != LinkState::Up {
            self.stats.set_state(self.bus.state());
        }
        match timeout_at(due + self.period, self.bus.connected()).await {
            Ok(Ok(())) => Ok(true),
            Ok(Err(Gone)) => Err(self.gone()),
            Err(_) => {
                self.missed(self.bus.stats().last_error());
                self.due = Some(next_due(due, self.period, Instant::now()).0);
                Ok(false)
            }
        }
    }

    /// Waits while the connection is the one for which all was read.
    async fn reconnected(&mut self) -> Result<(), Fault> {
        while self.once == Some(self.bus.stats().get(Counter::Connects)) {
            self.stats.set_state(self.bus.state());
            if self.bus.changed().await.is_err() {
                return Err(self.gone());
            }
            self.due = None;
        }
        Ok(())
    }

    /// A cycle in which nothing could be read for want of a connection.
    fn missed(&self, error: Option<String>) {
        self.stats.add(Counter::CyclesWithoutLink, 1);
        self.stats.set_state(LinkState::Down);
        self.stats.set_error(Some(error.unwrap_or_else(|| "no connection yet".to_owned())));
    }

    fn gone(&self) -> Fault {
        self.stats.set_state(LinkState::Down);
        Fault::Link(format!("the link {} is not served any more", self.bus.name()))
    }

    fn plan_next(&mut self, due: Instant) {
        let (next, overrun) = next_due(due, self.period, Instant::now());
        self.due = Some(next);
        if overrun {
            self.stats.add(Counter::Overruns, 1);
        }
    }

    /// Makes the requests of a cycle, one after another.
    async fn cycle(&mut self) -> Result<(), Fault> {
        loop {
            if let Phase::Asked(answer) = &mut self.phase {
                let answer = answer.await;
                self.phase = Phase::Running;
                self.take(answer);
            }
            let Some(request) = self.scheduler.next_request() else {
                return Ok(());
            };
            if let Some(ready_at) = self.ready_at {
                sleep_until(ready_at).await;
            }
            let job = NewJob {
                request,
                timeout: self.timeout,
                buffer: std::mem::take(&mut self.buffer),
                stats: Arc::clone(&self.stats),
            };
            let Ok(answer) = self.bus.submit(job).await else {
                return Err(self.gone());
            };
            self.phase = Phase::Asked(answer);
        }
    }

    fn take(&mut self, answer: Result<Answer, oneshot::error::RecvError>) {
        let now = Instant::now();
        self.ready_at = (!self.delay.is_zero()).then(|| now + self.delay);
        if let Ok(Answer { buffer, outcome }) = answer {
            let outcome = outcome.map(|arrived| (&buffer[..], arrived));
            self.scheduler.answer(outcome, now);
            self.buffer = buffer;
        } else {
            let text = "the link's task failed during the request";
            self.scheduler.answer(Err(Failure::Link(text.into())), now);
        }
    }

    /// Writes the cycle's row and shows what it came to.
    fn end_cycle(&mut self, rows: &mut TableBuilder) {
        self.phase = Phase::Idle;
        let others = self.bus.others_answered(self.unit);
        let outcome = self.scheduler.finish(rows, Instant::now(), others);
        let error = self.scheduler.error();
        match outcome {
            Outcome::NoLink => self.missed(error.map(str::to_owned)),
            Outcome::Row(_) => {
                self.stats.set_error(error.map(str::to_owned));
                // The link is up, but that is not this unit's merit.
                let silent = self.scheduler.is_silent();
                self.stats.set_state(if silent { LinkState::Down } else { LinkState::Up });
            }
        }
        if self.scheduler.learnt() {
            let holes = self.scheduler.holes().len();
            tracing::info!(device = %self.name, holes, "learnt what the device refuses to read");
            let notes = self.scheduler.holes().iter().map(ToString::to_string).collect();
            self.stats.set_notes(notes);
        }
        if self.once.is_some() && self.scheduler.is_settled() && matches!(outcome, Outcome::Row(_))
        {
            self.once = Some(self.bus.stats().get(Counter::Connects));
        }
        if let Some(due) = self.due {
            self.plan_next(due);
        }
    }
}

/// A moment within `period` that depends on the name alone.
fn phase(name: &str, period: Duration) -> Duration {
    let percent = Backoff::hash(name) % 100;
    period * u32::try_from(percent).unwrap_or(0) / 100
}

/// The due time after the cycle that was due at `due` and has ended at `now`, and whether it
/// overran. Cycles stay on the grid of the first one. One that is late by less than half of
/// the period is made up for at once, so that the rate does not halve; any other missed cycle
/// is skipped, never queued.
fn next_due(due: Instant, period: Duration, now: Instant) -> (Instant, bool) {
    let next = due + period;
    let Some(late) = now.checked_duration_since(next).filter(|late| !late.is_zero()) else {
        return (next, false);
    };
    let whole = u32::try_from(late.as_nanos() / period.as_nanos().max(1)).unwrap_or(u32::MAX);
    let Some(tick) = period.checked_mul(whole).map(|skipped| next + skipped) else {
        return (now + period, true);
    };
    if now - tick < period / 2 { (tick, true) } else { (tick + period, true) }
}

impl South for ModbusSouth {
    fn points(&self) -> &[Point] {
        &self.points
    }

    fn shared_points(&self) -> Arc<[Point]> {
        Arc::clone(&self.points)
    }

    fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// Returns at once: the link's owner makes the connection.
    fn connect(&mut self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Reads one cycle. Returns without a row where there was no connection.
    fn read<'a>(
        &'a mut self,
        rows: &'a mut TableBuilder,
    ) -> BoxFuture<'a, Result<Option<Receipt>, Fault>> {
        Box::pin(async move {
            if matches!(self.phase, Phase::Idle) {
                if !self.wait().await? {
                    return Ok(None);
                }
                self.scheduler.start(Instant::now(), self.bus.others_answered(self.unit));
                self.phase = Phase::Running;
            }
            self.cycle().await?;
            self.end_cycle(rows);
            Ok(None)
        })
    }

    /// What was asked has been served: its answer is read, and the cycle completed.
    fn finish<'a>(&'a mut self, rows: &'a mut TableBuilder) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            if !matches!(self.phase, Phase::Idle) {
                self.cycle().await?;
                self.end_cycle(rows);
            }
            Ok(())
        })
    }

    /// A device does not wait for anything: nothing to do.
    fn settle(&mut self, _: Receipt) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod link_tests;
#[cfg(test)]
#[path = "rtu_tests.rs"]
mod rtu_tests;
#[cfg(test)]
#[path = "cycle_tests.rs"]
mod tests;
