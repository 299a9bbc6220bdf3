use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes as arrow_types;
use serde_json::{Value as Json, json};
use tokio::time::Instant;

use super::*;
use crate::modbus::testing::with;
use crate::table::Quality;

/// Decodes `registers` as one holding register point of a device with `order`.
fn decoded(order: &str, mut point: Json, registers: &[u16]) -> (ArrayRef, Quality) {
    point["register"] = json!("holding");
    point["address"] = json!(0);
    let device = with(json!({ "order": order }), &[point]);
    assert_eq!(device.problems(), [], "{:?}", device.points[0]);
    let mut rows = TableBuilder::new(&device.columns(), false);
    let bytes: Vec<u8> = registers.iter().flat_map(|r| r.to_be_bytes()).collect();
    rows.begin();
    let decoder = PointDecoder::new(&device.points[0], device.order);
    decoder.decode(&bytes, 0, &mut rows, &mut Vec::new());
    rows.end(Instant::now());
    let mut rows = rows.finish();
    (rows.columns.remove(0), rows.qualities[0])
}

fn float(order: &str, point: Json, registers: &[u16]) -> f64 {
    decoded(order, point, registers).0.as_primitive::<arrow_types::Float64Type>().value(0)
}

fn text(order: &str, point: Json, registers: &[u16]) -> String {
    decoded(order, point, registers).0.as_string::<i32>().value(0).to_owned()
}

/// Field case A8: 231.0 V, and the order that makes a denormal of it.
#[test]
fn a08_single_precision_in_two_word_orders() {
    let volts = |order| {
        let (column, _) = decoded(order, json!({ "type": "f32" }), &[0x4367, 0x0000]);
        column.as_primitive::<arrow_types::Float32Type>().value(0)
    };
    assert_eq!(volts("abcd").to_bits(), 231.0_f32.to_bits());
    // 0x00004367 is the denormal 17255 * 2^-149.
    assert_eq!(volts("cdab").to_bits(), 0x0000_4367);
    assert!((f64::from(volts("cdab")) - 2.4179e-41).abs() < 1e-45);
}

/// Field case A8: 0x12345678 in all four orders.
#[test]
fn a08_all_orders_of_32_bits() {
    for (order, expected) in [
        ("abcd", 305_419_896_u32),
        ("cdab", 1_450_709_556),
        ("badc", 873_625_686),
        ("dcba", 2_018_915_346),
    ] {
        let (column, _) = decoded(order, json!({ "type": "u32" }), &[0x1234, 0x5678]);
        assert_eq!(column.as_primitive::<arrow_types::UInt32Type>().value(0), expected, "{order}");
        let (column, _) = decoded(order, json!({ "type": "i32" }), &[0x1234, 0x5678]);
        let expected = expected.cast_signed();
        assert_eq!(column.as_primitive::<arrow_types::Int32Type>().value(0), expected, "{order}");
        // A point's own order wins over the device's.
        let own = json!({ "type": "u32", "order": "abcd" });
        let (column, _) = decoded(order, own, &[0x1234, 0x5678]);
        assert_eq!(column.as_primitive::<arrow_types::UInt32Type>().value(0), 305_419_896);
    }
}

/// Field case A9: 999999999.0 as four kinds of devices send it, and the whole numbers of the same
/// bytes: 0x41CDCD64FF800000 = 4741671816358002688.
#[test]
fn a09_all_orders_of_64_bits() {
    for (order, registers) in [
        ("abcd", [0x41CD, 0xCD64, 0xFF80, 0x0000]),
        ("cdab", [0x0000, 0xFF80, 0xCD64, 0x41CD]),
        ("badc", [0xCD41, 0x64CD, 0x80FF, 0x0000]),
        ("dcba", [0x0000, 0x80FF, 0x64CD, 0xCD41]),
    ] {
        assert_eq!(
            float(order, json!({ "type": "f64" }), &registers).to_bits(),
            999_999_999.0_f64.to_bits(),
            "{order}"
        );
        let (column, _) = decoded(order, json!({ "type": "u64" }), &registers);
        let number = column.as_primitive::<arrow_types::UInt64Type>().value(0);
        assert_eq!(number, 4_741_671_816_358_002_688, "{order}");
        let (column, _) = decoded(order, json!({ "type": "i64" }), &registers);
        let number = column.as_primitive::<arrow_types::Int64Type>().value(0);
        assert_eq!(number, 4_741_671_816_358_002_688, "{order}");
    }
}

#[test]
fn small_numbers() {
    let i16_of = |r| {
        let (column, _) = decoded("dcba", json!({ "type": "i16" }), &[r]);
        column.as_primitive::<arrow_types::Int16Type>().value(0)
    };
    assert_eq!((i16_of(0xFFFF), i16_of(0x8000), i16_of(0x7FFF)), (-1, -32768, 32767));
    let (column, _) = decoded("abcd", json!({}), &[0xFFFF]);
    assert_eq!(column.as_primitive::<arrow_types::UInt16Type>().value(0), 65535);
    let (column, _) = decoded("abcd", json!({ "order": "dcba" }), &[0x1234]);
    assert_eq!(column.as_primitive::<arrow_types::UInt16Type>().value(0), 0x3412);
    let (column, _) = decoded("abcd", json!({ "type": "i8" }), &[0x7F80]);
    assert_eq!(column.as_primitive::<arrow_types::Int8Type>().value(0), -128);
    let (column, _) = decoded("abcd", json!({ "type": "u8", "byte": "high" }), &[0x7F80]);
    assert_eq!(column.as_primitive::<arrow_types::UInt8Type>().value(0), 127);
}

#[test]
fn bits_count_from_the_least_significant() {
    for (bit, expected) in [(0, true), (1, false), (14, false), (15, true)] {
        let (column, _) = decoded("dcba", json!({ "bit": bit }), &[0x8001]);
        assert_eq!(column.as_boolean().value(0), expected, "bit {bit}");
    }
}

/// Values of IEEE 754 binary16 that are commonly tabulated.
#[test]
fn half_precision() {
    for (half, expected) in [
        (0x3C00, 1.0_f32),
        (0xC000, -2.0),
        (0x7BFF, 65504.0),
        (0x3555, 0.333_251_95),
        (0x0001, 5.960_464_5e-8),
        (0x0400, 6.103_515_6e-5),
        (0x8000, -0.0),
    ] {
        let (column, _) = decoded("abcd", json!({ "type": "f16" }), &[half]);
        let value = column.as_primitive::<arrow_types::Float32Type>().value(0);
        assert_eq!(value.to_bits(), expected.to_bits(), "{half:04x}");
    }
    let (column, _) = decoded("abcd", json!({ "type": "f16" }), &[0x7C00]);
    assert!(column.is_null(0));
}

/// Field case A12: a quiet NaN is no value.
#[test]
fn a12_nan_is_null() {
    for point in [json!({ "type": "f32" }), json!({ "type": "f32", "scale": 10.0 })] {
        let (column, quality) = decoded("abcd", point, &[0x7FC0, 0x0000]);
        assert!(column.is_null(0));
        assert_eq!(quality, Quality::Bad);
    }
}

#[test]
fn decimal_digits() {
    let (column, _) = decoded("abcd", json!({ "type": "bcd16" }), &[0x1234]);
    assert_eq!(column.as_primitive::<arrow_types::UInt16Type>().value(0), 1234);
    let (column, _) = decoded("cdab", json!({ "type": "bcd32" }), &[0x5678, 0x1234]);
    assert_eq!(column.as_primitive::<arrow_types::UInt32Type>().value(0), 12_345_678);
    let (column, _) = decoded("abcd", json!({ "type": "bcd32" }), &[0x9999, 0x9999]);
    assert_eq!(column.as_primitive::<arrow_types::UInt32Type>().value(0), 99_999_999);
    let (column, quality) = decoded("abcd", json!({ "type": "bcd16" }), &[0x12A4]);
    assert!(column.is_null(0));
    assert_eq!(quality, Quality::Bad);
}

#[test]
fn scale_and_offset_give_the_decimal_that_was_meant() {
    for (point, registers, expected) in [
        (json!({ "scale": 0.1 }), &[2315_u16][..], 231.5),
        (json!({ "scale": 0.001 }), &[2315], 2.315),
        (json!({ "scale": 10.0 }), &[2315], 23150.0),
        (json!({ "scale": 2.5, "offset": -4.0 }), &[10], 21.0),
        (json!({ "offset": -40.0 }), &[15], -25.0),
        (json!({ "type": "i16", "scale": -0.1 }), &[0xFFFE], 0.2),
        (json!({ "type": "bcd16", "scale": 0.1 }), &[0x0123], 12.3),
    ] {
        let value = float("abcd", point.clone(), registers);
        assert_eq!(value.to_bits(), f64::to_bits(expected), "{point}: {value}");
    }
}

/// Field case A7: one character a register.
#[test]
fn a07_one_character_a_register() {
    let point = |bytes| json!({ "type": "string", "length": 4, "string_bytes": bytes });
    assert_eq!(text("abcd", point("low"), &[0x4D, 0x6F, 0x64, 0x62]), "Modb");
    assert_eq!(text("dcba", point("high"), &[0x4D00, 0x6F00, 0x6400, 0x6200]), "Modb");
    assert_eq!(text("cdab", json!({ "type": "string", "length": 2 }), &[0x4D6F, 0x6462]), "Modb");
    let swapped = json!({ "type": "string", "length": 2, "order": "badc" });
    assert_eq!(text("abcd", swapped, &[0x6F4D, 0x6264]), "Modb");
}

/// Field case A13: "H3-6.0-E" in 16 bytes, then NULs or spaces.
#[test]
fn a13_text_ends_at_nul_and_before_spaces() {
    let point = || json!({ "type": "string", "length": 8 });
    let name = [0x4833, 0x2D36, 0x2E30, 0x2D45];
    for tail in [[0x0000; 4], [0x2020; 4], [0x2000, 0x4141, 0x4141, 0x4141]] {
        let registers = [name, tail].concat();
        assert_eq!(text("abcd", point(), &registers), "H3-6.0-E");
    }
    assert_eq!(text("abcd", point(), &[0; 8]), "");
    // 0xB0 is no UTF-8; the rest of the text and the row stay.
    let odd = [0x41B0, 0x4200, 0, 0, 0, 0, 0, 0];
    assert_eq!(text("abcd", point(), &odd), "A\u{FFFD}B");
}

#[test]
fn raw_bytes_are_untouched() {
    let (column, _) = decoded("dcba", json!({ "type": "bytes", "length": 2 }), &[0x0102, 0xFF00]);
    assert_eq!(column.as_binary::<i32>().value(0), [1, 2, 0xFF, 0]);
}

proptest::proptest! {
    /// Where each byte of a wide value goes is written down here once more, byte by byte.
    #[test]
    fn orders_move_bytes_as_their_letters_say(bytes: [u8; 8]) {
        let [a, b, c, d, e, f, g, h] = bytes;
        for (order, sent) in [
            ("abcd", [a, b, c, d, e, f, g, h]),
            ("cdab", [g, h, e, f, c, d, a, b]),
            ("badc", [b, a, d, c, f, e, h, g]),
            ("dcba", [h, g, f, e, d, c, b, a]),
        ] {
            let registers: Vec<u16> =
                sent.chunks(2).map(|w| u16::from(w[0]) << 8 | u16::from(w[1])).collect();
            let (column, _) = decoded(order, json!({ "type": "u64" }), &registers);
            let number = column.as_primitive::<arrow_types::UInt64Type>().value(0);
            let expected = bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
            assert_eq!(number, expected);
        }
    }
}
