//! States that rotted in the store: a stream that runs says them again and loses nothing, one that has to
//! be built from them loses the rows of those alone, and counts each.

use super::kinds::session;
use super::panes::{ALWAYS, Kept, with};
use super::*;
use crate::stream::piece::Limits;

/// Two rows in the first pane, one in each of two others, all of them in states.
async fn three_panes(spec: &StreamSpec) -> (Stream, Kept) {
    let mut stream = with(stream(spec.clone(), SUMS), Some(ALWAYS));
    let rows = [(1, "a", 1.0), (2, "a", 2.0), (12, "a", 4.0), (22, "a", 8.0)];
    feed(&mut stream, 0, batch(&rows), NOW).await;
    let mut kept = Kept::default();
    kept.commit(&mut stream);
    assert_eq!(kept.states.keys().collect::<Vec<_>>(), [&0, &1, &2]);
    (with(stream, Some(Limits::new(1 << 30))), kept)
}

/// Everything that was stored, but for the states under the keys `lost`.
fn restore_without(kept: &mut Kept, spec: &StreamSpec, sql: &str, lost: &[u64]) -> Stream {
    let state = kept.progress.as_ref().unwrap().state.clone();
    let whole: Vec<_> = kept.states().into_iter().filter(|(key, _)| !lost.contains(key)).collect();
    Stream::restore_damaged(spec.clone(), query(spec, sql), &state, &whole, lost, NOW).unwrap()
}

/// Reads the log again as a start does: from where the progress says, as rows of before.
async fn replay(stream: &mut Stream, kept: &Kept, log: &[Row]) {
    let position = kept.progress.as_ref().unwrap().replay_from[0];
    let rows = batch(&log[usize::try_from(position).unwrap()..]);
    stream.apply(Event::Replay { table: 0, position, batch: rows }, NOW).await.unwrap();
    stream.apply(Event::Replayed, NOW).await.unwrap();
}

#[tokio::test]
async fn p03_a_lost_pane_costs_its_own_rows_which_are_counted() {
    let spec = spec(10, 1_000);
    let (mut stream, mut kept) = three_panes(&spec).await;
    let later = (13, "a", 16.0);
    feed(&mut stream, 0, batch(&[later]), NOW).await;
    kept.commit(&mut stream);
    let mut stream = restore_without(&mut kept, &spec, SUMS, &[1]);
    let folded = (0, "a", 0.0);
    replay(&mut stream, &kept, &[folded, folded, folded, folded, later]).await;
    let counts = stream.counts();
    assert_eq!((counts.accepted, counts.dropped, counts.open_rows), (5, 1, 4));
    kept.commit(&mut stream);
    assert_eq!(kept.states.keys().collect::<Vec<_>>(), [&0, &2], "the store lets go of it");
    let results = drain(&mut stream).await.results;
    let expected = ["0 2 3 2 #1 good", "10 1 16 16 #2 good", "20 1 8 8 #3 good"];
    assert_eq!(lines(&results), expected);
    ledger_holds(&stream.counts());
}

#[tokio::test]
async fn p03_panes_are_stored_anew_as_of_one_moment() {
    let spec = spec(10, 1_000);
    let (mut stream, mut kept) = three_panes(&spec).await;
    let later = (13, "a", 16.0);
    feed(&mut stream, 0, batch(&[later]), NOW).await;
    kept.commit(&mut stream);
    assert_eq!(kept.progress.as_ref().unwrap().replay_from, [4], "the last row is in no state");
    // None of the stored ones is of any use now.
    kept.states.clear();
    stream.store_anew();
    stream.apply(Event::Tick, NOW).await.unwrap();
    kept.commit(&mut stream);
    assert_eq!(kept.states.keys().collect::<Vec<_>>(), [&0, &1, &2]);
    assert_eq!(kept.progress.as_ref().unwrap().replay_from, [5], "and now it is");
    let mut restored = kept.restore(&spec, query(&spec, SUMS));
    for stream in [&mut stream, &mut restored] {
        let results = drain(stream).await.results;
        let expected = ["0 2 3 2 #1 good", "10 2 20 16 #2 good", "20 1 8 8 #3 good"];
        assert_eq!(lines(&results), expected);
    }
    // Where nothing is stored there is nothing to be said.
    stream.store_anew();
    feed(&mut stream, 0, batch(&[(9_000, "a", 1.0)]), NOW).await;
    assert_eq!(stream.progress().states.iter().filter(|s| s.bytes.is_some()).count(), 0);
}

/// A session of 70 rows that missed 69: one state of its own, and one with 64 of the late rows.
async fn long_session(spec: &StreamSpec) -> (Stream, Kept, Vec<Row>) {
    let (mut kept, mut log) = (Kept::default(), Vec::new());
    let mut stream = stream(spec.clone(), SUMS);
    for second in 1..=70 {
        let late = (second > 1).then_some((1, "a", 1_000.0));
        let rows: Vec<Row> = [(second, "a", 1.0)].into_iter().chain(late).collect();
        feed(&mut stream, 0, batch(&rows), NOW).await;
        log.extend(rows);
        kept.commit(&mut stream);
    }
    assert_eq!((kept.states.len(), log.len()), (2, 139));
    (stream, kept, log)
}

#[tokio::test]
async fn p03_a_session_that_lost_a_state_is_dropped_and_counted() {
    let spec = StreamSpec { window: Some(session(10, None, &["device"])), ..spec(10, 0) };
    for index in 0..2 {
        let (_, mut kept, log) = long_session(&spec).await;
        let lost = *kept.states.keys().nth(index).unwrap();
        let mut stream = restore_without(&mut kept, &spec, SUMS, &[lost]);
        replay(&mut stream, &kept, &log).await;
        let counts = stream.counts();
        assert_eq!((counts.accepted, counts.late), (139, 69));
        assert_eq!((counts.dropped, counts.open_rows), (70, 0));
        kept.commit(&mut stream);
        assert!(kept.states.is_empty());
        feed(&mut stream, 0, batch(&[(71, "a", 5.0)]), NOW).await;
        assert_eq!(lines(&drain(&mut stream).await.results), ["71 1 5 5 #1 good"]);
        ledger_holds(&stream.counts());
    }
}

#[tokio::test]
async fn p03_a_session_is_stored_anew_with_all_that_it_missed() {
    let spec = StreamSpec { window: Some(session(10, None, &["device"])), ..spec(10, 0) };
    let (mut stream, mut kept, mut log) = long_session(&spec).await;
    stream.store_anew();
    let removed: Vec<u64> =
        stream.progress().states.iter().filter(|s| s.bytes.is_none()).map(|s| s.key).collect();
    assert_eq!(removed.len(), 1, "the piece, which may be the damaged one");
    kept.states.clear();
    feed(&mut stream, 0, batch(&[(71, "a", 1.0)]), NOW).await;
    log.push((71, "a", 1.0));
    kept.commit(&mut stream);
    let sizes: Vec<usize> = kept.states.values().map(Bytes::len).collect();
    // Its key of 6 bytes, its first row, and the late rows.
    assert_eq!(sizes, [4 + 6 + 8 + 12 + 4 + 69 * 12]);
    let mut restored = kept.restore(&spec, query(&spec, SUMS));
    replay(&mut restored, &kept, &log).await;
    for stream in [&mut stream, &mut restored] {
        assert_eq!(lines(&drain(stream).await.results), ["1 71 71 1 #1 good"]);
        assert_eq!((stream.counts().late, stream.counts().dropped), (69, 0));
    }
}

#[tokio::test]
async fn p03_memory_of_functions_is_lost_by_key_or_stored_anew() {
    let spec = StreamSpec { window: None, ..spec(10, 0) };
    let sql = "SELECT device, v FROM m WHERE changed(v)";
    let mut stream = stream(spec.clone(), sql);
    let mut kept = Kept::default();
    feed(&mut stream, 0, batch(&[(1, "a", 1.0)]), NOW).await;
    kept.commit(&mut stream);
    let a = *kept.states.keys().next().unwrap();
    feed(&mut stream, 0, batch(&[(2, "b", 1.0)]), NOW).await;
    kept.commit(&mut stream);
    let stored = kept.states.clone();
    assert_eq!(stored.len(), 2);

    let mut restored = restore_without(&mut kept, &spec, sql, &[a]);
    let effects = feed(&mut restored, 0, batch(&[(3, "a", 1.0), (4, "b", 1.0)]), NOW).await;
    let results = effects.results;
    assert_eq!((results.len(), results[0].batch.num_rows(), results[0].first_seq), (1, 1, 3));
    assert_eq!(
        results[0].batch.column(0).as_string::<i32>().value(0),
        "a",
        "as if it were the first"
    );

    kept.states.clear();
    stream.store_anew();
    stream.apply(Event::Tick, NOW).await.unwrap();
    kept.commit(&mut stream);
    assert_eq!(kept.states, stored);
}
