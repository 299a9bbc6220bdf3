//! Rows that come into an outbox: positions, pieces, and a notice for those that find no room.

use std::sync::Arc;

use bytes::Bytes;

use super::super::book::{Book, Place, Queue, Side};
use super::super::border::{Gap, GapReason, OutboxRow, OutboxRows};
use super::super::format::{CHUNK_BYTES, decode_outbox, encode_outbox, weight};
use super::super::record::SinkState;
use super::Room;

/// Rows that will lie in one piece.
#[derive(Default)]
pub(in crate::store) struct Chunk {
    rows: Vec<OutboxRow>,
    bytes: usize,
}

impl Chunk {
    /// Gives a row the next position.
    pub(in crate::store) fn add(
        &mut self,
        book: &mut Book,
        sink: &Arc<str>,
        state: &mut SinkState,
        row: OutboxRow,
    ) {
        if state.open() == 0 {
            state.head_created = Some(row.created);
        }
        state.bytes += weight(&row);
        state.gaps += u64::from(row.gap.is_some());
        self.bytes += row.body.len() + 4;
        self.rows.push(OutboxRow { position: state.next, ..row });
        state.next += 1;
        if self.bytes >= CHUNK_BYTES {
            self.put(book, sink);
        }
    }

    pub(in crate::store) fn put(&mut self, book: &mut Book, sink: &Arc<str>) {
        let Some(first) = self.rows.first() else {
            return;
        };
        let created = self.rows.iter().map(|row| row.created).max().unwrap_or(first.created);
        let count = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
        let body = encode_outbox(&self.rows);
        book.push(Side::Outbox, sink, first.position, count, created, &body);
        let last = self.rows.iter().rfind(|row| row.gap.is_none());
        if let Some((row, queue)) = last.zip(book.outboxes.get_mut(sink)) {
            queue.records_end = row.position + 1;
        }
        self.rows.clear();
        self.bytes = 0;
    }
}

/// Gives rows their positions and stores them; with `room`, the rows that do not fit any more are
/// dropped and counted, and a notice stands for them.
pub(in crate::store) fn append(
    book: &mut Book,
    sink: &Arc<str>,
    state: &mut SinkState,
    epoch: u64,
    parts: &[&OutboxRows],
    mut room: Option<Room>,
) {
    let (mut chunk, mut notices) = (Chunk::default(), Vec::new());
    for part in parts {
        let row = |seq: u64, body: &Bytes, gap: Option<Gap>| OutboxRow {
            position: 0,
            epoch,
            stream: part.stream.clone(),
            seq,
            body: body.clone(),
            window: part.window,
            created: part.created,
            gap,
        };
        let mut refused: Option<Gap> = None;
        for (seq, body) in (part.first_seq..).zip(&part.bodies) {
            let row = row(seq, body, None);
            let bytes = weight(&row);
            if let Some(room) = &mut room {
                if room.records == 0 || room.bytes < bytes {
                    // Nothing later may overtake: from here on the sink is full for this commit.
                    *room = Room { records: 0, bytes: 0 };
                    state.dropped += 1;
                    let from = refused.map_or(seq, |gap| gap.from);
                    refused = Some(Gap { from, to: seq, reason: GapReason::Dropped });
                    continue;
                }
                *room = Room { records: room.records - 1, bytes: room.bytes - bytes };
            }
            chunk.add(book, sink, state, row);
        }
        notices.extend(refused.map(|gap| row(gap.to, &Bytes::new(), Some(gap))));
    }
    chunk.put(book, sink);
    if !notices.is_empty() {
        refuse(book, sink, state, notices);
    }
}

/// Notices that lie in one piece at most: of as many streams.
const NOTICES_MAX: usize = 1_000;

/// Adds notices of refused rows, or lets those grow that are there, if nothing but notices lies behind them:
/// while a sink stays full there is one notice a stream, not one a commit. They lie in one piece, which is
/// written as a whole: at a start a later frame has the better version of the last piece, and of no other.
fn refuse(book: &mut Book, sink: &Arc<str>, state: &mut SinkState, notices: Vec<OutboxRow>) {
    let mut chunk = Chunk { rows: take_notices(book, sink, state), bytes: 0 };
    for notice in notices {
        let grown = chunk.rows.iter_mut().rev().find_map(|row| {
            let (old, new) = (row.gap?, notice.gap?);
            let is_same = row.stream == notice.stream && row.epoch == notice.epoch;
            let joins = is_same && old.reason == new.reason && old.to < new.from;
            joins.then(|| {
                row.gap = Some(Gap { to: new.to, ..old });
                row.seq = new.to;
            })
        });
        if grown.is_none() {
            if chunk.rows.len() >= NOTICES_MAX {
                chunk.put(book, sink);
            }
            chunk.add(book, sink, state, notice);
        }
    }
    chunk.put(book, sink);
}

/// Takes the last piece out of the outbox if it may be written anew: it has nothing but notices, nobody was
/// given one of them, and one on a shelf is in the checkpoint as it is.
fn take_notices(book: &mut Book, sink: &Arc<str>, state: &SinkState) -> Vec<OutboxRow> {
    let may_change = |queue: &&Queue| {
        queue.pieces.back().is_some_and(|piece| {
            let is_small = usize::try_from(piece.rows).is_ok_and(|rows| rows <= NOTICES_MAX);
            let is_known = piece.first < queue.saved || matches!(piece.place, Place::Frame { .. });
            let front = state.cursor + state.front.len() as u64;
            let settled = state.lanes.map_or(front, |lanes| lanes.live);
            let is_open = piece.first > settled.max(queue.given) && piece.end() == state.next;
            // Else it is not even read: the device may be away.
            is_small && is_known && is_open && piece.first >= queue.records_end
        })
    };
    let last = book.outboxes.get(sink).filter(may_change).and_then(|queue| queue.pieces.back());
    let Some(piece) = last.copied() else { return Vec::new() };
    // One that cannot be read now stays as it is.
    let body = book.body(Side::Outbox, sink, &piece).ok().flatten();
    let rows = body.and_then(|body| decode_outbox(piece.first, &body)).unwrap_or_default();
    if rows.iter().any(|row| row.gap.is_none()) {
        return Vec::new();
    }
    if !rows.is_empty() {
        let pieces = book.outboxes.get(sink).map_or(0, |queue| queue.pieces.len());
        book.take(Side::Outbox, sink, pieces - 1..pieces);
    }
    rows
}
