//! Refuses constants with which a call fails whatever the rows hold.
//!
//! DataFusion looks at many constants only when it computes: a percentile of 2, a step of `date_bin` of no
//! length, a text that is no time. Each window or row would fail. So when SQL is planned, aggregates and
//! window functions are set up once, as each execution does, and calls with constants are tried on two rows
//! that are not theirs, one of nulls and one of ordinary values; what fails on both is refused. What fails on
//! one may be right for the rows that come, and what a condition guards (CASE, AND, OR, `coalesce`) may be
//! right because it is never computed: neither is refused. It changes no plan.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::expr::{AggregateFunction, BinaryExpr, ScalarFunction};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Operator, Volatility};
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::scalar::ScalarValue;

use super::{SqlError, whole};

/// Aggregates whose sketch may be given a number of centroids, and which argument that is.
const SKETCHES: [(&str, usize); 2] =
    [("approx_percentile_cont", 2), ("approx_percentile_cont_with_weight", 3)];

/// Centroids of a sketch at most. It takes room for all of them at once, 16 bytes each.
const CENTROIDS_MAX: i64 = 10_000;

/// 2026-01-01T00:00:00Z in microseconds, an ordinary time.
const ORDINARY_TIME: i64 = 1_767_225_600_000_000;

/// Checks a plan whose constants are folded, by [`SessionState::optimize`].
pub(super) fn check(plan: &LogicalPlan, state: &SessionState) -> std::result::Result<(), SqlError> {
    let mut trials = Trials { state, tried: HashSet::new(), refusal: None };
    plan.apply_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        node.apply_expressions(|expr| trials.walk(expr, &schema))?;
        Ok(trials.go_on())
    })?;
    trials.refusal.map_or(Ok(()), Err)
}

/// Sets up each aggregate and window function of a plan, as each execution does.
pub(super) fn check_aggregates(plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
    plan.apply(|node| {
        if let Some(node) = node.downcast_ref::<AggregateExec>() {
            let groups = !node.group_expr().is_true_no_grouping();
            for aggregate in node.aggr_expr() {
                if groups && aggregate.groups_accumulator_supported() {
                    aggregate.create_groups_accumulator()?;
                } else {
                    aggregate.create_accumulator()?;
                }
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

/// Calls that are tried, each once.
struct Trials<'a> {
    state: &'a SessionState,
    tried: HashSet<(Expr, Vec<DataType>)>,
    refusal: Option<SqlError>,
}

impl Trials<'_> {
    fn go_on(&self) -> TreeNodeRecursion {
        match self.refusal {
            Some(_) => TreeNodeRecursion::Stop,
            None => TreeNodeRecursion::Continue,
        }
    }

    /// Looks at the parts of an expression that are computed for every row.
    fn walk(&mut self, expr: &Expr, schema: &DFSchema) -> Result<TreeNodeRecursion> {
        expr.apply(|part| {
            self.look(part, schema)?;
            let Some(first) = computed_first(part) else {
                return Ok(self.go_on());
            };
            for part in first {
                if self.refusal.is_none() {
                    self.walk(part, schema)?;
                }
            }
            Ok(match self.go_on() {
                TreeNodeRecursion::Continue => TreeNodeRecursion::Jump,
                stop => stop,
            })
        })
    }

    fn look(&mut self, expr: &Expr, schema: &DFSchema) -> Result<()> {
        self.refusal = match expr {
            Expr::AggregateFunction(call) => of_sketch(call),
            Expr::ScalarFunction(call)
                if call.func.signature().volatility != Volatility::Volatile =>
            {
                let constant = |operand: &Expr| matches!(operand, Expr::Literal(..));
                // Of arithmetic it is known what it makes of nulls.
                let needed = if whole::is_checked(expr) {
                    call.args.iter().all(constant)
                } else {
                    call.args.iter().any(constant)
                };
                let refusal = if needed { self.trial(call, schema)? } else { None };
                refusal.map(|error| placed(error, std::iter::once(expr)))
            }
            _ => None,
        };
        Ok(())
    }

    /// Computes a call, of whose arguments some are constant, with others in the place of those that are
    /// not; an error where it fails both on nulls and on ordinary values.
    fn trial(&mut self, call: &ScalarFunction, schema: &DFSchema) -> Result<Option<SqlError>> {
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
        let types = fields.iter().map(|field| field.data_type().clone()).collect();
        let tried = Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&call.func), tried));
        if !self.tried.insert((tried.clone(), types)) {
            return Ok(None);
        }
        let rows = Arc::new(Schema::new(fields));
        let columns = DFSchema::try_from(Arc::clone(&rows))?;
        // What cannot even be set up is for the planner to refuse, in its own words.
        let Ok(tried) = self.state.create_physical_expr(tried, &columns) else {
            return Ok(None);
        };
        let compute = |values: Vec<ArrayRef>| -> Result<()> {
            let options = RecordBatchOptions::new().with_row_count(Some(1));
            let row = RecordBatch::try_new_with_options(Arc::clone(&rows), values, &options)?;
            let computed = AssertUnwindSafe(|| tried.evaluate(&row)?.into_array(1).map(drop));
            // A panic over values that no row has says nothing of those that come.
            std::panic::catch_unwind(computed).unwrap_or(Ok(()))
        };
        let nulls = rows.fields().iter().map(|f| new_null_array(f.data_type(), 1)).collect();
        let Err(error) = compute(nulls) else {
            return Ok(None);
        };
        let ordinary: Result<_> = rows.fields().iter().map(|f| ordinary(f.data_type())).collect();
        if ordinary.and_then(compute).is_ok() {
            return Ok(None);
        }
        let error = SqlError::from(error).message;
        let message = match call.func.name() {
            _ if whole::is_checked(&Expr::ScalarFunction(call.clone())) => error,
            name => format!("{name}: {error}"),
        };
        let hint = "it would fail for every row: look at its constants";
        Ok(Some(SqlError::new(message).hint(hint)))
    }
}

/// The parts of an expression that are computed for every row, where others are not.
fn computed_first(expr: &Expr) -> Option<Vec<&Expr>> {
    match expr {
        Expr::Case(case) => {
            let first = case.when_then_expr.first().map(|(when, _)| when.as_ref());
            Some(case.expr.as_deref().into_iter().chain(first).collect())
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And | Operator::Or, .. }) => {
            Some(vec![left])
        }
        Expr::ScalarFunction(call) => {
            call.func.conditional_arguments(&call.args).map(|(first, _)| first)
        }
        _ => None,
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
        ("max(n + (9223372036854775807 + 1))", "`9223372036854775807 + 1`: ", "every row"),
        ("max(n - (-9223372036854775808 * -1))", "does not fit 64 bits", "every row"),
        ("-(-9223372036854775808) + count(*)", "does not fit 64 bits", "every row"),
        ("max(seq - 18446744073709551615)", "18446744073709551615 does not fit", "every row"),
        (
            "max(CASE WHEN date_trunc('fortnight', time) > time THEN 1 END)",
            "date_trunc: ",
            "every row",
        ),
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
        // Nobody knows whether these are ever computed.
        "max(CASE WHEN n > 5 THEN date_trunc('fortnight', time) ELSE time END)",
        "max(CASE n WHEN 1 THEN 1 ELSE 9223372036854775807 + 1 END)",
        "count(*) FILTER (WHERE n > 5 AND date_trunc('fortnight', time) > time)",
        "count(*) FILTER (WHERE n > 5 OR date_trunc('fortnight', time) > time)",
        "max(coalesce(time, date_trunc('fortnight', time)))",
        // What the optimizer leaves out is not computed.
        "count(*) FILTER (WHERE false AND date_trunc('fortnight', time) > time)",
        "max(n + 9223372036854775807)",
        "max(n * 4611686018427387904)",
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
