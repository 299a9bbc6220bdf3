//! A TCP proxy between the gateway and a broker that is open only while somebody listens behind it.
//!
//! A broker that was started anew has forgotten its subscriptions: what is published before the
//! subscriber is back would be lost by the broker, not by the gateway. While the gate is closed,
//! connections are refused, as where no program listens.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::free_port;

/// The gate; closed at first.
pub(crate) struct Gate {
    /// Where the gateway connects to.
    pub(crate) port: u16,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    open: AtomicBool,
    ended: AtomicBool,
    accepted: AtomicU32,
    /// Of each connection, the acknowledgement that is lost; 0 for none.
    lost: AtomicU32,
    losses: AtomicU32,
    /// Bytes that pass to the broker in a second; 0 for as many as come.
    rate: AtomicU32,
    /// Bytes that passed at such a rate.
    passed: AtomicU64,
    connections: Mutex<Vec<TcpStream>>,
}

impl Gate {
    /// A closed gate before `target`, a port of loopback.
    pub(crate) fn new(target: u16) -> Self {
        let port = free_port();
        let shared = Arc::new(Shared {
            open: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            accepted: AtomicU32::new(0),
            lost: AtomicU32::new(0),
            losses: AtomicU32::new(0),
            rate: AtomicU32::new(0),
            passed: AtomicU64::new(0),
            connections: Mutex::default(),
        });
        let ours = Arc::clone(&shared);
        let thread = std::thread::spawn(move || ours.serve(port, target));
        Self { port, shared, thread: Some(thread) }
    }

    /// Lets connections through.
    pub(crate) fn open(&self) {
        self.shared.open.store(true, Ordering::SeqCst);
    }

    /// Cuts all connections and refuses new ones.
    pub(crate) fn close(&self) {
        self.shared.open.store(false, Ordering::SeqCst);
        self.shared.cut();
    }

    /// Connections so far.
    pub(crate) fn accepted(&self) -> u32 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// From now on the `nth` PUBACK of each connection is lost, and the connection with it.
    pub(crate) fn lose(&self, nth: u32) {
        self.shared.lost.store(nth, Ordering::SeqCst);
    }

    /// Acknowledgements that were lost so far.
    pub(crate) fn losses(&self) -> u32 {
        self.shared.losses.load(Ordering::SeqCst)
    }

    /// From the next connection on so many bytes a second pass to the broker, as over a slow link; its
    /// answers are not held up.
    pub(crate) fn narrow(&self, bytes_per_s: u32) {
        self.shared.rate.store(bytes_per_s, Ordering::SeqCst);
    }

    /// Bytes that passed the narrow gate so far.
    pub(crate) fn passed(&self) -> u64 {
        self.shared.passed.load(Ordering::SeqCst)
    }

    /// Whether connections are let through.
    pub(crate) fn is_open(&self) -> bool {
        self.shared.open.load(Ordering::SeqCst)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.close();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the gate's thread");
        }
    }
}

impl Shared {
    fn serve(self: &Arc<Self>, port: u16, target: u16) {
        let mut listener = None;
        while !self.ended.load(Ordering::SeqCst) {
            if !self.open.load(Ordering::SeqCst) {
                listener = None;
            } else if listener.is_none() {
                let bound = TcpListener::bind(("127.0.0.1", port)).expect("the gate's port");
                bound.set_nonblocking(true).expect("a socket option");
                listener = Some(bound);
            }
            match listener.as_ref().map(TcpListener::accept) {
                Some(Ok((near, _))) => {
                    self.accepted.fetch_add(1, Ordering::SeqCst);
                    self.connect(&near, target);
                }
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    fn connect(self: &Arc<Self>, near: &TcpStream, target: u16) {
        let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else {
            return;
        };
        near.set_nonblocking(false).expect("a socket option");
        for stream in [near, &far] {
            stream.set_nodelay(true).expect("a socket option");
        }
        let copy = |stream: &TcpStream| stream.try_clone().expect("a second handle of a socket");
        let mut connections = self.connections.lock().expect("not poisoned");
        connections.extend([copy(near), copy(&far)]);
        drop(connections);
        match self.rate.load(Ordering::SeqCst) {
            0 => pass(copy(near), copy(&far)),
            rate => self.pass_slowly(copy(near), copy(&far), rate),
        }
        if self.lost.load(Ordering::SeqCst) == 0 {
            pass(copy(&far), copy(near));
        } else {
            self.pass_answers(copy(&far), copy(near));
        }
        if !self.open.load(Ordering::SeqCst) {
            self.cut();
        }
    }

    /// Passes a gateway's bytes on at a rate. The link is free again at a moment that follows from the
    /// bytes alone: a pause that took too long makes the next one shorter.
    fn pass_slowly(self: &Arc<Self>, mut near: TcpStream, mut far: TcpStream, rate: u32) {
        let ours = Arc::clone(self);
        std::thread::spawn(move || {
            let mut buffer = [0; NARROW_CHUNK];
            let mut free_at = Instant::now();
            while let Ok(count @ 1..) = near.read(&mut buffer) {
                let now = Instant::now();
                let length = u32::try_from(count).expect("a chunk");
                // A time without bytes is not caught up.
                free_at = free_at.max(now.checked_sub(NARROW_LATE_MAX).unwrap_or(now))
                    + Duration::from_secs(1) * length / rate;
                std::thread::sleep(free_at.saturating_duration_since(now));
                if far.write_all(&buffer[..count]).is_err() {
                    break;
                }
                ours.passed.fetch_add(u64::from(length), Ordering::SeqCst);
            }
            end(&near, &far);
        });
    }

    /// Passes a broker's packets on up to the acknowledgement that is lost.
    fn pass_answers(self: &Arc<Self>, mut far: TcpStream, mut near: TcpStream) {
        let ours = Arc::clone(self);
        std::thread::spawn(move || {
            let mut acknowledged = 0;
            while let Ok(packet) = packet(&mut far) {
                acknowledged += u32::from(packet[0] == PUBACK);
                if acknowledged == ours.lost.load(Ordering::SeqCst) {
                    ours.losses.fetch_add(1, Ordering::SeqCst);
                    break;
                }
                if near.write_all(&packet).is_err() {
                    break;
                }
            }
            end(&far, &near);
        });
    }

    fn cut(&self) {
        for stream in self.connections.lock().expect("not poisoned").drain(..) {
            // One that is closed already is as cut as it can be.
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

/// Bytes that a narrow gate passes at a time.
const NARROW_CHUNK: usize = 512;

/// Pauses of a narrow gate that were too long are made up for, up to this.
const NARROW_LATE_MAX: Duration = Duration::from_millis(50);

/// Passes bytes on until one side ends, then ends both.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        drop(std::io::copy(&mut from, &mut to));
        end(&from, &to);
    });
}

fn end(one: &TcpStream, other: &TcpStream) {
    for stream in [one, other] {
        // One that is closed already is as ended as it can be.
        drop(stream.shutdown(Shutdown::Both));
    }
}

/// The first byte of a PUBACK (MQTT 3.1.1, section 3.4).
const PUBACK: u8 = 0x40;

/// The next packet: its first byte, its length in groups of seven bits (section 2.2.3), and the rest.
fn packet(from: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut packet = vec![0; 2];
    from.read_exact(&mut packet)?;
    let mut length = usize::from(packet[1] & 0x7f);
    let mut shift = 7;
    while packet.last().is_some_and(|byte| byte & 0x80 != 0) {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        length |= usize::from(byte[0] & 0x7f) << shift;
        shift += 7;
        packet.push(byte[0]);
    }
    let head = packet.len();
    packet.resize(head + length, 0);
    from.read_exact(&mut packet[head..])?;
    Ok(packet)
}
