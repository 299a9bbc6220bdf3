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
    /// How far the time that a message says of itself may be ahead of the gateway's clock at its
    /// arrival; left out, 1h where there is a window by time, and any where there is none or one by
    /// `count`.
    #[serde(default)]
    pub max_future: Option<Span>,
    /// What becomes of rows that are further ahead; they never move the watermark.
    #[serde(default)]
    pub future: Future,
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
    /// Where rows go that come too late for their window, or from the future; left out, they are only
    /// counted.
    #[serde(default)]
    pub late: Option<LateRoute>,
    /// Where rows go whose window or batch the SQL failed on; left out, they are only counted.
    #[serde(default)]
    pub on_error: Option<ErrorRoute>,
}

impl StreamSection {
    /// Every route of the stream: of its results, of late rows, of rows that failed.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        let late = self.late.iter().flat_map(|late| &late.to);
        let failed = self.on_error.iter().flat_map(|failed| &failed.to);
        self.to.iter().chain(late).chain(failed)
    }

    /// How far a row's time may be ahead of the clock; none where that is not judged.
    pub fn effective_max_future(&self) -> Option<Span> {
        let by_time = self.window.as_ref().is_some_and(|w| !matches!(w, Window::Count(_)));
        self.max_future.or_else(|| by_time.then(default_max_future))
    }

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

/// Windows of one size, one after the other, aligned to 1970-01-01T00:00:00Z; those of whole days
/// begin at midnight by the clocks of a place, so that a day on which these are changed has 23 or 25
/// hours.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tumbling {
    /// Length of each window; its start belongs to it, its end does not.
    pub size: Span,
    /// Moves all edges by so much; less than `size`. Weeks from Monday on are `7d` with `4d`.
    #[serde(default = "default_offset")]
    pub offset: Span,
    /// Whose days windows of whole days are, by the IANA name of the time zone, such as
    /// `Europe/Berlin`; left out, those of `gateway.timezone`, and without one those of UTC.
    #[serde(default)]
    pub timezone: Option<String>,
}

/// Whether a window of `size` follows a calendar.
pub(crate) fn is_whole_days(size: Span) -> bool {
    const DAY_US: i64 = 86_400_000_000;
    size.micros() >= DAY_US && size.micros() % DAY_US == 0
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

/// What becomes of rows whose time is too far ahead of the gateway's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Future {
    /// They go where late rows go, are in no window, and are counted.
    #[default]
    Quarantine,
    /// They are given the time of their arrival, with quality `uncertain`.
    Restamp,
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
    /// A SQL condition over the columns of what is routed, such as `u_l1 > 250`: rows for which it is
    /// not true do not go there. Left out, all do.
    #[serde(default)]
    pub when: Option<String>,
}

/// Where late rows go.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LateRoute {
    /// The sinks that late rows go to, with the columns of their table and `_reason`: `late` or
    /// `future`.
    pub to: Vec<Route>,
}

/// Where rows go that the SQL failed on.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorRoute {
    /// The sinks that they go to, with the columns of their table and `_error`: what failed, in words.
    pub to: Vec<Route>,
    /// When the rows count as processed.
    #[serde(default)]
    pub ack: ErrorAck,
}

/// When rows that the SQL failed on count as processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorAck {
    /// In the commit that makes the record of the error durable: never before it.
    #[default]
    AfterWrite,
}

fn default_allowed_lateness() -> Span {
    Span::from_secs(0)
}

/// Shortest time after which a source counts as silent where the document does not say.
const IDLE_AFTER_MIN: Duration = Duration::from_secs(5);

fn default_max_future() -> Span {
    Span::from_secs(3_600)
}

fn default_offset() -> Span {
    Span::from_secs(0)
}
