//! Clocks that are wrong: rows from the future, sources that never catch up, a clock that was set;
//! days by a calendar; rows that the SQL failed on.

use super::*;
use crate::calendar::{Calendar, Zone};
use crate::stream::{FutureRule, LateReason};
use crate::window::Bounds;

const HOUR: i64 = 3_600;

/// A feed: `table` with the time of arrival.
fn feed_table() -> TableSchema {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let mut fields: Vec<_> = table("m").schema.fields().iter().cloned().collect();
    fields.insert(4, Arc::new(Field::new("received_at", utc, false)));
    TableSchema { schema: Arc::new(Schema::new(fields)), ..table("m") }
}

/// Rows of a feed that arrived so many seconds ago against the time that they say; in seconds.
fn arrived(rows: &[(Row, i64)]) -> RecordBatch {
    let plain = batch(&rows.iter().map(|(row, _)| *row).collect::<Vec<_>>());
    let arrivals = rows.iter().map(|(_, arrived)| arrived * SECOND);
    let arrivals = TimestampMicrosecondArray::from_iter_values(arrivals).with_timezone("UTC");
    let mut columns = plain.columns().to_vec();
    columns.insert(4, Arc::new(arrivals));
    RecordBatch::try_new(feed_table().schema, columns).unwrap()
}

fn guarded(restamp: bool) -> StreamSpec {
    let future = Some(FutureRule { max: HOUR * SECOND, restamp });
    StreamSpec { tables: vec![feed_table()], future, ..spec(10, 0) }
}

/// Time of the first row and reason of each batch of late rows.
fn set_aside(effects: &Effects) -> Vec<(i64, LateReason)> {
    let first = |late: &LateRows| {
        late.batch.column(0).as_primitive::<TimestampMicrosecondType>().value(0) / SECOND
    };
    effects.late.iter().map(|late| (first(late), late.reason)).collect()
}

#[tokio::test]
async fn a62_a_stamp_from_the_future_moves_nothing_and_is_told() {
    let mut stream = stream(guarded(false), SUMS);
    let now = 100 * HOUR;
    // `b` believes that it is next week; exactly an hour ahead is still believed.
    let rows = arrived(&[
        ((now, "a", 1.0), now),
        ((now + 168 * HOUR, "b", 2.0), now),
        ((now + 1, "a", 3.0), now + 1),
        ((now + HOUR + 1, "c", 4.0), now + 1),
        ((now + HOUR + 2, "c", 5.0), now + 1),
    ]);
    let effects = feed(&mut stream, 0, rows, now * SECOND).await;
    assert_eq!(lines(&effects.results), [""; 0]);
    let future = LateReason::Future;
    assert_eq!(set_aside(&effects), [(now + 168 * HOUR, future), (now + HOUR + 2, future)]);
    // The others go on, and their windows close.
    let rows = arrived(&[((now + 12, "a", 6.0), now + 12), ((now - 5, "a", 7.0), now + 12)]);
    let effects = feed(&mut stream, 0, rows, (now + 12) * SECOND).await;
    assert_eq!(lines(&effects.results), [format!("{now} 2 4 3 #1 good")]);
    assert_eq!(set_aside(&effects), [(now - 5, LateReason::Late)]);
    let counts = stream.counts();
    assert_eq!((counts.accepted, counts.future, counts.late), (7, 2, 1));
    ledger_holds(&counts);
}

#[tokio::test]
async fn a_stamp_that_overflows_is_from_the_future_too() {
    let mut stream = stream(guarded(false), SUMS);
    let rows = [(i64::MAX / SECOND, "a", 1.0), (i64::MIN / SECOND, "a", 2.0), (50, "b", 3.0)];
    let effects = feed(&mut stream, 0, arrived(&rows.map(|row| (row, 50))), 50 * SECOND).await;
    assert_eq!(set_aside(&effects), [(i64::MAX / SECOND, LateReason::Future)]);
    assert_eq!(stream.counts().future, 1);
    ledger_holds(&stream.counts());
}

#[tokio::test]
async fn a62_restamped_rows_count_at_the_time_of_their_arrival() {
    let sql = "SELECT window_start() AS s, count(*) AS n, sum(v) AS v, last(v) AS l FROM m";
    let mut stream = stream(guarded(true), sql);
    let rows = [((20, "a", 1.0), 20), ((9 * HOUR, "b", 2.0), 24), ((32, "a", 4.0), 32)];
    let effects = feed(&mut stream, 0, arrived(&rows), 32 * SECOND).await;
    assert!(effects.late.is_empty());
    let effects = {
        let later = arrived(&[((33, "b", 8.0), 33)]);
        feed(&mut stream, 0, later, 33 * SECOND).await
    };
    assert_eq!(lines(&effects.results), ["20 2 3 2 #1 uncertain"]);
    let counts = stream.counts();
    assert_eq!((counts.restamped, counts.future, counts.windowed), (1, 0, 2));
    ledger_holds(&counts);
}

#[tokio::test]
async fn a_restart_sets_aside_what_was_set_aside() {
    let rows = arrived(&[
        ((11, "a", 1.0), 11),
        ((9 * HOUR, "b", 2.0), 12),
        ((13, "a", 3.0), 13),
        ((9 * HOUR, "b", 4.0), 14),
    ]);
    let more = arrived(&[((15, "a", 5.0), 15), ((31, "a", 6.0), 31)]);
    // Without a restart, and with one in the middle of the rows.
    let mut straight = stream(guarded(false), SUMS);
    feed(&mut straight, 0, rows.clone(), 14 * SECOND).await;
    let expected = feed(&mut straight, 0, more.clone(), 31 * SECOND).await;
    assert_eq!(lines(&expected.results), ["10 3 9 5 #1 good"]);
    for cut in 0..=4 {
        let mut first = stream(guarded(false), SUMS);
        feed(&mut first, 0, rows.slice(0, cut), 14 * SECOND).await;
        let progress = first.progress();
        let query = query(&guarded(false), SUMS);
        let mut second =
            Stream::restore(guarded(false), query, &progress.state, 14 * SECOND).unwrap();
        let from = usize::try_from(progress.replay_from[0]).unwrap();
        let replay =
            Event::Replay { table: 0, position: from as u64, batch: rows.slice(from, 4 - from) };
        second.apply(replay, 14 * SECOND).await.unwrap();
        second.apply(Event::Replayed, 14 * SECOND).await.unwrap();
        let event = Event::Rows { table: 0, position: 4, batch: more.clone() };
        let effects = second.apply(event, 31 * SECOND).await.unwrap();
        assert_eq!(lines(&effects.results), lines(&expected.results), "cut at {cut}");
        let (counts, straight) = (second.counts(), straight.counts());
        assert_eq!(
            (counts.accepted, counts.future, counts.windowed, counts.dropped),
            (straight.accepted, 2, straight.windowed, 0),
            "cut at {cut}"
        );
        ledger_holds(&counts);
    }
}

/// Whatever one device's clock does, the windows of the others close no later than an hour and
/// `idle_after` behind the clock.
#[tokio::test]
async fn a62_one_bad_clock_never_silences_a_fleet() {
    // (how far `bad` is off at second `s`)
    type Off = fn(i64) -> i64;
    let clocks: [(&str, Off); 6] = [
        ("1970", |_| -100 * HOUR),
        ("a day behind", |_| -24 * HOUR),
        ("a day ahead", |_| 24 * HOUR),
        ("half an hour behind", |_| -HOUR / 2),
        ("stands still", |s| -s),
        ("jumps to and fro", |s| if s % 20 < 10 { 200 * HOUR } else { -50 * HOUR }),
    ];
    for (name, off) in clocks {
        let mut stream = stream(guarded(false), SUMS);
        let start = 100 * HOUR;
        let mut closed = 0;
        for second in (0..3 * HOUR).step_by(10) {
            let now = start + second;
            let rows = arrived(&[
                ((now, "good", 1.0), now),
                ((now + off(second), "bad", 1.0), now),
                ((now, "fine", 1.0), now),
            ]);
            let effects = feed(&mut stream, 0, rows, now * SECOND).await;
            for line in lines(&effects.results) {
                closed = closed.max(line.split(' ').next().unwrap().parse::<i64>().unwrap());
            }
            let behind = now - closed;
            assert!(
                second < HOUR + 60 || behind <= HOUR + 60,
                "{name}: {behind} s behind after {second} s"
            );
        }
        ledger_holds(&stream.counts());
    }
}

#[tokio::test]
async fn f11_a_clock_far_ahead_that_is_set_right_stops_nothing() {
    let rule = Some(FutureRule { max: HOUR * SECOND, restamp: false });
    let spec = StreamSpec { future: rule, ..spec(10, 0) };
    let mut stream = stream(spec.clone(), SUMS);
    // The year 2036, out of a clock without a battery, and home again; rows are stamped by arrival.
    let (wrong, right) = (2_100_000_000, 1_800_000_000);
    let effects =
        feed(&mut stream, 0, batch(&[(wrong, "a", 1.0), (wrong + 12, "a", 2.0)]), wrong * SECOND)
            .await;
    assert_eq!(lines(&effects.results), [format!("{wrong} 1 1 1 #1 good")]);
    // What came before the step and is still under way.
    let effects =
        feed(&mut stream, 0, batch(&[(wrong + 13, "a", 3.0)]), (right + 1) * SECOND).await;
    assert_eq!(lines(&effects.results), [format!("{} 1 2 2 #2 good", wrong + 10)]);
    let effects = feed(&mut stream, 0, batch(&[(right + 2, "a", 4.0)]), (right + 2) * SECOND).await;
    assert_eq!(lines(&effects.results), [format!("{} 1 3 3 #3 good", wrong + 10)]);
    let rows = batch(&[(right + 3, "a", 5.0), (right + 11, "a", 6.0)]);
    let effects = feed(&mut stream, 0, rows, (right + 11) * SECOND).await;
    assert_eq!(lines(&effects.results), [format!("{right} 2 9 5 #4 good")]);
    assert_eq!(stream.counts().late, 0);
    ledger_holds(&stream.counts());

    // The same over a restart: what the clock had said is remembered.
    let mut ahead = Stream::new(spec.clone(), query(&spec, SUMS), wrong * SECOND).unwrap();
    let rows = batch(&[(wrong, "a", 1.0), (wrong + 12, "a", 2.0)]);
    feed(&mut ahead, 0, rows.clone(), wrong * SECOND).await;
    let progress = ahead.progress();
    let now = right * SECOND;
    let mut home = Stream::restore(spec.clone(), query(&spec, SUMS), &progress.state, now).unwrap();
    let from = usize::try_from(progress.replay_from[0]).unwrap();
    let batch_again = rows.slice(from, 2 - from);
    let replay = Event::Replay { table: 0, position: from as u64, batch: batch_again };
    home.apply(replay, now).await.unwrap();
    home.apply(Event::Replayed, now).await.unwrap();
    let rows = batch(&[(right + 3, "a", 5.0), (right + 11, "a", 6.0)]);
    let effects = feed(&mut home, 0, rows, (right + 11) * SECOND).await;
    assert_eq!(lines(&effects.results).last(), Some(&format!("{right} 1 5 5 #3 good")));
    ledger_holds(&home.counts());
}

#[tokio::test]
async fn f11_sessions_of_a_wrong_clock_end_when_it_is_set_right() {
    let future = Some(FutureRule { max: HOUR * SECOND, restamp: false });
    let window = Some(Window::Session { gap: 10 * SECOND, length_max: None, by: Vec::new() });
    let mut stream = stream(StreamSpec { window, future, ..spec(10, 0) }, SUMS);
    let (wrong, right) = (2_100_000_000, 1_800_000_000);
    let rows = batch(&[(wrong, "a", 1.0), (wrong + 5, "a", 2.0)]);
    let effects = feed(&mut stream, 0, rows, wrong * SECOND).await;
    assert!(effects.results.is_empty());
    let rows = batch(&[(right + 1, "a", 4.0), (right + 2, "a", 8.0)]);
    let effects = feed(&mut stream, 0, rows, (right + 2) * SECOND).await;
    assert_eq!(lines(&effects.results), [format!("{wrong} 2 3 2 #1 good")]);
    let effects =
        feed(&mut stream, 0, batch(&[(right + 12, "a", 0.0)]), (right + 12) * SECOND).await;
    assert_eq!(lines(&effects.results), [format!("{} 2 12 8 #2 good", right + 1)]);
    assert_eq!(stream.counts().late, 0);
    ledger_holds(&stream.counts());
}

#[tokio::test]
async fn days_by_a_calendar_have_23_and_25_hours() {
    let days = |zone, step| {
        let days = Calendar::new(Zone::named(zone).unwrap(), 24 * HOUR * SECOND, 0).unwrap();
        StreamSpec { window: Some(Window::Calendar { days, step }), ..spec(1, 0) }
    };
    // One row each half hour: 2026-03-28T12:00Z to 2026-03-30T12:00Z.
    let rows: Vec<Row> = (0..97).map(|n| (1_774_699_200 + n * HOUR / 2, "a", 1.0)).collect();
    let mut tumbling = stream(days("Europe/Berlin", None), SUMS);
    let mut results = feed(&mut tumbling, 0, batch(&rows), NOW).await.results;
    results.extend(drain(&mut tumbling).await.results);
    // From 23:00Z to 22:00Z are 46 half hours; before it 22, and 29 behind it.
    assert_eq!(
        lines(&results),
        ["1774652400 22 22 1 #1 good", "1774738800 46 46 1 #2 good", "1774821600 29 29 1 #3 good"]
    );
    // Running totals each six hours of the short day: the last one ends with the day.
    let mut totals = stream(days("Europe/Berlin", Some(6 * HOUR * SECOND)), SUMS);
    let mut results = feed(&mut totals, 0, batch(&rows), NOW).await.results;
    results.extend(drain(&mut totals).await.results);
    let day: Vec<_> = results
        .iter()
        .filter_map(|output| output.window.filter(|w| w.start == 1_774_738_800 * SECOND))
        .map(|w| (w.end - w.start) / HOUR / SECOND)
        .collect();
    assert_eq!(day, [6, 12, 18, 23]);
    let counted: Vec<_> = lines(&results)
        .into_iter()
        .filter(|line| line.starts_with("1774738800"))
        .map(|line| line.split(' ').nth(1).unwrap().to_owned())
        .collect();
    assert_eq!(counted, ["12", "24", "36", "46"]);
    ledger_holds(&totals.counts());
}

#[tokio::test]
async fn f_four_failing_batches_do_not_stop_the_fifth() {
    let sql = "SELECT device, 10 / CAST(v AS BIGINT) AS q FROM m";
    let spec = StreamSpec { window: None, keep_failed: true, ..spec(1, 0) };
    let mut stream = stream(spec, sql);
    for n in 0..4 {
        let rows = batch(&[(n, "a", 0.0), (n, "b", 1.0)]);
        let effects = feed(&mut stream, 0, rows.clone(), NOW).await;
        assert!(effects.results.is_empty());
        assert_eq!(effects.failures.len(), 1);
        assert_eq!(effects.failed.len(), 1);
        assert_eq!(effects.failed[0].batch, rows);
        assert!(effects.failed[0].error.contains("ivide by zero"), "{}", effects.failed[0].error);
    }
    let effects = feed(&mut stream, 0, batch(&[(5, "a", 2.0)]), NOW).await;
    assert_eq!((effects.results.len(), effects.results[0].first_seq), (1, 1));
    let counts = stream.counts();
    assert_eq!((counts.failed, counts.failed_out, counts.windowed), (8, 8, 1));
    ledger_holds(&counts);
}

#[tokio::test]
async fn f_a_failing_window_gives_its_rows_out_and_the_next_one_counts() {
    let sql = "SELECT window_start() AS s, sum(10 / CAST(v AS BIGINT)) AS q FROM m";
    let mut stream = stream(StreamSpec { keep_failed: true, ..spec(10, 0) }, sql);
    let rows = [(3, "a", 0.0), (1, "a", 5.0), (12, "a", 5.0), (21, "a", 1.0)];
    let effects = feed(&mut stream, 0, batch(&rows), NOW).await;
    assert_eq!((effects.failures.len(), effects.results.len()), (1, 1));
    let failed = &effects.failed[0];
    let times = failed.batch.column(0).as_primitive::<TimestampMicrosecondType>();
    let mut times = times.values().to_vec();
    times.sort_unstable();
    assert_eq!(times, [SECOND, 3 * SECOND]);
    assert!(failed.error.contains("in window 0..10000000 µs"), "{}", failed.error);
    assert_eq!(effects.results[0].window, Some(Bounds { start: 10 * SECOND, end: 20 * SECOND }));
    ledger_holds(&stream.counts());
}
