//! The simulator's Modbus TCP servers.
//!
//! Promises that a value counts as served exactly when the socket took the whole reply: the
//! server is tokio-modbus', and a shim around its socket sees when a reply was flushed. Answers
//! function codes 1 to 4 only, every other one with exception 01. Knows nothing of our client.

use std::collections::BTreeMap;
use std::future::{Ready, ready};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_modbus::server::Service;
use tokio_modbus::server::tcp::Server;
use tokio_modbus::{ExceptionCode, Request, Response, SlaveRequest};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::ledger::{Ledger, Reply, Served};
use super::words::{self, Number};
use super::{SimDoc, SimPoint, SimUnit};
use crate::border::Fault;
use crate::south::generate::{CounterWave, Wave};
use crate::south::modbus::RegisterKind;

/// Connections that one server serves at a time; further ones are closed at once.
const CONNECTIONS_MAX: usize = 64;
/// Registers that one request may read (Modbus Application Protocol V1.1b3, section 6.3).
const REGISTERS_MAX: u16 = 125;
/// Bits that one request may read (section 6.1).
const BITS_MAX: u16 = 2000;
/// How long [`Sim::stop`] waits for replies that a client does not take.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// Pause after the operating system refused a connection, such as for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A running simulator. Dropping it ends it at once, in the middle of a reply if need be.
#[derive(Debug)]
pub struct Sim {
    addrs: Vec<(String, SocketAddr)>,
    ledger: Arc<Mutex<Ledger>>,
    stopping: CancellationToken,
    connections: TaskTracker,
    servers: JoinSet<()>,
}

impl Sim {
    /// Checks the document, binds all its ports and serves them until [`Sim::stop`].
    ///
    /// An `Err` is always [`Fault::Config`]: the document has problems, or a port cannot be bound.
    pub async fn start(doc: SimDoc) -> Result<Self, Fault> {
        let problems = doc.problems();
        if !problems.is_empty() {
            let lines = problems.iter().map(|(field, message, hint)| {
                let hint = hint.as_ref().map_or(String::new(), |hint| format!(": {hint}"));
                format!("{field}: {message}{hint}")
            });
            return Err(Fault::Config(lines.collect::<Vec<_>>().join("\n")));
        }
        let mut sim = Self {
            addrs: Vec::new(),
            ledger: Arc::default(),
            stopping: CancellationToken::new(),
            connections: TaskTracker::new(),
            servers: JoinSet::new(),
        };
        let started = Instant::now();
        for server in &doc.servers {
            let refused = |error: io::Error| {
                Fault::Config(format!(
                    "{} cannot listen on {}: {error}",
                    server.name, server.listen
                ))
            };
            let listener = TcpListener::bind(server.listen).await.map_err(refused)?;
            sim.addrs.push((server.name.to_string(), listener.local_addr().map_err(refused)?));
            let units = server
                .units
                .iter()
                .map(|unit| (unit.unit_id.get(), sim.unit(server.name.as_str(), unit)))
                .collect();
            let plant = Plant { units, started, ledger: Arc::clone(&sim.ledger) };
            let stopping = sim.stopping.clone();
            sim.servers.spawn(serve(listener, Arc::new(plant), stopping, sim.connections.clone()));
        }
        Ok(sim)
    }

    /// The address of a server by its name, with the port that was bound.
    pub fn addr(&self, server: &str) -> Option<SocketAddr> {
        self.addrs.iter().find(|(name, _)| name == server).map(|(_, addr)| *addr)
    }

    /// The servers' names and addresses, in the order of the document.
    pub fn addrs(&self) -> &[(String, SocketAddr)] {
        &self.addrs
    }

    /// What has been served so far.
    pub fn served(&self) -> Served {
        lock(&self.ledger).served()
    }

    /// Ends the simulator so that the count is final: takes no further request, lets each reply
    /// that is under way leave (for two seconds at most), closes the connections and ports. A
    /// client that stays connected can still read every reply that was counted.
    pub async fn stop(mut self) -> Served {
        self.stopping.cancel();
        self.connections.close();
        if timeout(STOP_GRACE, self.connections.wait()).await.is_err() {
            tracing::warn!("a client of the simulator does not take its reply; cut");
        }
        self.servers.shutdown().await;
        self.served()
    }

    fn unit(&self, server: &str, unit: &SimUnit) -> Unit {
        let mut image = Unit { points: Vec::new(), addresses: BTreeMap::new() };
        for point in &unit.points {
            let counter = match &point.value {
                Wave::Counter(wave) => {
                    let wave = bounded(wave, point);
                    let id = unit.unit_id.get();
                    Some(lock(&self.ledger).add(server, id, point.name.as_str(), wave))
                }
                _ => None,
            };
            for offset in 0..point.width() {
                let at = (point.register, point.address + offset);
                image.addresses.insert(at, (image.points.len(), offset));
            }
            image.points.push((point.clone(), counter));
        }
        image
    }
}

/// A counter that begins anew before its registers overflow, so that each value served is the
/// value counted.
fn bounded(wave: &CounterWave, point: &SimPoint) -> CounterWave {
    let room = words::counter_max(point.effective_type()).saturating_sub(wave.start);
    let modulo = wave.modulo.or_else(|| room.checked_add(1));
    CounterWave { start: wave.start, modulo }
}

fn lock(ledger: &Mutex<Ledger>) -> std::sync::MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(
    listener: TcpListener,
    plant: Arc<Plant>,
    stopping: CancellationToken,
    connections: TaskTracker,
) {
    let server = Server::new(listener);
    let mine = TaskTracker::new();
    let on_connected = |socket: TcpStream, peer: SocketAddr| {
        let open = !stopping.is_cancelled() && mine.len() < CONNECTIONS_MAX;
        let connection = open.then(|| {
            let link = Arc::new(Link { plant: Arc::clone(&plant), reply: Mutex::default() });
            let shim = Shim {
                socket,
                link: Arc::clone(&link),
                stopping: Box::pin(stopping.clone().cancelled_owned()),
                _open: [connections.token(), mine.token()],
            };
            (link, shim)
        });
        async move {
            if let Some((_, shim)) = &connection {
                // A reply of a few bytes must not wait for the next one.
                shim.socket.set_nodelay(true)?;
                tracing::debug!(%peer, "simulator: client connected");
            } else {
                tracing::warn!(%peer, "simulator: too many connections or stopping; closed");
            }
            Ok(connection)
        }
    };
    let on_error = |error: io::Error| tracing::debug!(%error, "simulator: connection ended");
    loop {
        if let Err(error) = server.serve(&on_connected, on_error).await {
            tracing::warn!(%error, "simulator: cannot accept connections");
        }
        sleep(ACCEPT_PAUSE).await;
    }
}

/// What one server answers from; shared by its connections.
#[derive(Debug)]
struct Plant {
    units: BTreeMap<u8, Unit>,
    started: Instant,
    ledger: Arc<Mutex<Ledger>>,
}

/// One unit's address spaces.
#[derive(Debug)]
struct Unit {
    /// The points, and the ledger's index of those that count.
    points: Vec<(SimPoint, Option<usize>)>,
    /// Which point lies on an address, and which of its registers.
    addresses: BTreeMap<(RegisterKind, u16), (usize, u16)>,
}

impl Unit {
    /// The registers (or bits as 0 and 1) of one request; what they count is noted in `reply`.
    fn read(
        &self,
        kind: RegisterKind,
        (address, quantity): (u16, u16),
        seconds: f64,
        ledger: &mut Ledger,
        reply: &mut Reply,
    ) -> Result<Vec<u16>, ExceptionCode> {
        let bits = matches!(kind, RegisterKind::Coil | RegisterKind::Discrete);
        // The specification's order: quantity first (03), then the addresses (02).
        if quantity == 0 || quantity > if bits { BITS_MAX } else { REGISTERS_MAX } {
            return Err(ExceptionCode::IllegalDataValue);
        }
        let last = address.checked_add(quantity - 1).ok_or(ExceptionCode::IllegalDataAddress)?;
        let touched: Vec<_> = self.addresses.range((kind, address)..=(kind, last)).collect();
        if touched.len() != usize::from(quantity) {
            return Err(ExceptionCode::IllegalDataAddress);
        }
        let mut answer = Vec::with_capacity(touched.len());
        // The registers of one point are one value, taken at one moment.
        for registers in touched.chunk_by(|a, b| a.1.0 == b.1.0) {
            let (point, counter) = &self.points[registers[0].1.0];
            let whole = registers.len() == usize::from(point.width());
            let number = match (&point.value, counter) {
                (_, Some(counter)) if whole => Number::Whole(ledger.take(*counter, reply)),
                (_, Some(counter)) => Number::Whole(ledger.peek(*counter)),
                (wave, None) => Number::Real(real(wave, seconds) / point.scale.unwrap_or(1.0)),
            };
            let words = words::encode(point.effective_type(), point.order, number);
            answer.extend(registers.iter().map(|(_, (_, offset))| words[usize::from(*offset)]));
        }
        Ok(answer)
    }
}

fn real(wave: &Wave, seconds: f64) -> f64 {
    match wave {
        Wave::Constant(value) => *value,
        Wave::Sine(sine) => sine.at(seconds),
        Wave::Ramp(ramp) => ramp.at(seconds),
        Wave::Counter(_) | Wave::Choice(_) => unreachable!("counted, or refused at the check"),
    }
}

/// One connection: the plant, and the reply that is on its way to the socket.
#[derive(Debug)]
struct Link {
    plant: Arc<Plant>,
    /// Set by `call`, taken by the shim once flushed. The server has one request in work at a time.
    reply: Mutex<Option<Reply>>,
}

impl Link {
    fn answer(&self, unit_id: u8, request: &Request<'_>) -> Result<Response, ExceptionCode> {
        let mut reply = Reply::default();
        let mut ledger = lock(&self.plant.ledger);
        let seconds = self.plant.started.elapsed().as_secs_f64();
        let answer = (|| {
            let unit = self.plant.units.get(&unit_id).ok_or(ExceptionCode::GatewayTargetDevice)?;
            let mut read = |kind, span| unit.read(kind, span, seconds, &mut ledger, &mut reply);
            let bits = |words: Vec<u16>| words.into_iter().map(|word| word != 0).collect();
            Ok(match *request {
                Request::ReadCoils(address, quantity) => {
                    Response::ReadCoils(bits(read(RegisterKind::Coil, (address, quantity))?))
                }
                Request::ReadDiscreteInputs(address, quantity) => Response::ReadDiscreteInputs(
                    bits(read(RegisterKind::Discrete, (address, quantity))?),
                ),
                Request::ReadHoldingRegisters(address, quantity) => Response::ReadHoldingRegisters(
                    read(RegisterKind::Holding, (address, quantity))?,
                ),
                Request::ReadInputRegisters(address, quantity) => {
                    Response::ReadInputRegisters(read(RegisterKind::Input, (address, quantity))?)
                }
                _ => return Err(ExceptionCode::IllegalFunction),
            })
        })();
        reply.exception = answer.is_err();
        let before = self.slot().replace(reply);
        assert!(before.is_none(), "the reply before was settled");
        answer
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Reply>> {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service for Link {
    type Request = SlaveRequest<'static>;
    type Response = Response;
    type Exception = ExceptionCode;
    type Future = Ready<Result<Response, ExceptionCode>>;

    fn call(&self, request: SlaveRequest<'static>) -> Self::Future {
        ready(self.answer(request.slave, &request.request))
    }
}

/// The socket as the server sees it: counts flushed replies, and ends at a request's border when
/// the simulator stops.
struct Shim {
    socket: TcpStream,
    link: Arc<Link>,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
    _open: [TaskTrackerToken; 2],
}

impl AsyncRead for Shim {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // End of file while waiting for a request; never while a reply is written.
        if self.stopping.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for Shim {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    /// The server's framing flushes the socket only after its last byte was written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(())))
            && let Some(reply) = self.link.slot().take()
        {
            lock(&self.link.plant.ledger).written(&reply);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        if let Some(reply) = self.link.slot().take() {
            lock(&self.link.plant.ledger).unwritten(&reply);
        }
    }
}
