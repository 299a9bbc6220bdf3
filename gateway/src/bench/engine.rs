//! Rows through `Stream::apply` beside DataFusion over the same rows in memory.
//!
//! All compute count, average and maximum by device, on one thread. Planning is outside of the
//! clock, the result inside. DataFusion has the rows in a `MemTable`, in the same batches, with its
//! window as `date_bin` and one partition.
//!
//! - `tumbling`: 10 s windows of 100,000 rows, as the stream chooses to compute them and from their
//!   rows, beside DataFusion.
//! - `hopping`: windows of 1 h, one every 10 s, beside tumbling windows of 10 s over the same rows:
//!   360 panes that hold every device, then panes of 100,000 (`dense`) or 10,000 rows whose time
//!   counts. What the 360 panes hold is the memory.
//! - `session`: by device, in bursts of ten rows of each, beside DataFusion, which groups by bursts.
//! - `close`: from the batch that ends a 1 s window at 1,000 rows a second to the result.

use arrow::array::RecordBatch;
use tidegate_engine::Window;
use tidegate_engine::baseline::InMemory;
use tokio::time::Instant;

use super::figures::{Bar, Figure, quantile};
use super::rows::{BATCH_ROWS, How, Rows, Timed, schema, sum_of_n};
use super::{Bench, block};

const NAME: &str = "engine.tumbling.ratio_to_datafusion";
const RECOMPUTE: &str = "engine.tumbling.incremental_to_recompute";
const HOPPING: &str = "engine.hopping.time_to_tumbling";
const HOPPING_SPARSE: &str = "engine.hopping.sparse_time_to_tumbling";
const BYTES: &str = "engine.hopping.bytes_per_group_and_pane";
const SESSION: &str = "engine.session.ratio_to_datafusion";
const CLOSE: &str = "engine.close";

const WINDOW_US: i64 = 10_000_000;
/// Rows of one 10 s window.
const WINDOW_ROWS: i64 = 100_000;
/// Panes of an hour.
const PANES: i64 = 360;

const OURS: &str = "SELECT window_start() AS start, device, count(*) AS n, avg(v) AS mean, \
                    max(v) AS high FROM rows GROUP BY device";

pub(super) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    tumbling(bench)?;
    for groups in [10, 1_000] {
        hopping(bench, groups)?;
    }
    for groups in [10, 1_000, 100_000] {
        session(bench, groups)?;
    }
    close(bench)
}

fn tumbling(bench: &mut Bench) -> anyhow::Result<()> {
    let mut judged = Vec::new();
    for groups in [10, 1_000, 100_000] {
        let names = [NAME, RECOMPUTE].map(|name| format!("{name}.{groups}_groups"));
        if !names.iter().any(|name| bench.wants(name)) {
            continue;
        }
        let rows = rows_of(groups, WINDOW_ROWS, 0);
        let batches = rows.batches(bench.effort.rows)?;
        // Short runs: more of them.
        let rounds = bench.effort.rounds * 2 + 1;
        let (mut to_theirs, mut to_rows) = (Vec::new(), Vec::new());
        let millions = bench.effort.rows as f64 / 1e6;
        for _ in 0..rounds {
            let window = Window::Tumbling { size: WINDOW_US, offset: 0 };
            let itself = millions / ours(&window, &batches, How::Itself)?;
            to_theirs.push((itself, millions / theirs(WINDOW_US, &batches)?));
            to_rows.push((itself, millions / ours(&window, &batches, How::Recompute)?));
        }
        let [name, recompute] = names;
        let mut figure = Figure::pairs(name, "Mrows/s", &to_theirs);
        if groups <= 1_000 {
            figure = figure.bar(Bar::AtLeast(0.8));
            judged.push(figure.clone());
        }
        bench.report.add(figure)?;
        bench.report.add(Figure::pairs(recompute, "Mrows/s", &to_rows))?;
    }
    if let Some(least) = Figure::least(NAME, &judged) {
        bench.report.add(least)?;
    }
    Ok(())
}

fn rows_of(groups: usize, per_window: i64, start_us: i64) -> Rows {
    Rows { groups, gap_us: WINDOW_US / per_window, start_us, pause: None }
}

/// Seconds for all rows through a stream, the last window included.
fn ours(window: &Window, batches: &[RecordBatch], how: How) -> anyhow::Result<f64> {
    let mut stream = Timed::new(OURS, window.clone(), how)?;
    block(async {
        let mut rows = 0;
        for batch in batches {
            stream.rows(batch.clone()).await?;
            rows += batch.num_rows() as u64;
        }
        // The clock is beyond all windows.
        stream.drain(i64::MAX / 2).await?;
        anyhow::ensure!(stream.counted == rows, "{} of {rows} rows came out", stream.counted);
        Ok(stream.took.as_secs_f64())
    })
}

/// Seconds for the same in DataFusion, with windows of so many microseconds.
fn theirs(window_us: i64, batches: &[RecordBatch]) -> anyhow::Result<f64> {
    let sql = format!(
        "SELECT date_bin(INTERVAL '{window_us} microseconds', time) AS start, device, \
         count(*) AS n, avg(v) AS mean, max(v) AS high FROM rows GROUP BY 1, 2"
    );
    block(async {
        let memory = InMemory::plan("rows", schema(), batches.to_vec(), &sql).await?;
        let start = Instant::now();
        let results = memory.run().await?;
        let took = start.elapsed();
        let (counted, rows): (u64, usize) =
            (results.iter().map(sum_of_n).sum(), batches.iter().map(RecordBatch::num_rows).sum());
        anyhow::ensure!(counted == rows as u64, "DataFusion counted {counted} of {rows} rows");
        Ok(took.as_secs_f64())
    })
}

fn session(bench: &mut Bench, groups: usize) -> anyhow::Result<()> {
    let name = format!("{SESSION}.{groups}_groups");
    if !bench.wants(&name) {
        return Ok(());
    }
    let (window, burst_us, batches) = sessions(groups, bench.effort.rows)?;
    let millions = bench.effort.rows as f64 / 1e6;
    let pairs: Vec<(f64, f64)> = (0..bench.effort.rounds)
        .map(|_| {
            let ours = ours(&window, &batches, How::Itself)?;
            Ok((millions / ours, millions / theirs(burst_us, &batches)?))
        })
        .collect::<anyhow::Result<_>>()?;
    bench.report.add(Figure::pairs(name, "Mrows/s", &pairs))
}

/// Sessions, how long a burst takes with its pause, and rows in bursts of ten of each device.
fn sessions(groups: usize, rows: usize) -> anyhow::Result<(Window, i64, Vec<RecordBatch>)> {
    let (gap, pause, burst) = (5_000_000, 10_000_000, 10 * groups);
    let bursts = Rows { groups, gap_us: 1, start_us: 0, pause: Some((burst, pause)) };
    let window = Window::Session { gap, length_max: None, by: vec!["device".to_owned()] };
    Ok((window, pause + i64::try_from(burst)?, bursts.batches(rows)?))
}

fn hopping(bench: &mut Bench, groups: usize) -> anyhow::Result<()> {
    let name = |name: &str| format!("{name}.{groups}_groups");
    let overlapping = Window::Hopping { size: PANES * WINDOW_US, step: WINDOW_US, offset: 0 };
    let tumbling = Window::Tumbling { size: WINDOW_US, offset: 0 };
    let mut bytes = None;
    for (figure, per_pane) in [(HOPPING, WINDOW_ROWS), (HOPPING_SPARSE, WINDOW_ROWS / 10)] {
        let also = figure == HOPPING && bench.wants(&name(BYTES));
        if !also && !bench.wants(&name(figure)) {
            continue;
        }
        let rows = bench.effort.rows;
        let pairs: Vec<(f64, f64)> = (0..bench.effort.rounds)
            .map(|_| {
                let (ours, held) = steady(&overlapping, groups, per_pane, rows)?;
                bytes = bytes.or(Some(held));
                Ok((ours, steady(&tumbling, groups, per_pane, rows)?.0))
            })
            .collect::<anyhow::Result<_>>()?;
        let mut figure = Figure::pairs(name(figure), "us/row", &pairs);
        if per_pane == WINDOW_ROWS {
            figure = figure.bar(Bar::AtMost(1.5));
        }
        bench.report.add(figure)?;
    }
    if let Some(bytes) = bytes {
        let panes = f64::from(u32::try_from(PANES)?);
        let each = bytes as f64 / panes / groups as f64;
        bench.report.add(Figure::alone(name(BYTES), "bytes", &[each]))?;
    }
    Ok(())
}

/// Microseconds for each of `rows` rows once an hour of panes is there, and the bytes that were
/// held then.
fn steady(
    window: &Window,
    groups: usize,
    per_pane: i64,
    rows: usize,
) -> anyhow::Result<(f64, u64)> {
    let mut stream = Timed::new(OURS, window.clone(), How::Itself)?;
    block(async {
        let before = rows_of(groups, i64::try_from(groups)?, 0);
        for pane in 0..usize::try_from(PANES)? {
            stream.rows(before.batch(pane * groups, groups)?).await?;
        }
        let start = PANES * WINDOW_US;
        let rows_from = rows_of(groups, per_pane, start);
        // The first row of each device in the next pane closes the last of the hour.
        stream.rows(rows_from.batch(0, groups)?).await?;
        let held = stream.counts().open_bytes;
        stream.took = std::time::Duration::ZERO;
        for first in (groups..rows).step_by(BATCH_ROWS) {
            stream.rows(rows_from.batch(first, BATCH_ROWS.min(rows - first))?).await?;
        }
        let counts = stream.counts();
        anyhow::ensure!(counts.failed == 0 && counts.late == 0, "rows were lost: {counts:?}");
        Ok((stream.took.as_secs_f64() * 1e6 / rows as f64, held))
    })
}

/// How long the event takes that ends a 1 s window of 1,000 rows.
fn close(bench: &mut Bench) -> anyhow::Result<()> {
    if !bench.wants(CLOSE) {
        return Ok(());
    }
    let (second, per_batch) = (1_000_000, 10);
    let windows = bench.effort.rows / 10_000;
    let rows = Rows { groups: 10, gap_us: 1_000, ..Rows::default() };
    let mut stream = Timed::new(OURS, Window::Tumbling { size: second, offset: 0 }, How::Itself)?;
    let took = block(async {
        let mut took = Vec::with_capacity(windows);
        for first in (0..windows * 1_000).step_by(per_batch) {
            let before = stream.took;
            let effects = stream.rows(rows.batch(first, per_batch)?).await?;
            if !effects.results.is_empty() {
                took.push(stream.took.saturating_sub(before).as_secs_f64() * 1e3);
            }
        }
        Ok(took)
    })?;
    anyhow::ensure!(took.len() + 1 == windows, "{} of {windows} windows closed", took.len());
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        let figure = Figure::alone(format!("{CLOSE}.{name}_ms"), "ms", &[quantile(&took, share)]);
        bench.report.add(figure)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sides_count_every_row() {
        let batches = rows_of(10, WINDOW_ROWS, 0).batches(250_000).unwrap();
        let window = Window::Tumbling { size: WINDOW_US, offset: 0 };
        assert!(ours(&window, &batches, How::Itself).unwrap() > 0.0);
        assert!(ours(&window, &batches, How::Recompute).unwrap() > 0.0);
        assert!(theirs(WINDOW_US, &batches).unwrap() > 0.0);
        let (window, burst_us, batches) = sessions(50, 2_000).unwrap();
        assert!(ours(&window, &batches, How::Itself).unwrap() > 0.0);
        assert!(theirs(burst_us, &batches).unwrap() > 0.0);
    }

    /// An hour of panes is there when the clock starts: each result is of 360 of them.
    #[test]
    fn a_window_of_an_hour_is_full_when_it_is_measured() {
        let overlapping = Window::Hopping { size: PANES * WINDOW_US, step: WINDOW_US, offset: 0 };
        let mut stream = Timed::new(OURS, overlapping, How::Itself).unwrap();
        let effects = block(async {
            let before = rows_of(5, 5, 0);
            for pane in 0..360 {
                stream.rows(before.batch(pane * 5, 5)?).await?;
            }
            stream.rows(rows_of(5, 10, PANES * WINDOW_US).batch(0, 5)?).await
        })
        .unwrap();
        let [output] = &effects.results[..] else { panic!("{}", effects.results.len()) };
        assert_eq!((output.batch.num_rows(), sum_of_n(&output.batch)), (5, 360 * 5));
    }
}
