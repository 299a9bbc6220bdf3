//! The first five minutes with Tidegate: `tidegate demo` runs with no configuration, shows windowed
//! results within ten seconds, and loses nothing while the cable is out.

use std::fs::File;
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;

use crate::harness::{Program, Scratch, command, secs, tidegate, wait_until};

#[test]
fn the_ledger_of_the_demo_is_even() {
    let scratch = Scratch::new("demo");
    let out = scratch.join("stdout");
    let mut command = command(tidegate());
    command.args(["demo", "--for", "14s", "--outage", "4s..8s", "--format", "json"]);
    command.stdin(Stdio::null()).stdout(File::create(&out).expect("a file"));
    let start = Instant::now();
    let mut demo = Program::start("tidegate demo", &mut command, &scratch.join("stderr"));
    let text = || std::fs::read_to_string(&out).expect("standard output");
    wait_until("the first windowed result", secs(10), || text().contains('\n'));
    let first = start.elapsed();
    assert!(first <= secs(10), "the first result came after {first:?}");
    let status = demo.wait(secs(60));
    assert_eq!(status.code(), Some(0), "{}", text());

    let text = text();
    let mut lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect();
    let ledger = lines.pop().expect("a last line")["ledger"].clone();
    assert_eq!(ledger["lost"], 0, "{ledger}");
    let served = ledger["served"].as_u64().expect("a number");
    // 14 s at four readings a second.
    assert!(served > 30, "{ledger}");
    assert_eq!(ledger["served"], ledger["delivered"], "{ledger}");
    assert!(ledger["duplicates"].is_u64(), "{ledger}");
    assert!(lines.len() >= 5, "{} windows", lines.len());
    // A full window of 2 s holds 8 readings of 250 ms, give or take one at its edges. The first
    // and the last one are not full.
    for window in &lines[1..lines.len() - 1] {
        let readings = window["readings"].as_i64().expect("a count");
        assert!((7..=9).contains(&readings), "{window}");
        let volts = window["u_l1"].as_f64().expect("a mean");
        assert!((226.9..=233.1).contains(&volts), "230 V ± 3 V: {window}");
    }
}

/// An outage that nobody would see is a mistake of who asked for it.
#[test]
fn an_outage_beyond_the_demo_is_refused() {
    let output = command(tidegate())
        .args(["demo", "--for", "5s", "--outage", "3s..6s"])
        .output()
        .expect("the demo");
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("--outage must end before the demo does"), "{told}");
}
