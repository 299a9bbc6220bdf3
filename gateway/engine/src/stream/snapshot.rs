//! What is to be changed of the states that the store keeps for a stream.
//!
//! Promise: changes are said until they are on their way into the store, the last one of each key;
//! a key is that of one piece at a time. It knows no pane and no store.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::store::StateChange;

/// Changes of stored states that are not yet on their way.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    next: u64,
    changes: BTreeMap<u64, Option<Bytes>>,
}

impl Snapshots {
    /// A state in place of the one under `key`, or under a new key, which is given back.
    pub(super) fn put(&mut self, key: Option<u64>, bytes: Bytes) -> u64 {
        let key = key.unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        self.changes.insert(key, Some(bytes));
        key
    }

    pub(super) fn remove(&mut self, key: u64) {
        self.changes.insert(key, None);
    }

    /// There is a state under `key` in the store.
    pub(super) fn loaded(&mut self, key: u64) {
        self.next = self.next.max(key.saturating_add(1));
    }

    pub(super) fn changes(&self) -> Vec<StateChange> {
        let change =
            |(key, bytes): (&u64, &Option<Bytes>)| StateChange { key: *key, bytes: bytes.clone() };
        self.changes.iter().map(change).collect()
    }

    pub(super) fn submitted(&mut self) {
        self.changes.clear();
    }
}
