//! `first(x [, time])` and `last(x [, time])`: the first and last value that is not null.
//!
//! With one argument the order is that of the rows: a window's rows of one table come sorted by
//! event time, rows of equal time in arrival order. Over a join or a union, or to go by another
//! time, name the time column as second argument: `last(x, t)` is the x at the greatest t, of equal
//! t the row that comes later; rows whose x or t is null do not count. NULL where no row counts.
//! State: the value and its time, so that states merge in time order.

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, new_empty_array,
};
use datafusion::arrow::compute::{cast, not, nullif, prep_null_mask_filter};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, TypeSignature, Volatility,
};
use datafusion::scalar::ScalarValue;

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Edge {
    last: bool,
    signature: Signature,
}

impl Edge {
    pub(super) fn new(last: bool) -> Self {
        let signatures = vec![TypeSignature::Any(1), TypeSignature::Any(2)];
        Self { last, signature: Signature::one_of(signatures, Volatility::Immutable) }
    }

    fn groups(&self, args: &AccumulatorArgs) -> Groups {
        Groups {
            last: self.last,
            timed: args.exprs.len() == 2,
            data_type: args.return_field.data_type().clone(),
            values: Vec::new(),
            times: Vec::new(),
            picked: Vec::new(),
            touched: Vec::new(),
        }
    }
}

impl AggregateUDFImpl for Edge {
    fn name(&self) -> &str {
        if self.last { "last" } else { "first" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        match args {
            [value] | [value, DataType::Timestamp(_, _)] => Ok(value.clone()),
            [_, time] => plan_err!("{}(x, time): time is {time}, not a timestamp", self.name()),
            _ => plan_err!("{}(x [, time]) takes one or two arguments", self.name()),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let mut groups = self.groups(&args);
        groups.grow(1)?;
        Ok(Box::new(Single { groups }))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let value = args.return_field.as_ref().clone();
        Ok(vec![
            value.with_name(format!("{}[value]", args.name)).with_nullable(true).into(),
            Field::new(format!("{}[time]", args.name), DataType::Int64, true).into(),
        ])
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(self.groups(&args)))
    }
}

const NONE: usize = usize::MAX;

/// One value and its time per group. `times` stays `None` where there is no value yet, and is 0
/// throughout where the order is that of the rows.
#[derive(Debug)]
struct Groups {
    last: bool,
    timed: bool,
    data_type: DataType,
    values: Vec<ScalarValue>,
    times: Vec<Option<i64>>,
    /// Scratch: which row of the present batch each group takes; `NONE` between batches.
    picked: Vec<usize>,
    touched: Vec<usize>,
}

impl Groups {
    fn grow(&mut self, groups: usize) -> Result<()> {
        if self.values.len() < groups {
            self.values.resize(groups, ScalarValue::try_from(&self.data_type)?);
            self.times.resize(groups, None);
            self.picked.resize(groups, NONE);
        }
        Ok(())
    }

    fn takes(&self, group: usize, time: i64) -> bool {
        match self.times[group] {
            None => true,
            Some(held) if self.last => time >= held,
            Some(held) => time < held,
        }
    }

    /// Picks rows first and copies one value per touched group, not one per row.
    fn pick(
        &mut self,
        values: &ArrayRef,
        times: Option<&Int64Array>,
        group_of: impl Fn(usize) -> usize,
        filter: Option<&BooleanArray>,
    ) -> Result<()> {
        for row in 0..values.len() {
            let skipped = filter.is_some_and(|f| f.is_null(row) || !f.value(row));
            if skipped || values.is_null(row) || times.is_some_and(|t| t.is_null(row)) {
                continue;
            }
            let group = group_of(row);
            let time = times.map_or(0, |t| t.value(row));
            if self.takes(group, time) {
                if self.picked[group] == NONE {
                    self.touched.push(group);
                }
                self.picked[group] = row;
                self.times[group] = Some(time);
            }
        }
        for group in self.touched.drain(..) {
            let row = std::mem::replace(&mut self.picked[group], NONE);
            self.values[group] = ScalarValue::try_from_array(values, row)?;
        }
        Ok(())
    }

    fn times_of(&self, args: &[ArrayRef]) -> Result<Option<Int64Array>> {
        if !self.timed {
            return Ok(None);
        }
        let Some(times) = args.get(1) else {
            return exec_err!("first/last lacks its time");
        };
        Ok(Some(cast(times, &DataType::Int64)?.as_primitive::<Int64Type>().clone()))
    }

    fn emit(&mut self, emit_to: EmitTo) -> Result<(ArrayRef, Int64Array)> {
        let values = emit_to.take_needed(&mut self.values);
        let times = emit_to.take_needed(&mut self.times);
        self.picked.truncate(self.values.len());
        let array = if values.is_empty() {
            new_empty_array(&self.data_type)
        } else {
            ScalarValue::iter_to_array(values)?
        };
        Ok((array, Int64Array::from(times)))
    }
}

impl GroupsAccumulator for Groups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups)?;
        let times = self.times_of(values)?;
        self.pick(&values[0], times.as_ref(), |row| group_indices[row], opt_filter)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        Ok(self.emit(emit_to)?.0)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (values, times) = self.emit(emit_to)?;
        Ok(vec![values, std::sync::Arc::new(times)])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups)?;
        let times = values[1].as_primitive::<Int64Type>().clone();
        self.pick(&values[0], Some(&times), |row| group_indices[row], None)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let times = match self.times_of(values)? {
            Some(times) => times,
            None => Int64Array::from(vec![0; values[0].len()]),
        };
        let times: ArrayRef = std::sync::Arc::new(times);
        match opt_filter {
            None => Ok(vec![values[0].clone(), times]),
            Some(filter) => {
                // A condition that is null counts as false.
                let out = match filter.null_count() {
                    0 => not(filter)?,
                    _ => not(&prep_null_mask_filter(filter))?,
                };
                Ok(vec![nullif(&values[0], &out)?, nullif(&times, &out)?])
            }
        }
    }

    fn size(&self) -> usize {
        self.values.capacity() * size_of::<ScalarValue>()
            + self.times.capacity() * size_of::<Option<i64>>()
            + (self.picked.capacity() + self.touched.capacity()) * size_of::<usize>()
    }
}

/// The same over one group.
#[derive(Debug)]
struct Single {
    groups: Groups,
}

impl Accumulator for Single {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let times = self.groups.times_of(values)?;
        self.groups.pick(&values[0], times.as_ref(), |_| 0, None)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.groups.values[0].clone())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.groups.size() + self.groups.values[0].size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.groups.values[0].clone(), ScalarValue::Int64(self.groups.times[0])])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let times = states[1].as_primitive::<Int64Type>().clone();
        self.groups.pick(&states[0], Some(&times), |_| 0, None)
    }
}
