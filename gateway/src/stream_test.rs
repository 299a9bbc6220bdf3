//! Runs the tests that stand in a configuration, on virtual time.
//!
//! A test's rows go through the very engine that runs in production: the same plans, windows,
//! watermarks, chains of streams and routes. Virtual time is the largest `at` so far; it does not go on
//! after the last row, or after `until`, so a window that is still open then has no result yet, as in
//! production.

mod expected;
mod input;
mod programs;
#[cfg(test)]
mod readme;
#[cfg(test)]
mod tests;
mod world;

use tidegate_config::{Document, StreamTest};
use tidegate_engine::Sql;

pub use programs::Programs;
use world::World;

/// What came of one test.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The test's name.
    pub name: String,
    /// What was not as expected; empty where the test passed.
    pub differences: Vec<String>,
}

/// Runs one test, and programs that it asks. An error says why it could not be run at all.
pub async fn run(
    document: &Document,
    sql: &Sql,
    test: &StreamTest,
    programs: &Programs,
) -> Result<Outcome, String> {
    let came = World::new(document, sql, test, programs).await?.run().await?;
    Ok(Outcome { name: test.name.clone(), differences: expected::differences(test, &came) })
}
