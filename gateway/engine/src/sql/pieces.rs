//! A window computed in pieces is the window computed at once.
//!
//! The oracle is the plain plan over all rows, which `shapes` holds against a fresh DataFusion.

use arrow::record_batch::RecordBatch;
use proptest::prelude::*;

use super::shapes::{Row, rows, tables, text, windows};
use super::*;
use crate::window::Bounds;

/// What must be computed in pieces.
const PIECES: [&str; 28] = [
    "SELECT count(*) AS n FROM m",
    "SELECT avg(v) AS a, min(v) AS i, max(v) AS x, sum(v) AS s, count(v) AS c FROM m",
    "SELECT stddev(v) AS s, stddev_pop(n) AS p, var(v) AS v, var_pop(n) AS q FROM m",
    "SELECT first(v) AS f, last(v) AS l, good_ratio(v) AS q FROM m",
    "SELECT device, avg(v) AS a, min(v) AS i, max(v) AS x, sum(n) AS s, count(*) AS c FROM m \
     GROUP BY device",
    "SELECT device, stddev(n) AS s, first(v) AS f, last(n) AS l, good_ratio(v) AS q FROM m \
     GROUP BY device",
    "SELECT device, avg(v) FILTER (WHERE n > 2) AS f, last(v) FILTER (WHERE v < 5) AS l FROM m \
     GROUP BY device",
    "SELECT device, sum(n) AS s FROM m GROUP BY device HAVING sum(n) > 4",
    "SELECT device, max(n) AS x FROM m GROUP BY device ORDER BY max(n) DESC, device LIMIT 2",
    "SELECT device, max(n) AS x FROM m GROUP BY device ORDER BY device LIMIT 1 OFFSET 1",
    "SELECT count(*) AS n, sum(v) AS s, max(device) AS d FROM m WHERE n > 99",
    "SELECT device, count(*) AS n FROM m WHERE n > 99 GROUP BY device",
    "SELECT window_start() AS s, window_end() AS e, count(*) AS n FROM m",
    "SELECT window_start() AS s, device, count(*) AS n FROM m GROUP BY window_start(), device",
    "SELECT window_end() - INTERVAL '1 second' AS e, device, n, sum(v) AS s FROM m \
     GROUP BY window_end() - INTERVAL '1 second', n, device HAVING count(*) > 0",
    "SELECT upper(device) AS d, n % 2 AS odd, count(v) AS c FROM m WHERE n < 9 \
     GROUP BY upper(device), n % 2",
    "SELECT device, CASE WHEN avg(v) > 3 THEN 'high' ELSE 'low' END AS c FROM m GROUP BY device",
    "WITH x AS (SELECT device, v * 2 AS w, time FROM m WHERE v > 2) \
     SELECT device, last(w) AS l, sum(w) AS s FROM x GROUP BY device",
    "SELECT min(time) AS a, max(time) AS b, max(time) - min(time) AS span FROM m",
    "SELECT bool_and(v > 2) AS a, bool_or(v > 2) AS o, bit_or(n) AS b, approx_distinct(n) AS d FROM m",
    "SELECT corr(v, n) AS c, covar_pop(v, n) AS p, covar_samp(v, n) AS s FROM m",
    "SELECT DISTINCT device FROM m",
    "SELECT device, row_number() OVER (ORDER BY sum(n), device) AS r FROM m GROUP BY device",
    "SELECT device, good_count(v) AS g, histogram(v, 0, 10, 5) AS h FROM m GROUP BY device",
    "SELECT time_weighted_avg(v, time) AS a, integral(v, time, 'linear') AS i, avg(v) AS p FROM m",
    "SELECT device, counter_delta(n) AS d, rate(v, time) AS r, counter_delta(v, 100) AS w FROM m \
     WHERE n < 9 GROUP BY device HAVING count(*) > 1 ORDER BY device",
    "SELECT 2 * duration_where(w > 2, t) AS d, integral(w, t) FILTER (WHERE w < 5) AS i \
     FROM (SELECT v * 2 AS w, time AS t, n FROM m WHERE n > 0) AS x",
    "SELECT last(v) AS l, last(v, time) AS t, first(device) AS d FROM m AS other WHERE n < 9",
];

/// What runs over all rows, and a part of the reason.
const WHOLE: &[(&str, &str)] = &[
    ("SELECT n FROM m", "does not aggregate"),
    ("SELECT median(v) AS m FROM m", "median() needs all rows"),
    ("SELECT array_agg(n) AS a FROM m", "array_agg() needs all rows"),
    ("SELECT count(DISTINCT device) AS d FROM m", "DISTINCT"),
    ("SELECT count(DISTINCT device) AS d, sum(DISTINCT n) AS s FROM m", "DISTINCT"),
    ("SELECT max(a) AS a FROM (SELECT avg(v) AS a FROM m GROUP BY device)", "twice"),
    ("SELECT approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY v) AS p FROM m", "needs all rows"),
    ("SELECT first_value(v ORDER BY n) AS f FROM m", "needs all rows"),
    (
        "SELECT time_weighted_avg(v, time + INTERVAL '1 second') AS a FROM m",
        "time_weighted_avg() goes by another time than the windows do",
    ),
    (
        "SELECT integral(v, time) AS i, rate(n, t) AS r \
         FROM (SELECT *, time - INTERVAL '1 second' AS t FROM m)",
        "rate() goes by",
    ),
    (
        "SELECT rate(v, time) AS r FROM (SELECT v, time FROM m UNION ALL SELECT v, time FROM o)",
        "below its aggregation",
    ),
    ("SELECT count(*) AS n FROM m WHERE changed(v)", "below its aggregation"),
    ("SELECT count(*) AS n FROM m JOIN o ON m.n = o.n", "joins"),
    ("SELECT count(*) AS n FROM (SELECT n FROM m UNION ALL SELECT n FROM o)", "UNION"),
    ("SELECT last(n) AS n FROM (SELECT n FROM m UNION ALL SELECT n FROM o)", "UNION"),
    ("SELECT count(*) AS n FROM m WHERE time > window_start()", "window_start()"),
    ("SELECT max(time - window_start()) AS n FROM m", "window_start()"),
    ("SELECT count(*) FILTER (WHERE time < window_end()) AS n FROM m", "window_end()"),
    ("SELECT last(w) AS l FROM (SELECT v AS w FROM m)", "without a time"),
    ("SELECT avg(n) AS n FROM (SELECT n FROM m ORDER BY v LIMIT 2)", "below its aggregation"),
    ("SELECT avg(n) AS n FROM (SELECT n FROM m LIMIT 2)", "LIMIT"),
    ("SELECT sum(r) AS r FROM (SELECT row_number() OVER (ORDER BY n) AS r FROM m)", "below"),
    ("SELECT device, count(*) AS n FROM m GROUP BY ROLLUP (device)", "ROLLUP"),
    ("SELECT m.n, c FROM o AS m CROSS JOIN (SELECT count(*) AS c FROM m)", "joins"),
];

fn planned(sql: &Sql, text: &str) -> Query {
    sql.plan(text, &tables(), true).unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

/// Equal texts, apart from the last digits of floats.
fn same(a: &[String], b: &[String]) -> bool {
    let cell = |(a, b): (&str, &str)| match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => {
            a.total_cmp(&b).is_eq() || (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-3)
        }
        _ => a == b,
    };
    let line = |(a, b): (&String, &String)| {
        a.split(' ').count() == b.split(' ').count() && a.split(' ').zip(b.split(' ')).all(cell)
    };
    a.len() == b.len() && a.iter().zip(b).all(line)
}

/// Folds `batch` in pieces that end at `cuts`, reduces the first `early` states before the rest
/// comes, and finishes.
async fn in_pieces(
    query: &mut Query,
    batch: &RecordBatch,
    cuts: &[usize],
    early: usize,
    bounds: Bounds,
) -> Vec<String> {
    let mut states = Vec::new();
    let mut from = 0;
    for &to in cuts.iter().chain([&batch.num_rows()]) {
        states.push(query.fold(vec![batch.slice(from, to - from)]).await.unwrap());
        from = to;
    }
    let rest = states.split_off(early.min(states.len()));
    let early = query.reduce(states).await.unwrap();
    text(&query.finish([vec![early], rest].concat(), bounds).await.unwrap())
}

#[tokio::test]
async fn pieces_give_what_the_whole_gives() {
    let sql = Sql::new(64 << 20).unwrap();
    let mut seen = 0;
    for text_of in PIECES {
        let mut query = planned(&sql, text_of);
        assert_eq!(query.mode(), &Mode::Incremental, "{text_of}\n{}", query.explain());
        for (at, window) in windows().iter().enumerate() {
            let start = i64::try_from(at).unwrap() * 10_000_000;
            let bounds = Bounds { start, end: start + 10_000_000 };
            let inputs = window.iter().map(|batch| vec![batch.clone()]).collect();
            let whole = text(&query.execute(inputs, Some(bounds)).await.unwrap());
            seen += whole.len();
            let (batch, rows) = (&window[0], window[0].num_rows());
            let each: Vec<usize> = (0..rows).collect();
            for (cuts, early) in [(&[][..], 0), (&[rows / 2], 1), (&each, 0), (&each, 3)] {
                let pieces = in_pieces(&mut query, batch, cuts, early, bounds).await;
                assert!(same(&pieces, &whole), "{text_of}: {pieces:?}, not {whole:?}");
            }
            // A window without rows is one row of an aggregate without groups, and none of others.
            let nothing = text(&query.finish(vec![], bounds).await.unwrap());
            let inputs = window.iter().map(|batch| vec![batch.slice(0, 0)]).collect();
            let empty = text(&query.execute(inputs, Some(bounds)).await.unwrap());
            assert_eq!(nothing, empty, "{text_of}");
        }
        assert_eq!(query.plans(), 1);
    }
    assert!(seen > 130, "the windows have rows: {seen}");
}

#[test]
fn what_needs_all_rows_says_why() {
    let sql = Sql::new(64 << 20).unwrap();
    for (text, why) in WHOLE {
        let query = planned(&sql, text);
        let Mode::Recompute { reason } = query.mode() else {
            panic!("{text} is not computed at once:\n{}", query.explain())
        };
        assert!(reason.contains(why), "{text}: {reason}");
        assert!(query.explain().starts_with("mode: recompute: "), "{}", query.explain());
    }
}

/// An expression over a group that is only known at the end is that of the window that is finished,
/// also when the states were made while another one was.
#[tokio::test]
async fn the_bounds_are_those_of_the_window_that_is_finished() {
    let sql = Sql::new(64 << 20).unwrap();
    let text_of = "SELECT window_start() AS s, device, count(*) AS n FROM m GROUP BY 1, 2";
    let mut query = planned(&sql, text_of);
    let rows = rows(&[(1, "a", Some(1.0), 1), (2, "b", None, 1), (3, "a", None, 1)]);
    let first = query.fold(vec![rows.slice(0, 2)]).await.unwrap();
    let bounds = |start: i64| Bounds { start: start * 1_000_000, end: (start + 10) * 1_000_000 };
    let early = text(&query.finish(vec![first.clone()], bounds(10)).await.unwrap());
    assert_eq!(early, ["1970-01-01T00:00:10Z a 1", "1970-01-01T00:00:10Z b 1"]);
    let second = query.fold(vec![rows.slice(2, 1)]).await.unwrap();
    let both = text(&query.finish(vec![first, second], bounds(20)).await.unwrap());
    assert_eq!(both, ["1970-01-01T00:00:20Z a 2", "1970-01-01T00:00:20Z b 1"]);
}

/// States are copied: they hold their own bytes and not those of the operator that made them.
#[tokio::test]
async fn states_hold_no_more_than_themselves() {
    let sql = Sql::new(64 << 20).unwrap();
    let mut query = planned(&sql, "SELECT n, avg(v) AS a, max(v) AS x FROM m GROUP BY n");
    let many: Vec<Row> = (0..1_000).map(|n| (1, "a", Some(1.0), n)).collect();
    let states = query.fold(vec![rows(&many)]).await.unwrap();
    // n, count, sum and max: four columns of 8 bytes, and at most a bit each for nulls.
    assert_eq!((states.num_rows(), states.num_columns()), (1_000, 4));
    let held = states.get_array_memory_size();
    assert!((32_000..36_000).contains(&held), "{held} bytes");
}

#[tokio::test]
async fn pieces_are_bounded_by_the_memory_of_operators_and_give_it_back() {
    let sql = Sql::new(1 << 20).unwrap();
    let mut query = planned(&sql, "SELECT n, count(*) AS c FROM m GROUP BY n");
    let bounds = Bounds { start: 0, end: 10 };
    let many: Vec<Row> = (0..200_000).map(|n| (1, "a", None, n)).collect();
    let all = rows(&many);
    let states: Vec<RecordBatch> = vec![query.fold(vec![all.slice(0, 10)]).await.unwrap(); 3];
    assert_eq!(query.reduce(states.clone()).await.unwrap().num_rows(), 10);
    let large = RecordBatch::try_new(
        states[0].schema(),
        vec![all.column(5).clone(), all.column(5).clone()],
    )
    .unwrap();
    for error in [
        query.reduce(vec![large.clone()]).await.unwrap_err(),
        query.finish(vec![large], bounds).await.unwrap_err(),
    ] {
        assert!(error.message.contains("memory"), "{error:?}");
    }
    assert_eq!(query.finish(states, bounds).await.unwrap()[0].num_rows(), 10);
}

#[tokio::test]
async fn a_piece_that_fails_leaves_nothing_behind() {
    let sql = Sql::new(64 << 20).unwrap();
    let mut query = planned(&sql, "SELECT sum(10 / n) AS s FROM m");
    let zero = rows(&[(1, "a", None, 2), (2, "a", None, 0)]);
    let error = query.fold(vec![zero.clone()]).await.unwrap_err();
    assert!(error.message.contains("Divide by zero"), "{error:?}");
    let state = query.fold(vec![zero.slice(0, 1)]).await.unwrap();
    let bounds = Bounds { start: 0, end: 10 };
    assert_eq!(text(&query.finish(vec![state], bounds).await.unwrap()), ["5"]);
}

/// Everything at once, for rows made by chance.
const ALL: &str = "SELECT window_start() AS s, device, count(*) AS c, count(v) AS cv, sum(n) AS sn, \
                   min(v) AS i, max(v) AS x, avg(v) AS a, stddev_pop(v) AS d, first(v) AS f, \
                   last(v) AS l, good_ratio(v) AS q, max(v) FILTER (WHERE n > 0) AS xn FROM m \
                   WHERE n <> 3 GROUP BY device";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_rows_in_any_pieces(
        values in prop::collection::vec(
            (0_i64..10, 0_usize..4, prop::option::weighted(0.8, -1e3_f64..1e3), -4_i64..5),
            0..60,
        ),
        cuts in prop::collection::vec(0_usize..60, 0..6),
        early in 0_usize..4,
    ) {
        let mut values: Vec<Row> = values
            .into_iter()
            .map(|(time, device, v, n)| (time, ["a", "b", "c", "d"][device], v, n))
            .collect();
        values.sort_by_key(|row| row.0);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(values.len())).collect();
        cuts.sort_unstable();
        let batch = rows(&values);
        let sql = Sql::new(64 << 20).unwrap();
        let mut query = planned(&sql, ALL);
        let bounds = Bounds { start: 0, end: 10_000_000 };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let whole = query.execute(vec![vec![batch.clone()], vec![]], Some(bounds));
        let whole = text(&runtime.block_on(whole).unwrap());
        let pieces = in_pieces(&mut query, &batch, &cuts, early, bounds);
        let pieces = runtime.block_on(pieces);
        prop_assert!(same(&pieces, &whole), "{:?}, not {:?}", pieces, whole);
    }
}
