//! What the gateway says of itself adds up: at each hop of the ledger the parts are the whole. And
//! the doors through which it says so are as open as they must be, and no more.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::harness::gateway::{Gateway, ask, count, head, part, talk};
use crate::harness::plant::Plant;
use crate::harness::{Scratch, free_port, run, secs};

fn config(scratch: &Scratch, plant: u16, web: u16) -> String {
    let (head, file) = (head(scratch), scratch.join("out.jsonl"));
    // The default, so that what is delivered waits a while for its commit.
    let head = head.replace("commit_every: 200ms", "commit_every: 1s");
    let head = head.replace("127.0.0.1:0", &format!("127.0.0.1:{web}"));
    let (nobody, file) = (free_port(), file.display());
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
  - name: source
    driver: {{ generate: {{ every: 50ms, rows: 3, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }}
streams:
  - {{ name: passed, from: [meter], sql: "SELECT time, counter FROM meter", to: [ {{ sink: disk }}, {{ sink: nobody }} ] }}
  - {{ name: even, from: [source], sql: "SELECT time, n FROM source WHERE n % 2 = 0", to: [ {{ sink: disk }} ] }}
  - name: windows
    from: [source]
    window: {{ tumbling: {{ size: 1s }} }}
    sql: SELECT window_start() AS start, count(*) AS n FROM source
    to: [ {{ sink: disk }} ]
sinks:
  - {{ name: disk, driver: {{ file: {{ path: {file} }} }} }}
  - name: nobody
    driver: {{ mqtt: {{ url: "mqtt://127.0.0.1:{nobody}" }} }}
    store: {{ max_records: 20, when_full: drop_oldest }}
"#
    )
}

fn sum(by_reason: &Value) -> u64 {
    let map = by_reason.as_object().unwrap_or_else(|| panic!("{by_reason} is not a mapping"));
    map.values().map(|value| value.as_u64().expect("a count")).sum()
}

fn assert_adds_up(ledger: &Value) {
    let hops = |name: &str| ledger[name].as_array().expect("a hop").clone();
    let n = |hop: &Value, key: &str| hop[key].as_u64().unwrap_or_else(|| panic!("{key} of {hop}"));
    for hop in hops("sources") {
        assert_eq!(n(&hop, "read"), n(&hop, "accepted") + sum(&hop["refused"]), "{hop}");
    }
    for hop in hops("streams") {
        let parts = n(&hop, "windowed") + n(&hop, "late") + n(&hop, "filtered") + n(&hop, "open");
        assert_eq!(n(&hop, "accepted"), parts, "{hop}");
    }
    for hop in hops("sinks") {
        let parts = n(&hop, "delivered") + n(&hop, "buffered") + n(&hop, "rejected");
        assert_eq!(n(&hop, "results"), parts + sum(&hop["dropped"]), "{hop}");
    }
}

/// What was once counted stays counted: the whole of each hop never becomes less.
fn assert_grows(ledger: &Value, newest: &mut BTreeMap<String, u64>) {
    let wholes = [("sources", "read"), ("streams", "accepted"), ("sinks", "results")];
    for (hops, whole) in wholes {
        for hop in ledger[hops].as_array().expect("a hop") {
            let name = ["device", "stream", "sink"].iter().find_map(|key| hop[key].as_str());
            let name = format!("{hops} {}", name.expect("a name"));
            let count = hop[whole].as_u64().expect("a count");
            let before = newest.insert(name, count).unwrap_or(0);
            assert!(count >= before, "{whole} was {before}, and now: {hop}");
        }
    }
}

/// In a new store, what a sink has delivered since the start is part of what was put into its outbox.
fn assert_holds_what_was_delivered(status: &Value) {
    for name in ["disk", "nobody"] {
        let delivered = count(status, "sinks", name, "delivered");
        let hop = part(&status["ledger"], "sinks", name);
        let results = hop["results"].as_u64().expect("a count");
        assert!(
            results >= delivered,
            "{delivered} of {name} are delivered, and the ledger says {hop}"
        );
    }
}

#[test]
fn every_hop_adds_up() {
    let scratch = Scratch::new("ledger");
    let plant = Plant::start(&scratch);
    let mut gateway = Gateway::start(&scratch, &config(&scratch, plant.port, free_port()));
    let newest = RefCell::new(BTreeMap::new());
    gateway.wait_status("three windows", secs(30), |status| {
        assert_adds_up(&status["ledger"]);
        assert_grows(&status["ledger"], &mut newest.borrow_mut());
        assert_holds_what_was_delivered(status);
        let windows = count(status, "streams", "windows", "results");
        let dropped = sum(&part(&status["ledger"], "sinks", "nobody")["dropped"]);
        (windows >= 3 && dropped >= 10).then_some(())
    });

    // The command prints what the socket says.
    let socket = gateway.socket();
    let socket = socket.to_str().expect("a path");
    let ended = run(&["status", "--socket", socket], secs(10));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let status: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_adds_up(&status["ledger"]);
    assert_eq!(status["gateway"]["name"], "test");
    for (section, name, state) in [
        ("links", "plant", "up"),
        ("devices", "meter", "up"),
        ("devices", "source", "up"),
        ("streams", "windows", "up"),
        ("sinks", "disk", "up"),
    ] {
        assert_eq!(part(&status, section, name)["state"], state, "{section} {name}");
    }
    let nobody = part(&status, "sinks", "nobody");
    assert_ne!(nobody["state"], "up", "{nobody:#}");
    assert_eq!(nobody["buffered_records"], 20, "{nobody:#}");
    // Half of the numbers pass the filter.
    let even = part(&status["ledger"], "streams", "even");
    let (passed, left_out) = (even["windowed"].as_u64(), even["filtered"].as_u64());
    let difference = passed.expect("a count").abs_diff(left_out.expect("a count"));
    assert!(difference <= 3, "{even:#}");
    assert_eq!(part(&status, "streams", "windows")["plans"], 1, "planned once");

    let healthy = run(&["healthcheck", "--socket", socket], secs(10));
    assert_eq!(healthy.code, Some(0), "{healthy:?}");
    assert_eq!(gateway.stop().code, Some(0));
    assert!(!gateway.socket().exists(), "the control socket is gone");
    let dead = run(&["status", "--socket", socket], secs(10));
    assert_eq!(dead.code, Some(1), "{dead:?}");
    assert!(dead.stderr.contains("no gateway answers"), "{dead:?}");
}

#[test]
fn doors_are_no_more_open_than_they_must_be() {
    let scratch = Scratch::new("doors");
    let plant = Plant::start(&scratch);
    let web = free_port();
    let mut gateway = Gateway::start(&scratch, &config(&scratch, plant.port, web));
    gateway.wait_up();
    let mode = std::fs::metadata(gateway.socket()).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");

    let http = |request: &str, host: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", web)).expect("the status page");
        talk(&mut stream, &format!("{request} HTTP/1.1\r\nHost: {host}")).expect("an answer")
    };
    let ours = format!("127.0.0.1:{web}");
    assert_eq!(http("GET /healthz", &ours).0, 200);
    let (ready, body) = http("GET /readyz", &ours);
    assert_eq!(ready, 200, "{body}");
    let (status, body) = http("GET /api/v1/status", &ours);
    assert_eq!(status, 200);
    let status: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(status["gateway"]["name"], "test");
    let (metrics, body) = http("GET /metrics", &ours);
    assert_eq!(metrics, 200);
    assert_metrics(&body);

    // A page of another origin (DNS rebinding), a method that changes, a path that is not there.
    let (foreign, _) = http("GET /api/v1/status", "plant.example");
    assert!((400..500).contains(&foreign), "a foreign Host: {foreign}");
    for path in ["/api/v1/status", "/healthz", "/api/v1/shutdown"] {
        let (refused, _) = http(&format!("POST {path}"), &ours);
        assert!((400..500).contains(&refused), "POST {path}: {refused}");
    }
    assert_eq!(http("GET /nothing", &ours).0, 404);
    assert!(gateway.runs());

    // The socket may end it, in order.
    let (taken, body) = ask(&gateway.socket(), "POST /api/v1/shutdown").expect("an answer");
    assert_eq!(taken, 202, "{body}");
    assert_eq!(gateway.wait(secs(10)), Some(0));
}

/// The text form of Prometheus: a type for each family, no sample twice.
fn assert_metrics(body: &str) {
    let mut samples = BTreeSet::new();
    let mut families = BTreeSet::new();
    for line in body.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            assert!(families.insert(family), "{family} twice");
        } else if !line.starts_with('#') {
            let (sample, value) = line.rsplit_once(' ').expect("a sample and its value");
            assert!(samples.insert(sample), "{sample} twice");
            value.parse::<f64>().unwrap_or_else(|_| panic!("the value in {line}"));
        }
    }
    assert!(samples.iter().all(|sample| sample.starts_with("tidegate_")), "{samples:?}");
    assert!(samples.iter().any(|sample| sample.contains("meter")), "{body}");
}
