//! Damage on the device: values, states, structure, length. F5, A51; P3.

use redb::ReadableTable;

use super::fake::Dice;
use super::*;
use crate::store::format::{FORMAT, Kind, Meta, key, seal};
use crate::store::recovery::{LIVE, RECORDS};

/// Changes one stored value behind the store's back; the file's own structure stays right.
fn tamper(disk: &FakeDisk, key: &[u8], change: impl FnOnce(&mut Vec<u8>)) {
    struct Backend(Box<dyn redb::StorageBackend>);
    impl std::fmt::Debug for Backend {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Backend")
        }
    }
    impl redb::StorageBackend for Backend {
        fn len(&self) -> std::io::Result<u64> {
            self.0.len()
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
            self.0.read(offset, out)
        }
        fn set_len(&self, len: u64) -> std::io::Result<()> {
            self.0.set_len(len)
        }
        fn sync_data(&self) -> std::io::Result<()> {
            self.0.sync_data()
        }
        fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
            self.0.write(offset, data)
        }
    }
    let backend = Backend(disk.open(LIVE, false).unwrap());
    let db = redb::Builder::new().create_with_backend(backend).unwrap();
    let txn = db.begin_write().unwrap();
    {
        let mut records = txn.open_table(RECORDS).unwrap();
        let mut value = records.get(key).unwrap().unwrap().value().to_vec();
        change(&mut value);
        records.insert(key, value.as_slice()).unwrap();
    }
    txn.commit().unwrap();
}

#[expect(clippy::ptr_arg, reason = "the shape that `tamper` takes")]
fn flip_last(value: &mut Vec<u8>) {
    *value.last_mut().unwrap() ^= 1;
}

/// Ten values of two rows in each of `a`, `b` and the log; the first four rows of `a` delivered.
async fn image() -> FakeDisk {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    for n in (0..20).step_by(2) {
        let outbox = vec![results("a", n..n + 2, 1), results("b", n..n + 2, 1)];
        let rows = vec![log_rows(n..n + 2)];
        commit(&store, Commit { rows, outbox, ..Commit::default() }).await.unwrap();
    }
    store.delivered("a", 4);
    let progress = Some(progress(b"state", 20, 0));
    commit(&store, Commit { progress, ..Commit::default() }).await.unwrap();
    store.close().await.unwrap();
    disk
}

#[tokio::test]
async fn f05_a_bad_value_costs_its_rows_and_no_others() {
    let disk = image().await;
    tamper(&disk, &key(Kind::Outbox, "a", 9), flip_last);
    tamper(&disk, &key(Kind::Log, "t", 6), flip_last);
    tamper(&disk, &key(Kind::Log, "t", 18), |value| value.truncate(3));
    let (store, recovery) = open(&disk).unwrap();
    assert_eq!(recovery, Recovery::default());
    for _ in 0..2 {
        assert_eq!(
            bodies(&waiting(&store, "a").await),
            [&[4, 5, 6, 7][..], &[10, 11, 12, 13, 14, 15, 16, 17, 18, 19]].concat()
        );
        assert_eq!(bodies(&waiting(&store, "b").await), (0..20).collect::<Vec<_>>());
        let left: Vec<u64> = (0..18).filter(|n| *n != 6 && *n != 7).collect();
        assert_eq!(logged(&store, 0).await, left);
        let stats = store.stats();
        assert_eq!((stats.corrupt_records, stats.corrupt_rows), (3, 6), "each is counted once");
    }
    assert!(disk.names().contains(&"quarantine".to_owned()), "copies are kept");
    store.delivered("a", 20);
    settle(&store).await;
    let backlog = store.backlog("a");
    assert_eq!((backlog.delivered, backlog.lost, backlog.records), (18, 2, 0));
}

#[tokio::test]
async fn f05_a_value_under_another_position_is_no_value() {
    let disk = image().await;
    let mut moved = Vec::new();
    tamper(&disk, &key(Kind::Outbox, "b", 3), |value| {
        moved.clone_from(value);
    });
    tamper(&disk, &key(Kind::Outbox, "a", 7), |value| {
        value.clone_from(&moved);
    });
    let (store, _) = open(&disk).unwrap();
    assert_eq!(bodies(&waiting(&store, "a").await)[..4], [4, 5, 8, 9]);
    assert_eq!(store.stats().corrupt_rows, 2);
}

#[tokio::test]
async fn lost_progress_raises_the_epoch_so_that_no_id_repeats() {
    for kind in [Kind::Progress, Kind::Meta] {
        let disk = image().await;
        let name = if kind == Kind::Meta { "" } else { "s" };
        tamper(&disk, &key(kind, name, 0), flip_last);
        let (store, recovery) = open(&disk).unwrap();
        assert_eq!(store.epoch(), 8);
        assert_eq!(recovery.corrupt_records, 1);
        assert_eq!(recovery.progress_lost.len(), usize::from(kind == Kind::Progress));
        assert_eq!(store.progress("s").is_none(), kind == Kind::Progress);
        put(&store, "a", 0..1).await;
        let rows = waiting(&store, "a").await;
        assert_eq!((rows[0].epoch, rows[0].seq), (7, 4), "a stored row keeps its id");
        assert_eq!(rows.last().map(|row| (row.epoch, row.seq)), Some((8, 0)));
        store.close().await.unwrap();
        let (store, recovery) = open(&disk).unwrap();
        assert_eq!((store.epoch(), recovery), (8, Recovery::default()), "met once");
    }
}

#[tokio::test]
async fn lost_states_of_sinks_and_tables_are_rebuilt_from_their_rows() {
    let disk = image().await;
    tamper(&disk, &key(Kind::Sink, "a", 0), flip_last);
    tamper(&disk, &key(Kind::Table, "t", 0), flip_last);
    let (store, recovery) = open(&disk).unwrap();
    assert_eq!(recovery.corrupt_records, 2);
    assert_eq!((store.cursor("a"), store.log_end("t")), (4, 20));
    assert_eq!(bodies(&waiting(&store, "a").await), (4..20).collect::<Vec<_>>());
    assert_eq!(logged(&store, 0).await, (0..20).collect::<Vec<_>>());
    assert_eq!(store.backlog("a").bytes, 6 * 5 + 10 * 6);
}

#[tokio::test]
async fn a_lost_schema_costs_the_rows_that_need_it() {
    let disk = image().await;
    tamper(&disk, &key(Kind::Schema, "t", 0), flip_last);
    let (store, _) = open(&disk).unwrap();
    commit(&store, Commit { rows: vec![log_rows(20..22)], ..Commit::default() }).await.unwrap();
    assert_eq!(logged(&store, 0).await, [20, 21]);
    assert_eq!(store.stats().corrupt_rows, 20);
    assert_eq!(bodies(&waiting(&store, "b").await).len(), 20);
}

#[tokio::test]
async fn a_file_of_a_later_version_is_refused_and_left_alone() {
    let disk = image().await;
    let at = key(Kind::Meta, "", 0);
    let meta = Meta { format: FORMAT + 1, epoch: 7, commit: 1, gateway: "gw".into() };
    tamper(&disk, &at, |value| *value = seal(&at, &meta.encode()));
    let refused = open(&disk);
    assert!(matches!(refused, Err(StoreError::NewerFormat { found: 2, known: 1, .. })));
    assert!(!disk.names().iter().any(|name| name.contains("quarantine")));
}

/// Reads everything and compares it with the model; returns how many rows came.
async fn count_right_rows(store: &Store, run: &str) -> u64 {
    let mut rows = 0;
    for sink in ["a", "b"] {
        for row in waiting(store, sink).await {
            let body: u64 = std::str::from_utf8(&row.body).unwrap().parse().unwrap();
            assert_eq!((row.position, row.seq), (body + 1, body), "{run}");
            rows += 1;
        }
    }
    rows + logged(store, 0).await.len() as u64
}

/// F5: single bits all over the file. redb alone gave a wrong value for a third of them.
#[tokio::test]
async fn f05_a_flipped_bit_anywhere_gives_no_wrong_value_and_an_exact_count() {
    let image = image().await;
    let mut dice = Dice(0x5eed);
    let (mut harmless, mut quarantined, mut salvaged) = (0, 0, 0);
    for round in 0..300 {
        let disk = image.power_cut(None);
        let mut place = (0, 0);
        disk.edit(LIVE, |bytes| {
            place = (dice.below(bytes.len()), dice.below(8));
            bytes[place.0] ^= 1 << place.1;
        });
        let run = format!("round {round}, byte {}, bit {}", place.0, place.1);
        let (store, recovery) = open(&disk).unwrap_or_else(|error| panic!("{run}: {error}"));
        let rows = count_right_rows(&store, &run).await;
        let stats = store.stats();
        assert!(!stats.failed, "{run}");
        if recovery.created {
            assert!(recovery.quarantined.is_some(), "{run}");
            assert_eq!(rows, 0, "{run}");
            quarantined += 1;
        } else {
            // 16 of a, 20 of b, 20 of the log.
            assert_eq!(rows + stats.corrupt_rows, 56, "{run}: {recovery:?} {stats:?}");
            salvaged += u32::from(recovery.salvaged || stats.reopened > 0);
            harmless += u32::from(rows == 56);
        }
        put(&store, "b", 20..21).await;
        store.close().await.unwrap();
    }
    println!("of 300 flips: {harmless} harmless, {salvaged} salvaged, {quarantined} quarantined");
}

/// A tree with branches: 300 values of 1,000 bytes in each of `a` and `b`.
async fn large_image() -> FakeDisk {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    for n in 0..300_u64 {
        let of = |sink: &str| OutboxRows {
            bodies: vec![Bytes::from(format!("{sink}{n:0>999}"))],
            ..results(sink, n..n, 1)
        };
        let outbox = vec![of("a"), of("b")];
        commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    }
    store.close().await.unwrap();
    disk
}

/// Counts the rows of a sink of [`large_image`], each as it must be.
async fn count_large_rows(store: &Store, sink: &str) -> u64 {
    let rows = waiting(store, sink).await;
    for row in &rows {
        let expected = format!("{sink}{:0>999}", row.position - 1);
        assert_eq!((&row.body[..], row.seq), (expected.as_bytes(), row.position - 1));
    }
    rows.len() as u64
}

/// Wipes the pages that hold row `row` of sink `a`, copies in free pages included.
fn wipe(disk: &FakeDisk, row: u64) {
    let marker = format!("a{row:0>999}");
    disk.edit(LIVE, |bytes| {
        let places: Vec<usize> = (0..bytes.len() - 1_000)
            .filter(|at| bytes[*at] == b'a' && bytes[*at..].starts_with(marker.as_bytes()))
            .collect();
        assert!(!places.is_empty());
        for at in places {
            bytes[at / 4_096 * 4_096..][..4_096].fill(0);
        }
    });
}

/// P3: pages that redb cannot read. What lies in other pages is carried over into a new file, what
/// is missing is counted, and the store never stops.
#[tokio::test]
async fn p03_pages_that_cannot_be_read_cost_only_what_they_held() {
    let image = large_image().await;
    for row in (10..300).step_by(17) {
        let disk = image.power_cut(None);
        wipe(&disk, row);
        let (store, recovery) = open(&disk).unwrap();
        assert!(!recovery.created, "row {row}");
        let (a, b) = (count_large_rows(&store, "a").await, count_large_rows(&store, "b").await);
        let stats = store.stats();
        assert!(recovery.salvaged || stats.reopened > 0, "row {row}: {stats:?}");
        assert_eq!(a + b + stats.corrupt_rows, 600, "row {row}: {stats:?}");
        // A leaf of one page holds three such rows.
        assert!((1..=3).contains(&stats.corrupt_rows), "row {row}: {stats:?}");
        store.delivered("a", 300);
        settle(&store).await;
        let backlog = store.backlog("a");
        assert_eq!((backlog.delivered, backlog.lost), (a, 300 - a), "row {row}");
        store.close().await.unwrap();
        let (store, recovery) = open(&disk).unwrap();
        assert_eq!((recovery.quarantined, store.cursor("a")), (None, 300), "row {row}: no loop");
    }
}

/// The first rows share their page with the states: those are rebuilt, and the epoch grows.
#[tokio::test]
async fn p03_a_lost_page_of_states_is_rebuilt_from_the_rows() {
    let disk = large_image().await;
    wipe(&disk, 0);
    let (store, recovery) = open(&disk).unwrap();
    assert!(recovery.salvaged && !recovery.created, "{recovery:?}");
    assert_eq!(store.epoch(), 8);
    let (a, b) = (count_large_rows(&store, "a").await, count_large_rows(&store, "b").await);
    assert!(a >= 297 && b == 300, "{a} {b}");
    store.close().await.unwrap();
    let (store, recovery) = open(&disk).unwrap();
    assert_eq!((store.epoch(), recovery), (8, Recovery::default()), "met once");
}

/// A51: a torn file. Elsewhere the service did not start until the file was deleted by hand.
#[tokio::test]
async fn a51_a_file_cut_at_any_length_opens_and_the_store_works_on() {
    let image = image().await;
    let mut dice = Dice(0xcafe);
    let mut moved = 0;
    for round in 0..60 {
        let disk = image.power_cut(None);
        let mut length = 0;
        disk.edit(LIVE, |bytes| {
            length = if round == 0 { 0 } else { dice.below(bytes.len()) };
            bytes.truncate(length);
        });
        let run = format!("cut to {length}");
        let (store, recovery) = open(&disk).unwrap_or_else(|error| panic!("{run}: {error}"));
        let rows = count_right_rows(&store, &run).await;
        if recovery.created {
            assert_eq!((rows, store.epoch()), (0, 8), "{run}: a new epoch");
            assert!(disk.names().contains(&"store.redb.quarantine-1".to_owned()), "{run}");
            moved += 1;
        } else {
            assert_eq!(rows + store.stats().corrupt_rows, 56, "{run}");
        }
        put(&store, "a", 20..21).await;
        store.close().await.unwrap();
        let (_, recovery) = open(&disk).unwrap();
        assert!(!recovery.created, "{run}: no loop");
    }
    println!("of 60 cuts: {moved} moved aside");
}
