//! Modbus RTU frames, bytes in and bytes out: no ports, no time, no devices.
//!
//! RTU frames carry no length and end with 3.5 characters of silence. A program does not see that
//! silence: the kernel, USB adapters and converters pass bytes on in bursts. So frames are found by
//! what they must look like and by their CRC, anywhere in what came; silence (`quiet`) only ends
//! the hope for more. What is neither is noise, skipped byte by byte and counted.
//!
//! Source: "MODBUS over Serial Line Specification and Implementation Guide V1.02" (the *serial
//! guide*), clauses 2.2, 2.5.1 and 6.2.2; specification, sections 6 and 7.

use crate::modbus::frame::{EXCEPTION_BIT, ReadRequest};

/// Longest ADU: unit id, 253 bytes of PDU, CRC (serial guide, clause 2.5.1.1).
pub const ADU_MAX: usize = 256;
/// Bytes of a read request: unit id, function, start, quantity, CRC.
pub const READ_REQUEST_LEN: usize = 8;
/// Highest address of a unit; 0 speaks to all units and is never answered, higher ones are reserved
/// (serial guide, clause 2.2).
pub const UNIT_MAX: u8 = 247;

/// Bytes of an exception reply: unit id, function, code, CRC.
const EXCEPTION_LEN: usize = 5;
/// Room for a frame that is still coming behind as much noise.
const BUFFER_LEN: usize = 2 * ADU_MAX;

/// The CRC of each byte value, by the algorithm of the serial guide, clause 6.2.2.
const CRC_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xA001 } else { crc >> 1 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

/// The CRC-16 of a frame (serial guide, clause 6.2.2). Sent low byte first.
pub fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0xFFFF, |crc, byte| {
        let [_, low] = crc.to_be_bytes();
        crc >> 8 ^ CRC_TABLE[usize::from(low ^ byte)]
    })
}

/// True where the last two bytes are the CRC of those before them. The CRC over a whole frame, its
/// own CRC included, is 0.
fn is_whole(frame: &[u8]) -> bool {
    frame.len() >= 4 && crc16(frame) == 0
}

/// Writes a request as an RTU frame.
pub fn encode(request: &ReadRequest) -> [u8; READ_REQUEST_LEN] {
    let ([s1, s0], [q1, q0]) = (request.start.to_be_bytes(), request.quantity.to_be_bytes());
    let body = [request.unit, request.kind.read_function(), s1, s0, q1, q0];
    let [c0, c1] = crc16(&body).to_le_bytes();
    [body[0], body[1], s1, s0, q1, q0, c0, c1]
}

/// What is waited for.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// The request as it was sent.
    pub sent: [u8; READ_REQUEST_LEN],
    /// Data bytes of a right reply.
    pub data_len: usize,
    /// A repetition of the request may come first.
    pub echo: bool,
}

impl Expected {
    /// True where `bytes` are the beginning of a right reply.
    fn is_begun_by(&self, bytes: &[u8]) -> bool {
        let count = u8::try_from(self.data_len).unwrap_or(u8::MAX);
        bytes.iter().zip([self.sent[0], self.sent[1], count]).all(|(byte, right)| *byte == right)
    }

    /// True where `bytes` begin like a reply of the unit to the function, right or not.
    fn is_meant_by(&self, bytes: &[u8]) -> bool {
        matches!(bytes, [unit, function, ..]
            if *unit == self.sent[0] && function & !EXCEPTION_BIT == self.sent[1])
    }

    /// Bytes of a right reply: unit id, function, byte count, data, CRC.
    fn reply_len(&self) -> usize {
        self.data_len + 5
    }

    /// Where behind the first byte the whole right reply lies. Four bytes and the CRC must fit, so
    /// that chance finds nothing inside another frame.
    fn find(&self, bytes: &[u8]) -> Option<usize> {
        (1..bytes.len().saturating_sub(self.reply_len() - 1)).find(|at| {
            let rest = &bytes[*at..];
            self.is_begun_by(rest) && is_whole(&rest[..self.reply_len()])
        })
    }
}

/// A whole frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Who it is from, or for.
    pub unit: u8,
    /// Function code and data, at least 1 byte.
    pub pdu: &'a [u8],
}

/// What was found among the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'a> {
    /// A frame with its CRC.
    Frame(Frame<'a>),
    /// The request, repeated by an adapter.
    Echo,
    /// The beginning of a reply to the request, whose rest or CRC is wrong. Nothing is left.
    Damaged,
}

/// How the bytes at hand begin.
enum Begin {
    Frame(usize),
    Echo,
    /// A frame of some kind, if more comes.
    More,
    Nothing,
}

/// Finds frames among bytes. Holds at most two frames' bytes.
#[derive(Debug)]
pub struct Decoder {
    buffer: [u8; BUFFER_LEN],
    start: usize,
    end: usize,
    noise: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { buffer: [0; BUFFER_LEN], start: 0, end: 0, noise: 0 }
    }
}

impl Decoder {
    /// Where the next bytes go; never empty once [`Decoder::next`] has found nothing more. Followed
    /// by [`Decoder::filled`].
    pub fn space(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        &mut self.buffer[self.end..]
    }

    /// Takes the first `count` bytes of [`Decoder::space`] as received.
    ///
    /// # Panics
    /// When there was not so much space: a bug of the caller.
    pub fn filled(&mut self, count: usize) {
        assert!(count <= self.buffer.len() - self.end, "more bytes than space");
        self.end += count;
    }

    /// True without any byte that may become a frame.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The bytes skipped since the last call.
    pub fn take_noise(&mut self) -> usize {
        std::mem::take(&mut self.noise)
    }

    /// Takes out what is found next; `None` where more bytes are needed or nothing is left.
    /// `quiet` says that no more bytes belong to those at hand.
    pub fn next(&mut self, expected: Option<&Expected>, quiet: bool) -> Option<Found<'_>> {
        loop {
            let bytes = &self.buffer[self.start..self.end];
            if bytes.is_empty() {
                return None;
            }
            // A whole frame's length and nothing found: its beginning was noise.
            let quiet = quiet || bytes.len() >= ADU_MAX;
            match begin(bytes, expected, quiet) {
                Begin::Frame(len) => return Some(Found::Frame(self.frame(len))),
                Begin::Echo => {
                    self.start += READ_REQUEST_LEN;
                    return Some(Found::Echo);
                }
                waits @ (Begin::More | Begin::Nothing) => {
                    if let Some(at) = expected.and_then(|e| e.find(bytes)) {
                        self.skip(at);
                        let len = expected.map_or(0, Expected::reply_len);
                        return Some(Found::Frame(self.frame(len)));
                    }
                    let ours = expected.is_some_and(|e| e.is_meant_by(bytes));
                    if !quiet && (ours || matches!(waits, Begin::More)) {
                        return None;
                    }
                    if quiet && ours {
                        self.start = self.end;
                        return Some(Found::Damaged);
                    }
                    self.skip(1);
                }
            }
        }
    }

    fn skip(&mut self, count: usize) {
        self.start += count;
        self.noise += count;
    }

    fn frame(&mut self, len: usize) -> Frame<'_> {
        let adu = self.start..self.start + len;
        self.start += len;
        let adu = &self.buffer[adu];
        Frame { unit: adu[0], pdu: &adu[1..len - 2] }
    }
}

/// Says how `bytes`, of which there is at least one, begin.
fn begin(bytes: &[u8], expected: Option<&Expected>, quiet: bool) -> Begin {
    if let Some(expected) = expected {
        if expected.echo {
            if bytes.starts_with(&expected.sent) {
                return Begin::Echo;
            }
            if expected.sent.starts_with(bytes) && !quiet {
                return Begin::More;
            }
        }
        if expected.is_begun_by(bytes) {
            // Nothing else is looked for in what may be the reply: a shorter frame would be found
            // in one of 65,536 by chance.
            let len = expected.reply_len();
            if bytes.len() < len && !quiet {
                return Begin::More;
            }
            if bytes.len() >= len && is_whole(&bytes[..len]) {
                return Begin::Frame(len);
            }
        }
    }
    let mut more = false;
    for len in lengths(bytes).into_iter().flatten() {
        match len {
            Length::Known(len) if len <= bytes.len() => {
                if is_whole(&bytes[..len]) {
                    return Begin::Frame(len);
                }
            }
            Length::Known(len) => more |= len <= ADU_MAX,
            Length::Open => more = true,
        }
    }
    if more { Begin::More } else { Begin::Nothing }
}

/// How long a frame may be.
#[derive(Debug, Clone, Copy)]
enum Length {
    Known(usize),
    /// The bytes that say so have not come.
    Open,
}

/// The lengths of the frames that may begin with `bytes`: requests, also those of another client on
/// the line, and replies (specification, section 6).
fn lengths(bytes: &[u8]) -> [Option<Length>; 2] {
    let counted = |at: usize, rest: usize| {
        Some(bytes.get(at).map_or(Length::Open, |n| Length::Known(usize::from(*n) + rest)))
    };
    let fixed = |len: usize| Some(Length::Known(len));
    let &[unit, function, ..] = bytes else {
        return [bytes.first().filter(|unit| **unit <= UNIT_MAX).map(|_| Length::Open), None];
    };
    if unit > UNIT_MAX {
        return [None, None];
    }
    match function {
        // Reads: the request, and the reply with its byte count.
        0x01..=0x04 => [fixed(8), counted(2, 5)],
        // Single writes, diagnostics: the request, and its echo.
        0x05 | 0x06 | 0x08 => [fixed(8), None],
        // Exception status; event counter: a request without data, and the reply.
        0x07 => [fixed(4), fixed(5)],
        0x0B => [fixed(4), fixed(8)],
        // Event log, server id.
        0x0C | 0x11 => [fixed(4), counted(2, 5)],
        // Multiple writes: the reply, and the request with its byte count.
        0x0F | 0x10 => [fixed(8), counted(6, 9)],
        // File records: both with a byte count.
        0x14 | 0x15 => [counted(2, 5), None],
        0x16 => [fixed(10), None],
        // Read and write: the reply, and the request.
        0x17 => [counted(2, 5), counted(10, 13)],
        0x80.. => [fixed(EXCEPTION_LEN), None],
        _ => [None, None],
    }
}

#[cfg(test)]
#[path = "rtu_tests.rs"]
mod tests;
