//! One column while it is filled, and all columns of a batch out of one buffer.
//!
//! Numbers are kept in a vector that is reused; [`arrays`] copies those of all columns into one
//! buffer that the arrays share. So a batch of one row and a thousand points costs one buffer and an
//! array object for each point, where a buffer of its own each would cost three allocations more.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayBuilder, ArrayRef, ArrowPrimitiveType, BinaryBuilder, BooleanBuilder,
    PrimitiveArray, StringBuilder,
};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_schema::{DataType, TimeUnit};

/// Rows that a new builder has room for. A polled device brings one a cycle; Arrow's own guess is
/// 1,024, which is 4 KiB for each text of a plant.
const ROWS_EXPECTED: usize = 1;
/// Bytes of text that a new builder has room for.
const BYTES_EXPECTED: usize = 16;

/// Values of one width.
pub(crate) struct Fixed<T: ArrowPrimitiveType> {
    values: Vec<T::Native>,
    /// Rows without a value, in order; few as a rule.
    nulls: Vec<usize>,
}

impl<T: ArrowPrimitiveType> Fixed<T> {
    fn new() -> Self {
        Self { values: Vec::with_capacity(ROWS_EXPECTED), nulls: Vec::new() }
    }

    pub(crate) fn append_value(&mut self, value: T::Native) {
        self.values.push(value);
    }

    fn append_null(&mut self) {
        self.nulls.push(self.values.len());
        self.values.push(T::Native::default());
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    /// Copies the values to the end of `shared`, at a multiple of their width.
    fn put(&self, shared: &mut MutableBuffer) {
        let width = size_of::<T::Native>();
        shared.extend_zeros(shared.len().next_multiple_of(width) - shared.len());
        shared.extend_from_slice(&self.values);
    }

    /// Makes the array of what [`Fixed::put`] has copied, and empties the column.
    fn take(&mut self, shared: &Buffer, at: &mut usize, data_type: &DataType) -> ArrayRef {
        let (width, rows) = (size_of::<T::Native>(), self.values.len());
        let start = at.next_multiple_of(width);
        *at = start + rows * width;
        let values = ScalarBuffer::new(shared.clone(), start / width, rows);
        let nulls = (!self.nulls.is_empty()).then(|| {
            let mut missing = self.nulls.iter().copied().peekable();
            let valid = |row| missing.next_if_eq(&row).is_none();
            NullBuffer::new(BooleanBuffer::collect_bool(rows, valid))
        });
        self.values.clear();
        self.nulls.clear();
        let array = PrimitiveArray::<T>::new(values, nulls);
        if array.data_type() == data_type {
            return Arc::new(array);
        }
        // A time zone.
        Arc::new(array.with_data_type(data_type.clone()))
    }
}

/// A column of any type that drivers declare.
pub(crate) enum Column {
    Bool(Box<BooleanBuilder>),
    I8(Fixed<Int8Type>),
    I16(Fixed<Int16Type>),
    I32(Fixed<Int32Type>),
    I64(Fixed<Int64Type>),
    U8(Fixed<UInt8Type>),
    U16(Fixed<UInt16Type>),
    U32(Fixed<UInt32Type>),
    U64(Fixed<UInt64Type>),
    F32(Fixed<Float32Type>),
    F64(Fixed<Float64Type>),
    Text(Box<StringBuilder>),
    Bytes(Box<BinaryBuilder>),
    Time(Fixed<TimestampMicrosecondType>),
}

macro_rules! each_fixed {
    ($column:expr, $c:ident => $fixed:expr, $other:pat => $rest:expr) => {
        match $column {
            Column::I8($c) => $fixed,
            Column::I16($c) => $fixed,
            Column::I32($c) => $fixed,
            Column::I64($c) => $fixed,
            Column::U8($c) => $fixed,
            Column::U16($c) => $fixed,
            Column::U32($c) => $fixed,
            Column::U64($c) => $fixed,
            Column::F32($c) => $fixed,
            Column::F64($c) => $fixed,
            Column::Time($c) => $fixed,
            $other => $rest,
        }
    };
}

impl Column {
    pub(crate) fn new(data_type: &DataType) -> Self {
        match data_type {
            DataType::Boolean => Self::Bool(Box::new(BooleanBuilder::with_capacity(ROWS_EXPECTED))),
            DataType::Int8 => Self::I8(Fixed::new()),
            DataType::Int16 => Self::I16(Fixed::new()),
            DataType::Int32 => Self::I32(Fixed::new()),
            DataType::Int64 => Self::I64(Fixed::new()),
            DataType::UInt8 => Self::U8(Fixed::new()),
            DataType::UInt16 => Self::U16(Fixed::new()),
            DataType::UInt32 => Self::U32(Fixed::new()),
            DataType::UInt64 => Self::U64(Fixed::new()),
            DataType::Float32 => Self::F32(Fixed::new()),
            DataType::Float64 => Self::F64(Fixed::new()),
            DataType::Utf8 => {
                Self::Text(Box::new(StringBuilder::with_capacity(ROWS_EXPECTED, BYTES_EXPECTED)))
            }
            DataType::Binary => {
                Self::Bytes(Box::new(BinaryBuilder::with_capacity(ROWS_EXPECTED, BYTES_EXPECTED)))
            }
            DataType::Timestamp(TimeUnit::Microsecond, _) => Self::Time(Fixed::new()),
            other => unreachable!("no driver declares a column of type {other}"),
        }
    }

    pub(crate) fn append_null(&mut self) {
        each_fixed!(self, c => c.append_null(), other => match other {
            Self::Bool(b) => b.append_null(),
            Self::Text(b) => b.append_null(),
            Self::Bytes(b) => b.append_null(),
            _ => unreachable!("all others are of fixed width"),
        });
    }

    pub(crate) fn len(&self) -> usize {
        each_fixed!(self, c => c.len(), other => match other {
            Self::Bool(b) => b.len(),
            Self::Text(b) => b.len(),
            Self::Bytes(b) => b.len(),
            _ => unreachable!("all others are of fixed width"),
        })
    }

    fn put(&self, shared: &mut MutableBuffer) {
        each_fixed!(self, c => c.put(shared), _ => {});
    }

    fn take(&mut self, shared: &Buffer, at: &mut usize, data_type: &DataType) -> ArrayRef {
        each_fixed!(self, c => c.take(shared, at, data_type), other => match other {
            Self::Bool(b) => Arc::new(b.finish()),
            Self::Text(b) => Arc::new(b.finish()),
            Self::Bytes(b) => Arc::new(b.finish()),
            _ => unreachable!("all others are of fixed width"),
        })
    }
}

/// Takes all values out of the columns: one array each, of the given types.
pub(crate) fn arrays<'a>(
    columns: &mut [Column],
    types: impl Iterator<Item = &'a DataType>,
) -> Vec<ArrayRef> {
    let mut shared = MutableBuffer::new(0);
    let rows = columns.first().map_or(0, Column::len);
    shared.reserve(columns.len() * rows * size_of::<f32>());
    for column in columns.iter() {
        column.put(&mut shared);
    }
    let (shared, mut at) = (Buffer::from(shared), 0);
    columns.iter_mut().zip(types).map(|(c, t)| c.take(&shared, &mut at, t)).collect()
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;

    use super::*;

    #[test]
    fn columns_of_all_widths_share_a_buffer_and_keep_their_values() {
        let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let types = [DataType::Int8, DataType::Float64, DataType::Utf8, DataType::UInt16, utc];
        let mut columns: Vec<Column> = types.iter().map(Column::new).collect();
        for round in 0..3_i8 {
            for column in &mut columns {
                match column {
                    Column::I8(c) => c.append_value(round),
                    Column::F64(c) => c.append_value(f64::from(round) / 2.0),
                    Column::Text(b) => b.append_value("x"),
                    Column::U16(c) => c.append_value(u16::from(round.unsigned_abs())),
                    _ => {}
                }
                column.append_null();
            }
            if let Column::Time(c) = &mut columns[4] {
                c.append_value(7);
            }
            let made = arrays(&mut columns, types.iter());
            assert!(columns.iter().all(|c| c.len() == 0));
            assert!(made.iter().zip(&types).all(|(a, t)| a.data_type() == t && a.len() == 2));
            let nulls: Vec<usize> = made.iter().map(arrow::array::Array::null_count).collect();
            assert_eq!(nulls, [1; 5]);
            assert_eq!(made[0].as_primitive::<Int8Type>().value(0), round);
            let half = made[1].as_primitive::<Float64Type>().value(0);
            assert_eq!(half.to_bits(), (f64::from(round) / 2.0).to_bits());
            assert_eq!(
                made[3].as_primitive::<UInt16Type>().value(0),
                u16::from(round.unsigned_abs())
            );
            assert_eq!(made[4].as_primitive::<TimestampMicrosecondType>().value(1), 7);
        }
    }
}
