//! One device or feed at work: reads its driver, closes batches, hands them to the table, and
//! tells the driver when rows are durable.
//!
//! A polled device cannot be paused: where its table cannot keep up, its rows are counted as
//! refused and reading goes on. A feed that can wait does wait.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::TimestampMicrosecondType;
use futures::FutureExt;
use futures::future::BoxFuture;
use tidegate_drivers::table::Quality;
use tidegate_drivers::{Fault, Receipt, South, TableBuilder};
use tidegate_engine::store::{StoreError, Ticket};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, seed};
use crate::batch::Batcher;
use crate::ledger::{Growth, SourceKeys};
use crate::progress::Pulse;
use crate::supervisor::{Exit, Part, Said};
use crate::table::Arrival;

/// The ledger of one source: read = accepted + refused. Rows are counted when it is known what
/// became of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct SourceLedger {
    /// Rows that the driver delivered.
    pub read: u64,
    /// Rows of which all values were good.
    pub good: u64,
    /// Rows of which no value was good.
    pub bad: u64,
    /// Rows that the table took.
    pub accepted: u64,
    /// Rows that were dropped because the table's queue was full.
    pub refused_overload: u64,
    /// Rows that did not fit the table's schema: a bug of the driver.
    pub refused_schema: u64,
    /// `seq` of the next row: a source that takes this one's place goes on there, though not all of
    /// its counters may be durable yet.
    pub next_seq: u64,
    /// Event time of the last row, and when it was handed over.
    pub last_row: Option<(i64, Instant)>,
}

/// A ledger that one part writes and status reads: always a whole one.
#[derive(Debug, Default)]
pub struct SourceCounts(Mutex<SourceLedger>);

impl SourceCounts {
    /// An empty ledger of a source whose next row has this number.
    pub fn starting_at(next_seq: u64) -> Self {
        Self(Mutex::new(SourceLedger { next_seq, ..SourceLedger::default() }))
    }

    /// The ledger as it stands.
    pub fn get(&self) -> SourceLedger {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut SourceLedger)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// What a source does when its table's queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenBusy {
    /// Waits: the far side keeps what was not read yet.
    Wait,
    /// Drops the batch and counts it: the device's next cycle does not wait.
    Drop,
}

/// A source and what it needs.
pub struct Source {
    /// The device's name.
    pub name: String,
    /// The driver.
    pub south: Box<dyn South>,
    /// The driver's builders.
    pub rows: TableBuilder,
    /// Turns builders into batches.
    pub batcher: Batcher,
    /// The table's queue.
    pub table: mpsc::Sender<Arrival>,
    /// What to do when that queue is full.
    pub when_busy: WhenBusy,
    /// Shortest and longest pause between two attempts to connect.
    pub pauses: (Duration, Duration),
    /// Whether reading may rightly take for ever: a feed, as against a polled device.
    pub listens: bool,
    /// The source's ledger since the process started.
    pub counts: Arc<SourceCounts>,
    /// The names of its durable counters.
    pub keys: SourceKeys,
    /// Growth of durable counters that goes with the next batch that the table takes.
    pub owed: Vec<Growth>,
    /// Beats with each step.
    pub pulse: Arc<Pulse>,
    /// Ends reading.
    pub stop: CancellationToken,
    /// Receipts whose rows are not durable yet, in order.
    pub unsettled: Unsettled,
}

/// Receipts whose rows are on their way to the store, in the order of reading.
#[derive(Default)]
pub struct Unsettled(VecDeque<(Receipt, BoxFuture<'static, Result<(), StoreError>>)>);

impl Unsettled {
    fn push(&mut self, receipt: Receipt, ticket: oneshot::Receiver<Ticket>) {
        let durable = async move {
            match ticket.await {
                Ok(ticket) => ticket.await,
                Err(_) => Err(StoreError::Closed),
            }
        };
        self.0.push_back((receipt, durable.boxed()));
    }

    /// Waits until the oldest rows are durable; for ever while there are none. Cancel safe.
    async fn next(&mut self) -> Result<Receipt, StoreError> {
        let Some((receipt, durable)) = self.0.front_mut() else {
            return std::future::pending().await;
        };
        let receipt = *receipt;
        let result = durable.await;
        self.0.pop_front();
        result.map(|()| receipt)
    }
}

impl Part for Source {
    async fn run(&mut self) -> Exit {
        let mut backoff = Backoff::new(self.pauses.0, self.pauses.1, seed(&self.name));
        let mut said = Said::default();
        loop {
            let fault = match self.connected(&mut backoff, &mut said).await {
                Ok(()) => return Exit::Done,
                Err(fault) => fault,
            };
            self.south.stats().set_error(Some(fault.to_string()));
            match fault {
                Fault::Config(error) => return Exit::Hopeless(error),
                Fault::Refused(error) | Fault::Link(error) => {
                    let pause = backoff.pause();
                    if said.is_new(&error) {
                        tracing::warn!(device = self.name, error, ?pause, "no connection");
                    } else {
                        tracing::debug!(device = self.name, error, ?pause, "no connection again");
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

impl Source {
    /// Connects and reads until the source is stopped (`Ok`) or its connection fails.
    async fn connected(&mut self, backoff: &mut Backoff, said: &mut Said) -> Result<(), Fault> {
        tokio::select! {
            result = self.south.connect() => result?,
            () = self.stop.cancelled() => return Ok(()),
        }
        self.pulse.beat();
        tracing::info!(device = self.name, "connected");
        loop {
            let read = async {
                let read = self.south.read(&mut self.rows);
                if self.listens { self.pulse.waiting(read).await } else { read.await }
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return self.finish().await,
                settled = self.unsettled.next() => {
                    let receipt = settled.map_err(|e| Fault::Link(format!("store: {e}")))?;
                    self.south.settle(receipt).await?;
                }
                read = read => {
                    self.pulse.beat();
                    match read {
                        Ok(receipt) => {
                            backoff.reset();
                            said.reset();
                            self.hand_over(receipt).await;
                        }
                        Err(Fault::Refused(error)) => self.south.stats().set_error(Some(error)),
                        Err(fault) => return Err(fault),
                    }
                }
            }
        }
    }

    /// Completes the cycle under way and waits until what was handed over is settled.
    async fn finish(&mut self) -> Result<(), Fault> {
        self.south.finish(&mut self.rows).await?;
        self.hand_over(None).await;
        self.settle_accounts().await;
        while !self.unsettled.0.is_empty() {
            match self.unsettled.next().await {
                Ok(receipt) => self.south.settle(receipt).await?,
                Err(error) => return Err(Fault::Link(format!("store: {error}"))),
            }
        }
        Ok(())
    }

    /// Closes the builders and gives the batch to the table. A receipt without rows (a message
    /// that was passed over) is settled with the rows before it.
    async fn hand_over(&mut self, receipt: Option<Receipt>) {
        if self.rows.is_empty() {
            if let Some(receipt) = receipt {
                self.unsettled.0.push_back((receipt, std::future::ready(Ok(())).boxed()));
            }
            return;
        }
        let mut rows = self.rows.finish();
        let stamp = self.batcher.stamp(&mut rows);
        let count = rows.len() as u64;
        let of = |q: Quality| rows.qualities.iter().filter(|x| **x == q).count() as u64;
        let (good, bad) = (of(Quality::Good), of(Quality::Bad));
        let read = |ledger: &mut SourceLedger| {
            ledger.read += count;
            ledger.good += good;
            ledger.bad += bad;
        };
        let batch = match self.batcher.close(rows, stamp) {
            Ok(batch) => batch,
            Err(error) => {
                tracing::error!(device = self.name, %error, "rows do not fit the table");
                self.counts.change(|ledger| {
                    read(ledger);
                    ledger.refused_schema += count;
                });
                self.owe(self.keys.schema.clone(), count);
                return;
            }
        };
        let next_seq = self.batcher.next_seq();
        let last = batch.column(0).as_primitive::<TimestampMicrosecondType>().values().last();
        let last_row = last.map(|micros| (*micros, Instant::now()));
        let (ticket, durable) = match receipt {
            Some(_) => {
                let (tx, rx) = oneshot::channel();
                (Some(tx), Some(rx))
            }
            None => (None, None),
        };
        let mut counts = self.owed.clone();
        counts.push((self.keys.accepted.clone(), count));
        let arrival = Arrival { batch, unset: stamp.unset, counts, ticket };
        let taken = match self.when_busy {
            WhenBusy::Wait => self.pulse.waiting(self.table.send(arrival)).await.is_ok(),
            WhenBusy::Drop => self.table.try_send(arrival).is_ok(),
        };
        self.counts.change(|ledger| {
            read(ledger);
            ledger.last_row = last_row;
            ledger.next_seq = next_seq;
            *(if taken { &mut ledger.accepted } else { &mut ledger.refused_overload }) += count;
        });
        if taken {
            self.owed.clear();
        } else {
            self.owe(self.keys.overload.clone(), count);
        }
        if let (true, Some(receipt), Some(durable)) = (taken, receipt, durable) {
            self.unsettled.push(receipt, durable);
        }
    }

    /// Has a durable counter grow with the next batch that the table takes.
    fn owe(&mut self, counter: Arc<str>, rows: u64) {
        match self.owed.iter_mut().find(|(owed, _)| *owed == counter) {
            Some((_, owed)) => *owed += rows,
            None => self.owed.push((counter, rows)),
        }
    }

    /// Gives the table what is owed, where no batch will take it along.
    async fn settle_accounts(&mut self) {
        if self.owed.is_empty() {
            return;
        }
        let counts = std::mem::take(&mut self.owed);
        let batch = self.batcher.none();
        let given = self.table.send(Arrival { batch, unset: false, counts, ticket: None }).await;
        if given.is_err() {
            tracing::warn!(device = self.name, "its last refused rows are not counted durably");
        }
    }
}
