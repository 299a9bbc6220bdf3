//! `tidegate check`, and loading a configuration for every other command.

use std::path::Path;

use tidegate_config::read::{Loaded, SystemEnvironment, load, read_sources};
use tidegate_config::{Problems, check as check_document};
use tidegate_engine::Sql;

use super::{CONFIG_REFUSED, FAILURE, Format};
use crate::planner::EnginePlanner;

/// Memory that planning may use; nothing is executed.
const PLAN_MEMORY: usize = 16 << 20;

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
    let loaded = load(&sources, &SystemEnvironment)?;
    let sql = match Sql::new(PLAN_MEMORY) {
        Ok(sql) => sql,
        Err(error) => return Err(Problems::internal(format!("SQL engine: {error}"))),
    };
    let problems = check_document(&loaded, &EnginePlanner(sql));
    if problems.has_errors() {
        return Err(problems);
    }
    Ok(Checked { loaded, warnings: problems })
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
        Format::Human if problems.is_empty() => println!("{}: no problems", path.display()),
        Format::Human => print!("{}", problems.human()),
        Format::Json => println!("{}", problems.json()),
        Format::Github => print!("{}", problems.github()),
    }
    code
}

/// Prints an error and returns the exit code of a failure.
pub fn fail(error: impl std::fmt::Display) -> u8 {
    eprintln!("tidegate: {error}");
    FAILURE
}
