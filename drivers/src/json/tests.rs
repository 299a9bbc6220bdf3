//! Messages by table: what becomes a value, what a reason, and what no row at all.

use arrow::array::AsArray;
use arrow::datatypes::{Float64Type, Int64Type, UInt64Type};

use super::*;
use crate::point::{DataType, Point};
use crate::table::{Quality, Rows as TableRows};

fn field(name: &str, value_type: FieldType, path: Option<&str>) -> FieldPoint {
    FieldPoint {
        name: name.parse().unwrap(),
        value_type,
        path: path.map(str::to_owned),
        unit: None,
    }
}

/// Decodes with the points `b`, `i`, `u`, `f`, `s` at paths of the same names but `f`, which is
/// at `deep.f`.
fn decode(json: &JsonDecode, message: &str) -> Result<TableRows, String> {
    let fields = [
        field("b", FieldType::Bool, None),
        field("i", FieldType::I64, None),
        field("u", FieldType::U64, None),
        field("f", FieldType::F64, Some("deep.f")),
        field("s", FieldType::String, None),
    ];
    let mut columns: Vec<_> =
        fields.iter().map(|f| Point::new(f.name.as_str(), f.value_type.data_type())).collect();
    columns.push(Point::metadata("topic", DataType::Utf8));
    columns.push(Point::metadata("qos", DataType::UInt8));
    columns.push(Point::metadata("retained", DataType::Boolean));
    let mut decoder = Decoder::new(&fields, json);
    let mut table = TableBuilder::new(&columns, true);
    let count = decoder.read(message.as_bytes())?;
    let arrived = Instant::now();
    let timeless =
        decoder.append(&mut table, Origin { topic: "t", qos: 1, retained: true, arrived });
    let rows = table.finish();
    assert_eq!(rows.len(), count);
    let without = rows.times.iter().filter(|t| t.is_none()).count() as u64;
    assert_eq!(timeless, if json.time.is_some() { without } else { 0 });
    Ok(rows)
}

/// The reasons of the five points of the only row, in order.
fn reasons(message: &str) -> Vec<Option<String>> {
    let rows = decode(&JsonDecode::default(), message).unwrap();
    assert_eq!(rows.len(), 1, "{message}");
    rows.point_qualities
        .iter()
        .map(|(_, reason)| reason.as_string::<i32>().iter().next().unwrap().map(str::to_owned))
        .collect()
}

#[test]
fn a_whole_message_becomes_a_row() {
    let message = r#"{"b":true,"i":-5,"u":18446744073709551615,"deep":{"x":[1],"f":2.5},
        "other":{"i":1},"s":"Gr\u00fc\u00dfe"}"#;
    let rows = decode(&JsonDecode::default(), message).unwrap();
    assert_eq!(rows.qualities, [Quality::Good]);
    assert!(rows.columns[0].as_boolean().value(0));
    assert_eq!(rows.columns[1].as_primitive::<Int64Type>().value(0), -5);
    assert_eq!(rows.columns[2].as_primitive::<UInt64Type>().value(0), u64::MAX);
    assert_eq!(rows.columns[3].as_primitive::<Float64Type>().value(0).to_bits(), 2.5f64.to_bits());
    assert_eq!(rows.columns[4].as_string::<i32>().value(0), "Grüße");
    assert_eq!(rows.columns[5].as_string::<i32>().value(0), "t");
    assert!(rows.columns[7].as_boolean().value(0));
}

#[test]
fn nothing_is_coerced() {
    let all = |word: &str| vec![Some(word.to_owned()); 5];
    assert_eq!(reasons("{}"), all("missing"));
    let nulls = r#"{"b":null,"i":null,"u":null,"deep":{"f":null},"s":null}"#;
    assert_eq!(reasons(nulls), all("missing"));
    assert_eq!(reasons(r#"{"deep":null,"b":1}"#)[0].as_deref(), Some("wrong_type"));
    for (i, reason) in [
        ("3.0", Some("wrong_type")),
        ("3.5", Some("wrong_type")),
        ("\"3\"", Some("wrong_type")),
        ("true", Some("wrong_type")),
        ("[3]", Some("wrong_type")),
        ("{}", Some("wrong_type")),
        ("3", None),
        ("-9223372036854775808", None),
        ("9223372036854775808", Some("out_of_range")),
    ] {
        assert_eq!(reasons(&format!("{{\"i\":{i}}}"))[1].as_deref(), reason, "{i}");
    }
    for (u, reason) in [("-1", Some("out_of_range")), ("1.0", Some("wrong_type")), ("0", None)] {
        assert_eq!(reasons(&format!("{{\"u\":{u}}}"))[2].as_deref(), reason, "{u}");
    }
    for (f, reason) in [("3", None), ("-3", None), ("3e2", None), ("\"3\"", Some("wrong_type"))] {
        assert_eq!(reasons(&format!("{{\"deep\":{{\"f\":{f}}}}}"))[3].as_deref(), reason, "{f}");
    }
    // The last of two equal keys counts, whatever came before.
    assert_eq!(reasons(r#"{"i":"x","i":4}"#)[1], None);
    assert_eq!(reasons(r#"{"s":5}"#)[4].as_deref(), Some("wrong_type"));
}

#[test]
fn rows_come_from_an_array() {
    let plain = JsonDecode::default();
    let nested = JsonDecode { rows: Some("data.items".to_owned()), ..JsonDecode::default() };
    let three = r#"[{"i":1},{"i":2},{"i":3}]"#;
    for (json, message, values) in [
        (&plain, three.to_owned(), vec![1, 2, 3]),
        (&plain, "[]".to_owned(), vec![]),
        (
            &nested,
            format!(r#"{{"i":9,"data":{{"n":1,"items":{three}}},"x":[{{"i":7}}]}}"#),
            vec![1, 2, 3],
        ),
        (&nested, r#"{"data":{"items":[]}}"#.to_owned(), vec![]),
    ] {
        let rows = decode(json, &message).unwrap();
        let column = rows.columns[1].as_primitive::<Int64Type>();
        assert_eq!(column.values().to_vec(), values, "{message}");
    }
}

#[test]
fn a_message_of_another_shape_gives_no_row_at_all() {
    let plain = JsonDecode::default();
    let nested = JsonDecode { rows: Some("data.items".to_owned()), ..JsonDecode::default() };
    for (json, message) in [
        (&plain, ""),
        (&plain, "hello"),
        (&plain, "{\"i\":1"),
        (&plain, "{\"i\":NaN}"),
        (&plain, "{\"i\":1} {\"i\":2}"),
        (&plain, "5"),
        (&plain, "[{\"i\":1},2]"),
        (&plain, "[{\"i\":1},{\"i\":2}"),
        (&nested, "{\"i\":1}"),
        (&nested, "[{\"i\":1}]"),
        (&nested, "{\"data\":{\"items\":{\"i\":1}}}"),
        (&nested, "{\"data\":[]}"),
        (&nested, "{\"data\":{\"items\":[{}],\"items\":[{}]}}"),
    ] {
        decode(json, message).unwrap_err();
    }
    decode(&plain, &"[".repeat(10_000)).unwrap_err();
    let bomb = format!("[{}{{}}]", "{},".repeat(CELLS_MAX / 5));
    assert!(decode(&plain, &bomb).unwrap_err().contains("more than"));
}

#[test]
fn times_are_microseconds_of_utc() {
    // 2018-11-02T09:54:46Z is 1541152486 (date -u -d @1541152486).
    let second = 1_541_152_486_000_000;
    for (unit, text, micros) in [
        (EpochUnit::S, "1541152486", Some(second)),
        (EpochUnit::S, "1541152486.25", Some(second + 250_000)),
        (EpochUnit::Ms, "1541152486001", Some(second + 1_000)),
        (EpochUnit::Us, "1541152486000001", Some(second + 1)),
        (EpochUnit::Us, "-1", Some(-1)),
        // Beyond 64 bits: the last instant, which is the future for everybody.
        (EpochUnit::S, "9223372036854775807", Some(i64::MAX)),
        (EpochUnit::Us, "18446744073709551615", Some(i64::MAX)),
        (EpochUnit::S, "1e300", Some(i64::MAX)),
        (EpochUnit::S, "-1e300", Some(i64::MIN)),
        (EpochUnit::Ms, "\"2018-11-02T09:54:46Z\"", Some(second)),
        (EpochUnit::Ms, "\"2018-11-02T10:54:46.000001+01:00\"", Some(second + 1)),
        (EpochUnit::Ms, "\"2018-11-02t09:54:46.5z\"", Some(second + 500_000)),
        (EpochUnit::Ms, "\"2018-11-02T09:54:46\"", None),
        (EpochUnit::Ms, "\"2018-11-02\"", None),
        (EpochUnit::Ms, "\"1541152486\"", None),
        (EpochUnit::Ms, "\"2018-13-02T09:54:46Z\"", None),
        (EpochUnit::Ms, "true", None),
        (EpochUnit::Ms, "null", None),
    ] {
        let json = JsonDecode { time: Some("at.ts".to_owned()), time_unit: unit, rows: None };
        let rows = decode(&json, &format!("{{\"i\":1,\"at\":{{\"ts\":{text}}}}}")).unwrap();
        assert_eq!(rows.times, [micros], "{text}");
    }
}
