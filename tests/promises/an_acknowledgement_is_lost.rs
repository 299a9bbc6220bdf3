//! Fault F18: the broker has a message, and its acknowledgement is lost with the connection.
//!
//! Nobody but the receiver can know whether a message came then, so it is sent again. Here: with the
//! same id and the same content, no more of them than were in flight, and who drops ids that came
//! before has each record once and in order.

use std::collections::BTreeMap;

use crate::harness::broker::Broker;
use crate::harness::gate::Gate;
use crate::harness::gateway::{Gateway, head};
use crate::harness::records::{Record, assert_contiguous, of_stream};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, secs};

const RECORDS: i64 = 500;
/// The acknowledgement that is lost, of each connection.
const NTH: u32 = 40;
const IN_FLIGHT: usize = 10;

#[test]
fn f18_what_is_sent_again_has_its_id() {
    let scratch = Scratch::new("lost-puback");
    let broker = Broker::start(&scratch, "");
    let gate = Gate::new(broker.port);
    let far_side = Subscriber::start(broker.port, "#", None);
    far_side.wait_subscribed();
    gate.lose(NTH);
    gate.open();
    let (head, uplink) = (head(&scratch), gate.port);
    let config = format!(
        r#"{head}
devices: [ {{ name: s, driver: {{ generate: {{ every: 2ms, count: {RECORDS}, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }} ]
streams: [ {{ name: rows, from: [s], sql: SELECT n FROM s, to: [ {{ sink: uplink }} ] }} ]
sinks:
  - name: uplink
    driver:
      mqtt:
        url: "mqtt://127.0.0.1:{uplink}"
        qos: 1
        in_flight: {IN_FLIGHT}
        backoff_min: 20ms
        backoff_max: 50ms
"#
    );
    let mut gateway = Gateway::start(&scratch, &config);
    far_side.wait_value("rows", "n", RECORDS - 1, secs(60));
    gateway.wait_drained(secs(20));
    assert_eq!(gateway.stop().code, Some(0));

    let arrived = of_stream(&far_side.records(), "rows");
    let mut first: BTreeMap<String, &Record> = BTreeMap::new();
    let mut once = Vec::new();
    for record in &arrived {
        if let Some(before) = first.get(record.id()) {
            assert_eq!(before.text, record.text, "an id has one content");
        } else {
            first.insert(record.id().to_owned(), record);
            once.push(record.clone());
        }
    }
    let numbers: Vec<i64> = once.iter().map(|record| record.int("n")).collect();
    assert_eq!(numbers, (0..RECORDS).collect::<Vec<_>>());
    assert_contiguous(&once);
    let losses = usize::try_from(gate.losses()).expect("small");
    assert!(losses >= 10, "{losses} acknowledgements were lost");
    let again = arrived.len() - once.len();
    assert!(again >= losses, "{again} came again after {losses} losses");
    assert!(again <= losses * IN_FLIGHT, "{again} came again after {losses} losses");
}
