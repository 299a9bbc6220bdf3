//! Typed column builders that a driver fills row by row and the gateway closes into batches.
//!
//! Values go straight into memory that is reused: no row object, no allocation per value, and none
//! per array where an [`ArrayPool`] has one to use again. A value that failed is null, with a
//! reason; NaN is turned to null with reason `nan` here, at the one place that every reading passes.

use std::fmt::{self, Write as _};
use std::iter::repeat_n;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow_schema::DataType;
use tokio::time::Instant;

use crate::arrays::ArrayPool;
use crate::column::Columns;
use crate::point::Point;

/// How far a row or a value can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quality {
    /// All values were read and are in range.
    Good,
    /// Some values are missing or doubtful.
    Uncertain,
    /// No value could be read.
    Bad,
}

impl Quality {
    /// The word in the `quality` column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Uncertain => "uncertain",
            Self::Bad => "bad",
        }
    }
}

/// Why a value is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Modbus exception 01.
    IllegalFunction,
    /// Modbus exception 02.
    IllegalAddress,
    /// Modbus exception 03.
    IllegalValue,
    /// Modbus exception 04.
    DeviceFailure,
    /// Modbus exceptions 05 and 06: wait and try again.
    Busy,
    /// Modbus exception 08.
    MemoryParity,
    /// Modbus exception 0A.
    GatewayPath,
    /// Modbus exception 0B.
    GatewayTarget,
    /// Any other Modbus exception, by its code.
    Exception(u8),
    /// No answer before the deadline.
    Timeout,
    /// There was no connection.
    LinkDown,
    /// An answer that cannot be right.
    BadReply,
    /// An answer whose checksum is wrong or whose end is missing.
    BadCrc,
    /// The device sent NaN or infinity.
    NotANumber,
    /// The value does not fit the declared type or range.
    OutOfRange,
    /// The message has no such field.
    Missing,
    /// The field is of another type.
    WrongType,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Self::IllegalFunction => "illegal_function",
            Self::IllegalAddress => "illegal_address",
            Self::IllegalValue => "illegal_value",
            Self::DeviceFailure => "device_failure",
            Self::Busy => "busy",
            Self::MemoryParity => "memory_parity",
            Self::GatewayPath => "gateway_path",
            Self::GatewayTarget => "gateway_target",
            Self::Exception(code) => return write!(f, "exception_{code:02x}"),
            Self::Timeout => "timeout",
            Self::LinkDown => "link_down",
            Self::BadReply => "bad_reply",
            Self::BadCrc => "bad_crc",
            Self::NotANumber => "nan",
            Self::OutOfRange => "out_of_range",
            Self::Missing => "missing",
            Self::WrongType => "wrong_type",
        };
        f.write_str(word)
    }
}

/// One value for one column. The variant must be the column's declared type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// `Boolean`.
    Bool(bool),
    /// `Int8`.
    I8(i8),
    /// `Int16`.
    I16(i16),
    /// `Int32`.
    I32(i32),
    /// `Int64`.
    I64(i64),
    /// `UInt8`.
    U8(u8),
    /// `UInt16`.
    U16(u16),
    /// `UInt32`.
    U32(u32),
    /// `UInt64`.
    U64(u64),
    /// `Float32`; NaN and infinities become null with reason `nan`.
    F32(f32),
    /// `Float64`; NaN and infinities become null with reason `nan`.
    F64(f64),
    /// `Utf8`.
    Text(&'a str),
    /// `Binary`.
    Bytes(&'a [u8]),
    /// `Timestamp(Microsecond)`: microseconds since 1970 UTC.
    Time(i64),
}

/// Whole rows taken out of a [`TableBuilder`]: one array per point, all of one length.
#[derive(Debug, Clone)]
pub struct Rows {
    /// One array per point, in the order of [`TableBuilder::points`].
    pub columns: Vec<ArrayRef>,
    /// When each row's answer arrived.
    pub arrived: Vec<Instant>,
    /// The source's own time of each row, in microseconds since 1970 UTC, where it has one.
    pub times: Vec<Option<i64>>,
    /// Each row's quality.
    pub qualities: Vec<Quality>,
    /// With point quality: per point that is not metadata, its quality and its reason as `Utf8`.
    pub point_qualities: Vec<(ArrayRef, ArrayRef)>,
}

impl Rows {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.arrived.len()
    }

    /// True without any row.
    pub fn is_empty(&self) -> bool {
        self.arrived.is_empty()
    }
}

struct OpenRow {
    time: Option<i64>,
    good: usize,
    failed: usize,
}

/// Column builders for the rows of one source. One row is open at a time: [`TableBuilder::begin`],
/// then each point at most once in any order, then [`TableBuilder::end`].
pub struct TableBuilder {
    points: Arc<[Point]>,
    /// The points; with point quality, then the quality and the reason of each.
    columns: Columns,
    point_quality: bool,
    /// A reason in words.
    word: String,
    arrays: ArrayPool,
    arrived: Vec<Instant>,
    times: Vec<Option<i64>>,
    qualities: Vec<Quality>,
    open: Option<OpenRow>,
}

impl fmt::Debug for TableBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableBuilder")
            .field("points", &self.points.len())
            .field("rows", &self.qualities.len())
            .field("open", &self.open.is_some())
            .finish_non_exhaustive()
    }
}

impl TableBuilder {
    /// Makes empty builders for `points`; with `point_quality`, each value's quality is kept too.
    pub fn new(points: &[Point], point_quality: bool) -> Self {
        Self::sharing(points.into(), point_quality, ArrayPool::default())
    }

    /// The same over columns that somebody else holds too, with arrays out of a pool that others
    /// use too.
    pub fn sharing(points: Arc<[Point]>, point_quality: bool, arrays: ArrayPool) -> Self {
        Self {
            columns: Columns::new(types(&points, point_quality)),
            point_quality,
            word: String::new(),
            arrays,
            arrived: Vec::new(),
            times: Vec::new(),
            qualities: Vec::new(),
            open: None,
            points,
        }
    }

    /// The columns, in order.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The number of whole rows.
    pub fn len(&self) -> usize {
        self.qualities.len()
    }

    /// True without a whole row.
    pub fn is_empty(&self) -> bool {
        self.qualities.is_empty()
    }

    /// True between [`TableBuilder::begin`] and [`TableBuilder::end`]: a cancelled read goes on
    /// with the open row.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Opens a row.
    ///
    /// # Panics
    /// When a row is open already: a bug of the driver.
    pub fn begin(&mut self) {
        assert!(self.open.is_none(), "the row before is still open");
        self.open = Some(OpenRow { time: None, good: 0, failed: 0 });
        self.columns.begin();
    }

    /// Sets the source's own time of the open row, in microseconds since 1970 UTC.
    pub fn time(&mut self, micros: i64) {
        self.row().time = Some(micros);
    }

    /// Appends a value to column `point` of the open row.
    ///
    /// # Panics
    /// When the value's type is not the declared one, or the point was set before in this row.
    pub fn value(&mut self, point: usize, value: Value<'_>) {
        self.check(point);
        let finite = match value {
            Value::F32(v) => v.is_finite(),
            Value::F64(v) => v.is_finite(),
            _ => true,
        };
        if !finite {
            return self.fail(point, Reason::NotANumber);
        }
        let fits = self.columns.put(point, value);
        assert!(fits, "{value:?} is not of the type of {:?}", self.points[point]);
        if !self.points[point].metadata {
            self.row().good += 1;
        }
        if self.point_quality {
            let (quality, reason) = self.quality_columns(point);
            self.columns.put(quality, Value::Text(Quality::Good.name()));
            self.columns.put_null(reason);
        }
    }

    /// Appends null to column `point` of the open row, and why.
    pub fn fail(&mut self, point: usize, reason: Reason) {
        self.check(point);
        self.columns.put_null(point);
        if !self.points[point].metadata {
            self.row().failed += 1;
        }
        if self.point_quality {
            let (quality, why) = self.quality_columns(point);
            self.columns.put(quality, Value::Text(Quality::Bad.name()));
            self.word.clear();
            write!(self.word, "{reason}").unwrap_or_else(|_| unreachable!("text takes words"));
            self.columns.put(why, Value::Text(&self.word));
        }
    }

    fn quality_columns(&self, point: usize) -> (usize, usize) {
        let first = self.points.len() + 2 * point;
        (first, first + 1)
    }

    /// Closes the open row with the instant at which its (last) answer arrived. Points that were
    /// not set are null with reason `missing`. The row is bad where no point is good, uncertain
    /// where some failed.
    ///
    /// # Panics
    /// When no row is open: a bug of the driver.
    pub fn end(&mut self, arrived: Instant) {
        assert!(self.open.is_some(), "no row is open");
        let mut from = 0;
        while let Some(point) = self.columns.next_unset(from, self.points.len()) {
            self.fail(point, Reason::Missing);
            from = point + 1;
        }
        let Some(row) = self.open.take() else { panic!("no row is open") };
        self.qualities.push(match (row.good, row.failed) {
            (_, 0) => Quality::Good,
            (0, _) => Quality::Bad,
            _ => Quality::Uncertain,
        });
        self.times.push(row.time);
        self.arrived.push(arrived);
    }

    /// Takes all whole rows and leaves empty builders.
    ///
    /// # Panics
    /// When a row is open: close it first.
    pub fn finish(&mut self) -> Rows {
        assert!(self.open.is_none(), "a row is still open");
        let types = types(&self.points, self.point_quality);
        let mut columns = self.columns.take(types, &self.arrays);
        let qualities = columns.split_off(self.points.len());
        let mut point_qualities = Vec::with_capacity(qualities.len() / 2);
        let mut qualities = qualities.into_iter();
        for point in self.points.iter() {
            if let (Some(quality), Some(reason)) = (qualities.next(), qualities.next())
                && !point.metadata
            {
                point_qualities.push((quality, reason));
            }
        }
        Rows {
            columns,
            arrived: std::mem::take(&mut self.arrived),
            times: std::mem::take(&mut self.times),
            qualities: std::mem::take(&mut self.qualities),
            point_qualities,
        }
    }

    fn row(&mut self) -> &mut OpenRow {
        match &mut self.open {
            Some(row) => row,
            None => panic!("no row is open"),
        }
    }

    fn check(&self, point: usize) {
        assert!(self.open.is_some(), "no row is open");
        let name = &self.points[point].name;
        assert!(!self.columns.is_set(point), "{name} was set before in this row");
    }
}

/// The types of all columns.
fn types(points: &[Point], point_quality: bool) -> impl Iterator<Item = &DataType> {
    let qualities = if point_quality { 2 * points.len() } else { 0 };
    points.iter().map(|point| &point.data_type).chain(repeat_n(&DataType::Utf8, qualities))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};
    use arrow_schema::DataType;

    use super::*;

    fn points() -> Vec<Point> {
        vec![
            Point::new("u", DataType::Float64),
            Point::new("n", DataType::Int32),
            Point::metadata("topic", DataType::Utf8),
        ]
    }

    #[test]
    fn a_row_is_as_good_as_its_points() {
        let mut table = TableBuilder::new(&points(), true);
        for (u, n) in [(Some(1.0), Some(1)), (Some(f64::NAN), Some(2)), (None, None)] {
            table.begin();
            table.value(2, Value::Text("t"));
            if let Some(u) = u {
                table.value(0, Value::F64(u));
            }
            if let Some(n) = n {
                table.value(1, Value::I32(n));
            }
            table.end(Instant::now());
        }
        let rows = table.finish();
        assert_eq!(rows.qualities, [Quality::Good, Quality::Uncertain, Quality::Bad]);
        assert_eq!(rows.columns[0].null_count(), 2);
        assert_eq!(rows.point_qualities.len(), 2);
        let reasons = rows.point_qualities[0].1.as_string::<i32>();
        assert_eq!(reasons.iter().collect::<Vec<_>>(), [None, Some("nan"), Some("missing")]);
        assert!(table.is_empty());
    }

    #[test]
    #[should_panic(expected = "set before")]
    fn a_point_is_set_once_a_row() {
        let mut table = TableBuilder::new(&points(), false);
        table.begin();
        table.value(1, Value::I32(1));
        table.value(1, Value::I32(2));
    }
}
