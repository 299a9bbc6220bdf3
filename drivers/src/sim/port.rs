//! A serial port that is none: a pty, whose far side a client opens through a symbolic link.
//!
//! The simulator keeps both sides open, so that its own side does not end with each client that
//! goes. Dropping a [`Port`] is the unplugging: the link goes first, then both sides, and who has
//! the far side open reads end of file or EIO. A pty has no baud rate and no parity; what a client
//! did not read before it went, the next one finds, unless it flushes.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use tokio::io::{Join, join};
use tokio::net::unix::pipe::{Receiver, Sender};

/// Where the system keeps ptys.
const PTYS: &str = "/dev/pts/";

/// The simulator's side of a serial line.
#[derive(Debug)]
pub(super) struct Port {
    _link: Link,
    /// What is read from and written to the client.
    pub(super) line: Join<Receiver, Sender>,
    _theirs: OwnedFd,
}

impl Port {
    /// Makes a pty in raw mode and a link to it. Refuses where anything but a link to a pty stands
    /// at the link's path. Needs a tokio runtime.
    pub(super) fn open(link: &Path) -> io::Result<Self> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let name = ptsname(&ours, Vec::new())?;
        let name = name.to_str().map_err(|_| io::ErrorKind::InvalidFilename)?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = rustix::fs::open(name, flags, Mode::empty())?;
        // No echo and no line editing before the client sets the port up.
        let mut raw = tcgetattr(&theirs)?;
        raw.make_raw();
        tcsetattr(&theirs, OptionalActions::Now, &raw)?;
        let link = Link::make(link, Path::new(name))?;
        Ok(Self { _link: link, line: stream(ours)?, _theirs: theirs })
    }
}

/// A descriptor in nonblocking mode as a stream of bytes. tokio's pipes read and write any such
/// descriptor, without the unsafe block that `AsyncFd` asks for.
pub(super) fn stream(fd: OwnedFd) -> io::Result<Join<Receiver, Sender>> {
    let reads = Receiver::from_owned_fd_unchecked(fd.try_clone()?)?;
    Ok(join(reads, Sender::from_owned_fd_unchecked(fd)?))
}

/// The symbolic link, gone when dropped.
#[derive(Debug)]
struct Link {
    path: PathBuf,
    target: PathBuf,
}

impl Link {
    /// Puts the link there in one step, so that a client never sees half of it.
    fn make(path: &Path, target: &Path) -> io::Result<Self> {
        match fs::read_link(path) {
            Ok(old) if old.starts_with(PTYS) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => {
                let text = "something stands there that is no link to a pty";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
            }
        }
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(format!(".{}", std::process::id()));
        let fresh = PathBuf::from(fresh);
        symlink(target, &fresh)?;
        let link = Self { path: path.to_owned(), target: target.to_owned() };
        if let Err(error) = fs::rename(&fresh, path) {
            fs::remove_file(&fresh)?;
            return Err(error);
        }
        Ok(link)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Another simulator may have put its own there.
        let mine = fs::read_link(&self.path).is_ok_and(|target| target == self.target);
        if mine && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(link = %self.path.display(), %error, "simulator: the link stays behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn client(link: &Path) -> File {
        File::options().read(true).write(true).open(link).unwrap()
    }

    #[tokio::test]
    async fn bytes_go_both_ways_unaltered() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("bus");
        let mut port = Port::open(&link).unwrap();
        for _ in 0..2 {
            // A cooked terminal would echo, and alter CR, LF, XON, XOFF and ^D.
            let bytes = [0x01, 0x03, 0x04, 0x0A, 0x0D, 0x11, 0x13, 0x7F, 0xFF];
            let mut client = client(&link);
            client.write_all(&bytes).unwrap();
            let mut got = [0; 9];
            port.line.read_exact(&mut got).await.unwrap();
            assert_eq!(got, bytes);
            port.line.write_all(&bytes).await.unwrap();
            client.read_exact(&mut got).unwrap();
            assert_eq!(got, bytes);
        }
    }

    #[tokio::test]
    async fn dropping_it_is_the_unplugging() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("bus");
        let port = Port::open(&link).unwrap();
        let mut client = client(&link);
        drop(port);
        assert!(fs::symlink_metadata(&link).is_err());
        // What a hung-up terminal says: end of file.
        assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
        client.write_all(&[1]).unwrap_err();
    }

    #[tokio::test]
    async fn only_a_link_to_a_pty_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("bus");
        File::create(&link).unwrap();
        let error = Port::open(&link).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        fs::remove_file(&link).unwrap();
        symlink("/etc/passwd", &link).unwrap();
        Port::open(&link).unwrap_err();
        fs::remove_file(&link).unwrap();
        // Left behind by a simulator that was killed.
        symlink("/dev/pts/99999", &link).unwrap();
        let port = Port::open(&link).unwrap();
        // A second one takes the path over, and the first leaves it alone when it goes.
        let other = Port::open(&link).unwrap();
        drop(port);
        client(&link);
        drop(other);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
