//! Records as lines: what the sinks that write text have in common.

use std::io;

use crate::border::{Fault, Payload};

/// The records as lines up to the first that is not one line, their number, and the refusal of
/// that one. A line end inside a record would be read as two records.
pub(super) fn lines(payloads: &[Payload]) -> (Vec<u8>, usize, Option<Fault>) {
    let bad = payloads.iter().position(|payload| payload.body.contains(&b'\n'));
    let good = &payloads[..bad.unwrap_or(payloads.len())];
    let mut bytes = Vec::with_capacity(good.iter().map(|payload| payload.body.len() + 1).sum());
    for payload in good {
        bytes.extend_from_slice(&payload.body);
        bytes.push(b'\n');
    }
    let refused = bad.map(|bad| {
        Fault::Refused(format!("{}: the record is more than one line", payloads[bad].id))
    });
    (bytes, good.len(), refused)
}

/// Runs file work on the blocking pool. Work that has begun is finished even where the future is
/// dropped.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // The runtime is going down, or the work panicked.
        Err(error) => Err(io::Error::other(error)),
    }
}

/// A record for tests.
#[cfg(test)]
pub(super) fn payload(body: &str) -> Payload {
    let (id, body) = ("gw/1/s/0".to_owned(), body.to_owned().into());
    Payload { id, stream: "s".into(), body, replayed: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_two_lines_is_refused_alone() {
        let (bytes, count, refused) = lines(&[payload("a"), payload("b\nc"), payload("d")]);
        assert_eq!((&bytes[..], count), (&b"a\n"[..], 1));
        assert!(matches!(refused, Some(Fault::Refused(_))));
        assert_eq!(lines(&[]), (Vec::new(), 0, None));
    }
}
