//! Many units on one line: rates, order, and what a dead one costs.

use serde_json::json;

use super::tests::{Rig, SECOND, holding, link, reasons, values};
use super::*;
use crate::bus::{self, BusOwner};
use crate::modbus::peer::{Does, Peer, Seen};
use crate::south::modbus::RtuBus;
use crate::table::{Quality, Rows};

/// A serial link to `peer`.
fn line(peer: &Peer, mut fields: serde_json::Value) -> BusHandle {
    fields["port"] = json!("/dev/ttyS1");
    let rtu: RtuBus = serde_json::from_value(fields).unwrap();
    let (handle, mut owner) = bus::on_port("line", &rtu, Box::new(peer.clone()));
    tokio::spawn(async move { BusOwner::run(&mut owner).await });
    handle
}

/// Units that answer `after` some milliseconds, all but the dead one.
fn units(dead: u8, after: u64) -> Peer {
    Peer::rtu(move |seen| {
        if seen.unit == dead {
            Does::Nothing
        } else {
            Does::Later(Duration::from_millis(after), seen.addresses())
        }
    })
}

/// Polls units 1 to `count` side by side for `secs` and gives the rows of each.
async fn polled(bus: &BusHandle, count: u8, secs: u32, more: serde_json::Value) -> Vec<Vec<Rows>> {
    let until = Instant::now() + SECOND * secs;
    let devices = (1..=count).map(|unit| {
        let mut fields = more.clone();
        fields["unit_id"] = json!(unit);
        let mut rig = Rig::new(bus, fields, &holding(&[40, 41]));
        async move {
            let mut all = Vec::new();
            while let Ok(rows) = tokio::time::timeout_at(until, rig.cycle()).await {
                all.push(rows);
            }
            all
        }
    });
    futures::future::join_all(devices).await
}

/// Field case A27: one dead unit of three, timeout and period 1 s.
#[tokio::test(start_paused = true)]
async fn a27_a_dead_unit_on_a_line_is_demoted() {
    let peer = units(1, 20);
    let bus = line(&peer, json!({}));
    let rows = polled(&bus, 3, 65, json!({ "timeout": "1s" })).await;
    let start = peer.seen()[0].at;
    for unit in [&rows[1], &rows[2]] {
        let late = unit.iter().filter(|r| r.arrived[0] - start >= 5 * SECOND).count();
        assert!(late >= 54, "{late} of 60");
        assert!(unit.iter().all(|r| r.qualities == [Quality::Good]));
    }
    assert!(rows[0].len() >= 60 && rows[0].iter().all(|r| r.qualities == [Quality::Bad]));
    assert!(peer.seen().iter().filter(|s| s.unit == 1).count() <= 6);
}

/// Field case A25: a silent unit behind a converter costs itself its values and nobody the
/// connection.
#[tokio::test(start_paused = true)]
async fn a25_a_silent_unit_does_not_reset_the_connection() {
    let peer = units(2, 20);
    let bus = link(&peer, json!({ "framing": "rtu" }));
    let rows = polled(&bus, 4, 60, json!({ "timeout": "200ms" })).await;
    for (unit, rows) in (1..).zip(&rows) {
        assert!(rows.len() >= 59, "unit {unit}: {}", rows.len());
        let right = if unit == 2 { Quality::Bad } else { Quality::Good };
        assert!(rows.iter().all(|r| r.qualities == [right]), "unit {unit}");
    }
    assert_eq!(bus.stats().get(Counter::Connects), 1);
}

/// Field case A31: units 1 to 4, unit 2 times out once; only its request fails.
#[tokio::test(start_paused = true)]
async fn a31_a_timeout_empties_no_queue() {
    let mut missed = false;
    let peer = Peer::rtu(move |seen| {
        if seen.unit == 2 && !std::mem::replace(&mut missed, true) {
            return Does::Nothing;
        }
        Does::Says(seen.addresses())
    });
    let bus = line(&peer, json!({}));
    let rows = polled(&bus, 4, 10, json!({ "timeout": "200ms" })).await;
    for (unit, rows) in (1..).zip(&rows) {
        assert_eq!(rows.len(), 10, "unit {unit}");
        let bad = rows.iter().filter(|r| r.qualities != [Quality::Good]).count();
        assert_eq!(bad, usize::from(unit == 2));
    }
}

/// Field case A28: requests of two units never overlap: each is sent after the reply to the one
/// before.
#[tokio::test(start_paused = true)]
async fn a28_one_request_is_on_the_line() {
    let peer = units(0, 30);
    let bus = line(&peer, json!({}));
    polled(&bus, 2, 5, json!({ "polls": [{ "name": "fast", "every": "100ms" }] })).await;
    let seen = peer.seen();
    assert!(seen.len() >= 98, "{}", seen.len());
    for pair in seen.windows(2) {
        let apart = pair[1].at - pair[0].at;
        assert!(apart >= Duration::from_millis(34), "30 ms and 3.5 characters: {apart:?}");
    }
}

/// Field case A29: a unit that does not hear what comes within 100 ms of its reply.
#[tokio::test(start_paused = true)]
async fn a29_the_pause_after_a_reply_is_kept() {
    for (bus_fields, device_fields) in [
        (json!({ "inter_request_delay": "100ms" }), json!({})),
        (json!({}), json!({ "inter_request_delay": "100ms" })),
    ] {
        let mut answered: Option<Instant> = None;
        let peer = Peer::rtu(move |seen: &Seen| {
            if answered.is_some_and(|at| seen.at - at < Duration::from_millis(100)) {
                return Does::Nothing;
            }
            answered = Some(seen.at);
            Does::Says(seen.addresses())
        });
        let bus = line(&peer, bus_fields);
        let mut rig = Rig::new(&bus, device_fields, &holding(&[0x1004, 0x106A, 0x2000]));
        for _ in 0..5 {
            let right = [Some(0x1004), Some(0x106A), Some(0x2000)];
            assert_eq!(values(&rig.cycle().await, 0), right);
        }
        assert_eq!(peer.seen().len(), 15);
    }
}

/// Field case A20 in a device's row.
#[tokio::test(start_paused = true)]
async fn a20_bad_crc_is_the_reason() {
    let peer = Peer::rtu(|seen| match seen.start {
        7 => Does::Says(vec![seen.unit, seen.function | 0x80, 2]),
        _ => Does::Says(seen.addresses()),
    });
    let mut rig = Rig::new(&line(&peer, json!({})), json!({}), &holding(&[7, 500]));
    for _ in 0..3 {
        let rows = rig.cycle().await;
        assert_eq!(reasons(&rows), [Some("bad_crc"), None]);
        assert_eq!(values(&rows, 0), [None, Some(500)]);
    }
}

/// Field case A35: with `spread`, units with one period start at moments of their own, and keep
/// them.
#[tokio::test(start_paused = true)]
async fn a35_phases_are_spread() {
    let (peer, start) = (units(0, 0), Instant::now());
    let bus = line(&peer, json!({ "baud": 115_200 }));
    let polls = json!({ "polls": [{ "name": "slow", "every": "10s", "spread": true }] });
    let devices = (1..=8_u8).map(|unit| {
        let mut fields = polls.clone();
        fields["unit_id"] = json!(unit);
        let device = crate::modbus::testing::with(fields, &holding(&[40]));
        let mut south = ModbusSouth::new(format!("meter_{unit}"), device, bus.clone()).unwrap();
        async move {
            let mut rows = TableBuilder::new(south.points(), false);
            let mut at = Vec::new();
            for _ in 0..3 {
                south.read(&mut rows).await.unwrap();
                at.push(rows.finish().arrived[0] - start);
            }
            at
        }
    });
    let mut firsts = Vec::new();
    for at in futures::future::join_all(devices).await {
        assert_eq!(at[2], at[0] + 20 * SECOND);
        firsts.push(at[0]);
    }
    firsts.sort();
    assert!(firsts[7] > firsts[0] + 3 * SECOND, "{firsts:?}");
}
