//! Generated rows: a counter and waveforms, for trying out SQL and for measuring.
//!
//! A value depends on its row's number alone, never on when the row was made: row `i` stands at
//! `i * every / rows` after the start. The simulator uses the same waveforms over elapsed time.
//! This file knows nothing of the wall clock; rows carry the instant at which they were made.

use std::collections::BTreeSet;

use arrow_schema::DataType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::point::Point;
use crate::types::{Name, Span};

#[cfg(feature = "io")]
pub use io::GenerateSouth;

/// What is wrong with a part of the configuration: the field's path below that part, a sentence,
/// and what would be right.
pub type Problem = (String, String, Option<String>);

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
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
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

impl Wave {
    /// Checks a waveform that stands at `field`.
    pub fn problems(&self, field: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut say = |below: &str, message: &str, hint: &str| {
            problems.push((format!("{field}.{below}"), message.to_owned(), Some(hint.to_owned())));
        };
        match self {
            Self::Constant(value) if !value.is_finite() => {
                say("constant", "is not a finite number", "write a number such as `230.0`");
            }
            Self::Counter(CounterWave { modulo: Some(..1), .. }) => {
                say("counter.modulo", "leaves no value to count", "write 1 or more");
            }
            Self::Sine(SineWave { amplitude, offset, .. })
                if !(amplitude.is_finite() && offset.is_finite()) =>
            {
                say("sine", "`amplitude` and `offset` must be finite", "write numbers");
            }
            Self::Ramp(RampWave { low, high, .. }) if !(low.is_finite() && high.is_finite()) => {
                say("ramp", "`low` and `high` must be finite", "write numbers");
            }
            Self::Sine(SineWave { period, .. }) if period.duration().is_zero() => {
                say("sine.period", "is zero", "write the time of one wave, such as `10s`");
            }
            Self::Ramp(RampWave { period, .. }) if period.duration().is_zero() => {
                say("ramp.period", "is zero", "write the time of one rise, such as `10s`");
            }
            Self::Choice(texts) if texts.is_empty() => {
                say("choice", "is empty", "list at least one text");
            }
            _ => {}
        }
        problems
    }
}

impl CounterWave {
    /// The value after `n` others: `start + n`, beginning anew after `modulo` values.
    pub fn nth(&self, n: u64) -> i64 {
        let modulo = self.modulo.and_then(|m| u64::try_from(m).ok()).filter(|m| *m > 0);
        self.start.wrapping_add_unsigned(modulo.map_or(n, |m| n % m))
    }
}

impl SineWave {
    /// The value `seconds` after the start.
    pub fn at(&self, seconds: f64) -> f64 {
        let phase = (seconds / self.period.duration().as_secs_f64()).fract();
        self.offset + self.amplitude * (std::f64::consts::TAU * phase).sin()
    }
}

impl RampWave {
    /// The value `seconds` after the start; `high` itself is never reached.
    pub fn at(&self, seconds: f64) -> f64 {
        let phase = (seconds / self.period.duration().as_secs_f64()).fract();
        self.low + (self.high - self.low) * phase
    }
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

    /// Everything that is wrong, without side effects.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<Problem> = Vec::new();
        let mut say = |field: String, message: String, hint: &str| {
            problems.push((field, message, Some(hint.to_owned())));
        };
        if self.every.duration().is_zero() {
            let hint = "write `1ms` or more; a higher rate takes more `rows` a batch";
            say("every".to_owned(), "is zero".to_owned(), hint);
        }
        if !(1..=ROWS_MAX).contains(&self.rows) {
            let message = format!("{} is not a number of rows", self.rows);
            say("rows".to_owned(), message, "write a number from 1 to 1000000");
        }
        if self.points.is_empty() {
            let message = "has no point, so that its table would have no column";
            say("points".to_owned(), message.to_owned(), "list at least one");
        }
        let mut names = BTreeSet::new();
        for (index, point) in self.points.iter().enumerate() {
            if !names.insert(&point.name) {
                let message = format!("`{}` stands twice", point.name);
                say(format!("points[{index}].name"), message, "give each point its own name");
            }
        }
        for (index, point) in self.points.iter().enumerate() {
            problems.extend(point.value.problems(&format!("points[{index}].value")));
        }
        problems
    }
}

/// Rows of one batch at most: what is made in one go must fit into memory.
const ROWS_MAX: u32 = 1_000_000;

fn default_every() -> Span {
    Span::from_secs(1)
}

fn default_rows() -> u32 {
    1
}

#[cfg(feature = "io")]
mod io {
    use std::sync::Arc;
    use std::time::Duration;

    use futures::future::BoxFuture;
    use tokio::time::{Instant, sleep_until};

    use super::{Generate, Wave};
    use crate::border::{Fault, Receipt, South};
    use crate::point::Point;
    use crate::stats::{Counter, LinkState, Stats};
    use crate::table::{TableBuilder, Value};

    /// Makes up rows at its own pace: one batch each `every`, the first at once.
    ///
    /// A batch that could not be made in time is not made up for: the due times that passed are
    /// counted as overruns, and the next row's number and values go on without a gap.
    #[derive(Debug)]
    pub struct GenerateSouth {
        config: Generate,
        points: Vec<Point>,
        stats: Arc<Stats>,
        /// When the next batch is due; unknown before the first connect.
        due: Option<Instant>,
        /// Rows made so far: the number of the next row.
        made: u64,
    }

    impl GenerateSouth {
        /// Takes a configuration without problems (see [`Generate::problems`]).
        pub fn new(config: Generate) -> Self {
            let points = config.columns();
            Self { config, points, stats: Arc::default(), due: None, made: 0 }
        }

        /// Seconds from the start to row `n`.
        fn seconds(&self, n: u64) -> f64 {
            let step = self.config.every.duration().as_secs_f64() / f64::from(self.config.rows);
            n as f64 * step
        }

        /// Rows of the next batch: zero when all are made.
        fn next_rows(&self) -> u64 {
            let left = self.config.count.map_or(u64::MAX, |count| count.saturating_sub(self.made));
            left.min(u64::from(self.config.rows))
        }

        fn make(&mut self, rows: &mut TableBuilder) {
            let arrived = Instant::now();
            let first = self.made;
            let last = first + self.next_rows();
            for n in first..last {
                let seconds = self.seconds(n);
                rows.begin();
                for (index, point) in self.config.points.iter().enumerate() {
                    rows.value(index, value(&point.value, n, seconds));
                }
                rows.end(arrived);
            }
            self.made = last;
            self.stats.add(Counter::Replies, 1);
        }

        /// Moves the due time beyond `now` and counts what was missed.
        fn advance(&mut self, due: Instant, now: Instant) {
            let every = self.config.every.duration().max(Duration::from_micros(1));
            let missed = (now - due).as_nanos() / every.as_nanos();
            let missed = u32::try_from(missed).unwrap_or(u32::MAX);
            self.stats.add(Counter::Overruns, u64::from(missed));
            self.due = Some(due + every.saturating_mul(missed.saturating_add(1)));
        }
    }

    fn value(wave: &Wave, n: u64, seconds: f64) -> Value<'_> {
        match wave {
            Wave::Constant(value) => Value::F64(*value),
            Wave::Counter(counter) => Value::I64(counter.nth(n)),
            Wave::Sine(sine) => Value::F64(sine.at(seconds)),
            Wave::Ramp(ramp) => Value::F64(ramp.at(seconds)),
            Wave::Choice(texts) => {
                let index = usize::try_from(n % (texts.len() as u64).max(1)).unwrap_or(0);
                Value::Text(texts.get(index).map_or("", String::as_str))
            }
        }
    }

    impl South for GenerateSouth {
        fn points(&self) -> &[Point] {
            &self.points
        }

        fn stats(&self) -> Arc<Stats> {
            Arc::clone(&self.stats)
        }

        fn connect(&mut self) -> BoxFuture<'_, Result<(), Fault>> {
            self.due.get_or_insert_with(Instant::now);
            self.stats.add(Counter::Connects, 1);
            self.stats.set_state(LinkState::Up);
            Box::pin(std::future::ready(Ok(())))
        }

        /// Waits for the due time, then makes one whole batch without waiting again: a future that
        /// is dropped has made nothing. Pends for ever once `count` rows are made.
        fn read<'a>(
            &'a mut self,
            rows: &'a mut TableBuilder,
        ) -> BoxFuture<'a, Result<Option<Receipt>, Fault>> {
            Box::pin(async move {
                if self.next_rows() == 0 {
                    return std::future::pending().await;
                }
                let due = *self.due.get_or_insert_with(Instant::now);
                sleep_until(due).await;
                self.make(rows);
                self.advance(due, Instant::now());
                Ok(None)
            })
        }

        fn settle(&mut self, _: Receipt) -> BoxFuture<'_, Result<(), Fault>> {
            Box::pin(std::future::ready(Ok(())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(name: &str, value: Wave) -> GeneratePoint {
        GeneratePoint { name: name.parse().unwrap(), value, unit: None }
    }

    fn generate(points: Vec<GeneratePoint>) -> Generate {
        Generate { every: Span::from_secs(1), rows: 1, count: None, points }
    }

    #[test]
    fn counters_start_and_begin_anew() {
        let counter = CounterWave { start: 5, modulo: Some(3) };
        assert_eq!((0..5).map(|n| counter.nth(n)).collect::<Vec<_>>(), [5, 6, 7, 5, 6]);
        assert_eq!(CounterWave { start: -2, modulo: None }.nth(4), 2);
    }

    #[test]
    fn waves_follow_elapsed_time() {
        let sine = SineWave { amplitude: 2.0, offset: 230.0, period: Span::from_secs(4) };
        for (seconds, expected) in [(0.0, 230.0), (1.0, 232.0), (2.0, 230.0), (3.0, 228.0)] {
            assert!((sine.at(seconds) - expected).abs() < 1e-9, "at {seconds} s");
            assert!((sine.at(seconds + 4000.0) - expected).abs() < 1e-9, "1,000 periods later");
        }
        let ramp = RampWave { low: 10.0, high: 20.0, period: Span::from_secs(10) };
        for (seconds, expected) in [(0.0, 10.0), (5.0, 15.0), (9.0, 19.0), (10.0, 10.0)] {
            assert!((ramp.at(seconds) - expected).abs() < 1e-9, "at {seconds} s");
        }
    }

    #[test]
    fn all_problems_are_named_at_once() {
        let flat = Wave::Sine(SineWave { amplitude: 1.0, offset: 0.0, period: Span::from_secs(0) });
        let config = Generate {
            every: Span::from_secs(0),
            rows: 0,
            count: None,
            points: vec![
                point("a", Wave::Counter(CounterWave { start: 0, modulo: Some(0) })),
                point("a", Wave::Choice(Vec::new())),
                point("b", flat),
            ],
        };
        let fields: Vec<String> = config.problems().into_iter().map(|p| p.0).collect();
        let expected = [
            "every",
            "rows",
            "points[1].name",
            "points[0].value.counter.modulo",
            "points[1].value.choice",
            "points[2].value.sine.period",
        ];
        assert_eq!(fields, expected);
        assert_eq!(generate(Vec::new()).problems()[0].0, "points");
        assert!(generate(vec![point("a", Wave::Constant(1.0))]).problems().is_empty());
    }

    #[cfg(feature = "io")]
    mod io {
        use std::time::Duration;

        use arrow::array::AsArray;
        use arrow::datatypes::{Float64Type, Int64Type};
        use tokio::time::{Instant, advance, timeout};

        use super::*;
        use crate::border::South;
        use crate::stats::Counter;
        use crate::table::TableBuilder;

        fn south(rows: u32, count: Option<u64>) -> (GenerateSouth, TableBuilder) {
            let ramp = RampWave { low: 0.0, high: 8.0, period: Span::from_secs(8) };
            let points = vec![
                point("n", Wave::Counter(CounterWave::default())),
                point("ramp", Wave::Ramp(ramp)),
                point("word", Wave::Choice(vec!["on".to_owned(), "off".to_owned()])),
            ];
            let config = Generate { rows, count, ..generate(points) };
            let table = TableBuilder::new(&config.columns(), false);
            (GenerateSouth::new(config), table)
        }

        #[tokio::test(start_paused = true)]
        async fn values_depend_on_the_rows_number_alone() {
            let (mut south, mut table) = south(2, None);
            south.connect().await.unwrap();
            let start = Instant::now();
            for _ in 0..3 {
                south.read(&mut table).await.unwrap();
            }
            assert_eq!(start.elapsed(), Duration::from_secs(2), "the first batch comes at once");
            let rows = table.finish();
            assert_eq!(
                rows.columns[0].as_primitive::<Int64Type>().values()[..],
                [0, 1, 2, 3, 4, 5]
            );
            let ramp = rows.columns[1].as_primitive::<Float64Type>();
            for (value, expected) in ramp.values().iter().zip([0.0, 0.5, 1.0, 1.5, 2.0, 2.5]) {
                assert!((value - expected).abs() < 1e-9);
            }
            let words: Vec<_> = rows.columns[2].as_string::<i32>().iter().flatten().collect();
            assert_eq!(words, ["on", "off", "on", "off", "on", "off"]);
        }

        #[tokio::test(start_paused = true)]
        async fn missed_due_times_are_skipped_and_counted() {
            let (mut south, mut table) = south(1, None);
            south.connect().await.unwrap();
            let start = Instant::now();
            south.read(&mut table).await.unwrap();
            advance(Duration::from_millis(3_500)).await;
            south.read(&mut table).await.unwrap();
            assert_eq!(start.elapsed(), Duration::from_millis(3_500));
            south.read(&mut table).await.unwrap();
            assert_eq!(start.elapsed(), Duration::from_secs(4), "the schedule does not drift");
            assert_eq!(south.stats().get(Counter::Overruns), 2);
            let rows = table.finish();
            assert_eq!(rows.columns[0].as_primitive::<Int64Type>().values()[..], [0, 1, 2]);
        }

        #[tokio::test(start_paused = true)]
        async fn a_dropped_read_makes_nothing_and_count_ends_it() {
            let (mut south, mut table) = south(2, Some(3));
            south.connect().await.unwrap();
            south.read(&mut table).await.unwrap();
            let soon = Duration::from_millis(10);
            timeout(soon, south.read(&mut table)).await.unwrap_err();
            assert_eq!(table.len(), 2);
            south.read(&mut table).await.unwrap();
            assert_eq!(table.len(), 3);
            timeout(Duration::from_hours(1), south.read(&mut table)).await.unwrap_err();
            assert_eq!(table.len(), 3);
        }
    }
}
