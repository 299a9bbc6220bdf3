//! The functions as SQL texts name them, until [`rewrite`](super::rewrite) puts operators in their
//! place.
//!
//! Promise: they give the planner a name and a result type. None of them is ever run; one that
//! stands where it cannot be replaced is refused.

use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::datatypes::FieldRef;
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

use super::histogram;

/// Functions over time, and the histogram: aggregates whose constants are read from the SQL.
pub(super) const AGGREGATES: [&str; 6] =
    ["time_weighted_avg", "integral", "counter_delta", "rate", "duration_where", HISTOGRAM];
pub(super) const HISTOGRAM: &str = "histogram";

/// Functions that remember the rows before.
pub(super) const KEEPING: [&str; 3] = ["changed", "deadband", "hysteresis"];

pub(super) fn aggregates() -> impl Iterator<Item = AggregateUDF> {
    AGGREGATES.into_iter().map(|name| {
        let signature = Signature::variadic_any(Volatility::Immutable);
        AggregateUDF::new_from_impl(Asked { name, signature })
    })
}

pub(super) fn keeping() -> impl Iterator<Item = ScalarUDF> {
    KEEPING.into_iter().map(|name| {
        // Volatile, so that no two calls are taken for one and none is computed beforehand.
        let signature = Signature::variadic_any(Volatility::Volatile);
        ScalarUDF::new_from_impl(Asked { name, signature })
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Asked {
    name: &'static str,
    signature: Signature,
}

impl Asked {
    fn misplaced<T>(&self) -> Result<T> {
        plan_err!("`{}` cannot stand here", self.name)
    }
}

impl AggregateUDFImpl for Asked {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(match (self.name, arguments) {
            (HISTOGRAM, _) => histogram::counts_type(),
            ("counter_delta", [of, ..]) if of.is_unsigned_integer() => DataType::UInt64,
            ("counter_delta", [of, ..]) if of.is_signed_integer() => DataType::Int64,
            _ => DataType::Float64,
        })
    }

    fn accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.misplaced()
    }

    fn state_fields(&self, _: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.misplaced()
    }
}

impl ScalarUDFImpl for Asked {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.misplaced()
    }
}
