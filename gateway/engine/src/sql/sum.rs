//! `sum(x)` of whole numbers, exact or an error.
//!
//! Promise: a sum is what it would be on paper, in whatever order and pieces rows are added, or the window
//! fails because it does not fit 64 bits; DataFusion's wraps around without a word. So what is kept between
//! rows has 128 bits, where no number of rows can go beyond, and only the result is looked at. Sums of
//! floats, decimals and spans of time are DataFusion's.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Int64Array, UInt64Array,
};
use datafusion::arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, Field, FieldRef, Int64Type, UInt64Type,
};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, Signature,
};
use datafusion::scalar::ScalarValue;

/// What sums are kept as.
const KEPT: DataType = DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0);

/// The function, in the place of DataFusion's.
pub(super) fn function() -> Arc<AggregateUDF> {
    let plain = sum_udaf();
    let signature = plain.signature().clone();
    Arc::new(AggregateUDF::new_from_impl(Sum { plain, signature }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Sum {
    plain: Arc<AggregateUDF>,
    signature: Signature,
}

/// What a sum is to be.
#[derive(Debug, Clone)]
struct Whole {
    /// `Int64` or `UInt64`.
    result: DataType,
    /// As it stands in the SQL.
    name: String,
}

impl Whole {
    /// `None` where a sum is none of whole numbers.
    fn of(result: &DataType, name: &str) -> Option<Self> {
        matches!(result, DataType::Int64 | DataType::UInt64)
            .then(|| Self { result: result.clone(), name: name.to_owned() })
    }

    fn too_large(&self, sum: i128) -> DataFusionError {
        let name = self.name.replace("datafusion.public.", "");
        exec_datafusion_err!(
            "`{name}`: {sum} does not fit 64 bits; sum floats, as in sum(CAST(x AS DOUBLE))"
        )
    }

    fn array(&self, sums: impl Iterator<Item = Option<i128>>) -> Result<ArrayRef> {
        Ok(if self.result == DataType::UInt64 {
            let fit = |sum| u64::try_from(sum).map_err(|_| self.too_large(sum));
            Arc::new(sums.map(|sum| sum.map(fit).transpose()).collect::<Result<UInt64Array>>()?)
        } else {
            let fit = |sum| i64::try_from(sum).map_err(|_| self.too_large(sum));
            Arc::new(sums.map(|sum| sum.map(fit).transpose()).collect::<Result<Int64Array>>()?)
        })
    }

    fn scalar(&self, sum: Option<i128>) -> Result<ScalarValue> {
        ScalarValue::try_from_array(&self.array(std::iter::once(sum))?, 0)
    }
}

impl AggregateUDFImpl for Sum {
    fn name(&self) -> &str {
        self.plain.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.plain.return_type(types)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match Whole::of(args.return_type(), args.name) {
            Some(whole) if args.is_distinct => {
                Ok(Box::new(Distinct { whole, sum: 0, counts: HashMap::new() }))
            }
            Some(whole) => Ok(Box::new(Single { whole, sum: 0, count: 0 })),
            None => self.plain.accumulator(args),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match Whole::of(args.return_type(), args.name) {
            Some(_) => self.accumulator(args),
            None => self.plain.create_sliding_accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        match Whole::of(args.return_type(), args.name) {
            Some(_) if !args.is_distinct => {
                Ok(vec![Arc::new(Field::new(format!("{}[sum]", args.name), KEPT, true))])
            }
            _ => self.plain.state_fields(args),
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.plain.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        match Whole::of(args.return_type(), args.name) {
            Some(whole) => Ok(Box::new(Sums { whole, totals: Vec::new(), seen: Vec::new() })),
            None => self.plain.create_groups_accumulator(args),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

/// Calls `add` with the row and the number of each row that has one and passes the filter.
fn each(
    values: &ArrayRef,
    filter: Option<&BooleanArray>,
    mut add: impl FnMut(usize, i128),
) -> Result<()> {
    // The arrays' kinds are told apart here, so that the loops over rows know theirs.
    macro_rules! rows {
        ($of:ty) => {{
            let values = values.as_primitive::<$of>();
            if values.null_count() == 0 && filter.is_none() {
                for (row, value) in values.values().iter().enumerate() {
                    add(row, i128::from(*value));
                }
                return Ok(());
            }
            for row in 0..values.len() {
                let kept = filter.is_none_or(|f| !f.is_null(row) && f.value(row));
                if kept && !values.is_null(row) {
                    add(row, i128::from(values.value(row)));
                }
            }
        }};
    }
    match values.data_type() {
        DataType::Int64 => rows!(Int64Type),
        DataType::UInt64 => rows!(UInt64Type),
        DataType::Decimal128(..) => rows!(Decimal128Type),
        other => return exec_err!("sum was given {other}"),
    }
    Ok(())
}

fn kept(sums: impl Iterator<Item = Option<i128>>) -> ArrayRef {
    Arc::new(sums.collect::<Decimal128Array>().with_data_type(KEPT))
}

/// The sums of all groups.
#[derive(Debug)]
struct Sums {
    whole: Whole,
    totals: Vec<i128>,
    /// Which groups have a number.
    seen: Vec<bool>,
}

impl Sums {
    fn add(
        &mut self,
        values: &ArrayRef,
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        if self.totals.len() < count {
            self.totals.resize(count, 0);
            self.seen.resize(count, false);
        }
        let (sums, seen) = (&mut self.totals, &mut self.seen);
        each(values, filter, |row, number| {
            let group = groups[row];
            sums[group] += number;
            seen[group] = true;
        })
    }

    fn take(&mut self, emit_to: EmitTo) -> impl Iterator<Item = Option<i128>> + use<> {
        let (sums, seen) =
            (emit_to.take_needed(&mut self.totals), emit_to.take_needed(&mut self.seen));
        sums.into_iter().zip(seen).map(|(sum, seen)| seen.then_some(sum))
    }
}

impl GroupsAccumulator for Sums {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.add(&values[0], group_indices, opt_filter, total_num_groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let sums = self.take(emit_to);
        self.whole.array(sums)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![kept(self.take(emit_to))])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.add(&values[0], group_indices, None, total_num_groups)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let mut states = vec![None; values[0].len()];
        each(&values[0], opt_filter, |row, number| states[row] = Some(number))?;
        Ok(vec![kept(states.into_iter())])
    }

    fn size(&self) -> usize {
        self.totals.capacity() * size_of::<i128>() + self.seen.capacity()
    }
}

/// The same over one group, from which rows may be taken away again.
#[derive(Debug)]
struct Single {
    whole: Whole,
    sum: i128,
    count: u64,
}

impl Single {
    fn sum(&self) -> Option<i128> {
        (self.count > 0).then_some(self.sum)
    }
}

impl Accumulator for Single {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        each(&values[0], None, |_, number| {
            self.sum += number;
            self.count += 1;
        })
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.whole.scalar(self.sum())
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![ScalarValue::Decimal128(self.sum(), DECIMAL128_MAX_PRECISION, 0)])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        each(&values[0], None, |_, number| {
            self.sum -= number;
            self.count -= 1;
        })
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }
}

/// The sum of the numbers that there are, each once however many rows have it.
#[derive(Debug)]
struct Distinct {
    whole: Whole,
    sum: i128,
    /// How many rows have a number.
    counts: HashMap<i128, u64>,
}

impl Accumulator for Distinct {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        each(&values[0], None, |_, number| {
            let count = self.counts.entry(number).or_default();
            if *count == 0 {
                self.sum += number;
            }
            *count += 1;
        })
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.whole.scalar((!self.counts.is_empty()).then_some(self.sum))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.capacity() * (size_of::<(i128, u64)>() + 1)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let numbers = self.whole.array(self.counts.keys().map(|number| Some(*number)))?;
        Ok(vec![SingleRowListArrayBuilder::new(numbers).build_list_scalar()])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let mut lists = states[0].as_list::<i32>().iter().flatten();
        lists.try_for_each(|numbers| self.update_batch(&[numbers]))
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        each(&values[0], None, |_, number| {
            if let Entry::Occupied(mut count) = self.counts.entry(number) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                    self.sum -= number;
                }
            }
        })
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
    use arrow::util::display::array_value_to_string;

    use super::super::{Sql, SqlError, TableSchema};
    use super::*;
    use crate::window::Bounds;

    /// Rows of two devices with numbers with and without a sign.
    fn rows(numbers: &[(&str, Option<i64>, u64)]) -> RecordBatch {
        let times = TimestampMicrosecondArray::from_iter_values((0..).take(numbers.len()));
        let columns: [(&str, ArrayRef); 4] = [
            ("time", Arc::new(times.with_timezone("UTC"))),
            ("device", Arc::new(StringArray::from_iter_values(numbers.iter().map(|r| r.0)))),
            ("n", Arc::new(numbers.iter().map(|r| r.1).collect::<Int64Array>())),
            ("u", Arc::new(UInt64Array::from_iter_values(numbers.iter().map(|r| r.2)))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true))).unwrap()
    }

    async fn compute(sql: &str, batch: RecordBatch) -> Result<Vec<String>, SqlError> {
        let (name, time_column) = ("m".to_owned(), "time".to_owned());
        let table = TableSchema { name, schema: batch.schema(), time_column };
        let mut query = Sql::new(1 << 20).unwrap().plan(sql, &[table], true)?;
        let bounds = Some(Bounds { start: 0, end: 10 });
        let mut lines = Vec::new();
        for batch in query.execute(vec![vec![batch]], bounds).await? {
            for row in 0..batch.num_rows() {
                let cells = batch.columns().iter().map(|c| array_value_to_string(c, row).unwrap());
                lines.push(cells.collect::<Vec<_>>().join(" "));
            }
        }
        Ok(lines)
    }

    #[tokio::test]
    async fn a_sum_is_exact_or_an_error() {
        const MOST: i64 = i64::MAX;
        let fits =
            || rows(&[("a", Some(MOST), 1), ("b", None, 2), ("a", Some(2), 3), ("a", Some(-2), 4)]);
        for (sql, expected) in [
            // On the way it was beyond 64 bits.
            ("SELECT sum(n), sum(u) FROM m", vec!["9223372036854775807 10"]),
            (
                "SELECT device, sum(n), sum(u) FROM m GROUP BY device ORDER BY device",
                vec!["a 9223372036854775807 8", "b  2"],
            ),
            ("SELECT sum(n) FILTER (WHERE n < 9) FROM m", vec!["0"]),
            ("SELECT sum(n) FROM m WHERE n = 7", vec![""]),
            ("SELECT sum(DISTINCT u) FROM m", vec!["10"]),
            // Two DISTINCT beside each other are not made groups; `u` is 1, 2, 3, 4.
            (
                "SELECT sum(DISTINCT CAST(u AS BIGINT) % 2), sum(DISTINCT n), sum(DISTINCT u) FROM m",
                vec!["1 9223372036854775807 10"],
            ),
            ("SELECT sum(DISTINCT n), count(DISTINCT u) FROM m WHERE n = 7", vec![" 0"]),
            (
                "SELECT sum(DISTINCT CAST(u AS BIGINT) % 3) \
                 OVER (ORDER BY time ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) FROM m",
                // 1; 1 and 2; 1, 2 and 0; 1 twice, 2 and 0.
                vec!["1", "3", "3", "3"],
            ),
            (
                "SELECT sum(DISTINCT u / u) OVER (ORDER BY time ROWS 1 PRECEDING) FROM m",
                vec!["1", "1", "1", "1"],
            ),
            (
                "SELECT sum(DISTINCT u) OVER (ORDER BY time ROWS 1 PRECEDING) FROM m",
                vec!["1", "3", "5", "7"],
            ),
            ("SELECT sum(CAST(n AS DOUBLE)) / 9223372036854775807.0 FROM m", vec!["1.0"]),
            // A frame from which rows leave; over none of them there is none.
            (
                "SELECT sum(n) OVER (ORDER BY time ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING) FROM m",
                vec!["", "9223372036854775807", "", "2"],
            ),
        ] {
            assert_eq!(compute(sql, fits()).await.unwrap(), expected, "{sql}");
        }
        let high = |n| rows(&[("a", Some(n), u64::MAX), ("a", Some(1), 1)]);
        for (sql, sum) in [
            ("SELECT sum(n) FROM m", "9223372036854775808"),
            ("SELECT device, sum(n) FROM m GROUP BY device", "9223372036854775808"),
            ("SELECT sum(u) FROM m", "18446744073709551616"),
            ("SELECT sum(n) OVER (ORDER BY time) FROM m", "9223372036854775808"),
            ("SELECT sum(DISTINCT n), count(DISTINCT u) FROM m", "9223372036854775808"),
        ] {
            let error = compute(sql, high(MOST)).await.unwrap_err();
            let advice = "sum floats, as in sum(CAST(x AS DOUBLE))";
            let (name, told) = error.message.split_once("`: ").unwrap();
            assert_eq!(told, format!("{sum} does not fit 64 bits; {advice}"), "{sql}");
            assert!(name.starts_with("`sum(") && name.contains("m."), "{sql}: {name}");
        }
        assert_eq!(
            compute("SELECT sum(n) FROM m", high(MOST - 1)).await.unwrap(),
            [MOST.to_string()]
        );
    }
}
