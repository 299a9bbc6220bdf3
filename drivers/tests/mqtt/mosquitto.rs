//! The drivers against mosquitto, a broker that is not ours.
//!
//! Figures are printed (`cargo test -- --nocapture`); what is asserted is that nothing is lost,
//! doubled or reordered.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use tidegate_drivers::stats::Counter;
use tidegate_drivers::{Fault, North, Payload, South};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::broker::*;

/// A mosquitto of our own, on a free port of loopback, with a folder that goes with it.
struct Mosquitto {
    port: u16,
    folder: PathBuf,
    child: Child,
}

impl Mosquitto {
    async fn start(extra: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-mosquitto-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        // Freed again for mosquitto, which cannot tell a port that it has chosen.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!("listener {port} 127.0.0.1\nallow_anonymous true\n{extra}\n");
        let file = folder.join("mosquitto.conf");
        write(&file, &config);
        let child = Self::spawn(&folder);
        let broker = Self { port, folder, child };
        broker.ready().await;
        broker
    }

    fn spawn(folder: &Path) -> Child {
        Command::new("mosquitto")
            .arg("-c")
            .arg(folder.join("mosquitto.conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("mosquitto is installed (Debian package `mosquitto`)")
    }

    async fn ready(&self) {
        let listening = async {
            while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(SOON, listening).await.expect("mosquitto listens");
    }

    fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// A subscriber of all topics, by bytes that are written by hand.
    async fn subscriber(&self, qos: u8) -> Subscriber {
        let socket = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let mut peer = Peer::new(socket);
        // 3.1: clean session, no keep-alive, client id `far`. 3.8: id 1, filter `#`.
        peer.send(b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x00\x00\x03far").await;
        assert_eq!(peer.packet().await, ACCEPTED);
        peer.send(&[0x82, 0x06, 0x00, 0x01, 0x00, 0x01, b'#', qos]).await;
        assert_eq!(peer.packet().await, [0x90, 0x03, 0x00, 0x01, qos]);
        Subscriber { peer }
    }

    /// Publishes the lines of `lines` with `mosquitto_pub` to `t` at QoS 1; returns when all are
    /// acknowledged.
    async fn publish(&self, lines: &str) {
        let file = self.folder.join("lines");
        write(&file, lines);
        let mut child = Command::new("mosquitto_pub")
            .args(["-l", "-t", "t", "-q", "1", "-p", &self.port.to_string()])
            .stdin(File::open(&file).unwrap())
            .spawn()
            .expect("mosquitto_pub is installed (Debian package `mosquitto-clients`)");
        let ended = async {
            loop {
                if let Some(status) = child.try_wait().unwrap() {
                    return assert!(status.success());
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_mins(1), ended).await.expect("mosquitto_pub ends");
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

struct Subscriber {
    peer: Peer,
}

impl Subscriber {
    /// The messages up to the one that is `last`. At QoS 1 each is acknowledged.
    async fn messages(mut self, last: &str) -> Vec<String> {
        let mut messages: Vec<String> = Vec::new();
        while messages.last().is_none_or(|message| message != last) {
            let packet = self.peer.packet().await;
            messages.push(String::from_utf8(body(&packet).to_vec()).unwrap());
            if packet[0] & 0b0110 != 0 {
                // One more length byte for a packet of 128 bytes and more, then the topic `t`.
                let at = if packet[1] & 0x80 == 0 { 5 } else { 6 };
                self.peer.send(&[0x40, 0x02, packet[at], packet[at + 1]]).await;
            }
        }
        messages
    }
}

fn write(file: &Path, text: &str) {
    File::create(file).unwrap().write_all(text.as_bytes()).unwrap();
}

/// Payloads `0` to `count - 1`, of about 200 bytes each.
fn numbered(count: usize) -> Vec<Payload> {
    let stream: Arc<str> = "s".into();
    let payload = |seq: usize| Payload {
        id: format!("gw/1/s/{seq}"),
        stream: Arc::clone(&stream),
        body: format!("{seq:0>200}").into(),
        replayed: false,
    };
    (0..count).map(payload).collect()
}

/// Delivers `payloads` in slices of 500; returns messages a second.
async fn rate(north: &mut impl North, payloads: &[Payload]) -> f64 {
    let start = Instant::now();
    for slice in payloads.chunks(500) {
        let delivered = north.deliver(slice).await;
        assert_eq!((delivered.count, delivered.fault), (slice.len(), None));
    }
    payloads.len() as f64 / start.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_arrives_once_and_in_order() {
    let count = 20_000;
    let payloads = numbered(count);
    let expected: Vec<String> = (0..count).map(|seq| format!("{seq:0>200}")).collect();
    for (qos, in_flight) in [(0, 100), (1, 20), (1, 100)] {
        let fields = json!({ "qos": qos, "in_flight": in_flight });
        let broker = Mosquitto::start("max_queued_messages 0").await;
        let mut north = crate::broker::north(&broker.url(), &fields);
        north.connect().await.unwrap();
        let alone = rate(&mut north, &payloads).await;

        let broker = Mosquitto::start("max_queued_messages 0").await;
        let mut north = crate::broker::north(&broker.url(), &fields);
        north.connect().await.unwrap();
        let subscriber = broker.subscriber(qos).await;
        let last = expected[count - 1].clone();
        let far = tokio::spawn(async move { subscriber.messages(&last).await });
        let read = rate(&mut north, &payloads).await;
        println!(
            "out: QoS {qos}, in flight {in_flight}: {alone:.0} messages/s, \
             with a subscriber of that QoS {read:.0} messages/s"
        );
        let got = far.await.unwrap();
        // A48: without a fault nothing is doubled. QoS 0 is as good on one machine.
        assert!(got == expected, "lost, doubled or reordered: {} of {count}", got.len());
        assert_eq!(north.stats().get(Counter::Requests), count as u64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_broker_loses_nothing() {
    // A45: SIGSTOP in the middle of a delivery.
    let broker = Mosquitto::start("max_queued_messages 0").await;
    let subscriber = broker.subscriber(1).await;
    let last = format!("{:0>200}", 999);
    let far = tokio::spawn(async move { subscriber.messages(&last).await });
    let mut north = north(&broker.url(), &json!({ "ack_timeout": "500ms" }));
    north.connect().await.unwrap();
    let payloads = numbered(1_000);
    let delivered = north.deliver(&payloads[..300]).await;
    assert_eq!((delivered.count, delivered.fault), (300, None));
    broker.signal("-STOP");
    let delivered = timeout(SOON, north.deliver(&payloads[300..])).await.unwrap();
    assert!(matches!(delivered.fault, Some(Fault::Link(_))), "{delivered:?}");
    assert_eq!(delivered.count, 0);
    // Nobody answers CONNECT either; a caller's attempts end in time and do no harm.
    timeout(Duration::from_millis(200), north.connect()).await.unwrap_err();
    broker.signal("-CONT");
    north.connect().await.unwrap();
    let delivered = north.deliver(&payloads[300..]).await;
    assert_eq!((delivered.count, delivered.fault), (700, None));

    let mut got = far.await.unwrap();
    let all = got.len();
    assert!(all <= 1_000 + 100, "no more is doubled than was in flight: {all}");
    // Doubled are the 100 in flight, as a block; each message comes first in its place.
    let mut seen = HashSet::new();
    got.retain(|message| seen.insert(message.clone()));
    let expected: Vec<String> = (0..1_000).map(|seq| format!("{seq:0>200}")).collect();
    assert!(got == expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_of_20_in_flight_is_not_throttled() {
    // mosquitto's default, and batches that would linger for 5 s. The first 20 come alone; then
    // mosquitto 2.0.11 lets 20 more go for each acknowledgement while messages are queued, and to a
    // session that it resumes it sends all. The scripted broker keeps to 20 throughout.
    let broker = Mosquitto::start("max_queued_messages 0").await;
    let count = 10_000usize;
    let fields = json!({ "linger": "5s" });
    let mut south = south(&broker.url(), &fields);
    let mut rows = table(&south);
    south.connect().await.unwrap();
    let lines: Vec<String> = (0..count).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    broker.publish(&lines.concat()).await;

    let start = Instant::now();
    let (mut got, mut first) = (Vec::new(), None);
    // The rows of the read after these are not settled: the broker offers them again.
    while got.len() < count - 1_000 {
        let receipt = south.read(&mut rows).await.unwrap().expect("a receipt");
        let batch = numbers(&mut rows);
        first = first.or(Some(batch.len()));
        got.extend(batch);
        south.settle(receipt).await.unwrap();
    }
    let rate = got.len() as f64 / start.elapsed().as_secs_f64();
    println!("in: QoS 1: {rate:.0} messages/s");
    assert!(rate > 200.0, "{rate:.0} messages/s");
    assert!(first <= Some(20), "{first:?}");
    south.read(&mut rows).await.unwrap().expect("a receipt");
    assert!(!numbers(&mut rows).is_empty());
    drop(south);

    let mut south = crate::broker::south(&broker.url(), &fields);
    south.connect().await.unwrap();
    // The last acknowledgements may have been lost with the socket: their messages come again.
    let mut seen: HashSet<i64> = got.iter().copied().collect();
    while seen.len() < count {
        let receipt = south.read(&mut rows).await.unwrap().expect("a receipt");
        let batch = numbers(&mut rows);
        seen.extend(&batch);
        got.extend(batch);
        south.settle(receipt).await.unwrap();
    }
    let mut first_time = HashSet::new();
    got.retain(|n| first_time.insert(*n));
    assert!(got == (0..i64::try_from(count).unwrap()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_of_qos_0_keeps_up() {
    let broker = Mosquitto::start("max_queued_messages 0\nqueue_qos0_messages true").await;
    let mut south = south(&broker.url(), &json!({ "qos": 0 }));
    let mut rows = table(&south);
    south.connect().await.unwrap();
    let mut north = north(&broker.url(), &json!({ "qos": 0 }));
    north.connect().await.unwrap();
    let payloads: Vec<Payload> = (0..20_000)
        .map(|n| Payload {
            id: n.to_string(),
            stream: "s".into(),
            body: format!("{{\"n\":{n}}}").into(),
            replayed: false,
        })
        .collect();
    let start = Instant::now();
    let feed = async {
        let mut got = Vec::new();
        while got.len() < payloads.len() {
            assert_eq!(south.read(&mut rows).await.unwrap(), None);
            got.extend(numbers(&mut rows));
        }
        got
    };
    let (delivered, got) = tokio::join!(north.deliver(&payloads), feed);
    let rate = got.len() as f64 / start.elapsed().as_secs_f64();
    println!("out and in: QoS 0: {rate:.0} messages/s");
    assert_eq!((delivered.count, delivered.fault), (payloads.len(), None));
    assert!(got == (0..20_000).collect::<Vec<i64>>());
}
