//! All HTTP routes of the gateway: health, metrics and status, later the page.
//!
//! Promise: each request is bounded in time and size, each connection in time, and their number
//! has a bound, so that no client can hold or fill the daemon; errors are problem+json (RFC 9457).
//! Does not know: the engine, the drivers' I/O, any clock. All that it shows comes through
//! [`Console`] from the running parts.

mod api;
mod console;
mod exposition;
mod guard;
mod metrics;
mod problem;
mod serve;

pub use api::{control_router, router};
pub use console::{
    Answer, Applied, ApplyOutcome, ConfigChange, ConfigOrigin, ConfigProblem, ConfigStatus,
    Console, Control, DeviceStatus, GatewayStatus, Ledger, LinkStatus, LogLevels, LogLevelsWanted,
    PartState, Readiness, Reason, RowsByQuality, SinkHop, SinkStatus, SourceHop, Status,
    StoreStatus, StreamHop, StreamStatus,
};
pub use metrics::render as render_metrics;
pub use serve::{bind_unix, serve_tcp, serve_unix};
