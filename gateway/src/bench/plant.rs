//! A Modbus TCP server that is as cheap as can be, with a clock on what it is asked.
//!
//! One blocking thread a connection; function codes 03 and 04, any unit, any address: floats that
//! differ from request to request. It notes when each unit's first block was asked for, which is
//! how late a client's cycles are, whoever the client is. Bytes after the Modbus messaging guide,
//! section 3.1.3; no faults: the simulator has those.

use std::collections::HashMap;
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::figures::quantile;

/// Requests that the plant saw since it was last asked.
#[derive(Default)]
struct Seen {
    first: Option<Instant>,
    units: HashMap<u8, Cycles>,
}

/// The cycles of one unit; each begins with a request for address 0.
#[derive(Default)]
struct Cycles {
    starts: Vec<Instant>,
    /// Requests since the first start, and of whole cycles.
    requests: u64,
    whole: u64,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    stop: AtomicBool,
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running plant.
pub(super) struct Plant {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

/// What a client did between two looks.
pub(super) struct Client {
    pub(super) requests_per_cycle: f64,
    /// How far behind its own grid each cycle of each unit began, in milliseconds.
    pub(super) lateness_p99_ms: f64,
}

impl Plant {
    pub(super) fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let plant = Self { addr, shared: Arc::clone(&shared) };
        spawn("plant", move || {
            for socket in listener.incoming() {
                if shared.stop.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&shared);
                let served = socket.map_err(anyhow::Error::from).and_then(|socket| {
                    spawn("plant-client", move || {
                        if let Err(error) = serve(socket, &shared) {
                            tracing::debug!(%error, "a client of the plant left");
                        }
                    })
                });
                if let Err(error) = served {
                    tracing::error!(%error, "the plant cannot serve a client");
                }
            }
        })?;
        Ok(plant)
    }

    pub(super) fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Forgets what it has seen.
    pub(super) fn reset(&self) {
        *self.shared.seen() = Seen::default();
    }

    /// When the first request came since the last reset.
    pub(super) fn first_request(&self) -> Option<Instant> {
        self.shared.seen().first
    }

    /// What came since the last reset, of a client with cycles of `period`.
    pub(super) fn client(&self, period: Duration) -> Client {
        let seen = self.shared.seen();
        let units = seen.units.values();
        let late: Vec<f64> =
            units.clone().flat_map(|unit| lateness(&unit.starts, period)).collect();
        let cycles = |unit: &Cycles| unit.starts.len().saturating_sub(1) as f64;
        let each = units.filter(|unit| unit.whole > 0).map(|unit| unit.whole as f64 / cycles(unit));
        Client { requests_per_cycle: each.sum(), lateness_p99_ms: quantile(&late, 0.99) }
    }
}

impl Drop for Plant {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Wakes the accepting thread, which then sees that it shall end.
        drop(TcpStream::connect(self.addr));
    }
}

/// How far each start lies behind the earliest grid that holds all of them, in milliseconds.
fn lateness(starts: &[Instant], period: Duration) -> Vec<f64> {
    let Some(first) = starts.first() else {
        return Vec::new();
    };
    let period = period.as_secs_f64();
    let offsets = starts.iter().map(|at| {
        let since = at.duration_since(*first).as_secs_f64();
        since - (since / period).round() * period
    });
    let offsets: Vec<f64> = offsets.collect();
    let earliest = offsets.iter().copied().fold(f64::INFINITY, f64::min);
    offsets.iter().map(|offset| (offset - earliest) * 1e3).collect()
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    // Nobody joins it: it ends with its socket.
    std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
    Ok(())
}

/// MBAP header and the PDU of a read request.
const REQUEST_BYTES: usize = 12;
/// Registers of the address space, and some more so that replies can begin at odd places.
const IMAGE_REGISTERS: usize = 65_536 + 2_048;

fn serve(mut socket: TcpStream, shared: &Shared) -> anyhow::Result<()> {
    socket.set_nodelay(true)?;
    let image = image();
    let mut requests = BufReader::with_capacity(1024, socket.try_clone()?);
    let mut reply: Vec<u8> = Vec::with_capacity(512);
    let mut turn = 0_usize;
    loop {
        let mut request = [0; REQUEST_BYTES];
        requests.read_exact(&mut request)?;
        let word = |at: usize| u16::from_be_bytes([request[at], request[at + 1]]);
        let (unit, function, address, quantity) = (request[6], request[7], word(8), word(10));
        anyhow::ensure!(matches!(function, 3 | 4) && (1..=125).contains(&quantity), "not a read");
        note(shared, unit, address);
        turn = (turn + 1) % 997;
        let data = usize::from(quantity) * 2;
        let from = usize::from(address) * 2 + turn * 4;
        reply.clear();
        reply.extend_from_slice(&request[..4]);
        reply.extend_from_slice(&(3 + quantity * 2).to_be_bytes());
        reply.extend_from_slice(&[unit, function, u8::try_from(data)?]);
        reply.extend_from_slice(&image[from..from + data]);
        socket.write_all(&reply)?;
    }
}

fn note(shared: &Shared, unit: u8, address: u16) {
    let now = Instant::now();
    let mut seen = shared.seen();
    seen.first.get_or_insert(now);
    let unit = seen.units.entry(unit).or_default();
    if address == 0 {
        unit.starts.push(now);
        unit.whole = unit.requests;
    }
    if !unit.starts.is_empty() {
        unit.requests += 1;
    }
}

/// Floats of two registers each, around 230, no two neighbours alike.
fn image() -> Vec<u8> {
    let floats = (0..IMAGE_REGISTERS / 2).map(|at| 230.0 + (at as f64 * 0.7).sin() * 3.0);
    #[expect(clippy::cast_possible_truncation, reason = "f32 is what the registers hold")]
    floats.flat_map(|value| (value as f32).to_be_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_measured_from_the_earliest_grid() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let late = lateness(&[at(5), at(1000), at(2012), at(4000)], Duration::from_secs(1));
        let whole: Vec<i64> = late.iter().map(|ms| format!("{ms:.0}").parse().unwrap()).collect();
        assert_eq!(whole, [5, 0, 12, 0]);
    }
}
