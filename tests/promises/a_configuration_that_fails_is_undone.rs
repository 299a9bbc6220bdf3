//! Faults F29 and F30: a bad configuration is pushed; the process is killed while one is applied.
//!
//! Here: what is wrong in itself is refused and touches nothing. What cuts the uplink is undone by
//! itself within a minute, and its reason is told to who asked and stands in status. A file that is
//! bad at the start is replaced by the last configuration that worked, and not being ready says so.
//! Killed at any moment, the file is the old one or the new one, and the gateway starts with it.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::a_change_touches_only_what_differs::{apply, outcome};
use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, ask, count, head, part};
use crate::harness::records::{assert_contiguous, of_stream, repeated};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, free_port, run, secs, setting, tidegate};

fn config(scratch: &Scratch, broker: u16, sql: &str) -> String {
    let head = head(scratch);
    format!(
        r#"{head}
devices: [ {{ name: made, driver: {{ generate: {{ every: 20ms, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }} ]
streams: [ {{ name: numbers, from: [made], sql: "{sql}", to: [ {{ sink: uplink }} ] }} ]
sinks: [ {{ name: uplink, driver: {{ mqtt: {{ url: "mqtt://127.0.0.1:{broker}", qos: 1 }} }} }} ]
"#
    )
}

fn delivered(gateway: &mut Gateway, more: u64) {
    let before = count(&gateway.status(), "sinks", "uplink", "delivered");
    gateway.wait_status("delivered records", secs(30), |status| {
        (count(status, "sinks", "uplink", "delivered") >= before + more).then_some(())
    });
}

#[test]
fn f29_what_is_wrong_is_refused_and_what_does_not_work_is_undone() {
    let scratch = Scratch::new("undone");
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "#", None);
    far_side.wait_subscribed();
    let good = config(&scratch, broker.port, "SELECT n FROM made");
    let mut gateway = Gateway::start(&scratch, &good);
    delivered(&mut gateway, 20);

    let invalid_sql = config(&scratch, broker.port, "SELECT nothing FROM made");
    let unknown_device = config(&scratch, broker.port, "SELECT n FROM ghost");
    for (bad, told) in [(&invalid_sql, "nothing"), (&unknown_device, "ghost")] {
        let ended = apply(&scratch, &gateway, bad);
        assert_eq!(ended.code, Some(78), "{}", ended.stderr);
        assert!(
            ended.stderr.contains(told) && ended.stderr.contains("new.yaml:"),
            "{}",
            ended.stderr
        );
        assert_eq!(gateway.status()["config"]["last_change"]["outcome"], "refused");
    }
    let elsewhere = good.replace("name: test ", "name: other ");
    let ended = apply(&scratch, &gateway, &elsewhere);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("gateway.name needs a restart"), "{}", ended.stderr);
    assert!(!gateway.log().contains("parts stopped"), "nothing was touched");

    // Nobody listens there.
    let cut = config(&scratch, free_port(), "SELECT n, n + 1 AS m FROM made");
    let began = Instant::now();
    let ended = apply(&scratch, &gateway, &cut);
    assert!(began.elapsed() <= secs(60), "{:?}", began.elapsed());
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("undone: sink uplink had a connection"), "{}", ended.stderr);
    let last = gateway.status()["config"]["last_change"].clone();
    assert_eq!(last["outcome"], "rolled_back");
    assert!(last["detail"].as_str().is_some_and(|d| d.contains("sink uplink")), "{last}");
    let text = fs::read_to_string(scratch.join("tidegate.yaml")).expect("the configuration");
    assert_eq!(text, good, "the file is the old one");
    delivered(&mut gateway, 20);
    gateway.wait_drained(secs(20));
    assert_eq!(gateway.stop().code, Some(0));
    let rows = of_stream(&far_side.records(), "numbers");
    assert_eq!(repeated(&rows), 0);
    assert_contiguous(&rows);
    let numbers: Vec<i64> = rows.iter().map(|row| row.int("n")).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
}

#[test]
fn a_bad_file_at_the_start_is_replaced_by_the_last_good_one() {
    let scratch = Scratch::new("good");
    let good = config(&scratch, free_port(), "SELECT n FROM made");
    let mut gateway = Gateway::start(&scratch, &good);
    gateway.wait_status("the configuration to be kept", secs(20), |_| {
        scratch.join("store/config/last-good.json").is_file().then_some(())
    });
    assert_eq!(gateway.stop().code, Some(0));

    // Wrong in its meaning, and no YAML at all: the store is found either way.
    for bad in [good.replace("from: [made]", "from: [ghost]"), good.clone() + "sinks: [ {\n"] {
        let mut gateway = Gateway::start(&scratch, &bad);
        gateway.wait_up();
        let status = gateway.status();
        assert_eq!(status["config"]["origin"], "last_good");
        assert_eq!(status["config_problems"][0]["severity"], "error");
        let (code, body) = ask(&gateway.socket(), "GET /readyz").expect("an answer");
        assert_eq!(code, 503);
        assert!(body.contains("the configuration was refused"), "{body}");

        let before = status["config"]["last_change"].clone();
        scratch.file("tidegate.yaml", &good);
        assert_eq!(outcome(&mut gateway, &before), "unchanged");
        assert_eq!(gateway.status()["config"]["origin"], "file");
        assert_eq!(ask(&gateway.socket(), "GET /readyz").expect("an answer").0, 200);
        assert_eq!(gateway.stop().code, Some(0));
    }

    // Another file knows nothing of it.
    let other = scratch.file("other.yaml", "version: 2\n");
    let ended = run(&["run", &other.display().to_string()], secs(20));
    assert_eq!(ended.code, Some(78), "{}", ended.stderr);
}

#[test]
fn f30_killed_while_a_configuration_is_applied() {
    let scratch = Scratch::new("killed");
    let port = free_port();
    let texts = ["SELECT n FROM made", "SELECT n, 2 * n AS twice FROM made"];
    let texts = texts.map(|sql| config(&scratch, port, sql));
    let path = scratch.file("tidegate.yaml", &texts[0]);
    let new = scratch.join("new.yaml");
    for round in 0..setting("TIDEGATE_APPLY_KILLS", 12) {
        let gateway = Gateway::start_at(&scratch, &path, &[]);
        let mut gateway = { gateway };
        gateway.wait_up();
        let running = fs::read_to_string(&path).expect("a configuration");
        let other = usize::from(running == texts[0]);
        fs::write(&new, &texts[other]).expect("a file");
        let mut asking = std::process::Command::new(tidegate());
        asking.arg("apply").arg(&new).arg("--socket").arg(gateway.socket());
        asking.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut asking = asking.spawn().expect("tidegate apply");
        std::thread::sleep(Duration::from_millis(round * 17 % 200));
        gateway.kill();
        asking.wait().expect("a child of ours");
        let left = fs::read_to_string(&path).expect("a configuration");
        assert!(texts.contains(&left), "round {round}: neither the old nor the new one: {left}");
    }
    let mut gateway = Gateway::start_at(&scratch, &path, &[]);
    gateway.wait_up();
    assert_eq!(gateway.status()["config"]["origin"], "file");
    assert_eq!(part(&gateway.status(), "streams", "numbers")["last_error"], Value::Null);
    assert_eq!(gateway.stop().code, Some(0));
}
