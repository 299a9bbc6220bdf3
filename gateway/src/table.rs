//! One table at work: gives rows their log positions, queues them for the store, and hands them to
//! every stream that reads the table.
//!
//! The order of these three is the promise: a stream's progress, which names positions, reaches
//! the store's queue after the rows that it names.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use tidegate_engine::store::{Commit, LogRows, Store, Ticket};
use tokio::sync::{mpsc, oneshot};

use crate::supervisor::{Exit, Part};

/// A batch on its way from a source to its table.
pub struct Arrival {
    /// Rows of the table's schema.
    pub batch: RecordBatch,
    /// Where to send the store's ticket, for a source that waits until its rows are durable.
    pub ticket: Option<oneshot::Sender<Ticket>>,
}

/// A batch with its place in the table's log.
#[derive(Debug, Clone)]
pub struct Positioned {
    /// The table, by its index in the reading stream.
    pub table: usize,
    /// The log position of the first row.
    pub position: u64,
    /// The rows.
    pub batch: RecordBatch,
}

/// A stream that reads this table.
#[derive(Clone)]
pub struct Reader {
    /// The stream's queue.
    pub queue: mpsc::Sender<Positioned>,
    /// This table's index in that stream.
    pub table: usize,
}

/// The streams that read a table; others may come while it is at work.
#[derive(Default)]
pub struct Readers(Mutex<Vec<Reader>>);

impl Readers {
    /// Adds a stream: it is given every batch from now on.
    pub fn add(&self, reader: Reader) {
        self.lock().push(reader);
    }

    /// Lets all streams go: their input ends.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn now(&self) -> Vec<Reader> {
        self.lock().clone()
    }

    /// Forgets streams that have ended.
    fn forget_ended(&self) {
        self.lock().retain(|reader| !reader.queue.is_closed());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Reader>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A table and what it needs.
pub struct Table {
    /// The table's name.
    pub name: Arc<str>,
    /// What its sources bring.
    pub arrivals: mpsc::Receiver<Arrival>,
    /// Where its rows become durable.
    pub store: Store,
    /// Who reads it.
    pub readers: Arc<Readers>,
    /// The log position of the next row.
    pub next_position: u64,
}

impl Part for Table {
    async fn run(&mut self) -> Exit {
        while let Some(arrival) = self.arrivals.recv().await {
            if let Err(error) = self.take(arrival).await {
                return Exit::Failed(error);
            }
        }
        // Dropping the senders tells the streams that this table is done.
        self.readers.clear();
        Exit::Done
    }
}

impl Table {
    async fn take(&mut self, arrival: Arrival) -> Result<(), String> {
        let Arrival { batch, ticket } = arrival;
        let position = self.next_position;
        let commit = Commit {
            wait: ticket.is_some(),
            rows: vec![LogRows { table: self.name.clone(), position, batch: batch.clone() }],
            ..Commit::default()
        };
        let durable = self.store.submit(commit).await.map_err(|e| format!("store: {e}"))?;
        self.next_position += batch.num_rows() as u64;
        if let Some(ticket) = ticket {
            // A source that is gone will be sent its rows again.
            drop(ticket.send(durable));
        }
        for reader in self.readers.now() {
            let rows = Positioned { table: reader.table, position, batch: batch.clone() };
            if reader.queue.send(rows).await.is_err() {
                // Taken out of the configuration. What it did not pass is in the log for the
                // stream that takes its place.
                self.readers.forget_ended();
            }
        }
        Ok(())
    }
}
