//! From files to a document, or to every problem that they have.
//!
//! Files are parsed one by one, merged by section, references in values replaced, and the result
//! turned into typed values. Reading never looks at what the values mean: that is `check`.

use std::path::Path as FilePath;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::code::Code;
use crate::contained::{HINT, contained};
use crate::environment::{Environment, Unresolved, interpolate};
use crate::path::{Path, Step};
use crate::problem::{Problem, Problems};
use crate::repair::{self, Names, take_out};
use crate::sink::STORE_ALIASES;
use crate::span::{Spans, problem_in};
use crate::yaml::{self, At, BYTES_MAX, Entry, Map, Node, Scalar, Style, Unread, Value};
use crate::{Document, check::SqlPlanner};

/// The text of a configuration file and its name, as problems show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// The file's name.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// A document that was read, and where each of its values stands.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The document.
    pub document: Document,
    /// Where its values were written.
    pub spans: Spans,
    /// Items that lost something while they were read; checks keep quiet about them.
    pub(crate) damaged: Names,
}

impl From<Document> for Loaded {
    /// A document that did not come from text: its problems have paths, but no positions.
    fn from(document: Document) -> Self {
        Self { document, spans: Spans::default(), damaged: Names::new() }
    }
}

/// Reads a file, or all files of a folder that end in `.yaml` or `.yml`, sorted by name. Hidden
/// files are passed over.
///
/// # Errors
/// A problem for each file that cannot be read, is too large or is not UTF-8.
pub fn read_sources(path: &FilePath) -> Result<Vec<SourceFile>, Problems> {
    let mut problems = Problems::new();
    let mut sources = Vec::new();
    let mut bytes_left = BYTES_MAX;
    let files = files(path).unwrap_or_else(|problem| {
        problems.push(*problem);
        Vec::new()
    });
    for file in files {
        match read_file(&file, bytes_left) {
            Ok(source) => {
                bytes_left -= source.text.len();
                sources.push(source);
            }
            Err(problem) => problems.push(*problem),
        }
    }
    if problems.is_empty() { Ok(sources) } else { Err(problems) }
}

fn files(path: &FilePath) -> Result<Vec<std::path::PathBuf>, Box<Problem>> {
    let refuse = |what: String| file_problem(Code::Unreadable, path, what);
    let cannot = |error: std::io::Error| refuse(format!("cannot be read: {error}"));
    if !std::fs::metadata(path).map_err(cannot)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(cannot)? {
        let file = entry.map_err(cannot)?.path();
        let hidden = file.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
        let yaml = file.extension().is_some_and(|e| e == "yaml" || e == "yml");
        if yaml && !hidden && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(refuse("holds no file that ends in .yaml or .yml".to_owned()));
    }
    Ok(files)
}

fn read_file(path: &FilePath, bytes_max: usize) -> Result<SourceFile, Box<Problem>> {
    use std::io::Read;
    let refuse = |what: String| file_problem(Code::Unreadable, path, what);
    let cannot = |error: std::io::Error| refuse(format!("cannot be read: {error}"));
    let bytes_over = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(cannot)?;
    file.take(bytes_over).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() > bytes_max {
        let what = format!("more than {BYTES_MAX} bytes of configuration");
        return Err(file_problem(Code::TooLarge, path, what));
    }
    let text = String::from_utf8(bytes)
        .map_err(|e| refuse(format!("is not UTF-8 at byte {}", e.utf8_error().valid_up_to())))?;
    Ok(SourceFile { name: path.display().to_string(), text })
}

fn file_problem(code: Code, path: &FilePath, message: String) -> Box<Problem> {
    let source = SourceFile { name: path.display().to_string(), text: String::new() };
    Box::new(problem_in(&[source], At::default(), code, &Path::default(), message))
}

/// Reads a document, without checking what it means.
///
/// # Errors
/// Every problem of its form.
pub fn load(sources: &[SourceFile], env: &dyn Environment) -> Result<Loaded, Problems> {
    let (loaded, problems) = gather(sources, env);
    match loaded {
        Some(loaded) if !problems.has_errors() => Ok(loaded),
        _ => Err(problems.sorted()),
    }
}

/// The store's folder that a document names, also where the document is wrong elsewhere; none
/// where it cannot be made out. For finding what was kept there.
pub fn store_path(sources: &[SourceFile], env: &dyn Environment) -> Option<String> {
    if let (Some(loaded), _) = gather(sources, env) {
        return Some(loaded.document.store.path);
    }
    // Text that is no YAML as a whole may hold the section in one piece.
    sources.iter().find_map(|source| {
        let section = section(&source.text, "store:")?;
        let text = format!("version: 1\ngateway: {{ name: unnamed }}\n{section}");
        let alone = SourceFile { name: source.name.clone(), text };
        let (loaded, problems) = gather(&[alone], env);
        loaded.filter(|_| !problems.has_errors()).map(|loaded| loaded.document.store.path)
    })
}

/// The lines of a section in block style, with its head.
fn section(text: &str, head: &str) -> Option<String> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(head));
    let first = lines.next()?;
    let inside = |line: &&str| line.is_empty() || line.starts_with([' ', '\t', '#', '}']);
    let rest = lines.take_while(inside);
    Some(std::iter::once(first).chain(rest).fold(String::new(), |all, line| all + line + "\n"))
}

/// Reads a document and checks it; what is wrong in form does not hide what is wrong otherwise.
/// With the document come its warnings.
///
/// # Errors
/// Every problem, warnings among them.
pub fn load_and_check(
    sources: &[SourceFile],
    env: &dyn Environment,
    planner: &dyn SqlPlanner,
) -> Result<(Loaded, Problems), Problems> {
    let (loaded, mut problems) = gather(sources, env);
    if let Some(loaded) = &loaded {
        problems.extend(crate::check::check(loaded, planner));
    }
    let problems = problems.sorted();
    match loaded {
        Some(loaded) if !problems.has_errors() => Ok((loaded, problems)),
        _ => Err(problems),
    }
}

/// Reads any other YAML file in the same way: positions, references, all problems at once.
///
/// # Errors
/// Every problem of its form.
pub fn load_other<T: DeserializeOwned + JsonSchema>(
    source: &SourceFile,
    env: &dyn Environment,
) -> Result<(T, Spans), Problems> {
    let sources = std::slice::from_ref(source);
    let mut problems = Problems::new();
    let (root, mut damaged) = tree(sources, env, &mut problems);
    let value = root.and_then(|mut root| {
        let value = repair::read::<T>(&mut root, sources, &mut problems, &mut damaged)?;
        Some((value, Spans { root: Some(root), sources: sources.to_vec() }))
    });
    match value {
        Some(value) if !problems.has_errors() => Ok(value),
        _ => Err(problems.sorted()),
    }
}

/// Reads as much of a document as can be used, and notes what cannot.
fn gather(sources: &[SourceFile], env: &dyn Environment) -> (Option<Loaded>, Problems) {
    contained(|| gathered(sources, env)).unwrap_or_else(|message| {
        let mut problems = Problems::new();
        let problem = problem_in(sources, At::default(), Code::Internal, &Path::default(), message);
        problems.push(Problem { hint: Some(HINT.to_owned()), ..problem });
        (None, problems)
    })
}

fn gathered(sources: &[SourceFile], env: &dyn Environment) -> (Option<Loaded>, Problems) {
    let mut problems = Problems::new();
    let (root, mut damaged) = tree(sources, env, &mut problems);
    let Some(mut root) = root else {
        return (None, problems);
    };
    by_first_names(&mut root);
    let mut document = repair::read::<Document>(&mut root, sources, &mut problems, &mut damaged);
    if document.is_none() && !problems.is_full() && stand_in(&mut root) {
        document = repair::read::<Document>(&mut root, sources, &mut problems, &mut damaged);
    }
    if let Some(document) = &mut document {
        document.share_register_maps();
    }
    let spans = Spans { root: Some(root), sources: sources.to_vec() };
    (document.map(|document| Loaded { document, spans, damaged }), problems)
}

/// Calls the settings of sinks' stores by their first names, so that what is said about a setting
/// finds its place, whichever word was written. One that stands there by both is left alone.
fn by_first_names(root: &mut Node) {
    let Some(Value::List(sinks)) = entry(root, "sinks").map(|node| &mut node.value) else {
        return;
    };
    for sink in sinks {
        let Some(Value::Map(store)) = entry(sink, "store").map(|node| &mut node.value) else {
            continue;
        };
        for (alias, field) in STORE_ALIASES {
            if store.get(field).is_none()
                && let Some(entry) = store.entries.iter_mut().find(|entry| entry.key == alias)
            {
                field.clone_into(&mut entry.key);
            }
        }
    }
}

fn entry<'a>(node: &'a mut Node, key: &str) -> Option<&'a mut Node> {
    let Value::Map(map) = &mut node.value else {
        return None;
    };
    map.entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.node)
}

/// Fills in for the fields that a document cannot do without, so that the rest can be checked:
/// that they are missing is known already.
fn stand_in(root: &mut Node) -> bool {
    let at = root.at;
    let Value::Map(map) = &mut root.value else {
        return false;
    };
    let scalar = |text: &str| {
        let scalar = Scalar { text: text.to_owned(), style: Style::Plain, written: None };
        Node { at, value: Value::Scalar(scalar) }
    };
    let entry = |key: &str, node: Node| Entry { key: key.to_owned(), at, node };
    let before = map.entries.len();
    if map.get("version").is_none() {
        map.entries.push(entry("version", scalar("1")));
    }
    if map.get("gateway").is_none() {
        let entries = vec![entry("name", scalar("unnamed"))];
        let value = Value::Map(Map { entries, dropped: Vec::new() });
        map.entries.push(entry("gateway", Node { at, value }));
    }
    map.entries.len() > before
}

/// The merged tree with its references replaced; `None` where a text is not usable.
fn tree(
    sources: &[SourceFile],
    env: &dyn Environment,
    problems: &mut Problems,
) -> (Option<Node>, Names) {
    let mut unread = Vec::new();
    let roots: Vec<_> = sources
        .iter()
        .enumerate()
        .map(|(file, source)| yaml::parse(&source.text, file, &mut unread))
        .collect();
    for Unread { code, at, message, hint } in unread {
        let problem = problem_in(sources, at, code, &Path::default(), message);
        problems.push(Problem { hint, ..problem });
    }
    let mut damaged = Names::new();
    let Some(roots) = roots.into_iter().collect::<Option<Vec<_>>>() else {
        return (None, damaged);
    };
    let Some(mut root) = merge(roots, sources, problems) else {
        return (None, damaged);
    };
    let mut refused = Vec::new();
    replace_references(&mut root, &mut Path::default(), env, &mut |at, path, unresolved| {
        let problem = reference_problem(at, path, &unresolved, sources);
        problems.push(problem);
        refused.push(path.clone());
    });
    for path in refused {
        take_out(&mut root, &path, &mut damaged);
    }
    (Some(root), damaged)
}

/// Joins files by section: lists are joined, `version` may be repeated, all else stands once.
fn merge(roots: Vec<Node>, sources: &[SourceFile], problems: &mut Problems) -> Option<Node> {
    let mut roots = roots.into_iter();
    let mut merged = roots.next()?;
    for root in roots {
        let (Value::Map(into), Value::Map(from)) = (&mut merged.value, root.value) else {
            // A file that is no mapping is shown as that, alone.
            let message = "expected a mapping of sections, such as `devices:`";
            let path = Path::default();
            problems.push(problem_in(sources, root.at, Code::WrongKind, &path, message));
            continue;
        };
        for entry in from.entries {
            let Some(here) = into.entries.iter_mut().find(|e| e.key == entry.key) else {
                into.entries.push(entry);
                continue;
            };
            match (&mut here.node.value, entry.node.value) {
                (Value::List(items), Value::List(more)) => items.extend(more),
                (Value::Scalar(a), Value::Scalar(b))
                    if entry.key == "version" && a.text == b.text => {}
                _ => {
                    let path = Path(vec![Step::Key(entry.key.clone())]);
                    let message = format!("`{}` stands in two files", entry.key);
                    let file = sources.get(here.at.file).map_or("", |s| s.name.as_str());
                    let hint = format!("it stands in {file} on line {} already", here.at.line);
                    let problem = problem_in(sources, entry.at, Code::SectionTwice, &path, message);
                    problems.push(Problem { hint: Some(hint), ..problem });
                }
            }
        }
    }
    Some(merged)
}

/// Replaces references in all values, never in keys.
fn replace_references(
    node: &mut Node,
    path: &mut Path,
    env: &dyn Environment,
    refuse: &mut dyn FnMut(At, &Path, Unresolved),
) {
    match &mut node.value {
        Value::Gone => {}
        Value::Scalar(scalar) => match interpolate(&scalar.text, env) {
            Ok(None) => {}
            Ok(Some(text)) => scalar.written = Some(std::mem::replace(&mut scalar.text, text)),
            Err(unresolved) => refuse(node.at, path, unresolved),
        },
        Value::List(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                path.0.push(Step::Index(index));
                replace_references(item, path, env, refuse);
                path.0.pop();
            }
        }
        Value::Map(map) => {
            for entry in &mut map.entries {
                path.0.push(Step::Key(entry.key.clone()));
                replace_references(&mut entry.node, path, env, refuse);
                path.0.pop();
            }
        }
    }
}

fn reference_problem(
    at: At,
    path: &Path,
    unresolved: &Unresolved,
    sources: &[SourceFile],
) -> Problem {
    let (code, message, hint) = match unresolved {
        Unresolved::Unset { name, message: Some(message) } => {
            (Code::VariableUnset, format!("{name} is not set: {message}"), None)
        }
        Unresolved::Unset { name, message: None } => (
            Code::VariableUnset,
            format!("the environment variable {name} is not set"),
            Some(format!("set it, or give a default: ${{{name}:-default}}")),
        ),
        Unresolved::Unreadable { path, why } => {
            (Code::ReferenceUnreadable, format!("the file {path} {why}"), None)
        }
        Unresolved::Malformed(message) => (
            Code::BadReference,
            message.clone(),
            Some(
                "write ${VAR}, ${VAR:-default}, ${VAR:?message} or ${file:/path}, and $${ for \
                  the text ${"
                    .to_owned(),
            ),
        ),
    };
    Problem { hint, ..problem_in(sources, at, code, path, message) }
}
