//! States of streams: they are those of the last progress, whatever happened, or the progress is lost
//! and told. A pane that is of another moment than its stream's cursor is a wrong result.

use super::*;
use crate::store::files::{RING, TREE};
use crate::store::format::{Kind, SEAL_BYTES, key};

/// A commit of stream `s` whose progress says `number`.
fn step(number: u64, states: Vec<StateChange>) -> Commit {
    let reached = progress(&number.to_le_bytes(), 0, 0);
    Commit { progress: Some(StreamProgress { states, ..reached }), ..Commit::default() }
}

fn texts(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected.iter().map(|(key, text)| (*key, (*text).to_owned())).collect()
}

/// The ring has 16 blocks: what is older goes into the checkpoint.
async fn go_round(store: &Store) {
    for number in 0..20 {
        put(store, "b", number..number + 1).await;
    }
}

#[tokio::test]
async fn states_are_those_of_the_last_commit_across_restarts() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    assert_eq!(states(&store).await, [], "a new stream has none");
    commit(&store, step(1, changes(&[(3, "c"), (1, "a"), (u64::MAX, "z")], &[]))).await.unwrap();
    commit(&store, step(2, changes(&[(1, "A"), (2, "b")], &[3, 77]))).await.unwrap();
    let expected = texts(&[(1, "A"), (2, "b"), (u64::MAX, "z")]);
    assert_eq!(states(&store).await, expected);
    assert_eq!(store.progress("s").unwrap().states, [], "the changes are no part of it");
    assert_eq!(store.stats().state_bytes, 3);
    let (cut, _) = open(&disk.power_cut(None)).unwrap();
    assert_eq!(states(&cut).await, expected, "from the ring");
    go_round(&store).await;
    assert_eq!(states(&store).await, expected, "from the checkpoint");
    // One that the checkpoint has goes, one changes, and one that is gone comes back.
    commit(&store, step(3, changes(&[(2, "B"), (3, "C")], &[1]))).await.unwrap();
    let expected = texts(&[(2, "B"), (3, "C"), (u64::MAX, "z")]);
    let (cut, _) = open(&disk.power_cut(None)).unwrap();
    assert_eq!(states(&cut).await, expected, "from both");
    commit(&store, step(4, changes(&[(1, "again")], &[2]))).await.unwrap();
    store.close().await.unwrap();
    let (store, recovery) = open(&disk).unwrap();
    assert_eq!(recovery, Recovery { clean: true, ..Recovery::default() });
    assert_eq!(states(&store).await, texts(&[(1, "again"), (3, "C"), (u64::MAX, "z")]));
    assert_eq!(store.states("nobody").await.unwrap(), StoredStates::default());
}

/// Several commits of a stream become one frame: the progress of the last one needs what all of them
/// changed.
#[tokio::test]
async fn of_commits_that_become_durable_together_every_change_counts() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let mut last = None;
    for (number, states) in [
        (1, changes(&[(1, "one"), (2, "two"), (3, "three")], &[])),
        (2, changes(&[(1, "ONE")], &[2])),
        (3, changes(&[(4, "four")], &[3])),
        (4, changes(&[(3, "THREE")], &[])),
    ] {
        last = Some(store.submit(step(number, states)).await.unwrap());
    }
    store.flush();
    last.unwrap().await.unwrap();
    assert_eq!(store.stats().commits, 1);
    let (store, _) = open(&disk.power_cut(None)).unwrap();
    assert_eq!(states(&store).await, texts(&[(1, "ONE"), (3, "THREE"), (4, "four")]));
}

/// A thousand panes of a KiB, of which one changes a second: the others are not written again.
#[tokio::test]
async fn a_commit_writes_only_the_states_that_changed() {
    let disk = FakeDisk::default();
    let wide = StoreOptions { ring_bytes: 16 << 20, ..options() };
    let (store, _) = open_with(&disk, &wide, layout()).unwrap();
    let kib = |key| StateChange { key, bytes: Some(Bytes::from(vec![7; 1_024])) };
    commit(&store, step(0, (0..1_000).map(kib).collect())).await.unwrap();
    let before = store.stats();
    for number in 0..100 {
        commit(&store, step(number, vec![kib(number)])).await.unwrap();
    }
    let stats = store.stats();
    let committed = (stats.bytes_committed - before.bytes_committed) / 100;
    assert!((1_024..1_400).contains(&committed), "{committed} bytes a commit");
    assert_eq!((stats.bytes_written - before.bytes_written) / 100, 4_096, "a block a commit");
    assert_eq!(stats.state_bytes, 1_000 * 1_024);
}

/// What a ring cannot hold is durable in the checkpoint all the same.
#[tokio::test]
async fn states_may_be_larger_than_the_ring() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let large = |byte: u8| Bytes::from(vec![byte; 3 << 20]);
    for round in 0..3 {
        let states = (0..4).map(|key| StateChange { key, bytes: Some(large(round)) }).collect();
        commit(&store, step(u64::from(round), states)).await.unwrap();
    }
    let (cut, recovery) = open(&disk.power_cut(None)).unwrap();
    assert_eq!(recovery.corrupt_records, 0);
    assert_eq!(cut.states("s").await.unwrap().whole, [0, 1, 2, 3].map(|key| (key, large(2))));
}

#[tokio::test]
async fn states_that_no_frame_can_hold_are_refused() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let bytes = Bytes::from(vec![0; 32 << 20]);
    let states = (0..33).map(|key| StateChange { key, bytes: Some(bytes.clone()) }).collect();
    let refused = commit(&store, step(0, states)).await;
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })), "{refused:?}");
    assert_eq!(states_count(&store).await, 0);
}

async fn states_count(store: &Store) -> usize {
    store.states("s").await.unwrap().whole.len()
}

/// Streams `s` and `o` with two states each, in the checkpoint.
async fn two_streams() -> FakeDisk {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    commit(&store, step(1, changes(&[(1, "first"), (2, "second")], &[]))).await.unwrap();
    let other = StreamProgress {
        stream: "o".into(),
        states: changes(&[(1, "other"), (9, "nine")], &[]),
        ..progress(b"o", 0, 0)
    };
    commit(&store, Commit { progress: Some(other), ..Commit::default() }).await.unwrap();
    go_round(&store).await;
    store.close().await.unwrap();
    disk
}

fn flip(disk: &FakeDisk, file: &str, what: &[u8]) {
    flip_behind(disk, file, what, 0);
}

/// Flips a bit that far behind the end of `what`, or in its first byte.
fn flip_behind(disk: &FakeDisk, file: &str, what: &[u8], behind: usize) {
    let far = if behind == 0 { 0 } else { what.len() + behind };
    disk.edit(file, |bytes| {
        let places: Vec<usize> =
            (0..bytes.len() - what.len()).filter(|at| bytes[*at..].starts_with(what)).collect();
        assert!(!places.is_empty(), "{what:?} in {file}");
        for at in places {
            bytes[at + far] ^= 0x10;
        }
    });
}

/// P3: a state that rotted costs its stream its progress, under a new epoch, and no other stream
/// anything.
#[tokio::test]
async fn p03_a_rotten_state_costs_its_own_stream_and_is_told() {
    let disk = two_streams().await;
    flip(&disk, TREE, b"second");
    let (store, recovery) = open(&disk).unwrap();
    assert_eq!((recovery.progress_lost, &recovery.quarantined), (vec!["s".to_owned()], &None));
    // The state, and the progress that it belonged to.
    assert_eq!((recovery.corrupt_records, store.epoch()), (2, 8));
    assert_eq!((store.progress("s"), states_count(&store).await), (None, 0));
    assert_eq!(
        store.progress("o"),
        Some(StreamProgress { stream: "o".into(), ..progress(b"o", 0, 0) })
    );
    let others = store.states("o").await.unwrap().whole;
    assert_eq!(others, [(1, Bytes::from("other")), (9, Bytes::from("nine"))]);
    commit(&store, step(1, changes(&[(2, "new")], &[]))).await.unwrap();
    store.close().await.unwrap();
    let (store, recovery) = open(&disk).unwrap();
    assert_eq!(recovery, Recovery { clean: true, ..Recovery::default() }, "met once");
    assert_eq!(states(&store).await, texts(&[(2, "new")]), "nothing of before comes back");
}

/// A tree with one broken record is made anew; the states in it, which nothing else holds, go along.
#[tokio::test]
async fn p03_states_are_carried_over_from_a_broken_tree() {
    let disk = two_streams().await;
    // The counters of sink `b`, whose record no state has to do with.
    flip_behind(&disk, TREE, &key(Kind::Sink, "b", 0), SEAL_BYTES + 2);
    let (store, recovery) = open(&disk).unwrap();
    assert!(recovery.quarantined.is_some() && recovery.salvaged);
    assert_eq!((recovery.progress_lost, store.epoch()), (vec![], 7));
    assert_eq!(states(&store).await, texts(&[(1, "first"), (2, "second")]));
}

/// Without the tree the ring knows which states there should be, and has some of them no more.
#[tokio::test]
async fn p03_states_that_went_with_the_tree_are_not_taken_for_none() {
    let disk = two_streams().await;
    disk.forget(TREE);
    let (store, recovery) = open(&disk).unwrap();
    assert_eq!(recovery.progress_lost, ["o", "s"]);
    assert_eq!((store.epoch(), states_count(&store).await), (8, 0));
    assert_eq!((store.progress("s"), store.progress("o")), (None, None));
}

/// A frame in the middle is broken, and its state with it: the older state of that key is still there
/// and whole, but of another moment than the progress that came later.
#[tokio::test]
async fn p03_an_older_state_never_stands_for_a_lost_one() {
    for later in [vec![], changes(&[(1, "third")], &[]), changes(&[], &[1])] {
        let disk = FakeDisk::default();
        let (store, _) = open(&disk).unwrap();
        commit(&store, step(1, changes(&[(1, "first")], &[]))).await.unwrap();
        commit(&store, step(2, changes(&[(1, "second")], &[]))).await.unwrap();
        commit(&store, step(3, later.clone())).await.unwrap();
        let disk = disk.power_cut(None);
        flip(&disk, RING, b"second");
        let (store, recovery) = open(&disk).unwrap();
        assert_eq!((&*recovery.progress_lost, store.epoch()), (&["s".to_owned()][..], 8));
        let found = (store.progress("s").is_some(), states(&store).await);
        // What was put or removed after the damage is known for sure.
        match later.first() {
            None => assert_eq!(found, (false, vec![])),
            Some(StateChange { bytes: Some(_), .. }) => {
                assert_eq!(found, (true, texts(&[(1, "third")])));
            }
            Some(StateChange { bytes: None, .. }) => assert_eq!(found, (true, vec![])),
        }
    }
}

/// A state that rots in the ring before the checkpoint reads it: the stream goes on, and has written
/// it anew when the store is opened again; or it has not, and the next start says so.
#[tokio::test]
async fn p03_a_state_that_rots_in_the_ring_is_missed_unless_it_is_written_again() {
    for again in [false, true] {
        let disk = FakeDisk::default();
        let (store, _) = open(&disk).unwrap();
        commit(&store, step(1, changes(&[(1, "first"), (2, "second")], &[]))).await.unwrap();
        flip(&disk, RING, b"second");
        assert_eq!(store.states("s").await.unwrap().damaged, [2]);
        go_round(&store).await;
        if again {
            commit(&store, step(2, changes(&[(2, "third")], &[]))).await.unwrap();
            assert_eq!(states(&store).await, texts(&[(1, "first"), (2, "third")]));
        }
        assert_eq!(store.stats().corrupt_records, 1);
        store.close().await.unwrap();
        let (store, recovery) = open(&disk).unwrap();
        let lost = if again { vec![] } else { vec!["s".to_owned()] };
        assert_eq!(recovery.progress_lost, lost, "written again: {again}");
        let expected = if again { texts(&[(1, "first"), (2, "third")]) } else { vec![] };
        assert_eq!(states(&store).await, expected);
    }
}

/// What a stream that runs does when it is told: it has its states in memory, and loses nothing.
#[tokio::test]
async fn p03_a_state_that_rots_before_the_checkpoint_is_told_once_and_written_anew() {
    let disk = FakeDisk::default();
    let (store, _) = open(&disk).unwrap();
    let both = || changes(&[(1, "first"), (2, "second")], &[]);
    for round in 1..=2 {
        commit(&store, step(round, both())).await.unwrap();
        flip(&disk, RING, b"second");
        assert!(!store.take_spoiled("s"), "nobody has read it");
        go_round(&store).await;
        answered(&store).await;
        assert_eq!((store.take_spoiled("o"), store.take_spoiled("s")), (false, true));
        assert!(!store.take_spoiled("s"), "told once");
        assert_eq!(store.stats().corrupt_records, round, "and counted once");
    }
    commit(&store, step(3, both())).await.unwrap();
    go_round(&store).await;
    answered(&store).await;
    assert_eq!((store.take_spoiled("s"), store.stats().corrupt_records), (false, 2));
    let expected = texts(&[(1, "first"), (2, "second")]);
    let (cut, recovery) = open(&disk.power_cut(None)).unwrap();
    assert_eq!((recovery.corrupt_records, recovery.progress_lost, cut.epoch()), (0, vec![], 7));
    assert_eq!(states(&cut).await, expected);
    store.close().await.unwrap();
    let (store, recovery) = open(&disk).unwrap();
    assert_eq!(recovery, Recovery { clean: true, ..Recovery::default() });
    assert_eq!(states(&store).await, expected);
}

/// A stream that had failed could never be built again until the whole gateway was restarted: each try
/// met the same damaged state.
#[tokio::test]
async fn p03_a_state_that_rots_in_the_checkpoint_is_named_and_can_be_let_go() {
    let disk = two_streams().await;
    let (store, _) =
        open_with(&disk, &StoreOptions { cache_bytes: 0, ..options() }, layout()).unwrap();
    flip(&disk, TREE, b"second");
    let whole = vec![(1, Bytes::from("first"))];
    for _ in 0..3 {
        let found = store.states("s").await.unwrap();
        assert_eq!(found, StoredStates { whole: whole.clone(), damaged: vec![2] });
        assert_eq!(store.stats().corrupt_records, 1, "counted once");
    }
    let others = store.states("o").await.unwrap();
    assert_eq!((others.whole.len(), others.damaged.len()), (2, 0));
    assert!(store.take_spoiled("s") && !store.take_spoiled("o"));
    let quarantine = disk.read("quarantine").unwrap().unwrap();
    assert!(quarantine.windows(6).any(|at| at == b"cecond"), "a copy of it: s is c with that bit");
    commit(&store, step(2, changes(&[], &[2]))).await.unwrap();
    assert_eq!(states(&store).await, texts(&[(1, "first")]));
    let (cut, recovery) = open(&disk.power_cut(None)).unwrap();
    assert_eq!((recovery.corrupt_records, recovery.progress_lost, cut.epoch()), (0, vec![], 7));
    assert_eq!(states(&cut).await, texts(&[(1, "first")]));
    go_round(&store).await;
    store.close().await.unwrap();
    let (store, recovery) = open(&disk).unwrap();
    assert_eq!(recovery, Recovery { clean: true, ..Recovery::default() });
    assert_eq!(store.progress("s").unwrap().state, 2_u64.to_le_bytes());
    assert_eq!(states(&store).await, texts(&[(1, "first")]));
}
