//! Field cases A6, A8, A9, A10, A13 and A25 against a Modbus server that is not ours: pymodbus, with
//! values that Python's struct packed. Word orders, 64 bits, bits of a register, coils, text; and a
//! hole in the register map that the device answers with exception 02. In Modbus TCP frames, and in
//! RTU frames over TCP.
//!
//! Expected values are those of the field cases, or follow from `tests/plant.py` by hand.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::harness::gateway::{Gateway, head, part};
use crate::harness::plant::Plant;
use crate::harness::records::{Record, of_stream};
use crate::harness::{Scratch, secs, wait_for};

/// Name, point and expected value.
const POINTS: &str = r#"
f32_abcd   | register: holding, address: 10, type: f32                    | -1234.5625
f32_cdab   | register: holding, address: 12, type: f32, order: cdab       | -1234.5625
f32_badc   | register: holding, address: 14, type: f32, order: badc       | -1234.5625
f32_dcba   | register: holding, address: 16, type: f32, order: dcba       | -1234.5625
u32_abcd   | register: holding, address: 20, type: u32                    | 305419896
u32_cdab   | register: holding, address: 22, type: u32, order: cdab       | 305419896
u32_badc   | register: holding, address: 24, type: u32, order: badc       | 305419896
u32_dcba   | register: holding, address: 26, type: u32, order: dcba       | 305419896
a08_cdab   | register: holding, address: 20, type: u32, order: cdab       | 1450709556
a08_badc   | register: holding, address: 20, type: u32, order: badc       | 873625686
a08_dcba   | register: holding, address: 20, type: u32, order: dcba       | 2018915346
i16_raw    | register: holding, address: 30, type: i16                    | -123
i16_scaled | register: holding, address: 30, type: i16, scale: 0.1        | -12.3
i16_offset | register: holding, address: 30, type: i16, scale: 2.0, offset: 6.0 | -240.0
word       | register: holding, address: 31                               | 33281
bit_0      | register: holding, address: 31, bit: 0                       | true
bit_8      | register: holding, address: 31, bit: 8                       | false
bit_9      | register: holding, address: 31, bit: 9                       | true
bit_15     | register: holding, address: 31, bit: 15                      | true
u64_abcd   | register: holding, address: 32, type: u64                    | 12345678901234567890
f64_abcd   | register: holding, address: 36, type: f64                    | 999999999.0
f64_cdab   | register: holding, address: 40, type: f64, order: cdab       | 999999999.0
f64_badc   | register: holding, address: 44, type: f64, order: badc       | 999999999.0
f64_dcba   | register: holding, address: 48, type: f64, order: dcba       | 999999999.0
i64_cdab   | register: holding, address: 52, type: i64, order: cdab       | -2
i32_abcd   | register: holding, address: 56, type: i32                    | -70000
text       | register: holding, address: 60, type: string, length: 5      | "Modbus ok"
coil_8     | register: coil, address: 8                                   | false
coil_9     | register: coil, address: 9                                   | true
coil_15    | register: coil, address: 15                                  | true
discrete_0 | register: discrete, address: 0                               | true
discrete_1 | register: discrete, address: 1                               | false
discrete_2 | register: discrete, address: 2                               | true
"#;

/// The table's lines: name, point, expected value.
fn points() -> Vec<(&'static str, &'static str, Value)> {
    let line = |line: &'static str| {
        let columns: Vec<_> = line.split('|').map(str::trim).collect();
        let [name, point, expected] = columns[..] else { panic!("{line}") };
        (name, point, serde_json::from_str(expected).expect("a value"))
    };
    POINTS.trim().lines().map(line).collect()
}

fn device(plant: u16, framing: &str, every: &str, points: impl Iterator<Item = String>) -> String {
    let points: Vec<_> = points.map(|point| format!("          - {{ {point} }}")).collect();
    let points = points.join(
        "
",
    );
    format!(
        r"
links: [ {{ name: plant, bus: {{ tcp: {{ host: 127.0.0.1, port: {plant}, framing: {framing} }} }} }} ]
devices:
  - name: meter
    driver:
      modbus:
        link: plant
        polls: [ {{ name: fast, every: {every} }} ]
        points:
{points}"
    )
}

/// Waits for so many records of a stream on standard output.
fn printed(gateway: &Gateway, stream: &str, least: usize) -> Vec<Record> {
    wait_for("the first rows", secs(20), || {
        let records = of_stream(&gateway.printed(), stream);
        (records.len() >= least).then_some(records)
    })
}

#[test]
fn a08_a09_a10_a13_all_types_and_orders() {
    let scratch = Scratch::new("types");
    all_types_and_orders(&scratch, &Plant::start(&scratch), "tcp");
}

#[test]
fn all_types_and_orders_in_rtu_frames_over_tcp() {
    let scratch = Scratch::new("rtu_types");
    all_types_and_orders(&scratch, &Plant::framed(&scratch, "rtu"), "rtu");
}

/// Field case A25: a silent unit behind a converter costs the others nothing, the connection least
/// of all.
#[test]
fn a25_a_silent_unit_behind_a_foreign_converter() {
    let scratch = Scratch::new("rtu_silent");
    let plant = Plant::framed(&scratch, "rtu");
    let unit = |unit: u8| {
        format!(
            "
  - name: unit_{unit}
    table: units
    driver:
      modbus:
        link: plant
        unit_id: {unit}
        timeout: 300ms
        polls: [ {{ name: fast, every: 200ms }} ]
        points: [ {{ name: counter, register: holding, address: 0, type: u32 }} ]"
        )
    };
    let config = format!(
        "{}
links: [ {{ name: plant, bus: {{ tcp: {{ host: 127.0.0.1, port: {}, framing: rtu }} }} }} ]
devices:{}
streams: [ {{ name: all, from: [units], sql: 'SELECT device, counter FROM units WHERE counter IS NOT NULL', to: [ {{ sink: out }} ] }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
",
        head(&scratch),
        plant.port,
        [1, 2, 3].map(unit).concat(),
    );
    let mut gateway = Gateway::start(&scratch, &config);
    let rows = printed(&gateway, "all", 40);
    for name in ["unit_1", "unit_3"] {
        let counters: Vec<_> = rows
            .iter()
            .filter(|row| row.body["device"] == name)
            .map(|row| row.int("counter"))
            .collect();
        assert!(counters.len() >= 15, "{name}: {} of {}", counters.len(), rows.len());
        // The plant counts the reads of each unit: none was asked for twice and none was lost.
        let expected: Vec<_> = (1..).take(counters.len()).collect();
        assert_eq!(counters, expected, "{name}");
    }
    let status = gateway.status();
    assert_eq!(part(&status, "devices", "unit_2")["rows"]["good"], 0, "{status:#}");
    let plant = part(&status, "links", "plant");
    assert_eq!(plant["counters"]["connects"], 1, "the connection stays: {plant:#}");
    assert_eq!(gateway.stop().code, Some(0));
}

fn all_types_and_orders(scratch: &Scratch, plant: &Plant, framing: &str) {
    let all = points();
    let lines = all.iter().map(|(name, point, _)| format!("name: {name}, {point}"));
    let config = format!(
        "{}{}
streams: [ {{ name: all, from: [meter], sql: SELECT * FROM meter, to: [ {{ sink: out }} ] }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
",
        head(scratch),
        device(plant.port, framing, "200ms", lines)
    );
    let mut gateway = Gateway::start(scratch, &config);
    let rows = printed(&gateway, "all", 3);
    for row in &rows {
        for (name, point, expected) in &all {
            let got = &row.body[*name];
            let equal = match (expected.as_f64(), got.as_f64()) {
                (Some(expected), Some(got)) if point.contains("scale") => {
                    (expected - got).abs() < 1e-9
                }
                (Some(e), Some(g)) if expected.is_f64() => e.to_bits() == g.to_bits(),
                _ => got == expected,
            };
            assert!(equal, "{name} ({point}): {got} instead of {expected}");
        }
        assert_eq!(row.body["device"], "meter");
        assert_eq!(row.body["quality"], "good");
    }
    let seqs: Vec<_> = rows.iter().map(|row| row.int("seq")).collect();
    assert!(seqs.windows(2).all(|pair| pair[1] == pair[0] + 1), "{seqs:?}");
    assert_eq!(gateway.stop().code, Some(0));
}

#[test]
fn a06_a_hole_is_learnt_and_shown() {
    let scratch = Scratch::new("hole");
    let plant = Plant::start(&scratch);
    let points = [11_174, 11_176, 11_177]
        .map(|address| format!("name: p{address}, register: input, address: {address}"));
    let config = format!(
        "{}{}
streams: [ {{ name: all, from: [meter], sql: SELECT * FROM meter, to: [ {{ sink: out }} ] }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
",
        head(&scratch),
        device(plant.port, "tcp", "200ms", points.into_iter())
    );
    let mut gateway = Gateway::start(&scratch, &config);
    let rows = printed(&gateway, "all", 5);
    // All three by the second cycle.
    for row in &rows[1..] {
        let values = (row.int("p11174"), row.int("p11176"), row.int("p11177"));
        assert_eq!(values, (174, 176, 177), "{}", row.text);
    }
    let status = gateway.status();
    let meter = part(&status, "devices", "meter");
    let holes = meter["learnt_holes"].to_string();
    assert!(holes.contains("11175"), "the hole is shown: {meter:#}");
    // The hole costs one exception in all, not one a cycle.
    assert_eq!(meter["counters"]["exceptions"], 1, "{meter:#}");
}

#[test]
fn windows_over_a_ramp_are_right() {
    let scratch = Scratch::new("ramp");
    let plant = Plant::start(&scratch);
    let points = [
        "name: counter, register: holding, address: 0, type: u32".to_owned(),
        "name: ramp, register: holding, address: 2, type: f32".to_owned(),
    ];
    let config = format!(
        "{}{}
streams:
  - {{ name: rows, from: [meter], sql: 'SELECT time, counter, ramp FROM meter', to: [ {{ sink: out }} ] }}
  - name: windows
    from: [meter]
    window: {{ tumbling: {{ size: 2s }} }}
    sql: |
      SELECT window_start() AS start, window_end() AS \"end\", count(*) AS n, avg(ramp) AS mean,
             min(ramp) AS low, max(ramp) AS high, first(counter) AS first, last(counter) AS last,
             good_ratio(ramp) AS good
      FROM meter
    to: [ {{ sink: out }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
",
        head(&scratch),
        device(plant.port, "tcp", "100ms", points.into_iter())
    );
    let mut gateway = Gateway::start(&scratch, &config);
    let windows = printed(&gateway, "windows", 4);
    let rows = of_stream(&gateway.printed(), "rows");
    let mut by_window: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    for row in &rows {
        let start = row.micros("time").div_euclid(2_000_000) * 2_000_000;
        by_window.entry(start).or_default().push(row.number("counter"));
    }
    for window in &windows {
        let start = window.micros("start");
        assert_eq!(start % 2_000_000, 0, "aligned to the epoch: {}", window.text);
        assert_eq!(window.micros("end"), start + 2_000_000);
        let counters = &by_window[&start];
        // The ramp is 10 + counter / 2, and counters follow each other without a gap.
        let (first, last) = (counters[0], counters[counters.len() - 1]);
        assert_eq!(window.int("n"), i64::try_from(counters.len()).expect("few"));
        let near = |column: &str, expected: f64| {
            let got = window.number(column);
            assert!((got - expected).abs() < 1e-6, "{column}: {got}, not {expected}");
        };
        near("low", 10.0 + first / 2.0);
        near("high", 10.0 + last / 2.0);
        near("mean", 10.0 + (first + last) / 4.0);
        near("first", first);
        near("last", last);
        near("good", 1.0);
    }
    // A full window holds 20 readings of 100 ms, give or take one at each edge.
    for window in &windows[1..] {
        assert!((19..=21).contains(&window.int("n")), "{}", window.text);
    }
    assert_eq!(gateway.stop().code, Some(0));
}
