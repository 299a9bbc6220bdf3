//! Field case A57 (eKuiper #3270): the power came back before the network did. The rule found no
//! broker at its start, stayed stopped, and nothing was kept.
//!
//! Here: a gateway that starts alone keeps everything from the first reading, and delivers it in
//! order when the broker comes.

use std::sync::Arc;

use crate::harness::broker::Broker;
use crate::harness::gate::Gate;
use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::plant::Plant;
use crate::harness::records::{assert_complete, assert_contiguous, of_stream, repeated};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, secs};

#[test]
fn a57_everything_from_the_first_reading_arrives() {
    let scratch = Scratch::new("cold");
    let mut plant = Plant::start(&scratch);
    let mut broker = Broker::prepare(&scratch, "");
    let gate = Arc::new(Gate::new(broker.port));
    let far_side = Subscriber::start(broker.port, "#", Some(Arc::clone(&gate)));
    let (head, port, uplink) = (head(&scratch), plant.port, gate.port);
    let mut gateway = Gateway::start(
        &scratch,
        &format!(
            r#"{head}
links: [ {{ name: plant, bus: {{ tcp: {{ host: 127.0.0.1, port: {port} }} }} }} ]
devices:
  - name: meter
    driver:
      modbus:
        link: plant
        polls: [ {{ name: fast, every: 200ms }} ]
        points: [ {{ name: counter, register: holding, address: 0, type: u32 }} ]
streams:
  - {{ name: readings, from: [meter], sql: "SELECT time, counter FROM meter", to: [ {{ sink: uplink }} ] }}
sinks:
  - name: uplink
    driver: {{ mqtt: {{ url: "mqtt://127.0.0.1:{uplink}", qos: 1, backoff_min: 100ms, backoff_max: 1s }} }}
"#
        ),
    );
    gateway.wait_status("thirty readings with no broker", secs(20), |status| {
        (count(status, "sinks", "uplink", "buffered_records") >= 30).then_some(())
    });
    let status = gateway.status();
    assert_ne!(part(&status, "sinks", "uplink")["state"], "up");
    assert_eq!(part(&status, "devices", "meter")["state"], "up");
    assert_eq!(count(&status["ledger"], "sinks", "uplink", "delivered"), 0);

    broker.restart();
    far_side.wait_subscribed();
    let served = plant.freeze();
    far_side.wait_value("readings", "counter", served, secs(20));
    gateway.wait_drained(secs(20));
    assert_eq!(gateway.stop().code, Some(0));

    let readings = of_stream(&far_side.records(), "readings");
    assert_complete(&readings, "counter", 1, served);
    assert_contiguous(&readings);
    assert_eq!(repeated(&readings), 0);
    // The default topic names gateway and stream.
    assert_eq!(readings[0].topic, "tidegate/test/readings");
}
