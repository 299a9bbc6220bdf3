//! A start whose store cannot be opened: it is shown and tried again, never a crash loop.
//!
//! Nothing is read meanwhile, for nothing could be kept, and ids must not be given away that a
//! store may hold already. The status page tells what stands in the way; a configuration that is
//! written anew, or SIGHUP, is read at once. A device that does not answer is given [`PATIENCE`]; then
//! the store opens with what can be read of it. Only a store that another process has ends the
//! process: its owner is at work.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_config::ProcessEnvironment;
use tidegate_engine::store::StoreError;
use tidegate_web_ui as web;
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::check::fail;
use super::run::Quit;
use super::{FAILURE, TEMPORARY};
use crate::apply::{Boot, boot};
use crate::backoff::{Backoff, seed};
use crate::build::Surroundings;
use crate::control::Http;
use crate::notify::Notify;
use crate::running::{Running, StartError, start_patiently};
use crate::status::rfc3339;
use crate::supervisor::{Health, supervise};
use crate::watch::FileWatch;

/// Shortest and longest pause between two attempts to open a store.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// After that the store does without what its device does not answer for: one sector that stays bad must not
/// keep the gateway from its work for ever, and a device that resets itself is back by then.
const PATIENCE: Duration = Duration::from_mins(1);

/// Starts the gateway of `boot`, which was read at `path`; waits where its store cannot be opened.
/// Gives what it was started with, or the exit code of a process that is to end.
pub(super) async fn started(
    path: &Path,
    mut boot: Boot,
    around: &Surroundings,
    notify: &Notify,
    quit: &mut Quit,
    hangup: &mut Signal,
) -> Result<(Running, Boot), u8> {
    let mut waiting: Option<Waiting> = None;
    let mut backoff = Backoff::new(PAUSES.0, PAUSES.1, seed("store"));
    let mut files = FileWatch::new(path);
    // Since when the device has given no answer.
    let mut unanswered: Option<Instant> = None;
    loop {
        let patiently = unanswered.is_none_or(|since| since.elapsed() < PATIENCE);
        let error = match start_patiently(boot.document.clone(), around.clone(), patiently) {
            Ok(running) => {
                if let Some(waiting) = waiting {
                    tracing::info!("the store is open");
                    notify.say("STATUS=");
                    waiting.end().await;
                }
                return Ok((running, boot));
            }
            Err(StartError::Store(error @ StoreError::Locked { .. })) => {
                fail(format_args!("store: {error}"));
                return Err(TEMPORARY);
            }
            Err(StartError::Store(error)) => {
                let since = unanswered.unwrap_or_else(Instant::now);
                unanswered = error.is_unanswered().then_some(since);
                let folder = Path::new(&boot.document.store.path);
                in_the_way(folder).map_or_else(|| error.to_string(), |file| no_folder(folder, file))
            }
            Err(error) => {
                fail(error);
                return Err(FAILURE);
            }
        };
        let pause = backoff.pause();
        if let Some(waiting) = &waiting {
            waiting.show(&error);
        } else {
            tracing::error!(error, "the store cannot be opened; it is tried again");
            waiting = Some(Waiting::open(&boot, around, &error));
        }
        // Ready to be looked at: systemd would end a start that takes long, again and again.
        notify.say(&format!("READY=1\nSTATUS=the store cannot be opened: {error}"));
        let changed = tokio::select! {
            () = quit.wait() => {
                if let Some(waiting) = waiting {
                    waiting.end().await;
                }
                return Err(0);
            }
            never = alive(notify) => match never {},
            () = tokio::time::sleep(pause) => false,
            Some(()) = hangup.recv() => true,
            () = files.changed() => true,
        };
        if changed {
            backoff.reset();
            unanswered = None;
            boot = reread(path, boot, &mut waiting).await;
        }
    }
}

/// The file that stands where the store's folder, or a folder on the way to it, should be.
fn in_the_way(folder: &Path) -> Option<&Path> {
    let there = folder.ancestors().find(|path| path.metadata().is_ok());
    there.filter(|path| !path.is_dir())
}

fn no_folder(folder: &Path, file: &Path) -> String {
    format!(
        "`store.path` is {}, and {} is a file, not a folder: name another folder there, or move the file \
         away",
        folder.display(),
        file.display()
    )
}

/// The configuration as it is now, or the one before where it is refused.
async fn reread(path: &Path, before: Boot, waiting: &mut Option<Waiting>) -> Boot {
    match boot(path, &ProcessEnvironment) {
        Ok(boot) => {
            tracing::info!("the configuration was read anew");
            // Its page may be elsewhere.
            if let Some(waiting) = waiting.take() {
                waiting.end().await;
            }
            boot
        }
        Err(problems) => {
            tracing::error!(problems = problems.human(), "the configuration is refused");
            before
        }
    }
}

/// Feeds the service manager's watchdog: this process does what it can.
async fn alive(notify: &Notify) -> std::convert::Infallible {
    let Some(patience) = notify.watchdog() else {
        return std::future::pending().await;
    };
    loop {
        notify.say("WATCHDOG=1");
        tokio::time::sleep(patience / 4).await;
    }
}

/// The status page of a gateway that waits for its store.
struct Waiting {
    console: Arc<Page>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Waiting {
    fn open(boot: &Boot, around: &Surroundings, error: &str) -> Self {
        let console = Arc::new(Page {
            name: boot.document.gateway.name.to_string(),
            started: rfc3339(around.clock.now()),
            started_at: Instant::now(),
            config: boot.view.clone(),
            error: Mutex::new(error.to_owned()),
            entrance: Arc::new(web::Entrance::new("web")),
        });
        let stop = CancellationToken::new();
        let page = Http {
            listen: boot.document.web.listen.clone(),
            console: console.clone(),
            entrance: console.entrance.clone(),
            stop: stop.clone(),
            bound: watch::Sender::new(None),
        };
        let mut tasks = JoinSet::new();
        let ended = stop.clone();
        tasks.spawn(async move {
            supervise("web", "http", Arc::new(Health::default()), ended, page).await;
        });
        Self { console, stop, tasks }
    }

    fn show(&self, error: &str) {
        let mut shown = self.console.error.lock().unwrap_or_else(PoisonError::into_inner);
        if *shown != error {
            tracing::error!(error, "the store cannot be opened; it is tried again");
            error.clone_into(&mut shown);
        }
    }

    async fn end(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// What is shown of a gateway that waits for its store.
struct Page {
    name: String,
    started: String,
    started_at: Instant,
    config: crate::status::ConfigView,
    error: Mutex<String>,
    entrance: Arc<web::Entrance>,
}

impl Page {
    fn reason(&self) -> web::Reason {
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        web::Reason {
            part: "store".to_owned(),
            reason: format!("it cannot be opened, so that nothing is read: {error}"),
        }
    }
}

impl web::Console for Page {
    fn status(&self) -> web::Status {
        web::Status {
            gateway: web::GatewayStatus {
                name: self.name.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                started: self.started.clone(),
                uptime_s: self.started_at.elapsed().as_secs_f64(),
                ..web::GatewayStatus::default()
            },
            config: self.config.config.clone(),
            config_problems: self.config.problems.clone(),
            alarms: std::iter::once(self.reason()).chain(self.entrance.alarm()).collect(),
            ..web::Status::default()
        }
    }

    fn ready(&self) -> web::Readiness {
        web::Readiness { reasons: vec![self.reason()] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_place_of_a_folder_is_found() {
        let dir = std::env::temp_dir().join(format!("tidegate-way-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("file");
        drop(std::fs::File::create(&file).unwrap());
        assert_eq!(in_the_way(&file), Some(&*file));
        assert_eq!(in_the_way(&file.join("sub/store")), Some(&*file));
        assert_eq!(in_the_way(&dir), None);
        assert_eq!(in_the_way(&dir.join("new/store")), None, "it is made");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
