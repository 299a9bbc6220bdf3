//! Damaged files that were moved aside for a person to look at: their names, and what they may keep of the disk.
//!
//! They are no data that anybody waits for: at most [`FILES_MAX`] of them and a quarter of the store's bound
//! are kept, the oldest goes first, and on a full disk they go before anything that the store holds. The
//! newest ring and the newest tree stay until then, however large they are. Knows no file's meaning.

use std::collections::VecDeque;
use std::io;

use super::disk::Disk;
use super::files::{RING, TREE};

/// What stands between the name that a file had and its number.
const MARK: &str = ".quarantine-";
/// Files that are kept.
const FILES_MAX: usize = 4;
/// Of the bytes of the store they may have one part in so many.
const SHARE: u64 = 4;

/// The name that a broken file gets: with a higher number than any other one.
pub(super) fn name_for(disk: &dyn Disk, file: &str) -> io::Result<String> {
    let newest = kept(disk)?.last().map_or(0, |(number, _)| *number);
    Ok(format!("{file}{MARK}{}", newest.saturating_add(1)))
}

/// The files that were moved aside, the oldest first: number and name.
fn kept(disk: &dyn Disk) -> io::Result<Vec<(u32, String)>> {
    let number = |name: &str| {
        let (file, number) = name.split_once(MARK)?;
        [RING, TREE].contains(&file).then(|| number.parse::<u32>().ok())?
    };
    let names = disk.names()?.into_iter();
    let mut found: Vec<_> = names.filter_map(|name| Some((number(&name)?, name))).collect();
    found.sort();
    Ok(found)
}

/// The names of the files that were moved aside, the oldest first; none where that cannot be told.
pub(super) fn names(disk: &dyn Disk) -> VecDeque<String> {
    kept(disk).unwrap_or_default().into_iter().map(|(_, name)| name).collect()
}

/// Lets the oldest go until the bounds of a store of `max_bytes` are held; gives the bytes that stay. One that
/// cannot be removed stays, and is told.
pub(super) fn bound(disk: &dyn Disk, max_bytes: u64) -> u64 {
    let names: Vec<String> = match kept(disk) {
        Ok(found) => found.into_iter().map(|(_, name)| name).collect(),
        Err(error) => {
            tracing::warn!(%error, "what is kept aside cannot be listed");
            return 0;
        }
    };
    let length = |name: &String| disk.length(name).ok().flatten().unwrap_or(0);
    let is_newest = |name: &String| {
        let same = |other: &&String| {
            other.split_once(MARK).map(|o| o.0) == name.split_once(MARK).map(|n| n.0)
        };
        names.iter().rfind(same) == Some(name)
    };
    let (mut count, mut left) = (names.len(), names.iter().map(length).sum::<u64>());
    for name in names.iter().filter(|name| !is_newest(name)) {
        if count <= FILES_MAX && left <= max_bytes / SHARE {
            break;
        }
        let bytes = length(name);
        match disk.remove(name) {
            Ok(()) => {
                tracing::warn!(
                    name,
                    bytes,
                    "a damaged file that was kept aside is removed: newer ones are there"
                );
                (left, count) = (left.saturating_sub(bytes), count - 1);
            }
            Err(error) => {
                tracing::warn!(name, %error, "a damaged file that is kept aside cannot be removed");
            }
        }
    }
    left
}

/// Lets the oldest go that can, because the disk is full; gives its bytes, or `None` where there is none.
pub(super) fn give_way(disk: &dyn Disk) -> Option<u64> {
    kept(disk).ok()?.into_iter().find_map(|(_, name)| {
        let bytes = disk.length(&name).ok()??;
        disk.remove(&name).ok()?;
        tracing::warn!(
            name,
            bytes,
            "the disk is full: a damaged file that was kept aside is removed"
        );
        Some(bytes)
    })
}
