//! What is kept and for whom: two lanes, pauses, dead letters, history, priorities, counters, shelves.

use super::*;
use crate::store::Lanes;

/// The usual layout, with so many records for sink `a` at most.
fn at_most(max_records: u64) -> Layout {
    let bounded = SinkLayout { max_records: Some(max_records), ..sink("a") };
    Layout { sinks: vec![bounded, sink("b")], ..layout() }
}

fn seqs(rows: &[OutboxRow]) -> Vec<u64> {
    rows.iter().map(|row| row.seq).collect()
}

/// P10: a live lane passes the backlog, each in order with its own contiguous cursor, across a restart,
/// and both end as one.
#[tokio::test]
async fn p10_a_live_lane_passes_the_backlog_and_both_end_as_one() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    assert_eq!(store.split("a").await.unwrap(), None, "nothing waits");
    put(&store, "a", 0..6).await;
    let lanes = store.split("a").await.unwrap().unwrap();
    assert_eq!(lanes, Lanes { split: 6, live: 6 });
    put(&store, "a", 6..10).await;
    assert_eq!(store.split("a").await.unwrap(), Some(lanes), "there is one already");
    assert_eq!(seqs(&store.next("a", 6, 3, 1_000).await.unwrap()), [6, 7, 8]);
    assert_eq!(seqs(&store.next("a", 0, 3, 1_000).await.unwrap()), [0, 1, 2]);
    store.delivered_live("a", 8);
    store.delivered("a", 2);
    settle(&store).await;
    let backlog = store.backlog("a");
    assert_eq!((backlog.records, backlog.delivered, backlog.bytes), (6, 4, 6 * 5));
    assert_eq!((store.cursor("a"), store.lanes("a")), (2, Some(Lanes { split: 6, live: 8 })));
    store.close().await.unwrap();

    let (store, _) = open(&disk).unwrap();
    assert_eq!(store.lanes("a"), Some(Lanes { split: 6, live: 8 }));
    assert_eq!(seqs(&waiting(&store, "a").await), [2, 3, 4, 5, 8, 9], "what is ahead is settled");
    store.reject("a", 9, "no");
    store.delivered("a", 6);
    settle(&store).await;
    let backlog = store.backlog("a");
    assert_eq!((store.lanes("a"), store.cursor("a")), (None, 9));
    assert_eq!((backlog.delivered, backlog.rejected, backlog.records, backlog.lost), (8, 1, 1, 0));
    store.delivered_live("a", 10);
    settle(&store).await;
    assert_eq!((store.cursor("a"), store.backlog("a").records), (10, 0), "one lane again");
}

#[tokio::test]
async fn what_a_bound_drops_of_a_backlog_ends_its_lane() {
    let disk = FakeDisk::default();
    let (store, _) = open_with(&disk, &options(), at_most(6)).unwrap();
    put(&store, "a", 0..4).await;
    store.split("a").await.unwrap();
    put(&store, "a", 4..6).await;
    store.delivered_live("a", 5);
    settle(&store).await;
    // Five wait; five more are four too many: the whole backlog.
    put(&store, "a", 6..11).await;
    assert_eq!(seqs(&waiting(&store, "a").await), [5, 6, 7, 8, 9, 10]);
    assert_eq!(notices(&store, "a").await, [(5, 0, 3)]);
    let backlog = store.backlog("a");
    assert_eq!((backlog.lanes, backlog.dropped, backlog.delivered), (None, 4, 1));
    // What is dropped next is told apart: the one between was delivered.
    put(&store, "a", 11..13).await;
    assert_eq!(notices(&store, "a").await, [(6, 0, 3), (7, 5, 6)]);
    put(&store, "a", 13..14).await;
    assert_eq!(notices(&store, "a").await, [(7, 0, 3), (8, 5, 7)]);
    assert_eq!(seqs(&waiting(&store, "a").await), [8, 9, 10, 11, 12, 13]);
}

/// P7: a notice that came while rows were on their way is not passed by a mark of some of these.
#[tokio::test]
async fn p07_a_notice_is_told_where_not_all_that_it_stands_for_was_under_way() {
    let disk = FakeDisk::default();
    let (store, _) = open_with(&disk, &options(), at_most(4)).unwrap();
    let other = OutboxRows { stream: "other".into(), ..results("a", 0..1, 1) };
    let outbox = vec![other, results("a", 0..3, 1)];
    commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    assert_eq!(store.next("a", 0, 1, 1_000).await.unwrap().len(), 1);
    put(&store, "a", 3..5).await;
    // The first of two that were dropped arrived.
    store.delivered("a", 1);
    settle(&store).await;
    assert_eq!((store.cursor("a"), store.notices_kept("a")), (0, 1));
    let told = notices(&store, "a").await;
    assert_eq!(told, [(1, 0, 0), (2, 0, 0)]);
    // They were given out now, and are passed as any row, also where there is nothing else.
    store.delivered("a", 1);
    settle(&store).await;
    assert_eq!(notices(&store, "a").await, [(2, 0, 0)]);
    store.delivered("a", 3);
    settle(&store).await;
    let backlog = store.backlog("a");
    assert_eq!((backlog.delivered, backlog.dropped, backlog.gaps, backlog.lost), (1, 2, 0, 0));
    assert_eq!((store.cursor("a"), store.notices_kept("a")), (3, 1));
}

/// Notices that are all that waits are passed one after the other, also by another process than the one that
/// made them.
#[tokio::test]
async fn p07_notices_alone_are_passed_one_after_the_other() {
    let disk = FakeDisk::default();
    let ages = SinkLayout { max_age_us: Some(10), ..sink("a") };
    let layout = Layout { sinks: vec![ages, sink("b")], ..layout() };
    let (store, _) = open_with(&disk, &options(), layout.clone()).unwrap();
    let other = OutboxRows { stream: "other".into(), ..results("a", 0..3, 1) };
    let outbox = vec![other, results("a", 0..3, 1)];
    commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    store.expire(1_000);
    settle(&store).await;
    store.close().await.unwrap();
    let (store, _) = open_with(&disk, &options(), layout).unwrap();
    assert_eq!(notices(&store, "a").await, [(5, 0, 2), (6, 0, 2)]);
    store.delivered("a", 5);
    settle(&store).await;
    assert_eq!(notices(&store, "a").await, [(6, 0, 2)]);
    store.delivered("a", 6);
    settle(&store).await;
    let backlog = store.backlog("a");
    assert_eq!((backlog.gaps, backlog.expired, store.notices_kept("a")), (0, 6, 0));
}

/// P7: the same where what was under way is of a live lane, which ends with its backlog.
#[tokio::test]
async fn p07_a_notice_of_a_backlog_is_told_whatever_its_live_lane_delivers() {
    let disk = FakeDisk::default();
    let (store, _) = open_with(&disk, &options(), at_most(6)).unwrap();
    put(&store, "a", 0..4).await;
    store.split("a").await.unwrap();
    put(&store, "a", 4..6).await;
    put(&store, "a", 6..10).await;
    assert_eq!(store.backlog("a").lanes, None);
    store.delivered_live("a", 6);
    settle(&store).await;
    assert_eq!(notices(&store, "a").await, [(6, 0, 3)]);
    assert_eq!(seqs(&waiting(&store, "a").await), [6, 7, 8, 9]);
    let backlog = store.backlog("a");
    assert_eq!((backlog.delivered, backlog.dropped, backlog.lost), (2, 4, 0));
}

#[tokio::test]
async fn a_pause_survives_a_restart() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    store.pause("a", true).await.unwrap();
    let cut = disk.power_cut(None);
    let (store, _) = open(&cut).unwrap();
    assert_eq!((store.backlog("a").paused, store.backlog("b").paused), (true, false));
    store.pause("a", false).await.unwrap();
    assert!(!store.backlog("a").paused);
    let refused = store.pause("nobody", true).await;
    assert!(matches!(refused, Err(StoreError::Unknown(_))), "{refused:?}");
}

/// P12: a dead letter comes back under its id, or goes for good; nothing of it is counted twice.
#[tokio::test]
async fn p12_dead_letters_are_driven_again_or_dropped_and_stay_across_restarts() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..5).await;
    for position in [1, 2, 3] {
        store.reject("a", position, "too large");
    }
    settle(&store).await;
    assert_eq!((store.backlog("a").letters, store.backlog("a").rejected), (3, 3));
    assert_eq!(store.redrive("a", vec![2, 77]).await.unwrap(), 1);
    assert_eq!(seqs(&waiting(&store, "a").await), [3, 4, 1], "at the end, under its old id");
    assert_eq!(store.discard("a", vec![1]).await.unwrap(), 1);
    store.close().await.unwrap();
    let (store, _) = open(&disk).unwrap();
    let left = store.rejected("a", 9).await.unwrap();
    assert_eq!((left.len(), left[0].row.seq, &*left[0].reason), (1, 2, "too large"));
    assert_eq!(store.redrive("a", vec![]).await.unwrap(), 1);
    assert_eq!(seqs(&waiting(&store, "a").await), [3, 4, 1, 2]);
    assert_eq!((store.backlog("a").letters, store.stats().held_bytes), (0, 4 * 5 + 5));
    let cut = disk.power_cut(None);
    let (store, _) = open(&cut).unwrap();
    assert_eq!(store.rejected("a", 9).await.unwrap(), []);
}

/// Rows stay readable as history for as long as the table says, whoever has passed them.
#[tokio::test]
async fn history_keeps_rows_that_every_reader_has_passed() {
    let disk = FakeDisk::default();
    let mut with_history = layout();
    with_history.tables[0].history_us = Some(100);
    let (store, _) = open_with(&disk, &options(), with_history.clone()).unwrap();
    for (start, accepted) in [(0, 1_000), (2, 1_050), (4, 1_120)] {
        let rows = vec![LogRows { accepted, ..log_rows(start..start + 2) }];
        let progress = Some(progress(b"", start + 2, start + 2));
        commit(&store, Commit { rows, progress, ..Commit::default() }).await.unwrap();
    }
    assert_eq!(logged(&store, 0).await, [0, 1, 2, 3, 4, 5], "without a clock nothing is old");
    store.expire(1_140);
    settle(&store).await;
    assert_eq!(logged(&store, 0).await, [2, 3, 4, 5], "1,000 is 140 old");
    store.close().await.unwrap();
    let (store, _) = open_with(&disk, &options(), with_history).unwrap();
    assert_eq!(logged(&store, 0).await, [2, 3, 4, 5]);
    store.expire(1_300);
    settle(&store).await;
    assert!(logged(&store, 0).await.is_empty(), "they are needed by nobody");
}

/// P11: a copy of the folder from before knows nothing of the ids that were given since. A receiver that
/// remembers them would take new records for old ones.
#[tokio::test]
async fn p11_a_store_that_was_put_back_gives_no_id_twice() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..3).await;
    let copy = disk.power_cut(None);
    put(&store, "a", 3..5).await;
    let restored = StoreOptions { restored: true, epoch_hint: 1_000, ..options() };
    let (store, recovery) = open_with(&copy, &restored, layout()).unwrap();
    assert_eq!((store.epoch(), recovery.progress_lost), (1_000, vec![]));
    put(&store, "a", 3..5).await;
    let ids: Vec<_> = waiting(&store, "a").await.iter().map(|row| (row.epoch, row.seq)).collect();
    assert_eq!(ids, [(7, 0), (7, 1), (7, 2), (1_000, 3), (1_000, 4)]);
    store.close().await.unwrap();
    let (store, recovery) = open(&copy).unwrap();
    assert_eq!((store.epoch(), recovery.clean), (1_000, true));
}

/// P11: the same without a command: the files of a copy were made at another time.
#[tokio::test]
async fn p11_a_copy_that_is_opened_in_place_of_the_store_gives_no_id_twice() {
    let disk = FakeDisk::default();
    let (store, recovery) = open(&disk).unwrap();
    assert!(!recovery.copied);
    put(&store, "a", 0..3).await;
    let copy = disk.power_cut(None);
    put(&store, "a", 3..5).await;
    copy.set_born(9);
    // A crash right after the new epoch was noted raises it once more, and loses nothing.
    for at in 1..60 {
        let crashed = copy.power_cut(None);
        crashed.crash_at(at);
        drop(open(&crashed));
        let (store, _) = open(&crashed.power_cut(None)).unwrap();
        assert!((8..=9).contains(&store.epoch()), "{at}: {}", store.epoch());
        assert_eq!(bodies(&waiting(&store, "a").await), [0, 1, 2], "{at}");
    }
    let (store, recovery) = open(&copy).unwrap();
    assert!(recovery.copied && recovery.progress_lost.is_empty(), "{recovery:?}");
    put(&store, "a", 3..5).await;
    let ids: Vec<_> = waiting(&store, "a").await.iter().map(|row| (row.epoch, row.seq)).collect();
    assert_eq!(ids, [(7, 0), (7, 1), (7, 2), (8, 3), (8, 4)]);
    store.close().await.unwrap();
    let (store, recovery) = open(&copy).unwrap();
    assert_eq!((store.epoch(), recovery.copied, recovery.clean), (8, false, true), "once");
}

/// P7: alarms leave last.
#[tokio::test]
async fn p07_sinks_of_a_lower_priority_give_way_first() {
    let disk = FakeDisk::default();
    let alarms = SinkLayout { priority: 1, ..sink("alarms") };
    let layout = Layout { sinks: vec![alarms, sink("a"), sink("b")], ..layout() };
    let small = StoreOptions { max_bytes: 100, ..options() };
    let (store, _) = open_with(&disk, &small, layout).unwrap();
    put(&store, "a", 0..2).await;
    put(&store, "alarms", 0..10).await;
    put(&store, "alarms", 0..9).await;
    // 10 + 50 + 45 = 105: one row of a goes, though alarms hold most.
    assert_eq!((store.backlog("a").dropped, store.backlog("alarms").dropped), (1, 0));
    put(&store, "alarms", 0..3).await;
    assert_eq!((store.backlog("a").records, store.backlog("alarms").dropped), (0, 2));
}

#[tokio::test]
async fn counters_grow_with_their_commits() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    for n in 1..=40 {
        let counts = vec![("source/x/read".into(), n), ("source/x/lost".into(), 1)];
        commit(&store, Commit { counts, ..Commit::default() }).await.unwrap();
    }
    let cut = disk.power_cut(None);
    let (store, _) = open(&cut).unwrap();
    assert_eq!(store.counts(), [("source/x/lost".into(), 40), ("source/x/read".into(), 820)]);
    assert_eq!((store.count("source/x/read"), store.count("nothing")), (820, 0));
}

/// A backlog that is larger than the ring goes to shelves, comes back in order, and gives its room
/// back; the ring of the other sink goes on.
#[tokio::test]
async fn a_backlog_of_many_rings_lies_on_shelves_and_its_room_comes_back() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let body = |n: u64| Bytes::from(format!("{n:>1000}"));
    for n in 0..400 {
        let outbox = vec![OutboxRows { bodies: vec![body(n)], ..results("a", n..n + 1, 1) }];
        commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
        store.delivered("b", n);
    }
    let shelves = |disk: &FakeDisk| disk.names().iter().filter(|n| n.contains("shelf")).count();
    assert!(shelves(&disk) > 0);
    let verified = store.verify().await.unwrap();
    assert_eq!((verified.rows, verified.corrupt_rows), (400, 0));
    let cut = disk.power_cut(None);
    let (store, _) = open(&cut).unwrap();
    let rows = waiting(&store, "a").await;
    assert_eq!(seqs(&rows), (0..400).collect::<Vec<_>>());
    assert!(rows.iter().all(|row| row.body == body(row.seq)));
    store.delivered("a", 400);
    settle(&store).await;
    answered(&store).await;
    assert_eq!(shelves(&cut), 0, "nothing is needed of them");
    assert_eq!(store.stats().held_bytes, 5);
}

/// Dead letters of 3 MB in all come and go; a hundred flushes later their room is given back, once.
/// The power goes at any operation of that: what waits is all there.
#[tokio::test]
async fn room_in_the_tree_is_given_back_by_itself() {
    let filled = async || {
        let disk = FakeDisk::default();
        let (store, _) = open(&disk).unwrap();
        let bodies = vec![Bytes::from(vec![b'x'; 30_000]); 100];
        let large = OutboxRows { bodies, ..results("a", 0..0, 1) };
        commit(&store, Commit { outbox: vec![large], ..Commit::default() }).await.unwrap();
        for position in 1..=100 {
            store.reject("a", position, "no");
        }
        put(&store, "b", 0..5).await;
        assert_eq!(store.backlog("a").letters, 100);
        assert_eq!(store.discard("a", vec![]).await.unwrap(), 100);
        (disk, store)
    };
    let flush = async |store: &Store| {
        for _ in 0..100 {
            store.flush();
            answered(store).await;
        }
    };
    let length = |disk: &FakeDisk| {
        let files = disk.contents();
        files.iter().find(|(name, _)| name == "store.redb").map(|(_, bytes)| bytes.len()).unwrap()
    };
    let (disk, store) = filled().await;
    assert!(length(&disk) > 3_000_000, "{}", length(&disk));
    let before = disk.operations();
    flush(&store).await;
    assert!(length(&disk) < 1 << 20, "{}", length(&disk));
    let operations = disk.operations() - before;
    let written = store.stats().bytes_written;
    flush(&store).await;
    assert_eq!(store.stats().bytes_written, written, "there is nothing more to gain");

    for at in (1..=operations).step_by(5) {
        let (disk, store) = filled().await;
        disk.crash_at(disk.operations() + at);
        tokio::select! {
            biased;
            () = flush(&store) => {}
            () = disk.death() => {}
        }
        let (store, recovery) = open(&disk.power_cut(Some(at))).unwrap();
        assert_eq!((recovery.quarantined, recovery.corrupt_records), (None, 0), "operation {at}");
        assert_eq!(bodies(&waiting(&store, "b").await), [0, 1, 2, 3, 4], "operation {at}");
        assert_eq!(store.backlog("a").letters, 0, "operation {at}");
    }
}
