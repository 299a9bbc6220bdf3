//! Child processes and what `/proc` says of them.
//!
//! A child ends when its value is dropped. CPU time is the sum of the threads' own clocks
//! (`schedstat`, nanoseconds) or, where threads have ended, the process's (`stat`, hundredths).
//! Source: proc(5).

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child as Process, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use tokio::time::Instant;

/// A running child.
pub(super) struct Child {
    process: Process,
}

/// What a process has used, and holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    /// User and system time since its start.
    pub(super) cpu: Duration,
    /// Resident memory in MB (10^6 bytes).
    pub(super) rss_mb: f64,
    /// The most resident memory it ever had.
    pub(super) rss_peak_mb: f64,
}

impl Child {
    /// Starts this binary with other arguments. What it logs goes to a file in `dir`.
    pub(super) fn tidegate(args: &[&str], dir: &Path) -> anyhow::Result<Self> {
        Self::tidegate_at("warn", args, dir)
    }

    /// The same, logging by other levels.
    pub(super) fn tidegate_at(levels: &str, args: &[&str], dir: &Path) -> anyhow::Result<Self> {
        let binary = std::env::current_exe()?;
        let mut command = Command::new(binary);
        command.arg("--log").arg(levels).args(args);
        Self::start(&mut command, dir)
    }

    /// Starts a program. What it logs goes to a file in `dir`.
    pub(super) fn start(command: &mut Command, dir: &Path) -> anyhow::Result<Self> {
        let log = File::options().create(true).append(true).open(dir.join("stderr.log"))?;
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self { process })
    }

    /// What the child prints.
    pub(super) fn output(&mut self) -> anyhow::Result<BufReader<ChildStdout>> {
        self.process.stdout.take().map(BufReader::new).context("its output is taken already")
    }

    /// The next line that the child prints, of which it prints nothing else.
    pub(super) fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output()?.read_line(&mut line)?;
        anyhow::ensure!(!line.is_empty(), "a part of the benchmark ended before it began");
        Ok(line.trim().to_owned())
    }

    /// What it uses now. An error when it has ended, which none of them should.
    pub(super) fn usage(&mut self) -> anyhow::Result<Usage> {
        if let Some(status) = self.process.try_wait()? {
            anyhow::bail!("a process under measurement ended: {status}; see stderr.log");
        }
        let folder = format!("/proc/{}", self.process.id());
        let status = std::fs::read_to_string(format!("{folder}/status"))?;
        let mb = |key: &str| -> Option<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            let kib: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
            Some(kib * 1024.0 / 1e6)
        };
        let cpu = cpu_of_process(&folder)?.max(cpu_of_threads(&folder)?);
        let (now, peak) = (mb("VmRSS:"), mb("VmHWM:"));
        let (Some(rss_mb), Some(rss_peak_mb)) = (now, peak) else {
            anyhow::bail!("{folder}/status has no VmRSS");
        };
        Ok(Usage { cpu, rss_mb, rss_peak_mb })
    }

    /// Bytes that it has caused to be written to storage since its start, as the kernel counts them:
    /// whole pages, whatever file they belong to.
    pub(super) fn bytes_written(&mut self) -> anyhow::Result<u64> {
        self.usage()?;
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.process.id()))?;
        let bytes = io.lines().find_map(|line| line.strip_prefix("write_bytes:"));
        Ok(bytes.context("no write_bytes in io")?.trim().parse()?)
    }

    /// CPU time per time, and the highest resident memory of some moments, over `span`.
    pub(super) async fn observe(&mut self, span: Duration) -> anyhow::Result<Observed> {
        let (start, first) = (Instant::now(), self.usage()?);
        let mut rss_mb = first.rss_mb;
        while start.elapsed() < span {
            let pause = span.saturating_sub(start.elapsed()).min(Duration::from_millis(500));
            tokio::time::sleep(pause).await;
            rss_mb = self.usage()?.rss_mb.max(rss_mb);
        }
        let last = self.usage()?;
        let cpu = last.cpu.saturating_sub(first.cpu).as_secs_f64() / start.elapsed().as_secs_f64();
        Ok(Observed { cpu_ms_per_s: cpu * 1e3, rss_mb, rss_peak_mb: last.rss_peak_mb })
    }
}

/// What a process used over some time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observed {
    pub(super) cpu_ms_per_s: f64,
    pub(super) rss_mb: f64,
    pub(super) rss_peak_mb: f64,
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended by itself, which is what is wanted.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// User and system time in ticks of 10 ms, threads that have ended included.
fn cpu_of_process(folder: &str) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(format!("{folder}/stat"))?;
    // Fields 14 and 15, counted behind the name, which may hold spaces.
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    let ticks = behind.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks: u64 = ticks.collect::<Result<Vec<_>, _>>()?.into_iter().sum();
    Ok(Duration::from_millis(ticks * 10))
}

/// The threads' own nanoseconds, where the kernel counts them.
fn cpu_of_threads(folder: &str) -> anyhow::Result<Duration> {
    let mut nanos: u64 = 0;
    for thread in std::fs::read_dir(format!("{folder}/task"))? {
        // A thread may end between the listing and the reading.
        let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else {
            continue;
        };
        nanos += text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanos))
}
