//! The keys of rows, where each key has windows of its own.
//!
//! Promise: rows whose key columns read the same have the same number as long as somebody holds
//! it, whatever the column's type; nulls are equal to each other. Numbers of keys that nobody
//! holds are given again, so that what is remembered is bounded by what is held.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;

use super::StreamError;
use super::rows::Columns;

/// What a key costs beside its text, in bytes: its places in two tables.
const KEY_COST: usize = 96;

/// The number of a key.
pub(super) type Key = u32;

#[derive(Debug)]
struct Named {
    text: Arc<[u8]>,
    holders: usize,
    /// The key that came after it the last time. Devices take turns, as a rule in one order: then
    /// a key is found by one comparison.
    next: Key,
}

/// All keys that somebody holds.
#[derive(Debug)]
pub(super) struct Keys {
    by: Vec<String>,
    index: HashMap<Arc<[u8]>, Key>,
    named: Vec<Named>,
    free: Vec<Key>,
    /// The one that was held last.
    last: Key,
    bytes: usize,
}

/// The key columns of a batch, as text.
pub(super) struct KeyColumns(Vec<StringArray>);

impl KeyColumns {
    /// Writes a row's key: for each column 0 for null, or 1, the length and the text.
    pub(super) fn write(&self, row: u32, out: &mut Vec<u8>) {
        out.clear();
        for column in &self.0 {
            if column.is_null(row as usize) {
                out.push(0);
                continue;
            }
            let text = column.value(row as usize);
            out.push(1);
            out.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
            out.extend(text.as_bytes());
        }
    }
}

impl Keys {
    pub(super) fn new(by: Vec<String>) -> Self {
        let (index, named, free) = (HashMap::new(), Vec::new(), Vec::new());
        Self { by, index, named, free, last: 0, bytes: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The key columns of a batch. Fails where one is missing or has no text.
    pub(super) fn columns(&self, columns: &Columns) -> Result<KeyColumns, StreamError> {
        let text = |name: &String| {
            let input = |what: &str| StreamError::Input(format!("key column `{name}`: {what}"));
            let column =
                columns.batch().column_by_name(name).ok_or_else(|| input("there is none"))?;
            let column = cast(column, &DataType::Utf8).map_err(|e| input(&e.to_string()))?;
            Ok(column.as_string::<i32>().clone())
        };
        self.by.iter().map(text).collect::<Result<_, _>>().map(KeyColumns)
    }

    /// The number of a key, if somebody holds it.
    pub(super) fn find(&self, text: &[u8]) -> Option<Key> {
        self.index.get(text).copied()
    }

    pub(super) fn text(&self, key: Key) -> &[u8] {
        &self.named[key as usize].text
    }

    /// Takes hold of a key.
    pub(super) fn hold(&mut self, text: &[u8]) -> Key {
        let guess = self.named.get(self.last as usize).map_or(0, |last| last.next);
        let guessed = self.named.get(guess as usize);
        let fits = guessed.is_some_and(|named| named.holders > 0 && *named.text == *text);
        let key = if fits {
            guess
        } else {
            match self.index.get(text) {
                Some(key) => *key,
                None => self.add(text),
            }
        };
        self.named[key as usize].holders += 1;
        self.named[self.last as usize].next = key;
        self.last = key;
        key
    }

    /// Adds a key that nobody holds.
    fn add(&mut self, text: &[u8]) -> Key {
        let text: Arc<[u8]> = text.into();
        self.bytes += KEY_COST + text.len();
        let named = Named { text: Arc::clone(&text), holders: 0, next: 0 };
        let key = if let Some(key) = self.free.pop() {
            self.named[key as usize] = named;
            key
        } else {
            self.named.push(named);
            // As many as there are rows in memory.
            u32::try_from(self.named.len() - 1).unwrap_or(u32::MAX)
        };
        self.index.insert(text, key);
        key
    }

    /// Takes hold of a key that somebody holds.
    pub(super) fn hold_again(&mut self, key: Key) {
        self.named[key as usize].holders += 1;
    }

    /// Lets a key go.
    pub(super) fn release(&mut self, key: Key) {
        let named = &mut self.named[key as usize];
        named.holders -= 1;
        if named.holders == 0 {
            let text = std::mem::take(&mut named.text);
            self.bytes -= KEY_COST + text.len();
            self.index.remove(&text);
            self.free.push(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_number_while_it_is_held() {
        let mut keys = Keys::new(vec![]);
        let (a, b) = (keys.hold(b"a"), keys.hold(b"b"));
        assert_ne!(a, b);
        assert_eq!((keys.hold(b"a"), keys.find(b"a"), keys.text(b)), (a, Some(a), &b"b"[..]));
        keys.release(a);
        assert_eq!(keys.find(b"a"), Some(a), "the other holder is there");
        keys.release(a);
        assert_eq!(keys.find(b"a"), None);
        assert_eq!(keys.hold(b"c"), a, "the number is free again");
        keys.release(a);
        keys.release(b);
        assert_eq!(keys.bytes(), 0);
    }
}
