//! Notices that the configuration's file, or a file of its folder, was written anew.
//!
//! Looks once a second at what the files are (inode, length, time of change) through all links, so
//! that an editor's rename, a write in place and the swap of a folder behind a link (as a mounted
//! ConfigMap does it) are all seen, on any file system. A change counts when it has stood still
//! from one look to the next: a half-written file is left in peace. Reads no content.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the files are; none where they cannot be looked at, which is a state as any other.
type Stamp = Option<Vec<(PathBuf, u64, u64, i64, i64)>>;

/// Looks at the files of one configuration.
pub struct FileWatch {
    path: PathBuf,
    /// What was told last.
    told: Stamp,
    /// What was seen last.
    seen: Stamp,
}

impl FileWatch {
    /// Begins with the files as they are. Blocks for a few system calls.
    pub fn new(path: &Path) -> Self {
        let seen = stamp(path);
        Self { path: path.to_owned(), told: seen.clone(), seen }
    }

    /// Resolves when the files are others than before. Cancel safe.
    pub async fn changed(&mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if self.look() {
                return;
            }
        }
    }

    /// Takes the files as they are for known: they were written by ourselves.
    pub fn settle(&mut self) {
        self.seen = stamp(&self.path);
        self.told = self.seen.clone();
    }

    fn look(&mut self) -> bool {
        let now = stamp(&self.path);
        let still = now == self.seen;
        self.seen = now;
        if still && self.seen != self.told {
            self.told = self.seen.clone();
            return true;
        }
        false
    }
}

fn stamp(path: &Path) -> Stamp {
    let of = |path: PathBuf| {
        let file = fs::metadata(&path).ok()?;
        Some((path, file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
    };
    if !fs::metadata(path).ok()?.is_dir() {
        return Some(vec![of(path.to_owned())?]);
    }
    let entries = fs::read_dir(path).ok()?.filter_map(|entry| of(entry.ok()?.path()));
    let mut files: Vec<_> = entries.collect();
    files.sort();
    Some(files)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::keep::Staged;

    fn write(path: &Path, text: &str) {
        Staged::write(path, text.as_bytes(), 0o600).unwrap().publish().unwrap();
    }

    #[test]
    fn a_change_is_told_once_and_only_when_it_stands_still() {
        let folder = std::env::temp_dir().join(format!("tidegate-watch-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("tidegate.yaml");
        write(&path, "a");
        let mut watch = FileWatch::new(&path);
        assert!(!watch.look());
        write(&path, "ab");
        assert!(!watch.look(), "it may not be whole yet");
        write(&path, "abc");
        assert!(!watch.look(), "it moved again");
        assert!(watch.look());
        assert!(!watch.look(), "told already");
        write(&path, "ours");
        watch.settle();
        assert!(!watch.look());
        assert!(!watch.look());
        fs::remove_file(&path).unwrap();
        assert!(!watch.look());
        assert!(watch.look(), "that it is gone is a change");
        fs::remove_dir_all(&folder).unwrap();
    }

    /// A mounted ConfigMap: `tidegate.yaml` → `..data/tidegate.yaml`, `..data` → `..1`, and `..data`
    /// is renamed over when the content changes.
    #[test]
    fn the_swap_of_a_folder_behind_a_link_is_seen() {
        let folder = std::env::temp_dir().join(format!("tidegate-map-{}", std::process::id()));
        for version in ["..1", "..2"] {
            fs::create_dir_all(folder.join(version)).unwrap();
            write(&folder.join(version).join("tidegate.yaml"), version);
        }
        symlink("..1", folder.join("..data")).unwrap();
        symlink("..data/tidegate.yaml", folder.join("tidegate.yaml")).unwrap();
        let mut file = FileWatch::new(&folder.join("tidegate.yaml"));
        let mut whole = FileWatch::new(&folder);
        symlink("..2", folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
        for watch in [&mut file, &mut whole] {
            assert!(!watch.look());
            assert!(watch.look());
            assert!(!watch.look());
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
