//! All HTTP routes of the gateway: health, metrics and status, later the page.
//!
//! Promise: each request is bounded in time and size, each connection in time, and their number
//! has a bound, so that no client can hold or fill the daemon; errors are problem+json (RFC 9457).
//! Does not know: the engine, the drivers' I/O, any clock. All that it shows comes through
//! [`Console`] from the running parts.

mod api;
mod clock;
mod console;
mod entrance;
mod exposition;
mod guard;
mod keeping;
mod ledger;
mod metrics;
mod problem;
mod serve;
mod store;
mod streams;

pub use api::{control_router, router};
pub use clock::{ClockTable, ClockWait};
pub use console::{
    Answer, Applied, ApplyOutcome, ConfigChange, ConfigOrigin, ConfigProblem, ConfigStatus,
    Console, Control, DeviceStatus, GatewayStatus, LinkStatus, LogLevels, LogLevelsWanted,
    LookupStatus, PartState, Readiness, Reason, RowsByQuality, SinkStatus, Status, StreamStatus,
};
pub use entrance::Entrance;
pub use keeping::NEXT_HEADER;
pub use ledger::{Ledger, SinkHop, SourceHop, StreamHop};
pub use metrics::render as render_metrics;
pub use serve::{bind_unix, serve_tcp, serve_unix};
pub use store::{
    Exportable, Exported, Keeper, Kept, Letters, Records, RecoveryStatus, Refusal, RejectedRecord,
    ReplayRate, SinkContents, SinkLanes, StoreCompacted, StoreContents, StoreStatus, StoreVerified,
    StreamContents, TableContents, Unclaimed,
};
pub use streams::{Declined, Lines, PreviewWanted, StreamSet, StreamVerb, Streams, TapWanted};
