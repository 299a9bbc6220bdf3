//! The store without a gateway: runs the store driver, and judges what a store holds after it.
//!
//! What commit `c` of `rows` rows holds follows from the numbers alone and is written down here a
//! second time: results `(c - 1) * rows + 1` to `c * rows` for each sink, log rows one less. The
//! names of the store's files are not known: `calls` takes them from a clean run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{Program, Scratch, command, secs, wait_for};

/// Commits between the newest and the one that is marked as delivered.
const LAG: u64 = 5;
/// Commits whose log rows the stream would replay.
const REPLAYED: u64 = 8;
/// Commits between two refusals.
const REFUSAL_EVERY: u64 = 10;

/// The driver.
pub(crate) const DRIVER: &str = env!("CARGO_BIN_EXE_tidegate-store-driver");

/// How a run of the driver ended.
#[derive(Debug)]
pub(crate) struct Run {
    /// Its exit code; none where a signal ended it.
    pub(crate) code: Option<i32>,
    /// What it had said before.
    pub(crate) stdout: String,
    /// What it complained of.
    pub(crate) stderr: String,
}

impl Run {
    /// Whether it said that the store is open.
    pub(crate) fn opened(&self) -> bool {
        self.stdout.starts_with("opened ")
    }

    /// The commits that it said are durable.
    pub(crate) fn commits(&self) -> Vec<u64> {
        let numbers = self.stdout.lines().filter_map(|line| line.strip_prefix("committed "));
        numbers.map(|number| number.parse().expect("a number")).collect()
    }

    /// Whether it came to its end.
    pub(crate) fn closed(&self) -> bool {
        self.stdout.ends_with("closed\n")
    }
}

/// The arguments of a run that commits until the store holds `commits` of `rows` rows.
pub(crate) fn load(store: &Path, commits: u64, rows: u64) -> Vec<String> {
    let words = ["load", "--dir", &text(store), "--commits", &commits.to_string(), "--rows"];
    words.into_iter().map(str::to_owned).chain([rows.to_string()]).collect()
}

/// The same with so many commits on their way at once; it waits for a line once the store is open.
pub(crate) fn load_held(store: &Path, commits: u64, rows: u64, together: u64) -> Vec<String> {
    let more = ["--held", "--together", &together.to_string()].map(str::to_owned);
    [load(store, commits, rows), more.into()].concat()
}

/// The arguments of a run that prints what the store holds.
pub(crate) fn verify(store: &Path) -> Vec<String> {
    ["verify", "--dir", &text(store)].map(str::to_owned).into()
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// Starts the driver by a command that ends in it; `name` is the file for its standard output.
pub(crate) fn start(
    scratch: &Scratch,
    name: &str,
    mut by: Command,
    arguments: &[String],
) -> Program {
    by.stdin(Stdio::null());
    start_with_input(scratch, name, by, arguments)
}

fn start_with_input(
    scratch: &Scratch,
    name: &str,
    mut by: Command,
    arguments: &[String],
) -> Program {
    let out = File::create(scratch.join(name)).expect("a file");
    by.args(arguments).stdout(out).env("RUST_BACKTRACE", "0");
    Program::start("the store driver", &mut by, &scratch.join(&format!("{name}.err")))
}

/// What a driver that was started as `name` has said.
pub(crate) fn said(scratch: &Scratch, name: &str, code: Option<i32>) -> Run {
    let read = |name: &str| {
        let bytes = std::fs::read(scratch.join(name)).expect("a file");
        String::from_utf8(bytes).expect("UTF-8")
    };
    let run = Run { code, stdout: read(name), stderr: read(&format!("{name}.err")) };
    for name in [name, &format!("{name}.err")] {
        std::fs::remove_file(scratch.join(name)).expect("a file");
    }
    run
}

/// Runs it to its end.
pub(crate) fn run_by(scratch: &Scratch, by: Command, arguments: &[String]) -> Run {
    let mut program = start(scratch, "driver.out", by, arguments);
    let status = program.wait(secs(60));
    drop(program);
    said(scratch, "driver.out", status.code())
}

/// Runs it to its end; once its store is open, one of its threads is looked at by what `attach`
/// returns.
pub(crate) fn run_attached<T>(
    scratch: &Scratch,
    mut by: Command,
    arguments: &[String],
    thread: &str,
    attach: impl FnOnce(u32) -> T,
) -> Run {
    by.stdin(Stdio::piped());
    let mut program = start_with_input(scratch, "driver.out", by, arguments);
    let process = program.child.id();
    let id = wait_for("the store to be open", secs(10), || {
        let said = std::fs::read_to_string(scratch.join("driver.out")).expect("a file");
        if said.ends_with('\n') { thread_of(process, thread) } else { None }
    });
    let attached = attach(id);
    let mut input = program.child.stdin.take().expect("its input");
    input.write_all(b"\n").expect("it waits");
    let status = program.wait(secs(60));
    drop((program, attached));
    said(scratch, "driver.out", status.code())
}

/// The number of a process' thread of that name.
fn thread_of(process: u32, name: &str) -> Option<u32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    threads.map_while(Result::ok).find_map(|thread| {
        let found = std::fs::read_to_string(thread.path().join("comm")).ok()?;
        (found.trim_end() == name).then(|| thread.file_name().to_str()?.parse().ok())?
    })
}

/// Runs it to its end, undisturbed.
pub(crate) fn run(scratch: &Scratch, arguments: &[String]) -> Run {
    run_by(scratch, command(DRIVER), arguments)
}

/// What all runs on one store have been promised.
#[derive(Debug, Clone, Default)]
pub(crate) struct Promised {
    rows: u64,
    /// Commits that are on their way at once.
    together: u64,
    /// The epochs that the store had, one but where runs are ended without a device.
    epochs: BTreeSet<u64>,
    /// Runs are ended while the device takes no writes.
    ends_stalled: bool,
    committed: u64,
    taken: u64,
    refusals: BTreeSet<u64>,
}

impl Promised {
    /// A store that does not exist yet, for commits of so many rows.
    pub(crate) fn new(rows: u64) -> Self {
        Self { rows, together: 1, ..Self::default() }
    }

    /// The same for runs with so many commits on their way at once.
    pub(crate) fn together(self, together: u64) -> Self {
        Self { together, ..self }
    }

    /// The same for runs that are ended while the device takes no writes: the next one has a new epoch.
    pub(crate) fn ends_stalled(self) -> Self {
        Self { ends_stalled: true, ..self }
    }

    /// The last commit that is known to be durable.
    pub(crate) fn committed(&self) -> u64 {
        self.committed
    }

    /// Adds what a run was promised.
    pub(crate) fn add(&mut self, run: &Run) {
        if let Some(line) = run.stdout.lines().find_map(|line| line.strip_prefix("opened ")) {
            let epoch = line.split(' ').next().and_then(|epoch| epoch.parse().ok());
            let epoch = epoch.expect("an epoch");
            self.epochs.insert(epoch);
            let is_newest = self.epochs.last() == Some(&epoch);
            assert!(
                is_newest && (self.ends_stalled || self.epochs.len() == 1),
                "{:?}",
                self.epochs
            );
        }
        let commits = run.commits();
        let open = usize::try_from(self.together).expect("few");
        let whole = if run.closed() { commits.len() } else { commits.len().saturating_sub(open) };
        // A mark is durable with the next commit that is submitted, or with the end.
        for number in &commits[..whole] {
            self.taken = self.taken.max(number.saturating_sub(LAG) * self.rows);
            if number.is_multiple_of(REFUSAL_EVERY) {
                self.refusals.insert(*number);
            }
        }
        self.committed = commits.last().copied().unwrap_or(0).max(self.committed);
    }

    /// Opens the store, reads all that it holds, and panics unless that is what was submitted up to
    /// some commit that is not before the last promised one, and was on its way.
    pub(crate) fn judge(&mut self, scratch: &Scratch, store: &Path, what: &str) {
        let run = run(scratch, &verify(store));
        assert_eq!(run.code, Some(0), "{what}: the store does not open: {}", run.stderr);
        let held: Value = serde_json::from_str(&run.stdout).expect("JSON");
        // A store that was killed before it was ever open may be made anew, in another epoch.
        let epoch = held["epoch"].as_u64().expect("an epoch");
        let is_known = !self.epochs.is_empty();
        let before = self.epochs.last().copied().unwrap_or(epoch);
        self.epochs.insert(epoch);
        let is_doubted = held["ids_doubted"] == true;
        assert!(self.ends_stalled || !is_doubted, "{what}: the epoch {epoch} behind {before}");
        assert_eq!((epoch > before, epoch < before), (is_doubted, false), "{what}: the epoch");
        let recovery = json!({
            "created": !is_known && held["recovery"]["created"] == true,
            "quarantined": null, "salvaged": false, "corrupt_records": 0,
            "progress_lost": [], "unclaimed": [],
        });
        assert_eq!(held["recovery"], recovery, "{what}");
        for count in ["corrupt_records", "corrupt_rows", "log_rows_dropped"] {
            assert_eq!(held[count], 0, "{what}: {count}");
        }
        let commit = held["commit"].as_u64().unwrap_or(0);
        let committed = self.committed;
        assert!(
            (committed..=committed + self.together).contains(&commit),
            "{what}: commit {committed} was promised, and the store stands at {commit}"
        );
        self.judge_log(&held, commit, what);
        let letters = self.judge_letters(&held["sinks"]["refused"], commit, what);
        let taken = held["sinks"]["taken"]["cursor"].as_u64().expect("a cursor");
        let taken_max = commit.saturating_sub(LAG) * self.rows;
        assert!(
            (self.taken..=taken_max).contains(&taken),
            "{what}: the cursor {taken} is not in {}..={taken_max}",
            self.taken
        );
        self.judge_outbox(&held, "taken", commit, taken, 0, what);
        let passed = letters.last().map_or(0, |number| (number - LAG) * self.rows);
        self.judge_outbox(&held, "refused", commit, passed, letters.len() as u64, what);
    }

    fn judge_log(&self, held: &Value, commit: u64, what: &str) {
        let end = commit * self.rows;
        assert_eq!(held["log_end"], end, "{what}: the end of the log at commit {commit}");
        if commit == 0 {
            return;
        }
        let start = commit.saturating_sub(REPLAYED) * self.rows;
        assert_eq!(held["processed"], json!({ "readings": end }), "{what}");
        assert_eq!(held["replay_from"], json!({ "readings": start }), "{what}");
        let value = |n: u64| (!n.is_multiple_of(7)).then_some(n as f64 * 0.25);
        let rows = (start..end).map(|n| json!([n, n, value(n), format!("n{n}")]));
        assert_eq!(held["log"], rows.collect::<Value>(), "{what}: the log");
        let mut states = BTreeMap::new();
        for number in 1..=commit {
            let length = usize::try_from(number * 397 % 3_001).expect("small");
            states.insert(number % 5, format!("{number:>length$}"));
            if number.is_multiple_of(4) {
                states.remove(&((number + 2) % 5));
            }
        }
        let states = states.iter().map(|(key, text)| json!([key, text]));
        assert_eq!(held["states"], states.collect::<Value>(), "{what}: states of the stream");
    }

    fn judge_outbox(
        &self,
        held: &Value,
        sink: &str,
        commit: u64,
        cursor: u64,
        letters: u64,
        what: &str,
    ) {
        let held = &held["sinks"][sink];
        let end = commit * self.rows;
        let expected = json!({
            "cursor": cursor, "records": end - cursor, "delivered": cursor - letters,
            "dropped": 0, "rejected": letters, "lost": 0,
            "rows": held["rows"], "letters": held["letters"],
        });
        assert_eq!(*held, expected, "{what}: {sink}");
        let rows = held["rows"].as_array().expect("rows");
        assert_eq!(rows.len() as u64, end - cursor, "{what}: rows of {sink}");
        for (row, seq) in rows.iter().zip(cursor + 1..) {
            assert_eq!(*row, self.row(sink, seq, row), "{what}: row {seq} of {sink}");
        }
    }

    /// The commits whose refusals are kept.
    fn judge_letters(&self, held: &Value, commit: u64, what: &str) -> Vec<u64> {
        let mut numbers = Vec::new();
        for letter in held["letters"].as_array().expect("dead letters") {
            let position = letter["position"].as_u64().expect("a position");
            let number = position / self.rows + LAG;
            let mut expected = self.row("refused", position, letter);
            expected["reason"] = json!(format!("refused by commit {number}"));
            assert_eq!(*letter, expected, "{what}: a dead letter");
            assert!(number.is_multiple_of(REFUSAL_EVERY) && number <= commit, "{what}: {number}");
            numbers.push(number);
        }
        assert!(numbers.is_sorted(), "{what}: dead letters of {numbers:?}");
        let missing: Vec<_> = self.refusals.iter().filter(|n| !numbers.contains(n)).collect();
        assert!(missing.is_empty(), "{what}: dead letters of {missing:?} are missing");
        numbers
    }

    /// What row `seq` of a sink must be. It keeps the epoch that it came in, of those that there were.
    fn row(&self, sink: &str, seq: u64, held: &Value) -> Value {
        let epoch = held["epoch"].as_u64().filter(|epoch| self.epochs.contains(epoch));
        let letters = (0..seq % 97).map(|at| b'a' + u8::try_from((seq + at) % 26).expect("small"));
        let padding: String = letters.map(char::from).collect();
        let start = ((seq - 1) / self.rows + 1) * 1_000_000;
        json!({
            "position": seq, "epoch": epoch, "stream": "results", "seq": seq,
            "body": format!("{{\"to\":\"{sink}\",\"n\":{seq},\"pad\":\"{padding}\"}}"),
            "window": [start, start + 1_000_000], "created": start,
        })
    }
}
