//! The engine's planner behind the border that the configuration's check knows.

use std::sync::{Arc, OnceLock};

use arrow::datatypes::SchemaRef;
use tidegate_config::{PlannedTable, SqlPlanner, SqlProblem, TableKind};
use tidegate_engine::{Lookup, Sql, SqlError, TableSchema, Tables, latest_names};

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
        let of = |kind: TableKind| tables.iter().filter(move |table| table.kind == kind);
        let schemas = |kind: TableKind| -> Vec<TableSchema> {
            let schema = |table: &PlannedTable<'_>| TableSchema {
                name: table.name.to_string(),
                schema: table.schema.clone(),
                time_column: "time".to_owned(),
            };
            of(kind).map(schema).collect()
        };
        let (from, latest) = (schemas(TableKind::From), schemas(TableKind::Latest));
        let lookups: Vec<Arc<Lookup>> = of(TableKind::Lookup)
            .map(|table| Arc::new(Lookup::new(&table.name, table.schema.clone())))
            .collect();
        let tables = Tables { from: &from, latest: &latest, lookups: &lookups };
        let planned = self.engine().and_then(|engine| engine.plan_with(sql, &tables, windowed));
        planned.map(|query| query.schema()).map_err(problem)
    }

    fn condition(&self, text: &str, columns: &SchemaRef) -> Result<(), SqlProblem> {
        let planned = self.engine().and_then(|engine| engine.condition(text, columns));
        planned.map(drop).map_err(problem)
    }

    fn latest(&self, sql: &str) -> Vec<(String, (u32, u32))> {
        latest_names(sql)
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
