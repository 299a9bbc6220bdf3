//! The engine's planner behind the border that the configuration's check knows.

use std::sync::OnceLock;

use arrow::datatypes::SchemaRef;
use tidegate_config::{PlannedTable, SqlPlanner, SqlProblem};
use tidegate_engine::{Sql, SqlError, TableSchema};

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
        let tables: Vec<TableSchema> = tables
            .iter()
            .map(|table| TableSchema {
                name: table.name.to_owned(),
                schema: table.schema.clone(),
                time_column: "time".to_owned(),
            })
            .collect();
        let planned = self.engine().and_then(|engine| engine.plan(sql, &tables, windowed));
        planned.map(|query| query.schema()).map_err(problem)
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

fn problem(error: SqlError) -> SqlProblem {
    SqlProblem { message: error.message, position: error.position, hint: error.hint }
}
