//! The bytes of every record: keys, the seal that is checked on each read, and the small states.
//!
//! A key is `kind, name length (u16), name, position (u64)`, all big-endian, so that the records of
//! one sink or table lie together in order. A value is `CRC32, length (u32), body`; the CRC covers
//! the key too, so a value never passes under another name or position. An entry, as it lies in the
//! ring and on shelves, is `key length (u16), key, value`. Integers in bodies and the key length are
//! little-endian. Knows no file and no transaction.

use std::sync::Arc;

use bytes::Bytes;

use super::border::{Gap, GapReason, Lanes, OutboxRow, StreamProgress};

/// The newest layout of records that this version writes and reads.
pub(super) const FORMAT: u32 = 2;
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
}

impl Kind {
    /// Every kind, in the order of the keys.
    pub(super) const ALL: [Kind; 12] = [
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

/// What the checkpoint knows of the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) format: u32,
    pub(super) epoch: u64,
    /// Sequence of the last frame that the checkpoint contains.
    pub(super) commit: u64,
    pub(super) gateway: String,
    /// Which ring the frames belong to.
    pub(super) ring: u64,
    /// The ring's length.
    pub(super) ring_length: u64,
    /// Sequence of the first frame of which rows are still needed.
    pub(super) tail: u64,
    /// The number of the process that wrote the checkpoint.
    pub(super) run: u32,
    /// Days since 1970, and the bytes written on that day.
    pub(super) day: i64,
    pub(super) written_today: u64,
    /// The store was closed with it.
    pub(super) clean: bool,
}

impl Meta {
    pub(super) fn new(epoch: u64, gateway: &str, ring: u64) -> Self {
        Meta {
            format: FORMAT,
            epoch,
            commit: 0,
            gateway: gateway.to_owned(),
            ring,
            ring_length: 0,
            tail: 1,
            run: 0,
            day: 0,
            written_today: 0,
            clean: false,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.gateway.len());
        out.extend_from_slice(&self.format.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.commit.to_le_bytes());
        put_bytes(&mut out, self.gateway.as_bytes());
        out.extend_from_slice(&self.ring.to_le_bytes());
        out.extend_from_slice(&self.ring_length.to_le_bytes());
        out.extend_from_slice(&self.tail.to_le_bytes());
        out.extend_from_slice(&self.run.to_le_bytes());
        out.extend_from_slice(&self.day.to_le_bytes());
        out.extend_from_slice(&self.written_today.to_le_bytes());
        out.push(u8::from(self.clean));
        out
    }

    /// A later format may have other fields behind the first; only its number is read then.
    pub(super) fn decode(body: &[u8]) -> Option<Meta> {
        let mut reader = Reader(body);
        let format = reader.u32()?;
        if format > FORMAT {
            return Some(Meta { format, ..Meta::new(0, "", 0) });
        }
        let (epoch, commit) = (reader.u64()?, reader.u64()?);
        let gateway = reader.text()?.to_owned();
        if format == FORMAT_REDB_ALONE {
            return Some(Meta { format, commit, ..Meta::new(epoch, &gateway, 0) });
        }
        Some(Meta {
            format,
            epoch,
            commit,
            gateway,
            ring: reader.u64()?,
            ring_length: reader.u64()?,
            tail: reader.u64()?,
            run: reader.u32()?,
            day: reader.i64()?,
            written_today: reader.u64()?,
            clean: reader.u8()? == 1,
        })
    }
}

/// Records of one stream that are missing at the front of an outbox: one row that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) stream: Arc<str>,
    pub(super) epoch: u64,
    pub(super) gap: Gap,
    pub(super) created: i64,
}

/// One sink's outbox in numbers. Rows `cursor + 1 .. next` wait, but for those that the live lane
/// has settled. The first ones are `front`, notices without a stored row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SinkState {
    pub(super) next: u64,
    pub(super) cursor: u64,
    pub(super) bytes: u64,
    pub(super) delivered: u64,
    pub(super) dropped: u64,
    pub(super) expired: u64,
    pub(super) rejected: u64,
    pub(super) lost: u64,
    /// Dead letters that were put back.
    pub(super) redriven: u64,
    /// Notices that wait, those of `front` among them.
    pub(super) gaps: u64,
    pub(super) letters: u64,
    pub(super) letter_bytes: u64,
    pub(super) head_created: Option<i64>,
    pub(super) lanes: Option<Lanes>,
    pub(super) paused: bool,
    pub(super) front: Vec<Notice>,
}

impl Default for SinkState {
    fn default() -> Self {
        SinkState {
            next: 1,
            cursor: 0,
            bytes: 0,
            delivered: 0,
            dropped: 0,
            expired: 0,
            rejected: 0,
            lost: 0,
            redriven: 0,
            gaps: 0,
            letters: 0,
            letter_bytes: 0,
            head_created: None,
            lanes: None,
            paused: false,
            front: Vec::new(),
        }
    }
}

impl SinkState {
    /// Positions that are not settled.
    pub(super) fn open(&self) -> u64 {
        self.next - 1 - self.cursor - self.lanes.map_or(0, |lanes| lanes.live - lanes.split)
    }

    /// Records that wait, notices not counted.
    pub(super) fn records(&self) -> u64 {
        self.open().saturating_sub(self.gaps)
    }

    /// Whether a position was settled ahead of the cursor, by the live lane.
    pub(super) fn is_ahead(&self, position: u64) -> bool {
        self.lanes.is_some_and(|lanes| position > lanes.split && position <= lanes.live)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        for number in [
            self.next,
            self.cursor,
            self.bytes,
            self.delivered,
            self.dropped,
            self.expired,
            self.rejected,
            self.lost,
            self.redriven,
            self.gaps,
            self.letters,
            self.letter_bytes,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let flags = u8::from(self.paused)
            | u8::from(self.head_created.is_some()) << 1
            | u8::from(self.lanes.is_some()) << 2;
        out.push(flags);
        if let Some(created) = self.head_created {
            out.extend_from_slice(&created.to_le_bytes());
        }
        if let Some(lanes) = self.lanes {
            out.extend_from_slice(&lanes.split.to_le_bytes());
            out.extend_from_slice(&lanes.live.to_le_bytes());
        }
        put_size(&mut out, self.front.len());
        for notice in &self.front {
            put_bytes(&mut out, notice.stream.as_bytes());
            out.extend_from_slice(&notice.epoch.to_le_bytes());
            out.extend_from_slice(&notice.created.to_le_bytes());
            put_gap(&mut out, notice.gap);
        }
        out
    }

    pub(super) fn decode(body: &[u8]) -> Option<SinkState> {
        let mut reader = Reader(body);
        let mut state = SinkState {
            next: reader.u64()?,
            cursor: reader.u64()?,
            bytes: reader.u64()?,
            delivered: reader.u64()?,
            dropped: reader.u64()?,
            expired: reader.u64()?,
            rejected: reader.u64()?,
            lost: reader.u64()?,
            redriven: reader.u64()?,
            gaps: reader.u64()?,
            letters: reader.u64()?,
            letter_bytes: reader.u64()?,
            ..SinkState::default()
        };
        let flags = reader.u8()?;
        state.paused = flags & 1 != 0;
        if flags & 2 != 0 {
            state.head_created = Some(reader.i64()?);
        }
        if flags & 4 != 0 {
            state.lanes = Some(Lanes { split: reader.u64()?, live: reader.u64()? });
        }
        for _ in 0..reader.size()? {
            let stream = Arc::from(reader.text()?);
            let (epoch, created, gap) = (reader.u64()?, reader.i64()?, take_gap(&mut reader)?);
            state.front.push(Notice { stream, epoch, gap, created });
        }
        let lanes_fit = state.lanes.is_none_or(|lanes| {
            state.cursor <= lanes.split && lanes.split <= lanes.live && lanes.live < state.next
        });
        (state.next > state.cursor && lanes_fit && reader.0.is_empty()).then_some(state)
    }

    /// What format 1 wrote.
    pub(super) fn decode_redb_alone(body: &[u8]) -> Option<SinkState> {
        let mut reader = Reader(body);
        let mut state = SinkState {
            next: reader.u64()?,
            cursor: reader.u64()?,
            bytes: reader.u64()?,
            delivered: reader.u64()?,
            dropped: reader.u64()?,
            rejected: reader.u64()?,
            lost: reader.u64()?,
            letters: reader.u64()?,
            letter_bytes: reader.u64()?,
            ..SinkState::default()
        };
        if !reader.0.is_empty() {
            state.head_created = Some(reader.i64()?);
        }
        (state.next > state.cursor).then_some(state)
    }
}

fn put_gap(out: &mut Vec<u8>, gap: Gap) {
    out.extend_from_slice(&gap.from.to_le_bytes());
    out.extend_from_slice(&gap.to.to_le_bytes());
    out.push(match gap.reason {
        GapReason::Dropped => 0,
        GapReason::Expired => 1,
    });
}

fn take_gap(reader: &mut Reader<'_>) -> Option<Gap> {
    let (from, to) = (reader.u64()?, reader.u64()?);
    let reason = match reader.u8()? {
        0 => GapReason::Dropped,
        1 => GapReason::Expired,
        _ => return None,
    };
    Some(Gap { from, to, reason })
}

/// One table's log in numbers. Rows `start .. end` are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TableState {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) bytes: u64,
    pub(super) dropped: u64,
}

impl TableState {
    pub(super) fn encode(&self) -> Vec<u8> {
        [self.start, self.end, self.bytes, self.dropped]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect()
    }

    pub(super) fn decode(body: &[u8]) -> Option<TableState> {
        let mut reader = Reader(body);
        let state = TableState {
            start: reader.u64()?,
            end: reader.u64()?,
            bytes: reader.u64()?,
            dropped: reader.u64()?,
        };
        (state.start <= state.end).then_some(state)
    }
}

/// Encodes a stream's progress; its name is in the key.
pub(super) fn encode_progress(progress: &StreamProgress) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + progress.state.len());
    put_bytes(&mut out, &progress.state);
    for positions in [&progress.processed, &progress.replay_from] {
        put_size(&mut out, positions.len());
        for (table, position) in positions {
            put_bytes(&mut out, table.as_bytes());
            out.extend_from_slice(&position.to_le_bytes());
        }
    }
    out
}

/// Decodes what [`encode_progress`] wrote.
pub(super) fn decode_progress(stream: Arc<str>, body: &[u8]) -> Option<StreamProgress> {
    let mut reader = Reader(body);
    let length = reader.size()?;
    let state = reader.take(length)?.to_vec();
    let processed = positions(&mut reader)?;
    let replay_from = positions(&mut reader)?;
    Some(StreamProgress { stream, state, processed, replay_from })
}

fn positions(reader: &mut Reader<'_>) -> Option<Vec<(Arc<str>, u64)>> {
    let count = reader.size()?;
    (0..count).map(|_| Some((Arc::from(reader.text()?), reader.u64()?))).collect()
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
