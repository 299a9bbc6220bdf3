//! `tidegate demo`: a simulated plant, a gateway and a broker in one process, and a cable between
//! the last two that can be pulled.
//!
//! The proof is a comparison of two sides that the gateway does not touch: what the simulator
//! served and what a subscriber received. The gateway's own counters take no part in it. The cable
//! is plugged for the first time only after the subscriber's SUBACK, so that nothing is published
//! into a broker that knows no subscriber.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate_config::Document;
use tidegate_config::{Environment, ProcessEnvironment, SourceFile, load_and_check, load_other};
use tidegate_drivers::sim::{Place, Served, Sim, SimDoc};
use tidegate_drivers::types::Span;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::broker::Broker;
use crate::build::{Crews, Surroundings};
use crate::cable::Cable;
use crate::cli::FAILURE;
use crate::cli::check::fail;
use crate::cli::print::say;
use crate::cli::run::{Doors, Threads};
use crate::clock::SteadyClock;
use crate::control::Desk;
use crate::keys::{Keys, read_keys};
use crate::logs::Levels;
use crate::planner::EnginePlanner;
use crate::running::{Running, start};

/// What the demo takes from the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// End after so long, such as `30s`; left out, with `q` or Ctrl-C.
    #[arg(long = "for", value_name = "DURATION")]
    pub lasting: Option<Span>,
    /// Pull the cable in between, such as `10s..20s`.
    #[arg(long, value_name = "FROM..TO")]
    pub outage: Option<Outage>,
    /// How results are printed.
    #[arg(long, value_enum, default_value_t = DemoFormat::Text)]
    pub format: DemoFormat,
    /// Address of the status page; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DemoFormat {
    /// For people.
    Text,
    /// One JSON object a line; the last one is the ledger.
    Json,
}

/// When the cable is out, counted from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    from: Duration,
    to: Duration,
}

impl FromStr for Outage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once("..").ok_or("write it as `10s..20s`")?;
        let span = |text: &str| text.parse::<Span>().map_err(|e| e.to_string());
        let (from, to) = (span(from)?.duration(), span(to)?.duration());
        if from < to {
            Ok(Self { from, to })
        } else {
            Err("it must end after it begins".to_owned())
        }
    }
}

/// The last line of the demo: what was served against what arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DemoLedger {
    /// Readings that the simulator served.
    pub served: usize,
    /// Different readings that the subscriber received.
    pub delivered: usize,
    /// Readings that were served and did not arrive.
    pub lost: usize,
    /// Messages that arrived again with an id that had arrived before.
    pub duplicates: usize,
}

const PLANT: &str = include_str!("../../board-configs/sim/plant.yaml");
const CONFIG: &str = include_str!("../../board-configs/sim/demo.yaml");

/// The points that count whole reads; each is also the name of a column at the far side.
const COUNTED: [&str; 2] = ["reading", "drive_reading"];

/// A counter by its place in [`COUNTED`], and its value.
type Reading = (usize, i64);

/// How long the outbox may take to drain at the end.
const DRAIN_MAX: Duration = Duration::from_mins(1);

/// How long the last messages may take from the broker to the subscriber.
const ARRIVE_MAX: Duration = Duration::from_secs(10);

/// Runs the demo. Exit code 1 when a reading was lost.
pub fn demo(args: &DemoArgs, levels: Levels) -> u8 {
    if let (Some(lasting), Some(outage)) = (args.lasting, args.outage)
        && outage.to > lasting.duration()
    {
        return fail(
            "--outage must end before the demo does: make --for longer, or the outage shorter",
        );
    }
    let threads = match Threads::start() {
        Ok(threads) => threads,
        Err(error) => return fail(format_args!("cannot start threads: {error}")),
    };
    let dir = match own_folder() {
        Ok(dir) => dir,
        Err(error) => return fail(format_args!("cannot make a folder for the demo: {error}")),
    };
    let code = match threads.io.block_on(play(args, &dir, levels, threads.crews())) {
        Ok(ledger) if ledger.lost == 0 => 0,
        Ok(_) => FAILURE,
        Err(error) => fail(error),
    };
    if let Err(error) = std::fs::remove_dir_all(&dir) {
        tracing::warn!(dir = %dir.display(), %error, "the demo's folder stays behind");
    }
    threads.end();
    code
}

/// Makes a folder that nobody else may enter, under a name that was not there before.
fn own_folder() -> std::io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;

    let mut attempt = 0;
    loop {
        let name = format!("tidegate-demo-{}-{attempt}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && attempt < 100 => {
                attempt += 1;
            }
            result => return result.map(|()| dir),
        }
    }
}

async fn play(
    args: &DemoArgs,
    dir: &Path,
    levels: Levels,
    crews: Crews,
) -> anyhow::Result<DemoLedger> {
    let mut values =
        DemoEnvironment(BTreeMap::from([("DEMO_LINE", format!("{}.line", dir.display()))]));
    let sim = Sim::start(plant_document(&values)?).await?;
    let broker = Broker::start(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let cable = Cable::start(broker.addr()).await?;
    let mut subscriber = Subscriber::connect(broker.addr()).await?;
    cable.plug();

    let plant = sim.addr("plant").ok_or_else(|| anyhow::anyhow!("the plant has no server"))?;
    values.0.extend([
        ("DEMO_STORE", dir.display().to_string()),
        ("DEMO_LISTEN", args.listen.to_string()),
        ("DEMO_PLANT_PORT", plant.port().to_string()),
        ("DEMO_BROKER_PORT", cable.addr().port().to_string()),
    ]);
    let document = gateway_document(&values)?;
    let around = Surroundings {
        clock: Arc::new(SteadyClock::new()),
        environment: Arc::new(ProcessEnvironment),
        crews,
    };
    let grace = document.gateway.shutdown_grace.duration();
    let mut running = start(document, around)?;
    let quit = CancellationToken::new();
    let desk = Desk { quit: quit.clone(), requests: None, levels };
    let mut doors = Doors::open(&running, desk);
    let screen = Screen { format: args.format };
    screen.head(
        &sim,
        broker.addr(),
        doors.http.wait_for(Option::is_some).await.ok().and_then(|a| *a),
    );

    let keys = Keys::take(args.format == DemoFormat::Text && std::io::stdin().is_terminal());
    watch(args, &sim, &cable, &mut subscriber, &screen, &quit, &keys).await;
    drop(keys);

    cable.plug();
    screen.say("polling stops; the outbox drains");
    let ledger = settle(&mut running, sim, &mut subscriber, &screen).await;
    running.shutdown(grace).await?;
    doors.close().await;
    drop(subscriber);
    drop(cable);
    broker.stop().await;
    screen.ledger(ledger);
    Ok(ledger)
}

/// Prints results and obeys keys and times until the end.
async fn watch(
    args: &DemoArgs,
    sim: &Sim,
    cable: &Cable,
    subscriber: &mut Subscriber,
    screen: &Screen,
    quit: &CancellationToken,
    keys: &Keys,
) {
    let start = Instant::now();
    let at = |after: Option<Duration>| async move {
        match after {
            Some(after) => tokio::time::sleep_until(start + after).await,
            None => std::future::pending().await,
        }
    };
    let (end, pull, plug) = (
        at(args.lasting.map(Span::duration)),
        at(args.outage.map(|o| o.from)),
        at(args.outage.map(|o| o.to)),
    );
    let interrupt = ended_by_signal();
    tokio::pin!(end, pull, plug, interrupt);
    let (mut pulled, mut replugged) = (false, false);
    let mut typed = read_keys(keys);
    loop {
        tokio::select! {
            () = &mut end => return,
            () = quit.cancelled() => return,
            () = &mut interrupt => return,
            () = &mut pull, if !pulled => {
                pulled = true;
                cable.pull();
                screen.say("cable pulled: results wait in the store");
            }
            () = &mut plug, if !replugged => {
                replugged = true;
                cable.plug();
                screen.say("cable plugged: the backlog comes first, in order");
            }
            Some(key) = typed.recv() => match key {
                b'q' => return,
                b'p' if cable.is_plugged() => {
                    cable.pull();
                    screen.say("cable pulled: results wait in the store; p plugs it again");
                }
                b'p' => {
                    cable.plug();
                    screen.say("cable plugged: the backlog comes first, in order");
                }
                b'f' => screen.say(&some_fault(sim)),
                _ => {}
            },
            message = subscriber.next() => screen.message(&message),
        }
    }
}

/// Waits for Ctrl-C or SIGTERM: both end the demo in order.
async fn ended_by_signal() {
    let mut term = match signal(SignalKind::terminate()) {
        Ok(term) => term,
        Err(error) => {
            tracing::error!(%error, "cannot catch signals");
            return;
        }
    };
    tokio::select! {
        _ = term.recv() => {}
        result = tokio::signal::ctrl_c() => {
            if let Err(error) = result {
                tracing::error!(%error, "cannot catch Ctrl-C");
            }
        }
    }
}

/// Lets a device misbehave once and says how.
fn some_fault(sim: &Sim) -> String {
    // A hasher's random keys are dice enough.
    match sim.inject_any(RandomState::new().build_hasher().finish()) {
        Ok((server, kind)) => format!("fault at {server}: {kind}"),
        Err(fault) => format!("no fault: {fault}"),
    }
}

/// Stops polling, lets the outbox drain, waits for the last messages, and compares.
async fn settle(
    running: &mut Running,
    sim: Sim,
    subscriber: &mut Subscriber,
    screen: &Screen,
) -> DemoLedger {
    if !running.stop_sources(DRAIN_MAX).await {
        tracing::error!("some parts did not end in time");
    }
    let drained = running.drained(DRAIN_MAX);
    tokio::pin!(drained);
    loop {
        tokio::select! {
            in_time = &mut drained => {
                if !in_time {
                    tracing::error!("the outbox did not drain in time");
                }
                break;
            }
            message = subscriber.next() => screen.message(&message),
        }
    }
    let served = readings(&sim.stop().await);
    let deadline = Instant::now() + ARRIVE_MAX;
    while !served.is_subset(&subscriber.readings) {
        match tokio::time::timeout_at(deadline, subscriber.next()).await {
            Ok(message) => screen.message(&message),
            Err(_) => break,
        }
    }
    DemoLedger {
        served: served.len(),
        delivered: subscriber.readings.len(),
        lost: served.difference(&subscriber.readings).count(),
        duplicates: subscriber.duplicates,
    }
}

fn readings(served: &Served) -> BTreeSet<Reading> {
    let counters = COUNTED.iter().enumerate();
    let found = counters.filter_map(|(n, point)| Some((n, served.counter(point)?)));
    found.flat_map(|(n, counter)| counter.values().map(move |value| (n, value))).collect()
}

fn plant_document(environment: &dyn Environment) -> anyhow::Result<SimDoc> {
    let file = SourceFile { name: "plant.yaml".to_owned(), text: PLANT.to_owned() };
    load_other(&file, environment)
        .map(|(document, _)| document)
        .map_err(|problems| anyhow::anyhow!("{}", problems.human()))
}

fn gateway_document(environment: &dyn Environment) -> anyhow::Result<Document> {
    let file = SourceFile { name: "demo.yaml".to_owned(), text: CONFIG.to_owned() };
    load_and_check(&[file], environment, &EnginePlanner::default())
        .map(|(loaded, _)| loaded.document)
        .map_err(|problems| anyhow::anyhow!("{}", problems.human()))
}

/// The ports and folders of this run, in place of environment variables.
struct DemoEnvironment(BTreeMap<&'static str, String>);

impl Environment for DemoEnvironment {
    fn var(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    fn read(&self, path: &str) -> Result<String, String> {
        ProcessEnvironment.read(path)
    }
}

/// A message as the far side sees it.
#[derive(Debug)]
struct Message {
    topic: String,
    text: String,
    body: serde_json::Value,
}

/// The far side: an MQTT client of the broker that has nothing to do with the gateway.
struct Subscriber {
    messages: mpsc::Receiver<Message>,
    ids: BTreeSet<String>,
    readings: BTreeSet<Reading>,
    duplicates: usize,
    task: tokio::task::JoinHandle<()>,
}

/// Messages between the client and the demo's loop.
const MESSAGES_MAX: usize = 1024;

impl Subscriber {
    /// Connects and returns after the SUBACK.
    async fn connect(broker: SocketAddr) -> anyhow::Result<Self> {
        use rumqttc::{AsyncClient, Event, MqttOptions, Packet, QoS};

        let host = (broker.ip().to_string(), broker.port());
        let mut options = MqttOptions::new("tidegate-demo-subscriber", host);
        options.set_max_packet_size(1 << 20, 1 << 20);
        let (client, mut events) = AsyncClient::builder(options).capacity(16).build();
        client.subscribe("demo/#", QoS::AtLeastOnce).await?;
        loop {
            if let Event::Incoming(Packet::SubAck(_)) = events.poll().await? {
                break;
            }
        }
        let (tx, messages) = mpsc::channel(MESSAGES_MAX);
        let task = tokio::spawn(async move {
            // The client must live as long as its events are read.
            let _client = client;
            loop {
                let publish = match events.poll().await {
                    Ok(Event::Incoming(Packet::Publish(publish))) => publish,
                    Ok(_) => continue,
                    Err(error) => {
                        tracing::error!(%error, "the demo's subscriber lost the broker");
                        return;
                    }
                };
                let topic = String::from_utf8_lossy(publish.topic.as_ref()).into_owned();
                let text = String::from_utf8_lossy(&publish.payload).into_owned();
                let body = serde_json::from_str(&text).unwrap_or_default();
                if tx.send(Message { topic, text, body }).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { messages, ids: BTreeSet::new(), readings: BTreeSet::new(), duplicates: 0, task })
    }

    /// The next message, counted; waits for ever when there is none. Cancel safe.
    async fn next(&mut self) -> Message {
        let Some(message) = self.messages.recv().await else {
            return std::future::pending().await;
        };
        match message.body.get("_id").and_then(|id| id.as_str()) {
            Some(id) if self.ids.insert(id.to_owned()) => {}
            _ => self.duplicates += 1,
        }
        for (n, point) in COUNTED.iter().enumerate() {
            if let Some(value) = message.body.get(point).and_then(serde_json::Value::as_i64) {
                self.readings.insert((n, value));
            }
        }
        message
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the user sees.
struct Screen {
    format: DemoFormat,
}

impl Screen {
    fn head(&self, sim: &Sim, broker: SocketAddr, page: Option<SocketAddr>) {
        if self.format == DemoFormat::Json {
            return;
        }
        say!("Tidegate demo: a simulated plant, a gateway, a broker, and a cable to pull.");
        for (name, place) in sim.places() {
            let kind = match place {
                Place::Tcp(_) => "a meter on Modbus TCP, polled every 250 ms:",
                Place::Serial(_) => "a drive on Modbus RTU, polled every 500 ms:",
            };
            say!("  {name:<7} {kind} {place}");
        }
        say!("  broker  MQTT on {broker}; the gateway reaches it through the cable");
        if let Some(page) = page {
            say!("  status  http://{page}/api/v1/status");
        }
        say!("  keys    p pulls and plugs the cable · f lets a device misbehave once");
        say!("          q ends and compares both sides\n");
        say!(
            "{:>16} {:>8} {:>9} {:>10} {:>11} {:>6}",
            "window ends",
            "readings",
            "u_l1 V",
            "p_l1 W",
            "temperature",
            "good"
        );
    }

    fn say(&self, text: &str) {
        match self.format {
            DemoFormat::Text => say!("-- {text}"),
            DemoFormat::Json => tracing::info!("{text}"),
        }
    }

    /// Prints a windowed result; single readings are only counted.
    fn message(&self, message: &Message) {
        let is_meter = message.topic == "demo/power_2s";
        if self.format == DemoFormat::Json {
            if is_meter {
                say!("{}", message.text);
            }
            return;
        }
        let number = |name: &str| {
            message.body.get(name).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN)
        };
        let end = message.body.get("window_end").and_then(|v| v.as_str()).unwrap_or_default();
        let clock = end.get(11..23).unwrap_or(end);
        let (readings, good) = (number("readings"), number("good"));
        if is_meter {
            say!(
                "{clock:>16} {readings:>8} {:>9.2} {:>10.1} {:>11.1} {good:>6.2}",
                number("u_l1"),
                number("p_l1"),
                number("temperature"),
            );
        } else if message.topic == "demo/drive_2s" {
            say!(
                "{clock:>16} {readings:>8} {:>16} {:>15} {good:>6.2}",
                format!("{:.1} rpm", number("speed")),
                format!("{:.1} Nm", number("torque")),
            );
        }
    }

    fn ledger(&self, ledger: DemoLedger) {
        if self.format == DemoFormat::Json {
            say!("{}", serde_json::json!({ "ledger": ledger }));
            return;
        }
        say!("\nserved by the plant       {:>8}", ledger.served);
        say!("received by the far side  {:>8}", ledger.delivered);
        say!("lost                      {:>8}", ledger.lost);
        say!("duplicates                {:>8}", ledger.duplicates);
    }
}
