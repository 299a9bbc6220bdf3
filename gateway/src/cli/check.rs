//! `tidegate check`, and loading a configuration for every other command.

use std::path::Path;

use tidegate_config::{Loaded, Problems, ProcessEnvironment, load_and_check, read_sources};

use super::{CONFIG_REFUSED, FAILURE, Format};
use crate::apply::folder_of;
use crate::cli::print::say;
use crate::planner::EnginePlanner;

/// A configuration that passed `check`, with its warnings.
pub struct Checked {
    /// The document and where everything stands in it.
    pub loaded: Loaded,
    /// Warnings only.
    pub warnings: Problems,
}

/// Reads and checks a configuration. An `Err` holds all problems, among them at least one error.
pub fn load_checked(path: &Path) -> Result<Checked, Problems> {
    let sources = read_sources(path)?;
    let planner = EnginePlanner::for_a_change();
    let (mut loaded, warnings) = load_and_check(&sources, &ProcessEnvironment, &planner)?;
    loaded.document.anchor(&folder_of(path));
    Ok(Checked { loaded, warnings })
}

/// Loads a configuration or says on standard error what is wrong with it.
pub fn load_or_explain(path: &Path) -> Result<Checked, u8> {
    load_checked(path).map_err(|problems| {
        eprint!("{}", problems.human());
        CONFIG_REFUSED
    })
}

/// Prints all problems of a configuration.
pub fn check(path: &Path, format: Format) -> u8 {
    let (problems, code) = match load_checked(path) {
        Ok(checked) => (checked.warnings, 0),
        Err(problems) => (problems, CONFIG_REFUSED),
    };
    match format {
        Format::Human if problems.is_empty() => say!("{}: no problems", path.display()),
        Format::Human => crate::cli::print::text(format_args!("{}", problems.human())),
        Format::Json => say!("{}", problems.json()),
        Format::Github => crate::cli::print::text(format_args!("{}", problems.github())),
    }
    code
}

/// Prints an error and returns the exit code of a failure.
pub fn fail(error: impl std::fmt::Display) -> u8 {
    eprintln!("tidegate: {error}");
    FAILURE
}
