//! Tells systemd how the service is: ready, stopping, alive.
//!
//! Own few lines instead of a library: one datagram to the socket that `NOTIFY_SOCKET` names.
//! Without that variable every word is dropped, as where no service manager listens. Source:
//! sd_notify(3) and sd_watchdog_enabled(3) of systemd 252.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The way to the service manager.
#[derive(Debug, Default)]
pub struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notify {
    /// What the service manager said in the environment.
    pub fn from_env() -> Self {
        let get = |name: &str| std::env::var(name).ok();
        Self::new(get)
    }

    /// The same with other values; `pid` of the watchdog must be ours where it is given.
    fn new(get: impl Fn(&str) -> Option<String>) -> Self {
        let Some(name) = get("NOTIFY_SOCKET") else {
            return Self::default();
        };
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&name),
        };
        let made = address.and_then(|address| Ok((UnixDatagram::unbound()?, address)));
        let socket = match made {
            Ok((socket, address)) => socket.set_nonblocking(true).map(|()| (socket, address)),
            Err(error) => Err(error),
        };
        if let Err(error) = &socket {
            tracing::warn!(name, %error, "NOTIFY_SOCKET cannot be used");
        }
        let ours = get("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let micros = get("WATCHDOG_USEC").filter(|_| ours).and_then(|text| text.parse().ok());
        let watchdog = micros.filter(|micros| *micros > 0).map(Duration::from_micros);
        Self { socket: socket.ok(), watchdog }
    }

    /// How long the service manager waits for a sign of life, where it does.
    pub fn watchdog(&self) -> Option<Duration> {
        self.socket.as_ref().and(self.watchdog)
    }

    /// Says one or more lines of `NAME=value`. Never waits; a full socket loses the word.
    pub fn say(&self, words: &str) {
        let Some((socket, address)) = &self.socket else {
            return;
        };
        if let Err(error) = socket.send_to_addr(words.as_bytes(), address) {
            tracing::debug!(words, %error, "the service manager did not hear");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(values: &[(&str, String)]) -> Notify {
        Notify::new(|name| values.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone()))
    }

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn words_arrive_at_a_path_and_at_an_abstract_name() {
        let folder = std::env::temp_dir().join(format!("tidegate-notify-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        with(&[("NOTIFY_SOCKET", path.display().to_string())]).say("READY=1");
        assert_eq!(heard(&listener), "READY=1");
        std::fs::remove_dir_all(&folder).unwrap();

        let name = format!("tidegate-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixDatagram::bind_addr(&address).unwrap();
        with(&[("NOTIFY_SOCKET", format!("@{name}"))]).say("STOPPING=1");
        assert_eq!(heard(&listener), "STOPPING=1");
    }

    #[test]
    fn the_watchdog_is_ours_only_where_the_manager_says_so() {
        let socket = ("NOTIFY_SOCKET", "@tidegate-nobody".to_owned());
        let usec = ("WATCHDOG_USEC", "60000000".to_owned());
        let pid = |pid: u32| ("WATCHDOG_PID", pid.to_string());
        let minute = Some(Duration::from_mins(1));
        assert_eq!(with(&[socket.clone(), usec.clone()]).watchdog(), minute);
        let ours = pid(std::process::id());
        assert_eq!(with(&[socket.clone(), usec.clone(), ours]).watchdog(), minute);
        let other = pid(std::process::id() + 1);
        assert_eq!(with(&[socket.clone(), usec.clone(), other]).watchdog(), None);
        assert_eq!(with(&[socket, ("WATCHDOG_USEC", "0".to_owned())]).watchdog(), None);
        assert_eq!(with(&[usec]).watchdog(), None);
        // Nobody listens: said into the wind.
        with(&[("NOTIFY_SOCKET", "@tidegate-nobody".to_owned())]).say("READY=1");
    }
}
