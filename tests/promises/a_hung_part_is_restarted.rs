//! Fault F27: a worker hangs, and nobody notices for a month.
//!
//! Here, with a socket in the place of systemd's: the gateway says that it is ready, and goes on to
//! say that it is alive with a dead device and a dead broker, which are tried again and again. A
//! part that hangs in the middle of a step makes it ask for its restart: here the store's thread, in
//! a disk that does not answer.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::gateway::{Gateway, head};
use crate::harness::{Scratch, free_port, program, secs, tidegate, wait_for};

/// How long this service manager waits for a sign of life.
const WATCHDOG: Duration = Duration::from_secs(4);
const WATCHDOG_USEC: &str = "4000000";

/// What systemd would be.
struct Manager {
    socket: UnixDatagram,
    path: String,
}

impl Manager {
    fn new(scratch: &Scratch) -> Self {
        let path = scratch.join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(WATCHDOG)).expect("a socket option");
        Self { socket, path: path.display().to_string() }
    }

    /// The next word; none where nothing comes for as long as the manager has patience.
    fn hear(&self) -> Option<String> {
        let mut buffer = [0; 1024];
        let length = self.socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    /// What it tells the gateway.
    fn environment(&self) -> [(&str, &str); 2] {
        [("NOTIFY_SOCKET", &self.path), ("WATCHDOG_USEC", WATCHDOG_USEC)]
    }
}

#[test]
fn a_dead_device_and_a_dead_broker_do_not_hang() {
    let scratch = Scratch::new("alive");
    let manager = Manager::new(&scratch);
    let (head, plant, broker) = (head(&scratch), free_port(), free_port());
    let config = format!(
        r#"{head}
links: [ {{ name: plant, bus: {{ tcp: {{ host: 127.0.0.1, port: {plant} }} }} }} ]
devices:
  - name: meter
    driver: {{ modbus: {{ link: plant, points: [ {{ name: u, register: holding, address: 0, type: u16 }} ] }} }}
  - name: feed
    driver: {{ mqtt: {{ url: "mqtt://127.0.0.1:{broker}", topics: [ in ], points: [ {{ name: n, type: i64 }} ] }} }}
sinks: [ {{ name: uplink, driver: {{ mqtt: {{ url: "mqtt://127.0.0.1:{broker}" }} }} }} ]
streams: [ {{ name: rows, from: [meter], sql: "SELECT u FROM meter", to: [ {{ sink: uplink }} ] }} ]
"#
    );
    let path = scratch.file("tidegate.yaml", config);
    let mut gateway = Gateway::start_at(&scratch, &path, &manager.environment());
    assert_eq!(manager.hear().as_deref(), Some("READY=1"));
    let start = Instant::now();
    while start.elapsed() < WATCHDOG * 3 {
        assert_eq!(manager.hear().as_deref(), Some("WATCHDOG=1"));
    }
    let code = gateway.stop().code;
    assert_eq!(code, Some(0));
    let last = wait_for("the word that it stops", secs(5), || {
        manager.hear().filter(|word| word != "WATCHDOG=1")
    });
    assert_eq!(last, "STOPPING=1");
}

/// A flash controller that thinks about one sync for 15 s: the store's thread is in the kernel.
#[test]
fn f27_a_store_that_hangs_in_the_disk_asks_for_a_restart_in_time() {
    let scratch = Scratch::new("hung");
    let manager = Manager::new(&scratch);
    let head = head(&scratch);
    let config = format!(
        r#"{head}
devices: [ {{ name: made, driver: {{ generate: {{ every: 100ms, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
streams: [ {{ name: rows, from: [made], sql: "SELECT n FROM made", to: [ {{ sink: out }} ] }} ]
"#
    );
    let path = scratch.file("tidegate.yaml", config);
    // `-D`: the gateway is our child, and ends when it is killed. The syncs of a new store and of
    // its first commits come before the one that takes so long.
    let mut strace = Command::new(program("strace"));
    strace.args(["-D", "-f", "-qq", "--seccomp-bpf", "-e", "trace=fdatasync,fsync", "-o"]);
    strace
        .arg(scratch.join("strace"))
        .args(["-e", "inject=fdatasync,fsync:delay_enter=15000000:when=30"]);
    strace.arg(tidegate());
    let gateway = Gateway::start_by(&scratch, strace, &path, &manager.environment());
    assert_eq!(manager.hear().as_deref(), Some("READY=1"));
    let mut fed = Instant::now();
    let last = wait_for("the word that it hangs", secs(60), || {
        let word = manager.hear()?;
        if word == "WATCHDOG=1" {
            fed = Instant::now();
            return None;
        }
        Some(word)
    });
    assert!(last.starts_with("STATUS=no progress: store"), "{last}");
    assert!(last.ends_with("\nWATCHDOG=trigger"), "{last}");
    // It was fed to the last moment, and is not any more.
    assert!(fed.elapsed() <= secs(3), "{:?}", fed.elapsed());
    assert_eq!(manager.hear(), None);
    gateway.kill();
}
