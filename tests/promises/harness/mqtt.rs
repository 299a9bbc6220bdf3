//! An MQTT 3.1.1 client of the test's own, on plain sockets: as much as a subscriber and a
//! publisher of QoS 1 need, and nothing that the gateway uses too.
//!
//! Source: MQTT Version 3.1.1, OASIS Standard, sections 2 and 3.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const CONNECT: u8 = 0x10;
const CONNACK: u8 = 0x20;
const PUBLISH: u8 = 0x30;
const PUBACK: u8 = 0x40;
const SUBSCRIBE: u8 = 0x82;
const SUBACK: u8 = 0x90;

/// How long the broker may take for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A message from the broker.
pub(crate) struct Message {
    /// Its topic.
    pub(crate) topic: String,
    /// Its payload.
    pub(crate) payload: Vec<u8>,
}

/// A connection to a broker.
pub(crate) struct Client {
    stream: TcpStream,
    received: Vec<u8>,
    last_id: u16,
}

impl Client {
    /// Connects to a port of loopback with a clean session and returns after the CONNACK.
    pub(crate) fn connect(port: u16, client_id: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_millis(50)))?;
        stream.set_write_timeout(Some(ANSWER_MAX))?;
        let mut client = Self { stream, received: Vec::new(), last_id: 0 };
        // Protocol name and level 4, clean session, no keep-alive (section 3.1.2).
        let mut body = vec![0, 4, b'M', b'Q', b'T', b'T', 4, 0b10, 0, 0];
        text(&mut body, client_id);
        client.send(CONNECT, &body)?;
        match client.answer(CONNACK)?.as_slice() {
            [_, 0] => Ok(client),
            refused => Err(io::Error::other(format!("CONNACK {refused:?}"))),
        }
    }

    /// Subscribes with QoS 1 and returns after the SUBACK.
    pub(crate) fn subscribe(&mut self, filter: &str) -> io::Result<()> {
        let id = self.next_id();
        let mut body = id.to_be_bytes().to_vec();
        text(&mut body, filter);
        body.push(1);
        self.send(SUBSCRIBE, &body)?;
        match self.answer(SUBACK)?.as_slice() {
            [_, _, 1] => Ok(()),
            refused => Err(io::Error::other(format!("SUBACK {refused:?}"))),
        }
    }

    /// Publishes with QoS 1 and returns after the PUBACK.
    pub(crate) fn publish(&mut self, topic: &str, payload: &[u8]) -> io::Result<()> {
        let id = self.next_id();
        let mut body = Vec::new();
        text(&mut body, topic);
        body.extend(id.to_be_bytes());
        body.extend(payload);
        self.send(PUBLISH | 0b10, &body)?;
        let acknowledged = self.answer(PUBACK)?;
        assert_eq!(acknowledged, id.to_be_bytes(), "the PUBACK of another message");
        Ok(())
    }

    /// The next message, acknowledged; none where none came for a short while.
    pub(crate) fn next(&mut self) -> io::Result<Option<Message>> {
        let Some((kind, body)) = self.packet()? else {
            return Ok(None);
        };
        if kind & 0xF0 != PUBLISH {
            return Err(io::Error::other(format!("packet {kind:#x} instead of PUBLISH")));
        }
        let end = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
        let topic = String::from_utf8_lossy(&body[2..end]).into_owned();
        let mut payload = end;
        if kind & 0b110 != 0 {
            self.send(PUBACK, &body[end..end + 2])?;
            payload += 2;
        }
        Ok(Some(Message { topic, payload: body[payload..].to_vec() }))
    }

    fn next_id(&mut self) -> u16 {
        self.last_id = self.last_id.checked_add(1).unwrap_or(1);
        self.last_id
    }

    fn send(&mut self, kind: u8, body: &[u8]) -> io::Result<()> {
        let mut packet = vec![kind];
        let mut rest = body.len();
        // The remaining length, seven bits a byte (section 2.2.3).
        loop {
            let low = u8::try_from(rest % 128).expect("below 128");
            rest /= 128;
            packet.push(if rest == 0 { low } else { low | 0x80 });
            if rest == 0 {
                break;
            }
        }
        packet.extend(body);
        self.stream.write_all(&packet)
    }

    fn answer(&mut self, kind: u8) -> io::Result<Vec<u8>> {
        let start = Instant::now();
        while start.elapsed() < ANSWER_MAX {
            match self.packet()? {
                Some((got, body)) if got == kind => return Ok(body),
                Some((got, _)) => {
                    return Err(io::Error::other(format!("packet {got:#x} instead of {kind:#x}")));
                }
                None => {}
            }
        }
        Err(io::Error::new(ErrorKind::TimedOut, "no answer from the broker"))
    }

    /// The next packet: its first byte and what follows the length. None after a short silence.
    fn packet(&mut self) -> io::Result<Option<(u8, Vec<u8>)>> {
        loop {
            if let Some((start, end)) = frame(&self.received) {
                let packet = (self.received[0], self.received[start..end].to_vec());
                self.received.drain(..end);
                return Ok(Some(packet));
            }
            let mut buffer = [0; 16 << 10];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.received.extend(&buffer[..count]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
        }
    }
}

/// Where the first packet's body begins and ends, if all of it is there.
fn frame(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut length = 0;
    for (index, byte) in bytes.iter().enumerate().skip(1).take(4) {
        length |= usize::from(byte & 0x7F) << (7 * (index - 1));
        if byte & 0x80 == 0 {
            let (start, end) = (index + 1, index + 1 + length);
            return (bytes.len() >= end).then_some((start, end));
        }
    }
    None
}

/// Appends a text with its length (section 1.5.3).
fn text(to: &mut Vec<u8>, text: &str) {
    to.extend(u16::try_from(text.len()).expect("a short text").to_be_bytes());
    to.extend(text.as_bytes());
}
