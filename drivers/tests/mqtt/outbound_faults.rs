//! A sink whose broker fails.

use std::time::Duration;

use serde_json::json;
use tidegate_drivers::stats::{Counter, LinkState};
use tidegate_drivers::{Fault, North};
use tokio::time::{Instant, timeout};

use crate::broker::*;

#[tokio::test]
async fn a_payload_whose_acknowledgement_was_lost_is_sent_again() {
    // F18: the broker has both, its second acknowledgement never arrives.
    let broker = Broker::start().await;
    let mut north = north(&broker.url(), &json!({}));
    let payloads = payloads(&["0", "1", "2"]);
    let script = async {
        let mut peer = broker.greet(ACCEPTED).await;
        let first: Vec<_> =
            [peer.packet().await, peer.packet().await, peer.packet().await].to_vec();
        peer.send(&puback(1)).await;
        drop(peer);
        first
    };
    let client = async {
        north.connect().await.unwrap();
        north.deliver(&payloads).await
    };
    let (delivered, first) = tokio::join!(client, script);
    assert_eq!(delivered.count, 1);
    assert!(matches!(delivered.fault, Some(Fault::Link(_))), "{delivered:?}");
    let again = north.deliver(&payloads[1..]).await;
    assert_eq!((again.count, north.stats().state()), (0, LinkState::Down));
    assert!(matches!(again.fault, Some(Fault::Link(_))), "no connection makes itself");

    let script = async {
        let mut peer = broker.greet(ACCEPTED).await;
        let second = [peer.packet().await, peer.packet().await];
        peer.send(&[puback(1), puback(2)].concat()).await;
        second
    };
    let client = async {
        north.connect().await.unwrap();
        north.deliver(&payloads[1..]).await
    };
    let (delivered, second) = tokio::join!(client, script);
    assert_eq!((delivered.count, delivered.fault), (2, None));
    assert_eq!(body(&second[0]), body(&first[1]));
    assert_eq!(body(&second[1]), body(&first[2]));
    assert_eq!(north.stats().get(Counter::Connects), 2);
}

#[tokio::test]
async fn a_frozen_broker_is_a_lost_link() {
    // A45: the socket is open and takes bytes, but nobody answers.
    let broker = Broker::start().await;
    let mut north = north(&broker.url(), &json!({ "ack_timeout": "300ms" }));
    let payloads = payloads(&["0", "1", "2"]);
    let (connected, mut peer) = tokio::join!(north.connect(), broker.greet(ACCEPTED));
    connected.unwrap();
    let start = Instant::now();
    let (delivered, ()) = tokio::join!(north.deliver(&payloads), async {
        peer.packet().await;
        peer.send(&puback(1)).await;
    });
    let waited = start.elapsed();
    assert_eq!(delivered.count, 1);
    assert!(matches!(&delivered.fault, Some(Fault::Link(why)) if why.contains("300ms")));
    assert!(waited >= Duration::from_millis(300), "{waited:?}");
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    assert_eq!(north.stats().get(Counter::Timeouts), 1);
    // The socket is closed at once, not when the next connection is made.
    assert_eq!(peer.rest().await.len(), 2, "the other two payloads, no DISCONNECT");
}

#[tokio::test]
async fn a_broker_that_takes_nothing_is_a_lost_link_at_qos_0() {
    let broker = Broker::start().await;
    let mut north = north(&broker.url(), &json!({ "qos": 0, "ack_timeout": "300ms" }));
    let (connected, peer) = tokio::join!(north.connect(), broker.greet(ACCEPTED));
    connected.unwrap();
    // More than the socket buffers of both ends hold.
    let body = "x".repeat(200_000);
    let bodies: Vec<&str> = std::iter::repeat_n(body.as_str(), 200).collect();
    let payloads = payloads(&bodies);
    let delivered = timeout(SOON, north.deliver(&payloads)).await.unwrap();
    assert!(delivered.count < 200);
    assert!(matches!(&delivered.fault, Some(Fault::Link(why)) if why.contains("took nothing")));
    drop(peer);
}

#[tokio::test]
async fn a_link_that_is_lost_between_deliveries_is_noticed() {
    let broker = Broker::start().await;
    let mut north = north(&broker.url(), &json!({}));
    let (connected, peer) = tokio::join!(north.connect(), broker.greet(ACCEPTED));
    connected.unwrap();
    drop(peer);
    until_state(&north.stats(), LinkState::Down).await;
    let delivered = north.deliver(&payloads(&["a"])).await;
    assert_eq!(delivered.count, 0);
    assert!(matches!(delivered.fault, Some(Fault::Link(_))));
    assert_eq!(north.stats().get(Counter::LinkFaults), 1, "one loss is counted once");
}

#[tokio::test]
async fn a_silent_broker_is_noticed_between_deliveries() {
    // F13: within one and a half keep-alive intervals.
    let broker = Broker::start().await;
    let mut north = north(&broker.url(), &json!({ "keep_alive": "1s" }));
    let (connected, mut peer) = tokio::join!(north.connect(), broker.greet(ACCEPTED));
    connected.unwrap();
    let start = Instant::now();
    until_state(&north.stats(), LinkState::Down).await;
    assert!(start.elapsed() >= Duration::from_millis(1400), "{:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(peer.packet().await, PINGREQ);
}

#[tokio::test]
async fn a_refusal_says_why() {
    for (answer, why) in [
        (&[0x20, 0x02, 0x00, 0x05][..], "not authorized"),
        (&[0x20, 0x02, 0x00, 0x04], "password is wrong"),
        (&[0x20, 0x02, 0x00, 0x02], "client id"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no MQTT broker"),
        (&[0xD0, 0x00], "no MQTT broker"),
    ] {
        let broker = Broker::start().await;
        let mut north = north(&broker.url(), &json!({}));
        let (connected, _peer) = tokio::join!(north.connect(), broker.greet(answer));
        let Err(Fault::Link(text)) = connected else { panic!("{connected:?}") };
        assert!(text.contains(why), "{text}");
        assert_eq!(north.stats().last_error(), Some(text));
    }
}

#[tokio::test]
async fn nobody_at_the_address_is_one_clear_message() {
    // A57: no broker at power up is a fault like any other.
    let broker = Broker::start().await;
    let url = broker.url();
    drop(broker);
    let mut north = north(&url, &json!({}));
    let Err(Fault::Link(text)) = north.connect().await else { panic!("nobody listens") };
    assert!(text.starts_with(&format!("no connection to {url}: ")), "{text}");
}

#[tokio::test]
async fn a_broker_that_floods_is_cut_off() {
    // F16: acknowledgements that nobody waits for, without end.
    let broker = Broker::start().await;
    let mut north = north(&broker.url(), &json!({}));
    let (connected, mut peer) = tokio::join!(north.connect(), broker.greet(ACCEPTED));
    connected.unwrap();
    let flood = puback(9).repeat(70_000);
    peer.send(&flood).await;
    until_state(&north.stats(), LinkState::Down).await;
    assert!(north.stats().last_error().unwrap().contains("nobody asked"));
}
