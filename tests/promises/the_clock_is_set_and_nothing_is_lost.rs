//! Fault F11: the clock begins in 1970 and is set, is stepped an hour back and forth, and passes what
//! 32 bits of seconds hold. A step back used to make each row late until the clock had caught up; a
//! step forward made what waited for its sink too old.
//!
//! Here, with libfaketime between the binary and the system: every row arrives once and in order under
//! the same id as with a clock that is right, is in exactly one window, no window comes twice, and
//! nothing that waits is given up.

use crate::harness::clock::{in_1970, micros_now, set, start};
use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::records::{Record, assert_contiguous, of_stream};
use crate::harness::{Scratch, free_port, secs, wait_until};

const ROWS: i64 = 250;

/// What `date -u -d` gives for 2038-01-19T03:14:05: three seconds before 32 bits overflow.
const BEFORE_2038: i64 = 2_147_483_645;

/// One clock: how far it is off at the start, and after 80 and after 160 rows; in seconds.
struct Clock {
    name: &'static str,
    off: [i64; 3],
}

fn now() -> i64 {
    micros_now() / 1_000_000
}

fn config(scratch: &Scratch, dead: u16) -> String {
    // Rows do not wait for the clock here: it may be set at once, or never.
    let head = head(scratch).replace("name: test", "name: test, wait_for_clock: 0s");
    format!(
        r#"{head}
devices:
  - name: s
    driver: {{ generate: {{ every: 20ms, count: {ROWS}, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }}
streams:
  - {{ name: rows, from: [s], sql: SELECT n FROM s, to: [ {{ sink: out }}, {{ sink: dead }} ] }}
  - name: windows
    from: [s]
    window: {{ tumbling: {{ size: 1s }} }}
    idle_after: 1s
    sql: SELECT window_start() AS start, count(*) AS n, min(n) AS low, max(n) AS high FROM s
    to: [ {{ sink: out }} ]
sinks:
  - {{ name: out, driver: {{ stdout: {{}} }} }}
  - {{ name: dead, driver: {{ mqtt: {{ url: "mqtt://127.0.0.1:{dead}" }} }}, store: {{ max_age: 30m }} }}
"#
    )
}

/// A gateway whose clock is off by what stands in a file.
struct Run {
    clock: Clock,
    scratch: Scratch,
    gateway: Gateway,
    steps: usize,
}

impl Run {
    fn new(clock: Clock) -> Self {
        let scratch = Scratch::new("clock");
        let gateway = start(&scratch, &config(&scratch, free_port()), clock.off[0]);
        Self { clock, scratch, gateway, steps: 0 }
    }

    /// Sets the clock when it is time to. True when all rows and windows have come.
    fn look(&mut self, rows: i64) -> bool {
        let printed = self.gateway.printed();
        let came = i64::try_from(of_stream(&printed, "rows").len()).expect("few");
        let due = [80, 160].iter().filter(|step| came >= **step).count();
        if due > self.steps {
            self.steps = due;
            set(&self.scratch, self.clock.off[due]);
        }
        let windows = of_stream(&printed, "windows");
        came >= rows && windows.iter().map(|w| w.int("n")).sum::<i64>() >= rows
    }

    fn finish(mut self) -> Vec<Record> {
        let name = self.clock.name;
        // Old records are looked for every ten seconds: once more since the last step.
        let status = self.gateway.wait_status("a look for old records", secs(60), |status| {
            (status["gateway"]["uptime_s"].as_f64()? > 21.0).then(|| status.clone())
        });
        assert_eq!(count(&status, "streams", "windows", "late"), 0, "{name}");
        assert_eq!(count(&status, "streams", "windows", "future"), 0, "{name}");
        let dead = part(&status, "sinks", "dead");
        assert_eq!(dead["buffered_records"], ROWS, "{name}: {dead:#}");
        assert!(dead["dropped"].as_object().is_some_and(serde_json::Map::is_empty), "{name}");
        assert_eq!(self.gateway.stop().code, Some(0), "{name}");
        self.gateway.printed()
    }
}

/// Each row is in one window, no window comes twice, and they come in order.
fn assert_windows(name: &str, printed: &[Record], runs: i64) {
    let windows = of_stream(printed, "windows");
    assert_contiguous(&windows);
    let starts: Vec<_> = windows.iter().map(|w| w.micros("start")).collect();
    assert!(starts.windows(2).all(|pair| pair[0] < pair[1]), "{name}: {starts:?}");
    assert_eq!(windows.iter().map(|w| w.int("n")).sum::<i64>(), runs * ROWS, "{name}");
    let mut next = 0;
    for window in &windows {
        assert_eq!((window.int("low"), window.int("high") + 1), (next, next + window.int("n")));
        next = (window.int("high") + 1) % ROWS;
    }
}

#[test]
fn f11_the_output_is_that_of_a_clock_that_is_right() {
    let past_2038 = BEFORE_2038 - now();
    let clocks = [
        Clock { name: "right", off: [0, 0, 0] },
        Clock { name: "1970, then set", off: [in_1970(), 0, 0] },
        Clock { name: "an hour back, and forward", off: [0, -3_600, 0] },
        Clock { name: "an hour forward, and back", off: [0, 3_600, 0] },
        Clock { name: "past 2038", off: [past_2038; 3] },
    ];
    let mut runs: Vec<_> = clocks.map(Run::new).into_iter().collect();
    wait_until("all rows under all clocks", secs(120), || {
        // Each of them is looked at: its clock may be to be set.
        runs.iter_mut().filter_map(|run| (!run.look(ROWS)).then_some(())).count() == 0
    });
    let names: Vec<_> = runs.iter().map(|run| run.clock.name).collect();
    let golden: Vec<String> = (0..ROWS).map(|n| format!("{} {n}", n + 1)).collect();
    for (name, run) in names.into_iter().zip(runs) {
        let printed = run.finish();
        let rows: Vec<_> = of_stream(&printed, "rows")
            .iter()
            .map(|row| format!("{} {}", row.id_parts().3, row.int("n")))
            .collect();
        assert_eq!(rows, golden, "{name}");
        assert_windows(name, &printed, 1);
    }
}

#[test]
fn f11_a_start_in_1970_goes_on_behind_what_is_stored() {
    let right = Clock { name: "right", off: [0; 3] };
    let mut run = Run::new(right);
    wait_until("all rows of the first run", secs(60), || run.look(ROWS));
    assert_eq!(run.gateway.stop().code, Some(0));
    // The power was off for a while, and the clock has no battery.
    run.clock = Clock { name: "1970", off: [in_1970(), in_1970(), 60] };
    run.gateway = start(&run.scratch, &config(&run.scratch, free_port()), run.clock.off[0]);
    run.steps = 2;
    let status = run.gateway.wait_status("rows without a clock", secs(30), |status| {
        let accepted = count(status, "streams", "rows", "accepted");
        (accepted >= 80 + ROWS.unsigned_abs()).then(|| status.clone())
    });
    assert_eq!(status["gateway"]["clock"], "unknown");
    assert_eq!(status["alarms"][0]["part"], "clock", "{:#}", status["alarms"]);
    set(&run.scratch, 60);
    wait_until("all rows of the second run", secs(60), || run.look(2 * ROWS));
    let status = run.gateway.status();
    assert_eq!(status["gateway"]["clock"], "certain");
    assert_eq!(count(&status, "streams", "windows", "late"), 0);
    assert_eq!(count(&status, "sinks", "dead", "buffered_records"), 2 * ROWS.unsigned_abs());
    assert_eq!(run.gateway.stop().code, Some(0));
    let printed = run.gateway.printed();
    assert_windows("1970", &printed, 2);
    let windows = of_stream(&printed, "windows");
    let quality = |window: &Record| window.text_of("_quality").to_owned();
    assert_eq!(quality(&windows[0]), "good");
    assert!(windows.iter().any(|window| quality(window) == "uncertain"));
}
