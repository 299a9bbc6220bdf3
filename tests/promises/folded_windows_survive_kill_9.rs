//! A long window whose rows are folded into states: killed again and again, each row is in its result
//! once; its log is short although it is open; and SQL that is changed while it is open ends it by
//! the SQL of before.

use std::fs;

use serde_json::Value;

use crate::harness::gateway::{Gateway, head, part};
use crate::harness::records::{lines, of_stream};
use crate::harness::{Scratch, run, secs, setting};

/// One source of contiguous numbers, one window of a day.
fn config(scratch: &Scratch, sql: &str) -> String {
    let (head, file) = (head(scratch), scratch.join("out.jsonl"));
    format!(
        "{head}
devices:
  - {{ name: a, table: t, driver: {{ generate: {{ every: 10ms, rows: 80, points: [ {{ name: v, value: {{ constant: 1 }} }} ] }} }} }}
streams:
  - {{ name: day, from: [t], window: {{ tumbling: {{ size: 10000d }} }}, sql: \"{sql}\", to: [ {{ sink: disk }} ] }}
sinks:
  - {{ name: disk, driver: {{ file: {{ path: {} }} }} }}
",
        file.display()
    )
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} of {value}"))
}

#[test]
fn each_row_is_in_the_window_once() {
    let scratch = Scratch::new("folded");
    let counting =
        "SELECT count(*) AS n, sum(seq) AS total, max(seq) AS top, avg(v) AS mean FROM t";
    let config_of = |sql: &str| config(&scratch, sql);
    let mut open = 0;
    for round in 0..setting("TIDEGATE_TEST_FOLDED_KILLS", 3) {
        let mut gateway = Gateway::start(&scratch, &config_of(counting));
        let rows = |status: &Value| {
            let hop = part(&status["ledger"], "streams", "day");
            let parts = ["windowed", "late", "filtered", "failed", "dropped"];
            assert!(parts.iter().all(|key| number(hop, key) == 0), "{hop}");
            number(hop, "open")
        };
        gateway.wait_status("to hold states", secs(30), |status| {
            (part(status, "streams", "day")["mode"] == "incremental").then_some(())
        });
        let before = gateway.wait_status("its window", secs(30), |status| {
            (status["ledger"]["streams"].as_array().is_some_and(|s| !s.is_empty()))
                .then(|| rows(status))
                .filter(|rows| *rows >= open)
        });
        open = gateway.wait_status("more rows", secs(90), |status| {
            let now = rows(status);
            (now >= before + 36_000 + 1_700 * round).then_some(now)
        });
        gateway.kill();
    }
    let store = scratch.join("store");
    let store = store.to_str().expect("a path");
    let inspected = run(&["store", "inspect", "--json", "--store", store], secs(20));
    assert_eq!(inspected.code, Some(0), "{inspected:?}");
    let contents: Value = serde_json::from_str(&inspected.stdout).expect("JSON");
    let table = &contents["tables"][0];
    let held = number(table, "end") - number(table, "start");
    // 65,536 rows make a fold; some are on their way, and the log is cut in pieces.
    assert!(held < 75_000 && open > 108_000, "{held} rows in the log of {open} in the window");

    // Changed SQL: the one of before ends what it began.
    let mut gateway = Gateway::start(&scratch, &config_of("SELECT min(seq) AS low FROM t"));
    gateway.wait_status("the old window's result", secs(60), |status| {
        (number(part(&status["ledger"], "sinks", "disk"), "delivered") == 1).then_some(())
    });
    assert_eq!(gateway.stop().code, Some(0));
    let written = fs::read_to_string(scratch.join("out.jsonl")).expect("the file");
    let rows = lines(&written);
    let rows = of_stream(&rows, "day");
    assert_eq!(rows.len(), 1, "{written}");
    let (n, total, top) = (rows[0].int("n"), rows[0].int("total"), rows[0].int("top"));
    // Numbers without a hole from 0 on: each once means their count and their sum.
    assert!(n > 108_000, "{n} rows");
    assert_eq!((top, total), (n - 1, n * (n - 1) / 2), "{written}");
}
