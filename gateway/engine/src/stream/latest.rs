//! Each device's last row of the tables that SQL reads by `latest('…')`.
//!
//! Promise: a row takes its device's place when it is applied, in the order of log positions, so that
//! what SQL sees follows from the rows before it and not from how they were batched; after a restart
//! the rows are what they were. Only columns that the SQL reads, and those without nulls, are kept.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, OnceLock};

use arrow::array::{UInt32Array, new_null_array};
use arrow::compute::{cast, concat_batches, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;

use super::progress::{Reader, put_length, put_text};
use super::refill::Arrival;
use super::{StreamError, StreamSpec};
use crate::sql::Query;

/// Devices whose rows are remembered for one name; beyond, the one that was silent for longest is
/// forgotten. All of them are written with each progress.
const DEVICES_MAX: usize = 1_000;

/// The last rows for one name.
#[derive(Debug)]
struct Part {
    name: String,
    table: usize,
    device: Option<String>,
    schema: SchemaRef,
    /// Columns that are kept, by their place in the table.
    kept: Vec<usize>,
    kept_schema: SchemaRef,
    /// By device: log position and row.
    rows: BTreeMap<Box<str>, (u64, RecordBatch)>,
    /// The query has not seen them yet.
    changed: bool,
}

/// The last rows for all names of a stream's SQL.
#[derive(Debug)]
pub(super) struct Last {
    parts: Vec<Part>,
    /// As they are written, until they change.
    saved: OnceLock<Vec<u8>>,
}

impl Last {
    pub(super) fn new(spec: &StreamSpec, query: &Query) -> Result<Self, StreamError> {
        let mut parts = Vec::with_capacity(spec.latest.len());
        for (index, latest) in spec.latest.iter().enumerate() {
            let schema = match spec.tables.get(latest.table) {
                Some(table) => Arc::clone(&table.schema),
                None => return Err(StreamError::Input("`latest` of no table".into())),
            };
            let mut kept: BTreeSet<usize> = query.latest_columns(index);
            let fields = schema.fields().iter().enumerate();
            kept.extend(fields.filter(|(_, field)| !field.is_nullable()).map(|(at, _)| at));
            let kept: Vec<usize> = kept.into_iter().collect();
            parts.push(Part {
                name: latest.name.clone(),
                table: latest.table,
                device: latest.device.clone(),
                kept_schema: Arc::new(schema.project(&kept).map_err(input)?),
                schema,
                kept,
                rows: BTreeMap::new(),
                changed: true,
            });
        }
        Ok(Self { parts, saved: OnceLock::new() })
    }

    /// Whether a table's rows are looked at.
    pub(super) fn looks_at(&self, table: usize) -> bool {
        self.parts.iter().any(|part| part.table == table)
    }

    /// Takes the rows of an arrival from index `first` on.
    pub(super) fn note(&mut self, arrival: &Arrival, first: usize) -> Result<(), StreamError> {
        for part in self.parts.iter_mut().filter(|part| part.table == arrival.table) {
            if part.note(arrival, first).map_err(input)? {
                self.saved = OnceLock::new();
            }
        }
        Ok(())
    }

    /// Shows the query what it has not seen yet.
    pub(super) fn show(&mut self, query: &mut Query) -> Result<(), ArrowError> {
        for (index, part) in self.parts.iter_mut().enumerate().filter(|(_, part)| part.changed) {
            query.set_latest(index, part.whole()?);
            part.changed = false;
        }
        Ok(())
    }

    /// The rows for the next start: for each name the devices with their positions, and an Arrow IPC
    /// stream of the kept columns.
    pub(super) fn save(&self) -> &[u8] {
        self.saved.get_or_init(|| {
            let parts: Vec<&Part> = self.parts.iter().filter(|p| !p.rows.is_empty()).collect();
            if parts.is_empty() {
                return Vec::new();
            }
            let mut out = Vec::new();
            put_length(&mut out, parts.len());
            for part in parts {
                put_text(&mut out, &part.name);
                let rows = part.write().unwrap_or_default();
                put_length(&mut out, part.rows.len());
                for (device, (position, _)) in &part.rows {
                    put_text(&mut out, device);
                    out.extend(position.to_le_bytes());
                }
                put_length(&mut out, rows.len());
                out.extend(rows);
            }
            out
        })
    }

    /// Takes up what [`Last::save`] wrote. Names that the SQL does not have any more are passed over;
    /// columns that were not kept then are null until the device's next row.
    pub(super) fn load(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut rest = Reader(bytes);
        for _ in 0..rest.u32()? {
            let name = rest.text()?;
            let mut devices = Vec::new();
            for _ in 0..rest.u32()? {
                devices.push((rest.text()?, rest.u64()?));
            }
            let length = rest.u32()? as usize;
            let rows = rest.bytes(length)?;
            if let Some(part) = self.parts.iter_mut().find(|part| part.name == name) {
                let broken = |e: ArrowError| StreamError::Progress(format!("last rows: {e}"));
                part.read(devices, rows).map_err(broken)?;
            }
        }
        if rest.0.is_empty() { Ok(()) } else { Err(StreamError::Progress("too long".into())) }
    }
}

impl Part {
    /// Puts each device's last row in its place. True where there was one.
    fn note(&mut self, arrival: &Arrival, first: usize) -> Result<bool, ArrowError> {
        let columns = &arrival.columns;
        let mut seen: HashSet<&str> = HashSet::new();
        let mut last: Vec<(&str, usize)> = Vec::new();
        for row in (first..columns.len()).rev() {
            let device = columns.device(row);
            let counts = self.device.as_deref().is_none_or(|only| only == device);
            if counts && seen.insert(device) {
                last.push((device, row));
            }
        }
        if last.is_empty() {
            return Ok(false);
        }
        let kept = columns.batch().project(&self.kept)?;
        for (device, row) in last {
            let index = u32::try_from(row).unwrap_or(u32::MAX);
            // Copied: a slice would hold the whole batch.
            let row = take_record_batch(&kept, &UInt32Array::from(vec![index]))?;
            self.rows.insert(device.into(), (arrival.position + u64::from(index), row));
        }
        while self.rows.len() > DEVICES_MAX {
            let oldest = self.rows.iter().min_by_key(|(_, (position, _))| *position);
            let Some(device) = oldest.map(|(device, _)| device.clone()) else {
                break;
            };
            self.rows.remove(&device);
        }
        self.changed = true;
        Ok(true)
    }

    /// All rows with the kept columns, in the order of devices.
    fn kept_rows(&self) -> Result<RecordBatch, ArrowError> {
        concat_batches(&self.kept_schema, self.rows.values().map(|(_, row)| row))
    }

    /// All rows as the table has them: columns that nobody reads are null.
    fn whole(&self) -> Result<RecordBatch, ArrowError> {
        let rows = self.kept_rows()?;
        let fields = self.schema.fields().iter().enumerate();
        let column = |(at, field): (usize, &Arc<arrow::datatypes::Field>)| match self
            .kept
            .binary_search(&at)
        {
            Ok(kept) => Arc::clone(rows.column(kept)),
            Err(_) => new_null_array(field.data_type(), rows.num_rows()),
        };
        RecordBatch::try_new(Arc::clone(&self.schema), fields.map(column).collect())
    }

    fn write(&self) -> Result<Vec<u8>, ArrowError> {
        let mut out = Vec::new();
        let mut writer = StreamWriter::try_new(&mut out, &self.kept_schema)?;
        writer.write(&self.kept_rows()?)?;
        writer.finish()?;
        drop(writer);
        Ok(out)
    }

    fn read(&mut self, devices: Vec<(String, u64)>, bytes: &[u8]) -> Result<(), ArrowError> {
        let Some(rows) = StreamReader::try_new(bytes, None)?.next().transpose()? else {
            return Ok(());
        };
        if rows.num_rows() != devices.len() {
            return Err(ArrowError::IpcError("another number of rows than of devices".into()));
        }
        let column = |field: &Arc<arrow::datatypes::Field>| {
            let named = rows.column_by_name(field.name());
            named
                .and_then(|column| cast(column, field.data_type()).ok())
                .unwrap_or_else(|| new_null_array(field.data_type(), rows.num_rows()))
        };
        let columns = self.kept_schema.fields().iter().map(column).collect();
        let Ok(rows) = RecordBatch::try_new(Arc::clone(&self.kept_schema), columns) else {
            // Of another form of the table, in a column without nulls: as if nothing had come.
            return Ok(());
        };
        for (at, (device, position)) in devices.into_iter().enumerate() {
            self.rows.insert(device.into(), (position, rows.slice(at, 1)));
        }
        self.changed = true;
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it stands in `map_err`")]
fn input(error: ArrowError) -> StreamError {
    StreamError::Input(format!("last rows: {error}"))
}
