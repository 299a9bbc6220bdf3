//! From format 1, one redb file with all rows in it, to the present one.
//!
//! The rows go to shelves, then one transaction of the tree names them, drops the old rows and says
//! "format 3": a crash before it leaves a store of format 1, and shelves that nobody names.

use std::sync::Arc;

use super::book::{Book, Side};
use super::damage::Trouble;
use super::fold::fold;
use super::format::{FORMAT_USUAL, Kind, decode_outbox, encode_outbox, key, split_key, unseal};
use super::rows::row_count;
use super::state::State;

/// Bytes of rows that are read before they go to shelves.
const STEP_BYTES: usize = 1 << 20;

/// Moves all rows to shelves. The checkpoint that ends it is the caller's.
pub(super) fn upgrade(book: &mut Book, mut state: State) -> Result<State, Trouble> {
    let kinds = [(Side::Outbox, Kind::Outbox), (Side::Log, Kind::Log)];
    for (side, kind) in kinds {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let found = some(book, kind, after.as_deref())?;
            let Some((last, _)) = found.last() else { break };
            after = Some(last.clone());
            for (at, value) in &found {
                if take(book, side, at, value).is_none() {
                    book.damage.bad(at, value);
                }
            }
            // The draft is no frame: its rows go to shelves from memory.
            fold(book, &state, book.sequence + 1)?;
            book.clear_draft();
        }
    }
    state.meta.format = FORMAT_USUAL;
    state.meta.commit = 0;
    Ok(state)
}

/// Keys and values.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Records of a kind behind a key, about [`STEP_BYTES`] of them.
fn some(book: &Book, kind: Kind, after: Option<&[u8]>) -> Result<Pairs, Trouble> {
    let records = book.files.records()?;
    let (low, high) = ([kind as u8], [kind as u8 + 1]);
    let low = after.map_or(std::ops::Bound::Included(&low[..]), std::ops::Bound::Excluded);
    let (mut found, mut bytes) = (Vec::new(), 0);
    for entry in records.range::<&[u8]>((low, std::ops::Bound::Excluded(&high[..])))? {
        let (key, value) = entry?;
        bytes += value.value().len();
        found.push((key.value().to_vec(), value.value().to_vec()));
        if bytes >= STEP_BYTES {
            break;
        }
    }
    Ok(found)
}

fn take(book: &mut Book, side: Side, at: &[u8], value: &[u8]) -> Option<()> {
    let (_, name, first) = split_key(at)?;
    let body = unseal(&key(side.kind(), name, first), value)?;
    let name: Arc<str> = Arc::from(name);
    match side {
        Side::Outbox => {
            let rows = decode_outbox(first, body)?;
            let created = rows.iter().map(|row| row.created).max()?;
            let count = u32::try_from(rows.len()).ok()?;
            book.push(side, &name, first, count, created, &encode_outbox(&rows));
        }
        Side::Log => {
            let count = u32::try_from(row_count(body)?.1).ok()?;
            let mut dated = 0_i64.to_le_bytes().to_vec();
            dated.extend_from_slice(body);
            book.push(side, &name, first, count, 0, &dated);
        }
    }
    Some(())
}
