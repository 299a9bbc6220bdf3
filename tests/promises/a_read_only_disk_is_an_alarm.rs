//! Fault F8 and promise P6: the flash under a running gateway turns read-only.
//!
//! Devices are read and records are forwarded as before, from memory; the gateway is alive, not
//! ready, and says why. When the disk takes writes again, so does the store, by itself.

use crate::harness::broker::Broker;
use crate::harness::calls::{FILE_CHANGES, inject_into};
use crate::harness::disk::Disk;
use crate::harness::gateway::{Gateway, ask, count, head, part};
use crate::harness::records::{assert_complete, assert_contiguous, of_stream, repeated};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, secs, wait_for, wait_until};

fn config(scratch: &Scratch, broker: u16) -> String {
    let head = head(scratch);
    format!(
        "{head}
devices:
  - name: source
    driver: {{ generate: {{ every: 100ms, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }}
streams:
  - {{ name: rows, from: [source], sql: 'SELECT time, n FROM source', to: [ {{ sink: uplink }} ] }}
sinks:
  - name: uplink
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{broker}\", qos: 1, backoff_min: 100ms, backoff_max: 500ms }} }}
"
    )
}

/// The answer of `/readyz`: whether it is ready, and the whole text. Panics where the gateway has
/// ended.
fn ready(gateway: &mut Gateway) -> (bool, String) {
    wait_for("an answer", secs(5), || {
        assert!(gateway.runs(), "the gateway has ended:\n{}", gateway.log());
        let (code, body) = ask(&gateway.socket(), "GET /readyz").ok()?;
        Some((code == 200, body))
    })
}

/// What must be true as long as nothing can be written.
fn works_without_disk(gateway: &mut Gateway, far_side: &Subscriber) {
    wait_until("an alarm about the store", secs(5), || {
        let (is_ready, body) = ready(gateway);
        !is_ready && body.contains("store")
    });
    let read = |gateway: &mut Gateway| {
        let status = gateway.status();
        let uptime = status["gateway"]["uptime_s"].as_f64().expect("an uptime");
        (uptime, count(&status["ledger"], "sources", "source", "read"))
    };
    let before = read(gateway);
    // What is read from now on arrives, too.
    let value = i64::try_from(before.1 + 50).expect("few");
    far_side.wait_value("rows", "n", value, secs(15));
    let after = read(gateway);
    let rate = (after.1 - before.1) as f64 / (after.0 - before.0);
    // As without a fault, but for what strace and a busy machine take.
    assert!((7.0..=11.0).contains(&rate), "{rate} rows a second instead of 10");
    assert_eq!(ask(&gateway.socket(), "GET /healthz").expect("an answer").0, 200);
    assert!(gateway.runs());
}

#[test]
fn f08_the_file_system_turns_read_only() {
    let scratch = Scratch::new("readonly");
    let Some(disk) = Disk::ext4(&scratch, 64) else { return };
    disk.take_store(&scratch);
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "#", None);
    far_side.wait_subscribed();
    let config = config(&scratch, broker.port);
    let mut gateway = Gateway::start(&scratch, &config);
    far_side.wait_value("rows", "n", 10, secs(20));
    disk.fail();
    works_without_disk(&mut gateway, &far_side);
    let before = gateway.status()["gateway"]["epoch"].as_u64().expect("an epoch");
    gateway.kill();

    // As after a repair: the same disk, writable again.
    disk.unmount();
    disk.mount();
    let mut gateway = Gateway::start(&scratch, &config);
    let status = gateway.wait_status("a delivered record", secs(20), |status| {
        (count(status, "sinks", "uplink", "delivered") > 0).then(|| status.clone())
    });
    assert_eq!(status["store"]["corrupt_records"], 0, "{status:#}");
    assert!(ready(&mut gateway).0);
    // What was delivered from memory is in no store: its ids are not given to other records.
    let epoch = status["gateway"]["epoch"].as_u64().expect("an epoch");
    assert!(epoch > before, "{epoch} after {before}");
    assert_eq!(gateway.stop().code, Some(0));
    repeated(&of_stream(&far_side.records(), "rows"));
}

#[test]
fn f08_and_takes_writes_again() {
    let scratch = Scratch::new("again");
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "#", None);
    far_side.wait_subscribed();
    let config = config(&scratch, broker.port);
    let mut gateway = Gateway::start(&scratch, &config);
    far_side.wait_value("rows", "n", 10, secs(20));
    let injection = inject_into(&scratch, gateway.pid(), FILE_CHANGES, "error=EROFS");
    works_without_disk(&mut gateway, &far_side);
    drop(injection);
    wait_until("the store to write again", secs(15), || ready(&mut gateway).0);
    let read = count(&gateway.status()["ledger"], "sources", "source", "read");
    let last = i64::try_from(read).expect("few") + 10;
    far_side.wait_value("rows", "n", last, secs(10));
    assert_eq!(gateway.stop().code, Some(0));
    let rows = of_stream(&far_side.records(), "rows");
    assert_complete(&rows, "n", 0, rows.last().expect("records").int("n"));
    assert_contiguous(&rows);
    repeated(&rows);
}

/// A record of 20 kB each 10 ms goes out beside the others: some 2 MB/s, of which memory would hold four
/// seconds, and the queue as many, if what was delivered stayed in it, or what waits for a sink that is away
/// and gets them too.
#[test]
fn f08_and_forwards_more_than_memory_holds() {
    let scratch = Scratch::new("long");
    let broker = Broker::start(&scratch, "");
    // The large ones are for the broker alone.
    let far_side = Subscriber::start(broker.port, "tidegate/+/rows", None);
    far_side.wait_subscribed();
    let wide = format!(
        "  - name: wide
    driver: {{ generate: {{ every: 10ms, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }}
streams:
  - name: filled
    from: [wide]
    sql: \"SELECT time, n, {} FROM wide\"
    to: [ {{ sink: uplink }}, {{ sink: away }} ]
",
        ["a", "b", "c", "d", "e"]
            .map(|name| format!("'{}' AS {name}", "x".repeat(4_000)))
            .join(", ")
    );
    let away =
        "  - { name: away, driver: { mqtt: { url: \"mqtt://127.0.0.1:1\", topic: rows } } }\n";
    let config = config(&scratch, broker.port).replacen("streams:\n", &wide, 1) + away;
    let mut gateway = Gateway::start(&scratch, &config);
    far_side.wait_value("rows", "n", 10, secs(20));
    let injection = inject_into(&scratch, gateway.pid(), FILE_CHANGES, "error=EROFS");
    works_without_disk(&mut gateway, &far_side);
    let delivered = |gateway: &mut Gateway| {
        let status = gateway.status();
        assert!(status["store"]["stalled"].is_string(), "{:#}", status["store"]);
        (
            count(&status["ledger"], "sinks", "uplink", "delivered"),
            count(&status["ledger"], "sources", "source", "read"),
        )
    };
    let before = delivered(&mut gateway);
    // 40 MB of them.
    wait_until("2,000 records to go out from memory", secs(60), || {
        delivered(&mut gateway).0 >= before.0 + 2_000
    });
    // And the others arrive as they are read.
    let read = i64::try_from(delivered(&mut gateway).1).expect("few");
    far_side.wait_value("rows", "n", read + 10, secs(10));
    let waiting = |gateway: &mut Gateway| {
        let ledger = &gateway.status()["ledger"];
        let dropped = &part(ledger, "sinks", "away")["dropped"]["disk_full"];
        (count(ledger, "sinks", "away", "buffered"), dropped.as_u64().unwrap_or(0))
    };
    let (held, dropped) = waiting(&mut gateway);
    assert!(dropped > 1_000, "{dropped}: 4 MiB of 2,000 records of 20 kB are some 200");
    drop(injection);
    wait_until("the store to write again", secs(15), || ready(&mut gateway).0);
    wait_until("the sink that is away to get records again", secs(5), || {
        waiting(&mut gateway).0 > held
    });
    assert_eq!(gateway.stop().code, Some(0));
    let rows = of_stream(&far_side.records(), "rows");
    assert_complete(&rows, "n", 0, rows.last().expect("records").int("n"));
    assert_contiguous(&rows);
    repeated(&rows);
}
