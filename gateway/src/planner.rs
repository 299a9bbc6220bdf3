//! The engine's planner behind the border that the configuration's check knows.

use std::sync::OnceLock;

use arrow::datatypes::SchemaRef;
use tidegate_config::{Document, PlannedTable, SqlPlanner, SqlProblem, StreamSection};
use tidegate_engine::{Mode, Sql, SqlError, TableSchema};

use crate::build::stream_spec;

/// Plans SQL for `check`, without executing anything. The engine is set up with the first SQL, so
/// that a document without any needs none.
#[derive(Default)]
pub struct EnginePlanner(OnceLock<Result<Sql, SqlError>>);

/// Memory that planning may use; nothing is executed.
const PLAN_MEMORY: usize = 16 << 20;

impl SqlPlanner for EnginePlanner {
    fn plan(
        &self,
        sql: &str,
        tables: &[PlannedTable<'_>],
        windowed: bool,
    ) -> Result<SchemaRef, SqlProblem> {
        let tables = schemas(tables);
        let planned = self.engine().and_then(|engine| engine.plan(sql, &tables, windowed));
        planned.map(|query| query.schema()).map_err(problem)
    }

    fn keeps_rows(&self, document: &Document, stream: &StreamSection) -> Option<String> {
        let spec = stream_spec(document, stream, stream.event_time);
        match spec.plan(self.engine().ok()?, &stream.sql).ok()?.mode() {
            Mode::Recompute { reason } => Some(reason.clone()),
            Mode::Stateless | Mode::Incremental => None,
        }
    }

    fn condition(&self, text: &str, columns: &SchemaRef) -> Result<(), SqlProblem> {
        let planned = self.engine().and_then(|engine| engine.condition(text, columns));
        planned.map(drop).map_err(problem)
    }
}

impl EnginePlanner {
    fn engine(&self) -> Result<&Sql, SqlError> {
        self.0.get_or_init(|| Sql::new(PLAN_MEMORY)).as_ref().map_err(SqlError::clone)
    }
}

fn schemas(tables: &[PlannedTable<'_>]) -> Vec<TableSchema> {
    let schema = |table: &PlannedTable<'_>| TableSchema {
        name: table.name.to_owned(),
        schema: table.schema.clone(),
        time_column: "time".to_owned(),
    };
    tables.iter().map(schema).collect()
}

fn problem(error: SqlError) -> SqlProblem {
    SqlProblem { message: error.message, position: error.position, hint: error.hint }
}
