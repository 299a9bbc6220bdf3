//! Rows folded into states: the same results as from the rows, over any restart, in less memory and
//! with less on flash.

use std::collections::BTreeMap;

use arrow::util::display::{ArrayFormatter, FormatOptions};
use proptest::prelude::*;

use super::*;
use crate::bytes::batch_bytes;
use crate::stream::piece::Limits;

/// What folds, in an order that does not depend on the rows'.
const BY_DEVICE: &str = "SELECT window_start() AS s, window_end() AS e, device, count(*) AS n, \
                         sum(v) AS v, min(v) AS i, max(v) AS x, avg(v) AS a, first(v) AS f, \
                         last(v) AS l, good_ratio(v) AS q FROM m WHERE v < 90 GROUP BY device \
                         HAVING count(*) > 0 ORDER BY device";

/// As soon as anything can be folded and stored.
pub(super) const EAGER: Limits = Limits {
    fold_rows: 1,
    fold_rows_per_group: 0,
    fold_bytes: 0,
    fold_bytes_per_group: 0,
    fold_bytes_max: 0,
    store_bytes: 0,
    rows_per_state: usize::MAX,
};

/// Stored at the first row, whatever it costs.
pub(super) const ALWAYS: Limits = Limits { rows_per_state: 0, ..EAGER };

pub(super) fn hopping(size: i64, step: i64) -> Window {
    Window::Hopping { size: size * SECOND, step: step * SECOND, offset: 0 }
}

fn aligned(stream: &mut Stream) -> &mut crate::stream::aligned::Aligned {
    let Some(Frames::Aligned(aligned)) = &mut stream.frames else { panic!("no panes") };
    aligned
}

pub(super) fn with(mut stream: Stream, limits: Option<Limits>) -> Stream {
    if let Some(limits) = limits {
        aligned(&mut stream).limit(limits);
    }
    stream
}

/// Folded by these limits, or computed from the rows.
fn planned(spec: &StreamSpec, sql: &str, limits: Option<Limits>) -> Query {
    let query = query(spec, sql);
    if limits.is_some() { query } else { query.recomputed() }
}

/// Results as text, with their first numbers, windows and qualities.
pub(super) fn texts(results: &[Output]) -> Vec<String> {
    let options = FormatOptions::new().with_null("-");
    let mut lines = Vec::new();
    for output in results {
        let columns = output.batch.columns().iter();
        let columns: Vec<ArrayFormatter> =
            columns.map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
        for row in 0..output.batch.num_rows() {
            let cells: Vec<String> = columns.iter().map(|c| c.value(row).to_string()).collect();
            let window = output.window.unwrap();
            lines.push(format!(
                "#{} {} {}..{} {}",
                output.first_seq + row as u64,
                output.quality,
                window.start,
                window.end,
                cells.join(" ")
            ));
        }
    }
    lines
}

/// What a store keeps of a stream: the progress of the last commit, and all states.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) progress: Option<Progress>,
    pub(super) states: BTreeMap<u64, Bytes>,
    /// Bytes of states that were ever written.
    pub(super) written: usize,
}

impl Kept {
    pub(super) fn commit(&mut self, stream: &mut Stream) {
        let progress = stream.progress();
        for change in &progress.states {
            match &change.bytes {
                Some(bytes) => {
                    self.written += bytes.len();
                    self.states.insert(change.key, bytes.clone());
                }
                None => drop(self.states.remove(&change.key)),
            }
        }
        stream.submitted();
        assert!(stream.progress().states.is_empty());
        self.progress = Some(Progress { states: vec![], ..progress });
    }

    /// How many states of panes there are, beside what functions remember.
    pub(super) fn panes(&self) -> usize {
        self.states.keys().filter(|key| !crate::functions::is_memory(**key)).count()
    }

    pub(super) fn states(&self) -> Vec<(u64, Bytes)> {
        self.states.iter().map(|(key, bytes)| (*key, bytes.clone())).collect()
    }

    pub(super) fn restore(&self, spec: &StreamSpec, query: Query) -> Stream {
        match &self.progress {
            None => Stream::new(spec.clone(), query, NOW).unwrap(),
            Some(progress) => {
                let states = self.states();
                Stream::restore_with(spec.clone(), query, &progress.state, &states, NOW).unwrap()
            }
        }
    }
}

/// One run over rows one by one, each an event and a commit. After each batch of `cuts` that
/// `crashes` names the stream is lost before the commit of its last event, and what that brought
/// with it; the row is in the log.
pub(super) struct Run<'a> {
    pub(super) window: &'a Window,
    pub(super) sql: &'a str,
    pub(super) rows: &'a [Row],
    pub(super) cuts: &'a [usize],
    pub(super) crashes: &'a [usize],
    pub(super) lateness: i64,
    pub(super) limits: Option<Limits>,
}

impl Run<'_> {
    fn spec(&self) -> StreamSpec {
        StreamSpec { window: Some(self.window.clone()), ..spec(10, self.lateness) }
    }

    fn at(&self, position: usize, end: usize) -> RecordBatch {
        let rows: Vec<Row> =
            self.rows[position..end].iter().map(|r| (r.0 * SECOND, r.1, r.2)).collect();
        let quality = if position % 7 == 3 { "bad" } else { "good" };
        micros(&rows, quality)
    }

    pub(super) async fn go(&self) -> (Vec<String>, Counts, Kept) {
        let spec = self.spec();
        let mut kept = Kept::default();
        let mut stream =
            with(kept.restore(&spec, planned(&spec, self.sql, self.limits)), self.limits);
        let (mut results, mut at) = (Vec::new(), 0);
        for (index, cut) in self.cuts.iter().enumerate() {
            let end = (at + cut).min(self.rows.len());
            // Quality goes by position, so that it is the same however rows are cut.
            for position in at..end {
                let (event, durable) = (self.at(position, position + 1), results.len());
                results.extend(feed(&mut stream, 0, event, NOW).await.results);
                if self.crashes.contains(&index) && position + 1 == end {
                    results.truncate(durable);
                } else {
                    kept.commit(&mut stream);
                }
            }
            at = end;
            if self.crashes.contains(&index) {
                stream =
                    with(kept.restore(&spec, planned(&spec, self.sql, self.limits)), self.limits);
                let from = kept.progress.as_ref().map_or(0, |progress| progress.replay_from[0]);
                let from = usize::try_from(from).unwrap();
                for position in from..at {
                    let batch = self.at(position, position + 1);
                    let event = Event::Replay { table: 0, position: position as u64, batch };
                    results.extend(stream.apply(event, NOW).await.unwrap().results);
                    kept.commit(&mut stream);
                }
                results.extend(stream.apply(Event::Replayed, NOW).await.unwrap().results);
                kept.commit(&mut stream);
            }
        }
        results.extend(drain(&mut stream).await.results);
        kept.commit(&mut stream);
        ledger_holds(&stream.counts());
        let counts = stream.counts();
        assert_eq!((counts.open_rows, counts.open_windows, counts.open_bytes), (0, 0, 0));
        assert_eq!(kept.panes(), 0, "states of windows that are over are removed");
        (texts(&results), counts, kept)
    }
}

fn windows() -> impl Strategy<Value = Window> {
    prop_oneof![
        Just(Window::Tumbling { size: 20 * SECOND, offset: 0 }),
        Just(hopping(12, 4)),
        Just(hopping(40, 4)),
        Just(hopping(64, 1)),
        Just(hopping(30, 9)),
        Just(Window::Hopping { size: 40 * SECOND, step: 2 * SECOND, offset: -3 * SECOND }),
        Just(Window::Cumulative { size: 48 * SECOND, step: 3 * SECOND }),
    ]
}

fn some_rows() -> impl Strategy<Value = Vec<Row>> {
    let row = (0_i64..15, 0_usize..3, 0_u8..100);
    proptest::collection::vec(row, 1..40).prop_map(|rows| {
        // Time goes on, with rows that come up to 14 s behind.
        let row = |(at, (back, device, v)): (usize, (i64, usize, u8))| {
            let time = i64::try_from(at).unwrap() * 3 - back;
            (time, ["a", "b", "c"][device], f64::from(v))
        };
        rows.into_iter().enumerate().map(row).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// However rows are folded, cut and lost on the way: what comes out is what the rows alone give,
    /// each row in one result of each of its windows. All values are whole, so sums are exact.
    #[test]
    fn folded_is_recomputed_wherever_it_crashes(
        window in windows(),
        rows in some_rows(),
        cuts in proptest::collection::vec(1_usize..9, 60),
        crashes in proptest::collection::vec(0_usize..30, 0..5),
        lateness in 0_i64..12,
        eager in 0_usize..3,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let plain = Run {
            window: &window, sql: BY_DEVICE, rows: &rows, cuts: &[1000], crashes: &[], lateness,
            limits: None,
        };
        let (expected, counts, _) = runtime.block_on(plain.go());
        let limits = Some([EAGER, ALWAYS, Limits { fold_rows: 3, ..ALWAYS }][eager]);
        for crashes in [&[][..], &crashes] {
            let folded = Run { cuts: &cuts, crashes, limits, ..plain };
            let (got, folded, _) = runtime.block_on(folded.go());
            prop_assert_eq!(&got, &expected);
            prop_assert_eq!((folded.late, folded.windowed), (counts.late, counts.windowed));
        }
    }

    #[test]
    fn tumbling_is_hopping_with_the_step_of_its_size(
        rows in some_rows(),
        lateness in 0_i64..12,
        eager in 0_usize..2,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        // No ORDER BY: the order is the same, too.
        let sql = "SELECT device, count(*) AS n, avg(v) AS a, last(v) AS l FROM m GROUP BY device";
        let tumbling = Window::Tumbling { size: 10 * SECOND, offset: 0 };
        let limits = Some([EAGER, Limits::new(1 << 30)][eager]);
        let run = |window: &Window| {
            let run = Run {
                window, sql, rows: &rows, cuts: &[4; 15], crashes: &[], lateness, limits,
            };
            let (results, counts, _) = runtime.block_on(run.go());
            (results, counts)
        };
        prop_assert_eq!(run(&hopping(10, 10)), run(&tumbling));
    }
}

/// Two windows share the row at 8 s. It is late for the first, which was computed from a state.
#[tokio::test]
async fn a_state_that_was_used_does_not_change() {
    let spec = StreamSpec { window: Some(hopping(16, 1)), ..spec(10, 0) };
    let mut stream = with(stream(spec, SUMS), Some(EAGER));
    let mut results = Vec::new();
    // Blocks of four panes are merged when windows are computed; 2 s then comes late for most.
    for row in [(1, "a", 1.0), (3, "a", 2.0), (12, "a", 4.0), (2, "a", 8.0), (18, "a", 16.0)] {
        results.extend(feed(&mut stream, 0, batch(&[row]), NOW).await.results);
    }
    let sum = |end: i64| {
        let output = results.iter().find(|o| o.window.unwrap().end == end * SECOND).unwrap();
        output.batch.column(2).as_primitive::<Float64Type>().value(0)
    };
    // By hand: what starts at end - 16 and came before the window was over.
    let expected = [(2, 1.0), (3, 1.0), (4, 3.0), (12, 3.0), (13, 15.0), (17, 15.0), (18, 14.0)];
    for (end, v) in expected {
        assert!((sum(end) - v).abs() < 1e-9, "window to {end} s: {}, not {v}", sum(end));
    }
    results.extend(drain(&mut stream).await.results);
    assert_eq!(stream.counts().windowed, 5);
}

/// 1,000 rows a second in 37 bytes each for a day-long window: what is held are states and the rows
/// that are not folded yet.
#[tokio::test]
async fn a_long_window_is_held_and_stored_as_states() {
    let window = Window::Tumbling { size: 86_400 * SECOND, offset: 0 };
    let spec = StreamSpec { window: Some(window), memory_max: 8 << 20, ..spec(10, 0) };
    let sql = "SELECT device, count(*) AS n, avg(v) AS a, max(v) AS x FROM m GROUP BY device \
               ORDER BY device";
    let mut stream = stream(spec.clone(), sql);
    let mut kept = Kept::default();
    let (mut logged, mut behind) = (0, 0);
    for second in 0..300_u32 {
        let row = |n: u32| {
            let time = i64::from(second) * SECOND + i64::from(n) * 1_000;
            (time, ["a", "b", "c", "d"][n as usize % 4], f64::from(n))
        };
        let rows: Vec<Row> = (0..1_000).map(row).collect();
        let rows = micros(&rows, "good");
        logged += batch_bytes(&rows);
        feed(&mut stream, 0, rows, NOW).await;
        kept.commit(&mut stream);
        let progress = kept.progress.as_ref().unwrap();
        behind = behind.max(progress.processed[0] - progress.replay_from[0]);
        assert!(stream.counts().open_bytes < 1 << 20, "{}", stream.counts().open_bytes);
    }
    assert_eq!((stream.counts().open_rows, stream.counts().open_windows), (300_000, 1));
    // An eighth of 8 MiB makes a fold, with 29 batches, and no log row is needed from before it.
    assert_eq!(behind, 28_000, "rows that would be read again");
    assert!(kept.written * 4 <= logged, "{} bytes of states for {logged}", kept.written);
    assert_eq!(kept.states.len(), 1);
    // After a restart the day goes on.
    let mut stream = kept.restore(&spec, query(&spec, sql));
    assert_eq!(stream.progress(), *kept.progress.as_ref().unwrap());
    let replay_from = kept.progress.as_ref().unwrap().replay_from[0];
    let rest: Vec<Row> = (replay_from..300_000)
        .map(|n| {
            let (second, n) =
                (i64::try_from(n / 1_000).unwrap(), u32::try_from(n % 1_000).unwrap());
            let time = second * SECOND + i64::from(n) * 1_000;
            (time, ["a", "b", "c", "d"][n as usize % 4], f64::from(n))
        })
        .collect();
    let event = Event::Replay { table: 0, position: replay_from, batch: micros(&rest, "good") };
    stream.apply(event, NOW).await.unwrap();
    let results = drain(&mut stream).await.results;
    // Of 0..1,000 by fours: 0 + 4 + … + 996 is 250 × 498, and so on.
    let expected = ["#1 good a 75000 498.0 996.0", "b 75000 499.0 997.0", "c 75000 500.0 998.0"];
    let got = texts(&results);
    for (line, expected) in got.iter().zip(expected) {
        let (start, end) = expected.split_once(" good ").unwrap_or(("", expected));
        assert!(line.starts_with(start) && line.ends_with(end), "{got:?}");
    }
    assert_eq!((got.len(), stream.counts().windowed), (4, 300_000));
}

/// What is recomputed would not fit.
#[tokio::test]
async fn rows_of_a_median_do_not_fit_where_states_of_a_mean_do() {
    let spec = StreamSpec { window: Some(hopping(3_600, 10)), memory_max: 1 << 20, ..spec(10, 0) };
    for (aggregate, fits) in [("avg", true), ("median", false)] {
        let sql = format!("SELECT {aggregate}(v) AS a FROM m");
        let mut stream = stream(spec.clone(), &sql);
        let mut failed = None;
        for second in 0..100 {
            let rows: Vec<Row> = (0..1_000).map(|n| (second, "a", f64::from(n))).collect();
            let position = stream.processed(0);
            let event = Event::Rows { table: 0, position, batch: batch(&rows) };
            failed = failed.or(stream.apply(event, NOW).await.err());
        }
        assert_eq!(failed.is_none(), fits, "{aggregate}: {failed:?}");
        assert!(fits || matches!(failed, Some(StreamError::Memory { max: 1_048_576, .. })));
    }
}

/// Rows over which the SQL fails cost the windows that they are in and no other, as when it runs
/// over the rows.
#[tokio::test]
async fn a_fold_that_fails_costs_its_windows() {
    let sql = "SELECT sum(10 / CAST(v AS BIGINT)) AS s FROM m";
    let rows = [(1, "a", 2.0), (6, "a", 0.0), (11, "a", 5.0), (21, "a", 10.0), (26, "a", 1.0)];
    let mut seen = Vec::new();
    for limits in [None, Some(EAGER), Some(ALWAYS)] {
        let spec = StreamSpec { window: Some(hopping(10, 5)), ..spec(10, 0) };
        let query = planned(&spec, sql, limits);
        let mut stream = with(Stream::new(spec, query, NOW).unwrap(), limits);
        let (mut results, mut failures) = (Vec::new(), Vec::new());
        for row in rows {
            let effects = feed(&mut stream, 0, batch(&[row]), NOW).await;
            results.extend(effects.results);
            failures.extend(effects.failures);
        }
        let effects = drain(&mut stream).await;
        results.extend(effects.results);
        let bounds: Vec<i64> = failures
            .iter()
            .map(|failure| match failure {
                StreamError::Query { window: Some(bounds), .. } => bounds.start / SECOND,
                other => panic!("{other:?}"),
            })
            .collect();
        ledger_holds(&stream.counts());
        seen.push((texts(&results), bounds, stream.counts().failed, stream.counts().windowed));
    }
    // 6 s is in [0, 10) and [5, 15); 11 s is in [10, 20), too, which is computed.
    assert_eq!((seen[0].1.clone(), seen[0].2, seen[0].3), (vec![0, 5], 2, 3));
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}

/// States of other SQL have no meaning; what is not folded yet runs through the new SQL.
#[tokio::test]
async fn changed_sql_drops_states_that_it_cannot_use_and_says_how_much() {
    let spec = spec(100, 0);
    let sql = "SELECT count(*) AS n, sum(v) AS v FROM m";
    let mut stream = with(stream(spec.clone(), sql), Some(ALWAYS));
    let mut kept = Kept::default();
    feed(&mut stream, 0, batch(&[(1, "a", 1.0), (2, "a", 2.0)]), NOW).await;
    aligned(&mut stream).limit(Limits::new(1 << 30));
    feed(&mut stream, 0, batch(&[(3, "a", 4.0)]), NOW).await;
    kept.commit(&mut stream);
    assert_eq!((kept.states.len(), kept.progress.as_ref().unwrap().replay_from[0]), (1, 2));
    let row = |position: u64| Event::Replay { table: 0, position, batch: batch(&[(3, "a", 4.0)]) };
    // What is above the aggregation may change: the states are the same.
    let shaped =
        "SELECT count(*) * 2 AS twice, sum(v) / count(*) AS mean FROM m HAVING count(*) > 1";
    let mut other = kept.restore(&spec, query(&spec, shaped));
    other.apply(row(2), NOW).await.unwrap();
    let results = texts(&drain(&mut other).await.results);
    assert!(results[0].ends_with(" 6 2.3333333333333335"), "{results:?}");
    assert_eq!(other.counts().dropped, 0);
    for changed in ["SELECT count(*) AS n, min(v) AS v FROM m", "SELECT median(v) AS v FROM m"] {
        let mut other = kept.restore(&spec, query(&spec, changed));
        other.apply(row(2), NOW).await.unwrap();
        assert_eq!((other.counts().dropped, other.counts().open_rows), (2, 1), "{changed}");
        ledger_holds(&other.counts());
        let removed = other.progress().states;
        let keys: Vec<u64> = kept.states.keys().copied().collect();
        assert_eq!(removed, [StateChange { key: keys[0], bytes: None }]);
        assert!(texts(&drain(&mut other).await.results)[0].ends_with(" 4.0"), "{changed}");
        assert_eq!(other.counts().windowed, 1);
    }
}

/// The old SQL ends what it has begun; the new one begins with what comes then.
#[tokio::test]
async fn old_sql_closes_the_windows_that_its_states_are_of() {
    let spec = spec(100, 0);
    let sql = "SELECT device, sum(v) AS v FROM m GROUP BY device ORDER BY device";
    let mut stream = with(stream(spec.clone(), sql), Some(ALWAYS));
    let mut kept = Kept::default();
    feed(&mut stream, 0, batch(&[(1, "a", 1.0), (2, "b", 2.0)]), NOW).await;
    aligned(&mut stream).limit(Limits::new(1 << 30));
    feed(&mut stream, 0, batch(&[(3, "a", 4.0)]), NOW).await;
    kept.commit(&mut stream);
    let changed = "SELECT device, max(v) AS v FROM m GROUP BY device ORDER BY device";
    let state = kept.progress.as_ref().unwrap().state.clone();
    let outdated = |sql: &str| Stream::outdated(&spec, &query(&spec, sql), &state).unwrap();
    assert_eq!(outdated(changed).as_deref(), Some(sql));
    assert_eq!(outdated("SELECT median(v) AS v FROM m").as_deref(), Some(sql));
    let shaped = "SELECT device, sum(v) * 2 AS v FROM m GROUP BY device HAVING sum(v) > 0";
    assert_eq!((outdated(sql), outdated(shaped)), (None, None));
    let mut old = kept.restore(&spec, query(&spec, sql));
    let event = Event::Replay { table: 0, position: 2, batch: batch(&[(3, "a", 4.0)]) };
    old.apply(event, NOW).await.unwrap();
    let closed = texts(&old.close_all().await.results);
    assert_eq!(closed, ["#1 good 0..100000000 a 5.0", "#2 good 0..100000000 b 2.0"]);
    kept.commit(&mut old);
    assert!(kept.states.is_empty());
    let mut new = kept.restore(&spec, query(&spec, changed));
    feed(&mut new, 0, batch(&[(4, "a", 8.0), (5, "a", 6.0)]), NOW).await;
    assert_eq!(texts(&drain(&mut new).await.results), ["#3 good 0..100000000 a 8.0"]);
    let counts = new.counts();
    assert_eq!((counts.accepted, counts.windowed, counts.dropped), (5, 5, 0));
}

/// A stored state that was cut or is of another form is refused, never misread.
#[tokio::test]
async fn damaged_states_are_refused() {
    let spec = spec(100, 0);
    let sql = "SELECT device, count(*) AS n FROM m GROUP BY device";
    let mut stream = with(stream(spec.clone(), sql), Some(ALWAYS));
    let mut kept = Kept::default();
    feed(&mut stream, 0, batch(&[(1, "a", 1.0), (2, "b", 2.0)]), NOW).await;
    kept.commit(&mut stream);
    let state = kept.progress.as_ref().unwrap().state.clone();
    let (key, bytes) = kept.states.first_key_value().unwrap();
    let other_form = [&[7][..], &bytes[1..]].concat();
    let damaged = [&bytes[..20], &[9; 60], &other_form[..]];
    for damaged in damaged {
        let states = [(*key, Bytes::copy_from_slice(damaged))];
        let restored = Stream::restore_with(spec.clone(), query(&spec, sql), &state, &states, NOW);
        assert!(matches!(restored, Err(StreamError::Progress(_))), "{restored:?}");
    }
}
