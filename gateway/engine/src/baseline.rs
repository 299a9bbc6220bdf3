//! What DataFusion alone does with rows in memory: what the engine's speed is measured against.
//!
//! Promise: nothing of the engine's own in the way: a `MemTable`, one partition, a plan made before
//! the clock starts. It knows no windows; a window is `date_bin` in the SQL. Used by benchmarks
//! only; built without `SessionContext`, which would bring 2 MB of readers of files.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemTable, MemoryCatalogProvider,
    MemoryCatalogProviderList, MemorySchemaProvider, SchemaProvider,
};
use datafusion::execution::SessionStateDefaults;
use datafusion::execution::TaskContext;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionConfig;

use crate::sql::SqlError;

/// A query over rows in memory, planned.
#[derive(Debug)]
pub struct InMemory {
    context: Arc<TaskContext>,
    plan: Arc<dyn ExecutionPlan>,
}

impl InMemory {
    /// Plans `sql` over `batches` as the table `name`.
    pub async fn plan(
        name: &str,
        schema: SchemaRef,
        batches: Vec<RecordBatch>,
        sql: &str,
    ) -> Result<Self, SqlError> {
        let tables = MemorySchemaProvider::new();
        let table = MemTable::try_new(schema, vec![batches])?;
        tables.register_table(name.to_owned(), Arc::new(table))?;
        let state = state(tables)?;
        let logical = state.create_logical_plan(sql).await?;
        let plan = state.create_physical_plan(&logical).await?;
        Ok(Self { context: state.task_ctx(), plan })
    }

    /// Runs the plan to its end, once: a plan keeps what it built.
    pub async fn run(self) -> Result<Vec<RecordBatch>, SqlError> {
        Ok(collect(self.plan, self.context).await?)
    }
}

/// DataFusion as it is by default, on one partition.
fn state(tables: MemorySchemaProvider) -> Result<SessionState, SqlError> {
    let mut config = SessionConfig::new()
        .with_target_partitions(1)
        .with_create_default_catalog_and_schema(false);
    // As in the engine: text columns stay what they are.
    config.options_mut().sql_parser.map_string_types_to_utf8view = false;
    let catalog = MemoryCatalogProvider::new();
    catalog.register_schema("public", Arc::new(tables))?;
    let catalogs = MemoryCatalogProviderList::new();
    catalogs.register_catalog("datafusion".into(), Arc::new(catalog));
    Ok(SessionStateBuilder::new()
        .with_config(config)
        .with_catalog_list(Arc::new(catalogs))
        .with_expr_planners(SessionStateDefaults::default_expr_planners())
        .with_scalar_functions(SessionStateDefaults::default_scalar_functions())
        .with_aggregate_functions(SessionStateDefaults::default_aggregate_functions())
        .with_window_functions(SessionStateDefaults::default_window_functions())
        .build())
}
