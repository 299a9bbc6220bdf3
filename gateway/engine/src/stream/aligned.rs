//! Windows whose bounds follow from the time alone: tumbling, hopping, cumulative.
//!
//! Promise: a row is held once, in its pane; a window is a run of panes. A row belongs to those of
//! its windows that are not over when it comes, and is late when none is left. Rows of one pane
//! that came while other windows were open lie apart, so that a row that is too late for a window
//! is not in it although a batch brought it before that window was computed; and so what a window
//! was computed from does not change any more when the next one is.
//!
//! Where the query can be computed in pieces, panes are folded into states (`piece`), and states
//! of many panes are merged once (`blocks`). Rows of a SELECT that asks for no order then come in
//! the order in which their groups first came, pane after pane.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;

use super::StreamError;
use super::blocks::{BLOCKS_MIN, Blocks, FAN, Place, cover, panes_of, parts};
use super::ends::OpenEnds;
use super::frames::{Closed, Input, Sources};
use super::piece::{Limits, Piece, Size, Weight};
use super::refill::Arrival;
use super::rows::{Mix, in_large_batches};
use super::snapshot::Snapshots;
use crate::sql::{Query, SqlError};
use crate::store::StateChange;
use crate::watermark::Watermark;
use crate::window::{Bounds, Window};

/// Start of a pane, and the end of the first window that its rows belong to. Rows that came later
/// have a later end, so that panes in order hold rows of equal time in arrival order.
pub(super) type Key = (i64, i64);

/// The panes of a stream.
#[derive(Debug)]
pub(super) struct Aligned {
    window: Window,
    tables: usize,
    pieces: BTreeMap<Key, Piece>,
    /// For each pane the end of its next window; windows without rows are not in here.
    ends: BTreeSet<i64>,
    open: OpenEnds,
    weight: Weight,
    rows: u64,
    folding: Option<Folding>,
}

/// What is needed where rows are folded.
#[derive(Debug)]
struct Folding {
    /// The columns of states.
    schema: SchemaRef,
    blocks: Blocks,
    snapshots: Snapshots,
    /// Pieces to which rows were added since the last fold.
    touched: BTreeSet<Key>,
    limits: Limits,
    /// How large the state was that rows were last folded into because there were enough.
    size: Size,
    /// Bytes that the stream may hold.
    memory_max: usize,
}

impl Aligned {
    /// `states` are the columns of what rows are folded into, where they are; `memory_max` is how many
    /// bytes the stream may hold.
    pub(super) fn new(
        window: Window,
        tables: usize,
        states: Option<SchemaRef>,
        memory_max: usize,
    ) -> Self {
        let folding = states.map(|schema| Folding {
            schema,
            blocks: Blocks::default(),
            snapshots: Snapshots::default(),
            touched: BTreeSet::new(),
            limits: Limits::new(memory_max),
            size: Size::default(),
            memory_max,
        });
        Self {
            open: OpenEnds::new(window.end_step()),
            window,
            tables,
            pieces: BTreeMap::new(),
            ends: BTreeSet::new(),
            weight: Weight::default(),
            rows: 0,
            folding,
        }
    }

    pub(super) fn assign(
        &mut self,
        arrival: &Arrival,
        new: usize,
        watermark: &mut Watermark,
    ) -> Result<Vec<u32>, StreamError> {
        let columns = &arrival.columns;
        let mut sources = Sources::of(arrival);
        if let Some(key) = self.key_of_all(&columns.times()[new..], watermark) {
            sources.observe_rows(watermark, new..columns.len());
            let rows = (0_u32..).take(columns.len()).skip(new).collect();
            self.add(key, arrival, rows)?;
            return Ok(Vec::new());
        }
        let mut panes: BTreeMap<Key, Vec<u32>> = BTreeMap::new();
        let mut late: Vec<u32> = Vec::new();
        // The rows at hand of one pane. It starts as one that holds nothing.
        let mut pane = Bounds { start: 0, end: 0 };
        let (mut end, mut run): (i64, Vec<u32>) = (0, Vec::new());
        for (row, &time) in (0_u32..).zip(columns.times()).skip(new) {
            let same = pane.start <= time && time < pane.end;
            if !same || watermark.has_passed(end) {
                let next = if same { pane } else { self.window.pane_of(time) };
                let open = self.open_end(next, watermark);
                if !run.is_empty() && (next != pane || open != Some(end)) {
                    panes.entry((pane.start, end)).or_default().append(&mut run);
                }
                // That of a pane without open windows has passed, whenever it is asked again.
                (pane, end) = (next, open.unwrap_or(next.end));
                if open.is_none() {
                    late.push(row);
                } else {
                    run.push(row);
                }
            } else {
                run.push(row);
            }
            sources.observe(watermark, row as usize, time);
        }
        if !run.is_empty() {
            panes.entry((pane.start, end)).or_default().extend(run);
        }
        for (key, rows) in panes {
            self.add(key, arrival, rows)?;
        }
        Ok(late)
    }

    /// Where rows of these times belong, if they are all of one pane, and none of them can bring the
    /// watermark to the end of its first open window. So it is with nearly all batches.
    fn key_of_all(&self, times: &[i64], watermark: &mut Watermark) -> Option<Key> {
        let (least, most) = (*times.iter().min()?, *times.iter().max()?);
        let pane = self.window.pane_of(least);
        let end = self.open_end(pane, watermark)?;
        let in_it = most < pane.end && watermark.at_most(most) < Some(end);
        in_it.then_some((pane.start, end))
    }

    /// End of the first window of a pane that is not over.
    fn open_end(&self, pane: Bounds, watermark: &mut Watermark) -> Option<i64> {
        let first = self.window.first_end(pane, None)?;
        if watermark.has_passed(first) {
            self.window.first_end(pane, watermark.current())
        } else {
            Some(first)
        }
    }

    pub(super) fn refill(
        &mut self,
        arrival: &Arrival,
        known: usize,
        closed: Option<i64>,
    ) -> Result<u64, StreamError> {
        let mut panes: BTreeMap<Key, Vec<u32>> = BTreeMap::new();
        for (row, &time) in (0_u32..).zip(&arrival.columns.times()[..known]) {
            // A window that is open now was open when the row came: a row that was late has none.
            let pane = self.window.pane_of(time);
            if let Some(end) = self.window.first_end(pane, closed) {
                panes.entry((pane.start, end)).or_default().push(row);
            }
        }
        let mut refilled = 0;
        for (key, rows) in panes {
            refilled += rows.len() as u64;
            self.add(key, arrival, rows)?;
        }
        Ok(refilled)
    }

    fn add(&mut self, key: Key, arrival: &Arrival, rows: Vec<u32>) -> Result<(), StreamError> {
        self.rows += rows.len() as u64;
        if let Some(folding) = &mut self.folding {
            folding.touched.insert(key);
        }
        let piece = self.pieces.entry(key).or_insert_with(|| {
            let piece = Piece::new(self.tables);
            self.weight.add(piece.weight());
            self.ends.insert(key.1);
            self.open.add(key.1, self.window.last_end(self.window.pane_of(key.0)));
            piece
        });
        self.weight.take(piece.weight());
        let added = piece.add(arrival, rows);
        self.weight.add(piece.weight());
        added
    }

    /// Folds the pieces that have become full and, with `may_store`, says what is to be stored of
    /// all where that pays. Rows over which the SQL fails stay: their windows say so.
    pub(super) async fn fold(&mut self, query: &mut Query, may_store: bool) {
        let Some(folding) = &mut self.folding else {
            return;
        };
        let tight = self.weight.rows > folding.memory_max / 4;
        let (limits, mut size) = (folding.limits, folding.size);
        let keys: Vec<Key> = if tight {
            folding.touched.clear();
            self.pieces.keys().copied().collect()
        } else {
            std::mem::take(&mut folding.touched).into_iter().collect()
        };
        let mut folded = false;
        for key in keys {
            let full = |piece: &Piece| piece.is_full(&limits, size, tight);
            if self.pieces.get(&key).is_some_and(full) {
                folded |= self.fold_piece(key, query).await.is_ok();
                size = self.pieces.get(&key).and_then(Piece::size).unwrap_or(size);
            }
        }
        if let Some(folding) = &mut self.folding {
            folding.size = size;
        }
        if folded && may_store {
            self.store(query).await;
        }
    }

    async fn fold_piece(&mut self, key: Key, query: &mut Query) -> Result<(), SqlError> {
        let Some(piece) = self.pieces.get_mut(&key) else {
            return Ok(());
        };
        self.weight.take(piece.weight());
        let folded = piece.fold(query).await;
        self.weight.add(piece.weight());
        folded
    }

    /// Stores the state of every piece that has rows which none covers, where the rows weigh
    /// enough more than the states. All or nothing: a state stands for its rows up to one position.
    async fn store(&mut self, query: &mut Query) {
        let Some(limits) = self.folding.as_ref().map(|folding| folding.limits) else {
            return;
        };
        if !limits.store(self.weight) {
            return;
        }
        let dirty = |(key, piece): (&Key, &Piece)| (piece.weight().unstored > 0).then_some(*key);
        let keys: Vec<Key> = self.pieces.iter().filter_map(dirty).collect();
        for key in &keys {
            if self.fold_piece(*key, query).await.is_err() {
                return;
            }
        }
        let Some(folding) = self.folding.as_mut().filter(|_| limits.store(self.weight)) else {
            return;
        };
        let mut written = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(piece) = self.pieces.get(&key) else {
                continue;
            };
            match piece.write(key, &folding.schema) {
                Ok(bytes) => written.push((key, bytes)),
                Err(_) => return,
            }
        }
        for (key, bytes) in written {
            let Some(piece) = self.pieces.get_mut(&key) else {
                continue;
            };
            self.weight.take(piece.weight());
            piece.is_stored(folding.snapshots.put(piece.stored(), bytes));
            self.weight.add(piece.weight());
        }
    }

    /// Takes out the earliest window if the watermark `mark` has come to its end.
    pub(super) async fn close(&mut self, mark: i64, query: &mut Query) -> Option<Closed> {
        let end = *self.ends.first()?;
        if end > mark {
            return None;
        }
        self.ends.pop_first();
        self.open.close(end);
        let bounds = self.window.ending_at(end);
        let range = (bounds.start, i64::MIN)..(end, i64::MIN);
        let in_it = |(key, _): &(&Key, &Piece)| key.1 <= end;
        let keys: Vec<Key> = self.pieces.range(range).filter(in_it).map(|(key, _)| *key).collect();
        let input = if self.folding.is_some() {
            self.input_of(bounds, &keys, query).await.unwrap_or_else(Input::Failed)
        } else {
            Input::Rows(self.rows_of(&keys))
        };
        let (mut mix, mut done) = (Mix::default(), Vec::new());
        for key in keys {
            mix.merge(self.pieces.get(&key).map_or(Mix::default(), Piece::mix));
            match self.window.first_end(self.window.pane_of(key.0), Some(end)) {
                Some(next) => {
                    self.ends.insert(next);
                }
                None => done.push(key),
            }
        }
        let settled = self.forget(&done);
        if let Some(folding) = &mut self.folding {
            let next = self.ends.first().map(|end| self.window.ending_at(*end).start);
            folding.blocks.forget(next.map_or(i64::MAX, |start| self.window.pane_index(start)));
        }
        if !matches!(input, Input::Failed(_)) && self.folding.is_some() {
            self.store(query).await;
        }
        Some(Closed { bounds, input, settled, quality: mix.worst() })
    }

    /// The rows of pieces, by table.
    fn rows_of(&self, keys: &[Key]) -> Vec<Vec<RecordBatch>> {
        let of = |table: usize| {
            let pieces = keys.iter().filter_map(|key| self.pieces.get(key));
            pieces.flat_map(|piece| piece.batches(table).iter().cloned()).collect()
        };
        (0..self.tables).map(of).collect()
    }

    /// Lets go of pieces whose last window was computed. Gives back how many rows they stood for.
    fn forget(&mut self, keys: &[Key]) -> u64 {
        let mut settled = 0;
        for piece in keys.iter().filter_map(|key| self.pieces.remove(key)) {
            settled += piece.mix().rows();
            self.weight.take(piece.weight());
            if let (Some(folding), Some(stored)) = (&mut self.folding, piece.stored()) {
                folding.snapshots.remove(stored);
            }
        }
        self.rows -= settled;
        settled
    }

    /// What a window is computed from, where rows are folded.
    async fn input_of(
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
            return Ok(Input::Unordered((0..self.tables).map(of).collect::<Result<_, _>>()?));
        }
        for key in keys {
            self.fold_piece(*key, query).await?;
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
        let (left, middle, right) = parts(&cover(first..first + self.window.panes_in(bounds)));
        let mut states = Vec::new();
        for place in left {
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

    pub(super) fn first_end(&self) -> Option<i64> {
        self.ends.first().copied()
    }

    pub(super) fn first_position(&self, table: usize) -> Option<u64> {
        self.pieces.values().filter_map(|piece| piece.first_position(table)).min()
    }

    pub(super) fn bytes(&self) -> usize {
        self.weight.held + self.folding.as_ref().map_or(0, |folding| folding.blocks.bytes())
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Open windows that have rows.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether states of pieces are stored, or will be with the next progress.
    pub(super) fn stores(&self) -> bool {
        self.pieces.values().any(|piece| piece.stored().is_some())
    }

    /// What has changed of the stored states since it was last taken.
    pub(super) fn changes(&self) -> Vec<StateChange> {
        self.folding.as_ref().map_or(Vec::new(), |folding| folding.snapshots.changes())
    }

    /// Those changes are on their way into the store.
    pub(super) fn submitted(&mut self) {
        if let Some(folding) = &mut self.folding {
            folding.snapshots.submitted();
        }
    }

    /// Takes up stored states before the refill, all of which belong to windows that end after
    /// `closed`. Gives back how many rows they stand for.
    pub(super) fn load(
        &mut self,
        states: &[(u64, Bytes)],
        closed: Option<i64>,
    ) -> Result<u64, StreamError> {
        let mut rows = 0;
        for (stored, bytes) in states {
            let Some(folding) = &mut self.folding else {
                return Err(StreamError::Progress("states of a query that has none".into()));
            };
            let (key, piece) = Piece::read(bytes, *stored, self.tables, &folding.schema)?;
            folding.snapshots.loaded(*stored);
            let pane = self.window.pane_of(key.0);
            let Some(end) = self.window.first_end(pane, closed).filter(|_| pane.start == key.0)
            else {
                return Err(StreamError::Progress("a pane's state is of no open window".into()));
            };
            self.ends.insert(end.max(key.1));
            self.open.add(end.max(key.1), self.window.last_end(pane));
            rows += piece.mix().rows();
            self.weight.add(piece.weight());
            self.pieces.insert(key, piece);
        }
        self.rows += rows;
        Ok(rows)
    }
}

#[cfg(test)]
impl Aligned {
    /// Folds and stores as often as is possible, or by these limits.
    pub(super) fn limit(&mut self, limits: Limits) {
        if let Some(folding) = &mut self.folding {
            folding.limits = limits;
        }
    }
}
