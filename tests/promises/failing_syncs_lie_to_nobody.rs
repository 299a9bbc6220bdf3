//! Fault F7 and promise P5 in a running gateway: its syncs fail, once, twice, and until it is killed.
//!
//! It says so in its status, raises an alarm within 5 s while the error lasts, and never ends. What it told the broker is
//! accepted is there after a kill in the midst of it, whatever the disk said: QoS 1 in and out.

use std::time::{Duration, Instant};

use crate::harness::broker::Broker;
use crate::harness::calls::inject_into;
use crate::harness::gateway::{Gateway, head};
use crate::harness::mqtt::Client;
use crate::harness::records::{
    assert_complete, assert_contiguous_over_epochs, of_stream, repeated,
};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, say, secs, wait_until};

pub(crate) fn feed(scratch: &Scratch, broker: u16) -> String {
    let head = head(scratch);
    format!(
        "{head}
devices:
  - name: feed
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{broker}\", topics: [ in ], qos: 1, backoff_min: 50ms, backoff_max: 200ms, points: [ {{ name: n, type: i64 }} ] }} }}
streams:
  - {{ name: rows, from: [feed], sql: 'SELECT n FROM feed', to: [ {{ sink: uplink }} ] }}
sinks:
  - name: uplink
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{broker}\", topic: out, qos: 1, backoff_min: 50ms, backoff_max: 200ms }} }}
"
    )
}

/// Publishes a hundred numbers, one every 10 ms.
pub(crate) fn publish(client: &mut Client, from: i64) -> i64 {
    for n in from..from + 100 {
        client.publish("in", format!("{{\"n\": {n}}}").as_bytes()).expect("a broker");
        std::thread::sleep(Duration::from_millis(10));
    }
    from + 100
}

#[test]
fn f07_syncs_fail_for_a_while() {
    let scratch = Scratch::new("syncs");
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "out", None);
    far_side.wait_subscribed();
    let config = feed(&scratch, broker.port);
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    let mut client = Client::connect(broker.port, "near-side").expect("a broker");
    let mut next = publish(&mut client, 0);
    for what in ["error=EIO:when=1", "error=EIO:when=2..3", "error=EIO"] {
        let syncs = ["fdatasync", "fsync", "sync_file_range"];
        let injection = inject_into(&scratch, gateway.pid(), &syncs, what);
        let begun = Instant::now();
        next = publish(&mut client, next);
        assert!(gateway.runs(), "{what} ended the gateway:\n{}", gateway.log());
        let status = gateway.status();
        assert!(status["store"]["last_error"].is_string(), "{what}: {status:#}");
        if what == "error=EIO" {
            // As long as it lasts it is an alarm, which stands five seconds after the first at the latest.
            wait_until("an alarm about the store", secs(5).saturating_sub(begun.elapsed()), || {
                let status = gateway.status();
                let alarms = status["alarms"].as_array().expect("a list");
                alarms.iter().any(|alarm| alarm["part"] == "store")
            });
        }
        // Killed while the error lasts: whatever was acknowledged must be there.
        gateway.kill();
        drop(injection);
        gateway = Gateway::start(&scratch, &config);
        gateway.wait_up();
    }
    next = publish(&mut client, next);
    far_side.wait_value("rows", "n", next - 1, secs(30));
    gateway.wait_drained(secs(20));
    assert_eq!(gateway.stop().code, Some(0));
    let rows = of_stream(&far_side.records(), "rows");
    repeated(&rows);
    assert_complete(&rows, "n", 0, next - 1);
    // Killed while it delivered from memory, it gives no number of those ids again.
    assert_contiguous_over_epochs(&rows);
    say(format_args!("F7: {next} messages through failing syncs"));
}
