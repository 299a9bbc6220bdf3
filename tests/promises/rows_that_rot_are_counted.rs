//! Fault F5 and promise P3: rows rot in a table's log before a stream has read them. The store passes
//! over them and goes on; here the stream's ledger says how many it never saw, to the row and for
//! good, whoever is killed when.
//!
//! How many that are is read from the ring, by the format that `ARCHITECTURE.md` gives.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, head, part};
use crate::harness::mqtt::Client;
use crate::harness::{Scratch, run, secs};

/// Rows that both streams have read before they are stopped, of each table.
const READ: u64 = 10;
/// Rows of each table when the gateway is stopped.
const ALL: u64 = 60;
/// Rows that come together.
const STEP: usize = 5;

/// A stream of one table, and one of two.
fn config(scratch: &Scratch, broker: u16) -> String {
    let (head, url) = (head(scratch), format!("mqtt://127.0.0.1:{broker}"));
    format!(
        "{head}
devices:
  - {{ name: press, driver: {{ mqtt: {{ url: \"{url}\", topics: [ in/press ], qos: 1, points: [ {{ name: n, type: i64 }} ] }} }} }}
  - {{ name: meter, driver: {{ mqtt: {{ url: \"{url}\", topics: [ in/meter ], qos: 1, points: [ {{ name: n, type: i64 }} ] }} }} }}
streams:
  - {{ name: rows, from: [press], sql: SELECT n FROM press, to: [ {{ sink: out }} ] }}
  - {{ name: both, from: [press, meter], window: {{ tumbling: {{ size: 1s }} }}, sql: 'SELECT count(*) AS c FROM press JOIN meter ON press.n = meter.n', to: [ {{ sink: out }} ] }}
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
"
    )
}

/// Log rows of one table that lie together in the ring.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    first: u64,
    rows: u64,
    /// Place of the last byte of its body.
    last_byte: usize,
}

/// What the ring has of a table's log: entries are key length u16, key, CRC u32, length u32 and body, a
/// key is kind, name length u16, name and position u64 (big-endian), and a body of log rows begins with
/// two numbers of 8 bytes and the count of its rows, u32.
fn pieces(ring: &[u8], table: &str) -> Vec<Piece> {
    let mut key = vec![b'F', 0, u8::try_from(table.len()).expect("a short name")];
    key.extend(table.as_bytes());
    let little = |at: usize| u32::from_le_bytes(ring[at..at + 4].try_into().expect("4 bytes"));
    let places = ring.windows(key.len()).enumerate().filter(|(_, bytes)| *bytes == key);
    let piece = |(place, _)| {
        let at: usize = place + key.len();
        let body = at + 8 + 4 + 4;
        let length = usize::try_from(little(at + 12)).expect("a length");
        Piece {
            first: u64::from_be_bytes(ring[at..at + 8].try_into().expect("8 bytes")),
            rows: little(body + 16).into(),
            last_byte: body + length - 1,
        }
    };
    let mut pieces: Vec<_> = places.map(piece).collect();
    pieces.sort();
    let follow = |pair: &[Piece]| pair[0].first + pair[0].rows == pair[1].first;
    assert!(pieces.windows(2).all(follow), "each row once: {pieces:?}");
    assert_eq!(pieces.last().map(|last| last.first + last.rows), Some(ALL), "{pieces:?}");
    pieces
}

/// A plant with a gateway that is started anew again and again.
struct Trial {
    scratch: Scratch,
    near: Client,
    config: String,
    _broker: Broker,
}

impl Trial {
    /// Streams that are stopped, and behind what they have read 50 rows of each table.
    fn with_unread_rows(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let broker = Broker::start(&scratch, "");
        let config = config(&scratch, broker.port);
        let near = Client::connect(broker.port, "near").expect("a broker");
        let mut trial = Self { scratch, near, config, _broker: broker };
        let mut gateway = trial.start();
        gateway.wait_up();
        trial.publish("press", 1..=READ);
        trial.publish("meter", 1..=READ);
        wait_read(&mut gateway, READ, 2 * READ);
        trial.streams("stop");
        // None of the meter's rows lies in the last frame, of which nobody knows whether it was whole.
        for device in ["meter", "press"] {
            // A few in each commit.
            for before in (READ..ALL).step_by(STEP) {
                let last = before + STEP as u64;
                trial.publish(device, before + 1..=last);
                gateway.wait_status("rows in the store", secs(20), |status| {
                    let hop = part(&status["ledger"], "sources", device);
                    (hop["accepted"] == last).then_some(())
                });
            }
        }
        assert_eq!(gateway.stop().code, Some(0));
        trial
    }

    fn start(&self) -> Gateway {
        Gateway::start(&self.scratch, &self.config)
    }

    fn publish(&mut self, device: &str, numbers: std::ops::RangeInclusive<u64>) {
        for n in numbers {
            let message = format!("{{\"n\": {n}}}");
            self.near.publish(&format!("in/{device}"), message.as_bytes()).expect("a broker");
        }
    }

    fn streams(&self, verb: &str) {
        let socket = self.scratch.join("store/control.sock").display().to_string();
        for stream in ["rows", "both"] {
            let told = run(&["streams", verb, stream, "--socket", &socket], secs(20));
            assert_eq!(told.code, Some(0), "{told:?}");
        }
    }

    /// Damages pieces, chosen among those that no stream has read. Returns the numbers `n` of the rows.
    fn damage(&self, table: &str, chosen: impl Fn(usize, usize) -> bool) -> BTreeSet<u64> {
        let path = self.scratch.join("store/store.ring");
        let mut ring = fs::read(&path).expect("a ring");
        let mut unread = pieces(&ring, table);
        unread.retain(|piece| piece.first >= READ);
        let count = unread.len();
        assert!(count >= 10, "each step by itself: {unread:?}");
        let mut gone = BTreeSet::new();
        for (_, piece) in unread.iter().enumerate().filter(|(at, _)| chosen(*at, count)) {
            ring[piece.last_byte] ^= 1;
            // Row 0 is number 1.
            gone.extend((piece.first..piece.first + piece.rows).map(|position| position + 1));
        }
        fs::write(&path, ring).expect("a ring");
        gone
    }

    /// The counters that the store has of streams, by name.
    fn counters(&self) -> Vec<String> {
        let folder = self.scratch.join("store").display().to_string();
        let told = run(&["store", "ls", "--json", "--store", &folder], secs(20));
        assert_eq!(told.code, Some(0), "{told:?}");
        let contents: Value = serde_json::from_str(&told.stdout).expect("JSON");
        let counters = contents["counters"].as_object().expect("counters").keys();
        counters.filter(|name| name.starts_with("stream/")).cloned().collect()
    }
}

/// Waits until the streams have read so many rows.
fn wait_read(gateway: &mut Gateway, rows: u64, both: u64) {
    gateway.wait_status("rows read", secs(30), |status| {
        let accepted = |stream| part(&status["ledger"], "streams", stream)["accepted"].clone();
        (accepted("rows") == rows && accepted("both") == both).then_some(())
    });
}

/// Waits until it is durable that the streams missed so many rows, ever and since the start, where that
/// is known.
fn wait_missed(gateway: &mut Gateway, ever: [usize; 2], since: Option<[usize; 2]>) {
    gateway.wait_status("the missed rows", secs(10), |status| {
        let missed = |ledger: &str| {
            ["rows", "both"]
                .map(|stream| part(&status[ledger], "streams", stream)["missed"].clone())
        };
        let right = missed("ledger") == ever.map(|n| json!(n))
            && since.is_none_or(|since| missed("ledger_since_start") == since.map(|n| json!(n)));
        (right && part(status, "streams", "both")["missed"] == ever[1]).then_some(())
    });
}

#[test]
fn f05_rows_that_rotted_before_a_stream_read_them() {
    let mut trial = Trial::with_unread_rows("rot");
    // One after the other, one by itself; and the end of the other table's log.
    let press = trial.damage("press", |at, _| at == 2 || at == 3 || at == 6);
    let meter = trial.damage("meter", |at, count| at + 1 == count);
    let lost = press.len() + meter.len();
    assert!(press.len() >= 3 && !meter.is_empty(), "{press:?} {meter:?}");
    let rest = |gone: &BTreeSet<u64>| ALL - gone.len() as u64;

    let mut gateway = trial.start();
    gateway.wait_status("what the store lost", secs(10), |status| {
        (status["store"]["corrupt_rows"] == lost).then_some(())
    });
    wait_missed(&mut gateway, [0, 0], Some([0, 0]));
    // Killed wherever it is in reading them.
    trial.streams("start");
    gateway.kill();
    let mut gateway = trial.start();
    wait_read(&mut gateway, rest(&press), rest(&press) + rest(&meter));
    wait_missed(&mut gateway, [press.len(); 2], None);
    gateway.kill();

    // Nobody knows yet that the end of the meter's log is not there; its next row tells.
    let mut gateway = trial.start();
    wait_read(&mut gateway, rest(&press), rest(&press) + rest(&meter));
    wait_missed(&mut gateway, [press.len(); 2], Some([0, 0]));
    trial.publish("meter", ALL + 1..=ALL + 1);
    wait_read(&mut gateway, rest(&press), rest(&press) + rest(&meter) + 1);
    wait_missed(&mut gateway, [press.len(), lost], Some([0, lost - press.len()]));
    let log = gateway.log();
    assert!(log.contains("they are counted as missed"), "{log}");
    gateway.kill();

    // Told for good, and once.
    let mut gateway = trial.start();
    wait_read(&mut gateway, rest(&press), rest(&press) + rest(&meter) + 1);
    wait_missed(&mut gateway, [press.len(), lost], Some([0, 0]));
    gateway.wait_drained(secs(10));
    assert_eq!(gateway.stop().code, Some(0));
    let came = gateway.printed().into_iter().filter(|record| record.stream() == "rows");
    let came: BTreeSet<u64> = came.map(|record| record.int("n").unsigned_abs()).collect();
    let expected: BTreeSet<u64> = (1..=ALL).filter(|n| !press.contains(n)).collect();
    assert_eq!(came, expected);
    assert_eq!(trial.counters(), ["stream/both/missed", "stream/rows/missed"]);
}

#[test]
fn f05_a_sound_log_is_read_without_a_word() {
    let trial = Trial::with_unread_rows("sound");
    let mut gateway = trial.start();
    wait_missed(&mut gateway, [0, 0], Some([0, 0]));
    trial.streams("start");
    gateway.kill();
    let mut gateway = trial.start();
    wait_read(&mut gateway, ALL, 2 * ALL);
    wait_missed(&mut gateway, [0, 0], Some([0, 0]));
    assert_eq!(gateway.stop().code, Some(0));
    assert_eq!(trial.counters(), [""; 0]);
}
