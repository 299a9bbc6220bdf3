//! One sink at work: takes records from its outbox in order, delivers them, and moves the cursor.
//!
//! The cursor is a contiguous low-water mark: it moves over what the far side has taken, and over
//! what was refused often enough to be set aside, and over nothing else.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_drivers::stats::LinkState;
use tidegate_drivers::{Delivered, Fault, North, Payload};
use tidegate_engine::store::{OutboxRow, Store};
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, seed};
use crate::progress::Pulse;
use crate::supervisor::{Exit, Part, Said};

/// The ledger of one sink beside what the store counts.
#[derive(Debug, Default)]
pub struct SinkCounts {
    /// Records that the far side has taken.
    pub delivered: AtomicU64,
}

/// A sink and what it needs.
pub struct Pump {
    /// The sink's name.
    pub name: Arc<str>,
    /// The driver.
    pub north: Box<dyn North>,
    /// The store.
    pub store: Store,
    /// Ends delivery.
    pub stop: CancellationToken,
    /// Shortest and longest pause between two attempts to connect.
    pub pauses: (Duration, Duration),
    /// Records of one delivery at most.
    pub rows_max: usize,
    /// Attempts before a refused record is set aside.
    pub refusals_max: u32,
    /// The gateway's name, the beginning of each record id.
    pub gateway: String,
    /// Position of the last record that is settled; 0 at the start.
    pub cursor: u64,
    /// Whether the record at the head ends connections.
    pub suspicion: Suspicion,
    /// The sink's ledger.
    pub counts: Arc<SinkCounts>,
    /// Beats with each step.
    pub pulse: Arc<Pulse>,
}

/// Knows a record with which the connection ends each time, such as one that is too large for a
/// broker that closes instead of refusing: it must not hold up the sink for ever.
#[derive(Debug, Clone, Copy, Default)]
pub struct Suspicion {
    position: u64,
    ended: u32,
}

/// Ends after which the head is sent alone, so that no other record can be the reason.
const ENDED_ALONE: u32 = 3;
/// Ends after which the record behind the head is tried: if that one passes, it is the head.
const ENDED_MAX: u32 = 5;

impl Suspicion {
    /// Which of the records that wait are sent.
    fn range(&mut self, rows: &[OutboxRow]) -> Range<usize> {
        match self.ended {
            _ if rows[0].position != self.position => 0..rows.len(),
            0..ENDED_ALONE => 0..rows.len(),
            ENDED_ALONE..ENDED_MAX => 0..1,
            _ if rows.len() > 1 => 1..2,
            _ => 0..1,
        }
    }

    /// The connection ended before anything was taken, `position` being at the head. After a
    /// record behind it fared no better, it is not to blame, and all begins anew.
    fn ended_with(&mut self, position: u64) {
        let ended = if position == self.position { self.ended + 1 } else { 1 };
        *self = Self { position, ended: if ended > ENDED_MAX { 0 } else { ended } };
    }
}

/// Bytes of one delivery at most: what a pump holds in memory.
const DELIVERY_BYTES_MAX: usize = 1 << 20;

impl Part for Pump {
    async fn run(&mut self) -> Exit {
        let mut backoff = Backoff::new(self.pauses.0, self.pauses.1, seed(&self.name));
        let mut said = Said::default();
        loop {
            let fault = match self.connected(&mut backoff, &mut said).await {
                Ok(()) => return Exit::Done,
                Err(fault) => fault,
            };
            self.north.stats().set_error(Some(fault.to_string()));
            match fault {
                Fault::Config(error) => return Exit::Hopeless(error),
                Fault::Refused(error) | Fault::Link(error) => {
                    self.north.stats().set_state(LinkState::Down);
                    let pause = backoff.pause();
                    if said.is_new(&error) {
                        tracing::warn!(sink = &*self.name, error, ?pause, "no connection");
                    } else {
                        tracing::debug!(sink = &*self.name, error, ?pause, "no connection again");
                    }
                    tokio::select! {
                        () = self.pulse.waiting(tokio::time::sleep(pause)) => {}
                        () = self.stop.cancelled() => return Exit::Done,
                    }
                }
            }
        }
    }
}

impl Pump {
    /// Connects and delivers until stopped (`Ok`) or until the connection fails.
    async fn connected(&mut self, backoff: &mut Backoff, said: &mut Said) -> Result<(), Fault> {
        tokio::select! {
            result = self.north.connect() => result?,
            () = self.stop.cancelled() => return Ok(()),
        }
        self.pulse.beat();
        tracing::info!(sink = &*self.name, "connected");
        let mut refusals = 0;
        loop {
            // What was delivered before is not sent again because its mark is not durable yet.
            self.cursor = self.cursor.max(self.store.cursor(&self.name));
            let next = self.store.next(&self.name, self.cursor, self.rows_max, DELIVERY_BYTES_MAX);
            let rows = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(()),
                rows = self.pulse.waiting(next) => {
                    rows.map_err(|e| Fault::Link(format!("store: {e}")))?
                }
            };
            let sent = self.suspicion.range(&rows);
            let payloads: Vec<Payload> =
                rows[sent.clone()].iter().map(|row| self.payload(row)).collect();
            let Delivered { count, fault } = self.north.deliver(&payloads).await;
            self.pulse.beat();
            if count > 0 {
                if sent.start > 0 {
                    let reason = "the connection ended with it again and again, and not without it";
                    self.set_aside(&rows[0], reason);
                }
                self.cursor = rows[sent.start + count - 1].position;
                self.store.delivered(&self.name, self.cursor);
                self.counts.delivered.fetch_add(count as u64, Ordering::Relaxed);
                self.suspicion = Suspicion::default();
                backoff.reset();
                said.reset();
                refusals = 0;
            }
            match fault {
                None => {}
                Some(Fault::Refused(reason)) => {
                    refusals += 1;
                    self.north.stats().set_error(Some(reason.clone()));
                    if refusals >= self.refusals_max {
                        self.set_aside(&rows[sent.start + count], &reason);
                        refusals = 0;
                    }
                }
                Some(fault) => {
                    if count == 0 {
                        self.suspicion.ended_with(rows[0].position);
                    }
                    return Err(fault);
                }
            }
        }
    }

    /// Puts a record among the dead letters and lets the cursor pass.
    fn set_aside(&mut self, row: &OutboxRow, reason: &str) {
        tracing::warn!(sink = &*self.name, position = row.position, reason, "record set aside");
        self.store.reject(&self.name, row.position, reason);
        self.cursor = row.position;
    }

    fn payload(&self, row: &OutboxRow) -> Payload {
        Payload {
            // The row's own epoch: rows may have waited since before the store was made anew.
            id: format!("{}/{}/{}/{}", self.gateway, row.epoch, row.stream, row.seq),
            stream: row.stream.clone(),
            body: row.body.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn rows(first: u64, count: u64) -> Vec<OutboxRow> {
        (first..first + count)
            .map(|position| OutboxRow {
                position,
                epoch: 1,
                stream: "s".into(),
                seq: position,
                body: Bytes::new(),
                window: None,
                created: 0,
            })
            .collect()
    }

    #[test]
    fn a42_a_record_that_ends_connections_is_found_by_the_one_behind_it() {
        let mut suspicion = Suspicion::default();
        let waiting = rows(7, 10);
        let mut sent = Vec::new();
        for _ in 0..7 {
            sent.push(suspicion.range(&waiting));
            suspicion.ended_with(7);
        }
        let all = 0..10;
        // Three times all, twice alone, once the next one: a broker that closes on everything
        // blames nobody, and it begins anew.
        let expected = [all.clone(), all.clone(), all.clone(), 0..1, 0..1, 1..2, all];
        assert_eq!(sent, expected);
    }

    #[test]
    fn another_head_is_another_record() {
        let mut suspicion = Suspicion::default();
        for _ in 0..5 {
            suspicion.ended_with(7);
        }
        assert_eq!(suspicion.range(&rows(7, 3)), 1..2);
        assert_eq!(suspicion.range(&rows(7, 1)), 0..1);
        assert_eq!(suspicion.range(&rows(8, 3)), 0..3);
        suspicion.ended_with(8);
        assert_eq!(suspicion.range(&rows(8, 3)), 0..3);
    }
}
