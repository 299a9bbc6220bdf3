//! `good_ratio(x)`: which share of the rows has a value, from 0 to 1; NULL over no rows.
//! `good_count(x)`: how many rows have one; 0 over no rows.
//!
//! A point that could not be read is null, so the ratio says how far an aggregate of the point can
//! be trusted. State: two counts, which add.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, UInt64Array,
};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, UInt64Type};
use datafusion::common::Result;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility,
};
use datafusion::scalar::ScalarValue;

/// What is told of the rows that have a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Told {
    Ratio,
    Count,
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Good {
    told: Told,
    signature: Signature,
}

impl Good {
    pub(super) fn new(told: Told) -> Self {
        Self { told, signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl AggregateUDFImpl for Good {
    fn name(&self) -> &'static str {
        match self.told {
            Told::Ratio => "good_ratio",
            Told::Count => "good_count",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(match self.told {
            Told::Ratio => DataType::Float64,
            Told::Count => DataType::Int64,
        })
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        match self.told {
            Told::Ratio => ScalarValue::try_from(data_type),
            Told::Count => Ok(ScalarValue::Int64(Some(0))),
        }
    }

    fn accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Single { told: self.told, tally: Tally::default() }))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let field = |part: &str| {
            Arc::new(Field::new(format!("{}[{part}]", args.name), DataType::UInt64, true))
        };
        Ok(vec![field("good"), field("rows")])
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(Tallies { told: self.told, tallies: Vec::new() }))
    }
}

fn present(values: &ArrayRef, row: usize) -> bool {
    !values.is_null(row)
}

fn sum(counts: &ArrayRef) -> u64 {
    counts.as_primitive::<UInt64Type>().iter().flatten().sum()
}

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    good: u64,
    rows: u64,
}

impl Tally {
    fn ratio(self) -> Option<f64> {
        (self.rows > 0).then(|| self.good as f64 / self.rows as f64)
    }

    fn count(self) -> i64 {
        i64::try_from(self.good).unwrap_or(i64::MAX)
    }
}

#[derive(Debug)]
struct Single {
    told: Told,
    tally: Tally,
}

impl Accumulator for Single {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.tally.rows += values[0].len() as u64;
        self.tally.good += (values[0].len() - values[0].null_count()) as u64;
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(match self.told {
            Told::Ratio => ScalarValue::Float64(self.tally.ratio()),
            Told::Count => ScalarValue::Int64(Some(self.tally.count())),
        })
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let Tally { good, rows } = self.tally;
        Ok(vec![ScalarValue::UInt64(Some(good)), ScalarValue::UInt64(Some(rows))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.tally.good += sum(&states[0]);
        self.tally.rows += sum(&states[1]);
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.tally.rows -= values[0].len() as u64;
        self.tally.good -= (values[0].len() - values[0].null_count()) as u64;
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Tallies {
    told: Told,
    tallies: Vec<Tally>,
}

impl Tallies {
    fn grow(&mut self, groups: usize) {
        if self.tallies.len() < groups {
            self.tallies.resize(groups, Tally::default());
        }
    }
}

impl GroupsAccumulator for Tallies {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups);
        for (row, &group) in group_indices.iter().enumerate() {
            if opt_filter.is_none_or(|f| !f.is_null(row) && f.value(row)) {
                self.tallies[group].rows += 1;
                self.tallies[group].good += u64::from(present(&values[0], row));
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let tallies = emit_to.take_needed(&mut self.tallies);
        Ok(match self.told {
            Told::Ratio => {
                Arc::new(tallies.into_iter().map(Tally::ratio).collect::<Float64Array>())
            }
            Told::Count => {
                Arc::new(Int64Array::from_iter_values(tallies.into_iter().map(Tally::count)))
            }
        })
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let tallies = emit_to.take_needed(&mut self.tallies);
        let column = |count: fn(&Tally) -> u64| {
            Arc::new(tallies.iter().map(count).collect::<UInt64Array>()) as ArrayRef
        };
        Ok(vec![column(|t| t.good), column(|t| t.rows)])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups);
        let (good, rows) =
            (values[0].as_primitive::<UInt64Type>(), values[1].as_primitive::<UInt64Type>());
        for (row, &group) in group_indices.iter().enumerate() {
            self.tallies[group].good += good.value(row);
            self.tallies[group].rows += rows.value(row);
        }
        Ok(())
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let counts = |take: &dyn Fn(usize) -> bool| {
            let column: UInt64Array = (0..values[0].len())
                .map(|row| {
                    let kept = opt_filter.is_none_or(|f| !f.is_null(row) && f.value(row));
                    u64::from(kept && take(row))
                })
                .collect();
            Arc::new(column) as ArrayRef
        };
        Ok(vec![counts(&|row| present(&values[0], row)), counts(&|_| true)])
    }

    fn size(&self) -> usize {
        self.tallies.capacity() * size_of::<Tally>()
    }
}
