//! What the two MQTT drivers share: the rules for topics and for the fields that both have, and
//! (with `io`) the connection itself.
//!
//! The rules work without a broker and without `io`, so that a configuration is judged before
//! anything connects. Source: MQTT 3.1.1 (OASIS, 29 October 2014), cited by clause.

#[cfg(feature = "io")]
pub(crate) mod inbox;
#[cfg(feature = "io")]
pub(crate) mod link;
#[cfg(feature = "io")]
pub(crate) mod session;

use crate::types::{Bytes, Secret, Span};

/// What is wrong with a field of a configuration: the field, what is wrong, what would be right.
pub(crate) type Problem = (&'static str, String, String);

/// Largest remaining length that a fixed header can carry (2.2.3).
const REMAINING_MAX: u64 = 268_435_455;
/// Smallest `max_packet` that makes sense: a topic and a short row.
const PACKET_MIN: u64 = 256;
/// Strings are at most this long on the wire (1.5.3).
const STRING_MAX: usize = 65_535;

/// The fields that a feed and a sink have in common.
pub(crate) struct Common<'a> {
    pub(crate) client_id: Option<&'a str>,
    pub(crate) username: Option<&'a str>,
    pub(crate) password: Option<&'a Secret>,
    pub(crate) qos: u8,
    pub(crate) keep_alive: Span,
    pub(crate) max_packet: Bytes,
    pub(crate) backoff_min: Span,
    pub(crate) backoff_max: Span,
}

impl Common<'_> {
    /// Everything that is wrong with the common fields.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut say = |field, message: String, hint: &str| {
            problems.push((field, message, hint.to_owned()));
        };
        if self.qos > 1 {
            say("qos", format!("QoS {} is not supported", self.qos), "write 0 or 1");
        }
        if let Some(id) = self.client_id
            && (id.is_empty() || id.len() > STRING_MAX || id.contains('\0'))
        {
            let hint = "leave it out for a stable id made of the gateway's name";
            say("client_id", "the client id is empty or too long".to_owned(), hint);
        }
        if self.password.is_some() && self.username.is_none() {
            // 3.1.2.9: without a user name the password flag must be 0.
            let message = "MQTT 3.1.1 cannot send a password without a user name".to_owned();
            say("password", message, "add `username`");
        }
        let keep_alive = self.keep_alive.duration();
        if keep_alive.as_millis() < 1000 || keep_alive.as_secs() > u64::from(u16::MAX) {
            let message = format!("a keep-alive of {} cannot be told to a broker", self.keep_alive);
            say("keep_alive", message, "write 1s to 18h");
        }
        if !(PACKET_MIN..=REMAINING_MAX).contains(&self.max_packet.get()) {
            let message = format!("{} is no packet size of MQTT", self.max_packet);
            say("max_packet", message, "write 256B to 255MiB; 256KiB is the default");
        }
        if self.backoff_min.duration().is_zero() {
            let message = "without a pause a refused connection is tried without end".to_owned();
            say("backoff_min", message, "write 100ms or more; 1s is the default");
        }
        if self.backoff_min > self.backoff_max {
            let message = format!("{} is more than `backoff_max`", self.backoff_min);
            say("backoff_min", message, &format!("write at most {}", self.backoff_max));
        }
        problems
    }
}

/// Why `filter` is not a topic filter (4.7.1), or `None` where it is one.
pub(crate) fn filter_fault(filter: &str) -> Option<&'static str> {
    if let Some(fault) = string_fault(filter) {
        return Some(fault);
    }
    let levels = filter.split('/').count();
    for (index, level) in filter.split('/').enumerate() {
        if level.contains('#') && (level != "#" || index + 1 != levels) {
            return Some("has a `#` that is not the whole last level");
        }
        if level.contains('+') && level != "+" {
            return Some("has a `+` that is not a whole level");
        }
    }
    match filter.strip_prefix("$share/") {
        Some(shared) => match shared.split_once('/') {
            Some((group, rest)) if !group.is_empty() && !rest.is_empty() => {
                group.contains(['+', '#']).then_some("has a wildcard in its share name")
            }
            _ => Some("is a shared subscription without a share name and a filter"),
        },
        None => None,
    }
}

/// Why `template` cannot become a topic name by replacing `{stream}` and `{gateway}`.
pub(crate) fn template_fault(template: &str) -> Option<String> {
    if let Some(fault) = string_fault(template) {
        return Some(fault.to_owned());
    }
    if template.contains(['+', '#']) {
        // 3.3.2.1: a topic name must not contain wildcards.
        return Some("has a wildcard, which only subscriptions have".to_owned());
    }
    let rest = template.replace("{stream}", "").replace("{gateway}", "");
    rest.contains(['{', '}']).then(|| {
        let from = rest.find(['{', '}']).unwrap_or(0);
        let word: String = rest[from..].chars().take_while(|c| *c != '/').collect();
        format!("has `{word}`, which stands for nothing")
    })
}

fn string_fault(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        Some("is empty")
    } else if text.contains('\0') {
        Some("contains a NUL character")
    } else if text.len() > STRING_MAX {
        Some("is longer than 65,535 bytes")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_follow_clause_4_7() {
        for good in
            ["#", "+", "/", "sport/tennis/#", "+/tennis/#", "sport/+/p", "/finance", "$share/g/a/+"]
        {
            assert_eq!(filter_fault(good), None, "{good}");
        }
        for bad in [
            "",
            "sport/tennis#",
            "sport/#/x",
            "sport+",
            "a\0",
            "$share/g",
            "$share/+/a",
            "$share//a",
        ] {
            assert!(filter_fault(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn templates_name_stream_and_gateway_only() {
        for good in ["a", "tidegate/{gateway}/{stream}", "{stream}", "$aws/things/x"] {
            assert_eq!(template_fault(good), None, "{good}");
        }
        for bad in ["", "a/#", "+/a", "a/{Stream}", "a/{device}/b", "a/{stream", "a}"] {
            assert!(template_fault(bad).is_some(), "{bad}");
        }
        assert_eq!(
            template_fault("a/{device}/b").unwrap(),
            "has `{device}`, which stands for nothing"
        );
    }

    type Change<'a> = &'a dyn Fn(&mut Common<'a>);

    #[test]
    fn the_common_fields_are_judged_one_by_one() {
        let good = || Common {
            client_id: None,
            username: None,
            password: None,
            qos: 1,
            keep_alive: Span::from_secs(30),
            max_packet: Bytes::new(256 << 10),
            backoff_min: Span::from_secs(1),
            backoff_max: Span::from_secs(300),
        };
        assert_eq!(good().problems(), []);
        let secret = Secret::Env("P".to_owned());
        let changes: [(Change<'_>, &str); 9] = [
            (&|c| c.qos = 2, "qos"),
            (&|c| c.client_id = Some(""), "client_id"),
            (&|c| c.password = Some(&secret), "password"),
            (&|c| c.keep_alive = Span::from_millis(999), "keep_alive"),
            (&|c| c.keep_alive = Span::from_secs(65_536), "keep_alive"),
            (&|c| c.max_packet = Bytes::new(255), "max_packet"),
            (&|c| c.max_packet = Bytes::new(256 << 20), "max_packet"),
            (&|c| c.backoff_min = Span::from_millis(0), "backoff_min"),
            (&|c| c.backoff_min = Span::from_secs(301), "backoff_min"),
        ];
        for (change, field) in changes {
            let mut common = good();
            change(&mut common);
            let problems = common.problems();
            assert_eq!(problems.iter().map(|p| p.0).collect::<Vec<_>>(), [field]);
        }
    }
}
