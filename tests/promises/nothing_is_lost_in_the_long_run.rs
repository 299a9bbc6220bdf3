//! Field case A52 (telegraf #16314: after some 60,000 metrics through a disk buffer nothing was
//! flushed any more, not even after a restart): many records, a far side that comes and goes, and a
//! gateway that is killed now and then.
//!
//! What went in came out, or was dropped by a bound and counted: of the sink without a bound
//! everything, in order, and no more of it twice than a lost connection and a kill may cost; of the one
//! with a bound everything that it does not count as dropped. And of
//! a stream with windows each window once, with every row that the ledger says it had.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::broker::Broker;
use crate::harness::gate::Gate;
use crate::harness::gateway::{Gateway, head, part};
use crate::harness::mqtt::Client;
use crate::harness::records::{
    Record, again, again_max, assert_complete, assert_contiguous, repeated,
};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, say, secs, setting, soak};

/// Records that are handed to a sink at once.
const DELIVER_ROWS: u64 = 100;

fn config(scratch: &Scratch, source: u16, far: u16) -> String {
    let head = head(scratch);
    format!(
        "{head}
limits: {{ deliver_rows: {DELIVER_ROWS} }}
devices:
  - name: feed
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{source}\", topics: [ in ], qos: 1, backoff_min: 50ms, backoff_max: 200ms, points: [ {{ name: n, type: i64 }} ] }} }}
streams:
  - {{ name: rows, from: [feed], sql: 'SELECT n FROM feed', to: [ {{ sink: all }}, {{ sink: some }} ] }}
  - name: windows
    from: [feed]
    window: {{ tumbling: {{ size: 500ms }} }}
    event_time: arrival
    sql: SELECT window_start() AS start, count(*) AS c, count(DISTINCT n) AS d FROM feed
    to: [ {{ sink: windows }} ]
sinks:
  - name: windows
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{far}\", topic: windows, qos: 1, backoff_min: 50ms, backoff_max: 200ms }} }}
  - name: all
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{far}\", topic: all, qos: 1, backoff_min: 50ms, backoff_max: 200ms }} }}
    store: {{ max_bytes: 256MiB }}
  - name: some
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{far}\", topic: some, qos: 1, backoff_min: 50ms, backoff_max: 200ms }} }}
    store: {{ max_records: 1000, when_full: drop_oldest }}
"
    )
}

/// Publishes the numbers from 1 on, some 2,500 a second.
fn publish(port: u16, records: i64) {
    let mut client = Client::connect(port, "near-side").expect("a broker");
    for n in 1..=records {
        client.publish("in", format!("{{\"n\": {n}}}").as_bytes()).expect("a broker");
        if n % 50 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Closes and opens the gate and kills the gateway, at moments that follow from the seed, until it
/// is enough. Returns the gateway that runs at the end, and how often it was killed.
fn trouble(
    scratch: &Scratch,
    config: &str,
    gate: &Gate,
    mut gateway: Gateway,
    is_enough: impl Fn() -> bool,
) -> (Gateway, u32) {
    let seed = setting("TIDEGATE_TEST_SEED", u64::from(std::process::id()) * 7_919) | 1;
    eprintln!("TIDEGATE_TEST_SEED={seed}");
    let mut state = seed;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut kills = 0;
    let mut next_kill = Instant::now() + secs(2);
    while !is_enough() {
        gate.close();
        std::thread::sleep(Duration::from_millis(random(600)));
        gate.open();
        std::thread::sleep(Duration::from_millis(200 + random(1_500)));
        assert!(gateway.runs(), "the gateway has ended by itself:\n{}", gateway.log());
        if Instant::now() >= next_kill {
            gateway.kill();
            kills += 1;
            gateway = Gateway::start(scratch, config);
            next_kill = Instant::now() + Duration::from_millis(1_000 + random(3_000));
        }
    }
    (gateway, kills)
}

fn of_topic(records: &[Record], topic: &str) -> Vec<Record> {
    let mut records = records.to_vec();
    records.retain(|record| record.topic == topic && !record.is_gap());
    records
}

fn numbers(records: &[Record]) -> BTreeSet<u64> {
    records.iter().map(|record| record.id_parts().3).collect()
}

/// Each window has one result, by its id and by its start, and their counts are what the ledger says.
fn each_window_once(windows: &[Record], hop: &Value) {
    repeated(windows);
    assert_contiguous(windows);
    let results: BTreeMap<u64, &Record> =
        windows.iter().map(|record| (record.id_parts().3, record)).collect();
    let starts: BTreeSet<_> = results.values().map(|record| record.text_of("start")).collect();
    assert_eq!(starts.len(), results.len(), "a window with two results");
    let rows: i64 = results.values().map(|record| record.int("c")).sum();
    let ledger = |key: &str| hop[key].as_i64().unwrap_or_else(|| panic!("{key} of {hop}"));
    assert_eq!(rows, ledger("windowed"), "{hop}");
    let parts = ["windowed", "late", "failed", "dropped", "open"].map(ledger);
    assert_eq!(ledger("accepted"), parts.iter().sum::<i64>(), "{hop}");
    assert_eq!((ledger("failed"), ledger("dropped")), (0, 0), "{hop}");
}

#[test]
fn a52_in_is_out_and_counted_drops() {
    let records = setting("TIDEGATE_TEST_RECORDS", if soak() { 1_000_000 } else { 50_000 });
    let records = i64::try_from(records).expect("few");
    let scratch = Scratch::new("long");
    let source = Broker::start(&scratch, "");
    let far = Scratch::new("far");
    let broker = Broker::start(&far, "");
    let gate = Arc::new(Gate::new(broker.port));
    let far_side = Subscriber::start(broker.port, "#", Some(Arc::clone(&gate)));
    far_side.wait_subscribed();
    let config = config(&scratch, source.port, gate.port);
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();

    let begin = Instant::now();
    let (mut gateway, kills) = std::thread::scope(|scope| {
        let publisher = scope.spawn(|| publish(source.port, records));
        // This thread starts the gateways: they end with the thread that started them.
        let (gateway, kills) =
            trouble(&scratch, &config, &gate, gateway, || publisher.is_finished());
        publisher.join().expect("the publisher");
        (gateway, kills)
    });
    far_side.wait_value("rows", "n", records, secs(if soak() { 3_600 } else { 120 }));
    // It may have been killed a moment ago, and its windows not be built again yet.
    gateway.wait_status("all rows in the windows' ledger", secs(60), |status| {
        let accepted = &part(&status["ledger"], "streams", "windows")["accepted"];
        (accepted.as_i64() >= Some(records)).then_some(())
    });
    gateway.wait_drained(secs(60));
    let status = gateway.status();
    let took = begin.elapsed();
    assert_eq!(gateway.stop().code, Some(0));

    let arrived = far_side.records();
    let all = of_topic(&arrived, "all");
    let twice = repeated(&all);
    assert_complete(&all, "n", 1, records);
    assert_contiguous(&all);
    // A connection that is cut takes along what was in flight, which is no more than what was handed over.
    let (again, connections) = (again(&all), u64::from(gate.accepted()));
    assert!(again.iter().all(|again| *again <= again_max(DELIVER_ROWS)), "came again: {again:?}");
    let most = connections * DELIVER_ROWS + u64::from(kills) * again_max(DELIVER_ROWS);
    assert!(twice as u64 <= most, "{twice} of at most {most} came again: {again:?}");
    each_window_once(&of_topic(&arrived, "windows"), part(&status["ledger"], "streams", "windows"));
    let put_in = *numbers(&all).last().expect("records");

    let some = of_topic(&arrived, "some");
    repeated(&some);
    let out = numbers(&some).len() as u64;
    let dropped = part(&status["ledger"], "sinks", "some")["dropped"].clone();
    let dropped: u64 =
        dropped.as_object().expect("reasons").values().filter_map(Value::as_u64).sum();
    // A record that is dropped while it is under way may have arrived.
    let both = (out + dropped).checked_sub(put_in);
    say(format_args!(
        "A52: {put_in} in, {twice} twice, {kills} kills, {took:?}; bounded: {out} out and {dropped} dropped"
    ));
    let under_way = u64::from(gate.accepted()) * 200;
    assert!(
        both.is_some_and(|both| both <= under_way),
        "{put_in} in, {out} out, {dropped} dropped"
    );
    assert!(dropped > 0, "the bound was never reached");
}
