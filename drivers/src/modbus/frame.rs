//! Modbus TCP frames, bytes in and bytes out: no sockets, no time, no devices.
//!
//! [`Decoder`] takes bytes as they come (half frames, several in one segment) and gives whole
//! frames; it judges nothing but the length, which is what keeps it in step. Whose reply a frame
//! is, [`super::transaction`] decides.
//!
//! Source: guide, sections 3.1.3 (MBAP header) and 4.4.2; specification, sections 4.1 and 6.

use crate::south::modbus::RegisterKind;

/// Bytes of the MBAP header: transaction 2, protocol 2, length 2, unit 1 (guide, section 3.1.3).
pub const HEADER_LEN: usize = 7;
/// Longest PDU: 256 bytes of a serial ADU less address and CRC (specification, section 4.1).
pub const PDU_MAX: usize = 253;
/// Longest ADU on TCP (specification, section 4.1).
pub const ADU_MAX: usize = HEADER_LEN + PDU_MAX;
/// Largest value of the length field, which counts the unit id and the PDU.
pub const LENGTH_MAX: u16 = 254;
/// The protocol id of Modbus (guide, section 3.1.3).
pub const PROTOCOL: u16 = 0;
/// Bytes of a read request: header, function, start, quantity (specification, sections 6.1-6.4).
pub const READ_REQUEST_LEN: usize = HEADER_LEN + 5;
/// What a server adds to the function code of an exception (specification, section 7).
pub const EXCEPTION_BIT: u8 = 0x80;

/// Room for a frame that is still coming and the segment that brings its end.
const BUFFER_LEN: usize = 2 * ADU_MAX;

/// A request that reads registers or bits of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// The unit id.
    pub unit: u8,
    /// What is read; decides the function code.
    pub kind: RegisterKind,
    /// The first address.
    pub start: u16,
    /// Registers or bits.
    pub quantity: u16,
}

impl ReadRequest {
    /// Data bytes of a right reply: 2 a register, or one for each 8 bits begun (specification,
    /// sections 6.1 to 6.4).
    pub fn reply_len(&self) -> usize {
        let quantity = usize::from(self.quantity);
        if self.kind.is_bits() { quantity.div_ceil(8) } else { 2 * quantity }
    }

    /// Writes the request as a Modbus TCP frame.
    pub fn encode(&self, transaction: u16) -> [u8; READ_REQUEST_LEN] {
        let ([t1, t0], [p1, p0]) = (transaction.to_be_bytes(), PROTOCOL.to_be_bytes());
        let ([s1, s0], [q1, q0]) = (self.start.to_be_bytes(), self.quantity.to_be_bytes());
        let function = self.kind.read_function();
        // The length field counts the unit id and the five bytes of the PDU.
        [t1, t0, p1, p0, 0, 6, self.unit, function, s1, s0, q1, q0]
    }
}

/// A whole frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The transaction id, which a server copies from the request.
    pub transaction: u16,
    /// The protocol id; anything but [`PROTOCOL`] is not Modbus.
    pub protocol: u16,
    /// The unit id.
    pub unit: u8,
    /// Function code and data; empty where a device sent a header alone.
    pub pdu: &'a [u8],
}

/// The length field of a header cannot be right, so the start of the next frame is unknown: only a
/// new connection helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame announces {0} bytes, 1 to 254 are possible")]
pub struct OutOfStep(pub u16);

/// Cuts a byte stream into frames. Holds at most two frames' bytes.
#[derive(Debug)]
pub struct Decoder {
    buffer: [u8; BUFFER_LEN],
    start: usize,
    end: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { buffer: [0; BUFFER_LEN], start: 0, end: 0 }
    }
}

impl Decoder {
    /// Forgets what came.
    pub fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Where the next bytes go. Never empty once [`Decoder::next_frame`] has said that it needs
    /// more. Followed by [`Decoder::filled`].
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

    /// Takes the next whole frame out; `None` where more bytes are needed.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, OutOfStep> {
        let bytes = &self.buffer[self.start..self.end];
        let &[t1, t0, p1, p0, l1, l0, unit, ..] = bytes else {
            return match bytes {
                // A length that cannot be is seen before the unit id behind it comes.
                &[_, _, _, _, l1, l0] => check_length(l1, l0).map(|_| None),
                _ => Ok(None),
            };
        };
        let len = HEADER_LEN - 1 + check_length(l1, l0)?;
        if bytes.len() < len {
            return Ok(None);
        }
        let pdu = self.start + HEADER_LEN..self.start + len;
        self.start += len;
        Ok(Some(Frame {
            transaction: u16::from_be_bytes([t1, t0]),
            protocol: u16::from_be_bytes([p1, p0]),
            unit,
            pdu: &self.buffer[pdu],
        }))
    }
}

fn check_length(high: u8, low: u8) -> Result<usize, OutOfStep> {
    let length = u16::from_be_bytes([high, low]);
    if (1..=LENGTH_MAX).contains(&length) {
        Ok(usize::from(length))
    } else {
        Err(OutOfStep(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `segments` one after another and collects (transaction, unit, PDU).
    fn frames(segments: &[&[u8]]) -> Result<Vec<(u16, u8, Vec<u8>)>, OutOfStep> {
        let (mut decoder, mut out) = (Decoder::default(), Vec::new());
        for segment in segments {
            decoder.space()[..segment.len()].copy_from_slice(segment);
            decoder.filled(segment.len());
            while let Some(frame) = decoder.next_frame()? {
                out.push((frame.transaction, frame.unit, frame.pdu.to_vec()));
            }
        }
        Ok(out)
    }

    /// Field case A18: the request as it stood in the report.
    #[test]
    fn a18_a_request_is_written_as_the_guide_says() {
        let request =
            ReadRequest { unit: 1, kind: RegisterKind::Holding, start: 0x28, quantity: 0x28 };
        assert_eq!(
            request.encode(16),
            [0x00, 0x10, 0, 0, 0, 0x06, 0x01, 0x03, 0x00, 0x28, 0x00, 0x28]
        );
        assert_eq!(request.reply_len(), 80);
        let coils = ReadRequest { kind: RegisterKind::Coil, quantity: 11, ..request };
        assert_eq!((coils.encode(1)[7], coils.reply_len()), (1, 2));
    }

    /// The lengths of field case A19's two frames.
    const TWO: [u8; 42] = [
        0x00, 0x0F, 0, 0, 0, 0x13, 0x32, 3, 0x10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
        15, 16, 0x00, 0x10, 0, 0, 0, 0x0B, 0x32, 3, 8, 0x49, 0x31, 0x13, 0x88, 0x3A, 0x83, 0x12,
        0x6F,
    ];

    #[test]
    fn a19_frames_do_not_depend_on_segments() {
        let whole = frames(&[&TWO]).unwrap();
        assert_eq!(whole.len(), 2);
        assert_eq!((whole[0].0, whole[0].1, whole[0].2.len()), (0x0F, 0x32, 18));
        assert_eq!((whole[1].0, &whole[1].2[1..4]), (0x10, &[8, 0x49, 0x31][..]));
        for cut in 1..TWO.len() {
            assert_eq!(frames(&[&TWO[..cut], &TWO[cut..]]).unwrap(), whole, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = TWO.chunks(1).collect();
        assert_eq!(frames(&bytes).unwrap(), whole);
    }

    #[test]
    fn a_header_alone_is_an_empty_frame() {
        let whole = frames(&[&[0, 1, 0, 0, 0, 1, 9, 0, 2, 0, 0, 0, 3, 9, 0x83, 2]]).unwrap();
        assert_eq!(whole, [(1, 9, vec![]), (2, 9, vec![0x83, 2])]);
    }

    #[test]
    fn impossible_lengths_are_out_of_step() {
        assert_eq!(frames(&[&[0, 1, 0, 0, 0, 0]]), Err(OutOfStep(0)));
        assert_eq!(frames(&[&[0, 1, 0, 0, 0, 255]]), Err(OutOfStep(255)));
        assert_eq!(frames(&[&[0, 1, 0, 0, 0xFF, 0xFF, 1, 3]]), Err(OutOfStep(0xFFFF)));
    }

    #[test]
    fn the_longest_frame_fits() {
        let mut adu = vec![0, 7, 0, 0, 0, 254, 1, 3, 250];
        adu.resize(ADU_MAX, 0xAB);
        let whole = frames(&[&adu[..259], &adu[259..], &adu]).unwrap();
        assert_eq!(whole.len(), 2);
        assert_eq!(whole[1].2.len(), PDU_MAX);
    }

    #[test]
    fn a_foreign_protocol_is_named() {
        let mut decoder = Decoder::default();
        decoder.space()[..9].copy_from_slice(&[0, 1, 0, 5, 0, 3, 1, 3, 0]);
        decoder.filled(9);
        assert_eq!(decoder.next_frame().unwrap().unwrap().protocol, 5);
    }
}
