//! A new configuration while the gateway runs: check, change what differs, judge, keep or undo.
//!
//! It comes by SIGHUP, by a file that was written anew, or by request over the control socket. One
//! task does one after the other. The order makes a crash harmless: a requested text is written
//! beside its place before anything is changed and takes its place only when it was found to work,
//! so that the next start finds the old one or one that works, never a third. A configuration that
//! does not work is undone by itself, and its reason is shown.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_config::{
    Document, Environment, Problems, Severity, SourceFile, load_and_check, read_sources, store_path,
};
use tidegate_engine::store::StoreError;
use tidegate_web_ui::{
    Applied, ApplyOutcome, ConfigChange, ConfigOrigin, ConfigProblem, Declined, StreamVerb,
};
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot};

use crate::gate;
use crate::keep::{Staged, keep_last_good, last_good, revision};
use crate::planner::EnginePlanner;
use crate::running::{Changes, Running};
use crate::status::{ConfigView, problems, rfc3339};
use crate::wanted::needs_restart;
use crate::watch::FileWatch;

/// Requests that may wait.
pub const REQUESTS_MAX: usize = 4;

/// Somebody asks for another configuration.
pub struct Request {
    /// What problems call the text.
    pub name: String,
    /// The configuration.
    pub text: String,
    /// Told what became of it.
    pub answer: oneshot::Sender<Applied>,
}

/// Somebody asks for a stream to stop or to start.
pub struct StreamRequest {
    /// The stream.
    pub name: String,
    /// What is to be done.
    pub verb: StreamVerb,
    /// Told what became of it, in words.
    pub answer: oneshot::Sender<Result<String, Declined>>,
}

/// What may be asked of a running gateway; one after the other.
pub enum Ask {
    /// Another configuration.
    Apply(Request),
    /// A stream.
    Stream(StreamRequest),
}

/// What asked for a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Signal,
    File,
    Request,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Signal => "signal",
            Self::File => "file",
            Self::Request => "request",
        }
    }
}

/// A configuration that passed `check`, and where it came from.
pub struct Boot {
    /// The configuration.
    pub document: Document,
    /// Its texts.
    pub sources: Vec<SourceFile>,
    /// What status shows of it.
    pub view: ConfigView,
    /// For standard error: warnings, or what is wrong with the file.
    pub told: Problems,
}

/// Reads the configuration at `path`; where it is refused, the last one that worked takes its
/// place. An error, with all problems of the file, means that there is none.
pub fn boot(path: &Path, environment: &dyn Environment) -> Result<Boot, Problems> {
    let (refused, sources) = match read_sources(path) {
        Ok(sources) => match check(path, &sources, environment, &EnginePlanner::default()) {
            Ok((document, warnings)) => {
                let view = view(ConfigOrigin::File, &sources, problems(&warnings));
                return Ok(Boot { document, sources, view, told: warnings });
            }
            Err(refused) => (refused, sources),
        },
        Err(refused) => (refused, Vec::new()),
    };
    let from_systemd = environment.var("STATE_DIRECTORY");
    let folders = [store_path(&sources, environment), from_systemd, Some(STORE.to_owned())];
    for folder in folders.into_iter().flatten() {
        let Some(kept) = last_good(Path::new(&folder), path) else {
            continue;
        };
        if let Ok((document, _)) = check(path, &kept, environment, &EnginePlanner::default()) {
            let mut view = view(ConfigOrigin::LastGood, &kept, problems(&refused));
            view.config.file_revision = Some(revision(&sources));
            return Ok(Boot { document, sources: kept, view, told: refused });
        }
    }
    Err(refused)
}

/// Where a store lies that nobody named.
const STORE: &str = "/var/lib/tidegate";

/// Checks a configuration that lies, or will lie, at `path`.
fn check(
    path: &Path,
    sources: &[SourceFile],
    environment: &dyn Environment,
    planner: &EnginePlanner,
) -> Result<(Document, Problems), Problems> {
    let (loaded, warnings) = load_and_check(sources, environment, planner)?;
    let mut document = loaded.document;
    document.anchor(&folder_of(path));
    Ok((document, warnings))
}

/// The folder from which a configuration's relative paths count: its own, or that of its file.
pub(crate) fn folder_of(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if path.is_dir() {
        return path;
    }
    path.parent().map_or_else(|| PathBuf::from("."), Path::to_owned)
}

fn view(origin: ConfigOrigin, sources: &[SourceFile], problems: Vec<ConfigProblem>) -> ConfigView {
    let mut view = ConfigView { problems, ..ConfigView::default() };
    view.config.origin = origin;
    view.config.revision = revision(sources);
    view
}

/// Owns the running gateway and changes it when asked.
pub struct Steward {
    /// The gateway.
    running: Running,
    /// What `run` was given: a file or a folder.
    path: PathBuf,
    environment: Arc<dyn Environment + Send + Sync>,
    sources: Vec<SourceFile>,
    files: FileWatch,
    hangup: Signal,
    requests: mpsc::Receiver<Ask>,
}

impl Steward {
    /// Takes over a gateway that was started with `boot` from the configuration at `path`.
    pub fn new(
        running: Running,
        path: &Path,
        sources: Vec<SourceFile>,
        environment: Arc<dyn Environment + Send + Sync>,
        hangup: Signal,
        requests: mpsc::Receiver<Ask>,
    ) -> Self {
        let files = FileWatch::new(path);
        let path = path.to_owned();
        Self { running, path, environment, sources, files, hangup, requests }
    }

    /// Changes the gateway whenever it is asked to, for ever. May be dropped at any time: parts
    /// that were on their way out or in are then ended by [`Steward::shutdown`].
    pub async fn run(&mut self) -> Infallible {
        self.confirm().await;
        loop {
            tokio::select! {
                Some(ask) = self.requests.recv() => match ask {
                    Ask::Apply(request) => self.request(request).await,
                    Ask::Stream(StreamRequest { name, verb, answer }) => {
                        let set = self.running.set_stream(&name, verb).await;
                        // Who asked may have gone; what was done stands in status.
                        drop(answer.send(set));
                    }
                },
                Some(()) = self.hangup.recv() => self.reread(By::Signal).await,
                () = self.files.changed() => self.reread(By::File).await,
                () = tokio::time::sleep(BOUNDS_EVERY), if self.running.bounds_are_loose() => {
                    self.running.hold_bounds().await;
                }
            }
        }
    }

    /// Ends the gateway in order, within its own grace.
    pub async fn shutdown(self) -> Result<(), StoreError> {
        let grace = self.running.document().gateway.shutdown_grace.duration();
        self.running.shutdown(grace).await
    }

    /// Judges the configuration that the gateway was started with, and keeps it if it works.
    async fn confirm(&mut self) {
        let status = &self.running.status;
        let started = status.views().names();
        let all = Changes { started, ..Changes::default() };
        match gate::judge(|| status.views(), &all, &std::collections::BTreeSet::new()).await {
            Ok(()) => self.keep().await,
            Err(reason) => tracing::warn!(reason, "not kept as a configuration that works"),
        }
    }

    async fn request(&mut self, Request { name, text, answer }: Request) {
        let sources = vec![SourceFile { name, text }];
        let applied = if self.path.is_dir() {
            let detail = format!(
                "the configuration is the folder {}: change its files, and the gateway follows",
                self.path.display()
            );
            outcome(ApplyOutcome::NotNow, detail)
        } else {
            let applied = self.take(sources.clone(), Some(self.path.clone())).await;
            // From now on it is the text of that file.
            if is_taken(&applied) {
                self.sources[0].name = self.path.display().to_string();
            }
            applied
        };
        self.show(By::Request, &sources, &applied);
        // Who asked may have gone; what was done stands in status.
        drop(answer.send(applied));
    }

    /// Takes the files as they are now.
    async fn reread(&mut self, by: By) {
        self.files.settle();
        let path = self.path.clone();
        let (sources, applied) = match blocking(move || read_sources(&path)).await {
            Ok(Ok(sources)) => {
                let applied = self.take(sources.clone(), None).await;
                (sources, applied)
            }
            Ok(Err(problems)) => (Vec::new(), refused(&problems)),
            Err(error) => (Vec::new(), outcome(ApplyOutcome::NotNow, error)),
        };
        self.show(by, &sources, &applied);
    }

    /// Runs a configuration in place of the one that runs, and keeps it at `place` if it works.
    async fn take(&mut self, sources: Vec<SourceFile>, place: Option<PathBuf>) -> Applied {
        let (texts, environment) = (sources.clone(), self.environment.clone());
        let path = self.path.clone();
        let planner = EnginePlanner::for_a_change();
        let checked = blocking(move || check(&path, &texts, &*environment, &planner)).await;
        let (document, warnings) = match checked {
            Ok(Ok(checked)) => checked,
            Ok(Err(problems)) => return refused(&problems),
            Err(error) => return outcome(ApplyOutcome::NotNow, error),
        };
        let fixed = needs_restart(self.running.document(), &document);
        if !fixed.is_empty() {
            let mut detail = format!("a change of {} needs a restart", fixed.join(" and "));
            if document.store.path != self.running.document().store.path {
                detail.push_str(
                    "; what the store holds stays in its folder: move that to the new place while the gateway is \
                     stopped, or the new store begins empty",
                );
            }
            return outcome(ApplyOutcome::NotNow, detail);
        }
        let staged = match stage(&sources, place).await {
            Ok(staged) => staged,
            Err(detail) => return outcome(ApplyOutcome::NotNow, detail),
        };
        let mut applied = if self.running.is_equal(&document) {
            match publish(staged).await {
                Ok(()) => outcome(ApplyOutcome::Unchanged, "it is what runs already".to_owned()),
                Err(detail) => outcome(ApplyOutcome::NotNow, detail),
            }
        } else {
            self.exchange(document, staged).await
        };
        if is_taken(&applied) {
            self.sources = sources;
            self.files.settle();
            self.keep().await;
        }
        applied.problems = problems(&warnings);
        applied.text = warnings.human();
        applied
    }

    /// Changes the parts, judges them, and puts the text in its place; undone where that fails.
    async fn exchange(&mut self, document: Document, staged: Option<Staged>) -> Applied {
        let old = self.running.document().clone();
        let status = self.running.status.clone();
        let before = gate::connected(&status.views());
        let changes = match self.running.change(document).await {
            Ok(changes) => changes,
            Err(error) => return outcome(ApplyOutcome::RolledBack, error.to_string()),
        };
        tracing::info!(stopped = ?changes.stopped, started = ?changes.started, "changed");
        let tried = match gate::judge(|| status.views(), &changes, &before).await {
            Ok(()) => publish(staged).await,
            Err(reason) => Err(reason),
        };
        let Err(mut reason) = tried else {
            self.running.hold_bounds().await;
            let detail = format!(
                "{} parts stopped, {} started",
                changes.stopped.len(),
                changes.started.len()
            );
            let Changes { stopped, started } = changes;
            return Applied { stopped, started, ..outcome(ApplyOutcome::Applied, detail) };
        };
        tracing::error!(reason, "the new configuration does not work; back to the old one");
        match self.running.change(old).await {
            Ok(_) => self.running.hold_bounds().await,
            Err(error) => reason = format!("{reason}; and it could not be undone: {error}"),
        }
        outcome(ApplyOutcome::RolledBack, reason)
    }

    /// Keeps the texts that run, for a start with a file that is refused.
    async fn keep(&self) {
        let store = PathBuf::from(&self.running.document().store.path);
        let (path, sources) = (self.path.clone(), self.sources.clone());
        let kept = blocking(move || keep_last_good(&store, &path, &sources)).await;
        let error = match kept {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error,
        };
        tracing::warn!(
            error,
            "the configuration works, and could not be kept as the last good one"
        );
    }

    /// Shows what became of an attempt.
    fn show(&self, by: By, sources: &[SourceFile], applied: &Applied) {
        let status = &self.running.status;
        let mut view = (*status.config()).clone();
        if is_taken(applied) {
            view.problems.clone_from(&applied.problems);
            view.config.origin = ConfigOrigin::File;
            view.config.revision = revision(&self.sources);
            view.config.file_revision = None;
        } else if by != By::Request {
            view.problems.clone_from(&applied.problems);
            if applied.outcome != ApplyOutcome::Refused {
                view.problems.push(not_taken(applied));
            }
            view.config.file_revision = Some(revision(sources));
        }
        let (by, detail) = (by.name(), applied.detail.clone());
        if is_taken(applied) {
            tracing::info!(by, detail, outcome = ?applied.outcome, "configuration");
        } else {
            let problems = applied.text.as_str();
            tracing::error!(by, detail, outcome = ?applied.outcome, problems, "configuration");
        }
        let at = rfc3339(status.clock.now());
        view.config.last_change = Some(ConfigChange { at, by, outcome: applied.outcome, detail });
        status.show_config(view);
    }
}

fn is_taken(applied: &Applied) -> bool {
    matches!(applied.outcome, ApplyOutcome::Applied | ApplyOutcome::Unchanged)
}

fn outcome(outcome: ApplyOutcome, detail: String) -> Applied {
    Applied { outcome, detail, ..Applied::default() }
}

fn refused(refused: &Problems) -> Applied {
    let errors = refused.iter().filter(|p| p.severity == Severity::Error).count();
    Applied {
        problems: problems(refused),
        text: refused.human(),
        ..outcome(ApplyOutcome::Refused, format!("it has {errors} error(s)"))
    }
}

/// A file that is well and was not taken, as a problem of the configuration.
fn not_taken(applied: &Applied) -> ConfigProblem {
    ConfigProblem {
        code: "not_applied".to_owned(),
        severity: "error".to_owned(),
        message: applied.detail.clone(),
        ..ConfigProblem::default()
    }
}

/// Writes a text beside its place, so that a place that cannot be written is found first.
async fn stage(sources: &[SourceFile], place: Option<PathBuf>) -> Result<Option<Staged>, String> {
    let (Some(place), [source]) = (place, sources) else {
        return Ok(None);
    };
    let text = source.text.clone();
    blocking(move || {
        Staged::write(&place, text.as_bytes(), FILE_MODE)
            .map_err(|error| format!("{} cannot be written: {error}", place.display()))
    })
    .await?
    .map(Some)
}

/// How soon bounds are held that the store could not take at once.
const BOUNDS_EVERY: Duration = Duration::from_secs(10);

/// Mode of a configuration file that is new.
const FILE_MODE: u32 = 0o640;

async fn publish(staged: Option<Staged>) -> Result<(), String> {
    let Some(staged) = staged else {
        return Ok(());
    };
    blocking(move || staged.publish()).await?.map_err(|e| format!("it could not be kept: {e}"))
}

/// Does what blocks on the disk or thinks for long where no driver waits for it.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
