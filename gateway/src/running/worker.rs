//! One part at work as its owner sees it: what it was made of, what others need of it, how it ends.
//!
//! Knows no kind of part. A task that is dropped is aborted: nothing runs without an owner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::supervisor::{Health, Part, supervise};

/// How long parts that are not wanted any more may take to end: a cycle under way, a delivery.
pub(super) const END_MAX: Duration = Duration::from_secs(10);

/// A part at work, or one that could not be made.
pub(super) struct Worker<W, V> {
    /// What it was made of.
    pub(super) wish: W,
    /// What others need of it.
    pub(super) ends: V,
    pub(super) stop: CancellationToken,
    pub(super) task: Option<AbortOnDropHandle<()>>,
}

pub(super) type Workers<W, V> = BTreeMap<String, Worker<W, V>>;

/// Starts a part under its supervisor.
pub(super) fn run(
    on: &Handle,
    kind: &'static str,
    name: &str,
    health: &Arc<Health>,
    stop: &CancellationToken,
    part: impl Part + 'static,
) -> AbortOnDropHandle<()> {
    let (name, health, stop) = (name.to_owned(), health.clone(), stop.clone());
    let task = on.spawn(async move { supervise(kind, &name, health, stop, part).await });
    AbortOnDropHandle::new(task)
}

/// Whether all parts are there as they are wanted.
pub(super) fn same<W: PartialEq, V>(have: &Workers<W, V>, wanted: &BTreeMap<String, W>) -> bool {
    have.len() == wanted.len()
        && wanted.iter().all(|(name, wish)| have.get(name).is_some_and(|w| w.wish == *wish))
}

/// Takes out the parts that are not wanted as they are.
pub(super) fn differing<W: PartialEq, V>(
    have: &mut Workers<W, V>,
    wanted: &BTreeMap<String, W>,
) -> Workers<W, V> {
    have.extract_if(.., |name, worker| wanted.get(name) != Some(&worker.wish)).collect()
}

/// The wish of a part that is not there.
pub(super) fn missing<W: Clone, V>(
    have: &Workers<W, V>,
    wanted: &BTreeMap<String, W>,
    name: &str,
) -> Option<W> {
    wanted.get(name).filter(|_| !have.contains_key(name)).cloned()
}

pub(super) fn add<W, V>(
    kind: &str,
    workers: &mut Workers<W, V>,
    name: &str,
    worker: Worker<W, V>,
    started: &mut Vec<String>,
) {
    workers.insert(name.to_owned(), worker);
    started.push(format!("{kind} {name}"));
}

/// Asks parts to end and lets go what keeps others at work.
pub(super) fn stop<W, V>(workers: Workers<W, V>) -> Vec<AbortOnDropHandle<()>> {
    for worker in workers.values() {
        worker.stop.cancel();
    }
    workers.into_values().filter_map(|worker| worker.task).collect()
}

/// Waits for the end of all, at most until `deadline`; those that have ended are taken out.
pub(super) async fn ended(tasks: &mut Vec<AbortOnDropHandle<()>>, deadline: Instant) -> bool {
    while let Some(task) = tasks.last_mut() {
        match tokio::time::timeout_at(deadline, task).await {
            Ok(result) => {
                if let Err(error) = result
                    && error.is_panic()
                {
                    tracing::error!(%error, "a supervisor panicked");
                }
                tasks.pop();
            }
            Err(_) => return false,
        }
    }
    true
}

/// Ends parts that are not wanted any more; those that do not end in time are cut off.
pub(super) async fn end<W, V>(kind: &str, workers: Workers<W, V>, stopped: &mut Vec<String>) {
    stopped.extend(workers.keys().map(|name| format!("{kind} {name}")));
    let mut tasks = stop(workers);
    if !ended(&mut tasks, Instant::now() + END_MAX).await {
        tracing::warn!(kind, parts = tasks.len(), "cut off: they did not end in time");
        tasks.iter().for_each(AbortOnDropHandle::abort);
        ended(&mut tasks, Instant::now() + END_MAX).await;
    }
}
