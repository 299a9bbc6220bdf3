//! Streams: SQL over tables, with or without a window, routed to sinks.
//!
//! What the words mean (event time, watermark, late) is the engine's affair; this is how they are
//! said.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_drivers::types::{Name, Span};

use crate::Document;
use crate::window::{Count, Cumulative, Hopping, Session, Sliding, State};

/// SQL over one or more tables.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamSection {
    /// The stream's name; part of record ids and of default topics.
    pub name: Name,
    /// The tables and streams that are read. A name with a hyphen needs double quotes in SQL: `FROM
    /// "a-b"`. A stream is a table of its results: `time` (their own, else the end of their window),
    /// `device` (their own, else the stream's name), `quality`, `seq`, and their other columns.
    pub from: Vec<Name>,
    /// Which rows are taken together; left out, the SQL is applied to each batch as it comes.
    #[serde(default)]
    pub window: Option<Window>,
    /// How far behind the newest row another row may be and still count.
    #[serde(default = "default_allowed_lateness")]
    pub allowed_lateness: Span,
    /// How long a source may be silent before it no longer holds back the windows; left out, 5s, or
    /// twice the time between two polls of its slowest device where that is longer. Where streams with
    /// windows are read, the time until those close comes on top.
    #[serde(default)]
    pub idle_after: Option<Span>,
    /// Which time decides about windows; `time` in the SQL is that time.
    #[serde(default)]
    pub event_time: EventTime,
    /// When results are made durable.
    #[serde(default)]
    pub sync: Sync,
    /// What becomes of windows that are open when the SQL is changed and cannot go on with what
    /// their rows were folded into.
    #[serde(default)]
    pub on_change: OnChange,
    /// One SELECT over the tables in `from`.
    pub sql: String,
    /// The sinks that results go to.
    #[serde(default)]
    pub to: Vec<Route>,
    /// Where rows go that come too late for their window; left out, they are only counted.
    #[serde(default)]
    pub late: Option<LateRoute>,
}

impl StreamSection {
    /// How long a source may be silent before it no longer holds back the windows. A device that is
    /// polled once a minute is not silent between two polls, and a stream not while its own windows
    /// are open: how far its results are behind ([`StreamSection::lag`]) comes on top.
    pub fn effective_idle_after(&self, document: &Document) -> Duration {
        self.own_idle_after(document) + self.lag(document)
    }

    /// The same for the devices behind this stream, whatever lies between.
    pub(crate) fn own_idle_after(&self, document: &Document) -> Duration {
        if let Some(span) = self.idle_after {
            return span.duration();
        }
        let polls = document.devices_behind(self);
        let slowest = polls.filter_map(|(device, group)| device.every(group)).max();
        slowest.map_or(IDLE_AFTER_MIN, |every| IDLE_AFTER_MIN.max(every * 2))
    }
}

/// Which rows are taken together.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Window {
    /// Windows of one size, one after the other.
    Tumbling(Tumbling),
    /// Windows of one size that overlap.
    Hopping(Hopping),
    /// A window for each row: the time before it.
    Sliding(Sliding),
    /// Windows of rows that follow each other without a longer silence.
    Session(Session),
    /// Windows of a number of rows.
    Count(Count),
    /// Windows from one condition to another.
    State(State),
    /// Running totals since the start of a longer window.
    Cumulative(Cumulative),
}

/// Windows of one size, one after the other, aligned to 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tumbling {
    /// Length of each window; its start belongs to it, its end does not.
    pub size: Span,
    /// Moves all edges by so much; less than `size`.
    #[serde(default = "default_offset")]
    pub offset: Span,
}

/// Which time decides about windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EventTime {
    /// The row's own time: when a device answered, or what a message says.
    #[default]
    Source,
    /// The time at which the row came to the gateway.
    Arrival,
}

/// When results are made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sync {
    /// With the store's next commit, at most `store.commit_every` later.
    #[default]
    Interval,
    /// At once, with a commit of their own: slower, and more wear of flash.
    Each,
}

/// What becomes of open windows whose rows were folded for other SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnChange {
    /// The old SQL gives their results at once; rows that come after the change are computed by the
    /// new one.
    #[default]
    Close,
    /// Their rows are counted as dropped.
    Drop,
}

/// A sink that results go to.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The sink's name.
    pub sink: Name,
}

/// Where late rows go.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LateRoute {
    /// The sinks that late rows go to.
    pub to: Vec<Route>,
}

fn default_allowed_lateness() -> Span {
    Span::from_secs(0)
}

/// Shortest time after which a source counts as silent where the document does not say.
const IDLE_AFTER_MIN: Duration = Duration::from_secs(5);

fn default_offset() -> Span {
    Span::from_secs(0)
}
