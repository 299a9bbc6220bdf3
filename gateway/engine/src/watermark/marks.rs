//! How far each source has come, and where it holds the watermark.
//!
//! Promise: one number a source in each of three arrays, so that to go through all of them is little.
//! It knows neither names nor why a source holds nothing.

/// What changes with each row of a source. Apart from the rest, because rows of sources that take
/// turns go through all of them, and so does the search for the least of 100,000.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Highest event time, or [`UNMARKED`].
    pub(super) high: Vec<i64>,
    /// The same where the source holds the watermark, else [`NOWHERE`].
    pub(super) hold: Vec<i64>,
    pub(super) last_seen: Vec<i64>,
}

impl Marks {
    /// The highest event time of a source, once there was one.
    pub(super) fn high(&self, at: usize) -> Option<i64> {
        Some(self.high[at]).filter(|high| *high != UNMARKED)
    }

    /// A source holds the watermark from now on, or does not.
    pub(super) fn set(&mut self, at: usize, holds: bool) {
        self.hold[at] = if holds { self.high[at] } else { NOWHERE };
    }

    pub(super) fn push(&mut self, now: i64) {
        self.high.push(UNMARKED);
        self.hold.push(NOWHERE);
        self.last_seen.push(now);
    }

    /// Keeps these sources in this order.
    pub(super) fn keep(&mut self, sources: &[usize]) {
        for column in [&mut self.high, &mut self.hold, &mut self.last_seen] {
            *column = sources.iter().map(|at| column[*at]).collect();
        }
    }
}

/// Where a source holds the watermark that has no mark yet, and one that does not hold it.
pub(super) const UNMARKED: i64 = i64::MIN;
pub(super) const NOWHERE: i64 = i64::MAX;

/// A time as a mark.
pub(super) fn marked(time: i64) -> i64 {
    time.clamp(UNMARKED + 1, NOWHERE - 1)
}
