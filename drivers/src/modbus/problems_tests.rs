use serde_json::{Value, json};

use super::*;
use crate::modbus::testing::{device, tcp, with};

/// A point (at address 1 where none is given), and the field that is wrong.
const POINTS: [(&str, &str); 21] = [
    (r#"{ "register": "holding", "type": "string" }"#, "length"),
    (r#"{ "register": "holding", "type": "bytes", "length": 0 }"#, "length"),
    (r#"{ "register": "holding", "type": "u64", "length": 2 }"#, "length"),
    (r#"{ "register": "input", "type": "string", "length": 126 }"#, "length"),
    (r#"{ "register": "holding", "bit": 16 }"#, "bit"),
    (r#"{ "register": "holding", "bit": 15 }"#, ""),
    (r#"{ "register": "holding", "bit": 1, "type": "u16" }"#, "type"),
    (r#"{ "register": "holding", "type": "bool" }"#, "bit"),
    (r#"{ "register": "coil", "address": 65535 }"#, ""),
    (r#"{ "register": "coil", "bit": 1 }"#, "bit"),
    (r#"{ "register": "discrete", "type": "f32" }"#, "type"),
    (r#"{ "register": "coil", "scale": 0.1 }"#, "scale"),
    (r#"{ "register": "input", "scale": 0.0 }"#, "scale"),
    (r#"{ "register": "input", "byte": "high" }"#, "byte"),
    (r#"{ "register": "input", "type": "i8", "byte": "high" }"#, ""),
    (r#"{ "register": "input", "string_bytes": "low" }"#, "string_bytes"),
    (r#"{ "register": "input", "address": 65533, "type": "f64" }"#, "address"),
    (r#"{ "register": "input", "address": 65532, "type": "f64" }"#, ""),
    (r#"{ "register": "input", "poll": "fast" }"#, "poll"),
    (r#"{ "register": "input", "poll": "default" }"#, ""),
    (r#"{ "register": "input", "type": "string", "length": 4, "order": "dcba" }"#, "order"),
];

#[test]
fn each_field_is_checked_against_the_type() {
    for (text, expected) in POINTS {
        let mut point: Value = serde_json::from_str(text).unwrap();
        if point.get("address").is_none() {
            point["address"] = json!(1);
        }
        let problems = device(&[point]).problems();
        let fields: Vec<_> = problems.iter().map(|p| p.field).collect();
        let expected: Vec<_> = Some(expected).filter(|e| !e.is_empty()).into_iter().collect();
        assert_eq!(fields, expected, "{text}");
    }
}

/// Field case A3: 64 bits need 4 registers, and a device that gives 3 cannot be asked for them.
#[test]
fn a03_a_value_wider_than_a_request_is_named() {
    let point = json!({ "name": "energy", "register": "input", "address": 100, "type": "u64" });
    let problems = with(json!({ "max_registers": 3 }), &[point]).problems();
    assert_eq!(problems.len(), 1);
    assert_eq!((problems[0].point_index, problems[0].field), (Some(0), "type"));
    assert!(problems[0].message.contains("`energy`"), "{}", problems[0].message);
    assert!(problems[0].message.contains("needs 4 registers"), "{}", problems[0].message);
}

#[test]
fn the_device_itself_is_checked() {
    let point = json!({ "register": "input", "address": 1 });
    for (fields, expected) in [
        (json!({ "max_registers": 126 }), "max_registers"),
        (json!({ "max_bits": 0 }), "max_bits"),
        (json!({ "timeout": "0s" }), "timeout"),
        (json!({ "polls": [] }), "polls"),
        (json!({ "polls": [{ "name": "fast", "every": "0s" }] }), "polls"),
        (
            json!({ "polls": [{ "name": "a", "every": "1s" }, { "name": "b", "every": "2s" }] }),
            "polls",
        ),
    ] {
        let problems = with(fields.clone(), std::slice::from_ref(&point)).problems();
        assert_eq!(problems.len(), 1, "{fields}: {problems:?}");
        assert_eq!((problems[0].point_index, problems[0].field), (None, expected), "{fields}");
    }
    assert_eq!(device(&[]).problems()[0].field, "points");
}

#[test]
fn a_link_is_checked() {
    assert!(Bus::Tcp(tcp(json!({}))).problems().is_empty());
    for (fields, expected) in [
        (json!({ "port": 0 }), "port"),
        (json!({ "connect_timeout": "0s" }), "connect_timeout"),
        (json!({ "backoff_min": "1m" }), "backoff_max"),
    ] {
        let problems = Bus::Tcp(tcp(fields)).problems();
        assert_eq!(problems.iter().map(|p| p.field).collect::<Vec<_>>(), [expected]);
    }
}
