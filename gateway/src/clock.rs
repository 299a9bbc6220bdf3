//! The only way to the wall clock.
//!
//! Pacing uses `tokio::time`, which tests pause; the time of day comes from a [`Clock`], which
//! tests set. Event time is microseconds since 1970 UTC everywhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::UNIX_EPOCH;

/// Tells the time of day.
pub trait Clock: Send + Sync {
    /// Microseconds since 1970 UTC; negative before.
    fn now(&self) -> i64;
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
