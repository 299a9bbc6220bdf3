//! A recording that is read as if it were a device: for trying out SQL on real data, and for
//! showing what happened.
//!
//! One row a line, as JSON or CSV, with its time. Rows come at the pace at which they were recorded,
//! faster, or as fast as the table takes them; behind the last one nothing comes any more. The
//! recording is read from its beginning at each start.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::point::Point;
use crate::south::mqtt::{EpochUnit, FieldPoint};

#[cfg(feature = "io")]
mod csv;
#[cfg(feature = "io")]
mod io;
#[cfg(feature = "io")]
pub use io::ReplaySouth;

/// A device whose rows are in a file.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    /// The recording.
    pub file: String,
    /// How its lines are written.
    #[serde(default)]
    pub format: Format,
    /// Path to the row's time, or its column: RFC 3339 text, or a number in `time_unit`.
    pub time: String,
    /// Unit of a numeric time.
    #[serde(default)]
    pub time_unit: EpochUnit,
    /// How fast rows come.
    #[serde(default)]
    pub pace: Pace,
    /// With `pace: recorded`, so many times as fast as they were recorded.
    #[serde(default = "default_speed")]
    pub speed: f64,
    /// Gives rows the time at which they are replayed, instead of their own.
    #[serde(default)]
    pub restamp: bool,
    /// Rows of one batch at most.
    #[serde(default = "default_batch_rows")]
    pub batch_rows: u32,
    /// The fields or columns that become columns; `path` is the name in the recording.
    pub points: Vec<FieldPoint>,
}

/// How the lines of a recording are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A JSON object a line.
    #[default]
    JsonLines,
    /// Comma separated values; the first line names the columns. An empty field is missing.
    Csv,
}

/// How fast a recording is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// At the pace of the rows' times.
    #[default]
    Recorded,
    /// As fast as the table takes them.
    Fast,
}

impl Replay {
    /// The columns of the device's table.
    pub fn columns(&self) -> Vec<Point> {
        let column = |p: &FieldPoint| Point {
            unit: p.unit.clone(),
            ..Point::new(p.name.as_str(), p.value_type.data_type())
        };
        self.points.iter().map(column).collect()
    }

    /// Everything that cannot work: the field below the driver's path, what is wrong, what would be
    /// right.
    pub fn problems(&self) -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        let mut say = |field: &str, message: &str, hint: &str| {
            found.push((field.to_owned(), message.to_owned(), hint.to_owned()));
        };
        if self.file.is_empty() || self.file.ends_with('/') {
            say("file", "this is no file's path", "name a file");
        }
        if self.batch_rows == 0 {
            say("batch_rows", "a batch has at least one row", "write 1 or more");
        }
        if !(self.speed.is_finite() && self.speed > 0.0) {
            let hint = "write a number above 0; `pace: fast` does not wait at all";
            say("speed", "is no speed", hint);
        }
        if self.points.is_empty() {
            say("points", "no field becomes a column", "list at least one point");
        }
        let empty = |path: &str| match self.format {
            Format::JsonLines => path.split('.').any(str::is_empty),
            Format::Csv => path.is_empty(),
        };
        if empty(&self.time) {
            say("time", "the path has an empty key", "write the name of the time");
        }
        let mut names = BTreeSet::new();
        for (index, point) in self.points.iter().enumerate() {
            if point.path.as_deref().is_some_and(empty) {
                let field = format!("points[{index}].path");
                say(&field, "the path has an empty key", "write the name in the recording");
            }
            if !names.insert(&point.name) {
                let field = format!("points[{index}].name");
                say(&field, "stands twice", "give each point its own name");
            }
        }
        found
    }
}

fn default_speed() -> f64 {
    1.0
}

fn default_batch_rows() -> u32 {
    1000
}
