//! Rows that were accepted before the clock was set, as status shows them.
//!
//! Plain values and their metrics. Does not know: any clock, and when a time is put right.

use serde::Serialize;

use crate::exposition::{Float, Page};

/// Whether rows wait for the clock, and what became of those that did.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ClockWait {
    /// Seconds for which rows wait at most from now on (`gateway.wait_for_clock`); none where the clock
    /// was set, or nobody waits for it any more.
    pub left_s: Option<f64>,
    /// Seconds by which the times of rows that waited were moved when the clock was set, since the
    /// process started.
    pub rebased_by_s: Option<f64>,
    /// One for each table that ever had such rows.
    pub tables: Vec<ClockTable>,
}

/// The rows of one table that were accepted before the clock was set, since the store was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ClockTable {
    /// The table.
    pub table: String,
    /// Rows that wait.
    pub waiting: u64,
    /// Rows whose times were put right.
    pub rebased: u64,
    /// Rows that kept the times that they had, because nobody set the clock in time or the machine was
    /// started again before. Those that arrival stamped are `uncertain`.
    pub doubted: u64,
}

/// Renders the metrics.
pub(crate) fn render(page: &mut Page, clock: &ClockWait) {
    let tables = &clock.tables;
    page.gauge(
        "tidegate_clock_wait_left_seconds",
        "For how long rows go on waiting for the clock to be set, at most.",
        |f| f.put_known(&[], clock.left_s.map(Float)),
    );
    page.gauge("tidegate_table_clock_waiting_rows", "Rows that wait for the clock.", |f| {
        for t in tables {
            f.put(&[("table", &t.table)], t.waiting);
        }
    });
    page.counter(
        "tidegate_table_clock_decided_rows_total",
        "Rows that waited for the clock, by what became of their times.",
        |f| {
            for t in tables {
                for (outcome, rows) in [("rebased", t.rebased), ("doubted", t.doubted)] {
                    f.put(&[("table", &t.table), ("outcome", outcome)], rows);
                }
            }
        },
    );
}
