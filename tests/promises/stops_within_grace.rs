//! Field case A54 (vector #17644): with a sink that does not take anything, the process could only
//! be ended by SIGKILL.
//!
//! Here: SIGTERM with a frozen broker and thousands of records waiting ends the gateway within its
//! grace of 5 s and with exit code 0; a second SIGTERM ends it at once; and what waited is
//! delivered after the next start.

use rustix::process::Signal;

use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, Stopped, count, head};
use crate::harness::records::{assert_contiguous, of_stream, repeated};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, secs, wait_until};

fn config(scratch: &Scratch, broker: u16) -> String {
    generating(scratch, broker, 40, 4_000)
}

/// `rows` every 10 ms, `all` in total.
fn generating(scratch: &Scratch, broker: u16, rows: u64, all: u64) -> String {
    let head = head(scratch);
    format!(
        r#"{head}
devices:
  - name: source
    driver:
      generate:
        every: 10ms
        rows: {rows}
        count: {all}
        points: [ {{ name: n, value: {{ counter: {{}} }} }} ]
streams: [ {{ name: rows, from: [source], sql: "SELECT time, n FROM source", to: [ {{ sink: uplink }} ] }} ]
sinks:
  - name: uplink
    driver: {{ mqtt: {{ url: "mqtt://127.0.0.1:{broker}", qos: 1, ack_timeout: 30s, backoff_min: 100ms, backoff_max: 500ms }} }}
"#
    )
}

fn queued(gateway: &mut Gateway, least: u64) {
    gateway.wait_status("thousands of waiting records", secs(30), |status| {
        (count(status, "sinks", "uplink", "buffered_records") >= least).then_some(())
    });
}

#[test]
fn a54_with_a_frozen_broker_and_thousands_queued() {
    let scratch = Scratch::new("grace");
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "#", None);
    far_side.wait_subscribed();
    let config = config(&scratch, broker.port);
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("the first delivered record", secs(20), |status| {
        (count(status, "sinks", "uplink", "delivered") >= 1).then_some(())
    });
    broker.freeze();
    queued(&mut gateway, 2_000);
    let status = gateway.status();
    let results = count(&status["ledger"], "sinks", "uplink", "results");
    let Stopped { code, took } = gateway.stop();
    assert_eq!(code, Some(0));
    assert!(took <= secs(5), "it took {took:?}");

    // Again, and this time somebody is in a hurry.
    let mut gateway = Gateway::start(&scratch, &config);
    queued(&mut gateway, 4_000);
    gateway.signal(Signal::TERM);
    wait_until("the first SIGTERM to be taken", secs(5), || {
        gateway.log().matches("stopping").count() == 2
    });
    let Stopped { code, took } = gateway.stop();
    assert!(took <= secs(1), "a second SIGTERM took {took:?}");
    assert!(code.is_some(), "it ends by itself, not by the signal");

    broker.thaw();
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("the end of the generated rows", secs(30), |status| {
        (count(&status["ledger_since_start"], "sources", "source", "read") >= 4_000).then_some(())
    });
    gateway.wait_drained(secs(60));
    assert_eq!(gateway.stop().code, Some(0));
    let rows = of_stream(&far_side.records(), "rows");
    repeated(&rows);
    assert_contiguous(&rows);
    let newest = rows.iter().map(|row| row.id_parts().3).max().expect("rows");
    assert!(newest >= results + 4_000 - 1, "{newest} of at least {results} + 4,000");
}

/// Fault F28, promise P17.
#[test]
fn f28_with_a_frozen_broker_and_a_hundred_thousand_queued() {
    let scratch = Scratch::new("f28");
    let broker = Broker::start(&scratch, "");
    let config = generating(&scratch, broker.port, 200, 100_000);
    broker.freeze();
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("a hundred thousand waiting records", secs(60), |status| {
        (count(status, "sinks", "uplink", "buffered_records") >= 100_000).then_some(())
    });
    let Stopped { code, took } = gateway.stop();
    assert_eq!(code, Some(0));
    assert!(took <= secs(5), "it took {took:?}");
    // P1 holds: what waited before waits now, and the rows of the new start come behind it.
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("what waited and more", secs(60), |status| {
        (count(status, "sinks", "uplink", "buffered_records") > 100_000).then_some(())
    });
    let hop = &gateway.status()["ledger"];
    assert_eq!(count(hop, "sinks", "uplink", "delivered"), 0);
    assert_eq!(gateway.stop().code, Some(0));
}

#[test]
fn at_any_moment_of_its_start() {
    let scratch = Scratch::new("early");
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "#", None);
    far_side.wait_subscribed();
    let config = config(&scratch, broker.port);
    for (round, signal) in [Signal::TERM, Signal::INT].into_iter().cycle().take(10).enumerate() {
        let mut gateway = Gateway::start(&scratch, &config);
        wait_until("the store to be opened", secs(10), || {
            gateway.log().matches("store opened").count() == round + 1
        });
        let pause = u64::try_from(round).expect("small") * 15;
        std::thread::sleep(std::time::Duration::from_millis(pause));
        gateway.signal(signal);
        assert_eq!(gateway.wait(secs(6)), Some(0), "round {round}: {}", gateway.log());
    }
    // What the ten starts generated is in order and without a gap.
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("the end of the generated rows", secs(30), |status| {
        (count(&status["ledger_since_start"], "sources", "source", "read") >= 4_000).then_some(())
    });
    gateway.wait_drained(secs(30));
    assert_eq!(gateway.stop().code, Some(0));
    let rows = of_stream(&far_side.records(), "rows");
    repeated(&rows);
    assert_contiguous(&rows);
}

#[test]
fn with_a_frozen_broker_that_feeds_it() {
    let scratch = Scratch::new("feeder");
    let broker = Broker::start(&scratch, "");
    let (head, port) = (head(&scratch), broker.port);
    let config = format!(
        "{head}
devices:
  - name: feed
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{port}\", topics: [ in ], points: [ {{ name: n, type: i64 }} ] }} }}
streams: [ {{ name: rows, from: [feed], sql: 'SELECT n FROM feed', to: [ {{ sink: out }} ] }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
"
    );
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    broker.freeze();
    let stopped = gateway.stop();
    assert_eq!(stopped.code, Some(0));
    assert!(stopped.took <= secs(5), "it took {:?}", stopped.took);
    // And one that is frozen already when the gateway starts.
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.status();
    let stopped = gateway.stop();
    assert_eq!(stopped.code, Some(0));
    assert!(stopped.took <= secs(5), "it took {:?}", stopped.took);
}
