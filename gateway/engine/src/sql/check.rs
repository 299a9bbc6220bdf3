//! Refuses plans that cannot be right in a stream.
//!
//! Promise: what passes reads at least one declared table, names its columns once, and, without a
//! window, looks at one row at a time, so that its results do not depend on how rows were batched.

use std::collections::HashSet;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan, WindowFunctionDefinition};

use super::SqlError;
use crate::functions::OF_ROWS;

/// Column names that the `meta` envelope adds.
const RESERVED: [&str; 3] = ["_id", "_quality", "_replayed"];

/// Aggregates whose results are as long as what they are made of.
const GATHERING: [&str; 2] = ["array_agg", "string_agg"];

pub(super) fn not_a_select() -> SqlError {
    SqlError::new("only one SELECT is allowed")
        .hint("no DDL, DML, COPY, SET, EXPLAIN, and no second statement")
}

/// Checks a plan as it came from the SQL text, before the optimizer.
pub(super) fn plan(plan: &LogicalPlan, windowed: bool) -> Result<(), SqlError> {
    names(plan)?;
    let mut tables = 0;
    let mut refusal = None;
    plan.apply_with_subqueries(|node| {
        tables += usize::from(matches!(node, LogicalPlan::TableScan(_)));
        refusal = refuse_expressions(node)
            .or_else(|| if windowed { None } else { refuse_stateless(node) });
        Ok(if refusal.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    match refusal {
        Some(refusal) => Err(refusal),
        None if tables == 0 => Err(SqlError::new("the SELECT reads no table")),
        None => Ok(()),
    }
}

fn names(plan: &LogicalPlan) -> Result<(), SqlError> {
    let mut seen = HashSet::new();
    for field in plan.schema().fields() {
        let name = field.name().as_str();
        if !seen.insert(name) {
            return Err(SqlError::new(format!("the result has two columns `{name}`"))
                .hint("give one of them another name with AS"));
        }
        if RESERVED.contains(&name) {
            return Err(SqlError::new(format!(
                "the column name `{name}` is taken by the envelope"
            ))
            .hint("choose another name with AS"));
        }
    }
    Ok(())
}

fn refuse_expressions(node: &LogicalPlan) -> Option<SqlError> {
    let mut refusal = None;
    let walked = node.apply_expressions(|expr| {
        expr.apply(|expr| {
            refusal = match expr {
                Expr::Placeholder(placeholder) => Some(SqlError::new(format!(
                    "`{}` has no value: SQL in a stream takes no parameters",
                    placeholder.id
                ))),
                Expr::AggregateFunction(call)
                    if OF_ROWS.contains(&call.func.name()) && call.params.distinct =>
                {
                    let message = format!("{}(DISTINCT …) has no meaning", call.func.name());
                    Some(SqlError::new(message).hint("drop DISTINCT"))
                }
                Expr::WindowFunction(call) => match &call.fun {
                    // Each row would have all rows before it.
                    WindowFunctionDefinition::AggregateUDF(aggregate)
                        if GATHERING.contains(&aggregate.name()) =>
                    {
                        let name = aggregate.name();
                        Some(
                            SqlError::new(format!("{name}(…) OVER (…) is not available"))
                                .hint("use it with GROUP BY"),
                        )
                    }
                    _ => return Ok(TreeNodeRecursion::Continue),
                },
                _ => return Ok(TreeNodeRecursion::Continue),
            };
            Ok(TreeNodeRecursion::Stop)
        })
    });
    refusal.or_else(|| walked.err().map(SqlError::from))
}

fn refuse_stateless(node: &LogicalPlan) -> Option<SqlError> {
    let what = match node {
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::TableScan(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Union(_) => return None,
        LogicalPlan::Aggregate(_) => "an aggregate",
        LogicalPlan::Distinct(_) => "DISTINCT",
        LogicalPlan::Window(_) => "OVER (…)",
        LogicalPlan::Join(_) => "a join",
        LogicalPlan::Sort(_) => "ORDER BY",
        LogicalPlan::Limit(_) => "LIMIT",
        LogicalPlan::Subquery(_) => "a subquery",
        LogicalPlan::Values(_) | LogicalPlan::EmptyRelation(_) => "a SELECT without a table",
        other => return Some(SqlError::new(format!("not available: {}", other.display()))),
    };
    Some(
        SqlError::new(format!("{what} needs more than one row, and this stream has no window"))
            .hint("add `window:` to the stream, such as `window: { tumbling: { size: 10s } }`"),
    )
}
