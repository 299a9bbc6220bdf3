//! Puts operators with memory in the place of calls, in a plan as it came from the SQL text.
//!
//! Promise: a function over time becomes an aggregate of spans and, above it, an operator that knows
//! what each group's last window left behind; a function that remembers becomes an operator below
//! the node that it stands in, so that it sees each of that node's rows once. Names and types of
//! all columns stay. What cannot be placed is refused with a hint.

use std::sync::Arc;

use datafusion::arrow::compute::can_cast_types;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ExprSchema, Result};
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Aggregate, AggregateUDF, Expr, Extension, Filter, LogicalPlan, Projection,
    WindowFunctionDefinition,
};

use super::arguments::{Arguments, form, refuse};
use super::asked::{AGGREGATES, HISTOGRAM, KEEPING};
use super::bounds::BoundsCell;
use super::finish::Finish;
use super::histogram::Histogram;
use super::memory::Memory;
use super::order_dependent;
use super::remember::{Call, Function, Remember};
use super::spans::Spans;
use crate::sql::as_operators;

/// Rewrites a plan and gives the memory of its calls.
pub(crate) fn rewrite(
    plan: LogicalPlan,
    cell: &Arc<BoundsCell>,
    windowed: bool,
) -> Result<(LogicalPlan, Memory)> {
    let mut rewriter = Rewriter { cell, windowed, memory: Memory::default(), calls: 0 };
    let plan = plan.transform_up_with_subqueries(|node| rewriter.node(node)).data()?;
    Ok((plan, rewriter.memory))
}

struct Rewriter<'a> {
    cell: &'a Arc<BoundsCell>,
    windowed: bool,
    memory: Memory,
    calls: usize,
}

fn is_keeping(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if KEEPING.contains(&call.name()))
}

fn keeps(expr: &Expr) -> Result<bool> {
    expr.exists(|expr| Ok(is_keeping(expr)))
}

impl Rewriter<'_> {
    fn node(&mut self, node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        let (mut keeping, mut asked) = (false, false);
        for expr in node.expressions() {
            keeping |= keeps(&expr)?;
            asked |= judge(&expr, &node)?;
        }
        if !keeping && !asked {
            return Ok(Transformed::no(node));
        }
        match node {
            LogicalPlan::Projection(Projection { expr, input, .. }) => {
                let (input, expr) = self.hoist(Arc::unwrap_or_clone(input), expr, true)?;
                let plan = Projection::try_new(expr, Arc::new(input))?;
                Ok(Transformed::yes(LogicalPlan::Projection(plan)))
            }
            LogicalPlan::Filter(Filter { predicate, input, .. }) => {
                let columns: Vec<Expr> =
                    input.schema().columns().into_iter().map(Expr::Column).collect();
                let input = Arc::unwrap_or_clone(input);
                let (input, mut predicates) = self.hoist(input, vec![predicate], false)?;
                let predicate = predicates.remove(0);
                let filter = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input))?);
                // The answers are of no more use.
                let plan = Projection::try_new(columns, Arc::new(filter))?;
                Ok(Transformed::yes(LogicalPlan::Projection(plan)))
            }
            LogicalPlan::Aggregate(aggregate) => {
                let aggregate = if keeping { self.below(aggregate)? } else { aggregate };
                let plan = if asked {
                    self.aggregate(aggregate)?
                } else {
                    LogicalPlan::Aggregate(aggregate)
                };
                Ok(Transformed::yes(plan))
            }
            _ => Err(refuse(
                format!("{} can stand in SELECT and WHERE only", KEEPING.join(", ")),
                "compute it in a subquery: FROM (SELECT …, changed(x) AS c FROM t)",
            )),
        }
    }

    /// Puts an operator below for each call of a function that remembers.
    fn hoist(
        &mut self,
        input: LogicalPlan,
        exprs: Vec<Expr>,
        named: bool,
    ) -> Result<(LogicalPlan, Vec<Expr>)> {
        let preserver = NamePreserver::new_for_projection();
        let mut below = input;
        let mut rewritten = Vec::new();
        for expr in exprs {
            let name = preserver.save(&expr);
            let replaced = expr.transform_up(|expr| {
                let Expr::ScalarFunction(call) = &expr else {
                    return Ok(Transformed::no(expr));
                };
                if !is_keeping(&expr) {
                    return Ok(Transformed::no(expr));
                }
                let schema = Arc::clone(below.schema());
                let arguments = Arguments { name: call.name(), given: &call.args, schema: &schema };
                let (function, arguments) = arguments.keeping()?;
                let keys = device(&schema, &call.args, call.name())?;
                // What was saved by a version before is found again.
                let known = as_operators(expr.clone())?.to_string();
                let slot = self.memory.slot(&known, self.windowed);
                let column = self.column(call.name(), DataType::Boolean);
                let replacement = Expr::Column(Column::new_unqualified(column.name()));
                let call = Call { function, column, slot, cell: Arc::clone(self.cell) };
                let input = std::mem::take(&mut below);
                below = operator(Remember::new(input, Some(call), arguments, keys)?);
                Ok(Transformed::yes(replacement))
            });
            let replaced = replaced.data()?;
            rewritten.push(if named { name.restore(replaced) } else { replaced });
        }
        Ok((below, rewritten))
    }

    fn column(&mut self, name: &str, data_type: DataType) -> Arc<Field> {
        self.calls += 1;
        Arc::new(Field::new(format!("{name}#{}", self.calls), data_type, true))
    }

    /// The same for calls in the arguments, filters and groups of an aggregate.
    fn below(&mut self, aggregate: Aggregate) -> Result<Aggregate> {
        let Aggregate { input, group_expr, aggr_expr, .. } = aggregate;
        let groups = group_expr.len();
        let exprs = group_expr.into_iter().chain(aggr_expr).collect();
        let (input, mut exprs) = self.hoist(Arc::unwrap_or_clone(input), exprs, true)?;
        let aggregates = exprs.split_off(groups);
        Aggregate::try_new(Arc::new(input), exprs, aggregates)
    }

    /// Puts spans in the place of functions over time, and what makes results of them above.
    fn aggregate(&mut self, aggregate: Aggregate) -> Result<LogicalPlan> {
        let Aggregate { input, group_expr, aggr_expr, schema, .. } = aggregate;
        let mut input = Arc::unwrap_or_clone(input);
        if input.exists(|node| Ok(matches!(node, LogicalPlan::Union(_))))? {
            // Both halves of a union in one aggregate: parts of one would overlap the other's.
            input = operator(Remember::new(input, None, Vec::new(), Vec::new())?);
        }
        let across = !cuts_time(&group_expr, input.schema())?;
        let mut aggregates = Vec::new();
        let mut endings = Vec::new();
        for expr in aggr_expr {
            let name = NamePreserver::new_for_projection().save(&expr);
            let plain = expr.unalias();
            let Expr::AggregateFunction(call) = &plain else {
                aggregates.push(name.restore(plain));
                continue;
            };
            let arguments = Arguments {
                name: call.func.name(),
                given: &call.params.args,
                schema: input.schema(),
            };
            if call.func.name() == HISTOGRAM {
                let (buckets, value) = arguments.histogram()?;
                let function = AggregateUDF::new_from_impl(Histogram::new(buckets));
                aggregates.push(name.restore(with(call, function, vec![value])));
            } else if let Some(known) = AGGREGATES.into_iter().find(|n| *n == call.func.name()) {
                let (summed, ending, arguments) = arguments.over_time()?;
                let function = AggregateUDF::new_from_impl(Spans::new(known, summed, self.cell));
                let column = self.column(known, summed.result_type());
                let finish = Finish { summed, ending, across };
                let spans = with(call, function, arguments.into());
                aggregates.push(spans.alias(column.name()));
                endings.push((finish, as_operators(plain)?.to_string(), column));
            } else {
                aggregates.push(name.restore(plain));
            }
        }
        let groups = Aggregate::try_new(Arc::new(input), group_expr, aggregates)?;
        self.finish(groups, &schema, endings)
    }

    /// Makes results of spans, under the names that they had.
    fn finish(
        &mut self,
        aggregate: Aggregate,
        named: &DFSchema,
        endings: Vec<(Finish, String, Arc<Field>)>,
    ) -> Result<LogicalPlan> {
        let keys = keys(&aggregate)?;
        let group = keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let spans = aggregate.schema.columns();
        let mut plan = LogicalPlan::Aggregate(aggregate);
        let mut results = std::collections::HashMap::new();
        for (finish, name, spans) in endings {
            let slot = self.memory.slot(&format!("{name} BY {group}"), false);
            let column = self.column(spans.name(), finish.data_type());
            results.insert(spans.name().clone(), Column::new_unqualified(column.name()));
            let argument = Expr::Column(Column::new_unqualified(spans.name()));
            let function = Function::Finish(finish);
            let call = Call { function, column, slot, cell: Arc::clone(self.cell) };
            plan = operator(Remember::new(plan, Some(call), vec![argument], keys.clone())?);
        }
        let columns = named.iter().zip(spans).map(|((relation, field), column)| {
            let column = results.get(&column.name).cloned().unwrap_or(column);
            let same = column.relation.as_ref() == relation && column.name == *field.name();
            match Expr::Column(column) {
                column if same => column,
                column => column.alias_qualified(relation.cloned(), field.name()),
            }
        });
        Ok(LogicalPlan::Projection(Projection::try_new(columns.collect(), Arc::new(plan))?))
    }
}

/// Judges the calls in an expression that stand as they are; true where a function over time or a
/// histogram is to be replaced.
fn judge(expr: &Expr, node: &LogicalPlan) -> Result<bool> {
    let mut asked = false;
    expr.apply(|expr| {
        match expr {
            Expr::ScalarFunction(call) if call.name().starts_with("json_get") => {
                let schema = DFSchema::empty();
                Arguments { name: call.name(), given: &call.args, schema: &schema }.json()?;
            }
            Expr::WindowFunction(call) => {
                if let WindowFunctionDefinition::AggregateUDF(function) = &call.fun
                    && AGGREGATES.contains(&function.name())
                {
                    return Err(refuse(
                        format!("`{}` is not available with OVER (…)", function.name()),
                        "use it over a window of the stream, with GROUP BY",
                    ));
                }
            }
            Expr::AggregateFunction(call) if AGGREGATES.contains(&call.func.name()) => {
                if call.params.distinct || !call.params.order_by.is_empty() {
                    let name = call.func.name();
                    let how =
                        if order_dependent(name) { "goes by time alone" } else { "counts all" };
                    let hint = format!("drop DISTINCT and ORDER BY: {}", form(name));
                    return Err(refuse(format!("`{name}` {how}"), hint));
                }
                asked |= matches!(node, LogicalPlan::Aggregate(_));
            }
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(asked)
}

fn operator(node: Remember) -> LogicalPlan {
    LogicalPlan::Extension(Extension { node: Arc::new(node) })
}

/// The same call of another function.
fn with(call: &AggregateFunction, function: AggregateUDF, args: Vec<Expr>) -> Expr {
    let params = AggregateFunctionParams { args, ..call.params.clone() };
    Expr::AggregateFunction(AggregateFunction { func: Arc::new(function), params })
}

/// Whether groups are parts of the window's time, such as its minutes: then nothing is known about
/// where the values of one part begin and end.
fn cuts_time(groups: &[Expr], schema: &DFSchema) -> Result<bool> {
    let is_time = |expr: &Expr| {
        let Expr::Column(column) = expr else {
            return Ok(false);
        };
        let field = schema.field_from_column(column)?;
        Ok(matches!(field.data_type(), DataType::Timestamp(..)))
    };
    for group in groups {
        if group.exists(is_time)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The columns that tell an aggregate's groups apart from one window to the next.
fn keys(aggregate: &Aggregate) -> Result<Vec<Expr>> {
    let sets = matches!(aggregate.group_expr.as_slice(), [Expr::GroupingSet(_)]);
    let columns = aggregate.schema.columns().into_iter().take(aggregate.group_expr_len()?);
    let mut keys = Vec::new();
    for (at, column) in columns.enumerate() {
        // The window's own bounds are others each time.
        if !sets && aggregate.group_expr.get(at).is_some_and(Expr::is_volatile) {
            continue;
        }
        let data_type = aggregate.schema.field_from_column(&column)?.data_type();
        if !can_cast_types(data_type, &DataType::Utf8) {
            return Err(refuse(
                format!("functions over time cannot be grouped by {column}, which is {data_type}"),
                "group by a text or a number",
            ));
        }
        keys.push(Expr::Column(column));
    }
    Ok(keys)
}

/// The column that tells a function's devices apart: the `device` of the rows, or of the table that
/// the arguments come from; none where the rows have no such column.
fn device(schema: &DFSchema, arguments: &[Expr], name: &str) -> Result<Vec<Expr>> {
    let devices: Vec<Column> =
        schema.columns().into_iter().filter(|column| column.name == "device").collect();
    if devices.len() < 2 {
        return Ok(devices.into_iter().map(Expr::Column).collect());
    }
    let mentioned: Vec<Column> =
        arguments.iter().flat_map(|argument| argument.column_refs().into_iter().cloned()).collect();
    let same = devices
        .into_iter()
        .find(|device| mentioned.first().is_some_and(|column| column.relation == device.relation));
    match same {
        Some(device) => Ok(vec![Expr::Column(device)]),
        None => Err(refuse(
            format!("{name}: the rows have several columns `device`"),
            format!("compute {} in a subquery over one table", form(name)),
        )),
    }
}
