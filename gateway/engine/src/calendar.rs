//! Spans of whole days by a place's own calendar.
//!
//! Promise: a day begins with the first instant at which the clocks of the place show its beginning,
//! so a day on which they are changed has 23 or 25 hours (or 23.5, or none, where the law said so),
//! and each instant is in exactly one day. The zones' rules are in the program: nothing is read from
//! the system. It knows no windows.
//! Source: IANA time zone database, as of the crate chrono-tz, which Arrow brings.

use chrono::offset::LocalResult;
use chrono::{DateTime, NaiveDateTime, Offset, TimeZone};
use chrono_tz::Tz;

use crate::window::{Bounds, cell};

/// Microseconds of a day of 24 hours.
pub const DAY: i64 = 86_400_000_000;

/// A time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone(Tz);

impl Zone {
    /// The zone with this IANA name, such as `Europe/Berlin`.
    pub fn named(name: &str) -> Option<Self> {
        name.parse().ok().map(Self)
    }

    /// Its IANA name.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// What the zone's clocks are ahead of UTC at an instant; both in microseconds.
    fn ahead(self, time: i64) -> i64 {
        let utc = DateTime::from_timestamp_micros(time).map(|time| time.naive_utc());
        let offset = utc.map(|utc| self.0.offset_from_utc_datetime(&utc).fix());
        offset.map_or(0, |offset| i64::from(offset.local_minus_utc()) * 1_000_000)
    }
}

/// Spans of so many days in a zone, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calendar {
    zone: Zone,
    size: i64,
    offset: i64,
}

impl Calendar {
    /// Spans of `size` microseconds, whole days of 24 hours, of which one begins on 1970-01-01 at
    /// `offset` microseconds after midnight by the clocks of `zone`. `None` for other sizes.
    pub fn new(zone: Zone, size: i64, offset: i64) -> Option<Self> {
        let whole = size >= DAY && size % DAY == 0;
        whole.then(|| Self { zone, size, offset: offset.rem_euclid(size) })
    }

    /// The span that an instant lies in.
    pub fn span_of(&self, time: i64) -> Bounds {
        let Some(local) = time.checked_add(self.zone.ahead(time)) else {
            return cell(time, self.size, self.offset);
        };
        let mut number = (i128::from(local) - i128::from(self.offset)).div_euclid(self.size.into());
        // Where the clocks were put back over the edge, the instant may be in a neighbour's span.
        for _ in 0..4 {
            let (Some(start), Some(end)) = (self.edge(number), self.edge(number + 1)) else {
                break;
            };
            if time < start {
                number -= 1;
            } else if time >= end {
                number += 1;
            } else {
                return Bounds { start, end };
            }
        }
        // Beyond the years that calendars know.
        cell(time, self.size, self.offset)
    }

    /// The calendar as a text: equal texts are equal calendars.
    pub fn definition(&self) -> String {
        format!("{} {} {}", self.size, self.offset, self.zone.name())
    }

    /// The first instant at which the clocks show the beginning of a span.
    fn edge(&self, number: i128) -> Option<i64> {
        let local = number * i128::from(self.size) + i128::from(self.offset);
        let local = i64::try_from(local).ok()?;
        let shown: NaiveDateTime = DateTime::from_timestamp_micros(local)?.naive_utc();
        match self.zone.0.from_local_datetime(&shown) {
            LocalResult::Single(time) | LocalResult::Ambiguous(time, _) => {
                Some(time.timestamp_micros())
            }
            LocalResult::None => Some(self.after_gap(local)),
        }
    }

    /// The instant at which the clocks are put forward over the local time `local`.
    fn after_gap(&self, local: i64) -> i64 {
        // The clocks have never been put forward by more than a day.
        let second = 1_000_000;
        let (mut before, mut after) = ((local - 2 * DAY) / second, (local + 2 * DAY) / second);
        while after - before > 1 {
            let middle = before + (after - before) / 2;
            let shown = middle * second + self.zone.ahead(middle * second);
            if shown < local { before = middle } else { after = middle }
        }
        after * second
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: i64 = 3_600_000_000;
    const SECOND: i64 = 1_000_000;

    fn calendar(zone: &str, days: i64, offset: i64) -> Calendar {
        Calendar::new(Zone::named(zone).unwrap(), days * DAY, offset).unwrap()
    }

    /// Zone, hours after midnight at which a day begins, instant at which it begins (Unix seconds),
    /// its length in half hours. By `zdump -v` and Python's zoneinfo over Debian's tzdata 2025b.
    const DAYS: &[(&str, i64, i64, i64)] = &[
        ("Europe/Berlin", 0, 1_774_652_400, 48),
        // 2026-03-29: 02:00 CET becomes 03:00 CEST.
        ("Europe/Berlin", 0, 1_774_738_800, 46),
        // 2026-10-25: 03:00 CEST becomes 02:00 CET.
        ("Europe/Berlin", 0, 1_792_879_200, 50),
        ("Europe/Berlin", 0, 1_782_856_800, 48),
        // A shift day that begins at six is as long as the night in it.
        ("Europe/Berlin", 6, 1_774_756_800, 48),
        // It begins at two, which is not shown on this day: with the first instant after.
        ("Europe/Berlin", 2, 1_774_746_000, 46),
        // At two, which is shown twice: the first time.
        ("Europe/Berlin", 2, 1_792_886_400, 50),
        // 2026-03-08 and 2026-11-01.
        ("America/New_York", 0, 1_772_946_000, 46),
        ("America/New_York", 0, 1_793_505_600, 50),
        // No daylight saving; half and quarter hours.
        ("Asia/Tokyo", 0, 1_774_710_000, 48),
        ("Asia/Kolkata", 0, 1_774_722_600, 48),
        ("Asia/Kathmandu", 0, 1_767_204_900, 48),
        ("UTC", 0, 1_774_742_400, 48),
        // Half an hour of daylight saving: 2026-04-05 and 2026-10-04.
        ("Australia/Lord_Howe", 0, 1_775_307_600, 49),
        ("Australia/Lord_Howe", 0, 1_791_034_200, 47),
        // Put forward at midnight: the day begins at one. 2026-04-24 and 2018-11-04.
        ("Africa/Cairo", 0, 1_776_981_600, 46),
        ("America/Sao_Paulo", 0, 1_541_300_400, 46),
        // Put back at midnight, so that eleven o'clock comes twice: 2018-02-17.
        ("America/Sao_Paulo", 0, 1_518_832_800, 50),
        // Put back at one, so that midnight comes twice: 2026-11-01.
        ("America/Havana", 0, 1_793_505_600, 50),
        // 2011-12-30 did not take place: the 29th is followed by the 31st.
        ("Pacific/Apia", 0, 1_325_152_800, 48),
        ("Pacific/Apia", 0, 1_325_239_200, 48),
        // Past 2038, and before 1970.
        ("Europe/Berlin", 0, 2_531_948_400, 46),
        ("Europe/Berlin", 0, -807_415_200, 48),
    ];

    #[test]
    fn one_line_per_day() {
        for &(zone, hours, start, halves) in DAYS {
            let days = calendar(zone, 1, hours * HOUR);
            let start = start * SECOND;
            let bounds = Bounds { start, end: start + halves * HOUR / 2 };
            for time in [start, start + 1, start + halves * HOUR / 4, bounds.end - 1] {
                assert_eq!(days.span_of(time), bounds, "{zone} {start} {time}");
            }
            assert_eq!(days.span_of(start - 1).end, start, "{zone} {start}");
            assert_eq!(days.span_of(bounds.end).start, bounds.end, "{zone} {start}");
        }
    }

    #[test]
    fn spans_of_several_days() {
        // Weeks from Monday: 1970-01-01 was a Thursday. 2026-03-23 and -30 are Mondays in Berlin.
        let weeks = calendar("Europe/Berlin", 7, 4 * DAY);
        let (start, end) = (1_774_220_400 * SECOND, 1_774_821_600 * SECOND);
        assert_eq!(weeks.span_of(1_774_738_800 * SECOND), Bounds { start, end });
        assert_eq!(end - start, 7 * DAY - HOUR, "the week of the change");
        assert_eq!(Calendar::new(Zone::named("UTC").unwrap(), DAY + 1, 0), None);
        assert_eq!(Calendar::new(Zone::named("UTC").unwrap(), 0, 0), None);
        assert_eq!(Zone::named("Europe/Berlim"), None);
    }

    #[test]
    fn beyond_all_calendars_days_have_24_hours() {
        let days = calendar("Europe/Berlin", 1, 0);
        for time in [i64::MIN, i64::MIN + DAY, i64::MAX - DAY, i64::MAX] {
            let bounds = days.span_of(time);
            assert!(bounds.start <= time && (time < bounds.end || time == i64::MAX), "{time}");
        }
    }

    proptest! {
        #[test]
        fn days_touch_and_hold_their_instants(
            zone in prop::sample::select(&[
                "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo",
                "America/Havana", "Pacific/Apia", "America/Sao_Paulo", "Africa/Casablanca",
            ][..]),
            days in 1_i64..9,
            offset in 0_i64..9 * DAY,
            time in 0_i64..4_000_000_000_000_000,
        ) {
            let calendar = calendar(zone, days, offset);
            let bounds = calendar.span_of(time);
            prop_assert!(bounds.start <= time && time < bounds.end);
            prop_assert_eq!(calendar.span_of(bounds.start), bounds);
            prop_assert_eq!(calendar.span_of(bounds.end - 1), bounds);
            prop_assert_eq!(calendar.span_of(bounds.end).start, bounds.end);
            let length = bounds.end - bounds.start;
            prop_assert!((length - days * DAY).abs() <= DAY, "{} h", length / HOUR);
        }
    }
}
