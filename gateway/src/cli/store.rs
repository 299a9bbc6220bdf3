//! `tidegate store`, `sinks` and `rejected`: what is stored, and what may be done to it.
//!
//! Each works beside a running gateway and without one: see `keeper`. Prints tables for people, and
//! JSON where that is asked for.

mod export;
mod show;

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use serde::Serialize;
use tidegate_config::{Name, Rate};
use tidegate_web_ui::{Exportable, Letters, Refusal, ReplayRate};

use super::FAILURE;
use super::check::fail;
use super::keeper::{looking, refuse, reopened, with};
use crate::cli::print::say;

/// Which store is meant.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// The store's folder: `store.path` of the configuration.
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/tidegate")]
    pub store: PathBuf,
}

/// How answers are printed.
#[derive(Debug, Args)]
pub struct JsonArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What may be done to a store.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// List tables and sinks, what they hold, and whether the gateway still has them.
    Ls {
        /// Which store.
        #[command(flatten)]
        store: StoreArgs,
        /// How it is printed.
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Show everything: figures, what the last start found, wear, durable counters.
    Inspect {
        /// Which store.
        #[command(flatten)]
        store: StoreArgs,
        /// How it is printed.
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Read everything back and check it; exit code 1 if something is damaged.
    Verify {
        /// Which store.
        #[command(flatten)]
        store: StoreArgs,
        /// How it is printed.
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Write the kept rows of a table, or the waiting records of a sink, to a file or standard output.
    ///
    /// Nothing is taken out of the store. How long a table's rows are kept after its streams have
    /// passed them is `history` of its devices. What is missing because it was damaged is told at the end,
    /// with exit code 1.
    ///
    /// Examples: `tidegate store export --table press --out press.jsonl` and
    /// `tidegate store export --sink cloud --format arrow | python3 -c 'import pyarrow.ipc as ipc, sys;
    /// print(ipc.open_stream(sys.stdin.buffer).read_pandas())'`.
    #[command(group(ArgGroup::new("what").required(true).args(["table", "sink"])))]
    Export {
        /// The table whose rows are written.
        #[arg(long, value_name = "NAME")]
        table: Option<String>,
        /// The sink whose waiting records are written, each with what the store knows of it.
        #[arg(long, value_name = "NAME")]
        sink: Option<Name>,
        /// How.
        #[arg(long, value_enum, default_value_t = ExportFormat::Jsonl)]
        format: ExportFormat,
        /// Where to; left out, standard output.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Which store.
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Deliver what waits for a sink at another rate, until it is delivered.
    ///
    /// Records keep their ids and their order. Needs a running gateway. The lasting rate is
    /// `replay.rate` of the sink.
    #[command(group(ArgGroup::new("how").required(true).args(["rate", "unlimited"])))]
    Replay {
        /// The sink.
        sink: Name,
        /// Records in a time at most, such as `500/s`.
        #[arg(long)]
        rate: Option<Rate>,
        /// As many as the far side takes.
        #[arg(long)]
        unlimited: bool,
        /// Which store.
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Drop what is kept for a table or a sink that the configuration has no more.
    ///
    /// Rows, waiting records and dead letters of that name are gone for good. A table or sink that the
    /// running gateway has is left alone; where none runs, nothing is known to be needed. A stream is
    /// forgotten while no gateway runs, because all records get a new epoch with it: should it come
    /// again, it begins with number 1.
    Forget {
        /// The table or sink, as `store ls` shows it.
        name: String,
        /// Forget the stream of this name: its progress and the states of its windows.
        #[arg(long)]
        stream: bool,
        /// Which store.
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Say that the folder is an older copy, put back in the place of a store that had gone on.
    ///
    /// Records get a new epoch from then on, so that no id is given twice. Needs a gateway that does
    /// not run: do it before the first start on the copy.
    Restored {
        /// Which store.
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Give unused space back to the file system.
    Compact {
        /// Which store.
        #[command(flatten)]
        store: StoreArgs,
        /// How it is printed.
        #[command(flatten)]
        json: JsonArgs,
    },
}

/// What may be done to the delivery of a sink.
#[derive(Debug, Subcommand)]
pub enum SinksCommand {
    /// Deliver nothing more to a sink until it is resumed, also after a restart.
    ///
    /// What comes waits, within the sink's bounds. Its connection stays.
    Pause {
        /// The sink.
        name: Name,
        /// Which store.
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Go on with delivery to a sink; what waited is a backlog, as after an outage.
    Resume {
        /// The sink.
        name: Name,
        /// Which store.
        #[command(flatten)]
        store: StoreArgs,
    },
}

/// What may be done to records that a far side refused.
#[derive(Debug, Subcommand)]
pub enum RejectedCommand {
    /// List a sink's refused records with the reasons, oldest first.
    Ls {
        /// The sink.
        sink: Name,
        /// The newest of them at most.
        #[arg(long, default_value_t = 100)]
        limit: usize,
        /// Which store.
        #[command(flatten)]
        store: StoreArgs,
        /// How it is printed.
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Deliver refused records again, under their old ids, behind all that waits.
    Redrive {
        /// Which records.
        #[command(flatten)]
        which: Which,
        /// Which store.
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Forget refused records for good.
    Drop {
        /// Which records.
        #[command(flatten)]
        which: Which,
        /// Which store.
        #[command(flatten)]
        store: StoreArgs,
    },
}

/// Which refused records are meant.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true).args(["position", "all"])))]
pub struct Which {
    /// The sink.
    sink: Name,
    /// Positions as `rejected ls` shows them.
    #[arg(long, value_name = "N", num_args = 1..)]
    position: Vec<u64>,
    /// All of them.
    #[arg(long)]
    all: bool,
}

/// How rows are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// One JSON object a line.
    Jsonl,
    /// An Arrow IPC stream.
    Arrow,
}

/// Does what `tidegate store` is told.
pub fn store(command: StoreCommand) -> u8 {
    match command {
        StoreCommand::Ls { store, json } => looking(&store.store, async |keeper| {
            shown(keeper.contents().await, json.json, show::listed)
        }),
        StoreCommand::Inspect { store, json } => looking(&store.store, async |keeper| {
            shown(keeper.contents().await, json.json, show::inspected)
        }),
        StoreCommand::Verify { store, json } => looking(&store.store, async |keeper| {
            let verified = keeper.verify().await;
            let damaged =
                verified.as_ref().is_ok_and(|told| told.corrupt_records + told.corrupt_rows > 0);
            let code = shown(verified, json.json, show::verified);
            if damaged { FAILURE } else { code }
        }),
        StoreCommand::Export { table, sink, format, out, store } => {
            let (what, name) = match (table, sink) {
                (Some(table), _) => (Exportable::Tables, table),
                (None, Some(sink)) => (Exportable::Sinks, sink.to_string()),
                (None, None) => return FAILURE,
            };
            looking(&store.store, async |keeper| {
                export::export(keeper, what, &name, format, out.as_deref()).await
            })
        }
        StoreCommand::Replay { sink, rate, store, .. } => with(&store.store, async |keeper| {
            let asked = ReplayRate { per_second: rate.map(Rate::per_second) };
            let code = done(keeper.replay(sink.to_string(), asked).await, || match rate {
                Some(rate) => say!("what waits for {sink} is delivered at {rate} at most"),
                None => say!("what waits for {sink} is delivered as fast as it is taken"),
            });
            let contents = if code == 0 { keeper.contents().await.ok() } else { None };
            let own = contents
                .and_then(|all| all.sinks.into_iter().find(|own| own.name == sink.to_string()));
            if own.is_some_and(|own| own.paused) {
                say!("it is paused: `tidegate sinks resume {sink}` first");
            }
            code
        }),
        StoreCommand::Forget { name, stream: true, store } => {
            reopened(&store.store, |options| options.forget_stream = Some(name.as_str().into()))
        }
        StoreCommand::Forget { name, store, .. } => {
            with(&store.store, async |keeper| match keeper.forget(name.clone()).await {
                Ok(told) => {
                    say!("{} rows and records of {name} are forgotten", told.records);
                    0
                }
                Err(refusal) => refuse(&refusal),
            })
        }
        StoreCommand::Restored { store } => {
            reopened(&store.store, |options| options.restored = true)
        }
        StoreCommand::Compact { store, json } => with(&store.store, async |keeper| {
            shown(keeper.compact().await, json.json, show::compacted)
        }),
    }
}

/// Does what `tidegate sinks` is told.
pub fn sinks(command: &SinksCommand) -> u8 {
    let (name, store, paused) = match command {
        SinksCommand::Pause { name, store } => (name, store, true),
        SinksCommand::Resume { name, store } => (name, store, false),
    };
    with(&store.store, async |keeper| {
        done(keeper.pause(name.to_string(), paused).await, || {
            say!(
                "{}",
                if paused { format!("{name} is paused") } else { format!("{name} goes on") }
            );
        })
    })
}

/// Does what `tidegate rejected` is told.
pub fn rejected(command: RejectedCommand) -> u8 {
    match command {
        RejectedCommand::Ls { sink, limit, store, json } => looking(&store.store, async |keeper| {
            let rejected = keeper.rejected(sink.to_string(), limit).await;
            let code = shown(rejected, json.json, |rejected| show::rejected(rejected));
            if code != 0 || json.json {
                return code;
            }
            shown(keeper.contents().await, false, |all| show::not_kept(all, &sink.to_string()))
        }),
        RejectedCommand::Redrive { which, store } => with(&store.store, async |keeper| {
            let (sink, letters) = (which.sink.to_string(), letters(&which));
            match keeper.redrive(sink, letters).await {
                Ok(told) => counted(told.records, &which, "put back behind all that waits"),
                Err(refusal) => refuse(&refusal),
            }
        }),
        RejectedCommand::Drop { which, store } => with(&store.store, async |keeper| {
            let (sink, letters) = (which.sink.to_string(), letters(&which));
            match keeper.discard(sink, letters).await {
                Ok(told) => counted(told.records, &which, "dropped"),
                Err(refusal) => refuse(&refusal),
            }
        }),
    }
}

fn letters(which: &Which) -> Letters {
    Letters { positions: which.position.clone() }
}

/// Says how many records something was done to. Fewer than were named is a failure.
fn counted(records: u64, which: &Which, done: &str) -> u8 {
    say!("{records} refused records of {} {done}", which.sink);
    let named = which.position.len() as u64;
    if records < named {
        let (count, sink) = (named - records, &which.sink);
        return fail(format_args!(
            "{count} of the positions have no refused record\n  hint: `tidegate rejected ls {sink}` has them"
        ));
    }
    0
}

/// Prints an answer, or why there is none.
fn shown<T: Serialize>(told: Result<T, Refusal>, json: bool, show: impl FnOnce(&T)) -> u8 {
    match told {
        Ok(told) if json => match serde_json::to_string_pretty(&told) {
            Ok(text) => {
                say!("{text}");
                0
            }
            Err(error) => super::check::fail(error),
        },
        Ok(told) => {
            show(&told);
            0
        }
        Err(refusal) => refuse(&refusal),
    }
}

/// Says that something was done, or why not.
fn done(result: Result<(), Refusal>, say: impl FnOnce()) -> u8 {
    match result {
        Ok(()) => {
            say();
            0
        }
        Err(refusal) => refuse(&refusal),
    }
}
