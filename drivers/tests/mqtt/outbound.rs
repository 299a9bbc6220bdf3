//! A sink whose broker behaves.

use serde_json::json;
use tidegate_drivers::stats::{Counter, LinkState};
use tidegate_drivers::{Fault, North};
use tokio::time::timeout;

use crate::broker::*;

#[tokio::test]
async fn a_client_says_who_it_is() {
    let broker = Broker::start().await;
    let mut north = north(&broker.url(), &json!({ "keep_alive": "1500ms", "client_id": "me" }));
    let (connected, connect) = tokio::join!(north.connect(), async {
        let mut peer = broker.accept().await;
        let connect = peer.packet().await;
        peer.send(ACCEPTED).await;
        connect
    });
    connected.unwrap();
    // 3.1: protocol MQTT, level 4, clean session, keep-alive 2 s (rounded up), client id.
    let expected = b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x02\x00\x02me";
    assert_eq!(connect, expected);
    assert_eq!(north.stats().state(), LinkState::Up);
}

#[tokio::test]
async fn only_contiguous_acknowledgements_count() {
    let broker = Broker::start().await;
    let mut north = north(&broker.url(), &json!({ "in_flight": 3 }));
    let stats = north.stats();
    let payloads = payloads(&["0", "1", "2", "3", "4"]);
    let script = async {
        let mut peer = broker.greet(ACCEPTED).await;
        assert_eq!(peer.packet().await, b"\x32\x06\x00\x01t\x00\x010");
        assert_eq!(peer.packet().await, b"\x32\x06\x00\x01t\x00\x021");
        assert_eq!(peer.packet().await, b"\x32\x06\x00\x01t\x00\x032");
        peer.silent().await;
        peer.send(&puback(2)).await;
        peer.silent().await;
        // One of a second time, one that was never sent: both are nobody's.
        peer.send(&[puback(2), puback(9)].concat()).await;
        peer.silent().await;
        peer.send(&puback(1)).await;
        assert_eq!(peer.packet().await, b"\x32\x06\x00\x01t\x00\x043");
        assert_eq!(peer.packet().await, b"\x32\x06\x00\x01t\x00\x054");
        peer.send(&[puback(3), puback(4), puback(5)].concat()).await;
        peer
    };
    let client = async {
        north.connect().await.unwrap();
        north.deliver(&payloads).await
    };
    let (delivered, mut peer) = tokio::join!(client, script);
    assert_eq!((delivered.count, delivered.fault), (5, None));
    assert_eq!(stats.get(Counter::Requests), 5, "A48: nothing is sent twice without a fault");
    assert_eq!((stats.get(Counter::Replies), stats.get(Counter::BadReplies)), (5, 2));
    drop(north);
    assert_eq!(peer.rest().await, [DISCONNECT], "the connection ends with the driver");
}

#[tokio::test]
async fn an_oversize_record_is_refused_alone() {
    // A41: nothing of it is sent, and the connection goes on.
    let broker = Broker::start().await;
    let mut north = north(&broker.url(), &json!({ "max_packet": "300B" }));
    let large = "x".repeat(65_555);
    // 300 bytes in all: 1 type, 2 length, 3 topic, 2 id, 292 body. One more is too much.
    let (fits, beyond) = ("y".repeat(292), "z".repeat(293));
    let payloads = payloads(&["a", &large, &fits, &beyond, "b"]);
    let script = async {
        let mut peer = broker.greet(ACCEPTED).await;
        let mut bodies = Vec::new();
        for id in 1..=3 {
            bodies.push(body(&peer.packet().await).to_vec());
            peer.send(&puback(id)).await;
        }
        bodies
    };
    let client = async {
        north.connect().await.unwrap();
        let mut rest = &payloads[..];
        let mut story = Vec::new();
        while !rest.is_empty() {
            let delivered = north.deliver(rest).await;
            let refused = match delivered.fault {
                None => false,
                Some(Fault::Refused(_)) => true,
                Some(fault) => panic!("{fault} after {story:?}"),
            };
            story.push((delivered.count, refused));
            rest = &rest[delivered.count + usize::from(refused)..];
        }
        story
    };
    let (story, bodies) = tokio::join!(client, script);
    assert_eq!(story, [(1, true), (1, true), (1, false)]);
    assert_eq!(bodies[0], b"a");
    assert_eq!(bodies[1].len(), 292);
    assert_eq!(bodies[2], b"b");
    assert_eq!(north.stats().get(Counter::Rejected), 2);
}

#[tokio::test]
async fn qos_0_counts_what_was_sent() {
    let broker = Broker::start().await;
    let mut north = north(&broker.url(), &json!({ "qos": 0, "retain": true }));
    let payloads = payloads(&["a", "b"]);
    let script = async {
        let mut peer = broker.greet(ACCEPTED).await;
        [peer.packet().await, peer.packet().await]
    };
    let client = async {
        north.connect().await.unwrap();
        north.deliver(&payloads).await
    };
    let (delivered, packets) = tokio::join!(client, script);
    assert_eq!((delivered.count, delivered.fault), (2, None));
    assert_eq!(packets, [b"\x31\x04\x00\x01ta".to_vec(), b"\x31\x04\x00\x01tb".to_vec()]);
}

#[tokio::test]
async fn an_idle_link_is_kept_alive() {
    let broker = Broker::start().await;
    let mut north = north(&broker.url(), &json!({ "keep_alive": "1s" }));
    let (connected, mut peer) = tokio::join!(north.connect(), broker.greet(ACCEPTED));
    connected.unwrap();
    for _ in 0..2 {
        assert_eq!(peer.packet().await, PINGREQ);
        peer.send(PINGRESP).await;
    }
    let payloads = payloads(&["a"]);
    let (delivered, ()) = tokio::join!(north.deliver(&payloads), async {
        assert_eq!(body(&peer.packet().await), b"a");
        peer.send(&puback(1)).await;
    });
    assert_eq!((delivered.count, delivered.fault), (1, None));
}

#[tokio::test]
async fn a_dropped_delivery_leaves_the_window_in_order() {
    let broker = Broker::start().await;
    let mut north = north(&broker.url(), &json!({ "in_flight": 2 }));
    let payloads = payloads(&["0", "1", "2"]);
    let (connected, mut peer) = tokio::join!(north.connect(), broker.greet(ACCEPTED));
    connected.unwrap();
    timeout(QUIET, north.deliver(&payloads)).await.unwrap_err();
    assert_eq!(body(&peer.packet().await), b"0");
    assert_eq!(body(&peer.packet().await), b"1");
    // The keeper takes this one while nobody delivers.
    peer.send(&puback(1)).await;
    let script = async {
        assert_eq!(peer.packet().await, b"\x32\x06\x00\x01t\x00\x030");
        peer.silent().await;
        peer.send(&puback(2)).await;
        assert_eq!(peer.packet().await, b"\x32\x06\x00\x01t\x00\x041");
        peer.send(&[puback(3), puback(4)].concat()).await;
        assert_eq!(peer.packet().await, b"\x32\x06\x00\x01t\x00\x052");
        peer.send(&puback(5)).await;
    };
    let (delivered, ()) = tokio::join!(north.deliver(&payloads), script);
    assert_eq!((delivered.count, delivered.fault), (3, None));
}
