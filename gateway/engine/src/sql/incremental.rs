//! A plan taken apart at its aggregation, so that a window can be computed in pieces.
//!
//! Promise: `finish(reduce(fold(a), fold(b)))` gives the rows that the whole plan gives over `a`
//! and `b`, in the order in which their groups first came; integers, counts, minima and maxima to
//! the last bit, floats but for the order of additions. What cannot be taken apart so is refused
//! with a reason in the words of SQL. It knows no panes, windows or time; the bounds of a window
//! are asked for at the end alone.
//! Source: design page "The engine", section Execution; `AggregateMode` of DataFusion 55.2.

use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, displayable};

use super::feed::Feed;
use crate::functions;

/// Aggregates whose states merge whatever rows each has seen, and are of a size that does not grow
/// with the rows. What is neither named here nor a function over time is computed over all rows: sketches such as
/// `approx_percentile_cont` depend on how they were merged.
const FOLDED: [&str; 21] = [
    "approx_distinct",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "corr",
    "count",
    "covar_pop",
    "covar_samp",
    "good_count",
    "good_ratio",
    "histogram",
    "max",
    "min",
    "stddev",
    "stddev_pop",
    "sum",
    "var",
    "var_pop",
];

/// Those that go by a time, which is their second argument.
const TIMED: [&str; 2] = functions::EDGES;

const UNION: &str = "it unites rows (UNION)";
const SETS: &str = "it groups by ROLLUP, CUBE or GROUPING SETS";

/// Why a plan runs over all rows of a window.
pub(super) enum Refusal {
    /// In a few words, for `explain`.
    Reason(String),
    /// DataFusion would not build one of the parts.
    Failed(DataFusionError),
}

impl From<DataFusionError> for Refusal {
    fn from(error: DataFusionError) -> Self {
        Self::Failed(error)
    }
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Reason(reason.into()))
}

/// The place of a group's column, and what makes its value.
type GroupColumn = (usize, Arc<dyn PhysicalExpr>);

/// The parts of a plan.
#[derive(Debug)]
pub(super) struct Incremental {
    /// Which of the query's tables is read.
    pub(super) table: usize,
    /// Rows of the table → states.
    pub(super) fold: Arc<dyn ExecutionPlan>,
    /// States → states with one row a group.
    pub(super) reduce: Arc<dyn ExecutionPlan>,
    /// States → results.
    pub(super) finish: Arc<dyn ExecutionPlan>,
    /// What `reduce` and `finish` read.
    pub(super) states: Arc<Feed>,
    /// The columns of states.
    pub(super) schema: SchemaRef,
    /// Group columns that are the same for all rows of a window and of which only the end knows
    /// the value, such as `window_start()`.
    constants: Vec<GroupColumn>,
    /// Whether states must be of rows that follow each other in time, and so be merged.
    pub(super) ordered: bool,
    /// Differs where states of one plan have no meaning in another.
    pub(super) fingerprint: u32,
}

impl Incremental {
    /// Takes `plan` apart. `feeds` are those that its leaves may read, `times` the names of their
    /// columns of event time.
    pub(super) fn of(
        plan: &Arc<dyn ExecutionPlan>,
        feeds: &[Arc<Feed>],
        times: &[&str],
    ) -> Result<Self, Refusal> {
        let node = aggregation(plan)?;
        let Some(single) = node.downcast_ref::<AggregateExec>() else {
            return refuse("it is no aggregation");
        };
        let constants = check_aggregation(single)?;
        let table = check_input(single.input(), feeds)?;
        let ordered = check_times(single, times[table])?;
        let build = |mode, input: &Arc<dyn ExecutionPlan>, last: bool| {
            let groups = single.group_expr();
            let aggregates = single.aggr_expr().to_vec();
            let filters = single.filter_expr();
            AggregateExec::try_new(
                mode,
                if last { groups.as_final() } else { groups.clone() },
                aggregates,
                if last { vec![None; filters.len()] } else { filters.to_vec() },
                Arc::clone(input),
                single.input_schema(),
            )
        };
        let fold: Arc<dyn ExecutionPlan> =
            Arc::new(build(AggregateMode::Partial, single.input(), false)?);
        let schema = fold.schema();
        let states = Arc::new(Feed::new(Arc::clone(&schema)));
        let leaf: Arc<dyn ExecutionPlan> = Arc::new(StreamingTableExec::try_new(
            Arc::clone(&schema),
            vec![Arc::<Feed>::clone(&states)],
            None,
            [],
            false,
            None,
        )?);
        let reduce: Arc<dyn ExecutionPlan> =
            Arc::new(build(AggregateMode::PartialReduce, &leaf, true)?);
        let last: Arc<dyn ExecutionPlan> = Arc::new(build(AggregateMode::Final, &leaf, true)?);
        let same = last.schema().fields() == single.schema().fields();
        if !same || reduce.schema().fields() != schema.fields() {
            return refuse("its states are not what its results are made of");
        }
        let fingerprint = fingerprint(&fold);
        let finish = graft(plan, &last)?;
        Ok(Self { table, fold, reduce, finish, states, schema, constants, ordered, fingerprint })
    }

    /// Puts the present values into the group columns that only the end knows.
    pub(super) fn with_constants(&self, states: Vec<RecordBatch>) -> Result<Vec<RecordBatch>> {
        if self.constants.is_empty() {
            return Ok(states);
        }
        let fill = |batch: RecordBatch| {
            let mut columns = batch.columns().to_vec();
            for (at, expr) in &self.constants {
                columns[*at] = expr.evaluate(&batch)?.into_array(batch.num_rows())?;
            }
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
        };
        states.into_iter().map(fill).collect()
    }

    /// One batch with memory of its own: what an aggregation gives are slices of large buffers.
    pub(super) fn compact(&self, batches: &[RecordBatch]) -> Result<RecordBatch> {
        // Joining makes a copy as soon as there are two.
        let empty = RecordBatch::new_empty(Arc::clone(&self.schema));
        Ok(concat_batches(&self.schema, batches.iter().chain([&empty]))?)
    }
}

/// The only aggregation of a plan that has no branches above it.
fn aggregation(plan: &Arc<dyn ExecutionPlan>) -> Result<&Arc<dyn ExecutionPlan>, Refusal> {
    let mut node = plan;
    while !node.is::<AggregateExec>() {
        node = match node.children()[..] {
            [child] => child,
            [] => return refuse("it does not aggregate"),
            _ => return refuse(branches(node)),
        };
    }
    Ok(node)
}

/// What joins more than one input, in words.
fn branches(node: &Arc<dyn ExecutionPlan>) -> &'static str {
    if node.name().contains("Union") { UNION } else { "it joins rows" }
}

/// Checks what is aggregated; gives back the group columns that are constant in a window.
fn check_aggregation(single: &AggregateExec) -> Result<Vec<GroupColumn>, Refusal> {
    if *single.mode() != AggregateMode::Single {
        // In two steps, over partitions or sets of groups.
        let first = single.input().downcast_ref::<AggregateExec>();
        let sets = first.is_some_and(|first| !first.group_expr().is_single());
        return refuse(if sets { SETS } else { UNION });
    }
    if !single.group_expr().is_single() {
        return refuse(SETS);
    }
    for (aggregate, filter) in single.aggr_expr().iter().zip(single.filter_expr()) {
        let name = name_of(aggregate);
        let arguments = aggregate.expressions();
        if aggregate.is_distinct() {
            return refuse(format!("{name}(DISTINCT …) needs all rows"));
        }
        if TIMED.contains(&name) {
            if arguments.len() < 2 {
                return refuse(format!("{name}(x) without a time goes by the order of all rows"));
            }
        } else if !FOLDED.contains(&name) && !functions::order_dependent(name) {
            return refuse(format!("{name}() needs all rows"));
        }
        if !aggregate.order_bys().is_empty() {
            return refuse(format!("{name}(… ORDER BY …) needs all rows"));
        }
        for expr in arguments.iter().chain(filter) {
            check_steady(expr)?;
        }
    }
    let mut constants = Vec::new();
    for (at, (expr, _)) in single.group_expr().expr().iter().enumerate() {
        match volatile(expr) {
            None => {}
            Some(name) if functions::is_bound(&name) && collect_columns(expr).is_empty() => {
                constants.push((at, Arc::clone(expr)));
            }
            Some(name) => return refuse(depends(&name)),
        }
    }
    Ok(constants)
}

/// Checks what is below the aggregation: filters and projections of one table's rows. Gives back
/// which table.
fn check_input(input: &Arc<dyn ExecutionPlan>, feeds: &[Arc<Feed>]) -> Result<usize, Refusal> {
    let mut node = input;
    loop {
        if let Some(leaf) = node.downcast_ref::<StreamingTableExec>() {
            let [partition] = &leaf.partitions()[..] else {
                return refuse("it reads more than one table");
            };
            if leaf.limit().is_some() {
                return refuse("there is a LIMIT below its aggregation");
            }
            return match feeds.iter().position(|feed| same(feed, partition)) {
                Some(table) => Ok(table),
                None => refuse("it reads a table that is not rows of the stream"),
            };
        }
        if node.is::<AggregateExec>() {
            return refuse("it aggregates twice (DISTINCT does so)");
        }
        let passes = node.is::<FilterExec>() || node.is::<ProjectionExec>();
        if !passes {
            return refuse(match node.children().len() {
                0 => "it reads no rows".to_owned(),
                1 => format!("there is more than filters below its aggregation ({})", node.name()),
                _ => branches(node).to_owned(),
            });
        }
        if node.fetch().is_some() {
            return refuse("there is a LIMIT below its aggregation");
        }
        let mut refusal = None;
        node.apply_expressions(&mut |expr| {
            refusal = check_steady(expr).err();
            let go_on = refusal.is_none();
            Ok(if go_on { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
        })?;
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        let [child] = node.children()[..] else {
            return refuse(branches(node));
        };
        node = child;
    }
}

/// Some have what was read from the SQL in their names, behind a colon.
fn name_of(aggregate: &AggregateFunctionExpr) -> &str {
    let name = aggregate.fun().name();
    name.split_once(':').map_or(name, |(function, _)| function)
}

/// Whether some of the aggregates go by the order of rows; that must be the order of the table's
/// column `time`, by which it is known which rows are still to come.
fn check_times(single: &AggregateExec, time: &str) -> Result<bool, Refusal> {
    let mut ordered = false;
    for aggregate in single.aggr_expr() {
        let name = name_of(aggregate);
        if !functions::order_dependent(name) {
            continue;
        }
        ordered = true;
        let arguments = aggregate.expressions();
        if arguments.get(1).and_then(|own| origin(own, single.input())).as_deref() != Some(time) {
            return refuse(format!("{name}() goes by another time than the windows do"));
        }
    }
    Ok(ordered)
}

/// The name of the table's column that an expression over `input` hands on as it is.
fn origin(expr: &Arc<dyn PhysicalExpr>, input: &Arc<dyn ExecutionPlan>) -> Option<String> {
    let (mut at, mut node) = (expr.downcast_ref::<Column>()?.index(), input);
    loop {
        if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
            at = projection.expr().get(at)?.expr.downcast_ref::<Column>()?.index();
        } else if let Some(filter) = node.downcast_ref::<FilterExec>() {
            at = filter.projection().as_ref().map_or(Some(at), |kept| kept.get(at).copied())?;
        } else {
            let schema = node.downcast_ref::<StreamingTableExec>()?.schema();
            return schema.fields().get(at).map(|field| field.name().clone());
        }
        node = node.children().first().copied()?;
    }
}

fn same(feed: &Arc<Feed>, partition: &Arc<dyn PartitionStream>) -> bool {
    Arc::as_ptr(feed).cast::<()>() == Arc::as_ptr(partition).cast::<()>()
}

/// Refuses an expression that may give another value when the window is another one.
fn check_steady(expr: &Arc<dyn PhysicalExpr>) -> Result<(), Refusal> {
    match volatile(expr) {
        None => Ok(()),
        Some(name) => refuse(depends(&name)),
    }
}

fn depends(name: &str) -> String {
    if functions::is_bound(name) {
        format!("{name}() decides about its rows, which may be in several windows")
    } else {
        format!("{name}() goes by the order of all rows")
    }
}

/// The name of a function in `expr` whose value is not given by its arguments.
fn volatile(expr: &Arc<dyn PhysicalExpr>) -> Option<String> {
    let mut found = None;
    let walked = expr.apply(|part| {
        if !part.is_volatile_node() {
            return Ok(TreeNodeRecursion::Continue);
        }
        let function = part.downcast_ref::<ScalarFunctionExpr>();
        found = Some(function.map_or_else(|| part.to_string(), |f| f.fun().name().to_owned()));
        Ok(TreeNodeRecursion::Stop)
    });
    found.or_else(|| walked.err().map(|error| error.to_string()))
}

/// `plan` with `last` in the place of its aggregation.
fn graft(
    plan: &Arc<dyn ExecutionPlan>,
    last: &Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    Arc::clone(plan)
        .transform_down(|node| {
            if node.is::<AggregateExec>() {
                Ok(Transformed::new(Arc::clone(last), true, TreeNodeRecursion::Jump))
            } else {
                Ok(Transformed::no(node))
            }
        })
        .data()
}

/// Of the plan that makes states, with the names and types of what it makes.
fn fingerprint(fold: &Arc<dyn ExecutionPlan>) -> u32 {
    let mut text = displayable(fold.as_ref()).indent(false).to_string();
    for field in fold.schema().fields() {
        for part in [field.name(), " ", &field.data_type().to_string(), "\n"] {
            text.push_str(part);
        }
    }
    crc32fast::hash(text.as_bytes())
}
