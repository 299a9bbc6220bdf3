//! Streams as tables of other streams: what a configuration makes of them, and a stream's results as
//! rows of such a table.
//!
//! Rows get their log positions from the results' sequence numbers and become durable in the same
//! commit as the results, so that each is there exactly once, whoever was killed when. They are
//! handed to the readers after they are in the store's queue, as a device's rows are.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array,
    new_null_array,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef, TimeUnit, TimestampMicrosecondType};
use arrow::error::ArrowError;
use tidegate_config::{Document, ProcessSection, StreamSection, stream_table};
use tidegate_engine::store::LogRows;
use tidegate_engine::{Output, Sql, latest_names};

use crate::build::{lookups, stream_spec};
use crate::table::{Positioned, Readers};

/// The names in `latest('…')` of a text.
pub(crate) fn latest(sql: &str) -> Vec<String> {
    latest_names(sql).into_iter().map(|(name, _)| name).collect()
}

/// The columns of each stream that another one reads, by its name, and whether the stream itself
/// says which device a row is of.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StreamTables(BTreeMap<String, (SchemaRef, bool)>);

impl StreamTables {
    /// Plans what others read, each stream after those that it reads itself. One that cannot be
    /// planned has no columns, and its readers will say so; `check` lets none pass.
    pub fn plan(document: &Document, sql: &Sql) -> Self {
        let mut tables = Self::default();
        for at in document.stream_order(&latest).sound {
            let stream = &document.streams[at];
            if readers_of(document, stream.name.as_str()).next().is_none() {
                continue;
            }
            let spec = stream_spec(document, stream, stream.event_time, &tables);
            let lookups = lookups(document);
            let planned = spec.plan_with(sql, &stream.sql, &lookups).map_err(|e| e.to_string());
            let columns = planned.and_then(|query| {
                // What its program makes of the results, where it has one.
                let made = stream.process.as_ref().map(ProcessSection::schema);
                let (name, result) = (stream.name.as_str(), made.unwrap_or_else(|| query.schema()));
                let table = stream_table(name, &result, stream.window.is_some());
                let table = table.map_err(|no| no.message)?;
                Ok((table, result.field_with_name("device").is_ok()))
            });
            match columns {
                Ok(columns) => {
                    tables.0.insert(stream.name.to_string(), columns);
                }
                Err(error) => tracing::debug!(stream = %stream.name, error, "it makes no table"),
            }
        }
        tables
    }

    /// The columns of a stream.
    pub fn get(&self, stream: &str) -> Option<&SchemaRef> {
        self.0.get(stream).map(|(columns, _)| columns)
    }

    /// Whether a stream's results say which device they are of.
    pub(crate) fn has_devices(&self, stream: &str) -> bool {
        self.0.get(stream).is_some_and(|(_, devices)| *devices)
    }
}

/// The streams that read a table or a stream, also by `latest('…')`, in the order of the document.
pub(crate) fn readers_of<'d>(
    document: &'d Document,
    table: &'d str,
) -> impl Iterator<Item = &'d StreamSection> {
    let looks = move |stream: &StreamSection| {
        let mut names = latest(&stream.sql).into_iter();
        names.any(|name| document.latest_of(&name).is_some_and(|of| of.table == table))
    };
    let reads =
        move |s: &&StreamSection| s.from.iter().any(|from| from.as_str() == table) || looks(s);
    document.streams.iter().filter(reads)
}

/// A stream's results as a table that others read.
pub struct Upstream {
    /// The stream's name, which is the table's.
    pub name: Arc<str>,
    /// The table's columns.
    pub schema: SchemaRef,
    /// Who reads it.
    pub readers: Arc<Readers>,
    /// The log position of the row with sequence number 1. It is 0 where the results were read from
    /// the first on; both wrap around, since a stream that nobody read has results without rows.
    origin: u64,
}

impl Upstream {
    /// A table whose place in its log is not known yet.
    pub fn new(name: Arc<str>, schema: SchemaRef, readers: Arc<Readers>) -> Self {
        Self { name, schema, readers, origin: 0 }
    }

    /// Takes up the log where it ends. `results` rows were numbered by the same commits.
    pub(crate) fn resume(&mut self, log_end: u64, results: u64) {
        self.origin = log_end.wrapping_sub(results);
    }

    /// The rows of one output, with their place in the log.
    pub(crate) fn rows(&self, output: &Output, accepted: i64) -> Result<LogRows, ArrowError> {
        let batch = rows(&self.name, &self.schema, output, accepted)?;
        let position = self.origin.wrapping_add(output.first_seq - 1);
        Ok(LogRows { table: self.name.clone(), position, accepted, stamps: None, batch })
    }

    /// Hands rows that are in the store's queue to all readers. One that has ended finds them in the
    /// log when it comes back.
    pub(crate) async fn hand_on(&self, rows: Vec<(u64, RecordBatch)>) {
        for (position, batch) in rows {
            let rows = |table| Positioned { table, position, batch: batch.clone() };
            self.readers.send(rows).await;
        }
    }
}

/// The columns of a result as those of its table.
fn rows(
    name: &str,
    schema: &SchemaRef,
    output: &Output,
    accepted: i64,
) -> Result<RecordBatch, ArrowError> {
    let Output { batch, window, first_seq, quality } = output;
    let len = batch.num_rows();
    let columns: Result<Vec<ArrayRef>, ArrowError> = schema
        .fields()
        .iter()
        .map(|field| match field.name().as_str() {
            "time" => times(batch, window.map_or(accepted, |w| w.end)),
            "device" => texts(batch, "device", |own| own.unwrap_or(name).to_owned()),
            "quality" => texts(batch, "quality", |own| {
                let own =
                    own.map(|own| if ["good", "bad"].contains(&own) { own } else { "uncertain" });
                own.unwrap_or(quality).to_owned()
            }),
            "seq" => {
                let seqs = *first_seq..first_seq.saturating_add(len as u64);
                Ok(Arc::new(UInt64Array::from_iter_values(seqs)) as ArrayRef)
            }
            // Results of the SQL of before, which ends its own windows, may have other columns.
            other => {
                let own = batch.column_by_name(other);
                let own = own.and_then(|own| cast(own, field.data_type()).ok());
                Ok(own.unwrap_or_else(|| new_null_array(field.data_type(), len)))
            }
        })
        .collect();
    RecordBatch::try_new(Arc::clone(schema), columns?)
}

/// The rows' own times; where one is missing, `instead`.
fn times(batch: &RecordBatch, instead: i64) -> Result<ArrayRef, ArrowError> {
    let of = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let own = batch.column_by_name("time").map(|own| cast(own, &of)).transpose()?;
    let own = own.as_ref().map(AsArray::as_primitive::<TimestampMicrosecondType>);
    let time = |row: usize| match own {
        Some(own) if own.is_valid(row) => own.value(row),
        _ => instead,
    };
    let times: Vec<i64> = (0..batch.num_rows()).map(time).collect();
    Ok(Arc::new(TimestampMicrosecondArray::from(times).with_timezone("UTC")))
}

/// A column of texts made of the result's own, which may be missing.
fn texts(
    batch: &RecordBatch,
    column: &str,
    text: impl Fn(Option<&str>) -> String,
) -> Result<ArrayRef, ArrowError> {
    let own = batch.column_by_name(column).map(|own| cast(own, &DataType::Utf8)).transpose()?;
    let own = own.as_ref().map(AsArray::as_string::<i32>);
    let of = |row: usize| text(own.filter(|own| own.is_valid(row)).map(|own| own.value(row)));
    Ok(Arc::new(StringArray::from_iter_values((0..batch.num_rows()).map(of))))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float64Array, TimestampMillisecondArray};
    use arrow::datatypes::{Field, Schema, UInt64Type};
    use tidegate_engine::window::Bounds;

    use super::*;

    fn output(columns: Vec<(&str, ArrayRef)>, window: Option<Bounds>) -> Output {
        let columns = columns.into_iter().map(|(name, array)| (name, array, true));
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        Output { batch, window, first_seq: 41, quality: "uncertain" }
    }

    fn upstream(output: &Output) -> Upstream {
        let schema =
            stream_table("means", output.batch.schema_ref(), output.window.is_some()).unwrap();
        Upstream::new("means".into(), schema, Arc::default())
    }

    fn text(batch: &RecordBatch, column: usize) -> Vec<&str> {
        batch.column(column).as_string::<i32>().iter().flatten().collect()
    }

    fn micros(batch: &RecordBatch) -> &[i64] {
        batch.column(0).as_primitive::<TimestampMicrosecondType>().values()
    }

    #[test]
    fn a_result_without_columns_of_a_table_gets_them() {
        let v: ArrayRef = Arc::new(Float64Array::from(vec![1.5, 2.5]));
        let output = output(vec![("v", v)], Some(Bounds { start: 10, end: 20 }));
        let mut table = upstream(&output);
        table.resume(40, 40);
        let rows = table.rows(&output, 99).unwrap();
        assert_eq!((&*rows.table, rows.position, rows.accepted), ("means", 40, 99));
        assert_eq!(micros(&rows.batch), [20, 20], "the end of the window");
        assert_eq!(text(&rows.batch, 1), ["means", "means"]);
        assert_eq!(text(&rows.batch, 2), ["uncertain", "uncertain"]);
        assert_eq!(rows.batch.column(3).as_primitive::<UInt64Type>().values(), &[41, 42]);
        assert_eq!(rows.batch.column(4), output.batch.column(0));
    }

    #[test]
    fn a_result_keeps_its_own_time_device_and_quality_and_gets_a_new_seq() {
        let time = TimestampMillisecondArray::from(vec![Some(3), None]);
        let output = output(
            vec![
                ("seq", Arc::new(Float64Array::from(vec![7.0, 8.0])) as ArrayRef),
                ("quality", Arc::new(StringArray::from(vec![Some("bad"), None]))),
                ("device", Arc::new(StringArray::from(vec![Some("a"), None]))),
                ("time", Arc::new(time)),
            ],
            None,
        );
        let rows = upstream(&output).rows(&output, 99).unwrap().batch;
        assert_eq!(micros(&rows), [3_000, 99]);
        assert_eq!(text(&rows, 1), ["a", "means"]);
        assert_eq!(text(&rows, 2), ["bad", "uncertain"]);
        assert_eq!(rows.column(3).as_primitive::<UInt64Type>().values(), &[41, 42]);
        assert_eq!(rows.num_columns(), 4);
        let known = Schema::new(vec![Field::new("time", DataType::Utf8, true)]);
        stream_table("means", &known, true).unwrap_err();
    }

    /// A stream that nobody read has numbered results and no rows: the log begins where it is. One
    /// whose progress was lost begins with 1 again, behind the rows that it has.
    #[test]
    fn positions_follow_the_log_and_not_the_numbers() {
        let v: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
        let output = output(vec![("v", v)], Some(Bounds { start: 0, end: 1 }));
        let mut table = upstream(&output);
        for (log_end, results, position) in [(0, 40, 0), (7, 40, 7), (40, 40, 40), (500, 0, 540)] {
            table.resume(log_end, results);
            assert_eq!(table.rows(&output, 0).unwrap().position, position);
        }
    }
}
