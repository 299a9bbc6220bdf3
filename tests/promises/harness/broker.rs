//! A mosquitto of the test's own: stopped, frozen, killed and started anew on the same port.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::Signal;

use super::{Program, Scratch, command, free_port, program, secs, wait_until};

/// A broker on loopback that keeps nothing on disk.
pub(crate) struct Broker {
    /// Its port, also after a new start.
    pub(crate) port: u16,
    config: PathBuf,
    log: PathBuf,
    process: Option<Program>,
}

impl Broker {
    /// Chooses a port and starts there. `settings` are lines of mosquitto's configuration.
    pub(crate) fn start(scratch: &Scratch, settings: &str) -> Self {
        let mut broker = Self::prepare(scratch, settings);
        broker.restart();
        broker
    }

    /// Chooses a port that nobody listens on yet.
    pub(crate) fn prepare(scratch: &Scratch, settings: &str) -> Self {
        let port = free_port();
        // `user root` has no effect but for root: a change of user would undo the parent's death
        // signal, and the broker would outlive a test that is killed.
        let config = scratch.file(
            "mosquitto.conf",
            format!(
                "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nuser root\n\
                 max_queued_messages 0\nlog_type error\nlog_type warning\nlog_type notice\n{settings}\n"
            ),
        );
        Self { port, config, log: scratch.join("mosquitto.log"), process: None }
    }

    /// Starts it, as it was configured, with nothing remembered.
    pub(crate) fn restart(&mut self) {
        assert!(self.process.is_none(), "the broker runs already");
        let mut command = command(program("mosquitto"));
        command.arg("-c").arg(&self.config).stdin(Stdio::null()).stdout(Stdio::null());
        self.process = Some(Program::start("mosquitto", &mut command, &self.log));
        wait_until("mosquitto to listen", secs(10), || {
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    /// Kills it at once.
    pub(crate) fn kill(&mut self) {
        self.process.take().expect("a broker that runs").kill();
    }

    /// Freezes it: the kernel goes on to take connections and bytes for it.
    pub(crate) fn freeze(&self) {
        self.process.as_ref().expect("a broker that runs").signal(Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        self.process.as_ref().expect("a broker that runs").signal(Signal::CONT);
    }
}
