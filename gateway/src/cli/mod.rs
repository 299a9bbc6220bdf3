//! The command line: what is accepted, and which file does it.
//!
//! Exit codes: 0 done · 1 failure · 2 usage · 75 locked or temporary · 78 configuration refused.

pub mod check;
pub mod explain;
mod keeper;
pub mod live;
pub mod print;
pub mod run;
pub mod sim;
pub mod socket;
pub mod store;
pub mod test;
mod wait;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use crate::bench::{BenchArgs, Part};
use crate::demo::DemoArgs;
use crate::logs::Levels;

/// Something failed.
pub const FAILURE: u8 = 1;
/// The command line makes no sense.
pub const USAGE: u8 = 2;
/// Something is locked by another process, or will pass.
pub const TEMPORARY: u8 = 75;
/// The configuration was refused.
pub const CONFIG_REFUSED: u8 = 78;

/// Where the configuration is looked for.
pub const DEFAULT_CONFIG: &str = "/etc/tidegate/tidegate.yaml";

/// Turns an industrial gateway into a trustworthy source of data.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = 100)]
pub struct Cli {
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, also per module as in
    /// `info,tidegate_drivers=debug`. Left out, `info`; in the demo `error`.
    #[arg(long, global = true, env = "TIDEGATE_LOG", value_name = "LEVELS")]
    pub log: Option<String>,
    /// How logs are written to standard error.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// The levels that are logged.
    pub fn levels(&self) -> &str {
        match (&self.log, &self.command) {
            (Some(levels), _) => levels,
            (None, Command::Demo(_)) => "error",
            (None, _) => "info",
        }
    }
}

/// How logs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// How problems and results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Human,
    /// JSON.
    Json,
    /// Annotations for a GitHub workflow.
    Github,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway.
    Run {
        /// The configuration: a file, or a folder of YAML files.
        #[arg(default_value = DEFAULT_CONFIG)]
        config: PathBuf,
    },
    /// Check a configuration and say all that is wrong with it.
    Check {
        /// The configuration: a file, or a folder of YAML files.
        #[arg(default_value = DEFAULT_CONFIG)]
        config: PathBuf,
        /// How problems are written.
        #[arg(long, value_enum, default_value_t = Format::Human)]
        format: Format,
    },
    /// Run the tests that stand in a configuration, on virtual time.
    Test {
        /// The configuration: a file, or a folder of YAML files.
        #[arg(default_value = DEFAULT_CONFIG)]
        config: PathBuf,
        /// Run only tests whose name contains this.
        #[arg(long)]
        filter: Option<String>,
        /// Start the program of a stream (`process:`) for each test that asks for programs. The shell
        /// runs the command; `{socket}` in it is the path of the socket to listen on, without it the
        /// program listens where the configuration says. It is killed at the end of the test.
        #[arg(long = "program", value_name = "STREAM=COMMAND", value_parser = test::program)]
        programs: Vec<(String, String)>,
    },
    /// Explain a configuration (every value and its origin, what is polled, how each stream is
    /// computed), or an error code.
    Explain {
        /// A stream's name, or an error code such as E0123.
        subject: Option<String>,
        /// The configuration: a file, or a folder of YAML files.
        #[arg(short, long, default_value = DEFAULT_CONFIG)]
        config: PathBuf,
        /// Show the query plans too.
        #[arg(long)]
        plan: bool,
    },
    /// Print the JSON schema of the configuration.
    Schema,
    /// Simulate a plant of Modbus devices.
    ///
    /// It serves Modbus TCP, RTU over TCP and RTU on a pty, and shows the field's faults by script
    /// or by lines on standard input: `inject SERVER KIND [NAME=VALUE]…` such as
    /// `inject plant late_reply by=1500ms`, `clear SERVER`, `unplug SERVER`, `replug SERVER` and
    /// `served`.
    Sim {
        /// The plant's description.
        plant: PathBuf,
        /// Stop after so long, such as `30s`; left out, at Ctrl-C.
        #[arg(long = "for", value_name = "DURATION")]
        lasting: Option<tidegate_drivers::types::Span>,
    },
    /// Show it all with a simulated plant, a broker and a cable to pull. Needs no configuration.
    Demo(DemoArgs),
    /// Measure memory, CPU and throughput beside baselines, on this machine.
    Bench(BenchArgs),
    /// A part of `bench` that runs in a process of its own.
    #[command(subcommand, hide = true)]
    BenchPart(Part),
    /// Show what a running gateway is doing, as JSON.
    Status(SocketArgs),
    /// Ask a running gateway whether its streams work; exit code 0 if so.
    Healthcheck(SocketArgs),
    /// Have a running gateway run another configuration, and keep it as its file. Only parts that
    /// differ are touched; if it does not work, the old one comes back by itself.
    Apply {
        /// The new configuration.
        file: PathBuf,
        /// How to reach the gateway.
        #[command(flatten)]
        socket: SocketArgs,
    },
    /// Show the results of a stream, or the rows of a table, as they come: one JSON object a line.
    ///
    /// Nobody waits for who looks: rows that are not taken in time are lost to it, and a line
    /// `{"_lost": n}` says how many.
    Tap(live::TapArgs),
    /// Try SQL over the rows that a running gateway still has, and over new ones. Writes nothing.
    ///
    /// Rows that all streams have passed are there for as long as `history` of their devices says.
    Preview(live::PreviewArgs),
    /// List the streams of a running gateway, stop them and start them.
    #[command(subcommand)]
    Streams(live::StreamsCommand),
    /// Look at what is stored, check it, export it; beside a running gateway or without one.
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Pause delivery to a sink, and go on with it.
    #[command(subcommand)]
    Sinks(store::SinksCommand),
    /// Look at records that a far side refused; deliver them again, or drop them.
    #[command(subcommand)]
    Rejected(store::RejectedCommand),
    /// Show what a running gateway logs, or have it log by other levels for a while.
    #[command(name = "log")]
    LogLevels {
        /// Levels such as `info,tidegate_drivers=debug`; left out, they are shown.
        levels: Option<String>,
        /// For how long; then the levels are as at its start again. `0s` ends a change, whatever the
        /// levels.
        #[arg(long = "for", value_name = "DURATION", default_value = "15m", requires = "levels")]
        lasting: tidegate_drivers::types::Span,
        /// How to reach the gateway.
        #[command(flatten)]
        socket: SocketArgs,
    },
}

/// How to reach a running gateway.
#[derive(Debug, clap::Args)]
pub struct SocketArgs {
    /// The gateway's control socket: `control.sock` in its store's folder.
    #[arg(long, default_value = "/var/lib/tidegate/control.sock")]
    pub socket: PathBuf,
}

/// Does what the command line says.
pub fn dispatch(cli: Cli, levels: Levels) -> ExitCode {
    let code = match cli.command {
        Command::Run { config } => run::run(&config, levels),
        Command::Check { config, format } => check::check(&config, format),
        Command::Test { config, filter, programs } => {
            test::test(&config, filter.as_deref(), programs)
        }
        Command::Explain { subject, config, plan } => {
            explain::explain(subject.as_deref(), &config, plan)
        }
        Command::Schema => {
            crate::cli::print::text(format_args!("{}", tidegate_config::schema::schema_json()));
            0
        }
        Command::Sim { plant, lasting } => sim::sim(&plant, lasting),
        Command::Demo(args) => crate::demo::demo(&args, levels),
        Command::Bench(args) => crate::bench::bench(&args),
        Command::BenchPart(part) => crate::bench::part(&part),
        Command::Status(args) => socket::status(&args.socket),
        Command::Healthcheck(args) => socket::healthcheck(&args.socket),
        Command::Apply { file, socket } => socket::apply(&socket.socket, &file),
        Command::Tap(args) => live::tap(&args),
        Command::Preview(args) => live::preview(&args),
        Command::Streams(command) => live::streams(&command),
        Command::Store(command) => store::store(command),
        Command::Sinks(command) => store::sinks(&command),
        Command::Rejected(command) => store::rejected(command),
        Command::LogLevels { levels, lasting, socket } => {
            socket::log(&socket.socket, levels.as_deref(), lasting.duration())
        }
    };
    ExitCode::from(code)
}
