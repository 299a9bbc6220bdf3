//! A stream's results are handed to a program beside the gateway (real pyarrow, the module that is
//! shown in gateway/examples/process). It may be away, end, hang or refuse, and the gateway may be
//! killed: each window is in the results once, or counted as failed, and other streams go on.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;

use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::mqtt::Client;
use crate::harness::records::{Record, assert_contiguous, of_stream};
use crate::harness::{Program, Scratch, command, python, repository, run, secs, wait_until};

fn config(scratch: &Scratch, broker: u16) -> String {
    let (head, socket) = (head(scratch), socket(scratch));
    let socket = socket.display();
    format!(
        "{head}
devices: [ {{ name: s, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{broker}\", topics: [ in ], qos: 1, backoff_min: 50ms, backoff_max: 200ms, decode: {{ json: {{ time: ts }} }}, points: [ {{ name: n, type: i64 }} ] }} }} }} ]
streams:
  - name: doubled
    from: [s]
    window: {{ tumbling: {{ size: 1s }} }}
    idle_after: 600s
    sql: SELECT n FROM s ORDER BY n
    process: {{ socket: {socket}, timeout: 1s, columns: [ {{ name: n, type: i64 }}, {{ name: twice, type: f64 }}, {{ name: width, type: i64 }} ] }}
    to: [ {{ sink: out }} ]
  - {{ name: plain, from: [s], sql: SELECT n FROM s, to: [ {{ sink: out }} ] }}
sinks:
  - {{ name: out, driver: {{ stdout: {{}} }} }}
"
    )
}

fn socket(scratch: &Scratch) -> PathBuf {
    scratch.join("p.sock")
}

fn program(scratch: &Scratch) -> Program {
    let mut command = command(python());
    command.arg(repository().join("tests/process_program.py")).arg(socket(scratch));
    let log = File::create(scratch.join("program.out")).expect("a file");
    let program = Program::start("program", command.stdout(log), &scratch.join("program.log"));
    wait_until("the program's socket", secs(20), || socket(scratch).exists());
    program
}

/// Window `w` has the numbers 10 w and 10 w + 1.
fn publish(client: &mut Client, windows: std::ops::Range<i64>) {
    for w in windows {
        for (row, ms) in [(0, 100), (1, 600)] {
            let (n, ts) = (10 * w + row, 1_700_000_000_000 + w * 1_000 + ms);
            let message = format!("{{\"ts\": {ts}, \"n\": {n}}}");
            client.publish("in", message.as_bytes()).expect("a broker");
        }
    }
}

/// Number → its double, of all results; the same id always has the same content.
fn doubled(records: &[Record]) -> BTreeMap<i64, f64> {
    let mut by_id: BTreeMap<String, String> = BTreeMap::new();
    let mut doubled = BTreeMap::new();
    let rows = of_stream(records, "doubled");
    assert_contiguous(&rows);
    for row in rows {
        let before = by_id.insert(row.id().to_owned(), row.text.clone());
        assert!(before.as_ref().is_none_or(|before| *before == row.text), "{}", row.text);
        assert_eq!(row.int("width"), 1_000_000, "{}", row.text);
        if before.is_none() {
            let twice = doubled.insert(row.int("n"), row.number("twice"));
            assert_eq!(twice, None, "{} twice", row.text);
        }
    }
    doubled
}

fn expected(windows: std::ops::Range<i64>, without: &[i64]) -> BTreeMap<i64, f64> {
    let windows = windows.filter(|w| !without.contains(w));
    windows.flat_map(|w| [10 * w, 10 * w + 1]).map(|n| (n, 2.0 * n as f64)).collect()
}

#[test]
fn each_window_goes_through_the_program_once_whatever_happens_to_it() {
    let scratch = Scratch::new("process");
    let broker = crate::harness::broker::Broker::start(&scratch, "");
    let config = config(&scratch, broker.port);
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("the feed", secs(20), |status| {
        (part(status, "devices", "s")["state"] == "up").then_some(())
    });
    let mut client = Client::connect(broker.port, "near").expect("a broker");

    // Nobody is there: nothing is lost, it is shown, and the other stream goes on.
    publish(&mut client, 0..5);
    gateway.wait_status("the other stream", secs(20), |status| {
        (count(status, "streams", "plain", "results") == 10).then_some(())
    });
    gateway.wait_status("the program to be missed", secs(20), |status| {
        let stream = part(status, "streams", "doubled");
        let away = stream["last_error"].as_str().is_some_and(|error| error.contains("is away"));
        (away && stream["state"] == "down").then_some(())
    });
    let unwell = run(
        &["healthcheck", "--socket", &scratch.join("store/control.sock").display().to_string()],
        secs(10),
    );
    assert_eq!(unwell.code, Some(1), "{unwell:?}");
    let mut beside = program(&scratch);
    // Windows 0 to 3: window 4 is open until a later row comes.
    let results = |gateway: &mut Gateway, results: u64| {
        gateway.wait_status("results", secs(60), |status| {
            (count(status, "streams", "doubled", "results") == results).then_some(())
        });
    };
    results(&mut gateway, 8);

    // It refuses window 5, and goes on.
    fs::write(scratch.join("refuse"), "50").expect("a file");
    publish(&mut client, 5..8);
    results(&mut gateway, 12);
    let status = gateway.status();
    assert_eq!(count(&status, "streams", "doubled", "failed"), 2);
    let error = part(&status, "streams", "doubled")["last_error"].to_string();
    assert!(error.contains("ValueError: not this one"), "{error}");

    // The gateway is killed; windows that were processed and committed do not come again.
    gateway.kill();
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    publish(&mut client, 8..10);
    results(&mut gateway, 16);

    // It hangs over window 9 for ever: three times, then the window has failed.
    fs::write(scratch.join("hang"), "91").expect("a file");
    publish(&mut client, 10..12);
    results(&mut gateway, 18);
    assert_eq!(count(&gateway.status(), "streams", "doubled", "failed"), 4);

    // It ends over window 11, and its service starts it again.
    fs::write(scratch.join("die"), "110").expect("a file");
    publish(&mut client, 12..14);
    wait_until("its end", secs(20), || !beside.runs());
    fs::write(scratch.join("die"), "").expect("a file");
    let beside = program(&scratch);
    results(&mut gateway, 22);
    assert_eq!(count(&gateway.status(), "streams", "doubled", "failed"), 4);

    wait_until("the last result", secs(10), || {
        of_stream(&gateway.printed(), "doubled").iter().any(|row| row.int("n") == 121)
    });
    assert_eq!(gateway.stop().code, Some(0));
    // Window 13 is still open. What the program was asked again is not in the results again.
    assert_eq!(doubled(&gateway.printed()), expected(0..13, &[5, 9]));
    let asked = fs::read_to_string(scratch.join("asked")).expect("what it was asked");
    assert_eq!(asked.matches("[90, 91]").count(), 3, "{asked}");
    drop(beside);
}

#[test]
fn columns_that_are_not_as_declared_are_told() {
    let scratch = Scratch::new("columns");
    let config = "version: 1\ngateway: { name: g }\ndevices: [ { name: s, driver: { generate: { points: [ { name: n, value: { counter: {} } } ] } } } ]
streams:
  - name: doubled
    from: [s]
    sql: SELECT n FROM s
    process: { socket: p.sock, timeout: 0s, columns: [ { name: n, type: i64 }, { name: n, type: f64 } ] }
    to: [ { sink: out } ]
sinks: [ { name: out, driver: { stdout: {} } } ]
";
    let path = scratch.file("t.yaml", config);
    let checked = run(&["check", path.to_str().expect("a path")], secs(10));
    assert_eq!(checked.code, Some(78), "{checked:?}");
    let text = format!("{}{}", checked.stdout, checked.stderr);
    for words in ["`p.sock` is no path", "that may take 0s", "two columns are called `n`"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}
