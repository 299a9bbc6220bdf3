//! The ledger of the running parts, since the store was made and since the process started.
//!
//! The first is what is durable; the second is its difference to what was durable at the start,
//! with what was under way then carried over.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_engine::Counts;
use tidegate_engine::store::{Backlog, Store};
use tidegate_web_ui as web;

use super::{GatewayStatus, Views};
use crate::ledger::{self, SourceKeys, SourceTotals};

/// What was counted when the process started.
pub(super) struct Before {
    counts: BTreeMap<Arc<str>, u64>,
    sinks: BTreeMap<Arc<str>, Backlog>,
    /// By stream, from when each was first shown.
    streams: Mutex<BTreeMap<String, Counts>>,
}

impl Before {
    /// What the store counts now.
    pub(super) fn new(store: &Store) -> Self {
        let sinks = store.sinks().into_iter().map(|sink| {
            let backlog = store.backlog(&sink);
            (sink, backlog)
        });
        Self {
            counts: store.counts().into_iter().collect(),
            sinks: sinks.collect(),
            streams: Mutex::default(),
        }
    }

    fn count(&self, key: &Arc<str>) -> u64 {
        self.counts.get(key).copied().unwrap_or(0)
    }

    fn source(&self, keys: &SourceKeys) -> SourceTotals {
        SourceTotals {
            accepted: self.count(&keys.accepted),
            overload: self.count(&keys.overload),
            schema: self.count(&keys.schema),
        }
    }
}

impl GatewayStatus {
    pub(super) fn ledger(&self, views: &Views) -> web::Ledger {
        web::Ledger {
            sources: views.devices.iter().map(|d| self.source(&d.name, None)).collect(),
            streams: views
                .streams
                .iter()
                .map(|s| {
                    let now = s.engine.borrow().unwrap_or_default();
                    let hop = stream(&s.name, &now, &Counts::default());
                    let (missed, unrouted) =
                        (self.store.count(&s.missed), self.store.count(&s.unrouted));
                    web::StreamHop { missed, unrouted, ..hop }
                })
                .collect(),
            sinks: views
                .sinks
                .iter()
                .map(|sink| self.sink_hop(&sink.name, &Backlog::default()))
                .collect(),
        }
    }

    pub(super) fn ledger_since_start(&self, views: &Views) -> web::Ledger {
        let sources = views.devices.iter().map(|d| self.source(&d.name, Some(&self.before)));
        let mut known = self.before.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let streams = views.streams.iter().map(|s| {
            let now = s.engine.borrow().unwrap_or_default();
            let before = match (known.get(&s.name), s.counts.before.get()) {
                (Some(before), _) => *before,
                (None, Some(before)) => *known.entry(s.name.clone()).or_insert(*before),
                // It has not taken up its state yet.
                (None, None) => now,
            };
            let since =
                |key: &Arc<str>| self.store.count(key).saturating_sub(self.before.count(key));
            let (missed, unrouted) = (since(&s.missed), since(&s.unrouted));
            web::StreamHop { missed, unrouted, ..stream(&s.name, &now, &before) }
        });
        let streams = streams.collect();
        let nothing = Backlog::default();
        let sinks = views.sinks.iter().map(|sink| {
            let before = self.before.sinks.get(&*sink.name).unwrap_or(&nothing);
            self.sink_hop(&sink.name, before)
        });
        web::Ledger { sources: sources.collect(), streams, sinks: sinks.collect() }
    }

    fn source(&self, name: &str, before: Option<&Before>) -> web::SourceHop {
        let keys = SourceKeys::new(name);
        let now = keys.read(&self.store);
        let before = before.map(|before| before.source(&keys)).unwrap_or_default();
        let accepted = now.accepted.saturating_sub(before.accepted);
        let overload = now.overload.saturating_sub(before.overload);
        let schema = now.schema.saturating_sub(before.schema);
        let refused = [("queue_full", overload), ("schema", schema)];
        web::SourceHop {
            device: name.to_owned(),
            read: accepted + overload + schema,
            accepted,
            refused: named(refused),
        }
    }

    fn sink_hop(&self, name: &str, before: &Backlog) -> web::SinkHop {
        let (results, now) = self.sink_totals(name);
        web::SinkHop {
            sink: name.to_owned(),
            carried: before.records,
            results: results.saturating_sub(ledger::ever(before)),
            delivered: now.delivered.saturating_sub(before.delivered),
            buffered: now.records,
            dropped: dropped(&Backlog {
                dropped: now.dropped.saturating_sub(before.dropped),
                no_room: now.no_room.saturating_sub(before.no_room),
                expired: now.expired.saturating_sub(before.expired),
                lost: now.lost.saturating_sub(before.lost),
                ..Backlog::default()
            }),
            rejected: now.rejected.saturating_sub(before.rejected),
        }
    }

    /// What was put into an outbox, and what became of it: of one instant, though a commit may land
    /// between two looks.
    fn sink_totals(&self, name: &str) -> (u64, Backlog) {
        let results = ledger::results(name);
        let mut before = self.store.count(&results);
        for _ in 0..LOOKS_MAX {
            let backlog = self.store.backlog(name);
            let after = self.store.count(&results);
            if after == before {
                return (after + backlog.redriven, backlog);
            }
            before = after;
        }
        let backlog = self.store.backlog(name);
        (before + backlog.redriven, backlog)
    }
}

/// Looks for two equal counts around a backlog: commits are far apart beside two looks.
const LOOKS_MAX: u32 = 16;

fn stream(name: &str, now: &Counts, before: &Counts) -> web::StreamHop {
    web::StreamHop {
        stream: name.to_owned(),
        carried: before.open_rows,
        accepted: now.accepted.saturating_sub(before.accepted),
        windowed: now.windowed.saturating_sub(before.windowed),
        late: now.late.saturating_sub(before.late),
        future: now.future.saturating_sub(before.future),
        filtered: now.filtered.saturating_sub(before.filtered),
        failed: now.failed.saturating_sub(before.failed),
        dropped: now.dropped.saturating_sub(before.dropped),
        open: now.open_rows,
        ..web::StreamHop::default()
    }
}

/// The records of an outbox that were given up, by reason.
pub(super) fn dropped(backlog: &Backlog) -> BTreeMap<String, u64> {
    let for_room = backlog.no_room.min(backlog.dropped);
    named([
        ("bound", backlog.dropped - for_room),
        ("disk_full", for_room),
        ("expired", backlog.expired),
        ("corrupt", backlog.lost),
    ])
}

/// Counts by name, without those of nothing.
fn named<const N: usize>(counts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    let some = counts.into_iter().filter(|(_, n)| *n > 0);
    some.map(|(name, n)| (name.to_owned(), n)).collect()
}
