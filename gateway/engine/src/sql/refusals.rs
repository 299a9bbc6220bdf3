//! What SQL is refused, with which words and where.

use super::shapes::{rows, tables};
use super::*;
use crate::window::Bounds;

fn refused(sql: &str, windowed: bool) -> SqlError {
    match Sql::new(1 << 20).unwrap().plan(sql, &tables(), windowed) {
        Err(error) => error,
        Ok(query) => panic!("{sql} was planned:\n{}", query.explain()),
    }
}

/// SQL, part of the message, part of the hint, position.
type Case = (&'static str, &'static str, &'static str, Option<(u32, u32)>);

const REFUSALS: &[Case] = &[
    ("SELECT 1 FROM m; SELECT 2 FROM m", "only one SELECT", "second", None),
    ("", "No SQL", "", None),
    ("DROP TABLE m", "only one SELECT", "DDL", None),
    ("INSERT INTO m SELECT * FROM m", "only one SELECT", "DDL", None),
    ("CREATE TABLE x AS SELECT * FROM m", "only one SELECT", "DDL", None),
    ("SELECT n INTO x FROM m", "only one SELECT", "DDL", None),
    ("COPY m TO '/tmp/x.csv'", "only one SELECT", "COPY", None),
    ("CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '/etc/passwd'", "only one SELECT", "", None),
    ("SET datafusion.execution.batch_size = 1", "only one SELECT", "SET", None),
    ("EXPLAIN SELECT * FROM m", "only one SELECT", "EXPLAIN", None),
    ("SHOW TABLES", "only one SELECT", "", None),
    ("SELECT * FROM '/etc/passwd'", "table '/etc/passwd' not found", "m, o", None),
    ("SELECT * FROM information_schema.tables", "not found", "m, o", None),
    ("SELECT * FROM generate_series(1, 10)", "generate_series", "", None),
    ("SELECT * FROM nowhere", "table 'nowhere' not found", "m, o", None),
    ("SELECT 1 AS one", "reads no table", "m, o", None),
    ("SELECT n,\n  vv FROM m", "No field named vv", "m.v", Some((2, 3))),
    ("SELECT n FROM m WHERE", "an expression", "", Some((1, 21))),
    ("SELECT frist(n) FROM m", "Invalid function 'frist'", "first", None),
    ("SELECT now() AS t FROM m", "`now` is not available", "window_end()", Some((1, 8))),
    (
        "SELECT n FROM m\nWHERE time > current_timestamp",
        "current_timestamp",
        "`time`",
        Some((2, 14)),
    ),
    ("SELECT current_date AS d FROM m", "current_date", "`time`", Some((1, 8))),
    ("SELECT today() AS d FROM m", "today", "`time`", Some((1, 8))),
    ("SELECT n FROM m WHERE n = $1", "no value", "", None),
    ("SELECT m.n, o.n FROM m JOIN o ON m.n = o.n", "two columns `n`", "AS", None),
    ("SELECT n AS _id FROM m", "`_id`", "AS", None),
    ("SELECT good_ratio(DISTINCT v) FROM m", "DISTINCT", "drop", None),
    ("SELECT last(v, n) FROM m", "not a timestamp", "", None),
    (
        "WITH RECURSIVE r AS (SELECT 1 AS x FROM m UNION ALL SELECT x + 1 FROM r) SELECT * FROM r",
        "ecursive",
        "",
        None,
    ),
];

#[test]
fn one_line_per_refusal() {
    for (sql, message, hint, position) in REFUSALS {
        let error = refused(sql, true);
        assert!(error.message.contains(message), "{sql}: {error:?}");
        assert!(error.hint.clone().unwrap_or_default().contains(hint), "{sql}: {error:?}");
        if position.is_some() {
            assert_eq!(error.position, *position, "{sql}: {error:?}");
        }
        assert!(!error.message.contains('\n') && !error.message.contains("datafusion.public"));
    }
}

#[test]
fn without_a_window_only_what_looks_at_one_row() {
    for sql in [
        "SELECT avg(v) FROM m",
        "SELECT device, count(*) FROM m GROUP BY device",
        "SELECT last(v) FROM m",
        "SELECT DISTINCT device FROM m",
        "SELECT n FROM m ORDER BY n",
        "SELECT n FROM m LIMIT 1",
        "SELECT row_number() OVER () AS r FROM m",
        "SELECT m.n FROM m JOIN o ON m.n = o.n",
        "SELECT n FROM m WHERE n > (SELECT max(n) FROM m)",
        "SELECT n FROM m WHERE n IN (SELECT n FROM o)",
        "SELECT n FROM m UNION SELECT n FROM o",
        "SELECT window_end() AS e FROM m",
    ] {
        let error = refused(sql, false);
        assert!(error.hint.as_deref().unwrap_or("").contains("`window:`"), "{sql}: {error:?}");
    }
    let sql = Sql::new(1 << 20).unwrap();
    for text in [
        "SELECT * FROM m",
        "SELECT upper(device) AS d, CASE WHEN v > 1 THEN 1 ELSE 0 END AS c FROM m WHERE n IN (1, 2)",
        "WITH x AS (SELECT n + 1 AS n FROM m) SELECT n FROM x WHERE n > 2",
        "SELECT n FROM m UNION ALL SELECT n FROM o",
    ] {
        let query = sql.plan(text, &tables(), false).unwrap();
        assert!(query.explain().starts_with("mode: stateless"), "{}", query.explain());
    }
    let explained = sql.plan("SELECT count(*) FROM m", &tables(), true).unwrap().explain();
    assert!(explained.starts_with("mode: incremental"), "{explained}");
    assert!(explained.contains("AggregateExec") && explained.contains("TableScan"), "{explained}");
}

/// Texts made to overflow the stack are refused, and the deepest that pass run on a thread of the
/// size that tokio's workers have.
#[test]
fn the_stack_is_safe() {
    let chain = |n: usize| format!("SELECT {} AS x FROM m", vec!["n"; n].join(" + "));
    let nested = |n: usize| format!("SELECT {}n{} AS x FROM m", "abs(".repeat(n), ")".repeat(n));
    let unions = |n: usize| vec!["SELECT n FROM m"; n].join(" UNION ALL ");
    let branches = |n: usize| {
        format!("SELECT {}n{} AS x FROM m", "CASE WHEN n > 1 THEN ".repeat(n), " END".repeat(n))
    };
    let joins = |n: usize| {
        let joins: Vec<String> =
            (0..n).map(|i| format!(" JOIN o AS o{i} ON o{i}.n = m.n")).collect();
        format!("SELECT m.n FROM m{}", joins.concat())
    };
    let nots = |n: usize| format!("SELECT {} true AS x FROM m", "NOT ".repeat(n));
    let casts = |n: usize| format!("SELECT n{} AS x FROM m", "::bigint".repeat(n));
    let long = format!("SELECT '{}' AS x FROM m", "x".repeat(guard::TEXT_MAX));
    for sql in [
        chain(20_000),
        nested(5_000),
        unions(3_000),
        branches(2_000),
        joins(900),
        nots(15_000),
        casts(7_000),
        format!("SELECT n FROM m WHERE {}", vec!["n = 1"; 5_000].join(" OR ")),
        chain(guard::CHAIN_MAX + 2),
        nested(guard::NESTED_MAX + 1),
        long,
        ")".repeat(60_000),
        "(".repeat(60_000),
    ] {
        refused(&sql, true);
    }
    // Each stands behind those before.
    let divisions: Vec<String> = (1..48).map(|i| format!("{i} / n > 0")).collect();
    let deepest = move || {
        let sql = Sql::new(1 << 20).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for text in [
            chain(guard::CHAIN_MAX + 1),
            nested(14),
            unions(40),
            joins(12),
            casts(guard::CHAIN_MAX),
            format!("SELECT n FROM m WHERE {}", vec!["n = 1"; 70].join(" OR ")),
            format!("SELECT n FROM m WHERE n > 0 AND {}", divisions.join(" AND ")),
        ] {
            let mut query = sql.plan(&text, &tables(), true).unwrap();
            assert!(query.explain().contains("physical plan"));
            let (bounds, row) = (Some(Bounds { start: 0, end: 1 }), rows(&[(0, "a", None, 1)]));
            let inputs = vec![vec![row.clone()], vec![row]];
            let results = runtime.block_on(query.execute(inputs, bounds)).unwrap();
            assert!(results.iter().all(|batch| batch.num_rows() == 1) && !results.is_empty());
        }
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(deepest).unwrap().join().unwrap();
}

#[test]
fn a_name_with_a_hyphen_is_told_how_it_is_written() {
    let table = |name: &str| TableSchema { name: name.to_owned(), ..tables()[0].clone() };
    let error = |sql: &str, name: &str| {
        Sql::new(1 << 20).unwrap().plan(sql, &[table(name)], false).unwrap_err()
    };
    let hint = error("SELECT n FROM press-1", "press-1").hint.unwrap();
    assert_eq!(hint, "a name with a hyphen needs quotes: \"press-1\"");
    // Another mistake is told as what it is.
    assert_eq!(error("SELECT n FROM \"press-1\" WHERE", "press-1").hint, None);
    Sql::new(1 << 20)
        .unwrap()
        .plan("SELECT n FROM \"press-1\"", &[table("press-1")], false)
        .unwrap();
}
