//! Each kind of bad input, one case each: the text, and for each problem its code, line, column
//! and a part of its message or hint. A case lists all problems: what only follows from another
//! one is not told.

use crate::stand_in::{checked, problems};

/// Stands before each case; the case itself begins on line 3.
const HEAD: &str = "version: 1\ngateway: { name: g }\n";

/// A device, a stream and a sink that are in order, to be joined to a case.
const SOUND: &str = "
devices:
  - name: waves
    driver: { generate: { points: [ { name: level, value: { constant: 1 } } ] } }
streams:
  - name: out_1
    from: [waves]
    sql: SELECT level FROM waves
    to: [ { sink: out } ]
sinks:
  - name: out
    driver: { stdout: {} }
";

type Expected = (&'static str, u32, u32, &'static str);

fn expect(text: &str, expected: &[Expected]) {
    let found = problems(text);
    let shown = found.human();
    let places: Vec<_> = found
        .iter()
        .map(|p| (p.code.as_str(), p.line, p.column))
        .collect();
    let wanted: Vec<_> = expected.iter().map(|e| (e.0, e.1, e.2)).collect();
    assert_eq!(places, wanted, "\n{text}\n{shown}");
    for (problem, (.., part)) in found.iter().zip(expected) {
        let all = format!(
            "{} {}",
            problem.message,
            problem.hint.clone().unwrap_or_default()
        );
        assert!(all.contains(part), "`{part}` is not in `{all}`\n{text}");
    }
}

fn cases(cases: &[(&str, &[Expected])]) {
    for (case, expected) in cases {
        expect(&format!("{HEAD}{case}"), expected);
    }
}

#[test]
fn a_sound_document_has_no_problem() {
    expect(&format!("{HEAD}{SOUND}"), &[]);
}

#[test]
fn text_that_is_not_yaml() {
    cases(&[
        (
            "store: { path: /x\n",
            &[("E0102", 4, 1, "this is not YAML")],
        ),
        (
            "store: { path: ${X} }\n",
            &[("E0102", 3, 20, "must stand in quotes")],
        ),
        ("store: &a { path: /x }\n", &[("E0104", 3, 11, "an anchor")]),
        ("store: !x { path: /x }\n", &[("E0104", 3, 11, "a tag")]),
        (
            "store: {}\n---\nversion: 1\n",
            &[("E0104", 4, 1, "second document")],
        ),
        ("? [a, b]\n: 1\n", &[("E0106", 3, 3, "cannot be a key")]),
        (
            "web: {}\nstore: {}\nweb: {}\n",
            &[("E0105", 5, 1, "the first one is on line 3")],
        ),
    ]);
    let deep = format!("x: {}{}", "[".repeat(70), "]".repeat(70));
    expect(&deep, &[("E0103", 1, 68, "")]);
}

#[test]
fn bombs_are_refused_before_they_grow() {
    let bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n";
    expect(bomb, &[("E0104", 1, 7, "anchor")]);
    let many = format!("x: [{}]", "1,".repeat(2_000_001));
    let found = problems(&many);
    assert_eq!(found.iter().next().unwrap().code.as_str(), "E0103");
    let large = format!("x: \"{}\"", "y".repeat(17 << 20));
    assert_eq!(
        problems(&large).iter().next().unwrap().code.as_str(),
        "E0103"
    );
}

#[test]
fn misspelt_fields_and_choices() {
    cases(&[
        ("stroe: {}\n", &[("E0201", 3, 1, "did you mean `store`?")]),
        (
            "web: { lisen: x }\n",
            &[("E0201", 3, 8, "did you mean `listen`?")],
        ),
        (
            "web: { zzz: x }\n",
            &[("E0201", 3, 8, "known here: `listen`")],
        ),
        (
            "sinks:\n  - name: a\n    driver: { stdotu: {} }\n",
            &[("E0205", 5, 15, "did you mean `stdout`?")],
        ),
        (
            "links:\n  - name: a\n    bus: { rtu: { port: x } }\n",
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
        (
            "sinks:\n  - name: a\n    driver:\n",
            &[("E0205", 5, 5, "`mqtt`, `file`, `stdout`")],
        ),
    ]);
}

#[test]
fn nothing_is_coerced() {
    cases(&[
        (
            "store: { commit_every: 1 }\n",
            &[("E0203", 3, 24, "such as `1s` or `1ms`")],
        ),
        (
            "store: { commit_every: 1.5s }\n",
            &[("E0204", 3, 24, "is not a duration")],
        ),
        (
            "store: { max_bytes: 64 }\n",
            &[("E0203", 3, 21, "such as `64B` or `64MiB`")],
        ),
        (
            "store: { max_bytes: 64MB }\n",
            &[("E0204", 3, 21, "`64MB` is not a size")],
        ),
        (
            "store: { path: 7 }\n",
            &[("E0203", 3, 16, "write it in quotes: \"7\"")],
        ),
        (
            "store: { path: }\n",
            &[("E0203", 3, 10, "`path` is empty: expected a text")],
        ),
        (
            "limits: { table_queue: \"64\" }\n",
            &[("E0203", 3, 24, "without quotes: 64")],
        ),
        (
            "limits: { table_queue: -1 }\n",
            &[("E0204", 3, 24, "from 0 to 4294967295")],
        ),
        (
            "limits: { table_queue: 1.5 }\n",
            &[("E0203", 3, 24, "found the number 1.5")],
        ),
        (
            "limits: [ 64 ]\n",
            &[("E0203", 3, 9, "expected a mapping, found a list")],
        ),
        (
            "devices: {}\n",
            &[("E0203", 3, 10, "expected a list, found a mapping")],
        ),
        (
            "devices:\n",
            &[("E0203", 3, 1, "`devices` is empty: expected a list")],
        ),
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
    expect(
        "{}",
        &[
            ("E0202", 1, 1, "`version` is missing"),
            ("E0202", 1, 1, "`gateway`"),
        ],
    );
    expect(
        "",
        &[
            ("E0202", 1, 1, "`version`"),
            ("E0202", 1, 1, "What this gateway is called"),
        ],
    );
    expect(
        "- 1\n",
        &[("E0203", 1, 1, "expected a mapping, found a list")],
    );
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
            ("E0202", 8, 58, "`address` is missing"),
            ("E0201", 8, 69, "did you mean `address`?"),
            ("E0303", 11, 22, "there is no table `metres`"),
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
            ("E0202", 2, 10, "`name` is missing"),
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
    for index in 0..300 {
        text.push_str(&format!("unknown_{index}: 1\n"));
    }
    assert_eq!(problems(&text).len(), 100);
}

#[test]
fn names_and_references() {
    let tail = "\nsinks: [ { name: out, driver: { stdout: {} } }, { name: out, driver: { stdout: {} } } ]\n";
    let wave = "driver: { generate: { points: [ { name: v, value: { constant: 1 } } ] } }";
    cases(&[
        (
            &format!(
                "devices:\n  - {{ name: a, {wave} }}\n  - {{ name: a, {wave} }}\nstreams:\n  - {{ name: \
                 a, from: [a, b], sql: SELECT v FROM a, to: [ {{ sink: out }} ] }}{tail}"
            ),
            &[
                ("E0302", 5, 13, "the first one is at t.yaml:4"),
                ("E0302", 7, 13, "called like the table"),
                ("E0303", 7, 26, "there is no table `b`"),
                ("E0302", 8, 57, "stands twice"),
            ],
        ),
        (
            "devices:\n  - name: a\n    driver: { modbus: { link: x, points: [ { name: u, register: input, \
             address: 0 } ] } }\n",
            &[("E0303", 5, 31, "the document has no link yet")],
        ),
        (
            "links: [ { name: l, bus: { tcp: { host: h } } } ]\n",
            &[("W0411", 3, 18, "no device uses the link `l`")],
        ),
    ]);
}

#[test]
fn tables_and_columns() {
    let device = |name: &str, rest: &str, points: &str| {
        format!("  - name: {name}\n{rest}    driver: {{ generate: {{ points: [ {points} ] }} }}\n")
    };
    let v = "{ name: v, value: { constant: 1 } }";
    let n = "{ name: v, value: { counter: {} } }";
    cases(&[
        (
            &format!(
                "devices:\n{}{}",
                device("a", "    table: t\n", v),
                device("b", "    table: t\n", n)
            ),
            &[(
                "E0304",
                8,
                12,
                "`b` has `v` (Int64) where `a` has `v` (Float64)",
            )],
        ),
        (
            &format!(
                "devices:\n{}{}",
                device("a", "", v),
                device(
                    "b",
                    "    table: a\n",
                    &format!("{v}, {{ name: w, value: {{ constant: 1 }} }}")
                )
            ),
            &[("E0304", 7, 12, "`b` has 6 columns, `a` has 5")],
        ),
        (
            &format!(
                "devices:\n{}",
                device("a", "", "{ name: time, value: { constant: 1 } }")
            ),
            &[("E0305", 5, 45, "the table has a column `time` already")],
        ),
        (
            &format!(
                "devices:\n{}",
                device(
                    "a",
                    "    point_quality: true\n",
                    &format!("{v}, {{ name: v_quality, value: {{ constant: 1 }} }}")
                )
            ),
            &[("E0305", 6, 82, "`v_quality`")],
        ),
    ]);
}

#[test]
fn bounds_of_sections() {
    cases(&[
        ("web: { listen: \"10.0.0.7:8080\" }\n", &[("E0407", 3, 16, "SSH tunnel")]),
        ("web: { listen: localhost }\n", &[("E0204", 3, 16, "no IP address with a port")]),
        ("store: { commit_every: 0s }\n", &[("E0406", 3, 24, "`sync: each`")]),
        ("store: { max_bytes: 1KiB }\n", &[("E0408", 3, 21, "8MiB or more")]),
        ("limits: { store_queue: 0 }\n", &[("E0409", 3, 24, "from 1 to 65536")]),
        ("limits: { memory: 1MiB }\n", &[("E0409", 3, 19, "8MiB or more")]),
        (
            &format!("store: {{ max_bytes: 32MiB }}{SOUND}"),
            &[("E0408", 3, 21, "64MiB, is more than the store's 32MiB")],
        ),
        (
            &SOUND.replace("{ stdout: {} }", "{ file: { path: /x/ } }\n    store: { max_bytes: 1B, max_records: 0, max_age: 0s }"),
            &[
                ("E0401", 14, 29, "no file's path"),
                ("E0408", 15, 25, "64KiB or more"),
                ("E0409", 15, 42, "1 or more"),
                ("E0406", 15, 54, "`14d`"),
            ],
        ),
    ]);
    expect(
        "version: 1\ngateway: { name: g, shutdown_grace: 0s }\n",
        &[("E0406", 2, 37, "from 1s to 80s")],
    );
}

#[test]
fn streams() {
    let window =
        |window: &str| SOUND.replace("    to: [", &format!("    window: {window}\n    to: ["));
    cases(&[
        (
            &window("{ tumbling: { size: 0s } }"),
            &[("E0405", 10, 33, "a window of 0s")],
        ),
        (
            &window("{ tumbling: { size: 10s, offset: 10s } }"),
            &[("E0405", 10, 46, "the offset 10s is not less than 10s")],
        ),
        (
            &window("{ tumbling: { size: 10s } }\n    idle_after: 0s"),
            &[("E0406", 11, 17, "silent")],
        ),
        (
            &window("{ tumbling: { size: 10s } }\n    late: { to: [] }"),
            &[("E0412", 11, 17, "names no sink")],
        ),
        (
            &SOUND.replace(
                "    to: [",
                "    late: { to: [ { sink: out } ] }\n    to: [",
            ),
            &[("E0405", 10, 5, "has no window, so no row is late")],
        ),
        (
            &SOUND.replace("to: [ { sink: out } ]", "to: []"),
            &[
                ("W0410", 10, 9, "go nowhere"),
                ("W0411", 12, 11, "no stream sends"),
            ],
        ),
        (
            &SOUND.replace("from: [waves]", "from: []"),
            &[("E0412", 8, 11, "names no table")],
        ),
        (
            &SOUND.replace("from: [waves]", "from: [waves, waves]"),
            &[("E0302", 8, 19, "twice")],
        ),
        (
            &SOUND.replace("from: [waves]", "from: [out_1]"),
            &[("E0303", 8, 12, "yet")],
        ),
    ]);
}

#[test]
fn sql_problems_point_into_the_yaml() {
    let sql = |sql: &str| SOUND.replace("sql: SELECT level FROM waves", sql);
    cases(&[
        (
            &sql("sql: SELEC level FROM waves"),
            &[("E0501", 9, 10, "write SELECT")],
        ),
        (
            &sql("sql: \"SELEC level FROM waves\""),
            &[("E0501", 9, 11, "expected SELECT")],
        ),
        (
            &sql(
                "sql: |\n      WITH x AS (\n        SELEC level FROM waves)\n      SELECT 1 FROM x",
            ),
            &[("E0501", 11, 9, "expected SELECT")],
        ),
        (
            &sql("sql: |\n\n      SELEC level\n      FROM waves"),
            &[("E0501", 11, 7, "expected SELECT")],
        ),
        // Folding has lost the line: the text as a whole is named.
        (
            &sql("sql: >\n      WITH\n      SELEC level FROM waves"),
            &[("E0501", 9, 10, "")],
        ),
    ]);
}

#[test]
fn modbus_devices() {
    let device = |more: &str, points: &str| {
        format!(
            "links: [ {{ name: l, bus: {{ tcp: {{ host: h }} }} }} ]\ndevices:\n  - name: m\n    \
             driver:\n      modbus:\n        link: l\n{more}        points:\n{points}"
        )
    };
    let point = "          - { name: u, register: input, address: 0 }\n";
    let many: String = (0..60)
        .map(|i| {
            format!(
                "          - {{ name: p{i}, register: input, address: {} }}\n",
                i * 200
            )
        })
        .collect();
    cases(&[
        (
            &device(
                "        polls: [ { name: a, every: 1s }, { name: b, every: 60s } ]\n",
                point,
            ),
            &[("E0404", 9, 43, "2 poll groups")],
        ),
        // Field case A2: the last register is legal, a wider value there is refused by its name.
        (
            &device(
                "",
                "          - { name: u, register: holding, address: 65535 }\n",
            ),
            &[],
        ),
        (
            &device(
                "",
                "          - { name: top, register: holding, address: 65535, type: u32 }\n",
            ),
            &[(
                "E0401",
                10,
                54,
                "point `top` at holding 65535 needs 2 registers",
            )],
        ),
        (
            &device(
                "",
                "          - { name: u, register: holding, address: 65536 }\n",
            ),
            &[("E0204", 10, 52, "from 0 to 65535")],
        ),
        // 60 requests of 2 ms each take 120 ms.
        (
            &device("        polls: [ { name: a, every: 100ms } ]\n", &many),
            &[("E0402", 9, 38, "60 requests of a cycle take 120 %")],
        ),
        (
            &device("        polls: [ { name: a, every: 140ms } ]\n", &many),
            &[("W0403", 9, 38, "86 %")],
        ),
        (
            &device("        polls: [ { name: a, every: 150ms } ]\n", &many),
            &[],
        ),
        (
            &device("", &format!("{point}{point}")),
            &[("E0306", 11, 21, "the point `u` stands twice")],
        ),
    ]);
}

#[test]
fn mqtt_and_generate_refuse_by_themselves() {
    let feed = |rest: &str| {
        format!(
            "devices:\n  - name: f\n    driver:\n      mqtt:\n        url: mqtt://b\n{rest}        \
             points: [ {{ name: v, type: f64 }} ]\n"
        )
    };
    cases(&[
        (
            &feed("        topics: [ \"a/#/b\" ]\n"),
            &[("E0401", 8, 19, "a/#/b")],
        ),
        (
            &feed("        topics: [ a ]\n        qos: 2\n"),
            &[("E0401", 9, 14, "")],
        ),
        (
            "devices:\n  - name: f\n    driver: { generate: { rows: 0, points: [ { name: v, value: { \
             sine: { amplitude: 1, period: 0s } } } ] } }\n",
            &[
                ("E0401", 5, 33, "number of rows"),
                ("E0401", 5, 96, "is zero"),
            ],
        ),
    ]);
    let secret = format!(
        "{HEAD}{}",
        feed("        topics: [a]\n").replace("mqtt://b", "mqtt://u:pw@b")
    );
    let shown = problems(&secret).json();
    assert!(shown.contains("E0204") && !shown.contains("pw"), "{shown}");
}

#[test]
fn tests_of_the_document() {
    let test = |input: &str, expect: &str| {
        format!(
            "tests:\n  - name: t\n    stream: out_1\n    input: [ {input} ]\n    expect: {expect}{SOUND}"
        )
    };
    cases(&[
        (
            &test(
                "{ at: 0s, level: 1.5 }, { at: 1s, level: null }",
                "{ rows: [ { level: 1 } ] }",
            ),
            &[],
        ),
        (
            &test("{ level: 1.5 }", "{}"),
            &[("E0202", 6, 14, "`at` is missing")],
        ),
        (
            &test("{ at: 0s, levle: 1.5 }", "{}"),
            &[("E0601", 6, 24, "did you mean `level`?")],
        ),
        (
            &test("{ at: 0s, level: high }", "{}"),
            &[("E0601", 6, 24, "takes a number")],
        ),
        (
            &test("{ at: 0s, level: [1] }", "{}"),
            &[("E0203", 6, 24, "a single value")],
        ),
        (
            &test("{ at: 0s, device: wave }", "{}"),
            &[("E0303", 6, 25, "did you mean `waves`?")],
        ),
        (
            &test("{ at: 0s, table: wave }", "{}"),
            &[("E0303", 6, 24, "does not read `wave`")],
        ),
        (
            &test("{ at: 0s }", "{ rows: [ { levle: 1 } ] }"),
            &[("E0601", 7, 32, "did you mean")],
        ),
        (
            &test("{ at: 0s }", "{}").replace("stream: out_1", "stream: out_2"),
            &[("E0303", 5, 13, "did you mean `out_1`?")],
        ),
    ]);
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
