//! What DataFusion alone does with rows in memory: what the engine's speed is measured against.
//!
//! Promise: nothing of the engine's own in the way: a `MemTable`, one partition, a plan made before
//! the clock starts. It knows no windows; a window is `date_bin` in the SQL. Used by benchmarks only.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};

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
        let mut config = SessionConfig::new().with_target_partitions(1);
        // As in the engine: text columns stay what they are.
        config.options_mut().sql_parser.map_string_types_to_utf8view = false;
        let context = SessionContext::new_with_config(config);
        let table = MemTable::try_new(schema, vec![batches])?;
        context.register_table(name, Arc::new(table))?;
        let plan = context.sql(sql).await?.create_physical_plan().await?;
        Ok(Self { context: context.task_ctx(), plan })
    }

    /// Runs the plan to its end, once: a plan keeps what it built.
    pub async fn run(self) -> Result<Vec<RecordBatch>, SqlError> {
        Ok(collect(self.plan, self.context).await?)
    }
}
