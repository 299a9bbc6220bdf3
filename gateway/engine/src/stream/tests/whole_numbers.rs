//! Whole numbers that do not fit fail their window and no other, and states of versions that wrapped
//! around are finished by plans that do.

use super::panes::{ALWAYS, EAGER, Kept, hopping, texts, with};
use super::*;
use crate::stream::piece::Limits;

/// 2^62: two of them do not fit.
const HALF: f64 = 4_611_686_018_427_387_904.0;

const SUM: &str = "SELECT sum(CAST(v AS BIGINT)) AS s FROM m";
const PRODUCT: &str = "SELECT max(CAST(v AS BIGINT) * 2) AS s FROM m";

/// Folded as soon as can be, or computed from the rows.
fn each_way(spec: &StreamSpec, sql: &str) -> [Stream; 2] {
    let folded = with(stream(spec.clone(), sql), Some(EAGER));
    let query = query(spec, sql).recomputed();
    [folded, Stream::new(spec.clone(), query, NOW).unwrap()]
}

#[tokio::test]
async fn a_window_that_does_not_fit_fails_and_the_others_go_on() {
    let rows = [(1, "a", HALF), (5, "a", HALF), (11, "a", 7.0), (12, "a", 8.0), (21, "a", HALF)];
    for (sql, told, results) in [
        (
            SUM,
            "sum(m.v)`: 9223372036854775808 does not fit 64 bits",
            // 15, and one half alone.
            ["#1 good 10000000..20000000 15", "#2 good 20000000..30000000 4611686018427387904"],
        ),
        (
            "SELECT sum(CAST(v AS BIGINT)) AS s FROM m HAVING sum(CAST(v AS BIGINT)) + 1 > 0",
            "sum(m.v)`: 9223372036854775808 does not fit 64 bits",
            ["#1 good 10000000..20000000 15", "#2 good 20000000..30000000 4611686018427387904"],
        ),
    ] {
        for mut stream in each_way(&spec(10, 0), sql) {
            let mut effects = feed(&mut stream, 0, batch(&rows), NOW).await;
            let last = drain(&mut stream).await;
            effects.results.extend(last.results);
            effects.failures.extend(last.failures);
            assert_eq!(texts(&effects.results), results, "{sql}");
            let [failure] = &effects.failures[..] else { panic!("{:?}", effects.failures) };
            let failure = failure.to_string();
            assert!(failure.starts_with("SQL failed in window 0..10000000 µs: `"), "{failure}");
            assert!(failure.contains(told), "{failure}");
            let counts = stream.counts();
            assert_eq!((counts.accepted, counts.windowed, counts.failed), (5, 3, 2), "{sql}");
            ledger_holds(&counts);
        }
    }
}

/// The row itself does not fit: each window that it is in fails, and it is counted once.
#[tokio::test]
async fn a_row_that_does_not_fit_fails_all_of_its_windows() {
    let spec = StreamSpec { window: Some(hopping(20, 10)), ..spec(20, 0) };
    let rows = [(1, "a", 1.0), (11, "a", HALF), (12, "a", 3.0), (31, "a", 4.0)];
    for mut stream in each_way(&spec, PRODUCT) {
        let mut effects = feed(&mut stream, 0, batch(&rows), NOW).await;
        let last = drain(&mut stream).await;
        effects.results.extend(last.results);
        effects.failures.extend(last.failures);
        assert_eq!(
            texts(&effects.results),
            [
                "#1 good -10000000..10000000 2",
                "#2 good 20000000..40000000 8",
                "#3 good 30000000..50000000 8"
            ]
        );
        let failures: Vec<String> = effects.failures.iter().map(ToString::to_string).collect();
        let told = "`m.v * 2`: 4611686018427387904 * 2 does not fit 64 bits";
        assert_eq!(failures.len(), 2, "{failures:?}");
        for (failure, window) in failures.iter().zip(["0..20000000", "10000000..30000000"]) {
            assert!(failure.contains(window) && failure.contains(told), "{failure}");
        }
        let counts = stream.counts();
        // The first row's last window fails too; those of 11 and 12 have one more in common.
        assert_eq!((counts.windowed, counts.failed, counts.open_rows), (1, 3, 0));
        ledger_holds(&counts);
    }
}

/// What a version before made of SQL, as CRC32 of its plan: recorded with that version.
const BEFORE: [(&str, u32); 4] = [
    ("SELECT sum(CAST(v AS BIGINT)) AS s FROM m", 818_787_922),
    ("SELECT device, sum(seq) AS s, avg(seq + 1) AS a FROM m GROUP BY device", 2_962_173_364),
    (
        "SELECT max(seq * 2 - seq) AS x, min(-CAST(v AS INT)) AS y FROM m WHERE seq + 1 > 2",
        702_647_976,
    ),
    ("SELECT sum(CAST(v AS BIGINT) + 1) AS s FROM m", 900_308_587),
];

#[test]
fn plans_of_before_are_those_of_before() {
    let spec = spec(10, 0);
    let sql = Sql::new(64 << 20).unwrap();
    let before = sql.as_before().unwrap();
    for (text, fingerprint) in BEFORE {
        assert_eq!(spec.plan(&before, text).unwrap().fingerprint(), fingerprint, "{text}");
        assert_ne!(spec.plan(&sql, text).unwrap().fingerprint(), fingerprint, "{text}");
    }
    // Other states are what they were, and go on.
    let same = "SELECT device, avg(v) AS a, count(*) AS n, max(seq) AS x FROM m GROUP BY device";
    let both = [&sql, &before].map(|sql| spec.plan(sql, same).unwrap().fingerprint());
    assert_eq!(both[0], both[1]);
}

/// Windows that a version before left open are ended with its sums, and nothing is dropped.
#[tokio::test]
async fn states_of_before_are_finished_by_a_plan_of_before() {
    let spec = spec(100, 0);
    let (sql, text) = (Sql::new(64 << 20).unwrap(), "SELECT sum(seq) AS s FROM m");
    let before = spec.plan(&sql.as_before().unwrap(), text).unwrap();
    let before = Stream::new(spec.clone(), before, NOW).unwrap();
    let mut before = with(before, Some(ALWAYS));
    let mut kept = Kept::default();
    // Each batch has the numbers 1, 2, …
    feed(&mut before, 0, batch(&[(1, "a", 1.0), (2, "a", 2.0), (3, "a", 3.0)]), NOW).await;
    let before = &mut with(before, Some(Limits::new(1 << 30)));
    feed(before, 0, batch(&[(4, "a", 4.0)]), NOW).await;
    kept.commit(before);
    let state = kept.progress.as_ref().unwrap().state.clone();
    let now = spec.plan(&sql, text).unwrap();
    assert_eq!(Stream::outdated(&spec, &now, &state).unwrap().as_deref(), Some(text));
    let old = spec.plan_old(&sql, text, &[], &state).unwrap();
    let mut old = kept.restore(&spec, old);
    let event = Event::Replay { table: 0, position: 3, batch: batch(&[(4, "a", 4.0)]) };
    old.apply(event, NOW).await.unwrap();
    // 1 + 2 + 3, and 1 again.
    assert_eq!(texts(&old.close_all().await.results), ["#1 good 0..100000000 7"]);
    kept.commit(&mut old);
    let mut new = kept.restore(&spec, now);
    feed(&mut new, 0, batch(&[(5, "a", 5.0), (6, "a", 6.0)]), NOW).await;
    assert_eq!(texts(&drain(&mut new).await.results), ["#2 good 0..100000000 3"]);
    let counts = new.counts();
    assert_eq!((counts.accepted, counts.windowed, counts.dropped), (6, 6, 0));
    // States of this version are finished by its own plans.
    kept.commit(&mut new);
    let state = kept.progress.as_ref().unwrap().state.clone();
    let own = spec.plan_old(&sql, text, &[], &state).unwrap();
    assert_eq!(own.fingerprint(), spec.plan(&sql, text).unwrap().fingerprint());
}

/// What is beyond 64 bits on the way is stored, and is none in the end.
#[tokio::test]
async fn a_stored_sum_may_be_beyond_64_bits() {
    let spec = spec(100, 0);
    let mut stream = with(stream(spec.clone(), SUM), Some(ALWAYS));
    let mut kept = Kept::default();
    feed(&mut stream, 0, batch(&[(1, "a", HALF), (2, "a", HALF)]), NOW).await;
    kept.commit(&mut stream);
    assert_eq!((kept.panes(), kept.progress.as_ref().unwrap().replay_from[0]), (1, 2));
    let mut stream = kept.restore(&spec, query(&spec, SUM));
    feed(&mut stream, 0, batch(&[(3, "a", -HALF)]), NOW).await;
    let results = texts(&drain(&mut stream).await.results);
    assert_eq!(results, ["#1 good 0..100000000 4611686018427387904"]);
    assert_eq!(stream.counts().dropped, 0);
}
