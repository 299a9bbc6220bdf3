//! Many windows in one execution, for kinds of windows of which thousands are over at once.
//!
//! Promise: where a plan has a twin, running the twin gives each window the rows that the plan
//! itself would, in the same order. The twin reads the rows of all windows, each with its window's
//! number and bounds in columns of its own, and groups by these as well. Only a single aggregation
//! over one table has one; what looks over rows in another way is computed one window at a time.
//! Source: design page "The engine", section Execution; DataFusion 55.2.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, TimestampMicrosecondArray, UInt32Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit, UInt32Type};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result};
use datafusion::datasource::provider_as_source;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Aggregate, Expr, Filter, LogicalPlan, LogicalPlanBuilder, Projection, Sort, SubqueryAlias,
    Volatility,
};
use datafusion::physical_plan::ExecutionPlan;

use super::feed::{self, Feed};
use super::guarded::guarded;
use crate::functions::{self, BoundsCell};
use crate::window::Bounds;

/// The columns that tell windows apart. No column of a table begins like this.
const NUMBER: &str = "__window";
const START: &str = "__window_start";
const END: &str = "__window_end";

/// The functions that the latter two stand for.
const START_FUNCTION: &str = "window_start";
const END_FUNCTION: &str = "window_end";

/// A plan's twin.
#[derive(Debug)]
pub(super) struct Twin {
    feed: Arc<Feed>,
    input: SchemaRef,
    output: SchemaRef,
    pub(super) physical: Arc<dyn ExecutionPlan>,
    /// A window has no row where its rows are filtered out, and the plan itself would have one.
    lacks_empty: bool,
}

impl Twin {
    /// Makes the twin of a plan as it came from the SQL text, over a table of this form; `output`
    /// is the form of its results. `None` where it has none.
    pub(super) async fn of(
        plan: &LogicalPlan,
        table: &SchemaRef,
        output: &SchemaRef,
        state: &SessionState,
        cell: &Arc<BoundsCell>,
    ) -> Option<Self> {
        let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let mut fields = table.fields().to_vec();
        fields.push(Arc::new(Field::new(NUMBER, DataType::UInt32, false)));
        fields.push(Arc::new(Field::new(START, utc.clone(), false)));
        fields.push(Arc::new(Field::new(END, utc, false)));
        let input = Arc::new(Schema::new(fields));
        let feed = Arc::new(Feed::new(Arc::clone(&input)));
        let mut rewrite = Rewrite { feed: &feed, input: &input, seen: Seen::default() };
        let twin = rewrite.whole(plan).ok()??;
        let Seen { tables: 1, aggregates: 1, groups, filters } = rewrite.seen else {
            return None;
        };
        // Nothing is carried from one window to the next: they begin and end with their rows.
        let (twin, _) = functions::rewrite(twin, cell, true).ok()?;
        let logical = guarded(state.optimize(&twin).ok()?).ok()?;
        let physical = state.query_planner().create_physical_plan(&logical, state).await.ok()?;
        let physical = feed::in_order(physical).ok()?;
        let (lacks_empty, output) = (!groups && filters, Arc::clone(output));
        Some(Self { feed, input, output, physical, lacks_empty })
    }

    /// Whether a window without a result has to be asked again by itself.
    pub(super) fn lacks_empty(&self) -> bool {
        self.lacks_empty
    }

    /// Gives the twin its rows: for each window its bounds and how many of the rows are its.
    pub(super) fn fill(
        &self,
        rows: &[RecordBatch],
        windows: &[(Bounds, usize)],
    ) -> Result<(), ArrowError> {
        let each = || windows.iter().flat_map(|(bounds, rows)| std::iter::repeat_n(bounds, *rows));
        let utc = |times: TimestampMicrosecondArray| times.with_timezone("UTC");
        let numbers = (0_u32..).zip(windows);
        let numbers = numbers.flat_map(|(number, (_, rows))| std::iter::repeat_n(number, *rows));
        let hidden: [ArrayRef; 3] = [
            Arc::new(UInt32Array::from_iter_values(numbers)),
            Arc::new(utc(TimestampMicrosecondArray::from_iter_values(each().map(|b| b.start)))),
            Arc::new(utc(TimestampMicrosecondArray::from_iter_values(each().map(|b| b.end)))),
        ];
        let mut first = 0;
        let filled = rows.iter().map(|batch| {
            let rows = batch.num_rows();
            let hidden = hidden.iter().map(|column| column.slice(first, rows));
            let columns = batch.columns().iter().cloned().chain(hidden).collect();
            first += rows;
            RecordBatch::try_new(Arc::clone(&self.input), columns)
        });
        self.feed.fill(filled.collect::<Result<_, _>>()?);
        Ok(())
    }

    /// Lets the rows go.
    pub(super) fn clear(&self) {
        self.feed.fill(Vec::new());
    }

    /// Hands out to each window what is its.
    pub(super) fn split(
        &self,
        batches: Vec<RecordBatch>,
        windows: usize,
    ) -> Result<Vec<Vec<RecordBatch>>, ArrowError> {
        let mut results = vec![Vec::new(); windows];
        let own = self.output.fields().len();
        for batch in batches {
            let numbers = batch.column(own).as_primitive::<UInt32Type>().values();
            let columns = batch.columns()[..own].to_vec();
            let whole = RecordBatch::try_new(Arc::clone(&self.output), columns)?;
            let mut first = 0;
            for run in numbers.chunk_by(|a, b| a == b) {
                if let Some(result) = results.get_mut(run[0] as usize) {
                    result.push(whole.slice(first, run.len()));
                }
                first += run.len();
            }
        }
        Ok(results)
    }
}

/// What was met on the way through a plan.
#[derive(Debug, Default)]
struct Seen {
    tables: usize,
    aggregates: usize,
    /// The aggregation has groups of its own.
    groups: bool,
    /// Rows are filtered below it.
    filters: bool,
}

struct Rewrite<'a> {
    feed: &'a Arc<Feed>,
    input: &'a SchemaRef,
    seen: Seen,
}

impl Rewrite<'_> {
    /// The whole plan, its columns followed by the window's number. `Ok(None)` where a part of it
    /// looks over rows in a way that groups do not tell apart.
    fn whole(&mut self, plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
        let Some(twin) = self.part(plan)? else {
            return Ok(None);
        };
        let mut columns: Vec<Expr> =
            plan.schema().iter().map(|field| Expr::Column(Column::from(field))).collect();
        columns.push(hidden(&twin, NUMBER)?);
        Projection::try_new(columns, Arc::new(twin)).map(|p| Some(LogicalPlan::Projection(p)))
    }

    fn part(&mut self, plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
        if let LogicalPlan::TableScan(scan) = plan {
            let whole = scan.filters.is_empty() && scan.fetch.is_none();
            if !whole || scan.projection.is_some() {
                return Ok(None);
            }
            self.seen.tables += 1;
            let table =
                StreamingTable::try_new(Arc::clone(self.input), vec![Arc::clone(self.feed) as _])?;
            let source = provider_as_source(Arc::new(table));
            return LogicalPlanBuilder::scan(scan.table_name.clone(), source, None)?
                .build()
                .map(Some);
        }
        let [child] = plan.inputs()[..] else {
            return Ok(None);
        };
        if !expressions_are_of_rows(plan)? {
            return Ok(None);
        }
        let Some(child) = self.part(child)?.map(Arc::new) else {
            return Ok(None);
        };
        let names = NamePreserver::new(plan);
        let bounds = |expr: &Expr| {
            let saved = names.save(expr);
            with_bounds(expr.clone(), &child).map(|expr| saved.restore(expr))
        };
        let all = |exprs: &[Expr]| exprs.iter().map(bounds).collect::<Result<Vec<Expr>>>();
        Ok(Some(match plan {
            LogicalPlan::SubqueryAlias(alias) => {
                LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(child, alias.alias.clone())?)
            }
            LogicalPlan::Filter(filter) => {
                self.seen.filters |= self.seen.aggregates == 0;
                LogicalPlan::Filter(Filter::try_new(bounds(&filter.predicate)?, child)?)
            }
            LogicalPlan::Projection(projection) => {
                let mut exprs = all(&projection.expr)?;
                exprs.extend(all_hidden(&child)?);
                LogicalPlan::Projection(Projection::try_new(exprs, child)?)
            }
            LogicalPlan::Aggregate(aggregate) => {
                self.seen.aggregates += 1;
                self.seen.groups = !aggregate.group_expr.is_empty();
                let mut groups = all(&aggregate.group_expr)?;
                groups.extend(all_hidden(&child)?);
                let calls = all(&aggregate.aggr_expr)?;
                LogicalPlan::Aggregate(Aggregate::try_new(child, groups, calls)?)
            }
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
                let mut by = vec![hidden(&child, NUMBER)?.sort(true, false)];
                for key in &sort.expr {
                    by.push(key.with_expr(bounds(&key.expr)?));
                }
                LogicalPlan::Sort(Sort { expr: by, input: child, fetch: None })
            }
            _ => return Ok(None),
        }))
    }
}

/// Whether all expressions of a node look at a row, or at a group, and at nothing else.
fn expressions_are_of_rows(plan: &LogicalPlan) -> Result<bool> {
    let mut sound = true;
    plan.apply_expressions(|expr| {
        expr.apply(|part| {
            sound &= match part {
                Expr::GroupingSet(_)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::ScalarSubquery(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::WindowFunction(_) => false,
                Expr::ScalarFunction(call) => {
                    bound_of(part).is_some()
                        || call.func.signature().volatility != Volatility::Volatile
                }
                _ => true,
            };
            Ok(if sound { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
        })
    })?;
    Ok(sound)
}

/// The column that a call of `window_start()` or `window_end()` stands for.
fn bound_of(expr: &Expr) -> Option<&'static str> {
    match expr {
        Expr::ScalarFunction(call) if call.func.name() == START_FUNCTION => Some(START),
        Expr::ScalarFunction(call) if call.func.name() == END_FUNCTION => Some(END),
        _ => None,
    }
}

/// Puts the columns in place of the functions.
fn with_bounds(expr: Expr, input: &LogicalPlan) -> Result<Expr> {
    expr.transform(|part| match bound_of(&part) {
        Some(name) => Ok(Transformed::yes(hidden(input, name)?)),
        None => Ok(Transformed::no(part)),
    })
    .data()
}

fn hidden(input: &LogicalPlan, name: &str) -> Result<Expr> {
    let field = input.schema().qualified_field_with_unqualified_name(name)?;
    Ok(Expr::Column(Column::from(field)))
}

fn all_hidden(input: &LogicalPlan) -> Result<Vec<Expr>> {
    [NUMBER, START, END].into_iter().map(|name| hidden(input, name)).collect()
}
