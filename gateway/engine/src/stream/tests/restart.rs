use super::*;

/// A log as the store keeps it: the batches of each table with their positions.
#[derive(Default)]
pub(super) struct Logs(pub(super) Vec<Vec<(u64, RecordBatch)>>);

impl Logs {
    pub(super) fn append(&mut self, table: usize, batch: RecordBatch) -> Event {
        let log = &mut self.0[table];
        let position = log.last().map_or(0, |(at, batch)| at + batch.num_rows() as u64);
        log.push((position, batch.clone()));
        Event::Rows { table, position, batch }
    }

    /// Rows from `from` on, in batches of `size`, whatever their batches were.
    pub(super) fn replay(&self, table: usize, from: u64, size: usize) -> Vec<Event> {
        let Some((end, batch)) = self.0[table].last() else {
            return vec![];
        };
        let end = end + batch.num_rows() as u64;
        let batches: Vec<RecordBatch> = self.0[table].iter().map(|(_, b)| b.clone()).collect();
        let all = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
        (from..end)
            .step_by(size)
            .map(|position| {
                let start = usize::try_from(position).unwrap();
                let batch = all.slice(start, size.min(all.num_rows() - start));
                Event::Replay { table, position, batch }
            })
            .collect()
    }
}

fn two_tables() -> StreamSpec {
    let mut spec = spec(10, 3);
    spec.tables.push(table("o"));
    spec.sources = vec![(0, "a".into()), (1, "a".into())];
    spec
}

const JOINED: &str = "SELECT window_start() AS s, count(*) AS n, sum(v) AS v, last(v, time) AS l \
                      FROM (SELECT v, time FROM m UNION ALL SELECT v, time FROM o)";

/// Table and rows of each event: disorder, late rows, empty windows, a device that joins.
fn history() -> Vec<(usize, Vec<Row>)> {
    vec![
        (0, vec![(1, "a", 1.0), (4, "a", 2.0)]),
        (1, vec![(2, "a", 4.0)]),
        (0, vec![(12, "a", 8.0), (9, "a", 16.0)]),
        (1, vec![(14, "a", 32.0), (3, "a", 64.0), (13, "a", 128.0)]),
        (0, vec![(25, "a", 256.0)]),
        (1, vec![(13, "b", 512.0), (27, "a", 1024.0)]),
        (0, vec![(28, "a", 2048.0), (20, "a", 4096.0)]),
        (1, vec![(47, "b", 8192.0)]),
        (0, vec![(49, "a", 16384.0), (10, "a", 32768.0)]),
        (1, vec![(48, "a", 65536.0)]),
        (0, vec![(71, "a", 131_072.0)]),
        (1, vec![(72, "a", 262_144.0), (73, "b", 524_288.0)]),
    ]
}

fn all_late(effects: &[&Effects]) -> Vec<String> {
    let late = effects.iter().flat_map(|effects| &effects.late);
    late.flat_map(|late| {
        let values = late.batch.column(4).as_primitive::<Float64Type>().values().to_vec();
        values.into_iter().map(move |value| format!("{} {value}", late.table))
    })
    .collect()
}

fn all_lines(effects: &[&Effects]) -> Vec<String> {
    effects.iter().flat_map(|effects| lines(&effects.results)).collect()
}

async fn uncut() -> (Vec<Effects>, Counts) {
    let mut stream = stream(two_tables(), JOINED);
    let mut logs = Logs(vec![vec![], vec![]]);
    let mut effects = Vec::new();
    for (table, rows) in history() {
        effects.push(stream.apply(logs.append(table, batch(&rows)), NOW).await.unwrap());
    }
    effects.push(stream.apply(Event::Tick, NOW + 100 * SECOND).await.unwrap());
    (effects, stream.counts())
}

#[tokio::test]
async fn the_uncut_run_by_hand() {
    let (effects, counts) = uncut().await;
    let effects: Vec<&Effects> = effects.iter().collect();
    assert_eq!(
        all_lines(&effects),
        [
            // 1, 2, 4, 16 and the row of 3 s, whose source's mark was 14 - 3 = 11 but m's 12 - 3 = 9.
            "0 5 87 16 #1 good",
            "10 4 680 32 #2 good",
            "20 4 7424 2048 #3 good",
            "40 3 90112 16384 #4 good",
            "70 3 917504 524288 #5 good"
        ]
    );
    assert_eq!(all_late(&effects), ["0 32768"]);
    assert_eq!((counts.accepted, counts.windowed, counts.late), (20, 19, 1));
}

/// Cut after each event, and at each later event once more; rows logged after the cut are in the
/// log when the stream comes back, as they are when a commit held them and the stream had not run.
#[tokio::test]
async fn a_restart_at_any_point_changes_no_result() {
    let (expected, expected_counts) = uncut().await;
    let expected: Vec<&Effects> = expected.iter().collect();
    let history = history();
    let spec = two_tables();
    for cut in 0..=history.len() {
        let mut before = stream(spec.clone(), JOINED);
        let (mut logs, mut done) = (Logs(vec![vec![], vec![]]), Vec::new());
        for (table, rows) in &history[..cut] {
            done.push(before.apply(logs.append(*table, batch(rows)), NOW).await.unwrap());
        }
        let saved = before.progress();
        for logged in cut..=history.len() {
            let query = query(&spec, JOINED);
            let mut stream = Stream::restore(spec.clone(), query, &saved.state, NOW).unwrap();
            assert_eq!(stream.progress(), saved, "restoring alone changes nothing");
            // Batches and tables in any order.
            let size = [1, 3, 100][logged % 3];
            let mut effects = Vec::new();
            for table in if logged % 2 == 0 { [0, 1] } else { [1, 0] } {
                for event in logs.replay(table, saved.replay_from[table], size) {
                    effects.push(stream.apply(event, NOW).await.unwrap());
                }
            }
            // The log grows for the next round; this stream gets the rest as it comes.
            let mut rest = Logs(logs.0.clone());
            for (table, rows) in &history[logged..] {
                effects.push(stream.apply(rest.append(*table, batch(rows)), NOW).await.unwrap());
            }
            effects.push(stream.apply(Event::Tick, NOW + 100 * SECOND).await.unwrap());
            if let Some((table, rows)) = history.get(logged) {
                logs.append(*table, batch(rows));
            }
            ledger_holds(&stream.counts());
            assert_eq!(stream.counts().accepted, expected_counts.accepted);
            let all: Vec<&Effects> = done.iter().chain(&effects).collect();
            // Rows that had not been applied come table by table: what is late may differ then.
            if logged == cut {
                assert_eq!(all_lines(&all), all_lines(&expected), "cut at {cut}");
                assert_eq!(all_late(&all), all_late(&expected), "cut at {cut}");
                assert_eq!(stream.counts().windowed, expected_counts.windowed);
            }
            once_each(&all);
        }
    }
}

/// Each value of the history is another power of two: each is in exactly one sum or late.
fn once_each(effects: &[&Effects]) {
    let sums = effects.iter().flat_map(|effects| &effects.results).map(|output| {
        output.batch.column(2).as_primitive::<Float64Type>().values().iter().sum::<f64>()
    });
    let late = effects.iter().flat_map(|effects| &effects.late).map(|late| {
        late.batch.column(4).as_primitive::<Float64Type>().values().iter().sum::<f64>()
    });
    let total: f64 = sums.chain(late).sum();
    assert!((total - 1_048_575.0).abs() < 0.5, "2^20 - 1, not {total}");
    let mut next = 1;
    for output in effects.iter().flat_map(|effects| &effects.results) {
        assert_eq!(output.first_seq, next);
        next += output.batch.num_rows() as u64;
    }
}

/// Crash while the logs are being read again: the progress is still that of before.
#[tokio::test]
async fn a_restart_within_a_restart_changes_nothing() {
    let spec = two_tables();
    let mut stream = stream(spec.clone(), JOINED);
    let mut logs = Logs(vec![vec![], vec![]]);
    for (table, rows) in &history()[..6] {
        let event = logs.append(*table, batch(rows));
        stream.apply(event, NOW).await.unwrap();
    }
    for (table, rows) in &history()[6..] {
        logs.append(*table, batch(rows));
    }
    let saved = stream.progress();
    assert!(saved.replay_from[0] < saved.processed[0] && saved.replay_from[1] < saved.processed[1]);
    let mut again = Stream::restore(spec.clone(), query(&spec, JOINED), &saved.state, NOW).unwrap();
    for event in logs.replay(0, saved.replay_from[0], 100) {
        let effects = again.apply(event, NOW).await.unwrap();
        assert!(effects.results.is_empty() && effects.late.is_empty(), "o is not refilled yet");
    }
    again.apply(Event::Tick, NOW + 100 * SECOND).await.unwrap();
    assert_eq!(again.progress(), saved);
}

#[tokio::test]
async fn a_changed_window_drops_what_was_open_and_says_how_much() {
    let spec = spec(10, 0);
    let mut stream = stream(spec.clone(), SUMS);
    let effects =
        feed(&mut stream, 0, batch(&[(1, "a", 1.0), (12, "a", 2.0), (13, "a", 4.0)]), NOW).await;
    assert_eq!(lines(&effects.results), ["0 1 1 1 #1 good"]);
    let saved = stream.progress();
    let wider = super::spec(60, 0);
    let mut stream =
        Stream::restore(wider.clone(), query(&wider, SUMS), &saved.state, NOW).unwrap();
    assert_eq!(stream.counts().dropped, 2);
    ledger_holds(&stream.counts());
    let effects = feed(&mut stream, 0, batch(&[(61, "a", 8.0), (121, "a", 0.0)]), NOW).await;
    assert_eq!(lines(&effects.results), ["60 1 8 8 #2 good"], "the sequence goes on");
    // A table that came to the stream starts at its log's first row; other SQL is no obstacle.
    let mut more = spec;
    more.tables.insert(0, table("new"));
    let query = query(&more, "SELECT window_end() AS e, count(*) AS n FROM m");
    let stream = Stream::restore(more, query, &saved.state, NOW).unwrap();
    assert_eq!(stream.progress().processed, [0, 3]);
    assert_eq!(stream.progress().replay_from, [0, 1]);
}

#[tokio::test]
async fn rows_that_the_log_lost_hold_no_window_open() {
    let spec = spec(10, 0);
    let mut stream = stream(spec.clone(), SUMS);
    feed(&mut stream, 0, batch(&[(1, "a", 1.0), (2, "a", 2.0)]), NOW).await;
    let saved = stream.progress();
    let mut stream = Stream::restore(spec.clone(), query(&spec, SUMS), &saved.state, NOW).unwrap();
    stream.apply(Event::Replayed, NOW).await.unwrap();
    assert_eq!(stream.counts().dropped, 2);
    let effects = feed(&mut stream, 0, batch(&[(3, "a", 4.0), (10, "a", 0.0)]), NOW).await;
    assert_eq!(lines(&effects.results), ["0 1 4 4 #1 good"]);
    ledger_holds(&stream.counts());
    assert!(matches!(
        Stream::restore(spec.clone(), query(&spec, SUMS), b"garbage", NOW),
        Err(StreamError::Progress(_))
    ));
}

/// The first source to be taken up again was ahead of the others: until these had their marks, it took
/// the watermark with it, and what they sent next was late.
#[tokio::test]
async fn a_restart_moves_no_watermark() {
    let spec = spec(10, 0);
    let mut stream = stream(spec.clone(), SUMS);
    feed(&mut stream, 0, batch(&[(1, "a", 1.0), (2, "b", 2.0), (50, "a", 4.0)]), NOW).await;
    let saved = stream.progress();
    assert_eq!(stream.counts().watermark, Some(2 * SECOND));
    let mut stream = Stream::restore(spec.clone(), query(&spec, SUMS), &saved.state, NOW).unwrap();
    assert_eq!(stream.counts().watermark, Some(2 * SECOND));
    let rows = batch(&[(1, "a", 1.0), (2, "b", 2.0), (50, "a", 4.0)]);
    stream.apply(Event::Replay { table: 0, position: 0, batch: rows }, NOW).await.unwrap();
    let effects = feed(&mut stream, 0, batch(&[(3, "b", 8.0), (10, "b", 0.0)]), NOW).await;
    assert_eq!(lines(&effects.results), ["0 3 11 8 #1 good"]);
    assert_eq!(stream.counts().late, 0);
}
