//! A tree that turns out to be damaged while the store runs: it is made anew from what memory knows.
//!
//! Memory has where every row lies, and all that a checkpoint says but the bodies of dead letters and the
//! values of states. These are read from the damaged tree, one by one; a letter that cannot be read is
//! counted and gone, a state as well, and its stream is told to store it anew. The new tree gets its first
//! checkpoint under another name and takes the place of the old one, which is kept aside. A crash before
//! that leaves the damaged one to the start. Knows no commit.

use std::sync::Arc;

use super::aside;
use super::book::Book;
use super::checkpoint::{take_note, write_checkpoint};
use super::damage::{Trouble, contained};
use super::files::{Broken, ReadRecords, Records, TREE, TREE_NEW, open_tree, records, write};
use super::format::{Kind, SEAL_BYTES, key, unseal};
use super::state::State;
use super::states;
use super::unread::Unread;

/// Makes the tree anew and writes a checkpoint into it. Every frame must be durable, or hold no needed row.
/// After an error the damaged tree is still in place.
pub(super) fn remake(book: &mut Book, state: &mut State) -> Result<(), Trouble> {
    let damaged = book.files.tree.take();
    let live = damaged.as_ref().and_then(|tree| contained(|| records(tree)).ok());
    // What a panic left of it in memory may answer nothing more.
    let (disk, cache) = (&*book.files.disk, book.files.cache_bytes);
    let broken = if live.is_none() { Broken::open(disk, cache) } else { None };
    let source = live.or_else(|| broken.as_ref().and_then(|tree| tree.records().ok()));
    let before = state.meta.clone();
    let outcome = replace(book, state, source.as_ref());
    if outcome.is_err() {
        state.meta = before;
    }
    // Closing it would write over pages that are damaged, and may end the process: what it cached is given up.
    std::mem::forget(damaged);
    outcome
}

fn replace(
    book: &mut Book,
    state: &mut State,
    source: Option<&ReadRecords>,
) -> Result<(), Trouble> {
    let disk = Arc::clone(&book.files.disk);
    disk.remove(TREE_NEW).map_err(redb::Error::Io)?;
    take_letters(book, state, source)?;
    let (traffic, cache) = (Arc::clone(&book.files.traffic), book.files.cache_bytes);
    let tree = open_tree(&*disk, &traffic, cache, TREE_NEW, true)?;
    write(&tree, |target| copy_states(book, source, target))?;
    for queue in book.outboxes.values_mut().chain(book.logs.values_mut()) {
        queue.saved = 0;
    }
    book.damage.records += 1;
    book.files.tree = Some(tree);
    write_checkpoint(book, state, false)?;
    if let Some(tree) = book.files.tree.take() {
        contained(|| tree.close().map_err(Trouble::from))?;
    }
    let aside = aside::name_for(&*disk, TREE).map_err(redb::Error::Io)?;
    disk.publish(TREE_NEW, TREE, Some(&aside)).map_err(redb::Error::Io)?;
    book.files.reopen_tree()?;
    // Not before: who waits for a frame is told once it needs none of its memory.
    take_note(book, state.meta.commit);
    tracing::warn!(aside, "the store's checkpoint was damaged and is made anew");
    Ok(())
}

/// The value under `at`, if it passes its check. An error means that it cannot be read now.
fn sealed(
    unread: &mut Unread,
    source: Option<&ReadRecords>,
    at: &[u8],
) -> Result<Option<Vec<u8>>, Trouble> {
    let Some(source) = source else {
        return Ok(None);
    };
    let found = contained(|| Ok(source.get_owned(at)?.map(|found| found.value().to_vec())));
    match found {
        Err(Trouble::Io(reason)) if !unread.notes(&reason) => Err(Trouble::Unread(reason)),
        found => Ok(found.ok().flatten().filter(|value| unseal(at, value).is_some())),
    }
}

/// Takes the bodies of dead letters into memory, as if they had just come.
fn take_letters(
    book: &mut Book,
    state: &mut State,
    source: Option<&ReadRecords>,
) -> Result<(), Trouble> {
    for (sink, letters) in &mut book.letters {
        let mut lost = Vec::new();
        for (position, letter) in letters.iter_mut().filter(|(_, letter)| letter.body.is_none()) {
            let at = key(Kind::Rejected, sink, *position);
            if let Some(value) = sealed(&mut book.unread, source, &at)? {
                letter.body = Some(value[SEAL_BYTES..].to_vec());
                continue;
            }
            book.damage.bad(&at, &[]);
            lost.push(*position);
        }
        for letter in lost.iter().filter_map(|position| letters.remove(position)) {
            if let Some(sink) = state.sinks.get_mut(sink) {
                sink.letters = sink.letters.saturating_sub(1);
                sink.letter_bytes = sink.letter_bytes.saturating_sub(letter.bytes);
            }
        }
    }
    Ok(())
}

/// Copies the states that no frame has.
fn copy_states(
    book: &mut Book,
    source: Option<&ReadRecords>,
    target: &mut Records<'_>,
) -> Result<(), Trouble> {
    for (stream, number) in states::in_tree(book) {
        let at = key(Kind::State, &stream, number);
        let found = sealed(&mut book.unread, source, &at)?;
        if let Some(value) = states::checked(book, &stream, number, found) {
            target.insert(at.as_slice(), value.as_slice())?;
        }
    }
    Ok(())
}
