//! A serial device that sends lines of text: scales, scanners, meters, sensors.
//!
//! A line is matched by a pattern whose named groups become columns. Lines that do not match are
//! counted and passed over. Knows no request: the device speaks by itself.

use std::collections::BTreeSet;

use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::point::Point;
use crate::serial::{Parity, PortSettings};
use crate::south::mqtt::FieldType;
use crate::types::{Name, Span};

#[cfg(feature = "io")]
mod io;
#[cfg(feature = "io")]
pub use io::SerialSouth;

/// Bytes of a line at most, whatever the configuration says.
const LINE_BYTES_MAX: u32 = 65_536;

/// A device on a serial port of its own that sends lines of text.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SerialDevice {
    /// The port's device file. `/dev/serial/by-id/...` stays the same when an adapter is plugged in
    /// again; `/dev/ttyUSB0` may not.
    pub port: String,
    /// Bits a second.
    #[serde(default = "default_baud")]
    pub baud: u32,
    /// Parity bit.
    #[serde(default = "default_parity")]
    pub parity: Parity,
    /// Data bits, 7 or 8.
    #[serde(default = "default_data_bits")]
    pub data_bits: u8,
    /// Stop bits, 1 or 2.
    #[serde(default = "default_stop_bits")]
    pub stop_bits: u8,
    /// What ends a line.
    #[serde(default)]
    pub line_end: LineEnd,
    /// Bytes of a line at most; a longer one is counted and passed over.
    #[serde(default = "default_line_bytes_max")]
    pub line_bytes_max: u32,
    /// A regular expression for a line, without its end; named groups `(?<name>...)` are the values.
    pub pattern: String,
    /// Rows of one batch at most.
    #[serde(default = "default_batch_rows")]
    pub batch_rows: u32,
    /// How long a batch waits for more rows.
    #[serde(default = "default_linger")]
    pub linger: Span,
    /// First pause before a port that is gone is opened again; doubles with jitter.
    #[serde(default = "default_backoff_min")]
    pub backoff_min: Span,
    /// Longest pause before a port that is gone is opened again.
    #[serde(default = "default_backoff_max")]
    pub backoff_max: Span,
    /// The groups that become columns.
    pub points: Vec<GroupPoint>,
}

/// What ends a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LineEnd {
    /// Line feed, or carriage return and line feed.
    #[default]
    Lf,
    /// Carriage return alone.
    Cr,
}

/// A group of the pattern.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupPoint {
    /// The column's name.
    pub name: Name,
    /// The column's type.
    #[serde(rename = "type")]
    pub value_type: FieldType,
    /// The group's name in the pattern; the point's name where left out.
    #[serde(default)]
    pub group: Option<String>,
    /// The value's unit, for people.
    #[serde(default)]
    pub unit: Option<String>,
}

impl GroupPoint {
    /// The name of the group that the point takes.
    pub fn group(&self) -> &str {
        self.group.as_deref().unwrap_or(self.name.as_str())
    }
}

impl SerialDevice {
    /// How the port is set up.
    pub fn settings(&self) -> PortSettings {
        PortSettings {
            path: self.port.clone(),
            baud: self.baud,
            parity: self.parity,
            data_bits: self.data_bits,
            stop_bits: self.stop_bits,
        }
    }

    /// The columns of the device's table.
    pub fn columns(&self) -> Vec<Point> {
        let column = |p: &GroupPoint| Point {
            unit: p.unit.clone(),
            ..Point::new(p.name.as_str(), p.value_type.data_type())
        };
        self.points.iter().map(column).collect()
    }

    /// Everything that cannot work: the field below the driver's path, what is wrong, what would be
    /// right.
    pub fn problems(&self) -> Vec<(String, String, String)> {
        let mut found: Vec<(String, String, String)> = Vec::new();
        for (field, message, hint) in self.settings().problems() {
            found.push((field.to_owned(), message, hint));
        }
        let mut say = |field: &str, message: String, hint: &str| {
            found.push((field.to_owned(), message, hint.to_owned()));
        };
        if !(1..=LINE_BYTES_MAX).contains(&self.line_bytes_max) {
            let message = format!("a line of {} bytes is not possible", self.line_bytes_max);
            say("line_bytes_max", message, "write a number from 1 to 65536");
        }
        if self.batch_rows == 0 {
            let message = "a batch has at least one row".to_owned();
            say("batch_rows", message, "write 1 or more; 1000 is the default");
        }
        if self.backoff_min.duration().is_zero() {
            say("backoff_min", "`backoff_min` is zero".to_owned(), "such as `250ms`");
        }
        if self.backoff_max < self.backoff_min {
            let message = "`backoff_max` is shorter than `backoff_min`".to_owned();
            say("backoff_max", message, "at least as long");
        }
        if self.points.is_empty() {
            let message = "no group of the pattern becomes a column".to_owned();
            say("points", message, "list at least one point");
        }
        match Regex::new(&self.pattern) {
            Err(error) => {
                let message = format!("the pattern cannot be read: {}", reason(&error));
                say(
                    "pattern",
                    message,
                    "a regular expression, such as `^W (?<weight>[0-9.]+) kg$`",
                );
            }
            Ok(pattern) => {
                let groups: BTreeSet<&str> = pattern.capture_names().flatten().collect();
                for (index, point) in self.points.iter().enumerate() {
                    let group = point.group();
                    if !groups.contains(group) {
                        let field = if point.group.is_some() { "group" } else { "name" };
                        let names: Vec<_> = groups.iter().map(|g| format!("`{g}`")).collect();
                        let hint = if names.is_empty() {
                            "the pattern has no named group: write `(?<name>…)`".to_owned()
                        } else {
                            format!("the pattern has {}", names.join(", "))
                        };
                        let message = format!("the pattern has no group `{group}`");
                        say(&format!("points[{index}].{field}"), message, &hint);
                    }
                }
            }
        }
        found
    }
}

/// The last line of a pattern's error, which says what is wrong; those before it draw the place.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.trim_start_matches("error: ").to_owned()
}

fn default_baud() -> u32 {
    9600
}

fn default_parity() -> Parity {
    Parity::None
}

fn default_data_bits() -> u8 {
    8
}

fn default_stop_bits() -> u8 {
    1
}

fn default_line_bytes_max() -> u32 {
    1024
}

fn default_batch_rows() -> u32 {
    1000
}

fn default_linger() -> Span {
    Span::from_millis(20)
}

fn default_backoff_min() -> Span {
    Span::from_millis(250)
}

fn default_backoff_max() -> Span {
    Span::from_secs(2)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn fields(pattern: &str, points: &Value) -> Vec<String> {
        let device: SerialDevice = serde_json::from_value(json!({
            "port": "/dev/ttyS1", "pattern": pattern, "points": points,
        }))
        .unwrap();
        device
            .problems()
            .into_iter()
            .map(|(field, message, _)| format!("{field}: {message}"))
            .collect()
    }

    #[test]
    fn patterns_are_judged_before_anything_is_opened() {
        let weight = json!([{ "name": "weight", "type": "f64" }]);
        assert_eq!(fields("^W (?<weight>[0-9.]+)", &weight), Vec::<String>::new());
        assert_eq!(
            fields("^W (?<w>[0-9.]+)", &weight),
            ["points[0].name: the pattern has no group `weight`"]
        );
        let other = json!([{ "name": "weight", "type": "f64", "group": "x" }]);
        assert_eq!(fields("(?<w>.)", &other), ["points[0].group: the pattern has no group `x`"]);
        let broken = fields("W ([0-9", &weight);
        assert_eq!(broken, ["pattern: the pattern cannot be read: unclosed character class"]);
        assert_eq!(fields("a", &json!([])), ["points: no group of the pattern becomes a column"]);
    }
}
