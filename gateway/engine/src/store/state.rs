//! Everything small that the store knows, as of one frame.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::book::Book;
use super::border::StreamProgress;
use super::format::{FORMAT, Kind};
use super::log::Schemas;
use super::record::{Meta, SinkState, TableState, encode_progress};
use super::rows::encode_schema;
use super::stamps::Boots;
use super::states::Mark;

/// Counters, cursors, ends and progress.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) meta: Meta,
    pub(super) sinks: BTreeMap<Arc<str>, SinkState>,
    pub(super) tables: BTreeMap<Arc<str>, TableState>,
    /// Without the changes that brought it there.
    pub(super) progress: BTreeMap<Arc<str>, Arc<StreamProgress>>,
    /// What the states of each stream give together; written with its progress.
    pub(super) marks: BTreeMap<Arc<str>, Mark>,
    pub(super) schemas: BTreeMap<Arc<str>, Schemas>,
    pub(super) counts: BTreeMap<Arc<str>, u64>,
    /// The machine's starts of which rows had no time.
    pub(super) boots: Boots,
    /// Day and bytes written on it, as the last frame with the meta record says.
    told: (i64, u64),
}

/// Bytes written on a day after which a frame says so, between two checkpoints.
const TOLD_BYTES: u64 = 256 << 10;

impl State {
    pub(super) fn new(meta: Meta) -> Self {
        State {
            meta,
            sinks: BTreeMap::new(),
            tables: BTreeMap::new(),
            progress: BTreeMap::new(),
            marks: BTreeMap::new(),
            schemas: BTreeMap::new(),
            counts: BTreeMap::new(),
            boots: Boots::default(),
            told: (0, 0),
        }
    }

    /// What the meta record says is in no frame: the next one has it.
    pub(super) fn untell(&mut self) {
        self.told = (i64::MIN, 0);
    }

    /// The mark of a stream's states.
    pub(super) fn mark(&self, stream: &str) -> Mark {
        self.marks.get(stream).copied().unwrap_or_default()
    }

    /// Whether the checkpoint must say a later format, so that an older version refuses the store
    /// instead of taking rows for damage that it does not know.
    pub(super) fn format_is_due(&self) -> bool {
        self.meta.format < FORMAT && self.boots != Boots::default()
    }

    /// Bytes of log values, waiting rows and dead letters.
    pub(super) fn held_bytes(&self) -> u64 {
        let sinks: u64 = self.sinks.values().map(|sink| sink.bytes + sink.letter_bytes).sum();
        sinks + self.tables.values().map(|table| table.bytes).sum::<u64>()
    }

    /// Puts into the draft what differs from `before`, each as a whole, so that a reader needs only
    /// the last one; without `before`, everything.
    pub(super) fn note_changes(&mut self, book: &mut Book, before: Option<&State>) {
        for (name, sink) in &self.sinks {
            if before.is_none_or(|before| before.sinks.get(name) != Some(sink)) {
                book.note(Kind::Sink, name, 0, &sink.encode());
            }
        }
        for (name, table) in &self.tables {
            if before.is_none_or(|before| before.tables.get(name) != Some(table)) {
                book.note(Kind::Table, name, 0, &table.encode());
            }
        }
        for (name, count) in &self.counts {
            if before.is_none_or(|before| before.counts.get(name) != Some(count)) {
                book.note(Kind::Count, name, *count, &[]);
            }
        }
        for (name, progress) in &self.progress {
            let known = before.and_then(|before| before.progress.get(name));
            if known.is_none_or(|known| !Arc::ptr_eq(known, progress)) {
                book.note(Kind::Progress, name, 0, &encode_progress(progress, self.mark(name)));
            }
        }
        let known = before.map_or_else(Boots::default, |before| before.boots.clone());
        if self.boots != known {
            book.note(Kind::Boots, "", 0, &self.boots.encode());
        }
        let (day, bytes) = self.told;
        let wrote = self.meta.written_today.saturating_sub(bytes);
        if before.is_none() || self.meta.day != day || wrote >= TOLD_BYTES {
            book.note(Kind::Meta, "", 0, &self.meta.encode());
            self.told = (self.meta.day, self.meta.written_today);
        }
        if before.is_none() {
            for (table, schemas) in &self.schemas {
                for (number, schema) in schemas {
                    match encode_schema(schema) {
                        Ok(body) => {
                            book.note(Kind::Schema, table, *number, &body);
                        }
                        Err(error) => tracing::error!(%error, %table, "a schema is not kept twice"),
                    }
                }
            }
        }
    }
}
