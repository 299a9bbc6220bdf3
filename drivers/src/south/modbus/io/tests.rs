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

const SECOND: Duration = Duration::from_secs(1);

/// Starts a link to `peer`; the owner runs until all handles are gone.
fn link(peer: &Peer, fields: Value) -> BusHandle {
    let (handle, mut owner) = with_connector("bus", &tcp(fields), Box::new(peer.clone()));
    tokio::spawn(async move { BusOwner::run(&mut owner).await });
    handle
}

struct Rig {
    south: ModbusSouth,
    table: TableBuilder,
}

impl Rig {
    fn new(bus: &BusHandle, fields: Value, points: &[Value]) -> Self {
        let south = ModbusSouth::new("device", with(fields, points), bus.clone()).unwrap();
        let table = TableBuilder::new(south.points(), true);
        Self { south, table }
    }

    async fn cycle(&mut self) -> Rows {
        self.south.read(&mut self.table).await.unwrap();
        self.table.finish()
    }

    fn count(&self, counter: Counter) -> u64 {
        self.south.stats().get(counter)
    }
}

/// The values of `u16` columns in row `row`.
fn values(rows: &Rows, row: usize) -> Vec<Option<u16>> {
    rows.columns
        .iter()
        .map(|c| c.as_primitive::<UInt16Type>())
        .map(|c| c.is_valid(row).then(|| c.value(row)))
        .collect()
}

fn reasons(rows: &Rows) -> Vec<Option<&str>> {
    rows.point_qualities
        .iter()
        .map(|(_, r)| r.as_string::<i32>().iter().next().unwrap())
        .collect()
}

fn holding(addresses: &[u16]) -> Vec<Value> {
    addresses
        .iter()
        .map(|a| json!({ "register": "holding", "address": a }))
        .collect()
}

/// A device whose holding registers hold their addresses.
fn honest() -> Peer {
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
        assert_eq!(
            column.as_primitive::<UInt32Type>().value(0),
            (first << 16) | (first + 1)
        );
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
    assert_eq!(
        rows.columns[0].as_string::<i32>().value(0),
        "Tidegate-2000 serial"
    );
    assert_eq!(
        rows.columns[1].as_primitive::<UInt16Type>().value(0),
        0xABCD
    );
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
    let mut rig = Rig::new(
        &link(&peer, json!({})),
        json!({}),
        &holding(&[19, 20, 21, 500]),
    );
    let rows = rig.cycle().await;
    assert_eq!(values(&rows, 0), [Some(19), None, Some(21), Some(500)]);
    assert_eq!(reasons(&rows), [None, Some("illegal_address"), None, None]);
    assert_eq!(rows.qualities, [Quality::Uncertain]);
    assert_eq!(rig.south.stats().notes(), ["holding 20 cannot be read"]);
    let error = rig.south.stats().last_error().unwrap();
    assert!(error.contains("holding 20: exception 02"), "{error}");
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
    let expected: Vec<_> = addresses
        .iter()
        .map(|a| (![10, 47].contains(a)).then_some(*a))
        .collect();
    assert_eq!(values(&rig.cycle().await, 0), expected);
    rig.cycle().await;
    let exceptions = rig.count(Counter::Exceptions);
    peer.forget();
    assert_eq!(values(&rig.cycle().await, 0), expected);
    assert_eq!(
        rig.count(Counter::Exceptions),
        exceptions,
        "none in the third cycle"
    );
    assert_eq!(asked(&peer), [(0, 3), (4, 6), (11, 10), (23, 24), (48, 2)]);
}

/// A device that reads at most 8 registers a request, whatever the configuration says.
#[tokio::test(start_paused = true)]
async fn a_device_with_a_lower_limit_is_read_in_parts() {
    let peer = Peer::new(|seen| {
        Does::Says(if seen.quantity > 8 {
            seen.exception(3)
        } else {
            seen.addresses()
        })
    });
    let addresses: Vec<u16> = (100..130).collect();
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &holding(&addresses));
    let expected: Vec<_> = addresses.iter().copied().map(Some).collect();
    for _ in 0..5 {
        assert_eq!(values(&rig.cycle().await, 0), expected);
    }
    peer.forget();
    assert_eq!(values(&rig.cycle().await, 0), expected);
    assert!(
        peer.seen().iter().all(|s| s.quantity <= 8),
        "{:?}",
        asked(&peer)
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_point_comes_back() {
    let refused = Arc::new(Mutex::new(true));
    let flag = Arc::clone(&refused);
    let peer = Peer::new(move |seen| {
        let touches = seen.start <= 5 && 5 - seen.start < seen.quantity;
        let refuses = touches && *flag.lock().unwrap();
        Does::Says(if refuses {
            seen.exception(2)
        } else {
            seen.addresses()
        })
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
        (0..n)
            .map(|a| json!({ "register": "coil", "address": a }))
            .collect()
    };
    let on = |rows: &Rows| -> Vec<usize> {
        (0..rows.columns.len())
            .filter(|c| rows.columns[*c].as_boolean().value(0))
            .collect()
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
        Does::Says(if count == 2 {
            seen.exception(6)
        } else {
            seen.addresses()
        })
    });
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &holding(&[7]));
    assert_eq!(values(&rig.cycle().await, 0), [Some(7)]);
    let rows = rig.cycle().await;
    assert_eq!(
        (values(&rows, 0), reasons(&rows)),
        (vec![None], vec![Some("busy")])
    );
    assert_eq!(rows.qualities, [Quality::Bad]);
    assert_eq!(values(&rig.cycle().await, 0), [Some(7)]);
    assert_eq!(asked(&peer).len(), 3, "no hole is searched for");
}

/// Field case A17: one reply comes 50 ms after its deadline, when the next request, of another
/// block of the same size, is under way.
#[tokio::test(start_paused = true)]
async fn a17_a_late_reply_is_nobodys_value() {
    let mut count = 0;
    let peer = Peer::new(move |seen| {
        count += 1;
        if count == 3 {
            return Does::Later(Duration::from_millis(250), seen.addresses());
        }
        Does::Says(seen.addresses())
    });
    let bus = link(&peer, json!({}));
    let mut rig = Rig::new(&bus, json!({ "timeout": "200ms" }), &holding(&[10, 500]));
    assert_eq!(values(&rig.cycle().await, 0), [Some(10), Some(500)]);
    let rows = rig.cycle().await;
    assert_eq!(values(&rows, 0), [None, Some(500)]);
    assert_eq!(reasons(&rows), [Some("timeout"), None]);
    for _ in 0..20 {
        assert_eq!(values(&rig.cycle().await, 0), [Some(10), Some(500)]);
    }
    assert_eq!(bus.stats().get(Counter::StaleReplies), 1);
    assert_eq!(
        bus.stats().get(Counter::Connects),
        1,
        "the connection stays"
    );
}

/// Field case A17 with a device that does not copy ids: the connection is made anew.
#[tokio::test(start_paused = true)]
async fn a17_without_ids_the_connection_is_made_anew() {
    let mut count = 0;
    let peer = Peer::new(move |seen| {
        count += 1;
        let mut reply = seen.addresses();
        reply[..2].fill(0);
        if count == 3 {
            return Does::Later(Duration::from_millis(250), reply);
        }
        Does::Says(reply)
    });
    let bus = link(&peer, json!({ "tid_check": "lenient" }));
    let mut rig = Rig::new(&bus, json!({ "timeout": "200ms" }), &holding(&[10, 500]));
    assert_eq!(values(&rig.cycle().await, 0), [Some(10), Some(500)]);
    assert_eq!(values(&rig.cycle().await, 0), [None, Some(500)]);
    for _ in 0..20 {
        assert_eq!(values(&rig.cycle().await, 0), [Some(10), Some(500)]);
    }
    assert_eq!(bus.stats().get(Counter::Connects), 2);
}

/// Three units on one link, unit 1 silent; polled side by side for `cycles` rounds of 1 s.
async fn three_units(timeout_ms: u64, rounds: usize) -> (Peer, Vec<Vec<Rows>>) {
    let peer = Peer::new(|seen| {
        if seen.unit == 1 {
            Does::Nothing
        } else {
            Does::Says(seen.addresses())
        }
    });
    let bus = link(&peer, json!({}));
    let until = Instant::now() + SECOND * u32::try_from(rounds).unwrap();
    let devices = (1..=3).map(|unit| {
        let fields = json!({ "unit_id": unit, "timeout": format!("{timeout_ms}ms") });
        let mut rig = Rig::new(&bus, fields, &holding(&[40, 41]));
        async move {
            let mut all = Vec::new();
            while let Ok(rows) = tokio::time::timeout_at(until, rig.cycle()).await {
                all.push(rows);
            }
            all
        }
    });
    let rows = futures::future::join_all(devices).await;
    (peer, rows)
}

/// Field case A26: units 2 and 3 do not lose a cycle to unit 1.
#[tokio::test(start_paused = true)]
async fn a26_a_silent_unit_costs_the_others_nothing() {
    let (_, rows) = three_units(200, 60).await;
    for unit in [&rows[1], &rows[2]] {
        assert_eq!(unit.len(), 60);
        assert!(unit.iter().all(|r| r.qualities == [Quality::Good]));
    }
    assert!(rows[0].len() >= 59, "a row a cycle: {}", rows[0].len());
    for row in &rows[0] {
        assert_eq!(row.qualities, [Quality::Bad]);
        assert_eq!(reasons(row), [Some("timeout"); 2]);
    }
}

/// Field case A27: with a timeout as long as the period, the healthy units hold 0.9 Hz after the
/// first 5 s.
#[tokio::test(start_paused = true)]
async fn a27_a_dead_unit_is_demoted() {
    let (peer, rows) = three_units(1000, 65).await;
    let start = peer.seen()[0].at;
    for unit in [&rows[1], &rows[2]] {
        let late = unit
            .iter()
            .filter(|r| r.arrived[0] - start >= 5 * SECOND)
            .count();
        assert!(late >= 54, "{late} of 60");
    }
    let probes = peer.seen().iter().filter(|s| s.unit == 1).count();
    assert!(probes <= 6, "{probes} probes in 65 s");
    assert!(
        rows[0].len() >= 60,
        "a row a cycle all the same: {}",
        rows[0].len()
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_unit_that_is_alone_is_asked_each_cycle() {
    let silent = Arc::new(Mutex::new(true));
    let flag = Arc::clone(&silent);
    let peer = Peer::new(move |seen| {
        if *flag.lock().unwrap() {
            Does::Nothing
        } else {
            Does::Says(seen.addresses())
        }
    });
    let bus = link(&peer, json!({}));
    let mut rig = Rig::new(&bus, json!({ "timeout": "200ms" }), &holding(&[1]));
    for _ in 0..30 {
        assert_eq!(reasons(&rig.cycle().await), [Some("timeout")]);
    }
    assert_eq!(peer.seen().len(), 30);
    *silent.lock().unwrap() = false;
    assert_eq!(values(&rig.cycle().await, 0), [Some(1)]);
    assert_eq!(rig.count(Counter::Overruns), 0);
}

/// A block that is never answered does not hide the others.
#[tokio::test(start_paused = true)]
async fn silent_blocks_do_not_hide_the_others() {
    let peer = Peer::new(|seen| {
        if seen.start < 1000 {
            Does::Nothing
        } else {
            Does::Says(seen.addresses())
        }
    });
    let bus = link(&peer, json!({}));
    let mut rig = Rig::new(
        &bus,
        json!({ "timeout": "100ms" }),
        &holding(&[0, 500, 1000]),
    );
    let mut seen = 0;
    for _ in 0..9 {
        seen += usize::from(values(&rig.cycle().await, 0)[2] == Some(1000));
    }
    assert!(seen >= 3, "{seen} of 9");
}

/// Field cases A33 and A34: no row and no queue while the link is down, and after 20 reconnects
/// the device is asked as often as configured.
#[tokio::test(start_paused = true)]
async fn a33_the_rate_after_reconnects_is_the_configured_one() {
    let peer = Peer::new(|seen| {
        if seen.transaction.is_multiple_of(3) {
            Does::Closes
        } else {
            Does::Says(seen.addresses())
        }
    });
    let bus = link(&peer, json!({}));
    let mut rig = Rig::new(&bus, json!({}), &holding(&[3]));
    for _ in 0..60 {
        let rows = rig.cycle().await;
        assert!(rows.qualities.iter().all(|q| *q == Quality::Good));
    }
    assert_eq!(bus.stats().get(Counter::Connects), 21);
    assert_eq!(rig.count(Counter::CyclesWithoutLink), 20);
    let (seen, start) = (peer.seen(), peer.seen()[0].at);
    assert_eq!(seen.len(), 60);
    for (request, cycle) in seen.iter().zip(0..) {
        assert_eq!(
            (request.at - start).as_secs(),
            cycle,
            "one request a second"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a33_a_link_that_is_down_gives_no_rows_and_then_the_next_cycle() {
    let peer = honest();
    peer.refuse(4);
    let bus = link(&peer, json!({ "backoff_min": "1s", "backoff_max": "60s" }));
    let mut rig = Rig::new(
        &bus,
        json!({ "polls": [{ "name": "slow", "every": "2s" }] }),
        &holding(&[9]),
    );
    let start = Instant::now();
    assert!(rig.cycle().await.is_empty());
    assert_eq!(rig.south.stats().state(), LinkState::Down);
    let error = rig.south.stats().last_error().unwrap();
    assert!(error.contains("cannot connect to plc.test:502"), "{error}");
    while rig.cycle().await.is_empty() {}
    // Pauses of 0.75 to 1 times 1, 2, 4 and 8 s before the fifth attempt.
    let waited = start.elapsed();
    assert!(
        waited > Duration::from_secs(11) && waited < Duration::from_secs(16),
        "{waited:?}"
    );
    assert_eq!(peer.attempts().len(), 5);
    assert_eq!(rig.south.stats().state(), LinkState::Up);
    assert_eq!(rig.south.stats().last_error(), None);
    assert_eq!(rig.count(Counter::Overruns), 0);
}

/// Some devices close the connection after each reply: the next block is asked on a new one.
#[tokio::test(start_paused = true)]
async fn a_device_that_closes_after_each_reply_is_read() {
    let peer = Peer::new(|seen| Does::Last(seen.addresses()));
    let bus = link(&peer, json!({}));
    let mut rig = Rig::new(&bus, json!({}), &holding(&[1, 500]));
    for _ in 0..10 {
        assert_eq!(values(&rig.cycle().await, 0), [Some(1), Some(500)]);
    }
    assert_eq!(peer.seen().len(), 20);
}

/// A connection that breaks inside a cycle: what was read before is kept.
#[tokio::test(start_paused = true)]
async fn half_a_cycle_is_an_uncertain_row() {
    let peer = Peer::new(|seen| {
        if seen.start == 500 {
            Does::Closes
        } else {
            Does::Says(seen.addresses())
        }
    });
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &holding(&[1, 500]));
    let rows = rig.cycle().await;
    assert_eq!(reasons(&rows), [None, Some("link_down")]);
    assert_eq!(rows.qualities, [Quality::Uncertain]);
}

/// Field case A66: a cycle takes 1.4 s of 1 s.
#[tokio::test(start_paused = true)]
async fn a66_overruns_are_counted_and_the_rate_does_not_halve() {
    let peer = Peer::new(|seen| Does::Later(Duration::from_millis(1400), seen.addresses()));
    let mut rig = Rig::new(
        &link(&peer, json!({})),
        json!({ "timeout": "2s" }),
        &holding(&[3]),
    );
    let start = Instant::now();
    let mut rows = 0;
    while start.elapsed() < 30 * SECOND {
        let cycle = rig.cycle().await;
        // The instant is that of the answer, not that of the tick.
        assert_eq!(cycle.arrived[0], Instant::now());
        rows += 1;
    }
    assert!(rows >= 20, "{rows} rows in 30 s");
    assert_eq!(rig.count(Counter::Overruns), rows);
    assert_eq!(
        peer.seen().len(),
        usize::try_from(rows).unwrap(),
        "nothing is queued"
    );
}

#[tokio::test(start_paused = true)]
async fn cycles_do_not_drift() {
    let peer = Peer::new(|seen| Does::Later(Duration::from_millis(30), seen.addresses()));
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &holding(&[3]));
    for _ in 0..100 {
        rig.cycle().await;
    }
    let seen = peer.seen();
    assert_eq!(seen[99].at - seen[0].at, 99 * SECOND);
    assert_eq!(rig.count(Counter::Overruns), 0);
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
        assert_eq!(
            next_due(start, SECOND, at(ended)),
            (at(next), overrun),
            "ended at {ended}"
        );
    }
}

/// A read that is dropped at any moment loses no answer and writes no row twice.
#[tokio::test(start_paused = true)]
async fn a_cancelled_read_goes_on_where_it_was() {
    let peer = Peer::new(|seen| Does::Later(Duration::from_millis(10), seen.addresses()));
    let mut rig = Rig::new(
        &link(&peer, json!({})),
        json!({}),
        &holding(&[3, 500, 1000]),
    );
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
    assert!(
        matches!(&fault, Fault::Config(text) if text.contains("`e`")),
        "{fault}"
    );
}
