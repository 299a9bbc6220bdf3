//! How a number lies in registers: pure functions from a value to the words on the wire.
//!
//! Written from the specification, so that a client's decoder and this encoder can be wrong
//! together only by the same misreading: "big-Endian representation for addresses and data items",
//! Modbus Application Protocol V1.1b3, section 4.2; IEEE 754-2019 for floats. The other orders of
//! words and bytes are habits of vendors.

use std::ops::RangeInclusive;

use crate::south::generate::{RampWave, SineWave, Wave};
#[cfg(feature = "io")]
use crate::south::modbus::Order;
use crate::south::modbus::ValueType;

/// Registers (or bits) that a value takes.
pub(super) fn width(value_type: ValueType) -> u16 {
    match value_type {
        ValueType::I32 | ValueType::U32 | ValueType::F32 | ValueType::Bcd32 => 2,
        ValueType::I64 | ValueType::U64 | ValueType::F64 => 4,
        _ => 1,
    }
}

/// The raw values that a type holds; `None` for types without numbers. For floats, the finite
/// ones.
pub(super) fn range(value_type: ValueType) -> Option<RangeInclusive<f64>> {
    Some(match value_type {
        ValueType::Bool => f64::NEG_INFINITY..=f64::INFINITY,
        ValueType::I8 => f64::from(i8::MIN)..=f64::from(i8::MAX),
        ValueType::U8 => 0.0..=f64::from(u8::MAX),
        ValueType::I16 => f64::from(i16::MIN)..=f64::from(i16::MAX),
        ValueType::U16 => 0.0..=f64::from(u16::MAX),
        ValueType::I32 => f64::from(i32::MIN)..=f64::from(i32::MAX),
        ValueType::U32 => 0.0..=f64::from(u32::MAX),
        ValueType::I64 => i64::MIN as f64..=i64::MAX as f64,
        ValueType::U64 => 0.0..=u64::MAX as f64,
        ValueType::F16 => -65_504.0..=65_504.0,
        ValueType::F32 => f64::from(f32::MIN)..=f64::from(f32::MAX),
        ValueType::F64 => f64::MIN..=f64::MAX,
        ValueType::Bcd16 => 0.0..=9_999.0,
        ValueType::Bcd32 => 0.0..=99_999_999.0,
        ValueType::String | ValueType::Bytes => return None,
    })
}

/// The last value that a counter reaches before it begins anew: the largest whole number that the
/// type holds without a gap below it.
#[cfg(feature = "io")]
pub(super) fn counter_max(value_type: ValueType) -> i64 {
    match value_type {
        ValueType::Bool => 1,
        ValueType::I8 => i64::from(i8::MAX),
        ValueType::U8 => i64::from(u8::MAX),
        ValueType::I16 => i64::from(i16::MAX),
        ValueType::U16 => i64::from(u16::MAX),
        ValueType::I32 => i64::from(i32::MAX),
        ValueType::U32 => i64::from(u32::MAX),
        ValueType::I64 | ValueType::U64 | ValueType::String | ValueType::Bytes => i64::MAX,
        ValueType::F16 => 1 << 11,
        ValueType::F32 => 1 << 24,
        ValueType::F64 => 1 << 53,
        ValueType::Bcd16 => 9_999,
        ValueType::Bcd32 => 99_999_999,
    }
}

/// The lowest and highest raw value of a waveform.
pub(super) fn extremes(wave: &Wave, scale: Option<f64>) -> Option<(f64, f64)> {
    let (a, b) = match wave {
        Wave::Constant(value) => (*value, *value),
        Wave::Counter(counter) => {
            let last = counter.modulo.map_or(counter.start, |m| counter.nth(m.unsigned_abs() - 1));
            (counter.start as f64, last as f64)
        }
        Wave::Sine(SineWave { amplitude, offset, .. }) => (offset - amplitude, offset + amplitude),
        Wave::Ramp(RampWave { low, high, .. }) => (*low, *high),
        Wave::Choice(_) => return None,
    };
    let scale = scale.unwrap_or(1.0);
    Some(((a / scale).min(b / scale), (a / scale).max(b / scale)))
}

/// A simulated value in the unit of its registers, before it is rounded to their type.
#[cfg(feature = "io")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    /// A waveform's value, already divided by the scale.
    Real(f64),
    /// A counter's value.
    Whole(i64),
}

#[cfg(feature = "io")]
impl Number {
    /// The value of a coil or discrete input.
    pub(super) fn is_on(self) -> bool {
        self.real() >= 0.5
    }

    fn real(self) -> f64 {
        match self {
            Self::Real(value) => value,
            Self::Whole(value) => value as f64,
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "saturates; the range was checked at load")]
    fn whole(self) -> i64 {
        match self {
            Self::Real(value) => value.round() as i64,
            Self::Whole(value) => value,
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates; the range was checked at load"
    )]
    fn unsigned(self) -> u64 {
        match self {
            Self::Real(value) => value.round() as u64,
            Self::Whole(value) => u64::try_from(value).unwrap_or(0),
        }
    }
}

/// The registers of a value, `width(value_type)` of them.
#[cfg(feature = "io")]
pub(super) fn encode(value_type: ValueType, order: Order, number: Number) -> Vec<u16> {
    let whole = number.whole().to_be_bytes();
    let unsigned = number.unsigned();
    let mut bytes: Vec<u8> = match value_type {
        ValueType::Bool => vec![0, u8::from(number.is_on())],
        // An 8 bit value lies in the low byte; the high byte is unused and zero.
        ValueType::I8 | ValueType::U8 => vec![0, whole[7]],
        ValueType::I16 | ValueType::U16 => whole[6..].to_vec(),
        ValueType::I32 | ValueType::U32 => whole[4..].to_vec(),
        ValueType::I64 => whole.to_vec(),
        ValueType::U64 => unsigned.to_be_bytes().to_vec(),
        ValueType::F16 => half(number.real()).to_be_bytes().to_vec(),
        ValueType::F32 => single(number.real()).to_be_bytes().to_vec(),
        ValueType::F64 => number.real().to_be_bytes().to_vec(),
        ValueType::Bcd16 => bcd(unsigned, 2),
        ValueType::Bcd32 => bcd(unsigned, 4),
        ValueType::String | ValueType::Bytes => {
            unreachable!("refused when the document is checked")
        }
    };
    // Orders are about values of more than one register.
    if bytes.len() > 2 {
        if matches!(order, Order::Dcba | Order::Cdab) {
            bytes.reverse();
        }
        if matches!(order, Order::Badc | Order::Cdab) {
            bytes.chunks_exact_mut(2).for_each(|word| word.swap(0, 1));
        }
    }
    bytes.chunks_exact(2).map(|word| u16::from_be_bytes([word[0], word[1]])).collect()
}

#[cfg(feature = "io")]
#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest single, as intended")]
fn single(value: f64) -> f32 {
    value as f32
}

/// Half precision by way of arrow's own type, so that no other crate is needed for it.
#[cfg(feature = "io")]
fn half(value: f64) -> u16 {
    use arrow::datatypes::{ArrowPrimitiveType, Float16Type};
    <Float16Type as ArrowPrimitiveType>::Native::from_f64(value).to_bits()
}

/// Two decimal digits a byte, most significant first.
#[cfg(feature = "io")]
fn bcd(mut value: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for byte in bytes.iter_mut().rev() {
        let digits = u8::try_from(value % 100).unwrap_or(0);
        *byte = ((digits / 10) << 4) | (digits % 10);
        value /= 100;
    }
    bytes
}

#[cfg(all(test, feature = "io"))]
mod tests {
    use super::*;

    /// Each expectation is written by hand from IEEE 754 and two's complement:
    /// 231.0 = 1.8046875 * 2^7 is sign 0, exponent 0x86, mantissa 0x670000: 0x43670000.
    #[test]
    fn values_lie_as_the_specification_says() {
        use Number::{Real, Whole};
        use ValueType as T;
        let cases: [(T, Number, &[u16]); 19] = [
            (T::F32, Real(231.0), &[0x4367, 0x0000]),
            (T::F32, Real(-1.5), &[0xBFC0, 0x0000]),
            (T::F64, Real(231.0), &[0x406C, 0xE000, 0x0000, 0x0000]),
            (T::F16, Real(-2.0), &[0xC000]),
            (T::F16, Real(65_504.0), &[0x7BFF]),
            (T::I16, Real(-2.4), &[0xFFFE]),
            (T::U16, Real(65_535.0), &[0xFFFF]),
            (T::I8, Real(-1.0), &[0x00FF]),
            (T::U8, Real(200.0), &[0x00C8]),
            (T::I32, Real(-2.0), &[0xFFFF, 0xFFFE]),
            (T::U32, Real(4_000_000_000.0), &[0xEE6B, 0x2800]),
            (T::U32, Whole(65_537), &[0x0001, 0x0001]),
            (T::I64, Whole(-2), &[0xFFFF, 0xFFFF, 0xFFFF, 0xFFFE]),
            (T::U64, Real(18_446_744_073_709_549_568.0), &[0xFFFF, 0xFFFF, 0xFFFF, 0xF800]),
            (T::Bcd16, Whole(1234), &[0x1234]),
            (T::Bcd32, Real(12_345_678.0), &[0x1234, 0x5678]),
            (T::Bcd32, Whole(7), &[0x0000, 0x0007]),
            (T::Bool, Real(0.5), &[0x0001]),
            (T::Bool, Real(0.4), &[0x0000]),
        ];
        for (value_type, number, words) in cases {
            assert_eq!(encode(value_type, Order::Abcd, number), words, "{value_type:?} {number:?}");
            assert_eq!(words.len(), usize::from(width(value_type)));
        }
    }

    #[test]
    fn orders_move_words_and_bytes() {
        let encode = |value_type, order, n| encode(value_type, order, Number::Whole(n));
        for (order, words) in [
            (Order::Abcd, [0x0102, 0x0304]),
            (Order::Cdab, [0x0304, 0x0102]),
            (Order::Badc, [0x0201, 0x0403]),
            (Order::Dcba, [0x0403, 0x0201]),
        ] {
            assert_eq!(encode(ValueType::U32, order, 0x0102_0304), words, "{order:?}");
            assert_eq!(encode(ValueType::U16, order, 0x0102), [0x0102], "{order:?}");
        }
        for (order, words) in [
            (Order::Cdab, [0x0708, 0x0506, 0x0304, 0x0102]),
            (Order::Badc, [0x0201, 0x0403, 0x0605, 0x0807]),
            (Order::Dcba, [0x0807, 0x0605, 0x0403, 0x0201]),
        ] {
            assert_eq!(encode(ValueType::I64, order, 0x0102_0304_0506_0708), words, "{order:?}");
        }
    }
}
