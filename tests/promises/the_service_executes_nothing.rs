//! The service as it is installed: a unit that leaves little to whoever gets in, and a process that
//! cannot execute programs.

use std::fs;
use std::process::{Command, Stdio};

use crate::harness::gateway::{Gateway, head};
use crate::harness::{Scratch, repository, tidegate};

/// Runs `systemd-analyze`; none where there is no systemd.
fn analyze(arguments: &[&str]) -> Option<(bool, String)> {
    let output = Command::new("systemd-analyze").args(arguments).stdin(Stdio::null()).output();
    let Ok(output) = output else {
        eprintln!("SKIPPED: systemd-analyze is not installed");
        return None;
    };
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Some((output.status.success(), text.concat()))
}

#[test]
fn the_unit_is_exposed_by_2_0_at_most_and_is_well_formed() {
    let unit = repository().join("board-configs/systemd/tidegate.service");
    let path = unit.display().to_string();
    // The threshold is in tenths: 20 is 2.0.
    let scored = analyze(&["security", "--offline=true", "--threshold=20", "--no-pager", &path]);
    let Some((below, text)) = scored else {
        return;
    };
    assert!(below, "{text}");

    // The program lies elsewhere than on a gateway.
    let scratch = Scratch::new("unit");
    let text = fs::read_to_string(&unit).expect("the unit");
    let here = text.replace("/usr/bin/tidegate", &tidegate().display().to_string());
    let placed = scratch.file("tidegate.service", here).display().to_string();
    let verified = analyze(&["verify", "--man=no", "--recursive-errors=no", &placed]);
    let (sound, text) = verified.expect("it was there a moment ago");
    assert!(sound && !text.contains("tidegate.service"), "{text}");
}

#[test]
fn the_kernel_refuses_it_to_execute_programs() {
    let scratch = Scratch::new("sealed");
    let config = head(&scratch);
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.status();
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.pid()));
    let status = status.expect("the state of a process of ours");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    // proc(5): 2 is a filter. What the filter does is tried where it is made.
    assert_eq!(field("Seccomp:"), Some("2"), "{status}");
    assert_eq!(field("NoNewPrivs:"), Some("1"), "{status}");
    assert_eq!(gateway.stop().code, Some(0));
}
