//! Thousands of runs on a disk that crashes: at any operation, with any part of what was not synced
//! on the device, torn at 512 bytes, and again during recovery. F2, F3, F4; P1, P2, P7.
//!
//! A seed names a run: how much each step commits, what is delivered, refused and dropped between. The
//! model is what a person would keep in lists. The ring is small, so that most runs go round it. In half
//! of the runs several steps are on their way at once, so that a frame is made while another is written.

use std::collections::BTreeMap;

use super::fake::Dice;
use super::*;

/// Runs in `make test`; `make soak` asks for 100,000.
const RUNS: u64 = 2_000;

/// The store in plain lists after a number of steps.
#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    /// Per sink `a`, `b` and `c`: numbers that wait.
    pub(super) waiting: [Vec<u64>; 3],
    /// Numbers that were ever put there.
    pub(super) put: [u64; 3],
    pub(super) delivered: [u64; 3],
    pub(super) letters: u64,
    pub(super) dropped: u64,
    /// Log rows `floor .. end`.
    pub(super) floor: u64,
    pub(super) end: u64,
    pub(super) counted: u64,
    /// Of each key the step that put its state, and the state's length.
    pub(super) states: BTreeMap<u64, (u64, usize)>,
}

pub(super) const SINKS: [&str; 3] = ["a", "b", "c"];
/// Rows that `c` keeps.
const KEEPS: usize = 5;

/// A seed with this bit names a run whose steps overlap. Nothing is delivered or refused in it: such
/// marks may become durable with an earlier step.
const TOGETHER: u64 = 1 << 50;
/// Steps that are on their way at once.
const OPEN_MAX: usize = 9;

/// What one step does before and in its commit.
#[derive(Debug, Clone)]
pub(super) struct Step {
    rows: u64,
    numbers: [u64; 3],
    pub(super) delivered: [usize; 2],
    pub(super) refuse: bool,
    body: usize,
    floor: u64,
    /// Keys, and the lengths of their new states; without one the state goes.
    states: Vec<(u64, Option<usize>)>,
}

pub(super) fn crash_layout() -> Layout {
    let bounded = SinkLayout { max_records: Some(KEEPS as u64), ..sink("c") };
    Layout { sinks: vec![sink("a"), sink("b"), bounded], ..layout() }
}

/// The steps of a run and the model after each.
pub(super) fn plan(seed: u64) -> (Vec<Step>, Vec<Model>) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut steps, mut models) = (Vec::new(), vec![Model::default()]);
    for _ in 0..8 + dice.below(24) {
        let before = models.last().unwrap();
        let body = if dice.below(6) == 0 { 9_000 } else { 1 + dice.below(900) };
        let step = Step {
            rows: dice.roll() % 4,
            numbers: [dice.roll() % 3, dice.roll() % 3, dice.roll() % 4],
            delivered: [
                if dice.below(3) == 0 { dice.below(before.waiting[0].len() + 1) } else { 0 },
                if dice.below(4) == 0 { dice.below(before.waiting[1].len() + 1) } else { 0 },
            ],
            refuse: dice.below(9) == 0,
            body,
            floor: dice.roll() % 4,
            states: (0..dice.below(4)).map(|_| change(&mut dice)).collect(),
        };
        let step = if seed & TOGETHER == 0 {
            step
        } else {
            Step { delivered: [0, 0], refuse: false, ..step }
        };
        models.push(after(before, &step, steps.len() as u64));
        steps.push(step);
    }
    (steps, models)
}

/// Now and then a state is larger than what the ring has room for.
fn change(dice: &mut Dice) -> (u64, Option<usize>) {
    let length = match dice.below(200) {
        0..50 => None,
        50 => Some(90_000),
        51..60 => Some(9_000),
        _ => Some(4 + dice.below(500)),
    };
    (dice.roll() % 6, length)
}

fn after(before: &Model, step: &Step, index: u64) -> Model {
    let mut model = before.clone();
    for (sink, count) in step.delivered.iter().enumerate() {
        model.waiting[sink].drain(..*count);
        model.delivered[sink] += *count as u64;
    }
    if step.refuse && !model.waiting[0].is_empty() {
        model.waiting[0].remove(0);
        model.letters += 1;
    }
    for (sink, count) in step.numbers.iter().enumerate() {
        let first = model.put[sink];
        model.waiting[sink].extend(first..first + count);
        model.put[sink] += count;
    }
    let excess = model.waiting[2].len().saturating_sub(KEEPS);
    model.waiting[2].drain(..excess);
    model.dropped += excess as u64;
    model.end += step.rows;
    model.floor = (model.floor + step.floor).min(model.end);
    model.counted += step.rows;
    for (key, length) in &step.states {
        match length {
            Some(length) => drop(model.states.insert(*key, (index, *length))),
            None => drop(model.states.remove(key)),
        }
    }
    model
}

pub(super) fn text(number: u64, length: usize) -> Bytes {
    let number = number.to_string();
    Bytes::from(" ".repeat(length.saturating_sub(number.len())) + &number)
}

impl Step {
    /// What it commits, between two models.
    pub(super) fn commit(&self, index: u64, before: &Model, now: &Model) -> Commit {
        let outbox = (0..3).filter(|sink| self.numbers[*sink] > 0).map(|sink| {
            let first = before.put[sink];
            let numbers = first..first + self.numbers[sink];
            OutboxRows {
                bodies: numbers.clone().map(|number| text(number, self.body)).collect(),
                ..results(SINKS[sink], numbers, 1)
            }
        });
        let rows = (self.rows > 0).then(|| log_rows(before.end..before.end + self.rows));
        let states = self.states.iter().map(|(key, length)| StateChange {
            key: *key,
            bytes: length.map(|length| text(index, length)),
        });
        let reached = progress(&index.to_le_bytes(), now.end, now.floor);
        Commit {
            wait: true,
            rows: rows.into_iter().collect(),
            outbox: outbox.collect(),
            progress: Some(StreamProgress { states: states.collect(), ..reached }),
            counts: vec![("rows".into(), self.rows)],
            boot: None,
        }
    }
}

#[derive(Debug, Default)]
struct Told {
    durable: usize,
    begun: usize,
}

async fn run(disk: &FakeDisk, seed: u64, told: &mut Told) -> Result<(), StoreError> {
    let (steps, models) = plan(seed);
    let (store, _) = open_with(disk, &options(), crash_layout())?;
    let open_max = if seed & TOGETHER == 0 { 1 } else { OPEN_MAX };
    let mut open = std::collections::VecDeque::new();
    // Positions of the numbers that wait, as a pump knows them.
    let mut cursors = [0_u64; 2];
    for (index, step) in steps.iter().enumerate() {
        let (before, now) = (&models[index], &models[index + 1]);
        told.begun = index + 1;
        for sink in 0..2 {
            cursors[sink] += step.delivered[sink] as u64;
            store.delivered(SINKS[sink], cursors[sink]);
        }
        if step.refuse && before.waiting[0].len() > step.delivered[0] {
            cursors[0] += 1;
            store.reject("a", cursors[0], "no");
        }
        let one = step.commit(index as u64, before, now);
        open.push_back(submit_on(disk, &store, one).await?);
        if open.len() >= open_max {
            wait_for_first(disk, &mut open, told).await?;
        }
    }
    while !open.is_empty() {
        wait_for_first(disk, &mut open, told).await?;
    }
    store.close().await
}

async fn wait_for_first(
    disk: &FakeDisk,
    open: &mut std::collections::VecDeque<Ticket>,
    told: &mut Told,
) -> Result<(), StoreError> {
    let ticket = open.pop_front().unwrap();
    durable_on(disk, ticket).await?;
    told.durable += 1;
    Ok(())
}

async fn verify(disk: &FakeDisk, seed: u64, told: &Told, run: &str) {
    let opened = open_with(disk, &options(), crash_layout());
    let (store, recovery) = opened.unwrap_or_else(|error| panic!("{run}: {error}"));
    assert_eq!((&recovery.quarantined, recovery.corrupt_records), (&None, 0), "{run}");
    assert_eq!(recovery.progress_lost, Vec::<String>::new(), "{run}");
    let done = store.progress("s").map_or(0, |progress| {
        usize::try_from(u64::from_le_bytes(progress.state.try_into().unwrap())).unwrap() + 1
    });
    assert!(done >= told.durable && done <= told.begun, "{run}: {done} of {told:?}");
    let model = &plan(seed).1[done];
    for (index, sink) in SINKS.iter().enumerate() {
        let numbers: Vec<u64> = waiting(&store, sink)
            .await
            .iter()
            .map(|row| std::str::from_utf8(&row.body).unwrap().trim().parse().unwrap())
            .collect();
        assert_eq!(numbers, model.waiting[index], "{run}: {sink}");
        assert_eq!(store.backlog(sink).delivered, model.delivered[index], "{run}: {sink}");
    }
    let c = store.backlog("c");
    assert_eq!((c.dropped, c.records), (model.dropped, model.waiting[2].len() as u64), "{run}");
    let told_missing: Vec<_> = notices(&store, "c").await;
    let expected = (model.dropped > 0).then(|| (c_cursor(&store) + 1, 0, model.dropped - 1));
    assert_eq!(told_missing, expected.into_iter().collect::<Vec<_>>(), "{run}");
    assert_eq!(store.rejected("a", 99).await.unwrap().len() as u64, model.letters, "{run}");
    assert_eq!(store.log_end("t"), model.end, "{run}");
    assert_eq!(logged(&store, 0).await, (model.floor..model.end).collect::<Vec<_>>(), "{run}");
    assert_eq!(store.count("rows"), model.counted, "{run}");
    let kept: Vec<(u64, Bytes)> =
        model.states.iter().map(|(key, (step, length))| (*key, text(*step, *length))).collect();
    assert!(
        store.states("s").await.unwrap() == StoredStates { whole: kept, damaged: vec![] },
        "{run}: states"
    );
    let stats = store.stats();
    assert_eq!((stats.corrupt_records, stats.corrupt_rows), (0, 0), "{run}");
    store.close().await.unwrap();
}

fn c_cursor(store: &Store) -> u64 {
    store.cursor("c")
}

#[test]
fn f02_f03_f04_thousands_of_crashes_lose_alter_and_reorder_nothing() {
    let number = |name| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let runs = number("TIDEGATE_CRASHES").unwrap_or(RUNS);
    // One that failed, alone.
    let seeds = number("TIDEGATE_CRASH_SEED").map_or(1..=runs, |seed| seed..=seed);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let mine = seeds.clone().skip(worker).step_by(workers);
            scope.spawn(|| {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                for seed in mine {
                    let together = if seed.is_multiple_of(2) { TOGETHER } else { 0 };
                    runtime.block_on(crash(seed | together));
                }
            });
        }
    });
}

/// One operation fails, whichever it is, while frames are made and written side by side: everything is
/// durable in the end, in order.
#[tokio::test]
async fn f07_an_error_while_another_frame_is_made_loses_nothing() {
    for seed in (1..=400).map(|seed| seed | TOGETHER) {
        let whole = FakeDisk::default();
        run(&whole, seed, &mut Told::default()).await.unwrap();
        let mut dice = Dice(seed * 3);
        let disk = FakeDisk::default();
        disk.fail_at(1 + dice.roll() % whole.operations(), std::io::ErrorKind::Other);
        let mut told = Told::default();
        let outcome = run(&disk, seed, &mut told).await;
        let name = format!("seed {seed}, an error");
        if told.begun == 0 {
            assert!(outcome.is_err(), "{name}");
        } else {
            outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(told.durable, all(seed).durable, "{name}");
        }
        verify(&disk.power_cut(None), seed, &told, &name).await;
    }
}

async fn crash(seed: u64) {
    let whole = FakeDisk::default();
    let mut told = Told::default();
    run(&whole, seed, &mut told).await.unwrap();
    let mut dice = Dice(seed | 1 << 40);
    let disk = FakeDisk::default();
    disk.crash_at(1 + dice.roll() % whole.operations());
    let mut told = Told::default();
    drop(run(&disk, seed, &mut told).await);
    let torn = (dice.below(4) > 0).then(|| dice.roll());
    let mut cut = disk.power_cut(torn);
    let name = format!("seed {seed}, crash, torn {torn:?}");
    if dice.below(2) == 0 {
        let whole = cut.killed();
        drop(open_with(&whole, &options(), crash_layout()));
        let again = 1 + dice.roll() % whole.operations();
        cut.crash_at(again);
        drop(open_with(&cut, &options(), crash_layout()));
        cut = cut.power_cut(Some(dice.roll()));
    }
    verify(&cut, seed, &told, &name).await;
    if seed.is_multiple_of(50) {
        verify(&whole.power_cut(None), seed, &all(seed), &format!("seed {seed}, whole")).await;
    }
}

/// The row whose place a gap's notice had taken lay in a frame that was written over, and was told
/// as damage: one of 29,487 crashes. The operation moves with each that a start has more or fewer of, so
/// that those about it are tried as well.
#[tokio::test]
async fn f02_a_dropped_row_that_is_written_over_is_no_damage() {
    crash_about(29_487, 316..=366, 9_879_045_379_702_032_574).await;
}

/// A frame that was let go, and written over by one that was cut off: what passed its check in there counted as
/// its own, and eight rows behind it were gone for it: one of 85,251 crashes.
#[tokio::test]
async fn f02_what_was_cut_off_over_an_older_frame_is_not_in_that_one() {
    crash_about(85_251, 154..=204, 11_414_632_294_318_422_814).await;
}

/// A run that is cut at each of some operations.
async fn crash_about(seed: u64, operations: std::ops::RangeInclusive<u64>, torn: u64) {
    for at in operations {
        let disk = FakeDisk::default();
        disk.crash_at(at);
        let mut told = Told::default();
        drop(run(&disk, seed, &mut told).await);
        verify(&disk.power_cut(Some(torn)), seed, &told, &format!("crash at {at}")).await;
    }
}

/// What a run that went to its end was told.
fn all(seed: u64) -> Told {
    let steps = plan(seed).0.len();
    Told { durable: steps, begun: steps }
}
