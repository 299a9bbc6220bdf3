//! Programs of streams (`process:`) that are started for a test, by `tidegate test --program`.
//!
//! Promise: each test has a program of its own, which listens before the test begins, and which is
//! killed with all that it started when the test ends. The gateway itself starts none: this is for
//! a developer's machine.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tidegate_config::ProcessSection;
use tokio::net::UnixStream;
use tokio::time::Instant;

/// How long a program may take until it listens.
const START_MAX: Duration = Duration::from_secs(20);
/// Pause between two looks whether it does.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What stands in a command for the path of the socket.
const SOCKET: &str = "{socket}";

/// How programs are started: a command of the shell for each stream that has one.
#[derive(Debug, Default)]
pub struct Programs(BTreeMap<String, String>);

/// A program that runs for one test.
#[derive(Debug)]
pub(super) struct Started {
    child: Child,
    /// A folder for its socket; none where it listens where the configuration says.
    folder: Option<PathBuf>,
    socket: PathBuf,
}

impl Programs {
    /// Programs by the names of their streams. In a command `{socket}` stands for the path of a
    /// socket; without it the program listens where the configuration says.
    pub fn new(commands: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(commands.into_iter().collect())
    }

    /// The streams whose programs are started.
    pub fn streams(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Starts the program of a stream and waits until it listens; none where nobody said how.
    pub(super) async fn start(
        &self,
        stream: &str,
        process: &ProcessSection,
    ) -> Result<Option<Started>, String> {
        let Some(command) = self.0.get(stream) else {
            return Ok(None);
        };
        let failed = |error: std::io::Error| format!("its program cannot be started: {error}");
        let mut folder = None;
        let mut socket = PathBuf::from(&process.socket);
        if command.contains(SOCKET) {
            let own = new_folder().map_err(failed)?;
            socket = own.join("program.sock");
            folder = Some(own);
        }
        let output = std::io::stderr().as_fd().try_clone_to_owned().map_err(failed)?;
        let child = Command::new("sh")
            .arg("-c")
            .arg(command.replace(SOCKET, "\"$TIDEGATE_SOCKET\""))
            .env("TIDEGATE_SOCKET", &socket)
            .stdin(Stdio::null())
            .stdout(output)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let mut started = Started { child, folder, socket };
        started.listens().await?;
        Ok(Some(started))
    }
}

impl Started {
    /// Where it listens.
    pub(super) fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// How it ended, to stand behind why it is away; empty while it runs.
    pub(super) fn ended(&mut self) -> String {
        match self.child.try_wait() {
            Ok(Some(status)) => format!(" (it has ended: {status})"),
            _ => String::new(),
        }
    }

    async fn listens(&mut self) -> Result<(), String> {
        let until = Instant::now() + START_MAX;
        loop {
            let Err(error) = UnixStream::connect(&self.socket).await else {
                return Ok(());
            };
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("its program has ended before it listened: {status}"));
            }
            if Instant::now() > until {
                let socket = self.socket.display();
                return Err(format!(
                    "its program does not listen at {socket} after {START_MAX:?}: {error}"
                ));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // One that has ended by itself, with all that it started, is no group any more.
        kill_process_group(Pid::from_child(&self.child), Signal::KILL).ok();
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, "a program cannot be waited for");
        }
        if let Some(folder) = &self.folder
            && let Err(error) = std::fs::remove_dir_all(folder)
        {
            tracing::warn!(folder = %folder.display(), %error, "it stays");
        }
    }
}

/// A new folder that nobody else can write to.
fn new_folder() -> std::io::Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tidegate-test-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}
