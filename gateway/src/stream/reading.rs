//! Reads tables' logs into a stream: what its windows held before a start, and what came since.
//!
//! Promise: what came since is taken in the order of its time between tables, a few rows at a time, so
//! that windows close while it is read, and hours of one table do not wait in memory for those of
//! another. Within one table it is the order of the log. Rows that are not there any more are counted, by
//! the positions that they leave out. Knows no windows.

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

    /// Counts the rows of its table that are gone before the stream read them, in the commit whose
    /// progress goes past them: each is counted once, whatever crashes. Rows that are read again after
    /// a start lie below that progress, so that what is missing of them is no news.
    pub(super) fn count_missed(&self, stream: &Stream, event: &Event, commit: &mut Commit) {
        let (Event::Rows { table, position, .. } | Event::Replay { table, position, .. }) = event
        else {
            return;
        };
        let missed = gone(stream.processed(*table), *position);
        if missed > 0 {
            let table = &*self.tables[*table];
            let words =
                "rows of its table were gone before it read them: they are counted as missed";
            tracing::warn!(stream = &*self.name, table, rows = missed, "{words}");
            commit.counts.push((self.missed.clone(), missed));
        }
    }
}

/// Rows that are gone where a stream that has processed a table up to `processed` is given the one at
/// `position`. A table that is new to it, or has had no rows, begins wherever its log does.
fn gone(processed: u64, position: u64) -> u64 {
    if processed == 0 { 0 } else { position.saturating_sub(processed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_two_rows_is_gone_but_before_the_first_nothing_is_known() {
        assert_eq!((gone(10, 10), gone(10, 11), gone(10, 4_000)), (0, 1, 3_990));
        assert_eq!(gone(10, 3), 0, "read again");
        assert_eq!(gone(0, 5_000), 0, "a new table begins where its log does");
    }
}
