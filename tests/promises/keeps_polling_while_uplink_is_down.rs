//! Field case A47 (thingsboard-gateway #2132): the uplink was down for thirteen hours, the local
//! polling died with it, and stayed dead.
//!
//! Here: a frozen broker changes nothing southbound: rows come at the rate that is configured, none
//! is refused, and none waits.

use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::plant::Plant;
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, secs};

#[test]
fn a47_the_cadence_is_the_same() {
    let scratch = Scratch::new("cadence");
    let plant = Plant::start(&scratch);
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "#", None);
    far_side.wait_subscribed();
    let (head, port, uplink) = (head(&scratch), plant.port, broker.port);
    let mut gateway = Gateway::start(
        &scratch,
        &format!(
            r#"{head}
links: [ {{ name: plant, bus: {{ tcp: {{ host: 127.0.0.1, port: {port} }} }} }} ]
devices:
  - name: meter
    driver:
      modbus:
        link: plant
        polls: [ {{ name: fast, every: 100ms }} ]
        points: [ {{ name: counter, register: holding, address: 0, type: u32 }} ]
streams:
  - {{ name: readings, from: [meter], sql: "SELECT time, counter FROM meter", to: [ {{ sink: uplink }} ] }}
sinks:
  - name: uplink
    driver: {{ mqtt: {{ url: "mqtt://127.0.0.1:{uplink}", qos: 1, ack_timeout: 2s, backoff_max: 2s }} }}
"#
        ),
    );
    gateway.wait_status("ten delivered readings", secs(30), |status| {
        (count(status, "sinks", "uplink", "delivered") >= 10).then_some(())
    });
    broker.freeze();
    gateway.wait_status("the uplink to be down", secs(20), |status| {
        (part(status, "sinks", "uplink")["state"] == "down").then_some(())
    });

    let look = |status: &serde_json::Value| {
        let uptime = status["gateway"]["uptime_s"].as_f64().expect("an uptime");
        (uptime, count(&status["ledger"], "sources", "meter", "read"))
    };
    let (began, read_before) = look(&gateway.status());
    let (ended, read_after) = gateway.wait_status("eight seconds of outage", secs(20), |status| {
        let (uptime, read) = look(status);
        (uptime >= began + 8.0).then_some((uptime, read))
    });
    let rate = f64::from(u32::try_from(read_after - read_before).expect("few")) / (ended - began);
    // 100 ms between two polls: 10 rows a second, within 5 %.
    assert!((rate - 10.0).abs() <= 0.5, "{rate} rows a second");
    let status = gateway.status();
    let meter = part(&status["ledger"], "sources", "meter");
    assert_eq!(meter["refused"], serde_json::json!({}), "{meter:#}");
    assert_eq!(part(&status, "devices", "meter")["state"], "up");
    assert!(count(&status, "sinks", "uplink", "buffered_records") >= 70);

    broker.thaw();
    gateway.wait_drained(secs(20));
}
