//! Values over time: what lies between samples, and what a window makes of it.
//!
//! Promise: spans that touch in order of time merge to the span over all their samples, so partial
//! results can be kept; a window's result takes in what held before its first sample. Times are
//! microseconds. It knows no columns, no groups and no SQL.
//! Source: OPC UA Part 13 (Aggregates), 5.4.3 TimeAverage2 and Total2 for stepped, TimeAverage for
//! sloped interpolation; the reset of a counter as Prometheus' `increase` takes it.

use std::fmt::Debug;

/// A number that is summed: `f64`, or `i128` where results must be exact.
pub(super) trait Amount: Copy + PartialOrd + Debug + Default + Send + Sync {
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    /// `self * part / whole`; `whole` is not 0.
    fn scaled(self, part: i64, whole: i64) -> Self;
    /// Whether it is a number at all.
    fn counts(self) -> bool;
    fn to_f64(self) -> f64;
}

impl Amount for f64 {
    fn plus(self, other: Self) -> Self {
        self + other
    }

    fn minus(self, other: Self) -> Self {
        self - other
    }

    fn scaled(self, part: i64, whole: i64) -> Self {
        self * part as f64 / whole as f64
    }

    fn counts(self) -> bool {
        self.is_finite()
    }

    fn to_f64(self) -> f64 {
        self
    }
}

impl Amount for i128 {
    fn plus(self, other: Self) -> Self {
        self.saturating_add(other)
    }

    fn minus(self, other: Self) -> Self {
        self.saturating_sub(other)
    }

    fn scaled(self, part: i64, whole: i64) -> Self {
        self.saturating_mul(part.into()) / Self::from(whole)
    }

    fn counts(self) -> bool {
        true
    }

    fn to_f64(self) -> f64 {
        self as f64
    }
}

/// One value and when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Sample<T> {
    pub(super) time: i64,
    pub(super) value: T,
}

/// What is summed between one sample and the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Rule<T> {
    /// Value times microseconds; a value holds until the next one.
    Hold,
    /// Value times microseconds; a straight line from one value to the next.
    Linear,
    /// How much a counter grew. With a number, the counter starts anew at 0 after it.
    Growth(Option<T>),
}

impl<T: Amount> Rule<T> {
    pub(super) fn between(self, a: Sample<T>, b: Sample<T>) -> T {
        match self {
            Self::Hold => a.value.scaled(b.time.saturating_sub(a.time), 1),
            Self::Linear => a.value.plus(b.value).scaled(b.time.saturating_sub(a.time), 2),
            Self::Growth(wrap) => grown(a.value, b.value, wrap),
        }
    }

    /// The same, but only from `start` on, which lies between the two.
    fn between_from(self, start: i64, a: Sample<T>, b: Sample<T>) -> T {
        let value = match self {
            Self::Linear if b.time > a.time => {
                let rise = b.value.minus(a.value);
                a.value
                    .plus(rise.scaled(start.saturating_sub(a.time), b.time.saturating_sub(a.time)))
            }
            _ => a.value,
        };
        self.between(Sample { time: start, value }, b)
    }
}

/// How far a counter went from `before` to `now`. A smaller value means that it went past `wrap`,
/// where that is less than half of its range, or else that it was set to 0.
fn grown<T: Amount>(before: T, now: T, wrap: Option<T>) -> T {
    if now >= before {
        return now.minus(before);
    }
    if let Some(wrap) = wrap {
        let past = now.plus(wrap).minus(before);
        if past >= T::default() && past < wrap.minus(past) {
            return past;
        }
    }
    if now > T::default() { now } else { T::default() }
}

/// Some samples in order of time, as far as their neighbours need to know.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Span<T> {
    pub(super) first: Sample<T>,
    pub(super) last: Sample<T>,
    /// What the rule gives between all of them.
    pub(super) sum: T,
}

impl<T: Amount> Span<T> {
    pub(super) fn of(sample: Sample<T>) -> Self {
        Self { first: sample, last: sample, sum: T::default() }
    }

    /// Appends a span that begins at or after the end of this one; `None` where it does not.
    pub(super) fn then(self, rule: Rule<T>, next: Self) -> Option<Self> {
        (next.first.time >= self.last.time).then(|| Self {
            first: self.first,
            last: next.last,
            sum: self.sum.plus(rule.between(self.last, next.first)).plus(next.sum),
        })
    }
}

/// The window that a span is in: a value holds from before `start` and up to `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Edges {
    pub(super) start: i64,
    pub(super) end: i64,
}

impl Edges {
    /// Whether the samples were taken by the clock that the window goes by.
    fn hold<T>(self, span: &Span<T>) -> bool {
        self.start <= span.first.time && span.last.time < self.end
    }
}

/// What came of a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Whole<T> {
    pub(super) sum: T,
    /// Over how many microseconds.
    pub(super) covered: i64,
    /// The latest value.
    pub(super) last: T,
}

/// Sums a window. `before` is the last sample before it. `None` where nothing is known.
pub(super) fn whole<T: Amount>(
    rule: Rule<T>,
    span: Option<Span<T>>,
    before: Option<Sample<T>>,
    edges: Option<Edges>,
) -> Option<Whole<T>> {
    let edges = edges.filter(|edges| span.as_ref().is_none_or(|span| edges.hold(span)));
    let before = before.filter(|before| edges.is_some_and(|edges| before.time < edges.start));
    let counter = matches!(rule, Rule::Growth(_));
    match (span, edges) {
        (None, None) => None,
        // Nothing was read, so it is not known how far a counter went; a value held on.
        (None, Some(_)) if counter => None,
        (None, Some(edges)) => before.map(|before| {
            let covered = edges.end.saturating_sub(edges.start);
            Whole { sum: before.value.scaled(covered, 1), covered, last: before.value }
        }),
        (Some(span), edges) => {
            let Span { first, last, mut sum } = span;
            let (mut from, mut to) = (first.time, last.time);
            if let (Some(before), Some(edges)) = (before, edges) {
                // A counter's growth belongs to the window in which it was seen.
                from = if counter { before.time } else { edges.start };
                sum = sum.plus(rule.between_from(from, before, first));
            }
            if let (Some(edges), false) = (edges, counter) {
                sum = sum.plus(last.value.scaled(edges.end.saturating_sub(last.time), 1));
                to = edges.end;
            }
            Some(Whole { sum, covered: to.saturating_sub(from), last: last.value })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<T>(time: i64, value: T) -> Sample<T> {
        Sample { time, value }
    }

    fn span<T: Amount>(rule: Rule<T>, samples: &[(i64, T)]) -> Option<Span<T>> {
        let spans = samples.iter().map(|(time, value)| Span::of(at(*time, *value)));
        spans.reduce(|all, next| all.then(rule, next).unwrap())
    }

    const WINDOW: Option<Edges> = Some(Edges { start: 100, end: 200 });

    /// Rule, samples, last sample before the window, sum and time covered, by hand.
    #[test]
    fn values_over_time_by_hand() {
        let (hold, linear) = (Rule::Hold, Rule::Linear);
        for (rule, samples, before, edges, expected) in [
            // 4 for 10, then 2 for 90: the first sample begins where nothing held before.
            (hold, &[(100, 4.0), (110, 2.0)][..], None, WINDOW, Some((220.0, 100))),
            // One sample at 190; 7 held before: 7 for 90 and 3 for 10.
            (hold, &[(190, 3.0)], Some((50, 7.0)), WINDOW, Some((660.0, 100))),
            (hold, &[(190, 3.0)], None, WINDOW, Some((30.0, 10))),
            // Nothing in the window: 7 held all through it.
            (hold, &[], Some((50, 7.0)), WINDOW, Some((700.0, 100))),
            (linear, &[], Some((50, 7.0)), WINDOW, Some((700.0, 100))),
            (hold, &[], None, WINDOW, None),
            // From 0 at 50 to 10 at 150 is 5 at 100: (5 + 10) / 2 for 50, then 10 for 50.
            (linear, &[(150, 10.0)], Some((50, 0.0)), WINDOW, Some((875.0, 100))),
            // (1 + 3) / 2 for 20, then 3 for 80.
            (linear, &[(100, 1.0), (120, 3.0)], None, WINDOW, Some((280.0, 100))),
            // Of two at one time the later row holds.
            (hold, &[(150, 1.0), (150, 2.0)], None, WINDOW, Some((100.0, 50))),
            // No edges: from the first to the last.
            (hold, &[(10, 1.0), (30, 9.0)], None, None, Some((20.0, 20))),
            (linear, &[(10, 1.0), (30, 9.0)], None, None, Some((100.0, 20))),
            (hold, &[(10, 1.0)], None, None, Some((0.0, 0))),
            // Times of another clock than the window's: as without edges.
            (hold, &[(10, 1.0), (30, 9.0)], Some((5, 5.0)), WINDOW, Some((20.0, 20))),
            // What is not before the window does not hold before it.
            (hold, &[(190, 3.0)], Some((120, 7.0)), WINDOW, Some((30.0, 10))),
        ] {
            let before = before.map(|(time, value)| at(time, value));
            let got = whole(rule, span(rule, samples), before, edges);
            let got = got.map(|whole| (whole.sum, whole.covered));
            assert_eq!(got, expected, "{rule:?} {samples:?} {before:?} {edges:?}");
        }
    }

    #[test]
    fn counters_by_hand() {
        for (samples, before, wrap, expected) in [
            (&[(110, 5), (120, 7), (130, 12)][..], None, None, Some((7, 20))),
            // The growth since the last window's last reading, and the time since then.
            (&[(110, 5), (120, 7)], Some((90, 1)), None, Some((6, 30))),
            // Set to 0 between 7 and 3: 2 and 3 more.
            (&[(110, 5), (120, 7), (130, 3)], None, None, Some((5, 20))),
            // 16 bits: 65534, 65535, 0, 1, 2 are 4 steps.
            (&[(110, 65_534), (120, 2)], None, Some(65_536), Some((4, 10))),
            // From 100 to 0 through the wrap would be 65,436 of 65,536: it was set to 0.
            (&[(110, 100), (120, 0), (130, 4)], None, Some(65_536), Some((4, 20))),
            // A value beyond the wrap is no counter of that size; it was set to 0.
            (&[(110, 70_000), (120, 4)], None, Some(65_536), Some((4, 10))),
            (&[(110, 5), (120, -3)], None, None, Some((0, 10))),
            (&[(110, 5)], None, None, Some((0, 0))),
            (&[(110, 5)], Some((90, 1)), None, Some((4, 20))),
            (&[], Some((90, 1)), None, None),
            // Between 2^63 and 2^64 a float would not see the step.
            (&[(110, (1 << 64) - 3), (120, 1)], None, Some(1 << 64), Some((4, 10))),
        ] {
            let rule = Rule::Growth(wrap);
            let before = before.map(|(time, value)| at(time, value));
            let got: Option<Whole<i128>> = whole(rule, span(rule, samples), before, WINDOW);
            let got = got.map(|whole| (whole.sum, whole.covered));
            assert_eq!(got, expected, "{samples:?} {before:?} {wrap:?}");
        }
        let rule = Rule::Growth(Some(1000.0));
        let whole = whole(rule, span(rule, &[(100, 999.5), (110, 0.25)]), None, WINDOW).unwrap();
        assert!((whole.sum - 0.75).abs() < 1e-12, "{whole:?}");
    }

    #[test]
    fn spans_merge_at_any_cut_and_only_in_order() {
        let samples = [(1, 3.0), (4, 1.0), (4, 2.0), (9, 8.0), (15, 0.5)];
        for rule in [Rule::Hold, Rule::Linear, Rule::Growth(None)] {
            let all = span(rule, &samples).unwrap();
            for cut in 1..samples.len() {
                let (a, b) = (span(rule, &samples[..cut]), span(rule, &samples[cut..]));
                assert_eq!(a.unwrap().then(rule, b.unwrap()), Some(all), "{rule:?} at {cut}");
            }
        }
        let late = span(Rule::Hold, &samples[1..]).unwrap();
        assert_eq!(late.then(Rule::Hold, Span::of(at(3, 1.0))), None);
    }
}
