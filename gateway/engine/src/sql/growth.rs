//! Bounds how much longer a text can become than what it is made of.
//!
//! Operators' memory is counted, the values of expressions are not: `v || v`, said in each of forty
//! CTEs, would be a million million times as long as `v`. So the factor is worked out when the SQL
//! is planned, through all operators, and a plan beyond the bound is refused.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, LogicalPlan, Operator};

use super::SqlError;

/// How many times longer than its parts a text may become.
const GROWTH_MAX: u64 = 64;

/// Refuses a plan that could make longer texts.
pub(super) fn check(plan: &LogicalPlan) -> Result<(), SqlError> {
    let factor = of_plan(plan);
    if factor <= GROWTH_MAX {
        return Ok(());
    }
    let message = format!("texts could become more than {GROWTH_MAX} times as long as their parts");
    Err(SqlError::new(message)
        .hint("`||`, `concat` and `replace` make texts longer, and a CTE passes them on"))
}

/// The factor through all operators below.
fn of_plan(plan: &LogicalPlan) -> u64 {
    let own = plan.expressions().iter().map(of_expr).max().unwrap_or(1);
    let below = plan.inputs().into_iter().map(of_plan).max().unwrap_or(1);
    own.saturating_mul(below)
}

/// How much longer than its longest part a value can be.
fn of_expr(expr: &Expr) -> u64 {
    match expr {
        Expr::BinaryExpr(binary) if binary.op == Operator::StringConcat => {
            of_expr(&binary.left).saturating_add(of_expr(&binary.right))
        }
        Expr::ScalarFunction(call) => of_call(call),
        Expr::ScalarSubquery(subquery) => of_plan(&subquery.subquery),
        other => {
            let mut factor = 1;
            let walked = other.apply_children(|child| {
                factor = factor.max(of_expr(child));
                Ok(TreeNodeRecursion::Continue)
            });
            // Nothing that is called here fails.
            if walked.is_ok() { factor } else { u64::MAX }
        }
    }
}

fn of_call(ScalarFunction { func, args }: &ScalarFunction) -> u64 {
    let longest = args.iter().map(of_expr).max().unwrap_or(1);
    match func.name() {
        "concat" | "concat_ws" => {
            args.iter().fold(0, |sum: u64, arg| sum.saturating_add(of_expr(arg)))
        }
        // Each character may become all of the third argument.
        "replace" => longest.saturating_mul(args.get(2).map_or(1, literal_length).max(1)),
        _ => longest,
    }
}

fn literal_length(expr: &Expr) -> u64 {
    match expr {
        Expr::Literal(value, _) => match value.try_as_str() {
            Some(text) => text.map_or(0, |text| text.len() as u64),
            None => u64::MAX,
        },
        _ => u64::MAX,
    }
}
