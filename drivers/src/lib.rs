//! Protocols, southbound and northbound, and the configuration types of each driver.
//!
//! A driver is one file with its configuration type, which is always compiled and knows neither
//! tokio nor arrow compute, and one `mod io` behind the feature `io`. This crate knows no SQL, no
//! store, no configuration document and no wall clock: it stamps what it reads with monotonic
//! instants, and the gateway turns those into times.

pub mod modbus;
mod mqtt;
pub mod north;
pub mod point;
pub mod serial;
pub mod sim;
pub mod south;
pub mod types;

#[cfg(feature = "io")]
mod arrays;
#[cfg(feature = "io")]
pub(crate) mod backoff;
#[cfg(feature = "io")]
pub mod border;
#[cfg(feature = "io")]
pub mod bus;
#[cfg(feature = "io")]
mod column;
#[cfg(feature = "io")]
pub mod decode;
#[cfg(feature = "io")]
mod json;
#[cfg(feature = "io")]
pub mod stats;
#[cfg(feature = "io")]
pub mod table;

#[cfg(feature = "io")]
pub use arrays::ArrayPool;
#[cfg(feature = "io")]
pub use border::{Delivered, Fault, North, Payload, Receipt, South};
pub use point::{DataType, Point};
#[cfg(feature = "io")]
pub use table::{Quality, Reason, Rows, TableBuilder};
