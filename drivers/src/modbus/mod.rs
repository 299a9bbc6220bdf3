//! Modbus client: framing, planning, transactions and scheduling, each usable without the others.
//!
//! [`plan`] and [`problems`] are pure and always compiled: the configuration check calls them.
//! [`frame`] and [`rtu`] know bytes and no sockets, [`transaction`] and [`line`] a byte stream and
//! no devices, [`scheduler`] one device's cycle and no I/O. Nothing here knows columns' names or
//! SQL.
//!
//! Sources: "MODBUS Application Protocol Specification V1.1b3" (the *specification*), "MODBUS
//! Messaging on TCP/IP Implementation Guide V1.0b" (the *guide*) and "MODBUS over Serial Line
//! Specification and Implementation Guide V1.02" (the *serial guide*).

pub mod plan;
pub mod problems;

#[cfg(feature = "io")]
mod debts;
#[cfg(feature = "io")]
pub mod frame;
#[cfg(feature = "io")]
pub mod line;
#[cfg(feature = "io")]
mod quiet;
#[cfg(feature = "io")]
pub mod rtu;
#[cfg(feature = "io")]
pub(crate) mod scheduler;
#[cfg(feature = "io")]
pub mod transaction;

#[cfg(test)]
#[cfg(feature = "io")]
pub(crate) mod peer;
#[cfg(test)]
pub(crate) mod testing;

pub use plan::{Block, Hole, plan, requests_per_cycle};
pub use problems::{LinkProblem, PointProblem};
