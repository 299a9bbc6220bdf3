//! A device of which one part takes no writes any more, and what is worn for nothing.

use futures::FutureExt;

use super::*;

/// Submits results `number` for sink `a` and says whether they became durable before the store had
/// taken some turns with flushes.
async fn try_put(store: &Store, number: u64) -> bool {
    let outbox = vec![results("a", number..number + 1, 1)];
    let commit = Commit { wait: true, outbox, ..Commit::default() };
    let mut ticket = store.submit(commit).await.unwrap();
    for _ in 0..5 {
        store.flush();
        tokio::select! {
            biased;
            outcome = &mut ticket => return outcome.is_ok(),
            () = answered(store) => {}
        }
    }
    false
}

/// A checkpoint that failed was taken for done: the frames that it would have made needless were
/// let go, and so were frames whose rows had gone to shelves that no checkpoint names; the ring
/// went round over them, and a power cut took what had been acknowledged. When the ring was nearly
/// full, the third attempt of a frame skipped its place and, past the tail, wrote over frames that
/// were needed.
#[tokio::test]
async fn a_ring_that_cannot_be_freed_loses_nothing_durable() {
    for broken in [&["store.redb"][..], &["store.shelf-"], &["store.redb", "store.shelf-"]] {
        // The ring has 16 blocks; a commit takes one. Where it stands when the device breaks counts.
        for before in 0..20 {
            run_into_full_ring(broken, before).await;
        }
    }
}

async fn run_into_full_ring(broken: &[&str], before: u64) {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    for number in 0..before {
        put(&store, "a", number..number + 1).await;
    }
    disk.set_broken(broken);
    let mut durable: Vec<u64> = (0..before).collect();
    for number in before..before + 30 {
        if try_put(&store, number).await {
            durable.push(number);
        }
    }
    let run = format!("{broken:?} after {before}");
    let (cut, recovery) = open(&disk.power_cut(None)).unwrap();
    let kept = bodies(&waiting(&cut, "a").await);
    assert!(kept.starts_with(&durable), "{run}: {kept:?} of {durable:?}");
    assert_eq!((recovery.corrupt_records, recovery.progress_lost.len()), (0, 0), "{run}");
    let count = durable.len() as u64 - before;
    assert!((4..=16).contains(&count), "{run}: {count} fit in the ring");
    assert!(store.stats().stalled.is_some(), "{run}");

    // The device works again: so does the store, and everything comes, in order.
    disk.set_broken(&[]);
    store.flush();
    let end = before + 30;
    put(&store, "a", end..end + 1).await;
    assert_eq!(bodies(&waiting(&store, "a").await), (0..=end).collect::<Vec<_>>(), "{run}");
    assert_eq!(store.stats().stalled, None, "{run}");
}

/// A shelf with a bad block at its end was tried for ever: nothing could be folded, the ring got full,
/// and only a restart helped.
#[tokio::test]
async fn a_shelf_that_takes_no_more_gives_its_place_to_another() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    for number in 0..12 {
        put(&store, "a", number..number + 1).await;
    }
    let names = disk.names();
    let shelves: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| name.starts_with("store.shelf-")).collect();
    assert_eq!(shelves.len(), 1);
    disk.set_broken(&shelves);
    for number in 12..60 {
        assert!(try_put(&store, number).await, "{number}: {:?}", store.stats().stalled);
    }
    let (cut, recovery) = open(&disk.power_cut(None)).unwrap();
    assert_eq!(recovery.corrupt_records, 0);
    assert_eq!(bodies(&waiting(&cut, "a").await), (0..60).collect::<Vec<_>>());
}

/// A notice that grew after a checkpoint had named its place was never named again: a restart
/// told fewer records missing than there were, or found a shelf that was gone.
#[tokio::test]
async fn a_notice_that_grows_again_and_again_is_whole_after_a_restart() {
    let disk = FakeDisk::default();
    let full = SinkLayout { max_records: Some(1), when_full: WhenFull::DropNewest, ..sink("a") };
    let bounded = Layout { sinks: vec![full, sink("b")], ..layout() };
    let (mut store, _) = open_with(&disk, &options(), bounded.clone()).unwrap();
    // The ring has 16 blocks: what is old goes to a shelf, and the checkpoint says where.
    let go_round = async |store: &Store| {
        for number in 0..20 {
            put(store, "b", number..number + 1).await;
        }
    };
    put(&store, "a", 0..1).await;
    // The record goes before its notice comes, so that they do not lie in one piece.
    go_round(&store).await;
    for round in 0..4 {
        put(&store, "a", round * 10 + 1..round * 10 + 11).await;
        go_round(&store).await;
        let notice = vec![(2, 1, round * 10 + 10)];
        let cut = disk.power_cut(None);
        let (after, recovery) = open_with(&cut, &options(), bounded.clone()).unwrap();
        assert_eq!(notices(&after, "a").await, notice, "a cut in round {round}");
        assert_eq!(recovery.corrupt_records + after.stats().corrupt_rows, 0);
        // The next notice grows in a store that has just been opened.
        if round == 2 {
            store.close().await.unwrap();
            (store, _) = open_with(&disk, &options(), bounded.clone()).unwrap();
        }
    }
    // It grows, others come, and a checkpoint follows at once: the one that lay on a shelf is not found again.
    let other = OutboxRows { stream: "r".into(), ..results("a", 7..9, 1) };
    let outbox = vec![results("a", 41..51, 1), other];
    commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    store.close().await.unwrap();
    let (store, recovery) = open_with(&disk, &options(), bounded).unwrap();
    assert_eq!(notices(&store, "a").await, [(2, 1, 50), (3, 7, 8)]);
    assert_eq!(recovery.corrupt_records + store.stats().corrupt_rows, 0);
}

/// A notice at the front of an outbox made every look at the age of records a commit: a block and a
/// sync each second, for as long as the uplink was down.
#[tokio::test]
async fn a_notice_that_waits_is_no_reason_to_write() {
    let disk = FakeDisk::default();
    let bounded = Layout {
        sinks: vec![SinkLayout { max_age_us: Some(100), ..sink("a") }, sink("b")],
        ..layout()
    };
    let (store, _) = open_with(&disk, &options(), bounded).unwrap();
    for (number, created) in [(0, 1_000), (1, 2_000)] {
        let outbox = vec![results("a", number..number + 1, created)];
        commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    }
    let flush_at = async |now| {
        store.expire(now);
        store.flush();
        answered(&store).await;
        store.stats().bytes_written
    };
    let before = flush_at(1_500).await;
    assert_eq!(notices(&store, "a").await, [(1, 0, 0)]);
    for now in 1_501..1_600 {
        assert_eq!(flush_at(now).await, before, "nothing has become too old at {now}");
    }
    assert!(flush_at(2_101).await > before);
    assert_eq!(store.backlog("a").expired, 2);
}

/// A gateway that was without power for longer than its records may get old read its whole backlog
/// twice in one commit: a gibibyte took a slow device close to the watchdog's minute, and the next
/// start would have begun anew.
#[tokio::test]
async fn a_large_backlog_expires_in_steps() {
    let disk = FakeDisk::default();
    let bounded = Layout {
        sinks: vec![SinkLayout { max_age_us: Some(100), ..sink("a") }, sink("b")],
        ..layout()
    };
    let (store, _) = open_with(&disk, &options(), bounded).unwrap();
    for number in 0..40 {
        // With the four bytes that each record counts beside its body, half a MiB.
        let bodies = vec![Bytes::from(vec![7; (512 << 10) - 4])];
        let outbox = vec![OutboxRows { bodies, ..results("a", number..number, 1_000) }];
        commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    }
    for (expired, gap) in [(32, (32, 0, 31)), (40, (40, 0, 39))] {
        store.expire(2_000);
        store.flush();
        answered(&store).await;
        let backlog = store.backlog("a");
        assert_eq!((backlog.expired, backlog.records, backlog.gaps), (expired, 40 - expired, 1));
        assert_eq!(notices(&store, "a").await, [gap]);
    }
}

/// All logs shared their shelves, so that one table with a long history kept what others had long
/// let go: without bound, because only rows that are needed count against the store's.
#[tokio::test]
async fn a_table_with_a_history_keeps_no_other_tables_rows_on_disk() {
    let disk = FakeDisk::default();
    let table = |name: &str, history_us| TableLayout {
        name: name.into(),
        readers: vec!["s".into()],
        history_us,
    };
    let two = Layout { tables: vec![table("t", None), table("slow", Some(1 << 50))], ..layout() };
    let (store, _) = open_with(&disk, &options(), two).unwrap();
    // 20,000 rows of 25 bytes stay with `t`, and one in 2,000 with `slow`.
    let (kept, step) = (20_000, 2_000);
    let mut largest = 0;
    for round in 0..500 {
        let (start, end) = (round * step, (round + 1) * step);
        let slow = LogRows { table: "slow".into(), ..log_rows(round..round + 1) };
        let progress = StreamProgress {
            stream: "s".into(),
            state: Vec::new(),
            processed: vec![("t".into(), end), ("slow".into(), round + 1)],
            replay_from: vec![("t".into(), end.saturating_sub(kept)), ("slow".into(), round + 1)],
            states: vec![],
        };
        let rows = vec![log_rows(start..end), slow];
        let one = Commit { rows, progress: Some(progress), ..Commit::default() };
        commit(&store, one).await.unwrap();
        largest = largest.max(store.stats().file_bytes);
    }
    // Half a MiB stays; a shelf of which half is let go gets no more. The rest is the tree.
    assert!(largest < 5 << 20, "{largest}");
    assert_eq!(logged(&store, 0).await.first(), Some(&(500 * step - kept)));
}

/// Frames that were held while the device took no writes are written together and synced once. A power
/// cut then left some of them whole and others torn, none of them acknowledged: it was taken for damage, and
/// progress for lost. Some may have gone out from memory: their ids do not come again.
#[tokio::test]
async fn frames_that_are_torn_together_are_no_damage() {
    let stalled = async || {
        let disk = FakeDisk::default();
        let (store, _) = open(&disk).unwrap();
        put(&store, "a", 0..2).await;
        disk.set_broken(&["store.ring"]);
        for number in 2..8 {
            let outbox = vec![results("a", number..number + 1, 1)];
            let states = changes(&[(1, &number.to_string())], &[]);
            let progress = StreamProgress { states, ..progress(&[7], 0, 0) };
            let one = Commit { wait: true, outbox, progress: Some(progress), ..Commit::default() };
            drop(store.submit(one).await.unwrap());
            store.flush();
            answered(&store).await;
        }
        assert!(store.stats().stalled.is_some());
        disk.set_broken(&[]);
        (disk, store)
    };
    let (mut whole, mut part, mut none) = (0, 0, 0);
    for seed in 1..60 {
        let (disk, store) = stalled().await;
        // Six writes, and the sync that is for all of them. The ring is opened again before.
        disk.crash_at(disk.operations() + 7);
        store.flush();
        disk.death().await;
        let cut = disk.power_cut(Some(seed * 7_919));
        let mut epoch = 7;
        for run in ["at once", "again"] {
            let run = format!("seed {seed}, {run}");
            let (store, recovery) = open(&cut).unwrap();
            assert_eq!(recovery.corrupt_records, 0, "{run}");
            assert_eq!(recovery.progress_lost, Vec::<String>::new(), "{run}");
            epoch += u64::from(recovery.newest_torn);
            assert_eq!(store.epoch(), epoch, "{run}");
            let found = bodies(&waiting(&store, "a").await);
            let count = found.len() as u64;
            assert_eq!(found, (0..count).collect::<Vec<_>>(), "{run}: a prefix");
            let newest = (count > 2).then(|| (1, (count - 1).to_string()));
            assert_eq!(states(&store).await, newest.into_iter().collect::<Vec<_>>(), "{run}");
            match count {
                8 => whole += 1,
                2 => none += 1,
                _ => part += 1,
            }
            store.close().await.unwrap();
        }
        // What goes on from there is not mixed with what was given up.
        let (store, _) = open(&cut).unwrap();
        let before = store.backlog("a").records;
        put(&store, "a", before..before + 1).await;
        let (store, recovery) = open(&cut.power_cut(None)).unwrap();
        assert_eq!((recovery.corrupt_records, store.epoch()), (0, epoch), "seed {seed}");
        let found = bodies(&waiting(&store, "a").await);
        assert_eq!(found, (0..=before).collect::<Vec<_>>(), "seed {seed}: goes on");
    }
    assert!(part > 20 && none > 0, "{whole} whole, {part} in part, {none} not at all");
}

/// A backlog of many queues that went to shelves took a sync for each MiB and each queue.
#[tokio::test]
async fn folding_syncs_each_shelf_once() {
    let disk = FakeDisk::default();
    let wide = StoreOptions { ring_bytes: 16 << 20, ..options() };
    let (store, _) = open_with(&disk, &wide, layout()).unwrap();
    // 7.5 MiB for one sink and the first record of another: then half of the ring is taken.
    put(&store, "b", 0..1).await;
    for number in 0..15 {
        let bodies = vec![Bytes::from(vec![7; 512 << 10])];
        let outbox = vec![OutboxRows { bodies, ..results("a", number..number, 1) }];
        commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    }
    answered(&store).await;
    assert_eq!(disk.syncs("store.shelf-"), 0);
    let bodies = vec![Bytes::from(vec![7; 512 << 10])];
    let outbox = vec![OutboxRows { bodies, ..results("a", 15..15, 1) }];
    commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    answered(&store).await;
    let shelves = disk.names().iter().filter(|name| name.starts_with("store.shelf-")).count();
    assert_eq!(
        (shelves, disk.syncs("store.shelf-")),
        (3, 3),
        "two of `a`, of 4 MiB, and one of `b`"
    );
}

/// Frames of more than a quarter of the ring were folded when they had just been written, and so twice:
/// under a rush each third commit of rows that were soon let go.
#[tokio::test]
async fn a_large_frame_stays_in_the_ring_until_another_one_comes() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    // The ring has 16 blocks, a frame here five: with the second one more than half is taken.
    for number in 0..2 {
        let bodies = vec![Bytes::from(vec![7; 18_000])];
        let outbox = vec![OutboxRows { bodies, ..results("a", number..number, 1) }];
        commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    }
    answered(&store).await;
    let shelved = disk.length("store.shelf-00000001").unwrap();
    assert_eq!(shelved, Some(5 * 4096), "the first one alone");
    let (cut, recovery) = open(&disk.power_cut(None)).unwrap();
    assert_eq!((waiting(&cut, "a").await.len(), recovery.corrupt_records), (2, 0));
}

/// What gave way on a full disk left its shelf before that was durable: after a crash in between the
/// checkpoint named a shelf that was gone, and counted as damage what a policy had dropped.
#[tokio::test]
async fn f06_a_crash_while_things_give_way_is_no_damage() {
    let run = async |crash_at: Option<u64>| {
        let disk = FakeDisk::default();
        let (store, _) = open(&disk).unwrap();
        let four = |number: u64| {
            let bodies = vec![Bytes::from(vec![b'x'; 3_000]); 4];
            let outbox = vec![OutboxRows { bodies, ..results("a", number * 4..number * 4, 1) }];
            Commit { wait: true, outbox, ..Commit::default() }
        };
        for number in 0..20 {
            commit(&store, four(number)).await.unwrap();
        }
        answered(&store).await;
        disk.set_full(true);
        let before = disk.operations();
        if let Some(at) = crash_at {
            disk.crash_at(before + at);
        }
        for number in 20..40 {
            drop(store.submit(four(number)).await.unwrap());
            store.flush();
            answered(&store).await;
        }
        (disk.operations() - before, disk, store.backlog("a").dropped)
    };
    let (operations, disk, dropped) = run(None).await;
    assert!(dropped > 0 && operations > 40, "{dropped} dropped, {operations} operations");
    drop(disk);
    for at in (1..operations).step_by(3) {
        let (_, disk, _) = run(Some(at)).await;
        let (store, recovery) = open(&disk.power_cut(None)).unwrap();
        let rows = waiting(&store, "a").await.len() as u64;
        let (stats, backlog) = (store.stats(), store.backlog("a"));
        assert_eq!((recovery.corrupt_records, stats.corrupt_rows, backlog.lost), (0, 0, 0), "{at}");
        assert_eq!(rows, backlog.records, "operation {at}");
    }
}

/// A disk that the store itself has filled, for a sink that keeps everything: the ring filled up with
/// rows, and then no delivery could be noted that would have freed room. Only more disk helped.
#[tokio::test]
async fn f06_deliveries_free_a_disk_that_waiting_records_have_filled() {
    let disk = FakeDisk::default();
    let keeper = SinkLayout { when_full: WhenFull::Block, ..sink("a") };
    let keeps = Layout { tables: vec![], sinks: vec![keeper] };
    let (store, _) = open_with(&disk, &options(), keeps.clone()).unwrap();
    let one = |number: u64| {
        let bodies = vec![Bytes::from(vec![b'x'; 3_000])];
        let outbox = vec![OutboxRows { bodies, ..results("a", number..number, 1) }];
        Commit { wait: true, outbox, ..Commit::default() }
    };
    for number in 0..20 {
        commit(&store, one(number)).await.unwrap();
    }
    answered(&store).await;
    disk.set_room(20_000);
    let mut waiting_for = Vec::new();
    for number in 20..50 {
        waiting_for.push(store.submit(one(number)).await.unwrap());
        store.flush();
        answered(&store).await;
    }
    let stats = store.stats();
    assert!(stats.stalled.is_some() && stats.queue_len > 5, "{stats:?}");
    let durable = store.outbox_end("a");
    assert!((20..45).contains(&durable), "{durable}");
    let (cut, _) = open_with(&disk.power_cut(None), &options(), keeps).unwrap();
    assert_eq!(cut.outbox_end("a"), durable, "what is shown is durable");

    // The far side takes what it gets, ten at a time, on the same full disk.
    let mut taken = 0;
    while taken < 50 {
        let rows = store.next("a", taken, 10, 1 << 20).await.unwrap();
        taken = rows.last().unwrap().position;
        store.delivered("a", taken);
        store.flush();
        answered(&store).await;
    }
    for ticket in waiting_for {
        ticket.await.unwrap();
    }
    let backlog = store.backlog("a");
    assert_eq!((backlog.delivered, backlog.lost, backlog.dropped), (50, 0, 0));
    assert_eq!(store.stats().stalled, None);
}

/// A frame found no place in a ring that was nearly full, on a full disk: what gave way could not be noted,
/// commits were held back as if nothing might give way, and so there was never enough in memory for the
/// policies to go on. Nothing was stored any more until the disk got room, although all might be dropped.
#[tokio::test]
async fn f06_what_may_be_dropped_is_dropped_where_no_frame_fits_the_ring() {
    // The ring has 16 blocks. Where its end lies when the disk is full counts, and how large frames are:
    // four of the first take all of it. More waits than what gives way at a time, a MiB.
    for before in [120, 121, 122, 123] {
        for (room, shortest, spread) in
            [(0, 15_300, 1), (40_000, 15_300, 1), (0, 4_000, 50_000), (40_000, 4_000, 30_000)]
        {
            drop_on_a_full_disk(before, room, (shortest, spread)).await;
        }
    }
}

/// Stores `before` rows of so many bytes, or some more, leaves the disk bytes of `room`, and goes on.
async fn drop_on_a_full_disk(before: u64, room: usize, (shortest, spread): (u64, u64)) {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let one = |number: u64| {
        let length = usize::try_from(shortest + number * 7_919 % spread).unwrap();
        let bodies = vec![Bytes::from(vec![b'x'; length])];
        let outbox = vec![OutboxRows { bodies, ..results("a", number..number, 1) }];
        Commit { wait: true, outbox, ..Commit::default() }
    };
    for number in 0..before {
        commit(&store, one(number)).await.unwrap();
    }
    answered(&store).await;
    disk.set_room(room);
    let mut tickets = Vec::new();
    let end = before + 120;
    for number in before..end {
        tickets.push(store.submit(one(number)).await.unwrap());
        store.flush();
        answered(&store).await;
    }
    let durable = tickets.into_iter().filter_map(FutureExt::now_or_never).flatten().count() as u64;
    let (backlog, stats) = (store.backlog("a"), store.stats());
    let run = format!("{before}, {room}, {shortest}: {durable}, {backlog:?}, {stats:?}");
    // A MiB may wait in memory: less than 70 frames of 15 KiB or more.
    assert!(durable >= 50 && stats.queue_len == 0 && backlog.dropped > 0, "{run}");
    let (cut, _) = open(&disk.power_cut(None)).unwrap();
    let kept: Vec<u64> = waiting(&cut, "a").await.iter().map(|row| row.position).collect();
    let promised = backlog.dropped + 1..=before + durable;
    assert!(
        kept.is_sorted() && promised.into_iter().all(|at| kept.contains(&at)),
        "{kept:?}, {run}"
    );
}
