//! `histogram(x, low, high, buckets)`: how many values lie in each of `buckets` equal parts of
//! `[low, high)`.
//!
//! Promise: the result is a list of `buckets + 2` counts: the first counts values below `low`, the
//! last those at or above `high`; a value on an edge belongs to the bucket that begins there. Null
//! and NaN are left out; over no values all counts are 0. States are the counts, which add.
//! Source: the form of the result is that of TimescaleDB's `histogram`.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, ListArray, PrimitiveArray,
};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Float64Type, Int64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility,
};
use datafusion::scalar::ScalarValue;

/// Most buckets between `low` and `high`.
pub(super) const BUCKETS_MAX: usize = 1000;

/// The type of the result.
pub(super) fn counts_type() -> DataType {
    DataType::List(Arc::new(Field::new_list_field(DataType::Int64, false)))
}

/// Into which parts values are sorted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Buckets {
    pub(super) low: f64,
    pub(super) high: f64,
    /// At least 1, at most [`BUCKETS_MAX`].
    pub(super) count: usize,
}

impl Buckets {
    fn width(self) -> usize {
        self.count + 2
    }

    /// The edge on which bucket `at` of `count` begins.
    fn edge(self, at: usize) -> f64 {
        self.low + (self.high - self.low) * (at as f64 / self.count as f64)
    }

    fn bucket_of(self, value: f64) -> usize {
        if value < self.low {
            return 0;
        }
        if value >= self.high {
            return self.count + 1;
        }
        // By the edges themselves, so that rounding cannot put a value beside its bucket.
        let (mut below, mut above) = (0, self.count);
        while above - below > 1 {
            let middle = below.midpoint(above);
            if self.edge(middle) <= value {
                below = middle;
            } else {
                above = middle;
            }
        }
        below + 1
    }
}

/// The aggregate over the values alone; its buckets were read from the SQL and are in its name, so
/// that two histograms of one column are not taken for one.
#[derive(Debug, PartialEq)]
pub(super) struct Histogram {
    name: String,
    buckets: Buckets,
    signature: Signature,
}

impl Histogram {
    pub(super) fn new(buckets: Buckets) -> Self {
        let Buckets { low, high, count } = buckets;
        let name = format!("histogram:{count} from {low} to {high}");
        Self { name, buckets, signature: Signature::any(1, Volatility::Immutable) }
    }

    fn counts(&self) -> Counts {
        Counts { buckets: self.buckets, counts: Vec::new() }
    }
}

// Its numbers are finite.
impl Eq for Histogram {}

impl Hash for Histogram {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl AggregateUDFImpl for Histogram {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(counts_type())
    }

    fn accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let mut counts = self.counts();
        counts.grow(1);
        Ok(Box::new(Single { counts }))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        Ok(vec![Arc::new(Field::new(format!("{}[counts]", args.name), counts_type(), true))])
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(self.counts()))
    }
}

/// The counts of all groups, one group after the other.
#[derive(Debug)]
struct Counts {
    buckets: Buckets,
    counts: Vec<i64>,
}

impl Counts {
    fn grow(&mut self, groups: usize) {
        let length = groups * self.buckets.width();
        if self.counts.len() < length {
            self.counts.resize(length, 0);
        }
    }

    fn add(
        &mut self,
        values: &ArrayRef,
        group_of: impl Fn(usize) -> usize,
        filter: Option<&BooleanArray>,
    ) -> Result<()> {
        let values = numbers(values)?;
        for row in 0..values.len() {
            let kept = filter.is_none_or(|f| !f.is_null(row) && f.value(row));
            if kept && !values.is_null(row) && !values.value(row).is_nan() {
                let bucket = self.buckets.bucket_of(values.value(row));
                self.counts[group_of(row) * self.buckets.width() + bucket] += 1;
            }
        }
        Ok(())
    }

    fn merge(&mut self, states: &ArrayRef, group_of: impl Fn(usize) -> usize) -> Result<()> {
        let states = states.as_list::<i32>();
        for row in (0..states.len()).filter(|row| !states.is_null(*row)) {
            let state = states.value(row);
            let state = state.as_primitive::<Int64Type>();
            if state.len() != self.buckets.width() {
                return exec_err!("a histogram's state has other buckets");
            }
            let start = group_of(row) * self.buckets.width();
            for (count, more) in self.counts[start..].iter_mut().zip(state.values()) {
                *count += more;
            }
        }
        Ok(())
    }

    fn emit(&mut self, emit_to: EmitTo) -> ListArray {
        let width = self.buckets.width();
        let counts = match emit_to {
            EmitTo::All => std::mem::take(&mut self.counts),
            EmitTo::First(groups) => self.counts.drain(..groups * width).collect(),
        };
        lists(width, counts)
    }
}

fn numbers(values: &ArrayRef) -> Result<PrimitiveArray<Float64Type>> {
    Ok(cast(values, &DataType::Float64)?.as_primitive::<Float64Type>().clone())
}

fn lists(width: usize, counts: Vec<i64>) -> ListArray {
    let offsets = OffsetBuffer::from_repeated_length(width, counts.len() / width);
    let field = Arc::new(Field::new_list_field(DataType::Int64, false));
    ListArray::new(field, offsets, Arc::new(Int64Array::from(counts)), None)
}

impl GroupsAccumulator for Counts {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups);
        self.add(&values[0], |row| group_indices[row], opt_filter)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        Ok(Arc::new(self.emit(emit_to)))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![Arc::new(self.emit(emit_to))])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups);
        self.merge(&values[0], |row| group_indices[row])
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let mut each = Self { buckets: self.buckets, counts: Vec::new() };
        each.grow(values[0].len());
        each.add(&values[0], |row| row, opt_filter)?;
        Ok(vec![Arc::new(each.emit(EmitTo::All))])
    }

    fn size(&self) -> usize {
        self.counts.capacity() * size_of::<i64>()
    }
}

/// The same over one group.
#[derive(Debug)]
struct Single {
    counts: Counts,
}

impl Single {
    fn counts(&self) -> ScalarValue {
        ScalarValue::List(Arc::new(lists(self.counts.buckets.width(), self.counts.counts.clone())))
    }
}

impl Accumulator for Single {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.counts.add(&values[0], |_| 0, None)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.counts())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.counts()])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.counts.merge(&states[0], |_| 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_on_edges_belong_to_the_bucket_that_begins_there() {
        let five = Buckets { low: 0.0, high: 10.0, count: 5 };
        for (value, bucket) in [
            (-0.1, 0),
            (f64::NEG_INFINITY, 0),
            (0.0, 1),
            (1.9, 1),
            (2.0, 2),
            (7.999, 4),
            (8.0, 5),
            (9.999, 5),
            (10.0, 6),
            (f64::INFINITY, 6),
        ] {
            assert_eq!(five.bucket_of(value), bucket, "{value}");
        }
        // 0.3 is less than three times 0.1 as floats; each edge is in its own bucket.
        let tenths = Buckets { low: 0.0, high: 1.0, count: 10 };
        for at in 0..10 {
            assert_eq!(tenths.bucket_of(tenths.edge(at)), at + 1, "edge {at}");
        }
        assert_eq!(Buckets { low: 5.0, high: 6.0, count: 1 }.bucket_of(5.5), 1);
    }
}
