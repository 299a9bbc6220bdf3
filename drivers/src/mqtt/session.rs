//! Shares one link between a driver, which uses it now and then, and a keeper task, which looks
//! after it meanwhile: pings, and notice of its loss.
//!
//! Nothing is handed from task to task while data flows. The keeper takes the link only after it
//! has been idle for [`IDLE_AFTER`], and gives it back as soon as somebody asks. It ends with the
//! session, and with the link.

use std::convert::Infallible;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::link::{Link, Reading};

/// A link that was not used for this long is looked after by the keeper.
const IDLE_AFTER: Duration = Duration::from_millis(20);

struct Shared {
    link: Mutex<Link>,
    /// Somebody waits for the link: the keeper lets go.
    wanted: Notify,
    /// Somebody let the link go: the keeper may look after it.
    released: Notify,
}

/// A link and its keeper.
pub(crate) struct Session {
    shared: Arc<Shared>,
    keeper: JoinHandle<()>,
}

impl Session {
    /// Starts the keeper, on the runtime that this is called on.
    pub(crate) fn start(link: Link, reading: Reading) -> Self {
        let shared = Arc::new(Shared {
            link: Mutex::new(link),
            wanted: Notify::new(),
            released: Notify::new(),
        });
        let keeper = tokio::spawn(keep(Arc::clone(&shared), reading));
        Self { shared, keeper }
    }

    /// Takes the link until the answer is dropped. Cancel safe.
    pub(crate) async fn hold(&self) -> Held<'_> {
        let shared = &*self.shared;
        let link = tokio::select! {
            biased;
            // The first poll stands in the queue, so that the keeper cannot take the link again
            // between its release and our turn.
            link = shared.link.lock() => link,
            never = shared.ask() => match never {},
        };
        Held { link: Some(link), shared }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Shared {
    async fn ask(&self) -> Infallible {
        self.wanted.notify_one();
        std::future::pending().await
    }
}

async fn keep(shared: Arc<Shared>, reading: Reading) {
    loop {
        sleep(IDLE_AFTER).await;
        let Ok(mut link) = shared.link.try_lock() else {
            // In use. Its user says when that ends.
            shared.released.notified().await;
            continue;
        };
        tokio::select! {
            biased;
            () = shared.wanted.notified() => {}
            // The fault stays in the link and is told to its next user.
            _fault = link.keep(reading) => return,
        }
    }
}

/// The link, held.
pub(crate) struct Held<'a> {
    link: Option<MutexGuard<'a, Link>>,
    shared: &'a Shared,
}

impl Deref for Held<'_> {
    type Target = Link;

    fn deref(&self) -> &Link {
        match &self.link {
            Some(link) => link,
            None => unreachable!("only drop takes it"),
        }
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Link {
        match &mut self.link {
            Some(link) => link,
            None => unreachable!("only drop takes it"),
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Unlocked first: the keeper that is told finds it free.
        self.link = None;
        self.shared.released.notify_one();
    }
}
