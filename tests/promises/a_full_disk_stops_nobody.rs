//! Fault F6 and promise P4: not a byte is free on a disk of 16 MiB, the far side is away, and more
//! comes every second than the disk could hold.
//!
//! The gateway stays, answers at once, and says that it is short of room where it loses anything.
//! When the far side is back, the backlog is delivered and new records follow by themselves, while
//! nobody has freed a byte, in order, and the ledger adds up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::broker::Broker;
use crate::harness::disk::Disk;
use crate::harness::gate::Gate;
use crate::harness::gateway::{Gateway, ask, count, head, part};
use crate::harness::records::{of_stream, repeated};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, say, secs, soak, wait_until};

/// 1,000 records of about 2 kB a second.
fn config(scratch: &Scratch, broker: u16) -> String {
    let (head, pad) = (head(scratch), "tide".repeat(500));
    format!(
        "{head}
devices:
  - name: source
    driver:
      generate:
        every: 50ms
        rows: 50
        points: [ {{ name: n, value: {{ counter: {{}} }} }}, {{ name: pad, value: {{ choice: [ {pad} ] }} }} ]
streams:
  - {{ name: rows, from: [source], sql: 'SELECT time, n, pad FROM source', to: [ {{ sink: uplink }} ] }}
  - name: windows
    from: [source]
    window: {{ tumbling: {{ size: 1s }} }}
    sql: SELECT count(*) AS c, max(n) AS high FROM source
    to: [ {{ sink: uplink }} ]
sinks:
  - name: uplink
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{broker}\", qos: 1, backoff_min: 100ms, backoff_max: 500ms }} }}
    store: {{ max_bytes: 256MiB }}
"
    )
}

/// Fills the disk under a gateway, which may be killed then and started anew, and lets the far side
/// come after a while.
fn not_a_byte_is_free(is_killed: bool) {
    let scratch = Scratch::new("full");
    let Some(disk) = Disk::ext4(&scratch, 16) else { return };
    disk.take_store(&scratch);
    let far = Scratch::new("far");
    let mut broker = Broker::prepare(&far, "");
    let gate = Arc::new(Gate::new(broker.port));
    let config = config(&scratch, gate.port);
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    if is_killed {
        gateway.kill();
        disk.fill(0);
        gateway = Gateway::start(&scratch, &config);
        gateway.wait_up();
    } else {
        disk.fill(0);
    }

    let slowest = watch(&mut gateway);
    assert!(slowest < secs(2), "an answer took {slowest:?}");
    let status = gateway.status();
    let source = part(&status["ledger"], "sources", "source");
    let told = !status["store"]["last_error"].is_null() || !status["store"]["stalled"].is_null();
    assert!(
        source["refused"] == json!({}) || told,
        "it loses rows and does not say why: {status:#}"
    );
    let dropped = &part(&status["ledger"], "sinks", "uplink")["dropped"];
    assert_eq!(dropped["bound"], Value::Null, "256 MiB are no bound here: {dropped}");
    say(format_args!(
        "F6: {} read, {} records wait, slowest answer {slowest:?}, {} bytes free",
        source["read"],
        count(&status, "sinks", "uplink", "buffered_records"),
        disk.free()
    ));

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
    assert_adds_up(part(&gateway.status()["ledger"], "sinks", "uplink"));
    assert_eq!(gateway.stop().code, Some(0));

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
    let (mut slowest, mut short, mut shown, mut unfounded) = (secs(0), false, 0, 0);
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
        // The store's figures are shown before the commit that they belong to, or with it.
        shown += usize::from(told);
        unfounded += usize::from(told && !short);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(unfounded * 10 <= shown, "{unfounded} of {shown} alarms had no count");
    slowest
}

fn assert_adds_up(hop: &Value) {
    let dropped = hop["dropped"].as_object().expect("reasons");
    let dropped: u64 = dropped.values().filter_map(Value::as_u64).sum();
    let number = |name: &str| hop[name].as_u64().expect("a count");
    assert_eq!(
        number("results"),
        number("delivered") + number("buffered") + dropped + number("rejected"),
        "{hop:#}"
    );
}

#[test]
fn f06_not_a_byte_is_free() {
    not_a_byte_is_free(false);
}

#[test]
fn f06_not_a_byte_is_free_at_the_start() {
    not_a_byte_is_free(true);
}
