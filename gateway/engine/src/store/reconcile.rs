//! What pieces and states tell of each other when a store is opened: what is missing is made again, what
//! is settled goes, and what is missing for good is counted. Reads no row.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::book::{Book, Piece, Place, Queue, Side};
use super::border::Layout;
use super::damage::Trouble;
use super::format::{Kind, split_key};
use super::record::{SinkState, TableState};
use super::state::State;
use super::{log, outbox};

/// Forgets the pieces of which every row is settled or trimmed.
pub(super) fn prune(book: &mut Book, state: &State) {
    for (name, sink) in &state.sinks {
        let Some(queue) = book.outboxes.get(name) else {
            continue;
        };
        let gone = queue.index_of(sink.cursor + sink.front.len() as u64 + 1);
        book.take(Side::Outbox, name, 0..gone);
        if let Some((lanes, queue)) = sink.lanes.zip(book.outboxes.get(name)) {
            let from = queue.pieces.partition_point(|piece| piece.first <= lanes.split);
            let to = queue.pieces.partition_point(|piece| piece.end() <= lanes.live + 1);
            book.take(Side::Outbox, name, from..to.max(from));
        }
    }
    for (name, table) in &state.tables {
        let gone = book.logs.get(name).map_or(0, |queue| queue.index_of(table.start));
        book.take(Side::Log, name, 0..gone);
        for hole in &table.holes {
            let Some(queue) = book.logs.get(name) else { continue };
            let from = queue.pieces.partition_point(|piece| piece.first < hole.start);
            let to = queue.pieces.partition_point(|piece| piece.end() <= hole.end);
            book.take(Side::Log, name, from..to.max(from));
        }
    }
}

/// Takes in rows of which no record tells, because the one that did is in a damaged frame.
pub(super) fn take_in(book: &mut Book, state: &mut State) -> Result<(), Trouble> {
    for (name, sink) in &mut state.sinks {
        outbox::take_in(book, name, sink)?;
    }
    for (name, table) in &mut state.tables {
        if let Some(queue) = book.logs.get(name) {
            log::take_in(queue, table);
        }
    }
    Ok(())
}

/// Whether the rows of a broken entry are still needed, as far as its key tells. Rows that were
/// folded lie on a shelf, and their frame's place was free to be written again.
pub(super) fn is_needed(book: &Book, state: &State, key: &[u8]) -> bool {
    let (side, name, first, is_open) = match split_key(key) {
        Some((Kind::Outbox, name, first)) => {
            // A notice in front takes the place of a row that was dropped.
            let is_open = state.sinks.get(name).is_some_and(|sink| {
                let settled = sink.cursor + sink.front.len() as u64;
                first > settled && first < sink.next && !sink.is_ahead(first)
            });
            (Side::Outbox, name, first, is_open)
        }
        Some((Kind::Log, name, first)) => {
            let kept = |table: &TableState| table.count(first..first + 1) > 0;
            (Side::Log, name, first, state.tables.get(name).is_some_and(kept))
        }
        _ => return false,
    };
    let queue = match side {
        Side::Outbox => book.outboxes.get(name),
        Side::Log => book.logs.get(name),
    };
    let elsewhere = queue.and_then(|queue| queue.pieces.get(queue.index_of(first)));
    is_open && elsewhere.is_none_or(|piece| piece.first > first)
}

/// Makes the states that are not there from the pieces; `true` when one held anything.
pub(super) fn rebuild(
    book: &mut Book,
    state: &mut State,
    layout: &Layout,
) -> Result<bool, Trouble> {
    let sinks: BTreeSet<Arc<str>> = layout
        .sinks
        .iter()
        .map(|sink| &sink.name)
        .chain(book.outboxes.keys())
        .filter(|name| !state.sinks.contains_key(*name))
        .cloned()
        .collect();
    let tables: BTreeSet<Arc<str>> = layout
        .tables
        .iter()
        .map(|table| &table.name)
        .chain(book.logs.keys())
        .filter(|name| !state.tables.contains_key(*name))
        .cloned()
        .collect();
    let mut rebuilt = false;
    for name in sinks {
        let sink = outbox::rebuild(book, &name)?;
        rebuilt |= sink != SinkState::default();
        state.sinks.insert(name, sink);
    }
    for name in tables {
        let passed = state
            .progress
            .values()
            .flat_map(|progress| progress.processed.iter().chain(&progress.replay_from))
            .filter(|(table, _)| *table == name)
            .map(|(_, position)| *position)
            .max();
        let table = log::rebuild(book, &name, passed.unwrap_or(0));
        rebuilt |= table != TableState::default();
        state.tables.insert(name, table);
    }
    Ok(rebuilt)
}

/// Counts the rows that should be there, as far as that can be told without reading them: what lies in
/// no piece, or on a shelf that is gone or was cut.
pub(super) fn count_missing(book: &mut Book, state: &State) {
    let lengths = book.files.shelves.lengths();
    let is_there = |piece: &Piece| match piece.place {
        Place::Frame { .. } => true,
        Place::Shelf { file, at } => {
            lengths.get(&file).is_none_or(|length| at + u64::from(piece.length) <= *length)
        }
    };
    let mut missing = Vec::new();
    let mut look = |side, name: &Arc<str>, wanted: Range<u64>| {
        let mut expected = wanted.start;
        let none = Queue::default();
        let queue = book.queues(side).get(name).unwrap_or(&none);
        for piece in queue.pieces.iter().skip(queue.index_of(wanted.start)) {
            if piece.first >= wanted.end {
                break;
            }
            missing.push((side, name.clone(), expected..piece.first));
            expected = piece.end();
            if !is_there(piece) {
                missing.push((side, name.clone(), piece.first..piece.end()));
            }
        }
        missing.push((side, name.clone(), expected..wanted.end));
    };
    for (name, sink) in &state.sinks {
        for open in sink.open_positions() {
            // A notice in front takes the place of a row that was dropped.
            let front = sink.cursor + sink.front.len() as u64 + 1;
            look(Side::Outbox, name, open.start.max(front)..open.end);
        }
    }
    for (name, table) in &state.tables {
        look(Side::Log, name, table.start..table.end);
    }
    for (side, name, rows) in missing {
        lose(book, state, side, &name, rows);
    }
}

/// Counts those of some rows as missing that are still needed.
pub(super) fn lose(book: &mut Book, state: &State, side: Side, name: &str, rows: Range<u64>) {
    match side {
        Side::Outbox => {
            if let Some(sink) = state.sinks.get(name) {
                outbox::lose(book, name, sink, rows.start, rows.end);
            }
        }
        Side::Log => {
            if let Some(table) = state.tables.get(name) {
                log::lose(book, name, table, rows);
            }
        }
    }
}

/// What the store holds and the layout does not name.
pub(super) fn unclaimed(state: &State, layout: &Layout) -> Vec<String> {
    let sinks = state.sinks.keys().filter(|name| !layout.sinks.iter().any(|s| s.name == **name));
    let tables = state.tables.keys().filter(|name| !layout.tables.iter().any(|t| t.name == **name));
    sinks
        .map(|name| format!("sink {name}"))
        .chain(tables.map(|name| format!("table {name}")))
        .collect()
}
