//! By which time old records are looked for, where the clock is set.
//!
//! Promise: a step of the clock makes no record older. For as long as the longest age that anything
//! may have, records from before the step are judged by the time that has really passed since; then
//! all of them are past it, and the clock counts again. So nothing is given up early, and what came
//! after the step may be kept for as long as that age too long. A restart in that time takes nothing of it
//! back: what is ahead can be kept, and taken up again. It knows no store.
//! Source: fault F11.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// A difference between clock and time that passed which is no step: what a timer may be late.
const STEP_MIN: i64 = 60_000_000;

/// The time by which records are judged.
#[derive(Debug, Default)]
pub struct Ages {
    last: Option<(i64, Instant)>,
    /// Steps forward that still count, in the order in which they came.
    steps: Vec<Step>,
}

/// A step forward, and what is left of it.
#[derive(Debug, Clone, Copy)]
struct Step {
    by: i64,
    /// When it was seen, by the clock as it was after it.
    seen: i64,
    until: Instant,
}

/// Steps that count at the same time; beyond, the oldest two become one.
const STEPS_MAX: usize = 32;

/// A step forward that still counts, as it is kept over a restart. Times are microseconds since 1970 UTC by the clock
/// after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ahead {
    /// By how many microseconds the clock was set forward.
    pub by_us: i64,
    /// When it was seen.
    pub seen_us: i64,
    /// Until when it counts.
    pub until_us: i64,
}

impl Ages {
    /// As they were when the process ended before this one; the clock says `now`, and no record may be older than
    /// `longest`. Where the clock is behind a step that was seen, it has gone back meanwhile, and there is none.
    pub fn resumed(kept: &[Ahead], now: i64, longest: Duration) -> Self {
        let is_valid = |step: &&Ahead| step.by_us > 0 && step.seen_us <= now && now < step.until_us;
        let steps = kept.iter().filter(is_valid).filter_map(|step| {
            let left = u64::try_from(step.until_us.saturating_sub(now)).ok()?;
            let until = Instant::now().checked_add(Duration::from_micros(left).min(longest))?;
            Some(Step { by: step.by_us, seen: step.seen_us, until })
        });
        Ages { last: None, steps: steps.collect() }
    }

    /// By how many microseconds the clock was set forward, as far as it still counts.
    pub fn step(&self) -> i64 {
        self.steps.iter().fold(0, |sum, step| sum.saturating_add(step.by))
    }

    /// What of each step still counts, where the clock says `now`.
    pub fn ahead(&self, now: i64) -> Vec<Ahead> {
        let instant = Instant::now();
        let kept = self.steps.iter().map(|step| {
            let left = step.until.saturating_duration_since(instant).as_micros();
            let until_us = now.saturating_add(i64::try_from(left).unwrap_or(i64::MAX));
            Ahead { by_us: step.by, seen_us: step.seen, until_us }
        });
        kept.collect()
    }

    /// The time that records' times are compared with, where the clock says `now`; `longest` is the
    /// longest age that any record may have.
    pub fn judge(&mut self, now: i64, longest: Duration) -> i64 {
        let instant = Instant::now();
        if let Some((before, then)) = self.last.replace((now, instant)) {
            let passed = i64::try_from((instant - then).as_micros()).unwrap_or(i64::MAX);
            let step = now.saturating_sub(before).saturating_sub(passed);
            if step > STEP_MIN {
                tracing::info!(by_s = step / 1_000_000, "the clock was set forward: ages wait");
                let until = instant.checked_add(longest);
                self.steps.extend(until.map(|until| Step { by: step, seen: now, until }));
                self.join_oldest();
            } else if step < -STEP_MIN {
                self.take_back(step.saturating_neg(), now);
            }
        }
        self.steps.retain(|step| instant < step.until);
        now.saturating_sub(self.step())
    }

    /// The clock was set back: what it was set forward last is undone first.
    fn take_back(&mut self, mut by: i64, now: i64) {
        for step in self.steps.iter_mut().rev() {
            let taken = by.min(step.by);
            (step.by, by) = (step.by - taken, by - taken);
            step.seen = step.seen.min(now);
        }
        self.steps.retain(|step| step.by > 0);
    }

    fn join_oldest(&mut self) {
        if self.steps.len() > STEPS_MAX {
            let oldest = self.steps.remove(0);
            if let Some(next) = self.steps.first_mut() {
                next.by = next.by.saturating_add(oldest.by);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;
    const DAY: i64 = 86_400 * SECOND;

    #[tokio::test(start_paused = true)]
    async fn f11_a_step_makes_nothing_older() {
        let longest = Duration::from_hours(14 * 24);
        let (mut ages, mut now) = (Ages::default(), 1_000_000 * SECOND);
        assert_eq!(ages.judge(now, longest), now);
        let made = now;
        tokio::time::advance(Duration::from_secs(10)).await;
        now += 10 * SECOND;
        assert_eq!(ages.judge(now, longest), now);
        // The clock is set forward by 20 years between two looks.
        tokio::time::advance(Duration::from_secs(10)).await;
        now += 10 * SECOND + 20 * 365 * DAY;
        assert_eq!(ages.judge(now, longest) - made, 20 * SECOND, "20 s old, as it is");
        // Two weeks later it is two weeks old, and the clock counts again.
        tokio::time::advance(Duration::from_secs(14 * 86_400 - 10)).await;
        now += 14 * DAY - 10 * SECOND;
        assert_eq!(ages.judge(now, longest) - made, 14 * DAY + 10 * SECOND);
        tokio::time::advance(Duration::from_secs(10)).await;
        now += 10 * SECOND;
        assert_eq!(ages.judge(now, longest), now);
    }

    #[tokio::test(start_paused = true)]
    async fn f11_a_step_back_takes_the_one_forward_back() {
        let longest = Duration::from_secs(1_000);
        let (mut ages, now) = (Ages::default(), DAY);
        ages.judge(now, longest);
        assert_eq!(ages.judge(now + 5 * DAY, longest), now);
        assert_eq!(ages.judge(now + DAY, longest), now);
        // Back by more than it was forward: records are from the future, and none is old.
        assert_eq!(ages.judge(now - DAY, longest), now - DAY);
    }

    #[tokio::test(start_paused = true)]
    async fn f11_a_restart_takes_nothing_of_a_step_back() {
        let longest = Duration::from_secs(1_000);
        let (mut ages, now) = (Ages::default(), DAY);
        ages.judge(now, longest);
        assert_eq!(ages.ahead(now), []);
        let now = now + 5 * DAY;
        assert_eq!(ages.judge(now, longest), DAY);
        tokio::time::advance(Duration::from_secs(400)).await;
        let kept = ages.ahead(now + 400 * SECOND);
        let by_hand = Ahead { by_us: 5 * DAY, seen_us: now, until_us: now + 1_000 * SECOND };
        assert_eq!(kept, [by_hand]);
        // Ten minutes later, of which five were spent off.
        let mut ages = Ages::resumed(&kept, now + 700 * SECOND, longest);
        assert_eq!(ages.judge(now + 700 * SECOND, longest), DAY + 700 * SECOND);
        tokio::time::advance(Duration::from_mins(5)).await;
        assert_eq!(ages.judge(now + 1_000 * SECOND, longest), now + 1_000 * SECOND);
        assert_eq!(Ages::resumed(&kept, now + 1_000 * SECOND, longest).step(), 0, "it is over");
        // The clock was set right while the process was off.
        assert_eq!(Ages::resumed(&kept, now - 4 * DAY, longest).step(), 0);
        assert_eq!(Ages::resumed(&[], now, longest).step(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn f11_steps_end_one_after_the_other() {
        let longest = Duration::from_hours(7 * 24);
        let (mut ages, mut now) = (Ages::default(), 1_000 * DAY);
        ages.judge(now, longest);
        // Each day the clock is set forward by half a day, for three weeks.
        for day in 1..=21 {
            tokio::time::advance(Duration::from_hours(12)).await;
            now += DAY;
            ages.judge(now, longest);
            assert!(ages.step() <= 7 * DAY, "{day}: {}", ages.step() / SECOND);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_look_is_no_step() {
        let (mut ages, now) = (Ages::default(), DAY);
        ages.judge(now, Duration::from_secs(1_000));
        let late = now + 59 * SECOND;
        assert_eq!(ages.judge(late, Duration::from_secs(1_000)), late);
    }
}
