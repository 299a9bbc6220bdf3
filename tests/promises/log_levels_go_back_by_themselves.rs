//! Somebody turns the log up to look at one module, goes home, and the journal fills.
//!
//! Here: levels are changed while the gateway runs, per module, and are back after the time that was
//! given.

use rustix::process::Signal;

use crate::a_change_touches_only_what_differs::outcome;
use crate::harness::gateway::{Gateway, head};
use crate::harness::{Scratch, run, secs, wait_until};

#[test]
fn after_the_time_that_was_given() {
    let scratch = Scratch::new("levels");
    let head = head(&scratch);
    let config = format!(
        "{head}
devices: [ {{ name: made, driver: {{ generate: {{ every: 100ms, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }} ]
"
    );
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    let socket = gateway.socket().display().to_string();
    let log = |arguments: &[&str]| {
        let all: Vec<&str> =
            ["log", "--socket", &socket].into_iter().chain(arguments.iter().copied()).collect();
        run(&all, secs(20))
    };
    assert_eq!(log(&[]).stdout, "info\n");
    let refused = log(&["tidegate=loud"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("tidegate=loud"), "{}", refused.stderr);

    let duration = log(&["0s"]);
    assert_eq!((duration.code, duration.stderr.lines().count()), (Some(1), 1), "{duration:?}");
    assert!(duration.stderr.contains("`0s` is a duration, no level"), "{duration:?}");
    assert!(duration.stderr.contains("tidegate log info --for 0s"), "{duration:?}");
    let alone = log(&["--for", "0s"]);
    assert_eq!(alone.code, Some(2), "{alone:?}");
    assert!(alone.stderr.contains("<LEVELS>") || alone.stderr.contains("[LEVELS]"), "{alone:?}");
    assert_eq!(log(&[]).stdout, "info\n");

    // What a reload logs at `info`, by module.
    let reloads = |gateway: &mut Gateway| {
        let before = gateway.status()["config"]["last_change"].clone();
        gateway.signal(Signal::HUP);
        assert_eq!(outcome(gateway, &before), "unchanged");
        gateway.log().matches("tidegate::apply").count()
    };
    let first = reloads(&mut gateway);
    assert_eq!(log(&["error"]).code, Some(0));
    assert_eq!(reloads(&mut gateway), first, "it is not logged any more");
    let changed = log(&["error,tidegate::apply=info", "--for", "3s"]);
    assert!(changed.stdout.starts_with("error,tidegate::apply=info (for"), "{}", changed.stdout);
    assert_eq!(reloads(&mut gateway), first + 1);
    wait_until("the levels to go back", secs(20), || log(&[]).stdout == "info\n");
    assert!(gateway.log().contains("log levels as at the start again"), "{}", gateway.log());
    assert_eq!(gateway.stop().code, Some(0));
}
