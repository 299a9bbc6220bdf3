//! Checks of sinks: their drivers, what may wait for them, and how it is delivered afterwards.

use tidegate_drivers::north::mqtt::topic_problem;
use tidegate_drivers::north::{Encode, Envelope};

use super::devices::Refused;
use super::{Checker, path_of};
use crate::code::Code;
use crate::path::Path;
use crate::{Bytes, ReplayMark, ReplayOrder, SinkDriver, SinkSection};

/// Bytes below which a sink's part of the store can hold nothing useful.
const SINK_BYTES_MIN: Bytes = Bytes::new(64 << 10);

/// What the driver of a sink refuses: the one place where northbound drivers are asked.
fn refused(driver: &SinkDriver) -> Vec<Refused> {
    let one = |field: &str, message: &str, hint: &str| Refused {
        field: field.to_owned(),
        message: message.to_owned(),
        hint: Some(hint.to_owned()),
    };
    match driver {
        SinkDriver::Mqtt(sink) => {
            sink.problems().into_iter().map(|(field, m, h)| one(field, &m, &h)).collect()
        }
        SinkDriver::File(sink) => {
            let mut found = Vec::new();
            if sink.path.is_empty() || sink.path.ends_with('/') {
                found.push(one("path", "this is no file's path", "name a file"));
            }
            if sink.rotate.is_empty() {
                let message = "a new file for each record is not meant";
                found.push(one("rotate", message, "write a size such as `16MiB`"));
            }
            found
        }
        SinkDriver::Stdout(_) => Vec::new(),
    }
}

/// How a sink's records are written.
fn encode(driver: &SinkDriver) -> &Encode {
    match driver {
        SinkDriver::Mqtt(sink) => &sink.encode,
        SinkDriver::File(sink) => &sink.encode,
        SinkDriver::Stdout(sink) => &sink.encode,
    }
}

/// Whether a sink's records have topics, so that a receiver can take some and leave others.
fn has_topics(driver: &SinkDriver) -> bool {
    match driver {
        SinkDriver::Mqtt(_) => true,
        SinkDriver::File(_) | SinkDriver::Stdout(_) => false,
    }
}

impl Checker<'_> {
    pub(super) fn sinks(&mut self) {
        for (index, sink) in self.document.sinks.iter().enumerate() {
            if self.is_damaged("sinks", &sink.name) {
                continue;
            }
            let path = path_of("sinks").then(index);
            let driver = path.then("driver").then(sink.driver.kind());
            for Refused { field, message, hint } in refused(&sink.driver) {
                self.say(Code::DriverSetting, &driver.join(&field), message, hint.as_deref());
            }
            let store = path.then("store");
            if sink.store.max_bytes < SINK_BYTES_MIN {
                let message = format!("{} hold no useful number of records", sink.store.max_bytes);
                let hint = format!("write {SINK_BYTES_MIN} or more");
                self.say(Code::StoreBounds, &store.then("max_bytes"), message, Some(&hint));
            }
            if sink.store.max_records == Some(0) {
                let hint = "leave it out, or write 1 or more";
                let message = "with no record that may wait, nothing is delivered";
                self.say(Code::LimitRange, &store.then("max_records"), message, Some(hint));
            }
            if sink.store.max_age.is_some_and(|age| age.duration().is_zero()) {
                let hint = "leave it out, or write a time such as `14d`";
                let message = "with 0s each record is dropped at once";
                self.say(Code::SpanRange, &store.then("max_age"), message, Some(hint));
            }
            self.replay(sink, &path.then("replay"));
        }
    }

    fn replay(&mut self, sink: &SinkSection, path: &Path) {
        let (replay, kind) = (&sink.replay, sink.driver.kind());
        let newest = replay.order == ReplayOrder::Newest;
        let mut say = |field: &str, message: String, hint: &str| {
            self.say(Code::Replay, &path.then(field), message, Some(hint));
        };
        if let Some(share) = replay.share
            && !(share > 0.0 && share < 1.0)
        {
            let hint = "write a number between them, such as 0.5, or leave it out";
            say("share", format!("a share of {share} is not above 0 and below 1"), hint);
        }
        if replay.share.is_some() && newest {
            let message = "with `order: newest` live records have all that they need";
            say("share", message.to_owned(), "leave one of the two out");
        }
        if replay.has_live_lane() && !has_topics(&sink.driver) {
            let field = if newest { "order" } else { "share" };
            let message = format!("a `{kind}` sink writes lines, and their order is all they have");
            say(field, message, "leave it out: records go in the order in which they came about");
        }
        match &replay.topic {
            Some(_) if !has_topics(&sink.driver) => {
                say("topic", format!("a `{kind}` sink has no topics"), "leave it out");
            }
            Some(topic) => {
                if let Some((message, hint)) = topic_problem(topic) {
                    say("topic", message, &hint);
                }
            }
            None => {}
        }
        let Encode::Json(json) = encode(&sink.driver);
        if replay.mark == ReplayMark::Replayed && json.envelope == Some(Envelope::None) {
            let hint = "write `envelope: meta`, or give such records a `topic` of their own";
            say("mark", "without an envelope there is no place for the mark".to_owned(), hint);
        }
    }
}
