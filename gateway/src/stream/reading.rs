//! Reads tables' logs into a stream: what its windows held before a start, and what came since.
//!
//! Promise: what came since is taken in the order of its time between tables, a few rows at a time, so
//! that windows close while it is read, and hours of one table do not wait in memory for those of
//! another. Within one table it is the order of the log. Knows no windows.

use arrow::array::RecordBatch;
use tidegate_engine::store::Commit;
use tidegate_engine::{Event, Stream};

use super::StreamPart;
use crate::preview::last_time;

/// Rows that are read from a log at once.
const ROWS: usize = 8192;
/// The same where several tables take turns.
const ROWS_IN_TURN: usize = 256;

/// A part of a table's log.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    table: usize,
    from: u64,
    /// Behind the last row; none is the end of the log.
    upto: Option<u64>,
    /// The rows did not come through the queue.
    anew: bool,
}

impl StreamPart {
    /// Applies a table's logged rows from `from`, to the end of the log or below `upto`: after a
    /// restore they are read again, `anew` where they did not come through the queue.
    pub(super) async fn read_log(
        &mut self,
        stream: &mut Stream,
        table: usize,
        from: u64,
        upto: Option<u64>,
        anew: bool,
    ) -> Result<(), String> {
        let mut rest = Stretch { table, from, upto, anew };
        while let Some((_, next)) = self.read_some(stream, rest, ROWS).await? {
            rest.from = next;
        }
        Ok(())
    }

    /// Applies what came to all tables since the stream was there.
    pub(super) async fn read_since(&mut self, stream: &mut Stream) -> Result<(), String> {
        let count = self.tables.len();
        let rows_max = if count > 1 { ROWS_IN_TURN } else { ROWS };
        // How far each table is read: by time, and where it goes on. Those that were read are out.
        let mut open: Vec<(i64, usize, u64)> =
            (0..count).map(|table| (i64::MIN, table, stream.processed(table))).collect();
        while let Some(behind) = (0..open.len()).min_by_key(|at| open[*at]) {
            let (_, table, from) = open[behind];
            let stretch = Stretch { table, from, upto: None, anew: false };
            match self.read_some(stream, stretch, rows_max).await? {
                Some((time, next)) => open[behind] = (time, table, next),
                None => drop(open.swap_remove(behind)),
            }
        }
        Ok(())
    }

    /// Applies some rows; gives the time of the last ones and where it goes on, or none at the end.
    async fn read_some(
        &mut self,
        stream: &mut Stream,
        stretch: Stretch,
        rows_max: usize,
    ) -> Result<Option<(i64, u64)>, String> {
        let Stretch { table, from, upto, anew } = stretch;
        let rows = self
            .store
            .read_log(&self.tables[table], from, rows_max)
            .await
            .map_err(|e| format!("log of {}: {e}", self.tables[table]))?;
        let (mut commit, mut reached) = (Commit::default(), None);
        for (position, batch) in rows {
            if upto.is_some_and(|upto| position >= upto) {
                self.submit(stream, commit).await?;
                return Ok(None);
            }
            let end = position + batch.num_rows() as u64;
            let over = upto.map_or(0, |upto| end.saturating_sub(upto));
            let kept = batch.num_rows() - usize::try_from(over).unwrap_or(0);
            let batch: RecordBatch = batch.slice(0, kept);
            reached = Some((last_time(&batch, &self.spec.tables[table]), end));
            let event = if anew {
                Event::Rows { table, position, batch }
            } else {
                Event::Replay { table, position, batch }
            };
            self.apply(stream, event, &mut commit).await?;
        }
        if reached.is_some() {
            self.submit(stream, commit).await?;
        }
        Ok(reached)
    }
}
