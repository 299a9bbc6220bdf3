//! Text that is not YAML, unknown fields, values of the wrong kind: each with its place. What only
//! follows from another problem is not told.

use tidegate_config::{load_and_check, read_sources};

use crate::stand_in::{Fixed, HEAD, Refusing, SOUND, cases, checked, expect, problems, source};

#[test]
fn a_sound_document_has_no_problem() {
    expect(&format!("{HEAD}{SOUND}"), &[]);
}

#[test]
fn text_that_is_not_yaml() {
    cases(&[
        ("store: { path: /x\n", &[("E0102", 3, 8, "this is not YAML")]),
        ("store: { path: ${X} }\n", &[("E0102", 3, 17, "must stand in quotes")]),
        ("store: &a { path: /x }\n", &[("E0104", 3, 11, "an anchor")]),
        ("store: !x { path: /x }\n", &[("E0104", 3, 11, "a tag")]),
        ("store: {}\n---\nversion: 1\n", &[("E0104", 4, 1, "second document")]),
        ("? [a, b]\n: 1\n", &[("E0106", 3, 3, "cannot be a key")]),
        ("web: {}\nstore: {}\nweb: {}\n", &[("E0105", 5, 1, "the first one is on line 3")]),
    ]);
    let deep = format!("x: {}{}", "[".repeat(70), "]".repeat(70));
    expect(&deep, &[("E0103", 1, 68, "")]);
}

#[test]
fn bombs_are_refused_before_they_grow() {
    let bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n";
    expect(bomb, &[("E0104", 1, 7, "anchor")]);
    let large = format!("x: \"{}\"", "y".repeat(17 << 20));
    assert_eq!(problems(&large).iter().next().unwrap().code.as_str(), "E0103");
}

#[test]
fn misspelt_fields_and_choices() {
    cases(&[
        ("stroe: {}\n", &[("E0201", 3, 1, "did you mean `store`?")]),
        ("web: { lisen: x }\n", &[("E0201", 3, 8, "did you mean `listen`?")]),
        ("web: { zzz: x }\n", &[("E0201", 3, 8, "known here: `listen`")]),
        // A text that was cut at its comma.
        (
            "web: { listen: \"127.0.0.1:1\", b FROM m }\n",
            &[("E0201", 3, 31, "a text with a comma needs quotes")],
        ),
        (
            "sinks:\n  - name: a\n    driver: { stdotu: {} }\n",
            &[("E0205", 5, 15, "did you mean `stdout`?")],
        ),
        (
            "links:\n  - name: a\n    bus: { can: { port: x } }\n",
            &[("E0205", 5, 12, "known here: `tcp`")],
        ),
        (
            "sinks:\n  - name: a\n    driver: stdout\n",
            &[("E0206", 5, 13, "write `{ stdout: {} }`")],
        ),
        (
            "sinks:\n  - name: a\n    driver: { stdout: {}, file: { path: x } }\n",
            &[("E0206", 5, 13, "takes one choice, not `stdout`, `file`")],
        ),
        (
            "sinks:\n  - name: a\n    driver: { stdout: {} }\n    store: { when_full: dropoldest }\n",
            &[("E0205", 6, 25, "did you mean `drop_oldest`?")],
        ),
        ("sinks:\n  - name: a\n    driver:\n", &[("E0205", 5, 5, "`mqtt`, `file`, `stdout`")]),
    ]);
}

#[test]
fn nothing_is_coerced() {
    cases(&[
        ("store: { commit_every: 1 }\n", &[("E0203", 3, 24, "such as `1s` or `1ms`")]),
        ("store: { commit_every: 1.5s }\n", &[("E0204", 3, 24, "is not a duration")]),
        ("store: { max_bytes: 64 }\n", &[("E0203", 3, 21, "such as `64B` or `64MiB`")]),
        ("store: { max_bytes: 64MB }\n", &[("E0204", 3, 21, "`64MB` is not a size")]),
        ("store: { path: 7 }\n", &[("E0203", 3, 16, "write it in quotes: \"7\"")]),
        ("store: { path: }\n", &[("E0203", 3, 10, "`path` is empty: expected a text")]),
        ("limits: { table_queue: \"64\" }\n", &[("E0203", 3, 24, "without quotes: 64")]),
        ("limits: { table_queue: -1 }\n", &[("E0204", 3, 24, "from 0 to 4294967295")]),
        ("limits: { table_queue: 1.5 }\n", &[("E0203", 3, 24, "found the number 1.5")]),
        ("limits: [ 64 ]\n", &[("E0203", 3, 9, "expected a mapping, found a list")]),
        ("devices: {}\n", &[("E0203", 3, 10, "expected a list, found a mapping")]),
        ("devices:\n", &[("E0203", 3, 1, "`devices` is empty: expected a list")]),
        (
            "devices:\n  - name: a\n    point_quality: yes\n    driver: { generate: { points: [] } }\n",
            &[("E0203", 5, 20, "write `true` or `false`, without quotes")],
        ),
        (
            "devices:\n  - name: Main Meter\n    driver: { generate: { points: [] } }\n",
            &[("E0204", 4, 11, "`Main Meter` is not a name")],
        ),
    ]);
}

#[test]
fn missing_fields_are_told_together() {
    expect("{}", &[("E0202", 1, 1, "`version` is missing"), ("E0202", 1, 1, "`gateway`")]);
    expect("", &[("E0202", 1, 1, "`version`"), ("E0202", 1, 1, "What this gateway is called")]);
    expect("- 1\n", &[("E0203", 1, 1, "expected a mapping, found a list")]);
    cases(&[(
        "streams:\n  - name: s\n    window: { tumbling: {} }\n",
        &[
            ("E0202", 4, 5, "`from` is missing"),
            ("E0202", 4, 5, "`sql` is missing"),
            ("E0202", 5, 25, "`size` is missing"),
        ],
    )]);
}

#[test]
fn what_follows_from_a_problem_is_not_told() {
    // The device is lost, so neither its link is unused, nor its table unknown, nor its SQL wrong.
    let case = "
links: [ { name: l, bus: { tcp: { host: h } } } ]
devices:
  - name: meter
    table: meters
    driver: { modbus: { link: l, unit_id: 300, points: [ { name: u, adress: 1 } ] } }
streams:
  - { name: s, from: [meters], sql: SELEC u FROM meters, to: [ { sink: out } ] }
  - { name: t, from: [metres], sql: SELECT 1, to: [ { sink: uot } ] }
sinks: [ { name: out, driver: { stdout: {} } } ]
";
    cases(&[(
        case,
        &[
            ("E0204", 8, 43, "300 is not a unit id"),
            ("E0202", 8, 58, "`register` is missing"),
            ("E0201", 8, 69, "did you mean `address`?"),
            ("E0303", 11, 23, "there is no table `metres`"),
            ("E0303", 11, 61, "did you mean `out`?"),
        ],
    )]);
    // Nor is what stands behind a lost item told with a wrong index.
    let case = "
sinks:
  - { name: A, driver: { stdout: {} } }
  - { name: b, driver: { file: { path: x/ } } }
";
    let found = problems(&format!("{HEAD}{case}"));
    let paths: Vec<_> = found.iter().map(|p| p.path.as_str()).collect();
    assert_eq!(paths, ["sinks[0].name", "sinks[1].driver.file.path"]);
}

#[test]
fn form_and_meaning_are_told_at_once() {
    let case =
        format!("web: {{ listen: \"0.0.0.0:80\", tls: x }}\nlimits: {{ memory: 1 }}\n{SOUND}");
    expect(
        &format!("version: 2\ngateway: {{ nam: g }}\n{case}"),
        &[
            ("E0301", 1, 10, "version 2 is not known"),
            ("E0201", 2, 12, "did you mean `name`?"),
            ("E0407", 3, 16, "no login"),
            ("E0201", 3, 30, "known here: `listen`"),
            ("E0203", 4, 19, "such as `1B` or `1MiB`"),
        ],
    );
}

#[test]
fn at_most_a_hundred_problems() {
    let mut text = HEAD.to_owned();
    text.extend((0..300).map(|index| format!("unknown_{index}: 1\n")));
    assert_eq!(problems(&text).len(), 100);
}

#[test]
fn torn_files_give_problems_inside_of_them_and_never_a_panic() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../board-configs/examples");
    let path = std::path::Path::new(folder).join("press-shop.yaml");
    let whole = read_sources(&path).unwrap().remove(0).text;
    let lines: Vec<_> = whole.lines().collect();
    let mut torn: Vec<String> = Vec::new();
    for gap in 0..lines.len() {
        torn.push([&lines[..gap], &lines[gap + 1..]].concat().join("\n"));
        torn.push([&lines[..gap], &["  x: [1"], &lines[gap..]].concat().join("\n"));
    }
    torn.extend((0..whole.len()).step_by(41).filter_map(|end| whole.get(..end)).map(str::to_owned));
    for text in torn {
        let found = load_and_check(&[source("t.yaml", &text)], &Fixed::default(), &Refusing);
        // What is torn off before the first stream is a document too.
        let Err(found) = found else { continue };
        let last = u32::try_from(text.lines().count()).unwrap() + 1;
        for problem in &found {
            assert!((1..=last).contains(&problem.line), "{problem:?}\n{text}");
        }
    }
}

#[test]
fn a_person_sees_the_line_and_a_caret() {
    let shown = problems(&format!("{HEAD}stroe: {{}}\n")).human();
    let expected = "t.yaml:3:1: error E0201: there is no field `stroe` here
 3 | stroe: {}
   | ^
   = hint: did you mean `store`?
";
    assert_eq!(shown, expected);
    assert!(checked(&format!("{HEAD}stroe: {{}}\n")).is_err());
}

#[test]
fn a_password_in_clear_is_not_repeated() {
    let sink = |field: &str| {
        format!("{HEAD}sinks:\n  - name: a\n    driver: {{ mqtt: {{ topic: t, {field} }} }}\n")
    };
    for field in [
        "url: \"mqtt://b\", password: hunter2",
        "url: \"mqtt://b\", password: { value: hunter2 }",
        "url: \"mqtt://u:hunter2@b\"",
        "url: \"mqtt://b\", qos: x, password: hunter2",
    ] {
        let problems = problems(&sink(field));
        assert!(problems.has_errors(), "{field}");
        for shown in [problems.human(), problems.json(), problems.github()] {
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}
