//! Files that are whole after any crash: the configuration, and the last one that worked.
//!
//! A text is written beside its place, synced, renamed over it, and the folder synced: whoever
//! reads sees the old text or the new one. The first step is apart from the others, so that a
//! place that cannot be written is found before anything else is changed.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidegate_config::SourceFile;

/// A text that is written and synced, and not yet in its place. Removed when it is dropped.
#[derive(Debug)]
pub struct Staged {
    beside: PathBuf,
    place: PathBuf,
}

impl Staged {
    /// Writes `text` beside `place`, with the owner and mode of what is there, or `mode`. Blocks
    /// on the disk.
    pub fn write(place: &Path, text: &[u8], mode: u32) -> io::Result<Self> {
        // A link keeps its place; what it points to is replaced.
        let place = match fs::canonicalize(place) {
            Ok(place) => place,
            Err(error) if error.kind() == io::ErrorKind::NotFound => place.to_owned(),
            Err(error) => return Err(error),
        };
        let name = place.file_name().ok_or_else(|| io::Error::other("not the path of a file"))?;
        // Hidden, so that a folder of configuration files does not take it for one.
        let beside = place.with_file_name(format!(".{}.new", name.to_string_lossy()));
        let staged = Self { beside, place };
        let mut file = File::create(&staged.beside)?;
        match fs::metadata(&staged.place) {
            Ok(there) => {
                file.set_permissions(there.permissions())?;
                let ours = file.metadata()?;
                if (ours.uid(), ours.gid()) != (there.uid(), there.gid()) {
                    give(&file, there.uid(), there.gid())?;
                }
            }
            Err(_) => file.set_permissions(Permissions::from_mode(mode))?,
        }
        file.write_all(text)?;
        file.sync_all()?;
        Ok(staged)
    }

    /// Puts the text in its place. Blocks on the disk.
    pub fn publish(self) -> io::Result<()> {
        fs::rename(&self.beside, &self.place)?;
        let folder = self.place.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// Gives a file to another owner where we may; where not, who may write the folder owns it.
fn give(file: &File, user: u32, group: u32) -> io::Result<()> {
    match std::os::unix::fs::fchown(file, Some(user), Some(group)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        given => given,
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        match fs::remove_file(&self.beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.beside.display(), %error, "it stays behind");
            }
            _ => {}
        }
    }
}

/// The texts of a configuration that worked, in the store's folder.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct LastGood {
    /// What the gateway was started with: another configuration's last good one is none for us.
    path: PathBuf,
    /// The files, as they were: references stay references, so that no secret is stored.
    files: Vec<KeptFile>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct KeptFile {
    name: String,
    text: String,
}

/// Where the last configuration that worked is kept.
fn last_good_path(store: &Path) -> PathBuf {
    store.join("config/last-good.json")
}

/// Keeps the texts of a configuration that works, which is that at `path`; writes nothing where
/// they are kept already. Blocks on the disk.
pub fn keep_last_good(store: &Path, path: &Path, sources: &[SourceFile]) -> io::Result<()> {
    let files = sources.iter().map(|s| KeptFile { name: s.name.clone(), text: s.text.clone() });
    let kept = LastGood { path: std::path::absolute(path)?, files: files.collect() };
    let text = serde_json::to_string(&kept)?;
    let path = last_good_path(store);
    if fs::read(&path).is_ok_and(|kept| kept == text.as_bytes()) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    Staged::write(&path, text.as_bytes(), 0o600)?.publish()
}

/// The last configuration at `path` that worked; none where there is none, or none that can be
/// read.
pub fn last_good(store: &Path, path: &Path) -> Option<Vec<SourceFile>> {
    let text = fs::read(last_good_path(store)).ok()?;
    let kept: LastGood = match serde_json::from_slice(&text) {
        Ok(kept) => kept,
        Err(error) => {
            tracing::error!(%error, "the last good configuration cannot be read");
            return None;
        }
    };
    if std::path::absolute(path).ok()? != kept.path {
        return None;
    }
    let files = kept.files.into_iter().map(|f| SourceFile { name: f.name, text: f.text });
    Some(files.collect())
}

/// A name for texts, short enough to be read aloud: equal texts have equal names. FNV-1a, 64 bit;
/// it tells versions of one plant's configuration apart and protects nothing.
pub fn revision(sources: &[SourceFile]) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for source in sources {
        for byte in source.text.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("tidegate-keep-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn a_staged_text_is_seen_only_when_it_is_published() {
        let folder = Folder::new("staged");
        let place = folder.0.join("tidegate.yaml");
        Staged::write(&place, b"one", 0o640).unwrap().publish().unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"one");
        assert_eq!(fs::metadata(&place).unwrap().mode() & 0o777, 0o640);
        fs::set_permissions(&place, Permissions::from_mode(0o604)).unwrap();

        drop(Staged::write(&place, b"dropped", 0o640).unwrap());
        assert_eq!(fs::read(&place).unwrap(), b"one");
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "nothing is left beside it");

        // Through a link, as where a folder is swapped as a whole: the link stays.
        let link = folder.0.join("link.yaml");
        std::os::unix::fs::symlink(&place, &link).unwrap();
        Staged::write(&link, b"two", 0o640).unwrap().publish().unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"two");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&place).unwrap().mode() & 0o777, 0o604, "the mode stays");
        assert!(Staged::write(&folder.0.join("no/such/folder.yaml"), b"", 0o600).is_err());
    }

    #[test]
    fn the_last_good_configuration_comes_back_as_it_was_and_is_not_written_twice() {
        let folder = Folder::new("good");
        let (ours, other) = (Path::new("/etc/a"), Path::new("/etc/b"));
        assert_eq!(last_good(&folder.0, ours), None);
        let file = |name: &str, text: &str| SourceFile { name: name.into(), text: text.into() };
        let sources = vec![file("a.yaml", "version: 1\n"), file("b.yaml", "# \u{e4}\n")];
        keep_last_good(&folder.0, ours, &sources).unwrap();
        assert_eq!(last_good(&folder.0, ours), Some(sources.clone()));
        assert_eq!(last_good(&folder.0, other), None, "another configuration's");
        let inode = || fs::metadata(last_good_path(&folder.0)).unwrap().ino();
        let (mode, before) = (fs::metadata(last_good_path(&folder.0)).unwrap().mode(), inode());
        assert_eq!(mode & 0o777, 0o600);
        keep_last_good(&folder.0, ours, &sources).unwrap();
        assert_eq!(inode(), before);
        keep_last_good(&folder.0, ours, &sources[..1]).unwrap();
        assert_eq!(last_good(&folder.0, ours).unwrap(), sources[..1]);
        fs::remove_file(last_good_path(&folder.0)).unwrap();
        Staged::write(&last_good_path(&folder.0), b"{half", 0o600).unwrap().publish().unwrap();
        assert_eq!(last_good(&folder.0, ours), None);
    }

    #[test]
    fn revisions_follow_the_text_and_not_the_name() {
        let file = |name: &str, text: &str| SourceFile { name: name.into(), text: text.into() };
        // FNV-1a of one byte 0, as in the reference's table of test vectors.
        assert_eq!(revision(&[file("a", "")]), "af63bd4c8601b7df");
        assert_eq!(revision(&[file("a", "x")]), revision(&[file("b", "x")]));
        assert_ne!(revision(&[file("a", "xy")]), revision(&[file("a", "x"), file("a", "y")]));
    }
}
