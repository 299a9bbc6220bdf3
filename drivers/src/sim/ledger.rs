//! What the simulator has served: the one side of the comparison that says whether a reading was
//! lost. It counts replies that were handed to the socket, never what a client says.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::south::generate::CounterWave;

/// What a simulator has served since its start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Served {
    /// Right replies that were written whole, exceptions among them.
    pub requests: u64,
    /// Exceptions that were written, without those that a fault made.
    pub exceptions: u64,
    /// Replies that a fault touched.
    pub faults: u64,
    /// The counters, in the order of the document.
    pub counters: Vec<ServedCounter>,
}

/// How far one counter was served.
///
/// A value counts as served once all bytes of the reply that carries it were taken by the
/// operating system's socket. A client that goes away before it reads loses that reply although
/// it counts: a field device could not know either. A reply that could not be written does not
/// count, and its value is the next one to be served, so that no number is missing among the
/// served ones for a fault of the connection. The same holds for a reply that a fault altered,
/// delayed or kept back, even where a client could make something of it: such a value may be
/// received twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServedCounter {
    /// The server's name.
    pub server: String,
    /// The unit's id.
    pub unit_id: u8,
    /// The point's name.
    pub point: String,
    /// The value that was served last.
    pub last: Option<i64>,
    /// Values served.
    pub total: u64,
    /// Values whose reply is under way, or could not be written and waits for the next read.
    pub pending: Vec<i64>,
    /// The numbers of the pending values among all values taken.
    #[serde(skip)]
    open: BTreeSet<u64>,
    #[serde(skip)]
    wave: CounterWave,
}

impl Served {
    /// The first counter of that point name.
    pub fn counter(&self, point: &str) -> Option<&ServedCounter> {
        self.counters.iter().find(|counter| counter.point == point)
    }
}

impl ServedCounter {
    /// Every value served, in the order of counting; `total` of them.
    pub fn values(&self) -> impl Iterator<Item = i64> + '_ {
        let taken = self.total + self.open.len() as u64;
        (0..taken).filter(|n| !self.open.contains(n)).map(|n| self.wave.nth(n))
    }
}

/// Counts for all connections of one simulator.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    requests: u64,
    exceptions: u64,
    faults: u64,
    counters: Vec<Tally>,
}

#[derive(Debug)]
struct Tally {
    server: String,
    unit_id: u8,
    point: String,
    wave: CounterWave,
    /// Values taken so far, served or not: the number of the next one.
    next: u64,
    /// Taken, and neither served nor given back: at most one a connection.
    under_way: BTreeSet<u64>,
    /// Given back: the next reads take these first. At most as many as there were connections.
    returned: BTreeSet<u64>,
    total: u64,
    last: Option<u64>,
}

/// One reply on its way: what is counted once it is written.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) exception: bool,
    /// Counter and number of each value that the reply carries.
    pub(super) taken: Vec<(usize, u64)>,
}

impl Ledger {
    /// Adds a counter and returns its index.
    pub(super) fn add(
        &mut self,
        server: &str,
        unit_id: u8,
        point: &str,
        wave: CounterWave,
    ) -> usize {
        self.counters.push(Tally {
            server: server.to_owned(),
            unit_id,
            point: point.to_owned(),
            wave,
            next: 0,
            under_way: BTreeSet::new(),
            returned: BTreeSet::new(),
            total: 0,
            last: None,
        });
        self.counters.len() - 1
    }

    /// The value that the next whole read takes.
    pub(super) fn peek(&self, counter: usize) -> i64 {
        let tally = &self.counters[counter];
        tally.wave.nth(tally.returned.first().copied().unwrap_or(tally.next))
    }

    /// Takes the next value of a counter for `reply`.
    pub(super) fn take(&mut self, counter: usize, reply: &mut Reply) -> i64 {
        let tally = &mut self.counters[counter];
        let n = tally.returned.pop_first().unwrap_or_else(|| {
            tally.next += 1;
            tally.next - 1
        });
        tally.under_way.insert(n);
        reply.taken.push((counter, n));
        tally.wave.nth(n)
    }

    /// Counts a reply that was written.
    pub(super) fn written(&mut self, reply: &Reply) {
        self.requests += 1;
        self.exceptions += u64::from(reply.exception);
        for (counter, n) in &reply.taken {
            let tally = &mut self.counters[*counter];
            assert!(tally.under_way.remove(n), "value {n} was taken");
            tally.total += 1;
            tally.last = Some(*n);
        }
    }

    /// Gives back the values of a reply that was not written whole and right.
    pub(super) fn unwritten(&mut self, reply: &Reply) {
        for (counter, n) in &reply.taken {
            let tally = &mut self.counters[*counter];
            assert!(tally.under_way.remove(n), "value {n} was taken");
            tally.returned.insert(*n);
        }
    }

    /// Counts a reply that a fault touches.
    pub(super) fn faulty(&mut self) {
        self.faults += 1;
    }

    pub(super) fn served(&self) -> Served {
        let counters = self.counters.iter().map(Tally::served).collect();
        let Self { requests, exceptions, faults, .. } = *self;
        Served { requests, exceptions, faults, counters }
    }
}

impl Tally {
    fn served(&self) -> ServedCounter {
        let open: BTreeSet<u64> = self.under_way.union(&self.returned).copied().collect();
        ServedCounter {
            server: self.server.clone(),
            unit_id: self.unit_id,
            point: self.point.clone(),
            last: self.last.map(|n| self.wave.nth(n)),
            total: self.total,
            pending: open.iter().map(|n| self.wave.nth(*n)).collect(),
            open,
            wave: self.wave.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_whose_reply_was_not_written_is_served_next() {
        let mut ledger = Ledger::default();
        let counter = ledger.add("plc", 1, "reading", CounterWave { start: 10, modulo: None });
        let mut replies: [Reply; 3] = Default::default();
        let values: Vec<i64> = replies.iter_mut().map(|r| ledger.take(counter, r)).collect();
        assert_eq!(values, [10, 11, 12]);
        ledger.written(&replies[0]);
        ledger.unwritten(&replies[1]);
        ledger.written(&replies[2]);
        let served = ledger.served();
        let reading = served.counter("reading").unwrap();
        assert_eq!(reading.values().collect::<Vec<_>>(), [10, 12]);
        assert_eq!((reading.total, reading.last, &reading.pending[..]), (2, Some(12), &[11][..]));

        assert_eq!(ledger.peek(counter), 11);
        let mut reply = Reply { exception: false, taken: Vec::new() };
        assert_eq!(ledger.take(counter, &mut reply), 11);
        ledger.written(&reply);
        assert_eq!(ledger.peek(counter), 13);
        let served = ledger.served();
        assert_eq!(served.counters[0].values().collect::<Vec<_>>(), [10, 11, 12]);
        assert_eq!((served.requests, served.exceptions), (3, 0));
    }
}
