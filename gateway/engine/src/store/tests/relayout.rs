//! Another layout while the store runs. The fault that this excludes: a gateway of another make
//! destroyed its queue whenever a configuration was pushed, also an equal one (A46).

use super::*;

fn only(name: &str) -> Layout {
    Layout { tables: vec![], sinks: vec![sink(name)] }
}

#[tokio::test]
async fn a46_another_layout_never_drops_what_is_stored() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..5).await;
    commit(&store, Commit { rows: vec![log_rows(0..7)], ..Commit::default() }).await.unwrap();
    for _ in 0..3 {
        store.relayout(layout(), NO_BOUND).await.unwrap();
        store.relayout(only("b"), NO_BOUND).await.unwrap();
    }
    assert!(matches!(
        store.next("a", 0, 1, 1).await,
        Err(StoreError::Unknown(what)) if what == "sink a"
    ));
    let outbox = vec![results("a", 5..6, 1)];
    let refused = store.submit(Commit { outbox, ..Commit::default() }).await;
    assert!(matches!(refused, Err(StoreError::Unknown(_))));
    let rows = vec![log_rows(7..8)];
    let refused = store.submit(Commit { rows, ..Commit::default() }).await;
    assert!(matches!(refused, Err(StoreError::Unknown(_))));

    store.relayout(layout(), NO_BOUND).await.unwrap();
    assert_eq!(bodies(&waiting(&store, "a").await), [0, 1, 2, 3, 4]);
    assert_eq!(store.log_end("t"), 7);
    assert_eq!(logged(&store, 0).await, [0, 1, 2, 3, 4, 5, 6]);
    commit(&store, Commit { rows: vec![log_rows(7..9)], ..Commit::default() }).await.unwrap();
    assert_eq!(logged(&store, 6).await, [6, 7, 8]);
}

/// Results that were queued for a sink when the layout without it came are durable first: a stream
/// whose progress says "written" would have lost them otherwise.
#[tokio::test]
async fn what_was_submitted_before_is_durable_under_the_old_layout() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let outbox = vec![results("a", 0..3, 1)];
    let ticket = store.submit(Commit { outbox, ..Commit::default() }).await.unwrap();
    store.relayout(only("c"), NO_BOUND).await.unwrap();
    ticket.await.unwrap();
    put(&store, "c", 8..9).await;
    store.close().await.unwrap();

    let (store, recovery) = open(&disk).unwrap();
    assert_eq!(recovery.unclaimed, ["sink c"]);
    assert_eq!(bodies(&waiting(&store, "a").await), [0, 1, 2]);
}

#[tokio::test]
async fn a_new_sink_wakes_its_reader_and_an_old_one_goes_on_waiting() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let reader = store.clone();
    let old = tokio::spawn(async move { bodies(&reader.next("a", 0, 9, 999).await.unwrap()) });
    let reader = store.clone();
    let gone = tokio::spawn(async move { reader.next("b", 0, 9, 999).await });
    answered(&store).await;
    let both = Layout { tables: vec![], sinks: vec![sink("a"), sink("c")] };
    store.relayout(both, NO_BOUND).await.unwrap();
    assert!(matches!(gone.await.unwrap(), Err(StoreError::Unknown(_))), "its sink is gone");
    let reader = store.clone();
    let new = tokio::spawn(async move { bodies(&reader.next("c", 0, 9, 999).await.unwrap()) });
    put(&store, "c", 1..3).await;
    put(&store, "a", 4..5).await;
    assert_eq!((old.await.unwrap(), new.await.unwrap()), (vec![4], vec![1, 2]));
}

/// A stream that is new holds every row from then on; one that is gone holds none.
#[tokio::test]
async fn readers_of_a_table_change_what_its_log_keeps() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let readers = |names: &[&str]| Layout {
        tables: vec![TableLayout {
            name: "t".into(),
            readers: names.iter().map(|name| (*name).into()).collect(),
            history_us: None,
        }],
        sinks: vec![sink("b")],
    };
    let passed = |rows: std::ops::Range<u64>| Commit {
        progress: Some(progress(b"", rows.end, rows.end)),
        rows: vec![log_rows(rows)],
        ..Commit::default()
    };
    commit(&store, passed(0..4)).await.unwrap();
    assert!(logged(&store, 0).await.is_empty(), "its one reader has passed them");
    store.relayout(readers(&["s", "new"]), NO_BOUND).await.unwrap();
    commit(&store, passed(4..6)).await.unwrap();
    assert_eq!(logged(&store, 0).await, [4, 5]);
    store.relayout(readers(&["s"]), NO_BOUND).await.unwrap();
    settle(&store).await;
    assert!(logged(&store, 0).await.is_empty());
}

#[tokio::test]
async fn other_bounds_count_at_once() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..9).await;
    let bounded = SinkLayout { max_records: Some(2), ..sink("a") };
    let layout = Layout { tables: vec![], sinks: vec![bounded, sink("b")] };
    store.relayout(layout, NO_BOUND).await.unwrap();
    put(&store, "a", 9..10).await;
    assert_eq!(bodies(&waiting(&store, "a").await), [8, 9]);
    assert_eq!(store.backlog("a").dropped, 8);
}

/// What no configuration names came back with the name for ever, and took room until the store was full.
#[tokio::test]
async fn what_no_layout_names_can_be_forgotten_for_good() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    // More than the ring holds, so that some of it is on shelves, one dead letter, and a pause.
    for number in 0..40 {
        let rows = vec![log_rows(number * 5..number * 5 + 5)];
        let outbox = vec![results("a", number..number + 1, 1), results("b", number..number + 1, 1)];
        commit(&store, Commit { rows, outbox, ..Commit::default() }).await.unwrap();
    }
    store.reject("a", 1, "no");
    store.pause("a", true).await.unwrap();
    let refused = store.forget("a").await;
    assert!(matches!(refused, Err(StoreError::Claimed(_))), "{refused:?}");
    let refused = store.forget("t").await;
    assert!(matches!(refused, Err(StoreError::Claimed(_))), "{refused:?}");
    let refused = store.forget("nobody").await;
    assert!(matches!(refused, Err(StoreError::Unknown(_))), "{refused:?}");

    store.relayout(only("b"), NO_BOUND).await.unwrap();
    assert_eq!(store.forget("a").await.unwrap(), 39 + 1, "records, and the dead letter");
    assert_eq!(store.forget("t").await.unwrap(), 200);
    assert_eq!(store.forget("t").await.unwrap(), 0);
    let held = store.stats().held_bytes;
    assert_eq!(held, 10 * 5 + 30 * 6, "what waits for `b`");
    let (store, recovery) = open(&disk.power_cut(None)).unwrap();
    assert_eq!((recovery.corrupt_records, recovery.progress_lost.len()), (0, 0));
    assert_eq!(open_rows(&store, "a").await, []);
    let backlog = store.backlog("a");
    assert_eq!((backlog.dropped, backlog.rejected, backlog.letters), (39, 1, 0));
    assert!(!backlog.paused && store.rejected("a", 9).await.unwrap().is_empty());
    assert_eq!((logged(&store, 0).await, store.log_end("t")), (vec![], 200));
    assert_eq!(store.stats().log_rows_dropped, 200);
    assert_eq!(bodies(&waiting(&store, "b").await), (0..40).collect::<Vec<_>>());
    // Positions go on, so that no stream takes new rows for those that it has passed.
    put(&store, "a", 40..41).await;
    assert_eq!(waiting(&store, "a").await[0].position, 41);
    commit(&store, Commit { rows: vec![log_rows(200..202)], ..Commit::default() }).await.unwrap();
    assert_eq!(logged(&store, 0).await, [200, 201]);
}

/// What waits for a sink that no layout names can be read, to be kept elsewhere.
#[tokio::test]
async fn what_waits_for_nobody_can_be_read() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    put(&store, "a", 0..5).await;
    store.relayout(only("b"), NO_BOUND).await.unwrap();
    let rows = store.waiting("a", 1, 3, 1 << 20).await.unwrap();
    assert_eq!(bodies(&rows), [1, 2, 3]);
    assert_eq!(bodies(&store.waiting("a", 4, 3, 1 << 20).await.unwrap()), [4]);
    assert_eq!(store.waiting("a", 5, 3, 1 << 20).await.unwrap(), []);
    assert_eq!(store.waiting("nobody", 0, 3, 1 << 20).await.unwrap(), []);
}
