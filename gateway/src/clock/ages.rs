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
    /// How far the clock was set forward, until when.
    ahead: i64,
    until: Option<Instant>,
}

/// A step forward that still counts, as it is kept over a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ahead {
    /// By how many microseconds the clock was set forward.
    pub by_us: i64,
    /// Until when by that clock, microseconds since 1970 UTC.
    pub until_us: i64,
}

impl Ages {
    /// As they were when the process ended before this one; the clock says `now`. A clock that has gone back since
    /// knows no step.
    pub fn resumed(kept: Option<Ahead>, now: i64) -> Self {
        let left = kept.filter(|kept| kept.by_us > 0).and_then(|kept| {
            let left =
                u64::try_from(kept.until_us.saturating_sub(now)).ok().filter(|left| *left > 0)?;
            Some((kept.by_us, Instant::now().checked_add(Duration::from_micros(left))?))
        });
        let (ahead, until) = left.map_or((0, None), |(ahead, until)| (ahead, Some(until)));
        Ages { last: None, ahead, until }
    }

    /// By how many microseconds the clock was set forward, as far as it still counts.
    pub fn step(&self) -> i64 {
        self.ahead
    }

    /// What of a step still counts, where the clock says `now`.
    pub fn ahead(&self, now: i64) -> Option<Ahead> {
        let left = self.until?.saturating_duration_since(Instant::now());
        let until_us = now.saturating_add(i64::try_from(left.as_micros()).unwrap_or(i64::MAX));
        (self.ahead > 0).then_some(Ahead { by_us: self.ahead, until_us })
    }

    /// The time that records' times are compared with, where the clock says `now`; `longest` is the
    /// longest age that any record may have.
    pub fn judge(&mut self, now: i64, longest: Duration) -> i64 {
        let instant = Instant::now();
        if let Some((before, then)) = self.last.replace((now, instant)) {
            let passed = i64::try_from((instant - then).as_micros()).unwrap_or(i64::MAX);
            let step = now.saturating_sub(before).saturating_sub(passed);
            if step > STEP_MIN {
                self.ahead = self.ahead.saturating_add(step);
                self.until = instant.checked_add(longest);
                tracing::info!(by_s = step / 1_000_000, "the clock was set forward: ages wait");
            } else if step < -STEP_MIN {
                self.ahead = self.ahead.saturating_add(step).max(0);
            }
        }
        if self.until.is_some_and(|until| instant >= until) {
            (self.ahead, self.until) = (0, None);
        }
        now.saturating_sub(self.ahead)
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
        assert_eq!(ages.ahead(now), None);
        let now = now + 5 * DAY;
        assert_eq!(ages.judge(now, longest), DAY);
        tokio::time::advance(Duration::from_secs(400)).await;
        let kept = ages.ahead(now + 400 * SECOND);
        let by_hand = Ahead { by_us: 5 * DAY, until_us: now + 1_000 * SECOND };
        assert_eq!(kept, Some(by_hand));
        // Ten minutes later, of which five were spent off.
        let mut ages = Ages::resumed(kept, now + 700 * SECOND);
        assert_eq!(ages.judge(now + 700 * SECOND, longest), DAY + 700 * SECOND);
        tokio::time::advance(Duration::from_mins(5)).await;
        assert_eq!(ages.judge(now + 1_000 * SECOND, longest), now + 1_000 * SECOND);
        assert_eq!(Ages::resumed(kept, now + 1_000 * SECOND).ahead, 0, "it is over");
        assert_eq!(Ages::resumed(None, now).ahead, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_look_is_no_step() {
        let (mut ages, now) = (Ages::default(), DAY);
        ages.judge(now, Duration::from_secs(1_000));
        let late = now + 59 * SECOND;
        assert_eq!(ages.judge(late, Duration::from_secs(1_000)), late);
    }
}
