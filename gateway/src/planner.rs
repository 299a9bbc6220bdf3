//! The engine's planner behind the border that the configuration's check knows.

use tidegate_config::{PlannedTable, SqlPlanner, SqlProblem};
use tidegate_engine::{Sql, TableSchema};

/// Plans SQL for `check`, without executing anything.
pub struct EnginePlanner(pub Sql);

impl SqlPlanner for EnginePlanner {
    fn plan(
        &self,
        sql: &str,
        tables: &[PlannedTable<'_>],
        windowed: bool,
    ) -> Result<arrow::datatypes::SchemaRef, SqlProblem> {
        let tables: Vec<TableSchema> = tables
            .iter()
            .map(|table| TableSchema {
                name: table.name.to_owned(),
                schema: table.schema.clone(),
                time_column: "time".to_owned(),
            })
            .collect();
        match self.0.plan(sql, &tables, windowed) {
            Ok(query) => Ok(query.schema()),
            Err(error) => Err(SqlProblem {
                message: error.message,
                position: error.position,
                hint: error.hint,
            }),
        }
    }
}
