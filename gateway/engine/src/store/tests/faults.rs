//! Crashes and I/O errors at every operation of a small run, on a disk that drops what was not
//! synced. F2, F4, F7; P1, P2, P5.

use std::io::ErrorKind;
use std::task::Poll;

use super::*;

const STEPS: u64 = 10;

/// What a run was told.
#[derive(Debug, Default)]
struct Told {
    /// Commits whose ticket said "durable".
    commits: u64,
    /// The step that was last begun.
    begun: u64,
}

/// Ten commits with rows, results for two sinks and progress. Before the sixth, three rows of sink
/// `a` are delivered; before the eighth its fifth is refused, so its fourth is delivered too.
async fn run(disk: &FakeDisk, told: &mut Told) -> Result<(), StoreError> {
    let (store, _) = open(disk)?;
    for step in 0..STEPS {
        told.begun = step + 1;
        if step == 5 {
            store.delivered("a", 3);
        }
        if step == 7 {
            store.reject("a", 5, "no");
        }
        let one = Commit {
            wait: true,
            rows: vec![log_rows(2 * step..2 * step + 2)],
            outbox: vec![results("a", step..step + 1, 1), results("b", step..step + 1, 1)],
            progress: Some(StreamProgress {
                states: pane(step),
                ..progress(&step.to_le_bytes(), 2 * step + 2, replay_from(step))
            }),
            ..Commit::default()
        };
        commit_on(disk, &store, one).await?;
        told.commits = step + 1;
    }
    store.close().await
}

/// Panes of three steps: the log is needed from the start of the last one.
fn replay_from(step: u64) -> u64 {
    step / 3 * 6
}

/// The state of a step's pane, of which the one before goes when a new one begins.
fn pane(step: u64) -> Vec<StateChange> {
    let gone = step.checked_sub(1).map(|before| before / 3).filter(|pane| *pane != step / 3);
    changes(&[(step / 3, &step.to_string())], gone.as_slice())
}

fn cursor_after(commits: u64) -> u64 {
    match commits {
        0..=5 => 0,
        6..=7 => 3,
        _ => 5,
    }
}

/// The store holds a prefix of the run: at least what was told durable, whole and in order.
async fn verify(disk: &FakeDisk, told: &Told, run: &str) {
    let (store, recovery) = open(disk).unwrap_or_else(|error| panic!("{run}: {error}"));
    assert_eq!((recovery.quarantined, recovery.corrupt_records), (None, 0), "{run}");
    let commits = store
        .progress("s")
        .map_or(0, |progress| u64::from_le_bytes(progress.state.try_into().unwrap()) + 1);
    assert!(commits >= told.commits && commits <= told.begun, "{run}: {commits} of {told:?}");
    assert_eq!(store.cursor("a"), cursor_after(commits), "{run}");
    assert_eq!(store.cursor("b"), 0, "{run}");
    let left = bodies(&waiting(&store, "a").await);
    assert_eq!(left, (cursor_after(commits)..commits).collect::<Vec<_>>(), "{run}");
    assert_eq!(bodies(&waiting(&store, "b").await), (0..commits).collect::<Vec<_>>(), "{run}");
    assert_eq!(store.rejected("a", 9).await.unwrap().len(), usize::from(commits >= 8), "{run}");
    let floor = commits.checked_sub(1).map_or(0, replay_from);
    assert_eq!(store.log_end("t"), 2 * commits, "{run}");
    assert_eq!(logged(&store, 0).await, (floor..2 * commits).collect::<Vec<_>>(), "{run}");
    let pane = commits.checked_sub(1).map(|step| (step / 3, step.to_string()));
    assert_eq!(states(&store).await, pane.into_iter().collect::<Vec<_>>(), "{run}");
    assert_eq!(store.stats().corrupt_records, 0, "{run}");
    store.close().await.unwrap();
}

async fn operations_of_a_run() -> u64 {
    let disk = FakeDisk::default();
    run(&disk, &mut Told::default()).await.unwrap();
    disk.operations()
}

/// F2: what a ticket called durable survives a power cut at any operation, and nothing is half.
#[tokio::test]
async fn f02_a_power_cut_at_every_operation_loses_nothing_durable() {
    let operations = operations_of_a_run().await;
    assert!(operations > 60, "{operations}");
    for at in 1..=operations {
        let disk = FakeDisk::default();
        disk.crash_at(at);
        let mut told = Told::default();
        drop(run(&disk, &mut told).await);
        verify(&disk.power_cut(None), &told, &format!("cut at {at}")).await;
        for seed in [at, at + 1_000, at + 2_000] {
            let cut = disk.power_cut(Some(seed * 7_919));
            verify(&cut, &told, &format!("cut at {at}, torn by {seed}")).await;
        }
    }
}

/// The control: whoever forgets to sync the folder is found out, in a new store and where rows went to
/// new shelves.
#[tokio::test]
async fn f02_a_folder_that_was_not_synced_is_found_out() {
    let disk = FakeDisk::default();
    disk.forget_names();
    run(&disk, &mut Told::default()).await.unwrap();
    let (store, recovery) = open(&disk.power_cut(None)).unwrap();
    assert!(recovery.created && store.progress("s").is_none(), "a store without names is gone");
    drop(store);

    for forgets in [false, true] {
        let disk = FakeDisk::default();
        let (store, _) = open(&disk).unwrap();
        if forgets {
            disk.forget_names();
        }
        // A ring of 64 KiB, and three times as much that waits: most of it goes to shelves.
        for number in 0..20 {
            let bodies = vec![Bytes::from(vec![b'x'; 9_000])];
            let outbox = vec![OutboxRows { bodies, ..results("a", number..number, 1) }];
            commit(&store, Commit { outbox, ..Commit::default() }).await.unwrap();
            answered(&store).await;
        }
        assert!(disk.names().iter().any(|name| name.starts_with("store.shelf-")));
        let (left, _) = open(&disk.power_cut(None)).unwrap();
        assert_eq!(waiting(&left, "a").await.len() == 20, !forgets);
        left.close().await.unwrap();
        store.close().await.unwrap();
    }
}

/// F4: the power fails again while the store recovers.
#[tokio::test]
async fn f04_a_second_power_cut_during_recovery_loses_nothing_durable() {
    let operations = operations_of_a_run().await;
    for at in (1..=operations).step_by(SECOND_CUTS) {
        let disk = FakeDisk::default();
        disk.crash_at(at);
        let mut told = Told::default();
        drop(run(&disk, &mut told).await);
        let mut again = 0;
        let mut is_clean = false;
        while !is_clean {
            again += 1;
            let cut = disk.power_cut(Some(at * 31 + again));
            cut.crash_at(again);
            let opened = open(&cut);
            is_clean = opened.is_ok() && cut.operations() < again;
            drop(opened);
            let twice = cut.power_cut(Some(again));
            verify(&twice, &told, &format!("cut at {at} and {again}")).await;
        }
        assert!(again > 10, "the start after a cut at {at} has {again} operations");
    }
}

/// Where a run is cut before its recovery is cut at every operation: each third place.
const SECOND_CUTS: usize = 3;

/// F1, F2: the process is killed at any operation of a start, the next one tells somebody "durable", and
/// then the power fails. What the first one renamed and did not come to sync must not be lost with it.
#[tokio::test]
async fn f01_f02_killed_in_a_start_and_a_power_cut_after_the_next_lose_nothing_durable() {
    let crashed = FakeDisk::default();
    crashed.crash_at(operations_of_a_run().await / 2);
    drop(run(&crashed, &mut Told::default()).await);
    let broken = crashed.killed();
    broken.edit("store.redb", |bytes| bytes.truncate(5_000));
    for (name, before) in [("new", FakeDisk::default()), ("crashed", crashed), ("broken", broken)] {
        let whole = before.killed();
        let (store, _) = open(&whole).unwrap();
        let held = bodies(&waiting(&store, "b").await);
        drop(store);
        let first = held.len() as u64;
        let expected: Vec<u64> = (0..first + 3).collect();
        let operations = whole.operations();
        assert!(operations > 10, "{name}: {operations}");
        for at in 1..=operations {
            let run = format!("{name}, killed at {at}");
            let disk = before.killed();
            disk.crash_at(at);
            drop(open(&disk));
            let next = disk.killed();
            let (store, _) = open(&next).unwrap_or_else(|error| panic!("{run}: {error}"));
            put(&store, "b", first..first + 3).await;
            for seed in [None, Some(at * 7_919), Some(at * 104_729)] {
                let cut = next.power_cut(seed);
                let (store, recovery) = open(&cut).unwrap_or_else(|error| panic!("{run}: {error}"));
                let found = (recovery.created, recovery.quarantined, recovery.corrupt_records);
                assert_eq!(found, (false, None, 0), "{run}, then {seed:?}");
                assert_eq!(bodies(&waiting(&store, "b").await), expected, "{run}, then {seed:?}");
            }
        }
    }
}

/// F7 / P5: one error at any operation. Nothing is acknowledged on a lie, and the store goes on.
#[tokio::test]
async fn f07_an_error_at_every_operation_is_survived_and_never_acknowledged_on_a_lie() {
    let operations = operations_of_a_run().await;
    let mut refused_to_open = 0;
    for at in 1..=operations {
        let disk = FakeDisk::default();
        disk.fail_at(at, ErrorKind::Other);
        let mut told = Told::default();
        let outcome = run(&disk, &mut told).await;
        if told.begun == 0 {
            assert!(outcome.is_err(), "error at {at}");
            refused_to_open += 1;
        } else if told.commits < STEPS {
            panic!("error at {at}: {outcome:?} after {told:?}");
        }
        let name = format!("error at {at}");
        verify(&disk.power_cut(None), &told, &name).await;
    }
    assert!(refused_to_open > 0 && refused_to_open < operations, "{refused_to_open}");
}

/// P5, P6: on a dead disk nobody is told "durable", and what comes is delivered from memory until the
/// bound of it is reached.
#[tokio::test]
async fn f07_a_dead_disk_is_an_alarm_and_delivery_goes_on_from_memory() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..1).await;
    disk.crash_at(disk.operations() + 1);
    let outbox = vec![results("a", 1..2, 1)];
    let mut ticket =
        store.submit(Commit { wait: true, outbox, ..Commit::default() }).await.unwrap();
    answered(&store).await;
    assert!(futures::poll!(&mut ticket).is_pending(), "not durable, not told");
    assert!(store.stats().stalled.is_some() && store.stats().last_error.is_some());
    let next = store.next("a", 1, 10, 1_000).await.unwrap();
    assert_eq!(bodies(&next), [1]);
    store.delivered("a", 2);
    // More than may be held: from then on commits stay in the queue, and as much again fills that.
    let mut submitted = 0;
    for n in 2..80 {
        let outbox = vec![OutboxRows {
            bodies: vec![Bytes::from(vec![7; 300_000])],
            ..results("a", n..n, 1)
        }];
        let submit = store.submit(Commit { wait: true, outbox, ..Commit::default() });
        // Given up after the thread had turns enough to take what it takes.
        tokio::select! {
            biased;
            ticket = submit => drop(ticket.unwrap()),
            () = answered(&store) => break,
        }
        answered(&store).await;
        submitted += 1;
    }
    let queued = store.stats().queue_len;
    assert!((27..=29).contains(&queued), "8 MiB are 28 of them: {queued}");
    assert!((54..=58).contains(&submitted), "two times 28, and one may pass: {submitted}");
    assert!(store.close().await.is_err());
    assert!(ticket.await.is_err());
}

/// F6: no room is no reason to exit; the next flush tries again.
#[tokio::test]
async fn f06_a_full_disk_is_waited_out() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..2).await;
    disk.set_full(true);
    let outbox = vec![large()];
    let ticket = store.submit(Commit { wait: true, outbox, ..Commit::default() }).await.unwrap();
    answered(&store).await;
    let readable: Vec<usize> =
        waiting(&store, "a").await.iter().map(|row| row.body.len()).collect();
    assert_eq!(readable, [1, 1, 300_000], "reading goes on, also of what is only in memory");
    assert!(store.stats().stalled.is_some());
    store.delivered("a", 1);
    store.flush();
    answered(&store).await;
    assert!(!store.stats().failed);
    disk.set_full(false);
    store.flush();
    ticket.await.unwrap();
    assert_eq!(store.stats().stalled, None);
    let left = waiting(&store, "a").await;
    assert_eq!((&left[0].body[..], left[1].body.len(), left.len()), (&b"1"[..], 300_000, 2));
}

/// More than the file has room for without growing.
fn large() -> OutboxRows {
    OutboxRows { bodies: vec![Bytes::from(vec![7; 300_000])], ..results("a", 2..2, 1) }
}

#[tokio::test]
async fn f06_what_came_while_the_disk_was_full_is_committed_at_the_close() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    disk.set_full(true);
    let outbox = vec![large()];
    let first = store.submit(Commit { wait: true, outbox, ..Commit::default() }).await.unwrap();
    answered(&store).await;
    let outbox = vec![results("a", 3..4, 1)];
    let second = store.submit(Commit { wait: true, outbox, ..Commit::default() }).await.unwrap();
    answered(&store).await;
    assert_eq!(store.stats().commits, 0);
    disk.set_full(false);
    store.close().await.unwrap();
    first.await.unwrap();
    second.await.unwrap();
    let (store, _) = open(&disk).unwrap();
    assert_eq!(store.backlog("a").records, 2);
}

/// Rows of table `t` that its stream still needs, with a row of 3,000 bytes for each of two sinks.
fn needed(number: u64) -> Commit {
    let body = |sink| OutboxRows {
        bodies: vec![Bytes::from(vec![b'x'; 3_000])],
        ..results(sink, number..number, 1)
    };
    let progress = Some(progress(b"", number, 0));
    let rows = vec![log_rows(number..number + 1)];
    Commit { wait: true, rows, outbox: vec![body("a"), body("b")], progress, ..Commit::default() }
}

/// A full disk, and a sink that drops nothing holds the ring: what others would drop went, piece by piece
/// until nothing was left, and made no room. Commits wait for the far side or for room, and all is kept.
#[tokio::test]
async fn f06_nothing_is_dropped_that_makes_no_room() {
    let disk = FakeDisk::default();
    let keeper = SinkLayout { when_full: WhenFull::Block, ..sink("a") };
    let both = Layout { sinks: vec![keeper, sink("b")], ..layout() };
    let (store, _) = open_with(&disk, &options(), both).unwrap();
    disk.set_full(true);
    let mut tickets = Vec::new();
    for number in 0..20 {
        tickets.push(store.submit(needed(number)).await.unwrap());
        store.flush();
        answered(&store).await;
    }
    let stats = store.stats();
    assert!(stats.stalled.is_some() && stats.commits < 12, "the ring has 64 KiB: {stats:?}");
    assert_eq!((stats.log_rows_dropped, store.backlog("b").dropped), (0, 0));

    disk.set_full(false);
    store.flush();
    for ticket in tickets {
        ticket.await.unwrap();
    }
    assert_eq!(logged(&store, 0).await, (0..20).collect::<Vec<_>>());
    for sink in ["a", "b"] {
        assert_eq!((waiting(&store, sink).await.len(), store.backlog(sink).dropped), (20, 0));
    }
    assert_eq!(store.stats().log_rows_dropped, 0);
}

/// Commits rows of table `t` that nobody reads, a hundred at a time, with flushes until it is durable;
/// returns how many flushes that took.
async fn log_hundred(store: &Store, number: u64) -> u32 {
    let rows = vec![log_rows(number * 100..number * 100 + 100)];
    let mut ticket = store.submit(Commit { wait: true, rows, ..Commit::default() }).await.unwrap();
    let mut flushes = 0;
    loop {
        store.flush();
        answered(store).await;
        flushes += 1;
        if let Poll::Ready(outcome) = futures::poll!(&mut ticket) {
            outcome.unwrap();
            return flushes;
        }
        assert!(flushes < 100, "commit {number} waits: {:?}", store.stats());
    }
}

/// Where no sink keeps everything, a log that nobody reads gives way, and all commits go on.
#[tokio::test]
async fn f06_a_log_gives_way_before_the_others_stand_still() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    disk.set_full(true);
    let mut flushes = Vec::new();
    for number in 0..40 {
        flushes.push(log_hundred(&store, number).await);
    }
    let left = logged(&store, 0).await;
    let dropped = store.stats().log_rows_dropped;
    assert!(dropped > 0, "40 times 100 rows of some 30 bytes are more than a ring of 64 KiB");
    assert_eq!(left, (dropped..4_000).collect::<Vec<_>>(), "the oldest went, and were counted");
    assert!(store.stats().gives_way);
    flushes.retain(|count| *count > 2);
    assert_eq!(flushes.len(), 1, "the first wait is patience, the others need none: {flushes:?}");
}

/// A disk that is full for some seconds cost rows of logs that streams still needed.
#[tokio::test]
async fn f06_a_disk_that_is_full_for_a_moment_costs_no_log() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    disk.set_full(true);
    let mut tickets = Vec::new();
    for number in 0..30 {
        let rows = vec![log_rows(number * 100..number * 100 + 100)];
        let commit = Commit { wait: true, rows, ..Commit::default() };
        tickets.push(store.submit(commit).await.unwrap());
        answered(&store).await;
    }
    for _ in 0..8 {
        store.flush();
        answered(&store).await;
    }
    assert!(store.stats().stalled.is_some(), "more than a ring of 64 KiB has room for");
    disk.set_full(false);
    store.flush();
    for ticket in tickets {
        ticket.await.unwrap();
    }
    assert_eq!((store.stats().log_rows_dropped, store.stats().gives_way), (0, false));
    assert_eq!(logged(&store, 0).await, (0..3_000).collect::<Vec<_>>());
}

/// What gives way leaves room behind itself. Taken for the end of the want, it let the alarm come and go
/// while records were dropped.
#[tokio::test]
async fn f06_what_gives_way_is_an_alarm_until_there_was_room_for_a_while() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let four = |number: u64| {
        let bodies = vec![Bytes::from(vec![b'x'; 3_000]); 4];
        let outbox = vec![OutboxRows { bodies, ..results("a", number * 4..number * 4, 1) }];
        Commit { wait: true, outbox, ..Commit::default() }
    };
    disk.set_room(250_000);
    for number in 0..100 {
        let dropped = store.backlog("a").dropped;
        commit(&store, four(number)).await.unwrap();
        store.flush();
        answered(&store).await;
        assert!(store.backlog("a").dropped == 0 || store.stats().gives_way, "commit {number}");
        assert!(dropped > 0 || number < 50, "12 kB each are more than 250 kB: {number}");
    }
    disk.set_room(10_000_000);
    let mut flushes = 0;
    while store.stats().gives_way {
        store.flush();
        answered(&store).await;
        flushes += 1;
        assert!(flushes < 100, "there is room, and it still says that there is none");
    }
    assert!((40..=60).contains(&flushes), "60 since the last one that found none: {flushes}");
}
