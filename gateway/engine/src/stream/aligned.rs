//! Windows whose bounds follow from the time alone: tumbling, hopping, cumulative.
//!
//! Promise: a row is held once, in its pane; a window is a run of panes. A row belongs to those of
//! its windows that are not over when it comes, and is late when none is left. Rows of one pane
//! that came while other windows were open lie apart, so that a row that is too late for a window
//! is not in it although a batch brought it before that window was computed; and so what a window
//! was computed from does not change any more when the next one is.
//!
//! Where the query can be computed in pieces, panes are folded into states (`piece`), and states
//! of many panes are merged once (`blocks`). Where it goes by the order of rows, they are folded as
//! far as the watermark has passed them, and a row before that is late (`passed`). Rows of a SELECT that asks for no order then come in
//! the order in which their groups first came, pane after pane.

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;

use super::StreamError;
use super::blocks::Blocks;
use super::ends::OpenEnds;
use super::frames::{Closed, Input, Sources};
use super::passed::Passed;
use super::piece::{Limits, Piece, Size, Weight};
use super::refill::Arrival;
use super::rows::Mix;
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
    pub(super) window: Window,
    /// The tables' columns of event time.
    pub(super) times: Vec<usize>,
    pub(super) passed: Passed,
    pub(super) pieces: BTreeMap<Key, Piece>,
    /// For each pane the end of its next window; windows without rows are not in here.
    ends: BTreeSet<i64>,
    open: OpenEnds,
    weight: Weight,
    rows: u64,
    pub(super) folding: Option<Folding>,
}

/// What is needed where rows are folded.
#[derive(Debug)]
pub(super) struct Folding {
    /// The columns of states.
    schema: SchemaRef,
    pub(super) blocks: Blocks,
    snapshots: Snapshots,
    /// Pieces to which rows were added since the last fold.
    touched: BTreeSet<Key>,
    limits: Limits,
    /// How large the state was that rows were last folded into because there were enough.
    size: Size,
    /// Bytes that the stream may hold.
    memory_max: usize,
    /// What is stored is damaged: all of it is to be written again.
    anew: bool,
}

impl Aligned {
    /// `times` are the tables' columns of event time, `states` those of what rows are folded into,
    /// where they are; `ordered` says whether that goes by their order. `memory_max` is how many bytes
    /// the stream may hold.
    pub(super) fn new(
        window: Window,
        times: Vec<usize>,
        states: Option<SchemaRef>,
        ordered: bool,
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
            anew: false,
        });
        Self {
            open: OpenEnds::new(window.end_step()),
            window,
            passed: Passed::new(times.len(), ordered),
            times,
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
        let (mut end, mut is_open, mut run): (i64, bool, Vec<u32>) = (0, false, Vec::new());
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
                is_open = open.is_some();
            }
            if is_open && !self.passed.is_behind(time, watermark) {
                run.push(row);
            } else {
                late.push(row);
                self.note_late(arrival, row, pane, watermark);
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
        if self.passed.ordered && !watermark.none_is_behind(times) {
            return None;
        }
        let (least, most) = (*times.iter().min()?, *times.iter().max()?);
        let pane = self.window.pane_of(least);
        let end = self.open_end(pane, watermark)?;
        let in_it = most < pane.end && watermark.at_most(most) < Some(end);
        in_it.then_some((pane.start, end))
    }

    /// End of the first window of a pane that is not over and may get rows.
    fn open_end(&self, pane: Bounds, watermark: &mut Watermark) -> Option<i64> {
        let first = self.window.first_end(pane, None)?;
        if !watermark.has_passed(first) {
            Some(first)
        } else if self.passed.ordered {
            None
        } else {
            self.window.first_end(pane, watermark.current())
        }
    }

    /// Remembers a late row which would otherwise find a window after a restart.
    fn note_late(&mut self, arrival: &Arrival, row: u32, pane: Bounds, watermark: &Watermark) {
        if self.passed.ordered && self.window.first_end(pane, watermark.current()).is_some() {
            self.passed.note_late(arrival.table, arrival.position + u64::from(row));
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
            // A window that is open now was open when the row came: a row that was late has none, or
            // is known.
            let pane = self.window.pane_of(time);
            let place = (arrival.table, arrival.position + u64::from(row));
            if let Some(end) = self.window.first_end(pane, closed)
                && !self.passed.has(&self.window, pane, place, time)
            {
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
            let piece = Piece::new(self.times.len());
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
    /// all where that pays. Rows over which the SQL fails stay: their windows say so. The watermark
    /// is at `mark`, and all rows below the positions `processed` have come.
    pub(super) async fn fold(
        &mut self,
        query: &mut Query,
        may_store: bool,
        mark: Option<i64>,
        processed: &[u64],
    ) {
        self.passed.come_to(mark, processed);
        let Some(folding) = &mut self.folding else {
            return;
        };
        if self.passed.ordered && !may_store {
            // What is read again comes in the order of the log: rows before these may follow.
            return;
        }
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
                let cut = self.cut(key);
                folded |= self.fold_piece(key, cut, query).await.is_ok();
                size = self.pieces.get(&key).and_then(Piece::size).unwrap_or(size);
            }
        }
        let mut anew = false;
        if let Some(folding) = &mut self.folding {
            folding.size = size;
            anew = folding.anew;
        }
        if (folded || anew) && may_store {
            self.store(query).await;
        }
    }

    /// Before which time the rows of a piece may be folded.
    fn cut(&self, key: Key) -> i64 {
        self.passed.cut(&self.window, self.window.pane_of(key.0))
    }

    pub(super) async fn fold_piece(
        &mut self,
        key: Key,
        before: i64,
        query: &mut Query,
    ) -> Result<(), SqlError> {
        let Some(piece) = self.pieces.get_mut(&key) else {
            return Ok(());
        };
        self.weight.take(piece.weight());
        let folded = piece.fold(query, before, &self.times).await;
        self.weight.add(piece.weight());
        folded
    }

    /// Whether storing states pays.
    fn pays(&self) -> bool {
        let Some(folding) = &self.folding else {
            return false;
        };
        let Weight { rows, unstored, states, states_of_rows, .. } = self.weight;
        if self.passed.ordered {
            // Rows that are not passed are read again in any case. What was folded is held as rows
            // again after a restart, until all of it is back.
            folding.limits.store(unstored, states) || unstored >= folding.memory_max / 4
        } else {
            folding.limits.store(unstored + rows, states + states_of_rows)
        }
    }

    /// Stores the state of every piece that has rows which none covers, where the rows weigh
    /// enough more than the states. All or nothing: a state stands for its rows up to one position,
    /// and up to one time where they go by their order.
    async fn store(&mut self, query: &mut Query) {
        let anew = self.is_anew();
        if !anew && !self.pays() {
            return;
        }
        let has_rows = |(key, piece): (&Key, &Piece)| (piece.weight().rows > 0).then_some(*key);
        let keys: Vec<Key> = self.pieces.iter().filter_map(has_rows).collect();
        for key in keys {
            let cut = self.cut(key);
            if self.fold_piece(key, cut, query).await.is_err() {
                return;
            }
        }
        let pays = anew || self.pays();
        let Some(folding) = self.folding.as_mut().filter(|_| pays) else {
            return;
        };
        let is_new = |(key, piece): (&Key, &Piece)| {
            let again = anew && piece.stored().is_some();
            (again || piece.weight().unstored > 0).then_some(*key)
        };
        let keys: Vec<Key> = self.pieces.iter().filter_map(is_new).collect();
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
        folding.anew = false;
        self.passed.is_stored();
    }

    /// Whether all states are to be written again, and there are any.
    fn is_anew(&mut self) -> bool {
        let stores = self.stores();
        let Some(folding) = &mut self.folding else {
            return false;
        };
        folding.anew &= stores;
        folding.anew
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
        (0..self.times.len()).map(of).collect()
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

    pub(super) fn first_end(&self) -> Option<i64> {
        self.ends.first().copied()
    }

    pub(super) fn first_position(&self, table: usize) -> Option<u64> {
        self.pieces.values().filter_map(|piece| piece.first_position(table)).min()
    }

    pub(super) fn bytes(&self) -> usize {
        let blocks = self.folding.as_ref().map_or(0, |folding| folding.blocks.bytes());
        self.weight.held + blocks + self.passed.bytes()
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

    /// What is stored is damaged: with the next fold all of it is written again, as of then.
    pub(super) fn store_anew(&mut self) {
        if let Some(folding) = &mut self.folding {
            folding.anew = true;
        }
    }

    /// What has changed of the stored states since it was last taken.
    pub(super) fn changes(&self) -> Vec<StateChange> {
        self.folding.as_ref().map_or(Vec::new(), |folding| folding.snapshots.changes())
    }

    /// What a restart must know beside rows and states. Rows are read again from `needed` on.
    pub(super) fn save(&self, needed: &[u64]) -> Vec<u8> {
        self.passed.save(needed, self.stores())
    }

    /// Takes up what [`Aligned::save`] gave, before states and rows.
    pub(super) fn resume(
        &mut self,
        saved: &[u8],
        places: &[Option<usize>],
    ) -> Result<(), StreamError> {
        self.passed.load(saved, places)
    }

    /// Those changes are on their way into the store.
    pub(super) fn submitted(&mut self, needed: &[u64]) {
        self.passed.forget(needed);
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
            let (key, piece) = Piece::read(bytes, *stored, self.times.len(), &folding.schema)?;
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
        self.passed.is_loaded();
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
