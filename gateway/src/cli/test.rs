//! `tidegate test`: the tests that stand in a configuration.

use std::path::Path;

use tidegate_engine::Sql;

use super::check::{fail, load_or_explain};
use super::{FAILURE, USAGE};
use crate::cli::print::say;
use crate::stream_test::{Programs, run};

/// Which stream a program is of, and the command that starts it.
pub fn program(text: &str) -> Result<(String, String), String> {
    let split = text.split_once('=').map(|(stream, command)| (stream.trim(), command.trim()));
    match split.filter(|(stream, command)| !stream.is_empty() && !command.is_empty()) {
        Some((stream, command)) => Ok((stream.to_owned(), command.to_owned())),
        None => Err("write STREAM=COMMAND, such as `alarms=python3 alarm.py {socket}`".to_owned()),
    }
}

/// Runs all tests of a configuration whose name contains `filter`; exit code 1 if one fails.
pub fn test(path: &Path, filter: Option<&str>, programs: Vec<(String, String)>) -> u8 {
    let checked = match load_or_explain(path) {
        Ok(checked) => checked,
        Err(code) => return code,
    };
    let document = &checked.loaded.document;
    let programs = Programs::new(programs);
    let has = |stream: &str| {
        document.streams.iter().any(|s| s.name.as_str() == stream && s.process.is_some())
    };
    if let Some(stream) = programs.streams().find(|stream| !has(stream)) {
        eprintln!("tidegate: there is no stream `{stream}` with a `process:`");
        return USAGE;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(error),
    };
    let sql = match Sql::new(document.limits.memory.len() / 2) {
        Ok(sql) => sql,
        Err(error) => return fail(error),
    };
    let (mut passed, mut failed) = (0, 0);
    for test in document.tests.iter().filter(|t| filter.is_none_or(|f| t.name.contains(f))) {
        let differences = match runtime.block_on(run(document, &sql, test, &programs)) {
            Ok(outcome) => outcome.differences,
            Err(error) => vec![error],
        };
        let verdict = if differences.is_empty() { "ok" } else { "FAILED" };
        say!("test {} … {verdict}", test.name);
        for difference in &differences {
            say!("    {difference}");
        }
        if differences.is_empty() { passed += 1 } else { failed += 1 }
    }
    if let (Some(filter), 0) = (filter, passed + failed) {
        return fail(format_args!("no test's name contains `{filter}`"));
    }
    say!("{passed} passed, {failed} failed");
    if failed == 0 { 0 } else { FAILURE }
}
