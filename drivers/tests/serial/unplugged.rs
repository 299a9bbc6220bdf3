//! Adapters are pulled out and plugged in again, sometimes days later.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_drivers::bus::{self, BusHandle};
use tidegate_drivers::south::modbus::{Bus, ModbusDevice, ModbusSouth};
use tidegate_drivers::south::serial::{SerialDevice, SerialSouth};
use tidegate_drivers::stats::LinkState;
use tidegate_drivers::table::Quality;
use tidegate_drivers::{Fault, South, TableBuilder};
use tokio::time::{Instant, sleep, timeout};

use crate::process::{ALONE, cpu, descriptors, resident_kib};
use crate::pty::{Plugged, scale, units};

/// Longest time without data after an adapter is plugged in again.
const BACK_WITHIN: Duration = Duration::from_secs(3);
const ROUNDS: usize = 50;

fn open(port: &str) -> BusHandle {
    let config: Bus =
        serde_json::from_value(json!({ "rtu": { "port": port, "baud": 115_200 } })).unwrap();
    let (handle, mut owner) = bus::open("line", &config);
    tokio::spawn(async move { owner.run().await });
    handle
}

fn device(bus: &BusHandle, unit: u8, every: &str) -> (ModbusSouth, TableBuilder) {
    let config: ModbusDevice = serde_json::from_value(json!({
        "link": "line",
        "unit_id": unit,
        "timeout": "200ms",
        "polls": [{ "name": "fast", "every": every }],
        "points": [{ "name": "a", "register": "holding", "address": 7 }],
    }))
    .unwrap();
    let south = ModbusSouth::new("meter", config, bus.clone()).unwrap();
    let table = TableBuilder::new(south.points(), false);
    (south, table)
}

/// Reads until a row is good.
async fn good_row(south: &mut dyn South, table: &mut TableBuilder) {
    loop {
        match south.read(table).await {
            Ok(_) if table.finish().qualities.contains(&Quality::Good) => return,
            Ok(_) => {}
            Err(Fault::Link(_)) => {
                // The gateway's part waits with backoff too.
                sleep(Duration::from_millis(100)).await;
                if south.connect().await.is_err() {
                    sleep(Duration::from_millis(100)).await;
                }
            }
            Err(fault) => panic!("{fault}"),
        }
    }
}

/// Field case A30 and fault F24: 50 rounds; each time another kernel name under the same stable
/// one.
#[tokio::test]
async fn a30_a_modbus_line_is_back_after_each_replug() {
    let _alone = ALONE.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("usb-FTDI_A50285BI-if00-port0");
    let bus = open(name.to_str().unwrap());
    let (mut south, mut table) = device(&bus, 1, "20ms");
    let mut held = None;
    let mut longest = Duration::ZERO;
    for round in 0..ROUNDS {
        let plugged = Plugged::new(&name, units);
        let start = Instant::now();
        timeout(BACK_WITHIN, good_row(&mut south, &mut table)).await.expect("back in time");
        longest = longest.max(start.elapsed());
        let now = descriptors();
        assert_eq!(*held.get_or_insert(now), now, "descriptors in round {round}");
        plugged.unplug().await;
        while bus.state() == LinkState::Up {
            south.read(&mut table).await.unwrap();
            table.finish();
        }
    }
    println!("longest time without data after a replug: {longest:?}");
    let (before, start) = (cpu(), Instant::now());
    while start.elapsed() < Duration::from_secs(3) {
        south.read(&mut table).await.unwrap();
        assert!(table.finish().is_empty());
    }
    let share = cpu().saturating_sub(before).as_secs_f64() / start.elapsed().as_secs_f64();
    println!("unplugged: {:.1} % of a processor", share * 100.0);
    assert!(share < 0.05, "{share}");
}

/// The same for a device that sends lines.
#[tokio::test]
async fn a30_a_serial_device_is_back_after_each_replug() {
    let _alone = ALONE.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("usb-scale");
    let config: SerialDevice = serde_json::from_value(json!({
        "port": name.to_str().unwrap(),
        "pattern": "^ST,GS,(?<weight>[^k]+)kg$",
        "points": [{ "name": "weight", "type": "f64" }],
    }))
    .unwrap();
    let mut south = SerialSouth::new(config).unwrap();
    let mut table = TableBuilder::new(south.points(), false);
    let mut held = None;
    for round in 0..10 {
        let plugged = Plugged::new(&name, scale);
        timeout(BACK_WITHIN, good_row(&mut south, &mut table)).await.expect("back in time");
        let now = descriptors();
        assert_eq!(*held.get_or_insert(now), now, "descriptors in round {round}");
        plugged.unplug().await;
        while south.read(&mut table).await.is_ok() {
            table.finish();
        }
        assert_eq!(south.stats().state(), LinkState::Down);
    }
}

/// Field case A28: two devices on one port through its one owner; a second opener is refused.
#[tokio::test]
async fn a28_a_port_has_one_owner() {
    let _alone = ALONE.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("port");
    let _plugged = Plugged::new(&name, units);
    let bus = open(name.to_str().unwrap());
    let (mut one, mut rows_one) = device(&bus, 1, "20ms");
    let (mut two, mut rows_two) = device(&bus, 2, "20ms");
    for _ in 0..20 {
        tokio::join!(good_row(&mut one, &mut rows_one), good_row(&mut two, &mut rows_two));
    }
    let other = open(name.to_str().unwrap());
    let (mut third, mut rows_third) = device(&other, 3, "20ms");
    for _ in 0..5 {
        third.read(&mut rows_third).await.unwrap();
        assert!(rows_third.finish().is_empty());
    }
    let error: Value = third.stats().last_error().into();
    assert!(error.as_str().unwrap().contains("cannot connect to"), "{error}");
}

/// Field case A34: 10,000 polls of a port that cannot be opened keep nothing.
#[tokio::test(start_paused = true)]
async fn a34_polls_of_a_port_that_is_not_there_keep_nothing() {
    let _alone = ALONE.lock().await;
    let bus = open("/dev/serial/by-id/none");
    let (mut south, mut table) = device(&bus, 1, "1s");
    for _ in 0..100 {
        south.read(&mut table).await.unwrap();
    }
    let before = resident_kib();
    for _ in 0..10_000 {
        south.read(&mut table).await.unwrap();
        assert!(table.finish().is_empty());
    }
    let grown = resident_kib().saturating_sub(before);
    println!("10,000 failed polls: {grown} KiB more");
    assert!(grown < 5 * 1024, "{grown} KiB");
    let error = south.stats().last_error().unwrap();
    let text = "cannot connect to /dev/serial/by-id/none (115200 8E1)";
    assert!(error.contains(text), "{error}");
}
