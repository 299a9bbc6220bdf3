//! While nothing can be written, the frames that wait in memory are put together: what was delivered from
//! there meanwhile needs no room, and forwarding goes on for as long as it takes.
//!
//! All of them become one frame, which says everything: the rows, states and dead letters that are still
//! needed, and all small records as they are now. It has the sequence of the first of them and the number
//! of another run, as if a later process had written it: whatever the device has of the others, or gets
//! after all, is passed over by the next start. Nobody was told that they are durable. Writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::book::{Book, Frame, Place, Side};
use super::committer::{Committer, Group, Held};
use super::format::{Entry, Kind, put_entry, split_key};
use super::ring::{self, HEADER, Header};

/// Bytes that are gained at least; beside a small ring a quarter of it.
const GAIN_BYTES: u64 = 1 << 20;

/// Where something lies in frames that wait, and where in the one that takes their place: 0 until it does.
type Places = BTreeMap<(u64, u32), u32>;

/// What is needed of the frames that are put together.
#[derive(Default)]
struct Needed {
    /// Sequence of the first of them.
    first: u64,
    places: Places,
    /// Dead letters that came in them.
    letters: BTreeSet<(Arc<str>, u64)>,
    /// Keys of states that went in them, and that something before them has.
    gone: BTreeMap<Arc<str>, BTreeSet<u64>>,
}

/// The numbers that a body is made of.
fn numbers(body: Option<&[u8]>) -> impl Iterator<Item = u64> {
    body.unwrap_or_default()
        .chunks_exact(8)
        .filter_map(|bytes| bytes.try_into().ok())
        .map(u64::from_le_bytes)
}

impl Committer {
    /// Puts the frames that wait together where that makes enough room in memory. No frame is with the
    /// writer, and none is being made.
    pub(super) fn repack(&mut self) {
        let memory = self.book.memory();
        let gain = GAIN_BYTES.min(self.book.files.ring_length / 4);
        if memory < self.repack_at.max(gain) && memory < self.memory_max() {
            return;
        }
        self.repack_at = memory + gain;
        let first = self.book.first_waiting();
        let Some(places) = self.book.gather_needed(first) else {
            return;
        };
        self.note_written();
        self.state.note_changes(&mut self.book, None);
        let length = ring::frame_bytes(self.book.draft.len() - HEADER);
        // Where nothing more is taken, any room is better than none.
        let gain = if memory < self.memory_max() { gain } else { ring::BLOCK };
        if length + gain > memory || !self.fits(first, length) {
            self.book.clear_draft();
            self.state.untell();
            return;
        }
        let sequence = self.book.replace_waiting(first, &places);
        self.snapshot_due = false;
        self.last = Arc::new(self.state.clone());
        let from = self.held.partition_point(|held| held.sequence < sequence);
        let mut group = Group::default();
        self.held.drain(from..).for_each(|held| group.join(held.group));
        self.held.push_back(Held { sequence, group, state: Some(Arc::clone(&self.last)) });
        self.repack_at = length * 2;
        tracing::debug!(from = memory, to = length, "what waits in memory is put together");
    }

    /// Whether one frame finds a place as soon as those would whose place it takes. On a disk that has room one
    /// without a place goes to shelves and the tree.
    fn fits(&self, first: usize, length: u64) -> bool {
        if !self.want.stalls {
            return true;
        }
        let (capacity, head) = (self.book.files.ring_length, self.book.head);
        let place = |length| ring::place(capacity, self.book.tail(), head, length);
        let alone = self.book.frames.get(first).map_or(0, |frame| frame.length);
        place(length).is_some() || (place(alone).is_none() && length <= capacity / 4)
    }
}

impl Book {
    /// Whether the frames from index `first` on may become one. They stay as they are where rows of one went
    /// to a shelf that no checkpoint names, a checkpoint may contain them, or no later run can be told.
    pub(super) fn may_put_together(&self, first: usize) -> bool {
        let mut frames = self.frames.iter().skip(first);
        let is_decided = frames.clone().next().is_some_and(|f| f.sequence > self.undecided);
        let is_last_run = self.files.run >= ring::RUN_MAX;
        is_decided && !is_last_run && self.is_draft_empty() && !frames.any(|frame| frame.moved)
    }

    /// Puts into the draft, which is empty, what is needed of the frames from index `first` on, and gives
    /// the places of its pieces and states. `None`, and an empty draft, where they must stay as they are.
    fn gather_needed(&mut self, first: usize) -> Option<Places> {
        let sequence = self.frames.get(first)?.sequence;
        if !self.may_put_together(first) {
            return None;
        }
        let mut needed =
            Needed { first: sequence, places: self.needed_from(sequence), ..Needed::default() };
        for index in first..self.frames.len() {
            let Frame { sequence, memory, .. } = &self.frames[index];
            let (sequence, memory) = (*sequence, memory.clone());
            let body = memory.as_deref().and_then(|bytes| {
                let length = usize::try_from(Header::read(bytes)?.length).ok()?;
                bytes.get(..HEADER + length)
            });
            self.take_needed(sequence, body.unwrap_or_default(), &mut needed);
        }
        if needed.places.values().any(|at| *at == 0) {
            tracing::error!("a frame in memory is not what was put there: it stays as it is");
            self.clear_draft();
            return None;
        }
        for (stream, keys) in needed.gone {
            let states = self.states.get(&stream);
            let dead = keys.iter().filter(|key| states.is_none_or(|live| !live.contains_key(key)));
            let dead: Vec<u8> = dead.flat_map(|key| key.to_le_bytes()).collect();
            if !dead.is_empty() {
                self.note(Kind::StatesGone, &stream, 0, &dead);
            }
        }
        Some(needed.places)
    }

    /// The places of pieces and states in frames from `sequence` on.
    fn needed_from(&self, sequence: u64) -> Places {
        let at = |place: &Place| match *place {
            Place::Frame { sequence: of, at } if of >= sequence => Some((of, at)),
            _ => None,
        };
        let queues = self.outboxes.values().chain(self.logs.values());
        let pieces =
            queues.flat_map(|queue| queue.pieces.iter().rev().map_while(|piece| at(&piece.place)));
        let states = self.states.values().flat_map(|states| states.values());
        let states = states.filter_map(|kept| at(kept.frame.as_ref()?));
        pieces.chain(states).map(|place| (place, 0)).collect()
    }

    /// Copies the needed entries of the frame `sequence`. What says that a letter or a state is gone is needed
    /// only where an earlier frame, or the tree, has it.
    fn take_needed(&mut self, sequence: u64, bytes: &[u8], needed: &mut Needed) {
        let mut at = HEADER;
        while let Some(entry) = bytes.get(at..).and_then(Entry::take) {
            let whole = &bytes[at..at + entry.length];
            let place = u32::try_from(at).map(|at| (sequence, at));
            at += entry.length;
            let Some((kind, name, position)) = split_key(entry.key) else {
                continue;
            };
            let is_needed = match kind {
                Kind::Outbox | Kind::Log | Kind::State => {
                    let slot = place.ok().and_then(|place| needed.places.get_mut(&place));
                    slot.is_some_and(|slot| {
                        *slot = u32::try_from(self.draft.len()).unwrap_or(0);
                        true
                    })
                }
                Kind::Rejected => {
                    needed.letters.insert((Arc::from(name), position));
                    let letter = self.letters.get(name).and_then(|known| known.get(&position));
                    letter.is_some_and(|letter| letter.body.is_some())
                }
                Kind::StatesGone => {
                    if position < needed.first {
                        let gone = needed.gone.entry(Arc::from(name)).or_default();
                        gone.extend(numbers(entry.body()));
                    }
                    false
                }
                Kind::Forgotten => {
                    let is_known = |at: &u64| !needed.letters.contains(&(Arc::from(name), *at));
                    let gone = numbers(entry.body()).filter(is_known);
                    let gone: Vec<u8> = gone.flat_map(u64::to_le_bytes).collect();
                    if !gone.is_empty() {
                        put_entry(&mut self.draft, entry.key, &gone);
                    }
                    false
                }
                // All small records follow as they are now.
                _ => false,
            };
            if is_needed {
                self.draft.extend_from_slice(whole);
            }
        }
    }

    /// Makes the draft the only frame from index `first` on; gives its sequence.
    fn replace_waiting(&mut self, first: usize, places: &Places) -> u64 {
        let sequence = self.frames.get(first).map_or(self.sequence, |frame| frame.sequence);
        let moved = |place: &mut Place| match place {
            Place::Frame { sequence: of, at } if *of >= sequence => {
                *at = places.get(&(*of, *at)).copied().unwrap_or(*at);
                *of = sequence;
                true
            }
            _ => false,
        };
        let mut live = 0;
        for side in [Side::Outbox, Side::Log] {
            for queue in self.queues_mut(side).values_mut() {
                let pieces = queue.pieces.iter_mut().rev();
                live += pieces.map_while(|piece| moved(&mut piece.place).then_some(())).count();
            }
        }
        for kept in self.states.values_mut().flat_map(|states| states.values_mut()) {
            if kept.frame.as_mut().is_some_and(moved) {
                kept.since = kept.since.min(sequence);
            }
        }
        self.frames.truncate(first);
        self.files.run += 1;
        self.sequence = sequence;
        self.draft_live = u32::try_from(live).unwrap_or(u32::MAX);
        self.close_draft();
        sequence
    }
}
