//! Field case A46 (thingsboard-gateway #2124): each time the configuration was pushed, also an equal
//! one, the store was destroyed and made anew. A67 (#1910): the file and what ran disagreed for ever.
//!
//! Here: an equal configuration touches nothing. Another one stops and starts the parts that differ:
//! the meter and the broker see no new connection, counters go on, streams go on with the number
//! that comes next, and nothing is lost or repeated. The file says what runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::broker::Broker;
use crate::harness::gate::Gate;
use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::meter::Meter;
use crate::harness::records::{self, assert_contiguous, of_stream, repeated};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Ended, Scratch, free_port, run, secs, wait_for, wait_until};

/// Has the gateway apply a text.
pub(crate) fn apply(scratch: &Scratch, gateway: &Gateway, config: &str) -> Ended {
    let file = scratch.file("new.yaml", config);
    let (file, socket) = (file.display().to_string(), gateway.socket().display().to_string());
    run(&["apply", &file, "--socket", &socket], secs(120))
}

/// Waits for an attempt other than `before` and returns its outcome.
pub(crate) fn outcome(gateway: &mut Gateway, before: &Value) -> String {
    gateway.wait_status("another attempt to change the configuration", secs(60), |status| {
        let last = &status["config"]["last_change"];
        (last != before).then(|| last["outcome"].as_str().expect("an outcome").to_owned())
    })
}

/// The plant: a meter, generated rows, an uplink and a file. `more` is added at the end.
fn config(head: &str, meter: u16, broker: u16, every: &str, more: &str) -> String {
    format!(
        r#"{head}
links: [ {{ name: plant, bus: {{ tcp: {{ host: 127.0.0.1, port: {meter} }} }} }} ]
sinks:
  - name: uplink
    driver: {{ mqtt: {{ url: "mqtt://127.0.0.1:{broker}", qos: 1 }} }}
  - name: audit
    driver: {{ file: {{ path: "{head_store}/audit.jsonl" }} }}
devices:
  - name: meter
    driver:
      modbus:
        link: plant
        polls: [ {{ name: fast, every: 50ms }} ]
        points: [ {{ name: u, register: holding, address: 0, type: u16 }} ]
  - name: made
    driver: {{ generate: {{ every: {every}, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }}
streams:
  - {{ name: readings, from: [meter], sql: "SELECT time, seq, u FROM meter", to: [ {{ sink: uplink }} ] }}
  - {{ name: numbers, from: [made], window: {{ tumbling: {{ size: 200ms }} }}, sql: "SELECT count(*) AS n, min(seq) AS first_seq, max(seq) AS last_seq FROM made", to: [ {{ sink: uplink }} ] }}
{more}"#,
        head_store = head.split("path: ").nth(1).and_then(|t| t.split(',').next()).expect("a path"),
    )
}

#[test]
fn a46_connections_counters_and_numbers_go_on() {
    let scratch = Scratch::new("differs");
    let (meter, broker) = (Meter::start(), Broker::start(&scratch, ""));
    let gate = Arc::new(Gate::new(broker.port));
    gate.open();
    let far_side = Subscriber::start(broker.port, "#", None);
    far_side.wait_subscribed();
    let head = head(&scratch);
    let old = config(&head, meter.port, gate.port, "20ms", "");
    let mut gateway = Gateway::start(&scratch, &old);
    gateway.wait_status("delivered readings", secs(30), |status| {
        (count(status, "sinks", "uplink", "delivered") >= 20).then_some(())
    });
    let (to_meter, to_broker) = (meter.connections(), gate.accepted());
    assert_eq!((to_meter, to_broker), (1, 1));

    // Equal: in a text of another form, and by a signal.
    let ended = apply(&scratch, &gateway, &format!("# the same\n{old}"));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.starts_with("unchanged:"), "{}", ended.stdout);
    let before = gateway.status()["config"]["last_change"].clone();
    gateway.signal(Signal::HUP);
    assert_eq!(outcome(&mut gateway, &before), "unchanged");
    assert!(!gateway.log().contains("parts stopped"), "{}", gateway.log());

    // Another rate of one device, one stream more, one sink with other bounds.
    let more = "  - { name: sums, from: [meter], window: { tumbling: { size: 200ms } }, \
                sql: 'SELECT sum(u) AS s, count(*) AS n FROM meter', to: [ { sink: audit } ] }\n";
    let new = config(&head, meter.port, gate.port, "30ms", more);
    let status = gateway.status();
    let polled = count(&status["ledger"], "sources", "meter", "read");
    let ended = apply(&scratch, &gateway, &new);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("started device made"), "{}", ended.stdout);
    assert!(ended.stdout.contains("started stream sums"), "{}", ended.stdout);
    for untouched in ["device meter", "link plant", "sink uplink", "sink audit", "table meter"] {
        assert!(!ended.stdout.contains(untouched), "{}", ended.stdout);
    }
    let running = fs::read_to_string(scratch.join("tidegate.yaml")).expect("the configuration");
    assert_eq!(running, new, "the file says what runs");

    let delivered = count(&gateway.status(), "sinks", "uplink", "delivered");
    gateway.wait_status("more delivered readings", secs(30), |status| {
        (count(status, "sinks", "uplink", "delivered") >= delivered + 40).then_some(())
    });
    wait_until("sums of sevens in the audit", secs(10), || {
        let text = fs::read_to_string(scratch.join("store/audit.jsonl")).unwrap_or_default();
        text.lines().count() >= 3
    });
    let status = gateway.status();
    assert!(count(&status["ledger"], "sources", "meter", "read") > polled, "it counts on");
    assert_eq!(part(&status, "links", "plant")["counters"]["connects"], 1);
    assert_eq!((meter.connections(), gate.accepted()), (1, 1), "nobody was connected anew");
    assert_eq!(status["config"]["origin"], "file");

    // And back again, which takes the stream away.
    let ended = apply(&scratch, &gateway, &old);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("stopped stream sums"), "{}", ended.stdout);
    assert_eq!((meter.connections(), gate.accepted()), (1, 1));
    assert_eq!(gateway.stop().code, Some(0));

    let records = far_side.records();
    for stream in ["readings", "numbers"] {
        let rows = of_stream(&records, stream);
        assert_eq!(repeated(&rows), 0, "{stream} came twice");
        assert_contiguous(&rows);
    }
    // Each polled row is in the results once: `seq` is counted at the source.
    let seqs: Vec<i64> = of_stream(&records, "readings").iter().map(|r| r.int("seq")).collect();
    assert!(seqs.windows(2).all(|pair| pair[1] == pair[0] + 1), "{seqs:?}");
    // The changed device went on with the number that comes next.
    let made = of_stream(&records, "numbers");
    for pair in made.windows(2) {
        assert_eq!(pair[1].int("first_seq"), pair[0].int("last_seq") + 1, "{pair:?}");
    }
}

/// A68 (thingsboard-gateway #1447): what was taken out for a while was wiped. A changed list of
/// points, too: rows that were stored with the old columns are computed with the new ones.
#[test]
fn a68_what_is_taken_out_and_put_back_goes_on_and_points_may_change() {
    let scratch = Scratch::new("points");
    let head = head(&scratch);
    let config = |points: &str, sql: &str, sinks: &str| {
        format!(
            "{head}
devices:
  - name: made
    driver: {{ generate: {{ every: 20ms, points: [ {points} ] }} }}
streams: [ {{ name: sums, from: [made], window: {{ tumbling: {{ size: 5s }} }}, sql: '{sql}', to: [ {{ sink: {sinks} }} ] }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }}, {{ name: other, driver: {{ file: {{ path: {path} }} }} }} ]
",
            path = scratch.join("other.jsonl").display()
        )
    };
    let counter = "{ name: n, value: { counter: {} } }";
    let first = config(counter, "SELECT count(*) AS n, max(seq) AS last FROM made", "out");
    let mut gateway = Gateway::start(&scratch, &first);
    let open = |gateway: &mut Gateway, least: u64| {
        gateway.wait_status("rows in open windows", secs(20), |status| {
            (count(status, "streams", "sums", "open_rows") >= least).then_some(())
        });
    };
    open(&mut gateway, 20);
    let second = config(
        &format!("{{ name: more, value: {{ constant: 2.5 }} }}, {counter}"),
        "SELECT count(*) AS n, count(more) AS more, max(seq) AS last FROM made",
        "out",
    );
    let ended = apply(&scratch, &gateway, &second);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let with_more = |gateway: &Gateway| {
        gateway.printed().into_iter().find(|record| record.body.get("more").is_some())
    };
    let window = wait_for("the window of both configurations", secs(20), || with_more(&gateway));
    // Rows from before the change count, and have no `more`.
    assert!(window.int("more") > 0 && window.int("more") < window.int("n"), "{window:?}");

    // The sink is taken out with what waits for it, and comes back.
    let third = config(counter, "SELECT count(*) AS n, max(seq) AS last FROM made", "other");
    let ended = apply(&scratch, &gateway, &third);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("started stream sums"), "{}", ended.stdout);
    open(&mut gateway, 20);
    assert_eq!(gateway.stop().code, Some(0));
    let status = gateway.log();
    assert!(!status.contains("panic"), "{status}");
}

/// A68, for a sink: what waits for it is not wiped when it is taken out, and is delivered when it is
/// put back.
#[test]
fn a68_what_waits_for_a_sink_that_is_taken_out_is_delivered_when_it_is_back() {
    let scratch = Scratch::new("waits");
    let head = head(&scratch);
    let audit = scratch.join("audit.jsonl");
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "#", None);
    far_side.wait_subscribed();
    let config = |to: &str, uplink: Option<u16>| {
        let uplink = uplink.map(|port| {
            format!("  - {{ name: uplink, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{port}\", qos: 1 }} }} }}\n")
        });
        format!(
            "{head}
devices: [ {{ name: made, driver: {{ generate: {{ every: 20ms, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }} ]
streams: [ {{ name: numbers, from: [made], sql: 'SELECT n FROM made', to: [ {{ sink: {to} }} ] }} ]
sinks:
  - {{ name: audit, driver: {{ file: {{ path: \"{audit}\" }} }} }}
{uplink}",
            audit = audit.display(),
            uplink = uplink.unwrap_or_default()
        )
    };
    // Nobody listens there.
    let dead = config("uplink", Some(free_port()));
    let mut gateway = Gateway::start(&scratch, &dead);
    gateway.wait_status("records that wait", secs(20), |status| {
        (count(status, "sinks", "uplink", "buffered_records") >= 30).then_some(())
    });
    let lines = || fs::read_to_string(&audit).unwrap_or_default().lines().count();
    for (config, shown) in
        [(config("audit", None), false), (config("uplink", Some(broker.port)), true)]
    {
        let ended = apply(&scratch, &gateway, &config);
        assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
        let status = gateway.status();
        let sinks = status["sinks"].as_array().expect("sinks");
        assert_eq!(sinks.iter().any(|sink| sink["name"] == "uplink"), shown);
        if !shown {
            wait_until("records in the audit", secs(20), || lines() >= 20);
        }
    }
    gateway.wait_status("delivered records", secs(20), |status| {
        (count(status, "sinks", "uplink", "delivered") >= 60).then_some(())
    });
    assert_eq!(gateway.stop().code, Some(0));
    // The numbers of both sinks together are all of them, each once.
    let text = fs::read_to_string(&audit).expect("the audit");
    let mut all = of_stream(&far_side.records(), "numbers");
    all.extend(records::lines(&text));
    let mut numbers: Vec<i64> = all.iter().map(|record| record.int("n")).collect();
    numbers.sort_unstable();
    let last = i64::try_from(numbers.len()).expect("few");
    assert_eq!(numbers, (0..last).collect::<Vec<i64>>());
}

/// A mounted ConfigMap is swapped by renaming a link to a folder; nobody sends a signal.
#[test]
fn a_file_that_was_written_anew_is_taken_by_itself() {
    let scratch = Scratch::new("swap");
    let folder = scratch.join("mounted");
    let write = |version: &str, every: &str| {
        fs::create_dir_all(folder.join(version)).expect("a folder");
        let head = head(&scratch);
        let text = format!(
            "{head}
devices: [ {{ name: made, driver: {{ generate: {{ every: {every}, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }} ]
"
        );
        fs::write(folder.join(version).join("tidegate.yaml"), text).expect("a file");
    };
    let swap = |version: &str| {
        symlink(version, folder.join("..tmp")).expect("a link");
        fs::rename(folder.join("..tmp"), folder.join("..data")).expect("a swap");
    };
    write("..1", "50ms");
    swap("..1");
    symlink(Path::new("..data/tidegate.yaml"), folder.join("tidegate.yaml")).expect("a link");
    let mut gateway = Gateway::start_at(&scratch, &folder.join("tidegate.yaml"), &[]);
    gateway.wait_up();
    let first = gateway.status()["config"].clone();
    assert_eq!(first["last_change"], Value::Null);
    write("..2", "60ms");
    swap("..2");
    assert_eq!(outcome(&mut gateway, &first["last_change"]), "applied");
    let second = gateway.status()["config"].clone();
    assert_eq!(second["last_change"]["by"], "file");
    assert_ne!(second["revision"], first["revision"]);
    // Text that is refused is shown, and what runs goes on.
    fs::create_dir_all(folder.join("..3")).expect("a folder");
    fs::write(folder.join("..3/tidegate.yaml"), "version: 1\ngateway: {").expect("a file");
    swap("..3");
    assert_eq!(outcome(&mut gateway, &second["last_change"]), "refused");
    let status = gateway.status();
    assert_eq!(status["config"]["revision"], second["revision"]);
    assert_ne!(status["config"]["file_revision"], Value::Null);
    assert_eq!(status["config_problems"][0]["severity"], "error");
    gateway.wait_up();
    swap("..2");
    let last = status["config"]["last_change"].clone();
    assert_eq!(outcome(&mut gateway, &last), "unchanged");
    assert_eq!(gateway.status()["config_problems"], serde_json::json!([]));
    assert_eq!(gateway.stop().code, Some(0));
}
