//! The small records: what is known of the whole, of each sink, table and stream.
//!
//! Each is written as a whole whenever it changes, so that a reader needs only the last one. What an
//! older format wrote is still read. Knows keys and seals by name only: see `format`.

use std::ops::Range;
use std::sync::Arc;

use super::border::{Gap, GapReason, Lanes, StreamProgress};
use super::format::{FORMAT, FORMAT_REDB_ALONE, FORMAT_USUAL, Reader, put_bytes, put_size};
use super::states::Mark;

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
            format: FORMAT_USUAL,
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
    /// How often notices stayed that a mark would have passed untold. Of this process; not stored.
    pub(super) kept: u64,
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
            kept: 0,
        }
    }
}

impl SinkState {
    /// Positions that are not settled.
    pub(super) fn open(&self) -> u64 {
        self.next - 1 - self.cursor - self.lanes.map_or(0, |lanes| lanes.live - lanes.split)
    }

    /// The same as ranges: with a live lane, what is before it and what is in it.
    pub(super) fn open_positions(&self) -> [std::ops::Range<u64>; 2] {
        let (split, live) =
            self.lanes.map_or((self.next - 1, self.next - 1), |l| (l.split, l.live));
        [self.cursor + 1..split + 1, live + 1..self.next]
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

pub(super) fn put_gap(out: &mut Vec<u8>, gap: Gap) {
    out.extend_from_slice(&gap.from.to_le_bytes());
    out.extend_from_slice(&gap.to.to_le_bytes());
    out.push(match gap.reason {
        GapReason::Dropped => 0,
        GapReason::Expired => 1,
    });
}

pub(super) fn take_gap(reader: &mut Reader<'_>) -> Option<Gap> {
    let (from, to) = (reader.u64()?, reader.u64()?);
    let reason = match reader.u8()? {
        0 => GapReason::Dropped,
        1 => GapReason::Expired,
        _ => return None,
    };
    Some(Gap { from, to, reason })
}

/// One table's log in numbers. Rows `start .. end` are kept, but for those in `holes`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TableState {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) bytes: u64,
    pub(super) dropped: u64,
    /// Rows that were let go before older ones, which is no damage: in order, none touches another.
    pub(super) holes: Vec<Range<u64>>,
}

/// Holes of one log: where it has as many, no other rows are let go but from its front.
const HOLES_MAX: usize = 64;

impl TableState {
    /// Those of some rows that are kept, as ranges.
    pub(super) fn kept(&self, rows: Range<u64>) -> Vec<Range<u64>> {
        let (mut from, end) = (rows.start.max(self.start), rows.end.min(self.end));
        let mut kept = Vec::new();
        for hole in &self.holes {
            kept.push(from..hole.start.min(end));
            from = from.max(hole.end);
        }
        kept.push(from..end);
        kept.retain(|rows| !rows.is_empty());
        kept
    }

    /// How many of some rows are kept.
    pub(super) fn count(&self, rows: Range<u64>) -> u64 {
        self.kept(rows).iter().map(|rows| rows.end - rows.start).sum()
    }

    /// Notes that rows behind all other holes are not kept; `false` where there are too many holes.
    pub(super) fn add_hole(&mut self, rows: Range<u64>) -> bool {
        if let Some(hole) = self.holes.last_mut().filter(|hole| hole.end == rows.start) {
            hole.end = rows.end;
            return true;
        }
        let has_room = self.holes.len() < HOLES_MAX;
        if has_room {
            self.holes.push(rows);
        }
        has_room
    }

    /// Lets go of everything before `floor`.
    pub(super) fn begin_at(&mut self, floor: u64) {
        self.start = floor;
        self.holes.retain(|hole| hole.end > floor);
    }

    /// Without a hole the bytes are those that earlier versions wrote; they pass over what follows them.
    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers = [self.start, self.end, self.bytes, self.dropped];
        let holes = self.holes.iter().flat_map(|hole| [hole.start, hole.end]);
        numbers.into_iter().chain(holes).flat_map(u64::to_le_bytes).collect()
    }

    pub(super) fn decode(body: &[u8]) -> Option<TableState> {
        let mut reader = Reader(body);
        let mut state = TableState {
            start: reader.u64()?,
            end: reader.u64()?,
            bytes: reader.u64()?,
            dropped: reader.u64()?,
            holes: Vec::new(),
        };
        while !reader.0.is_empty() {
            state.holes.push(reader.u64()?..reader.u64()?);
        }
        let are_holes = state.holes.iter().all(|hole| !hole.is_empty());
        let in_order = state.holes.is_sorted_by(|a, b| a.end < b.start);
        (state.start <= state.end && are_holes && in_order).then_some(state)
    }
}

/// Encodes a stream's progress and the mark of its states; its name is in the key. Where it has none
/// the bytes are those that format 2 wrote.
pub(super) fn encode_progress(progress: &StreamProgress, mark: Mark) -> Vec<u8> {
    let mut out = Vec::with_capacity(96 + progress.state.len());
    put_bytes(&mut out, &progress.state);
    for positions in [&progress.processed, &progress.replay_from] {
        put_size(&mut out, positions.len());
        for (table, position) in positions {
            put_bytes(&mut out, table.as_bytes());
            out.extend_from_slice(&position.to_le_bytes());
        }
    }
    if mark != Mark::default() {
        for number in [mark.count, mark.bytes, mark.digest] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }
    out
}

/// Decodes what [`encode_progress`] wrote.
pub(super) fn decode_progress(stream: Arc<str>, body: &[u8]) -> Option<(StreamProgress, Mark)> {
    let mut reader = Reader(body);
    let length = reader.size()?;
    let state = reader.take(length)?.to_vec();
    let processed = positions(&mut reader)?;
    let replay_from = positions(&mut reader)?;
    let mark = if reader.0.is_empty() {
        Mark::default()
    } else {
        Mark { count: reader.u64()?, bytes: reader.u64()?, digest: reader.u64()? }
    };
    let states = Vec::new();
    let progress = StreamProgress { stream, state, processed, replay_from, states };
    reader.0.is_empty().then_some((progress, mark))
}

fn positions(reader: &mut Reader<'_>) -> Option<Vec<(Arc<str>, u64)>> {
    let count = reader.size()?;
    (0..count).map(|_| Some((Arc::from(reader.text()?), reader.u64()?))).collect()
}
