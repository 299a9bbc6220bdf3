//! A lookup from an SQLite database that Python's `sqlite3` made and goes on writing: with a
//! write-ahead log or a journal, locked, wrong or gone, what SQL joins are the last rows that were good;
//! and the gateway leaves nothing in the database's folder.
//!
//! A gateway that was built without SQLite refuses the configuration, with the way out.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::harness::gateway::{Gateway, head, part};
use crate::harness::{Scratch, python, run, secs};
use crate::lookups_keep_their_last_good_copy::{printed, results, wait_failed};

/// Runs each line of its input as SQL, and says `ok` when it has.
const WRITE: &str = r#"
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for line in sys.stdin:
    database.execute(line).fetchall()
    print("ok", flush=True)
database.close()
"#;

/// A program that has the database open.
struct Writer {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Writer {
    fn start(scratch: &Scratch) -> Self {
        let mut process = Command::new(python())
            .args(["-c", WRITE])
            .arg(scratch.join("plant/plant.db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python");
        let input = process.stdin.take().expect("its input");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        Self { process, input, output }
    }

    fn run(&mut self, sql: &str) {
        writeln!(self.input, "{sql}").expect("it reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it writes");
        assert_eq!(line, "ok\n", "{sql}");
    }

    /// Five limits from `high` on.
    fn limits(&mut self, high: u32) {
        self.run(&format!("UPDATE limits SET high = {high} + k"));
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.process.wait().expect("it ends").success());
    }
}

fn config(scratch: &Scratch, query: &str) -> String {
    let head = head(scratch);
    format!(
        r#"{head}
devices:
  - name: waves
    driver: {{ generate: {{ every: 20ms, points: [ {{ name: k, value: {{ counter: {{ modulo: 5 }} }} }} ] }} }}
lookups:
  - name: limits
    source: {{ sqlite: {{ path: plant/plant.db, query: "{query}" }} }}
    columns: [ {{ name: k, type: i64 }}, {{ name: high, type: f64 }}, {{ name: note, type: string }} ]
    refresh: 1s
streams:
  - name: named
    from: [waves]
    sql: |
      SELECT waves.k AS k, limits.high AS high, limits.note AS note FROM waves JOIN limits ON limits.k = waves.k
    to: [ {{ sink: out }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
"#
    )
}

const QUERY: &str = "SELECT note, high, k FROM limits ORDER BY k";

/// Makes the folder of the database; none where this build has no SQLite, which says so.
fn plant(name: &str) -> Option<Scratch> {
    let scratch = Scratch::new(name);
    std::fs::create_dir(scratch.join("plant")).expect("a folder");
    let path = scratch.file("check.yaml", config(&scratch, QUERY));
    let checked = run(&["check", path.to_str().expect("a path")], secs(20));
    if checked.code == Some(0) {
        return Some(scratch);
    }
    for words in ["E0416", "built without SQLite", "--features sqlite"] {
        assert!(checked.stdout.contains(words), "{checked:?}");
    }
    assert_eq!(checked.code, Some(78), "{checked:?}");
    assert!(std::env::var_os("TIDEGATE_TEST_SQLITE").is_none(), "this build has no SQLite");
    None
}

fn files(scratch: &Scratch) -> Vec<String> {
    let entries = std::fs::read_dir(scratch.join("plant")).expect("its folder");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("a file").file_name();
    let mut files: Vec<_> =
        entries.map(|entry| name(entry).into_string().expect("UTF-8")).collect();
    files.sort();
    files
}

#[test]
fn rows_of_a_database_that_is_written_locked_wrong_and_gone() {
    let Some(scratch) = plant("sqlite") else { return };
    let mut writer = Writer::start(&scratch);
    writer.run("PRAGMA journal_mode = WAL");
    writer.run("CREATE TABLE limits (k INTEGER, high REAL, note TEXT)");
    writer.run(
        "INSERT INTO limits VALUES (0, 100, 'größe'), (1, 101, NULL), (2, 102, ''), (3, 103, 'a'), (4, 104, \
         '''\"')",
    );
    let mut gateway = Gateway::start(&scratch, &config(&scratch, QUERY));
    let mut first = results(&gateway, 0, 100);
    first.sort_by_key(|record| record.int("k"));
    let notes: Vec<_> = first.iter().map(|record| record.body["note"].clone()).collect();
    assert_eq!(
        notes,
        ["größe".into(), serde_json::Value::Null, "".into(), "a".into(), "'\"".into()]
    );
    // Rows that are not committed are none; with a log, their writer holds up nobody.
    writer.run("BEGIN IMMEDIATE");
    writer.limits(900);
    let before = part(&gateway.status(), "lookups", "limits")["loads"].as_u64();
    gateway.wait_status("another load", secs(20), |status| {
        (part(status, "lookups", "limits")["loads"].as_u64() > before).then_some(())
    });
    results(&gateway, printed(&gateway), 100);
    writer.run("ROLLBACK");
    writer.limits(200);
    results(&gateway, 0, 200);
    // One bad row refuses them all, with its number and its column.
    writer.run("UPDATE limits SET high = 'much' WHERE k = 1");
    let lookup =
        wait_failed(&mut gateway, "plant.db: bad rows: row 2: `high` is a number, not `much`");
    assert_eq!(lookup["rows"], 5);
    results(&gateway, printed(&gateway), 200);
    let alarms = gateway.status()["alarms"].to_string();
    assert!(alarms.contains("lookup limits"), "{alarms}");
    writer.limits(300);
    results(&gateway, 0, 300);

    // With a journal in place of the log, whoever writes locks out all others.
    writer.run("PRAGMA busy_timeout = 10000");
    writer.run("PRAGMA journal_mode = DELETE");
    writer.run("BEGIN EXCLUSIVE");
    writer.limits(400);
    let lookup = wait_failed(&mut gateway, "it is locked by somebody");
    assert_eq!(lookup["rows"], 5);
    results(&gateway, printed(&gateway), 300);
    writer.run("COMMIT");
    results(&gateway, 0, 400);

    // Closed, so that the file is all there is, and gone; over a restart too.
    writer.run("PRAGMA journal_mode = WAL");
    writer.limits(500);
    writer.end();
    results(&gateway, 0, 500);
    assert_eq!(files(&scratch), ["plant.db"]);
    std::fs::remove_file(scratch.join("plant/plant.db")).expect("a file");
    wait_failed(&mut gateway, "No such file");
    gateway.kill();
    let mut gateway = Gateway::start(&scratch, &config(&scratch, QUERY));
    let lookup = wait_failed(&mut gateway, "No such file");
    assert_eq!((&lookup["rows"], &lookup["kept"]), (&5.into(), &true.into()));
    results(&gateway, printed(&gateway), 500);
    assert_eq!(gateway.stop().code, Some(0));
    assert_eq!(files(&scratch), Vec::<String>::new());
}

#[test]
fn a_query_that_writes_is_refused() {
    let Some(scratch) = plant("sqlite-write") else { return };
    let mut writer = Writer::start(&scratch);
    writer.run("CREATE TABLE limits (k INTEGER, high REAL, note TEXT)");
    writer.run("INSERT INTO limits VALUES (0, 100, NULL)");
    let wrong = scratch.file("wrong.yaml", config(&scratch, "DELETE FROM limits"));
    let refused = run(&["check", wrong.to_str().expect("a path")], secs(20));
    assert!(refused.stdout.contains("the query is no SELECT"), "{refused:?}");
    // What begins like a SELECT is known by SQLite alone.
    let query = "WITH old AS (SELECT 0 AS k) DELETE FROM limits WHERE k IN old RETURNING *";
    let mut gateway = Gateway::start(&scratch, &config(&scratch, query));
    let lookup = wait_failed(&mut gateway, "the query would write; only a SELECT is run");
    assert_eq!((&lookup["state"], &lookup["rows"]), (&"down".into(), &0.into()));
    gateway.kill();
    writer.run("CREATE TABLE told AS SELECT * FROM limits WHERE 1 / (SELECT count(*) FROM limits)");
    writer.end();
    let bytes = std::fs::read(scratch.join("plant/plant.db")).expect("the database");
    assert!(bytes.windows(4).any(|part| part == b"told"));
    let gateway = Gateway::start(&scratch, &config(&scratch, QUERY));
    crate::harness::wait_until("the row that is there", secs(20), || printed(&gateway) > 0);
}
