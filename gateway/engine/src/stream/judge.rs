//! Tells rows whose time cannot be from those whose time may be, and a watermark likewise.
//!
//! Promise: a row that says to be from further ahead of the time of its arrival than the stream allows
//! is in no window and moves no watermark, or is given the time of its arrival. The answer depends on
//! the row alone, so that it is the same after a restart. Rows of a table without the column
//! `received_at` are stamped by arrival and never judged.
//! Source: design page "The engine", section Event time; field case A62.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray, TimestampMicrosecondArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimestampMicrosecondType};
use arrow::record_batch::RecordBatch;

use super::refill::Arrival;
use super::rows::Columns;
use super::{Effects, LateReason, LateRows, Stream, StreamError};
use crate::sql::TableSchema;

/// The column in which a feed's rows have the time of their arrival.
const ARRIVAL: &str = "received_at";

/// What becomes of rows from too far ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FutureRule {
    /// How far ahead of its arrival a row's time may be, in microseconds.
    pub max: i64,
    /// Whether a row that is further ahead is given the time of its arrival and taken; it is set
    /// aside otherwise.
    pub restamp: bool,
}

impl Stream {
    /// Checks rows before anything changes, and tells those from the future from the others.
    pub(super) fn arrivals(
        &self,
        table: usize,
        position: u64,
        batch: &RecordBatch,
    ) -> Result<Vec<Arrival>, StreamError> {
        let columns = self.admit(table, batch)?;
        let judged = match self.spec.future {
            Some(rule) => judge(&self.spec.tables[table], rule, columns.batch())?,
            None => Judged::Sound,
        };
        let arrival = |position, columns| Arrival {
            table,
            position,
            columns,
            future: false,
            restamped: Vec::new(),
        };
        let of = |batch: &RecordBatch| Columns::new(&self.spec.tables[table], batch);
        match judged {
            Judged::Sound => Ok(vec![arrival(position, columns)]),
            Judged::Restamped(batch, restamped) => {
                Ok(vec![Arrival { restamped, ..arrival(position, of(&batch)?) }])
            }
            Judged::Runs(runs) => runs
                .into_iter()
                .map(|(rows, future)| {
                    let first = position.saturating_add(rows.start as u64);
                    // A batch has less than 2^32 rows, as `judge` and `take` count them.
                    let rows = (0_u32..).take(rows.end).skip(rows.start).collect();
                    let columns = of(&columns.take(rows)?)?;
                    Ok(Arrival { future, ..arrival(first, columns) })
                })
                .collect(),
        }
    }

    /// Counts rows from the future, and gives them out as they came.
    pub(super) fn set_aside(&mut self, arrival: &Arrival, effects: &mut Effects) {
        let table = arrival.table;
        let new = arrival.row_at(self.processed[table]);
        let rows = arrival.columns.len() - new;
        self.processed[table] = self.processed[table].max(arrival.end());
        self.counts.accepted += rows as u64;
        self.counts.future += rows as u64;
        if rows > 0 {
            let batch = arrival.columns.batch().slice(new, rows);
            effects.late.push(LateRows { table, reason: LateReason::Future, batch });
        }
    }

    /// Takes back a watermark that only a wrong clock can have made: the clock has been where it is,
    /// and is now further back than rows may be ahead. Open windows are closed with what they have.
    pub(super) async fn rebase(&mut self, now: i64, effects: &mut Effects) {
        let Some(rule) = self.spec.future else {
            return;
        };
        let limit = now.saturating_add(rule.max);
        let is_ahead = self.watermark.current().is_some_and(|mark| mark > limit);
        if self.refill.is_some() || !is_ahead || self.clock_high <= limit {
            return;
        }
        self.close_to(Some(i64::MAX), effects).await;
        self.watermark.rebase(limit);
    }
}

/// A batch, judged.
#[derive(Debug)]
enum Judged {
    /// No row is from too far ahead.
    Sound,
    /// Runs of rows that are, and of rows that are not.
    Runs(Vec<(Range<usize>, bool)>),
    /// The rows, these of them with the time of their arrival.
    Restamped(RecordBatch, Vec<u32>),
}

/// Judges the rows of a batch of `table`.
fn judge(
    table: &TableSchema,
    rule: FutureRule,
    batch: &RecordBatch,
) -> Result<Judged, StreamError> {
    let input = |what: &str| StreamError::Input(format!("table `{}`: {what}", table.name));
    let times = |name: &str| {
        let column = batch.column_by_name(name)?;
        column.as_primitive_opt::<TimestampMicrosecondType>()
    };
    if table.time_column == ARRIVAL {
        return Ok(Judged::Sound);
    }
    let (Some(own), Some(arrived)) = (times(&table.time_column), times(ARRIVAL)) else {
        return Ok(Judged::Sound);
    };
    let pairs = own.values().iter().zip(arrived.values());
    let future = pairs.map(|(own, arrived)| own.saturating_sub(*arrived) > rule.max);
    if !future.clone().any(|future| future) {
        return Ok(Judged::Sound);
    }
    let future: Vec<bool> = future.collect();
    if !rule.restamp {
        let mut start = 0;
        let runs = future.chunk_by(|a, b| a == b).map(|run| {
            let range = start..start + run.len();
            start = range.end;
            (range, run[0])
        });
        return Ok(Judged::Runs(runs.collect()));
    }
    let restamped: Vec<u32> =
        (0_u32..).zip(&future).filter(|(_, future)| **future).map(|(row, _)| row).collect();
    let stamps = own.values().iter().zip(arrived.values()).zip(&future);
    let stamps = stamps.map(|((own, arrived), future)| if *future { *arrived } else { *own });
    let stamps = TimestampMicrosecondArray::from_iter_values(stamps);
    let stamps = stamps.with_data_type(own.data_type().clone());
    let columns = batch.schema_ref().fields().iter().zip(batch.columns());
    let columns = columns.map(|(field, column)| {
        let column: ArrayRef = match field.name().as_str() {
            name if name == table.time_column => Arc::new(stamps.clone()),
            "quality" => doubted(column, &future).map_err(|error| input(&error.to_string()))?,
            _ => Arc::clone(column),
        };
        Ok(column)
    });
    let columns = columns.collect::<Result<_, StreamError>>()?;
    let batch = RecordBatch::try_new(batch.schema(), columns);
    Ok(Judged::Restamped(batch.map_err(|error| input(&error.to_string()))?, restamped))
}

/// The qualities, with `uncertain` in place of `good` in these rows.
fn doubted(column: &ArrayRef, rows: &[bool]) -> Result<ArrayRef, arrow::error::ArrowError> {
    let text = cast(column, &DataType::Utf8)?;
    let text = text.as_string::<i32>().iter().zip(rows).map(|(quality, doubted)| match quality {
        Some("good") if *doubted => Some("uncertain"),
        quality => quality,
    });
    cast(&text.collect::<StringArray>(), column.data_type())
}
