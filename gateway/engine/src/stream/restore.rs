//! A stream that goes on where its progress left it, with the states that stand beside that.
//!
//! Promise: it continues every number; what cannot be taken up again, because the definition or the SQL
//! is another one or the store has lost a state, is counted as dropped. It reads no store: progress and
//! states are given to it, and logs afterwards, as events (`refill`).
//! Source: design page "The engine", section State and exactly once.

use bytes::Bytes;

use super::border::{Counts, StreamError, StreamSpec};
use super::frames::Frames;
use super::progress::Saved;
use super::refill::Refill;
use super::{Stream, fingerprint};
use crate::functions;
use crate::sql::Query;

impl Stream {
    /// Starts a stream where `progress` ([`Progress::state`]) left it, with no states beside it.
    pub fn restore(
        spec: StreamSpec,
        query: Query,
        progress: &[u8],
        now: i64,
    ) -> Result<Self, StreamError> {
        Self::restore_with(spec, query, progress, &[], now)
    }

    /// Starts a stream where `progress` ([`Progress::state`]) left it, with all `states` that stand
    /// beside it in the store ([`Progress::states`]). The caller then reads each table's log from
    /// [`Progress::replay_from`] and applies it as [`Event::Replay`].
    ///
    /// Tables are found by name; one that the progress does not know starts at position 0. Where
    /// the window's definition has changed, rows of windows that were open are counted as dropped:
    /// they were taken under the old one. Changed SQL runs over refilled windows; rows that were
    /// folded into states which it cannot go on with are counted as dropped.
    pub fn restore_with(
        spec: StreamSpec,
        query: Query,
        progress: &[u8],
        states: &[(u64, Bytes)],
        now: i64,
    ) -> Result<Self, StreamError> {
        Self::restore_damaged(spec, query, progress, states, &[], now)
    }

    /// The same where the store cannot read the states under the keys `lost` any more: it goes on with
    /// all numbers and with what the others stand for. Rows that only the lost ones stood for are
    /// counted as dropped; the next progress lets go of them.
    pub fn restore_damaged(
        spec: StreamSpec,
        query: Query,
        progress: &[u8],
        states: &[(u64, Bytes)],
        lost: &[u64],
        now: i64,
    ) -> Result<Self, StreamError> {
        let saved = Saved::read(progress)?;
        let mut stream = Self::new(spec, query, now)?;
        let (memory, states): (Vec<_>, Vec<_>) =
            states.iter().cloned().partition(|(key, _)| functions::is_memory(*key));
        let parts = memory.iter().map(|(key, bytes)| (*key, &bytes[..]));
        let unreadable = |what: &str| StreamError::Progress(what.to_owned());
        let forgotten = stream.query.memory().load(parts).map_err(unreadable)?;
        let names: Vec<&str> = stream.spec.tables.iter().map(|t| t.name.as_str()).collect();
        let index = |name: &str| names.iter().position(|known| *known == name);
        let mut from = vec![0; names.len()];
        for (name, processed, replay_from) in &saved.tables {
            if let Some(table) = index(name) {
                stream.processed[table] = *processed;
                from[table] = *replay_from;
            }
        }
        for (table, device, high) in &saved.sources {
            let table = index(&saved.tables[*table as usize].0);
            if let Some(table) = table.filter(|table| *table < stream.spec.tables_in_from()) {
                stream.watermark.declare(table, device, *high, false);
            }
        }
        stream.watermark.resume(saved.watermark);
        stream.next_seq = saved.next_seq;
        stream.counts = saved.counts();
        stream.last.load(&saved.latest)?;
        stream.clock_high = saved.clock_high;
        let changed = saved.fingerprint != fingerprint(&stream.spec);
        if let Some(frames) = stream.frames.as_mut().filter(|_| !changed) {
            let places: Vec<_> = saved.tables.iter().map(|(name, ..)| index(name)).collect();
            frames.load(&saved.frames, &places)?;
        }
        let any_sql = stream.frames.as_ref().is_some_and(Frames::any_sql);
        let made = any_sql || saved.panes.is_some_and(|plan| plan.made(&stream.query));
        // Where a window has several states, nobody knows of which one they are missing.
        let broken = any_sql && lost.iter().any(|key| !functions::is_memory(*key));
        let same = !changed && made && !broken;
        let mut refilled = 0;
        match stream.frames.as_mut().filter(|_| same) {
            Some(frames) => refilled = frames.load_states(&states, saved.watermark)?,
            None => stream.discarded = states.iter().map(|(key, _)| *key).collect(),
        }
        stream.discarded.extend(forgotten);
        stream.discarded.extend(lost);
        let until = stream.processed.clone();
        stream.refill = Some(Refill {
            closed: saved.watermark,
            done: from.iter().zip(&until).map(|(from, until)| from >= until).collect(),
            from,
            until,
            rows: saved.open_rows,
            refilled,
            waiting: Vec::new(),
            waiting_bytes: 0,
        });
        stream.end_refill(changed || broken);
        Ok(stream)
    }

    /// The ledger that `progress` ([`Progress::state`]) holds, of a stream that does not run.
    pub fn counts_in(progress: &[u8]) -> Result<Counts, StreamError> {
        let saved = Saved::read(progress)?;
        Ok(Counts { open_rows: saved.open_rows, ..saved.counts() })
    }

    /// The SQL by which states beside `progress` were made, where `query` cannot go on with them. To
    /// lose nothing, restore a stream with that SQL, read its logs up to [`Progress::processed`], and
    /// end it with [`Stream::close_all`].
    pub fn outdated(
        spec: &StreamSpec,
        query: &Query,
        progress: &[u8],
    ) -> Result<Option<String>, StreamError> {
        let saved = Saved::read(progress)?;
        let same = saved.fingerprint == fingerprint(spec);
        Ok(saved.panes.filter(|plan| same && !plan.made(query)).map(|plan| plan.sql))
    }
}
