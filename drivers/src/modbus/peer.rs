//! A peer for tests that speaks Modbus TCP byte by byte: none of it uses our codec.

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
}

impl Seen {
    /// A frame with this request's transaction id, unit and function before `data`, which starts
    /// with the byte count (guide, section 3.1.3).
    pub(crate) fn reply(&self, data: &[u8]) -> Vec<u8> {
        let mut frame = self.transaction.to_be_bytes().to_vec();
        frame.extend([0, 0, 0, u8::try_from(data.len() + 3).unwrap(), self.unit, self.function]);
        frame.push(u8::try_from(data.len()).unwrap());
        frame.extend(data);
        frame
    }

    /// An exception frame (specification, section 7).
    pub(crate) fn exception(&self, code: u8) -> Vec<u8> {
        let mut frame = self.transaction.to_be_bytes().to_vec();
        frame.extend([0, 0, 0, 3, self.unit, self.function | 0x80, code]);
        frame
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
}

impl Peer {
    pub(crate) fn new(behaviour: impl FnMut(&Seen) -> Does + Send + 'static) -> Self {
        Self {
            behaviour: Arc::new(Mutex::new(behaviour)),
            seen: Arc::default(),
            refusals: Arc::default(),
            connects: Arc::default(),
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

    async fn serve(self, mut stream: DuplexStream) {
        let mut request = [0; 12];
        while stream.read_exact(&mut request).await.is_ok() {
            let word = |at: usize| u16::from_be_bytes([request[at], request[at + 1]]);
            assert_eq!((word(2), word(4)), (0, 6), "protocol id and length");
            let seen = Seen {
                at: Instant::now(),
                transaction: word(0),
                unit: request[6],
                function: request[7],
                start: word(8),
                quantity: word(10),
            };
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
