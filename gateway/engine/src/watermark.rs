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
mod tests;
