//! A real process on a real folder: kill -9, the lock, permissions, a crash during creation.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::fake::Dice;
use super::*;
use crate::store::disk::Folder;

/// Set for the child only: the folder that it writes to.
const WRITER: &str = "TIDEGATE_TEST_STORE_WRITER";

/// A folder that goes with its test.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new(name: &str) -> Self {
        let name = format!("tidegate-store-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    fn open(&self) -> Opened {
        Store::open(StoreOptions { dir: self.0.join("store"), ..options() }, layout())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The child: goes on where the store stands, with eight commits on their way at a time, and says
/// each number that is durable. Does nothing where it is not the child.
#[tokio::test]
async fn writer() {
    let Some(dir) = std::env::var_os(WRITER) else {
        return;
    };
    let options = StoreOptions { dir: dir.into(), ..options() };
    let (store, _) = Store::open(options, layout()).unwrap();
    let mut tickets = std::collections::VecDeque::new();
    let first = next_number(&store);
    for n in first.. {
        let one = Commit {
            wait: true,
            rows: vec![log_rows(n..n + 1)],
            outbox: vec![results("a", n..n + 1, 1), results("b", n..n + 1, 1)],
            progress: Some(StreamProgress {
                states: states_of(n),
                ..progress(&n.to_le_bytes(), n + 1, n.saturating_sub(9))
            }),
            ..Commit::default()
        };
        tickets.push_back((n, store.submit(one).await.unwrap()));
        if tickets.len() >= 8 {
            let (n, ticket) = tickets.pop_front().unwrap();
            ticket.await.unwrap();
            store.delivered("a", n.saturating_sub(3));
            writeln!(std::io::stderr(), "durable {n}").unwrap();
        }
    }
}

/// Three states change all the time; others come, and go twenty commits later.
fn states_of(n: u64) -> Vec<StateChange> {
    let mut changes = vec![
        StateChange { key: n % 3, bytes: Some(n.to_string().into()) },
        StateChange { key: n + 10, bytes: Some(Bytes::from(vec![7; 2_000])) },
    ];
    changes.extend(n.checked_sub(20).map(|old| StateChange { key: old + 10, bytes: None }));
    changes
}

fn next_number(store: &Store) -> u64 {
    store
        .progress("s")
        .map_or(0, |progress| u64::from_le_bytes(progress.state.try_into().unwrap()) + 1)
}

/// P1: what was said to be durable is there after kill -9, unaltered and in order.
#[tokio::test]
async fn p01_kill_9_loses_nothing_that_was_durable() {
    let scratch = Scratch::new("kill");
    let mut dice = Dice(2_026);
    for round in 0..10 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::tests::kill::writer", "--nocapture"])
            .env(WRITER, scratch.0.join("store"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = None;
        let mut left = 1 + dice.below(60);
        while let Some(Ok(line)) = lines.next() {
            let Some(number) = line.strip_prefix("durable ") else {
                continue;
            };
            // The line that the kill has torn says nothing; the one before it holds.
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            said = Some(number);
            left = left.saturating_sub(1);
            if left == 0 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let (store, recovery) = scratch.open().unwrap();
        assert_eq!((recovery.quarantined, recovery.corrupt_records), (None, 0), "{round}");
        let next = next_number(&store);
        assert!(said.is_some_and(|said| next > said), "round {round}: {said:?}, {next}");
        assert_eq!(bodies(&waiting(&store, "b").await), (0..next).collect::<Vec<_>>());
        let cursor = store.cursor("a");
        assert!(cursor + 3 <= next, "{cursor} {next}");
        assert_eq!(bodies(&waiting(&store, "a").await), (cursor..next).collect::<Vec<_>>());
        assert_eq!((store.log_end("t"), store.stats().corrupt_rows), (next, 0));
        let mut kept = std::collections::BTreeMap::new();
        for StateChange { key, bytes } in (0..next).flat_map(states_of) {
            match bytes {
                Some(bytes) => drop(kept.insert(key, bytes)),
                None => drop(kept.remove(&key)),
            }
        }
        assert!(store.states("s").await.unwrap().whole == kept.into_iter().collect::<Vec<_>>());
        let floor = next.saturating_sub(10);
        assert_eq!(logged(&store, floor).await, (floor..next).collect::<Vec<_>>());
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn the_files_are_private_and_the_lock_is_clear() {
    let scratch = Scratch::new("lock");
    let (store, _) = scratch.open().unwrap();
    let refused = scratch.open().unwrap_err();
    assert!(matches!(refused, StoreError::Locked { .. }));
    assert!(refused.to_string().contains("store.lock is locked"), "{refused}");
    put(&store, "a", 0..2).await;
    let dir = scratch.0.join("store");
    let mode = |name: &str| fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("store.redb"), mode("store.lock"), mode("")), (0o600, 0o600, 0o700));
    store.close().await.unwrap();
    // A process that another test is starting holds a copy of the lock until it runs its program.
    let patience = tokio::time::Instant::now() + std::time::Duration::from_secs(5);
    let (store, _) = loop {
        match scratch.open() {
            Err(StoreError::Locked { .. }) if tokio::time::Instant::now() < patience => {
                tokio::task::yield_now().await;
            }
            opened => break opened.unwrap(),
        }
    };
    assert_eq!(bodies(&waiting(&store, "a").await), [0, 1], "closed means that the lock is free");
}

/// F4: a crash during creation left a file that redb cannot open; here it has another name.
#[tokio::test]
async fn f04_what_a_crashed_creation_left_behind_is_no_obstacle() {
    let scratch = Scratch::new("creation");
    let dir = scratch.0.join("store");
    fs::create_dir(&dir).unwrap();
    fs::File::create(dir.join("store.redb.new")).unwrap().write_all(b"half a header").unwrap();
    let (store, recovery) = scratch.open().unwrap();
    assert_eq!((recovery.created, recovery.quarantined), (true, None));
    assert!(!dir.join("store.redb.new").exists());
    store.close().await.unwrap();

    // A bad magic: moved aside and reported, and the epoch grows.
    fs::File::create(dir.join("store.redb")).unwrap().write_all(&[7; 9_000]).unwrap();
    let (store, recovery) = scratch.open().unwrap();
    let aside = dir.join("store.redb.quarantine-1");
    assert_eq!((recovery.created, recovery.quarantined), (true, Some(aside.clone())));
    assert_eq!(fs::read(aside).unwrap(), [7; 9_000]);
    assert_eq!(store.epoch(), 8);
}

/// P11: of two notes one is enough, and the start that reads them takes them away. A kill alone is none.
#[tokio::test]
async fn f01_a_process_that_ended_while_it_could_not_write_is_known_to_the_next_one() {
    let scratch = Scratch::new("stall");
    let opened = || {
        let (store, recovery) = scratch.open().unwrap();
        (store.epoch(), recovery.ids_doubted, store)
    };
    let (mut epoch, doubted, store) = opened();
    assert!(!doubted, "it is new");
    store.close().await.unwrap();
    let folder = Folder::new(scratch.0.join("store"));
    let notes = folder.stall_notes().unwrap();
    assert_eq!(notes[1], scratch.0.join("store/store.stalled"));
    for lost in &notes {
        folder.note_stall(Some(1)).unwrap();
        // A start that could not say its epoch, and no clock that says a later one.
        folder.note_stall(Some(epoch + 100)).unwrap();
        fs::remove_file(lost).unwrap();
        assert_eq!(folder.was_stalled(), Some(epoch + 100));
        let (next, doubted, store) = opened();
        assert!(doubted && next > epoch + 100, "{lost:?} was lost: {next} after {epoch}");
        epoch = next;
        store.close().await.unwrap();
        assert!(folder.was_stalled().is_none() && notes.iter().all(|note| !note.exists()));
        let (next, doubted, store) = opened();
        assert_eq!((next, doubted), (epoch, false));
        store.close().await.unwrap();
    }
    folder.note_stall(Some(1)).unwrap();
    folder.note_stall(None).unwrap();
    let (next, doubted, _store) = opened();
    assert_eq!((next, doubted), (epoch, false));
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_one_clear_error() {
    let scratch = Scratch::new("folder");
    fs::File::create(scratch.0.join("store")).unwrap();
    let refused = scratch.open().unwrap_err();
    assert!(matches!(refused, StoreError::Io { .. }), "{refused}");
    assert!(refused.to_string().contains("store.lock"), "{refused}");
}
