//! The store's own part of status: figures, what its opening found, and what a person should look
//! at.

use std::collections::BTreeSet;

use tidegate_engine::store::{Backlog, Lanes, Recovery, Store, StoreStats};
use tidegate_web_ui as web;

use super::{GatewayStatus, Views, hops, rfc3339};

impl GatewayStatus {
    pub(super) fn store_status(&self, views: &Views) -> web::StoreStatus {
        web::StoreStatus {
            file_bytes_max: views.store_bytes_max,
            daily_writes: views.daily_writes,
            unclaimed: unclaimed(&contents(&self.store, Some(views))),
            ..store_status(self.store.stats(), &self.recovery)
        }
    }

    /// Everything that the store holds.
    pub fn contents(&self) -> web::StoreContents {
        let views = self.views();
        let mut contents = contents(&self.store, Some(&views));
        contents.status = self.store_status(&views);
        contents
    }
}

/// The figures of a store that was opened with `recovery`.
pub fn store_status(stats: StoreStats, recovery: &Recovery) -> web::StoreStatus {
    let ratio = stats.bytes_written as f64 / stats.bytes_committed as f64;
    web::StoreStatus {
        commits: stats.commits,
        file_bytes: stats.file_bytes,
        held_bytes: stats.held_bytes,
        state_bytes: stats.state_bytes,
        bytes_committed: stats.bytes_committed,
        bytes_written: stats.bytes_written,
        write_amplification: (stats.bytes_committed > 0).then_some(ratio),
        written_today: stats.written_today,
        corrupt_records: stats.corrupt_records,
        corrupt_rows: stats.corrupt_rows,
        log_rows_dropped: stats.log_rows_dropped,
        gives_way: stats.gives_way,
        queue_len: stats.queue_len as u64,
        queue_capacity: stats.queue_capacity as u64,
        reopened: stats.reopened,
        stalled: stats.stalled,
        unread: stats.unread,
        refuses: stats.refuses.iter().map(ToString::to_string).collect(),
        last_error: stats.last_error,
        recovery: web::RecoveryStatus {
            created: recovery.created,
            clean: recovery.clean,
            quarantined: recovery.quarantined.as_ref().map(|path| path.display().to_string()),
            salvaged: recovery.salvaged,
            copied: recovery.copied,
            newest_lost: recovery.newest_lost,
            newest_torn: recovery.newest_torn,
            ids_doubted: recovery.ids_doubted,
            upgraded_from: recovery.upgraded_from,
            corrupt_records: recovery.corrupt_records,
            progress_lost: recovery.progress_lost.clone(),
        },
        ..web::StoreStatus::default()
    }
}

/// Everything that a store holds; `views` of the gateway that runs on it.
pub fn contents(store: &Store, views: Option<&Views>) -> web::StoreContents {
    let names = |names: &mut dyn Iterator<Item = &str>| -> BTreeSet<String> {
        names.map(str::to_owned).collect()
    };
    let tables = views.map(|views| names(&mut views.tables.iter().map(String::as_str)));
    let sinks = views.map(|views| names(&mut views.sinks.iter().map(|sink| sink.name.as_str())));
    let streams =
        views.map(|views| names(&mut views.streams.iter().map(|view| view.name.as_str())));
    let claimed = |of: &Option<BTreeSet<String>>, name: &str| of.as_ref().map(|n| n.contains(name));
    web::StoreContents {
        epoch: store.epoch(),
        running: views.is_some(),
        status: web::StoreStatus::default(),
        tables: store
            .tables()
            .into_iter()
            .map(|table| web::TableContents {
                claimed: claimed(&tables, &table.name),
                name: table.name.to_string(),
                start: table.start,
                end: table.end,
                rows: table.rows,
                bytes: table.bytes,
                dropped: table.dropped,
            })
            // Of what is forgotten only positions are left.
            .filter(|table| table.claimed != Some(false) || table.rows > 0)
            .collect(),
        sinks: store
            .sinks()
            .into_iter()
            .map(|name| sink(&name, &store.backlog(&name), claimed(&sinks, &name)))
            .filter(|sink| {
                sink.claimed != Some(false) || sink.records + sink.letters + sink.gaps > 0
            })
            .collect(),
        streams: store
            .streams()
            .into_iter()
            .map(|stream| web::StreamContents {
                claimed: claimed(&streams, &stream.name),
                name: stream.name.to_string(),
                states: stream.states,
                bytes: stream.bytes,
            })
            .collect(),
        counters: store.counts().into_iter().map(|(name, n)| (name.to_string(), n)).collect(),
    }
}

fn sink(name: &str, backlog: &Backlog, claimed: Option<bool>) -> web::SinkContents {
    web::SinkContents {
        name: name.to_owned(),
        records: backlog.records,
        bytes: backlog.bytes,
        oldest: backlog.oldest_created.map(rfc3339),
        gaps: backlog.gaps,
        delivered: backlog.delivered,
        dropped: hops::dropped(backlog),
        rejected: backlog.rejected,
        letters: backlog.letters,
        letter_bytes: backlog.letter_bytes,
        letters_dropped: backlog.letters_dropped,
        paused: backlog.paused,
        lanes: backlog.lanes.map(lanes),
        claimed,
    }
}

pub(super) fn lanes(lanes: Lanes) -> web::SinkLanes {
    web::SinkLanes { split: lanes.split, live: lanes.live }
}

/// What holds something and is not named by the configuration.
fn unclaimed(contents: &web::StoreContents) -> Vec<web::Unclaimed> {
    let of = |kind: &str, name: &str, records, bytes| web::Unclaimed {
        kind: kind.to_owned(),
        name: name.to_owned(),
        records,
        bytes,
    };
    let tables = contents.tables.iter().filter(|table| table.claimed == Some(false));
    let tables = tables.map(|table| of("table", &table.name, table.rows, table.bytes));
    let sinks = contents.sinks.iter().filter(|sink| sink.claimed == Some(false));
    let sinks = sinks.map(|sink| of("sink", &sink.name, sink.records + sink.letters, sink.bytes));
    let streams = contents.streams.iter().filter(|stream| stream.claimed == Some(false));
    let streams = streams.map(|stream| of("stream", &stream.name, stream.states, stream.bytes));
    tables.chain(sinks).filter(|unclaimed| unclaimed.records > 0).chain(streams).collect()
}

/// The part of the store's bound that states of streams may come to before it is an alarm. They count in no
/// bound of the store, because `limits.memory` holds them as well, but the disk must have room for them.
const STATES_SHARE: u64 = 4;

/// What a person should look at.
pub(super) fn alarms(store: &web::StoreStatus, failed: bool) -> Vec<web::Reason> {
    let mut alarms = Vec::new();
    let mut add = |reason: String| {
        alarms.push(web::Reason { part: "store".to_owned(), reason });
    };
    if failed {
        add(store.last_error.clone().unwrap_or_else(|| "it has failed".to_owned()));
    }
    if let Some(reason) = &store.stalled {
        add(format!("nothing can be made durable: {reason}"));
    }
    if !store.refuses.is_empty() {
        let sinks = store.refuses.join(", ");
        add(format!(
            "new records for {sinks} are dropped until it can: they would fill the memory"
        ));
    }
    if let Some(reason) = &store.unread {
        add(format!(
            "stored records and rows cannot be read: {reason}; who needs them waits, and what the device \
             refuses for a minute counts as lost"
        ));
    }
    if store.gives_way {
        let told = "the disk has no room: the oldest waiting records and rows are dropped for it (`dropped: \
                    disk_full` of the sinks, `log_rows_dropped`); free some, or lower `store.max_bytes`";
        add(told.to_owned());
    }
    if let Some(budget) = store.daily_writes.filter(|budget| store.written_today > *budget) {
        let written = store.written_today;
        add(format!("{written} bytes were written today, more than `daily_writes`: {budget}"));
    }
    let (states, most) = (store.state_bytes, store.file_bytes_max / STATES_SHARE);
    if store.file_bytes_max > 0 && states > most {
        add(format!(
            "states of streams take {states} bytes on top of `store.max_bytes`, more than {most}: \
             shorten windows, or give them fewer groups"
        ));
    }
    let recovery = &store.recovery;
    if let Some(path) = &recovery.quarantined {
        let rest =
            if recovery.salvaged { "; what was readable of it was carried over" } else { "" };
        add(format!("a damaged file was moved to {path} at the start{rest}"));
    }
    if recovery.copied {
        let told = "the store's files were copied here since they were written: what came after the copy \
                    is not in them, and new records have a new epoch";
        add(told.to_owned());
    }
    if recovery.newest_lost {
        let told = "the end of the store's ring was gone at the start: what was stored last may be lost, and \
                    nobody can tell how much";
        add(told.to_owned());
    }
    if !recovery.progress_lost.is_empty() {
        let streams = recovery.progress_lost.join(", ");
        add(format!("the progress of {streams} was not readable: they began anew"));
    }
    let (records, rows) = (store.corrupt_records, store.corrupt_rows);
    if records > 0 || rows > 0 {
        add(format!(
            "{records} stored values failed their check, and {rows} stored rows are lost: see `quarantine` \
             in the store's folder and `tidegate store verify`"
        ));
    }
    alarms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_is_raised_for_what_a_person_should_look_at() {
        let well = web::StoreStatus {
            written_today: 10,
            state_bytes: 100,
            file_bytes_max: 400,
            daily_writes: Some(10),
            recovery: web::RecoveryStatus { clean: false, ..web::RecoveryStatus::default() },
            ..web::StoreStatus::default()
        };
        assert_eq!(alarms(&well, false), []);
        let ill = web::StoreStatus {
            written_today: 11,
            state_bytes: 101,
            stalled: Some("no room".to_owned()),
            unread: Some("the device is away".to_owned()),
            refuses: vec!["cloud".to_owned()],
            corrupt_records: 2,
            corrupt_rows: 7,
            gives_way: true,
            recovery: web::RecoveryStatus {
                quarantined: Some("/s/store.redb.quarantine-1".to_owned()),
                copied: true,
                newest_lost: true,
                progress_lost: vec!["energy".to_owned()],
                ..web::RecoveryStatus::default()
            },
            ..well
        };
        let told: Vec<_> = alarms(&ill, false).into_iter().map(|alarm| alarm.reason).collect();
        let words = [
            "nothing can be made durable: no room",
            "new records for cloud are dropped",
            "the device is away; who needs them waits",
            "the disk has no room",
            "`daily_writes`: 10",
            "more than 100",
            "quarantine-1",
            "copied",
            "nobody can tell",
            "energy",
            "7 stored rows are lost",
        ];
        assert_eq!(told.len(), words.len(), "{told:?}");
        for (reason, word) in told.iter().zip(words) {
            assert!(reason.contains(word), "{reason}");
        }
    }

    #[test]
    fn what_nobody_asks_for_is_told_with_its_size() {
        let table = |name: &str, claimed, end| web::TableContents {
            name: name.to_owned(),
            start: 3,
            end,
            rows: end - 3,
            bytes: 100,
            claimed,
            ..web::TableContents::default()
        };
        let sink = |name: &str, claimed, records| web::SinkContents {
            name: name.to_owned(),
            records,
            letters: 1,
            bytes: 50,
            claimed,
            ..web::SinkContents::default()
        };
        let contents = web::StoreContents {
            tables: vec![table("old", Some(false), 10), table("new", Some(true), 10)],
            sinks: vec![sink("gone", Some(false), 4), sink("there", Some(true), 4)],
            ..web::StoreContents::default()
        };
        let found = unclaimed(&contents);
        let found: Vec<_> =
            found.iter().map(|u| (&*u.kind, &*u.name, u.records, u.bytes)).collect();
        assert_eq!(found, [("table", "old", 7, 100), ("sink", "gone", 5, 50)]);
    }
}
