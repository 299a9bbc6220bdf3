//! Rows through `Stream::apply` beside DataFusion over the same rows in memory.
//!
//! Both compute count, average and maximum by device and 10 s window, on one thread. The stream
//! gets batches of 8,192 rows with rising positions, as from a table's log; DataFusion has them all
//! in a `MemTable`, in the same batches, with its window as `date_bin` and one partition. Planning
//! is outside of both clocks, the result inside. Rows of all devices come in turn.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Float64Array, StringArray, TimestampMicrosecondArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use tidegate_engine::baseline::InMemory;
use tidegate_engine::{Event, Sql, Stream, StreamSpec, TableSchema, Window};
use tokio::time::Instant;

use super::figures::{Bar, Figure};
use super::{Bench, block};

const NAME: &str = "engine.tumbling.ratio_to_datafusion";
const BATCH_ROWS: usize = 8_192;
const WINDOW_US: i64 = 10_000_000;
/// Rows of one window.
const WINDOW_ROWS: i64 = 100_000;
/// DataFusion's and the windows' memory.
const MEMORY: usize = 1 << 30;

const OURS: &str = "SELECT window_start() AS start, device, count(*) AS n, avg(v) AS mean, \
                    max(v) AS high FROM rows GROUP BY device";
const THEIRS: &str = "SELECT date_bin(INTERVAL '10 seconds', time) AS start, device, \
                      count(*) AS n, avg(v) AS mean, max(v) AS high FROM rows GROUP BY 1, 2";

pub(super) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    let mut figures = Vec::new();
    for groups in [10, 1_000] {
        let name = format!("{NAME}.{groups}_groups");
        if !bench.wants(&name) {
            continue;
        }
        let batches = batches(bench.effort.rows, groups)?;
        // Short runs: more of them.
        let rounds = bench.effort.rounds * 2 + 1;
        let pairs: Vec<(f64, f64)> = (0..rounds)
            .map(|_| Ok((ours(&batches)?, theirs(&batches)?)))
            .collect::<anyhow::Result<_>>()?;
        let rows = bench.effort.rows as f64 / 1e6;
        let rates: Vec<(f64, f64)> = pairs.iter().map(|(a, b)| (rows / a, rows / b)).collect();
        let figure = Figure::pairs(name, "Mrows/s", &rates);
        let figure = figure.bar(Bar::AtLeast(0.8));
        figures.push(figure.clone());
        bench.report.add(figure)?;
    }
    if let Some(least) = Figure::least(NAME, &figures) {
        bench.report.add(least)?;
    }
    Ok(())
}

fn schema() -> SchemaRef {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    Arc::new(Schema::new(vec![
        Field::new("time", utc, false),
        Field::new("device", DataType::Utf8, false),
        Field::new("quality", DataType::Utf8, false),
        Field::new("seq", DataType::UInt64, false),
        Field::new("v", DataType::Float64, true),
    ]))
}

/// Rows with rising times; each device in turn.
fn batches(rows: usize, groups: usize) -> anyhow::Result<Vec<RecordBatch>> {
    let starts = (0..rows).step_by(BATCH_ROWS);
    starts.map(|start| batch(start, BATCH_ROWS.min(rows - start), groups)).collect()
}

fn batch(start: usize, rows: usize, groups: usize) -> anyhow::Result<RecordBatch> {
    let numbers = start..start + rows;
    let time = |n: usize| i64::try_from(n).unwrap_or(0) * (WINDOW_US / WINDOW_ROWS);
    let times: Vec<i64> = numbers.clone().map(time).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(TimestampMicrosecondArray::from(times).with_timezone("UTC")),
        Arc::new(StringArray::from_iter_values(
            numbers.clone().map(|n| format!("device_{}", n % groups)),
        )),
        Arc::new(StringArray::from_iter_values(numbers.clone().map(|_| "good"))),
        Arc::new(UInt64Array::from_iter_values(numbers.clone().map(|n| (n / groups) as u64))),
        Arc::new(Float64Array::from_iter_values(numbers.map(|n| (n as f64 * 0.37).sin()))),
    ];
    Ok(RecordBatch::try_new(schema(), columns)?)
}

/// Seconds for all rows through a stream, the last window included.
fn ours(batches: &[RecordBatch]) -> anyhow::Result<f64> {
    let table = TableSchema { name: "rows".into(), schema: schema(), time_column: "time".into() };
    let query = Sql::new(MEMORY)?.plan(OURS, std::slice::from_ref(&table), true)?;
    let spec = StreamSpec {
        name: "bench".into(),
        tables: vec![table],
        sources: Vec::new(),
        window: Some(Window::Tumbling { size: WINDOW_US, offset: 0 }),
        allowed_lateness: 0,
        idle_after: 5_000_000,
        lag: 0,
        side_tables: 0,
        latest: vec![],
        memory_max: MEMORY,
    };
    let mut stream = Stream::new(spec, query, 0)?;
    block(async {
        let start = Instant::now();
        let (mut position, mut counted) = (0, 0);
        for batch in batches {
            let event = Event::Rows { table: 0, position, batch: batch.clone() };
            position += batch.num_rows() as u64;
            counted += rows_in(&stream.apply(event, 0).await?);
        }
        // All sources are silent for longer than `idle_after`: the last window closes.
        let later = 2 * WINDOW_US * i64::try_from(position)? / WINDOW_ROWS + 2 * WINDOW_US;
        counted += rows_in(&stream.apply(Event::Tick, later).await?);
        let took = start.elapsed();
        anyhow::ensure!(counted == position, "{counted} of {position} rows came out");
        Ok(seconds(took))
    })
}

/// Input rows that results speak of: the sum of `n`.
fn rows_in(effects: &tidegate_engine::Effects) -> u64 {
    let counts = effects.results.iter().map(|output| sum_of_n(&output.batch));
    counts.sum()
}

fn sum_of_n(batch: &RecordBatch) -> u64 {
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;
    let Some(column) = batch.column_by_name("n") else {
        return 0;
    };
    column.as_primitive::<Int64Type>().values().iter().map(|n| n.unsigned_abs()).sum()
}

/// Seconds for the same in DataFusion.
fn theirs(batches: &[RecordBatch]) -> anyhow::Result<f64> {
    block(async {
        let memory = InMemory::plan("rows", schema(), batches.to_vec(), THEIRS).await?;
        let start = Instant::now();
        let results = memory.run().await?;
        let took = start.elapsed();
        let (counted, rows): (u64, usize) =
            (results.iter().map(sum_of_n).sum(), batches.iter().map(RecordBatch::num_rows).sum());
        anyhow::ensure!(counted == rows as u64, "DataFusion counted {counted} of {rows} rows");
        Ok(seconds(took))
    })
}

fn seconds(span: Duration) -> f64 {
    span.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_count_every_row() {
        let batches = batches(250_000, 10).unwrap();
        assert!(ours(&batches).unwrap() > 0.0);
        assert!(theirs(&batches).unwrap() > 0.0);
    }
}
