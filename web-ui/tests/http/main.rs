//! The routes as a client sees them: without a socket, through the router itself.

mod exposition;
mod plant;
mod routes;
