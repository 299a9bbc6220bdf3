//! What a person or a test tells a running simulator, as one line of text.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::{FaultKind, SimFault};
use crate::types::UnitId;

/// A command to a running simulator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `inject SERVER KIND [NAME=VALUE]…`: adds a fault. Names are those of [`SimFault`] and of
    /// its kind. Without `for` and `count` it touches one reply.
    Inject {
        /// The server's name.
        server: String,
        /// The fault.
        fault: SimFault,
    },
    /// `clear SERVER`: ends all faults.
    Clear {
        /// The server's name.
        server: String,
    },
    /// `unplug SERVER`: closes its connections and its port.
    Unplug {
        /// The server's name.
        server: String,
    },
    /// `replug SERVER`: opens its port again.
    Replug {
        /// The server's name.
        server: String,
    },
    /// `served`: says what was served so far, as JSON.
    Served,
}

/// Why a line is no command; the text says what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoCommand(String);

/// The kinds that need nothing more than their name.
const PLAIN_KINDS: [(&str, FaultKind); 15] = [
    ("wrong_id", FaultKind::WrongId),
    ("wrong_unit", FaultKind::WrongUnit),
    ("wrong_function", FaultKind::WrongFunction),
    ("wrong_crc", FaultKind::WrongCrc),
    ("wrong_byte_count", FaultKind::WrongByteCount),
    ("no_crc_on_exception", FaultKind::NoCrcOnException),
    ("echo", FaultKind::Echo),
    ("stray_byte", FaultKind::StrayByte),
    ("stray_byte_after", FaultKind::StrayByteAfter),
    ("foreign_frame", FaultKind::ForeignFrame),
    ("busy", FaultKind::Busy),
    ("half_frame", FaultKind::HalfFrame),
    ("two_frames_in_one_segment", FaultKind::TwoFramesInOneSegment),
    ("silence", FaultKind::Silence),
    ("disconnect", FaultKind::Disconnect),
];

impl FromStr for Command {
    type Err = NoCommand;

    fn from_str(line: &str) -> Result<Self, NoCommand> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let server = |name: &&str| (*name).to_owned();
        Ok(match &words[..] {
            ["inject", name, kind, values @ ..] => {
                Self::Inject { server: server(name), fault: fault(kind, values)? }
            }
            ["clear", name] => Self::Clear { server: server(name) },
            ["unplug", name] => Self::Unplug { server: server(name) },
            ["replug", name] => Self::Replug { server: server(name) },
            ["served"] => Self::Served,
            _ => {
                return Err(NoCommand(format!(
                    "`{line}` is no command: write `inject SERVER KIND [NAME=VALUE]…`, \
                     `clear SERVER`, `unplug SERVER`, `replug SERVER` or `served`"
                )));
            }
        })
    }
}

fn fault(kind: &str, values: &[&str]) -> Result<SimFault, NoCommand> {
    let mut values = Values::new(values)?;
    let kind = match kind {
        "late_reply" => FaultKind::late(values.needed(kind, "by")?),
        "split_frame" => FaultKind::split(values.needed(kind, "by")?),
        "deaf_after_connect" => FaultKind::deaf_after_connect(values.needed(kind, "by")?),
        "deaf_after_reply" => FaultKind::deaf_after_reply(values.needed(kind, "by")?),
        "hole" => FaultKind::hole(values.needed(kind, "address")?),
        _ => plain_kind(kind)?,
    };
    let unit_id = match values.take::<u8>("unit_id")? {
        None => None,
        Some(id) => match UnitId::new(id) {
            Some(unit) => Some(unit),
            None => return Err(NoCommand(format!("{id} is not a unit id"))),
        },
    };
    let plain = SimFault::lasting(kind);
    let (lasting, count) = (values.take("for")?, values.take("count")?);
    let fault = SimFault {
        at: values.take("at")?.unwrap_or(plain.at),
        lasting,
        every: values.take("every")?.unwrap_or(plain.every),
        count: count.or(lasting.is_none().then_some(1)),
        unit_id,
        kind,
    };
    values.none_left()?;
    Ok(fault)
}

fn plain_kind(kind: &str) -> Result<FaultKind, NoCommand> {
    let found = PLAIN_KINDS.iter().find(|(name, _)| *name == kind);
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        let names = PLAIN_KINDS.map(|(name, _)| name).join(", ");
        NoCommand(format!(
            "`{kind}` is no kind of fault: take late_reply by=…, split_frame by=…, \
             deaf_after_connect by=…, deaf_after_reply by=…, hole address=…, {names}"
        ))
    })
}

/// The `NAME=VALUE` words of a line that were not used yet.
struct Values<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Values<'a> {
    fn new(words: &[&'a str]) -> Result<Self, NoCommand> {
        let mut values = BTreeMap::new();
        for word in words {
            let Some((name, value)) = word.split_once('=') else {
                return Err(NoCommand(format!("`{word}` is not NAME=VALUE")));
            };
            if values.insert(name, value).is_some() {
                return Err(NoCommand(format!("`{name}` stands twice")));
            }
        }
        Ok(Self(values))
    }

    fn take<T: FromStr<Err: fmt::Display>>(&mut self, name: &str) -> Result<Option<T>, NoCommand> {
        let Some(value) = self.0.remove(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|error| NoCommand(format!("{name}={value}: {error}")))
    }

    fn needed<T: FromStr<Err: fmt::Display>>(
        &mut self,
        kind: &str,
        name: &str,
    ) -> Result<T, NoCommand> {
        self.take(name)?.ok_or_else(|| NoCommand(format!("`{kind}` needs `{name}=…`")))
    }

    fn none_left(&self) -> Result<(), NoCommand> {
        match self.0.keys().next() {
            Some(name) => Err(NoCommand(format!("`{name}` is not known here"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Span;

    #[test]
    fn lines_are_commands() {
        let fault = |line: &str| match line.parse::<Command>() {
            Ok(Command::Inject { server, fault }) if server == "plant" => fault,
            other => panic!("{line}: {other:?}"),
        };
        let late = FaultKind::late(Span::from_millis(1500));
        assert_eq!(fault("inject plant late_reply by=1500ms count=1"), SimFault::once(late));
        assert_eq!(fault("  inject  plant silence "), SimFault::once(FaultKind::Silence));
        assert_eq!(
            fault("inject plant hole address=12 for=10s at=1s every=3 unit_id=2"),
            SimFault {
                at: Span::from_secs(1),
                lasting: Some(Span::from_secs(10)),
                every: 3,
                count: None,
                unit_id: UnitId::new(2),
                kind: FaultKind::hole(12),
            }
        );
        let deaf = FaultKind::deaf_after_reply(Span::from_millis(100));
        let fault = fault("inject plant deaf_after_reply by=100ms for=2s");
        assert_eq!((fault.kind, fault.count), (deaf, None));
        let server = || "bus".to_owned();
        assert_eq!("unplug bus".parse(), Ok(Command::Unplug { server: server() }));
        assert_eq!("replug bus".parse(), Ok(Command::Replug { server: server() }));
        assert_eq!("clear bus".parse(), Ok(Command::Clear { server: server() }));
        assert_eq!("served".parse(), Ok(Command::Served));
    }

    #[test]
    fn other_lines_say_what_would_be_right() {
        for (line, part) in [
            ("", "is no command: write `inject SERVER KIND"),
            ("inject plant", "is no command"),
            ("inject plant nonsense", "`nonsense` is no kind of fault: take late_reply by=…"),
            ("inject plant late_reply", "`late_reply` needs `by=…`"),
            ("inject plant late_reply by=7", "by=7: `7` is not a duration"),
            ("inject plant silence by=7s", "`by` is not known here"),
            ("inject plant silence loud", "`loud` is not NAME=VALUE"),
            ("inject plant silence count=1 count=2", "`count` stands twice"),
            ("inject plant silence unit_id=250", "250 is not a unit id"),
        ] {
            let error = line.parse::<Command>().unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    /// The names of the commands are those of the document.
    #[test]
    fn each_kind_has_the_name_of_the_document() {
        for (name, kind) in PLAIN_KINDS {
            assert_eq!(serde_json::to_value(kind).unwrap(), name);
        }
    }
}
