//! One lookup at work: loads a small table as a whole, again on a schedule, and keeps the last good
//! rows in the store's folder.
//!
//! Promise: what SQL sees are all rows of one load that succeeded; a load that fails, or has one bad
//! row, changes nothing but what is shown. After a restart the kept rows are there before the
//! source is asked. It knows nothing of who joins them.

mod columns;
mod csv;
mod http;
mod json;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use tidegate_config::{Document, LookupFormat, LookupSection, LookupSource};
use tidegate_engine::Lookup;
use tidegate_engine::lookup::{read_copy, write_copy};
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, seed};
use crate::clock::SharedClock;
use crate::keep::Staged;
use crate::supervisor::{Exit, Health, Part, Said};
use columns::Columns;

/// What became of the loads of one lookup, for status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Loads that succeeded since the process started.
    pub loads: u64,
    /// Loads that failed since then.
    pub failures: u64,
    /// When the rows that are there were loaded, microseconds since 1970, UTC.
    pub at: Option<i64>,
    /// They are the ones that were kept from before the process started.
    pub kept: bool,
    /// Why the last load failed; none where it succeeded.
    pub failed: Option<String>,
}

/// The loads of one lookup, which it writes and status reads.
#[derive(Debug, Default)]
pub struct Loads(Mutex<Loaded>);

impl Loads {
    /// As they are now.
    pub fn get(&self) -> Loaded {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Loaded)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A lookup and what it needs.
pub struct LookupPart {
    /// What it is made of.
    pub section: LookupSection,
    /// Where its rows go.
    pub lookup: Arc<Lookup>,
    /// Where the last good rows are kept.
    pub copy: PathBuf,
    /// The time of day.
    pub clock: SharedClock,
    /// The part's state, for failures that do not end it.
    pub health: Arc<Health>,
    /// What became of its loads.
    pub loads: Arc<Loads>,
    /// Ends it.
    pub stop: CancellationToken,
}

/// Where the last good rows of a lookup are kept.
pub(crate) fn lookup_copy(store: &Path, name: &str) -> PathBuf {
    store.join("lookups").join(format!("{name}.copy"))
}

/// First pause before a load that failed is tried again; the longest is the time between two loads.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// Mode of the kept rows: who may read the source is its owner's affair.
const COPY_MODE: u32 = 0o600;

impl Part for LookupPart {
    async fn run(&mut self) -> Exit {
        let mut kept = self.take_copy().await;
        let refresh = self.section.refresh.duration();
        let first = RETRY_MIN.min(refresh);
        let mut backoff = Backoff::new(first, refresh, seed(self.lookup.name()));
        let mut said = Said::default();
        loop {
            let failing = self.loads.get().failed.is_some();
            let pause = match load(&self.section).await.and_then(|rows| self.replace(rows)) {
                Ok(rows) => {
                    if failing {
                        tracing::info!(lookup = self.lookup.name(), "loaded again");
                    }
                    said.reset();
                    backoff.reset();
                    if kept.as_ref() != Some(&rows) {
                        kept = self.keep(rows).await;
                    }
                    refresh
                }
                Err(error) => {
                    self.failed(error, &mut said);
                    backoff.pause()
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => return Exit::Done,
            }
        }
    }
}

impl LookupPart {
    fn replace(&self, rows: RecordBatch) -> Result<RecordBatch, String> {
        self.lookup.replace(rows.clone()).map_err(|error| error.to_string())?;
        let at = self.clock.now();
        self.loads.change(|loads| {
            *loads = Loaded {
                loads: loads.loads + 1,
                at: Some(at),
                kept: false,
                failed: None,
                ..*loads
            };
        });
        Ok(rows)
    }

    fn failed(&self, error: String, said: &mut Said) {
        let lookup = self.lookup.name();
        if said.is_new(&error) {
            let rows = self.lookup.rows().map(|rows| rows.num_rows());
            tracing::error!(lookup, error, ?rows, "not loaded; the last good rows stay");
        }
        self.health.error(error.clone());
        self.loads.change(|loads| {
            loads.failures += 1;
            loads.failed = Some(error);
        });
    }

    /// Takes the rows that were kept, where there are none yet.
    async fn take_copy(&self) -> Option<RecordBatch> {
        let (path, schema) = (self.copy.clone(), self.lookup.schema().clone());
        let source = source_text(&self.section);
        let read = move || {
            let bytes = std::fs::read(path).ok()?;
            read_copy(&bytes, &schema, &source)
        };
        let (rows, at) = tokio::task::spawn_blocking(read).await.ok()??;
        if self.lookup.rows().is_none() && self.lookup.replace(rows.clone()).is_ok() {
            self.loads.change(|loads| (loads.at, loads.kept) = (Some(at), true));
        }
        Some(rows)
    }

    /// Keeps rows for the next start. Where that fails the lookup works all the same, and the next
    /// load tries again.
    async fn keep(&self, rows: RecordBatch) -> Option<RecordBatch> {
        let (path, at) = (self.copy.clone(), self.clock.now());
        let source = source_text(&self.section);
        let write = move || -> std::io::Result<RecordBatch> {
            let bytes = write_copy(&rows, at, &source).map_err(std::io::Error::other)?;
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            Staged::write(&path, &bytes, COPY_MODE)?.publish()?;
            Ok(rows)
        };
        let written = tokio::task::spawn_blocking(write).await;
        match written.map_err(std::io::Error::other).and_then(|written| written) {
            Ok(rows) => Some(rows),
            Err(error) => {
                let lookup = self.lookup.name();
                tracing::warn!(lookup, %error, "its rows are not kept for the next start");
                None
            }
        }
    }
}

/// Says which source kept rows came from: those of another one are none for us.
fn source_text(section: &LookupSection) -> String {
    serde_json::to_string(&(&section.source, &section.columns)).unwrap_or_default()
}

/// Loads the rows of a configuration's lookup where it has none, for what runs without the parts.
pub(crate) async fn load_once(document: &Document, lookup: &Lookup) -> Result<(), String> {
    let mut sections = document.lookups.iter();
    let section = sections.find(|section| section.name.as_str() == lookup.name());
    let Some(section) = section.filter(|_| lookup.rows().is_none()) else {
        return Ok(());
    };
    let loaded = load(section).await;
    let loaded = loaded.and_then(|rows| lookup.replace(rows).map_err(|error| error.to_string()));
    loaded.map_err(|error| format!("lookup {}: {error}", section.name))
}

/// Loads all rows of a lookup, or says in words why not. Cancel safe.
pub(crate) async fn load(section: &LookupSection) -> Result<RecordBatch, String> {
    let bytes_max = section.max_bytes.len();
    let of_text = section.clone();
    match &section.source {
        LookupSource::Csv(file) => read_text(of_text, &file.path, LookupFormat::Csv).await,
        LookupSource::Json(file) => read_text(of_text, &file.path, LookupFormat::Json).await,
        LookupSource::Http(http) => {
            let (text, format) = (http::get(http, bytes_max).await?, http.format);
            blocking(move || parse(&of_text, format, &text)).await
        }
        #[cfg(feature = "sqlite")]
        LookupSource::Sqlite(source) => sqlite::load(section, source).await,
        #[cfg(not(feature = "sqlite"))]
        LookupSource::Sqlite(_) => Err("this program was built without SQLite".to_owned()),
    }
}

/// Runs what waits for a disk or takes long beside those who must not wait.
async fn blocking(
    read: impl FnOnce() -> Result<RecordBatch, String> + Send + 'static,
) -> Result<RecordBatch, String> {
    tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())?
}

async fn read_text(
    section: LookupSection,
    path: &str,
    format: LookupFormat,
) -> Result<RecordBatch, String> {
    let path = path.to_owned();
    let read = move || {
        let text = read_file(Path::new(&path), section.max_bytes.len())
            .map_err(|error| format!("{path}: {error}"))?;
        parse(&section, format, &text)
    };
    blocking(read).await
}

/// Reads a file that nobody writes meanwhile.
fn read_file(path: &Path, bytes_max: usize) -> Result<Vec<u8>, String> {
    let words = |error: std::io::Error| error.to_string();
    let mut file = File::open(path).map_err(words)?;
    let before = file.metadata().map_err(words)?;
    let mut text = Vec::new();
    let over = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    (&mut file).take(over).read_to_end(&mut text).map_err(words)?;
    if text.len() > bytes_max {
        return Err(format!("more than {bytes_max} bytes (`max_bytes`)"));
    }
    let after = file.metadata().map_err(words)?;
    if before.len() != after.len() || before.modified().ok() != after.modified().ok() {
        return Err("it is being written".to_owned());
    }
    Ok(text)
}

/// Makes a table of a text.
fn parse(
    section: &LookupSection,
    format: LookupFormat,
    text: &[u8],
) -> Result<RecordBatch, String> {
    let text = std::str::from_utf8(text)
        .map_err(|error| format!("it is not UTF-8 at byte {}", error.valid_up_to()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut columns = Columns::new(section);
    match format {
        LookupFormat::Csv => csv::read(section, text, &mut columns)?,
        LookupFormat::Json => json::read(section, text, &mut columns)?,
    }
    columns.finish()
}
