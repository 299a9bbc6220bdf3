//! Faults, serial lines and plugs against bytes written by hand; no client of ours. CRCs are from
//! pymodbus (`FramerRTU.compute_CRC`).

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::border::Fault;
use crate::types::Span;

/// A server with a counter of two registers at 104 and a constant at 10.
fn sim_doc(unit: u8, server: &str) -> SimDoc {
    serde_json::from_str(&format!(
        r#"{{ "servers": [ {{ "name": "plc", {server} "units": [ {{ "unit_id": {unit}, "points": [
            {{ "name": "reading", "register": "holding", "address": 104, "type": "u32",
               "value": {{ "counter": {{ "start": 7 }} }} }},
            {{ "name": "level", "register": "holding", "address": 10,
               "value": {{ "constant": 258.0 }} }}
        ] }} ] }} ] }}"#
    ))
    .unwrap()
}

async fn tcp(server: &str) -> (Sim, TcpStream) {
    let sim = Sim::start(sim_doc(1, server)).await.unwrap();
    let client = TcpStream::connect(sim.addr("plc").unwrap()).await.unwrap();
    (sim, client)
}

/// A read of the counter over Modbus TCP, and its reply.
fn read(id: u8) -> [u8; 12] {
    [0, id, 0, 0, 0, 6, 1, 3, 0, 104, 0, 2]
}

fn reads_as(id: u8, value: u8) -> [u8; 13] {
    [0, id, 0, 0, 0, 7, 1, 3, 4, 0, 0, 0, value]
}

async fn send(client: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) {
    client.write_all(bytes).await.unwrap();
}

async fn expect(client: &mut (impl AsyncRead + Unpin), bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    let read = timeout(Duration::from_secs(5), client.read_exact(&mut got)).await;
    read.expect("bytes within 5 s").unwrap();
    assert_eq!(got, bytes);
}

fn once(sim: &Sim, kind: FaultKind) {
    sim.inject("plc", SimFault::once(kind)).unwrap();
}

/// The counter's values that were served, and the replies that a fault touched.
fn served(sim: &Sim) -> (Vec<i64>, u64) {
    let served = sim.served();
    (served.counter("reading").unwrap().values().collect(), served.faults)
}

#[tokio::test]
async fn a_value_that_a_fault_touched_comes_again() {
    let (sim, mut client) = tcp("").await;
    let altered: [(FaultKind, &[u8]); 5] = [
        (FaultKind::WrongId, &[0, 10, 0, 0, 0, 7, 1, 3, 4, 0, 0, 0, 7]),
        (FaultKind::WrongUnit, &[0, 9, 0, 0, 0, 7, 2, 3, 4, 0, 0, 0, 7]),
        (FaultKind::WrongFunction, &[0, 9, 0, 0, 0, 7, 1, 4, 4, 0, 0, 0, 7]),
        (FaultKind::WrongByteCount, &[0, 9, 0, 0, 0, 7, 1, 3, 6, 0, 0, 0, 7]),
        (FaultKind::Busy, &[0, 9, 0, 0, 0, 3, 1, 0x83, 6]),
    ];
    for (kind, bytes) in altered {
        once(&sim, kind);
        send(&mut client, &read(9)).await;
        expect(&mut client, bytes).await;
    }
    assert_eq!(served(&sim), (vec![], 5));
    // Silence: the reply to the second request is the first to come.
    once(&sim, FaultKind::Silence);
    send(&mut client, &[read(1), read(2)].concat()).await;
    expect(&mut client, &reads_as(2, 7)).await;
    send(&mut client, &read(3)).await;
    expect(&mut client, &reads_as(3, 8)).await;
    let last = sim.stop().await;
    assert_eq!(last.counter("reading").unwrap().values().collect::<Vec<_>>(), [7, 8]);
    assert_eq!((last.requests, last.exceptions, last.faults), (2, 0, 6));
}

#[tokio::test]
async fn a_late_reply_comes_before_the_next_and_does_not_count() {
    let (sim, mut client) = tcp("").await;
    once(&sim, FaultKind::late(Span::from_millis(30)));
    send(&mut client, &read(1)).await;
    send(&mut client, &read(2)).await;
    expect(&mut client, &[reads_as(1, 7), reads_as(2, 7)].concat()).await;
    assert_eq!(served(&sim), (vec![7], 1));
}

/// A conversation over memory, so that time can be set.
fn converse(framing: SimFraming, fault: &[SimFault]) -> (tokio::io::DuplexStream, JoinHandle) {
    let (client, mut line) = tokio::io::duplex(64);
    let (doc, ledger) = (sim_doc(2, ""), Arc::default());
    let unit = image::Unit::new("plc", &doc.servers[0].units[0], &ledger);
    let mut faults = schedule::Schedule::default();
    assert!(fault.iter().all(|fault| faults.add(fault.clone(), Instant::now())));
    let plant = talk::Plant {
        name: "plc".to_owned(),
        framing,
        units: BTreeMap::from([(2, unit)]),
        started: Instant::now(),
        ledger,
        faults: Mutex::new(faults),
        stopping: CancellationToken::new(),
    };
    (client, tokio::spawn(async move { plant.converse(&mut line).await }))
}

type JoinHandle = tokio::task::JoinHandle<std::io::Result<talk::End>>;

/// Whether anything comes to these bytes within a while.
async fn is_heard(client: &mut tokio::io::DuplexStream, bytes: &[u8]) -> bool {
    send(client, bytes).await;
    timeout(Duration::from_millis(1), client.read(&mut [0; 16])).await.is_ok()
}

/// Field case A29: a request within 100 ms of the connection, or of the unit's own reply, is not
/// heard; one that comes later is. What was not heard does not make it wait longer.
#[tokio::test(start_paused = true)]
async fn a29_a_device_is_deaf_for_a_while() {
    let span = Span::from_millis(100);
    let kinds = [FaultKind::deaf_after_connect(span), FaultKind::deaf_after_reply(span)];
    let (mut client, plant) = converse(SimFraming::Rtu, &kinds.map(SimFault::lasting));
    sleep(Duration::from_millis(97)).await;
    assert!(!is_heard(&mut client, &RTU_READ).await, "98 ms after the connection");
    sleep(Duration::from_millis(2)).await;
    assert!(is_heard(&mut client, &RTU_READ).await, "100 ms after it");
    for wait in [20, 75] {
        sleep(Duration::from_millis(wait)).await;
        assert!(!is_heard(&mut client, &RTU_READ).await, "{wait} ms later");
    }
    sleep(Duration::from_millis(5)).await;
    assert!(is_heard(&mut client, &RTU_READ).await, "102 ms after the reply");
    drop(client);
    assert_eq!(plant.await.unwrap().unwrap(), talk::End::Left);
}

#[tokio::test(start_paused = true)]
async fn a29_deaf_after_a_reply_is_not_deaf_after_a_connection() {
    let kind = FaultKind::deaf_after_reply(Span::from_millis(100));
    let (mut client, _plant) = converse(SimFraming::Rtu, &[SimFault::lasting(kind)]);
    assert!(is_heard(&mut client, &RTU_READ).await);
    assert!(!is_heard(&mut client, &RTU_READ).await);
    let kind = FaultKind::deaf_after_connect(Span::from_millis(100));
    let (mut client, _plant) = converse(SimFraming::Rtu, &[SimFault::lasting(kind)]);
    assert!(!is_heard(&mut client, &RTU_READ).await);
    sleep(Duration::from_millis(100)).await;
    assert!(is_heard(&mut client, &RTU_READ).await);
    assert!(is_heard(&mut client, &RTU_READ).await);
}

#[tokio::test]
async fn a_right_reply_that_a_client_must_take_counts() {
    let (sim, mut client) = tcp("").await;
    once(&sim, FaultKind::TwoFramesInOneSegment);
    send(&mut client, &read(2)).await;
    // The data of the foreign frame are inverted: nobody takes them for the value.
    let foreign = [0, 1, 0, 0, 0, 7, 1, 3, 4, 0xFF, 0xFF, 0xFF, 0xF8];
    expect(&mut client, &[foreign, reads_as(2, 7)].concat()).await;
    once(&sim, FaultKind::StrayByteAfter);
    send(&mut client, &read(3)).await;
    expect(&mut client, &[&reads_as(3, 8)[..], &[0xFF]].concat()).await;
    assert_eq!(served(&sim), (vec![7, 8], 2));
}

#[tokio::test]
async fn a_disconnect_loses_the_reply_and_the_connection() {
    let (sim, mut client) = tcp("").await;
    once(&sim, FaultKind::Disconnect);
    send(&mut client, &read(1)).await;
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    let mut client = TcpStream::connect(sim.addr("plc").unwrap()).await.unwrap();
    send(&mut client, &read(2)).await;
    expect(&mut client, &reads_as(2, 7)).await;
    assert_eq!(served(&sim), (vec![7], 1));
}

#[tokio::test]
async fn stopping_does_not_wait_for_a_late_reply() {
    let (sim, mut client) = tcp("").await;
    once(&sim, FaultKind::late(Span::from_secs(60)));
    send(&mut client, &read(1)).await;
    while sim.served().faults == 0 {
        tokio::task::yield_now().await;
    }
    let served = timeout(Duration::from_secs(1), sim.stop()).await.expect("ends at once");
    assert_eq!(served.counter("reading").unwrap().total, 0);
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_script_and_its_end() {
    let script = r#""faults": [
        { "kind": { "hole": { "address": 10 } } },
        { "every": 2, "count": 2, "unit_id": 1, "kind": "wrong_unit" }
    ],"#;
    let (sim, mut client) = tcp(script).await;
    send(&mut client, &[0, 1, 0, 0, 0, 6, 1, 3, 0, 10, 0, 1]).await;
    expect(&mut client, &[0, 1, 0, 0, 0, 3, 1, 0x83, 2]).await;
    for (unit, value) in [(1, 7), (2, 8), (1, 8), (2, 9), (1, 9), (1, 10)] {
        send(&mut client, &read(5)).await;
        expect(&mut client, &[0, 5, 0, 0, 0, 7, unit, 3, 4, 0, 0, 0, value]).await;
    }
    let said = sim.obey("clear plc".parse().unwrap()).await.unwrap();
    assert_eq!(said, "plc: no more faults");
    send(&mut client, &[0, 1, 0, 0, 0, 6, 1, 3, 0, 10, 0, 1]).await;
    expect(&mut client, &[0, 1, 0, 0, 0, 5, 1, 3, 2, 1, 2]).await;
}

#[tokio::test]
async fn what_a_server_cannot_show_is_refused() {
    let (sim, _client) = tcp("").await;
    for (line, part) in [
        ("inject bus silence", "no server `bus`: there are plc"),
        ("inject plc wrong_crc", "fault.kind: a wrong CRC needs RTU frames: take another kind"),
        ("inject plc silence unit_id=3", "fault.unit_id: the server has no unit 3"),
        ("inject plc silence every=0", "fault.every: is zero"),
        ("unplug bus", "no server `bus`"),
    ] {
        let error = sim.obey(line.parse().unwrap()).await.unwrap_err();
        assert!(matches!(&error, Fault::Config(text) if text.starts_with(part)), "{error}");
    }
    let server = r#""rtu": { "link": "bus" }, "listen": "127.0.0.1:0", "framing": "rtu", "faults": [
        { "kind": "wrong_id" }, { "unit_id": 5, "count": 0, "for": "0s", "kind": "echo" } ],"#;
    let fields: Vec<String> = sim_doc(255, server).problems().into_iter().map(|p| p.0).collect();
    let expected = [
        "listen",
        "framing",
        "units[0].unit_id",
        "faults[0].kind",
        "faults[1].count",
        "faults[1].for",
        "faults[1].unit_id",
    ];
    assert_eq!(fields, expected.map(|field| format!("servers[0].{field}")));
}

/// Reads of unit 2: of the counter, and of what is not there.
const RTU_READ: [u8; 8] = [2, 3, 0, 0x68, 0, 2, 0x45, 0xE4];
const RTU_HOLE: [u8; 8] = [2, 3, 0, 0x32, 0, 1, 0x25, 0xF6];
const RTU_SEVEN: [u8; 9] = [2, 3, 4, 0, 0, 0, 7, 0x88, 0xF1];
const RTU_EIGHT: [u8; 9] = [2, 3, 4, 0, 0, 0, 8, 0xC8, 0xF5];

/// Says what a serial line hears, whatever carries it.
async fn speak_rtu(sim: &Sim, client: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    // Nobody answers for unit 9, nor a broadcast; noise before a request is left out.
    send(client, &[9, 3, 0, 0x68, 0, 2, 0x44, 0x9F]).await;
    send(client, &[0, 3, 0, 0x68, 0, 2, 0x44, 0x06]).await;
    send(client, &[&[0xFF, 0x00][..], &RTU_READ].concat()).await;
    expect(client, &RTU_SEVEN).await;
    send(client, &RTU_HOLE).await;
    expect(client, &[2, 0x83, 2, 0x30, 0xF1]).await;
    once(sim, FaultKind::NoCrcOnException);
    // Nothing to show it on.
    send(client, &RTU_READ).await;
    expect(client, &RTU_EIGHT).await;
    send(client, &[RTU_HOLE, RTU_HOLE].concat()).await;
    expect(client, &[2, 0x83, 2, 2, 0x83, 2, 0x30, 0xF1]).await;
    let last = sim.served();
    assert_eq!(last.counter("reading").unwrap().values().collect::<Vec<_>>(), [7, 8]);
    assert_eq!((last.requests, last.exceptions, last.faults), (4, 2, 1));
}

#[tokio::test]
async fn rtu_over_tcp() {
    let sim = Sim::start(sim_doc(2, r#""framing": "rtu","#)).await.unwrap();
    let mut client = TcpStream::connect(sim.addr("plc").unwrap()).await.unwrap();
    speak_rtu(&sim, &mut client).await;
}

fn open(link: &Path) -> impl AsyncRead + AsyncWrite + Unpin + use<> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    port::stream(rustix::fs::open(link, flags, Mode::empty()).unwrap()).unwrap()
}

async fn on_pty(dir: &Path) -> (Sim, PathBuf) {
    let link = dir.join("bus");
    let server = format!(r#""rtu": {{ "link": {:?} }},"#, link.to_str().unwrap());
    let sim = Sim::start(sim_doc(2, &server)).await.unwrap();
    assert_eq!((sim.port("plc"), sim.addr("plc")), (Some(link.as_path()), None));
    (sim, link)
}

#[tokio::test]
async fn rtu_on_a_pty() {
    let dir = tempfile::tempdir().unwrap();
    let (sim, link) = on_pty(dir.path()).await;
    // A client that went leaves the line as it was.
    drop(open(&link));
    speak_rtu(&sim, &mut open(&link)).await;
    sim.stop().await;
    assert!(std::fs::symlink_metadata(&link).is_err());
}

#[tokio::test(start_paused = true)]
async fn half_a_request_is_forgotten_after_a_silence() {
    let (mut client, plant) = converse(SimFraming::Rtu, &[]);
    send(&mut client, &RTU_READ[..4]).await;
    sleep(Duration::from_millis(90)).await;
    send(&mut client, &RTU_READ[4..]).await;
    expect(&mut client, &RTU_SEVEN).await;
    send(&mut client, &RTU_READ[..4]).await;
    sleep(Duration::from_millis(110)).await;
    send(&mut client, &RTU_READ[4..]).await;
    drop(client);
    assert_eq!(plant.await.unwrap().unwrap(), talk::End::Left);
}

/// Descriptors of this process that are a side of a pty.
fn open_ptys() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = all.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    targets.filter(|target| target.starts_with("/dev/pts")).count()
}

/// Field case A30: the same path, another pty.
#[tokio::test]
async fn fifty_unplugged_ptys_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (sim, link) = on_pty(dir.path()).await;
    let before = open_ptys();
    for _ in 0..50 {
        let mut client = open(&link);
        send(&mut client, &RTU_HOLE).await;
        expect(&mut client, &[2, 0x83, 2, 0x30, 0xF1]).await;
        sim.unplug("plc").await.unwrap();
        assert!(std::fs::symlink_metadata(&link).is_err());
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
        drop(client);
        sim.replug("plc").await.unwrap();
    }
    // Other tests have some open as well; one forgotten a round would be fifty.
    assert!(open_ptys() < before + 25, "{before} ptys were open, now {}", open_ptys());
    once(&sim, FaultKind::Disconnect);
    let mut client = open(&link);
    send(&mut client, &RTU_READ).await;
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    sim.replug("plc").await.unwrap();
    let mut client = open(&link);
    send(&mut client, &RTU_READ).await;
    expect(&mut client, &RTU_SEVEN).await;
}

#[tokio::test]
async fn an_unplugged_tcp_server_is_refused_until_it_is_back() {
    let (sim, mut client) = tcp("").await;
    let addr = sim.addr("plc").unwrap();
    send(&mut client, &read(1)).await;
    expect(&mut client, &reads_as(1, 7)).await;
    sim.unplug("plc").await.unwrap();
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    TcpStream::connect(addr).await.unwrap_err();
    sim.replug("plc").await.unwrap();
    let mut client = TcpStream::connect(addr).await.unwrap();
    send(&mut client, &read(2)).await;
    expect(&mut client, &reads_as(2, 8)).await;
    assert_eq!(served(&sim), (vec![7, 8], 0));
}
