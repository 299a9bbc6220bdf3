//! `sync: each`: a stream whose results must not wait for the next commit. A result leaves the gateway only
//! when it is durable, so who reads at the far side sees when that was.
//!
//! Here: a source that nobody waits for, a minute between commits, and a few small rows, so that nothing but
//! the stream's wish makes a commit due. Each result arrives soon, and is there after a kill -9.

use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, count, head};
use crate::harness::records::{assert_complete, assert_contiguous, of_stream, repeated};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, secs};

/// So few that the queue of commits is not half full of them, which makes a commit due as well.
const ROWS: i64 = 20;

#[test]
fn results_of_a_stream_that_asks_for_it_do_not_wait_for_commit_every() {
    let scratch = Scratch::new("each");
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "#", None);
    far_side.wait_subscribed();
    let head = head(&scratch).replace("commit_every: 200ms", "commit_every: 60s");
    assert!(head.contains("60s"));
    let port = broker.port;
    let config = format!(
        "{head}
devices: [ {{ name: s, driver: {{ generate: {{ every: 100ms, count: {ROWS}, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }} ]
streams: [ {{ name: rows, from: [s], sql: SELECT n FROM s, sync: each, to: [ {{ sink: uplink }}, {{ sink: later }} ] }} ]
sinks:
  - {{ name: uplink, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{port}\", topic: rows, qos: 1 }} }} }}
  - {{ name: later, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:1\", topic: rows }} }} }}
"
    );
    let gateway = Gateway::start(&scratch, &config);
    // Two seconds of rows, and a slow machine: a third of the time until a commit is due by itself.
    far_side.wait_value("rows", "n", ROWS - 1, secs(20));
    gateway.kill();
    let records = of_stream(&far_side.records(), "rows");
    assert_eq!(repeated(&records), 0);
    assert_complete(&records, "n", 0, ROWS - 1);
    assert_contiguous(&records);

    // What a sink has not delivered yet was durable as well.
    let config = config.replace("every: 100ms", "every: 1h");
    let mut gateway = Gateway::start(&scratch, &config);
    let least = u64::try_from(ROWS).expect("few");
    gateway.wait_status("what was durable", secs(20), |status| {
        (count(status, "sinks", "later", "buffered_records") >= least).then_some(())
    });
    assert_eq!(gateway.stop().code, Some(0));
}
