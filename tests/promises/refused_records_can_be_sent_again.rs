//! P12: a record that its far side refuses again and again does not stop those behind it. It is kept
//! with the reason, can be looked at, sent again under its id, or dropped.

use serde_json::Value;

use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::mqtt::Client;
use crate::harness::records::{first_arrivals, of_stream};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Ended, Scratch, run, secs};

/// Records of some 300 bytes are refused where packets may have 256.
fn config(scratch: &Scratch, broker: u16, max_packet: &str) -> String {
    let head = head(scratch);
    format!(
        "{head}
devices: [ {{ name: s, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{broker}\", topics: [ in ], points: [ {{ name: n, type: i64 }}, {{ name: text, type: string }} ] }} }} }} ]
streams: [ {{ name: rows, from: [s], sql: \"SELECT n, text FROM s\", to: [ {{ sink: cloud }} ] }} ]
sinks: [ {{ name: cloud, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{broker}\", topic: \"out/{{stream}}\", max_packet: {max_packet} }} }} }} ]
"
    )
}

fn rejected(scratch: &Scratch, arguments: &[&str]) -> Ended {
    let store = scratch.join("store");
    let all = [&["rejected"], arguments, &["--store", store.to_str().expect("a path")]].concat();
    run(&all, secs(10))
}

fn letters(scratch: &Scratch) -> Vec<Value> {
    let listed = rejected(scratch, &["ls", "cloud", "--json"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let letters: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    letters.as_array().expect("a list").clone()
}

#[test]
fn p12_with_its_reason_under_its_id() {
    let scratch = Scratch::new("letters");
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "out/#", None);
    far_side.wait_subscribed();
    let mut gateway = Gateway::start(&scratch, &config(&scratch, broker.port, "256B"));
    gateway.wait_up();
    let mut client = Client::connect(broker.port, "near-side").expect("a broker");
    for n in 1..=30 {
        let text = if n % 10 == 0 { "x".repeat(300) } else { "short".to_owned() };
        let message = format!("{{\"n\": {n}, \"text\": \"{text}\"}}");
        client.publish("in", message.as_bytes()).expect("a broker");
    }
    far_side.wait_value("rows", "n", 29, secs(10));
    gateway.wait_status("the last one to be set aside", secs(10), |status| {
        (count(status, "sinks", "cloud", "letters") == 3).then_some(())
    });
    let arrived = first_arrivals(&of_stream(&far_side.records(), "rows"), "n");
    assert_eq!(arrived, (1..=30).filter(|n| n % 10 != 0).collect::<Vec<_>>(), "the good ones");
    let kept = letters(&scratch);
    let numbers: Vec<_> = kept
        .iter()
        .map(|letter| {
            let body = letter["body"].as_str().expect("the record");
            assert!(
                letter["reason"].as_str().is_some_and(|r| r.contains("max_packet")),
                "{letter}"
            );
            serde_json::from_str::<Value>(body).expect("JSON")["n"].as_i64().expect("n")
        })
        .collect();
    assert_eq!(numbers, [10, 20, 30]);
    let shown = rejected(&scratch, &["ls", "cloud"]);
    assert!(
        shown.stdout.contains("max_packet") && shown.stdout.starts_with("POSITION"),
        "{shown:?}"
    );

    // One is dropped for good. Neither one nor all is no command, one that is not there a failure.
    let position = kept[1]["position"].as_u64().expect("a position").to_string();
    let dropped = rejected(&scratch, &["drop", "cloud", "--position", &position]);
    assert_eq!(dropped.code, Some(0), "{dropped:?}");
    assert_eq!(rejected(&scratch, &["drop", "cloud"]).code, Some(2));
    let again = rejected(&scratch, &["drop", "cloud", "--position", &position]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stderr.contains("1 of the positions have no refused record"), "{again:?}");
    assert_eq!(gateway.stop().code, Some(0));
    assert_eq!(letters(&scratch).len(), 2, "the same without a gateway");

    // With room for them they are sent again, under the ids that they had, behind all that waits.
    let mut gateway = Gateway::start(&scratch, &config(&scratch, broker.port, "256KiB"));
    gateway.wait_up();
    let redriven = rejected(&scratch, &["redrive", "cloud", "--all"]);
    assert_eq!(redriven.code, Some(0), "{redriven:?}");
    assert!(redriven.stdout.starts_with("2 "), "{redriven:?}");
    far_side.wait_value("rows", "n", 30, secs(10));
    gateway.wait_drained(secs(10));
    let status = gateway.status();
    let hop = part(&status["ledger"], "sinks", "cloud");
    let n = |key: &str| hop[key].as_u64().unwrap_or_else(|| panic!("{key} of {hop}"));
    // 30 and 2 again; 27 and 2 delivered; 3 refused.
    assert_eq!(
        (n("results"), n("delivered"), n("rejected"), n("buffered")),
        (32, 29, 3, 0),
        "{hop}"
    );
    assert_eq!(gateway.stop().code, Some(0));
    assert!(letters(&scratch).is_empty());
    let rows = of_stream(&far_side.records(), "rows");
    for n in [10, 30] {
        let row = rows.iter().find(|row| row.int("n") == n).expect("it arrived");
        let before = rows.iter().find(|row| row.int("n") == n - 1).expect("the one before");
        assert_eq!(row.id_parts().3, before.id_parts().3 + 1, "{}", row.text);
    }
    assert_eq!(rows.len(), 29);
}

/// The newest of 40 are kept, in an eighth of the 64 KiB that may wait; the others are counted, over a kill
/// too, and in the ledger all of them are refused and nothing else.
#[test]
fn p12_the_newest_of_them_with_a_count_of_those_that_gave_way() {
    let scratch = Scratch::new("many-letters");
    let broker = Broker::start(&scratch, "");
    let config = config(&scratch, broker.port, "256B")
        .replace("{ name: cloud, driver", "{ name: cloud, store: { max_bytes: 64KiB }, driver");
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    let mut client = Client::connect(broker.port, "near-side").expect("a broker");
    for n in 1..=40 {
        let message = format!("{{\"n\": {n}, \"text\": \"{}\"}}", "x".repeat(300));
        client.publish("in", message.as_bytes()).expect("a broker");
    }
    gateway.wait_status("all of them to be refused", secs(10), |status| {
        (count(status, "sinks", "cloud", "rejected") == 40).then_some(())
    });
    let status = gateway.status();
    let of = |status: &Value, key: &str| count(status, "sinks", "cloud", key);
    let (kept, bytes) = (of(&status, "letters"), of(&status, "letter_bytes"));
    let gone = of(&status, "letters_dropped");
    assert_eq!(kept + gone, 40);
    // Each has some 300 bytes of record and less than 400 of reason and header.
    assert!(bytes <= 8 << 10 && bytes > (8 << 10) - 700, "{kept} letters of {bytes} bytes");
    let hop = part(&status["ledger"], "sinks", "cloud");
    assert_eq!(
        (&hop["results"], &hop["rejected"], &hop["dropped"]),
        (&40.into(), &40.into(), &serde_json::json!({}))
    );

    gateway.kill();
    let mut gateway = Gateway::start(&scratch, &config);
    let status = gateway.status();
    let found = ["rejected", "letters", "letters_dropped"].map(|key| of(&status, key));
    assert_eq!(found, [40, kept, gone], "after a kill");
    let numbers: Vec<_> = letters(&scratch)
        .iter()
        .map(|letter| {
            let body = letter["body"].as_str().expect("the record");
            serde_json::from_str::<Value>(body).expect("JSON")["n"].as_u64().expect("n")
        })
        .collect();
    assert_eq!(numbers, (gone + 1..=40).collect::<Vec<_>>());
    let shown = rejected(&scratch, &["ls", "cloud"]);
    let last = format!("{gone} older ones are not kept any more");
    assert_eq!(shown.stdout.lines().last(), Some(last.as_str()), "{shown:?}");
    assert_eq!(gateway.stop().code, Some(0));
}
