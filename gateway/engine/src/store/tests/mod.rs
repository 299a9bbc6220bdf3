//! What the store promises, by fault. Expected values come from a model: a `Vec`, or a hand count.

mod bounds;
mod crash;
mod device;
mod encoding;
mod fake;
mod faults;
mod flow;
mod keeping;
mod kill;
mod letters;
mod looking;
mod medium;
mod relayout;
mod rot;
mod sharing;
mod stall;
mod stamps;
mod states;
mod unread;
mod upgrade;

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::array::{ArrayRef, Float64Array, StringArray, TimestampMicrosecondArray, UInt64Array};
use arrow::datatypes::UInt64Type;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;

use super::disk::Disk;
use super::{
    Commit, Layout, LogRows, OutboxRow, OutboxRows, Recovery, SinkLayout, StateChange, Store,
    StoreError, StoreOptions, StoredStates, StreamProgress, TableLayout, Ticket, WhenFull,
};
use fake::FakeDisk;

/// More than any test stores.
const NO_BOUND: u64 = 1 << 40;

fn options() -> StoreOptions {
    StoreOptions { ring_bytes: 64 << 10, ..StoreOptions::new("/fake", "gw", 7) }
}

fn sink(name: &str) -> SinkLayout {
    SinkLayout {
        name: name.into(),
        max_bytes: NO_BOUND,
        max_age_us: None,
        max_records: None,
        when_full: WhenFull::DropOldest,
        priority: 0,
    }
}

/// Table `t`, read by stream `s`; sinks `a` and `b`.
fn layout() -> Layout {
    Layout {
        tables: vec![TableLayout { name: "t".into(), readers: vec!["s".into()], history_us: None }],
        sinks: vec![sink("a"), sink("b")],
    }
}

fn open_with(disk: &FakeDisk, options: &StoreOptions, layout: Layout) -> Opened {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Store::open_on(&disk, options, layout)
}

type Opened = Result<(Store, Recovery), StoreError>;

fn open(disk: &FakeDisk) -> Opened {
    open_with(disk, &options(), layout())
}

/// Rows whose `seq` is their log position.
fn rows(positions: std::ops::Range<u64>) -> RecordBatch {
    let count = usize::try_from(positions.end - positions.start).unwrap();
    let time: Vec<i64> = positions.clone().map(|p| i64::try_from(p).unwrap() * 1_000).collect();
    let value: Vec<f64> = positions.clone().map(|p| f64::from(u32::try_from(p).unwrap())).collect();
    RecordBatch::try_from_iter([
        ("time", Arc::new(TimestampMicrosecondArray::from(time).with_timezone("UTC")) as ArrayRef),
        ("device", Arc::new(StringArray::from(vec!["press"; count]))),
        ("quality", Arc::new(StringArray::from(vec!["good"; count]))),
        ("seq", Arc::new(UInt64Array::from_iter_values(positions))),
        ("value", Arc::new(Float64Array::from(value))),
    ])
    .unwrap()
}

fn log_rows(positions: std::ops::Range<u64>) -> LogRows {
    let position = positions.start;
    LogRows { table: "t".into(), position, accepted: 0, stamps: None, batch: rows(positions) }
}

/// Results of stream `s` for a sink: one body per number, its text.
fn results(sink: &str, numbers: std::ops::Range<u64>, created: i64) -> OutboxRows {
    OutboxRows {
        sink: sink.into(),
        stream: "s".into(),
        first_seq: numbers.start,
        window: Some((10, 20)),
        created,
        bodies: numbers.map(|number| Bytes::from(number.to_string())).collect(),
    }
}

fn progress(state: &[u8], processed: u64, replay_from: u64) -> StreamProgress {
    StreamProgress {
        stream: "s".into(),
        state: state.to_vec(),
        processed: vec![("t".into(), processed)],
        replay_from: vec![("t".into(), replay_from)],
        states: vec![],
    }
}

/// What became of states of stream `s`: new texts, and keys that are gone.
fn changes(texts: &[(u64, &str)], gone: &[u64]) -> Vec<StateChange> {
    let put = texts.iter().map(|(key, text)| (*key, Some(Bytes::from((*text).to_owned()))));
    let gone = gone.iter().map(|key| (*key, None));
    put.chain(gone).map(|(key, bytes)| StateChange { key, bytes }).collect()
}

/// The states of stream `s` as texts, without the spaces before them.
async fn states(store: &Store) -> Vec<(u64, String)> {
    let StoredStates { whole: states, damaged } = store.states("s").await.unwrap();
    assert!(damaged.is_empty(), "{damaged:?}");
    let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap().trim().to_owned();
    states.into_iter().map(|(key, bytes)| (key, text(bytes))).collect()
}

async fn commit(store: &Store, commit: Commit) -> Result<(), StoreError> {
    store.submit(Commit { wait: true, ..commit }).await?.await
}

/// Submits a commit and waits until it is durable, or until the disk is dead: then nobody will ever
/// be told.
async fn commit_on(disk: &FakeDisk, store: &Store, commit: Commit) -> Result<(), StoreError> {
    let ticket = submit_on(disk, store, commit).await?;
    durable_on(disk, ticket).await
}

/// Submits a commit, unless the disk dies meanwhile.
async fn submit_on(disk: &FakeDisk, store: &Store, commit: Commit) -> Result<Ticket, StoreError> {
    tokio::select! {
        biased;
        ticket = store.submit(commit) => ticket,
        () = disk.death() => Err(StoreError::Closed),
    }
}

/// Waits until a commit is durable, or until the disk is dead.
async fn durable_on(disk: &FakeDisk, ticket: Ticket) -> Result<(), StoreError> {
    tokio::select! {
        biased;
        outcome = ticket => outcome,
        () = disk.death() => Err(StoreError::Closed),
    }
}

/// Stores results for one sink, durably.
async fn put(store: &Store, sink: &str, numbers: std::ops::Range<u64>) {
    let outbox = vec![results(sink, numbers, 1)];
    commit(store, Commit { outbox, ..Commit::default() }).await.unwrap();
}

/// Makes what was called before durable: a commit with a body for sink `b`.
async fn settle(store: &Store) {
    put(store, "b", 0..1).await;
}

fn bodies(rows: &[OutboxRow]) -> Vec<u64> {
    rows.iter().map(|row| std::str::from_utf8(&row.body).unwrap().parse().unwrap()).collect()
}

/// Every record that waits for a sink.
async fn waiting(store: &Store, sink: &str) -> Vec<OutboxRow> {
    let rows = open_rows(store, sink).await;
    rows.into_iter().filter(|row| row.gap.is_none()).collect()
}

/// Every notice of missing records that waits for a sink: position, first and last `seq`.
async fn notices(store: &Store, sink: &str) -> Vec<(u64, u64, u64)> {
    let rows = open_rows(store, sink).await;
    rows.iter().filter_map(|row| row.gap.map(|gap| (row.position, gap.from, gap.to))).collect()
}

/// Every record and notice that waits for a sink; empty when nothing does.
async fn open_rows(store: &Store, sink: &str) -> Vec<OutboxRow> {
    let mut all: Vec<OutboxRow> = Vec::new();
    let mut after = store.cursor(sink);
    let end = store.shared.state().sinks[sink].next - 1;
    while after < end {
        let more = tokio::select! {
            biased;
            more = store.next(sink, after, 7, 1 << 20) => more.unwrap(),
            // What cannot be read at the end is passed over, and `next` would wait for more.
            () = answered(store) => break,
        };
        after = more.last().unwrap().position;
        all.extend(more);
    }
    all
}

/// Resolves after the store has answered three questions that were asked after those before.
async fn answered(store: &Store) {
    for _ in 0..3 {
        store.alive().await.unwrap();
        tokio::task::yield_now().await;
    }
}

/// The `seq` of every log row from `from` on, checked against its position.
async fn logged(store: &Store, from: u64) -> Vec<u64> {
    let mut all = Vec::new();
    let mut from = from;
    loop {
        let found = store.read_log("t", from, 5).await.unwrap();
        let Some((position, last)) = found.last() else {
            return all;
        };
        from = position + last.num_rows() as u64;
        for (position, batch) in found {
            let seqs = batch.column_by_name("seq").unwrap().as_primitive::<UInt64Type>();
            assert_eq!(batch, rows(position..position + seqs.len() as u64));
            all.extend(seqs.values());
        }
    }
}
