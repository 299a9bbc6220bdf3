//! The broker under the MQTT figures: mosquitto where it is installed, else our own, in a process of
//! its own either way.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::block;
use super::process::Child;

/// A running broker.
pub(super) struct Server {
    pub(super) addr: SocketAddr,
    /// What runs, for the reader of the figures.
    pub(super) program: &'static str,
    _child: Child,
}

impl Server {
    /// Starts a broker that sends each subscriber `in_flight` unacknowledged messages at most.
    pub(super) fn start(dir: &Path, in_flight: u32) -> anyhow::Result<Self> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let config = dir.join("mosquitto.conf");
        let text = format!(
            "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n\
             max_inflight_messages {in_flight}\nmax_queued_messages 100000\nlog_type error\n"
        );
        super::rest::write(&config, &text)?;
        let mut command = Command::new("mosquitto");
        command.arg("-c").arg(&config);
        let Ok(child) = Child::start(&mut command, dir) else {
            return Self::embedded(dir);
        };
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let server = Self { addr, program: "mosquitto", _child: child };
        block(async {
            for _ in 0..100 {
                if TcpStream::connect(addr).is_ok() {
                    return Ok(server);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            anyhow::bail!("mosquitto does not listen; see stderr.log")
        })
    }

    fn embedded(dir: &Path) -> anyhow::Result<Self> {
        let mut child = Child::tidegate(&["bench-part", "broker"], dir)?;
        let port: u16 = child.line()?.parse()?;
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        Ok(Self { addr, program: "the embedded broker", _child: child })
    }
}
