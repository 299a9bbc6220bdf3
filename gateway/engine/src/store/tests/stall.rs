//! A disk that takes no writes for long: what comes is delivered from memory, and memory stays bounded;
//! wherever the process or the power ends then, what is found is whole, and no id is given twice. F8, P6, P11.

use super::crash::{Model, SINKS, crash_layout, plan, text};
use super::fake::Dice;
use super::*;
use crate::store::ring;

/// Bytes of a large body: 28 of them are what memory holds.
pub(super) const LARGE: usize = 300_000;

fn large(number: u64) -> Commit {
    let body = Bytes::from(vec![b'x'; LARGE]);
    Commit {
        wait: true,
        rows: vec![log_rows(2 * number..2 * number + 2)],
        outbox: vec![
            OutboxRows { bodies: vec![body], ..results("a", number..number, 1) },
            results("b", number..number + 1, 1),
        ],
        progress: Some(StreamProgress {
            // A pane of three steps, and one that is gone as soon as it was there.
            states: changes(&[(number / 3, &number.to_string())], &[(number / 3).wrapping_sub(1)]),
            ..progress(&number.to_le_bytes(), 2 * number + 2, 2 * number)
        }),
        counts: vec![("rows".into(), 2)],
        boot: None,
    }
}

/// 150 records of 300 kB, each delivered before the next one comes: five times what memory may hold.
#[tokio::test]
async fn f08_forwarding_goes_on_for_as_long_as_the_disk_takes_no_writes() {
    let disk = FakeDisk::default();
    let options = StoreOptions { ring_bytes: 16 << 20, ..options() };
    let (store, _) = open_with(&disk, &options, layout()).unwrap();
    commit(&store, large(0)).await.unwrap();
    disk.set_broken(&["store.ring"]);
    let mut tickets = Vec::new();
    for number in 1..150 {
        tickets.push(taken(&store, number, large(number)).await);
        let shown = store.next("a", number, 1, LARGE).await.unwrap();
        assert_eq!((shown[0].position, shown[0].body.len()), (number + 1, LARGE));
        // All but the newest one.
        store.delivered("a", number);
    }
    assert!(store.stats().stalled.is_some());
    assert!(futures::poll!(&mut tickets[0]).is_pending(), "nothing of it is durable");
    disk.set_broken(&[]);
    store.flush();
    for ticket in tickets {
        ticket.await.unwrap();
    }
    assert_eq!((store.stats().stalled, store.backlog("a").records), (None, 1));
    let (store, recovery) = open_with(&disk.power_cut(None), &options, layout()).unwrap();
    assert_eq!((recovery.corrupt_records, &recovery.progress_lost), (0, &Vec::new()));
    assert_eq!((store.cursor("a"), store.backlog("a").delivered), (149, 149));
    assert_eq!(waiting(&store, "a").await[0].position, 150);
    assert_eq!(bodies(&waiting(&store, "b").await), (0..150).collect::<Vec<_>>());
    assert_eq!(logged(&store, 0).await, [298, 299]);
    assert_eq!((store.count("rows"), store.log_end("t")), (300, 300));
    assert_eq!(states(&store).await, [(49, "149".to_owned())]);
    assert_eq!(store.stats().corrupt_rows, 0);
    store.close().await.unwrap();
}

/// Submits a commit that must not wait, lets it be tried, and gives its ticket.
pub(super) async fn taken(store: &Store, number: u64, one: Commit) -> Ticket {
    let ticket = tokio::select! {
        biased;
        ticket = store.submit(one) => ticket.unwrap(),
        () = answered(store) => panic!("record {number} waits: {:?}", store.stats()),
    };
    store.flush();
    answered(store).await;
    assert_eq!(store.stats().queue_len, 0, "record {number} is taken");
    ticket
}

/// What is known of a run when it ends.
#[derive(Debug, Default)]
struct Told {
    durable: usize,
    begun: usize,
    /// Steps whose results were shown, durable or not.
    shown: usize,
    epoch: u64,
    /// Marks that were set: delivered or refused.
    marked: [u64; 2],
}

/// A run of the plan in which the device dies for some steps, or from a step on.
async fn run(disk: &FakeDisk, seed: u64, told: &mut Told) -> Result<(), StoreError> {
    let (steps, models) = plan(seed);
    let mut dice = Dice(seed | 1 << 41);
    let begin = dice.below(steps.len());
    let end = begin + 1 + dice.below(steps.len());
    let (store, _) = open_with(disk, &options(), crash_layout())?;
    told.epoch = store.epoch();
    let mut tickets = std::collections::VecDeque::new();
    for (index, step) in steps.iter().enumerate() {
        if index == begin {
            disk.set_dying(Some(("store.ring", Some(dice.roll()))));
        } else if index == end {
            disk.set_dying(None);
        }
        told.begun = index + 1;
        for ((marked, count), sink) in told.marked.iter_mut().zip(step.delivered).zip(SINKS) {
            *marked += count as u64;
            store.delivered(sink, *marked);
        }
        if step.refuse && models[index].waiting[0].len() > step.delivered[0] {
            told.marked[0] += 1;
            store.reject("a", told.marked[0], "no");
        }
        let one = step.commit(index as u64, &models[index], &models[index + 1]);
        tickets.push_back(submit_on(disk, &store, one).await?);
        store.flush();
        tokio::select! {
            biased;
            () = disk.death() => return Err(StoreError::Closed),
            () = answered(&store) => {}
        }
        while let Some(ticket) = tickets.front_mut() {
            let std::task::Poll::Ready(outcome) = futures::poll!(ticket) else { break };
            outcome?;
            tickets.pop_front();
            told.durable += 1;
        }
        if told.durable == index + 1 || store.stats().stalled.is_some() {
            told.shown = index + 1;
        }
    }
    disk.set_dying(None);
    store.flush();
    for ticket in tickets {
        durable_on(disk, ticket).await?;
        told.durable += 1;
    }
    store.close().await
}

/// The store holds a prefix of the run, whole; gives how many steps.
async fn verify(store: &Store, seed: u64, told: &Told, run: &str) -> usize {
    let done = store.progress("s").map_or(0, |progress| {
        usize::try_from(u64::from_le_bytes(progress.state.try_into().unwrap())).unwrap() + 1
    });
    assert!(done >= told.durable && done <= told.begun, "{run}: {done} of {told:?}");
    let model: &Model = &plan(seed).1[done];
    for ((name, marked), all) in SINKS.iter().zip(told.marked).zip(model.put) {
        let cursor = store.cursor(name);
        assert!(cursor <= marked.min(all), "{run}: {name} at {cursor} of {told:?}");
        let numbers: Vec<u64> = waiting(store, name).await.iter().map(number).collect();
        assert_eq!(numbers, (cursor..all).collect::<Vec<_>>(), "{run}: {name}");
        let letters = store.rejected(name, 99).await.unwrap();
        let backlog = store.backlog(name);
        assert_eq!(backlog.delivered + backlog.rejected, cursor, "{run}: {name}");
        assert_eq!(letters.len() as u64, backlog.rejected, "{run}: {name}");
        for letter in letters {
            assert_eq!(number(&letter.row) + 1, letter.row.position, "{run}: {name}");
        }
    }
    let numbers: Vec<u64> = waiting(store, "c").await.iter().map(number).collect();
    assert_eq!(numbers, model.waiting[2], "{run}: c");
    assert_eq!(store.backlog("c").dropped, model.dropped, "{run}");
    assert_eq!((store.log_end("t"), store.count("rows")), (model.end, model.counted), "{run}");
    assert_eq!(logged(store, 0).await, (model.floor..model.end).collect::<Vec<_>>(), "{run}");
    let kept = model.states.iter().map(|(key, (step, length))| (*key, text(*step, *length)));
    let found = store.states("s").await.unwrap();
    assert!(found == StoredStates { whole: kept.collect(), damaged: vec![] }, "{run}: states");
    let stats = store.stats();
    assert_eq!((stats.corrupt_records, stats.corrupt_rows), (0, 0), "{run}");
    done
}

fn number(row: &OutboxRow) -> u64 {
    std::str::from_utf8(&row.body).unwrap().trim().parse().unwrap()
}

/// The highest number of a run in the ring: each start is one, and each time that frames are put together.
fn newest_run(disk: &FakeDisk) -> u32 {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let found =
        disk.open("store.ring", false).and_then(|ring| ring::scan(&*ring, None, 0, |_, _| false));
    // Where there is no ring yet there is no run.
    found.map_or(0, |found| found.iter().map(|(_, header)| header.run).max().unwrap_or(0))
}

/// 400 runs over a device that dies for some steps, cut or killed at any operation: each time a prefix is
/// found, whole. What was shown and is not found keeps its ids for itself: the epoch has grown, and stays
/// grown where the next start ends before it does anything.
#[tokio::test]
async fn f08_f02_a_crash_while_the_device_takes_no_writes_loses_nothing_and_gives_no_id_twice() {
    let (mut put_together, mut doubted) = (0, 0);
    for seed in 1..=400_u64 {
        let new = || {
            let disk = FakeDisk::default();
            disk.tell_boots();
            disk
        };
        let whole = new();
        run(&whole, seed, &mut Told::default()).await.unwrap();
        let mut dice = Dice(seed | 1 << 42);
        let disk = new();
        disk.crash_at(1 + dice.roll() % whole.operations());
        let mut told = Told::default();
        drop(run(&disk, seed, &mut told).await);
        let is_kill = dice.below(3) == 0;
        let left = if is_kill { disk.killed() } else { disk.power_cut(Some(dice.roll())) };
        put_together += u64::from(newest_run(&left) > 1);
        let name = format!("seed {seed}, {}", if is_kill { "kill" } else { "cut" });

        let (store, recovery) = open_with(&left, &options(), crash_layout())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((&recovery.quarantined, recovery.corrupt_records), (&None, 0), "{name}");
        assert_eq!(recovery.progress_lost, Vec::<String>::new(), "{name}");
        let done = verify(&store, seed, &told, &name).await;
        if told.shown > done {
            doubted += 1;
            assert!(store.epoch() > told.epoch, "{name}: {done} of {told:?}");
        }
        let (epoch, again) = (store.epoch(), left.killed());
        drop(store);
        let (store, _) = open_with(&again, &options(), crash_layout()).unwrap();
        assert!(store.epoch() >= epoch, "{name}: the epoch {epoch} is gone again");
        assert_eq!(verify(&store, seed, &told, &name).await, done, "{name}, again");
        store.close().await.unwrap();
    }
    // How many depends on which thread comes first.
    assert!(put_together > 20 && doubted > 20, "{put_together} and {doubted} of 400");
}

/// The frames of a ring as they are on the device: place and header.
fn frames(disk: &FakeDisk) -> Vec<(u64, ring::Header)> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let ring = disk.open("store.ring", false).unwrap();
    ring::scan(&*ring, None, 0, |_, _| false).unwrap()
}

/// The bytes of the ring, synced or not.
fn written(disk: &FakeDisk) -> Vec<u8> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let ring = disk.open("store.ring", false).unwrap();
    let mut bytes = vec![0; usize::try_from(ring.len().unwrap()).unwrap()];
    ring.read(0, &mut bytes).unwrap();
    bytes
}

/// A record for `a` that is delivered at once, and one for `b` that waits.
async fn pass(store: &Store, number: u64, length: usize) -> Ticket {
    let one = Commit {
        wait: true,
        outbox: vec![
            OutboxRows { bodies: vec![text(number, length)], ..results("a", number..number, 1) },
            results("b", number..number + 1, 1),
        ],
        progress: Some(progress(&number.to_le_bytes(), 0, 0)),
        ..Commit::default()
    };
    let ticket = store.submit(one).await.unwrap();
    store.flush();
    answered(store).await;
    store.delivered("a", number + 1);
    ticket
}

/// A frame that a failed sync left whole on the device, and that was put together with others since: it lies
/// where the one that took its place did not come to, beside a later one that did. It is not what that
/// one was synced with. Then the results of the others were missing, and progress was behind them.
#[tokio::test]
async fn f08_f03_a_frame_of_before_is_not_taken_for_the_one_that_took_its_place() {
    let mut met = 0;
    for operation in 1..12 {
        let disk = FakeDisk::default();
        let (store, _) = open(&disk).unwrap();
        pass(&store, 0, 1).await.await.unwrap();
        disk.set_dying(Some(("store.ring", Some(7))));
        let mut tickets = vec![pass(&store, 1, 1).await];
        for _ in 0..20 {
            store.flush();
            answered(&store).await;
        }
        let (offset, old) = *frames(&disk).iter().find(|(_, header)| header.sequence == 2).unwrap();
        let at = usize::try_from(offset).unwrap();
        let block = written(&disk.power_cut(None))[at..at + 4_096].to_vec();
        assert!(
            old.frame_bytes() == 4_096 && old.fits(&block[ring::HEADER..][..old.length as usize])
        );
        // Nothing comes to the device any more, until they are put together, and one is behind that.
        disk.set_dying(None);
        disk.set_broken(&["store.ring"]);
        for number in 2..10 {
            tickets.push(pass(&store, number, 9_000).await);
        }
        disk.set_broken(&[]);
        let begun = disk.operations();
        disk.crash_at(begun + operation);
        store.flush();
        tokio::select! {
            () = disk.death() => {}
            () = async { for ticket in tickets { ticket.await.unwrap(); } } => {}
        }
        let left = disk.power_cut(Some(1));
        left.edit("store.ring", |bytes| {
            bytes.copy_from_slice(&written(&disk.killed()));
            bytes[at..at + 4_096].copy_from_slice(&block);
        });
        let found = frames(&left);
        met += u64::from(found.iter().any(|(_, header)| header.run > old.run));
        let (store, recovery) = open(&left).unwrap();
        let run = format!("after {operation}: {recovery:?}");
        assert_eq!((recovery.corrupt_records, recovery.progress_lost.len()), (0, 0), "{run}");
        let reached = store.progress("s").map(|s| u64::from_le_bytes(s.state.try_into().unwrap()));
        let all = reached.unwrap() + 1;
        assert_eq!(bodies(&waiting(&store, "b").await), (0..all).collect::<Vec<_>>(), "{run}");
        assert_eq!(store.stats().corrupt_rows, 0, "{run}");
    }
    assert!(met > 2, "{met}");
}

/// Checkpoints whose syncs fail, whatever of them came to the device, while frames wait that have no place in
/// the ring and then find one: nothing that is promised afterwards is lost with the next crash.
#[tokio::test]
async fn f07_what_follows_a_checkpoint_that_failed_is_kept() {
    for seed in [None, Some(3), Some(4)] {
        let disk = FakeDisk::default();
        let (store, _) = open(&disk).unwrap();
        pass(&store, 0, 1).await.await.unwrap();
        disk.set_dying(Some(("store.redb", seed)));
        let put = |states, step: u64| {
            let reached = StreamProgress { states, ..progress(&step.to_le_bytes(), 0, 0) };
            store.submit(Commit { wait: true, progress: Some(reached), ..Commit::default() })
        };
        // More than the ring holds: it goes by the checkpoint, and what comes behind it as well.
        let mut tickets = vec![put(changes(&[(1, &"x".repeat(90_000))], &[]), 0).await.unwrap()];
        for step in 1..4 {
            tickets.push(put(changes(&[(2, &step.to_string())], &[]), step).await.unwrap());
            store.flush();
            answered(&store).await;
        }
        // Then nothing of it is needed, and all of it finds a place in the ring.
        tickets.push(put(changes(&[], &[1]), 4).await.unwrap());
        store.flush();
        answered(&store).await;
        disk.set_dying(None);
        store.flush();
        for ticket in tickets {
            ticket.await.unwrap();
        }
        for number in 1..3 {
            pass(&store, number, 1).await.await.unwrap();
        }
        let (store, recovery) = open(&disk.power_cut(None)).unwrap();
        assert_eq!((recovery.corrupt_records, recovery.progress_lost.len()), (0, 0), "{seed:?}");
        assert_eq!(bodies(&waiting(&store, "b").await), (0..3).collect::<Vec<_>>(), "{seed:?}");
        assert_eq!(states(&store).await, [(2, "3".to_owned())], "{seed:?}");
    }
}
