//! Functions over time beside plain aggregates of the same windows, in our own engine.
//!
//! Both sides are streams of 10 s windows over the same rows, a count with each, so what is compared is what
//! it costs to know when values were read: rows in the order of time, folded 10 s behind the watermark, and
//! what held before each window. DataFusion has no such functions. Rows come in order and none is late.
//!
//! - `average`: `time_weighted_avg(v, time)` beside `avg(v)`, of floats.
//! - `counter`: `counter_delta(seq)` beside `max(seq) - min(seq)`, of whole numbers that grow.

use tidegate_engine::Window;

use super::Bench;
use super::engine::{WINDOW_ROWS, WINDOW_US, rows_of, through};
use super::figures::Figure;
use super::rows::How;

const GROUPS: [usize; 2] = [10, 1_000];

/// A figure, the function over time, and what stands beside it.
const FIGURES: [(&str, &str, &str); 2] = [
    ("engine.over_time.average_to_plain", "time_weighted_avg(v, time)", "avg(v)"),
    ("engine.over_time.counter_to_plain", "counter_delta(seq)", "max(seq) - min(seq)"),
];

fn sql(of: &str) -> String {
    format!("SELECT device, count(*) AS n, {of} AS x FROM rows GROUP BY device")
}

pub(super) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    let window = Window::Tumbling { size: WINDOW_US, offset: 0 };
    for (figure, over_time, plain) in FIGURES {
        for groups in GROUPS {
            let name = format!("{figure}.{groups}_groups");
            if !bench.wants(&name) {
                continue;
            }
            let batches = rows_of(groups, WINDOW_ROWS, 0).batches(bench.effort.rows)?;
            let millions = bench.effort.rows as f64 / 1e6;
            let rate = |of: &str| -> anyhow::Result<f64> {
                Ok(millions / through(&sql(of), &window, &batches, How::Itself)?.0)
            };
            // Short runs: more of them.
            let pairs: Vec<(f64, f64)> = (0..=bench.effort.rounds * 2)
                .map(|_| Ok((rate(over_time)?, rate(plain)?)))
                .collect::<anyhow::Result<_>>()?;
            bench.report.add(Figure::pairs(name, "Mrows/s", &pairs))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [`through`] counts the rows that come out, on both sides.
    #[test]
    fn both_sides_count_every_row() {
        let batches = rows_of(10, WINDOW_ROWS, 0).batches(250_000).unwrap();
        let window = Window::Tumbling { size: WINDOW_US, offset: 0 };
        for (figure, over_time, plain) in FIGURES {
            for of in [over_time, plain] {
                let (took, _) = through(&sql(of), &window, &batches, How::Itself).unwrap();
                assert!(took > 0.0, "{figure}: {of}");
            }
        }
    }
}
