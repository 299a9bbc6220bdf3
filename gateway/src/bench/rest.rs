//! Size of the binary, memory at rest, and time to the first reading.
//!
//! At rest: status page on, one Modbus device of ten floats polled every 10 s, one 10 s window into
//! a file. Start: from the process' start to the first request at the device, store empty.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use super::figures::{Bar, Figure};
use super::plant::Plant;
use super::process::Child;
use super::{Bench, block};

/// Longest time that a start may take before it counts as failed.
const START_MAX: Duration = Duration::from_mins(1);

pub(super) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    if bench.wants("binary.mb") {
        let bytes = std::fs::metadata(std::env::current_exe()?)?.len();
        let figure = Figure::alone("binary.mb", "MB", &[bytes as f64 / 1e6]);
        bench.report.add(figure.bar(Bar::AtMost(45.0)))?;
    }
    if bench.wants("idle.rss_mb") {
        let rss = rounds(bench, idle)?;
        let figure = Figure::alone("idle.rss_mb", "MB", &rss);
        bench.report.add(figure.bar(Bar::AtMost(30.0)))?;
    }
    if bench.wants("start.first_reading_ms") {
        let starts = rounds(bench, start)?;
        bench.report.add(Figure::alone("start.first_reading_ms", "ms", &starts))?;
    }
    Ok(())
}

fn rounds(
    bench: &Bench,
    mut measure: impl FnMut(&Bench) -> anyhow::Result<f64>,
) -> anyhow::Result<Vec<f64>> {
    (0..bench.effort.rounds).map(|_| measure(bench)).collect()
}

fn gateway(bench: &Bench, plant: &Plant) -> anyhow::Result<(Child, Instant)> {
    let dir = bench.fresh("rest")?;
    let config = dir.join("tidegate.yaml");
    write(&config, &document(&dir, plant.port()))?;
    let start = Instant::now();
    Ok((Child::tidegate(&["run", &config.display().to_string()], &dir)?, start))
}

fn idle(bench: &Bench) -> anyhow::Result<f64> {
    let plant = Plant::start()?;
    let (mut child, _) = gateway(bench, &plant)?;
    block(async {
        tokio::time::sleep(bench.effort.settle).await;
        Ok(child.observe(Duration::from_secs(2)).await?.rss_mb)
    })
}

fn start(bench: &Bench) -> anyhow::Result<f64> {
    let plant = Plant::start()?;
    let (mut child, start) = gateway(bench, &plant)?;
    block(first_reading(&mut child, &plant, start))
}

/// Milliseconds from `start` to the first request at the plant.
pub(super) async fn first_reading(
    child: &mut Child,
    plant: &Plant,
    start: Instant,
) -> anyhow::Result<f64> {
    loop {
        if let Some(first) = plant.first_request() {
            return Ok(first.duration_since(start).as_secs_f64() * 1e3);
        }
        child.usage()?;
        anyhow::ensure!(start.elapsed() < START_MAX, "no reading within {START_MAX:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn document(dir: &Path, port: u16) -> String {
    let points: Vec<String> = (0..10)
        .map(|p| format!("{{ name: p{p}, register: holding, address: {}, type: f32 }}", p * 2))
        .collect();
    format!(
        "version: 1\n\
         gateway: {{ name: bench }}\n\
         store: {{ path: \"{dir}/store\" }}\n\
         web: {{ listen: \"127.0.0.1:0\" }}\n\
         links: [ {{ name: plant, bus: {{ tcp: {{ host: 127.0.0.1, port: {port} }} }} }} ]\n\
         devices:\n  - name: meter\n    driver:\n      modbus:\n        link: plant\n        \
         polls: [ {{ name: all, every: 10s }} ]\n        points: [ {} ]\n\
         streams:\n  - name: mean_10s\n    from: [meter]\n    window: {{ tumbling: {{ size: 10s }} }}\n    \
         sql: SELECT window_end() AS window_end, avg(p0) AS p0 FROM meter\n    \
         to: [ {{ sink: out }} ]\n\
         sinks:\n  - name: out\n    driver: {{ file: {{ path: \"{dir}/out.jsonl\" }} }}\n",
        points.join(", "),
        dir = dir.display(),
    )
}

/// Writes a file that nobody reads before it is whole.
pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    Ok(File::create(path)?.write_all(text.as_bytes())?)
}
