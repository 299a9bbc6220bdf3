//! The faults that the simulator shows: which, when, and how often.
//!
//! A fault belongs to one server and touches whole replies, one fault a reply. What it does to the
//! bytes stands in `alter`; this file is configuration and compiles without sockets.

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SimFraming;
use crate::south::generate::Problem;
use crate::types::{Span, UnitId};

/// A fault of one server, by script or by command.
///
/// A reply that a fault touches does not count as served, and its counter value comes again. Only
/// where the right reply leaves unaltered and without delay (`two_frames_in_one_segment`,
/// `stray_byte_after`, `foreign_frame`) it counts, for a client must take it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimFault {
    /// Begins so long after the start, or after the command.
    #[serde(default = "at_once")]
    pub at: Span,
    /// Ends so long after it began; left out, never.
    #[serde(default, rename = "for")]
    pub lasting: Option<Span>,
    /// Touches every so many of the replies that it could touch: 3 leaves two and touches one.
    #[serde(default = "each")]
    pub every: u32,
    /// Ends after so many touched replies; left out, never.
    #[serde(default)]
    pub count: Option<u32>,
    /// Touches replies of this unit only.
    #[serde(default)]
    pub unit_id: Option<UnitId>,
    /// What happens.
    pub kind: FaultKind,
}

fn at_once() -> Span {
    Span::from_millis(0)
}

fn each() -> u32 {
    1
}

/// What happens to a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FaultKind {
    /// It comes so much later. Requests that come meanwhile wait, so that a client which has given
    /// up gets this reply in place of the next.
    LateReply(Delay),
    /// It carries the next transaction id. TCP frames only.
    WrongId,
    /// It carries another unit id.
    WrongUnit,
    /// It carries another function code: input for holding registers, discrete inputs for coils.
    WrongFunction,
    /// Its CRC is wrong. RTU frames only.
    WrongCrc,
    /// Its byte count says two more than follow. Replies with data only.
    WrongByteCount,
    /// It has no CRC. Exceptions in RTU frames only.
    NoCrcOnException,
    /// The request's own bytes come before it, as some RS-485 adapters do it.
    Echo,
    /// A byte FF comes right before it.
    StrayByte,
    /// A byte FF comes a moment after it, while the client is not waiting.
    StrayByteAfter,
    /// A broadcast of another client on the bus comes right before it. RTU frames only.
    ForeignFrame,
    /// Exception 06 in its place: the device is busy.
    Busy,
    /// Exception 02 in its place where the request touches this address.
    Hole(Hole),
    /// Its first half, and no more.
    HalfFrame,
    /// Its first half, and the other half so much later.
    SplitFrame(Delay),
    /// Two frames at once. In TCP frames the first has the transaction id before and inverted
    /// data; in RTU frames the reply comes twice.
    TwoFramesInOneSegment,
    /// Nothing comes.
    Silence,
    /// Nothing comes to a request within so long after the connection was made: the device is not
    /// ready yet (field case A29).
    DeafAfterConnect(Delay),
    /// Nothing comes to a request within so long after the unit's last reply on the connection: the
    /// device has not turned round yet (field case A29).
    DeafAfterReply(Delay),
    /// Nothing comes and the connection is closed; a pty goes away for a second.
    Disconnect,
}

/// How much later something comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// The delay.
    pub by: Span,
}

/// An address that a device does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hole {
    /// 0-based protocol address, in each address space.
    pub address: u16,
}

impl SimFault {
    /// One reply, the next.
    pub fn once(kind: FaultKind) -> Self {
        Self { count: Some(1), ..Self::lasting(kind) }
    }

    /// Each reply from now on.
    pub fn lasting(kind: FaultKind) -> Self {
        Self { at: at_once(), lasting: None, every: each(), count: None, unit_id: None, kind }
    }

    /// Everything that is wrong with a fault of a server with such frames and units.
    pub(super) fn problems(
        &self,
        field: &str,
        framing: SimFraming,
        units: &BTreeSet<UnitId>,
    ) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut say = |below: &str, message: String, hint: &str| {
            problems.push((format!("{field}.{below}"), message, Some(hint.to_owned())));
        };
        for (name, value) in [("every", Some(self.every)), ("count", self.count)] {
            if value == Some(0) {
                say(name, "is zero".to_owned(), "write 1 or more");
            }
        }
        if self.lasting.is_some_and(|span| span.duration().is_zero()) {
            say("for", "is zero".to_owned(), "write how long it lasts, such as `5s`");
        }
        if let Some(unit) = self.unit_id.filter(|unit| !units.contains(unit)) {
            say("unit_id", format!("the server has no unit {unit}"), "take one of its units");
        }
        if let Some(needed) = self.kind.framing().filter(|needed| *needed != framing) {
            let frames = match needed {
                SimFraming::Tcp => "Modbus TCP",
                SimFraming::Rtu => "RTU",
            };
            let message = format!("{} needs {frames} frames", self.kind);
            say("kind", message, "take another kind, or a server with such frames");
        }
        problems
    }
}

/// Faults that pass with the reply and can be shown on a reply with data: no holes, which a client
/// remembers, and nothing that needs an exception or a hasty client. Late is later than clients wait by habit.
const PASSING: [FaultKind; 16] = [
    FaultKind::late(Span::from_millis(1500)),
    FaultKind::WrongId,
    FaultKind::WrongUnit,
    FaultKind::WrongFunction,
    FaultKind::WrongCrc,
    FaultKind::WrongByteCount,
    FaultKind::Echo,
    FaultKind::StrayByte,
    FaultKind::StrayByteAfter,
    FaultKind::ForeignFrame,
    FaultKind::Busy,
    FaultKind::HalfFrame,
    FaultKind::split(Span::from_millis(50)),
    FaultKind::TwoFramesInOneSegment,
    FaultKind::Silence,
    FaultKind::Disconnect,
];

impl FaultKind {
    /// A reply that comes so much later.
    pub const fn late(by: Span) -> Self {
        Self::LateReply(Delay { by })
    }

    /// A reply whose second half comes so much later.
    pub const fn split(by: Span) -> Self {
        Self::SplitFrame(Delay { by })
    }

    /// No ear for what comes within so long after the connection was made.
    pub const fn deaf_after_connect(by: Span) -> Self {
        Self::DeafAfterConnect(Delay { by })
    }

    /// No ear for what comes within so long after a reply.
    pub const fn deaf_after_reply(by: Span) -> Self {
        Self::DeafAfterReply(Delay { by })
    }

    /// An address that the device does not have.
    pub const fn hole(address: u16) -> Self {
        Self::Hole(Hole { address })
    }

    /// One of the faults that pass with the reply, for such frames; any number picks one.
    pub fn any(framing: SimFraming, dice: u64) -> Self {
        let suits = |kind: &&Self| kind.framing().is_none_or(|needed| needed == framing);
        let count = PASSING.iter().filter(suits).count();
        let nth = usize::try_from(dice % count.max(1) as u64).unwrap_or(0);
        PASSING.iter().filter(suits).nth(nth).copied().unwrap_or(Self::Silence)
    }

    /// The frames that it needs; `None` for both.
    pub fn framing(self) -> Option<SimFraming> {
        match self {
            Self::WrongId => Some(SimFraming::Tcp),
            Self::WrongCrc | Self::NoCrcOnException | Self::ForeignFrame => Some(SimFraming::Rtu),
            _ => None,
        }
    }
}

/// Names what comes in place of the plain reply, such as "a wrong CRC".
impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LateReply(Delay { by }) => return write!(f, "a reply that is late by {by}"),
            Self::Hole(Hole { address }) => return write!(f, "a hole at address {address}"),
            Self::SplitFrame(Delay { by }) => {
                return write!(f, "half a frame, and its rest {by} later");
            }
            Self::DeafAfterConnect(Delay { by }) => {
                return write!(f, "no reply within {by} of the connection");
            }
            Self::DeafAfterReply(Delay { by }) => {
                return write!(f, "no reply within {by} of the one before");
            }
            Self::WrongId => "a wrong transaction id",
            Self::WrongUnit => "a wrong unit id",
            Self::WrongFunction => "a wrong function code",
            Self::WrongCrc => "a wrong CRC",
            Self::WrongByteCount => "a wrong byte count",
            Self::NoCrcOnException => "an exception without CRC",
            Self::Echo => "an echo of the request before the reply",
            Self::StrayByte => "a stray byte before the reply",
            Self::StrayByteAfter => "a stray byte after the reply",
            Self::ForeignFrame => "a frame of another client before the reply",
            Self::Busy => "exception 06, device busy",
            Self::HalfFrame => "half a frame",
            Self::TwoFramesInOneSegment => "two frames in one segment",
            Self::Silence => "no reply",
            Self::Disconnect => "a lost connection in place of the reply",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dice_pick_all_that_suits() {
        for (framing, kinds) in [(SimFraming::Tcp, 14), (SimFraming::Rtu, 15)] {
            let picked: Vec<_> =
                (u64::MAX - 99..=u64::MAX).map(|dice| FaultKind::any(framing, dice)).collect();
            let different: BTreeSet<String> = picked.iter().map(ToString::to_string).collect();
            assert_eq!(different.len(), kinds, "{different:?}");
            assert!(
                picked.iter().all(|kind| kind.framing().is_none_or(|needed| needed == framing))
            );
        }
    }
}
