//! Promise: a device is asked on the grid of its first cycle, whatever else the gateway does.
//!
//! A row's `time` is when its answer came, so the rows tell how late each cycle was. Beside the
//! polling a window closes each second and a commit is made every 200 ms. The bound is for the
//! median, because this machine may be busy: what a gateway does to itself in each cycle shows
//! there, and the p99 on a quiet machine is a figure of `tidegate bench modbus`.

use crate::harness::gateway::{Gateway, head};
use crate::harness::plant::Plant;
use crate::harness::records::of_stream;
use crate::harness::{Scratch, say, secs, wait_for};

const PERIOD_US: i64 = 200_000;
const CYCLES: usize = 60;

#[test]
fn a_cycle_is_not_late() {
    let scratch = Scratch::new("late");
    let plant = Plant::start(&scratch);
    let (head, port) = (head(&scratch), plant.port);
    let mut gateway = Gateway::start(
        &scratch,
        &format!(
            r#"{head}
links: [ {{ name: plant, bus: {{ tcp: {{ host: 127.0.0.1, port: {port} }} }} }} ]
devices:
  - name: meter
    driver:
      modbus:
        link: plant
        polls: [ {{ name: fast, every: 200ms }} ]
        points: [ {{ name: counter, register: holding, address: 0, type: u32 }} ]
streams:
  - {{ name: readings, from: [meter], sql: "SELECT time, counter FROM meter", to: [ {{ sink: out }} ] }}
  - name: second
    from: [meter]
    window: {{ tumbling: {{ size: 1s }} }}
    sql: SELECT window_end() AS time, count(*) AS n FROM meter
    to: [ {{ sink: out }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
"#
        ),
    );
    gateway.wait_up();
    let enough = || {
        let readings = of_stream(&gateway.printed(), "readings");
        (readings.len() >= CYCLES).then_some(readings)
    };
    let readings = wait_for("sixty readings", secs(40), enough);
    assert_eq!(gateway.stop().code, Some(0));
    let times: Vec<i64> = readings.iter().map(|reading| reading.micros("time")).collect();
    let mut late = behind_their_grid(&times);
    late.sort_unstable();
    let (median, p90) = (late[late.len() / 2], late[late.len() * 9 / 10]);
    say(format_args!("lateness of {} cycles: median {median} µs, p90 {p90} µs", late.len()));
    assert!(median < 30_000, "half of the cycles are later than {median} µs: {late:?}");
    // No cycle was skipped without need.
    let span = times[times.len() - 1] - times[0];
    let cycles = usize::try_from((span + PERIOD_US / 2) / PERIOD_US + 1).expect("few cycles");
    assert!(readings.len() * 10 >= cycles * 9, "{} of {cycles} cycles", times.len());
}

/// How far each time lies behind the earliest grid of the period that holds all of them.
fn behind_their_grid(times: &[i64]) -> Vec<i64> {
    let offset = |time: &i64| {
        let since = time - times[0];
        (since + PERIOD_US / 2).rem_euclid(PERIOD_US) - PERIOD_US / 2
    };
    let offsets: Vec<i64> = times.iter().map(offset).collect();
    let earliest = offsets.iter().copied().min().expect("readings");
    offsets.iter().map(|offset| offset - earliest).collect()
}
