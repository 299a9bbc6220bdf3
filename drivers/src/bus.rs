//! The owner of one Modbus connection or serial port, shared by all devices behind it.
//!
//! Strictly one request is on the wire; requests are served in the order in which they came. Each
//! device has at most one request in the queue, so a silent unit costs the others one deadline a
//! turn and no more. While there is no connection every request is answered at once: nothing
//! queues up during an outage. Knows no points and no schedule.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::backoff::Backoff;
use crate::modbus::frame::ReadRequest;
use crate::modbus::line::Timing;
use crate::modbus::transaction::{Failure, Tally};
use crate::south::modbus::{Bus, Echo, Framing, RtuBus, TcpBus, TidCheck};
use crate::stats::{Counter, LinkState, Stats};

mod link;
pub(crate) use link::{Connect, Link};
use link::{PortConnector, Speech, Spoken, TcpConnector};

/// Requests that wait for a link; more than that, and devices wait for their turn to ask.
pub const QUEUE_REQUESTS_MAX: usize = 256;
/// Timeouts in a row, of all units, after which the connection is made anew. Doubles up to
/// [`REOPEN_TIMEOUTS_MAX`] while no reply comes: a path that died without a word is found, and a
/// link with one unit that is switched off is left in peace.
const REOPEN_TIMEOUTS: u32 = 4;
const REOPEN_TIMEOUTS_MAX: u32 = 256;
/// Opening a port does not wait for anything.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// How long requests wait for a connection that is made anew at once, before they are refused: some
/// devices close the connection after each reply.
const RECONNECT_GRACE: Duration = Duration::from_millis(200);

/// Makes the two ends of a link: one task runs the owner, each device holds a handle.
pub fn open(name: &str, config: &Bus) -> (BusHandle, BusOwner) {
    match config {
        Bus::Tcp(tcp) => with_connector(name, tcp, Box::new(TcpConnector(tcp.clone()))),
        Bus::Rtu(rtu) => on_port(name, rtu, Box::new(PortConnector(rtu.settings()))),
    }
}

/// A TCP link over any way to connect.
pub(crate) fn with_connector(
    name: &str,
    tcp: &TcpBus,
    connector: Box<dyn Connect>,
) -> (BusHandle, BusOwner) {
    let pacing = Pacing {
        connect_timeout: tcp.connect_timeout.duration(),
        inter_request_delay: tcp.inter_request_delay.duration(),
        backoff: Backoff::new(tcp.backoff_min.duration(), tcp.backoff_max.duration(), name),
        speech: match tcp.framing {
            Framing::Tcp => Speech::Tcp(tcp.tid_check),
            Framing::Rtu => Speech::Rtu(Timing::of_converter(), Echo::Auto),
        },
        reopens: true,
    };
    assemble(name, pacing, connector)
}

/// A serial link over any way to open its port.
pub(crate) fn on_port(
    name: &str,
    rtu: &RtuBus,
    connector: Box<dyn Connect>,
) -> (BusHandle, BusOwner) {
    let pacing = Pacing {
        connect_timeout: OPEN_TIMEOUT,
        inter_request_delay: rtu.inter_request_delay.duration(),
        backoff: Backoff::new(rtu.backoff_min.duration(), rtu.backoff_max.duration(), name),
        speech: Speech::Rtu(Timing::of_port(&rtu.settings()), rtu.echo),
        // A port that is gone says so, and opening one anew disturbs the line (DTR, RTS).
        reopens: false,
    };
    assemble(name, pacing, connector)
}

fn assemble(name: &str, pacing: Pacing, connector: Box<dyn Connect>) -> (BusHandle, BusOwner) {
    let (jobs_in, jobs) = mpsc::channel(QUEUE_REQUESTS_MAX);
    let (link, link_out) = watch::channel(LinkState::Connecting);
    let stats = Arc::new(Stats::default());
    let heard = Arc::<Heard>::default();
    let handle = BusHandle {
        name: name.into(),
        jobs: jobs_in,
        state: link_out,
        stats: Arc::clone(&stats),
        heard: Arc::clone(&heard),
    };
    let owner = BusOwner {
        heard,
        connector,
        pacing,
        jobs,
        state: link,
        stats,
        transaction: 0,
        ready_at: Instant::now(),
    };
    (handle, owner)
}

/// A device's access to its link. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BusHandle {
    name: Arc<str>,
    jobs: mpsc::Sender<Job>,
    state: watch::Receiver<LinkState>,
    stats: Arc<Stats>,
    heard: Arc<Heard>,
}

impl BusHandle {
    /// The link's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counters, state and last error of the link, of all its devices together.
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// Whether there is a connection.
    pub fn state(&self) -> LinkState {
        *self.state.borrow()
    }

    /// Waits for the connection. `Err` when the owner is gone for good. Cancel safe.
    pub(crate) async fn connected(&mut self) -> Result<(), Gone> {
        self.state.wait_for(|s| *s == LinkState::Up).await.map(|_| ()).map_err(|_| Gone)
    }

    /// Waits until the connection's state may have changed. `Err` when the owner is gone for good.
    /// Cancel safe.
    pub(crate) async fn changed(&mut self) -> Result<(), Gone> {
        self.state.changed().await.map_err(|_| Gone)
    }

    /// Queues a request; the answer comes through the receiver, whose end without an answer means
    /// that the owner failed. Dropping the receiver withdraws the request. Cancel safe.
    pub(crate) async fn submit(&self, mut job: NewJob) -> Result<oneshot::Receiver<Answer>, Gone> {
        job.buffer.clear();
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job { new: job, reply }).await.map_err(|_| Gone)?;
        Ok(answer)
    }

    /// When a unit other than `unit` answered last.
    pub(crate) fn others_answered(&self, unit: u8) -> Option<Instant> {
        self.heard.others(unit)
    }
}

/// The owner of the link does not exist any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

/// Which units on a link have answered lately.
#[derive(Debug, Default)]
struct Heard(Mutex<Lately>);

#[derive(Debug, Default)]
struct Lately {
    last: Option<(u8, Instant)>,
    /// The last answer of another unit than that one.
    other: Option<(u8, Instant)>,
}

impl Heard {
    fn note(&self, unit: u8, at: Instant) {
        let mut lately = self.lock();
        if lately.last.is_some_and(|(last, _)| last != unit) {
            lately.other = lately.last;
        }
        lately.last = Some((unit, at));
    }

    /// When a unit other than `unit` answered last.
    fn others(&self, unit: u8) -> Option<Instant> {
        let lately = self.lock();
        let last = lately.last.filter(|(last, _)| *last != unit);
        last.or(lately.other).map(|(_, at)| at)
    }

    fn lock(&self) -> MutexGuard<'_, Lately> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request of a device.
#[derive(Debug)]
pub(crate) struct NewJob {
    pub(crate) request: ReadRequest,
    /// From sending to the whole reply.
    pub(crate) timeout: Duration,
    /// Comes back with the data, so that nothing is allocated a request.
    pub(crate) buffer: Vec<u8>,
    pub(crate) stats: Arc<Stats>,
}

#[derive(Debug)]
struct Job {
    new: NewJob,
    reply: oneshot::Sender<Answer>,
}

/// What came of a request.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The data bytes of the reply, or nothing.
    pub(crate) buffer: Vec<u8>,
    /// When the reply arrived.
    pub(crate) outcome: Result<Instant, Failure>,
}

struct Pacing {
    connect_timeout: Duration,
    inter_request_delay: Duration,
    backoff: Backoff,
    speech: Speech,
    /// A connection that stays silent is made anew.
    reopens: bool,
}

/// Why a connection was given up.
enum End {
    /// It broke.
    Lost(Failure),
    /// It may hold replies that cannot be told apart, or is silent: make it anew at once.
    Reopen,
    /// All handles are gone.
    Unused,
}

/// Owns the connection. Run by one task; after a panic the same owner can be run again.
pub struct BusOwner {
    connector: Box<dyn Connect>,
    pacing: Pacing,
    jobs: mpsc::Receiver<Job>,
    state: watch::Sender<LinkState>,
    stats: Arc<Stats>,
    heard: Arc<Heard>,
    /// The last transaction id, kept over connections.
    transaction: u16,
    /// No request before this instant: `inter_request_delay` after the last one.
    ready_at: Instant,
}

impl std::fmt::Debug for BusOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BusOwner").field("target", &self.connector.target()).finish_non_exhaustive()
    }
}

impl BusOwner {
    /// Counters, state and last error of the link.
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// Serves requests until all handles are dropped, which is the only way it ends. Connects and
    /// reconnects by itself.
    ///
    /// Dropping the future gives up the connection and fails the request under way; queued
    /// requests stay for the next run.
    pub async fn run(&mut self) {
        let _down = DownWhenDropped { state: self.state.clone(), stats: Arc::clone(&self.stats) };
        // The wait before the next attempt to connect.
        let mut pause = Duration::ZERO;
        let mut reopen_after = REOPEN_TIMEOUTS;
        loop {
            let Some(stream) = self.connect(pause).await else {
                return;
            };
            self.stats.add(Counter::Connects, 1);
            self.set_state(LinkState::Up);
            tracing::info!(target_address = %self.connector.target(), "connected");
            let mut served = Served { silent: 0, reopen_after, good: false };
            let end = self.serve(stream, &mut served).await;
            if served.good {
                self.pacing.backoff.reset();
                reopen_after = REOPEN_TIMEOUTS;
            }
            pause = match end {
                End::Unused => return,
                End::Reopen => {
                    reopen_after = reopen_after.saturating_mul(2).min(REOPEN_TIMEOUTS_MAX);
                    Duration::ZERO
                }
                End::Lost(failure) => {
                    self.lost(&failure.to_string());
                    // A connection that worked is made anew at once, one that never did is not.
                    if served.good { Duration::ZERO } else { self.pacing.backoff.next() }
                }
            };
        }
    }

    fn set_state(&self, state: LinkState) {
        self.stats.set_state(state);
        self.state.send_replace(state);
        if state == LinkState::Up {
            self.stats.set_error(None);
        }
    }

    fn lost(&self, error: &str) {
        let target = self.connector.target();
        // A cable that is unplugged for days is said once.
        if self.stats.last_error().is_none_or(|last| last != error) {
            tracing::warn!(target_address = %target, error, "no connection");
        } else {
            tracing::debug!(target_address = %target, error, "no connection again");
        }
        self.stats.add(Counter::LinkFaults, 1);
        self.stats.set_error(Some(error.to_owned()));
        self.set_state(LinkState::Down);
    }

    /// Tries until there is a connection, answering requests meanwhile; `None` when all handles
    /// are gone.
    async fn connect(&mut self, mut pause: Duration) -> Option<Box<dyn Link>> {
        let grace = if pause.is_zero() { RECONNECT_GRACE } else { Duration::ZERO };
        let refuse_from = Instant::now() + grace;
        loop {
            if !pause.is_zero() {
                tokio::select! {
                    () = sleep(pause) => {}
                    never = refuse(&mut self.jobs, &self.stats, refuse_from) => { match never? {} }
                }
            }
            if self.state.borrow().ne(&LinkState::Down) {
                self.set_state(LinkState::Connecting);
            }
            let limit = self.pacing.connect_timeout;
            let attempt = tokio::select! {
                attempt = timeout(limit, self.connector.connect()) => attempt,
                never = refuse(&mut self.jobs, &self.stats, refuse_from) => match never? {},
            };
            let error = match attempt {
                Ok(Ok(stream)) => return Some(stream),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no connection within {limit:?}"),
            };
            self.lost(&format!("cannot connect to {}: {error}", self.connector.target()));
            pause = self.pacing.backoff.next();
        }
    }

    async fn serve(&mut self, stream: Box<dyn Link>, served: &mut Served) -> End {
        let mut connection = Spoken::new(stream, self.pacing.speech);
        let link_stats = Arc::clone(&self.stats);
        let idle_tally = [&*link_stats];
        loop {
            let job = tokio::select! {
                // First what came unasked: a closed connection takes no request.
                biased;
                failure = connection.idle(Tally(&idle_tally)) => return End::Lost(failure),
                job = self.jobs.recv() => job,
            };
            let Some(Job { new: mut job, reply }) = job else {
                return End::Unused;
            };
            if reply.is_closed() {
                continue;
            }
            // Not even asked where the time has come: a timer of the past fires with the next
            // millisecond, which would be the longest part of a request on a fast network.
            if self.ready_at > Instant::now() {
                sleep_until(self.ready_at).await;
            }
            let device_stats = Arc::clone(&job.stats);
            self.transaction = self.transaction.wrapping_add(1);
            let tally = [&*link_stats, &*device_stats];
            let outcome = connection
                .read(self.transaction, &job.request, job.timeout, &mut job.buffer, Tally(&tally))
                .await;
            self.ready_at = Instant::now() + self.pacing.inter_request_delay;
            if says_something(&outcome) {
                self.heard.note(job.request.unit, Instant::now());
            }
            let end = self.judge(&outcome, served);
            if reply.send(Answer { buffer: job.buffer, outcome }).is_err() {
                tracing::debug!("nobody waits for the answer any more");
            }
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// Decides whether the connection goes on after a request.
    fn judge(&self, outcome: &Result<Instant, Failure>, served: &mut Served) -> Option<End> {
        match outcome {
            Ok(_) | Err(Failure::Exception(_) | Failure::BadReply(_)) => {
                served.good = true;
                served.silent = 0;
                None
            }
            Err(Failure::Timeout(_)) => {
                served.silent += 1;
                // Without ids a late reply would be taken for the next request's.
                let ambiguous = matches!(self.pacing.speech, Speech::Tcp(TidCheck::Lenient));
                let silent = self.pacing.reopens && served.silent >= served.reopen_after;
                (ambiguous || silent).then_some(End::Reopen)
            }
            Err(failure @ Failure::Link(_)) => Some(End::Lost(failure.clone())),
        }
    }
}

/// True where the unit that was asked has answered: with a gateway's word for it, it has not.
fn says_something(outcome: &Result<Instant, Failure>) -> bool {
    outcome.as_ref().err().is_none_or(|f| !f.is_silence() && !matches!(f, Failure::Link(_)))
}

/// What a connection has done so far.
struct Served {
    /// Timeouts in a row.
    silent: u32,
    /// Give the connection up after so many.
    reopen_after: u32,
    /// A reply came.
    good: bool,
}

/// Answers every request with the link's last error, after `from`; `None` when all handles are gone.
/// Cancel safe.
async fn refuse(
    jobs: &mut mpsc::Receiver<Job>,
    stats: &Stats,
    from: Instant,
) -> Option<Infallible> {
    sleep_until(from).await;
    loop {
        let job = jobs.recv().await?;
        let error = stats.last_error().unwrap_or_else(|| "not connected yet".to_owned());
        let answer = Answer { buffer: job.new.buffer, outcome: Err(Failure::Link(error.into())) };
        if job.reply.send(answer).is_err() {
            tracing::debug!("nobody waits for the answer any more");
        }
    }
}

/// Tells devices that nobody serves the link, whichever way the owner's run ended.
struct DownWhenDropped {
    state: watch::Sender<LinkState>,
    stats: Arc<Stats>,
}

impl Drop for DownWhenDropped {
    fn drop(&mut self) {
        self.stats.set_state(LinkState::Down);
        self.state.send_replace(LinkState::Down);
    }
}

#[cfg(test)]
#[path = "bus_tests.rs"]
mod tests;
