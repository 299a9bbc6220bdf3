//! The broker against bytes from the specification and against rumqttc's client.

use std::net::Ipv4Addr;

use rumqttc::{AsyncClient, Event, Incoming, MqttOptions, PublishOptions};

use super::*;

const DEADLINE: Duration = Duration::from_secs(20);

async fn broker() -> Broker {
    Broker::start((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap()
}

/// Connects with hand-written bytes: client `name`, clean session, no keep-alive.
async fn connect(broker: &Broker, name: &str) -> TcpStream {
    let mut socket = TcpStream::connect(broker.addr()).await.unwrap();
    let length = u8::try_from(name.len()).unwrap();
    let mut packet = vec![0x10, 12 + length, 0, 4];
    packet.extend_from_slice(b"MQTT\x04\x02\x00\x00\x00");
    packet.push(length);
    packet.extend_from_slice(name.as_bytes());
    socket.write_all(&packet).await.unwrap();
    expect(&mut socket, &[0x20, 2, 0, 0]).await;
    socket
}

async fn expect(socket: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    timeout(DEADLINE, socket.read_exact(&mut got)).await.expect("an answer").unwrap();
    assert_eq!(got, bytes);
}

async fn expect_closed(socket: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset is as good as an end of file.
    timeout(DEADLINE, socket.read_to_end(&mut rest)).await.expect("closed").unwrap_or_default();
    assert!(rest.is_empty(), "{rest:?}");
}

#[tokio::test]
async fn messages_go_out_at_the_lower_qos_and_are_acknowledged() {
    let broker = broker().await;
    let mut one = connect(&broker, "one").await;
    one.write_all(b"\x82\x08\x00\x01\x00\x03a/+\x01").await.unwrap();
    expect(&mut one, &[0x90, 3, 0, 1, 1]).await;
    let mut zero = connect(&broker, "zero").await;
    zero.write_all(b"\x82\x06\x00\x02\x00\x01#\x00").await.unwrap();
    expect(&mut zero, &[0x90, 3, 0, 2, 0]).await;

    let mut publisher = connect(&broker, "p").await;
    publisher.write_all(b"\x32\x09\x00\x03a/b\x12\x34hi").await.unwrap();
    expect(&mut publisher, &[0x40, 2, 0x12, 0x34]).await;
    expect(&mut one, b"\x32\x09\x00\x03a/b\x00\x01hi").await;
    expect(&mut zero, b"\x30\x07\x00\x03a/bhi").await;

    // Unsubscribed, pinged, and said goodbye to.
    one.write_all(b"\xA2\x07\x00\x03\x00\x03a/+\xC0\x00").await.unwrap();
    expect(&mut one, &[0xB0, 2, 0, 3, 0xD0, 0]).await;
    publisher.write_all(b"\x30\x06\x00\x03a/bx\xE0\x00").await.unwrap();
    expect(&mut zero, b"\x30\x06\x00\x03a/bx").await;
    expect_closed(&mut publisher).await;
    broker.stop().await;
    expect_closed(&mut one).await;
}

#[tokio::test]
async fn retained_messages_meet_new_subscribers_until_they_are_cleared() {
    let broker = broker().await;
    let mut publisher = connect(&broker, "p").await;
    publisher.write_all(b"\x33\x06\x00\x01t\x00\x01v").await.unwrap();
    expect(&mut publisher, &[0x40, 2, 0, 1]).await;
    let mut late = connect(&broker, "late").await;
    late.write_all(b"\x82\x06\x00\x01\x00\x01t\x01").await.unwrap();
    expect(&mut late, b"\x90\x03\x00\x01\x01\x33\x06\x00\x01t\x00\x01v").await;
    publisher.write_all(b"\x33\x05\x00\x01t\x00\x02").await.unwrap();
    expect(&mut publisher, &[0x40, 2, 0, 2]).await;
    expect(&mut late, b"\x32\x05\x00\x01t\x00\x02").await;
    let mut later = connect(&broker, "later").await;
    later.write_all(b"\x82\x06\x00\x01\x00\x01t\x01\xC0\x00").await.unwrap();
    expect(&mut later, b"\x90\x03\x00\x01\x01\xD0\x00").await;
}

#[tokio::test]
async fn what_cannot_be_served_is_refused() {
    let broker = broker().await;
    // MQTT 5 is answered with return code 1, a nameless lasting session with 2.
    for (connect, code) in [
        (&b"\x10\x0D\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00"[..], 1),
        (b"\x10\x0C\x00\x04MQTT\x04\x00\x00\x00\x00\x00", 2),
    ] {
        let mut socket = TcpStream::connect(broker.addr()).await.unwrap();
        socket.write_all(connect).await.unwrap();
        expect(&mut socket, &[0x20, 2, 0, code]).await;
        expect_closed(&mut socket).await;
    }
    // QoS 2, and a packet larger than the limit.
    for packet in [&b"\x34\x05\x00\x01t\x00\x01"[..], b"\x30\x80\x80\x80\x01\x00"] {
        let mut client = connect(&broker, "c").await;
        client.write_all(packet).await.unwrap();
        expect_closed(&mut client).await;
    }
    // A second client of the same name takes over.
    let mut first = connect(&broker, "same").await;
    let _second = connect(&broker, "same").await;
    expect_closed(&mut first).await;
}

/// A subscriber that does not read holds the publisher back; nothing is lost, order is kept.
#[tokio::test]
async fn a_slow_subscriber_gets_every_message_in_order() {
    const MESSAGES: u32 = 5_000;
    let broker = broker().await;
    let options = |name: &str| {
        let mut options =
            MqttOptions::new(name, (broker.addr().ip().to_string(), broker.addr().port()));
        options.set_max_packet_size(PACKET_MAX, PACKET_MAX);
        options
    };
    let (reader, mut incoming) = AsyncClient::builder(options("slow")).capacity(10).build();
    reader.subscribe("load/#", QoS::AtLeastOnce).await.unwrap();
    while !matches!(incoming.poll().await.unwrap(), Event::Incoming(Incoming::SubAck(_))) {}

    let (writer, mut outgoing) = AsyncClient::builder(options("fast")).capacity(10).build();
    let publishing = tokio::spawn(async move {
        for n in 0..MESSAGES {
            let mut body = n.to_be_bytes().to_vec();
            body.resize(4096, 0);
            writer.publish("load/x", body, PublishOptions::at_least_once()).await.unwrap();
        }
        writer
    });
    let acks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&acks);
    let acked = tokio::spawn(async move {
        while counted.load(Ordering::Relaxed) < u64::from(MESSAGES) {
            if let Event::Incoming(Incoming::PubAck(_)) = outgoing.poll().await.unwrap() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    // 20 MB do not fit into queue and sockets: without a reader the acknowledgements end.
    let mut seen = 0;
    loop {
        sleep(Duration::from_millis(300)).await;
        let now = acks.load(Ordering::Relaxed);
        if now > 0 && now == seen {
            break;
        }
        seen = now;
    }
    assert!(seen < u64::from(MESSAGES), "the publisher is held back, {seen}");
    let mut next = 0;
    while next < MESSAGES {
        let event = timeout(DEADLINE, incoming.poll()).await.expect("a message").unwrap();
        if let Event::Incoming(Incoming::Publish(message)) = event {
            assert_eq!(message.payload[..4], next.to_be_bytes());
            next += 1;
        }
    }
    timeout(DEADLINE, acked).await.expect("all acknowledged").unwrap();
    drop(publishing.await.unwrap());
    timeout(DEADLINE, broker.stop()).await.expect("stops with clients connected");
}
