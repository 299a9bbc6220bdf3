//! The gateway under a clock that is off: libfaketime between the binary and the system. The
//! monotonic clock stays what it is.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::gateway::Gateway;
use super::{Scratch, command, tidegate};

/// Microseconds since 1970 UTC by a clock that is right.
pub(crate) fn micros_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_micros()).expect("a time")
}

/// Seconds by which a clock is off that the power has just come to: 100 s after 1970.
pub(crate) fn in_1970() -> i64 {
    100 - micros_now() / 1_000_000
}

/// The library of Debian's package `faketime`.
fn library() -> PathBuf {
    let lib = Path::new("/usr/lib");
    let folders = std::fs::read_dir(lib).expect("/usr/lib").filter_map(Result::ok);
    let found = folders.map(|entry| entry.path().join("faketime/libfaketime.so.1"));
    found
        .chain([lib.join("faketime/libfaketime.so.1")])
        .find(|path| path.is_file())
        .expect("libfaketime is not installed: `make setup` installs it")
}

/// Puts a clock off, in seconds: whole at any instant, because the library reads the file at each call.
pub(crate) fn set(scratch: &Scratch, off: i64) {
    let new = scratch.file("clock.new", format!("{off:+}\n"));
    std::fs::rename(new, scratch.join("clock")).expect("a file of the test");
}

/// Starts `tidegate run` with a configuration under a clock that is off, in seconds.
pub(crate) fn start(scratch: &Scratch, config: &str, off: i64) -> Gateway {
    set(scratch, off);
    let path = scratch.file("tidegate.yaml", config);
    let (library, file) = (library(), scratch.join("clock"));
    let environment = [
        ("LD_PRELOAD", library.to_str().expect("a path")),
        ("FAKETIME_TIMESTAMP_FILE", file.to_str().expect("a path")),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("DONT_FAKE_MONOTONIC", "1"),
    ];
    Gateway::start_by(scratch, command(tidegate()), &path, &environment)
}
