//! Dead letters: records that their sink refused for good, with what the far side said.
//!
//! A letter lies in a frame until the checkpoint has it, and its body in memory as long. At most
//! [`LETTERS_MAX`] a sink are kept, and an eighth of the bytes that may wait; where the store is full they
//! give way before any waiting row. Those that went are counted; as records they were counted when
//! they were refused. Changes the book and the sink's state; knows no cursor.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::book::{Book, Letter};
use super::border::{Layout, OutboxRow, Rejected};
use super::damage::{Damage, Trouble};
use super::files::ReadRecords;
use super::format::{Kind, SEAL_BYTES, decode_letter, encode_letter, key, unseal};
use super::outbox::{Chunk, Room};
use super::record::SinkState;
use super::state::State;

/// Dead letters that are kept per sink; the oldest gives way.
const LETTERS_MAX: u64 = 1_000;
/// Of the bytes that may wait for a sink its letters take at most one part in so many, and those of all
/// sinks of the bytes of the store.
const SHARES: u64 = 8;
/// Letters of a sink that stay, however large they are. Where the store is full none does.
const STAYS: usize = 1;

/// How many letters of each sink gave way.
pub(super) type Gone = BTreeMap<Arc<str>, u64>;

/// The durable count of letters of a sink that gave way.
pub(super) fn dropped(sink: &str) -> String {
    format!("sink/{sink}/letters_dropped")
}

/// Keeps a row as a dead letter with the reason. The bounds are held afterwards, by [`bound`].
pub(super) fn add(
    book: &mut Book,
    sink: &Arc<str>,
    state: &mut SinkState,
    row: &OutboxRow,
    why: &str,
) {
    let body = encode_letter(row, why);
    book.note(Kind::Rejected, sink, row.position, &body);
    let bytes = (SEAL_BYTES + body.len()) as u64;
    let letters = book.letters.entry(sink.clone()).or_default();
    letters.insert(row.position, Letter { bytes, body: Some(body) });
    state.letters += 1;
    state.letter_bytes += bytes;
}

/// Holds the bounds of letters: those of each sink, by number and bytes, then that of all together. The
/// newest letter of a sink stays.
pub(super) fn bound(
    book: &mut Book,
    state: &mut State,
    layout: &Layout,
    max_bytes: u64,
    gone: &mut Gone,
) {
    for (name, sink) in &mut state.sinks {
        let own = layout.sinks.iter().find(|own| own.name == *name);
        let bytes_max = own.map_or(max_bytes, |own| own.max_bytes.min(max_bytes)) / SHARES;
        if sink.letters > LETTERS_MAX || sink.letter_bytes > bytes_max {
            let oldest = book.letters.get(name).map_or_else(Vec::new, |letters| {
                excess(letters, Room { records: LETTERS_MAX, bytes: bytes_max })
            });
            push_out(book, name, sink, &oldest, gone);
        }
    }
    let all: u64 = state.sinks.values().map(|sink| sink.letter_bytes).sum();
    share_out(book, state, layout, (all.saturating_sub(max_bytes / SHARES), STAYS), gone);
}

/// Lets `over` bytes of letters go, or all that there are, for a store that is full; `false` where there
/// are none.
pub(super) fn give_way(
    book: &mut Book,
    state: &mut State,
    layout: &Layout,
    over: u64,
    gone: &mut Gone,
) -> bool {
    share_out(book, state, layout, (over, 0), gone)
}

/// The oldest letters, as many as are beyond the bounds.
fn excess(letters: &BTreeMap<u64, Letter>, most: Room) -> Vec<u64> {
    let mut left = letters.len() as u64;
    let mut bytes: u64 = letters.values().map(|letter| letter.bytes).sum();
    let may_go = letters.iter().take(letters.len().saturating_sub(STAYS));
    let too_many = may_go.take_while(|(_, letter)| {
        let is_over = left > most.records || bytes > most.bytes;
        left -= 1;
        bytes -= letter.bytes;
        is_over
    });
    too_many.map(|(position, _)| *position).collect()
}

/// Lets `over` bytes go, one letter after the other: each time the oldest of the sink that has most bytes
/// then, so that nobody loses a letter to a sink with more. Sinks that no layout names go before all
/// others. `stays` letters of each stay.
fn share_out(
    book: &mut Book,
    state: &mut State,
    layout: &Layout,
    (mut over, stays): (u64, usize),
    gone: &mut Gone,
) -> bool {
    struct Holder<'a, I> {
        sink: &'a Arc<str>,
        is_named: bool,
        bytes: u64,
        may_go: I,
        goes: Vec<u64>,
    }
    if over == 0 {
        return false;
    }
    let holders = book.letters.iter().map(|(sink, letters)| Holder {
        sink,
        is_named: layout.sinks.iter().any(|own| own.name == *sink),
        bytes: letters.values().map(|letter| letter.bytes).sum(),
        may_go: letters.iter().take(letters.len().saturating_sub(stays)),
        goes: Vec::new(),
    });
    let mut holders: Vec<_> = holders.collect();
    while over > 0 {
        let able = holders.iter_mut().filter(|holder| holder.may_go.len() > 0);
        let largest = able.min_by_key(|holder| (holder.is_named, Reverse(holder.bytes)));
        let Some(holder) = largest else { break };
        let Some((position, letter)) = holder.may_go.next() else { break };
        holder.goes.push(*position);
        holder.bytes -= letter.bytes;
        over = over.saturating_sub(letter.bytes);
    }
    let gave = holders.into_iter().filter(|holder| !holder.goes.is_empty());
    let gave: Vec<_> = gave.map(|holder| (holder.sink.clone(), holder.goes)).collect();
    for (name, positions) in &gave {
        let sink = state.sinks.entry(name.clone()).or_default();
        push_out(book, name, sink, positions, gone);
    }
    !gave.is_empty()
}

/// Forgets letters that give way, and notes how many.
fn push_out(
    book: &mut Book,
    sink: &Arc<str>,
    state: &mut SinkState,
    positions: &[u64],
    gone: &mut Gone,
) {
    let count = forget(book, sink, state, positions);
    if count > 0 {
        *gone.entry(sink.clone()).or_default() += count;
    }
}

/// Forgets dead letters; returns how many there were.
pub(super) fn forget(
    book: &mut Book,
    sink: &Arc<str>,
    state: &mut SinkState,
    positions: &[u64],
) -> u64 {
    let mut gone = Vec::new();
    for position in positions {
        let letters = book.letters.get_mut(sink);
        if let Some(letter) = letters.and_then(|letters| letters.remove(position)) {
            state.letters = state.letters.saturating_sub(1);
            state.letter_bytes = state.letter_bytes.saturating_sub(letter.bytes);
            if letter.body.is_none() || book.undecided > 0 {
                book.letters_gone.push((sink.clone(), *position));
            }
            gone.extend_from_slice(&position.to_le_bytes());
        }
    }
    if !gone.is_empty() {
        book.note(Kind::Forgotten, sink, 0, &gone);
    }
    (gone.len() / 8) as u64
}

/// Dead letters of a sink at these positions, in order; those that fail their check are counted.
pub(super) fn read(
    records: &ReadRecords,
    book: &mut Book,
    sink: &str,
    positions: &[u64],
) -> Result<Vec<Rejected>, Trouble> {
    let mut found = Vec::new();
    for position in positions {
        let Some(letter) = book.letters.get(sink).and_then(|letters| letters.get(position)) else {
            continue;
        };
        let decoded = match &letter.body {
            Some(body) => decode_letter(*position, body),
            None => stored(records, &mut book.damage, sink, *position)?,
        };
        found.extend(decoded.map(|(row, reason)| Rejected { row, reason }));
    }
    Ok(found)
}

fn stored(
    records: &ReadRecords,
    damage: &mut Damage,
    sink: &str,
    position: u64,
) -> Result<Option<(OutboxRow, String)>, Trouble> {
    let at = key(Kind::Rejected, sink, position);
    let Some(value) = records.get_owned(at.as_slice())? else {
        damage.bad(&at, &[]);
        return Ok(None);
    };
    let letter = unseal(&at, value.value()).and_then(|body| decode_letter(position, body));
    if letter.is_none() {
        damage.bad(&at, value.value());
    }
    Ok(letter)
}

/// Puts dead letters back at the end of the outbox, under the ids that they had.
pub(super) fn redrive(
    book: &mut Book,
    sink: &Arc<str>,
    state: &mut SinkState,
    letters: Vec<Rejected>,
) -> u64 {
    let positions: Vec<u64> = letters.iter().map(|letter| letter.row.position).collect();
    let rows = letters.into_iter().map(|letter| letter.row);
    let mut chunk = Chunk::default();
    for row in rows {
        chunk.add(book, sink, state, row);
    }
    chunk.put(book, sink);
    state.redriven += positions.len() as u64;
    forget(book, sink, state, &positions)
}
