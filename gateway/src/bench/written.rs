//! Bytes that go to flash for each byte of payload, at 1,000 and 10,000 points a second.
//!
//! Each second, devices of 1,000 floats hand in one row each, a stream that keeps 10 s of them
//! moves on, and the store commits; payload is four bytes a float and eight for the row's time.
//! Counted twice: what the store wrote to its file, and, where this process may mount, the sectors
//! that the device under a private ext4 saw (its journal and metadata included).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use arrow::datatypes::SchemaRef;
use tidegate_engine::store::{Commit, LogRows, Store};

use super::append::{batch, open, progress, schema};
use super::figures::{Bar, Figure};
use super::{Bench, block};

const NAME: &str = "store.bytes_per_payload_byte";
const FLOATS: usize = 1_000;
/// Rows stay in the log for so many seconds: the open window.
const KEPT_SECONDS: u64 = 10;

pub(super) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    for (size, devices, bar) in [("1k", 1, 3.0), ("10k", 10, 1.5)] {
        let name = format!("{NAME}.{size}");
        if !bench.wants(&name) {
            continue;
        }
        let seconds = bench.effort.measure.as_secs().max(1) * 3;
        let dir = bench.fresh("written")?;
        let (payload, written) = run(&dir, devices, seconds, Duration::ZERO, || Ok(0))?;
        let figure = Figure::pairs(name, "bytes", &[(written, payload)]);
        bench.report.add(figure.bar(Bar::AtMost(bar)))?;
        let Some(disk) = Disk::mount(&bench.dir).transpose() else {
            bench.report.note(format!("{NAME}.{size}.device: not root, or no loop devices"));
            continue;
        };
        let disk = disk?;
        // In real time: ext4 writes its journal every five seconds.
        let seconds = bench.effort.measure.as_secs();
        let (payload, _, sectors) = {
            // The ring is made once in the life of a store: that is not what a commit costs.
            block(async { Ok(open(&disk.folder)?.close().await?) })?;
            disk.sync()?;
            let before = disk.bytes_written()?;
            let (payload, own) =
                run(&disk.folder, devices, seconds, Duration::from_secs(1), || disk.sync())?;
            (payload, own, disk.bytes_written()? - before)
        };
        let figure = Figure::pairs(format!("{NAME}.{size}.device"), "bytes", &[(sectors, payload)]);
        bench.report.add(figure.bar(Bar::AtMost(bar)))?;
    }
    Ok(())
}

/// Payload and bytes that the store wrote, from a store that has found its level.
fn run(
    dir: &Path,
    devices: u64,
    seconds: u64,
    every: Duration,
    end: impl Fn() -> anyhow::Result<u64>,
) -> anyhow::Result<(f64, f64)> {
    block(async {
        let store = open(dir)?;
        let schema = schema(FLOATS);
        for second in 0..KEPT_SECONDS + 2 {
            commit(&store, &schema, devices, second).await?;
        }
        let before = store.stats().bytes_written;
        for second in KEPT_SECONDS + 2..KEPT_SECONDS + 2 + seconds {
            commit(&store, &schema, devices, second).await?;
            tokio::time::sleep(every).await;
        }
        let written = store.stats().bytes_written - before;
        let payload = seconds * devices * (FLOATS as u64 * 4 + 8);
        store.close().await?;
        end()?;
        Ok((payload as f64, written as f64))
    })
}

/// One second: a row of each device, and the stream's progress, in one durable commit.
async fn commit(
    store: &Store,
    schema: &SchemaRef,
    devices: u64,
    second: u64,
) -> anyhow::Result<()> {
    let first = second * devices;
    for device in 0..devices {
        let batch = batch(schema, &format!("unit_{device}"), first + device, 1)?;
        let (table, position) = ("rows".into(), first + device);
        let rows = LogRows { table, position, accepted: 0, stamps: None, batch };
        drop(store.submit(Commit { rows: vec![rows], ..Commit::default() }).await?);
    }
    let end = first + devices;
    let progress = progress(end, end.saturating_sub(KEPT_SECONDS * devices));
    let commit = Commit { wait: true, progress: Some(progress), ..Commit::default() };
    Ok(store.submit(commit).await?.await?)
}

/// A private ext4 in a file.
struct Disk {
    folder: PathBuf,
    device: String,
}

/// Bytes of the file system: more than any run writes.
const DISK_BYTES: u64 = 512 << 20;

impl Disk {
    /// `None` where this process may not do such things.
    fn mount(dir: &Path) -> anyhow::Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let (image, folder) = (dir.join("disk.img"), dir.join("disk"));
        std::fs::File::create(&image)?.set_len(DISK_BYTES)?;
        std::fs::create_dir_all(&folder)?;
        let path = |path: &Path| path.display().to_string();
        run_program("mkfs.ext4", &["-q", "-F", &path(&image)])?;
        let Ok(device) = run_program("losetup", &["--find", "--show", &path(&image)]) else {
            return Ok(None);
        };
        let device = device.trim().to_owned();
        // From here on the loop device must be given back.
        let disk = Self { folder, device };
        run_program("mount", &[&disk.device, &path(&disk.folder)])?;
        Ok(Some(disk))
    }

    /// Bytes that the device has taken (Documentation/block/stat.rst: field 7, sectors of 512).
    fn bytes_written(&self) -> anyhow::Result<f64> {
        let name = self.device.trim_start_matches("/dev/");
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat"))?;
        let sectors = stat.split_whitespace().nth(6).context("a short stat")?;
        Ok(sectors.parse::<f64>()? * 512.0)
    }

    fn sync(&self) -> anyhow::Result<u64> {
        run_program("sync", &["-f", &self.folder.display().to_string()]).map(|_| 0)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let folder = self.folder.display().to_string();
        for (program, args) in
            [("umount", vec![folder.as_str()]), ("losetup", vec!["-d", self.device.as_str()])]
        {
            if let Err(error) = run_program(program, &args) {
                tracing::warn!(%error, "the benchmark's disk stays behind");
            }
        }
    }
}

fn run_program(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(args).output().with_context(|| program.to_owned())?;
    let error = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{program} {}: {error}", args.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
