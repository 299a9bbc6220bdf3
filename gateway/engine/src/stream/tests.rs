//! Streams as their callers see them: one line per case, then properties over any arrival order,
//! any batching and a restart at any point.

mod beside;
mod damaged;
mod kinds;
mod memory;
mod missed;
mod over_time;
mod overlap;
mod panes;
mod properties;
mod restart;
mod time;
mod together;
mod whole_numbers;
mod windows;

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, Float64Array, StringArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow::datatypes::{
    DataType, Field, Float64Type, Int64Type, Schema, TimeUnit, TimestampMicrosecondType,
};
use arrow::record_batch::RecordBatch;

use super::*;
use crate::sql::Sql;

/// Time in seconds, device, value.
type Row = (i64, &'static str, f64);

const SECOND: i64 = 1_000_000;
const NOW: i64 = 1_700_000_000 * SECOND;

fn table(name: &str) -> TableSchema {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let schema = Arc::new(Schema::new(vec![
        Field::new("time", utc, false),
        Field::new("device", DataType::Utf8, false),
        Field::new("quality", DataType::Utf8, false),
        Field::new("seq", DataType::UInt64, false),
        Field::new("v", DataType::Float64, true),
    ]));
    TableSchema { name: name.into(), schema, time_column: "time".into() }
}

fn micros(rows: &[Row], quality: &'static str) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(
            TimestampMicrosecondArray::from_iter_values(rows.iter().map(|row| row.0))
                .with_timezone("UTC"),
        ),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|_| quality))),
        Arc::new(UInt64Array::from_iter_values((1_u64..).take(rows.len()))),
        Arc::new(
            rows.iter().map(|row| Some(row.2).filter(|v| !v.is_nan())).collect::<Float64Array>(),
        ),
    ];
    RecordBatch::try_new(table("m").schema, columns).unwrap()
}

fn batch(rows: &[Row]) -> RecordBatch {
    let rows: Vec<Row> = rows.iter().map(|row| (row.0 * SECOND, row.1, row.2)).collect();
    micros(&rows, "good")
}

fn spec(size: i64, lateness: i64) -> StreamSpec {
    StreamSpec {
        name: "s".into(),
        tables: vec![table("m")],
        sources: vec![],
        window: Some(Window::Tumbling { size: size * SECOND, offset: 0 }),
        allowed_lateness: lateness * SECOND,
        idle_after: 30 * SECOND,
        lag: 0,
        side_tables: 0,
        latest: vec![],
        future: None,
        keep_failed: false,
        memory_max: 1 << 30,
    }
}

fn query(spec: &StreamSpec, sql: &str) -> Query {
    spec.plan(&Sql::new(64 << 20).unwrap(), sql).unwrap()
}

fn stream(spec: StreamSpec, sql: &str) -> Stream {
    let query = query(&spec, sql);
    Stream::new(spec, query, NOW).unwrap()
}

/// The stream that a restart finds after this progress, the first that was made durable.
fn restored(spec: &StreamSpec, query: Query, saved: &Progress) -> Stream {
    let states = saved.states.iter().filter_map(|s| Some((s.key, s.bytes.clone()?)));
    let states: Vec<_> = states.collect();
    Stream::restore_with(spec.clone(), query, &saved.state, &states, NOW).unwrap()
}

const SUMS: &str = "SELECT window_start() AS s, count(*) AS n, sum(v) AS v, last(v) AS l FROM m";

/// What [`SUMS`] gave, in one line per window: start in seconds, rows, sum, last, first sequence
/// number and quality.
fn lines(results: &[Output]) -> Vec<String> {
    let mut lines = Vec::new();
    for output in results {
        let columns = output.batch.columns();
        for row in 0..output.batch.num_rows() {
            lines.push(format!(
                "{} {} {} {} #{} {}",
                columns[0].as_primitive::<TimestampMicrosecondType>().value(row) / SECOND,
                columns[1].as_primitive::<Int64Type>().value(row),
                columns[2].as_primitive::<Float64Type>().value(row),
                columns[3].as_primitive::<Float64Type>().value(row),
                output.first_seq + row as u64,
                output.quality
            ));
        }
    }
    lines
}

/// Gives a stream its rows at the end of what it has.
async fn feed(stream: &mut Stream, table: usize, batch: RecordBatch, now: i64) -> Effects {
    let position = stream.progress().processed[table];
    stream.apply(Event::Rows { table, position, batch }, now).await.unwrap()
}

fn ledger_holds(counts: &Counts) {
    let out = counts.windowed + counts.late + counts.future + counts.filtered + counts.failed;
    let out = out + counts.dropped;
    assert_eq!(counts.accepted, out + counts.open_rows, "{counts:?}");
}

/// Ends all windows: all sources fall silent, and the clock is followed.
async fn drain(stream: &mut Stream) -> Effects {
    let mut all = Effects::default();
    let mut ticks = 0;
    while let Some(now) = stream.next_deadline(NOW) {
        let effects = stream.apply(Event::Tick, now).await.unwrap();
        all.results.extend(effects.results);
        all.failures.extend(effects.failures);
        ticks += 1;
        assert!(ticks < 1000, "a deadline at which nothing happens");
    }
    all
}
