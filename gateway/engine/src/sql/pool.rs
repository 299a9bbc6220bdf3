//! The memory of all operators: a pool with a bound that it does not tell.
//!
//! Promise: more than the bound is refused, as by DataFusion's own pool. Not telling it keeps
//! `PartialReduce` on the operator that other aggregations run on: in 55.2 it takes an older one
//! wherever `memory_limit()` is finite, and the new one asks for its memory all the same.

use std::fmt;

use datafusion::common::Result;
use datafusion::execution::memory_pool::{
    GreedyMemoryPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

#[derive(Debug)]
pub(super) struct Bounded(GreedyMemoryPool);

impl Bounded {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self(GreedyMemoryPool::new(bytes_max))
    }
}

impl fmt::Display for Bounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl MemoryPool for Bounded {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.0.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.0.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.0.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.0.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.0.try_grow(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.0.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Unknown
    }
}
