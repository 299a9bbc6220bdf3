//! Where windows begin and end.
//!
//! Promise: bounds are a pure function of event time and the window's definition; a result row's
//! `window_start()` is aligned from the first window on. Bounds are `[start, end)`: a row on an edge
//! belongs to the window that starts there. It knows no rows, no clock and no watermark.
//! Source: design page "The engine", section Windows.

/// A span of event time: `start` belongs to it, `end` does not. Microseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bounds {
    /// First microsecond inside.
    pub start: i64,
    /// First microsecond after.
    pub end: i64,
}

/// How event time is cut into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// Windows of one size that touch and do not overlap, aligned to 1970 plus `offset`.
    Tumbling {
        /// Length in microseconds, at least 1.
        size: i64,
        /// Shift of the alignment in microseconds; any sign.
        offset: i64,
    },
}

impl Window {
    /// The window that `time` belongs to. Right for times before 1970; bounds that would pass the
    /// ends of the time scale are cut there.
    ///
    /// # Panics
    /// Where `size` is less than 1, which [`Stream::new`](crate::Stream::new) refuses.
    pub fn bounds_of(self, time: i64) -> Bounds {
        let Self::Tumbling { size, offset } = self;
        assert!(size > 0, "a window has a length");
        let wide = |value: i64| i128::from(value);
        let cut = |value: i128| i64::try_from(value.clamp(wide(i64::MIN), wide(i64::MAX)));
        let start = wide(time) - (wide(time) - wide(offset)).rem_euclid(wide(size));
        Bounds {
            start: cut(start).unwrap_or(i64::MIN),
            end: cut(start + wide(size)).unwrap_or(i64::MAX),
        }
    }
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
            assert_eq!(
                Window::Tumbling { size, offset }.bounds_of(time),
                Bounds { start, end },
                "size {size}, offset {offset}, time {time}"
            );
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
            let bounds = window.bounds_of(time);
            prop_assert!(bounds.start <= time && time < bounds.end);
            prop_assert_eq!(bounds.end - bounds.start, size);
            prop_assert_eq!((bounds.start - offset) % size, 0);
            prop_assert_eq!(window.bounds_of(bounds.start), bounds);
            prop_assert_eq!(window.bounds_of(bounds.end).start, bounds.end);
        }
    }
}
