//! Refuses constants with which a call fails whatever the rows hold.
//!
//! DataFusion looks at many constants only when it computes: a percentile of 2, a step of `date_bin` of no
//! length, a text that is no time. Each window or row would fail. So when SQL is planned, aggregates and
//! window functions are set up once, and calls with constants are tried on two rows that are not theirs, one
//! of nulls and one of ordinary values; what fails on both is refused. What fails on one may be right for
//! the rows that come.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::expr::{AggregateFunction, ScalarFunction};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Volatility};
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::scalar::ScalarValue;

use super::SqlError;

/// Aggregates whose sketch may be given a number of centroids, and which argument that is.
const SKETCHES: [(&str, usize); 2] =
    [("approx_percentile_cont", 2), ("approx_percentile_cont_with_weight", 3)];

/// Centroids of a sketch at most. It takes room for all of them at once, 16 bytes each.
const CENTROIDS_MAX: i64 = 10_000;

/// 2026-01-01T00:00:00Z in microseconds, an ordinary time.
const ORDINARY_TIME: i64 = 1_767_225_600_000_000;

/// Checks a plan whose constants are folded, by [`SessionState::optimize`].
pub(super) fn check(plan: &LogicalPlan, state: &SessionState) -> std::result::Result<(), SqlError> {
    let mut refusal = None;
    plan.apply_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                refusal = of_expr(expr, &schema, state)?;
                Ok(go_on(refusal.as_ref()))
            })
        })?;
        Ok(go_on(refusal.as_ref()))
    })?;
    refusal.map_or(Ok(()), Err)
}

fn go_on(refusal: Option<&SqlError>) -> TreeNodeRecursion {
    if refusal.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue }
}

/// Sets up each aggregate and window function of a plan, as each execution does.
pub(super) fn check_aggregates(plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
    plan.apply(|node| {
        if let Some(node) = node.downcast_ref::<AggregateExec>() {
            for aggregate in node.aggr_expr() {
                aggregate.create_accumulator()?;
            }
        }
        let windows: &[Arc<dyn WindowExpr>] = match (
            node.downcast_ref::<WindowAggExec>(),
            node.downcast_ref::<BoundedWindowAggExec>(),
        ) {
            (Some(node), _) => node.window_expr(),
            (_, Some(node)) => node.window_expr(),
            _ => &[],
        };
        for window in windows {
            window.create_window_fn()?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

fn of_expr(expr: &Expr, schema: &DFSchema, state: &SessionState) -> Result<Option<SqlError>> {
    match expr {
        Expr::AggregateFunction(call) => Ok(of_sketch(call)),
        Expr::ScalarFunction(call) if call.func.signature().volatility != Volatility::Volatile => {
            let refusal = trial(call, schema, state)?;
            Ok(refusal.map(|error| placed(error, std::iter::once(expr))))
        }
        _ => Ok(None),
    }
}

fn of_sketch(call: &AggregateFunction) -> Option<SqlError> {
    let name = call.func.name();
    let (_, at) = SKETCHES.into_iter().find(|(known, _)| *known == name)?;
    let centroids = call.params.args.get(at)?;
    let message = match literal(centroids).map(|value| value.cast_to(&DataType::Int64)) {
        Some(Ok(ScalarValue::Int64(Some(number)))) if (1..=CENTROIDS_MAX).contains(&number) => {
            return None;
        }
        Some(Ok(ScalarValue::Int64(Some(number)))) => {
            format!("a sketch of {number} centroids cannot be")
        }
        _ => "the number of centroids is not constant".to_owned(),
    };
    let name = if name == "approx_percentile_cont" { "approx_percentile" } else { name };
    let error = SqlError::new(format!("{name}: {message}"))
        .hint(format!("give it from 1 to {CENTROIDS_MAX} centroids, or none: then it has 100"));
    Some(placed(error, call.params.args.iter()))
}

fn literal(expr: &Expr) -> Option<&ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Some(value),
        Expr::Cast(cast) => literal(&cast.expr),
        _ => None,
    }
}

/// The same error at the first column of `parts`: calls have no place of their own in the text.
fn placed<'a>(error: SqlError, parts: impl Iterator<Item = &'a Expr>) -> SqlError {
    let columns = parts.flat_map(|part| part.column_refs());
    match columns.filter_map(|column| column.spans.first()).min() {
        Some(span) if error.position.is_none() => error.at(span.start.line, span.start.column),
        _ => error,
    }
}

/// Computes a call, of whose arguments at least one is constant, with others in the place of those that
/// are not; an error where it fails both on nulls and on ordinary values.
fn trial(
    call: &ScalarFunction,
    schema: &DFSchema,
    state: &SessionState,
) -> Result<Option<SqlError>> {
    if !call.args.iter().any(|operand| matches!(operand, Expr::Literal(..))) {
        return Ok(None);
    }
    let (mut tried, mut fields) = (Vec::new(), Vec::new());
    for (at, operand) in call.args.iter().enumerate() {
        if let Expr::Literal(..) = operand {
            tried.push(operand.clone());
            continue;
        }
        // What is told of its type only where it stands is not tried.
        let Ok(data_type) = operand.get_type(schema) else {
            return Ok(None);
        };
        let name = format!("operand {at}");
        tried.push(Expr::Column(Column::new_unqualified(&name)));
        fields.push(Field::new(name, data_type, true));
    }
    let rows = Arc::new(Schema::new(fields));
    let columns = DFSchema::try_from(Arc::clone(&rows))?;
    let tried = Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&call.func), tried));
    let compute = |values: Vec<ArrayRef>| -> Result<()> {
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let row = RecordBatch::try_new_with_options(Arc::clone(&rows), values, &options)?;
        let computed = state.create_physical_expr(tried.clone(), &columns)?.evaluate(&row)?;
        computed.into_array(1).map(drop)
    };
    let nulls = rows.fields().iter().map(|field| new_null_array(field.data_type(), 1)).collect();
    let Err(error) = compute(nulls) else {
        return Ok(None);
    };
    let ordinary: Result<_> = rows.fields().iter().map(|f| ordinary(f.data_type())).collect();
    if ordinary.and_then(compute).is_ok() {
        return Ok(None);
    }
    let message = format!("{}: {}", call.func.name(), SqlError::from(error).message);
    let hint = "it would fail for every row: look at its constants";
    Ok(Some(SqlError::new(message).hint(hint)))
}

/// A value such as any row may hold.
fn ordinary(data_type: &DataType) -> Result<ArrayRef> {
    let value = match data_type {
        DataType::Timestamp(..) => ScalarValue::TimestampMicrosecond(Some(ORDINARY_TIME), None),
        DataType::Boolean => ScalarValue::Boolean(Some(true)),
        of if of.is_numeric() => ScalarValue::Int64(Some(1)),
        of if of.is_string() => ScalarValue::Utf8(Some("1".to_owned())),
        of => return Ok(new_null_array(of, 1)),
    };
    value.cast_to(data_type)?.to_array()
}

#[cfg(test)]
mod tests {
    use super::super::Sql;
    use super::super::shapes::tables;

    /// A call, part of the message, part of the hint.
    type Wrong = (&'static str, &'static str, &'static str);

    const WRONG: &[Wrong] = &[
        ("approx_percentile(v, v)", "must be a literal", ""),
        ("approx_percentile(v, NULL)", "got null", ""),
        ("approx_percentile(v, 0.5, 0)", "0 centroids", "from 1 to 10000"),
        ("approx_percentile(v, 0.5, 1000000000000)", "1000000000000 centroids", "from 1 to 10000"),
        ("max(date_bin(INTERVAL '0 seconds', time))", "date_bin: ", "every row"),
        ("max(date_bin(INTERVAL '1 month 1 day', time))", "date_bin: ", "every row"),
        ("max(date_trunc('fortnight', time))", "date_trunc: ", "every row"),
        ("count(*) FILTER (WHERE device ~ '[')", "regex parse error", "unclosed"),
        ("count(*) FILTER (WHERE time > 'yesterday')", "'yesterday'", ""),
        ("max(CAST('12a' AS BIGINT))", "'12a'", ""),
        ("ntile(0) OVER (ORDER BY max(v))", "NTILE requires a positive", ""),
        ("nth_value(max(v), 1.5) OVER (ORDER BY max(v))", "nth_value", ""),
    ];

    /// Constants that are right, also where they are computed, and what depends on the rows.
    const RIGHT: &[&str] = &[
        "approx_percentile(v, 0.9 + 0.05)",
        "approx_percentile(n, 1)",
        "approx_percentile(v, 0.5, 200)",
        "approx_percentile_cont(0.99) WITHIN GROUP (ORDER BY v DESC)",
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY v)",
        "counter_delta(v, 1.5)",
        "counter_delta(n, 65536.0)",
        "max(date_bin(INTERVAL '15 minutes', time))",
        "max(date_bin(INTERVAL '1 month', time))",
        "max(date_trunc('hour', time))",
        "max(date_part('dow', time))",
        "max(to_timestamp(device, '%Y'))",
        "max(substr(device, 2, 3))",
        "max(substr(device, -5))",
        "count(*) FILTER (WHERE device ~ '^a+$')",
        "count(*) FILTER (WHERE time > '2026-01-01')",
        "max(CASE WHEN v > 3 THEN CAST(device AS BIGINT) ELSE 1 / (n - 1) END)",
        "max(chr(n + 64))",
        "max(split_part(device, ',', 2))",
        "max(round(v, 2))",
        "max(log(10, v))",
        "max(make_date(2026, n, 1))",
        "ntile(4) OVER (ORDER BY max(v))",
        "lag(max(v), 1) OVER (ORDER BY max(v))",
    ];

    #[test]
    fn what_fails_for_every_row_is_refused_and_nothing_else() {
        let sql = Sql::new(1 << 20).unwrap();
        let plan = |call: &str| sql.plan(&format!("SELECT {call} AS x FROM m"), &tables(), true);
        let mut faults = Vec::new();
        for (call, message, hint) in WRONG {
            match plan(call) {
                Err(error) => {
                    let told = error.hint.as_deref().unwrap_or("");
                    if !error.message.contains(message) || !told.contains(hint) {
                        faults.push(format!("{call}: {error:?}"));
                    }
                }
                Ok(_) => faults.push(format!("{call} was planned")),
            }
        }
        let refused = RIGHT.iter().filter_map(|call| Some((call, plan(call).err()?)));
        faults.extend(refused.map(|(call, error)| format!("{call}: {error:?}")));
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        let text = "SELECT count(*) AS n,\n  max(date_trunc('fortnight', time)) AS x FROM m";
        let error = sql.plan(text, &tables(), true).unwrap_err();
        assert_eq!(error.position, Some((2, 31)), "where the column stands");
    }
}
