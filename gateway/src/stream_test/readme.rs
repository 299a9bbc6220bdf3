//! The engine's README, block by block: what it says is what the engine does.
//!
//! Each block of YAML is a whole configuration; it is checked as `tidegate check` does and its tests
//! run as `tidegate test` does. Every kind of window and every function that we add stands in a
//! heading, between backticks, with a block below it.

use std::path::Path;

use tidegate_config::{ProcessEnvironment, SourceFile, load_and_check, schema_json};
use tidegate_engine::{Sql, function_names};

use super::{Programs, run};
use crate::planner::EnginePlanner;

/// What stands between one heading and the next.
struct Section {
    heading: String,
    /// First line in the file, and text.
    blocks: Vec<(usize, String)>,
}

fn sections() -> Vec<Section> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("engine/README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut sections = vec![Section { heading: String::new(), blocks: Vec::new() }];
    let mut fence: Option<&str> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let section = sections.last_mut().unwrap();
        match fence {
            None if line.starts_with('#') => {
                sections.push(Section { heading: line.to_owned(), blocks: Vec::new() });
            }
            None => {
                fence = line.strip_prefix("```");
                if fence == Some("yaml") {
                    section.blocks.push((number + 1, String::new()));
                }
            }
            Some(_) if line == "```" => fence = None,
            Some("yaml") => {
                let (_, block) = section.blocks.last_mut().unwrap();
                block.push_str(line);
                block.push('\n');
            }
            Some(_) => {}
        }
    }
    assert!(fence.is_none(), "a block of the README has no end");
    sections
}

/// What is wrong with a block; line numbers are those of the block.
async fn differences(number: usize, text: String) -> Vec<String> {
    let source = SourceFile { name: format!("README.md, block at line {number}"), text };
    let planner = EnginePlanner::default();
    let loaded = match load_and_check(&[source], &ProcessEnvironment, &planner) {
        Ok((loaded, problems)) if problems.is_empty() => loaded,
        Ok((_, problems)) | Err(problems) => return vec![problems.human()],
    };
    let document = &loaded.document;
    if document.tests.is_empty() {
        return vec![format!("the block at line {number} has no test")];
    }
    let sql = Sql::new(64 << 20).unwrap();
    let mut all = Vec::new();
    for test in &document.tests {
        let differences = match run(document, &sql, test, &Programs::default()).await {
            Ok(outcome) => outcome.differences,
            Err(error) => vec![error],
        };
        let place = |what: String| format!("block at line {number}, `{}`: {what}", test.name);
        all.extend(differences.into_iter().map(place));
    }
    all
}

#[tokio::test]
async fn every_example_of_the_engine_s_readme_holds() {
    let mut wrong = Vec::new();
    for (number, text) in sections().into_iter().flat_map(|section| section.blocks) {
        wrong.extend(differences(number, text).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The kinds of windows, as the published schema has them.
fn window_kinds() -> Vec<String> {
    let schema: serde_json::Value = serde_json::from_str(&schema_json()).unwrap();
    let kinds = schema["$defs"]["Window"]["oneOf"].as_array().unwrap();
    kinds.iter().flat_map(|kind| kind["properties"].as_object().unwrap().keys().cloned()).collect()
}

#[test]
fn every_window_and_function_has_an_example() {
    let sections = sections();
    let shown = |written: &dyn Fn(&str) -> bool| {
        sections.iter().any(|section| {
            // The odd pieces of a heading stand between backticks.
            !section.blocks.is_empty() && section.heading.split('`').skip(1).step_by(2).any(written)
        })
    };
    let kinds = window_kinds();
    assert!(kinds.contains(&"tumbling".to_owned()), "{kinds:?}");
    for kind in &kinds {
        assert!(
            shown(&|code| code == kind),
            "no heading with a block is about the window `{kind}`"
        );
    }
    for name in function_names() {
        let call = format!("{name}(");
        assert!(
            shown(&|code| code.starts_with(&call)),
            "no heading with a block is about the function `{name}`"
        );
    }
}
