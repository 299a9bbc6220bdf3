//! Checks of the document's own tests, so that a slip in a test is found before it is run.

use std::collections::BTreeMap;

use arrow_schema::{DataType, Schema};

use super::{Checker, ERROR_COLUMN, REASON_COLUMN, Results, SqlPlanner, path_of};
use crate::chain::Latest;
use crate::code::Code;
use crate::path::Path;
use crate::problem::Problem;
use crate::similar::suggest;
use crate::{Failed, Name, ProcessSection, Route, Scalar, StreamTest, Table, TestRow, TestRun};

/// Columns of a record that stand in no table: its id, its quality, the stream that it names.
const RECORD_COLUMNS: [&str; 3] = ["_id", "_quality", "_stream"];

impl Checker<'_> {
    pub(super) fn cases(&mut self, results: &Results, planner: &dyn SqlPlanner) {
        let latest = |sql: &str| planner.latest(sql).into_iter().map(|(name, _)| name).collect();
        for (index, test) in self.document.tests.iter().enumerate() {
            let path = path_of("tests").then(index);
            self.contained(&path, |checker| checker.case(test, results, &latest, &path));
        }
    }

    fn case(&mut self, test: &StreamTest, results: &Results, latest: Latest<'_>, path: &Path) {
        if !self.refers("stream", "streams", &test.stream, &path.then("stream")) {
            return;
        }
        let Some(run) = self.document.test_run(test, latest) else {
            return;
        };
        for (row_index, row) in test.input.iter().enumerate() {
            self.row(test, &run, row, &path.then("input").then(row_index));
        }
        self.until(test, path);
        self.programs(test, &run, path);
        self.failed(test, &run, path);
        let streams = &self.document.streams;
        if let Some(at) = streams.iter().position(|s| s.name == test.stream) {
            let made = streams[at].process.as_ref().filter(|_| test.programs);
            let made = made.map(ProcessSection::schema);
            if let Some(result) = made.as_ref().or_else(|| results.get(&at)) {
                self.expected(test, result, &path.join("expect.rows"));
            }
        }
        for (sink, rows) in &test.expect.sinks {
            let path = path.join("expect.sinks").then(sink.as_str());
            self.sent(&run, results, (sink, rows), &path);
        }
    }

    /// Streams that are to fail on rows must run.
    fn failed(&mut self, test: &StreamTest, run: &TestRun, path: &Path) {
        let Failed::Streams(streams) = &test.expect.failed else {
            return;
        };
        let names = run.streams.iter().map(|at| self.document.streams[*at].name.as_str());
        let known: Vec<&str> = names.collect();
        for name in streams.keys().filter(|name| !known.contains(&name.as_str())) {
            let message = format!("the test runs no stream `{name}`");
            let hint = suggest(name.as_str(), &known);
            let path = path.join("expect.failed").then(name.as_str());
            let problem = self.loaded.spans.problem_with_key(Code::UnknownName, &path, message);
            self.problems.push(Problem { hint, ..problem });
        }
    }

    fn until(&mut self, test: &StreamTest, path: &Path) {
        let last = test.input.iter().map(|row| row.at).max();
        if let (Some(until), Some(last)) = (test.until, last)
            && until < last
        {
            let message = format!("the test ends at {until}, before its row at {last}");
            let hint = "leave `until` out, or name a later time";
            self.say(Code::SpanRange, &path.then("until"), message, Some(hint));
        }
    }

    /// What is read through a program is made by it.
    fn programs(&mut self, test: &StreamTest, run: &TestRun, path: &Path) {
        let streams = run.streams.iter().map(|at| &self.document.streams[*at]);
        let with: Vec<_> = streams.filter(|stream| stream.process.is_some()).collect();
        if test.programs && with.is_empty() {
            let message = "no stream of the test has a program";
            let hint = "leave `programs` out";
            self.say(Code::TestChain, &path.then("programs"), message, Some(hint));
        }
        let through = with.iter().find(|stream| stream.name != test.stream && !test.programs);
        if let Some(stream) = through {
            let name = &stream.name;
            let message = format!("the rows of `{name}` are made by its program");
            let hint = format!("write `programs: true`, or give rows of `{name}` in `input`");
            self.say(Code::TestChain, &path.then("stream"), message, Some(&hint));
        }
    }

    /// Checks what a sink is expected to be sent.
    fn sent(
        &mut self,
        run: &TestRun,
        results: &Results,
        (sink, rows): (&Name, &Vec<BTreeMap<String, Scalar>>),
        path: &Path,
    ) {
        if !self.refers("sink", "sinks", sink, path) {
            return;
        }
        let mut known: Vec<String> = RECORD_COLUMNS.map(str::to_owned).to_vec();
        let mut reached = false;
        for at in &run.streams {
            let stream = &self.document.streams[*at];
            let routed = |routes: &[Route]| routes.iter().any(|route| route.sink == *sink);
            let names = |schema: &Schema| {
                schema.fields().iter().map(|f| f.name().clone()).collect::<Vec<_>>()
            };
            if routed(&stream.to) {
                let made = stream.process.as_ref().map(ProcessSection::schema);
                let made = made.as_ref().or_else(|| results.get(at));
                known.extend(made.map(|schema| names(schema)).unwrap_or_default());
                reached = true;
            }
            let late = stream.late.as_ref().is_some_and(|late| routed(&late.to));
            let failed = stream.on_error.as_ref().is_some_and(|failed| routed(&failed.to));
            let beside = [(late, REASON_COLUMN), (failed, ERROR_COLUMN)];
            for (_, column) in beside.into_iter().filter(|(routed, _)| *routed) {
                let tables = self
                    .tables
                    .iter()
                    .filter(|table| stream.from.iter().any(|name| name.as_str() == table.name));
                known.extend(tables.flat_map(|table| names(&table.columns)));
                known.push(column.to_owned());
                reached = true;
            }
        }
        if !reached {
            let message = format!("no stream of the test sends to the sink `{sink}`");
            self.say(Code::TestChain, path, message, None);
            return;
        }
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        for (index, row) in rows.iter().enumerate() {
            for column in row.keys().filter(|column| !known.contains(&column.as_str())) {
                let message = format!("no record for `{sink}` has a column `{column}`");
                let hint = suggest(column, &known);
                let path = path.then(index).then(column.as_str());
                let problem = self.loaded.spans.problem_with_key(Code::TestColumn, &path, message);
                self.problems.push(Problem { hint, ..problem });
            }
        }
    }

    fn row(&mut self, test: &StreamTest, run: &TestRun, row: &TestRow, path: &Path) {
        let Some(table) = self.table_of(test, run, row, path) else {
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

    /// The table of a row: what it says, or the stream's only one.
    fn table_of(
        &mut self,
        test: &StreamTest,
        run: &TestRun,
        row: &TestRow,
        path: &Path,
    ) -> Option<Table> {
        let document = self.document;
        let Some(name) = document.given_to(test, row) else {
            let message = format!("the stream `{}` reads several tables", test.stream);
            let hint = "say which one the row is for: `table: …`";
            self.say(Code::TestRow, path, message, Some(hint));
            return None;
        };
        if row.table.is_some() && !run.reads.contains(name.as_str()) {
            let known: Vec<_> = run.reads.iter().map(String::as_str).collect();
            let message = format!(
                "the stream `{}` does not read `{name}`, nor do those of the test behind it",
                test.stream
            );
            let given = run.reads.iter().find(|read| {
                let stream = document.streams.iter().position(|s| s.name.as_str() == **read);
                stream.is_some_and(|at| !run.streams.contains(&at))
            });
            let exists = self.tables.iter().any(|table| table.name == name.as_str());
            let hint = match given.filter(|_| exists) {
                Some(given) => {
                    Some(format!("rows of `{given}` are given, so that stream does not run"))
                }
                None => suggest(name.as_str(), &known),
            };
            self.say(Code::UnknownName, &path.then("table"), message, hint.as_deref());
            return None;
        }
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
