//! What one commit changes, from the work that waited: first what frees room, then what takes it,
//! then the bounds. Every change of state happens here, and none of them can fail halfway: what
//! comes of it is a draft that is written, again if need be, until it is durable. A mark that passes
//! rows which cannot be read now is left for later, because nobody could tell what it passes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::book::{Book, Queue};
use super::border::{Layout, StoreError, StreamProgress, WhenFull};
use super::damage::{Trouble, contained};
use super::files::TREE;
use super::letters;
use super::log;
use super::outbox::{self, Fate, Room};
use super::state::State;
use super::states;
use super::work::{Answer, Order, Refusal, What, Work, answer, droppable, logs_max};

/// What belongs to each name, in the order in which it came.
fn grouped<'a, T>(
    all: impl Iterator<Item = &'a T>,
    name: impl Fn(&'a T) -> &'a Arc<str>,
) -> HashMap<&'a str, Vec<&'a T>> {
    let mut by_name: HashMap<&str, Vec<&T>> = HashMap::new();
    // Most follow another one of the same name, which is found without a hash.
    let mut run: Vec<&T> = Vec::new();
    for one in all {
        if run.last().is_some_and(|last| name(last) != name(one)) {
            let first = run[0];
            by_name.entry(name(first)).or_default().append(&mut run);
        }
        run.push(one);
    }
    if let Some(first) = run.first().copied() {
        by_name.entry(name(first)).or_default().append(&mut run);
    }
    by_name
}

/// What may give way.
#[derive(Debug, Clone, Copy)]
pub(super) struct GivesWay {
    /// The oldest frame of the ring is held by a sink that drops nothing, so that only shelves that go
    /// give room: outboxes without one keep their rows, and so do logs, since commits wait for the far
    /// side anyway.
    pub(super) is_pinned: bool,
    /// Logs as well.
    pub(super) logs: bool,
}

/// A bound is held when what it drops can be read; whether that was now.
fn later(sink: &str, outcome: &Result<(), Trouble>) -> bool {
    if let Err(trouble) = outcome {
        tracing::debug!(sink, reason = trouble.text(), "what is to be dropped cannot be read yet");
    }
    outcome.is_ok()
}

/// Marks that could not be applied yet.
#[derive(Default)]
pub(super) struct Left {
    delivered: BTreeMap<Arc<str>, u64>,
    delivered_live: BTreeMap<Arc<str>, u64>,
    refusals: Vec<Refusal>,
}

impl Left {
    /// Puts them to later work.
    pub(super) fn join(self, work: &mut Work) {
        let higher = |marks: &mut BTreeMap<Arc<str>, u64>, left: BTreeMap<Arc<str>, u64>| {
            for (sink, upto) in left {
                let mark = marks.entry(sink).or_default();
                *mark = upto.max(*mark);
            }
        };
        higher(&mut work.delivered, self.delivered);
        higher(&mut work.delivered_live, self.delivered_live);
        work.refusals.extend(self.refusals);
    }
}

/// One commit being made.
pub(super) struct Transaction<'a> {
    pub(super) book: &'a mut Book,
    pub(super) state: &'a mut State,
    pub(super) layout: &'a Layout,
    pub(super) max_bytes: u64,
    /// What `expire` said last: the only time that the store knows.
    pub(super) now: Option<i64>,
    /// Sinks that get no new rows.
    pub(super) refused: &'a BTreeSet<Arc<str>>,
}

impl Transaction<'_> {
    /// Applies the work in the order that frees room first; gives what is left for later.
    pub(super) fn apply(&mut self, work: &Work) -> Left {
        let mut gone = letters::Gone::new();
        let left = self.settle(work);
        letters::bound(self.book, self.state, self.layout, self.max_bytes, &mut gone);
        for pending in &work.commits {
            for (name, more) in &pending.commit.counts {
                let count = self.state.counts.entry(name.clone()).or_default();
                *count = count.saturating_add(*more);
            }
        }
        self.note_boots(work);
        self.advance(work);
        self.append_outboxes(work);
        self.append_logs(work);
        self.trim_logs();
        self.bound_store(&mut gone);
        self.count_letters(gone);
        left
    }

    /// Counts the dead letters that gave way, and says so once for each sink.
    fn count_letters(&mut self, gone: letters::Gone) {
        for (sink, letters) in gone {
            let count = self.state.counts.entry(letters::dropped(&sink).into()).or_default();
            *count = count.saturating_add(letters);
            let ever = *count;
            tracing::warn!(%sink, letters, ever, "the oldest refused records are not kept any more");
        }
    }

    /// Takes up of which starts there are rows without a time, and what is known of these.
    fn note_boots(&mut self, work: &Work) {
        for pending in &work.commits {
            let stamps = pending.commit.rows.iter().filter_map(|rows| rows.stamps);
            stamps.for_each(|stamps| self.state.boots.note(stamps.boot));
            if let Some((boot, time)) = pending.commit.boot {
                self.state.boots.decide(boot, time);
            }
        }
    }

    /// Takes up how far the streams have come: of several progresses of one the last counts, and of its
    /// states all that changed.
    fn advance(&mut self, work: &Work) {
        let mut streams: BTreeMap<&Arc<str>, Vec<&StreamProgress>> = BTreeMap::new();
        for progress in work.commits.iter().filter_map(|p| p.commit.progress.as_ref()) {
            streams.entry(&progress.stream).or_default().push(progress);
        }
        for (stream, steps) in streams {
            let changes = steps.iter().flat_map(|progress| &progress.states);
            states::apply(self.book, self.state, stream, changes);
            let Some(last) = steps.last() else { continue };
            let progress = StreamProgress {
                stream: stream.clone(),
                state: last.state.clone(),
                processed: last.processed.clone(),
                replay_from: last.replay_from.clone(),
                states: Vec::new(),
            };
            self.state.progress.insert(stream.clone(), Arc::new(progress));
        }
    }

    /// Does what somebody ordered; the answer is given when it is durable.
    pub(super) fn order(&mut self, order: Order) -> Answer {
        let Order { name, what } = order;
        match what {
            What::Bounds => Box::new(|_| {}),
            What::Pause { paused, reply } => {
                self.state.sinks.entry(name).or_default().paused = paused;
                Box::new(move |end| answer(reply, end))
            }
            What::Split { reply } => {
                let state = self.state.sinks.entry(name).or_default();
                outbox::split(state);
                let lanes = state.lanes;
                Box::new(move |end| answer(reply, end.map(|()| lanes)))
            }
            What::Letters { positions, again, reply } => {
                let count = self.letters(&name, positions, again);
                Box::new(move |end| answer(reply, end.and(count)))
            }
            What::Forget { reply } => {
                let count = self.forget(&name);
                Box::new(move |end| answer(reply, end.and(count)))
            }
        }
    }

    /// Forgets dead letters, or puts them back; no positions are all of them. Returns how many.
    fn letters(
        &mut self,
        sink: &Arc<str>,
        positions: Vec<u64>,
        again: bool,
    ) -> Result<u64, StoreError> {
        let state = self.state.sinks.entry(sink.clone()).or_default();
        let positions: BTreeSet<u64> = match self.book.letters.get(sink) {
            Some(letters) if positions.is_empty() => letters.keys().copied().collect(),
            _ => positions.into_iter().collect(),
        };
        let positions: Vec<u64> = positions.into_iter().collect();
        if !again {
            return Ok(letters::forget(self.book, sink, state, &positions));
        }
        // Over a page that is damaged redb may panic.
        let found = contained(|| {
            let records = self.book.files.records()?;
            letters::read(&records, self.book, sink, &positions)
        });
        match found {
            Ok(found) => Ok(letters::redrive(self.book, sink, state, found)),
            Err(trouble) => {
                let path = self.book.files.disk.path(TREE);
                Err(StoreError::Unreadable { path, reason: trouble.text().to_owned() })
            }
        }
    }

    /// Drops what is kept for the sink and the table of this name, unless the layout names them; returns
    /// how many rows, records and dead letters that were. Counters and positions stay, so that nothing
    /// begins again under numbers that were used.
    fn forget(&mut self, name: &Arc<str>) -> Result<u64, StoreError> {
        let sinks = self.layout.sinks.iter().map(|sink| &sink.name);
        let tables = self.layout.tables.iter().map(|table| &table.name);
        let sink_claimed = sinks.into_iter().any(|sink| sink == name);
        let table_claimed = tables.into_iter().any(|table| table == name);
        let mut count = None;
        if let Some(state) = self.state.sinks.get_mut(name).filter(|_| !sink_claimed) {
            let positions: Vec<u64> =
                self.book.letters.get(name).into_iter().flat_map(|l| l.keys().copied()).collect();
            let letters = letters::forget(self.book, name, state, &positions);
            count = Some(letters + outbox::forget(self.book, name, state));
        }
        if let Some(state) = self.state.tables.get_mut(name).filter(|_| !table_claimed) {
            let rows = state.count(state.start..state.end);
            state.dropped += rows;
            let end = state.end;
            log::trim(self.book, name, state, end);
            count = Some(count.unwrap_or(0) + rows);
        }
        count.ok_or_else(|| {
            if sink_claimed || table_claimed {
                return StoreError::Claimed(name.clone());
            }
            StoreError::Unknown(format!("sink or table {name} (a stream goes with --stream)"))
        })
    }

    /// Lets the cursors pass what was delivered, refused or has become too old.
    fn settle(&mut self, work: &Work) -> Left {
        let book = &mut *self.book;
        let mut left = Left::default();
        let mut refusals: Vec<_> = work.refusals.iter().collect();
        refusals.sort_by_key(|refusal| refusal.position);
        for refusal in refusals {
            let (sink, position) = (&refusal.sink, refusal.position);
            if let Some(state) = self.state.sinks.get_mut(sink)
                && outbox::reject(book, sink, state, position, &refusal.reason).is_err()
            {
                left.refusals.push(refusal.clone());
            }
        }
        // What is refused is passed as that, and not as delivered by a mark behind it.
        let waits = |sink: &Arc<str>, left: &Left| left.refusals.iter().any(|r| r.sink == *sink);
        for (sink, upto) in &work.delivered_live {
            let Some(state) = self.state.sinks.get_mut(sink) else { continue };
            let settled = if waits(sink, &left) {
                None
            } else if state.lanes.is_some() {
                outbox::settle_live(book, sink, state, *upto, Fate::Delivered).ok()
            } else {
                // The backlog ended meanwhile, so that there is one lane again.
                outbox::settle(book, sink, state, *upto, Fate::DeliveredBeside).ok()
            };
            if settled.is_none() {
                left.delivered_live.insert(sink.clone(), *upto);
            }
        }
        for (sink, upto) in &work.delivered {
            let Some(state) = self.state.sinks.get_mut(sink) else { continue };
            let waits = waits(sink, &left);
            if waits || outbox::settle(book, sink, state, *upto, Fate::Delivered).is_err() {
                left.delivered.insert(sink.clone(), *upto);
            }
        }
        let Some(now) = work.expire else {
            return left;
        };
        for sink in &self.layout.sinks {
            let Some(age) = sink.max_age_us else { continue };
            if let Some(state) = self.state.sinks.get_mut(&sink.name) {
                let limit = now.saturating_sub(age);
                later(&sink.name, &outbox::expire(book, &sink.name, state, limit));
            }
        }
        left
    }

    fn append_outboxes(&mut self, work: &Work) {
        let epoch = self.state.meta.epoch;
        let rows = work.commits.iter().flat_map(|pending| &pending.commit.outbox);
        let by_sink = grouped(rows, |rows| &rows.sink);
        for sink in &self.layout.sinks {
            if let Some(parts) = by_sink.get(&*sink.name) {
                let droppable = droppable(self.state, self.layout, self.max_bytes);
                let most = self.max_bytes.saturating_add(droppable);
                let free = most.saturating_sub(self.state.held_bytes());
                let state = self.state.sinks.entry(sink.name.clone()).or_default();
                let (is_refused, dropped) = (self.refused.contains(&sink.name), state.dropped);
                let room = if is_refused {
                    Some(Room { records: 0, bytes: 0 })
                } else {
                    (sink.when_full == WhenFull::DropNewest).then(|| Room {
                        records: sink
                            .max_records
                            .map_or(u64::MAX, |max| max.saturating_sub(state.records())),
                        bytes: sink.max_bytes.saturating_sub(state.bytes).min(free),
                    })
                };
                outbox::append(self.book, &sink.name, state, epoch, parts, room);
                let dropped = state.dropped - dropped;
                if is_refused {
                    *self.state.counts.entry(outbox::no_room(&sink.name).into()).or_default() +=
                        dropped;
                }
            }
            // Also without new rows: the bounds may be lower than they were.
            if sink.when_full == WhenFull::DropOldest
                && let Some(state) = self.state.sinks.get_mut(&sink.name)
            {
                let excess = outbox::excess(sink, state);
                later(&sink.name, &outbox::drop_oldest(self.book, &sink.name, state, excess));
            }
        }
    }

    fn append_logs(&mut self, work: &Work) {
        let rows = work.commits.iter().flat_map(|pending| &pending.commit.rows);
        let by_table = grouped(rows, |rows| &rows.table);
        for table in &self.layout.tables {
            let Some(parts) = by_table.get(&*table.name) else {
                continue;
            };
            let floor = match table.history_us {
                Some(_) => 0,
                None => self.floor(&table.name, &table.readers),
            };
            let state = self.state.tables.entry(table.name.clone()).or_default();
            let schemas = self.state.schemas.entry(table.name.clone()).or_default();
            let appended = log::append(self.book, &table.name, state, schemas, floor, parts);
            if let Err(trouble) = appended {
                // Arrow refuses to encode what it made itself: the rows are lost, and counted as
                // a hole when they are read, but the log goes on.
                tracing::error!(table = %table.name, error = trouble.text(), "rows are not kept");
                let last = parts.last().map(|part| part.end());
                state.end = last.unwrap_or(state.end);
            }
        }
    }

    /// The first log position that some reader still needs.
    pub(super) fn floor(&self, table: &str, readers: &[Arc<str>]) -> u64 {
        let needed = |stream: &Arc<str>| {
            let progress = self.state.progress.get(stream)?;
            let mut floors = progress.replay_from.iter();
            floors.find(|(name, _)| &**name == table).map(|(_, position)| *position)
        };
        readers.iter().map(|stream| needed(stream).unwrap_or(0)).min().unwrap_or(u64::MAX)
    }

    fn trim_logs(&mut self) {
        for table in &self.layout.tables {
            let mut floor = self.floor(&table.name, &table.readers);
            if let Some(history) = table.history_us {
                // Without a clock nothing is too old.
                let limit = self.now.map_or(i64::MIN, |now| now.saturating_sub(history));
                floor = floor.min(log::history_floor(self.book, &table.name, limit));
            }
            if let Some(state) = self.state.tables.get_mut(&table.name) {
                log::trim(self.book, &table.name, state, floor);
            }
        }
    }

    /// Holds the store's own bound; see [`WhenFull`]. No waiting row gives way for a dead letter.
    fn bound_store(&mut self, gone: &mut letters::Gone) {
        let gives = GivesWay { is_pinned: false, logs: true };
        loop {
            let over = self.state.held_bytes().saturating_sub(self.max_bytes);
            let gave = over > 0
                && (self.drop_excess_log()
                    || letters::give_way(self.book, self.state, self.layout, over, gone)
                    || self.give_way(over, gives));
            if !gave {
                return;
            }
        }
    }

    /// Drops at most `over` bytes where the policies allow it: of one sink, or one piece of a log.
    /// `false` when nothing is left to drop. Dead letters stay: a full disk gets no room from them,
    /// because the tree that they lie in keeps its length.
    pub(super) fn give_way(
        &mut self,
        over: u64,
        GivesWay { is_pinned, logs: may }: GivesWay,
    ) -> bool {
        if may && self.drop_excess_log() {
            return true;
        }
        let layout = self.layout;
        // Sinks that no layout names go before all others.
        let gives = |name: &Arc<str>| match layout.sinks.iter().find(|sink| sink.name == *name) {
            Some(sink) if sink.when_full == WhenFull::DropOldest => Some(sink.priority),
            Some(_) => None,
            None => Some(i32::MIN),
        };
        let outboxes = &self.book.outboxes;
        let frees =
            |name: &Arc<str>| !is_pinned || outboxes.get(name).is_some_and(Queue::is_shelved);
        let sinks = self.state.sinks.iter_mut();
        let mut largest: Vec<_> = sinks
            .filter(|(name, sink)| sink.records() > 0 && frees(name))
            .filter_map(|(name, sink)| Some((gives(name)?, name, sink)))
            .collect();
        largest.sort_by_key(|(priority, _, sink)| (*priority, std::cmp::Reverse(sink.bytes)));
        // The first one whose rows can be read.
        for (_, name, sink) in largest {
            let excess = Room { records: 1, bytes: over.min(sink.bytes) };
            if later(name, &outbox::drop_oldest(self.book, name, sink, excess)) {
                return true;
            }
        }
        may && !is_pinned && self.drop_log()
    }

    /// Drops a piece of a log where all logs have more than what the sinks' own bounds leave of the store,
    /// or a quarter of it. That gives way first: a stream that cannot go on does not evict other
    /// streams' results.
    fn drop_excess_log(&mut self) -> bool {
        let logs: u64 = self.state.tables.values().map(|table| table.bytes).sum();
        logs > logs_max(self.layout, self.max_bytes) && self.drop_log()
    }

    /// Drops the oldest rows of the largest log; false where there is nothing to drop.
    fn drop_log(&mut self) -> bool {
        let tables = self.state.tables.iter_mut();
        let largest = tables.max_by_key(|(_, table)| table.bytes);
        match largest.filter(|(_, table)| table.bytes > 0) {
            Some((name, table)) => log::drop_oldest(self.book, name, table),
            None => false,
        }
    }
}
