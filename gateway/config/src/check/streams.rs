//! Checks of streams: where they read from and send to, their windows, and their SQL.

use std::collections::BTreeSet;

use super::{Checker, Results, SqlPlanner, SqlProblem, TableKind, path_of};
use crate::code::Code;
use crate::path::Path;
use crate::problem::Problem;
use crate::{StreamSection, Window};

impl Checker<'_> {
    pub(super) fn streams(&mut self, planner: &dyn SqlPlanner) -> Results {
        let (mut results, mut held) = (Results::new(), Vec::new());
        for index in self.stream_order(planner) {
            let stream = &self.document.streams[index];
            let path = path_of("streams").then(index);
            let tables_known = self.from(stream, &path);
            self.routes(stream, &path);
            if self.is_damaged("streams", &stream.name) {
                continue;
            }
            if stream.to.is_empty() && !self.is_read(stream, planner) {
                let message = format!("the results of `{}` go nowhere", stream.name);
                let hint = "name a sink, `to: [ { sink: … } ]`, or let another stream read it";
                self.say(Code::NoSink, &path.then("to"), message, Some(hint));
            }
            self.window(stream, &path);
            if !tables_known {
                continue;
            }
            if let Some(window) = &stream.window {
                self.window_columns(planner, stream, window, &path);
            }
            let Some(tables) = self.planned_tables(stream, planner, &path) else {
                continue;
            };
            let from = tables.iter().filter(|table| table.kind == TableKind::From);
            let columns: Vec<_> = from.map(|table| table.schema.clone()).collect();
            match planner.plan(&stream.sql, &tables, stream.window.is_some()) {
                Ok(schema) => {
                    self.becomes_table(stream, &schema);
                    self.conditions(planner, stream, &schema, &columns, &path);
                    results.insert(index, schema);
                    held.extend(planner.keeps_rows(self.document, stream).map(|why| (index, why)));
                }
                Err(problem) => self.sql(&path.then("sql"), problem),
            }
        }
        for (index, reason) in held {
            self.held(&self.document.streams[index], &path_of("streams").then(index), &reason);
        }
        results
    }

    /// Checks that rows which are kept until their windows are over fit where they are kept.
    fn held(&mut self, stream: &StreamSection, path: &Path, reason: &str) {
        let Some(bytes) = stream.held_rows(self.document) else {
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
        let message = format!(
            "the rows of its windows weigh about {} MiB at the rates of its devices, more than the \
             {max} that {where_to}; they are kept because {reason}",
            bytes.get().div_ceil(1 << 20)
        );
        let hint =
            "shorten the window, raise the bound, or use SQL whose rows are folded as they come";
        self.say(Code::WindowShape, &path.then("window"), message, Some(hint));
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
