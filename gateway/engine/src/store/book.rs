//! Where every stored row lies: in a frame of the ring, or on a shelf.
//!
//! A queue per outbox and per log lists its pieces in the order of their positions; a frame knows how
//! many pieces in it are still needed. New rows and states go into a draft, which becomes the next frame. All of
//! it is in memory, some 50 bytes a piece or state, and is made again from the checkpoint and the ring at each
//! start. Knows where bytes lie and whether they are whole; what rows mean is for `outbox` and `log`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

use super::damage::{Damage, Trouble};
use super::files::Files;
use super::format::{Entry, Kind, key, put_entry, put_entry_with};
use super::ring::{self, HEADER, Sum};
use super::states::States;
use super::unread::Unread;

/// Where a piece lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// In a frame, this far from its beginning.
    Frame { sequence: u64, at: u32 },
    /// On a shelf, this far from its beginning.
    Shelf { file: u32, at: u64 },
}

/// Rows of one queue that lie in one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Position of the first row.
    pub(super) first: u64,
    /// How many rows.
    pub(super) rows: u32,
    /// Bytes of the entry.
    pub(super) length: u32,
    /// When the newest row was made or accepted.
    pub(super) created: i64,
    pub(super) place: Place,
}

impl Piece {
    /// The position behind the last row.
    pub(super) fn end(&self) -> u64 {
        self.first + u64::from(self.rows)
    }
}

/// The pieces of one outbox or log, in order, those on shelves first.
#[derive(Debug, Clone, Default)]
pub(super) struct Queue {
    pub(super) pieces: VecDeque<Piece>,
    /// Pieces on shelves that begin below this are in the checkpoint.
    pub(super) saved: u64,
    /// The last position that was given out to be delivered: what is there must not change any more.
    pub(super) given: u64,
    /// The last position of the notices at the front that was given out since these came.
    pub(super) front_given: u64,
    /// The position behind the last record that came since the start: from there on there are only notices.
    pub(super) records_end: u64,
}

impl Queue {
    /// Puts a piece at the end. One that stands for another, which the checkpoint has, is not in it.
    pub(super) fn push(&mut self, piece: Piece) {
        self.saved = self.saved.min(piece.first);
        self.pieces.push_back(piece);
    }

    /// Index of the first piece that holds positions from `position` on.
    pub(super) fn index_of(&self, position: u64) -> usize {
        self.pieces.partition_point(|piece| piece.end() <= position)
    }

    /// The frame of the first piece that is in one.
    pub(super) fn oldest_frame(&self) -> Option<u64> {
        let shelved = |piece: &Piece| matches!(piece.place, Place::Shelf { .. });
        let piece = self.pieces.get(self.pieces.partition_point(shelved))?;
        match piece.place {
            Place::Frame { sequence, .. } => Some(sequence),
            Place::Shelf { .. } => None,
        }
    }

    /// Whether its oldest rows are on a shelf.
    pub(super) fn is_shelved(&self) -> bool {
        self.pieces.front().is_some_and(|piece| matches!(piece.place, Place::Shelf { .. }))
    }

    /// The position behind the last piece.
    pub(super) fn end(&self) -> u64 {
        self.pieces.back().map_or(0, Piece::end)
    }
}

/// A frame of which something is still needed, or that is not in the ring yet.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) sequence: u64,
    /// Where it lies in the ring.
    pub(super) offset: Option<u64>,
    pub(super) length: u64,
    /// Pieces in it that are needed.
    pub(super) live: u32,
    /// Rows of it went to a shelf that the checkpoint does not name yet: until it does, a crash
    /// would bring them back from here.
    pub(super) moved: bool,
    /// Its bytes, until they are durable. Shared with the thread that writes them.
    pub(super) memory: Option<Arc<Vec<u8>>>,
}

/// Which family of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Outbox,
    Log,
}

impl Side {
    /// The kind of its entries.
    pub(super) fn kind(self) -> Kind {
        match self {
            Side::Outbox => Kind::Outbox,
            Side::Log => Kind::Log,
        }
    }

    /// The kind of its pieces in the checkpoint.
    pub(super) fn piece_kind(self) -> Kind {
        match self {
            Side::Outbox => Kind::OutboxPiece,
            Side::Log => Kind::LogPiece,
        }
    }
}

/// A dead letter: its sealed size, and its body until the checkpoint has it.
#[derive(Debug, Clone)]
pub(super) struct Letter {
    pub(super) bytes: u64,
    pub(super) body: Option<Vec<u8>>,
}

/// Everything that says where rows are.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) files: Files,
    pub(super) damage: Damage,
    pub(super) unread: Unread,
    pub(super) outboxes: BTreeMap<Arc<str>, Queue>,
    pub(super) logs: BTreeMap<Arc<str>, Queue>,
    pub(super) letters: BTreeMap<Arc<str>, BTreeMap<u64, Letter>>,
    /// Dead letters that the checkpoint has, or may have, and nobody needs.
    pub(super) letters_gone: Vec<(Arc<str>, u64)>,
    pub(super) states: States,
    /// States that the checkpoint has, or may have, and nobody needs.
    pub(super) states_gone: BTreeSet<(Arc<str>, u64)>,
    /// Streams of which a state was found damaged, and that were not told yet.
    pub(super) spoiled: BTreeSet<Arc<str>>,
    pub(super) frames: VecDeque<Frame>,
    /// The frame being made: room for the header, then entries.
    pub(super) draft: Vec<u8>,
    pub(super) draft_live: u32,
    /// The CRC of what the draft held when there was time for it.
    sum: Sum,
    /// The memory of a frame that is durable, for the next draft.
    spare: Vec<u8>,
    /// Sequence of the frame being made.
    pub(super) sequence: u64,
    /// Where the next frame goes, if it fits there.
    pub(super) head: u64,
    /// The last frame that a checkpoint may contain of which nobody knows whether it landed; 0 where all is known.
    pub(super) undecided: u64,
}

/// Bytes of a frame whose memory is kept for the next one.
const SPARE_BYTES_MAX: usize = 8 << 20;
/// Bytes that are kept however little is in them.
const SPARE_BYTES_SMALL: usize = 128 << 10;
/// Times that a read is tried at once.
const READS_MAX: u32 = 3;

impl Book {
    pub(super) fn new(files: Files, damage: Damage, sequence: u64) -> Self {
        Book {
            files,
            damage,
            unread: Unread::default(),
            outboxes: BTreeMap::new(),
            logs: BTreeMap::new(),
            letters: BTreeMap::new(),
            letters_gone: Vec::new(),
            states: States::new(),
            states_gone: BTreeSet::new(),
            spoiled: BTreeSet::new(),
            frames: VecDeque::new(),
            draft: vec![0; HEADER],
            draft_live: 0,
            sum: Sum::default(),
            spare: Vec::new(),
            sequence,
            head: 0,
            undecided: 0,
        }
    }

    pub(super) fn queues(&self, side: Side) -> &BTreeMap<Arc<str>, Queue> {
        match side {
            Side::Outbox => &self.outboxes,
            Side::Log => &self.logs,
        }
    }

    pub(super) fn queues_mut(&mut self, side: Side) -> &mut BTreeMap<Arc<str>, Queue> {
        match side {
            Side::Outbox => &mut self.outboxes,
            Side::Log => &mut self.logs,
        }
    }

    /// Puts a record without a piece into the draft.
    pub(super) fn note(&mut self, kind: Kind, name: &str, position: u64, body: &[u8]) -> usize {
        put_entry(&mut self.draft, &key(kind, name, position), body)
    }

    /// Puts rows into the draft and their piece at the end of the queue; returns the entry's bytes.
    pub(super) fn push(
        &mut self,
        side: Side,
        name: &Arc<str>,
        first: u64,
        rows: u32,
        created: i64,
        body: &[u8],
    ) -> u64 {
        let written = self.push_with(side, name, (first, rows), created, |out| {
            out.extend_from_slice(body);
            Ok::<(), std::convert::Infallible>(())
        });
        match written {
            Ok(length) => length,
        }
    }

    /// As [`Book::push`], with a body that `write` appends. After an error nothing has changed.
    pub(super) fn push_with<E>(
        &mut self,
        side: Side,
        name: &Arc<str>,
        (first, rows): (u64, u32),
        created: i64,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<u64, E> {
        let at = u32::try_from(self.draft.len()).unwrap_or(u32::MAX);
        let length = put_entry_with(&mut self.draft, &key(side.kind(), name, first), write)?;
        let place = Place::Frame { sequence: self.sequence, at };
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let piece = Piece { first, rows, length, created, place };
        self.draft_live += 1;
        self.queues_mut(side).entry(name.clone()).or_default().push(piece);
        Ok(u64::from(length))
    }

    /// Takes the pieces with these indices out of a queue.
    pub(super) fn take(
        &mut self,
        side: Side,
        name: &str,
        range: std::ops::Range<usize>,
    ) -> Vec<Piece> {
        let Some(queue) = self.queues_mut(side).get_mut(name) else {
            return Vec::new();
        };
        let taken: Vec<Piece> = queue.pieces.drain(range).collect();
        for piece in &taken {
            self.release(piece);
        }
        taken
    }

    /// A piece is not needed any more.
    pub(super) fn release(&mut self, piece: &Piece) {
        match piece.place {
            Place::Shelf { file, .. } => self.files.shelves.release(file, piece.length),
            Place::Frame { sequence, .. } if sequence == self.sequence => {
                self.draft_live = self.draft_live.saturating_sub(1);
            }
            Place::Frame { sequence, .. } => {
                if let Some(index) = self.frame_index(sequence)
                    && let Some(frame) = self.frames.get_mut(index)
                {
                    frame.live = frame.live.saturating_sub(1);
                }
            }
        }
    }

    /// The rows of a piece are on a shelf now: its frame is kept until the checkpoint says so.
    pub(super) fn note_moved(&mut self, piece: &Piece) {
        if let Place::Frame { sequence, .. } = piece.place
            && let Some(index) = self.frame_index(sequence)
            && let Some(frame) = self.frames.get_mut(index)
        {
            frame.moved = true;
        }
    }

    fn frame_index(&self, sequence: u64) -> Option<usize> {
        self.frames.binary_search_by_key(&sequence, |frame| frame.sequence).ok()
    }

    /// The body of a piece's entry; `None` when it is not what was written, which is counted. An error means
    /// that it cannot be read now.
    pub(super) fn body(
        &mut self,
        side: Side,
        name: &str,
        piece: &Piece,
    ) -> Result<Option<Vec<u8>>, Trouble> {
        let at = key(side.kind(), name, piece.first);
        let length = usize::try_from(piece.length).unwrap_or(0);
        let bytes = self.entry(&at, piece.place, length)?;
        Ok(bytes.and_then(|bytes| Entry::take(&bytes)?.body().map(<[u8]>::to_vec)))
    }

    /// The bytes of a whole entry under a key; `None` when it is not what was written, which is counted. An
    /// error means that it cannot be read now.
    pub(super) fn entry(
        &mut self,
        key: &[u8],
        place: Place,
        length: usize,
    ) -> Result<Option<Vec<u8>>, Trouble> {
        if let Some(why) = self.unread.waits_for(place) {
            return Err(Trouble::Unread(why.to_owned()));
        }
        let mut bytes = vec![0; length];
        let mut outcome = self.read(place, &mut bytes);
        let tries = if self.unread.is_well() { READS_MAX } else { 1 };
        for _ in 1..tries {
            let Err(error) = &outcome else { break };
            tracing::debug!(%error, key = %key.escape_ascii(), "a stored value cannot be read");
            self.files.forget();
            outcome = self.read(place, &mut bytes);
        }
        if let Err(error) = outcome {
            if !self.unread.meets(&error) {
                self.unread.wait(place);
                return Err(Trouble::Unread(error.to_string()));
            }
            bytes.clear();
        }
        let entry = Entry::take(&bytes).filter(|entry| entry.key == key);
        if entry.is_none_or(|entry| entry.body().is_none()) {
            self.damage.bad(key, &bytes);
            return Ok(None);
        }
        Ok(Some(bytes))
    }

    /// Reads bytes from a place on.
    fn read(&mut self, place: Place, out: &mut [u8]) -> io::Result<()> {
        let (sequence, at) = match place {
            Place::Shelf { file, at } => return self.files.shelves.read(file, at, out),
            Place::Frame { sequence, at } => (sequence, at),
        };
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let memory: Option<&Vec<u8>> = if sequence == self.sequence {
            Some(&self.draft)
        } else {
            let frame = self.frame_index(sequence).and_then(|index| self.frames.get(index));
            let frame = frame.ok_or_else(gone)?;
            if let Some(offset) = frame.offset {
                return self.files.ring.read(offset + u64::from(at), out);
            }
            frame.memory.as_deref()
        };
        let bytes = memory.and_then(|bytes| bytes.get(from..from.checked_add(out.len())?));
        out.copy_from_slice(bytes.ok_or_else(gone)?);
        Ok(())
    }

    /// Whether nothing was put into the draft.
    pub(super) fn is_draft_empty(&self) -> bool {
        self.draft.len() == HEADER
    }

    /// Sums what is in the draft, so that less is to be done when it ends.
    pub(super) fn sum_draft(&mut self) {
        self.sum.go_on(&self.draft);
    }

    /// Empties the draft: what was in it was put elsewhere.
    pub(super) fn clear_draft(&mut self) {
        self.draft.truncate(HEADER);
        self.sum = Sum::default();
    }

    /// Ends the draft: it becomes a frame that is not in the ring yet.
    pub(super) fn close_draft(&mut self) {
        let mut draft = std::mem::take(&mut self.spare);
        draft.clear();
        draft.resize(HEADER, 0);
        let mut memory = std::mem::replace(&mut self.draft, draft);
        let sum = std::mem::take(&mut self.sum);
        ring::finish(&mut memory, sum, self.sequence, self.files.ring_id, self.files.run);
        let length = memory.len() as u64;
        let (sequence, live) = (self.sequence, std::mem::take(&mut self.draft_live));
        let (offset, memory) = (None, Some(Arc::new(memory)));
        self.frames.push_back(Frame { sequence, offset, length, live, moved: false, memory });
        self.sequence += 1;
    }

    /// Keeps the memory of a frame for the next draft. One that is much larger than what was in it
    /// is given back: after a rush an idle store holds little.
    pub(super) fn reuse(&mut self, memory: Arc<Vec<u8>>) {
        let Ok(memory) = Arc::try_unwrap(memory) else {
            return;
        };
        let is_small = memory.capacity() <= SPARE_BYTES_SMALL;
        if memory.capacity() > SPARE_BYTES_MAX
            || !(is_small || memory.len() * 8 >= memory.capacity())
        {
            self.spare = Vec::new();
        } else if memory.capacity() > self.spare.capacity() {
            self.spare = memory;
        }
    }

    /// Gives back memory that is kept for frames much larger than what comes now.
    pub(super) fn slim(&mut self) {
        if self.is_draft_empty() {
            self.draft.shrink_to(SPARE_BYTES_SMALL);
        }
        if self.spare.capacity() > SPARE_BYTES_SMALL {
            self.spare = Vec::new();
        }
    }

    /// A frame is at this place of the ring, durably.
    pub(super) fn land(&mut self, index: usize, offset: u64) {
        let Some(frame) = self.frames.get_mut(index) else {
            return;
        };
        frame.offset = Some(offset);
        self.head = offset + frame.length;
        if let Some(memory) = frame.memory.take() {
            self.reuse(memory);
        }
    }

    /// Index of the first frame that is not durable; the number of frames where all are.
    pub(super) fn first_waiting(&self) -> usize {
        self.frames.partition_point(|frame| frame.memory.is_none())
    }

    /// Sequence of the first frame that is not durable: it waits, or is being made.
    pub(super) fn first_undurable(&self) -> u64 {
        self.frames.get(self.first_waiting()).map_or(self.sequence, |frame| frame.sequence)
    }

    /// The first position of a queue that is in no durable frame.
    pub(super) fn durable_end(&self, side: Side, name: &str) -> Option<u64> {
        let first = self.first_undurable();
        let is_durable = |piece: &Piece| match piece.place {
            Place::Frame { sequence, .. } => sequence < first,
            Place::Shelf { .. } => true,
        };
        let queue = self.queues(side).get(name)?;
        let index = queue.pieces.partition_point(is_durable);
        queue.pieces.get(index).map(|piece| piece.first)
    }

    /// Where the first frame lies that is in the ring.
    pub(super) fn tail(&self) -> Option<u64> {
        self.frames.front().and_then(|frame| frame.offset)
    }

    /// Bytes of the ring that are taken.
    pub(super) fn used(&self) -> u64 {
        ring::used(self.files.ring_length, self.tail(), self.head)
    }

    /// Bytes of frames that are not durable.
    pub(super) fn memory(&self) -> u64 {
        let waiting = self.frames.iter().rev().take_while(|frame| frame.memory.is_some());
        waiting.map(|frame| frame.length).sum()
    }

    /// Forgets the frames that `commit` contains and of which nothing is needed, from the front.
    pub(super) fn free(&mut self, commit: u64) {
        let unneeded = |frame: &Frame| {
            let is_empty = frame.live == 0 && !frame.moved && frame.memory.is_none();
            is_empty && frame.sequence <= commit
        };
        while self.frames.front().is_some_and(unneeded) {
            self.frames.pop_front();
        }
    }
}
