//! The gateway's doors: HTTP on loopback for looking, a Unix socket for control.
//!
//! A busy port is a red part that is tried again, never a reason not to read the plant.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_web_ui::{
    Answer, Applied, ApplyOutcome, Console, Control, Entrance, Keeper, LogLevels, LogLevelsWanted,
    Streams,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::apply::{Ask, Request};
use crate::logs::Levels;
use crate::supervisor::{Exit, Part};

/// The HTTP listener.
pub struct Http {
    /// Address and port.
    pub listen: String,
    /// What is shown.
    pub console: Arc<dyn Console>,
    /// Whether visitors have to wait.
    pub entrance: Arc<Entrance>,
    /// Ends serving.
    pub stop: CancellationToken,
    /// Told the address once it is bound.
    pub bound: tokio::sync::watch::Sender<Option<std::net::SocketAddr>>,
}

impl Part for Http {
    async fn run(&mut self) -> Exit {
        let listener = match TcpListener::bind(&self.listen).await {
            Ok(listener) => listener,
            Err(error) => {
                return Exit::Failed(format!(
                    "cannot listen on {}: {error}; is another program there? (`web.listen`)",
                    self.listen
                ));
            }
        };
        if let Ok(address) = listener.local_addr() {
            tracing::info!(url = %format_args!("http://{address}/"), "status page");
            self.bound.send_replace(Some(address));
        }
        let router = tidegate_web_ui::router(self.console.clone());
        let entrance = self.entrance.clone();
        tidegate_web_ui::serve_tcp(listener, router, entrance, self.stop.clone()).await;
        Exit::Done
    }
}

/// What may be asked over the control socket.
pub struct Desk {
    /// Cancelled when somebody asks the gateway to end, as SIGTERM does.
    pub quit: CancellationToken,
    /// Where other configurations are taken; none where there is no file to keep them in.
    pub requests: Option<mpsc::Sender<Ask>>,
    /// What is logged.
    pub levels: Levels,
}

impl Control for Desk {
    fn stop(&self) {
        self.quit.cancel();
    }

    fn apply(&self, name: String, text: String) -> Answer<Applied> {
        let requests = self.requests.clone();
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            let not_now = |detail: &str| Applied {
                outcome: ApplyOutcome::NotNow,
                detail: detail.to_owned(),
                ..Applied::default()
            };
            let Some(requests) = requests else {
                return not_now("this gateway has no configuration of its own");
            };
            match requests.try_send(Ask::Apply(Request { name, text, answer })) {
                Ok(()) => {}
                Err(TrySendError::Full(_)) => return not_now("other changes are under way"),
                Err(TrySendError::Closed(_)) => return not_now("the gateway is stopping"),
            }
            answered.await.unwrap_or_else(|_| not_now("the gateway is stopping"))
        })
    }

    fn log_levels(&self) -> LogLevels {
        self.levels.show()
    }

    fn set_log_levels(&self, wanted: &LogLevelsWanted) -> Result<LogLevels, String> {
        self.levels.set(&wanted.levels, Duration::from_secs(wanted.for_s))
    }
}

/// The control socket, `control.sock` in the store's folder, for this user alone.
pub struct Socket {
    /// The store's folder.
    pub dir: std::path::PathBuf,
    /// What is shown.
    pub console: Arc<dyn Console>,
    /// What may be asked.
    pub desk: Arc<Desk>,
    /// What may be done to the store.
    pub keeper: Arc<dyn Keeper>,
    /// What may be asked of streams.
    pub streams: Arc<dyn Streams>,
    /// Whether visitors have to wait.
    pub entrance: Arc<Entrance>,
    /// Ends serving.
    pub stop: CancellationToken,
}

impl Part for Socket {
    async fn run(&mut self) -> Exit {
        let path = self.dir.join("control.sock");
        let listener = match tidegate_web_ui::bind_unix(&path) {
            Ok(listener) => listener,
            Err(error) => {
                return Exit::Failed(format!("control socket {}: {error}", path.display()));
            }
        };
        let (console, desk) = (self.console.clone(), self.desk.clone());
        let (keeper, streams) = (self.keeper.clone(), self.streams.clone());
        let router = tidegate_web_ui::control_router(console, desk, keeper, streams);
        let entrance = self.entrance.clone();
        tidegate_web_ui::serve_unix(listener, router, entrance, self.stop.clone()).await;
        remove(&path);
        Exit::Done
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "the control socket stays behind");
    }
}

/// What a gateway answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    head: String,
    /// The body.
    pub body: Vec<u8>,
}

impl Reply {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The value of a header, by its name in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// Asks a running gateway over its control socket, with a body where there is one, and waits for
/// `patience` at most.
pub async fn ask(
    socket: &Path,
    method: &str,
    path: &str,
    body: &str,
    patience: Duration,
) -> std::io::Result<Reply> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let talk = async {
        let mut stream = tokio::net::UnixStream::connect(socket).await?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        // Bounded: a status of ten thousand parts, or a part of an export, is far below this.
        stream.take(256 << 20).read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(patience, talk)
        .await
        .map_err(|_| std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer"))??;
    parse(&answer).ok_or_else(|| {
        std::io::Error::new(std::io::ErrorKind::InvalidData, "the answer is not HTTP")
    })
}

/// Asks, and hands each line of the answer to `line` as it comes, as long as it comes. Where the
/// gateway declines, nothing is handed over, and the answer tells why. HTTP/1.0, so that the end of
/// the connection is the end of the lines.
pub async fn follow(
    socket: &Path,
    method: &str,
    path: &str,
    body: &str,
    mut line: impl FnMut(&str),
) -> std::io::Result<Reply> {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

    let mut stream = tokio::net::UnixStream::connect(socket).await?;
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let (mut answer, mut head) = (BufReader::new(stream), String::new());
    while !head.ends_with("\r\n\r\n") {
        if (&mut answer).take(HEAD_BYTES_MAX).read_line(&mut head).await? == 0 {
            return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "no answer"));
        }
    }
    let status = head.get(9..12).and_then(|status| status.parse().ok());
    let unclear = || std::io::Error::new(std::io::ErrorKind::InvalidData, "the answer is not HTTP");
    let status = status.filter(|_| head.starts_with("HTTP/1.")).ok_or_else(unclear)?;
    let mut reply = Reply { status, head, body: Vec::new() };
    if status >= 300 {
        answer.take(HEAD_BYTES_MAX).read_to_end(&mut reply.body).await?;
        return Ok(reply);
    }
    let mut text = String::new();
    while answer.read_line(&mut text).await? > 0 {
        line(text.trim_end_matches('\n'));
        text.clear();
    }
    Ok(reply)
}

/// Bytes of an answer's head, and of why the gateway declines.
const HEAD_BYTES_MAX: u64 = 64 << 10;

/// Splits an answer into its head and its body.
fn parse(answer: &[u8]) -> Option<Reply> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8(answer[..end].to_vec()).ok()?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some(Reply { status, head, body: answer[end + 4..].to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_headers_and_a_body() {
        let answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno";
        let reply = parse(answer).unwrap();
        assert_eq!((reply.status, &*reply.text()), (503, "no"));
        assert_eq!(reply.header("content-length"), Some("2"));
        assert_eq!(reply.header("x-none"), None);
        assert_eq!(parse(b"SSH-2.0\r\n\r\n"), None);
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\n"), None);
    }
}
