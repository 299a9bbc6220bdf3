//! A piece of a pane: its rows, and in place of most of them the states that they were folded into.
//!
//! Promise: states and rows together stand for all rows that were added; what both weigh is known
//! in bytes, and so is what of them no stored state covers yet. A fold that fails leaves the rows
//! where they were; one that takes rows up to a time only leaves the others. It knows neither
//! windows nor when to fold.

use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;

use super::StreamError;
use super::aligned::Key;
use super::progress::Reader;
use super::refill::Arrival;
use super::rows::{Held, Mix, in_large_batches};
use crate::bytes::batch_bytes;
use crate::sql::{Query, SqlError};

/// What a piece costs beside its rows and states, in bytes.
const PIECE_COST: usize = 256;
/// What an array costs beside its values, in bytes: the object, its buffers' heads, padding.
const ARRAY_COST: usize = 256;
/// What the schema and the head of a stored state cost for each column, in bytes, at most.
const STORED_COLUMN: usize = 384;
const STORED_HEAD: usize = 512;

/// When rows are folded and states stored.
///
/// Each fold begins with an empty table of groups and gives a state for each, so few rows at once
/// cost more for each row: measured as a ratio to one aggregation over all rows, with 10 groups
/// 0.52 for 1,000 rows, 0.85 for 8,192 and 0.93 for 50,000; with 1,000 groups 0.23, 0.68 and 0.90.
/// Wide rows cost more to aggregate, so they are few for as good a ratio: what counts is bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Rows are folded when there are so many, which bounds what is left to do when a window
    /// closes …
    pub(super) fold_rows: usize,
    /// … and so many for each group.
    pub(super) fold_rows_per_group: usize,
    /// … or when they weigh so much in bytes,
    pub(super) fold_bytes: usize,
    /// and so much for each group, up to
    pub(super) fold_bytes_per_group: usize,
    /// so much in all; but never before they weigh twice what would stand in their place.
    pub(super) fold_bytes_max: usize,
    /// Below so many bytes of rows no state is stored: they are read again in a moment.
    pub(super) store_bytes: usize,
    /// Rows weigh so many times as much as stored states that stand for them. A state is written
    /// with its commit and may be once more with a checkpoint: no more than a quarter of what the
    /// rows cost on flash.
    pub(super) rows_per_state: usize,
}

impl Limits {
    /// For a stream that may hold `memory_max` bytes.
    pub(super) fn new(memory_max: usize) -> Self {
        Self {
            fold_rows: 65_536,
            fold_rows_per_group: 150,
            fold_bytes: (4 << 20).min(memory_max / 8),
            fold_bytes_per_group: 6 << 10,
            fold_bytes_max: (8 << 20).min(memory_max / 8),
            store_bytes: 64 << 10,
            rows_per_state: 8,
        }
    }

    /// Whether so many rows, which weigh so much, are enough to be folded into states of this size.
    fn full(&self, rows: usize, bytes: usize, size: Size) -> bool {
        let per_group = self.fold_bytes_per_group.saturating_mul(size.groups);
        let worth = self.fold_bytes.max(per_group.min(self.fold_bytes_max)).max(2 * size.bytes);
        let many = self.fold_rows.max(self.fold_rows_per_group.saturating_mul(size.groups));
        rows >= many || bytes >= worth
    }

    /// Whether states should be stored that weigh so much and stand for so many bytes of rows.
    pub(super) fn store(&self, unstored: usize, states: usize) -> bool {
        unstored >= self.store_bytes && unstored >= self.rows_per_state.saturating_mul(states)
    }
}

/// How large a state is that stands for all rows of a pane.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Size {
    groups: usize,
    bytes: usize,
}

/// Rows of one pane that came while the same window was the first of its open ones.
#[derive(Debug)]
pub(super) struct Piece {
    /// Rows that are not folded.
    held: Held,
    /// The mix of those that are.
    folded: Mix,
    /// Where in each table's log those begin that no stored state covers.
    unstored_from: Vec<Option<u64>>,
    /// Bytes of those.
    unstored: usize,
    /// Rows that the last fold left, and their bytes.
    left: (usize, usize),
    /// In the order of the rows that they stand for.
    states: Vec<RecordBatch>,
    states_bytes: usize,
    /// Rows of a state once it had one for each group.
    groups: usize,
    /// The key of what is stored of it.
    stored: Option<u64>,
    /// Rows at which a fold is tried next, where one has failed.
    retry: usize,
}

/// What pieces weigh together, in bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weight {
    /// In memory.
    pub(super) held: usize,
    /// Of that, rows that are not folded.
    pub(super) rows: usize,
    /// Rows that are folded and that no stored state covers: they are still needed from the log.
    pub(super) unstored: usize,
    /// What storing the states of those would take, at most.
    pub(super) states: usize,
    /// What more it would take if all rows were folded.
    pub(super) states_of_rows: usize,
}

impl Weight {
    pub(super) fn add(&mut self, other: Self) {
        self.held += other.held;
        self.rows += other.rows;
        self.unstored += other.unstored;
        self.states += other.states;
        self.states_of_rows += other.states_of_rows;
    }

    pub(super) fn take(&mut self, other: Self) {
        self.held -= other.held;
        self.rows -= other.rows;
        self.unstored -= other.unstored;
        self.states -= other.states;
        self.states_of_rows -= other.states_of_rows;
    }
}

impl Piece {
    pub(super) fn new(tables: usize) -> Self {
        Self {
            held: Held::new(tables),
            folded: Mix::default(),
            unstored_from: vec![None; tables],
            unstored: 0,
            left: (0, 0),
            states: Vec::new(),
            states_bytes: 0,
            groups: 0,
            stored: None,
            retry: 0,
        }
    }

    pub(super) fn weight(&self) -> Weight {
        let columns = self.states.first().map_or(0, RecordBatch::num_columns);
        // Rows that are not folded may become as many states.
        let waiting = if self.states.is_empty() { self.held.bytes() } else { 0 };
        let stored = self.states_bytes + columns * STORED_COLUMN + STORED_HEAD + waiting;
        let (is_new, has_rows) = (self.unstored > 0, self.held.rows() > 0);
        Weight {
            held: PIECE_COST + self.held.bytes() + self.states_bytes,
            rows: self.held.bytes(),
            unstored: self.unstored,
            states: if is_new { stored } else { 0 },
            states_of_rows: if has_rows && !is_new { stored } else { 0 },
        }
    }

    pub(super) fn mix(&self) -> Mix {
        let mut mix = self.folded;
        mix.merge(self.held.mix());
        mix
    }

    /// Lowest log position of a table's row that no stored state covers.
    pub(super) fn first_position(&self, table: usize) -> Option<u64> {
        let held = self.held.first_position(table);
        held.into_iter().chain(self.unstored_from[table]).min()
    }

    /// A table's rows that are not folded, in arrival order.
    pub(super) fn batches(&self, table: usize) -> &[RecordBatch] {
        self.held.batches(table)
    }

    /// States in place of rows, in the order of the rows.
    pub(super) fn states(&self) -> &[RecordBatch] {
        &self.states
    }

    /// Under which key a state is stored.
    pub(super) fn stored(&self) -> Option<u64> {
        self.stored
    }

    pub(super) fn add(&mut self, arrival: &Arrival, rows: Vec<u32>) -> Result<(), StreamError> {
        self.held.add(arrival.table, arrival.position, &arrival.columns, rows)
    }

    /// Whether its rows should be folded, where panes before it came to states of size `before`;
    /// with `tight` all should that can be.
    pub(super) fn is_full(&self, limits: &Limits, before: Size, tight: bool) -> bool {
        let (rows_left, bytes_left) = self.left;
        let rows = self.held.rows().saturating_sub(rows_left);
        let bytes = self.held.bytes().saturating_sub(bytes_left);
        // Those that were left are looked at again each time.
        let worth = rows > 0 && rows >= rows_left / 8;
        let size = self.size().unwrap_or(before);
        let full = tight && worth || limits.full(rows, bytes, size);
        full && self.held.rows() > self.retry
    }

    /// How large its state is or would be; `None` where nothing was folded.
    pub(super) fn size(&self) -> Option<Size> {
        let rows: usize = self.states.iter().map(RecordBatch::num_rows).sum();
        let bytes = self.states_bytes.saturating_mul(self.groups).checked_div(rows)?;
        Some(Size { groups: self.groups, bytes })
    }

    /// Folds the rows whose time is before `before`, and brings states down to one a group where
    /// they have grown to more than twice that. `times` are the tables' columns.
    pub(super) async fn fold(
        &mut self,
        query: &mut Query,
        before: i64,
        times: &[usize],
    ) -> Result<(), SqlError> {
        let Some(table) = query.folded_table() else {
            return Ok(());
        };
        let rows = self.held.rows();
        if rows == 0 {
            return Ok(());
        }
        let (behind, ahead) = self.held.split(before, times)?;
        // Rows of other tables are in the mix, and nothing else asks for them.
        let batches = in_large_batches(behind.batches(table))?;
        if !batches.is_empty() {
            self.retry = 2 * rows;
            let states = query.fold(batches).await?;
            self.retry = 0;
            self.groups = self.groups.max(states.num_rows());
            if states.num_rows() > 0 {
                self.states_bytes += states_bytes(&states);
                self.states.push(states);
            }
        }
        self.folded.merge(behind.mix());
        self.unstored += behind.bytes();
        for (table, from) in self.unstored_from.iter_mut().enumerate() {
            *from = behind.first_position(table).into_iter().chain(*from).min();
        }
        self.left = (ahead.rows(), ahead.bytes());
        self.held = ahead;
        let rows: usize = self.states.iter().map(RecordBatch::num_rows).sum();
        if rows > 2 * self.groups { self.reduce(query).await } else { Ok(()) }
    }

    /// Brings states down to one row a group.
    pub(super) async fn reduce(&mut self, query: &mut Query) -> Result<(), SqlError> {
        if self.states.len() > 1 {
            let states = query.reduce(self.states.clone()).await?;
            self.groups = states.num_rows();
            self.states_bytes = states_bytes(&states);
            self.states = vec![states];
        }
        Ok(())
    }

    /// Its state as bytes, which stands for the rows that are folded.
    pub(super) fn write(&self, key: Key, schema: &SchemaRef) -> Result<Bytes, SqlError> {
        let mut out = vec![VERSION];
        let [good, bad, rows] = self.folded.counts();
        for number in [key.0.cast_unsigned(), key.1.cast_unsigned(), good, bad, rows] {
            out.extend(number.to_le_bytes());
        }
        let options = IpcWriteOptions::try_new(8, false, arrow::ipc::MetadataVersion::V5)?;
        let mut writer = StreamWriter::try_new_with_options(out, schema, options)?;
        for states in &self.states {
            writer.write(states)?;
        }
        Ok(Bytes::from(writer.into_inner()?))
    }

    /// What [`Piece::write`] gave, stored under `stored`.
    pub(super) fn read(
        bytes: &[u8],
        stored: u64,
        tables: usize,
        schema: &SchemaRef,
    ) -> Result<(Key, Self), StreamError> {
        let refused = |what: String| StreamError::Progress(format!("a pane's state: {what}"));
        let mut rest = Reader(bytes);
        let version = rest.take::<1>()?[0];
        if version != VERSION {
            return Err(refused(format!("version {version}, not {VERSION}")));
        }
        let key = (rest.u64()?.cast_signed(), rest.u64()?.cast_signed());
        let mix = Mix::of([rest.u64()?, rest.u64()?, rest.u64()?]);
        let reader = StreamReader::try_new(std::io::Cursor::new(rest.0), None);
        let reader = reader.map_err(|error| refused(error.to_string()))?;
        let mut states = Vec::new();
        for batch in reader {
            let batch = batch.map_err(|error| refused(error.to_string()))?;
            if batch.schema().fields() != schema.fields() {
                return Err(refused("its columns are not those of the query's states".into()));
            }
            states.push(batch);
        }
        let groups = states.iter().map(RecordBatch::num_rows).max().unwrap_or(0);
        let piece = Self {
            folded: mix,
            states_bytes: states.iter().map(states_bytes).sum(),
            states,
            groups,
            stored: Some(stored),
            ..Self::new(tables)
        };
        Ok((key, piece))
    }

    /// The rows that are folded are covered by the state that is stored under `key`.
    pub(super) fn is_stored(&mut self, key: u64) {
        self.stored = Some(key);
        self.unstored = 0;
        self.unstored_from.fill(None);
    }
}

const VERSION: u8 = 1;

/// What states weigh in memory.
pub(super) fn states_bytes(states: &RecordBatch) -> usize {
    batch_bytes(states) + states.num_columns() * ARRAY_COST
}
