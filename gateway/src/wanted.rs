//! What a configuration wants of each part, in a form that two configurations can be compared by.
//!
//! A part whose wish is equal in both is not touched by a change: its connection, its counters and
//! its state stay. So a wish holds all that the part was made of, and nothing else.

use std::collections::BTreeMap;

use arrow::datatypes::SchemaRef;
use tidegate_config::{
    Device, Document, Link, LookupSection, SinkDriver, SinkReplay, StreamSection,
};
use tidegate_drivers::north::Encode;
use tidegate_engine::StreamSpec;

use crate::build::{Surroundings, device_secret, encode, link_of, sink_secret, stream_spec};
use crate::chain::{self, StreamTables};

/// A device is made of its section, its secret, its table's columns and its link. How long its rows
/// are kept is the store's affair.
#[derive(Clone, PartialEq)]
pub(crate) struct DeviceWish {
    section: Device,
    secret: Option<String>,
    columns: SchemaRef,
    link: Option<Link>,
}

/// A stream is made of its own wish and of those of all streams that it follows from: it reads their
/// results, so that it ends and begins with them.
#[derive(Clone, PartialEq)]
pub(crate) struct StreamWish {
    own: OwnWish,
    upstream: Vec<OwnWish>,
    /// The columns of its results, where others read them.
    table: Option<SchemaRef>,
}

/// What a stream is made of by itself: its section, what follows from it, how its sinks' records
/// are written, and the lookups that it may read.
#[derive(Clone, PartialEq)]
struct OwnWish {
    section: StreamSection,
    spec: StreamSpec,
    encodes: Vec<Encode>,
    lookups: Vec<LookupSection>,
    /// Memory of all SQL together: with another bound the planner is another one.
    memory: usize,
}

impl OwnWish {
    fn new(document: &Document, stream: &StreamSection, tables: &StreamTables) -> Self {
        let sinks = stream
            .routes()
            .filter_map(|route| document.sinks.iter().find(|sink| sink.name == route.sink));
        // Whether the name stands there for the lookup is the planner's affair; to begin anew for
        // nothing does no harm.
        let named = |lookup: &&LookupSection| stream.sql.contains(lookup.name.as_str());
        Self {
            section: stream.clone(),
            spec: stream_spec(document, stream, stream.event_time, tables),
            encodes: sinks.map(|sink| encode(&sink.driver)).collect(),
            lookups: document.lookups.iter().filter(named).cloned().collect(),
            memory: document.limits.memory.len(),
        }
    }
}

/// A sink is made of its driver, its secret, and how it delivers: how much at once, and how what
/// waited. What may wait for it is the store's affair.
#[derive(Clone, PartialEq)]
pub(crate) struct SinkWish {
    driver: SinkDriver,
    replay: SinkReplay,
    secret: Option<String>,
    deliver_rows: u32,
    refusals_max: u32,
}

/// All wishes of one configuration, by name.
pub(crate) struct Wanted {
    pub(crate) links: BTreeMap<String, Link>,
    /// Tables are made of their columns.
    pub(crate) tables: BTreeMap<String, SchemaRef>,
    pub(crate) devices: BTreeMap<String, DeviceWish>,
    pub(crate) streams: BTreeMap<String, StreamWish>,
    pub(crate) sinks: BTreeMap<String, SinkWish>,
    /// Lookups are made of their sections.
    pub(crate) lookups: BTreeMap<String, LookupSection>,
}

impl Wanted {
    /// What `document` wants, whose streams that others read have these columns.
    pub(crate) fn new(document: &Document, around: &Surroundings, tables: &StreamTables) -> Self {
        let links: BTreeMap<_, _> =
            document.links.iter().map(|link| (link.name.to_string(), link.clone())).collect();
        let columns: BTreeMap<_, _> =
            document.tables().into_iter().map(|table| (table.name, table.columns)).collect();
        let devices = document.device_parts().filter_map(|(device, group)| {
            let wish = DeviceWish {
                section: Device { history: None, ..device.clone() },
                secret: around.current_secret(device_secret(device)),
                columns: columns.get(&device.table_of(group))?.clone(),
                link: link_of(device).and_then(|link| links.get(link)).cloned(),
            };
            Some((device.part_name(group), wish))
        });
        let devices = devices.collect();
        let own = |stream: &StreamSection| OwnWish::new(document, stream, tables);
        let streams = document.streams.iter().map(|stream| {
            let upstream = document.upstream_of(stream, &chain::latest);
            let wish = StreamWish {
                own: own(stream),
                upstream: upstream.into_iter().map(|at| own(&document.streams[at])).collect(),
                table: tables.get(stream.name.as_str()).cloned(),
            };
            (stream.name.to_string(), wish)
        });
        let streams = streams.collect();
        let sinks = document.sinks.iter().map(|sink| {
            let wish = SinkWish {
                driver: sink.driver.clone(),
                replay: sink.replay.clone(),
                secret: around.current_secret(sink_secret(sink)),
                deliver_rows: document.limits.deliver_rows,
                refusals_max: document.limits.refusals_max,
            };
            (sink.name.to_string(), wish)
        });
        let lookups = document.lookups.iter().map(|l| (l.name.to_string(), l.clone())).collect();
        Self { sinks: sinks.collect(), links, tables: columns, devices, streams, lookups }
    }
}

/// What in `new` cannot be taken while the gateway runs: the store's folder and the names of its
/// records, the listener, and the bounds of queues that parts share.
pub fn needs_restart(old: &Document, new: &Document) -> Vec<&'static str> {
    let (a, b) = (&old.limits, &new.limits);
    let fixed = [
        ("gateway.name", old.gateway.name == new.gateway.name),
        ("store.path", old.store.path == new.store.path),
        ("web.listen", old.web.listen == new.web.listen),
        ("limits.table_queue", a.table_queue == b.table_queue),
        ("limits.stream_queue", a.stream_queue == b.stream_queue),
        ("limits.store_queue", a.store_queue == b.store_queue),
    ];
    fixed.into_iter().filter(|(_, same)| !same).map(|(path, _)| path).collect()
}
