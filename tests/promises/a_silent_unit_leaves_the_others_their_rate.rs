//! Field cases A25, A26 and A27: three units behind one connection, one of them switched off. Others
//! stopped the whole cycle at the first error, reset the connection that all shared, or let the
//! timeouts of the dead unit eat the time of the living ones.
//!
//! Here: the connection stays, the dead unit is asked less and less often, and the others keep at
//! least nine tenths of their rate.

use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::plant::Plant;
use crate::harness::{Scratch, secs};

#[test]
fn a25_a26_a27_one_of_three_is_dead() {
    let scratch = Scratch::new("silent");
    let plant = Plant::start(&scratch);
    let (head, port) = (head(&scratch), plant.port);
    let device = |unit: u8| {
        format!(
            "  - name: unit_{unit}
    table: meters
    driver:
      modbus:
        link: bus
        unit_id: {unit}
        timeout: 300ms
        polls: [ {{ name: fast, every: 500ms }} ]
        points: [ {{ name: counter, register: holding, address: 0, type: u32 }} ]
"
        )
    };
    let devices: String = [1, 2, 3].map(device).concat();
    let mut gateway = Gateway::start(
        &scratch,
        &format!(
            "{head}
links: [ {{ name: bus, bus: {{ tcp: {{ host: 127.0.0.1, port: {port} }} }} }} ]
devices:
{devices}
streams: [ {{ name: rows, from: [meters], sql: \"SELECT device, counter FROM meters\", to: [ {{ sink: out }} ] }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
"
        ),
    );
    let look = |status: &serde_json::Value| {
        let good = |unit: &str| part(status, "devices", unit)["rows"]["good"].as_u64();
        let uptime = status["gateway"]["uptime_s"].as_f64().expect("an uptime");
        (uptime, good("unit_1").expect("a count"), good("unit_3").expect("a count"))
    };
    let from = gateway.wait_status("the first five seconds", secs(20), |status| {
        let now = look(status);
        (now.0 >= 5.0).then_some(now)
    });
    let to = gateway.wait_status("eight seconds more", secs(20), |status| {
        let now = look(status);
        (now.0 >= from.0 + 8.0).then_some(now)
    });
    for (unit, before, after) in [(1, from.1, to.1), (3, from.2, to.2)] {
        let rows = f64::from(u32::try_from(after - before).expect("few"));
        let rate = rows / (to.0 - from.0);
        assert!(rate >= 0.9 * 2.0, "unit {unit}: {rate} rows a second instead of 2");
    }
    let status = gateway.status();
    let dead = part(&status, "devices", "unit_2");
    assert!(dead["last_error"].is_string(), "it is said: {dead:#}");
    assert_ne!(dead["state"], "up", "{dead:#}");
    assert_eq!(dead["rows"]["good"], 0, "{dead:#}");
    let bus = part(&status, "links", "bus");
    assert_eq!(bus["counters"]["connects"], 1, "the connection stays: {bus:#}");
    assert_eq!(count(&status, "streams", "rows", "restarts"), 0);
    assert_eq!(gateway.stop().code, Some(0));
}
