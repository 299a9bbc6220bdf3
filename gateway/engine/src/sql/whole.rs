//! Arithmetic of whole numbers that are narrower than 64 bits, with 64 bits.
//!
//! DataFusion computes in the type of the columns, and wraps around without a word: two powers of 40,001 W
//! in registers of 16 bits have the sum 14,466, and 1 - 2 is 65,535. So the operands of `+`, `-` and `*` are
//! made 64 bits wide with a sign where the SQL is planned. A number without a sign that does not fit fails
//! the row, which is counted; results beyond 64 bits wrap still.

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{Expr, ExprSchemable, cast};
use datafusion::sql::sqlparser::ast::BinaryOperator;

/// Widens operands before others plan the operator.
#[derive(Debug)]
pub(super) struct WholeNumbers;

impl ExprPlanner for WholeNumbers {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        let arithmetic = matches!(
            expr.op,
            BinaryOperator::Plus | BinaryOperator::Minus | BinaryOperator::Multiply
        );
        // A column of an outer query is not in the schema.
        let types = (expr.left.get_type(schema), expr.right.get_type(schema));
        let (Ok(left), Ok(right)) = types else {
            return Ok(PlannerResult::Original(expr));
        };
        if !arithmetic || !left.is_integer() || !right.is_integer() {
            return Ok(PlannerResult::Original(expr));
        }
        let wide = |operand: Expr, of: &DataType| match of {
            DataType::Int64 => operand,
            _ => cast(operand, DataType::Int64),
        };
        Ok(PlannerResult::Original(RawBinaryExpr {
            op: expr.op,
            left: wide(expr.left, &left),
            right: wide(expr.right, &right),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        Array, ArrayRef, Int16Array, StringArray, TimestampMicrosecondArray, UInt16Array,
        UInt32Array, UInt64Array,
    };
    use arrow::record_batch::RecordBatch;
    use arrow::util::display::array_value_to_string;

    use super::super::{Sql, TableSchema};
    use crate::window::Bounds;

    /// A register of each kind, of which little arithmetic fits the kind.
    fn registers() -> RecordBatch {
        let columns: [(&str, ArrayRef); 8] = [
            ("time", Arc::new(TimestampMicrosecondArray::from(vec![1]).with_timezone("UTC"))),
            ("device", Arc::new(StringArray::from(vec!["m"]))),
            ("a", Arc::new(UInt16Array::from(vec![40_000]))),
            ("b", Arc::new(UInt16Array::from(vec![40_001]))),
            ("i", Arc::new(Int16Array::from(vec![i16::MIN]))),
            ("u", Arc::new(UInt32Array::from(vec![4_000_000_000]))),
            ("w", Arc::new(UInt64Array::from(vec![7]))),
            ("huge", Arc::new(UInt64Array::from(vec![u64::MAX]))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true))).unwrap()
    }

    async fn compute(what: &str, windowed: bool) -> Result<String, String> {
        let rows = registers();
        let (name, time_column) = ("m".to_owned(), "time".to_owned());
        let table = TableSchema { name, schema: rows.schema(), time_column };
        let sql = Sql::new(1 << 20).unwrap();
        let text = format!("SELECT {what} AS x FROM m");
        let mut query = sql.plan(&text, &[table], windowed).map_err(|e| e.message)?;
        let bounds = windowed.then_some(Bounds { start: 0, end: 10 });
        let result = query.execute(vec![vec![rows]], bounds).await.map_err(|e| e.message)?;
        let column = result[0].column(0);
        Ok(if column.is_null(0) {
            "null".to_owned()
        } else {
            array_value_to_string(column, 0).unwrap()
        })
    }

    #[tokio::test]
    async fn small_registers_do_not_wrap() {
        for (what, result) in [
            ("a + b", "80001"),
            ("a - b", "-1"),
            ("a * b", "1600040000"),
            ("i * i", "1073741824"),
            ("i - a", "-72768"),
            ("u + u + a", "8000040000"),
            ("w - u", "-3999999993"),
            ("w - 8", "-1"),
            ("a * 10 + 1", "400001"),
            ("(a + b) * 0.5", "40000.5"),
            ("a / 7", "5714"),
            ("a % 7", "2"),
            ("huge", "18446744073709551615"),
        ] {
            assert_eq!(compute(what, false).await.as_deref(), Ok(result), "{what}");
        }
        assert_eq!(compute("sum(a + b)", true).await.as_deref(), Ok("80001"));
        assert_eq!(compute("sum(i * 2)", true).await.as_deref(), Ok("-65536"));
        // What does not fit is told, and not made another number.
        compute("huge + 1", false).await.unwrap_err();
    }

    /// Columns keep the names that they would have.
    #[test]
    fn names_stay() {
        let table = TableSchema {
            name: "m".to_owned(),
            schema: registers().schema(),
            time_column: "time".to_owned(),
        };
        let query =
            Sql::new(1 << 20).unwrap().plan("SELECT a + b FROM m", &[table], false).unwrap();
        assert_eq!(query.schema().field(0).name(), "m.a + m.b");
    }
}
