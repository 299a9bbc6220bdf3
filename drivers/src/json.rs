//! JSON messages into columns: one pass over the bytes, no value tree.
//!
//! Only the fields that are asked for are looked at. A message is judged as a whole: one that is
//! not JSON, or not shaped as configured, gives no row at all. Within a row nothing is coerced: a
//! field that is missing or of another type is null, with the reason. Source: RFC 8259, RFC 3339.

use std::fmt;

use arrow::array::timezone::Tz;
use arrow::compute::kernels::cast_utils::string_to_datetime;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use tokio::time::Instant;

use crate::south::mqtt::{EpochUnit, FieldPoint, FieldType, JsonDecode};
use crate::table::{Reason, TableBuilder, Value};

/// Most values (rows times fields) that one message may hold: what a small message can expand to
/// in memory is bounded, at 24 MiB.
const CELLS_MAX: usize = 1 << 20;
/// Room for values that is kept between messages.
const CELLS_KEPT: usize = 1 << 14;

/// One field of one row as it stands in the message.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cell {
    /// Not there, or null.
    Absent,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    /// A range of the text buffer.
    Text(usize, usize),
    /// An array or an object.
    Other,
}

/// A key of the paths that are looked for.
#[derive(Debug, Default)]
struct Node {
    /// Sorted by key.
    children: Vec<(String, Node)>,
    /// The cells of a row that take the value of this key.
    slots: Vec<usize>,
}

impl Node {
    fn insert(&mut self, path: &str, slot: usize) {
        let mut node = self;
        for key in path.split('.') {
            let at = match node.children.binary_search_by(|(k, _)| k.as_str().cmp(key)) {
                Ok(at) => at,
                Err(at) => {
                    node.children.insert(at, (key.to_owned(), Self::default()));
                    at
                }
            };
            node = &mut node.children[at].1;
        }
        node.slots.push(slot);
    }

    fn child(&self, key: &str) -> Option<&Self> {
        let at = self.children.binary_search_by(|(k, _)| k.as_str().cmp(key)).ok()?;
        Some(&self.children[at].1)
    }
}

/// Turns messages into rows by a fixed set of fields. Keeps its buffers from message to message.
pub(crate) struct Decoder {
    row: Node,
    types: Vec<FieldType>,
    /// The cell of the row's own time, behind those of the fields.
    time_slot: Option<usize>,
    time_unit: EpochUnit,
    /// Keys down to the array of rows.
    rows_path: Option<Vec<String>>,
    utc: Option<Tz>,
    found: Found,
}

/// What was found in the current message.
#[derive(Default)]
struct Found {
    /// Cells of a row.
    width: usize,
    rows: usize,
    cells: Vec<Cell>,
    text: String,
}

/// What goes with each row of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) topic: &'a str,
    pub(crate) qos: u8,
    pub(crate) retained: bool,
    pub(crate) arrived: Instant,
}

impl Decoder {
    /// Makes a decoder for `points`, in the order of their columns.
    pub(crate) fn new(points: &[FieldPoint], json: &JsonDecode) -> Self {
        let mut row = Node::default();
        for (slot, point) in points.iter().enumerate() {
            row.insert(point.path.as_deref().unwrap_or(point.name.as_str()), slot);
        }
        let time_slot = json.time.as_deref().map(|path| {
            row.insert(path, points.len());
            points.len()
        });
        let width = points.len() + usize::from(time_slot.is_some());
        Self {
            row,
            types: points.iter().map(|p| p.value_type).collect(),
            time_slot,
            time_unit: json.time_unit,
            rows_path: json.rows.as_deref().map(|p| p.split('.').map(str::to_owned).collect()),
            utc: "+00:00".parse().ok(),
            found: Found { width, ..Found::default() },
        }
    }

    /// Reads one message. Returns the number of its rows, which [`Decoder::append`] then appends;
    /// an error says in words why the message gives none.
    pub(crate) fn read(&mut self, message: &[u8]) -> Result<usize, String> {
        let found = &mut self.found;
        found.rows = 0;
        found.cells.clear();
        found.cells.shrink_to(CELLS_KEPT);
        found.text.clear();
        let mut json = serde_json::Deserializer::from_slice(message);
        let shape = match &self.rows_path {
            None => Rows { row: &self.row, found, path: &[], single: true },
            Some(path) => Rows { row: &self.row, found, path, single: false },
        };
        shape.deserialize(&mut json).and_then(|()| json.end()).map_err(|e| e.to_string())?;
        Ok(found.rows)
    }

    /// Appends the rows of the message that was read last: the fields, then topic, QoS and the
    /// retain flag. Returns how many rows have no readable time although one is configured; they
    /// are appended without.
    pub(crate) fn append(&self, rows: &mut TableBuilder, origin: Origin<'_>) -> u64 {
        let fields = self.types.len();
        self.append_with(rows, origin.arrived, true, |rows| {
            rows.value(fields, Value::Text(origin.topic));
            rows.value(fields + 1, Value::U8(origin.qos));
            rows.value(fields + 2, Value::Bool(origin.retained));
        })
    }

    /// The first row's own time in the message that was read last.
    pub(crate) fn first_time(&self) -> Option<i64> {
        self.found.cells.get(self.time_slot?).and_then(|cell| self.micros(*cell))
    }

    /// The same with what the table has besides the fields, which `more` appends; without `timed`,
    /// rows do not take their own time.
    pub(crate) fn append_with(
        &self,
        rows: &mut TableBuilder,
        arrived: Instant,
        timed: bool,
        more: impl Fn(&mut TableBuilder),
    ) -> u64 {
        let found = &self.found;
        let mut timeless = 0;
        for row in 0..found.rows {
            let cells = &found.cells[row * found.width..(row + 1) * found.width];
            rows.begin();
            for (point, (cell, of)) in cells.iter().zip(&self.types).enumerate() {
                match typed(*cell, *of, &found.text) {
                    Ok(value) => rows.value(point, value),
                    Err(reason) => rows.fail(point, reason),
                }
            }
            if let Some(slot) = self.time_slot.filter(|_| timed) {
                match self.micros(cells[slot]) {
                    Some(micros) => rows.time(micros),
                    None => timeless += 1,
                }
            }
            more(rows);
            rows.end(arrived);
        }
        timeless
    }

    /// The time that a cell says. A number beyond 64 bits of microseconds is the last or the first
    /// instant of all: whoever judges times sees what it is.
    fn micros(&self, cell: Cell) -> Option<i64> {
        let factor = self.time_unit.micros();
        match cell {
            Cell::Int(number) => Some(number.saturating_mul(factor)),
            Cell::Uint(number) => {
                Some(i64::try_from(number).unwrap_or(i64::MAX).saturating_mul(factor))
            }
            Cell::Float(number) => {
                let end = if number > 0.0 { i64::MAX } else { i64::MIN };
                (!number.is_nan()).then(|| whole(number * factor as f64).unwrap_or(end))
            }
            Cell::Text(from, to) => rfc3339(&self.found.text[from..to], self.utc?),
            Cell::Absent | Cell::Bool(_) | Cell::Other => None,
        }
    }
}

/// The value of `cell` where it is of the type that the field declares.
fn typed(cell: Cell, of: FieldType, text: &str) -> Result<Value<'_>, Reason> {
    match (of, cell) {
        (_, Cell::Absent) => Err(Reason::Missing),
        (FieldType::Bool, Cell::Bool(v)) => Ok(Value::Bool(v)),
        (FieldType::I64, Cell::Int(v)) => Ok(Value::I64(v)),
        (FieldType::I64, Cell::Uint(v)) => {
            i64::try_from(v).map(Value::I64).map_err(|_| Reason::OutOfRange)
        }
        (FieldType::U64, Cell::Uint(v)) => Ok(Value::U64(v)),
        (FieldType::U64, Cell::Int(v)) => {
            u64::try_from(v).map(Value::U64).map_err(|_| Reason::OutOfRange)
        }
        (FieldType::F64, Cell::Float(v)) => Ok(Value::F64(v)),
        (FieldType::F64, Cell::Int(v)) => Ok(Value::F64(v as f64)),
        (FieldType::F64, Cell::Uint(v)) => Ok(Value::F64(v as f64)),
        (FieldType::String, Cell::Text(from, to)) => Ok(Value::Text(&text[from..to])),
        _ => Err(Reason::WrongType),
    }
}

/// Microseconds of an RFC 3339 time. Arrow's parser also takes a date alone and a time without a
/// zone, which would be guesses; RFC 3339 has a `T` (or space) and ends with `Z` or an offset.
pub(crate) fn rfc3339(text: &str, utc: Tz) -> Option<i64> {
    let bytes = text.as_bytes();
    let zulu = matches!(bytes.last(), Some(b'Z' | b'z'));
    let offset = bytes.len() >= 6
        && matches!(bytes[bytes.len() - 6], b'+' | b'-')
        && bytes[bytes.len() - 3] == b':';
    if bytes.len() < 20 || !(zulu || offset) {
        return None;
    }
    string_to_datetime(&utc, text).ok().map(|time| time.timestamp_micros())
}

/// A number as whole microseconds, rounded.
pub(crate) fn whole(micros: f64) -> Option<i64> {
    let rounded = micros.round();
    // 2^63: the first f64 beyond i64.
    if rounded.is_nan() || rounded.abs() >= 9_223_372_036_854_775_808.0 {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "the range was checked above")]
    Some(rounded as i64)
}

impl Found {
    fn begin_row<E: serde::de::Error>(&mut self) -> Result<usize, E> {
        let base = self.cells.len();
        if base + self.width > CELLS_MAX {
            return Err(E::custom(format!("the message has more than {CELLS_MAX} values")));
        }
        self.cells.resize(base + self.width, Cell::Absent);
        self.rows += 1;
        Ok(base)
    }
}

/// Finds the rows: goes down `path`, then takes an array of rows, or a single row.
struct Rows<'a> {
    row: &'a Node,
    found: &'a mut Found,
    path: &'a [String],
    single: bool,
}

impl<'de> DeserializeSeed<'de> for Rows<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Rows<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.path.first(), self.single) {
            (Some(key), _) => write!(f, "an object with the key `{key}`"),
            (None, true) => f.write_str("an object, or an array of objects"),
            (None, false) => f.write_str("an array of objects"),
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let Some((wanted, deeper)) = self.path.split_first() else {
            if self.single {
                let base = self.found.begin_row()?;
                return Fields { node: self.row, found: self.found, base }.visit_map(map);
            }
            return Err(A::Error::invalid_type(serde::de::Unexpected::Map, &self));
        };
        let mut seen = false;
        while let Some(matches) = map.next_key_seed(IsKey(wanted))? {
            if !matches {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if seen {
                return Err(A::Error::custom(format!("the key `{wanted}` stands twice")));
            }
            seen = true;
            let Self { row, found, .. } = &mut self;
            map.next_value_seed(Rows { row, found, path: deeper, single: false })?;
        }
        if seen { Ok(()) } else { Err(A::Error::custom(format!("the key `{wanted}` is missing"))) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        if !self.path.is_empty() {
            return Err(A::Error::invalid_type(serde::de::Unexpected::Seq, &self));
        }
        while seq.next_element_seed(Row { row: self.row, found: &mut *self.found })?.is_some() {}
        Ok(())
    }
}

/// True where a key is the wanted one.
struct IsKey<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for IsKey<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for IsKey<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

/// One element of the array of rows.
struct Row<'a> {
    row: &'a Node,
    found: &'a mut Found,
}

impl<'de> DeserializeSeed<'de> for Row<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Row<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row, which is an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let base = self.found.begin_row()?;
        Fields { node: self.row, found: self.found, base }.visit_map(map)
    }
}

/// The value at a node of the paths; the object's keys lead on.
struct Fields<'a> {
    node: &'a Node,
    found: &'a mut Found,
    base: usize,
}

impl Fields<'_> {
    fn set(self, cell: Cell) {
        for slot in &self.node.slots {
            self.found.cells[self.base + slot] = cell;
        }
    }
}

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<(), E> {
        self.set(Cell::Bool(v));
        Ok(())
    }

    fn visit_i64<E>(self, v: i64) -> Result<(), E> {
        self.set(Cell::Int(v));
        Ok(())
    }

    fn visit_u64<E>(self, v: u64) -> Result<(), E> {
        self.set(Cell::Uint(v));
        Ok(())
    }

    fn visit_f64<E>(self, v: f64) -> Result<(), E> {
        self.set(Cell::Float(v));
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.set(Cell::Absent);
        Ok(())
    }

    fn visit_str<E>(self, v: &str) -> Result<(), E> {
        if !self.node.slots.is_empty() {
            let from = self.found.text.len();
            self.found.text.push_str(v);
            let to = self.found.text.len();
            self.set(Cell::Text(from, to));
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        self.set(Cell::Other);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(child) = map.next_key_seed(Lookup(self.node))? {
            match child {
                Some(node) => {
                    map.next_value_seed(Fields { node, found: &mut *self.found, base: self.base })?;
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        self.set(Cell::Other);
        Ok(())
    }
}

/// The child of a node that a key leads to.
struct Lookup<'a>(&'a Node);

impl<'de, 'a> DeserializeSeed<'de> for Lookup<'a> {
    type Value = Option<&'a Node>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Lookup<'a> {
    type Value = Option<&'a Node>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.child(key))
    }
}

#[cfg(test)]
mod tests;
