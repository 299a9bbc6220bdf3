//! Every SQL shape over different windows with one kept plan: a reused plan is not a frozen answer.
//!
//! Expected values are calculated by hand where our own functions take part; every other text is
//! also run by a plain, freshly made `SessionContext` of DataFusion over the same rows.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Array, Int64Array, StringArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;

use super::*;
use crate::window::Bounds;

/// Second, device, v, n.
pub(super) type Row = (i64, &'static str, Option<f64>, i64);

pub(super) fn schema() -> SchemaRef {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    Arc::new(Schema::new(vec![
        Field::new("time", utc, false),
        Field::new("device", DataType::Utf8, false),
        Field::new("quality", DataType::Utf8, false),
        Field::new("seq", DataType::UInt64, false),
        Field::new("v", DataType::Float64, true),
        Field::new("n", DataType::Int64, true),
    ]))
}

pub(super) fn tables() -> Vec<TableSchema> {
    let table = |name: &str| TableSchema {
        name: name.into(),
        schema: schema(),
        time_column: "time".into(),
    };
    vec![table("m"), table("o")]
}

pub(super) fn rows(rows: &[Row]) -> RecordBatch {
    let times = rows.iter().map(|row| row.0 * 1_000_000);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(TimestampMicrosecondArray::from_iter_values(times).with_timezone("UTC")),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|_| "good"))),
        Arc::new(UInt64Array::from_iter_values((1_u64..).take(rows.len()))),
        Arc::new(rows.iter().map(|row| row.2).collect::<Float64Array>()),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.3))),
    ];
    RecordBatch::try_new(schema(), columns).unwrap()
}

/// Three windows of other lengths, devices and nulls, one with an empty second table, and the
/// first again: what it left behind must not show.
pub(super) fn windows() -> Vec<[RecordBatch; 2]> {
    let first = [
        rows(&[
            (1, "a", Some(1.0), 1),
            (2, "b", Some(10.0), 2),
            (3, "a", Some(3.0), 3),
            (4, "b", None, 4),
        ]),
        rows(&[(1, "a", Some(100.0), 1), (2, "b", Some(200.0), 2)]),
    ];
    let second = [rows(&[(11, "a", Some(5.0), 7)]), rows(&[])];
    let third = [
        rows(&[
            (21, "c", Some(2.0), 1),
            (22, "a", None, 5),
            (23, "a", Some(8.0), 5),
            (24, "b", Some(4.0), 9),
            (25, "c", Some(6.0), 1),
        ]),
        rows(&[(21, "a", Some(300.0), 3), (22, "c", Some(400.0), 4)]),
    ];
    vec![first.clone(), second, third, first]
}

pub(super) fn text(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::new().with_null("-");
    let mut lines = Vec::new();
    for batch in batches {
        let columns: Vec<ArrayFormatter> = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column, &options).unwrap())
            .collect();
        for row in 0..batch.num_rows() {
            let cells: Vec<String> = columns.iter().map(|c| c.value(row).to_string()).collect();
            lines.push(cells.join(" "));
        }
    }
    lines
}

async fn ours(query: &mut Query, at: usize, window: &[RecordBatch; 2]) -> Vec<String> {
    let start = [0, 10, 20, 0][at] * 1_000_000;
    let bounds = Bounds { start, end: start + 10_000_000 };
    let inputs = window.iter().map(|batch| vec![batch.clone()]).collect();
    text(&query.execute(inputs, Some(bounds)).await.unwrap())
}

/// SQL, then the rows of the three windows, in order.
const BY_HAND: &[(&str, [&[&str]; 3])] = &[
    (
        "SELECT window_start() AS s, window_end() AS e, count(*) AS n FROM m",
        [
            &["1970-01-01T00:00:00Z 1970-01-01T00:00:10Z 4"],
            &["1970-01-01T00:00:10Z 1970-01-01T00:00:20Z 1"],
            &["1970-01-01T00:00:20Z 1970-01-01T00:00:30Z 5"],
        ],
    ),
    ("SELECT first(v), last(v), last(n) FROM m", [&["1.0 3.0 4"], &["5.0 5.0 7"], &["2.0 6.0 1"]]),
    (
        "SELECT device, first(v) AS f, last(v) AS l, good_ratio(v) AS q FROM m GROUP BY device",
        [
            &["a 1.0 3.0 1.0", "b 10.0 10.0 0.5"],
            &["a 5.0 5.0 1.0"],
            &["c 2.0 6.0 1.0", "a 8.0 8.0 0.5", "b 4.0 4.0 1.0"],
        ],
    ),
    ("SELECT good_ratio(v) AS q FROM m", [&["0.75"], &["1.0"], &["0.8"]]),
    (
        "SELECT good_ratio(v) FILTER (WHERE device = 'b') AS q, last(v) FILTER (WHERE v < 3) AS l \
             FROM m",
        [&["0.5 1.0"], &["- -"], &["1.0 2.0"]],
    ),
    ("SELECT last(v, time) AS l, first(n, time) AS f FROM m", [&["3.0 1"], &["5.0 7"], &["6.0 1"]]),
    (
        "SELECT last(v, t) AS l FROM (SELECT v, time AS t FROM m UNION ALL SELECT v, time FROM o)",
        [&["3.0"], &["5.0"], &["6.0"]],
    ),
    (
        "SELECT last(device) AS d, first(quality) AS q FROM m",
        [&["b good"], &["a good"], &["c good"]],
    ),
    (
        "SELECT device, v, last(v) OVER (PARTITION BY device ORDER BY time) AS l FROM m \
             ORDER BY time",
        [
            &["a 1.0 1.0", "b 10.0 10.0", "a 3.0 3.0", "b - 10.0"],
            &["a 5.0 5.0"],
            &["c 2.0 2.0", "a - -", "a 8.0 8.0", "b 4.0 4.0", "c 6.0 6.0"],
        ],
    ),
    (
        "SELECT good_ratio(v) OVER (ORDER BY time ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS q \
             FROM m WHERE device <> 'c' ORDER BY time",
        [&["1.0", "1.0", "1.0", "0.5"], &["1.0"], &["0.0", "0.5", "1.0"]],
    ),
    (
        "SELECT device FROM m WHERE time >= window_start() + INTERVAL '3 seconds' ORDER BY time",
        [&["a", "b"], &[], &["a", "b", "c"]],
    ),
    (
        "SELECT window_start() AS s, device, count(*) AS n FROM m GROUP BY window_start(), device \
             ORDER BY device",
        [
            &["1970-01-01T00:00:00Z a 2", "1970-01-01T00:00:00Z b 2"],
            &["1970-01-01T00:00:10Z a 1"],
            &["1970-01-01T00:00:20Z a 2", "1970-01-01T00:00:20Z b 1", "1970-01-01T00:00:20Z c 2"],
        ],
    ),
    (
        "SELECT CASE WHEN good_ratio(v) < 0.8 THEN 'bad' ELSE 'ok' END AS state FROM m",
        [&["bad"], &["ok"], &["ok"]],
    ),
    (
        "WITH l AS (SELECT device, last(v) AS v FROM m GROUP BY device) \
             SELECT l.device, l.v + o.v AS sum FROM l JOIN o ON l.device = o.device ORDER BY 1",
        [&["a 103.0", "b 210.0"], &[], &["a 308.0", "c 406.0"]],
    ),
    // A union's rows come in the order of the text, not by chance.
    (
        "SELECT n FROM m UNION ALL SELECT n FROM o",
        [&["1", "2", "3", "4", "1", "2"], &["7"], &["1", "5", "5", "9", "1", "3", "4"]],
    ),
    (
        "SELECT last(n) AS l FROM (SELECT n FROM m UNION ALL SELECT n FROM o)",
        [&["2"], &["7"], &["4"]],
    ),
];

#[tokio::test]
async fn shapes_with_our_functions_by_hand() {
    let sql = Sql::new(64 << 20).unwrap();
    for (text, expected) in BY_HAND {
        let mut query = sql.plan(text, &tables(), true).unwrap();
        for (at, window) in windows().iter().enumerate() {
            let got = ours(&mut query, at, window).await;
            assert_eq!(got, expected[at % 3], "window {at} of {text}\n{}", query.explain());
        }
        assert_eq!(query.plans(), 1);
    }
}

const SHAPES: [&str; 42] = [
    "SELECT count(*) AS n FROM m",
    "SELECT count(*) AS n, count(v) AS v FROM m",
    "SELECT avg(v), min(v), max(v), sum(v), stddev(v), var_pop(v) FROM m",
    "SELECT min(time), max(time), max(time) - min(time) AS span FROM m",
    "SELECT device, count(*), avg(v) FROM m GROUP BY device",
    "SELECT device, avg(v) FILTER (WHERE n > 2) AS f FROM m GROUP BY device",
    "SELECT device, sum(n) AS s FROM m GROUP BY device HAVING sum(n) > 4",
    "SELECT device, n FROM m ORDER BY n DESC, device, time",
    "SELECT n FROM m ORDER BY n DESC LIMIT 1",
    "SELECT n FROM m ORDER BY n LIMIT 1 OFFSET 1",
    "SELECT max(n) AS top, device FROM m GROUP BY device ORDER BY max(n) DESC LIMIT 1",
    "SELECT DISTINCT device FROM m",
    "SELECT DISTINCT device FROM m ORDER BY device LIMIT 1",
    "SELECT count(DISTINCT device) AS d FROM m",
    "SELECT approx_distinct(device) AS d FROM m",
    "SELECT median(v) FROM m",
    "SELECT approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY v) AS p FROM m",
    "SELECT array_agg(n ORDER BY n) AS all_n FROM m",
    "SELECT string_agg(device, ',' ORDER BY time) AS s FROM m",
    "SELECT CASE WHEN v > 3 THEN 'high' WHEN v IS NULL THEN 'none' ELSE 'low' END AS c FROM m",
    "WITH x AS (SELECT device, v FROM m WHERE v > 2) SELECT device, count(*) FROM x GROUP BY device",
    "SELECT n FROM m WHERE n > (SELECT avg(n) FROM m)",
    "SELECT n FROM m WHERE device IN (SELECT device FROM o)",
    "SELECT n FROM m WHERE NOT EXISTS (SELECT 1 FROM o WHERE o.device = m.device)",
    "SELECT a.n AS x, b.n AS y FROM m a JOIN m b ON a.device = b.device AND a.n < b.n",
    "SELECT m.device, m.v, o.v AS w FROM m JOIN o ON m.device = o.device",
    "SELECT m.device, o.n AS on FROM m LEFT JOIN o ON m.device = o.device",
    "SELECT m.n AS x, o.n AS y FROM m FULL JOIN o ON m.n = o.n",
    "SELECT m.n AS x, o.n AS y FROM m CROSS JOIN o",
    "SELECT m.n AS x, o.n AS y FROM m JOIN o ON m.n < o.n",
    "SELECT n FROM m UNION SELECT n FROM o",
    "SELECT sum(n) FROM (SELECT n FROM m UNION ALL SELECT n FROM o) AS u",
    "SELECT n FROM m EXCEPT SELECT n FROM o",
    "SELECT n FROM m INTERSECT SELECT n FROM o",
    "SELECT device, n, row_number() OVER (PARTITION BY device ORDER BY time) AS r FROM m",
    "SELECT n, lag(n) OVER (ORDER BY time) AS l, sum(n) OVER (ORDER BY time) AS s FROM m",
    "SELECT n, rank() OVER (ORDER BY n) AS r FROM m ORDER BY r LIMIT 2",
    "SELECT device FROM m WHERE device IN ('a', 'c') AND n BETWEEN 1 AND 5",
    "SELECT upper(device) || '-' || n AS s, length(device) AS l FROM m",
    "SELECT date_trunc('minute', time) AS t, date_bin(INTERVAL '5 seconds', time) AS b, \
     extract(second FROM time) AS s FROM m",
    "SELECT round(v * 1.5, 1) AS r, abs(n - 5) AS a, coalesce(v, -1) AS c FROM m",
    "SELECT device, count(*) FROM m GROUP BY ROLLUP (device)",
];

#[tokio::test]
async fn shapes_as_a_fresh_datafusion_computes_them() {
    let sql = Sql::new(64 << 20).unwrap();
    let mut seen = 0;
    for text_of in SHAPES {
        let text_of = text_of.replace(" AS on ", " AS o_n ");
        let mut query = sql.plan(&text_of, &tables(), true).unwrap();
        for (at, window) in windows().iter().enumerate() {
            let context = SessionContext::new();
            for (table, batch) in ["m", "o"].into_iter().zip(window) {
                let table_of = MemTable::try_new(schema(), vec![vec![batch.clone()]]).unwrap();
                context.register_table(table, Arc::new(table_of)).unwrap();
            }
            let mut fresh = text(&context.sql(&text_of).await.unwrap().collect().await.unwrap());
            let mut kept = ours(&mut query, at, window).await;
            if !text_of.contains("ORDER BY n") && !text_of.contains("ORDER BY max") {
                fresh.sort();
                kept.sort();
            }
            seen += kept.len();
            assert_eq!(kept, fresh, "window {at} of {text_of}\n{}", query.explain());
        }
    }
    assert!(seen > 300, "the shapes have rows: {seen}");
}

#[tokio::test]
async fn a_failed_run_leaves_nothing_behind() {
    let sql = Sql::new(64 << 20).unwrap();
    let mut query = sql.plan("SELECT device, 10 / (n - 7) AS x FROM m", &tables(), true).unwrap();
    let windows = windows();
    for (at, rows) in [(0, Some(4)), (1, None), (1, None), (2, Some(5)), (0, Some(4))] {
        let inputs = windows[at].iter().map(|batch| vec![batch.clone()]).collect();
        let result = query.execute(inputs, Some(Bounds { start: 0, end: 10 })).await;
        match (rows, result) {
            (Some(rows), Ok(batches)) => assert_eq!(batches[0].num_rows(), rows),
            (None, Err(error)) => assert!(error.message.contains("Divide by zero"), "{error:?}"),
            (expected, got) => panic!("window {at}: {expected:?}, {got:?}"),
        }
    }
}

#[tokio::test]
async fn the_memory_of_operators_is_bounded_and_comes_back() {
    let sql = Sql::new(1 << 20).unwrap();
    let mut query = sql.plan("SELECT n, count(*) FROM m GROUP BY n", &tables(), true).unwrap();
    let many: Vec<Row> = (0..200_000).map(|n| (1, "a", None, n)).collect();
    let bounds = Some(Bounds { start: 0, end: 10 });
    let error = query.execute(vec![vec![rows(&many)], vec![]], bounds).await.unwrap_err();
    assert!(error.message.contains("memory"), "{error:?}");
    let few = query.execute(vec![vec![rows(&many[..10])], vec![]], bounds).await.unwrap();
    assert_eq!(few[0].num_rows(), 10);
}
