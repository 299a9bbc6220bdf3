//! The binary `tidegate`.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use tidegate::cli::{Cli, LogFormat, dispatch};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = match EnvFilter::try_new(cli.levels()) {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("tidegate: --log {}: {error}", cli.levels());
            return ExitCode::from(2);
        }
    };
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match cli.log_format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
    dispatch(cli)
}
