//! What the gateway says of all the rows it ever saw is true also when it was killed in between: each
//! hop adds up, and one hop's whole is what the hop before it let through. Numbers of sources go on
//! without a hole and without a second one.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::harness::gateway::{Gateway, head, part};
use crate::harness::records::{lines, of_stream};
use crate::harness::{Scratch, free_port, run, secs, setting};

/// Two sources that share a table, and two sinks, of which one drops.
fn config(scratch: &Scratch, nobody: u16) -> String {
    let (head, file) = (head(scratch), scratch.join("out.jsonl"));
    let file = file.display();
    let source = |name: &str, every: &str| {
        format!(
            "  - {{ name: {name}, table: t, driver: {{ generate: {{ every: {every}, rows: 3, points: [ {{ name: v, value: {{ constant: 1 }} }} ] }} }} }}"
        )
    };
    let (a, b) = (source("a", "10ms"), source("b", "7ms"));
    format!(
        "{head}
devices:
{a}
{b}
streams:
  - {{ name: rows, from: [t], sql: \"SELECT device, seq FROM t\", to: [ {{ sink: disk }}, {{ sink: nobody }} ] }}
sinks:
  - {{ name: disk, driver: {{ file: {{ path: {file} }} }} }}
  - {{ name: nobody, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{nobody}\" }} }}, store: {{ max_records: 100 }} }}
"
    )
}

fn number(hop: &Value, key: &str) -> u64 {
    hop[key].as_u64().unwrap_or_else(|| panic!("{key} of {hop}"))
}

fn sum(hop: &Value, key: &str) -> u64 {
    let map = hop[key].as_object().unwrap_or_else(|| panic!("{key} of {hop}"));
    map.values().map(|value| value.as_u64().expect("a count")).sum()
}

/// Each hop adds up, over the store's life and since the start.
fn assert_adds_up(status: &Value) {
    for ledger in [&status["ledger"], &status["ledger_since_start"]] {
        for hop in ledger["sources"].as_array().expect("hops") {
            assert_eq!(number(hop, "read"), number(hop, "accepted") + sum(hop, "refused"), "{hop}");
        }
        for hop in ledger["streams"].as_array().expect("hops") {
            let parts = ["windowed", "late", "future", "filtered", "failed", "dropped", "open"];
            let parts: u64 = parts.iter().map(|key| number(hop, key)).sum();
            assert_eq!(number(hop, "carried") + number(hop, "accepted"), parts, "{hop}");
        }
        for hop in ledger["sinks"].as_array().expect("hops") {
            let parts =
                number(hop, "delivered") + number(hop, "buffered") + number(hop, "rejected");
            let whole = number(hop, "carried") + number(hop, "results");
            assert_eq!(whole, parts + sum(hop, "dropped"), "{hop}");
        }
    }
}

#[test]
fn p01_each_hop_adds_up_after_each_kill() {
    let scratch = Scratch::new("ledger9");
    let config = config(&scratch, free_port());
    let mut accepted = 0;
    for round in 0..setting("TIDEGATE_TEST_LEDGER_KILLS", 6) {
        let mut gateway = Gateway::start(&scratch, &config);
        let before = gateway.wait_status("its ledger", secs(20), |status| {
            assert_adds_up(status);
            let hops = status["ledger"]["sources"].as_array()?;
            Some(hops.iter().map(|hop| number(hop, "accepted")).sum::<u64>())
        });
        assert!(before >= accepted, "round {round}: {accepted} were durable, now {before}");
        accepted = gateway.wait_status("more rows", secs(20), |status| {
            assert_adds_up(status);
            let hops = status["ledger"]["sources"].as_array()?;
            let now = hops.iter().map(|hop| number(hop, "accepted")).sum::<u64>();
            (now >= before + 200 + 37 * round).then_some(now)
        });
        gateway.kill();
    }

    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    assert_eq!(gateway.stop().code, Some(0));
    // Nothing moves any more: what one hop let through is the whole of the next one.
    let store = scratch.join("store");
    let store = store.to_str().expect("a path");
    let inspected = run(&["store", "inspect", "--json", "--store", store], secs(10));
    assert_eq!(inspected.code, Some(0), "{inspected:?}");
    let contents: Value = serde_json::from_str(&inspected.stdout).expect("JSON");
    let counter = |name: &str| contents["counters"][name].as_u64().unwrap_or(0);
    let accepted = counter("source/a/accepted") + counter("source/b/accepted");
    let table = &contents["tables"][0];
    assert_eq!(number(table, "end"), accepted, "the table's log has what its sources brought");
    let mut delivered = 0;
    for sink in contents["sinks"].as_array().expect("sinks") {
        let name = sink["name"].as_str().expect("a name");
        let results = counter(&format!("sink/{name}/results"));
        assert_eq!(results, accepted, "each row is a result: {sink}");
        let parts = number(sink, "records") + number(sink, "delivered") + number(sink, "rejected");
        assert_eq!(results, parts + sum(sink, "dropped"), "{sink}");
        delivered += if name == "disk" { number(sink, "delivered") } else { 0 };
    }

    // And so it is in the file: every number of each source, in order, from 0 on.
    let written = fs::read_to_string(scratch.join("out.jsonl")).expect("the file");
    let mut by_id = BTreeMap::new();
    for row in of_stream(&lines(&written), "rows") {
        by_id.insert(row.id_parts().3, (row.text_of("device").to_owned(), row.int("seq")));
    }
    let mut next: BTreeMap<String, i64> = BTreeMap::new();
    for (device, seq) in by_id.values() {
        let expected = next.entry(device.clone()).or_default();
        assert_eq!(seq, expected, "numbers of {device}");
        *expected += 1;
    }
    assert_eq!(by_id.len() as u64, delivered);
    eprintln!("{accepted} rows, by source: {next:?}");
}

#[test]
fn the_ledger_since_the_start_begins_anew() {
    let scratch = Scratch::new("since");
    let config = config(&scratch, free_port());
    let mut gateway = Gateway::start(&scratch, &config);
    let rows =
        |status: &Value, ledger: &str| number(part(&status[ledger], "sinks", "disk"), "results");
    gateway.wait_status("rows", secs(20), |status| (rows(status, "ledger") >= 300).then_some(()));
    assert_eq!(gateway.stop().code, Some(0));
    let mut gateway = Gateway::start(&scratch, &config);
    let (ever, since) = gateway.wait_status("rows again", secs(20), |status| {
        assert_adds_up(status);
        let (ever, since) = (rows(status, "ledger"), rows(status, "ledger_since_start"));
        (since >= 100).then_some((ever, since))
    });
    assert!(ever >= since + 300, "{ever} ever, {since} since the start");
    let status = gateway.status();
    assert_eq!(status["store"]["recovery"]["clean"], true);
    // Nothing but that one sink is away and holds few records.
    let alarms = status["alarms"].as_array().expect("a list");
    assert!(alarms.iter().all(|alarm| alarm["part"] == "sink nobody"), "{alarms:#?}");
    gateway.kill();
    let mut gateway = Gateway::start(&scratch, &config);
    let status = gateway.status();
    assert_eq!(status["store"]["recovery"]["clean"], false, "{:#}", status["store"]);
    assert_eq!(gateway.stop().code, Some(0));
}
