//! Event time, windows, SQL and the durable store of Tidegate.
//!
//! Promise: rows go in with an event time and a log position, results come out once, in an order
//! and with sequence numbers that do not depend on how rows were batched or where a restart fell.
//! It does not know: protocols, configuration, threads, and what time it is; "now" is an argument.

pub mod baseline;
pub mod calendar;
pub mod encode;
pub mod lookup;
pub mod sql;
pub mod store;
pub mod stream;
pub mod watermark;
pub mod window;

mod bytes;
mod functions;

pub use calendar::{Calendar, Zone};
pub use functions::function_names;
pub use lookup::Lookup;
pub use sql::{
    Condition, Mode, Query, Sql, SqlError, TableSchema, Tables, latest_names, rows_where,
};
pub use stream::{
    Counts, Effects, Event, FailedRows, FutureRule, LateReason, LateRows, Latest, Output, Progress,
    Stream, StreamError, StreamSpec,
};
pub use window::{Bounds, Window};
