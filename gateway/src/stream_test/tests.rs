//! Tests of configurations, run; expected values by hand.

use tidegate_config::{ProcessEnvironment, SourceFile, load_and_check};
use tidegate_engine::Sql;

use super::{Programs, run};
use crate::planner::EnginePlanner;

/// What is not as the first test of a configuration expects, or why it cannot be run.
async fn outcome(text: &str, programs: &Programs) -> Result<Vec<String>, String> {
    let source = SourceFile { name: "t.yaml".into(), text: text.to_owned() };
    let checked = load_and_check(&[source], &ProcessEnvironment, &EnginePlanner::default());
    let loaded = match checked {
        Ok((loaded, problems)) if problems.is_empty() => loaded,
        Ok((_, problems)) | Err(problems) => panic!("{}", problems.human()),
    };
    let sql = Sql::new(64 << 20).unwrap();
    let outcome = run(&loaded.document, &sql, &loaded.document.tests[0], programs).await?;
    Ok(outcome.differences)
}

async fn differences(text: &str) -> Vec<String> {
    outcome(text, &Programs::default()).await.unwrap()
}

const HEAD: &str = r#"version: 1
gateway: { name: g }
devices:
  - name: meter
    driver:
      mqtt: { url: "mqtt://127.0.0.1:1883", topics: [ meter ], points: [ { name: power, type: f64 }, { name: n, type: i64 } ] }
sinks:
  - { name: out, driver: { stdout: {} } }
  - { name: audit, driver: { file: { path: /tmp/audit.jsonl } } }
"#;

/// Tens of seconds, minutes of those, and the high ones of these.
const CHAIN: &str = r#"streams:
  - name: high
    from: [minutes]
    sql: SELECT start, power FROM minutes WHERE power >= 9
    to: [ { sink: out } ]
  - name: tens
    from: [meter]
    window: { tumbling: { size: 10s } }
    allowed_lateness: 2s
    sql: SELECT window_start() AS time, sum(power) AS power FROM meter
    to: [ { sink: audit, when: "power > 5" } ]
    late: { to: [ { sink: audit } ] }
  - name: minutes
    from: [tens]
    window: { tumbling: { size: 1m } }
    sql: SELECT window_start() AS start, sum(power) AS power, count(*) AS n FROM tens
    to: [ { sink: out } ]
tests:
  - name: a chain
    stream: high
    input:
      - { at: 0s, table: meter, power: 1 }
      - { at: 5s, table: meter, power: 2 }
      - { at: 11s, table: meter, power: 6 }
      - { at: 13s, table: meter, power: 0 }
      - { at: 4s, table: meter, power: 9 }      # 13 s - 2 s is past 10 s
      - { at: 22s, table: meter, power: 0 }
      - { at: 72s, table: meter, power: 4 }
      - { at: 82s, table: meter, power: 0 }
    expect:
      rows: [ { start: "2000-01-01T00:00:00Z", power: 9.0 } ]
      sinks:
        out:
          - { _stream: minutes, _id: g/1/minutes/1, power: 9.0, n: 3 }
          - { _stream: high, _id: g/1/high/1, power: 9.0 }
        audit:
          - { _stream: tens.late, power: 9.0, _reason: late, _quality: uncertain }
          - { _stream: tens, _id: g/1/tens/2, power: 6.0 }
"#;

#[tokio::test]
async fn a_chain_runs_from_its_devices_to_its_sinks() {
    let text = format!("{HEAD}{CHAIN}");
    assert_eq!(differences(&text).await, [""; 0]);
    // What is not so is told, of rows and of what a sink is sent.
    let wrong = text.replace("n: 3", "n: 4").replace("_reason: late", "_reason: future");
    let told = differences(&wrong).await;
    let expected = [
        "sink audit: row 1: _reason: Text(\"future\") expected, \"late\" came",
        "sink out: row 1: n: Int(4) expected, 3 came",
    ];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn time_goes_on_without_rows_for_as_long_as_the_test_says() {
    let test = |until: &str, rows: &str| {
        format!(
            "{HEAD}streams:
  - name: s
    from: [meter]
    window: {{ tumbling: {{ size: 10s }} }}
    sql: SELECT count(*) AS n FROM meter
    to: [ {{ sink: out }} ]
tests:
  - {{ name: t, stream: s, {until} input: [ {{ at: 1s, n: 1 }} ], expect: {{ rows: [ {rows} ] }} }}
"
        )
        .replace("  - { name: audit, driver: { file: { path: /tmp/audit.jsonl } } }\n", "")
    };
    // Silent since 1 s, so that from 6 s on the clock is followed, which ends the window at 10 s.
    for (until, rows) in [("", ""), ("until: 9999ms,", ""), ("until: 10s,", "{ n: 1 }")] {
        assert_eq!(differences(&test(until, rows)).await, [""; 0], "{until}");
    }
}

#[tokio::test]
async fn rows_that_the_sql_fails_on_are_a_difference_unless_they_are_expected() {
    let test = |expect: &str| {
        format!(
            "{HEAD}streams:
  - name: s
    from: [meter]
    sql: SELECT 10 / n AS q FROM meter
    to: [ {{ sink: out }} ]
    on_error: {{ to: [ {{ sink: audit }} ] }}
tests:
  - {{ name: t, stream: s, input: [ {{ at: 0s, n: 2 }}, {{ at: 1s, n: 0 }}, {{ at: 2s, n: 5 }} ], expect: {{ \
             rows: [ {{ q: 5 }}, {{ q: 2 }} ] {expect} }} }}
"
        )
    };
    let expected = ", failed: 1, sinks: { audit: [ { _stream: s.error, n: 0, _quality: bad } ] }";
    assert_eq!(differences(&test(expected)).await, [""; 0]);
    assert_eq!(differences(&test(", failed: { s: 1 }")).await, [""; 0]);
    let told = differences(&test("")).await;
    assert_eq!(told[0], "the stream `s` failed on 1 row, and was to fail on none");
    assert_eq!(told[1..], ["the stream `s`: SQL failed: Divide by zero error"]);
    let told = differences(&test(", failed: 2")).await;
    assert_eq!(told[0], "the stream `s` failed on 1 row, and was to fail on 2");
}

/// The tested stream reads one that fails on a row, which is no row of its own.
#[tokio::test]
async fn rows_that_a_stream_behind_fails_on_are_expected_by_its_name() {
    let test = |expect: &str| {
        format!(
            "{HEAD}streams:
  - name: shares
    from: [meter]
    sql: SELECT time, 10 / n AS q FROM meter
    on_error: {{ to: [ {{ sink: audit }} ] }}
  - name: halves
    from: [shares]
    sql: SELECT q, 10 / (q - 2) AS h FROM shares
    to: [ {{ sink: out }} ]
tests:
  - name: t
    stream: halves
    input:
      - {{ at: 0s, table: meter, n: 2 }}
      - {{ at: 1s, table: meter, n: 0 }}
      - {{ at: 2s, table: meter, n: 0 }}
      - {{ at: 3s, table: meter, n: 5 }}
    expect: {{ rows: [ {{ q: 5, h: 3 }} ] {expect} }}
"
        )
    };
    // 10 / 0 twice; then 10 / 5 is 2, and 10 / (2 - 2) is the row that the tested stream fails on.
    assert_eq!(differences(&test(", failed: { shares: 2, halves: 1 }")).await, [""; 0]);
    let told = differences(&test(", failed: 1")).await;
    let shares = "the stream `shares` failed on 2 rows, and was to fail on none";
    assert_eq!(told, [shares, "the stream `shares`: SQL failed: Divide by zero error"]);
    let told = differences(&test(", failed: { shares: 2 }")).await;
    assert_eq!(told[0], "the stream `halves` failed on 1 row, and was to fail on none");
}

/// A message says to be from three hours later than it came: it is in no window.
#[tokio::test]
async fn a_row_can_be_from_the_future() {
    let text = format!(
        "{HEAD}streams:
  - name: s
    from: [meter]
    window: {{ tumbling: {{ size: 10s }} }}
    sql: SELECT sum(n) AS n FROM meter
    to: [ {{ sink: out }} ]
    late: {{ to: [ {{ sink: audit, when: \"n > 1\" }} ] }}
tests:
  - name: t
    stream: s
    input:
      - {{ at: 0s, n: 1 }}
      - {{ at: 3h, received_at: \"2000-01-01T00:00:01Z\", n: 2 }}
    expect: {{ late: 0, sinks: {{ audit: [ {{ n: 2, _reason: future }} ] }} }}
"
    );
    assert_eq!(differences(&text).await, [""; 0]);
}

const PROGRAM: &str = "streams:
  - name: s
    from: [meter]
    sql: SELECT n FROM meter
    process: { socket: /nowhere/p.sock, timeout: 1s, columns: [ { name: twice, type: i64 } ] }
    to: [ { sink: out }, { sink: audit } ]
tests:
  - { name: t, stream: s, programs: true, input: [ { at: 0s, n: 2 } ], expect: { rows: [ { twice: 4 } ] } }
";

#[tokio::test]
async fn a_program_that_is_not_there_is_told_with_what_to_do() {
    let text = format!("{HEAD}{PROGRAM}");
    let missing = outcome(&text, &Programs::default()).await.unwrap_err();
    assert!(missing.contains("the program at /nowhere/p.sock is away"), "{missing}");
    assert!(missing.contains("--program 's=COMMAND {socket}'"), "{missing}");
    let ends = Programs::new([("s".to_owned(), "exit 3".to_owned())]);
    let ended = outcome(&text, &ends).await.unwrap_err();
    assert!(ended.contains("has ended before it listened: exit status: 3"), "{ended}");
}
