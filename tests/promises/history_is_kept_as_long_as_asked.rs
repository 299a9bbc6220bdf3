//! `history` of a device: its rows stay in the log for that long after all streams have passed them,
//! can be looked at and taken out meanwhile, and then go.
//!
//! What is within the time is there without a hole, however long the gateway runs, and also while none
//! runs; what is beyond it goes, ten seconds later at the latest. A device without a history keeps nothing
//! that no stream needs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::harness::gateway::{Gateway, head, part};
use crate::harness::records::micros;
use crate::harness::{Scratch, run, say, secs, wait_for};

/// How long rows are kept.
const HISTORY_US: i64 = 2_000_000;
/// What is too old is looked for this often.
const LOOK_US: i64 = 10_000_000;
/// Longest time that a machine with much to do may be late by.
const LATE_US: i64 = 3_000_000;

fn config(scratch: &Scratch) -> String {
    let (head, generate) = (
        head(scratch),
        "generate: { every: 20ms, points: [ { name: n, value: { counter: {} } } ] }",
    );
    format!(
        "{head}
devices:
  - {{ name: kept, history: 2s, driver: {{ {generate} }} }}
  - {{ name: passing, driver: {{ {generate} }} }}
streams:
  - {{ name: a, from: [kept], sql: SELECT n FROM kept, to: [ {{ sink: out }} ] }}
  - {{ name: b, from: [passing], sql: SELECT n FROM passing, to: [ {{ sink: out }} ] }}
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
"
    )
}

fn now_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
    i64::try_from(now).expect("before the year 292,000")
}

fn store(scratch: &Scratch, words: &[&str]) -> String {
    let folder = scratch.join("store");
    let folder = folder.to_str().expect("a path");
    let told = run(&[&["store"], words, &["--store", folder]].concat(), secs(20));
    assert_eq!(told.code, Some(0), "{told:?}");
    told.stdout
}

/// Positions of the first row of a table's log, and of the next one behind it.
fn ends(scratch: &Scratch, table: &str) -> (u64, u64) {
    let contents: Value = serde_json::from_str(&store(scratch, &["ls", "--json"])).expect("JSON");
    let log = part(&contents, "tables", table);
    (log["start"].as_u64().expect("a position"), log["end"].as_u64().expect("a position"))
}

/// The rows that can be taken out: number and time of each.
fn rows(scratch: &Scratch) -> Vec<(i64, i64)> {
    let text = store(scratch, &["export", "--table", "kept"]);
    let row = |line: &str| {
        let row: Value = serde_json::from_str(line).expect("JSON");
        (row["n"].as_i64().expect("a number"), micros(row["time"].as_str().expect("a time")))
    };
    text.lines().map(row).collect()
}

/// What is there at a moment: all rows of the last two seconds, and none that is much older. Returns the
/// numbers of the first and the last.
fn assert_kept(scratch: &Scratch) -> (i64, i64) {
    let before = now_us();
    let rows = rows(scratch);
    let after = now_us();
    assert!(rows.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1), "a hole in {rows:?}");
    let ((first, oldest), (last, newest)) = (rows[0], rows[rows.len() - 1]);
    // Rows of one commit go together, which comes every 200 ms.
    assert!(oldest <= after - HISTORY_US + 300_000, "only {} us are kept", after - oldest);
    assert!(oldest >= before - HISTORY_US - LOOK_US - LATE_US, "{} us are kept", before - oldest);
    assert!(newest >= before - LATE_US, "the newest row is {} us old", before - newest);
    (first, last)
}

#[test]
fn rows_within_it_stay_and_rows_beyond_it_go() {
    let scratch = Scratch::new("history");
    let config = config(&scratch);
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    // Three looks: at the start, when nothing is old, and ten and twenty seconds later. In ten seconds come
    // 500 rows, of which those of the last two seconds stay.
    let mut start = 0;
    for look in 1..=2 {
        let moved = wait_for("rows beyond the history to go", secs(30), || {
            // It is a program that looks: not all the time.
            std::thread::sleep(Duration::from_millis(300));
            let (now, _) = ends(&scratch, "kept");
            (now > start).then_some(now)
        });
        assert!((300..600).contains(&(moved - start)), "look {look}: {start}, then {moved}");
        start = moved;
        let (first, last) = assert_kept(&scratch);
        say(format_args!("history: of 50 rows a second for 2 s, {first} to {last} are there"));
    }
    // A commit's rows at most: a second of them, where the machine has much to do.
    let (passing, passed) = ends(&scratch, "passing");
    assert!(passed >= 900 && passed - passing < 50, "{passing} to {passed} without a history");
    let (first, last) = assert_kept(&scratch);
    assert_eq!(gateway.stop().code, Some(0));

    // Nobody lets go of anything while none runs: what stays can be taken out.
    let (start, end) = ends(&scratch, "kept");
    let left = rows(&scratch);
    assert_eq!(left.len() as u64, end - start, "{start} to {end}");
    assert!(left[0].0 <= first && left[left.len() - 1].0 >= last, "{first} to {last} were there");
    assert_eq!(rows(&scratch), left);
}
