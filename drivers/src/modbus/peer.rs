//! A peer for tests that speaks Modbus TCP or RTU byte by byte: none of it uses our codec.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::Instant;

use crate::bus::{Connect, Link};

/// A request as the peer saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) transaction: u16,
    pub(crate) unit: u8,
    pub(crate) function: u8,
    pub(crate) start: u16,
    pub(crate) quantity: u16,
    pub(crate) rtu: bool,
}

/// `body` with its CRC, bit by bit (serial guide, clause 6.2.2).
pub(crate) fn with_crc(body: &[u8]) -> Vec<u8> {
    let mut crc = 0xFFFF_u16;
    for byte in body {
        crc ^= u16::from(*byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc >>= 1;
            if carry == 1 {
                crc ^= 0xA001;
            }
        }
    }
    let mut frame = body.to_vec();
    frame.extend(crc.to_le_bytes());
    frame
}

impl Seen {
    /// A frame for this request: header or CRC (guide, section 3.1.3; serial guide, clause 2.3).
    fn frame(&self, pdu: &[u8]) -> Vec<u8> {
        let mut frame = vec![self.unit];
        frame.extend(pdu);
        if self.rtu {
            return with_crc(&frame);
        }
        let mut whole = self.transaction.to_be_bytes().to_vec();
        whole.extend([0, 0, 0, u8::try_from(frame.len()).unwrap()]);
        whole.extend(frame);
        whole
    }

    /// A reply to this request with `data` behind the byte count.
    pub(crate) fn reply(&self, data: &[u8]) -> Vec<u8> {
        let mut pdu = vec![self.function, u8::try_from(data.len()).unwrap()];
        pdu.extend(data);
        self.frame(&pdu)
    }

    /// An exception frame (specification, section 7).
    pub(crate) fn exception(&self, code: u8) -> Vec<u8> {
        self.frame(&[self.function | 0x80, code])
    }

    /// A reply in which each register holds its own address.
    pub(crate) fn addresses(&self) -> Vec<u8> {
        let data: Vec<u8> =
            (0..self.quantity).flat_map(|i| (self.start.wrapping_add(i)).to_be_bytes()).collect();
        self.reply(&data)
    }
}

/// What the peer does with a request.
#[derive(Debug, Clone)]
pub(crate) enum Does {
    /// Sends these bytes.
    Says(Vec<u8>),
    /// Waits that long, then sends these bytes.
    Later(Duration, Vec<u8>),
    /// Sends these bytes and closes the connection.
    Last(Vec<u8>),
    /// Sends nothing.
    Nothing,
    /// Closes the connection.
    Closes,
}

type Behaviour = Arc<Mutex<dyn FnMut(&Seen) -> Does + Send>>;

/// A device at the other end of a link, on virtual time.
#[derive(Clone)]
pub(crate) struct Peer {
    behaviour: Behaviour,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Answers to attempts to connect; an attempt without one is accepted.
    refusals: Arc<Mutex<VecDeque<io::ErrorKind>>>,
    connects: Arc<Mutex<Vec<Instant>>>,
    rtu: bool,
}

impl Peer {
    /// A peer that speaks RTU.
    pub(crate) fn rtu(behaviour: impl FnMut(&Seen) -> Does + Send + 'static) -> Self {
        Self { rtu: true, ..Self::new(behaviour) }
    }

    pub(crate) fn new(behaviour: impl FnMut(&Seen) -> Does + Send + 'static) -> Self {
        Self {
            behaviour: Arc::new(Mutex::new(behaviour)),
            seen: Arc::default(),
            refusals: Arc::default(),
            connects: Arc::default(),
            rtu: false,
        }
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// Forgets the requests so far.
    pub(crate) fn forget(&self) {
        self.seen.lock().unwrap().clear();
    }

    /// Refuses the next `count` attempts to connect.
    pub(crate) fn refuse(&self, count: usize) {
        let refusals = std::iter::repeat_n(io::ErrorKind::ConnectionRefused, count);
        self.refusals.lock().unwrap().extend(refusals);
    }

    /// When somebody tried to connect.
    pub(crate) fn attempts(&self) -> Vec<Instant> {
        self.connects.lock().unwrap().clone()
    }

    async fn request(&self, stream: &mut DuplexStream) -> io::Result<Seen> {
        let mut bytes = [0; 12];
        let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let transaction = if self.rtu {
            stream.read_exact(&mut bytes[6..]).await?;
            let mut crc = [0; 2];
            stream.read_exact(&mut crc).await?;
            assert_eq!(with_crc(&bytes[6..])[6..], crc, "the request's CRC");
            0
        } else {
            stream.read_exact(&mut bytes).await?;
            assert_eq!((word(&bytes, 2), word(&bytes, 4)), (0, 6), "protocol id and length");
            word(&bytes, 0)
        };
        Ok(Seen {
            at: Instant::now(),
            transaction,
            unit: bytes[6],
            function: bytes[7],
            start: word(&bytes, 8),
            quantity: word(&bytes, 10),
            rtu: self.rtu,
        })
    }

    async fn serve(self, mut stream: DuplexStream) {
        while let Ok(seen) = self.request(&mut stream).await {
            self.seen.lock().unwrap().push(seen);
            let does = (self.behaviour.lock().unwrap())(&seen);
            let last = matches!(does, Does::Last(_) | Does::Closes);
            let bytes = match does {
                Does::Says(bytes) | Does::Last(bytes) => bytes,
                Does::Later(wait, bytes) => {
                    tokio::time::sleep(wait).await;
                    bytes
                }
                Does::Nothing => continue,
                Does::Closes => Vec::new(),
            };
            if stream.write_all(&bytes).await.is_err() || last {
                return;
            }
        }
    }
}

impl Connect for Peer {
    fn connect(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Link>>> {
        self.connects.lock().unwrap().push(Instant::now());
        if let Some(kind) = self.refusals.lock().unwrap().pop_front() {
            return Box::pin(std::future::ready(Err(kind.into())));
        }
        let (ours, theirs) = duplex(1024);
        tokio::spawn(self.clone().serve(theirs));
        Box::pin(std::future::ready(Ok(Box::new(ours) as Box<dyn Link>)))
    }

    fn target(&self) -> String {
        "plc.test:502".to_owned()
    }
}
