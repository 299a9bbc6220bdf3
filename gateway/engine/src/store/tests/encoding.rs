//! The bytes of rows and seals. Lengths and bytes are counted by hand.

use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::{DataType, Int32Type};
use arrow::record_batch::RecordBatch;

use crate::store::format::{Kind, key, seal, split_key, unseal};
use crate::store::rows::{decode_rows, decode_schema, encode_rows, encode_schema};

#[test]
fn a_key_orders_by_kind_name_and_position() {
    let bytes = key(Kind::Outbox, "ab", 258);
    assert_eq!(bytes, [b'G', 0, 2, b'a', b'b', 0, 0, 0, 0, 0, 0, 1, 2]);
    assert_eq!(split_key(&bytes), Some((Kind::Outbox, "ab", 258)));
    assert!(key(Kind::Outbox, "ab", 255) < key(Kind::Outbox, "ab", 256));
    assert!(key(Kind::Outbox, "a", u64::MAX) < key(Kind::Outbox, "ab", 0));
    for end in 0..bytes.len() {
        assert_eq!(split_key(&bytes[..end]), None);
    }
}

#[test]
fn a_seal_shows_every_single_flipped_bit() {
    let at = key(Kind::Log, "t", 9);
    let value = seal(&at, b"some rows");
    assert_eq!(value.len(), 8 + 9);
    assert_eq!(unseal(&at, &value), Some(&b"some rows"[..]));
    for bit in 0..value.len() * 8 {
        let mut flipped = value.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(unseal(&at, &flipped), None);
    }
    assert_eq!(unseal(&key(Kind::Log, "t", 8), &value), None);
}

fn encoded(schema: u64, batch: &RecordBatch) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_rows(&mut bytes, schema, None, std::slice::from_ref(batch)).unwrap();
    bytes
}

fn round_trip(batch: &RecordBatch) -> Vec<u8> {
    let schema = decode_schema(&encode_schema(&batch.schema()).unwrap()).unwrap();
    assert_eq!(schema, batch.schema());
    let bytes = encoded(3, batch);
    assert_eq!(decode_rows(&schema, &bytes).as_ref(), Some(batch));
    for end in 0..bytes.len() {
        assert_eq!(decode_rows(&schema, &bytes[..end]), None, "cut at {end}");
    }
    bytes
}

#[test]
fn one_row_is_values_and_a_byte_per_column() {
    let batch = RecordBatch::try_from_iter([
        ("n", Arc::new(Int16Array::from(vec![-2])) as ArrayRef),
        ("gone", Arc::new(Float64Array::from(vec![None]))),
        ("text", Arc::new(StringArray::from(vec!["hey"]))),
        ("on", Arc::new(BooleanArray::from(vec![true]))),
    ])
    .unwrap();
    let mut expected = vec![3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    expected.extend([0, 0xfe, 0xff]);
    expected.extend([2]);
    expected.extend([0, 3, 0, 0, 0, b'h', b'e', b'y']);
    expected.extend([0, 1]);
    assert_eq!(round_trip(&batch), expected);
}

/// Ten rows with a column of each type that the form knows.
fn every_type() -> RecordBatch {
    let some = [1, 0, 3, 4, 0, 6, 7, 8, 0, 10].map(|n: u8| (n > 0).then_some(n));
    let is_even = |n: u8| n.is_multiple_of(2);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(some.iter().copied().collect::<UInt8Array>()),
        Arc::new(some.iter().map(|n| n.map(u16::from)).collect::<UInt16Array>()),
        Arc::new(some.iter().map(|n| n.map(|n| -i32::from(n))).collect::<Int32Array>()),
        Arc::new(some.iter().map(|n| n.map(u64::from)).collect::<UInt64Array>()),
        Arc::new(some.iter().map(|n| n.map(f32::from)).collect::<Float32Array>()),
        Arc::new(Float64Array::from_iter_values((0..10).map(f64::from))),
        Arc::new(Float64Array::from_iter_values([-0.0; 10])),
        Arc::new(some.iter().map(|n| n.map(is_even)).collect::<BooleanArray>()),
        Arc::new(some.iter().map(|n| n.map(|n| "x".repeat(n.into()))).collect::<StringArray>()),
        Arc::new(StringArray::from(vec![""; 10])),
        Arc::new(StringArray::from(vec!["same"; 10])),
        Arc::new(StringArray::new_null(10)),
        Arc::new(TimestampMicrosecondArray::from(vec![7; 10]).with_timezone("UTC")),
        Arc::new(Decimal128Array::from(vec![1 << 100; 10])),
    ];
    let named = columns.into_iter().enumerate().map(|(n, c)| (format!("c{n}"), c, true));
    RecordBatch::try_from_iter_with_nullable(named).unwrap()
}

#[test]
fn every_type_comes_back_with_nulls_and_from_the_middle_of_an_array() {
    let batch = every_type();
    round_trip(&batch);
    for (from, count) in [(0, 1), (1, 1), (3, 5), (1, 9), (9, 1), (4, 0)] {
        round_trip(&batch.slice(from, count));
    }
}

#[test]
fn batches_that_follow_each_other_are_one_value() {
    let whole = every_type();
    for ends in [&[3, 10][..], &[1, 2, 3, 10], &[5, 5, 10], &[0, 10], &[4, 9, 10]] {
        let mut start = 0;
        let parts = ends.iter().map(|end| {
            let part = whole.slice(start, end - start);
            start = *end;
            part
        });
        let mut bytes = Vec::new();
        encode_rows(&mut bytes, 3, None, &parts.collect::<Vec<_>>()).unwrap();
        assert_eq!(decode_rows(&whole.schema(), &bytes).as_ref(), Some(&whole), "{ends:?}");
        assert_eq!(bytes.len(), encoded(3, &whole).len(), "{ends:?}");
    }
    let words: DictionaryArray<Int32Type> = vec!["a", "b", "a"].into_iter().collect();
    let whole = RecordBatch::try_from_iter([("word", Arc::new(words) as ArrayRef)]).unwrap();
    let mut bytes = Vec::new();
    encode_rows(&mut bytes, 0, None, &[whole.slice(0, 1), whole.slice(1, 2)]).unwrap();
    assert_eq!(decode_rows(&whole.schema(), &bytes), Some(whole));
}

/// Flag 3 and the value once, or flag 0 and all of them; by hand.
#[test]
fn a_value_stands_once_only_where_every_row_of_every_batch_has_it() {
    let head = |rows| vec![0, 0, 0, 0, 0, 0, 0, 0, rows, 0, 0, 0, 0];
    let texts = |texts: &[&str]| Arc::new(StringArray::from(texts.to_vec())) as ArrayRef;
    let numbers = |numbers: &[u16]| Arc::new(UInt16Array::from(numbers.to_vec())) as ArrayRef;
    for (first, second, expected) in [
        (numbers(&[7]), numbers(&[7, 7]), vec![3, 7, 0]),
        (numbers(&[]), numbers(&[7, 7, 7]), vec![3, 7, 0]),
        // The last row alone, the first alone, and two that take turns.
        (numbers(&[7]), numbers(&[7, 8]), vec![0, 7, 0, 7, 0, 8, 0]),
        (numbers(&[8]), numbers(&[7, 7]), vec![0, 8, 0, 7, 0, 7, 0]),
        (numbers(&[7, 8]), numbers(&[7]), vec![0, 7, 0, 8, 0, 7, 0]),
        // Bytes that repeat, though not by the width of a value.
        (numbers(&[0x0707, 0x0707]), numbers(&[0x0807]), vec![0, 7, 7, 7, 7, 7, 8]),
        (texts(&["aa"]), texts(&["aa", "aa"]), vec![3, 2, 0, 0, 0, b'a', b'a']),
        (texts(&[""]), texts(&["", ""]), vec![3, 0, 0, 0, 0]),
        // One text together, and other texts each.
        (
            texts(&["a"]),
            texts(&["aa", "aaa"]),
            [&[0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0][..], b"aaaaaa"].concat(),
        ),
        (
            texts(&["ab"]),
            texts(&["ab", "ba"]),
            [&[0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0][..], b"ababba"].concat(),
        ),
    ] {
        let batch = |column| RecordBatch::try_from_iter([("c", column)]).unwrap();
        let mut bytes = Vec::new();
        encode_rows(&mut bytes, 0, None, &[batch(first), batch(second)]).unwrap();
        assert_eq!(bytes, [head(3), expected].concat());
    }
}

#[test]
fn a_column_that_the_form_does_not_know_goes_as_arrow_ipc() {
    let words: DictionaryArray<Int32Type> = vec!["a", "b", "a"].into_iter().collect();
    let batch = RecordBatch::try_from_iter([("word", Arc::new(words) as ArrayRef)]).unwrap();
    assert!(matches!(batch.schema().field(0).data_type(), DataType::Dictionary(..)));
    let bytes = encoded(0, &batch);
    assert_eq!(bytes[12], 1);
    assert_eq!(decode_rows(&batch.schema(), &bytes), Some(batch));
}

/// A scan: the four fixed columns and `points` of f64, as drivers make them.
fn scan(rows: usize, points: usize) -> RecordBatch {
    let count = u32::try_from(rows).unwrap();
    let mut columns: Vec<(String, ArrayRef)> = vec![
        (
            "time".into(),
            Arc::new(
                TimestampMicrosecondArray::from_iter_values((0..count).map(i64::from))
                    .with_timezone("UTC"),
            ),
        ),
        ("device".into(), Arc::new(StringArray::from(vec!["press-1"; rows]))),
        ("quality".into(), Arc::new(StringArray::from(vec!["good"; rows]))),
        ("seq".into(), Arc::new(UInt64Array::from_iter_values((0..count).map(u64::from)))),
    ];
    for point in 0..points {
        let offset = f64::from(u32::try_from(point).unwrap());
        let values = (0..count).map(|row| f64::from(row) * 0.5 + offset);
        let column = Float64Array::from_iter_values(values);
        columns.push((format!("point_{point}"), Arc::new(column)));
    }
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Bytes per payload byte decide the form: payload is 8 a value and the text of the strings.
#[test]
fn the_form_costs_a_tenth_more_than_the_payload_where_ipc_costs_many_times() {
    // 13 of head; time and seq 9 each; texts 1 + 4 + 7 and 1 + 4 + 4; 9 a point.
    for (rows, points, expected) in [
        (1, 10, 13 + 18 + 12 + 9 + 10 * 9),
        (1, 1_000, 13 + 18 + 12 + 9 + 1_000 * 9),
        // Texts that all rows share are there once.
        (100, 10, 13 + 2 * 801 + 12 + 9 + 10 * 801),
    ] {
        let batch = scan(rows, points);
        let bytes = encoded(0, &batch).len();
        assert_eq!(bytes, expected);
        let stream = encode_schema(&batch.schema()).unwrap().len();
        let options =
            arrow::ipc::writer::IpcWriteOptions::try_new(8, false, arrow::ipc::MetadataVersion::V5);
        let mut writer = arrow::ipc::writer::StreamWriter::try_new_with_options(
            Vec::new(),
            &batch.schema(),
            options.unwrap(),
        )
        .unwrap();
        writer.write(&batch).unwrap();
        let ipc = writer.into_inner().unwrap().len();
        let payload = rows * (11 + 16 + 8 * points);
        println!(
            "{rows} rows x {points} points: payload {payload}, here {bytes}, \
             IPC {ipc} of which schema {stream}"
        );
        assert!(bytes < ipc);
    }
}
