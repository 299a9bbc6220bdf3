//! Field case A55 (vector #23110, redpanda connect #2408: no limit at all, or none that fits a small
//! flash): what may wait for a sink is bounded, and each policy does what its name says, for its own
//! sink only. What is dropped is counted and told to the far side; where nothing may be dropped, a
//! feed waits.

use std::sync::Arc;

use crate::harness::broker::Broker;
use crate::harness::gate::Gate;
use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::mqtt::Client;
use crate::harness::records::{assert_complete, assert_told, first_arrivals, of_stream};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, secs};

/// A feed from one broker; a sink that is not there yet, with a bound of 50 records; and a sink that
/// always works.
fn config(scratch: &Scratch, source: u16, sink: u16, when_full: &str) -> String {
    let head = head(scratch);
    format!(
        "{head}
devices:
  - name: feed
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{source}\", topics: [ in ], points: [ {{ name: n, type: i64 }} ] }} }}
  - name: other
    driver: {{ generate: {{ every: 100ms, points: [ {{ name: m, value: {{ counter: {{}} }} }} ] }} }}
streams:
  - {{ name: rows, from: [feed], sql: 'SELECT n FROM feed', to: [ {{ sink: full }} ] }}
  - {{ name: others, from: [other], sql: 'SELECT m FROM other', to: [ {{ sink: out }} ] }}
sinks:
  - name: full
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{sink}\", backoff_min: 100ms, backoff_max: 500ms }} }}
    store: {{ max_records: 50, when_full: {when_full} }}
  - {{ name: out, driver: {{ stdout: {{}} }} }}
"
    )
}

/// Publishes 1 to 200 while the sink is away, then lets it come. Returns the numbers that arrived
/// and how many were counted as dropped.
fn with_policy(when_full: &str) -> (Vec<i64>, u64) {
    let scratch = Scratch::new(when_full);
    let source = Broker::start(&scratch, "");
    let far = Scratch::new("far");
    let mut sink = Broker::prepare(&far, "");
    // Nothing may reach the broker before its subscriber does.
    let gate = Arc::new(Gate::new(sink.port));
    let config = config(&scratch, source.port, gate.port, when_full);
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    let mut client = Client::connect(source.port, "near-side").expect("a broker");
    for n in 1..=200 {
        client.publish("in", format!("{{\"n\": {n}}}").as_bytes()).expect("a broker");
    }
    gateway.wait_status("the bound", secs(20), |status| {
        let waiting = count(status, "sinks", "full", "buffered_records");
        // A stream is held up once the bound is reached: the commit that reached it is whole.
        assert!(waiting <= 50 || when_full == "block", "{waiting} records wait");
        (waiting >= 50).then_some(())
    });
    // The other sink goes on.
    let before = count(&gateway.status(), "sinks", "out", "delivered");
    gateway.wait_status("the other sink", secs(10), |status| {
        (count(status, "sinks", "out", "delivered") >= before + 10).then_some(())
    });
    let stopped = gateway.stop();
    assert_eq!(stopped.code, Some(0));
    assert!(stopped.took <= secs(5), "it took {:?}", stopped.took);

    // The bound holds over a restart as well.
    let mut gateway = Gateway::start(&scratch, &config);
    sink.restart();
    let far_side = Subscriber::start(sink.port, "#", Some(gate));
    far_side.wait_subscribed();
    let newest = if when_full == "drop_newest" { 50 } else { 200 };
    far_side.wait_value("rows", "n", newest, secs(20));
    gateway.wait_drained(secs(20));
    let status = gateway.status();
    let dropped = part(&status["ledger"], "sinks", "full")["dropped"].clone();
    assert_eq!(gateway.stop().code, Some(0));
    let rows = of_stream(&far_side.records(), "rows");
    if when_full == "block" {
        assert_complete(&rows, "n", 1, 200);
    }
    let missing = assert_told(&far_side.records(), "rows");
    let told = missing.get("dropped").copied().unwrap_or(0);
    assert_eq!(told, dropped["bound"].as_u64().unwrap_or(0), "what is dropped is told");
    (first_arrivals(&rows, "n"), dropped["bound"].as_u64().unwrap_or(0))
}

#[test]
fn a55_drop_oldest_keeps_the_newest() {
    let (arrived, dropped) = with_policy("drop_oldest");
    assert_eq!(arrived, (151..=200).collect::<Vec<_>>());
    assert_eq!(dropped, 150);
}

#[test]
fn a55_drop_newest_keeps_the_oldest() {
    let (arrived, dropped) = with_policy("drop_newest");
    assert_eq!(arrived, (1..=50).collect::<Vec<_>>());
    assert_eq!(dropped, 150);
}

#[test]
fn a55_block_loses_nothing() {
    let (arrived, dropped) = with_policy("block");
    assert_eq!(arrived, (1..=200).collect::<Vec<_>>());
    assert_eq!(dropped, 0);
}
