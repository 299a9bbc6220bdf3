//! Runs one part of the gateway: contains its panics and faults, shows them, starts it again.
//!
//! A part keeps what must survive a restart (its channel, its driver) in `&mut self`; only the
//! future is thrown away. Nothing here knows what a part does.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, seed};

/// What a part is doing, as shown in status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Being started, for the first time or again.
    Starting,
    /// At work.
    Running,
    /// Failed; the next start waits for its backoff.
    Waiting,
    /// Will not work with this configuration.
    Failed,
    /// Ended on request.
    Stopped,
}

impl State {
    /// The word in status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// A part's state, restarts and last error, shared with status.
#[derive(Debug)]
pub struct Health {
    state: AtomicU8,
    restarts: AtomicU64,
    last_error: Mutex<Option<String>>,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            state: AtomicU8::new(State::Starting as u8),
            restarts: AtomicU64::new(0),
            last_error: Mutex::new(None),
        }
    }
}

impl Health {
    /// What the part is doing.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            0 => State::Starting,
            1 => State::Running,
            2 => State::Waiting,
            3 => State::Failed,
            _ => State::Stopped,
        }
    }

    /// Sets what the part is doing.
    pub fn set(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// How often the part was started again.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Remembers an error in words.
    pub fn error(&self, text: impl Into<String>) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.into());
    }

    /// The last error in words; it stays after recovery.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How a part's run ended.
#[derive(Debug)]
pub enum Exit {
    /// It is done: its input ended or it was asked to stop.
    Done,
    /// It failed and may work when started again.
    Failed(String),
    /// It will never work with this configuration.
    Hopeless(String),
}

/// Something that runs under a supervisor.
pub trait Part: Send {
    /// Runs until done or failed. The future may be dropped by a panic inside it; the part itself
    /// is then run again.
    fn run(&mut self) -> impl Future<Output = Exit> + Send;

    /// Passes the time until the next start. A part with an input drains it here, so that a failed
    /// part holds up nobody.
    fn wait(&mut self, pause: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(pause)
    }
}

/// First and longest pause between two starts of a part that failed.
const RESTART_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Runs `part` until it is done, hopeless or `stop` is cancelled while it waits to be started
/// again. Panics are caught, logged and shown.
pub async fn supervise(
    kind: &'static str,
    name: &str,
    health: Arc<Health>,
    stop: CancellationToken,
    mut part: impl Part,
) {
    let mut backoff = Backoff::new(RESTART_PAUSES.0, RESTART_PAUSES.1, seed(name));
    let mut said = Said::default();
    loop {
        let started = tokio::time::Instant::now();
        health.set(State::Running);
        let exit = match AssertUnwindSafe(part.run()).catch_unwind().await {
            Ok(exit) => exit,
            Err(panic) => Exit::Failed(format!("panic: {}", panic_text(panic.as_ref()))),
        };
        match exit {
            Exit::Done => {
                health.set(State::Stopped);
                return;
            }
            Exit::Hopeless(error) => {
                tracing::error!(kind, name, error, "stopped: it cannot work as configured");
                health.error(error);
                health.set(State::Failed);
                return;
            }
            Exit::Failed(error) => {
                if started.elapsed() > RESTART_PAUSES.1 {
                    backoff.reset();
                }
                let pause = backoff.pause();
                if said.is_new(&error) {
                    tracing::error!(kind, name, error, ?pause, "failed; it will be started again");
                } else {
                    tracing::debug!(kind, name, error, ?pause, "failed again");
                }
                health.error(error);
                health.set(State::Waiting);
                tokio::select! {
                    () = part.wait(pause) => {}
                    () = stop.cancelled() => {
                        health.set(State::Stopped);
                        return;
                    }
                }
                health.restarts.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// What was said since things last worked, so that a fault that stays is one line in the log and
/// not one for each attempt.
#[derive(Debug, Default)]
pub struct Said(Vec<String>);

/// Different faults that are remembered; one more begins anew.
const SAID_MAX: usize = 16;

impl Said {
    /// True where `text` was not said yet.
    pub fn is_new(&mut self, text: &str) -> bool {
        let new = !self.0.iter().any(|said| said == text);
        if new {
            if self.0.len() == SAID_MAX {
                self.0.clear();
            }
            self.0.push(text.to_owned());
        }
        new
    }

    /// Forgets, after a success: the same fault is news again.
    pub fn reset(&mut self) {
        self.0.clear();
    }
}

/// The words of a panic.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics, then fails, then is done.
    struct Stumbling(u32);

    impl Part for Stumbling {
        async fn run(&mut self) -> Exit {
            self.0 += 1;
            match self.0 {
                1 => panic!("register {} is on fire", 7),
                2 => Exit::Failed("again".to_owned()),
                _ => Exit::Done,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_panics_is_shown_and_started_again() {
        let health = Arc::new(Health::default());
        let stop = CancellationToken::new();
        supervise("test", "stumbling", health.clone(), stop, Stumbling(0)).await;
        assert_eq!(health.state(), State::Stopped);
        assert_eq!(health.restarts(), 2);
        assert_eq!(health.last_error().as_deref(), Some("again"));
    }

    /// Panics once and tells what it said.
    struct Once(bool);

    impl Part for Once {
        async fn run(&mut self) -> Exit {
            assert!(!std::mem::replace(&mut self.0, false), "register 7 is on fire");
            Exit::Hopeless("no".to_owned())
        }
    }

    /// Never works.
    struct Broken;

    impl Part for Broken {
        async fn run(&mut self) -> Exit {
            Exit::Failed("the port is taken".to_owned())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_waits_to_be_started_again_does_not_hold_up_the_stop() {
        let health = Arc::new(Health::default());
        let stop = CancellationToken::new();
        let part = tokio::spawn({
            let (health, stop) = (health.clone(), stop.clone());
            async move { supervise("test", "broken", health, stop, Broken).await }
        });
        while health.restarts() < 3 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(1), part).await.unwrap().unwrap();
        assert_eq!(health.state(), State::Stopped);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hopeless_part_is_not_started_again() {
        let health = Arc::new(Health::default());
        let stop = CancellationToken::new();
        supervise("test", "once", health.clone(), stop, Once(true)).await;
        assert_eq!(health.state(), State::Failed);
        assert_eq!(health.restarts(), 1);
        assert_eq!(health.last_error().as_deref(), Some("no"));
    }
}
