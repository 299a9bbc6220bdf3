//! Faults F1, F4, F6 and F7, at each system call that touches the store's files: killed there,
//! killed again while it recovers, refused for an error of the device or for want of room.
//!
//! A driver commits, one commit after the other, and says of each when the store has promised it.
//! Afterwards the store must open, hold everything that was promised and at most one commit more,
//! in order and unaltered, and go on from there. An error that passes must not end it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::harness::calls::{
    CHANGES, Call, Calls, Injection, READS, counted, inject_into_thread, pinned, trace_thread,
    traced,
};
use crate::harness::driver::{
    DRIVER, Promised, load, load_held, run, run_attached, run_by, verify,
};
use crate::harness::{Scratch, say, setting, soak};

const ROWS: u64 = 20;
/// Commits of a run.
fn commits() -> u64 {
    setting("TIDEGATE_TEST_COMMITS", if soak() { 200 } else { 20 })
}

/// How many calls are tried: all in the soak.
fn most(short: u64) -> u64 {
    if soak() { u64::from(u32::MAX) } else { short }
}

/// The calls of a clean run that makes a store of so many commits, or takes one further.
fn clean(scratch: &Scratch, store: &Path, arguments: &[String]) -> Calls {
    let run = run_by(scratch, traced(scratch, DRIVER), arguments);
    assert_eq!(run.code, Some(0), "a clean run: {}", run.stderr);
    let calls = Calls::read(scratch, store);
    assert!(calls.count(&["fdatasync", "fsync"]) > 0, "nothing was synced");
    calls
}

fn forget(store: &Path) {
    fs::remove_dir_all(store).expect("a store");
}

/// A copy of a store that nobody uses, under another name. It passes for the store itself: what would
/// tell it from that, and give it another epoch, is left behind.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").map(|entry| entry.expect("an entry")) {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_name() == "store.identity" {
            continue;
        }
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(path, to).expect("a file");
        }
    }
}

#[test]
fn f01_killed_at_each_call_of_a_new_store() {
    let scratch = Scratch::new("calls");
    let store = scratch.join("store");
    let arguments = load(&store, commits(), ROWS);
    let calls = clean(&scratch, &store, &arguments);
    forget(&store);
    let points = calls.some(CHANGES, most(40));
    let mut killed = 0;
    for (name, number) in &points {
        let what = format!("killed at {name} {number}");
        let by = calls.inject(&[name], &format!("signal=KILL:when={number}"), DRIVER);
        let mut promised = Promised::new(ROWS);
        let run_killed = run_by(&scratch, by, &arguments);
        promised.add(&run_killed);
        assert!(run_killed.code.is_none() || run_killed.closed(), "{what}: {run_killed:?}");
        killed += u64::from(run_killed.code.is_none());
        promised.judge(&scratch, &store, &what);
        // And it goes on from there.
        let on = run(&scratch, &load(&store, commits() + 3, ROWS));
        assert!(on.closed(), "{what}, then: {}", on.stderr);
        promised.add(&on);
        promised.judge(&scratch, &store, &format!("{what}, then three commits"));
        forget(&store);
    }
    say(format_args!("F1: {killed} kills at {} calls of a new store", points.len()));
    assert!(killed * 10 >= points.len() as u64 * 9, "{killed} kills at {} calls", points.len());
}

#[test]
fn f01_killed_at_each_call_of_a_store_that_exists() {
    let scratch = Scratch::new("further");
    let (store, first) = (scratch.join("store"), scratch.join("first"));
    let mut made = Promised::new(ROWS);
    made.add(&run(&scratch, &load(&first, 11, ROWS)));
    let arguments = load(&store, 11 + commits(), ROWS);
    copy(&first, &store);
    let calls = clean(&scratch, &store, &arguments);
    forget(&store);
    let points = calls.some(CHANGES, most(20));
    let mut killed = 0;
    for (name, number) in &points {
        copy(&first, &store);
        let by = calls.inject(&[name], &format!("signal=KILL:when={number}"), DRIVER);
        // What the first run was promised holds for each copy.
        let mut promised = made.clone();
        let run = run_by(&scratch, by, &arguments);
        killed += u64::from(run.code.is_none());
        promised.add(&run);
        promised.judge(&scratch, &store, &format!("killed at {name} {number}"));
        forget(&store);
    }
    say(format_args!("F1: {killed} kills at {} calls of a store that exists", points.len()));
    assert!(killed * 10 >= points.len() as u64 * 9, "{killed} kills at {} calls", points.len());
}

/// Threads of a store that change its files: its own, and the one that writes a frame meanwhile.
const THREADS: [&str; 2] = ["store", "store-write"];
/// Commits on their way at once, so that both have work.
const TOGETHER: u64 = 8;

/// The sweeps above let strace follow all threads, and then the first that comes to its `n`-th call is
/// killed there. Here each thread's calls are counted for itself.
#[test]
fn f01_killed_at_each_call_of_each_thread() {
    let scratch = Scratch::new("threads");
    let (store, first) = (scratch.join("store"), scratch.join("first"));
    let mut made = Promised::new(ROWS);
    made.add(&run(&scratch, &load(&first, 11, ROWS)));
    let made = made.together(TOGETHER);
    let arguments = load_held(&store, 11 + commits(), ROWS, TOGETHER);
    let attached = |thread: &str, attach: &dyn Fn(u32) -> Injection| {
        run_attached(&scratch, pinned(DRIVER), &arguments, thread, attach)
    };
    for thread in THREADS {
        copy(&first, &store);
        let whole = attached(thread, &|id| trace_thread(&scratch, id, CHANGES));
        assert!(whole.closed(), "a clean run: {whole:?}");
        forget(&store);
        let points = some_of(counted(&scratch), most(15));
        assert!(points.iter().any(|(name, _)| name == "fdatasync"), "{thread} syncs nothing");
        let (mut killed, mut kinds) = (0, BTreeSet::new());
        for (name, number) in &points {
            let what = format!("{thread} killed at its {name} {number}");
            copy(&first, &store);
            let run = attached(thread, &|id| {
                inject_into_thread(&scratch, id, name, &format!("signal=KILL:when={number}"))
            });
            assert!(run.code.is_none() || run.closed(), "{what}: {run:?}");
            if run.code.is_none() {
                killed += 1;
                kinds.insert(name);
            }
            let mut promised = made.clone();
            promised.add(&run);
            promised.judge(&scratch, &store, &what);
            forget(&store);
        }
        say(format_args!("F1: {killed} kills at {} calls of the thread {thread}", points.len()));
        // How commits share frames differs from run to run, and so does the number of calls: of a few by half.
        let all: BTreeSet<_> = points.iter().map(|(name, _)| name).collect();
        assert_eq!(kinds, all, "killed at each kind of call");
        let least = if soak() { 7 } else { 4 };
        assert!(killed * 10 >= points.len() as u64 * least, "{killed} kills at {points:?}");
    }
}

/// At most so many of these, evenly.
fn some_of(calls: BTreeSet<Call>, most: u64) -> Vec<Call> {
    let step = (calls.len() as u64).div_ceil(most.max(1));
    calls.into_iter().step_by(usize::try_from(step.max(1)).expect("few")).collect()
}

#[test]
fn f04_killed_while_it_recovers() {
    let scratch = Scratch::new("recovery");
    let (store, broken) = (scratch.join("store"), scratch.join("broken"));
    let arguments = load(&broken, commits(), ROWS);
    let calls = clean(&scratch, &broken, &arguments);
    forget(&broken);
    // In the middle of a commit: between the writes, and before the sync.
    let (mut points, mut killed_again) = (0, 0);
    for (name, share) in [("pwrite64", 2), ("fdatasync", 2), ("pwrite64", 3)] {
        let number = calls.count(&[name]) / share + 1;
        let by = calls.inject(&[name], &format!("signal=KILL:when={number}"), DRIVER);
        let mut promised = Promised::new(ROWS);
        let killed = run_by(&scratch, by, &arguments);
        assert_eq!(killed.code, None, "killed at {name} {number}: {killed:?}");
        promised.add(&killed);
        copy(&broken, &store);
        let recovery = clean(&scratch, &store, &verify(&store));
        forget(&store);
        for (again, at) in recovery.some(CHANGES, most(5)) {
            copy(&broken, &store);
            let by = recovery.inject(&[&again], &format!("signal=KILL:when={at}"), DRIVER);
            let run = run_by(&scratch, by, &verify(&store));
            killed_again += u64::from(run.code.is_none());
            let what = format!("killed at {name} {number}, and at {again} {at} while it recovers");
            promised.judge(&scratch, &store, &what);
            forget(&store);
            points += 1;
        }
        forget(&broken);
    }
    say(format_args!("F4: {killed_again} kills at {points} calls of a recovery"));
    assert!(killed_again * 10 >= points * 9, "{killed_again} kills at {points} calls");
}

/// Lets calls fail, one run for each, and returns how many runs went through.
fn failing(names: &[&str], short: u64, what: impl Fn(u64) -> String) -> (usize, usize) {
    let scratch = Scratch::new("failing");
    let store = scratch.join("store");
    let arguments = load(&store, commits(), ROWS);
    let calls = clean(&scratch, &store, &arguments);
    forget(&store);
    let points = calls.some(names, most(short));
    let mut through = 0;
    for (name, number) in &points {
        let error = what(*number);
        let by = calls.inject(&[name], &error, DRIVER);
        let run = run_by(&scratch, by, &arguments);
        let promised = Promised::new(ROWS);
        // One that could not be closed leaves ids that were given from memory.
        let mut promised = if run.closed() { promised } else { promised.ends_stalled() };
        promised.add(&run);
        let what = format!("{name}: {error}");
        // Before it is open it may say that it cannot; afterwards it gets over it.
        let gave_up = run.code == Some(1) && !run.opened();
        // Where it lasts until the end, the close says that not all of the last marks are durable.
        let at_the_end = run.code == Some(1) && promised.committed() == commits();
        assert!(run.closed() || gave_up || at_the_end, "{what}: {run:?}");
        assert!(gave_up || promised.committed() == commits(), "{what}: {run:?}");
        through += usize::from(run.closed());
        promised.judge(&scratch, &store, &what);
        forget(&store);
    }
    (points.len(), through)
}

#[test]
fn f07_an_error_of_the_device_is_never_taken_for_success() {
    let syncs = ["fdatasync", "fsync", "sync_file_range"];
    let (points, through) = failing(&syncs, 12, |number| format!("error=EIO:when={number}"));
    say(format_args!("F7: EIO at {points} syncs, {through} runs went through"));
    assert!(through > 0, "no sync failed after the store was open");
    let writes = ["pwrite64", "pwritev", "write", "ftruncate", "fallocate"];
    let (points, through) = failing(&writes, 12, |number| format!("error=EIO:when={number}"));
    say(format_args!("F7: EIO at {points} writes, {through} runs went through"));
    assert!(through > 0, "no write failed after the store was open");
    let (points, through) = failing(READS, 8, |number| format!("error=EIO:when={number}"));
    say(format_args!("F7: EIO at {points} reads, {through} runs went through"));
    assert!(through > 0, "no read failed after the store was open");
}

#[test]
fn f06_no_room_for_a_while() {
    let writes = ["pwrite64", "pwritev", "write", "ftruncate", "fallocate"];
    let (points, through) =
        failing(&writes, 10, |number| format!("error=ENOSPC:when={number}..{}", number + 6));
    say(format_args!("F6: ENOSPC for seven calls from {points} calls on, {through} went through"));
    assert!(through > 0, "no call failed after the store was open");
}
