//! One request and its reply over a byte stream, with a deadline.
//!
//! A reply is taken only if it carries the request's transaction id, unit and function and exactly
//! the bytes that were asked for; what came late or from elsewhere is dropped and counted, and
//! waiting goes on. Knows no devices, no schedule and no reconnecting.
//!
//! Source: guide, section 4.4.2.3 (processing a confirmation); specification, sections 6 and 7.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use crate::modbus::frame::{Decoder, EXCEPTION_BIT, Frame, PROTOCOL, ReadRequest};
use crate::south::modbus::TidCheck;
use crate::stats::{Counter, Stats};
use crate::table::Reason;

/// Frames that one request drops before the connection is held to be out of order.
pub(crate) const DROPPED_MAX: usize = 64;

/// Why a request gave no data. The variant is the caller's decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No reply of ours before the deadline; what was dropped last, where something came.
    #[error("no answer in time{}", Note(.0.as_ref()))]
    Timeout(Option<Dropped>),
    /// The device answered "no".
    #[error("{0}")]
    Exception(Exception),
    /// The reply to this request cannot be right.
    #[error("{0}")]
    BadReply(BadReply),
    /// There is no connection, or it broke during the request.
    #[error("{0}")]
    Link(Arc<str>),
}

impl Failure {
    /// Why the values are missing.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Timeout(_) => Reason::Timeout,
            Self::Exception(exception) => exception.reason(),
            Self::BadReply(BadReply::Crc) => Reason::BadCrc,
            Self::BadReply(_) => Reason::BadReply,
            Self::Link(_) => Reason::LinkDown,
        }
    }

    /// True where the unit itself said nothing: no reply, or a gateway's word that it cannot reach
    /// it, which costs the link as much time.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Exception(Exception(0x0A | 0x0B)))
    }
}

struct Note<'a>(Option<&'a Dropped>);

impl fmt::Display for Note<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |dropped| write!(f, " ({dropped})"))
    }
}

/// An exception code as the device sent it (specification, section 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exception(pub u8);

impl Exception {
    /// Why the values are missing.
    pub fn reason(self) -> Reason {
        match self.0 {
            0x01 => Reason::IllegalFunction,
            0x02 => Reason::IllegalAddress,
            0x03 => Reason::IllegalValue,
            0x04 => Reason::DeviceFailure,
            0x05 | 0x06 => Reason::Busy,
            0x08 => Reason::MemoryParity,
            0x0A => Reason::GatewayPath,
            0x0B => Reason::GatewayTarget,
            code => Reason::Exception(code),
        }
    }
}

impl fmt::Display for Exception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            0x01 => "illegal function",
            0x02 => "illegal data address",
            0x03 => "illegal data value",
            0x04 => "server device failure",
            0x05 => "acknowledge: still working",
            0x06 => "server device busy",
            0x08 => "memory parity error",
            0x0A => "gateway path unavailable",
            0x0B => "gateway target device failed to respond",
            _ => "not in the specification",
        };
        write!(f, "exception {:02X} ({words})", self.0)
    }
}

/// What is wrong with a reply that is ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadReply {
    /// A header without function code.
    #[error("the reply is a header alone")]
    Empty,
    /// Another protocol id than 0.
    #[error("the reply has protocol id {0} instead of 0")]
    Protocol(u16),
    /// An exception reply is function and code, 2 bytes.
    #[error("the exception reply has {0} bytes instead of 2")]
    ExceptionLen(usize),
    /// The byte count is not what was asked for.
    #[error("the reply announces {found} data bytes instead of {expected}")]
    ByteCount {
        /// What the request asks for.
        expected: usize,
        /// What the reply says.
        found: u8,
    },
    /// The frame holds more or fewer bytes than its byte count says.
    #[error("the reply holds {found} data bytes instead of {expected}")]
    DataLen {
        /// What the request asks for, and the byte count says.
        expected: usize,
        /// What the frame holds.
        found: usize,
    },
    /// The checksum is wrong, or the end is missing (RTU).
    #[error("the reply's checksum is wrong or its end is missing")]
    Crc,
    /// The adapter did not repeat the request, as `echo: strip` says that it does.
    #[error(
        "the adapter did not repeat the request: it was disturbed on the line, or `echo` should be \
         `auto`"
    )]
    NoEcho,
}

/// A frame that was not the reply to the request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// Another transaction id: the late reply to an earlier request.
    Stale {
        /// The request's.
        expected: u16,
        /// The frame's.
        found: u16,
    },
    /// Another unit.
    Unit(u8),
    /// Another function.
    Function(u8),
    /// A reply, on a serial line, to a request that was not answered in time.
    Late(u8),
    /// A request: of another client on the line, or ours repeated where `echo` is `none`.
    Request(u8),
}

impl Dropped {
    pub(crate) fn counter(self) -> Counter {
        match self {
            Self::Stale { .. } | Self::Late(_) => Counter::StaleReplies,
            Self::Unit(_) | Self::Request(_) => Counter::WrongUnit,
            Self::Function(_) => Counter::WrongFunction,
        }
    }
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale { expected, found } => {
                write!(f, "dropped a reply with transaction id {found}, waiting for {expected}")
            }
            Self::Unit(unit) => write!(f, "dropped a reply from unit {unit}"),
            Self::Late(function) => {
                write!(f, "dropped a late reply to an earlier function {function:02X}")
            }
            Self::Request(unit) => {
                write!(f, "dropped a request to unit {unit}, which another client sent")
            }
            Self::Function(function) => write!(f, "dropped a reply to function {function:02X}"),
        }
    }
}

/// What a frame is to the request under way.
#[derive(Debug, PartialEq, Eq)]
enum Verdict<'a> {
    Data(&'a [u8]),
    Failed(Failure),
    Dropped(Dropped),
}

/// Judges a frame. Pure, so that the whole table of faults is a test.
fn judge<'a>(
    frame: &Frame<'a>,
    request: ReadRequest,
    transaction: u16,
    tid_check: TidCheck,
) -> Verdict<'a> {
    let stale = (frame.transaction != transaction)
        .then_some(Dropped::Stale { expected: transaction, found: frame.transaction });
    if let (Some(dropped), TidCheck::Strict) = (stale, tid_check) {
        return Verdict::Dropped(dropped);
    }
    // A frame that is not known to be ours by its id must be right in all else to be ours.
    let bad =
        |what: BadReply| stale.map_or(Verdict::Failed(Failure::BadReply(what)), Verdict::Dropped);
    if frame.protocol != PROTOCOL {
        return bad(BadReply::Protocol(frame.protocol));
    }
    if frame.unit != request.unit {
        return Verdict::Dropped(Dropped::Unit(frame.unit));
    }
    let function = request.kind.read_function();
    match frame.pdu {
        [] => bad(BadReply::Empty),
        [f, code] if *f == function | EXCEPTION_BIT => {
            Verdict::Failed(Failure::Exception(Exception(*code)))
        }
        [f, ..] if *f == function | EXCEPTION_BIT => bad(BadReply::ExceptionLen(frame.pdu.len())),
        [f, ..] if *f != function => Verdict::Dropped(Dropped::Function(*f)),
        [_] => bad(BadReply::DataLen { expected: request.reply_len(), found: 0 }),
        [_, count, data @ ..] => {
            let expected = request.reply_len();
            if usize::from(*count) != expected {
                bad(BadReply::ByteCount { expected, found: *count })
            } else if data.len() != expected {
                bad(BadReply::DataLen { expected, found: data.len() })
            } else {
                Verdict::Data(data)
            }
        }
    }
}

/// Counts for everybody who is concerned: the link and the device.
#[derive(Debug, Clone, Copy)]
pub struct Tally<'a>(pub &'a [&'a Stats]);

impl Tally<'_> {
    pub(crate) fn add(self, counter: Counter, n: usize) {
        for stats in self.0 {
            stats.add(counter, u64::try_from(n).unwrap_or(u64::MAX));
        }
    }

    /// Counts what came of a request.
    pub(crate) fn outcome(self, outcome: &Result<Instant, Failure>) {
        match outcome {
            Ok(_) => self.add(Counter::Replies, 1),
            Err(Failure::Timeout(_)) => self.add(Counter::Timeouts, 1),
            Err(Failure::Exception(_)) => self.add(Counter::Exceptions, 1),
            Err(Failure::BadReply(BadReply::Crc)) => self.add(Counter::CrcErrors, 1),
            Err(Failure::BadReply(_)) => self.add(Counter::BadReplies, 1),
            // The owner of the connection counts its end.
            Err(Failure::Link(_)) => {}
        }
    }
}

/// A byte stream with at most one request under way.
#[derive(Debug)]
pub struct Connection<T> {
    stream: T,
    decoder: Decoder,
    tid_check: TidCheck,
    /// True while a request is partly written.
    sending: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    /// Takes over `stream`.
    pub fn new(stream: T, tid_check: TidCheck) -> Self {
        Self { stream, decoder: Decoder::default(), tid_check, sending: false }
    }

    /// Sends `request` with the id `transaction`, waits at most `timeout` for its reply and puts
    /// the data bytes into `data`. Returns when the reply arrived. After [`Failure::Link`] the
    /// connection is of no use; after a timeout it is, unless transaction ids are not checked.
    ///
    /// Not cancel safe: a dropped future may leave half a request on the wire.
    pub async fn read(
        &mut self,
        transaction: u16,
        request: &ReadRequest,
        timeout: Duration,
        data: &mut Vec<u8>,
        tally: Tally<'_>,
    ) -> Result<Instant, Failure> {
        let deadline = Instant::now() + timeout;
        if self.tid_check == TidCheck::Lenient {
            // Nothing that came before the request may be its reply.
            while let Ok(Some(_)) = self.decoder.next_frame() {
                tally.add(Counter::StaleReplies, 1);
            }
        }
        let mut last_dropped = None;
        let exchange = self.exchange(transaction, request, data, tally, &mut last_dropped);
        let outcome = match timeout_at(deadline, exchange).await {
            Ok(outcome) => outcome,
            Err(_) if self.sending => {
                Err(Failure::Link("the connection does not take the request in time".into()))
            }
            Err(_) => Err(Failure::Timeout(last_dropped)),
        };
        tally.outcome(&outcome);
        outcome
    }

    async fn exchange(
        &mut self,
        transaction: u16,
        request: &ReadRequest,
        data: &mut Vec<u8>,
        tally: Tally<'_>,
        last_dropped: &mut Option<Dropped>,
    ) -> Result<Instant, Failure> {
        let adu = request.encode(transaction);
        self.sending = true;
        tally.add(Counter::Requests, 1);
        self.stream.write_all(&adu).await.map_err(|e| broken(&e))?;
        self.stream.flush().await.map_err(|e| broken(&e))?;
        self.sending = false;
        tally.add(Counter::BytesOut, adu.len());
        let mut dropped_count = 0;
        loop {
            while let Some(frame) = self.decoder.next_frame().map_err(|e| broken(&e))? {
                match judge(&frame, *request, transaction, self.tid_check) {
                    Verdict::Data(bytes) => {
                        data.clear();
                        data.extend_from_slice(bytes);
                        return Ok(Instant::now());
                    }
                    Verdict::Failed(failure) => return Err(failure),
                    Verdict::Dropped(dropped) => {
                        tally.add(dropped.counter(), 1);
                        *last_dropped = Some(dropped);
                        dropped_count += 1;
                    }
                }
                if dropped_count > DROPPED_MAX {
                    let text = format!("{DROPPED_MAX} replies in a row were not to our request");
                    return Err(Failure::Link(text.into()));
                }
            }
            self.receive(tally).await?;
        }
    }

    /// Waits for the end of the connection while no request is under way. Late replies are dropped
    /// and counted. Cancel safe.
    pub async fn idle(&mut self, tally: Tally<'_>) -> Failure {
        loop {
            loop {
                match self.decoder.next_frame() {
                    Ok(Some(_)) => tally.add(Counter::StaleReplies, 1),
                    Ok(None) => break,
                    Err(out_of_step) => return broken(&out_of_step),
                }
            }
            if let Err(failure) = self.receive(tally).await {
                return failure;
            }
        }
    }

    async fn receive(&mut self, tally: Tally<'_>) -> Result<(), Failure> {
        let count = self.stream.read(self.decoder.space()).await.map_err(|e| broken(&e))?;
        if count == 0 {
            return Err(Failure::Link("the far side closed the connection".into()));
        }
        self.decoder.filled(count);
        tally.add(Counter::BytesIn, count);
        Ok(())
    }
}

pub(crate) fn broken(error: &dyn std::error::Error) -> Failure {
    Failure::Link(format!("the connection broke: {error}").into())
}

#[cfg(test)]
#[path = "transaction_tests.rs"]
mod tests;
