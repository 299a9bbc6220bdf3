//! Placeholder.

pub mod broker;
pub mod cable;
