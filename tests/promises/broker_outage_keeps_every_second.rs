//! Field case A45 (thingsboard-gateway #2157): a device is polled every second, the link to the
//! broker dies without a word (a frozen broker takes bytes and says nothing), and the 10 to 20
//! seconds before the loss was noticed were gone, because sent counted as delivered.
//!
//! Here: a record leaves the store only on its PUBACK. Whether the broker is killed, or frozen and
//! killed later, each reading that the plant served arrives at least once, in order, and one that
//! arrives twice has the same id and the same content.

use std::sync::Arc;

use crate::harness::broker::Broker;
use crate::harness::gate::Gate;
use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::plant::Plant;
use crate::harness::records::{assert_complete, assert_contiguous, of_stream, repeated};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, secs, setting};

/// How the broker goes away.
#[derive(Clone, Copy, PartialEq)]
enum Outage {
    Killed,
    Frozen,
}

fn config(scratch: &Scratch, plant: u16, broker: u16) -> String {
    let head = head(scratch);
    format!(
        r#"{head}
links: [ {{ name: plant, bus: {{ tcp: {{ host: 127.0.0.1, port: {plant} }} }} }} ]
devices:
  - name: meter
    driver:
      modbus:
        link: plant
        polls: [ {{ name: fast, every: 1s }} ]
        points:
          - {{ name: counter, register: holding, address: 0, type: u32 }}
          - {{ name: ramp, register: holding, address: 2, type: f32 }}
streams:
  - name: readings
    from: [meter]
    sql: SELECT time, counter, ramp FROM meter
    to: [ {{ sink: uplink }} ]
sinks:
  - name: uplink
    driver:
      mqtt: {{ url: "mqtt://127.0.0.1:{broker}", topic: "plant/{{stream}}", qos: 1, ack_timeout: 5s, backoff_min: 200ms, backoff_max: 2s }}
"#
    )
}

fn every_second_arrives(outage: Outage) {
    let seconds = setting("TIDEGATE_TEST_OUTAGE_S", 40);
    let scratch = Scratch::new("outage");
    let mut plant = Plant::start(&scratch);
    let mut broker = Broker::start(&scratch, "");
    let gate = Arc::new(Gate::new(broker.port));
    let far_side = Subscriber::start(broker.port, "plant/#", Some(Arc::clone(&gate)));
    far_side.wait_subscribed();
    let mut gateway = Gateway::start(&scratch, &config(&scratch, plant.port, gate.port));
    gateway.wait_status("three delivered readings", secs(30), |status| {
        (count(status, "sinks", "uplink", "delivered") >= 3).then_some(())
    });

    match outage {
        Outage::Killed => broker.kill(),
        Outage::Frozen => broker.freeze(),
    }
    // The plant is read as if nothing had happened: one row a second, for the whole outage.
    let before = count(&gateway.status()["ledger"], "sources", "meter", "read");
    gateway.wait_status("a reading for each second", secs(seconds + 3), |status| {
        let read = count(&status["ledger"], "sources", "meter", "read");
        (read >= before + seconds).then_some(())
    });
    let status = gateway.status();
    let uplink = part(&status, "sinks", "uplink");
    assert_ne!(uplink["state"], "up", "{uplink:#}");
    assert!(uplink["last_error"].is_string(), "{uplink:#}");
    assert!(count(&status, "sinks", "uplink", "buffered_records") >= seconds - 2, "{uplink:#}");

    if outage == Outage::Frozen {
        broker.kill();
    }
    far_side.wait_lost();
    assert!(!gate.is_open());
    broker.restart();
    far_side.wait_subscribed();

    let served = plant.freeze();
    far_side.wait_value("readings", "counter", served, secs(30));
    gateway.wait_drained(secs(20));
    let stopped = gateway.stop();
    assert_eq!(stopped.code, Some(0));

    let readings = of_stream(&far_side.records(), "readings");
    assert!(served >= i64::try_from(seconds).expect("small"), "the plant served {served}");
    assert_complete(&readings, "counter", 1, served);
    assert_contiguous(&readings);
    let repeated = repeated(&readings);
    // What was under way when the broker went: at most the in-flight window, here a few seconds.
    assert!(repeated <= 100, "{repeated} records came again");
    for reading in &readings {
        // The plant's ramp is 10 + counter / 2, packed by Python.
        let expected = 10.0 + reading.number("counter") / 2.0;
        assert!((reading.number("ramp") - expected).abs() < 1e-9, "{}", reading.text);
    }
}

#[test]
fn a45_broker_killed() {
    every_second_arrives(Outage::Killed);
}

#[test]
fn a45_broker_frozen_then_killed() {
    every_second_arrives(Outage::Frozen);
}
