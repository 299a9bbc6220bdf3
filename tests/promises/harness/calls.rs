//! System calls of a program on the files of one folder: which there are in a clean run, and how to
//! make one of them kill the program or fail (`strace`).
//!
//! strace counts each system call by itself and in each thread by itself: call `n` is the `n`-th
//! in whichever thread comes to it first. `--seccomp-bpf` would be faster, and misses calls. Tracer
//! and traced share one processor: each call waits for the tracer twice, and to wake it on another
//! one takes three times as long.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;

use super::driver::text;
use super::{Program, Scratch, command, program, secs, wait_until};

/// Whatever changes a file or a folder, or makes it durable.
pub(crate) const CHANGES: &[&str] = &[
    "copy_file_range",
    "creat",
    "fallocate",
    "fdatasync",
    "fsync",
    "ftruncate",
    "link",
    "linkat",
    "mkdir",
    "mkdirat",
    "open",
    "openat",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "sync_file_range",
    "truncate",
    "unlink",
    "unlinkat",
    "write",
    "writev",
];
/// What only files take, so that it can be refused whichever file it is.
pub(crate) const FILE_CHANGES: &[&str] = &[
    "copy_file_range",
    "fallocate",
    "fdatasync",
    "fsync",
    "ftruncate",
    "link",
    "linkat",
    "mkdir",
    "mkdirat",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "sync_file_range",
    "truncate",
    "unlink",
    "unlinkat",
];
/// Whatever reads a file.
pub(crate) const READS: &[&str] = &["pread64", "preadv", "read", "readv"];

/// What a clean run did in a folder.
pub(crate) struct Calls {
    /// The folder and each file that was ever in it.
    paths: BTreeSet<PathBuf>,
    /// How often each system call was made, by the thread that made it most.
    counts: BTreeMap<String, u64>,
}

/// One system call of a run: its name and number.
pub(crate) type Call = (String, u64);

/// A command that runs a program and writes its calls to the test's `trace`, for [`Calls::read`].
pub(crate) fn traced(scratch: &Scratch, program_path: &str) -> Command {
    let mut traced = strace();
    let names = [CHANGES, READS].concat().join(",?");
    traced.args(["-f", "-y", "-s", "0", "-o"]).arg(scratch.join("trace"));
    traced.arg("-e").arg(format!("trace=?{names}")).args(["--", program_path]);
    traced
}

impl Calls {
    /// Reads the trace of a clean run.
    pub(crate) fn read(scratch: &Scratch, folder: &Path) -> Self {
        let bytes = fs::read(scratch.join("trace")).expect("a trace");
        let trace = String::from_utf8_lossy(&bytes);
        let folder_text = text(folder);
        let mut paths = BTreeSet::from([folder.to_owned()]);
        let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for line in trace.lines() {
            let mut found = false;
            for (at, _) in line.match_indices(&folder_text) {
                let end = line[at..].find(['"', '>']).map_or(line.len(), |end| at + end);
                let path = Path::new(&line[at..end]);
                found |= path.starts_with(folder);
                if path.starts_with(folder) {
                    paths.insert(path.to_owned());
                }
            }
            let call = line.split_once('(').and_then(|(head, _)| head.rsplit_once(' '));
            if let Some((thread, name)) = call.filter(|_| found) {
                *counts.entry((thread.trim(), name)).or_default() += 1;
            }
        }
        let mut most: BTreeMap<String, u64> = BTreeMap::new();
        for ((_, name), count) in counts {
            let entry = most.entry(name.to_owned()).or_default();
            *entry = count.max(*entry);
        }
        Self { paths, counts: most }
    }

    /// How often these were made.
    pub(crate) fn count(&self, names: &[&str]) -> u64 {
        names.iter().filter_map(|name| self.counts.get(*name)).sum()
    }

    /// At most `most` of these calls: the first and the last of each name, and some between.
    pub(crate) fn some(&self, names: &[&str], most: u64) -> Vec<Call> {
        let present: Vec<_> =
            names.iter().filter_map(|name| Some((*name, *self.counts.get(*name)?))).collect();
        let total: u64 = present.iter().map(|(_, count)| count).sum();
        let mut calls = BTreeSet::new();
        for (name, count) in present {
            let share = (count * most / total.max(1)).clamp(2, count.max(2));
            for step in 0..share {
                calls.insert((name.to_owned(), 1 + step * (count - 1) / (share - 1)));
            }
        }
        calls.into_iter().collect()
    }

    /// A command that runs a program and lets `what` happen with these calls in the folder:
    /// `signal=KILL:when=3`, `error=EIO:when=2`, and what else `strace -e inject` can do.
    pub(crate) fn inject(&self, names: &[&str], what: &str, program_path: &str) -> Command {
        let paths = self.paths.iter().flat_map(|path| ["-P".to_owned(), text(path)]);
        injected_with(paths, names, what, program_path)
    }
}

/// The same on whatever file.
pub(crate) fn injected(names: &[&str], what: &str, program_path: &str) -> Command {
    injected_with([], names, what, program_path)
}

fn injected_with(
    paths: impl IntoIterator<Item = String>,
    names: &[&str],
    what: &str,
    program_path: &str,
) -> Command {
    let mut injected = strace();
    injected.args(["-f", "-qq", "-o", "/dev/null"]).args(paths);
    injected.arg("-e").arg(injection(names, what));
    // The program ends with strace, too.
    injected.arg("--").arg(program("setpriv")).args(["--pdeathsig", "KILL", "--"]);
    injected.arg(program_path);
    injected
}

/// strace, and whatever it runs, on one processor.
fn strace() -> Command {
    pinned(program("strace"))
}

/// A program on one processor: the same for each program of a test.
pub(crate) fn pinned(path: impl AsRef<OsStr>) -> Command {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    let processors = processors();
    let mine = processors[MINE.with(|mine| *mine) % processors.len()];
    let mut pinned = command(program("taskset"));
    pinned.args(["--cpu-list", &mine.to_string()]).arg(path);
    pinned
}

/// The processors that this process may use, as Linux lists them: `0-3,8`.
fn processors() -> Vec<u32> {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let processors = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let number = |text: &str| text.parse::<u32>().expect("a processor's number");
    let ranges = processors.expect("a list of processors").trim().split(',');
    ranges
        .flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            number(first)..=number(last)
        })
        .collect()
}

/// A fault that lasts as long as this lives; the program goes on without it.
pub(crate) struct Injection(Program);

impl Drop for Injection {
    fn drop(&mut self) {
        // A SIGKILL would take the program along.
        if self.0.runs() {
            self.0.signal(Signal::TERM);
            self.0.wait(secs(10));
        }
    }
}

/// Lets `what` happen with these calls of a program that runs, on whatever file, until the returned
/// value is dropped.
pub(crate) fn inject_into(scratch: &Scratch, pid: u32, names: &[&str], what: &str) -> Injection {
    let mut injected = command(program("strace"));
    injected.args(["-f", "-qq", "-o", "/dev/null", "-p", &pid.to_string()]);
    injected.arg("-e").arg(injection(names, what));
    attached(scratch, injected, || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
        threads.map_while(Result::ok).all(|thread| is_traced(&thread.path()))
    })
}

/// The same with calls of one thread: call `n` is its `n`-th from now on.
pub(crate) fn inject_into_thread(scratch: &Scratch, id: u32, call: &str, what: &str) -> Injection {
    let mut injected = strace();
    injected.args(["-qq", "-o", "/dev/null", "-p", &id.to_string()]);
    injected.arg("-e").arg(injection(&[call], what));
    attached(scratch, injected, || is_traced(Path::new(&format!("/proc/{id}"))))
}

/// Writes these calls of one thread to the test's `trace`, for [`counted`].
pub(crate) fn trace_thread(scratch: &Scratch, id: u32, names: &[&str]) -> Injection {
    let mut traced = strace();
    traced.args(["-qq", "-s", "0", "-o"]).arg(scratch.join("trace"));
    traced.arg("-e").arg(format!("trace=?{}", names.join(",?"))).args(["-p", &id.to_string()]);
    attached(scratch, traced, || is_traced(Path::new(&format!("/proc/{id}"))))
}

/// Each call of one thread's trace, once.
pub(crate) fn counted(scratch: &Scratch) -> BTreeSet<Call> {
    let trace = fs::read_to_string(scratch.join("trace")).expect("a trace");
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let names = trace.lines().filter_map(|line| line.split_once('(')).map(|(name, _)| name);
    names
        .map(|name| {
            let count = counts.entry(name).or_default();
            *count += 1;
            (name.to_owned(), *count)
        })
        .collect()
}

/// Starts an strace that holds a program which runs, and waits until it does.
fn attached(scratch: &Scratch, mut strace: Command, mut holds: impl FnMut() -> bool) -> Injection {
    strace.stdin(Stdio::null()).stdout(Stdio::null());
    let mut strace = Program::start("strace", &mut strace, &scratch.join("strace.log"));
    wait_until("strace to hold each thread", secs(10), || {
        assert!(strace.runs(), "strace has ended: {}", strace.log());
        holds()
    });
    Injection(strace)
}

/// Whether a thread, named by its folder in `/proc`, has a tracer.
fn is_traced(thread: &Path) -> bool {
    let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
    !status.contains("TracerPid:\t0\n")
}

/// The names are tried: a kernel or an strace that does not know one of them passes over it.
fn injection(names: &[&str], what: &str) -> String {
    let names = names.iter().map(|name| format!("?{name}")).collect::<Vec<_>>().join(",");
    format!("inject={names}:{what}")
}
