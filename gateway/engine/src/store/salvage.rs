//! Carries what can be read of a broken file over into a new one.
//!
//! From the front until a page cannot be read, then from the back until the same: what lies between
//! is lost, and counted as gaps when rows are read. The broken file is kept under another name.

use std::ops::Bound;
use std::path::PathBuf;

use redb::Database;

use super::damage::{Damage, Trouble, contained, drop_contained};
use super::format::unseal;
use super::recovery::{Files, LIVE, NEW, quarantine_name, records, write};

/// Bytes of records that are carried over in one transaction.
const SALVAGE_BYTES: usize = 1 << 20;

/// Carries the readable records of a broken file over into a new one, which takes its place; the
/// broken one is kept. Returns where.
pub(super) fn salvage(
    files: &Files,
    db: Database,
    damage: &mut Damage,
) -> Result<(Database, PathBuf), Trouble> {
    let disk = &*files.disk;
    let aside = quarantine_name(disk).map_err(|error| Trouble::Io(error.to_string()))?;
    let target = files.open(NEW, true)?;
    write(&target, |_| Ok(()))?;
    let mut copied: u64 = 0;
    let mut front: Option<Vec<u8>> = None;
    let mut back: Option<Vec<u8>> = None;
    for backwards in [false, true] {
        loop {
            let mut found = Vec::new();
            let outcome =
                contained(|| gather(&db, front.as_deref(), back.as_deref(), backwards, &mut found));
            if let Some((last, _)) = found.last() {
                *(if backwards { &mut back } else { &mut front }) = Some(last.clone());
            }
            copied += carry_over(&target, &found, damage)?;
            if !matches!(outcome, Ok(true)) {
                break;
            }
        }
    }
    contained(|| target.close().map_err(Trouble::from))?;
    if !drop_contained(db) {
        tracing::debug!("the broken file did not close cleanly");
    }
    disk.publish(NEW, LIVE, Some(&aside)).map_err(|e| Trouble::from(redb::Error::Io(e)))?;
    let path = disk.path(&aside);
    tracing::error!(copied, kept = %path.display(), "carried over what was readable");
    Ok((files.open_live()?, path))
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Collects records between two keys, from either end; `true` when there may be more. What was
/// found before an error stays in `found`.
fn gather(
    db: &Database,
    after: Option<&[u8]>,
    before: Option<&[u8]>,
    backwards: bool,
    found: &mut Pairs,
) -> Result<bool, Trouble> {
    let records = records(db)?;
    let low = after.map_or(Bound::Unbounded, Bound::Excluded);
    let high = before.map_or(Bound::Unbounded, Bound::Excluded);
    let mut range = records.range::<&[u8]>((low, high))?;
    let mut bytes = 0;
    while let Some(entry) = if backwards { range.next_back() } else { range.next() } {
        let (key, value) = entry?;
        let last =
            found.last().map_or(if backwards { before } else { after }, |(last, _)| Some(last));
        let moves_on =
            last.is_none_or(|last| (key.value() > last) != backwards && key.value() != last);
        if !moves_on {
            return Err(Trouble::Damaged("keys out of order".to_owned()));
        }
        bytes += key.value().len() + value.value().len();
        found.push((key.value().to_vec(), value.value().to_vec()));
        if bytes >= SALVAGE_BYTES {
            return Ok(true);
        }
    }
    Ok(false)
}

fn carry_over(target: &Database, found: &Pairs, damage: &mut Damage) -> Result<u64, Trouble> {
    let mut copied = 0;
    if !found.is_empty() {
        write(target, |records| {
            for (key, value) in found {
                if unseal(key, value).is_some() {
                    records.insert(key.as_slice(), value.as_slice())?;
                    copied += 1;
                } else {
                    damage.bad(key, value);
                }
            }
            Ok(())
        })?;
    }
    Ok(copied)
}
