//! `explain` shows every setting with its origin, and what it shows is the same document.

use std::collections::BTreeMap;

use tidegate_config::{explain, load, read_sources};

use crate::stand_in::{Fixed, source};

const TEXT: &str = "version: 1
gateway: { name: g, location: \"${SITE}\" }
links:
  - name: plc
    bus:
      tcp:
        host: ${HOST}
devices:
  - name: press
    driver:
      modbus:
        link: plc
        polls: [ { name: fast, every: 100ms } ]
        points:
          - { name: a, register: holding, address: 100, type: f32, scale: 0.1 }
          - { name: b, register: holding, address: 104 }
          - { name: c, register: coil, address: 7 }
streams:
  - name: s
    from: [press]
    window: { tumbling: { size: 10s } }
    event_time: arrival
    sql: |
      SELECT avg(a) AS a
      FROM press
    to: [ { sink: out } ]
sinks: [ { name: out, driver: { stdout: {} }, store: { ttl: 2d } } ]
";

fn environment() -> Fixed {
    Fixed {
        vars: BTreeMap::from([("HOST", "secret.host"), ("SITE", "secret hall")]),
        ..Fixed::default()
    }
}

#[test]
fn origins_requests_and_times_are_shown() {
    let loaded = load(&[source("t.yaml", TEXT)], &environment()).unwrap();
    let text = explain(&loaded);
    let lines: Vec<_> =
        text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "version: 1 # t.yaml:1",
        "location: \"${SITE}\" # t.yaml:2",
        "wait_for_clock: 10m # default",
        "shutdown_grace: 5s # default",
        "max_bytes: 512MiB # default",
        "host: ${HOST} # t.yaml:7",
        "port: 502 # default",
        "- name: a # t.yaml:15",
        "event_time: arrival # t.yaml:22",
        "sql: | # t.yaml:23",
        "max_age: 2d # t.yaml:27",
        "# plc: tcp, busy 4.0 % at 2 ms a request",
        "# press: 2 requests each 100 ms",
        "# holding 100 to 104 (5): a, b",
        "# coil 7: c",
        "# s: press in tumbling windows of 10s by the time of arrival, 0s late, idle after 5s",
    ] {
        assert!(lines.iter().any(|l| l == line), "no line `{line}` in\n{text}");
    }
    assert!(!text.contains("secret") && !text.contains("null"), "{text}");
}

#[test]
fn what_is_shown_loads_to_the_same_document() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../board-configs/examples");
    let mut texts = vec![TEXT.to_owned()];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "yaml") {
            texts.push(read_sources(&path).unwrap().remove(0).text);
        }
    }
    for text in texts {
        let loaded = load(&[source("t.yaml", &text)], &environment()).unwrap();
        let shown = explain(&loaded);
        match load(&[source("shown.yaml", &shown)], &environment()) {
            Ok(again) => assert_eq!(again.document, loaded.document),
            Err(problems) => panic!("{problems}\n{shown}"),
        }
    }
}
