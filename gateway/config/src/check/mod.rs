//! What a document means: cross references, bounds, drivers, bus time, and SQL planned against
//! the declared columns.
//!
//! One function for the file, the page and the cluster. No I/O, no side effects; the engine is
//! behind [`SqlPlanner`]. An item that lost something while it was read is not blamed again.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use arrow_schema::SchemaRef;

use crate::chain::NoTable;
use crate::code::Code;
use crate::contained::{HINT, contained};
use crate::path::Path;
use crate::problem::{Problem, Problems};
use crate::read::Loaded;
use crate::similar::suggest;
use crate::{Document, KeptRows, Name, StreamSection, Table};

pub mod bus;
mod calendar;
mod cases;
mod chain;
mod devices;
mod limits;
mod lookups;
mod routes;
mod shared;
mod sinks;
mod streams;
mod windows;

pub use routes::{ERROR_COLUMN, REASON_COLUMN, with_text};

/// A table as SQL is planned against it.
#[derive(Debug, Clone)]
pub struct PlannedTable<'a> {
    /// The table's name; of one that `latest('…')` reads, the name that stands there.
    pub name: Cow<'a, str>,
    /// All its columns.
    pub schema: SchemaRef,
    /// What the SQL may do with it.
    pub kind: TableKind,
}

/// How SQL may read a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// Its rows come to the stream, which it names in `from`.
    From,
    /// Only by `latest('…')`: each device's last row.
    Latest,
    /// Loaded as a whole: it may be joined in any stream.
    Lookup,
}

/// Plans SQL without running it: the border to the engine.
pub trait SqlPlanner {
    /// Plans one stream's SQL against its tables and gives the result's columns. `windowed` is
    /// true where the SQL runs over windows rather than over each batch.
    fn plan(
        &self,
        sql: &str,
        tables: &[PlannedTable<'_>],
        windowed: bool,
    ) -> Result<SchemaRef, SqlProblem>;

    /// The names in `latest('…')` of a text, each once, with the line and column of the first.
    fn latest(&self, sql: &str) -> Vec<(String, (u32, u32))>;

    /// Which rows a stream keeps; `None` where they are folded as they come, and where the SQL cannot
    /// be planned.
    fn keeps_rows(&self, document: &Document, stream: &StreamSection) -> Option<KeptRows>;

    /// Plans a condition over rows of these columns.
    fn condition(&self, text: &str, columns: &SchemaRef) -> Result<(), SqlProblem>;

    /// Whether lookups can be read from SQLite databases, which is a choice of the build.
    fn reads_sqlite(&self) -> bool;
}

/// Why SQL cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlProblem {
    /// What is wrong.
    pub message: String,
    /// Line and column in the SQL, both from 1, where they are known.
    pub position: Option<(u32, u32)>,
    /// What would be right.
    pub hint: Option<String>,
}

/// Everything that is wrong or doubtful in a document, in the order of its files.
pub fn check(loaded: &Loaded, planner: &dyn SqlPlanner) -> Problems {
    let document = &loaded.document;
    let mut checker = Checker {
        loaded,
        document,
        tables: document.tables(),
        problems: Problems::new(),
        unsound: BTreeSet::new(),
        no_tables: BTreeMap::new(),
    };
    let (whole, links) = (Path::default(), path_of("links"));
    let (devices, sinks, lookups) = (path_of("devices"), path_of("sinks"), path_of("lookups"));
    checker.contained(&whole, Checker::version);
    checker.contained(&whole, Checker::names);
    checker.contained(&whole, Checker::sections);
    checker.contained(&path_of("gateway"), Checker::timezone);
    checker.contained(&devices, Checker::devices);
    checker.contained(&links, Checker::buses);
    checker.contained(&sinks, Checker::sinks);
    checker.contained(&lookups, |checker| checker.lookups(planner));
    let streams = |checker: &mut Checker<'_>| checker.streams(planner);
    let results = checker.contained(&path_of("streams"), streams).unwrap_or_default();
    checker.contained(&whole, Checker::shared);
    checker.contained(&whole, Checker::unused);
    checker.contained(&path_of("tests"), |checker| checker.cases(&results, planner));
    checker.problems.sorted()
}

/// The columns of each stream's result, by its index; those that could be planned.
type Results = BTreeMap<usize, SchemaRef>;

struct Checker<'a> {
    loaded: &'a Loaded,
    document: &'a Document,
    /// Those of devices, and of streams that could be planned so far.
    tables: Vec<Table>,
    problems: Problems,
    /// Tables whose columns cannot be: no SQL is planned against them.
    unsound: BTreeSet<String>,
    /// Streams whose results make no table, and why.
    no_tables: BTreeMap<String, NoTable>,
}

impl<'a> Checker<'a> {
    /// Notes a problem with the value at `path`.
    fn say(&mut self, code: Code, path: &Path, message: impl Into<String>, hint: Option<&str>) {
        let problem = self.loaded.spans.problem(code, path, message);
        self.problems.push(Problem { hint: hint.map(str::to_owned), ..problem });
    }

    /// Runs a check; a panic in it is a problem at `path`, and the others go on.
    fn contained<T>(&mut self, path: &Path, check: impl FnOnce(&mut Self) -> T) -> Option<T> {
        match contained(|| check(self)) {
            Ok(checked) => Some(checked),
            Err(message) => {
                self.say(Code::Internal, path, message, Some(HINT));
                None
            }
        }
    }

    /// True where an item lost something while it was read.
    fn is_damaged(&self, section: &str, name: &Name) -> bool {
        self.loaded.damaged.get(section).is_some_and(|names| names.contains(name.as_str()))
    }

    /// Notes a reference that leads nowhere. True where it leads somewhere.
    fn refers(&mut self, what: &str, section: &str, name: &Name, path: &Path) -> bool {
        let known = self.known(section);
        if known.contains(&name.as_str()) || self.is_damaged(section, name) {
            return true;
        }
        let hint = suggest(name.as_str(), &known)
            .unwrap_or_else(|| format!("the document has no {what} yet"));
        self.say(Code::UnknownName, path, format!("there is no {what} `{name}`"), Some(&hint));
        false
    }

    /// The names of a section, or of all tables.
    fn known(&self, section: &str) -> Vec<&str> {
        if section == "tables" {
            return self.tables.iter().map(|t| t.name.as_str()).collect();
        }
        self.section(section).into_iter().map(|(name, _)| name.as_str()).collect()
    }

    fn section(&self, section: &str) -> Vec<(&'a Name, Path)> {
        fn named<'a, T>(
            section: &str,
            items: &'a [T],
            name: impl Fn(&'a T) -> &'a Name,
        ) -> Vec<(&'a Name, Path)> {
            let root = Path::default().then(section);
            items.iter().enumerate().map(|(i, item)| (name(item), root.then(i))).collect()
        }
        match section {
            "links" => named(section, &self.document.links, |l| &l.name),
            "devices" => named(section, &self.document.devices, |d| &d.name),
            "streams" => named(section, &self.document.streams, |s| &s.name),
            "sinks" => named(section, &self.document.sinks, |s| &s.name),
            "lookups" => named(section, &self.document.lookups, |l| &l.name),
            _ => Vec::new(),
        }
    }

    fn version(&mut self) {
        if self.document.version != 1 {
            let message = format!("version {} is not known", self.document.version);
            self.say(Code::Version, &path_of("version"), message, Some("write `version: 1`"));
        }
    }

    /// A name stands once in its section; streams share SQL's names with tables.
    fn names(&mut self) {
        for section in ["links", "devices", "streams", "sinks", "lookups"] {
            let mut seen: BTreeMap<&str, Path> = BTreeMap::new();
            for (name, path) in self.section(section) {
                match seen.get(name.as_str()) {
                    Some(first) => self.name_twice(name.as_str(), &path, first),
                    None => {
                        seen.insert(name.as_str(), path);
                    }
                }
            }
        }
        for (what, section) in [("stream", "streams"), ("lookup", "lookups")] {
            for (name, path) in self.section(section) {
                let kind = if self.tables.iter().any(|t| t.name == name.as_str()) {
                    "table"
                } else if what == "lookup" && self.document.streams.iter().any(|s| s.name == *name)
                {
                    "stream"
                } else {
                    continue;
                };
                let message = format!("the {what} `{name}` is called like the {kind} `{name}`");
                let hint = "tables, streams and lookups share the names of SQL: call it otherwise";
                self.say(Code::NameTwice, &path.then("name"), message, Some(hint));
            }
        }
        let mut seen: BTreeMap<&str, Path> = BTreeMap::new();
        for (index, test) in self.document.tests.iter().enumerate() {
            let path = path_of("tests").then(index);
            match seen.get(test.name.as_str()) {
                Some(first) => self.name_twice(&test.name, &path, first),
                None => {
                    seen.insert(&test.name, path);
                }
            }
        }
    }

    fn name_twice(&mut self, name: &str, path: &Path, first: &Path) {
        let hint = match self.loaded.spans.position(&first.then("name")) {
            Some(at) => format!("the first one is at {}:{}", at.file, at.line),
            None => format!("the first one is {first}"),
        };
        let message = format!("the name `{name}` stands twice");
        self.say(Code::NameTwice, &path.then("name"), message, Some(&hint));
    }

    /// Warns about what nobody uses.
    fn unused(&mut self) {
        let used: Vec<&Name> = self.document.devices.iter().filter_map(bus::link_of).collect();
        for (name, path) in self.section("links") {
            if !used.contains(&name) && self.loaded.damaged.is_empty() {
                let message = format!("no device uses the link `{name}`");
                self.say(Code::Unused, &path.then("name"), message, None);
            }
        }
        let routed: Vec<&Name> = self
            .document
            .streams
            .iter()
            .flat_map(StreamSection::routes)
            .map(|route| &route.sink)
            .collect();
        for (name, path) in self.section("sinks") {
            if !routed.contains(&name) && self.loaded.damaged.is_empty() {
                let message = format!("no stream sends to the sink `{name}`");
                self.say(Code::Unused, &path.then("name"), message, None);
            }
        }
    }
}

fn path_of(section: &str) -> Path {
    Path::default().then(section)
}
