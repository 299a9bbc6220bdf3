//! Whether visitors of one listener have to wait, and why.
//!
//! Promise: what keeps them out is an alarm while it lasts and for a minute afterwards, so that whoever
//! comes in then can still see it, and one line in the log for as long as that. It ends by itself. Does
//! not know: connections, routes.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::Reason;

/// For how long it is told after it was seen last.
const TOLD_FOR: Duration = Duration::from_mins(1);

/// The way to one listener.
#[derive(Debug)]
pub struct Entrance {
    /// What it leads to, as alarms name it.
    part: &'static str,
    /// Why somebody had to wait last, and when that was.
    blocked: Mutex<Option<(String, Instant)>>,
}

impl Entrance {
    /// One that nobody had to wait at. Alarms name it `part`.
    pub fn new(part: &'static str) -> Self {
        Self { part, blocked: Mutex::default() }
    }

    /// Somebody has to wait. Said again each second while that is so.
    pub(crate) fn is_blocked(&self, why: String) {
        let now = Instant::now();
        let mut blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        if !blocked.as_ref().is_some_and(|(_, at)| is_told(*at, now)) {
            warn!(part = self.part, why, "visitors have to wait");
        }
        *blocked = Some((why, now));
    }

    /// Why visitors have, or lately had, to wait, and what to do about it.
    pub fn alarm(&self) -> Option<Reason> {
        let blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        let (why, _) = blocked.as_ref().filter(|(_, at)| is_told(*at, Instant::now()))?;
        let reason = format!("visitors had to wait in the last minute: {why}");
        Some(Reason { part: self.part.to_owned(), reason })
    }
}

fn is_told(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < TOLD_FOR
}
