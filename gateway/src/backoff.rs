//! Growing pauses between attempts, with jitter so that a fleet does not come back in step.

use std::time::Duration;

/// A pause that doubles from `min` to `max`. Every pause is between half and all of its nominal
/// length, so that gateways which lost the same broker spread out.
#[derive(Debug, Clone)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
    state: u64,
}

impl Backoff {
    /// A backoff from `min` (at least 1 ms) to `max` (at least `min`). `seed` decides the jitter:
    /// different parts take different seeds.
    pub fn new(min: Duration, max: Duration, seed: u64) -> Self {
        let min = min.max(Duration::from_millis(1));
        Self { min, max: max.max(min), next: min, state: seed | 1 }
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let nominal = self.next;
        self.next = (nominal * 2).min(self.max);
        // xorshift64: spread is all that matters here, not secrecy.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let half = nominal / 2;
        half + half.mul_f64((self.state >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// Starts again at `min`, after a success.
    pub fn reset(&mut self) {
        self.next = self.min;
    }
}

/// A seed for [`Backoff`] from a part's name and the process id.
pub fn seed(name: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (name, std::process::id()).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap_and_start_again_after_success() {
        let (min, max) = (Duration::from_secs(1), Duration::from_secs(5));
        let mut backoff = Backoff::new(min, max, 42);
        for nominal in [1, 2, 4, 5, 5].map(Duration::from_secs) {
            let pause = backoff.pause();
            assert!(pause >= nominal / 2 && pause <= nominal, "{pause:?} for {nominal:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= min);
    }

    #[test]
    fn two_parts_do_not_come_back_in_step() {
        let pause =
            |seed| Backoff::new(Duration::from_secs(1), Duration::from_secs(1), seed).pause();
        assert_ne!(pause(1), pause(1 << 40));
    }
}
