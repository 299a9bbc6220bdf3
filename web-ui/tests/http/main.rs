//! The routes as a client sees them: without a socket, through the router itself.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail as tests do")]

mod exposition;
mod keeping;
mod plant;
mod routes;
mod streams;
