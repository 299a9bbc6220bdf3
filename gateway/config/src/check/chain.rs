//! Checks of streams that read each other: circles, and whether results make a table.

use super::{Checker, PlannedTable, SqlPlanner, TableKind, path_of};
use crate::chain::stream_table;
use crate::code::Code;
use crate::path::Path;
use crate::problem::Problem;
use crate::similar::suggest;
use crate::{StreamSection, Table};

impl<'a> Checker<'a> {
    /// All streams, each behind those that it reads; circles are told, and come last.
    pub(super) fn stream_order(&mut self, planner: &dyn SqlPlanner) -> Vec<usize> {
        let latest = names(planner);
        let order = self.document.stream_order(&latest);
        for circle in &order.circles {
            let name = |at: usize| self.document.streams[at].name.to_string();
            let way: Vec<String> =
                circle.iter().chain(circle.first()).map(|at| format!("`{}`", name(*at))).collect();
            let next = circle.get(1).or(circle.first()).map(|at| name(*at)).unwrap_or_default();
            let stream = &self.document.streams[circle[0]];
            let path = path_of("streams").then(circle[0]);
            let entry = stream.from.iter().position(|from| from.as_str() == next);
            let path = match entry {
                Some(entry) => path.then("from").then(entry),
                None => path.then("sql"),
            };
            let message = format!("streams read each other in a circle: {}", way.join(" reads "));
            let hint = "let one of them read the tables of devices";
            self.say(Code::Circle, &path, message, Some(hint));
        }
        let rest = (0..self.document.streams.len()).filter(|at| !order.sound.contains(at));
        order.sound.iter().copied().chain(rest).collect()
    }

    /// Whether another stream reads this one.
    pub(super) fn is_read(&self, stream: &StreamSection, planner: &dyn SqlPlanner) -> bool {
        let latest = names(planner);
        let named = |s: &StreamSection| {
            s.from.contains(&stream.name)
                || latest(&s.sql).iter().any(|name| *name == stream.name.as_str())
        };
        self.document.streams.iter().any(|s| s.name != stream.name && named(s))
    }

    /// A stream in `from` that is no table yet. True never: SQL cannot be planned against it. What
    /// is wrong with the stream itself is told with it; here only that its results make no table.
    pub(super) fn reads_stream(&mut self, stream: &crate::Name, path: &Path) -> bool {
        if let Some(no) = self.no_tables.get(stream.as_str()).cloned() {
            self.say(Code::NoTable, path, no.message, Some(&no.hint));
        }
        false
    }

    /// Makes a table of a stream's results, or notes why there is none.
    pub(super) fn becomes_table(&mut self, stream: &StreamSection, result: &arrow_schema::Schema) {
        let name = stream.name.to_string();
        match stream_table(&name, result, stream.window.is_some()) {
            Ok(columns) => self.tables.push(Table {
                name,
                columns,
                devices: Vec::new(),
                groups: Vec::new(),
                feed: false,
                history: None,
            }),
            Err(no) => {
                self.no_tables.insert(name, no);
            }
        }
    }

    /// What a stream's SQL may name: its tables, what it reads by `latest('…')`, and the lookups.
    /// None where something in `latest('…')` is not there.
    pub(super) fn planned_tables(
        &mut self,
        stream: &'a StreamSection,
        planner: &dyn SqlPlanner,
        path: &Path,
    ) -> Option<Vec<PlannedTable<'a>>> {
        let mut tables = Vec::new();
        let columns = |checker: &Self, name: &str| {
            checker.tables.iter().find(|t| t.name == name).map(|t| t.columns.clone())
        };
        for name in &stream.from {
            let schema = columns(self, name.as_str())?;
            let name = name.as_str().into();
            tables.push(PlannedTable { name, schema, kind: TableKind::From });
        }
        let mut all_known = true;
        for (name, place) in planner.latest(&stream.sql) {
            let Some(of) = self.document.latest_of(&name) else {
                self.unknown_latest(&name, place, &path.then("sql"));
                all_known = false;
                continue;
            };
            let streams = &self.document.streams;
            let Some(schema) = columns(self, &of.table) else {
                if let Some(read) = streams.iter().find(|s| s.name.as_str() == of.table) {
                    self.reads_stream(&read.name, &path.then("sql"));
                }
                all_known = false;
                continue;
            };
            tables.push(PlannedTable { name: name.into(), schema, kind: TableKind::Latest });
        }
        for lookup in &self.document.lookups {
            if self.is_damaged("lookups", &lookup.name) {
                all_known &= !stream.sql.contains(lookup.name.as_str());
                continue;
            }
            let (name, schema) = (lookup.name.as_str().into(), lookup.schema());
            tables.push(PlannedTable { name, schema, kind: TableKind::Lookup });
        }
        all_known.then_some(tables)
    }

    fn unknown_latest(&mut self, name: &str, place: (u32, u32), path: &Path) {
        let known: Vec<&str> = self
            .known("tables")
            .into_iter()
            .chain(self.known("devices"))
            .chain(self.known("streams"))
            .collect();
        let hint = suggest(name, &known);
        let message = format!("there is no table, stream or device `{name}` for `latest`");
        let found = self.loaded.spans.problem_inside(place, Code::UnknownName, path, message);
        self.problems.push(Problem { hint, ..found });
    }
}

fn names(planner: &dyn SqlPlanner) -> impl Fn(&str) -> Vec<String> + '_ {
    |sql| planner.latest(sql).into_iter().map(|(name, _)| name).collect()
}
