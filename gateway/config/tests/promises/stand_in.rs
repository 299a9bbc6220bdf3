//! Stand-ins for what lies outside of this crate: the engine's planner and the environment. And how
//! tables of bad input are written: each case lists all its problems, in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use tidegate_config::{
    Document, Environment, KeptRows, Loaded, PlannedTable, Problems, SourceFile, SqlPlanner,
    SqlProblem, StreamSection, load_and_check,
};

/// Understands `SELECT a, b AS c FROM t`: enough to tell which columns come out. Refuses `SELEC`,
/// at its place, and tables that it does not have.
pub(crate) struct Planner;

impl SqlPlanner for Planner {
    fn plan(
        &self,
        sql: &str,
        tables: &[PlannedTable<'_>],
        _windowed: bool,
    ) -> Result<SchemaRef, SqlProblem> {
        for (line, text) in (1..).zip(sql.lines()) {
            if let Some(at) = text.find("SELEC ") {
                return Err(SqlProblem {
                    message: "expected SELECT".to_owned(),
                    position: Some((line, u32::try_from(at).unwrap() + 1)),
                    hint: Some("write SELECT".to_owned()),
                });
            }
        }
        let table = tables.first().expect("a table");
        assert!(sql.contains(&*table.name), "{sql} does not read {}", table.name);
        let sql = sql.replace('\n', " ");
        let columns = sql.split("SELECT ").nth(1).and_then(|s| s.split(" FROM").next()).unwrap();
        let fields: Vec<_> = columns
            .split(", ")
            .map(|column| {
                let name = column.rsplit(' ').next().unwrap().trim_matches('"');
                let fields = tables.iter().map(|table| table.schema.field_with_name(name));
                let known = fields.flatten().next().map(|f| f.data_type().clone());
                Field::new(name, known.unwrap_or(DataType::Float64), true)
            })
            .collect();
        Ok(Arc::new(Schema::new(fields)))
    }

    /// The first name in `latest('…')`, which stands on one line.
    fn latest(&self, sql: &str) -> Vec<(String, (u32, u32))> {
        let Some((before, after)) = sql.split_once("latest('") else {
            return Vec::new();
        };
        let name = after.split('\'').next().unwrap().to_owned();
        vec![(name, (1, u32::try_from(before.len()).unwrap() + 1))]
    }

    /// Where the SQL speaks of a median; where it speaks of a rate, those of 10 s.
    fn keeps_rows(&self, _: &Document, stream: &StreamSection) -> Option<KeptRows> {
        let median = || KeptRows::OfWindows("median() needs all rows".to_owned());
        let rate = || KeptRows::Waiting(Duration::from_secs(10));
        let kept = stream.sql.contains("median").then(median);
        kept.or_else(|| stream.sql.contains("rate").then(rate))
    }

    /// Understands `a > 1`, where `a` is a column.
    fn condition(&self, text: &str, columns: &SchemaRef) -> Result<(), SqlProblem> {
        let name = text.split(' ').next().expect("a word");
        if columns.field_with_name(name).is_ok() {
            return Ok(());
        }
        let message = format!("there is no column {name}");
        Err(SqlProblem { message, position: Some((1, 1)), hint: None })
    }

    fn reads_sqlite(&self) -> bool {
        true
    }
}

/// Refuses all SQL, at a place that is hardly there.
pub(crate) struct Refusing;

impl SqlPlanner for Refusing {
    fn plan(&self, _: &str, _: &[PlannedTable<'_>], _: bool) -> Result<SchemaRef, SqlProblem> {
        let position = Some((2, 70));
        Err(SqlProblem { message: "refused".to_owned(), position, hint: None })
    }

    fn latest(&self, _: &str) -> Vec<(String, (u32, u32))> {
        Vec::new()
    }

    fn keeps_rows(&self, _: &Document, _: &StreamSection) -> Option<KeptRows> {
        None
    }

    fn condition(&self, _: &str, _: &SchemaRef) -> Result<(), SqlProblem> {
        unreachable!("no stream is planned")
    }

    fn reads_sqlite(&self) -> bool {
        false
    }
}

/// An environment that holds what a test says.
#[derive(Default)]
pub(crate) struct Fixed {
    pub vars: BTreeMap<&'static str, &'static str>,
    pub files: BTreeMap<&'static str, &'static str>,
}

impl Environment for Fixed {
    fn var(&self, name: &str) -> Option<String> {
        self.vars.get(name).map(|value| (*value).to_owned())
    }

    fn read(&self, path: &str) -> Result<String, String> {
        let text = self.files.get(path).ok_or("cannot be read: no such file")?;
        Ok((*text).to_owned())
    }
}

pub(crate) fn source(name: &str, text: &str) -> SourceFile {
    SourceFile { name: name.to_owned(), text: text.to_owned() }
}

/// Reads and checks one file without any environment.
pub(crate) fn checked(text: &str) -> Result<(Loaded, Problems), Problems> {
    load_and_check(&[source("t.yaml", text)], &Fixed::default(), &Planner)
}

/// The problems of one file, warnings among them.
pub(crate) fn problems(text: &str) -> Problems {
    checked(text).map_or_else(|problems| problems, |(_, warnings)| warnings)
}

/// Stands before each case; the case itself begins on line 3.
pub(crate) const HEAD: &str = "version: 1\ngateway: { name: g }\n";

/// A device, a stream and a sink that are in order, to be joined to a case.
pub(crate) const SOUND: &str = "
devices:
  - name: waves
    driver: { generate: { points: [ { name: level, value: { constant: 1 } } ] } }
streams:
  - name: out_1
    from: [waves]
    sql: SELECT level FROM waves
    to: [ { sink: out } ]
sinks:
  - name: out
    driver: { stdout: {} }
";

/// Code, line, column, and a part of the message or the hint.
pub(crate) type Expected = (&'static str, u32, u32, &'static str);

/// Reads `text` and compares all its problems.
pub(crate) fn expect(text: &str, expected: &[Expected]) {
    let found = problems(text);
    let shown = found.human();
    let places: Vec<_> = found.iter().map(|p| (p.code.as_str(), p.line, p.column)).collect();
    let wanted: Vec<_> = expected.iter().map(|e| (e.0, e.1, e.2)).collect();
    assert_eq!(places, wanted, "\n{text}\n{shown}");
    for (problem, (.., part)) in found.iter().zip(expected) {
        let all = format!("{} {}", problem.message, problem.hint.clone().unwrap_or_default());
        assert!(all.contains(part), "`{part}` is not in `{all}`\n{text}");
    }
}

/// Compares the problems of each case behind [`HEAD`].
pub(crate) fn cases(cases: &[(&str, &[Expected])]) {
    for (case, expected) in cases {
        expect(&format!("{HEAD}{case}"), expected);
    }
}
