use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
    Float32Array, Float64Array, Int32Array, Int64Array, LargeStringArray, ListArray, NullArray,
    StringArray, StringViewArray, StructArray, Time64MicrosecondArray, TimestampMicrosecondArray,
    TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray, UInt64Array,
};
use arrow::datatypes::{Field, Int32Type, Schema};

use super::*;

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, array)| Field::new(*name, array.data_type().clone(), true))
        .collect();
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

fn texts(columns: Vec<(&str, ArrayRef)>, options: &JsonOptions) -> Vec<String> {
    let rows = json_rows(&batch(columns), options, 41).unwrap();
    rows.iter().map(|row| String::from_utf8(row.to_vec()).unwrap()).collect()
}

fn one(array: impl Array + 'static) -> Vec<String> {
    texts(vec![("x", Arc::new(array))], &JsonOptions::default())
}

#[test]
fn a_row_as_the_wire_page_says() {
    let times = TimestampMicrosecondArray::from(vec![1_541_152_487_000_000, 1_764_423_900_000_001]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("time", Arc::new(times.with_timezone("UTC"))),
        ("device", Arc::new(StringArray::from(vec![Some("press \"7\""), None]))),
        ("u_l1", Arc::new(Float64Array::from(vec![Some(231.0), None]))),
        ("n", Arc::new(Int64Array::from(vec![3, -4]))),
        ("ok", Arc::new(BooleanArray::from(vec![true, false]))),
    ];
    assert_eq!(
        texts(columns.clone(), &JsonOptions::default()),
        [
            r#"{"time":"2018-11-02T09:54:47.000000Z","device":"press \"7\"","u_l1":231.0,"n":3,"ok":true}"#,
            r#"{"time":"2025-11-29T13:45:00.000001Z","device":null,"u_l1":null,"n":-4,"ok":false}"#,
        ]
    );
    let meta = Meta { id_prefix: "press-shop-07/3/energy_10s".into(), quality: "uncertain" };
    let options = JsonOptions { meta: Some(meta), ..JsonOptions::default() };
    assert_eq!(
        texts(columns[2..3].to_vec(), &options),
        [
            r#"{"_id":"press-shop-07/3/energy_10s/41","_quality":"uncertain","u_l1":231.0}"#,
            r#"{"_id":"press-shop-07/3/energy_10s/42","_quality":"uncertain","u_l1":null}"#,
        ]
    );
}

#[test]
fn numbers_are_shortest_and_finite() {
    let floats = vec![0.1, -0.0, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 16_777_217.0];
    assert_eq!(
        one(Float64Array::from(floats)),
        [
            r#"{"x":0.1}"#,
            r#"{"x":-0.0}"#,
            r#"{"x":1e+300}"#,
            r#"{"x":null}"#,
            r#"{"x":null}"#,
            r#"{"x":null}"#,
            r#"{"x":16777217.0}"#
        ]
    );
    assert_eq!(one(Float32Array::from(vec![0.1_f32, f32::NAN])), [r#"{"x":0.1}"#, r#"{"x":null}"#]);
    let decimal = Decimal128Array::from(vec![Some(-12_345), None]);
    let decimal = decimal.with_precision_and_scale(10, 2).unwrap();
    assert_eq!(one(decimal), [r#"{"x":-123.45}"#, r#"{"x":null}"#]);
}

#[test]
fn integers_beyond_2_to_the_53_are_strings_where_asked() {
    let signed = || {
        let values = vec![1 << 53, (1 << 53) + 1, i64::MIN];
        vec![("x", Arc::new(Int64Array::from(values)) as ArrayRef)]
    };
    let strings = JsonOptions { int64_as_string: true, ..JsonOptions::default() };
    assert_eq!(
        texts(signed(), &strings),
        [
            r#"{"x":9007199254740992}"#,
            r#"{"x":"9007199254740993"}"#,
            r#"{"x":"-9223372036854775808"}"#
        ]
    );
    assert_eq!(texts(signed(), &JsonOptions::default())[2], r#"{"x":-9223372036854775808}"#);
    let unsigned = vec![("x", Arc::new(UInt64Array::from(vec![u64::MAX])) as ArrayRef)];
    assert_eq!(texts(unsigned, &strings), [r#"{"x":"18446744073709551615"}"#]);
}

#[test]
fn times_of_every_unit_and_century() {
    assert_eq!(
        one(TimestampMicrosecondArray::from(vec![
            0,
            -1,
            951_782_400_000_000,
            2_147_483_648_000_000,
            4_107_542_399_999_999,
            -62_167_219_200_000_000,
            253_402_300_799_999_999,
            253_402_300_800_000_000,
        ])),
        [
            r#"{"x":"1970-01-01T00:00:00.000000Z"}"#,
            r#"{"x":"1969-12-31T23:59:59.999999Z"}"#,
            r#"{"x":"2000-02-29T00:00:00.000000Z"}"#,
            r#"{"x":"2038-01-19T03:14:08.000000Z"}"#,
            r#"{"x":"2100-02-28T23:59:59.999999Z"}"#,
            r#"{"x":"0000-01-01T00:00:00.000000Z"}"#,
            r#"{"x":"9999-12-31T23:59:59.999999Z"}"#,
            r#"{"x":null}"#,
        ]
    );
    let second = r#"{"x":"1970-01-01T00:00:01.000000Z"}"#;
    assert_eq!(one(TimestampSecondArray::from(vec![1, i64::MAX])), [second, r#"{"x":null}"#]);
    assert_eq!(one(TimestampMillisecondArray::from(vec![1_000])), [second]);
    assert_eq!(one(TimestampNanosecondArray::from(vec![1_000_000_999])), [second]);
    assert_eq!(one(Date32Array::from(vec![11_016])), [r#"{"x":"2000-02-29"}"#]);
    assert_eq!(
        one(Time64MicrosecondArray::from(vec![49_500_000_001])),
        [r#"{"x":"13:45:00.000001"}"#]
    );
}

#[test]
fn bytes_texts_and_nested_values() {
    // RFC 4648, section 10.
    let vectors: Vec<&[u8]> = vec![b"", b"f", b"fo", b"foo", b"foob", b"fooba", b"foobar"];
    let expected = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
    let rows = one(BinaryArray::from(vectors));
    assert_eq!(rows, expected.map(|text| format!(r#"{{"x":"{text}"}}"#)));
    assert_eq!(one(BinaryArray::from(vec![&[0xfb, 0xff][..]])), [r#"{"x":"+/8="}"#]);

    let odd = "tab\t, \u{1}, €";
    let expected = ["{\"x\":\"tab\\t, \\u0001, €\"}"];
    assert_eq!(one(StringArray::from(vec![odd])), expected);
    assert_eq!(one(LargeStringArray::from(vec![odd])), expected);
    assert_eq!(one(StringViewArray::from(vec![odd])), expected);
    let words: DictionaryArray<Int32Type> = vec![Some("on"), None].into_iter().collect();
    assert_eq!(one(words), [r#"{"x":"on"}"#, r#"{"x":null}"#]);

    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
    ]);
    assert_eq!(one(lists), [r#"{"x":[1,null]}"#, r#"{"x":null}"#, r#"{"x":[]}"#]);
    let number: ArrayRef = Arc::new(Int32Array::from(vec![7]));
    let inner = StructArray::try_from(vec![("a", number.clone()), ("b", number)]).unwrap();
    assert_eq!(one(inner), [r#"{"x":{"a":7,"b":7}}"#]);
    assert_eq!(one(NullArray::new(1)), [r#"{"x":null}"#]);
}

#[test]
fn nothing_in_nothing_out() {
    assert!(one(Int32Array::from(Vec::<i32>::new())).is_empty());
}
