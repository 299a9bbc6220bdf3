//! The thread that owns the files: takes all that waits into one transaction, again and again.
//!
//! A failed transaction is never blindly repeated: the file is opened anew, the commit number in it
//! says whether the transaction landed, and only if not the same work is written again. Panics of
//! redb stay in here. Knows no clock: when to commit comes from the queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redb::Database;

use super::border::{StoreError, StoreStats};
use super::damage::{Damage, Trouble, contained, drop_contained};
use super::inbox::Shared;
use super::log;
use super::outbox;
use super::recovery::{self, Files, Opened, RECORDS, State, read_meta};
use super::salvage::salvage;
use super::transaction::Transaction;
use super::work::{Ask, Work, answer};

/// Times that one transaction is tried before the store gives up.
const ATTEMPTS_MAX: u32 = 3;
/// Above this length redb's quick repair is on: repair after a crash reads the whole file
/// otherwise (12.5 ms per MiB). Below it costs 16 kB a commit for nothing.
const QUICK_REPAIR_ABOVE: u64 = 32 << 20;

/// What became of a transaction.
enum Outcome {
    Durable,
    /// No room on the file system: to be tried again at the next flush.
    Stalled,
}

pub(super) struct Committer {
    shared: Arc<Shared>,
    files: Files,
    db: Option<Database>,
    state: State,
    damage: Damage,
    stats: StoreStats,
}

impl Committer {
    pub(super) fn new(shared: Arc<Shared>, opened: Opened) -> Self {
        let Opened { files, db, state, damage, .. } = opened;
        let stats = StoreStats::default();
        Committer { shared, files, db: Some(db), state, damage, stats }
    }

    /// Works until the store is closed or fails; then everybody is told.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let end = match contained(|| Ok(self.work())) {
            Ok(Ok(())) => StoreError::Closed,
            Ok(Err(reason)) => StoreError::Failed(reason),
            Err(trouble) => StoreError::Failed(trouble.text().to_owned()),
        };
        if let StoreError::Failed(reason) = &end {
            tracing::error!(reason, "the store has failed");
        }
        // The lock is released before anybody hears that the store is closed.
        if !drop_contained(self) {
            tracing::warn!("the store's file did not close cleanly");
        }
        shared.finish(&end);
    }

    fn work(&mut self) -> Result<(), String> {
        let mut stalled: Option<Work> = None;
        self.shared.show(self.figures());
        loop {
            let turn = self.shared.wait(stalled.is_some());
            let answered = turn.asks.into_iter().try_for_each(|ask| self.answer(ask));
            if let Err(reason) = answered {
                for work in [stalled, turn.work].into_iter().flatten() {
                    fail(work, &reason);
                }
                return Err(reason);
            }
            let was_stalled = stalled.is_some();
            let work = match (stalled.take(), turn.work) {
                (Some(mut held), more) => {
                    for (sink, upto) in more.into_iter().flat_map(|more| more.delivered) {
                        let mark = held.delivered.entry(sink).or_default();
                        *mark = upto.max(*mark);
                    }
                    if !turn.flush {
                        stalled = Some(held);
                        continue;
                    }
                    Some(held)
                }
                (None, work) => work,
            };
            if let Some(work) = work.filter(|work| self.is_needed(work)) {
                match self.commit(&work) {
                    Ok(Outcome::Durable) => {
                        for pending in work.commits {
                            answer(pending.ticket, Ok(()));
                        }
                    }
                    Ok(Outcome::Stalled) if !turn.close => stalled = Some(work),
                    Ok(Outcome::Stalled) => {
                        fail(work, "no room on the file system");
                        return Err("no room on the file system".to_owned());
                    }
                    Err(reason) => {
                        fail(work, &reason);
                        return Err(reason);
                    }
                }
            }
            // What came while the disk was full is still in the queue.
            if turn.close && !was_stalled {
                return Ok(());
            }
        }
    }

    /// Whether there is anything to write: nothing is written when nothing happened.
    fn is_needed(&self, work: &Work) -> bool {
        let (state, claims) = (&self.state, self.shared.claims());
        let moved = |(name, upto): (&Arc<str>, &u64)| {
            state.sinks.get(name).is_some_and(|sink| *upto > sink.cursor && sink.records() > 0)
        };
        let is_old = |now: i64| {
            let aged = claims.layout.sinks.iter().filter_map(|s| Some((s, s.max_age_us?)));
            aged.into_iter().any(|(sink, age)| {
                state.sinks.get(&sink.name).is_some_and(|sink| {
                    let limit = now.saturating_sub(age);
                    sink.records() > 0 && sink.head_created.is_none_or(|created| created < limit)
                })
            })
        };
        !work.commits.is_empty()
            || !work.refusals.is_empty()
            || work.delivered.iter().any(moved)
            || work.expire.is_some_and(is_old)
    }

    /// Makes the work durable, through errors if need be.
    fn commit(&mut self, work: &Work) -> Result<Outcome, String> {
        let before = self.state.meta.commit;
        let mut next = self.state.clone();
        let mut attempt = 0;
        let bytes = loop {
            attempt += 1;
            let result = self.try_commit(work, &mut next);
            let trouble = match result {
                Ok(bytes) => break bytes,
                Err(trouble) => trouble,
            };
            self.note(&trouble);
            let landed = self.recover(&trouble)?;
            if landed == Some(before + 1) && next.meta.commit == before + 1 {
                break 0;
            }
            if matches!(trouble, Trouble::Full(_)) {
                self.shared.show(self.figures());
                return Ok(Outcome::Stalled);
            }
            if attempt >= ATTEMPTS_MAX {
                return Err(trouble.text().to_owned());
            }
            next = self.state.clone();
        };
        self.state = next;
        self.stats.commits += 1;
        self.stats.bytes_committed += bytes;
        self.shared.publish(&self.state, self.figures(), work);
        Ok(Outcome::Durable)
    }

    fn try_commit(&mut self, work: &Work, next: &mut State) -> Result<u64, Trouble> {
        let Some(db) = &self.db else {
            return Err(Trouble::Io("not open".to_owned()));
        };
        let claims = self.shared.claims();
        let (damage, layout, max_bytes) = (&mut self.damage, &claims.layout, claims.max_bytes);
        let quick = self.files.traffic.length.load(Ordering::Relaxed) > QUICK_REPAIR_ABOVE;
        contained(|| {
            let mut txn = db.begin_write()?;
            txn.set_quick_repair(quick);
            let before = next.clone();
            let records = txn.open_table(RECORDS)?;
            let mut transaction = Transaction { records, state: next, damage, layout, max_bytes };
            let bytes = transaction.apply(work)?;
            transaction.put_states(&before)?;
            drop(transaction);
            txn.commit()?;
            Ok(bytes)
        })
    }

    fn note(&mut self, trouble: &Trouble) {
        tracing::error!(reason = trouble.text(), "the store's file failed; opening it again");
        self.stats.last_error = Some(trouble.text().to_owned());
    }

    /// Opens the file anew, on what the device holds, and returns the commit number found there.
    /// A broken file first gives up its readable records to a new one.
    fn recover(&mut self, trouble: &Trouble) -> Result<Option<u64>, String> {
        let mut damaged = matches!(trouble, Trouble::Damaged(_));
        let mut last = trouble.clone();
        for _ in 0..ATTEMPTS_MAX {
            match self.reopen(damaged) {
                Ok(commit) => {
                    self.stats.reopened += 1;
                    return Ok(commit);
                }
                Err(trouble) => {
                    self.note(&trouble);
                    damaged |= matches!(trouble, Trouble::Damaged(_));
                    last = trouble;
                }
            }
        }
        Err(last.text().to_owned())
    }

    fn reopen(&mut self, damaged: bool) -> Result<Option<u64>, Trouble> {
        if let Some(db) = self.db.take()
            && !drop_contained(db)
        {
            tracing::debug!("the failed file did not close cleanly");
        }
        let mut db = self.files.open_live()?;
        let found = contained(|| read_meta(&db, &mut self.damage))?.map(|meta| meta.commit);
        if damaged {
            (db, _) = salvage(&self.files, db, &mut self.damage)?;
            // What the memory knows is newer than what could be read: it goes into the new file,
            // unless the failed transaction landed, which then wrote its states itself.
            if found.is_none_or(|found| found <= self.state.meta.commit) {
                recovery::write(&db, |records| self.state.put_all(records))?;
            }
        }
        self.db = Some(db);
        Ok(found)
    }

    /// Answers a question from the file, through failures. The figures are shown before the answer,
    /// so that who has read past damage sees it counted.
    fn answer(&mut self, ask: Ask) -> Result<(), String> {
        match ask {
            Ask::Next { sink, after, max_rows, max_bytes, reply } => {
                let rows = self.read(|db, state, damage| {
                    let Some(state) = state.sinks.get(&sink) else {
                        return Ok((vec![], after));
                    };
                    let records = recovery::records(db)?;
                    outbox::read(&records, &sink, state, after, max_rows, max_bytes, damage)
                })?;
                self.shared.show(self.figures());
                answer(reply, Ok(rows));
            }
            Ask::Log { table, from, max_rows, reply } => {
                let rows = self.read(|db, state, damage| {
                    let Some(log) = state.tables.get(&table) else {
                        return Ok(vec![]);
                    };
                    let none = vec![];
                    let schemas = state.schemas.get(&table).unwrap_or(&none);
                    let records = recovery::records(db)?;
                    log::read(&records, &table, log, schemas, from, max_rows, damage)
                })?;
                self.shared.show(self.figures());
                answer(reply, Ok(rows));
            }
            Ask::Alive { reply } => answer(reply, Ok(())),
            Ask::Rejected { sink, limit, reply } => {
                let letters = self.read(|db, _, damage| {
                    outbox::letters(&recovery::records(db)?, &sink, limit, damage)
                })?;
                self.shared.show(self.figures());
                answer(reply, Ok(letters));
            }
        }
        Ok(())
    }

    fn read<T>(
        &mut self,
        question: impl Fn(&Database, &State, &mut Damage) -> Result<T, Trouble>,
    ) -> Result<T, String> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let result = match &self.db {
                Some(db) => contained(|| question(db, &self.state, &mut self.damage)),
                None => Err(Trouble::Io("not open".to_owned())),
            };
            let trouble = match result {
                Ok(found) => return Ok(found),
                Err(trouble) => trouble,
            };
            self.note(&trouble);
            if attempt >= ATTEMPTS_MAX {
                return Err(trouble.text().to_owned());
            }
            self.recover(&trouble)?;
        }
    }

    fn figures(&self) -> StoreStats {
        StoreStats {
            bytes_written: self.files.traffic.written.load(Ordering::Relaxed),
            file_bytes: self.files.traffic.length.load(Ordering::Relaxed),
            corrupt_records: self.damage.records,
            corrupt_rows: self.damage.rows,
            ..self.stats.clone()
        }
    }
}

fn fail(work: Work, reason: &str) {
    for pending in work.commits {
        answer(pending.ticket, Err(StoreError::Failed(reason.to_owned())));
    }
}
