//! Somebody ends delivery to a far side, while it is repaired or looked into: nothing goes there until
//! somebody says so, also after a restart, and nothing is lost.

use std::sync::Arc;

use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::records::{assert_complete, of_stream};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Ended, Scratch, run, secs};

fn config(scratch: &Scratch, broker: u16) -> String {
    let head = head(scratch);
    format!(
        "{head}
devices: [ {{ name: s, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{broker}\", topics: [ in ], points: [ {{ name: n, type: i64 }} ] }} }} }} ]
streams: [ {{ name: rows, from: [s], sql: SELECT n FROM s, to: [ {{ sink: cloud }}, {{ sink: out }} ] }} ]
sinks:
  - {{ name: cloud, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{broker}\", topic: \"out/{{stream}}\" }} }} }}
  - {{ name: out, driver: {{ stdout: {{}} }} }}
"
    )
}

fn sinks(scratch: &Scratch, verb: &str, sink: &str) -> Ended {
    let store = scratch.join("store");
    run(&["sinks", verb, sink, "--store", store.to_str().expect("a path")], secs(10))
}

#[test]
fn nothing_goes_out_until_somebody_says_so() {
    let scratch = Scratch::new("pause");
    let broker = Arc::new(Broker::start(&scratch, ""));
    let config = config(&scratch, broker.port);
    let far_side = Subscriber::start(broker.port, "out/#", None);
    far_side.wait_subscribed();
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    let mut client = crate::harness::mqtt::Client::connect(broker.port, "near").expect("a broker");
    let mut publish = |from: i64, to: i64| {
        for n in from..=to {
            client.publish("in", format!("{{\"n\": {n}}}").as_bytes()).expect("a broker");
        }
    };
    publish(1, 20);
    far_side.wait_value("rows", "n", 20, secs(10));

    let paused = sinks(&scratch, "pause", "cloud");
    assert_eq!(paused.code, Some(0), "{paused:?}");
    publish(21, 40);
    let waits = |gateway: &mut Gateway, records: u64| {
        gateway.wait_status("records that wait", secs(10), |status| {
            let sink = part(status, "sinks", "cloud");
            assert_eq!(sink["paused"], true, "{sink:#}");
            let others = count(status, "sinks", "out", "buffered_records");
            (sink["buffered_records"] == records && others == 0).then_some(())
        });
    };
    waits(&mut gateway, 20);
    assert_eq!(part(&gateway.status(), "sinks", "cloud")["state"], "up", "the connection stays");
    gateway.kill();

    // Killed and started anew it is still paused, and its connection is there.
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    publish(41, 60);
    waits(&mut gateway, 40);
    gateway.wait_status("the connection", secs(10), |status| {
        (part(status, "sinks", "cloud")["state"] == "up").then_some(())
    });
    assert_eq!(far_side.look(<[_]>::len), 20, "nothing went out");

    // A rate that nobody sees take effect.
    let store = scratch.join("store");
    let store = store.to_str().expect("a path");
    let told = run(&["store", "replay", "cloud", "--rate", "5/s", "--store", store], secs(10));
    assert_eq!(told.code, Some(0), "{told:?}");
    assert!(told.stdout.contains("it is paused: `tidegate sinks resume cloud` first"), "{told:?}");
    let back = run(&["store", "replay", "cloud", "--unlimited", "--store", store], secs(10));
    assert_eq!(back.code, Some(0), "{back:?}");

    let resumed = sinks(&scratch, "resume", "cloud");
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    far_side.wait_value("rows", "n", 60, secs(5));
    gateway.wait_drained(secs(5));
    assert_eq!(gateway.stop().code, Some(0));
    let rows = of_stream(&far_side.records(), "rows");
    assert_complete(&rows, "n", 1, 60);
    assert_eq!(rows.len(), 60, "nothing came twice");

    // The same without a gateway: it finds the wish in the store.
    let paused = sinks(&scratch, "pause", "cloud");
    assert_eq!(paused.code, Some(0), "{paused:?}");
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    publish(61, 70);
    waits(&mut gateway, 10);
    let unknown = sinks(&scratch, "pause", "clout");
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("clout"), "{unknown:?}");
    assert_eq!(gateway.stop().code, Some(0));
}
