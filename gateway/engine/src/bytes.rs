//! How many bytes the rows of a batch are, without an allocation.
//!
//! A batch from the log shares one buffer between its columns, and a slice one with what it was cut
//! from: what counts is the part that the rows themselves take.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::record_batch::RecordBatch;

/// Bytes of the rows themselves, in memory and about as many in the log.
pub(crate) fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(column_bytes).sum()
}

fn column_bytes(column: &ArrayRef) -> usize {
    let rows = column.len();
    let validity = column.nulls().map_or(0, |_| rows.div_ceil(8));
    if let Some(width) = column.data_type().primitive_width() {
        return rows * width + validity;
    }
    if let Some(text) = column.as_string_opt::<i32>() {
        let end = |at: usize| usize::try_from(text.value_offsets()[at]).unwrap_or(0);
        return (rows + 1) * size_of::<i32>() + end(rows) - end(0) + validity;
    }
    let sliced = column.to_data().get_slice_memory_size();
    sliced.unwrap_or_else(|_| column.get_array_memory_size())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{BooleanArray, Float32Array, Int64Array, StringArray};

    use super::*;

    #[test]
    fn the_short_way_finds_what_arrow_finds() {
        let whole: Int64Array = (0..100).map(|n| (n % 3 > 0).then_some(n)).collect();
        let text: StringArray = (0..100).map(|n| (n % 5 > 0).then(|| n.to_string())).collect();
        let bits: BooleanArray = (0..100).map(|n| Some(n % 2 == 0)).collect();
        let floats = Float32Array::from_iter_values((0..100_u8).map(f32::from));
        let columns: [ArrayRef; 4] =
            [Arc::new(floats), Arc::new(whole), Arc::new(text), Arc::new(bits)];
        for column in columns {
            for (offset, length) in [(0, 100), (16, 40), (8, 0)] {
                let part = column.slice(offset, length);
                let by_arrow = part.to_data().get_slice_memory_size().unwrap();
                assert_eq!(column_bytes(&part), by_arrow, "{} {length}", part.data_type());
            }
        }
    }
}
