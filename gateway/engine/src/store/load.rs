//! What the checkpoint's tree says, record by record, each with its check.

use std::collections::BTreeMap;
use std::sync::Arc;

use redb::Database;

use super::book::{Book, Letter, Piece, Side};
use super::checkpoint::{decode_piece, for_each};
use super::damage::{Trouble, contained};
use super::files::{ReadRecords, write};
use super::format::{FORMAT, FORMAT_REDB_ALONE, Kind, SEAL_BYTES, key, seal_of, split_key, unseal};
use super::record::{Meta, SinkState, TableState, decode_progress};
use super::rows::decode_schema;
use super::stamps::Boots;
use super::state::State;
use super::states::{self, Kept};

/// What the tree says.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) state: Option<State>,
    pub(super) pieces: Vec<(Side, Arc<str>, Piece)>,
    pub(super) letters: Vec<(Arc<str>, u64, Letter)>,
    pub(super) states: Vec<(Arc<str>, u64, Kept)>,
    /// States that fail their check, which says nothing of the rest. Their values are not held.
    pub(super) bad_states: Vec<(Arc<str>, u64)>,
    pub(super) bad: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Loaded {
    pub(super) fn is_format(&self, format: u32) -> bool {
        self.state.as_ref().is_some_and(|state| state.meta.format == format)
    }

    /// Whether each state that a progress was written with has its record, and no other has: one that fails its
    /// check is what it says it is, and not a record of another kind whose key rots.
    pub(super) fn has_all_states(&self) -> bool {
        let Some(state) = &self.state else { return false };
        let mut found: BTreeMap<&str, u64> = BTreeMap::new();
        let whole = self.states.iter().map(|(stream, ..)| stream);
        for stream in whole.chain(self.bad_states.iter().map(|(stream, _)| stream)) {
            *found.entry(stream).or_default() += 1;
        }
        let marks = state.marks.iter().filter(|(_, mark)| mark.count > 0);
        found == marks.map(|(stream, mark)| (&**stream, mark.count)).collect()
    }

    /// A later version wrote it.
    pub(super) fn is_later(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.meta.format > FORMAT)
    }

    /// Takes one record; `None` when it fails its check.
    fn take(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let (kind, name, position) = split_key(key)?;
        let body = unseal(key, value);
        let name: Arc<str> = Arc::from(name);
        if kind == Kind::State {
            match body.and_then(|_| seal_of(value)) {
                Some((crc, length)) => {
                    let kept = Kept { frame: None, in_tree: true, crc, length, since: 0 };
                    self.states.push((name, position, kept));
                }
                None => self.bad_states.push((name, position)),
            }
            return Some(());
        }
        let body = body?;
        let state = self.state.as_mut()?;
        match kind {
            Kind::Sink if state.meta.format == FORMAT_REDB_ALONE => {
                state.sinks.insert(name, SinkState::decode_redb_alone(body)?);
            }
            Kind::Sink => {
                state.sinks.insert(name, SinkState::decode(body)?);
            }
            Kind::Table => {
                state.tables.insert(name, TableState::decode(body)?);
            }
            Kind::Progress => {
                let (progress, mark) = decode_progress(name.clone(), body)?;
                state.progress.insert(name.clone(), Arc::new(progress));
                state.marks.insert(name, mark);
            }
            Kind::Schema => {
                state.schemas.entry(name).or_default().push((position, decode_schema(body)?));
            }
            Kind::Count => {
                state.counts.insert(name, position);
            }
            Kind::Boots => state.boots = Boots::decode(body)?,
            Kind::LogPiece => self.pieces.push((Side::Log, name, decode_piece(position, body)?)),
            Kind::OutboxPiece => {
                self.pieces.push((Side::Outbox, name, decode_piece(position, body)?));
            }
            Kind::Rejected => {
                let letter = Letter { bytes: value.len() as u64, body: None };
                self.letters.push((name, position, letter));
            }
            // Meta is known already, and rows of format 1 are taken over one by one.
            Kind::Meta | Kind::Log | Kind::Outbox => {}
            Kind::Forgotten | Kind::State | Kind::StatesGone => return None,
        }
        Some(())
    }
}

/// Reads every record of the tree but the rows of format 1. Records come in the order of their
/// kinds, so that meta is the first.
pub(super) fn load(records: &ReadRecords) -> Result<Loaded, Trouble> {
    let mut loaded = Loaded::default();
    let at = key(Kind::Meta, "", 0);
    let meta = records.get_owned(at.as_slice())?;
    let meta = meta.and_then(|value| Meta::decode(unseal(&at, value.value())?));
    let is_old = meta.as_ref().is_some_and(|meta| meta.format == FORMAT_REDB_ALONE);
    loaded.state = meta.map(State::new);
    if loaded.is_later() {
        return Ok(loaded);
    }
    // From meta up to the rows of format 1, and from the dead letters on.
    let kinds: &[_] =
        if is_old { &[(b'A', b'F'), (b'H', b'I')] } else { &[(b'A', Kind::Boots as u8 + 1)] };
    for (low, high) in kinds {
        let range = *low..*high;
        for_each(records, range, |key, value| {
            if loaded.take(key, value).is_none() {
                loaded.bad.push((key.to_vec(), value.to_vec()));
            }
        })?;
    }
    Ok(loaded)
}

/// Takes over the dead letters of a broken tree that can be read; returns how many were bad.
pub(super) fn rescue_letters(book: &mut Book, records: Option<&ReadRecords>) -> u64 {
    let Some(records) = records else {
        return 0;
    };
    let mut found: Vec<(Arc<str>, u64, Vec<u8>)> = Vec::new();
    let mut bad = 0;
    let read = contained(|| {
        for_each(records, Kind::Rejected as u8..Kind::Rejected as u8 + 1, |key, value| {
            match split_key(key).zip(unseal(key, value)) {
                Some(((_, name, position), body)) => {
                    found.push((Arc::from(name), position, body.to_vec()));
                }
                None => bad += 1,
            }
        })
    });
    if let Err(trouble) = read {
        tracing::error!(reason = trouble.text(), "not all dead letters could be read");
        bad += 1;
    }
    for (name, position, body) in found {
        let bytes = (SEAL_BYTES + body.len()) as u64;
        let letters = book.letters.entry(name).or_default();
        letters.insert(position, Letter { bytes, body: Some(body) });
    }
    bad
}

/// Copies the states of a broken tree that can be read into another tree, one at a time. What is
/// missing then is missing in the mark of its stream.
pub(super) fn rescue_states(
    book: &mut Book,
    from: &ReadRecords,
    into: &Database,
) -> Result<(), Trouble> {
    let mut found: Vec<(Arc<str>, u64, Kept)> = Vec::new();
    write(into, |target| {
        let mut outcome = Ok(());
        let read = contained(|| {
            let kinds = Kind::State as u8..Kind::State as u8 + 1;
            for_each(from, kinds, |key, value| {
                let seal = unseal(key, value).and_then(|_| seal_of(value));
                let Some(((_, stream, number), (crc, length))) = split_key(key).zip(seal) else {
                    return;
                };
                let kept = Kept { frame: None, in_tree: true, crc, length, since: 0 };
                found.push((Arc::from(stream), number, kept));
                if let Err(error) = target.insert(key, value) {
                    outcome = Err(Trouble::from(error));
                }
            })
        });
        if let Err(trouble) = read {
            tracing::error!(reason = trouble.text(), "not all states of streams could be read");
        }
        outcome
    })?;
    for (stream, number, kept) in found {
        states::keep(book, &stream, number, kept);
    }
    Ok(())
}
