//! Fault F6 and promise P4: not a byte is free on a disk of 16 MiB, or of 4 MiB in memory, the far side is
//! away, and more comes every second than the disk could hold.
//!
//! The gateway stays, answers at once, and says that it is short of room where it loses anything. What
//! somebody wants to be rid of can be dropped: dead letters, and what is kept for a sink that is in the
//! configuration no more. When the far side is back, the backlog is delivered and new records follow by
//! themselves, while nobody has freed a byte, in order, and the ledger adds up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::broker::Broker;
use crate::harness::disk::Disk;
use crate::harness::gate::Gate;
use crate::harness::gateway::{Gateway, ask, count, head, part};
use crate::harness::records::{of_stream, repeated};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Ended, Scratch, free_port, run, say, secs, soak, wait_until};

/// Records that are refused after each start.
const REFUSED: u64 = 100;

/// 1,000 records of about 2 kB a second for `far`, and [`REFUSED`] that are larger than what the sink
/// beside it may send to `near`. On a small disk the ring is shorter than what is asked for.
fn config(scratch: &Scratch, ring: &str, far: u16, near: u16) -> String {
    let (pad, large) = ("tide".repeat(500), "gate".repeat(100));
    let head = head(scratch).replace("commit_every", &format!("ring: {ring}, commit_every"));
    format!(
        "{head}
devices:
  - name: source
    driver:
      generate:
        every: 50ms
        rows: 50
        points: [ {{ name: n, value: {{ counter: {{}} }} }}, {{ name: pad, value: {{ choice: [ {pad} ] }} }} ]
  - name: odd
    driver: {{ generate: {{ every: 50ms, rows: 10, count: {REFUSED}, points: [ {{ name: pad, value: {{ choice: [ {large} ] }} }} ] }} }}
streams:
  - {{ name: rows, from: [source], sql: 'SELECT time, n, pad FROM source', to: [ {{ sink: uplink }} ] }}
  - {{ name: odd_rows, from: [odd], sql: 'SELECT pad FROM odd', to: [ {{ sink: picky }} ] }}
  - name: windows
    from: [source]
    window: {{ tumbling: {{ size: 1s }} }}
    sql: SELECT count(*) AS c, max(n) AS high FROM source
    to: [ {{ sink: uplink }} ]
sinks:
  - name: uplink
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{far}\", qos: 1, backoff_min: 100ms, backoff_max: 500ms }} }}
    store: {{ max_bytes: 256MiB }}
  - name: picky
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{near}\", max_packet: 256B }} }}
"
    )
}

/// The same with one more sink for the rows, at which nobody listens.
fn with_gone(config: &str) -> String {
    let port = free_port();
    let config =
        config.replacen("to: [ { sink: uplink } ]", "to: [ { sink: uplink }, { sink: gone } ]", 1);
    format!(
        "{config}  - {{ name: gone, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{port}\" }} }} }}\n"
    )
}

/// Asks something of the store, beside a gateway or without one.
fn store(scratch: &Scratch, words: &[&str]) -> Ended {
    let folder = scratch.join("store");
    run(&[words, &["--store", folder.to_str().expect("a path")]].concat(), secs(20))
}

/// What the store holds.
fn contents(scratch: &Scratch) -> Value {
    let listed = store(scratch, &["store", "ls", "--json"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    serde_json::from_str(&listed.stdout).expect("JSON")
}

fn sum(reasons: &Value) -> u64 {
    reasons.as_object().expect("reasons").values().filter_map(Value::as_u64).sum()
}

/// Waits until each record of the sink that takes none is a dead letter.
fn wait_refused(gateway: &mut Gateway, letters: u64) {
    gateway.wait_status("all large records to be refused", secs(20), |status| {
        (count(status, "sinks", "picky", "letters") == letters).then_some(())
    });
}

/// Fills the disk under a gateway that is killed then. On the full disk it is started with one sink less,
/// and what was kept for that is dropped; returns how many records that were, too.
fn started_on_a_full_disk(scratch: &Scratch, disk: &Disk, config: &str) -> (Gateway, u64) {
    let mut gateway = Gateway::start(scratch, &with_gone(config));
    wait_refused(&mut gateway, REFUSED);
    gateway.wait_status("two shelves full of records", secs(30), |status| {
        (count(status, "sinks", "gone", "buffered_records") >= 1_500).then_some(())
    });
    gateway.kill();
    disk.fill(0);
    // Looking at it takes no room.
    let kept = count(&contents(scratch), "sinks", "gone", "records");
    assert!(kept >= 1_500, "{kept}");

    let mut gateway = Gateway::start(scratch, config);
    gateway.status();
    let free = disk.free();
    let told = store(scratch, &["store", "forget", "gone"]);
    assert_eq!(told.code, Some(0), "{told:?}\n{}", gateway.log());
    let forgotten = told.stdout.strip_suffix(" rows and records of gone are forgotten\n");
    let forgotten: u64 = forgotten.and_then(|n| n.parse().ok()).expect("how many");
    let unclaimed = gateway.status()["store"]["unclaimed"].clone();
    assert_eq!(unclaimed, json!([]), "nothing is left of it");
    // What nobody asks for gives way first on a full disk: some of it may have gone a moment before.
    assert!(forgotten > 0 && forgotten <= kept, "{forgotten} of {kept}");
    say(format_args!("F6: {forgotten} of {kept} records forgotten with {free} bytes free"));
    gateway.wait_up();
    disk.fill(0);
    (gateway, kept)
}

/// Drops all dead letters while not a byte is free.
fn drop_letters(scratch: &Scratch, disk: &Disk, gateway: &mut Gateway, letters: u64) {
    disk.fill(0);
    wait_refused(gateway, letters);
    let free = disk.free();
    let told = store(scratch, &["rejected", "drop", "picky", "--all"]);
    assert_eq!(told.code, Some(0), "{told:?}\n{}", gateway.log());
    assert_eq!(told.stdout, format!("{letters} refused records of picky dropped\n"));
    let read = |status: &Value| count(&status["ledger"], "sources", "source", "read");
    let before = read(&gateway.status());
    gateway.wait_status("no letters, and another second of readings", secs(20), |status| {
        let letters = count(status, "sinks", "picky", "letters");
        (letters == 0 && read(status) >= before + 1_000).then_some(())
    });
    say(format_args!("F6: {letters} dead letters dropped with {free} bytes free"));
}

/// Where it loses anything it says why, and nothing is lost for another reason.
fn assert_says_why(status: &Value) {
    let source = part(&status["ledger"], "sources", "source");
    let told = !status["store"]["last_error"].is_null() || !status["store"]["stalled"].is_null();
    assert!(
        source["refused"] == json!({}) || told,
        "it loses rows and does not say why: {status:#}"
    );
    let dropped = &part(&status["ledger"], "sinks", "uplink")["dropped"];
    assert_eq!(dropped["bound"], Value::Null, "256 MiB are no bound here: {dropped}");
}

/// Fills the disk under a gateway, which may be killed then and started anew, and lets the far side
/// come after a while.
fn not_a_byte_is_free(disk: fn(&Scratch) -> Option<Disk>, ring: &str, is_killed: bool) {
    let scratch = Scratch::new("full");
    let Some(disk) = disk(&scratch) else { return };
    disk.take_store(&scratch);
    let (far, near) = (Scratch::new("far"), Scratch::new("near"));
    let mut broker = Broker::prepare(&far, "");
    let near = Broker::start(&near, "");
    let gate = Arc::new(Gate::new(broker.port));
    let config = config(&scratch, ring, gate.port, near.port);
    let (mut gateway, gone) = if is_killed {
        started_on_a_full_disk(&scratch, &disk, &config)
    } else {
        let mut gateway = Gateway::start(&scratch, &config);
        gateway.wait_up();
        wait_refused(&mut gateway, REFUSED);
        disk.fill(0);
        (gateway, 0)
    };

    let slowest = watch(&mut gateway);
    assert!(slowest < secs(2), "an answer took {slowest:?}");
    let status = gateway.status();
    assert_says_why(&status);
    say(format_args!(
        "F6: {} read, {} records wait, slowest answer {slowest:?}, {} bytes free",
        count(&status["ledger"], "sources", "source", "read"),
        count(&status, "sinks", "uplink", "buffered_records"),
        disk.free()
    ));
    drop_letters(&scratch, &disk, &mut gateway, if is_killed { 2 * REFUSED } else { REFUSED });

    broker.restart();
    let far_side = Subscriber::start(broker.port, "#", Some(gate));
    far_side.wait_subscribed();
    let now = i64::try_from(count(&gateway.status()["ledger"], "sources", "source", "read"));
    let now = now.expect("few");
    wait_until("what was read since the far side is back", secs(60), || {
        assert!(gateway.runs(), "the gateway has ended:\n{}", gateway.log());
        far_side.look(|all| {
            all.iter().rev().any(|record| record.body["n"].as_i64().is_some_and(|n| n >= now))
        })
    });
    gateway.wait_status("next to nothing to wait", secs(30), |status| {
        (count(status, "sinks", "uplink", "buffered_records") < 2_000).then_some(())
    });
    // Delivery has freed room, without a restart.
    gateway.wait_status("the store to write again", secs(60), |status| {
        status["store"]["stalled"].is_null().then_some(())
    });
    let status = gateway.status();
    for sink in ["uplink", "picky"] {
        assert_adds_up(part(&status["ledger"], "sinks", sink));
    }
    assert_eq!(gateway.stop().code, Some(0));
    let kept = contents(&scratch);
    assert_eq!(count(&kept, "sinks", "picky", "letters"), 0);
    if is_killed {
        let gone_now = part(&kept, "sinks", "gone");
        assert_eq!(gone_now["records"], 0);
        assert_eq!(sum(&gone_now["dropped"]), gone, "each is counted once: {gone_now}");
    }
    assert_in_order(&far_side);
}

/// What has arrived is in order, and came once.
fn assert_in_order(far_side: &Subscriber) {
    let mut arrived = far_side.records();
    arrived.retain(|record| !record.is_gap());
    let rows = of_stream(&arrived, "rows");
    repeated(&rows);
    let mut newest = 0;
    for row in &rows {
        let (.., seq) = row.id_parts();
        assert!(seq > newest, "record {seq} after {newest}: in order, and once without a fault");
        newest = seq;
    }
}

/// Asks for health and status all the time, and returns how long the slowest answer took. What a look sees
/// dropped for want of room is an alarm in each that follows, and nothing else is.
fn watch(gateway: &mut Gateway) -> Duration {
    let begin = Instant::now();
    let (mut slowest, mut short, mut shown) = (secs(0), false, false);
    while begin.elapsed() < secs(if soak() { 120 } else { 15 }) {
        assert!(gateway.runs(), "the gateway has ended:\n{}", gateway.log());
        let asked = Instant::now();
        let (code, _) = ask(&gateway.socket(), "GET /healthz").expect("an answer");
        assert_eq!(code, 200);
        let status = gateway.status();
        slowest = slowest.max(asked.elapsed());
        let dropped = &part(&status["ledger"], "sinks", "uplink")["dropped"];
        let told = status["alarms"].to_string().contains("the disk has no room");
        assert!(told || !short, "{dropped}: {}", status["alarms"]);
        short = dropped["disk_full"].is_u64();
        // The alarm may come before the count, which is shown once it is durable.
        shown |= told;
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(short || !shown, "an alarm and nothing that was dropped");
    slowest
}

fn assert_adds_up(hop: &Value) {
    let dropped = sum(&hop["dropped"]);
    let number = |name: &str| hop[name].as_u64().expect("a count");
    assert_eq!(
        number("results"),
        number("delivered") + number("buffered") + dropped + number("rejected"),
        "{hop:#}"
    );
}

#[test]
fn f06_not_a_byte_is_free() {
    not_a_byte_is_free(|scratch| Disk::ext4(scratch, 16), "16MiB", false);
}

#[test]
fn f06_not_a_byte_is_free_at_the_start() {
    not_a_byte_is_free(|scratch| Disk::ext4(scratch, 16), "16MiB", true);
}

#[test]
fn f06_not_a_byte_is_free_on_a_tmpfs() {
    not_a_byte_is_free(|scratch| Disk::tmpfs(scratch, 4), "512KiB", false);
}
