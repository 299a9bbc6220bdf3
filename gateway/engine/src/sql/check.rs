//! Refuses plans that cannot be right in a stream.
//!
//! Promise: what passes reads at least one declared table, names its columns once, and, without a
//! window, looks at one row at a time, so that its results do not depend on how rows were batched.

use std::collections::HashSet;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result};
use datafusion::logical_expr::{Expr, Join, LogicalPlan};

use super::SqlError;
use super::sides::Sides;
use crate::functions::OF_ROWS;

/// Column names that the `meta` envelope adds.
const RESERVED: [&str; 3] = ["_id", "_quality", "_replayed"];

pub(super) fn not_a_select() -> SqlError {
    SqlError::new("only one SELECT is allowed")
        .hint("no DDL, DML, COPY, SET, EXPLAIN, and no second statement")
}

/// Checks a plan as it came from the SQL text, before the optimizer.
pub(super) fn plan(
    plan: &LogicalPlan,
    windowed: bool,
    sides: &Sides,
) -> std::result::Result<(), SqlError> {
    names(plan)?;
    let mut tables = 0;
    let mut refusal = None;
    plan.apply_with_subqueries(|node| {
        let counts = match sides.scans_rows(node)? {
            // A window may end and show nothing but each device's last row.
            Some(false) => windowed && !sides.scans_lookup(node)?,
            rows => rows.is_some(),
        };
        tables += usize::from(counts);
        refusal = refuse_expressions(node);
        if refusal.is_none() && !windowed && sides.reads_rows(node)? {
            refusal = refuse_stateless(node, sides)?;
        }
        Ok(if refusal.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    match refusal {
        Some(refusal) => Err(refusal),
        None if tables == 0 => Err(SqlError::new("the SELECT reads no table")),
        None => Ok(()),
    }
}

fn names(plan: &LogicalPlan) -> std::result::Result<(), SqlError> {
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
                _ => return Ok(TreeNodeRecursion::Continue),
            };
            Ok(TreeNodeRecursion::Stop)
        })
    });
    refusal.or_else(|| walked.err().map(SqlError::from))
}

/// Refuses what needs more than one row of those that come. Whatever reads only tables beside them
/// may do as it likes.
fn refuse_stateless(node: &LogicalPlan, sides: &Sides) -> Result<Option<SqlError>> {
    let what = match node {
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::TableScan(_)
        | LogicalPlan::SubqueryAlias(_) => return Ok(None),
        LogicalPlan::Union(union) => {
            for input in &union.inputs {
                if !sides.reads_rows(input)? {
                    let message = "a part of UNION ALL reads no table whose rows come";
                    let hint = "without a window each row is looked at by itself: name a table of \
                                `from` in each part";
                    return Ok(Some(SqlError::new(message).hint(hint)));
                }
            }
            return Ok(None);
        }
        LogicalPlan::Join(join) => return refuse_join(join, sides),
        LogicalPlan::Aggregate(_) => "an aggregate",
        LogicalPlan::Distinct(_) => "DISTINCT",
        LogicalPlan::Window(_) => "OVER (…)",
        LogicalPlan::Sort(_) => "ORDER BY",
        LogicalPlan::Limit(_) => "LIMIT",
        LogicalPlan::Subquery(_) => "a subquery",
        other => {
            let message = format!("not available: {}", other.display());
            return Ok(Some(SqlError::new(message)));
        }
    };
    Ok(Some(needs_window(what)))
}

fn needs_window(what: &str) -> SqlError {
    SqlError::new(format!("{what} needs more than one row, and this stream has no window"))
        .hint("add `window:` to the stream, such as `window: { tumbling: { size: 10s } }`")
}

/// Joins each row with a table beside the rows, or is refused.
fn refuse_join(join: &Join, sides: &Sides) -> Result<Option<SqlError>> {
    use JoinType::{
        Full, Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi,
    };
    let (left, right) = (sides.reads_rows(&join.left)?, sides.reads_rows(&join.right)?);
    if left && right {
        let hint = "add `window:` to the stream, such as `window: { tumbling: { size: 10s } }`, or \
                    join the last row of each device: `JOIN latest('other') AS o ON …`";
        return Ok(Some(SqlError { hint: Some(hint.into()), ..needs_window("a join") }));
    }
    let by_row = match join.join_type {
        Inner => true,
        Left | LeftSemi | LeftAnti | LeftMark => left,
        Right | RightSemi | RightAnti | RightMark => right,
        Full => false,
    };
    if by_row {
        return Ok(None);
    }
    let what = "a join that also gives rows that match none of those that come";
    Ok(Some(needs_window(what)))
}
