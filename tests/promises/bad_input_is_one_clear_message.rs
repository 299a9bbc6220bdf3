//! What people get wrong, each with one clear message: where it stands, what is wrong, what would be
//! right, and an exit code that a service manager can act on. What concerns one part only makes that
//! part red, and the others run.
//!
//! Exit codes (design page config.md): 1 failure · 2 usage · 75 locked or temporary · 78
//! configuration refused.

use std::net::{TcpListener, TcpStream};
use std::path::Path;

use serde_json::Value;

use crate::harness::gateway::{Gateway, count, head, part, talk};
use crate::harness::{Scratch, free_port, run, secs, wait_until};

/// Stands before each case; the case itself begins on line 3.
const HEAD: &str = "version: 1\ngateway: { name: test }\n";

/// A device and a sink that are in order, and a stream whose SQL is the case; it stands on line 3.
fn with_sql(sql: &str) -> String {
    format!(
        "streams: [ {{ name: out_1, from: [waves], to: [ {{ sink: out }} ], sql: \"{sql}\" }} ]
devices: [ {{ name: waves, driver: {{ generate: {{ points: [ {{ name: level, value: {{ constant: 1 }} }} ] }} }} }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
"
    )
}

/// What `check --format json` says: exactly one problem.
fn one_problem(path: &Path) -> Value {
    let path = path.to_str().expect("a path");
    let checked = run(&["check", "--format", "json", path], secs(5));
    assert_eq!(checked.code, Some(78), "{checked:?}");
    let problems: Value = serde_json::from_str(&checked.stdout).expect("JSON");
    let [problem] = problems.as_array().expect("a list").as_slice() else {
        panic!("not exactly one problem: {problems:#}");
    };
    assert_eq!(checked.stderr, "", "nothing beside the problem");
    problem.clone()
}

/// Checks a file in all ways: code, position, words, and the same message from `run`.
fn refused(path: &Path, code: &str, line: u64, words: &[&str]) {
    let problem = one_problem(path);
    assert_eq!(problem["code"], code, "{problem:#}");
    assert_eq!(problem["line"], line, "{problem:#}");
    let said = format!("{} {} {}", problem["file"], problem["message"], problem["hint"]);
    for word in words {
        assert!(said.contains(word), "`{word}` is not said: {problem:#}");
    }

    let name = path.to_str().expect("a path");
    for command in ["check", "run"] {
        let ended = run(&[command, name], secs(5));
        assert_eq!(ended.code, Some(78), "{command}: {ended:?}");
        let shown = if command == "check" { &ended.stdout } else { &ended.stderr };
        let errors = shown.lines().filter(|line| line.contains(&format!("error {code}: ")));
        assert_eq!(errors.count(), 1, "{command}: {ended:?}");
        if line > 0 {
            let place = format!("{name}:{line}:{}: error", problem["column"]);
            assert!(shown.starts_with(&place), "{command} says where: {ended:?}");
            assert!(shown.contains("^\n"), "{command} shows the line with a caret: {ended:?}");
        }
    }
}

#[test]
fn a_configuration_that_is_wrong_is_refused_where_it_is_wrong() {
    let scratch = Scratch::new("bad");
    let case = |text: &str, code: &str, line: u64, words: &[&str]| {
        refused(&scratch.file("bad.yaml", format!("{HEAD}{text}")), code, line, words);
    };
    case("stroe: {}\n", "E0201", 3, &["stroe", "did you mean `store`?"]);
    case("store: { commit_every: 1 }\n", "E0203", 3, &["1s"]);
    case("store: { path: 7 }\n", "E0203", 3, &["in quotes"]);
    case("web: { listen: \"0.0.0.0:8080\" }\n", "E0407", 3, &["login"]);
    case("store: { path: /x\n", "E0102", 3, &["YAML"]);
    case("store: { path: \"${TIDEGATE_TEST_NOT_SET}\" }\n", "E0111", 3, &["TIDEGATE_TEST_NOT_SET"]);
    case("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "E0104", 3, &["anchor"]);
}

#[test]
fn sql_that_is_wrong_is_refused_where_it_is_wrong() {
    let scratch = Scratch::new("sql");
    let case = |sql: &str, words: &[&str]| {
        let path = scratch.file("bad.yaml", format!("{HEAD}{}", with_sql(sql)));
        refused(&path, "E0501", 3, words);
        one_problem(&path)["column"].as_u64().expect("a column")
    };
    // The SQL begins behind the quote in column 65 of its line.
    let start = "streams: [ { name: out_1, from: [waves], to: [ { sink: out } ], sql: \"";
    let start = start.len() as u64;
    assert_eq!(case("SELECT levl FROM waves", &["levl", "level"]), start + 8);
    case("SELECT level FROM wafes", &["wafes"]);
    case("SELEC level FROM waves", &["SELEC"]);
    case("SELECT level FROM waves; DROP TABLE waves", &["one SELECT"]);
    case("SELECT avg(level) FROM waves", &["window"]);
    case("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/etc/passwd'", &["SELECT"]);
}

#[test]
fn all_problems_are_told_at_once() {
    let scratch = Scratch::new("many");
    let path = scratch.file(
        "bad.yaml",
        format!("{HEAD}stroe: {{}}\nweb: {{ lisen: x }}\nlimits: {{ memory: 1 }}\n"),
    );
    let path = path.to_str().expect("a path");
    let checked = run(&["check", path], secs(5));
    assert_eq!(checked.code, Some(78));
    for place in ["3:1: error E0201", "4:8: error E0201", "5:19: error E0203"] {
        assert!(checked.stdout.contains(&format!("{path}:{place}")), "{place}: {checked:?}");
    }
    assert_eq!(checked.stdout.matches(": error E").count(), 3, "{checked:?}");
    let forge = run(&["check", "--format", "github", path], secs(5));
    assert_eq!(forge.stdout.matches("::error file=").count(), 3, "{forge:?}");
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let scratch = Scratch::new("unread");
    refused(&scratch.join("nothing.yaml"), "E0101", 0, &["nothing.yaml", "No such file"]);
    let binary = scratch.file("binary.yaml", b"version: 1\n\xff\xfe\n");
    assert_eq!(one_problem(&binary)["code"], "E0101");
    let folder = scratch.join("empty");
    std::fs::create_dir(&folder).expect("a folder");
    refused(&folder, "E0101", 0, &["yaml"]);
    let large = scratch.file("large.yaml", format!("x: \"{}\"\n", "y".repeat(17 << 20)));
    assert_eq!(one_problem(&large)["code"], "E0103");
}

#[test]
fn the_command_line_is_checked_and_codes_are_explained() {
    for arguments in [&["rum"][..], &[], &["check", "--format", "xml", "x.yaml"]] {
        let ended = run(arguments, secs(5));
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains("--help"), "what would be right is said: {ended:?}");
    }
    let level = run(&["--log", "loud=very", "schema"], secs(5));
    assert_eq!(level.code, Some(2), "{level:?}");
    let known = run(&["explain", "E0201"], secs(5));
    assert_eq!(known.code, Some(0), "{known:?}");
    assert!(known.stdout.contains("no such field"), "{known:?}");
    assert_eq!(run(&["explain", "E9999"], secs(5)).code, Some(1));
}

/// A source that always works, and a stream to standard output, beside which something is broken.
fn beside(scratch: &Scratch, web: u16, links: &str, device: &str, sink: &str) -> String {
    let head = head(scratch).replace("127.0.0.1:0", &format!("127.0.0.1:{web}"));
    let to = if sink.is_empty() { "" } else { ", { sink: broken }" };
    format!(
        "{head}{links}
devices:
  - {{ name: source, driver: {{ generate: {{ every: 100ms, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }}
{device}
streams:
  - {{ name: rows, from: [source], sql: 'SELECT time, n FROM source', to: [ {{ sink: out }}{to} ] }}
sinks:
  - {{ name: out, driver: {{ stdout: {{}} }} }}
{sink}
"
    )
}

/// Waits until the parts beside the broken one have done their work.
fn others_run(gateway: &mut Gateway) {
    gateway.wait_status("the others to deliver", secs(20), |status| {
        (count(status, "sinks", "out", "delivered") >= 5).then_some(())
    });
    assert!(gateway.runs());
}

/// Waits until a part has a state and says why.
fn red(gateway: &mut Gateway, section: &str, name: &str, state: &str, words: &[&str]) {
    gateway.wait_status(&format!("{name} to be {state}"), secs(20), |status| {
        let part = part(status, section, name);
        let said = part["last_error"].as_str().unwrap_or_default();
        (part["state"] == state && words.iter().all(|word| said.contains(word))).then_some(())
    });
}

#[test]
fn a_store_in_use_is_left_alone() {
    let scratch = Scratch::new("locked");
    let config = beside(&scratch, 0, "", "", "");
    let mut gateway = Gateway::start(&scratch, &config);
    others_run(&mut gateway);
    let path = scratch.file("second.yaml", &config);
    let second = run(&["run", path.to_str().expect("a path")], secs(5));
    assert_eq!(second.code, Some(75), "{second:?}");
    let said: Vec<_> = second.stderr.lines().filter(|l| l.starts_with("tidegate: ")).collect();
    let [said] = said[..] else { panic!("not one message: {second:?}") };
    let store = scratch.join("store");
    assert!(said.contains(store.to_str().expect("a path")), "{said}");
    // The first one never noticed.
    assert!(gateway.try_status().is_some());
    assert_eq!(gateway.stop().code, Some(0));
}

#[test]
fn a_busy_port_is_no_reason_to_stop() {
    let scratch = Scratch::new("port");
    let taken = TcpListener::bind(("127.0.0.1", free_port())).expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let mut gateway = Gateway::start(&scratch, &beside(&scratch, port, "", "", ""));
    others_run(&mut gateway);
    let log = gateway.log();
    assert!(log.contains(&format!("cannot listen on 127.0.0.1:{port}")), "{log}");
    // Free again, the page comes by itself.
    drop(taken);
    wait_until("the status page", secs(20), || {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
            return false;
        };
        let answer = talk(&mut stream, "GET /healthz HTTP/1.1\r\nHost: localhost");
        answer.is_ok_and(|(status, _)| status == 200)
    });
    assert_eq!(gateway.stop().code, Some(0));
}

#[test]
fn a_busy_port_is_no_reason_not_to_stop() {
    let scratch = Scratch::new("stays");
    let taken = TcpListener::bind(("127.0.0.1", free_port())).expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let mut gateway = Gateway::start(&scratch, &beside(&scratch, port, "", "", ""));
    others_run(&mut gateway);
    let stopped = gateway.stop();
    assert_eq!(stopped.code, Some(0));
    assert!(stopped.took <= secs(5), "it took {:?}", stopped.took);
}

#[test]
fn an_unreachable_device_is_red_and_the_others_run() {
    let scratch = Scratch::new("device");
    let port = free_port();
    let links =
        format!("links: [ {{ name: bus, bus: {{ tcp: {{ host: 127.0.0.1, port: {port} }} }} }} ]");
    let device = "  - { name: far, driver: { modbus: { link: bus, points: [ { name: a, register: input, address: 0 } ] } } }";
    let mut gateway = Gateway::start(&scratch, &beside(&scratch, 0, &links, device, ""));
    others_run(&mut gateway);
    red(&mut gateway, "links", "bus", "down", &[&port.to_string(), "refused"]);
    red(&mut gateway, "devices", "far", "down", &["refused"]);
    assert_eq!(gateway.stop().code, Some(0));
}

#[test]
fn sinks_that_do_not_work_are_red_and_the_others_run() {
    let scratch = Scratch::new("sink");
    let port = free_port();
    let nowhere = scratch.join("nowhere/out.jsonl");
    for (state, driver, words) in [
        ("down", format!("mqtt: {{ url: \"mqtt://127.0.0.1:{port}\" }}"), "refused"),
        // It may be mounted later, so it is tried again.
        ("down", format!("file: {{ path: {} }}", nowhere.display()), "must exist"),
        (
            "failed",
            "mqtt: { url: \"mqtt://127.0.0.1:1\", username: u, password: { file: /nowhere/secret } }"
                .to_owned(),
            "/nowhere/secret",
        ),
    ] {
        let sink = format!("  - {{ name: broken, driver: {{ {driver} }} }}");
        let mut gateway = Gateway::start(&scratch, &beside(&scratch, 0, "", "", &sink));
        others_run(&mut gateway);
        red(&mut gateway, "sinks", "broken", state, &[words]);
        assert_eq!(gateway.stop().code, Some(0), "{driver}");
    }
}
