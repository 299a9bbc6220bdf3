//! A store of format 1, as the version before the ring left it: `format-1.redb` is such a file.
//!
//! It holds what six commits brought: twelve log rows of table `readings`, twelve records for each of
//! the sinks `refused` and `taken`, the first two of `taken` delivered, and the progress of `results`.

use super::*;
use crate::store::files::TREE;

const OLD: &[u8] = include_bytes!("format-1.redb");

fn old_layout() -> Layout {
    let readers = vec!["results".into()];
    Layout {
        tables: vec![TableLayout { name: "readings".into(), readers, history_us: None }],
        sinks: vec![sink("refused"), sink("taken")],
    }
}

/// The records of a sink as that version made them.
fn expected(sink: &str, numbers: std::ops::RangeInclusive<u64>) -> Vec<(u64, String, i64)> {
    let alphabet = "abcdefghijklmnopqrstuvwxyz";
    numbers
        .map(|n| {
            let at = usize::try_from(n).unwrap();
            let pad = &alphabet[at..at + at];
            let body = format!("{{\"to\":\"{sink}\",\"n\":{n},\"pad\":\"{pad}\"}}");
            (n, body, i64::try_from(n.div_ceil(2)).unwrap() * 1_000_000)
        })
        .collect()
}

async fn check(store: &Store, run: &str) {
    for (name, first) in [("refused", 1), ("taken", 3)] {
        let found: Vec<_> = waiting(store, name)
            .await
            .into_iter()
            .map(|row| {
                assert_eq!((row.epoch, row.seq, &*row.stream), (1_000, row.position, "results"));
                (row.position, String::from_utf8(row.body.to_vec()).unwrap(), row.created)
            })
            .collect();
        assert_eq!(found, expected(name, first..=12), "{run}");
    }
    assert_eq!((store.backlog("taken").delivered, store.cursor("taken")), (2, 2), "{run}");
    let log = store.read_log("readings", 0, 100).await.unwrap();
    let rows: usize = log.iter().map(|(_, batch)| batch.num_rows()).sum();
    assert_eq!((rows, store.log_end("readings"), store.epoch()), (12, 12, 1_000), "{run}");
    let progress = store.progress("results").unwrap();
    assert_eq!(progress.processed, [("readings".into(), 12)], "{run}");
    assert_eq!(store.stats().corrupt_rows, 0, "{run}");
}

#[tokio::test]
async fn a_store_of_format_1_opens_with_all_that_it_holds() {
    let disk = FakeDisk::default();
    disk.place(TREE, OLD);
    let (store, recovery) = open_with(&disk, &options(), old_layout()).unwrap();
    assert_eq!((recovery.upgraded_from, recovery.created), (Some(1), false));
    assert_eq!(recovery.corrupt_records, 0);
    check(&store, "upgraded").await;
    let outbox = vec![OutboxRows { stream: "results".into(), ..results("taken", 13..14, 1) }];
    commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    store.close().await.unwrap();
    let (store, recovery) = open_with(&disk, &options(), old_layout()).unwrap();
    assert_eq!(recovery, Recovery { clean: true, ..Recovery::default() });
    assert_eq!(waiting(&store, "taken").await.len(), 11);
}

/// F4: the power fails at any moment of the upgrade.
#[tokio::test]
async fn f04_an_upgrade_that_crashes_is_begun_again() {
    let whole = FakeDisk::default();
    whole.place(TREE, OLD);
    drop(open_with(&whole, &options(), old_layout()).unwrap());
    let operations = whole.operations();
    assert!(operations > 30, "{operations}");
    for at in 1..=operations {
        let disk = FakeDisk::default();
        disk.place(TREE, OLD);
        disk.crash_at(at);
        drop(open_with(&disk, &options(), old_layout()));
        let cut = disk.power_cut(Some(at * 7_919));
        let run = format!("cut at {at}");
        let opened = open_with(&cut, &options(), old_layout());
        let (store, recovery) = opened.unwrap_or_else(|error| panic!("{run}: {error}"));
        assert_eq!((&recovery.quarantined, recovery.corrupt_records), (&None, 0), "{run}");
        check(&store, &run).await;
    }
}

/// A store of format 2, as a gateway of the version before states left it when it was killed: tree,
/// ring and two shelves. Its device had counted to 39 four times a second, its stream had given nine
/// seconds to a sink that was away; `tidegate store export` of that version says what it held.
const OLD_FILES: [(&str, &[u8]); 4] = [
    ("store.redb", include_bytes!("format-2/store.redb")),
    ("store.ring", include_bytes!("format-2/store.ring")),
    ("store.shelf-00000001", include_bytes!("format-2/store.shelf-00000001")),
    ("store.shelf-00000004", include_bytes!("format-2/store.shelf-00000004")),
];

#[tokio::test]
async fn a_store_of_format_2_opens_with_all_that_it_holds() {
    let readers = vec!["sums".into()];
    let table = TableLayout { name: "made".into(), readers, history_us: None };
    let layout = Layout { tables: vec![table], sinks: vec![sink("away")] };
    let disk = FakeDisk::default();
    for (name, bytes) in OLD_FILES {
        disk.place(name, bytes);
    }
    for (run, upgraded) in [("first", Some(2)), ("then", None)] {
        let (store, recovery) = open_with(&disk, &options(), layout.clone()).unwrap();
        assert_eq!((recovery.upgraded_from, recovery.corrupt_records), (upgraded, 0), "{run}");
        assert_eq!((recovery.progress_lost, store.epoch()), (vec![], 1_795_992_632), "{run}");
        let found = waiting(&store, "away").await;
        let found: Vec<_> = found.iter().map(|row| (row.seq, row.body.clone())).collect();
        let expected = (1..=9_u64).map(|seq| {
            let body = format!(
                "{{\"_id\":\"gw/1795992632/sums/{seq}\",\"_quality\":\"good\",\
                 \"time\":\"2026-11-29T22:50:{}.000000Z\",\"c\":4,\"lo\":{},\"hi\":{}}}",
                seq + 32,
                seq * 4 - 4,
                seq * 4 - 1
            );
            (seq, Bytes::from(body))
        });
        assert_eq!(found, expected.collect::<Vec<_>>(), "{run}");
        let log = store.read_log("made", 0, 100).await.unwrap();
        let numbers: Vec<i64> = log
            .iter()
            .flat_map(|(_, batch)| {
                batch["n"].as_primitive::<arrow::datatypes::Int64Type>().values()
            })
            .copied()
            .collect();
        assert_eq!((numbers, store.log_end("made")), (vec![36, 37, 38, 39], 40), "{run}");
        assert_eq!(store.count("source/made/accepted"), 40, "{run}");
        assert_eq!(store.states("sums").await.unwrap(), StoredStates::default(), "{run}");
        store.close().await.unwrap();
    }
}
