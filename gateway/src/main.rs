//! The binary `tidegate`.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use tidegate::cli::{Cli, LogFormat, dispatch};
use tidegate::logs::{self, Form};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let form =
        Form { json: cli.log_format == LogFormat::Json, color: std::io::stderr().is_terminal() };
    match logs::init(cli.levels(), form) {
        Ok(levels) => {
            logs::show_panics();
            dispatch(cli, levels)
        }
        Err(error) => {
            eprintln!("tidegate: --log {error}");
            ExitCode::from(2)
        }
    }
}
