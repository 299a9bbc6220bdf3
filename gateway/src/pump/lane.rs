//! One lane of an outbox: rows in order, what was settled of them, and which record is to blame
//! where connections end.
//!
//! Knows no driver and no other lane.

use std::collections::VecDeque;
use std::ops::Range;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use tidegate_engine::store::{OutboxRow, StoreError};

use super::outbox::Outbox;

/// Bytes of the rows that a lane holds at most, unless a single one is larger.
const HELD_BYTES_MAX: usize = 1 << 20;

/// Rows in order, with a contiguous low-water mark.
#[derive(Default)]
pub(super) struct Lane {
    /// Everything up to here is settled.
    pub(super) cursor: u64,
    /// The last position that belongs to the lane; none where it has no end.
    pub(super) upto: Option<u64>,
    /// Records up to here were settled in another lane: only notices of gaps are left there.
    pub(super) elsewhere: u64,
    /// Whether the record at the head ends connections.
    pub(super) suspicion: Suspicion,
    /// How often the record at the head was refused.
    pub(super) refusals: u32,
    rows: VecDeque<OutboxRow>,
    fetch: Option<BoxFuture<'static, Result<Vec<OutboxRow>, StoreError>>>,
}

impl Lane {
    /// A lane of which everything up to `cursor` is settled.
    pub(super) fn new(cursor: u64, upto: Option<u64>) -> Self {
        Self { cursor, upto, ..Self::default() }
    }

    /// The rows that are held, in order.
    pub(super) fn rows(&mut self) -> &[OutboxRow] {
        self.rows.make_contiguous()
    }

    /// How many rows are held.
    pub(super) fn held(&self) -> usize {
        self.rows.len()
    }

    /// Rows at the head up to `position`, of those that are held.
    pub(super) fn held_upto(&self, position: u64) -> usize {
        self.rows.partition_point(|row| row.position <= position)
    }

    /// Whether the lane has an end and has reached it.
    pub(super) fn is_over(&self) -> bool {
        self.upto.is_some_and(|upto| self.cursor >= upto)
    }

    /// Resolves when rows are held, or the lane is over. `rows_max` bounds them.
    pub(super) fn poll_rows(
        &mut self,
        context: &mut Context<'_>,
        outbox: &dyn Outbox,
        rows_max: usize,
    ) -> Poll<Result<(), StoreError>> {
        if !self.rows.is_empty() || self.is_over() {
            return Poll::Ready(Ok(()));
        }
        loop {
            let cursor = self.cursor;
            let fetch =
                self.fetch.get_or_insert_with(|| outbox.next(cursor, rows_max, HELD_BYTES_MAX));
            let fetched = ready!(fetch.as_mut().poll(context));
            self.fetch = None;
            let mut rows = match fetched {
                Ok(rows) => rows,
                Err(error) => return Poll::Ready(Err(error)),
            };
            let last = rows.last().map_or(cursor, |row| row.position);
            let (upto, elsewhere) = (self.upto.unwrap_or(u64::MAX), self.elsewhere);
            rows.retain(|row| {
                row.position <= upto && (row.position > elsewhere || row.gap.is_some())
            });
            self.rows = rows.into();
            if self.rows.is_empty() {
                // Nothing of this lane is left there: settled elsewhere, dropped, or lost to bad
                // flash.
                self.cursor = last.min(upto);
            }
            if !self.rows.is_empty() || self.is_over() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Lets go what is held: it is read again.
    pub(super) fn forget(&mut self) {
        self.rows.clear();
        self.fetch = None;
    }

    /// Everything up to `position` was settled here.
    pub(super) fn settle(&mut self, position: u64) {
        self.cursor = self.cursor.max(position);
        self.rows.drain(..self.held_upto(position));
    }

    /// Everything up to `position` is settled in the store: where that is news, what is held may
    /// not be there any more.
    pub(super) fn follow(&mut self, position: u64) {
        if position > self.cursor {
            self.cursor = position;
            self.forget();
        }
    }
}

/// Knows a record with which the connection ends each time, such as one that is too large for a
/// broker that closes instead of refusing: it must not hold up the sink for ever.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Suspicion {
    position: u64,
    ended: u32,
}

/// Ends after which the head is sent alone, so that no other record can be the reason.
const ENDED_ALONE: u32 = 3;
/// Ends after which the record behind the head is tried: if that one passes, it is the head.
const ENDED_MAX: u32 = 5;

impl Suspicion {
    /// Which of the records that wait are sent, where `wanted` of them are to be.
    pub(super) fn range(self, rows: &[OutboxRow], wanted: usize) -> Range<usize> {
        match self.ended {
            _ if rows[0].position != self.position => 0..wanted,
            0..ENDED_ALONE => 0..wanted,
            ENDED_ALONE..ENDED_MAX => 0..1,
            _ if rows.len() > 1 => 1..2,
            _ => 0..1,
        }
    }

    /// The connection ended before anything was taken, `position` being at the head. After a
    /// record behind it fared no better, it is not to blame, and all begins anew.
    pub(super) fn ended_with(&mut self, position: u64) {
        let ended = if position == self.position { self.ended + 1 } else { 1 };
        *self = Self { position, ended: if ended > ENDED_MAX { 0 } else { ended } };
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::rows;
    use super::*;

    #[test]
    fn a42_a_record_that_ends_connections_is_found_by_the_one_behind_it() {
        let mut suspicion = Suspicion::default();
        let waiting = rows(7, 10);
        let mut sent = Vec::new();
        for _ in 0..7 {
            sent.push(suspicion.range(&waiting, 10));
            suspicion.ended_with(7);
        }
        let all = 0..10;
        // Three times all, twice alone, once the next one: a broker that closes on everything
        // blames nobody, and it begins anew.
        let expected = [all.clone(), all.clone(), all.clone(), 0..1, 0..1, 1..2, all];
        assert_eq!(sent, expected);
    }

    #[test]
    fn another_head_is_another_record() {
        let mut suspicion = Suspicion::default();
        for _ in 0..5 {
            suspicion.ended_with(7);
        }
        assert_eq!(suspicion.range(&rows(7, 3), 3), 1..2);
        assert_eq!(suspicion.range(&rows(7, 1), 1), 0..1);
        assert_eq!(suspicion.range(&rows(8, 3), 3), 0..3);
        suspicion.ended_with(8);
        assert_eq!(suspicion.range(&rows(8, 3), 3), 0..3);
    }
}
