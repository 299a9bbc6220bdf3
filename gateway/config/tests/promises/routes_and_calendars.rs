//! Conditions of routes are planned against the columns that are routed, at their place in the
//! document; time zones exist, and stand where a calendar is followed; which time decides is said.

use tidegate_config::{explain, load};

use crate::stand_in::{Fixed, HEAD, SOUND, cases, expect, source};

#[test]
fn conditions_of_routes() {
    let with = |lines: &str| SOUND.replace("    to: [", &format!("{lines}\n    to: ["));
    let window = "    window: { tumbling: { size: 10s } }";
    let to = |when: &str| SOUND.replace("sink: out }", &format!("sink: out, when: {when} }}"));
    cases(&[
        (&to("level > 1"), &[]),
        (&to("nope > 1"), &[("E0501", 11, 30, "no column nope")]),
        (
            &with(&format!("{window}\n    late: {{ to: [ {{ sink: out, when: bad > 1 }} ] }}")),
            &[("E0501", 12, 38, "no column bad")],
        ),
        // Of the table, not of the result, and with the reason.
        (
            &with(&format!("{window}\n    late: {{ to: [ {{ sink: out, when: _reason > 1 }} ] }}")),
            &[],
        ),
        (&with("    on_error: { to: [ { sink: out, when: seq > 1 } ], ack: after_write }"), &[]),
        (&with("    on_error: { to: [ { sink: out, when: _error > 1 } ] }"), &[]),
        (
            &with("    on_error: { to: [ { sink: out, when: _reason > 1 } ] }"),
            &[("E0501", 11, 42, "no column _reason")],
        ),
        (&with("    on_error: { to: [] }"), &[("E0412", 11, 21, "`on_error` names no sink")]),
        (
            &with("    on_error: { to: [ { sink: otu } ] }"),
            &[("E0303", 11, 31, "did you mean `out`?")],
        ),
        // Without a window a row can be from the future, where that is asked for.
        (&with("    max_future: 5m\n    late: { to: [ { sink: out } ] }"), &[]),
    ]);
}

#[test]
fn time_zones() {
    let window = |window: &str| {
        SOUND.replace("    to: [", &format!("    window: {{ tumbling: {window} }}\n    to: ["))
    };
    cases(&[
        (&window("{ size: 1d, timezone: Europe/Berlin }"), &[]),
        (&window("{ size: 7d, offset: 4d }"), &[]),
        (
            &SOUND.replace(
                "    to: [",
                "    window: { cumulative: { size: 1d, step: 1m, timezone: Europe/Berlim } }\n    to: [",
            ),
            &[("E0204", 11, 59, "did you mean `Europe/Berlin`?")],
        ),
        (
            &window("{ size: 10s, timezone: Europe/Berlin }"),
            &[("E0405", 11, 48, "follow no calendar")],
        ),
        (
            &window("{ size: 1d, timezone: Mars/Olympus }"),
            &[("E0204", 11, 47, "there is no time zone `Mars/Olympus` write an IANA name")],
        ),
    ]);
    let gateway = "version: 1\ngateway: { name: g, timezone: Europe/Berlim }\n";
    expect(&format!("{gateway}{SOUND}"), &[("E0204", 2, 31, "did you mean `Europe/Berlin`?")]);
}

#[test]
fn a61_which_time_decides_is_said() {
    let feed = "
devices:
  - name: line
    driver: { mqtt: { url: mqtt://b, topics: [ a ], decode: { json: { time: ts } }, points: [ { name: v, type: f64 } ] } }
  - name: mute
    driver: { mqtt: { url: mqtt://c, topics: [ a ], points: [ { name: v, type: f64 } ] } }
  - name: waves
    driver: { generate: { points: [ { name: v, value: { constant: 1 } } ] } }
streams:
  - { name: a, from: [line], sql: SELECT v FROM line, to: [ { sink: out } ], window: { tumbling: { size: 1s } } }
  - { name: e, from: [waves], sql: SELECT v FROM waves, to: [ { sink: out } ], window: { tumbling: { size: 1d, timezone: Asia/Tokyo } } }
  - { name: b, from: [line], sql: SELECT v FROM line, to: [ { sink: out } ], event_time: arrival }
  - { name: c, from: [mute], sql: SELECT v FROM mute, to: [ { sink: out } ] }
  - { name: d, from: [waves], sql: SELECT v FROM waves, to: [ { sink: out } ] }
sinks: [ { name: out, driver: { stdout: {} } } ]
";
    let loaded = load(&[source("t.yaml", &format!("{HEAD}{feed}"))], &Fixed::default()).unwrap();
    let text = explain(&loaded);
    for line in [
        "#   a: line (by its `ts`) in tumbling windows of 1s by the rows' own time",
        "#   b: line (its `ts` does not count) in each batch as it comes",
        "#   c: mute (by arrival: no `time`) in each batch as it comes",
        "#   d: waves in each batch as it comes",
        "#   e: waves in tumbling windows of 1d, days of Asia/Tokyo by the rows' own time, 0s late",
    ] {
        assert!(text.lines().any(|l| l.starts_with(line)), "no line `{line}` in\n{text}");
    }
}
