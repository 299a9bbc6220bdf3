//! The stable codes of problems, and a paragraph about each.
//!
//! A code never changes its meaning and is never used again after it has gone. E01 is about
//! reading, E02 about form, E03 about names, E04 about values, E05 about SQL, E06 about tests, E07
//! about faults of the program itself; W marks a warning.

use serde::{Serialize, Serializer};

use crate::problem::Severity;

macro_rules! codes {
    ($($name:ident $code:literal $text:literal)*) => {
        /// The code of a problem.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $text] $name,)*
        }

        impl Code {
            /// Every code, in order.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The code as it is shown, such as `E0201`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            /// What the code means, in a paragraph.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

codes! {
    Unreadable "E0101" "A configuration file or folder cannot be read: it does not exist, may not be read by this user, is not UTF-8, or the folder holds no file that ends in .yaml or .yml."
    Syntax "E0102" "The file is not YAML. The position is where the parser could not go on; the cause is often on the line before: a missing space after a colon, a tab in the indentation, a quote that is not closed. Inside { } and [ ], a value with ${...} must stand in quotes."
    TooLarge "E0103" "The file is larger than 16 MiB, has more than 2,000,000 values, or is nested deeper than 64 levels. No sensible configuration is; the bound protects the gateway's memory."
    Unsupported "E0104" "Anchors (&a), aliases (*a), tags (!tag) and several documents in one file are YAML, but not accepted here: a configuration says each thing where it stands."
    DuplicateKey "E0105" "The same key stands twice in one mapping. YAML forbids it; other programs silently take the last one. Remove one of the two."
    BadKey "E0106" "A key of a mapping is itself a list or a mapping. Keys are words."
    SectionTwice "E0107" "A folder's files are merged by section: lists are joined, but a section that is no list (gateway, store, web, limits) may stand in one file only. `version` may stand in each, if it is the same."
    VariableUnset "E0111" "A reference ${VAR} names an environment variable that is not set. Set it, or give a default with ${VAR:-default}. ${VAR:?message} asks for it with a message of your own. Write $${ where the text really is ${."
    BadReference "E0112" "A reference ${...} is not well formed. Known are ${VAR}, ${VAR:-default}, ${VAR:?message} and ${file:/path}. A variable's name has letters, digits and underscores. Write $${ where the text really is ${."
    ReferenceUnreadable "E0113" "A reference ${file:/path} names a file that cannot be read, is larger than 64 KiB or is not text."
    UnknownField "E0201" "The document has no such field at this place. Misspelt fields are refused rather than ignored, since an ignored setting is a wrong setting. A field that a later version knows is unknown to this one."
    MissingField "E0202" "A field that has no default is missing. The position is the mapping that it belongs to."
    WrongKind "E0203" "A value is of another kind than the field takes, such as a text where a number belongs. Nothing is converted: \"502\" in quotes is a text, 502 is a number; a length of time is written with its unit, such as 10s. A value that comes from ${VAR} counts as what it would be if it stood there: in quotes it is a text."
    BadValue "E0204" "A value is of the right kind, but outside the range or the spelling that the field takes."
    UnknownChoice "E0205" "A field takes one of several words, or one of several kinds of settings, and this is none of them."
    BadChoice "E0206" "A choice is written as a mapping with exactly one key, the kind, and its settings below it: `driver: { stdout: {} }`. An empty mapping stands for all defaults."
    Version "E0301" "The document's version is not 1. This program reads version 1."
    NameTwice "E0302" "Two links, devices, streams, sinks, lookups or tests have the same name, or a stream or a lookup is called like a table. Names say which one is meant, in the document, in SQL, in records and in metrics."
    UnknownName "E0303" "A name refers to something that the document does not have: a link, a table, a device, a stream, a lookup or a sink."
    TableColumns "E0304" "Devices may share a table if their columns are equal: the same points in the same order with the same types, and the same `point_quality`."
    ReservedColumn "E0305" "A point is called like a column that every table has or that this table gets by itself (`time`, `device`, `quality`, `seq`, `received_at`, for MQTT feeds `topic`, `qos`, `retained`, with `point_quality` also `<point>_quality` and `<point>_reason`). Call it otherwise."
    ColumnTwice "E0306" "Two points of a device have the same name, so the table would have two columns of one name."
    Circle "E0307" "Streams read each other in a circle, so that none of them could ever begin. A stream may read tables and streams that do not follow from it, also by latest('…')."
    NoTable "E0308" "A stream reads another one whose results make no table: a row needs a time, which is the column `time` or, where there is a window, its end; and `device` and `quality` are texts."
    DriverSetting "E0401" "A driver refuses a setting or a combination of settings; the message says which and why."
    BusOverload "E0402" "The requests of a link's devices take longer than the time between two polls, so each cycle would be late. Poll less often, raise max_gap so that fewer requests read the same points, or use another link. Over TCP, each request counts 2 ms, which only fast devices reach; on a serial port, its characters at the port's speed. The link's inter_request_delay comes on top."
    BusBusy "W0403" "The requests of a link's devices take more than 80 % of the time between two polls. A retry or a slow answer makes the next cycle late. See E0402."
    PollGroups "E0404" "A device has no poll group, two of one name, one without points, or one whose time is zero. Rows of the first group go to the device's table, rows of another one to `<table>_<group>`, so that each table's rows are read as a whole."
    WindowShape "E0405" "A window's size must be above zero, and its offset less than its size. Where the SQL needs all rows of a window, they must fit in the memory and the store; `tidegate explain` says why it does."
    SpanRange "E0406" "A length of time is outside what makes sense for this field: zero where something must take time, or longer than another one that bounds it."
    NotLoopback "E0407" "The status pages have no login yet, so they are served on a loopback address only, such as 127.0.0.1:8080 or [::1]:8080. Use an SSH tunnel to see them from elsewhere."
    StoreBounds "E0408" "The store's bounds do not fit each other: what may wait for all sinks together is more than the store may hold, or a bound is too small to hold anything."
    LimitRange "E0409" "A bound of a queue, a memory or a number of records is zero or beyond what the program can hold."
    NoSink "W0410" "A stream has no sink in `to` and no other stream reads it, so its results go nowhere."
    Unused "W0411" "A link has no device, or a sink gets nothing from any stream."
    EmptyList "E0412" "A list that must name at least one thing is empty."
    Shared "E0413" "Two parts claim what only one can have: two sinks write the same file, a sink writes a file of the store, two links or devices open the same serial port, or two connections to one MQTT broker use the same client id, so that the broker would close each as the other connects."
    Replay "E0414" "A sink's `replay` asks for what cannot be: a share that is not above 0 and below 1, or one beside `order: newest`, which gives live records all that they need; live records before others at a sink that writes lines, where order is all that there is; a topic at a sink that has none; or a mark where the record has no envelope to carry it."
    Lookup "E0415" "A lookup asks for what cannot be: no columns, two of one name, a bound of nothing, an address without a name of a machine, or a query that is no SELECT. Its columns are declared, so that SQL is planned with no source present."
    NotBuilt "E0416" "A lookup is read from an SQLite database, but this program was built without SQLite: most gateways would carry its 0.7 MB for nothing. Build it with the cargo feature `sqlite` (`cargo build --features sqlite`), or export the table as CSV or JSON on a schedule."
    Sql "E0501" "The SQL cannot be planned against the tables in `from`: it does not parse, names an unknown table, column or function, or asks for what streams do not do. Each table has the columns time, device, quality and seq, and the points. Names with a hyphen need double quotes."
    TestColumn "E0601" "A test names a column that the table or the stream's result does not have, or gives it a value of another kind."
    TestRow "E0602" "A row of a test does not say which table or which device it is from, and there are several."
    TestChain "E0603" "A test cannot be run as it stands: it reads the results of a stream through that stream's program but does not ask the program, asks programs where no stream has one, or expects what a sink is sent where none of its streams sends to that sink. A test runs the stream that it names and those that this one reads, but for those whose rows stand in its `input`."
    Internal "E0701" "Tidegate itself failed while it read, checked or planned this part of the configuration: a fault of the program, which must not stop it. The configuration is refused as any other that is wrong, and a gateway goes on with the one that worked last. Please tell its makers: the log has the place in the program."
}

impl Code {
    /// Warnings begin with W, errors with E.
    pub fn severity(self) -> Severity {
        if self.as_str().starts_with('W') { Severity::Warning } else { Severity::Error }
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// A paragraph about a code, such as `E0201`; upper or lower case.
pub fn explain_code(code: &str) -> Option<&'static str> {
    Code::ALL.iter().find(|c| c.as_str().eq_ignore_ascii_case(code)).map(|c| c.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_in_order_and_stand_once() {
        let shown: Vec<_> = Code::ALL.iter().map(|c| &c.as_str()[1..]).collect();
        assert!(shown.is_sorted_by(|a, b| a < b), "{shown:?}");
        assert!(explain_code("e0201").is_some_and(|text| text.contains("no such field")));
        assert_eq!(explain_code("E9999"), None);
    }
}
