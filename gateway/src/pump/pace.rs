//! How fast and how much at once: a token bucket for what waited, and batches that leave live
//! records their turn.
//!
//! Pure arithmetic over instants that the caller brings.

use std::time::Duration;

use tokio::time::Instant;

/// Time that one delivery's tokens are gathered for, so that 500 records a second are not 500
/// deliveries.
const GATHER: Duration = Duration::from_millis(100);

/// Longest time that tokens are kept for after a slow delivery.
const KEEP_MAX: Duration = Duration::from_secs(10);

/// Lets so many records a second pass. It begins empty, and keeps no more tokens than what a
/// delivery takes in time: a pause is not caught up, a slow link is.
#[derive(Debug)]
pub(super) struct Bucket {
    rate: f64,
    tokens: f64,
    filled: Instant,
    keep: Duration,
}

impl Bucket {
    /// A bucket for `rate` records a second, above zero.
    pub(super) fn new(rate: f64, now: Instant) -> Self {
        Self { rate, tokens: 0.0, filled: now, keep: GATHER * 2 }
    }

    /// Records that may pass now, of `want` that are there; or when to ask again.
    pub(super) fn pass(&mut self, want: usize, now: Instant) -> Result<usize, Instant> {
        let most = (self.rate * self.keep.as_secs_f64()).max(1.0);
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + since * self.rate).min(most);
        self.filled = now;
        let due = (self.rate * GATHER.as_secs_f64()).max(1.0).min(count(want));
        if self.tokens + ROUNDING < due {
            let missing = Duration::from_secs_f64((due - self.tokens) / self.rate);
            return Err(now + missing.max(Duration::from_millis(1)));
        }
        Ok(want.min(whole(self.tokens + ROUNDING)))
    }

    /// Takes the tokens of what was sent, which took so long.
    pub(super) fn spend(&mut self, sent: usize, took: Duration) {
        self.tokens = (self.tokens - count(sent)).max(0.0);
        self.keep = (GATHER * 2 + took).min(KEEP_MAX);
    }
}

/// Sums of seconds and rates are a little off.
const ROUNDING: f64 = 1e-6;

/// How long a delivery of what waited may take while live records may come.
const TARGET: Duration = Duration::from_millis(250);

/// Finds how many records make a delivery of about [`TARGET`]: longer ones would make live records
/// wait. Where one record alone takes long, as over a satellite, twice its time is the target.
#[derive(Debug)]
pub(super) struct Pace {
    rows: usize,
    base: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { rows: 1, base: Duration::ZERO }
    }
}

impl Pace {
    /// Records of the next delivery at most.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Learns from a delivery; never more than `rows_max` at once.
    pub(super) fn learn(&mut self, sent: usize, took: Duration, rows_max: usize) {
        self.base = if sent == 1 { took } else { self.base.min(took) };
        let target = TARGET.max(self.base * 2);
        if took > target {
            self.rows = (sent / 2).max(1);
        } else if sent >= self.rows && took * 2 <= target + self.base {
            // Twice as many take twice what is beyond the base.
            self.rows = (self.rows * 2).min(rows_max);
        }
    }
}

/// Deficit round robin of two lanes by records: for each record of the backlog, `share / (1 -
/// share)` live ones are owed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shares {
    /// Live records for each one of the backlog.
    ratio: f64,
    owed: f64,
}

impl Shares {
    /// `share` is above 0 and below 1.
    pub(super) fn new(share: f64) -> Self {
        Self { ratio: share / (1.0 - share), owed: 0.0 }
    }

    /// Live records that are owed: they go first.
    pub(super) fn owed(&self) -> usize {
        whole((self.owed - ROUNDING).ceil())
    }

    /// Records of the backlog were delivered; `live_waits` where live ones could have been.
    pub(super) fn backlog(&mut self, sent: usize, live_waits: bool) {
        // Nothing is saved up for while nobody was there to take it.
        self.owed = if live_waits { self.owed + count(sent) * self.ratio } else { 0.0 };
    }

    /// Live records were delivered while some of the backlog could have been.
    pub(super) fn live(&mut self, sent: usize) {
        self.owed = (self.owed - count(sent)).max(0.0);
    }
}

fn count(rows: usize) -> f64 {
    f64::from(u32::try_from(rows).unwrap_or(u32::MAX))
}

/// The whole part of a number of records; a delivery has far fewer than 2^32.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to what fits first"
)]
fn whole(number: f64) -> usize {
    number.clamp(0.0, f64::from(u32::MAX)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Takes all that passes for a while, each delivery lasting `each`; returns the records.
    fn drain(rate: f64, lasting: Duration, each: Duration, batch: usize) -> usize {
        let start = Instant::now();
        let mut bucket = Bucket::new(rate, start);
        let (mut now, mut passed) = (start, 0);
        while now < start + lasting {
            match bucket.pass(batch, now) {
                Ok(rows) => {
                    passed += rows;
                    now += each;
                    bucket.spend(rows, each);
                }
                Err(until) => now = until,
            }
        }
        passed
    }

    #[test]
    fn a_bucket_holds_its_rate_whatever_a_delivery_takes() {
        for (rate, each_ms, expected) in [
            (500.0, 0, 50_000),
            (500.0, 30, 50_000),
            // Slower than the gathering, and a round trip over a satellite.
            (500.0, 150, 50_000),
            (500.0, 2_000, 50_000),
            (3.0, 1, 300),
            (0.5, 0, 50),
        ] {
            let passed = drain(rate, SECOND * 100, Duration::from_millis(each_ms), 1_000);
            let around = expected - expected / 20..=expected + expected / 100;
            assert!(around.contains(&passed), "{rate}/s at {each_ms} ms: {passed}");
        }
    }

    #[test]
    fn a_pause_is_not_caught_up() {
        let start = Instant::now();
        let mut bucket = Bucket::new(100.0, start);
        assert_eq!(bucket.pass(1_000, start), Err(start + Duration::from_millis(100)));
        // After an hour, what two gatherings bring: 20 records.
        assert_eq!(bucket.pass(1_000, start + SECOND * 3_600), Ok(20));
        bucket.spend(20, Duration::ZERO);
        assert!(bucket.pass(1_000, start + SECOND * 3_600).is_err());
        // Few records do not wait for tokens of many.
        assert_eq!(bucket.pass(2, start + SECOND * 3_600 + Duration::from_millis(20)), Ok(2));
    }

    /// A far side that takes `fixed` for each delivery and `each` for each record.
    fn paced(fixed: Duration, each: Duration) -> usize {
        let mut pace = Pace::default();
        for _ in 0..100 {
            let rows = pace.rows();
            pace.learn(rows, fixed + each * u32::try_from(rows).unwrap(), 1_000);
        }
        pace.rows()
    }

    #[test]
    fn a_delivery_is_as_large_as_live_records_can_bear() {
        let ms = Duration::from_millis;
        assert_eq!(paced(ms(1), Duration::from_micros(10)), 1_000, "a near broker");
        // One record takes 1 s: two make the target of 2 s, and twice that is too long.
        assert!((1..=2).contains(&paced(Duration::ZERO, SECOND)), "a slow far side");
        assert!(paced(SECOND * 2, ms(1)) >= 500, "a satellite");
        // 100 records a second: 25 make 250 ms.
        assert!((8..=32).contains(&paced(ms(1), ms(10))), "a modem");
    }

    #[test]
    fn a_pace_follows_a_link_that_changes() {
        let mut pace = Pace::default();
        let ms = Duration::from_millis;
        for _ in 0..20 {
            let rows = pace.rows();
            pace.learn(rows, ms(1), 1_000);
        }
        assert_eq!(pace.rows(), 1_000);
        for _ in 0..20 {
            let rows = pace.rows();
            pace.learn(rows, ms(100) * u32::try_from(rows).unwrap(), 1_000);
        }
        assert!(pace.rows() <= 4, "{}", pace.rows());
    }

    #[test]
    fn live_records_have_their_share() {
        // By hand: for share s, of 1,000 records with both lanes full, s go to the live lane.
        for share in [0.1, 0.25, 0.5, 0.9] {
            let mut shares = Shares::new(share);
            let (mut live, mut backlog) = (0, 0);
            while live + backlog < 10_000 {
                let owed = shares.owed();
                if owed > 0 {
                    let sent = owed.min(100);
                    live += sent;
                    shares.live(sent);
                } else {
                    backlog += 50;
                    shares.backlog(50, true);
                }
            }
            let got = count(live) / count(live + backlog);
            assert!(got >= share - 0.02 && got <= share + 0.02, "{share}: {got}");
        }
    }

    #[test]
    fn nothing_is_owed_for_a_time_without_live_records() {
        let mut shares = Shares::new(0.5);
        shares.backlog(10, true);
        assert_eq!(shares.owed(), 10);
        shares.live(3);
        assert_eq!(shares.owed(), 7);
        shares.backlog(1_000, false);
        assert_eq!(shares.owed(), 0);
    }
}
