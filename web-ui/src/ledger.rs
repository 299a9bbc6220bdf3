//! Where every row went, hop by hop.
//!
//! Promise: at each hop the parts add up to the whole, and what does not is a number that anybody
//! can watch. Does not know who counts.

use std::collections::BTreeMap;

use serde::Serialize;

/// Where every row went: at each hop the parts add up to the whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Ledger {
    /// From device to store: read = accepted + refused.
    pub sources: Vec<SourceHop>,
    /// From store to result: carried + accepted = windowed + late + future + filtered + failed +
    /// dropped + open.
    pub streams: Vec<StreamHop>,
    /// From result to the far side: carried + results = delivered + buffered + dropped + rejected.
    pub sinks: Vec<SinkHop>,
}

/// The hop from a device to the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SourceHop {
    /// The device's name.
    pub device: String,
    /// Rows that the driver read.
    pub read: u64,
    /// Rows that the store took.
    pub accepted: u64,
    /// Rows that were not taken, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// The hop through a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StreamHop {
    /// The stream's name.
    pub stream: String,
    /// Rows that were in open windows before the time that is told of.
    pub carried: u64,
    /// Rows that reached the stream.
    pub accepted: u64,
    /// Rows in results of closed windows, or passed by a stateless query.
    pub windowed: u64,
    /// Rows that came after their window had closed.
    pub late: u64,
    /// Rows whose time was too far ahead of the clock.
    pub future: u64,
    /// Rows that a stateless query left out.
    pub filtered: u64,
    /// Rows of windows or batches that the query failed on.
    pub failed: u64,
    /// Rows of open windows that were given up.
    pub dropped: u64,
    /// Rows in windows that are still open.
    pub open: u64,
    /// Rows of its tables that were gone before the stream read them, damaged in the store or given up
    /// for want of room; in none of the other counts.
    pub missed: u64,
    /// Result rows that no route took; they are in no sink's hop.
    pub unrouted: u64,
}

/// The hop from the outbox to the far side.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SinkHop {
    /// The sink's name.
    pub sink: String,
    /// Records that waited before the time that is told of.
    pub carried: u64,
    /// Records put into the sink's outbox; one that was put back there counts again.
    pub results: u64,
    /// Records that the far side has taken responsibility for.
    pub delivered: u64,
    /// Records that wait.
    pub buffered: u64,
    /// Records given up, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Records that the far side refused, whether they are still kept as dead letters or not.
    pub rejected: u64,
}

impl SourceHop {
    /// Rows that no part of the hop accounts for: 0 unless something counts wrongly.
    pub fn unaccounted(&self) -> i128 {
        i128::from(self.read) - i128::from(self.accepted) - sum(&self.refused)
    }
}

impl StreamHop {
    /// Rows that no part of the hop accounts for: 0 unless something counts wrongly.
    pub fn unaccounted(&self) -> i128 {
        let out = [self.windowed, self.late, self.future, self.filtered, self.failed];
        let parts = out.into_iter().chain([self.dropped, self.open]);
        i128::from(self.carried) + i128::from(self.accepted) - parts.map(i128::from).sum::<i128>()
    }
}

impl SinkHop {
    /// Records that no part of the hop accounts for: 0 unless something counts wrongly.
    pub fn unaccounted(&self) -> i128 {
        let parts = [self.delivered, self.buffered, self.rejected];
        i128::from(self.carried) + i128::from(self.results)
            - parts.into_iter().map(i128::from).sum::<i128>()
            - sum(&self.dropped)
    }
}

fn sum(by_reason: &BTreeMap<String, u64>) -> i128 {
    by_reason.values().copied().map(i128::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hop_that_adds_up_leaves_nothing_unaccounted() {
        let refused = BTreeMap::from([("future".to_owned(), 2), ("queue_full".to_owned(), 1)]);
        let source = SourceHop { device: "m".into(), read: 10, accepted: 7, refused };
        assert_eq!(source.unaccounted(), 0);
        let short = SourceHop { accepted: 5, ..source.clone() };
        assert_eq!(short.unaccounted(), 2);
        let twice = SourceHop { accepted: 8, ..source };
        assert_eq!(twice.unaccounted(), -1);

        let stream = StreamHop {
            stream: "s".into(),
            carried: 0,
            accepted: 10,
            windowed: 4,
            late: 2,
            future: 1,
            filtered: 1,
            failed: 1,
            dropped: 0,
            open: 1,
            missed: 4,
            unrouted: 3,
        };
        assert_eq!(stream.unaccounted(), 0);

        let sink = SinkHop {
            sink: "k".into(),
            carried: 1,
            results: 9,
            delivered: 5,
            buffered: 2,
            dropped: BTreeMap::from([("max_bytes".to_owned(), 2)]),
            rejected: 1,
        };
        assert_eq!(sink.unaccounted(), 0);
    }
}
