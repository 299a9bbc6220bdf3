//! A stream's program (`process:`): reached over a Unix socket, given results, asked for others.
//!
//! Promise: each answer is waited for, for a bounded time, before anything is committed, so results
//! are in the outbox once, whatever becomes of the program. A program that is away is no failure of
//! rows: the stream waits and goes on from the store. One that ends, or says nothing, over the same
//! rows three times is taken to fail on them. It is never started from here.
//!
//! Frames both ways: length of the body u32 little-endian · kind u8 · body, an Arrow IPC stream or,
//! of a refusal, UTF-8. We begin with the columns that we give (1) and those that we want (2), as
//! streams without batches; it answers with those that it gives (1). Then for each window or batch we
//! send rows (3), and it answers with rows (3), any number of batches, or with a refusal (4).
//! Bounds of the window stand in the schema's metadata, microseconds since 1970 as text.

use std::collections::HashMap;
use std::io::{self, Cursor};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use futures::FutureExt;
use futures::future::BoxFuture;
use tidegate_engine::{Bounds, Process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// Bytes of one frame's body at most.
const BODY_MAX: usize = 64 << 20;
/// Bytes of a refusal that are shown.
const REFUSAL_MAX: usize = 1024;
/// Times that a program may be lost over the same rows.
const LOSSES_MAX: u32 = 3;

const COLUMNS: u8 = 1;
const WANTED: u8 = 2;
const ROWS: u8 = 3;
const REFUSAL: u8 = 4;

/// Over which rows the program was lost, and how often; kept while the stream is built anew.
#[derive(Debug, Clone, Default)]
pub struct Losses(Arc<Mutex<Option<(u64, u32)>>>);

impl Losses {
    /// Counts one more over these rows; true where it is one too many.
    fn add(&self, rows: u64) -> bool {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = match *held {
            Some((same, times)) if same == rows => times + 1,
            _ => 1,
        };
        *held = (times < LOSSES_MAX).then_some((rows, times));
        times >= LOSSES_MAX
    }

    fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A program as one stream sees it.
#[derive(Debug)]
pub struct Program {
    /// Where it listens.
    pub socket: PathBuf,
    /// How long an answer may take.
    pub timeout: Duration,
    /// The columns that it is given.
    pub gives: SchemaRef,
    /// The columns that it must give.
    pub wants: SchemaRef,
    /// Who asks, for its logs.
    pub stream: String,
    /// Over which rows it was lost.
    pub losses: Losses,
    /// Told why nobody answers; the stream then ends.
    pub away: mpsc::Sender<String>,
    connection: Option<UnixStream>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    /// It refuses these rows; the connection stays.
    #[error("the program refuses: {0}")]
    Refused(String),
    /// What it gives is not what was agreed.
    #[error("the program's answer cannot be used: {0}")]
    Answer(String),
    /// It is gone, or does not speak as it should.
    #[error("{0}")]
    Lost(#[from] io::Error),
}

impl From<ArrowError> for Trouble {
    fn from(error: ArrowError) -> Self {
        Self::Answer(error.to_string())
    }
}

impl Program {
    /// A program that is not connected yet.
    pub fn new(
        socket: PathBuf,
        timeout: Duration,
        (gives, wants): (SchemaRef, SchemaRef),
        stream: String,
        losses: Losses,
        away: mpsc::Sender<String>,
    ) -> Self {
        Self { socket, timeout, gives, wants, stream, losses, away, connection: None }
    }

    /// Connects, and agrees about columns.
    async fn greet(&self) -> Result<UnixStream, Trouble> {
        let mut connection = UnixStream::connect(&self.socket).await?;
        let named = HashMap::from([("tidegate.stream".to_owned(), self.stream.clone())]);
        send(&mut connection, COLUMNS, &encode(&self.gives, &[], named)?).await?;
        send(&mut connection, WANTED, &encode(&self.wants, &[], HashMap::new())?).await?;
        let body = receive(&mut connection, COLUMNS).await?;
        let given = StreamReader::try_new(Cursor::new(body), None)?.schema();
        match difference(&self.wants, &given) {
            None => Ok(connection),
            Some(difference) => Err(Trouble::Answer(difference)),
        }
    }

    async fn ask(&mut self, request: &[u8]) -> Result<Vec<RecordBatch>, Trouble> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.greet().await?,
        };
        send(&mut connection, ROWS, request).await?;
        let answered = receive(&mut connection, ROWS).await;
        if matches!(answered, Ok(_) | Err(Trouble::Refused(_))) {
            self.connection = Some(connection);
        }
        let mut batches = Vec::new();
        for batch in StreamReader::try_new(Cursor::new(answered?), None)? {
            let batch = batch?;
            if let Some(difference) = difference(&self.wants, batch.schema_ref()) {
                return Err(Trouble::Answer(difference));
            }
            if batch.num_rows() > 0 {
                // Ours, whatever metadata came with it.
                let columns = batch.columns().to_vec();
                batches.push(RecordBatch::try_new(self.wants.clone(), columns)?);
            }
        }
        Ok(batches)
    }

    /// Tells why nobody answers, and waits to be dropped.
    async fn gone<T>(&self, why: String) -> T {
        let why = format!("the program at {} is away: {why}", self.socket.display());
        // Nobody to tell means that the stream is ending anyway.
        drop(self.away.send(why).await);
        std::future::pending().await
    }
}

impl Process for Program {
    fn schema(&self) -> SchemaRef {
        self.wants.clone()
    }

    fn process(
        &mut self,
        results: Vec<RecordBatch>,
        window: Option<Bounds>,
    ) -> BoxFuture<'_, Result<Vec<RecordBatch>, String>> {
        async move {
            let bounds = window.map(|window| {
                [("tidegate.window_start", window.start), ("tidegate.window_end", window.end)]
            });
            let metadata = bounds.into_iter().flatten();
            let metadata = metadata.map(|(key, at)| (key.to_owned(), at.to_string())).collect();
            let request = encode(&self.gives, &results, metadata).map_err(|e| e.to_string())?;
            if request.len() > BODY_MAX {
                return Err(format!("{} bytes of results are too many", request.len()));
            }
            if self.connection.is_none() {
                match tokio::time::timeout(self.timeout, self.greet()).await {
                    Ok(Ok(connection)) => self.connection = Some(connection),
                    Ok(Err(trouble)) => return self.gone(trouble.to_string()).await,
                    Err(_) => return self.gone("it does not greet".to_owned()).await,
                }
            }
            let answered = tokio::time::timeout(self.timeout, self.ask(&request)).await;
            let why = match answered {
                Ok(Ok(batches)) => {
                    self.losses.clear();
                    return Ok(batches);
                }
                Ok(Err(trouble @ (Trouble::Refused(_) | Trouble::Answer(_)))) => {
                    return Err(trouble.to_string());
                }
                Ok(Err(Trouble::Lost(error))) => format!("it ended over these rows: {error}"),
                Err(_) => format!("no answer within {:?}", self.timeout),
            };
            if self.losses.add(key(&request)) {
                return Err(format!(
                    "the program was lost {LOSSES_MAX} times over these rows: {why}"
                ));
            }
            self.gone(why).await
        }
        .boxed()
    }
}

/// Tells rows apart. FNV-1a, 64 bit.
fn key(request: &[u8]) -> u64 {
    request.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn encode(
    schema: &SchemaRef,
    batches: &[RecordBatch],
    metadata: HashMap<String, String>,
) -> Result<Vec<u8>, ArrowError> {
    let schema = Schema::new_with_metadata(schema.fields().clone(), metadata);
    let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
    for batch in batches {
        writer.write(batch)?;
    }
    writer.into_inner()
}

async fn send(connection: &mut UnixStream, kind: u8, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).map_err(|_| io::Error::other("too long a frame"))?;
    connection.write_all(&length.to_le_bytes()).await?;
    connection.write_all(&[kind]).await?;
    connection.write_all(body).await
}

async fn receive(connection: &mut UnixStream, wanted: u8) -> Result<Vec<u8>, Trouble> {
    let length = connection.read_u32_le().await? as usize;
    let kind = connection.read_u8().await?;
    if length > BODY_MAX {
        return Err(invalid(format!("a frame of {length} bytes")).into());
    }
    // Grows with what comes, not with what is said.
    let mut body = Vec::new();
    let read = connection.take(length as u64).read_to_end(&mut body).await?;
    if read < length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    if kind == REFUSAL {
        body.truncate(REFUSAL_MAX);
        return Err(Trouble::Refused(String::from_utf8_lossy(&body).into_owned()));
    }
    if kind != wanted {
        return Err(invalid(format!("a frame of kind {kind} in place of {wanted}")).into());
    }
    Ok(body)
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What in `given` is not as `wanted`.
fn difference(wanted: &Schema, given: &Schema) -> Option<String> {
    let (ours, theirs) = (wanted.fields(), given.fields());
    for (index, field) in ours.iter().enumerate() {
        let Some(other) = theirs.get(index) else {
            return Some(format!("the column `{}` is missing", field.name()));
        };
        if (field.name(), field.data_type()) != (other.name(), other.data_type()) {
            let (name, data_type) = (field.name(), field.data_type());
            let (other, other_type) = (other.name(), other.data_type());
            return Some(format!(
                "the column `{other}` of type {other_type} stands where `{name}` of type \
                 {data_type} belongs"
            ));
        }
    }
    let more = theirs.get(ours.len())?;
    Some(format!("the column `{}` was not declared", more.name()))
}
