//! The rows of a table while they are filled, and all columns of a batch out of one buffer.
//!
//! A row is one run of bytes with a place for each column: a configured point costs 8 bytes here
//! and its value. At the end the rows are turned into columns that share one buffer: column `c` of
//! `n` rows begins at `n` times its place in a row, so that a single row is already right as it is.
//! Array objects come from an [`ArrayPool`]. Knows no reasons and no qualities.

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, PrimitiveArray, StringArray,
    new_empty_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_schema::{DataType, TimeUnit};

use crate::arrays::{ArrayPool, Pooled, Rings};
use crate::table::Value;

/// Bytes of rows and of text that are kept for the next batch at most.
const KEPT_BYTES: usize = 256 << 10;

/// How a column's values lie in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
    Time,
    /// Start and length in the texts of all rows, 32 bits each.
    Text,
    Bytes,
}

impl Kind {
    fn of(data_type: &DataType) -> Self {
        match data_type {
            DataType::Boolean => Self::Bool,
            DataType::Int8 => Self::I8,
            DataType::Int16 => Self::I16,
            DataType::Int32 => Self::I32,
            DataType::Int64 => Self::I64,
            DataType::UInt8 => Self::U8,
            DataType::UInt16 => Self::U16,
            DataType::UInt32 => Self::U32,
            DataType::UInt64 => Self::U64,
            DataType::Float32 => Self::F32,
            DataType::Float64 => Self::F64,
            DataType::Timestamp(TimeUnit::Microsecond, _) => Self::Time,
            DataType::Utf8 => Self::Text,
            DataType::Binary => Self::Bytes,
            other => unreachable!("no driver declares a column of type {other}"),
        }
    }

    /// Bytes in a row, which the place is a multiple of.
    fn width(self) -> usize {
        match self {
            Self::Bool | Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::Time | Self::Text | Self::Bytes => 8,
        }
    }

    fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::Bytes)
    }
}

/// Where a column's value lies in a row.
#[derive(Debug, Clone, Copy)]
struct Cell {
    kind: Kind,
    place: u32,
}

impl Cell {
    fn place(self) -> usize {
        self.place as usize
    }
}

/// Rows that are filled, one after another; each column at most once a row.
pub(crate) struct Columns {
    cells: Vec<Cell>,
    /// Bytes of a row.
    width: usize,
    /// Row after row.
    bytes: Vec<u8>,
    /// What the places of text and bytes speak of.
    texts: Vec<u8>,
    /// Columns that have a value, a bit each, row after row.
    valid: Vec<u64>,
    /// Columns of the last row that were set, to a value or to null.
    set: Vec<u64>,
    /// Columns in which a row has no value.
    lacking: Vec<u64>,
    rows: usize,
}

fn bit(words: &[u64], at: usize) -> bool {
    words[at / 64] >> (at % 64) & 1 == 1
}

fn set_bit(words: &mut [u64], at: usize) {
    words[at / 64] |= 1 << (at % 64);
}

impl Columns {
    pub(crate) fn new<'a>(types: impl Iterator<Item = &'a DataType>) -> Self {
        let mut width = 0_usize;
        let place = |data_type| {
            let kind = Kind::of(data_type);
            let place = width.next_multiple_of(kind.width());
            width = place + kind.width();
            Cell { kind, place: u32::try_from(place).unwrap_or_else(|_| unreachable!("4 GiB")) }
        };
        let cells: Vec<Cell> = types.map(place).collect();
        let words = cells.len().div_ceil(64);
        Self {
            cells,
            width: width.next_multiple_of(8),
            bytes: Vec::new(),
            texts: Vec::new(),
            valid: Vec::new(),
            set: vec![0; words],
            lacking: vec![0; words],
            rows: 0,
        }
    }

    /// Begins a row.
    pub(crate) fn begin(&mut self) {
        self.rows += 1;
        self.bytes.resize(self.rows * self.width, 0);
        self.valid.resize(self.rows * self.set.len(), 0);
        self.set.fill(0);
    }

    /// Whether `column` of the last row was set.
    pub(crate) fn is_set(&self, column: usize) -> bool {
        bit(&self.set, column)
    }

    /// The first of `columns` columns, from `column` on, that was not set in the last row.
    pub(crate) fn next_unset(&self, column: usize, columns: usize) -> Option<usize> {
        let mut at = column;
        while at < columns {
            let free = !self.set[at / 64] >> (at % 64);
            if free != 0 {
                let found = at + free.trailing_zeros() as usize;
                return (found < columns).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Sets `column` of the last row; `false` where the value is of another type.
    pub(crate) fn put(&mut self, column: usize, value: Value<'_>) -> bool {
        match (self.cells[column].kind, value) {
            (Kind::Bool, Value::Bool(v)) => self.write(column, [u8::from(v)]),
            (Kind::I8, Value::I8(v)) => self.write(column, v.to_ne_bytes()),
            (Kind::I16, Value::I16(v)) => self.write(column, v.to_ne_bytes()),
            (Kind::I32, Value::I32(v)) => self.write(column, v.to_ne_bytes()),
            (Kind::I64, Value::I64(v)) | (Kind::Time, Value::Time(v)) => {
                self.write(column, v.to_ne_bytes());
            }
            (Kind::U8, Value::U8(v)) => self.write(column, [v]),
            (Kind::U16, Value::U16(v)) => self.write(column, v.to_ne_bytes()),
            (Kind::U32, Value::U32(v)) => self.write(column, v.to_ne_bytes()),
            (Kind::U64, Value::U64(v)) => self.write(column, v.to_ne_bytes()),
            (Kind::F32, Value::F32(v)) => self.write(column, v.to_ne_bytes()),
            (Kind::F64, Value::F64(v)) => self.write(column, v.to_ne_bytes()),
            (Kind::Text, Value::Text(v)) => self.write_text(column, v.as_bytes()),
            (Kind::Bytes, Value::Bytes(v)) => self.write_text(column, v),
            _ => return false,
        }
        true
    }

    fn write<const N: usize>(&mut self, column: usize, value: [u8; N]) {
        let row = self.rows - 1;
        let at = row * self.width + self.cells[column].place();
        self.bytes[at..at + N].copy_from_slice(&value);
        set_bit(&mut self.set, column);
        let words = self.set.len();
        set_bit(&mut self.valid[row * words..], column);
    }

    fn write_text(&mut self, column: usize, text: &[u8]) {
        let [start, len] = [self.texts.len(), text.len()]
            .map(|n| u32::try_from(n).unwrap_or_else(|_| panic!("a batch of 4 GiB of text")));
        self.texts.extend_from_slice(text);
        let both = u64::from(start) << 32 | u64::from(len);
        self.write(column, both.to_ne_bytes());
    }

    /// Sets `column` of the last row to null.
    pub(crate) fn put_null(&mut self, column: usize) {
        set_bit(&mut self.set, column);
        set_bit(&mut self.lacking, column);
    }

    /// Takes all rows: one array for each column, of the given types.
    pub(crate) fn take<'a>(
        &mut self,
        types: impl Iterator<Item = &'a DataType>,
        pool: &ArrayPool,
    ) -> Vec<ArrayRef> {
        if self.rows == 0 {
            return types.map(new_empty_array).collect();
        }
        let mut shared = Shared { buffer: self.turned(), text: self.width * self.rows };
        let mut rings = pool.lock();
        let mut arrays = Vec::with_capacity(self.cells.len());
        for (column, data_type) in types.enumerate() {
            arrays.push(self.array(column, data_type, &mut shared, &mut rings));
        }
        drop(rings);
        for kept in [&mut self.bytes, &mut self.texts] {
            kept.clear();
            kept.shrink_to(KEPT_BYTES);
        }
        self.valid.clear();
        self.valid.shrink_to(KEPT_BYTES / 8);
        self.lacking.fill(0);
        self.rows = 0;
        arrays
    }

    /// All values, column after column.
    fn turned(&self) -> Buffer {
        let (rows, width) = (self.rows, self.width);
        let mut shared = MutableBuffer::with_capacity(rows * width + self.texts.len());
        shared.extend_from_slice(&self.bytes);
        let has_text = self.cells.iter().any(|cell| cell.kind.is_text());
        if rows == 1 && !has_text {
            return shared.into();
        }
        for cell in &self.cells {
            let from = self.bytes.get(cell.place()..).unwrap_or_default().chunks(width);
            let to = &mut shared.as_slice_mut()[cell.place() * rows..rows * width];
            match (cell.kind, cell.kind.width()) {
                (Kind::Bool, _) => turn_bits(from, to),
                (Kind::Text | Kind::Bytes, _) => turn_texts(from, &self.texts, &mut shared, *cell),
                (_, 1) => turn::<1>(from, to),
                (_, 2) => turn::<2>(from, to),
                (_, 4) => turn::<4>(from, to),
                _ => turn::<8>(from, to),
            }
        }
        shared.into()
    }

    fn nulls(&self, column: usize, rings: &mut Rings) -> Option<NullBuffer> {
        if !bit(&self.lacking, column) {
            return None;
        }
        if self.rows == 1 {
            return Some(rings.null_row());
        }
        let words = self.set.len();
        let valid = |row: usize| bit(&self.valid[row * words..], column);
        Some(NullBuffer::new(BooleanBuffer::collect_bool(self.rows, valid)))
    }

    fn array(
        &self,
        column: usize,
        data_type: &DataType,
        shared: &mut Shared,
        rings: &mut Rings,
    ) -> ArrayRef {
        let nulls = self.nulls(column, rings);
        let cell = self.cells[column];
        let span = Span { start: cell.place() * self.rows, rows: self.rows };
        match cell.kind {
            Kind::Bool => {
                let bits = BooleanBuffer::new(shared.buffer.clone(), span.start * 8, span.rows);
                rings.share(BooleanArray::new(bits, nulls))
            }
            Kind::I8 => shared.primitive::<Int8Type>(span, nulls, data_type, rings),
            Kind::I16 => shared.primitive::<Int16Type>(span, nulls, data_type, rings),
            Kind::I32 => shared.primitive::<Int32Type>(span, nulls, data_type, rings),
            Kind::I64 => shared.primitive::<Int64Type>(span, nulls, data_type, rings),
            Kind::U8 => shared.primitive::<UInt8Type>(span, nulls, data_type, rings),
            Kind::U16 => shared.primitive::<UInt16Type>(span, nulls, data_type, rings),
            Kind::U32 => shared.primitive::<UInt32Type>(span, nulls, data_type, rings),
            Kind::U64 => shared.primitive::<UInt64Type>(span, nulls, data_type, rings),
            Kind::F32 => shared.primitive::<Float32Type>(span, nulls, data_type, rings),
            Kind::F64 => shared.primitive::<Float64Type>(span, nulls, data_type, rings),
            Kind::Time => {
                shared.primitive::<TimestampMicrosecondType>(span, nulls, data_type, rings)
            }
            Kind::Text => {
                let (offsets, text) = shared.text(span);
                rings.share(StringArray::new(offsets, text, nulls))
            }
            Kind::Bytes => {
                let (offsets, bytes) = shared.text(span);
                rings.share(BinaryArray::new(offsets, bytes, nulls))
            }
        }
    }
}

/// Where a column lies in the buffer of a batch.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    rows: usize,
}

/// The buffer of a batch, and where the next column's text begins in it.
struct Shared {
    buffer: Buffer,
    text: usize,
}

impl Shared {
    fn primitive<T: ArrowPrimitiveType>(
        &self,
        span: Span,
        nulls: Option<NullBuffer>,
        data_type: &DataType,
        rings: &mut Rings,
    ) -> ArrayRef
    where
        PrimitiveArray<T>: Pooled,
    {
        let start = span.start / size_of::<T::Native>();
        let values = ScalarBuffer::new(self.buffer.clone(), start, span.rows);
        let array = PrimitiveArray::<T>::new(values, nulls);
        if array.data_type() == data_type {
            return rings.share(array);
        }
        // A time zone.
        rings.share(array.with_data_type(data_type.clone()))
    }

    /// The offsets and the bytes of a column of text; columns are asked for in order.
    fn text(&mut self, span: Span) -> (OffsetBuffer<i32>, Buffer) {
        let start = span.start / size_of::<i32>();
        let offsets = ScalarBuffer::<i32>::new(self.buffer.clone(), start, span.rows + 1);
        let offsets = OffsetBuffer::new(offsets);
        let len = offsets.last().map_or(0, |end| end.unsigned_abs() as usize);
        let bytes = self.buffer.slice_with_length(self.text, len);
        self.text += len;
        (offsets, bytes)
    }
}

/// Puts one value of each row behind the other.
fn turn<'a, const N: usize>(rows: impl Iterator<Item = &'a [u8]>, to: &mut [u8]) {
    for (from, to) in rows.zip(to.chunks_exact_mut(N)) {
        to.copy_from_slice(&from[..N]);
    }
}

/// Packs one byte of each row into a bit, the least significant first.
fn turn_bits<'a>(rows: impl Iterator<Item = &'a [u8]>, to: &mut [u8]) {
    for (row, from) in rows.enumerate() {
        if row % 8 == 0 {
            to[row / 8] = 0;
        }
        to[row / 8] |= from[0] << (row % 8);
    }
}

/// Puts the texts of a column behind what is there, and their offsets in the column's place.
fn turn_texts<'a>(
    rows: impl ExactSizeIterator<Item = &'a [u8]>,
    texts: &[u8],
    shared: &mut MutableBuffer,
    cell: Cell,
) {
    let (mut at, mut end) = (cell.place() * rows.len(), 0_i32);
    for from in rows {
        let both = u64::from_ne_bytes(from.first_chunk().copied().unwrap_or_default());
        let [start, len] =
            [both >> 32, both & 0xFFFF_FFFF].map(|n| usize::try_from(n).unwrap_or(0));
        shared.as_slice_mut()[at..at + 4].copy_from_slice(&end.to_ne_bytes());
        shared.extend_from_slice(&texts[start..start + len]);
        let grown = i32::try_from(len).ok().and_then(|len| end.checked_add(len));
        end = grown.unwrap_or_else(|| panic!("2 GiB of text in one column of a batch"));
        at += 4;
    }
    shared.as_slice_mut()[at..at + 4].copy_from_slice(&end.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;

    use super::*;

    fn types() -> Vec<DataType> {
        let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let [text, bits, bytes] = [DataType::Utf8, DataType::Boolean, DataType::Binary];
        let numbers = [DataType::Int8, DataType::Float64];
        [&numbers[..], &[text.clone(), DataType::UInt16, utc, bits, bytes, text]].concat()
    }

    /// Rows by hand: every third value of a column is missing.
    fn filled(columns: &mut Columns, rows: usize, types: &[DataType]) -> Vec<ArrayRef> {
        for row in 0..rows {
            columns.begin();
            let small = u8::try_from(row).unwrap();
            let text = "ab".repeat(row);
            let values = [
                Value::I8(small.cast_signed()),
                Value::F64(f64::from(small) / 2.0),
                Value::Text(&text),
                Value::U16(u16::from(small)),
                Value::Time(7),
                Value::Bool(row % 2 == 1),
                Value::Bytes(text.as_bytes()),
                Value::Text("é"),
            ];
            for (column, value) in values.into_iter().enumerate().rev() {
                if (row + column).is_multiple_of(3) {
                    columns.put_null(column);
                } else {
                    assert!(columns.put(column, value));
                }
            }
            assert_eq!(columns.next_unset(0, values.len()), None);
        }
        columns.take(types.iter(), &ArrayPool::default())
    }

    #[test]
    fn columns_of_all_widths_share_a_buffer_and_keep_their_values() {
        let types = types();
        let mut columns = Columns::new(types.iter());
        for rows in [1, 2, 3, 17, 100] {
            let made = filled(&mut columns, rows, &types);
            assert!(made.iter().zip(&types).all(|(a, t)| a.data_type() == t && a.len() == rows));
            for row in 0..rows {
                let value = |column: usize| {
                    let valid = made[column].is_valid(row);
                    assert_eq!(
                        !valid,
                        (row + column).is_multiple_of(3),
                        "column {column}, row {row}"
                    );
                    valid.then_some(&made[column])
                };
                let small = u8::try_from(row).unwrap();
                let text = "ab".repeat(row);
                let is = |right: bool, column: usize| assert!(right, "{column} of row {row}");
                value(0).inspect(|a| {
                    is(a.as_primitive::<Int8Type>().value(row) == small.cast_signed(), 0);
                });
                value(1).inspect(|a| {
                    let found = a.as_primitive::<Float64Type>().value(row);
                    is(found.to_bits() == (f64::from(small) / 2.0).to_bits(), 1);
                });
                value(2).inspect(|a| is(a.as_string::<i32>().value(row) == text, 2));
                value(3).inspect(|a| {
                    is(a.as_primitive::<UInt16Type>().value(row) == u16::from(small), 3);
                });
                value(4).inspect(|a| {
                    is(a.as_primitive::<TimestampMicrosecondType>().value(row) == 7, 4);
                });
                value(5).inspect(|a| is(a.as_boolean().value(row) == (row % 2 == 1), 5));
                value(6).inspect(|a| is(a.as_binary::<i32>().value(row) == text.as_bytes(), 6));
                value(7).inspect(|a| is(a.as_string::<i32>().value(row) == "é", 7));
            }
        }
    }

    #[test]
    fn a_value_of_another_type_is_not_taken_and_what_was_not_set_is_found() {
        let types = vec![DataType::Int32; 130];
        let mut columns = Columns::new(types.iter());
        columns.begin();
        assert!(!columns.put(0, Value::I64(1)));
        for column in (0..130).filter(|c| ![0, 63, 64, 129].contains(c)) {
            assert!(columns.put(column, Value::I32(1)));
        }
        let mut found = Vec::new();
        while let Some(next) = columns.next_unset(found.last().map_or(0, |c| c + 1), 130) {
            found.push(next);
        }
        assert_eq!(found, [0, 63, 64, 129]);
        assert_eq!(columns.next_unset(65, 129), None);
    }
}
