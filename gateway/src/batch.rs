//! Closes a driver's builders into a record batch: adds `time`, `device`, `quality` and `seq`.
//!
//! This is where monotonic instants become times: a row's time is when its answer arrived, or the
//! source's own stamp where it has one. The columns are those of the table's schema, which the
//! configuration alone decides.

use std::iter::repeat_n;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use tidegate_drivers::Rows;
use tidegate_drivers::table::Quality;
use tidegate_engine::store::LATEST;
use tokio::time::Instant;

use crate::clock::{ClockWait, Moment, SharedClock, Trust};

/// Names and counts the rows of one source.
pub struct Batcher {
    device: String,
    schema: SchemaRef,
    /// Whether the table has a `received_at` column beside `time`.
    feed: bool,
    clock: SharedClock,
    wait: Arc<ClockWait>,
    next_seq: u64,
}

/// One reading of the clocks, for the rows of one batch.
#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    moment: Moment,
    /// The rows are stamped by the monotonic clock alone: their table knows what becomes of their
    /// times.
    pub unset: bool,
}

impl Batcher {
    /// A batcher for `device`, whose rows go to a table of `schema`, the first with `first_seq`.
    pub fn new(
        device: &str,
        schema: SchemaRef,
        feed: bool,
        (clock, wait): (SharedClock, Arc<ClockWait>),
        first_seq: u64,
    ) -> Self {
        Self { device: device.to_owned(), schema, feed, clock, wait, next_seq: first_seq }
    }

    /// `seq` of the next row.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Reads the clocks for rows, and doubts those whose time is that of the gateway alone, while that
    /// can neither be trusted nor is to be known later.
    pub fn stamp(&self, rows: &mut Rows) -> Stamp {
        let moment = self.clock.moment();
        // Rows that say their own time in a table that does not say when they came are not moved.
        let by_arrival = || self.feed || rows.times.iter().all(Option::is_none);
        let unset = moment.unset && self.wait.keeps_stamps() && by_arrival();
        let stamp = Stamp { moment, unset };
        if unset || moment.trust == Trust::Certain {
            return stamp;
        }
        for (quality, own) in rows.qualities.iter_mut().zip(&rows.times) {
            if own.is_none() && *quality == Quality::Good {
                *quality = Quality::Uncertain;
            }
        }
        stamp
    }

    /// Makes one batch of `rows`, stamped as of `stamp`. An error means that the rows are not of the
    /// table's schema: a bug in a driver, and the rows are not counted.
    pub fn close(&mut self, rows: Rows, stamp: Stamp) -> Result<RecordBatch, ArrowError> {
        let len = rows.len();
        let mut received: Vec<i64> = stamp.received(&rows.arrived);
        if stamp.unset {
            // Where both times are the same, the row was stamped by its arrival.
            for (at, own) in received.iter_mut().zip(&rows.times) {
                *at -= i64::from(*own == Some(*at));
            }
        } else if self.feed && stamp.moment.trust == Trust::Unknown {
            // Nobody can say that a row is from the future: it came no earlier than it says itself.
            for (at, own) in received.iter_mut().zip(&rows.times) {
                *at = own.filter(|own| *own < LATEST).map_or(*at, |own| own.max(*at));
            }
        }
        let utc = |times: Vec<i64>| -> ArrayRef {
            Arc::new(TimestampMicrosecondArray::from(times).with_timezone("UTC"))
        };
        let times = rows.times.iter().zip(&received).map(|(own, at)| own.unwrap_or(*at)).collect();
        let first = self.next_seq;
        let own: [ArrayRef; 4] = [
            utc(times),
            Arc::new(StringArray::from_iter_values(repeat_n(&self.device, len))),
            Arc::new(StringArray::from_iter_values(rows.qualities.iter().map(|q| q.name()))),
            Arc::new(UInt64Array::from_iter_values(first..first + len as u64)),
        ];
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        columns.extend(own);
        if self.feed {
            columns.push(utc(received));
        }
        columns.extend(rows.columns);
        for (quality, reason) in rows.point_qualities {
            columns.push(quality);
            columns.push(reason);
        }
        let batch = RecordBatch::try_new(self.schema.clone(), columns)?;
        self.next_seq += len as u64;
        Ok(batch)
    }

    /// A batch without rows.
    pub fn none(&self) -> RecordBatch {
        RecordBatch::new_empty(self.schema.clone())
    }
}

impl Stamp {
    /// The time of day of each instant.
    fn received(&self, arrived: &[Instant]) -> Vec<i64> {
        let age = |at: &Instant| {
            i64::try_from(self.moment.at.saturating_duration_since(*at).as_micros()).unwrap_or(0)
        };
        arrived.iter().map(|at| self.moment.time - age(at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arrow::array::AsArray;
    use arrow::datatypes::{
        DataType, Field, Schema, TimeUnit, TimestampMicrosecondType, UInt64Type,
    };
    use tidegate_drivers::table::Value;
    use tidegate_drivers::{Point, TableBuilder};

    use super::*;
    use crate::clock::ManualClock;

    fn schema() -> SchemaRef {
        let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        Arc::new(Schema::new(vec![
            Field::new("time", utc, false),
            Field::new("device", DataType::Utf8, false),
            Field::new("quality", DataType::Utf8, false),
            Field::new("seq", DataType::UInt64, false),
            Field::new("n", DataType::Int32, true),
        ]))
    }

    fn close(batcher: &mut Batcher, table: &mut TableBuilder) -> RecordBatch {
        let mut rows = table.finish();
        let stamp = batcher.stamp(&mut rows);
        batcher.close(rows, stamp).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_rows_time_is_when_its_answer_arrived() {
        let clock = Arc::new(ManualClock::at(1_000_000_000));
        let clocks = (clock.clone() as SharedClock, Arc::default());
        let mut batcher = Batcher::new("meter", schema(), false, clocks, 0);
        let mut table = TableBuilder::new(&[Point::new("n", DataType::Int32)], false);
        table.begin();
        table.value(0, Value::I32(7));
        table.end(Instant::now());
        tokio::time::advance(Duration::from_millis(250)).await;
        table.begin();
        table.value(0, Value::I32(8));
        table.end(Instant::now());
        clock.set(1_000_250_000);
        let batch = close(&mut batcher, &mut table);
        let times = batch.column(0).as_primitive::<TimestampMicrosecondType>();
        assert_eq!(times.values(), &[1_000_000_000, 1_000_250_000]);
        assert_eq!(batch.column(3).as_primitive::<UInt64Type>().values(), &[0, 1]);
        table.begin();
        table.time(5);
        table.end(Instant::now());
        let batch = close(&mut batcher, &mut table);
        assert_eq!(batch.column(0).as_primitive::<TimestampMicrosecondType>().value(0), 5);
        assert_eq!(batch.column(3).as_primitive::<UInt64Type>().value(0), 2);
        assert_eq!(batch.column(2).as_string::<i32>().value(0), "bad");
    }
}
