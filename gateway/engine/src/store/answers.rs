//! Answers to those who ask the store's thread: rows, states, letters, a check of everything.
//!
//! What is given out is durable, or is in memory because nothing can be written. While a frame is
//! being written, what was taken behind it is neither, and most questions wait. So do those for rows that
//! cannot be read now: they are tried again when it is time for that. Changes nothing.

use super::book::Side;
use super::border::{StoreError, Verified};
use super::committer::Committer;
use super::damage::{Trouble, contained};
use super::files::TREE;
use super::letters;
use super::log;
use super::outbox::{self, Span};
use super::states;
use super::verify::Verifying;
use super::work::{Ask, answer};

impl Committer {
    /// Answers a question now, or when the frame that is being written has ended and what was taken behind it
    /// is a frame as well.
    pub(super) fn ask(&mut self, ask: Ask) {
        if self.flight.is_none() && self.book.is_draft_empty() {
            return self.answer(ask);
        }
        if let Some(ask) = self.answer_beside(ask) {
            let is_again = |ask: &Ask| matches!(ask, Ask::Again);
            self.deferred
                .retain(|other| !(other.is_abandoned() || is_again(other) && is_again(&ask)));
            self.deferred.push(ask);
        }
    }

    /// Gives the question back that cannot be answered while a frame is being written and the next
    /// one made. Durable rows of an outbox can, unless what stands at its front is not durable.
    fn answer_beside(&mut self, ask: Ask) -> Option<Ask> {
        let Ask::Next { sink, after, max_rows, max_bytes, delivers, reply } = ask else {
            return Some(ask);
        };
        let back = |reply| {
            let sink = sink.clone();
            Some(Ask::Next { sink, after, max_rows, max_bytes, delivers, reply })
        };
        let (Some(state), Some(shown)) = (self.state.sinks.get(&sink), self.shown.sinks.get(&sink))
        else {
            return back(reply);
        };
        if state.front != shown.front {
            return back(reply);
        }
        let before = self.book.durable_end(Side::Outbox, &sink);
        let span = Span { after, before, max_rows, max_bytes, delivers };
        let read = outbox::read(&mut self.book, &sink, state, span);
        let Some(rows) = read.ok().filter(|(rows, _)| !rows.is_empty()) else {
            return back(reply);
        };
        self.shared.show(self.figures());
        answer(reply, Ok(rows));
        None
    }

    /// Answers a question. The figures are shown before the answer, so that who has read past damage
    /// sees it counted.
    pub(super) fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Next { sink, after, max_rows, max_bytes, delivers, reply } => {
                let read = match self.state.sinks.get(&sink) {
                    Some(state) => {
                        let span = Span { after, before: None, max_rows, max_bytes, delivers };
                        outbox::read(&mut self.book, &sink, state, span)
                    }
                    None => Ok((vec![], after)),
                };
                self.shared.show(self.figures());
                if let Ok(rows) = read {
                    answer(reply, Ok(rows));
                } else {
                    let ask = Ask::Next { sink, after, max_rows, max_bytes, delivers, reply };
                    self.unanswered.push(ask);
                }
            }
            Ask::States { stream, reply } => {
                let found = states::read(&mut self.book, &stream);
                self.shared.show(self.figures());
                answer(reply, found.map_err(|trouble| self.unreadable(&trouble)));
            }
            Ask::Log { table, wanted, reply } => {
                let read = log::read(&mut self.book, &table, &self.state, wanted);
                self.shared.show(self.figures());
                match read {
                    Ok(rows) => answer(reply, Ok(rows)),
                    Err(_) => self.unanswered.push(Ask::Log { table, wanted, reply }),
                }
            }
            Ask::Alive { reply } => answer(reply, Ok(())),
            Ask::Again => self.answer_again(),
            Ask::Rejected { sink, limit, reply } => {
                let letters = self.book.letters.get(&sink);
                let newest = letters.into_iter().flat_map(|l| l.keys().rev().take(limit).copied());
                let mut positions: Vec<u64> = newest.collect();
                positions.reverse();
                let letters = contained(|| {
                    let records = self.book.files.records()?;
                    letters::read(&records, &mut self.book, &sink, &positions)
                });
                self.shared.show(self.figures());
                answer(reply, letters.map_err(|trouble| self.unreadable(&trouble)));
            }
            Ask::Verify { reply } => self.verifying.push_back(Verifying::new(reply)),
            Ask::Compact { reply } => {
                let compacted = contained(|| self.compact());
                self.shared.show(self.figures());
                answer(reply, compacted.map_err(|trouble| self.unreadable(&trouble)));
            }
        }
    }

    /// Tries what could not be read.
    fn answer_again(&mut self) {
        let stops = self.stats.stalled.is_some();
        let is_dead = stops && !self.book.unread.stalls && !self.want.stalls;
        self.book.unread.look(is_dead);
        for ask in std::mem::take(&mut self.unanswered) {
            if !ask.is_abandoned() {
                self.answer(ask);
            }
        }
    }

    /// Tells the streams of which a state was found damaged.
    pub(super) fn tell_spoiled(&mut self) {
        if !self.book.spoiled.is_empty() {
            self.shared.spoiled.add(std::mem::take(&mut self.book.spoiled));
        }
    }

    fn unreadable(&self, trouble: &Trouble) -> StoreError {
        let (path, reason) = (self.book.files.disk.path(TREE), trouble.text().to_owned());
        StoreError::Unreadable { path, reason }
    }

    /// Goes on with the first check that somebody asked for; commits and questions come in between.
    pub(super) fn verify_some(&mut self) {
        let Some(verifying) = self.verifying.front_mut() else {
            return;
        };
        let step = contained(|| verifying.step(&mut self.book, &self.state));
        if matches!(step, Ok(false)) && !verifying.is_abandoned() {
            return;
        }
        self.shared.show(self.figures());
        if let Some(verifying) = self.verifying.pop_front() {
            let damage = &self.book.damage;
            let (corrupt_records, corrupt_rows) = (damage.records, damage.rows);
            let verified =
                step.map(|_| Verified { rows: verifying.rows, corrupt_records, corrupt_rows });
            let verified = verified.map_err(|trouble| self.unreadable(&trouble));
            answer(verifying.reply, verified);
        }
    }
}
