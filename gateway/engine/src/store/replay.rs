//! From the frames in the ring to what is known: pieces, states, letters.
//!
//! Frames are taken in the order of their sequence, wherever they lie. Rows are listed from the first
//! frame on that is still needed; states count from the first frame that the checkpoint does not
//! contain. A frame that is not whole is passed over if it is the last one, or was synced together with it: nobody
//! can tell whether it was acknowledged (decision 104); an earlier one is damage: its entries that pass their own check are taken, the others are counted. Frames that the
//! checkpoint contains may have been let go since, and written over: what is broken there counts only
//! if its rows are still needed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::book::Letter;
use super::book::{Book, Frame, Piece, Place, Side};
use super::format::{Entry, Kind, decode_outbox, seal_of, split_key};
use super::log::split_body;
use super::record::{Meta, SinkState, TableState, decode_progress};
use super::ring::{self, HEADER, Header};
use super::rows::{decode_schema, row_count};
use super::stamps::Boots;
use super::state::State;
use super::states::{self, Kept};

/// What the frames told.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    /// Frames that the checkpoint did not contain.
    pub(super) new_frames: u64,
    /// Frames behind the checkpoint that are missing or broken, a later one being there.
    pub(super) broken: u64,
    /// The last frame was not whole.
    pub(super) torn: bool,
    /// The last frame that the checkpoint contains should be there, and no later one is.
    pub(super) ends_early: bool,
    /// Broken entries, key and value, of frames that may have been let go.
    pub(super) suspects: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Takes the frames up. `found` are the headers in the ring from the tail on; the book's sequence
/// becomes that of the next frame. With `whole`, the tree is lost and everything is taken.
pub(super) fn replay(
    book: &mut Book,
    state: &mut State,
    found: Vec<(u64, Header)>,
    commit: u64,
    whole: bool,
) -> Replayed {
    let mut replayed = Replayed::default();
    let mut bodies = in_order(book, found, commit, state.meta.run);
    find_damaged(book, &mut bodies);
    replayed.torn = drop_unacknowledged(&mut bodies, commit, whole);
    let last = bodies.last().map_or(0, |(_, header, _)| header.sequence);
    replayed.ends_early = !whole && last < commit && state.meta.tail <= commit;
    // No frame behind this one was ever let go.
    let kept_from = if whole { last_contained(book, &bodies) } else { commit };
    let mut expected = kept_from + 1;
    let mut doubtful = BTreeSet::new();
    for (offset, header, intact) in bodies {
        let sequence = header.sequence;
        let missing = sequence.saturating_sub(expected);
        expected = expected.max(sequence + 1);
        if missing > 0 {
            tracing::error!(before = sequence, missing, "frames are missing in the ring");
            book.damage.records += missing;
            replayed.broken += missing;
        }
        replayed.new_frames += u64::from(sequence > commit);
        replayed.broken += u64::from(!intact && sequence > kept_from);
        let mut bad = Vec::new();
        if !intact && sequence <= kept_from {
            doubtful.insert(sequence);
        }
        let is_new = sequence > commit && !doubtful.contains(&sequence);
        let taking = Taking { is_new, doubtful: &doubtful };
        take_frame(book, state, (offset, &header, intact), taking, &mut bad);
        if sequence > kept_from {
            for (key, value) in &bad {
                book.damage.bad(key, value);
            }
        } else {
            replayed.suspects.append(&mut bad);
        }
    }
    drop_foreign(book, state, &doubtful);
    book.sequence = book.sequence.max(commit + 1);
    replayed
}

/// Frames that may have been let go, and are not whole: a later one may have been written over them, and cut off.
/// What passes its check in there may be of that one, which nobody was told of: rows behind those of later
/// frames, or behind the last one.
#[derive(Clone, Copy)]
struct Taking<'a> {
    /// The checkpoint does not contain the frame that is taken.
    is_new: bool,
    /// Those that were taken.
    doubtful: &'a BTreeSet<u64>,
}

impl Taking<'_> {
    fn doubts(&self, piece: &Piece) -> bool {
        matches!(piece.place, Place::Frame { sequence, .. } if self.doubtful.contains(&sequence))
    }
}

/// Takes out rows of doubtful frames that lie behind the last row that is known of.
fn drop_foreign(book: &mut Book, state: &State, doubtful: &BTreeSet<u64>) {
    let taking = Taking { is_new: false, doubtful };
    let ends = state.sinks.iter().map(|(name, sink)| (Side::Outbox, name, sink.next));
    let ends = ends.chain(state.tables.iter().map(|(name, table)| (Side::Log, name, table.end)));
    for (side, name, end) in ends {
        let Some(queue) = book.queues(side).get(name) else { continue };
        let is_foreign = |piece: &Piece| piece.end() > end && taking.doubts(piece);
        let kept = queue.pieces.iter().rposition(|piece| !is_foreign(piece)).map_or(0, |at| at + 1);
        let all = queue.pieces.len();
        book.take(side, name, kept..all);
    }
}

/// A frame: where it lies, its header, whether it is whole.
type Body = (u64, Header, bool);

/// One frame for each sequence. What an earlier process wrote with a sequence that a later one came by,
/// or behind the checkpoint of a later one, was given up by that: it counts no more, whole or not.
fn in_order(book: &Book, mut found: Vec<(u64, Header)>, commit: u64, run: u32) -> Vec<Body> {
    found.sort_by_key(|(_, header)| (header.sequence, std::cmp::Reverse(header.run)));
    let mut bodies: Vec<Body> = Vec::new();
    let mut newest = 0;
    for group in found.chunk_by(|(_, a), (_, b)| a.sequence == b.sequence) {
        let (_, latest) = group[0];
        if latest.sequence > commit {
            newest = newest.max(run);
        }
        if latest.run < newest {
            tracing::info!(sequence = latest.sequence, "a frame that was given up is passed over");
            continue;
        }
        newest = latest.run;
        let mut copies = group.iter().take_while(|(_, header)| header.run == latest.run);
        let intact = copies.find(|(offset, header)| read(book, *offset, header).is_some());
        let (offset, header) = *intact.unwrap_or(&group[0]);
        bodies.push((offset, header, intact.is_some()));
    }
    bodies
}

/// Puts in the frames of which only the header is damaged: one that is missing behind another lies behind it,
/// or at the beginning of the ring.
fn find_damaged(book: &Book, bodies: &mut Vec<Body>) {
    let mut found = Vec::new();
    for (index, (offset, header, _)) in bodies.iter().enumerate() {
        let (sequence, end) = (header.sequence + 1, offset + header.frame_bytes());
        let next = bodies.get(index + 1);
        if next.is_none_or(|(_, next, _)| next.sequence == sequence + 1) {
            let next = next.map(|(offset, _, _)| *offset);
            let at = |offset| damaged(book, offset, next, sequence, header);
            found.extend(at(end).or_else(|| at(0)));
        }
    }
    bodies.append(&mut found);
    bodies.sort_by_key(|(_, header, _)| header.sequence);
}

/// The frame behind `before` of which the header at `offset` is damaged; the next one is at `next`.
fn damaged(
    book: &Book,
    offset: u64,
    next: Option<u64>,
    sequence: u64,
    before: &Header,
) -> Option<Body> {
    let end = next.filter(|next| *next > offset).unwrap_or(book.files.ring_length);
    let room = u32::try_from(end.checked_sub(offset + HEADER as u64)?).ok()?;
    let mut bytes = [0; HEADER];
    let mut lost = |_: u64, error: &std::io::Error| book.unread.gives_up(error);
    ring::read_blocks(&*book.files.ring, offset, &mut bytes, &mut lost).ok()?;
    let told = Header::damaged(&bytes, before.ring, sequence)?;
    tracing::warn!(sequence, "the header of a frame is damaged");
    let Header { ring, run, .. } = *before;
    let header = Header { sequence, ring, run, length: told.length.min(room), ..told };
    if read(book, offset, &header).is_some() {
        return Some((offset, header, true));
    }
    // Where it ends is what may be damaged.
    let length = if next.is_some() { room } else { header.length };
    Some((offset, Header { length, ..header }, false))
}

/// Takes out what was never acknowledged: of the frames that were synced together last, the first one
/// that is not whole and those behind it. True where there was one.
fn drop_unacknowledged(bodies: &mut Vec<Body>, commit: u64, whole: bool) -> bool {
    let Some((_, last, _)) = bodies.last().copied() else {
        return false;
    };
    // What the checkpoint contains was durable.
    let from = last.sequence.saturating_sub(u64::from(last.ahead)).max(commit + 1);
    let first = bodies.partition_point(|(_, header, _)| header.sequence < from);
    let mut expected = from;
    if whole && let Some((_, header, _)) = bodies.get(first) {
        // Without the checkpoint nobody knows which ones were let go.
        expected = header.sequence;
    }
    let is_there = |(_, header, intact): &&Body| {
        // One of an earlier run was written before these, and is not what was synced with them.
        let fits = *intact && header.sequence == expected && header.run == last.run;
        expected += 1;
        fits
    };
    let end = first + bodies.iter().skip(first).take_while(is_there).count();
    if let Some((_, header, _)) = bodies.get(end) {
        tracing::info!(from = header.sequence, "frames from here on are passed over");
    }
    let torn = end < bodies.len();
    bodies.truncate(end);
    torn
}

/// The whole frame, if it is.
fn read(book: &Book, offset: u64, header: &Header) -> Option<Vec<u8>> {
    let bytes = read_all(book, offset, header)?;
    header.fits(bytes.get(HEADER..)?).then_some(bytes)
}

fn read_all(book: &Book, offset: u64, header: &Header) -> Option<Vec<u8>> {
    let length = HEADER + usize::try_from(header.length).ok()?;
    if offset + length as u64 > book.files.ring_length {
        return None;
    }
    let mut bytes = vec![0; length];
    let mut lost = |at: u64, error: &std::io::Error| {
        tracing::error!(%error, at, "a part of a frame cannot be read");
        book.unread.gives_up(error)
    };
    ring::read_blocks(&*book.files.ring, offset, &mut bytes, &mut lost).ok()?;
    Some(bytes)
}

/// Sequence of the last frame that the checkpoint contained, as the last whole frame with a word of it says.
fn last_contained(book: &Book, bodies: &[Body]) -> u64 {
    let told = |(offset, header, intact): &Body| {
        let bytes = if *intact { read_all(book, *offset, header) } else { None };
        let mut rest = bytes.as_deref().and_then(|bytes| bytes.get(HEADER..)).unwrap_or_default();
        while let Some(entry) = Entry::take(rest) {
            if split_key(entry.key).is_some_and(|(kind, _, _)| kind == Kind::Meta) {
                return Some(Meta::decode(entry.body()?)?.commit);
            }
            rest = &rest[entry.length..];
        }
        None
    };
    bodies.iter().rev().find_map(told).unwrap_or(0)
}

fn take_frame(
    book: &mut Book,
    state: &mut State,
    (offset, header, intact): (u64, &Header, bool),
    taking: Taking<'_>,
    bad: &mut Vec<(Vec<u8>, Vec<u8>)>,
) {
    let sequence = header.sequence;
    book.sequence = sequence;
    book.draft_live = 0;
    if !intact {
        tracing::warn!(sequence, "a frame is not whole; taking what passes its own check");
    }
    let bytes = read_all(book, offset, header).unwrap_or_default();
    let mut at = HEADER;
    if bytes.is_empty() {
        bad.push((sequence.to_le_bytes().to_vec(), Vec::new()));
    }
    // Behind the last entry of a frame whose length nobody knows is what fills its last block.
    let end = if intact { bytes.len() } else { padded_from(&bytes, HEADER) };
    while at < end {
        let entry = Entry::take(&bytes[at..]);
        let taken = entry.as_ref().and_then(|entry| {
            let body = entry.body()?;
            take_entry(book, state, entry, body, at, taking)
        });
        let next = match &entry {
            Some(entry) if taken.is_some() => at + entry.length,
            entry => next_entry(&bytes, at, entry.as_ref()),
        };
        if taken.is_none() {
            // Under its key, should that be readable; else bytes of which nobody knows what they were.
            let named = entry.filter(|entry| split_key(entry.key).is_some());
            bad.push(named.map_or_else(
                || (sequence.to_le_bytes().to_vec(), bytes[at..next].to_vec()),
                |entry| (entry.key.to_vec(), entry.value.to_vec()),
            ));
        }
        at = next;
    }
    let (live, length) = (std::mem::take(&mut book.draft_live), header.frame_bytes());
    book.head = offset + length;
    let (offset, memory) = (Some(offset), None);
    book.frames.push_back(Frame { sequence, offset, length, live, moved: false, memory });
    book.sequence = sequence + 1;
}

/// Where the zeros at the end begin, not before `from`: of a whole entry one may belong to it.
fn padded_from(bytes: &[u8], from: usize) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(from, |last| (last + 1).max(from))
}

/// Where the entry behind a bad one begins: where its lengths say, if something with a key is there, be it
/// bad as well; or, should the lengths be what is bad, at the next place where an entry passes its check.
fn next_entry(bytes: &[u8], at: usize, bad: Option<&Entry<'_>>) -> usize {
    let keyed = |at: usize| {
        let entry = bytes.get(at..).and_then(Entry::take);
        entry.filter(|entry| split_key(entry.key).is_some())
    };
    let told = bad.map(|entry| at + entry.length);
    told.filter(|end| *end == bytes.len() || keyed(*end).is_some())
        .or_else(|| {
            let mut behind = at + 1..bytes.len();
            behind.find(|at| keyed(*at).is_some_and(|entry| entry.body().is_some()))
        })
        .unwrap_or(bytes.len())
}

fn take_entry(
    book: &mut Book,
    state: &mut State,
    entry: &Entry<'_>,
    body: &[u8],
    at: usize,
    taking: Taking<'_>,
) -> Option<()> {
    let (kind, name, position) = split_key(entry.key)?;
    let name: Arc<str> = Arc::from(name);
    if let Kind::Log | Kind::Outbox = kind {
        let side = if kind == Kind::Log { Side::Log } else { Side::Outbox };
        let place = Place::Frame { sequence: book.sequence, at: u32::try_from(at).ok()? };
        list(book, side, &name, piece(side, position, entry.length, body, place)?, taking);
        return Some(());
    }
    if !taking.is_new {
        return Some(());
    }
    match kind {
        Kind::Meta => {
            let meta = Meta::decode(body)?;
            state.meta.epoch = state.meta.epoch.max(meta.epoch);
            state.meta.gateway = meta.gateway;
            (state.meta.day, state.meta.written_today) = (meta.day, meta.written_today);
        }
        Kind::Sink => {
            state.sinks.insert(name, SinkState::decode(body)?);
        }
        Kind::Table => {
            state.tables.insert(name, TableState::decode(body)?);
        }
        Kind::Count => {
            state.counts.insert(name, position);
        }
        Kind::Boots => state.boots = Boots::decode(body)?,
        Kind::Progress => {
            let (progress, mark) = decode_progress(name.clone(), body)?;
            state.progress.insert(name.clone(), Arc::new(progress));
            state.marks.insert(name, mark);
        }
        Kind::State => {
            let frame = Some(Place::Frame { sequence: book.sequence, at: u32::try_from(at).ok()? });
            let (crc, length) = seal_of(entry.value)?;
            let since = book.sequence;
            let kept = Kept { frame, in_tree: false, crc, length, since };
            states::keep(book, &name, position, kept);
        }
        Kind::StatesGone => {
            for key in body.chunks_exact(8) {
                states::take(book, &name, u64::from_le_bytes(key.try_into().ok()?));
            }
        }
        Kind::Schema => {
            let (schema, known) = (decode_schema(body)?, state.schemas.entry(name).or_default());
            if known.iter().all(|(number, _)| *number != position) {
                known.push((position, schema));
            }
        }
        Kind::Rejected => {
            let letters = book.letters.entry(name).or_default();
            let bytes = entry.value.len() as u64;
            letters.insert(position, Letter { bytes, body: Some(body.to_vec()) });
        }
        Kind::Forgotten => {
            for position in body.chunks_exact(8) {
                let position = u64::from_le_bytes(position.try_into().ok()?);
                if let Some(letters) = book.letters.get_mut(&name) {
                    letters.remove(&position);
                }
                book.letters_gone.push((name.clone(), position));
            }
        }
        _ => return None,
    }
    Some(())
}

/// The piece of an entry with rows.
pub(super) fn piece(
    side: Side,
    first: u64,
    length: usize,
    body: &[u8],
    place: Place,
) -> Option<Piece> {
    let (rows, created) = match side {
        Side::Outbox => {
            let rows = decode_outbox(first, body)?;
            (rows.len(), rows.iter().map(|row| row.created).max()?)
        }
        Side::Log => {
            let (accepted, rows) = split_body(body)?;
            (row_count(rows)?.1, accepted)
        }
    };
    let (rows, length) = (u32::try_from(rows).ok()?, u32::try_from(length).ok()?);
    Some(Piece { first, rows, length, created, place })
}

/// Puts a piece behind those that are known. One that lies on a shelf already is passed over; a later
/// frame has the better version of the last row.
fn list(book: &mut Book, side: Side, name: &Arc<str>, piece: Piece, taking: Taking<'_>) {
    let queue = book.queues_mut(side).entry(name.clone()).or_default();
    let replaces = |known: &Piece| {
        let covers = piece.first <= known.first && piece.end() >= known.end();
        let is_foreign =
            known.end() > piece.first && taking.doubts(known) && !taking.doubts(&piece);
        is_foreign || covers && (taking.is_new || matches!(known.place, Place::Frame { .. }))
    };
    let keep = queue.pieces.iter().rposition(|known| !replaces(known)).map_or(0, |at| at + 1);
    let (count, end) = (queue.pieces.len(), queue.pieces.get(keep.wrapping_sub(1)).map(Piece::end));
    if end.is_some_and(|end| piece.first < end) {
        return;
    }
    book.take(side, name, keep..count);
    book.draft_live += 1;
    if let Some(queue) = book.queues_mut(side).get_mut(name) {
        queue.push(piece);
    }
}
