//! The way from a command to the store: through the control socket of a gateway that runs on it, or
//! by opening it while nobody does.
//!
//! Both are the same trait, so that a command does not know which it is. A store that another
//! process has, and whose socket does not answer, is left alone.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tidegate_engine::store::{Layout, Store, StoreError, StoreOptions};
use tidegate_web_ui::{
    Exportable, Exported, Keeper, Kept, Letters, NEXT_HEADER, Records, Refusal, RejectedRecord,
    ReplayRate, StoreCompacted, StoreContents, StoreVerified,
};

use super::check::fail;
use super::{FAILURE, TEMPORARY};
use crate::cli::print::say;
use crate::clock::{Clock, SystemClock};
use crate::control::{Reply, ask};
use crate::keeper::{StoreKeeper, everything};

/// How long an answer may take: longer than the gateway gives a change of the store.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How long reading or writing the whole store may take.
const MAINTENANCE_MAX: Duration = Duration::from_mins(10);
/// How often a store that nobody runs on tries again what it could not do.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// What is to be done to a store that nobody runs on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Intent {
    /// Nothing: the folder stays as it is, also where it was copied there or needs repair.
    Look,
    Change,
}

/// Looks at the store in `folder` and gives the exit code. Nothing in the folder changes.
pub(super) fn looking(folder: &Path, work: impl AsyncFnOnce(&dyn Keeper) -> u8) -> u8 {
    run(folder, Intent::Look, work)
}

/// Does something with the store in `folder` and gives the exit code.
pub(super) fn with(folder: &Path, work: impl AsyncFnOnce(&dyn Keeper) -> u8) -> u8 {
    run(folder, Intent::Change, work)
}

fn run(folder: &Path, intent: Intent, work: impl AsyncFnOnce(&dyn Keeper) -> u8) -> u8 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(error),
    };
    let socket = folder.join("control.sock");
    match UnixStream::connect(&socket) {
        Ok(_) => runtime.block_on(work(&SocketKeeper { socket })),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            fail(format_args!("{}: {error}; are you the gateway's user?", socket.display()))
        }
        // Nobody listens there.
        Err(_) => runtime.block_on(alone(folder, intent, work)),
    }
}

/// The same with a store that nobody runs on.
async fn alone(folder: &Path, intent: Intent, work: impl AsyncFnOnce(&dyn Keeper) -> u8) -> u8 {
    if !is_store(folder) {
        let error = format_args!(
            "there is no store in {}\n  hint: is this the folder of `store.path`? See --store",
            folder.display()
        );
        return fail(error);
    }
    let (store, recovery) = match open(folder, intent).await {
        Ok(opened) => opened,
        Err(error @ StoreError::Locked { .. }) => {
            let hint = "and it does not answer on its control socket; try again, or stop it";
            fail(format_args!("{error}, {hint}"));
            return TEMPORARY;
        }
        Err(error) => return fail(error),
    };
    let keeper = StoreKeeper::alone(store.clone(), recovery);
    let code = tokio::select! {
        code = work(&keeper) => code,
        never = flushes(&store) => match never {},
    };
    drop(keeper);
    let closed = store.close().await;
    if intent == Intent::Change {
        give_back(folder);
    }
    match closed {
        Ok(()) => code,
        Err(error) => fail(format_args!("store: {error}")).max(code),
    }
}

/// Has the store try again, now and then, what it could not do at once.
async fn flushes(store: &Store) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(FLUSH_EVERY).await;
        store.flush();
        store.try_again();
    }
}

/// Opens a store so that its records get a new epoch, for the reason that `why` puts into the options;
/// gives the exit code.
pub(super) fn reopened(folder: &Path, why: impl FnOnce(&mut StoreOptions)) -> u8 {
    if !is_store(folder) {
        return fail(format_args!("there is no store in {}", folder.display()));
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(error),
    };
    let now = u64::try_from(SystemClock.now() / 1_000_000).unwrap_or(0);
    let defaults = StoreOptions::new(folder, "", now);
    let mut options = StoreOptions { max_bytes: u64::MAX, ..defaults };
    why(&mut options);
    let store = match Store::open(options, Layout::default()) {
        Ok((store, _)) => store,
        Err(error @ StoreError::Locked { .. }) => {
            fail(format_args!("{error}\n  hint: stop the gateway first"));
            return TEMPORARY;
        }
        Err(error) => return fail(error),
    };
    let epoch = store.epoch();
    let closed = runtime.block_on(store.close());
    give_back(folder);
    match closed {
        Ok(()) => {
            say!("records have epoch {epoch} from now on");
            0
        }
        Err(error) => fail(format_args!("store: {error}")),
    }
}

/// Whether a folder holds a store: nothing is made where there is none.
fn is_store(folder: &Path) -> bool {
    ["store.redb", "store.ring"].iter().any(|file| folder.join(file).is_file())
}

/// Opens a store without a configuration. Nothing in it gives way: no bound is known here.
async fn open(
    folder: &Path,
    intent: Intent,
) -> Result<(Store, tidegate_engine::store::Recovery), StoreError> {
    let defaults = StoreOptions::new(folder, "", 0);
    // Who looks wants what can be read; nothing that cannot is lost by it.
    let impatient = intent == Intent::Look;
    let options = StoreOptions { max_bytes: u64::MAX, impatient, ..defaults };
    let (store, recovery) = match intent {
        Intent::Look => Store::look(options, Layout::default())?,
        Intent::Change => Store::open(options, Layout::default())?,
    };
    store.relayout(everything(&store, None), u64::MAX).await?;
    Ok((store, recovery))
}

/// Gives files that were made here to the folder's owner: the gateway's user must be able to write
/// them, also where root looked at its store.
fn give_back(folder: &Path) {
    let given = std::fs::metadata(folder).and_then(|owner| {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if entry.metadata()?.uid() != owner.uid() {
                let (user, group) = (Some(owner.uid()), Some(owner.gid()));
                std::os::unix::fs::chown(entry.path(), user, group)?;
            }
        }
        Ok(())
    });
    if let Err(error) = given {
        tracing::warn!(folder = %folder.display(), %error, "files of the store belong to you now");
    }
}

/// A store behind the control socket of its gateway.
struct SocketKeeper {
    socket: PathBuf,
}

/// An error answer, as far as it is shown.
#[derive(Deserialize)]
struct Problem {
    detail: String,
}

fn refused(reply: &Reply) -> Refusal {
    let detail = match serde_json::from_slice::<Problem>(&reply.body) {
        Ok(problem) => problem.detail,
        Err(_) => format!("the gateway answered {}: {}", reply.status, reply.text()),
    };
    if reply.status == 404 { Refusal::Unknown(detail) } else { Refusal::NotNow(detail) }
}

impl SocketKeeper {
    fn ask(
        &self,
        method: &'static str,
        path: String,
        body: String,
        patience: Duration,
    ) -> Kept<Reply> {
        let socket = self.socket.clone();
        async move {
            match ask(&socket, method, &path, &body, patience).await {
                Ok(reply) if reply.status < 300 => Ok(reply),
                Ok(reply) => Err(refused(&reply)),
                Err(error) => {
                    let detail = format!("no gateway answers on {}: {error}", socket.display());
                    Err(Refusal::NotNow(detail))
                }
            }
        }
        .boxed()
    }

    fn told<T: DeserializeOwned + 'static>(
        &self,
        method: &'static str,
        path: String,
        body: String,
        patience: Duration,
    ) -> Kept<T> {
        let reply = self.ask(method, path, body, patience);
        async move {
            let reply = reply.await?;
            serde_json::from_slice(&reply.body)
                .map_err(|error| Refusal::NotNow(format!("the answer is not understood: {error}")))
        }
        .boxed()
    }
}

/// A body as JSON; plain data always has one.
fn json(body: &impl serde::Serialize) -> String {
    serde_json::to_string(body).unwrap_or_default()
}

impl Keeper for SocketKeeper {
    fn contents(&self) -> Kept<StoreContents> {
        self.told("GET", "/api/v1/store".to_owned(), String::new(), ANSWER_MAX)
    }

    fn verify(&self) -> Kept<StoreVerified> {
        let path = "/api/v1/store/verify".to_owned();
        self.told("POST", path, String::new(), MAINTENANCE_MAX)
    }

    fn compact(&self) -> Kept<StoreCompacted> {
        let path = "/api/v1/store/compact".to_owned();
        self.told("POST", path, String::new(), MAINTENANCE_MAX)
    }

    fn forget(&self, name: String) -> Kept<Records> {
        self.told("POST", format!("/api/v1/store/forget/{name}"), String::new(), ANSWER_MAX)
    }

    fn export(&self, what: Exportable, name: String, from: u64) -> Kept<Option<Exported>> {
        let path = format!("/api/v1/store/export/{}/{name}?from={from}", what.name());
        let reply = self.ask("GET", path, String::new(), ANSWER_MAX);
        async move {
            let reply = reply.await?;
            if reply.status == 204 {
                return Ok(None);
            }
            let next = reply.header(NEXT_HEADER).and_then(|next| next.parse().ok());
            let next = next.filter(|next| *next > from).ok_or_else(|| {
                Refusal::NotNow("the answer does not say where the export goes on".to_owned())
            })?;
            Ok(Some(Exported { next, arrow: reply.body }))
        }
        .boxed()
    }

    fn pause(&self, sink: String, paused: bool) -> Kept<()> {
        let verb = if paused { "pause" } else { "resume" };
        self.told("POST", format!("/api/v1/sinks/{sink}/{verb}"), String::new(), ANSWER_MAX)
    }

    fn replay(&self, sink: String, rate: ReplayRate) -> Kept<()> {
        self.told("PUT", format!("/api/v1/sinks/{sink}/replay"), json(&rate), ANSWER_MAX)
    }

    fn rejected(&self, sink: String, limit: usize) -> Kept<Vec<RejectedRecord>> {
        let path = format!("/api/v1/sinks/{sink}/rejected?limit={limit}");
        self.told("GET", path, String::new(), ANSWER_MAX)
    }

    fn redrive(&self, sink: String, letters: Letters) -> Kept<Records> {
        let path = format!("/api/v1/sinks/{sink}/rejected/redrive");
        self.told("POST", path, json(&letters), ANSWER_MAX)
    }

    fn discard(&self, sink: String, letters: Letters) -> Kept<Records> {
        let path = format!("/api/v1/sinks/{sink}/rejected/drop");
        self.told("POST", path, json(&letters), ANSWER_MAX)
    }
}

/// Shows why something could not be done, and gives the exit code.
pub(super) fn refuse(refusal: &Refusal) -> u8 {
    fail(refusal.detail());
    FAILURE
}
