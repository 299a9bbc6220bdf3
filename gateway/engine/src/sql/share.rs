//! One stream's share of the memory that SQL has in all.
//!
//! Promise: a share is never passed, and what a share holds counts in the whole as well, so that a
//! stream that asks for too much fails and the others go on. It counts what DataFusion's operators
//! declare: groups, sorts, the built sides of joins; not the rows that are given to them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};

/// A part of a pool with a bound of its own.
#[derive(Debug)]
pub(super) struct Share {
    whole: Arc<dyn MemoryPool>,
    held: AtomicUsize,
    max: usize,
}

impl Share {
    /// At most `max` bytes of `whole`.
    pub(super) fn new(whole: Arc<dyn MemoryPool>, max: usize) -> Self {
        Self { whole, held: AtomicUsize::new(0), max }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "share({} of {} bytes)", self.held.load(Ordering::Relaxed), self.max)
    }
}

impl MemoryPool for Share {
    fn name(&self) -> &'static str {
        "share"
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.held.fetch_add(additional, Ordering::Relaxed);
        self.whole.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.held.fetch_sub(shrink, Ordering::Relaxed);
        self.whole.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let more = |held: usize| held.checked_add(additional).filter(|held| *held <= self.max);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map_err(|held| {
            DataFusionError::ResourcesExhausted(format!(
                "the SQL holds {held} bytes of memory, needs {additional} more, and may hold {} \
                 (its share of `limits.memory`)",
                self.max
            ))
        })?;
        self.whole.try_grow(reservation, additional).inspect_err(|_| {
            self.held.fetch_sub(additional, Ordering::Relaxed);
        })
    }

    fn reserved(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Not told, as [`Bounded`](super::pool::Bounded) does not tell its own.
    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Unknown
    }
}
