//! Lookups from a file that Python's `csv` wrote and from Python's HTTP server: what SQL joins are the
//! last rows that were good, when the server is away, sends nonsense, or points elsewhere, and after
//! a restart without network; over TLS only where the server shows who it is.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::gateway::{Gateway, head, part};
use crate::harness::records::{Record, of_stream};
use crate::harness::{Program, Scratch, command, free_port, python, run, secs, wait_for};

/// Writes what a spreadsheet may: quotes, commas, line breaks, letters beyond ASCII, nothing.
const WRITE_CSV: &str = r#"
import csv, sys
with open(sys.argv[1], "w", newline="", encoding="utf-8") as file:
    rows = csv.writer(file)
    rows.writerow(["text", "unused", "k"])
    for k, text in enumerate(['plain', 'a, b', 'say "hi"', 'two\nlines', 'größe']):
        rows.writerow([text, None, k])
"#;

/// Serves the files of its folder; `/moved` points at one, and TLS is spoken with a certificate.
const SERVE: &str = r#"
import http.server, ssl, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/limits.json")
            self.end_headers()
        else:
            super().do_GET()
port, folder, pem = int(sys.argv[1]), sys.argv[2], sys.argv[3]
handler = lambda *args, **kwargs: Handler(*args, directory=folder, **kwargs)
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
if pem:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"#;

/// A server's certificate, which vouches for itself.
const CERTIFICATE: &str = "[req]
distinguished_name = name
x509_extensions = server
prompt = no
[name]
CN = plant
[server]
subjectAltName = DNS:localhost
basicConstraints = critical, CA:FALSE
";

fn serve(scratch: &Scratch, port: u16, pem: &str) -> Program {
    let mut server = command(python());
    server.arg("-c").arg(SERVE).arg(port.to_string()).arg(scratch.join("www")).arg(pem);
    server.stdin(Stdio::null()).stdout(Stdio::null());
    let server = Program::start("the server", &mut server, &scratch.join("server.log"));
    wait_for("the server", secs(10), || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    server
}

fn publish(scratch: &Scratch, limits: &str) {
    // Whole at once, as whoever serves a file should.
    let beside = scratch.file("www/.limits", limits);
    std::fs::rename(beside, scratch.join("www/limits.json")).expect("the same folder");
}

fn limits(high: u32) -> String {
    let row = |k: u32| format!("{{\"k\": {k}, \"high\": {}}}", high + k);
    format!("[{}]", (0..5).map(row).collect::<Vec<_>>().join(", "))
}

fn config(scratch: &Scratch, url: &str, rest: &str) -> String {
    let head = head(scratch);
    format!(
        r#"{head}
devices:
  - name: waves
    driver: {{ generate: {{ every: 20ms, points: [ {{ name: k, value: {{ counter: {{ modulo: 5 }} }} }} ] }} }}
lookups:
  - name: codes
    source: {{ csv: {{ path: codes.csv }} }}
    columns: [ {{ name: k, type: i64 }}, {{ name: text, type: string }} ]
  - name: limits
    source: {{ http: {{ url: "{url}", timeout: 2s{rest} }} }}
    columns: [ {{ name: k, type: i64 }}, {{ name: high, type: f64 }} ]
    refresh: 1s
streams:
  - name: named
    from: [waves]
    sql: |
      SELECT waves.k AS k, codes.text AS text, limits.high AS high FROM waves
      LEFT JOIN codes ON codes.k = waves.k JOIN limits ON limits.k = waves.k
    to: [ {{ sink: out }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
"#
    )
}

/// Five results with limits from `high` on that came after the first `before` ones.
pub(crate) fn results(gateway: &Gateway, before: usize, high: u32) -> Vec<Record> {
    let what = format!("results with limits from {high} on");
    wait_for(&what, secs(20), || {
        let all = of_stream(&gateway.printed(), "named");
        let of =
            |r: &&Record| (r.number("high") - (f64::from(high) + r.int("k") as f64)).abs() < 1e-9;
        let new: Vec<_> = all.iter().skip(before).filter(of).take(5).cloned().collect();
        (new.len() == 5).then_some(new)
    })
}

pub(crate) fn printed(gateway: &Gateway) -> usize {
    of_stream(&gateway.printed(), "named").len()
}

pub(crate) fn wait_failed(gateway: &mut Gateway, words: &str) -> Value {
    gateway.wait_status(&format!("a load that fails: {words}"), secs(20), |status| {
        let lookup = part(status, "lookups", "limits");
        let failed = lookup["last_error"].as_str().is_some_and(|error| error.contains(words));
        failed.then(|| lookup.clone())
    })
}

#[test]
fn a_server_that_is_away_changes_nothing_and_a_restart_neither() {
    let scratch = Scratch::new("lookup");
    std::fs::create_dir(scratch.join("www")).expect("a folder");
    let mut write = Command::new(python());
    let written = write.args(["-c", WRITE_CSV]).arg(scratch.join("codes.csv")).status();
    assert!(written.expect("Python").success());
    publish(&scratch, &limits(100));
    let port = free_port();
    let config = config(&scratch, &format!("http://127.0.0.1:{port}/limits.json"), "");

    // No server, no copy: the rows wait in the log, and none is joined with what is not there.
    let mut gateway = Gateway::start(&scratch, &config);
    let lookup = wait_failed(&mut gateway, "no connection");
    assert_eq!((&lookup["state"], &lookup["rows"]), (&"down".into(), &0.into()));
    assert_eq!(printed(&gateway), 0);
    let mut server = serve(&scratch, port, "");
    let mut texts = results(&gateway, 0, 100);
    texts.sort_by_key(|record| record.int("k"));
    let texts: Vec<_> = texts.iter().map(|record| record.text_of("text")).collect();
    assert_eq!(texts, ["plain", "a, b", "say \"hi\"", "two\nlines", "größe"]);
    let ids: Vec<_> =
        of_stream(&gateway.printed(), "named").iter().map(|r| r.id_parts().3).collect();
    assert_eq!(ids[0], 1, "the first row is the first result");

    // Other rows, then nonsense, then none: the last good ones stay.
    publish(&scratch, &limits(200));
    results(&gateway, 0, 200);
    publish(&scratch, "[{\"k\": 1, \"high\": \"much\"}]");
    wait_failed(&mut gateway, "row 1: `high` is a number, not `much`");
    results(&gateway, printed(&gateway), 200);
    server.kill();
    let lookup = wait_failed(&mut gateway, "no connection");
    assert_eq!((&lookup["rows"], &lookup["kept"]), (&5.into(), &false.into()));
    let alarms = gateway.status()["alarms"].to_string();
    assert!(alarms.contains("lookup limits"), "{alarms}");
    gateway.kill();

    // A start without network.
    let mut gateway = Gateway::start(&scratch, &config);
    results(&gateway, printed(&gateway), 200);
    let lookup = wait_failed(&mut gateway, "no connection");
    assert_eq!((&lookup["rows"], &lookup["kept"]), (&5.into(), &true.into()));
    publish(&scratch, &limits(300));
    let _server = serve(&scratch, port, "");
    results(&gateway, 0, 300);
    assert_eq!(gateway.stop().code, Some(0));
}

#[test]
fn an_answer_that_points_elsewhere_is_not_followed_and_a_large_one_not_read() {
    let scratch = Scratch::new("lookup-bad");
    std::fs::create_dir(scratch.join("www")).expect("a folder");
    scratch.file("codes.csv", "k,text\n");
    publish(&scratch, &limits(100));
    scratch.file("www/large.json", "[]".to_owned() + &" ".repeat(9 << 20));
    let port = free_port();
    let _server = serve(&scratch, port, "");
    for (path, words) in [
        ("moved", "answered 302"),
        ("nothing", "answered 404"),
        ("large.json", "more than 8388608"),
    ] {
        let config = config(&scratch, &format!("http://127.0.0.1:{port}/{path}"), "");
        let mut gateway = Gateway::start(&scratch, &config);
        wait_failed(&mut gateway, words);
        gateway.kill();
    }
}

#[test]
fn tls_asks_the_server_who_it_is() {
    let scratch = Scratch::new("lookup-tls");
    std::fs::create_dir(scratch.join("www")).expect("a folder");
    scratch.file("codes.csv", "k,text\n");
    publish(&scratch, &limits(100));
    let pem = |name: &str| {
        let path = scratch.join(name);
        let settings = scratch.file("openssl.cnf", CERTIFICATE);
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-config"])
            .arg(settings)
            .arg("-keyout")
            .arg(path.with_extension("key"))
            .arg("-out")
            .arg(path.with_extension("crt"))
            .stderr(Stdio::null())
            .status();
        assert!(made.expect("openssl").success());
        let both = ["key", "crt"].map(|part| std::fs::read(path.with_extension(part)).expect(part));
        scratch.file(name, both.concat())
    };
    let (ours, other) = (pem("ours"), pem("other"));
    let port = free_port();
    let _server = serve(&scratch, port, ours.to_str().expect("a path"));
    let vouched = |by: &Path, host: &str| {
        let rest = format!(", ca_file: {}", by.with_extension("crt").display());
        config(&scratch, &format!("https://{host}:{port}/limits.json"), &rest)
    };
    let mut gateway = Gateway::start(&scratch, &vouched(&other, "localhost"));
    wait_failed(&mut gateway, "invalid peer certificate: BadSignature");
    gateway.kill();
    let mut gateway = Gateway::start(&scratch, &vouched(&ours, "127.0.0.1"));
    wait_failed(&mut gateway, "TLS with 127.0.0.1");
    gateway.kill();
    let gateway = Gateway::start(&scratch, &vouched(&ours, "localhost"));
    results(&gateway, 0, 100);
}

#[test]
fn lookups_are_checked_and_explained_without_their_source() {
    let scratch = Scratch::new("lookup-check");
    let text = config(&scratch, "http://127.0.0.1:1/x", "");
    let path = scratch.file("tidegate.yaml", &text);
    let path = path.to_str().expect("a path");
    let checked = run(&["check", path], secs(20));
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let explained = run(&["explain", "named", "--config", path], secs(20));
    assert!(explained.stdout.contains("looks at codes, limits"), "{explained:?}");
    let wrong = scratch.file("wrong.yaml", text.replace("codes.text AS", "codes.tex AS"));
    let refused = run(&["check", wrong.to_str().expect("a path")], secs(20));
    assert!(refused.stdout.contains("codes.tex"), "{refused:?}");
}
