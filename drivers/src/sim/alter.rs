//! What a fault does to a reply: pure, from a reply to the steps in which it leaves, or does not.

use std::time::Duration;

use super::wire::{Asked, frame};
use super::{Delay, FaultKind, SimFraming};

/// What an exception reply adds to the function code (Application Protocol V1.1b3, section 7).
const EXCEPTION_BIT: u8 = 0x80;
/// Between a foreign frame and the reply: more than 3.5 characters at 9600 baud, 4 ms (Serial Line
/// V1.02, section 2.5.1.1).
const FRAME_PAUSE: Duration = Duration::from_millis(5);
/// Between the reply and a stray byte that no longer belongs to it.
const STRAY_PAUSE: Duration = Duration::from_millis(20);
/// Noise on an idle line.
const STRAY: u8 = 0xFF;
/// A write of register 1 to all units, as another client sent it in field case A24.
const FOREIGN: [u8; 8] = [0x00, 0x06, 0x00, 0x01, 0x00, 0x03, 0x99, 0xDA];

/// One step of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// The right reply, whole: it counts as served once these bytes are handed over.
    Reply(Vec<u8>),
    /// Bytes that count for nothing.
    Send(Vec<u8>),
    /// Nothing for so long.
    Wait(Duration),
    /// The connection is closed.
    HangUp,
}

/// How long before a request something happened; `None` where it did not.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Before {
    /// The connection was made.
    pub(super) connect: Option<Duration>,
    /// The unit's last reply on this connection left.
    pub(super) reply: Option<Duration>,
}

/// A right reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer<'a> {
    pub(super) framing: SimFraming,
    pub(super) asked: &'a Asked,
    pub(super) before: Before,
    /// Function code and data, or an exception.
    pub(super) pdu: &'a [u8],
}

impl Answer<'_> {
    fn is_exception(&self) -> bool {
        self.pdu[0] & EXCEPTION_BIT != 0
    }

    /// The frame of this answer with other contents.
    fn with(&self, id: u16, unit: u8, pdu: &[u8]) -> Vec<u8> {
        frame(self.framing, id, unit, pdu)
    }

    fn with_pdu(&self, pdu: &[u8]) -> Vec<u8> {
        self.with(self.asked.id, self.asked.unit, pdu)
    }

    fn whole(&self) -> Vec<u8> {
        self.with_pdu(self.pdu)
    }

    /// Whether a fault can be shown on this answer.
    pub(super) fn suits(&self, kind: FaultKind) -> bool {
        let within = |event: Option<Duration>, delay: Delay| {
            event.is_some_and(|ago| ago < delay.by.duration())
        };
        kind.framing().is_none_or(|framing| framing == self.framing)
            && match kind {
                FaultKind::DeafAfterConnect(delay) => within(self.before.connect, delay),
                FaultKind::DeafAfterReply(delay) => within(self.before.reply, delay),
                FaultKind::WrongByteCount => !self.is_exception(),
                FaultKind::NoCrcOnException => self.is_exception(),
                FaultKind::Hole(hole) => self.touches(hole.address),
                _ => true,
            }
    }

    /// Whether the request reads that address; requests of functions 1 to 4 do.
    fn touches(&self, address: u16) -> bool {
        let &[1..=4, a1, a0, q1, q0] = &self.asked.pdu[..] else { return false };
        let first = u16::from_be_bytes([a1, a0]);
        address.checked_sub(first).is_some_and(|n| n < u16::from_be_bytes([q1, q0]))
    }
}

/// The steps of an answer that no fault touches.
pub(super) fn plain(answer: Answer<'_>) -> Vec<Step> {
    vec![Step::Reply(answer.whole())]
}

/// The steps of an answer that a fault touches, which [suits](Answer::suits) it.
pub(super) fn altered(answer: Answer<'_>, kind: FaultKind) -> Vec<Step> {
    let Answer { asked, pdu, .. } = answer;
    let exception = |code| answer.with_pdu(&[asked.pdu[0] | EXCEPTION_BIT, code]);
    let one = |bytes| vec![Step::Send(bytes)];
    match kind {
        FaultKind::LateReply(Delay { by }) => {
            vec![Step::Wait(by.duration()), Step::Send(answer.whole())]
        }
        FaultKind::WrongId => one(answer.with(asked.id.wrapping_add(1), asked.unit, pdu)),
        FaultKind::WrongUnit => one(answer.with(asked.id, other_unit(asked.unit), pdu)),
        FaultKind::WrongFunction => {
            one(answer.with_pdu(&[&[other_function(pdu[0])], &pdu[1..]].concat()))
        }
        FaultKind::WrongCrc => one(change_last(answer.whole())),
        FaultKind::WrongByteCount => {
            one(answer.with_pdu(&[&[pdu[0], pdu[1].wrapping_add(2)], &pdu[2..]].concat()))
        }
        FaultKind::NoCrcOnException => {
            let mut bytes = answer.whole();
            bytes.truncate(bytes.len() - 2);
            one(bytes)
        }
        FaultKind::Echo => one([&asked.raw[..], &answer.whole()].concat()),
        FaultKind::StrayByte => one([&[STRAY], &answer.whole()[..]].concat()),
        FaultKind::StrayByteAfter => {
            vec![Step::Reply(answer.whole()), Step::Wait(STRAY_PAUSE), Step::Send(vec![STRAY])]
        }
        FaultKind::ForeignFrame => {
            vec![Step::Send(FOREIGN.to_vec()), Step::Wait(FRAME_PAUSE), Step::Reply(answer.whole())]
        }
        FaultKind::Busy => one(exception(6)),
        FaultKind::Hole(_) => one(exception(2)),
        FaultKind::HalfFrame => one(halves(answer.whole()).0),
        FaultKind::SplitFrame(Delay { by }) => {
            let (first, rest) = halves(answer.whole());
            vec![Step::Send(first), Step::Wait(by.duration()), Step::Send(rest)]
        }
        FaultKind::TwoFramesInOneSegment => vec![Step::Reply(two(answer))],
        FaultKind::Silence | FaultKind::DeafAfterConnect(_) | FaultKind::DeafAfterReply(_) => {
            Vec::new()
        }
        FaultKind::Disconnect => vec![Step::HangUp],
    }
}

/// Another address of a serial line (Serial Line V1.02, section 2.2: 1 to 247).
fn other_unit(unit: u8) -> u8 {
    if (1..247).contains(&unit) { unit + 1 } else { 1 }
}

/// A function whose reply looks the same, exceptions likewise.
fn other_function(function: u8) -> u8 {
    let other = match function & !EXCEPTION_BIT {
        1 => 2,
        2 => 1,
        3 => 4,
        4 => 3,
        other => other ^ 1,
    };
    other | function & EXCEPTION_BIT
}

/// Inverts the last byte, which belongs to the CRC.
fn change_last(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(last) = bytes.last_mut() {
        *last = !*last;
    }
    bytes
}

fn halves(mut bytes: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let rest = bytes.split_off(bytes.len() / 2);
    (bytes, rest)
}

fn two(answer: Answer<'_>) -> Vec<u8> {
    let first = match answer.framing {
        SimFraming::Tcp => {
            // Of the right form, so that only the id tells it from the reply; never of its value.
            let head = if answer.is_exception() { answer.pdu.len() } else { 2 };
            let inverted = answer.pdu[head..].iter().map(|byte| !byte);
            let pdu: Vec<u8> = answer.pdu[..head].iter().copied().chain(inverted).collect();
            answer.with(answer.asked.id.wrapping_sub(1), answer.asked.unit, &pdu)
        }
        SimFraming::Rtu => answer.whole(),
    };
    [first, answer.whole()].concat()
}

#[cfg(test)]
mod tests {
    //! Bytes by hand; CRCs from the field cases and, where no report has one, from pymodbus 3
    //! (`FramerRTU.compute_CRC`).

    use super::*;
    use crate::types::Span;
    use FaultKind as K;
    use Step::{HangUp, Reply, Send, Wait};

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Input register 0 of unit 1 on TCP, transaction 0x1234, holds 0x0A0B.
    fn tcp(kind: K) -> Vec<Step> {
        let asked = Asked {
            raw: vec![0x12, 0x34, 0, 0, 0, 6, 1, 4, 0, 0, 0, 1],
            id: 0x1234,
            unit: 1,
            pdu: vec![4, 0, 0, 0, 1],
        };
        show(SimFraming::Tcp, &asked, &[4, 2, 0x0A, 0x0B], kind)
    }

    /// The request of field case A23 to unit 11, and its reply.
    fn rtu(kind: K) -> Vec<Step> {
        let asked = Asked { raw: A23_ASKED.to_vec(), id: 0, unit: 11, pdu: vec![4, 0, 0, 0, 2] };
        show(SimFraming::Rtu, &asked, &[4, 4, 0, 0, 0, 0x0A], kind)
    }

    const A23_ASKED: [u8; 8] = [0x0B, 4, 0, 0, 0, 2, 0x71, 0x61];
    const A23: [u8; 9] = [0x0B, 4, 4, 0, 0, 0, 0x0A, 0xD1, 0x83];

    fn show(framing: SimFraming, asked: &Asked, pdu: &[u8], kind: K) -> Vec<Step> {
        let answer = Answer { framing, asked, before: Before::default(), pdu };
        assert!(answer.suits(kind), "{kind}");
        altered(answer, kind)
    }

    #[test]
    fn faults_of_modbus_tcp() {
        let head = |id: u8, len: u8, rest: &[u8]| [&[0x12, id, 0, 0, 0, len], rest].concat();
        let right = head(0x34, 5, &[1, 4, 2, 0x0A, 0x0B]);
        let (by, late) = (Span::from_millis(1500), millis(1500));
        let cases = [
            (K::late(by), vec![Wait(late), Send(right.clone())]),
            (K::WrongId, vec![Send(head(0x35, 5, &[1, 4, 2, 0x0A, 0x0B]))]),
            (K::WrongUnit, vec![Send(head(0x34, 5, &[2, 4, 2, 0x0A, 0x0B]))]),
            (K::WrongFunction, vec![Send(head(0x34, 5, &[1, 3, 2, 0x0A, 0x0B]))]),
            (K::WrongByteCount, vec![Send(head(0x34, 5, &[1, 4, 4, 0x0A, 0x0B]))]),
            (K::Echo, vec![Send([&head(0x34, 6, &[1, 4, 0, 0, 0, 1])[..], &right].concat())]),
            (K::StrayByte, vec![Send([&[0xFF], &right[..]].concat())]),
            (K::StrayByteAfter, vec![Reply(right.clone()), Wait(millis(20)), Send(vec![0xFF])]),
            (K::Busy, vec![Send(head(0x34, 3, &[1, 0x84, 6]))]),
            (K::hole(0), vec![Send(head(0x34, 3, &[1, 0x84, 2]))]),
            (K::HalfFrame, vec![Send(right[..5].to_vec())]),
            (K::split(by), vec![Send(right[..5].to_vec()), Wait(late), Send(right[5..].to_vec())]),
            (
                K::TwoFramesInOneSegment,
                vec![Reply([&head(0x33, 5, &[1, 4, 2, 0xF5, 0xF4])[..], &right].concat())],
            ),
            (K::Silence, vec![]),
            (K::Disconnect, vec![HangUp]),
        ];
        for (kind, steps) in cases {
            assert_eq!(tcp(kind), steps, "{kind}");
        }
    }

    #[test]
    fn faults_of_rtu() {
        let cases = [
            (K::WrongUnit, vec![Send(vec![0x0C, 4, 4, 0, 0, 0, 0x0A, 0xA7, 0x43])]),
            (K::WrongFunction, vec![Send(vec![0x0B, 3, 4, 0, 0, 0, 0x0A, 0xD0, 0x34])]),
            (K::WrongCrc, vec![Send(vec![0x0B, 4, 4, 0, 0, 0, 0x0A, 0xD1, 0x7C])]),
            (K::WrongByteCount, vec![Send(vec![0x0B, 4, 6, 0, 0, 0, 0x0A, 0xA8, 0x43])]),
            (K::Echo, vec![Send([&A23_ASKED[..], &A23].concat())]),
            (K::StrayByte, vec![Send([&[0xFF], &A23[..]].concat())]),
            (
                K::ForeignFrame,
                vec![
                    Send(vec![0x00, 0x06, 0x00, 0x01, 0x00, 0x03, 0x99, 0xDA]),
                    Wait(millis(5)),
                    Reply(A23.to_vec()),
                ],
            ),
            (K::Busy, vec![Send(vec![0x0B, 0x84, 6, 0xE3, 0x00])]),
            (K::HalfFrame, vec![Send(A23[..4].to_vec())]),
            (K::TwoFramesInOneSegment, vec![Reply([A23, A23].concat())]),
        ];
        for (kind, steps) in cases {
            assert_eq!(rtu(kind), steps, "{kind}");
        }
    }

    /// Field case A20: `0A 81 02`, and nothing more.
    #[test]
    fn a20_an_exception_without_crc() {
        let raw = vec![0x0A, 0x01, 0x04, 0xA1, 0x00, 0x01, 0xAC, 0x63];
        let asked = Asked { pdu: raw[1..6].to_vec(), raw, id: 0, unit: 10 };
        let steps = show(SimFraming::Rtu, &asked, &[0x81, 2], K::NoCrcOnException);
        assert_eq!(steps, [Send(vec![0x0A, 0x81, 0x02])]);
    }

    #[test]
    fn faults_touch_only_what_can_show_them() {
        let asked = Asked { raw: vec![], id: 0, unit: 1, pdu: vec![3, 0, 10, 0, 4] };
        let data = |framing| Answer {
            framing,
            asked: &asked,
            before: Before::default(),
            pdu: &[3, 2, 0, 0],
        };
        let exception =
            |framing| Answer { framing, asked: &asked, before: Before::default(), pdu: &[0x83, 4] };
        let (tcp, rtu) = (SimFraming::Tcp, SimFraming::Rtu);
        for (kind, answer, suits) in [
            (K::WrongId, data(tcp), true),
            (K::WrongId, data(rtu), false),
            (K::WrongCrc, data(tcp), false),
            (K::WrongCrc, data(rtu), true),
            (K::NoCrcOnException, data(rtu), false),
            (K::NoCrcOnException, exception(rtu), true),
            (K::NoCrcOnException, exception(tcp), false),
            (K::WrongByteCount, exception(tcp), false),
            (K::hole(9), data(tcp), false),
            (K::hole(10), data(tcp), true),
            (K::hole(13), data(tcp), true),
            (K::hole(14), data(tcp), false),
        ] {
            assert_eq!(answer.suits(kind), suits, "{kind} {answer:?}");
        }
    }
}
