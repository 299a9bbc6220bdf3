//! Scalar types of the configuration that check themselves while they are parsed.
//!
//! Nothing is coerced: a number where a duration belongs is refused with the right spelling.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Why a scalar of the configuration was refused; the text says what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unparsable(String);

impl Unparsable {
    fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Implements serde (as a string), `Display` in `Debug` position and JSON schema for a type with
/// `FromStr` and `Display`.
macro_rules! string_type {
    ($type:ident, $pattern:literal, $description:literal, $example:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl de::Visitor<'_> for Text {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        write!(f, "{}, such as {:?}", $description, $example)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": "string",
                    "pattern": $pattern,
                    "description": $description,
                    "examples": [$example],
                })
            }
        }
    };
}

mod rate;
pub use rate::Rate;

/// The name of a link, device, table, stream, sink or point: a word that is safe in SQL, topics,
/// paths and metrics.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<str>);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = Unparsable;

    fn from_str(text: &str) -> Result<Self, Unparsable> {
        let mut chars = text.bytes();
        let first = chars.next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let rest =
            chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-');
        if first && rest && text.len() <= 63 {
            Ok(Self(text.into()))
        } else {
            Err(Unparsable::new(format!(
                "`{text}` is not a name: lower-case letters, digits, `_` and `-`, starting with a \
                 letter or digit, at most 63 characters"
            )))
        }
    }
}

string_type!(
    Name,
    "^[a-z0-9][a-z0-9_-]{0,62}$",
    "a name of lower-case letters, digits, `_` and `-`",
    "main_meter"
);

/// A length of time, written with its unit: `500ms`, `10s`, `5m`, `2h`, `30d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Duration);

impl Span {
    /// A span of whole milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// A span of whole seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// The span as a `Duration`.
    pub const fn duration(self) -> Duration {
        self.0
    }

    /// The span in microseconds, the unit of event time.
    pub fn micros(self) -> i64 {
        i64::try_from(self.0.as_micros()).unwrap_or(i64::MAX)
    }
}

/// Microseconds of each unit, largest first.
const SPAN_UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        let (unit, factor) = SPAN_UNITS
            .iter()
            .find(|(_, factor)| {
                micros >= u128::from(*factor) && micros.is_multiple_of(u128::from(*factor))
            })
            .unwrap_or(&("s", 1_000_000));
        write!(f, "{}{unit}", micros / u128::from(*factor))
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Span {
    type Err = Unparsable;

    fn from_str(text: &str) -> Result<Self, Unparsable> {
        let refuse = || {
            Unparsable::new(format!(
                "`{text}` is not a duration: write a whole number and a unit, such as `500ms`, \
                 `10s`, `5m`, `2h` or `30d`"
            ))
        };
        let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(refuse)?;
        let number: u64 = text[..digits].parse().map_err(|_| refuse())?;
        let (_, factor) =
            SPAN_UNITS.iter().find(|(unit, _)| *unit == &text[digits..]).ok_or_else(refuse)?;
        let micros = number
            .checked_mul(*factor)
            .filter(|m| i64::try_from(*m).is_ok())
            .ok_or_else(|| Unparsable::new(format!("`{text}` is longer than 292,000 years")))?;
        Ok(Self(Duration::from_micros(micros)))
    }
}

string_type!(Span, "^[0-9]+(us|ms|s|m|h|d)$", "a duration with its unit", "10s");

/// How often something is read: a length of time, or `on_connect` for once each time the connection
/// is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Every {
    /// From one start to the next one's.
    Span(Span),
    /// Once each time the connection is made.
    OnConnect,
}

impl Every {
    /// The time from one start to the next one's, where there is a next one.
    pub const fn period(self) -> Option<Duration> {
        match self {
            Self::Span(span) => Some(span.duration()),
            Self::OnConnect => None,
        }
    }
}

/// The word for [`Every::OnConnect`].
const ON_CONNECT: &str = "on_connect";

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Span(span) => span.fmt(f),
            Self::OnConnect => f.write_str(ON_CONNECT),
        }
    }
}

impl FromStr for Every {
    type Err = Unparsable;

    fn from_str(text: &str) -> Result<Self, Unparsable> {
        if text == ON_CONNECT {
            return Ok(Self::OnConnect);
        }
        text.parse()
            .map(Self::Span)
            .map_err(|Unparsable(why)| Unparsable::new(format!("{why}; or `{ON_CONNECT}`")))
    }
}

string_type!(
    Every,
    "^([0-9]+(us|ms|s|m|h|d)|on_connect)$",
    "a duration with its unit, or `on_connect`",
    "1s"
);

/// A number of bytes, written with its unit: `256KiB`, `64MiB`, `2GiB`, `100B`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

impl Bytes {
    /// A number of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// A number of mebibytes.
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib << 20)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number of bytes as a length in memory.
    pub fn len(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// True for zero bytes.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Bytes of each unit, largest first.
const BYTE_UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = BYTE_UNITS
            .iter()
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor))
            .unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Bytes {
    type Err = Unparsable;

    fn from_str(text: &str) -> Result<Self, Unparsable> {
        let refuse = || {
            Unparsable::new(format!(
                "`{text}` is not a size: write a whole number and a unit, such as `100B`, \
                 `256KiB`, `64MiB` or `2GiB`"
            ))
        };
        let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(refuse)?;
        let number: u64 = text[..digits].parse().map_err(|_| refuse())?;
        let (_, factor) =
            BYTE_UNITS.iter().find(|(unit, _)| *unit == &text[digits..]).ok_or_else(refuse)?;
        number.checked_mul(*factor).map(Self).ok_or_else(refuse)
    }
}

string_type!(Bytes, "^[0-9]+(B|KiB|MiB|GiB|TiB)$", "a size with its unit", "64MiB");

/// A Modbus unit id. 1 to 247 address a unit on a serial line; 0 and 255 are what TCP devices
/// without units use (Modbus Messaging on TCP/IP Implementation Guide V1.0b, section 4.4.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct UnitId(u8);

impl UnitId {
    /// Checks a unit id: 0 to 247, or 255.
    pub fn new(id: u8) -> Option<Self> {
        (id <= 247 || id == 255).then_some(Self(id))
    }

    /// The id on the wire.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl<'de> Deserialize<'de> for UnitId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = u64::deserialize(deserializer)?;
        u8::try_from(id).ok().and_then(Self::new).ok_or_else(|| {
            de::Error::custom(format!(
                "{id} is not a unit id: 1 to 247, or 0 or 255 for a TCP device without units"
            ))
        })
    }
}

impl JsonSchema for UnitId {
    fn schema_name() -> Cow<'static, str> {
        "UnitId".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "integer",
            "anyOf": [{ "minimum": 0, "maximum": 247 }, { "const": 255 }],
            "description": "a Modbus unit id: 1 to 247, or 0 or 255 for a TCP device without units",
        })
    }
}

/// The address of an MQTT broker: `mqtt://host[:port]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MqttUrl {
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port; 1883 where none is written.
    pub port: u16,
}

impl fmt::Display for MqttUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "mqtt://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "mqtt://{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for MqttUrl {
    type Err = Unparsable;

    fn from_str(text: &str) -> Result<Self, Unparsable> {
        // What stands before an `@` may be a password: it is not repeated.
        let shown = match text.rsplit_once('@') {
            Some((_, host)) => format!("…@{host}"),
            None => text.to_owned(),
        };
        let refuse = |why: &str| {
            Unparsable::new(format!("`{shown}` {why}: write `mqtt://host` or `mqtt://host:1883`"))
        };
        let rest = text.strip_prefix("mqtt://").ok_or_else(|| refuse("is not an MQTT address"))?;
        if rest.contains('@') {
            return Err(refuse(
                "holds a user or password, which belong in `username` and `password`",
            ));
        }
        let (host, port) = match rest.strip_prefix('[') {
            Some(v6) => {
                let (host, after) = v6.split_once(']').ok_or_else(|| refuse("lacks a `]`"))?;
                (host, after.strip_prefix(':'))
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        if host.is_empty() || host.contains(['/', ' ', '?', '#']) {
            return Err(refuse("has no plain host name"));
        }
        let port = match port {
            None => 1883,
            Some(port) => match port.parse() {
                Ok(port) if port > 0 => port,
                _ => return Err(refuse("has no valid port")),
            },
        };
        Ok(Self { host: host.to_owned(), port })
    }
}

string_type!(MqttUrl, "^mqtt://[^/@ ]+$", "the address of an MQTT broker", "mqtt://localhost:1883");

/// A secret, by reference. The text itself never stands in a configuration, a log or an answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Secret {
    /// The content of a file, without a trailing line end.
    File(String),
    /// The value of an environment variable.
    Env(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_carry_their_unit() {
        for (text, millis) in [("500ms", 500), ("10s", 10_000), ("5m", 300_000), ("1d", 86_400_000)]
        {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.duration(), Duration::from_millis(millis));
            assert_eq!(span.to_string(), text);
        }
        for text in ["10", "s", "1.5s", "-1s", "10 s", "99999999999999d", ""] {
            text.parse::<Span>().unwrap_err();
        }
        assert_eq!("90s".parse::<Span>().unwrap().to_string(), "90s");
    }

    #[test]
    fn a_period_may_be_once() {
        assert_eq!("on_connect".parse(), Ok(Every::OnConnect));
        assert_eq!("5s".parse(), Ok(Every::Span(Span::from_secs(5))));
        let error = "once".parse::<Every>().unwrap_err().to_string();
        assert!(error.ends_with("or `on_connect`"), "{error}");
    }

    #[test]
    fn sizes_carry_their_unit() {
        assert_eq!("64MiB".parse::<Bytes>().unwrap().get(), 67_108_864);
        assert_eq!(Bytes::new(1536).to_string(), "1536B");
        for text in ["64", "64MB", "MiB", "99999999999TiB"] {
            text.parse::<Bytes>().unwrap_err();
        }
    }

    #[test]
    fn names_are_safe_words() {
        "a-b_9".parse::<Name>().unwrap();
        "9a".parse::<Name>().unwrap();
        for text in ["", "A", "_a", "a b", "a.b", "a\"", "ä", &"a".repeat(64)] {
            text.parse::<Name>().unwrap_err();
        }
    }

    #[test]
    fn broker_addresses() {
        let url: MqttUrl = "mqtt://broker.local".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port), ("broker.local", 1883));
        let url: MqttUrl = "mqtt://[::1]:18830".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port), ("::1", 18830));
        assert_eq!(url.to_string(), "mqtt://[::1]:18830");
        for text in ["tcp://a", "mqtt://", "mqtt://a:0", "mqtt://a:x", "mqtt://u:p@a", "mqtt://a/b"]
        {
            text.parse::<MqttUrl>().unwrap_err();
        }
    }
}
