//! `tidegate test`: the tests that stand in a configuration.

use std::path::Path;

use tidegate_engine::Sql;

use super::FAILURE;
use super::check::{fail, load_or_explain};
use crate::cli::print::say;
use crate::stream_test::run;

/// Runs all tests of a configuration whose name contains `filter`; exit code 1 if one fails.
pub fn test(path: &Path, filter: Option<&str>) -> u8 {
    let checked = match load_or_explain(path) {
        Ok(checked) => checked,
        Err(code) => return code,
    };
    let document = &checked.loaded.document;
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
        let differences = match runtime.block_on(run(document, &sql, test)) {
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
    say!("{passed} passed, {failed} failed");
    if failed == 0 { 0 } else { FAILURE }
}
