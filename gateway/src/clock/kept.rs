//! The steps of the clock that still count, in a file beside the store: a restart must not make records older.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Ahead;
use crate::keep::Staged;

fn path(store: &Path) -> PathBuf {
    store.join("config/clock-ahead.json")
}

/// The steps that were kept. Where the file cannot be read there is none: ages are those that the clock says.
pub fn read(store: &Path) -> Vec<Ahead> {
    let Ok(text) = fs::read(path(store)) else {
        return Vec::new();
    };
    let kept = serde_json::from_slice(&text);
    kept.unwrap_or_else(|error| {
        tracing::error!(%error, "steps of the clock that were kept cannot be read");
        Vec::new()
    })
}

/// Keeps steps, or that there are none. Blocks on the disk.
pub fn write(store: &Path, ahead: &[Ahead]) -> io::Result<()> {
    let path = path(store);
    if ahead.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    Staged::write(&path, serde_json::to_string(ahead)?.as_bytes(), 0o600)?.publish()
}
