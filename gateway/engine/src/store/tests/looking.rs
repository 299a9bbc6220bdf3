//! A store that is only looked at: whoever opens it next finds what he would have found.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::kill::Scratch;
use super::*;
use crate::store::Verified;

fn at(dir: &Path) -> StoreOptions {
    StoreOptions { dir: dir.to_owned(), ..options() }
}

/// Everything in a folder: names, inode numbers, modes, times of change in nanoseconds, bytes.
type Picture = BTreeMap<String, (u64, u32, i64, i64, Vec<u8>)>;

fn picture(dir: &Path) -> Picture {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let files = entries.map(|entry| {
        let meta = entry.metadata().unwrap();
        let (written, changed) = (meta.mtime_nsec(), meta.ctime_nsec());
        let seen = (meta.ino(), meta.mode(), written, changed, fs::read(entry.path()).unwrap());
        (entry.file_name().into_string().unwrap(), seen)
    });
    files.collect()
}

/// A copy of a store whose process was killed.
async fn copied(scratch: &Scratch) -> std::path::PathBuf {
    let (from, to) = (scratch.0.join("store"), scratch.0.join("copy"));
    let (store, _) = Store::open(at(&from), layout()).unwrap();
    let states = changes(&[(1, "first")], &[]);
    let progress = StreamProgress { states, ..progress(b"state", 5, 0) };
    let one = Commit {
        rows: vec![log_rows(0..5)],
        outbox: vec![results("a", 0..3, 1)],
        progress: Some(progress),
        ..Commit::default()
    };
    commit(&store, one).await.unwrap();
    store.reject("a", 1, "no");
    settle(&store).await;
    let held = Store::look(at(&from), layout());
    assert!(matches!(held, Err(StoreError::Locked { .. })), "{held:?}");
    fs::create_dir(&to).unwrap();
    for name in picture(&from).into_keys() {
        fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
    store.close().await.unwrap();
    to
}

#[tokio::test]
async fn p11_looking_at_a_copy_leaves_it_to_the_start_to_find_that_it_is_one() {
    let scratch = Scratch::new("looking");
    let copy = copied(&scratch).await;
    let before = picture(&copy);
    for _ in 0..2 {
        let (store, recovery) = Store::look(at(&copy), layout()).unwrap();
        assert!(recovery.copied && !recovery.clean, "{recovery:?}");
        assert_eq!(bodies(&waiting(&store, "a").await), [1, 2]);
        assert_eq!(
            (states(&store).await, logged(&store, 0).await),
            (vec![(1, "first".to_owned())], vec![0, 1, 2, 3, 4])
        );
        assert_eq!(store.rejected("a", 9).await.unwrap().len(), 1);
        let verified = store.verify().await.unwrap();
        // Three of `a`, of which two wait, in one piece; one for `b`, five of the log.
        assert_eq!(verified, Verified { rows: 9, corrupt_records: 0, corrupt_rows: 0 });
        // Whatever is done to it goes with it.
        store.relayout(layout(), NO_BOUND).await.unwrap();
        put(&store, "a", 3..9).await;
        store.compact().await.unwrap();
        assert_eq!(bodies(&waiting(&store, "a").await), [1, 2, 3, 4, 5, 6, 7, 8]);
        store.close().await.unwrap();
        assert!(picture(&copy) == before, "nothing has changed");
    }
    let (store, recovery) = Store::open(at(&copy), layout()).unwrap();
    assert_eq!((recovery.copied, store.epoch()), (true, 8));
    assert_eq!(bodies(&waiting(&store, "a").await), [1, 2]);
    store.close().await.unwrap();
}

/// Two who look do not disturb each other; who would write waits for both.
#[tokio::test]
async fn several_may_look_at_once_and_nobody_writes_meanwhile() {
    let scratch = Scratch::new("several");
    let copy = copied(&scratch).await;
    let looking = [(); 2].map(|()| Store::look(at(&copy), layout()).unwrap().0);
    for store in looking {
        assert_eq!(bodies(&waiting(&store, "a").await), [1, 2]);
        let held = Store::open(at(&copy), layout());
        assert!(matches!(held, Err(StoreError::Locked { .. })), "{held:?}");
        store.close().await.unwrap();
    }
    let (store, _) = Store::open(at(&copy), layout()).unwrap();
    let held = Store::look(at(&copy), layout());
    assert!(matches!(held, Err(StoreError::Locked { .. })), "{held:?}");
    store.close().await.unwrap();
}

#[tokio::test]
async fn what_is_damaged_can_be_looked_at_and_is_left_for_the_start_to_mend() {
    let scratch = Scratch::new("damaged");
    let copy = copied(&scratch).await;
    fs::File::create(copy.join("store.redb")).unwrap().write_all(b"no tree at all").unwrap();
    let before = picture(&copy);
    let (store, recovery) = Store::look(at(&copy), layout()).unwrap();
    assert!(recovery.quarantined.is_some() && recovery.salvaged, "{recovery:?}");
    assert_eq!(bodies(&waiting(&store, "a").await), [1, 2]);
    store.close().await.unwrap();
    assert!(picture(&copy) == before);
    // Where there is nothing, nothing is made.
    let empty = scratch.0.join("empty");
    let (store, recovery) = Store::look(at(&empty), layout()).unwrap();
    assert!(recovery.created);
    store.close().await.unwrap();
    assert!(!empty.exists());
}
