//! What is written down about the program, compared with the program.
//!
//! `make bless` (TIDEGATE_BLESS=1) writes the generated texts anew.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Compares a generated text with its file, or writes it.
#[expect(clippy::disallowed_methods, reason = "a file of the tree, written by a person's wish")]
fn same_as_file(path: &Path, generated: &str) {
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(path, generated).unwrap();
    }
    assert_eq!(read(path), generated, "{} is stale: run `make bless`", path.display());
}

fn tidegate(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(args)
        .env("COLUMNS", "100")
        .env_remove("TIDEGATE_LOG")
        .output()
        .unwrap()
}

#[test]
fn the_help_is_what_the_file_says() {
    let mut text = String::new();
    let commands = [
        "",
        "run",
        "check",
        "test",
        "explain",
        "schema",
        "sim",
        "demo",
        "bench",
        "status",
        "healthcheck",
        "apply",
        "tap",
        "preview",
        "streams",
        "streams ls",
        "streams start",
        "streams stop",
        "streams restart",
        "store",
        "store ls",
        "store inspect",
        "store verify",
        "store export",
        "store replay",
        "store forget",
        "store restored",
        "store compact",
        "sinks",
        "sinks pause",
        "sinks resume",
        "rejected",
        "rejected ls",
        "rejected redrive",
        "rejected drop",
        "log",
    ];
    for command in commands {
        let args: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let output = tidegate(&args);
        assert!(output.status.success());
        writeln!(text, "$ tidegate {}", args.join(" ")).unwrap();
        text.push_str(&String::from_utf8(output.stdout).unwrap());
        text.push('\n');
    }
    same_as_file(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help.txt"), &text);
}

#[test]
fn the_schema_is_what_the_program_prints() {
    let output = tidegate(&["schema"]);
    assert!(output.status.success());
    let file = root().join("board-configs/schema.json");
    assert_eq!(read(&file), String::from_utf8(output.stdout).unwrap());
}

/// The README's configuration is an example that is checked, not a text beside it.
#[test]
fn the_readme_shows_the_example() {
    let readme = read(&root().join("README.md"));
    let name = "board-configs/examples/press-shop.yaml";
    let begin = format!("<!-- begin {name} -->");
    let end = format!("<!-- end {name} -->");
    let block = readme
        .split_once(&begin)
        .and_then(|(_, rest)| rest.split_once(&end))
        .map(|(block, _)| block.trim())
        .expect("the README has the marked block");
    let shown = block
        .strip_prefix("```yaml\n")
        .and_then(|b| b.strip_suffix("```"))
        .expect("the block is YAML");
    assert_eq!(shown, read(&root().join(name)));
}

/// Decisions are numbered without a hole, and their list has each by its title.
#[test]
fn the_list_of_decisions_has_each() {
    let folder = root().join("gateway/decisions");
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "README.md")
        .collect();
    names.sort_unstable();
    let mut list = String::from(
        "# Decisions\n\nWhat was decided, why, and by which figures; `make bless` writes this list.\n\n",
    );
    for (number, name) in (1..).zip(&names) {
        let text = read(&folder.join(name));
        let heading = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let heading = heading.unwrap_or_else(|| panic!("{name} begins with its heading"));
        assert!(name.starts_with(&format!("{number:03}-")), "{name} is the {number}th decision");
        assert!(heading.starts_with(&format!("{number}. ")), "{name}: {heading}");
        writeln!(list, "- [{heading}]({name})").unwrap();
    }
    same_as_file(&folder.join("README.md"), &list);
}

/// Planned by the true engine, not by a stand-in.
#[test]
fn every_example_is_accepted_and_its_tests_pass() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("board-configs/examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        let sqlite = path.file_stem().is_some_and(|name| name == "lookups-sqlite");
        if sqlite && !cfg!(feature = "sqlite") {
            continue;
        }
        seen += 1;
        // Its tests ask its program, which a promise in tests/ starts.
        let asks = path.file_stem().is_some_and(|name| name == "process");
        for command in ["check", "test", "explain"] {
            if command == "test" && asks {
                continue;
            }
            let text = path.to_str().unwrap();
            let args: &[&str] =
                if command == "explain" { &["explain", "-c", text] } else { &[command, text] };
            let output = tidegate(args);
            assert!(
                output.status.success(),
                "tidegate {command} {text}:\n{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    assert!(seen >= 6, "only {seen} examples");
}
