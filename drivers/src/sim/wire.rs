//! Frames as a server sees them: bytes in and bytes out, no sockets and no time.
//!
//! Deliberately its own code, written from the specifications and not from our client's framing,
//! so that both can be wrong together only by the same misreading. Sources: Modbus Messaging on
//! TCP/IP Implementation Guide V1.0b, section 3.1.3 (MBAP header); Modbus over Serial Line V1.02,
//! section 2.5.1 (RTU frame) and appendix B (CRC).

use std::io;

use super::SimFraming;

/// Bytes of a request frame at most: 256 of an RTU frame, 260 of a TCP frame.
const FRAME_MAX: usize = 260;
/// Bytes of the MBAP header.
const HEADER_LEN: usize = 7;

/// A request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    /// All bytes of the frame.
    pub(super) raw: Vec<u8>,
    /// The transaction id; 0 in RTU frames, which have none.
    pub(super) id: u16,
    pub(super) unit: u8,
    /// Function code and data; at least the function code.
    pub(super) pdu: Vec<u8>,
}

/// Takes the next whole request out of `buffer`. `Ok(None)` where more bytes are needed; an `Err`
/// says that the stream is not Modbus TCP and cannot be read on. In RTU frames everything before a
/// right CRC is noise and left out, as on a bus where others speak.
pub(super) fn take(framing: SimFraming, buffer: &mut Vec<u8>) -> io::Result<Option<Asked>> {
    match framing {
        SimFraming::Tcp => take_tcp(buffer),
        SimFraming::Rtu => Ok(take_rtu(buffer)),
    }
}

fn take_tcp(buffer: &mut Vec<u8>) -> io::Result<Option<Asked>> {
    let &[t1, t0, p1, p0, l1, l0, unit, ..] = &buffer[..] else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([l1, l0]));
    // The length counts the unit id and the PDU of 1 to 253 bytes.
    if [p1, p0] != [0, 0] || !(2..=254).contains(&len) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a Modbus TCP header"));
    }
    if buffer.len() < HEADER_LEN - 1 + len {
        return Ok(None);
    }
    let raw: Vec<u8> = buffer.drain(..HEADER_LEN - 1 + len).collect();
    let pdu = raw[HEADER_LEN..].to_vec();
    Ok(Some(Asked { raw, id: u16::from_be_bytes([t1, t0]), unit, pdu }))
}

fn take_rtu(buffer: &mut Vec<u8>) -> Option<Asked> {
    for start in 0..buffer.len() {
        let frame = &buffer[start..];
        let Some(len) = request_len(frame) else { continue };
        let Some(([body @ .., low, high], _)) = frame.split_at_checked(len) else { continue };
        if crc(body) == u16::from_le_bytes([*low, *high]) {
            let asked =
                Asked { raw: frame[..len].to_vec(), id: 0, unit: body[0], pdu: body[1..].to_vec() };
            buffer.drain(..start + len);
            return Some(asked);
        }
    }
    // No frame begins further back than its greatest length.
    let noise = buffer.len().saturating_sub(FRAME_MAX);
    buffer.drain(..noise);
    None
}

/// Length of a request that begins here (Application Protocol V1.1b3, sections 6.1 to 6.21), CRC
/// included. A function that is not known there ends where the bytes end. `None` where too few
/// bytes say it.
fn request_len(frame: &[u8]) -> Option<usize> {
    let counted = |at: usize| frame.get(at).map(|count| at + 1 + usize::from(*count) + 2);
    match frame.get(1)? {
        1..=6 | 8 => Some(8),
        7 | 11 | 12 | 17 => Some(4),
        15 | 16 => counted(6),
        20 | 21 => counted(2),
        22 => Some(10),
        23 => counted(10),
        24 => Some(6),
        _ => (frame.len() >= 4).then_some(frame.len()),
    }
}

/// A reply frame.
pub(super) fn frame(framing: SimFraming, id: u16, unit: u8, pdu: &[u8]) -> Vec<u8> {
    match framing {
        SimFraming::Tcp => {
            // A PDU has 253 bytes at most.
            let len = u16::try_from(pdu.len() + 1).unwrap_or(u16::MAX);
            let ([t1, t0], [l1, l0]) = (id.to_be_bytes(), len.to_be_bytes());
            let mut bytes = vec![t1, t0, 0, 0, l1, l0, unit];
            bytes.extend_from_slice(pdu);
            bytes
        }
        SimFraming::Rtu => {
            let mut bytes = vec![unit];
            bytes.extend_from_slice(pdu);
            let crc = crc(&bytes);
            bytes.extend(crc.to_le_bytes());
            bytes
        }
    }
}

/// CRC-16 with the polynomial A001 (reversed), low byte first on the wire (Serial Line V1.02,
/// section 6.2.2).
fn crc(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0xFFFF, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| {
            if crc & 1 == 1 { (crc >> 1) ^ 0xA001 } else { crc >> 1 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(framing: SimFraming, bytes: &[u8]) -> (Vec<(u16, u8, Vec<u8>)>, usize) {
        let mut buffer = bytes.to_vec();
        let mut all = Vec::new();
        while let Some(asked) = take(framing, &mut buffer).unwrap() {
            all.push((asked.id, asked.unit, asked.pdu));
        }
        (all, buffer.len())
    }

    /// Frames as they stood in field cases A20, A22 and A24, CRCs included.
    #[test]
    fn rtu_requests_are_found_by_their_crc() {
        let a20 = [0x0A, 0x01, 0x04, 0xA1, 0x00, 0x01, 0xAC, 0x63];
        let a22 = [0x01, 0x03, 0x04, 0xB2, 0x00, 0x01, 0x25, 0x1D];
        let write = [0x00, 0x10, 0x00, 0x01, 0x00, 0x02, 0x04, 0x00, 0x01, 0x00, 0x02, 0xE6, 0x9E];
        let two = (0, 0x0A, vec![1, 0x04, 0xA1, 0, 1]);
        assert_eq!(requests(SimFraming::Rtu, &a20), (vec![two.clone()], 0));
        let all = [&[0xFF, 0xFF][..], &a20, &[0x00], &write, &a22, &[0x01, 0x03]].concat();
        let (found, rest) = requests(SimFraming::Rtu, &all);
        let reads: Vec<_> = found.iter().map(|(_, unit, pdu)| (*unit, pdu[0])).collect();
        assert_eq!((reads, rest), (vec![(0x0A, 1), (0, 16), (1, 3)], 2));
        assert_eq!(found[0], two);
    }

    #[test]
    fn a_damaged_or_split_rtu_request_is_none() {
        let a22 = [0x01, 0x03, 0x04, 0xB2, 0x00, 0x01, 0x25, 0x1D];
        for cut in 0..a22.len() {
            assert_eq!(requests(SimFraming::Rtu, &a22[..cut]), (vec![], cut), "cut at {cut}");
        }
        for bit in 0..64 {
            let mut damaged = a22;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(requests(SimFraming::Rtu, &damaged).0, [], "bit {bit}");
        }
        assert_eq!(requests(SimFraming::Rtu, &[0xFF; 1000]), (vec![], FRAME_MAX));
    }

    #[test]
    fn tcp_requests_are_cut_by_their_length() {
        let bytes = [0, 0x10, 0, 0, 0, 6, 1, 3, 0, 0x28, 0, 0x28, 0, 0x11, 0, 0, 0, 2, 9];
        let one = (16, 1, vec![3, 0, 0x28, 0, 0x28]);
        assert_eq!(requests(SimFraming::Tcp, &bytes), (vec![one], 7));
        for bad in [[0, 1, 0, 5, 0, 6, 1], [0, 1, 0, 0, 0, 1, 1], [0, 1, 0, 0, 1, 0, 1]] {
            take(SimFraming::Tcp, &mut bad.to_vec()).unwrap_err();
        }
    }

    /// Field cases A20 (`0A 81 02 B0 53`) and A23.
    #[test]
    fn replies_are_framed_as_the_specification_says() {
        let exception = frame(SimFraming::Rtu, 7, 0x0A, &[0x81, 2]);
        assert_eq!(exception, [0x0A, 0x81, 0x02, 0xB0, 0x53]);
        let a23 = frame(SimFraming::Rtu, 7, 0x0B, &[4, 4, 0, 0, 0, 0x0A]);
        assert_eq!(a23, [0x0B, 0x04, 0x04, 0x00, 0x00, 0x00, 0x0A, 0xD1, 0x83]);
        let tcp = frame(SimFraming::Tcp, 0x1234, 1, &[0x83, 2]);
        assert_eq!(tcp, [0x12, 0x34, 0, 0, 0, 3, 1, 0x83, 2]);
    }
}
