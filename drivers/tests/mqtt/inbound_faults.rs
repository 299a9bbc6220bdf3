//! A feed whose broker or messages fail.

use serde_json::json;
use tidegate_drivers::stats::{Counter, LinkState};
use tidegate_drivers::{Fault, Receipt, South};

use crate::broker::*;

#[tokio::test]
async fn a_large_message_is_read_or_passed_over() {
    // A40: 10,241 bytes are nothing special, and one over the limit ends no connection.
    let broker = Broker::start().await;
    let mut south = south(&broker.url(), &json!({ "max_packet": "20KiB" }));
    let stats = south.stats();
    let script = async {
        let mut peer = broker.greet(ACCEPTED).await;
        peer.grant(1).await;
        let padded = |n: u8, size: usize| {
            let text = format!("{{\"n\":{n},\"x\":\"\"}}");
            let text = text.replace("\"\"", &format!("\"{}\"", "x".repeat(size - text.len())));
            assert_eq!(text.len(), size);
            text.into_bytes()
        };
        peer.send(&publish(Some(1), &padded(1, 10_241))).await;
        peer.send(&publish(Some(2), &padded(2, 300_000))).await;
        peer.send(&publish(None, &padded(3, 300_000))).await;
        peer.send(&publish(Some(4), &padded(4, 20_000))).await;
        peer
    };
    let client = async {
        south.connect().await.unwrap();
        let mut rows = table(&south);
        let mut last = None;
        while rows.len() < 2 {
            last = south.read(&mut rows).await.unwrap().or(last);
        }
        south.settle(last.expect("a receipt")).await.unwrap();
        numbers(&mut rows)
    };
    let (numbers, mut peer) = tokio::join!(client, script);
    assert_eq!(numbers, [1, 4]);
    for id in [1, 2, 4] {
        assert_eq!(
            peer.packet().await,
            puback(id),
            "passed over is acknowledged too, in its place"
        );
    }
    assert_eq!((stats.get(Counter::Rejected), stats.get(Counter::LinkFaults)), (2, 0));
    assert!(stats.last_error().unwrap().contains("`max_packet: 20KiB`"));
}

#[tokio::test]
async fn poison_is_counted_and_acknowledged_in_its_place() {
    let broker = Broker::start().await;
    let mut south = south(&broker.url(), &json!({}));
    let (connected, mut peer) = tokio::join!(south.connect(), async {
        let mut peer = broker.greet(ACCEPTED).await;
        peer.grant(1).await;
        peer
    });
    connected.unwrap();
    let mut rows = table(&south);
    // Nothing before it waits: at once. Reading goes on, so the read does not end.
    peer.send(&publish(Some(1), b"poison")).await;
    let (acknowledged, read) = tokio::join!(
        async {
            let acknowledged = peer.packet().await;
            peer.send(&publish(Some(2), b"{\"n\":2}")).await;
            acknowledged
        },
        south.read(&mut rows)
    );
    assert_eq!(acknowledged, puback(1));
    let receipt = read.unwrap().expect("a receipt");
    // The next one comes while message 2 is not settled: it waits for its turn.
    peer.send(&[publish(Some(3), b"[1]"), publish(Some(4), b"{\"n\":4}")].concat()).await;
    let later = south.read(&mut rows).await.unwrap().expect("a receipt");
    peer.silent().await;
    south.settle(receipt).await.unwrap();
    assert_eq!([peer.packet().await, peer.packet().await], [puback(2), puback(3)]);
    peer.silent().await;
    south.settle(later).await.unwrap();
    assert_eq!(peer.packet().await, puback(4));
    assert_eq!(numbers(&mut rows), [2, 4]);
    assert_eq!(south.stats().get(Counter::Rejected), 2);
    assert_eq!(south.stats().get(Counter::LinkFaults), 0);
}

#[tokio::test]
async fn a_receipt_of_the_old_connection_acknowledges_nothing() {
    let broker = Broker::start().await;
    let mut south = south(&broker.url(), &json!({}));
    let mut rows = table(&south);
    let (connected, mut peer) = tokio::join!(south.connect(), async {
        let mut peer = broker.greet(ACCEPTED).await;
        peer.grant(1).await;
        peer
    });
    connected.unwrap();
    peer.send(&publish(Some(1), b"{\"n\":1}")).await;
    let old = south.read(&mut rows).await.unwrap().expect("a receipt");
    drop(peer);
    let Err(Fault::Link(_)) = south.read(&mut rows).await else { panic!("the link is gone") };
    south.settle(old).await.unwrap();

    // The broker has kept the session: no SUBSCRIBE. It offers its message again (4.4), with an id
    // of its choice; here id 1 is another message now.
    let (connected, mut peer) = tokio::join!(south.connect(), broker.greet(RESUMED));
    connected.unwrap();
    peer.send(&publish(Some(1), b"{\"n\":99}")).await;
    let new = south.read(&mut rows).await.unwrap().expect("a receipt");
    south.settle(old).await.unwrap();
    peer.silent().await;
    south.settle(new).await.unwrap();
    assert_eq!(peer.packet().await, puback(1));
    assert_eq!(numbers(&mut rows), [1, 99]);
}

#[tokio::test]
async fn a_lost_session_is_subscribed_again() {
    // A44, F15: the broker was wiped.
    let broker = Broker::start().await;
    let mut south = south(&broker.url(), &json!({}));
    for connack in [RESUMED, ACCEPTED] {
        // The first connection of a process subscribes even to a kept session: its topics may be
        // older than the configuration.
        let (connected, peer) = tokio::join!(south.connect(), async {
            let mut peer = broker.greet(connack).await;
            peer.grant(1).await;
            peer
        });
        connected.unwrap();
        drop(peer);
        south.read(&mut table(&south)).await.unwrap_err();
    }
}

#[tokio::test]
async fn messages_of_a_kept_session_may_come_before_the_confirmation() {
    let broker = Broker::start().await;
    let mut south = south(&broker.url(), &json!({}));
    let (connected, mut peer) = tokio::join!(south.connect(), async {
        let mut peer = broker.greet(RESUMED).await;
        peer.send(&publish(Some(5), b"{\"n\":5}")).await;
        peer.grant(1).await;
        peer.send(&publish(Some(6), b"{\"n\":6}")).await;
        peer
    });
    connected.unwrap();
    let mut rows = table(&south);
    while rows.len() < 2 {
        south.read(&mut rows).await.unwrap();
    }
    south.settle(Receipt(u64::MAX)).await.unwrap();
    assert_eq!([peer.packet().await, peer.packet().await], [puback(5), puback(6)]);
    assert_eq!(numbers(&mut rows), [5, 6]);
}

#[tokio::test]
async fn a_refused_subscription_is_told_by_name() {
    let broker = Broker::start().await;
    let mut south = south(&broker.url(), &json!({ "topics": ["t", "secret/#"] }));
    let (connected, _peer) = tokio::join!(south.connect(), async {
        let mut peer = broker.greet(ACCEPTED).await;
        peer.packet().await;
        peer.send(&[0x90, 0x04, 0x00, 0x01, 0x01, 0x80]).await;
        peer
    });
    let why = "the broker refused the subscription to `secret/#`";
    assert_eq!(connected, Err(Fault::Link(why.to_owned())));
    assert_eq!(south.stats().state(), LinkState::Down);
}

#[tokio::test]
async fn a_message_of_an_older_subscription_is_no_row() {
    let broker = Broker::start().await;
    let mut south = south(&broker.url(), &json!({ "topics": ["a/+"] }));
    let (connected, mut peer) = tokio::join!(south.connect(), async {
        let mut peer = broker.greet(ACCEPTED).await;
        peer.grant(1).await;
        peer
    });
    connected.unwrap();
    let mut rows = table(&south);
    peer.send(&publish(Some(1), b"{\"n\":1}")).await; // on `t`
    peer.send(b"\x32\x0e\x00\x03a/b\x00\x02{\"n\":2}").await;
    south.read(&mut rows).await.unwrap().expect("a receipt");
    assert_eq!(numbers(&mut rows), [2]);
    assert_eq!(south.stats().get(Counter::Rejected), 1);
}

#[tokio::test]
async fn what_was_read_before_a_fault_is_given_out_first() {
    // F16: a malformed packet ends the connection, not the rows before it.
    let broker = Broker::start().await;
    let mut south = south(&broker.url(), &json!({ "qos": 0, "linger": "100s" }));
    let (connected, mut peer) = tokio::join!(south.connect(), async {
        let mut peer = broker.greet(ACCEPTED).await;
        peer.grant(0).await;
        peer
    });
    connected.unwrap();
    let mut rows = table(&south);
    // A topic with a wildcard (3.3.2.1), and a packet that would be good.
    let bytes =
        [publish(None, b"{\"n\":1}"), b"\x30\x04\x00\x01#5".to_vec(), publish(None, b"{\"n\":3}")];
    peer.send(&bytes.concat()).await;
    assert_eq!(south.read(&mut rows).await, Ok(None));
    assert_eq!(numbers(&mut rows), [1]);
    let Err(Fault::Link(why)) = south.read(&mut rows).await else { panic!("a fault") };
    assert!(why.contains("broke the protocol"), "{why}");
    assert!(rows.is_empty());
}
