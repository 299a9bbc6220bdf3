//! Fault F10 and promise P8: bytes that reach the flash, for each byte that the store was given.
//!
//! The store lies on an ext4 of its own, and the block device counts: journal and metadata
//! included. At 10,000 points a second, at 1,000, and with nothing to do at all. More than a day may have is
//! an alarm until the day ends.

use serde_json::Value;

use crate::harness::clock;
use crate::harness::disk::Disk;
use crate::harness::gateway::{Gateway, head};
use crate::harness::{Scratch, free_port, say, secs, soak};

/// What a rate costs.
struct Wear {
    seconds: f64,
    /// Bytes that the store was given, encoded.
    given: u64,
    /// Rows that were read: a time and ten values of eight bytes each.
    rows: u64,
    /// Bytes that reached the device.
    written: u64,
}

/// Points a second, bytes on the device for each that was given when this was last measured in full (ten
/// minutes, 2026-11-30), and what is promised for each byte of times and values.
const BARS: [(u32, f64, f64); 2] = [(1_000, 1.28, 3.0), (10_000, 1.03, 1.5)];
/// Bytes that a file system writes of its own in a short run: its superblock, and once its journal's.
const IDLE_BYTES_MAX: u64 = 12 << 10;

/// `rows` of ten points every 100 ms (none: not a device), into a 10 s window and on to a sink that is
/// away, with commits every second.
fn config(scratch: &Scratch, rows: u32) -> String {
    let head = head(scratch).replace("200ms", "1s");
    let points = (0..9).map(|n| {
        format!("{{ name: p{n}, value: {{ sine: {{ amplitude: {n}.5, period: {}s }} }} }}", n + 3)
    });
    let points = points.collect::<Vec<_>>().join(", ");
    let nobody = free_port();
    if rows == 0 {
        return head;
    }
    format!(
        "{head}
devices:
  - name: source
    driver: {{ generate: {{ every: 100ms, rows: {rows}, points: [ {{ name: n, value: {{ counter: {{}} }} }}, {points} ] }} }}
streams:
  - name: windows
    from: [source]
    window: {{ tumbling: {{ size: 10s }} }}
    sql: SELECT count(*) AS c, avg(p1) AS a, max(p2) AS b, min(p3) AS d FROM source
    to: [ {{ sink: nobody }} ]
sinks: [ {{ name: nobody, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{nobody}\" }} }} }} ]
"
    )
}

fn wear(rows: u32) -> Option<Wear> {
    let scratch = Scratch::new("wear");
    let disk = Disk::ext4(&scratch, 256)?;
    disk.take_store(&scratch);
    let mut gateway = Gateway::start(&scratch, &config(&scratch, rows));
    gateway.wait_up();
    // The start is no part of it: a store is made once.
    let warm = secs(if soak() { 20 } else { 3 });
    let look = |gateway: &mut Gateway, uptime: f64| {
        gateway.wait_status("time to pass", secs(900), |status| {
            let now = status["gateway"]["uptime_s"].as_f64()?;
            let given = status["store"]["bytes_committed"].as_u64()?;
            let sources = status["ledger"]["sources"].as_array()?;
            let read = sources.first().and_then(|source| source["read"].as_u64()).unwrap_or(0);
            (now >= uptime).then_some((now, given, read))
        })
    };
    let (began, ..) = look(&mut gateway, warm.as_secs_f64());
    disk.sync();
    let (before, (_, given_before, read_before)) = (disk.written(), look(&mut gateway, 0.0));
    let (ended, given, read) = look(&mut gateway, began + if soak() { 600.0 } else { 20.0 });
    disk.sync();
    let written = disk.written() - before;
    assert_eq!(gateway.stop().code, Some(0));
    let (given, rows) = (given - given_before, read - read_before);
    Some(Wear { seconds: ended - began, given, rows, written })
}

#[test]
fn f10_bytes_on_the_flash_for_each_byte() {
    // Side by side: each has a disk of its own.
    let costs = std::thread::scope(|scope| {
        let threads = [0, 10, 100].map(|rows| (rows, scope.spawn(move || wear(rows))));
        threads.map(|(rows, thread)| (rows, thread.join().expect("a gateway's thread")))
    });
    for (rows, cost) in costs {
        let Some(Wear { seconds, given, rows: read, written }) = cost else { continue };
        let factor = written as f64 / given as f64;
        let day = written as f64 / seconds * 86_400.0 / 1e6;
        let rate = rows * 100;
        if rows == 0 {
            say(format_args!("F10: idle {seconds:.0} s: {written} bytes, {day:.1} MB a day"));
            assert!(written <= IDLE_BYTES_MAX || soak(), "{written} bytes while nothing happened");
            assert!(day <= 10.0 || !soak(), "{day:.1} MB a day while nothing happens");
            continue;
        }
        let of_values = written as f64 / (read * (8 + 10 * 8)) as f64;
        say(format_args!(
            "F10: {rate} points a second for {seconds:.0} s: {given} bytes given, {written} on the \
             device, {factor:.2} for each, {of_values:.2} for each of times and values, {day:.0} MB a day"
        ));
        let bars = BARS.iter().find(|(of, ..)| *of == rate);
        let (_, measured, promised) = bars.expect("a rate with bars");
        assert!(of_values <= *promised, "{of_values:.2} at {rate} points a second");
        // Refuses one redb file with all rows, which took 4.7 and 1.7. More than a tenth above what was
        // measured is a regression; a short run, perhaps beside many others, commits in
        // other portions, and what the file system writes every few seconds is a larger part of it.
        let bar = measured * if soak() { 1.1 } else { 1.5 };
        assert!(factor <= bar, "{factor:.2} at {rate} points a second, more than {bar:.2}");
    }
}

/// Seconds from a clock that is right to 23:50 of the day (UTC) after the present one: no day ends in
/// the test by itself.
fn until_late_tomorrow() -> i64 {
    let now = clock::micros_now() / 1_000_000;
    86_400 - now.rem_euclid(86_400) + 86_400 - 600
}

/// What the store's alarms say of the bytes of a day.
fn alarm(status: &Value) -> Option<String> {
    let alarms = status["alarms"].as_array().expect("alarms").iter();
    let mut told = alarms.filter(|alarm| alarm["part"] == "store");
    let told =
        told.find_map(|alarm| alarm["reason"].as_str().filter(|r| r.contains("daily_writes")));
    told.map(str::to_owned)
}

fn written_today(status: &Value) -> u64 {
    status["store"]["written_today"].as_u64().expect("a number")
}

/// `store.daily_writes`: a gateway writes more in a day than its owner permits. It says so until the day ends
/// (UTC), also over a restart, and counts anew the day after.
#[test]
fn p08_more_than_a_day_may_have_is_an_alarm_until_the_day_ends() {
    /// Bytes more than were written before: some five seconds of rows.
    const MORE: u64 = 512 << 10;
    let scratch = Scratch::new("budget");
    let (head, nobody, pad) = (head(&scratch), free_port(), "t".repeat(4_000));
    // Some 100 kB a second, as rows and as records.
    let config = format!(
        "{head}
devices:
  - name: source
    driver: {{ generate: {{ every: 100ms, points: [ {{ name: pad, value: {{ choice: [ {pad} ] }} }} ] }} }}
streams: [ {{ name: rows, from: [source], sql: 'SELECT pad FROM source', to: [ {{ sink: nobody }} ] }} ]
sinks: [ {{ name: nobody, driver: {{ mqtt: {{ url: \"mqtt://127.0.0.1:{nobody}\" }} }} }} ]
"
    );
    let late = until_late_tomorrow();
    let mut gateway = clock::start(&scratch, &config, late);
    gateway.wait_up();
    assert_eq!(alarm(&gateway.status()), None, "nobody set a budget");
    assert_eq!(gateway.stop().code, Some(0));
    let mut gateway = clock::start(&scratch, &head, late);
    let before = gateway.wait_status("bytes of before the start", secs(10), |status| {
        Some(written_today(status)).filter(|written| *written > 0)
    });
    assert_eq!(gateway.stop().code, Some(0));

    let budget = before + MORE;
    let permitted =
        config.replace("commit_every", &format!("daily_writes: {budget}B, commit_every"));
    assert_ne!(permitted, config);
    let mut gateway = clock::start(&scratch, &permitted, late);
    // As soon as it is too much, and no sooner.
    let right = |status: &Value| {
        assert_eq!(alarm(status).is_some(), written_today(status) > budget, "{status:#}");
        alarm(status)
    };
    let within = gateway.wait_status("bytes of before the start", secs(10), |status| {
        (written_today(status) >= before).then(|| status.clone())
    });
    assert_eq!((right(&within), &within["store"]["daily_writes"]), (None, &budget.into()));
    let told = gateway.wait_status("the alarm", secs(60), right);
    assert!(told.ends_with(&format!("more than `daily_writes`: {budget}")), "{told}");
    assert_eq!(gateway.stop().code, Some(0));

    // The same day.
    let mut gateway = clock::start(&scratch, &permitted, late);
    gateway.wait_status("the alarm of the same day", secs(20), right);
    // Midnight was ten minutes after the start.
    clock::set(&scratch, late + 700);
    let began = gateway.wait_status("the day after", secs(20), |status| {
        right(status).is_none().then(|| written_today(status))
    });
    assert!(began < MORE, "counted anew: {began}");
    gateway.wait_status("bytes of the day after", secs(20), |status| {
        right(status);
        (written_today(status) > began).then_some(())
    });
    assert_eq!(gateway.stop().code, Some(0));
}
