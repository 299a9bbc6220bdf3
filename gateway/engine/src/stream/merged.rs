//! What a window is computed from where rows are folded: the states of its panes, merged as far as
//! other windows share them.
//!
//! Promise: a state is in it once for each of its pieces, those that came before the window was over,
//! in the order of the panes; what lies beside a merged block follows it. It runs the steps of the
//! query and keeps what they gave in `blocks`; when rows are folded is not its part.

use std::collections::BTreeMap;
use std::ops::Range;

use arrow::record_batch::RecordBatch;

use super::aligned::{Aligned, Key};
use super::blocks::{BLOCKS_MIN, FAN, Place, cover, panes_of, parts};
use super::frames::Input;
use super::rows::in_large_batches;
use crate::sql::{Query, SqlError};
use crate::window::Bounds;

impl Aligned {
    /// What a window is computed from, where rows are folded.
    pub(super) async fn input_of(
        &mut self,
        bounds: Bounds,
        keys: &[Key],
        query: &mut Query,
    ) -> Result<Input, SqlError> {
        if let [key] = keys
            && let Some(piece) = self.pieces.get(key)
            && piece.states().is_empty()
            && self.window.first_end(self.window.pane_of(key.0), Some(bounds.end)).is_none()
        {
            // Few rows that no other window needs: one aggregation over them is less work.
            let of = |table| in_large_batches(piece.batches(table));
            let rows = (0..self.times.len()).map(of).collect::<Result<_, _>>()?;
            return Ok(Input::Unordered(rows));
        }
        for key in keys {
            self.fold_piece(*key, i64::MAX, query).await?;
        }
        if self.window.panes() < BLOCKS_MIN {
            let pieces = keys.iter().filter_map(|key| self.pieces.get(key));
            return Ok(Input::States(pieces.flat_map(|p| p.states().iter().cloned()).collect()));
        }
        let mut by_pane: BTreeMap<i64, Vec<Key>> = BTreeMap::new();
        for key in keys {
            by_pane.entry(self.window.pane_index(key.0)).or_default().push(*key);
        }
        let first = self.window.pane_index(bounds.start);
        let end = first + self.window.panes_in(bounds);
        // Functions over time ask what the last value before the next window is: no state may
        // lie on both sides of its start.
        let next = self.window.next_start(bounds).filter(|_| self.passed.ordered);
        let next = next.map_or(first, |next| self.window.pane_index(next).clamp(first, end));
        let (left, middle, right) = parts(&cover(next..end));
        let mut states = Vec::new();
        for place in [cover(first..next), left].concat() {
            states.extend(self.block(place, bounds.end, &by_pane, query).await?);
        }
        states.extend(self.middle(&middle, bounds.end, &by_pane, query).await?);
        for place in right {
            states.extend(self.block(place, bounds.end, &by_pane, query).await?);
        }
        Ok(Input::States(states))
    }

    /// States of the blocks in the middle of a window that ends at `end`, which the windows after
    /// it share: merged once for all of them.
    async fn middle(
        &mut self,
        places: &[Place],
        end: i64,
        by_pane: &BTreeMap<i64, Vec<Key>>,
        query: &mut Query,
    ) -> Result<Vec<RecordBatch>, SqlError> {
        let (Some(first), Some(last)) = (places.first(), places.last()) else {
            return Ok(Vec::new());
        };
        let panes = panes_of(*first).start..panes_of(*last).end;
        let kept = self.folding.as_ref().and_then(|folding| folding.blocks.middle(&panes));
        if let Some(block) = kept {
            let (mut states, upto) = (block.states.clone(), block.upto);
            self.beside(panes, Some(upto), by_pane, &mut states);
            return Ok(states);
        }
        let mut states = Vec::new();
        for place in places {
            states.extend(self.block(*place, end, by_pane, query).await?);
        }
        if states.len() > 1 {
            states = vec![query.reduce(states).await?];
            if let Some(folding) = &mut self.folding {
                folding.blocks.put_middle(panes, end, states.clone());
            }
        }
        Ok(states)
    }

    /// Adds the states of pieces of these panes that came after `after`.
    fn beside(
        &self,
        panes: Range<i64>,
        after: Option<i64>,
        by_pane: &BTreeMap<i64, Vec<Key>>,
        states: &mut Vec<RecordBatch>,
    ) {
        for key in by_pane.range(panes).flat_map(|(_, keys)| keys) {
            if after.is_none_or(|after| key.1 > after) {
                let piece = self.pieces.get(key);
                states.extend(piece.into_iter().flat_map(|piece| piece.states().iter().cloned()));
            }
        }
    }

    /// States of the panes of a block, for a window that ends at `end` and of which they all are.
    async fn block(
        &mut self,
        place: Place,
        end: i64,
        by_pane: &BTreeMap<i64, Vec<Key>>,
        query: &mut Query,
    ) -> Result<Vec<RecordBatch>, SqlError> {
        let kept = self.folding.as_ref().and_then(|folding| folding.blocks.get(place));
        let (mut states, after) = match kept {
            Some(block) => (block.states.clone(), Some(block.upto)),
            None if place.0 == 0 => (Vec::new(), None),
            None => {
                let states = self.merge(place, end, by_pane, query).await?;
                return Ok(states);
            }
        };
        // What came after the block was merged lies beside it.
        self.beside(panes_of(place), after, by_pane, &mut states);
        Ok(states)
    }

    /// Makes a block of the four below.
    async fn merge(
        &mut self,
        place: Place,
        end: i64,
        by_pane: &BTreeMap<i64, Vec<Key>>,
        query: &mut Query,
    ) -> Result<Vec<RecordBatch>, SqlError> {
        let (level, index) = place;
        let mut states = Vec::new();
        for child in 0..FAN {
            let place = (level - 1, index * FAN + child);
            if by_pane.range(panes_of(place)).next().is_some() {
                states.extend(Box::pin(self.block(place, end, by_pane, query)).await?);
            }
        }
        let merged = states.len() > 1;
        if merged {
            states = vec![query.reduce(states).await?];
        }
        if let Some(folding) = &mut self.folding {
            folding.blocks.put(place, end, states.clone(), merged);
        }
        Ok(states)
    }
}
