//! Room in the tree is given back: by a command, and by itself where most of the file is free.
//!
//! The tree's file grows with dead letters and states and does not shrink when they go. What is moved for
//! it is what is needed, so the store does it by itself only where that is little, between frames; commits
//! wait for some syncs meanwhile. Every step is a transaction of redb: a crash leaves the tree as it was
//! before or after it. Knows no work and no answer.

use std::sync::atomic::Ordering;

use super::book::Side;
use super::committer::Committer;
use super::damage::{Trouble, contained};
use super::rows::encode_schema;

/// Flushes between two looks: a minute, where one comes each second.
pub(super) const LOOK_EVERY: u32 = 60;
/// Length of a tree that is worth it.
const LENGTH_MIN: u64 = 1 << 20;
/// Bytes that are moved at most.
const NEEDED_MAX: u64 = 4 << 20;
/// What a piece takes in the tree, with its key and what a page leaves free.
const PIECE_BYTES: u64 = 160;

impl Committer {
    /// Compacts the tree now and then, where at most a quarter of it is needed. Nothing is being written or
    /// made.
    pub(super) fn compact_sometimes(&mut self) {
        self.compact_in -= 1;
        if self.compact_in > 0 {
            return;
        }
        self.compact_in = LOOK_EVERY;
        let length = self.book.files.traffic.tree_length.load(Ordering::Relaxed);
        let has_grown = length >= LENGTH_MIN.max(self.compacted.saturating_mul(2));
        let is_worth_it = has_grown && self.needed() <= NEEDED_MAX.min(length / 4);
        let is_well = self.stats.stalled.is_none() && self.held_back.is_none();
        if !is_worth_it || !is_well || self.book.memory() > 0 || !self.verifying.is_empty() {
            return;
        }
        let outcome = contained(|| self.compact());
        self.compacted = self.book.files.traffic.tree_length.load(Ordering::Relaxed);
        match outcome {
            Ok((before, after)) => tracing::info!(before, after, "the store's tree gave room back"),
            Err(trouble) => {
                tracing::warn!(reason = trouble.text(), "the store's tree cannot give room back");
                // redb writes no more after an error. A damaged tree is for the next checkpoint to replace.
                let is_damaged = matches!(trouble, Trouble::Damaged(_));
                if !is_damaged && let Err(again) = self.book.files.reopen_tree() {
                    tracing::debug!(reason = again.text(), "the checkpoint file stays closed");
                }
            }
        }
    }

    /// Bytes that are needed in the tree, about and rather too many.
    fn needed(&self) -> u64 {
        let schemas = self.state.schemas.values().flatten();
        let length = |schema| encode_schema(schema).map_or(0, |encoded| encoded.len() as u64);
        let schemas: u64 = schemas.map(|(_, schema)| length(schema)).sum();
        let letters: u64 = self.state.sinks.values().map(|sink| sink.letter_bytes).sum();
        let states: u64 = self.state.marks.values().map(|mark| mark.bytes).sum();
        let pieces: usize = [Side::Outbox, Side::Log]
            .iter()
            .flat_map(|side| self.book.queues(*side).values())
            .map(|queue| queue.pieces.len())
            .sum();
        // redb gives a value that is longer than a page a power of two of them.
        (letters + states + schemas) * 2 + pieces as u64 * PIECE_BYTES
    }

    /// Compacts the tree as of now; the bytes of all files before and after.
    pub(super) fn compact(&mut self) -> Result<(u64, u64), Trouble> {
        let before = self.figures().file_bytes;
        if self.book.memory() == 0 {
            self.checkpoint()?;
        }
        if let Some(tree) = &mut self.book.files.tree {
            let compacted = tree.compact();
            compacted.map_err(|error| Trouble::Io(error.to_string()))?;
        }
        Ok((before, self.figures().file_bytes))
    }
}
