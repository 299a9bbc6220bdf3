//! `tidegate bench`: the promised figures, each against a baseline in the same run.
//!
//! Promises: product and baseline are this one binary, so they share profile and allocator; runs
//! alternate (product, baseline, product, …) and the median counts; what cannot be measured here is
//! said and left out, never made up. Memory and CPU are those of a child process of its own, read
//! from `/proc`; devices and load live in this process or in further children.
//! Knows nothing of bars being met: a figure carries its bar, and whoever reads compares.

mod append;
mod backlog;
mod bare;
mod broker;
mod engine;
mod figures;
mod modbus;
mod mqtt;
mod over_time;
mod plant;
mod process;
mod rest;
mod rows;
mod written;

use std::path::PathBuf;
use std::time::Duration;

use crate::cli::check::fail;
use figures::Report;

pub use bare::{Part, part};

/// What `bench` takes from the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchArgs {
    /// Beginnings of figures' names, such as `modbus.10k` or `store`; left out, all.
    pub names: Vec<String>,
    /// Where the figures are written, one JSON object a line.
    #[arg(long, default_value = "target/bench/results.jsonl")]
    pub out: PathBuf,
    /// Where stores and files are put while measuring: the disk that is measured.
    #[arg(long, default_value = "target/bench/work")]
    pub dir: PathBuf,
    /// Measure briefly, to see that it works; the figures are not worth much.
    #[arg(long)]
    pub short: bool,
}

/// How long and how often things are measured.
#[derive(Debug, Clone, Copy)]
struct Effort {
    /// Pairs of product and baseline.
    rounds: usize,
    /// Pairs of gateways with and without a heavy query: lateness differs most from run to run.
    lateness_pairs: usize,
    /// Until a gateway's first 10 s window has closed and memory has found its level.
    settle: Duration,
    /// What is measured of a gateway.
    measure: Duration,
    /// What is measured of a baseline that has nothing to settle.
    baseline: Duration,
    /// Rows of the engine's comparison.
    rows: usize,
    /// Bytes that wait in a store with a backlog.
    backlog_bytes: u64,
}

impl Effort {
    fn of(args: &BenchArgs) -> Self {
        let s = Duration::from_secs;
        if args.short {
            let (settle, measure, baseline) = (s(3), s(4), s(2));
            return Self {
                rounds: 1,
                lateness_pairs: 2,
                settle,
                measure,
                baseline,
                rows: 200_000,
                backlog_bytes: 64 << 20,
            };
        }
        Self {
            rounds: 3,
            lateness_pairs: 5,
            settle: s(14),
            measure: s(20),
            baseline: s(10),
            rows: 2_000_000,
            backlog_bytes: 1 << 30,
        }
    }
}

/// What every measurement needs.
struct Bench {
    names: Vec<String>,
    dir: PathBuf,
    effort: Effort,
    report: Report,
}

impl Bench {
    /// Whether a figure (or one of a group of figures that begin so) is asked for.
    fn wants(&self, name: &str) -> bool {
        let fits = |asked: &String| name.starts_with(asked.as_str()) || asked.starts_with(name);
        self.names.is_empty() || self.names.iter().any(fits)
    }

    /// An empty folder of this name below the working folder.
    fn fresh(&self, name: &str) -> anyhow::Result<PathBuf> {
        let dir = self.dir.join(name);
        if dir.exists() {
            std::fs::remove_dir_all(&dir)?;
        }
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }
}

/// Runs what waits to its end, on this thread.
fn block<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

/// Measures, prints the table and writes the file. Exit code 1 when something could not be measured
/// that should have been.
pub fn bench(args: &BenchArgs) -> u8 {
    match measure(args) {
        Ok(()) => 0,
        Err(error) => fail(format_args!("{error:#}")),
    }
}

fn measure(args: &BenchArgs) -> anyhow::Result<()> {
    std::fs::create_dir_all(&args.dir)?;
    let mut bench = Bench {
        names: args.names.clone(),
        dir: args.dir.canonicalize()?,
        effort: Effort::of(args),
        report: Report::new(&args.out)?,
    };
    if cfg!(debug_assertions) {
        println!("a debug build: the figures say nothing of the product");
    }
    rest::measure(&mut bench)?;
    engine::measure(&mut bench)?;
    over_time::measure(&mut bench)?;
    append::measure(&mut bench)?;
    written::measure(&mut bench)?;
    backlog::measure(&mut bench)?;
    mqtt::measure(&mut bench)?;
    modbus::measure(&mut bench)?;
    bench.report.print();
    std::fs::remove_dir_all(&bench.dir)?;
    Ok(())
}
