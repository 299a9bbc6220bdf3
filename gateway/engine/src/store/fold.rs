//! Moves rows that stay from the ring to shelves, so that their frames can go.
//!
//! The rows of the oldest frames are written first, then each shelf that got some is synced once, and
//! only what is durable then counts as moved: after an error the rest is where it was. Small pieces
//! are joined on the way, so that years of single rows are no list of single rows. The frames are kept
//! until the checkpoint names the shelves. Knows no tree.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;

use super::book::{Book, Piece, Place, Side};
use super::border::OutboxRow;
use super::damage::Trouble;
use super::format::{CHUNK_BYTES, Kind, decode_outbox, encode_outbox, key, put_entry};
use super::log::{self, Schemas};
use super::outbox;
use super::record::SinkState;
use super::stamps::Stamps;
use super::state::State;

/// Bytes that are folded in one go: what folding holds in memory.
const FOLD_BYTES: usize = 1 << 20;
/// Bytes of log rows in one piece on a shelf.
const LOG_PIECE_BYTES: usize = 128 << 10;

/// New pieces and their bytes; a piece's place is its offset in them, until the shelf is known.
#[derive(Default)]
struct Fold {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
}

impl Fold {
    fn add(&mut self, side: Side, name: &str, first: u64, rows: usize, created: i64, body: &[u8]) {
        let at = self.bytes.len() as u64;
        let length = put_entry(&mut self.bytes, &key(side.kind(), name, first), body);
        self.pieces.push(Piece {
            first,
            rows: u32::try_from(rows).unwrap_or(u32::MAX),
            length: u32::try_from(length).unwrap_or(u32::MAX),
            created,
            place: Place::Shelf { file: 0, at },
        });
    }
}

/// A run of pieces that was written to a shelf, or of which nothing is needed.
struct Move {
    side: Side,
    name: Arc<str>,
    /// How many pieces it takes the place of.
    old: usize,
    pieces: Vec<Piece>,
    /// The shelf.
    file: Option<u32>,
}

/// Moves the needed rows of all frames before `keep_from` to shelves. After an error some rows have
/// moved and the others are where they were.
pub(super) fn fold(book: &mut Book, state: &State, keep_from: u64) -> Result<(), Trouble> {
    let mut moves = Vec::new();
    let written = write(book, state, keep_from, &mut moves);
    let (failed, synced) = book.files.shelves.sync();
    let mut stuck: BTreeSet<(bool, Arc<str>)> = BTreeSet::new();
    for moved in moves {
        let queue = (moved.side == Side::Log, moved.name.clone());
        // The pieces on shelves are the first of their queue: behind one that stays all stay.
        if moved.file.is_some_and(|file| failed.contains(&file)) || stuck.contains(&queue) {
            stuck.insert(queue);
        } else {
            apply(book, moved);
        }
    }
    written.and(synced.map_err(|error| Trouble::from(redb::Error::Io(error))))
}

fn write(
    book: &mut Book,
    state: &State,
    keep_from: u64,
    moves: &mut Vec<Move>,
) -> Result<(), Trouble> {
    for side in [Side::Outbox, Side::Log] {
        let names: Vec<Arc<str>> = book.queues(side).keys().cloned().collect();
        for name in names {
            let mut skip = 0;
            while let Some(moved) = write_some(book, state, side, &name, skip, keep_from)? {
                skip += moved.old;
                moves.push(moved);
            }
        }
    }
    Ok(())
}

fn sequence_of(piece: &Piece) -> Option<u64> {
    match piece.place {
        Place::Frame { sequence, .. } => Some(sequence),
        Place::Shelf { .. } => None,
    }
}

/// Writes up to [`FOLD_BYTES`] of one queue, behind `skip` pieces that are written already; `None` when
/// nothing is left to move.
fn write_some(
    book: &mut Book,
    state: &State,
    side: Side,
    name: &Arc<str>,
    skip: usize,
    keep_from: u64,
) -> Result<Option<Move>, Trouble> {
    let Some(queue) = book.queues(side).get(name) else {
        return Ok(None);
    };
    let start = queue.pieces.partition_point(|piece| sequence_of(piece).is_none()) + skip;
    let mut bytes = 0;
    let takes = |piece: &&Piece| {
        let moves = bytes < FOLD_BYTES && sequence_of(piece).is_some_and(|at| at < keep_from);
        bytes += usize::try_from(piece.length).unwrap_or(0);
        moves
    };
    let old: Vec<Piece> = queue.pieces.iter().skip(start).take_while(takes).copied().collect();
    if old.is_empty() {
        return Ok(None);
    }
    let mut fold = Fold::default();
    let owner: Arc<str> = match side {
        Side::Outbox => {
            let default = SinkState::default();
            let sink = state.sinks.get(name).unwrap_or(&default);
            fold_outbox(book, name, sink, &old, &mut fold)?;
            Arc::from(format!("sink {name}"))
        }
        Side::Log => {
            let none = Schemas::new();
            let schemas = state.schemas.get(name).unwrap_or(&none);
            let table_start = state.tables.get(name).map_or(0, |table| table.start);
            fold_log(book, name, schemas, table_start, &old, &mut fold)?;
            Arc::from(format!("table {name}"))
        }
    };
    let mut moved =
        Move { side, name: name.clone(), old: old.len(), pieces: fold.pieces, file: None };
    if !moved.pieces.is_empty() {
        let run = book.files.shelves.put(&owner, fold.bytes);
        let run = run.map_err(|error| Trouble::from(redb::Error::Io(error)))?;
        moved.file = Some(run.file);
        for piece in &mut moved.pieces {
            if let Place::Shelf { file, at } = &mut piece.place {
                (*file, *at) = (run.file, run.at + *at);
            }
        }
    }
    Ok(Some(moved))
}

/// Puts the pieces on the shelf in the place of those in frames.
fn apply(book: &mut Book, moved: Move) {
    let Move { side, name, old, pieces, .. } = moved;
    for piece in &pieces {
        if let Place::Shelf { file, at } = piece.place {
            book.files.shelves.hold(file, at + u64::from(piece.length));
        }
    }
    let Some(queue) = book.queues(side).get(&name) else {
        return;
    };
    let start = queue.pieces.partition_point(|piece| sequence_of(piece).is_none());
    for piece in book.take(side, &name, start..start + old) {
        book.note_moved(&piece);
    }
    if let Some(queue) = book.queues_mut(side).get_mut(&name) {
        let rest = queue.pieces.split_off(start);
        queue.pieces.extend(pieces);
        queue.pieces.extend(rest);
    }
}

fn fold_outbox(
    book: &mut Book,
    name: &str,
    sink: &SinkState,
    old: &[Piece],
    fold: &mut Fold,
) -> Result<(), Trouble> {
    let settled = sink.cursor + sink.front.len() as u64;
    let mut rows: Vec<OutboxRow> = Vec::new();
    let mut bytes = 0;
    for piece in old {
        let body = book.body(Side::Outbox, name, piece)?;
        let found = body.and_then(|body| decode_outbox(piece.first, &body));
        if found.is_none() {
            outbox::lose(book, name, sink, piece.first, piece.end());
        }
        for row in found.unwrap_or_default() {
            if row.position <= settled || sink.is_ahead(row.position) {
                continue;
            }
            let follows = rows.last().is_none_or(|last| last.position + 1 == row.position);
            if !follows || bytes >= CHUNK_BYTES {
                put_rows(name, &mut rows, fold);
                bytes = 0;
            }
            bytes += row.body.len() + 4;
            rows.push(row);
        }
    }
    put_rows(name, &mut rows, fold);
    Ok(())
}

fn put_rows(name: &str, rows: &mut Vec<OutboxRow>, fold: &mut Fold) {
    if let Some(first) = rows.first() {
        let created = rows.iter().map(|row| row.created).max().unwrap_or(first.created);
        let body = encode_outbox(rows);
        fold.add(Side::Outbox, name, first.position, rows.len(), created, &body);
        rows.clear();
    }
}

fn fold_log(
    book: &mut Book,
    name: &str,
    schemas: &Schemas,
    start: u64,
    old: &[Piece],
    fold: &mut Fold,
) -> Result<(), Trouble> {
    let mut batches: Vec<Rows> = Vec::new();
    let mut bytes = 0;
    for piece in old.iter().filter(|piece| piece.end() > start) {
        let body = book.body(Side::Log, name, piece)?;
        let Some((stamps, batch)) = body.and_then(|body| log::decode(schemas, &body)) else {
            book.damage.gap(Kind::Log, name, piece.first.max(start), piece.end());
            continue;
        };
        let follows = batches.last().is_none_or(|(last, by, rows)| {
            last.end() == piece.first && *by == stamps && rows.schema() == batch.schema()
        });
        if !follows || bytes >= LOG_PIECE_BYTES {
            put_batches(name, schemas, &mut batches, fold)?;
            bytes = 0;
        }
        bytes += usize::try_from(piece.length).unwrap_or(0);
        batches.push((*piece, stamps, batch));
    }
    put_batches(name, schemas, &mut batches, fold)
}

/// Rows of a piece as they were stamped, and by which clock.
type Rows = (Piece, Option<Stamps>, RecordBatch);

fn put_batches(
    name: &str,
    schemas: &Schemas,
    batches: &mut Vec<Rows>,
    fold: &mut Fold,
) -> Result<(), Trouble> {
    let Some((piece, stamps, first)) = batches.first() else {
        return Ok(());
    };
    let schema = first.schema();
    let number = schemas.iter().find(|(_, known)| *known == schema).map_or(0, |(n, _)| *n);
    let accepted = batches.iter().map(|(piece, ..)| piece.created).max().unwrap_or(0);
    let rows: Vec<&RecordBatch> = batches.iter().map(|(.., batch)| batch).collect();
    let mut body = Vec::new();
    log::encode(&mut body, accepted, number, *stamps, &rows)?;
    let count = rows.iter().map(|batch| batch.num_rows()).sum();
    fold.add(Side::Log, name, piece.first, count, accepted, &body);
    batches.clear();
    Ok(())
}
