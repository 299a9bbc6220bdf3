//! What somebody may ask of the streams at work: to look at their rows, to try SQL beside them, to
//! stop them and start them.
//!
//! Knows no socket. One preview runs at a time: it computes where the streams do.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::FutureExt;
use tidegate_config::{Document, StreamSection};
use tidegate_engine::encode::{JsonOptions, Meta, json_rows};
use tidegate_web_ui::{
    Answer, Declined, Lines, PreviewWanted, StreamSet, StreamVerb, Streams, TapWanted,
};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::apply::{Ask, StreamRequest};
use crate::preview::Preview;
use crate::status::GatewayStatus;
use crate::tap::{Passed, Tap, Taps};

/// Results of a preview where nobody says how many.
const PREVIEW_ROWS: u64 = 100;
/// Results of a preview at most.
const PREVIEW_ROWS_MAX: u64 = 10_000;
/// How long a preview may take new rows.
const PREVIEW_LASTING_MAX: Duration = Duration::from_mins(10);
/// Pieces of a preview's answer that may wait for their reader.
const PREVIEW_PIECES: usize = 16;

/// Answers for the streams of a running gateway.
pub struct StreamFloor {
    status: Arc<GatewayStatus>,
    taps: Arc<Taps>,
    compute: Handle,
    /// Where changes are asked for; none where there is nobody to make them.
    requests: Option<mpsc::Sender<Ask>>,
    previews: Arc<Semaphore>,
}

impl StreamFloor {
    /// Answers for the gateway of `status`; previews run on `compute`.
    pub fn new(
        status: Arc<GatewayStatus>,
        taps: Arc<Taps>,
        compute: Handle,
        requests: Option<mpsc::Sender<Ask>>,
    ) -> Self {
        Self { status, taps, compute, requests, previews: Arc::new(Semaphore::new(1)) }
    }

    fn document(&self) -> Result<Arc<Document>, Declined> {
        let document = self.status.views().document.clone();
        document.ok_or_else(|| Declined::NotNow("the gateway is starting".to_owned()))
    }

    /// What is wanted, as something to run; an error where it names nothing or is no stream.
    fn preview_of(&self, wanted: PreviewWanted) -> Result<Preview, Declined> {
        let (document, views) = (self.document()?, self.status.views());
        let section: StreamSection = match (wanted.section, wanted.stream) {
            (Some(section), None) => serde_json::from_value(section)
                .map_err(|error| Declined::Refused(format!("no stream: {error}")))?,
            (None, Some(name)) => {
                let found = document.streams.iter().find(|s| s.name.as_str() == name);
                let unknown = || Declined::Unknown(format!("there is no stream `{name}`"));
                found.cloned().ok_or_else(unknown)?
            }
            _ => {
                let detail = "either `stream` or `section` says what is tried";
                return Err(Declined::Refused(detail.to_owned()));
            }
        };
        let last = wanted.last_ms.map(|ms| i64::try_from(ms.saturating_mul(1000)));
        Ok(Preview {
            document,
            lookups: views.lookups.iter().map(|view| view.lookup.clone()).collect(),
            section,
            store: self.status.store.clone(),
            taps: self.taps.clone(),
            clock: self.status.clock.clone(),
            rows_max: wanted.rows.unwrap_or(PREVIEW_ROWS).min(PREVIEW_ROWS_MAX),
            last: last.map(|micros| micros.unwrap_or(i64::MAX)),
            lasting: Duration::from_millis(wanted.for_ms).min(PREVIEW_LASTING_MAX),
        })
    }
}

impl Streams for StreamFloor {
    fn tap(&self, name: &str, wanted: TapWanted) -> Result<Lines, Declined> {
        let views = self.status.views();
        let stream = views.streams.iter().any(|stream| stream.name == name);
        if !stream && !views.tables.iter().any(|table| table == name) {
            return Err(Declined::Unknown(format!("there is no stream and no table `{name}`")));
        }
        let document = self.document()?;
        let gateway = &document.gateway.name;
        let id_prefix = format!("{gateway}/{}/{name}", self.status.store.epoch());
        let looking = Looking {
            tap: self.taps.look(name),
            left: wanted.count.unwrap_or(u64::MAX),
            until: wanted.lasting().map(|lasting| Instant::now() + lasting),
            id_prefix,
        };
        let pieces = futures::stream::unfold(looking, async |mut looking| {
            Some((looking.next().await?, looking))
        });
        Ok(Box::pin(pieces))
    }

    fn preview(&self, wanted: PreviewWanted) -> Answer<Result<Lines, Declined>> {
        let preview = self.preview_of(wanted);
        let permit = self.previews.clone().try_acquire_owned();
        let compute = self.compute.clone();
        async move {
            let preview = preview?;
            let permit =
                permit.map_err(|_| Declined::NotNow("another preview is under way".to_owned()))?;
            let planned = tokio::task::spawn_blocking(move || preview.plan()).await;
            let planned = planned
                .map_err(|error| Declined::NotNow(error.to_string()))?
                .map_err(Declined::Refused)?;
            let (lines, read) = mpsc::channel(PREVIEW_PIECES);
            let task = AbortOnDropHandle::new(compute.spawn(async move {
                planned.run(lines).await;
                drop(permit);
            }));
            // It ends with its reader.
            let pieces = futures::stream::unfold((read, task), async |(mut read, task)| {
                Some((read.recv().await?, (read, task)))
            });
            let lines: Lines = Box::pin(pieces);
            Ok(lines)
        }
        .boxed()
    }

    fn set(&self, name: String, verb: StreamVerb) -> Answer<Result<StreamSet, Declined>> {
        let requests = self.requests.clone();
        async move {
            let not_now = |detail: &str| Declined::NotNow(detail.to_owned());
            let requests =
                requests.ok_or_else(|| not_now("this gateway takes no changes of its streams"))?;
            let (answer, answered) = oneshot::channel();
            let ask = Ask::Stream(StreamRequest { name, verb, answer });
            requests.try_send(ask).map_err(|_| not_now("other changes are under way"))?;
            let answered = answered.await;
            let detail = answered.map_err(|_| not_now("the gateway is stopping"))??;
            Ok(StreamSet { detail })
        }
        .boxed()
    }
}

/// One reader of a tap.
struct Looking {
    tap: Tap,
    /// Rows that are still wanted.
    left: u64,
    until: Option<Instant>,
    id_prefix: String,
}

impl Looking {
    /// The next rows as lines, and how many were lost before them.
    async fn next(&mut self) -> Option<Bytes> {
        if self.left == 0 {
            return None;
        }
        let ended = async {
            match self.until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let passed = tokio::select! {
            passed = self.tap.next() => passed?,
            () = ended => return None,
        };
        let mut text = BytesMut::new();
        let lost = self.tap.take_lost();
        if lost > 0 {
            text.put_slice(format!("{{\"_lost\":{lost}}}\n").as_bytes());
        }
        let rows = usize::try_from(self.left).unwrap_or(usize::MAX).min(passed.batch.num_rows());
        self.left -= rows as u64;
        for line in self.lines(&passed, rows) {
            text.put(line);
            text.put_u8(b'\n');
        }
        Some(text.freeze())
    }

    fn lines(&self, passed: &Passed, rows: usize) -> Vec<Bytes> {
        let meta =
            passed.quality.map(|quality| Meta { id_prefix: self.id_prefix.clone(), quality });
        let options = JsonOptions { int64_as_string: false, meta };
        let batch = passed.batch.slice(0, rows);
        json_rows(&batch, &options, passed.first).unwrap_or_else(|error| {
            let line = serde_json::json!({ "_error": error.to_string() });
            vec![Bytes::from(line.to_string())]
        })
    }
}

/// Names of streams that somebody stopped, kept beside the store over restarts.
pub mod stopped {
    use std::collections::BTreeSet;
    use std::fs;
    use std::io;
    use std::path::{Path, PathBuf};

    use crate::keep::Staged;

    fn path(store: &Path) -> PathBuf {
        store.join("config/stopped-streams.json")
    }

    /// The streams that are stopped. Where the file cannot be read none is: a stream that runs is
    /// better than one that nobody knows of.
    pub fn read(store: &Path) -> BTreeSet<String> {
        match fs::read(path(store)) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                tracing::error!(%error, "which streams are stopped cannot be read: all run");
                BTreeSet::new()
            }),
            Err(_) => BTreeSet::new(),
        }
    }

    /// Keeps which streams are stopped. Blocks on the disk.
    pub fn write(store: &Path, stopped: &BTreeSet<String>) -> io::Result<()> {
        let path = path(store);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        Staged::write(&path, serde_json::to_string(stopped)?.as_bytes(), 0o600)?.publish()
    }
}
