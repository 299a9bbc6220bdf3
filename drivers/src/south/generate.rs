//! Generated rows: a counter and waveforms, for trying out SQL and for measuring.

use arrow_schema::DataType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::point::Point;
use crate::types::{Name, Span};

/// A device that makes up its rows.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Generate {
    /// Time between two batches.
    #[serde(default = "default_every")]
    pub every: Span,
    /// Rows of one batch.
    #[serde(default = "default_rows")]
    pub rows: u32,
    /// Stop after so many rows; left out, never.
    #[serde(default)]
    pub count: Option<u64>,
    /// The columns.
    pub points: Vec<GeneratePoint>,
}

/// One generated column.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GeneratePoint {
    /// The column's name.
    pub name: Name,
    /// How its values come about.
    pub value: Wave,
    /// The value's unit, for people.
    #[serde(default)]
    pub unit: Option<String>,
}

/// How generated values come about.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Wave {
    /// Always the same number (64 bit float).
    Constant(f64),
    /// 0, 1, 2, … one more each row (64 bit whole number).
    Counter(CounterWave),
    /// `offset + amplitude * sin(2 pi t / period)` (64 bit float).
    Sine(SineWave),
    /// Rises from `low` to `high` over `period`, then starts again (64 bit float).
    Ramp(RampWave),
    /// The given texts in turn (text).
    Choice(Vec<String>),
}

/// A counter.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CounterWave {
    /// The first value.
    #[serde(default)]
    pub start: i64,
    /// Starts again at `start` after so many values.
    #[serde(default)]
    pub modulo: Option<i64>,
}

/// A sine.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SineWave {
    /// Height of the wave above its middle.
    pub amplitude: f64,
    /// Middle of the wave.
    #[serde(default)]
    pub offset: f64,
    /// Time of one full wave.
    pub period: Span,
}

/// A sawtooth.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RampWave {
    /// Value at the start of each period.
    pub low: f64,
    /// Value that the end of each period approaches.
    pub high: f64,
    /// Time of one rise.
    pub period: Span,
}

impl Generate {
    /// The columns of the device's table.
    pub fn columns(&self) -> Vec<Point> {
        self.points
            .iter()
            .map(|p| {
                let data_type = match p.value {
                    Wave::Constant(_) | Wave::Sine(_) | Wave::Ramp(_) => DataType::Float64,
                    Wave::Counter(_) => DataType::Int64,
                    Wave::Choice(_) => DataType::Utf8,
                };
                Point { unit: p.unit.clone(), ..Point::new(p.name.as_str(), data_type) }
            })
            .collect()
    }
}

fn default_every() -> Span {
    Span::from_secs(1)
}

fn default_rows() -> u32 {
    1
}
