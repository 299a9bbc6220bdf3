//! Connections: how many there may be, and how long one may take for what.
//!
//! Promise: no client holds a connection without sending whole requests and reading its answers:
//! headers have a deadline (which also ends an idle connection), answers have one, and the number
//! of connections is bounded; one more waits at the entrance, which tells why, and further clients in the
//! kernel's queue. A stop ends what is under way within a bound. Does not know: the routes.

use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use crate::entrance::Entrance;

/// Bounds of one listener.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Connections at a time.
    connections_max: usize,
    /// Time for a whole request head, and for a connection to be idle.
    head_timeout: Duration,
    /// Time from the first byte of an answer that the client's window does not take to its last.
    answer_timeout: Duration,
    /// Time for answers under way to end after a stop.
    drain_max: Duration,
}

/// Generous for people, scrapers and health checks; a hostile client gets little from it.
const LIMITS: Limits = Limits {
    connections_max: 64,
    head_timeout: Duration::from_secs(5),
    answer_timeout: Duration::from_secs(10),
    drain_max: Duration::from_secs(1),
};

/// Bytes of a request head, and of the read buffer.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Headers of a request.
const HEADERS_MAX: usize = 64;

/// How long a visitor may wait before `Entrance` is told, and how often it is told again; after an
/// error of accepting it is tried again as soon.
const WAIT_STEP: Duration = Duration::from_secs(1);

/// Serves HTTP/1.1 on TCP until `shutdown`; then answers under way end within a second.
///
/// An error of one connection ends that connection. Where visitors have to wait, because there are as many as
/// there may be or no file descriptor is left, `entrance` tells.
pub async fn serve_tcp(
    listener: TcpListener,
    router: Router,
    entrance: Arc<Entrance>,
    shutdown: CancellationToken,
) {
    serve(listener, router, LIMITS, &entrance, shutdown).await;
}

/// Serves HTTP/1.1 on a Unix socket until `shutdown`, as [`serve_tcp`] does.
pub async fn serve_unix(
    listener: UnixListener,
    router: Router,
    entrance: Arc<Entrance>,
    shutdown: CancellationToken,
) {
    serve(listener, router, LIMITS, &entrance, shutdown).await;
}

/// Binds a Unix socket that only this user may connect to (mode 0600).
///
/// The socket is made beside `path` and renamed, so that nobody sees it with another mode; a
/// socket that a killed process left there is replaced. The caller makes sure that no second
/// gateway is running (it holds the store's lock). Blocks for a few system calls; needs a tokio
/// runtime.
pub fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Path::new(&beside);
    match std::fs::remove_file(beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(beside)?;
    std::fs::set_permissions(beside, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(beside, path)?;
    Ok(listener)
}

/// Where connections come from.
trait Listen {
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next one. Cancel safe.
    fn next(&mut self) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

impl Listen for TcpListener {
    type Io = TcpStream;

    async fn next(&mut self) -> io::Result<TcpStream> {
        Ok(self.accept().await?.0)
    }
}

impl Listen for UnixListener {
    type Io = UnixStream;

    async fn next(&mut self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}

async fn serve<L: Listen>(
    mut listener: L,
    router: Router,
    limits: Limits,
    entrance: &Entrance,
    shutdown: CancellationToken,
) {
    let mut connections = JoinSet::new();
    // One that there is no room for, and when that is told next.
    let mut waiting: Option<(L::Io, Instant)> = None;
    let let_in = |connections: &mut JoinSet<()>, io| {
        connections.spawn(converse(io, router.clone(), limits, shutdown.clone()));
    };
    loop {
        let told = waiting.as_ref().map(|(_, at)| *at);
        tokio::select! {
            () = shutdown.cancelled() => break,
            Some(ended) = connections.join_next() => {
                report(ended);
                if let Some((io, _)) = waiting.take() {
                    let_in(&mut connections, io);
                }
            }
            io = accept(&mut listener, entrance), if told.is_none() => {
                if connections.len() < limits.connections_max {
                    let_in(&mut connections, io);
                } else {
                    waiting = Some((io, Instant::now() + WAIT_STEP));
                }
            }
            () = until(told) => {
                entrance.is_blocked(format!(
                    "{} connections are open, which is the most; see who holds them (`ss -np`)",
                    connections.len()
                ));
                waiting = waiting.map(|(io, _)| (io, Instant::now() + WAIT_STEP));
            }
        }
    }
    // Closed first: a client that comes now is refused instead of waiting for nothing.
    drop((listener, waiting));
    let drained = async {
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    };
    if tokio::time::timeout(limits.drain_max, drained).await.is_err() {
        debug!(connections = connections.len(), "connections cut at shutdown");
    }
    connections.shutdown().await;
}

/// The next connection. Cancel safe.
async fn accept<L: Listen>(listener: &mut L, entrance: &Entrance) -> L::Io {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    loop {
        match listener.next().await {
            Ok(io) => return io,
            // Who wanted to come in has gone.
            Err(e)
                if [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&e.kind()) => {}
            Err(error) => {
                entrance.is_blocked(format!(
                    "none can be let in: {error}; permit the gateway more open files (`LimitNOFILE=` of \
                     its service), or see who holds so many connections (`ss -np`)"
                ));
                sleep(WAIT_STEP).await;
            }
        }
    }
}

/// Waits until then, for ever where that is not known.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// A route that panics ends its own connection only.
fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        error!(%error, "a request's route panicked");
    }
}

async fn converse<T>(io: T, router: Router, limits: Limits, shutdown: CancellationToken)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(Deadlined { io, limit: limits.answer_timeout, deadline: None });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_timeout)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(io, TowerToHyperService::new(router))
    );
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        debug!(%error, "connection ended");
    }
}

/// A stream whose writes must be flushed within a limit, however slowly the far side takes them.
///
/// Progress does not move the deadline: a client that reads a byte now and then is slow as well.
struct Deadlined<T> {
    io: T,
    limit: Duration,
    /// Runs from the first write that had to wait to the next completed flush.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<T> Deadlined<T> {
    fn check<R>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if poll.is_ready() {
            return poll;
        }
        let limit = self.limit;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Deadlined<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Deadlined<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write(cx, buf);
        self.check(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.check(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_flush(cx);
        if poll.is_ready() {
            self.deadline = None;
        }
        self.check(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.io).poll_shutdown(cx);
        self.check(cx, poll)
    }
}

#[cfg(test)]
mod tests;
