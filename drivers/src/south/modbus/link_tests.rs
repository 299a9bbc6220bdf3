//! What a device does when replies are late, units silent and links down.

use std::sync::Mutex;

use serde_json::json;

use super::tests::{Rig, SECOND, holding, honest, link, reasons, values};
use super::*;
use crate::modbus::peer::{Does, Peer, Seen};
use crate::table::{Quality, Rows};

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
    assert_eq!(bus.stats().get(Counter::Connects), 1, "the connection stays");
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
    let peer =
        Peer::new(|seen| if seen.unit == 1 { Does::Nothing } else { Does::Says(seen.addresses()) });
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
        let late = unit.iter().filter(|r| r.arrived[0] - start >= 5 * SECOND).count();
        assert!(late >= 54, "{late} of 60");
    }
    let probes = peer.seen().iter().filter(|s| s.unit == 1).count();
    assert!(probes <= 6, "{probes} probes in 65 s");
    assert!(rows[0].len() >= 60, "a row a cycle all the same: {}", rows[0].len());
}

/// A gateway that answers 0B for a dead unit, after a second of its own waiting, is no better than
/// silence: the unit is demoted too.
#[tokio::test(start_paused = true)]
async fn a27_a_unit_that_a_gateway_cannot_reach_is_demoted() {
    let peer = Peer::new(|seen| match seen.unit {
        1 => Does::Later(Duration::from_millis(900), seen.exception(0x0B)),
        _ => Does::Says(seen.addresses()),
    });
    let bus = link(&peer, json!({}));
    let mut dead = Rig::new(&bus, json!({ "unit_id": 1 }), &holding(&[1, 500]));
    let mut other = Rig::new(&bus, json!({ "unit_id": 2 }), &holding(&[1]));
    for _ in 0..60 {
        let (rows, _) = tokio::join!(dead.cycle(), other.cycle());
        assert_eq!(reasons(&rows), [Some("gateway_target"); 2]);
    }
    let asked = peer.seen().iter().filter(|s| s.unit == 1).count();
    assert!(asked <= 6, "{asked} requests in 60 s");
}

/// What was asked of each of three units in each second from the first request on.
fn each_second(peer: &Peer) -> Vec<[usize; 3]> {
    let seen = peer.seen();
    let mut counts = Vec::new();
    for one in &seen {
        let second = usize::try_from((one.at - seen[0].at).as_secs()).unwrap();
        counts.resize(counts.len().max(second + 1), [0; 3]);
        counts[second][usize::from(one.unit) - 1] += 1;
    }
    counts
}

/// A cable that all units hang on is cut from second 20 to second 80; unit 1 is dead all the time.
/// Nobody is spared by asking the others seldom while all are silent, so they are back with their
/// first cycle; unit 1 is asked seldom before and afterwards.
#[tokio::test(start_paused = true)]
async fn units_that_are_all_silent_are_asked_each_cycle() {
    let start = Instant::now();
    let peer = Peer::rtu(move |seen| {
        let cut = (20..80).contains(&(seen.at - start).as_secs());
        if cut || seen.unit == 1 { Does::Nothing } else { Does::Says(seen.addresses()) }
    });
    let bus = link(&peer, json!({ "framing": "rtu" }));
    let until = start + SECOND * 140;
    let devices = (1..=3).map(|unit| {
        let fields = json!({ "unit_id": unit, "timeout": "200ms" });
        let mut rig = Rig::new(&bus, fields, &holding(&[40]));
        async move {
            let mut good = Vec::new();
            while let Ok(rows) = tokio::time::timeout_at(until, rig.cycle()).await {
                if rows.qualities == [Quality::Good] {
                    good.push((rows.arrived[0] - start).as_secs());
                }
            }
            good
        }
    });
    let good = futures::future::join_all(devices).await;
    for unit in &good[1..] {
        let right: Vec<u64> = (0..20).chain(80..140).collect();
        assert_eq!(*unit, right);
    }
    let asked = each_second(&peer);
    for (second, counts) in asked.iter().enumerate().take(80).skip(22) {
        assert!(counts[1] >= 1 && counts[2] >= 1, "second {second}: {counts:?}");
    }
    let dead = |from: usize, to: usize| asked[from..to].iter().map(|c| c[0]).sum::<usize>();
    assert!(dead(3, 20) <= 4, "{} while the others live", dead(3, 20));
    assert!(dead(32, 80) >= 47, "{} while nobody does", dead(32, 80));
    assert!(dead(84, 140) <= 8, "{} when they live again", dead(84, 140));
}

#[tokio::test(start_paused = true)]
async fn a_silent_unit_that_is_alone_is_asked_each_cycle() {
    let silent = Arc::new(Mutex::new(true));
    let flag = Arc::clone(&silent);
    let peer =
        Peer::new(
            move |seen| {
                if *flag.lock().unwrap() { Does::Nothing } else { Does::Says(seen.addresses()) }
            },
        );
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
    let peer =
        Peer::new(
            |seen| {
                if seen.start < 1000 { Does::Nothing } else { Does::Says(seen.addresses()) }
            },
        );
    let bus = link(&peer, json!({}));
    let mut rig = Rig::new(&bus, json!({ "timeout": "100ms" }), &holding(&[0, 500, 1000]));
    let mut seen = 0;
    for _ in 0..9 {
        seen += usize::from(values(&rig.cycle().await, 0)[2] == Some(1000));
    }
    assert!(seen >= 3, "{seen} of 9");
}

/// A device that says nothing to addresses that it does not have: the block is asked for at growing
/// intervals, and every cycle once it is there.
#[tokio::test(start_paused = true)]
async fn a_block_that_is_never_answered_rests() {
    let start = Instant::now();
    let silent = move |seen: &Seen| seen.start == 0 && (seen.at - start).as_secs() < 100;
    let peer = Peer::new(
        move |seen| {
            if silent(seen) { Does::Nothing } else { Does::Says(seen.addresses()) }
        },
    );
    let bus = link(&peer, json!({}));
    let fields = json!({ "timeout": "500ms" });
    let mut rig = Rig::new(&bus, fields, &holding(&[0, 500, 1000]));
    let mut rows = Vec::new();
    while start.elapsed() < SECOND * 140 {
        rows.push(rig.cycle().await);
    }
    assert_eq!(rows.len(), 141, "no cycle is lost to it");
    assert!(rows.iter().all(|row| values(row, 0)[1..] == [Some(500), Some(1000)]));
    let asked: Vec<u64> =
        peer.seen().iter().filter(|s| s.start == 0).map(|s| (s.at - start).as_secs()).collect();
    // Five cycles, then 10 times the timeout: 5 s, 10 s, 20 s, 30 s, each on the next cycle.
    assert_eq!(asked[..10], [0, 1, 2, 3, 4, 10, 21, 42, 73, 104]);
    assert!(asked[10..].iter().eq((105..=140).collect::<Vec<_>>().iter()), "{asked:?}");
    assert_eq!(reasons(&rows[50]), [Some("timeout"), None, None]);
    assert_eq!(values(&rows[110], 0)[0], Some(0));
    assert_eq!(rig.south.stats().last_error(), None);
}

/// A line that loses two replies of three: what is missed now and then does not rest.
#[tokio::test(start_paused = true)]
async fn a_block_that_is_answered_now_and_then_is_asked_each_cycle() {
    let mut count = 0;
    let peer = Peer::new(move |seen| {
        count += usize::from(seen.start == 0);
        let lost = seen.start == 0 && count % 3 != 0;
        if lost { Does::Nothing } else { Does::Says(seen.addresses()) }
    });
    let bus = link(&peer, json!({}));
    let mut rig = Rig::new(&bus, json!({ "timeout": "100ms" }), &holding(&[0, 500]));
    for _ in 0..60 {
        rig.cycle().await;
    }
    assert_eq!(peer.seen().iter().filter(|s| s.start == 0).count(), 60);
}

/// Field cases A33 and A34: no row and no queue while the link is down, and after 20 reconnects
/// the device is asked as often as configured.
#[tokio::test(start_paused = true)]
async fn a33_the_rate_after_reconnects_is_the_configured_one() {
    let peer = Peer::new(|seen| {
        if seen.transaction.is_multiple_of(3) { Does::Closes } else { Does::Says(seen.addresses()) }
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
        assert_eq!((request.at - start).as_secs(), cycle, "one request a second");
    }
}

#[tokio::test(start_paused = true)]
async fn a33_a_link_that_is_down_gives_no_rows_and_then_the_next_cycle() {
    let peer = honest();
    peer.refuse(4);
    let bus = link(&peer, json!({ "backoff_min": "1s", "backoff_max": "60s" }));
    let mut rig =
        Rig::new(&bus, json!({ "polls": [{ "name": "slow", "every": "2s" }] }), &holding(&[9]));
    let start = Instant::now();
    assert!(rig.cycle().await.is_empty());
    assert_eq!(rig.south.stats().state(), LinkState::Down);
    let error = rig.south.stats().last_error().unwrap();
    assert!(error.contains("cannot connect to plc.test:502"), "{error}");
    while rig.cycle().await.is_empty() {}
    // Pauses of 0.75 to 1 times 1, 2, 4 and 8 s before the fifth attempt.
    let waited = start.elapsed();
    assert!(waited > Duration::from_secs(11) && waited < Duration::from_secs(16), "{waited:?}");
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
    let peer =
        Peer::new(
            |seen| {
                if seen.start == 500 { Does::Closes } else { Does::Says(seen.addresses()) }
            },
        );
    let mut rig = Rig::new(&link(&peer, json!({})), json!({}), &holding(&[1, 500]));
    let rows = rig.cycle().await;
    assert_eq!(reasons(&rows), [None, Some("link_down")]);
    assert_eq!(rows.qualities, [Quality::Uncertain]);
}

/// Field case A66: a cycle takes 1.4 s of 1 s.
#[tokio::test(start_paused = true)]
async fn a66_overruns_are_counted_and_the_rate_does_not_halve() {
    let peer = Peer::new(|seen| Does::Later(Duration::from_millis(1400), seen.addresses()));
    let mut rig = Rig::new(&link(&peer, json!({})), json!({ "timeout": "2s" }), &holding(&[3]));
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
    assert_eq!(peer.seen().len(), usize::try_from(rows).unwrap(), "nothing is queued");
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
