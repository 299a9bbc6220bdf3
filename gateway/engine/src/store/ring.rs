//! The ring: a file of fixed length that frames are written into, round and round.
//!
//! A frame is what became durable at once: a header, entries, zeros up to the next block of 4 KiB.
//! Frames begin at block boundaries, so no block that holds anything acknowledged is written again.
//! A reader finds frames by their headers at block boundaries, in whatever order they lie; their
//! sequence tells the order. A frame says how many were synced together with it ahead of it, so that
//! of frames that are not whole it is known which ones were never acknowledged. Knows bytes and
//! offsets: no entry, no state.
//!
//! ```text
//! header  magic u32 · CRC32 of the rest of the header u32 · CRC32 of the body u32 · body length u32
//!         · sequence u64 · ring u64 · run u24 · frames ahead u8             little-endian, 36 bytes
//! ```

use std::io;

use redb::StorageBackend;

use super::format::Reader;

/// Frames begin at multiples of this: no smaller unit is written by the devices that are meant.
pub(super) const BLOCK: u64 = 4096;
const BLOCK_BYTES: usize = 4096;
/// Bytes of a frame's header.
pub(super) const HEADER: usize = 36;
const MAGIC: u32 = u32::from_le_bytes(*b"TGf2");
/// Bytes that a scan reads at once: whole blocks.
const SCAN_BYTES: u64 = 1 << 20;

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// The number of the frame; each is one more than the one before.
    pub(super) sequence: u64,
    /// A number that only this ring has, so that bytes of a record never pass for a frame.
    pub(super) ring: u64,
    /// The number of the process that wrote it: of two frames with one sequence the later counts.
    pub(super) run: u32,
    /// Frames right before it that were not durable when it was written: one sync was for all.
    pub(super) ahead: u8,
    /// Bytes of the body.
    pub(super) length: u32,
    pub(super) crc: u32,
}

/// The highest number of a process; from then on all have it.
pub(super) const RUN_MAX: u32 = (1 << 24) - 1;
/// Frames that one sync is for at most.
pub(super) const TOGETHER_MAX: usize = 1 + u8::MAX as usize;

/// Bytes that a frame with a body of `length` bytes takes in the ring.
pub(super) fn frame_bytes(length: usize) -> u64 {
    ((HEADER + length) as u64).next_multiple_of(BLOCK)
}

/// The CRC of a body that is still growing at its end, as far as it has been looked at.
#[derive(Debug, Clone, Default)]
pub(super) struct Sum {
    hasher: crc32fast::Hasher,
    length: usize,
}

impl Sum {
    /// Takes up what has come to the end of the body, which begins at [`HEADER`] in `frame`. What was
    /// taken up before must not have changed since.
    pub(super) fn go_on(&mut self, frame: &[u8]) {
        let fresh = frame.get(HEADER + self.length..).unwrap_or_default();
        self.hasher.update(fresh);
        self.length += fresh.len();
    }
}

/// Puts header and padding around a body, which begins at [`HEADER`] in `frame`, and of which `sum` is
/// the beginning.
pub(super) fn finish(frame: &mut Vec<u8>, mut sum: Sum, sequence: u64, ring: u64, run: u32) {
    sum.go_on(frame);
    let length = u32::try_from(sum.length).unwrap_or(u32::MAX);
    let crc = sum.hasher.finalize();
    let mut rest = Vec::with_capacity(HEADER - 8);
    rest.extend_from_slice(&crc.to_le_bytes());
    rest.extend_from_slice(&length.to_le_bytes());
    rest.extend_from_slice(&sequence.to_le_bytes());
    rest.extend_from_slice(&ring.to_le_bytes());
    rest.extend_from_slice(&run.min(RUN_MAX).to_le_bytes());
    frame[..4].copy_from_slice(&MAGIC.to_le_bytes());
    frame[4..8].copy_from_slice(&crc32fast::hash(&rest).to_le_bytes());
    frame[8..HEADER].copy_from_slice(&rest);
    let padded = frame.len().next_multiple_of(BLOCK_BYTES);
    frame.resize(padded, 0);
}

/// Notes in a finished frame how many frames are synced together with it ahead of it.
pub(super) fn set_ahead(frame: &mut [u8], ahead: usize) {
    if let Some(header) = frame.get_mut(..HEADER) {
        header[HEADER - 1] = u8::try_from(ahead).unwrap_or(u8::MAX);
        let crc = crc32fast::hash(&header[8..]);
        header[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

impl Header {
    /// Reads a header; `None` where there is none.
    pub(super) fn read(bytes: &[u8]) -> Option<Header> {
        let mut reader = Reader(bytes.get(..HEADER)?);
        if reader.u32()? != MAGIC || reader.u32()? != crc32fast::hash(reader.0) {
            return None;
        }
        Header::fields(&mut reader)
    }

    fn fields(reader: &mut Reader<'_>) -> Option<Header> {
        let (crc, length) = (reader.u32()?, reader.u32()?);
        let (sequence, ring, last) = (reader.u64()?, reader.u64()?, reader.u32()?);
        let (run, ahead) = (last & RUN_MAX, u8::try_from(last >> 24).ok()?);
        Some(Header { sequence, ring, run, ahead, length, crc })
    }

    /// Reads what was the header of frame `sequence` of a ring and fails its check: magic, ring and sequence
    /// are right, so that anything else may be wrong; or all is right with these in their place.
    pub(super) fn damaged(bytes: &[u8; HEADER], ring: u64, sequence: u64) -> Option<Header> {
        if Header::read(bytes).is_some() {
            return None;
        }
        let mut mended = *bytes;
        mended[..4].copy_from_slice(&MAGIC.to_le_bytes());
        mended[16..24].copy_from_slice(&sequence.to_le_bytes());
        mended[24..32].copy_from_slice(&ring.to_le_bytes());
        if mended == *bytes {
            return Header::fields(&mut Reader(&bytes[8..]));
        }
        Header::read(&mended)
    }

    /// Whether a body is the one that the header was written for.
    pub(super) fn fits(&self, body: &[u8]) -> bool {
        body.len() as u64 == u64::from(self.length) && crc32fast::hash(body) == self.crc
    }

    /// Bytes of the whole frame.
    pub(super) fn frame_bytes(&self) -> u64 {
        frame_bytes(usize::try_from(self.length).unwrap_or(usize::MAX - HEADER))
    }
}

/// Finds the headers of all frames of ring `id` with a sequence of at least `from`, in the order
/// of their places. `None` as id takes the frames of any ring. Blocks for whose error `lost` has `true` hold none.
pub(super) fn scan(
    file: &dyn StorageBackend,
    id: Option<u64>,
    from: u64,
    mut lost: impl FnMut(u64, &io::Error) -> bool,
) -> io::Result<Vec<(u64, Header)>> {
    let length = file.len()? / BLOCK * BLOCK;
    let mut found = Vec::new();
    let mut buffer = vec![0; usize::try_from(SCAN_BYTES.min(length)).unwrap_or(0)];
    let mut at = 0;
    while at < length {
        let count = usize::try_from((length - at).min(SCAN_BYTES)).unwrap_or(0);
        read_blocks(file, at, &mut buffer[..count], &mut lost)?;
        for (index, bytes) in buffer[..count].chunks(BLOCK_BYTES).enumerate() {
            let header = Header::read(bytes)
                .filter(|header| id.is_none_or(|id| header.ring == id) && header.sequence >= from);
            if let Some(header) = header {
                found.push((at + (index * BLOCK_BYTES) as u64, header));
            }
        }
        at += count as u64;
    }
    Ok(found)
}

/// Reads blocks of a file. Those for whose error `lost` has `true` are zeros.
pub(super) fn read_blocks(
    file: &dyn StorageBackend,
    at: u64,
    out: &mut [u8],
    lost: &mut impl FnMut(u64, &io::Error) -> bool,
) -> io::Result<()> {
    if file.read(at, out).is_ok() {
        return Ok(());
    }
    for (from, block) in (at..).step_by(BLOCK_BYTES).zip(out.chunks_mut(BLOCK_BYTES)) {
        if let Err(error) = file.read(from, block) {
            if !lost(from, &error) {
                return Err(error);
            }
            block.fill(0);
        }
    }
    Ok(())
}

/// Whether anything is in the file that its making did not put there.
pub(super) fn is_written(file: &dyn StorageBackend) -> bool {
    let Ok(length) = file.len() else {
        return true;
    };
    let mut buffer = vec![0; usize::try_from(SCAN_BYTES.min(length)).unwrap_or(0)];
    let mut at = 0;
    while at < length {
        let count = usize::try_from((length - at).min(SCAN_BYTES)).unwrap_or(0);
        let read = file.read(at, &mut buffer[..count]);
        if read.is_err() || buffer[..count].iter().any(|byte| *byte != 0) {
            return true;
        }
        at += count as u64;
    }
    false
}

/// Where the next frame of `need` bytes goes in a ring of `capacity` bytes in which frames lie from
/// `tail` to `head`; `None` tail: there are none. `None` where there is no room.
pub(super) fn place(capacity: u64, tail: Option<u64>, head: u64, need: u64) -> Option<u64> {
    if need > capacity {
        return None;
    }
    match tail {
        None if head + need <= capacity => Some(head),
        None => Some(0),
        Some(tail) if head > tail => {
            if head + need <= capacity {
                Some(head)
            } else {
                (need <= tail).then_some(0)
            }
        }
        // Head and tail in one place: the ring is full.
        Some(tail) => (head + need <= tail).then_some(head),
    }
}

/// Bytes between tail and head, with what is left unused at the end of the file.
pub(super) fn used(capacity: u64, tail: Option<u64>, head: u64) -> u64 {
    match tail {
        None => 0,
        Some(tail) if head > tail => head - tail,
        Some(tail) => capacity - tail + head,
    }
}

/// Fills a new ring with zeros, so that writing a frame never changes the file's blocks or length.
pub(super) fn fill(file: &dyn StorageBackend, length: u64) -> io::Result<()> {
    let length = length.next_multiple_of(BLOCK);
    let zeros = vec![0; usize::try_from(SCAN_BYTES.min(length)).unwrap_or(0)];
    file.set_len(length)?;
    let mut at = 0;
    while at < length {
        let count = usize::try_from((length - at).min(SCAN_BYTES)).unwrap_or(0);
        file.write(at, &zeros[..count])?;
        at += count as u64;
    }
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_found_until_head_meets_tail() {
        let blocks = |count: u64| count * BLOCK;
        let ten = blocks(10);
        // (tail, head, need) and where it goes, in blocks.
        for (tail, head, need, expected) in [
            (None, 0, 10, Some(0)),
            (None, 0, 11, None),
            (None, 7, 3, Some(7)),
            (None, 7, 4, Some(0)),
            (Some(2), 7, 3, Some(7)),
            (Some(2), 8, 2, Some(8)),
            (Some(2), 9, 2, Some(0)),
            (Some(1), 9, 2, None),
            (Some(5), 2, 3, Some(2)),
            (Some(5), 2, 4, None),
            (Some(5), 5, 1, None),
        ] {
            let found = place(ten, tail.map(blocks), blocks(head), blocks(need));
            assert_eq!(found, expected.map(blocks), "{tail:?} {head} {need}");
        }
    }

    #[test]
    fn a_header_with_any_flipped_bit_is_none() {
        let mut frame = vec![0; HEADER];
        frame.extend_from_slice(b"body");
        let mut sum = Sum::default();
        sum.go_on(&frame[..=HEADER]);
        finish(&mut frame, sum, 7, 9, 3);
        assert_eq!(frame.len(), 4096);
        let header = Header::read(&frame).unwrap();
        assert_eq!((header.sequence, header.ring, header.run, header.length), (7, 9, 3, 4));
        assert_eq!(header.ahead, 0);
        set_ahead(&mut frame, 200);
        let ahead = Header::read(&frame).unwrap();
        assert_eq!(ahead, Header { ahead: 200, ..header });
        assert!(header.fits(b"body") && !header.fits(b"bodx") && !header.fits(b"bod"));
        assert_eq!(Header::damaged(frame.first_chunk().unwrap(), 9, 7), None);
        for bit in 0..HEADER * 8 {
            let mut bad = frame.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::read(&bad), None, "bit {bit}");
            let bad = bad.first_chunk().unwrap();
            assert!(Header::damaged(bad, 9, 7).is_some(), "bit {bit}");
            assert_eq!(Header::damaged(bad, 9, 8), None, "bit {bit}");
        }
    }
}
