//! What functions remember, over batches, windows, failures and restarts.

use std::collections::BTreeMap;

use super::kinds::session;
use super::restart::Logs;
use super::*;

/// Device, value and sequence number of each result.
fn results(effects: &[Effects]) -> Vec<String> {
    let mut lines = Vec::new();
    for output in effects.iter().flat_map(|effects| &effects.results) {
        let (devices, values) = (output.batch.column(0), output.batch.column(1));
        for row in 0..output.batch.num_rows() {
            lines.push(format!(
                "{} {} #{}",
                devices.as_string::<i32>().value(row),
                values.as_primitive::<Float64Type>().value(row),
                output.first_seq + row as u64
            ));
        }
    }
    lines
}

/// Applies batches one after the other. After the batch `cut` the stream is thrown away, and built
/// again from the progress of the batch `durable` and from the logs, in batches of `size` rows.
async fn run(
    spec: &StreamSpec,
    sql: &str,
    batches: &[&[Row]],
    cut: Option<(usize, usize, usize)>,
) -> (Vec<String>, usize) {
    let mut stream = stream(spec.clone(), sql);
    let mut logs = Logs(vec![vec![]]);
    let mut effects: Vec<Effects> = Vec::new();
    let (mut states, mut durable) = (BTreeMap::new(), None);
    for (at, rows) in batches.iter().enumerate() {
        effects.push(stream.apply(logs.append(0, batch(rows)), NOW).await.unwrap());
        if cut.is_none_or(|(_, durable, _)| at <= durable) {
            let progress = stream.progress();
            stream.submitted();
            for StateChange { key, bytes } in &progress.states {
                match bytes {
                    Some(bytes) => states.insert(*key, bytes.clone()),
                    None => states.remove(key),
                };
            }
            durable = Some((progress, effects.len()));
        }
        if let Some((_, _, size)) = cut.filter(|(cut, ..)| *cut == at) {
            // What came after the durable progress was never delivered.
            let (progress, delivered) = durable.take().unwrap();
            assert!(progress.states.len() <= rows.len().max(2), "little is written");
            effects.truncate(delivered);
            let query = query(spec, sql);
            let states: Vec<_> = states.clone().into_iter().collect();
            stream =
                Stream::restore_with(spec.clone(), query, &progress.state, &states, NOW).unwrap();
            for event in logs.replay(0, progress.replay_from[0], size) {
                effects.push(stream.apply(event, NOW).await.unwrap());
            }
            effects.push(stream.apply(Event::Replayed, NOW).await.unwrap());
        }
    }
    ledger_holds(&stream.counts());
    let failures = effects.iter().map(|effects| effects.failures.len()).sum();
    (results(&effects), failures)
}

async fn same_wherever_it_is_cut(
    spec: &StreamSpec,
    sql: &str,
    batches: &[&[Row]],
    expected: &[&str],
    failures: usize,
) {
    assert_eq!(run(spec, sql, batches, None).await.0, expected, "uncut");
    for cut in 0..batches.len() {
        for durable in 0..=cut {
            // A failing batch fails as it was cut; sizes matter only where none does.
            for size in if failures == 0 { 1..4 } else { 2..3 } {
                let cut = Some((cut, durable, size));
                assert_eq!(
                    run(spec, sql, batches, cut).await,
                    (expected.iter().map(ToString::to_string).collect(), failures),
                    "{cut:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn changed_tells_changes_over_three_batches_and_a_restart() {
    let spec = StreamSpec { window: None, ..spec(10, 0) };
    let batches: [&[Row]; 3] = [
        &[(1, "a", 1.0), (2, "b", 1.0)],
        &[(3, "a", 1.0), (4, "b", 2.0), (5, "a", f64::NAN)],
        &[(6, "a", 1.0), (7, "b", 2.0), (8, "b", 1.0)],
    ];
    let sql = "SELECT device, v FROM m WHERE changed(v)";
    let expected = ["a 1 #1", "b 1 #2", "b 2 #3", "b 1 #4"];
    same_wherever_it_is_cut(&spec, sql, &batches, &expected, 0).await;
}

#[tokio::test]
async fn rows_that_fail_are_not_remembered() {
    let spec = StreamSpec { window: None, ..spec(10, 0) };
    let batches: [&[Row]; 4] = [
        &[(1, "a", 1.0), (2, "b", 1.0)],
        &[(3, "b", 5.0), (4, "a", 7.0)],
        &[(5, "a", 1.0), (6, "b", 5.0)],
        &[(7, "a", 2.0), (8, "b", 5.0)],
    ];
    // Had 7 been remembered, the 1 behind it would be a change.
    let sql = "SELECT device, v + 0 * (1 / (CAST(v AS BIGINT) - 7)) AS v FROM m WHERE changed(v)";
    let expected = ["a 1 #1", "b 1 #2", "b 5 #3", "a 2 #4"];
    same_wherever_it_is_cut(&spec, sql, &batches, &expected, 1).await;
}

#[tokio::test]
async fn an_integral_goes_on_from_window_to_window_and_over_a_restart() {
    let spec = spec(10, 0);
    let batches: [&[Row]; 5] = [
        &[(2, "a", 4.0), (4, "b", 1.0)],
        &[(12, "b", 3.0), (19, "a", 2.0)],
        &[(25, "b", 0.0), (41, "b", 8.0)],
        &[(45, "a", 1.0)],
        &[(50, "a", 1.0), (51, "b", 8.0)],
    ];
    let sql = "SELECT device, integral(v, time) AS v FROM m GROUP BY device";
    let expected = [
        // 4 for 8 s, 1 for 6 s.
        "a 32 #1", "b 6 #2",
        // b: 1 until 12, 3 from then on; a: 4 until 19, then 2.
        "b 26 #3", "a 38 #4",
        // 3 until 25. In the window from 30 on there is no row.
        "b 15 #5", // b: 0 until 41, then 8; a: the 2 of 19 until 45, then 1.
        "b 72 #6", "a 15 #7",
    ];
    same_wherever_it_is_cut(&spec, sql, &batches, &expected, 0).await;
}

/// Sessions begin and end with their rows, so nothing is carried, and all that are over together are
/// computed in one execution.
#[tokio::test]
async fn in_a_session_time_counts_from_its_first_row_to_its_last() {
    let spec = StreamSpec { window: Some(session(5, None, &["device"])), ..spec(10, 0) };
    let sql = "SELECT device, duration_where(v > 2, time) AS v FROM m GROUP BY device";
    assert!(query(&spec, sql).computes_together());
    let rows: &[Row] = &[
        (1, "a", 4.0),
        (2, "b", 3.0),
        (3, "a", 1.0),
        (5, "b", 3.0),
        (7, "a", 1.0),
        (20, "a", 4.0),
        (24, "a", 4.0),
        (40, "a", 0.0),
        (41, "b", 0.0),
    ];
    let expected = ["b 3 #1", "a 2 #2", "a 4 #3"];
    same_wherever_it_is_cut(&spec, sql, &[&rows[..4], &rows[4..6], &rows[6..]], &expected, 0).await;
}
