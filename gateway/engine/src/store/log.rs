//! One table's log: accepted rows at contiguous positions, until every reader has passed them.
//!
//! Rows of one commit lie in one value. A value is removed once all its rows are below the floor,
//! which is the lowest `replay_from` of the table's readers. Rows that are below it when they come
//! are never written. Works inside a transaction of its caller; knows no file.

use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use redb::ReadableTable;

use super::border::LogRows;
use super::damage::{Damage, Trouble};
use super::format::{Kind, TableState, key, seal, split_key, unseal};
use super::outbox::Records;
use super::rows::{decode_rows, encode_rows, encode_schema, row_count};

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

/// Stores rows from `floor` on; `parts` continue the log. Returns the encoded bytes.
pub(super) fn append(
    records: &mut Records<'_>,
    table: &str,
    state: &mut TableState,
    schemas: &mut Schemas,
    floor: u64,
    parts: &[&LogRows],
) -> Result<u64, Trouble> {
    let mut encoded = 0;
    for run in parts.chunk_by(|a, b| a.batch.schema() == b.batch.schema()) {
        let batches: Vec<RecordBatch> = run
            .iter()
            .filter_map(|part| {
                let below = floor.saturating_sub(part.position).min(rows_of(&part.batch));
                let skip = usize::try_from(below).ok()?;
                let keep = part.batch.num_rows() - skip;
                (keep > 0).then(|| part.batch.slice(skip, keep))
            })
            .collect();
        let end = run.last().map_or(state.end, |part| part.position + rows_of(&part.batch));
        if let Some(first) = batches.first() {
            let schema = first.schema();
            let rows = concat_batches(&schema, &batches).map_err(|error| refused(&error))?;
            let position = end - rows_of(&rows);
            let number = schema_number(records, table, state, schemas, &schema, position)?;
            let at = key(Kind::Log, table, position);
            let body = encode_rows(number, &rows).map_err(|error| refused(&error))?;
            let value = seal(&at, &body);
            records.insert(at.as_slice(), value.as_slice())?;
            if state.start == state.end {
                state.start = position;
            }
            state.bytes += value.len() as u64;
            encoded += value.len() as u64;
        } else if state.start == state.end {
            state.start = end;
        }
        state.end = end;
    }
    Ok(encoded)
}

/// The number of a schema; a new one is stored. Old ones go when no stored row can need them.
fn schema_number(
    records: &mut Records<'_>,
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
        for (number, _) in schemas.drain(..) {
            records.remove(key(Kind::Schema, table, number).as_slice())?;
        }
    }
    let at = key(Kind::Schema, table, position);
    let body = encode_schema(schema).map_err(|error| refused(&error))?;
    records.insert(at.as_slice(), seal(&at, &body).as_slice())?;
    schemas.push((position, Arc::clone(schema)));
    Ok(position)
}

/// Removes the values whose rows are all below `floor`.
pub(super) fn trim(
    records: &mut Records<'_>,
    table: &str,
    state: &mut TableState,
    floor: u64,
) -> Result<(), Trouble> {
    let floor = floor.min(state.end);
    if floor <= state.start {
        return Ok(());
    }
    let (low, high) = (key(Kind::Log, table, 0), key(Kind::Log, table, floor));
    let mut passed: Vec<(u64, u64)> = Vec::new();
    for entry in records.range::<&[u8]>(low.as_slice()..=high.as_slice())? {
        let (key, value) = entry?;
        let position = split_key(key.value()).map_or(0, |(_, _, position)| position);
        passed.push((position, value.value().len() as u64));
    }
    // The last one that begins at or below the floor holds rows from the floor on, unless the
    // floor is the end of the log.
    let keep_from = match passed.last() {
        Some((position, _)) if floor < state.end => *position,
        _ => floor,
    };
    let gone: u64 =
        passed.iter().filter(|(position, _)| *position < keep_from).map(|(_, bytes)| bytes).sum();
    if passed.iter().any(|(position, _)| *position < keep_from) {
        let high = key(Kind::Log, table, keep_from);
        records.retain_in::<&[u8], _>(low.as_slice()..high.as_slice(), |_, _| false)?;
    }
    state.start = floor;
    state.bytes = if floor == state.end { 0 } else { state.bytes.saturating_sub(gone) };
    Ok(())
}

/// Drops the oldest stored value and counts its rows; `false` when there is none.
pub(super) fn drop_oldest(
    records: &mut Records<'_>,
    table: &str,
    state: &mut TableState,
) -> Result<bool, Trouble> {
    let (low, high) = (key(Kind::Log, table, 0), key(Kind::Log, table, u64::MAX));
    let second = match records.range::<&[u8]>(low.as_slice()..=high.as_slice())?.nth(1) {
        Some(entry) => split_key(entry?.0.value()).map(|(_, _, position)| position),
        None => None,
    };
    let floor = second.unwrap_or(state.end).clamp(state.start, state.end);
    if floor == state.start {
        return Ok(false);
    }
    state.dropped += floor - state.start;
    trim(records, table, state, floor)?;
    Ok(true)
}

/// Reads stored rows from `from` on: whole values until `max_rows` are reached.
pub(super) fn read(
    records: &impl ReadableTable<&'static [u8], &'static [u8]>,
    table: &str,
    state: &TableState,
    schemas: &Schemas,
    from: u64,
    max_rows: usize,
    damage: &mut Damage,
) -> Result<Vec<(u64, RecordBatch)>, Trouble> {
    let mut expected = from.max(state.start);
    let (low, at, high) = (
        key(Kind::Log, table, 0),
        key(Kind::Log, table, expected),
        key(Kind::Log, table, u64::MAX),
    );
    let start = match records.range::<&[u8]>(low.as_slice()..=at.as_slice())?.next_back() {
        Some(entry) => entry?.0.value().to_vec(),
        None => at,
    };
    let (mut found, mut rows): (Vec<(u64, RecordBatch)>, usize) = (Vec::new(), 0);
    for entry in records.range::<&[u8]>(start.as_slice()..=high.as_slice())? {
        if rows >= max_rows && !found.is_empty() {
            return Ok(found);
        }
        let (key, value) = entry?;
        let Some((first, batch)) = decode(schemas, key.value(), value.value()) else {
            damage.bad(key.value(), value.value());
            continue;
        };
        let end = first + rows_of(&batch);
        if end <= expected {
            continue;
        }
        if first > expected {
            damage.gap(Kind::Log, table, expected, first);
        }
        let position = first.max(expected);
        let skip = usize::try_from(position - first).unwrap_or(usize::MAX);
        let batch = batch.slice(skip, batch.num_rows() - skip);
        rows += batch.num_rows();
        expected = end;
        found.push((position, batch));
    }
    if expected < state.end {
        damage.gap(Kind::Log, table, expected, state.end);
    }
    Ok(found)
}

fn decode(schemas: &Schemas, key: &[u8], value: &[u8]) -> Option<(u64, RecordBatch)> {
    let (_, _, first) = split_key(key)?;
    let body = unseal(key, value)?;
    let (number, _) = row_count(body)?;
    let (_, schema) = schemas.iter().find(|(known, _)| *known == number)?;
    Some((first, decode_rows(schema, body)?))
}

/// The state of a log as its rows tell it, where its own record is lost; `passed` is the highest
/// position that a reader knows of.
pub(super) fn rebuild(
    records: &impl ReadableTable<&'static [u8], &'static [u8]>,
    table: &str,
    passed: u64,
) -> Result<TableState, Trouble> {
    let mut state = TableState { start: passed, end: passed, bytes: 0, dropped: 0 };
    let mut first = None;
    let (low, high) = (key(Kind::Log, table, 0), key(Kind::Log, table, u64::MAX));
    for entry in records.range::<&[u8]>(low.as_slice()..=high.as_slice())? {
        let (key, value) = entry?;
        state.bytes += value.value().len() as u64;
        let count = unseal(key.value(), value.value()).and_then(row_count);
        if let Some(((_, _, position), (_, rows))) = split_key(key.value()).zip(count) {
            first.get_or_insert(position);
            state.end = state.end.max(position + rows as u64);
        }
    }
    state.start = first.unwrap_or(state.end).min(state.end);
    Ok(state)
}
