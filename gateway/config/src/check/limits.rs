//! Checks of the sections that are no lists.

use std::net::{IpAddr, SocketAddr};

use super::{Checker, path_of};
use crate::code::Code;
use crate::document::RING_MIN;
use crate::{Bytes, Span};

/// Bytes below which a store can hold nothing useful.
const STORE_BYTES_MIN: Bytes = Bytes::from_mib(8);
/// Bytes below which no SQL runs.
const MEMORY_MIN: Bytes = Bytes::from_mib(8);
/// Entries of a queue at most: beyond, it is no bound.
const QUEUE_MAX: u32 = 65_536;
/// Longest time that rows may wait for their commit.
const COMMIT_EVERY_MAX: Span = Span::from_secs(60);
/// Longest time that SQL may take for one window: while it runs, its stream does nothing else.
const SQL_TIME_MAX: Span = Span::from_secs(600);
/// Longest time that an orderly stop may take: systemd kills after 90 s.
const GRACE_MAX: Span = Span::from_secs(80);
/// The longest wait for a clock.
const WAIT_FOR_CLOCK_MAX: Span = Span::from_secs(86_400);

impl Checker<'_> {
    pub(super) fn sections(&mut self) {
        self.listen();
        self.store();
        let limits = &self.document.limits;
        for (field, value) in [
            ("table_queue", limits.table_queue),
            ("stream_queue", limits.stream_queue),
            ("store_queue", limits.store_queue),
            ("deliver_rows", limits.deliver_rows),
            ("refusals_max", limits.refusals_max),
        ] {
            if !(1..=QUEUE_MAX).contains(&value) {
                let message = format!("`{field}` is {value}");
                let hint = format!("write a number from 1 to {QUEUE_MAX}");
                self.say(Code::LimitRange, &path_of("limits").then(field), message, Some(&hint));
            }
        }
        if limits.memory < MEMORY_MIN {
            let message = format!("no SQL runs in {} of memory", limits.memory);
            let hint = format!("write {MEMORY_MIN} or more");
            self.say(Code::LimitRange, &path_of("limits").then("memory"), message, Some(&hint));
        }
        if limits.sql_time.duration().is_zero() || limits.sql_time > SQL_TIME_MAX {
            let message = format!("SQL that may take {} is no use", limits.sql_time);
            let hint = format!("write a time of up to {SQL_TIME_MAX}");
            self.say(Code::SpanRange, &path_of("limits").then("sql_time"), message, Some(&hint));
        }
        let grace = self.document.gateway.shutdown_grace;
        if grace.duration().is_zero() || grace > GRACE_MAX {
            let message = format!("an orderly stop within {grace} is not possible");
            let hint = format!("write a time from 1s to {GRACE_MAX}; systemd kills after 90s");
            let path = path_of("gateway").then("shutdown_grace");
            self.say(Code::SpanRange, &path, message, Some(&hint));
        }
        let wait = self.document.gateway.wait_for_clock;
        if wait > WAIT_FOR_CLOCK_MAX {
            let message = format!("no result for {wait} after a start is no use");
            let hint = format!("write a time of up to {WAIT_FOR_CLOCK_MAX}, or 0s not to wait");
            let path = path_of("gateway").then("wait_for_clock");
            self.say(Code::SpanRange, &path, message, Some(&hint));
        }
    }

    /// There is no login yet: only loopback addresses.
    fn listen(&mut self) {
        let path = path_of("web").then("listen");
        let listen = &self.document.web.listen;
        let hint = "write `127.0.0.1:8080` or `[::1]:8080`";
        if let Ok(address) = listen.parse::<SocketAddr>() {
            if !address.ip().is_loopback() {
                let message =
                    format!("{listen} can be reached from elsewhere, and there is no login yet");
                let hint = format!("{hint}, and use an SSH tunnel from elsewhere");
                self.say(Code::NotLoopback, &path, message, Some(&hint));
            }
            return;
        }
        let host = listen.rsplit_once(':').map_or(listen.as_str(), |(host, _)| host);
        let code = match host.parse::<IpAddr>() {
            Ok(ip) if !ip.is_loopback() => Code::NotLoopback,
            _ => Code::BadValue,
        };
        self.say(code, &path, format!("`{listen}` is no IP address with a port"), Some(hint));
    }

    fn store(&mut self) {
        let store = &self.document.store;
        let path = path_of("store");
        if store.path.is_empty() {
            let message = "the store needs a folder";
            self.say(Code::BadValue, &path.then("path"), message, Some("name a folder"));
        }
        if store.commit_every.duration().is_zero() || store.commit_every > COMMIT_EVERY_MAX {
            let message = format!("a commit every {} is not possible", store.commit_every);
            let hint = format!(
                "write a time up to {COMMIT_EVERY_MAX}; `sync: each` commits a stream's results at once"
            );
            self.say(Code::SpanRange, &path.then("commit_every"), message, Some(&hint));
        }
        if store.daily_writes.is_some_and(Bytes::is_empty) {
            let message = "with no bytes a day the alarm never ends";
            let hint = "leave it out, or write a size such as `2GiB`";
            self.say(Code::LimitRange, &path.then("daily_writes"), message, Some(hint));
        }
        self.ring();
        let path = path.then("max_bytes");
        if store.max_bytes < STORE_BYTES_MIN {
            let message = format!("a store of {} holds nothing useful", store.max_bytes);
            let hint = format!("write {STORE_BYTES_MIN} or more");
            self.say(Code::StoreBounds, &path, message, Some(&hint));
            return;
        }
        let all = self.document.sinks.iter().map(|s| s.store.max_bytes.get());
        let all = Bytes::new(all.fold(0, u64::saturating_add));
        if all > store.max_bytes {
            let max = store.max_bytes;
            let message =
                format!("what may wait for all sinks, {all}, is more than the store's {max}");
            let hint = "raise `store.max_bytes`, or lower the sinks' `store.max_bytes`";
            self.say(Code::StoreBounds, &path, message, Some(hint));
        }
    }

    fn ring(&mut self) {
        let store = &self.document.store;
        let Some(ring) = store.ring else {
            return;
        };
        let max = Bytes::new(store.max_bytes.get() / 2);
        let message = if ring < RING_MIN || ring > max {
            format!("a ring of {ring} does not go with a store of {}", store.max_bytes)
        } else if !ring.get().is_multiple_of(1024) {
            format!("a ring of {ring} is not whole KiB")
        } else {
            return;
        };
        let hint = format!("write whole KiB from {RING_MIN} to half of `store.max_bytes`");
        self.say(Code::StoreBounds, &path_of("store").then("ring"), message, Some(&hint));
    }
}
