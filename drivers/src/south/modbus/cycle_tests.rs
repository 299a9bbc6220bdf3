use std::sync::Mutex;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{UInt16Type, UInt32Type};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::bus::{BusOwner, with_connector};
use crate::modbus::peer::{Does, Peer, Seen};
use crate::modbus::testing::{tcp, with};
use crate::table::{Quality, Rows};

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Starts a link to `peer`; the owner runs until all handles are gone.
pub(super) fn link(peer: &Peer, fields: Value) -> BusHandle {
    let (handle, mut owner) = with_connector("bus", &tcp(fields), Box::new(peer.clone()));
    tokio::spawn(async move { BusOwner::run(&mut owner).await });
    handle
}

pub(super) struct Rig {
    pub(super) south: ModbusSouth,
    pub(super) table: TableBuilder,
}

impl Rig {
    pub(super) fn new(bus: &BusHandle, fields: Value, points: &[Value]) -> Self {
        let south = ModbusSouth::new("device", with(fields, points), bus.clone()).unwrap();
        let table = TableBuilder::new(south.points(), true);
        Self { south, table }
    }

    pub(super) async fn cycle(&mut self) -> Rows {
        self.south.read(&mut self.table).await.unwrap();
        self.table.finish()
    }

    pub(super) fn count(&self, counter: Counter) -> u64 {
        self.south.stats().get(counter)
    }
}

/// The values of `u16` columns in row `row`.
pub(super) fn values(rows: &Rows, row: usize) -> Vec<Option<u16>> {
    rows.columns
        .iter()
        .map(AsArray::as_primitive::<UInt16Type>)
        .map(|c| c.is_valid(row).then(|| c.value(row)))
        .collect()
}

pub(super) fn reasons(rows: &Rows) -> Vec<Option<&str>> {
    rows.point_qualities.iter().map(|(_, r)| r.as_string::<i32>().iter().next().unwrap()).collect()
}

pub(super) fn holding(addresses: &[u16]) -> Vec<Value> {
    addresses.iter().map(|a| json!({ "register": "holding", "address": a })).collect()
}

/// A device whose holding registers hold their addresses.
pub(super) fn honest() -> Peer {
    Peer::new(|seen| Does::Says(seen.addresses()))
}

/// (start, quantity) of each request.
fn asked(peer: &Peer) -> Vec<(u16, u16)> {
    peer.seen().iter().map(|s| (s.start, s.quantity)).collect()
}

/// Field case A1 on the wire: two requests, and all 63 values are what the registers hold.
#[tokio::test(start_paused = true)]
async fn a01_values_over_a_request_border() {
    let points: Vec<_> = (0..63)
        .map(|i| json!({ "register": "holding", "address": 12800 + 2 * i, "type": "u32" }))
        .collect();
    let peer = honest();
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &points);
    let rows = rig.cycle().await;
    assert_eq!(asked(&peer), [(12800, 124), (12924, 2)]);
    assert_eq!(rows.qualities, [Quality::Good]);
    for (column, first) in rows.columns.iter().zip((12800_u32..).step_by(2)) {
        assert_eq!(column.as_primitive::<UInt32Type>().value(0), (first << 16) | (first + 1));
    }
}

/// Field case A2 on the wire.
#[tokio::test(start_paused = true)]
async fn a02_the_last_registers_are_read() {
    let points = [
        json!({ "register": "holding", "address": 65524, "type": "string", "length": 10 }),
        json!({ "register": "holding", "address": 65534 }),
    ];
    let peer = Peer::new(|seen| {
        let mut data = b"Tidegate-2000 serial".to_vec();
        data.extend([0xAB, 0xCD]);
        Does::Says(seen.reply(&data))
    });
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &points);
    let rows = rig.cycle().await;
    assert_eq!(asked(&peer), [(0xFFF4, 11)]);
    assert_eq!(rows.columns[0].as_string::<i32>().value(0), "Tidegate-2000 serial");
    assert_eq!(rows.columns[1].as_primitive::<UInt16Type>().value(0), 0xABCD);
}

/// A device that refuses each request which touches one of `forbidden` with exception `code`.
fn with_holes(forbidden: &'static [u16], code: u8) -> Peer {
    Peer::new(move |seen: &Seen| {
        let touches = |a: &u16| *a >= seen.start && *a - seen.start < seen.quantity;
        if forbidden.iter().any(touches) {
            Does::Says(seen.exception(code))
        } else {
            Does::Says(seen.addresses())
        }
    })
}

/// Field case A4: only the point that is refused is bad, and the others of its block go on.
#[tokio::test(start_paused = true)]
async fn a04_one_refused_point_is_one_bad_point() {
    let peer = with_holes(&[20], 2);
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &holding(&[19, 20, 21, 500]));
    let rows = rig.cycle().await;
    assert_eq!(values(&rows, 0), [Some(19), None, Some(21), Some(500)]);
    assert_eq!(reasons(&rows), [None, Some("illegal_address"), None, None]);
    assert_eq!(rows.qualities, [Quality::Uncertain]);
    assert_eq!(rig.south.stats().notes(), ["holding 20 cannot be read"]);
    let error = rig.south.stats().last_error().unwrap();
    assert!(error.contains("holding 20 (p1): exception 02 (illegal data address)"), "{error}");
    // It is not hammered: asked again after 10 s, then 20 s, then 40 s.
    peer.forget();
    let mut probes = Vec::new();
    for _ in 0..75 {
        let rows = rig.cycle().await;
        assert_eq!(reasons(&rows), [None, Some("illegal_address"), None, None]);
    }
    probes.extend(peer.seen().iter().filter(|s| s.start == 20).map(|s| s.at));
    let waits: Vec<u64> = probes.windows(2).map(|w| (w[1] - w[0]).as_secs()).collect();
    assert_eq!(waits, [20, 40]);
}

/// Field case A6: any request that touches 11175 is refused.
#[tokio::test(start_paused = true)]
async fn a06_a_hole_is_found_and_remembered() {
    let peer = with_holes(&[11175], 2);
    let bus = link(&peer, json!({}));
    let mut rig = Rig::new(&bus, json!({}), &holding(&[11174, 11176, 11177]));
    let all = [Some(11174), Some(11176), Some(11177)];
    assert_eq!(values(&rig.cycle().await, 0), all);
    assert_eq!(asked(&peer), [(11174, 4), (11174, 1), (11176, 2)]);
    for _ in 0..3 {
        peer.forget();
        assert_eq!(values(&rig.cycle().await, 0), all);
        assert_eq!(asked(&peer), [(11174, 1), (11176, 2)]);
    }
    assert_eq!(rig.south.holes().len(), 1);
    assert_eq!(rig.south.stats().notes(), ["holding 11175 cannot be read"]);
    assert_eq!(rig.south.stats().last_error(), None);
    assert_eq!(rig.count(Counter::Exceptions), 1);
}

/// Many holes, between points and on them: everything else is there in the first cycle.
#[tokio::test(start_paused = true)]
async fn a06_many_holes_at_once() {
    let peer = with_holes(&[3, 10, 21, 22, 47], 2);
    let addresses: Vec<u16> = (0..50).filter(|a| ![3, 21, 22].contains(a)).collect();
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &holding(&addresses));
    let expected: Vec<_> =
        addresses.iter().map(|a| (![10, 47].contains(a)).then_some(*a)).collect();
    assert_eq!(values(&rig.cycle().await, 0), expected);
    rig.cycle().await;
    let exceptions = rig.count(Counter::Exceptions);
    peer.forget();
    assert_eq!(values(&rig.cycle().await, 0), expected);
    assert_eq!(rig.count(Counter::Exceptions), exceptions, "none in the third cycle");
    assert_eq!(asked(&peer), [(0, 3), (4, 6), (11, 10), (23, 24), (48, 2)]);
}

/// A device that reads at most 8 registers a request, whatever the configuration says.
#[tokio::test(start_paused = true)]
async fn a_device_with_a_lower_limit_is_read_in_parts() {
    let peer = Peer::new(|seen| {
        Does::Says(if seen.quantity > 8 { seen.exception(3) } else { seen.addresses() })
    });
    let addresses: Vec<u16> = (100..130).collect();
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &holding(&addresses));
    let expected: Vec<_> = addresses.iter().copied().map(Some).collect();
    for _ in 0..5 {
        assert_eq!(values(&rig.cycle().await, 0), expected);
    }
    peer.forget();
    assert_eq!(values(&rig.cycle().await, 0), expected);
    assert!(peer.seen().iter().all(|s| s.quantity <= 8), "{:?}", asked(&peer));
}

#[tokio::test(start_paused = true)]
async fn a_refused_point_comes_back() {
    let refused = Arc::new(Mutex::new(true));
    let flag = Arc::clone(&refused);
    let peer = Peer::new(move |seen| {
        let touches = seen.start <= 5 && 5 - seen.start < seen.quantity;
        let says_no = touches && *flag.lock().unwrap();
        Does::Says(if says_no { seen.exception(2) } else { seen.addresses() })
    });
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &holding(&[4, 5, 6]));
    assert_eq!(values(&rig.cycle().await, 0), [Some(4), None, Some(6)]);
    *refused.lock().unwrap() = false;
    for _ in 0..11 {
        rig.cycle().await;
    }
    peer.forget();
    assert_eq!(values(&rig.cycle().await, 0), [Some(4), Some(5), Some(6)]);
    assert_eq!(asked(&peer), [(4, 3)], "one block again");
    assert!(rig.south.stats().notes().is_empty());
}

/// An unsupported function is not searched for holes.
#[tokio::test(start_paused = true)]
async fn exception_01_refuses_the_block() {
    let peer = Peer::new(|seen| Does::Says(seen.exception(1)));
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &holding(&[4, 5, 6]));
    for _ in 0..9 {
        let rows = rig.cycle().await;
        assert_eq!(reasons(&rows), [Some("illegal_function"); 3]);
        assert_eq!(rows.qualities, [Quality::Bad]);
    }
    assert_eq!(asked(&peer), [(4, 3)]);
}

/// Field case A10: 16 coils from 0, `00 82`: coils 9 and 15. Then 11 coils in 2 bytes, of which
/// the last 5 bits are padding.
#[tokio::test(start_paused = true)]
async fn a10_coils_beyond_the_first_byte() {
    let coils = |n: u16| -> Vec<Value> {
        (0..n).map(|a| json!({ "register": "coil", "address": a })).collect()
    };
    let on = |rows: &Rows| -> Vec<usize> {
        (0..rows.columns.len()).filter(|c| rows.columns[*c].as_boolean().value(0)).collect()
    };
    let peer = Peer::new(|seen| Does::Says(seen.reply(&[0x00, 0x82])));
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &coils(16));
    assert_eq!(on(&rig.cycle().await), [9, 15]);
    assert_eq!((peer.seen()[0].function, peer.seen()[0].quantity), (1, 16));
    let peer = Peer::new(|seen| Does::Says(seen.reply(&[0x01, 0xFC])));
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &coils(11));
    assert_eq!(on(&rig.cycle().await), [0, 10]);
    assert_eq!(peer.seen()[0].quantity, 11);
}

/// Field case A11: busy is no value, and the next cycle asks again.
#[tokio::test(start_paused = true)]
async fn a11_busy_is_no_value() {
    let mut count = 0;
    let peer = Peer::new(move |seen| {
        count += 1;
        Does::Says(if count == 2 { seen.exception(6) } else { seen.addresses() })
    });
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &holding(&[7]));
    assert_eq!(values(&rig.cycle().await, 0), [Some(7)]);
    let rows = rig.cycle().await;
    assert_eq!((values(&rows, 0), reasons(&rows)), (vec![None], vec![Some("busy")]));
    assert_eq!(rows.qualities, [Quality::Bad]);
    assert_eq!(values(&rig.cycle().await, 0), [Some(7)]);
    assert_eq!(asked(&peer).len(), 3, "no hole is searched for");
}

#[test]
fn missed_cycles_are_skipped_on_the_grid() {
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    for (ended, next, overrun) in [
        (300, 1000, false),
        (1000, 1000, false),
        (1400, 1000, true),
        (1600, 2000, true),
        (5200, 5000, true),
        (5900, 6000, true),
    ] {
        assert_eq!(next_due(start, SECOND, at(ended)), (at(next), overrun), "ended at {ended}");
    }
}

/// A read that is dropped at any moment loses no answer and writes no row twice.
#[tokio::test(start_paused = true)]
async fn a_cancelled_read_goes_on_where_it_was() {
    let peer = Peer::new(|seen| Does::Later(Duration::from_millis(10), seen.addresses()));
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &holding(&[3, 500, 1000]));
    let start = Instant::now();
    let mut rows = 0;
    while rows < 20 {
        let read = rig.south.read(&mut rig.table);
        let cancelled = timeout(Duration::from_millis(7), read).await.is_err();
        assert!(!rig.table.is_open());
        let taken = rig.table.finish();
        assert!(!cancelled || taken.is_empty());
        for row in 0..taken.len() {
            assert_eq!(values(&taken, row), [Some(3), Some(500), Some(1000)]);
            rows += 1;
        }
    }
    assert_eq!(start.elapsed().as_secs(), 19);
    assert_eq!(peer.seen().len(), 60, "no request is made twice");
}

#[tokio::test(start_paused = true)]
async fn the_pause_between_requests_is_kept() {
    let peer = honest();
    let bus = link(&peer, json!({ "inter_request_delay": "100ms" }));
    let mut rig = Rig::new(&bus, json!({}), &holding(&[3, 500, 1000]));
    for _ in 0..3 {
        rig.cycle().await;
    }
    let seen = peer.seen();
    assert_eq!(seen.len(), 9);
    for pair in seen.windows(2) {
        assert!(pair[1].at - pair[0].at >= Duration::from_millis(100));
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_configuration_is_refused_in_words() {
    let bus = link(&honest(), json!({}));
    let points = [json!({ "name": "e", "register": "input", "address": 65535, "type": "u32" })];
    let fault = ModbusSouth::new("meter", with(json!({}), &points), bus).unwrap_err();
    assert!(matches!(&fault, Fault::Config(text) if text.contains("`e`")), "{fault}");
}

/// Field case A14: what is read once is read again when the connection was made anew, and until
/// then not; a device that does not answer is asked again.
#[tokio::test(start_paused = true)]
async fn a14_a_serial_number_is_read_once_a_connection() {
    let mut count = 0;
    let peer = Peer::new(move |seen| {
        count += 1;
        match count {
            1 => Does::Nothing,
            3 => Does::Last(seen.addresses()),
            _ => Does::Says(seen.addresses()),
        }
    });
    let bus = link(&peer, json!({}));
    let polls = json!({ "polls": [{ "name": "once", "every": "on_connect" }], "timeout": "1s" });
    let mut rig = Rig::new(&bus, polls, &holding(&[40]));
    let start = Instant::now();
    assert_eq!(values(&rig.cycle().await, 0), [None]);
    assert_eq!(values(&rig.cycle().await, 0), [Some(40)]);
    assert_eq!(start.elapsed().as_secs(), 10);
    timeout(Duration::from_hours(1), rig.cycle()).await.unwrap_err();
    // Another device of the link is there when the connection is lost and made anew.
    let mut other = Rig::new(&bus, json!({}), &holding(&[41]));
    other.cycle().await;
    assert_eq!(values(&rig.cycle().await, 0), [Some(40)]);
    timeout(Duration::from_hours(1), rig.cycle()).await.unwrap_err();
    assert_eq!(peer.seen().iter().filter(|s| s.start == 40).count(), 3);
}
