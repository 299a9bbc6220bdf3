//! A trap of acknowledging after the commit: mosquitto sends 20 messages at most before it waits
//! for an acknowledgement. A gateway that acknowledges when a window closes takes 20 messages a
//! window: 3,000 messages would take 150 windows of 10 s, 25 minutes.
//!
//! Here: a message is acknowledged once its row is durable, and the store commits at once while
//! somebody waits.

use std::io::Write;
use std::process::Stdio;

use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, count, head};
use crate::harness::records::{of_stream, repeated};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Program, Scratch, command, program, secs};

/// How many messages are published.
const MESSAGES: u64 = 3_000;

/// The rate that must be reached at least, also by a debug build on a busy machine.
const RATE_MIN: f64 = 200.0;

fn config(scratch: &Scratch, port: u16) -> String {
    let head = head(scratch);
    format!(
        r#"{head}
devices:
  - name: feed
    driver:
      mqtt:
        url: "mqtt://127.0.0.1:{port}"
        topics: [ "in/#" ]
        qos: 1
        points: [ {{ name: n, type: i64 }} ]
streams:
  - name: counts
    from: [feed]
    window: {{ tumbling: {{ size: 10s }} }}
    idle_after: 2s
    sql: SELECT window_start() AS start, count(*) AS n, count(DISTINCT n) AS different, sum(n) AS sum FROM feed
    to: [ {{ sink: out }} ]
sinks:
  - {{ name: out, driver: {{ mqtt: {{ url: "mqtt://127.0.0.1:{port}", topic: "out/{{stream}}" }} }} }}
"#
    )
}

#[test]
fn three_thousand_messages_in_a_few_seconds() {
    let scratch = Scratch::new("qos1");
    // `max_inflight_messages` is mosquitto's default: 20.
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "out/#", None);
    far_side.wait_subscribed();
    let port = broker.port;
    let mut gateway = Gateway::start(&scratch, &config(&scratch, port));
    gateway.wait_up();

    let mut command = command(program("mosquitto_pub"));
    command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-t", "in/n", "-q", "1", "-l"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut publisher = Program::start("mosquitto_pub", &mut command, &scratch.join("pub.log"));
    let began = gateway.status()["gateway"]["uptime_s"].as_f64().expect("an uptime");
    let mut to = publisher.child.stdin.take().expect("a pipe");
    for n in 0..MESSAGES {
        writeln!(to, "{{\"n\": {n}}}").expect("a publisher that reads");
    }
    drop(to);
    let ended = gateway.wait_status("all messages to be accepted", secs(30), |status| {
        let accepted = count(&status["ledger"], "sources", "feed", "accepted");
        (accepted >= MESSAGES).then(|| status["gateway"]["uptime_s"].as_f64().expect("an uptime"))
    });
    assert_eq!(publisher.wait(secs(10)).code(), Some(0));
    let rate = f64::from(u32::try_from(MESSAGES).expect("few")) / (ended - began);
    eprintln!("QoS 1 in: {rate:.0} messages a second");
    assert!(rate >= RATE_MIN, "{rate:.0} messages a second");

    let sum = |column: &str| {
        far_side.look(|all| all.iter().map(|record| record.int(column)).sum::<i64>())
    };
    let all = i64::try_from(MESSAGES).expect("few");
    gateway.wait_status("the last window", secs(25), |_| (sum("n") >= all).then_some(()));
    let windows = of_stream(&far_side.records(), "counts");
    assert_eq!(repeated(&windows), 0);
    assert_eq!(sum("n"), all);
    assert_eq!(sum("different"), all);
    // 0 + 1 + … + 2,999.
    assert_eq!(sum("sum"), all * (all - 1) / 2);
    assert_eq!(count(&gateway.status(), "streams", "counts", "late"), 0);
    assert_eq!(gateway.stop().code, Some(0));
}
