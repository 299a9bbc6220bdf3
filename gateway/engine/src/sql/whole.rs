//! Arithmetic of whole numbers, with 64 bits and never beyond them.
//!
//! DataFusion computes in the type of the columns, and wraps around without a word: two powers of 40,001 W
//! in registers of 16 bits have the sum 14,466, 1 - 2 is 65,535, and the square of 2^32 is 0. So `+`, `-` and
//! `*` are planned as functions of operands that are 64 bits wide with a sign. What does not fit, a number
//! without a sign or a result, fails the row, which is counted. [`super::sum`] does the same for sums.

use arrow::compute::kernels::numeric::{add, mul, neg, sub};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result, exec_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility, cast,
};
use datafusion::physical_expr_common::datum::apply;
use datafusion::sql::sqlparser::ast::BinaryOperator;
use std::sync::Arc;

/// Plans arithmetic of whole numbers before others plan the operator.
#[derive(Debug)]
pub(super) struct WholeNumbers;

impl ExprPlanner for WholeNumbers {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        let arithmetic = match expr.op {
            BinaryOperator::Plus => Arithmetic::Add,
            BinaryOperator::Minus => Arithmetic::Subtract,
            BinaryOperator::Multiply => Arithmetic::Multiply,
            _ => return Ok(PlannerResult::Original(expr)),
        };
        let types = (expr.left.get_type(schema), expr.right.get_type(schema));
        let (Ok(left), Ok(right)) = types else {
            return Ok(PlannerResult::Original(expr));
        };
        if !left.is_integer() || !right.is_integer() {
            return Ok(PlannerResult::Original(expr));
        }
        let operands = vec![wide(expr.left, &left), wide(expr.right, &right)];
        Ok(PlannerResult::Planned(arithmetic.of(operands)))
    }
}

fn wide(operand: Expr, of: &DataType) -> Expr {
    match of {
        DataType::Int64 => operand,
        _ => cast(operand, DataType::Int64),
    }
}

/// Plans `-x` of whole numbers, for which planners of expressions are not asked.
pub(super) fn negations(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut any = false;
    plan.apply_with_subqueries(|node| {
        let mut look = |expr: &Expr| Ok(matches!(expr, Expr::Negative(_)));
        for expr in node.expressions() {
            any |= expr.exists(&mut look)?;
        }
        Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
    })?;
    if !any {
        return Ok(plan);
    }
    plan.transform_up_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        let node = node.map_expressions(|expr| negation(expr, &schema)).data()?;
        // The columns that come from below may be wider than they were.
        Ok(Transformed::yes(node.recompute_schema()?))
    })
    .data()
}

/// The same in one expression over rows of `schema`.
pub(super) fn negation(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    expr.transform_up(|expr| match expr {
        Expr::Negative(of) if !matches!(*of, Expr::Literal(..)) => match of.get_type(schema) {
            Ok(data_type) if data_type.is_signed_integer() => {
                Ok(Transformed::yes(Arithmetic::Negate.of(vec![wide(*of, &data_type)])))
            }
            _ => Ok(Transformed::no(Expr::Negative(of))),
        },
        expr => Ok(Transformed::no(expr)),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Negate,
}

impl Arithmetic {
    fn of(self, args: Vec<Expr>) -> Expr {
        let types = vec![DataType::Int64; args.len()];
        let signature = Signature::exact(types, Volatility::Immutable);
        let function = ScalarUDF::new_from_impl(Checked { arithmetic: self, signature });
        Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(function), args))
    }

    /// Between its operands.
    fn sign(self) -> char {
        match self {
            Self::Add => '+',
            Self::Subtract | Self::Negate => '-',
            Self::Multiply => '*',
        }
    }
}

/// One operator, by a kernel that looks for results that do not fit.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Checked {
    arithmetic: Arithmetic,
    signature: Signature,
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &'static str {
        match self.arithmetic {
            Arithmetic::Add => "add",
            Arithmetic::Subtract => "subtract",
            Arithmetic::Multiply => "multiply",
            Arithmetic::Negate => "negate",
        }
    }

    /// The column's name is that of the operator.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let sign = self.arithmetic.sign();
        match args {
            [of] => Ok(format!("({sign} {})", of.schema_name())),
            [left, right] => Ok(format!("{} {sign} {}", left.schema_name(), right.schema_name())),
            _ => exec_err!("`{sign}` has {} operands", args.len()),
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), DataType::Int64, nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let kernel = match (self.arithmetic, args.args.as_slice()) {
            (Arithmetic::Negate, [of]) => {
                let negated = neg(&of.to_array(args.number_rows)?)?;
                return Ok(ColumnarValue::Array(negated));
            }
            (Arithmetic::Add, [_, _]) => add,
            (Arithmetic::Subtract, [_, _]) => sub,
            (Arithmetic::Multiply, [_, _]) => mul,
            (_, operands) => return exec_err!("{} has {} operands", self.name(), operands.len()),
        };
        apply(&args.args[0], &args.args[1], kernel)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        Array, ArrayRef, Int16Array, Int64Array, StringArray, TimestampMicrosecondArray,
        UInt16Array, UInt32Array, UInt64Array,
    };
    use arrow::record_batch::RecordBatch;
    use arrow::util::display::array_value_to_string;

    use super::super::{Sql, TableSchema};
    use crate::window::Bounds;

    /// A register of each kind, of which little arithmetic fits the kind.
    fn registers() -> RecordBatch {
        let columns: [(&str, ArrayRef); 9] = [
            ("time", Arc::new(TimestampMicrosecondArray::from(vec![1]).with_timezone("UTC"))),
            ("device", Arc::new(StringArray::from(vec!["m"]))),
            ("a", Arc::new(UInt16Array::from(vec![40_000]))),
            ("b", Arc::new(UInt16Array::from(vec![40_001]))),
            ("i", Arc::new(Int16Array::from(vec![i16::MIN]))),
            ("u", Arc::new(UInt32Array::from(vec![4_000_000_000]))),
            ("w", Arc::new(UInt64Array::from(vec![7]))),
            ("huge", Arc::new(UInt64Array::from(vec![u64::MAX]))),
            ("most", Arc::new(Int64Array::from(vec![i64::MAX]))),
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
            // -(-32,768) is no number of 16 bits.
            ("-i", "32768"),
            ("-(i + 1)", "32767"),
            ("- -most", "9223372036854775807"),
            ("-most - 1", "-9223372036854775808"),
            ("most + a - a - 1", "overflow"),
            ("most - a + a", "9223372036854775807"),
            ("-(-most - 1)", "overflow"),
            // 2^63 - 2, and one more than there is.
            ("(most - 1) / 2 * 2", "9223372036854775806"),
            ("((most - 1) / 2 + 1) * 2", "overflow"),
            ("most * most", "overflow"),
            ("-most - 2", "overflow"),
        ] {
            if result == "overflow" {
                let error = compute(what, false).await.unwrap_err();
                assert!(error.to_lowercase().contains("overflow"), "{what}: {error}");
                continue;
            }
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
        let sql = "SELECT (a - b) * 2, -i, sum(-i * 3) FROM m GROUP BY a, b, i";
        let query = Sql::new(1 << 20).unwrap().plan(
            sql,
            &[TableSchema {
                name: "m".to_owned(),
                schema: registers().schema(),
                time_column: "time".to_owned(),
            }],
            true,
        );
        let schema = query.unwrap().schema();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        // As DataFusion calls them.
        assert_eq!(names, ["m.a - m.b * Int64(2)", "(- m.i)", "sum((- m.i) * Int64(3))"]);
    }
}
