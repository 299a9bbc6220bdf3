//! The document's own tests are checked before they are run: tables, columns and kinds of values, which
//! streams of a chain run, programs, and what sinks are sent.

use crate::stand_in::{SOUND, cases};

#[test]
fn tests_of_the_document() {
    let test = |input: &str, expect: &str| {
        format!(
            "tests:\n  - name: t\n    stream: out_1\n    input: [ {input} ]\n    expect: {expect}{SOUND}"
        )
    };
    cases(&[
        (
            &test("{ at: 0s, level: 1.5 }, { at: 1s, level: null }", "{ rows: [ { level: 1 } ] }"),
            &[],
        ),
        (&test("{ level: 1.5 }", "{}"), &[("E0202", 6, 14, "`at` is missing")]),
        (&test("{ at: 0s, levle: 1.5 }", "{}"), &[("E0601", 6, 24, "did you mean `level`?")]),
        (&test("{ at: 0s, time: 1 }", "{}"), &[("E0601", 6, 24, "stamped by `at`")]),
        (&test("{ at: 0s, level: high }", "{}"), &[("E0601", 6, 31, "takes a number")]),
        (&test("{ at: 0s, level: [1] }", "{}"), &[("E0203", 6, 31, "a single value")]),
        (&test("{ at: 0s, device: wave }", "{}"), &[("E0303", 6, 32, "did you mean `waves`?")]),
        (&test("{ at: 0s, table: wave }", "{}"), &[("E0303", 6, 31, "does not read `wave`")]),
        (&test("{ at: 0s }", "{ rows: [ { levle: 1 } ] }"), &[("E0601", 7, 25, "did you mean")]),
        (
            &test("{ at: 0s }", "{}").replace("stream: out_1", "stream: out_2"),
            &[("E0303", 5, 13, "did you mean `out_1`?")],
        ),
    ]);
}

/// A stream that reads a stream; `first` and `test` are what stands in the first and in the test.
fn chain(first: &str, test: &str) -> String {
    format!(
        "devices:
  - {{ name: meter, driver: {{ generate: {{ points: [ {{ name: v, value: {{ constant: 1 }} }} ] }} }} }}
streams:
  - {{ name: minutes, from: [meter], sql: \"SELECT time, v FROM meter\", to: [ {{ sink: side }} ]{first} }}
  - {{ name: peaks, from: [minutes], sql: \"SELECT v FROM minutes\", to: [ {{ sink: out }} ] }}
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }}, {{ name: side, driver: {{ file: {{ path: /tmp/side }} }} }} ]
tests:
  - {{ name: t, stream: peaks, {test} }}
"
    )
}

#[test]
fn which_streams_of_a_chain_run() {
    let case = |test: &str| chain("", test);
    cases(&[
        (
            &case(
                "until: 9s, input: [ { at: 1s, table: meter, v: 1 } ], expect: { rows: [ { v: 1 } ], \
                 sinks: { out: [ { v: 1, _stream: peaks } ], side: [ { _id: x } ] } }",
            ),
            &[],
        ),
        // The second row is one of `minutes`, which therefore does not run.
        (
            &case("input: [ { at: 1s, table: meter, v: 1 }, { at: 2s, v: 1 } ], expect: {}"),
            &[("E0303", 10, 57, "rows of `minutes` are given")],
        ),
        (
            &case("input: [ { at: 1s, table: meter, w: 1 } ], expect: {}"),
            &[("E0601", 10, 64, "no column `w`")],
        ),
        (
            &case("until: 1s, input: [ { at: 2s, v: 1 } ], expect: {}"),
            &[("E0406", 10, 38, "before its row at 2s")],
        ),
    ]);
}

#[test]
fn what_sinks_of_a_test_are_sent() {
    let case = |sinks: &str| {
        chain("", &format!("input: [ {{ at: 1s, v: 1 }} ], expect: {{ sinks: {{ {sinks} }} }}"))
    };
    cases(&[
        (&case("out: []"), &[]),
        // Only the stream that does not run sends there.
        (&case("side: []"), &[("E0603", 10, 85, "no stream of the test sends")]),
        (&case("oot: []"), &[("E0303", 10, 84, "did you mean `out`?")]),
        (&case("out: [ { w: 1 } ]"), &[("E0601", 10, 88, "has a column `w`")]),
    ]);
}

#[test]
fn programs_of_a_test() {
    let given = "input: [ { at: 1s, v: 1 } ], expect: {}";
    let from_meter = "input: [ { at: 1s, table: meter, v: 1 } ], expect: {}";
    let process = ", process: { socket: /x.sock, columns: [ { name: time, type: timestamp }, { name: v, type: f64 } ] }";
    cases(&[
        (&chain("", &format!("programs: true, {given}")), &[("E0603", 10, 41, "has a program")]),
        (&chain(process, from_meter), &[("E0603", 10, 24, "are made by its program")]),
        (&chain(process, &format!("programs: true, {from_meter}")), &[]),
        // The program's stream does not run.
        (&chain(process, given), &[]),
    ]);
}

#[test]
fn streams_of_a_test_that_are_to_fail() {
    let case = |failed: &str| {
        let given = "input: [ { at: 1s, table: meter, v: 1 } ]";
        chain("", &format!("{given}, expect: {{ failed: {failed} }}"))
    };
    cases(&[
        (&case("3"), &[]),
        (&case("{ minutes: 3, peaks: 0 }"), &[]),
        (&case("{ minuets: 3 }"), &[("E0303", 10, 94, "did you mean `minutes`?")]),
        (&case("-1"), &[("E0204", 10, 92, "a number of rows")]),
        (&case("{ peaks: some }"), &[("E0203", 10, 101, "a whole number")]),
        (&case("[ 1 ]"), &[("E0203", 10, 92, "by the names of streams")]),
        // The rows are its own, so it does not run.
        (
            &chain("", "input: [ { at: 1s, v: 1 } ], expect: { failed: { minutes: 1 } }"),
            &[("E0303", 10, 80, "runs no stream `minutes`")],
        ),
    ]);
}
