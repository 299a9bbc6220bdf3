//! Counters and state of one part, written by a driver and read by status and metrics.
//!
//! Plain atomics: the hot path never takes a lock. Names are the metric names without a prefix.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// What a driver counts.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $($(#[$doc])* $variant,)* }

        impl Counter {
            /// All counters, in the order of their declaration.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)*];

            /// The name in status and metrics.
            pub fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)* }
            }
        }
    };
}

counters! {
    /// Requests or messages sent.
    Requests = "requests",
    /// Good answers or messages received.
    Replies = "replies",
    /// Requests without an answer in time.
    Timeouts = "timeouts",
    /// Exceptions that a device answered with.
    Exceptions = "exceptions",
    /// Replies to an earlier request, dropped: by their transaction id, or on a serial line by what
    /// was asked before and not answered.
    StaleReplies = "stale_replies",
    /// Replies from another unit, dropped.
    WrongUnit = "wrong_unit",
    /// Replies with another function code, dropped.
    WrongFunction = "wrong_function",
    /// Replies whose length or content cannot be right.
    BadReplies = "bad_replies",
    /// Replies whose checksum is wrong or whose end is missing (Modbus RTU).
    CrcErrors = "crc_errors",
    /// Bytes that belong to no frame, passed over.
    NoiseBytes = "noise_bytes",
    /// Requests that only find out whether a unit still owes an earlier reply (Modbus RTU).
    Probes = "probes",
    /// Polls that were still running when the next one was due; the missed cycles are skipped.
    Overruns = "overruns",
    /// Polls in which nothing was read because there was no connection.
    CyclesWithoutLink = "cycles_without_link",
    /// Times the connection was made.
    Connects = "connects",
    /// Times the connection was lost or could not be made.
    LinkFaults = "link_faults",
    /// Messages that could not be decoded or were too large; counted and passed over.
    Rejected = "rejected",
    /// Bytes received.
    BytesIn = "bytes_in",
    /// Bytes sent.
    BytesOut = "bytes_out",
}

/// Whether a part has its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// Not tried yet, or trying.
    Connecting,
    /// Connected, or in no need of a connection.
    Up,
    /// Lost or refused; the next attempt waits for its backoff.
    Down,
}

impl LinkState {
    /// The word in status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// Counters, link state and the last error of one part.
#[derive(Debug)]
pub struct Stats {
    counters: Vec<AtomicU64>,
    state: AtomicU64,
    last_error: Mutex<Option<String>>,
    notes: Mutex<Vec<String>>,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            counters: Counter::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            state: AtomicU64::new(0),
            last_error: Mutex::new(None),
            notes: Mutex::default(),
        }
    }
}

impl Stats {
    /// Adds `n` to a counter.
    pub fn add(&self, counter: Counter, n: u64) {
        self.counters[counter as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// Reads a counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Ordering::Relaxed)
    }

    /// Reads all counters that are not zero.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|c| (c.name(), self.get(*c))).filter(|(_, n)| *n > 0)
    }

    /// Sets the link's state.
    pub fn set_state(&self, state: LinkState) {
        self.state.store(state as u64, Ordering::Relaxed);
    }

    /// Reads the link's state.
    pub fn state(&self) -> LinkState {
        match self.state.load(Ordering::Relaxed) {
            1 => LinkState::Up,
            2 => LinkState::Down,
            _ => LinkState::Connecting,
        }
    }

    /// Remembers an error in words; `None` clears it.
    pub fn set_error(&self, error: Option<String>) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// The last error in words.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces what the driver has learnt about the far side, in words, such as the registers
    /// that it refuses to read.
    pub fn set_notes(&self, notes: Vec<String>) {
        *self.notes.lock().unwrap_or_else(PoisonError::into_inner) = notes;
    }

    /// What the driver has learnt about the far side.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
