//! Windows that are computed together have the results of windows that are computed one by one.

use super::kinds::{session, state};
use super::*;

/// SQL, and whether it computes windows together: a single aggregation over rows of one table.
const SHAPES: &[(&str, bool)] = &[
    ("SELECT count(*) AS n FROM m", true),
    ("SELECT window_start() AS s, window_end() AS e, sum(v) AS v FROM m", true),
    ("SELECT device, max(v) AS v, window_end() AS e FROM m GROUP BY device", true),
    ("SELECT window_start(), device, avg(v) AS v FROM m GROUP BY window_start(), device", true),
    ("SELECT device, sum(v) AS v FROM m WHERE v > 50 GROUP BY device", true),
    ("SELECT sum(v) AS v, count(*) AS n FROM m WHERE v > 50", true),
    ("SELECT sum(v) AS v FROM m WHERE v > 50 HAVING count(*) > 1", true),
    ("SELECT device, sum(v) AS v FROM m GROUP BY device HAVING sum(v) > 60", true),
    ("SELECT device, sum(v) AS v FROM m GROUP BY device ORDER BY v DESC, device", true),
    ("SELECT sum(v) FILTER (WHERE device = 'a') AS v, count(DISTINCT device) AS d FROM m", true),
    ("SELECT x, count(*) AS n FROM (SELECT v > 50 AS x, device FROM m AS k) GROUP BY x", true),
    ("SELECT n * 2 AS n FROM (SELECT count(*) AS n, sum(v) AS v FROM m) WHERE v > 60", true),
    ("WITH k AS (SELECT device, v FROM m) SELECT first(v) AS f, last(v) AS l FROM k", true),
    ("SELECT array_agg(v ORDER BY v) AS v FROM m", true),
    ("SELECT sum(v) + date_part('epoch', window_end()) AS v FROM m", true),
    ("SELECT max(v - date_part('epoch', window_start())) AS v FROM m", true),
    // A row in its window, the first rows, a second aggregation, all rows, another pass.
    ("SELECT device, v, row_number() OVER (ORDER BY v) AS n FROM m", false),
    ("SELECT device, sum(v) AS v FROM m GROUP BY device ORDER BY v, device LIMIT 1", false),
    ("SELECT max(n) AS n FROM (SELECT count(*) AS n FROM m GROUP BY device)", false),
    ("SELECT device, v FROM m", false),
    ("SELECT DISTINCT device FROM m", false),
    ("SELECT count(*) AS n FROM m WHERE v > (SELECT avg(v) FROM m)", false),
    ("SELECT count(*) AS n FROM m JOIN m AS k ON m.v = k.v", false),
    ("SELECT device, sum(v) AS v FROM m GROUP BY ROLLUP (device)", false),
];

/// Results as text, with what stands beside them.
async fn run(spec: &StreamSpec, query: Query, rows: &[Row]) -> Vec<String> {
    let mut stream = Stream::new(spec.clone(), query, NOW).unwrap();
    let mut effects = feed(&mut stream, 0, batch(rows), NOW).await;
    let rest = drain(&mut stream).await;
    effects.results.extend(rest.results);
    assert!(effects.failures.is_empty() && rest.failures.is_empty(), "{:?}", rest.failures);
    ledger_holds(&stream.counts());
    let options = crate::encode::JsonOptions::default();
    let lines = effects.results.iter().flat_map(|output| {
        let texts = crate::encode::json_rows(&output.batch, &options, output.first_seq).unwrap();
        let beside = format!("{:?} {} {}", output.window, output.quality, output.first_seq);
        texts.into_iter().map(move |text| format!("{beside} {}", String::from_utf8_lossy(&text)))
    });
    lines.collect()
}

#[tokio::test]
async fn every_shape_gives_the_same_as_one_by_one() {
    // Whole numbers from a fixed sequence: 60 rows of five devices within five minutes.
    let mut seed = 7_u32;
    let mut next = |below: u32| {
        seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        (seed >> 16) % below
    };
    let mut rows: Vec<Row> = (0..60)
        .map(|_| {
            let device = ["a", "b", "c", "d", "e"][next(5) as usize];
            (i64::from(next(300)), device, f64::from(next(100)))
        })
        .collect();
    rows.sort_by_key(|row| row.0);
    for window in [
        session(20, Some(45), &["device"]),
        session(5, None, &[]),
        state("v > 40", "v < 20", 60, &["device"]),
        Window::Count { rows: 7, step: 3 },
        Window::Sliding { size: 15 * SECOND, delay: 2 * SECOND },
    ] {
        let spec = StreamSpec { window: Some(window.clone()), ..spec(10, 0) };
        for (sql, together) in SHAPES {
            let planned = query(&spec, sql);
            assert_eq!(planned.computes_together(), *together, "{sql}");
            let singly = run(&spec, query(&spec, sql).without_twin(), &rows).await;
            assert!(!singly.is_empty(), "{window:?} {sql}");
            assert_eq!(run(&spec, planned, &rows).await, singly, "{window:?} {sql}");
        }
    }
}
