//! How many in how much time, written with its unit: `500/s`, `30/m`.
//!
//! Never zero: nothing at all is said by leaving a setting out, or by pausing.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Unparsable;

/// A number of things in a second, a minute or an hour: `500/s`, `30/m`, `1000/h`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u32,
    per: Per,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Per {
    Second,
    Minute,
    Hour,
}

impl Per {
    const ALL: [(&'static str, Self, u32); 3] =
        [("s", Self::Second, 1), ("m", Self::Minute, 60), ("h", Self::Hour, 3600)];
}

impl Rate {
    /// The rate as a number in a second, above zero.
    pub fn per_second(self) -> f64 {
        let seconds = Per::ALL.iter().find(|(_, per, _)| *per == self.per).map_or(1, |u| u.2);
        f64::from(self.count) / f64::from(seconds)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = Per::ALL.iter().find(|(_, per, _)| *per == self.per).map_or("s", |u| u.0);
        write!(f, "{}/{unit}", self.count)
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Rate {
    type Err = Unparsable;

    fn from_str(text: &str) -> Result<Self, Unparsable> {
        let refuse = || {
            Unparsable::new(format!(
                "`{text}` is not a rate: write a whole number, `/` and a unit of time, such as \
                 `500/s`, `30/m` or `1000/h`"
            ))
        };
        let (digits, unit) = text.split_once('/').ok_or_else(refuse)?;
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let count: u32 = digits.parse().ok().filter(|_| plain).ok_or_else(refuse)?;
        let per = Per::ALL.iter().find(|(name, ..)| *name == unit).ok_or_else(refuse)?.1;
        if count == 0 {
            return Err(Unparsable::new(format!(
                "at `{text}` nothing is ever done: leave it out, or write 1 or more"
            )));
        }
        Ok(Self { count, per })
    }
}

string_type!(Rate, "^[1-9][0-9]*/(s|m|h)$", "a number in a unit of time", "500/s");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_carry_their_unit() {
        for (text, per_second) in [("500/s", 500.0), ("30/m", 0.5), ("7200/h", 2.0)] {
            let rate: Rate = text.parse().unwrap();
            assert!((rate.per_second() - per_second).abs() < 1e-9, "{text}");
            assert_eq!(rate.to_string(), text);
        }
        for text in ["500", "/s", "0/s", "-1/s", "+1/s", "5/d", "5 / s", "99999999999/s", ""] {
            text.parse::<Rate>().unwrap_err();
        }
    }
}
