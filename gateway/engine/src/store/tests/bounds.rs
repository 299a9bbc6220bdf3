//! Bounds of outboxes and of the store, with each policy. A row of one digit weighs 1 + 4 bytes.

use futures::FutureExt;

use super::*;

fn one(sink: SinkLayout) -> Layout {
    Layout { sinks: vec![sink, super::sink("b")], ..layout() }
}

#[tokio::test]
async fn a55_drop_oldest_keeps_the_newest_within_rows_and_bytes() {
    for (max_records, max_bytes) in [(Some(4), NO_BOUND), (None, 20), (Some(4), 24)] {
        let disk = FakeDisk::default();
        let bounded = one(SinkLayout { max_bytes, max_records, ..sink("a") });
        let (store, _) = open_with(&disk, &options(), bounded.clone()).unwrap();
        put(&store, "a", 0..3).await;
        put(&store, "a", 3..9).await;
        assert_eq!(bodies(&waiting(&store, "a").await), [5, 6, 7, 8]);
        let backlog = store.backlog("a");
        assert_eq!((backlog.records, backlog.bytes, backlog.dropped), (4, 20, 5));
        assert_eq!(notices(&store, "a").await, [(5, 0, 4)], "one notice for all that is missing");
        store.close().await.unwrap();
        let (store, _) = open_with(&disk, &options(), bounded).unwrap();
        assert_eq!(store.backlog("a"), backlog, "what was dropped stays counted");
        assert_eq!(store.backlog("b").dropped, 0);
    }
}

#[tokio::test]
async fn a_row_under_way_that_is_dropped_is_counted_once() {
    let disk = FakeDisk::default();
    let bounded = one(SinkLayout { max_records: Some(2), ..sink("a") });
    let (store, _) = open_with(&disk, &options(), bounded).unwrap();
    put(&store, "a", 0..2).await;
    assert_eq!(bodies(&store.next("a", 0, 10, 1000).await.unwrap()), [0, 1]);
    put(&store, "a", 2..4).await;
    store.delivered("a", 2);
    settle(&store).await;
    let backlog = store.backlog("a");
    assert_eq!((backlog.delivered, backlog.dropped, backlog.records), (0, 2, 2));
    let next = store.next("a", 2, 10, 1000).await.unwrap();
    assert_eq!((next[0].position, bodies(&next)), (3, vec![2, 3]));
    assert_eq!(notices(&store, "a").await, [], "both arrived, so nothing is told missing");
}

#[tokio::test]
async fn drop_newest_keeps_the_oldest() {
    let disk = FakeDisk::default();
    let when_full = WhenFull::DropNewest;
    let bounded = one(SinkLayout { max_bytes: 24, when_full, ..sink("a") });
    let (store, _) = open_with(&disk, &options(), bounded).unwrap();
    put(&store, "a", 0..3).await;
    put(&store, "a", 3..9).await;
    assert_eq!((store.backlog("a").records, store.backlog("a").dropped), (4, 5));
    put(&store, "a", 9..12).await;
    assert_eq!(bodies(&waiting(&store, "a").await), [0, 1, 2, 3]);
    assert_eq!(notices(&store, "a").await, [(5, 4, 11)], "while it stays full there is one notice");
    // It is under way now, and what is under way does not change.
    put(&store, "a", 12..14).await;
    assert_eq!(notices(&store, "a").await, [(5, 4, 11), (6, 12, 13)]);
    store.delivered("a", 2);
    settle(&store).await;
    put(&store, "a", 14..15).await;
    let rows = waiting(&store, "a").await;
    assert_eq!(bodies(&rows), [2, 3, 14]);
    assert_eq!(rows[2].position, 7, "behind the notices, which have positions as well");
}

#[tokio::test]
async fn block_makes_the_submitter_wait_until_delivery_makes_room() {
    let disk = FakeDisk::default();
    let when_full = WhenFull::Block;
    let bounded = one(SinkLayout { max_records: Some(2), when_full, ..sink("a") });
    let (store, _) = open_with(&disk, &options(), bounded).unwrap();
    put(&store, "a", 0..2).await;
    let writer = store.clone();
    let blocked = tokio::spawn(async move { put(&writer, "a", 2..3).await });
    answered(&store).await;
    settle(&store).await;
    assert!(!blocked.is_finished(), "sink a is full");
    assert_eq!(waiting(&store, "b").await.len(), 1, "and sink b is not held up");
    // No flush: a submitter that waits for room is reason enough to commit the delivery.
    store.delivered("a", 1);
    blocked.await.unwrap();
    assert_eq!(bodies(&waiting(&store, "a").await), [1, 2]);
    assert_eq!(store.backlog("a").dropped, 0);
}

/// Submitters that were answered while their places were still taken asked again and again.
#[tokio::test]
async fn who_has_an_answer_finds_room_for_the_next_commit() {
    let disk = FakeDisk::default();
    let narrow = StoreOptions { queue: 1, ..options() };
    let (store, _) = open_with(&disk, &narrow, layout()).unwrap();
    for number in 0..500 {
        let outbox = vec![results("a", number..number + 1, 1)];
        let queued = store.submit(Commit { wait: true, outbox, ..Commit::default() });
        let ticket = queued.now_or_never().expect("a place is free").unwrap();
        ticket.await.unwrap();
    }
    assert_eq!(bodies(&waiting(&store, "a").await), (0..500).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_submitter_that_gives_up_leaves_nothing_behind() {
    let disk = FakeDisk::default();
    let when_full = WhenFull::Block;
    let bounded = one(SinkLayout { max_records: Some(1), when_full, ..sink("a") });
    let (store, _) = open_with(&disk, &options(), bounded).unwrap();
    put(&store, "a", 0..1).await;
    let writer = store.clone();
    let blocked = tokio::spawn(async move { put(&writer, "a", 1..2).await });
    answered(&store).await;
    blocked.abort();
    assert!(blocked.await.unwrap_err().is_cancelled());
    store.delivered("a", 1);
    settle(&store).await;
    put(&store, "a", 5..6).await;
    assert_eq!(bodies(&waiting(&store, "a").await), [5]);
}

#[tokio::test]
async fn rows_expire_by_age_from_the_front_only() {
    let disk = FakeDisk::default();
    let bounded = one(SinkLayout { max_age_us: Some(100), ..sink("a") });
    let (store, _) = open_with(&disk, &options(), bounded).unwrap();
    for (number, created) in [(0, 1_000), (1, 1_050), (2, 1_200), (3, 1_010)] {
        let outbox = vec![results("a", number..number + 1, created)];
        commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    }
    put(&store, "b", 0..1).await;
    assert_eq!(store.backlog("a").oldest_created, Some(1_000));
    store.expire(1_151);
    store.flush();
    settle(&store).await;
    assert_eq!(bodies(&waiting(&store, "a").await), [2, 3], "1,050 is 101 old, 1,200 is not");
    let backlog = store.backlog("a");
    assert_eq!((backlog.expired, backlog.dropped, backlog.records), (2, 0, 2));
    assert_eq!(notices(&store, "a").await, [(2, 0, 1)]);
    assert_eq!(waiting(&store, "b").await.len(), 2, "b has no bound of age");
}

#[tokio::test]
async fn a_full_store_takes_from_the_largest_drop_oldest_sink_and_never_from_a_keeper() {
    let disk = FakeDisk::default();
    let keeper = SinkLayout { when_full: WhenFull::DropNewest, ..sink("k") };
    let both = Layout { sinks: vec![sink("a"), sink("b"), keeper], ..layout() };
    let small = StoreOptions { max_bytes: 100, ..options() };
    let (store, _) = open_with(&disk, &small, both).unwrap();
    put(&store, "b", 0..2).await;
    put(&store, "k", 0..8).await;
    put(&store, "a", 0..9).await;
    // 10 + 40 + 45 = 95; two more rows of a are 105, so one row of a goes.
    put(&store, "a", 0..2).await;
    assert_eq!(bodies(&waiting(&store, "a").await), [1, 2, 3, 4, 5, 6, 7, 8, 0, 1]);
    assert_eq!(store.stats().held_bytes, 100);
    // The keeper may push out what others would drop, and is itself bounded by the store.
    put(&store, "k", 0..10).await;
    assert_eq!((store.backlog("k").records, store.backlog("a").records), (18, 0));
    put(&store, "k", 0..9).await;
    assert_eq!((store.backlog("k").records, store.backlog("k").dropped), (20, 7));
    assert_eq!(store.stats().held_bytes, 100);
}

#[tokio::test]
async fn a_log_that_nobody_reads_gives_way_last() {
    let disk = FakeDisk::default();
    let small = StoreOptions { max_bytes: 400, ..options() };
    let (store, _) = open_with(&disk, &small, layout()).unwrap();
    for start in 0..20 {
        let rows = vec![log_rows(start..start + 1)];
        commit(&store, Commit { rows, ..Commit::default() }).await.unwrap();
        assert!(store.stats().held_bytes <= 400);
    }
    let left = logged(&store, 0).await;
    assert_eq!(left.last(), Some(&19));
    assert_eq!(left.len() as u64 + store.stats().log_rows_dropped, 20);
    assert!(left.len() > 3, "{left:?}");
}

/// F9: ten times as much as an outbox may hold, on a real folder. The bound holds, also for the files,
/// and what was dropped is counted and told.
#[tokio::test]
async fn f09_ten_times_too_much_stays_within_the_bound_and_is_told() {
    let folder = super::kill::Scratch::new("bound");
    let max_bytes = 8 << 20;
    let bounded = Layout { sinks: vec![SinkLayout { max_bytes, ..sink("a") }], ..layout() };
    let options = StoreOptions { dir: folder.0.join("store"), ring_bytes: 1 << 20, ..options() };
    let (store, _) = Store::open(options, bounded).unwrap();
    let row = vec![b'x'; 1_000];
    let (mut put, mut largest) = (0_u64, 0);
    for round in 0..80 {
        let bodies = vec![Bytes::from(row.clone()); 1_049];
        let rows = OutboxRows { bodies, first_seq: put, ..results("a", 0..0, round) };
        put += 1_049;
        commit(&store, Commit { outbox: vec![rows], ..Commit::default() }).await.unwrap();
        let files = std::fs::read_dir(folder.0.join("store")).unwrap();
        let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
        largest = largest.max(bytes);
    }
    let backlog = store.backlog("a");
    assert_eq!(backlog.records + backlog.dropped, put);
    assert_eq!(backlog.records, max_bytes / 1_004, "as many as fit");
    assert_eq!(notices(&store, "a").await, [(backlog.dropped, 0, backlog.dropped - 1)]);
    // The ring, one shelf that is half passed and one that is being filled, the tree and the reserve.
    let bound = max_bytes + (1 << 20) + (8 << 20) + (2 << 20);
    assert!(largest <= bound, "{largest} of {bound}");
}

/// What was written today counts over restarts and kills, and begins anew with the day (UTC).
#[tokio::test]
async fn p08_what_was_written_today_is_known_over_restarts() {
    const DAY: i64 = 86_400_000_000;
    let disk = FakeDisk::default();
    let now = 20_000 * DAY + 5;
    let (store, _) = open(&disk).unwrap();
    store.expire(now);
    put(&store, "a", 0..1).await;
    let one = store.stats().written_today;
    // A frame takes one block at least, and its header comes once more with the first start.
    assert!(one >= 4_096, "{one}");
    for _ in 0..9 {
        put(&store, "a", 0..1).await;
    }
    let ten = store.stats().written_today;
    assert!((9 * 4_096..=9 * 8_192).contains(&(ten - one)), "{one}, then {ten}");

    // Killed: what its last frame says is what is known, all but that frame.
    let disk = disk.power_cut(None);
    let (store, _) = open(&disk).unwrap();
    store.expire(now + 1);
    put(&store, "a", 0..1).await;
    let killed = store.stats().written_today;
    assert!(killed >= ten - 4_096, "{ten} before the kill, {killed} behind it");
    store.close().await.unwrap();

    let (store, _) = open(&disk).unwrap();
    store.expire(now + 2);
    put(&store, "a", 0..1).await;
    let closed = store.stats().written_today;
    assert!(closed >= ten, "{ten} before the close, {closed} behind it");
    store.expire(now + DAY);
    put(&store, "a", 0..1).await;
    assert!(store.stats().written_today < one + 8_192, "a new day: {:?}", store.stats());
}

/// Between two checkpoints, of which a ring of 8 MiB has one each 4 MiB: what the frames between them wrote
/// was forgotten with a kill.
#[tokio::test]
async fn p08_what_was_written_today_is_known_after_a_kill() {
    const KB: u64 = 1_000;
    let options = StoreOptions { ring_bytes: 8 << 20, ..options() };
    let disk = FakeDisk::default();
    let (store, _) = open_with(&disk, &options, layout()).unwrap();
    store.expire(86_400_000_000 * 20_000);
    for number in 0..30 {
        let bodies = vec![Bytes::from(vec![b'x'; 100_000])];
        let outbox = vec![OutboxRows { bodies, ..results("a", number..number, 1) }];
        commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    }
    let before = store.stats().written_today;
    assert!((3_000 * KB..3_400 * KB).contains(&before), "{before}");
    let (store, _) = open_with(&disk.killed(), &options, layout()).unwrap();
    answered(&store).await;
    let after = store.stats().written_today;
    // All but 256 KiB, and the frame that would have said so.
    assert!(
        (before - 400 * KB..=before).contains(&after),
        "{before} before the kill, {after} behind it"
    );
}

fn kept_aside(disk: &FakeDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.contains(".quarantine-")).collect()
}

/// Damaged files were kept beside the bound, four of each name: more than the store itself may have.
#[tokio::test]
async fn a55_damaged_files_that_are_kept_have_a_bound() {
    const MIB: usize = 1 << 20;
    for (sizes, left) in [
        (vec![1, 1, 1, 1, 1, 1], vec![3, 4, 5, 6]),
        (vec![1, 3, 1, 1, 1], vec![3, 4, 5]),
        // The newest of each name stay, however large they are.
        (vec![1, 1, 30], vec![2, 3]),
    ] {
        let disk = FakeDisk::default();
        for (number, size) in (1..).zip(&sizes) {
            let file = if number % 2 == 0 { "store.ring" } else { "store.redb" };
            disk.place(&format!("{file}.quarantine-{number}"), &vec![7; size * MIB]);
        }
        let bounded = StoreOptions { max_bytes: 16 << 20, ..options() };
        let (store, _) = open_with(&disk, &bounded, layout()).unwrap();
        let mut numbers: Vec<usize> = kept_aside(&disk)
            .iter()
            .map(|name| name.rsplit_once('-').unwrap().1.parse().unwrap())
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, left, "{sizes:?}");
        answered(&store).await;
        let kept: usize = left.iter().map(|number| sizes[number - 1] * MIB).sum();
        let told = store.stats().file_bytes;
        assert!(told > kept as u64 && told < (kept + MIB) as u64, "{sizes:?}: {told}");
        store.close().await.unwrap();
    }
}

/// A disk without room, and 200 kB of it is a damaged file that was kept: that goes, and no record does.
#[tokio::test]
async fn f06_what_was_kept_aside_goes_before_any_record() {
    for kept in [false, true] {
        let disk = FakeDisk::default();
        let (store, _) = open(&disk).unwrap();
        store.close().await.unwrap();
        if kept {
            disk.place("store.ring.quarantine-1", &vec![7; 200_000]);
        }
        let (store, _) = open(&disk).unwrap();
        disk.set_room(0);
        // Twice what the ring holds.
        let mut tickets = Vec::new();
        for number in 0..14 {
            let bodies = vec![Bytes::from(vec![b'x'; 9_000])];
            let outbox = vec![OutboxRows { bodies, ..results("a", number..number, 1) }];
            let commit = Commit { wait: true, outbox, ..Commit::default() };
            tickets.push(store.submit(commit).await.unwrap());
            store.flush();
            answered(&store).await;
        }
        let told = tickets.into_iter().map(FutureExt::now_or_never);
        let durable = told.flatten().count();
        let dropped = store.backlog("a").dropped;
        assert_eq!(durable == 14 && dropped == 0, kept, "{durable}, {dropped} dropped");
        assert!(kept_aside(&disk).is_empty());
    }
}

/// P7: logs that have more than their share give way before a new row of a sink does.
#[tokio::test]
async fn p07_logs_beyond_their_share_leave_room_for_a_sink_that_drops_the_newest() {
    let disk = FakeDisk::default();
    let keeps = SinkLayout { max_bytes: 5_000, when_full: WhenFull::DropNewest, ..sink("a") };
    let layout = Layout { sinks: vec![keeps], ..layout() };
    let options = StoreOptions { max_bytes: 20_000, ..options() };
    let (store, _) = open_with(&disk, &options, layout).unwrap();
    let mut end = 0;
    while store.stats().log_rows_dropped == 0 {
        let rows = vec![log_rows(end..end + 10)];
        commit(&store, Commit { rows, ..Commit::default() }).await.unwrap();
        end += 10;
    }
    assert!(store.stats().held_bytes > 15_000, "{:?}", store.stats());
    let bodies = vec![Bytes::from(vec![b'x'; 1_000]); 4];
    let outbox = vec![OutboxRows { bodies, ..results("a", 0..1, 1) }];
    commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
    let backlog = store.backlog("a");
    assert_eq!((backlog.records, backlog.dropped), (4, 0));
    assert!(store.stats().held_bytes <= 20_000, "{:?}", store.stats());
}
