//! `tidegate sim` is for users too: a client that is not ours reads what the description says, and
//! the simulator's own count of what it served is what that client saw.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Program, Scratch, command, python, repository, secs, tidegate, wait_for};

#[test]
fn pymodbus_reads_the_plant() {
    let scratch = Scratch::new("sim");
    reads(&scratch, &repository().join("board-configs/sim/plant.yaml"), "socket");
}

#[test]
fn pymodbus_reads_the_plant_in_rtu_frames_over_tcp() {
    let scratch = Scratch::new("sim_rtu");
    let text = fs::read_to_string(repository().join("board-configs/sim/plant.yaml"));
    let text = text.expect("the plant").replace("    listen:", "    framing: rtu\n    listen:");
    assert!(text.contains("framing: rtu"), "{text}");
    let path = scratch.join("plant.yaml");
    fs::write(&path, text).expect("a file");
    reads(&scratch, &path, "rtu");
}

fn reads(scratch: &Scratch, plant: &Path, framer: &str) {
    let out = scratch.join("stdout");
    let mut command = command(tidegate());
    command.arg("sim").arg(plant);
    command.stdin(Stdio::null()).stdout(File::create(&out).expect("a file"));
    let mut sim = Program::start("tidegate sim", &mut command, &scratch.join("stderr"));
    let port = wait_for("the simulator's port", secs(10), || {
        let text = fs::read_to_string(&out).expect("standard output");
        let (_, port) = text.lines().next()?.rsplit_once(':')?;
        port.parse::<u16>().ok()
    });

    let client = repository().join("tests/modbus_client.py");
    let read = Command::new(python())
        .arg(client)
        .args([&port.to_string(), framer])
        .output()
        .expect("Python");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let reads: Vec<Value> = String::from_utf8(read.stdout)
        .expect("UTF-8")
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(reads.len(), 3);
    for (index, read) in reads.iter().enumerate() {
        let number = |name: &str| read[name].as_f64().unwrap_or_else(|| panic!("{read}"));
        // 230 V ± 3 V, 12 A ± 4 A, 41 ± 6.5 °C in tenths: the amplitudes of the description.
        assert!((227.0..=233.0).contains(&number("voltage_l1")), "{read}");
        assert!((8.0..=16.0).contains(&number("current_l1")), "{read}");
        assert!((345.0..=475.0).contains(&number("temperature")), "{read}");
        assert_eq!(read["reading"], index + 1, "{read}");
        assert_eq!(read["running"], true, "{read}");
        // Illegal data address (Modbus Application Protocol V1.1b3, section 7).
        assert_eq!(read["unknown"], 2, "{read}");
    }

    sim.signal(Signal::INT);
    assert_eq!(sim.wait(secs(5)).code(), Some(0));
    let text = fs::read_to_string(&out).expect("standard output");
    let served: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    assert!(served.to_string().contains("reading"), "{served}");
}
