//! Field case A55 (vector #23110, redpanda connect #2408: no limit at all, or none that fits a small
//! flash): what may wait for a sink is bounded, and each policy does what its name says, for its own
//! sink only. What is dropped is counted and told to the far side; where nothing may be dropped, a
//! feed waits.
//!
//! Field case A46 (thingsboard-gateway #2124: a changed configuration of the storage destroyed what was
//! stored): the same where a bound is lowered below what waits already.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::a_change_touches_only_what_differs::apply;
use crate::harness::broker::Broker;
use crate::harness::gate::Gate;
use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::mqtt::Client;
use crate::harness::records::{assert_complete, assert_told, first_arrivals, of_stream};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, free_port, secs};

/// A feed from one broker; a sink that is not there yet, with a bound such as `max_records: 50`, whose
/// records are of some 1,000 bytes; and a sink that always works.
fn config(scratch: &Scratch, source: u16, sink: u16, bound: &str, when_full: &str) -> String {
    let (head, pad) = (head(scratch), "x".repeat(1_000));
    format!(
        "{head}
devices:
  - name: feed
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{source}\", topics: [ in ], points: [ {{ name: n, type: i64 }} ] }} }}
  - name: other
    driver: {{ generate: {{ every: 100ms, points: [ {{ name: m, value: {{ counter: {{}} }} }} ] }} }}
streams:
  - {{ name: rows, from: [feed], sql: \"SELECT n, '{pad}' AS pad FROM feed\", to: [ {{ sink: full }} ] }}
  - {{ name: others, from: [other], sql: 'SELECT m FROM other', to: [ {{ sink: out }} ] }}
sinks:
  - name: full
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{sink}\", backoff_min: 100ms, backoff_max: 500ms }} }}
    store: {{ {bound}, when_full: {when_full} }}
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
    let config = config(&scratch, source.port, gate.port, "max_records: 50", when_full);
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

/// Records that wait for the sink when its bound is lowered.
const WAITING: i64 = 100;

/// A hundred records wait for a sink that is away, far below its bound, when the bound becomes a lower one.
struct Lowered {
    /// Both folders must live as long as what is in them.
    scratch: Scratch,
    far: Scratch,
    near: Client,
    sink: Broker,
    gate: Arc<Gate>,
    gateway: Gateway,
    source: Broker,
}

impl Lowered {
    fn to(bound: &str, when_full: &str) -> Self {
        let trial = Self::waiting(when_full);
        let lowered = trial.config(bound, when_full);
        let applied = apply(&trial.scratch, &trial.gateway, &lowered);
        assert_eq!(applied.code, Some(0), "{applied:?}");
        trial
    }

    fn config(&self, bound: &str, when_full: &str) -> String {
        config(&self.scratch, self.source.port, self.gate.port, bound, when_full)
    }

    /// The same before the bound is lowered.
    fn waiting(when_full: &str) -> Self {
        let (scratch, far) = (Scratch::new("lowered"), Scratch::new("far"));
        let (source, sink) = (Broker::start(&scratch, ""), Broker::prepare(&far, ""));
        let gate = Arc::new(Gate::new(sink.port));
        let bound = "max_bytes: 1MiB, max_records: 1000";
        let config = config(&scratch, source.port, gate.port, bound, when_full);
        let mut gateway = Gateway::start(&scratch, &config);
        gateway.wait_up();
        let near = Client::connect(source.port, "near-side").expect("a broker");
        let mut trial = Self { scratch, far, near, sink, gate, gateway, source };
        trial.publish(1, WAITING);
        trial.wait(|sink| sink["buffered_records"] == WAITING);
        trial
    }

    fn publish(&mut self, from: i64, to: i64) {
        for n in from..=to {
            self.near.publish("in", format!("{{\"n\": {n}}}").as_bytes()).expect("a broker");
        }
    }

    /// Waits for a state of the sink that is away.
    fn wait(&mut self, is_so: impl Fn(&Value) -> bool) -> Value {
        self.gateway.wait_status("a state of the outbox", secs(20), |status| {
            let sink = part(status, "sinks", "full");
            is_so(sink).then(|| sink.clone())
        })
    }

    /// Lets other records pass, so that whatever is to happen to these has had its time.
    fn let_others_pass(&mut self) {
        let before = count(&self.gateway.status(), "sinks", "out", "delivered");
        self.gateway.wait_status("the other sink", secs(10), |status| {
            (count(status, "sinks", "out", "delivered") >= before + 10).then_some(())
        });
    }

    /// Lets the sink come. Returns the numbers that arrived, and what the far side was told is missing.
    fn deliver(mut self, last: i64) -> (Vec<i64>, u64) {
        self.sink.restart();
        let far_side = Subscriber::start(self.sink.port, "#", Some(self.gate.clone()));
        far_side.wait_subscribed();
        far_side.wait_value("rows", "n", last, secs(20));
        self.gateway.wait_drained(secs(20));
        assert_eq!(self.gateway.stop().code, Some(0));
        drop(self.far);
        let records = far_side.records();
        let missing = assert_told(&records, "rows");
        let rows = first_arrivals(&of_stream(&records, "rows"), "n");
        (rows, missing.get("dropped").copied().unwrap_or(0))
    }
}

/// A68: a configuration that does not work, and is undone, has cost nothing of what the one before keeps.
#[test]
fn a46_a_lower_bound_that_is_undone_has_dropped_nothing() {
    let mut trial = Lowered::waiting("drop_oldest");
    let nobody = free_port();
    let lowered = trial.config("max_records: 20", "drop_oldest");
    let lowered = lowered.replace(
        &format!("127.0.0.1:{}\", topics", trial.source.port),
        &format!("127.0.0.1:{nobody}\", topics"),
    );
    let applied = apply(&trial.scratch, &trial.gateway, &lowered);
    assert_eq!(applied.code, Some(1), "{applied:?}");
    assert!(applied.stderr.contains("undone"), "{}", applied.stderr);
    trial.let_others_pass();
    let sink = trial.wait(|_| true);
    assert_eq!((&sink["buffered_records"], &sink["dropped"]), (&json!(WAITING), &json!({})));
    assert_eq!(trial.deliver(WAITING), ((1..=WAITING).collect(), 0));
}

#[test]
fn a46_a_lower_bound_drops_the_oldest_that_wait_beyond_it() {
    let mut trial = Lowered::to("max_records: 20", "drop_oldest");
    // At once, though nothing new comes.
    let sink = trial.wait(|sink| sink["buffered_records"] == 20);
    assert_eq!(sink["dropped"], json!({ "bound": 80 }));
    trial.publish(WAITING + 1, WAITING + 10);
    let sink = trial.wait(|sink| sink["dropped"] == json!({ "bound": 90 }));
    assert_eq!(sink["buffered_records"], 20);
    assert_eq!(trial.deliver(110), ((91..=110).collect(), 90));
}

#[test]
fn a46_a_lower_bound_in_bytes_drops_the_oldest_as_well() {
    let mut trial = Lowered::to("max_bytes: 64KiB", "drop_oldest");
    let sink = trial.wait(|sink| sink["buffered_bytes"].as_u64().is_some_and(|n| n <= 64 << 10));
    let left = sink["buffered_records"].as_i64().expect("a count");
    // A record has 1,000 bytes and fewer than 200 of names, numbers and its place in the outbox.
    assert!((65_536 / 1_200..=65_536 / 1_000).contains(&left), "{sink:#}");
    let dropped = WAITING - left;
    assert_eq!(sink["dropped"], json!({ "bound": dropped }));
    assert_eq!(trial.deliver(WAITING), ((dropped + 1..=WAITING).collect(), dropped.unsigned_abs()));
}

#[test]
fn a46_a_lower_bound_drops_nothing_that_blocks() {
    for bound in ["max_records: 20", "max_bytes: 64KiB"] {
        let mut trial = Lowered::to(bound, "block");
        trial.publish(WAITING + 1, WAITING + 10);
        trial.let_others_pass();
        // What comes waits outside, until there is room.
        let sink = trial.wait(|_| true);
        assert_eq!((&sink["buffered_records"], &sink["dropped"]), (&json!(WAITING), &json!({})));
        assert_eq!(trial.deliver(110), ((1..=110).collect(), 0), "{bound}");
    }
}

#[test]
fn a46_a_lower_bound_keeps_the_oldest_where_the_newest_go() {
    let mut trial = Lowered::to("max_records: 20", "drop_newest");
    trial.let_others_pass();
    let sink = trial.wait(|_| true);
    assert_eq!((&sink["buffered_records"], &sink["dropped"]), (&json!(WAITING), &json!({})));
    trial.publish(WAITING + 1, WAITING + 10);
    trial.wait(|sink| sink["dropped"] == json!({ "bound": 10 }));
    assert_eq!(trial.deliver(WAITING), ((1..=WAITING).collect(), 10));
}
