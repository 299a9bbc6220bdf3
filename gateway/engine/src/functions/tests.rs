//! Functions as SQL sees them: states that merge, windows that follow one another, rows that come
//! one batch after the other. Expected values are calculated by hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray, TimestampMicrosecondArray,
    UInt64Array,
};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::MemTable;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::*;
use crate::sql::{Query, Sql, TableSchema};
use crate::window::{Bounds, Window};

const SECOND: i64 = 1_000_000;

/// Seconds, device, value.
type Row = (i64, &'static str, Option<f64>);

/// The value also as whole numbers, as a condition (above 3) and as text.
fn rows(rows: &[Row]) -> RecordBatch {
    let time = rows.iter().map(|r| Some(r.0 * SECOND)).collect::<TimestampMicrosecondArray>();
    let whole = |r: &Row| r.2.filter(|v| !v.is_nan()).map(|v| format!("{v:.0}").parse().unwrap());
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("time", Arc::new(time.with_timezone("UTC"))),
        ("device", Arc::new(StringArray::from_iter_values(rows.iter().map(|r| r.1)))),
        ("v", Arc::new(rows.iter().map(|r| r.2).collect::<Float64Array>())),
        ("n", Arc::new(rows.iter().map(whole).collect::<Int64Array>())),
        (
            "u",
            Arc::new(
                rows.iter()
                    .map(|r| whole(r).map(|n: i64| n.unsigned_abs()))
                    .collect::<UInt64Array>(),
            ),
        ),
        ("c", Arc::new(rows.iter().map(|r| r.2.map(|v| v > 3.0)).collect::<BooleanArray>())),
        (
            "s",
            Arc::new(
                rows.iter()
                    .map(|r| r.2.map(|v| format!("{{\"v\": {v}}}")))
                    .collect::<StringArray>(),
            ),
        ),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)))
        .unwrap()
}

fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let mut lines = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let cells = batch.columns().iter().map(|c| array_value_to_string(c, row).unwrap());
            lines.push(cells.collect::<Vec<_>>().join(" "));
        }
    }
    lines
}

fn tables() -> Vec<TableSchema> {
    let table = |name: &str| TableSchema {
        name: name.into(),
        schema: rows(&[]).schema(),
        time_column: "time".into(),
    };
    vec![table("m"), table("o")]
}

fn query(sql: &str, window: Option<&Window>) -> Query {
    let planned = Sql::new(64 << 20).unwrap().plan(sql, &tables(), window.is_some());
    let query = planned.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    if let Some(window) = window {
        query.over(window);
    }
    query
}

const TUMBLING: Option<&Window> = Some(&Window::Tumbling { size: 10 * SECOND, offset: 0 });

async fn run(query: &mut Query, input: &[Row], seconds: Option<(i64, i64)>) -> Vec<String> {
    let bounds = seconds.map(|(start, end)| Bounds { start: start * SECOND, end: end * SECOND });
    let inputs = vec![vec![rows(input)], vec![]];
    let batches = query.execute(inputs, bounds).await;
    lines(&batches.unwrap_or_else(|error| panic!("{error:?}\n{}", query.explain())))
}

/// What a query remembers, as the store keeps it.
#[derive(Debug, Clone, PartialEq, Default)]
struct Kept(BTreeMap<u64, Vec<u8>>);

impl Kept {
    fn take(&mut self, query: &Query) {
        for (number, bytes) in query.memory().changes() {
            match bytes {
                Some(bytes) => self.0.insert(number, bytes),
                None => self.0.remove(&number),
            };
        }
        query.memory().saved();
    }

    /// Gives back how much of it the query has no use for.
    fn give(&self, query: &Query) -> usize {
        let parts = self.0.iter().map(|(number, bytes)| (*number, &bytes[..]));
        query.memory().load(parts).unwrap().len()
    }
}

/// Runs a query over windows of 10 s, one after the other.
async fn windows(sql: &str, windows: &[&[Row]]) -> Vec<Vec<String>> {
    let mut query = query(sql, TUMBLING);
    let mut all = Vec::new();
    for (at, input) in (0_i64..).zip(windows) {
        all.push(run(&mut query, input, Some((at * 10, at * 10 + 10))).await);
    }
    all
}

/// Partitions are folded by themselves and their states merged, as panes will be; with `skip` each
/// row becomes a state of its own.
async fn merged(skip: bool, sql: &str, parts: Vec<Vec<RecordBatch>>) -> Vec<String> {
    let mut config = SessionConfig::new().with_target_partitions(3);
    if skip {
        let execution = &mut config.options_mut().execution;
        execution.skip_partial_aggregation_probe_rows_threshold = 0;
        execution.skip_partial_aggregation_probe_ratio_threshold = 0.0;
    }
    let state = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .with_query_planner(Arc::new(crate::sql::CountingPlanner::default()))
        .build();
    let context = SessionContext::new_with_state(state);
    for function in aggregates() {
        context.register_udaf(function.as_ref().clone());
    }
    let table = MemTable::try_new(parts[0][0].schema(), parts).unwrap();
    context.register_table("m", Arc::new(table)).unwrap();
    let plan = context.state().create_logical_plan(sql).await.unwrap();
    let cell = Arc::new(BoundsCell::default());
    let (plan, _) = rewrite(plan, &cell, true).unwrap();
    let mut lines = lines(&DataFrame::new(context.state(), plan).collect().await.unwrap());
    lines.sort();
    lines
}

#[tokio::test]
async fn states_merge_in_order_of_time() {
    let parts = || {
        vec![
            vec![rows(&[(5, "a", Some(5.0)), (9, "a", None), (2, "b", Some(2.0))])],
            vec![rows(&[(1, "a", Some(1.0)), (8, "b", None)]), rows(&[(7, "a", Some(7.0))])],
            vec![rows(&[(6, "a", Some(6.0)), (3, "b", Some(3.0)), (4, "c", None)])],
        ]
    };
    let sql = "SELECT device, first(v, time), last(v, time), good_ratio(v), good_count(v), \
               last(v, time) FILTER (WHERE v < 6), histogram(v, 2, 6, 2) FROM m GROUP BY device";
    let expected = [
        "a 1.0 7.0 0.8 4 5.0 [1, 0, 1, 2]",
        "b 2.0 3.0 0.6666666666666666 2 3.0 [0, 2, 0, 0]",
        "c   0.0 0  [0, 0, 0, 0]",
    ];
    assert_eq!(merged(false, sql, parts()).await, expected);
    assert_eq!(merged(true, sql, parts()).await, expected);
    let sql = "SELECT first(v, time), last(v, time), good_ratio(v) FROM m";
    assert_eq!(merged(false, sql, parts()).await, ["1.0 7.0 0.6666666666666666"]);
    let none = "SELECT first(v), last(v, time), good_ratio(v), good_count(v), \
                histogram(v, 0, 1, 1), approx_percentile(v, 0.5) FROM m WHERE v > 99";
    assert_eq!(merged(false, none, parts()).await, ["   0 [0, 0, 0] "]);
}

/// Parts that follow one another in time, given in another order, and one of them unsorted.
#[tokio::test]
async fn spans_merge_in_order_of_time() {
    let parts = || {
        vec![
            vec![rows(&[(12, "a", Some(2.0)), (11, "a", Some(4.0)), (13, "b", None)])],
            vec![rows(&[(21, "a", Some(f64::NAN))]), rows(&[(25, "a", Some(8.0))])],
            vec![rows(&[(1, "a", Some(10.0)), (2, "b", Some(3.0)), (6, "b", Some(9.0))])],
        ]
    };
    // a: 10 for 10 s, 4 for 1 s, 2 for 13 s; lines: 70, 3, 65. b: 3 for 4 s; (3 + 9) / 2 * 4.
    // Counters: a is set to 0 before 4 and before 2, then 6 more; b 6 more. Above 3: a for 11 s.
    let sql = "SELECT device, integral(v, time), integral(v, time, 'linear'), \
               time_weighted_avg(v, time, 'last'), counter_delta(v), counter_delta(n), \
               counter_delta(u, time), rate(n, time), duration_where(c, time) \
               FROM m GROUP BY device";
    let expected =
        ["a 130.0 138.0 5.416666666666667 12.0 12 12 0.5 11.0", "b 12.0 24.0 3.0 6.0 6 6 1.5 0.0"];
    assert_eq!(merged(false, sql, parts()).await, expected);
    assert_eq!(merged(true, sql, parts()).await, expected);
    let sql = "SELECT integral(v, time, 'min') FROM m WHERE device = 'a'";
    assert_eq!(merged(false, sql, parts()).await, ["2.1666666666666665"]);
    let none = "SELECT integral(v, time), counter_delta(n), duration_where(c, time) \
                FROM m WHERE device = 'z'";
    assert_eq!(merged(false, none, parts()).await, ["  "]);
}

#[tokio::test]
async fn what_held_before_a_window_counts_in_it() {
    let first: &[Row] = &[(2, "a", Some(4.0)), (6, "a", Some(8.0)), (9, "b", Some(1.0))];
    let second: &[Row] = &[(19, "a", Some(2.0)), (18, "b", None)];
    let third: &[Row] = &[(24, "b", Some(5.0)), (25, "c", Some(7.0))];
    let over = |of: &'static str| async move {
        let sql = format!("SELECT device, {of} AS x FROM m GROUP BY device ORDER BY device");
        windows(&sql, &[first, second, third]).await
    };
    // a: 4 from 2 to 6 and 8 to 10; then 8 to 19 and 2 to 20. b: 1 from 9 on, until 24.
    let expected = [vec!["a 48.0", "b 1.0"], vec!["a 74.0", "b 10.0"], vec!["b 34.0", "c 35.0"]];
    assert_eq!(over("integral(v, time)").await, expected);
    let expected = [vec!["a 6.0", "b 1.0"], vec!["a 7.4", "b 1.0"], vec!["b 3.4", "c 7.0"]];
    assert_eq!(over("time_weighted_avg(v, time)").await, expected);
    // Lines: from 8 at 6 to 2 at 19 it is 8 - 6 * 4 / 13 at 10: (6.1538 + 2) / 2 * 9 + 2.
    let lines = over("round(integral(v, time, 'linear'), 4)").await;
    assert_eq!(lines[0], ["a 56.0", "b 1.0"]);
    assert_eq!(lines[1], ["a 38.6923", "b 10.0"]);
    // b: 1 at 9, 5 at 24: 1 + 4 * 11 / 15 at 20: (3.9333 + 5) / 2 * 4 + 5 * 6.
    assert_eq!(lines[2], ["b 47.8667", "c 35.0"]);
    let expected = [vec!["a 8.0", "b 0.0"], vec!["a 9.0", "b 0.0"], vec!["b 6.0", "c 5.0"]];
    assert_eq!(over("duration_where(c, time)").await, expected);
    // A counter's growth is seen at the later reading; a was set to 0 before 2.
    let expected = [vec!["a 4", "b 0"], vec!["a 2", "b "], vec!["b 4", "c 0"]];
    assert_eq!(over("counter_delta(n)").await, expected);
    let expected = [vec!["a 1.0", "b "], vec!["a 0.15384615384615385", "b "]];
    assert_eq!(over("rate(n, time)").await[..2], expected);
    assert_eq!(over("rate(n, time)").await[2], ["b 0.26666666666666666", "c "]);
}

#[tokio::test]
async fn one_line_per_shape() {
    let first: &[Row] = &[(0, "a", Some(2.0)), (5, "a", Some(4.0)), (5, "b", Some(1.0))];
    let second: &[Row] = &[(10, "a", Some(4.0)), (10, "b", Some(2.0))];
    for (sql, expected) in [
        // Beside other aggregates, below HAVING, in expressions, twice, ordered.
        (
            "SELECT device AS d, count(*) AS n, integral(v, time) / 10 AS i FROM m \
             GROUP BY device HAVING integral(v, time) > 6 ORDER BY integral(v, time) DESC",
            [vec!["a 2 3.0"], vec!["a 1 4.0", "b 1 2.0"]],
        ),
        (
            "SELECT rate(v, time), max(v), rate(v, time) FILTER (WHERE device = 'b') \
             FROM m WHERE device <> 'c'",
            [vec!["0.6 4.0 "], vec!["1.0 4.0 0.2"]],
        ),
        // Calls that differ in their constants alone.
        (
            "SELECT integral(v, time) AS a, integral(v, time, 'linear') AS b, \
             counter_delta(u, 65536) AS c, counter_delta(u) AS d, counter_delta(u, 5) AS e, \
             histogram(v, 0, 4, 1) AS h, histogram(v, 0, 5, 1) AS i FROM m WHERE device = 'a'",
            [
                vec!["30.0 35.0 2 2 2 [0, 1, 1] [0, 2, 0]"],
                vec!["40.0 40.0 0 0 0 [0, 0, 1] [0, 1, 0]"],
            ],
        ),
        // The names of results stay, so that a query around it finds them.
        (
            "SELECT x FROM (SELECT device, integral(v, time) AS x FROM m GROUP BY device) \
             WHERE device = 'b'",
            [vec!["5.0"], vec!["20.0"]],
        ),
        ("SELECT integral(v, time) FROM m AS t WHERE t.device = 'a'", [vec!["30.0"], vec!["40.0"]]),
        // Groups that are parts of the time know nothing about their edges.
        (
            "SELECT integral(v, time) FROM m WHERE device = 'a' \
             GROUP BY date_bin(INTERVAL '20 seconds', time)",
            [vec!["10.0"], vec!["0.0"]],
        ),
        // The window's own bounds are no such groups.
        (
            "SELECT integral(v, time) FROM m WHERE device = 'b' GROUP BY window_start()",
            [vec!["5.0"], vec!["20.0"]],
        ),
        (
            "SELECT device, duration_where(c, time) FROM m GROUP BY ROLLUP (device) ORDER BY 1",
            [vec!["a 5.0", "b 0.0", " 0.0"], vec!["a 10.0", "b 0.0", " 0.0"]],
        ),
        // Both halves of a union, in order of time.
        (
            "SELECT integral(v, t) FROM (SELECT v, time AS t FROM m WHERE device = 'a' \
             UNION ALL SELECT 3 * v, time FROM m WHERE device = 'b')",
            [vec!["25.0"], vec!["60.0"]],
        ),
        (
            "SELECT m.device, counter_delta(m.n, m.time, 100) FROM m JOIN m AS k \
             ON m.device = k.device AND m.time = k.time GROUP BY m.device ORDER BY 1",
            [vec!["a 2", "b 0"], vec!["a 0", "b 1"]],
        ),
        (
            "SELECT histogram(n, 1, 4, 3), good_count(v) FROM m",
            [vec!["[0, 1, 1, 0, 1] 3"], vec!["[0, 0, 1, 0, 1] 2"]],
        ),
        ("SELECT approx_percentile(v, 0.5) FROM m", [vec!["2.0"], vec!["3.0"]]),
        (
            "SELECT approx_percentile(0.5) WITHIN GROUP (ORDER BY v) FROM m",
            [vec!["2.0"], vec!["3.0"]],
        ),
        ("SELECT json_get_int(s, 'v') + 1 AS j FROM m WHERE device = 'b'", [vec!["2"], vec!["3"]]),
        // Over a window's rows, anew in each window; before and below an aggregate.
        (
            "SELECT device, v FROM m WHERE changed(v) ORDER BY device, v",
            [vec!["a 2.0", "a 4.0", "b 1.0"], vec!["a 4.0", "b 2.0"]],
        ),
        ("SELECT count(*) FILTER (WHERE deadband(v, 2)) AS n FROM m", [vec!["2"], vec!["2"]]),
    ] {
        assert_eq!(windows(sql, &[first, second]).await, expected, "{sql}");
    }
}

#[tokio::test]
async fn overlapping_windows_know_what_held_before_each() {
    let all: &[Row] = &[(1, "a", Some(1.0)), (4, "a", Some(2.0)), (12, "a", Some(5.0))];
    let within = |(start, end): (i64, i64)| -> Vec<Row> {
        all.iter().filter(|row| start <= row.0 && row.0 < end).copied().collect()
    };
    let sql = "SELECT integral(v, time) FROM m";
    let hopping = Window::Hopping { size: 10 * SECOND, step: 5 * SECOND, offset: 0 };
    let mut over_hops = query(sql, Some(&hopping));
    for (window, expected) in [
        ((-5, 5), "5.0"),
        ((0, 10), "15.0"),
        // 2 held from 4 on: 2 for 7 s, 5 for 3 s.
        ((5, 15), "29.0"),
        // Computed once more, with what held before it then.
        ((5, 15), "29.0"),
        ((10, 20), "44.0"),
    ] {
        let input = within(window);
        assert_eq!(run(&mut over_hops, &input, Some(window)).await, [expected], "{window:?}");
    }
    let cumulative = Window::Cumulative { size: 10 * SECOND, step: 5 * SECOND };
    let mut totals = query(sql, Some(&cumulative));
    for (window, expected) in
        [((0, 5), "5.0"), ((0, 10), "15.0"), ((10, 15), "19.0"), ((10, 20), "44.0")]
    {
        let input = within(window);
        assert_eq!(run(&mut totals, &input, Some(window)).await, [expected], "{window:?}");
    }
}

#[tokio::test]
async fn what_is_remembered_survives_and_a_failed_run_does_not_change_it() {
    let sql = "SELECT 10 / (n - 7) AS x, integral(v, time) AS i FROM m GROUP BY n - 7, device";
    let first: &[Row] = &[(2, "a", Some(8.0))];
    let mut before = query(sql, TUMBLING);
    assert_eq!(run(&mut before, first, Some((0, 10))).await, ["10 64.0"]);
    let mut kept = Kept::default();
    kept.take(&before);
    let failing = vec![vec![rows(&[(12, "a", Some(8.0)), (13, "a", Some(7.0))])], vec![]];
    let bounds = Some(Bounds { start: 10 * SECOND, end: 20 * SECOND });
    before.execute(failing, bounds).await.unwrap_err();
    let was = kept.clone();
    kept.take(&before);
    assert_eq!(kept, was);
    let mut after = query(sql, TUMBLING);
    assert_eq!((kept.0.len(), kept.give(&after)), (1, 0));
    for query in [&mut before, &mut after] {
        // 8 held until 24, and from then on.
        assert_eq!(run(query, &[(24, "a", Some(8.0))], Some((20, 30))).await, ["10 80.0"]);
    }
    // Of other SQL nothing is taken up.
    let other = query("SELECT integral(n, time) FROM m", TUMBLING);
    assert_eq!(kept.give(&other), 1);
    assert_eq!(other.memory().changes(), []);
}

/// Without a window, batch by batch; the rows are the same however they are cut.
#[tokio::test]
async fn functions_that_remember_see_every_row_once() {
    let all: &[Row] = &[
        (1, "a", Some(20.0)),
        (2, "b", Some(20.0)),
        (3, "a", Some(20.0)),
        (4, "a", None),
        (5, "a", Some(20.4)),
        (6, "b", Some(21.0)),
        (7, "a", Some(20.6)),
        (8, "a", Some(20.0)),
        (9, "b", Some(f64::NAN)),
    ];
    for (sql, expected) in [
        (
            "SELECT device, v FROM m WHERE changed(v)",
            vec!["a 20.0", "b 20.0", "a 20.4", "b 21.0", "a 20.6", "a 20.0"],
        ),
        (
            "SELECT device, v FROM m WHERE deadband(v, 0.5, 'abs')",
            vec!["a 20.0", "b 20.0", "b 21.0", "a 20.6", "a 20.0"],
        ),
        ("SELECT device, v FROM m WHERE deadband(v, 4, 'pct')", vec!["a 20.0", "b 20.0", "b 21.0"]),
        // A failed reading is a change of whether there is a value.
        (
            "SELECT device, v FROM m WHERE changed(v IS NULL)",
            vec!["a 20.0", "b 20.0", "a ", "a 20.4"],
        ),
        // The rows that AND would pass over are seen: without 20.0 at 3 the 20.4 would be no
        // change, as nothing would be known of a.
        (
            "SELECT device, v FROM m WHERE v > 20 AND changed(v) AND device = 'a'",
            vec!["a 20.4", "a 20.6"],
        ),
        // In SELECT it sees what WHERE left; two calls remember each for itself.
        (
            "SELECT v, changed(v) AS c, changed(v) AS d FROM m WHERE device = 'b'",
            vec!["20.0 true true", "21.0 true true", "NaN false false"],
        ),
        (
            "SELECT v, CASE WHEN hysteresis(v, 20.1, 20.5) THEN 'on' ELSE 'off' END AS alarm \
             FROM m WHERE device = 'a'",
            vec!["20.0 off", "20.0 off", " off", "20.4 off", "20.6 on", "20.0 off"],
        ),
        // One call in another.
        (
            "SELECT device, v FROM m WHERE changed(hysteresis(v, 20.1, 20.5))",
            vec!["a 20.0", "b 20.0", "b 21.0", "a 20.6", "a 20.0"],
        ),
        (
            "SELECT t.device FROM (SELECT device, v + 1 AS w FROM m) AS t WHERE changed(t.w)",
            vec!["a", "b", "a", "b", "a", "a"],
        ),
        // Without a device there is one row of rows.
        ("SELECT v FROM (SELECT v FROM m) WHERE deadband(v, 0.9)", vec!["20.0", "21.0", "20.0"]),
        (
            "SELECT v FROM m WHERE changed(device) UNION ALL SELECT -v FROM m WHERE deadband(v, 9)",
            vec!["20.0", "20.0", "-20.0", "-20.0"],
        ),
    ] {
        for cut in 1..=all.len() {
            let mut query_of = query(sql, None);
            let (mut got, mut kept) = (Vec::new(), Kept::default());
            for batch in all.chunks(cut) {
                got.extend(run(&mut query_of, batch, None).await);
                // A restart between any two batches changes nothing.
                kept.take(&query_of);
                query_of = query(sql, None);
                assert_eq!(kept.give(&query_of), 0);
            }
            let (mut got, mut expected) = (got, expected.clone());
            if sql.contains("UNION") {
                got.sort();
                expected.sort_unstable();
            }
            assert_eq!(got, expected, "{sql} in batches of {cut}");
        }
        assert!(query(sql, None).explain().starts_with("mode: by row"));
    }
}

#[test]
fn what_is_wrong_in_a_call_is_said_with_its_form() {
    let sql = Sql::new(1 << 20).unwrap();
    for (call, message, hint) in [
        ("integral(v)", "integral: an argument is missing", "integral(x, time ["),
        ("integral(device, time)", "x is Utf8, not a number", "integral(x, time"),
        ("integral(v, n)", "time is Int64, not a timestamp", "integral(x, time"),
        ("integral(v, time, 'd')", "'d' is not an option", "'min' | 'h'"),
        ("integral(v, time, device)", "m.device is not a constant text", "'min' | 'h'"),
        ("integral(v, time, 's', 'h')", "'h' is not an option", "'min' | 'h'"),
        ("integral(DISTINCT v, time)", "goes by time alone", "drop DISTINCT"),
        ("histogram(DISTINCT v, 0, 1, 1)", "counts all", "drop DISTINCT"),
        ("integral(v, time) OVER (ORDER BY time)", "not available with OVER", "GROUP BY"),
        ("time_weighted_avg(v, time, 'h')", "'h' is not an option", "'last' | 'linear'"),
        ("counter_delta(v, -1)", "not a number above 0", "[, wrap]"),
        ("counter_delta(v, time, 10, 20)", "an argument too many", "[, wrap]"),
        ("counter_delta(v, n)", "`wrap` is m.n", "[, wrap]"),
        ("rate(v, 10)", "time is Int64, not a timestamp", "rate(x, time"),
        ("duration_where(v, time)", "the condition is Float64", "duration_where(condition, time)"),
        ("histogram(v, 1)", "an argument is missing", "histogram(x, low, high, buckets)"),
        ("histogram(v, 5, 1, 3)", "`low` is 5, not less than `high`", "histogram(x"),
        ("histogram(v, 0, n, 3)", "`high` is m.n, not a constant number", "histogram(x"),
        ("histogram(v, 0, 1, 2.5)", "`buckets` is 2.5", "histogram(x"),
        ("histogram(v, 0, 1, 1001)", "`buckets` is 1001", "histogram(x"),
        ("changed(v, n)", "an argument too many", "changed(x)"),
        ("deadband(v)", "an argument is missing", "deadband(x, band"),
        ("deadband(v, -0.5)", "the band is -0.5, less than 0", "deadband(x, band"),
        ("deadband(v, 1, 'rel')", "'rel' is not an option", "'abs' | 'pct'"),
        ("deadband(device, 1)", "x is Utf8, not a number", "deadband(x, band"),
        ("hysteresis(v, 80, 70)", "`low` is 80, above `high`", "hysteresis(x, low, high)"),
        ("json_get(s, 'a..b')", "a key is empty", "json_get(text, path)"),
        ("json_get_int(s, device)", "not a constant text", "json_get(text, path)"),
        ("json_get_int(v, 'a')", "text is Float64", "holds JSON"),
        ("good_count(DISTINCT v)", "good_count(DISTINCT …) has no meaning", "drop DISTINCT"),
    ] {
        let error = match sql.plan(&format!("SELECT {call} AS x FROM m"), &tables(), true) {
            Err(error) => error,
            Ok(query) => panic!("{call} was planned:\n{}", query.explain()),
        };
        assert!(error.message.contains(message), "{call}: {error:?}");
        assert!(error.hint.as_deref().unwrap_or("").contains(hint), "{call}: {error:?}");
    }
    let error = sql.plan("SELECT count(*),\n  integral(device, time) AS x FROM m", &tables(), true);
    assert_eq!(error.unwrap_err().position, Some((2, 12)), "where the column stands");
    for (text, message) in [
        ("SELECT counter_delta(n) FROM (SELECT n FROM m)", "have no column `time`"),
        ("SELECT counter_delta(m.n) FROM m JOIN o ON m.n = o.n", "several columns `time`"),
        ("SELECT m.v FROM m JOIN o ON m.n = o.n AND changed(m.v)", "SELECT and WHERE only"),
        ("SELECT changed(1) AS c FROM m JOIN o ON m.n = o.n", "several columns `device`"),
    ] {
        let error = sql.plan(text, &tables(), true).unwrap_err();
        assert!(error.message.contains(message), "{text}: {error:?}");
    }
}

/// They would fail each window of a stream that had been accepted.
#[test]
fn constants_with_which_each_window_would_fail_are_refused() {
    let sql = Sql::new(1 << 20).unwrap();
    let plan = |call: &str| sql.plan(&format!("SELECT {call} AS x FROM m"), &tables(), true);
    for (call, message, hint) in [
        ("counter_delta(n, 1.5)", "`wrap` is 1.5, not a whole number, and x is Int64", "[, wrap]"),
        ("counter_delta(n, time, 0.3)", "`wrap` is 0.3, not a whole number", "[, wrap]"),
        ("rate(n, time, 99.5)", "`wrap` is 99.5, not a whole number", "rate(x, time"),
        ("deadband(v, NULL)", "band is NULL, not a number", "deadband(x, band"),
        ("deadband(v, CAST('NaN' AS DOUBLE))", "not a number", "deadband(x, band"),
        ("hysteresis(v, 70, NULL)", "high is NULL, not a number", "hysteresis(x, low, high)"),
        ("approx_percentile(v, 2)", "approx_percentile: the share is 2, not from 0", "0.02 for 2"),
        ("approx_percentile(v, 1.0 + 0.5)", "the share is 1.5", "a share from 0 to 1"),
        ("approx_percentile(v, -0.5)", "the share is -0.5", "such as 0.95"),
        ("approx_percentile_cont(95) WITHIN GROUP (ORDER BY v)", "the share is 95", "0.95 for 95"),
        ("percentile_cont(v, 1.5)", "the share is 1.5", "from 0 to 1"),
    ] {
        let error = plan(call).expect_err(call);
        assert!(error.message.contains(message), "{call}: {error:?}");
        assert!(error.hint.as_deref().unwrap_or("").contains(hint), "{call}: {error:?}");
    }
    let text = "SELECT count(*) AS n,\n  approx_percentile(v, 2) AS x FROM m";
    let error = sql.plan(text, &tables(), true).unwrap_err();
    assert_eq!(error.position, Some((2, 21)), "where the column stands");
    // Those that are right, also where they are computed.
    for call in [
        "approx_percentile(v, 0.9 + 0.05)",
        "approx_percentile(n, 1)",
        "approx_percentile_cont(0.99) WITHIN GROUP (ORDER BY v DESC)",
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY v)",
        "counter_delta(v, 1.5)",
        "counter_delta(n, 65536.0)",
    ] {
        plan(call).expect(call);
    }
}
