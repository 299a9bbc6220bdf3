//! Field cases A59 (eKuiper #2211: an event on the very edge of a window was dropped), A60 (the first
//! window began at the system's clock), A63 (old events: no window ever closed) and A65 (no way to
//! select a window's bounds), with A59's own events of the year 2018, sent as MQTT messages.
//!
//! Windows are `[start, end)` of event time, aligned to 1970, from the first one on; when the source
//! is silent, the clock closes the last one.

use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, count, head};
use crate::harness::mqtt::Client;
use crate::harness::records::{of_stream, repeated};
use crate::harness::{Scratch, secs, wait_for};

/// Time in milliseconds since 1970, value.
const EVENTS: [(i64, f64); 6] = [
    (1_541_152_486_000, 26.0),
    (1_541_152_487_000, 27.0),
    (1_541_152_488_000, 28.0),
    (1_541_152_488_500, 28.5),
    (1_541_152_489_000, 29.0),
    (1_541_152_489_500, 29.5),
];

fn config(scratch: &Scratch, port: u16) -> String {
    let head = head(scratch);
    format!(
        "{head}
devices:
  - name: feed
    driver:
      mqtt:
        url: \"mqtt://127.0.0.1:{port}\"
        topics: [ in ]
        decode: {{ json: {{ time: ts }} }}
        points: [ {{ name: v, type: f64 }} ]
streams:
  - name: windows
    from: [feed]
    window: {{ tumbling: {{ size: 1s }} }}
    idle_after: 1s
    sql: |
      SELECT window_start() AS from_time, window_end() AS to_time, count(*) AS n, sum(v) AS total,
             first(v) AS oldest, last(v) AS newest
      FROM feed
    to: [ {{ sink: out }} ]
  - name: none
    from: [feed]
    window: {{ tumbling: {{ size: 1s }} }}
    idle_after: 1s
    sql: SELECT count(*) AS n FROM feed WHERE v > 1000
    to: [ {{ sink: out }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
"
    )
}

#[test]
fn a59_a60_a63_a65_edges_of_old_events() {
    let scratch = Scratch::new("edges");
    let broker = Broker::start(&scratch, "");
    let port = broker.port;
    let mut gateway = Gateway::start(&scratch, &config(&scratch, port));
    gateway.wait_up();
    let mut client = Client::connect(port, "near-side").expect("a broker");
    for (ts, v) in EVENTS {
        let payload = format!("{{\"ts\": {ts}, \"v\": {v:?}}}");
        client.publish("in", payload.as_bytes()).expect("a broker that takes it");
    }
    let windows = wait_for("four windows", secs(20), || {
        let windows = of_stream(&gateway.printed(), "windows");
        (windows.len() >= 4).then_some(windows)
    });
    let start = 1_541_152_486_000_000;
    let second = 1_000_000;
    let got: Vec<_> = windows
        .iter()
        .map(|w| (w.micros("from_time"), w.micros("to_time"), w.int("n"), w.number("total")))
        .collect();
    let expected = [
        (start, start + second, 1, 26.0),
        (start + second, start + 2 * second, 1, 27.0),
        (start + 2 * second, start + 3 * second, 2, 56.5),
        (start + 3 * second, start + 4 * second, 2, 58.5),
    ];
    assert_eq!(got, expected);
    let edges = |column: &str| windows.iter().map(|w| w.number(column)).collect::<Vec<_>>();
    assert_eq!(edges("oldest"), [26.0, 27.0, 28.0, 29.0]);
    assert_eq!(edges("newest"), [26.0, 27.0, 28.5, 29.5]);
    // A filter that drops every row closes its windows all the same.
    let none = wait_for("windows without a row", secs(10), || {
        let none = of_stream(&gateway.printed(), "none");
        (none.len() >= 4).then_some(none)
    });
    assert!(none.iter().all(|window| window.int("n") == 0));
    let status = gateway.status();
    assert_eq!(count(&status, "streams", "windows", "late"), 0);
    assert_eq!(count(&status, "streams", "windows", "accepted"), 6);
    assert_eq!(gateway.stop().code, Some(0));
    assert_eq!(repeated(&gateway.printed()), 0);
}
