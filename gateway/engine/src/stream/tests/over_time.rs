//! Functions over time computed in pieces: what all rows give at once, whatever the order of rows
//! within the lateness, the batches and the restarts; with states held in place of rows.

use proptest::prelude::*;

use super::panes::{ALWAYS, EAGER, Kept, Run, hopping, texts, with};
use super::*;
use crate::bytes::batch_bytes;
use crate::stream::piece::Limits;

/// All of them, beside others, filtered below and above.
const ALL: &str = "SELECT device, count(*) AS n, avg(v) AS a, last(v) AS l, \
                   time_weighted_avg(v, time) AS t, integral(v, time, 'linear') AS i, \
                   counter_delta(CAST(v AS BIGINT), time) AS c, counter_delta(v, time, 100) AS w, \
                   rate(v, time) AS r, duration_where(v > 50, time) AS d, \
                   integral(v, time) FILTER (WHERE v > 30) AS f FROM m WHERE v < 90 \
                   GROUP BY device HAVING count(*) > 0 ORDER BY device";

/// Equal texts; numbers that differ are the same to the ninth digit.
fn same(a: &[String], b: &[String]) -> bool {
    let cell = |(a, b): (&str, &str)| match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(x), Ok(y)) if a.contains('.') => (x - y).abs() <= 1e-9 * x.abs().max(y.abs()).max(1e-3),
        _ => a == b,
    };
    let line = |(a, b): (&String, &String)| {
        a.split(' ').count() == b.split(' ').count() && a.split(' ').zip(b.split(' ')).all(cell)
    };
    a.len() == b.len() && a.iter().zip(b).all(line)
}

fn windows() -> impl Strategy<Value = Window> {
    prop_oneof![
        Just(Window::Tumbling { size: 20 * SECOND, offset: 0 }),
        Just(Window::Tumbling { size: 60 * SECOND, offset: 7 * SECOND }),
        Just(hopping(12, 4)),
        Just(hopping(40, 20)),
        Just(hopping(64, 1)),
        Just(hopping(64, 2)),
        Just(hopping(30, 9)),
        Just(Window::Cumulative { size: 48 * SECOND, step: 3 * SECOND }),
        Just(Window::Cumulative { size: 60 * SECOND, step: 30 * SECOND }),
    ]
}

/// Three seconds from row to row, each up to `back` seconds too early.
fn rows_behind(back: i64) -> impl Strategy<Value = Vec<Row>> {
    let row = (0..=back, 0_usize..3, 0_u8..100);
    proptest::collection::vec(row, 1..50).prop_map(|rows| {
        let row = |(at, (back, device, v)): (usize, (i64, usize, u8))| {
            let time = i64::try_from(at).unwrap() * 3 - back;
            (time, ["a", "b", "c"][device], f64::from(v))
        };
        rows.into_iter().enumerate().map(row).collect()
    })
}

/// What `integral`, `counter_delta` and `duration_where(v >= 50)` are by their definitions, over
/// windows `[k step, k step + size)`: bounds in microseconds, device, rows, and the three.
fn by_definition(rows: &[Row], size: i64, step: i64) -> Vec<String> {
    let (first, last) = (-2_i64, 400_i64.div_euclid(step));
    let starts = (first.min(-size.div_euclid(step) - 20)..last).map(|k| k * step);
    let mut lines = Vec::new();
    for (start, device) in starts.flat_map(|start| ["a", "b", "c"].map(|device| (start, device))) {
        let mut own: Vec<&Row> = rows.iter().filter(|row| row.1 == device).collect();
        own.sort_by_key(|row| row.0);
        let before = own.iter().rfind(|row| row.0 < start).copied();
        let inside: Vec<&Row> =
            own.into_iter().filter(|row| (start..start + size).contains(&row.0)).collect();
        if inside.is_empty() {
            continue;
        }
        let (mut integral, mut counter, mut held) = (0.0, 0.0, 0);
        let mut now = before.map(|row| (start, row.2));
        for (time, value) in inside.iter().map(|row| (row.0, row.2)) {
            if let Some((since, was)) = now {
                integral += was * f64::from(i32::try_from(time - since).unwrap());
                held += if was >= 50.0 { time - since } else { 0 };
                counter += if value >= was { value - was } else { value };
            }
            now = Some((time, value));
        }
        let (since, was) = now.unwrap();
        integral += was * f64::from(i32::try_from(start + size - since).unwrap());
        held += if was >= 50.0 { start + size - since } else { 0 };
        lines.push(format!(
            "{}..{} {device} {} {integral:.1} {counter:.0} {held}.0",
            start * SECOND,
            (start + size) * SECOND,
            inside.len(),
        ));
    }
    lines
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Also of rows that come too late: which ones do is the same for both.
    #[test]
    fn folded_over_time_is_recomputed_wherever_it_crashes(
        window in windows(),
        rows in rows_behind(45),
        cuts in proptest::collection::vec(1_usize..9, 60),
        crashes in proptest::collection::vec(0_usize..30, 0..5),
        lateness in 0_i64..40,
        eager in 0_usize..4,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let plain = Run {
            window: &window, sql: ALL, rows: &rows, cuts: &[1000], crashes: &[], lateness,
            limits: None,
        };
        let (expected, counts, _) = runtime.block_on(plain.go());
        let few = Limits { fold_rows: 3, ..ALWAYS };
        let seldom = Limits { fold_rows: 2, store_bytes: 600, ..EAGER };
        let limits = Some([EAGER, ALWAYS, few, seldom][eager]);
        for crashes in [&[][..], &crashes] {
            let folded = Run { cuts: &cuts, crashes, limits, ..plain };
            let (got, folded, _) = runtime.block_on(folded.go());
            prop_assert!(same(&got, &expected), "{:#?}, not {:#?}", got, expected);
            prop_assert_eq!((folded.late, folded.windowed), (counts.late, counts.windowed));
        }
    }

    #[test]
    fn any_order_within_the_lateness_gives_what_the_definitions_say(
        (size, step) in prop_oneof![
            Just((20, 20)), Just((60, 60)), Just((12, 4)), Just((64, 2)), Just((30, 9)),
        ],
        rows in rows_behind(14),
        cuts in proptest::collection::vec(1_usize..9, 60),
        crashes in proptest::collection::vec(0_usize..30, 0..4),
        eager in 0_usize..2,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let sql = "SELECT device, count(*) AS n, integral(v, time) AS i, \
                   counter_delta(CAST(v AS BIGINT), time) AS c, \
                   duration_where(v >= 50, time) AS d FROM m GROUP BY device ORDER BY device";
        let run = Run {
            window: &hopping(size, step), sql, rows: &rows, cuts: &cuts, crashes: &crashes,
            lateness: 14, limits: Some([EAGER, ALWAYS][eager]),
        };
        let (got, counts, _) = runtime.block_on(run.go());
        // Behind the sequence number and the quality.
        let got: Vec<&str> = got.iter().map(|line| line.splitn(3, ' ').nth(2).unwrap()).collect();
        prop_assert_eq!(got, by_definition(&rows, size, step));
        prop_assert_eq!((counts.late, counts.windowed), (0, rows.len() as u64));
    }
}

const INTEGRAL: &str = "SELECT count(*) AS n, integral(v, time) AS i FROM m";

/// In a window of a minute, with no lateness: the watermark is at 40 s when rows of 30 s and of 29 s
/// come. The first is 10 s behind, the second more. An average takes both.
#[tokio::test]
async fn a_row_more_than_ten_seconds_behind_is_late() {
    let rows = [(5, "a", 1.0), (40, "a", 2.0), (30, "a", 3.0), (29, "a", 4.0), (60, "a", 0.0)];
    let window = Window::Tumbling { size: 60 * SECOND, offset: 0 };
    for (crashes, limits) in [(&[][..], EAGER), (&[2], EAGER), (&[1, 3], ALWAYS), (&[3, 4], ALWAYS)]
    {
        let run = Run {
            window: &window,
            sql: INTEGRAL,
            rows: &rows,
            cuts: &[1; 5],
            crashes,
            lateness: 0,
            limits: Some(limits),
        };
        let (results, counts, _) = run.go().await;
        // 1 for 25 s, 3 for 10 s, 2 for 20 s; then 0 for a minute.
        let expected = ["#1 good 0..60000000 3 95.0", "#2 good 60000000..120000000 1 0.0"];
        assert_eq!(
            (&results[..], counts.late),
            (&expected.map(str::to_owned)[..], 1),
            "{crashes:?}"
        );
        let run = Run { sql: "SELECT count(*) AS n FROM m", ..run };
        assert_eq!(run.go().await.1.late, 0);
    }
}

/// The pane from 0 s is used by the window to 10 s; a row of 9 s that comes then is too late for the
/// window to 20 s as well, if only by a second. In a tumbling window it is in time.
#[tokio::test]
async fn a_row_behind_a_window_that_was_computed_is_late() {
    for (window, late) in
        [(hopping(20, 10), 1), (Window::Tumbling { size: 20 * SECOND, offset: 0 }, 0)]
    {
        let spec = StreamSpec { window: Some(window), ..spec(10, 0) };
        let mut stream = stream(spec, INTEGRAL);
        let rows = [(1, "a", 1.0), (10, "a", 2.0), (9, "a", 3.0)];
        let late_rows = feed(&mut stream, 0, batch(&rows), NOW).await.late;
        assert_eq!((stream.counts().late, late_rows.len() as u64), (late, late));
    }
}

/// 100 devices, once a second, an hour every ten seconds: at most the last pane is held as rows.
#[tokio::test]
async fn an_hour_every_ten_seconds_is_held_as_states() {
    let spec = StreamSpec { window: Some(hopping(3_600, 10)), ..spec(10, 0) };
    let sql = "SELECT device, time_weighted_avg(v, time) AS v FROM m GROUP BY device";
    let mut stream = stream(spec, sql);
    let (mut rows_bytes, mut results) = (0, 0);
    let names: Vec<String> = (0..100).map(|device| format!("meter{device:02}")).collect();
    for second in 0..300 {
        let rows: Vec<Row> = names.iter().map(|name| (second, name_of(name), 1.0)).collect();
        let rows = batch(&rows);
        rows_bytes += batch_bytes(&rows);
        results += feed(&mut stream, 0, rows, NOW).await.results.len();
    }
    assert_eq!((stream.counts().open_rows, results), (30_000, 29));
    let held = usize::try_from(stream.counts().open_bytes).unwrap();
    // Ten rows of 65 bytes are a state of 60, and arrays of some cost; a third more in blocks.
    assert!(held * 3 < rows_bytes, "{held} of {rows_bytes} bytes");
}

/// Names in rows of tests are static.
fn name_of(name: &str) -> &'static str {
    Box::leak(name.to_owned().into_boxed_str())
}

/// Rows that wait are read again after a restart, and no others.
#[tokio::test]
async fn a_restart_reads_little_more_than_what_waits() {
    let window = Window::Tumbling { size: 3_600 * SECOND, offset: 0 };
    let spec = StreamSpec { window: Some(window), ..spec(10, 0) };
    let sql = "SELECT device, integral(v, time) AS v, max(v) AS x FROM m GROUP BY device \
               ORDER BY device";
    let mut stream = stream(spec.clone(), sql);
    let mut kept = Kept::default();
    let (mut logged, mut behind) = (0, 0);
    let at = |n: i64| (n * 2_500, ["a", "b", "c", "d"][usize::try_from(n % 4).unwrap()], 1.0);
    for second in 0..300 {
        // 400 a second; those of each second come from its end to its beginning.
        let rows: Vec<Row> = (0..400).rev().map(|n| at(second * 400 + n)).collect();
        let rows = micros(&rows, "good");
        logged += batch_bytes(&rows);
        feed(&mut stream, 0, rows, NOW).await;
        kept.commit(&mut stream);
        let progress = kept.progress.as_ref().unwrap();
        behind = behind.max(progress.processed[0] - progress.replay_from[0]);
    }
    // 10 s are 4,000 rows; with 65,536 there is a fold.
    assert!((65_000..=65_536 + 4_000 + 800).contains(&behind), "{behind} rows to be read again");
    assert!(kept.written * 4 <= logged, "{} bytes of states for {logged}", kept.written);
    assert_eq!((kept.panes(), stream.counts().late), (1, 0));
    let mut stream = kept.restore(&spec, query(&spec, sql));
    assert_eq!(stream.progress(), *kept.progress.as_ref().unwrap());
    let from = i64::try_from(kept.progress.as_ref().unwrap().replay_from[0]).unwrap();
    // As they lie in the log.
    let rest: Vec<Row> = (from..120_000).map(|n| at(n / 400 * 400 + 399 - n % 400)).collect();
    let position = u64::try_from(from).unwrap();
    let event = Event::Replay { table: 0, position, batch: micros(&rest, "good") };
    stream.apply(event, NOW).await.unwrap();
    assert_eq!((stream.counts().open_rows, stream.counts().dropped), (120_000, 0));
    let results = texts(&drain(&mut stream).await.results);
    // 1 from the first row, at 0, 2.5, 5 and 7.5 ms, to the end of the hour.
    let expected = ["a 3600.0", "b 3599.9975", "c 3599.995", "d 3599.9925"];
    for (line, expected) in results.iter().zip(expected) {
        assert!(line.ends_with(&format!("{expected} 1.0")), "{results:?}");
    }
    assert_eq!((results.len(), stream.counts().windowed), (4, 120_000));
}

/// After each commit, and after each later row that the store had when the process died: results of
/// the windows that were not committed come again, and are the same.
#[tokio::test]
async fn a_restart_at_any_point_changes_no_result() {
    let rows: [Row; 14] = [
        (3, "a", 4.0),
        (1, "b", 60.0),
        (14, "b", 10.0),
        (9, "a", 7.0),
        (12, "a", 80.0),
        (22, "b", 70.0),
        (24, "a", 2.0),
        // More than 10 s behind 22 s.
        (11, "a", 5.0),
        (16, "b", 90.0),
        (37, "a", 30.0),
        (44, "b", 55.0),
        (36, "a", 40.0),
        (31, "b", 20.0),
        (61, "a", 1.0),
    ];
    let sql = "SELECT device, count(*) AS n, integral(v, time) AS i, rate(v, time) AS r, \
               duration_where(v > 50, time) AS d FROM m GROUP BY device ORDER BY device";
    for window in [Window::Tumbling { size: 40 * SECOND, offset: 0 }, hopping(30, 10)] {
        let spec = StreamSpec { window: Some(window), ..spec(10, 0) };
        let row = |at: usize| batch(&rows[at..=at]);
        let mut uncut = with(stream(spec.clone(), sql), Some(EAGER));
        let mut expected = Vec::new();
        for at in 0..rows.len() {
            expected.extend(feed(&mut uncut, 0, row(at), NOW).await.results);
        }
        expected.extend(drain(&mut uncut).await.results);
        assert!(uncut.counts().late > 0 && texts(&expected).len() > 3);
        for (durable, limits) in (0..rows.len()).flat_map(|at| [(at, EAGER), (at, ALWAYS)]) {
            let mut before = with(stream(spec.clone(), sql), Some(limits));
            let (mut kept, mut delivered) = (Kept::default(), Vec::new());
            for at in 0..=durable {
                delivered.extend(feed(&mut before, 0, row(at), NOW).await.results);
                kept.commit(&mut before);
            }
            let from = usize::try_from(kept.progress.as_ref().unwrap().replay_from[0]).unwrap();
            for logged in durable..rows.len() {
                let mut stream = with(kept.restore(&spec, query(&spec, sql)), Some(limits));
                let mut results = delivered.clone();
                let size = [1, 3, 100][logged % 3];
                for first in (from..=logged).step_by(size) {
                    let batch = batch(&rows[first..=logged.min(first + size - 1)]);
                    let event = Event::Replay { table: 0, position: first as u64, batch };
                    results.extend(stream.apply(event, NOW).await.unwrap().results);
                }
                results.extend(stream.apply(Event::Replayed, NOW).await.unwrap().results);
                for at in logged + 1..rows.len() {
                    results.extend(feed(&mut stream, 0, row(at), NOW).await.results);
                }
                results.extend(drain(&mut stream).await.results);
                let (got, expected) = (texts(&results), texts(&expected));
                assert!(same(&got, &expected), "{durable} {logged}: {got:#?}, not {expected:#?}");
                assert_eq!(stream.counts().late, uncut.counts().late);
                ledger_holds(&stream.counts());
            }
        }
    }
}

/// A row that was late stays so when the SQL has changed, whatever that goes by.
#[tokio::test]
async fn changed_sql_does_not_take_back_what_was_late() {
    let spec = StreamSpec {
        window: Some(Window::Tumbling { size: 60 * SECOND, offset: 0 }),
        ..spec(10, 0)
    };
    let rows = [(20, "a", 1.0), (40, "a", 2.0), (25, "a", 4.0), (41, "a", 8.0)];
    let row = |position: usize| batch(&rows[position..=position]);
    for limits in [EAGER, ALWAYS] {
        for (changed, dropped) in [(INTEGRAL, 0), ("SELECT sum(v) AS v FROM m", 1)] {
            let mut stream = with(stream(spec.clone(), INTEGRAL), Some(limits));
            let mut kept = Kept::default();
            for position in 0..4 {
                feed(&mut stream, 0, row(position), NOW).await;
                kept.commit(&mut stream);
            }
            assert_eq!(stream.counts().late, 1);
            let stores = usize::from(limits.rows_per_state == 0);
            assert_eq!(kept.panes(), stores, "the row of 20 s");
            let mut other = with(kept.restore(&spec, query(&spec, changed)), Some(limits));
            let from = usize::try_from(kept.progress.as_ref().unwrap().replay_from[0]).unwrap();
            for position in from..4 {
                let batch = row(position);
                let event = Event::Replay { table: 0, position: position as u64, batch };
                other.apply(event, NOW).await.unwrap();
                kept.commit(&mut other);
            }
            let counts = other.counts();
            let dropped = if stores > 0 { dropped } else { 0 };
            assert_eq!((counts.late, counts.dropped), (1, dropped), "{changed}");
            assert_eq!(counts.open_rows, 3 - dropped);
            ledger_holds(&counts);
            drain(&mut other).await;
            kept.commit(&mut other);
            assert_eq!(kept.panes(), 0);
        }
    }
}

#[test]
fn explain_says_that_it_is_incremental_and_what_is_late() {
    let spec = StreamSpec { window: Some(hopping(3_600, 10)), ..spec(10, 0) };
    let text = query(&spec, INTEGRAL).explain();
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("mode: incremental: "), "{first}");
    assert!(first.contains("more than 10 s behind the watermark"), "{first}");
    // What keeps its rows needs no order.
    for text in [
        query(&spec, "SELECT avg(v) AS v FROM m").explain(),
        query(&spec, "SELECT rate(v, time) AS v, median(v) AS m FROM m").explain(),
        query(&StreamSpec { keep_failed: true, ..spec.clone() }, INTEGRAL).explain(),
    ] {
        assert!(!text.contains("behind the watermark"), "{text}");
    }
}

/// A fold that fails leaves rows where they are and takes back no late one; their windows say so.
#[tokio::test]
async fn rows_that_cannot_be_folded_cost_their_windows_alone() {
    let sql = "SELECT integral(10 / CAST(v AS BIGINT), time) AS i FROM m";
    let rows = [(1, "a", 2.0), (6, "a", 0.0), (11, "a", 5.0), (21, "a", 10.0), (26, "a", 1.0)];
    let spec = StreamSpec { window: Some(hopping(10, 5)), ..spec(10, 0) };
    let mut stream = with(stream(spec, sql), Some(ALWAYS));
    let (mut results, mut failures) = (Vec::new(), 0);
    for row in rows {
        let effects = feed(&mut stream, 0, batch(&[row]), NOW).await;
        results.extend(effects.results);
        failures += effects.failures.len();
    }
    let effects = drain(&mut stream).await;
    results.extend(effects.results);
    failures += effects.failures.len();
    // 6 s is in [0, 10), which would have remembered the 5 of 1 s, and in [5, 15). [10, 20) knows
    // nothing from before: 2 for 9 s. Its row is what held until 21 s, and that one until 26 s.
    assert_eq!((failures, stream.counts().failed), (2, 2));
    let texts = texts(&results);
    assert_eq!(
        texts,
        [
            "#1 good -5000000..5000000 20.0",
            "#2 good 10000000..20000000 18.0",
            "#3 good 15000000..25000000 16.0",
            "#4 good 20000000..30000000 47.0",
            "#5 good 25000000..35000000 91.0",
        ]
    );
}
