//! How many windows are open, where each is known by its end.
//!
//! Promise: a window is counted once however many panes it has, and neither to count it nor to take
//! it out is a look at the others: windows of a pane end one after the other, so they are held as
//! runs of ends. It knows neither rows nor panes.

use std::collections::BTreeMap;

/// The ends of open windows.
#[derive(Debug)]
pub(super) struct OpenEnds {
    /// From one end to the next; the last one of a run may be nearer. `None` where each is alone.
    step: Option<i64>,
    /// First and last end of each run; runs do not overlap.
    runs: BTreeMap<i64, i64>,
    count: usize,
}

impl OpenEnds {
    pub(super) fn new(step: Option<i64>) -> Self {
        Self { step, runs: BTreeMap::new(), count: 0 }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The windows that end from `first` to `last` are open.
    pub(super) fn add(&mut self, first: i64, last: i64) {
        let (mut from, mut to) = (first, last.max(first));
        while let Some((&start, &end)) = self.runs.range(..=to).next_back()
            && end >= from
        {
            if start <= from && end >= to {
                return;
            }
            self.runs.remove(&start);
            self.count -= self.ends_in(start, end);
            (from, to) = (from.min(start), to.max(end));
        }
        self.runs.insert(from, to);
        self.count += self.ends_in(from, to);
    }

    /// The windows that end at `end` or before are over.
    pub(super) fn close(&mut self, end: i64) {
        while let Some((&first, &last)) = self.runs.first_key_value().filter(|(f, _)| **f <= end) {
            self.runs.remove(&first);
            self.count -= self.ends_in(first, last);
            let step = self.step.filter(|_| last > end);
            if let Some(step) = step {
                let next = end - (end - first) % step;
                self.add(next.saturating_add(step).min(last), last);
            }
        }
    }

    /// How many ends a run has.
    fn ends_in(&self, first: i64, last: i64) -> usize {
        let span = last.saturating_sub(first);
        let steps = self.step.map_or(0, |step| span / step + i64::from(span % step > 0));
        usize::try_from(steps).unwrap_or(usize::MAX).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::calendar::{Calendar, Zone};
    use crate::window::{Bounds, Window};

    const MINUTE: i64 = 60_000_000;

    /// The ends of all windows that hold a pane, by a walk from one to the next.
    fn ends(window: &Window, pane: Bounds) -> Vec<i64> {
        let next = |after: &i64| window.first_end(pane, Some(*after));
        std::iter::successors(window.first_end(pane, None), next).collect()
    }

    fn windows() -> impl Strategy<Value = Window> {
        let berlin = Zone::named("Europe/Berlin").unwrap();
        let days = Calendar::new(berlin, 24 * 60 * MINUTE, 0).unwrap();
        prop_oneof![
            Just(Window::Tumbling { size: 10, offset: 3 }),
            Just(Window::Hopping { size: 10, step: 3, offset: 0 }),
            Just(Window::Hopping { size: 12, step: 4, offset: -1 }),
            Just(Window::Hopping { size: 60, step: 1, offset: 0 }),
            Just(Window::Cumulative { size: 24, step: 3 }),
            Just(Window::Calendar { days, step: None }),
            Just(Window::Calendar { days, step: Some(7 * 60 * MINUTE) }),
        ]
    }

    proptest! {
        /// Panes in any order, each with its windows from one of them on, and windows that close.
        #[test]
        fn it_is_the_number_of_ends(
            window in windows(),
            steps in proptest::collection::vec((0_i64..40, 0_usize..3, any::<bool>()), 1..40),
        ) {
            let unit = if matches!(window, Window::Calendar { .. }) { 211 * MINUTE } else { 5 };
            let (mut open, mut model) = (OpenEnds::new(window.end_step()), BTreeSet::new());
            for (at, skipped, close) in steps {
                let pane = window.pane_of(at * unit);
                let all = ends(&window, pane);
                prop_assert_eq!(window.last_end(pane), *all.last().unwrap());
                let own = &all[skipped.min(all.len() - 1)..];
                open.add(own[0], window.last_end(pane));
                model.extend(own.iter().copied());
                prop_assert_eq!(open.len(), model.len());
                if close {
                    let end = model.pop_first().unwrap();
                    open.close(end);
                    prop_assert_eq!(open.len(), model.len());
                }
            }
        }
    }
}
