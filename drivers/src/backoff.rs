//! Growing pauses between attempts, with jitter and without a clock.
//!
//! Deterministic for a name, so that tests can rely on it; different for different names, which is
//! what keeps the links of a gateway apart. Source of the generator: Marsaglia, "Xorshift RNGs",
//! 2003.

use std::time::Duration;

/// Shortest pause between two attempts to connect, whatever the configuration says.
const BACKOFF_FLOOR: Duration = Duration::from_millis(10);

/// Growing pauses with jitter, so that gateways that lost a link together do not return together.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
    /// State of a xorshift generator; never 0.
    seed: u64,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration, name: &str) -> Self {
        let min = min.max(BACKOFF_FLOOR);
        // Two links of one gateway get different jitter, a test the same.
        Self { min, max: max.max(min), next: min, seed: Self::hash(name) | 1 }
    }

    /// FNV-1a of a name.
    pub(crate) fn hash(name: &str) -> u64 {
        name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        })
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.min;
    }

    /// The next pause: three quarters to all of a time that doubles up to the maximum.
    pub(crate) fn next(&mut self) -> Duration {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        let full = self.next;
        self.next = full.saturating_mul(2).min(self.max);
        let quarter = full / 4;
        let percent = u32::try_from(self.seed % 101).unwrap_or(0);
        full.saturating_sub(quarter * percent / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let (min, max) = (Duration::from_millis(500), Duration::from_secs(30));
        let mut backoff = Backoff::new(min, max, "bus");
        for full_ms in [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
            let full = Duration::from_millis(full_ms);
            let pause = backoff.next();
            assert!(pause <= full && pause >= full * 3 / 4, "{pause:?} of {full:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= min);
        let mut other = Backoff::new(min, max, "other");
        let mut again = Backoff::new(min, max, "bus");
        let pauses = |b: &mut Backoff| [b.next(), b.next(), b.next()];
        assert_ne!(pauses(&mut other), pauses(&mut again));
        let zero = Backoff::new(Duration::ZERO, Duration::ZERO, "bus").next();
        assert!(zero >= BACKOFF_FLOOR * 3 / 4, "{zero:?}");
    }
}
