//! The kinds of windows that are not simply one after the other.
//!
//! What a window is, to the microsecond, is the engine's affair; this is how each is said.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_drivers::types::Span;

use crate::stream::is_whole_days;
use crate::{Document, Window};

/// Windows of one size that overlap: one begins every `step`, aligned to 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hopping {
    /// Length of each window; its start belongs to it, its end does not.
    pub size: Span,
    /// Time from one window's start to the next one's; at most `size`, which need not be a multiple
    /// of it.
    pub step: Span,
    /// Moves all edges by so much; less than `step`.
    #[serde(default = "zero")]
    pub offset: Span,
}

/// One window for each row of the first table in `from`: the time before it, and a result for each
/// row.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sliding {
    /// How far the window reaches back from its row; a row exactly so old belongs to it.
    pub size: Span,
    /// How far the window reaches ahead of its row; the result waits for it. A row exactly so much
    /// later belongs to it.
    #[serde(default = "zero")]
    pub delay: Span,
}

/// Windows of rows that follow each other: a window begins with a row, and ends when no row has come
/// for `gap`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// The silence that ends a window: a row so much after the one before begins another.
    pub gap: Span,
    /// The longest that a window may be: then it is closed, and the next row begins another. Left
    /// out, it may be as long as its rows fit the memory.
    #[serde(default)]
    pub length_max: Option<Span>,
    /// Columns, in every table of `from`, for each of whose values there are windows of their own,
    /// such as `[device]`; left out, all rows are in one.
    #[serde(default)]
    pub by: Vec<String>,
}

/// Windows of a number of rows of one table, in the order in which they came.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Count {
    /// How many rows are in a window.
    #[schemars(range(min = 1))]
    pub rows: u64,
    /// How many rows are between the first rows of two windows, at most `rows`; left out, `rows`, so
    /// that windows do not overlap.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub step: Option<u64>,
}

impl Count {
    /// How many rows are between the first rows of two windows.
    pub fn effective_step(&self) -> u64 {
        self.step.unwrap_or(self.rows)
    }
}

/// Windows of one table from a row for which `begin` holds to the next one for which `end` does; both
/// rows belong to it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// A SQL condition over a row's columns: a row for which it is true begins a window, unless one
    /// is open.
    pub begin: String,
    /// A SQL condition over a row's columns: the next row for which it is true ends the window. It is
    /// not asked of the row that begins it.
    pub end: String,
    /// Columns for each of whose values there are windows of their own, such as `[device]`; left out,
    /// all rows are in one.
    #[serde(default)]
    pub by: Vec<String>,
    /// The longest that a window may be: then it is closed without its end.
    #[serde(default = "default_length_max")]
    pub length_max: Span,
}

/// Running totals: windows that begin together every `size`, aligned to 1970-01-01T00:00:00Z, of which
/// one ends every `step`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cumulative {
    /// Length of the longest window, after which the totals begin anew; a multiple of `step`.
    pub size: Span,
    /// Time from one result to the next.
    pub step: Span,
    /// Whose days totals over whole days are, as with `tumbling`: a day has 23 or 25 hours where the
    /// clocks are changed on it.
    #[serde(default)]
    pub timezone: Option<String>,
}

impl Window {
    /// The window's kind as it is written in the document.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tumbling(_) => "tumbling",
            Self::Hopping(_) => "hopping",
            Self::Sliding(_) => "sliding",
            Self::Session(_) => "session",
            Self::Count(_) => "count",
            Self::State(_) => "state",
            Self::Cumulative(_) => "cumulative",
        }
    }

    /// The window in a few words, such as `hopping 1h every 10s`.
    pub fn summary(&self) -> String {
        let kind = self.kind();
        match self {
            Self::Tumbling(window) => format!("{kind} {}", window.size),
            Self::Hopping(window) => format!("{kind} {} every {}", window.size, window.step),
            Self::Cumulative(window) => format!("{kind} {} every {}", window.size, window.step),
            Self::Sliding(window) if window.delay == zero() => format!("{kind} {}", window.size),
            Self::Sliding(window) => format!("{kind} {} and {} ahead", window.size, window.delay),
            Self::Session(window) => {
                let max = window.length_max.map_or(String::new(), |max| format!(", at most {max}"));
                format!("{kind} gap {}{max}{}", window.gap, by(&window.by))
            }
            Self::Count(window) => match window.effective_step() {
                step if step == window.rows => format!("{kind} {step}"),
                step => format!("{kind} {} every {step}", window.rows),
            },
            Self::State(window) => {
                let State { begin, end, length_max, .. } = window;
                let by = by(&window.by);
                format!("{kind} from `{begin}` to `{end}`, at most {length_max}{by}")
            }
        }
    }

    /// The time zone by whose days it is cut; none where it follows no calendar, or that of UTC.
    pub fn zone<'a>(&'a self, document: &'a Document) -> Option<&'a str> {
        let (size, own) = match self {
            Self::Tumbling(window) => (window.size, window.timezone.as_deref()),
            Self::Cumulative(window) => (window.size, window.timezone.as_deref()),
            _ => return None,
        };
        let zone = own.or(document.gateway.timezone.as_deref())?;
        (is_whole_days(size) && zone != "UTC").then_some(zone)
    }

    /// The columns for each of whose values there are windows of their own.
    pub fn by(&self) -> &[String] {
        match self {
            Self::Session(window) => &window.by,
            Self::State(window) => &window.by,
            _ => &[],
        }
    }
}

fn by(columns: &[String]) -> String {
    if columns.is_empty() { String::new() } else { format!(", by {}", columns.join(", ")) }
}

fn zero() -> Span {
    Span::from_secs(0)
}

fn default_length_max() -> Span {
    Span::from_secs(86_400)
}
