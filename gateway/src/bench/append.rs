//! Durable batches of the store beside append + fdatasync on the same disk.
//!
//! 64 submitters hand in batches as fast as the queue takes them, each with `wait`, and await their
//! tickets meanwhile (open loop); the store groups what waits into a commit. All of them fill one table,
//! so a position and its place in the queue are taken under one lock, which is held for the queueing alone:
//! a lock that is awaited would measure how tasks hand it to each other. The baseline then
//! appends to one file exactly as many bytes as the store's records held, in as many pieces as there
//! were commits, with one fdatasync each. A row has four columns of its own and eight floats.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow::array::{ArrayRef, Float32Array, StringArray, TimestampMicrosecondArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use futures::FutureExt;
use tidegate_engine::store::{
    Commit, Layout, LogRows, Store, StoreError, StoreOptions, StreamProgress, TableLayout, Ticket,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Bench;
use super::figures::{Bar, Figure};

const NAME: &str = "store.append.ratio_to_fdatasync";
const SUBMITTERS: usize = 64;
/// Tickets that one submitter leaves open: more commits than this at once, and it waits.
const OPEN_MAX: usize = 4;
/// Rows that the reading stream is behind: as many stay in the log.
const BEHIND: u64 = 100_000;

pub(super) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    let mut figures = Vec::new();
    for rows in [1, 10, 100, 1_000] {
        let name = format!("{NAME}.{rows}_rows");
        if !bench.wants(&name) {
            continue;
        }
        let span = bench.effort.baseline / 2;
        let mut pairs = Vec::new();
        let mut grouped = Vec::new();
        for _ in 0..bench.effort.rounds {
            let dir = bench.fresh("append")?;
            let ours = submit(&dir, rows, span)?;
            let theirs = append(&dir.join("appended"), &ours)?;
            let batches = ours.batches as f64;
            pairs.push((batches / ours.took.as_secs_f64(), batches / theirs.as_secs_f64()));
            grouped.push(batches / ours.commits as f64);
        }
        let figure = Figure::pairs(name, "batches/s", &pairs);
        let figure = figure.bar(Bar::AtLeast(0.8));
        figures.push(figure.clone());
        bench.report.add(figure)?;
        let name = format!("store.append.batches_per_commit.{rows}_rows");
        bench.report.add(Figure::alone(name, "batches", &grouped))?;
    }
    if let Some(least) = Figure::least(NAME, &figures) {
        bench.report.add(least)?;
    }
    Ok(())
}

/// What a run of the store made durable.
struct Run {
    batches: u64,
    commits: u64,
    bytes: u64,
    took: Duration,
}

pub(super) fn schema(floats: usize) -> SchemaRef {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let mut fields = vec![
        Field::new("time", utc, false),
        Field::new("device", DataType::Utf8, false),
        Field::new("quality", DataType::Utf8, false),
        Field::new("seq", DataType::UInt64, false),
    ];
    let name = |at| Field::new(format!("p{at}"), DataType::Float32, true);
    fields.extend((0..floats).map(name));
    Arc::new(Schema::new(fields))
}

/// Rows of one device from `first` on, whose floats are all different.
pub(super) fn batch(
    schema: &SchemaRef,
    device: &str,
    first: u64,
    rows: usize,
) -> anyhow::Result<RecordBatch> {
    let numbers = first..first + rows as u64;
    let times = numbers.clone().map(|n| i64::try_from(n).unwrap_or(0) * 1_000_000 + 1_700_000_000);
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(TimestampMicrosecondArray::from_iter_values(times).with_timezone("UTC")),
        Arc::new(StringArray::from_iter_values(numbers.clone().map(|_| device))),
        Arc::new(StringArray::from_iter_values(numbers.clone().map(|_| "good"))),
        Arc::new(UInt64Array::from_iter_values(numbers.clone())),
    ];
    for column in 4..schema.fields().len() {
        #[expect(clippy::cast_possible_truncation, reason = "f32 is what the column holds")]
        let value = |n: u64| (230.0 + (n as f64 * 0.37 + column as f64).sin()) as f32;
        columns.push(Arc::new(Float32Array::from_iter_values(numbers.clone().map(value))));
    }
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

/// A store with one table that one stream reads.
pub(super) fn open(dir: &Path) -> anyhow::Result<Store> {
    let table =
        TableLayout { name: "rows".into(), readers: vec!["reader".into()], history_us: None };
    let layout = Layout { tables: vec![table], sinks: Vec::new() };
    let options = StoreOptions::new(dir.join("store"), "bench", 1);
    Ok(Store::open(options, layout)?.0)
}

/// Where the reading stream is.
pub(super) fn progress(processed: u64, replay_from: u64) -> StreamProgress {
    StreamProgress {
        stream: "reader".into(),
        state: vec![7; 256],
        processed: vec![("rows".into(), processed)],
        replay_from: vec![("rows".into(), replay_from)],
        states: Vec::new(),
    }
}

fn submit(dir: &Path, rows: usize, span: Duration) -> anyhow::Result<Run> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let store = open(dir)?;
        let batch = batch(&schema(8), "device", 0, rows)?;
        let next = Arc::new(Mutex::new(Next::new(&batch)));
        let durable = Arc::new(AtomicU64::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let (start, before) = (Instant::now(), store.stats());
        let mut submitters = JoinSet::new();
        for _ in 0..SUBMITTERS {
            let store = store.clone();
            let (next, durable, over) =
                (Arc::clone(&next), Arc::clone(&durable), Arc::clone(&over));
            submitters.spawn(async move { submitter(&store, &next, &durable, &over).await });
        }
        tokio::time::sleep_until(start + span).await;
        over.store(true, Ordering::Relaxed);
        while let Some(ended) = submitters.join_next().await {
            ended??;
        }
        let (took, after) = (start.elapsed(), store.stats());
        store.close().await?;
        Ok(Run {
            batches: durable.load(Ordering::Relaxed),
            commits: after.commits - before.commits,
            bytes: after.bytes_committed - before.bytes_committed,
            took,
        })
    })
}

/// What is handed in next.
struct Next {
    position: u64,
    commit: Commit,
}

impl Next {
    fn new(batch: &RecordBatch) -> Self {
        let rows = LogRows {
            table: "rows".into(),
            position: 0,
            accepted: 0,
            stamps: None,
            batch: batch.clone(),
        };
        let progress = Some(progress(0, 0));
        let commit = Commit { wait: true, rows: vec![rows], progress, ..Commit::default() };
        Next { position: 0, commit }
    }

    /// Queues the next batch; `None` while the queue is full.
    fn submit(&mut self, store: &Store) -> Option<Result<Ticket, StoreError>> {
        let mut commit = self.commit.clone();
        let mut end = self.position;
        for rows in &mut commit.rows {
            rows.position = end;
            end += rows.batch.num_rows() as u64;
        }
        if let Some(progress) = &mut commit.progress {
            progress.processed[0].1 = end;
            progress.replay_from[0].1 = end.saturating_sub(BEHIND);
        }
        let queued = store.submit(commit).now_or_never()?;
        if queued.is_ok() {
            self.position = end;
        }
        Some(queued)
    }
}

async fn submitter(
    store: &Store,
    next: &Mutex<Next>,
    durable: &AtomicU64,
    over: &AtomicBool,
) -> anyhow::Result<()> {
    let mut open = VecDeque::new();
    while !over.load(Ordering::Relaxed) {
        let queued = if open.len() < OPEN_MAX {
            next.lock().unwrap_or_else(PoisonError::into_inner).submit(store)
        } else {
            None
        };
        if let Some(ticket) = queued {
            open.push_back(ticket?);
        } else if let Some(first) = open.pop_front() {
            let first: Ticket = first;
            first.await?;
            durable.fetch_add(1, Ordering::Relaxed);
        } else {
            tokio::task::yield_now().await;
        }
    }
    for ticket in open {
        ticket.await?;
        durable.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// The same bytes in the same number of synced pieces.
fn append(path: &Path, run: &Run) -> anyhow::Result<Duration> {
    let mut file = File::create(path)?;
    let piece = vec![0xA5; usize::try_from(run.bytes / run.commits.max(1))?];
    let start = Instant::now();
    for _ in 0..run.commits {
        file.write_all(&piece)?;
        file.sync_data()?;
    }
    Ok(start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_in_the_store() {
        let dir = std::env::temp_dir().join(format!("tidegate-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let run = submit(&dir, 10, Duration::from_millis(300)).unwrap();
        assert!(run.batches > 0 && run.commits > 0 && run.commits <= run.batches);
        let end = crate::bench::block(async { Ok(open(&dir)?.log_end("rows")) }).unwrap();
        assert_eq!(end, run.batches * 10);
        assert!(append(&dir.join("appended"), &run).unwrap() > Duration::ZERO);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
