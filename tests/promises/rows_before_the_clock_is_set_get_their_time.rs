//! Fault F11: the power comes back, the clock has no battery, and the network that sets it comes later.
//! Rows used to keep the stamps that they got meanwhile: a power cut of eight hours put ten minutes of
//! them where the power went.
//!
//! Here, with libfaketime between the binary and the system: rows wait until the clock is set, are then
//! in the windows of the time at which they really came, once each, whenever the process is killed; and
//! where nobody sets the clock they go on as doubtful.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::a_change_touches_only_what_differs::apply;
use crate::harness::clock::{in_1970, micros_now, set, start};
use crate::harness::gateway::{Gateway, count, head};
use crate::harness::records::{Record, assert_contiguous, of_stream, repeated};
use crate::harness::{Scratch, secs, wait_for, wait_until};

/// Rows come every 20 ms, and are numbered from 0 at each start.
fn config(scratch: &Scratch, wait: &str, rows: u32) -> String {
    let head = head(scratch).replace("name: test", &format!("name: test, wait_for_clock: {wait}"));
    format!(
        r#"{head}
devices:
  - name: s
    driver: {{ generate: {{ every: 20ms, count: {rows}, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }}
  - name: u
    driver: {{ generate: {{ every: 100ms, count: 40, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }}
streams:
  - {{ name: rows, from: [s], sql: "SELECT time, seq AS number, quality, n FROM s", to: [ {{ sink: out }} ] }}
  - name: windows
    from: [s]
    window: {{ tumbling: {{ size: 1s }} }}
    idle_after: 1s
    sql: SELECT window_start() AS start, count(*) AS rows, min(seq) AS low, max(seq) AS high FROM s
    to: [ {{ sink: out }} ]
  - name: both
    from: [s, u]
    window: {{ tumbling: {{ size: 1s }} }}
    idle_after: 1s
    sql: SELECT (SELECT count(*) FROM s) AS of_s, (SELECT count(*) FROM u) AS of_u
    to: [ {{ sink: out }} ]
  - {{ name: second, from: [windows], sql: "SELECT time, rows FROM windows", to: [ {{ sink: out }} ] }}
sinks:
  - {{ name: out, driver: {{ stdout: {{}} }} }}
"#
    )
}

fn accepted(status: &Value) -> u64 {
    count(&status["ledger"], "sources", "s", "accepted")
}

fn wait_accepted(gateway: &mut Gateway, rows: u64) {
    gateway.wait_status("rows to be accepted", secs(60), |s| (accepted(s) >= rows).then_some(()));
}

/// Rows of table `s` that wait, were moved, and were left where they are.
fn clock_rows(status: &Value) -> (u64, u64, u64) {
    let tables = status["clock_wait"]["tables"].as_array().expect("tables");
    let table = tables.iter().find(|table| table["table"] == "s").expect("table s");
    let rows = |what: &str| table[what].as_u64().unwrap_or_else(|| panic!("{what} in {table}"));
    (rows("waiting"), rows("rebased"), rows("doubted"))
}

/// Records without those that came again after a kill.
fn once(printed: &[Record], stream: &str) -> Vec<Record> {
    repeated(printed);
    let by_number: BTreeMap<u64, Record> =
        of_stream(printed, stream).into_iter().map(|r| (r.id_parts().3, r)).collect();
    let records: Vec<Record> = by_number.into_values().collect();
    assert_contiguous(&records);
    records
}

/// Panics unless the windows are those that a person makes of the rows, and rows are in order.
fn assert_windows(printed: &[Record]) -> Vec<Record> {
    let (rows, windows) = (once(printed, "rows"), once(printed, "windows"));
    let numbers: Vec<i64> = rows.iter().map(|row| row.int("number")).collect();
    assert_eq!(numbers, (0..).take(rows.len()).collect::<Vec<i64>>(), "each row once, in order");
    let times: Vec<i64> = rows.iter().map(|row| row.micros("time")).collect();
    assert!(times.is_sorted(), "{times:?}");
    let mut expected: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    for (number, time) in numbers.iter().zip(&times) {
        let window = expected.entry(time.div_euclid(1_000_000)).or_insert((*number, *number));
        window.1 = *number;
    }
    let expected: Vec<_> = expected
        .iter()
        .map(|(start, (low, high))| (start * 1_000_000, high - low + 1, *low, *high))
        .collect();
    let came: Vec<_> = windows
        .iter()
        .map(|w| (w.micros("start"), w.int("rows"), w.int("low"), w.int("high")))
        .collect();
    assert_eq!(came, expected);
    let second: Vec<i64> = once(printed, "second").iter().map(|row| row.int("rows")).collect();
    assert_eq!(second, expected.iter().map(|window| window.1).collect::<Vec<_>>());
    rows
}

/// All rows have come, and are in windows.
fn wait_printed(gateway: &Gateway, rows: usize) {
    wait_until("all rows and their windows", secs(60), || {
        let printed = gateway.printed();
        let windowed: i64 = once(&printed, "second").iter().map(|row| row.int("rows")).sum();
        once(&printed, "rows").len() >= rows && usize::try_from(windowed).is_ok_and(|n| n >= rows)
    });
}

#[test]
fn f11_rows_before_the_clock_was_set_are_in_the_windows_of_their_time() {
    let scratch = Scratch::new("unset");
    let config = config(&scratch, "10m", 250);
    let began = micros_now();
    let mut gateway = start(&scratch, &config, in_1970());
    wait_accepted(&mut gateway, 80);
    let seen = micros_now();
    let status = gateway.status();
    assert_eq!(status["gateway"]["clock"], "unknown");
    assert!(clock_rows(&status).0 >= 80, "{}", status["clock_wait"]);
    let left = status["clock_wait"]["left_s"].as_f64().expect("a time");
    assert!(left > 400.0 && left < 600.0, "{left}");
    let alarm = status["alarms"][0]["reason"].as_str().expect("a reason").to_owned();
    assert!(alarm.contains("rows wait for it"), "{alarm}");
    assert_eq!(gateway.printed().len(), 0, "a result would have a wrong time");
    set(&scratch, 0);
    wait_printed(&gateway, 250);
    let ended = micros_now();
    let status = gateway.status();
    assert_eq!(status["gateway"]["clock"], "certain");
    let (waiting, rebased, doubted) = clock_rows(&status);
    assert!(waiting == 0 && (80..250).contains(&rebased) && doubted == 0, "{rebased}");
    let by = status["clock_wait"]["rebased_by_s"].as_f64().expect("a time");
    // Without a store that knows better, time began with November 2026.
    assert!((began as f64 / 1e6 - 1_793_491_200.0 - by).abs() < 30.0, "{by}");
    for stream in ["windows", "both"] {
        assert_eq!(count(&status, "streams", stream, "late"), 0, "{stream}");
    }
    wait_until("all rows of both tables", secs(30), || {
        let both = once(&gateway.printed(), "both");
        let sum = |name: &str| both.iter().map(|window| window.int(name)).sum::<i64>();
        (sum("of_s"), sum("of_u")) == (250, 40)
    });
    assert_eq!(gateway.stop().code, Some(0));

    let printed = gateway.printed();
    let rows = assert_windows(&printed);
    assert_eq!(rows.len(), 250);
    for row in &rows {
        let (n, time) = (row.int("n"), row.micros("time"));
        let until = if n < 80 { seen } else { ended };
        assert!(time >= began && time <= until, "{} of {began}..{until}", row.text);
        assert_eq!((row.text_of("quality"), row.int("number")), ("good", n));
    }
    for window in once(&printed, "windows") {
        assert_eq!(window.text_of("_quality"), "good", "{}", window.text);
    }
}

/// Killed while rows wait, in the moments around the set clock, and after it.
#[test]
fn f11_a_kill_at_any_moment_loses_no_row_and_moves_none_twice() {
    for moment in ["waiting", "set", "certain", "rebased", "printed"] {
        let scratch = Scratch::new("unset-killed");
        let began = micros_now();
        let mut gateway = start(&scratch, &config(&scratch, "10m", 100_000), in_1970());
        wait_accepted(&mut gateway, 60);
        if moment != "waiting" {
            set(&scratch, 0);
        }
        match moment {
            "certain" => gateway.wait_status("a clock", secs(20), |status| {
                (status["gateway"]["clock"] == "certain").then_some(())
            }),
            "rebased" => gateway.wait_status("rows to be moved", secs(20), |status| {
                (clock_rows(status).1 > 0).then_some(())
            }),
            "printed" => {
                wait_for("results", secs(20), || (!gateway.printed().is_empty()).then_some(()));
            }
            _ => {}
        }
        gateway.kill();
        let killed = micros_now();

        // The power stayed on: the clock is what it was.
        let off = if moment == "waiting" { in_1970() } else { 0 };
        let mut gateway = start(&scratch, &config(&scratch, "10m", 50), off);
        let since = |s: &Value| count(&s["ledger_since_start"], "sources", "s", "accepted");
        gateway.wait_status("rows", secs(60), |s| (since(s) >= 25).then_some(()));
        set(&scratch, 0);
        let status = gateway.wait_status("all rows", secs(60), |status| {
            (since(status) == 50).then(|| status.clone())
        });
        let all = usize::try_from(accepted(&status)).expect("few");
        wait_printed(&gateway, all);
        let status = gateway.status();
        let (waiting, rebased, doubted) = clock_rows(&status);
        assert!(waiting == 0 && rebased >= 60 && doubted == 0, "{moment}: {rebased}, {doubted}");
        assert_eq!(gateway.stop().code, Some(0));
        let ended = micros_now();

        let rows = assert_windows(&gateway.printed());
        assert_eq!(rows.len(), all, "{moment}");
        for (index, row) in rows.iter().enumerate() {
            let span = if index < all - 50 { began..killed } else { killed..ended };
            assert!(span.contains(&row.micros("time")), "{moment}: {} of {span:?}", row.text);
            assert_eq!(row.text_of("quality"), "good", "{moment}: {}", row.text);
        }
    }
}

#[test]
fn f11_where_nobody_sets_the_clock_rows_go_on_as_doubtful() {
    let scratch = Scratch::new("never-set");
    let config = config(&scratch, "2s", 250);
    let mut gateway = start(&scratch, &config, in_1970());
    wait_accepted(&mut gateway, 25);
    assert_eq!(gateway.printed().len(), 0);
    let status = gateway.wait_status("the end of the wait", secs(30), |status| {
        status["clock_wait"]["left_s"].is_null().then(|| status.clone())
    });
    assert_eq!(status["gateway"]["clock"], "unknown");
    wait_for("results", secs(30), || (!gateway.printed().is_empty()).then_some(()));
    // Too late: these rows have been given out as they are.
    set(&scratch, 0);
    wait_printed(&gateway, 250);
    let (waiting, rebased, doubted) = clock_rows(&gateway.status());
    assert!(waiting == 0 && rebased == 0 && doubted >= 25, "{doubted}");
    assert_eq!(gateway.stop().code, Some(0));
    let rows = assert_windows(&gateway.printed());
    for row in &rows[..25] {
        assert_eq!(row.text_of("quality"), "uncertain");
        // 2026-11-01, where time begins without a clock.
        assert!(row.text_of("time").starts_with("2026-11-01T00:0"), "{}", row.text);
    }
}

/// A stream that waits owes no result, so that a change is not undone; and the wait can be ended.
#[test]
fn f11_a_configuration_is_taken_while_rows_wait() {
    let scratch = Scratch::new("unset-changed");
    let mut gateway = start(&scratch, &config(&scratch, "10m", 250), in_1970());
    wait_accepted(&mut gateway, 25);
    let new = config(&scratch, "1s", 250).replace("name: second", "name: third");
    let applied = apply(&scratch, &gateway, &new);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    gateway.wait_status("the end of the wait", secs(30), |status| {
        status["clock_wait"]["left_s"].is_null().then_some(())
    });
    wait_until("rows of all streams", secs(60), || {
        let printed = gateway.printed();
        once(&printed, "rows").len() >= 200 && !once(&printed, "third").is_empty()
    });
    assert_eq!(gateway.stop().code, Some(0));
}
