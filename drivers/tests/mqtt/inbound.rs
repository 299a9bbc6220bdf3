//! A feed whose broker behaves.

use std::time::Duration;

use serde_json::json;
use tidegate_drivers::South;
use tidegate_drivers::south::mqtt::MqttSouth;
use tidegate_drivers::stats::Counter;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout};

use crate::broker::*;

/// A feed that is connected and subscribed.
async fn subscribed(broker: &Broker, fields: &serde_json::Value) -> (MqttSouth, Peer) {
    let mut south = south(&broker.url(), fields);
    let (connected, peer) = tokio::join!(south.connect(), async {
        let mut peer = broker.greet(ACCEPTED).await;
        peer.grant(1).await;
        peer
    });
    connected.unwrap();
    (south, peer)
}

#[tokio::test]
async fn a_session_that_is_kept_has_a_stable_name() {
    // A39. 3.1: keep-alive 30 s, no clean session; 3.8: id 1, filter `t`, QoS 1.
    let broker = Broker::start().await;
    let mut south = south(&broker.url(), &json!({ "keep_alive": "30s" }));
    let (connected, (connect, subscribe)) = tokio::join!(south.connect(), async {
        let mut peer = broker.accept().await;
        let connect = peer.packet().await;
        peer.send(ACCEPTED).await;
        let subscribe = peer.packet().await;
        peer.send(&[0x90, 0x03, 0x00, 0x01, 0x01]).await;
        (connect, subscribe)
    });
    connected.unwrap();
    assert_eq!(connect, b"\x10\x1c\x00\x04MQTT\x04\x00\x00\x1e\x00\x10tidegate-gw-feed");
    assert_eq!(subscribe, b"\x82\x06\x00\x01\x00\x01t\x01");
}

#[tokio::test]
async fn a_message_is_acknowledged_only_when_it_is_settled() {
    let broker = Broker::start().await;
    let (mut south, mut peer) = subscribed(&broker, &json!({})).await;
    let mut rows = table(&south);
    peer.send(&publish(Some(7), b"{\"n\":1}")).await;
    let first = south.read(&mut rows).await.unwrap().expect("a receipt");
    peer.send(&publish(Some(8), b"{\"n\":2}")).await;
    let second = south.read(&mut rows).await.unwrap().expect("a receipt");
    assert!(first < second);
    peer.silent().await;
    south.settle(first).await.unwrap();
    assert_eq!(peer.packet().await, puback(7));
    peer.silent().await;
    south.settle(second).await.unwrap();
    assert_eq!(peer.packet().await, puback(8));
    // A receipt a second time is nothing new.
    south.settle(second).await.unwrap();
    peer.silent().await;
    assert_eq!(numbers(&mut rows), [1, 2]);
}

#[tokio::test]
async fn a_message_of_qos_0_wants_no_receipt() {
    let broker = Broker::start().await;
    let (mut south, mut peer) = subscribed(&broker, &json!({ "qos": 0 })).await;
    let mut rows = table(&south);
    peer.send(&publish(None, b"[{\"n\":1},{\"n\":2}]")).await;
    assert_eq!(south.read(&mut rows).await.unwrap(), None);
    assert_eq!(numbers(&mut rows), [1, 2]);
}

#[tokio::test]
async fn twenty_in_flight_are_never_waited_beyond() {
    // The broker has at most 20 messages in flight, and a batch may take 100 s or 1,000 rows.
    // Without knowing the 20, no batch waits for a message that cannot come.
    let broker = Broker::start().await;
    let (mut south, mut peer) = subscribed(&broker, &json!({ "linger": "100s" })).await;
    let mut rows = table(&south);
    let (all, mut sent, mut acknowledged) = (400u16, 0u16, 0u16);
    let script = async {
        while acknowledged < all {
            while sent < all && sent - acknowledged < 20 {
                sent += 1;
                peer.send(&publish(Some(sent), format!("{{\"n\":{sent}}}").as_bytes())).await;
            }
            acknowledged += 1;
            assert_eq!(peer.packet().await, puback(acknowledged), "in the order of arrival");
        }
    };
    let client = async {
        while rows.len() < usize::from(all) {
            // A slow settle: the rows of a batch become durable only later.
            let receipt = south.read(&mut rows).await.unwrap().expect("a receipt");
            tokio::time::sleep(Duration::from_millis(5)).await;
            south.settle(receipt).await.unwrap();
        }
    };
    timeout(SOON, async { tokio::join!(client, script) }).await.expect("no batch waits");
    assert_eq!(numbers(&mut rows), (1..=400).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_batch_is_full_or_lingers() {
    let broker = Broker::start().await;
    let fields = json!({ "qos": 0, "batch_rows": 3, "linger": "300ms" });
    let (mut south, mut peer) = subscribed(&broker, &fields).await;
    let mut rows = table(&south);
    let start = Instant::now();
    let five: Vec<u8> =
        (1..=5).flat_map(|n| publish(None, format!("{{\"n\":{n}}}").as_bytes())).collect();
    peer.send(&five).await;
    south.read(&mut rows).await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(300), "a full batch does not wait");
    assert_eq!(numbers(&mut rows), [1, 2, 3]);
    south.read(&mut rows).await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(300), "the rest waits for more");
    assert_eq!(numbers(&mut rows), [4, 5]);
}

#[tokio::test]
async fn a_dropped_read_loses_and_doubles_nothing() {
    let broker = Broker::start().await;
    let (mut south, mut peer) = subscribed(&broker, &json!({ "linger": "100s" })).await;
    let mut rows = table(&south);
    // Two are in flight once, so that a single one is worth waiting for more.
    peer.send(&[publish(Some(1), b"{\"n\":1}"), publish(Some(2), b"{\"n\":2}")].concat()).await;
    while rows.len() < 2 {
        south.read(&mut rows).await.unwrap();
    }
    south.settle(tidegate_drivers::Receipt(u64::MAX)).await.unwrap();
    assert_eq!([peer.packet().await, peer.packet().await], [puback(1), puback(2)]);

    peer.send(&publish(Some(3), b"{\"n\":3}")).await;
    timeout(QUIET, south.read(&mut rows)).await.unwrap_err();
    // The dropped read has taken the first half of the message, the next read takes the second.
    let message = publish(Some(4), b"{\"n\":4}");
    peer.send(&message[..6]).await;
    timeout(QUIET, south.read(&mut rows)).await.unwrap_err();
    peer.send(&message[6..]).await;
    let receipt = south.read(&mut rows).await.unwrap().expect("a receipt");
    south.settle(receipt).await.unwrap();
    assert_eq!([peer.packet().await, peer.packet().await], [puback(3), puback(4)]);
    assert_eq!(numbers(&mut rows), [1, 2, 3, 4]);
}

#[tokio::test]
async fn who_does_not_read_makes_the_broker_wait() {
    // Backpressure: nothing is queued in the driver, and the link is kept alive all the same.
    let broker = Broker::start().await;
    let fields = json!({ "qos": 0, "keep_alive": "1s" });
    let (mut south, mut peer) = subscribed(&broker, &fields).await;
    let message =
        publish(None, format!("{{\"n\":1,\"x\":\"{}\"}}", "x".repeat(100_000)).as_bytes());
    let mut written = 0u64;
    // Until neither side's socket buffer takes more.
    while timeout(QUIET, peer.socket.write_all(&message)).await.is_ok() {
        written += 1;
        assert!(written < 1_000, "100 MB are waiting somewhere");
    }
    let taken = south.stats().get(Counter::BytesIn);
    assert!(taken < 1_000_000, "{taken} bytes were taken by a driver that nobody reads");
    for _ in 0..3 {
        assert_eq!(peer.packet().await, PINGREQ);
    }
    let mut rows = table(&south);
    while (rows.len() as u64) < written {
        south.read(&mut rows).await.unwrap();
    }
}
