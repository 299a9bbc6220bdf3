//! Checks of streams: where they read from and send to, their windows, and their SQL.

use std::collections::BTreeSet;

use arrow_schema::SchemaRef;

use super::{Checker, Results, SqlPlanner, SqlProblem, TableKind, path_of};
use crate::code::Code;
use crate::path::Path;
use crate::problem::Problem;
use crate::{KeptRows, ProcessSection, Span, StreamSection, Window};

/// Workers of a stream at most: threads are at most four.
const WORKERS_MAX: u32 = 16;
/// Bytes of the path of a Unix socket (unix(7)).
const SOCKET_PATH_MAX: usize = 107;
/// Longest time that a program may take: its stream does nothing else meanwhile.
const PROCESS_TIMEOUT_MAX: Span = Span::from_secs(600);

impl Checker<'_> {
    pub(super) fn streams(&mut self, planner: &dyn SqlPlanner) -> Results {
        let (mut results, mut held) = (Results::new(), Vec::new());
        for index in self.stream_order(planner) {
            let path = path_of("streams").then(index);
            let checked = self.contained(&path, |checker| checker.stream(index, planner, &path));
            if let Some((schema, kept)) = checked.flatten() {
                results.insert(index, schema);
                held.extend(kept.map(|rows| (index, rows)));
            }
        }
        for (index, kept) in held {
            self.held(&self.document.streams[index], &path_of("streams").then(index), &kept);
        }
        results
    }

    /// Checks one stream. With a stream that can be planned come the columns of its results and which
    /// rows it keeps.
    fn stream(
        &mut self,
        index: usize,
        planner: &dyn SqlPlanner,
        path: &Path,
    ) -> Option<(SchemaRef, Option<KeptRows>)> {
        let stream = &self.document.streams[index];
        let tables_known = self.from(stream, path);
        self.routes(stream, path);
        if self.is_damaged("streams", &stream.name) {
            return None;
        }
        if stream.to.is_empty() && !self.is_read(stream, planner) {
            let message = format!("the results of `{}` go nowhere", stream.name);
            let hint = "name a sink, `to: [ { sink: … } ]`, or let another stream read it";
            self.say(Code::NoSink, &path.then("to"), message, Some(hint));
        }
        self.window(stream, path);
        self.workers(stream, &path.then("workers"));
        if let Some(process) = &stream.process {
            self.process(process, &path.then("process"));
        }
        if !tables_known {
            return None;
        }
        if let Some(window) = &stream.window {
            self.window_columns(planner, stream, window, path);
        }
        let tables = self.planned_tables(stream, planner, path)?;
        let from = tables.iter().filter(|table| table.kind == TableKind::From);
        let columns: Vec<_> = from.map(|table| table.schema.clone()).collect();
        let schema = match planner.plan(&stream.sql, &tables, stream.window.is_some()) {
            Ok(schema) => schema,
            Err(problem) => {
                self.sql(&path.then("sql"), problem);
                return None;
            }
        };
        // Others and routes see what the program makes of it; the document's tests what it is given.
        let given = stream.process.as_ref().map(ProcessSection::schema);
        let given = given.as_ref().unwrap_or(&schema);
        self.becomes_table(stream, given);
        self.conditions(planner, stream, given, &columns, path);
        Some((schema, planner.keeps_rows(self.document, stream)))
    }

    /// Checks that rows which are kept, until their windows are over or time has passed them, fit
    /// where they are kept.
    fn held(&mut self, stream: &StreamSection, path: &Path, kept: &KeptRows) {
        let bytes = match kept {
            KeptRows::OfWindows(_) => stream.held_rows(self.document),
            KeptRows::Waiting(behind) => stream.waiting_rows(self.document, *behind),
        };
        let Some(bytes) = bytes else {
            return;
        };
        let (memory, log) = (self.document.stream_memory(), self.document.log_bytes());
        let (where_to, max) = if bytes > memory {
            ("`limits.memory` leaves each stream", memory)
        } else if bytes > log {
            ("`store.max_bytes` leaves the logs", log)
        } else {
            return;
        };
        let weigh = format!(
            "weigh about {} MiB at the rates of its devices, more than the {max} that {where_to}",
            bytes.get().div_ceil(1 << 20)
        );
        let (at, message, hint) = match kept {
            KeptRows::OfWindows(reason) => (
                "window",
                format!("the rows of its windows {weigh}; they are kept because {reason}"),
                "shorten the window, raise the bound, or use SQL whose rows are folded as they come",
            ),
            KeptRows::Waiting(behind) => (
                "allowed_lateness",
                format!(
                    "the rows that wait until the watermark is {} s behind them {weigh}; its \
                     functions over time take them in order",
                    behind.as_secs()
                ),
                "let rows come less late, or raise the bound",
            ),
        };
        self.say(Code::WindowShape, &path.then(at), message, Some(hint));
    }

    /// Checks the tables. False where SQL cannot be planned against them.
    fn from(&mut self, stream: &StreamSection, path: &Path) -> bool {
        let path = path.then("from");
        if stream.from.is_empty() && !self.is_damaged("streams", &stream.name) {
            let hint = "name the tables that the SQL reads";
            self.say(Code::EmptyList, &path, "`from` names no table", Some(hint));
            return false;
        }
        let mut usable = true;
        let mut seen = BTreeSet::new();
        for (index, table) in stream.from.iter().enumerate() {
            let path = path.then(index);
            usable &= !self.is_damaged("tables", table) && !self.unsound.contains(table.as_str());
            if !seen.insert(table) {
                let message = format!("the table `{table}` stands twice in `from`");
                self.say(Code::NameTwice, &path, message, Some("name each table once"));
            }
            usable &= self.reads(table, &path);
        }
        usable
    }

    /// Notes a table that is none; a device or a lookup of that name is a common slip. False where
    /// SQL cannot be planned against it.
    fn reads(&mut self, table: &crate::Name, path: &Path) -> bool {
        if self.tables.iter().any(|t| t.name == table.as_str()) {
            return true;
        }
        if self.document.streams.iter().any(|s| s.name == *table) {
            return self.reads_stream(table, path);
        }
        if self.is_damaged("streams", table) || self.is_damaged("lookups", table) {
            return false;
        }
        let device = self.document.devices.iter().find(|d| d.name == *table);
        let hint = match device {
            Some(device) => format!(
                "the device `{table}` puts its rows into the table `{}`",
                device.table_name()
            ),
            None if self.document.lookups.iter().any(|l| l.name == *table) => {
                "a lookup has no rows that come: leave it out here, and join it in the SQL"
                    .to_owned()
            }
            None => return self.refers("table", "tables", table, path),
        };
        self.say(Code::UnknownName, path, format!("there is no table `{table}`"), Some(&hint));
        false
    }

    fn window(&mut self, stream: &StreamSection, path: &Path) {
        if stream.window.is_some() && stream.idle_after.is_some_and(|s| s.duration().is_zero()) {
            let hint = "write how long a source may be silent, such as `5s`";
            let message = "with 0s each source counts as silent at once";
            self.say(Code::SpanRange, &path.then("idle_after"), message, Some(hint));
        }
        let Some(Window::Tumbling(tumbling)) = &stream.window else {
            if let Some(window) = &stream.window {
                self.window_lengths(stream, window, path);
            }
            return;
        };
        let path = path.then("window").then("tumbling");
        self.window_zone(tumbling.size, tumbling.timezone.as_deref(), &path);
        if tumbling.size.duration().is_zero() {
            let hint = "write the length of a window, such as `10s`";
            self.say(
                Code::WindowShape,
                &path.then("size"),
                "a window of 0s holds nothing",
                Some(hint),
            );
        } else if tumbling.offset >= tumbling.size {
            let message =
                format!("the offset {} is not less than {}", tumbling.offset, tumbling.size);
            let hint = "windows repeat after their size: a larger offset means a smaller one";
            self.say(Code::WindowShape, &path.then("offset"), message, Some(hint));
        }
    }

    fn workers(&mut self, stream: &StreamSection, path: &Path) {
        let workers = stream.workers;
        if !(1..=WORKERS_MAX).contains(&workers) {
            let hint = format!("write a number from 1 to {WORKERS_MAX}");
            self.say(Code::LimitRange, path, format!("`workers` is {workers}"), Some(&hint));
        } else if workers > 1 && stream.window.is_some() {
            let message = "a window is computed as a whole";
            let hint = "leave `workers` out: it is for streams without a window";
            self.say(Code::WindowShape, path, message, Some(hint));
        }
    }

    fn process(&mut self, process: &ProcessSection, path: &Path) {
        let (socket, timeout) = (&process.socket, process.timeout);
        if !socket.starts_with('/') || socket.len() > SOCKET_PATH_MAX {
            let message = format!("`{socket}` is no path of a Unix socket");
            let hint = format!("write a path from the root, of up to {SOCKET_PATH_MAX} bytes");
            self.say(Code::BadValue, &path.then("socket"), message, Some(&hint));
        }
        if timeout.duration().is_zero() || timeout > PROCESS_TIMEOUT_MAX {
            let message = format!("a program that may take {timeout} is no use");
            let hint = format!("write a time of up to {PROCESS_TIMEOUT_MAX}, such as `5s`");
            self.say(Code::SpanRange, &path.then("timeout"), message, Some(&hint));
        }
        let columns = path.then("columns");
        if process.columns.is_empty() {
            let hint = "name the columns of the rows that the program gives";
            self.say(Code::EmptyList, &columns, "`columns` names no column", Some(hint));
        }
        let mut seen = BTreeSet::new();
        for (index, column) in process.columns.iter().enumerate() {
            if !seen.insert(&column.name) {
                let message = format!("two columns are called `{}`", column.name);
                let path = columns.then(index).then("name");
                self.say(Code::ColumnTwice, &path, message, Some("names are unique"));
            }
        }
    }

    pub(super) fn sql(&mut self, path: &Path, problem: SqlProblem) {
        let SqlProblem { message, position, hint } = problem;
        let spans = &self.loaded.spans;
        let found = match position {
            Some(inside) => spans.problem_inside(inside, Code::Sql, path, message),
            None => spans.problem(Code::Sql, path, message),
        };
        self.problems.push(Problem { hint, ..found });
    }
}
