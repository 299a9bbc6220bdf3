//! A folder's files are one document, and values may come from the environment.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tidegate_config::{Code, Problems, ProcessEnvironment, load, load_other, read_sources};
use tidegate_drivers::sim::SimDoc;

use crate::stand_in::{Fixed, source};

fn codes(problems: &Problems) -> Vec<Code> {
    problems.iter().map(|p| p.code).collect()
}

#[test]
fn files_are_merged_by_section() {
    let files = [
        source(
            "a.yaml",
            "version: 1\ngateway: { name: g }\nsinks: [ { name: a, driver: { stdout: {} } } ]\n",
        ),
        source("b.yaml", "version: 1\nsinks:\n  - { name: b, driver: { stdout: {} } }\n"),
        source("c.yaml", "# nothing yet\n"),
    ];
    let loaded = load(&files, &Fixed::default()).unwrap();
    let names: Vec<_> = loaded.document.sinks.iter().map(|s| s.name.to_string()).collect();
    assert_eq!(names, ["a", "b"]);
    let at =
        loaded.spans.position(&tidegate_config::Path::default().join("sinks[1].name")).unwrap();
    assert_eq!((at.file.as_str(), at.line, at.column), ("b.yaml", 3, 13));
}

#[test]
fn a_section_that_is_no_list_stands_in_one_file() {
    let files = [
        source("a.yaml", "version: 1\ngateway: { name: g }\n"),
        source("b.yaml", "version: 2\n\ngateway: { name: h }\n"),
    ];
    let problems = load(&files, &Fixed::default()).unwrap_err();
    assert_eq!(codes(&problems), [Code::SectionTwice, Code::SectionTwice]);
    let second = problems.iter().nth(1).unwrap();
    assert_eq!((second.file.as_str(), second.line, second.column), ("b.yaml", 3, 1));
    assert_eq!(second.hint.as_deref(), Some("it stands in a.yaml on line 2 already"));
}

#[test]
fn references_keep_the_kind_that_the_value_would_have() {
    let env = Fixed {
        vars: BTreeMap::from([("PORT", "1502"), ("HOST", "plc"), ("LIST", "[1, 2]")]),
        files: BTreeMap::from([("/run/site", "hall 3\n")]),
    };
    let text = "version: 1
gateway: { name: \"${HOST}-7\", location: \"${file:/run/site}\", timezone: \"${LIST}\" }
links:
  - name: l
    bus:
      tcp:
        host: ${HOST}.local
        port: ${PORT}
        connect_timeout: ${TIMEOUT:-5s}
";
    let loaded = load(&[source("t.yaml", text)], &env).unwrap();
    assert_eq!(loaded.document.gateway.name.as_str(), "plc-7");
    assert_eq!(loaded.document.gateway.location.as_deref(), Some("hall 3"));
    // Structure never changes: what looks like a list is a text.
    assert_eq!(loaded.document.gateway.timezone.as_deref(), Some("[1, 2]"));
    let tidegate_drivers::south::modbus::Bus::Tcp(bus) = &loaded.document.links[0].bus else {
        panic!("a TCP link")
    };
    assert_eq!((bus.host.as_str(), bus.port), ("plc.local", 1502));
    assert_eq!(bus.connect_timeout.to_string(), "5s");
}

#[test]
fn unset_references_are_refused_and_their_values_not_shown() {
    let env = Fixed { vars: BTreeMap::from([("SECRET", "hunter2")]), files: BTreeMap::new() };
    let text = "version: 1
gateway: { name: g }
store:
  path: ${NONE}
  commit_every: ${SECRET}
  max_bytes: ${NONE:?say how much}
web: { listen: \"${file:/none}\" }
limits: { memory: \"${SECRET}x${\", table_queue: \"${SECRET}\" }
";
    let problems = load(&[source("t.yaml", text)], &env).unwrap_err();
    let found: Vec<_> = problems.iter().map(|p| (p.code.as_str(), p.line, p.column)).collect();
    let expected = [
        ("E0111", 4, 9),
        ("E0204", 5, 17),
        ("E0111", 6, 14),
        ("E0113", 7, 16),
        ("E0112", 8, 19),
        ("E0203", 8, 48),
    ];
    assert_eq!(found, expected, "{problems}");
    let shown = problems.json() + &problems.human();
    assert!(shown.contains("say how much") && !shown.contains("hunter2"), "{shown}");
}

/// A folder of its own for one test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("tidegate-config-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        use std::io::Write;
        std::fs::File::create(self.0.join(name)).unwrap().write_all(bytes).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn a_folder_is_read_in_the_order_of_names() {
    let folder = Folder::new("order");
    folder.write("20-sinks.yaml", b"sinks: [ { name: a, driver: { stdout: {} } } ]\n");
    folder.write("10-gateway.yml", b"version: 1\ngateway: { name: g }\n");
    folder.write(".hidden.yaml", b"nonsense: 1\n");
    folder.write("notes.txt", b"nonsense: 1\n");
    let sources = read_sources(&folder.0).unwrap();
    assert_eq!(sources.len(), 2);
    assert!(sources[0].name.ends_with("10-gateway.yml"), "{}", sources[0].name);
    load(&sources, &ProcessEnvironment).unwrap();
}

#[test]
fn what_cannot_be_read_is_one_clear_problem() {
    let folder = Folder::new("unreadable");
    let missing = read_sources(&folder.0.join("none.yaml")).unwrap_err();
    assert_eq!(codes(&missing), [Code::Unreadable]);
    assert!(missing.human().contains("none.yaml: error E0101: cannot be read"), "{missing}");
    let empty = read_sources(&folder.0).unwrap_err();
    assert!(empty.human().contains("holds no file that ends in .yaml or .yml"), "{empty}");
    folder.write("latin.yaml", b"version: 1 # caf\xe9\n");
    let latin = read_sources(&folder.0).unwrap_err();
    assert!(latin.human().contains("is not UTF-8 at byte 16"), "{latin}");
}

#[test]
fn other_files_are_read_in_the_same_way() {
    let text = "plnat: 1\n";
    let problems =
        load_other::<SimDoc>(&source("plant.yaml", text), &Fixed::default()).unwrap_err();
    assert!(problems.iter().any(|p| p.code == Code::UnknownField && p.line == 1), "{problems}");
}
