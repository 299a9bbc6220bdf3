//! What a mark passes: how many records and notices, which positions have none, and the notices that what is dropped
//! leaves. Knows no mark.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::book::Book;
use super::super::border::{Gap, GapReason, OutboxRow};
use super::super::format::weight;
use super::super::record::{Notice, SinkState};
use super::{Fate, lose};

/// What a mark passes.
#[derive(Default)]
pub(super) struct Passed {
    pub(super) records: u64,
    pub(super) gaps: u64,
    pub(super) bytes: u64,
    /// Of each stream, epoch and reason, in the order in which they were come upon.
    pub(super) notices: BTreeMap<(Arc<str>, u64, GapReason), Vec<Notice>>,
    pub(super) head: Option<i64>,
}

/// Notices of one stream that are told apart; the last of them covers what lies between later ones as well. Behind a
/// route with conditions no numbers follow each other, and every commit writes all notices at the front.
const APART_MAX: usize = 16;

impl Passed {
    pub(super) fn add(&mut self, row: &OutboxRow, fate: Fate) {
        match row.gap {
            Some(_) => self.gaps += 1,
            None => self.records += 1,
        }
        self.bytes += weight(row);
        let Fate::Gone(reason) = fate else { return };
        let gap = row.gap.unwrap_or(Gap { from: row.seq, to: row.seq, reason });
        let name = (row.stream.clone(), row.epoch, gap.reason);
        let notices = self.notices.entry(name).or_default();
        // What lies between two that do not follow each other may have been delivered.
        let follows = |known: &Notice| known.gap.to.checked_add(1) == Some(gap.from);
        let last = notices.len().checked_sub(1).filter(|last| *last + 1 >= APART_MAX);
        let at = notices.iter().rposition(follows).or(last);
        if let Some(known) = at.and_then(|at| notices.get_mut(at)) {
            known.gap.from = known.gap.from.min(gap.from);
            known.gap.to = known.gap.to.max(gap.to);
            return;
        }
        let (stream, epoch, created) = (row.stream.clone(), row.epoch, row.created);
        notices.push(Notice { stream, epoch, gap, created });
    }
}

/// Positions that should have a row and have none, as rows are come upon in order.
pub(super) struct Holes {
    pub(super) expected: u64,
    pub(super) found: Vec<(u64, u64)>,
}

impl Holes {
    pub(super) fn new(first: u64) -> Self {
        Holes { expected: first, found: Vec::new() }
    }

    pub(super) fn found(&mut self, position: u64) {
        if position > self.expected {
            self.found.push((self.expected, position));
        }
        self.expected = position + 1;
    }

    /// Counts what is missing before `end`, each row once.
    pub(super) fn count(mut self, book: &mut Book, sink: &str, state: &SinkState, end: u64) {
        if end > self.expected {
            self.found.push((self.expected, end));
        }
        for (from, to) in self.found {
            lose(book, sink, state, from, to);
        }
    }
}
