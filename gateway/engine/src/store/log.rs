//! One table's log: accepted rows at contiguous positions, until every reader has passed them.
//!
//! Small batches of one commit lie in one piece, large ones in their own. A piece is removed once all its rows are below the floor,
//! which is the lowest `replay_from` of the table's readers, and older than the table's history. Rows
//! that are below it when they come are never written. Changes the book and the state; knows no file.

use std::borrow::{Borrow, Cow};
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

use super::book::{Book, Queue, Side};
use super::border::LogRows;
use super::damage::Trouble;
use super::format::Kind;
use super::record::TableState;
use super::rows::{decode_rows, encode_rows, encode_schema, row_count, stamps_of};
use super::stamps::{Stamps, doubted};
use super::state::State;

/// The schemas of one table that its stored rows may have, by number: the position of the first row
/// that had it, so that no number is given twice even where a schema was lost.
pub(super) type Schemas = Vec<(u64, SchemaRef)>;

fn refused(error: &ArrowError) -> Trouble {
    Trouble::Io(format!("rows cannot be encoded: {error}"))
}

/// A count of rows as positions.
fn rows_of(batch: &RecordBatch) -> u64 {
    batch.num_rows() as u64
}

/// Rows of a batch from which on it has a piece of its own: joining small ones saves bytes, joining
/// large ones costs a copy.
const LARGE_ROWS: usize = 256;

/// Appends rows with the moment of their acceptance.
pub(super) fn encode<B: Borrow<RecordBatch>>(
    out: &mut Vec<u8>,
    accepted: i64,
    number: u64,
    stamps: Option<Stamps>,
    rows: &[B],
) -> Result<(), Trouble> {
    out.extend_from_slice(&accepted.to_le_bytes());
    encode_rows(out, number, stamps, rows).map_err(|error| refused(&error))
}

/// The moment of acceptance, and the rows as `rows` encodes them.
pub(super) fn split_body(body: &[u8]) -> Option<(i64, &[u8])> {
    let (accepted, rows) = body.split_at_checked(8)?;
    Some((i64::from_le_bytes(accepted.try_into().ok()?), rows))
}

/// Stores rows from `floor` on; `parts` continue the log.
pub(super) fn append(
    book: &mut Book,
    table: &Arc<str>,
    state: &mut TableState,
    schemas: &mut Schemas,
    floor: u64,
    parts: &[&LogRows],
) -> Result<(), Trouble> {
    let is_large = |part: &&LogRows| part.batch.num_rows() >= LARGE_ROWS;
    let joins = |a: &&LogRows, b: &&LogRows| {
        let alike = a.stamps == b.stamps && a.batch.schema_ref() == b.batch.schema_ref();
        !is_large(a) && !is_large(b) && alike
    };
    for run in parts.chunk_by(joins) {
        let batches: Vec<Cow<'_, RecordBatch>> = run
            .iter()
            .filter_map(|part| {
                let below = floor.saturating_sub(part.position).min(rows_of(&part.batch));
                let skip = usize::try_from(below).ok()?;
                let keep = part.batch.num_rows() - skip;
                (keep > 0).then(|| match skip {
                    0 => Cow::Borrowed(&part.batch),
                    _ => Cow::Owned(part.batch.slice(skip, keep)),
                })
            })
            .collect();
        let end = run.last().map_or(state.end, |part| part.end());
        if let Some(first) = batches.first() {
            let schema = first.schema();
            let rows: u64 = batches.iter().map(|batch| rows_of(batch)).sum();
            let position = end - rows;
            let number = schema_number(book, table, state, schemas, &schema, position)?;
            let accepted = run.iter().map(|part| part.accepted).max().unwrap_or(0);
            let count = u32::try_from(rows).unwrap_or(u32::MAX);
            let stamps = run.first().and_then(|part| part.stamps);
            let write = |out: &mut Vec<u8>| encode(out, accepted, number, stamps, &batches);
            state.bytes += book.push_with(Side::Log, table, (position, count), accepted, write)?;
            if state.start == state.end {
                state.start = position;
            }
        } else if state.start == state.end {
            state.start = end;
        }
        state.end = end;
    }
    Ok(())
}

/// The number of a schema; a new one is stored. Old ones go when no stored row can need them.
fn schema_number(
    book: &mut Book,
    table: &str,
    state: &TableState,
    schemas: &mut Schemas,
    schema: &SchemaRef,
    position: u64,
) -> Result<u64, Trouble> {
    if let Some((number, _)) = schemas.iter().find(|(_, known)| known == schema) {
        return Ok(*number);
    }
    if state.start == state.end {
        schemas.clear();
    }
    let body = encode_schema(schema).map_err(|error| refused(&error))?;
    book.note(Kind::Schema, table, position, &body);
    schemas.push((position, Arc::clone(schema)));
    Ok(position)
}

/// Removes the pieces whose rows are all below `floor`.
pub(super) fn trim(book: &mut Book, table: &str, state: &mut TableState, floor: u64) {
    let floor = floor.min(state.end);
    if floor <= state.start {
        return;
    }
    if let Some(queue) = book.logs.get(table) {
        let gone = queue.index_of(floor);
        let taken = book.take(Side::Log, table, 0..gone);
        let bytes: u64 = taken.iter().map(|piece| u64::from(piece.length)).sum();
        state.bytes = state.bytes.saturating_sub(bytes);
    }
    state.begin_at(floor);
    if floor == state.end {
        state.bytes = 0;
    }
}

/// Counts those of some rows as missing that should be there.
pub(super) fn lose(book: &mut Book, table: &str, state: &TableState, rows: Range<u64>) {
    for rows in state.kept(rows) {
        book.damage.gap(Kind::Log, table, rows.start, rows.end);
    }
}

/// The position of the first row that is young enough to be kept as history.
pub(super) fn history_floor(book: &Book, table: &str, limit: i64) -> u64 {
    let pieces = book.logs.get(table).map(|queue| &queue.pieces);
    let young = pieces.and_then(|pieces| pieces.iter().find(|piece| piece.created >= limit));
    young.map_or(u64::MAX, |piece| piece.first)
}

/// Drops the oldest piece and counts its rows; `false` when there is none.
pub(super) fn drop_oldest(book: &mut Book, table: &str, state: &mut TableState) -> bool {
    let second = book.logs.get(table).and_then(|queue| queue.pieces.get(1));
    let floor = second.map_or(state.end, |piece| piece.first).clamp(state.start, state.end);
    if floor == state.start {
        return false;
    }
    state.dropped += state.count(state.start..floor);
    trim(book, table, state, floor);
    true
}

/// Lets go of the first `count` pieces in frames from `sequence` on, whatever lies before them; returns how many rows
/// that were.
pub(super) fn let_go(
    book: &mut Book,
    table: &str,
    state: &mut TableState,
    sequence: u64,
    count: usize,
) -> u64 {
    let Some(queue) = book.logs.get(table) else { return 0 };
    let from = queue.first_from(sequence);
    let mut pieces = queue.pieces.iter().skip(from).take(count);
    let Some((first, last)) =
        pieces.next().map(|first| (first, pieces.next_back().unwrap_or(first)))
    else {
        return 0;
    };
    let gone = first.first..last.end();
    let rows = state.count(gone.clone());
    if state.count(state.start..gone.start) == 0 {
        state.begin_at(gone.end);
    } else if !state.add_hole(gone) {
        return 0;
    }
    let taken = book.take(Side::Log, table, from..from + count);
    let bytes: u64 = taken.iter().map(|piece| u64::from(piece.length)).sum();
    state.bytes = state.bytes.saturating_sub(bytes);
    state.dropped += rows;
    rows
}

/// What is to be read of a log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) from: u64,
    pub(super) max_rows: usize,
    /// Rows that wait for their time as well, doubted.
    pub(super) waiting: bool,
}

/// Reads stored rows: whole pieces until `max_rows` are reached, or rows wait for their time. An error means
/// that the first of them cannot be read now.
pub(super) fn read(
    book: &mut Book,
    table: &str,
    state: &State,
    wanted: Wanted,
) -> Result<Vec<(u64, RecordBatch)>, Trouble> {
    let Wanted { from, max_rows, waiting } = wanted;
    let (none, boots) = (Schemas::new(), &state.boots);
    let schemas = state.schemas.get(table).unwrap_or(&none);
    let Some(state) = state.tables.get(table) else {
        return Ok(Vec::new());
    };
    let mut expected = from.max(state.start);
    let (mut found, mut rows): (Vec<(u64, RecordBatch)>, usize) = (Vec::new(), 0);
    let start = book.logs.get(table).map_or(0, |queue| queue.index_of(expected));
    for index in start.. {
        if rows >= max_rows && !found.is_empty() {
            return Ok(found);
        }
        let piece = book.logs.get(table).and_then(|queue| queue.pieces.get(index)).copied();
        let Some(piece) = piece else { break };
        let body = match book.body(Side::Log, table, &piece) {
            Ok(body) => body,
            Err(trouble) if found.is_empty() => return Err(trouble),
            Err(_) => return Ok(found),
        };
        let Some((stamps, batch)) = body.and_then(|body| decode(schemas, &body)) else {
            continue;
        };
        let seen = match boots.view(stamps, batch.clone()) {
            Some(seen) => seen,
            None if waiting => doubted(&batch),
            None => return Ok(found),
        };
        let Ok(batch) = seen else { continue };
        if piece.first > expected {
            lose(book, table, state, expected..piece.first);
        }
        let position = piece.first.max(expected);
        let skip = usize::try_from(position - piece.first).unwrap_or(usize::MAX);
        let batch = batch.slice(skip.min(batch.num_rows()), batch.num_rows().saturating_sub(skip));
        rows += batch.num_rows();
        expected = piece.end();
        found.push((position, batch));
    }
    if expected < state.end {
        lose(book, table, state, expected..state.end);
    }
    Ok(found)
}

/// Rows from a piece's body as they were stamped, and by which clock where that says no time of day.
pub(super) fn decode(schemas: &Schemas, body: &[u8]) -> Option<(Option<Stamps>, RecordBatch)> {
    let (_, rows) = split_body(body)?;
    let (number, _) = row_count(rows)?;
    let (_, schema) = schemas.iter().find(|(known, _)| *known == number)?;
    Some((stamps_of(rows), decode_rows(schema, rows)?))
}

/// Takes in what lies behind the last row that is known: the record that would tell of it is damaged.
pub(super) fn take_in(queue: &Queue, state: &mut TableState) {
    let behind = queue.pieces.iter().filter(|piece| piece.first >= state.end);
    state.bytes += behind.map(|piece| u64::from(piece.length)).sum::<u64>();
    state.end = state.end.max(queue.end());
}

/// The state of a log as its pieces tell it, where its own record is lost; `passed` is the highest
/// position that a reader knows of.
pub(super) fn rebuild(book: &Book, table: &str, passed: u64) -> TableState {
    let mut state = TableState { start: passed, end: passed, ..TableState::default() };
    if let Some(queue) = book.logs.get(table)
        && let Some(first) = queue.pieces.front()
    {
        state.end = passed.max(queue.end());
        state.start = first.first;
        state.bytes = queue.pieces.iter().map(|piece| u64::from(piece.length)).sum();
    }
    state
}
