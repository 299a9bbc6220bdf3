//! The engine's planner behind the border that the configuration's check knows.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use tidegate_config::{
    Document, KeptRows, PlannedTable, SqlPlanner, SqlProblem, StreamSection, TableKind,
};
use tidegate_engine::{Lookup, Mode, Sql, SqlError, TableSchema, Tables, latest_names};

use crate::build::{lookups, stream_spec};
use crate::chain::StreamTables;

/// Plans SQL for `check` of one document, without executing anything. The engine is set up with the
/// first SQL, so that a document without any needs none.
#[derive(Default)]
pub struct EnginePlanner {
    engine: OnceLock<Result<Sql, SqlError>>,
    /// The columns of the streams that others read.
    streams: OnceLock<StreamTables>,
    /// How long planning one text may take.
    max: Option<Duration>,
}

/// How long the planning of one text may take, on a slow board with much to do as well, where somebody asks for it beside what runs. A
/// configuration that is started was accepted before, and has the time that it takes.
const ASKED_MAX: Duration = Duration::from_mins(1);

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

    fn keeps_rows(&self, document: &Document, stream: &StreamSection) -> Option<KeptRows> {
        let engine = self.engine().ok()?;
        let tables = self.streams.get_or_init(|| StreamTables::plan(document, engine));
        let spec = stream_spec(document, stream, stream.event_time, tables);
        let query = spec.plan_with(engine, &stream.sql, &lookups(document)).ok()?;
        match query.mode() {
            Mode::Recompute { reason } => Some(KeptRows::OfWindows(reason.clone())),
            Mode::Incremental => query.waits().map(KeptRows::Waiting),
            Mode::Stateless => None,
        }
    }

    fn condition(&self, text: &str, columns: &SchemaRef) -> Result<(), SqlProblem> {
        let planned = self.engine().and_then(|engine| engine.condition(text, columns));
        planned.map(drop).map_err(problem)
    }

    fn reads_sqlite(&self) -> bool {
        cfg!(feature = "sqlite")
    }

    fn latest(&self, sql: &str) -> Vec<(String, (u32, u32))> {
        latest_names(sql)
    }
}

impl EnginePlanner {
    /// A planner that refuses what takes too long to plan.
    pub fn for_a_change() -> Self {
        Self { max: Some(ASKED_MAX), ..Self::default() }
    }

    fn engine(&self) -> Result<&Sql, SqlError> {
        let engine = self.engine.get_or_init(|| {
            let sql = Sql::new(PLAN_MEMORY)?;
            Ok(match self.max {
                Some(max) => sql.planning_within(max),
                None => sql,
            })
        });
        engine.as_ref().map_err(SqlError::clone)
    }
}

fn problem(error: SqlError) -> SqlProblem {
    SqlProblem { message: error.message, position: error.position, hint: error.hint }
}
