//! Faults F25 and F26: a gateway in 128 MB of memory, killed because there is less, with 64 open files, with
//! files that may not grow, with few threads, and with an address space that ends.
//!
//! It does its work within the memory that a small board has. Where it has no file left for another
//! visitor, or enough of them already, the visitor waits and the plant does not, and an alarm says why. A file that may not grow is a full disk. Where there
//! are too few threads to start with, it says so and ends; where there is none more, what runs goes on and
//! what is new is refused. Where there is no memory to be had, it ends, says why, and has lost nothing.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::failing_syncs_lie_to_nobody::{feed, publish};
use crate::harness::broker::Broker;
use crate::harness::gateway::{Gateway, ask, count, head, part};
use crate::harness::mqtt::Client;
use crate::harness::records::{assert_complete, assert_contiguous, of_stream, repeated};
use crate::harness::subscriber::Subscriber;
use crate::harness::{
    Program, Scratch, command, free_port, program, python, say, secs, soak, tidegate, wait_for,
    wait_until,
};

/// A control group of the test's own (version 1); removed with this, once it is empty.
struct Cgroup(PathBuf);

impl Cgroup {
    /// One whose `file` limits what the `controller` counts.
    fn new(name: &str, controller: &str, file: &str, limit: u64) -> Option<Self> {
        let name = format!("tidegate-test-{name}-{}", std::process::id());
        let path = Path::new("/sys/fs/cgroup").join(controller).join(name);
        if let Err(error) = fs::create_dir(&path) {
            say(format_args!("SKIPPED: no control group of {controller} (version 1): {error}"));
            return None;
        }
        let group = Self(path);
        group.set(file, limit);
        Some(group)
    }

    fn of_memory(name: &str, bytes: u64) -> Option<Self> {
        Self::new(name, "memory", "memory.limit_in_bytes", bytes)
    }

    fn set(&self, file: &str, limit: u64) {
        fs::write(self.0.join(file), limit.to_string()).expect("a control group");
    }

    /// A command that runs a program in it.
    fn run(&self, path: impl AsRef<OsStr>) -> Command {
        let mut limited = command("/bin/sh");
        limited.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.0).arg(path);
        limited
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).expect("a control group")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            say(format_args!("{} stays behind: {error}", self.0.display()));
        }
    }
}

/// A figure of a process from `/proc`, in kB.
fn memory(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a figure");
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("kB")
}

#[test]
fn f25_rated_load_in_128_mb() {
    let scratch = Scratch::new("memory");
    let (head, nobody) = (head(&scratch), free_port());
    // 100 rows of 10 points every 100 ms: 10,000 points a second.
    let points = (0..9).map(|n| {
        format!("{{ name: p{n}, value: {{ sine: {{ amplitude: {n}.5, period: {}s }} }} }}", n + 3)
    });
    let points = points.collect::<Vec<_>>().join(", ");
    let config = format!(
        "{head}
devices:
  - name: source
    driver: {{ generate: {{ every: 100ms, rows: 100, points: [ {{ name: n, value: {{ counter: {{}} }} }}, {points} ] }} }}
streams:
  - name: windows
    from: [source]
    window: {{ tumbling: {{ size: 10s }} }}
    sql: SELECT count(*) AS c, avg(p1) AS a, max(p2) AS b, min(p3) AS d FROM source
    to: [ {{ sink: nobody }} ]
  - {{ name: rows, from: [source], sql: 'SELECT time, n, p1 FROM source', to: [ {{ sink: nobody }} ] }}
sinks: [ {{ name: nobody, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{nobody}\" }} }} }} ]
"
    );
    let Some(group) = Cgroup::of_memory("load", 128_000_000) else { return };
    let limited = group.run(tidegate());
    let path = scratch.file("tidegate.yaml", &config);
    let mut gateway = Gateway::start_by(&scratch, limited, &path, &[]);
    let seconds: f64 = if soak() { 300.0 } else { 25.0 };
    let status = gateway.wait_status("windows under load", secs(400), |status| {
        let uptime = status["gateway"]["uptime_s"].as_f64().expect("an uptime");
        (uptime >= seconds).then(|| status.clone())
    });
    let read = count(&status["ledger"], "sources", "source", "read") as f64;
    // Beside other tests on two cores a debug build may come a little short of the rate.
    assert!(read >= seconds * 800.0, "{read} rows in {seconds} s instead of 1,000 a second");
    assert_eq!(part(&status["ledger"], "sources", "source")["refused"], serde_json::json!({}));
    let (all, own) = (memory(gateway.pid(), "VmHWM"), memory(gateway.pid(), "RssAnon"));
    say(format_args!("F25: {own} kB of memory of its own, {all} kB with its program's pages"));
    let oom = group.read("memory.oom_control");
    assert!(!oom.lines().any(|l| l.starts_with("oom_kill ") && l != "oom_kill 0"), "{oom}");
    // Nobody ships a debug build, whose program is three times as large.
    let counted = if cfg!(debug_assertions) { own } else { all };
    assert!(counted * 1024 < 100_000_000, "{counted} kB");
    assert_eq!(gateway.stop().code, Some(0));
}

/// Takes memory, a MiB every 5 ms, until a process is gone.
const HOG: &str = "import os, sys, time
taken = []
while os.path.exists('/proc/' + sys.argv[1]):
    taken.append(b'x' * (1 << 20))
    time.sleep(0.005)
time.sleep(60)";

/// Memory runs out beside the gateway, and the system kills it for that (SIGKILL by the kernel, in the midst
/// of its work), three times: as after any kill nothing is lost, altered or out of order (F1).
#[test]
fn f25_a_kill_for_want_of_memory_loses_nothing() {
    let scratch = Scratch::new("oom");
    let Some(group) = Cgroup::of_memory("oom", 256 << 20) else { return };
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "out", None);
    far_side.wait_subscribed();
    let path = scratch.file("tidegate.yaml", feed(&scratch, broker.port));
    let mut gateway = Gateway::start_by(&scratch, group.run(tidegate()), &path, &[]);
    gateway.wait_up();
    let mut client = Client::connect(broker.port, "near-side").expect("a broker");
    let mut next = publish(&mut client, 0);
    let kills = 3;
    for _ in 0..kills {
        // The one that goes first, whoever asks for the memory.
        let score = format!("/proc/{}/oom_score_adj", gateway.pid());
        fs::write(score, "1000").expect("the gateway's score");
        let mut hog = group.run(python());
        hog.args(["-c", HOG, &gateway.pid().to_string()]);
        hog.stdin(Stdio::null()).stdout(Stdio::null());
        let hog = Program::start("the hog", &mut hog, &scratch.join("hog.log"));
        next = publish(&mut client, next);
        // No exit code: a signal.
        assert_eq!(gateway.wait(secs(20)), None, "{}", gateway.log());
        drop(hog);
        gateway = Gateway::start_by(&scratch, group.run(tidegate()), &path, &[]);
        gateway.wait_up();
        next = publish(&mut client, next);
    }
    let oom = group.read("memory.oom_control");
    let killed = oom.lines().find_map(|line| line.strip_prefix("oom_kill "));
    // The hog may be killed, too, before the gateway's memory is free.
    assert!(killed.and_then(|n| n.parse().ok()) >= Some(kills), "{oom}");
    far_side.wait_value("rows", "n", next - 1, secs(30));
    gateway.wait_drained(secs(20));
    assert_eq!(gateway.stop().code, Some(0));
    let rows = of_stream(&far_side.records(), "rows");
    repeated(&rows);
    assert_complete(&rows, "n", 0, next - 1);
    assert_contiguous(&rows);
}

/// A generator whose rows go to a broker, with records of a given size.
fn plain(scratch: &Scratch, broker: u16, rows: u32, pad: usize) -> String {
    let (head, pad) = (head(scratch), "t".repeat(pad));
    format!(
        "{head}
devices:
  - name: source
    driver: {{ generate: {{ every: 100ms, rows: {rows}, points: [ {{ name: n, value: {{ counter: {{}} }} }}, {{ name: pad, value: {{ choice: [ {pad} ] }} }} ] }} }}
streams: [ {{ name: rows, from: [source], sql: 'SELECT time, n, pad FROM source', to: [ {{ sink: uplink }} ] }} ]
sinks:
  - name: uplink
    driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{broker}\", qos: 1, backoff_min: 100ms, backoff_max: 500ms }} }}
    store: {{ max_bytes: 256MiB }}
"
    )
}

#[test]
fn f26_sixty_four_open_files() {
    let scratch = Scratch::new("files");
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "#", None);
    far_side.wait_subscribed();
    let web = free_port();
    let config = plain(&scratch, broker.port, 1, 1);
    let config = config.replace("127.0.0.1:0", &format!("127.0.0.1:{web}"));
    let mut limited = command(program("prlimit"));
    limited.args(["--nofile=64:64", "--"]).arg(tidegate());
    let path = scratch.file("tidegate.yaml", &config);
    let mut gateway = Gateway::start_by(&scratch, limited, &path, &[]);
    gateway.wait_up();
    let visit = || TcpStream::connect(("127.0.0.1", web)).expect("a backlog of the system's");
    let visitors: Vec<_> = (0..100).map(|_| visit()).collect();
    // The plant goes on: five seconds of readings arrive, none refused.
    let read = far_side.look(|all| all.iter().map(|r| r.int("n")).max().unwrap_or(0));
    far_side.wait_value("rows", "n", read + 50, secs(10));
    assert!(gateway.runs());
    drop(visitors);
    wait_until("an answer for the next visitor", secs(15), || {
        let mut stream = visit();
        stream.set_read_timeout(Some(secs(2))).expect("a socket option");
        let answer =
            crate::harness::gateway::talk(&mut stream, "GET /healthz HTTP/1.1\r\nHost: localhost");
        answer.is_ok_and(|(code, _)| code == 200)
    });
    let status = gateway.status();
    assert_eq!(part(&status["ledger"], "sources", "source")["refused"], serde_json::json!({}));
    // Who comes in now can see why others could not.
    let told = alarm(&status, "web").expect("an alarm");
    assert!(told.contains("Too many open files") && told.contains("LimitNOFILE"), "{told}");
    assert_waiting_is_logged_once(&gateway);
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
    assert_eq!(gateway.stop().code, Some(0));
}

/// What the alarm of a part says, if there is one.
fn alarm<'a>(status: &'a Value, part: &str) -> Option<&'a str> {
    let alarms = status["alarms"].as_array().expect("alarms");
    alarms.iter().find(|alarm| alarm["part"] == part)?["reason"].as_str()
}

/// However long visitors wait and however many there are.
fn assert_waiting_is_logged_once(gateway: &Gateway) {
    let log = gateway.log();
    let of_page = |line: &&str| line.contains("visitors have to wait") && line.contains("\"web\"");
    assert_eq!(log.lines().filter(of_page).count(), 1, "{log}");
}

#[test]
fn f26_more_visitors_than_connections() {
    let scratch = Scratch::new("visitors");
    let web = free_port();
    let config = plain(&scratch, free_port(), 1, 1);
    let config = config.replace("127.0.0.1:0", &format!("127.0.0.1:{web}"));
    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_up();
    let visit = || TcpStream::connect(("127.0.0.1", web)).expect("a backlog of the system's");
    let mut visitors: Vec<_> = (0..63).map(|_| visit()).collect();
    assert_eq!(alarm(&gateway.status(), "web"), None);
    // One for the last place and one too many, again and again: silent ones are sent away after 5 s.
    let told = wait_for("an alarm", secs(30), || {
        visitors.extend([visit(), visit()]);
        alarm(&gateway.status(), "web").map(str::to_owned)
    });
    assert!(told.contains("64 connections are open, which is the most"), "{told}");
    assert!(told.contains("ss -np"), "what to do: {told}");
    assert_waiting_is_logged_once(&gateway);
    drop(visitors);
    wait_until("an answer for the next visitor", secs(15), || {
        let mut stream = visit();
        stream.set_read_timeout(Some(secs(2))).expect("a socket option");
        let answer =
            crate::harness::gateway::talk(&mut stream, "GET /healthz HTTP/1.1\r\nHost: localhost");
        answer.is_ok_and(|(code, _)| code == 200)
    });
    assert_eq!(gateway.stop().code, Some(0));
}

#[test]
fn f26_files_that_may_not_grow() {
    let scratch = Scratch::new("fsize");
    let config = plain(&scratch, free_port(), 50, 4_000);
    let mut limited = command(program("prlimit"));
    // Above any file that is made in advance, below what ten seconds of load need.
    limited.args(["--fsize=20000000", "--"]).arg(tidegate());
    let path = scratch.file("tidegate.yaml", &config);
    let mut gateway = Gateway::start_by(&scratch, limited, &path, &[]);
    gateway.wait_up();
    let seconds = 20.0;
    gateway.wait_status("load beyond the limit", secs(60), |status| {
        (status["gateway"]["uptime_s"].as_f64()? >= seconds).then_some(())
    });
    let read = count(&gateway.status()["ledger"], "sources", "source", "read");
    assert!(read >= 9_000, "{read} rows of 4 kB");
    assert_eq!(ask(&gateway.socket(), "GET /healthz").expect("an answer").0, 200);
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
    let stopped = gateway.stop();
    assert!(stopped.took <= secs(5), "{stopped:?}");
}

/// Fewer threads than a start needs, from none at all on: it says so and ends, with a code after which it is
/// started again, or all of it is there and works. Where there is none more while it runs, readings go
/// on, a configuration whose SQL would need one is refused, and visitors hear so.
#[test]
fn f26_too_few_threads() {
    let scratch = Scratch::new("threads");
    let Some(group) = Cgroup::new("threads", "pids", "pids.max", 1) else { return };
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "#", None);
    far_side.wait_subscribed();
    let config = plain(&scratch, broker.port, 1, 1);
    let path = scratch.file("tidegate.yaml", &config);
    let log = || fs::read_to_string(scratch.join("stderr")).expect("a log");
    let mut refused = 0;
    let mut gateway = loop {
        group.set("pids.max", refused + 1);
        let told = fs::read_to_string(scratch.join("stderr")).map_or(0, |log| log.len());
        let mut gateway = Gateway::start_by(&scratch, group.run(tidegate()), &path, &[]);
        let came = wait_for("a gateway that works, or its end", secs(20), || {
            let healthy = |answer: (u16, String)| answer.0 == 200;
            let works = ask(&gateway.socket(), "GET /healthz").is_ok_and(healthy);
            (works || !gateway.runs()).then_some(works)
        });
        if came {
            break gateway;
        }
        assert_eq!(gateway.wait(secs(1)), Some(1), "{}", log());
        let log = log();
        assert!(log[told..].contains("cannot start threads: "), "{log}");
        assert!(log[told..].contains("hint: permit more of them"), "{log}");
        refused += 1;
        assert!(refused < 64, "{log}");
    };
    say(format_args!("F26: a gateway needs {} threads", refused + 1));
    let read = far_side.look(|all| all.iter().map(|r| r.int("n")).max().unwrap_or(0));
    far_side.wait_value("rows", "n", read + 10, secs(20));

    // From here on there is none more.
    let current = group.read("pids.current").trim().parse().expect("a count");
    group.set("pids.max", current);
    let changed = config.replace("SELECT time, n, pad", "SELECT time, n, n + 1 AS m, pad");
    let changed = scratch.file("changed.yaml", changed);
    let mut apply = command(tidegate());
    let applied = apply.arg("apply").arg(&changed).arg("--socket").arg(gateway.socket());
    let applied = applied.output().expect("tidegate apply");
    let says = String::from_utf8_lossy(&applied.stderr);
    assert!(!applied.status.success() && says.contains("no thread for planning"), "{says}");
    far_side.wait_value("rows", "n", read + 60, secs(20));
    assert_eq!(ask(&gateway.socket(), "GET /healthz").expect("an answer").0, 200);

    // And once there are some, it takes it.
    group.set("pids.max", current + 20);
    let applied = apply.output().expect("tidegate apply");
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    assert!(!log().contains("panic"), "{}", log());
    assert_eq!(gateway.stop().code, Some(0));
    let rows = of_stream(&far_side.records(), "rows");
    assert_contiguous(&rows);
}

/// The feed of [`feed`], and a stream that holds all that came in an hour.
fn hoard(scratch: &Scratch, broker: u16) -> String {
    let config = feed(scratch, broker);
    let config = config.replace(
        "{ name: n, type: i64 } ]",
        "{ name: n, type: i64 }, { name: pad, type: string } ]",
    );
    let hoard = "  - name: hoard\n    from: [feed]\n    window: { tumbling: { size: 1h } }\n    \
                 sql: SELECT count(DISTINCT pad) AS c FROM feed\n    to: [ { sink: uplink } ]\nsinks:";
    // The bound of the windows' memory is not what is tried here.
    format!("{}limits: {{ memory: 1GiB }}\n", config.replace("sinks:", hoard))
}

/// Publishes messages of 200 kB with the numbers `from` to `to`.
fn publish_large(client: &mut Client, from: i64, to: i64) {
    let pad = "t".repeat(200_000);
    for n in from..to {
        let message = format!("{{\"n\": {n}, \"pad\": \"{n}{pad}\"}}");
        client.publish("in", message.as_bytes()).expect("a broker");
    }
}

/// Waits until the gateway has ended, or has read so many rows since its start; true where it ended.
fn has_ended(gateway: &mut Gateway, rows: u64) -> bool {
    wait_for("all rows, or the gateway's end", secs(60), || {
        let read = |status: Value| count(&status["ledger_since_start"], "sources", "feed", "read");
        if !gateway.runs() {
            return Some(true);
        }
        gateway.try_status().is_some_and(|status| read(status) >= rows).then_some(false)
    })
}

/// The address space ends (`RLIMIT_AS`) a little above what the gateway needed without a load, and a stream
/// needs more and more of it. The gateway ends when the system gives it none, says so, and does the same when
/// it is started again, by when its windows alone need too much. Nothing is lost by that: the broker has what was not acknowledged, the
/// store what was (F1).
#[test]
fn f26_an_address_space_that_ends() {
    let scratch = Scratch::new("space");
    let broker = Broker::start(&scratch, "");
    let far_side = Subscriber::start(broker.port, "out", None);
    far_side.wait_subscribed();
    let path = scratch.file("tidegate.yaml", hoard(&scratch, broker.port));
    let mut gateway = Gateway::start_at(&scratch, &path, &[]);
    gateway.wait_up();
    let limit = (memory(gateway.pid(), "VmPeak") << 10) + (4 << 20);
    assert_eq!(gateway.stop().code, Some(0));
    let mut client = Client::connect(broker.port, "near-side").expect("a broker");
    let log = || fs::read_to_string(scratch.join("stderr")).expect("a log");
    let (mut next, mut ends) = (0, Vec::new());
    while ends.len() < 3 {
        assert!(next < 1_500, "300 MB are held in a space of {limit} bytes");
        let mut limited = command(program("prlimit"));
        limited.arg(format!("--as={limit}")).arg("--").arg(tidegate());
        let told = log().len();
        let mut gateway = Gateway::start_by(&scratch, limited, &path, &[]);
        publish_large(&mut client, next, next + 100);
        next += 100;
        if has_ended(&mut gateway, 100) {
            assert_ne!(gateway.wait(secs(1)), Some(0), "{}", log());
            // Rust's answer to an allocation that fails, the system's to one of its own, and tokio's and ours to
            // a thread that has no room for its stack.
            let says = [
                "memory allocation of",
                "Cannot allocate memory",
                "cannot start threads",
                "can't spawn worker thread",
            ];
            let log = log();
            let mut lines = log[told..].lines();
            let why = lines.find(|line| says.iter().any(|words| line.contains(words)));
            ends.push((next, why.unwrap_or_else(|| panic!("it says why: {log}")).to_owned()));
        }
    }
    say(format_args!(
        "F26: after so many messages an address space of {limit} bytes ended: {ends:?}"
    ));

    let mut gateway = Gateway::start_at(&scratch, &path, &[]);
    gateway.wait_up();
    far_side.wait_value("rows", "n", next - 1, secs(60));
    gateway.wait_drained(secs(20));
    assert_eq!(gateway.stop().code, Some(0));
    let rows = of_stream(&far_side.records(), "rows");
    repeated(&rows);
    assert_complete(&rows, "n", 0, next - 1);
    assert_contiguous(&rows);
}
