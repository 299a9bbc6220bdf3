//! One table at work: gives rows their log positions, queues them for the store, and hands them to
//! every stream that reads the table.
//!
//! The order of these three is the promise: a stream's progress, which names positions, reaches
//! the store's queue after the rows that it names.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use tidegate_engine::store::{Commit, LogRows, Store, Ticket, doubted};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::clock::{ClockWait, DurableTime, SharedClock};
use crate::ledger::{ClockKeys, Growth};
use crate::supervisor::{Exit, Part};
use crate::tap::{Passed, Taps};

/// A batch on its way from a source to its table.
pub struct Arrival {
    /// Rows of the table's schema; none where there is only something to count.
    pub batch: RecordBatch,
    /// They were stamped by the monotonic clock alone, because nobody has set the other yet.
    pub unset: bool,
    /// Durable counters that grow with these rows.
    pub counts: Vec<Growth>,
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

    /// Hands each stream the rows as it wants them. One that was taken out of the configuration is
    /// forgotten: what it did not pass is in the log for the stream that takes its place.
    pub(crate) async fn send(&self, rows: impl Fn(usize) -> Positioned) {
        for reader in self.now() {
            if reader.queue.send(rows(reader.table)).await.is_err() {
                self.forget_ended();
            }
        }
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
    /// What came after the batches that were put together last.
    pub held: Option<Arrival>,
    /// The log position of the next row.
    pub next_position: u64,
    /// The time of day, for the table's history.
    pub clock: SharedClock,
    /// Who looks at its rows.
    pub taps: Arc<Taps>,
    /// How far time has come in what is durable.
    pub durable_time: Arc<DurableTime>,
    /// Whether rows wait for the time of day.
    pub wait: Arc<ClockWait>,
    /// The names of the counters of these.
    pub clock_keys: ClockKeys,
}

/// How long a batch that nobody waits for may wait for others: devices that are polled together
/// answer together.
const GATHER_FOR: Duration = Duration::from_millis(10);
/// Rows that are put together at most; batches of a quarter of it are left as they are.
const GATHER_ROWS: usize = 256;

impl Part for Table {
    async fn run(&mut self) -> Exit {
        while let Some(arrival) = match self.held.take() {
            Some(arrival) => Some(arrival),
            None => self.arrivals.recv().await,
        } {
            for arrival in self.gather(arrival).await {
                if let Err(error) = self.take(arrival).await {
                    return Exit::Failed(error);
                }
            }
        }
        // Dropping the senders tells the streams that this table is done.
        self.readers.clear();
        Exit::Done
    }
}

impl Table {
    /// Puts small batches together, in their order: what costs once for each column of a batch
    /// costs once for each value of a batch of one row. What came and does not fit is held.
    async fn gather(&mut self, first: Arrival) -> Vec<Arrival> {
        let small = |arrival: &Arrival| {
            arrival.ticket.is_none() && arrival.batch.num_rows() < GATHER_ROWS / 4
        };
        // The entrance that is kept for devices to come, and one for each device.
        let many_sources = self.arrivals.sender_strong_count() > 2;
        if !many_sources || !small(&first) {
            return vec![first];
        }
        let until = Instant::now() + GATHER_FOR;
        let (mut rows, mut gathered) = (first.batch.num_rows(), vec![first]);
        while rows < GATHER_ROWS
            && let Ok(Some(arrival)) = timeout_at(until, self.arrivals.recv()).await
        {
            let alike = arrival.unset == gathered[0].unset
                && arrival.batch.schema_ref() == gathered[0].batch.schema_ref();
            if !small(&arrival) || !alike {
                self.held = Some(arrival);
                break;
            }
            rows += arrival.batch.num_rows();
            gathered.push(arrival);
        }
        self.join(gathered)
    }

    fn join(&self, gathered: Vec<Arrival>) -> Vec<Arrival> {
        let batches: Vec<&RecordBatch> = gathered.iter().map(|arrival| &arrival.batch).collect();
        let unset = gathered[0].unset;
        match concat_batches(batches[0].schema_ref(), batches) {
            Ok(batch) => {
                let counts = gathered.into_iter().flat_map(|arrival| arrival.counts).collect();
                vec![Arrival { batch, unset, counts, ticket: None }]
            }
            Err(error) => {
                tracing::warn!(table = &*self.name, %error, "rows are not put together");
                gathered
            }
        }
    }

    async fn take(&mut self, arrival: Arrival) -> Result<(), String> {
        let Arrival { batch, unset, mut counts, ticket } = arrival;
        let entry = self.wait.enter().await;
        let stamped = entry.stamp(batch, unset);
        let (batch, stamps) = stamped.map_err(|e| format!("rows are not stamped: {e}"))?;
        let (table, position, accepted) = (self.name.clone(), self.next_position, self.clock.now());
        let count = batch.num_rows() as u64;
        let rows = LogRows { table, position, accepted, stamps, batch: batch.clone() };
        let rows = if count > 0 { vec![rows] } else { Vec::new() };
        if stamps.is_some() {
            counts.push((self.clock_keys.waited.clone(), count));
        }
        counts.extend(self.durable_time.growth(accepted));
        let commit = Commit { wait: ticket.is_some(), rows, counts, ..Commit::default() };
        let durable = self.store.submit(commit).await.map_err(|e| format!("store: {e}"))?;
        self.next_position += count;
        if stamps.is_some() {
            entry.note(&self.name, count);
        }
        let waits = entry.is_waiting();
        drop(entry);
        if let Some(ticket) = ticket {
            // A source that is gone will be sent its rows again.
            drop(ticket.send(durable));
        }
        if count == 0 {
            return Ok(());
        }
        self.taps.offer(&self.name, || Passed {
            first: position,
            // Who looks sees the time that the row has so far.
            batch: stamps.and_then(|_| doubted(&batch).ok()).unwrap_or_else(|| batch.clone()),
            quality: None,
        });
        if waits {
            // Streams find it in the log, in its place.
            return Ok(());
        }
        self.readers.send(|table| Positioned { table, position, batch: batch.clone() }).await;
        Ok(())
    }
}
