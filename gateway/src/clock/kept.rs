//! The step of the clock that still counts, in a file beside the store: a restart must not make records older.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Ahead;
use crate::keep::Staged;

fn path(store: &Path) -> PathBuf {
    store.join("config/clock-ahead.json")
}

/// The step that was kept. Where the file cannot be read there is none: ages are those that the clock says.
pub fn read(store: &Path) -> Option<Ahead> {
    let text = fs::read(path(store)).ok()?;
    let kept = serde_json::from_slice(&text);
    kept.inspect_err(
        |error| tracing::error!(%error, "a step of the clock that was kept cannot be read"),
    )
    .ok()
}

/// Keeps a step, or that there is none. Blocks on the disk.
pub fn write(store: &Path, ahead: Option<Ahead>) -> io::Result<()> {
    let path = path(store);
    let Some(ahead) = ahead else {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    Staged::write(&path, serde_json::to_string(&ahead)?.as_bytes(), 0o600)?.publish()
}
