//! Rows that were accepted while nobody knew the time of day. F11: nothing reads them until it is
//! decided what becomes of their times, each of them is then moved once, and wherever a crash falls
//! they are either all moved or all waiting.

use arrow::datatypes::TimestampMicrosecondType;

use super::*;
use crate::store::files::RING;
use crate::store::format::{Kind, key};
use crate::store::{BootTime, Stamps};

/// Its monotonic clock began 40 s before what the rows' times say.
const BOOT: Stamps = Stamps { boot: 0x6f1c_7a52, anchor: 40_000_000 };
/// The rows are to be moved by 10 ms.
const SET: BootTime = BootTime::Set(40_010_000);

fn stamped(positions: std::ops::Range<u64>) -> Commit {
    let rows = LogRows { stamps: Some(BOOT), ..log_rows(positions) };
    Commit { rows: vec![rows], ..Commit::default() }
}

fn plain(positions: std::ops::Range<u64>) -> Commit {
    Commit { rows: vec![log_rows(positions)], ..Commit::default() }
}

fn decided(time: BootTime) -> Commit {
    Commit { boot: Some((BOOT.boot, time)), ..Commit::default() }
}

/// What a log has: position, time in milliseconds, quality.
type Seen = Vec<(u64, i64, String)>;

fn seen(found: Vec<(u64, RecordBatch)>) -> Seen {
    let mut all = Vec::new();
    for (position, batch) in found {
        let time = batch.column(0).as_primitive::<TimestampMicrosecondType>();
        let quality = batch.column(2).as_string::<i32>();
        for row in 0..batch.num_rows() {
            let quality = quality.value(row).to_owned();
            all.push((position + row as u64, time.value(row) / 1_000, quality));
        }
    }
    all
}

async fn read(store: &Store) -> Seen {
    seen(store.read_log("t", 0, 100).await.unwrap())
}

async fn read_whole(store: &Store) -> Seen {
    seen(store.read_whole_log("t", 0, 100).await.unwrap())
}

fn expected(rows: &[(u64, i64, &str)]) -> Seen {
    rows.iter().map(|(position, time, quality)| (*position, *time, (*quality).to_owned())).collect()
}

#[tokio::test]
async fn f11_rows_without_a_time_wait_and_are_moved_once() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    for rows in [plain(0..1), stamped(1..3), stamped(3..4), plain(4..5)] {
        commit(&store, rows).await.unwrap();
    }
    let before = expected(&[(0, 0, "good")]);
    let doubted = expected(&[
        (0, 0, "good"),
        (1, 1, "uncertain"),
        (2, 2, "uncertain"),
        (3, 3, "uncertain"),
        (4, 4, "good"),
    ]);
    let (cut, _) = open(&disk.power_cut(None)).unwrap();
    for store in [&store, &cut] {
        assert_eq!(store.boots(), [(BOOT.boot, BootTime::Waiting)]);
        assert_eq!((read(store).await, read_whole(store).await), (before.clone(), doubted.clone()));
        assert_eq!(store.read_log("t", 2, 9).await.unwrap(), [], "no rows, and none missing");
        assert_eq!(store.stats().corrupt_rows, 0);
    }
    // The ring goes round: rows are joined on a shelf, those that wait among themselves.
    for number in 0..20 {
        put(&store, "b", number..number + 1).await;
    }
    assert_eq!((read(&store).await, read_whole(&store).await), (before.clone(), doubted.clone()));
    let (cut, _) = open(&disk.power_cut(None)).unwrap();
    assert_eq!((read(&cut).await, read_whole(&cut).await), (before, doubted));

    commit(&store, decided(SET)).await.unwrap();
    commit(&store, decided(BootTime::Never)).await.unwrap();
    let after = [(0, 0, "good"), (1, 11, "good"), (2, 12, "good"), (3, 13, "good"), (4, 4, "good")];
    let after = expected(&after);
    let (cut, _) = open(&disk.power_cut(None)).unwrap();
    for store in [&store, &cut] {
        assert_eq!((read(store).await, read_whole(store).await), (after.clone(), after.clone()));
        assert_eq!(store.verify().await.unwrap().corrupt_rows, 0);
    }
    store.close().await.unwrap();
    let (store, recovery) = open(&disk).unwrap();
    assert_eq!(recovery, Recovery { clean: true, ..Recovery::default() });
    assert_eq!(store.boots(), [(BOOT.boot, SET)], "the first decision counts");
    assert_eq!(read(&store).await, after);
}

#[tokio::test]
async fn f11_rows_whose_time_nobody_will_know_keep_their_stamps_and_are_doubted() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let other = LogRows { stamps: Some(Stamps { boot: 9, anchor: 0 }), ..log_rows(2..3) };
    commit(&store, stamped(0..2)).await.unwrap();
    commit(&store, Commit { rows: vec![other], ..Commit::default() }).await.unwrap();
    commit(&store, decided(BootTime::Never)).await.unwrap();
    let left = expected(&[(0, 0, "uncertain"), (1, 1, "uncertain")]);
    assert_eq!(read(&store).await, left, "those of the other start wait still");
    // That one's clock is known: its monotonic clock began 5 s after 1970.
    let boot = Some((9, BootTime::Set(5_000_000)));
    commit(&store, Commit { boot, ..Commit::default() }).await.unwrap();
    let all = expected(&[(0, 0, "uncertain"), (1, 1, "uncertain"), (2, 5_002, "good")]);
    assert_eq!(read(&store).await, all);
    let (cut, _) = open(&disk.power_cut(None)).unwrap();
    assert_eq!(read(&cut).await, all);
}

/// The record of what was decided fails its check: a time that cannot be moved is no time.
#[tokio::test]
async fn f11_a_decision_that_is_damaged_leaves_no_row_good() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    commit(&store, stamped(0..2)).await.unwrap();
    commit(&store, decided(SET)).await.unwrap();
    settle(&store).await;
    let cut = disk.power_cut(None);
    // An entry begins with the length of its key, and its body lies behind eight bytes of check.
    let name = key(Kind::Boots, "", 0);
    let entry = [&[u8::try_from(name.len()).unwrap(), 0][..], &name].concat();
    cut.edit(RING, |bytes| {
        let places = (0..bytes.len() - entry.len()).filter(|at| bytes[*at..].starts_with(&entry));
        let places: Vec<usize> = places.collect();
        assert_eq!(places.len(), 2, "with the rows, and with the decision");
        for at in places {
            bytes[at + entry.len() + 8 + 6] ^= 0x10;
        }
    });
    let (found, recovery) = open(&cut).unwrap();
    assert_eq!(recovery.corrupt_records, 1, "both are versions of one record");
    assert_eq!(read(&found).await, [], "the checkpoint knows that they wait");
    commit(&found, decided(BootTime::Never)).await.unwrap();
    assert_eq!(read(&found).await, expected(&[(0, 0, "uncertain"), (1, 1, "uncertain")]));
}

/// Accepts rows, decides, goes on, with results between, so that the ring goes round. Gives the
/// operations of the disk before the first row, and behind the first one after the decision.
async fn script(disk: &FakeDisk) -> Result<(u64, u64), StoreError> {
    let (store, _) = open(disk)?;
    let begin = disk.operations();
    let results = (0..10).map(|number| {
        let outbox = vec![results("b", number..number + 1, 1)];
        Commit { outbox, ..Commit::default() }
    });
    let last = Commit { progress: Some(progress(b"waited", 4, 0)), ..plain(4..5) };
    let commits = [stamped(0..2), stamped(2..4)].into_iter().chain(results);
    for commit in commits.chain([decided(SET), last]) {
        commit_on(disk, &store, Commit { wait: true, ..commit }).await?;
    }
    let end = disk.operations();
    store.close().await?;
    Ok((begin, end))
}

#[tokio::test]
async fn f11_wherever_a_crash_falls_all_rows_are_moved_or_all_wait() {
    let (begin, end) = script(&FakeDisk::default()).await.unwrap();
    let all = [(0, 10, "good"), (1, 11, "good"), (2, 12, "good"), (3, 13, "good"), (4, 4, "good")];
    let (mut waited, mut moved) = (0, 0);
    for operation in begin + 1..=end {
        for seed in [None, Some(operation)] {
            let disk = FakeDisk::default();
            disk.crash_at(operation);
            // Where the last rows were told, the crash is not seen before the close.
            drop(script(&disk).await);
            let (store, recovery) = open(&disk.power_cut(seed)).unwrap();
            let run = format!("operation {operation}, {seed:?}");
            assert_eq!(recovery.corrupt_records, 0, "{run}");
            let (rows, kept) = (read(&store).await, read_whole(&store).await);
            if store.boots() == [(BOOT.boot, SET)] {
                assert!(rows.len() >= 4, "{run}: nothing is decided before the rows are there");
                assert_eq!(rows, expected(&all[..rows.len()]), "{run}");
                moved += 1;
            } else {
                assert_eq!((rows.len(), store.progress("s")), (0, None), "{run}");
                let times: Vec<_> = kept.into_iter().map(|(at, time, _)| (at, time)).collect();
                assert_eq!(times, [(0, 0), (1, 1), (2, 2), (3, 3)][..times.len()], "{run}");
                waited += 1;
            }
        }
    }
    assert!(waited > 10 && moved > 0, "{waited} and {moved} of {begin}..{end}");
}

/// What the checkpoint says after a power cut: its format.
fn meta(disk: &FakeDisk) -> crate::store::record::Meta {
    use crate::store::files::{TREE, open_tree, records};
    use crate::store::load::load;
    let tree = open_tree(disk, &Arc::default(), 1 << 20, TREE, false);
    load(&records(&tree.unwrap()).unwrap()).unwrap().state.unwrap().meta
}

/// The version before knows no stamped rows and would count them as damage, so that it has to refuse a
/// store that has some. One that never had any it can go on with after an update is taken back.
#[tokio::test]
async fn a_store_says_a_later_format_once_rows_are_without_a_time() {
    use crate::store::checkpoint::put as put_record;
    use crate::store::files::{TREE, open_tree, write};
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    commit(&store, plain(0..2)).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(meta(&disk.power_cut(None)).format, 3, "the version before goes on");
    let (store, _) = open(&disk).unwrap();
    commit(&store, stamped(2..4)).await.unwrap();
    answered(&store).await;
    assert_eq!(meta(&disk.power_cut(None)).format, 4, "at once");
    commit(&store, decided(SET)).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(meta(&disk.power_cut(None)).format, 4, "the rows are still stamped");

    // As a version between the two has left it: the next start says so.
    let old = disk.power_cut(None);
    let tree = open_tree(&old, &Arc::default(), 1 << 20, TREE, false).unwrap();
    let said = crate::store::record::Meta { format: 3, ..meta(&disk.power_cut(None)) };
    write(&tree, |records| put_record(records, Kind::Meta, "", 0, &said.encode())).unwrap();
    drop(tree);
    let (store, recovery) = open(&old).unwrap();
    assert_eq!((recovery.corrupt_records, recovery.upgraded_from), (0, None));
    assert_eq!(meta(&old.power_cut(None)).format, 4);
    assert_eq!(read(&store).await.len(), 4);
    drop(store);

    // Wherever the power goes, rows are never without the format after the next start.
    for at in 1..=40 {
        let disk = FakeDisk::default();
        let (store, _) = open(&disk).unwrap();
        commit(&store, plain(0..2)).await.unwrap();
        answered(&store).await;
        disk.crash_at(disk.operations() + at);
        drop(commit_on(&disk, &store, Commit { wait: true, ..stamped(2..4) }).await);
        let cut = disk.power_cut(Some(at * 7_919));
        let (store, recovery) = open(&cut).unwrap();
        let epoch = 7 + u64::from(recovery.newest_torn);
        assert_eq!((recovery.corrupt_records, store.epoch()), (0, epoch), "{at}");
        let has_rows = store.log_end("t") > 2;
        assert_eq!(meta(&cut.power_cut(None)).format, if has_rows { 4 } else { 3 }, "{at}");
    }
}
