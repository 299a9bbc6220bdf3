//! The only way to the wall clock.
//!
//! Pacing uses `tokio::time`, which tests pause; the time of day comes from a [`Clock`], which
//! tests set. Event time is microseconds since 1970 UTC everywhere. What the gateway does with the
//! operating system's clock where that is wrong or set stands in `steady`.

mod ages;
mod kept;
mod steady;
mod wait;

pub use ages::{Ages, Ahead};
pub use kept::{read as kept_ahead, write as keep_ahead};
pub use steady::{DurableTime, SteadyClock};
pub use wait::{ClockWait, Entry, Machine, Phase, Rebased, boot_id};

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::UNIX_EPOCH;

use tokio::time::Instant;

/// Tells the time of day.
pub trait Clock: Send + Sync {
    /// Microseconds since 1970 UTC; negative before.
    fn now(&self) -> i64;

    /// How far what [`Clock::now`] tells can be trusted.
    fn trust(&self) -> Trust {
        Trust::Certain
    }

    /// Both at once, and whether the clock was ever set: what rows are stamped with.
    fn moment(&self) -> Moment {
        let (at, time) = (Instant::now(), self.now());
        Moment { time, at, trust: self.trust(), unset: false }
    }

    /// By how much the time moved when the clock was set for the first time since the start,
    /// in microseconds; none until then, or where it was right from the start.
    fn first_set(&self) -> Option<i64> {
        None
    }

    /// Tells it how far time had come, in microseconds since 1970 UTC, when rows were made durable
    /// last: the present cannot be before that. Called once, before rows are stamped.
    fn resume(&self, _last: i64) {}
}

/// One reading of a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Microseconds since 1970 UTC.
    pub time: i64,
    /// The same moment on the monotonic clock, from which ages are counted.
    pub at: Instant,
    /// How far that can be trusted.
    pub trust: Trust,
    /// The operating system's clock was never right since the process started: the time goes on as the
    /// monotonic clock does, from wherever it began.
    pub unset: bool,
}

/// How far the time of day can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// It is the operating system's time.
    #[default]
    Certain,
    /// It is ahead of the operating system's time, which was set back, and runs slower until that
    /// has caught up.
    Ahead,
    /// The operating system's time cannot be right: nobody has set it since the power came.
    Unknown,
}

impl Trust {
    /// The word that status shows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Certain => "certain",
            Self::Ahead => "ahead",
            Self::Unknown => "unknown",
        }
    }
}

/// A clock that many parts read.
pub type SharedClock = Arc<dyn Clock>;

/// The clock of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn now(&self) -> i64 {
        let micros = |d: std::time::Duration| i64::try_from(d.as_micros()).unwrap_or(i64::MAX);
        match std::time::SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => micros(after),
            Err(before) => -micros(before.duration()),
        }
    }
}

/// A clock that stands where it was set.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// Makes a clock that stands at `micros`.
    pub fn at(micros: i64) -> Self {
        Self(AtomicI64::new(micros))
    }

    /// Sets the clock, forwards or back.
    pub fn set(&self, micros: i64) {
        self.0.store(micros, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}
