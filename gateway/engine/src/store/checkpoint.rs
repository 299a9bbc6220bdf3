//! What lets the ring go round: one transaction of the tree that says everything as of one frame.
//!
//! The rows of the oldest frames are on shelves by then (see `fold`); the transaction names them
//! together with all cursors and ends, takes up the states of streams, and only then are the frames
//! forgotten. A crash before it leaves the frames, and shelves that nobody names, which the next start
//! removes. Decides nothing about when.

use redb::ReadableTable;

use super::book::{Book, Piece, Place, Side};
use super::damage::{Trouble, contained};
use super::files::{RESERVE, Records, write};
use super::format::{FORMAT, Kind, Reader, key, seal, unseal};
use super::record::{Meta, encode_progress};
use super::rows::encode_schema;
use super::stamps::Boots;
use super::state::State;
use super::states;

/// Writes all that is known into the tree, durably; from then on frames without needed rows are
/// forgotten. Every frame must be durable, or hold no needed row.
pub(super) fn checkpoint(book: &mut Book, state: &mut State, clean: bool) -> Result<(), Trouble> {
    write_checkpoint(book, state, clean)?;
    take_note(book, state.meta.commit);
    Ok(())
}

/// Writes all that is known into the tree that is open. Nothing is forgotten yet.
pub(super) fn write_checkpoint(
    book: &mut Book,
    state: &mut State,
    clean: bool,
) -> Result<(), Trouble> {
    let commit = book.sequence - 1;
    let before = state.meta.clone();
    let first_needed = book.frames.iter().find(|frame| frame.live > 0);
    state.meta.tail = first_needed.map_or(commit + 1, |frame| frame.sequence);
    state.meta.commit = commit;
    state.meta.run = book.files.run;
    state.meta.ring = book.files.ring_id;
    state.meta.ring_length = book.files.ring_length;
    state.meta.clean = clean;
    if state.format_is_due() {
        state.meta.format = FORMAT;
    }
    let mut outcome = write_tree(book, state);
    if let Err(Trouble::Full(_)) = &outcome
        && book.files.disk.length(RESERVE).is_ok_and(|length| length.is_some())
        && book.files.disk.remove(RESERVE).is_ok()
    {
        tracing::warn!("the disk is full: the store's reserve is given up");
        outcome = book.files.reopen_tree().and_then(|()| write_tree(book, state));
    }
    let Err(trouble) = outcome else {
        book.undecided = 0;
        return Ok(());
    };
    // redb writes no more after an error. A damaged tree is left as it is: redb would go back to an older
    // checkpoint, or write to it.
    let is_damaged = matches!(trouble, Trouble::Damaged(_));
    if !is_damaged && let Err(again) = book.files.reopen_tree() {
        tracing::debug!(reason = again.text(), "the checkpoint file stays closed");
    }
    // Whether the transaction landed does not matter to what is in the ring. It does to the next sequence:
    // behind a checkpoint none is given that it contains.
    match if is_damaged { None } else { stored_meta(book) } {
        Some(stored) if stored == state.meta => {
            tracing::warn!(reason = trouble.text(), "the checkpoint that failed is there");
            book.undecided = 0;
            return Ok(());
        }
        Some(_) => {}
        None => book.undecided = book.undecided.max(commit),
    }
    // What the tree may not contain is still needed in the ring.
    state.meta = before;
    Err(trouble)
}

/// What the tree on the device says of the whole; `None` where it does not say.
fn stored_meta(book: &Book) -> Option<Meta> {
    let at = key(Kind::Meta, "", 0);
    let found = contained(|| {
        let found = book.files.records()?.get_owned(at.as_slice())?;
        Ok(found.map(|found| found.value().to_vec()))
    });
    Meta::decode(unseal(&at, &found.ok()??)?)
}

/// The checkpoint is durable, and contains the frames up to `commit`: forgets what is not needed any more.
pub(super) fn take_note(book: &mut Book, commit: u64) {
    for side in [Side::Outbox, Side::Log] {
        for queue in book.queues_mut(side).values_mut() {
            let shelved =
                queue.pieces.iter().rev().find(|p| matches!(p.place, Place::Shelf { .. }));
            queue.saved = shelved.map_or(queue.saved, Piece::end);
        }
    }
    for letter in book.letters.values_mut().flat_map(|letters| letters.values_mut()) {
        letter.body = None;
    }
    book.letters_gone.clear();
    for kept in book.states.values_mut().flat_map(|states| states.values_mut()) {
        (kept.frame, kept.in_tree) = (None, true);
    }
    book.states_gone.clear();
    // A checkpoint contains every frame; those that are only in memory need not be written any more.
    for frame in &mut book.frames {
        frame.moved = false;
        if frame.live == 0 {
            frame.memory = None;
        }
    }
    book.frames.retain(|frame| frame.live > 0 || frame.offset.is_some());
    book.free(commit);
    book.files.shelves.sweep();
}

fn write_tree(book: &mut Book, state: &State) -> Result<(), Trouble> {
    if book.files.tree.is_none() {
        book.files.reopen_tree()?;
    }
    // Taken out, because the book reads states for it meanwhile.
    let Some(tree) = book.files.tree.take() else {
        return Err(Trouble::Io("the checkpoint is not open".to_owned()));
    };
    let outcome = write(&tree, |records| {
        // Kinds from Meta to Outbox are written as a whole; a format 1 had rows among them.
        let (low, high) = ([Kind::Meta as u8], [Kind::Rejected as u8]);
        records.retain_in::<&[u8], _>(low.as_slice()..high.as_slice(), |_, _| false)?;
        let (low, high) = ([Kind::Count as u8], [Kind::Count as u8 + 1]);
        records.retain_in::<&[u8], _>(low.as_slice()..high.as_slice(), |_, _| false)?;
        put_state(records, state)?;
        put_pieces(records, book)?;
        for (sink, letters) in &book.letters {
            for (position, letter) in letters {
                if let Some(body) = &letter.body {
                    put(records, Kind::Rejected, sink, *position, body)?;
                }
            }
        }
        for (sink, position) in &book.letters_gone {
            records.remove(key(Kind::Rejected, sink, *position).as_slice())?;
        }
        put_states(records, book)
    });
    book.files.tree = Some(tree);
    outcome
}

fn put_pieces(records: &mut Records<'_>, book: &Book) -> Result<(), Trouble> {
    for side in [Side::Outbox, Side::Log] {
        let kind = side.piece_kind();
        for (name, queue) in book.queues(side) {
            let first = queue.pieces.front().map_or(u64::MAX, |piece| piece.first);
            let (low, high) = (key(kind, name, 0), key(kind, name, first));
            records.retain_in::<&[u8], _>(low.as_slice()..high.as_slice(), |_, _| false)?;
            // A piece that was replaced, by one in a frame also, would be taken for the newer one.
            let (low, high) = (key(kind, name, queue.saved), key(kind, name, u64::MAX));
            records.retain_in::<&[u8], _>(low.as_slice()..high.as_slice(), |_, _| false)?;
            for piece in queue.pieces.iter().skip(queue.index_of(queue.saved)) {
                let Place::Shelf { file, at } = piece.place else { break };
                put(records, kind, name, piece.first, &encode_piece(piece, file, at))?;
            }
        }
    }
    Ok(())
}

/// Copies the states that only frames have, one at a time. One that is damaged is missing from then on, and
/// the mark of its stream says so to the next start.
fn put_states(records: &mut Records<'_>, book: &mut Book) -> Result<(), Trouble> {
    for (stream, number) in &book.states_gone {
        records.remove(key(Kind::State, stream, *number).as_slice())?;
    }
    for (stream, number) in states::in_frames(book) {
        let at = key(Kind::State, &stream, number);
        match states::sealed(book, &stream, number)? {
            Some(value) => drop(records.insert(at.as_slice(), value.as_slice())?),
            None => drop(records.remove(at.as_slice())?),
        }
    }
    Ok(())
}

fn put_state(records: &mut Records<'_>, state: &State) -> Result<(), Trouble> {
    put(records, Kind::Meta, "", 0, &state.meta.encode())?;
    for (name, sink) in &state.sinks {
        put(records, Kind::Sink, name, 0, &sink.encode())?;
    }
    for (name, table) in &state.tables {
        put(records, Kind::Table, name, 0, &table.encode())?;
    }
    for (name, progress) in &state.progress {
        put(records, Kind::Progress, name, 0, &encode_progress(progress, state.mark(name)))?;
    }
    for (name, count) in &state.counts {
        put(records, Kind::Count, name, *count, &[])?;
    }
    if state.boots != Boots::default() {
        put(records, Kind::Boots, "", 0, &state.boots.encode())?;
    }
    for (table, schemas) in &state.schemas {
        for (number, schema) in schemas {
            let body = encode_schema(schema);
            let body = body.map_err(|error| Trouble::Io(format!("a schema: {error}")))?;
            put(records, Kind::Schema, table, *number, &body)?;
        }
    }
    Ok(())
}

/// Writes one record.
pub(super) fn put(
    records: &mut Records<'_>,
    kind: Kind,
    name: &str,
    position: u64,
    body: &[u8],
) -> Result<(), Trouble> {
    let at = key(kind, name, position);
    records.insert(at.as_slice(), seal(&at, body).as_slice())?;
    Ok(())
}

fn encode_piece(piece: &Piece, file: u32, at: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(28);
    out.extend_from_slice(&piece.rows.to_le_bytes());
    out.extend_from_slice(&piece.length.to_le_bytes());
    out.extend_from_slice(&piece.created.to_le_bytes());
    out.extend_from_slice(&file.to_le_bytes());
    out.extend_from_slice(&at.to_le_bytes());
    out
}

/// Decodes a piece of the checkpoint.
pub(super) fn decode_piece(first: u64, body: &[u8]) -> Option<Piece> {
    let mut reader = Reader(body);
    let (rows, length, created) = (reader.u32()?, reader.u32()?, reader.i64()?);
    let place = Place::Shelf { file: reader.u32()?, at: reader.u64()? };
    reader.0.is_empty().then_some(Piece { first, rows, length, created, place })
}

/// Visits the records of the tree from one kind up to another, exclusive.
pub(super) fn for_each(
    records: &impl ReadableTable<&'static [u8], &'static [u8]>,
    kinds: std::ops::Range<u8>,
    mut visit: impl FnMut(&[u8], &[u8]),
) -> Result<(), Trouble> {
    let (low, high) = ([kinds.start], [kinds.end]);
    for entry in records.range::<&[u8]>(low.as_slice()..high.as_slice())? {
        let (key, value) = entry?;
        visit(key.value(), value.value());
    }
    Ok(())
}
