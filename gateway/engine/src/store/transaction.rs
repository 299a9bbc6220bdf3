//! What one transaction changes, from the work that waited: first what frees room, then what takes
//! it, then the bounds. Every change of state happens here; whoever calls decides whether it stands.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::border::{Layout, LogRows, OutboxRows, WhenFull};
use super::damage::{Damage, Trouble};
use super::format::{Kind, encode_progress};
use super::log;
use super::outbox::{self, Fate, Records, Room};
use super::recovery::{State, put};
use super::work::{Work, droppable};

/// One transaction being filled.
pub(super) struct Transaction<'a, 'txn> {
    pub(super) records: Records<'txn>,
    pub(super) state: &'a mut State,
    pub(super) damage: &'a mut Damage,
    pub(super) layout: &'a Layout,
    pub(super) max_bytes: u64,
}

impl Transaction<'_, '_> {
    /// Applies the work in the order that frees room first; returns the encoded bytes.
    pub(super) fn apply(&mut self, work: &Work) -> Result<u64, Trouble> {
        self.settle(work)?;
        let mut bytes = 0;
        let progresses = work.commits.iter().filter_map(|p| p.commit.progress.as_ref());
        // Of several by one stream the last one counts.
        let latest: BTreeMap<_, _> =
            progresses.map(|progress| (&progress.stream, progress)).collect();
        for (stream, progress) in latest {
            let body = encode_progress(progress);
            put(&mut self.records, Kind::Progress, stream, &body)?;
            self.state.progress.insert(stream.clone(), Arc::new(progress.clone()));
            bytes += body.len() as u64;
        }
        bytes += self.append_outboxes(work)?;
        bytes += self.append_logs(work)?;
        self.trim_logs()?;
        self.bound_store()?;
        Ok(bytes)
    }

    /// Lets the cursors pass what was delivered, refused or has become too old.
    fn settle(&mut self, work: &Work) -> Result<(), Trouble> {
        let (records, damage) = (&mut self.records, &mut *self.damage);
        let mut refusals: Vec<_> = work.refusals.iter().collect();
        refusals.sort_by_key(|refusal| refusal.position);
        for refusal in refusals {
            let Some(state) = self.state.sinks.get_mut(&refusal.sink) else {
                continue;
            };
            let (sink, position) = (&refusal.sink, refusal.position);
            outbox::reject(records, sink, state, position, &refusal.reason, damage)?;
        }
        for (sink, upto) in &work.delivered {
            let Some(state) = self.state.sinks.get_mut(sink) else {
                continue;
            };
            outbox::settle(records, sink, state, *upto, Fate::Delivered, damage)?;
        }
        let Some(now) = work.expire else {
            return Ok(());
        };
        for sink in &self.layout.sinks {
            let Some(age) = sink.max_age_us else { continue };
            let Some(state) = self.state.sinks.get_mut(&sink.name) else {
                continue;
            };
            outbox::expire(records, &sink.name, state, now.saturating_sub(age), damage)?;
        }
        Ok(())
    }

    fn append_outboxes(&mut self, work: &Work) -> Result<u64, Trouble> {
        let mut bytes = 0;
        let epoch = self.state.meta.epoch;
        for sink in &self.layout.sinks {
            let parts: Vec<&OutboxRows> = work
                .commits
                .iter()
                .flat_map(|pending| &pending.commit.outbox)
                .filter(|rows| rows.sink == sink.name)
                .collect();
            if parts.is_empty() {
                continue;
            }
            let free = (self.max_bytes + droppable(self.state, self.layout))
                .saturating_sub(self.state.held_bytes());
            let state = self.state.sinks.entry(sink.name.clone()).or_default();
            let room = (sink.when_full == WhenFull::DropNewest).then(|| Room {
                records: sink
                    .max_records
                    .map_or(u64::MAX, |max| max.saturating_sub(state.records())),
                bytes: sink.max_bytes.saturating_sub(state.bytes).min(free),
            });
            bytes += outbox::append(&mut self.records, &sink.name, state, epoch, &parts, room)?;
            if sink.when_full == WhenFull::DropOldest {
                let excess = outbox::excess(sink, state);
                outbox::drop_oldest(&mut self.records, &sink.name, state, excess, self.damage)?;
            }
        }
        Ok(bytes)
    }

    fn append_logs(&mut self, work: &Work) -> Result<u64, Trouble> {
        let mut bytes = 0;
        for table in &self.layout.tables {
            let parts: Vec<&LogRows> = work
                .commits
                .iter()
                .flat_map(|pending| &pending.commit.rows)
                .filter(|rows| rows.table == table.name)
                .collect();
            if parts.is_empty() {
                continue;
            }
            let floor = self.floor(&table.name, &table.readers);
            let state = self.state.tables.entry(table.name.clone()).or_default();
            let schemas = self.state.schemas.entry(table.name.clone()).or_default();
            bytes += log::append(&mut self.records, &table.name, state, schemas, floor, &parts)?;
        }
        Ok(bytes)
    }

    /// The first log position that some reader still needs.
    fn floor(&self, table: &str, readers: &[Arc<str>]) -> u64 {
        let needed = |stream: &Arc<str>| {
            let progress = self.state.progress.get(stream)?;
            let mut floors = progress.replay_from.iter();
            floors.find(|(name, _)| &**name == table).map(|(_, position)| *position)
        };
        readers.iter().map(|stream| needed(stream).unwrap_or(0)).min().unwrap_or(u64::MAX)
    }

    fn trim_logs(&mut self) -> Result<(), Trouble> {
        for table in &self.layout.tables {
            let floor = self.floor(&table.name, &table.readers);
            if let Some(state) = self.state.tables.get_mut(&table.name) {
                log::trim(&mut self.records, &table.name, state, floor)?;
            }
        }
        Ok(())
    }

    /// Holds the store's own bound; see [`WhenFull`].
    fn bound_store(&mut self) -> Result<(), Trouble> {
        loop {
            let over = self.state.held_bytes().saturating_sub(self.max_bytes);
            if over == 0 {
                return Ok(());
            }
            // Logs have what the sinks' own bounds leave of the store, or a quarter of it. Beyond
            // that they give way first: a stream that cannot go on does not evict other streams'
            // results.
            let layout = self.layout;
            let sinks_max: u64 = layout.sinks.iter().map(|sink| sink.max_bytes).sum();
            let logs_max = self.max_bytes.saturating_sub(sinks_max).max(self.max_bytes / 4);
            let logs: u64 = self.state.tables.values().map(|table| table.bytes).sum();
            if logs > logs_max && self.drop_log()? {
                continue;
            }
            let gives = |name: &Arc<str>| {
                let named = layout.sinks.iter().find(|sink| sink.name == *name);
                named.is_none_or(|sink| sink.when_full == WhenFull::DropOldest)
            };
            let sinks = self.state.sinks.iter_mut();
            let largest = sinks
                .filter(|(name, sink)| sink.records() > 0 && gives(name))
                .max_by_key(|(_, sink)| sink.bytes);
            if let Some((name, sink)) = largest {
                let excess = Room { records: 1, bytes: over.min(sink.bytes) };
                outbox::drop_oldest(&mut self.records, name, sink, excess, self.damage)?;
                continue;
            }
            if !self.drop_log()? {
                return Ok(());
            }
        }
    }

    /// Drops the oldest rows of the largest log; false where there is nothing to drop.
    fn drop_log(&mut self) -> Result<bool, Trouble> {
        let tables = self.state.tables.iter_mut();
        let largest = tables.max_by_key(|(_, table)| table.bytes);
        match largest.filter(|(_, table)| table.bytes > 0) {
            Some((name, table)) => log::drop_oldest(&mut self.records, name, table),
            None => Ok(false),
        }
    }

    /// Writes the states that changed, and the number that tells that the commit landed.
    pub(super) fn put_states(&mut self, before: &State) -> Result<(), Trouble> {
        self.state.meta.commit += 1;
        put(&mut self.records, Kind::Meta, "", &self.state.meta.encode())?;
        for (name, sink) in &self.state.sinks {
            if before.sinks.get(name) != Some(sink) {
                put(&mut self.records, Kind::Sink, name, &sink.encode())?;
            }
        }
        for (name, table) in &self.state.tables {
            if before.tables.get(name) != Some(table) {
                put(&mut self.records, Kind::Table, name, &table.encode())?;
            }
        }
        Ok(())
    }
}
