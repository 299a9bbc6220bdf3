//! Cuts the bytes of a broker into packets, with no I/O of its own.
//!
//! The packets themselves are read by rumqttc's codec. What this adds is the way past a message
//! that is larger than we accept: its packet id is taken, its body is dropped as it arrives and
//! never held, and the connection goes on. The codec alone would end the connection, and a broker
//! that must deliver would offer the same message again for ever.

use bytes::{Buf, BytesMut};
use rumqttc::{Error, Packet};

/// How much is read from the socket at once.
const READ_CHUNK: usize = 64 << 10;

/// What came from the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// A whole packet.
    Packet(Packet),
    /// A PUBLISH over the limit. Its body is passed over.
    Oversize {
        /// The packet id that a QoS 1 message wants acknowledged.
        pkid: Option<u16>,
        /// The size of the whole packet in bytes.
        size: usize,
    },
}

/// Bytes that were received and are not yet cut.
pub(crate) struct Inbox {
    bytes: BytesMut,
    /// Bytes of an oversize packet that are still to be dropped.
    skip: usize,
    /// Largest remaining length that is accepted.
    max: usize,
}

impl Inbox {
    /// Makes an empty inbox that passes over messages of more than `max` bytes.
    pub(crate) fn new(max: usize) -> Self {
        Self { bytes: BytesMut::with_capacity(READ_CHUNK), skip: 0, max }
    }

    /// Room for the next read.
    pub(crate) fn room(&mut self) -> &mut BytesMut {
        if self.bytes.capacity() - self.bytes.len() < READ_CHUNK / 2 {
            self.bytes.reserve(READ_CHUNK);
        }
        &mut self.bytes
    }

    /// Drops everything that is not cut yet.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.skip = 0;
    }

    /// The kind of the next packet, where at least its first byte is there.
    pub(crate) fn peek_kind(&self) -> Option<u8> {
        (self.skip == 0).then(|| self.bytes.first().map(|b| b >> 4)).flatten()
    }

    /// Takes the next packet, or `None` where more bytes are needed. An error means that the
    /// stream cannot be followed any longer.
    pub(crate) fn next(&mut self) -> Result<Option<Incoming>, Error> {
        let dropped = self.skip.min(self.bytes.len());
        self.bytes.advance(dropped);
        self.skip -= dropped;
        if self.skip > 0 {
            return Ok(None);
        }
        match Packet::read(&mut self.bytes, self.max) {
            Ok(packet) => Ok(Some(Incoming::Packet(packet))),
            Err(Error::InsufficientBytes(_)) => Ok(None),
            Err(Error::PayloadSizeLimitExceeded(remaining)) => self.pass_over(remaining),
            Err(error) => Err(error),
        }
    }

    /// Passes over a PUBLISH of `remaining` bytes once its packet id is known (3.3.1, 3.3.2).
    fn pass_over(&mut self, remaining: usize) -> Result<Option<Incoming>, Error> {
        let first = self.bytes[0];
        if first >> 4 != 3 {
            return Err(Error::PayloadSizeLimitExceeded(remaining));
        }
        // The fixed header is complete here: its length bytes end with the first one below 0x80.
        let length_bytes = self.bytes[1..].iter().take_while(|b| **b >= 0x80).count() + 1;
        let header = 1 + length_bytes;
        let mut pkid = None;
        if first & 0b0110 != 0 {
            let Some(topic) = self.u16_at(header) else {
                return Ok(None);
            };
            let at = header + 2 + usize::from(topic);
            if at + 2 > header + remaining {
                return Err(Error::MalformedPacket);
            }
            let Some(id) = self.u16_at(at) else {
                return Ok(None);
            };
            if id == 0 {
                return Err(Error::PacketIdZero);
            }
            pkid = Some(id);
        }
        self.skip = header + remaining;
        Ok(Some(Incoming::Oversize { pkid, size: header + remaining }))
    }

    fn u16_at(&self, at: usize) -> Option<u16> {
        let bytes = self.bytes.get(at..at + 2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(inbox: &mut Inbox, bytes: &[u8]) {
        inbox.room().extend_from_slice(bytes);
    }

    /// PUBLISH, QoS 1, topic `a`, id 7, then a body; written by hand after 3.3.
    fn publish(body: &[u8]) -> Vec<u8> {
        let remaining = 2 + 1 + 2 + body.len();
        let mut bytes = vec![0x32];
        if remaining < 128 {
            bytes.push(u8::try_from(remaining).unwrap());
        } else {
            bytes.push(u8::try_from(remaining % 128).unwrap() | 0x80);
            bytes.push(u8::try_from(remaining / 128).unwrap());
        }
        bytes.extend_from_slice(&[0, 1, b'a', 0, 7]);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn an_oversize_message_is_passed_over_byte_by_byte() {
        let mut inbox = Inbox::new(100);
        let mut bytes = publish(&[b'x'; 500]);
        bytes.extend_from_slice(&publish(b"ok"));
        let mut seen = Vec::new();
        for byte in bytes {
            feed(&mut inbox, &[byte]);
            while let Some(incoming) = inbox.next().unwrap() {
                seen.push(incoming);
            }
            assert!(inbox.bytes.len() < 100, "the body is not kept");
        }
        assert_eq!(seen[0], Incoming::Oversize { pkid: Some(7), size: 508 });
        let Incoming::Packet(Packet::Publish(publish)) = &seen[1] else { panic!("{seen:?}") };
        assert_eq!((&publish.payload[..], publish.pkid), (&b"ok"[..], 7));
        assert_eq!(seen.len(), 2);
    }

    #[test]
    fn an_oversize_message_at_qos_0_has_no_id() {
        let mut inbox = Inbox::new(10);
        feed(&mut inbox, &[0x30, 0x20]);
        assert_eq!(inbox.next().unwrap(), Some(Incoming::Oversize { pkid: None, size: 34 }));
        feed(&mut inbox, &[0; 31]);
        assert_eq!(inbox.next().unwrap(), None);
        feed(&mut inbox, &[0, 0xD0, 0x00]);
        assert_eq!(inbox.next().unwrap(), Some(Incoming::Packet(Packet::PingResp)));
    }

    #[test]
    fn nonsense_ends_the_stream() {
        for bytes in [
            &[0x41, 0x02, 0x00, 0x01][..],   // PUBACK with reserved flags set
            &[0x32, 0x20, 0xff, 0xff, 0, 0], // topic longer than the packet
            &[0x32, 0x20, 0x00, 0x01, b'a', 0x00, 0x00], // packet id 0
            &[0x90, 0xff, 0x7f],             // a SUBACK over the limit
            &[0x30, 0xff, 0xff, 0xff, 0xff], // no end of the length
        ] {
            let mut inbox = Inbox::new(10);
            feed(&mut inbox, bytes);
            inbox.next().unwrap_err();
        }
    }
}
