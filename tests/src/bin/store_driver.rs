//! A store and nothing around it: commits one after the other, and says of each when it is durable.
//!
//! `load` goes on where the store in the folder stands, and prints a line after each step that the
//! store has promised to keep. `verify` opens the store, reads everything and prints it as JSON.
//! What each commit holds follows from its number alone, so that whoever compares needs no memory:
//! see `commit`. Knows no file of the store. Not shipped: the tests kill it, and break its disk.

use std::collections::VecDeque;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use tidegate_engine::store::{
    Commit, Layout, LogRows, OutboxRow, OutboxRows, Recovery, SinkLayout, StateChange, Store,
    StoreOptions, StreamProgress, TableLayout, WhenFull,
};

const TABLE: &str = "readings";
const STREAM: &str = "results";
/// Its rows are marked as delivered, some commits later.
const TAKEN: &str = "taken";
/// Nothing of it is delivered but what a refusal passes.
const REFUSED: &str = "refused";
/// Commits between the one that is marked as delivered and the newest.
const LAG: u64 = 5;
/// Commits that the stream would replay.
const REPLAYED: u64 = 8;
/// Commits between two refusals.
const REFUSAL_EVERY: u64 = 10;
/// A store that cannot write holds its commit until the next flush.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// How long reading may take where something is missing.
const READ_MAX: Duration = Duration::from_secs(3);

type Failure = Box<dyn Error>;

/// A store and nothing around it.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Commits until the store holds so many commits.
    Load {
        /// The store's folder.
        #[arg(long)]
        dir: PathBuf,
        /// The number of the last commit.
        #[arg(long)]
        commits: u64,
        /// Rows of each commit.
        #[arg(long)]
        rows: u64,
        /// Bytes that the store may hold.
        #[arg(long, default_value_t = 64 << 20)]
        max_bytes: u64,
        /// Commits that are on their way at once, so that a frame is made while another is written.
        #[arg(long, default_value_t = 1)]
        together: usize,
        /// Waits for a line on standard input once the store is open.
        #[arg(long)]
        held: bool,
    },
    /// Prints what the store holds.
    Verify {
        /// The store's folder.
        #[arg(long)]
        dir: PathBuf,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    match Arguments::parse().task {
        Task::Load { dir, commits, rows, max_bytes, together, held } => {
            let (store, recovery) = open(&dir, max_bytes)?;
            println!("opened {} {}", store.epoch(), recovery.created);
            if held {
                std::io::stdin().read_line(&mut String::new())?;
            }
            load(store, commits, rows, together).await
        }
        Task::Verify { dir } => verify(&dir).await,
    }
}

fn open(dir: &Path, max_bytes: u64) -> Result<(Store, Recovery), Failure> {
    let sink = |name: &str| SinkLayout {
        name: name.into(),
        max_bytes,
        max_age_us: None,
        max_records: None,
        when_full: WhenFull::Block,
        priority: 0,
    };
    let layout = Layout {
        tables: vec![TableLayout {
            name: TABLE.into(),
            readers: vec![STREAM.into()],
            history_us: None,
        }],
        sinks: vec![sink(TAKEN), sink(REFUSED)],
    };
    // Hardly any cache, so that what is read comes from the files, and a ring that a run goes round.
    let defaults = StoreOptions::new(dir, "driver", 1_000);
    let options =
        StoreOptions { max_bytes, cache_bytes: 16 << 10, ring_bytes: 64 << 10, ..defaults };
    Ok(Store::open(options, layout)?)
}

async fn load(store: Store, commits: u64, rows: u64, together: usize) -> Result<(), Failure> {
    let flushing = store.clone();
    // Ends with the runtime.
    tokio::spawn(async move {
        let mut every = tokio::time::interval(FLUSH_EVERY);
        loop {
            every.tick().await;
            flushing.flush();
        }
    });
    let first = store.progress(STREAM).map_or(Ok(0), |progress| reached(&progress))? + 1;
    let mut coming = first..=commits;
    let mut open = VecDeque::new();
    for number in first..=commits {
        // Half of them at once: a single one would be written by the thread that makes frames.
        let more = if open.len() <= together / 2 { together - open.len() } else { 0 };
        for submitted in coming.by_ref().take(more) {
            open.push_back(store.submit(commit(submitted, rows)?).await?);
        }
        open.pop_front().ok_or("no commit is on its way")?.await?;
        println!("committed {number}");
        if let Some(settled) = number.checked_sub(LAG).filter(|settled| *settled > 0) {
            // Read as whoever delivers would: errors of reading are met by the store's thread, too.
            store.next(TAKEN, (settled - 1) * rows, 1, 1).await?;
            store.delivered(TAKEN, settled * rows);
            if number.is_multiple_of(REFUSAL_EVERY) {
                store.reject(REFUSED, settled * rows, &format!("refused by commit {number}"));
            }
        }
    }
    store.close().await?;
    println!("closed");
    Ok(())
}

fn reached(progress: &StreamProgress) -> Result<u64, Failure> {
    Ok(std::str::from_utf8(&progress.state)?.parse()?)
}

/// Commit `number`, from 1: rows with the log positions before `number * rows`, and as many
/// results for each sink.
fn commit(number: u64, rows: u64) -> Result<Commit, Failure> {
    let first = (number - 1) * rows;
    let table: Arc<str> = TABLE.into();
    let replay_from = number.saturating_sub(REPLAYED) * rows;
    Ok(Commit {
        wait: true,
        rows: vec![LogRows {
            table: table.clone(),
            position: first,
            accepted: 0,
            stamps: None,
            batch: batch(first, rows)?,
        }],
        outbox: [TAKEN, REFUSED].map(|sink| results(sink, number, first, rows)).into(),
        progress: Some(StreamProgress {
            stream: STREAM.into(),
            state: number.to_string().into(),
            processed: vec![(table.clone(), first + rows)],
            replay_from: vec![(table, replay_from)],
            states: states(number),
        }),
        counts: vec![],
        boot: None,
    })
}

fn batch(first: u64, rows: u64) -> Result<RecordBatch, Failure> {
    let numbers = (first..first + rows).map(i64::try_from).collect::<Result<Vec<_>, _>>()?;
    let schema = Schema::new(vec![
        Field::new("n", DataType::Int64, false),
        Field::new("v", DataType::Float64, true),
        Field::new("label", DataType::Utf8, true),
    ]);
    let values: Float64Array =
        numbers.iter().map(|n| (n % 7 != 0).then_some(*n as f64 * 0.25)).collect();
    let labels: StringArray = numbers.iter().map(|n| Some(format!("n{n}"))).collect();
    let numbers = Int64Array::from(numbers);
    let columns: Vec<Arc<dyn Array>> = vec![Arc::new(numbers), Arc::new(values), Arc::new(labels)];
    Ok(RecordBatch::try_new(Arc::new(schema), columns)?)
}

fn results(sink: &str, number: u64, first: u64, rows: u64) -> OutboxRows {
    let start = i64::try_from(number).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    OutboxRows {
        sink: sink.into(),
        stream: STREAM.into(),
        first_seq: first + 1,
        window: Some((start, start.saturating_add(1_000_000))),
        created: start,
        bodies: (first + 1..=first + rows).map(|seq| body(sink, seq)).collect(),
    }
}

/// Keys of the stream's states.
const STATES: u64 = 5;

/// One state is new or changed with each commit, and with each fourth another one goes.
fn states(number: u64) -> Vec<StateChange> {
    let length = usize::try_from(number * 397 % 3_001).unwrap_or_default();
    let bytes = Some(format!("{number:>length$}").into());
    let mut changes = vec![StateChange { key: number % STATES, bytes }];
    if number.is_multiple_of(4) {
        changes.push(StateChange { key: (number + 2) % STATES, bytes: None });
    }
    changes
}

/// Bodies of many lengths, each with its own content to the last byte.
fn body(sink: &str, seq: u64) -> Bytes {
    let letters = ('a'..='z').cycle().skip(usize::try_from(seq % 26).unwrap_or_default());
    let padding: String = letters.zip(0..seq % 97).map(|(letter, _)| letter).collect();
    format!("{{\"to\":\"{sink}\",\"n\":{seq},\"pad\":\"{padding}\"}}").into()
}

async fn verify(dir: &Path) -> Result<(), Failure> {
    let (store, recovery) = open(dir, u64::MAX)?;
    let progress = store.progress(STREAM);
    let mut sinks = serde_json::Map::new();
    for sink in [TAKEN, REFUSED] {
        sinks.insert(sink.to_owned(), outbox(&store, sink).await?);
    }
    let stats = store.stats();
    let held = json!({
        "epoch": store.epoch(),
        "commit": progress.as_ref().map(reached).transpose()?,
        "processed": progress.as_ref().map(|p| positions(&p.processed)),
        "replay_from": progress.as_ref().map(|p| positions(&p.replay_from)),
        "log_end": store.log_end(TABLE),
        "log": log(&store, progress.as_ref()).await?,
        "states": kept_states(&store).await?,
        "sinks": sinks,
        "recovery": {
            "created": recovery.created,
            "quarantined": recovery.quarantined,
            "salvaged": recovery.salvaged,
            "corrupt_records": recovery.corrupt_records,
            "progress_lost": recovery.progress_lost,
            "unclaimed": recovery.unclaimed,
        },
        "ids_doubted": recovery.ids_doubted,
        "corrupt_records": stats.corrupt_records,
        "corrupt_rows": stats.corrupt_rows,
        "log_rows_dropped": stats.log_rows_dropped,
        "last_error": stats.last_error,
    });
    println!("{held}");
    store.close().await?;
    Ok(())
}

/// The stream's states: key, text.
async fn kept_states(store: &Store) -> Result<Value, Failure> {
    let states = store.states(STREAM).await?;
    let whole =
        states.whole.iter().map(|(key, bytes)| json!([key, String::from_utf8_lossy(bytes)]));
    Ok(whole.chain(states.damaged.iter().map(|key| json!([key, null]))).collect())
}

fn positions(positions: &[(Arc<str>, u64)]) -> Value {
    positions.iter().map(|(table, position)| (table.to_string(), json!(position))).collect()
}

async fn outbox(store: &Store, sink: &str) -> Result<Value, Failure> {
    let backlog = store.backlog(sink);
    let cursor = store.cursor(sink);
    let mut rows: Vec<OutboxRow> = Vec::new();
    while (rows.len() as u64) < backlog.records {
        let after = rows.last().map_or(cursor, |row| row.position);
        // What is counted and does not come is missing: the rest is printed, and says so.
        let Ok(next) =
            tokio::time::timeout(READ_MAX, store.next(sink, after, 4_096, 8 << 20)).await
        else {
            break;
        };
        rows.extend(next?);
    }
    let letters = store.rejected(sink, 10_000).await?;
    let letters = letters.iter().map(|letter| {
        let mut shown = row(&letter.row);
        shown["reason"] = json!(letter.reason);
        shown
    });
    Ok(json!({
        "cursor": cursor,
        "records": backlog.records,
        "delivered": backlog.delivered,
        "dropped": backlog.dropped,
        "rejected": backlog.rejected,
        "lost": backlog.lost,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "letters": letters.collect::<Vec<_>>(),
    }))
}

fn row(row: &OutboxRow) -> Value {
    json!({
        "position": row.position,
        "epoch": row.epoch,
        "stream": &*row.stream,
        "seq": row.seq,
        "body": String::from_utf8_lossy(&row.body),
        "window": row.window,
        "created": row.created,
    })
}

/// The rows that the stream would replay: position, then the columns.
async fn log(store: &Store, progress: Option<&StreamProgress>) -> Result<Vec<Value>, Failure> {
    let mut rows = Vec::new();
    let mut from = progress.and_then(|progress| progress.replay_from.first()).map_or(0, |at| at.1);
    loop {
        let batches = store.read_log(TABLE, from, 4_096).await?;
        if batches.is_empty() {
            return Ok(rows);
        }
        for (position, batch) in batches {
            let column = |index: usize| batch.column(index).as_any();
            let (Some(numbers), Some(values), Some(labels)) = (
                column(0).downcast_ref::<Int64Array>(),
                column(1).downcast_ref::<Float64Array>(),
                column(2).downcast_ref::<StringArray>(),
            ) else {
                return Err(format!("columns {:?}", batch.schema()).into());
            };
            for index in 0..batch.num_rows() {
                let at = position + index as u64;
                let value = values.is_valid(index).then(|| values.value(index));
                rows.push(json!([at, numbers.value(index), value, labels.value(index)]));
                from = at + 1;
            }
        }
    }
}
