//! The bytes that carry a stream over a restart.
//!
//! Promise: what is read back equals what was written; bytes that are cut, longer or of another
//! version are refused, never misread. Integers are little-endian; text is a u32 length and UTF-8;
//! an optional value is a byte 0 or 1 and the value. The store guards the bytes with a CRC.

use super::{Counts, StreamError};

const VERSION: u8 = 1;

/// What a stream remembers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Saved {
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
    /// Index into `tables`, device, highest event time.
    pub(super) sources: Vec<(u32, String, Option<i64>)>,
}

impl Saved {
    pub(super) fn counts(&self) -> Counts {
        Counts {
            accepted: self.accepted,
            windowed: self.windowed,
            late: self.late,
            filtered: self.filtered,
            failed: self.failed,
            dropped: self.dropped,
            results: self.results,
            ..Counts::default()
        }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.fingerprint.to_le_bytes());
        put_option(&mut out, self.watermark);
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
        put_length(&mut out, self.tables.len());
        for (name, processed, replay_from) in &self.tables {
            put_text(&mut out, name);
            out.extend(processed.to_le_bytes());
            out.extend(replay_from.to_le_bytes());
        }
        put_length(&mut out, self.sources.len());
        for (table, device, high) in &self.sources {
            out.extend(table.to_le_bytes());
            put_text(&mut out, device);
            put_option(&mut out, *high);
        }
        out
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, StreamError> {
        let mut rest = Reader(bytes);
        let version = rest.take::<1>()?[0];
        if version != VERSION {
            return Err(StreamError::Progress(format!("version {version}, not {VERSION}")));
        }
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
            let source = (rest.u32()?, rest.text()?, rest.option()?);
            if source.0 as usize >= saved.tables.len() {
                return Err(StreamError::Progress("a source of no table".into()));
            }
            saved.sources.push(source);
        }
        if rest.0.is_empty() { Ok(saved) } else { Err(StreamError::Progress("too long".into())) }
    }
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    // Names and counts of tables and sources: bounded far below 2^32.
    out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_length(out, text.len());
    out.extend(text.as_bytes());
}

fn put_option(out: &mut Vec<u8>, value: Option<i64>) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        out.extend(value.to_le_bytes());
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, length: usize) -> Result<&'a [u8], StreamError> {
        let (taken, rest) =
            self.0.split_at_checked(length).ok_or(StreamError::Progress("cut short".into()))?;
        self.0 = rest;
        Ok(taken)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], StreamError> {
        let mut taken = [0; N];
        taken.copy_from_slice(self.bytes(N)?);
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, StreamError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, StreamError> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn option(&mut self) -> Result<Option<i64>, StreamError> {
        match self.take::<1>()? {
            [0] => Ok(None),
            [1] => Ok(Some(i64::from_le_bytes(self.take()?))),
            [other] => Err(StreamError::Progress(format!("an option marked {other}"))),
        }
    }

    fn text(&mut self) -> Result<String, StreamError> {
        let length = self.u32()? as usize;
        let text = self.bytes(length)?.to_vec();
        String::from_utf8(text).map_err(|_| StreamError::Progress("a name is not UTF-8".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            sources: vec![(0, "a".into(), Some(i64::MAX)), (1, String::new(), None)],
        };
        let bytes = saved.write();
        assert_eq!(Saved::read(&bytes), Ok(saved));
        for length in 0..bytes.len() {
            Saved::read(&bytes[..length]).unwrap_err();
        }
        Saved::read(&[&bytes[..], &[0]].concat()).unwrap_err();
        Saved::read(&[&[2], &bytes[1..]].concat()).unwrap_err();
    }

    #[test]
    fn the_layout_stays() {
        let saved = Saved { fingerprint: 1, next_seq: 2, ..Saved::default() };
        let mut expected = vec![1, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        expected.extend([0; 8 * 8 + 4 + 4]);
        assert_eq!(saved.write(), expected);
    }
}
