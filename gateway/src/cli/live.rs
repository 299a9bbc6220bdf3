//! `tidegate tap`, `preview` and `streams`: looking at streams at work, trying SQL beside them,
//! stopping and starting them.
//!
//! Rows go to standard output as lines of JSON, what was read and left out to standard error.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_drivers::types::{Name, Span};
use tidegate_web_ui::{PreviewWanted, StreamSet};

use super::check::{fail, load_or_explain};
use super::{FAILURE, SocketArgs};
use crate::cli::print::{say, text};
use crate::control::{Reply, ask, follow};

/// How long an answer may take: a change of the configuration that is under way comes first.
const ANSWER_MAX: Duration = Duration::from_secs(150);

/// Which rows are shown, and how many.
#[derive(Debug, Args)]
pub struct TapArgs {
    /// The stream whose results, or the table whose rows are shown.
    pub name: Name,
    /// End after so many rows.
    #[arg(long, value_name = "ROWS")]
    pub count: Option<u64>,
    /// End after so long, such as `10s`.
    #[arg(long = "for", value_name = "DURATION")]
    pub lasting: Option<Span>,
    /// How to reach the gateway.
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// What is tried.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).args(["sql", "stream"])))]
pub struct PreviewArgs {
    /// The tables that the SQL reads.
    #[arg(value_name = "TABLE", requires = "sql")]
    pub tables: Vec<Name>,
    /// One SELECT over the tables.
    #[arg(long)]
    pub sql: Option<String>,
    /// Windows, as they stand in a configuration: `tumbling: { size: 10s }`; left out, the SQL is
    /// applied to each row by itself.
    #[arg(long, value_name = "YAML", requires = "sql")]
    pub window: Option<String>,
    /// How far behind the newest row another row may be and still count.
    #[arg(long, value_name = "DURATION", requires = "sql")]
    pub lateness: Option<Span>,
    /// A stream, as the gateway runs it or as it stands in the file given by `--config`.
    #[arg(long, value_name = "NAME")]
    pub stream: Option<Name>,
    /// A configuration that the gateway does not run: its stream is tried over the gateway's rows.
    #[arg(short, long, value_name = "FILE", requires = "stream")]
    pub config: Option<PathBuf>,
    /// End after so many results; at most 10,000.
    #[arg(long, default_value_t = 100)]
    pub rows: u64,
    /// Take only rows of the last so long; left out, all that the tables still have.
    #[arg(long, value_name = "DURATION")]
    pub last: Option<Span>,
    /// Take new rows as well, for so long.
    #[arg(long = "for", value_name = "DURATION")]
    pub lasting: Option<Span>,
    /// How to reach the gateway.
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// What may be done to streams.
#[derive(Debug, Subcommand)]
pub enum StreamsCommand {
    /// List the streams and how they do.
    Ls {
        /// How to reach the gateway.
        #[command(flatten)]
        socket: SocketArgs,
    },
    /// Run a stream again, from where it was.
    Start {
        /// The stream.
        name: Name,
        /// How to reach the gateway.
        #[command(flatten)]
        socket: SocketArgs,
    },
    /// Run a stream no more, also after a restart. Its tables keep rows for it, within the store's
    /// bound.
    Stop {
        /// The stream.
        name: Name,
        /// How to reach the gateway.
        #[command(flatten)]
        socket: SocketArgs,
    },
    /// Build a stream anew from the store, as after a crash.
    Restart {
        /// The stream.
        name: Name,
        /// How to reach the gateway.
        #[command(flatten)]
        socket: SocketArgs,
    },
}

/// Shows rows as they pass.
pub fn tap(args: &TapArgs) -> u8 {
    let count = args.count.map(|count| format!("count={count}"));
    let lasting = args.lasting.map(|span| format!("for_ms={}", span.duration().as_millis()));
    let query: Vec<String> = count.into_iter().chain(lasting).collect();
    let path = format!("/api/v1/tap/{}?{}", args.name, query.join("&"));
    show(&args.socket.socket, "GET", &path, "")
}

/// Tries SQL.
pub fn preview(args: &PreviewArgs) -> u8 {
    let (stream, section) = match what(args) {
        Ok(what) => what,
        Err(code) => return code,
    };
    let millis = |span: Span| u64::try_from(span.duration().as_millis()).unwrap_or(u64::MAX);
    let wanted = PreviewWanted {
        stream,
        section,
        rows: Some(args.rows),
        last_ms: args.last.map(millis),
        for_ms: args.lasting.map_or(0, millis),
    };
    match serde_json::to_string(&wanted) {
        Ok(body) => show(&args.socket.socket, "POST", "/api/v1/preview", &body),
        Err(error) => fail(error),
    }
}

/// The name of a stream that runs, or the section of one that does not.
fn what(args: &PreviewArgs) -> Result<(Option<String>, Option<Value>), u8> {
    let Some(name) = &args.stream else {
        let mut section = json!({ "name": "preview", "from": args.tables, "sql": args.sql });
        if let Some(window) = &args.window {
            section["window"] = serde_yaml::from_str(window)
                .map_err(|error| fail(format_args!("--window is no YAML: {error}")))?;
        }
        if let Some(lateness) = args.lateness {
            section["allowed_lateness"] = json!(lateness);
        }
        return Ok((None, Some(section)));
    };
    let Some(config) = &args.config else {
        return Ok((Some(name.to_string()), None));
    };
    let checked = load_or_explain(config)?;
    let streams = &checked.loaded.document.streams;
    let section = streams
        .iter()
        .find(|stream| stream.name == *name)
        .ok_or_else(|| fail(format_args!("{} has no stream `{name}`", config.display())))?;
    serde_json::to_value(section).map(|section| (None, Some(section))).map_err(fail)
}

/// Does something to streams.
pub fn streams(command: &StreamsCommand) -> u8 {
    let (name, verb, socket) = match command {
        StreamsCommand::Ls { socket } => return list(&socket.socket),
        StreamsCommand::Start { name, socket } => (name, "start", socket),
        StreamsCommand::Stop { name, socket } => (name, "stop", socket),
        StreamsCommand::Restart { name, socket } => (name, "restart", socket),
    };
    let path = format!("/api/v1/streams/{name}/{verb}");
    match talk(&socket.socket, "POST", &path) {
        Ok(reply) => match serde_json::from_slice::<StreamSet>(&reply.body) {
            Ok(set) => {
                say!("{}", set.detail);
                0
            }
            Err(error) => fail(format_args!("the answer is not understood: {error}")),
        },
        Err(code) => code,
    }
}

/// What is listed of a stream.
#[derive(Deserialize)]
struct Listed {
    name: String,
    state: String,
    mode: String,
    window: Option<String>,
    accepted: u64,
    results: u64,
    last_error: Option<String>,
}

#[derive(Deserialize)]
struct Status {
    streams: Vec<Listed>,
}

fn list(socket: &Path) -> u8 {
    let reply = match talk(socket, "GET", "/api/v1/status") {
        Ok(reply) => reply,
        Err(code) => return code,
    };
    let Status { streams } = match serde_json::from_slice(&reply.body) {
        Ok(status) => status,
        Err(error) => return fail(format_args!("the answer is not understood: {error}")),
    };
    let rows = streams.into_iter().map(|stream| {
        let window = stream.window.unwrap_or_else(|| "-".to_owned());
        let (accepted, results) = (stream.accepted.to_string(), stream.results.to_string());
        let error = stream.last_error.unwrap_or_default();
        [stream.name, stream.state, stream.mode, window, accepted, results, error]
    });
    let head = ["STREAM", "STATE", "MODE", "WINDOW", "ACCEPTED", "RESULTS", "LAST ERROR"];
    let table: Vec<_> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| table.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for row in &table {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        say!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    0
}

fn runtime() -> Result<tokio::runtime::Runtime, u8> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fail)
}

fn unreachable(socket: &Path, error: &std::io::Error) -> u8 {
    fail(format_args!(
        "no gateway answers on {}: {error}\n  hint: is it running, and is this the folder of \
         `store.path`? See --socket",
        socket.display()
    ))
}

/// Asks, and shows why not where the gateway declines.
fn talk(socket: &Path, method: &str, path: &str) -> Result<Reply, u8> {
    let reply = runtime()?.block_on(ask(socket, method, path, "", ANSWER_MAX));
    let reply = reply.map_err(|error| unreachable(socket, &error))?;
    if reply.status < 300 { Ok(reply) } else { Err(declined(&reply)) }
}

fn declined(reply: &Reply) -> u8 {
    match serde_json::from_slice::<Value>(&reply.body) {
        Ok(problem) if problem["detail"].is_string() => {
            fail(problem["detail"].as_str().unwrap_or_default())
        }
        _ => fail(format_args!("the gateway answered {}: {}", reply.status, reply.text())),
    }
}

/// Prints the lines of an answer as they come.
fn show(socket: &Path, method: &str, path: &str, body: &str) -> u8 {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(code) => return code,
    };
    let mut code = 0;
    let shown = |line: &str| match summary(line) {
        None => text(format_args!("{line}\n")),
        Some(summary) => {
            eprintln!("{}", summary.words);
            if summary.failed {
                code = FAILURE;
            }
        }
    };
    match runtime.block_on(follow(socket, method, path, body, shown)) {
        Ok(reply) if reply.status < 300 => code,
        Ok(reply) => declined(&reply),
        Err(error) => unreachable(socket, &error),
    }
}

/// What a preview tells at its end.
struct Told {
    words: String,
    failed: bool,
}

fn summary(line: &str) -> Option<Told> {
    let told = line.strip_prefix("{\"_preview\":")?;
    let told: Value = serde_json::from_str(told.strip_suffix('}')?).ok()?;
    let mut words = format!(
        "{} rows read, {} new ones; {} results, {} late rows, {} failed, {} in open windows",
        told["rows_read"],
        told["rows_live"],
        told["results"],
        told["late"],
        told["failed"],
        told["open_rows"]
    );
    for note in told["notes"].as_array().into_iter().flatten() {
        words.push_str("\nnote: ");
        words.push_str(note.as_str().unwrap_or_default());
    }
    let failed = told["failed"].as_u64().is_some_and(|failed| failed > 0);
    Some(Told { words, failed })
}
