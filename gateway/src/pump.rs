//! One sink at work: takes records from its outbox in order, delivers them, and moves the cursor.
//!
//! The cursor is a contiguous low-water mark: it moves over what the far side has taken, and over
//! what was refused often enough to be set aside, and over nothing else.

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
    /// The sink's ledger.
    pub counts: Arc<SinkCounts>,
    /// Beats with each step.
    pub pulse: Arc<Pulse>,
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
        let mut cursor = self.store.cursor(&self.name);
        let mut refusals = 0;
        loop {
            let next = self.store.next(&self.name, cursor, self.rows_max, DELIVERY_BYTES_MAX);
            let rows = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(()),
                rows = self.pulse.waiting(next) => {
                    rows.map_err(|e| Fault::Link(format!("store: {e}")))?
                }
            };
            let payloads: Vec<Payload> = rows.iter().map(|row| self.payload(row)).collect();
            let Delivered { count, fault } = self.north.deliver(&payloads).await;
            self.pulse.beat();
            if count > 0 {
                cursor = rows[count - 1].position;
                self.store.delivered(&self.name, cursor);
                self.counts.delivered.fetch_add(count as u64, Ordering::Relaxed);
                backoff.reset();
                said.reset();
                refusals = 0;
            }
            match fault {
                None => {}
                Some(Fault::Refused(reason)) => {
                    refusals += 1;
                    let row = &rows[count];
                    self.north.stats().set_error(Some(reason.clone()));
                    if refusals >= self.refusals_max {
                        tracing::warn!(
                            sink = &*self.name,
                            position = row.position,
                            reason,
                            "record refused too often: set aside"
                        );
                        self.store.reject(&self.name, row.position, &reason);
                        cursor = row.position;
                        refusals = 0;
                    }
                }
                Some(fault) => return Err(fault),
            }
        }
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
