//! Checks of where a stream's rows go: its results, late rows, and rows that failed.
//!
//! Conditions are planned against the columns that are routed: those of the result, or those of each
//! table with the column that says why the row is there.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::{Checker, SqlPlanner};
use crate::code::Code;
use crate::path::Path;
use crate::{Route, StreamSection};

/// The column of late rows that says why they are there.
pub const REASON_COLUMN: &str = "_reason";
/// The column of failed rows that says what failed.
pub const ERROR_COLUMN: &str = "_error";

impl Checker<'_> {
    pub(super) fn routes(&mut self, stream: &StreamSection, path: &Path) {
        self.sinks_of(&stream.to, &path.then("to"));
        if let Some(late) = &stream.late {
            let path = path.then("late");
            let judged = stream.window.is_some() || stream.max_future.is_some();
            self.side("late", stream, &late.to, &path, "late rows are counted anyway");
            if !judged && !self.is_damaged("streams", &stream.name) {
                let message = format!("`{}` has no window, so no row is late", stream.name);
                let hint = "leave `late` out, or say `max_future` for rows from the future";
                self.say(Code::WindowShape, &path, message, Some(hint));
            }
        }
        if let Some(failed) = &stream.on_error {
            let path = path.then("on_error");
            self.side("on_error", stream, &failed.to, &path, "failed rows are counted anyway");
        }
    }

    /// Checks routes beside those of the results, which nobody needs to have.
    fn side(&mut self, key: &str, of: &StreamSection, to: &[Route], path: &Path, anyway: &str) {
        let path = path.then("to");
        self.sinks_of(to, &path);
        if to.is_empty() && !self.is_damaged("streams", &of.name) {
            let hint = format!("name a sink, or leave `{key}` out: {anyway}");
            self.say(Code::EmptyList, &path, format!("`{key}` names no sink"), Some(&hint));
        }
    }

    fn sinks_of(&mut self, routes: &[Route], path: &Path) {
        let mut seen = BTreeSet::new();
        for (index, route) in routes.iter().enumerate() {
            let path = path.then(index).then("sink");
            if !seen.insert(&route.sink) {
                let message = format!("the sink `{}` stands twice", route.sink);
                let hint = "each sink gets a row once: join the conditions with OR";
                self.say(Code::NameTwice, &path, message, Some(hint));
            }
            self.refers("sink", "sinks", &route.sink, &path);
        }
    }

    /// Plans the conditions of all routes.
    pub(super) fn conditions(
        &mut self,
        planner: &dyn SqlPlanner,
        stream: &StreamSection,
        result: &SchemaRef,
        tables: &[SchemaRef],
        path: &Path,
    ) {
        self.when(planner, &stream.to, std::slice::from_ref(result), &path.then("to"));
        let with = |column: &str| -> Vec<SchemaRef> {
            tables.iter().map(|columns| with_text(columns, column)).collect()
        };
        if let Some(late) = &stream.late {
            self.when(planner, &late.to, &with(REASON_COLUMN), &path.join("late.to"));
        }
        if let Some(failed) = &stream.on_error {
            self.when(planner, &failed.to, &with(ERROR_COLUMN), &path.join("on_error.to"));
        }
    }

    /// Plans each condition against the columns of every form that rows may have.
    fn when(
        &mut self,
        planner: &dyn SqlPlanner,
        routes: &[Route],
        forms: &[SchemaRef],
        path: &Path,
    ) {
        for (index, route) in routes.iter().enumerate() {
            let Some(text) = &route.when else { continue };
            let refused = forms.iter().find_map(|columns| planner.condition(text, columns).err());
            if let Some(problem) = refused {
                self.sql(&path.then(index).then("when"), problem);
            }
        }
    }
}

/// These columns and a text behind them.
pub fn with_text(columns: &SchemaRef, name: &str) -> SchemaRef {
    let text = Arc::new(Field::new(name, DataType::Utf8, false));
    let fields = columns.fields().iter().cloned().chain([text]);
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}
