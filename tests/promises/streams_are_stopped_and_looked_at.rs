//! Somebody looks at a running gateway's streams: at their rows as they pass, and at what other SQL
//! would give; and stops one, which stays stopped over a restart and loses nothing.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::records::{Record, assert_contiguous, of_stream};
use crate::harness::{Ended, Scratch, run, secs};

fn config(scratch: &Scratch) -> String {
    let head = head(scratch);
    format!(
        "{head}
devices:
  - {{ name: s, history: 10m, driver: {{ generate: {{ every: 20ms, points: [ {{ name: n, value: {{ counter: {{}} }} }}, {{ name: v, value: {{ constant: 2.5 }} }} ] }} }} }}
streams:
  - {{ name: rows, from: [s], sql: SELECT n FROM s, to: [ {{ sink: out }} ] }}
  - {{ name: sums, from: [s], window: {{ tumbling: {{ size: 1s }} }}, sql: \"SELECT window_start() AS start, count(*) AS c FROM s\", to: [ {{ sink: out }} ] }}
sinks:
  - {{ name: out, driver: {{ stdout: {{}} }} }}
"
    )
}

fn socket(scratch: &Scratch) -> String {
    scratch.join("store/control.sock").display().to_string()
}

fn command(scratch: &Scratch, arguments: &[&str]) -> Ended {
    let socket = socket(scratch);
    let mut all = arguments.to_vec();
    all.extend(["--socket", &socket]);
    run(&all, secs(30))
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn a_stopped_stream_stays_stopped_and_loses_nothing() {
    let scratch = Scratch::new("stop");
    let config = config(&scratch);
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    let stopped = command(&scratch, &["streams", "stop", "rows"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(stopped.stdout.contains("store.max_bytes"), "{stopped:?}");
    let at = count(&gateway.status(), "streams", "rows", "accepted");
    let others = count(&gateway.status(), "streams", "sums", "accepted");
    gateway.wait_status("rows that only the other stream takes", secs(10), |status| {
        assert_eq!(part(status, "streams", "rows")["state"], "stopped");
        assert_eq!(count(status, "streams", "rows", "accepted"), at);
        (count(status, "streams", "sums", "accepted") > others + 50).then_some(())
    });
    // It is an alarm, and no reason to restart the gateway.
    let alarms = gateway.status()["alarms"].to_string();
    assert!(alarms.contains("stream rows") && alarms.contains("stopped by request"), "{alarms}");
    let healthy = command(&scratch, &["healthcheck"]);
    assert_eq!(healthy.code, Some(0), "{healthy:?}");
    let listed = command(&scratch, &["streams", "ls"]);
    let line = listed.stdout.lines().find(|line| line.starts_with("rows")).expect("the stream");
    assert!(line.contains("stopped"), "{listed:?}");
    gateway.kill();

    // Killed and started anew it is still stopped, and its ledger is there.
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("the other stream", secs(20), |status| {
        assert_eq!(part(status, "streams", "rows")["state"], "stopped");
        (part(status, "streams", "sums")["state"] == "up").then_some(())
    });
    let kept = count(&gateway.status(), "streams", "rows", "accepted");
    assert!(kept <= at, "{kept} of {at} were durable");
    let refused = command(&scratch, &["streams", "restart", "rows"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let unknown = command(&scratch, &["streams", "stop", "rowz"]);
    assert!(unknown.stderr.contains("rowz"), "{unknown:?}");

    let started = command(&scratch, &["streams", "start", "rows"]);
    assert_eq!(started.code, Some(0), "{started:?}");
    gateway.wait_status("the rows of meanwhile", secs(20), |status| {
        let of = |stream: &str| count(status, "streams", stream, "accepted");
        (of("rows") + 5 > of("sums")).then_some(())
    });
    // A stream that is built anew goes on where it was.
    let restarted = command(&scratch, &["streams", "restart", "rows"]);
    assert_eq!(restarted.code, Some(0), "{restarted:?}");
    let before = count(&gateway.status(), "streams", "sums", "accepted");
    gateway.wait_status("more rows", secs(20), |status| {
        (count(status, "streams", "rows", "accepted") > before + 20).then_some(())
    });
    let stopped = command(&scratch, &["streams", "stop", "rows"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    gateway.wait_drained(secs(10));
    let results = count(&gateway.status(), "streams", "rows", "results");
    assert_eq!(gateway.stop().code, Some(0));
    let printed = gateway.printed();
    let rows = of_stream(&printed, "rows");
    assert_contiguous(&rows);
    let ids: BTreeSet<_> = rows.iter().map(Record::id).collect();
    assert_eq!(ids.len() as u64, results, "each result once");
}

#[test]
fn rows_are_looked_at_as_they_pass() {
    let scratch = Scratch::new("tap");
    let mut gateway = Gateway::start(&scratch, &config(&scratch));
    gateway.wait_up();
    let rows = command(&scratch, &["tap", "s", "--count", "5"]);
    assert_eq!(rows.code, Some(0), "{rows:?}");
    let rows = json_lines(&rows.stdout);
    let numbers: Vec<_> = rows.iter().map(|row| row["n"].as_u64().expect("a number")).collect();
    assert_eq!(numbers.len(), 5);
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    assert!(rows.iter().all(|row| row["device"] == "s" && row["v"] == 2.5), "{rows:?}");

    let results = command(&scratch, &["tap", "rows", "--for", "500ms"]);
    assert_eq!(results.code, Some(0), "{results:?}");
    let results = json_lines(&results.stdout);
    assert!(results.len() > 5, "{results:?}");
    for result in &results {
        // As the sink has it.
        assert!(result["_id"].as_str().is_some_and(|id| id.contains("/rows/")), "{result}");
        assert_eq!(result["_quality"], "good");
    }
    let nobody = command(&scratch, &["tap", "t", "--count", "1"]);
    assert_eq!(nobody.code, Some(1), "{nobody:?}");
    assert!(nobody.stderr.contains("no stream and no table `t`"), "{nobody:?}");
    assert_eq!(gateway.stop().code, Some(0));
}

#[test]
fn sql_is_tried_over_the_rows_that_are_there() {
    let scratch = Scratch::new("preview");
    let mut gateway = Gateway::start(&scratch, &config(&scratch));
    gateway.wait_status("some windows", secs(20), |status| {
        (count(status, "streams", "sums", "results") >= 3).then_some(())
    });
    let before = gateway.status();
    let window = "tumbling: { size: 1s }";
    let sql = "SELECT window_start() AS start, count(*) AS c, sum(v) AS s FROM s";
    let tried = command(&scratch, &["preview", "s", "--sql", sql, "--window", window]);
    assert_eq!(tried.code, Some(0), "{tried:?}");
    let windows = json_lines(&tried.stdout);
    assert!(windows.len() >= 2, "{tried:?}");
    for window in &windows {
        let rows = window["c"].as_f64().expect("a count");
        let sum = window["s"].as_f64().expect("a sum");
        assert!((sum - rows * 2.5).abs() < 1e-9, "{window}");
    }
    // The stream as it runs gives the windows that it gave.
    let same = command(&scratch, &["preview", "--stream", "sums"]);
    let printed = gateway.printed();
    let gave: Vec<_> = of_stream(&printed, "sums")
        .iter()
        .map(|r| (r.text_of("start").to_owned(), r.int("c")))
        .collect();
    let again = json_lines(&same.stdout);
    let again: Vec<_> = again
        .iter()
        .map(|w| {
            (w["start"].as_str().expect("a time").to_owned(), w["c"].as_i64().expect("a count"))
        })
        .collect();
    assert!(gave.len() >= 2 && again.starts_with(&gave[..2]), "{gave:?} {again:?}");

    // New rows as well, and no more results than were asked for.
    let live = command(
        &scratch,
        &[
            "preview",
            "s",
            "--sql",
            "SELECT n FROM s",
            "--last",
            "0ms",
            "--for",
            "20s",
            "--rows",
            "7",
        ],
    );
    assert_eq!(live.code, Some(0), "{live:?}");
    assert_eq!(json_lines(&live.stdout).len(), 7);
    assert!(live.stderr.contains("ended after 7 results"), "{live:?}");

    for (arguments, words) in [
        (vec!["preview", "s", "--sql", "SELECT n,\n vv FROM s"], "line 2, column 2"),
        (vec!["preview", "s", "--sql", "SELECT count(*) FROM s"], "no window"),
        (vec!["preview", "t", "--sql", "SELECT n FROM t"], "there is no table `t`"),
        (vec!["preview", "s", "--sql", "COPY s TO '/tmp/x'"], "only one SELECT"),
        (vec!["preview", "s", "--sql", "SELECT n FROM s", "--window", "{a: 1}"], "tumbling"),
        (vec!["preview", "--stream", "nobody"], "there is no stream `nobody`"),
    ] {
        let refused = command(&scratch, &arguments);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains(words), "{words}: {refused:?}");
    }
    // Nothing was written for it.
    let after = gateway.status();
    for stream in ["rows", "sums"] {
        assert_eq!(part(&after, "streams", stream)["plans"], 1, "planned once, whatever was tried");
        assert_eq!(part(&before, "streams", stream)["restarts"], 0);
    }
    assert_eq!(after["streams"].as_array().map(Vec::len), Some(2));
    assert_eq!(gateway.stop().code, Some(0));
}

/// A counter every 20 ms, a mode that changes every 200 ms, a lookup, and a stream that another reads.
fn joined(scratch: &Scratch) -> String {
    let head = head(scratch);
    let names = scratch.file("parity.csv", "parity,name\n0,even\n1,odd\n");
    format!(
        "{head}
devices:
  - {{ name: s, history: 10m, driver: {{ generate: {{ every: 20ms, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }}
  - {{ name: mode, history: 10m, driver: {{ generate: {{ every: 200ms, points: [ {{ name: step, value: {{ counter: {{}} }} }} ] }} }} }}
lookups:
  - name: parities
    source: {{ csv: {{ path: {} }} }}
    columns: [ {{ name: parity, type: i64 }}, {{ name: name, type: string }} ]
streams:
  - {{ name: doubled, from: [s], sql: \"SELECT time, 2 * n AS twice FROM s\" }}
  - {{ name: sums, from: [doubled], window: {{ tumbling: {{ size: 1s }} }}, sql: \"SELECT count(*) AS c FROM doubled\", to: [ {{ sink: out }} ] }}
  - {{ name: alone, from: [s], sql: SELECT n FROM s WHERE n < 0, to: [ {{ sink: out }} ] }}
sinks:
  - {{ name: out, driver: {{ stdout: {{}} }} }}
",
        names.display()
    )
}

#[test]
fn a_preview_looks_at_lookups_at_latest_rows_and_at_streams() {
    let scratch = Scratch::new("joined");
    let mut gateway = Gateway::start(&scratch, &joined(&scratch));
    gateway.wait_status("some windows", secs(20), |status| {
        (count(status, "streams", "sums", "results") >= 2).then_some(())
    });
    let rows = |arguments: &[&str]| {
        let tried = command(&scratch, arguments);
        assert_eq!(tried.code, Some(0), "{tried:?}");
        assert!(!tried.stderr.contains("failed: 1"), "{tried:?}");
        let rows = json_lines(&tried.stdout);
        assert!(rows.len() >= 30, "{tried:?}");
        rows
    };
    // Each number by its parity.
    let sql = "SELECT s.n AS n, p.name AS name FROM s JOIN parities AS p ON p.parity = s.n % 2";
    for row in rows(&["preview", "s", "--sql", sql]) {
        let even = row["n"].as_i64().expect("a number") % 2 == 0;
        assert_eq!(row["name"], if even { "even" } else { "odd" }, "{row}");
    }
    // What was last when each row came, among the rows that are there and among new ones.
    let sql = "SELECT s.n AS n, m.step AS step FROM s JOIN latest('mode') AS m ON true";
    for arguments in [vec!["--last", "10m"], vec!["--last", "0ms", "--for", "3s"]] {
        let mut all = vec!["preview", "s", "--sql", sql];
        all.extend(arguments);
        let rows = rows(&all);
        let steps: Vec<_> = rows.iter().map(|row| row["step"].as_i64().expect("a step")).collect();
        assert!(steps.is_sorted() && steps[0] < steps[steps.len() - 1], "{steps:?}");
    }
    // A stream's results as rows of its table: those that are still there, and new ones, each once.
    let new =
        rows(&["preview", "doubled", "--sql", "SELECT twice, seq FROM doubled", "--for", "2s"]);
    let twice: Vec<_> = new.iter().map(|row| row["twice"].as_i64().expect("a number")).collect();
    assert!(twice.windows(2).all(|pair| pair[1] == pair[0] + 2), "{twice:?}");
    let windows = command(
        &scratch,
        &[
            "preview",
            "doubled",
            "--window",
            "tumbling: { size: 1s }",
            "--sql",
            "SELECT count(*) AS c, max(twice) - min(twice) AS span FROM doubled",
            "--for",
            "4s",
        ],
    );
    assert_eq!(windows.code, Some(0), "{windows:?}");
    let windows = json_lines(&windows.stdout);
    assert!(windows.len() >= 2, "{windows:?}");
    for window in windows {
        let rows = window["c"].as_i64().expect("a count");
        assert_eq!(window["span"].as_i64(), Some(2 * (rows - 1)), "{window}");
    }
    for (table, words) in
        [("alone", "no other stream reads them"), ("dubled", "there are: s, mode, doubled")]
    {
        let sql = format!("SELECT 1 AS one FROM {table}");
        let refused = command(&scratch, &["preview", table, "--sql", &sql]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains(words), "{words}: {refused:?}");
    }
    assert_eq!(gateway.stop().code, Some(0));
}

/// Neither a stream that others read, nor one that reads, loses a row or has one twice when somebody
/// restarts, stops and starts it.
#[test]
fn a_stream_that_others_read_is_restarted_by_hand() {
    let scratch = Scratch::new("restart-chain");
    let head = head(&scratch);
    let config = format!(
        "{head}
devices:
  - {{ name: s, driver: {{ generate: {{ every: 10ms, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }}
streams:
  - {{ name: first, from: [s], sql: \"SELECT time, n FROM s\" }}
  - {{ name: pairs, from: [first], window: {{ count: {{ rows: 10 }} }}, sql: \"SELECT min(n) AS low, max(n) AS high, count(DISTINCT n) AS c FROM first\", to: [ {{ sink: out }} ] }}
  - {{ name: sums, from: [first], window: {{ tumbling: {{ size: 500ms }} }}, sql: \"SELECT min(n) AS low, max(n) AS high, count(*) AS c FROM first HAVING count(*) > 0\", to: [ {{ sink: out }} ] }}
sinks:
  - {{ name: out, driver: {{ stdout: {{}} }} }}
"
    );
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    let mut results = 0;
    for (verb, stream) in [
        ("restart", "first"),
        ("restart", "sums"),
        ("restart", "first"),
        ("stop", "first"),
        ("start", "first"),
        ("stop", "sums"),
        ("restart", "first"),
        ("start", "sums"),
        ("restart", "first"),
    ] {
        let done = command(&scratch, &["streams", verb, stream]);
        assert_eq!(done.code, Some(0), "{verb} {stream}: {done:?}");
        if verb != "stop" {
            results = gateway.wait_status("new results of the reader", secs(20), |status| {
                let now = count(status, "streams", "pairs", "results");
                (now >= results + 3).then_some(now)
            });
        }
    }
    let last = gateway.wait_status("the windows of all", secs(20), |status| {
        let now = count(status, "streams", "sums", "results");
        (count(status, "streams", "sums", "accepted") > 10 * results).then_some(now)
    });
    gateway.wait_status("one more", secs(20), |status| {
        (count(status, "streams", "sums", "results") > last + 1).then_some(())
    });
    let status = gateway.status();
    for stream in ["first", "pairs", "sums"] {
        for lost in ["late", "failed", "dropped"] {
            assert_eq!(count(&status, "streams", stream, lost), 0, "{stream} {lost}: {status}");
        }
    }
    assert_eq!(gateway.stop().code, Some(0));
    let printed = gateway.printed();
    for stream in ["pairs", "sums"] {
        let windows = of_stream(&printed, stream);
        assert_contiguous(&windows);
        assert!(windows.len() >= 5, "{} windows", windows.len());
        let mut next = 0;
        for window in &windows {
            let (low, high) = (window.int("low"), window.int("high"));
            assert_eq!((low, window.int("c")), (next, high - low + 1), "{stream}: {}", window.text);
            next = high + 1;
        }
    }
}
