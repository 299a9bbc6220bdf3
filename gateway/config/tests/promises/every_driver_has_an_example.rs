//! Every variant of a registry has an example, and every example loads and checks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tidegate_config::{Document, load_and_check, read_sources};

use crate::stand_in::{Fixed, Planner};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../board-configs/examples")
}

fn examples() -> Vec<(String, Document)> {
    let mut files: Vec<_> =
        std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "yaml"));
    files.sort();
    let load = |file: &PathBuf| {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let sources = read_sources(file).unwrap();
        match load_and_check(&sources, &Fixed::default(), &Planner) {
            Ok((loaded, warnings)) => {
                assert!(warnings.is_empty(), "{warnings}");
                (name, loaded.document)
            }
            Err(problems) => panic!("{name}:\n{problems}"),
        }
    };
    files.iter().map(load).collect()
}

#[test]
fn all_examples_load_and_check() {
    let names: Vec<_> = examples().into_iter().map(|(name, _)| name).collect();
    assert!(names.contains(&"press-shop.yaml".to_owned()), "{names:?}");
}

/// The choices of a registry, from the schema that is made from its type.
fn choices(registry: &str) -> BTreeSet<String> {
    let schema: serde_json::Value = serde_json::from_str(&tidegate_config::schema_json()).unwrap();
    let choices = schema["$defs"][registry]["oneOf"].as_array().unwrap();
    let names = choices.iter().map(|choice| choice["required"][0].as_str().unwrap().to_owned());
    names.collect()
}

#[test]
fn each_choice_has_an_example() {
    let mut shown: [BTreeSet<String>; 4] = Default::default();
    for (_, document) in examples() {
        shown[0].extend(document.devices.iter().map(|d| d.driver.kind().to_owned()));
        shown[1].extend(document.sinks.iter().map(|s| s.driver.kind().to_owned()));
        shown[2].extend(document.links.iter().map(|link| link.bus.kind().to_owned()));
        let windows = document.streams.iter().filter_map(|s| s.window.as_ref());
        shown[3].extend(windows.map(|w| w.kind().to_owned()));
    }
    for (registry, shown) in ["DeviceDriver", "SinkDriver", "Bus", "Window"].iter().zip(shown) {
        for choice in choices(registry) {
            assert!(
                shown.contains(&choice),
                "{registry} `{choice}` has no example: add one to board-configs/examples"
            );
        }
    }
}
