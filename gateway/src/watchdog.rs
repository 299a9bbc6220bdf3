//! Feeds the service manager's watchdog while polls, pumps and the store's committer make progress.
//!
//! When one of them hangs, the manager is told at once instead of being left to find out: a restart
//! within `WatchdogSec` of the last progress, not within twice that. A gateway whose threads are
//! all blocked tells nothing, and is restarted for that.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tidegate_engine::store::Store;
use tokio::time::Instant;

use crate::notify::Notify;
use crate::progress::{Judge, Pulse, Watched};
use crate::status::GatewayStatus;
use crate::supervisor::{Health, State};

/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A look that comes so much later than it should says that nobody was given a turn.
const STALL_MIN: Duration = Duration::from_secs(2);

/// Feeds the watchdog for ever; once a part hangs, no more. Waits where nobody watches.
pub async fn feed(notify: &Notify, status: &GatewayStatus) -> Infallible {
    let Some(patience) = notify.watchdog() else {
        return std::future::pending().await;
    };
    let committer = committer();
    let parts = || {
        let mut parts = status.watched();
        parts.push(committer.clone());
        parts
    };
    tokio::select! {
        // Ends with the store; the process then leaves by itself.
        () = turns(&status.store, &committer.pulse) => std::future::pending().await,
        hung = watch(notify, patience, parts) => {
            tracing::error!(parts = ?hung, ?patience, "no progress: asking for a restart");
            let hung = hung.join(", ");
            notify.say(&format!("STATUS=no progress: {hung}\nWATCHDOG=trigger"));
            std::future::pending().await
        }
    }
}

/// Says that all is well, again and again, until a part hangs; returns the names.
async fn watch(
    notify: &Notify,
    patience: Duration,
    parts: impl Fn() -> Vec<Watched>,
) -> Vec<String> {
    let mut judge = Judge::default();
    let every = LOOK_EVERY.min(patience / 4);
    let (mut looked, mut fed) = (Instant::now(), None::<Instant>);
    loop {
        let now = Instant::now();
        if now - looked > every + STALL_MIN {
            // The whole process was stopped or starved: nobody could get anywhere meanwhile.
            judge = Judge::default();
        }
        looked = now;
        let hung = judge.hung(&parts(), patience, now);
        if !hung.is_empty() {
            return hung;
        }
        if fed.is_none_or(|fed| now - fed >= patience / 4) {
            notify.say("WATCHDOG=1");
            fed = Some(now);
        }
        tokio::time::sleep(every).await;
    }
}

/// The store's thread as a part: it runs from the opening to the end.
fn committer() -> Watched {
    let health = Arc::new(Health::default());
    health.set(State::Running);
    Watched {
        name: "store".to_owned(),
        pulse: Arc::new(Pulse::default()),
        health,
        stats: None,
        allowance: Duration::ZERO,
    }
}

/// Beats for each turn that the store's thread takes, until the store ends.
async fn turns(store: &Store, pulse: &Pulse) {
    while store.alive().await.is_ok() {
        pulse.beat();
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F27 without a service manager: a part stops in the middle of a step, on paused time.
    #[tokio::test(start_paused = true)]
    async fn f27_a_part_that_hangs_is_told_within_the_managers_patience() {
        let notify = Notify::default();
        let part = Watched {
            name: "device press".to_owned(),
            allowance: Duration::from_secs(1),
            ..committer()
        };
        let (pulse, start) = (part.pulse.clone(), Instant::now());
        let polls = tokio::spawn(async move {
            for _ in 0..30 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                pulse.beat();
            }
            std::future::pending::<()>().await;
        });
        let hung = watch(&notify, Duration::from_mins(1), || vec![part.clone()]).await;
        assert_eq!(hung, ["device press"]);
        // Thirty good polls, the patience, the device's own second, and at most two looks.
        let told = start.elapsed().as_secs();
        assert!((30 + 60 + 1..=30 + 60 + 1 + 2).contains(&told), "{told}");
        polls.abort();
    }

    /// A process that was stopped, as by SIGSTOP or with its virtual machine, hangs in nothing.
    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_had_a_turn_is_held_against_nobody() {
        let part = committer();
        let pulse = part.pulse.clone();
        let polls = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(5)).await;
                pulse.beat();
            }
        });
        let feeding = tokio::spawn(async move {
            watch(&Notify::default(), Duration::from_mins(1), || vec![part.clone()]).await
        });
        tokio::time::sleep(Duration::from_secs(7)).await;
        // Straight from here to there.
        tokio::time::advance(Duration::from_mins(10)).await;
        tokio::time::sleep(Duration::from_mins(3)).await;
        assert!(!feeding.is_finished());
        polls.abort();
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert!(feeding.is_finished());
    }
}
