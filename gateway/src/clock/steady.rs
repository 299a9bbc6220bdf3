//! The gateway's time of day: the operating system's, without what would be lived twice.
//!
//! Promise: it goes on as the monotonic clock does and never back, apart from one case. Where the
//! operating system's clock is set forward, it follows at once. Where that is set back by up to an
//! hour, it runs a tenth slower until the other has caught up: rows stamped by arrival are then
//! neither late nor in a window that was given already. Where that is set back further, as from a
//! date that a dead battery left behind, it follows at once. A clock from before this program was
//! made is not believed: time goes on from when rows were made durable last. It knows no rows.
//! Source: fault F11, field case A62; design page "The engine", section Event time.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{Clock, Moment, SharedClock, SystemClock, Trust};
use crate::ledger::Growth;

/// 2026-11-01T00:00:00Z: no gateway with this program ran before.
const EARLIEST: i64 = 1_793_491_200_000_000;
/// Furthest step back that is lived through by running slower: an hour, as of a clock that was taken
/// for local time, and what it was off besides. More than streams allow to stamps where the document
/// does not say (`max_future`), so that a stream sees any further step as one.
const SLOWED_MAX: i64 = 3_900_000_000;
/// One in so many microseconds is left out meanwhile. An hour takes ten; a rate over time is at most
/// a ninth too high, and its rows are `uncertain`.
const SLOWED_BY: i64 = 10;
/// So far ahead, a row's time is still good.
const AHEAD_MAX: i64 = 1_000_000;
/// Two readings that are no further from each other count as one moment.
const TOGETHER: Duration = Duration::from_micros(200);
/// So often they are tried again.
const READINGS_MAX: u32 = 5;
/// Readings that are closer to each other than this count from the same one, so that no fraction
/// is lost.
const READING_MIN: i64 = 1_000;

/// The gateway's time of day.
pub struct SteadyClock {
    wall: SharedClock,
    state: Mutex<State>,
}

struct State {
    /// The last reading.
    read: Instant,
    time: i64,
    trust: Trust,
    unset: bool,
    /// By how much the time moved when the clock was set for the first time.
    first_set: Option<i64>,
}

/// What one reading gives.
#[derive(Debug, PartialEq, Eq)]
struct Reading {
    time: i64,
    trust: Trust,
    /// The time went back by so much.
    back: Option<i64>,
}

impl SteadyClock {
    /// Begins with the operating system's time.
    pub fn new() -> Self {
        Self::over(Arc::new(SystemClock))
    }

    /// The same over another clock, for tests.
    pub fn over(wall: SharedClock) -> Self {
        let now = wall.now();
        let trust = if now < EARLIEST { Trust::Unknown } else { Trust::Certain };
        let (time, unset) = (now.max(EARLIEST), trust == Trust::Unknown);
        let state = State { read: Instant::now(), time, trust, unset, first_set: None };
        Self { wall, state: Mutex::new(state) }
    }

    fn read(&self) -> Moment {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, wall) = self.both();
        let elapsed = now.saturating_duration_since(state.read);
        let elapsed = i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX);
        let went_on = state.time.saturating_add(elapsed);
        let is_set = state.trust == Trust::Unknown && wall >= EARLIEST;
        // What has passed without a clock is not lived through again more slowly.
        let (from, since) = if is_set { (went_on, 0) } else { (state.time, elapsed) };
        let next = reading(from, since, wall);
        if is_set && state.unset {
            state.unset = false;
            state.first_set = Some(next.time.saturating_sub(went_on));
        }
        if let Some(back) = next.back {
            tracing::warn!(by_s = back / 1_000_000, "the clock was set back, and is followed");
        }
        if next.trust != state.trust {
            tracing::info!(was = state.trust.name(), is = next.trust.name(), "the clock");
        }
        state.trust = next.trust;
        // Without a clock all readings count from the same one, so that the time is ahead of the
        // monotonic clock by the same for all rows.
        let counts = next.trust != Trust::Unknown && elapsed >= READING_MIN;
        if counts || is_set || next.back.is_some() {
            (state.read, state.time) = (now, next.time);
        }
        Moment { time: next.time, at: now, trust: next.trust, unset: state.unset }
    }

    /// Both clocks at one moment: where the process was stopped between the two readings, as on a machine
    /// that has too much to do, once more.
    fn both(&self) -> (Instant, i64) {
        let (mut now, mut wall) = (Instant::now(), self.wall.now());
        for _ in 0..READINGS_MAX {
            let after = Instant::now();
            if after.saturating_duration_since(now) <= TOGETHER {
                break;
            }
            (now, wall) = (after, self.wall.now());
        }
        (now, wall)
    }
}

impl Default for SteadyClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> i64 {
        self.read().time
    }

    fn trust(&self) -> Trust {
        self.read().trust
    }

    fn moment(&self) -> Moment {
        self.read()
    }

    fn first_set(&self) -> Option<i64> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).first_set
    }

    fn resume(&self, last: i64) {
        let Moment { time: now, trust, .. } = self.read();
        let ahead = last.saturating_sub(now);
        if ahead <= 0 {
            return;
        }
        if trust != Trust::Unknown && ahead > SLOWED_MAX {
            tracing::warn!(by_s = ahead / 1_000_000, "the store has rows of a later time than now");
            return;
        }
        if ahead > AHEAD_MAX {
            let by_s = ahead / 1_000_000;
            tracing::warn!(by_s, "the clock is behind the store: time goes on there");
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.read, state.time) = (Instant::now(), last);
    }
}

/// The time that follows `time` after `elapsed` microseconds, where the operating system has `wall`.
fn reading(time: i64, elapsed: i64, wall: i64) -> Reading {
    let went_on = time.saturating_add(elapsed);
    if wall < EARLIEST {
        return Reading { time: went_on, trust: Trust::Unknown, back: None };
    }
    let ahead = went_on.saturating_sub(wall);
    if ahead <= 0 {
        return Reading { time: wall, trust: Trust::Certain, back: None };
    }
    if ahead > SLOWED_MAX {
        return Reading { time: wall, trust: Trust::Certain, back: Some(ahead) };
    }
    let trust = if ahead > AHEAD_MAX { Trust::Ahead } else { Trust::Certain };
    Reading { time: went_on - ahead.min(elapsed / SLOWED_BY), trust, back: None }
}

/// How far time had come when something was made durable last, in whole seconds, rounded up: a durable
/// counter that grows in the commits themselves.
#[derive(Debug, Default)]
pub struct DurableTime(AtomicI64);

impl DurableTime {
    /// The counter's name.
    pub const COUNTER: &str = "clock/seconds";

    /// Goes on from what is durable, in seconds.
    pub fn from_seconds(seconds: u64) -> Self {
        Self(AtomicI64::new(i64::try_from(seconds).unwrap_or(i64::MAX)))
    }

    /// The same in microseconds since 1970 UTC; none where nothing was ever made durable.
    pub fn micros(&self) -> Option<i64> {
        let seconds = self.0.load(Ordering::Relaxed);
        (seconds > 0).then(|| seconds.saturating_mul(1_000_000))
    }

    /// What the counter grows by in a commit at `now`, in microseconds since 1970 UTC.
    pub fn growth(&self, now: i64) -> Option<Growth> {
        let seconds = now.saturating_add(999_999).div_euclid(1_000_000);
        let before = self.0.fetch_max(seconds, Ordering::Relaxed);
        let grown = u64::try_from(seconds.saturating_sub(before)).ok().filter(|n| *n > 0)?;
        Some((Self::COUNTER.into(), grown))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;

    const SECOND: i64 = 1_000_000;
    const HOUR: i64 = 3_600 * SECOND;
    /// 2026-12-01T00:00:00Z.
    const DECEMBER: i64 = 1_796_083_200 * SECOND;

    /// Lets both clocks run for so many seconds, read each second; gives every reading.
    async fn run(clock: &SteadyClock, wall: &ManualClock, seconds: i64) -> Vec<i64> {
        let mut read = Vec::new();
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
            wall.set(wall.now() + SECOND);
            read.push(clock.now());
        }
        read
    }

    fn clocks(wall: i64) -> (SteadyClock, Arc<ManualClock>) {
        let wall = Arc::new(ManualClock::at(wall));
        (SteadyClock::over(wall.clone()), wall)
    }

    #[tokio::test(start_paused = true)]
    async fn f11_an_hour_back_is_lived_through_in_ten() {
        let (clock, wall) = clocks(DECEMBER);
        assert_eq!(run(&clock, &wall, 10).await.last(), Some(&(DECEMBER + 10 * SECOND)));
        wall.set(wall.now() - HOUR);
        // Nine seconds in ten, and never back.
        let read = run(&clock, &wall, 10).await;
        assert_eq!(read.last(), Some(&(DECEMBER + 19 * SECOND)));
        assert!(read.is_sorted(), "{read:?}");
        assert_eq!(clock.trust(), Trust::Ahead);
        // One second is left out in ten: 3,600 s take 36,000 s, of which 10 have gone.
        run(&clock, &wall, 35_980).await;
        assert_eq!(clock.now() - wall.now(), SECOND);
        assert_eq!(clock.trust(), Trust::Certain);
        run(&clock, &wall, 10).await;
        assert_eq!(clock.now(), wall.now());
    }

    #[tokio::test(start_paused = true)]
    async fn f11_forward_is_followed_at_once_and_far_back_too() {
        let (clock, wall) = clocks(DECEMBER);
        wall.set(DECEMBER + HOUR);
        assert_eq!(clock.now(), DECEMBER + HOUR);
        // 2039, past what 32 bits of seconds hold, and home again.
        let in_2039 = 2_177_452_800 * SECOND;
        wall.set(in_2039);
        assert_eq!(clock.now(), in_2039);
        wall.set(DECEMBER + 2 * HOUR);
        assert_eq!((clock.now(), clock.trust()), (DECEMBER + 2 * HOUR, Trust::Certain));
        let read = run(&clock, &wall, 5).await;
        assert_eq!(read.last(), Some(&(DECEMBER + 2 * HOUR + 5 * SECOND)));
    }

    #[tokio::test(start_paused = true)]
    async fn f11_from_1970_time_goes_on_where_the_store_ended() {
        let (clock, wall) = clocks(17 * SECOND);
        assert_eq!(clock.trust(), Trust::Unknown);
        clock.resume(DECEMBER);
        assert_eq!(clock.now(), DECEMBER);
        run(&clock, &wall, 30).await;
        assert_eq!((clock.now(), clock.trust()), (DECEMBER + 30 * SECOND, Trust::Unknown));
        // The network is there: the clock is set, eight hours after the power went.
        wall.set(DECEMBER + 8 * HOUR);
        assert_eq!((clock.now(), clock.trust()), (DECEMBER + 8 * HOUR, Trust::Certain));
        // Without a store, time begins when this program was made.
        let (clock, _) = clocks(0);
        assert_eq!(clock.now(), EARLIEST);
    }

    /// A wall clock before whose next reading the process is stopped, as by a machine that has too much
    /// to do.
    struct Stopping {
        began: Instant,
        stops: std::sync::atomic::AtomicBool,
    }

    impl Stopping {
        fn at(&self, at: Instant) -> i64 {
            DECEMBER + i64::try_from(at.duration_since(self.began).as_micros()).unwrap()
        }
    }

    impl Clock for Stopping {
        #[expect(clippy::disallowed_methods, reason = "a process that is stopped is what is tried")]
        fn now(&self) -> i64 {
            if self.stops.swap(false, Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
            }
            self.at(Instant::now())
        }
    }

    #[test]
    fn what_stops_between_two_readings_moves_no_stamp() {
        let stops = std::sync::atomic::AtomicBool::new(false);
        let wall = Arc::new(Stopping { began: Instant::now(), stops });
        let clock = SteadyClock::over(wall.clone());
        for _ in 0..3 {
            wall.stops.store(true, Ordering::Relaxed);
            let moment = clock.moment();
            let off = moment.time - wall.at(moment.at);
            assert!(off.abs() < 25_000, "a row of now would be stamped {off} us beside its time");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn f11_without_a_clock_the_time_is_ahead_of_the_monotonic_one_by_the_same() {
        let (clock, wall) = clocks(17 * SECOND);
        clock.resume(DECEMBER);
        for _ in 0..10_000 {
            // Of each reading half a microsecond is left out.
            tokio::time::advance(Duration::from_nanos(1_000_500)).await;
            clock.now();
        }
        let now = DECEMBER + 10_005_000;
        assert_eq!(
            clock.moment(),
            Moment { time: now, at: Instant::now(), trust: Trust::Unknown, unset: true }
        );
        assert_eq!(clock.first_set(), None);
        wall.set(now + HOUR);
        let at = Instant::now();
        let set = Moment { time: now + HOUR, at, trust: Trust::Certain, unset: false };
        assert_eq!((clock.moment(), clock.first_set()), (set, Some(HOUR)));
        // Lost and set again, it is not set for the first time.
        wall.set(17 * SECOND);
        assert_eq!(clock.moment(), Moment { trust: Trust::Unknown, ..set });
        wall.set(now + 2 * HOUR);
        assert_eq!((clock.moment().unset, clock.first_set()), (false, Some(HOUR)));
    }

    #[tokio::test(start_paused = true)]
    async fn f11_a_clock_that_is_set_behind_the_store_takes_no_time_back() {
        let (clock, wall) = clocks(17 * SECOND);
        clock.resume(DECEMBER);
        tokio::time::advance(Duration::from_mins(10)).await;
        wall.set(DECEMBER + 300 * SECOND);
        let (time, at) = (DECEMBER + 600 * SECOND, Instant::now());
        let ahead = Moment { time, at, trust: Trust::Ahead, unset: false };
        assert_eq!((clock.moment(), clock.first_set()), (ahead, Some(0)));
        // A clock of two hours before is another matter: what was stored was wrong.
        let (clock, wall) = clocks(17 * SECOND);
        clock.resume(DECEMBER);
        wall.set(DECEMBER - 2 * HOUR);
        assert_eq!((clock.now(), clock.first_set()), (DECEMBER - 2 * HOUR, Some(-2 * HOUR)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_a_little_behind_the_store_is_no_step_back() {
        let (clock, wall) = clocks(DECEMBER);
        clock.resume(DECEMBER + 60 * SECOND);
        assert_eq!((clock.now(), clock.trust()), (DECEMBER + 60 * SECOND, Trust::Ahead));
        assert_eq!(run(&clock, &wall, 600).await.last(), Some(&wall.now()));
        // A store from 2039 is not believed where the clock can be right.
        let (clock, _) = clocks(DECEMBER);
        clock.resume(2_177_452_800 * SECOND);
        assert_eq!((clock.now(), clock.trust()), (DECEMBER, Trust::Certain));
    }

    #[tokio::test(start_paused = true)]
    async fn many_readings_slow_it_as_few_do() {
        let (clock, wall) = clocks(DECEMBER);
        wall.set(DECEMBER - 100 * SECOND);
        for _ in 0..100_000 {
            tokio::time::advance(Duration::from_micros(100)).await;
            wall.set(wall.now() + 100);
            clock.now();
        }
        // Ten seconds, of which a tenth is left out.
        assert_eq!(clock.now(), DECEMBER + 9 * SECOND);
    }

    #[test]
    fn durable_time_grows_by_whole_seconds_and_never_shrinks() {
        let durable = DurableTime::from_seconds(100);
        assert_eq!(durable.micros(), Some(100 * SECOND));
        assert_eq!(durable.growth(100 * SECOND), None);
        assert_eq!(durable.growth(102 * SECOND + 1), Some((DurableTime::COUNTER.into(), 3)));
        assert_eq!(durable.growth(50 * SECOND), None);
        assert_eq!(durable.growth(104 * SECOND), Some((DurableTime::COUNTER.into(), 1)));
        assert_eq!(DurableTime::default().micros(), None);
    }
}
