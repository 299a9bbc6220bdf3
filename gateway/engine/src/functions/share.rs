//! The share that an aggregate of percentiles is asked for.
//!
//! DataFusion looks at it when it makes the first accumulator, so a share of 95 would fail each window of
//! a stream that had been accepted. What is no constant is DataFusion's to refuse.
//! Source: DataFusion's `validate_percentile_expr`.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Diagnostic, Result};
use datafusion::logical_expr::{Expr, LogicalPlan};

use super::PERCENTILE;
use super::arguments::{number, place_of, refuse};

/// Refuses shares that are not from 0 to 1. Those that are computed are known once constants are folded.
pub(crate) fn check(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        for expr in node.expressions() {
            expr.apply(|expr| checked(expr).map(|()| TreeNodeRecursion::Continue))?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

fn checked(expr: &Expr) -> Result<()> {
    let Expr::AggregateFunction(call) = expr else {
        return Ok(());
    };
    let at = match call.func.name() {
        "percentile_cont" | "approx_percentile_cont" => 1,
        "approx_percentile_cont_with_weight" => 2,
        _ => return Ok(()),
    };
    let args = &call.params.args;
    let share = args.get(at).and_then(number).filter(|share| !(0.0..=1.0).contains(share));
    let Some(share) = share else {
        return Ok(());
    };
    let name = if call.func.name() == PERCENTILE.0 { PERCENTILE.1 } else { call.func.name() };
    let message = format!("{name}: the share is {share}, not from 0 to 1");
    let hint = if (1.0..=100.0).contains(&share) {
        format!("write a share from 0 to 1: {} for {share} percent", share / 100.0)
    } else {
        "write a share from 0 to 1, such as 0.95".to_owned()
    };
    let place = args.iter().find_map(place_of);
    Err(refuse(&message, hint).with_diagnostic(Diagnostic::new_error(message, place)))
}
