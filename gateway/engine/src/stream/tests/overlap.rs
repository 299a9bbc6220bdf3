//! Windows that share rows: a row is held once, is in each of its windows that was open when it
//! came, and is counted once.

use super::*;

fn hopping(size: i64, step: i64) -> Window {
    Window::Hopping { size: size * SECOND, step: step * SECOND, offset: 0 }
}

fn cumulative(size: i64, step: i64) -> Window {
    Window::Cumulative { size: size * SECOND, step: step * SECOND }
}

/// Window, arrivals in order, windows closed (without the tail), late rows.
type Case = (Window, &'static [Row], &'static [&'static str], u64);

#[tokio::test]
async fn one_line_per_case() {
    let cases: [Case; 9] = [
        (hopping(10, 10), &[(1, "a", 1.0), (6, "a", 2.0), (12, "a", 4.0)], &["0 2 3 2 #1 good"], 0),
        (
            hopping(10, 5),
            &[(1, "a", 1.0), (6, "a", 2.0), (12, "a", 4.0)],
            &["-5 1 1 1 #1 good", "0 2 3 2 #2 good"],
            0,
        ),
        // 8 s comes when [0, 10) is over and [5, 15) is not: it is in the latter alone.
        (
            hopping(10, 5),
            &[(1, "a", 1.0), (11, "a", 2.0), (8, "a", 4.0), (16, "a", 8.0)],
            &["-5 1 1 1 #1 good", "0 1 1 1 #2 good", "5 2 6 2 #3 good"],
            0,
        ),
        // 4 s comes when all of its windows are over.
        (
            hopping(10, 5),
            &[(1, "a", 1.0), (16, "a", 8.0), (4, "a", 4.0)],
            &["-5 1 1 1 #1 good", "0 1 1 1 #2 good"],
            1,
        ),
        // No multiple of the step.
        (
            hopping(10, 3),
            &[(9, "a", 1.0), (12, "a", 2.0), (19, "a", 4.0)],
            &["0 1 1 1 #1 good", "3 2 3 2 #2 good", "6 2 3 2 #3 good", "9 2 3 2 #4 good"],
            0,
        ),
        // Windows without rows give no result.
        (
            hopping(4, 2),
            &[(1, "a", 1.0), (21, "a", 2.0), (26, "a", 4.0)],
            &["-2 1 1 1 #1 good", "0 1 1 1 #2 good", "18 1 2 2 #3 good", "20 1 2 2 #4 good"],
            0,
        ),
        (
            cumulative(12, 4),
            &[(1, "a", 1.0), (5, "a", 2.0), (9, "a", 4.0), (13, "a", 8.0)],
            &["0 1 1 1 #1 good", "0 2 3 2 #2 good", "0 3 7 4 #3 good"],
            0,
        ),
        // A running total is said at each step, whether or not it has changed.
        (
            cumulative(12, 4),
            &[(1, "a", 1.0), (13, "a", 8.0)],
            &["0 1 1 1 #1 good", "0 1 1 1 #2 good", "0 1 1 1 #3 good"],
            0,
        ),
        (
            cumulative(12, 4),
            &[(1, "a", 1.0), (5, "a", 2.0), (3, "a", 4.0), (8, "a", 8.0), (12, "a", 0.0)],
            &["0 1 1 1 #1 good", "0 3 7 2 #2 good", "0 4 15 8 #3 good"],
            0,
        ),
    ];
    for (window, rows, expected, late) in cases {
        let spec = StreamSpec { window: Some(window.clone()), ..spec(10, 0) };
        let mut stream = stream(spec, SUMS);
        let effects = feed(&mut stream, 0, batch(rows), NOW).await;
        assert_eq!(lines(&effects.results), expected, "{window:?} {rows:?}");
        let counts = stream.counts();
        assert_eq!((counts.late, counts.accepted), (late, rows.len() as u64), "{rows:?}");
        ledger_holds(&counts);
        drain(&mut stream).await;
        let counts = stream.counts();
        assert_eq!(counts.windowed, rows.len() as u64 - late, "each row is counted once");
        assert_eq!((counts.open_rows, counts.open_windows, counts.open_bytes), (0, 0, 0));
    }
}

#[tokio::test]
async fn open_windows_are_those_that_have_rows() {
    let spec = StreamSpec { window: Some(hopping(10, 2)), ..spec(10, 0) };
    let mut stream = stream(spec, SUMS);
    // 1 s is in the windows that end at 2, 4, 6, 8 and 10 s, of which the first is over with 3 s,
    // which is in those that end at 4 to 12 s.
    feed(&mut stream, 0, batch(&[(1, "a", 1.0)]), NOW).await;
    assert_eq!(stream.counts().open_windows, 5);
    feed(&mut stream, 0, batch(&[(3, "a", 1.0)]), NOW).await;
    assert_eq!(stream.counts().open_windows, 5);
    feed(&mut stream, 0, batch(&[(31, "a", 1.0)]), NOW).await;
    assert_eq!(stream.counts().open_windows, 5);
    assert_eq!(stream.counts().open_rows, 1);
}
