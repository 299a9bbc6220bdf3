//! Damage on the device: entries, frames, the tree, shelves, lengths. F5, A51; P3.

use super::fake::Dice;
use super::*;
use crate::store::files::{RING, TREE};
use crate::store::format::{Kind, key};

/// Enough for the whole image, so that every row is where it was first written.
fn wide() -> StoreOptions {
    StoreOptions { ring_bytes: 256 << 10, ..options() }
}

/// Ten values of two rows in each of `a`, `b` and the log; the first four rows of `a` delivered.
async fn fill(store: &Store) {
    for n in (0..20).step_by(2) {
        let outbox = vec![results("a", n..n + 2, 1), results("b", n..n + 2, 1)];
        let rows = vec![log_rows(n..n + 2)];
        commit(store, Commit { rows, outbox, ..Commit::default() }).await.unwrap();
    }
    store.delivered("a", 4);
    let progress = StreamProgress { states: changes(&STATES, &[]), ..progress(b"state", 20, 0) };
    commit(store, Commit { progress: Some(progress), ..Commit::default() }).await.unwrap();
}

/// The states of stream `s` in an image.
const STATES: [(u64, &str); 3] = [(1, "one"), (2, "two"), (1 << 40, "three and more")];

/// Panics unless the states are those of the progress, or both are lost and that is told.
async fn judge_states(store: &Store, recovery: &Recovery, run: &str) {
    let found = states(store).await;
    if recovery.progress_lost.is_empty() || store.progress("s").is_some() {
        assert_eq!(found, STATES.map(|(key, text)| (key, text.to_owned())), "{run}");
    } else {
        assert_eq!((found, &*recovery.progress_lost), (vec![], &["s".to_owned()][..]), "{run}");
        assert!(store.epoch() > 7 && recovery.corrupt_records > 0, "{run}: {recovery:?}");
    }
}

/// 16 rows of `a`, 20 of `b`, 20 of the log.
const ROWS: u64 = 56;

/// A store with those rows that was closed.
async fn image(options: &StoreOptions) -> FakeDisk {
    let disk = FakeDisk::default();
    let (store, _) = open_with(&disk, options, layout()).unwrap();
    fill(&store).await;
    store.close().await.unwrap();
    disk
}

/// The same under which the power failed. A small ring has been gone round since: of its checkpoints the last
/// two are in the tree's file, and frames that the older one needs are written over.
async fn cut_image(options: &StoreOptions) -> FakeDisk {
    let disk = FakeDisk::default();
    let (store, _) = open_with(&disk, options, layout()).unwrap();
    fill(&store).await;
    let more = if options.ring_bytes < wide().ring_bytes { 40 } else { 0 };
    for _ in 0..more {
        let progress = Some(progress(b"state", 20, 0));
        commit(&store, Commit { progress, ..Commit::default() }).await.unwrap();
    }
    answered(&store).await;
    disk.power_cut(None)
}

/// Changes a byte of the ring behind the only place where `key` stands: in the entry's body.
fn tamper(disk: &FakeDisk, key: &[u8], behind: usize) {
    disk.edit(RING, |bytes| {
        let places: Vec<usize> =
            (0..bytes.len() - key.len()).filter(|at| bytes[*at..].starts_with(key)).collect();
        assert_eq!(places.len(), 1, "{key:?}");
        bytes[places[0] + key.len() + 8 + behind] ^= 0x10;
    });
}

#[tokio::test]
async fn f05_a_bad_value_costs_its_rows_and_no_others() {
    let disk = image(&wide()).await;
    tamper(&disk, &key(Kind::Outbox, "a", 9), 5);
    tamper(&disk, &key(Kind::Log, "t", 6), 20);
    tamper(&disk, &key(Kind::Log, "t", 18), 0);
    let (store, recovery) = open_with(&disk, &wide(), layout()).unwrap();
    assert_eq!((recovery.corrupt_records, recovery.clean), (3, true));
    assert_eq!((recovery.progress_lost, store.epoch()), (vec![], 7));
    store.alive().await.unwrap();
    assert_eq!(store.stats().corrupt_rows, 6, "known before anybody reads");
    for _ in 0..2 {
        assert_eq!(
            bodies(&waiting(&store, "a").await),
            [&[4, 5, 6, 7][..], &[10, 11, 12, 13, 14, 15, 16, 17, 18, 19]].concat()
        );
        assert_eq!(bodies(&waiting(&store, "b").await), (0..20).collect::<Vec<_>>());
        let left: Vec<u64> = (0..18).filter(|n| *n != 6 && *n != 7).collect();
        assert_eq!(logged(&store, 0).await, left);
        let stats = store.stats();
        assert_eq!((stats.corrupt_records, stats.corrupt_rows), (3, 6), "each is counted once");
    }
    assert!(disk.names().contains(&"quarantine".to_owned()), "copies are kept");
    let verified = store.verify().await.unwrap();
    assert_eq!((verified.rows, verified.corrupt_rows), (50, 6));
    store.delivered("a", 20);
    settle(&store).await;
    let backlog = store.backlog("a");
    assert_eq!((backlog.delivered, backlog.lost, backlog.records), (18, 2, 0));
}

/// The value of one record under the name and position of another, with its own checksum intact.
#[tokio::test]
async fn f05_a_value_under_another_position_is_no_value() {
    let disk = image(&wide()).await;
    disk.edit(RING, |bytes| {
        let find = |key: &[u8]| {
            (0..bytes.len()).find(|at| bytes[*at..].starts_with(key)).unwrap() + key.len()
        };
        let (from, to) = (find(&key(Kind::Outbox, "b", 3)), find(&key(Kind::Outbox, "a", 7)));
        let length =
            usize::try_from(u32::from_le_bytes(bytes[from + 4..from + 8].try_into().unwrap()));
        bytes.copy_within(from..from + 8 + length.unwrap(), to);
    });
    let (store, _) = open_with(&disk, &wide(), layout()).unwrap();
    assert_eq!(bodies(&waiting(&store, "a").await)[..4], [4, 5, 8, 9]);
    assert_eq!(store.stats().corrupt_rows, 2);
}

/// The tree is an index: without it everything comes from the ring and the shelves.
#[tokio::test]
async fn a51_a_store_without_its_tree_loses_nothing() {
    for (options, how) in
        [(wide(), "gone"), (options(), "gone"), (wide(), "cut"), (options(), "cut")]
    {
        let disk = image(&options).await;
        match how {
            "gone" => disk.forget(TREE),
            _ => disk.edit(TREE, |bytes| bytes.truncate(5_000)),
        }
        let (store, recovery) = open_with(&disk, &options, layout()).unwrap();
        assert_eq!((recovery.created, recovery.quarantined.is_some()), (false, how == "cut"));
        assert_eq!(count_right_rows(&store, how).await, ROWS);
        assert_eq!((store.cursor("a"), store.log_end("t"), store.epoch()), (4, 20, 7));
        assert_eq!(store.progress("s"), Some(progress(b"state", 20, 0)));
        assert_eq!(store.backlog("a").bytes, 6 * 5 + 10 * 6, "0 to 9 and 10 to 19, and 4 each");
        put(&store, "a", 20..21).await;
        store.close().await.unwrap();
        let (store, recovery) = open_with(&disk, &options, layout()).unwrap();
        assert_eq!(recovery, Recovery { clean: true, ..Recovery::default() }, "met once");
        assert_eq!(waiting(&store, "a").await.len(), 17);
    }
}

/// A broken frame that is not the last one held what was acknowledged: its progress may be lost, so
/// that no id may be given again.
#[tokio::test]
async fn lost_progress_raises_the_epoch_so_that_no_id_repeats() {
    let disk = FakeDisk::default();
    let (store, _) = open_with(&disk, &wide(), layout()).unwrap();
    fill(&store).await;
    settle(&store).await;
    let disk = disk.power_cut(None);
    tamper(&disk, &key(Kind::Progress, "s", 0), 2);
    let (store, recovery) = open_with(&disk, &wide(), layout()).unwrap();
    assert_eq!((store.epoch(), recovery.corrupt_records, recovery.clean), (8, 1, false));
    assert!(store.progress("s").is_none());
    put(&store, "a", 0..1).await;
    let rows = waiting(&store, "a").await;
    assert_eq!((rows[0].epoch, rows[0].seq), (7, 4), "a stored row keeps its id");
    assert_eq!(rows.last().map(|row| (row.epoch, row.seq)), Some((8, 0)));
    store.close().await.unwrap();
    let (store, recovery) = open_with(&disk, &wide(), layout()).unwrap();
    assert_eq!((store.epoch(), recovery.progress_lost), (8, vec![]), "met once");
}

#[tokio::test]
async fn a_store_without_its_ring_counts_what_was_in_it() {
    let disk = image(&wide()).await;
    disk.forget(RING);
    let (store, recovery) = open_with(&disk, &wide(), layout()).unwrap();
    assert!(!recovery.created);
    assert_eq!(count_right_rows(&store, "no ring").await, 0);
    assert_eq!(store.stats().corrupt_rows, ROWS);
    assert_eq!((store.cursor("a"), store.log_end("t"), store.epoch()), (4, 20, 7));
    put(&store, "a", 20..21).await;
    assert_eq!(bodies(&waiting(&store, "a").await), [20]);
}

#[tokio::test]
async fn a_file_of_a_later_version_is_refused_and_left_alone() {
    use crate::store::checkpoint::put as put_record;
    use crate::store::files::{open_tree, write};
    use crate::store::format::FORMAT;
    use crate::store::record::Meta;
    let disk = image(&wide()).await;
    let tree = open_tree(&disk, &Arc::default(), 1 << 20, TREE, false).unwrap();
    let meta = Meta { format: FORMAT + 1, ..Meta::new(7, "gw", 1) };
    write(&tree, |records| put_record(records, Kind::Meta, "", 0, &meta.encode())).unwrap();
    drop(tree);
    let before = disk.power_cut(None);
    let refused = open(&disk);
    assert!(
        matches!(refused, Err(StoreError::NewerFormat { found: 5, known: 4, .. })),
        "{refused:?}"
    );
    assert_eq!(before.names(), disk.names());
}

/// Reads everything and compares it with the model; returns how many rows came.
async fn count_right_rows(store: &Store, run: &str) -> u64 {
    let mut rows = 0;
    for sink in ["a", "b"] {
        for row in waiting(store, sink).await {
            let body: u64 = std::str::from_utf8(&row.body).unwrap().parse().unwrap();
            assert_eq!((row.position, row.seq), (body + 1, body), "{run}");
            rows += 1;
        }
    }
    rows + logged(store, 0).await.len() as u64
}

/// What lies in the place of the ring is not the ring: it was taken for one, nobody was told of the
/// rows, and what was stored next was in no ring that the checkpoint knew, and lost with the next crash.
#[tokio::test]
async fn f05_a_ring_of_somebody_else_is_moved_aside_and_told() {
    let disk = image(&wide()).await;
    let junk: Vec<u8> = (0..9_000_u32).map(|n| n.to_le_bytes()[0] ^ 0x5a).collect();
    disk.edit(RING, |bytes| bytes.clone_from(&junk));
    let (store, recovery) = open_with(&disk, &wide(), layout()).unwrap();
    let aside = recovery.quarantined.unwrap();
    assert!(aside.ends_with("store.ring.quarantine-1"), "{aside:?}");
    let name = aside.file_name().unwrap().to_str().unwrap();
    disk.edit(name, |bytes| assert_eq!(*bytes, junk));
    store.alive().await.unwrap();
    assert_eq!(store.stats().corrupt_rows, ROWS, "known before anybody reads");
    let verified = store.verify().await.unwrap();
    assert_eq!((verified.rows, verified.corrupt_rows), (0, ROWS));
    assert_eq!((store.cursor("a"), store.log_end("t"), store.epoch()), (4, 20, 7));
    assert!(!recovery.newest_lost, "it was closed: the checkpoint knows everything");
    put(&store, "a", 20..21).await;
    let (store, recovery) = open_with(&disk.power_cut(None), &wide(), layout()).unwrap();
    assert_eq!((bodies(&waiting(&store, "a").await), recovery.quarantined), (vec![20], None));
}

#[tokio::test]
async fn f05_a_shelf_that_is_gone_is_counted_before_anybody_reads() {
    for gone in [true, false] {
        let disk = image(&options()).await;
        for name in disk.names().into_iter().filter(|name| name.contains("shelf")) {
            if gone {
                disk.forget(&name);
            } else {
                disk.edit(&name, |bytes| bytes.truncate(10));
            }
        }
        let (store, _) = open(&disk).unwrap();
        store.alive().await.unwrap();
        let told = store.stats().corrupt_rows;
        assert!(told > 0);
        let left = count_right_rows(&store, "no shelves").await;
        assert_eq!((left + told, store.stats().corrupt_rows), (ROWS, told));
    }
}

/// Bits that are flipped in `make test`; `make soak` flips each.
const FLIPS: usize = 300;

/// One bit of a file of one of the images.
type Bit = (usize, String, usize, u8);

/// F5: single bits all over the files. redb alone gave a wrong value for a third of them. Half of the
/// rows are on shelves in the image with the small ring.
#[test]
fn f05_a_flipped_bit_anywhere_gives_no_wrong_value_and_an_exact_count() {
    let flips = std::env::var("TIDEGATE_FLIPS").map_or(FLIPS, |number| number.parse().unwrap());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let images = [wide(), options()].map(|options| {
        [runtime().block_on(image(&options)), runtime().block_on(cut_image(&options))]
    });
    let images = images.concat();
    let mut bits: Vec<Bit> = Vec::new();
    for (index, image) in images.iter().enumerate() {
        let names: Vec<_> =
            image.names().into_iter().filter(|name| !name.ends_with("reserve")).collect();
        assert_eq!(names.iter().any(|name| name.contains("shelf")), index >= 2);
        for name in names {
            // Most of a ring and of a tree is empty: aim at what is written.
            image.edit(&name, |bytes| {
                let written = (0..bytes.len()).filter(|at| bytes[*at] != 0);
                bits.extend(
                    written
                        .flat_map(|at| (0..8).map(move |bit| (at, bit)))
                        .map(|(at, bit)| (index, name.clone(), at, bit)),
                );
            });
        }
    }
    let step = bits.len().div_ceil(flips);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let images: Vec<_> = images.iter().map(FakeDisk::contents).collect();
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let mine = bits.iter().skip(step / 2).step_by(step).skip(worker).step_by(workers);
            let images = &images;
            scope.spawn(move || {
                let runtime = runtime();
                for bit in mine {
                    let disk = FakeDisk::default();
                    for (name, bytes) in &images[bit.0] {
                        disk.place(name, bytes);
                    }
                    runtime.block_on(flipped(&disk, bit));
                }
            });
        }
    });
}

async fn flipped(disk: &FakeDisk, bit: &Bit) {
    let (image, name, at, number) = bit;
    let options = if *image < 2 { wide() } else { options() };
    disk.edit(name, |bytes| bytes[*at] ^= 1 << number);
    let run = format!("{name}, byte {at}, bit {number}, image {image}");
    let opened = open_with(disk, &options, layout());
    let (store, recovery) = opened.unwrap_or_else(|error| panic!("{run}: {error}"));
    let told = store.verify().await.unwrap().corrupt_rows;
    let rows = count_right_rows(&store, &run).await;
    let stats = store.stats();
    assert!(!stats.failed && !recovery.created, "{run}");
    if recovery.newest_torn {
        // The last frame of a store that was not closed may be one that was never promised: nobody can count
        // what was in it, and no id of it may come again. Four rows that it says are delivered wait again.
        let epoch = store.epoch();
        assert!(name == RING && image % 2 == 1 && epoch > 7, "{run}, {epoch}: {recovery:?}");
        assert!(rows + told <= ROWS + 4 && told == stats.corrupt_rows, "{run}: {recovery:?}");
    } else {
        assert_eq!(
            (rows + told, told),
            (ROWS, stats.corrupt_rows),
            "{run}: {recovery:?} {stats:?}"
        );
        assert!(name != TREE || rows == ROWS, "{run}: the tree is an index");
        judge_states(&store, &recovery, &run).await;
    }
    put(&store, "b", 20..21).await;
    store.close().await.unwrap();
    assert_eq!(disk.holders(), 0, "{run}: files stay open");
    let (store, again) = open_with(disk, &options, layout()).unwrap();
    assert_eq!(again.progress_lost, Vec::<String>::new(), "{run}: told once");
    assert_eq!(count_right_rows(&store, &run).await, rows + 1, "{run}: again");
}

/// redb panics over pages that it trusts: 6 of 3,000 flipped bits made it. Whichever read of a start and of
/// a run does, nobody but who asked notices, what is read is right, and nothing is lost.
#[tokio::test]
async fn f05_a_panic_at_any_read_ends_nothing() {
    let options = StoreOptions { cache_bytes: 0, ..options() };
    let image = image(&options).await;
    let run = async |panic_at: Option<u64>| {
        let disk = image.power_cut(None);
        if let Some(read) = panic_at {
            disk.panic_at(read);
        }
        let run = format!("read {panic_at:?}");
        let opened = open_with(&disk, &options, layout());
        // Before it is open it may say that it cannot.
        let opened = opened.or_else(|_| open_with(&disk, &options, layout()));
        let (store, recovery) = opened.unwrap_or_else(|error| panic!("{run}: {error}"));
        let right = count_right_rows(&store, &run).await;
        let told = store.verify().await.map_or(0, |verified| verified.corrupt_rows);
        // Whoever asks while it panics may be told so; nobody else is.
        let _asked = store.states("s").await.map(|states| states.whole.len());
        put(&store, "a", 20..21).await;
        store.reject("a", 5, "no");
        put(&store, "b", 20..21).await;
        assert!(right + told >= ROWS && !store.stats().failed, "{run}: {right} and {told}");
        store.close().await.unwrap();
        let reads = disk.reads();
        disk.panic_at(0);
        let (store, again) = open_with(&disk, &options, layout()).unwrap();
        assert_eq!(count_right_rows(&store, &run).await, ROWS + 1, "{run}: one of 58 is rejected");
        assert_eq!(store.rejected("a", 9).await.unwrap().len(), 1, "{run}");
        judge_states(
            &store,
            if recovery.progress_lost.is_empty() { &again } else { &recovery },
            &run,
        )
        .await;
        (reads, recovery)
    };
    let (reads, clean) = run(None).await;
    assert!(reads > 20 && clean.clean, "{reads} reads");
    for read in 1..=reads {
        run(Some(read)).await;
    }
}

/// A bit makes the key of a piece (`I`) that of a state (`M`), which then fails its check. Taken for a state that
/// rots, it cost the rows of the piece, which lie whole on their shelf.
#[tokio::test]
async fn f05_a_piece_whose_key_rots_is_no_state() {
    let image = image(&options()).await;
    let begins = &key(Kind::LogPiece, "t", 0)[..4];
    let mut places = Vec::new();
    image.edit(TREE, |bytes| {
        places.extend((0..bytes.len()).filter(|at| bytes[*at..].starts_with(begins)));
    });
    assert!(!places.is_empty() && begins == b"I\0\x01t", "{begins:?}");
    for place in places {
        flipped(&image.power_cut(None), &(2, TREE.to_owned(), place, 2)).await;
    }
}

/// A51: a torn file. Elsewhere the service did not start until the file was deleted by hand.
#[tokio::test]
async fn a51_a_file_cut_at_any_length_opens_and_the_store_works_on() {
    let mut dice = Dice(0xcafe);
    let image = image(&options()).await;
    let files: Vec<String> =
        image.names().into_iter().filter(|n| !n.ends_with("reserve")).collect();
    for round in 0..120 {
        let disk = image.power_cut(None);
        let name = &files[dice.below(files.len())];
        let mut length = 0;
        disk.edit(name, |bytes| {
            length = if round == 0 { 0 } else { dice.below(bytes.len()) };
            bytes.truncate(length);
        });
        let run = format!("{name} cut to {length}");
        let opened = open(&disk);
        let (store, recovery) = opened.unwrap_or_else(|error| panic!("{run}: {error}"));
        let told = store.verify().await.unwrap().corrupt_rows;
        let rows = count_right_rows(&store, &run).await;
        assert!(!recovery.created, "{run}");
        assert_eq!((rows + told, told), (ROWS, store.stats().corrupt_rows), "{run}");
        assert!(name != TREE || rows == ROWS, "{run}: the tree is an index");
        judge_states(&store, &recovery, &run).await;
        put(&store, "a", 20..21).await;
        store.close().await.unwrap();
        let (store, _) = open(&disk).unwrap();
        assert_eq!(count_right_rows(&store, &run).await, rows + 1, "{run}: again");
    }
}

/// Pages that rot while the gateway runs: no checkpoint was possible any more, the ring filled up, and everything
/// stood still until somebody started the gateway anew, which mends it. It mends itself.
#[tokio::test]
async fn f05_a_tree_that_rots_while_it_runs_is_made_anew() {
    // Everything, all but the header, all but the first pages, and the half of each page that has values.
    for damage in 0..4 {
        let run = format!("damage {damage}");
        let disk = FakeDisk::default();
        let options = StoreOptions { cache_bytes: 0, ..options() };
        let (store, _) = open_with(&disk, &options, layout()).unwrap();
        fill(&store).await;
        store.reject("a", 6, "no");
        for _ in 0..40 {
            put(&store, "b", 20..20).await;
            let again = progress(b"state", 20, 0);
            commit(&store, Commit { progress: Some(again), ..Commit::default() }).await.unwrap();
        }
        answered(&store).await;
        assert_eq!(store.backlog("a").letters, 1, "{run}");
        disk.edit(TREE, |bytes| {
            let rots = |at: usize| match damage {
                0 => true,
                1 => at >= 4_096,
                2 => at >= 16_384,
                _ => at >= 4_096 && at % 4_096 >= 2_048,
            };
            for (_, byte) in bytes.iter_mut().enumerate().filter(|(at, _)| rots(*at)) {
                *byte ^= 0x55;
            }
        });
        let (mut spoiled, mut stored) = (false, 20);
        for number in 20..80 {
            let outbox = vec![results("a", number..number + 1, 1)];
            let commit = Commit { wait: true, outbox, ..Commit::default() };
            let ticket = store.submit(commit).await.unwrap();
            ticket.await.unwrap();
            answered(&store).await;
            assert_eq!(store.stats().stalled, None, "{run}");
            stored = number + 1;
            if store.take_spoiled("s") {
                spoiled = true;
                let states = changes(&STATES, &[]);
                let progress = Some(StreamProgress { states, ..progress(b"state", 20, 0) });
                super::commit(&store, Commit { progress, ..Commit::default() }).await.unwrap();
            }
        }
        let stats = store.stats();
        assert!(!stats.failed && stats.corrupt_records > 0, "{run}: {stats:?}");
        assert_eq!(stats.corrupt_rows, 0, "{run}: the tree is an index");
        assert!(disk.names().contains(&"store.redb.quarantine-1".to_owned()), "{run}");
        // Its state stands in the damaged tree alone.
        assert!(spoiled || damage == 3, "{run}");
        let letters = store.backlog("a").letters;
        assert_eq!(store.rejected("a", 9).await.unwrap().len() as u64, letters, "{run}");

        let cut = disk.power_cut(None);
        store.close().await.unwrap();
        for disk in [cut, disk] {
            let (store, recovery) = open_with(&disk, &options, layout()).unwrap();
            assert_eq!((recovery.corrupt_records, recovery.progress_lost), (0, vec![]), "{run}");
            // Whoever refuses the sixth has taken the fifth.
            let left = bodies(&waiting(&store, "a").await);
            assert_eq!(left, (6..stored).collect::<Vec<_>>(), "{run}");
            assert_eq!(bodies(&waiting(&store, "b").await), (0..20).collect::<Vec<_>>(), "{run}");
            assert_eq!(logged(&store, 0).await, (0..20).collect::<Vec<_>>(), "{run}");
            assert_eq!(states(&store).await, STATES.map(|(key, text)| (key, text.to_owned())));
            assert_eq!((store.epoch(), store.backlog("a").letters), (7, letters), "{run}");
        }
    }
}
