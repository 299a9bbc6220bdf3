//! Metrics, read back by a strict parser of the text format that shares nothing with the writer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tidegate_web_ui::{Readiness, render_metrics};

use crate::plant::{HOSTILE, status};

/// Labels of a sample.
type Labels = BTreeMap<String, String>;

/// One family as it was read.
#[derive(Debug, Default)]
struct Family {
    help: String,
    kind: String,
    samples: Vec<(Labels, f64)>,
}

/// Reads the text format 0.0.4 and panics on anything that its specification does not allow.
fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'), "the last line must end with a line feed");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("HELP needs a text");
            assert!(!families.contains_key(name), "{name}: samples must stand together");
            name.clone_into(&mut current);
            help.clone_into(&mut families.entry(current.clone()).or_default().help);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("TYPE needs a type");
            assert_eq!(name, current, "TYPE follows HELP of the same family");
            let family = families.get_mut(name).unwrap();
            assert!(family.samples.is_empty() && family.kind.is_empty(), "{name}: TYPE comes once");
            kind.clone_into(&mut family.kind);
        } else {
            let (name, labels, value) = sample(line);
            assert_eq!(name, current, "a sample belongs to the family above it");
            let samples = &mut families.get_mut(&current).unwrap().samples;
            assert!(samples.iter().all(|(l, _)| *l != labels), "twice: {line}");
            samples.push((labels, value));
        }
    }
    families
}

/// Reads `name{label="value",…} number`.
fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).expect("a sample needs a value");
    let (name, mut rest) = line.split_at(end);
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").expect("a label needs a value");
            let (value, after) = quoted(after);
            assert!(is_label(label), "{label} is not a label name");
            assert!(labels.insert(label.to_owned(), value).is_none(), "{label} twice");
            rest = &after[1..];
            match after.as_bytes()[0] {
                b',' => {}
                b'}' => break,
                other => panic!("{other} after a label in {line}"),
            }
        }
    }
    let number = rest.strip_prefix(' ').expect("one space before the value");
    let value = match number {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        number => {
            assert!(number.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b)), "{line}");
            number.parse().expect("a number")
        }
    };
    (name.to_owned(), labels, value)
}

/// Reads up to the closing quote; knows the three escapes and no other.
fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.push(match chars.next().map(|(_, c)| c) {
                Some('\\') => '\\',
                Some('"') => '"',
                Some('n') => '\n',
                other => panic!("escape {other:?}"),
            }),
            c => value.push(c),
        }
    }
    panic!("no closing quote in {text}");
}

fn is_label(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.starts_with("__")
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn value(families: &BTreeMap<String, Family>, name: &str, labels: &[(&str, &str)]) -> f64 {
    let labels: Labels = labels.iter().map(|(l, v)| ((*l).to_owned(), (*v).to_owned())).collect();
    let samples = &families.get(name).unwrap_or_else(|| panic!("no family {name}")).samples;
    let found = samples.iter().find(|(l, _)| *l == labels);
    found.unwrap_or_else(|| panic!("no {labels:?} in {samples:?}")).1
}

fn is(families: &BTreeMap<String, Family>, name: &str, labels: &[(&str, &str)], expected: f64) {
    let value = value(families, name, labels);
    assert!((value - expected).abs() < 1e-9, "{name} {labels:?}: {value}, not {expected}");
}

#[test]
fn every_family_has_help_type_prefix_and_unit() {
    let families = parse(&render_metrics(&status(), &Readiness::default()));
    assert!(families.len() > 40, "{} families", families.len());
    for (name, family) in &families {
        assert!(name.starts_with("tidegate_"), "{name}");
        assert!(is_label(name), "{name}");
        assert!(family.help.ends_with('.') && family.help.len() > 5, "{name}: {}", family.help);
        assert!(!family.samples.is_empty(), "{name} has no samples");
        match family.kind.as_str() {
            "counter" => assert!(name.ends_with("_total"), "{name}"),
            "gauge" => assert!(!name.ends_with("_total"), "{name}"),
            kind => panic!("{name} is a {kind}"),
        }
        for scaled in ["_ms", "_us", "_minutes", "_kib", "_mib", "_percent"] {
            assert!(!name.contains(scaled), "{name} is not in a base unit");
        }
        let labels: BTreeSet<Vec<&String>> =
            family.samples.iter().map(|(l, _)| l.keys().collect()).collect();
        assert_eq!(labels.len(), 1, "{name}: all samples have the same labels");
    }
}

#[test]
fn numbers_of_status_arrive_under_their_names() {
    let f = parse(&render_metrics(&status(), &Readiness::default()));
    is(&f, "tidegate_info", &[("gateway", "press-shop-07"), ("version", "0.1.0")], 1.0);
    is(&f, "tidegate_uptime_seconds", &[], 86400.5);
    is(&f, "tidegate_ready", &[], 1.0);
    let meter = ("device", "main_meter");
    is(&f, "tidegate_device_state", &[meter, ("state", "down")], 1.0);
    is(&f, "tidegate_device_state", &[meter, ("state", "up")], 0.0);
    let rows = "tidegate_device_rows_total";
    is(&f, rows, &[meter, ("table", "meters"), ("quality", "good")], 118.0);
    is(&f, rows, &[meter, ("table", "meters"), ("quality", "bad")], 1.0);
    is(&f, "tidegate_device_last_row_age_seconds", &[meter], 0.25);
    is(&f, "tidegate_link_bytes_total", &[("link", "press_plc"), ("direction", "in")], 4096.0);
    is(&f, "tidegate_link_events_total", &[("link", "press_plc"), ("event", "requests")], 120.0);
    is(&f, "tidegate_stream_watermark_lag_seconds", &[("stream", "energy_10s")], 2.25);
    is(&f, "tidegate_stream_queue_fill_ratio", &[("stream", "energy_10s")], 0.25);
    is(&f, "tidegate_sink_buffer_fill_ratio", &[("sink", HOSTILE)], 0.25);
    is(&f, "tidegate_store_queue_fill_ratio", &[], 0.25);
    is(&f, "tidegate_source_refused_rows_total", &[meter, ("reason", "future")], 1.0);
}

/// The sink of the plant lost one record more than its counters tell: 12 - (5 + 2 + 3 + 1) = 1.
#[test]
fn a_ledger_that_does_not_add_up_shows() {
    let f = parse(&render_metrics(&status(), &Readiness::default()));
    let unaccounted = "tidegate_ledger_unaccounted";
    is(&f, unaccounted, &[("hop", "source"), ("name", "main_meter")], 0.0);
    is(&f, unaccounted, &[("hop", "stream"), ("name", "energy_10s")], 0.0);
    is(&f, unaccounted, &[("hop", "sink"), ("name", HOSTILE)], 1.0);
}

#[test]
fn an_age_that_is_not_known_is_absent_and_not_zero() {
    let f = parse(&render_metrics(&status(), &Readiness::default()));
    assert!(!f.contains_key("tidegate_sink_oldest_record_age_seconds"));
}

/// Names of metrics are an interface: dashboards and alerts break when one changes unseen.
#[test]
fn the_whole_page_is_as_it_was_agreed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http/metrics.txt");
    let page = render_metrics(&status(), &Readiness::default());
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        let beside = path.with_extension("tmp");
        std::fs::File::create(&beside)
            .and_then(|mut file| std::io::Write::write_all(&mut file, page.as_bytes()))
            .and_then(|()| std::fs::rename(&beside, &path))
            .unwrap();
    }
    let agreed = std::fs::read_to_string(&path).unwrap();
    assert!(page == agreed, "metrics changed; look at the difference after `make bless`:\n{page}");
}
