//! Rows of windows whose bounds depend on the rows: each is found by its log position.
//!
//! Promise: a row is held once however many windows it is in, until it is let go; a batch of which
//! few rows are left is copied down to these, and small batches are joined, so that what is held
//! is near what is needed. It knows no windows.

use std::collections::BTreeMap;

use arrow::array::UInt32Array;
use arrow::compute::{concat_batches, interleave_record_batch, take_record_batch};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

use super::StreamError;
use super::rows::{Columns, SMALL_BATCHES, SMALL_ROWS};
use crate::bytes::batch_bytes;

/// What a batch costs beside its rows, in bytes, and each row beside its values.
const BATCH_COST: usize = 256;
const ROW_COST: usize = size_of::<bool>();

/// A batch is copied down when fewer than one in so many of its rows is left.
const LEFT_MIN: usize = 4;

/// The rising log positions of a batch's rows.
#[derive(Debug)]
enum Positions {
    /// One after the other from this one on.
    From(u64),
    /// One for each row.
    Each(Vec<u64>),
}

impl Positions {
    fn new(positions: Vec<u64>) -> Self {
        match (positions.first(), positions.last()) {
            (Some(first), Some(last)) if last - first + 1 == positions.len() as u64 => {
                Self::From(*first)
            }
            _ => Self::Each(positions),
        }
    }

    fn of(&self, row: usize) -> u64 {
        match self {
            Self::From(first) => first + row as u64,
            Self::Each(positions) => positions[row],
        }
    }

    /// The row at a position, of so many.
    fn row(&self, position: u64, rows: usize) -> Option<usize> {
        match self {
            Self::From(first) => {
                let row = usize::try_from(position.checked_sub(*first)?).ok()?;
                (row < rows).then_some(row)
            }
            Self::Each(positions) => positions.binary_search(&position).ok(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::From(_) => 0,
            Self::Each(positions) => positions.len() * size_of::<u64>(),
        }
    }
}

#[derive(Debug)]
struct Slot {
    positions: Positions,
    batch: RecordBatch,
    gone: Vec<bool>,
    /// The first row that is left.
    head: usize,
    left: usize,
    bytes: usize,
}

impl Slot {
    fn new(positions: Vec<u64>, batch: RecordBatch) -> Self {
        let (rows, positions) = (batch.num_rows(), Positions::new(positions));
        let bytes = BATCH_COST + batch_bytes(&batch) + ROW_COST * rows + positions.bytes();
        Self { positions, batch, gone: vec![false; rows], head: 0, left: rows, bytes }
    }

    fn row(&self, position: u64) -> Option<usize> {
        self.positions.row(position, self.gone.len())
    }

    /// The first position that is left.
    fn first(&self) -> Option<u64> {
        (self.head < self.gone.len()).then(|| self.positions.of(self.head))
    }

    /// The rows that are left.
    fn shrunk(&self) -> Result<(Vec<u64>, RecordBatch), ArrowError> {
        let rows = (0_u32..).zip(&self.gone).filter(|(_, gone)| !**gone).map(|(row, _)| row);
        let rows: Vec<u32> = rows.collect();
        let positions = rows.iter().map(|row| self.positions.of(*row as usize)).collect();
        Ok((positions, take_record_batch(&self.batch, &UInt32Array::from(rows))?))
    }
}

/// What is left in these, in one.
fn together<'a>(slots: impl Iterator<Item = &'a Slot>) -> Result<Slot, ArrowError> {
    let (mut positions, mut batches) = (Vec::new(), Vec::new());
    for slot in slots {
        let (some, rows) = slot.shrunk()?;
        positions.extend(some);
        batches.push(rows);
    }
    let Some(first) = batches.first() else {
        return Err(ArrowError::ComputeError("nothing to put together".into()));
    };
    Ok(Slot::new(positions, concat_batches(first.schema_ref(), &batches)?))
}

/// The rows of one table, by the position of the first in each batch.
#[derive(Debug, Default)]
struct Table {
    slots: BTreeMap<u64, Slot>,
    /// Small batches at the end, one after the other.
    small: usize,
}

/// Rows of all tables.
#[derive(Debug)]
pub(super) struct Kept {
    tables: Vec<Table>,
    bytes: usize,
}

impl Kept {
    pub(super) fn new(tables: usize) -> Self {
        Self { tables: (0..tables).map(|_| Table::default()).collect(), bytes: 0 }
    }

    /// How many tables there are.
    pub(super) fn tables(&self) -> usize {
        self.tables.len()
    }

    /// What the rows weigh in memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Lowest log position of a table's row that is left.
    pub(super) fn first_position(&self, table: usize) -> Option<u64> {
        self.tables[table].slots.values().next()?.first()
    }

    /// Holds these rows of a batch whose first has log position `position`. Rows of one table come
    /// in the order of their positions.
    pub(super) fn add(
        &mut self,
        table: usize,
        position: u64,
        columns: &Columns,
        rows: &[u32],
    ) -> Result<(), StreamError> {
        if rows.is_empty() {
            return Ok(());
        }
        let positions: Vec<u64> = rows.iter().map(|row| position + u64::from(*row)).collect();
        let slot = Slot::new(positions, columns.take(rows.to_vec())?);
        let small = slot.batch.num_rows() < SMALL_ROWS;
        self.put(table, slot);
        let table = &mut self.tables[table];
        table.small = if small { table.small + 1 } else { 0 };
        if table.small >= SMALL_BATCHES {
            let (before, after) = table.join_small()?;
            self.bytes = self.bytes - before + after;
        }
        Ok(())
    }

    fn put(&mut self, table: usize, slot: Slot) {
        if let Some(first) = slot.first() {
            self.bytes += slot.bytes;
            self.tables[table].slots.insert(first, slot);
        }
    }

    /// Lets a row go.
    pub(super) fn free(&mut self, table: usize, position: u64) {
        let slots = &mut self.tables[table].slots;
        let Some((&first, slot)) = slots.range_mut(..=position).next_back() else {
            return;
        };
        match slot.row(position) {
            Some(row) if !slot.gone[row] => slot.gone[row] = true,
            _ => return,
        }
        slot.left -= 1;
        if slot.left == 0 {
            self.bytes -= slot.bytes;
            slots.remove(&first);
            return;
        }
        while slot.gone[slot.head] {
            slot.head += 1;
        }
        let few = slot.left * LEFT_MIN <= slot.gone.len() && slot.gone.len() >= SMALL_ROWS;
        if !few {
            return;
        }
        // Where rows cannot be copied, they stay as they are.
        let before = slots.range(..first).next_back();
        let before = before.filter(|(_, other)| other.gone.len() < SMALL_ROWS).map(|(at, _)| *at);
        let parts = before.into_iter().chain([first]).filter_map(|at| slots.get(&at));
        if let Ok(slot) = together(parts) {
            for at in before.into_iter().chain([first]) {
                self.bytes -= slots.remove(&at).map_or(0, |slot| slot.bytes);
            }
            self.put(table, slot);
        }
    }

    /// Rows of a table in the order of `positions`, all of which are held.
    pub(super) fn gather(
        &self,
        table: usize,
        positions: impl IntoIterator<Item = u64>,
    ) -> Result<Vec<RecordBatch>, ArrowError> {
        let slots = &self.tables[table].slots;
        let (mut batches, mut places): (Vec<&RecordBatch>, Vec<(usize, usize)>) = (vec![], vec![]);
        let mut known: BTreeMap<u64, usize> = BTreeMap::new();
        for position in positions {
            let found = slots.range(..=position).next_back();
            let place = found.and_then(|(first, slot)| Some((first, slot, slot.row(position)?)));
            let Some((first, slot, row)) = place else {
                let what = format!("the row at log position {position} is not held");
                return Err(ArrowError::ComputeError(what));
            };
            let batch = *known.entry(*first).or_insert_with(|| {
                batches.push(&slot.batch);
                batches.len() - 1
            });
            places.push((batch, row));
        }
        if places.is_empty() {
            return Ok(Vec::new());
        }
        Ok(vec![interleave_record_batch(&batches, &places)?])
    }
}

impl Table {
    /// Makes one batch of the small ones at the end, and gives back what they weighed and what it
    /// weighs. A poll of one row each second would otherwise hold an array for each value.
    fn join_small(&mut self) -> Result<(usize, usize), StreamError> {
        let small = self.slots.iter().rev().take(self.small);
        let small = small.take_while(|(_, slot)| slot.gone.len() < SMALL_ROWS);
        let small: Vec<u64> = small.map(|(first, _)| *first).collect();
        self.small = 0;
        if small.is_empty() {
            return Ok((0, 0));
        }
        let parts = small.iter().rev().filter_map(|first| self.slots.get(first));
        let slot = together(parts).map_err(|error| StreamError::Input(error.to_string()))?;
        let before = small.iter().filter_map(|first| self.slots.get(first)).map(|s| s.bytes).sum();
        for first in small {
            self.slots.remove(&first);
        }
        let after = slot.bytes;
        if let Some(first) = slot.first() {
            self.slots.insert(first, slot);
        }
        Ok((before, after))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{AsArray, TimestampMicrosecondArray, UInt64Array};
    use arrow::datatypes::{DataType, Field, Schema, TimeUnit, UInt64Type};

    use super::*;
    use crate::sql::TableSchema;

    fn table() -> TableSchema {
        let time = DataType::Timestamp(TimeUnit::Microsecond, None);
        let fields =
            vec![Field::new("time", time, false), Field::new("n", DataType::UInt64, false)];
        let schema = Arc::new(Schema::new(fields));
        TableSchema { name: "m".into(), schema, time_column: "time".into() }
    }

    /// Rows whose value is their log position.
    fn columns(positions: std::ops::Range<u64>) -> Columns {
        let times =
            TimestampMicrosecondArray::from_iter_values(positions.clone().map(u64::cast_signed));
        let values = UInt64Array::from_iter_values(positions);
        let batch =
            RecordBatch::try_new(table().schema, vec![Arc::new(times), Arc::new(values)]).unwrap();
        Columns::new(&table(), &batch).unwrap()
    }

    fn values(kept: &Kept, positions: &[u64]) -> Vec<u64> {
        let rows = kept.gather(0, positions.iter().copied()).unwrap();
        rows[0].column(1).as_primitive::<UInt64Type>().values().to_vec()
    }

    #[test]
    fn rows_are_found_by_position_until_they_go() {
        let mut kept = Kept::new(1);
        kept.add(0, 100, &columns(100..104), &[0, 2, 3]).unwrap();
        kept.add(0, 110, &columns(110..112), &[0, 1]).unwrap();
        assert_eq!(values(&kept, &[111, 100, 103, 102]), [111, 100, 103, 102]);
        assert!(kept.gather(0, [101]).is_err(), "it was never held");
        assert_eq!(kept.first_position(0), Some(100));
        for position in [100, 102, 102, 999, 5] {
            kept.free(0, position);
        }
        assert_eq!(values(&kept, &[103]), [103]);
        assert_eq!(kept.first_position(0), Some(103));
        kept.free(0, 103);
        assert_eq!(kept.first_position(0), Some(110));
        kept.free(0, 110);
        kept.free(0, 111);
        assert_eq!((kept.bytes(), kept.first_position(0)), (0, None));
    }

    #[test]
    fn what_is_held_stays_near_what_is_needed() {
        let mut kept = Kept::new(1);
        // 10 batches of 1,000 rows of 16 bytes, and one for each row beside them.
        for first in (0..10_000).step_by(1000) {
            let rows: Vec<u32> = (0..1000).collect();
            kept.add(0, first, &columns(first..first + 1000), &rows).unwrap();
        }
        assert_eq!(kept.bytes(), 10_000 * 17 + 10 * BATCH_COST);
        // One row in a thousand stays: ten rows in one batch.
        for position in (0..10_000).filter(|position| position % 1000 != 7) {
            kept.free(0, position);
        }
        let left: Vec<u64> = (0..10).map(|n| n * 1000 + 7).collect();
        assert_eq!(values(&kept, &left), left);
        assert!(kept.bytes() <= 10 * 4 * 25 + 2 * BATCH_COST, "{}", kept.bytes());
    }

    #[test]
    fn single_rows_are_joined() {
        let mut kept = Kept::new(1);
        for position in 0..640 {
            kept.add(0, position, &columns(position..position + 1), &[0]).unwrap();
        }
        assert_eq!(kept.bytes(), 640 * 17 + 10 * BATCH_COST);
        assert_eq!(values(&kept, &[639, 0, 64, 63]), [639, 0, 64, 63]);
        for position in 0..640 {
            kept.free(0, position);
        }
        assert_eq!(kept.bytes(), 0);
    }
}
