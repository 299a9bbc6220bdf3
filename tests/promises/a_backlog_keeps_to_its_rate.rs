//! Field cases A56 (node-red-contrib-msg-queue #5: after an outage everything was sent at once, and a
//! broker that takes some a second lost three quarters) and A49 (thingsboard-gateway #410: after an
//! outage records came out of order, or only the newest).
//!
//! Here: what waited goes out at the rate that was asked for, in order, on its own topic and marked;
//! live records do not wait for it; nothing comes twice; and memory does not grow with the backlog. And
//! where the far side takes less than there is, live records have their share of it, or all that they need.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::harness::broker::Broker;
use crate::harness::gate::Gate;
use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::records::{Record, of_stream};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, run, say, secs, setting, soak, wait_until};

/// `rows` every 10 ms to a broker, by way of `replay`.
fn config(scratch: &Scratch, broker: u16, rows: u64, replay: &str) -> String {
    let head = head(scratch);
    format!(
        "{head}
devices: [ {{ name: s, driver: {{ generate: {{ every: 10ms, rows: {rows}, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }} ]
streams: [ {{ name: rows, from: [s], sql: SELECT n FROM s, to: [ {{ sink: cloud }} ] }} ]
sinks:
  - name: cloud
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{broker}\", topic: \"live/{{stream}}\", backoff_min: 100ms, backoff_max: 200ms }} }}
    store: {{ max_bytes: 256MiB }}
    replay: {{ {replay} }}
"
    )
}

/// Fills the outbox while nobody takes anything, and ends the gateway.
fn fill(scratch: &Scratch, broker: u16, records: u64) {
    let mut gateway = Gateway::start(scratch, &config(scratch, broker, 100, ""));
    gateway.wait_status("a backlog", secs(60 + records / 2_000), |status| {
        (count(status, "sinks", "cloud", "buffered_records") >= records).then_some(())
    });
    assert_eq!(gateway.stop().code, Some(0));
}

fn is_late(record: &Record) -> bool {
    record.topic.starts_with("late/")
}

/// Waits until so many records of the backlog have arrived.
fn late_at(far_side: &Subscriber, number: usize) -> Instant {
    // Each record is looked at once, however many there are.
    let (mut seen, mut late) = (0, 0);
    wait_until("the backlog", secs(600), || {
        far_side.look(|all| {
            late += all[seen..].iter().filter(|record| is_late(record)).count();
            seen = all.len();
        });
        late >= number
    });
    Instant::now()
}

#[test]
fn a56_a49_a_backlog_at_its_rate_beside_live_records() {
    let scratch = Scratch::new("rate");
    let far = Scratch::new("far");
    let mut broker = Broker::prepare(&far, "");
    let gate = Arc::new(Gate::new(broker.port));
    let (backlog, rate) = if soak() { (2_000_000, 10_000) } else { (10_000, 1_000) };
    let backlog = setting("TIDEGATE_TEST_BACKLOG", backlog);
    fill(&scratch, gate.port, backlog);

    // 100 records a second come about meanwhile.
    let rate = setting("TIDEGATE_TEST_REPLAY_RATE", rate);
    let replay = format!("rate: {rate}/s, share: 0.5, mark: replayed, topic: \"late/{{stream}}\"");
    let mut gateway = Gateway::start(&scratch, &config(&scratch, gate.port, 1, &replay));
    broker.restart();
    let far_side = Subscriber::start(broker.port, "#", Some(gate));
    far_side.wait_subscribed();

    let size = usize::try_from(backlog).expect("a number");
    let (from, to) = (size / 10, size * 9 / 10);
    let begun = late_at(&far_side, from);
    let memory = gateway.memory();
    let live =
        |far_side: &Subscriber| far_side.look(|all| all.iter().filter(|r| !is_late(r)).count());
    let live_before = live(&far_side);
    let took = late_at(&far_side, to) - begun;
    let grown = gateway.memory().saturating_sub(memory);
    assert!(grown <= 20 << 20, "memory has grown by {grown} bytes");
    let live_meanwhile = live(&far_side) - live_before;
    let got = (to - from) as f64 / took.as_secs_f64();
    say(format_args!(
        "A56: {got:.0} records a second of the backlog, {live_meanwhile} live ones in {took:?}, memory \
         {memory} bytes and {grown} more"
    ));
    let asked = f64::from(u32::try_from(rate).expect("a number"));
    assert!((asked * 0.9..=asked * 1.1).contains(&got), "asked for {asked}, got {got}");
    // As many live ones as came about: they did not wait.
    let came_about = took.as_secs_f64() * 100.0;
    assert!(live_meanwhile as f64 >= came_about * 0.8 - 20.0, "{live_meanwhile} of {came_about}");

    gateway.wait_status("one lane", secs(30), |status| {
        let sink = part(status, "sinks", "cloud");
        (sink["lanes"].is_null() && sink["buffered_records"].as_u64()? < 200).then_some(())
    });
    let status = gateway.status();
    assert_eq!(gateway.stop().code, Some(0));
    let replayed = count(&status, "sinks", "cloud", "replayed");
    assert!(replayed >= backlog, "{replayed} of {backlog}");

    let records = of_stream(&far_side.records(), "rows");
    assert_eq!(records.iter().filter(|record| is_late(record)).count() as u64, replayed);
    let seqs = assert_lanes(&records);
    let (first, last) = (*seqs.first().expect("one"), *seqs.last().expect("one"));
    assert_eq!(last - first + 1, seqs.len() as u64, "nothing is missing");
}

/// Each lane is in order, the backlog and nothing else is marked, and nothing came twice. Returns the
/// numbers of all records.
fn assert_lanes(records: &[Record]) -> BTreeSet<u64> {
    let (late, live): (Vec<_>, Vec<_>) = records.iter().partition(|record| is_late(record));
    for (lane, marked) in [(&late, true), (&live, false)] {
        let seqs: Vec<_> = lane.iter().map(|record| record.id_parts().3).collect();
        assert!(seqs.is_sorted(), "each lane is in order");
        assert!(
            lane.iter().all(|r| r.body.get("_replayed").is_some() == marked),
            "marked: {marked}"
        );
    }
    assert!(late.iter().all(|record| record.body["_replayed"] == true));
    let seqs: BTreeSet<_> = records.iter().map(|record| record.id_parts().3).collect();
    assert_eq!(seqs.len(), records.len(), "nothing came twice");
    seqs
}

/// Bytes that the link to the far side carries in a second: some 200 records.
const LINK: u32 = 20_000;

/// What a narrow link carried while a backlog and live records competed for it.
struct Carried {
    live: f64,
    late: f64,
    took: f64,
}

/// Lets a backlog and `rows` live records every 10 ms compete for a link of [`LINK`].
fn compete(rows: u64, replay: &str) -> Carried {
    let scratch = Scratch::new("narrow");
    let far = Scratch::new("far");
    let mut broker = Broker::prepare(&far, "");
    let gate = Arc::new(Gate::new(broker.port));
    let measured = if soak() { 10_000 } else { 1_000 };
    fill(&scratch, gate.port, measured * 2);
    gate.narrow(LINK);
    let replay = format!("{replay}, mark: replayed, topic: \"late/{{stream}}\"");
    let mut gateway = Gateway::start(&scratch, &config(&scratch, gate.port, rows, &replay));
    broker.restart();
    let far_side = Subscriber::start(broker.port, "#", Some(Arc::clone(&gate)));
    far_side.wait_subscribed();

    // Deliveries grow until they are as large as is good.
    let warm = 200;
    let measured = usize::try_from(measured).expect("few");
    let begun = late_at(&far_side, warm);
    let passed = gate.passed();
    let took = (late_at(&far_side, warm + measured) - begun).as_secs_f64();
    let passed = (gate.passed() - passed) as f64 / took;
    let link = f64::from(LINK);
    assert!(
        (link * 0.8..=link * 1.1).contains(&passed),
        "the link carried {passed} bytes a second"
    );
    let lanes = part(&gateway.status(), "sinks", "cloud")["lanes"].clone();
    assert!(lanes["split"].is_u64(), "the backlog is not over: {lanes}");
    assert_eq!(gateway.stop().code, Some(0));

    let records = of_stream(&far_side.records(), "rows");
    assert_lanes(&records);
    // By the order of arrival, so that the moment of looking does not matter.
    let mut late = 0;
    let place = |record: &Record| {
        late += usize::from(is_late(record));
        late
    };
    let places: Vec<_> = records.iter().map(place).collect();
    let between = |place: &&usize| (warm + 1..=warm + measured).contains(*place);
    let all = places.iter().filter(between).count();
    let (live, late) = ((all - measured) as f64, measured as f64);
    say(format_args!(
        "A56: {replay}: {live} live records and {late} of the backlog in {took:.1} s over a link of {LINK} \
         bytes a second, {passed:.0} carried"
    ));
    Carried { live, late, took }
}

/// 300 live records come about in a second, more than the link carries.
#[test]
fn a56_live_records_have_their_share_of_a_narrow_link() {
    let Carried { live, late, took } = compete(3, "share: 0.5");
    assert!(live < took * 300.0 * 0.8, "live records did not wait: {live} of them in {took} s");
    // Half of what is delivered while both wait, less a tenth.
    assert!(live / (live + late) >= 0.5 * 0.9, "{live} of {}", live + late);
}

/// 100 live records come about in a second, about half of what the link carries.
#[test]
fn a56_live_records_that_go_first_have_all_that_they_need() {
    let Carried { live, took, .. } = compete(1, "order: newest");
    assert!(live >= took * 100.0 * 0.9, "{live} live records in {took} s");
}

#[test]
fn a_rate_is_changed_while_the_backlog_goes_out() {
    let scratch = Scratch::new("slow");
    let far = Scratch::new("far");
    let mut broker = Broker::prepare(&far, "");
    let gate = Arc::new(Gate::new(broker.port));
    fill(&scratch, gate.port, 3_000);
    let mut gateway =
        Gateway::start(&scratch, &config(&scratch, gate.port, 1, "rate: 10/s, topic: late/rows"));
    broker.restart();
    let far_side = Subscriber::start(broker.port, "#", Some(gate));
    far_side.wait_subscribed();
    late_at(&far_side, 5);
    let store = scratch.join("store");
    let store = store.to_str().expect("a path");
    let asked = run(&["store", "replay", "cloud", "--rate", "2000/s", "--store", store], secs(10));
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let begun = Instant::now();
    gateway.wait_status("the backlog to be delivered", secs(30), |status| {
        (count(status, "sinks", "cloud", "buffered_records") < 100).then_some(())
    });
    // At 10 a second it would be five minutes.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let nothing = run(&["store", "replay", "clout", "--unlimited", "--store", store], secs(10));
    assert_eq!(nothing.code, Some(1), "{nothing:?}");
    assert!(nothing.stderr.contains("no sink `clout`"), "{nothing:?}");
    // Strictly in order: live ones wait where nothing else is said.
    let seqs: Vec<_> =
        of_stream(&far_side.records(), "rows").iter().map(|r| r.id_parts().3).collect();
    assert!(seqs.is_sorted());
    assert_eq!(gateway.stop().code, Some(0));
}
