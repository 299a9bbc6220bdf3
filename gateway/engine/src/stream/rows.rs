//! The rows that open windows hold, and a batch's columns as the stream reads them.
//!
//! Promise: rows of one table stay in arrival order until their window closes, then come sorted by
//! event time, rows of equal time in arrival order. What they weigh is known in bytes. A pane
//! keeps whole batches as they are and copies parts of them, so that no pane holds another's
//! rows in memory. It knows no bounds and no watermark.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, StringArray, UInt32Array, new_null_array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{cast, concat_batches, filter_record_batch, take_record_batch};
use arrow::datatypes::{DataType, Field, TimeUnit, TimestampMicrosecondType};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

use super::StreamError;
use crate::bytes::batch_bytes;
use crate::sql::TableSchema;
use crate::watermark::Texts;

/// Batches with fewer rows are joined once there are [`SMALL_BATCHES`] of them.
pub(super) const SMALL_ROWS: usize = 64;
pub(super) const SMALL_BATCHES: usize = 64;
/// Batches that are smaller than this on average are joined before SQL runs over them.
const BATCH_ROWS: usize = 1024;

/// Runs of equal quality that a stateless batch is cut into, so that each row has its own quality;
/// a batch with more runs is computed at once and is `uncertain`.
const QUALITY_RUNS_MAX: usize = 16;

/// The columns of a batch that the stream itself reads.
#[derive(Debug)]
pub(super) struct Columns {
    batch: RecordBatch,
    time: usize,
    device: Option<StringArray>,
    quality: Option<StringArray>,
    /// No row is less than good, which is so for nearly all batches.
    all_good: bool,
}

impl Columns {
    /// Takes `batch` for rows of `table`. Rows that were logged under an older configuration are
    /// brought to the table's columns: by name, converted where that is possible, null where the
    /// table has a column that they do not.
    pub(super) fn new(table: &TableSchema, batch: &RecordBatch) -> Result<Self, StreamError> {
        let input = |what: String| StreamError::Input(format!("table `{}`: {what}", table.name));
        let same = |(a, b): (&Arc<_>, &Arc<_>)| {
            let (a, b): (&Field, &Field) = (a, b);
            a.name() == b.name() && a.data_type() == b.data_type()
        };
        let (ours, theirs) = (table.schema.fields(), batch.schema());
        let adapted;
        let batch =
            // The same object need not be compared, which counts for a row of a thousand columns.
            if Arc::ptr_eq(&table.schema, &theirs)
                || ours.len() == theirs.fields().len() && ours.iter().zip(theirs.fields()).all(same)
            {
                batch
            } else {
                adapted = adapt(table, batch).map_err(|error| input(error.to_string()))?;
                &adapted
            };
        let time = time_column(table)?;
        if batch.column(time).null_count() > 0 {
            return Err(input(format!("column `{}` has nulls", table.time_column)));
        }
        let text = |name: &str| match batch.column_by_name(name) {
            None => Ok(None),
            Some(column) => match cast(column, &DataType::Utf8) {
                Ok(column) => Ok(Some(column.as_string::<i32>().clone())),
                Err(error) => Err(input(format!("column `{name}`: {error}"))),
            },
        };
        let (device, quality) = (text("device")?, text("quality")?);
        let all_good = quality.as_ref().is_none_or(is_all_good);
        if Arc::ptr_eq(&table.schema, batch.schema_ref()) {
            return Ok(Self { batch: batch.clone(), time, device, quality, all_good });
        }
        // One schema object for all rows of a table, whatever metadata came with the batch.
        let rows = batch.num_rows();
        let options = arrow::record_batch::RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(
            Arc::clone(&table.schema),
            batch.columns().to_vec(),
            &options,
        )
        .map_err(|error| input(error.to_string()))?;
        Ok(Self { batch, time, device, quality, all_good })
    }

    pub(super) fn len(&self) -> usize {
        self.batch.num_rows()
    }

    pub(super) fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    pub(super) fn times(&self) -> &[i64] {
        self.batch.column(self.time).as_primitive::<TimestampMicrosecondType>().values()
    }

    /// The sources' names, where each row has one.
    pub(super) fn devices(&self) -> Option<Texts<'_>> {
        let devices = self.device.as_ref().filter(|devices| devices.null_count() == 0)?;
        Some(Texts { offsets: devices.value_offsets(), bytes: devices.value_data() })
    }

    /// The source's name; empty where the table has no `device`.
    pub(super) fn device(&self, row: usize) -> &str {
        match &self.device {
            Some(devices) if !devices.is_null(row) => devices.value(row),
            _ => "",
        }
    }

    /// The row's quality; good where the table has no such column.
    pub(super) fn quality(&self, row: usize) -> &'static str {
        self.quality.as_ref().map_or("good", |qualities| quality_in(qualities, row))
    }

    /// These rows, copied unless they are all.
    pub(super) fn take(&self, rows: Vec<u32>) -> Result<RecordBatch, StreamError> {
        if rows.len() == self.len() {
            return Ok(self.batch.clone());
        }
        take_record_batch(&self.batch, &UInt32Array::from(rows))
            .map_err(|error| StreamError::Input(error.to_string()))
    }
}

fn quality_in(qualities: &StringArray, row: usize) -> &'static str {
    if qualities.is_null(row) {
        return "uncertain";
    }
    match qualities.value(row) {
        "good" => "good",
        "bad" => "bad",
        _ => "uncertain",
    }
}

/// Whether every row says `good`, without looking at one row after the other.
fn is_all_good(quality: &StringArray) -> bool {
    const GOOD: u32 = u32::from_ne_bytes(*b"good");
    const LENGTH: i32 = 4;
    let offsets = quality.value_offsets();
    let place = |at: i32| usize::try_from(at).unwrap_or(0);
    let text = &quality.value_data()[place(offsets[0])..place(offsets[quality.len()])];
    let (words, rest) = text.as_chunks::<4>();
    // Without a way out of the loops several are compared at once.
    let lengths = offsets.windows(2).fold(0, |odd, pair| odd | ((pair[1] - pair[0]) ^ LENGTH));
    let odd = words.iter().fold(0, |odd, word| odd | (u32::from_ne_bytes(*word) ^ GOOD));
    quality.null_count() == 0 && lengths == 0 && odd == 0 && rest.is_empty()
}

/// Index of the event-time column.
pub(super) fn time_column(table: &TableSchema) -> Result<usize, StreamError> {
    match table.schema.column_with_name(&table.time_column) {
        Some((at, field))
            if matches!(field.data_type(), DataType::Timestamp(TimeUnit::Microsecond, _)) =>
        {
            Ok(at)
        }
        _ => Err(StreamError::Input(format!(
            "table `{}` has no column `{}` of microsecond timestamps",
            table.name, table.time_column
        ))),
    }
}

/// The quality of a result by what went into it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mix {
    good: u64,
    bad: u64,
    rows: u64,
}

impl Mix {
    pub(super) fn add(&mut self, quality: &'static str) {
        self.rows += 1;
        self.good += u64::from(quality == "good");
        self.bad += u64::from(quality == "bad");
    }

    fn add_good(&mut self, rows: u64) {
        self.rows += rows;
        self.good += rows;
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.rows += other.rows;
        self.good += other.good;
        self.bad += other.bad;
    }

    /// Of some rows of a batch that was held as this mix.
    fn of_rows(rows: &RecordBatch, all: Self) -> Result<Self, ArrowError> {
        let mut mix = Self::default();
        match rows.column_by_name("quality") {
            Some(column) if all.good < all.rows => {
                let text = cast(column, &DataType::Utf8)?;
                let text = text.as_string::<i32>();
                (0..rows.num_rows()).for_each(|row| mix.add(quality_in(text, row)));
            }
            _ => mix.add_good(rows.num_rows() as u64),
        }
        Ok(mix)
    }

    /// Of counts that [`Mix::counts`] gave.
    pub(super) fn of(counts: [u64; 3]) -> Self {
        let [good, bad, rows] = counts;
        Self { good, bad, rows }
    }

    /// Good rows, bad rows, all rows.
    pub(super) fn counts(self) -> [u64; 3] {
        [self.good, self.bad, self.rows]
    }

    pub(super) fn rows(self) -> u64 {
        self.rows
    }

    pub(super) fn worst(self) -> &'static str {
        if self.good == self.rows {
            "good"
        } else if self.bad == self.rows {
            "bad"
        } else {
            "uncertain"
        }
    }
}

/// Cuts the rows from `first` on into runs of equal quality.
pub(super) fn quality_runs(columns: &Columns, first: usize) -> Vec<(usize, usize, &'static str)> {
    let mut runs: Vec<(usize, usize, &'static str)> = Vec::new();
    let mut mix = Mix::default();
    for row in first..columns.len() {
        let quality = columns.quality(row);
        mix.add(quality);
        match runs.last_mut() {
            Some(run) if run.2 == quality => run.1 = row + 1,
            _ => runs.push((row, row + 1, quality)),
        }
    }
    if runs.len() > QUALITY_RUNS_MAX {
        runs = vec![(first, columns.len(), mix.worst())];
    }
    runs
}

/// What is known of a batch that is held.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// No row of it has a lower log position.
    position: u64,
    mix: Mix,
}

/// The rows of one table in one pane.
#[derive(Debug, Clone, Default)]
struct Part {
    batches: Vec<RecordBatch>,
    /// Of each batch.
    known: Vec<Known>,
    /// Small ones at the end of `batches`, one after the other.
    small: usize,
}

impl Part {
    /// Keeps a batch; small ones are joined once there are some. An array costs some 200 bytes
    /// beside its values: a poll of a thousand points each second would hold 0.7 GB in an hour's
    /// window, and count it as 14 MB.
    fn push(&mut self, batch: RecordBatch, known: Known) -> Result<(), ArrowError> {
        let small = batch.num_rows() < SMALL_ROWS;
        self.batches.push(batch);
        self.known.push(known);
        self.small = if small { self.small + 1 } else { 0 };
        if self.small < SMALL_BATCHES {
            return Ok(());
        }
        let first = self.batches.len() - self.small;
        let joined = concat_batches(self.batches[first].schema_ref(), &self.batches[first..])?;
        let mut known = self.known[first];
        for other in &self.known[first + 1..] {
            known.position = known.position.min(other.position);
            known.mix.merge(other.mix);
        }
        self.batches.truncate(first);
        self.known.truncate(first);
        self.batches.push(joined);
        self.known.push(known);
        self.small = 0;
        Ok(())
    }
}

/// Rows that are held together, by table: those of a pane.
#[derive(Debug, Clone)]
pub(super) struct Held {
    parts: Vec<Part>,
    mix: Mix,
    /// Of the rows alone.
    bytes: usize,
}

impl Held {
    pub(super) fn new(tables: usize) -> Self {
        Self { parts: vec![Part::default(); tables], mix: Mix::default(), bytes: 0 }
    }

    /// Rows that are held.
    pub(super) fn rows(&self) -> usize {
        usize::try_from(self.mix.rows).unwrap_or(usize::MAX)
    }

    /// What they weigh in memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn mix(&self) -> Mix {
        self.mix
    }

    /// A log position below which no row of a table is held, the highest that is known.
    pub(super) fn first_position(&self, table: usize) -> Option<u64> {
        self.parts[table].known.iter().map(|known| known.position).min()
    }

    /// A table's rows in arrival order.
    pub(super) fn batches(&self, table: usize) -> &[RecordBatch] {
        &self.parts[table].batches
    }

    /// Adds rows of a table whose first row has log position `position`.
    pub(super) fn add(
        &mut self,
        table: usize,
        position: u64,
        columns: &Columns,
        rows: Vec<u32>,
    ) -> Result<(), StreamError> {
        let Some(&first) = rows.first() else {
            return Ok(());
        };
        let mut mix = Mix::default();
        if columns.all_good {
            mix.add_good(rows.len() as u64);
        } else {
            for &row in &rows {
                mix.add(columns.quality(row as usize));
            }
        }
        let known = Known { position: position + u64::from(first), mix };
        let batch = columns.take(rows)?;
        let kept = self.keep(table, batch, known);
        kept.map_err(|error| StreamError::Input(error.to_string()))
    }

    fn keep(&mut self, table: usize, batch: RecordBatch, known: Known) -> Result<(), ArrowError> {
        self.mix.merge(known.mix);
        self.bytes += batch_bytes(&batch);
        self.parts[table].push(batch, known)
    }

    /// The rows with a time before `before`, and the others. `times` are the tables' columns.
    pub(super) fn split(&self, before: i64, times: &[usize]) -> Result<(Self, Self), ArrowError> {
        let mut ahead = Self::new(self.parts.len());
        if before == i64::MAX {
            return Ok((self.clone(), ahead));
        }
        let mut behind = ahead.clone();
        for ((table, part), time) in self.parts.iter().enumerate().zip(times) {
            for (batch, known) in part.batches.iter().zip(&part.known) {
                let (batch, known) = (batch.clone(), *known);
                let own = batch.column(*time).as_primitive::<TimestampMicrosecondType>().values();
                match own.iter().filter(|time| **time < before).count() {
                    0 => ahead.keep(table, batch, known)?,
                    rows if rows == own.len() => behind.keep(table, batch, known)?,
                    _ => {
                        let is_behind =
                            BooleanBuffer::collect_bool(own.len(), |row| own[row] < before);
                        let is_ahead = BooleanArray::from(!&is_behind);
                        for (side, rows) in
                            [(&mut behind, BooleanArray::from(is_behind)), (&mut ahead, is_ahead)]
                        {
                            let rows = filter_record_batch(&batch, &rows)?;
                            let mix = Mix::of_rows(&rows, known.mix)?;
                            side.keep(table, rows, Known { mix, ..known })?;
                        }
                    }
                }
            }
        }
        Ok((behind, ahead))
    }
}

/// The same rows, small batches joined.
pub(super) fn in_large_batches(batches: &[RecordBatch]) -> Result<Vec<RecordBatch>, ArrowError> {
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    match batches {
        [first, _, ..] if rows / batches.len() < BATCH_ROWS => {
            Ok(vec![concat_batches(first.schema_ref(), batches)?])
        }
        _ => Ok(batches.to_vec()),
    }
}

/// A table's rows, in arrival order, in order of event time.
pub(super) fn in_time_order(
    batches: Vec<RecordBatch>,
    table: &TableSchema,
) -> Result<Vec<RecordBatch>, ArrowError> {
    let Some((time, _)) = table.schema.column_with_name(&table.time_column) else {
        return Ok(batches);
    };
    let times = |batch: &RecordBatch| {
        batch.column(time).as_primitive::<TimestampMicrosecondType>().values().clone()
    };
    let mut latest = i64::MIN;
    let sorted = batches.iter().all(|batch| {
        times(batch).iter().all(|&time| {
            let rises = time >= latest;
            latest = time;
            rises
        })
    });
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    if sorted && (batches.len() <= 1 || rows / batches.len() >= BATCH_ROWS) {
        return Ok(batches);
    }
    let joined = concat_batches(&table.schema, &batches)?;
    if sorted {
        return Ok(vec![joined]);
    }
    let times = times(&joined);
    let too_many = |_| ArrowError::ComputeError("a window has more than 2^32 rows".into());
    let mut order: Vec<u32> = (0..u32::try_from(joined.num_rows()).map_err(too_many)?).collect();
    order.sort_by_key(|&row| times[row as usize]);
    Ok(vec![take_record_batch(&joined, &UInt32Array::from(order))?])
}

/// Brings rows of another form of the table to its columns. A point whose values cannot be
/// converted is null. Fails where `time` or another column without nulls cannot be had.
fn adapt(table: &TableSchema, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let column = |field: &Arc<Field>| {
        let named = batch.column_by_name(field.name());
        // A column without nulls that was not there, as `received_at` of a device that was not a
        // feed then, is the row's time.
        let is_time = matches!(field.data_type(), DataType::Timestamp(..));
        let time = || batch.column_by_name("time").filter(|_| is_time && !field.is_nullable());
        let converted = named.or_else(time).and_then(|column| cast(column, field.data_type()).ok());
        converted.unwrap_or_else(|| new_null_array(field.data_type(), batch.num_rows()))
    };
    let columns = table.schema.fields().iter().map(column).collect();
    RecordBatch::try_new(Arc::clone(&table.schema), columns)
}
