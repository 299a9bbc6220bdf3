//! Rows as they pass, for whoever looks.
//!
//! Promise: who is looked at does not wait: rows that a slow reader has not taken are lost to it and
//! counted, and where nobody looks it costs one atomic read. What waits for one reader is bounded
//! in values. Knows neither sockets nor JSON.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use tokio::sync::mpsc;

/// Batches that wait for one reader at most.
const BATCHES_MAX: usize = 256;
/// Values (rows times columns) that wait for one reader at most: some 8 MiB of numbers.
const VALUES_MAX: usize = 1 << 20;

/// Rows that passed.
#[derive(Debug, Clone)]
pub struct Passed {
    /// The log position of the first row of a table; the sequence number of the first result of a
    /// stream.
    pub first: u64,
    /// The rows.
    pub batch: RecordBatch,
    /// What went into a result: `good`, `uncertain` or `bad`; none of a table's row, which says so
    /// itself.
    pub quality: Option<&'static str>,
}

impl Passed {
    fn values(&self) -> usize {
        self.batch.num_rows() * self.batch.num_columns().max(1)
    }
}

/// Under which name a stream's results pass as rows of its table, at their positions in its log.
pub fn rows_of(stream: &str) -> String {
    // No name has a stroke.
    format!("{stream}/rows")
}

/// Who looks at which table or stream.
#[derive(Debug, Default)]
pub struct Taps {
    readers: AtomicUsize,
    by_name: Mutex<BTreeMap<String, Vec<Reader>>>,
}

#[derive(Debug)]
struct Reader {
    queue: mpsc::Sender<Passed>,
    shared: Arc<Shared>,
}

/// What a reader and its sender share.
#[derive(Debug, Default)]
struct Shared {
    /// Values that wait.
    values: AtomicUsize,
    /// Rows that were not taken in time.
    lost: AtomicU64,
}

impl Taps {
    /// Hands rows of a table or stream to whoever looks at it. Never waits.
    pub fn offer(&self, name: &str, passed: impl FnOnce() -> Passed) {
        if self.readers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(readers) = by_name.get(name) else {
            return;
        };
        let passed = passed();
        let (values, rows) = (passed.values(), passed.batch.num_rows() as u64);
        for reader in readers {
            let shared = &reader.shared;
            let waiting = shared.values.fetch_add(values, Ordering::Relaxed);
            // One batch is taken however large it is.
            let room = waiting == 0 || waiting + values <= VALUES_MAX;
            if !room || reader.queue.try_send(passed.clone()).is_err() {
                shared.values.fetch_sub(values, Ordering::Relaxed);
                shared.lost.fetch_add(rows, Ordering::Relaxed);
            }
        }
    }

    /// Looks at a table or a stream from now on, whether or not there is one of that name.
    pub fn look(self: &Arc<Self>, name: &str) -> Tap {
        let (queue, passed) = mpsc::channel(BATCHES_MAX);
        let shared = Arc::new(Shared::default());
        let reader = Reader { queue, shared: shared.clone() };
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        by_name.entry(name.to_owned()).or_default().push(reader);
        self.readers.fetch_add(1, Ordering::Relaxed);
        Tap { taps: self.clone(), name: name.to_owned(), passed, shared }
    }
}

/// One reader's end; it looks until it is dropped.
#[derive(Debug)]
pub struct Tap {
    taps: Arc<Taps>,
    name: String,
    passed: mpsc::Receiver<Passed>,
    shared: Arc<Shared>,
}

impl Tap {
    /// Waits for the next rows. Cancel safe.
    pub async fn next(&mut self) -> Option<Passed> {
        let passed = self.passed.recv().await?;
        self.shared.values.fetch_sub(passed.values(), Ordering::Relaxed);
        Some(passed)
    }

    /// Rows that were lost since this was asked last.
    pub fn take_lost(&self) -> u64 {
        self.shared.lost.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let mut by_name = self.taps.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(readers) = by_name.get_mut(&self.name) {
            readers.retain(|reader| !Arc::ptr_eq(&reader.shared, &self.shared));
            if readers.is_empty() {
                by_name.remove(&self.name);
            }
        }
        self.taps.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array};
    use futures::FutureExt;

    use super::*;

    fn rows(first: i64, count: i64) -> Passed {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + count));
        let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
        Passed { first: first.unsigned_abs(), batch, quality: None }
    }

    #[test]
    fn who_looks_gets_what_passes_from_then_on() {
        let taps = Arc::new(Taps::default());
        taps.offer("t", || panic!("nobody looks"));
        let mut tap = taps.look("t");
        let mut other = taps.look("u");
        taps.offer("t", || rows(1, 3));
        taps.offer("t", || rows(4, 1));
        assert_eq!(tap.next().now_or_never().flatten().unwrap().batch.num_rows(), 3);
        assert_eq!(tap.next().now_or_never().flatten().unwrap().first, 4);
        assert!(tap.next().now_or_never().is_none());
        assert!(other.next().now_or_never().is_none());
        drop((tap, other));
        taps.offer("t", || panic!("nobody looks any more"));
    }

    #[test]
    fn a_slow_reader_loses_rows_and_is_told_how_many() {
        let taps = Arc::new(Taps::default());
        let (mut slow, mut quick) = (taps.look("t"), taps.look("t"));
        let many = i64::try_from(VALUES_MAX).unwrap();
        taps.offer("t", || rows(0, many + 5));
        assert!(quick.next().now_or_never().is_some());
        // The large one waits, so there is no room for these; the quick one has them.
        taps.offer("t", || rows(0, 7));
        taps.offer("t", || rows(7, 2));
        assert_eq!((slow.take_lost(), slow.take_lost()), (9, 0));
        assert_eq!(quick.take_lost(), 0);
        assert!(slow.next().now_or_never().is_some());
        taps.offer("t", || rows(9, 1));
        assert_eq!(slow.next().now_or_never().flatten().unwrap().first, 9);
        // Small batches are bounded in number.
        for _ in 0..BATCHES_MAX + 3 {
            taps.offer("t", || rows(0, 1));
        }
        assert_eq!(slow.take_lost(), 3);
    }
}
