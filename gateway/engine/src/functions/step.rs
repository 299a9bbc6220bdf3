//! What functions with memory make of one row after the other.
//!
//! Promise: pure steps from what is held and a row's values to an answer and what is held then. A row
//! whose value is null, NaN or infinite says nothing: it is no change, and an alarm stays as it was.
//! Source: absolute deadband as OPC UA Part 4, 7.22.2 DataChangeFilter.

use super::memory::{Held, Place};

/// Whether the value differs from the last one; the first one does.
pub(super) fn changed(place: &mut Place, value: Option<&str>) -> bool {
    let Some(value) = value else {
        return false;
    };
    let same = matches!(place.get(), Some(Held::Text(last)) if **last == *value);
    if !same {
        place.set(Held::Text(value.into()));
    }
    !same
}

/// Whether the value is further than `band` from the last one that was reported; `percent` takes
/// the band for a share of that one. The first value is reported.
pub(super) fn deadband(
    place: &mut Place,
    value: Option<f64>,
    band: Option<f64>,
    percent: bool,
) -> bool {
    let Some(value) = value.filter(|value| value.is_finite()) else {
        return false;
    };
    let outside = match place.get() {
        Some(Held::Number(last)) => band.is_some_and(|band| {
            let width = if percent { band / 100.0 * last.abs() } else { band };
            (value - *last).abs() > width
        }),
        _ => true,
    };
    if outside {
        place.set(Held::Number(value));
    }
    outside
}

/// On from `high` up, off from `low` down, and between them as before; off at first.
pub(super) fn hysteresis(
    place: &mut Place,
    value: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
) -> bool {
    let was = matches!(place.get(), Some(Held::On(true)));
    let on = match (value.filter(|value| !value.is_nan()), low, high) {
        (Some(value), _, Some(high)) if value >= high => true,
        (Some(value), Some(low), _) if value <= low => false,
        _ => was,
    };
    if on != was || place.get().is_none() {
        place.set(Held::On(on));
    }
    on
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers<T: Copy>(values: &[T], step: impl Fn(&mut Place, T) -> bool) -> Vec<usize> {
        let mut place = Place::default();
        (0..values.len()).filter(|&row| step(&mut place, values[row])).collect()
    }

    #[test]
    fn one_line_per_function() {
        let texts = [Some("a"), Some("a"), Some("b"), None, Some("b"), Some("a")];
        assert_eq!(answers(&texts, changed), [0, 2, 5]);
        let band = |band, percent| {
            move |place: &mut Place, value| deadband(place, value, Some(band), percent)
        };
        // 20.0 is reported; 20.5 is not further than 0.5, 20.6 is, then 20.0 is 0.6 away.
        let values = [20.0, 20.5, 20.6, f64::NAN, 20.2, 20.0].map(Some);
        assert_eq!(answers(&values, band(0.5, false)), [0, 2, 5]);
        // 10 % of 100 is 10, of 111 it is 11.1.
        let values = [Some(100.0), Some(110.0), Some(111.0), None, Some(100.0), Some(99.8)];
        assert_eq!(answers(&values, band(10.0, true)), [0, 2, 5]);
        let values = [Some(-100.0), Some(-105.0), Some(-89.9)];
        assert_eq!(answers(&values, band(10.0, true)), [0, 2]);
        // A band of 0 reports each change; one that is null none but the first.
        let values = [1.0, 1.0, 1.5].map(Some);
        assert_eq!(answers(&values, band(0.0, false)), [0, 2]);
        assert_eq!(answers(&values, |place, value| deadband(place, value, None, false)), [0]);
        let alarm = |place: &mut Place, value| hysteresis(place, value, Some(70.0), Some(80.0));
        let values =
            [Some(75.0), Some(80.0), Some(75.0), None, Some(f64::NAN), Some(70.0), Some(79.9)];
        assert_eq!(answers(&values, alarm), [1, 2, 3, 4]);
        let values = [f64::INFINITY, f64::NEG_INFINITY].map(Some);
        assert_eq!(answers(&values, alarm), [0]);
    }
}
