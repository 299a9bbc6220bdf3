//! Fault F1, promise P11: what comes twice after a kill -9 is what was delivered since the last durable
//! cursor, and that is bounded, whatever `commit_every` says and though nothing else makes a commit due.
//!
//! Here: a backlog goes out as fast as the broker takes it, with a minute between commits that nobody
//! waits for, and the gateway is killed again and again meanwhile. When cursors waited for the next
//! commit, the backlog began anew with each start.

use std::sync::Arc;

use crate::harness::broker::Broker;
use crate::harness::gate::Gate;
use crate::harness::gateway::{Gateway, count, head};
use crate::harness::records::{Record, again, again_max, assert_contiguous, repeated};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, say, secs, wait_until};

const BACKLOG: u64 = 16_000;
const DELIVER_ROWS: u64 = 100;
/// The gateway is killed when this many more have arrived.
const BETWEEN: u64 = 4_000;

/// A sink that is handed 100 records at once, and a source of `rows` each time.
fn config(head: &str, broker: u16, every: &str, rows: u64) -> String {
    format!(
        "{head}
limits: {{ deliver_rows: {DELIVER_ROWS} }}
devices: [ {{ name: s, driver: {{ generate: {{ every: {every}, rows: {rows}, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }} ]
streams: [ {{ name: rows, from: [s], sql: SELECT n FROM s, to: [ {{ sink: uplink }} ] }} ]
sinks:
  - name: uplink
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{broker}\", topic: rows, qos: 1, backoff_min: 50ms, backoff_max: 200ms }} }}
"
    )
}

fn number(record: &Record) -> u64 {
    record.id_parts().3
}

#[test]
fn f01_p11_a_backlog_does_not_begin_anew_with_each_start() {
    let scratch = Scratch::new("again");
    let broker = Broker::start(&scratch, "");
    let gate = Arc::new(Gate::new(broker.port));
    let filling = config(&head(&scratch), gate.port, "10ms", 100);
    let mut gateway = Gateway::start(&scratch, &filling);
    gateway.wait_status("a backlog", secs(60), |status| {
        (count(status, "sinks", "uplink", "buffered_records") >= BACKLOG).then_some(())
    });
    assert_eq!(gateway.stop().code, Some(0));

    let far_side = Subscriber::start(broker.port, "#", Some(gate));
    far_side.wait_subscribed();
    let head = head(&scratch).replace("commit_every: 200ms", "commit_every: 60s");
    assert!(head.contains("60s"));
    let draining = config(&head, broker.port, "1h", 1);
    let kills = BACKLOG / BETWEEN - 1;
    for kill in 1..=kills {
        let mut gateway = Gateway::start(&scratch, &draining);
        wait_until("part of the backlog", secs(30), || {
            assert!(gateway.runs(), "the gateway has ended by itself:\n{}", gateway.log());
            far_side.look(|all| all.last().is_some_and(|last| number(last) >= kill * BETWEEN))
        });
        gateway.kill();
    }
    let mut gateway = Gateway::start(&scratch, &draining);
    gateway.wait_drained(secs(60));
    assert_eq!(gateway.stop().code, Some(0));

    let records = far_side.records();
    repeated(&records);
    assert_contiguous(&records);
    assert!(records.iter().any(|record| number(record) >= BACKLOG));
    let again = again(&records);
    say(format_args!("P11: {kills} kills, came again {again:?}"));
    assert!(!again.is_empty(), "each kill came when all was out");
    assert!(again.len() as u64 <= kills, "{again:?}");
    assert!(again.iter().all(|again| *again <= again_max(DELIVER_ROWS)), "{again:?}");
}
