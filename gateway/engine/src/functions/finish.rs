//! From a group's span to the result of a function over time.
//!
//! Promise: what a window needs of the ones before it is remembered by group, under the time of its
//! sample, so that a window that is computed once more has the same result. A group that no window
//! mentions keeps its sample. It knows no rows.

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Float64Array, Int64Array, StructArray, UInt64Array,
};
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use std::sync::Arc;

use super::bounds::BoundsCell;
use super::memory::{Held, Keys, Pair};
use super::span::{Amount, Edges, Rule, Sample, Span, Whole, whole};
use super::spans::{Kept, Summed};

const SECOND: f64 = 1e6;

/// What the result is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Ending {
    /// The sum by so many microseconds.
    PerUnit(f64),
    /// The sum by the time that it covers.
    Average,
    /// How far a counter went: whole numbers with or without sign, or floats.
    Growth { exact: bool, signed: bool },
    /// How far a counter went in a second.
    Rate,
}

/// A function over time, after its aggregate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Finish {
    pub(super) summed: Summed,
    pub(super) ending: Ending,
    /// Whether values hold across the window's edges; not so where groups are cut by time.
    pub(super) across: bool,
}

impl Finish {
    pub(super) fn data_type(self) -> DataType {
        match self.ending {
            Ending::Growth { exact: true, signed: true } => DataType::Int64,
            Ending::Growth { exact: true, signed: false } => DataType::UInt64,
            _ => DataType::Float64,
        }
    }

    /// Computes the results of groups, whose keys `key_of` writes.
    pub(super) fn run(
        self,
        spans: &ArrayRef,
        keys: &mut Keys,
        mut key_of: impl FnMut(usize, &mut Vec<u8>),
        cell: &BoundsCell,
    ) -> Result<ArrayRef> {
        let Some(spans) = spans.as_struct_opt() else {
            return exec_err!("a function over time was given no spans");
        };
        let edges = if self.across { cell.edges() } else { None };
        if self.summed.exact() {
            let (rule, hold) = (self.summed.exact_rule(), Held::Counts);
            let see = |held: &Held| if let Held::Counts(pair) = held { Some(*pair) } else { None };
            let wholes = wholes(rule, spans, keys, &mut key_of, edges, see, hold);
            self.exact(wholes)
        } else {
            let (rule, hold) = (self.summed.float_rule(), Held::Samples);
            let see = |held: &Held| if let Held::Samples(pair) = held { Some(*pair) } else { None };
            let wholes = wholes(rule, spans, keys, &mut key_of, edges, see, hold);
            Ok(Arc::new(self.floats(wholes)))
        }
    }

    fn exact(self, wholes: Vec<Option<Whole<i128>>>) -> Result<ArrayRef> {
        let too_far = |_| exec_datafusion_err!("a counter's growth does not fit 64 bits");
        let sums = wholes.iter().map(|whole| whole.map(|whole| whole.sum));
        Ok(match self.data_type() {
            DataType::Int64 => {
                let sums = sums.map(|sum| sum.map(i64::try_from).transpose().map_err(too_far));
                Arc::new(sums.collect::<Result<Int64Array>>()?)
            }
            DataType::UInt64 => {
                let sums = sums.map(|sum| sum.map(u64::try_from).transpose().map_err(too_far));
                Arc::new(sums.collect::<Result<UInt64Array>>()?)
            }
            _ => Arc::new(self.floats(wholes)),
        })
    }

    fn floats<T: Amount>(self, wholes: Vec<Option<Whole<T>>>) -> Float64Array {
        wholes
            .into_iter()
            .map(|whole| {
                let Whole { sum, covered, last } = whole?;
                let (sum, micros) = (sum.to_f64(), covered as f64);
                match self.ending {
                    Ending::PerUnit(unit) => Some(sum / unit),
                    Ending::Average if covered == 0 => Some(last.to_f64()),
                    Ending::Average => Some(sum / micros),
                    Ending::Growth { .. } => Some(sum),
                    Ending::Rate => (covered > 0).then(|| sum / (micros / SECOND)),
                }
            })
            .collect()
    }
}

/// Sums each group's window, with what held before it, and remembers what the next one needs.
fn wholes<T: Kept>(
    rule: Rule<T>,
    spans: &StructArray,
    keys: &mut Keys,
    key_of: &mut impl FnMut(usize, &mut Vec<u8>),
    edges: Option<Edges>,
    see: impl Fn(&Held) -> Option<Pair<T>>,
    hold: impl Fn(Pair<T>) -> Held,
) -> Vec<Option<Whole<T>>> {
    let [first, last, kept] = [0, 2, 5].map(|at| sample_column::<T>(spans, at));
    let sums = spans.column(4).as_primitive::<T::Arrow>();
    let mut key = Vec::new();
    (0..spans.len())
        .map(|row| {
            let span = first(row)
                .zip(last(row))
                .filter(|_| !spans.is_null(row))
                .map(|(first, last)| Span { first, last, sum: sums.value(row) });
            let Some(edges) = edges else {
                return whole(rule, span, None, None);
            };
            key.clear();
            key_of(row, &mut key);
            keys.hold(&key, |place| {
                let pair = place.get().and_then(&see);
                let before = pair.and_then(|pair| {
                    let known = [Some(pair.new), pair.old];
                    known.into_iter().flatten().find(|sample| sample.time < edges.start)
                });
                let new = kept(row).filter(|_| span.is_some());
                if let Some(new) = new.filter(|new| pair.is_none_or(|p| p.new.time < new.time)) {
                    place.set(hold(Pair { old: before, new }));
                }
                whole(rule, span, before, Some(edges))
            })
        })
        .collect()
}

/// The samples in the columns `at` (time) and the next one.
fn sample_column<T: Kept>(
    spans: &StructArray,
    at: usize,
) -> impl Fn(usize) -> Option<Sample<T>> + '_ {
    let times = spans.column(at).as_primitive::<Int64Type>();
    let values = spans.column(at + 1).as_primitive::<T::Arrow>();
    move |row| {
        (!times.is_null(row)).then(|| Sample { time: times.value(row), value: values.value(row) })
    }
}
