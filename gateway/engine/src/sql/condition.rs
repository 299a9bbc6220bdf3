//! Conditions over the columns of a batch: planned once, evaluated as one expression.
//!
//! Promise: a condition looks at one row at a time, names only columns that it was planned with, and
//! gives true or false for each row, in their order; NULL is false. What could touch the clock, the
//! stack or another row is refused when it is planned. It knows neither windows nor sinks.
//! Source: design page "The engine", section A stream.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray};
use arrow::compute::{filter_record_batch, prep_null_mask_filter};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, ExprSchemable, Volatility};
use datafusion::physical_expr::PhysicalExpr;

use super::{Sql, SqlError, end_of, guard, on_a_deep_stack, whole};

/// A planned SQL condition.
#[derive(Debug, Clone)]
pub struct Condition {
    expression: Arc<dyn PhysicalExpr>,
    columns: usize,
}

impl Sql {
    /// Plans a condition, such as `u_l1 > 250`, over rows of `schema`. Blocks for less than a
    /// millisecond and needs no runtime.
    pub fn condition(&self, text: &str, schema: &SchemaRef) -> Result<Condition, SqlError> {
        guard::check(text, false, &|_| 0)?;
        let state = self.bare_state(None)?;
        let expression = on_a_deep_stack(|| {
            let columns = DFSchema::try_from(Arc::clone(schema))?;
            let expr = state.create_logical_expr(text, &columns).map_err(|error| {
                let (error, (line, column)) = (SqlError::from(error), end_of(text));
                if error.message.ends_with("EOF") { error.at(line, column) } else { error }
            })?;
            refuse(&expr)?;
            let expr = whole::negation(expr, &columns)?.data;
            let expression = state.create_physical_expr(expr.clone(), &columns)?;
            match expr.get_type(&columns)? {
                DataType::Boolean => Ok(expression),
                other => Err(SqlError::new(format!("the condition is {other}, not true or false"))
                    .hint("compare something, such as `temperature > 80`")),
            }
        })?;
        Ok(Condition { expression, columns: schema.fields().len() })
    }
}

/// Refuses what is no matter of one row, or would not give the same answer again.
fn refuse(expr: &Expr) -> Result<(), SqlError> {
    let mut what = None;
    expr.apply(|part| {
        what = match part {
            Expr::AggregateFunction(_) => Some("an aggregate"),
            Expr::WindowFunction(_) => Some("OVER (…)"),
            Expr::Exists(_) | Expr::InSubquery(_) | Expr::ScalarSubquery(_) => Some("a subquery"),
            Expr::Placeholder(_) => Some("a parameter"),
            Expr::ScalarFunction(call)
                if call.func.signature().volatility == Volatility::Volatile =>
            {
                Some("a function that remembers other rows")
            }
            _ => return Ok(TreeNodeRecursion::Continue),
        };
        Ok(TreeNodeRecursion::Stop)
    })?;
    match what {
        None => Ok(()),
        Some(what) => Err(SqlError::new(format!("a condition looks at one row: {what} cannot be"))
            .hint("compute it in the stream's `sql` as a column, and name the column here")),
    }
}

impl Condition {
    /// For each row of `batch`, which has the columns of the planning, whether the condition holds.
    /// An error means that it cannot be computed for at least one of the rows.
    ///
    /// # Panics
    /// Where the batch has another number of columns.
    pub fn holds(&self, batch: &RecordBatch) -> Result<BooleanArray, SqlError> {
        assert_eq!(batch.num_columns(), self.columns, "the columns of the planning");
        let evaluated = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let value = self.expression.evaluate(batch)?;
            value.into_array(batch.num_rows())
        }));
        let array = evaluated.unwrap_or_else(|_| {
            Err(datafusion::error::DataFusionError::Execution(
                "DataFusion panicked over these rows; the log has the place".to_owned(),
            ))
        })?;
        match array.as_boolean_opt() {
            Some(holds) if holds.null_count() > 0 => Ok(prep_null_mask_filter(holds)),
            Some(holds) => Ok(holds.clone()),
            None => Err(SqlError::new("the condition gave no true or false")),
        }
    }

    /// The same row by row where the whole cannot be computed: rows for which it cannot are named
    /// by their index, with what failed.
    pub fn holds_each(&self, batch: &RecordBatch) -> (BooleanArray, Vec<(usize, SqlError)>) {
        let whole = match self.holds(batch) {
            Ok(holds) => return (holds, Vec::new()),
            Err(error) => error,
        };
        if batch.num_rows() == 1 {
            return (BooleanArray::from(vec![false]), vec![(0, whole)]);
        }
        let mut failed = Vec::new();
        let holds = (0..batch.num_rows()).map(|row| match self.holds(&batch.slice(row, 1)) {
            Ok(holds) => holds.value(0),
            Err(error) => {
                failed.push((row, error));
                false
            }
        });
        (holds.collect::<Vec<bool>>().into(), failed)
    }
}

/// The rows of a batch that a mask names.
pub fn rows_where(batch: &RecordBatch, mask: &BooleanArray) -> Result<RecordBatch, SqlError> {
    filter_record_batch(batch, mask).map_err(|error| SqlError::new(error.to_string()))
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};

    use super::*;

    fn batch() -> RecordBatch {
        let columns: [(&str, ArrayRef); 3] = [
            ("n", Arc::new(Int64Array::from(vec![Some(1), Some(0), None, Some(4)]))),
            ("v", Arc::new(Float64Array::from(vec![0.5, 1.5, 2.5, -1.0]))),
            ("d", Arc::new(StringArray::from(vec!["a", "b", "a", "b"]))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))
            .unwrap()
    }

    fn plan(text: &str) -> Result<Condition, SqlError> {
        Sql::new(1 << 20).unwrap().condition(text, &batch().schema())
    }

    #[test]
    fn one_line_per_condition() {
        for (text, expected) in [
            ("v > 1", [false, true, true, false]),
            // NULL is neither, and takes no route.
            ("n >= 1", [true, false, false, true]),
            ("n IS NULL", [false, false, true, false]),
            ("d = 'a' AND v < 1", [true, false, false, false]),
            ("d LIKE 'a%' OR n = 4", [true, false, true, true]),
            ("CASE WHEN n IS NULL THEN true ELSE v > 1 END", [false, true, true, false]),
            ("true", [true; 4]),
            ("n BETWEEN 0 AND 1 AND d IN ('a', 'b')", [true, true, false, false]),
            ("abs(v) = 1.0", [false, false, false, true]),
        ] {
            let holds = plan(text).unwrap().holds(&batch()).unwrap();
            assert_eq!(holds, BooleanArray::from(expected.to_vec()), "{text}");
        }
    }

    #[test]
    fn one_line_per_refusal() {
        for (text, message, position) in [
            ("v >", "expression", Some((1, 3))),
            ("v > 1) OR (true", "end of expression", None),
            ("v > 1; DROP TABLE m", "end of expression", None),
            ("w > 1", "No field named w", Some((1, 1))),
            ("n", "Int64, not true or false", None),
            ("sum(v) > 1", "an aggregate", None),
            ("row_number() OVER () > 1", "OVER", None),
            ("n = $1", "a parameter", None),
            ("now() > 1", "`now` is not available", Some((1, 1))),
            ("window_end() > 1", "no meaning without a window", Some((1, 1))),
            ("n IN (SELECT 1)", "a subquery", None),
            ("frist(n) = 1", "frist", None),
        ] {
            let error = plan(text).unwrap_err();
            assert!(error.message.contains(message), "{text}: {}", error.message);
            if position.is_some() {
                assert_eq!(error.position, position, "{text}");
            }
        }
    }

    #[test]
    fn rows_that_fail_are_named_and_the_others_judged() {
        let condition = plan("10 / n > 3").unwrap();
        condition.holds(&batch()).unwrap_err();
        let (holds, failed) = condition.holds_each(&batch());
        // 10/1 = 10; 10/0 fails; NULL; 10/4 = 2.
        assert_eq!(holds, BooleanArray::from(vec![true, false, false, false]));
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].0, 1);
        assert!(failed[0].1.message.contains("ivide by zero"), "{}", failed[0].1.message);
        assert_eq!(rows_where(&batch(), &holds).unwrap().num_rows(), 1);
    }
}
