//! Rows for the engine's figures, and a stream over them with a clock of its own.
//!
//! Rows of all devices come in turn, in batches as from a table's log. Only the time inside
//! `Stream::apply` counts; making rows does not.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    ArrayRef, AsArray, Float64Array, StringArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use tidegate_engine::{Counts, Effects, Event, Sql, Stream, StreamSpec, TableSchema, Window};
use tokio::time::Instant;

pub(super) const BATCH_ROWS: usize = 8_192;
/// Memory of DataFusion, and of the stream's windows.
const MEMORY: usize = 1 << 30;

pub(super) fn schema() -> SchemaRef {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    Arc::new(Schema::new(vec![
        Field::new("time", utc, false),
        Field::new("device", DataType::Utf8, false),
        Field::new("quality", DataType::Utf8, false),
        Field::new("seq", DataType::UInt64, false),
        Field::new("v", DataType::Float64, true),
    ]))
}

/// Rows that come evenly in time, or in bursts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rows {
    /// Devices, each of which sends in turn.
    pub(super) groups: usize,
    /// From one row to the next, in microseconds.
    pub(super) gap_us: i64,
    /// Time of row 0.
    pub(super) start_us: i64,
    /// After how many rows there is a pause, and for how many microseconds.
    pub(super) pause: Option<(usize, i64)>,
}

impl Rows {
    /// The first `rows`, in batches of [`BATCH_ROWS`].
    pub(super) fn batches(self, rows: usize) -> anyhow::Result<Vec<RecordBatch>> {
        let starts = (0..rows).step_by(BATCH_ROWS);
        starts.map(|start| self.batch(start, BATCH_ROWS.min(rows - start))).collect()
    }

    pub(super) fn batch(self, first: usize, rows: usize) -> anyhow::Result<RecordBatch> {
        let numbers = first..first + rows;
        let whole = |n: usize| i64::try_from(n).unwrap_or(0);
        let paused = |n: usize| self.pause.map_or(0, |(rows, pause)| whole(n / rows) * pause);
        let time = |n: usize| self.start_us + whole(n) * self.gap_us + paused(n);
        let times: Vec<i64> = numbers.clone().map(time).collect();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(TimestampMicrosecondArray::from(times).with_timezone("UTC")),
            Arc::new(StringArray::from_iter_values(
                numbers.clone().map(|n| format!("device_{}", n % self.groups)),
            )),
            Arc::new(StringArray::from_iter_values(numbers.clone().map(|_| "good"))),
            Arc::new(UInt64Array::from_iter_values(
                numbers.clone().map(|n| (n / self.groups) as u64),
            )),
            Arc::new(Float64Array::from_iter_values(numbers.map(|n| (n as f64 * 0.37).sin()))),
        ];
        Ok(RecordBatch::try_new(schema(), columns)?)
    }
}

/// How a stream computes its windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// As it chooses.
    Itself,
    /// From the rows.
    Recompute,
}

/// A stream, and how long it was at work.
pub(super) struct Timed {
    stream: Stream,
    position: u64,
    pub(super) took: Duration,
    /// Input rows that results speak of: the sum of their column `n`.
    pub(super) counted: u64,
    /// The most bytes that open windows held after an event.
    pub(super) held_max: u64,
}

impl Timed {
    pub(super) fn new(sql: &str, window: Window, how: How) -> anyhow::Result<Self> {
        let table =
            TableSchema { name: "rows".into(), schema: schema(), time_column: "time".into() };
        let spec = StreamSpec {
            name: "bench".into(),
            tables: vec![table],
            sources: Vec::new(),
            window: Some(window),
            allowed_lateness: 0,
            idle_after: 5_000_000,
            lag: 0,
            side_tables: 0,
            latest: vec![],
            future: None,
            keep_failed: false,
            memory_max: MEMORY,
        };
        let mut query = spec.plan(&Sql::new(MEMORY)?, sql)?;
        if how == How::Recompute {
            query = query.recomputed();
        }
        let stream = Stream::new(spec, query, 0)?;
        Ok(Self { stream, position: 0, took: Duration::ZERO, counted: 0, held_max: 0 })
    }

    pub(super) async fn rows(&mut self, batch: RecordBatch) -> anyhow::Result<Effects> {
        let (position, rows) = (self.position, batch.num_rows() as u64);
        self.position += rows;
        self.apply(Event::Rows { table: 0, position, batch }, 0).await
    }

    /// All sources are silent for longer than `idle_after`, and the clock is at `now`.
    pub(super) async fn drain(&mut self, now: i64) -> anyhow::Result<Effects> {
        self.apply(Event::Tick, now).await
    }

    async fn apply(&mut self, event: Event, now: i64) -> anyhow::Result<Effects> {
        let start = Instant::now();
        let effects = self.stream.apply(event, now).await?;
        // A caller makes the progress durable, and with it what has changed of the states.
        drop(self.stream.progress());
        self.stream.submitted();
        self.took += start.elapsed();
        self.held_max = self.held_max.max(self.stream.counts().open_bytes);
        self.counted += effects.results.iter().map(|output| sum_of_n(&output.batch)).sum::<u64>();
        Ok(effects)
    }

    pub(super) fn counts(&self) -> Counts {
        self.stream.counts()
    }
}

/// The sum of a result's column `n`.
pub(super) fn sum_of_n(batch: &RecordBatch) -> u64 {
    let Some(column) = batch.column_by_name("n") else {
        return 0;
    };
    column.as_primitive::<Int64Type>().values().iter().map(|n| n.unsigned_abs()).sum()
}
