//! Windows that close, and rows without one, become results, or are counted as failed.
//!
//! Promise: results are numbered in the order of windows; rows over which the SQL failed are given
//! out where they are wanted, and stop nothing. It does not know how windows hold their rows.

use arrow::record_batch::RecordBatch;

use super::frames::{Closed, Frames, Input};
use super::refill::Arrival;
use super::rows::{self, quality_runs};
use super::{Effects, FailedRows, Output, Stream, StreamError};
use crate::sql::SqlError;
use crate::window::Bounds;

impl Stream {
    /// Closes every window that the watermark has passed, in order of time.
    pub(super) async fn close(&mut self, effects: &mut Effects) {
        if self.refill.is_some() {
            return;
        }
        let mark = self.watermark.current();
        self.close_to(mark, effects).await;
    }

    pub(super) async fn close_to(&mut self, mark: Option<i64>, effects: &mut Effects) {
        if let Some(mark) = mark {
            while let Some(frames) = &mut self.frames
                && let Some(closed) = frames.close(mark, &mut self.query).await
            {
                self.compute(closed, effects).await;
            }
        }
        while let Some(run) = self.frames.as_mut().and_then(|frames| frames.close_run(mark)) {
            self.compute_run(run, effects).await;
        }
        if let Some(settled) = self.frames.as_mut().map(Frames::settled) {
            self.counts.windowed += settled.windowed;
            self.counts.filtered += settled.filtered;
            for (rows, error) in settled.failed {
                self.fail(None, rows, error, Vec::new(), effects);
            }
        }
    }

    pub(super) async fn fold(&mut self) {
        if let Some(frames) = &mut self.frames {
            let (may_store, mark) = (self.refill.is_none(), self.watermark.current());
            frames.fold(&mut self.query, may_store, mark, &self.processed).await;
        }
    }

    async fn compute(&mut self, closed: Closed, effects: &mut Effects) {
        let Closed { bounds, input, settled, quality } = closed;
        let mut kept = Vec::new();
        let result = match (self.last.show(&mut self.query), input) {
            (Err(error), _) => Err(error.into()),
            (Ok(()), Input::Rows(batches)) => {
                let parts = batches.into_iter().zip(&self.spec.tables);
                let inputs: Result<Vec<_>, _> =
                    parts.map(|(part, table)| rows::in_time_order(part, table)).collect();
                match inputs {
                    Ok(inputs) => {
                        kept = self.kept(&inputs);
                        self.query.execute(inputs, Some(bounds)).await
                    }
                    Err(error) => Err(error.into()),
                }
            }
            (Ok(()), Input::Unordered(inputs)) => {
                kept = self.kept(&inputs);
                self.query.execute(inputs, Some(bounds)).await
            }
            (Ok(()), Input::States(states)) => self.query.finish(states, bounds).await,
            (Ok(()), Input::Failed(error)) => Err(error),
        };
        match result {
            Ok(batches) => {
                self.counts.windowed += settled;
                self.number(batches, Some(bounds), quality, effects);
            }
            Err(error) => self.fail(Some(bounds), settled, error, kept, effects),
        }
    }

    /// Runs SQL without a window over rows that were not applied before.
    pub(super) async fn pass(
        &mut self,
        arrival: &Arrival,
        effects: &mut Effects,
    ) -> Result<(), StreamError> {
        let Arrival { table, columns, .. } = arrival;
        let new = arrival.row_at(self.processed[*table]);
        self.counts.accepted += (columns.len() - new) as u64;
        self.counts.restamped += arrival.restamped_from(new);
        self.processed[*table] = self.processed[*table].max(arrival.end());
        self.last.show(&mut self.query).map_err(|e| StreamError::Input(e.to_string()))?;
        for (start, end, quality) in quality_runs(columns, new) {
            let mut inputs = vec![Vec::new(); self.spec.tables_in_from()];
            inputs[*table].push(columns.batch().slice(start, end - start));
            let (rows, kept) = ((end - start) as u64, self.kept(&inputs));
            match self.query.execute(inputs, None).await {
                Ok(batches) => {
                    let out: usize = batches.iter().map(RecordBatch::num_rows).sum();
                    let passed = rows.min(out as u64);
                    self.counts.windowed += passed;
                    self.counts.filtered += rows - passed;
                    self.number(batches, None, quality, effects);
                }
                Err(error) => self.fail(None, rows, error, kept, effects),
            }
        }
        Ok(())
    }

    pub(super) fn number(
        &mut self,
        batches: Vec<RecordBatch>,
        window: Option<Bounds>,
        quality: &'static str,
        effects: &mut Effects,
    ) {
        for batch in batches {
            let rows = batch.num_rows() as u64;
            let first_seq = self.next_seq;
            self.next_seq += rows;
            self.counts.results += rows;
            effects.results.push(Output { batch, window, first_seq, quality });
        }
    }

    /// The rows that would be given out if the SQL failed on them.
    pub(super) fn kept(&self, inputs: &[Vec<RecordBatch>]) -> Vec<Vec<RecordBatch>> {
        if self.spec.keep_failed { inputs.to_vec() } else { Vec::new() }
    }

    pub(super) fn fail(
        &mut self,
        window: Option<Bounds>,
        rows: u64,
        error: SqlError,
        kept: Vec<Vec<RecordBatch>>,
        effects: &mut Effects,
    ) {
        self.counts.failed += rows;
        let failure = StreamError::Query { window, rows, error };
        let error = failure.to_string();
        for (table, batches) in kept.into_iter().enumerate() {
            for batch in batches {
                self.counts.failed_out += batch.num_rows() as u64;
                effects.failed.push(FailedRows { table, error: error.clone(), batch });
            }
        }
        effects.failures.push(failure);
    }
}
