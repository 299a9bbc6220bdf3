//! Sessions by key, and results that go through a program, while gateway and program are killed again
//! and again at random moments: MQTT in (QoS 1), a file out.
//!
//! Each number that was published is in exactly one session of its key, each session is in the file
//! once, with the bounds that the test computes from what it published; and each number is given to
//! the results by the program once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, count, head};
use crate::harness::mqtt::Client;
use crate::harness::records::{Record, assert_contiguous, lines, of_stream, repeated};
use crate::harness::{
    Program, Scratch, command, python, repository, secs, setting, soak, wait_for, wait_until,
};

/// Silence after which a session is over, in milliseconds.
const GAP_MS: i64 = 1_000;
/// Event time of the first row: 2023, so that no clock has a say.
const START_MS: i64 = 1_700_000_000_000;
const KEYS: usize = 5;

/// One row that was published.
#[derive(Debug, Clone, Copy)]
struct Sent {
    key: usize,
    n: i64,
    ts: i64,
}

/// Marsaglia's xorshift64, so that a run can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn config(scratch: &Scratch, broker: u16, streams: &str) -> String {
    let (head, file) = (head(scratch), scratch.join("out.jsonl"));
    let file = file.display();
    format!(
        "{head}
devices: [ {{ name: s, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{broker}\", topics: [ in ], qos: 1, backoff_min: 50ms, backoff_max: 200ms, decode: {{ json: {{ time: ts }} }}, points: [ {{ name: n, type: i64 }}, {{ name: who, type: string }} ] }} }} }} ]
streams:
{streams}
sinks: [ {{ name: disk, driver: {{ file: {{ path: {file} }} }} }} ]
"
    )
}

/// Publishes until it is told to end, one key after the other by chance, up to 300 ms out of order; last
/// a row that is so far ahead that all sessions before it are over. Returns the others.
fn publish_all(broker: u16, ended: &AtomicBool, mut random: Random) -> Vec<Sent> {
    let mut client = Client::connect(broker, "near-side").expect("a broker");
    let mut publish = |sent: Sent| {
        let Sent { key, n, ts } = sent;
        let message = format!("{{\"ts\": {ts}, \"n\": {n}, \"who\": \"k{key}\"}}");
        client.publish("in", message.as_bytes()).expect("a broker that takes it");
    };
    let mut rows = Vec::new();
    let mut clock = START_MS;
    while !ended.load(Ordering::SeqCst) {
        clock += i64::try_from(random.below(200)).expect("small");
        let before = i64::try_from(random.below(300)).expect("small");
        let key = usize::try_from(random.below(KEYS as u64)).expect("small");
        let n = i64::try_from(rows.len()).expect("fewer");
        let sent = Sent { key, n, ts: clock - before };
        publish(sent);
        rows.push(sent);
        std::thread::sleep(Duration::from_millis(2));
    }
    let n = i64::try_from(rows.len()).expect("fewer");
    publish(Sent { key: 0, n, ts: clock + 60_000 });
    rows
}

/// Ends the publisher, also where the test fails: else the test would wait for it for ever.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Publishes while the gateway is killed at random moments; `between` is done before each kill.
fn under_kills(
    scratch: &Scratch,
    broker: u16,
    config: &str,
    mut between: impl FnMut(u64),
) -> Vec<Sent> {
    let mut gateway = Gateway::start(scratch, config);
    gateway.wait_up();
    gateway.kill();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
    let seed =
        setting("TIDEGATE_TEST_SEED", u64::try_from(now).expect("before the year 580,000")) | 1;
    let kills = setting("TIDEGATE_TEST_KILLS", if soak() { 100 } else { 8 });
    eprintln!("TIDEGATE_TEST_SEED={seed} TIDEGATE_TEST_KILLS={kills}");
    let mut random = Random(seed);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let publisher = scope.spawn(|| publish_all(broker, &ended, Random(seed)));
        let ending = Ending(&ended);
        for kill in 0..kills {
            let mut gateway = Gateway::start(scratch, config);
            wait_until("the control socket", secs(20), || {
                assert!(gateway.runs(), "the gateway has ended:\n{}", gateway.log());
                gateway.try_status().is_some()
            });
            between(kill);
            std::thread::sleep(Duration::from_millis(random.below(1_500)));
            assert!(gateway.runs(), "the gateway has ended by itself:\n{}", gateway.log());
            gateway.kill();
        }
        drop(ending);
        publisher.join().expect("the publisher")
    })
}

/// The records of a stream in the file, once there are so many.
fn written(scratch: &Scratch, stream: &str, least: usize) -> Vec<Record> {
    let file = scratch.join("out.jsonl");
    wait_for("the last result", secs(60), || {
        let text = fs::read_to_string(&file).ok()?;
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let records = of_stream(&lines(whole), stream);
        let ids: BTreeSet<_> = records.iter().map(Record::id).collect();
        (ids.len() >= least).then(|| records.clone())
    })
}

/// Key, start, end (microseconds), rows, the sum of their numbers, least and greatest number.
type Session = (String, i64, i64, i64, i64, i64, i64);

/// What sessions are: the rows of a key in the order of time, up to a silence of `GAP_MS`.
fn sessions(rows: &[Sent]) -> BTreeSet<Session> {
    let mut by_key: BTreeMap<usize, Vec<Sent>> = BTreeMap::new();
    for row in rows {
        by_key.entry(row.key).or_default().push(*row);
    }
    let mut all = BTreeSet::new();
    for (key, mut rows) in by_key {
        rows.sort_by_key(|row| (row.ts, row.n));
        for session in rows.chunk_by(|a, b| b.ts - a.ts < GAP_MS) {
            let numbers = || session.iter().map(|row| row.n);
            let (first, last) = (session[0].ts, session[session.len() - 1].ts);
            all.insert((
                format!("k{key}"),
                first * 1_000,
                (last + GAP_MS) * 1_000,
                i64::try_from(session.len()).expect("few"),
                numbers().sum(),
                numbers().min().expect("a row"),
                numbers().max().expect("a row"),
            ));
        }
    }
    all
}

#[test]
fn each_row_is_in_one_session_of_its_key() {
    let scratch = Scratch::new("sessions");
    let broker = Broker::start(&scratch, "");
    // A message that comes again, because its acknowledgement was lost, counts once.
    let config = config(
        &scratch,
        broker.port,
        "  - name: runs
    from: [s]
    window: { session: { gap: 1s, by: [ who ] } }
    allowed_lateness: 500ms
    idle_after: 600s
    sql: |
      SELECT who, window_start() AS begins, window_end() AS ends, count(DISTINCT n) AS different,
             sum(DISTINCT n) AS total, min(n) AS low, max(n) AS high
      FROM s GROUP BY who
    to: [ { sink: disk } ]",
    );
    let rows = under_kills(&scratch, broker.port, &config, |_| {});
    let expected = sessions(&rows);
    let mut gateway = Gateway::start(&scratch, &config);
    let records = written(&scratch, "runs", expected.len());
    let status = gateway.status();
    gateway.wait_drained(secs(20));
    assert_eq!(gateway.stop().code, Some(0));
    repeated(&records);
    assert_contiguous(&records);
    let mut came: BTreeMap<String, Session> = BTreeMap::new();
    for record in &records {
        let session = (
            record.text_of("who").to_owned(),
            record.micros("begins"),
            record.micros("ends"),
            record.int("different"),
            record.int("total"),
            record.int("low"),
            record.int("high"),
        );
        came.insert(record.id().to_owned(), session);
    }
    let unique: BTreeSet<Session> = came.values().cloned().collect();
    assert_eq!(unique.len(), came.len(), "a session under two numbers");
    let missing: Vec<_> = expected.difference(&unique).collect();
    let wrong: Vec<_> = unique.difference(&expected).collect();
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "missing {missing:?}, wrong {wrong:?}\n{status}"
    );
    eprintln!("{} rows, {} sessions", rows.len(), expected.len());
}

fn socket(scratch: &Scratch) -> PathBuf {
    scratch.join("p.sock")
}

fn program(scratch: &Scratch) -> Program {
    let mut command = command(python());
    command.arg(repository().join("tests/process_program.py")).arg(socket(scratch));
    let log = File::create(scratch.join("program.out")).expect("a file");
    Program::start("program", command.stdout(log), &scratch.join("program.log"))
}

#[test]
fn each_number_comes_from_the_program_once() {
    let scratch = Scratch::new("processed");
    let broker = Broker::start(&scratch, "");
    let config = config(
        &scratch,
        broker.port,
        &format!(
            "  - name: doubled
    from: [s]
    window: {{ tumbling: {{ size: 1s }} }}
    allowed_lateness: 500ms
    idle_after: 600s
    sql: SELECT DISTINCT n FROM s ORDER BY n
    process: {{ socket: {}, timeout: 5s, columns: [ {{ name: n, type: i64 }}, {{ name: twice, type: f64 }}, {{ name: width, type: i64 }} ] }}
    to: [ {{ sink: disk }} ]",
            socket(&scratch).display()
        ),
    );
    let mut beside = program(&scratch);
    let rows = under_kills(&scratch, broker.port, &config, |kill| {
        // Every other time the program goes first.
        if kill % 2 == 1 {
            beside.kill();
            beside = program(&scratch);
        }
    });
    let mut gateway = Gateway::start(&scratch, &config);
    let records = written(&scratch, "doubled", rows.len());
    let status = gateway.status();
    assert_eq!(count(&status, "streams", "doubled", "failed"), 0, "{status}");
    gateway.wait_drained(secs(20));
    assert_eq!(gateway.stop().code, Some(0));
    repeated(&records);
    assert_contiguous(&records);
    let mut came: BTreeMap<&str, i64> = BTreeMap::new();
    for record in &records {
        assert!(
            (record.number("twice") - 2.0 * record.number("n")).abs() < 1e-9,
            "{}",
            record.text
        );
        came.insert(record.id(), record.int("n"));
    }
    let mut numbers: Vec<i64> = came.into_values().collect();
    numbers.sort_unstable();
    let expected: Vec<i64> = rows.iter().map(|row| row.n).collect();
    assert_eq!(numbers, expected, "each number once");
}
