//! One table at work: gives rows their log positions, queues them for the store, and hands them to
//! every stream that reads the table.
//!
//! The order of these three is the promise: a stream's progress, which names positions, reaches
//! the store's queue after the rows that it names.

use std::sync::Arc;

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
pub struct Reader {
    /// The stream's queue.
    pub queue: mpsc::Sender<Positioned>,
    /// This table's index in that stream.
    pub table: usize,
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
    pub readers: Vec<Reader>,
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
        let mut gone = Vec::new();
        for (index, reader) in self.readers.iter().enumerate() {
            let rows = Positioned { table: reader.table, position, batch: batch.clone() };
            // A stream that has ended finds its rows in the log when it is built again.
            if reader.queue.send(rows).await.is_err() {
                gone.push(index);
            }
        }
        for index in gone.into_iter().rev() {
            self.readers.remove(index);
        }
        Ok(())
    }
}
