//! The clock in status: what a person should know of it, and the rows that wait for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_engine::store::Store;
use tidegate_web_ui as web;

use crate::clock::{ClockWait, Trust};
use crate::ledger::{ClockKeys, clock_tables};

/// What a person should do about the clock; `left` is how long rows wait for it at most.
pub(super) fn alarm(trust: Trust, left: Option<Duration>) -> Option<web::Reason> {
    let reason = match (trust, left) {
        (Trust::Unknown, Some(left)) => {
            let (minutes, seconds) = (left.as_secs() / 60, left.as_secs() % 60);
            format!(
                "it was not set since power came: rows wait for it, and results with them, for \
                 {minutes} min {seconds} s more at most"
            )
        }
        (Trust::Certain, _) => return None,
        (Trust::Ahead, _) => {
            "it was set back: until it has caught up, times are ahead of it".to_owned()
        }
        (Trust::Unknown, None) => "it was not set since power came: times are guesses".to_owned(),
    };
    Some(web::Reason { part: "clock".to_owned(), reason })
}

/// The rows that wait, and what became of those that did.
pub(super) fn wait(wait: &ClockWait, store: &Store) -> web::ClockWait {
    let waiting = wait.waiting();
    let tables: BTreeSet<Arc<str>> =
        clock_tables(store).into_iter().chain(waiting.keys().cloned()).collect();
    let tables = tables.into_iter().map(|table| {
        let keys = ClockKeys::new(&table);
        web::ClockTable {
            waiting: waiting.get(&table).copied().unwrap_or(0),
            rebased: store.count(&keys.rebased),
            doubted: store.count(&keys.doubted),
            table: table.to_string(),
        }
    });
    web::ClockWait {
        left_s: wait.left().map(|left| left.as_secs_f64()),
        rebased_by_s: wait.rebased().map(|rebased| super::seconds(rebased.by)),
        tables: tables.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f11_the_alarm_says_for_how_long_results_wait() {
        let said = |trust, left| alarm(trust, left).map(|alarm| alarm.reason);
        assert_eq!(said(Trust::Certain, None), None);
        let waits = said(Trust::Unknown, Some(Duration::from_secs(185))).unwrap();
        assert!(waits.contains("3 min 5 s more at most"), "{waits}");
        let guesses = "it was not set since power came: times are guesses";
        assert_eq!(said(Trust::Unknown, None).as_deref(), Some(guesses));
    }
}
