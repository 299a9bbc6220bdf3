//! What reading a plant costs: memory, CPU beside a bare client, requests, and lateness.
//!
//! What runs, at N floats a second: N / 1,000 Modbus units, at most 20 on one TCP connection, with
//! 1,000 floats each in blocks of 124 registers, polled each second; all rows in the store's log,
//! committed each second; one stream with a 10 s tumbling window that averages every float by
//! device, into a file. `poll_only` is the same without the stream. The bare client sends the same
//! requests over one blocking connection, one after another, and drops the replies.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

#[cfg(test)]
use super::bare::blocks;
use super::figures::{Bar, Figure};
use super::plant::Plant;
use super::process::{Child, Observed};
use super::{Bench, block};

/// Floats of one unit.
const POINTS: u16 = 1_000;
/// Units behind one connection: `check` reckons 2 ms a request, so that 25 would fill a second.
const LINK_UNITS: u8 = 20;
const CYCLE: Duration = Duration::from_secs(1);

/// What the gateway does with what it reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Nothing: there is no stream.
    PollOnly,
    /// A 10 s tumbling average of every float.
    Window,
    /// The same, and a query that takes a core for some seconds at each close.
    HeavyQuery,
}

/// What one run came to.
struct Run {
    observed: Observed,
    requests_per_cycle: f64,
    lateness_p99_ms: f64,
}

pub(super) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    for (size, units) in [("1k", 1), ("10k", 10), ("100k", 100)] {
        let name = format!("modbus.{size}");
        if bench.wants(&format!("{name}.rss_mb"))
            || bench.wants(&format!("{name}.cpu_ratio_to_bare_client"))
            || bench.wants(&format!("{name}.requests_per_cycle"))
            || bench.wants(&format!("{name}.lateness_p99_ms"))
        {
            whole(bench, &name, units)?;
        }
        let poll_only = format!("{name}.poll_only.cpu_ratio_to_bare_client");
        if units == 100 && bench.wants(&poll_only) {
            let pairs = rounds(bench, units, Load::PollOnly)?;
            let cpu = each(&pairs, |run| run.observed.cpu_ms_per_s);
            bench.report.add(Figure::pairs(poll_only, "ms CPU/s", &cpu))?;
        }
        let heavy = format!("{name}.lateness_heavy_query_p99_ms");
        if units == 10 && bench.wants(&heavy) {
            let pairs = beside_a_query(bench, units)?;
            let late = each(&pairs, |run| run.lateness_p99_ms);
            bench.report.add(Figure::pairs(heavy, "ms", &late))?;
        }
    }
    Ok(())
}

fn whole(bench: &mut Bench, name: &str, units: u8) -> anyhow::Result<()> {
    let pairs = rounds(bench, units, Load::Window)?;
    let rss: Vec<f64> = pairs.iter().map(|(ours, _)| ours.observed.rss_mb).collect();
    let peak: Vec<f64> = pairs.iter().map(|(ours, _)| ours.observed.rss_peak_mb).collect();
    let figure = Figure::alone(format!("{name}.rss_mb"), "MB", &rss);
    bench.report.add(match units {
        10 => figure.bar(Bar::AtMost(60.0)),
        100 => figure.bar(Bar::AtMost(80.0)),
        _ => figure,
    })?;
    bench.report.add(Figure::alone(format!("{name}.rss_peak_mb"), "MB", &peak))?;
    let cpu = each(&pairs, |run| run.observed.cpu_ms_per_s);
    let figure = Figure::pairs(format!("{name}.cpu_ratio_to_bare_client"), "ms CPU/s", &cpu);
    bench.report.add(if units == 100 { figure.bar(Bar::AtMost(1.5)) } else { figure })?;
    let requests = each(&pairs, |run| run.requests_per_cycle);
    let figure = Figure::pairs(format!("{name}.requests_per_cycle"), "requests", &requests);
    bench.report.add(figure)?;
    let late = each(&pairs, |run| run.lateness_p99_ms);
    bench.report.add(Figure::pairs(format!("{name}.lateness_p99_ms"), "ms", &late))
}

fn each(pairs: &[(Run, Run)], what: impl Fn(&Run) -> f64) -> Vec<(f64, f64)> {
    pairs.iter().map(|(ours, theirs)| (what(ours), what(theirs))).collect()
}

/// Gateway and bare client in turn.
fn rounds(bench: &Bench, units: u8, load: Load) -> anyhow::Result<Vec<(Run, Run)>> {
    (0..bench.effort.rounds)
        .map(|_| Ok((gateway(bench, units, load)?, bare_client(bench, units)?)))
        .collect()
}

/// Gateways with and without a heavy query, each first in turn, so that what else the machine does
/// meets both alike.
fn beside_a_query(bench: &Bench, units: u8) -> anyhow::Result<Vec<(Run, Run)>> {
    let mut pairs = Vec::with_capacity(bench.effort.lateness_pairs);
    for pair in 0..bench.effort.lateness_pairs {
        let busy = || gateway(bench, units, Load::HeavyQuery);
        let quiet = || gateway(bench, units, Load::Window);
        pairs.push(if pair % 2 == 0 {
            let quiet = quiet()?;
            (busy()?, quiet)
        } else {
            (busy()?, quiet()?)
        });
    }
    Ok(pairs)
}

fn gateway(bench: &Bench, units: u8, load: Load) -> anyhow::Result<Run> {
    let dir = bench.fresh("modbus")?;
    let plant = Plant::start()?;
    let config = dir.join("tidegate.yaml");
    super::rest::write(&config, &document(&dir, plant.port(), units, load)?)?;
    let child = Child::tidegate(&["run", &config.display().to_string()], &dir)?;
    observe(child, &plant, bench.effort.settle, bench.effort.measure)
}

fn bare_client(bench: &Bench, units: u8) -> anyhow::Result<Run> {
    let dir = bench.fresh("modbus")?;
    let plant = Plant::start()?;
    let addr = format!("127.0.0.1:{}", plant.port());
    let args = ["bench-part", "modbus", &addr, &units.to_string(), &POINTS.to_string()];
    let child = Child::tidegate(&args, &dir)?;
    observe(child, &plant, Duration::from_secs(1), bench.effort.baseline)
}

fn observe(
    mut child: Child,
    plant: &Plant,
    settle: Duration,
    measure: Duration,
) -> anyhow::Result<Run> {
    block(async {
        // From the first request on: reading the configuration is no part of it.
        while plant.first_request().is_none() {
            child.usage()?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(settle).await;
        plant.reset();
        let observed = child.observe(measure).await?;
        let client = plant.client(CYCLE);
        Ok(Run {
            observed,
            requests_per_cycle: client.requests_per_cycle,
            lateness_p99_ms: client.lateness_p99_ms,
        })
    })
}

/// The gateway's configuration.
fn document(dir: &Path, port: u16, units: u8, load: Load) -> anyhow::Result<String> {
    let mut text = format!(
        "version: 1\n\
         gateway: {{ name: bench }}\n\
         store: {{ path: \"{dir}/store\", commit_every: 1s }}\n\
         web: {{ listen: \"127.0.0.1:0\" }}\n\
         links:\n",
        dir = dir.display()
    );
    for link in 0..units.div_ceil(LINK_UNITS) {
        writeln!(
            text,
            "  - {{ name: link_{link}, bus: {{ tcp: {{ host: 127.0.0.1, port: {port} }} }} }}"
        )?;
    }
    text.push_str("devices:\n");
    for unit in 1..=units {
        let link = (unit - 1) / LINK_UNITS;
        writeln!(
            text,
            "  - name: unit_{unit}\n    table: plant\n    driver:\n      modbus:\n        \
             link: link_{link}\n        unit_id: {unit}\n        polls: [ {{ name: all, every: 1s }} ]\n        \
             points:"
        )?;
        for point in 0..POINTS {
            let address = point * 2;
            writeln!(
                text,
                "          - {{ name: p{point}, register: holding, address: {address}, type: f32 }}"
            )?;
        }
    }
    if load == Load::HeavyQuery {
        heavy_device(&mut text)?;
    }
    if load != Load::PollOnly {
        let averages: Vec<String> = (0..POINTS).map(|p| format!("avg(p{p}) AS p{p}")).collect();
        writeln!(
            text,
            "streams:\n  - name: mean_10s\n    from: [plant]\n    window: {{ tumbling: {{ size: 10s }} }}\n    \
             sql: SELECT window_end() AS window_end, device, {} FROM plant GROUP BY device\n    \
             to: [ {{ sink: out }} ]",
            averages.join(", ")
        )?;
        if load == Load::HeavyQuery {
            heavy_stream(&mut text)?;
        }
        writeln!(
            text,
            "sinks:\n  - name: out\n    driver: {{ file: {{ path: \"{}/out.jsonl\" }} }}",
            dir.display()
        )?;
    }
    Ok(text)
}

fn heavy_device(text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "  - name: noise\n    driver:\n      generate:\n        every: 1ms\n        \
         points: [ {{ name: x, value: {{ sine: {{ amplitude: 1.0, period: 7s }} }} }} ]"
    )
}

/// Every pair of the 10,000 rows of a window: 10^8 products.
fn heavy_stream(text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "  - name: heavy\n    from: [noise]\n    window: {{ tumbling: {{ size: 10s }} }}\n    \
         sql: SELECT count(*) AS n FROM noise a JOIN noise b ON a.x * b.x > 0.5\n    \
         to: [ {{ sink: out }} ]"
    )
}

/// Requests that a cycle of `units` needs at least, in blocks of whole floats.
#[cfg(test)]
fn requests_min(units: usize) -> usize {
    units * blocks(POINTS).len()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tidegate_config::{ProcessEnvironment, SourceFile, load_and_check};

    use super::*;
    use crate::planner::EnginePlanner;

    #[test]
    fn the_gateway_asks_what_the_bare_client_asks() {
        for load in [Load::PollOnly, Load::Window, Load::HeavyQuery] {
            let text = document(&PathBuf::from("/tmp"), 502, 2, load).unwrap();
            let file = SourceFile { name: "bench.yaml".to_owned(), text };
            let planner = EnginePlanner::default();
            let checked = load_and_check(&[file], &ProcessEnvironment, &planner);
            let (loaded, _) = checked.map_err(|problems| problems.human()).unwrap();
            assert!(loaded.document.devices.len() >= 2);
        }
        assert_eq!(requests_min(100), 1_700);
    }
}
