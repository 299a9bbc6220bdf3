//! The store without faults: order, durability, cursors, logs, when it writes.

use super::*;

#[tokio::test]
async fn gives_back_what_was_put_in_order_with_ids_and_windows() {
    let disk = FakeDisk::default();
    let (store, recovery) = open(&disk).unwrap();
    assert!(recovery.created);
    assert_eq!(store.epoch(), 7);
    put(&store, "a", 100..103).await;
    let rows = store.next("a", 0, 10, 1000).await.unwrap();
    let expected: Vec<OutboxRow> = (0..3)
        .map(|n| OutboxRow {
            position: n + 1,
            epoch: 7,
            stream: "s".into(),
            seq: 100 + n,
            body: Bytes::from((100 + n).to_string()),
            window: Some((10, 20)),
            created: 1,
            gap: None,
        })
        .collect();
    assert_eq!(rows, expected);
    // At most two rows; at most three bytes after the first row, which always comes.
    assert_eq!(bodies(&store.next("a", 0, 2, 1000).await.unwrap()), [100, 101]);
    assert_eq!(bodies(&store.next("a", 0, 10, 6).await.unwrap()), [100, 101]);
    assert_eq!(bodies(&store.next("a", 1, 10, 0).await.unwrap()), [101]);
}

#[tokio::test]
async fn a_large_commit_is_read_in_small_pieces() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let bodies: Vec<Bytes> = (0..100_u8).map(|n| Bytes::from(vec![n; 3_000])).collect();
    let rows = OutboxRows { bodies: bodies.clone(), ..results("a", 0..0, 1) };
    commit(&store, Commit { outbox: vec![rows], ..Commit::default() }).await.unwrap();
    assert_eq!(store.backlog("a").bytes, 100 * 3_004);
    let found: Vec<Bytes> = waiting(&store, "a").await.into_iter().map(|row| row.body).collect();
    assert_eq!(found, bodies);
    // Delivered in the middle of a chunk: the rest is intact.
    store.delivered("a", 50);
    settle(&store).await;
    assert_eq!(waiting(&store, "a").await[0].body, bodies[50]);
    assert_eq!(store.backlog("a").bytes, 50 * 3_004);
}

#[tokio::test]
async fn next_waits_until_rows_are_durable() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let reader = store.clone();
    let pump = tokio::spawn(async move { bodies(&reader.next("a", 0, 10, 1000).await.unwrap()) });
    let outbox = vec![results("a", 0..2, 1)];
    let ticket = store.submit(Commit { outbox, ..Commit::default() }).await.unwrap();
    answered(&store).await;
    assert!(!pump.is_finished(), "nobody waits for the commit, so it waits for the flush");
    assert_eq!(store.backlog("a").records, 0);
    store.flush();
    ticket.await.unwrap();
    assert_eq!(pump.await.unwrap(), [0, 1]);
}

/// A50: a restart with everything delivered sent the whole file again elsewhere. A48: reading ahead
/// of the deletion sent a batch twice without any fault.
#[tokio::test]
async fn a50_a_cursor_survives_a_restart_with_nothing_but_a_flush() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..10).await;
    store.delivered("a", 4);
    store.delivered("a", 6);
    store.delivered("a", 5);
    assert_eq!(store.backlog("a").records, 4, "a delivered row does not wait");
    assert_eq!(store.cursor("a"), 0, "not durable yet");
    store.close().await.unwrap();

    let (store, recovery) = open(&disk).unwrap();
    assert_eq!(recovery, Recovery { clean: true, ..Recovery::default() });
    assert_eq!(store.cursor("a"), 6);
    assert_eq!(bodies(&waiting(&store, "a").await), [6, 7, 8, 9]);
    let backlog = store.backlog("a");
    assert_eq!((backlog.records, backlog.delivered, backlog.bytes), (4, 6, 4 * 5));
    store.delivered("a", 1_000);
    settle(&store).await;
    assert_eq!((store.cursor("a"), store.backlog("a").bytes), (10, 0), "the end is the end");
    put(&store, "a", 10..11).await;
    let rows = store.next("a", 0, 10, 1000).await.unwrap();
    assert_eq!((rows[0].position, rows.len()), (11, 1));
}

#[tokio::test]
async fn sinks_share_nothing() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let outbox = vec![results("a", 0..3, 1), results("b", 0..3, 1)];
    commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    store.delivered("a", 3);
    store.reject("b", 1, "no");
    settle(&store).await;
    assert_eq!(waiting(&store, "a").await, []);
    assert_eq!(bodies(&waiting(&store, "b").await), [1, 2, 0]);
    assert_eq!((store.backlog("a").rejected, store.backlog("b").rejected), (0, 1));
}

/// F17 / P12: a refused record goes to the dead letters and the head moves on, at once.
#[tokio::test]
async fn f17_a_refused_record_is_kept_with_its_reason_and_lets_the_others_pass() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..5).await;
    store.reject("a", 3, "too large");
    store.reject("a", 3, "asked twice");
    store.reject("a", 99, "no such row");
    store.close().await.unwrap();
    let (store, _) = open(&disk).unwrap();
    assert_eq!(bodies(&waiting(&store, "a").await), [3, 4]);
    let letters = store.rejected("a", 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].row.position, letters[0].row.seq), (3, 2));
    assert_eq!((&letters[0].row.body[..], &*letters[0].reason), (&b"2"[..], "too large"));
    let backlog = store.backlog("a");
    assert_eq!((backlog.delivered, backlog.rejected, backlog.records), (2, 1, 2));
}

#[tokio::test]
async fn dead_letters_are_bounded() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..1_003).await;
    for position in 1..=1_003 {
        store.reject("a", position, "no");
    }
    settle(&store).await;
    let letters = store.rejected("a", 5_000).await.unwrap();
    assert_eq!(letters.len(), 1_000);
    assert_eq!((letters[0].row.position, letters[999].row.position), (4, 1_003));
    let backlog = store.backlog("a");
    assert_eq!((backlog.rejected, backlog.letters, backlog.letters_dropped), (1_003, 1_000, 3));
}

#[tokio::test]
async fn a_log_keeps_rows_until_every_reader_has_passed_them() {
    let disk = FakeDisk::default();
    let two = Layout {
        tables: vec![TableLayout {
            name: "t".into(),
            readers: vec!["s".into(), "x".into()],
            history_us: None,
        }],
        sinks: vec![sink("b")],
    };
    let (store, _) = open_with(&disk, &options(), two.clone()).unwrap();
    for start in [0, 4, 8] {
        let rows = vec![log_rows(start..start + 4)];
        commit(&store, Commit { rows, ..Commit::default() }).await.unwrap();
    }
    assert_eq!(logged(&store, 0).await, (0..12).collect::<Vec<_>>());
    assert_eq!(logged(&store, 6).await, (6..12).collect::<Vec<_>>());
    let ahead = Some(progress(b"s", 12, 9));
    commit(&store, Commit { progress: ahead.clone(), ..Commit::default() }).await.unwrap();
    assert_eq!(logged(&store, 0).await.len(), 12, "x has no progress and needs every row");
    let behind = StreamProgress { stream: "x".into(), ..progress(b"x", 12, 6) };
    commit(&store, Commit { progress: Some(behind), ..Commit::default() }).await.unwrap();
    assert_eq!(logged(&store, 0).await, (6..12).collect::<Vec<_>>(), "6 is the lower floor");
    store.close().await.unwrap();

    let (store, _) = open_with(&disk, &options(), two).unwrap();
    assert_eq!(logged(&store, 0).await, (6..12).collect::<Vec<_>>());
    assert_eq!(store.log_end("t"), 12);
    assert_eq!(store.progress("s"), ahead);
    assert_eq!(store.progress("nobody"), None);
}

#[tokio::test]
async fn rows_that_every_reader_passes_in_their_own_commit_are_never_written() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let rows = vec![log_rows(0..1_000)];
    let ticket = store.submit(Commit { rows, ..Commit::default() }).await.unwrap();
    let done = Some(progress(b"", 1_000, 998));
    commit(&store, Commit { progress: done, ..Commit::default() }).await.unwrap();
    ticket.await.unwrap();
    assert_eq!(logged(&store, 0).await, [998, 999]);
    // Two rows: time 16, seq 16, value 16, two texts that are stored once, the key and framing.
    assert!(store.stats().held_bytes < 120, "{}", store.stats().held_bytes);
    store.close().await.unwrap();
    let (store, _) = open(&disk).unwrap();
    assert_eq!(store.log_end("t"), 1_000);
}

#[tokio::test]
async fn a_table_whose_columns_change_keeps_its_old_rows() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    commit(&store, Commit { rows: vec![log_rows(0..2)], ..Commit::default() }).await.unwrap();
    let narrow = rows(2..4).project(&[0, 3]).unwrap();
    let part = LogRows { position: 2, batch: narrow.clone(), ..log_rows(2..3) };
    let parts = vec![part, log_rows(4..6)];
    commit(&store, Commit { rows: parts, ..Commit::default() }).await.unwrap();
    store.close().await.unwrap();
    let (store, _) = open(&disk).unwrap();
    let found = store.read_log("t", 0, 100).await.unwrap();
    assert_eq!(found, [(0, rows(0..2)), (2, narrow), (4, rows(4..6))]);
}

#[tokio::test]
async fn faults_of_the_caller_are_refused() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let refused = commit(&store, Commit { rows: vec![log_rows(5..6)], ..Commit::default() }).await;
    assert!(matches!(refused, Err(StoreError::Position { position: 5, expected: 0, .. })));
    let outbox = vec![results("nobody", 0..1, 1)];
    let refused = commit(&store, Commit { outbox, ..Commit::default() }).await;
    assert!(matches!(refused, Err(StoreError::Unknown(_))));
    assert!(matches!(store.next("nobody", 0, 1, 1).await, Err(StoreError::Unknown(_))));
    assert!(matches!(open(&disk), Err(StoreError::Locked { .. })), "one store at a time");
    let other = store.clone();
    store.close().await.unwrap();
    assert!(matches!(settle_on(&other).await, Err(StoreError::Closed)));
    assert!(matches!(other.next("a", 0, 1, 1).await, Err(StoreError::Closed)));
}

async fn settle_on(store: &Store) -> Result<(), StoreError> {
    commit(store, Commit { outbox: vec![results("b", 0..1, 1)], ..Commit::default() }).await
}

#[tokio::test]
async fn nothing_is_written_when_nothing_happened() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..2).await;
    store.delivered("a", 2);
    settle(&store).await;
    answered(&store).await;
    let before = (disk.operations(), store.stats().commits);
    for _ in 0..10 {
        store.delivered("a", 2);
        store.expire(i64::MAX);
        store.flush();
        answered(&store).await;
    }
    assert_eq!(store.stats().commits, before.1);
    let written = store.stats().bytes_written;
    store.flush();
    answered(&store).await;
    assert_eq!(store.stats().bytes_written, written);
}

/// After a crash comes again what was delivered since the last durable cursor: a thousand records and what
/// is handed over at once, not all that `commit_every` has room for.
#[tokio::test]
async fn f01_a_thousand_deliveries_make_a_commit_due() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..5_000).await;
    put(&store, "b", 0..5_000).await;
    // What is marked for the two sinks; how many commits there are then, and where the cursors stand. In
    // the second step `b` has not enough for a commit, and goes with that of `a`. 1,500 at once are one.
    let steps: [(u64, u64, u64, (u64, u64)); 7] = [
        (999, 999, 2, (0, 0)),
        (1_000, 999, 3, (1_000, 999)),
        (1_999, 1_998, 3, (1_000, 999)),
        (1_999, 1_999, 4, (1_999, 1_999)),
        (2_998, 1_999, 4, (1_999, 1_999)),
        (4_498, 1_999, 5, (4_498, 1_999)),
        (5_000, 1_999, 5, (4_498, 1_999)),
    ];
    for (a, b, commits, cursors) in steps {
        store.delivered("a", a);
        store.delivered("b", b);
        answered(&store).await;
        assert_eq!(store.stats().commits, commits, "after {a} of a and {b} of b");
        assert_eq!((store.cursor("a"), store.cursor("b")), cursors);
    }
    let before = disk.operations();
    answered(&store).await;
    assert_eq!(disk.operations(), before, "nothing more is delivered, and nothing is written");

    // What a kill leaves: 502 of `a` come again, and none of `b`, where nothing was delivered since.
    let left = disk.killed();
    drop(store);
    let (store, _) = open(&left).unwrap();
    assert_eq!((store.cursor("a"), store.cursor("b")), (4_498, 1_999));
}

#[tokio::test]
async fn f01_deliveries_of_both_lanes_count_together() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..2_000).await;
    assert_eq!(store.split("a").await.unwrap().map(|lanes| lanes.split), Some(2_000));
    put(&store, "a", 2_000..4_000).await;
    let before = store.stats().commits;
    store.delivered("a", 600);
    store.delivered_live("a", 2_399);
    answered(&store).await;
    assert_eq!((store.stats().commits, store.cursor("a")), (before, 0), "999 are not enough");
    store.delivered_live("a", 2_400);
    answered(&store).await;
    assert_eq!((store.stats().commits, store.cursor("a")), (before + 1, 600));
    assert_eq!(store.lanes("a").map(|lanes| lanes.live), Some(2_400));
}

/// A53: one record a write and a sync each took 1,700 of them a second elsewhere.
#[tokio::test]
async fn a53_one_commit_serves_many_and_bytes_make_it_due() {
    let disk = FakeDisk::default();
    let small = StoreOptions { commit_bytes: 1_000, ..options() };
    let (store, _) = open_with(&disk, &small, layout()).unwrap();
    let mut tickets = Vec::new();
    // 9 x (100 + 4) = 936 bytes wait; the tenth passes 1,000.
    for seq in 0..10 {
        let bodies = vec![Bytes::from(vec![0; 100])];
        let rows = OutboxRows { bodies, first_seq: seq, ..results("a", 0..0, 1) };
        if seq == 9 {
            answered(&store).await;
            assert_eq!((store.stats().commits, store.stats().queue_len), (0, 9));
        }
        let outbox = vec![rows];
        tickets.push(store.submit(Commit { outbox, ..Commit::default() }).await.unwrap());
    }
    for ticket in tickets {
        ticket.await.unwrap();
    }
    assert_eq!(store.stats().commits, 1);
    assert_eq!(waiting(&store, "a").await.len(), 10);
}

#[tokio::test]
async fn a_full_queue_makes_submitters_wait_and_commits_by_itself() {
    let disk = FakeDisk::default();
    let narrow = StoreOptions { queue: 4, ..options() };
    let (store, _) = open_with(&disk, &narrow, layout()).unwrap();
    for seq in 0..100 {
        let outbox = vec![results("a", seq..seq + 1, 1)];
        drop(store.submit(Commit { outbox, ..Commit::default() }).await.unwrap());
        assert!(store.stats().queue_len <= 4);
    }
    store.close().await.unwrap();
    let (store, _) = open(&disk).unwrap();
    assert_eq!(bodies(&waiting(&store, "a").await), (0..100).collect::<Vec<_>>());
}

/// A46: a change of configuration never drops stored data.
#[tokio::test]
async fn a46_what_the_layout_does_not_name_is_kept() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..3).await;
    commit(&store, Commit { rows: vec![log_rows(0..2)], ..Commit::default() }).await.unwrap();
    store.close().await.unwrap();
    let other = Layout { tables: vec![], sinks: vec![sink("b")] };
    let (store, recovery) = open_with(&disk, &options(), other).unwrap();
    assert_eq!(recovery.unclaimed, ["sink a", "table t"]);
    settle(&store).await;
    store.close().await.unwrap();
    let (store, recovery) = open(&disk).unwrap();
    assert!(recovery.unclaimed.is_empty());
    assert_eq!(bodies(&waiting(&store, "a").await), [0, 1, 2]);
    assert_eq!(logged(&store, 0).await, [0, 1]);
}

/// A check of everything kept every commit and every delivery waiting until it was through.
#[tokio::test]
async fn a_check_of_everything_lets_commits_pass() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    for number in 0..10 {
        let bodies = vec![Bytes::from(vec![7; 300_000])];
        let outbox = vec![OutboxRows { bodies, ..results("a", number..number, 1) }];
        commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    }
    let mut verify = std::pin::pin!(store.verify());
    let held = disk.hold();
    assert!(futures::poll!(&mut verify).is_pending());
    // Logs are looked at after outboxes: what is committed after the first MiB of these is seen.
    let rows = vec![log_rows(0..5)];
    let commit = store.submit(Commit { wait: true, rows, ..Commit::default() });
    let ticket = futures::FutureExt::now_or_never(commit).unwrap().unwrap();
    drop(held);
    ticket.await.unwrap();
    let verified = verify.await.unwrap();
    assert_eq!((verified.rows, verified.corrupt_records), (15, 0));
}

#[tokio::test]
async fn a_check_that_nobody_waits_for_ends_and_others_are_answered() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..3).await;
    {
        let mut gone = std::pin::pin!(store.verify());
        let _held = disk.hold();
        assert!(futures::poll!(&mut gone).is_pending());
    }
    let (first, second) = tokio::join!(store.verify(), store.verify());
    assert_eq!((first.unwrap().rows, second.unwrap().rows), (3, 3));
    store.close().await.unwrap();
}

/// What a frame brings is made while the one before is written. Until that is durable nobody sees it.
#[tokio::test]
async fn while_a_frame_is_written_nothing_of_it_or_the_next_is_seen() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..1).await;
    let syncs = disk.syncs("store.ring");
    let number = |n: u64, wait| Commit {
        wait,
        outbox: vec![results("a", n..n + 1, 1)],
        progress: Some(progress(&[1], n, 0)),
        ..Commit::default()
    };
    let held = disk.hold_syncs();
    // The second one takes the first along: two in a frame are written beside what comes.
    let mut tickets = vec![store.submit(number(1, false)).await.unwrap()];
    for n in 2..=60 {
        tickets.push(store.submit(number(n, true)).await.unwrap());
    }
    // Of 60 the first frame has some, and more than a bite waited: they are in the next one.
    while store.stats().queue_len >= 32 {
        tokio::task::yield_now().await;
    }
    let seen = store.next("a", 0, 100, 1 << 20).await.unwrap();
    assert_eq!(bodies(&seen), [0]);
    assert_eq!((store.outbox_end("a"), store.backlog("a").records), (1, 1));
    assert_eq!((store.progress("s"), store.stats().commits), (None, 1));
    for ticket in &mut tickets {
        assert!(futures::poll!(ticket).is_pending());
    }
    let beyond = store.next("a", 1, 100, 1 << 20);
    tokio::pin!(beyond);
    assert!(futures::poll!(&mut beyond).is_pending());
    // Nor does a cut find it.
    let cut = disk.power_cut(None);
    drop(held);
    for ticket in tickets {
        ticket.await.unwrap();
    }
    assert!(!beyond.await.unwrap().is_empty());
    assert_eq!(bodies(&waiting(&store, "a").await), (0..=60).collect::<Vec<_>>());
    assert!(disk.syncs("store.ring") - syncs <= 4, "60 commits in few frames");
    assert_eq!(store.progress("s"), Some(progress(&[1], 60, 0)));
    let (cut, recovery) = open(&cut).unwrap();
    assert_eq!((recovery.corrupt_records, bodies(&waiting(&cut, "a").await)), (0, vec![0]));
}
