//! What is stored is nobody's secret from the one who owns it: it can be listed, checked, and taken
//! out as JSON lines or Arrow, beside a running gateway and without one. A store that somebody else
//! has is left alone.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::gateway::{Gateway, count, head};
use crate::harness::{Ended, Scratch, free_port, run, secs};

/// Rows that a history keeps, and records for a broker that is not there.
fn config(scratch: &Scratch, nobody: u16) -> String {
    let head = head(scratch);
    format!(
        "{head}
devices:
  - {{ name: s, history: 1h, driver: {{ generate: {{ every: 20ms, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }}
streams: [ {{ name: rows, from: [s], sql: SELECT n FROM s, to: [ {{ sink: cloud }}, {{ sink: out }} ] }} ]
sinks:
  - {{ name: cloud, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{nobody}\" }} }} }}
  - {{ name: out, driver: {{ stdout: {{}} }} }}
"
    )
}

fn store(scratch: &Scratch, arguments: &[&str]) -> Ended {
    let folder = scratch.join("store");
    let all = [&["store"], arguments, &["--store", folder.to_str().expect("a path")]].concat();
    run(&all, secs(20))
}

fn json(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    serde_json::from_str(&ended.stdout).expect("JSON")
}

fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let list = list.as_array().expect("a list");
    list.iter()
        .find(|item| item["name"] == name)
        .unwrap_or_else(|| panic!("no {name} in {list:#?}"))
}

/// The values of a column in JSON lines.
fn column(text: &str, name: &str) -> Vec<i64> {
    let value = |line: &str| {
        let row: Value = serde_json::from_str(line).expect("JSON");
        row[name].as_i64().unwrap_or_else(|| panic!("{name} in {line}"))
    };
    text.lines().map(value).collect()
}

/// Looks at everything; what it finds is the same beside a gateway and without one.
fn look(scratch: &Scratch, running: bool) {
    let listed = store(scratch, &["ls"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    assert!(listed.stdout.starts_with("TABLE") && listed.stdout.contains("cloud"), "{listed:?}");
    assert!(!listed.stdout.contains("unclaimed"), "{listed:?}");
    let contents = json(&store(scratch, &["ls", "--json"]));
    assert_eq!(contents["running"], running);
    let (table, sink) = (named(&contents["tables"], "s"), named(&contents["sinks"], "cloud"));
    assert!(table["end"].as_u64() >= Some(50), "{table}");
    assert!(sink["records"].as_u64() >= Some(50), "{sink}");
    assert_eq!(table["claimed"], if running { Value::Bool(true) } else { Value::Null });
    let inspected = store(scratch, &["inspect"]);
    assert!(inspected.stdout.contains("source/s/accepted"), "{inspected:?}");
    let stream = inspected.stdout.lines().find(|line| line.starts_with("rows ")).expect("a line");
    assert!(!stream.ends_with("unclaimed"), "{stream}");
    let verified = json(&store(scratch, &["verify", "--json"]));
    assert_eq!(verified["corrupt_records"], 0, "{verified}");
    assert!(verified["rows"].as_u64() >= Some(100), "{verified}");

    let rows = store(scratch, &["export", "--table", "s"]);
    assert_eq!(rows.code, Some(0), "{rows:?}");
    let n = column(&rows.stdout, "n");
    assert!(n.len() >= 50 && n.is_sorted(), "{} rows", n.len());
    let seq = column(&rows.stdout, "seq");
    assert!(seq.windows(2).all(|pair| pair[1] == pair[0] + 1), "{seq:?}");
    let records = store(scratch, &["export", "--sink", "cloud", "--format", "jsonl"]);
    let positions = column(&records.stdout, "position");
    assert!(positions.len() >= 50 && positions.windows(2).all(|p| p[1] == p[0] + 1));
    let first: Value =
        serde_json::from_str(records.stdout.lines().next().expect("one")).expect("JSON");
    let body: Value = serde_json::from_str(first["body"].as_str().expect("text")).expect("JSON");
    assert!(body["n"].is_i64() && first["stream"] == "rows", "{first}");

    let file = scratch.join("rows.arrows");
    let path = file.to_str().expect("a path");
    let arrow = store(scratch, &["export", "--table", "s", "--format", "arrow", "--out", path]);
    assert_eq!((arrow.code, &*arrow.stdout), (Some(0), ""), "{arrow:?}");
    let bytes = fs::read(&file).expect("a file");
    // An Arrow IPC stream: messages begin with a continuation marker, the last one is empty.
    assert_eq!(bytes[..4], [0xff; 4]);
    assert_eq!(bytes[bytes.len() - 8..], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    assert!(bytes.len() > 50 * 8, "{} bytes", bytes.len());

    let compacted = json(&store(scratch, &["compact", "--json"]));
    assert!(compacted["bytes_after"].as_u64() > Some(0), "{compacted}");
    assert!(compacted["bytes_after"].as_u64() <= compacted["bytes_before"].as_u64(), "{compacted}");
    let unknown = store(scratch, &["export", "--table", "t"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("no table `t`"), "{unknown:?}");
}

#[test]
fn beside_a_gateway_and_without_one() {
    let scratch = Scratch::new("look");
    let config = config(&scratch, free_port());
    let nothing = store(&scratch, &["ls"]);
    assert_eq!(nothing.code, Some(1), "{nothing:?}");
    assert!(nothing.stderr.contains("there is no store in"), "{nothing:?}");
    assert!(!scratch.join("store").exists(), "nothing is made by looking");

    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("a backlog", secs(20), |status| {
        (count(status, "sinks", "cloud", "buffered_records") >= 60).then_some(())
    });
    look(&scratch, true);
    // Without its socket the store is locked all the same.
    let socket = gateway.socket();
    let hidden = scratch.join("hidden");
    fs::rename(&socket, &hidden).expect("a socket");
    let locked = store(&scratch, &["ls"]);
    assert_eq!(locked.code, Some(75), "{locked:?}");
    assert!(locked.stderr.contains("another process uses this store"), "{locked:?}");
    fs::rename(&hidden, &socket).expect("a socket");
    assert_eq!(gateway.stop().code, Some(0));

    look(&scratch, false);
    // It was only looked at: the next start goes on where the last one was.
    let before = json(&store(&scratch, &["ls", "--json"]));
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    let after = gateway.status();
    assert_eq!(after["gateway"]["epoch"], before["epoch"]);
    assert_eq!(after["store"]["recovery"]["clean"], true, "{:#}", after["store"]);
    assert!(
        count(&after, "sinks", "cloud", "buffered_records")
            >= named(&before["sinks"], "cloud")["records"].as_u64().expect("a count")
    );
    assert_eq!(gateway.stop().code, Some(0));
}

#[test]
fn what_nobody_asks_for_is_told() {
    let scratch = Scratch::new("unclaimed");
    let config = config(&scratch, free_port());
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("a backlog", secs(20), |status| {
        (count(status, "sinks", "cloud", "buffered_records") >= 20).then_some(())
    });
    assert_eq!(gateway.stop().code, Some(0));
    let renamed = config.replace("cloud", "sky");
    let mut gateway = Gateway::start(&scratch, &renamed);
    gateway.wait_up();
    let unclaimed = gateway.status()["store"]["unclaimed"].clone();
    let sink = named(&unclaimed, "cloud");
    assert_eq!(sink["kind"], "sink");
    assert!(sink["records"].as_u64() >= Some(20) && sink["bytes"].as_u64() > Some(0), "{sink}");
    let listed = store(&scratch, &["ls"]);
    let line = listed.stdout.lines().find(|line| line.starts_with("cloud")).expect("a line");
    assert!(line.ends_with("unclaimed"), "{line}");
    assert!(listed.stdout.ends_with("tidegate store forget NAME\n"), "{listed:?}");

    // Only what the configuration has no more can be forgotten.
    let refused = store(&scratch, &["forget", "sky"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("sky is in the running configuration"), "{refused:?}");
    let forgotten = store(&scratch, &["forget", "cloud"]);
    assert_eq!(forgotten.code, Some(0), "{forgotten:?}");
    let records = sink["records"].as_u64().expect("a count");
    assert_eq!(forgotten.stdout, format!("{records} rows and records of cloud are forgotten\n"));
    assert_eq!(gateway.status()["store"]["unclaimed"], Value::Array(vec![]));
    assert!(!store(&scratch, &["ls"]).stdout.contains("cloud"));
    assert_eq!(gateway.stop().code, Some(0));

    // Without a gateway nobody says what is needed; and what was forgotten stays so.
    let contents = json(&store(&scratch, &["ls", "--json"]));
    assert_eq!(named(&contents["sinks"], "cloud")["records"], 0);
    assert!(named(&contents["sinks"], "sky")["records"].as_u64() > Some(0), "{contents:#}");
    assert_eq!(store(&scratch, &["forget", "sky"]).code, Some(0));
    assert_eq!(store(&scratch, &["forget", "s"]).code, Some(0));
    let contents = json(&store(&scratch, &["ls", "--json"]));
    assert_eq!(named(&contents["sinks"], "sky")["records"], 0);
    let table = named(&contents["tables"], "s");
    assert_eq!(table["start"], table["end"], "its positions go on");
    // P11: a store that was put back gives its records another epoch, above the one it had.
    let restored = store(&scratch, &["restored"]);
    assert_eq!(restored.code, Some(0), "{restored:?}");
    let epoch = json(&store(&scratch, &["ls", "--json"]))["epoch"].as_u64().expect("an epoch");
    assert!(epoch > contents["epoch"].as_u64().expect("an epoch"), "{epoch}");
    assert_eq!(restored.stdout, format!("records have epoch {epoch} from now on\n"));
    assert_eq!(store(&scratch, &["forget", "sea"]).code, Some(1));
    // A stream that is forgotten begins with number 1 when it comes again: under another epoch.
    assert_eq!(named(&contents["streams"], "rows")["claimed"], Value::Null);
    let forgotten = store(&scratch, &["forget", "--stream", "rows"]);
    assert_eq!(forgotten.code, Some(0), "{forgotten:?}");
    let contents = json(&store(&scratch, &["ls", "--json"]));
    assert_eq!(contents["streams"], Value::Array(vec![]));
    assert!(contents["epoch"].as_u64() > Some(epoch), "{contents:#}");
    let unknown = store(&scratch, &["forget", "--stream", "rows"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("the store knows no stream rows"), "{unknown:?}");
}

/// Which records wait for the sink: epoch and number of each.
fn ids(scratch: &Scratch) -> BTreeSet<(i64, i64)> {
    let records = store(scratch, &["export", "--sink", "cloud", "--format", "jsonl"]);
    assert_eq!(records.code, Some(0), "{records:?}");
    let (epochs, seqs) = (column(&records.stdout, "epoch"), column(&records.stdout, "seq"));
    epochs.into_iter().zip(seqs).collect()
}

fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().expect("cp");
    assert!(copied.success(), "{} to {}", from.display(), to.display());
}

/// P11: an older copy of the folder is put back and nobody says so. What is made now was made before, and
/// maybe delivered: it must not come under the same ids.
#[test]
fn p11_an_older_copy_that_is_put_back_gives_no_id_twice() {
    let scratch = Scratch::new("copied");
    let config = config(&scratch, free_port());
    let (folder, backup) = (scratch.join("store"), scratch.join("backup"));
    let run_until = |records| {
        let mut gateway = Gateway::start(&scratch, &config);
        gateway.wait_status("a backlog", secs(20), |status| {
            (count(status, "sinks", "cloud", "buffered_records") >= records).then_some(())
        });
        let status = gateway.status();
        assert_eq!(gateway.stop().code, Some(0));
        (status["gateway"]["epoch"].clone(), status["store"]["recovery"]["copied"].clone())
    };
    let (epoch, copied) = run_until(20);
    assert_eq!(copied, false);
    let kept = ids(&scratch);
    copy_folder(&folder, &backup);
    assert_eq!(run_until(kept.len() as u64 + 20), (epoch.clone(), Value::Bool(false)));
    let gone: BTreeSet<_> = ids(&scratch).difference(&kept).copied().collect();
    assert!(gone.len() >= 20, "{gone:?}");

    fs::remove_dir_all(&folder).expect("a folder");
    copy_folder(&backup, &folder);
    let (raised, copied) = run_until(kept.len() as u64 + 20);
    assert_eq!(copied, true);
    assert!(raised.as_u64() > epoch.as_u64(), "{raised}");
    let now = ids(&scratch);
    assert!(now.is_superset(&kept) && now.len() >= kept.len() + 20, "{now:?}");
    assert_eq!(now.intersection(&gone).count(), 0, "made twice under one id");
    // It is told once, and is the store from then on.
    assert_eq!(run_until(now.len() as u64 + 1), (raised, Value::Bool(false)));
}

/// A bit of a stored record flips. That it is lost is said by whoever looks: how many rows, by the exit
/// code, and by the gateway's alarm, before anything is read or delivered.
#[test]
fn f05_what_is_damaged_is_told_with_its_count() {
    let scratch = Scratch::new("rot");
    let config = config(&scratch, free_port());
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("a backlog", secs(20), |status| {
        (count(status, "sinks", "cloud", "buffered_records") >= 60).then_some(())
    });
    gateway.kill();
    let sound = json(&store(&scratch, &["verify", "--json"]));
    let records = store(&scratch, &["export", "--sink", "cloud"]);
    let whole = column(&records.stdout, "position").len();
    let file = scratch.join("store/store.ring");
    let mut ring = fs::read(&file).expect("a ring");
    let place = ring.windows(6).position(|bytes| bytes == b"\"n\":3}").expect("a record");
    ring[place + 2] ^= 1;
    fs::write(&file, ring).expect("a ring");

    let verified = store(&scratch, &["verify", "--json"]);
    assert_eq!(verified.code, Some(1), "{verified:?}");
    let told: Value = serde_json::from_str(&verified.stdout).expect("JSON");
    let lost = told["corrupt_rows"].as_u64().expect("a count");
    assert!(lost > 0, "{told}");
    assert_eq!(
        told["rows"].as_u64().expect("a count") + lost,
        sound["rows"].as_u64().expect("one")
    );
    let records = store(&scratch, &["export", "--sink", "cloud"]);
    assert_eq!(records.code, Some(1), "{records:?}");
    assert!(records.stderr.contains(&format!("{lost} rows of the store are lost")), "{records:?}");
    let left = column(&records.stdout, "position").len();
    assert_eq!(left as u64 + lost, whole as u64, "all of it was of that sink");

    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    let alarms = gateway.status()["alarms"].to_string();
    assert!(alarms.contains(&format!("{lost} stored rows are lost")), "{alarms}");
    assert_eq!(gateway.stop().code, Some(0));
}
