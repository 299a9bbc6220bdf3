//! Clients that do not behave, on paused time through in-memory pipes, and once on real sockets.

use std::io;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::middleware;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::guard;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// The far ends of connections that a test makes.
struct Pipes(mpsc::Receiver<io::Result<DuplexStream>>);

impl Listen for Pipes {
    type Io = DuplexStream;

    async fn next(&mut self) -> io::Result<DuplexStream> {
        match self.0.recv().await {
            Some(came) => came,
            None => std::future::pending().await,
        }
    }
}

struct Server {
    connect: mpsc::Sender<io::Result<DuplexStream>>,
    entrance: Arc<Entrance>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
    /// A request of `/held` waits for this.
    release: Arc<Notify>,
}

/// Bytes of the answer of `/large`.
const LARGE: usize = 100_000;

impl Server {
    fn start(limits: Limits) -> Self {
        // The bound of the kernel's queue of connections that nobody accepted yet.
        let (connect, pipes) = mpsc::channel(16);
        let (shutdown, release) = (CancellationToken::new(), Arc::new(Notify::new()));
        let entrance = Arc::new(Entrance::new("web"));
        let (routes, way, ended) = (routes(release.clone()), entrance.clone(), shutdown.clone());
        let task = tokio::spawn(async move {
            serve(Pipes(pipes), routes, limits, &way, ended).await;
        });
        Self { connect, entrance, shutdown, task, release }
    }

    async fn connect(&self) -> DuplexStream {
        let (near, far) = duplex(1024);
        self.connect.send(Ok(far)).await.unwrap();
        near
    }

    /// What the entrance tells.
    fn alarm(&self) -> Option<String> {
        let alarm = self.entrance.alarm()?;
        assert_eq!(alarm.part, "web");
        Some(alarm.reason)
    }
}

fn routes(release: Arc<Notify>) -> Router {
    let held = get(async move || {
        release.notified().await;
        "released\n"
    });
    Router::new()
        .route("/", get(async || "ok\n"))
        .route("/echo", post(async |body: Bytes| body))
        .route("/held", held)
        .route("/large", get(async || vec![b'x'; LARGE]))
        .route("/panic", get(async || -> &'static str { panic!("a bug in a route") }))
        .layer(middleware::from_fn_with_state(guard::REQUEST, guard::limits))
        .layer(DefaultBodyLimit::max(guard::REQUEST.body_max))
}

/// Sends a request that asks to close, and returns the whole answer.
async fn ask(io: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    io.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Reads one answer that ends with `ok` and a line feed, on a connection that stays open.
async fn read_ok(io: &mut DuplexStream) {
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok\n") {
        assert_ne!(io.read_buf(&mut answer).await.unwrap(), 0, "closed before its answer");
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
}

fn one_at_a_time() -> Limits {
    Limits { connections_max: 1, ..LIMITS }
}

/// Slowloris: a header line now and then, for ever. The only slot is free again after 5 s.
#[tokio::test(start_paused = true)]
async fn slow_headers_do_not_hold_a_slot() {
    let server = Server::start(one_at_a_time());
    let mut slow = server.connect().await;
    let began = Instant::now();
    slow.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let trickle = tokio::spawn(async move {
        while slow.write_all(b"X-Slow: 1\r\n").await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    });
    let mut next = server.connect().await;
    assert!(ask(&mut next, "/").await.starts_with("HTTP/1.1 200 OK"));
    assert_eq!(began.elapsed().as_secs(), 5);
    trickle.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn silent_and_idle_connections_end() {
    let server = Server::start(LIMITS);
    let mut silent = server.connect().await;
    let mut idle = server.connect().await;
    idle.write_all(GET).await.unwrap();
    read_ok(&mut idle).await;
    sleep(Duration::from_secs(4)).await;
    idle.write_all(GET).await.unwrap();
    read_ok(&mut idle).await;
    let answered = Instant::now();

    assert_eq!(silent.read_u8().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(answered.elapsed().as_secs(), 1);
    assert_eq!(idle.read_u8().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(answered.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_answered_after_10_s() {
    let server = Server::start(one_at_a_time());
    let mut client = server.connect().await;
    let began = Instant::now();
    let head = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf";
    client.write_all(head).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{answer}");
    assert!(answer.contains("\"code\":\"request_timeout\""), "{answer}");
    assert_eq!(began.elapsed(), guard::REQUEST.timeout);
}

/// A chunked body tells no length in its head: it is counted while it is read.
#[tokio::test(start_paused = true)]
async fn an_endless_chunked_body_is_cut() {
    let server = Server::start(one_at_a_time());
    let (mut answers, mut requests) = tokio::io::split(server.connect().await);
    let endless = tokio::spawn(async move {
        let head = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
        requests.write_all(head).await.unwrap();
        let mut sent = 0_usize;
        while requests.write_all(b"10\r\n0123456789abcdef\r\n").await.is_ok() {
            sent += 16;
        }
        sent
    });
    let mut answer = String::new();
    // The rest of the body may meet a closed connection; what was answered before stands.
    drop(answers.read_to_string(&mut answer).await);
    assert!(answer.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{answer}");
    let sent = endless.await.unwrap();
    assert!(
        (guard::REQUEST.body_max..20 * guard::REQUEST.body_max).contains(&sent),
        "{sent} bytes were taken"
    );
}

/// A client that takes a few bytes of its answer now and then is slow, not alive.
#[tokio::test(start_paused = true)]
async fn slow_readers_are_dropped() {
    let server = Server::start(one_at_a_time());
    let mut slow = server.connect().await;
    slow.write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let began = Instant::now();
    let mut taken = 0;
    let mut some = [0; 100];
    loop {
        sleep(Duration::from_secs(1)).await;
        match slow.read(&mut some).await {
            Ok(0) | Err(_) => break,
            Ok(n) => taken += n,
        }
    }
    assert!(taken < LARGE / 10, "{taken} bytes");
    let mut next = server.connect().await;
    assert!(ask(&mut next, "/").await.starts_with("HTTP/1.1 200 OK"));
    assert!(began.elapsed() < Duration::from_mins(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn quick_readers_get_large_answers_whole() {
    let server = Server::start(LIMITS);
    let answer = ask(&mut server.connect().await, "/large").await;
    assert_eq!(answer.matches('x').count(), LARGE);
}

#[tokio::test(start_paused = true)]
async fn connections_beyond_the_bound_wait() {
    let server = Server::start(Limits { connections_max: 2, ..LIMITS });
    let mut busy = [server.connect().await, server.connect().await];
    for connection in &mut busy {
        let head = b"GET /held HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        connection.write_all(head).await.unwrap();
    }
    sleep(Duration::from_secs(3)).await;
    assert_eq!(server.alarm(), None, "nobody waits");
    let mut third = server.connect().await;
    let answer = tokio::spawn(async move { ask(&mut third, "/").await });
    sleep(Duration::from_millis(900)).await;
    assert_eq!(server.alarm(), None, "nobody has waited for long");
    sleep(Duration::from_millis(2_100)).await;
    assert!(!answer.is_finished());
    let told = server.alarm().unwrap();
    assert!(told.contains("2 connections are open, which is the most"), "{told}");
    // However long it lasts.
    sleep(Duration::from_secs(4)).await;
    assert!(server.alarm().is_some() && !answer.is_finished());
    server.release.notify_one();
    assert!(answer.await.unwrap().starts_with("HTTP/1.1 200 OK"));
    sleep(Duration::from_secs(55)).await;
    assert!(server.alarm().is_some(), "who comes in now may want to know");
    sleep(Duration::from_secs(6)).await;
    assert_eq!(server.alarm(), None);
}

/// Fault F26: no file descriptor is left for a visitor.
#[tokio::test(start_paused = true)]
async fn f26_who_cannot_be_accepted_waits_and_an_alarm_says_why() {
    // As `errno -l` has it: EMFILE, ENFILE; ECONNABORTED is about one visitor.
    let (file, system, aborted) = (24, 23, 103);
    let server = Server::start(LIMITS);
    let fail = async |code: i32| {
        server.connect.send(Err(io::Error::from_raw_os_error(code))).await.unwrap();
    };
    fail(aborted).await;
    assert!(ask(&mut server.connect().await, "/").await.starts_with("HTTP/1.1 200 OK"));
    assert_eq!(server.alarm(), None);

    fail(file).await;
    fail(system).await;
    let mut visitor = server.connect().await;
    let began = Instant::now();
    let answer = tokio::spawn(async move { ask(&mut visitor, "/").await });
    sleep(Duration::from_millis(10)).await;
    let told = server.alarm().unwrap();
    assert!(told.contains("Too many open files (os error 24)"), "{told}");
    assert!(told.contains("LimitNOFILE"), "{told}");
    assert!(answer.await.unwrap().starts_with("HTTP/1.1 200 OK"));
    assert_eq!(began.elapsed().as_secs(), 2, "a second after each error");
    assert!(server.alarm().unwrap().contains("in system (os error 23)"));
    sleep(Duration::from_mins(1)).await;
    assert_eq!(server.alarm(), None);
}

#[tokio::test(start_paused = true)]
async fn heads_have_a_bound_in_bytes_and_headers() {
    let server = Server::start(LIMITS);
    let many = "X-Many: 1\r\n".repeat(HEADERS_MAX + 1);
    let long = format!("X-Long: {}\r\n", "x".repeat(HEAD_BYTES_MAX));
    for headers in [many, long] {
        let (mut answers, mut requests) = tokio::io::split(server.connect().await);
        let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        let send = tokio::spawn(async move { requests.write_all(head.as_bytes()).await });
        let mut answer = String::new();
        drop(answers.read_to_string(&mut answer).await);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        drop(send.await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_route_that_panics_ends_its_own_connection_only() {
    let server = Server::start(one_at_a_time());
    assert_eq!(ask(&mut server.connect().await, "/panic").await, "");
    assert!(ask(&mut server.connect().await, "/").await.starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_idle_connections_at_once_and_lets_answers_end() {
    let server = Server::start(LIMITS);
    let mut idle = server.connect().await;
    idle.write_all(GET).await.unwrap();
    read_ok(&mut idle).await;
    let mut busy = server.connect().await;
    let answer = tokio::spawn(async move { ask(&mut busy, "/held").await });
    // Paused time moves when nothing else can: the request has reached its route then.
    sleep(Duration::from_millis(1)).await;

    let began = Instant::now();
    server.shutdown.cancel();
    assert_eq!(idle.read_u8().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(began.elapsed(), Duration::ZERO);
    server.release.notify_one();
    assert!(answer.await.unwrap().ends_with("released\n"));
    server.task.await.unwrap();
    assert!(began.elapsed() < LIMITS.drain_max);
}

#[tokio::test(start_paused = true)]
async fn a_stop_cuts_what_does_not_end() {
    let server = Server::start(LIMITS);
    let mut stuck = server.connect().await;
    stuck.write_all(b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    sleep(Duration::from_millis(1)).await;
    let began = Instant::now();
    server.shutdown.cancel();
    server.task.await.unwrap();
    assert_eq!(began.elapsed().as_secs(), LIMITS.drain_max.as_secs());
    assert_eq!(stuck.read_u8().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

/// The same as on paused time, with real sockets and a real clock.
#[tokio::test]
async fn slow_headers_over_tcp_do_not_hold_a_slot() {
    let limits = Limits { head_timeout: Duration::from_millis(200), ..one_at_a_time() };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let (routes, ended) = (routes(Arc::new(Notify::new())), shutdown.clone());
    let task = tokio::spawn(async move {
        serve(listener, routes, limits, &Entrance::new("web"), ended).await;
    });
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nHost: local").await.unwrap();
    let mut next = TcpStream::connect(address).await.unwrap();
    let answer = timeout(Duration::from_secs(20), ask(&mut next, "/")).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    shutdown.cancel();
    timeout(Duration::from_secs(20), task).await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "the listener is closed after a stop");
}

#[tokio::test]
async fn the_control_socket_is_for_this_user_and_replaces_a_stale_one() {
    let folder = std::env::temp_dir().join(format!("tidegate-web-ui-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("control.sock");
    drop(bind_unix(&path).unwrap());
    assert!(path.exists(), "as a killed process leaves it");
    let listener = bind_unix(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");

    let shutdown = CancellationToken::new();
    let routes = routes(Arc::new(Notify::new()));
    let entrance = Arc::new(Entrance::new("control socket"));
    let task = tokio::spawn(serve_unix(listener, routes, entrance, shutdown.clone()));
    let mut client = UnixStream::connect(&path).await.unwrap();
    assert!(ask(&mut client, "/").await.starts_with("HTTP/1.1 200 OK"));
    shutdown.cancel();
    timeout(Duration::from_secs(20), task).await.unwrap().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}
