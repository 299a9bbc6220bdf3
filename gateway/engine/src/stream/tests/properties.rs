use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn arrivals() -> impl Strategy<Value = (Vec<i64>, Vec<usize>, Vec<usize>)> {
    (
        proptest::collection::btree_set(0_i64..200, 1..60),
        proptest::collection::vec(0_usize..8, 60),
        proptest::collection::vec(1_usize..7, 60),
    )
        .prop_map(|(times, swaps, cuts)| (times.into_iter().collect(), swaps, cuts))
}

async fn run(rows: &[Row], cuts: &[usize], lateness: i64) -> (Vec<String>, Counts) {
    let mut stream = stream(spec(10, lateness), SUMS);
    let (mut results, mut at) = (Vec::new(), 0);
    for cut in cuts {
        let end = (at + cut).min(rows.len());
        if at < end {
            results.extend(feed(&mut stream, 0, batch(&rows[at..end]), NOW).await.results);
        }
        at = end;
    }
    results.extend(drain(&mut stream).await.results);
    ledger_holds(&stream.counts());
    (lines(&results), stream.counts())
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
    fn batching_does_not_show(
        rows in proptest::collection::vec((0_i64..120, 0_usize..3, 0_u8..100), 1..60),
        cuts in proptest::collection::vec(1_usize..7, 60),
        lateness in 0_i64..30,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let rows: Vec<Row> =
            rows.into_iter().map(|(t, d, v)| (t, ["a", "b", "c"][d], f64::from(v))).collect();
        let singly = runtime.block_on(run(&rows, &vec![1; rows.len()], lateness));
        prop_assert_eq!(&runtime.block_on(run(&rows, &[1000], lateness)), &singly);
        prop_assert_eq!(&runtime.block_on(run(&rows, &cuts, lateness)), &singly);
    }
}
