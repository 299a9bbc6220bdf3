//! Commands to a running gateway over its control socket: `status`, `healthcheck`, `apply`, `log`.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use tidegate_config::read_sources;
use tidegate_web_ui::{Applied, ApplyOutcome, LogLevels, LogLevelsWanted};

use super::check::fail;
use super::{CONFIG_REFUSED, FAILURE};
use crate::cli::print::say;
use crate::control::{Reply, ask};

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// How long the change of a configuration may take: parts end, others start, are judged, and all
/// that again backwards.
const APPLY_MAX: Duration = Duration::from_mins(3);

/// Prints the whole status as JSON.
pub fn status(socket: &Path) -> u8 {
    show(socket, "/api/v1/status")
}

/// Prints whether the streams work.
pub fn healthcheck(socket: &Path) -> u8 {
    show(socket, "/readyz")
}

fn show(socket: &Path, path: &str) -> u8 {
    match talk(socket, "GET", path, "", ANSWER_MAX) {
        Ok(reply) => {
            say!("{}", reply.text().trim_end());
            if reply.status == 200 { 0 } else { FAILURE }
        }
        Err(code) => code,
    }
}

/// An error answer, as far as it is shown.
#[derive(Deserialize)]
struct Problem {
    detail: String,
    applied: Option<Applied>,
}

/// Has the gateway run the configuration in `file` in place of its own.
pub fn apply(socket: &Path, file: &Path) -> u8 {
    let sources = match read_sources(file) {
        Ok(sources) => sources,
        Err(problems) => {
            eprint!("{}", problems.human());
            return CONFIG_REFUSED;
        }
    };
    let [source] = sources.as_slice() else {
        return fail(format_args!("{} is a folder; apply takes one file", file.display()));
    };
    let path = format!("/api/v1/config/apply?name={}", encoded(&source.name));
    let reply = match talk(socket, "POST", &path, &source.text, APPLY_MAX) {
        Ok(reply) => reply,
        Err(code) => return code,
    };
    let (status, body) = (reply.status, reply.text());
    let applied = if status == 200 {
        serde_json::from_str::<Applied>(&body).ok()
    } else {
        serde_json::from_str::<Problem>(&body).ok().map(|problem| {
            let refused = || Applied {
                outcome: ApplyOutcome::Refused,
                detail: problem.detail,
                ..Applied::default()
            };
            problem.applied.unwrap_or_else(refused)
        })
    };
    let Some(applied) = applied else {
        return fail(format_args!("the gateway answered {status}: {body}"));
    };
    eprint!("{}", applied.text);
    report(&applied)
}

fn report(applied: &Applied) -> u8 {
    let parts = |what: &str, parts: &[String]| {
        for part in parts {
            say!("  {what} {part}");
        }
    };
    let detail = &applied.detail;
    match applied.outcome {
        ApplyOutcome::Applied => {
            say!("applied: {detail}");
            parts("stopped", &applied.stopped);
            parts("started", &applied.started);
            0
        }
        ApplyOutcome::Unchanged => {
            say!("unchanged: {detail}");
            0
        }
        ApplyOutcome::Refused => {
            eprintln!("tidegate: refused, nothing was touched: {detail}");
            CONFIG_REFUSED
        }
        ApplyOutcome::NotNow => fail(format_args!("not applied, nothing was touched: {detail}")),
        ApplyOutcome::RolledBack => fail(format_args!("it did not work and was undone: {detail}")),
    }
}

/// Shows what is logged, or has other levels logged for a while.
pub fn log(socket: &Path, levels: Option<&str>, lasting: Duration) -> u8 {
    const PATH: &str = "/api/v1/logs/levels";
    let answer = match levels {
        None => talk(socket, "GET", PATH, "", ANSWER_MAX),
        Some(levels) => {
            let wanted = LogLevelsWanted { levels: levels.to_owned(), for_s: lasting.as_secs() };
            match serde_json::to_string(&wanted) {
                Ok(body) => talk(socket, "PUT", PATH, &body, ANSWER_MAX),
                Err(error) => return fail(error),
            }
        }
    };
    let (status, body) = match answer {
        Ok(reply) => (reply.status, reply.text()),
        Err(code) => return code,
    };
    match serde_json::from_str::<LogLevels>(&body) {
        Ok(LogLevels { levels, resets_in_s: Some(seconds) }) => {
            say!("{levels} (for another {seconds} s)");
            0
        }
        Ok(LogLevels { levels, resets_in_s: None }) => {
            say!("{levels}");
            0
        }
        Err(_) => match serde_json::from_str::<Problem>(&body) {
            Ok(problem) => fail(problem.detail),
            Err(_) => fail(format_args!("the gateway answered {status}: {body}")),
        },
    }
}

fn talk(
    socket: &Path,
    method: &str,
    path: &str,
    body: &str,
    patience: Duration,
) -> Result<Reply, u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(fail)?;
    runtime.block_on(ask(socket, method, path, body, patience)).map_err(|error| {
        fail(format_args!(
            "no gateway answers on {}: {error}\n  hint: is it running, and is this the folder of \
             `store.path`? See --socket",
            socket.display()
        ))
    })
}

/// Text inside a query: everything but what RFC 3986 leaves unreserved is percent-encoded.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
        let written = if plain {
            encoded.write_char(char::from(byte))
        } else {
            write!(encoded, "%{byte:02X}")
        };
        // Writing to a String cannot fail.
        debug_assert!(written.is_ok());
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_percent_encoded() {
        // RFC 3986, section 2.1 and 2.3.
        assert_eq!(encoded("/etc/a b&c=%.yaml"), "/etc/a%20b%26c%3D%25.yaml");
        assert_eq!(encoded("\u{e4}"), "%C3%A4");
    }
}
