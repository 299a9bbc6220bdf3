use serde_json::{Value, json};

use super::*;
use crate::modbus::testing::{device, tcp, with};

/// The fields that one point's problems are about.
fn fields(point: Value) -> Vec<&'static str> {
    device(&[point])
        .problems()
        .iter()
        .map(|p| p.field)
        .collect()
}

#[test]
fn each_field_is_checked_against_the_type() {
    for (point, expected) in [
        (
            json!({ "register": "holding", "address": 1, "type": "string" }),
            vec!["length"],
        ),
        (
            json!({ "register": "holding", "address": 1, "type": "bytes", "length": 0 }),
            vec!["length"],
        ),
        (
            json!({ "register": "holding", "address": 1, "type": "u64", "length": 2 }),
            vec!["length"],
        ),
        (
            json!({ "register": "holding", "address": 1, "bit": 16 }),
            vec!["bit"],
        ),
        (
            json!({ "register": "holding", "address": 1, "bit": 15 }),
            vec![],
        ),
        (
            json!({ "register": "holding", "address": 1, "bit": 1, "type": "u16" }),
            vec!["type"],
        ),
        (
            json!({ "register": "holding", "address": 1, "type": "bool" }),
            vec!["bit"],
        ),
        (json!({ "register": "coil", "address": 65535 }), vec![]),
        (
            json!({ "register": "coil", "address": 1, "bit": 1 }),
            vec!["bit"],
        ),
        (
            json!({ "register": "discrete", "address": 1, "type": "f32" }),
            vec!["type"],
        ),
        (
            json!({ "register": "coil", "address": 1, "scale": 0.1 }),
            vec!["scale"],
        ),
        (
            json!({ "register": "input", "address": 1, "scale": 0.0 }),
            vec!["scale"],
        ),
        (
            json!({ "register": "input", "address": 1, "byte": "high" }),
            vec!["byte"],
        ),
        (
            json!({ "register": "input", "address": 1, "type": "i8", "byte": "high" }),
            vec![],
        ),
        (
            json!({ "register": "input", "address": 1, "string_bytes": "low" }),
            vec!["string_bytes"],
        ),
        (
            json!({ "register": "input", "address": 65533, "type": "f64" }),
            vec!["address"],
        ),
        (
            json!({ "register": "input", "address": 65532, "type": "f64" }),
            vec![],
        ),
        (
            json!({ "register": "input", "address": 1, "poll": "fast" }),
            vec!["poll"],
        ),
        (
            json!({ "register": "input", "address": 1, "poll": "default" }),
            vec![],
        ),
        (
            json!({ "register": "input", "address": 1, "type": "string", "length": 4, "order": "dcba" }),
            vec!["order"],
        ),
        (
            json!({ "register": "input", "address": 1, "type": "string", "length": 126 }),
            vec!["length"],
        ),
    ] {
        assert_eq!(fields(point.clone()), expected, "{point}");
    }
}

/// Field case A3: 64 bits need 4 registers, and a device that gives 3 cannot be asked for them.
#[test]
fn a03_a_value_wider_than_a_request_is_named() {
    let point = json!({ "name": "energy", "register": "input", "address": 100, "type": "u64" });
    let problems = with(json!({ "max_registers": 3 }), &[point]).problems();
    assert_eq!(problems.len(), 1);
    assert_eq!(
        (problems[0].point_index, problems[0].field),
        (Some(0), "type")
    );
    assert!(
        problems[0].message.contains("`energy`"),
        "{}",
        problems[0].message
    );
    assert!(
        problems[0].message.contains("needs 4 registers"),
        "{}",
        problems[0].message
    );
}

#[test]
fn the_device_itself_is_checked() {
    let point = json!({ "register": "input", "address": 1 });
    for (fields, expected) in [
        (json!({ "max_registers": 126 }), "max_registers"),
        (json!({ "max_bits": 0 }), "max_bits"),
        (json!({ "timeout": "0s" }), "timeout"),
        (json!({ "polls": [] }), "polls"),
        (
            json!({ "polls": [{ "name": "fast", "every": "0s" }] }),
            "polls",
        ),
        (
            json!({ "polls": [{ "name": "a", "every": "1s" }, { "name": "b", "every": "2s" }] }),
            "polls",
        ),
    ] {
        let problems = with(fields.clone(), std::slice::from_ref(&point)).problems();
        assert_eq!(problems.len(), 1, "{fields}: {problems:?}");
        assert_eq!(
            (problems[0].point_index, problems[0].field),
            (None, expected),
            "{fields}"
        );
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
        assert_eq!(
            problems.iter().map(|p| p.field).collect::<Vec<_>>(),
            [expected]
        );
    }
}
