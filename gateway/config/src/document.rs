//! The whole document and the sections that are not lists.
//!
//! Each field has a default or is required, and one sentence that becomes part of the published
//! schema. Nothing here reads or checks: see `read` and `check`.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_drivers::types::{Bytes, Name, Span};

use crate::{Device, DeviceDriver, Link, LookupSection, SinkSection, StreamSection, StreamTest};

/// A Tidegate configuration.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[schemars(title = "Tidegate configuration")]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Version of the document's form: 1.
    #[schemars(range(min = 1, max = 1))]
    pub version: u32,
    /// What this gateway is called and where it stands.
    pub gateway: Gateway,
    /// Where rows and results are kept, and how much of them.
    #[serde(default)]
    pub store: StoreSection,
    /// The status pages.
    #[serde(default)]
    pub web: Web,
    /// Bounds of queues and memory.
    #[serde(default)]
    pub limits: Limits,
    /// Buses and connections that several devices may share.
    #[serde(default)]
    pub links: Vec<Link>,
    /// Devices that are polled and feeds that are listened to; each is a SQL table.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// Small tables that are loaded as a whole, for the SQL of all streams to join with.
    #[serde(default)]
    pub lookups: Vec<LookupSection>,
    /// SQL over tables, with or without windows.
    #[serde(default)]
    pub streams: Vec<StreamSection>,
    /// Where results go.
    #[serde(default)]
    pub sinks: Vec<SinkSection>,
    /// Tests of streams on virtual time, run by `tidegate test`.
    #[serde(default)]
    pub tests: Vec<StreamTest>,
}

impl Document {
    /// Takes relative paths of lookups from `folder`, in which the configuration lies.
    pub fn anchor(&mut self, folder: &Path) {
        for lookup in &mut self.lookups {
            lookup.anchor(folder);
        }
    }

    /// Holds equal register maps once.
    pub(crate) fn share_register_maps(&mut self) {
        let mut known = Vec::new();
        for device in &mut self.devices {
            if let DeviceDriver::Modbus(modbus) = &mut device.driver {
                modbus.points.share(&mut known);
            }
        }
    }
}

/// What this gateway is called and where it stands.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gateway {
    /// The gateway's name; part of record ids, default topics and client ids.
    pub name: Name,
    /// The plant's time zone by its IANA name, such as `Europe/Berlin`: windows of whole days are days
    /// there. All times in records are UTC.
    #[serde(default)]
    pub timezone: Option<String>,
    /// Where the gateway stands, for people.
    #[serde(default)]
    pub location: Option<String>,
    /// How long rows wait for the clock to be set, where it was not when the gateway started: their
    /// times are then put right. Later than that, or at once with `0s`, they go on as they are, with
    /// quality `uncertain`.
    #[serde(default = "default_wait_for_clock")]
    pub wait_for_clock: Span,
    /// How long an orderly stop may take.
    #[serde(default = "default_shutdown_grace")]
    pub shutdown_grace: Span,
}

/// Where rows and results are kept, and how much of them.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreSection {
    /// The store's folder; created where it is missing.
    #[serde(default = "default_store_path")]
    pub path: String,
    /// Bytes of rows, waiting records and dead letters in all. The files take more: `ring`, a reserve of
    /// 1 MiB, the states of streams, and for each table and sink with a backlog up to two shelves of 4 MiB.
    #[serde(default = "default_store_max_bytes")]
    pub max_bytes: Bytes,
    /// How long accepted rows may wait for their commit: at most these are lost by a power cut.
    #[serde(default = "default_commit_every")]
    pub commit_every: Span,
    /// Length of the ring that accepted rows and results are written to first, whole KiB, of a store
    /// that is made anew; one that exists keeps its own. Left out, 16MiB or an eighth of `max_bytes`.
    #[serde(default)]
    pub ring: Option<Bytes>,
    /// Bytes that may be written in a day (UTC) before status raises an alarm; left out, no alarm.
    #[serde(default)]
    pub daily_writes: Option<Bytes>,
}

impl Default for StoreSection {
    fn default() -> Self {
        Self {
            path: default_store_path(),
            max_bytes: default_store_max_bytes(),
            commit_every: default_commit_every(),
            ring: None,
            daily_writes: None,
        }
    }
}

impl StoreSection {
    /// Length of the ring of a store that is made anew.
    pub fn effective_ring(&self) -> Bytes {
        let eighth = self.max_bytes.get() / 8 / 1024 * 1024;
        self.ring.unwrap_or(Bytes::new(eighth.clamp(RING_MIN.get(), 16 << 20)))
    }
}

/// The shortest ring that a store takes.
pub(crate) const RING_MIN: Bytes = Bytes::new(64 << 10);

/// The status pages.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Web {
    /// Address and port to listen on; only loopback addresses until there is a login.
    #[serde(default = "default_listen")]
    pub listen: String,
}

impl Default for Web {
    fn default() -> Self {
        Self { listen: default_listen() }
    }
}

/// Bounds of queues and memory.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory for open windows and SQL of all streams together.
    #[serde(default = "default_memory")]
    pub memory: Bytes,
    /// How long the SQL of a stream may take for one window or batch; then it is ended, and the rows
    /// count as failed.
    #[serde(default = "default_sql_time")]
    pub sql_time: Span,
    /// Batches that may wait between a device and its table.
    #[serde(default = "default_table_queue")]
    pub table_queue: u32,
    /// Batches that may wait between a table and a stream.
    #[serde(default = "default_stream_queue")]
    pub stream_queue: u32,
    /// Commits that may wait for the store.
    #[serde(default = "default_store_queue")]
    pub store_queue: u32,
    /// Records that are handed to a sink at once.
    #[serde(default = "default_deliver_rows")]
    pub deliver_rows: u32,
    /// Attempts before a record that a sink refuses is set aside as rejected.
    #[serde(default = "default_refusals_max")]
    pub refusals_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: default_memory(),
            sql_time: default_sql_time(),
            table_queue: default_table_queue(),
            stream_queue: default_stream_queue(),
            store_queue: default_store_queue(),
            deliver_rows: default_deliver_rows(),
            refusals_max: default_refusals_max(),
        }
    }
}

fn default_shutdown_grace() -> Span {
    Span::from_secs(5)
}

fn default_wait_for_clock() -> Span {
    Span::from_secs(600)
}

fn default_store_path() -> String {
    "/var/lib/tidegate".to_owned()
}

fn default_store_max_bytes() -> Bytes {
    Bytes::from_mib(512)
}

fn default_commit_every() -> Span {
    Span::from_secs(1)
}

fn default_listen() -> String {
    "127.0.0.1:8080".to_owned()
}

fn default_memory() -> Bytes {
    Bytes::from_mib(128)
}

fn default_sql_time() -> Span {
    Span::from_secs(10)
}

fn default_table_queue() -> u32 {
    64
}

fn default_stream_queue() -> u32 {
    64
}

fn default_store_queue() -> u32 {
    256
}

fn default_deliver_rows() -> u32 {
    1000
}

fn default_refusals_max() -> u32 {
    3
}
