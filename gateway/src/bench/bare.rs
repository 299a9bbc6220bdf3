//! The baselines and loads that need a process of their own: what one would write without a gateway.
//!
//! Each runs until it is killed. They are in their best-known settings: blocking sockets and one
//! thread where that costs least. Nothing here is part of the product's paths.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::BytesMut;
use rumqttc::{AsyncClient, Connect, Event, MqttOptions, Packet, PubAck, Publish, QoS, Subscribe};
use tokio::time::Instant;

use super::plant::Plant;
use crate::broker::Broker;
use crate::cli::check::fail;

/// A part of a benchmark that runs in a process of its own.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Part {
    /// Sends the requests of a Modbus cycle each second and drops the replies.
    Modbus {
        /// The plant.
        addr: SocketAddr,
        /// Units, from id 1 on.
        units: u8,
        /// Floats of each unit.
        points: u16,
    },
    /// Publishes to `bench/in` as fast as the broker takes it.
    MqttLoad {
        /// The broker.
        addr: SocketAddr,
        /// Quality of service.
        qos: u8,
    },
    /// Subscribes to `bench/in` and prints each second how many messages came.
    MqttLoop {
        /// The broker.
        addr: SocketAddr,
        /// Quality of service.
        qos: u8,
    },
    /// The same at QoS 1, but each message is appended to a file and synced before it is acknowledged.
    MqttDurableLoop {
        /// The broker.
        addr: SocketAddr,
        /// The file.
        file: PathBuf,
    },
    /// The plant alone, for a gateway under a profiler; prints its port.
    Plant,
    /// The embedded broker, where no other is installed; prints its port.
    Broker,
}

/// Runs a part until it is killed or fails.
pub fn part(part: &Part) -> u8 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(error),
    };
    let ended = match part {
        Part::Modbus { addr, units, points } => modbus(*addr, *units, *points),
        Part::MqttLoad { addr, qos } => load(*addr, *qos),
        Part::MqttLoop { addr, qos } => runtime.block_on(count(*addr, *qos)),
        Part::MqttDurableLoop { addr, file } => count_durably(*addr, file),
        Part::Plant => runtime.block_on(plant()),
        Part::Broker => runtime.block_on(broker()),
    };
    ended.map_or_else(fail, |()| 0)
}

/// Registers that one request reads: 62 whole floats.
pub(super) const BLOCK_REGISTERS: u16 = 124;

/// The blocks (address, quantity) that `points` floats make.
pub(super) fn blocks(points: u16) -> Vec<(u16, u16)> {
    let end = points * 2;
    let starts = (0..end).step_by(usize::from(BLOCK_REGISTERS));
    starts.map(|start| (start, BLOCK_REGISTERS.min(end - start))).collect()
}

/// One connection, one request at a time, each second from the first one's grid.
fn modbus(addr: SocketAddr, units: u8, points: u16) -> anyhow::Result<()> {
    let mut socket = TcpStream::connect(addr)?;
    socket.set_nodelay(true)?;
    let mut request = [0, 0, 0, 0, 0, 6, 0, 3, 0, 0, 0, 0];
    let mut reply = [0; 260];
    let mut transaction: u16 = 0;
    let mut due = Instant::now();
    loop {
        for unit in 1..=units {
            for (address, quantity) in blocks(points) {
                transaction = transaction.wrapping_add(1);
                request[..2].copy_from_slice(&transaction.to_be_bytes());
                request[6] = unit;
                request[8..10].copy_from_slice(&address.to_be_bytes());
                request[10..].copy_from_slice(&quantity.to_be_bytes());
                socket.write_all(&request)?;
                let mut have = 0;
                while have < 9 + usize::from(quantity) * 2 {
                    let count = socket.read(&mut reply[have..])?;
                    anyhow::ensure!(count > 0, "the plant closed the connection");
                    have += count;
                }
            }
        }
        due += Duration::from_secs(1);
        wait_until(due);
    }
}

fn wait_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        // Nobody unparks it, and if somebody did, the rest is waited for.
        std::thread::park_timeout(left);
    }
}

/// Bytes that are written at once.
const LOAD_CHUNK: usize = 32 << 10;
/// QoS 1 messages that the load has in flight.
const LOAD_IN_FLIGHT: usize = 2_000;
/// Bytes that are read at once.
const RECEIVE_BYTES: usize = 16 << 10;

/// Connects without any client library and returns after CONNACK.
fn connect(addr: SocketAddr, name: &str, buffer: &mut BytesMut) -> anyhow::Result<TcpStream> {
    let mut socket = TcpStream::connect(addr)?;
    socket.set_nodelay(true)?;
    let mut hello = BytesMut::new();
    let mut connect = Connect::new(name);
    connect.keep_alive = 0;
    connect.clean_session = true;
    Packet::Connect(connect).write(&mut hello, usize::MAX)?;
    socket.write_all(&hello)?;
    while buffer.len() < 4 {
        receive(&mut socket, buffer)?;
    }
    match Packet::read(buffer, 1 << 20)? {
        Packet::ConnAck(_) => Ok(socket),
        other => anyhow::bail!("{other:?} in place of CONNACK"),
    }
}

fn receive(socket: &mut TcpStream, buffer: &mut BytesMut) -> anyhow::Result<()> {
    let held = buffer.len();
    buffer.resize(held + RECEIVE_BYTES, 0);
    let count = socket.read(&mut buffer[held..])?;
    buffer.truncate(held + count);
    anyhow::ensure!(count > 0, "the broker closed the connection");
    Ok(())
}

/// A message that has what a reading has: a number, a name and a counter.
fn message(number: u32, qos: QoS) -> Publish {
    let value = 230.0 + f64::from(number % 1000) / 100.0;
    let payload = format!(r#"{{"sensor":"s{}","value":{value},"n":{number}}}"#, number % 10);
    let mut publish = Publish::new("bench/in", qos, payload.into_bytes());
    publish.pkid = u16::try_from(number % 65_535).unwrap_or(0) + 1;
    publish
}

fn load(addr: SocketAddr, qos: u8) -> anyhow::Result<()> {
    let mut answers = BytesMut::new();
    let mut socket = connect(addr, "bench-load", &mut answers)?;
    let qos = if qos == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
    let mut out = BytesMut::new();
    let (mut number, mut in_flight) = (0_u32, 0_usize);
    loop {
        out.clear();
        while out.len() < LOAD_CHUNK && in_flight < LOAD_IN_FLIGHT {
            Packet::Publish(message(number, qos)).write(&mut out, usize::MAX)?;
            number = number.wrapping_add(1);
            in_flight += usize::from(qos == QoS::AtLeastOnce);
        }
        socket.write_all(&out)?;
        // Half of what is in flight comes back before more is sent.
        while in_flight > LOAD_IN_FLIGHT / 2 {
            receive(&mut socket, &mut answers)?;
            in_flight -= acknowledged(&mut answers)?;
        }
    }
}

/// Takes whole PUBACKs, of four bytes each.
fn acknowledged(answers: &mut BytesMut) -> anyhow::Result<usize> {
    let mut count = 0;
    while answers.len() >= 4 {
        match Packet::read(answers, 1 << 20)? {
            Packet::PubAck(_) => count += 1,
            other => anyhow::bail!("{other:?} in place of PUBACK"),
        }
    }
    Ok(count)
}

async fn count(addr: SocketAddr, qos: u8) -> anyhow::Result<()> {
    let host = (addr.ip().to_string(), addr.port());
    let mut options = MqttOptions::new("bench-loop", host);
    options.set_max_packet_size(1 << 20, 1 << 20);
    let qos = if qos == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
    let (client, mut events) = AsyncClient::builder(options).capacity(16).build();
    client.subscribe("bench/in", qos).await?;
    let mut tally = Tally::new();
    loop {
        if let Event::Incoming(Packet::Publish(_)) = events.poll().await? {
            tally.add(1);
        }
    }
}

fn count_durably(addr: SocketAddr, path: &Path) -> anyhow::Result<()> {
    let mut buffer = BytesMut::new();
    let mut socket = connect(addr, "bench-loop", &mut buffer)?;
    let mut file = File::create(path)?;
    let mut out = BytesMut::new();
    let subscribe = Subscribe::new("bench/in", QoS::AtLeastOnce);
    Packet::Subscribe(Subscribe { pkid: 1, ..subscribe }).write(&mut out, usize::MAX)?;
    socket.write_all(&out)?;
    let mut tally = Tally::new();
    let mut bodies = Vec::new();
    loop {
        receive(&mut socket, &mut buffer)?;
        bodies.clear();
        out.clear();
        let mut came = 0;
        loop {
            match Packet::read(&mut buffer, 1 << 20) {
                Ok(Packet::Publish(publish)) => {
                    bodies.extend_from_slice(&publish.payload);
                    Packet::PubAck(PubAck::new(publish.pkid)).write(&mut out, usize::MAX)?;
                    came += 1;
                }
                Ok(_) => {}
                Err(rumqttc::mqttbytes::Error::InsufficientBytes(_)) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if came > 0 {
            file.write_all(&bodies)?;
            file.sync_data()?;
            socket.write_all(&out)?;
            tally.add(came);
        }
    }
}

/// Prints each second what came in it.
struct Tally {
    count: u64,
    since: Instant,
}

impl Tally {
    fn new() -> Self {
        Self { count: 0, since: Instant::now() }
    }

    fn add(&mut self, count: u64) {
        self.count += count;
        let elapsed = self.since.elapsed();
        if elapsed >= Duration::from_secs(1) {
            println!("{}", self.count as f64 / elapsed.as_secs_f64());
            *self = Self::new();
        }
    }
}

async fn plant() -> anyhow::Result<()> {
    let plant = Plant::start()?;
    println!("{}", plant.port());
    std::future::pending().await
}

async fn broker() -> anyhow::Result<()> {
    let broker = Broker::start(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    println!("{}", broker.addr().port());
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_floats_are_seventeen_requests() {
        let blocks = blocks(1000);
        assert_eq!(blocks.len(), 17);
        assert_eq!((blocks[0], blocks[16]), ((0, 124), (1984, 16)));
    }
}
