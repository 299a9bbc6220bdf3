//! What all promises need: folders, ports, bounded waiting, and programs that end with the test.
//!
//! A wait looks at something observable again and again until a deadline, and says at the end what
//! it waited for. Programs are ended by their own id, and show the end of their logs when a test
//! fails.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub(crate) mod broker;
pub(crate) mod calls;
pub(crate) mod clock;
pub(crate) mod disk;
pub(crate) mod driver;
pub(crate) mod gate;
pub(crate) mod gateway;
pub(crate) mod meter;
pub(crate) mod mqtt;
pub(crate) mod plant;
pub(crate) mod records;
pub(crate) mod subscriber;

/// Pause between two looks of a wait.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks until there is something, or panics after `limit` with the words of what was awaited.
pub(crate) fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} for {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits until something is true.
pub(crate) fn wait_until(what: &str, limit: Duration, mut look: impl FnMut() -> bool) {
    wait_for(what, limit, || look().then_some(()));
}

/// Whole seconds.
pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A number from the environment, for longer or shorter runs.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

/// Whether the long form of each test is asked for (`make soak`).
pub(crate) fn soak() -> bool {
    std::env::var_os("TIDEGATE_SOAK").is_some_and(|value| value != "0")
}

/// Says something that is to be seen also where the test passes: a figure, or that it was skipped.
pub(crate) fn say(words: std::fmt::Arguments<'_>) {
    // Not by `eprintln`, which the test harness keeps to itself.
    writeln!(std::io::stderr(), "{words}").expect("standard error");
}

/// A folder of its own for each test; removed at the end, kept where the test failed.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes the folder. The path is short: a Unix socket below it has at most 107 bytes.
    pub(crate) fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tg-{}-{number}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a folder for the test");
        Self(path)
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A path inside.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).expect("a file of the test");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the test's files are kept in {}", self.0.display());
        } else if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} stays behind: {error}", self.0.display());
        }
    }
}

/// A port of loopback that nobody listens on, below the range from which the system takes the
/// ports of outgoing connections, so that nobody gets it by chance.
pub(crate) fn free_port() -> u16 {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut given = GIVEN.lock().expect("not poisoned");
    let given = given.get_or_insert_default();
    // Runs side by side begin far from each other: a port is only ours once somebody listens.
    let spread = u64::from(std::process::id()) * 7_919 % 12_000;
    let first = u16::try_from(spread).expect("below 12,000") + 20_000;
    (first..32_000)
        .chain(20_000..first)
        .find(|port| !given.contains(port) && TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .inspect(|port| assert!(given.insert(*port)))
        .expect("a free port")
}

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("tests/ lies in the repository").to_owned()
}

/// The folder of build results that this test lies in: `target`, or what stands for it.
fn target() -> PathBuf {
    let exe = std::env::current_exe().expect("our own path");
    exe.ancestors().nth(3).expect("<target>/<profile>/deps/promises").to_owned()
}

/// The binary under test.
pub(crate) fn tidegate() -> PathBuf {
    let built = || {
        let exe = std::env::current_exe().expect("our own path");
        exe.ancestors().nth(2).expect("<profile>/deps/promises").join("tidegate")
    };
    let path = std::env::var_os("TIDEGATE_BIN").map_or_else(built, PathBuf::from);
    assert!(
        path.is_file(),
        "there is no binary to test at {}: run `cargo test --workspace`, or `cargo build` first, \
         or say by TIDEGATE_BIN where it is",
        path.display()
    );
    path
}

/// The Python that has pymodbus.
pub(crate) fn python() -> PathBuf {
    std::env::var_os("TIDEGATE_TEST_PYTHON").map_or_else(
        || {
            let made = target().join("venv/bin/python");
            if made.is_file() { made } else { PathBuf::from("python3") }
        },
        PathBuf::from,
    )
}

/// Finds a program in the search path or where Debian keeps servers.
pub(crate) fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("{name} is not installed: `make setup` installs it"))
}

/// A command for [`Program::start`]: the system kills it with the test's thread, so that nothing runs
/// on where the test itself is killed.
pub(crate) fn command(path: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program("setpriv"));
    command.args(["--pdeathsig", "KILL", "--"]).arg(path);
    command
}

/// A program that runs until its end, or until this is dropped.
pub(crate) struct Program {
    name: &'static str,
    /// The process; its pipes are the caller's.
    pub(crate) child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts it with standard error (and standard output, where it is not taken) in `log`.
    pub(crate) fn start(name: &'static str, command: &mut Command, log: &Path) -> Self {
        let file = File::options().create(true).append(true).open(log).expect("a log file");
        let child = command.stderr(file).spawn();
        let child = child.unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        Self { name, child, log: log.to_owned() }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).unwrap_or_else(|e| panic!("{}: {signal:?}: {e}", self.name));
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("the end of {}", self.name);
        wait_for(&what, limit, || self.child.try_wait().expect("a child of ours"))
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_none()
    }

    /// Ends it at once, as kill -9 does, and waits for its end.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("a child of ours");
    }

    /// What it wrote to its log.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).expect("a log file")).into_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let end = &lines[lines.len().saturating_sub(40)..];
            eprintln!("---- end of the log of {}\n{}\n----", self.name, end.join("\n"));
        }
    }
}

/// What a program that ended left behind.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; none where a signal ended it.
    pub(crate) code: Option<i32>,
    /// Its standard output.
    pub(crate) stdout: String,
    /// Its standard error.
    pub(crate) stderr: String,
}

/// Runs the binary under test to its end, at most for `limit`.
pub(crate) fn run(arguments: &[&str], limit: Duration) -> Ended {
    let scratch = Scratch::new("run");
    let mut command = command(tidegate());
    let out = scratch.join("stdout");
    command.args(arguments).stdin(Stdio::null()).stdout(File::create(&out).expect("a file"));
    let mut program = Program::start("tidegate", &mut command, &scratch.join("stderr"));
    let status = program.wait(limit);
    let stdout = fs::read(out).expect("a file");
    Ended {
        code: status.code(),
        stdout: String::from_utf8(stdout).expect("UTF-8 on standard output"),
        stderr: program.log(),
    }
}
