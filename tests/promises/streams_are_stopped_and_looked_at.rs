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
