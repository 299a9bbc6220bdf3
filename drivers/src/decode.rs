//! Values out of registers: every type and order, straight into a table, without an allocation.
//!
//! A [`PointDecoder`] is made once a point from the configuration; decoding is a pure function of
//! the register bytes as they came off the wire (high byte first). A value that cannot be right is
//! null with a reason, never a number. Knows no requests and no addresses.

use crate::south::modbus::{ByteHalf, ModbusPoint, Order, StringBytes, ValueType};
use crate::table::{Reason, TableBuilder, Value};

/// What can come out of registers.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// A bit of a register, 0 being the least significant.
    Bit(u8),
    Number(Number),
    Text(StringBytes),
    Bytes,
}

#[derive(Debug, Clone, Copy)]
enum Number {
    I8(ByteHalf),
    U8(ByteHalf),
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Bcd16,
    Bcd32,
}

/// How the raw number becomes the value.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Scaling {
    factor: Factor,
    offset: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Factor {
    Times(f64),
    /// For scales such as 0.1 or 0.001: 2315 / 10 is 231.5, but 2315 * 0.1 is 231.50000000000003.
    Over(f64),
}

impl Scaling {
    fn of(point: &ModbusPoint) -> Option<Self> {
        if point.scale.is_none() && point.offset.is_none() {
            return None;
        }
        let scale = point.scale.unwrap_or(1.0);
        let inverse = (1.0 / scale).round();
        // Exact only where the decimal that was written is the nearest number to 1/n.
        let exact = inverse.abs() > 1.0 && inverse.abs() <= 1e15 && same(1.0 / inverse, scale);
        let factor = if exact { Factor::Over(inverse) } else { Factor::Times(scale) };
        Some(Self { factor, offset: point.offset.unwrap_or(0.0) })
    }

    fn apply(self, raw: f64) -> f64 {
        let scaled = match self.factor {
            Factor::Times(scale) => raw * scale,
            Factor::Over(divisor) => raw / divisor,
        };
        scaled + self.offset
    }
}

fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits()
}

/// Decodes one point.
#[derive(Debug, Clone)]
pub struct PointDecoder {
    shape: Shape,
    order: Order,
    quantity: u16,
    /// Few points have one, and there is a decoder for each point.
    scaling: Option<Box<Scaling>>,
}

impl PointDecoder {
    /// Prepares the decoding of `point` on a device whose wide values have `order`. The point has
    /// passed [`crate::south::modbus::ModbusDevice::problems`].
    pub fn new(point: &ModbusPoint, order: Order) -> Self {
        let half = point.byte.unwrap_or_default();
        let shape = match point.effective_type() {
            ValueType::Bool => Shape::Bit(point.bit.unwrap_or(0)),
            ValueType::I8 => Shape::Number(Number::I8(half)),
            ValueType::U8 => Shape::Number(Number::U8(half)),
            ValueType::I16 => Shape::Number(Number::I16),
            ValueType::U16 => Shape::Number(Number::U16),
            ValueType::I32 => Shape::Number(Number::I32),
            ValueType::U32 => Shape::Number(Number::U32),
            ValueType::I64 => Shape::Number(Number::I64),
            ValueType::U64 => Shape::Number(Number::U64),
            ValueType::F16 => Shape::Number(Number::F16),
            ValueType::F32 => Shape::Number(Number::F32),
            ValueType::F64 => Shape::Number(Number::F64),
            ValueType::Bcd16 => Shape::Number(Number::Bcd16),
            ValueType::Bcd32 => Shape::Number(Number::Bcd32),
            ValueType::String => Shape::Text(point.string_bytes.unwrap_or_default()),
            ValueType::Bytes => Shape::Bytes,
        };
        let wide = matches!(shape, Shape::Number(_)) && point.quantity() > 1;
        // The device's order speaks of wide values only; a point's own speaks of that point.
        let order = point.order.unwrap_or(if wide { order } else { Order::Abcd });
        Self { shape, order, quantity: point.quantity(), scaling: Scaling::of(point).map(Box::new) }
    }

    /// The bytes that [`PointDecoder::decode`] needs.
    pub fn len(&self) -> usize {
        2 * usize::from(self.quantity)
    }

    /// True for a point without registers.
    pub fn is_empty(&self) -> bool {
        self.quantity == 0
    }

    /// Appends a coil or discrete input to column `column` of the open row.
    pub fn decode_bit(&self, bit: bool, column: usize, rows: &mut TableBuilder) {
        rows.value(column, Value::Bool(bit));
    }

    /// Decodes the point's registers into column `column` of the open row. `scratch` is reused for
    /// text.
    ///
    /// # Panics
    /// When `registers` is not [`PointDecoder::len`] bytes long: a bug of the caller.
    pub fn decode(
        &self,
        registers: &[u8],
        column: usize,
        rows: &mut TableBuilder,
        scratch: &mut Vec<u8>,
    ) {
        assert_eq!(registers.len(), self.len(), "a point's registers are whole");
        match self.shape {
            Shape::Bit(bit) => {
                let word = u16::from_be_bytes(self.ordered(registers));
                rows.value(column, Value::Bool(word >> bit & 1 == 1));
            }
            Shape::Text(bytes) => self.text(bytes, registers, column, rows, scratch),
            Shape::Bytes => {
                self.in_byte_order(registers, scratch);
                rows.value(column, Value::Bytes(scratch));
            }
            Shape::Number(number) => match self.number(number, registers) {
                Some(value) => rows.value(column, self.scaled(value)),
                None => rows.fail(column, Reason::OutOfRange),
            },
        }
    }

    /// The raw number; `None` where the digits are not decimal.
    fn number(&self, number: Number, registers: &[u8]) -> Option<Value<'static>> {
        let half = |half: ByteHalf| {
            let [high, low]: [u8; 2] = self.ordered(registers);
            match half {
                ByteHalf::High => high,
                ByteHalf::Low => low,
            }
        };
        Some(match number {
            Number::I8(which) => Value::I8(half(which).cast_signed()),
            Number::U8(which) => Value::U8(half(which)),
            Number::I16 => Value::I16(i16::from_be_bytes(self.ordered(registers))),
            Number::U16 => Value::U16(u16::from_be_bytes(self.ordered(registers))),
            Number::I32 => Value::I32(i32::from_be_bytes(self.ordered(registers))),
            Number::U32 => Value::U32(u32::from_be_bytes(self.ordered(registers))),
            Number::I64 => Value::I64(i64::from_be_bytes(self.ordered(registers))),
            Number::U64 => Value::U64(u64::from_be_bytes(self.ordered(registers))),
            Number::F16 => Value::F32(half_to_f32(u16::from_be_bytes(self.ordered(registers)))),
            Number::F32 => Value::F32(f32::from_be_bytes(self.ordered(registers))),
            Number::F64 => Value::F64(f64::from_be_bytes(self.ordered(registers))),
            Number::Bcd16 => {
                let digits = decimal(&self.ordered::<2>(registers))?;
                Value::U16(u16::try_from(digits).ok()?)
            }
            Number::Bcd32 => Value::U32(decimal(&self.ordered::<4>(registers))?),
        })
    }

    fn scaled(&self, value: Value<'static>) -> Value<'static> {
        let Some(scaling) = &self.scaling else {
            return value;
        };
        let raw = match value {
            Value::I8(v) => f64::from(v),
            Value::U8(v) => f64::from(v),
            Value::I16(v) => f64::from(v),
            Value::U16(v) => f64::from(v),
            Value::I32(v) => f64::from(v),
            Value::U32(v) => f64::from(v),
            Value::I64(v) => v as f64,
            Value::U64(v) => v as f64,
            Value::F32(v) => f64::from(v),
            Value::F64(v) => v,
            Value::Bool(_) | Value::Text(_) | Value::Bytes(_) | Value::Time(_) => return value,
        };
        Value::F64(scaling.apply(raw))
    }

    /// The bytes from most to least significant.
    fn ordered<const N: usize>(&self, registers: &[u8]) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&registers[..N]);
        if matches!(self.order, Order::Cdab | Order::Dcba) {
            // Swaps words: reversing all bytes also swaps inside each word, undone below.
            bytes.reverse();
        }
        if matches!(self.order, Order::Badc | Order::Cdab) {
            for word in bytes.chunks_exact_mut(2) {
                word.swap(0, 1);
            }
        }
        bytes
    }

    /// Copies text or raw bytes, with the bytes of each register swapped where the point says so.
    fn in_byte_order(&self, registers: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(registers);
        if self.order == Order::Badc {
            for word in out.chunks_exact_mut(2) {
                word.swap(0, 1);
            }
        }
    }

    /// Appends text: cut at the first NUL, trailing spaces trimmed. Bytes that are not UTF-8 become
    /// U+FFFD, so that one device's odd character never blocks a sink.
    fn text(
        &self,
        which: StringBytes,
        registers: &[u8],
        column: usize,
        rows: &mut TableBuilder,
        scratch: &mut Vec<u8>,
    ) {
        self.in_byte_order(registers, scratch);
        let mut index = 0_usize;
        scratch.retain(|_| {
            let high = index.is_multiple_of(2);
            index += 1;
            match which {
                StringBytes::Both => true,
                StringBytes::High => high,
                StringBytes::Low => !high,
            }
        });
        let end = scratch.iter().position(|b| *b == 0).unwrap_or(scratch.len());
        let text = String::from_utf8_lossy(&scratch[..end]);
        rows.value(column, Value::Text(text.trim_end_matches(' ')));
    }
}

/// Binary coded decimal, most significant digit first; `None` where a digit is above 9.
fn decimal(bytes: &[u8]) -> Option<u32> {
    bytes.iter().try_fold(0_u32, |number, byte| {
        let (tens, ones) = (u32::from(byte >> 4), u32::from(byte & 0x0F));
        (tens <= 9 && ones <= 9).then(|| number * 100 + tens * 10 + ones)
    })
}

/// IEEE 754 binary16 (section 3.6, table 3.5): 1 sign, 5 exponent (bias 15), 10 fraction bits.
/// Every half precision number is exact in single precision.
fn half_to_f32(half: u16) -> f32 {
    let sign = if half & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (half >> 10 & 0x1F, f32::from(half & 0x03FF));
    let magnitude = match exponent {
        0 => fraction * 2.0_f32.powi(-24),
        31 if half.trailing_zeros() >= 10 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2.0_f32.powi(i32::from(exponent) - 25),
    };
    sign * magnitude
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
