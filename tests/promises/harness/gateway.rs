//! A running gateway, watched as a user watches it: its status, its logs, its exit code.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::records::{Record, lines};
use super::{Program, Scratch, command, secs, tidegate, wait_for};

/// The first lines of a configuration whose store lies in the test's folder.
pub(crate) fn head(scratch: &Scratch) -> String {
    format!(
        "version: 1\ngateway: {{ name: test }}\n\
         store: {{ path: {}, commit_every: 200ms }}\nweb: {{ listen: \"127.0.0.1:0\" }}\n",
        scratch.join("store").display()
    )
}

/// A gateway; killed when it is dropped.
pub(crate) struct Gateway {
    folder: PathBuf,
    process: Program,
}

/// How a gateway ended.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// Its exit code; none where a signal ended it.
    pub(crate) code: Option<i32>,
    /// From the signal to the end.
    pub(crate) took: Duration,
}

impl Gateway {
    /// Starts `tidegate run` with a configuration. Standard output and standard error are appended
    /// to files, so that they tell of all starts in one folder.
    pub(crate) fn start(scratch: &Scratch, config: &str) -> Self {
        let path = scratch.file("tidegate.yaml", config);
        Self::start_at(scratch, &path, &[])
    }

    /// Starts `tidegate run` with the configuration at `path`, and these environment variables.
    pub(crate) fn start_at(scratch: &Scratch, path: &Path, environment: &[(&str, &str)]) -> Self {
        Self::start_by(scratch, command(tidegate()), path, environment)
    }

    /// The same by a command that ends in the binary under test, and stays its process.
    pub(crate) fn start_by(
        scratch: &Scratch,
        mut command: Command,
        path: &Path,
        environment: &[(&str, &str)],
    ) -> Self {
        let out = File::options().create(true).append(true).open(scratch.join("stdout"));
        command.arg("run").arg(path).stdin(Stdio::null()).stdout(out.expect("a file"));
        command.env("TIDEGATE_LOG", "info").envs(environment.iter().copied());
        let process = Program::start("tidegate", &mut command, &scratch.join("stderr"));
        Self { folder: scratch.path().to_owned(), process }
    }

    /// The control socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("store/control.sock")
    }

    /// The status, if the gateway answers.
    pub(crate) fn try_status(&self) -> Option<Value> {
        let (status, body) = ask(&self.socket(), "GET /api/v1/status").ok()?;
        assert_eq!(status, 200, "{body}");
        Some(serde_json::from_str(&body).expect("status is JSON"))
    }

    /// The status.
    pub(crate) fn status(&mut self) -> Value {
        wait_for("the gateway's status", secs(20), || {
            assert!(self.process.runs(), "the gateway has ended");
            self.try_status()
        })
    }

    /// Waits until the status shows something, and returns what it shows.
    pub(crate) fn wait_status<T>(
        &mut self,
        what: &str,
        limit: Duration,
        look: impl Fn(&Value) -> Option<T>,
    ) -> T {
        let mut last = Value::Null;
        let start = Instant::now();
        loop {
            if let Some(status) = self.try_status() {
                if let Some(found) = look(&status) {
                    return found;
                }
                last = status;
            }
            assert!(self.process.runs(), "the gateway has ended; waited for {what}");
            assert!(start.elapsed() < limit, "waited {limit:?} for {what}; status: {last:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until all devices are up and all streams run.
    pub(crate) fn wait_up(&mut self) {
        self.wait_status("all devices and streams to be up", secs(20), |status| {
            let up = |section: &str| {
                status[section].as_array().is_some_and(|all| all.iter().all(|p| p["state"] == "up"))
            };
            (up("devices") && up("streams")).then_some(())
        });
    }

    /// Waits until nothing is left to deliver.
    pub(crate) fn wait_drained(&mut self, limit: Duration) {
        self.wait_status("the outboxes to be empty", limit, |status| {
            let sinks = status["sinks"].as_array()?;
            sinks.iter().all(|sink| sink["buffered_records"] == 0).then_some(())
        });
    }

    /// What it printed to standard output, as records; a line that is being written is left out.
    pub(crate) fn printed(&self) -> Vec<Record> {
        let text = fs::read_to_string(self.folder.join("stdout")).expect("standard output");
        lines(text.rfind('\n').map_or("", |end| &text[..=end]))
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Its resident memory in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.pid());
        let text = fs::read_to_string(path).expect("a process of ours");
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        let kib = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
        kib << 10
    }

    /// What it logged.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.process.runs()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self, limit: Duration) -> Option<i32> {
        self.process.wait(limit).code()
    }

    /// Stops it as systemd does and waits for the end.
    pub(crate) fn stop(&mut self) -> Stopped {
        let start = Instant::now();
        self.signal(Signal::TERM);
        let code = self.wait(secs(30));
        Stopped { code, took: start.elapsed() }
    }

    /// Ends it at once, in the middle of whatever it does.
    pub(crate) fn kill(mut self) {
        self.process.kill();
    }
}

/// Asks over a Unix socket. Returns the HTTP status and the body.
pub(crate) fn ask(socket: &Path, request: &str) -> std::io::Result<(u16, String)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(secs(5)))?;
    talk(&mut stream, &format!("{request} HTTP/1.1\r\nHost: localhost"))
}

/// Sends the head of a request and reads the answer to its end.
pub(crate) fn talk(stream: &mut (impl Read + Write), head: &str) -> std::io::Result<(u16, String)> {
    stream.write_all(format!("{head}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let broken = || std::io::Error::other(format!("not an answer: {answer}"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head.get(9..12).and_then(|text| text.parse().ok()).ok_or_else(broken)?;
    Ok((status, body.to_owned()))
}

/// The part of a section of the status by its name.
pub(crate) fn part<'a>(status: &'a Value, section: &str, name: &str) -> &'a Value {
    let parts = status[section].as_array().unwrap_or_else(|| panic!("no {section} in {status:#}"));
    let found = parts
        .iter()
        .find(|part| ["name", "device", "stream", "sink"].iter().any(|key| part[key] == name));
    found.unwrap_or_else(|| panic!("no {name} in {section} of {status:#}"))
}

/// A counter of a part of the status.
pub(crate) fn count(status: &Value, section: &str, name: &str, counter: &str) -> u64 {
    let value = &part(status, section, name)[counter];
    value.as_u64().unwrap_or_else(|| panic!("{counter} of {name} is {value}"))
}
