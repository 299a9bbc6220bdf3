//! An MQTT 3.1.1 broker inside the process, for the demo.
//!
//! Promises: a QoS 1 message is acknowledged only after the queue of every connected subscriber has
//! taken it, and is never dropped for one that stays connected: a full queue holds the publisher
//! back instead. QoS 0 messages are dropped where a queue is full. Per publisher, order is kept.
//! Everything is bounded by the constants below. Deliberately absent: QoS 2, sessions that outlive
//! their connection, authentication, TLS. Packets are read and written by rumqttc's codec; clauses
//! in brackets are those of MQTT Version 3.1.1, OASIS Standard, 29 October 2014.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rumqttc::mqttbytes::Error as PacketError;
use rumqttc::{
    ConnAck, Connect, ConnectReturnCode, LastWill, Packet, PubAck, Publish, QoS, SubAck, Subscribe,
    SubscribeReasonCode, UnsubAck, matches, valid_filter,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Clients at a time; further ones are refused with "server unavailable".
const CLIENTS_MAX: usize = 16;
/// Packets that wait for one client.
const QUEUE_MAX: usize = 64;
/// Bytes of one packet: with the two above at most 256 MiB wait, as many as are distinct.
const PACKET_MAX: usize = 256 << 10;
/// Topic filters of one client.
const FILTERS_MAX: usize = 64;
/// Topics whose last message is kept.
const RETAINED_MAX: usize = 256;
/// Time from the connection to its CONNECT packet.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after the operating system refused a connection, such as for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A running broker. Dropping it ends it at once.
#[derive(Debug)]
pub struct Broker {
    addr: SocketAddr,
    connections: TaskTracker,
    closing: DropGuard,
}

impl Broker {
    /// Binds `listen` (port 0 takes a free one) and serves clients until [`Broker::stop`].
    pub async fn start(listen: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let addr = listener.local_addr()?;
        let closing = CancellationToken::new();
        let connections = TaskTracker::new();
        let hub = Arc::new(Hub::default());
        let (token, tracker) = (closing.clone(), connections.clone());
        connections.spawn(async move {
            let accept = accept(&listener, |socket| {
                let client = connection(Arc::clone(&hub), socket, token.child_token());
                tracker.spawn(client);
            });
            token.run_until_cancelled(accept).await
        });
        Ok(Self { addr, connections, closing: closing.drop_guard() })
    }

    /// The address with the port that was bound.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Closes the port and all connections, and returns when they are closed. What still waits for
    /// a subscriber is gone; retained messages as well.
    pub async fn stop(self) {
        drop(self.closing);
        self.connections.close();
        self.connections.wait().await;
    }
}

/// Accepts connections for ever.
async fn accept(listener: &TcpListener, mut each: impl FnMut(TcpStream)) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => each(socket),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What all connections share.
#[derive(Debug, Default)]
struct Hub {
    next_id: AtomicU64,
    clients: Mutex<HashMap<u64, Client>>,
    retained: Mutex<BTreeMap<String, Publish>>,
}

/// One connected client, as the others see it.
#[derive(Debug)]
struct Client {
    name: String,
    /// Each with whether its messages are acknowledged (QoS 1).
    filters: Vec<(String, bool)>,
    queue: mpsc::Sender<Packet>,
    closing: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// Adds a client; an older one of the same name is closed [MQTT-3.1.4-2].
    fn add(&self, client: Client) -> Option<u64> {
        let mut clients = lock(&self.clients);
        for other in clients.values().filter(|c| !c.name.is_empty() && c.name == client.name) {
            other.closing.cancel();
        }
        (clients.len() < CLIENTS_MAX).then(|| {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            clients.insert(id, client);
            id
        })
    }

    /// Hands a message to every subscriber. Waits where a QoS 1 subscriber's queue is full.
    async fn route(&self, message: &Publish) {
        let Ok(topic) = std::str::from_utf8(&message.topic) else {
            return;
        };
        if message.retain {
            self.retain(topic, message);
        }
        let subscribers: Vec<_> = lock(&self.clients)
            .values()
            .filter_map(|client| {
                let acknowledged = granted(&client.filters, topic)?;
                let qos = if acknowledged { message.qos } else { QoS::AtMostOnce };
                Some((client.queue.clone(), qos))
            })
            .collect();
        for (queue, qos) in subscribers {
            // A new subscriber alone is told that a message was retained [MQTT-3.3.1-9].
            let copy = Publish { qos, pkid: 0, dup: false, retain: false, ..message.clone() };
            let closed = if qos == QoS::AtMostOnce {
                matches!(
                    queue.try_send(Packet::Publish(copy)),
                    Err(mpsc::error::TrySendError::Closed(_))
                )
            } else {
                queue.send(Packet::Publish(copy)).await.is_err()
            };
            if closed {
                tracing::debug!(topic, "broker: a subscriber left");
            }
        }
    }

    fn retain(&self, topic: &str, message: &Publish) {
        let mut retained = lock(&self.retained);
        if message.payload.is_empty() {
            retained.remove(topic);
        } else if retained.len() < RETAINED_MAX || retained.contains_key(topic) {
            // A copy, so that it does not hold on to the whole buffer that it was read in.
            let payload = Bytes::copy_from_slice(&message.payload);
            let kept = Publish::from_bytes(topic, message.qos, payload);
            retained.insert(topic.to_owned(), Publish { retain: true, ..kept });
        } else {
            tracing::warn!(topic, "broker: too many retained topics; not retained");
        }
    }

    /// Adds filters and returns the answers with the retained messages that match.
    fn subscribe(&self, id: u64, request: &Subscribe) -> (SubAck, Vec<Publish>) {
        let mut clients = lock(&self.clients);
        let mut codes = Vec::new();
        let mut messages = Vec::new();
        for filter in &request.filters {
            let known = clients.get_mut(&id).map(|client| &mut client.filters);
            // QoS 2 is granted as 1 [MQTT-3.8.4-6].
            let acknowledged = filter.qos != QoS::AtMostOnce;
            let qos = if acknowledged { QoS::AtLeastOnce } else { QoS::AtMostOnce };
            let Some(filters) = known.filter(|_| valid_filter(&filter.path)) else {
                codes.push(SubscribeReasonCode::Failure);
                continue;
            };
            filters.retain(|(path, _)| *path != filter.path);
            if filters.len() == FILTERS_MAX {
                codes.push(SubscribeReasonCode::Failure);
                continue;
            }
            filters.push((filter.path.clone(), acknowledged));
            codes.push(SubscribeReasonCode::Success(qos));
            let retained = lock(&self.retained);
            let matching = retained.iter().filter(|(topic, _)| matches(topic, &filter.path));
            messages.extend(matching.map(|(_, message)| match qos {
                QoS::AtMostOnce => Publish { qos, ..message.clone() },
                _ => message.clone(),
            }));
        }
        (SubAck::new(request.pkid, codes), messages)
    }
}

/// Whether any filter that matches a topic asks for acknowledged messages [MQTT-3.3.5-1]; `None`
/// where none matches.
fn granted(filters: &[(String, bool)], topic: &str) -> Option<bool> {
    let matching = filters.iter().filter(|(path, _)| matches(topic, path));
    matching.map(|(_, acknowledged)| *acknowledged).max()
}

/// Serves one connection until either side closes it.
async fn connection(hub: Arc<Hub>, socket: TcpStream, closing: CancellationToken) {
    // Without it an acknowledgement of four bytes waits for the one before it to be confirmed.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "broker: nodelay");
    }
    let (input, mut output) = socket.into_split();
    let mut input = Input { socket: input, buffer: BytesMut::new() };
    let (queue, packets) = mpsc::channel(QUEUE_MAX);
    let greeting = timeout(CONNECT_TIMEOUT, input.next());
    let Some(Ok(greeting)) = closing.run_until_cancelled(greeting).await else {
        return;
    };
    let admitted = match greeting {
        Ok(Some(Packet::Connect(connect))) => admit(&hub, &queue, &closing, connect),
        Err(Broken::Packet(PacketError::InvalidProtocolLevel(_))) => {
            Err(ConnectReturnCode::RefusedProtocolVersion)
        }
        _ => return,
    };
    let code = admitted.as_ref().map_or_else(|code| *code, |_| ConnectReturnCode::Success);
    let mut hello = BytesMut::new();
    let written = ConnAck::new(code, false).write(&mut hello).is_ok()
        && flush(&mut output, &mut hello).await.is_ok();
    let Ok((id, connect)) = admitted else { return };
    let unacked = Unacked::default();
    let client = Session { hub: &hub, id, queue, unacked: &unacked };
    let served = async {
        tokio::select! {
            will = client.read(input, &connect), if written => will,
            () = write(output, packets, &unacked), if written => connect.last_will.clone(),
            else => connect.last_will.clone(),
        }
    };
    let will = closing.run_until_cancelled(served).await.flatten();
    lock(&hub.clients).remove(&id);
    if let Some(LastWill { topic, message, qos, retain }) = will {
        let qos = if qos == QoS::ExactlyOnce { QoS::AtLeastOnce } else { qos };
        let message = Publish { retain, ..Publish::from_bytes(topic, qos, message) };
        if closing.run_until_cancelled(hub.route(&message)).await.is_none() {
            tracing::debug!("broker: stopped before a last will was published");
        }
    }
}

/// Adds the client of a CONNECT packet, or says why not.
fn admit(
    hub: &Hub,
    queue: &mpsc::Sender<Packet>,
    closing: &CancellationToken,
    connect: Connect,
) -> Result<(u64, Connect), ConnectReturnCode> {
    let name = connect.client_id.clone();
    // Without a name there is nothing to come back to [MQTT-3.1.3-8].
    if name.is_empty() && !connect.clean_session {
        return Err(ConnectReturnCode::BadClientId);
    }
    let (queue, closing) = (queue.clone(), closing.clone());
    hub.add(Client { name, filters: Vec::new(), queue, closing })
        .map(|id| (id, connect))
        .ok_or(ConnectReturnCode::ServiceUnavailable)
}

/// The reading half of a connected client.
struct Session<'a> {
    hub: &'a Hub,
    id: u64,
    queue: mpsc::Sender<Packet>,
    unacked: &'a Unacked,
}

/// Why reading ended: whether the client said goodbye.
enum End {
    Goodbye,
    Lost,
}

impl Session<'_> {
    /// Reads until the client leaves. Returns the will to publish, where it left without a word.
    async fn read(&self, mut input: Input, connect: &Connect) -> Option<LastWill> {
        // One and a half times the keep-alive [MQTT-3.1.2-24]; zero turns it off.
        let silence_max = match connect.keep_alive {
            0 => Duration::MAX,
            seconds => Duration::from_millis(u64::from(seconds) * 1500),
        };
        loop {
            let end = match timeout(silence_max, input.next()).await {
                Ok(Ok(Some(packet))) => match self.apply(packet).await {
                    ControlFlow::Continue(()) => continue,
                    ControlFlow::Break(end) => end,
                },
                Ok(Ok(None)) => End::Lost,
                Ok(Err(error)) => {
                    tracing::debug!(%error, client = connect.client_id, "broker: cut off");
                    End::Lost
                }
                Err(_) => {
                    tracing::debug!(client = connect.client_id, "broker: silent, cut off");
                    End::Lost
                }
            };
            return match end {
                End::Goodbye => None,
                End::Lost => connect.last_will.clone(),
            };
        }
    }

    async fn apply(&self, packet: Packet) -> ControlFlow<End> {
        match packet {
            Packet::Publish(message) if message.qos != QoS::ExactlyOnce => {
                self.hub.route(&message).await;
                if message.qos == QoS::AtLeastOnce {
                    self.answer(Packet::PubAck(PubAck::new(message.pkid))).await?;
                }
                ControlFlow::Continue(())
            }
            Packet::PubAck(PubAck { pkid }) => {
                self.unacked.release(pkid);
                ControlFlow::Continue(())
            }
            Packet::Subscribe(request) => {
                let (answer, retained) = self.hub.subscribe(self.id, &request);
                self.answer(Packet::SubAck(answer)).await?;
                for message in retained {
                    self.answer(Packet::Publish(message)).await?;
                }
                ControlFlow::Continue(())
            }
            Packet::Unsubscribe(request) => {
                if let Some(client) = lock(&self.hub.clients).get_mut(&self.id) {
                    client.filters.retain(|(path, _)| !request.topics.contains(path));
                }
                self.answer(Packet::UnsubAck(UnsubAck::new(request.pkid))).await
            }
            Packet::PingReq => self.answer(Packet::PingResp).await,
            Packet::Disconnect => ControlFlow::Break(End::Goodbye),
            // QoS 2 and what a client must not send: the protocol knows no other answer.
            _ => ControlFlow::Break(End::Lost),
        }
    }

    async fn answer(&self, packet: Packet) -> ControlFlow<End> {
        match self.queue.send(packet).await {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(End::Lost),
        }
    }
}

/// Packet ids of messages that a client has not acknowledged. There are 65,535; what a client
/// takes without acknowledging is bounded by them, what it does not take by its queue.
#[derive(Debug, Default)]
struct Unacked {
    ids: Mutex<(u16, HashSet<u16>)>,
    released: Notify,
}

impl Unacked {
    fn try_reserve(&self) -> Option<u16> {
        let mut ids = lock(&self.ids);
        let (last, used) = &mut *ids;
        if used.len() == usize::from(u16::MAX) {
            return None;
        }
        loop {
            *last = last.checked_add(1).unwrap_or(1);
            if used.insert(*last) {
                return Some(*last);
            }
        }
    }

    async fn reserve(&self) -> u16 {
        loop {
            if let Some(id) = self.try_reserve() {
                return id;
            }
            self.released.notified().await;
        }
    }

    fn release(&self, id: u16) {
        if lock(&self.ids).1.remove(&id) {
            self.released.notify_one();
        }
    }
}

/// Writes a client's queue to its socket until either is closed.
async fn write(mut output: OwnedWriteHalf, mut packets: mpsc::Receiver<Packet>, unacked: &Unacked) {
    let mut waiting = Vec::with_capacity(QUEUE_MAX);
    let mut buffer = BytesMut::new();
    while packets.recv_many(&mut waiting, QUEUE_MAX).await > 0 {
        for mut packet in waiting.drain(..) {
            if let Packet::Publish(message) = &mut packet
                && message.qos == QoS::AtLeastOnce
            {
                message.pkid = if let Some(id) = unacked.try_reserve() {
                    id
                } else {
                    // The client acknowledges only what it has been sent.
                    if flush(&mut output, &mut buffer).await.is_err() {
                        return;
                    }
                    unacked.reserve().await
                };
            }
            // A message leaves with at most the QoS and so the size it came in with.
            if let Err(error) = packet.write(&mut buffer, PACKET_MAX + FIXED_HEADER_MAX) {
                tracing::warn!(%error, "broker: a packet cannot be written; client cut off");
                return;
            }
        }
        if flush(&mut output, &mut buffer).await.is_err() {
            return;
        }
    }
}

/// Bytes of a fixed header at most, which the codec does not count on the way in (section 2.2).
const FIXED_HEADER_MAX: usize = 5;

async fn flush(output: &mut OwnedWriteHalf, buffer: &mut BytesMut) -> io::Result<()> {
    output.write_all(buffer).await?;
    buffer.clear();
    Ok(())
}

/// Packets from a socket.
struct Input {
    socket: OwnedReadHalf,
    buffer: BytesMut,
}

#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{0}")]
    Packet(PacketError),
    #[error("{0}")]
    Socket(#[from] io::Error),
}

impl Input {
    /// The next whole packet, or `None` where the client closed the connection. Cancel safe.
    async fn next(&mut self) -> Result<Option<Packet>, Broken> {
        loop {
            match Packet::read(&mut self.buffer, PACKET_MAX) {
                Ok(packet) => return Ok(Some(packet)),
                Err(PacketError::InsufficientBytes(_)) => {}
                Err(error) => return Err(Broken::Packet(error)),
            }
            if self.socket.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests;
