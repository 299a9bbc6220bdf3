//! Whether silence of a stream's sources means that there is nothing to hear.
//!
//! While a feed has no connection, or the process was held up, it means nothing, and the stream may
//! not follow the clock. Knows no rows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_drivers::stats::{LinkState, Stats};
use tidegate_engine::Stream;
use tokio::time::Instant;

/// The connections of all feeds, by device: a device that is started anew puts its own here.
#[derive(Debug, Default)]
pub struct Feeds(Mutex<BTreeMap<String, Arc<Stats>>>);

impl Feeds {
    /// Puts a feed's state here, in place of one with the same name.
    pub fn put(&self, device: &str, stats: Arc<Stats>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(device.to_owned(), stats);
    }

    pub(super) fn is_down(&self, device: &str) -> bool {
        let feeds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        feeds.get(device).is_some_and(|stats| stats.state() != LinkState::Up)
    }
}

/// How often a stream looks whether its feeds are connected, and whether it was held up itself.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);

/// A wait that took so much longer than it should have says that the process was stopped or starved:
/// nobody could have been heard meanwhile.
const STALL_MIN: Duration = Duration::from_secs(2);

/// Knows whether silence of the sources means anything.
#[derive(Default)]
pub(super) struct Listening {
    looked: Option<Instant>,
    /// When a feed was last seen without its connection, or the process was held up.
    deaf: Option<Instant>,
}

impl Listening {
    /// Tells the stream whether it may follow the clock. After an outage it may again when the
    /// connection has been there for `idle_after`: what was kept has come by then.
    pub(super) fn look(&mut self, stream: &mut Stream, feeds_down: bool, idle_after: Duration) {
        let now = Instant::now();
        if let Some(looked) = self.looked.replace(now) {
            let stall = (now - looked).saturating_sub(HEARTBEAT);
            if stall > STALL_MIN {
                stream.forgive(i64::try_from(stall.as_micros()).unwrap_or(i64::MAX));
                self.deaf = Some(now);
            }
        }
        if feeds_down {
            self.deaf = Some(now);
        }
        stream.hold(self.deaf.is_some_and(|deaf| now - deaf < idle_after));
    }
}
