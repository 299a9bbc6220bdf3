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

mod marks;
mod turns;

use std::collections::HashMap;

pub(crate) use turns::Texts;

use marks::{Marks, NOWHERE, UNMARKED, marked};
use turns::Names;

/// How many sources are remembered; beyond, idle ones that nobody declared are forgotten. An idle
/// source does not hold the watermark, so forgetting it changes no window.
pub const SOURCES_MAX: usize = 10_000;

/// They are forgotten once they are one in so many of all: each time all are numbered anew.
const IDLE_SHARE: usize = 8;

/// How often in `idle_after` it is looked for sources that are far behind: each of them is looked at.
const LOOKS: i64 = 8;

/// One source: a value of the `device` column of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    table: usize,
    device: Box<str>,
    declared: bool,
    active: bool,
    /// Since when it has been far behind, and how far it was then.
    behind: Option<(i64, i64)>,
    /// It is far behind and does not catch up, so it holds nothing.
    lame: bool,
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
    marks: Marks,
    names: Names,
    /// A source that held the watermark back when it was asked last.
    behind: usize,
    /// No source becomes idle before this.
    idle_from: i64,
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
            marks: Marks::default(),
            names: Names::default(),
            behind: 0,
            idle_from: i64::MAX,
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
        let at = self.source(table, device);
        let was = self.marks.high(at);
        let high = high.map(marked);
        self.marks.high[at] = high.max(was).unwrap_or(UNMARKED);
        self.sources[at].declared |= keep;
        let holds = self.holds(at);
        self.marks.set(at, holds);
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
        if self.is_held_before(end.saturating_add(self.lateness)) {
            return false;
        }
        self.settle();
        passed(self.current)
    }

    /// Whether a source holds the watermark before `limit`. As a rule it is the one that did when
    /// this was asked last: rows come for windows that are about to end, and to look at every
    /// source for each of them costs more than the rows do.
    fn is_held_before(&mut self, limit: i64) -> bool {
        let before = |hold: &i64| *hold < limit;
        let holds = &self.marks.hold;
        let (passed, rest) = holds.split_at(self.behind.min(holds.len()));
        let found = rest.iter().position(before).map(|at| passed.len() + at);
        let found = found.or_else(|| passed.iter().position(before));
        self.behind = found.unwrap_or(0);
        found.is_some()
    }

    /// For each source its table, its device, and its highest event time, once there was one.
    pub(crate) fn marks(&self) -> impl Iterator<Item = (usize, &str, Option<i64>)> {
        let sources = self.sources.iter().enumerate();
        sources.map(|(at, source)| (source.table, &*source.device, self.marks.high(at)))
    }

    fn holds(&self, at: usize) -> bool {
        self.sources[at].active && !self.sources[at].lame
    }

    /// While held, the clock is not followed: a source whose connection is down is silent for
    /// another reason than having nothing to say, and what it has to say may come later.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Takes `span` for time in which nobody could have been heard, such as a stopped process.
    pub(crate) fn forgive(&mut self, span: i64) {
        for last_seen in &mut self.marks.last_seen {
            *last_seen = last_seen.saturating_add(span);
        }
    }

    /// Lets time pass: sources become idle.
    pub(crate) fn advance(&mut self, now: i64) {
        self.catch_up();
        if now < self.now {
            let back = self.now.saturating_sub(now);
            for last_seen in &mut self.marks.last_seen {
                *last_seen = last_seen.saturating_sub(back);
            }
            self.idle_from = self.idle_from.saturating_sub(back);
        }
        self.now = now;
        let mut changed = now >= self.idle_from && self.let_go();
        let since = i64::try_from(now.abs_diff(self.looked)).unwrap_or(i64::MAX);
        if let Some(behind_max) = self.behind_max
            && since >= self.idle_after / LOOKS
        {
            self.looked = now;
            changed |= self.leave_behind(behind_max);
        }
        if changed {
            self.settle();
        }
    }

    /// Finds sources that have become idle, and forgets such where there are many. Gives back
    /// whether there are some.
    fn let_go(&mut self) -> bool {
        let (now, idle_after) = (self.now, self.idle_after);
        let (mut changed, mut idle, mut next) = (false, 0, i64::MAX);
        for (at, source) in self.sources.iter_mut().enumerate() {
            let last_seen = self.marks.last_seen[at];
            if source.active && now.saturating_sub(last_seen) >= idle_after {
                (source.active, changed) = (false, true);
                self.marks.set(at, false);
            }
            if source.active {
                next = next.min(last_seen.saturating_add(idle_after));
            } else {
                idle += usize::from(!source.declared);
            }
        }
        self.idle_from = next;
        if changed && self.sources.len() > SOURCES_MAX && idle * IDLE_SHARE >= self.sources.len() {
            self.forget();
        }
        changed
    }

    /// Finds out which of the active sources are far behind the newest of them and stay there.
    fn leave_behind(&mut self, behind_max: i64) -> bool {
        let (now, idle_after, mut changed) = (self.now, self.idle_after, false);
        let active = self.sources.iter().enumerate().filter(|(_, source)| source.active);
        let Some(newest) = active.filter_map(|(at, _)| self.marks.high(at)).max() else {
            return false;
        };
        for (at, source) in self.sources.iter_mut().enumerate() {
            let Some(high) = self.marks.high(at).filter(|_| source.active) else { continue };
            let lag = newest.saturating_sub(high);
            if lag <= behind_max {
                changed |= std::mem::take(&mut source.lame);
                source.behind = None;
                self.marks.set(at, true);
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
                self.marks.set(at, !source.lame);
            }
        }
        changed
    }

    /// Begins anew below `limit`: marks beyond it were made by a clock that was wrong. What the
    /// watermark had passed is for the caller to close before.
    pub(crate) fn rebase(&mut self, limit: i64) {
        for at in 0..self.sources.len() {
            if self.marks.high[at] > limit {
                self.marks.high[at] = UNMARKED;
            }
            let holds = self.holds(at);
            self.marks.set(at, holds);
        }
        // Without a mark it is less than any.
        self.newest = self.marks.high.iter().copied().max().unwrap_or(i64::MIN);
        self.current = None;
        self.settle();
    }

    /// Follows the clock where all sources are idle. Not to be called while rows are at hand: they
    /// show that their source lives, and must not be late for not having been heard until now.
    pub(crate) fn follow(&mut self) {
        if self.known && !self.held && self.marks.hold.iter().all(|hold| *hold == NOWHERE) {
            self.raise(self.now.saturating_sub(self.lateness).saturating_sub(self.lag));
        }
    }

    /// Finds or adds the source of a row and notes that it lives.
    pub(crate) fn source(&mut self, table: usize, device: &str) -> usize {
        // Devices take turns, as a rule in the order in which they came first.
        let turn = self.names.is(self.next, device) && self.sources[self.next].table == table;
        let at = if turn {
            self.next
        } else {
            match self.index[table].get(device) {
                Some(&at) => at,
                None => self.join(table, device),
            }
        };
        self.next = if at + 1 < self.sources.len() { at + 1 } else { 0 };
        self.marks.last_seen[at] = self.now;
        if self.marks.hold[at] == NOWHERE && !self.sources[at].active {
            // What the others have reached counts, though this one may be behind.
            self.catch_up();
            let source = &mut self.sources[at];
            (source.active, source.lame, source.behind) = (true, false, None);
            self.marks.set(at, true);
            self.idle_from = self.idle_from.min(self.now.saturating_add(self.idle_after));
            match self.marks.high(at) {
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
            declared: false,
            active: false,
            behind: None,
            lame: false,
        });
        self.marks.push(self.now);
        self.names.push(device);
        at
    }

    /// A row of `source` at `time` has come.
    pub(crate) fn observe(&mut self, source: usize, time: i64) {
        let (at, time) = (source, marked(time));
        let held = self.marks.high[at];
        if held >= time {
            return;
        }
        self.marks.high[at] = time;
        self.newest = self.newest.max(time);
        if self.marks.hold[at] == NOWHERE {
            return;
        }
        self.marks.hold[at] = time;
        if self.stale {
            return;
        }
        if held == UNMARKED {
            self.unmarked -= 1;
            self.count(time);
            self.raise_to_low();
        } else if Some(held) == self.low && self.holders > 1 {
            self.holders -= 1;
        } else if Some(held) == self.low {
            self.stale = true;
        }
    }

    /// Does what [`Watermark::source`] and [`Watermark::observe`] would do for rows of the one table,
    /// from `row` on, whose sources hold the watermark and take their turn in the order in which
    /// they came first. Gives back for how many.
    pub(crate) fn observe_turn(&mut self, devices: Texts, times: &[i64], row: usize) -> usize {
        if self.index.len() != 1 {
            return 0;
        }
        let at = self.next;
        let turn = self.names.turn(at, devices, row);
        let holds = self.marks.hold.get(at..at + turn).unwrap_or_default();
        let turn = holds.iter().take_while(|hold| **hold > UNMARKED && **hold < NOWHERE).count();
        let Some(times) = times.get(row..row + turn).filter(|_| turn > 0) else {
            return 0;
        };
        let (low, mut moved) = (self.low.unwrap_or(NOWHERE), false);
        let holds = self.marks.hold[at..at + turn].iter_mut();
        for ((hold, high), time) in holds.zip(&mut self.marks.high[at..at + turn]).zip(times) {
            let time = marked(*time).max(*high);
            moved |= *high == low && time > low;
            (*hold, *high) = (time, time);
            self.newest = self.newest.max(time);
        }
        self.marks.last_seen[at..at + turn].fill(self.now);
        self.stale |= moved;
        self.next = if at + turn < self.sources.len() { at + turn } else { 0 };
        turn
    }

    /// Whether none of these rows, one after the other, is behind the watermark when it comes,
    /// whatever their sources are. Some that are not may be taken for such that are.
    pub(crate) fn none_is_behind(&self, times: &[i64]) -> bool {
        let (current, mut newest) = (self.current.unwrap_or(i64::MIN), self.newest);
        times.iter().all(|&time| {
            // The least mark is no higher than the newest.
            let sound = time >= current && time >= newest.saturating_sub(self.lateness);
            newest = newest.max(time);
            sound
        })
    }

    /// What the watermark comes to at most with rows up to `time`, whatever their sources are.
    pub(crate) fn at_most(&self, time: i64) -> Option<i64> {
        let mark = self.newest.max(time).saturating_sub(self.lateness);
        self.current.max(Some(mark))
    }

    /// Does what [`Watermark::observe`] put off.
    pub(crate) fn catch_up(&mut self) {
        if self.stale {
            self.settle();
        }
    }

    /// When time alone may next change the set of active sources; `None` where none is active.
    pub(crate) fn next_idle(&self) -> Option<i64> {
        (self.idle_from < i64::MAX).then_some(self.idle_from)
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
        let (mut least, mut holders, mut unmarked) = (NOWHERE, 0, 0);
        for &hold in &self.marks.hold {
            if hold == UNMARKED {
                unmarked += 1;
            } else if hold < least {
                (least, holders) = (hold, 1);
            } else {
                holders += usize::from(hold == least);
            }
        }
        if least == NOWHERE { (None, 0, unmarked) } else { (Some(least), holders, unmarked) }
    }

    fn raise(&mut self, to: i64) {
        self.current = self.current.max(Some(to));
    }

    fn forget(&mut self) {
        let kept = self.sources.iter().enumerate();
        let kept = kept.filter(|(_, source)| source.declared || source.active);
        let kept: Vec<usize> = kept.map(|(at, _)| at).collect();
        self.marks.keep(&kept);
        self.sources.retain(|source| source.declared || source.active);
        self.names = Names::default();
        self.index.iter_mut().for_each(HashMap::clear);
        for (at, source) in self.sources.iter().enumerate() {
            self.names.push(&source.device);
            self.index[source.table].insert(source.device.clone(), at);
        }
    }
}

#[cfg(test)]
mod tests;
