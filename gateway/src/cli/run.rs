//! `tidegate run`: config → build → spawn → drain.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_config::Document;
use tidegate_config::ProcessEnvironment;
use tidegate_engine::store::StoreError;
use tidegate_web_ui::ConfigProblem;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::check::{Checked, fail, load_or_explain};
use super::{FAILURE, TEMPORARY};
use crate::build::{Crews, Running, StartError, Surroundings, start};
use crate::clock::SystemClock;
use crate::control::{Http, Socket};
use crate::heap;
use crate::status::warnings;
use crate::supervisor::{Health, supervise};

/// Runs the gateway until SIGTERM, SIGINT or a request on the control socket.
pub fn run(path: &Path) -> u8 {
    heap::keep_small();
    let checked = match load_or_explain(path) {
        Ok(checked) => checked,
        Err(code) => return code,
    };
    let Checked { loaded, warnings: problems } = checked;
    if !problems.is_empty() {
        eprint!("{}", problems.human());
    }
    let shown = warnings(&problems);
    // Where each value was written is of no use from here on, and is most of what was read: 64 MB
    // for a plant of 100,000 points.
    let document = loaded.document;
    drop((problems, loaded.spans));
    heap::give_back();
    let threads = match Threads::start() {
        Ok(threads) => threads,
        Err(error) => return fail(format_args!("cannot start threads: {error}")),
    };
    let code = threads.io.block_on(serve(&document, shown, threads.crews()));
    threads.end();
    code
}

/// The threads of a gateway, each with its kind of work.
pub struct Threads {
    /// Feeds, pumps, tables and pages.
    pub io: Runtime,
    /// Links and the devices that are polled over them. One thread: a request and its reply never
    /// wake a second one, which costs as much as both (two threads made three `epoll_wait` and a
    /// `write` for each request, where one makes a single `epoll_wait`).
    poll: Runtime,
    /// Streams, so that pollers never share a thread with a window close.
    compute: Runtime,
}

impl Threads {
    /// Starts them.
    pub fn start() -> std::io::Result<Self> {
        let runtime = |name: &str, threads| {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(threads)
                .thread_name(name)
                .enable_all()
                .build()
        };
        Ok(Self {
            io: runtime("tidegate-io", 2)?,
            poll: runtime("tidegate-poll", 1)?,
            compute: runtime("tidegate-sql", 1)?,
        })
    }

    /// Where parts run that do not run with the rest.
    pub fn crews(&self) -> Crews {
        Crews { poll: self.poll.handle().clone(), compute: self.compute.handle().clone() }
    }

    /// Ends them without waiting: whatever still runs holds nothing that is not in the store.
    pub fn end(self) {
        self.compute.shutdown_background();
        self.poll.shutdown_background();
        self.io.shutdown_background();
    }
}

async fn serve(document: &Document, warnings: Vec<ConfigProblem>, crews: Crews) -> u8 {
    // Signals are caught before anything can be in the middle of something.
    let mut quit = match Quit::new() {
        Ok(quit) => quit,
        Err(error) => return fail(format_args!("cannot catch signals: {error}")),
    };
    let around = Surroundings {
        clock: Arc::new(SystemClock),
        environment: Arc::new(ProcessEnvironment),
        crews,
        warnings,
    };
    let running = match start(document, &around) {
        Ok(running) => running,
        Err(error @ StartError::Store(StoreError::Locked { .. })) => {
            fail(error);
            return TEMPORARY;
        }
        Err(error) => return fail(error),
    };
    let doors = Doors::open(document, &running, &quit.asked);
    let store_failed = tokio::select! {
        () = quit.wait() => None,
        error = running.store.failed() => Some(error),
    };
    if let Some(error) = store_failed {
        return fail(format_args!("store: {error}; leaving for a restart"));
    }
    tracing::info!("stopping");
    let grace = document.gateway.shutdown_grace.duration();
    let code = tokio::select! {
        code = stop(running, grace) => code,
        // A second signal: leave at once. The store is whole at every instant.
        () = quit.wait() => FAILURE,
    };
    doors.close().await;
    code
}

async fn stop(running: Running, grace: Duration) -> u8 {
    match running.shutdown(grace).await {
        Ok(()) => 0,
        Err(error) => fail(format_args!("store: {error}")),
    }
}

/// SIGTERM, SIGINT, or a request on the control socket.
struct Quit {
    term: Signal,
    int: Signal,
    asked: CancellationToken,
}

impl Quit {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            asked: CancellationToken::new(),
        })
    }

    /// Waits for the next one; a request on the socket counts once.
    async fn wait(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
            () = self.asked.cancelled() => self.asked = CancellationToken::new(),
        }
    }
}

/// The listeners of a running gateway.
pub struct Doors {
    stop: CancellationToken,
    tasks: JoinSet<()>,
    /// The address of the status page, once it is bound.
    pub http: watch::Receiver<Option<std::net::SocketAddr>>,
}

impl Doors {
    /// Opens the HTTP listener and the control socket; `quit` is cancelled on request.
    pub fn open(document: &Document, running: &Running, quit: &CancellationToken) -> Self {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let (bound, http) = watch::channel(None);
        let page = Http {
            listen: document.web.listen.clone(),
            console: running.status.clone(),
            stop: stop.clone(),
            bound,
        };
        let socket = Socket {
            dir: PathBuf::from(&document.store.path),
            console: running.status.clone(),
            quit: quit.clone(),
            stop: stop.clone(),
        };
        let (a, b) = (stop.clone(), stop.clone());
        tasks.spawn(async { supervise("web", "http", Arc::new(Health::default()), a, page).await });
        tasks.spawn(async {
            supervise("web", "socket", Arc::new(Health::default()), b, socket).await;
        });
        Self { stop, tasks, http }
    }

    /// Ends both listeners.
    pub async fn close(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}
