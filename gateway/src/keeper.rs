//! What somebody may do to the store, beside a running gateway or without one: the one
//! implementation behind the control socket and the commands.
//!
//! Beside a gateway it also tells the sinks at work what was asked of them. Knows no socket.

mod export;

use std::sync::Arc;

use futures::FutureExt;
use tidegate_engine::store::{Layout, Recovery, Rejected, SinkLayout, Store, StoreError, WhenFull};
use tidegate_web_ui::{
    Exportable, Exported, Keeper, Kept, Letters, Records, Refusal, RejectedRecord, ReplayRate,
    StoreCompacted, StoreContents, StoreVerified,
};

use crate::pump::Asked;
use crate::status::store::{contents, store_status};
use crate::status::{GatewayStatus, rfc3339};

/// Keeps to a store.
#[derive(Clone)]
pub struct StoreKeeper {
    store: Store,
    beside: Beside,
}

/// What runs on the store.
#[derive(Clone)]
enum Beside {
    /// A gateway.
    Gateway(Arc<GatewayStatus>),
    /// Nothing: it was opened for this.
    Nothing(Arc<Recovery>),
}

impl StoreKeeper {
    /// Keeps to the store of a running gateway.
    pub fn beside(status: Arc<GatewayStatus>) -> Self {
        Self { store: status.store.clone(), beside: Beside::Gateway(status) }
    }

    /// Keeps to a store that nobody runs on, and that was opened with `recovery`.
    pub fn alone(store: Store, recovery: Recovery) -> Self {
        Self { store, beside: Beside::Nothing(Arc::new(recovery)) }
    }

    /// Refuses what neither the store nor the gateway has.
    fn known(&self, sink: &str) -> Result<(), Refusal> {
        let runs = match &self.beside {
            Beside::Gateway(status) => status.views().sinks.iter().any(|view| view.name == sink),
            Beside::Nothing(_) => false,
        };
        if runs || self.store.sinks().iter().any(|name| **name == *sink) {
            return Ok(());
        }
        Err(Refusal::Unknown(format!("the store holds no sink `{sink}`")))
    }

    /// Tells a sink at work what is asked of it; false where none of this name runs.
    fn ask(&self, sink: &str, ask: impl FnOnce(&mut Asked)) -> bool {
        let Beside::Gateway(status) = &self.beside else {
            return false;
        };
        let views = status.views();
        let Some(view) = views.sinks.iter().find(|view| view.name == sink) else {
            return false;
        };
        view.asked.send_modify(ask);
        true
    }
}

/// A layout with all sinks of a store that nobody runs on, but for one. Nothing in it gives way: no
/// bound is known. Tables stay unnamed: a table without readers would keep nothing.
pub fn everything(store: &Store, but: Option<&str>) -> Layout {
    let sinks = store.sinks().into_iter().filter(|name| Some(&**name) != but);
    let sinks = sinks.map(|name| SinkLayout {
        name,
        max_bytes: u64::MAX,
        max_age_us: None,
        max_records: None,
        when_full: WhenFull::Block,
        priority: 0,
    });
    Layout { tables: Vec::new(), sinks: sinks.collect() }
}

fn refusal(error: &StoreError) -> Refusal {
    match error {
        StoreError::Unknown(_) => Refusal::Unknown(error.to_string()),
        _ => Refusal::NotNow(error.to_string()),
    }
}

impl Keeper for StoreKeeper {
    fn contents(&self) -> Kept<StoreContents> {
        let contents = match &self.beside {
            Beside::Gateway(status) => status.contents(),
            Beside::Nothing(recovery) => StoreContents {
                status: store_status(self.store.stats(), recovery),
                ..contents(&self.store, None)
            },
        };
        std::future::ready(Ok(contents)).boxed()
    }

    fn verify(&self) -> Kept<StoreVerified> {
        let store = self.store.clone();
        async move {
            let verified = store.verify().await.map_err(|e| refusal(&e))?;
            Ok(StoreVerified {
                rows: verified.rows,
                corrupt_records: verified.corrupt_records,
                corrupt_rows: verified.corrupt_rows,
            })
        }
        .boxed()
    }

    fn compact(&self) -> Kept<StoreCompacted> {
        let store = self.store.clone();
        async move {
            let (bytes_before, bytes_after) = store.compact().await.map_err(|e| refusal(&e))?;
            Ok(StoreCompacted { bytes_before, bytes_after })
        }
        .boxed()
    }

    fn forget(&self, name: String) -> Kept<Records> {
        let keeper = self.clone();
        async move {
            let store = &keeper.store;
            let alone = matches!(keeper.beside, Beside::Nothing(_));
            if alone {
                // No configuration says what is needed: whoever asks does.
                let layout = everything(store, Some(&name));
                store.relayout(layout, u64::MAX).await.map_err(|e| refusal(&e))?;
            }
            let forgotten = store.forget(&name).await;
            if alone {
                let layout = everything(store, None);
                store.relayout(layout, u64::MAX).await.map_err(|e| refusal(&e))?;
            }
            let records = forgotten.map_err(|e| refusal(&e))?;
            tracing::info!(name, records, "what was kept for it is forgotten");
            Ok(Records { records })
        }
        .boxed()
    }

    fn export(&self, what: Exportable, name: String, from: u64) -> Kept<Option<Exported>> {
        let store = self.store.clone();
        let known = match what {
            Exportable::Sinks => self.known(&name),
            Exportable::Tables if store.tables().iter().any(|table| *table.name == *name) => Ok(()),
            Exportable::Tables => {
                Err(Refusal::Unknown(format!("the store holds no table `{name}`")))
            }
        };
        async move {
            known?;
            match what {
                Exportable::Tables => export::log(&store, &name, from).await,
                Exportable::Sinks => export::outbox(&store, &name, from).await,
            }
        }
        .boxed()
    }

    fn pause(&self, sink: String, paused: bool) -> Kept<()> {
        let keeper = self.clone();
        async move {
            keeper.known(&sink)?;
            // Who delivers is told first, and in one go with the store's order: while nothing can be made durable
            // the answer comes late, and whoever asked may have gone. Where no such sink runs, the next one of
            // this name finds it in the store.
            keeper.ask(&sink, |asked| asked.paused = paused);
            tracing::info!(sink, paused, "asked for");
            keeper.store.pause(&sink, paused).await.map_err(|e| refusal(&e))
        }
        .boxed()
    }

    fn replay(&self, sink: String, rate: ReplayRate) -> Kept<()> {
        let asked = self.known(&sink).and_then(|()| {
            if self.store.backlog(&sink).records == 0 {
                return Err(Refusal::NotNow(format!("nothing waits for `{sink}`")));
            }
            if self.ask(&sink, |asked| asked.rate = Some(rate.per_second)) {
                tracing::info!(sink, per_second = rate.per_second, "another rate is asked for");
                return Ok(());
            }
            Err(Refusal::NotNow(format!("no sink `{sink}` runs: nothing is delivered to it")))
        });
        std::future::ready(asked).boxed()
    }

    fn rejected(&self, sink: String, limit: usize) -> Kept<Vec<RejectedRecord>> {
        let keeper = self.clone();
        async move {
            keeper.known(&sink)?;
            let rejected = keeper.store.rejected(&sink, limit).await.map_err(|e| refusal(&e))?;
            Ok(rejected.into_iter().map(record).collect())
        }
        .boxed()
    }

    fn redrive(&self, sink: String, letters: Letters) -> Kept<Records> {
        let keeper = self.clone();
        async move {
            keeper.known(&sink)?;
            let redriven = keeper.store.redrive(&sink, letters.positions).await;
            let records = redriven.map_err(|e| refusal(&e))?;
            if records > 0 {
                tracing::info!(sink, records, "dead letters are put back into the outbox");
            }
            Ok(Records { records })
        }
        .boxed()
    }

    fn discard(&self, sink: String, letters: Letters) -> Kept<Records> {
        let keeper = self.clone();
        async move {
            keeper.known(&sink)?;
            let discarded = keeper.store.discard(&sink, letters.positions).await;
            let records = discarded.map_err(|e| refusal(&e))?;
            if records > 0 {
                tracing::info!(sink, records, "dead letters are dropped");
            }
            Ok(Records { records })
        }
        .boxed()
    }
}

fn record(rejected: Rejected) -> RejectedRecord {
    let Rejected { row, reason } = rejected;
    RejectedRecord {
        position: row.position,
        stream: row.stream.to_string(),
        epoch: row.epoch,
        seq: row.seq,
        created: rfc3339(row.created),
        reason,
        body: String::from_utf8_lossy(&row.body).into_owned(),
    }
}
