//! Every example of the repository is a configuration that runs, and the tests in it pass. And a
//! test that expects something else fails, or it would prove nothing.

use crate::harness::{Scratch, python, repository, run, secs};

fn examples() -> Vec<std::path::PathBuf> {
    let folder = repository().join("board-configs/examples");
    let entries = std::fs::read_dir(folder).expect("board-configs/examples");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "yaml"));
    paths.sort();
    paths
}

#[test]
fn examples_are_accepted_and_their_tests_pass() {
    let examples = examples();
    assert!(!examples.is_empty());
    for path in &examples {
        let name = path.to_str().expect("a path");
        let checked = run(&["check", name], secs(20));
        if name.ends_with("sqlite.yaml") && checked.stdout.contains("E0416") {
            // This build has no SQLite; `make test` makes one that has.
            continue;
        }
        assert_eq!(checked.code, Some(0), "{name}: {checked:?}");
        assert!(checked.stdout.contains("no problems"), "{name}: {checked:?}");
        let program = format!(
            "tank_alarms=exec {} {} {{socket}}",
            python().display(),
            repository().join("gateway/examples/process/alarm.py").display()
        );
        let mut test = vec!["test", name];
        if name.ends_with("/process.yaml") {
            // Nobody to ask is told, with what to do.
            let alone = run(&test, secs(30));
            assert_eq!(alone.code, Some(1), "{alone:?}");
            assert!(alone.stdout.contains("--program 'tank_alarms=COMMAND"), "{alone:?}");
            test.extend(["--program", &program]);
        }
        let tested = run(&test, secs(30));
        assert_eq!(tested.code, Some(0), "{name}: {tested:?}");
        assert!(tested.stdout.contains(" 0 failed"), "{name}: {tested:?}");
    }
    let with_tests = examples.iter().filter(|path| {
        std::fs::read_to_string(path).expect("an example").lines().any(|line| line == "tests:")
    });
    assert!(with_tests.count() >= 1, "no example has tests");
}

/// Design page config.md's own example, by hand: mean of 230 and 232; the row of 5 s comes when
/// the watermark (13 s − 2 s) has passed its window.
fn config(scratch: &Scratch, mean: &str, late: u32) -> std::path::PathBuf {
    let store = scratch.join("store");
    scratch.file(
        "tests.yaml",
        format!(
            r"version: 1
gateway: {{ name: test }}
store: {{ path: {} }}
links: [ {{ name: plant, bus: {{ tcp: {{ host: 127.0.0.1 }} }} }} ]
devices:
  - name: main_meter
    table: meters
    driver: {{ modbus: {{ link: plant, points: [ {{ name: voltage_l1, register: input, address: 0, type: f32 }} ] }} }}
streams:
  - name: energy_10s
    from: [meters]
    window: {{ tumbling: {{ size: 10s }} }}
    allowed_lateness: 2s
    sql: SELECT window_end() AS time, avg(voltage_l1) AS u_l1, good_ratio(voltage_l1) AS q FROM meters
    to: [ {{ sink: out }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
tests:
  - name: mean over 10 s, a late row is counted
    stream: energy_10s
    event_time: source
    input:
      - {{ at: 0s, table: meters, device: main_meter, voltage_l1: 230.0 }}
      - {{ at: 9s, voltage_l1: 232.0 }}
      - {{ at: 13s, voltage_l1: 1.0 }}
      - {{ at: 5s, voltage_l1: 9.9 }}
    expect: {{ rows: [ {{ u_l1: {mean} }} ], late: {late} }}
  - name: another one
    stream: energy_10s
    input: [ {{ at: 0s, voltage_l1: 1.0 }}, {{ at: 30s, voltage_l1: 1.0 }} ]
    expect: {{ rows: [ {{ u_l1: 1.0, q: 1.0 }} ] }}
",
            store.display()
        ),
    )
}

#[test]
fn a_wrong_expectation_fails() {
    let scratch = Scratch::new("tests");
    let test = |mean, late| {
        let path = config(&scratch, mean, late);
        run(&["test", path.to_str().expect("a path")], secs(20))
    };
    let right = test("231.0", 1);
    assert_eq!(right.code, Some(0), "{right:?}");
    assert!(right.stdout.contains("2 passed, 0 failed"), "{right:?}");
    let mean = test("231.5", 1);
    assert_eq!(mean.code, Some(1), "{mean:?}");
    assert!(mean.stdout.contains("1 passed, 1 failed"), "{mean:?}");
    // What was expected and what came.
    assert!(mean.stdout.contains("231.5") && mean.stdout.contains("231"), "{mean:?}");
    let path = config(&scratch, "231.0", 1);
    let filtered =
        |filter| run(&["test", path.to_str().expect("a path"), "--filter", filter], secs(20));
    assert!(filtered("another").stdout.contains("1 passed, 0 failed"));
    let none = filtered("annother");
    assert_eq!(none.code, Some(1), "{none:?}");
    assert!(none.stderr.contains("no test's name contains `annother`"), "{none:?}");
    let late = test("231.0", 0);
    assert_eq!(late.code, Some(1), "{late:?}");
}

#[test]
fn the_schema_is_the_one_in_the_repository() {
    let printed = run(&["schema"], secs(10));
    assert_eq!(printed.code, Some(0));
    let kept = std::fs::read_to_string(repository().join("board-configs/schema.json"));
    assert_eq!(printed.stdout, kept.expect("board-configs/schema.json"), "run `make bless`");
}
