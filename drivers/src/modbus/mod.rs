//! Modbus client: framing, planning, transactions and scheduling, each usable without the others.
//!
//! [`plan`] and [`problems`] are pure and always compiled: the configuration check calls them.
//! [`frame`] knows bytes and no sockets, [`transaction`] a byte stream and no devices,
//! [`scheduler`] one device's cycle and no I/O. Nothing here knows columns' names or SQL.
//!
//! Sources: "MODBUS Application Protocol Specification V1.1b3" (the *specification*) and "MODBUS
//! Messaging on TCP/IP Implementation Guide V1.0b" (the *guide*).

pub mod plan;
pub mod problems;

#[cfg(feature = "io")]
pub mod frame;
#[cfg(feature = "io")]
pub(crate) mod scheduler;
#[cfg(feature = "io")]
pub mod transaction;

#[cfg(all(test, feature = "io"))]
pub(crate) mod peer;
#[cfg(test)]
pub(crate) mod testing;

pub use plan::{Block, Hole, plan, requests_per_cycle};
pub use problems::{LinkProblem, PointProblem};
