//! Checks of what only one part of a gateway can have: a file that is written, a client id at a
//! broker.

use std::collections::BTreeMap;
use std::path::{Component, Path as FilePath, PathBuf};

use super::{Checker, path_of};
use crate::code::Code;
use crate::path::Path;
use crate::{DeviceDriver, SinkDriver};

/// A part that claims something, and the field that says so.
struct Claim {
    part: String,
    path: Path,
}

impl Checker<'_> {
    pub(super) fn shared(&mut self) {
        let mut files = Vec::new();
        let mut clients = Vec::new();
        for (index, device) in self.document.devices.iter().enumerate() {
            let DeviceDriver::Mqtt(feed) = &device.driver else {
                continue;
            };
            let path = path_of("devices").then(index).join("driver.mqtt.client_id");
            let part = format!("the device `{}`", device.name);
            let id = self.client_id(feed.client_id.as_ref(), device.name.as_str());
            clients.push((format!("{} {id}", feed.url), Claim { part, path }));
        }
        for (index, sink) in self.document.sinks.iter().enumerate() {
            let path = path_of("sinks").then(index).then("driver");
            let part = format!("the sink `{}`", sink.name);
            match &sink.driver {
                SinkDriver::Mqtt(mqtt) => {
                    let path = path.join("mqtt.client_id");
                    let id = self.client_id(mqtt.client_id.as_ref(), sink.name.as_str());
                    clients.push((format!("{} {id}", mqtt.url), Claim { part, path }));
                }
                SinkDriver::File(file) => {
                    let path = path.join("file.path");
                    let written = plain(&file.path);
                    if is_the_stores(&written, &plain(&self.document.store.path)) {
                        let message = "the store keeps a file of its own under this name";
                        let hint = "choose another name or another folder";
                        self.say(Code::Shared, &path, message.to_owned(), Some(hint));
                    }
                    files.push((written.display().to_string(), Claim { part, path }));
                }
                SinkDriver::Stdout(_) => {}
            }
        }
        self.once(files, "writes this file too", "give each sink its own file");
        let hint = "give each connection its own `client_id`";
        self.once(clients, "has the same client id at this broker", hint);
    }

    /// The client id that a connection uses; the drivers make the same default.
    fn client_id(&self, written: Option<&String>, name: &str) -> String {
        let default = || format!("tidegate-{}-{name}", self.document.gateway.name);
        written.cloned().unwrap_or_else(default)
    }

    fn once(&mut self, claims: Vec<(String, Claim)>, does: &str, hint: &str) {
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        for (what, Claim { part, path }) in claims {
            match seen.get(&what) {
                Some(other) => {
                    let message = format!("{other} {does}");
                    self.say(Code::Shared, &path, message, Some(hint));
                }
                None => {
                    seen.insert(what, part);
                }
            }
        }
    }
}

/// A path without `.` and without doubled separators, so that equal files have equal names. Links
/// are not followed: a check touches no file.
fn plain(path: &str) -> PathBuf {
    FilePath::new(path).components().filter(|part| *part != Component::CurDir).collect()
}

/// Whether the store, or the control socket beside it, has a file of this name: `store.redb`,
/// `store.redb.quarantine-1`, `store.epoch.new`, … A sink would cut and append to it.
fn is_the_stores(file: &FilePath, store: &FilePath) -> bool {
    let name = file.file_name().unwrap_or_default().as_encoded_bytes();
    let taken = [&b"store."[..], b"control.sock", b"quarantine"];
    file.parent() == Some(store) && taken.iter().any(|prefix| name.starts_with(prefix))
}
