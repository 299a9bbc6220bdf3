//! Streams that read streams, through twelve kills at random moments: MQTT in (QoS 1), windows of a
//! second, windows of five seconds over the results of those, and a file.
//!
//! The seconds go nowhere but to the stream that reads them. Each of its windows has one result, and
//! that counts every value that was published in it once: no result of a second was lost between
//! the two, and none was read twice. A change of the first stream is seen by the second.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, count, head};
use crate::harness::mqtt::Client;
use crate::harness::records::{assert_contiguous, lines, of_stream, repeated};
use crate::harness::{Scratch, secs, setting, soak, wait_for, wait_until};

/// Size of the second stream's windows in milliseconds.
const WINDOW_MS: i64 = 5_000;

fn config(scratch: &Scratch, broker: u16) -> String {
    let (head, file) = (head(scratch), scratch.join("out.jsonl"));
    let file = file.display();
    format!(
        r#"{head}
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
        points: [ {{ name: n, type: i64 }} ]
streams:
  # Before the one that it reads, as a person may write it.
  - name: fives
    from: [seconds]
    window: {{ tumbling: {{ size: {WINDOW_MS}ms }} }}
    sql: |
      SELECT window_start() AS start, sum(different) AS different, min(low) AS low, max(high) AS high,
             count(*) AS seconds
      FROM seconds
    to: [ {{ sink: disk }} ]
  - name: seconds
    from: [feed]
    window: {{ tumbling: {{ size: 1s }} }}
    allowed_lateness: 2s
    idle_after: 60s
    sql: |
      SELECT window_start() AS time, count(DISTINCT n) AS different, min(n) AS low, max(n) AS high
      FROM feed HAVING count(*) > 0
sinks:
  - name: disk
    driver: {{ file: {{ path: {file} }} }}
"#
    )
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    i64::try_from(now).expect("before the year 292 million")
}

/// Publishes about 100 messages a second until it is told to end. Returns the time of each in
/// milliseconds since 1970; the first one's number is 0.
fn publish(broker: u16, ended: &AtomicBool) -> Vec<i64> {
    let mut client = Client::connect(broker, "near-side").expect("a broker");
    let mut send = |n: usize, ts: i64| {
        let message = format!("{{\"ts\": {ts}, \"n\": {n}}}");
        client.publish("in/n", message.as_bytes()).expect("a broker that takes it");
    };
    let mut times = Vec::new();
    while !ended.load(Ordering::SeqCst) {
        let ts = now_ms();
        send(times.len(), ts);
        times.push(ts);
        std::thread::sleep(Duration::from_millis(10));
    }
    // The first closes the seconds before it, the second that of the first, which closes the fives.
    for ahead in [10_000, 30_000] {
        send(times.len() + 1, now_ms() + ahead);
    }
    times
}

/// Ends the publisher, also where the test fails: else the test would wait for it for ever.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn each_result_is_read_once_through_a_chain_that_is_killed() {
    let scratch = Scratch::new("chain");
    let broker = Broker::start(&scratch, "");
    let config = config(&scratch, broker.port);
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    gateway.kill();

    let seed = setting("TIDEGATE_TEST_SEED", u64::try_from(now_ms()).expect("after 1970")) | 1;
    let kills = setting("TIDEGATE_TEST_KILLS", if soak() { 100 } else { 12 });
    eprintln!("TIDEGATE_TEST_SEED={seed} TIDEGATE_TEST_KILLS={kills}");
    let mut random = seed;
    let ended = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        let publisher = scope.spawn(|| publish(broker.port, &ended));
        let ending = Ending(&ended);
        for _ in 0..kills {
            let mut gateway = Gateway::start(&scratch, &config);
            wait_until("the control socket", secs(20), || {
                assert!(gateway.runs(), "the gateway has ended:\n{}", gateway.log());
                gateway.try_status().is_some()
            });
            // Marsaglia's xorshift64, so that a run can be repeated.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            std::thread::sleep(Duration::from_millis(random % 1_500));
            assert!(gateway.runs(), "the gateway has ended by itself:\n{}", gateway.log());
            gateway.kill();
        }
        drop(ending);
        publisher.join().expect("the publisher")
    });

    let mut expected: BTreeMap<i64, (i64, i64, i64)> = BTreeMap::new();
    for (n, ts) in (0..).zip(&times) {
        let start = ts.div_euclid(WINDOW_MS) * WINDOW_MS * 1_000;
        let window = expected.entry(start).or_insert((0, n, n));
        *window = (window.0 + 1, window.1, n);
    }
    let mut gateway = Gateway::start(&scratch, &config);
    let file = scratch.join("out.jsonl");
    let written = wait_for("the last window of five seconds", secs(40), || {
        let text = fs::read_to_string(&file).ok()?;
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let records = of_stream(&lines(whole), "fives");
        // After a kill some are written again.
        let numbers: BTreeSet<u64> = records.iter().map(|record| record.id_parts().3).collect();
        (numbers.len() >= expected.len()).then_some(records)
    });
    let status = gateway.status();
    assert_eq!(count(&status, "streams", "fives", "late"), 0);
    assert_eq!(
        count(&status, "streams", "fives", "accepted"),
        count(&status, "streams", "seconds", "results"),
    );
    gateway.wait_drained(secs(20));
    assert_eq!(gateway.stop().code, Some(0));

    repeated(&written);
    assert_contiguous(&written);
    let mut results = BTreeMap::new();
    for window in &written {
        let values = (window.int("different"), window.int("low"), window.int("high"));
        if let Some(before) = results.insert(window.micros("start"), values) {
            assert_eq!(before, values, "a window with two results");
        }
    }
    for (start, values) in &expected {
        assert_eq!(results.get(start), Some(values), "window {start}");
    }
    eprintln!("{} messages, {} windows", times.len(), expected.len());
}
