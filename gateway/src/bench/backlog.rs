//! A gateway whose sink has been away: memory, start and drain with a gibibyte of waiting records,
//! and what a gateway writes while nothing happens.
//!
//! The store is filled by this process through the engine's own border, under the configuration
//! that the gateway then runs: records of some 250 bytes for one MQTT sink at a port where nobody
//! listens. The gateway beside it is the same with an empty store. The drain's reader does
//! nothing with the records; its baseline reads as many bytes of bodies from one file, whose pages
//! were dropped from the cache as the store drops those of its own files. Idle: the sink is
//! connected, and a device that never answers is polled once before anything is measured; polled
//! each second, it makes a row that says so each second, which is the figure beside it. What the
//! kernel counts is scaled to a day, so that what happens less often than measured is not seen.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{Advice, fadvise};
use tidegate_config::{Document, ProcessEnvironment, SourceFile, load_and_check};
use tidegate_engine::store::{Commit, OutboxRows, Store};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::broker::Server;
use super::figures::{Bar, Figure};
use super::plant::Plant;
use super::process::Child;
use super::rest::{first_reading, write};
use super::{Bench, block};
use crate::build::{Crews, Surroundings, layout, store_options};
use crate::clock::{Clock, SystemClock};
use crate::planner::EnginePlanner;

const RSS: &str = "store.backlog.rss_mb";
const START: &str = "store.backlog.first_reading_ms";
const DRAIN: &str = "store.drain.records_per_s";
const DRAIN_BYTES: &str = "store.drain.mb_per_s";
const IDLE: &str = "store.idle.bytes_a_day";
const SILENT: &str = "store.silent_device.bytes_a_day";

/// The sink that is away.
const SINK: &str = "out";
/// Nobody listens there: tcpmux, of 1988.
const DEAD: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);
/// Records of one commit while the store is filled.
const COMMIT_RECORDS: u64 = 1_000;
/// Records, and bytes of bodies, that the reader takes at once: as a sink does.
const READ_RECORDS: usize = 1_000;
const READ_BYTES: usize = 1 << 20;
/// Bytes that the baseline reads at once.
const PIECE_BYTES: usize = 64 << 10;
/// Between two flushes, as `store.commit_every` has it by default.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

pub(super) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    let gateways = bench.wants(RSS) || bench.wants(START);
    let drains = bench.wants(DRAIN) || bench.wants(DRAIN_BYTES);
    if gateways || drains {
        let dir = bench.fresh("backlog")?;
        block(fill(&dir, bench.effort.backlog_bytes))?;
        if gateways {
            run_gateways(bench, &dir)?;
        }
        if drains {
            measure_drain(bench, &dir)?;
        }
        std::fs::remove_dir_all(&dir)?;
    }
    if bench.wants(IDLE) {
        let bytes = idle(bench, "1h")?;
        bench.report.add(Figure::alone(IDLE, "bytes", &[bytes]).bar(Bar::AtMost(0.0)))?;
    }
    if bench.wants(SILENT) {
        let bytes = idle(bench, "1s")?;
        bench.report.add(Figure::alone(SILENT, "bytes", &[bytes]))?;
    }
    Ok(())
}

/// Memory and start, beside those of a gateway whose store is empty.
fn run_gateways(bench: &mut Bench, dir: &Path) -> anyhow::Result<()> {
    let (mut rss, mut starts) = (Vec::new(), Vec::new());
    for _ in 0..bench.effort.rounds {
        let (ours_start, ours_rss) = run_gateway(bench, dir)?;
        let empty = bench.fresh("empty")?;
        let (theirs_start, theirs_rss) = run_gateway(bench, &empty)?;
        starts.push((ours_start, theirs_start));
        rss.push((ours_rss, theirs_rss));
    }
    if bench.wants(RSS) {
        let figure = Figure::pairs(RSS, "MB", &rss);
        bench.report.add(figure.bar(Bar::AboveBaselineAtMost(20.0)))?;
    }
    if bench.wants(START) {
        let figure = Figure::pairs(START, "ms", &starts);
        bench.report.add(figure.bar(Bar::ValueAtMost(2_000.0)))?;
    }
    Ok(())
}

/// Milliseconds to the first reading, and resident memory once it has found its level.
fn run_gateway(bench: &Bench, dir: &Path) -> anyhow::Result<(f64, f64)> {
    let plant = Plant::start()?;
    let start = Instant::now();
    let mut child = start_gateway(dir, &text(dir, plant.port(), "10s", DEAD), "warn")?;
    block(async {
        let first_ms = first_reading(&mut child, &plant, start).await?;
        tokio::time::sleep(bench.effort.settle).await;
        Ok((first_ms, child.observe(Duration::from_secs(2)).await?.rss_mb))
    })
}

fn start_gateway(dir: &Path, text: &str, level: &str) -> anyhow::Result<Child> {
    let config = dir.join("tidegate.yaml");
    write(&config, text)?;
    Child::tidegate_at(level, &["run", &config.display().to_string()], dir)
}

/// One device of ten floats, a 10 s window, one MQTT sink.
fn text(dir: &Path, plant: u16, every: &str, broker: SocketAddr) -> String {
    let points: Vec<String> = (0..10)
        .map(|p| format!("{{ name: p{p}, register: holding, address: {}, type: f32 }}", p * 2))
        .collect();
    format!(
        "version: 1\n\
         gateway: {{ name: bench }}\n\
         store: {{ path: \"{dir}/store\", max_bytes: 4GiB }}\n\
         web: {{ listen: \"127.0.0.1:0\" }}\n\
         links: [ {{ name: plant, bus: {{ tcp: {{ host: 127.0.0.1, port: {plant} }} }} }} ]\n\
         devices:\n  - name: meter\n    driver:\n      modbus:\n        link: plant\n        \
         polls: [ {{ name: all, every: {every} }} ]\n        points: [ {points} ]\n\
         streams:\n  - name: mean_10s\n    from: [meter]\n    window: {{ tumbling: {{ size: 10s }} }}\n    \
         sql: SELECT window_end() AS window_end, avg(p0) AS p0 FROM meter\n    \
         to: [ {{ sink: {SINK} }} ]\n\
         sinks:\n  - name: {SINK}\n    store: {{ max_bytes: 3GiB }}\n    driver:\n      \
         mqtt: {{ url: \"mqtt://{broker}\", topic: \"bench/out\", qos: 1 }}\n",
        dir = dir.display(),
        points = points.join(", "),
    )
}

fn document(dir: &Path) -> anyhow::Result<Document> {
    let file =
        SourceFile { name: "bench.yaml".to_owned(), text: text(dir, DEAD.port(), "10s", DEAD) };
    let checked = load_and_check(&[file], &ProcessEnvironment, &EnginePlanner::default());
    Ok(checked.map_err(|problems| anyhow::anyhow!(problems.human()))?.0.document)
}

/// The store that the gateway in `dir` has.
fn open(dir: &Path) -> anyhow::Result<Store> {
    let document = document(dir)?;
    let crews = Crews { poll: Handle::current(), compute: Handle::current() };
    let environment = Arc::new(ProcessEnvironment);
    let around = Surroundings { clock: Arc::new(SystemClock), environment, crews };
    Ok(Store::open(store_options(&document, &around), layout(&document))?.0)
}

/// Puts records into the store until `bytes` wait.
async fn fill(dir: &Path, bytes: u64) -> anyhow::Result<()> {
    let store = open(dir)?;
    let mut seq = 0;
    while store.backlog(SINK).bytes < bytes {
        let rows = OutboxRows {
            sink: SINK.into(),
            stream: "mean_10s".into(),
            first_seq: seq,
            window: None,
            created: SystemClock.now(),
            bodies: (seq..seq + COMMIT_RECORDS).map(body).collect(),
        };
        seq += COMMIT_RECORDS;
        let commit = Commit { wait: true, outbox: vec![rows], ..Commit::default() };
        store.submit(commit).await?.await?;
    }
    let backlog = store.backlog(SINK);
    anyhow::ensure!(backlog.records == seq, "{} of {seq} records wait", backlog.records);
    Ok(store.close().await?)
}

/// What a result looks like: some 250 bytes of JSON, of which no two are alike.
fn body(seq: u64) -> Bytes {
    let values: Vec<String> = (0..10)
        .map(|p| format!("\"p{p}\":{:.6}", 230.0 + (seq as f64 * 0.37 + f64::from(p)).sin()))
        .collect();
    let text = format!(
        "{{\"id\":\"bench/1/mean_10s/{seq:010}\",\"window_end\":\"2026-11-29T12:00:00Z\",{}}}",
        values.join(",")
    );
    Bytes::from(text)
}

/// What was read, and how long it took.
#[derive(Debug, Clone, Copy, Default)]
struct Drained {
    records: u64,
    bytes: u64,
    took: Duration,
}

/// A part of the backlog in each round, each beside a file of as many bytes.
fn measure_drain(bench: &mut Bench, dir: &Path) -> anyhow::Result<()> {
    let (mut records, mut megabytes) = (Vec::new(), Vec::new());
    let rounds = bench.effort.rounds as u64;
    for round in 0..rounds {
        let ours = block(drain(dir, rounds - round))?;
        let theirs = read_file(&dir.join("read"), ours.bytes)?.as_secs_f64();
        let (took, bytes) = (ours.took.as_secs_f64(), ours.bytes as f64 / 1e6);
        records.push((ours.records as f64 / took, ours.records as f64 / theirs));
        megabytes.push((bytes / took, bytes / theirs));
    }
    if bench.wants(DRAIN) {
        bench.report.add(Figure::pairs(DRAIN, "records/s", &records))?;
    }
    if bench.wants(DRAIN_BYTES) {
        bench.report.add(Figure::pairs(DRAIN_BYTES, "MB/s", &megabytes))?;
    }
    Ok(())
}

/// Delivers one of `parts` of what waits to nobody, until that is durable.
async fn drain(dir: &Path, parts: u64) -> anyhow::Result<Drained> {
    let store = open(dir)?;
    let before = store.backlog(SINK);
    let wanted = before.records / parts;
    let (mut after, mut drained) = (store.cursor(SINK), Drained::default());
    let start = Instant::now();
    let mut flushed = start;
    while drained.records < wanted {
        let most = usize::try_from(wanted - drained.records)?.min(READ_RECORDS);
        for row in store.next(SINK, after, most, READ_BYTES).await? {
            after = row.position;
            drained.records += 1;
            drained.bytes += row.body.len() as u64;
        }
        store.delivered(SINK, after);
        if flushed.elapsed() >= FLUSH_EVERY {
            store.flush();
            flushed = Instant::now();
        }
    }
    store.submit(Commit { wait: true, ..Commit::default() }).await?.await?;
    drained.took = start.elapsed();
    let delivered = store.backlog(SINK).delivered - before.delivered;
    anyhow::ensure!(delivered == drained.records && store.cursor(SINK) == after, "not drained");
    store.close().await?;
    Ok(drained)
}

/// Reads a file of `bytes`, of which no page is in memory.
fn read_file(path: &PathBuf, bytes: u64) -> anyhow::Result<Duration> {
    let mut piece = vec![0xA5; PIECE_BYTES];
    let mut file = File::create(path)?;
    let mut left = bytes;
    while left > 0 {
        let count = usize::try_from(left)?.min(PIECE_BYTES);
        file.write_all(&piece[..count])?;
        left -= count as u64;
    }
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut file = File::open(path)?;
    let start = Instant::now();
    let mut read = 0;
    loop {
        let count = file.read(&mut piece)?;
        read += count as u64;
        if count == 0 {
            break;
        }
    }
    anyhow::ensure!(read == bytes, "{read} of {bytes} bytes were read");
    Ok(start.elapsed())
}

/// Bytes a day of a gateway whose device is polled so often and never answers.
fn idle(bench: &Bench, every: &str) -> anyhow::Result<f64> {
    let dir = bench.fresh("idle")?;
    let broker = Server::start(&dir, 20)?;
    // Its backlog of connections is all that ever answers.
    let silent = TcpListener::bind(("127.0.0.1", 0))?;
    let text = text(&dir, silent.local_addr()?.port(), every, broker.addr);
    // What is logged goes to a file here and to a journal elsewhere.
    let mut child = start_gateway(&dir, &text, "off")?;
    block(async {
        tokio::time::sleep(bench.effort.settle).await;
        let (start, before) = (Instant::now(), child.bytes_written()?);
        anyhow::ensure!(before > 0, "this file system does not count what is written");
        tokio::time::sleep(bench.effort.measure).await;
        let written = child.bytes_written()? - before;
        Ok(written as f64 / start.elapsed().as_secs_f64() * 86_400.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("tidegate-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn what_is_filled_in_is_drained_in_parts_and_nothing_is_left() {
        let dir = folder("filled");
        let bytes = 3 << 20;
        block(fill(&dir, bytes)).unwrap();
        let halves = [2, 1].map(|parts| block(drain(&dir, parts)).unwrap());
        let records: u64 = halves.iter().map(|half| half.records).sum();
        let found: u64 = halves.iter().map(|half| half.bytes).sum();
        assert_eq!(records % COMMIT_RECORDS, 0);
        // A record that waits counts four bytes beside its body; a body has less than 300.
        let waited = found + records * 4;
        assert!((bytes..bytes + COMMIT_RECORDS * 304).contains(&waited), "{waited}");
        assert_eq!(halves[0].records, records / 2);
        let left = block(async { Ok(open(&dir)?.backlog(SINK)) }).unwrap();
        assert_eq!((left.records, left.delivered, left.lost), (0, records, 0));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_record_has_some_250_bytes_and_is_json() {
        for seq in [0, 7, 4_000_000_000] {
            let body = body(seq);
            assert!((200..300).contains(&body.len()), "{}", body.len());
            let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(value["id"], format!("bench/1/mean_10s/{seq:010}"));
        }
    }

    #[test]
    fn a_file_is_read_to_its_end() {
        let dir = folder("read");
        let path = dir.join("read");
        assert!(read_file(&path, 100_000).unwrap() > Duration::ZERO);
        assert_eq!(std::fs::metadata(path).unwrap().len(), 100_000);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
