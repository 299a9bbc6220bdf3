//! What a source counts, and what it owes to its durable counters.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use futures::FutureExt;
use futures::future::BoxFuture;
use tidegate_drivers::Point;
use tidegate_drivers::stats::Stats;
use tidegate_drivers::table::Value;

use super::*;
use crate::clock::ManualClock;

/// Gives one row at a time, as often as it is asked to.
struct Counting {
    points: Vec<Point>,
    given: u32,
    most: u32,
}

impl South for Counting {
    fn points(&self) -> &[Point] {
        &self.points
    }

    fn stats(&self) -> Arc<Stats> {
        Arc::default()
    }

    fn connect(&mut self) -> BoxFuture<'_, Result<(), Fault>> {
        std::future::ready(Ok(())).boxed()
    }

    fn read<'a>(
        &'a mut self,
        rows: &'a mut TableBuilder,
    ) -> BoxFuture<'a, Result<Option<Receipt>, Fault>> {
        async move {
            if self.given == self.most {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.given += 1;
            rows.begin();
            rows.value(0, Value::I32(7));
            rows.end(Instant::now());
            Ok(None)
        }
        .boxed()
    }

    fn settle(&mut self, _: Receipt) -> BoxFuture<'_, Result<(), Fault>> {
        std::future::ready(Ok(())).boxed()
    }
}

fn schema() -> SchemaRef {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    Arc::new(Schema::new(vec![
        Field::new("time", utc, false),
        Field::new("device", DataType::Utf8, false),
        Field::new("quality", DataType::Utf8, false),
        Field::new("seq", DataType::UInt64, false),
        Field::new("n", DataType::Int32, true),
    ]))
}

/// A source of `most` rows, dropping what its table does not take at once.
fn source(most: u32, first_seq: u64, table: mpsc::Sender<Arrival>) -> Source {
    let points = vec![Point::new("n", DataType::Int32)];
    let clock = Arc::new(ManualClock::at(0));
    Source {
        name: "press".to_owned(),
        rows: TableBuilder::new(&points, false),
        batcher: Batcher::new("press", schema(), false, (clock, Arc::default()), first_seq),
        south: Box::new(Counting { points, given: 0, most }),
        table,
        when_busy: WhenBusy::Drop,
        pauses: (Duration::from_secs(1), Duration::from_secs(1)),
        listens: false,
        counts: Arc::new(SourceCounts::starting_at(first_seq)),
        keys: SourceKeys::new("press"),
        owed: Vec::new(),
        pulse: Arc::default(),
        stop: CancellationToken::new(),
        unsettled: Unsettled::default(),
    }
}

fn grown(arrivals: &[Arrival], counter: &str) -> u64 {
    let counts = arrivals.iter().flat_map(|arrival| &arrival.counts);
    counts.filter(|(name, _)| **name == *format!("source/press/{counter}")).map(|(_, n)| n).sum()
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_counted_with_the_next_rows_that_are_taken() {
    let (table, mut arrivals) = mpsc::channel(2);
    let mut source = source(7, 40, table);
    let (stop, counts) = (source.stop.clone(), source.counts.clone());
    let work = tokio::spawn(async move { source.run().await });
    // Seven rows, of which two find room.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let ledger = counts.get();
    assert_eq!((ledger.read, ledger.accepted, ledger.refused_overload), (7, 2, 5));
    assert_eq!(ledger.next_seq, 47, "refused rows have numbers");
    let mut taken = vec![arrivals.recv().await.unwrap(), arrivals.recv().await.unwrap()];
    assert_eq!((grown(&taken, "accepted"), grown(&taken, "refused/queue_full")), (2, 0));

    // No more rows come: the end brings what is owed.
    stop.cancel();
    taken.push(arrivals.recv().await.unwrap());
    assert_eq!(taken[2].batch.num_rows(), 0);
    assert_eq!((grown(&taken, "accepted"), grown(&taken, "refused/queue_full")), (2, 5));
    assert!(arrivals.recv().await.is_none());
    assert!(matches!(work.await.unwrap(), Exit::Done));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_counted_twice() {
    let (table, mut arrivals) = mpsc::channel(1);
    let mut source = source(50, 0, table);
    let (stop, counts) = (source.stop.clone(), source.counts.clone());
    let work = tokio::spawn(async move { source.run().await });
    let mut taken = Vec::new();
    // A table that is slower than its source: some rows are refused, and counted with later ones.
    while counts.get().read < 50 || !arrivals.is_empty() {
        tokio::time::sleep(Duration::from_millis(3)).await;
        taken.extend(arrivals.try_recv());
    }
    stop.cancel();
    while let Some(arrival) = arrivals.recv().await {
        taken.push(arrival);
    }
    assert!(matches!(work.await.unwrap(), Exit::Done));
    let rows: u64 = taken.iter().map(|arrival| arrival.batch.num_rows() as u64).sum();
    let (accepted, refused) = (grown(&taken, "accepted"), grown(&taken, "refused/queue_full"));
    assert_eq!(accepted, rows);
    assert_eq!(accepted + refused, 50);
    assert!(refused > 10, "{refused}");
    assert_eq!((counts.get().accepted, counts.get().refused_overload), (accepted, refused));
}
