//! The rows that came too late for one open window: what a restart cannot tell from the log.
//!
//! Promise: however many rows a long window misses, a commit writes at most [`PIECE`] of them
//! again. The latest stand in the window's own state; each [`PIECE`] of them move to a state of
//! their own, which is written once and never changed. It knows no window but by its number.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::StreamError;
use super::progress::{Reader, put_length};

/// So many rows are moved out of a window's own state at once.
const PIECE: usize = 64;

/// In place of the length of a window's key: this is a piece. No key is so long.
const PIECE_MARK: u32 = u32::MAX;

/// A row: its table and log position.
pub(super) type Missed = (usize, u64);

/// The rows that were late for one window.
#[derive(Debug, Default)]
pub(super) struct Late {
    all: BTreeSet<Missed>,
    /// Those that stand in the window's own state.
    latest: Vec<Missed>,
    /// The numbers of its pieces.
    pieces: Vec<u64>,
}

/// A piece that was read.
pub(super) struct Piece {
    /// The number of its window.
    pub(super) window: u64,
    pub(super) rows: Vec<Missed>,
}

impl Late {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn contains(&self, row: Missed) -> bool {
        self.all.contains(&row)
    }

    /// Notes a row. Gives back whether it was not known.
    pub(super) fn note(&mut self, row: Missed) -> bool {
        let new = self.all.insert(row);
        if new {
            self.latest.push(row);
        }
        new
    }

    /// Moves rows to a piece under `number`, where there are enough.
    pub(super) fn split(&mut self, window: u64, number: u64) -> Option<Bytes> {
        if self.latest.len() < PIECE {
            return None;
        }
        let mut out = PIECE_MARK.to_le_bytes().to_vec();
        out.extend(window.to_le_bytes());
        put_rows(&mut out, &self.latest);
        self.latest.clear();
        self.pieces.push(number);
        Some(out.into())
    }

    /// Takes all rows back into the window's own state; gives back the numbers of its pieces, which
    /// are of no use any more.
    pub(super) fn gather(&mut self) -> Vec<u64> {
        self.latest = self.all.iter().copied().collect();
        std::mem::take(&mut self.pieces)
    }

    /// Takes up a piece that is stored under `number`.
    pub(super) fn join(&mut self, number: u64, rows: Vec<Missed>) {
        self.pieces.push(number);
        self.all.extend(rows);
    }

    /// The numbers of its pieces.
    pub(super) fn pieces(&self) -> &[u64] {
        &self.pieces
    }

    /// How many bytes [`Late::write`] writes.
    pub(super) fn bytes(&self) -> usize {
        4 + self.latest.len() * PLACE_BYTES
    }

    /// What stands in the window's own state.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        put_rows(out, &self.latest);
    }

    /// Reads that.
    pub(super) fn read(rest: &mut Reader, tables: usize) -> Result<Self, StreamError> {
        let latest = read_rows(rest, tables)?;
        Ok(Self { all: latest.iter().copied().collect(), latest, pieces: Vec::new() })
    }
}

/// Reads a state that is a piece; `None` where it is that of a window.
pub(super) fn read_piece(state: &[u8], tables: usize) -> Result<Option<Piece>, StreamError> {
    let mut rest = Reader(state);
    if rest.u32()? != PIECE_MARK {
        return Ok(None);
    }
    let window = rest.u64()?;
    let rows = read_rows(&mut rest, tables)?;
    rest.end()?;
    Ok(Some(Piece { window, rows }))
}

fn put_rows(out: &mut Vec<u8>, rows: &[Missed]) {
    put_length(out, rows.len());
    for (table, position) in rows {
        put_place(out, *table, *position);
    }
}

fn read_rows(rest: &mut Reader, tables: usize) -> Result<Vec<Missed>, StreamError> {
    let count = rest.u32()?;
    (0..count).map(|_| read_place(rest, tables)).collect()
}

/// What [`put_place`] writes.
pub(super) const PLACE_BYTES: usize = 4 + 8;

/// A place without its time: table u32, log position u64.
pub(super) fn put_place(out: &mut Vec<u8>, table: usize, position: u64) {
    put_length(out, table);
    out.extend(position.to_le_bytes());
}

pub(super) fn read_place(rest: &mut Reader, tables: usize) -> Result<Missed, StreamError> {
    let table = rest.u32()? as usize;
    if table >= tables {
        return Err(StreamError::Progress("a row of no table".into()));
    }
    Ok((table, rest.u64()?))
}

/// Pieces that no commit has yet, and numbers of those that a commit is to remove.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    made: BTreeMap<u64, Bytes>,
    gone: Vec<u64>,
}

impl Pieces {
    pub(super) fn made(&mut self, number: u64, bytes: Bytes) {
        self.made.insert(number, bytes);
    }

    /// Their window is over.
    pub(super) fn remove(&mut self, numbers: &[u64]) {
        for number in numbers {
            if self.made.remove(number).is_none() {
                self.gone.push(*number);
            }
        }
    }

    /// What is to be written, and what is to go.
    pub(super) fn changes(&self) -> impl Iterator<Item = (u64, Option<Bytes>)> + '_ {
        let gone = self.gone.iter().map(|number| (*number, None));
        gone.chain(self.made.iter().map(|(number, bytes)| (*number, Some(bytes.clone()))))
    }

    pub(super) fn submitted(&mut self) {
        self.made.clear();
        self.gone.clear();
    }
}
