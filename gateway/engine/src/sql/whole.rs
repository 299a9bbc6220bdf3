//! Arithmetic of whole numbers, with 64 bits and never beyond them.
//!
//! DataFusion computes in the type of the columns, and wraps around without a word: two powers of 40,001 W
//! in registers of 16 bits have the sum 14,466, 1 - 2 is 65,535, and the square of 2^32 is 0. So `+`, `-`,
//! `*` and `-x` are planned as functions of operands that are 64 bits wide with a sign. What does not fit, a
//! number without a sign or a result, is an error that names the expression. [`super::sum`] does the same for
//! sums. It does not know what becomes of the rows; [`super::guarded`] says for which of them is computed.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::compute::kernels::numeric::{add, mul, neg, sub};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, UInt64Type};
use arrow::error::ArrowError;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{
    DFSchema, DataFusionError, Result, ScalarValue, exec_datafusion_err, exec_err,
};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility, binary_expr, cast,
};
use datafusion::physical_expr_common::datum::apply;
use datafusion::sql::sqlparser::ast::BinaryOperator;

/// Plans arithmetic of whole numbers before others plan the operator.
#[derive(Debug)]
pub(super) struct WholeNumbers;

/// The same as versions before did, whose states this one still finishes: operators of 64 bits that wrap
/// around.
#[derive(Debug)]
pub(super) struct Wrapping;

impl ExprPlanner for WholeNumbers {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        let Some((arithmetic, [left, right])) = of_whole_numbers(&expr, schema) else {
            return Ok(PlannerResult::Original(expr));
        };
        let operands = [&expr.left, &expr.right].map(said);
        let text = shortened(format!("{} {} {}", operands[0], arithmetic.sign(), operands[1]));
        let operands = vec![wide(expr.left, &left, &text), wide(expr.right, &right, &text)];
        Ok(PlannerResult::Planned(arithmetic.of(operands, text)))
    }
}

impl ExprPlanner for Wrapping {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        let Some((_, [left, right])) = of_whole_numbers(&expr, schema) else {
            return Ok(PlannerResult::Original(expr));
        };
        let widened = |operand, of: &DataType| match of {
            DataType::Int64 => operand,
            _ => cast(operand, DataType::Int64),
        };
        Ok(PlannerResult::Original(RawBinaryExpr {
            op: expr.op,
            left: widened(expr.left, &left),
            right: widened(expr.right, &right),
        }))
    }
}

/// What is computed, and the types of its operands, where both are whole numbers.
fn of_whole_numbers(
    expr: &RawBinaryExpr,
    schema: &DFSchema,
) -> Option<(Arithmetic, [DataType; 2])> {
    let arithmetic = match expr.op {
        BinaryOperator::Plus => Arithmetic::Add,
        BinaryOperator::Minus => Arithmetic::Subtract,
        BinaryOperator::Multiply => Arithmetic::Multiply,
        _ => return None,
    };
    let types = [expr.left.get_type(schema).ok()?, expr.right.get_type(schema).ok()?];
    types.iter().all(DataType::is_integer).then_some((arithmetic, types))
}

/// An operand that is 64 bits wide with a sign. Only one of 64 bits without may have no place there, and
/// says in which expression.
fn wide(operand: Expr, of: &DataType, text: &str) -> Expr {
    match of {
        DataType::Int64 => operand,
        DataType::UInt64 => Arithmetic::Widen.of(vec![operand], text.to_owned()),
        _ => cast(operand, DataType::Int64),
    }
}

/// An operand as a person would write it.
fn said(operand: &Expr) -> String {
    match (called(operand), operand) {
        (Some((checked, [of])), _) if checked.arithmetic == Arithmetic::Widen => said(of),
        (Some((checked, _)), _) => format!("({})", checked.text),
        (None, Expr::Literal(value, _)) => value.to_string(),
        (None, Expr::Cast(cast)) => said(&cast.expr),
        // It is one of ours only after all else is planned.
        (None, Expr::Negative(of)) => format!("(-{})", said(of)),
        (None, other) => other.schema_name().to_string(),
    }
}

/// Texts are in each message that says them, and each contains those of its operands.
fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(TEXT_MAX) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Characters of an expression in a message.
const TEXT_MAX: usize = 100;

/// The function of ours that an expression calls.
fn called(expr: &Expr) -> Option<(&Checked, &[Expr])> {
    match expr {
        Expr::ScalarFunction(call) => {
            call.func.inner().downcast_ref::<Checked>().map(|checked| (checked, &call.args[..]))
        }
        _ => None,
    }
}

/// Whether an expression is arithmetic of whole numbers, which fails where a result does not fit. It is
/// NULL where an operand is.
pub(super) fn is_checked(expr: &Expr) -> bool {
    called(expr).is_some()
}

/// The same with operators in the place of functions: how versions before named what calls remember.
pub(crate) fn as_operators(expr: Expr) -> Result<Expr> {
    let plain = expr.transform_up(|expr| {
        let operator = match called(&expr) {
            Some((checked, [of])) => match checked.arithmetic {
                Arithmetic::Widen => cast(of.clone(), DataType::Int64),
                _ => Expr::Negative(Box::new(of.clone())),
            },
            Some((checked, [left, right])) => {
                let operator = match checked.arithmetic {
                    Arithmetic::Add => Operator::Plus,
                    Arithmetic::Multiply => Operator::Multiply,
                    _ => Operator::Minus,
                };
                binary_expr(left.clone(), operator, right.clone())
            }
            _ => return Ok(Transformed::no(expr)),
        };
        Ok(Transformed::yes(operator))
    });
    plain.data()
}

/// Plans `-x` of whole numbers, for which planners of expressions are not asked.
pub(super) fn negations(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut any = false;
    plan.apply_with_subqueries(|node| {
        let mut look = |expr: &Expr| Ok(matches!(expr, Expr::Negative(_)));
        for expr in node.expressions() {
            any |= expr.exists(&mut look)?;
        }
        Ok(TreeNodeRecursion::Continue)
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
        Expr::Negative(of) if !is_small(&of) => match of.get_type(schema) {
            Ok(data_type) if data_type.is_signed_integer() => {
                let text = shortened(format!("-{}", said(&of)));
                let operand = wide(*of, &data_type, &text);
                Ok(Transformed::yes(Arithmetic::Negate.of(vec![operand], text)))
            }
            _ => Ok(Transformed::no(Expr::Negative(of))),
        },
        expr => Ok(Transformed::no(expr)),
    })
}

/// Whether it is a constant with a negative; it stays one for those who ask for constants.
fn is_small(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(value, _) if *value != ScalarValue::Int64(Some(i64::MIN)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Negate,
    /// From 64 bits without a sign to 64 bits with one.
    Widen,
}

impl Arithmetic {
    fn of(self, args: Vec<Expr>, text: String) -> Expr {
        let operand = if self == Self::Widen { DataType::UInt64 } else { DataType::Int64 };
        let signature = Signature::exact(vec![operand; args.len()], Volatility::Immutable);
        let function = ScalarUDF::new_from_impl(Checked { arithmetic: self, text, signature });
        Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(function), args))
    }

    /// Before or between its operands.
    fn sign(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract | Self::Negate => "-",
            Self::Multiply => "*",
            Self::Widen => "",
        }
    }
}

/// One operator, by a kernel that looks for results that do not fit.
#[derive(Debug)]
struct Checked {
    arithmetic: Arithmetic,
    /// The expression that a person wrote.
    text: String,
    signature: Signature,
}

/// Calls with equal operands are equal, wherever they stand.
impl PartialEq for Checked {
    fn eq(&self, other: &Self) -> bool {
        self.arithmetic == other.arithmetic
    }
}

impl Eq for Checked {}

impl Hash for Checked {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.arithmetic.hash(state);
    }
}

impl Checked {
    fn failed(&self, error: DataFusionError) -> DataFusionError {
        let DataFusionError::ArrowError(arrow, _) = &error else {
            return error;
        };
        let ArrowError::ArithmeticOverflow(told) = &**arrow else {
            return error;
        };
        let numbers = told.strip_prefix(OVERFLOW).unwrap_or(told);
        exec_datafusion_err!(
            "`{}`: {numbers} does not fit 64 bits; compute with floats, as in CAST(x AS DOUBLE)",
            self.text
        )
    }
}

/// Before the numbers in arrow's message.
const OVERFLOW: &str = "Overflow happened on: ";

fn signed(numbers: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let signed = numbers.as_primitive::<UInt64Type>().try_unary::<_, Int64Type, _>(|number| {
        let told = |_| ArrowError::ArithmeticOverflow(format!("{OVERFLOW}{number}"));
        i64::try_from(number).map_err(told)
    })?;
    Ok(Arc::new(signed))
}

fn apply_to_one(
    operand: &ColumnarValue,
    kernel: impl Fn(&ArrayRef) -> Result<ArrayRef, ArrowError>,
) -> Result<ColumnarValue> {
    Ok(match operand {
        ColumnarValue::Array(array) => ColumnarValue::Array(kernel(array)?),
        ColumnarValue::Scalar(scalar) => {
            let result = kernel(&scalar.to_array()?)?;
            ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?)
        }
    })
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &'static str {
        match self.arithmetic {
            Arithmetic::Add => "add",
            Arithmetic::Subtract => "subtract",
            Arithmetic::Multiply => "multiply",
            Arithmetic::Negate => "negate",
            Arithmetic::Widen => "signed",
        }
    }

    /// The column's name is that of the operator.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let sign = self.arithmetic.sign();
        match args {
            [of] if sign.is_empty() => Ok(of.schema_name().to_string()),
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

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let computed = match (self.arithmetic, args.args.as_slice()) {
            (Arithmetic::Add, [left, right]) => apply(left, right, add),
            (Arithmetic::Subtract, [left, right]) => apply(left, right, sub),
            (Arithmetic::Multiply, [left, right]) => apply(left, right, mul),
            (Arithmetic::Negate, [of]) => apply_to_one(of, |array| neg(array)),
            (Arithmetic::Widen, [of]) => apply_to_one(of, signed),
            (_, operands) => return exec_err!("{} has {} operands", self.name(), operands.len()),
        };
        computed.map_err(|error| self.failed(error))
    }
}

#[cfg(test)]
mod tests;
