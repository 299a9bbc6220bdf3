//! Bounds of dead letters. One sink refused records of 20 kB in a store of 8 MiB: 414 of them were kept,
//! and another sink, with a few kB waiting and a bound of 1 MiB, lost 139 of 206 records for them. P7, P12.
//!
//! A letter of a 300-byte body weighs 372: checksum and length 8, reason 4 + 2, rows 4, stream 4 + 1, epoch,
//! sequence and creation 24, window 17, count 4, the body's length 4.

use super::*;

const LETTER: u64 = 372;

fn bounded(name: &str, max_bytes: u64) -> SinkLayout {
    SinkLayout { max_bytes, ..sink(name) }
}

fn among(sinks: Vec<SinkLayout>) -> Layout {
    Layout { sinks, ..layout() }
}

fn padded(sink: &str, numbers: std::ops::Range<u64>, length: usize) -> OutboxRows {
    let bodies = numbers.clone().map(|number| Bytes::from(format!("{number:>length$}"))).collect();
    OutboxRows { bodies, ..results(sink, numbers, 1) }
}

/// Puts `count` records of so many bytes into an outbox; all of them are refused.
async fn refuse(store: &Store, sink: &str, count: u64, length: usize) {
    let before = store.shared.state().sinks.get(sink).map_or(0, |sink| sink.next - 1);
    let outbox = vec![padded(sink, before..before + count, length)];
    commit(store, Commit { outbox, ..Commit::default() }).await.unwrap();
    for position in before + 1..=before + count {
        store.reject(sink, position, "no");
    }
    commit(store, Commit::default()).await.unwrap();
}

/// What is kept of a sink's letters, and how many gave way.
async fn kept(store: &Store, sink: &str) -> (Vec<u64>, u64) {
    let letters = store.rejected(sink, 5_000).await.unwrap();
    let backlog = store.backlog(sink);
    assert_eq!(backlog.letters, letters.len() as u64);
    (letters.iter().map(|letter| letter.row.position).collect(), backlog.letters_dropped)
}

#[tokio::test]
async fn p12_letters_of_a_sink_take_an_eighth_of_what_may_wait_for_it() {
    let disk = FakeDisk::default();
    let of = |max_bytes| among(vec![bounded("a", max_bytes), sink("b")]);
    // An eighth is 1,000 bytes: two letters, and 256 bytes that are too few for a third.
    let (store, _) = open_with(&disk, &options(), of(8_000)).unwrap();
    refuse(&store, "a", 5, 300).await;
    assert_eq!(kept(&store, "a").await, (vec![4, 5], 3));
    assert_eq!(store.backlog("a").letter_bytes, 2 * LETTER);
    assert_eq!(store.stats().held_bytes, 2 * LETTER);
    let cut = disk.power_cut(None);
    let (after_crash, _) = open_with(&cut, &options(), of(8_000)).unwrap();
    assert_eq!(kept(&after_crash, "a").await, (vec![4, 5], 3), "after a crash");
    store.close().await.unwrap();
    let (store, _) = open_with(&disk, &options(), of(8_000)).unwrap();
    refuse(&store, "a", 1, 300).await;
    assert_eq!(kept(&store, "a").await, (vec![5, 6], 4), "after a restart");

    // Each of them is counted once as a record, however it ended as a letter.
    assert_eq!(store.redrive("a", vec![5]).await.unwrap(), 1);
    assert_eq!(store.discard("a", vec![6]).await.unwrap(), 1);
    let backlog = store.backlog("a");
    assert_eq!((backlog.letters, backlog.letter_bytes, backlog.letters_dropped), (0, 0, 4));
    assert_eq!((backlog.rejected, backlog.redriven, backlog.records), (6, 1, 1));
    assert_eq!((backlog.delivered, backlog.dropped, backlog.expired, backlog.lost), (0, 0, 0, 0));

    // The bound follows the configuration, with the next commit.
    store.delivered("a", 7);
    refuse(&store, "a", 2, 300).await;
    store.relayout(of(4_000), options().max_bytes).await.unwrap();
    settle(&store).await;
    assert_eq!(kept(&store, "a").await, (vec![9], 5), "500 bytes");
}

#[tokio::test]
async fn p12_a_letter_that_is_larger_than_the_bound_stays_until_a_newer_one_comes() {
    let disk = FakeDisk::default();
    let small = among(vec![bounded("a", 8_000), sink("b")]);
    let (store, _) = open_with(&disk, &options(), small).unwrap();
    refuse(&store, "a", 1, 3_000).await;
    assert_eq!(kept(&store, "a").await, (vec![1], 0), "3,072 bytes of 1,000");
    refuse(&store, "a", 1, 300).await;
    assert_eq!(kept(&store, "a").await, (vec![2], 1));
}

/// The sink that has most gives way to whoever comes; of two with as much the one that comes first.
#[tokio::test]
async fn p07_letters_of_all_sinks_share_an_eighth_of_the_store() {
    let disk = FakeDisk::default();
    // 2,000 bytes, which are five letters.
    let options = StoreOptions { max_bytes: 16_000, ..options() };
    let (store, _) = open_with(&disk, &options, among(vec![sink("a"), sink("b")])).unwrap();
    refuse(&store, "b", 1, 300).await;
    refuse(&store, "a", 5, 300).await;
    assert_eq!(kept(&store, "a").await, (vec![2, 3, 4, 5], 1), "b had less");
    assert_eq!(kept(&store, "b").await, (vec![1], 0));
    refuse(&store, "b", 3, 300).await;
    assert_eq!(kept(&store, "a").await, (vec![4, 5], 3));
    assert_eq!(kept(&store, "b").await, (vec![2, 3, 4], 1));

    // What nobody asks for goes first, though it is least.
    store.relayout(among(vec![sink("b")]), 16_000).await.unwrap();
    refuse(&store, "b", 1, 300).await;
    assert_eq!(kept(&store, "a").await, (vec![5], 4));
    assert_eq!(kept(&store, "b").await, (vec![2, 3, 4, 5], 1));
}

/// P7: the case that was found, with each policy of the other sink.
#[tokio::test]
async fn p07_letters_of_20_kb_cost_another_sink_nothing() {
    for when_full in [WhenFull::DropOldest, WhenFull::DropNewest, WhenFull::Block] {
        let disk = FakeDisk::default();
        let other = SinkLayout { when_full, ..bounded("b", 1 << 20) };
        let both = among(vec![bounded("a", 4 << 20), other]);
        let options = StoreOptions { max_bytes: 8 << 20, ..options() };
        let (store, _) = open_with(&disk, &options, both).unwrap();
        for round in 0..50 {
            refuse(&store, "a", 10, 20_000).await;
            let outbox = vec![padded("b", round * 4..round * 4 + 4, 1_000)];
            commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
        }
        let backlog = store.backlog("b");
        assert_eq!((backlog.records, backlog.dropped), (200, 0), "{when_full:?}");
        // An eighth of 4 MiB through 20,072 bytes is 26.1.
        let (letters, dropped) = kept(&store, "a").await;
        assert_eq!((letters, dropped), ((475..=500).collect(), 474), "{when_full:?}");
        assert_eq!(store.stats().held_bytes, 200 * 1_004 + 26 * 20_072, "{when_full:?}");
    }
}

/// P7: where the sinks' own bounds come to all of the store, letters have no room of their own: they go
/// before any row that waits, whatever its sink does when it is full.
#[tokio::test]
async fn p07_letters_give_way_before_waiting_rows_where_the_store_is_full() {
    for when_full in [WhenFull::DropOldest, WhenFull::DropNewest, WhenFull::Block] {
        let disk = FakeDisk::default();
        let other = SinkLayout { when_full, ..sink("b") };
        let options = StoreOptions { max_bytes: 20_000, ..options() };
        let (store, _) = open_with(&disk, &options, among(vec![sink("a"), other])).unwrap();
        refuse(&store, "a", 6, 300).await;
        // 6 * 372 + 18 * 1,004 = 20,304: one letter too many.
        for number in 0..18 {
            let outbox = vec![padded("b", number..number + 1, 1_000)];
            commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
        }
        assert_eq!(kept(&store, "a").await, (vec![2, 3, 4, 5, 6], 1), "{when_full:?}");
        // 19 * 1,004 = 19,076: room for two.
        let outbox = vec![padded("b", 18..19, 1_000)];
        commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
        assert_eq!(kept(&store, "a").await, (vec![5, 6], 4), "{when_full:?}");
        let backlog = store.backlog("b");
        assert_eq!((backlog.records, backlog.dropped), (19, 0), "{when_full:?}");
        // Another is more than the store: all letters go, and then it is for the policy to decide.
        let last = store.submit(Commit {
            wait: true,
            outbox: vec![padded("b", 19..20, 1_000)],
            ..Commit::default()
        });
        last.await.unwrap().await.unwrap();
        let backlog = store.backlog("b");
        let of_letters = kept(&store, "a").await.1;
        let (records, dropped) = (backlog.records, backlog.dropped);
        match when_full {
            WhenFull::DropOldest => assert_eq!((of_letters, records, dropped), (6, 19, 1)),
            // It does not fit, so that nothing need go for it.
            WhenFull::DropNewest => assert_eq!((of_letters, records, dropped), (4, 19, 1)),
            // One commit may pass the bound.
            WhenFull::Block => assert_eq!((of_letters, records, dropped), (6, 20, 0)),
        }
    }
}

/// Records that are put and refused, one after the other, on a disk that crashes; the last number that
/// became durable.
async fn run(disk: &FakeDisk, refused: &mut u64) -> Result<(), StoreError> {
    let (store, _) = open_with(disk, &options(), among(vec![bounded("a", 8_000), sink("b")]))?;
    for number in 0..STEPS {
        let outbox = vec![padded("a", number..number + 1, 300)];
        commit_on(disk, &store, Commit { wait: true, outbox, ..Commit::default() }).await?;
        store.reject("a", number + 1, "no");
        commit_on(disk, &store, Commit { wait: true, ..Commit::default() }).await?;
        *refused = number + 1;
    }
    store.close().await
}

const STEPS: u64 = 14;

/// P2, P12: wherever the power goes, letters that are kept and those that gave way come to what was refused.
#[tokio::test]
async fn p12_a_crash_at_any_operation_leaves_letters_and_their_count_as_one() {
    let whole = FakeDisk::default();
    let mut refused = 0;
    run(&whole, &mut refused).await.unwrap();
    assert_eq!(refused, STEPS);
    let mut middle = 0;
    for at in 1..=whole.operations() {
        let disk = FakeDisk::default();
        disk.crash_at(at);
        let mut durable = 0;
        drop(run(&disk, &mut durable).await);
        let cut = disk.power_cut((at % 4 > 0).then_some(at));
        let again = among(vec![bounded("a", 8_000), sink("b")]);
        let (store, recovery) = open_with(&cut, &options(), again).unwrap();
        assert_eq!(recovery.corrupt_records, 0, "operation {at}");
        let refused = store.backlog("a").rejected;
        assert!((durable..=durable + 1).contains(&refused), "operation {at}: {refused}");
        let expected = (refused.saturating_sub(1).max(1)..=refused).collect::<Vec<_>>();
        let dropped = refused.saturating_sub(2);
        assert_eq!(kept(&store, "a").await, (expected, dropped), "operation {at}");
        assert_eq!(store.backlog("a").letter_bytes, (refused - dropped) * LETTER, "operation {at}");
        middle += u64::from(dropped > 0);
        store.close().await.unwrap();
    }
    assert!(middle > STEPS, "{middle} crashes after letters gave way");
}

/// P12: what is driven again goes in its order, each once, however it was asked for.
#[tokio::test]
async fn p12_letters_are_driven_again_in_order_and_once() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..5).await;
    for position in [1, 2, 3] {
        store.reject("a", position, "no");
    }
    settle(&store).await;
    assert_eq!(store.redrive("a", vec![3, 2, 2, 3]).await.unwrap(), 2);
    let seqs: Vec<u64> = waiting(&store, "a").await.iter().map(|row| row.seq).collect();
    assert_eq!(seqs, [3, 4, 1, 2]);
    let backlog = store.backlog("a");
    assert_eq!((backlog.redriven, backlog.letters, backlog.records), (2, 1, 4));
}
