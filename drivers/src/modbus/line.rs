//! One request and its reply over a serial line or a serial converter: Modbus RTU.
//!
//! The line is left in peace for 3.5 characters before each request, and after a request without a
//! reply until the late reply came or [`LATE_WINDOW`] passed; what is received right before sending
//! is thrown away. A reply is taken only with its CRC, from the unit and for the function and the
//! length that were asked, and only while the unit owes no earlier reply that would look the same
//! (see [`super::debts`]). Knows no devices, no schedule and no reopening.
//!
//! Source: serial guide, clauses 2.4 (states of the client) and 2.5.1 (RTU framing).

use std::time::Duration;

use futures::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use crate::modbus::debts::Debts;
use crate::modbus::frame::{EXCEPTION_BIT, ReadRequest};
use crate::modbus::rtu::{Decoder, Expected, Found, Frame, READ_REQUEST_LEN, encode};
use crate::modbus::transaction::{
    BadReply, DROPPED_MAX, Dropped, Exception, Failure, Tally, broken,
};
use crate::serial::PortSettings;
use crate::south::modbus::Echo;
use crate::stats::Counter;

/// How long a reply is waited for beyond its deadline before the line is used again, so that it
/// does not run into the next request.
pub const LATE_WINDOW: Duration = Duration::from_millis(100);
/// How long a line that never falls silent is listened to before a request is sent all the same.
const BABBLE_MAX: Duration = Duration::from_millis(500);
/// The pause between frames above 19,200 bits a second (serial guide, clause 2.5.1.1).
const FAST_SILENCE: Duration = Duration::from_micros(1750);
/// Speeds up to this one have a pause of 3.5 characters.
const FAST_ABOVE: u32 = 19_200;
/// Silence after which no more of a frame comes through a port. Far longer than the 1.5 characters
/// of the serial guide, which nobody sees behind a kernel and a USB adapter that passes bytes on
/// every 16 ms.
const PORT_GAP: Duration = Duration::from_millis(50);
/// The same through a converter, whose segments take their own time.
const CONVERTER_GAP: Duration = Duration::from_millis(200);

/// The times of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Silence before each request: 3.5 characters.
    pub silence: Duration,
    /// Silence that ends a frame which is not whole.
    pub gap: Duration,
    /// What a request takes on the line, which its timeout does not count.
    pub request: Duration,
}

impl Timing {
    /// The times of a port.
    pub fn of_port(port: &PortSettings) -> Self {
        let silence = if port.baud > FAST_ABOVE { FAST_SILENCE } else { port.characters(7) / 2 };
        let request = port.characters(u32::try_from(READ_REQUEST_LEN).unwrap_or(0));
        Self { silence, gap: PORT_GAP.max(silence), request }
    }

    /// The times of a converter, which keeps the line's own.
    pub fn of_converter() -> Self {
        Self { silence: Duration::ZERO, gap: CONVERTER_GAP, request: Duration::ZERO }
    }
}

/// A line with at most one request under way.
#[derive(Debug)]
pub struct LineConnection<T> {
    stream: T,
    decoder: Decoder,
    timing: Timing,
    echo: Echo,
    debts: Debts,
    /// The last byte came, or was sent.
    active_at: Instant,
    /// A unit that may answer late, and until when the line is kept free for it.
    late: Option<(u8, Instant)>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> LineConnection<T> {
    /// Takes over `stream`.
    pub fn new(stream: T, timing: Timing, echo: Echo) -> Self {
        Self {
            stream,
            decoder: Decoder::default(),
            timing,
            echo,
            debts: Debts::default(),
            active_at: Instant::now(),
            late: None,
        }
    }

    /// Sends `request`, waits at most `timeout` for its reply and puts the data bytes into `data`.
    /// Returns when the reply arrived. Where the unit may still answer an earlier request alike, it
    /// is first asked something else, within a `timeout` of its own. After [`Failure::Link`] the
    /// connection is of no use.
    ///
    /// Not cancel safe: a dropped future may leave half a request on the line.
    pub async fn read(
        &mut self,
        request: &ReadRequest,
        timeout: Duration,
        data: &mut Vec<u8>,
        tally: Tally<'_>,
    ) -> Result<Instant, Failure> {
        let outcome = self.read_in_step(request, timeout, data, tally).await;
        tally.add(Counter::NoiseBytes, self.decoder.take_noise());
        tally.outcome(&outcome);
        outcome
    }

    async fn read_in_step(
        &mut self,
        request: &ReadRequest,
        timeout: Duration,
        data: &mut Vec<u8>,
        tally: Tally<'_>,
    ) -> Result<Instant, Failure> {
        self.clear_line(tally).await?;
        if self.debts.owes(request.unit, request.kind.read_function()) {
            let probe = self.debts.probe(*request);
            tally.add(Counter::Probes, 1);
            match self.exchange(&probe, timeout, data, tally).await {
                Err(failure @ (Failure::Timeout(_) | Failure::Link(_))) => return Err(failure),
                // It is in step, whatever it says. The probe's data is nobody's.
                Ok(_) | Err(Failure::Exception(_) | Failure::BadReply(_)) => {}
            }
            self.clear_line(tally).await?;
        }
        self.exchange(request, timeout, data, tally).await
    }

    async fn exchange(
        &mut self,
        request: &ReadRequest,
        timeout: Duration,
        data: &mut Vec<u8>,
        tally: Tally<'_>,
    ) -> Result<Instant, Failure> {
        let sent = encode(request);
        tally.add(Counter::Requests, 1);
        let limit = Instant::now() + timeout;
        // Not flushed: on a port that means to block the thread until the last bit is on the line.
        let Ok(written) = timeout_at(limit, self.stream.write_all(&sent)).await else {
            return Err(Failure::Link("the connection does not take the request in time".into()));
        };
        written.map_err(|e| broken(&e))?;
        tally.add(Counter::BytesOut, sent.len());
        self.active_at = Instant::now() + self.timing.request;
        let deadline = self.active_at + timeout;
        let mut wanted = Wanted {
            request: *request,
            expected: Expected {
                sent,
                data_len: request.reply_len(),
                echo: self.echo != Echo::None,
            },
            repeated: false,
            heard: false,
            dropped: None,
            dropped_count: 0,
        };
        let outcome = self.reply(&mut wanted, deadline, data, tally).await;
        match &outcome {
            Ok(_) | Err(Failure::Exception(_) | Failure::BadReply(_)) => {
                self.debts.paid(request.unit);
            }
            Err(Failure::Timeout(_)) => {
                self.debts.missed(request.unit, wanted.function(), !wanted.heard);
                self.late = Some((request.unit, Instant::now() + LATE_WINDOW));
            }
            Err(Failure::Link(_)) => {}
        }
        outcome
    }

    /// Waits for the reply, and looks at everything else that comes meanwhile.
    async fn reply(
        &mut self,
        wanted: &mut Wanted,
        deadline: Instant,
        data: &mut Vec<u8>,
        tally: Tally<'_>,
    ) -> Result<Instant, Failure> {
        let mut quiet = false;
        loop {
            while let Some(found) = self.decoder.next(Some(&wanted.expected), quiet) {
                match wanted.judge(&found, self.echo, &mut self.debts) {
                    Verdict::Data(bytes) => {
                        data.clear();
                        data.extend_from_slice(bytes);
                        return Ok(self.active_at);
                    }
                    Verdict::Failed(failure) => return Err(failure),
                    Verdict::Skipped => {}
                    Verdict::Dropped(dropped) => tally.add(dropped.counter(), 1),
                }
                if wanted.dropped_count > DROPPED_MAX {
                    let text = format!("{DROPPED_MAX} frames in a row were not for us");
                    return Err(Failure::Link(text.into()));
                }
            }
            if Instant::now() >= deadline && (quiet || self.decoder.is_empty()) {
                return Err(Failure::Timeout(wanted.dropped));
            }
            // What is not whole becomes so within the gap, or never.
            let gap = if self.decoder.is_empty() { deadline } else { self.gap_end().min(deadline) };
            quiet = !self.receive_until(gap, tally).await?;
        }
    }

    /// When no more belongs to what came last.
    fn gap_end(&self) -> Instant {
        self.active_at + self.timing.gap
    }

    /// Waits until the line may be used: no late reply is to come, it is silent, and what it said
    /// is thrown away. Late replies are noted.
    async fn clear_line(&mut self, tally: Tally<'_>) -> Result<(), Failure> {
        let longest = Instant::now() + BABBLE_MAX + LATE_WINDOW;
        loop {
            // What the kernel has is taken before anything is waited for.
            while let Some(count) = self.stream.read(self.decoder.space()).now_or_never() {
                self.received(count, tally)?;
                self.overhear(false, tally);
            }
            let now = Instant::now();
            let silent_at = self.active_at + self.timing.silence;
            let free_at = match self.late {
                Some((unit, until)) if self.debts.owes_any(unit) => silent_at.max(until),
                _ => silent_at,
            };
            if now >= free_at || now >= longest {
                break;
            }
            self.receive_until(free_at, tally).await?;
            self.overhear(false, tally);
        }
        self.late = None;
        self.overhear(true, tally);
        Ok(())
    }

    /// Waits for the end of the connection while no request is under way. Late replies are noted
    /// and dropped. Cancel safe.
    pub async fn idle(&mut self, tally: Tally<'_>) -> Failure {
        loop {
            let quiet = Instant::now() >= self.gap_end();
            self.overhear(quiet, tally);
            let received = if self.decoder.is_empty() {
                let count = self.stream.read(self.decoder.space()).await;
                self.received(count, tally)
            } else {
                self.receive_until(self.gap_end(), tally).await.map(|_| ())
            };
            if let Err(failure) = received {
                return failure;
            }
        }
    }

    /// Looks at what came while nothing was waited for.
    fn overhear(&mut self, quiet: bool, tally: Tally<'_>) {
        while let Some(found) = self.decoder.next(None, quiet) {
            if let Found::Frame(frame) = found {
                let (code, rest) = frame.pdu.split_first().unwrap_or((&0, &[]));
                let late = !is_request(*code, rest) && self.debts.heard(frame.unit, *code);
                tally.add(if late { Counter::StaleReplies } else { Counter::WrongUnit }, 1);
            }
        }
        tally.add(Counter::NoiseBytes, self.decoder.take_noise());
    }

    /// Waits for bytes, but not beyond `until`. False where none came. Cancel safe.
    async fn receive_until(&mut self, until: Instant, tally: Tally<'_>) -> Result<bool, Failure> {
        match timeout_at(until, self.stream.read(self.decoder.space())).await {
            Ok(count) => self.received(count, tally).map(|()| true),
            Err(_) => Ok(false),
        }
    }

    fn received(&mut self, count: std::io::Result<usize>, tally: Tally<'_>) -> Result<(), Failure> {
        let count = count.map_err(|e| broken(&e))?;
        if count == 0 {
            // A port that was unplugged; reading on would spin.
            return Err(Failure::Link(
                "the far side closed the connection, or is unplugged".into(),
            ));
        }
        self.decoder.filled(count);
        self.active_at = Instant::now();
        tally.add(Counter::BytesIn, count);
        Ok(())
    }
}

/// What a frame is to the request under way.
#[derive(Debug, PartialEq, Eq)]
enum Verdict<'a> {
    Data(&'a [u8]),
    Failed(Failure),
    /// The request's own repetition.
    Skipped,
    Dropped(Dropped),
}

/// The request under way.
struct Wanted {
    request: ReadRequest,
    expected: Expected,
    /// The repetition of the request came.
    repeated: bool,
    /// A frame of the unit came.
    heard: bool,
    dropped: Option<Dropped>,
    dropped_count: usize,
}

impl Wanted {
    fn function(&self) -> u8 {
        self.request.kind.read_function()
    }

    fn judge<'a>(&mut self, found: &Found<'a>, echo: Echo, debts: &mut Debts) -> Verdict<'a> {
        let verdict = match found {
            Found::Echo => {
                self.repeated = true;
                self.expected.echo = false;
                Verdict::Skipped
            }
            Found::Damaged => Verdict::Failed(Failure::BadReply(BadReply::Crc)),
            Found::Frame(frame) => self.judge_frame(frame, debts),
        };
        match verdict {
            Verdict::Dropped(dropped) => {
                self.dropped = Some(dropped);
                self.dropped_count += 1;
                verdict
            }
            Verdict::Data(_) | Verdict::Failed(_) if echo == Echo::Strip && !self.repeated => {
                Verdict::Failed(Failure::BadReply(BadReply::NoEcho))
            }
            other => other,
        }
    }

    fn judge_frame<'a>(&mut self, frame: &Frame<'a>, debts: &mut Debts) -> Verdict<'a> {
        let (unit, function) = (self.request.unit, self.function());
        let (code, rest) = frame.pdu.split_first().unwrap_or((&0, &[]));
        if is_request(*code, rest) {
            return Verdict::Dropped(Dropped::Request(frame.unit));
        }
        if frame.unit != unit {
            debts.heard(frame.unit, *code);
            return Verdict::Dropped(Dropped::Unit(frame.unit));
        }
        self.heard = true;
        if debts.heard(unit, *code) {
            return Verdict::Dropped(Dropped::Late(code & !EXCEPTION_BIT));
        }
        match (*code, rest) {
            (code, [exception]) if code == function | EXCEPTION_BIT => {
                Verdict::Failed(Failure::Exception(Exception(*exception)))
            }
            (code, _) if code != function => Verdict::Dropped(Dropped::Function(code)),
            (_, [count, data @ ..]) => {
                let expected = self.expected.data_len;
                if data.len() == expected {
                    Verdict::Data(data)
                } else {
                    let bad = BadReply::ByteCount { expected, found: *count };
                    Verdict::Failed(Failure::BadReply(bad))
                }
            }
            (_, []) => Verdict::Failed(Failure::BadReply(BadReply::Empty)),
        }
    }
}

/// True for a frame that has the length of a read request, and not that of a reply.
fn is_request(function: u8, rest: &[u8]) -> bool {
    let reply = rest.first().is_some_and(|count| usize::from(*count) + 1 == rest.len());
    (0x01..=0x04).contains(&function) && !reply
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
