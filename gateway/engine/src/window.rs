//! Where windows begin and end.
//!
//! Promise: bounds are a pure function of event time and the window's definition; a result row's
//! `window_start()` is aligned from the first window on. Bounds are `[start, end)`: a row on an edge
//! belongs to the window that starts there. It knows no rows, no clock and no watermark.
//! Source: design page "The engine", section Windows.

use crate::calendar::Calendar;

/// Windows of more panes are computed from their rows: states of so few rows each would save nothing.
pub const PANES_MAX: i64 = 16_384;
/// The same where size is no multiple of step: a window of 803 s every 400 s would be made of 803.
const UNEVEN_PANES_MAX: i64 = 64;

/// How far a row may be behind the watermark, in microseconds, where functions go by the order of rows
/// and the states of a long window are made as time passes. Rows wait so long before they are folded.
/// Without it, rows that are swapped by a millisecond would be late in a window of an hour.
pub const PATIENCE: i64 = 10_000_000;

const HOUR: i64 = 3_600_000_000;

/// A span of event time: `start` belongs to it, `end` does not. Microseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bounds {
    /// First microsecond inside.
    pub start: i64,
    /// First microsecond after.
    pub end: i64,
}

/// How event time is cut into windows. Spans in microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Window {
    /// Windows of one size that touch and do not overlap, aligned to 1970 plus `offset`.
    Tumbling {
        /// Length, at least 1.
        size: i64,
        /// Shift of the alignment; any sign.
        offset: i64,
    },
    /// Windows of one size, of which one starts every `step`, aligned to 1970 plus `offset`.
    Hopping {
        /// Length, at least `step`.
        size: i64,
        /// From one start to the next, at least 1. `size` need not be a multiple of it.
        step: i64,
        /// Shift of the alignment; any sign.
        offset: i64,
    },
    /// Running totals: windows that start together every `size`, aligned to 1970, and end every
    /// `step` until the next ones start.
    Cumulative {
        /// Length of the longest, a multiple of `step`.
        size: i64,
        /// From one end to the next, at least 1.
        step: i64,
    },
    /// Whole days by a place's own calendar, or running totals over these.
    Calendar {
        /// The spans of days.
        days: Calendar,
        /// With running totals, from one end to the next, at least 1; the last one ends with its
        /// span.
        step: Option<i64>,
    },
    /// A window for each row of the first table: from `size` before it to `delay` after it, both
    /// ends inside.
    Sliding {
        /// How far back it reaches.
        size: i64,
        /// How far ahead it reaches.
        delay: i64,
    },
    /// Windows of rows that follow each other: from the first row to `gap` after the last.
    Session {
        /// A row that comes so much later begins another window; at least 1.
        gap: i64,
        /// The longest that one may be, at least 1.
        length_max: Option<i64>,
        /// Columns of every table, for each of whose values there are windows of their own.
        by: Vec<String>,
    },
    /// Windows of a number of rows of one table, in the order in which they came.
    Count {
        /// How many rows are in one, at least 1.
        rows: u64,
        /// How many rows are between the first ones of two windows: 1 to `rows`.
        step: u64,
    },
    /// Windows of one table from a row for which one condition holds to the next for which another
    /// one does, both inside.
    State {
        /// SQL over one row.
        begin: String,
        /// SQL over one row; asked from the row after the first on.
        end: String,
        /// Columns for each of whose values there are windows of their own.
        by: Vec<String>,
        /// The longest that one may be, at least 1.
        length_max: i64,
    },
}

impl Window {
    /// What makes this no window, as a text; `None` for one that can be used.
    pub fn problem(&self) -> Option<String> {
        match *self {
            Self::Sliding { size, delay } if size < 0 || delay < 0 || size.max(delay) < 1 => {
                Some(format!("a window of {size} µs and {delay} µs"))
            }
            Self::Session { gap, .. } if gap < 1 => Some(format!("a gap of {gap} µs")),
            Self::Session { length_max: Some(max), .. } | Self::State { length_max: max, .. }
                if max < 1 =>
            {
                Some(format!("a window of {max} µs at most"))
            }
            Self::Count { rows, step } if step < 1 || rows < step => {
                Some(format!("windows of {rows} rows with a step of {step}"))
            }
            Self::Tumbling { size, .. } if size < 1 => Some(format!("a window of {size} µs")),
            Self::Hopping { size, step, .. } | Self::Cumulative { size, step }
                if step < 1 || size < step =>
            {
                Some(format!("windows of {size} µs with a step of {step} µs"))
            }
            Self::Calendar { step: Some(step), .. } if step < 1 => {
                Some(format!("a step of {step} µs"))
            }
            Self::Cumulative { size, step } if size % step != 0 => {
                Some(format!("{size} µs is not a multiple of {step} µs"))
            }
            _ => None,
        }
    }

    /// The window's definition as one line: equal texts put equal rows into equal windows.
    pub fn definition(&self) -> String {
        match *self {
            Self::Tumbling { size, offset } => {
                format!("tumbling {size} {}", offset.rem_euclid(size))
            }
            Self::Hopping { size, step, offset } => {
                format!("hopping {size} {step} {}", offset.rem_euclid(step))
            }
            Self::Cumulative { size, step } => format!("cumulative {size} {step}"),
            Self::Calendar { days, step } => {
                format!("calendar {} {}", days.definition(), step.unwrap_or_default())
            }
            Self::Sliding { size, delay } => format!("sliding {size} {delay}"),
            Self::Session { gap, length_max, ref by } => {
                format!("session {gap} {} {by:?}", length_max.unwrap_or_default())
            }
            Self::Count { rows, step } => format!("count {rows} {step}"),
            Self::State { ref begin, ref end, ref by, length_max } => {
                format!("state {begin:?} {end:?} {by:?} {length_max}")
            }
        }
    }

    /// Whether a window's bounds follow from a row's time alone.
    pub fn is_aligned(&self) -> bool {
        let others = matches!(
            self,
            Self::Sliding { .. } | Self::Session { .. } | Self::Count { .. } | Self::State { .. }
        );
        !others
    }

    /// Whether it is over one table only.
    pub fn is_of_one_table(&self) -> bool {
        matches!(self, Self::Count { .. } | Self::State { .. })
    }

    /// The columns for each of whose values there are windows of their own.
    pub fn by(&self) -> &[String] {
        match self {
            Self::Session { by, .. } | Self::State { by, .. } => by,
            _ => &[],
        }
    }

    /// The pane of an aligned window that `time` belongs to: the longest span that lies wholly inside or wholly outside
    /// of each window. Right for times before 1970; bounds that would pass the ends of the time
    /// scale are cut there.
    pub fn pane_of(&self, time: i64) -> Bounds {
        match *self {
            Self::Tumbling { size, offset } => cell(time, size, offset),
            Self::Hopping { size, step, offset } => cell(time, gcd(size, step), offset),
            Self::Cumulative { step, .. } => cell(time, step, 0),
            Self::Calendar { days, step: None } => days.span_of(time),
            Self::Calendar { days, step: Some(step) } => {
                let span = days.span_of(time);
                let pane = cell(time, step, span.start);
                Bounds { start: pane.start.max(span.start), end: pane.end.min(span.end) }
            }
            _ => cell(time, 1, 0),
        }
    }

    /// Of how many panes the longest aligned window is made; 1 for others.
    pub fn panes(&self) -> i64 {
        match *self {
            // What has no pane is refused, but may be looked at before.
            Self::Hopping { size, .. } | Self::Cumulative { size, .. } => {
                size / self.pane_size().max(1)
            }
            // A day may have an hour more.
            Self::Calendar { days, step: Some(step) } => {
                let span = days.span_of(0);
                (span.end - span.start + HOUR) / step.max(1) + 1
            }
            _ => 1,
        }
    }

    /// Whether its panes are only as long as what size and step have in common, and so many that their
    /// states would weigh as much as their rows.
    pub fn is_uneven(&self) -> bool {
        let uneven =
            matches!(*self, Self::Hopping { size, step, .. } if step > 0 && size % step != 0);
        uneven && self.panes() > UNEVEN_PANES_MAX
    }

    /// Length of an aligned window's pane; 1 for others.
    pub fn pane_size(&self) -> i64 {
        match *self {
            Self::Tumbling { size, .. } => size,
            Self::Hopping { size, step, .. } => gcd(size, step),
            Self::Cumulative { step, .. } | Self::Calendar { step: Some(step), .. } => step,
            _ => 1,
        }
    }

    /// The number of the pane that starts at `start`: one more for each pane.
    pub fn pane_index(&self, start: i64) -> i64 {
        start.div_euclid(self.pane_size())
    }

    /// Of how many panes a window is made.
    pub fn panes_in(&self, bounds: Bounds) -> i64 {
        let (length, size) = (bounds.end.saturating_sub(bounds.start), self.pane_size());
        // The last pane of a day may be cut.
        length / size + i64::from(length % size > 0)
    }

    /// End of the first window that holds `pane` and ends after `after`; `None` where all that
    /// hold it end at or before `after`, and of windows that are not aligned.
    pub fn first_end(&self, pane: Bounds, after: Option<i64>) -> Option<i64> {
        let after = after.map_or(Some(pane.end), |after| after.checked_add(1));
        let after = after?.max(pane.end);
        let (end, last) = match *self {
            Self::Tumbling { .. } | Self::Calendar { step: None, .. } => (after, pane.end),
            Self::Calendar { days, step: Some(step) } => {
                let span = days.span_of(pane.start);
                let end = wide(after) + (wide(span.start) - wide(after)).rem_euclid(wide(step));
                let end = if after <= span.end { cut(end).min(span.end) } else { cut(end) };
                (end, span.end)
            }
            Self::Hopping { size, step, offset } => {
                // Ends repeat every step from `offset + size` on; round `after` up to one.
                let origin = wide(offset) + wide(size);
                let end = wide(after) + (origin - wide(after)).rem_euclid(wide(step));
                // Where a pane was cut at the end of the time scale, so are its windows.
                let last = pane.start.saturating_add(size).max(pane.end);
                (cut(end), last)
            }
            Self::Cumulative { size, step } => {
                let end = wide(after) + (-wide(after)).rem_euclid(wide(step));
                (cut(end), cell(pane.start, size, 0).end)
            }
            _ => return None,
        };
        (end <= last).then_some(end)
    }

    /// End of the last window that holds `pane`; the pane's own end for windows that are not
    /// aligned.
    pub(crate) fn last_end(&self, pane: Bounds) -> i64 {
        match *self {
            Self::Hopping { size, step, offset } => {
                let last = wide(pane.start) + wide(size);
                let over = (last - wide(offset) - wide(size)).rem_euclid(wide(step));
                cut(last - over).max(pane.end)
            }
            Self::Cumulative { size, .. } => cell(pane.start, size, 0).end,
            Self::Calendar { days, step: Some(_) } => days.span_of(pane.start).end,
            _ => pane.end,
        }
    }

    /// From one end of a window to the next, where panes are in several; the last one of a day may
    /// be nearer.
    pub(crate) fn end_step(&self) -> Option<i64> {
        match *self {
            Self::Hopping { step, .. } | Self::Cumulative { step, .. } => Some(step),
            Self::Calendar { step, .. } => step,
            _ => None,
        }
    }

    /// Where the next window starts: what comes before it, the next window needs to know from
    /// this one. `None` where a window begins with its first row.
    pub fn next_start(&self, window: Bounds) -> Option<i64> {
        match *self {
            Self::Tumbling { .. } => Some(window.end),
            Self::Hopping { step, .. } => Some(window.start.saturating_add(step)),
            Self::Cumulative { size, .. } => {
                let last = cell(window.start, size, 0).end;
                Some(if window.end < last { window.start } else { last })
            }
            Self::Calendar { days, step } => {
                let last = days.span_of(window.start).end;
                let goes_on = step.is_some() && window.end < last;
                Some(if goes_on { window.start } else { window.end })
            }
            Self::Sliding { .. }
            | Self::Session { .. }
            | Self::Count { .. }
            | Self::State { .. } => None,
        }
    }

    /// The window that ends at `end`, which [`Window::first_end`] gave.
    pub fn ending_at(&self, end: i64) -> Bounds {
        let start = match *self {
            Self::Tumbling { size, offset } => cell(end.saturating_sub(1), size, offset).start,
            Self::Hopping { size, .. } => end.saturating_sub(size),
            Self::Cumulative { size, .. } => cell(end.saturating_sub(1), size, 0).start,
            Self::Calendar { days, .. } => days.span_of(end.saturating_sub(1)).start,
            _ => end,
        };
        Bounds { start, end }
    }
}

fn wide(value: i64) -> i128 {
    i128::from(value)
}

fn cut(value: i128) -> i64 {
    let end = if value < 0 { i64::MIN } else { i64::MAX };
    i64::try_from(value).unwrap_or(end)
}

/// The cell of a grid of `size`, shifted by `offset`, that `time` lies in.
pub(crate) fn cell(time: i64, size: i64, offset: i64) -> Bounds {
    let start = wide(time) - (wide(time) - wide(offset)).rem_euclid(wide(size));
    Bounds { start: cut(start), end: cut(start + wide(size)) }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_line_per_case() {
        // (size, offset, time) -> [start, end)
        for (size, offset, time, start, end) in [
            (10, 0, 0, 0, 10),
            (10, 0, 9, 0, 10),
            (10, 0, 10, 10, 20),
            (10, 0, -1, -10, 0),
            (10, 0, -10, -10, 0),
            (10, 0, -11, -20, -10),
            (10, 3, 2, -7, 3),
            (10, 3, 3, 3, 13),
            (10, -3, 6, -3, 7),
            (10, -3, 7, 7, 17),
            (10, 23, 3, 3, 13),
            (1, 0, 5, 5, 6),
            // A59: one-second windows of milliseconds in 2018, an event on the edge.
            (1_000_000, 0, 1_541_152_487_000_000, 1_541_152_487_000_000, 1_541_152_488_000_000),
            // 2038-01-19T03:14:08Z, the second that does not fit 32 bits; one-minute windows.
            (60_000_000, 0, 2_147_483_648_000_000, 2_147_483_640_000_000, 2_147_483_700_000_000),
            (10, 0, i64::MAX, i64::MAX - 7, i64::MAX),
            (10, 0, i64::MIN, i64::MIN, i64::MIN + 8),
        ] {
            let window = Window::Tumbling { size, offset };
            let bounds = Bounds { start, end };
            assert_eq!(window.pane_of(time), bounds, "{window:?}, time {time}");
            assert_eq!(window.first_end(bounds, None), Some(end), "{window:?}, time {time}");
            assert_eq!(window.ending_at(end), bounds, "{window:?}, time {time}");
        }
    }

    /// All windows that hold `time`, in order of their ends.
    fn holding(window: &Window, time: i64) -> Vec<(i64, i64)> {
        let pane = window.pane_of(time);
        let ends = std::iter::successors(window.first_end(pane, None), |end| {
            window.first_end(pane, Some(*end))
        });
        ends.map(|end| window.ending_at(end)).map(|w| (w.start, w.end)).collect()
    }

    /// Window, time, pane, windows that hold it.
    type Case = (Window, i64, (i64, i64), &'static [(i64, i64)]);

    #[test]
    fn windows_that_overlap_one_line_per_case() {
        let hopping = |size, step, offset| Window::Hopping { size, step, offset };
        let cumulative = |size, step| Window::Cumulative { size, step };
        let cases: [Case; 14] = [
            (hopping(10, 10, 0), 0, (0, 10), &[(0, 10)]),
            (hopping(10, 10, 0), 9, (0, 10), &[(0, 10)]),
            (hopping(10, 5, 0), 0, (0, 5), &[(-5, 5), (0, 10)]),
            (hopping(10, 5, 0), 4, (0, 5), &[(-5, 5), (0, 10)]),
            (hopping(10, 5, 0), 5, (5, 10), &[(0, 10), (5, 15)]),
            (hopping(10, 5, 2), 1, (-3, 2), &[(-8, 2), (-3, 7)]),
            // No multiple: panes of 1, some times in three windows and some in four.
            (hopping(10, 3, 0), 9, (9, 10), &[(0, 10), (3, 13), (6, 16), (9, 19)]),
            (hopping(10, 3, 0), 10, (10, 11), &[(3, 13), (6, 16), (9, 19)]),
            (hopping(10, 4, 0), 9, (8, 10), &[(0, 10), (4, 14), (8, 18)]),
            (hopping(10, 4, 0), -1, (-2, 0), &[(-8, 2), (-4, 6)]),
            (cumulative(10, 5), 0, (0, 5), &[(0, 5), (0, 10)]),
            (cumulative(10, 5), 5, (5, 10), &[(0, 10)]),
            (cumulative(12, 3), 4, (3, 6), &[(0, 6), (0, 9), (0, 12)]),
            (cumulative(12, 3), -1, (-3, 0), &[(-12, 0)]),
        ];
        for (window, time, (start, end), windows) in cases {
            assert_eq!(window.pane_of(time), Bounds { start, end }, "{window:?}, time {time}");
            assert_eq!(holding(&window, time), windows, "{window:?}, time {time}");
        }
    }

    /// 2026-10-25 in Berlin has 25 h, which are 214 panes of 7 min and one of 2 min.
    #[test]
    fn panes_of_a_long_day_are_numbered_one_after_the_other() {
        let minute = 60_000_000;
        let zone = crate::calendar::Zone::named("Europe/Berlin").unwrap();
        let days = Calendar::new(zone, 24 * 60 * minute, 0).unwrap();
        let day = days.span_of(1_792_929_600_000_000);
        assert_eq!(day.end - day.start, 25 * 60 * minute);
        let window = Window::Calendar { days, step: Some(7 * minute) };
        let starts: Vec<i64> =
            std::iter::successors(Some(day.start), |start| Some(window.pane_of(*start).end))
                .take_while(|start| *start < day.end)
                .collect();
        let first = window.pane_index(day.start);
        let numbers: Vec<i64> = starts.iter().map(|start| window.pane_index(*start)).collect();
        assert_eq!(numbers, (first..first + 215).collect::<Vec<i64>>());
        assert_eq!(window.panes_in(day), 215);
        assert!(window.panes() >= 215);
        assert_eq!(window.panes_in(Bounds { start: day.start, end: day.start + 14 * minute }), 2);
    }

    #[test]
    fn windows_at_the_ends_of_the_time_scale_are_cut() {
        let window = Window::Hopping { size: 10, step: 4, offset: 0 };
        assert_eq!(window.pane_of(i64::MAX), Bounds { start: i64::MAX - 1, end: i64::MAX });
        assert_eq!(holding(&window, i64::MAX).last(), Some(&(i64::MAX - 10, i64::MAX)));
        assert_eq!(holding(&window, i64::MIN).first(), Some(&(i64::MIN, i64::MIN + 2)));
    }

    #[test]
    fn what_is_no_window_is_said() {
        for window in [
            Window::Tumbling { size: 0, offset: 0 },
            Window::Hopping { size: 10, step: 0, offset: 0 },
            Window::Hopping { size: 10, step: 11, offset: 0 },
            Window::Cumulative { size: 0, step: 0 },
            Window::Cumulative { size: 10, step: 4 },
        ] {
            assert!(window.problem().is_some(), "{window:?}");
        }
        assert_eq!(Window::Hopping { size: 10, step: 10, offset: 0 }.problem(), None);
        assert_eq!(Window::Cumulative { size: 12, step: 4 }.problem(), None);
    }

    #[test]
    fn what_has_no_pane_can_be_looked_at() {
        let (size, step, offset) = (10, 0, 0);
        for window in [
            Window::Hopping { size: 0, step, offset },
            Window::Hopping { size, step, offset },
            Window::Cumulative { size: 0, step },
            Window::Cumulative { size, step },
        ] {
            assert!(window.panes() <= size && !window.is_uneven(), "{window:?}");
        }
    }

    /// (size, step), and whether its panes are many and short.
    #[test]
    fn windows_of_many_short_panes_are_known() {
        for (size, step, many) in [
            (803, 400, true),
            (800, 400, false),
            (25, 10, false),
            (3_600, 10, false),
            (65, 64, true),
        ] {
            let window = Window::Hopping { size, step, offset: 0 };
            assert_eq!(window.is_uneven(), many, "{size} every {step}");
        }
    }

    proptest! {
        #[test]
        fn every_time_is_in_exactly_one_aligned_window(
            size in 1_i64..1_000_000_000_000,
            offset in -1_000_000_000_000_i64..1_000_000_000_000,
            time in -4_000_000_000_000_000_i64..4_000_000_000_000_000,
        ) {
            let window = Window::Tumbling { size, offset };
            let bounds = window.pane_of(time);
            prop_assert!(bounds.start <= time && time < bounds.end);
            prop_assert_eq!(bounds.end - bounds.start, size);
            prop_assert_eq!((bounds.start - offset) % size, 0);
            prop_assert_eq!(window.pane_of(bounds.start), bounds);
            prop_assert_eq!(window.pane_of(bounds.end).start, bounds.end);
        }

        /// The definition of overlapping windows, tried out: `[k step, k step + size)` for all k.
        #[test]
        fn hopping_windows_hold_what_they_say(
            size in 1_i64..60,
            step in 1_i64..60,
            offset in -100_i64..100,
            time in -1_000_i64..1_000,
        ) {
            let (size, step) = (size.max(step), size.min(step));
            let window = Window::Hopping { size, step, offset };
            let all = (-2_000..2_000).map(|k| offset + k * step).map(|start| (start, start + size));
            let expected: Vec<_> = all.filter(|w| w.0 <= time && time < w.1).collect();
            prop_assert_eq!(holding(&window, time), expected);
            let pane = window.pane_of(time);
            for time in pane.start..pane.end {
                prop_assert_eq!(window.pane_of(time), pane);
            }
        }
    }
}
