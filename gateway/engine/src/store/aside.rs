//! Damaged files that were moved aside for a person to look at: their names, and what they may keep of the disk.
//!
//! They are no data that anybody waits for: at most [`FILES_MAX`] of them and a quarter of the store's bound
//! are kept, the oldest goes first, and on a full disk they go before anything that the store holds. The
//! newest one stays until then, however large it is. Knows no file's meaning.

use std::io;

use super::disk::Disk;

/// What stands between the name that a file had and its number.
const MARK: &str = ".quarantine-";
/// Files that are kept.
const FILES_MAX: usize = 4;
/// Of the bytes of the store they may have one part in so many.
const SHARE: u64 = 4;

/// The name that a broken file gets: with a higher number than any other one.
pub(super) fn name_for(disk: &dyn Disk, file: &str) -> io::Result<String> {
    let newest = kept(disk)?.last().map_or(0, |(number, _)| *number);
    Ok(format!("{file}{MARK}{}", newest + 1))
}

/// The files that were moved aside, the oldest first: number and name.
fn kept(disk: &dyn Disk) -> io::Result<Vec<(u32, String)>> {
    let number = |name: &str| name.split_once(MARK)?.1.parse::<u32>().ok();
    let names = disk.names()?.into_iter();
    let mut found: Vec<_> = names.filter_map(|name| Some((number(&name)?, name))).collect();
    found.sort();
    Ok(found)
}

/// Lets the oldest go until the bounds of a store of `max_bytes` are held; gives the bytes that stay.
pub(super) fn bound(disk: &dyn Disk, max_bytes: u64) -> io::Result<u64> {
    let mut files = Vec::new();
    for (_, name) in kept(disk)? {
        files.push((disk.length(&name)?.unwrap_or(0), name));
    }
    let mut left: u64 = files.iter().map(|(bytes, _)| bytes).sum();
    let mut count = files.len();
    for (bytes, name) in files {
        if count <= 1 || (count <= FILES_MAX && left <= max_bytes / SHARE) {
            break;
        }
        disk.remove(&name)?;
        tracing::warn!(
            name,
            bytes,
            "a damaged file that was kept aside is removed: there are newer ones"
        );
        (left, count) = (left - bytes, count - 1);
    }
    Ok(left)
}

/// Lets the oldest go because the disk is full; gives its bytes, or `None` where there is none.
pub(super) fn give_way(disk: &dyn Disk) -> Option<u64> {
    let (_, name) = kept(disk).ok()?.into_iter().next()?;
    let bytes = disk.length(&name).ok()??;
    disk.remove(&name).ok()?;
    tracing::warn!(name, bytes, "the disk is full: a damaged file that was kept aside is removed");
    Some(bytes)
}
