//! The thread that writes a frame to the ring and syncs it, while the store's own makes the next one.
//!
//! One frame at a time, and it says how that ended before it takes another. It decides nothing: where
//! a frame goes, what follows from an error and who is told is for the committer. Knows bytes, and no
//! record.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use redb::StorageBackend;

use super::damage::{Trouble, contained};
use super::inbox::Shared;

/// Bytes of its stack: it calls the system and little else.
const STACK_BYTES: usize = 256 << 10;

/// A frame and its place.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) ring: Arc<dyn StorageBackend>,
    pub(super) offset: u64,
    pub(super) frame: Arc<Vec<u8>>,
}

/// The thread. Dropped, it is waited for: behind that nothing is written any more.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread, which tells `shared` how each write ended.
    pub(super) fn start(shared: Arc<Shared>) -> io::Result<Writer> {
        let (jobs, coming) = sync_channel(1);
        let thread = Builder::new()
            .name("store-write".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || run(&coming, &shared))?;
        Ok(Writer { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Hands a frame over; `false` when the thread takes none, and then nothing was written.
    pub(super) fn hand_over(&self, job: Job) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("the thread that writes frames ended with a panic");
        }
    }
}

fn run(jobs: &Receiver<Job>, shared: &Shared) {
    while let Ok(job) = jobs.recv() {
        let outcome = contained(|| write(&job));
        // Let go of first, so that who is told has the only share of the frame's memory.
        drop(job);
        shared.written(outcome);
    }
}

fn write(job: &Job) -> Result<(), Trouble> {
    let io = |error| Trouble::from(redb::Error::Io(error));
    job.ring.write(job.offset, &job.frame).map_err(io)?;
    job.ring.sync_data().map_err(io)
}
