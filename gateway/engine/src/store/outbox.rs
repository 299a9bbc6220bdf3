//! One sink's outbox: rows at contiguous positions, stored in pieces, settled from the front.
//!
//! The cursor is a contiguous low-water mark: each position below it was delivered, dropped, rejected
//! or lost, and is counted as one of these. Positions that cannot be read back are lost rows; a piece
//! that fails its check never stops the rows behind it. What is dropped leaves a notice in its place,
//! one for each stream. A live lane settles positions behind `split` ahead of the cursor. Changes
//! the book and the state; where rows cannot be read now nothing has changed. Knows no file and no time.

mod append;
mod passed;

use std::ops::ControlFlow;
use std::sync::Arc;

use super::book::{Book, Queue, Side};
use super::border::{GapReason, Lanes, OutboxRow, SinkLayout, WhenFull};
use super::damage::Trouble;
use super::format::{Kind, decode_outbox, weight};
use super::letters;
use super::record::SinkState;

pub(super) use append::{Chunk, append};
use passed::{Holes, Passed};

/// Bytes of rows that one commit lets go for age or for a bound of the sink, about: they are read
/// for it, and nothing else is done meanwhile. What is left goes with the next commit or look.
pub(super) const GONE_BYTES_MAX: u64 = 16 << 20;

/// What became of rows that the cursor passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Delivered,
    /// Delivered, maybe by a lane that had none of the rows before them.
    DeliveredBeside,
    Gone(GapReason),
    Rejected,
}

/// The notices at the front as rows.
fn front_rows(state: &SinkState) -> Vec<OutboxRow> {
    (state.cursor + 1..)
        .zip(&state.front)
        .map(|(position, notice)| OutboxRow {
            position,
            epoch: notice.epoch,
            stream: notice.stream.clone(),
            seq: notice.gap.to,
            body: bytes::Bytes::new(),
            window: None,
            created: notice.created,
            gap: Some(notice.gap),
        })
        .collect()
}

/// Visits the stored rows from position `from` on, a piece at a time: `None` is one that failed its
/// check.
fn for_each_piece(
    book: &mut Book,
    sink: &str,
    from: u64,
    mut visit: impl FnMut(Option<&[OutboxRow]>) -> ControlFlow<()>,
) -> Result<(), Trouble> {
    let Some(queue) = book.outboxes.get(sink) else {
        return Ok(());
    };
    for index in queue.index_of(from).. {
        let piece = book.outboxes.get(sink).and_then(|queue| queue.pieces.get(index)).copied();
        let Some(piece) = piece else {
            return Ok(());
        };
        let body = book.body(Side::Outbox, sink, &piece)?;
        let rows = body.and_then(|body| decode_outbox(piece.first, &body));
        if visit(rows.as_deref()).is_break() {
            return Ok(());
        }
    }
    Ok(())
}

/// Visits every open row behind `after`, in order.
fn for_each_open(
    book: &mut Book,
    sink: &str,
    state: &SinkState,
    after: u64,
    mut visit: impl FnMut(&OutboxRow) -> ControlFlow<()>,
) -> Result<(), Trouble> {
    for row in front_rows(state).iter().filter(|row| row.position > after) {
        if visit(row).is_break() {
            return Ok(());
        }
    }
    let from = after.max(state.cursor + state.front.len() as u64) + 1;
    for_each_piece(book, sink, from, |rows| {
        for row in rows.unwrap_or_default() {
            let open = row.position >= from && !state.is_ahead(row.position);
            if open && visit(row).is_break() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })
}

/// Counts the rows at `from .. to` that are not settled yet as missing.
pub(super) fn lose(book: &mut Book, sink: &str, state: &SinkState, from: u64, to: u64) {
    for open in state.open_positions() {
        book.damage.gap(Kind::Outbox, sink, from.max(open.start), to.min(open.end));
    }
}

/// Moves the cursor to `upto` and forgets what it has passed. A position at or below the cursor
/// changes nothing; one beyond the end is the end. What is gone leaves notices in the last of the
/// positions that were passed. An error means that what it passes cannot be read now, so that nobody can
/// tell what it is; nothing has changed.
pub(super) fn settle(
    book: &mut Book,
    sink: &str,
    state: &mut SinkState,
    upto: u64,
    fate: Fate,
) -> Result<(), Trouble> {
    let upto = upto.min(state.next - 1);
    if upto <= state.cursor {
        return Ok(());
    }
    let mut passed = Passed::default();
    let mut holes = Holes::new(state.cursor + 1);
    let front = state.cursor + state.front.len() as u64;
    let given = book.outboxes.get(sink).map_or(0, |queue| queue.front_given).max(state.cursor);
    let (front, given) = match fate {
        Fate::Gone(_) => (0, 0),
        // What the notices stand for was on its way when it was dropped, and has arrived.
        Fate::Delivered if upto >= front => (front, front),
        // They were not told, and what they stand for did not arrive, or not all of it.
        _ => (front, given),
    };
    let kept = front.min(upto).saturating_sub(given);
    for_each_open(book, sink, state, state.cursor, |row| {
        if row.position > upto {
            passed.head = Some(row.created);
            return ControlFlow::Break(());
        }
        holes.found(row.position);
        if row.position > front || row.position <= given {
            passed.add(row, fate);
        }
        ControlFlow::Continue(())
    })?;
    holes.count(book, sink, state, upto + 1);
    let before = state.open();
    if matches!(fate, Fate::Gone(_)) {
        state.front.clear();
    } else {
        let told = usize::try_from(upto.min(given) - state.cursor).unwrap_or(usize::MAX);
        state.front.drain(..told.min(state.front.len()));
    }
    state.cursor = upto;
    if let Some(lanes) = state.lanes.filter(|lanes| upto >= lanes.split) {
        state.cursor = upto.max(lanes.live);
        state.lanes = None;
    }
    let end = state.cursor;
    if kept > 0 {
        state.cursor -= kept;
        state.kept += 1;
        passed.head = state.front.first().map(|notice| notice.created);
    }
    let lost = (before - state.open()).saturating_sub(passed.records + passed.gaps);
    state.lost += lost;
    match fate {
        Fate::Delivered | Fate::DeliveredBeside => state.delivered += passed.records,
        Fate::Rejected => state.rejected += passed.records,
        Fate::Gone(GapReason::Dropped) => state.dropped += passed.records,
        Fate::Gone(GapReason::Expired) => state.expired += passed.records,
    }
    state.gaps = state.gaps.saturating_sub(passed.gaps);
    state.bytes = state.bytes.saturating_sub(passed.bytes);
    if !passed.notices.is_empty() {
        state.front = passed.notices.into_values().flatten().collect();
        if let Some(queue) = book.outboxes.get_mut(sink) {
            queue.front_given = 0;
        }
        state.cursor -= state.front.len() as u64;
        state.gaps += state.front.len() as u64;
        passed.head = state.front.first().map(|notice| notice.created);
    }
    finish(book, sink, state, passed.head, end);
    Ok(())
}

/// Forgets the pieces up to `end` and sees to what follows from it.
fn finish(book: &mut Book, sink: &str, state: &mut SinkState, head: Option<i64>, end: u64) {
    if state.records() == 0 {
        state.bytes = 0;
    }
    state.head_created = head;
    if let Some(queue) = book.outboxes.get(sink) {
        let gone = queue.index_of(end + 1);
        book.take(Side::Outbox, sink, 0..gone);
    }
}

/// Settles positions of the live lane up to `upto`; as [`settle`].
pub(super) fn settle_live(
    book: &mut Book,
    sink: &str,
    state: &mut SinkState,
    upto: u64,
    fate: Fate,
) -> Result<(), Trouble> {
    let upto = upto.min(state.next - 1);
    let Some(lanes) = state.lanes.filter(|lanes| upto > lanes.live) else {
        return Ok(());
    };
    let mut passed = Passed::default();
    let mut holes = Holes::new(lanes.live + 1);
    for_each_open(book, sink, state, lanes.live, |row| {
        if row.position > upto {
            return ControlFlow::Break(());
        }
        holes.found(row.position);
        passed.add(row, fate);
        ControlFlow::Continue(())
    })?;
    holes.count(book, sink, state, upto + 1);
    let lost = (upto - lanes.live).saturating_sub(passed.records + passed.gaps);
    state.lost += lost;
    match fate {
        Fate::Rejected => state.rejected += passed.records,
        _ => state.delivered += passed.records,
    }
    state.gaps = state.gaps.saturating_sub(passed.gaps);
    state.bytes = state.bytes.saturating_sub(passed.bytes);
    state.lanes = Some(Lanes { live: upto, ..lanes });
    if let Some(queue) = book.outboxes.get(sink) {
        let from = queue.pieces.partition_point(|piece| piece.first <= lanes.split);
        let to = queue.pieces.partition_point(|piece| piece.end() <= upto + 1);
        if from < to {
            book.take(Side::Outbox, sink, from..to);
        }
    }
    Ok(())
}

/// Begins a live lane behind the last row; where nothing waits, or there is one, nothing changes.
pub(super) fn split(state: &mut SinkState) {
    let end = state.next - 1;
    if state.lanes.is_none() && end > state.cursor {
        state.lanes = Some(Lanes { split: end, live: end });
    }
}

/// Moves the row at `position` to the dead letters; rows of its lane before it were delivered. After an error
/// it is where it was, and may be refused again.
pub(super) fn reject(
    book: &mut Book,
    sink: &Arc<str>,
    state: &mut SinkState,
    position: u64,
    reason: &str,
) -> Result<(), Trouble> {
    if position <= state.cursor || position >= state.next || state.is_ahead(position) {
        return Ok(());
    }
    let in_live = state.lanes.is_some_and(|lanes| position > lanes.split);
    let mark = if in_live { settle_live } else { settle };
    mark(book, sink, state, position - 1, Fate::DeliveredBeside)?;
    let (after, before, delivers) = (position - 1, None, false);
    let span = Span { after, before, max_rows: 1, max_bytes: 0, delivers };
    let (rows, _) = read(book, sink, state, span)?;
    if let Some(row) = rows.first().filter(|row| row.position == position && row.gap.is_none()) {
        letters::add(book, sink, state, row, reason);
    }
    mark(book, sink, state, position, Fate::Rejected)
}

/// Room that `DropNewest` rows are checked against while they are added.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Rows.
    pub(super) records: u64,
    /// Bytes.
    pub(super) bytes: u64,
}

/// Drops everything, without a notice: nobody will read one. Returns how many records that were.
pub(super) fn forget(book: &mut Book, sink: &str, state: &mut SinkState) -> u64 {
    let records = state.records();
    let count = book.outboxes.get(sink).map_or(0, |queue| queue.pieces.len());
    book.take(Side::Outbox, sink, 0..count);
    state.dropped += records;
    state.cursor = state.next - 1;
    (state.bytes, state.gaps, state.head_created, state.lanes) = (0, 0, None, None);
    state.front.clear();
    state.paused = false;
    records
}

/// How many bytes and rows an outbox is over its own bounds.
pub(super) fn excess(layout: &SinkLayout, state: &SinkState) -> Room {
    let records = layout.max_records.map_or(0, |max| state.records().saturating_sub(max));
    Room { records, bytes: state.bytes.saturating_sub(layout.max_bytes) }
}

/// Whether a bound of its own stops a `Block` sink from taking more.
pub(super) fn is_full(layout: &SinkLayout, records: u64, bytes: u64) -> bool {
    layout.when_full == WhenFull::Block
        && (bytes >= layout.max_bytes || layout.max_records.is_some_and(|max| records >= max))
}

/// Drops the oldest rows until `excess` is gone, or [`GONE_BYTES_MAX`], or up to what cannot be read now. An error
/// means that nothing was dropped for that.
pub(super) fn drop_oldest(
    book: &mut Book,
    sink: &str,
    state: &mut SinkState,
    excess: Room,
) -> Result<(), Trouble> {
    if excess.records == 0 && excess.bytes == 0 {
        return Ok(());
    }
    let (mut upto, mut bytes, mut records) = (state.cursor, 0_u64, 0_u64);
    let looked = for_each_open(book, sink, state, state.cursor, |row| {
        bytes += weight(row);
        records += u64::from(row.gap.is_none());
        upto = row.position;
        let is_enough = bytes >= excess.bytes && records >= excess.records;
        if is_enough || bytes >= GONE_BYTES_MAX {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    let is_enough = bytes >= GONE_BYTES_MAX || (bytes >= excess.bytes && records >= excess.records);
    match looked {
        Err(trouble) if records == 0 => return Err(trouble),
        Ok(()) if !is_enough => upto = state.next - 1,
        _ => {}
    }
    settle(book, sink, state, upto, Fate::Gone(GapReason::Dropped))
}

/// Drops rows from the front that were made before `limit`, up to [`GONE_BYTES_MAX`]. A younger row in front of an older one
/// keeps it: order is never traded for age. Notices do not age. An error means that nothing was dropped, because
/// it cannot be read now.
pub(super) fn expire(
    book: &mut Book,
    sink: &str,
    state: &mut SinkState,
    limit: i64,
) -> Result<(), Trouble> {
    let is_young = state.front.is_empty() && state.head_created.is_some_and(|at| at >= limit);
    if state.records() == 0 || is_young {
        return Ok(());
    }
    let (mut upto, mut bytes, mut records) = (state.cursor, 0_u64, 0_u64);
    let mut ends = false;
    let looked = for_each_open(book, sink, state, state.cursor, |row| {
        if row.gap.is_none() && row.created >= limit {
            (upto, ends) = (row.position - 1, true);
            return ControlFlow::Break(());
        }
        bytes += weight(row);
        records += u64::from(row.gap.is_none());
        upto = row.position;
        if bytes >= GONE_BYTES_MAX {
            ends = true;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    match looked {
        Err(trouble) if records == 0 => return Err(trouble),
        Ok(()) if !ends => upto = state.next - 1,
        _ => {}
    }
    if records > 0 {
        settle(book, sink, state, upto, Fate::Gone(GapReason::Expired))?;
    }
    Ok(())
}

/// The durable count of rows of a sink that were dropped because the disk had no room.
pub(super) fn no_room(sink: &str) -> String {
    format!("sink/{sink}/no_room")
}

/// How much is read at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// The position before the first row.
    pub(super) after: u64,
    /// The position behind the last row, if that is before the end of the outbox.
    pub(super) before: Option<u64>,
    pub(super) max_rows: usize,
    /// Bytes of bodies after the first.
    pub(super) max_bytes: usize,
    /// Who reads delivers them: notices among them are told by that.
    pub(super) delivers: bool,
}

/// Reads rows of a span. Returns them with the position up to which everything has been looked at. An error
/// means that the first of them cannot be read now; behind those that can, one that cannot is an end.
pub(super) fn read(
    book: &mut Book,
    sink: &str,
    state: &SinkState,
    span: Span,
) -> Result<(Vec<OutboxRow>, u64), Trouble> {
    let Span { after, before, max_rows, max_bytes, delivers } = span;
    let end = before.unwrap_or(u64::MAX).min(state.next);
    let mut rows: Vec<OutboxRow> = Vec::new();
    let mut bytes = 0_usize;
    let mut after = after.max(state.cursor);
    if let Some(lanes) = state.lanes.filter(|lanes| after >= lanes.split) {
        after = after.max(lanes.live);
    }
    let mut holes = Holes::new(after + 1);
    let mut more = false;
    let looked = for_each_open(book, sink, state, after, |row| {
        if row.position >= end {
            return ControlFlow::Break(());
        }
        bytes = bytes.saturating_add(row.body.len());
        more = !rows.is_empty() && (rows.len() >= max_rows || bytes > max_bytes);
        if more {
            return ControlFlow::Break(());
        }
        holes.found(row.position);
        rows.push(row.clone());
        ControlFlow::Continue(())
    });
    if let Err(trouble) = looked {
        if rows.is_empty() {
            return Err(trouble);
        }
        more = true;
    }
    let looked_at = if more { holes.expected } else { holes.expected.max(end) };
    holes.count(book, sink, state, looked_at);
    if let Some(last) = rows.last().filter(|_| delivers) {
        // Notices at the front may be all that there is, without a piece.
        let queue = book.outboxes.entry(Arc::from(sink)).or_default();
        queue.given = queue.given.max(last.position);
        let front = state.cursor + state.front.len() as u64;
        let told = rows.iter().rev().find(|row| row.position <= front);
        queue.front_given = queue.front_given.max(told.map_or(0, |row| row.position));
    }
    Ok((rows, looked_at - 1))
}

/// Takes in what lies behind the last row that is known: the record that would tell of it is damaged.
pub(super) fn take_in(book: &mut Book, sink: &str, state: &mut SinkState) -> Result<(), Trouble> {
    let Some(end) = book.outboxes.get(sink).map(Queue::end).filter(|end| *end > state.next) else {
        return Ok(());
    };
    let from = state.next;
    for_each_piece(book, sink, from, |rows| {
        for row in rows.unwrap_or_default().iter().filter(|row| row.position >= from) {
            state.head_created.get_or_insert(row.created);
            state.bytes += weight(row);
            state.gaps += u64::from(row.gap.is_some());
        }
        ControlFlow::Continue(())
    })?;
    state.next = end;
    Ok(())
}

/// The state of an outbox as its rows tell it, where its own record is lost. What was settled
/// before is forgotten; no row is.
pub(super) fn rebuild(book: &mut Book, sink: &str) -> Result<SinkState, Trouble> {
    let mut state = SinkState::default();
    let Some(first) = book.outboxes.get(sink).and_then(|q| q.pieces.front()).map(|p| p.first)
    else {
        return Ok(state);
    };
    state.next = book.outboxes.get(sink).map_or(1, Queue::end);
    state.cursor = first - 1;
    for_each_piece(book, sink, 0, |rows| {
        for row in rows.unwrap_or_default() {
            state.head_created.get_or_insert(row.created);
            state.bytes += weight(row);
            state.gaps += u64::from(row.gap.is_some());
        }
        ControlFlow::Continue(())
    })?;
    if let Some(letters) = book.letters.get(sink) {
        state.letters = letters.len() as u64;
        state.letter_bytes = letters.values().map(|letter| letter.bytes).sum();
    }
    Ok(state)
}
