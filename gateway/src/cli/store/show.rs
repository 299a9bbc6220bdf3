//! Answers about the store as tables for people.

use std::fmt::Display;
use std::iter::repeat_n;

use tidegate_web_ui::{
    RejectedRecord, SinkContents, StoreCompacted, StoreContents, StoreStatus, StoreVerified,
    StreamContents, TableContents,
};

use crate::cli::print::say;

/// Prints columns below their heads, numbers to the right. The last column may be long.
fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let number = |text: &str| text.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    let print = |cells: &[&str]| {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let right = rows.iter().all(|row| number(&row[column]) || row[column] == NONE);
            let width = if column + 1 == N && !right { 0 } else { widths[column] };
            if column > 0 {
                line += "  ";
            }
            let room = width.saturating_sub(cell.chars().count());
            let (before, after) = if right { (room, 0) } else { (0, room) };
            line.extend(repeat_n(' ', before));
            line += cell;
            line.extend(repeat_n(' ', after));
        }
        say!("{}", line.trim_end());
    };
    print(&heads);
    for row in rows {
        print(&row.each_ref().map(String::as_str));
    }
}

/// What stands where there is nothing to say.
const NONE: &str = "-";

fn or_none<T: Display>(value: Option<T>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

/// `store ls`.
pub(super) fn listed(contents: &StoreContents) {
    tables(&contents.tables);
    say!();
    sinks(&contents.sinks);
    if !contents.streams.is_empty() {
        say!();
        streams(&contents.streams);
    }
    let unclaimed = contents.tables.iter().any(|table| table.claimed == Some(false))
        || contents.sinks.iter().any(|sink| sink.claimed == Some(false));
    if unclaimed {
        say!("\nunclaimed: the running configuration has no such table or sink. What is kept");
        say!(
            "comes back with the name; it gives way first where the store is full. To drop it, with the same --store:"
        );
        say!("tidegate store forget NAME");
    }
    if contents.streams.iter().any(|stream| stream.claimed == Some(false)) {
        say!(
            "\nA stream goes on where it was when it comes back. To drop its progress, stop the gateway and give the same --store:"
        );
        say!("tidegate store forget --stream NAME");
    }
}

fn claimed(claimed: Option<bool>) -> &'static str {
    match claimed {
        Some(false) => "unclaimed",
        Some(true) | None => "",
    }
}

fn tables(tables: &[TableContents]) {
    let rows: Vec<_> = tables
        .iter()
        .map(|table| {
            [
                table.name.clone(),
                table.rows.to_string(),
                table.bytes.to_string(),
                format!("{}..{}", table.start, table.end),
                table.dropped.to_string(),
                claimed(table.claimed).to_owned(),
            ]
        })
        .collect();
    table(["TABLE", "ROWS", "BYTES", "POSITIONS", "DROPPED", ""], &rows);
}

fn sinks(sinks: &[SinkContents]) {
    let rows: Vec<_> = sinks
        .iter()
        .map(|sink| {
            let dropped: u64 = sink.dropped.values().sum();
            let state = match (sink.paused, sink.lanes) {
                (true, _) => "paused",
                (false, Some(_)) => "two lanes",
                (false, None) => "",
            };
            let state = [state, claimed(sink.claimed)].into_iter().filter(|word| !word.is_empty());
            [
                sink.name.clone(),
                sink.records.to_string(),
                sink.bytes.to_string(),
                or_none(sink.oldest.as_ref()),
                sink.delivered.to_string(),
                dropped.to_string(),
                sink.letters.to_string(),
                sink.letters_dropped.to_string(),
                sink.gaps.to_string(),
                state.collect::<Vec<_>>().join(", "),
            ]
        })
        .collect();
    let heads = [
        "SINK",
        "WAITING",
        "BYTES",
        "OLDEST",
        "DELIVERED",
        "DROPPED",
        "REFUSED",
        "NOT KEPT",
        "GAPS",
        "",
    ];
    table(heads, &rows);
}

fn streams(streams: &[StreamContents]) {
    let row = |stream: &StreamContents| {
        [
            stream.name.clone(),
            stream.states.to_string(),
            stream.bytes.to_string(),
            claimed(stream.claimed).to_owned(),
        ]
    };
    let rows: Vec<_> = streams.iter().map(row).collect();
    table(["STREAM", "STATES", "BYTES", ""], &rows);
}

/// `store inspect`.
pub(super) fn inspected(contents: &StoreContents) {
    figures(contents);
    say!();
    listed(contents);
    if !contents.counters.is_empty() {
        say!();
        let counters = contents.counters.iter();
        let rows: Vec<_> = counters.map(|(name, n)| [name.clone(), n.to_string()]).collect();
        table(["COUNTER", "EVER"], &rows);
    }
}

fn figures(contents: &StoreContents) {
    let status: &StoreStatus = &contents.status;
    let recovery = &status.recovery;
    let mut rows = vec![
        ["epoch".to_owned(), contents.epoch.to_string()],
        ["bytes of files".to_owned(), status.file_bytes.to_string()],
        ["bytes held".to_owned(), status.held_bytes.to_string()],
        ["bytes of streams' states".to_owned(), status.state_bytes.to_string()],
        ["bytes written today (UTC)".to_owned(), status.written_today.to_string()],
    ];
    let mut tell = |what: &str, told: String| rows.push([what.to_owned(), told]);
    if contents.running {
        tell("commits since the start", status.commits.to_string());
        tell("bytes committed", status.bytes_committed.to_string());
        tell("bytes written", status.bytes_written.to_string());
        let ratio = status.write_amplification.map(|ratio| format!("{ratio:.2}"));
        tell("bytes written a byte", or_none(ratio));
        tell("daily budget", or_none(status.daily_writes));
        tell("stalled", or_none(status.stalled.as_ref()));
        tell("cannot be read", or_none(status.unread.as_ref()));
    }
    tell("stored values that failed", status.corrupt_records.to_string());
    tell("rows lost by them", status.corrupt_rows.to_string());
    tell("last error", or_none(status.last_error.as_ref()));
    let closed = match (recovery.created, recovery.clean) {
        (true, _) => "made anew",
        (false, true) => "closed in order",
        (false, false) => "not closed: a crash, or a power cut",
    };
    tell("before the start", closed.to_owned());
    tell("damaged file moved to", or_none(recovery.quarantined.as_ref()));
    tell("upgraded from format", or_none(recovery.upgraded_from));
    if recovery.copied {
        tell("a copy", "yes: its files were copied here, new records have a new epoch".to_owned());
    }
    if recovery.newest_lost {
        tell("what was stored last", "may be lost: the end of the ring was gone".to_owned());
    }
    if recovery.newest_torn {
        let told = "was not whole: never promised, or damaged; new records have a new epoch";
        tell("the last frame", told.to_owned());
    }
    if recovery.ids_doubted {
        let told = "not closed before a power cut, or killed while it could not write; new records have a new epoch";
        tell("ids", told.to_owned());
    }
    if !recovery.progress_lost.is_empty() {
        tell("streams that began anew", recovery.progress_lost.join(", "));
    }
    let width = rows.iter().map(|row| row[0].len()).max().unwrap_or(0);
    for [what, told] in &rows {
        say!("{what:<width$}  {told}");
    }
}

/// `store verify`.
pub(super) fn verified(verified: &StoreVerified) {
    let StoreVerified { rows, corrupt_records, corrupt_rows } = verified;
    say!("{rows} rows and records passed");
    if corrupt_records + corrupt_rows > 0 {
        say!("{corrupt_records} stored values failed their check: {corrupt_rows} rows are lost");
    }
}

/// `store compact`.
pub(super) fn compacted(compacted: &StoreCompacted) {
    let StoreCompacted { bytes_before, bytes_after } = compacted;
    say!("{bytes_before} bytes of files before, {bytes_after} after");
}

/// Characters of a refused record that are shown.
const BODY_SHOWN: usize = 60;

/// `rejected ls`.
pub(super) fn rejected(rejected: &[RejectedRecord]) {
    let rows: Vec<_> = rejected
        .iter()
        .map(|record| {
            let mut body: String = record.body.chars().take(BODY_SHOWN).collect();
            if body.len() < record.body.len() {
                body.push('…');
            }
            [
                record.position.to_string(),
                format!("{}/{}/{}", record.epoch, record.stream, record.seq),
                record.created.clone(),
                record.reason.clone(),
                body,
            ]
        })
        .collect();
    table(["POSITION", "EPOCH/STREAM/SEQ", "CREATED", "REASON", "RECORD"], &rows);
}

/// What `rejected ls` cannot show: how many refused records of a sink gave way to newer ones.
pub(super) fn not_kept(contents: &StoreContents, sink: &str) {
    let gone = contents.sinks.iter().find(|of| of.name == sink).map_or(0, |of| of.letters_dropped);
    if gone > 0 {
        say!("{gone} older ones are not kept any more");
    }
}
