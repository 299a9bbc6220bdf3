//! A check of everything stored, a little at a time.
//!
//! It goes through outboxes, logs, dead letters and states in the order of their names and positions,
//! and remembers only where it is: what comes or goes meanwhile may or may not be seen. A bounded
//! number of bytes is read in one step, so that commits and deliveries do not wait for the rest.

use std::ops::Bound;
use std::sync::Arc;

use super::book::{Book, Side};
use super::border::Verified;
use super::damage::Trouble;
use super::format::decode_outbox;
use super::reconcile::{count_missing, lose};
use super::state::State;
use super::work::Reply;
use super::{letters, log, states};

/// Bytes that are read in one step, about.
const STEP_BYTES: u64 = 1 << 20;

/// What is looked at, in this order.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Rows(Side),
    Letters,
    States,
}

const STAGES: [Stage; 4] =
    [Stage::Rows(Side::Outbox), Stage::Rows(Side::Log), Stage::Letters, Stage::States];

/// A check that is under way.
pub(super) struct Verifying {
    pub(super) reply: Reply<Verified>,
    /// Log rows and outbox rows that passed.
    pub(super) rows: u64,
    /// Index of the stage.
    stage: usize,
    /// The name that is looked at; those before it are done.
    name: Option<Arc<str>>,
    /// The last position, or key, of it that is done.
    after: Option<u64>,
}

impl Verifying {
    pub(super) fn new(reply: Reply<Verified>) -> Self {
        Verifying { reply, rows: 0, stage: 0, name: None, after: None }
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    /// Reads on; `true` when everything was read.
    pub(super) fn step(&mut self, book: &mut Book, known: &State) -> Result<bool, Trouble> {
        let mut bytes = 0;
        while bytes < STEP_BYTES {
            let Some(stage) = STAGES.get(self.stage).copied() else {
                count_missing(book, known);
                return Ok(true);
            };
            let Some(name) = self.name.clone().or_else(|| behind(book, stage, None)) else {
                self.stage += 1;
                continue;
            };
            let read = match stage {
                Stage::Rows(side) => self.piece(book, known, side, &name)?,
                Stage::Letters => self.letter(book, &name)?,
                Stage::States => self.state(book, &name)?,
            };
            if let Some(read) = read {
                bytes += read;
                self.name = Some(name);
                continue;
            }
            self.after = None;
            self.name = behind(book, stage, Some(&name));
            self.stage += usize::from(self.name.is_none());
        }
        Ok(false)
    }

    /// Reads the next piece; its bytes, or `None` behind the last.
    fn piece(
        &mut self,
        book: &mut Book,
        known: &State,
        side: Side,
        name: &str,
    ) -> Result<Option<u64>, Trouble> {
        let from = self.after.map_or(0, |after| after + 1);
        let queue = book.queues(side).get(name);
        let next = queue.and_then(|queue| queue.pieces.get(queue.index_of(from)));
        let Some(piece) = next.copied() else {
            return Ok(None);
        };
        let body = book.body(side, name, &piece)?;
        self.after = Some(piece.end() - 1);
        let count = body.and_then(|body| match side {
            Side::Outbox => Some(decode_outbox(piece.first, &body)?.len()),
            Side::Log => Some(log::decode(known.schemas.get(name)?, &body)?.1.num_rows()),
        });
        match count {
            Some(count) => self.rows += count as u64,
            None => lose(book, known, side, name, piece.first..piece.end()),
        }
        Ok(Some(u64::from(piece.length)))
    }

    /// The same for a dead letter.
    fn letter(&mut self, book: &mut Book, sink: &str) -> Result<Option<u64>, Trouble> {
        let letters = book.letters.get(sink);
        let next = letters.and_then(|letters| letters.range(self.range()).next());
        let Some((position, bytes)) = next.map(|(position, letter)| (*position, letter.bytes))
        else {
            return Ok(None);
        };
        self.after = Some(position);
        let records = book.files.records()?;
        letters::read(&records, book, sink, &[position])?;
        Ok(Some(bytes))
    }

    /// The same for a state of a stream. One that is not what was stored is counted where it is read.
    fn state(&mut self, book: &mut Book, stream: &str) -> Result<Option<u64>, Trouble> {
        let next = book.states.get(stream).and_then(|states| states.range(self.range()).next());
        let Some((key, length)) = next.map(|(key, kept)| (*key, kept.length)) else {
            return Ok(None);
        };
        states::read_one(book, stream, key)?;
        self.after = Some(key);
        Ok(Some(u64::from(length).max(1)))
    }

    fn range(&self) -> (Bound<u64>, Bound<u64>) {
        (self.after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
    }
}

/// The first name of a stage behind another.
fn behind(book: &Book, stage: Stage, name: Option<&Arc<str>>) -> Option<Arc<str>> {
    let range = (name.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
    let next = match stage {
        Stage::Rows(side) => book.queues(side).range::<Arc<str>, _>(range).next().map(|(n, _)| n),
        Stage::Letters => book.letters.range::<Arc<str>, _>(range).next().map(|(n, _)| n),
        Stage::States => book.states.range::<Arc<str>, _>(range).next().map(|(n, _)| n),
    };
    next.cloned()
}
