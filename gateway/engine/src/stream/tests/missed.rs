//! A session that lasts and misses many rows: what a restart must know of these stays little to
//! write with each commit.

use super::kinds::session;
use super::panes::Kept;
use super::*;

/// Late rows.
const MISSED: usize = 300;

/// The row of every second in which one more comes for the first second, which is late.
fn rows(second: i64) -> Vec<Row> {
    let in_time = (second, "a", 1.0);
    if second == 1 { vec![in_time] } else { vec![in_time, (1, "a", 1_000.0)] }
}

#[tokio::test]
async fn a_long_session_writes_its_late_rows_a_few_at_a_time() {
    let window = session(10, None, &["device"]);
    let spec = StreamSpec { window: Some(window), ..spec(10, 0) };
    let (mut kept, mut log) = (Kept::default(), Vec::new());
    let mut stream = kept.restore(&spec, query(&spec, SUMS));
    for second in 1..=i64::try_from(MISSED).unwrap() + 1 {
        log.extend(rows(second));
        feed(&mut stream, 0, batch(&rows(second)), NOW).await;
        let before = kept.written;
        kept.commit(&mut stream);
        // Its key of 6 bytes, its first row, and at most 64 late rows of 12 bytes; once in 64
        // commits as many in a piece.
        let (own, piece) = (4 + 6 + 8 + 12 + 4 + 64 * 12, 4 + 8 + 4 + 64 * 12);
        assert!(kept.written - before <= own + piece, "{}", kept.written - before);
        // Killed, and started again: the rows that were late are still not in the session.
        if second % 97 == 0 {
            stream = kept.restore(&spec, query(&spec, SUMS));
            let position = kept.progress.as_ref().unwrap().replay_from[0];
            let from = usize::try_from(position).unwrap();
            let event = Event::Replay { table: 0, position, batch: batch(&log[from..]) };
            stream.apply(event, NOW).await.unwrap();
        }
    }
    // 300 late rows are four pieces and 44 in the window's own state.
    let sizes: Vec<usize> = kept.states.values().map(Bytes::len).collect();
    let (own, piece) = (34 + 44 * 12, 16 + 64 * 12);
    assert_eq!(sizes, [own, piece, piece, piece, piece]);
    // Each late row is written some 32 times in all; as one list it would be 150 times.
    assert!(kept.written < MISSED * 12 * 40, "{}", kept.written);
    let results = drain(&mut stream).await.results;
    assert_eq!(lines(&results), ["1 301 301 1 #1 good"]);
    kept.commit(&mut stream);
    assert!(kept.states.is_empty());
    let counts = stream.counts();
    assert_eq!((counts.late, counts.windowed, counts.open_bytes), (300, 301, 0));
}

#[tokio::test]
async fn pieces_that_fit_no_window_are_refused() {
    let window = session(10, None, &["device"]);
    let spec = StreamSpec { window: Some(window), ..spec(10, 0) };
    let mut kept = Kept::default();
    let mut stream = kept.restore(&spec, query(&spec, SUMS));
    for second in 1..=70 {
        feed(&mut stream, 0, batch(&rows(second)), NOW).await;
    }
    kept.commit(&mut stream);
    let state = kept.progress.as_ref().unwrap().state.clone();
    let pieces: Vec<(u64, Bytes)> = kept.states().split_off(1);
    assert_eq!(pieces.len(), 1);
    let cut = vec![kept.states()[0].clone(), (pieces[0].0, pieces[0].1.slice(..100))];
    for damaged in [pieces, cut] {
        let restored =
            Stream::restore_with(spec.clone(), query(&spec, SUMS), &state, &damaged, NOW);
        assert!(matches!(restored, Err(StreamError::Progress(_))), "{restored:?}");
    }
}
