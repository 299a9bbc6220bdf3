//! The gateway: the only place where configuration, drivers, engine and web routes meet.
//!
//! The binary `tidegate` is a thin shell around this library, so that tests can start a gateway
//! with a clock of their own.

pub mod apply;
pub mod backoff;
pub mod batch;
pub mod bench;
pub mod broker;
pub mod build;
pub mod cable;
pub mod chain;
pub mod cli;
pub mod clock;
mod code_pages;
pub mod control;
pub mod demo;
pub mod gate;
mod heap;
pub mod keep;
pub mod keeper;
pub mod keys;
pub mod ledger;
pub mod logs;
pub mod lookup;
pub mod notify;
pub mod planner;
pub mod progress;
pub mod pump;
pub mod route;
pub mod running;
pub mod seal;
pub mod source;
pub mod status;
pub mod stream;
pub mod stream_test;
pub mod supervisor;
pub mod table;
pub mod wanted;
pub mod watch;
pub mod watchdog;
