//! Checks of windows: lengths that make one, columns that exist, conditions that can be planned.

use super::{Checker, SqlPlanner};
use crate::code::Code;
use crate::path::Path;
use crate::similar::suggest;
use crate::{Span, StreamSection, Window};

/// Windows that one row is in at most: a day, one every second, and some more.
const WINDOWS_OF_A_ROW_MAX: i64 = 100_000;

impl Checker<'_> {
    /// Checks the lengths of a window that is not a tumbling one.
    pub(super) fn window_lengths(&mut self, stream: &StreamSection, window: &Window, path: &Path) {
        let path = path.then("window").then(window.kind());
        match window {
            Window::Tumbling(_) => {}
            Window::Hopping(window) => {
                self.steps(window.size, window.step, &path);
                if window.offset >= window.step && !is_zero(window.step) {
                    let message =
                        format!("the offset {} is not less than {}", window.offset, window.step);
                    let hint =
                        "windows repeat after their step: a larger offset means a smaller one";
                    self.say(Code::WindowShape, &path.then("offset"), message, Some(hint));
                }
            }
            Window::Cumulative(window) => {
                self.window_zone(window.size, window.timezone.as_deref(), &path);
                self.steps(window.size, window.step, &path);
                let (size, step) = (window.size.micros(), window.step.micros());
                if step > 0 && size > step && size % step != 0 {
                    let message = format!("{} is not a multiple of {}", window.size, window.step);
                    let hint =
                        "the totals begin anew after `size`, so the last step must end there";
                    self.say(Code::WindowShape, &path.then("step"), message, Some(hint));
                }
            }
            Window::Sliding(window) => {
                let hint = "write how far a window reaches back from its row, such as `10s`";
                self.some_time(
                    window.size,
                    "size",
                    "a window of 0s holds its row alone",
                    hint,
                    &path,
                );
            }
            Window::Session(window) => {
                let hint = "write the silence that ends a window, such as `5m`";
                self.some_time(window.gap, "gap", "a gap of 0s ends a window at once", hint, &path);
                if let Some(max) = window.length_max {
                    self.length_max(max, &path);
                    if max < window.gap && !is_zero(max) {
                        let message =
                            format!("no window of {max} lasts until a gap of {}", window.gap);
                        let hint = "make `length_max` longer than `gap`";
                        self.say(Code::WindowShape, &path.then("length_max"), message, Some(hint));
                    }
                }
            }
            Window::Count(window) => {
                if window.rows == 0 {
                    let hint = "write how many rows make a window, such as 100";
                    let message = "a window of 0 rows holds nothing";
                    self.say(Code::WindowShape, &path.then("rows"), message, Some(hint));
                } else if window.effective_step() == 0 || window.effective_step() > window.rows {
                    let step = window.effective_step();
                    let message = format!("a step of {step} with windows of {} rows", window.rows);
                    let hint = "a step is from 1 to `rows`, so that each row is in a window";
                    self.say(Code::WindowShape, &path.then("step"), message, Some(hint));
                }
                self.one_table(stream, &format!("windows of {} rows", window.rows), &path);
            }
            Window::State(window) => {
                self.length_max(window.length_max, &path);
                self.one_table(stream, "windows between two conditions", &path);
            }
        }
    }

    /// Checks a size and a step within it.
    fn steps(&mut self, size: Span, step: Span, path: &Path) {
        if is_zero(size) {
            let hint = "write the length of a window, such as `1h`";
            self.say(
                Code::WindowShape,
                &path.then("size"),
                "a window of 0s holds nothing",
                Some(hint),
            );
        } else if is_zero(step) {
            let hint = "write the time from one window to the next, such as `10s`";
            self.say(
                Code::WindowShape,
                &path.then("step"),
                "a step of 0s leads nowhere",
                Some(hint),
            );
        } else if step > size {
            let message =
                format!("with a step of {step}, rows between windows of {size} are in none");
            let hint = "make `step` at most `size`";
            self.say(Code::WindowShape, &path.then("step"), message, Some(hint));
        } else if size.micros() / step.micros() > WINDOWS_OF_A_ROW_MAX {
            let windows = size.micros() / step.micros();
            let message = format!("each row would be in {windows} windows, each with a result");
            let hint =
                format!("make `step` longer: at most {WINDOWS_OF_A_ROW_MAX} windows overlap");
            self.say(Code::WindowShape, &path.then("step"), message, Some(&hint));
        }
    }

    fn some_time(&mut self, span: Span, field: &str, message: &str, hint: &str, path: &Path) {
        if is_zero(span) {
            self.say(Code::WindowShape, &path.then(field), message, Some(hint));
        }
    }

    fn length_max(&mut self, max: Span, path: &Path) {
        let hint = "write how long a window may be, such as `1h`";
        self.some_time(max, "length_max", "a window of at most 0s holds nothing", hint, path);
    }

    fn one_table(&mut self, stream: &StreamSection, what: &str, path: &Path) {
        if stream.from.len() > 1 {
            let message =
                format!("{what} are over one table, and `from` names {}", stream.from.len());
            let hint = "read one table here, and join in another stream";
            self.say(Code::WindowShape, path, message, Some(hint));
        }
    }

    /// Checks a window against the columns of the tables: its keys and its conditions.
    pub(super) fn window_columns(
        &mut self,
        planner: &dyn SqlPlanner,
        stream: &StreamSection,
        window: &Window,
        path: &Path,
    ) {
        let path = path.then("window").then(window.kind());
        let read = |name: &str| stream.from.iter().any(|from| from.as_str() == name);
        let tables = self.tables.iter().filter(|table| read(&table.name));
        let tables: Vec<_> = tables.map(|t| (t.name.clone(), t.columns.clone())).collect();
        for (index, column) in window.by().iter().enumerate() {
            let lacks = tables.iter().find(|(_, schema)| schema.field_with_name(column).is_err());
            if let Some((table, schema)) = lacks {
                let message = format!("the table `{table}` has no column `{column}`");
                let names = schema.fields().iter().map(|field| field.name().as_str());
                let hint = suggest(column, &names.collect::<Vec<_>>())
                    .unwrap_or("every table of `from` needs the column".to_owned());
                self.say(Code::UnknownName, &path.then("by").then(index), message, Some(&hint));
            }
        }
        let (Window::State(state), [(_, schema)]) = (window, &tables[..]) else {
            return;
        };
        for (field, text) in [("begin", &state.begin), ("end", &state.end)] {
            if let Err(problem) = planner.condition(text, schema) {
                self.sql(&path.then(field), problem);
            }
        }
    }
}

fn is_zero(span: Span) -> bool {
    span.micros() == 0
}
