//! Up to where rows are folded, and which ones come too late for that, where a query goes by the
//! order of its rows.
//!
//! Promise: a pane's rows are folded up to a cut that follows from the watermark alone, and no row is
//! taken that lies before it: so states of a pane follow each other in time, however rows are cut
//! into batches. A restart is told which rows stored states stand for (those that had come, and lay
//! before the cut, when these were stored) and which of the others were late. It holds no rows.
//! Source: design page "The engine", section Execution, order-dependent aggregates.
//!
//! Saved form, little-endian: version u8; number of tables u32; the watermark of the last stored states
//! (optional i64) and, where there is one, each table's position then (u64); for each table how many
//! late rows (u32), then their positions, each as the distance to the one before (LEB128).

use std::collections::BTreeSet;

use super::StreamError;
use super::progress::{Reader, put_length, put_option};
use crate::watermark::Watermark;
use crate::window::{Bounds, PATIENCE, Window};

const VERSION: u8 = 1;
/// What a late row costs in memory, in bytes.
const LATE_COST: usize = 16;

/// How far a stream has come, as its panes need to know.
#[derive(Debug)]
pub(super) struct Passed {
    /// Whether the query goes by the order of its rows.
    pub(super) ordered: bool,
    mark: Option<i64>,
    /// The next log position of each table.
    processed: Vec<u64>,
    stored: Option<Stored>,
    /// What was loaded, until the states that it speaks of are.
    found: Option<Stored>,
    /// By table, positions of rows that were late although a window of theirs was open.
    late: Vec<BTreeSet<u64>>,
}

/// When states were stored last.
#[derive(Debug, Clone)]
struct Stored {
    mark: i64,
    processed: Vec<u64>,
}

/// Before which time all rows of a pane are folded when the watermark is at `mark`.
fn cut_at(window: &Window, pane: Bounds, mark: i64) -> i64 {
    let is_used = window.first_end(pane, None).is_none_or(|end| end <= mark);
    // What a window was computed from stays as it is.
    if is_used { i64::MAX } else { mark.saturating_sub(PATIENCE) }
}

impl Passed {
    pub(super) fn new(tables: usize, ordered: bool) -> Self {
        Self {
            ordered,
            mark: None,
            processed: vec![0; tables],
            stored: None,
            found: None,
            late: vec![BTreeSet::new(); tables],
        }
    }

    /// The watermark and the tables' positions are there now.
    pub(super) fn come_to(&mut self, mark: Option<i64>, processed: &[u64]) {
        self.mark = mark;
        for (own, processed) in self.processed.iter_mut().zip(processed) {
            *own = *processed;
        }
    }

    /// Before which time rows of a pane are folded.
    pub(super) fn cut(&self, window: &Window, pane: Bounds) -> i64 {
        if !self.ordered {
            return i64::MAX;
        }
        self.mark.map_or(i64::MIN, |mark| cut_at(window, pane, mark))
    }

    /// Whether a row of a pane without used windows is before the cut.
    pub(super) fn is_behind(&self, time: i64, watermark: &mut Watermark) -> bool {
        self.ordered && watermark.has_passed(time.saturating_add(PATIENCE).saturating_add(1))
    }

    /// A row with an open window is late.
    pub(super) fn note_late(&mut self, table: usize, position: u64) {
        self.late[table].insert(position);
    }

    /// Whether a row that a restart reads again is in no piece, or in one that was loaded.
    pub(super) fn has(
        &self,
        window: &Window,
        pane: Bounds,
        (table, position): (usize, u64),
        time: i64,
    ) -> bool {
        let covers = |stored: &Stored| {
            position < stored.processed[table] && time < cut_at(window, pane, stored.mark)
        };
        self.late[table].contains(&position) || self.stored.as_ref().is_some_and(covers)
    }

    /// All that was folded is in stored states.
    pub(super) fn is_stored(&mut self) {
        let stored = |mark| Stored { mark, processed: self.processed.clone() };
        self.stored = self.mark.filter(|_| self.ordered).map(stored);
    }

    /// The states of before a restart are here.
    pub(super) fn is_loaded(&mut self) {
        self.stored = self.found.take();
    }

    /// What a restart must know. Rows below the positions `needed` are not read again; `are_there`
    /// says whether there are stored states.
    pub(super) fn save(&self, needed: &[u64], are_there: bool) -> Vec<u8> {
        let stored = self.stored.as_ref().filter(|_| are_there);
        let late = || self.late.iter().zip(needed).map(|(late, needed)| late.range(needed..));
        if stored.is_none() && late().all(|late| late.count() == 0) {
            return Vec::new();
        }
        let mut out = vec![VERSION];
        put_length(&mut out, self.late.len());
        put_option(&mut out, stored.map(|stored| stored.mark));
        for position in stored.iter().flat_map(|stored| &stored.processed) {
            out.extend(position.to_le_bytes());
        }
        for positions in late() {
            put_length(&mut out, positions.clone().count());
            let mut last = 0;
            for position in positions {
                put_distance(&mut out, position - last);
                last = *position;
            }
        }
        out
    }

    /// Takes up what [`Passed::save`] gave; `places` says for each table of then which it is now.
    pub(super) fn load(
        &mut self,
        saved: &[u8],
        places: &[Option<usize>],
    ) -> Result<(), StreamError> {
        if saved.is_empty() {
            return Ok(());
        }
        let mut rest = Reader(saved);
        let version = rest.take::<1>()?[0];
        if version != VERSION {
            let what = format!("what panes had passed: version {version}, not {VERSION}");
            return Err(StreamError::Progress(what));
        }
        let tables = self.late.len();
        let then = 0..rest.u32()? as usize;
        let place = |then| places.get(then).copied().flatten().filter(|table| *table < tables);
        if let Some(mark) = rest.option()? {
            let mut processed = vec![0; tables];
            for table in then.clone() {
                let position = rest.u64()?;
                if let Some(table) = place(table) {
                    processed[table] = position;
                }
            }
            self.found = Some(Stored { mark, processed });
        }
        for table in then {
            let mut position = 0_u64;
            for _ in 0..rest.u32()? {
                position = position.saturating_add(take_distance(&mut rest)?);
                if let Some(table) = place(table) {
                    self.late[table].insert(position);
                }
            }
        }
        rest.end()
    }

    /// Rows below these positions are not read again.
    pub(super) fn forget(&mut self, needed: &[u64]) {
        for (late, needed) in self.late.iter_mut().zip(needed) {
            if late.first().is_some_and(|first| first < needed) {
                *late = late.split_off(needed);
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.late.iter().map(BTreeSet::len).sum::<usize>() * LATE_COST
    }
}

fn put_distance(out: &mut Vec<u8>, mut distance: u64) {
    while distance > 0x7f {
        out.push(distance.to_le_bytes()[0] | 0x80);
        distance >>= 7;
    }
    out.push(distance.to_le_bytes()[0]);
}

fn take_distance(rest: &mut Reader) -> Result<u64, StreamError> {
    let mut distance = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let [byte] = rest.take()?;
        distance |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(distance);
        }
    }
    Err(StreamError::Progress("a number that does not end".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window::Hopping { size: 40_000_000, step: 20_000_000, offset: 0 };

    fn pane(time: i64) -> Bounds {
        WINDOW.pane_of(time)
    }

    /// Panes of 20 s; the window that ends at 40 s is the first of the pane from 20 s on.
    #[test]
    fn a_cut_is_ten_seconds_behind_until_a_window_was_computed() {
        let cut = |time: i64, mark: i64| cut_at(&WINDOW, pane(time * 1_000_000), mark * 1_000_000);
        assert_eq!(cut(25, 35), 25_000_000);
        assert_eq!(cut(25, 39), 29_000_000);
        assert_eq!(cut(25, 40), i64::MAX);
        assert_eq!(cut(25, 5), -5_000_000);
        let mut passed = Passed::new(1, false);
        passed.come_to(Some(0), &[0]);
        assert_eq!(passed.cut(&WINDOW, pane(0)), i64::MAX, "order does not count");
        let mut passed = Passed::new(1, true);
        assert_eq!(passed.cut(&WINDOW, pane(0)), i64::MIN, "nothing has passed");
        passed.come_to(Some(35_000_000), &[0]);
        assert_eq!(passed.cut(&WINDOW, pane(25_000_000)), 25_000_000);
    }

    fn some() -> Passed {
        let mut passed = Passed::new(2, true);
        passed.come_to(Some(35_000_000), &[300, 7]);
        passed.is_stored();
        for position in [2, 3, 200, 100_000] {
            passed.note_late(0, position);
        }
        passed.note_late(1, 5);
        passed
    }

    #[test]
    fn what_is_saved_is_read_under_the_tables_of_then() {
        let saved = some().save(&[3, 6], true);
        // 3, then 197 and 99,800 more; none of the other table.
        let late = [3, 0, 0, 0, 3, 0xc5, 1, 0xd8, 0x8b, 6, 0, 0, 0, 0];
        assert_eq!(saved[saved.len() - late.len()..], late);
        let mut again = Passed::new(2, true);
        again.load(&saved, &[Some(0), Some(1)]).unwrap();
        let has = |passed: &Passed, table, position, time: i64| {
            let time = time * 1_000_000;
            passed.has(&WINDOW, pane(time), (table, position), time)
        };
        assert!(!has(&again, 0, 10, 24), "as long as the states are not there");
        assert!(has(&again, 0, 200, 24) && has(&again, 0, 3, 30) && !has(&again, 0, 2, 24));
        again.is_loaded();
        for (table, position, time, is) in [
            (0, 10, 24, true),
            (0, 10, 25, false),
            // The pane was used by a window to 20 s.
            (0, 10, 19, true),
            (0, 299, 24, true),
            (0, 300, 24, false),
            (1, 6, 24, true),
            (1, 7, 24, false),
        ] {
            assert_eq!(has(&again, table, position, time), is, "{table} {position} {time}");
        }
        assert_eq!(again.save(&[3, 6], true), saved);
        // The tables have changed places, and one of them is gone.
        let mut other = Passed::new(1, true);
        other.load(&saved, &[None, Some(0)]).unwrap();
        other.is_loaded();
        assert!(has(&other, 0, 6, 24) && !has(&other, 0, 7, 24) && !has(&other, 0, 200, 26));
    }

    #[test]
    fn nothing_to_say_is_no_byte_and_garbage_is_refused() {
        let mut passed = some();
        passed.forget(&[200, 6]);
        assert_eq!(passed.bytes(), 2 * LATE_COST);
        assert!(passed.save(&[100_001, 6], false).is_empty());
        let saved = passed.save(&[0, 0], true);
        for end in 1..saved.len() {
            let cut = Passed::new(2, true).load(&saved[..end], &[Some(0), Some(1)]);
            assert!(matches!(cut, Err(StreamError::Progress(_))), "cut at {end}");
        }
        let endless = [&[1, 1, 0, 0, 0, 0, 1, 0, 0, 0][..], &[0xff; 10]].concat();
        for garbage in [&[2][..], &[&saved[..], &[0]].concat(), &endless] {
            Passed::new(2, true).load(garbage, &[Some(0), Some(1)]).unwrap_err();
        }
    }
}
