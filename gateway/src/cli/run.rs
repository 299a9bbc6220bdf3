//! `tidegate run`: config → build → spawn → drain.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_config::{Document, ProcessEnvironment};
use tidegate_web_ui::ConfigOrigin;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::check::fail;
use super::{CONFIG_REFUSED, FAILURE, wait};
use crate::apply::{Boot, REQUESTS_MAX, Steward, boot};
use crate::build::{Crews, Surroundings};
use crate::clock::SteadyClock;
use crate::control::{Desk, Http, Socket};
use crate::floor::StreamFloor;
use crate::keeper::StoreKeeper;
use crate::logs::Levels;
use crate::notify::Notify;
use crate::running::Running;
use crate::seal;
use crate::supervisor::{Health, supervise};
use crate::watchdog;
use crate::{code_pages, heap};

/// Runs the gateway until SIGTERM, SIGINT or a request on the control socket. A configuration that
/// is refused is replaced by the last one that worked.
pub fn run(path: &Path, levels: Levels) -> u8 {
    if let Err(error) = seal::no_programs() {
        tracing::warn!(error, "the kernel does not keep this process from executing programs");
    }
    heap::keep_small();
    // Looked at before the configuration, whose SQL is planned on a thread: who has none must not hear
    // that the configuration is wrong, and is not to be started again.
    if let Err(error) = room_for_threads(THREADS_BESIDE + compute_threads()) {
        return fail(format_args!("cannot start threads: {error}{MORE_THREADS}"));
    }
    let boot = match boot(path, &ProcessEnvironment) {
        Ok(boot) => boot,
        Err(problems) => {
            eprint!("{}", problems.human());
            return CONFIG_REFUSED;
        }
    };
    if !boot.told.is_empty() {
        eprint!("{}", boot.told.human());
    }
    // Where each value was written is most of what was read, and of no use from here on: 64 MB for
    // a plant of 100,000 points.
    heap::give_back();
    let threads = match Threads::start() {
        Ok(threads) => threads,
        Err(error) => return fail(format_args!("cannot start threads: {error}{MORE_THREADS}")),
    };
    let code = threads.io.block_on(serve(path, boot, levels, threads.crews()));
    threads.end();
    code
}

/// From the start to when its memory and code are given back, and between two times later.
const FIRST_TIDYING: Duration = Duration::from_secs(12);
const TIDYING: Duration = Duration::from_hours(1);

/// The threads of a gateway, each with its kind of work.
pub struct Threads {
    /// Feeds, pumps, tables and pages.
    pub io: Runtime,
    /// Links and the devices that are polled over them. One thread: a request and its reply never
    /// wake a second one, which costs as much as both (two threads made three `epoll_wait` and a
    /// `write` for each request, where one makes a single `epoll_wait`).
    poll: Runtime,
    /// Streams, so that pollers never share a thread with a window close. One thread for each core,
    /// up to four: a stream whose SQL takes long leaves the others their turns, and on a second
    /// thread they need not even wait for them.
    compute: Runtime,
}

impl Threads {
    /// Starts them.
    pub fn start() -> std::io::Result<Self> {
        let builder = |name: &str, threads| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads).thread_name(name).enable_all();
            builder
        };
        let mut compute = builder("tidegate-sql", compute_threads());
        // Turns of 5 ms: rows and timers are looked for after two of them, not after 61.
        compute.event_interval(TURNS_MAX).global_queue_interval(TURNS_MAX);
        Ok(Self {
            io: builder("tidegate-io", 2).build()?,
            poll: builder("tidegate-poll", 1).build()?,
            compute: compute.build()?,
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

/// Threads that there are beside those on which streams compute: [`Threads::io`], [`Threads::poll`], two
/// of the store, one that plans SQL and one for calls that block.
const THREADS_BESIDE: usize = 7;

const MORE_THREADS: &str = "\n  hint: permit more of them (`TasksMax=` of its service, `pids.max` of its \
                            control group, `ulimit -u`) or more memory";

/// Whether so many threads can be there at once. Tokio panics where one of its own cannot start, and may
/// wait for ever for the others then.
fn room_for_threads(count: usize) -> std::io::Result<()> {
    std::thread::scope(|scope| {
        let mut ends = Vec::new();
        for _ in 0..count {
            let (end, ended) = std::sync::mpsc::sync_channel::<()>(0);
            let thread = std::thread::Builder::new().stack_size(PROBE_STACK);
            thread.spawn_scoped(scope, move || ended.recv())?;
            ends.push(end);
        }
        Ok(())
    })
}

/// Bytes of the stack of a thread that only waits.
const PROBE_STACK: usize = 64 << 10;

/// Threads on which streams compute.
fn compute_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(COMPUTE_THREADS_MAX))
}

/// Turns of streams after which new rows are looked for.
const TURNS_MAX: u32 = 2;

/// More of them would only wait for each other's memory.
const COMPUTE_THREADS_MAX: usize = 4;

async fn serve(path: &Path, boot: Boot, levels: Levels, crews: Crews) -> u8 {
    // Signals are caught before anything can be in the middle of something.
    let signals = Quit::new().and_then(|quit| Ok((quit, signal(SignalKind::hangup())?)));
    let (mut quit, mut hangup) = match signals {
        Ok(signals) => signals,
        Err(error) => return fail(format_args!("cannot catch signals: {error}")),
    };
    let environment = Arc::new(ProcessEnvironment);
    let around = Surroundings {
        clock: Arc::new(SteadyClock::new()),
        environment: environment.clone(),
        crews,
    };
    let notify = Notify::from_env();
    let started = wait::started(path, boot, &around, &notify, &mut quit, &mut hangup).await;
    let (running, Boot { sources, view, .. }) = match started {
        Ok(started) => started,
        Err(code) => return code,
    };
    if view.config.origin == ConfigOrigin::LastGood {
        tracing::error!(path = %path.display(), "refused: the last good configuration runs");
    }
    heap::give_back();
    running.status.show_config(view);
    let (requests_in, requests) = mpsc::channel(REQUESTS_MAX);
    let desk = Desk { quit: quit.asked.clone(), requests: Some(requests_in), levels };
    let doors = Doors::open(&running, desk);
    notify.say("READY=1");
    let (store, status) = (running.store.clone(), running.status.clone());
    let mut steward = Steward::new(running, path, sources, environment, hangup, requests);
    let store_failed = tokio::select! {
        () = quit.wait() => None,
        error = store.failed() => Some(error),
        never = watchdog::feed(&notify, &status) => match never {},
        never = steward.run() => match never {},
        never = keep_small() => match never {},
    };
    notify.say("STOPPING=1");
    if let Some(error) = store_failed {
        return fail(format_args!("store: {error}; leaving for a restart"));
    }
    tracing::info!("stopping");
    let code = tokio::select! {
        code = stop(steward) => code,
        // A second signal: leave at once. The store is whole at every instant.
        () = quit.wait() => FAILURE,
    };
    doors.close().await;
    code
}

/// Gives back what starting took, once the first windows have closed, and from time to time what
/// rare work took, such as another configuration or a page that somebody looked at.
async fn keep_small() -> std::convert::Infallible {
    let mut pause = FIRST_TIDYING;
    loop {
        tokio::time::sleep(pause).await;
        heap::give_back();
        code_pages::give_back();
        pause = TIDYING;
    }
}

async fn stop(steward: Steward) -> u8 {
    match steward.shutdown().await {
        Ok(()) => 0,
        Err(error) => fail(format_args!("store: {error}")),
    }
}

/// SIGTERM, SIGINT, or a request on the control socket.
pub(super) struct Quit {
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
    pub(super) async fn wait(&mut self) {
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
    /// Opens the HTTP listener and the control socket, which does what `desk` allows.
    pub fn open(running: &Running, desk: Desk) -> Self {
        let document: &Document = running.document();
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let (bound, http) = watch::channel(None);
        let page = Http {
            listen: document.web.listen.clone(),
            console: running.status.clone(),
            entrance: running.status.entrances[0].clone(),
            stop: stop.clone(),
            bound,
        };
        let floor = StreamFloor::new(
            running.status.clone(),
            running.taps.clone(),
            running.compute(),
            desk.requests.clone(),
        );
        let socket = Socket {
            dir: PathBuf::from(&document.store.path),
            console: running.status.clone(),
            desk: Arc::new(desk),
            keeper: Arc::new(StoreKeeper::beside(running.status.clone())),
            streams: Arc::new(floor),
            entrance: running.status.entrances[1].clone(),
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
