//! Which sinks lose records: an alarm for as long as a person is likely to see it.
//!
//! Counters tell how much ever; nobody sees from them that it is going on. Knows counts and moments: no store and
//! no policy.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate_engine::store::Backlog;
use tidegate_web_ui as web;
use tokio::time::Instant;

use super::{GatewayStatus, SinkView, hops};
use crate::supervisor::State;

/// How long after the last lost record the alarm stands.
const STANDS: Duration = Duration::from_mins(10);

/// When each sink was last seen to lose something.
#[derive(Debug, Default)]
pub(super) struct Losses {
    seen: Mutex<BTreeMap<String, (u64, Option<Instant>)>>,
}

impl Losses {
    /// With what each sink had lost before this start, which is no news.
    pub(super) fn new(before: impl Iterator<Item = (String, u64)>) -> Self {
        let seen = before.map(|(sink, count)| (sink, (count, None))).collect();
        Losses { seen: Mutex::new(seen) }
    }

    /// Looks whether a sink has lost something since the last time; when it last did.
    fn look(&self, sink: &str, backlog: &Backlog) -> Option<Instant> {
        let count = count(backlog);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, at) = seen.entry(sink.to_owned()).or_default();
        if std::mem::replace(known, count) < count {
            *at = Some(Instant::now());
        }
        *at
    }

    /// The alarm of a sink that loses records now, or has a short while ago.
    fn alarm(&self, sink: &str, backlog: &Backlog) -> Option<web::Reason> {
        self.look(sink, backlog).filter(|at| at.elapsed() < STANDS)?;
        let mut lost = hops::dropped(backlog);
        lost.extend(
            (backlog.rejected > 0)
                .then(|| ("refused by the far side".to_owned(), backlog.rejected)),
        );
        let lost: Vec<String> = lost.iter().map(|(why, count)| format!("{why}: {count}")).collect();
        let reason = format!("records do not arrive; ever so far {}", lost.join(", "));
        Some(web::Reason { part: format!("sink {sink}"), reason })
    }
}

/// Records of a sink that were given up ever, for whatever reason.
pub(super) fn count(backlog: &Backlog) -> u64 {
    backlog.dropped + backlog.expired + backlog.lost + backlog.rejected
}

impl GatewayStatus {
    /// Looks which sinks have lost something, so that it is known when, whoever asks for it later.
    pub fn look_for_losses(&self) {
        for sink in self.store.sinks() {
            self.losses.look(&sink, &self.store.backlog(&sink));
        }
    }

    /// What a person should look at of a sink.
    pub(super) fn sink_alarms(&self, sink: &SinkView) -> Vec<web::Reason> {
        let backlog = self.store.backlog(&sink.name);
        let alarm = |reason: String| web::Reason { part: format!("sink {}", sink.name), reason };
        let paused = backlog.paused.then(|| {
            alarm(format!(
                "paused by request: {} records wait until it is resumed",
                backlog.records
            ))
        });
        let failed = (sink.health.state() == State::Failed)
            .then(|| alarm(sink.health.last_error().unwrap_or_else(|| "it has failed".to_owned())));
        let lost = self.losses.alarm(&sink.name, &backlog);
        paused.into_iter().chain(failed).chain(lost).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_lost_before_is_no_alarm_and_what_is_lost_now_is_one_for_a_while() {
        let losses = Losses::new([("cloud".to_owned(), 7)].into_iter());
        let alarm = |dropped, rejected| {
            losses.alarm("cloud", &Backlog { dropped, rejected, ..Backlog::default() })
        };
        assert_eq!(alarm(6, 1), None);
        let told = alarm(7, 1).unwrap();
        assert_eq!(&*told.part, "sink cloud");
        assert!(told.reason.ends_with("bound: 7, refused by the far side: 1"), "{}", told.reason);
        tokio::time::advance(Duration::from_secs(599)).await;
        assert!(alarm(7, 1).is_some());
        assert_eq!(losses.alarm("new", &Backlog::default()), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(alarm(7, 1), None);
    }
}
