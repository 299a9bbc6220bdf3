//! One sink's outbox: rows at contiguous positions, stored in chunks, settled from the front.
//!
//! The cursor is a contiguous low-water mark: each row below it was delivered, dropped, rejected
//! or lost, and is counted as one of these. Positions that cannot be read back are lost rows; a
//! chunk that fails its check never stops the rows behind it. Works inside a transaction of its
//! caller; knows no file and no time.

use std::ops::ControlFlow;

use redb::{ReadableTable, Table};

use super::border::{OutboxRow, OutboxRows, Rejected, SinkLayout, WhenFull};
use super::damage::{Damage, Trouble};
use super::format::{
    CHUNK_BYTES, Kind, SinkState, decode_letter, decode_outbox, encode_letter, encode_outbox, key,
    row_bytes, seal, split_key, unseal,
};

/// The one tree of the store, open for writing.
pub(super) type Records<'txn> = Table<'txn, &'static [u8], &'static [u8]>;

/// Dead letters that are kept per sink; the oldest gives way.
pub(super) const LETTERS_MAX: u64 = 1_000;

/// What became of rows that the cursor passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Delivered,
    Dropped,
    Rejected,
}

/// Visits the chunks from the one that holds position `from` on: `None` is one that failed its
/// check, wherever its key says it belongs.
fn for_each_chunk(
    records: &impl ReadableTable<&'static [u8], &'static [u8]>,
    sink: &str,
    from: u64,
    damage: &mut Damage,
    mut visit: impl FnMut(Option<&[OutboxRow]>) -> ControlFlow<()>,
) -> Result<(), Trouble> {
    let (low, at, high) = (
        key(Kind::Outbox, sink, 0),
        key(Kind::Outbox, sink, from),
        key(Kind::Outbox, sink, u64::MAX),
    );
    let start = match records.range::<&[u8]>(low.as_slice()..=at.as_slice())?.next_back() {
        Some(entry) => entry?.0.value().to_vec(),
        None => at,
    };
    for entry in records.range::<&[u8]>(start.as_slice()..=high.as_slice())? {
        let (key, value) = entry?;
        let rows = split_key(key.value()).and_then(|(_, _, first)| {
            unseal(key.value(), value.value()).and_then(|body| decode_outbox(first, body))
        });
        if rows.is_none() {
            damage.bad(key.value(), value.value());
        }
        if visit(rows.as_deref()).is_break() {
            break;
        }
    }
    Ok(())
}

/// Moves the cursor to `upto` and removes the chunks that it has passed. A position at or below
/// the cursor changes nothing; one beyond the end is the end.
pub(super) fn settle(
    records: &mut Records<'_>,
    sink: &str,
    state: &mut SinkState,
    upto: u64,
    fate: Fate,
    damage: &mut Damage,
) -> Result<(), Trouble> {
    let upto = upto.min(state.next - 1);
    if upto <= state.cursor {
        return Ok(());
    }
    let (mut present, mut bytes, mut passed) = (0_u64, 0_u64, false);
    let mut keep_from = upto + 1;
    let mut head = None;
    for_each_chunk(records, sink, state.cursor + 1, damage, |rows| {
        let Some(rows) = rows else {
            passed = true;
            return ControlFlow::Continue(());
        };
        for row in rows.iter().filter(|row| row.position > state.cursor && row.position <= upto) {
            present += 1;
            bytes += row_bytes(&row.body);
        }
        let Some(next) = rows.iter().find(|row| row.position > upto) else {
            passed = true;
            return ControlFlow::Continue(());
        };
        head = Some(next.created);
        keep_from = keep_from.min(rows[0].position);
        ControlFlow::Break(())
    })?;
    let lost = (upto - state.cursor).saturating_sub(present);
    state.lost += lost;
    match fate {
        Fate::Delivered => state.delivered += present,
        Fate::Dropped => state.dropped += present,
        Fate::Rejected => state.rejected += present,
    }
    state.cursor = upto;
    state.bytes = if state.records() == 0 { 0 } else { state.bytes.saturating_sub(bytes) };
    state.head_created = head;
    if passed {
        let (low, high) = (key(Kind::Outbox, sink, 0), key(Kind::Outbox, sink, keep_from));
        records.retain_in::<&[u8], _>(low.as_slice()..high.as_slice(), |_, _| false)?;
    }
    Ok(())
}

/// Moves the row at `position` to the dead letters; rows before it were delivered.
pub(super) fn reject(
    records: &mut Records<'_>,
    sink: &str,
    state: &mut SinkState,
    position: u64,
    reason: &str,
    damage: &mut Damage,
) -> Result<(), Trouble> {
    if position <= state.cursor || position >= state.next {
        return Ok(());
    }
    settle(records, sink, state, position - 1, Fate::Delivered, damage)?;
    let (rows, _) = read(records, sink, state, position - 1, 1, 0, damage)?;
    if let Some(row) = rows.first().filter(|row| row.position == position) {
        let at = key(Kind::Rejected, sink, position);
        let value = seal(&at, &encode_letter(row, reason));
        state.letters += 1;
        state.letter_bytes += value.len() as u64;
        records.insert(at.as_slice(), value.as_slice())?;
        while state.letters > LETTERS_MAX {
            let (low, high) = (key(Kind::Rejected, sink, 0), at.clone());
            let oldest = records
                .range::<&[u8]>(low.as_slice()..high.as_slice())?
                .next()
                .transpose()?
                .map(|(key, value)| (key.value().to_vec(), value.value().len() as u64));
            state.letters -= 1;
            let Some((oldest, bytes)) = oldest else { break };
            state.letter_bytes = state.letter_bytes.saturating_sub(bytes);
            records.remove(oldest.as_slice())?;
        }
    }
    settle(records, sink, state, position, Fate::Rejected, damage)
}

/// The newest dead letters, oldest first.
pub(super) fn letters(
    records: &impl ReadableTable<&'static [u8], &'static [u8]>,
    sink: &str,
    limit: usize,
    damage: &mut Damage,
) -> Result<Vec<Rejected>, Trouble> {
    let (low, high) = (key(Kind::Rejected, sink, 0), key(Kind::Rejected, sink, u64::MAX));
    let mut letters = Vec::new();
    for entry in records.range::<&[u8]>(low.as_slice()..=high.as_slice())?.rev() {
        if letters.len() >= limit {
            break;
        }
        let (key, value) = entry?;
        let letter = split_key(key.value()).and_then(|(_, _, position)| {
            unseal(key.value(), value.value()).and_then(|body| decode_letter(position, body))
        });
        match letter {
            Some((row, reason)) => letters.push(Rejected { row, reason }),
            None => damage.bad(key.value(), value.value()),
        }
    }
    letters.reverse();
    Ok(letters)
}

/// Room that `DropNewest` rows are checked against while they are added.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Rows.
    pub(super) records: u64,
    /// Bytes.
    pub(super) bytes: u64,
}

/// Gives rows their positions and stores them in chunks; with `room`, the rows that do not fit any
/// more are dropped and counted. Returns the encoded bytes.
pub(super) fn append(
    records: &mut Records<'_>,
    sink: &str,
    state: &mut SinkState,
    epoch: u64,
    parts: &[&OutboxRows],
    mut room: Option<Room>,
) -> Result<u64, Trouble> {
    let (mut chunk, mut chunk_bytes, mut encoded) = (Vec::new(), 0, 0);
    for part in parts {
        for (seq, body) in (part.first_seq..).zip(&part.bodies) {
            let bytes = row_bytes(body);
            if let Some(room) = &mut room {
                if room.records == 0 || room.bytes < bytes {
                    // Nothing later may overtake: from here on the sink is full for this commit.
                    *room = Room { records: 0, bytes: 0 };
                    state.dropped += 1;
                    continue;
                }
                *room = Room { records: room.records - 1, bytes: room.bytes - bytes };
            }
            if state.records() == 0 {
                state.head_created = Some(part.created);
            }
            chunk.push(OutboxRow {
                position: state.next,
                epoch,
                stream: part.stream.clone(),
                seq,
                body: body.clone(),
                window: part.window,
                created: part.created,
            });
            state.next += 1;
            state.bytes += bytes;
            chunk_bytes += body.len() + 4;
            if chunk_bytes >= CHUNK_BYTES {
                encoded += put_chunk(records, sink, &chunk)?;
                chunk.clear();
                chunk_bytes = 0;
            }
        }
    }
    Ok(encoded + put_chunk(records, sink, &chunk)?)
}

fn put_chunk(records: &mut Records<'_>, sink: &str, rows: &[OutboxRow]) -> Result<u64, Trouble> {
    let Some(first) = rows.first() else {
        return Ok(0);
    };
    let at = key(Kind::Outbox, sink, first.position);
    let value = seal(&at, &encode_outbox(rows));
    records.insert(at.as_slice(), value.as_slice())?;
    Ok(value.len() as u64)
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

/// Drops the oldest rows until `excess` is gone.
pub(super) fn drop_oldest(
    records: &mut Records<'_>,
    sink: &str,
    state: &mut SinkState,
    excess: Room,
    damage: &mut Damage,
) -> Result<(), Trouble> {
    if excess.records == 0 && excess.bytes == 0 {
        return Ok(());
    }
    let (cursor, mut upto, mut bytes) = (state.cursor, state.next - 1, 0_u64);
    for_each_chunk(records, sink, cursor + 1, damage, |rows| {
        for row in rows.unwrap_or_default().iter().filter(|row| row.position > cursor) {
            bytes += row_bytes(&row.body);
            if bytes >= excess.bytes && row.position - cursor >= excess.records {
                upto = row.position;
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    settle(records, sink, state, upto, Fate::Dropped, damage)
}

/// Drops rows from the front that were made before `limit`. A younger row in front of an older one
/// keeps it: order is never traded for age.
pub(super) fn expire(
    records: &mut Records<'_>,
    sink: &str,
    state: &mut SinkState,
    limit: i64,
    damage: &mut Damage,
) -> Result<(), Trouble> {
    if state.records() == 0 || state.head_created.is_some_and(|created| created >= limit) {
        return Ok(());
    }
    let (cursor, mut upto) = (state.cursor, state.next - 1);
    for_each_chunk(records, sink, cursor + 1, damage, |rows| {
        let young = |row: &&OutboxRow| row.position > cursor && row.created >= limit;
        match rows.unwrap_or_default().iter().find(young) {
            Some(row) => {
                upto = row.position - 1;
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        }
    })?;
    settle(records, sink, state, upto, Fate::Dropped, damage)
}

/// Reads rows beyond `after`: at most `max_rows`, and no more than `max_bytes` of bodies after the
/// first. Returns them with the position up to which everything has been looked at.
pub(super) fn read(
    records: &impl ReadableTable<&'static [u8], &'static [u8]>,
    sink: &str,
    state: &SinkState,
    after: u64,
    max_rows: usize,
    max_bytes: usize,
    damage: &mut Damage,
) -> Result<(Vec<OutboxRow>, u64), Trouble> {
    let mut rows: Vec<OutboxRow> = Vec::new();
    let mut bytes = 0_usize;
    let mut expected = after.max(state.cursor) + 1;
    let mut gaps = Vec::new();
    let mut more = false;
    for_each_chunk(records, sink, expected, damage, |chunk| {
        for row in chunk.unwrap_or_default() {
            if row.position < expected {
                continue;
            }
            bytes = bytes.saturating_add(row.body.len());
            more = !rows.is_empty() && (rows.len() >= max_rows || bytes > max_bytes);
            if more {
                return ControlFlow::Break(());
            }
            if row.position > expected {
                gaps.push((expected, row.position));
            }
            expected = row.position + 1;
            rows.push(row.clone());
        }
        ControlFlow::Continue(())
    })?;
    if !more && expected < state.next {
        gaps.push((expected, state.next));
        expected = state.next;
    }
    for (from, to) in gaps {
        damage.gap(Kind::Outbox, sink, from, to);
    }
    Ok((rows, expected - 1))
}

/// The state of an outbox as its rows tell it, where its own record is lost. What was settled
/// before is forgotten; no row is.
pub(super) fn rebuild(
    records: &impl ReadableTable<&'static [u8], &'static [u8]>,
    sink: &str,
    damage: &mut Damage,
) -> Result<SinkState, Trouble> {
    let mut state = SinkState::default();
    let mut first = None;
    for_each_chunk(records, sink, 0, damage, |rows| {
        for row in rows.unwrap_or_default() {
            first.get_or_insert((row.position, row.created));
            state.bytes += row_bytes(&row.body);
            state.next = row.position + 1;
        }
        ControlFlow::Continue(())
    })?;
    if let Some((position, created)) = first {
        state.cursor = position - 1;
        state.head_created = Some(created);
    }
    let (low, high) = (key(Kind::Rejected, sink, 0), key(Kind::Rejected, sink, u64::MAX));
    for entry in records.range::<&[u8]>(low.as_slice()..=high.as_slice())? {
        state.letters += 1;
        state.letter_bytes += entry?.1.value().len() as u64;
    }
    Ok(state)
}
