//! The bytes that carry a stream over a restart.
//!
//! Promise: what is read back equals what was written; bytes that are cut, longer or of another
//! version are refused, never misread. A version byte, then sections: tag u8, length u32, bytes.
//! Each section has one owner; an unknown tag is refused, an empty one is left out. Integers are
//! little-endian; text is a u32 length and UTF-8; an optional value is a byte 0 or 1 and the value.
//! The store guards the bytes with a CRC. Version 1 was the base section alone, and is still read.

use std::borrow::Cow;

use super::{Counts, StreamError};
use crate::sql::Query;

const VERSION: u8 = 2;
const VERSION_WITHOUT_SECTIONS: u8 = 1;

/// Positions, marks and counts: the fields of [`Saved`] up to `sources`.
const BASE: u8 = 1;
/// What [`Frames::save`](super::frames::Frames::save) gave.
const FRAMES: u8 = 2;
/// By which plan the states beside the progress were made; only where there are some.
const PANES: u8 = 3;
/// What [`Last::save`](super::latest::Last::save) gave.
const LATEST: u8 = 5;
/// The clock and what it set aside: the fields of [`Saved`] from `clock_high` on.
const TIME: u8 = 6;
/// What a source takes in bytes, with a name of some length.
const SOURCE_BYTES: usize = 4 + 4 + 1 + 8 + 15;
const SECTIONS: [u8; 5] = [BASE, FRAMES, PANES, LATEST, TIME];

/// What a stream remembers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Saved<'a> {
    /// CRC32 of the window's definition: with another one, open windows cannot be refilled.
    pub(super) fingerprint: u32,
    pub(super) watermark: Option<i64>,
    pub(super) next_seq: u64,
    pub(super) accepted: u64,
    pub(super) windowed: u64,
    pub(super) late: u64,
    pub(super) filtered: u64,
    pub(super) failed: u64,
    pub(super) dropped: u64,
    pub(super) results: u64,
    pub(super) open_rows: u64,
    /// Name, next log position to apply, lowest position that an open window needs.
    pub(super) tables: Vec<(String, u64, u64)>,
    /// Index into `tables`, device, highest event time; those that were read.
    pub(super) sources: Vec<(u32, Cow<'a, str>, Option<i64>)>,
    /// Open windows, where rows alone do not tell them.
    pub(super) frames: Vec<u8>,
    /// By which plan stored states were made, where there are some.
    pub(super) panes: Option<Plan>,
    /// Last rows that the SQL looks at.
    pub(super) latest: Vec<u8>,
    /// The latest that the clock has ever said.
    pub(super) clock_high: i64,
    pub(super) future: u64,
    pub(super) restamped: u64,
    pub(super) failed_out: u64,
}

/// A plan that made states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// [`Query::fingerprint`](crate::sql::Query).
    pub(super) fingerprint: u32,
    pub(super) sql: String,
}

impl Plan {
    pub(super) fn of(query: &Query) -> Self {
        Self { fingerprint: query.fingerprint(), sql: query.sql().to_owned() }
    }

    /// Whether states that it made are those of `query`.
    pub(super) fn made(&self, query: &Query) -> bool {
        query.folded_table().is_some() && self.fingerprint == query.fingerprint()
    }
}

impl<'a> Saved<'a> {
    pub(super) fn counts(&self) -> Counts {
        Counts {
            accepted: self.accepted,
            windowed: self.windowed,
            late: self.late,
            filtered: self.filtered,
            failed: self.failed,
            dropped: self.dropped,
            results: self.results,
            future: self.future,
            restamped: self.restamped,
            failed_out: self.failed_out,
            ..Counts::default()
        }
    }

    /// With these sources in place of its own: of thousands of devices no list is made.
    pub(super) fn write_with<'b>(
        &self,
        sources: impl Iterator<Item = (usize, &'b str, Option<i64>)>,
    ) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_section(&mut out, BASE, |out| self.base(out, sources));
        put_section(&mut out, FRAMES, |out| out.extend(&self.frames));
        put_section(&mut out, PANES, |out| {
            if let Some(plan) = &self.panes {
                out.extend(plan.fingerprint.to_le_bytes());
                put_text(out, &plan.sql);
            }
        });
        put_section(&mut out, LATEST, |out| out.extend(&self.latest));
        put_section(&mut out, TIME, |out| self.time(out));
        out
    }

    fn time(&self, out: &mut Vec<u8>) {
        let counts = [self.future, self.restamped, self.failed_out];
        if self.clock_high == 0 && counts == [0; 3] {
            return;
        }
        out.extend(self.clock_high.to_le_bytes());
        out.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
    }

    fn base<'b>(
        &self,
        out: &mut Vec<u8>,
        sources: impl Iterator<Item = (usize, &'b str, Option<i64>)>,
    ) {
        out.extend(self.fingerprint.to_le_bytes());
        put_option(out, self.watermark);
        let numbers = [
            self.next_seq,
            self.accepted,
            self.windowed,
            self.late,
            self.filtered,
            self.failed,
            self.dropped,
            self.results,
            self.open_rows,
        ];
        for number in numbers {
            out.extend(number.to_le_bytes());
        }
        put_length(out, self.tables.len());
        for (name, processed, replay_from) in &self.tables {
            put_text(out, name);
            out.extend(processed.to_le_bytes());
            out.extend(replay_from.to_le_bytes());
        }
        let place = out.len();
        put_length(out, 0);
        out.reserve(sources.size_hint().0 * SOURCE_BYTES);
        let mut count = 0;
        for (table, device, high) in sources {
            put_length(out, table);
            put_text(out, device);
            put_option(out, high);
            count += 1;
        }
        set_length(out, place, count);
    }

    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, StreamError> {
        let refused = |what: String| Err(StreamError::Progress(what));
        let mut rest = Reader(bytes);
        match rest.take::<1>()?[0] {
            VERSION => {}
            VERSION_WITHOUT_SECTIONS => return Self::read_base(rest),
            version => return refused(format!("version {version}, not {VERSION}")),
        }
        let mut sections: [Option<&'a [u8]>; SECTIONS.len()] = [None; SECTIONS.len()];
        while !rest.0.is_empty() {
            let tag = rest.take::<1>()?[0];
            let length = rest.u32()? as usize;
            let bytes = rest.bytes(length)?;
            let place = SECTIONS.iter().position(|known| *known == tag);
            match place.map(|at| &mut sections[at]) {
                Some(place @ None) => *place = Some(bytes),
                Some(Some(_)) => return refused(format!("section {tag} stands twice")),
                None => return refused(format!("section {tag} is not known")),
            }
        }
        let [base, frames, panes, latest, time] = sections.map(Option::unwrap_or_default);
        let mut saved = Self::read_base(Reader(base))?;
        saved.frames = frames.to_vec();
        saved.latest = latest.to_vec();
        saved.read_time(time)?;
        let mut panes = Reader(panes);
        if !panes.0.is_empty() {
            saved.panes = Some(Plan { fingerprint: panes.u32()?, sql: panes.text()? });
        }
        Ok(saved)
    }

    fn read_time(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        let mut rest = Reader(bytes);
        if bytes.is_empty() {
            return Ok(());
        }
        self.clock_high = i64::from_le_bytes(rest.take()?);
        (self.future, self.restamped) = (rest.u64()?, rest.u64()?);
        self.failed_out = rest.u64()?;
        if rest.0.is_empty() { Ok(()) } else { Err(StreamError::Progress("too long".into())) }
    }

    fn read_base(mut rest: Reader<'a>) -> Result<Self, StreamError> {
        let mut saved = Self {
            fingerprint: rest.u32()?,
            watermark: rest.option()?,
            next_seq: rest.u64()?,
            accepted: rest.u64()?,
            windowed: rest.u64()?,
            late: rest.u64()?,
            filtered: rest.u64()?,
            failed: rest.u64()?,
            dropped: rest.u64()?,
            results: rest.u64()?,
            open_rows: rest.u64()?,
            ..Self::default()
        };
        for _ in 0..rest.u32()? {
            saved.tables.push((rest.text()?, rest.u64()?, rest.u64()?));
        }
        for _ in 0..rest.u32()? {
            let source = (rest.u32()?, Cow::Borrowed(rest.borrowed_text()?), rest.option()?);
            if source.0 as usize >= saved.tables.len() {
                return Err(StreamError::Progress("a source of no table".into()));
            }
            saved.sources.push(source);
        }
        rest.end()?;
        Ok(saved)
    }
}

/// Writes a section, or nothing where it has no bytes.
fn put_section(out: &mut Vec<u8>, tag: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([tag, 0, 0, 0, 0]);
    let first = out.len();
    write(out);
    if out.len() == first {
        out.truncate(start);
        return;
    }
    let length = out.len() - first;
    set_length(out, start + 1, length);
}

/// Puts in a length that was not known before.
fn set_length(out: &mut [u8], place: usize, length: usize) {
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    out[place..place + length.len()].copy_from_slice(&length);
}

pub(super) fn put_length(out: &mut Vec<u8>, length: usize) {
    // Names, sections, and counts of tables, sources and windows: bounded far below 2^32.
    out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_length(out, text.len());
    out.extend(text.as_bytes());
}

pub(super) fn put_option(out: &mut Vec<u8>, value: Option<i64>) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        out.extend(value.to_le_bytes());
    }
}

/// Reads from the front what the functions above wrote.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], StreamError> {
        let (taken, rest) =
            self.0.split_at_checked(length).ok_or(StreamError::Progress("cut short".into()))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], StreamError> {
        let mut taken = [0; N];
        taken.copy_from_slice(self.bytes(N)?);
        Ok(taken)
    }

    pub(super) fn u32(&mut self) -> Result<u32, StreamError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, StreamError> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    pub(super) fn option(&mut self) -> Result<Option<i64>, StreamError> {
        match self.take::<1>()? {
            [0] => Ok(None),
            [1] => Ok(Some(i64::from_le_bytes(self.take()?))),
            [other] => Err(StreamError::Progress(format!("an option marked {other}"))),
        }
    }

    /// Refuses what is left.
    pub(super) fn end(&self) -> Result<(), StreamError> {
        if self.0.is_empty() { Ok(()) } else { Err(StreamError::Progress("too long".into())) }
    }

    pub(super) fn text(&mut self) -> Result<String, StreamError> {
        self.borrowed_text().map(str::to_owned)
    }

    fn borrowed_text(&mut self) -> Result<&'a str, StreamError> {
        let length = self.u32()? as usize;
        let text = str::from_utf8(self.bytes(length)?);
        text.map_err(|_| StreamError::Progress("a name is not UTF-8".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Saved<'_> {
        fn write(&self) -> Vec<u8> {
            let sources = self.sources.iter();
            self.write_with(sources.map(|(table, name, high)| (*table as usize, &**name, *high)))
        }
    }

    #[test]
    fn what_is_written_is_read_and_anything_else_is_refused() {
        let saved = Saved {
            fingerprint: 0xdead_beef,
            watermark: Some(-5),
            next_seq: 7,
            accepted: 10,
            windowed: 4,
            late: 1,
            filtered: 2,
            failed: 3,
            dropped: 6,
            results: 8,
            open_rows: 9,
            tables: vec![("m".into(), 3, 1), ("größe".into(), u64::MAX, 0)],
            sources: vec![(0, "a".into(), Some(i64::MAX)), (1, "".into(), None)],
            frames: vec![1, 2, 3],
            panes: Some(Plan { fingerprint: 4, sql: "SELECT 1".into() }),
            latest: vec![6, 7, 8],
            clock_high: 11,
            future: 12,
            restamped: 13,
            failed_out: 14,
        };
        let bytes = saved.write();
        assert_eq!(Saved::read(&bytes), Ok(saved));
        // A cut between two sections leaves whole ones; the store's CRC is there for that.
        let (frames, panes) = (1 + 4 + 3, 1 + 4 + 4 + 4 + 8);
        let time = bytes.len() - (1 + 4 + 4 * 8);
        let after = time - (1 + 4 + 3);
        let whole = [time, after, after - panes, after - panes - frames];
        for length in (0..bytes.len()).filter(|length| !whole.contains(length)) {
            Saved::read(&bytes[..length]).unwrap_err();
        }
        for garbage in [&[0][..], &[7, 0, 0, 0, 0], &[0, 0, 0, 0, 0], &[2, 0, 0, 0, 0]] {
            Saved::read(&[&bytes[..], garbage].concat()).unwrap_err();
        }
        for version in [0, 1, 3] {
            Saved::read(&[&[version], &bytes[1..]].concat()).unwrap_err();
        }
    }

    #[test]
    fn the_layout_stays_and_that_of_version_1_is_still_read() {
        let saved = Saved { fingerprint: 1, next_seq: 2, ..Saved::default() };
        let mut base = vec![1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        base.extend([0; 8 * 8 + 4 + 4]);
        assert_eq!(base.len(), 85);
        assert_eq!(saved.write(), [&[2, 1, 85, 0, 0, 0], &base[..]].concat());
        assert_eq!(Saved::read(&[&[1], &base[..]].concat()), Ok(saved.clone()));
        let framed = Saved { frames: vec![9], ..saved };
        assert_eq!(framed.write(), [&[2, 1, 85, 0, 0, 0], &base[..], &[2, 1, 0, 0, 0, 9]].concat());
    }
}
