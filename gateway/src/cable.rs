//! A cable that can be pulled: a TCP proxy between a sink and what it delivers to.
//!
//! Promises that a pulled cable cuts every connection at once and lets no new one through, so that
//! an outage is real for both ends and no byte slips past it. Knows nothing of the protocol.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Pause after the operating system refused a connection, such as for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A TCP connection's way that can be interrupted: every connection to [`Cable::addr`] is passed
/// on to one upstream address while the cable is plugged.
///
/// It starts pulled. Its port stays bound meanwhile, so that no other process can take it: a
/// connection is then accepted and reset at once, which a client sees as a lost connection.
#[derive(Debug)]
pub struct Cable {
    addr: SocketAddr,
    /// Cancelled when the cable is pulled; `None` while it is.
    link: watch::Sender<Option<CancellationToken>>,
    accepting: JoinHandle<()>,
}

impl Cable {
    /// Binds a free port on loopback.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let (link, plugged) = watch::channel(None);
        let accepting = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((socket, _)) => {
                        let link: Option<CancellationToken> = plugged.borrow().clone();
                        tokio::spawn(pass(socket, upstream, link));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cable: cannot accept a connection");
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
        Ok(Self { addr, link, accepting })
    }

    /// The address to connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Passes new connections on. Does nothing where the cable is plugged already.
    pub fn plug(&self) {
        self.link.send_if_modified(|link| {
            let pulled = link.is_none();
            link.get_or_insert_default();
            pulled
        });
    }

    /// Resets all connections, with whatever bytes are on the way, and every new one.
    pub fn pull(&self) {
        if let Some(link) = self.link.send_replace(None) {
            link.cancel();
        }
    }

    /// True while connections are passed on.
    pub fn is_plugged(&self) -> bool {
        self.link.borrow().is_some()
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.pull();
        self.accepting.abort();
    }
}

/// Passes one connection on until it ends or `link` is cancelled.
async fn pass(mut near: TcpStream, upstream: SocketAddr, link: Option<CancellationToken>) {
    let passed = async {
        near.set_nodelay(true)?;
        let Some(link) = link else {
            return near.set_zero_linger();
        };
        let work = async {
            let mut far = TcpStream::connect(upstream).await?;
            far.set_nodelay(true)?;
            far.set_zero_linger()?;
            tokio::io::copy_bidirectional(&mut near, &mut far).await
        };
        match link.run_until_cancelled(work).await {
            Some(done) => done.map(drop),
            None => near.set_zero_linger(),
        }
    };
    if let Err(error) = passed.await {
        tracing::debug!(%error, "cable: connection ended");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn read_one(socket: &mut TcpStream) -> io::Result<u8> {
        socket.read_u8().await
    }

    #[tokio::test]
    async fn bytes_pass_only_while_the_cable_is_plugged() {
        let far = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let cable = Cable::start(far.local_addr().unwrap()).await.unwrap();

        let mut early = TcpStream::connect(cable.addr()).await.unwrap();
        read_one(&mut early).await.unwrap_err();

        cable.plug();
        cable.plug();
        let mut near = TcpStream::connect(cable.addr()).await.unwrap();
        let (mut there, _) = far.accept().await.unwrap();
        near.write_all(&[7]).await.unwrap();
        assert_eq!(read_one(&mut there).await.unwrap(), 7);
        there.write_all(&[8]).await.unwrap();
        assert_eq!(read_one(&mut near).await.unwrap(), 8);

        cable.pull();
        assert!(!cable.is_plugged());
        read_one(&mut near).await.unwrap_err();
        read_one(&mut there).await.unwrap_err();

        cable.plug();
        let mut again = TcpStream::connect(cable.addr()).await.unwrap();
        let (mut there, _) = far.accept().await.unwrap();
        again.write_all(&[9]).await.unwrap();
        assert_eq!(read_one(&mut there).await.unwrap(), 9);
    }
}
