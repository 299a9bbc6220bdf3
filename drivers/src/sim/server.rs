//! The running simulator: its servers on TCP ports and ptys, their plugs, and what it is told.
//!
//! Each server is one task that owns its port and all its conversations, so that unplugging it
//! is dropping them. What is said in a conversation stands in `talk`.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::command::Command;
use super::image::{Unit, lock};
use super::ledger::{Ledger, Served};
use super::port::Port;
use super::talk::{End, Plant};
use super::{FaultKind, SimDoc, SimFault, SimFraming, SimServer};
use crate::border::Fault;
use crate::types::UnitId;

/// Connections that one server serves at a time; further ones are closed at once.
const CONNECTIONS_MAX: usize = 64;
/// How long [`Sim::stop`] waits for replies that a client does not take.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// How long [`Sim::unplug`] and [`Sim::replug`] wait for the port.
const PLUG_GRACE: Duration = Duration::from_secs(2);
/// Pause after the operating system refused a connection or a port, such as for want of
/// descriptors.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a pty is away after the fault `disconnect`.
const AWAY: Duration = Duration::from_secs(1);

/// Where a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A serial port: the symbolic link to a pty.
    Serial(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Serial(link) => link.display().fmt(f),
        }
    }
}

/// A running simulator. Dropping it ends it at once, in the middle of a reply if need be.
#[derive(Debug)]
pub struct Sim {
    places: Vec<(String, Place)>,
    controls: BTreeMap<String, Control>,
    ledger: Arc<Mutex<Ledger>>,
    stopping: CancellationToken,
    servers: JoinSet<()>,
}

/// What the simulator holds of a server's task.
#[derive(Debug)]
struct Control {
    plant: Arc<Plant>,
    /// What the port shall be.
    plug: watch::Sender<bool>,
    /// Whether it is open.
    open: watch::Receiver<bool>,
}

impl Sim {
    /// Checks the document, opens all its ports and serves them until [`Sim::stop`].
    ///
    /// An `Err` is always [`Fault::Config`]: the document has problems, or a port cannot be opened.
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
            places: Vec::new(),
            controls: BTreeMap::new(),
            ledger: Arc::default(),
            stopping: CancellationToken::new(),
            servers: JoinSet::new(),
        };
        let started = Instant::now();
        for server in &doc.servers {
            sim.serve(server, started).await?;
        }
        Ok(sim)
    }

    async fn serve(&mut self, server: &SimServer, started: Instant) -> Result<(), Fault> {
        let name = server.name.to_string();
        let units = server
            .units
            .iter()
            .map(|unit| (unit.unit_id.get(), Unit::new(&name, unit, &self.ledger)))
            .collect();
        let plant = Arc::new(Plant {
            name: name.clone(),
            framing: server.effective_framing(),
            units,
            started,
            ledger: Arc::clone(&self.ledger),
            faults: Mutex::default(),
            stopping: self.stopping.clone(),
        });
        for fault in &server.faults {
            add(&plant, fault.clone(), started)?;
        }
        let (plug, plugged) = watch::channel(true);
        let (opened, open) = watch::channel(true);
        let task = Task { plant: Arc::clone(&plant), plugged, opened };
        let place = if let Some(rtu) = &server.rtu {
            let port = Port::open(&rtu.link).map_err(|error| {
                Fault::Config(format!("{name} cannot open {}: {error}", rtu.link.display()))
            })?;
            self.servers.spawn(task.on_pty(port, rtu.link.clone()));
            Place::Serial(rtu.link.clone())
        } else {
            let listen = server.listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
            let refused =
                |error| Fault::Config(format!("{name} cannot listen on {listen}: {error}"));
            let listener = TcpListener::bind(listen).await.map_err(refused)?;
            let addr = listener.local_addr().map_err(refused)?;
            self.servers.spawn(task.on_tcp(listener, addr));
            Place::Tcp(addr)
        };
        self.places.push((name.clone(), place));
        self.controls.insert(name, Control { plant, plug, open });
        Ok(())
    }

    /// The servers' names and where they are reached, in the order of the document.
    pub fn places(&self) -> &[(String, Place)] {
        &self.places
    }

    /// The address of a server on TCP by its name, with the port that was bound.
    pub fn addr(&self, server: &str) -> Option<SocketAddr> {
        self.places.iter().find_map(|(name, place)| match place {
            Place::Tcp(addr) if name == server => Some(*addr),
            _ => None,
        })
    }

    /// The serial port of a server on a pty by its name.
    pub fn port(&self, server: &str) -> Option<&Path> {
        self.places.iter().find_map(|(name, place)| match place {
            Place::Serial(link) if name == server => Some(link.as_path()),
            _ => None,
        })
    }

    /// The frames of a server by its name.
    pub fn framing(&self, server: &str) -> Option<SimFraming> {
        self.controls.get(server).map(|control| control.plant.framing)
    }

    /// Adds a fault to a server; its time begins now.
    ///
    /// An `Err` is [`Fault::Config`]: no such server, a fault that it cannot show, or too many.
    pub fn inject(&self, server: &str, fault: SimFault) -> Result<(), Fault> {
        let plant = &self.control(server)?.plant;
        let units = plant.units.keys().filter_map(|id| UnitId::new(*id)).collect();
        if let Some((field, message, hint)) =
            fault.problems("fault", plant.framing, &units).into_iter().next()
        {
            let hint = hint.map_or(String::new(), |hint| format!(": {hint}"));
            return Err(Fault::Config(format!("{field}: {message}{hint}")));
        }
        add(plant, fault, Instant::now())
    }

    /// Lets one fault that passes by itself touch one reply of one server, and returns which; any
    /// number picks them.
    pub fn inject_any(&self, dice: u64) -> Result<(&str, FaultKind), Fault> {
        let nth = usize::try_from(dice % self.places.len().max(1) as u64).unwrap_or(0);
        let (server, _) =
            self.places.get(nth).ok_or_else(|| Fault::Config("no server".to_owned()))?;
        let kind = FaultKind::any(self.control(server)?.plant.framing, dice.rotate_right(16));
        self.inject(server, SimFault::once(kind))?;
        Ok((server, kind))
    }

    /// Ends all faults of a server, those of the script too.
    pub fn clear(&self, server: &str) -> Result<(), Fault> {
        lock(&self.control(server)?.plant.faults).clear();
        Ok(())
    }

    /// Closes a server's connections and its port, and returns once it is closed: a connection is
    /// refused then, and the link to a pty is gone. Cancel safe.
    pub async fn unplug(&self, server: &str) -> Result<(), Fault> {
        self.plug(server, false).await
    }

    /// Opens the port of a server that was unplugged, at the same address or link, and returns once
    /// it is open. [`Fault::Link`] where the system does not let it for two seconds; it is tried on.
    /// Cancel safe.
    pub async fn replug(&self, server: &str) -> Result<(), Fault> {
        self.plug(server, true).await
    }

    async fn plug(&self, server: &str, plugged: bool) -> Result<(), Fault> {
        let control = self.control(server)?;
        control.plug.send_replace(plugged);
        let mut open = control.open.clone();
        match timeout(PLUG_GRACE, open.wait_for(|open| *open == plugged)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Fault::Link(format!("{server} has ended"))),
            Err(_) => Err(Fault::Link(format!("the port of {server} does not follow"))),
        }
    }

    /// Does what a line says and returns what there is to say.
    pub async fn obey(&self, command: Command) -> Result<String, Fault> {
        Ok(match command {
            Command::Inject { server, fault } => {
                let kind = fault.kind;
                self.inject(&server, fault)?;
                format!("{server}: {kind}")
            }
            Command::Clear { server } => {
                self.clear(&server)?;
                format!("{server}: no more faults")
            }
            Command::Unplug { server } => {
                self.unplug(&server).await?;
                format!("{server}: unplugged")
            }
            Command::Replug { server } => {
                self.replug(&server).await?;
                format!("{server}: plugged")
            }
            Command::Served => serde_json::to_string(&self.served())
                .map_err(|error| Fault::Refused(error.to_string()))?,
        })
    }

    fn control(&self, server: &str) -> Result<&Control, Fault> {
        self.controls.get(server).ok_or_else(|| {
            let names: Vec<&str> = self.controls.keys().map(String::as_str).collect();
            Fault::Config(format!("no server `{server}`: there are {}", names.join(", ")))
        })
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
        let all = async { while self.servers.join_next().await.is_some() {} };
        if timeout(STOP_GRACE, all).await.is_err() {
            tracing::warn!("a client of the simulator does not take its reply; cut");
            self.servers.shutdown().await;
        }
        self.served()
    }
}

fn add(plant: &Plant, fault: SimFault, now: Instant) -> Result<(), Fault> {
    if lock(&plant.faults).add(fault, now) {
        Ok(())
    } else {
        Err(Fault::Config(format!("{} has too many faults: clear it first", plant.name)))
    }
}

/// One server's task.
struct Task {
    plant: Arc<Plant>,
    plugged: watch::Receiver<bool>,
    opened: watch::Sender<bool>,
}

impl Task {
    async fn on_tcp(mut self, listener: TcpListener, addr: SocketAddr) {
        let mut listener = Some(listener);
        while self.is_plugged().await {
            let Some(bound) = listener.take() else {
                listener = self.reopen(TcpListener::bind(addr).await);
                if listener.is_none() {
                    self.pause(PAUSE).await;
                }
                continue;
            };
            self.accept(bound).await;
        }
    }

    /// Serves connections until the plug is pulled or the simulator stops.
    async fn accept(&mut self, listener: TcpListener) {
        let mut talks = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = self.plant.stopping.cancelled() => break,
                () = pulled(&mut self.plugged) => return talks.shutdown().await,
                Some(_) = talks.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((socket, peer)) if talks.len() < CONNECTIONS_MAX => {
                        tracing::debug!(%peer, "simulator: client connected");
                        talks.spawn(talk(Arc::clone(&self.plant), socket, peer));
                    }
                    Ok((_, peer)) => {
                        tracing::warn!(%peer, "simulator: too many connections; closed");
                    }
                    Err(error) => {
                        tracing::warn!(%error, "simulator: cannot accept connections");
                        self.pause(PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        while talks.join_next().await.is_some() {}
    }

    async fn on_pty(mut self, port: Port, link: PathBuf) {
        let mut port = Some(port);
        while self.is_plugged().await {
            let Some(mut open) = port.take() else {
                port = self.reopen(Port::open(&link));
                if port.is_none() {
                    self.pause(PAUSE).await;
                }
                continue;
            };
            let end = tokio::select! {
                biased;
                () = pulled(&mut self.plugged) => continue,
                end = self.plant.converse(&mut open.line) => end,
            };
            drop(open);
            self.opened.send_replace(false);
            match end {
                Ok(End::Stopping) => {}
                Ok(End::HungUp) => self.pause(AWAY).await,
                Ok(End::Left) => self.pause(PAUSE).await,
                Err(error) => {
                    tracing::warn!(server = %self.plant.name, %error, "simulator: pty lost");
                    self.pause(PAUSE).await;
                }
            }
        }
    }

    /// Waits until the plug is in; `false` once the simulator stops. The port is closed while this
    /// waits.
    async fn is_plugged(&mut self) -> bool {
        if !*self.plugged.borrow_and_update() {
            self.opened.send_replace(false);
        }
        tokio::select! {
            biased;
            () = self.plant.stopping.cancelled() => false,
            plugged = self.plugged.wait_for(|plugged| *plugged) => plugged.is_ok(),
        }
    }

    /// Tells that a port is open again, or why not.
    fn reopen<T>(&self, result: io::Result<T>) -> Option<T> {
        match result {
            Ok(port) => {
                self.opened.send_replace(true);
                Some(port)
            }
            Err(error) => {
                tracing::warn!(server = %self.plant.name, %error, "simulator: cannot replug");
                None
            }
        }
    }

    async fn pause(&self, span: Duration) {
        tokio::select! {
            () = sleep(span) => {}
            () = self.plant.stopping.cancelled() => {}
        }
    }
}

/// Returns once the plug is pulled. Cancel safe.
async fn pulled(plugged: &mut watch::Receiver<bool>) {
    if plugged.wait_for(|plugged| !*plugged).await.is_err() {
        // The simulator was dropped; this task ends with it.
        std::future::pending::<()>().await;
    }
}

async fn talk(plant: Arc<Plant>, mut socket: TcpStream, peer: SocketAddr) {
    // A reply of a few bytes must not wait for the next one.
    let result = match socket.set_nodelay(true) {
        Ok(()) => plant.converse(&mut socket).await,
        Err(error) => Err(error),
    };
    match result {
        Ok(end) => tracing::debug!(%peer, ?end, "simulator: connection ended"),
        Err(error) => tracing::debug!(%peer, %error, "simulator: connection ended"),
    }
}
