//! Sessions, windows between conditions, counted and sliding ones: one line per case, by hand.

use super::*;
use crate::sql::Sql;

pub(super) fn session(gap: i64, length_max: Option<i64>, by: &[&str]) -> Window {
    Window::Session {
        gap: gap * SECOND,
        length_max: length_max.map(|max| max * SECOND),
        by: by.iter().map(|name| (*name).to_owned()).collect(),
    }
}

pub(super) fn state(begin: &str, end: &str, length_max: i64, by: &[&str]) -> Window {
    Window::State {
        begin: begin.to_owned(),
        end: end.to_owned(),
        by: by.iter().map(|name| (*name).to_owned()).collect(),
        length_max: length_max * SECOND,
    }
}

fn sliding(size: i64, delay: i64) -> Window {
    Window::Sliding { size: size * SECOND, delay: delay * SECOND }
}

fn count(rows: u64, step: u64) -> Window {
    Window::Count { rows, step }
}

const SHOWN: &str = "SELECT window_start() AS s, window_end() AS e, count(*) AS n, \
                     sum(v) AS v, last(v) AS l FROM m";

/// What [`SHOWN`] gave: start and end in seconds, rows, sum, last.
fn shown(results: &[Output]) -> Vec<String> {
    let mut lines = Vec::new();
    for output in results {
        let columns = output.batch.columns();
        let time = |at: usize, row: usize| {
            columns[at].as_primitive::<TimestampMicrosecondType>().value(row) / SECOND
        };
        let value = |at: usize, row: usize| columns[at].as_primitive::<Float64Type>().value(row);
        for row in 0..output.batch.num_rows() {
            let (start, end) = (time(0, row), time(1, row));
            let n = columns[2].as_primitive::<Int64Type>().value(row);
            let bounds = output.window.unwrap();
            assert_eq!((bounds.start, bounds.end), (start * SECOND, end * SECOND));
            lines.push(format!("{start} {end} {n} {} {}", value(3, row), value(4, row)));
        }
    }
    lines
}

/// Window, lateness, arrivals in order, windows closed (without the tail), late rows, rows in no
/// window.
type Case = (Window, i64, &'static [Row], &'static [&'static str], u64, u64);

async fn hold(cases: &[Case]) {
    for (window, lateness, rows, expected, late, filtered) in cases {
        let spec = StreamSpec { window: Some(window.clone()), ..spec(10, *lateness) };
        for twin in [true, false] {
            let query = query(&spec, SHOWN);
            assert!(query.computes_together());
            let query = if twin { query } else { query.without_twin() };
            let mut stream = Stream::new(spec.clone(), query, NOW).unwrap();
            let effects = feed(&mut stream, 0, batch(rows), NOW).await;
            assert!(effects.failures.is_empty(), "{:?}", effects.failures);
            assert_eq!(shown(&effects.results), *expected, "{window:?} {rows:?}");
            let counts = stream.counts();
            assert_eq!((counts.late, counts.filtered), (*late, *filtered), "{rows:?}");
            assert_eq!(counts.accepted, rows.len() as u64);
            ledger_holds(&counts);
        }
    }
}

#[tokio::test]
async fn sessions() {
    let by_device = || session(10, None, &["device"]);
    hold(&[
        (by_device(), 0, &[(1, "a", 1.0), (5, "a", 2.0), (30, "a", 4.0)], &["1 15 2 3 2"], 0, 0),
        // A row at the end of the gap begins another session, one before it does not.
        (
            by_device(),
            0,
            &[(1, "a", 1.0), (11, "a", 2.0), (40, "a", 4.0)],
            &["1 11 1 1 1", "11 21 1 2 2"],
            0,
            0,
        ),
        (by_device(), 0, &[(1, "a", 1.0), (10, "a", 2.0), (40, "a", 4.0)], &["1 20 2 3 2"], 0, 0),
        // Each key has its own; they close in order of their ends.
        (
            by_device(),
            0,
            &[
                (1, "a", 1.0),
                (2, "b", 2.0),
                (9, "a", 4.0),
                (8, "b", 8.0),
                (30, "a", 0.0),
                (30, "b", 0.0),
            ],
            &["2 18 2 10 8", "1 19 2 5 4"],
            0,
            0,
        ),
        // Without `by` all rows are one.
        (
            session(10, None, &[]),
            0,
            &[(1, "a", 1.0), (2, "b", 2.0), (9, "a", 4.0), (30, "a", 0.0), (30, "b", 0.0)],
            &["1 19 3 7 4"],
            0,
            0,
        ),
        // One that is too long is closed, and the next row begins anew.
        (
            session(10, Some(12), &["device"]),
            0,
            &[
                (0, "a", 1.0),
                (5, "a", 2.0),
                (10, "a", 4.0),
                (15, "a", 8.0),
                (20, "a", 16.0),
                (50, "a", 0.0),
            ],
            &["0 12 3 7 4", "15 27 2 24 16"],
            0,
            0,
        ),
        // Rows in disorder within the lateness; one between two sessions joins them.
        (
            by_device(),
            9,
            &[(1, "a", 1.0), (15, "a", 2.0), (8, "a", 4.0), (50, "a", 0.0)],
            &["1 25 3 7 2"],
            0,
            0,
        ),
        (by_device(), 0, &[(10, "a", 1.0), (5, "a", 2.0), (50, "a", 0.0)], &["10 20 1 1 1"], 1, 0),
    ])
    .await;
}

#[tokio::test]
async fn windows_between_two_conditions() {
    let hot = || state("v > 80", "v < 70", 1000, &["device"]);
    hold(&[
        // Both edges belong; rows outside are in no window.
        (
            hot(),
            0,
            &[
                (1, "a", 50.0),
                (2, "a", 90.0),
                (3, "a", 75.0),
                (4, "a", 60.0),
                (5, "a", 65.0),
                (6, "a", 85.0),
                (7, "a", 50.0),
            ],
            &["2 4 3 225 60", "6 7 2 135 50"],
            0,
            2,
        ),
        // The row that begins a window does not end it.
        (
            state("v > 0", "v > 0", 1000, &[]),
            0,
            &[(1, "a", 1.0), (2, "a", 2.0), (3, "a", 3.0), (4, "a", 4.0)],
            &["1 2 2 3 2", "3 4 2 7 4"],
            0,
            0,
        ),
        // A value that is missing is neither.
        (
            hot(),
            0,
            &[(1, "a", 90.0), (2, "a", f64::NAN), (3, "a", 60.0), (4, "a", f64::NAN)],
            &["1 3 3 150 60"],
            0,
            1,
        ),
        // Each key has its own.
        (
            hot(),
            0,
            &[
                (1, "a", 90.0),
                (1, "b", 10.0),
                (2, "b", 95.0),
                (2, "a", 60.0),
                (4, "b", 1.0),
                (4, "a", 75.0),
            ],
            &["1 2 2 150 60", "2 4 2 96 1"],
            0,
            2,
        ),
        // One that is too long is closed without its end.
        (
            state("v > 80", "v < 0", 5, &[]),
            0,
            &[(0, "a", 90.0), (3, "a", 1.0), (6, "a", 1.0), (7, "a", 91.0), (9, "a", 1.0)],
            &["0 5 2 91 1"],
            0,
            1,
        ),
        // The end came first, the begin has an earlier time.
        (hot(), 5, &[(4, "a", 60.0), (2, "a", 90.0), (20, "a", 0.0)], &["2 4 2 150 60"], 0, 0),
    ])
    .await;
}

#[tokio::test]
async fn counted_windows() {
    let rows: &[Row] =
        &[(1, "a", 1.0), (2, "b", 2.0), (3, "a", 4.0), (4, "a", 8.0), (5, "b", 16.0)];
    hold(&[
        (count(2, 2), 0, rows, &["1 2 2 3 2", "3 4 2 12 8"], 0, 0),
        (count(3, 1), 0, rows, &["1 3 3 7 4", "2 4 3 14 8", "3 5 3 28 16"], 0, 0),
        (count(3, 2), 0, rows, &["1 3 3 7 4", "3 5 3 28 16"], 0, 0),
        (count(6, 6), 0, rows, &[], 0, 0),
        // The order of the log counts; functions still see rows in order of time, and none is late.
        (count(3, 3), 0, &[(9, "a", 1.0), (2, "a", 2.0), (5, "a", 4.0)], &["2 9 3 7 1"], 0, 0),
    ])
    .await;
}

#[tokio::test]
async fn sliding_windows() {
    let rows: &[Row] =
        &[(1, "a", 1.0), (4, "a", 2.0), (6, "a", 4.0), (7, "a", 8.0), (20, "a", 0.0)];
    hold(&[
        (sliding(5, 0), 0, rows, &["-4 1 1 1 1", "-1 4 2 3 2", "1 6 3 7 4", "2 7 3 14 8"], 0, 0),
        (sliding(5, 2), 0, rows, &["-4 3 1 1 1", "-1 6 3 7 4", "1 8 4 15 8", "2 9 3 14 8"], 0, 0),
        // Rows of equal time each have a window, with both in it.
        (
            sliding(5, 0),
            0,
            &[(1, "a", 1.0), (1, "b", 2.0), (10, "a", 0.0), (10, "b", 0.0)],
            &["-4 1 2 3 2", "-4 1 2 3 2"],
            0,
            0,
        ),
        // A late row is in no window, also not in one of a later row.
        (
            sliding(5, 0),
            0,
            &[(6, "a", 1.0), (5, "a", 2.0), (7, "a", 4.0), (20, "a", 0.0)],
            &["1 6 1 1 1", "2 7 2 5 4"],
            1,
            0,
        ),
    ])
    .await;
}

/// A64: a window is open, the process restarts in the middle of it, the rest comes: the start is
/// not lost.
#[tokio::test]
async fn a64_an_open_window_survives_a_restart() {
    let spec = StreamSpec { window: Some(state("v = 0", "v = 1", 3600, &[])), ..spec(10, 0) };
    let mut stream = stream(spec.clone(), SHOWN);
    let first = batch(&[(1, "a", 0.0)]);
    assert!(feed(&mut stream, 0, first.clone(), NOW).await.results.is_empty());
    let saved = stream.progress();
    assert_eq!((saved.processed[0], saved.replay_from[0]), (1, 0));
    let mut stream = restored(&spec, query(&spec, SHOWN), &saved);
    stream.apply(Event::Replay { table: 0, position: 0, batch: first }, NOW).await.unwrap();
    let effects = feed(&mut stream, 0, batch(&[(2, "a", 0.0), (3, "a", 1.0)]), NOW).await;
    assert_eq!(shown(&effects.results), ["1 3 3 1 1"]);
    ledger_holds(&stream.counts());
    // Another condition is another window: what was open is dropped and counted.
    let other = StreamSpec { window: Some(state("v = 0", "v = 2", 3600, &[])), ..spec };
    let stream = restored(&other, query(&other, SHOWN), &saved);
    assert_eq!(stream.counts().dropped, 1);
    let gone: Vec<_> =
        stream.progress().states.iter().map(|s| (s.key, s.bytes.is_none())).collect();
    assert_eq!(gone, [(saved.states[0].key, true)], "what stood beside the progress goes");
}

/// Only windows that have begun, ended or missed a row since are written, however many are open.
#[tokio::test]
async fn a_session_is_written_when_it_changes() {
    let spec = StreamSpec { window: Some(session(10, None, &["device"])), ..spec(10, 0) };
    let mut stream = stream(spec, SHOWN);
    let mut written = async |rows: &[Row]| {
        feed(&mut stream, 0, batch(rows), NOW).await;
        let states = stream.progress().states;
        stream.submitted();
        let none = stream.progress().states;
        assert!(none.is_empty(), "{none:?}");
        states.iter().map(|state| (state.key, state.bytes.is_some())).collect::<Vec<_>>()
    };
    assert!(written(&[(1, "a", 1.0), (1, "b", 1.0)]).await.is_empty(), "they wait");
    assert_eq!(written(&[(2, "a", 1.0), (2, "b", 1.0)]).await, [(0, true), (1, true)]);
    assert!(written(&[(3, "a", 1.0), (3, "b", 1.0)]).await.is_empty(), "both go on");
    // One of b is late: it could be taken for one of its session's.
    assert_eq!(written(&[(1, "b", 1.0), (4, "b", 1.0)]).await, [(1, true)]);
    // a ends; its next one has not begun.
    assert_eq!(written(&[(20, "a", 1.0), (13, "b", 1.0)]).await, [(0, false)]);
}

/// A63 for windows that rows begin: the tail closes when all sources are silent, whatever the SQL
/// leaves out.
#[tokio::test]
async fn a63_the_last_session_closes_in_silence() {
    let sql = "SELECT window_start() AS s, window_end() AS e, count(*) AS n, sum(v) AS v, \
               last(v) AS l FROM m WHERE v > 5 HAVING count(*) > 0";
    let spec = StreamSpec { window: Some(session(10, None, &["device"])), ..spec(10, 0) };
    let mut stream = stream(spec, sql);
    feed(&mut stream, 0, batch(&[(1, "a", 1.0), (2, "b", 9.0)]), NOW).await;
    let effects = drain(&mut stream).await;
    assert_eq!(shown(&effects.results), ["2 12 1 9 9"]);
    let counts = stream.counts();
    assert_eq!((counts.windowed, counts.open_windows, counts.open_bytes), (2, 0, 0));
}

/// A window all of whose rows the SQL leaves out still gives the row that the SQL says, one by one
/// as together.
#[tokio::test]
async fn a_window_of_filtered_rows_still_counts_to_zero() {
    let sql = "SELECT window_start() AS s, window_end() AS e, count(*) AS n, \
               CAST(count(v) AS DOUBLE) AS v, 0.0 AS l FROM m WHERE v > 5";
    let spec = StreamSpec { window: Some(session(10, None, &["device"])), ..spec(10, 0) };
    let mut stream = stream(spec, sql);
    feed(&mut stream, 0, batch(&[(1, "a", 1.0), (2, "b", 9.0), (3, "c", 2.0)]), NOW).await;
    let effects = drain(&mut stream).await;
    assert_eq!(shown(&effects.results), ["1 11 0 0 0", "2 12 1 1 0", "3 13 0 0 0"]);
}

#[tokio::test]
async fn four_failing_sessions_do_not_stop_the_fifth() {
    let sql = "SELECT window_start() AS s, window_end() AS e, count(*) AS n, sum(v) AS v, \
               CAST(10 / CAST(last(v) AS BIGINT) AS DOUBLE) AS l FROM m";
    let spec = StreamSpec { window: Some(session(10, None, &["device"])), ..spec(10, 0) };
    let mut stream = stream(spec, sql);
    let rows =
        [(1, "a", 0.0), (2, "b", 0.0), (3, "c", 0.0), (4, "d", 0.0), (5, "e", 5.0), (6, "f", 0.0)];
    feed(&mut stream, 0, batch(&rows), NOW).await;
    let effects = drain(&mut stream).await;
    assert_eq!(shown(&effects.results), ["5 15 1 5 2"]);
    assert_eq!(effects.failures.len(), 5);
    for failure in &effects.failures {
        let StreamError::Query { window: Some(_), rows: 1, error } = failure else {
            panic!("{failure:?}")
        };
        assert!(error.message.contains("Divide by zero"), "{error:?}");
    }
    let counts = stream.counts();
    assert_eq!((counts.failed, counts.windowed), (5, 1));
    ledger_holds(&counts);
}

/// A row for which a condition cannot be computed is in no window, and is said and counted; the
/// others go on.
#[tokio::test]
async fn a_failing_condition_takes_its_row_alone() {
    let window = state("10 / CAST(v AS BIGINT) = 10", "v = 3", 1000, &[]);
    let spec = StreamSpec { window: Some(window), ..spec(10, 0) };
    let mut stream = stream(spec, SHOWN);
    let rows = batch(&[(1, "a", 1.0), (2, "a", 0.0), (3, "a", 0.0), (4, "a", 3.0)]);
    let effects = feed(&mut stream, 0, rows, NOW).await;
    assert_eq!(shown(&effects.results), ["1 4 2 4 3"]);
    let [StreamError::Query { window: None, rows: 2, error }] = &effects.failures[..] else {
        panic!("{:?}", effects.failures)
    };
    assert!(error.message.contains("Divide by zero"), "{error:?}");
    assert_eq!(stream.counts().failed, 2);
    ledger_holds(&stream.counts());
}

/// Two tables in one window; only rows of the first have sliding windows of their own, and a table
/// that is silent holds nothing back.
#[tokio::test]
async fn tables_share_windows() {
    let both = "SELECT window_start() AS s, window_end() AS e, count(*) AS n, sum(v) AS v, \
                last(v, time) AS l FROM (SELECT v, time FROM m UNION ALL SELECT v, time FROM o)";
    let cases: [(Window, &[&str]); 2] = [
        (session(10, None, &["device"]), &["1 19 3 7 4"]),
        (sliding(6, 0), &["-5 1 1 1 1", "3 9 2 6 4"]),
    ];
    for (window, expected) in cases {
        let mut spec = StreamSpec { window: Some(window), ..spec(10, 0) };
        spec.tables.push(table("o"));
        let mut stream = stream(spec, both);
        let mut results = feed(&mut stream, 0, batch(&[(1, "a", 1.0)]), NOW).await.results;
        results.extend(feed(&mut stream, 1, batch(&[(3, "a", 2.0)]), NOW).await.results);
        results.extend(feed(&mut stream, 0, batch(&[(9, "a", 4.0)]), NOW).await.results);
        results.extend(drain(&mut stream).await.results);
        assert_eq!(shown(&results), expected);
        let counts = stream.counts();
        assert_eq!((counts.windowed, counts.open_rows), (3, 0));
    }
}

#[tokio::test]
async fn what_is_no_window_is_refused() {
    for window in [
        session(0, None, &[]),
        session(1, Some(0), &[]),
        session(1, None, &["nothing"]),
        count(0, 0),
        count(2, 3),
        sliding(0, 0),
        state("v > 0", "v < 0", 0, &[]),
    ] {
        let spec = StreamSpec { window: Some(window), ..spec(10, 0) };
        let query = query(&spec, SHOWN);
        assert!(matches!(Stream::new(spec, query, NOW), Err(StreamError::Input(_))));
    }
    let mut two = StreamSpec { window: Some(count(2, 2)), ..spec(10, 0) };
    two.tables.push(table("o"));
    let planned = query(&two, SHOWN);
    assert!(matches!(Stream::new(two, planned, NOW), Err(StreamError::Input(_))));
    let unplanned = StreamSpec { window: Some(state("v > 0", "v < 0", 1, &[])), ..spec(10, 0) };
    let sql = Sql::new(64 << 20).unwrap();
    let query = sql.plan(SHOWN, &unplanned.tables, true).unwrap();
    assert!(matches!(Stream::new(unplanned.clone(), query, NOW), Err(StreamError::Input(_))));
    let bad = StreamSpec { window: Some(state("v >", "v < 0", 1, &[])), ..unplanned };
    assert_eq!(bad.plan(&sql, SHOWN).unwrap_err().position, Some((1, 3)));
}
