//! kill -9 at fifty random moments under load, the whole way through: MQTT in (QoS 1, persistent
//! session), a stateless and a windowed stream, MQTT out and a file.
//!
//! Nothing that was accepted may be lost or altered: every published value arrives, in the order of
//! publishing by its first arrival, with its own content; an id always has the same content; each
//! window has one result, and that counts every value of the window once. What may come twice is a
//! message that was accepted but not acknowledged before the kill: the broker sends it again, and
//! it becomes a row of its own. And each start reads its first row within two seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, count, head};
use crate::harness::mqtt::Client;
use crate::harness::records::{
    Record, again, again_max, assert_complete, assert_contiguous, lines, of_stream, repeated,
};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, say, secs, setting, soak, wait_for, wait_until};

/// Size of the windows in milliseconds.
const WINDOW_MS: i64 = 1_000;
/// Records that are handed to a sink at once.
const DELIVER_ROWS: u64 = 100;

fn config(scratch: &Scratch, broker: u16) -> String {
    let (head, file) = (head(scratch), scratch.join("out.jsonl"));
    let file = file.display();
    format!(
        r#"{head}
limits: {{ deliver_rows: {DELIVER_ROWS} }}
devices:
  - name: feed
    driver:
      mqtt:
        url: "mqtt://127.0.0.1:{broker}"
        topics: [ "in/n" ]
        qos: 1
        backoff_min: 50ms
        backoff_max: 200ms
        decode: {{ json: {{ time: ts }} }}
        points: [ {{ name: n, type: i64 }}, {{ name: v, type: f64 }}, {{ name: label, type: string }} ]
streams:
  - name: rows
    from: [feed]
    sql: SELECT time, n, v, label FROM feed
    to: [ {{ sink: uplink }}, {{ sink: disk }} ]
  - name: windows
    from: [feed]
    window: {{ tumbling: {{ size: {WINDOW_MS}ms }} }}
    allowed_lateness: 2s
    idle_after: 60s
    sql: |
      SELECT window_start() AS start, count(DISTINCT n) AS different, min(n) AS low, max(n) AS high
      FROM feed
    to: [ {{ sink: uplink }}, {{ sink: disk }} ]
sinks:
  - name: uplink
    driver: {{ mqtt: {{ url: "mqtt://127.0.0.1:{broker}", topic: "out/{{stream}}", qos: 1, backoff_min: 50ms, backoff_max: 200ms }} }}
  - name: disk
    driver: {{ file: {{ path: {file} }} }}
"#
    )
}

/// A small generator of numbers (Marsaglia's xorshift64), so that a run can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    i64::try_from(now).expect("before the year 292 million")
}

fn message(n: i64, ts: i64) -> String {
    format!("{{\"ts\": {ts}, \"n\": {n}, \"v\": {}, \"label\": \"n{n}\"}}", n as f64 * 0.25)
}

/// Publishes about 100 messages a second until it is told to end. Returns the time of each, in
/// milliseconds since 1970; the first one's number is 0.
fn publish(broker: u16, ended: &AtomicBool) -> Vec<i64> {
    let mut client = Client::connect(broker, "near-side").expect("a broker");
    let mut times = Vec::new();
    while !ended.load(Ordering::SeqCst) {
        let (n, ts) = (i64::try_from(times.len()).expect("few"), now_ms());
        client.publish("in/n", message(n, ts).as_bytes()).expect("a broker that takes it");
        times.push(ts);
        std::thread::sleep(Duration::from_millis(10));
    }
    // One far ahead closes all windows before it.
    let (n, ts) = (i64::try_from(times.len()).expect("few"), now_ms() + 10_000);
    client.publish("in/n", message(n, ts).as_bytes()).expect("a broker that takes it");
    times
}

/// Ends the publisher, also where the test fails: else the test would wait for it for ever.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// How long a start may take until the first row is read: what is promised of the binary that ships. A
/// debug build beside other tests is slower.
fn first_row_max() -> Duration {
    secs(if soak() { 2 } else { 5 })
}

/// Waits for the first row that a gateway has read since it was started at `begun`; how long that took.
fn first_row(gateway: &mut Gateway, begun: Instant) -> Duration {
    wait_until("the first row", secs(20), || {
        assert!(gateway.runs(), "the gateway has ended:\n{}", gateway.log());
        gateway.try_status().is_some_and(|status| {
            count(&status["ledger_since_start"], "sources", "feed", "read") > 0
        })
    });
    begun.elapsed()
}

/// Starts the gateway and kills it, again and again. Returns how long it took after each kill, of the
/// gateways that lived for that long, until the first row was read.
fn kill_often(scratch: &Scratch, config: &str, kills: u64) -> Vec<Duration> {
    let seed = setting("TIDEGATE_TEST_SEED", u64::try_from(now_ms()).expect("after 1970")) | 1;
    eprintln!("TIDEGATE_TEST_SEED={seed} TIDEGATE_TEST_KILLS={kills}");
    let mut random = Random(seed);
    let mut starts = Vec::new();
    for number in 0..kills {
        let begun = Instant::now();
        let mut gateway = Gateway::start(scratch, config);
        // Every second time somewhere between its start and full work; else in full work.
        if number % 2 == 0 {
            starts.push(first_row(&mut gateway, begun));
        }
        std::thread::sleep(Duration::from_millis(random.below(1_200)));
        assert!(gateway.runs(), "the gateway has ended by itself:\n{}", gateway.log());
        gateway.kill();
    }
    starts
}

/// What must be true of the records of either sink. Returns how many rows came again, for each time.
fn judge(records: &[Record], times: &[i64], kills: usize) -> Vec<u64> {
    repeated(records);
    let last = i64::try_from(times.len()).expect("few");
    let rows = of_stream(records, "rows");
    let again = again(&rows);
    assert!(again.len() <= kills, "came again, with {kills} kills: {again:?}");
    assert!(again.iter().all(|again| *again <= again_max(DELIVER_ROWS)), "came again: {again:?}");
    assert_complete(&rows, "n", 0, last);
    assert_contiguous(&rows);
    for row in &rows {
        let n = row.int("n");
        assert!((row.number("v") - n as f64 * 0.25).abs() < 1e-9, "{}", row.text);
        assert_eq!(row.text_of("label"), format!("n{n}"), "{}", row.text);
        if let Some(ts) = usize::try_from(n).ok().and_then(|n| times.get(n)) {
            assert_eq!(row.micros("time"), ts * 1_000, "{}", row.text);
        }
    }

    let mut published: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
    for (n, ts) in (0..).zip(times) {
        published.entry(ts.div_euclid(WINDOW_MS) * WINDOW_MS * 1_000).or_default().insert(n);
    }
    let windows = of_stream(records, "windows");
    assert_contiguous(&windows);
    let mut results: BTreeMap<i64, &Record> = BTreeMap::new();
    for window in &windows {
        let before = results.insert(window.micros("start"), window);
        if let Some(before) = before {
            assert_eq!(before.text, window.text, "a window with two results");
        }
    }
    for (start, values) in &published {
        let window = results.get(start).unwrap_or_else(|| panic!("no result of window {start}"));
        let got = (window.int("different"), window.int("low"), window.int("high"));
        let different = i64::try_from(values.len()).expect("few");
        let expected = (different, *values.first().expect("one"), *values.last().expect("one"));
        assert_eq!(got, expected, "window {start}: {}", window.text);
    }
    assert_eq!(results.len(), published.len(), "windows that nothing was published in");
    again
}

#[test]
fn f01_nothing_accepted_is_lost_or_altered() {
    let scratch = Scratch::new("kill");
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "out/#", None);
    far_side.wait_subscribed();
    let config = config(&scratch, broker.port);
    // The broker keeps messages for a session that it knows: once connected, none is missed.
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();

    let (ended, kills) = (AtomicBool::new(false), setting("TIDEGATE_TEST_KILLS", 50));
    let (times, starts) = std::thread::scope(|scope| {
        let publisher = scope.spawn(|| publish(broker.port, &ended));
        let ending = Ending(&ended);
        gateway.kill();
        let starts = kill_often(&scratch, &config, kills);
        drop(ending);
        (publisher.join().expect("the publisher"), starts)
    });

    let mut gateway = Gateway::start(&scratch, &config);
    let last = i64::try_from(times.len()).expect("few");
    far_side.wait_value("rows", "n", last, secs(30));
    let windows = times.iter().map(|ts| ts.div_euclid(WINDOW_MS)).collect::<BTreeSet<_>>().len();
    let closed = |records: &[Record]| {
        let windows = records.iter().filter(|record| record.stream() == "windows");
        windows.map(|record| record.micros("start")).collect::<BTreeSet<_>>().len()
    };
    wait_until("the last window", secs(20), || far_side.look(closed) >= windows);
    gateway.wait_drained(secs(20));
    let stopped = gateway.stop();
    assert_eq!(stopped.code, Some(0));

    // One more than those at random moments.
    let kills = usize::try_from(kills).expect("few") + 1;
    let uplink = judge(&far_side.records(), &times, kills);
    let written =
        wait_for("the file", secs(1), || fs::read_to_string(scratch.join("out.jsonl")).ok());
    let disk = judge(&lines(&written), &times, kills);
    say(format_args!("F1: came again to the broker {uplink:?}, to the file {disk:?}"));
    let slowest = starts.iter().max().expect("a start after a kill");
    say(format_args!(
        "F1: {} messages, {windows} windows; {} starts after a kill, the first row after {slowest:?} at the \
         latest",
        times.len(),
        starts.len()
    ));
    assert!(*slowest <= first_row_max(), "the first row took {slowest:?}");
}
