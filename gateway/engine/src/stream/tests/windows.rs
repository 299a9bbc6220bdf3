use super::*;

/// Window, lateness, arrivals in order, windows closed (without the tail), late rows.
type Case = (i64, i64, &'static [Row], &'static [&'static str], u64);

const CASES: &[Case] = &[
    (10, 0, &[(1, "a", 1.0), (9, "a", 2.0)], &[], 0),
    (10, 0, &[(1, "a", 1.0), (10, "a", 2.0)], &["0 1 1 1 #1 good"], 0),
    // The example: lateness of 2 s, a row at 13 s closes [0, 10), the one at 5 s is late.
    (
        10,
        2,
        &[(0, "a", 230.0), (9, "a", 232.0), (13, "a", 1.0), (5, "a", 9.9)],
        &["0 2 462 232 #1 good"],
        1,
    ),
    (10, 2, &[(1, "a", 1.0), (11, "a", 2.0), (9, "a", 4.0)], &[], 0),
    (
        10,
        2,
        &[(1, "a", 1.0), (11, "a", 2.0), (9, "a", 4.0), (12, "a", 0.0)],
        &["0 2 5 4 #1 good"],
        0,
    ),
    // Rows in disorder come sorted to `last`; of equal times the later arrival wins.
    (
        10,
        9,
        &[(8, "a", 8.0), (3, "a", 3.0), (8, "a", 9.0), (19, "a", 0.0)],
        &["0 3 20 9 #1 good"],
        0,
    ),
    // The slower source holds the window, also for the faster one.
    (10, 0, &[(1, "a", 1.0), (2, "b", 2.0), (50, "a", 3.0), (9, "b", 4.0)], &[], 0),
    (
        10,
        0,
        &[(1, "a", 1.0), (2, "b", 2.0), (50, "a", 3.0), (9, "b", 4.0), (20, "b", 5.0)],
        &["0 3 7 4 #1 good"],
        0,
    ),
    // Windows without rows give no result; those between do not close twice.
    (
        10,
        0,
        &[(1, "a", 1.0), (35, "a", 2.0), (71, "a", 3.0)],
        &["0 1 1 1 #1 good", "30 1 2 2 #2 good"],
        0,
    ),
    // Before 1970 and across it.
    (
        10,
        0,
        &[(-11, "a", 1.0), (-10, "a", 2.0), (0, "a", 4.0)],
        &["-20 1 1 1 #1 good", "-10 1 2 2 #2 good"],
        0,
    ),
    // A62: a stamp in the future makes the normal ones late, and that is counted.
    (
        1,
        0,
        &[(5, "a", 1.0), (999, "a", 1.0), (6, "a", 1.0), (7, "a", 1.0)],
        &["5 1 1 1 #1 good"],
        2,
    ),
];

#[tokio::test]
async fn one_line_per_case() {
    for (size, lateness, rows, expected, late) in CASES {
        let mut stream = stream(spec(*size, *lateness), SUMS);
        let effects = feed(&mut stream, 0, batch(rows), NOW).await;
        assert_eq!(lines(&effects.results), *expected, "{rows:?}");
        let counts = stream.counts();
        assert_eq!((counts.late, counts.accepted), (*late, rows.len() as u64), "{rows:?}");
        let returned: usize = effects.late.iter().map(|late| late.batch.num_rows()).sum();
        assert_eq!(returned as u64, *late);
        ledger_holds(&counts);
    }
}

/// A59 (a row on an edge belongs to the window that starts there), A60 (the first window is
/// aligned to event time), A65 (window bounds are columns).
#[tokio::test]
async fn a59_edges_belong_to_the_window_that_they_start() {
    let sql = "SELECT window_start() AS window_start, window_end() AS window_end, \
               count(*) AS n, array_agg(v) AS v FROM m";
    let mut stream = stream(spec(1, 0), sql);
    let rows: Vec<Row> = [
        (1_541_152_486_000_i64, 26.0),
        (1_541_152_487_000, 27.0),
        (1_541_152_488_000, 28.0),
        (1_541_152_488_500, 28.5),
        (1_541_152_489_000, 29.0),
        (1_541_152_489_500, 29.5),
    ]
    .map(|(millis, v)| (millis * 1000, "a", v))
    .to_vec();
    let mut results = feed(&mut stream, 0, micros(&rows, "good"), NOW).await.results;
    results.extend(drain(&mut stream).await.results);
    let texts: Vec<String> = results
        .iter()
        .flat_map(|output| {
            let options = crate::encode::JsonOptions::default();
            crate::encode::json_rows(&output.batch, &options, output.first_seq).unwrap()
        })
        .map(|text| String::from_utf8(text.to_vec()).unwrap())
        .collect();
    let row = |second: u32, n: u32, v: &str| {
        format!(
            "{{\"window_start\":\"2018-11-02T09:54:{second}.000000Z\",\
             \"window_end\":\"2018-11-02T09:54:{}.000000Z\",\"n\":{n},\"v\":[{v}]}}",
            second + 1
        )
    };
    assert_eq!(
        texts,
        [row(46, 1, "26.0"), row(47, 1, "27.0"), row(48, 2, "28.0,28.5"), row(49, 2, "29.0,29.5")]
    );
    assert_eq!(results[0].window.unwrap().start, 1_541_152_486_000_000);
    assert_eq!(stream.counts().windowed, 6);
}

/// A63: old events close windows by their own times, and a filter that drops every row still does.
#[tokio::test]
async fn a63_windows_close_whatever_the_filter_drops() {
    let filter = "SELECT window_start() AS s, count(*) AS n, sum(v) AS v, last(v) AS l FROM m \
                  WHERE v > 100 HAVING count(*) > 0";
    let mut stream = stream(spec(1, 0), filter);
    let ten_minutes_ago = NOW / SECOND - 600;
    let rows: Vec<Row> = (0..10).map(|s| (ten_minutes_ago + s, "a", 1.0)).collect();
    let effects = feed(&mut stream, 0, batch(&rows), NOW).await;
    assert!(effects.results.is_empty());
    assert_eq!((stream.counts().windowed, stream.counts().open_rows), (9, 1));
    assert_eq!(stream.next_deadline(NOW), Some(NOW + 30 * SECOND));
    drain(&mut stream).await;
    assert_eq!((stream.counts().windowed, stream.counts().open_rows), (10, 0));
    let effects = feed(&mut stream, 0, batch(&[(NOW / SECOND + 99, "a", 101.0)]), NOW).await;
    assert!(effects.results.is_empty());
    assert_eq!(lines(&drain(&mut stream).await.results), ["1700000099 1 101 101 #1 good"]);
}

#[tokio::test]
async fn idle_sources_let_the_last_windows_close() {
    let mut spec = spec(10, 2);
    spec.sources = vec![(0, "a".into()), (0, "b".into())];
    let mut stream = stream(spec, SUMS);
    let at = NOW / SECOND;
    assert_eq!(stream.next_deadline(NOW), None, "nothing is open");
    let effects = feed(&mut stream, 0, batch(&[(at, "a", 1.0), (at + 20, "a", 2.0)]), NOW).await;
    assert!(effects.results.is_empty(), "b has not spoken");
    assert_eq!(stream.counts().watermark, None);
    // b is idle from 30 s after the start; a spoke at 10 s.
    feed(&mut stream, 0, batch(&[(at + 21, "a", 3.0)]), NOW + 10 * SECOND).await;
    assert_eq!(stream.next_deadline(NOW), Some(NOW + 30 * SECOND));
    let effects = stream.apply(Event::Tick, NOW + 30 * SECOND).await.unwrap();
    assert_eq!(lines(&effects.results), ["1700000000 1 1 1 #1 good"]);
    // Then a is idle too, and the clock is past the end of the last window and the lateness.
    assert_eq!(stream.next_deadline(NOW), Some(NOW + 40 * SECOND));
    let effects = stream.apply(Event::Tick, NOW + 40 * SECOND).await.unwrap();
    assert_eq!(lines(&effects.results), ["1700000020 2 5 3 #2 good"]);
    assert_eq!(stream.counts().watermark, Some(NOW + 38 * SECOND));
    assert_eq!(stream.next_deadline(NOW), None);
}

#[tokio::test]
async fn clock_steps_close_no_window_twice() {
    let mut stream = stream(spec(10, 0), SUMS);
    // No clock yet: 1970.
    assert!(feed(&mut stream, 0, batch(&[(5, "a", 1.0)]), 5 * SECOND).await.results.is_empty());
    // The first sync, then an hour back, then past 2038.
    let effects = feed(&mut stream, 0, batch(&[(1_700_000_003, "a", 2.0)]), NOW).await;
    assert_eq!(lines(&effects.results), ["0 1 1 1 #1 good"]);
    let back = NOW - 3600 * SECOND;
    let effects = feed(&mut stream, 0, batch(&[(1_700_000_001, "a", 3.0)]), back).await;
    assert!(effects.results.is_empty());
    let effects = feed(&mut stream, 0, batch(&[(1_699_996_403, "a", 4.0)]), back).await;
    assert_eq!(effects.late.len(), 1, "an hour behind: late, and said so");
    let effects = feed(&mut stream, 0, batch(&[(2_177_452_801, "a", 5.0)]), NOW).await;
    assert_eq!(lines(&effects.results), ["1700000000 2 5 2 #2 good"]);
    let effects = stream.apply(Event::Tick, 2_177_452_900 * SECOND).await.unwrap();
    assert_eq!(lines(&effects.results), ["2177452800 1 5 5 #3 good"]);
    ledger_holds(&stream.counts());
}

#[tokio::test]
async fn quality_is_the_worst_of_what_went_in() {
    let mut stream = stream(spec(10, 0), SUMS);
    let mut qualities = Vec::new();
    for (second, quality) in
        [(1, "good"), (11, "bad"), (21, "good"), (22, "bad"), (31, "uncertain")]
    {
        let rows = micros(&[(second * SECOND, "a", 1.0)], quality);
        qualities.extend(feed(&mut stream, 0, rows, NOW).await.results.iter().map(|r| r.quality));
    }
    qualities.extend(drain(&mut stream).await.results.iter().map(|r| r.quality));
    assert_eq!(qualities, ["good", "bad", "uncertain", "uncertain"]);
}

#[tokio::test]
async fn four_failing_windows_do_not_stop_the_fifth() {
    let sql = "SELECT window_start() AS s, count(*) AS n, sum(v) AS v, \
               CAST(10 / CAST(last(v) AS BIGINT) AS DOUBLE) AS l FROM m";
    let mut stream = stream(spec(10, 0), sql);
    for window in 0..4 {
        let rows = batch(&[(window * 10, "a", 1.0), (window * 10 + 1, "a", 0.0)]);
        let effects = feed(&mut stream, 0, rows, NOW).await;
        assert!(effects.results.is_empty());
        assert_eq!(effects.failures.len(), usize::from(window > 0));
        for failure in effects.failures {
            let StreamError::Query { window: Some(bounds), rows: 2, error } = failure else {
                panic!("{failure:?}")
            };
            assert_eq!(bounds.start, (window - 1) * 10 * SECOND);
            assert!(error.message.contains("Divide by zero"), "{error:?}");
        }
    }
    let effects = feed(&mut stream, 0, batch(&[(40, "a", 5.0), (50, "a", 1.0)]), NOW).await;
    assert_eq!(effects.failures.len(), 1);
    assert_eq!(lines(&effects.results), ["40 1 5 2 #1 good"]);
    assert_eq!(stream.counts().failed, 8);
    ledger_holds(&stream.counts());
}

#[tokio::test]
async fn a_stream_over_its_memory_fails_clearly_and_can_go_on() {
    let mut spec = spec(10, 0);
    spec.memory_max = 4096;
    // A median needs its rows.
    let sql = "SELECT window_start() AS s, count(*) AS n, sum(v) AS v, median(v) AS l FROM m";
    let mut stream = stream(spec, sql);
    let many: Vec<Row> = vec![(1, "a", 1.0); 500];
    feed(&mut stream, 0, batch(&many), NOW).await;
    let before = stream.progress();
    let event = Event::Rows { table: 0, position: 500, batch: batch(&[(2, "a", 1.0)]) };
    let error = stream.apply(event.clone(), NOW).await.unwrap_err();
    let StreamError::Memory { held, max: 4096 } = error else { panic!("{error:?}") };
    // 500 rows of 8 + (1 + 4) + (4 + 4) + 8 + 8 bytes and the window itself.
    assert!((500 * 37..500 * 37 + 1024).contains(&held), "{held}");
    assert_eq!(stream.progress(), before, "the event was not applied");
    let effects = stream.apply(Event::Tick, NOW + 60 * SECOND).await.unwrap();
    assert_eq!(lines(&effects.results), ["0 500 500 1 #1 good"]);
    assert_eq!(stream.counts().open_bytes, 0);
    assert_eq!(stream.apply(event, NOW).await.unwrap().late.len(), 1);
}

#[tokio::test]
async fn what_breaks_the_contract_is_refused_and_changes_nothing() {
    let mut stream = stream(spec(10, 0), SUMS);
    let other = batch(&[(1, "a", 1.0)]).project(&[0, 1]).unwrap();
    for (table, batch) in [(0, other), (1, batch(&[(1, "a", 1.0)]))] {
        let event = Event::Rows { table, position: 0, batch };
        let error = stream.apply(event, NOW).await.unwrap_err();
        assert!(matches!(error, StreamError::Input(_)), "{error:?}");
    }
    assert_eq!(stream.counts().accepted, 0);
    let bad = StreamSpec { window: Some(Window::Tumbling { size: 0, offset: 0 }), ..spec(10, 0) };
    let query = query(&spec(10, 0), SUMS);
    assert!(matches!(Stream::new(bad, query, NOW), Err(StreamError::Input(_))));
}

#[tokio::test]
async fn without_a_window_rows_pass_one_by_one() {
    let spec = StreamSpec { window: None, ..spec(1, 0) };
    let mut stream = stream(spec, "SELECT device, v * 2 AS v FROM m WHERE v > 1");
    let good = micros(&[(1, "a", 1.0), (2, "b", 2.0), (3, "a", 3.0)], "good");
    let bad = micros(&[(4, "c", 4.0)], "bad");
    let mixed = arrow::compute::concat_batches(&table("m").schema, &[good, bad.clone()]).unwrap();
    let effects = feed(&mut stream, 0, mixed, NOW).await;
    let seen: Vec<_> = effects
        .results
        .iter()
        .map(|r| (r.first_seq, r.batch.num_rows(), r.quality, r.window))
        .collect();
    assert_eq!(seen, [(1, 2, "good", None), (3, 1, "bad", None)]);
    let values = effects.results[0].batch.column(1).as_primitive::<Float64Type>().values().to_vec();
    assert_eq!(values, [4.0, 6.0]);
    let counts = stream.counts();
    assert_eq!((counts.accepted, counts.windowed, counts.filtered), (4, 3, 1));
    assert_eq!((counts.plans, counts.watermark, stream.next_deadline(NOW)), (1, None, None));
    // Rows that were applied are not applied again.
    let event = Event::Rows { table: 0, position: 3, batch: bad };
    assert!(stream.apply(event, NOW).await.unwrap().results.is_empty());
    assert_eq!(stream.counts().accepted, 4);
    let progress = stream.progress();
    assert_eq!((progress.processed, progress.replay_from), (vec![4], vec![4]));
}

#[tokio::test]
async fn tables_share_the_window_and_an_absent_one_is_empty() {
    let mut spec = spec(10, 0);
    spec.tables.push(table("o"));
    let sql = "SELECT window_start() AS s, count(*) AS n, sum(m.v) AS v, sum(o.v) AS l \
               FROM m LEFT JOIN o ON m.device = o.device";
    let mut stream = stream(spec, sql);
    feed(&mut stream, 0, batch(&[(1, "a", 1.0), (2, "b", 2.0), (12, "a", 3.0)]), NOW).await;
    feed(&mut stream, 0, batch(&[(12, "b", 3.0)]), NOW).await;
    let effects = feed(&mut stream, 1, batch(&[(3, "a", 10.0), (22, "a", 1.0)]), NOW).await;
    // Table o came after m had passed 12 s, so its row of [0, 10) is late; the rest of m waits for
    // nobody but its own two devices and o's.
    assert_eq!(effects.late.len(), 1);
    assert_eq!(effects.late[0].table, 1);
    let effects = feed(&mut stream, 0, batch(&[(30, "a", 0.0), (31, "b", 0.0)]), NOW).await;
    assert_eq!(lines(&effects.results), ["10 2 6 0 #2 good"]);
}

/// A stream may live in a task of a runtime with several threads, and so may what it awaits.
#[tokio::test]
async fn a_stream_can_be_a_task() {
    fn send<T: Send>(value: T) -> T {
        value
    }
    let mut stream = send(stream(spec(1, 0), SUMS));
    assert!(send(stream.apply(Event::Tick, NOW)).await.unwrap().results.is_empty());
}

/// An outage of the feed's connection: the clock is not followed meanwhile, and what the broker kept
/// is in its windows and not late.
#[tokio::test]
async fn what_an_outage_held_back_is_not_late() {
    let mut stream = stream(spec(10, 0), SUMS);
    let begin = NOW / SECOND;
    feed(&mut stream, 0, batch(&[(begin + 1, "a", 1.0)]), NOW + SECOND).await;
    stream.hold(true);
    let at = |seconds: i64| NOW + seconds * SECOND;
    for seconds in [20, 40, 60] {
        let effects = stream.apply(Event::Tick, at(seconds)).await.unwrap();
        assert!(effects.results.is_empty(), "closed by the clock during the outage");
    }
    stream.hold(false);
    // The backlog comes before time passes for it.
    let rows = [(begin + 2, "a", 2.0), (begin + 11, "a", 3.0), (begin + 60, "a", 4.0)];
    let effects = feed(&mut stream, 0, batch(&rows), at(61)).await;
    assert!(effects.late.is_empty());
    assert_eq!(
        lines(&effects.results),
        [format!("{begin} 2 3 2 #1 good"), format!("{} 1 3 3 #2 good", begin + 10)]
    );
    ledger_holds(&stream.counts());
}

/// A process that was stopped for a minute heard nobody: that makes nobody silent.
#[tokio::test]
async fn a_stopped_process_makes_nobody_idle() {
    let mut stream = stream(spec(10, 0), SUMS);
    let begin = NOW / SECOND;
    feed(&mut stream, 0, batch(&[(begin + 1, "a", 1.0)]), NOW + SECOND).await;
    stream.forgive(60 * SECOND);
    let effects = stream.apply(Event::Tick, NOW + 62 * SECOND).await.unwrap();
    assert!(effects.results.is_empty());
    let effects = feed(&mut stream, 0, batch(&[(begin + 2, "a", 2.0)]), NOW + 63 * SECOND).await;
    assert!(effects.late.is_empty());
}

/// Rows that were logged before a point was added or got another type: found by name, converted,
/// null where they cannot be.
#[tokio::test]
async fn rows_of_an_older_table_are_brought_to_its_columns() {
    let mut stream = stream(spec(10, 0), SUMS);
    let begin = NOW / SECOND;
    let old = batch(&[(begin + 1, "a", 7.0)]);
    let schema = Schema::new(vec![
        old.schema().field(0).clone(),
        old.schema().field(1).clone(),
        old.schema().field(2).clone(),
        old.schema().field(3).clone(),
        Field::new("gone", DataType::Utf8, true),
        Field::new("v", DataType::Utf8, true),
    ]);
    let text: ArrayRef = Arc::new(StringArray::from(vec!["7"]));
    let mut columns = old.columns()[..4].to_vec();
    columns.extend([text.clone(), text]);
    let old = RecordBatch::try_new(Arc::new(schema), columns).unwrap();
    feed(&mut stream, 0, old, NOW + SECOND).await;
    let without_v = batch(&[(begin + 2, "a", 0.0)]).project(&[0, 1, 2, 3]).unwrap();
    feed(&mut stream, 0, without_v, NOW + SECOND).await;
    let effects = feed(&mut stream, 0, batch(&[(begin + 10, "a", 1.0)]), NOW + SECOND).await;
    assert_eq!(lines(&effects.results), [format!("{begin} 2 7 7 #1 good")]);
}
