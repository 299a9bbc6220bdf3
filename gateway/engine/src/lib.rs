//! Event time, windows, SQL and the durable store of Tidegate.

pub mod store;
