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
//!   counts. Of 100,000 devices an hour's panes are 2 GB, so there it is 6 min every 10 s. Then, with
//!   panes of 1,000 rows, what a pane and the close of its window take, beside a stream that
//!   computes each window from its rows, and beside DataFusion over one window's rows.
//! - `session`: by device, in bursts of ten rows of each, beside DataFusion, which groups by bursts.
//!   Sessions are always computed from their rows.
//! - `close`: from the batch that ends a 1 s window at 1,000 rows a second to the result.
//! - `bytes_per_group_and_pane`: what a stream holds at most; for tumbling windows beside one that
//!   keeps its rows, for hopping ones once all panes are there.

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
const HOPPING_RECOMPUTE: &str = "engine.hopping.pane_ms_to_recompute";
const HOPPING_DATAFUSION: &str = "engine.hopping.pane_ms_to_datafusion";
const BYTES: &str = "engine.hopping.bytes_per_group_and_pane";
const TUMBLING_BYTES: &str = "engine.tumbling.bytes_per_group_and_pane";
const SESSION: &str = "engine.session.ratio_to_datafusion";
const SESSION_BYTES: &str = "engine.session.bytes_per_group_and_pane";
const CLOSE: &str = "engine.close";

pub(super) const WINDOW_US: i64 = 10_000_000;
/// Rows of one 10 s window.
pub(super) const WINDOW_ROWS: i64 = 100_000;
/// Panes of an hour.
const PANES: i64 = 360;
/// Panes of 6 min, for so many groups that those of an hour do not fit.
const PANES_OF_MANY: i64 = 36;
const MANY_GROUPS: usize = 100_000;
/// Windows that are computed beside those of a stream that keeps its rows.
const CLOSES: usize = 20;

const GROUPS: [usize; 3] = [10, 1_000, MANY_GROUPS];

const OURS: &str = "SELECT window_start() AS start, device, count(*) AS n, avg(v) AS mean, \
                    max(v) AS high FROM rows GROUP BY device";

pub(super) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    tumbling(bench)?;
    for groups in GROUPS {
        hopping(bench, groups)?;
    }
    for groups in [10, 1_000] {
        overlapping(bench, groups)?;
    }
    for groups in GROUPS {
        session(bench, groups)?;
    }
    close(bench)
}

fn tumbling(bench: &mut Bench) -> anyhow::Result<()> {
    let mut judged = Vec::new();
    for groups in GROUPS {
        let names = [NAME, RECOMPUTE, TUMBLING_BYTES].map(|name| format!("{name}.{groups}_groups"));
        if !names.iter().any(|name| bench.wants(name)) {
            continue;
        }
        let rows = rows_of(groups, WINDOW_ROWS, 0);
        let batches = rows.batches(bench.effort.rows)?;
        // Short runs: more of them.
        let rounds = bench.effort.rounds * 2 + 1;
        let (mut to_theirs, mut to_rows, mut held) = (Vec::new(), Vec::new(), Vec::new());
        let millions = bench.effort.rows as f64 / 1e6;
        for _ in 0..rounds {
            let window = Window::Tumbling { size: WINDOW_US, offset: 0 };
            let (took, bytes) = ours(&window, &batches, How::Itself)?;
            to_theirs.push((millions / took, millions / theirs(WINDOW_US, &batches)?));
            let (from_rows, bytes_of_rows) = ours(&window, &batches, How::Recompute)?;
            to_rows.push((millions / took, millions / from_rows));
            held.push((bytes / groups as f64, bytes_of_rows / groups as f64));
        }
        let [name, recompute, bytes] = names;
        let mut figure = Figure::pairs(name, "Mrows/s", &to_theirs);
        if groups <= 1_000 {
            figure = figure.bar(Bar::AtLeast(0.8));
            judged.push(figure.clone());
        }
        bench.report.add(figure)?;
        bench.report.add(Figure::pairs(recompute, "Mrows/s", &to_rows))?;
        bench.report.add(Figure::pairs(bytes, "bytes", &held))?;
    }
    if let Some(least) = Figure::least(NAME, &judged) {
        bench.report.add(least)?;
    }
    Ok(())
}

pub(super) fn rows_of(groups: usize, per_window: i64, start_us: i64) -> Rows {
    Rows { groups, gap_us: WINDOW_US / per_window, start_us, pause: None }
}

fn ours(window: &Window, batches: &[RecordBatch], how: How) -> anyhow::Result<(f64, f64)> {
    through(OURS, window, batches, how)
}

/// Seconds for all rows through a stream, the last window included, and the most bytes that were
/// held. The SQL counts them in a column `n`.
pub(super) fn through(
    sql: &str,
    window: &Window,
    batches: &[RecordBatch],
    how: How,
) -> anyhow::Result<(f64, f64)> {
    let mut stream = Timed::new(sql, window.clone(), how)?;
    block(async {
        let mut rows = 0;
        for batch in batches {
            stream.rows(batch.clone()).await?;
            rows += batch.num_rows() as u64;
        }
        // The clock is beyond all windows.
        stream.drain(i64::MAX / 2).await?;
        anyhow::ensure!(stream.counted == rows, "{} of {rows} rows came out", stream.counted);
        Ok((stream.took.as_secs_f64(), stream.held_max as f64))
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
    let [name, bytes] = [SESSION, SESSION_BYTES].map(|name| format!("{name}.{groups}_groups"));
    if !bench.wants(&name) && !bench.wants(&bytes) {
        return Ok(());
    }
    let (window, burst_us, batches) = sessions(groups, bench.effort.rows)?;
    let millions = bench.effort.rows as f64 / 1e6;
    let mut held = Vec::new();
    let pairs: Vec<(f64, f64)> = (0..bench.effort.rounds)
        .map(|_| {
            let (took, bytes) = ours(&window, &batches, How::Itself)?;
            held.push(bytes / groups as f64);
            Ok((millions / took, millions / theirs(burst_us, &batches)?))
        })
        .collect::<anyhow::Result<_>>()?;
    bench.report.add(Figure::pairs(name, "Mrows/s", &pairs))?;
    bench.report.add(Figure::alone(bytes, "bytes", &held))
}

/// Sessions, how long a burst takes with its pause, and rows in bursts of ten of each device.
fn sessions(groups: usize, rows: usize) -> anyhow::Result<(Window, i64, Vec<RecordBatch>)> {
    let (gap, pause, burst) = (5_000_000, 10_000_000, 10 * groups);
    let bursts = Rows { groups, gap_us: 1, start_us: 0, pause: Some((burst, pause)) };
    let window = Window::Session { gap, length_max: None, by: vec!["device".to_owned()] };
    Ok((window, pause + i64::try_from(burst)?, bursts.batches(rows)?))
}

/// How many panes the overlapping windows have.
fn panes_for(groups: usize) -> i64 {
    if groups < MANY_GROUPS { PANES } else { PANES_OF_MANY }
}

fn hopping(bench: &mut Bench, groups: usize) -> anyhow::Result<()> {
    let name = |name: &str| format!("{name}.{groups}_groups");
    let mut held = Vec::new();
    for (figure, per_pane) in [(HOPPING, WINDOW_ROWS), (HOPPING_SPARSE, WINDOW_ROWS / 10)] {
        let also = figure == HOPPING && bench.wants(&name(BYTES));
        let sparse = figure == HOPPING_SPARSE;
        if !also && !bench.wants(&name(figure)) || sparse && groups == MANY_GROUPS {
            continue;
        }
        let rows = bench.effort.rows;
        let tumbling = Window::Tumbling { size: WINDOW_US, offset: 0 };
        let pairs: Vec<(f64, f64)> = (0..bench.effort.rounds)
            .map(|_| {
                let (ours, bytes) = steady(&overlap(groups), groups, per_pane, rows)?;
                held.push(bytes as f64 / panes_for(groups) as f64 / groups as f64);
                Ok((ours, steady(&tumbling, groups, per_pane, rows)?.0))
            })
            .collect::<anyhow::Result<_>>()?;
        let mut figure = Figure::pairs(name(figure), "us/row", &pairs);
        if per_pane == WINDOW_ROWS && groups <= 1_000 {
            figure = figure.bar(Bar::AtMost(1.5));
        }
        bench.report.add(figure)?;
    }
    if !held.is_empty() {
        bench.report.add(Figure::alone(name(BYTES), "bytes", &held))?;
    }
    Ok(())
}

/// Windows that overlap, one every 10 s.
fn overlap(groups: usize) -> Window {
    Window::Hopping { size: panes_for(groups) * WINDOW_US, step: WINDOW_US, offset: 0 }
}

/// Microseconds for each of `rows` rows once all panes of a window are there, and the bytes that
/// were held then.
fn steady(
    window: &Window,
    groups: usize,
    per_pane: i64,
    rows: usize,
) -> anyhow::Result<(f64, u64)> {
    let mut stream = Timed::new(OURS, window.clone(), How::Itself)?;
    block(async {
        let panes = panes_for(groups);
        let before = rows_of(groups, i64::try_from(groups)?, 0);
        for pane in 0..usize::try_from(panes)? {
            stream.rows(before.batch(pane * groups, groups)?).await?;
        }
        let rows_from = rows_of(groups, per_pane, panes * WINDOW_US);
        // The first row of each device in the next pane closes the last window before.
        stream.rows(rows_from.batch(0, groups)?).await?;
        let held = stream.counts().open_bytes;
        stream.took = std::time::Duration::ZERO;
        for first in (groups..rows).step_by(BATCH_ROWS) {
            stream.rows(rows_from.batch(first, BATCH_ROWS.min(rows - first))?).await?;
        }
        let counts = stream.counts();
        anyhow::ensure!(counts.failed == 0 && counts.late == 0, "rows were lost: {counts:?}");
        Ok((stream.took.as_secs_f64() * 1e6 / (rows - groups.min(rows)) as f64, held))
    })
}

/// Overlapping windows computed from states, from their rows, and by DataFusion from one window's
/// rows after the other.
fn overlapping(bench: &mut Bench, groups: usize) -> anyhow::Result<()> {
    let names = [HOPPING_RECOMPUTE, HOPPING_DATAFUSION];
    let [recompute, datafusion] = names.map(|name| format!("{name}.{groups}_groups"));
    if !bench.wants(&recompute) && !bench.wants(&datafusion) {
        return Ok(());
    }
    let rows = rows_of(groups, 1_000, 0);
    let hour = rows.batches(usize::try_from(PANES)? * 1_000)?;
    let (mut to_rows, mut to_theirs) = (Vec::new(), Vec::new());
    for _ in 0..bench.effort.rounds {
        let itself = pane_ms(groups, How::Itself)?;
        to_rows.push((itself, pane_ms(groups, How::Recompute)?));
        to_theirs.push((itself, theirs(PANES * WINDOW_US, &hour)? * 1e3));
    }
    bench.report.add(Figure::pairs(recompute, "ms", &to_rows))?;
    bench.report.add(Figure::pairs(datafusion, "ms", &to_theirs))
}

/// Milliseconds for a pane of 1,000 rows and the window that ends with it, an hour of panes before.
fn pane_ms(groups: usize, how: How) -> anyhow::Result<f64> {
    let (panes, rows) = (usize::try_from(PANES)?, rows_of(groups, 1_000, 0));
    let mut stream = Timed::new(OURS, overlap(groups), how)?;
    block(async {
        for pane in 0..panes + CLOSES {
            if pane == panes {
                stream.took = std::time::Duration::ZERO;
            }
            stream.rows(rows.batch(pane * 1_000, 1_000)?).await?;
        }
        let counts = stream.counts();
        anyhow::ensure!(counts.failed == 0 && counts.late == 0, "rows were lost: {counts:?}");
        Ok(stream.took.as_secs_f64() * 1e3 / CLOSES as f64)
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
        assert!(ours(&window, &batches, How::Itself).unwrap().0 > 0.0);
        // 100,000 rows of a window in 13 batches: 44 bytes each of the last 98,304.
        let (took, held) = ours(&window, &batches, How::Recompute).unwrap();
        assert!(took > 0.0 && held >= 98_304.0 * 44.0, "{held}");
        assert!(theirs(WINDOW_US, &batches).unwrap() > 0.0);
        let (window, burst_us, batches) = sessions(50, 2_000).unwrap();
        assert!(ours(&window, &batches, How::Itself).unwrap().0 > 0.0);
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
