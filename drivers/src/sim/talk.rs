//! One conversation: requests come, replies leave, and the ledger hears what left.
//!
//! Promises that a value counts as served exactly when the operating system took the whole right
//! reply; a conversation that is dropped in the middle of a reply gives its values back. Knows
//! neither sockets nor ptys, only a byte stream, and nothing of our client.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};
use tokio_modbus::ExceptionCode;
use tokio_util::sync::CancellationToken;

use super::SimFraming;
use super::alter::{Answer, Before, Step, altered, plain};
use super::image::{Unit, lock};
use super::ledger::{Ledger, Reply};
use super::schedule::Schedule;
use super::wire::{Asked, take};

/// Half a request on a serial line is forgotten after so long: far more than 1.5 characters (Serial
/// Line V1.02, section 2.5.1.1), since a pty has no baud rate and its client may be busy.
const SILENCE: Duration = Duration::from_millis(100);

/// What one server answers from; shared by its connections.
#[derive(Debug)]
pub(super) struct Plant {
    pub(super) name: String,
    pub(super) framing: SimFraming,
    pub(super) units: BTreeMap<u8, Unit>,
    pub(super) started: Instant,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    pub(super) faults: Mutex<Schedule>,
    pub(super) stopping: CancellationToken,
}

/// How a conversation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The simulator stops.
    Stopping,
    /// The client went.
    Left,
    /// A fault hung up.
    HungUp,
}

impl Plant {
    /// Answers requests until the simulator stops, the client goes or a fault hangs up. An `Err`
    /// is the stream's, or says that the client does not speak Modbus.
    pub(super) async fn converse<S>(&self, stream: &mut S) -> io::Result<End>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut buffer = Vec::new();
        let (connected, mut replied) = (Instant::now(), BTreeMap::new());
        loop {
            let asked = tokio::select! {
                // Between requests only: a reply that is under way leaves.
                biased;
                () = self.stopping.cancelled() => return Ok(End::Stopping),
                asked = next(stream, &mut buffer, self.framing) => asked?,
            };
            let Some(asked) = asked else { return Ok(End::Left) };
            let before = Before {
                connect: Some(connected.elapsed()),
                reply: replied.get(&asked.unit).map(Instant::elapsed),
            };
            let Some(turn) = self.turn(&asked, before) else { continue };
            let speaks = turn.speaks();
            if turn.play(stream, &self.stopping).await? {
                return Ok(End::HungUp);
            }
            if speaks {
                replied.insert(asked.unit, Instant::now());
            }
        }
    }

    /// What answers a request; `None` where nobody does.
    fn turn(&self, asked: &Asked, before: Before) -> Option<Turn> {
        let unit = self.units.get(&asked.unit);
        if unit.is_none() && self.framing == SimFraming::Rtu {
            // On a serial line only the one who is asked speaks.
            return None;
        }
        let mut reply = Reply::default();
        let seconds = self.started.elapsed().as_secs_f64();
        let pdu = match unit {
            Some(unit) => unit.answer(&asked.pdu, seconds, &mut lock(&self.ledger), &mut reply),
            None => Err(ExceptionCode::GatewayTargetDevice),
        };
        reply.exception = pdu.is_err();
        let pdu = pdu.unwrap_or_else(|code| vec![asked.pdu[0] | 0x80, code.into()]);
        let answer = Answer { framing: self.framing, asked, before, pdu: &pdu };
        let kind = lock(&self.faults).choose(answer, Instant::now());
        if let Some(kind) = kind {
            tracing::info!(server = %self.name, unit = asked.unit, "simulator: {kind}");
        }
        let steps = kind.map_or_else(|| plain(answer), |kind| altered(answer, kind));
        let tally = Tally { ledger: Arc::clone(&self.ledger), reply: Some(reply) };
        Some(Turn { steps, faulty: kind.is_some(), tally })
    }
}

/// The next request; `None` at the end of the stream. Cancel safe: what came is in `buffer`.
async fn next<S: AsyncRead + Unpin>(
    stream: &mut S,
    buffer: &mut Vec<u8>,
    framing: SimFraming,
) -> io::Result<Option<Asked>> {
    loop {
        if let Some(asked) = take(framing, buffer)? {
            return Ok(Some(asked));
        }
        let mut chunk = [0; 512];
        let read = stream.read(&mut chunk);
        let count = if framing == SimFraming::Rtu && !buffer.is_empty() {
            let Ok(count) = timeout(SILENCE, read).await else {
                buffer.clear();
                continue;
            };
            count?
        } else {
            read.await?
        };
        if count == 0 {
            return Ok(None);
        }
        buffer.extend_from_slice(&chunk[..count]);
    }
}

/// A reply on its way.
struct Turn {
    steps: Vec<Step>,
    faulty: bool,
    tally: Tally,
}

impl Turn {
    /// Whether the unit says anything.
    fn speaks(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Reply(_) | Step::Send(_)))
    }

    /// Lets the reply leave; `true` where the connection must be closed then.
    async fn play<S: AsyncWrite + Unpin>(
        mut self,
        stream: &mut S,
        stopping: &CancellationToken,
    ) -> io::Result<bool> {
        if self.faulty {
            self.tally.faulty();
        }
        for step in &self.steps {
            match step {
                Step::Reply(bytes) => {
                    stream.write_all(bytes).await?;
                    stream.flush().await?;
                    self.tally.written();
                }
                Step::Send(bytes) => {
                    stream.write_all(bytes).await?;
                    stream.flush().await?;
                }
                Step::Wait(span) => tokio::select! {
                    () = sleep(*span) => {}
                    () = stopping.cancelled() => return Ok(false),
                },
                Step::HangUp => return Ok(true),
            }
        }
        Ok(false)
    }
}

/// The ledger's side of a reply: what was not written when this is dropped goes back.
struct Tally {
    ledger: Arc<Mutex<Ledger>>,
    reply: Option<Reply>,
}

impl Tally {
    fn faulty(&mut self) {
        lock(&self.ledger).faulty();
    }

    fn written(&mut self) {
        if let Some(reply) = self.reply.take() {
            lock(&self.ledger).written(&reply);
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            lock(&self.ledger).unwritten(&reply);
        }
    }
}
