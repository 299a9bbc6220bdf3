//! Where a planned query finds the rows of each execution, and in which order it reads them.
//!
//! Promise: [`Feed`] is a leaf that hands out whatever rows it was given last, as often as the plan
//! asks (a self join asks twice), and says nothing about their number. [`InOrder`] reads
//! partitions one after the other, so that a union's rows come in one order; DataFusion's own
//! operator interleaves them by chance.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{Partitioning, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::{StreamExt, TryStreamExt};

/// The swappable rows of one table.
#[derive(Debug)]
pub(super) struct Feed {
    schema: SchemaRef,
    rows: Mutex<Vec<RecordBatch>>,
}

impl Feed {
    pub(super) fn new(schema: SchemaRef) -> Self {
        Self { schema, rows: Mutex::new(Vec::new()) }
    }

    /// The number of its columns.
    pub(super) fn width(&self) -> usize {
        self.schema.fields().len()
    }

    pub(super) fn fill(&self, rows: Vec<RecordBatch>) {
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = rows;
    }
}

impl PartitionStream for Feed {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let rows = futures::stream::iter(rows.into_iter().map(Ok));
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows))
    }
}

/// Puts [`InOrder`] wherever partitions are brought together.
pub(super) fn in_order(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        let Some(coalesce) = node.downcast_ref::<CoalescePartitionsExec>() else {
            return Ok(Transformed::no(node));
        };
        let ordered: Arc<dyn ExecutionPlan> = Arc::new(InOrder::new(Arc::clone(coalesce.input())));
        Ok(Transformed::yes(match ExecutionPlan::fetch(coalesce) {
            None => ordered,
            fetch => Arc::new(GlobalLimitExec::new(ordered, 0, fetch)),
        }))
    })
    .data()
}

/// Reads the partitions of its input one after the other.
#[derive(Debug)]
struct InOrder {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    /// Made by [`told_in_order`].
    told: bool,
}

impl InOrder {
    fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        let mut equivalence = input.equivalence_properties().clone();
        equivalence.clear_orderings();
        equivalence.clear_per_partition_constants();
        let properties = PlanProperties::new(
            equivalence,
            Partitioning::UnknownPartitioning(1),
            input.pipeline_behavior(),
            input.boundedness(),
        );
        Self { input, properties: Arc::new(properties), told: false }
    }
}

/// Says of a plan's rows that their order has a meaning, where a join would else give rows that match
/// nothing after the others. By which column is of no account once nothing is planned any more.
pub(super) fn told_in_order(input: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let InOrder { input, properties, .. } = InOrder::new(Arc::clone(input));
    let mut equivalence = properties.equivalence_properties().clone();
    if let Some(first) = input.schema().fields().first() {
        let first = Arc::new(Column::new(first.name(), 0));
        equivalence.add_ordering([PhysicalSortExpr::new_default(first)]);
    }
    let (behavior, boundedness) = (input.pipeline_behavior(), input.boundedness());
    let one = Partitioning::UnknownPartitioning(1);
    let properties = Arc::new(PlanProperties::new(equivalence, one, behavior, boundedness));
    Arc::new(InOrder { input, properties, told: true })
}

impl DisplayAs for InOrder {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("InOrder")
    }
}

impl ExecutionPlan for InOrder {
    fn name(&self) -> &'static str {
        "InOrder"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(input) = children.pop() else {
            return internal_err!("InOrder has one child");
        };
        Ok(if self.told { told_in_order(&input) } else { Arc::new(Self::new(input)) })
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("InOrder has one partition");
        }
        let input = Arc::clone(&self.input);
        let partitions = input.output_partitioning().partition_count();
        let rows = futures::stream::iter(0..partitions)
            .map(move |p| input.execute(p, Arc::clone(&context)))
            .try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
