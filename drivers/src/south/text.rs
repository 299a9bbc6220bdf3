//! Typed values out of text, for drivers that read lines.
//!
//! Nothing is guessed: what is not written as the declared type is null with the reason. Spaces
//! around a value are not part of it, as scales and meters pad their numbers.

use std::num::IntErrorKind;

use crate::south::mqtt::FieldType;
use crate::table::{Reason, Value};

/// Reads `text` as a value of `of`.
pub(super) fn typed(text: &str, of: FieldType) -> Result<Value<'_>, Reason> {
    let number = text.trim_matches(' ');
    match of {
        FieldType::String => Ok(Value::Text(text)),
        FieldType::F64 => number.parse().map(Value::F64).map_err(|_| Reason::WrongType),
        FieldType::I64 => number.parse().map(Value::I64).map_err(|e| whole(&e)),
        FieldType::U64 => number.parse().map(Value::U64).map_err(|e| {
            // A whole number below zero is one, but not of this type.
            if number.parse::<i64>().is_ok() { Reason::OutOfRange } else { whole(&e) }
        }),
        FieldType::Bool => match number {
            "1" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            _ => Err(Reason::WrongType),
        },
    }
}

fn whole(error: &std::num::ParseIntError) -> Reason {
    match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => Reason::OutOfRange,
        _ => Reason::WrongType,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_what_it_says_or_nothing() {
        use FieldType::{Bool, F64, I64, String, U64};
        for (text, of, right) in [
            ("  12.50 ", F64, Ok(Value::F64(12.5))),
            ("+1e3", F64, Ok(Value::F64(1000.0))),
            ("12,5", F64, Err(Reason::WrongType)),
            ("", F64, Err(Reason::WrongType)),
            ("-7", I64, Ok(Value::I64(-7))),
            ("007", I64, Ok(Value::I64(7))),
            ("7.0", I64, Err(Reason::WrongType)),
            ("9223372036854775808", I64, Err(Reason::OutOfRange)),
            ("18446744073709551615", U64, Ok(Value::U64(u64::MAX))),
            ("-1", U64, Err(Reason::OutOfRange)),
            ("x", U64, Err(Reason::WrongType)),
            ("1", Bool, Ok(Value::Bool(true))),
            ("yes", Bool, Err(Reason::WrongType)),
            (" a ", String, Ok(Value::Text(" a "))),
        ] {
            assert_eq!(typed(text, of), right, "{text:?} as {of:?}");
        }
    }
}
