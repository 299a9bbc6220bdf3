//! Judges a configuration that has just been started: does it work as well as the one before?
//!
//! A part that was changed must not be hopeless. A stream must have taken up its state. A part
//! that was connected before must be connected again: a change that cuts the link to the plant or
//! to the far side is undone while somebody can still be told. A part that had no connection
//! before owes none: its far side may be away. Knows the parts' states and nothing of how they
//! came about.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_web_ui::PartState;
use tokio::time::Instant;

use crate::running::Changes;
use crate::status::{Views, part_state};
use crate::supervisor::{Health, State};

/// Time for changed parts to show that they work.
pub const JUDGE_MAX: Duration = Duration::from_secs(30);

/// Time after which a part that owes no connection may still be trying.
const TRYING_MAX: Duration = Duration::from_secs(5);

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a part shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// It works.
    Up,
    /// It tries, or its far side is away.
    Trying(PartState),
    /// It was thrown out of its run and waits to be started again.
    Stumbled,
    /// It will not work.
    Hopeless,
}

/// The connected parts, such as `device press`, to be compared with later.
pub fn connected(views: &Views) -> BTreeSet<String> {
    let up = parts(views).into_iter().filter(|(_, shown, _)| *shown == Shown::Up);
    up.map(|(name, ..)| name).collect()
}

/// Looks at the parts that `changes` started until all of them work or it is clear that one does
/// not; `before` had a connection before the change. An error holds the reasons.
pub async fn judge(
    views: impl Fn() -> std::sync::Arc<Views>,
    changes: &Changes,
    before: &BTreeSet<String>,
) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let now = start.elapsed();
        let (mut bad, mut open) = (Vec::new(), Vec::new());
        for (name, shown, error) in parts(&views()) {
            if !changes.started.contains(&name) {
                continue;
            }
            let words = |what: &str| match &error {
                Some(error) => format!("{name} {what}: {error}"),
                None => format!("{name} {what}"),
            };
            match shown {
                Shown::Hopeless => bad.push(words("cannot work")),
                Shown::Stumbled => open.push(words("fails again and again")),
                Shown::Trying(_) if before.contains(&name) => {
                    open.push(words("had a connection and has none now"));
                }
                Shown::Trying(_) if name.starts_with("stream ") => open.push(words("does not run")),
                Shown::Trying(PartState::Connecting) if now < TRYING_MAX => {
                    open.push(words("is trying"));
                }
                Shown::Up | Shown::Trying(_) => {}
            }
        }
        if !bad.is_empty() {
            return Err(bad.join("; "));
        }
        if open.is_empty() {
            return Ok(());
        }
        if now >= JUDGE_MAX {
            return Err(open.join("; "));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// All parts with what they show and their last error.
fn parts(views: &Views) -> Vec<(String, Shown, Option<String>)> {
    let mut parts = Vec::new();
    for device in &views.devices {
        let state = part_state(&device.health, device.stats.as_deref());
        let error = device.stats.as_ref().and_then(|s| s.last_error());
        parts.push(part("device", &device.name, &device.health, state, error));
    }
    for link in &views.links {
        let state = part_state(&link.health, Some(&link.stats));
        parts.push(part("link", &link.name, &link.health, state, link.stats.last_error()));
    }
    for sink in &views.sinks {
        let state = part_state(&sink.health, sink.stats.as_deref());
        let error = sink.stats.as_ref().and_then(|s| s.last_error());
        parts.push(part("sink", &sink.name, &sink.health, state, error));
    }
    for stream in &views.streams {
        // It shows counts from when it has taken up its state.
        let restored = stream.stopped || stream.engine.borrow().is_some();
        let state = if restored { PartState::Up } else { PartState::Connecting };
        parts.push(part("stream", &stream.name, &stream.health, state, None));
    }
    parts
}

fn part(
    kind: &str,
    name: &str,
    health: &Health,
    state: PartState,
    error: Option<String>,
) -> (String, Shown, Option<String>) {
    let shown = match (health.state(), state) {
        (State::Failed, _) => Shown::Hopeless,
        (State::Waiting, _) => Shown::Stumbled,
        (_, PartState::Up) => Shown::Up,
        (_, state) => Shown::Trying(state),
    };
    (format!("{kind} {name}"), shown, error.or_else(|| health.last_error()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tidegate_drivers::stats::{LinkState, Stats};

    use super::*;
    use crate::status::SinkView;

    fn sink(name: &str) -> (SinkView, Arc<Health>, Arc<Stats>) {
        let (health, stats) = (Arc::new(Health::default()), Arc::new(Stats::default()));
        health.set(State::Running);
        let view = SinkView {
            name: name.to_owned(),
            driver: "mqtt",
            bytes_max: 1,
            health: health.clone(),
            stats: Some(stats.clone()),
            counts: Arc::default(),
            asked: tokio::sync::watch::Sender::default(),
            pulse: Arc::default(),
        };
        (view, health, stats)
    }

    fn changes(names: &[&str]) -> Changes {
        let started = names.iter().map(|name| (*name).to_owned()).collect();
        Changes { started, ..Changes::default() }
    }

    async fn verdict(view: SinkView, changes: &Changes, before: &[&str]) -> Result<(), String> {
        let views = Mutex::new(Arc::new(Views { sinks: vec![view], ..Views::default() }));
        let before = before.iter().map(|name| (*name).to_owned()).collect();
        judge(|| views.lock().unwrap().clone(), changes, &before).await
    }

    #[tokio::test(start_paused = true)]
    async fn f29_a_part_that_had_a_connection_must_have_one_again() {
        let (view, _, stats) = sink("cloud");
        stats.set_state(LinkState::Down);
        stats.set_error(Some("refused".to_owned()));
        let start = Instant::now();
        let judged = verdict(view.clone(), &changes(&["sink cloud"]), &["sink cloud"]).await;
        let reason = "sink cloud had a connection and has none now: refused";
        assert_eq!(judged, Err(reason.to_owned()));
        assert!(start.elapsed() >= JUDGE_MAX && start.elapsed() < JUDGE_MAX * 2);
        // Its far side was away before, too; or it was not touched.
        assert_eq!(verdict(view.clone(), &changes(&["sink cloud"]), &[]).await, Ok(()));
        assert_eq!(verdict(view.clone(), &changes(&[]), &["sink cloud"]).await, Ok(()));
        stats.set_state(LinkState::Up);
        let start = Instant::now();
        assert_eq!(verdict(view, &changes(&["sink cloud"]), &["sink cloud"]).await, Ok(()));
        assert_eq!(start.elapsed(), Duration::ZERO, "nobody waits for what works");
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_is_hopeless_is_told_at_once_and_one_that_stumbles_at_the_end() {
        let (view, health, _) = sink("cloud");
        health.set(State::Failed);
        health.error("no such folder");
        let start = Instant::now();
        let judged = verdict(view.clone(), &changes(&["sink cloud"]), &[]).await;
        assert_eq!(judged, Err("sink cloud cannot work: no such folder".to_owned()));
        assert_eq!(start.elapsed(), Duration::ZERO);
        health.set(State::Waiting);
        let judged = verdict(view, &changes(&["sink cloud"]), &[]).await;
        assert_eq!(judged, Err("sink cloud fails again and again: no such folder".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_part_is_given_a_moment_to_connect() {
        let (view, _, _) = sink("new");
        let start = Instant::now();
        assert_eq!(verdict(view, &changes(&["sink new"]), &[]).await, Ok(()));
        assert!(start.elapsed() >= TRYING_MAX && start.elapsed() < TRYING_MAX * 2);
    }
}
