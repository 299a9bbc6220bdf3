//! The one configuration document of Tidegate: its types, how it is read, and what is checked.
//!
//! A document is YAML, from one file or from a folder whose files are merged by section. Reading
//! it gives typed values or every problem at once, each with its file, line, column, code and
//! hint. This crate knows no I/O but reading configuration files, and neither tokio nor
//! DataFusion: SQL is planned through [`SqlPlanner`].

pub mod device;
pub mod document;
pub mod sink;
pub mod stream;
pub mod table;
pub mod test_case;

pub use device::{Device, DeviceDriver, Link};
pub use document::{Document, Gateway, Limits, StoreSection, Table, Web};
pub use sink::{SinkDriver, SinkSection, SinkStore, WhenFull};
pub use stream::{EventTime, LateRoute, Route, StreamSection, Sync, Tumbling, Window};
pub use test_case::{Expect, Scalar, StreamTest, TestRow};
pub use tidegate_drivers::types::{Bytes, Name, Secret, Span};
