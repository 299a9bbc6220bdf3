//! Checks of the document's own tests, so that a slip in a test is found before it is run.

use arrow_schema::{DataType, Schema};

use super::{Checker, Results, SqlPlanner, path_of};
use crate::code::Code;
use crate::path::Path;
use crate::problem::Problem;
use crate::similar::suggest;
use crate::{Scalar, StreamSection, StreamTest, Table, TestRow};

impl Checker<'_> {
    pub(super) fn cases(&mut self, results: &Results, planner: &dyn SqlPlanner) {
        for (index, test) in self.document.tests.iter().enumerate() {
            let path = path_of("tests").then(index);
            if !self.refers("stream", "streams", &test.stream, &path.then("stream")) {
                continue;
            }
            let streams = &self.document.streams;
            let Some(at) = streams.iter().position(|s| s.name == test.stream) else {
                continue;
            };
            let stream = &streams[at];
            let looked_at = planner.latest(&stream.sql).into_iter();
            let looked_at = looked_at.filter_map(|(name, _)| self.document.latest_of(&name));
            let from = stream.from.iter().map(ToString::to_string);
            let reads: Vec<String> = from.chain(looked_at.map(|of| of.table)).collect();
            for (row_index, row) in test.input.iter().enumerate() {
                self.row(stream, &reads, row, &path.then("input").then(row_index));
            }
            if let Some(result) = results.get(&at) {
                self.expected(test, result, &path.join("expect.rows"));
            }
        }
    }

    fn row(&mut self, stream: &StreamSection, reads: &[String], row: &TestRow, path: &Path) {
        let Some(table) = self.table_of(stream, reads, row, path) else {
            return;
        };
        let names: Vec<_> = table.devices.iter().map(|d| &self.document.devices[*d].name).collect();
        match &row.device {
            // The rows of a stream may be of any device.
            Some(device) if !names.is_empty() && !names.contains(&device) => {
                let known: Vec<_> = names.iter().map(|n| n.as_str()).collect();
                let message = format!("the table `{}` has no device `{device}`", table.name);
                let hint = suggest(device.as_str(), &known);
                self.say(Code::UnknownName, &path.then("device"), message, hint.as_deref());
            }
            None if names.len() > 1 => {
                let message = format!("the table `{}` has several devices", table.name);
                let hint = "say which one the row is from: `device: …`";
                self.say(Code::TestRow, path, message, Some(hint));
            }
            _ => {}
        }
        for (column, value) in &row.values {
            if ["time", "seq"].contains(&column.as_str()) {
                let message = format!("`{column}` is not given: rows are stamped by `at`");
                let path = path.then(column.as_str());
                let problem = self.loaded.spans.problem_with_key(Code::TestColumn, &path, message);
                self.problems.push(problem);
                continue;
            }
            self.value(&table.columns, column, value, &path.then(column.as_str()));
        }
    }

    /// The table of a row: what it says, or the stream's only one. `reads` are all that it may be.
    fn table_of(
        &mut self,
        stream: &StreamSection,
        reads: &[String],
        row: &TestRow,
        path: &Path,
    ) -> Option<Table> {
        let name = match (&row.table, stream.from.as_slice()) {
            (Some(name), _) if reads.iter().any(|read| read == name.as_str()) => name,
            (Some(name), _) => {
                let known: Vec<_> = reads.iter().map(String::as_str).collect();
                let message = format!("the stream `{}` does not read `{name}`", stream.name);
                let hint = suggest(name.as_str(), &known);
                self.say(Code::UnknownName, &path.then("table"), message, hint.as_deref());
                return None;
            }
            (None, [only]) => only,
            (None, _) => {
                let message = format!("the stream `{}` reads several tables", stream.name);
                let hint = "say which one the row is for: `table: …`";
                self.say(Code::TestRow, path, message, Some(hint));
                return None;
            }
        };
        let sound = !self.is_damaged("tables", name);
        self.tables.iter().find(|t| sound && t.name == name.as_str()).cloned()
    }

    fn value(&mut self, schema: &Schema, column: &str, value: &Scalar, path: &Path) {
        let Ok(field) = schema.field_with_name(column) else {
            let known: Vec<_> = schema.fields().iter().map(|f| f.name().as_str()).collect();
            let message = format!("there is no column `{column}`");
            let hint = suggest(column, &known);
            let problem = self.loaded.spans.problem_with_key(Code::TestColumn, path, message);
            self.problems.push(Problem { hint, ..problem });
            return;
        };
        if !fits(field.data_type(), value) {
            let message = format!("the column `{column}` takes {}", in_words(field.data_type()));
            self.say(Code::TestColumn, path, message, None);
        }
    }

    fn expected(&mut self, test: &StreamTest, result: &Schema, path: &Path) {
        for (index, row) in test.expect.rows.iter().flatten().enumerate() {
            for (column, value) in row {
                self.value(result, column, value, &path.then(index).then(column.as_str()));
            }
        }
    }
}

/// True where a value can stand in a column. A whole number may stand for a fractional one, and a
/// text for whatever has no literal of its own.
fn fits(data_type: &DataType, value: &Scalar) -> bool {
    match value {
        Scalar::Null => true,
        Scalar::Bool(_) => matches!(data_type, DataType::Boolean),
        Scalar::Int(_) | Scalar::UInt(_) => data_type.is_numeric(),
        Scalar::Float(_) => {
            data_type.is_floating() || matches!(data_type, DataType::Decimal128(..))
        }
        Scalar::Text(_) => !data_type.is_numeric() && !matches!(data_type, DataType::Boolean),
    }
}

fn in_words(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Boolean => "`true` or `false`",
        t if t.is_integer() => "a whole number",
        t if t.is_numeric() => "a number",
        DataType::Timestamp(..) => "a time as text, such as \"2026-01-01T00:00:00Z\"",
        _ => "a text",
    }
}
