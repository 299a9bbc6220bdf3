//! Faults F2 and F7 on a real file system: the power goes while a store commits, again and again;
//! and after syncs that failed, when what was written is in memory alone.
//!
//! The file system is shut down under the store, so that whatever was not synced is lost with its
//! journal's tail, then it is mounted anew. The store must open and hold everything that it had
//! promised, in order and unaltered, and at most one commit more; and go on from there.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::calls::injected;
use crate::harness::disk::Disk;
use crate::harness::driver::{DRIVER, Promised, load, run, run_by, said, start, verify};
use crate::harness::{Scratch, command, say, secs, setting, soak, wait_until};

const ROWS: u64 = 5;

#[test]
fn f02_the_power_goes() {
    let rounds = setting("TIDEGATE_TEST_POWER_CUTS", if soak() { 30 } else { 10 });
    let scratch = Scratch::new("power");
    let Some(disk) = Disk::ext4(&scratch, 64) else { return };
    let store = disk.path().join("store");
    // It may come to see that the device is gone, before it is killed.
    let mut promised = Promised::new(ROWS).ends_stalled();
    for round in 0..rounds {
        let arguments = load(&store, u64::MAX >> 32, ROWS);
        let mut driver = start(&scratch, "load", command(DRIVER), &arguments);
        // At a moment of its own each time; the first is while the store is being made.
        let commits = round * 17 % 60;
        wait_until("commits", secs(20), || {
            assert!(driver.runs(), "the driver has ended: {}", driver.log());
            let said = fs::read_to_string(scratch.join("load")).expect("a file");
            round == 0 || said.lines().count() as u64 > commits
        });
        disk.cut_power();
        // What it says from now on would be a lie.
        driver.signal(Signal::KILL);
        driver.wait(secs(10));
        drop(driver);
        promised.add(&said(&scratch, "load", None));
        disk.unmount();
        disk.mount();
        promised.judge(&scratch, &store, &format!("power cut {round}"));
    }
    let committed = promised.committed();
    say(format_args!("F2: {rounds} power cuts on ext4, {committed} commits, none lost"));
    assert!(rounds < 3 || committed > 0, "nothing was ever committed");
}

#[test]
fn f07_nothing_is_promised_that_a_failed_sync_left_in_memory() {
    let scratch = Scratch::new("lies");
    let Some(disk) = Disk::ext4(&scratch, 256) else { return };
    // The syncs of a run from the nth on, for ever or three of them; a new store has 8 before its
    // first commit in the layout that this was first tried with.
    let faults = ["12+", "12..14", "25+", "26..28", "47+", "60..62"];
    let mut ends = 0;
    for (round, when) in faults.into_iter().enumerate() {
        let store = disk.path().join(format!("store{round}"));
        let by = injected(&["fdatasync", "fsync"], &format!("error=EIO:when={when}"), DRIVER);
        let mut driver = start(&scratch, "load", by, &load(&store, 60, ROWS));
        // It ends by itself where it cannot go on, and where it gets over it; else it has had time to lie.
        let forever = when.ends_with('+');
        let patience = secs(if forever { 3 } else { 30 });
        let begin = Instant::now();
        while driver.runs() && begin.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(20));
        }
        ends += u32::from(!driver.runs());
        disk.cut_power();
        driver.kill();
        drop(driver);
        let run = said(&scratch, "load", None);
        let mut promised = Promised::new(ROWS).ends_stalled();
        promised.add(&run);
        disk.unmount();
        disk.mount();
        promised.judge(&scratch, &store, &format!("EIO at syncs {when}, then a power cut"));
        assert!(!run.opened() || run.closed() != forever, "EIO at syncs {when}: {}", run.stdout);
    }
    say(format_args!(
        "F7: power cuts after {} runs with failing syncs, {ends} had ended",
        faults.len()
    ));
}

/// The control: a disk whose syncs do nothing and say that they did is found out.
#[test]
fn f02_the_power_cut_is_real() {
    let scratch = Scratch::new("control");
    let Some(disk) = Disk::ext4(&scratch, 64) else { return };
    let store = disk.path().join("store");
    let by = injected(&["fdatasync", "fsync"], "retval=0:when=12+", DRIVER);
    let lied_to = run_by(&scratch, by, &load(&store, 40, ROWS));
    assert!(lied_to.closed(), "{}", lied_to.stderr);
    disk.cut_power();
    disk.unmount();
    disk.mount();
    let held = run(&scratch, &verify(&store));
    let held: Option<Value> = serde_json::from_str(&held.stdout).ok();
    let commit = held.and_then(|held| held["commit"].as_u64()).unwrap_or(0);
    assert!(commit < 40, "nothing was lost, though nothing was synced");
    say(format_args!("F2: the control lost {} commits of 40", 40 - commit));
}
