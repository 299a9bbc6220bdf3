//! What stands in the calls of our functions, read and judged when the SQL is planned.
//!
//! Promise: whatever is wrong with a call is said in one sentence with what would be right, by
//! `tidegate check` as well as at the start; a text that is an option is a constant.

use std::fmt::Display;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::diagnostic::Diagnostic;
use datafusion::common::{DFSchema, DataFusionError, Result, Span};
use datafusion::logical_expr::{Cast, Expr, ExprSchemable};
use datafusion::scalar::ScalarValue;

use super::finish::Ending;
use super::histogram::{BUCKETS_MAX, Buckets};
use super::remember::Function;
use super::spans::Summed;

/// An error with its hint, as [`SqlError`](crate::SqlError) takes it apart.
pub(super) fn refuse(message: impl Display, hint: impl Display) -> DataFusionError {
    DataFusionError::Plan(format!("{message}\n{hint}"))
}

/// A function over time: what is summed, what comes of it, and its value and time.
pub(super) type OverTime = (Summed, Ending, [Expr; 2]);

const MINUTE: f64 = 60e6;
const HOUR: f64 = 3600e6;

/// How each function is called.
pub(super) fn form(name: &str) -> &'static str {
    match name {
        "time_weighted_avg" => "time_weighted_avg(x, time [, 'last' | 'linear'])",
        "integral" => "integral(x, time [, 's' | 'min' | 'h'] [, 'last' | 'linear'])",
        "counter_delta" => "counter_delta(x [, time] [, wrap])",
        "rate" => "rate(x, time [, wrap])",
        "duration_where" => "duration_where(condition, time)",
        "histogram" => "histogram(x, low, high, buckets)",
        "changed" => "changed(x)",
        "deadband" => "deadband(x, band [, 'abs' | 'pct'])",
        "hysteresis" => "hysteresis(x, low, high)",
        _ => "json_get(text, path)",
    }
}

/// The arguments of one call.
pub(super) struct Arguments<'a> {
    pub(super) name: &'a str,
    pub(super) given: &'a [Expr],
    pub(super) schema: &'a DFSchema,
}

impl Arguments<'_> {
    /// Reads a call of a function over time.
    pub(super) fn over_time(&self) -> Result<OverTime> {
        let value = self.at(0)?;
        let value_type = value.get_type(self.schema)?;
        if self.name == "duration_where" {
            if !matches!(value_type, DataType::Boolean | DataType::Null) {
                return Err(self.wrong(format!("the condition is {value_type}")));
            }
            self.at_most(2)?;
            let value = as_type(value, DataType::Boolean);
            return Ok((Summed::Held, Ending::PerUnit(1e6), [value, self.time(1)?]));
        }
        if !value_type.is_numeric() && !value_type.is_null() {
            return Err(self.wrong(format!("x is {value_type}, not a number")));
        }
        if self.name == "counter_delta" || self.name == "rate" {
            return self.counter(value, &value_type);
        }
        let (mut unit, mut linear) = (None, None);
        for at in 2..self.given.len() {
            let word = self.word(at)?;
            let fits = match word.as_str() {
                "s" if self.name == "integral" => unit.replace(1e6).is_none(),
                "min" if self.name == "integral" => unit.replace(MINUTE).is_none(),
                "h" if self.name == "integral" => unit.replace(HOUR).is_none(),
                "last" => linear.replace(false).is_none(),
                "linear" => linear.replace(true).is_none(),
                _ => false,
            };
            if !fits {
                return Err(self.wrong(format!("'{word}' is not an option")));
            }
        }
        let summed = Summed::Weighed { linear: linear == Some(true) };
        let ending = match self.name {
            "integral" => Ending::PerUnit(unit.unwrap_or(1e6)),
            _ => Ending::Average,
        };
        Ok((summed, ending, [as_type(value, DataType::Float64), self.time(1)?]))
    }

    fn counter(&self, value: Expr, value_type: &DataType) -> Result<OverTime> {
        let delta = self.name == "counter_delta";
        let second = self.given.get(1).map(|e| e.get_type(self.schema)).transpose()?;
        let timed = !delta || matches!(second, Some(DataType::Timestamp(..)));
        let (time, next) = if timed { (self.time(1)?, 2) } else { (self.row_time()?, 1) };
        self.at_most(next + 1)?;
        let wrap = match self.given.get(next) {
            None => None,
            Some(wrap) => Some(self.wrap(wrap, value_type)?),
        };
        let exact = value_type.is_integer();
        let value = if exact { value } else { as_type(value, DataType::Float64) };
        let ending = if delta {
            Ending::Growth { exact, signed: !value_type.is_unsigned_integer() }
        } else {
            Ending::Rate
        };
        Ok((Summed::Grown { exact, wrap }, ending, [value, time]))
    }

    /// Where a counter starts anew, as both kinds of amounts.
    fn wrap(&self, wrap: &Expr, counter: &DataType) -> Result<(f64, i128)> {
        let number = number(wrap).filter(|number| *number > 0.0 && number.is_finite());
        let Some(number) = number else {
            return Err(self.wrong(format!("`wrap` is {wrap}, not a number above 0")));
        };
        if counter.is_integer() && number.fract() != 0.0 {
            let message = format!("`wrap` is {number}, not a whole number, and x is {counter}");
            return Err(self.wrong(message));
        }
        // Numbers of counters are far below 2^127, and a float of that size is whole.
        let exact =
            ScalarValue::Float64(Some(number.round())).cast_to(&DataType::Decimal128(38, 0));
        match exact {
            Ok(ScalarValue::Decimal128(Some(exact), ..)) => Ok((number, exact)),
            _ => Err(self.wrong(format!("`wrap` is {wrap}, which is too large"))),
        }
    }

    /// Reads the constants of a histogram; its value comes first.
    pub(super) fn histogram(&self) -> Result<(Buckets, Expr)> {
        let value = self.at(0)?;
        let value_type = value.get_type(self.schema)?;
        if !value_type.is_numeric() && !value_type.is_null() {
            return Err(self.wrong(format!("x is {value_type}, not a number")));
        }
        self.at_most(4)?;
        let constant = |at: usize, what: &str| {
            let given = self.at(at)?;
            let finite = number(&given).filter(|number| number.is_finite());
            finite.ok_or_else(|| self.wrong(format!("`{what}` is {given}, not a constant number")))
        };
        let (low, high) = (constant(1, "low")?, constant(2, "high")?);
        let buckets = constant(3, "buckets")?;
        if low >= high {
            return Err(
                self.wrong(format!("`low` is {low}, not less than `high`, which is {high}"))
            );
        }
        // A whole number is equal to itself as a text, and no other number is.
        let count = buckets.to_string().parse().ok().filter(|n| (1..=BUCKETS_MAX).contains(n));
        let Some(count) = count else {
            let message = format!("`buckets` is {buckets}, not a whole number up to {BUCKETS_MAX}");
            return Err(self.wrong(message));
        };
        Ok((Buckets { low, high, count }, as_type(value, DataType::Float64)))
    }

    /// Reads a call of a function that remembers.
    pub(super) fn keeping(&self) -> Result<(Function, Vec<Expr>)> {
        let value = self.at(0)?;
        let value_type = value.get_type(self.schema)?;
        if self.name == "changed" {
            self.at_most(1)?;
            let bytes = matches!(
                value_type,
                DataType::Binary | DataType::LargeBinary | DataType::BinaryView
            );
            if value_type.is_nested() || bytes {
                return Err(self.wrong(format!("x is {value_type}, which cannot be compared")));
            }
            return Ok((Function::Changed, vec![value]));
        }
        self.at_most(3)?;
        let names =
            if self.name == "deadband" { &["x", "band"][..] } else { &["x", "low", "high"] };
        let mut numbers = Vec::new();
        for (at, what) in names.iter().enumerate() {
            let given = self.at(at)?;
            let data_type = given.get_type(self.schema)?;
            if !data_type.is_numeric() && !data_type.is_null() {
                return Err(self.wrong(format!("{what} is {data_type}, not a number")));
            }
            if at > 0 && constant(&given).is_some() && !number(&given).is_some_and(f64::is_finite) {
                // Nothing is above, below or near it.
                return Err(self.wrong(format!("{what} is {given}, not a number")));
            }
            numbers.push(as_type(given, DataType::Float64));
        }
        if self.name == "hysteresis" {
            if let (Some(low), Some(high)) = (number(&self.given[1]), number(&self.given[2]))
                && low > high
            {
                return Err(self.wrong(format!("`low` is {low}, above `high`, which is {high}")));
            }
            return Ok((Function::Hysteresis, numbers));
        }
        if let Some(band) = number(&self.given[1]).filter(|band| *band < 0.0) {
            return Err(self.wrong(format!("the band is {band}, less than 0")));
        }
        let percent = match self.given.get(2) {
            None => false,
            Some(_) => match self.word(2)?.as_str() {
                "abs" => false,
                "pct" => true,
                other => return Err(self.wrong(format!("'{other}' is not an option"))),
            },
        };
        Ok((Function::Deadband { percent }, numbers))
    }

    /// Judges the path of a `json_get`.
    pub(super) fn json(&self) -> Result<()> {
        self.at(1)?;
        let path = super::json::parse(&self.word(1)?);
        path.map(drop).map_err(|what| self.wrong(format!("the path cannot be read: {what}")))
    }

    fn wrong(&self, what: impl Display) -> DataFusionError {
        let message = format!("{}: {what}", self.name);
        // The call itself has no place in the text, but the columns in it do.
        let place = self.given.iter().find_map(place_of);
        refuse(&message, format!("write {}", form(self.name)))
            .with_diagnostic(Diagnostic::new_error(message, place))
    }

    fn at(&self, at: usize) -> Result<Expr> {
        let given = self.given.get(at).cloned();
        given.ok_or_else(|| self.wrong("an argument is missing"))
    }

    fn at_most(&self, most: usize) -> Result<()> {
        if self.given.len() <= most {
            return Ok(());
        }
        Err(self.wrong("an argument too many"))
    }

    fn word(&self, at: usize) -> Result<String> {
        let given = self.at(at)?;
        match constant(&given).and_then(ScalarValue::try_as_str) {
            Some(Some(word)) => Ok(word.to_owned()),
            _ => Err(self.wrong(format!("{given} is not a constant text"))),
        }
    }

    fn time(&self, at: usize) -> Result<Expr> {
        let time = self.at(at)?;
        match time.get_type(self.schema)? {
            DataType::Timestamp(..) => Ok(time),
            other => Err(self.wrong(format!("time is {other}, not a timestamp"))),
        }
    }

    /// The column `time` of the rows.
    fn row_time(&self) -> Result<Expr> {
        let columns: Vec<_> = self
            .schema
            .iter()
            .filter(|(_, field)| {
                field.name() == "time" && matches!(field.data_type(), DataType::Timestamp(..))
            })
            .collect();
        match columns.as_slice() {
            [column] => Ok(Expr::Column((*column).into())),
            [] => Err(self.wrong("the rows have no column `time`")),
            _ => Err(self.wrong("the rows have several columns `time`")),
        }
    }
}

/// Where the first column of an expression stands in the SQL text.
pub(super) fn place_of(expr: &Expr) -> Option<Span> {
    expr.column_refs().iter().filter_map(|column| column.spans.first()).min()
}

fn as_type(expr: Expr, data_type: DataType) -> Expr {
    Expr::Cast(Cast::new(Box::new(expr), data_type))
}

fn constant(expr: &Expr) -> Option<&ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Some(value),
        Expr::Cast(cast) => constant(&cast.expr),
        _ => None,
    }
}

pub(super) fn number(expr: &Expr) -> Option<f64> {
    if let Expr::Negative(inner) = expr {
        return number(inner).map(|number| -number);
    }
    match constant(expr)?.cast_to(&DataType::Float64) {
        Ok(ScalarValue::Float64(number)) => number,
        _ => None,
    }
}
