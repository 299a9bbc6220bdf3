//! Tells a part that hangs from one that waits.
//!
//! A part beats its [`Pulse`] each time it gets somewhere: a poll has ended, an attempt to connect
//! has failed, a delivery was taken. Where it may rightly wait for ever (for a message, for a
//! record), it waits inside [`Pulse::waiting`], which beats while the part's task is given its
//! turns. So a dead device and a dead broker make progress, and a blocked thread or a driver that
//! never answers makes none. Knows no clock but the monotonic one, and nobody who acts on it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_drivers::stats::{Counter, Stats};
use tokio::time::Instant;

use crate::supervisor::{Health, State};

/// How often a part that waits shows that it could go on.
const BEAT_EVERY: Duration = Duration::from_secs(1);

/// Counts how often a part got somewhere.
#[derive(Debug, Default)]
pub struct Pulse(AtomicU64);

impl Pulse {
    /// Counts one step.
    pub fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Steps so far.
    pub fn beats(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Awaits what may rightly take for ever, beating meanwhile. Cancel safe where `what` is.
    pub async fn waiting<T>(&self, what: impl Future<Output = T>) -> T {
        let mut what = pin!(what);
        loop {
            tokio::select! {
                biased;
                out = &mut what => {
                    self.beat();
                    return out;
                }
                () = tokio::time::sleep(BEAT_EVERY) => self.beat(),
            }
        }
    }
}

/// A part that must make progress while it runs.
#[derive(Clone)]
pub struct Watched {
    /// What it is, as shown to a person.
    pub name: String,
    /// Its beats.
    pub pulse: Arc<Pulse>,
    /// Its supervisor's view; only a part that runs can hang.
    pub health: Arc<Health>,
    /// What its driver counts: a slow delivery that moves is progress.
    pub stats: Option<Arc<Stats>>,
    /// Time that one step may take beyond the watchdog's own patience, such as between two polls.
    pub allowance: Duration,
}

impl Watched {
    fn progress(&self) -> u64 {
        let counted = |stats: &Arc<Stats>| {
            Counter::ALL.iter().fold(0, |sum: u64, c| sum.wrapping_add(stats.get(*c)))
        };
        self.pulse.beats().wrapping_add(self.stats.as_ref().map_or(0, counted))
    }
}

/// Remembers when each part last made progress.
#[derive(Debug, Default)]
pub struct Judge(BTreeMap<String, (u64, Instant)>);

impl Judge {
    /// Looks at all parts, and names those that run and made no progress for `patience` and their
    /// own allowance. A part is given its whole time from when it is first seen.
    pub fn hung(&mut self, parts: &[Watched], patience: Duration, now: Instant) -> Vec<String> {
        let mut hung = Vec::new();
        let mut seen = BTreeMap::new();
        for part in parts {
            let progress = part.progress();
            let since = match self.0.get(&part.name) {
                Some((known, since))
                    if *known == progress && part.health.state() == State::Running =>
                {
                    *since
                }
                _ => now,
            };
            if now.saturating_duration_since(since) > patience + part.allowance {
                hung.push(part.name.clone());
            }
            seen.insert(part.name.clone(), (progress, since));
        }
        self.0 = seen;
        hung
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn watched(name: &str, allowance: u64) -> Watched {
        let health = Arc::new(Health::default());
        health.set(State::Running);
        Watched {
            name: name.to_owned(),
            pulse: Arc::default(),
            health,
            stats: Some(Arc::default()),
            allowance: Duration::from_secs(allowance),
        }
    }

    /// Looks once a second, as the watchdog does, and gives the second in which `name` was named.
    async fn named_after(parts: &[Watched], name: &str, seconds: u64) -> Option<u64> {
        let mut judge = Judge::default();
        let start = Instant::now();
        for second in 0..=seconds {
            tokio::time::sleep_until(start + Duration::from_secs(second)).await;
            if judge.hung(parts, PATIENCE, Instant::now()).iter().any(|hung| hung == name) {
                return Some(second);
            }
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn f27_a_part_whose_step_never_ends_is_named_when_its_time_is_over() {
        let stuck = watched("device press", 5);
        let busy = watched("device meter", 0);
        let pulse = busy.pulse.clone();
        // One waits for an answer that never comes; the other gets somewhere every 3 s.
        let other = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(3)).await;
                pulse.beat();
            }
        });
        let parts = [stuck, busy];
        assert_eq!(named_after(&parts, "device press", 60).await, Some(16));
        assert_eq!(named_after(&parts, "device meter", 60).await, None);
        other.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_waits_for_ever_does_not_hang() {
        let part = watched("sink cloud", 0);
        let pulse = part.pulse.clone();
        let waits = tokio::spawn(async move { pulse.waiting(std::future::pending::<()>()).await });
        assert_eq!(named_after(std::slice::from_ref(&part), "sink cloud", 100).await, None);
        // Its task gets no turn any more, as where its thread is blocked.
        waits.abort();
        assert!(named_after(&[part], "sink cloud", 100).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_delivery_that_moves_and_a_part_that_waits_to_be_started_do_not_hang() {
        let (slow, waiting) = (watched("sink slow", 0), watched("device dead", 0));
        waiting.health.set(State::Waiting);
        let stats = slow.stats.clone().unwrap();
        let moves = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(8)).await;
                stats.add(Counter::BytesOut, 100);
            }
        });
        let parts = [slow, waiting];
        assert_eq!(named_after(&parts, "sink slow", 100).await, None);
        assert_eq!(named_after(&parts, "device dead", 100).await, None);
        moves.abort();
    }
}
