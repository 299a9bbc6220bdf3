//! Windows that are over at the same time, computed together where the SQL allows it.
//!
//! Promise: the results are those of computing one window after the other, in the same order; a
//! window whose SQL fails takes no other with it.

use std::ops::Range;

use arrow::record_batch::RecordBatch;
use datafusion::error::DataFusionError;

use super::frames::{Ended, Run};
use super::{Effects, Stream};
use crate::sql::SqlError;

impl Stream {
    /// Computes the windows of a run.
    pub(super) async fn compute_run(&mut self, run: Run, effects: &mut Effects) {
        let Run { windows, batches, error } = run;
        if let Some(error) = error {
            let error = SqlError::from(DataFusionError::from(error));
            for window in windows {
                let bounds = Some(window.bounds);
                self.fail(bounds, window.settled, error.clone(), Vec::new(), effects);
            }
            return;
        }
        let firsts = firsts(&windows, batches.len());
        // Halves of a run that failed as a whole, down to the windows that fail.
        let all = 0..windows.len();
        let mut ranges: Vec<Range<usize>> =
            if self.query.computes_together() { vec![all] } else { singly(all) };
        while let Some(range) = ranges.pop() {
            let rows: Vec<Vec<RecordBatch>> = batches
                .iter()
                .zip(&firsts)
                .map(|(batches, first)| cut(batches, first[range.start]..first[range.end]))
                .collect();
            if let [window] = &windows[range.clone()] {
                let kept = self.kept(&rows);
                let result = self.query.execute(rows, Some(window.bounds)).await;
                self.result_of(window, result, kept, effects);
                continue;
            }
            let shapes = windows[range.clone()].iter().map(|w| (w.bounds, w.rows[0])).collect();
            if let Ok(results) = self.query.execute_together(rows, shapes).await {
                for (window, result) in windows[range].iter().zip(results) {
                    self.result_of(window, Ok(result), Vec::new(), effects);
                }
            } else {
                let middle = range.start + range.len() / 2;
                ranges.extend([middle..range.end, range.start..middle]);
            }
        }
    }

    fn result_of(
        &mut self,
        window: &Ended,
        result: Result<Vec<RecordBatch>, SqlError>,
        kept: Vec<Vec<RecordBatch>>,
        effects: &mut Effects,
    ) {
        match result {
            Ok(batches) => {
                self.counts.windowed += window.settled;
                self.number(batches, Some(window.bounds), window.quality, effects);
            }
            Err(error) => self.fail(Some(window.bounds), window.settled, error, kept, effects),
        }
    }
}

/// One window after the other, to be taken from the end.
fn singly(range: Range<usize>) -> Vec<Range<usize>> {
    range.rev().map(|window| window..window + 1).collect()
}

/// For each table the index of each window's first row, and of the end.
fn firsts(windows: &[Ended], tables: usize) -> Vec<Vec<usize>> {
    let of = |table: usize| {
        let mut at = 0;
        let ends = windows.iter().map(move |window| {
            at += window.rows[table];
            at
        });
        std::iter::once(0).chain(ends).collect()
    };
    (0..tables).map(of).collect()
}

fn cut(batches: &[RecordBatch], rows: Range<usize>) -> Vec<RecordBatch> {
    let cut = batches.iter().map(|batch| batch.slice(rows.start, rows.len()));
    cut.filter(|batch| batch.num_rows() > 0).collect()
}
