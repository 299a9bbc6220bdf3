//! States of many panes merged, so that a window that overlaps others need not merge all its panes.
//!
//! Promise: a window of `n` panes is covered by at most some `6 × log4(n)` blocks; each pane is
//! merged into a block once on each level, a third of a merge a pane in all, and blocks weigh a third
//! of what the panes do. A block is four of the level below, aligned to its size. The large blocks
//! of a cover stay for many windows and are merged once more, into its middle, so that a window is
//! made of some seven states. It knows no rows.
//! Not two stacks, as for windows that lose their oldest pane only: rows may come late for some of
//! their windows, and running totals never lose one.

use std::collections::BTreeMap;
use std::ops::Range;

use arrow::record_batch::RecordBatch;

use super::piece::states_bytes;

/// Blocks of the next level are so many of one.
pub(super) const FAN: i64 = 4;
/// A window of fewer panes merges them all.
pub(super) const BLOCKS_MIN: i64 = 8;
/// Blocks of this level and above make a window's middle: of sixteen windows that follow each other
/// by a pane, some eight share it.
const MIDDLE_LEVEL: u32 = 2;
/// 4^20 panes are more than a window may have.
const LEVEL_MAX: u32 = 20;

/// A block's level, and its index among those of its level. Level 0 are the panes.
pub(super) type Place = (u32, i64);

/// The panes of a block.
pub(super) fn panes_of((level, index): Place) -> Range<i64> {
    let size = FAN.pow(level);
    let start = index.saturating_mul(size);
    start..start.saturating_add(size)
}

/// The fewest blocks that together are the panes `panes`, in order.
pub(super) fn cover(panes: Range<i64>) -> Vec<Place> {
    let (mut places, mut at) = (Vec::new(), panes.start);
    while at < panes.end {
        let mut level = 0;
        while level < LEVEL_MAX {
            let size = FAN.pow(level + 1);
            if at.rem_euclid(size) != 0 || at.saturating_add(size) > panes.end {
                break;
            }
            level += 1;
        }
        let size = FAN.pow(level);
        places.push((level, at.div_euclid(size)));
        at += size;
    }
    places
}

/// A cover's small blocks to the left, its large ones, and its small ones to the right.
pub(super) fn parts(cover: &[Place]) -> (Vec<Place>, Vec<Place>, Vec<Place>) {
    let large = |(level, _): &Place| *level >= MIDDLE_LEVEL;
    // Levels rise, then fall.
    let first = cover.iter().position(large).unwrap_or(cover.len());
    let end = cover.iter().rposition(large).map_or(first, |last| last + 1);
    (cover[..first].to_vec(), cover[first..end].to_vec(), cover[end..].to_vec())
}

/// What four blocks of the level below, or four panes, were merged into.
#[derive(Debug, Clone)]
pub(super) struct Block {
    /// Rows whose first window ended after this are not in it.
    pub(super) upto: i64,
    pub(super) states: Vec<RecordBatch>,
    /// Of states that are not shared with the level below.
    bytes: usize,
}

/// The blocks that may be used again.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    merged: BTreeMap<Place, Block>,
    /// That of the last window.
    middle: Option<(Range<i64>, Block)>,
    bytes: usize,
}

impl Blocks {
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.middle.as_ref().map_or(0, |(_, block)| block.bytes)
    }

    /// What the panes `panes` were merged into, if these were the last window's middle.
    pub(super) fn middle(&self, panes: &Range<i64>) -> Option<&Block> {
        self.middle.as_ref().filter(|(kept, _)| kept == panes).map(|(_, block)| block)
    }

    /// Keeps a window's middle in place of the one before.
    pub(super) fn put_middle(&mut self, panes: Range<i64>, upto: i64, states: Vec<RecordBatch>) {
        let bytes = states.iter().map(states_bytes).sum();
        self.middle = Some((panes, Block { upto, states, bytes }));
    }

    pub(super) fn get(&self, place: Place) -> Option<&Block> {
        self.merged.get(&place)
    }

    /// Keeps a block; `merged` says whether its states are its own.
    pub(super) fn put(&mut self, place: Place, upto: i64, states: Vec<RecordBatch>, merged: bool) {
        let bytes = if merged { states.iter().map(states_bytes).sum() } else { 0 };
        self.bytes += bytes;
        if let Some(old) = self.merged.insert(place, Block { upto, states, bytes }) {
            self.bytes -= old.bytes;
        }
    }

    /// Forgets the blocks that begin before the pane `first`: windows only move on.
    pub(super) fn forget(&mut self, first: i64) {
        self.middle.take_if(|(panes, _)| panes.start < first);
        let bytes = &mut self.bytes;
        self.merged.retain(|place, block| {
            let kept = panes_of(*place).start >= first;
            *bytes -= if kept { 0 } else { block.bytes };
            kept
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_line_per_cover() {
        let cases: [(Range<i64>, &[Place]); 7] = [
            (0..0, &[]),
            (0..1, &[(0, 0)]),
            (0..4, &[(1, 0)]),
            (3..9, &[(0, 3), (1, 1), (0, 8)]),
            (0..21, &[(2, 0), (1, 4), (0, 20)]),
            (-5..4, &[(0, -5), (1, -1), (1, 0)]),
            (-16..16, &[(2, -1), (2, 0)]),
        ];
        for (panes, places) in cases {
            assert_eq!(cover(panes.clone()), places, "{panes:?}");
        }
    }

    proptest! {
        #[test]
        fn a_cover_is_each_pane_once_in_order_and_short(
            start in -1_000_000_i64..1_000_000,
            panes in 0_i64..20_000,
        ) {
            let places = cover(start..start + panes);
            let mut at = start;
            for place in &places {
                prop_assert_eq!(panes_of(*place).start, at);
                at = panes_of(*place).end;
            }
            prop_assert_eq!(at, start + panes);
            // log4(20,000) is 7.2; three to the left and three to the right on each level.
            prop_assert!(places.len() <= 6 * 8);
            let (left, middle, right) = parts(&places);
            prop_assert_eq!([&left[..], &middle, &right].concat(), places);
            // Without a middle both sides are one.
            let most = if middle.is_empty() { 12 } else { 6 };
            prop_assert!(left.len() <= most);
            prop_assert!(right.len() <= 6);
            prop_assert!(middle.iter().all(|(level, _)| *level >= 2));
        }
    }

    #[test]
    fn forgetting_gives_the_bytes_back() {
        let mut blocks = Blocks::default();
        let schema =
            std::sync::Arc::new(arrow::datatypes::Schema::new(vec![arrow::datatypes::Field::new(
                "n",
                arrow::datatypes::DataType::Int64,
                false,
            )]));
        let column = std::sync::Arc::new(arrow::array::Int64Array::from(vec![1, 2, 3]));
        let states = RecordBatch::try_new(schema, vec![column]).unwrap();
        blocks.put((1, 0), 5, vec![states.clone()], true);
        let one = blocks.bytes();
        assert!(one >= 24);
        blocks.put((1, 0), 6, vec![states.clone()], true);
        assert_eq!(blocks.bytes(), one);
        blocks.put((1, 1), 6, vec![states.clone()], false);
        blocks.put((2, 0), 6, vec![], true);
        assert_eq!(blocks.bytes(), one);
        blocks.put_middle(16..48, 6, vec![states]);
        assert_eq!(blocks.bytes(), 2 * one);
        assert!(blocks.middle(&(16..48)).is_some() && blocks.middle(&(16..64)).is_none());
        blocks.forget(1);
        assert_eq!(blocks.bytes(), one, "the middle begins later");
        assert!(blocks.get((1, 1)).is_some() && blocks.get((2, 0)).is_none());
        blocks.forget(17);
        assert_eq!(blocks.bytes(), 0);
        assert!(blocks.get((1, 1)).is_none() && blocks.middle(&(16..48)).is_none());
    }
}
