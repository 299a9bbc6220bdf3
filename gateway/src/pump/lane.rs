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
    /// Records up to here were settled before, or in another lane: only notices of gaps are left there.
    pub(super) elsewhere: u64,
    /// Whether the record at the head ends connections.
    pub(super) suspicion: Suspicion,
    /// How often the record at the head was refused.
    pub(super) refusals: Refusals,
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

    /// Which of the rows that are held are sent, where `wanted` are to be.
    pub(super) fn range(&mut self, wanted: usize) -> Range<usize> {
        self.suspicion.range(self.rows.make_contiguous(), wanted)
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

    /// Every record up to here is settled, whatever notices wait before.
    pub(super) fn passed(&self) -> u64 {
        self.cursor.max(self.elsewhere)
    }

    /// Notices of gaps wait from `position` on, before the cursor; the records up to that are settled.
    pub(super) fn step_back(&mut self, position: u64) {
        self.elsewhere = self.elsewhere.max(self.cursor);
        self.cursor = position;
        self.forget();
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

/// How often a record was refused. A lost connection in between takes nothing back: the answers were
/// about the record.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Refusals {
    position: u64,
    count: u32,
}

impl Refusals {
    /// The record at `position` was refused once more: how often by now. Of another record than before
    /// it begins anew.
    pub(super) fn again(&mut self, position: u64) -> u32 {
        let count = if position == self.position { self.count + 1 } else { 1 };
        *self = Self { position, count };
        count
    }
}

/// Knows a record with which the connection ends each time, such as one that is too large for a
/// broker that closes instead of refusing: it must not hold up the sink for ever.
///
/// A far side that is away, or takes nothing for a while, ends connections as well, and may be back at
/// any moment. So a record is to blame only where another one was taken in between and the connection
/// then ended with it once more.
#[derive(Debug, Clone, Default)]
pub(super) struct Suspicion {
    position: u64,
    ended: u32,
    /// Records behind it that were refused for good, and why, in order. They say nothing about
    /// connections: a driver may have refused them by itself.
    refused: Vec<(u64, String)>,
    /// The record behind these that was taken.
    passed: Option<u64>,
}

/// Ends after which the head is sent alone, so that no other record can be the reason.
const ENDED_ALONE: u32 = 3;
/// Ends after which the record behind the head is tried.
const ENDED_MAX: u32 = 5;

impl Suspicion {
    /// Which of the records that wait are sent, where `wanted` of them are to be.
    fn range(&self, rows: &[OutboxRow], wanted: usize) -> Range<usize> {
        match self.ended {
            _ if rows[0].position != self.position => 0..wanted,
            0..ENDED_ALONE => 0..wanted,
            ENDED_MAX.. if self.passed.is_none() => {
                let untried = |row: &OutboxRow| self.refusal(row.position).is_none();
                let behind = rows[1..].iter().position(untried);
                behind.map_or(0..1, |behind| behind + 1..behind + 2)
            }
            _ => 0..1,
        }
    }

    /// The connection ended before anything was taken, `position` being at the head. True where that
    /// record is to blame. After a record behind it fared no better, it is not, and all begins anew.
    pub(super) fn ended_with(&mut self, position: u64) -> bool {
        if position != self.position {
            *self = Self { position, ended: 1, ..Self::default() };
            return false;
        }
        if self.passed.is_none() {
            self.ended += 1;
            if self.ended > ENDED_MAX {
                *self = Self { position, ..Self::default() };
            }
        }
        self.passed.is_some()
    }

    /// A record behind the head was refused for good.
    pub(super) fn refused_behind(&mut self, position: u64, reason: &str) {
        self.refused.push((position, reason.to_owned()));
    }

    /// A record behind the head was taken: the head is tried again.
    pub(super) fn passed_behind(&mut self, position: u64) {
        self.passed = Some(position);
    }

    /// The record behind `head` that was taken before it.
    pub(super) fn passed(&self, head: u64) -> Option<u64> {
        self.passed.filter(|_| head == self.position)
    }

    /// Why a record behind the head was refused.
    pub(super) fn refusal(&self, position: u64) -> Option<&str> {
        let refused = self.refused.iter().find(|(refused, _)| *refused == position);
        refused.map(|(_, reason)| &**reason)
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
            assert!(!suspicion.ended_with(7));
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
            assert!(!suspicion.ended_with(7));
        }
        assert_eq!(suspicion.range(&rows(7, 3), 3), 1..2);
        assert_eq!(suspicion.range(&rows(7, 1), 1), 0..1);
        assert_eq!(suspicion.range(&rows(8, 3), 3), 0..3);
        assert!(!suspicion.ended_with(8));
        assert_eq!(suspicion.range(&rows(8, 3), 3), 0..3);
    }
}
