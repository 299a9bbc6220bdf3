//! Who gets the memory while the disk takes no writes: what moves. P6, P7, F8.

use super::stall::{LARGE, taken};
use super::*;

/// One sink takes all and the other nothing, of records of 300 kB, while the disk takes no writes: the first
/// gets all of them. Of what the other misses nothing is uncounted, and it is told.
#[tokio::test]
async fn f08_p07_a_sink_that_is_away_stops_no_other_while_the_disk_takes_no_writes() {
    let disk = FakeDisk::default();
    let options = StoreOptions { ring_bytes: 16 << 20, ..options() };
    let (store, _) = open_with(&disk, &options, layout()).unwrap();
    let both = |number: u64| {
        let body = Bytes::from(vec![b'x'; LARGE]);
        let rows = |sink, stream: &str| OutboxRows {
            stream: stream.into(),
            bodies: vec![body.clone()],
            ..results(sink, number..number, 1)
        };
        // Two streams come to the sink that is away, by turns.
        let stream = if number.is_multiple_of(2) { "s" } else { "r" };
        let outbox = vec![rows("a", "s"), rows("b", stream)];
        Commit { wait: true, outbox, ..Commit::default() }
    };
    commit(&store, both(0)).await.unwrap();
    disk.set_broken(&["store.ring"]);
    let (mut tickets, mut first) = (Vec::new(), 0);
    for number in 1..150 {
        tickets.push(taken(&store, number, both(number)).await);
        let shown = store.next("a", number, 1, LARGE).await.unwrap();
        assert_eq!((shown[0].position, shown[0].body.len()), (number + 1, LARGE));
        store.delivered("a", number);
        let away = store.backlog("b");
        assert_eq!(away.delivered + away.records + away.dropped, number + 1);
        assert_eq!(away.dropped, away.no_room);
        assert!(away.gaps <= 4, "a notice a stream and time: {away:?}");
        if number == 100 {
            // It comes back, takes all records, and is away again: 101 comes before that is known.
            first = away.records;
            store.delivered("b", first);
        }
    }
    assert!((5..20).contains(&first), "{first}");
    assert_eq!(store.backlog("a").dropped, 0);
    let told = notices(&store, "b").await;
    let told: Vec<_> = told.iter().map(|(_, from, to)| (*from, *to)).collect();
    let odd = |seq: u64| seq + 1 - seq % 2;
    let even = |seq: u64| seq + seq % 2;
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told.contains(&(even(first), 100)) && told.contains(&(odd(first), 101)), "{told:?}");

    disk.set_broken(&[]);
    tickets.push(taken(&store, 150, both(150)).await);
    for ticket in tickets {
        ticket.await.unwrap();
    }
    put(&store, "b", 151..152).await;
    assert!(store.stats().stalled.is_none());
    let away = store.backlog("b");
    assert_eq!(open_rows(&store, "b").await.last().unwrap().seq, 151, "it gets records again");
    let (store, recovery) = open_with(&disk.power_cut(None), &options, layout()).unwrap();
    assert_eq!((recovery.corrupt_records, store.stats().corrupt_rows), (0, 0));
    assert_eq!(store.backlog("b"), away);
    // Who is told has each number once, whatever became of it.
    let mut all: Vec<u64> = (0..first).collect();
    for row in open_rows(&store, "b").await {
        let numbers = row.gap.map_or(row.seq..=row.seq, |gap| gap.from..=gap.to);
        let is_odd = u64::from(&*row.stream == "r");
        all.extend(numbers.filter(|n| row.gap.is_none() || n % 2 == is_odd));
    }
    all.sort_unstable();
    assert_eq!(all, (0..152).collect::<Vec<_>>());
    store.close().await.unwrap();
}

/// A sink that is away and at a bound of its own drops its oldest records all the time, and one that is alive
/// takes longer than from one look to the next: it is not the one to be refused.
#[tokio::test]
async fn f08_p07_what_a_sink_drops_is_not_what_it_takes() {
    let disk = FakeDisk::default();
    let options = StoreOptions { ring_bytes: 16 << 20, ..options() };
    let away = SinkLayout { max_bytes: 3_700_000, ..sink("b") };
    let layout = Layout { sinks: vec![sink("a"), away], ..layout() };
    let (store, _) = open_with(&disk, &options, layout).unwrap();
    let rows = |sink, first: u64, count: u64| OutboxRows {
        bodies: vec![Bytes::from(vec![b'x'; LARGE]); usize::try_from(count).unwrap()],
        ..results(sink, first..first, 1)
    };
    let one = |outbox| Commit { wait: true, outbox, ..Commit::default() };
    commit(&store, one(vec![rows("b", 0, 1)])).await.unwrap();
    disk.set_broken(&["store.ring"]);
    let mut passed = 0;
    for number in 1..50 {
        // The one that is away is at its bound before there is too much.
        let count = if number < 20 { 1 } else { 6 };
        let both = vec![rows("a", passed, count), rows("b", 2 * number, 1)];
        drop(taken(&store, number, one(both)).await);
        drop(taken(&store, number, one(vec![rows("b", 2 * number + 1, 1)])).await);
        passed += count;
        store.delivered("a", passed);
    }
    assert_eq!((store.backlog("a").dropped, store.backlog("a").no_room), (0, 0));
    let away = store.backlog("b");
    assert!(away.no_room > 10 && away.dropped > away.no_room, "{away:?}");
}

/// A row of 300 kB that its only reader has passed, and a record that is delivered.
fn remembered(number: u64) -> Commit {
    let batch = RecordBatch::try_from_iter([
        ("seq", Arc::new(UInt64Array::from(vec![number])) as ArrayRef),
        ("payload", Arc::new(StringArray::from(vec!["x".repeat(LARGE)]))),
    ]);
    let (table, position) = ("t".into(), number);
    let rows = LogRows { table, position, accepted: 1_000, stamps: None, batch: batch.unwrap() };
    Commit {
        wait: true,
        rows: vec![rows],
        outbox: vec![results("a", number..number + 1, 1)],
        progress: Some(progress(b"", number + 1, number + 1)),
        ..Commit::default()
    }
}

/// Several sinks are away, also so many that the share of each is small, and there is history as well: the one
/// that takes its records gets all of them, and what the others hold is bounded.
#[tokio::test]
async fn f08_p07_sinks_that_are_away_stop_no_other_while_the_disk_takes_no_writes() {
    for others in [2, 3, 9] {
        let disk = FakeDisk::default();
        let options = StoreOptions { ring_bytes: 32 << 20, ..options() };
        let mut layout = layout();
        layout.tables[0].history_us = Some(100);
        let names: Vec<String> = (0..others).map(|number| format!("away{number}")).collect();
        layout.sinks = names.iter().map(|name| sink(name)).chain([sink("a")]).collect();
        let (store, _) = open_with(&disk, &options, layout).unwrap();
        let all = |number: u64| {
            let body = Bytes::from(vec![b'x'; LARGE]);
            let mut one = remembered(number);
            // The first is away from the beginning, the others later and later.
            for (begin, name) in (0..).step_by(10).zip(&names).filter(|(at, _)| *at <= number) {
                let (first, bodies) = (number - begin, vec![body.clone()]);
                one.outbox.push(OutboxRows { bodies, ..results(name, first..first, 1) });
            }
            one
        };
        commit(&store, all(0)).await.unwrap();
        disk.set_broken(&["store.ring"]);
        for number in 1..150 {
            drop(taken(&store, number, all(number)).await);
            assert_eq!(bodies(&store.next("a", number, 1, 99).await.unwrap()), [number]);
            store.delivered("a", number + 1);
            let held: u64 = names.iter().map(|name| store.backlog(name).bytes).sum();
            assert!(held < 16 << 20, "{held} with {others}");
        }
        let dropped = |name: &String| store.backlog(name).dropped;
        // One goes on getting records as long as there is room.
        let stopped = names.iter().filter(|name| dropped(name) > 0).count();
        assert_eq!((stopped, store.backlog("a").dropped), (others, 0));
    }
}

/// The numbers of the rows of 300 kB that are kept.
async fn kept(store: &Store) -> Vec<u64> {
    let (mut all, mut from) = (Vec::new(), 0);
    loop {
        let found = store.read_log("t", from, 5).await.unwrap();
        let Some((last, _)) = found.last() else { return all };
        from = last + 1;
        for (position, batch) in &found {
            let seqs = batch.column_by_name("seq").unwrap().as_primitive::<UInt64Type>();
            assert_eq!(seqs.values(), &[*position]);
            all.push(*position);
        }
    }
}

/// Rows that only `history` keeps stand in nobody's way while the disk takes no writes: the oldest of those in
/// memory go, and that is no damage, before and after a crash at some operation of what follows.
#[tokio::test]
async fn f08_p06_history_stops_no_forwarding_while_the_disk_takes_no_writes() {
    let options = StoreOptions { ring_bytes: 16 << 20, ..options() };
    let mut layout = layout();
    layout.tables[0].history_us = Some(100);
    let mut operation = 0;
    loop {
        operation += 1 + operation / 2;
        let disk = FakeDisk::default();
        let (store, _) = open_with(&disk, &options, layout.clone()).unwrap();
        for number in 0..3 {
            commit(&store, remembered(number)).await.unwrap();
        }
        disk.set_broken(&["store.ring"]);
        let mut tickets = Vec::new();
        for number in 3..100 {
            tickets.push(taken(&store, number, remembered(number)).await);
            assert_eq!(bodies(&store.next("a", number, 1, 99).await.unwrap()), [number]);
            store.delivered("a", number + 1);
        }
        let (all, dropped) = (kept(&store).await, store.stats().log_rows_dropped);
        assert_eq!(all.len() as u64 + dropped, 100);
        assert!(all.len() > 5 && all.len() < 35, "{all:?}");
        let newest = 100 - (all.len() as u64 - 3);
        assert_eq!(all, (0..3).chain(newest..100).collect::<Vec<_>>());
        assert_eq!(store.stats().corrupt_rows, 0);
        disk.set_broken(&[]);
        disk.crash_at(disk.operations() + operation);
        store.flush();
        let mut durable = 3;
        let ended = tokio::select! {
            biased;
            () = disk.death() => false,
            () = async {
                for ticket in tickets {
                    ticket.await.unwrap();
                    durable += 1;
                }
                store.close().await.unwrap();
            } => true,
        };
        let left = disk.power_cut((!ended).then_some(operation));
        let (store, recovery) = open_with(&left, &options, layout.clone()).unwrap();
        let run = format!("after {operation}: {recovery:?}");
        let (end, found) = (store.log_end("t"), kept(&store).await);
        assert!(end >= durable, "{run}: {end} of {durable}");
        assert_eq!((recovery.corrupt_records, store.stats().corrupt_rows), (0, 0), "{run}");
        let dropped = store.stats().log_rows_dropped;
        assert_eq!(found.len() as u64 + dropped, end, "{run}");
        assert_eq!(found[..3], [0, 1, 2], "{run}");
        let verified = store.verify().await.unwrap();
        assert_eq!((verified.corrupt_records, verified.corrupt_rows), (0, 0), "{run}");
        if !ended {
            continue;
        }
        assert_eq!((found, dropped), (all, store.stats().log_rows_dropped), "{run}");
        assert!(operation > 3, "{run}");
        // What was let go is not let go again when the rest gets too old.
        store.expire(1_200);
        settle(&store).await;
        let table = store.tables().into_iter().find(|table| &*table.name == "t").unwrap();
        assert_eq!((table.start, table.end, table.rows, table.dropped), (100, 100, 0, dropped));
        store.close().await.unwrap();
        return;
    }
}
