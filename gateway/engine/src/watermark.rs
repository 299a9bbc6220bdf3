//! How far event time has come, by source and for the stream.
//!
//! Promise: a source's mark is the highest event time that it sent, the stream's watermark is the
//! least mark of its active sources minus the allowed lateness, and it never goes back, unless
//! [`Watermark::rebase`] says that the clock was wrong. A source that is silent for `idle_after` does
//! not hold it; when all are, it follows the clock minus the lateness, so that the last windows close.
//! Nor does a source hold it that is far behind the others and does not catch up: its clock is wrong.
//! It knows no rows, no windows and no clock: "now" is an argument, and a clock that is set back moves
//! nothing but the waiting for idle sources.
//! Source: design page "The engine", section Event time.

use std::collections::HashMap;

/// How many sources are remembered; beyond, idle ones that nobody declared are forgotten. An idle
/// source does not hold the watermark, so forgetting it changes no window.
pub const SOURCES_MAX: usize = 10_000;

/// How often in `idle_after` it is looked for sources that are far behind: each of them is looked at.
const LOOKS: i64 = 8;

/// One source: a value of the `device` column of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) table: usize,
    pub(crate) device: Box<str>,
    /// Highest event time, once there was one.
    pub(crate) high: Option<i64>,
    declared: bool,
    active: bool,
    last_seen: i64,
    /// Since when it has been far behind, and how far it was then.
    behind: Option<(i64, i64)>,
    /// It is far behind and does not catch up, so it holds nothing.
    lame: bool,
}

impl Source {
    fn holds(&self) -> bool {
        self.active && !self.lame
    }
}

/// The watermark of a stream.
#[derive(Debug)]
pub(crate) struct Watermark {
    lateness: i64,
    idle_after: i64,
    /// How far behind the clock rows may come without being late, beside `lateness`.
    lag: i64,
    /// A source that is further behind the newest one must catch up.
    behind_max: Option<i64>,
    /// When it was looked for such sources last.
    looked: i64,
    now: i64,
    sources: Vec<Source>,
    /// By table, then by device.
    index: Vec<HashMap<Box<str>, usize>>,
    /// The source whose turn it may be.
    next: usize,
    /// Whether there ever was a source; with none, the clock is not followed.
    known: bool,
    /// Whether the clock is not followed for now.
    held: bool,
    /// Least mark of the sources that hold and have one.
    low: Option<i64>,
    /// How many of them stand at `low`.
    holders: usize,
    /// How many sources hold and have no mark: while there is one, nothing moves.
    unmarked: usize,
    /// Marks have risen and `low`, `holders` and `current` do not show it yet. To look at every
    /// source is put off until somebody must know: with a thousand sources in turn, each row moves
    /// the one that is behind.
    stale: bool,
    /// No mark is higher than this.
    newest: i64,
    current: Option<i64>,
}

impl Watermark {
    pub(crate) fn new(tables: usize, lateness: i64, idle_after: i64, now: i64) -> Self {
        Self {
            lateness,
            idle_after,
            lag: 0,
            behind_max: None,
            looked: now,
            now,
            sources: Vec::new(),
            index: vec![HashMap::new(); tables],
            next: 0,
            known: false,
            held: false,
            low: None,
            unmarked: 0,
            holders: 0,
            stale: false,
            newest: i64::MIN,
            current: None,
        }
    }

    /// Stays so far behind the clock where the clock is followed: rows come only after windows of
    /// other streams have closed.
    pub(crate) fn set_lag(&mut self, lag: i64) {
        self.lag = lag;
    }

    /// Lets a source that is more than `span` behind the newest one hold nothing, unless it catches
    /// up: in `idle_after` it must gain half of that.
    pub(crate) fn with_behind_max(mut self, span: Option<i64>) -> Self {
        self.behind_max = span;
        self
    }

    /// Adds a source that is known beforehand, or gives it the mark that it had before a restart.
    pub(crate) fn declare(&mut self, table: usize, device: &str, high: Option<i64>, keep: bool) {
        let source = self.source(table, device);
        let source = &mut self.sources[source];
        let was = source.high;
        source.high = source.high.max(high);
        source.declared |= keep;
        if let (None, Some(high)) = (was, high) {
            self.unmarked -= 1;
            self.count(high);
        }
        self.newest = self.newest.max(high.unwrap_or(i64::MIN));
    }

    /// Takes over the watermark from before a restart, when all sources of then are declared: one of
    /// them alone would raise it too far.
    pub(crate) fn resume(&mut self, watermark: Option<i64>) {
        self.current = self.current.max(watermark);
        self.settle();
    }

    pub(crate) fn current(&self) -> Option<i64> {
        if !self.stale {
            return self.current;
        }
        let (low, _, unmarked) = self.least();
        let low = low.filter(|_| unmarked == 0);
        self.current.max(low.map(|low| low.saturating_sub(self.lateness)))
    }

    /// Whether the watermark has come to `end`.
    pub(crate) fn has_passed(&mut self, end: i64) -> bool {
        let passed = |current: Option<i64>| current.is_some_and(|mark| end <= mark);
        if passed(self.current) {
            return true;
        }
        // The least mark is no higher than the newest.
        if !self.stale || end > self.newest.saturating_sub(self.lateness) {
            return false;
        }
        self.settle();
        passed(self.current)
    }

    pub(crate) fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// While held, the clock is not followed: a source whose connection is down is silent for
    /// another reason than having nothing to say, and what it has to say may come later.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Takes `span` for time in which nobody could have been heard, such as a stopped process.
    pub(crate) fn forgive(&mut self, span: i64) {
        for source in &mut self.sources {
            source.last_seen = source.last_seen.saturating_add(span);
        }
    }

    /// Lets time pass: sources become idle.
    pub(crate) fn advance(&mut self, now: i64) {
        self.catch_up();
        if now < self.now {
            let back = self.now.saturating_sub(now);
            for source in &mut self.sources {
                source.last_seen = source.last_seen.saturating_sub(back);
            }
        }
        self.now = now;
        let mut changed = false;
        for source in &mut self.sources {
            if source.active && now.saturating_sub(source.last_seen) >= self.idle_after {
                source.active = false;
                changed = true;
            }
        }
        let since = i64::try_from(now.abs_diff(self.looked)).unwrap_or(i64::MAX);
        if let Some(behind_max) = self.behind_max
            && since >= self.idle_after / LOOKS
        {
            self.looked = now;
            changed |= self.leave_behind(behind_max);
        }
        if self.sources.len() > SOURCES_MAX {
            self.forget();
        }
        if changed {
            self.settle();
        }
    }

    /// Finds out which of the active sources are far behind the newest of them and stay there.
    fn leave_behind(&mut self, behind_max: i64) -> bool {
        let (now, idle_after, mut changed) = (self.now, self.idle_after, false);
        let active = self.sources.iter().filter(|source| source.active);
        let Some(newest) = active.filter_map(|source| source.high).max() else {
            return false;
        };
        for source in self.sources.iter_mut().filter(|source| source.active) {
            let Some(high) = source.high else { continue };
            let lag = newest.saturating_sub(high);
            if lag <= behind_max {
                changed |= std::mem::take(&mut source.lame);
                source.behind = None;
                continue;
            }
            let (since, was) = *source.behind.get_or_insert((now, lag));
            let passed = now.saturating_sub(since);
            if passed < 0 {
                source.behind = Some((now, lag));
            } else if passed >= idle_after && !source.lame {
                source.lame = was.saturating_sub(lag) < passed / 2;
                changed |= source.lame;
                source.behind = Some((now, lag));
            }
        }
        changed
    }

    /// Begins anew below `limit`: marks beyond it were made by a clock that was wrong. What the
    /// watermark had passed is for the caller to close before.
    pub(crate) fn rebase(&mut self, limit: i64) {
        for source in &mut self.sources {
            source.high = source.high.filter(|high| *high <= limit);
        }
        self.newest = self.sources.iter().filter_map(|s| s.high).max().unwrap_or(i64::MIN);
        self.current = None;
        self.settle();
    }

    /// Follows the clock where all sources are idle. Not to be called while rows are at hand: they
    /// show that their source lives, and must not be late for not having been heard until now.
    pub(crate) fn follow(&mut self) {
        if self.known && !self.held && self.sources.iter().all(|source| !source.holds()) {
            self.raise(self.now.saturating_sub(self.lateness).saturating_sub(self.lag));
        }
    }

    /// Finds or adds the source of a row and notes that it lives.
    pub(crate) fn source(&mut self, table: usize, device: &str) -> usize {
        // Devices take turns, as a rule in the order in which they came first.
        let turn = |source: &Source| source.table == table && *source.device == *device;
        let at = match self.sources.get(self.next) {
            Some(source) if turn(source) => self.next,
            _ => match self.index[table].get(device) {
                Some(&at) => at,
                None => self.join(table, device),
            },
        };
        self.next = if at + 1 < self.sources.len() { at + 1 } else { 0 };
        self.sources[at].last_seen = self.now;
        if !self.sources[at].active {
            // What the others have reached counts, though this one may be behind.
            self.catch_up();
            let source = &mut self.sources[at];
            (source.active, source.lame, source.behind) = (true, false, None);
            match source.high {
                Some(high) => {
                    self.count(high);
                    self.raise_to_low();
                }
                None => self.unmarked += 1,
            }
        }
        at
    }

    /// Takes account of one more source that holds, at `high`. To look at every source for that
    /// would take 100,000 of them minutes to join.
    fn count(&mut self, high: i64) {
        match self.low {
            Some(low) if low < high => {}
            Some(low) if low == high => self.holders += 1,
            _ => (self.low, self.holders) = (Some(high), 1),
        }
    }

    fn raise_to_low(&mut self) {
        if let Some(low) = self.low.filter(|_| self.unmarked == 0) {
            self.raise(low.saturating_sub(self.lateness));
        }
    }

    fn join(&mut self, table: usize, device: &str) -> usize {
        let at = self.sources.len();
        self.index[table].insert(device.into(), at);
        self.known = true;
        self.sources.push(Source {
            table,
            device: device.into(),
            high: None,
            declared: false,
            active: false,
            last_seen: self.now,
            behind: None,
            lame: false,
        });
        at
    }

    /// A row of `source` at `time` has come.
    pub(crate) fn observe(&mut self, source: usize, time: i64) {
        let held = self.sources[source].high;
        if held.is_some_and(|high| high >= time) {
            return;
        }
        self.sources[source].high = Some(time);
        self.newest = self.newest.max(time);
        if self.stale || self.sources[source].lame {
            return;
        }
        if held.is_none() {
            self.unmarked -= 1;
            self.count(time);
            self.raise_to_low();
        } else if held == self.low && self.holders > 1 {
            self.holders -= 1;
        } else if held == self.low {
            self.stale = true;
        }
    }

    /// Does what [`Watermark::observe`] put off.
    pub(crate) fn catch_up(&mut self) {
        if self.stale {
            self.settle();
        }
    }

    /// When time alone next changes the set of active sources.
    pub(crate) fn next_idle(&self) -> Option<i64> {
        let active = self.sources.iter().filter(|source| source.active);
        active.map(|source| source.last_seen.saturating_add(self.idle_after)).min()
    }

    /// When the clock, followed because all sources are idle, brings the watermark to `time`.
    pub(crate) fn clock_reaches(&self, time: i64) -> Option<i64> {
        let reached = time.saturating_add(self.lateness).saturating_add(self.lag);
        (self.known && !self.held).then_some(reached)
    }

    fn settle(&mut self) {
        self.stale = false;
        (self.low, self.holders, self.unmarked) = self.least();
        self.raise_to_low();
    }

    /// The least mark of the sources that hold and have one, how many stand at it, and how many
    /// have none.
    fn least(&self) -> (Option<i64>, usize, usize) {
        let (mut least, mut holders, mut unmarked) = (None, 0, 0);
        for source in self.sources.iter().filter(|source| source.holds()) {
            match (source.high, least) {
                (None, _) => unmarked += 1,
                (Some(high), Some(low)) if high > low => {}
                (Some(high), Some(low)) if high == low => holders += 1,
                (Some(high), _) => (least, holders) = (Some(high), 1),
            }
        }
        (least, holders, unmarked)
    }

    fn raise(&mut self, to: i64) {
        self.current = self.current.max(Some(to));
    }

    fn forget(&mut self) {
        self.sources.retain(|source| source.declared || source.active);
        self.index.iter_mut().for_each(HashMap::clear);
        for (at, source) in self.sources.iter().enumerate() {
            self.index[source.table].insert(source.device.clone(), at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick(marks: &mut Watermark, now: i64) {
        marks.advance(now);
        marks.follow();
    }

    fn seen(marks: &mut Watermark, device: &str, time: i64) -> Option<i64> {
        let source = marks.source(0, device);
        marks.observe(source, time);
        marks.current()
    }

    #[test]
    fn the_slowest_active_source_holds_it() {
        let mut marks = Watermark::new(1, 2, 100, 1000);
        for device in ["a", "b", "c"] {
            marks.declare(0, device, None, true);
        }
        assert_eq!(seen(&mut marks, "a", 50), None);
        assert_eq!(seen(&mut marks, "b", 10), None);
        assert_eq!(seen(&mut marks, "c", 10), Some(8));
        assert_eq!(seen(&mut marks, "b", 20), Some(8));
        assert_eq!(seen(&mut marks, "c", 30), Some(18));
        // Never back: not by an older row, not by a source that joins behind.
        assert_eq!(seen(&mut marks, "b", 5), Some(18));
        assert_eq!(seen(&mut marks, "d", 1), Some(18));
        assert_eq!(seen(&mut marks, "d", 40), Some(18));
        assert_eq!(seen(&mut marks, "b", 60), Some(28));
    }

    #[test]
    fn an_idle_source_lets_go_and_the_clock_is_followed_when_all_are() {
        let mut marks = Watermark::new(1, 2, 100, 1000);
        marks.declare(0, "a", None, true);
        marks.declare(0, "b", None, true);
        seen(&mut marks, "a", 990);
        tick(&mut marks, 1050);
        seen(&mut marks, "a", 1040);
        assert_eq!(marks.next_idle(), Some(1100));
        tick(&mut marks, 1099);
        assert_eq!(marks.current(), None);
        tick(&mut marks, 1100);
        assert_eq!(marks.current(), Some(1038), "b never spoke and is idle");
        tick(&mut marks, 1149);
        assert_eq!(marks.current(), Some(1038));
        tick(&mut marks, 1150);
        assert_eq!(marks.current(), Some(1148), "now - lateness");
        assert_eq!(marks.next_idle(), None);
        assert_eq!(marks.clock_reaches(1200), Some(1202));
        // a wakes with an old stamp: nothing goes back, and it holds again.
        assert_eq!(seen(&mut marks, "a", 1100), Some(1148));
        tick(&mut marks, 1160);
        assert_eq!(marks.current(), Some(1148));
    }

    /// What is put off changes nothing: after each row the watermark is the least of all marks, or
    /// what it was, and rows are judged by it.
    #[test]
    fn putting_off_changes_nothing() {
        let (mut marks, mut model) = (Watermark::new(1, 3, 1_000, 0), HashMap::new());
        let mut expected = None;
        // A linear congruence (Knuth's MMIX): the same rows in each run.
        let mut random = 7_u64;
        for row in 0..20_000_i64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let device = random >> 33 & (if row < 10_000 { 3 } else { 31 });
            let time = row + i64::try_from(random >> 40 & 15).unwrap();
            let end = time - 8;
            assert_eq!(marks.has_passed(end), expected.is_some_and(|mark| end <= mark), "{row}");
            let source = marks.source(0, &device.to_string());
            marks.observe(source, time);
            let high = model.entry(device).or_insert(time);
            *high = time.max(*high);
            expected = expected.max(model.values().min().map(|low| low - 3));
            if (random >> 50).is_multiple_of(8) {
                assert_eq!(marks.current(), expected, "{row}");
            }
            if (random >> 55).is_multiple_of(8) {
                marks.catch_up();
            }
        }
        assert_eq!(marks.current(), expected);
    }

    /// A stream whose windows of 60 close 10 later feeds this one: when nothing has come for long,
    /// the clock may be right only about what is 70 old.
    #[test]
    fn the_clock_is_followed_at_the_lag_of_what_comes_before() {
        let mut marks = Watermark::new(1, 2, 100, 1000);
        marks.set_lag(70);
        seen(&mut marks, "windows", 900);
        tick(&mut marks, 1100);
        assert_eq!(marks.current(), Some(1028), "1100 - 2 - 70");
        assert_eq!(marks.clock_reaches(1060), Some(1132));
        // A window that began at 1040 is told at 1110, and is not late.
        assert_eq!(seen(&mut marks, "windows", 1040), Some(1038));
    }

    #[test]
    fn without_any_source_the_clock_means_nothing() {
        let mut marks = Watermark::new(1, 0, 10, 0);
        tick(&mut marks, 1_000_000);
        assert_eq!(marks.current(), None);
        assert_eq!(seen(&mut marks, "late riser", 5), Some(5));
    }

    #[test]
    fn clock_steps_move_no_mark() {
        let hour = 3_600_000_000;
        let mut marks = Watermark::new(1, 0, 10_000_000, 2 * hour);
        seen(&mut marks, "a", 2 * hour);
        // Back by an hour: no mark moves, and the source is idle after its 10 s, not after 1 h 10 s.
        tick(&mut marks, hour);
        assert_eq!(marks.current(), Some(2 * hour));
        assert_eq!(marks.next_idle(), Some(hour + 10_000_000));
        tick(&mut marks, hour + 10_000_000);
        assert_eq!(marks.next_idle(), None);
        assert_eq!(marks.current(), Some(2 * hour), "now is behind the mark");
        // From 1970 to 2039: the watermark follows once, and can go on.
        let in_2039 = 2_177_452_800_000_000;
        tick(&mut marks, in_2039);
        assert_eq!(marks.current(), Some(in_2039));
        assert_eq!(seen(&mut marks, "a", in_2039 + 1), Some(in_2039 + 1));
    }

    #[test]
    fn a62_a_source_far_behind_holds_only_while_it_catches_up() {
        let hour = 3_600;
        let now = 50 * hour;
        let mut marks = Watermark::new(1, 0, 10, now).with_behind_max(Some(hour));
        for device in ["live", "slow", "dead"] {
            marks.declare(0, device, None, true);
        }
        // `dead` has no battery for its clock, `slow` sends what it kept while its link was down.
        seen(&mut marks, "live", now);
        seen(&mut marks, "slow", now - 3 * hour);
        assert_eq!(seen(&mut marks, "dead", 100), Some(100));
        for second in 1..=10 {
            tick(&mut marks, now + second);
            seen(&mut marks, "live", now + second);
            seen(&mut marks, "slow", now - 3 * hour + 600 * second);
            assert_eq!(seen(&mut marks, "dead", 100 + second), Some(100 + second), "still held");
        }
        tick(&mut marks, now + 11);
        assert_eq!(marks.current(), Some(now - 3 * hour + 600 * 10), "`slow` gains and holds");
        for second in 11..40 {
            tick(&mut marks, now + second);
            seen(&mut marks, "dead", 100 + second);
            seen(&mut marks, "live", now + second);
            seen(&mut marks, "slow", (now - 3 * hour + 600 * second).min(now + second));
        }
        assert_eq!(marks.current(), Some(now + 39), "both are there");
        // Its clock is set: it holds again.
        seen(&mut marks, "dead", now + 39);
        tick(&mut marks, now + 41);
        seen(&mut marks, "live", now + 60);
        assert_eq!(seen(&mut marks, "slow", now + 60), Some(now + 39));
    }

    #[test]
    fn sources_that_come_back_raise_it_together() {
        let mut marks = Watermark::new(1, 21, 100, 0);
        marks.declare(0, "c", Some(114), false);
        marks.declare(0, "a", Some(93), false);
        marks.resume(Some(70));
        assert_eq!(marks.current(), Some(72));
        assert_eq!(seen(&mut marks, "a", 100), Some(79));
    }

    #[test]
    fn f11_a_watermark_that_a_wrong_clock_made_is_given_up() {
        let mut marks = Watermark::new(1, 0, 10, 0);
        let (wrong, right) = (1_000_000, 500);
        tick(&mut marks, wrong);
        seen(&mut marks, "a", 480);
        seen(&mut marks, "b", wrong);
        tick(&mut marks, wrong + 10);
        assert_eq!(marks.current(), Some(wrong + 10), "both silent");
        tick(&mut marks, right);
        marks.rebase(right);
        assert_eq!(marks.current(), None);
        assert_eq!(seen(&mut marks, "a", 490), Some(490), "b is idle");
        assert_eq!(seen(&mut marks, "b", 495), Some(490));
    }

    /// With a look at all others for each, 100,000 devices took minutes to join.
    #[test]
    fn many_sources_join_without_a_look_at_each_other() {
        let mut marks = Watermark::new(1, 0, 1_000, 0);
        for device in 0..5_i64 {
            seen(&mut marks, &device.to_string(), 100 - device);
            assert_eq!((marks.low, marks.holders, marks.unmarked), (Some(100 - device), 1, 0));
            assert!(!marks.stale, "nothing is left to look for");
        }
        assert_eq!(marks.current(), Some(100), "never back");
        marks.source(0, "no mark yet");
        assert_eq!((marks.low, marks.unmarked), (Some(96), 1));
    }

    #[test]
    fn many_idle_sources_are_forgotten_and_hold_nothing() {
        let mut marks = Watermark::new(1, 0, 10, 0);
        marks.declare(0, "kept", None, true);
        for device in 0..SOURCES_MAX {
            seen(&mut marks, &device.to_string(), 1);
        }
        assert_eq!(marks.sources().len(), SOURCES_MAX + 1);
        tick(&mut marks, 20);
        assert_eq!(marks.sources().len(), 1);
        assert_eq!(seen(&mut marks, "kept", 30), Some(30));
        assert_eq!(seen(&mut marks, "17", 31), Some(30));
    }
}
