//! Lookups as their section says: what a text means, what is refused, and what survives.

use std::path::PathBuf;
use std::time::Duration;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float64Type, Int64Type};
use tidegate_config::{Environment, SourceFile, load as load_document};

use super::*;
use crate::clock::ManualClock;

struct Nothing;

impl Environment for Nothing {
    fn var(&self, _: &str) -> Option<String> {
        None
    }
    fn read(&self, _: &str) -> Result<String, String> {
        Err("is not there".to_owned())
    }
}

/// A section whose source is `source`, with two more settings in `rest`.
pub(super) fn section(source: &str, rest: &str) -> LookupSection {
    let text = format!(
        "version: 1\ngateway: {{ name: g }}\nlookups:\n  - name: limits\n    source: {{ {source} }}\n    \
         columns:\n      - {{ name: device, type: string }}\n      - {{ name: high, type: f64 }}\n      \
         - {{ name: n, type: i64, path: meta.n }}\n      - {{ name: u, type: u64 }}\n      - {{ \
         name: on, type: bool }}\n{rest}"
    );
    let loaded = load_document(&[SourceFile { name: "t".into(), text }], &Nothing);
    loaded.unwrap_or_else(|problems| panic!("{problems}")).document.lookups.remove(0)
}

fn csv() -> LookupSection {
    section("csv: { path: limits.csv }", "")
}

fn json() -> LookupSection {
    section("json: { path: limits.json }", "")
}

fn parse(section: &LookupSection, text: &[u8]) -> Result<RecordBatch, String> {
    super::parse(section, section.source.format().unwrap(), text)
}

/// Each row as text, null as `-`.
pub(super) fn shown(rows: &RecordBatch) -> Vec<String> {
    let cell = |column: usize, row: usize| {
        let array = rows.column(column);
        if array.is_null(row) {
            return "-".to_owned();
        }
        arrow::util::display::array_value_to_string(array, row).unwrap()
    };
    (0..rows.num_rows())
        .map(|row| (0..rows.num_columns()).map(|c| cell(c, row)).collect::<Vec<_>>().join("|"))
        .collect()
}

#[test]
fn values_are_of_the_declared_types_and_columns_are_found_by_name() {
    let text = "\u{feff}on,high,device,meta.n,more,u\r\ntrue,1.5,\"a, b\",-7,x,18446744073709551615\r\n\
                ,,\"\",,,\r\nFALSE,1e3,\"say \"\"hi\"\"\",9223372036854775807,\"\n\",0\n";
    let rows = parse(&csv(), text.as_bytes()).unwrap();
    assert_eq!(
        shown(&rows),
        [
            "a, b|1.5|-7|18446744073709551615|true",
            "|-|-|-|-",
            "say \"hi\"|1000.0|9223372036854775807|0|false",
        ]
    );
    assert_eq!(rows.column(1).as_primitive::<Float64Type>().null_count(), 1);
    assert_eq!(rows.column(2).as_primitive::<Int64Type>().value(2), i64::MAX);
    let array = "[{\"device\": \"a\", \"high\": 2, \"meta\": {\"n\": 3}, \"u\": 4, \"on\": true},\n\
                 {\"device\": null, \"meta\": {}, \"other\": [1]}]";
    let lines =
        "{\"device\": \"a\", \"high\": 2, \"meta\": {\"n\": 3}, \"u\": 4, \"on\": true}\n\n{}\n";
    for text in [array, lines] {
        let rows = parse(&json(), text.as_bytes()).unwrap();
        assert_eq!(shown(&rows), ["a|2.0|3|4|true", "-|-|-|-|-"]);
    }
    let empty = parse(&csv(), b"device,high,meta.n,u,on\n").unwrap();
    assert_eq!((empty.num_rows(), empty.num_columns()), (0, 5));
    assert_eq!(parse(&json(), b"[]").unwrap().num_rows(), 0);
}

#[test]
fn bad_rows_refuse_the_load_and_are_told_with_their_line() {
    let head = "device,high,meta.n,u,on";
    let csv = |body: &str| parse(&csv(), format!("{head}\n{body}").as_bytes());
    let json = |text: &str| parse(&json(), text.as_bytes());
    let cases = [
        (csv("a,x,1,1,true"), "line 2: `high` is a number, not `x`"),
        (csv("a,1,1.5,1,true"), "line 2: `n` is a whole number of 64 bits, not `1.5`"),
        (csv("\"a\nb\",1,1,1,true\nc,1,1,-1,true"), "line 4: `u` is a whole number without sign"),
        (csv("a,NaN,1,1,true"), "line 2: `high` is a number, not `NaN`"),
        (csv("a,1,1,1,yes"), "line 2: `on` is `true` or `false`, not `yes`"),
        (csv("a,1,1,1"), "line 2: 4 fields, where line 1 has 5"),
        (csv("a,1,1,1,\"true"), "line 2: a quote that is not closed"),
        (
            csv("a,x,,,\nb,y,,,\nc,z,,,\nd,1,,,\ne,w,,,"),
            "line 4: `high` is a number, not `z`, and 1 more",
        ),
        (parse(&super::tests::csv(), b""), "it is empty"),
        (parse(&super::tests::csv(), b"device,high\n"), "line 1 names no column `meta.n`"),
        (parse(&super::tests::csv(), &[0xff]), "not UTF-8 at byte 0"),
        (json("[{\"device\": 1}]"), "row 1: `device` is a text, not 1"),
        (
            json("[{\"high\": \"1\"}, {\"on\": 0}]"),
            "row 1: `high` is a number, not `1`; row 2: `on`",
        ),
        (json("{}\n{\"u\": -1}"), "line 2: `u` is a whole number without sign, not -1"),
        (json("{}\n[1]\n"), "line 2: it is no object"),
        (json("[{}"), "EOF"),
        (json("{\"device\": \"a\""), "line 1"),
    ];
    for (result, part) in cases {
        let error = result.unwrap_err();
        assert!(error.contains(part), "`{part}` is not in `{error}`");
    }
}

#[test]
fn more_rows_or_bytes_than_asked_for_are_refused() {
    let few = section("csv: { path: x }", "    max_rows: 2\n    max_bytes: 64KiB\n");
    let head = "device,high,meta.n,u,on\n";
    assert_eq!(parse(&few, format!("{head}a,,,,\nb,,,,").as_bytes()).unwrap().num_rows(), 2);
    let error = parse(&few, format!("{head}a,,,,\nb,,,,\nc,,,,").as_bytes()).unwrap_err();
    assert!(error.contains("more than 2 rows"), "{error}");
    let folder = Folder::new("bytes");
    folder.write("big", &"x".repeat(100));
    assert_eq!(read_file(&folder.0.join("big"), 100).unwrap().len(), 100);
    let error = read_file(&folder.0.join("big"), 99).unwrap_err();
    assert!(error.contains("more than 99 bytes"), "{error}");
}

pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("tidegate-lookup-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    #[expect(clippy::disallowed_methods, reason = "a source that somebody else writes")]
    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    /// A lookup of the file `limits.csv` that is loaded each minute, as the gateway starts it.
    fn start(&self) -> Started {
        let path = self.0.join("limits.csv").display().to_string();
        let section = section(&format!("csv: {{ path: \"{path}\" }}"), "    refresh: 1m\n");
        let lookup = Arc::new(Lookup::new("limits", section.schema()));
        let (loads, stop) = (Arc::new(Loads::default()), CancellationToken::new());
        let mut part = LookupPart {
            section,
            lookup: lookup.clone(),
            copy: lookup_copy(&self.0.join("store"), "limits"),
            clock: Arc::new(ManualClock::at(1_000)),
            health: Arc::default(),
            loads: loads.clone(),
            stop: stop.clone(),
        };
        let task = tokio::spawn(async move { part.run().await });
        Started { lookup, loads, stop, task }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

struct Started {
    lookup: Arc<Lookup>,
    loads: Arc<Loads>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Exit>,
}

impl Started {
    async fn until(&self, what: &str, is: impl Fn(&Loaded) -> bool) -> Loaded {
        for _ in 0..10_000 {
            let loaded = self.loads.get();
            if is(&loaded) {
                return loaded;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{what}: {:?}", self.loads.get());
    }

    fn rows(&self) -> Vec<String> {
        self.lookup.rows().map(|rows| shown(&rows)).unwrap_or_default()
    }

    async fn end(self) {
        self.stop.cancel();
        assert!(matches!(self.task.await, Ok(Exit::Done)));
    }
}

const HEAD: &str = "device,high,meta.n,u,on\n";

#[tokio::test(start_paused = true)]
async fn a_failed_load_keeps_the_last_good_rows_and_so_does_a_restart() {
    let folder = Folder::new("part");
    folder.write("limits.csv", &format!("{HEAD}a,1,,,\n"));
    let first = folder.start();
    first.until("a first load", |l| l.loads == 1).await;
    assert_eq!(first.rows(), ["a|1.0|-|-|-"]);
    assert!(!first.loads.get().kept);
    // A bad row, then no file: what was good stays.
    folder.write("limits.csv", &format!("{HEAD}a,2,,,\nb,x,,,\n"));
    let failed = first.until("a failed load", |l| l.failures > 0).await;
    assert!(failed.failed.unwrap().contains("line 3"));
    std::fs::remove_file(folder.0.join("limits.csv")).unwrap();
    first
        .until("a missing file", |l| l.failed.as_ref().is_some_and(|e| e.contains("No such")))
        .await;
    assert_eq!(first.rows(), ["a|1.0|-|-|-"]);
    first.end().await;

    let second = folder.start();
    second.lookup.loaded().await;
    assert_eq!(second.rows(), ["a|1.0|-|-|-"]);
    let kept = second.until("a failed load", |l| l.failures > 0).await;
    assert_eq!((kept.at, kept.kept, kept.loads), (Some(1_000), true, 0));
    // The source is back: within the pause of a failure, not of a success.
    folder.write("limits.csv", &format!("{HEAD}c,3,,,\n"));
    let again = second.until("the next load", |l| l.loads == 1).await;
    assert_eq!(
        (second.rows(), again.failed, again.kept),
        (vec!["c|3.0|-|-|-".into()], None, false)
    );
    second.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_damaged_copy_is_no_copy_and_equal_rows_are_not_written_again() {
    let folder = Folder::new("copy");
    folder.write("limits.csv", &format!("{HEAD}a,1,,,\n"));
    let first = folder.start();
    first.until("three loads", |l| l.loads == 3).await;
    first.end().await;
    let copy = lookup_copy(&folder.0.join("store"), "limits");
    let bytes = std::fs::read(&copy).unwrap();
    let before = std::fs::metadata(&copy).unwrap().modified().unwrap();
    let second = folder.start();
    second.until("two loads", |l| l.loads == 2).await;
    second.end().await;
    assert_eq!(std::fs::metadata(&copy).unwrap().modified().unwrap(), before);
    // Half of it, as a bad sector gives it: as if there were none.
    let damaged = [&bytes[..bytes.len() / 2], &[0; 64]].concat();
    Staged::write(&copy, &damaged, 0o600).unwrap().publish().unwrap();
    std::fs::remove_file(folder.0.join("limits.csv")).unwrap();
    let third = folder.start();
    let failed = third.until("a failed load", |l| l.failures > 0).await;
    assert_eq!((failed.at, third.lookup.rows()), (None, None));
    third.end().await;
}
