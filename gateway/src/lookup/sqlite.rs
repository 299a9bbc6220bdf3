//! Rows of a query to an SQLite database that belongs to somebody else.
//!
//! Promise: the rows are of one state of the database, whoever writes it meanwhile, and nothing is
//! written to it, beside it or to a temporary file. A query is bounded in time, memory, rows and
//! bytes. It does not know when it is asked again. Sources: sqlite.org, "Write-Ahead Logging"
//! (read-only databases), "Uniform Resource Identifiers" (`readonly_shm`, `immutable`) and "How To
//! Corrupt An SQLite Database File", 2.2 (locks that go with another handle of the file).

#[cfg(test)]
mod tests;

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use arrow::array::RecordBatch;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error, ErrorCode, OpenFlags, Row, Statement};
use tidegate_config::{LookupSection, SqliteSource};
use tidegate_drivers::south::mqtt::FieldType;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::blocking;
use super::columns::{Columns, Value};

/// How long a lock of somebody else is waited for.
const BUSY: Duration = Duration::from_secs(2);
/// How long a query may take, rows and all.
const QUERY_TIME: Duration = Duration::from_secs(30);
/// Steps of SQLite's machine between two looks at the time: some 0.1 ms.
const STEPS: i32 = 10_000;
/// Shortest bound of a value: the text of the query and of the schema must pass through it.
const LENGTH_MIN: usize = 64 << 10;
/// Read-only in each way that SQLite has. Sorting stays in memory, within 64 MiB for all databases;
/// what a schema of somebody else calls has no side effects.
const SETTINGS: &str = "PRAGMA query_only = ON; PRAGMA trusted_schema = OFF; \
    PRAGMA temp_store = MEMORY; PRAGMA hard_heap_limit = 67108864;";

/// One load at a time: closing any handle of a file gives up all locks that this process has on it,
/// and the bound of memory is one for all.
static TURN: Mutex<()> = Mutex::new(());

/// Loads all rows. Cancel safe: the query ends soon after.
pub(super) async fn load(
    section: &LookupSection,
    source: &SqliteSource,
) -> Result<RecordBatch, String> {
    let (section, source) = (section.clone(), source.clone());
    let ended = CancellationToken::new();
    let _guard = ended.clone().drop_guard();
    let read = move || {
        read(&section, &source, QUERY_TIME, ended)
            .map_err(|error| format!("{}: {error}", source.path))
    };
    blocking(read).await
}

/// How a database is read without leaving a trace.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    /// With locks on the file: it has a rollback journal.
    Locks,
    /// It has a write-ahead log, and somebody is at work or was killed: by the log's index, which is
    /// not written.
    Index,
    /// It has a write-ahead log that is empty, because it was closed: the file is all there is. As
    /// nobody can be locked out, length and time of the file say afterwards whether it was written.
    Whole(u64, Option<SystemTime>),
}

impl Way {
    fn of(path: &Path) -> Result<Self, String> {
        let words = |error: std::io::Error| error.to_string();
        let file = std::fs::metadata(path).map_err(words)?;
        if !file.is_file() {
            return Err("it is no file".to_owned());
        }
        if !has_log(path).map_err(words)? {
            return Ok(Self::Locks);
        }
        match (length(path, "-wal").map_err(words)?, length(path, "-shm").map_err(words)?) {
            (None, _) | (Some(0), None) => Ok(Self::Whole(file.len(), file.modified().ok())),
            (Some(_), Some(_)) => Ok(Self::Index),
            (Some(_), None) => Err("it was not closed, and the index of its write-ahead log \
                                    (`-shm`) is missing: its writer has to open it once"
                .to_owned()),
        }
    }

    /// The address of a database that is read in this way.
    fn uri(&self, path: &Path) -> Result<String, String> {
        let path = path.to_str().ok_or("its path is not UTF-8")?;
        let path = path.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
        let how = match self {
            Self::Locks => "",
            Self::Index => "?readonly_shm=1",
            Self::Whole(..) => "?immutable=1",
        };
        Ok(format!("file://{path}{how}"))
    }
}

/// Whether a database has a write-ahead log: byte 19 of its header, the version to read it.
fn has_log(path: &Path) -> std::io::Result<bool> {
    let mut header = Vec::new();
    std::fs::File::open(path)?.take(20).read_to_end(&mut header)?;
    Ok(header.get(19) == Some(&2))
}

/// The length of a file beside the database; none where there is no such file.
fn length(path: &Path, ending: &str) -> std::io::Result<Option<u64>> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(ending);
    match std::fs::metadata(PathBuf::from(beside)) {
        Ok(file) => Ok(Some(file.len())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads all rows within `time`, or until `ended`.
fn read(
    section: &LookupSection,
    source: &SqliteSource,
    time: Duration,
    ended: CancellationToken,
) -> Result<RecordBatch, String> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // The log lies beside the file itself, not beside a link to it.
    let path = std::fs::canonicalize(&source.path).map_err(|error| error.to_string())?;
    let way = Way::of(&path)?;
    let words = |error: Error| words(&error, time, section);
    let mut database = open(&way.uri(&path)?).map_err(words)?;
    let longest = section.max_bytes.len().max(LENGTH_MIN);
    let longest = i32::try_from(longest).unwrap_or(i32::MAX);
    database.set_limit(Limit::SQLITE_LIMIT_LENGTH, longest).map_err(words)?;
    let end = Instant::now() + time;
    let over = move || ended.is_cancelled() || Instant::now() >= end;
    database.progress_handler(STEPS, Some(over)).map_err(words)?;
    // The state that is read is chosen before the query is planned, so that its columns are those of
    // that state.
    database.execute_batch("BEGIN").map_err(words)?;
    database.query_row("PRAGMA schema_version", [], |_| Ok(())).map_err(words)?;
    let mut statement = database.prepare(&source.query).map_err(words)?;
    if !statement.readonly() {
        return Err("the query would write; only a SELECT is run".to_owned());
    }
    let rows = rows(section, &mut statement, &words)?;
    drop(statement);
    database.close().map_err(|(_, error)| words(error))?;
    if matches!(way, Way::Whole(..)) && Way::of(&path)? != way {
        return Err("it is being written".to_owned());
    }
    Ok(rows)
}

fn open(uri: &str) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(uri, flags)?;
    database.busy_timeout(BUSY)?;
    database.execute_batch(SETTINGS)?;
    Ok(database)
}

fn rows(
    section: &LookupSection,
    statement: &mut Statement<'_>,
    words: &impl Fn(Error) -> String,
) -> Result<RecordBatch, String> {
    let places = places(section, statement)?;
    let bytes_max = section.max_bytes.len();
    let (mut columns, mut bytes) = (Columns::new(section), 0_usize);
    let mut rows = statement.query([]).map_err(words)?;
    let mut number = 0_u64;
    while let Some(row) = rows.next().map_err(words)? {
        number += 1;
        let values: Vec<_> = places
            .iter()
            .map(|place| value(row, *place))
            .collect::<Result<_, _>>()
            .map_err(words)?;
        bytes = values.iter().fold(bytes, |bytes, value| bytes.saturating_add(size(value)));
        if bytes > bytes_max {
            return Err(format!("more than {bytes_max} bytes (`max_bytes`)"));
        }
        columns.push(&format!("row {number}"), values.into_iter())?;
    }
    columns.finish()
}

/// Where the declared columns stand in the query's rows.
fn places(
    section: &LookupSection,
    statement: &Statement<'_>,
) -> Result<Vec<(usize, FieldType)>, String> {
    let names: Vec<&str> = statement.column_names().collect();
    let place = |column: &tidegate_config::LookupColumn| {
        let name = column.source_name();
        let mut found = (0..names.len()).filter(|place| names[*place] == name);
        match (found.next(), found.next()) {
            (Some(place), None) => Ok((place, column.value_type)),
            (None, _) => {
                let names = names.join("`, `");
                Err(format!("the query gives no column `{name}`, but `{names}`"))
            }
            (Some(_), Some(_)) => Err(format!("the query gives two columns `{name}`")),
        }
    };
    section.columns.iter().map(place).collect()
}

fn value<'r>(row: &'r Row<'_>, (place, of): (usize, FieldType)) -> Result<Value<'r>, Error> {
    Ok(match row.get_ref(place)? {
        ValueRef::Null => Value::Missing,
        // SQLite has no other type for TRUE and FALSE.
        ValueRef::Integer(int @ (0 | 1)) if of == FieldType::Bool => Value::Bool(int == 1),
        ValueRef::Integer(int) => Value::Int(int),
        ValueRef::Real(float) => Value::Float(float),
        ValueRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => Value::Text(text),
            Err(_) => Value::Other("a text that is not UTF-8"),
        },
        ValueRef::Blob(_) => Value::Other("a blob"),
    })
}

/// Bytes that a value counts for.
fn size(value: &Value<'_>) -> usize {
    match value {
        Value::Text(text) => text.len(),
        _ => size_of::<u64>(),
    }
}

/// What SQLite says, in words for those who see only the gateway.
fn words(error: &Error, time: Duration, section: &LookupSection) -> String {
    match (error.sqlite_error_code(), error) {
        (Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked), _) => {
            format!("it is locked by somebody for more than {} s", BUSY.as_secs())
        }
        (Some(ErrorCode::OperationInterrupted), _) => {
            format!("the query takes more than {} s", time.as_secs_f64())
        }
        (Some(ErrorCode::TooBig), _) => {
            format!("more than {} bytes (`max_bytes`)", section.max_bytes.len())
        }
        (Some(ErrorCode::OutOfMemory), _) => {
            "the query needs more than 64 MiB of memory".to_owned()
        }
        // A journal of a writer that was killed: reading would have to undo its last transaction.
        (Some(ErrorCode::ReadOnly), _) => {
            format!("it was not closed, and its writer has to open it once ({error})")
        }
        (_, Error::MultipleStatement) => "the query is more than one statement".to_owned(),
        (_, Error::SqlInputError { msg, .. }) => msg.clone(),
        _ => error.to_string(),
    }
}
