//! While nothing can be written, memory is for what moves: a sink that is away takes no more than half of it
//! from the others, and rows that are only kept as history go before anything stands still.
//!
//! What lies on the disk is the older part and stays, so that it is new rows that find no room, whichever
//! end the sink drops otherwise. Both are counted; the far side is told of the first. Writes nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::book::{Book, Place, Queue, Side};
use super::border::{SinkLayout, WhenFull};
use super::committer::{Committer, MEMORY_BYTES_MAX};
use super::log;
use super::transaction::Transaction;

/// Bytes of rows that may wait for sinks which get new ones.
const SHARED_BYTES: u64 = MEMORY_BYTES_MAX / 2;
/// Bytes that are left to a sink, and of the newest history.
const LEAST_BYTES: u64 = MEMORY_BYTES_MAX / 8;

/// The sinks that get no new rows until the disk takes writes, or they take what waits.
#[derive(Debug, Default)]
pub(super) struct Refused {
    pub(super) sinks: BTreeSet<Arc<str>>,
    /// Bytes that wait in memory for them, and for sinks that the layout does not name.
    bytes: u64,
    /// How many records each sink had settled at the last look.
    settled: BTreeMap<Arc<str>, u64>,
}

/// A sink as it is looked at.
struct Share<'a> {
    sink: &'a SinkLayout,
    /// Bytes of rows that it was shown and that wait in memory.
    bytes: u64,
    was_refused: bool,
    /// It took something since the last look.
    moves: bool,
}

impl Committer {
    /// Bytes of frames that are not durable, from which on nothing more is taken. What waits for sinks that
    /// get nothing new grows no more: it takes nothing from the others.
    pub(super) fn memory_max(&self) -> u64 {
        MEMORY_BYTES_MAX + self.refused.bytes
    }

    /// Decides with each flush which sinks get no new rows: of those that take nothing the one that holds most,
    /// then the next, until the others hold no more than their share. That gets smaller with each, so that all together
    /// is bounded. Once nothing more is taken, slow ones as well. One goes on getting rows: without others it
    /// stands in nobody's way. Where the disk is only full, old rows give way for newer ones as ever, and make room.
    pub(super) fn share_memory(&mut self) {
        let first = self.book.first_undurable();
        let claims = self.shared.claims();
        let sinks = &claims.layout.sinks;
        let is_blocked = self.book.memory() >= self.memory_max();
        let mut settled = BTreeMap::new();
        let mut shares: Vec<Share<'_>> = Vec::new();
        for sink in sinks {
            let queue = self.book.outboxes.get(&sink.name);
            // What is in the frame that is being made was not shown yet.
            let bytes = queue.map_or(0, |queue| queue.bytes_from(first, self.book.sequence));
            let state = self.state.sinks.get(&sink.name);
            // What is dropped of a sink moves its cursor as well.
            let passed = state.map_or(0, |state| state.delivered + state.rejected + state.lost);
            let moves = self.refused.settled.get(&sink.name).is_none_or(|before| passed > *before);
            settled.insert(sink.name.clone(), passed);
            let was_refused = self.refused.sinks.contains(&sink.name);
            shares.push(Share { sink, bytes, was_refused, moves });
        }
        shares.sort_by_key(|share| (!share.was_refused, share.moves, Reverse(share.bytes)));
        // Without it the least of many sinks would be more than the share of all.
        let least = LEAST_BYTES.min(SHARED_BYTES / (sinks.len() as u64).max(1));
        let mut rest: u64 = shares.iter().map(|share| share.bytes).sum();
        // Sinks that the layout does not name get nothing new either.
        let is_named = |name: &Arc<str>| sinks.iter().any(|sink| sink.name == *name);
        let others = self.book.outboxes.iter().filter(|(name, _)| !is_named(name));
        let bytes = others.map(|(_, queue)| queue.bytes_from(first, u64::MAX)).sum();
        let mut refused = Refused { bytes, settled, ..Refused::default() };
        for Share { sink, bytes, was_refused, moves } in shares {
            let may_be = match sink.when_full {
                WhenFull::DropNewest => true,
                WhenFull::DropOldest => !self.want.stalls,
                WhenFull::Block => false,
            };
            let most = (SHARED_BYTES >> refused.sinks.len().min(4)).max(least);
            let is_over = was_refused || (rest > most && (!moves || is_blocked));
            let is_last = refused.sinks.len() + 1 >= sinks.len();
            if may_be && is_over && bytes > least && !is_last {
                rest -= bytes;
                refused.bytes += bytes;
                refused.sinks.insert(sink.name.clone());
            }
        }
        for sink in refused.sinks.difference(&self.refused.sinks) {
            tracing::warn!(
                %sink, "the disk takes no writes, and the sink does not take what waits in memory: \
                 new records for it are dropped and counted"
            );
        }
        for sink in self.refused.sinks.difference(&refused.sinks) {
            tracing::info!(%sink, "there is room in memory for new records");
        }
        self.refused = refused;
    }

    /// Lets history go where that keeps the rest moving. Where the disk is only full the policies decide.
    pub(super) fn shed_history(&mut self) {
        let is_needed = !self.want.stalls && self.book.memory() >= self.memory_max();
        if !is_needed || !self.book.may_put_together(self.book.first_waiting()) {
            return;
        }
        let first = self.book.first_undurable();
        if self.book.bytes_from(first) <= self.refused.bytes + SHARED_BYTES {
            return;
        }
        let claims = self.shared.claims();
        let mut transaction = Transaction {
            book: &mut self.book,
            state: &mut self.state,
            layout: &claims.layout,
            max_bytes: claims.max_bytes,
            now: self.now,
            refused: &self.refused.sinks,
        };
        let rows = transaction.let_history_go(first);
        if rows > 0 {
            tracing::warn!(rows, "the disk takes no writes: history in memory is let go");
        }
    }
}

impl Transaction<'_> {
    /// Lets rows in frames from `first` on go that are only history, oldest first; returns how many. The
    /// newest piece of each log stays: its end is found by reading.
    fn let_history_go(&mut self, first: u64) -> u64 {
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        for table in self.layout.tables.iter().filter(|table| table.history_us.is_some()) {
            let floor = self.floor(&table.name, &table.readers);
            let Some(queue) = self.book.logs.get(&table.name) else { continue };
            let newest = queue.pieces.len().saturating_sub(1);
            let from = queue.first_from(first).min(newest);
            let unneeded = queue.pieces.range(from..newest).take_while(|p| p.end() <= floor);
            for piece in unneeded {
                let Place::Frame { sequence, at } = piece.place else { continue };
                bytes += u64::from(piece.length);
                pieces.push((sequence, at, &table.name, u64::from(piece.length)));
            }
        }
        if bytes < 2 * LEAST_BYTES {
            return 0;
        }
        pieces.sort_unstable();
        let mut gone: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        for (.., table, length) in pieces {
            if bytes <= LEAST_BYTES {
                break;
            }
            bytes -= length;
            *gone.entry(table).or_default() += 1;
        }
        let mut rows = 0;
        for (table, pieces) in gone {
            if let Some(state) = self.state.tables.get_mut(table) {
                rows += log::let_go(self.book, table, state, first, pieces);
            }
        }
        rows
    }
}

impl Queue {
    /// Index of the first piece in frames from `sequence` on.
    pub(super) fn first_from(&self, sequence: u64) -> usize {
        self.pieces.partition_point(|piece| match piece.place {
            Place::Frame { sequence: of, .. } => of < sequence,
            Place::Shelf { .. } => true,
        })
    }

    /// Bytes of pieces in frames from `sequence` on, before `end`.
    fn bytes_from(&self, sequence: u64, end: u64) -> u64 {
        let pieces = self.pieces.range(self.first_from(sequence)..self.first_from(end));
        pieces.map(|piece| u64::from(piece.length)).sum()
    }
}

impl Book {
    /// Bytes of all rows in frames from `sequence` on.
    fn bytes_from(&self, sequence: u64) -> u64 {
        let queues = [Side::Outbox, Side::Log].map(|side| self.queues(side).values());
        queues.into_iter().flatten().map(|queue| queue.bytes_from(sequence, u64::MAX)).sum()
    }
}
