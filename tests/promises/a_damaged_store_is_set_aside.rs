//! Field case A51 (telegraf #18528: after a torn write the process refused to start, and the advice
//! was to delete the file by hand) and its whole kind: a store whose file was cut, overwritten, or
//! has bits that flipped on the flash.
//!
//! Here: the gateway starts, says what it found, keeps what it cannot read, and goes on. It never
//! delivers a value that is not the one that was stored: each record carries its own proof.

use std::fs;
use std::path::PathBuf;

use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, count, head, part};
use crate::harness::records::{assert_contiguous, lines, of_stream, repeated};
use crate::harness::subscriber::Subscriber;
use crate::harness::{Scratch, free_port, secs};

/// Rows wait for a broker that is not there, and go to a file too.
fn config(scratch: &Scratch, nobody: u16) -> String {
    let (head, file) = (head(scratch), scratch.join("out.jsonl"));
    format!(
        "{head}
devices:
  - name: source
    driver:
      generate:
        every: 10ms
        rows: 10
        points: [ {{ name: n, value: {{ counter: {{}} }} }} ]
streams:
  - name: rows
    from: [source]
    sql: SELECT time, n, n * 7 + 3 AS proof FROM source
    to: [ {{ sink: disk }}, {{ sink: nobody }} ]
sinks:
  - {{ name: disk, driver: {{ file: {{ path: {} }} }} }}
  - {{ name: nobody, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{nobody}\" }} }} }}
",
        file.display()
    )
}

/// The store's files that hold something, without the lock, the socket and the reserve.
fn files(scratch: &Scratch) -> Vec<PathBuf> {
    let entries = fs::read_dir(scratch.join("store")).expect("the store's folder");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.is_file() && written(&fs::read(path).expect("a file")) > 4096);
    paths.sort();
    paths
}

/// Bytes up to the last one that is not zero: what was ever written of a file.
fn written(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1)
}

/// Fills a store, damages one of its files, and starts again, for each file. All logs.
fn damaged(name: &str, damage: impl Fn(&mut Vec<u8>)) -> String {
    let mut logs = String::new();
    let mut file = 0;
    while let Some(log) = damaged_file(name, file, &damage) {
        logs.push_str(&log);
        file += 1;
    }
    assert!(file >= 2, "a ring and a tree at least");
    logs
}

/// The same for the nth file, if there are so many.
fn damaged_file(name: &str, file: usize, damage: impl Fn(&mut Vec<u8>)) -> Option<String> {
    let scratch = Scratch::new(name);
    let config = config(&scratch, free_port());
    let work = |gateway: &mut Gateway| {
        gateway.wait_status("rows in the store and in the file", secs(20), |status| {
            let buffered = count(status, "sinks", "nobody", "buffered_records");
            (buffered >= 1_000 && count(status, "sinks", "disk", "delivered") >= 1_000)
                .then_some(())
        });
    };
    let mut gateway = Gateway::start(&scratch, &config);
    work(&mut gateway);
    gateway.kill();
    let files = files(&scratch);
    let store = files.get(file)?;
    let mut bytes = fs::read(store).expect("the store");
    damage(&mut bytes);
    fs::write(store, bytes).expect("the store");

    let mut gateway = Gateway::start(&scratch, &config);
    work(&mut gateway);
    let stopped = gateway.stop();
    assert_eq!(stopped.code, Some(0), "{name}");
    let log = gateway.log();
    let records = lines(&fs::read_to_string(scratch.join("out.jsonl")).expect("the file"));
    repeated(&records);
    for record in &records {
        assert_eq!(record.int("proof"), record.int("n") * 7 + 3, "{}", record.text);
    }
    Some(log)
}

#[test]
fn a51_a_cut_file() {
    let log = damaged("cut", |bytes| bytes.truncate(written(bytes) / 2));
    assert!(log.contains("WARN") || log.contains("ERROR"), "it is said:\n{log}");
}

#[test]
fn a51_an_overwritten_head() {
    let log = damaged("head", |bytes| bytes[..4096].fill(0xA5));
    assert!(log.contains("WARN") || log.contains("ERROR"), "it is said:\n{log}");
}

#[test]
fn a51_bits_that_flipped() {
    for round in 0..2_usize {
        damaged("bits", |bytes| {
            // One bit in each sixteenth of the file, each round at other places.
            let step = written(bytes) / 16;
            for part in 0..16 {
                bytes[part * step + (round * 1_237 + part * 397) % step] ^= 1 << (part % 8);
            }
        });
    }
}

/// Flips the lowest bit of the digit that follows `text` where it stands for the `nth` time: the
/// record is JSON as before, with another number.
fn falsify(bytes: &mut [u8], text: &[u8], nth: usize) {
    let places = bytes.windows(text.len()).enumerate().filter(|(_, window)| *window == text);
    let place = places.map(|(place, _)| place).nth(nth).expect("records in plain text");
    bytes[place + text.len()] ^= 1;
}

#[test]
fn a51_a_record_that_changed_is_not_delivered() {
    let scratch = Scratch::new("changed");
    let mut broker = Broker::prepare(&scratch, "");
    let config = config(&scratch, broker.port);
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("a thousand waiting records", secs(20), |status| {
        (count(status, "sinks", "nobody", "buffered_records") >= 1_000).then_some(())
    });
    assert_eq!(gateway.stop().code, Some(0));
    let in_plain_text = |path: &&PathBuf| {
        let bytes = fs::read(path).expect("a file");
        bytes.windows(8).filter(|window| *window == b"\"proof\":").count() > 500
    };
    let files = files(&scratch);
    let store = files.iter().find(in_plain_text).expect("a file with records");
    let mut bytes = fs::read(store).expect("the store");
    for nth in [100, 300, 500] {
        falsify(&mut bytes, b"\"proof\":", nth);
    }
    fs::write(store, bytes).expect("the store");

    broker.restart();
    let far_side = Subscriber::start(broker.port, "#", None);
    far_side.wait_subscribed();
    let mut gateway = Gateway::start(&scratch, &config);
    let (results, dropped) =
        gateway.wait_status("what waited to be delivered", secs(30), |status| {
            let hop = part(&status["ledger"], "sinks", "nobody");
            let (buffered, dropped) = (hop["buffered"].as_u64()?, hop["dropped"].clone());
            let (results, delivered) = (hop["results"].as_u64()?, hop["delivered"].as_u64()?);
            // What could not be read is told from the delivered with the commit of the mark.
            let told = dropped["corrupt"].is_u64();
            (told && buffered < 50 && delivered >= 500).then_some((results, dropped))
        });
    assert!(results >= 1_000, "the ledger goes on after a restart: {results}");
    // Three records changed; how many share their fate is a matter of how they are stored.
    let corrupt = dropped["corrupt"].as_u64().unwrap_or(0);
    assert!((3..=results / 2).contains(&corrupt), "counted as lost: {dropped}");
    let status = gateway.status();
    assert!(status["store"]["corrupt_records"].as_u64().is_some_and(|n| n >= 1), "{status:#}");
    assert_eq!(gateway.stop().code, Some(0));

    let records = of_stream(&far_side.records(), "rows");
    for record in &records {
        assert_eq!(record.int("proof"), record.int("n") * 7 + 3, "{}", record.text);
    }
    // The same store, the same epoch: nothing that is sound was given up with what was not.
    let epochs: std::collections::BTreeSet<_> = records.iter().map(|r| r.id_parts().1).collect();
    assert_eq!(epochs.len(), 1, "{epochs:?}");
    assert_eq!(repeated(&records), 0);
    let written = lines(&fs::read_to_string(scratch.join("out.jsonl")).expect("the file"));
    assert_contiguous(&written);
}
