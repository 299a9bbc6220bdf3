//! A panic of what checks a document is a problem of the document, at its place, beside the others.
//! The stand-in for the planner panics over SQL that does not read its first table.

use crate::stand_in::cases;

#[test]
fn a_panic_over_one_stream_is_told_with_the_problems_of_others() {
    let streams = |first: &str, second: &str| {
        format!(
            "devices:
  - {{ name: meter, driver: {{ generate: {{ points: [ {{ name: v, value: {{ constant: 1 }} }} ] }} }} }}
streams:
  - {{ name: a, from: [meter], sql: \"{first} v FROM meter\", to: [ {{ sink: out }} ] }}
  - {{ name: b, from: [meter], sql: \"{second}\", to: [ {{ sink: out }} ] }}
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
"
        )
    };
    let panicked =
        ("E0701", 7, 5, "tidegate failed over this: SELECT v FROM o does not read meter");
    cases(&[
        (&streams("SELECT", "SELECT v FROM meter"), &[]),
        (&streams("SELECT", "SELECT v FROM o"), &[panicked]),
        (&streams("SELEC", "SELECT v FROM o"), &[("E0501", 6, 37, "write SELECT"), panicked]),
    ]);
}
