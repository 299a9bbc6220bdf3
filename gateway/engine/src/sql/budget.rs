//! Keeps one execution within its time, and gives the other streams of its thread their turns.
//!
//! DataFusion's operators run on while their inputs have rows: a join of ten thousand rows with
//! themselves gives nothing back before its hundred million pairs. So operators that may multiply
//! rows, and the tables themselves, are watched: between two batches the time is looked at, and a
//! turn that has lasted long enough ends. A join's condition looks as well, since a join whose
//! condition is never true gives no batch. What counts is the time of the execution's own turns.
//! It knows no stream and no window.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::Stream;
use tokio::time::Instant;

/// How long an execution runs before others of its thread have their turn.
const TURN: Duration = Duration::from_millis(5);

/// Rows that a table hands out at once; larger batches come in slices of this length.
const SLICE_ROWS: usize = 8192;

/// The time of one execution after the other.
#[derive(Debug)]
pub(super) struct Budget {
    allowed: Duration,
    base: Instant,
    /// Microseconds of the turns that have ended.
    used: AtomicU64,
    /// When the turn under way began, in microseconds since `base`; [`BETWEEN`] between two turns.
    began: AtomicU64,
}

/// No turn is under way.
const BETWEEN: u64 = u64::MAX;

enum Verdict {
    Go,
    Pause,
    Over,
}

impl Budget {
    /// Allows each execution so much time.
    pub(super) fn new(allowed: Duration) -> Self {
        Self {
            allowed,
            base: Instant::now(),
            used: AtomicU64::new(0),
            began: AtomicU64::new(BETWEEN),
        }
    }

    /// The same time for executions that run beside those of this one.
    pub(super) fn another(&self) -> Self {
        Self::new(self.allowed)
    }

    /// A new execution begins.
    pub(super) fn begin(&self) {
        self.used.store(0, Ordering::Relaxed);
        self.began.store(BETWEEN, Ordering::Relaxed);
    }

    fn look(&self) -> Verdict {
        let now = micros(self.base.elapsed());
        let mut began = self.began.load(Ordering::Relaxed);
        if began == BETWEEN {
            self.began.store(now, Ordering::Relaxed);
            began = now;
        }
        let turn = now.saturating_sub(began);
        let used = self.used.load(Ordering::Relaxed).saturating_add(turn);
        if used >= micros(self.allowed) {
            Verdict::Over
        } else if turn >= micros(TURN) {
            self.used.store(used, Ordering::Relaxed);
            self.began.store(BETWEEN, Ordering::Relaxed);
            Verdict::Pause
        } else {
            Verdict::Go
        }
    }

    /// Whether the time is up, asked where no turn can end.
    fn is_over(&self) -> bool {
        let began = self.began.load(Ordering::Relaxed);
        let now = micros(self.base.elapsed());
        let turn = if began == BETWEEN { 0 } else { now.saturating_sub(began) };
        self.used.load(Ordering::Relaxed).saturating_add(turn) >= micros(self.allowed)
    }

    fn over(&self) -> DataFusionError {
        let allowed = self.allowed;
        DataFusionError::ResourcesExhausted(format!(
            "the SQL took longer than {allowed:?} (`limits.sql_time`) and was ended"
        ))
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// The plan with its tables, and whatever may give more rows than it takes, under watch.
pub(super) fn watched(
    plan: Arc<dyn ExecutionPlan>,
    budget: &Arc<Budget>,
) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        let node = with_watched_condition(node, budget)?;
        // Their work is that of their input, which is watched.
        let follows =
            node.is::<FilterExec>() || node.is::<ProjectionExec>() || node.is::<UnionExec>();
        if follows {
            return Ok(Transformed::no(node));
        }
        let watched: Arc<dyn ExecutionPlan> = Arc::new(Watched::new(node, Arc::clone(budget)));
        Ok(Transformed::yes(watched))
    })
    .data()
}

/// Has a join's condition look at the time.
fn with_watched_condition(
    node: Arc<dyn ExecutionPlan>,
    budget: &Arc<Budget>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let watch = |filter: &JoinFilter| {
        let (inner, budget) = (Arc::clone(filter.expression()), Arc::clone(budget));
        let condition = Arc::new(Condition { inner, budget });
        JoinFilter::new(condition, filter.column_indices().to_vec(), Arc::clone(filter.schema()))
    };
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        let filter = join.filter().map(watch);
        return Ok(Arc::new(NestedLoopJoinExecBuilder::from(join).with_filter(filter).build()?));
    }
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        let filter = join.filter().map(watch);
        return join.builder().with_filter(filter).build_exec();
    }
    Ok(node)
}

/// Looks at the time before each batch of its input.
#[derive(Debug)]
struct Watched {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    budget: Arc<Budget>,
}

impl Watched {
    fn new(input: Arc<dyn ExecutionPlan>, budget: Arc<Budget>) -> Self {
        Self { properties: Arc::clone(input.properties()), input, budget }
    }
}

impl DisplayAs for Watched {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Watched")
    }
}

impl ExecutionPlan for Watched {
    fn name(&self) -> &'static str {
        "Watched"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
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
            return internal_err!("Watched has one child");
        };
        Ok(Arc::new(Self::new(input, Arc::clone(&self.budget))))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let is_table = self.input.children().is_empty();
        Ok(Box::pin(WatchedStream {
            input: self.input.execute(partition, context)?,
            budget: Arc::clone(&self.budget),
            rest: None,
            slice: if is_table { SLICE_ROWS } else { usize::MAX },
        }))
    }
}

struct WatchedStream {
    input: SendableRecordBatchStream,
    budget: Arc<Budget>,
    /// Rows that were not handed out yet.
    rest: Option<RecordBatch>,
    slice: usize,
}

impl Stream for WatchedStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.budget.look() {
            Verdict::Go => {}
            Verdict::Pause => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Verdict::Over => return Poll::Ready(Some(Err(self.budget.over()))),
        }
        let batch = match self.rest.take() {
            Some(rest) => rest,
            None => match std::task::ready!(self.input.as_mut().poll_next(cx)) {
                Some(Ok(batch)) => batch,
                other => return Poll::Ready(other),
            },
        };
        if batch.num_rows() <= self.slice {
            return Poll::Ready(Some(Ok(batch)));
        }
        let slice = self.slice;
        self.rest = Some(batch.slice(slice, batch.num_rows() - slice));
        Poll::Ready(Some(Ok(batch.slice(0, slice))))
    }
}

impl RecordBatchStream for WatchedStream {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}

/// A join's condition that fails when the time is up.
#[derive(Debug)]
struct Condition {
    inner: Arc<dyn PhysicalExpr>,
    budget: Arc<Budget>,
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.budget, &other.budget) && self.inner.as_ref() == other.inner.as_ref()
    }
}

impl Eq for Condition {}

impl Hash for Condition {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl PhysicalExpr for Condition {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.inner.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.inner.nullable(schema)
    }

    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.inner.return_field(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        if self.budget.is_over() {
            return Err(self.budget.over());
        }
        self.inner.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let Some(inner) = children.pop() else {
            return internal_err!("a watched condition has one child");
        };
        Ok(Arc::new(Self { inner, budget: Arc::clone(&self.budget) }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_sql(f)
    }
}
