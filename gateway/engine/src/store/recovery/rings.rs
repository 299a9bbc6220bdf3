//! The ring of a store that is being opened: the one that was written, or a new one in its place.
//!
//! What lies there instead is moved aside, never written over. A new ring is written with zeros under
//! another name, so that commits only ever write blocks that exist. Knows no row.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use redb::StorageBackend;

use super::super::aside;
use super::super::border::StoreError;
use super::super::disk::{Counted, Disk};
use super::super::files::{RESERVE, RING, RING_NEW, open_ring};
use super::super::identity::{self, IDENTITY, Judgement};
use super::super::record::Meta;
use super::super::ring::{self, BLOCK};
use super::super::unread;
use super::Opening;

/// A ring of this length is made for the smallest bound of a store.
const RING_BYTES_SMALL: u64 = 512 << 10;
/// The smallest ring.
const RING_BYTES_MIN: u64 = 64 << 10;
/// Bytes that are kept back for a full disk, at most.
const RESERVE_BYTES: u64 = 1 << 20;

/// A number that no other ring has.
pub(super) fn new_ring_id() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A ring, its number, and frames in it by their places.
pub(super) type Found = (Arc<dyn StorageBackend>, u64, Vec<(u64, ring::Header)>);

impl Opening<'_> {
    /// The ring that is there, if one is.
    pub(super) fn ring(&self) -> Result<Option<Arc<dyn StorageBackend>>, StoreError> {
        let length = self.disk.length(RING).map_err(|error| self.error(RING, error))?;
        if length.is_none_or(|length| length < BLOCK) {
            return Ok(None);
        }
        open_ring(&**self.disk, &self.traffic).map(Some).map_err(|error| self.error(RING, error))
    }

    pub(super) fn make_ring(
        &self,
        aside: Option<&str>,
    ) -> Result<Arc<dyn StorageBackend>, StoreError> {
        let disk = &**self.disk;
        let made = disk.open(RING_NEW, true).and_then(|inner| {
            let traffic = Arc::clone(&self.traffic);
            let file = Counted { inner, traffic, is_tree: false };
            // On a small disk, or in a small store, the ring takes a quarter of what there is.
            let bound = (self.options.max_bytes / 4).max(RING_BYTES_SMALL);
            let most = (disk.room()? / 4).min(bound).min(self.options.ring_bytes);
            ring::fill(&file, most.max(RING_BYTES_MIN))?;
            drop(file);
            disk.publish(RING_NEW, RING, aside)
        });
        made.map_err(|error| self.error(RING, error))?;
        self.made_ring.set(true);
        open_ring(disk, &self.traffic).map_err(|error| self.error(RING, error))
    }

    /// The ring that the checkpoint speaks of, its number, and the frames in it that are still needed.
    /// Where there is none a new one takes its place, and what lies there instead is moved aside.
    pub(super) fn ring_of(&mut self, meta: &Meta) -> Result<Found, StoreError> {
        let known = self.disk.length(RING).map_err(|error| self.error(RING, error))?;
        if let Some(ring) = self.ring()? {
            let found = self.scan(&*ring, Some(meta.ring), meta.tail)?;
            // Frames that are let go of may be gone; a ring never changes its length.
            let is_needed = meta.tail <= meta.commit || known != Some(meta.ring_length);
            if !found.is_empty() || !is_needed {
                return Ok((ring, meta.ring, found));
            }
        }
        let aside = known.map(|_| self.ring_aside()).transpose()?;
        Ok((self.make_ring(aside.as_deref())?, new_ring_id(), Vec::new()))
    }

    /// The frames in a ring. Blocks that are not waited for hold none; they are written over, so that the device
    /// may put others in their place.
    pub(super) fn scan(
        &mut self,
        ring: &dyn StorageBackend,
        id: Option<u64>,
        from: u64,
    ) -> Result<Vec<(u64, ring::Header)>, StoreError> {
        let mut lost = Vec::new();
        let impatient = self.options.impatient;
        let found = ring::scan(ring, id, from, |at, error| {
            let gives_up = impatient && unread::is_of_device(error);
            lost.extend(gives_up.then_some(at));
            gives_up
        });
        let found = found.map_err(|error| self.error(RING, error))?;
        if !lost.is_empty() {
            let mut block = vec![0; usize::try_from(BLOCK).unwrap_or(4096)];
            // One that answers now says that the device was away for a moment: all of it is read again.
            if lost.iter().any(|at| ring.read(*at, &mut block).is_ok()) {
                let (path, reason) = (self.disk.path(RING), "a part of it was away".to_owned());
                return Err(StoreError::Unanswered { path, reason });
            }
            block.fill(0);
            let mended = lost.iter().try_for_each(|at| ring.write(*at, &block));
            let mended = mended.and_then(|()| ring.sync_data());
            tracing::error!(
                blocks = lost.len(),
                ?mended,
                "parts of the store's ring cannot be read"
            );
            self.unread_blocks += lost.len() as u64;
        }
        Ok(found)
    }

    /// The name that what lies in the place of the ring gets.
    pub(super) fn ring_aside(&mut self) -> Result<String, StoreError> {
        let name = aside::name_for(&**self.disk, RING);
        let name = name.map_err(|error| self.error(RING, error))?;
        tracing::error!(name, "the store's ring is not the one that was written: moved aside");
        self.recovery.quarantined = Some(self.disk.path(&name));
        Ok(name)
    }

    /// Whether the ring is the one that was written, and by this start of the machine.
    pub(super) fn judge(&self) -> Result<Judgement, StoreError> {
        let noted = match self.disk.read(IDENTITY) {
            Err(error) if self.options.impatient && unread::is_of_device(&error) => None,
            noted => noted.map_err(|error| self.error(IDENTITY, error))?,
        };
        let birth = self.disk.birth(RING).map_err(|error| self.error(RING, error))?;
        let made = self.made_ring.get();
        let boot = self.disk.boot();
        Ok(identity::judge(noted.as_deref(), birth.unwrap_or_default(), boot, made))
    }
}

/// Keeps bytes back that can be given up when the disk is full.
pub(in crate::store) fn keep_reserve(disk: &dyn Disk, ring_length: u64) {
    let bytes = usize::try_from(RESERVE_BYTES.min(ring_length / 4)).unwrap_or(0);
    if let Ok(None) = disk.length(RESERVE)
        && disk.room().is_ok_and(|room| room / 4 > bytes as u64)
        && let Err(error) = disk.write(RESERVE, &vec![0; bytes])
    {
        tracing::warn!(%error, "no reserve for a full disk can be kept");
    }
}
