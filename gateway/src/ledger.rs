//! The durable counters of the ledger: their names, and the numbers that sources go on with.
//!
//! A counter grows in the same commit as the rows that it counts, so that it neither runs ahead of
//! them nor falls behind, wherever a crash falls. Streams keep their counts in their own progress;
//! sinks' deliveries are counted by the store. Knows names and sums, and nobody who counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use tidegate_engine::store::{Backlog, Commit, Store};

/// What a durable counter grows by.
pub type Growth = (Arc<str>, u64);

/// The counters of one source.
#[derive(Debug, Clone)]
pub struct SourceKeys {
    /// Rows that the table took.
    pub accepted: Arc<str>,
    /// Rows that were dropped because the table's queue was full; their numbers are used up.
    pub overload: Arc<str>,
    /// Rows that did not fit the table; they had no numbers yet.
    pub schema: Arc<str>,
    /// The number of the first row that is counted: 0 but for sources that are older than these
    /// counters.
    pub first: Arc<str>,
}

impl SourceKeys {
    /// The counters of the source `name`.
    pub fn new(name: &str) -> Self {
        let key = |what: &str| Arc::from(format!("source/{name}/{what}"));
        Self {
            accepted: key("accepted"),
            overload: key("refused/queue_full"),
            schema: key("refused/schema"),
            first: key("first_seq"),
        }
    }

    /// What became of the source's rows, ever.
    pub fn read(&self, store: &Store) -> SourceTotals {
        SourceTotals {
            accepted: store.count(&self.accepted),
            overload: store.count(&self.overload),
            schema: store.count(&self.schema),
        }
    }

    /// The number of the source's next row, as far as it is durable.
    pub fn next_seq(&self, store: &Store) -> u64 {
        let totals = self.read(store);
        store.count(&self.first) + totals.accepted + totals.overload
    }
}

/// What became of a source's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SourceTotals {
    /// Rows that the table took.
    pub accepted: u64,
    /// Rows that were dropped because the table's queue was full.
    pub overload: u64,
    /// Rows that did not fit the table.
    pub schema: u64,
}

/// The counter of the records that were put into a sink's outbox.
pub fn results(sink: &str) -> Arc<str> {
    format!("sink/{sink}/results").into()
}

/// The counter of a stream's results that no route took.
pub fn unrouted(stream: &str) -> Arc<str> {
    format!("stream/{stream}/unrouted").into()
}

/// The counter of the rows of a stream's tables that were gone before the stream read them: damaged in
/// the log, given up for want of room, or let go while no such stream was configured.
pub fn missed(stream: &str) -> Arc<str> {
    format!("stream/{stream}/missed").into()
}

/// The counters of the rows of a table that came before the clock was set.
#[derive(Debug, Clone)]
pub struct ClockKeys {
    /// Rows that had to wait for it.
    pub waited: Arc<str>,
    /// Of these, rows whose times were moved when it was set.
    pub rebased: Arc<str>,
    /// Of these, rows that kept the times that they had, because nobody set it in time.
    pub doubted: Arc<str>,
}

impl ClockKeys {
    /// The counters of the table `name`.
    pub fn new(name: &str) -> Self {
        let key = |what: &str| Arc::from(format!("{TABLES}{name}/clock/{what}"));
        Self { waited: key("waited"), rebased: key("rebased"), doubted: key("doubted") }
    }
}

/// The tables that ever had rows which came before the clock was set.
pub fn clock_tables(store: &Store) -> Vec<Arc<str>> {
    let counts = store.counts().into_iter();
    let names = counts.filter_map(|(key, _)| {
        Some(Arc::from(key.strip_prefix(TABLES)?.strip_suffix("/clock/waited")?))
    });
    names.collect()
}

/// Rows that wait for the clock, by table.
pub fn clock_waiting(store: &Store) -> BTreeMap<Arc<str>, u64> {
    let waiting = clock_tables(store).into_iter().map(|table| {
        let keys = ClockKeys::new(&table);
        let decided = store.count(&keys.rebased) + store.count(&keys.doubted);
        (table, store.count(&keys.waited).saturating_sub(decided))
    });
    waiting.filter(|(_, rows)| *rows > 0).collect()
}

/// How all keys of tables begin.
const TABLES: &str = "table/";
/// How all keys of sources begin.
const SOURCES: &str = "source/";

/// Begins to count in a store that is older than the counters: what was put into the outboxes of
/// `sinks`, and from which number on `sources` go on, which are given with the log of their table. Gives
/// these numbers by source, for they are durable only later. Called before anything else is
/// submitted, so that the queue has room.
pub fn begin<'a>(
    store: &Store,
    sinks: impl Iterator<Item = &'a str>,
    sources: impl Iterator<Item = (String, String)>,
) -> BTreeMap<String, u64> {
    let counted: BTreeMap<_, _> = store.counts().into_iter().collect();
    let mut counts = Vec::new();
    for sink in sinks {
        let (key, ever) = (results(sink), ever(&store.backlog(sink)));
        if ever > 0 && !counted.contains_key(&key) {
            counts.push((key, ever));
        }
    }
    let mut firsts = BTreeMap::new();
    if !counted.keys().any(|key| key.starts_with(SOURCES)) {
        for (source, table) in sources {
            // No row of the table has a higher number.
            let first = store.log_end(&table);
            if first > 0 {
                counts.push((SourceKeys::new(&source).first, first));
                firsts.insert(source, first);
            }
        }
    }
    if !counts.is_empty() {
        let submitted = store.submit(Commit { counts, ..Commit::default() }).now_or_never();
        if !matches!(submitted, Some(Ok(_))) {
            tracing::error!("older rows and results are not counted: the ledger does not add up");
        }
    }
    firsts
}

/// Records that were ever put into an outbox, by what became of them.
pub fn ever(b: &Backlog) -> u64 {
    b.delivered + b.dropped + b.expired + b.rejected + b.lost + b.records
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use bytes::Bytes;
    use tidegate_engine::store::{Layout, OutboxRows, SinkLayout, StoreOptions, WhenFull};

    use super::*;

    /// A store in a folder of its own, with one sink.
    struct Trial {
        dir: PathBuf,
    }

    impl Trial {
        fn new(name: &str) -> Self {
            let name = format!("tidegate-ledger-{}-{name}", std::process::id());
            Self { dir: std::env::temp_dir().join(name) }
        }

        fn open(&self) -> Store {
            let sink = SinkLayout {
                name: "cloud".into(),
                max_bytes: 1 << 20,
                max_age_us: None,
                max_records: None,
                when_full: WhenFull::Block,
                priority: 0,
            };
            let layout = Layout { tables: Vec::new(), sinks: vec![sink] };
            Store::open(StoreOptions::new(&self.dir, "gw", 1), layout).unwrap().0
        }
    }

    impl Drop for Trial {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.dir));
        }
    }

    async fn commit(store: &Store, commit: Commit) {
        let commit = Commit { wait: true, ..commit };
        store.submit(commit).await.unwrap().await.unwrap();
    }

    fn records(count: u64) -> OutboxRows {
        OutboxRows {
            sink: "cloud".into(),
            stream: "s".into(),
            first_seq: 0,
            window: None,
            created: 0,
            bodies: (0..count).map(|_| Bytes::from_static(b"{}")).collect(),
        }
    }

    #[tokio::test]
    async fn a_store_without_counters_is_counted_from_what_it_holds() {
        let trial = Trial::new("older");
        let store = trial.open();
        // As the version before it wrote: results without a counter.
        commit(&store, Commit { outbox: vec![records(7)], ..Commit::default() }).await;
        let sources = || [("press".to_owned(), "press".to_owned())].into_iter();
        assert!(begin(&store, ["cloud"].into_iter(), sources()).is_empty(), "its log is empty");
        commit(&store, Commit::default()).await;
        assert_eq!(store.count(&results("cloud")), 7);

        // Once: what comes then is counted by whoever brings it.
        let counts = vec![(results("cloud"), 2)];
        commit(&store, Commit { outbox: vec![records(2)], counts, ..Commit::default() }).await;
        begin(&store, ["cloud"].into_iter(), sources());
        commit(&store, Commit::default()).await;
        assert_eq!(store.count(&results("cloud")), ever(&store.backlog("cloud")));
        store.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_source_goes_on_behind_what_was_accepted_and_refused() {
        let trial = Trial::new("seq");
        let store = trial.open();
        let (press, meter) = (SourceKeys::new("press"), SourceKeys::new("meter/slow"));
        assert_eq!(press.next_seq(&store), 0);
        let counts = vec![
            (press.accepted.clone(), 10),
            (press.overload.clone(), 3),
            // It had no numbers yet.
            (press.schema.clone(), 2),
            (meter.first.clone(), 100),
            (meter.accepted.clone(), 1),
        ];
        commit(&store, Commit { counts, ..Commit::default() }).await;
        store.close().await.unwrap();

        let store = trial.open();
        assert_eq!((press.next_seq(&store), meter.next_seq(&store)), (13, 101));
        let totals = SourceTotals { accepted: 10, overload: 3, schema: 2 };
        assert_eq!(press.read(&store), totals);
        // Counters there are: a new source begins at 0, whatever its table holds.
        let sources = [("new".to_owned(), "press".to_owned())].into_iter();
        assert!(begin(&store, std::iter::empty(), sources).is_empty());
        store.close().await.unwrap();
    }
}
