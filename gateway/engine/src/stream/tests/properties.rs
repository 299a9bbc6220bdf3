use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;

use super::kinds::{session, state};
use super::*;

fn arrivals() -> impl Strategy<Value = (Vec<i64>, Vec<usize>, Vec<usize>)> {
    (
        proptest::collection::btree_set(0_i64..200, 1..60),
        proptest::collection::vec(0_usize..8, 60),
        proptest::collection::vec(1_usize..7, 60),
    )
        .prop_map(|(times, swaps, cuts)| (times.into_iter().collect(), swaps, cuts))
}

/// One of each kind, of some ten seconds.
fn windows() -> impl Strategy<Value = Window> {
    prop_oneof![
        Just(Window::Tumbling { size: 10 * SECOND, offset: 0 }),
        Just(Window::Hopping { size: 10 * SECOND, step: 10 * SECOND, offset: 0 }),
        Just(Window::Hopping { size: 12 * SECOND, step: 4 * SECOND, offset: SECOND }),
        Just(Window::Hopping { size: 10 * SECOND, step: 3 * SECOND, offset: 0 }),
        Just(Window::Cumulative { size: 12 * SECOND, step: 4 * SECOND }),
        Just(session(9, None, &["device"])),
        Just(session(9, Some(14), &["device"])),
        Just(session(3, Some(5), &[])),
        Just(state("v >= 50", "v < 50", 25, &["device"])),
        Just(state("v >= 90", "v < 10", 1000, &[])),
        Just(Window::Sliding { size: 7 * SECOND, delay: 0 }),
        Just(Window::Sliding { size: 4 * SECOND, delay: 3 * SECOND }),
        Just(Window::Count { rows: 4, step: 4 }),
        Just(Window::Count { rows: 5, step: 2 }),
    ]
}

/// The results of rows that come in batches of `cuts` rows, with a restart before the batches that
/// `restarts` names.
async fn run_windows(
    window: &Window,
    rows: &[Row],
    cuts: &[usize],
    restarts: &[usize],
    lateness: i64,
) -> (Vec<String>, Counts) {
    let spec = StreamSpec { window: Some(window.clone()), ..spec(10, lateness) };
    let mut stream = stream(spec.clone(), SUMS);
    let (mut results, mut at) = (Vec::new(), 0);
    let mut stored: BTreeMap<u64, Bytes> = BTreeMap::new();
    for (index, cut) in cuts.iter().enumerate() {
        if restarts.contains(&index) {
            let saved = stream.progress();
            for change in &saved.states {
                match &change.bytes {
                    Some(bytes) => drop(stored.insert(change.key, bytes.clone())),
                    None => drop(stored.remove(&change.key)),
                }
            }
            let states: Vec<(u64, Bytes)> = stored.clone().into_iter().collect();
            let (query, saved) = (query(&spec, SUMS), Progress { states: vec![], ..saved });
            stream = Stream::restore_with(spec.clone(), query, &saved.state, &states, NOW).unwrap();
            let from = usize::try_from(saved.replay_from[0]).unwrap();
            for position in (from..at).step_by(5) {
                let batch = batch(&rows[position..at.min(position + 5)]);
                let event = Event::Replay { table: 0, position: position as u64, batch };
                results.extend(stream.apply(event, NOW).await.unwrap().results);
            }
            assert_eq!(stream.progress(), saved, "a restart changes nothing");
        }
        let end = (at + cut).min(rows.len());
        if at < end {
            results.extend(feed(&mut stream, 0, batch(&rows[at..end]), NOW).await.results);
        }
        at = end;
    }
    results.extend(drain(&mut stream).await.results);
    ledger_holds(&stream.counts());
    // How rows lie in memory does depend on batches.
    (lines(&results), Counts { open_bytes: 0, ..stream.counts() })
}

async fn run(rows: &[Row], cuts: &[usize], lateness: i64) -> (Vec<String>, Counts) {
    let tumbling = Window::Tumbling { size: 10 * SECOND, offset: 0 };
    run_windows(&tumbling, rows, cuts, &[], lateness).await
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_order_within_the_lateness_is_sorted_order((times, swaps, cuts) in arrivals()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let sorted: Vec<Row> = times.iter().map(|&t| (t, "a", t as f64)).collect();
        // Each row is put off until rows of up to 7 s later have come.
        let mut disordered: Vec<(i64, Row)> = sorted
            .iter()
            .zip(swaps.iter().cycle())
            .map(|(row, swap)| (row.0 + i64::try_from(*swap).unwrap(), *row))
            .collect();
        disordered.sort_by_key(|(arrival, _)| *arrival);
        let disordered: Vec<Row> = disordered.into_iter().map(|(_, row)| row).collect();
        let expected = runtime.block_on(run(&sorted, &[1000], 7));
        let got = runtime.block_on(run(&disordered, &cuts, 7));
        prop_assert_eq!(got.1.late, 0);
        prop_assert_eq!(&got.0, &expected.0);
        // By hand: one window per ten seconds that has rows, sums of whole numbers.
        let windows: BTreeSet<i64> = times.iter().map(|t| t / 10).collect();
        prop_assert_eq!(got.0.len(), windows.len());
    }

    #[test]
    fn neither_batches_nor_restarts_show(
        window in windows(),
        rows in proptest::collection::vec((0_i64..120, 0_usize..3, 0_u8..100), 1..60),
        cuts in proptest::collection::vec(1_usize..7, 60),
        restarts in proptest::collection::vec(0_usize..30, 0..3),
        lateness in 0_i64..30,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let rows: Vec<Row> =
            rows.into_iter().map(|(t, d, v)| (t, ["a", "b", "c"][d], f64::from(v))).collect();
        let run = |cuts: &[usize], restarts: &[usize]| {
            runtime.block_on(run_windows(&window, &rows, cuts, restarts, lateness))
        };
        let singly = run(&vec![1; rows.len()], &[]);
        prop_assert_eq!(singly.1.accepted, rows.len() as u64);
        prop_assert_eq!(&run(&[1000], &[]), &singly);
        prop_assert_eq!(&run(&cuts, &[]), &singly);
        let restarted = run(&cuts, &restarts);
        prop_assert_eq!(&restarted.0, &singly.0);
        prop_assert_eq!(restarted.1.windowed, singly.1.windowed);
        prop_assert_eq!(restarted.1.dropped, 0);
    }

    #[test]
    fn no_kind_but_count_shows_the_order_of_arrival(
        window in windows(),
        (times, swaps, cuts) in arrivals(),
        values in proptest::collection::vec((0_usize..3, 0_u8..100), 60),
    ) {
        prop_assume!(!matches!(window, Window::Count { .. }));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let rows = times.iter().zip(&values);
        let sorted: Vec<Row> =
            rows.map(|(t, (d, v))| (*t, ["a", "b", "c"][*d], f64::from(*v))).collect();
        let mut disordered: Vec<(i64, Row)> = sorted
            .iter()
            .zip(swaps.iter().cycle())
            .map(|(row, swap)| (row.0 + i64::try_from(*swap).unwrap(), *row))
            .collect();
        disordered.sort_by_key(|(arrival, _)| *arrival);
        let disordered: Vec<Row> = disordered.into_iter().map(|(_, row)| row).collect();
        let run = |rows: &[Row], cuts: &[usize]| {
            runtime.block_on(run_windows(&window, rows, cuts, &[], 7))
        };
        let (expected, got) = (run(&sorted, &[1000]), run(&disordered, &cuts));
        prop_assert_eq!(got.1.late, 0);
        prop_assert_eq!(&got.0, &expected.0);
    }

    #[test]
    fn tumbling_is_hopping_with_the_step_of_its_size(
        rows in proptest::collection::vec((0_i64..120, 0_usize..3, 0_u8..100), 1..60),
        lateness in 0_i64..30,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let rows: Vec<Row> =
            rows.into_iter().map(|(t, d, v)| (t, ["a", "b", "c"][d], f64::from(v))).collect();
        let hopping = Window::Hopping { size: 10 * SECOND, step: 10 * SECOND, offset: 0 };
        let hopping = runtime.block_on(run_windows(&hopping, &rows, &[5; 12], &[], lateness));
        prop_assert_eq!(hopping, runtime.block_on(run(&rows, &[5; 12], lateness)));
    }
}
