//! Queries to databases that SQLite itself wrote: each way in which one may be found, and what is
//! refused. What Python writes while the gateway runs is among the promises.

use super::super::tests::{Folder, section, shown};
use super::*;

const QUERY: &str = r#"SELECT device, high, n AS "meta.n", u, "on" FROM limits ORDER BY rowid"#;
const TABLE: &str = r#"CREATE TABLE limits (device, high, n, u, "on");
    INSERT INTO limits VALUES ('a', 1.5, -7, 5, TRUE), (NULL, NULL, NULL, NULL, NULL),
        ('größe', 2, 9223372036854775807, 0, FALSE);"#;
const ROWS: [&str; 3] = ["a|1.5|-7|5|true", "-|-|-|-|-", "größe|2.0|9223372036854775807|0|false"];

/// A writer of a database. The bound of memory is one for the process, so it does nothing beside a
/// load that comes up to it.
struct Writer(Option<Connection>);

impl Writer {
    fn open(path: &Path, sql: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = Self(Some(Connection::open(path).unwrap()));
        drop(turn);
        writer.run(sql);
        writer
    }

    fn run(&self, sql: &str) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.as_ref().unwrap().execute_batch(sql).unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        self.0 = None;
    }
}

fn read_within(
    path: &Path,
    query: &str,
    rest: &str,
    time: Duration,
    ended: CancellationToken,
) -> Result<Vec<String>, String> {
    let section = section("csv: { path: x }", rest);
    let source = SqliteSource { path: path.display().to_string(), query: query.to_owned() };
    read(&section, &source, time, ended).map(|rows| shown(&rows))
}

fn read_all(path: &Path, query: &str, rest: &str) -> Result<Vec<String>, String> {
    read_within(path, query, rest, QUERY_TIME, CancellationToken::new())
}

/// The files of a folder, in order.
fn files(folder: &Folder) -> Vec<String> {
    let entries = std::fs::read_dir(&folder.0).unwrap();
    let mut files: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    files
}

/// Copies files as they are, as a backup of a running machine or a killed writer leaves them.
fn copy(from: &Folder, to: &Folder, names: &[&str]) {
    for name in names {
        std::fs::copy(from.0.join(name), to.0.join(name)).unwrap();
    }
}

#[test]
fn values_are_of_the_declared_types_and_columns_are_found_by_name() {
    let folder = Folder::new("sqlite-values");
    // Signs that mean something in an address.
    let name = "50% a?b#c.db";
    drop(Writer::open(&folder.0.join(name), TABLE));
    let path = folder.0.join(name);
    assert_eq!(read_all(&path, QUERY, "").unwrap(), ROWS);
    let turned = r#"SELECT "on", u, 'more', n AS "meta.n", high, device FROM limits LIMIT 1"#;
    assert_eq!(read_all(&path, turned, "").unwrap(), ["a|1.5|-7|5|true"]);
    let none = QUERY.replace("ORDER", "WHERE device = 'x' ORDER");
    assert_eq!(read_all(&path, &none, "").unwrap(), Vec::<String>::new());
    assert_eq!(files(&folder), [name]);
}

#[test]
fn what_is_wrong_is_told_and_nothing_is_written() {
    let folder = Folder::new("sqlite-wrong");
    drop(Writer::open(&folder.0.join("a.db"), TABLE));
    let path = folder.0.join("a.db");
    let bytes = std::fs::read(&path).unwrap();
    let all = QUERY.strip_suffix(" ORDER BY rowid").unwrap();
    let second = |values: &str| format!("{all} UNION ALL VALUES ({values})");
    let cases = [
        (second("'b', 'x', 1, 1, 1"), "row 4: `high` is a number, not `x`"),
        (second("'b', 9e999, 1, 1, 1"), "row 4: `high` is a number, not inf"),
        (second("'b', 1, 3.0, 1, 1"), "row 4: `n` is a whole number of 64 bits, not 3.0"),
        (second("'b', 1, 1, -1, 1"), "row 4: `u` is a whole number without sign, not -1"),
        (second("'b', 1, 1, 1, 2"), "row 4: `on` is `true` or `false`, not 2"),
        (second("5, 1, 1, 1, 1"), "row 4: `device` is a text, not 5"),
        (second("x'61', 1, 1, 1, 1"), "row 4: `device` is a text, not a blob"),
        (second("CAST(x'ff' AS TEXT), 1, 1, 1, 1"), "`device` is a text, not a text that is not"),
        ("SELECT * FROM limits".to_owned(), "no column `meta.n`, but `device`, `high`, `n`, `u`"),
        (QUERY.replace(" FROM", ", u FROM"), "two columns `u`"),
        (QUERY.replace("limits", "other"), "no such table: other"),
        ("SELEC 1".to_owned(), "near \"SELEC\": syntax error"),
        (format!("{QUERY}; SELECT 1"), "more than one statement"),
        ("DELETE FROM limits".to_owned(), "the query would write"),
        ("WITH x AS (SELECT 1) DELETE FROM limits".to_owned(), "the query would write"),
        ("ATTACH 'other.db' AS other".to_owned(), "no column `device`"),
    ];
    for (query, part) in cases {
        let error = read_all(&path, &query, "").unwrap_err();
        assert!(error.contains(part), "`{part}` is not in `{error}`");
    }
    let other = folder.0.join("no.db");
    assert!(read_all(&other, QUERY, "").unwrap_err().contains("No such file"));
    assert!(read_all(&folder.0, QUERY, "").unwrap_err().contains("it is no file"));
    std::fs::copy(std::env::current_exe().unwrap(), &other).unwrap();
    assert!(read_all(&other, QUERY, "").unwrap_err().contains("not a database"));
    std::fs::remove_file(other).unwrap();
    assert_eq!((files(&folder), std::fs::read(&path).unwrap()), (vec!["a.db".to_owned()], bytes));
}

#[test]
fn rows_bytes_memory_and_time_have_bounds() {
    let folder = Folder::new("sqlite-bounds");
    drop(Writer::open(&folder.0.join("a.db"), TABLE));
    let path = folder.0.join("a.db");
    let endless = |device: &str, more: &str| {
        format!(
            "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t) SELECT {device} AS \
             device, 1 AS high, 1 AS \"meta.n\", 1 AS u, 1 AS \"on\" FROM t {more}"
        )
    };
    let refused = |query: &str, rest: &str, part: &str| {
        let error = read_all(&path, query, rest).unwrap_err();
        assert!(error.contains(part), "`{part}` is not in `{error}`");
    };
    refused(&endless("'a'", ""), "    max_rows: 2\n", "more than 2 rows (`max_rows`)");
    // A text of 8 bytes and four numbers are 40 bytes a row: 1,638 rows are 65,520.
    let few = "    max_bytes: 64KiB\n";
    let limit = |rows: u32| endless("'12345678'", &format!("LIMIT {rows}"));
    assert_eq!(read_all(&path, &limit(1_638), few).unwrap().len(), 1_638);
    refused(&limit(1_639), few, "more than 65536 bytes (`max_bytes`)");
    // One value that would be made before it could be counted.
    refused(&endless("hex(zeroblob(500000000))", ""), few, "more than 65536 bytes");
    // Sorting 500,000 texts of 200 bytes needs 100 MB, of which nothing goes to a file.
    let inner = endless("hex(zeroblob(100))", "LIMIT 500000");
    refused(&format!("SELECT * FROM ({inner}) ORDER BY device"), "", "more than 64 MiB of memory");

    let count = endless("count(*)", "");
    let (time, never) = (Duration::from_millis(50), CancellationToken::new());
    let error = read_within(&path, &count, "", time, never).unwrap_err();
    assert_eq!(error, "the query takes more than 0.05 s");
    // Nobody waits for it any more: long before its time.
    let ended = CancellationToken::new();
    ended.cancel();
    let error = read_within(&path, &count, "", Duration::from_hours(24), ended).unwrap_err();
    assert!(error.contains("86400"), "{error}");
}

#[test]
fn a_write_ahead_log_is_read_in_each_state_and_left_as_it_is() {
    let (folder, killed) = (Folder::new("sqlite-wal"), Folder::new("sqlite-killed"));
    let path = folder.0.join("a.db");
    let all = ["a.db", "a.db-shm", "a.db-wal"];
    // At work, with rows in the log alone, and one that is not committed.
    let at_work = Writer::open(&path, &format!("PRAGMA journal_mode = WAL; {TABLE}"));
    at_work.run("BEGIN IMMEDIATE; DELETE FROM limits");
    assert_eq!(Way::of(&path), Ok(Way::Index));
    assert_eq!(read_all(&path, QUERY, "").unwrap(), ROWS);
    assert_eq!(files(&folder), all);
    at_work.run("ROLLBACK");
    // The link lies elsewhere, the log beside the file.
    std::os::unix::fs::symlink(&path, killed.0.join("link.db")).unwrap();
    assert_eq!(read_all(&killed.0.join("link.db"), QUERY, "").unwrap(), ROWS);
    std::fs::remove_file(killed.0.join("link.db")).unwrap();
    // Killed: nobody holds the index.
    copy(&folder, &killed, &all);
    let dead = killed.0.join("a.db");
    assert_eq!(read_all(&dead, QUERY, "").unwrap(), ROWS);
    assert_eq!(files(&killed), all);
    std::fs::remove_file(killed.0.join("a.db-shm")).unwrap();
    assert!(read_all(&dead, QUERY, "").unwrap_err().contains("has to open it once"));
    assert_eq!(files(&killed), ["a.db", "a.db-wal"]);

    at_work.run("PRAGMA wal_checkpoint(TRUNCATE)");
    assert_eq!(read_all(&path, QUERY, "").unwrap(), ROWS);
    // Closed: one file, and it stays one.
    drop(at_work);
    let closed = Way::of(&path).unwrap();
    assert!(matches!(closed, Way::Whole(..)), "{closed:?}");
    assert_eq!(read_all(&path, QUERY, "").unwrap(), ROWS);
    assert_eq!(files(&folder), ["a.db"]);
    // Whoever wrote it meanwhile is seen, whether at work or gone again.
    let again = Writer::open(&path, "CREATE TABLE other AS SELECT hex(zeroblob(9999))");
    assert_eq!(Way::of(&path), Ok(Way::Index));
    drop(again);
    assert_ne!(Way::of(&path), Ok(closed));
}

#[test]
fn a_transaction_that_was_cut_off_is_not_read() {
    let (folder, killed) = (Folder::new("sqlite-hot"), Folder::new("sqlite-hot-killed"));
    // More than its cache holds, so that a part of it is in the file already.
    let _at_work = Writer::open(
        &folder.0.join("a.db"),
        &format!(
            "{TABLE} PRAGMA cache_size = 2; BEGIN; UPDATE limits SET device = 'wrong'; CREATE TABLE \
             other (a); WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t LIMIT 100) \
             INSERT INTO other SELECT zeroblob(4000) FROM t"
        ),
    );
    copy(&folder, &killed, &["a.db", "a.db-journal"]);
    let error = read_all(&killed.0.join("a.db"), QUERY, "").unwrap_err();
    assert!(error.contains("its writer has to open it once"), "{error}");
    assert_eq!(files(&killed), ["a.db", "a.db-journal"]);
    // Its writer does.
    drop(Writer::open(&killed.0.join("a.db"), "SELECT * FROM limits"));
    assert_eq!(read_all(&killed.0.join("a.db"), QUERY, "").unwrap(), ROWS);
}
