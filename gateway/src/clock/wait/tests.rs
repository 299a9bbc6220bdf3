//! Rows before the clock is set, on a table and a store of their own. The clocks stand where they were
//! put, so that each time is known beforehand.

use std::path::PathBuf;

use arrow::array::{ArrayRef, AsArray, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit, TimestampMicrosecondType};
use tidegate_drivers::table::{Quality, Value};
use tidegate_drivers::{Point, TableBuilder};
use tidegate_engine::store::{Layout, StoreOptions, TableLayout, Ticket};
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::batch::Batcher;
use crate::clock::{Clock, DurableTime, Moment};
use crate::supervisor::Part;
use crate::table::{Arrival, Positioned, Reader, Readers, Table};

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;
/// Where time begins without a clock.
const BEGIN: i64 = 1_000 * HOUR;

/// A clock in the hand.
struct Hand(Mutex<(Moment, Option<i64>)>);

fn hand(time: i64, trust: Trust, unset: bool) -> Moment {
    Moment { time, at: Instant::now(), trust, unset }
}

impl Hand {
    fn unset(time: i64) -> Arc<Self> {
        Arc::new(Self(Mutex::new((hand(time, Trust::Unknown, true), None))))
    }

    fn right(time: i64) -> Arc<Self> {
        let hand = Self::unset(time);
        hand.set(time, Trust::Certain, 0);
        hand
    }

    /// Sets it, which moves it by so much.
    fn set(&self, time: i64, trust: Trust, by: i64) {
        *self.0.lock().unwrap() = (hand(time, trust, false), Some(by));
    }
}

impl Clock for Hand {
    fn now(&self) -> i64 {
        self.moment().time
    }

    fn moment(&self) -> Moment {
        Moment { at: Instant::now(), ..self.0.lock().unwrap().0 }
    }

    fn first_set(&self) -> Option<i64> {
        self.0.lock().unwrap().1
    }
}

/// A folder with a store.
struct Trial(PathBuf);

impl Trial {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("tidegate-wait-{}-{name}", std::process::id())))
    }

    fn open(&self) -> Store {
        let readers = vec!["s".into()];
        let table = TableLayout { name: "t".into(), readers, history_us: None };
        let layout = Layout { tables: vec![table], sinks: Vec::new() };
        Store::open(StoreOptions::new(&self.0, "gw", 1), layout).unwrap().0
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn begin(store: &Store, clock: &Arc<Hand>, bound: Duration, boot: u128, up: i64) -> Arc<ClockWait> {
    let clock = clock.clone() as SharedClock;
    Arc::new(ClockWait::begin(store, &clock, bound, || Machine { boot, up }))
}

const LONG: Duration = Duration::from_hours(1);

fn rows(times: &[i64]) -> RecordBatch {
    let time = TimestampMicrosecondArray::from(times.to_vec()).with_timezone("UTC");
    let quality = StringArray::from(vec!["good"; times.len()]);
    RecordBatch::try_from_iter([
        ("time", Arc::new(time) as ArrayRef),
        ("quality", Arc::new(quality) as ArrayRef),
    ])
    .unwrap()
}

fn read(batches: &[RecordBatch]) -> Vec<(i64, &str)> {
    let read = |batch: &'_ RecordBatch| {
        let times = batch.column(0).as_primitive::<TimestampMicrosecondType>().values().to_vec();
        let texts = batch.column(1).as_string::<i32>().iter().flatten();
        let good = texts.map(|text| if text == "good" { "good" } else { "uncertain" });
        times.into_iter().zip(good.collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    batches.iter().flat_map(read).collect()
}

async fn logged(store: &Store) -> Vec<RecordBatch> {
    let rows = store.read_log("t", 0, 100).await.unwrap();
    rows.into_iter().map(|(_, batch)| batch).collect()
}

/// A table at work, and a stream's queue.
struct Work {
    arrivals: mpsc::Sender<Arrival>,
    stream: mpsc::Receiver<Positioned>,
}

fn work(store: &Store, clock: &Arc<Hand>, wait: &Arc<ClockWait>) -> Work {
    let (arrivals, incoming) = mpsc::channel(8);
    let (queue, stream) = mpsc::channel(8);
    let readers = Arc::new(Readers::default());
    readers.add(Reader { queue, table: 0 });
    let mut table = Table {
        name: "t".into(),
        arrivals: incoming,
        store: store.clone(),
        readers,
        held: None,
        next_position: store.log_end("t"),
        clock: clock.clone(),
        taps: Arc::default(),
        durable_time: Arc::new(DurableTime::default()),
        wait: wait.clone(),
        clock_keys: ClockKeys::new("t"),
    };
    tokio::spawn(async move { table.run().await });
    Work { arrivals, stream }
}

impl Work {
    /// Brings rows, and waits until they are durable.
    async fn bring(&self, times: &[i64], unset: bool) {
        let (ticket, durable) = oneshot::channel::<Ticket>();
        let arrival =
            Arrival { batch: rows(times), unset, counts: Vec::new(), ticket: Some(ticket) };
        self.arrivals.send(arrival).await.unwrap();
        durable.await.unwrap().await.unwrap();
    }

    /// What the stream was handed next.
    async fn handed(&mut self) -> (u64, Vec<RecordBatch>) {
        let rows = self.stream.recv().await.unwrap();
        (rows.position, vec![rows.batch])
    }
}

fn counted(store: &Store) -> (u64, u64, u64) {
    let keys = ClockKeys::new("t");
    (store.count(&keys.waited), store.count(&keys.rebased), store.count(&keys.doubted))
}

/// Makes what was submitted before durable.
async fn settle(store: &Store) {
    store.submit(Commit { wait: true, ..Commit::default() }).await.unwrap().await.unwrap();
}

#[tokio::test]
async fn f11_rows_wait_in_the_log_and_move_when_the_clock_is_set() {
    let (trial, clock) = (Trial::new("set"), Hand::unset(BEGIN));
    let store = trial.open();
    let wait = begin(&store, &clock, LONG, 7, 5 * SECOND);
    let mut work = work(&store, &clock, &wait);
    work.bring(&[BEGIN, BEGIN + SECOND], true).await;
    assert_eq!(logged(&store).await, []);
    assert!(work.stream.try_recv().is_err(), "no stream is handed a row without a time");
    assert_eq!(wait.waiting(), BTreeMap::from([("t".into(), 2)]));
    assert!(wait.left().is_some_and(|left| left > LONG / 2));

    let running = tokio::spawn(wait.clone().run(clock.clone(), store.clone()));
    // Eight hours after the power went; a row is on its way meanwhile.
    clock.set(BEGIN + 8 * HOUR + 2 * SECOND, Trust::Certain, 8 * HOUR);
    wait.over().await;
    running.await.unwrap();
    work.bring(&[BEGIN + 2 * SECOND], true).await;
    work.bring(&[BEGIN + 8 * HOUR + 3 * SECOND], false).await;
    let moved = [0, 1, 2, 3].map(|s| (BEGIN + 8 * HOUR + s * SECOND, "good"));
    let all = logged(&store).await;
    assert_eq!(read(&all), moved);
    let (position, batch) = work.handed().await;
    assert_eq!((position, read(&batch)), (2, moved[2..3].to_vec()), "as it is in the log");
    assert_eq!(work.handed().await.0, 3);
    settle(&store).await;
    assert_eq!(counted(&store), (2, 2, 0));
    assert_eq!(wait.rebased(), Some(Rebased { by: 8 * HOUR, rows: 2 }));
    assert_eq!((wait.left(), wait.waiting()), (None, BTreeMap::new()));
}

#[tokio::test]
async fn f11_a_wait_that_is_over_leaves_rows_where_they_are() {
    let (trial, clock) = (Trial::new("over"), Hand::unset(BEGIN));
    let store = trial.open();
    let wait = begin(&store, &clock, LONG, 7, 0);
    let mut work = work(&store, &clock, &wait);
    work.bring(&[BEGIN], true).await;
    // Somebody writes a shorter wait into the configuration.
    wait.set_bound(Duration::from_millis(1));
    wait.clone().run(clock.clone(), store.clone()).await;
    work.bring(&[BEGIN + SECOND], true).await;
    assert_eq!(read(&work.handed().await.1), [(BEGIN + SECOND, "uncertain")]);
    let both = [(BEGIN, "uncertain"), (BEGIN + SECOND, "uncertain")];
    assert_eq!(read(&logged(&store).await), both);
    // Set later, the clock changes nothing about them.
    clock.set(BEGIN + HOUR, Trust::Certain, HOUR);
    wait.clone().run(clock.clone(), store.clone()).await;
    assert_eq!(read(&logged(&store).await), both);
    assert_eq!(counted(&store), (1, 0, 1));
    drop(work);
    store.close().await.unwrap();

    // Within the same start of the machine nobody waits again.
    let store = trial.open();
    let wait = begin(&store, &Hand::unset(BEGIN), LONG, 7, 9 * SECOND);
    assert!(!wait.is_waiting() && !wait.keeps_stamps());
    assert!(begin(&store, &Hand::unset(BEGIN), LONG, 8, 0).is_waiting(), "another start");
    assert!(!begin(&store, &Hand::unset(BEGIN), Duration::ZERO, 8, 0).is_waiting());
}

/// The time is ahead of the clock that was set and goes on there, more slowly: so do the rows.
#[tokio::test]
async fn f11_rows_are_not_moved_behind_what_is_stored() {
    let (trial, clock) = (Trial::new("ahead"), Hand::unset(BEGIN));
    let store = trial.open();
    let wait = begin(&store, &clock, LONG, 7, 0);
    let work = work(&store, &clock, &wait);
    work.bring(&[BEGIN], true).await;
    clock.set(BEGIN + SECOND, Trust::Ahead, 0);
    wait.clone().run(clock.clone(), store.clone()).await;
    settle(&store).await;
    assert_eq!(read(&logged(&store).await), [(BEGIN, "uncertain")]);
    assert_eq!(counted(&store), (1, 0, 1));
}

/// The process is killed before the clock is set, twice, and the machine goes on: its monotonic clock
/// says when the rows of each run came.
#[tokio::test]
async fn f11_rows_of_runs_that_were_killed_are_moved_each_by_its_own_distance() {
    let trial = Trial::new("killed");
    // 100 s after the machine's start the time is taken to be `BEGIN`; 150 s after it, `BEGIN` + 60 s.
    for (time, up) in [(BEGIN, 100 * SECOND), (BEGIN + 60 * SECOND, 150 * SECOND)] {
        let (store, clock) = (trial.open(), Hand::unset(time));
        let wait = begin(&store, &clock, LONG, 7, up);
        work(&store, &clock, &wait).bring(&[time], true).await;
        store.close().await.unwrap();
    }
    let store = trial.open();
    // 200 s after the machine's start the clock is right: the machine started at 2 * BEGIN - 200 s.
    let clock = Hand::right(2 * BEGIN);
    let wait = begin(&store, &clock, LONG, 7, 200 * SECOND);
    assert!(!wait.is_waiting());
    let moved = [(2 * BEGIN - 100 * SECOND, "good"), (2 * BEGIN - 50 * SECOND, "good")];
    settle(&store).await;
    assert_eq!(read(&logged(&store).await), moved);
    assert_eq!(counted(&store), (2, 2, 0));
    store.close().await.unwrap();
    // Nothing is left to decide, also with another clock.
    let store = trial.open();
    begin(&store, &Hand::right(3 * BEGIN), LONG, 7, 300 * SECOND);
    settle(&store).await;
    assert_eq!((read(&logged(&store).await), counted(&store)), (moved.to_vec(), (2, 2, 0)));
}

/// The same where the clock is set while the third run waits for it.
#[tokio::test]
async fn f11_rows_of_a_run_that_was_killed_go_on_waiting() {
    let trial = Trial::new("goes-on");
    let (store, clock) = (trial.open(), Hand::unset(BEGIN));
    let wait = begin(&store, &clock, LONG, 7, 100 * SECOND);
    work(&store, &clock, &wait).bring(&[BEGIN], true).await;
    store.close().await.unwrap();
    let (store, clock) = (trial.open(), Hand::unset(BEGIN + SECOND));
    let wait = begin(&store, &clock, LONG, 7, 130 * SECOND);
    assert_eq!(wait.waiting(), BTreeMap::from([("t".into(), 1)]));
    work(&store, &clock, &wait).bring(&[BEGIN + SECOND], true).await;
    clock.set(BEGIN + HOUR, Trust::Certain, HOUR);
    wait.clone().run(clock.clone(), store.clone()).await;
    settle(&store).await;
    // The second run began 30 s after the first, whose stamps are 29 s ahead of its own.
    let moved = [(BEGIN + HOUR - 29 * SECOND, "good"), (BEGIN + HOUR + SECOND, "good")];
    assert_eq!(read(&logged(&store).await), moved);
    assert_eq!(counted(&store), (2, 2, 0));
}

#[tokio::test]
async fn f11_rows_from_before_a_power_cut_are_never_known() {
    let trial = Trial::new("cut");
    let (store, clock) = (trial.open(), Hand::unset(BEGIN));
    let wait = begin(&store, &clock, LONG, 7, 100 * SECOND);
    work(&store, &clock, &wait).bring(&[BEGIN], true).await;
    store.close().await.unwrap();
    // Another start of the machine, whose clock is not set either.
    let (store, clock) = (trial.open(), Hand::unset(BEGIN + 2 * SECOND));
    let wait = begin(&store, &clock, LONG, 8, 10 * SECOND);
    settle(&store).await;
    assert_eq!(read(&logged(&store).await), [(BEGIN, "uncertain")]);
    assert_eq!((counted(&store), wait.waiting()), ((1, 0, 1), BTreeMap::new()));
    assert!(wait.is_waiting());
    work(&store, &clock, &wait).bring(&[BEGIN + 2 * SECOND], true).await;
    clock.set(BEGIN + HOUR, Trust::Certain, HOUR);
    wait.clone().run(clock.clone(), store.clone()).await;
    settle(&store).await;
    let both = [(BEGIN, "uncertain"), (BEGIN + HOUR + 2 * SECOND, "good")];
    assert_eq!(read(&logged(&store).await), both, "in their order");
    assert_eq!(counted(&store), (2, 1, 1));
}

/// A message that says its own time is not moved, and comes from no future once the clock is set.
#[tokio::test]
async fn f11_a62_of_a_feed_only_what_arrival_stamped_is_moved() {
    let (trial, clock) = (Trial::new("feed"), Hand::unset(BEGIN));
    let store = trial.open();
    let wait = begin(&store, &clock, LONG, 7, 0);
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let schema = Arc::new(Schema::new(vec![
        Field::new("time", utc.clone(), false),
        Field::new("device", DataType::Utf8, false),
        Field::new("quality", DataType::Utf8, false),
        Field::new("seq", DataType::UInt64, false),
        Field::new("received_at", utc, false),
        Field::new("n", DataType::Int32, true),
    ]));
    let clocks = (clock.clone() as SharedClock, wait.clone());
    let mut batcher = Batcher::new("line", schema, true, clocks, 0);
    let mut table = TableBuilder::new(&[Point::new("n", DataType::Int32)], false);
    let at = Instant::now() + Duration::from_mins(1);
    // One from a clock that is right, one that is equal to ours by chance, one without a time.
    for own in [Some(BEGIN + 8 * HOUR), Some(BEGIN), None] {
        table.begin();
        if let Some(own) = own {
            table.time(own);
        }
        table.value(0, Value::I32(1));
        table.end(at);
    }
    let mut rows = table.finish();
    let stamp = batcher.stamp(&mut rows);
    assert!(stamp.unset);
    let batch = batcher.close(rows, stamp).unwrap();
    let both = |batch: &RecordBatch| {
        let times = |column: usize| {
            batch.column(column).as_primitive::<TimestampMicrosecondType>().values().to_vec()
        };
        times(0).into_iter().zip(times(4)).collect::<Vec<_>>()
    };
    let stamped = [(BEGIN + 8 * HOUR, BEGIN), (BEGIN, BEGIN - 1), (BEGIN, BEGIN)];
    assert_eq!(both(&batch), stamped);
    let now = BEGIN + 8 * HOUR;
    let moved = moved(&batch, 8 * HOUR).unwrap();
    assert_eq!(both(&moved), [(now, now), (BEGIN, now - 1), (now, now)]);
    let quality = moved.column(2).as_string::<i32>().iter().flatten().collect::<Vec<_>>();
    assert_eq!(quality, ["good"; 3]);
    // When nobody waits any more, they are doubted as always.
    wait.set_bound(Duration::ZERO);
    wait.clone().run(clock.clone(), store.clone()).await;
    table.begin();
    table.value(0, Value::I32(1));
    table.end(at);
    let mut rows = table.finish();
    let stamp = batcher.stamp(&mut rows);
    assert_eq!((stamp.unset, &*rows.qualities), (false, &[Quality::Uncertain][..]));
}

#[test]
fn the_systems_figures_are_read() {
    let (first, second) = (Machine::read(), Machine::read());
    assert_eq!(first.boot, second.boot);
    assert!(first.boot > 0 && first.up > 0 && second.up >= first.up);
}
