//! Rows that come into an outbox: positions, pieces, and a notice for those that find no room.

use std::sync::Arc;

use bytes::Bytes;

use super::super::book::{Book, Side};
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
    let mut chunk = Chunk::default();
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
        if let Some(gap) = refused {
            refuse(book, sink, state, &mut chunk, row(gap.to, &Bytes::new(), Some(gap)));
        }
    }
    chunk.put(book, sink);
}

/// Notices that lie in one piece at most: of as many streams.
const NOTICES_MAX: usize = 64;

/// Adds the notice of refused rows, or lets one grow that is there, if nothing but notices lies behind it: while
/// a sink stays full there is one notice a stream, not one a commit. They lie in one piece, which is written
/// as a whole: a later frame has the better version of the last piece.
fn refuse(
    book: &mut Book,
    sink: &Arc<str>,
    state: &mut SinkState,
    chunk: &mut Chunk,
    notice: OutboxRow,
) {
    chunk.put(book, sink);
    let last = book.outboxes.get(sink).and_then(|queue| queue.pieces.back()).copied();
    let open = last.filter(|piece| {
        let is_ahead = (piece.first..piece.end()).any(|position| state.is_ahead(position));
        piece.end() == state.next && piece.first > state.cursor && !is_ahead
    });
    // Only a small one can be of nothing else.
    let small = open.filter(|piece| usize::try_from(piece.rows).is_ok_and(|n| n <= NOTICES_MAX));
    let rows = small.and_then(|piece| {
        let body = book.body(Side::Outbox, sink, &piece)?;
        let rows = decode_outbox(piece.first, &body)?;
        rows.iter().all(|row| row.gap.is_some()).then_some(rows)
    });
    let mut rows = rows.unwrap_or_default();
    let grown = rows.iter_mut().rev().find_map(|row| {
        let (old, new) = (row.gap?, notice.gap?);
        let is_same = row.stream == notice.stream && row.epoch == notice.epoch;
        let joins = is_same && old.reason == new.reason && old.to < new.from;
        joins.then(|| {
            row.gap = Some(Gap { to: new.to, ..old });
            row.seq = new.to;
        })
    });
    if grown.is_some() || rows.len() < NOTICES_MAX {
        let pieces = book.outboxes.get(sink).map_or(0, |queue| queue.pieces.len());
        book.take(Side::Outbox, sink, pieces - usize::from(!rows.is_empty())..pieces);
        chunk.rows = rows;
    }
    if grown.is_none() {
        chunk.add(book, sink, state, notice);
    }
    chunk.put(book, sink);
}
