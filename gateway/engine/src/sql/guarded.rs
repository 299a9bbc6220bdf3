//! Conditions stand before what they guard.
//!
//! Promise: where arithmetic may fail, by a result that does not fit or a division by zero, the other
//! conditions of WHERE and HAVING, and the FILTER of an aggregate, say for which rows it is computed; the
//! rows that pass are the same. DataFusion computes both sides of AND for all rows unless few pass the
//! first, moves conditions into each other, and computes what is aggregated for rows that FILTER leaves
//! out, so that `WHERE b <> 0 AND a / b > 3` would fail over rows that it was written to leave out. Between
//! conditions that may fail the text's order is kept. It knows no kernels.

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{AggregateFunction, BinaryExpr};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, Expr, ExprSchemable, Filter, LogicalPlan, Operator, lit, when,
};

use super::whole;

/// Puts guards into a plan that is optimized: what is optimized after this would move them again.
pub(super) fn guarded(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Filter(filter) => conditions(filter),
        LogicalPlan::Aggregate(aggregate) => aggregates(aggregate),
        node => Ok(Transformed::no(node)),
    })
    .data()
}

fn conditions(filter: Filter) -> Result<Transformed<LogicalPlan>> {
    let Filter { predicate, input, .. } = filter;
    let schema = input.schema();
    let parts = split_conjunction_owned(predicate.clone());
    let (fallible, others): (Vec<_>, Vec<_>) =
        parts.into_iter().partition(|part| may_fail(part, schema));
    if fallible.is_empty() || fallible.len() + others.len() < 2 {
        let filter = Filter::try_new(predicate, input)?;
        return Ok(Transformed::no(LogicalPlan::Filter(filter)));
    }
    let mut whole = conjunction(others);
    for condition in fallible {
        whole = Some(match whole {
            Some(guard) => when(guard, condition).otherwise(lit(false))?,
            None => condition,
        });
    }
    let filter = Filter::try_new(whole.unwrap_or(predicate), input)?;
    Ok(Transformed::yes(LogicalPlan::Filter(filter)))
}

fn aggregates(aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
    let schema = aggregate.input.schema();
    let mut any = false;
    let calls = aggregate.aggr_expr.iter().map(|expr| {
        let call = guarded_call(expr, schema)?;
        any |= call.is_some();
        Ok(call.unwrap_or_else(|| expr.clone()))
    });
    let calls = calls.collect::<Result<Vec<_>>>()?;
    if !any {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let Aggregate { input, group_expr, .. } = aggregate;
    Ok(Transformed::yes(LogicalPlan::Aggregate(Aggregate::try_new(input, group_expr, calls)?)))
}

/// The call over what FILTER lets through and NULL, under the name that it had.
fn guarded_call(expr: &Expr, schema: &DFSchema) -> Result<Option<Expr>> {
    let mut inner = expr;
    while let Expr::Alias(alias) = inner {
        inner = &alias.expr;
    }
    let Expr::AggregateFunction(AggregateFunction { func, params }) = inner else {
        return Ok(None);
    };
    let Some(filter) = &params.filter else {
        return Ok(None);
    };
    let mut any = false;
    let args = params.args.iter().map(|arg| {
        if !may_fail(arg, schema) {
            return Ok(arg.clone());
        }
        any = true;
        when(filter.as_ref().clone(), arg.clone()).end()
    });
    let args = args.collect::<Result<Vec<_>>>()?;
    let name = expr.schema_name().to_string();
    let mut params = params.clone();
    params.args = args;
    let call = Expr::AggregateFunction(AggregateFunction { func: func.clone(), params });
    Ok(any.then(|| call.alias(name)))
}

/// Whether an expression has arithmetic that fails for some numbers.
fn may_fail(expr: &Expr, schema: &DFSchema) -> bool {
    let found = expr.exists(|part| {
        let divides = match part {
            Expr::BinaryExpr(BinaryExpr { op: Operator::Divide | Operator::Modulo, .. }) => {
                part.get_type(schema).is_ok_and(|of| !of.is_floating())
            }
            _ => false,
        };
        Ok(divides || whole::is_checked(part))
    });
    // Nothing that is called here fails.
    found.unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use arrow::record_batch::RecordBatch;

    use super::super::shapes::{rows, tables, text};
    use super::super::{Query, Sql};
    use crate::window::Bounds;

    const MOST: i64 = i64::MAX;

    /// Most rows pass the guard, so that DataFusion computes both sides of AND for all.
    fn some() -> RecordBatch {
        rows(&[
            (1, "a", Some(1.0), 4),
            (2, "b", Some(2.0), 5),
            (3, "a", None, 6),
            (4, "b", Some(4.0), 7),
            (5, "a", Some(5.0), 0),
            (6, "b", Some(6.0), MOST),
        ])
    }

    fn plan(text: &str) -> Query {
        Sql::new(64 << 20).unwrap().plan(text, &tables(), true).unwrap()
    }

    async fn run(query: &mut Query) -> Vec<String> {
        let bounds = Some(Bounds { start: 0, end: 10_000_000 });
        text(&query.execute(vec![vec![some()], vec![]], bounds).await.unwrap())
    }

    /// Each fails where the condition is not looked at first; expected by hand.
    #[tokio::test]
    async fn what_a_condition_leaves_out_is_not_computed() {
        for (sql, expected) in [
            ("SELECT n FROM m WHERE n <> 0 AND 20 / n >= 3", &["4", "5", "6"][..]),
            ("SELECT n FROM m WHERE 20 / n >= 3 AND n <> 0", &["4", "5", "6"]),
            ("SELECT n FROM m WHERE n < 100 AND n * n > 20", &["5", "6", "7"]),
            // 4 * 4 = 16, 5 * 4 = 20, 6 * 3 = 18, 7 * 2 = 14.
            ("SELECT n FROM m WHERE n < 100 AND n > 0 AND n * (20 / n) > 18", &["4", "5"]),
            ("SELECT n FROM m WHERE n % 1000 <> 0 AND 20 / n > 3 AND n < 6", &["4", "5"]),
            // Of a subquery too, whose condition DataFusion puts beside the one above it.
            (
                "SELECT s FROM (SELECT n * 2 AS s FROM m WHERE n < 100) AS x WHERE s > 10",
                &["12", "14"],
            ),
            // NULL passes no condition: 4, 5, 7 have a v, and so has 0.
            ("SELECT n FROM m WHERE v > 0 AND n < 100 AND n + 1 > 5", &["5", "7"]),
            ("SELECT n FROM m WHERE NOT (n = 0 OR 20 / n < 3)", &["4", "5", "6"]),
            (
                "SELECT device, sum(n * 2) FILTER (WHERE n < 100) AS s FROM m GROUP BY device",
                // 2 * (4 + 6 + 0) and 2 * (5 + 7).
                &["a 20", "b 24"],
            ),
            // 5 + 4 + 3 + 2 + 0.
            ("SELECT sum(20 / n) FILTER (WHERE n <> 0) AS s FROM m", &["14"]),
            ("SELECT count(n * 2) FILTER (WHERE n < 100 OR n IS NULL) AS c FROM m", &["5"]),
            ("SELECT device FROM m GROUP BY device HAVING max(n) < 100 AND max(n) * 2 > 3", &["a"]),
            (
                "SELECT CASE WHEN n < 100 THEN n * n ELSE -1 END AS q FROM m WHERE n > 5",
                &["36", "49", "-1"],
            ),
        ] {
            let mut query = plan(sql);
            assert_eq!(run(&mut query).await, expected, "{sql}\n{}", query.explain());
        }
    }

    /// Names stay, and so does what can be computed in pieces.
    #[tokio::test]
    async fn guards_change_nothing_else() {
        let sql = "SELECT device, sum(n * 2) FILTER (WHERE n < 100) FROM m WHERE n <> 0 AND 9 / n < 9 \
                   GROUP BY device";
        let mut query = plan(sql);
        assert_eq!(
            query.schema().field(1).name(),
            "sum(m.n * Int64(2)) FILTER (WHERE m.n < Int64(100))"
        );
        assert!(query.explain().starts_with("mode: incremental"), "{}", query.explain());
        let state = query.fold(vec![some()]).await.unwrap();
        let bounds = Bounds { start: 0, end: 10_000_000 };
        let results = query.finish(vec![state], bounds).await.unwrap();
        // 2 * (4 + 6) and 2 * (5 + 7).
        assert_eq!(text(&results), ["a 20", "b 24"]);
        // Nothing is guarded that cannot fail.
        let plain = plan("SELECT n FROM m WHERE n > 1 AND v / 2 > 1").explain();
        assert!(!plain.contains("CASE"), "{plain}");
    }
}
