//! Figures: how a value stands beside its baseline, and how both are written.
//!
//! One JSON object a line with at least `name`, `value`, `unit`, `baseline` and `ratio`; the last two
//! are null where a figure stands alone. Value, baseline and ratio are medians of `rounds`; `low` and
//! `high` are the ratio's (or value's) spread over them. Knows no measurement.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use serde::Serialize;

/// What is promised of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bar {
    /// Of its ratio, or of its value where it has no baseline.
    AtMost(f64),
    /// Likewise.
    AtLeast(f64),
    /// Of its value, whatever the baseline is.
    ValueAtMost(f64),
    /// Of how far its value is above its baseline.
    AboveBaselineAtMost(f64),
}

/// One figure of one run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) unit: &'static str,
    pub(super) baseline: Option<f64>,
    pub(super) ratio: Option<f64>,
    low: f64,
    high: f64,
    rounds: usize,
    bar: Option<Bar>,
    met: Option<bool>,
}

impl Figure {
    /// A value that stands alone: the median of `values`.
    pub(super) fn alone(name: impl Into<String>, unit: &'static str, values: &[f64]) -> Self {
        let (low, high) = spread(values);
        let value = median(values);
        Self {
            name: name.into(),
            value,
            unit,
            baseline: None,
            ratio: None,
            low,
            high,
            rounds: values.len(),
            bar: None,
            met: None,
        }
    }

    /// Pairs of (product, baseline), each measured one after the other; the ratio is the median of
    /// the pairs' ratios.
    pub(super) fn pairs(name: impl Into<String>, unit: &'static str, pairs: &[(f64, f64)]) -> Self {
        let ratios: Vec<f64> = pairs.iter().map(|(ours, theirs)| ours / theirs).collect();
        let ours: Vec<f64> = pairs.iter().map(|pair| pair.0).collect();
        let theirs: Vec<f64> = pairs.iter().map(|pair| pair.1).collect();
        let (low, high) = spread(&ratios);
        Self {
            name: name.into(),
            value: median(&ours),
            unit,
            baseline: Some(median(&theirs)),
            ratio: Some(median(&ratios)),
            low,
            high,
            rounds: pairs.len(),
            bar: None,
            met: None,
        }
    }

    /// The same with what is promised of it.
    pub(super) fn bar(mut self, bar: Bar) -> Self {
        let judged = self.ratio.unwrap_or(self.value);
        let above = self.value - self.baseline.unwrap_or(0.0);
        self.met = Some(match bar {
            Bar::AtMost(limit) => judged <= limit,
            Bar::AtLeast(limit) => judged >= limit,
            Bar::ValueAtMost(limit) => self.value <= limit,
            Bar::AboveBaselineAtMost(limit) => above <= limit,
        });
        self.bar = Some(bar);
        self
    }

    /// The figure by which a promise over all of `figures` is judged, under their common name: the
    /// one whose ratio is least.
    pub(super) fn least(name: &str, figures: &[Self]) -> Option<Self> {
        let ratio = |figure: &&Self| figure.ratio.unwrap_or(figure.value);
        let least = figures.iter().min_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
        Some(Self { name: name.to_owned(), ..least.clone() })
    }

    fn line(&self) -> String {
        let mut line = format!("{:<46} {:>12} {:<10}", self.name, short(self.value), self.unit);
        let text = |value: Option<f64>| value.map_or("-".to_owned(), short);
        write!(line, " {:>12} {:>8}", text(self.baseline), text(self.ratio)).ok();
        write!(line, "  {:>8} … {:<8}", short(self.low), short(self.high)).ok();
        let bar = match self.bar {
            None => String::new(),
            Some(Bar::AtMost(limit)) => format!("<= {}", short(limit)),
            Some(Bar::AtLeast(limit)) => format!(">= {}", short(limit)),
            Some(Bar::ValueAtMost(limit)) => format!("<= {} {}", short(limit), self.unit),
            Some(Bar::AboveBaselineAtMost(limit)) => format!("<= +{}", short(limit)),
        };
        let met = match self.met {
            None => "",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        write!(line, " {bar:<8} {met}").ok();
        line.trim_end().to_owned()
    }
}

/// Four significant digits, without a tail of zeros.
fn short(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.places$}")
}

/// The middle one, or the mean of the two in the middle; NaN of nothing.
pub(super) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Linear between the two nearest values; NaN of nothing.
pub(super) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let at = share * last as f64;
    let weight = at.fract();
    let below = sorted.iter().enumerate().rfind(|(index, _)| *index as f64 <= at);
    let (index, low) = below.map_or((0, sorted[0]), |(index, low)| (index, *low));
    let high = sorted[(index + 1).min(last)];
    low + (high - low) * weight
}

fn spread(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (low, high)
}

/// All figures of a run, written as they come.
pub(super) struct Report {
    file: File,
    figures: Vec<Figure>,
    notes: Vec<String>,
}

impl Report {
    pub(super) fn new(path: &Path) -> anyhow::Result<Self> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        Ok(Self { file: File::create(path)?, figures: Vec::new(), notes: Vec::new() })
    }

    pub(super) fn add(&mut self, figure: Figure) -> anyhow::Result<()> {
        println!("{}", figure.line());
        writeln!(self.file, "{}", serde_json::to_string(&figure)?)?;
        self.figures.push(figure);
        Ok(())
    }

    /// Something that a reader of the figures must know.
    pub(super) fn note(&mut self, text: String) {
        println!("note: {text}");
        self.notes.push(text);
    }

    pub(super) fn print(&self) {
        println!(
            "\n{:<46} {:>12} {:<10} {:>12} {:>8}  {:<19} bar",
            "figure", "value", "unit", "baseline", "ratio", "spread"
        );
        for figure in &self.figures {
            println!("{}", figure.line());
        }
        for note in &self.notes {
            println!("note: {note}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_values() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(format!("{:.2}", median(&values)), "2.50");
        assert_eq!(format!("{:.2}", quantile(&values, 0.0)), "1.00");
        assert_eq!(format!("{:.2}", quantile(&values, 1.0)), "4.00");
        assert_eq!(format!("{:.2}", quantile(&values, 0.99)), "3.97");
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_bar_may_be_of_the_value_or_of_what_is_above_the_baseline() {
        let pairs = [(50.0, 25.0), (60.0, 30.0), (70.0, 60.0)];
        let met = |bar| Figure::pairs("x", "MB", &pairs).bar(bar).met;
        // The medians are 60 and 30.
        assert_eq!(met(Bar::ValueAtMost(60.0)), Some(true));
        assert_eq!(met(Bar::ValueAtMost(59.0)), Some(false));
        assert_eq!(met(Bar::AboveBaselineAtMost(30.0)), Some(true));
        assert_eq!(met(Bar::AboveBaselineAtMost(29.0)), Some(false));
        let line = Figure::pairs("x", "MB", &pairs).bar(Bar::AboveBaselineAtMost(29.0)).line();
        assert!(line.ends_with("<= +29.00 MISSED"), "{line}");
    }

    #[test]
    fn the_ratio_is_that_of_pairs_and_not_of_medians() {
        let pairs = [(1.0, 1.0), (3.0, 2.0), (10.0, 4.0)];
        let figure = Figure::pairs("x", "s", &pairs).bar(Bar::AtMost(1.4));
        assert_eq!((figure.ratio, figure.met), (Some(1.5), Some(false)));
        let text = serde_json::to_string(&figure).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        for key in ["name", "value", "unit", "baseline", "ratio"] {
            assert!(value.get(key).is_some(), "{key}");
        }
        let spread = (value["low"].as_f64(), value["high"].as_f64(), value["rounds"].as_u64());
        assert_eq!(spread, (Some(1.0), Some(2.5), Some(3)));
    }
}
