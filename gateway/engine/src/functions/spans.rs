//! The aggregate below all functions over time: the samples of a group as one span.
//!
//! Promise: within one execution rows may come in any order of their time argument, of equal times
//! the later row counts as later; states merge in order of time. A state is the first sample, the
//! last and the sum between them, so it does not grow. Rows whose value or time is null, NaN or
//! infinite are left out. States whose times overlap cannot be merged and are refused, not guessed
//! at. It does not know what held before the window; [`finish`](super::finish) does.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, Int64Array, PrimitiveArray,
    StructArray,
};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{
    DataType, Decimal128Type, Field, FieldRef, Fields, Float64Type, Int64Type, TimeUnit,
    TimestampMicrosecondType,
};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility,
};
use datafusion::scalar::ScalarValue;

use super::bounds::BoundsCell;
use super::span::{Amount, Rule, Sample, Span};

/// An amount as Arrow keeps it.
pub(super) trait Kept: Amount + 'static {
    type Arrow: ArrowPrimitiveType<Native = Self>;
    const DATA_TYPE: DataType;
}

impl Kept for f64 {
    type Arrow = Float64Type;
    const DATA_TYPE: DataType = DataType::Float64;
}

impl Kept for i128 {
    type Arrow = Decimal128Type;
    const DATA_TYPE: DataType = DataType::Decimal128(38, 0);
}

/// What is summed, for both kinds of amounts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Summed {
    /// Value times time, as floats.
    Weighed { linear: bool },
    /// Time during which a condition held, exact.
    Held,
    /// Growth of a counter: floats, or exact; where it starts anew, as both.
    Grown { exact: bool, wrap: Option<(f64, i128)> },
}

impl Summed {
    pub(super) fn exact(self) -> bool {
        matches!(self, Self::Held | Self::Grown { exact: true, .. })
    }

    pub(super) fn float_rule(self) -> Rule<f64> {
        match self {
            Self::Weighed { linear: true } => Rule::Linear,
            Self::Weighed { linear: false } | Self::Held => Rule::Hold,
            Self::Grown { wrap, .. } => Rule::Growth(wrap.map(|wrap| wrap.0)),
        }
    }

    pub(super) fn exact_rule(self) -> Rule<i128> {
        match self {
            Self::Weighed { linear: true } => Rule::Linear,
            Self::Weighed { linear: false } | Self::Held => Rule::Hold,
            Self::Grown { wrap, .. } => Rule::Growth(wrap.map(|wrap| wrap.1)),
        }
    }

    fn in_words(self) -> String {
        match self {
            Self::Weighed { linear: false } => "last".into(),
            Self::Weighed { linear: true } => "linear".into(),
            Self::Held => "held".into(),
            Self::Grown { wrap: None, .. } => "growth".into(),
            Self::Grown { wrap: Some((wrap, _)), .. } => format!("growth below {wrap}"),
        }
    }

    fn amounts(self) -> DataType {
        if self.exact() { i128::DATA_TYPE } else { f64::DATA_TYPE }
    }

    /// The aggregate's result: the span, and the last sample before the next window starts.
    pub(super) fn result_type(self) -> DataType {
        let amount = self.amounts();
        let field = |name: &str, data_type: &DataType| Field::new(name, data_type.clone(), true);
        let time = DataType::Int64;
        DataType::Struct(Fields::from(vec![
            field("first_time", &time),
            field("first", &amount),
            field("last_time", &time),
            field("last", &amount),
            field("sum", &amount),
            field("kept_time", &time),
            field("kept", &amount),
        ]))
    }
}

/// The aggregate, under the name of the function that it computes and what is summed: optimizers
/// take calls of one name with equal arguments for one.
#[derive(Debug)]
pub(super) struct Spans {
    name: String,
    summed: Summed,
    cell: Arc<BoundsCell>,
    signature: Signature,
}

impl Spans {
    pub(super) fn new(function: &str, summed: Summed, cell: &Arc<BoundsCell>) -> Self {
        let name = format!("{function}:{}", summed.in_words());
        let signature = Signature::any(2, Volatility::Immutable);
        Self { name, summed, cell: Arc::clone(cell), signature }
    }

    fn float_groups(&self) -> Groups<f64> {
        Groups::new(self.summed.float_rule(), &self.cell)
    }

    fn exact_groups(&self) -> Groups<i128> {
        Groups::new(self.summed.exact_rule(), &self.cell)
    }
}

impl PartialEq for Spans {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.summed == other.summed
            && Arc::ptr_eq(&self.cell, &other.cell)
    }
}

impl Eq for Spans {}

impl Hash for Spans {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        Arc::as_ptr(&self.cell).hash(state);
    }
}

impl AggregateUDFImpl for Spans {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.summed.result_type())
    }

    fn accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(if self.summed.exact() {
            Box::new(Single::new(self.exact_groups()))
        } else {
            Box::new(Single::new(self.float_groups()))
        })
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let field = |part: &str, data_type: &DataType| {
            Arc::new(Field::new(format!("{}[{part}]", args.name), data_type.clone(), true))
        };
        let (time, amount) = (DataType::Int64, self.summed.amounts());
        Ok(vec![
            field("first_time", &time),
            field("first", &amount),
            field("last_time", &time),
            field("last", &amount),
            field("sum", &amount),
        ])
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(if self.summed.exact() {
            Box::new(self.exact_groups())
        } else {
            Box::new(self.float_groups())
        })
    }
}

/// One group, folded.
#[derive(Debug, Clone, Copy)]
struct Folded<T> {
    span: Option<Span<T>>,
    /// The last sample before the next window starts, of which the next one must know.
    kept: Option<Sample<T>>,
}

/// The samples (or spans of samples) of all groups until they are asked for.
#[derive(Debug)]
struct Groups<T> {
    rule: Rule<T>,
    cell: Arc<BoundsCell>,
    count: usize,
    /// As they came. Folding waits, because a row that comes later may lie before.
    parts: Vec<(usize, Span<T>)>,
    /// No part begins before the one that came before it.
    in_order: bool,
}

impl<T: Kept> Groups<T> {
    fn new(rule: Rule<T>, cell: &Arc<BoundsCell>) -> Self {
        Self { rule, cell: Arc::clone(cell), count: 0, parts: Vec::new(), in_order: true }
    }

    fn push(&mut self, group: usize, span: Span<T>) {
        let latest = self.parts.last().map(|(_, span)| span.first.time);
        self.in_order &= latest.is_none_or(|latest| latest <= span.first.time);
        self.parts.push((group, span));
    }

    fn update(
        &mut self,
        values: &[ArrayRef],
        group_of: impl Fn(usize) -> usize,
        filter: Option<&BooleanArray>,
    ) -> Result<()> {
        let samples = Samples::<T>::of(values)?;
        for row in 0..samples.values.len() {
            if filter.is_none_or(|f| !f.is_null(row) && f.value(row))
                && let Some(sample) = samples.at(row)
            {
                self.push(group_of(row), Span::of(sample));
            }
        }
        Ok(())
    }

    fn merge(&mut self, states: &[ArrayRef], group_of: impl Fn(usize) -> usize) {
        let (first_time, last_time) =
            (states[0].as_primitive::<Int64Type>(), states[2].as_primitive::<Int64Type>());
        let [first, last, sum] = [1, 3, 4].map(|at: usize| states[at].as_primitive::<T::Arrow>());
        for row in (0..first_time.len()).filter(|row| !first_time.is_null(*row)) {
            let span = Span {
                first: Sample { time: first_time.value(row), value: first.value(row) },
                last: Sample { time: last_time.value(row), value: last.value(row) },
                sum: sum.value(row),
            };
            self.push(group_of(row), span);
        }
    }

    /// Takes out the first groups, each as one span.
    fn fold(&mut self, emit_to: EmitTo) -> Result<Vec<Folded<T>>> {
        let count = match emit_to {
            EmitTo::All => self.count,
            EmitTo::First(count) => count,
        };
        let mut parts = std::mem::take(&mut self.parts);
        if !self.in_order {
            parts.sort_by_key(|(_, span)| span.first.time);
        }
        let next_start = self.cell.next_start();
        let mut folded = vec![Folded { span: None, kept: None }; count];
        for (group, part) in parts {
            let Some(place) = folded.get_mut(group) else {
                self.parts.push((group - count, part));
                continue;
            };
            place.span = match place.span {
                None => Some(part),
                Some(held) => match held.then(self.rule, part) {
                    None => return exec_err!("{OVERLAP}"),
                    all => all,
                },
            };
            if next_start.is_some_and(|start| part.last.time < start) {
                place.kept = Some(part.last);
            }
        }
        self.in_order = true;
        self.count -= count;
        Ok(folded)
    }

    fn bytes(&self) -> usize {
        self.parts.capacity() * size_of::<(usize, Span<T>)>()
    }
}

const OVERLAP: &str = "a function over time was given parts of a window whose times overlap; its \
                       time argument must be the time that the window goes by";

/// Rows as samples.
struct Samples<T: Kept> {
    values: PrimitiveArray<T::Arrow>,
    times: PrimitiveArray<TimestampMicrosecondType>,
}

impl<T: Kept> Samples<T> {
    fn of(arguments: &[ArrayRef]) -> Result<Self> {
        let [values, times, ..] = arguments else {
            return exec_err!("a function over time lacks its time");
        };
        // A condition counts as 1 where it holds.
        let values = match values.data_type() {
            DataType::Boolean => cast(&cast(values, &DataType::Int64)?, &T::DATA_TYPE)?,
            _ => cast(values, &T::DATA_TYPE)?,
        };
        let zone = match times.data_type() {
            DataType::Timestamp(_, zone) => zone.clone(),
            _ => None,
        };
        let times = cast(times, &DataType::Timestamp(TimeUnit::Microsecond, zone))?;
        Ok(Self {
            values: values.as_primitive::<T::Arrow>().clone(),
            times: times.as_primitive::<TimestampMicrosecondType>().clone(),
        })
    }

    fn at(&self, row: usize) -> Option<Sample<T>> {
        let value = (!self.values.is_null(row) && !self.times.is_null(row))
            .then(|| self.values.value(row))
            .filter(|value| value.counts())?;
        Some(Sample { time: self.times.value(row), value })
    }
}

fn times<'a, T: Copy + 'a>(samples: impl Iterator<Item = Option<Sample<T>>> + 'a) -> ArrayRef {
    Arc::new(samples.map(|sample| sample.map(|s| s.time)).collect::<Int64Array>())
}

fn amounts<T: Kept>(amounts: impl Iterator<Item = Option<T>>) -> ArrayRef {
    let array: PrimitiveArray<T::Arrow> = amounts.collect();
    Arc::new(array.with_data_type(T::DATA_TYPE))
}

fn states<T: Kept>(spans: &[Option<Span<T>>]) -> Vec<ArrayRef> {
    let first = || spans.iter().map(|span| span.map(|span| span.first));
    let last = || spans.iter().map(|span| span.map(|span| span.last));
    vec![
        times(first()),
        amounts(first().map(|sample| sample.map(|s| s.value))),
        times(last()),
        amounts(last().map(|sample| sample.map(|s| s.value))),
        amounts(spans.iter().map(|span| span.map(|span| span.sum))),
    ]
}

fn results<T: Kept>(summed: &DataType, folded: &[Folded<T>]) -> Result<ArrayRef> {
    let spans: Vec<Option<Span<T>>> = folded.iter().map(|group| group.span).collect();
    let mut columns = states(&spans);
    let kept = || folded.iter().map(|group| group.kept);
    columns.push(times(kept()));
    columns.push(amounts(kept().map(|sample| sample.map(|s| s.value))));
    let DataType::Struct(fields) = summed else {
        return exec_err!("the result of a function over time is no struct");
    };
    let known: NullBuffer = spans.iter().map(Option::is_some).collect();
    Ok(Arc::new(StructArray::try_new(fields.clone(), columns, Some(known))?))
}

impl<T: Kept> Groups<T> {
    fn result_type() -> DataType {
        let exact = T::DATA_TYPE == i128::DATA_TYPE;
        Summed::Grown { exact, wrap: None }.result_type()
    }
}

impl<T: Kept> GroupsAccumulator for Groups<T> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.count = self.count.max(total_num_groups);
        self.update(values, |row| group_indices[row], opt_filter)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        results(&Self::result_type(), &self.fold(emit_to)?)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let folded = self.fold(emit_to)?;
        Ok(states(&folded.iter().map(|group| group.span).collect::<Vec<_>>()))
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.count = self.count.max(total_num_groups);
        self.merge(values, |row| group_indices[row]);
        Ok(())
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let samples = Samples::<T>::of(values)?;
        let spans: Vec<Option<Span<T>>> = (0..samples.values.len())
            .map(|row| {
                let kept = opt_filter.is_none_or(|f| !f.is_null(row) && f.value(row));
                if kept { samples.at(row).map(Span::of) } else { None }
            })
            .collect();
        Ok(states(&spans))
    }

    fn size(&self) -> usize {
        self.bytes()
    }
}

/// The same over one group.
#[derive(Debug)]
struct Single<T> {
    groups: Groups<T>,
}

impl<T: Kept> Single<T> {
    fn new(mut groups: Groups<T>) -> Self {
        groups.count = 1;
        Self { groups }
    }
}

impl<T: Kept> Accumulator for Single<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.groups.update(values, |_| 0, None)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let result = results(&Groups::<T>::result_type(), &self.groups.fold(EmitTo::All)?)?;
        ScalarValue::try_from_array(&result, 0)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.groups.bytes()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let folded = self.groups.fold(EmitTo::All)?;
        let columns = states(&[folded[0].span]);
        columns.iter().map(|column| ScalarValue::try_from_array(column, 0)).collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.groups.merge(states, |_| 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Float64Array, TimestampMicrosecondArray};

    use super::*;

    fn columns(rows: &[(i64, f64)]) -> Vec<ArrayRef> {
        vec![
            Arc::new(rows.iter().map(|row| Some(row.1)).collect::<Float64Array>()),
            Arc::new(rows.iter().map(|row| Some(row.0)).collect::<TimestampMicrosecondArray>()),
        ]
    }

    fn groups() -> Groups<f64> {
        Groups::new(Rule::Hold, &Arc::default())
    }

    #[test]
    fn parts_whose_times_overlap_are_refused() {
        let part = |rows: &[(i64, f64)]| {
            let mut part = Single::new(groups());
            part.update_batch(&columns(rows)).unwrap();
            part
        };
        for (times, overlap) in [((3, 9), true), ((5, 9), false), ((7, 9), false)] {
            let mut whole = part(&[(1, 1.0), (5, 1.0)]);
            let mut other = part(&[(times.0, 1.0), (times.1, 1.0)]);
            let states = other.state().unwrap();
            let states: Vec<ArrayRef> = states.iter().map(|s| s.to_array().unwrap()).collect();
            whole.merge_batch(&states).unwrap();
            match whole.evaluate() {
                Err(error) => assert!(overlap && error.to_string().contains("times overlap")),
                Ok(_) => assert!(!overlap, "{times:?}"),
            }
        }
    }

    #[test]
    fn the_first_groups_go_and_the_others_stay() {
        let mut groups = groups();
        let rows = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0)];
        groups.update_batch(&columns(&rows), &[2, 0, 1, 2, 0], None, 3).unwrap();
        let spans = |groups: &mut Groups<f64>, to| {
            let folded = groups.fold(to).unwrap();
            let ends = |span: Span<f64>| (span.first.time, span.last.time, span.sum);
            folded.into_iter().map(|group| group.span.map(ends)).collect::<Vec<_>>()
        };
        assert_eq!(spans(&mut groups, EmitTo::First(2)), [Some((2, 5, 6.0)), Some((3, 3, 0.0))]);
        groups.update_batch(&columns(&[(9, 1.0)]), &[0], None, 2).unwrap();
        assert_eq!(spans(&mut groups, EmitTo::All), [Some((1, 9, 23.0)), None]);
    }
}
