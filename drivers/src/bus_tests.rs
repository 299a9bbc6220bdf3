use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::modbus::peer::{Does, Peer};
use crate::modbus::testing::tcp;
use crate::south::modbus::RegisterKind;

const REQUEST: ReadRequest =
    ReadRequest { unit: 9, kind: RegisterKind::Input, start: 0x10, quantity: 1 };

fn job(request: ReadRequest) -> NewJob {
    let timeout = Duration::from_millis(500);
    NewJob { request, timeout, buffer: Vec::new(), stats: Arc::default() }
}

async fn ask(bus: &BusHandle) -> Answer {
    bus.submit(job(REQUEST)).await.unwrap().await.unwrap()
}

/// The whole way over a real socket: hand-written bytes on both sides, the reply in two segments.
#[tokio::test]
async fn a_request_goes_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut config = tcp(json!({ "port": port }));
    config.host = "127.0.0.1".to_owned();
    let (mut bus, mut owner) = open("bus", &Bus::Tcp(config));
    let running = tokio::spawn(async move { owner.run().await });
    let (mut peer, _) = listener.accept().await.unwrap();
    bus.connected().await.unwrap();
    let answer = bus.submit(job(REQUEST)).await.unwrap();
    let mut request = [0; 12];
    peer.read_exact(&mut request).await.unwrap();
    assert_eq!(request, [0, 1, 0, 0, 0, 6, 9, 4, 0, 0x10, 0, 1]);
    peer.write_all(&[0, 1, 0, 0, 0]).await.unwrap();
    peer.flush().await.unwrap();
    peer.write_all(&[5, 9, 4, 2, 0x12, 0x34]).await.unwrap();
    let answer = answer.await.unwrap();
    answer.outcome.unwrap();
    assert_eq!(answer.buffer, [0x12, 0x34]);
    // The far side closes: seen while nothing is asked, and connected anew.
    drop(peer);
    let (_peer, _) = listener.accept().await.unwrap();
    bus.connected().await.unwrap();
    drop(bus);
    running.await.unwrap();
}

/// Field case A34: 10,000 requests to a link that is down are all answered, at once.
#[tokio::test(start_paused = true)]
async fn a34_requests_to_a_dead_link_are_refused_at_once() {
    let peer = Peer::new(|_| Does::Nothing);
    peer.refuse(usize::from(u16::MAX));
    let (bus, mut owner) = with_connector("bus", &tcp(json!({})), Box::new(peer));
    tokio::spawn(async move { owner.run().await });
    // The first ones wait for an attempt that could succeed at once.
    ask(&bus).await.outcome.unwrap_err();
    let start = Instant::now();
    for _ in 0..10_000 {
        let Err(Failure::Link(text)) = ask(&bus).await.outcome else { panic!("no link") };
        assert!(text.contains("cannot connect to plc.test:502"), "{text}");
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// Field case A32: the pause between attempts grows to its cap and no further, and a link that is
/// back after 12 minutes is found within one cap.
#[tokio::test(start_paused = true)]
async fn a32_a_link_comes_back_within_one_cap() {
    let peer = Peer::new(|seen| Does::Says(seen.addresses()));
    peer.refuse(100);
    let config = tcp(json!({ "backoff_min": "500ms", "backoff_max": "30s" }));
    let (mut bus, mut owner) = with_connector("bus", &config, Box::new(peer.clone()));
    tokio::spawn(async move { owner.run().await });
    bus.connected().await.unwrap();
    let attempts = peer.attempts();
    assert_eq!(attempts.len(), 101);
    let pauses: Vec<_> = attempts.windows(2).map(|w| w[1] - w[0]).collect();
    let tick = Duration::from_millis(2);
    assert!(pauses[0] >= Duration::from_millis(375) && pauses[0] <= Duration::from_millis(502));
    for pause in &pauses[7..] {
        assert!(
            *pause >= Duration::from_millis(22_500) && *pause <= Duration::from_secs(30) + tick
        );
    }
    assert!(pauses[7..].windows(2).any(|w| w[0].abs_diff(w[1]) > tick), "jitter");
    ask(&bus).await.outcome.unwrap();
}

/// A path that died without a word is found: a connection on which nothing answers is made anew,
/// more and more rarely.
#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_made_anew() {
    let peer = Peer::new(|_| Does::Nothing);
    let (bus, mut owner) = with_connector("bus", &tcp(json!({})), Box::new(peer.clone()));
    tokio::spawn(async move { owner.run().await });
    let mut connects = Vec::new();
    for _ in 0..30 {
        ask(&bus).await.outcome.unwrap_err();
        connects.push(bus.stats().get(Counter::Connects));
    }
    assert_eq!((connects[2], connects[4], connects[12], connects[28]), (1, 2, 3, 4));
    assert_eq!(bus.stats().get(Counter::LinkFaults), 0);
}

/// A withdrawn request is not sent.
#[tokio::test(start_paused = true)]
async fn a_withdrawn_request_is_not_sent() {
    let peer = Peer::new(|seen| Does::Says(seen.addresses()));
    let (bus, mut owner) = with_connector("bus", &tcp(json!({})), Box::new(peer.clone()));
    drop(bus.submit(job(REQUEST)).await.unwrap());
    let kept = bus.submit(job(ReadRequest { start: 7, ..REQUEST })).await.unwrap();
    tokio::spawn(async move { owner.run().await });
    assert_eq!(kept.await.unwrap().buffer, [0, 7]);
    assert_eq!(peer.seen().len(), 1);
}

/// The supervisor drops the run of a panicked owner and starts it again: devices see the link
/// down in between, and the same handles work after.
#[tokio::test(start_paused = true)]
async fn an_owner_can_be_run_again() {
    let mut panics = true;
    let peer = Peer::new(move |seen| {
        if std::mem::take(&mut panics) { Does::Nothing } else { Does::Says(seen.addresses()) }
    });
    let (mut bus, mut owner) = with_connector("bus", &tcp(json!({})), Box::new(peer.clone()));
    let waiting = bus.submit(job(REQUEST)).await.unwrap();
    timeout(Duration::from_millis(100), owner.run()).await.unwrap_err();
    waiting.await.unwrap_err();
    assert_eq!(bus.state(), LinkState::Down);
    tokio::spawn(async move { owner.run().await });
    bus.connected().await.unwrap();
    assert_eq!(ask(&bus).await.buffer, [0, 0x10]);
    assert_eq!(peer.seen()[1].transaction, 2, "ids go on over connections");
}
