//! Routes: results by condition, rows that the SQL failed on, rows from the future (field case A62: a
//! stamp from the future made everything after it late, without a sign). Each row is somewhere, or
//! counted, and the ledger says where.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::mqtt::Client;
use crate::harness::records::{Record, lines};
use crate::harness::{Scratch, secs};

fn files(scratch: &Scratch, names: &[&str]) -> String {
    let sink = |name: &&str| {
        let path = scratch.join(&format!("{name}.jsonl"));
        format!("  - {{ name: {name}, driver: {{ file: {{ path: {} }} }} }}\n", path.display())
    };
    names.iter().map(sink).collect()
}

fn written(scratch: &Scratch, name: &str) -> Vec<Record> {
    let path = scratch.join(&format!("{name}.jsonl"));
    lines(&std::fs::read_to_string(path).unwrap_or_default())
}

#[test]
fn results_go_by_condition_and_failed_rows_with_their_error() {
    let scratch = Scratch::new("routes");
    let (head, files) = (head(&scratch), files(&scratch, &["even", "high", "bad", "rest"]));
    let config = format!(
        r"{head}
devices:
  - name: s
    driver: {{ generate: {{ every: 10ms, count: 100, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }}
streams:
  - name: parity
    from: [s]
    sql: SELECT n FROM s
    to: [ {{ sink: even, when: n % 2 = 0 }}, {{ sink: high, when: n >= 90 }} ]
  - name: fragile
    from: [s]
    sql: SELECT n, 100 / (n - 7) AS q FROM s
    to: [ {{ sink: rest }} ]
    on_error: {{ to: [ {{ sink: bad, when: device = 's' }} ], ack: after_write }}
sinks:
{files}"
    );
    let mut gateway = Gateway::start(&scratch, &config);
    let status = gateway.wait_status("all rows in the files", secs(30), |status| {
        let delivered = |sink| count(status, "sinks", sink, "delivered");
        let parity = (delivered("even"), delivered("high")) == (50, 10);
        let fragile = delivered("rest") + delivered("bad") == 100;
        (parity && fragile).then(|| status.clone())
    });
    assert_eq!(gateway.stop().code, Some(0));

    let numbers = |name: &str| -> Vec<(u64, i64)> {
        written(&scratch, name).iter().map(|row| (row.id_parts().3, row.int("n"))).collect()
    };
    // The first result has number 1, whether or not it is routed.
    let even: Vec<_> =
        (0..50).map(|half| (2 * half + 1, i64::try_from(2 * half).unwrap())).collect();
    assert_eq!(numbers("even"), even);
    let high: Vec<_> = (90..100).map(|n| (n + 1, i64::try_from(n).unwrap())).collect();
    assert_eq!(numbers("high"), high);
    // 45 of the odd ones are below 90.
    let hop = part(&status["ledger"], "streams", "parity");
    assert_eq!((&hop["unrouted"], &hop["windowed"]), (&45.into(), &100.into()), "{hop:#}");
    assert_eq!(count(&status, "streams", "parity", "unrouted"), 45);

    let bad = written(&scratch, "bad");
    assert!(bad.iter().any(|row| row.int("n") == 7), "{bad:?}");
    for row in &bad {
        assert!(row.text_of("_error").contains("ivide by zero"), "{}", row.text);
        assert_eq!((row.id_parts().2, row.text_of("_quality")), ("fragile.error", "bad"));
        assert_eq!(row.text_of("device"), "s", "the columns of the table");
    }
    let ids: std::collections::BTreeSet<_> = bad.iter().map(Record::id).collect();
    assert_eq!(ids.len(), bad.len());
    // Each row is in one of the two, and the ledger counts it there.
    let mut all: Vec<i64> = bad.iter().map(|row| row.int("n")).collect();
    all.extend(numbers("rest").iter().map(|(_, n)| n));
    all.sort_unstable();
    assert_eq!(all, (0..100).collect::<Vec<_>>());
    let hop = part(&status["ledger"], "streams", "fragile");
    assert_eq!(hop["failed"], bad.len(), "{hop:#}");
}

#[test]
fn a62_rows_from_the_future_are_set_aside_and_nobody_is_late() {
    let scratch = Scratch::new("future");
    let broker = Broker::start(&scratch, "");
    let (head, files, port) = (head(&scratch), files(&scratch, &["out", "side"]), broker.port);
    let config = format!(
        r#"{head}
devices:
  - name: feed
    driver:
      mqtt:
        url: "mqtt://127.0.0.1:{port}"
        topics: [ in ]
        decode: {{ json: {{ time: ts }} }}
        points: [ {{ name: v, type: i64 }} ]
streams:
  - name: windows
    from: [feed]
    window: {{ tumbling: {{ size: 1s }} }}
    allowed_lateness: 10s
    idle_after: 1s
    sql: SELECT count(*) AS n, sum(v) AS total FROM feed
    to: [ {{ sink: out }} ]
    late: {{ to: [ {{ sink: side, when: _reason = 'future' }} ] }}
  - name: restamped
    from: [feed]
    max_future: 5m
    future: restamp
    sql: SELECT v, quality, time = received_at AS arrived FROM feed WHERE v > 1
    to: [ {{ sink: out }} ]
sinks:
{files}"#
    );
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    let mut client = Client::connect(port, "near-side").expect("a broker");
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let now = u64::try_from(since.as_millis()).expect("a time");
    let tomorrow = now + 86_400_000;
    for (ts, v) in [(now, 1), (tomorrow, 2), (u64::MAX, 4), (now + 1_000, 1), (now + 2_000, 1)] {
        let payload = format!("{{\"ts\": {ts}, \"v\": {v}}}");
        client.publish("in", payload.as_bytes()).expect("a broker that takes it");
    }
    let status = gateway.wait_status("three windows in the file", secs(40), |status| {
        let delivered = |sink| count(status, "sinks", sink, "delivered");
        ((delivered("out"), delivered("side")) == (5, 2)).then(|| status.clone())
    });
    assert_eq!(count(&status, "streams", "windows", "future"), 2);
    assert_eq!(count(&status, "streams", "windows", "late"), 0);
    assert_eq!(count(&status, "streams", "restamped", "restamped"), 2);
    assert_eq!(part(&status, "streams", "windows")["event_time"], "source");
    let hop = part(&status["ledger"], "streams", "windows");
    assert_eq!((&hop["accepted"], &hop["future"]), (&5.into(), &2.into()), "{hop:#}");
    assert_eq!(gateway.stop().code, Some(0));

    let side = written(&scratch, "side");
    let got: Vec<_> = side.iter().map(|row| (row.int("v"), row.text_of("_reason"))).collect();
    assert_eq!(got, [(2, "future"), (4, "future")]);
    let out = written(&scratch, "out");
    let windowed = out.iter().filter(|row| row.stream() == "windows").map(|row| row.int("total"));
    assert_eq!(windowed.sum::<i64>(), 3, "what is from the future is in no window");
    let restamped: Vec<_> = out.iter().filter(|row| row.stream() == "restamped").collect();
    assert_eq!(restamped.len(), 2);
    for row in restamped {
        assert_eq!(row.text_of("quality"), "uncertain", "{}", row.text);
        assert_eq!(row.body["arrived"], true, "{}", row.text);
    }
}
