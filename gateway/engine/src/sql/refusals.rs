//! Refusals.
