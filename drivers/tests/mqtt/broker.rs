//! A broker on loopback that does only what a test tells it to, byte by byte.

use std::time::Duration;

use tidegate_drivers::north::mqtt::{MqttNorth, MqttSink};
use tidegate_drivers::south::mqtt::{MqttFeed, MqttSouth};
use tidegate_drivers::stats::{LinkState, Stats};
use tidegate_drivers::{Payload, South, TableBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

/// How long a test waits for something that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// How long a test watches that something does not happen.
pub(crate) const QUIET: Duration = Duration::from_millis(150);

/// CONNACK: accepted, without and with a session (3.2).
pub(crate) const ACCEPTED: &[u8] = &[0x20, 0x02, 0x00, 0x00];
pub(crate) const RESUMED: &[u8] = &[0x20, 0x02, 0x01, 0x00];
/// PINGREQ and PINGRESP (3.12, 3.13), DISCONNECT (3.14).
pub(crate) const PINGREQ: &[u8] = &[0xC0, 0x00];
pub(crate) const PINGRESP: &[u8] = &[0xD0, 0x00];
pub(crate) const DISCONNECT: &[u8] = &[0xE0, 0x00];

pub(crate) struct Broker {
    listener: TcpListener,
}

impl Broker {
    pub(crate) async fn start() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    pub(crate) fn url(&self) -> String {
        format!("mqtt://{}", self.listener.local_addr().unwrap())
    }

    pub(crate) async fn accept(&self) -> Peer {
        let (socket, _) = timeout(SOON, self.listener.accept()).await.unwrap().unwrap();
        socket.set_nodelay(true).unwrap();
        Peer { socket, bytes: Vec::new() }
    }

    /// Accepts a client and answers its CONNECT.
    pub(crate) async fn greet(&self, connack: &[u8]) -> Peer {
        let mut peer = self.accept().await;
        let connect = peer.packet().await;
        assert_eq!(connect[0], 0x10, "CONNECT comes first");
        peer.send(connack).await;
        peer
    }
}

/// The broker's end of one connection.
pub(crate) struct Peer {
    pub(crate) socket: TcpStream,
    bytes: Vec<u8>,
}

impl Peer {
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self { socket, bytes: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        timeout(SOON, self.socket.write_all(bytes)).await.unwrap().unwrap();
    }

    /// The next whole packet of the client; panics where the connection ends first.
    pub(crate) async fn packet(&mut self) -> Vec<u8> {
        timeout(SOON, self.next()).await.expect("a packet in time").expect("a packet, not the end")
    }

    /// Asserts that the client sends nothing for a while.
    pub(crate) async fn silent(&mut self) {
        if let Ok(packet) = timeout(QUIET, self.next()).await {
            panic!("unexpected {packet:02x?}");
        }
    }

    /// The packets up to the end of the connection.
    pub(crate) async fn rest(&mut self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while let Some(packet) = timeout(SOON, self.next()).await.expect("an end in time") {
            packets.push(packet);
        }
        packets
    }

    /// Expects a SUBSCRIBE and grants `qos` to its only filter.
    pub(crate) async fn grant(&mut self, qos: u8) {
        let subscribe = self.packet().await;
        assert_eq!(subscribe[0], 0x82, "{subscribe:02x?}");
        self.send(&[0x90, 0x03, subscribe[2], subscribe[3], qos]).await;
    }

    /// Cancel safe.
    async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(length) = whole(&self.bytes) {
                return Some(self.bytes.drain(..length).collect());
            }
            match self.socket.read_buf(&mut self.bytes).await {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// The length of the packet that `bytes` begin with, where it is whole (2.2.3).
fn whole(bytes: &[u8]) -> Option<usize> {
    let (mut remaining, mut shift, mut at) = (0usize, 0, 1);
    loop {
        let byte = *bytes.get(at)?;
        remaining |= usize::from(byte & 0x7f) << shift;
        (shift, at) = (shift + 7, at + 1);
        if byte & 0x80 == 0 {
            break;
        }
    }
    (bytes.len() >= at + remaining).then_some(at + remaining)
}

/// A PUBLISH with the topic `t` (3.3): QoS 1 where it has an id.
pub(crate) fn publish(id: Option<u16>, body: &[u8]) -> Vec<u8> {
    let mut rest = vec![0, 1, b't'];
    rest.extend(id.map(u16::to_be_bytes).into_iter().flatten());
    rest.extend_from_slice(body);
    let mut packet = vec![if id.is_some() { 0x32 } else { 0x30 }];
    let mut length = rest.len();
    loop {
        let digit = u8::try_from(length % 128).unwrap();
        length /= 128;
        packet.push(if length > 0 { digit | 0x80 } else { digit });
        if length == 0 {
            break;
        }
    }
    packet.extend_from_slice(&rest);
    packet
}

/// PUBACK (3.4).
pub(crate) fn puback(id: u16) -> [u8; 4] {
    let [high, low] = id.to_be_bytes();
    [0x40, 0x02, high, low]
}

/// The body of a PUBLISH of the sink, whose topic is `t`.
pub(crate) fn body(packet: &[u8]) -> &[u8] {
    let header = 2 + packet[1..].iter().take_while(|b| **b >= 0x80).count();
    assert_eq!(&packet[header..header + 3], [0, 1, b't'], "{packet:02x?}");
    let id = if packet[0] & 0b0110 == 0 { 0 } else { 2 };
    &packet[header + 3 + id..]
}

pub(crate) fn north(url: &str, fields: &serde_json::Value) -> MqttNorth {
    let mut sink = serde_json::json!({ "url": url, "topic": "t" });
    sink.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let sink: MqttSink = serde_json::from_value(sink).unwrap();
    MqttNorth::new(sink, "tidegate-gw-cloud".to_owned(), "gw", None).unwrap()
}

pub(crate) fn south(url: &str, fields: &serde_json::Value) -> MqttSouth {
    let mut feed = serde_json::json!({
        "url": url,
        "topics": ["t"],
        "points": [{ "name": "n", "type": "i64" }],
    });
    feed.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let feed: MqttFeed = serde_json::from_value(feed).unwrap();
    MqttSouth::new(feed, "tidegate-gw-feed".to_owned(), None).unwrap()
}

pub(crate) fn table(south: &MqttSouth) -> TableBuilder {
    TableBuilder::new(south.points(), false)
}

/// The values of the feed's point `n`; empties the table.
pub(crate) fn numbers(table: &mut TableBuilder) -> Vec<i64> {
    use arrow::array::AsArray;
    let rows = table.finish();
    rows.columns[0].as_primitive::<arrow::datatypes::Int64Type>().values().to_vec()
}

pub(crate) fn payloads(bodies: &[&str]) -> Vec<Payload> {
    let payload = |(seq, body): (usize, &&str)| Payload {
        id: format!("gw/1/s/{seq}"),
        stream: "s".into(),
        body: bytes::Bytes::copy_from_slice(body.as_bytes()),
        replayed: false,
    };
    bodies.iter().enumerate().map(payload).collect()
}

/// Waits until a link is in the wanted state.
pub(crate) async fn until_state(stats: &Stats, wanted: LinkState) {
    let reached = async {
        while stats.state() != wanted {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, reached).await.expect("the state in time");
}
