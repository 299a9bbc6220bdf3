//! The pump on time that stands still: rates, shares, order, pauses, and what goes wrong in a lane.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_drivers::Fault;
use tidegate_drivers::north::Encode;
use tidegate_engine::store::{Gap, GapReason};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::fake::{Arrived, FarSide, Handle, Memory};
use super::{Asked, Plan, Pump, Queue, SinkCounts, Writer};
use crate::progress::Pulse;
use crate::supervisor::Part;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const AT_ONCE: (Duration, Duration) = (Duration::ZERO, Duration::ZERO);

/// A pump at work between an outbox and a far side.
struct Trial {
    memory: Arc<Memory>,
    asked: watch::Sender<Asked>,
    arrived: Arc<Mutex<Vec<Arrived>>>,
    connects: Arc<Mutex<Vec<Duration>>>,
    counts: Arc<SinkCounts>,
    stop: CancellationToken,
    pump: JoinHandle<()>,
}

/// What differs from trial to trial.
struct Setting {
    waiting: u64,
    plan: Plan,
    takes: (Duration, Duration),
    answer: Box<dyn FnMut(u64) -> Option<Fault> + Send>,
    asked: Asked,
    refuses: u32,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            waiting: 0,
            plan: Plan::default(),
            takes: AT_ONCE,
            answer: Box::new(|_| None),
            asked: Asked::default(),
            refuses: 0,
        }
    }
}

impl Trial {
    fn start(setting: Setting) -> Self {
        Self::over(Memory::new(setting.waiting), setting)
    }

    fn over(memory: Arc<Memory>, setting: Setting) -> Self {
        let Setting { plan, takes, answer, asked, refuses, .. } = setting;
        let arrived = Arc::default();
        let connects = Arc::default();
        let far_side = FarSide {
            takes,
            answer,
            started: Instant::now(),
            arrived: Arc::clone(&arrived),
            connects: Arc::clone(&connects),
            refuses,
        };
        let (asked, stop) = (watch::Sender::new(asked), CancellationToken::new());
        let counts = Arc::<SinkCounts>::default();
        let writer = Writer { gateway: "gw".to_owned(), encode: Encode::default(), mark: false };
        let mut pump = Pump {
            name: "cloud".into(),
            north: Box::new(far_side),
            queue: Queue::new(Arc::new(Handle(memory.clone())), plan, 1_000),
            writer,
            rate: plan.rate,
            asked: asked.clone(),
            stop: stop.clone(),
            pauses: (SECOND * 100, SECOND * 100),
            refusals_max: 3,
            counts: counts.clone(),
            pulse: Arc::<Pulse>::default(),
        };
        let pump = tokio::spawn(async move {
            pump.run().await;
        });
        Self { memory, asked, arrived, connects, counts, stop, pump }
    }

    fn arrived(&self) -> Vec<Arrived> {
        self.arrived.lock().unwrap().clone()
    }

    fn positions(&self) -> Vec<u64> {
        self.arrived().iter().map(|record| record.position).collect()
    }

    fn count(&self) -> usize {
        self.arrived.lock().unwrap().len()
    }

    /// Ends the pump, and gives what arrived.
    async fn stop(self) -> Vec<u64> {
        self.stop.cancel();
        let arrived = self.arrived;
        self.pump.await.unwrap();
        let arrived = arrived.lock().unwrap();
        arrived.iter().map(|record| record.position).collect()
    }

    /// Makes so many records a second durable, for a while.
    async fn live(&self, per_second: u64, lasting: Duration) {
        let start = Instant::now();
        while start.elapsed() < lasting {
            sleep(100 * MS).await;
            self.memory.push(per_second / 10);
        }
    }

    /// Panics unless everything is settled, and arrived once and in order within each lane.
    fn assert_complete(&self, split: u64, end: u64) {
        assert_lanes(&self.positions(), split, end);
        self.assert_settled(end);
    }

    fn assert_settled(&self, end: u64) {
        let state = self.memory.state();
        assert_eq!((state.rows.len(), state.cursor, state.lanes), (0, end, None));
    }
}

/// Panics unless all arrived once, and in order within each lane.
fn assert_lanes(arrived: &[u64], split: u64, end: u64) {
    let (backlog, live): (Vec<u64>, Vec<u64>) =
        arrived.iter().partition(|position| **position <= split);
    for (lane, expected) in [(backlog, 1..=split), (live, split + 1..=end)] {
        let wrong = lane.iter().copied().zip(expected.clone()).find(|(got, want)| got != want);
        assert_eq!(wrong, None, "of {expected:?}: what came, and what should have");
        assert_eq!(lane.len(), expected.count());
    }
}

fn within(arrived: &[Arrived], from: Duration, to: Duration) -> Vec<Arrived> {
    arrived.iter().filter(|record| record.at >= from && record.at < to).copied().collect()
}

#[tokio::test(start_paused = true)]
async fn a56_a_backlog_goes_out_at_its_rate_and_live_records_at_once() {
    let plan = Plan { rate: Some(500.0), ..Plan::default() };
    let trial = Trial::start(Setting { waiting: 3_000, plan, ..Setting::default() });
    sleep(2 * SECOND).await;
    trial.memory.push(10);
    sleep(8 * SECOND).await;
    let arrived = trial.arrived();
    trial.assert_complete(3_010, 3_010);
    for second in 0..6 {
        let in_it = within(&arrived, second * SECOND, (second + 1) * SECOND).len();
        assert!((450..=550).contains(&in_it), "second {second}: {in_it}");
    }
    let last = arrived[2_999].at;
    assert!((5_900 * MS..6_100 * MS).contains(&last), "{last:?}");
    assert!(arrived[..3_000].iter().all(|record| record.replayed));
    assert!(arrived[3_000..].iter().all(|record| !record.replayed && record.at < last + 2 * MS));
    // What comes about while there is a connection has no rate.
    trial.memory.push(5_000);
    sleep(10 * MS).await;
    assert_eq!(trial.count(), 8_010);
    trial.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_live_lane_all_go_in_order() {
    let plan = Plan { rate: Some(1_000.0), ..Plan::default() };
    let trial = Trial::start(Setting { waiting: 5_000, plan, ..Setting::default() });
    trial.live(100, 8 * SECOND).await;
    sleep(SECOND).await;
    assert!(trial.positions().is_sorted());
    trial.assert_complete(5_800, 5_800);
    assert_eq!(trial.memory.state().splits, 0);
    trial.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a56_live_records_have_at_least_their_share() {
    // The far side takes 1,000 records a second; 800 come about: more than their share.
    for (share, least) in [(0.5, 0.48), (0.25, 0.24)] {
        let plan = Plan { share: Some(share), ..Plan::default() };
        let takes = (Duration::ZERO, MS);
        let trial = Trial::start(Setting { waiting: 20_000, plan, takes, ..Setting::default() });
        trial.live(800, 20 * SECOND).await;
        let arrived = within(&trial.arrived(), 2 * SECOND, 18 * SECOND);
        let live = arrived.iter().filter(|record| !record.replayed).count();
        let got = live as f64 / arrived.len() as f64;
        assert!((least..least + 0.06).contains(&got), "{share}: {got}");
        sleep(60 * SECOND).await;
        trial.assert_complete(20_000, 36_000);
        assert_eq!(trial.memory.state().splits, 1);
        trial.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn live_records_do_not_wait_for_a_backlog_at_its_rate() {
    let plan = Plan { rate: Some(100.0), share: Some(0.5), newest: false };
    let takes = (2 * MS, MS);
    let trial = Trial::start(Setting { waiting: 2_000, plan, takes, ..Setting::default() });
    let produced = Instant::now();
    trial.live(200, 10 * SECOND).await;
    let arrived = trial.arrived();
    let backlog = within(&arrived, SECOND, 10 * SECOND).iter().filter(|r| r.replayed).count();
    assert!((810..=990).contains(&backlog), "9 s at 100/s: {backlog}");
    for record in arrived.iter().filter(|record| !record.replayed) {
        let number = u32::try_from(record.position - 2_001).unwrap();
        let came_about = 100 * MS * (number / 20 + 1);
        let waited = record.at.saturating_sub(came_about);
        assert!(waited < 500 * MS, "{} waited {waited:?}", record.position);
    }
    assert!(produced.elapsed() >= 10 * SECOND);
    trial.stop().await;
}

#[tokio::test(start_paused = true)]
async fn newest_first_leaves_the_backlog_what_is_left() {
    // As many come about as the far side takes; then none do.
    let plan = Plan { newest: true, ..Plan::default() };
    let takes = (Duration::ZERO, MS);
    let trial = Trial::start(Setting { waiting: 5_000, plan, takes, ..Setting::default() });
    trial.live(1_000, 5 * SECOND).await;
    let live = trial.arrived().iter().filter(|record| !record.replayed).count();
    assert!(live >= 4_500, "{live} of the first 5,000 deliveries");
    sleep(10 * SECOND).await;
    trial.assert_complete(5_000, 10_000);
    trial.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_backlog_of_one_delivery_begins_no_lanes() {
    let plan = Plan { share: Some(0.5), ..Plan::default() };
    let trial = Trial::start(Setting { waiting: 1_000, plan, ..Setting::default() });
    sleep(SECOND).await;
    trial.assert_complete(1_000, 1_000);
    assert_eq!(trial.memory.state().splits, 0);
    trial.stop().await;
}

#[tokio::test(start_paused = true)]
async fn lanes_go_on_where_they_were_after_a_connection_is_lost() {
    let plan = Plan { share: Some(0.5), ..Plan::default() };
    let mut seen = 0;
    // The connection ends every 3,000 records.
    let answer = Box::new(move |_| {
        seen += 1;
        (seen % 3_000 == 0).then(|| Fault::Link("gone".to_owned()))
    });
    let takes = (Duration::ZERO, MS);
    let setting = Setting { waiting: 10_000, plan, takes, answer, ..Setting::default() };
    let trial = Trial::start(setting);
    trial.live(500, 10 * SECOND).await;
    sleep(2_000 * SECOND).await;
    assert!(trial.connects.lock().unwrap().len() >= 5);
    assert_eq!(trial.memory.state().splits, 1);
    trial.assert_complete(10_000, 15_000);
    trial.stop().await;
}

#[tokio::test(start_paused = true)]
async fn lanes_of_the_store_are_kept_to_where_none_are_wanted_any_more() {
    let memory = Memory::new(6_000);
    let plan = Plan { share: Some(0.5), ..Plan::default() };
    let takes = (Duration::ZERO, MS);
    let setting = || Setting { plan, takes, ..Setting::default() };
    let before = Trial::over(memory.clone(), setting());
    before.live(500, 2 * SECOND).await;
    let first = before.stop().await;
    assert!(memory.state().lanes.is_some_and(|lanes| lanes.live > lanes.split));

    let after = Trial::over(memory, Setting { plan: Plan::default(), ..setting() });
    sleep(60 * SECOND).await;
    assert_lanes(&[first, after.positions()].concat(), 6_000, 7_000);
    // Without a share live records wait for the others.
    assert!(after.positions().is_sorted());
    after.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_backlog_goes_on_without_live_records_that_cannot_be_read() {
    for plan in
        [Plan { share: Some(0.5), ..Plan::default() }, Plan { newest: true, ..Plan::default() }]
    {
        let takes = (Duration::ZERO, MS);
        let trial = Trial::start(Setting { waiting: 4_000, plan, takes, ..Setting::default() });
        trial.live(100, SECOND).await;
        trial.memory.push_unreadable(50);
        sleep(20 * SECOND).await;
        assert_lanes(&trial.positions(), 4_000, 4_100);
        // And they have their turn again when there are some.
        trial.memory.push(10);
        sleep(SECOND).await;
        assert_eq!(trial.count(), 4_110);
        trial.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_sink_delivers_nothing_and_wakes_at_once() {
    let asked = Asked { paused: true, rate: None };
    let plan = Plan { rate: Some(100.0), ..Plan::default() };
    let trial = Trial::start(Setting { waiting: 50, plan, asked, ..Setting::default() });
    sleep(3_600 * SECOND).await;
    assert_eq!(
        (trial.count(), trial.connects.lock().unwrap().len()),
        (0, 1),
        "connected all the same"
    );
    trial.asked.send_modify(|asked| asked.paused = false);
    sleep(600 * MS).await;
    assert_eq!(trial.count(), 50, "what waited goes out at the rate");

    trial.asked.send_modify(|asked| asked.paused = true);
    sleep(MS).await;
    trial.memory.push(100);
    sleep(SECOND).await;
    assert_eq!(trial.count(), 50);
    trial.asked.send_modify(|asked| asked.paused = false);
    sleep(MS).await;
    assert_eq!(trial.count(), 50, "a pause is an outage: its backlog has the rate");
    sleep(1_100 * MS).await;
    trial.assert_complete(150, 150);
    assert!(trial.arrived().iter().all(|record| record.replayed));
    trial.stop().await;
}

#[tokio::test(start_paused = true)]
async fn resuming_does_not_wait_for_the_next_attempt_to_connect() {
    let asked = Asked { paused: true, rate: None };
    let trial = Trial::start(Setting { waiting: 5, asked, refuses: 1, ..Setting::default() });
    sleep(10 * SECOND).await;
    assert_eq!(trial.connects.lock().unwrap().len(), 1, "the pause is 100 s");
    trial.asked.send_modify(|asked| asked.paused = false);
    sleep(MS).await;
    assert_eq!(trial.positions(), [1, 2, 3, 4, 5]);
    trial.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_rate_that_is_asked_for_ends_with_its_backlog() {
    let plan = Plan { rate: Some(10.0), ..Plan::default() };
    let trial = Trial::start(Setting { waiting: 1_000, plan, ..Setting::default() });
    sleep(10 * SECOND).await;
    let slow = trial.count();
    assert!((90..=110).contains(&slow), "{slow}");
    trial.asked.send_modify(|asked| asked.rate = Some(Some(200.0)));
    sleep(2 * SECOND).await;
    let fast = trial.count() - slow;
    assert!((360..=440).contains(&fast), "{fast}");
    trial.asked.send_modify(|asked| asked.rate = Some(None));
    sleep(10 * MS).await;
    assert_eq!(trial.count(), 1_000);
    assert_eq!(trial.asked.borrow().rate, None, "it has ended");
    trial.stop().await;
}

/// How often the far side was asked to take each record.
type Attempts = Arc<Mutex<BTreeMap<u64, u32>>>;

/// A far side that answers by the record and by how many attempts there were to deliver it, this one
/// among them; and these.
fn counted(
    mut answer: impl FnMut(u64, u32) -> Option<Fault> + Send + 'static,
) -> (Attempts, Box<dyn FnMut(u64) -> Option<Fault> + Send>) {
    let attempts = Attempts::default();
    let counts = attempts.clone();
    let counting = move |position| {
        let mut counts = counts.lock().unwrap();
        let count = counts.entry(position).or_default();
        *count += 1;
        answer(position, *count)
    };
    (attempts, Box::new(counting))
}

#[tokio::test(start_paused = true)]
async fn p12_a_refused_record_is_set_aside_in_its_lane_alone() {
    let plan = Plan { share: Some(0.5), ..Plan::default() };
    let (attempts, answer) = counted(|position, _| {
        (position == 7 || position == 4_010).then(|| Fault::Refused("no".to_owned()))
    });
    let takes = (Duration::ZERO, MS);
    let setting = Setting { waiting: 4_000, plan, takes, answer, ..Setting::default() };
    let trial = Trial::start(setting);
    trial.live(100, SECOND).await;
    sleep(30 * SECOND).await;
    let rejected: Vec<_> = trial.memory.state().rejected.iter().map(|(p, _)| *p).collect();
    assert_eq!(rejected.len(), 2);
    assert!(rejected.contains(&7) && rejected.contains(&4_010), "{rejected:?}");
    assert_eq!(trial.count(), 4_098, "all others, once");
    let attempts = |position| attempts.lock().unwrap()[&position];
    assert_eq!([attempts(6), attempts(7), attempts(8), attempts(4_010)], [1, 3, 1, 3]);
    trial.assert_settled(4_100);
    trial.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a42_a_record_that_ends_connections_holds_up_its_lane_only_for_a_while() {
    let plan = Plan { share: Some(0.5), ..Plan::default() };
    let ends = |position| (position == 1).then(|| Fault::Link("closed".to_owned()));
    let setting = Setting { waiting: 4_000, plan, answer: Box::new(ends), ..Setting::default() };
    let trial = Trial::start(setting);
    trial.live(100, SECOND).await;
    // Six attempts, 100 s from each other.
    sleep(1_000 * SECOND).await;
    assert_eq!(trial.memory.state().rejected.len(), 1);
    assert_eq!(trial.count(), 4_099);
    trial.stop().await;
}

#[tokio::test(start_paused = true)]
async fn f17_refusals_of_a_record_count_over_lost_connections() {
    // It is refused, and the connection ends with the next attempt: three refusals in three connections.
    let (attempts, answer) = counted(|position, attempt| {
        (position == 3).then(|| match attempt % 2 {
            1 => Fault::Refused("no".to_owned()),
            _ => Fault::Link("closed".to_owned()),
        })
    });
    let trial = Trial::start(Setting { waiting: 10, answer, ..Setting::default() });
    sleep(1_000 * SECOND).await;
    assert_eq!(trial.memory.state().rejected, [(3, "no".to_owned())]);
    assert_eq!(attempts.lock().unwrap()[&3], 5);
    assert_eq!(trial.connects.lock().unwrap().len(), 3);
    assert_eq!(trial.positions(), [1, 2, 4, 5, 6, 7, 8, 9, 10]);
    trial.stop().await;
}

/// A record behind the one that ends connections was refused three times, and the one at the head
/// counted as delivered with it: it was gone.
#[tokio::test(start_paused = true)]
async fn a42_a_refused_record_behind_one_that_ends_connections_settles_only_itself() {
    let (attempts, answer) = counted(|position, _| match position {
        1 => Some(Fault::Link("closed".to_owned())),
        2 => Some(Fault::Refused("no".to_owned())),
        _ => None,
    });
    let trial = Trial::start(Setting { waiting: 10, answer, ..Setting::default() });
    sleep(1_000 * SECOND).await;
    let rejected = trial.memory.state().rejected.clone();
    assert_eq!(rejected, [(1, super::ENDED_AGAIN.to_owned()), (2, "no".to_owned())]);
    // Five times first, and once more after the third one had passed.
    let attempts = |position| attempts.lock().unwrap()[&position];
    assert_eq!([attempts(1), attempts(2), attempts(3)], [6, 3, 1]);
    assert_eq!(trial.positions(), [3, 4, 5, 6, 7, 8, 9, 10]);
    trial.assert_settled(10);
    trial.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a45_a_far_side_that_took_nothing_for_a_while_blames_no_record() {
    // It is back at any attempt, also when the record behind the head is tried.
    for ends in 1..=13 {
        let mut ended = 0;
        let answer = move |_| {
            ended += 1;
            (ended <= ends).then(|| Fault::Link("no answer".to_owned()))
        };
        let answer = Box::new(answer);
        let trial = Trial::start(Setting { waiting: 10, answer, ..Setting::default() });
        sleep(2_000 * SECOND).await;
        assert!(trial.memory.state().rejected.is_empty(), "after {ends}");
        let mut arrived = trial.positions();
        arrived.sort_unstable();
        assert_eq!(arrived, (1..=10).collect::<Vec<_>>(), "each once, after {ends}");
        trial.assert_settled(10);
        trial.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_notice_of_a_gap_is_delivered_and_is_no_record() {
    let trial = Trial::start(Setting { waiting: 2, ..Setting::default() });
    trial.memory.push_gap(Gap { from: 3, to: 9, reason: GapReason::Dropped });
    trial.memory.push(1);
    sleep(SECOND).await;
    assert_eq!(trial.positions(), [1, 2, 9, 4], "the notice ends in the last one that is missing");
    let counts = &trial.counts;
    let count = |n: &std::sync::atomic::AtomicU64| n.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!((count(&counts.delivered), count(&counts.gaps)), (3, 1));
    assert_eq!(trial.memory.state().cursor, 4);
    trial.stop().await;
}

#[tokio::test(start_paused = true)]
async fn p07_what_a_bound_drops_of_a_backlog_is_told_though_live_records_passed_it() {
    let plan = Plan { rate: Some(100.0), share: Some(0.5), newest: false };
    let takes = (Duration::ZERO, MS);
    let trial = Trial::start(Setting { waiting: 4_000, plan, takes, ..Setting::default() });
    trial.live(200, 5 * SECOND).await;
    let before = trial.positions();
    trial.memory.drop_upto(4_000);
    trial.live(200, SECOND).await;
    sleep(SECOND).await;
    let after = trial.positions().split_off(before.len());
    // The notice of 4,000 comes once, and the live records go on without a hole.
    let notices = after.iter().filter(|position| **position == 4_000).count();
    assert_eq!(notices, 1, "{after:?}");
    let live: Vec<_> = trial.positions().into_iter().filter(|position| *position > 4_000).collect();
    assert_eq!(live.len(), 1_200);
    assert!(live.is_sorted() && live.last() == Some(&5_200));
    trial.assert_settled(5_200);
    trial.stop().await;
}

#[tokio::test(start_paused = true)]
async fn p07_a_notice_that_stayed_is_told_and_nothing_comes_twice() {
    let trial = Trial::start(Setting { waiting: 5, ..Setting::default() });
    sleep(SECOND).await;
    assert_eq!(trial.positions(), [1, 2, 3, 4, 5]);
    trial.memory.keep_notice(Gap { from: 1, to: 2, reason: GapReason::Dropped });
    trial.memory.push(2);
    sleep(SECOND).await;
    assert_eq!(trial.positions(), [1, 2, 3, 4, 5, 2, 6, 7]);
    trial.assert_settled(7);
    trial.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_notice_is_no_dead_letter() {
    let no = |position| (position == 9).then(|| Fault::Refused("no".to_owned()));
    let trial = Trial::start(Setting { answer: Box::new(no), ..Setting::default() });
    trial.memory.push_gap(Gap { from: 3, to: 9, reason: GapReason::Expired });
    trial.memory.push(1);
    sleep(SECOND).await;
    assert_eq!(trial.positions(), [2]);
    assert!(trial.memory.state().rejected.is_empty());
    trial.stop().await;
}
