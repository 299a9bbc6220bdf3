//! Documents in good form that cannot be meant: each problem with its place.

use tidegate_config::{Code, load_and_check};

use crate::stand_in::{Fixed, HEAD, Refusing, SOUND, cases, expect, problems, source};

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
            &[("E0304", 8, 12, "`b` has `v` (Int64) where `a` has `v` (Float64)")],
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
            &format!("devices:\n{}", device("a", "", "{ name: time, value: { constant: 1 } }")),
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
        ("limits: { sql_time: 0s }\n", &[("E0406", 3, 21, "up to 10m")]),
        ("limits: { sql_time: 1h }\n", &[("E0406", 3, 21, "is no use")]),
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
    cases(&[
        ("store: { daily_writes: 0B }\n", &[("E0409", 3, 24, "`2GiB`")]),
        ("store: { ring: 100B }\n", &[("E0408", 3, 16, "whole KiB from 64KiB")]),
        ("store: { ring: 65537B }\n", &[("E0408", 3, 16, "not whole KiB")]),
        (
            "store: { ring: 9MiB, max_bytes: 16MiB }\n",
            &[("E0408", 3, 16, "a ring of 9MiB does not go with a store of 16MiB")],
        ),
        // By its other word a setting has its place too.
        (
            &SOUND.replace("{ stdout: {} }", "{ stdout: {} }\n    store: { ttl: 0s }"),
            &[("E0406", 15, 19, "each record is dropped at once")],
        ),
        (
            &SOUND.replace("{ stdout: {} }", "{ stdout: {} }\n    store: { ttl: 1d, max_age: 2d }"),
            &[("E0204", 15, 12, "duplicate field `max_age`")],
        ),
    ]);
    expect(
        "version: 1\ngateway: { name: g, shutdown_grace: 0s }\n",
        &[("E0406", 2, 37, "from 1s to 80s")],
    );
    expect(
        "version: 1\ngateway: { name: g, wait_for_clock: 25h }\n",
        &[("E0406", 2, 37, "up to 1d, or 0s not to wait")],
    );
}

#[test]
fn replay() {
    let sink = |driver: &str, replay: &str| {
        SOUND.replace("{ stdout: {} }", &format!("{driver}\n    replay: {replay}"))
    };
    let lines = |replay: &str| sink("{ stdout: {} }", replay);
    let mqtt = |replay: &str| sink("{ mqtt: { url: \"mqtt://b\" } }", replay);
    let bare = "{ mqtt: { url: \"mqtt://b\", encode: { json: { envelope: none } } } }";
    cases(&[
        (&mqtt("{ rate: 0/s }"), &[("E0204", 15, 21, "leave it out, or write 1 or more")]),
        (&mqtt("{ rate: 500 }"), &[("E0203", 15, 21, "500/s")]),
        (&mqtt("{ share: 0 }"), &[("E0414", 15, 22, "a share of 0 is not above 0 and below 1")]),
        (&mqtt("{ share: 1.0 }"), &[("E0414", 15, 22, "such as 0.5")]),
        (
            &mqtt("{ share: 0.5, order: newest }"),
            &[("E0414", 15, 22, "live records have all that they need")],
        ),
        (&mqtt("{ topic: \"a/#\" }"), &[("E0414", 15, 22, "the topic `a/#`")]),
        (&mqtt("{ mark: yes }"), &[("E0205", 15, 21, "`none`, `replayed`")]),
        (&sink(bare, "{ mark: replayed }"), &[("E0414", 15, 21, "`envelope: meta`")]),
        (&lines("{ order: newest }"), &[("E0414", 15, 22, "a `stdout` sink writes lines")]),
        (&lines("{ share: 0.5 }"), &[("E0414", 15, 22, "order is all they have")]),
        (&lines("{ topic: late }"), &[("E0414", 15, 22, "has no topics")]),
        (&lines("{ rate: 30/m, mark: replayed }"), &[]),
        // A share needs no rate: what the far side takes is shared.
        (&mqtt("{ share: 0.25, topic: \"late/{stream}\", mark: replayed }"), &[]),
        (&mqtt("{ rate: 500/s, order: newest }"), &[]),
    ]);
}

#[test]
fn kinds_of_windows() {
    // The window stands on line 11, from column 13 on.
    let window =
        |window: &str| SOUND.replace("    to: [", &format!("    window: {window}\n    to: ["));
    let two = |kind: &str| {
        let more = "  - { name: zeal, driver: { generate: { points: [ { name: level, value: \
                    { constant: 1 } } ] } } }\nstreams:";
        window(kind).replace("streams:", more).replace("from: [waves]", "from: [waves, zeal]")
    };
    cases(&[
        (&window("{ hopping: { size: 1h, step: 10s } }"), &[]),
        (&window("{ hopping: { size: 10s, step: 3s, offset: 2s } }"), &[]),
        (&window("{ hopping: { size: 1d, step: 1s } }"), &[]),
        (
            &window("{ hopping: { size: 1h, step: 1ms } }"),
            &[("E0405", 11, 42, "in 3600000 windows")],
        ),
        (&window("{ hopping: { size: 0s, step: 1s } }"), &[("E0405", 11, 32, "a window of 0s")]),
        (&window("{ hopping: { size: 1s, step: 0s } }"), &[("E0405", 11, 42, "leads nowhere")]),
        (&window("{ hopping: { size: 1s, step: 2s } }"), &[("E0405", 11, 42, "are in none")]),
        (
            &window("{ hopping: { size: 9s, step: 2s, offset: 2s } }"),
            &[("E0405", 11, 54, "the offset 2s is not less than 2s")],
        ),
        (&window("{ cumulative: { size: 1d, step: 1m } }"), &[]),
        (
            &window("{ cumulative: { size: 1m, step: 7s } }"),
            &[("E0405", 11, 45, "1m is not a multiple of 7s")],
        ),
        (&window("{ sliding: { size: 10s } }"), &[]),
        (&window("{ sliding: { size: 0s } }"), &[("E0405", 11, 32, "holds its row alone")]),
        (&window("{ session: { gap: 5m, by: [ device ] } }"), &[]),
        (&window("{ session: { gap: 0s } }"), &[("E0405", 11, 31, "a gap of 0s")]),
        (
            &window("{ session: { gap: 5m, length_max: 1m } }"),
            &[("E0405", 11, 47, "no window of 1m lasts until a gap of 5m")],
        ),
        (&window("{ session: { gap: 5m, length_max: 0s } }"), &[("E0405", 11, 47, "at most 0s")]),
        (
            &window("{ session: { gap: 5m, by: [ device, devise ] } }"),
            &[("E0303", 11, 49, "did you mean `device`?")],
        ),
        (&window("{ count: { rows: 10, step: 3 } }"), &[]),
        (&window("{ count: { rows: 0 } }"), &[("E0405", 11, 30, "a window of 0 rows")]),
        (
            &window("{ count: { rows: 3, step: 4 } }"),
            &[("E0405", 11, 39, "a step of 4 with windows of 3 rows")],
        ),
        (&two("{ count: { rows: 3 } }"), &[("E0405", 12, 15, "are over one table")]),
        (&two("{ session: { gap: 1s, by: [ device ] } }"), &[]),
        (&window("{ state: { begin: level > 80, end: level < 70 } }"), &[]),
        (
            &window("{ state: { begin: level > 80, end: lever < 70 } }"),
            &[("E0501", 11, 48, "there is no column lever")],
        ),
        (
            &window("{ state: { begin: a > 80, end: level < 70, length_max: 0s } }"),
            &[("E0501", 11, 31, "there is no column a"), ("E0405", 11, 68, "at most 0s")],
        ),
    ]);
}

/// A row of 56 bytes each second (time, two short texts, number, value), for 30 days: 138.4 MiB.
#[test]
fn windows_whose_rows_do_not_fit() {
    let window = |sql: &str, size: &str| {
        let sql = format!("{sql}\n    window: {{ {size} }}");
        SOUND.replace("SELECT level FROM waves", &sql)
    };
    let median = "SELECT level AS median FROM waves";
    cases(&[
        (&window("SELECT level FROM waves", "tumbling: { size: 30d }"), &[]),
        (&window(median, "tumbling: { size: 1h }"), &[]),
        (
            &window(median, "tumbling: { size: 30d }"),
            &[("E0405", 11, 5, "about 139 MiB at the rates of its devices, more than the 64MiB")],
        ),
        (
            &window(median, "hopping: { size: 30d, step: 1h }"),
            &[("E0405", 11, 5, "because median() needs all rows")],
        ),
        (&window(median, "session: { gap: 30d }"), &[]),
        (&window(median, "count: { rows: 2000000 }"), &[("E0405", 11, 5, "about 107 MiB")]),
        // What is folded in order waits for as long as rows may be late.
        (&window("SELECT level AS rate FROM waves", "tumbling: { size: 30d }"), &[]),
        (
            &window(
                "SELECT level AS rate FROM waves\n    allowed_lateness: 30d",
                "tumbling: { size: 60d }",
            ),
            &[("E0405", 11, 23, "about 139 MiB at the rates of its devices, more than the 64MiB")],
        ),
    ]);
}

#[test]
fn workers_of_streams() {
    let workers = |rest: &str| SOUND.replace("    to: [", &format!("    {rest}\n    to: ["));
    cases(&[
        (&workers("workers: 0"), &[("E0409", 11, 14, "from 1 to 16")]),
        (
            &workers("workers: 2\n    window: { tumbling: { size: 1s } }"),
            &[("E0405", 11, 14, "without a window")],
        ),
    ]);
}

#[test]
fn programs_of_streams() {
    let process =
        |process: &str| SOUND.replace("    to: [", &format!("    process: {process}\n    to: ["));
    let column = "columns: [ { name: a, type: f64 } ]";
    cases(&[
        (
            &process(&format!("{{ socket: x.sock, {column} }}")),
            &[("E0204", 11, 24, "a path from the root")],
        ),
        (
            &process(&format!("{{ socket: /x.sock, timeout: 0s, {column} }}")),
            &[("E0406", 11, 42, "up to 10m")],
        ),
        (&process("{ socket: /x.sock, columns: [] }"), &[("E0412", 11, 42, "names no column")]),
        (
            &process(
                "{ socket: /x.sock, columns: [ { name: a, type: f64 }, { name: a, type: i64 } ] }",
            ),
            &[("E0306", 11, 76, "two columns are called `a`")],
        ),
        (
            &process("{ socket: /x.sock, columns: [ { name: a, type: float } ] }"),
            &[("E0205", 11, 61, "f64")],
        ),
    ]);
}

#[test]
fn streams() {
    let window =
        |window: &str| SOUND.replace("    to: [", &format!("    window: {window}\n    to: ["));
    cases(&[
        (&window("{ tumbling: { size: 0s } }"), &[("E0405", 11, 33, "a window of 0s")]),
        (
            &window("{ tumbling: { size: 10s, offset: 10s } }"),
            &[("E0405", 11, 46, "the offset 10s is not less than 10s")],
        ),
        (
            &window("{ tumbling: { size: 10s } }\n    idle_after: 0s"),
            &[("E0406", 12, 17, "silent")],
        ),
        (
            &window("{ tumbling: { size: 10s } }\n    late: { to: [] }"),
            &[("E0412", 12, 17, "names no sink")],
        ),
        (
            &SOUND.replace("    to: [", "    late: { to: [ { sink: out } ] }\n    to: ["),
            &[("E0405", 11, 5, "has no window, so no row is late")],
        ),
        (
            &SOUND.replace("to: [ { sink: out } ]", "to: []"),
            &[("W0410", 11, 9, "go nowhere"), ("W0411", 13, 11, "no stream sends")],
        ),
        (&SOUND.replace("from: [waves]", "from: []"), &[("E0412", 9, 11, "names no table")]),
        (&SOUND.replace("from: [waves]", "from: [waves, waves]"), &[("E0302", 9, 19, "twice")]),
        (&SOUND.replace("from: [waves]", "from: [out_1]"), &[("E0307", 9, 12, "circle")]),
    ]);
}

#[test]
fn sql_problems_point_into_the_yaml() {
    let sql = |sql: &str| SOUND.replace("sql: SELECT level FROM waves", sql);
    cases(&[
        (&sql("sql: SELEC level FROM waves"), &[("E0501", 10, 10, "write SELECT")]),
        (&sql("sql: \"SELEC level FROM waves\""), &[("E0501", 10, 11, "expected SELECT")]),
        (
            &sql(
                "sql: |\n      WITH x AS (\n        SELEC level FROM waves)\n      SELECT 1 FROM x",
            ),
            &[("E0501", 12, 9, "expected SELECT")],
        ),
        (
            &sql("sql: |\n\n      SELEC level\n      FROM waves"),
            &[("E0501", 12, 7, "expected SELECT")],
        ),
        // Folding has lost the line: the text as a whole is named.
        (&sql("sql: >\n      WITH\n      SELEC level FROM waves"), &[("E0501", 10, 5, "")]),
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
    let mut many = String::new();
    many.extend((0..60).map(|i| {
        let address = i * 200;
        format!("          - {{ name: p{i}, register: input, address: {address} }}\n")
    }));
    cases(&[
        (
            &device("        polls: [ { name: a, every: 1s }, { name: b, every: 60s } ]\n", point),
            &[("E0404", 9, 16, "no point is in the poll group `b`")],
        ),
        // Field case A2: the last register is legal, a wider value there is refused by its name.
        (&device("", "          - { name: u, register: holding, address: 65535 }\n"), &[]),
        (
            &device(
                "",
                "          - { name: top, register: holding, address: 65535, type: u32 }\n",
            ),
            &[("E0401", 10, 54, "point `top` at holding 65535 needs 2 registers")],
        ),
        (
            &device("", "          - { name: u, register: holding, address: 65536 }\n"),
            &[("E0204", 10, 52, "from 0 to 65535")],
        ),
        // Field case A3: a value that is wider than the registers given to it.
        (
            &device(
                "",
                "          - { name: u, register: holding, address: 10, type: u64, length: 2 }\n",
            ),
            &[("E0401", 10, 75, "`u`")],
        ),
        // 60 requests of 2 ms each take 120 ms.
        (
            &device("        polls: [ { name: a, every: 100ms } ]\n", &many),
            &[("E0402", 9, 36, "60 requests of a cycle take 120 %")],
        ),
        (
            &device("        polls: [ { name: a, every: 140ms } ]\n", &many),
            &[("W0403", 9, 36, "86 %")],
        ),
        (&device("        polls: [ { name: a, every: 150ms } ]\n", &many), &[]),
        (
            &device("", &format!("{point}{point}")),
            &[("E0306", 11, 21, "the point `u` stands twice")],
        ),
    ]);
}

#[test]
fn serial_lines() {
    let line = |link: &str, more: &str| {
        format!(
            "links: [ {{ name: l, bus: {link} }} ]\ndevices:\n  - name: m\n    driver:\n      \
             modbus:\n        link: l\n{more}        points:\n          - {{ name: u, register: \
             input, address: 0, type: string, length: 125 }}\n"
        )
    };
    let rtu = "{ rtu: { port: /dev/ttyS1 } }";
    let scale = "  - name: s\n    driver: { serial: { port: /dev/ttyS1, pattern: \"(?<v>.)\", points: \
                 [ { name: v, type: f64 } ] } }\n";
    cases(&[
        (&line(rtu, ""), &[]),
        (&line("{ rtu: { port: COM3 } }", ""), &[("E0401", 3, 41, "no device file")]),
        (&line("{ rtu: { port: /dev/ttyS1, baud: 9601 } }", ""), &[("E0401", 3, 59, "9600")]),
        (&line("{ tcp: { host: \"\" } }", ""), &[("E0401", 3, 41, "`host` is empty")]),
        // Nobody answers to 0 on a serial line; over TCP it is a device without units.
        (&line(rtu, "        unit_id: 0\n"), &[("E0401", 9, 18, "1 to 247")]),
        (&line("{ tcp: { host: h } }", "        unit_id: 0\n"), &[]),
        (
            &line("{ tcp: { host: h, framing: rtu } }", "        unit_id: 255\n"),
            &[("E0401", 9, 18, "1 to 247")],
        ),
        // 255 characters of 11 bits at 2,400 bits a second take 1,169 ms.
        (
            &line("{ rtu: { port: /dev/ttyS1, baud: 2400 } }", "        timeout: 1s\n"),
            &[("E0402", 7, 7, ""), ("E0401", 9, 18, "takes 1168 ms")],
        ),
        (&format!("{}{scale}", line(rtu, "")), &[("E0413", 12, 31, "opens this port too")]),
    ]);
}

/// Field case A15: each poll group has its own table, which is one that streams can read.
#[test]
fn a15_poll_groups_have_their_own_tables() {
    let text = |from: &str, column: &str| {
        format!(
            "links: [ {{ name: l, bus: {{ tcp: {{ host: h }} }} }} ]\ndevices:\n  - name: m\n    \
             driver:\n      modbus:\n        link: l\n        polls: [ {{ name: fast, every: 1s }}, \
             {{ name: slow, every: 60s }} ]\n        points:\n          - {{ name: a, register: \
             input, address: 0 }}\n          - {{ name: b, register: input, address: 1, poll: slow \
             }}\nstreams: [ {{ name: s, from: [{from}], sql: SELECT {column} FROM {from}, to: [ {{ \
             sink: o }} ] }} ]\nsinks: [ {{ name: o, driver: {{ stdout: {{}} }} }} ]\ntests: [ {{ \
             name: t, stream: s, input: [ {{ at: 0s, {column}: 1 }} ], expect: {{ rows: [] }} }} ]\n"
        )
    };
    cases(&[
        (&text("m", "a"), &[]),
        (&text("m_slow", "b"), &[]),
        (&text("m_fast", "a"), &[("E0303", 13, 30, "there is no table `m_fast`")]),
        (&text("m", "b"), &[("E0601", 15, 51, "there is no column `b`")]),
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
        (&feed("        topics: [ \"a/#/b\" ]\n"), &[("E0401", 8, 17, "a/#/b")]),
        (&feed("        topics: [ a ]\n        qos: 2\n"), &[("E0401", 9, 14, "")]),
        (
            "devices:\n  - name: f\n    driver: { generate: { rows: 0, points: [ { name: v, value: { \
             sine: { amplitude: 1, period: 0s } } } ] } }\n",
            &[("E0401", 5, 33, "number of rows"), ("E0401", 5, 96, "is zero")],
        ),
    ]);
    let secret =
        format!("{HEAD}{}", feed("        topics: [a]\n").replace("mqtt://b", "mqtt://u:pw@b"));
    let shown = problems(&secret).json();
    assert!(shown.contains("E0204") && !shown.contains("pw"), "{shown}");
}

#[test]
fn what_only_one_part_can_have() {
    let wave = "{ name: v, value: { constant: 1 } }";
    let sinks = "
sinks:
  - { name: a, driver: { file: { path: /x.jsonl } } }
  - { name: b, driver: { file: { path: /./x.jsonl } } }
  - { name: cloud, driver: { mqtt: { url: \"mqtt://b\" } } }
  - { name: d, driver: { mqtt: { url: \"mqtt://b:1883\", client_id: tidegate-g-cloud } } }
  - { name: e, driver: { mqtt: { url: \"mqtt://b:1884\", client_id: tidegate-g-cloud } } }
streams:
  - name: s
    from: [w]
    sql: SELECT v FROM w
    to: [ { sink: a }, { sink: b }, { sink: cloud }, { sink: d }, { sink: e } ]
";
    cases(&[(
        &format!(
            "devices:\n  - {{ name: w, driver: {{ generate: {{ points: [ {wave} ] }} }} }}{sinks}"
        ),
        &[
            ("E0413", 7, 40, "the sink `a` writes this file too"),
            ("E0413", 9, 67, "the sink `cloud` has the same client id"),
        ],
    )]);
}

#[test]
fn the_stores_files_are_for_the_store_alone() {
    let sink = "
store: { path: /data/tidegate/ }
sinks:
  - { name: a, driver: { file: { path: /data/./tidegate/store.redb } } }
  - { name: b, driver: { file: { path: /data/tidegate/results.jsonl } } }
devices:
  - { name: w, driver: { generate: { points: [ { name: v, value: { constant: 1 } } ] } } }
streams:
  - { name: s, from: [w], sql: SELECT v FROM w, to: [ { sink: a }, { sink: b } ] }
";
    cases(&[(sink, &[("E0413", 6, 40, "a file of its own")])]);
}

#[test]
fn names_of_points_are_told_once() {
    let feed = |points: &str| {
        format!(
            "devices:\n  - name: f\n    driver:\n      mqtt:\n        url: mqtt://b\n        topics: [a]\n        \
             points: [ {points} ]\n"
        )
    };
    cases(&[
        (
            &feed("{ name: topic, type: string }"),
            &[("E0305", 9, 27, "the table has a column `topic` already")],
        ),
        (
            &feed("{ name: a, type: f64 }, { name: a, type: f64 }"),
            &[("E0306", 9, 51, "the point `a` stands twice")],
        ),
        (
            "devices:\n  - name: f\n    driver: { generate: { points: [ { name: a, value: { constant: \
             1 } }, { name: a, value: { constant: 1 } } ] } }\n",
            &[("E0306", 5, 82, "the point `a` stands twice")],
        ),
    ]);
}

#[test]
fn streams_that_read_streams() {
    let tail = "sinks: [ { name: out, driver: { stdout: {} } } ]\n";
    let device = "devices:\n  - { name: m, driver: { generate: { points: [ { name: v, value: { constant: 1 } } \
                  ] } } }\nstreams:\n";
    let stream = |name: &str, from: &str, window: bool, sql: &str, to: &str| {
        let window = if window { "window: { tumbling: { size: 10s } }, " } else { "" };
        format!("  - {{ name: {name}, from: [{from}], {window}sql: \"{sql}\"{to} }}\n")
    };
    let to = ", to: [ { sink: out } ]";
    let case = |streams: &[String]| format!("{device}{}{tail}", streams.concat());
    let a = |to: &str| stream("a", "m", true, "SELECT v FROM m", to);
    cases(&[
        // In any order, and without a sink of its own.
        (&case(&[stream("b", "a", true, "SELECT v FROM a", to), a("")]), &[]),
        (
            &case(&[a("")]),
            &[("W0410", 6, 5, "let another stream read it"), ("W0411", 7, 18, "no stream sends")],
        ),
        // The columns of the one are known to the other, and its tests.
        (
            &format!(
                "{}tests:\n  - {{ name: t, stream: b, input: [ {{ at: 1s, device: any, v: 1.5 }}, {{ at: 1s, \
                 w: 1 }} ], expect: {{ late: 0 }} }}\n",
                case(&[a(""), stream("b", "a", true, "SELECT v FROM a", to)])
            ),
            &[("E0601", 10, 79, "no column `w`")],
        ),
        (
            &case(&[
                stream("a", "c", false, "SELECT v FROM c", to),
                stream("b", "a", false, "SELECT v FROM a", to),
                stream("c", "b", false, "SELECT v FROM b", to),
                stream("d", "d", false, "SELECT v FROM d", to),
            ]),
            &[
                ("E0307", 6, 23, "`a` reads `c` reads `b` reads `a`"),
                ("E0307", 9, 23, "`d` reads `d`"),
            ],
        ),
        (
            &case(&[
                stream("a", "m", false, "SELECT v FROM m", ""),
                stream("b", "a", true, "SELECT v FROM a", to),
            ]),
            &[("E0308", 7, 23, "add `time` to its SELECT")],
        ),
        (
            &case(&[stream("b", "m", true, "SELECT v FROM m JOIN latest('n')", to)]),
            &[("E0303", 6, 91, "there is no table, stream or device `n`")],
        ),
    ]);
}

#[test]
fn lookups() {
    let lookup = |name: &str, rest: &str| {
        format!("lookups:\n  - {{ name: {name}, source: {{ csv: {{ path: a.csv }} }}, {rest} }}\n")
    };
    let column = "columns: [ { name: device, type: string } ]";
    cases(&[
        (&format!("{SOUND}{}", lookup("limits", column)), &[]),
        (
            &format!("{SOUND}{}", lookup("waves", column)),
            &[("E0302", 16, 13, "called like the table `waves`")],
        ),
        (
            &format!("{SOUND}{}", lookup("out_1", column)),
            &[("E0302", 16, 13, "called like the stream `out_1`")],
        ),
        (
            &format!("{SOUND}{}", lookup("limits", "columns: []")),
            &[("E0412", 16, 64, "has no column")],
        ),
        (
            &format!(
                "{SOUND}{}",
                lookup("l", &format!("{column}, max_rows: 0, max_bytes: 1GiB, refresh: 10ms"))
            ),
            &[
                ("E0409", 16, 105, "from 1 to"),
                ("E0409", 16, 119, "up to 64MiB"),
                ("E0406", 16, 134, "1s or more"),
            ],
        ),
        (
            "lookups:\n  - { name: l, source: { http: { url: \"ftp://a/b\" } }, columns: [ { name: a, type: \
             f64 } ] }\n",
            &[("E0204", 4, 39, "is not an HTTP address")],
        ),
    ]);
}

#[test]
fn lookups_from_sqlite() {
    let lookup = |path: &str, query: &str, name: &str| {
        format!(
            "{HEAD}{SOUND}lookups:\n  - name: limits\n    source: {{ sqlite: {{ path: \"{path}\", query: \"{query}\" \
             }} }}\n    columns: [ {{ name: device, type: string, path: \"{name}\" }} ]\n"
        )
    };
    let sound = lookup("plant.db", "-- all\\nSELECT device FROM limits", "a..b");
    expect(&sound, &[]);
    let refused = load_and_check(&[source("t.yaml", &sound)], &Fixed::default(), &Refusing);
    let refused = refused.unwrap_err();
    let told = refused.iter().find(|problem| problem.code == Code::NotBuilt).unwrap();
    assert_eq!((told.line, told.column), (17, 15));
    assert!(told.hint.as_ref().is_some_and(|hint| hint.contains("--features sqlite")));
    expect(
        &lookup("plant/", "DELETE FROM limits", ""),
        &[
            ("E0415", 17, 31, "no file's path"),
            ("E0415", 17, 48, "SELECT device, high FROM limits"),
            ("E0415", 18, 52, "empty key"),
        ],
    );
}
