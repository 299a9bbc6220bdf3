//! How problems are shown: to a person, to a program, and to a forge.

use std::fmt::Write;

use crate::problem::{Problem, Problems, Severity};

/// Characters of a source line that are shown at most.
const LINE_SHOWN_MAX: usize = 160;

impl Problems {
    /// For a person: position, the line, a caret and a hint for each problem. Ends with a line
    /// end where there is anything.
    pub fn human(&self) -> String {
        let mut out = String::new();
        for problem in self {
            human(problem, &mut out);
        }
        out
    }

    /// For a program: one JSON array of problems, on one line.
    pub fn json(&self) -> String {
        let list: Vec<_> = self.iter().collect();
        serde_json::to_string(&list).unwrap_or_else(|_| unreachable!("problems are plain data"))
    }

    /// For a forge: one workflow command a line, in the form that GitHub documents.
    pub fn github(&self) -> String {
        let mut out = String::new();
        for problem in self {
            let level = word(problem.severity);
            let (file, line, column) = (&problem.file, problem.line, problem.column);
            let mut text = problem.message.clone();
            if let Some(hint) = &problem.hint {
                text = format!("{text} ({hint})");
            }
            let mut place = String::new();
            if !file.is_empty() {
                place = format!("file={},", property(file));
            }
            if line > 0 {
                place = format!("{place}line={line},col={column},");
            }
            let code = problem.code;
            push(&mut out, format_args!("::{level} {place}title={code}::{}\n", message(&text)));
        }
        out
    }
}

fn human(problem: &Problem, out: &mut String) {
    let Problem { code, message, line, column, .. } = problem;
    let place = match (problem.file.as_str(), line) {
        ("", _) if problem.path.is_empty() => String::new(),
        // A document that did not come from text has paths only.
        ("", _) => format!("{}: ", problem.path),
        (file, 0) => format!("{file}: "),
        (file, _) => format!("{file}:{line}:{column}: "),
    };
    push(out, format_args!("{place}{} {code}: {message}\n", word(problem.severity)));
    if let Some(source) = &problem.source_line {
        let gutter = line.to_string();
        let blank = " ".repeat(gutter.len());
        let shown: String = source.chars().take(LINE_SHOWN_MAX).collect();
        let caret: String = source
            .chars()
            .take(usize::try_from(column.saturating_sub(1)).unwrap_or(0))
            .take(LINE_SHOWN_MAX)
            // A tab stays a tab, so that the caret stands below its character.
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        push(out, format_args!(" {gutter} | {}\n {blank} | {caret}^\n", shown.trim_end()));
    }
    if let Some(hint) = &problem.hint {
        push(out, format_args!("   = hint: {hint}\n"));
    }
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).unwrap_or_else(|_| unreachable!("a String takes any text"));
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

/// Escapes the text of a workflow command.
fn message(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property of a workflow command, where commas and colons divide.
fn property(text: &str) -> String {
    message(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;

    fn one() -> Problems {
        let mut problems = Problems::new();
        problems.push(Problem {
            code: Code::UnknownField,
            severity: Severity::Error,
            path: "gateway.nmae".to_owned(),
            file: "a,b.yaml".to_owned(),
            line: 12,
            column: 3,
            message: "no field `nmae` here".to_owned(),
            hint: Some("did you mean `name`?".to_owned()),
            source_line: Some("  nmae: x".to_owned()),
        });
        problems
    }

    #[test]
    fn a_person_sees_line_caret_and_hint() {
        let expected = "a,b.yaml:12:3: error E0201: no field `nmae` here
 12 |   nmae: x
    |   ^
   = hint: did you mean `name`?
";
        assert_eq!(one().human(), expected);
    }

    #[test]
    fn a_program_sees_json_without_the_line() {
        let expected = r#"[{"code":"E0201","severity":"error","path":"gateway.nmae","file":"a,b.yaml","line":12,"column":3,"message":"no field `nmae` here","hint":"did you mean `name`?"}]"#;
        assert_eq!(one().json(), expected);
    }

    #[test]
    fn without_a_file_the_path_is_the_place() {
        let mut problem = one().iter().next().unwrap().clone();
        (problem.file, problem.line, problem.source_line) = (String::new(), 0, None);
        let mut problems = Problems::new();
        problems.push(problem);
        assert!(problems.human().starts_with("gateway.nmae: error E0201: no field"));
        assert!(problems.github().starts_with("::error title=E0201::no field"));
    }

    #[test]
    fn a_forge_sees_a_workflow_command() {
        let expected = "::error file=a%2Cb.yaml,line=12,col=3,title=E0201::no field `nmae` here \
                        (did you mean `name`?)\n";
        assert_eq!(one().github(), expected);
    }
}
