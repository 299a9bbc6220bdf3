//! The one configuration document of Tidegate: its types, how it is read, and what is checked.
//!
//! A document is YAML, from one file or from a folder whose files are merged by section. Reading
//! it gives typed values or every problem at once, each with its file, line, column, code and
//! hint. This crate reads configuration files and what they refer to, and does no other I/O; it
//! knows neither tokio nor DataFusion: SQL is planned through [`SqlPlanner`].

pub mod chain;
pub mod check;
pub mod code;
pub mod device;
pub mod document;
pub mod environment;
pub mod explain;
pub mod lookup;
pub mod path;
pub mod problem;
pub mod read;
pub mod schema;
pub mod sink;
pub mod span;
pub mod stream;
pub mod table;
pub mod test_case;
mod window;

mod contained;
mod held;
mod render;
mod repair;
mod similar;
mod typed;
mod yaml;

pub use chain::{Latest, LatestOf, NoTable, StreamOrder, stream_table};
pub use check::{PlannedTable, SqlPlanner, SqlProblem, TableKind, check};
pub use code::{Code, explain_code};
pub use device::{Device, DeviceDriver, Link};
pub use document::{Document, Gateway, Limits, StoreSection, Web};
pub use environment::{Environment, ProcessEnvironment, SecretError, resolve_secret};
pub use explain::explain;
pub use held::KeptRows;
pub use lookup::{
    FileSource, HttpSource, HttpUrl, LookupColumn, LookupFormat, LookupSection, LookupSource,
    SqliteSource,
};
pub use path::{Path, Step};
pub use problem::{Problem, Problems, Severity};
pub use read::{Loaded, SourceFile, load, load_and_check, load_other, read_sources, store_path};
pub use schema::schema_json;
pub use sink::{
    Priority, ReplayMark, ReplayOrder, SinkDriver, SinkReplay, SinkSection, SinkStore, WhenFull,
};
pub use span::{Position, Spans};
pub use stream::{
    ColumnType, ErrorAck, ErrorRoute, EventTime, Future, LateRoute, OnChange, ProcessColumn,
    ProcessSection, Route, StreamSection, Sync, Tumbling, Window,
};
pub use table::{RESERVED_COLUMNS, Table};
pub use test_case::{Expect, Failed, Scalar, StreamTest, TestRow, TestRun};
pub use tidegate_drivers::types::{Bytes, Name, Rate, Secret, Span};
pub use window::{Count, Cumulative, Hopping, Session, Sliding, State};
