//! The bytes of every record: keys, the seal that is checked on each read, and rows of outboxes.
//!
//! A key is `kind, name length (u16), name, position (u64)`, all big-endian, so that the records of
//! one sink or table lie together in order. A value is `CRC32, length (u32), body`; the CRC covers
//! the key too, so a value never passes under another name or position. An entry, as it lies in the
//! ring and on shelves, is `key length (u16), key, value`. Integers in bodies and the key length are
//! little-endian. Knows no file and no transaction.

use std::sync::Arc;

use bytes::Bytes;

use super::border::OutboxRow;
use super::record::{put_gap, take_gap};

/// The newest layout of records that this version writes and reads: [`FORMAT_USUAL`] with rows that were
/// stamped by another clock than that of day, and what is known of those clocks.
pub(super) const FORMAT: u32 = 4;
/// What is written as long as there was no such row, so that the version before can go on with it.
pub(super) const FORMAT_USUAL: u32 = 3;
/// The oldest one that is brought to the newest when it is opened: one redb file with all rows.
pub(super) const FORMAT_REDB_ALONE: u32 = 1;

/// What a record is. Kinds of small, often written records come first and share a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(super) enum Kind {
    /// Format, epoch, commit number, gateway.
    Meta = b'A',
    /// One sink's counters.
    Sink = b'B',
    /// One log's ends.
    Table = b'C',
    /// One stream's progress.
    Progress = b'D',
    /// A schema of a table; the position is its number.
    Schema = b'E',
    /// Rows of a table; the position is the first row's.
    Log = b'F',
    /// Rows of a sink; the position is the first row's.
    Outbox = b'G',
    /// A dead letter; the position is the one it had in the outbox.
    Rejected = b'H',
    /// Where rows of a table lie on a shelf; the position is the first row's.
    LogPiece = b'I',
    /// Where rows of a sink lie on a shelf; the position is the first row's.
    OutboxPiece = b'J',
    /// A durable counter; the position is its value.
    Count = b'K',
    /// Dead letters that are no more: the body is their positions.
    Forgotten = b'L',
    /// A state of a stream; the position is its key.
    State = b'M',
    /// States that are no more: the body is their keys.
    StatesGone = b'N',
    /// What is known of the times of the machine's starts.
    Boots = b'O',
}

impl Kind {
    /// Every kind, in the order of the keys.
    pub(super) const ALL: [Kind; 15] = [
        Kind::Meta,
        Kind::Sink,
        Kind::Table,
        Kind::Progress,
        Kind::Schema,
        Kind::Log,
        Kind::Outbox,
        Kind::Rejected,
        Kind::LogPiece,
        Kind::OutboxPiece,
        Kind::Count,
        Kind::Forgotten,
        Kind::State,
        Kind::StatesGone,
        Kind::Boots,
    ];
}

/// The longest name: what the key's length field can say.
pub(super) const NAME_BYTES_MAX: usize = u16::MAX as usize;

/// Makes a key. Names are checked against [`NAME_BYTES_MAX`] when the store is opened.
pub(super) fn key(kind: Kind, name: &str, position: u64) -> Vec<u8> {
    let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
    let mut key = Vec::with_capacity(11 + name.len());
    key.push(kind as u8);
    key.extend_from_slice(&length.to_be_bytes());
    key.extend_from_slice(name.as_bytes());
    key.extend_from_slice(&position.to_be_bytes());
    key
}

/// Takes a key apart; `None` when it is none of ours.
pub(super) fn split_key(key: &[u8]) -> Option<(Kind, &str, u64)> {
    let mut reader = Reader(key);
    let byte = reader.take(1)?[0];
    let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == byte)?;
    let length = u16::from_be_bytes(reader.take(2)?.try_into().ok()?);
    let name = std::str::from_utf8(reader.take(usize::from(length))?).ok()?;
    let position = u64::from_be_bytes(reader.take(8)?.try_into().ok()?);
    reader.0.is_empty().then_some((kind, name, position))
}

/// Wraps a body so that damage is seen when it is read.
pub(super) fn seal(key: &[u8], body: &[u8]) -> Vec<u8> {
    // A body is bounded by the commit that carries it, far below 4 GiB.
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut value = Vec::with_capacity(SEAL_BYTES + body.len());
    value.extend_from_slice(&checksum(key, length, body).to_le_bytes());
    value.extend_from_slice(&length.to_le_bytes());
    value.extend_from_slice(body);
    value
}

/// Bytes that [`seal`] adds.
pub(super) const SEAL_BYTES: usize = 8;

/// Returns the body if the value is what was sealed under this key.
pub(super) fn unseal<'a>(key: &[u8], value: &'a [u8]) -> Option<&'a [u8]> {
    let mut reader = Reader(value);
    let (crc, length) = (reader.u32()?, reader.u32()?);
    let intact =
        reader.0.len() == usize::try_from(length).ok()? && checksum(key, length, reader.0) == crc;
    intact.then_some(reader.0)
}

/// The CRC of a sealed value and the length of its body, as they stand there.
pub(super) fn seal_of(value: &[u8]) -> Option<(u32, u32)> {
    let mut reader = Reader(value);
    Some((reader.u32()?, reader.u32()?))
}

fn checksum(key: &[u8], length: u32, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(&length.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// Appends an entry; returns its length.
pub(super) fn put_entry(out: &mut Vec<u8>, key: &[u8], body: &[u8]) -> usize {
    let written = put_entry_with(out, key, |out| -> Result<(), std::convert::Infallible> {
        out.extend_from_slice(body);
        Ok(())
    });
    match written {
        Ok(length) => length,
    }
}

/// Appends an entry whose body `write` appends, so that it is not copied; returns the entry's length.
/// After an error nothing is appended.
pub(super) fn put_entry_with<E>(
    out: &mut Vec<u8>,
    key: &[u8],
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<usize, E> {
    let start = out.len();
    out.extend_from_slice(&u16::try_from(key.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend_from_slice(key);
    let seal = out.len();
    out.extend_from_slice(&[0; SEAL_BYTES]);
    if let Err(error) = write(out) {
        out.truncate(start);
        return Err(error);
    }
    let body = &out[seal + SEAL_BYTES..];
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let crc = checksum(key, length, body);
    out[seal..seal + 4].copy_from_slice(&crc.to_le_bytes());
    out[seal + 4..seal + SEAL_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(out.len() - start)
}

/// An entry taken from the front of bytes.
pub(super) struct Entry<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) length: usize,
}

impl<'a> Entry<'a> {
    /// Takes one entry; `None` where the lengths do not fit. Its seal is not checked yet.
    pub(super) fn take(bytes: &'a [u8]) -> Option<Entry<'a>> {
        let mut reader = Reader(bytes);
        let length = u16::from_le_bytes(reader.take(2)?.try_into().ok()?);
        let key = reader.take(usize::from(length))?;
        let rest = reader.0;
        let body = u32::from_le_bytes(rest.get(4..8)?.try_into().ok()?);
        let value = reader.take(SEAL_BYTES.checked_add(usize::try_from(body).ok()?)?)?;
        Some(Entry { key, value, length: bytes.len() - reader.0.len() })
    }

    /// The body, if the entry is what was written under its key.
    pub(super) fn body(&self) -> Option<&'a [u8]> {
        unseal(self.key, self.value)
    }
}

/// Reads a body from its front; `None` when it is too short.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(super) fn size(&mut self) -> Option<usize> {
        usize::try_from(self.u32()?).ok()
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(super) fn i64(&mut self) -> Option<i64> {
        Some(i64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        let length = self.size()?;
        std::str::from_utf8(self.take(length)?).ok()
    }
}

/// Appends a length and the bytes. Lengths are bounded by the commit, far below 4 GiB.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_size(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends a count or length as u32.
pub(super) fn put_size(out: &mut Vec<u8>, size: usize) {
    out.extend_from_slice(&u32::try_from(size).unwrap_or(u32::MAX).to_le_bytes());
}

/// Bytes of bodies in one outbox record: small enough to be read again for each delivery.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// Bytes that a row weighs beside its body.
pub(super) const ROW_BYTES: u64 = 4;

/// What a row counts against its sink's bound.
pub(super) fn row_bytes(body: &Bytes) -> u64 {
    u64::try_from(body.len()).unwrap_or(u64::MAX).saturating_add(ROW_BYTES)
}

/// What a row that waits counts; a notice counts nothing.
pub(super) fn weight(row: &OutboxRow) -> u64 {
    if row.gap.is_some() { 0 } else { row_bytes(&row.body) }
}

/// What stands behind the header of a group of rows.
const NO_WINDOW: u8 = 0;
const WINDOW: u8 = 1;
const GAP: u8 = 2;

/// Encodes outbox rows that follow each other; rows of one stream with equal window and creation
/// share one header.
pub(super) fn encode_outbox(rows: &[OutboxRow]) -> Vec<u8> {
    let bodies: usize = rows.iter().map(|row| row.body.len() + 4).sum();
    let mut out = Vec::with_capacity(bodies + 64);
    put_size(&mut out, rows.len());
    for group in rows.chunk_by(|a, b| {
        a.stream == b.stream
            && a.epoch == b.epoch
            && a.created == b.created
            && a.window == b.window
            && a.seq + 1 == b.seq
            && a.gap.is_none()
            && b.gap.is_none()
    }) {
        let first = &group[0];
        put_bytes(&mut out, first.stream.as_bytes());
        out.extend_from_slice(&first.epoch.to_le_bytes());
        out.extend_from_slice(&first.seq.to_le_bytes());
        out.extend_from_slice(&first.created.to_le_bytes());
        out.push(match (first.gap, first.window) {
            (Some(_), _) => GAP,
            (None, Some(_)) => WINDOW,
            (None, None) => NO_WINDOW,
        });
        if let Some(gap) = first.gap {
            put_gap(&mut out, gap);
        } else if let Some((start, end)) = first.window {
            out.extend_from_slice(&start.to_le_bytes());
            out.extend_from_slice(&end.to_le_bytes());
        }
        put_size(&mut out, group.len());
        for row in group {
            put_bytes(&mut out, &row.body);
        }
    }
    out
}

/// Decodes what [`encode_outbox`] wrote; `first` is the position in the record's key.
pub(super) fn decode_outbox(first: u64, body: &[u8]) -> Option<Vec<OutboxRow>> {
    let mut reader = Reader(body);
    let count = reader.size()?;
    let mut rows = Vec::with_capacity(count.min(body.len() / 4));
    let mut position = first;
    while rows.len() < count {
        let stream: Arc<str> = Arc::from(reader.text()?);
        let (epoch, first_seq, created) = (reader.u64()?, reader.u64()?, reader.i64()?);
        let (window, gap) = match reader.u8()? {
            NO_WINDOW => (None, None),
            WINDOW => (Some((reader.i64()?, reader.i64()?)), None),
            GAP => (None, Some(take_gap(&mut reader)?)),
            _ => return None,
        };
        for seq in (first_seq..).take(reader.size()?) {
            let length = reader.size()?;
            let body = Bytes::copy_from_slice(reader.take(length)?);
            let stream = stream.clone();
            rows.push(OutboxRow { position, epoch, stream, seq, body, window, created, gap });
            position += 1;
        }
    }
    (rows.len() == count && reader.0.is_empty()).then_some(rows)
}

/// Encodes a dead letter.
pub(super) fn encode_letter(row: &OutboxRow, reason: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, reason.as_bytes());
    out.extend_from_slice(&encode_outbox(std::slice::from_ref(row)));
    out
}

/// Decodes what [`encode_letter`] wrote.
pub(super) fn decode_letter(position: u64, body: &[u8]) -> Option<(OutboxRow, String)> {
    let mut reader = Reader(body);
    let reason = reader.text()?.to_owned();
    let row = decode_outbox(position, reader.0)?.pop()?;
    Some((row, reason))
}
