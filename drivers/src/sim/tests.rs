//! The simulator against bytes written by hand from the specification; no client of ours.

use super::*;

fn doc(yaml_as_json: &str) -> SimDoc {
    serde_json::from_str(yaml_as_json).unwrap()
}

const PLANT: &str = r#"{ "servers": [ { "name": "plc", "units": [ { "unit_id": 1, "points": [
    { "name": "voltage", "register": "input", "address": 0, "type": "f32",
      "value": { "constant": 231.0 } },
    { "name": "temperature", "register": "holding", "address": 102, "type": "i16", "scale": 0.1,
      "value": { "constant": -12.3 } },
    { "name": "reading", "register": "holding", "address": 104, "type": "u32",
      "value": { "counter": { "start": 65535 } } },
    { "name": "running", "register": "coil", "address": 0, "value": { "constant": 1.0 } },
    { "name": "door", "register": "coil", "address": 1, "value": { "constant": 0.0 } }
] } ] } ] }"#;

#[test]
fn all_problems_are_named_at_once() {
    assert!(doc(PLANT).problems().is_empty());
    let bad = doc(r#"{ "servers": [ { "name": "a", "units": [
        { "unit_id": 1, "points": [
            { "name": "p", "register": "input", "address": 0, "type": "f32",
              "value": { "sine": { "amplitude": 1.0, "period": "0s" } } },
            { "name": "p", "register": "input", "address": 1, "value": { "constant": 70000.0 } },
            { "name": "q", "register": "coil", "address": 0, "type": "u16",
              "value": { "counter": {} } },
            { "name": "r", "register": "holding", "address": 65535, "type": "u32", "scale": 2.0,
              "value": { "counter": { "start": -1 } } },
            { "name": "s", "register": "holding", "address": 0, "type": "string",
              "value": { "choice": ["a"] } },
            { "name": "t", "register": "holding", "address": 1, "scale": 0.0,
              "value": { "choice": ["a"] } }
        ] }, { "unit_id": 1, "points": [] } ] }, { "name": "a", "units": [] } ] }"#);
    let fields: Vec<String> = bad.problems().into_iter().map(|p| p.0).collect();
    let at = |n: usize, below: &str| format!("servers[0].units[0].points[{n}].{below}");
    let expected = [
        at(0, "value.sine.period"),
        at(1, "name"),
        at(1, "value"),
        at(1, "address"),
        at(2, "type"),
        at(3, "address"),
        at(3, "scale"),
        at(3, "value"),
        at(4, "type"),
        at(5, "scale"),
        at(5, "value"),
        "servers[0].units[1].unit_id".to_owned(),
        "servers[1].name".to_owned(),
    ];
    assert_eq!(fields, expected);
}

#[cfg(feature = "io")]
mod io {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;
    use crate::border::Fault;

    async fn sim() -> (Sim, TcpStream) {
        let sim = Sim::start(doc(PLANT)).await.unwrap();
        let client = TcpStream::connect(sim.addr("plc").unwrap()).await.unwrap();
        (sim, client)
    }

    /// Sends a PDU to a unit in an MBAP frame and returns the PDU of the reply.
    async fn ask(client: &mut TcpStream, unit: u8, pdu: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x12, 0x34, 0, 0, 0, u8::try_from(pdu.len() + 1).unwrap(), unit];
        frame.extend_from_slice(pdu);
        client.write_all(&frame).await.unwrap();
        let mut header = [0; 7];
        client.read_exact(&mut header).await.unwrap();
        assert_eq!((&header[..5], header[6]), (&[0x12, 0x34, 0, 0, 0][..], unit));
        let mut pdu = vec![0; usize::from(header[5]) - 1];
        client.read_exact(&mut pdu).await.unwrap();
        pdu
    }

    #[tokio::test]
    async fn registers_and_coils_are_served() {
        let (sim, mut client) = sim().await;
        // 231.0 as IEEE 754 single, see `words`.
        let pdu = ask(&mut client, 1, &[4, 0, 0, 0, 2]).await;
        assert_eq!(pdu, [4, 4, 0x43, 0x67, 0x00, 0x00]);
        // -12.3 / 0.1 = -123 = 0xFF85 in two's complement.
        assert_eq!(ask(&mut client, 1, &[3, 0, 102, 0, 1]).await, [3, 2, 0xFF, 0x85]);
        // Coil 0 is the least significant bit of the first byte.
        assert_eq!(ask(&mut client, 1, &[1, 0, 0, 0, 2]).await, [1, 1, 0b01]);
        assert_eq!(sim.served().requests, 3);
        assert_eq!(sim.served().exceptions, 0);
    }

    #[tokio::test]
    async fn each_whole_read_of_a_counter_counts() {
        let (sim, mut client) = sim().await;
        let whole = [3, 0, 104, 0, 2];
        assert_eq!(ask(&mut client, 1, &whole).await, [3, 4, 0, 0, 0xFF, 0xFF]);
        assert_eq!(ask(&mut client, 1, &whole).await, [3, 4, 0, 1, 0x00, 0x00]);
        // Half of it shows the next value, 65537, and takes nothing.
        assert_eq!(ask(&mut client, 1, &[3, 0, 105, 0, 1]).await, [3, 2, 0x00, 0x01]);
        assert_eq!(ask(&mut client, 1, &whole).await, [3, 4, 0, 1, 0x00, 0x01]);
        // A second connection goes on with the same counter.
        let mut other = TcpStream::connect(sim.addr("plc").unwrap()).await.unwrap();
        assert_eq!(ask(&mut other, 1, &whole).await, [3, 4, 0, 1, 0x00, 0x02]);
        let served = sim.stop().await;
        let reading = served.counter("reading").unwrap();
        assert_eq!((reading.total, reading.last), (4, Some(65_538)));
        assert_eq!(reading.values().collect::<Vec<_>>(), [65_535, 65_536, 65_537, 65_538]);
    }

    #[tokio::test]
    async fn what_is_not_there_gets_its_exception() {
        let (sim, mut client) = sim().await;
        let cases: [(&str, u8, &[u8], [u8; 2]); 10] = [
            ("undefined address", 1, &[3, 0, 50, 0, 1], [0x83, 2]),
            ("a hole between two points", 1, &[3, 0, 102, 0, 4], [0x83, 2]),
            ("another address space", 1, &[4, 0, 102, 0, 1], [0x84, 2]),
            ("beyond the top", 1, &[3, 0xFF, 0xFF, 0, 2], [0x83, 2]),
            ("no register at all", 1, &[3, 0, 102, 0, 0], [0x83, 3]),
            ("126 registers", 1, &[4, 0, 0, 0, 126], [0x84, 3]),
            ("2,001 discrete inputs", 1, &[2, 0, 0, 0x07, 0xD1], [0x82, 3]),
            ("a write", 1, &[6, 0, 102, 0, 1], [0x86, 1]),
            ("an unknown function", 1, &[0x41, 1], [0xC1, 1]),
            ("another unit", 9, &[3, 0, 102, 0, 1], [0x83, 0x0B]),
        ];
        for (what, unit, request, expected) in cases {
            assert_eq!(ask(&mut client, unit, request).await, expected, "{what}");
        }
        let served = sim.served();
        assert_eq!((served.requests, served.exceptions), (10, 10));
        assert_eq!(served.counter("reading").unwrap().total, 0);
    }

    #[tokio::test]
    async fn a_counter_begins_anew_before_its_register_overflows() {
        let plant = PLANT.replace("\"u32\"", "\"u16\"");
        let sim = Sim::start(doc(&plant)).await.unwrap();
        let mut client = TcpStream::connect(sim.addr("plc").unwrap()).await.unwrap();
        for _ in 0..2 {
            assert_eq!(ask(&mut client, 1, &[3, 0, 104, 0, 1]).await, [3, 2, 0xFF, 0xFF]);
        }
        assert_eq!(sim.served().counter("reading").unwrap().last, Some(65_535));
    }

    #[tokio::test]
    async fn stopping_lets_clients_read_what_was_counted() {
        let (sim, mut client) = sim().await;
        client.write_all(&[0, 1, 0, 0, 0, 6, 1, 3, 0, 104, 0, 2]).await.unwrap();
        while sim.served().requests == 0 {
            tokio::task::yield_now().await;
        }
        let addr = sim.addr("plc").unwrap();
        let served = timeout(Duration::from_secs(1), sim.stop()).await.expect("an idle client");
        assert_eq!(served.counter("reading").unwrap().total, 1);
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).await.unwrap();
        assert_eq!(reply, [0, 1, 0, 0, 0, 7, 1, 3, 4, 0, 0, 0xFF, 0xFF]);
        TcpStream::connect(addr).await.unwrap_err();
    }

    #[tokio::test]
    async fn a_busy_port_and_a_bad_document_are_refused() {
        let (sim, _client) = sim().await;
        let mut busy = doc(PLANT);
        busy.servers[0].listen = sim.addr("plc");
        let Err(Fault::Config(text)) = Sim::start(busy).await else { panic!("bound twice") };
        assert!(text.starts_with("plc cannot listen on 127.0.0.1:"), "{text}");
        let Err(Fault::Config(text)) = Sim::start(SimDoc { servers: Vec::new() }).await else {
            panic!("nothing to serve")
        };
        assert_eq!(text, "servers: is empty: list at least one");
    }
}
