//! What a configuration may refer to outside of itself: environment variables and files.
//!
//! The trait is the border for tests and for those who check without looking (the webhook).
//! References are `${VAR}`, `${VAR:-default}`, `${VAR:?message}` and `${file:/path}`; they are
//! replaced in scalar values only, after parsing, so they never change the document's structure.
//! A value that was written without quotes is then what YAML's core rules say about its new text,
//! so `port: ${PORT}` is a number; one in quotes stays a text.

use std::io::Read;

use tidegate_drivers::types::Secret;

/// Bytes of a referenced file at most.
pub const REFERENCED_FILE_BYTES_MAX: u64 = 64 << 10;

/// Where references of a configuration lead.
pub trait Environment {
    /// The value of an environment variable, where it is set and is text.
    fn var(&self, name: &str) -> Option<String>;

    /// The text of a file, or why it cannot be had, in words that follow the file's name.
    fn read(&self, path: &str) -> Result<String, String>;
}

/// The environment of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn var(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn read(&self, path: &str) -> Result<String, String> {
        let file = std::fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
        let mut text = String::new();
        file.take(REFERENCED_FILE_BYTES_MAX + 1)
            .read_to_string(&mut text)
            .map_err(|error| format!("cannot be read: {error}"))?;
        let within = u64::try_from(text.len()).is_ok_and(|len| len <= REFERENCED_FILE_BYTES_MAX);
        within.then_some(text).ok_or_else(|| "is larger than 64 KiB".to_owned())
    }
}

/// Why a secret cannot be had. Never holds any of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The environment variable is not set.
    #[error("the secret's environment variable {0} is not set")]
    Unset(String),
    /// The file cannot be read.
    #[error("the secret's file {0} {1}")]
    Unreadable(String, String),
}

/// Fetches a secret from where it is kept. The caller keeps it out of logs and answers.
pub fn resolve_secret(secret: &Secret, env: &dyn Environment) -> Result<String, SecretError> {
    match secret {
        Secret::Env(name) => env.var(name).ok_or_else(|| SecretError::Unset(name.clone())),
        Secret::File(path) => env
            .read(path)
            .map(without_line_end)
            .map_err(|why| SecretError::Unreadable(path.clone(), why)),
    }
}

fn without_line_end(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

/// Why references in a text could not be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// The variable is not set; the message is the user's own, where there is one.
    Unset { name: String, message: Option<String> },
    /// The file cannot be read.
    Unreadable { path: String, why: String },
    /// The reference is not well formed.
    Malformed(String),
}

/// Replaces the references in `text`; `None` where there are none. `$${` stands for `${`.
pub(crate) fn interpolate(text: &str, env: &dyn Environment) -> Result<Option<String>, Unresolved> {
    if !text.contains("${") {
        return Ok(None);
    }
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let before = &rest[..start];
        let after = &rest[start + 2..];
        if let Some(escaped) = before.strip_suffix('$') {
            out.push_str(escaped);
            out.push_str("${");
            rest = after;
            continue;
        }
        out.push_str(before);
        let Some(end) = after.find('}') else {
            return Err(Unresolved::Malformed(format!("`${{{after}` has no closing `}}`")));
        };
        out.push_str(&lookup(&after[..end], env)?);
        rest = &after[end + 1..];
    }
    out.push_str(rest);
    Ok(Some(out))
}

fn lookup(reference: &str, env: &dyn Environment) -> Result<String, Unresolved> {
    if let Some(path) = reference.strip_prefix("file:") {
        return env
            .read(path)
            .map(without_line_end)
            .map_err(|why| Unresolved::Unreadable { path: path.to_owned(), why });
    }
    let end = reference.find(':').unwrap_or(reference.len());
    let (name, rest) = reference.split_at(end);
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if name.is_empty() || name.as_bytes()[0].is_ascii_digit() || !name.bytes().all(word) {
        return Err(Unresolved::Malformed(format!("`${{{reference}}}` names no variable")));
    }
    let value = env.var(name);
    let unset = |message: Option<String>| Unresolved::Unset { name: name.to_owned(), message };
    // As in a shell, the forms with a colon also take an empty variable for an unset one.
    let filled = value.clone().filter(|v| !v.is_empty());
    if rest.is_empty() {
        value.ok_or_else(|| unset(None))
    } else if let Some(default) = rest.strip_prefix(":-") {
        Ok(filled.unwrap_or_else(|| default.to_owned()))
    } else if let Some(message) = rest.strip_prefix(":?") {
        filled.ok_or_else(|| unset(Some(message.to_owned()).filter(|m| !m.is_empty())))
    } else {
        Err(Unresolved::Malformed(format!("`${{{reference}}}` is no known reference")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;
    impl Environment for Fixed {
        fn var(&self, name: &str) -> Option<String> {
            match name {
                "HOST" => Some("plc.local".to_owned()),
                "EMPTY" => Some(String::new()),
                _ => None,
            }
        }
        fn read(&self, path: &str) -> Result<String, String> {
            if path == "/run/key" {
                Ok("secret\r\n".to_owned())
            } else {
                Err("cannot be read: not there".to_owned())
            }
        }
    }

    #[test]
    fn references_are_replaced() {
        for (text, expected) in [
            ("no reference, $HOST and $5", None),
            ("a ${HOST} b", Some("a plc.local b")),
            ("${HOST}:${PORT:-502}", Some("plc.local:502")),
            ("${EMPTY}", Some("")),
            ("${EMPTY:-x}", Some("x")),
            ("${NONE:-}", Some("")),
            ("$${HOST}", Some("${HOST}")),
            ("${file:/run/key}", Some("secret")),
        ] {
            assert_eq!(interpolate(text, &Fixed).unwrap().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn unset_and_malformed_references_are_refused() {
        let unset = |message: Option<&str>| Unresolved::Unset {
            name: "NONE".to_owned(),
            message: message.map(str::to_owned),
        };
        assert_eq!(interpolate("${NONE}", &Fixed), Err(unset(None)));
        assert_eq!(interpolate("${NONE:?say where}", &Fixed), Err(unset(Some("say where"))));
        for text in ["${", "${}", "${A B}", "${1A}", "${HOST:x}", "${HOST"] {
            assert!(matches!(interpolate(text, &Fixed), Err(Unresolved::Malformed(_))), "{text}");
        }
        let unreadable = interpolate("${file:/none}", &Fixed).unwrap_err();
        assert!(matches!(unreadable, Unresolved::Unreadable { path, .. } if path == "/none"));
    }

    #[test]
    fn secrets_lose_only_their_line_end() {
        let file = Secret::File("/run/key".to_owned());
        assert_eq!(resolve_secret(&file, &Fixed).unwrap(), "secret");
        let unset = resolve_secret(&Secret::Env("NONE".to_owned()), &Fixed).unwrap_err();
        assert_eq!(unset.to_string(), "the secret's environment variable NONE is not set");
    }
}
