//! Field cases A40 (rumqttc #924: a message above 10 KiB became an endless loop of reconnects) and
//! A44 (eKuiper #3199: a broker that was started anew knew no subscription, and nobody renewed it);
//! and messages that are no JSON, or JSON of another shape.
//!
//! Here: large is fine up to a limit that can be set; what cannot be taken is counted, named and
//! passed over, and the next message arrives.

use std::fs;

use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, head, part};
use crate::harness::mqtt::Client;
use crate::harness::records::{Record, lines};
use crate::harness::{Scratch, secs, wait_for};

struct Feed {
    scratch: Scratch,
    broker: Broker,
    gateway: Gateway,
}

impl Feed {
    fn start() -> Self {
        let scratch = Scratch::new("feed");
        let broker = Broker::start(&scratch, "");
        let (head, port, file) = (head(&scratch), broker.port, scratch.join("out.jsonl"));
        let mut gateway = Gateway::start(
            &scratch,
            &format!(
                "{head}
devices:
  - name: feed
    driver:
      mqtt:
        url: \"mqtt://127.0.0.1:{port}\"
        topics: [ \"in/+\" ]
        max_packet: 64KiB
        backoff_min: 50ms
        backoff_max: 500ms
        points: [ {{ name: n, type: i64 }}, {{ name: label, type: string }} ]
streams: [ {{ name: rows, from: [feed], sql: \"SELECT n, label, topic FROM feed\", to: [ {{ sink: disk }} ] }} ]
sinks: [ {{ name: disk, driver: {{ file: {{ path: {} }} }} }} ]
",
                file.display()
            ),
        );
        gateway.wait_up();
        Self { scratch, broker, gateway }
    }

    fn publish(&self, payload: &str) {
        let mut client = Client::connect(self.broker.port, "near-side").expect("a broker");
        client.publish("in/a", payload.as_bytes()).expect("a broker that takes it");
    }

    fn label(&self, n: i64, length: usize) {
        self.publish(&format!("{{\"n\": {n}, \"label\": \"{}\"}}", "x".repeat(length)));
    }

    /// Waits for the record of a number.
    fn record(&self, n: i64) -> Record {
        wait_for(&format!("the record of {n}"), secs(20), || {
            let text = fs::read_to_string(self.scratch.join("out.jsonl")).unwrap_or_default();
            let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
            lines(whole).into_iter().find(|record| record.body["n"] == n)
        })
    }

    fn counter(&mut self, name: &str) -> u64 {
        let status = self.gateway.status();
        part(&status, "devices", "feed")["counters"][name].as_u64().unwrap_or(0)
    }
}

#[test]
fn a40_large_and_broken_messages_are_no_loop() {
    let mut feed = Feed::start();
    // Above the libraries' limit of 10 KiB, below ours.
    feed.label(1, 20_000);
    assert_eq!(feed.record(1).text_of("label").len(), 20_000);
    // Above ours: passed over and counted.
    feed.label(2, 100_000);
    feed.publish("not JSON");
    feed.publish("[ 1, 2 ]");
    feed.publish("{\"n\": \"a text\", \"label\": \"n is no number\"}");
    feed.label(3, 10);
    let record = feed.record(3);
    assert_eq!(record.text_of("topic"), "in/a");
    let rejected = feed.counter("rejected");
    assert!((3..=4).contains(&rejected), "{rejected} were passed over");
    // One new connection for the packet that is too large to be read at all, not a loop of them.
    let connects = feed.counter("connects");
    assert!(connects <= 2, "{connects} connections");
    // And it stays so.
    feed.label(4, 10);
    feed.record(4);
    assert!(feed.counter("connects") <= connects);
    assert_eq!(feed.gateway.stop().code, Some(0));
}

#[test]
fn a44_a_new_broker_is_subscribed_to_again() {
    let mut feed = Feed::start();
    feed.label(1, 10);
    feed.record(1);
    for round in 2..4 {
        feed.broker.kill();
        let kept = part(&feed.gateway.status(), "devices", "feed")["counters"]["connects"].clone();
        feed.broker.restart();
        feed.gateway.wait_status("the feed to be back", secs(20), |status| {
            let feed = part(status, "devices", "feed");
            (feed["state"] == "up" && feed["counters"]["connects"] != kept).then_some(())
        });
        feed.label(round, 10);
        feed.record(round);
    }
    assert_eq!(feed.gateway.stop().code, Some(0));
}
