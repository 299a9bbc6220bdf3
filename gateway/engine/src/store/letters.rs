//! Dead letters: records that their sink refused for good, with what the far side said.
//!
//! A letter lies in a frame until the checkpoint has it, and its body in memory as long. At most
//! [`LETTERS_MAX`] a sink are kept. Changes the book and the sink's state; knows no cursor.

use std::sync::Arc;

use super::book::{Book, Letter};
use super::border::{OutboxRow, Rejected};
use super::damage::{Damage, Trouble};
use super::files::ReadRecords;
use super::format::{Kind, SEAL_BYTES, decode_letter, encode_letter, key, unseal};
use super::outbox::Chunk;
use super::record::SinkState;

/// Dead letters that are kept per sink; the oldest gives way.
pub(super) const LETTERS_MAX: u64 = 1_000;

/// Keeps a row as a dead letter with the reason; the oldest gives way to it.
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
    let excess = (letters.len() as u64).saturating_sub(LETTERS_MAX);
    let oldest: Vec<u64> =
        letters.keys().take(usize::try_from(excess).unwrap_or(0)).copied().collect();
    forget(book, sink, state, &oldest);
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
            if letter.body.is_none() {
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
