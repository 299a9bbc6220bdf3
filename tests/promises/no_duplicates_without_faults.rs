//! Field cases A48 (thingsboard-gateway #2099: records were fetched again before they had been
//! deleted, and sent twice with no fault anywhere) and A50 (telegraf #16500: after a restart the
//! whole file was sent again, delivered or not).
//!
//! Field case A58 (Redpanda Connect #2757: four rows waited for an output, and when it came back more
//! than four arrived).
//!
//! Here: with no fault, and with an orderly restart in between, nothing comes twice: neither a
//! record, nor a reading under two ids, nor a window.

use std::sync::Arc;

use crate::harness::broker::Broker;
use crate::harness::gate::Gate;
use crate::harness::gateway::{Gateway, count, head};
use crate::harness::plant::Plant;
use crate::harness::records::{assert_complete, assert_contiguous, of_stream, repeated};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, secs};

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
        polls: [ {{ name: fast, every: 100ms }} ]
        points: [ {{ name: counter, register: holding, address: 0, type: u32 }} ]
streams:
  - {{ name: readings, from: [meter], sql: "SELECT time, counter FROM meter", to: [ {{ sink: uplink }} ] }}
  - name: windows
    from: [meter]
    window: {{ tumbling: {{ size: 1s }} }}
    sql: SELECT window_start() AS start, count(*) AS n, min(counter) AS low, max(counter) AS high FROM meter
    to: [ {{ sink: uplink }} ]
sinks:
  - {{ name: uplink, driver: {{ mqtt: {{ url: "mqtt://127.0.0.1:{broker}", qos: 1 }} }} }}
"#
    )
}

#[test]
fn a58_four_records_that_waited_arrive_as_four() {
    let scratch = Scratch::new("four");
    let mut broker = Broker::prepare(&scratch, "");
    let gate = Arc::new(Gate::new(broker.port));
    let far_side = Subscriber::start(broker.port, "#", Some(Arc::clone(&gate)));
    let (head, uplink) = (head(&scratch), gate.port);
    let config = format!(
        r#"{head}
devices: [ {{ name: s, driver: {{ generate: {{ every: 10ms, count: 4, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }} ]
streams: [ {{ name: rows, from: [s], sql: SELECT n FROM s, to: [ {{ sink: uplink }} ] }} ]
sinks:
  - name: uplink
    driver: {{ mqtt: {{ url: "mqtt://127.0.0.1:{uplink}", qos: 1, backoff_min: 50ms, backoff_max: 200ms }} }}
"#
    );
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("four records to wait", secs(20), |status| {
        (count(status, "sinks", "uplink", "buffered_records") == 4).then_some(())
    });
    broker.restart();
    far_side.wait_subscribed();
    gateway.wait_drained(secs(20));
    // The store and the connection live on for a while, and end in order: nothing comes after all.
    assert_eq!(gateway.stop().code, Some(0));
    let rows = of_stream(&far_side.records(), "rows");
    let numbers: Vec<i64> = rows.iter().map(|row| row.int("n")).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
}

#[test]
fn a48_a50_nothing_comes_twice() {
    let scratch = Scratch::new("once");
    let mut plant = Plant::start(&scratch);
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "#", None);
    far_side.wait_subscribed();
    let config = config(&scratch, plant.port, broker.port);
    let arrived = |target: usize| far_side.look(|all| all.len() >= target).then_some(());

    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("a hundred records", secs(40), |_| arrived(100));
    assert_eq!(gateway.stop().code, Some(0));
    let between = far_side.look(<[_]>::len);
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("a hundred more", secs(40), |_| arrived(between + 100));
    let served = plant.freeze();
    far_side.wait_value("readings", "counter", served, secs(20));
    gateway.wait_drained(secs(20));
    assert_eq!(gateway.stop().code, Some(0));

    let log = gateway.log();
    let trouble: Vec<_> =
        log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
    assert!(trouble.is_empty(), "where there is no fault, none is logged: {trouble:#?}");
    assert!(!log.contains('\x1b'), "a file is no terminal: no colours in its log");

    let records = far_side.records();
    assert_eq!(repeated(&records), 0, "records that came again");
    let mut readings = of_stream(&records, "readings");
    // After the freeze the plant serves the last value again and again: those are other readings.
    readings.retain(|reading| reading.int("counter") < served);
    let total = i64::try_from(readings.len()).expect("small");
    assert_eq!(total, served - 1, "each reading under one id");
    assert_complete(&readings, "counter", 1, served - 1);
    assert_contiguous(&readings);
    let windows = of_stream(&records, "windows");
    assert_contiguous(&windows);
    let mut last = None;
    for window in &windows {
        let start = Some(window.micros("start"));
        assert!(start > last, "a window twice or out of order: {}", window.text);
        last = start;
    }
}
