//! Several tables in one window, each device's last row, and lookups: expected rows are by hand.

use arrow::array::Array;
use arrow::util::display::array_value_to_string;

use super::*;
use crate::lookup::Lookup;

/// The results, in one line per row; null is `-`.
fn cells(results: &[Output]) -> Vec<String> {
    let mut lines = Vec::new();
    for Output { batch, .. } in results {
        for row in 0..batch.num_rows() {
            let cells = batch.columns().iter().map(|column| {
                let value =
                    column.is_valid(row).then(|| array_value_to_string(column, row).unwrap());
                value.unwrap_or("-".to_owned())
            });
            lines.push(cells.collect::<Vec<_>>().join(" "));
        }
    }
    lines
}

/// A stream over tables of these names, the last `aside` of which are only looked at.
fn spec_of(names: &[&str], aside: usize, window: Option<i64>) -> StreamSpec {
    let mut spec = spec(window.unwrap_or(1), 0);
    spec.tables = names.iter().map(|name| table(name)).collect();
    spec.side_tables = aside;
    if window.is_none() {
        spec.window = None;
    }
    spec
}

fn looks(mut spec: StreamSpec, name: &str, table: usize, device: Option<&str>) -> StreamSpec {
    let (name, device) = (name.to_owned(), device.map(str::to_owned));
    spec.latest.push(Latest { name, table, device });
    spec
}

fn planned(spec: &StreamSpec, sql: &str, lookups: &[Arc<Lookup>]) -> Query {
    spec.plan_with(&Sql::new(64 << 20).unwrap(), sql, lookups).unwrap()
}

fn started(spec: StreamSpec, sql: &str) -> Stream {
    let query = planned(&spec, sql, &[]);
    Stream::new(spec, query, NOW).unwrap()
}

async fn fed(stream: &mut Stream, table: usize, rows: &[Row]) -> Vec<Output> {
    feed(stream, table, batch(rows), NOW).await.results
}

#[tokio::test]
async fn three_tables_are_joined_by_device_and_an_absent_one_is_empty() {
    let sql = "SELECT m.device AS d, m.v AS a, o.v AS b, p.v AS c FROM m \
               LEFT JOIN o ON o.device = m.device LEFT JOIN p ON p.device = m.device ORDER BY m.v";
    let mut stream = started(spec_of(&["m", "o", "p"], 0, Some(10)), sql);
    fed(&mut stream, 0, &[(1, "a", 1.0), (2, "b", 2.0)]).await;
    fed(&mut stream, 1, &[(3, "a", 10.0)]).await;
    let first = drain(&mut stream).await.results;
    assert_eq!(cells(&first), ["a 1.0 10.0 -", "b 2.0 - -"]);

    let inner = "SELECT m.v + o.v + p.v AS sum FROM m JOIN o ON o.device = m.device \
                 JOIN p ON p.device = m.device";
    let mut stream = started(spec_of(&["m", "o", "p"], 0, Some(10)), inner);
    fed(&mut stream, 2, &[(9, "a", 400.0), (9, "b", 500.0)]).await;
    fed(&mut stream, 0, &[(1, "a", 1.0), (2, "b", 2.0)]).await;
    fed(&mut stream, 1, &[(3, "a", 30.0)]).await;
    assert_eq!(cells(&drain(&mut stream).await.results), ["431.0"]);
    let counts = stream.counts();
    assert_eq!((counts.accepted, counts.windowed), (5, 5));
    ledger_holds(&counts);
}

#[tokio::test]
async fn a_window_is_joined_with_the_last_rows_of_another_table() {
    let sql = "SELECT m.device AS d, l.v AS last FROM m LEFT JOIN latest('o') AS l \
               ON l.device = m.device ORDER BY m.device";
    let mut stream = started(looks(spec_of(&["m", "o"], 1, Some(10)), "o", 1, None), sql);
    fed(&mut stream, 1, &[(1, "a", 100.0), (2, "b", 200.0), (3, "a", 101.0)]).await;
    fed(&mut stream, 0, &[(1, "a", 1.0), (2, "b", 2.0), (3, "c", 3.0)]).await;
    let later = [(20, "a", 1.0), (20, "b", 1.0), (20, "c", 1.0)];
    assert_eq!(cells(&fed(&mut stream, 0, &later).await), ["a 101.0", "b 200.0", "c -"]);
    // The last one that came counts, though its stamp is older.
    fed(&mut stream, 1, &[(0, "a", 50.0)]).await;
    assert_eq!(cells(&drain(&mut stream).await.results), ["a 50.0", "b 200.0", "c -"]);
    let (counts, progress) = (stream.counts(), stream.progress());
    assert_eq!(counts.accepted, 6, "rows that are only looked at are in no window");
    ledger_holds(&counts);
    assert_eq!((progress.processed, progress.replay_from), (vec![6, 4], vec![6, 4]));
}

#[tokio::test]
async fn one_device_of_a_table_and_a_window_of_nothing_but_last_rows() {
    let spec = looks(spec_of(&["m"], 0, Some(10)), "b", 0, Some("b"));
    let sql = "SELECT device AS d, v, seq FROM latest('b')";
    let mut stream = started(spec, sql);
    fed(&mut stream, 0, &[(1, "a", 1.0), (2, "b", 2.0), (3, "b", 3.0), (4, "a", 4.0)]).await;
    // `seq` is that of the helper: the row's place in its batch.
    assert_eq!(cells(&drain(&mut stream).await.results), ["b 3.0 3"]);
    assert!(stream.query.explain().contains("; looks at latest('b')"));
}

/// Any way of cutting the rows into batches, when the SQL looks at the table whose rows come.
#[tokio::test]
async fn last_rows_do_not_depend_on_batches() {
    let rows = [
        (1, "a", 1.0),
        (5, "b", 2.0),
        (12, "a", 4.0),
        (13, "b", 8.0),
        (25, "a", 16.0),
        (25, "b", 32.0),
    ];
    let sums = "SELECT count(*) AS n, (SELECT sum(v) FROM latest('m')) AS s FROM m";
    let pairs =
        "SELECT m.v AS v, l.v AS other FROM m JOIN latest('m') AS l ON l.device <> m.device";
    for size in 1..=rows.len() {
        // Closed by the row of 13 s, when the last ones were 4 and 8; then by that of 25 s.
        let spec = looks(spec_of(&["m"], 0, Some(10)), "m", 0, None);
        let mut stream = started(spec, sums);
        let mut results = Vec::new();
        for rows in rows.chunks(size) {
            results.extend(fed(&mut stream, 0, rows).await);
        }
        assert_eq!(cells(&results), ["2 12.0", "2 48.0"], "batches of {size}");

        let spec = looks(spec_of(&["m"], 0, None), "m", 0, None);
        let mut stream = started(spec, pairs);
        let mut results = Vec::new();
        for rows in rows.chunks(size) {
            results.extend(fed(&mut stream, 0, rows).await);
        }
        let expected = ["2.0 1.0", "4.0 2.0", "8.0 4.0", "16.0 8.0", "32.0 16.0"];
        assert_eq!(cells(&results), expected, "batches of {size}");
    }
}

#[tokio::test]
async fn last_rows_survive_a_restart_without_their_log() {
    let sql =
        "SELECT m.v AS v, l.v AS last FROM m LEFT JOIN latest('o') AS l ON l.device = m.device";
    let spec = looks(spec_of(&["m", "o"], 1, None), "o", 1, None);
    let mut stream = started(spec.clone(), sql);
    fed(&mut stream, 1, &[(1, "a", 100.0), (2, "b", 200.0), (3, "a", 101.0)]).await;
    let progress = stream.progress();
    assert_eq!(progress.replay_from, [0, 3]);
    let restore = |sql: &str| {
        let query = planned(&spec, sql, &[]);
        Stream::restore(spec.clone(), query, &progress.state, NOW).unwrap()
    };
    let rows = [(4, "b", 1.0), (4, "c", 2.0), (5, "a", 3.0)];
    let mut after = restore(sql);
    let replayed = after.apply(Event::Replayed, NOW).await.unwrap();
    assert!(replayed.results.is_empty());
    assert_eq!(after.progress().state, progress.state);
    let expected = ["1.0 200.0", "2.0 -", "3.0 101.0"];
    assert_eq!(cells(&fed(&mut after, 0, &rows).await), expected);
    // Rows that were applied before are not applied again.
    let again = Event::Replay { table: 1, position: 0, batch: batch(&[(1, "a", 7.0)]) };
    after.apply(again, NOW).await.unwrap();
    assert_eq!(cells(&fed(&mut after, 0, &[(6, "a", 4.0)]).await), ["4.0 101.0"]);
    // SQL that reads a column that was not kept sees no value until the next row.
    let other = "SELECT m.v AS v, l.seq AS s, l.device AS d FROM m JOIN latest('o') AS l \
                 ON l.device = m.device";
    let mut changed = restore(other);
    assert_eq!(cells(&fed(&mut changed, 0, &[(4, "a", 1.0)]).await), ["1.0 3 a"]);
}

fn limits(rows: &[(&str, f64)]) -> (Arc<Lookup>, RecordBatch) {
    let columns: [(&str, ArrayRef); 2] = [
        ("device", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0)))),
        ("high", Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.1)))),
    ];
    let rows =
        RecordBatch::try_from_iter_with_nullable(columns.map(|(n, a)| (n, a, true))).unwrap();
    (Arc::new(Lookup::new("limits", rows.schema())), rows)
}

/// Each row is joined by itself: in the order of the rows, and the same however they come.
#[tokio::test]
async fn lookups_are_joined_without_a_window_and_keep_the_order_of_rows() {
    let rows = [(1, "b", 1.0), (2, "c", 2.0), (3, "a", 3.0), (4, "b", 4.0)];
    let cases: [(&str, &[&str]); 8] = [
        (
            "SELECT m.v AS v, l.high AS h FROM m LEFT JOIN limits l ON l.device = m.device",
            &["1.0 2.0", "2.0 -", "3.0 10.0", "3.0 11.0", "4.0 2.0"],
        ),
        (
            "SELECT m.v AS v, l.high AS h FROM limits l JOIN m ON l.device = m.device AND m.v > 1",
            &["3.0 10.0", "3.0 11.0", "4.0 2.0"],
        ),
        (
            "SELECT m.v AS v, l.high AS h FROM limits l RIGHT JOIN m ON l.device = m.device",
            &["1.0 2.0", "2.0 -", "3.0 10.0", "3.0 11.0", "4.0 2.0"],
        ),
        ("SELECT v FROM m WHERE device IN (SELECT device FROM limits)", &["1.0", "3.0", "4.0"]),
        ("SELECT v FROM m WHERE device NOT IN (SELECT device FROM limits)", &["2.0"]),
        (
            "SELECT m.v AS v, l.high AS h FROM m JOIN limits l ON l.high < m.v * 3",
            &["1.0 2.0", "2.0 2.0", "3.0 2.0", "4.0 10.0", "4.0 11.0", "4.0 2.0"],
        ),
        (
            "SELECT m.v AS v, l.top AS h FROM m CROSS JOIN (SELECT max(high) AS top FROM limits) l",
            &["1.0 11.0", "2.0 11.0", "3.0 11.0", "4.0 11.0"],
        ),
        (
            "SELECT v, (SELECT max(high) FROM limits l WHERE l.device = m.device) AS h FROM m",
            &["1.0 2.0", "2.0 -", "3.0 11.0", "4.0 2.0"],
        ),
    ];
    let (lookup, table) = limits(&[("a", 10.0), ("b", 2.0), ("a", 11.0)]);
    lookup.replace(table).unwrap();
    let spec = spec_of(&["m"], 0, None);
    for (sql, expected) in cases {
        for size in [1, 2, 4] {
            let query = planned(&spec, sql, std::slice::from_ref(&lookup));
            let mut stream = Stream::new(spec.clone(), query, NOW).unwrap();
            let mut results = Vec::new();
            for rows in rows.chunks(size) {
                results.extend(fed(&mut stream, 0, rows).await);
            }
            // Which of several matches of one row comes first is the lookup's affair.
            let mut found = cells(&results);
            let row = |line: &str| line.split(' ').next().unwrap().to_owned();
            found.chunk_by_mut(|a, b| row(a) == row(b)).for_each(<[String]>::sort);
            assert_eq!(found, expected, "{sql} in batches of {size}");
        }
    }
}

#[tokio::test]
async fn a_lookup_is_what_was_loaded_last() {
    let sql = "SELECT m.v AS v, l.high AS h FROM m LEFT JOIN limits l ON l.device = m.device";
    let (lookup, table) = limits(&[("a", 10.0)]);
    let spec = spec_of(&["m"], 0, Some(10));
    let query = planned(&spec, sql, std::slice::from_ref(&lookup));
    assert_eq!(query.lookups().map(|lookup| lookup.name()).collect::<Vec<_>>(), ["limits"]);
    let mut stream = Stream::new(spec, query, NOW).unwrap();
    fed(&mut stream, 0, &[(1, "a", 1.0)]).await;
    let nothing = fed(&mut stream, 0, &[(11, "a", 2.0)]).await;
    assert_eq!(cells(&nothing), ["1.0 -"], "never loaded is empty");
    lookup.replace(table.clone()).unwrap();
    assert_eq!(cells(&fed(&mut stream, 0, &[(21, "a", 3.0)]).await), ["2.0 10.0"]);
    lookup.replace(table.slice(0, 0)).unwrap();
    assert_eq!(cells(&fed(&mut stream, 0, &[(31, "a", 4.0)]).await), ["3.0 -"]);
    assert_eq!(stream.counts().plans, 1);
    let query = planned(&spec_of(&["m"], 0, Some(10)), "SELECT count(*) FROM m", &[lookup]);
    assert_eq!(query.lookups().count(), 0);
}

#[test]
fn what_needs_more_than_one_row_is_refused_beside_lookups_too() {
    let (lookup, _) = limits(&[]);
    let spec = looks(spec_of(&["m", "o"], 0, None), "o", 1, None);
    let refused = |sql: &str| {
        let planned =
            spec.plan_with(&Sql::new(1 << 20).unwrap(), sql, std::slice::from_ref(&lookup));
        planned.map(|query| query.explain()).unwrap_err()
    };
    for (sql, message, hint) in [
        ("SELECT m.v FROM m JOIN o ON o.device = m.device", "a join needs", "latest('other')"),
        ("SELECT m.v FROM m FULL JOIN limits l ON l.device = m.device", "match none", "window"),
        ("SELECT m.v FROM limits l LEFT JOIN m ON l.device = m.device", "match none", "window"),
        ("SELECT max(l.high) FROM m JOIN limits l ON l.device = m.device", "an aggregate", ""),
        ("SELECT v FROM m UNION ALL SELECT high FROM limits", "a part of UNION", "each part"),
        ("SELECT v FROM m WHERE device IN (SELECT device FROM o)", "a subquery", "window"),
        ("SELECT * FROM limits", "reads no table", "lookups: limits"),
        ("SELECT * FROM latest('o')", "reads no table", ""),
        ("SELECT m.v FROM m JOIN latest('p') ON true", "no table, stream or device `p`", ""),
        ("SELECT m.v FROM m JOIN latest(1) ON true", "single quotes", ""),
    ] {
        let error = refused(sql);
        assert!(error.message.contains(message), "{sql}: {error:?}");
        assert!(error.hint.clone().unwrap_or_default().contains(hint), "{sql}: {error:?}");
    }
}
