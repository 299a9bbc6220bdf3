//! What is read: one file per driver.

pub mod generate;
pub mod modbus;
pub mod mqtt;
pub mod replay;
pub mod serial;

#[cfg(feature = "io")]
mod text;
