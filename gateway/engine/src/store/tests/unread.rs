//! A device that gives no answer when it is read: for a while, for ever, at a start. F5, F6, F7; P3, P4.

use super::super::unread::PATIENCE;
use super::*;

/// Everything of a file.
const ALL: std::ops::Range<u64> = 0..u64::MAX;

/// A store with 40 results for sink `a`, of which the oldest are on shelves, and 40 rows of `t`.
async fn filled(disk: &FakeDisk) -> Store {
    let (store, _) = open(disk).unwrap();
    for step in 0..40 {
        let (rows, outbox) =
            (vec![log_rows(step..step + 1)], vec![results("a", step..step + 1, 1)]);
        commit(&store, Commit { rows, outbox, ..Commit::default() }).await.unwrap();
    }
    assert!(disk.names().iter().any(|name| name.starts_with("store.shelf")), "{:?}", disk.names());
    store
}

/// So many seconds, with a flush in each.
async fn seconds(store: &Store, count: u32) {
    for _ in 0..count {
        store.flush();
        store.try_again();
        // The first may be answered before what came with it is done.
        store.alive().await.unwrap();
        store.alive().await.unwrap();
    }
}

/// F7: while shelves give no answer nothing is passed over, dropped or counted, and commits go on.
#[tokio::test]
async fn f07_a_device_that_gives_no_answer_for_a_while_costs_nothing() {
    let disk = FakeDisk::default();
    let bounded = SinkLayout { max_records: Some(30), ..sink("a") };
    let store = filled(&disk).await;
    let taken = store.next("a", 0, 5, 1 << 20).await.unwrap();
    assert_eq!(bodies(&taken), [0, 1, 2, 3, 4]);

    disk.set_unread(&[("store.shelf", ALL)]);
    store.delivered("a", 3);
    store.reject("a", 5, "no");
    store.relayout(Layout { sinks: vec![bounded, sink("b")], ..layout() }, NO_BOUND).await.unwrap();
    let (next, log) = (store.next("a", 5, 9, 1 << 20), store.read_log("t", 0, 5));
    tokio::pin!(next, log);
    tokio::select! {
        biased;
        rows = &mut next => panic!("{rows:?}"),
        rows = &mut log => panic!("{rows:?}"),
        () = seconds(&store, PATIENCE - 1) => {}
    }
    put(&store, "b", 0..1).await;
    let why = store.stats().unread.unwrap();
    assert!(why.contains("os error 5"), "{why}");
    let backlog = store.backlog("a");
    assert_eq!((store.cursor("a"), backlog.dropped, backlog.lost, backlog.rejected), (0, 0, 0, 0));

    disk.set_unread(&[]);
    seconds(&store, 2).await;
    // Three delivered, one refused with what was before it, five dropped for the bound of thirty.
    assert_eq!(bodies(&next.await.unwrap())[0], 5);
    let backlog = store.backlog("a");
    assert_eq!((backlog.delivered, backlog.rejected, backlog.dropped), (4, 1, 5));
    assert_eq!((backlog.records, backlog.lost, store.stats().unread), (30, 0, None));
    assert_eq!(log.await.unwrap()[0].0, 0);
    assert_eq!(logged(&store, 0).await, (0..40).collect::<Vec<_>>());
    let stats = store.stats();
    assert_eq!((stats.corrupt_records, stats.corrupt_rows), (0, 0));
    assert_eq!(store.rejected("a", 9).await.unwrap()[0].row.seq, 4);
}

/// F7: what stays without an answer while the device takes writes is damage at last: exactly its rows.
#[tokio::test]
async fn f07_a_part_that_stays_bad_costs_its_rows() {
    let disk = FakeDisk::default();
    let store = filled(&disk).await;
    // The first run of `a`'s shelf: it holds the first rows and nothing else.
    disk.set_unread(&[("store.shelf-00000001", 0..1)]);
    let next = store.next("a", 0, 100, 1 << 20);
    tokio::pin!(next);
    tokio::select! {
        biased;
        rows = &mut next => panic!("{rows:?}"),
        () = seconds(&store, PATIENCE - 1) => {}
    }
    seconds(&store, 3).await;
    let rows = next.await.unwrap();
    let first = bodies(&rows)[0];
    assert!(first > 0 && first < 40, "{first}");
    store.delivered("a", 40);
    settle(&store).await;
    let backlog = store.backlog("a");
    assert_eq!((backlog.lost, backlog.delivered), (first, 40 - first));
    assert_eq!(store.stats().corrupt_rows, first);
}

/// F7: a device that takes no writes either has told nothing: however long it lasts nothing is given up.
#[tokio::test]
async fn f07_a_device_that_is_away_costs_nothing_however_long() {
    let disk = FakeDisk::default();
    let store = filled(&disk).await;
    disk.set_unread(&[("store.shelf", ALL)]);
    disk.set_broken(&["store."]);
    let ticket = store.submit(Commit { outbox: vec![results("b", 0..1, 1)], ..Commit::default() });
    let ticket = ticket.await.unwrap();
    let next = store.next("a", 0, 100, 1 << 20);
    tokio::pin!(next);
    tokio::select! {
        biased;
        rows = &mut next => panic!("{rows:?}"),
        () = seconds(&store, 5 * PATIENCE) => {}
    }
    assert!(store.stats().stalled.is_some());
    disk.set_broken(&[]);
    disk.set_unread(&[]);
    seconds(&store, 2).await;
    assert_eq!(bodies(&next.await.unwrap())[0], 0);
    ticket.await.unwrap();
    assert_eq!(store.stats().corrupt_records, 0);
}

fn impatient() -> StoreOptions {
    StoreOptions { impatient: true, ..options() }
}

/// F5, F7: a start waits for a device that gives no answer, and does without at last: whatever file it is in, the
/// store opens, the rest is there, and what is not is counted.
#[tokio::test]
async fn f07_a_bad_sector_does_not_keep_the_store_closed() {
    let cases: [&[(&str, std::ops::Range<u64>)]; 7] = [
        &[("store.ring", 0..4096)],
        &[("store.ring", 20_480..24_576)],
        &[("store.redb", 0..512)],
        &[("store.redb", 8192..12_288)],
        &[("store.shelf-00000001", 0..4096)],
        &[("store.identity", ALL)],
        &[("store.epoch", ALL), ("store.ring", 0..4096)],
    ];
    for unread in cases {
        let what = format!("{unread:?}");
        let disk = FakeDisk::default();
        drop(filled(&disk).await);
        let disk = disk.power_cut(None);
        disk.set_unread(unread);
        let waits = !unread[0].0.starts_with("store.shelf");
        match open(&disk) {
            Err(_) => assert!(waits, "{what}"),
            Ok((store, _)) => {
                assert!(!waits, "{what}");
                store.close().await.unwrap();
            }
        }
        let (store, recovery) =
            open_with(&disk, &impatient(), layout()).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(!recovery.created, "{what}");
        // What lies on shelves is read while it runs, with a patience of its own.
        tokio::select! {
            rows = store.next("a", 0, 100, 1 << 20) => assert!(!rows.unwrap().is_empty(), "{what}"),
            () = seconds(&store, PATIENCE + 2) => {}
        }
        let rows = waiting(&store, "a").await;
        let seqs: Vec<u64> = rows.iter().map(|row| row.seq).collect();
        assert_eq!(bodies(&rows), seqs, "{what}");
        assert!(seqs.is_sorted(), "{what}: {seqs:?}");
        let missing = 40 - seqs.len() as u64;
        assert!(missing < 40, "{what}");
        if missing > 0 {
            assert!(store.stats().corrupt_rows >= missing || recovery.newest_lost, "{what}");
        }
        put(&store, "a", 40..41).await;
        assert_eq!(waiting(&store, "a").await.last().unwrap().seq, 40, "{what}");
    }
}

/// P4: a tree that is damaged on a disk that is full is made anew: damaged files from before give way, then the
/// reserve.
#[tokio::test]
async fn f06_a_damaged_store_opens_on_a_full_disk() {
    let disk = FakeDisk::default();
    drop(filled(&disk).await);
    let disk = disk.power_cut(None);
    disk.place("store.redb.quarantine-1", &vec![7; 2 << 20]);
    disk.edit("store.redb", |bytes| bytes[..512].fill(0x5a));
    disk.set_room(0);
    let (store, recovery) = open(&disk).unwrap();
    assert!(recovery.salvaged, "{recovery:?}");
    assert_eq!(bodies(&waiting(&store, "a").await), (0..40).collect::<Vec<_>>());
    let kept = disk.contents().into_iter().filter(|(name, _)| name.contains("quarantine-"));
    assert!(kept.map(|(_, bytes)| bytes.len()).all(|bytes| bytes < 2 << 20));
}
