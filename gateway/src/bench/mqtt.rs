//! MQTT in, 1 s tumbling SQL, MQTT out, beside a client that only counts.
//!
//! One load publishes as fast as the broker takes it. The gateway subscribes, counts and averages
//! by sensor in windows of 1 s by arrival, and publishes the results; what it took is what its
//! results say it counted. The baseline is a rumqttc loop on the same broker under the same load.
//! At QoS 1 the gateway acknowledges after its commit; the loop acknowledges at once and keeps
//! nothing, so a second loop that appends and syncs before it acknowledges is measured as well.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rumqttc::{AsyncClient, Event, MqttOptions, Packet, QoS};
use tokio::time::Instant;

use super::broker::Server;
use super::figures::{Bar, Figure, median};
use super::process::Child;
use super::{Bench, block};

/// Seconds until load and subscriber are up to speed.
const SETTLE: Duration = Duration::from_secs(3);

/// One figure's setting.
struct Case {
    name: &'static str,
    qos: u8,
    /// Unacknowledged messages that the broker sends at most.
    in_flight: u32,
}

const CASES: [Case; 3] = [
    Case { name: "mqtt.window.qos0", qos: 0, in_flight: 20 },
    Case { name: "mqtt.window.qos1", qos: 1, in_flight: 10_000 },
    Case { name: "mqtt.window.qos1.in_flight_20", qos: 1, in_flight: 20 },
];

pub(super) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    let mut broker = None;
    for case in &CASES {
        let name = format!("{}.ratio_to_client_loop", case.name);
        if !bench.wants(&name) {
            continue;
        }
        let (mut pairs, mut durable) = (Vec::new(), Vec::new());
        for _ in 0..bench.effort.rounds {
            let dir = bench.fresh("mqtt")?;
            let server = Server::start(&dir, case.in_flight)?;
            broker = Some(server.program);
            let ours = gateway(bench, &dir, server.addr, case)?;
            let args = ["bench-part", "mqtt-loop", &server.addr.to_string(), &case.qos.to_string()];
            pairs.push((ours, counted(bench, &dir, server.addr, case, &args)?));
            if case.qos == 1 {
                let (addr, file) = (server.addr.to_string(), dir.join("appended"));
                let file = file.display().to_string();
                let args = ["bench-part", "mqtt-durable-loop", &addr, &file];
                durable.push((ours, counted(bench, &dir, server.addr, case, &args)?));
            }
        }
        let figure = Figure::pairs(name, "messages/s", &pairs);
        bench.report.add(figure.bar(Bar::AtLeast(0.6)))?;
        if !durable.is_empty() {
            let name = format!("{}.ratio_to_durable_client_loop", case.name);
            bench.report.add(Figure::pairs(name, "messages/s", &durable))?;
        }
    }
    if let Some(broker) = broker {
        bench.report.note(format!("mqtt: the broker was {broker}"));
    }
    Ok(())
}

fn load(dir: &Path, addr: SocketAddr, case: &Case) -> anyhow::Result<Child> {
    let args = ["bench-part", "mqtt-load", &addr.to_string(), &case.qos.to_string()];
    Child::tidegate(&args, dir)
}

/// Messages a second of a loop: the median of its seconds.
fn counted(
    bench: &Bench,
    dir: &Path,
    addr: SocketAddr,
    case: &Case,
    args: &[&str],
) -> anyhow::Result<f64> {
    let mut child = Child::tidegate(args, dir)?;
    let lines = child.output()?.lines();
    let mut load = load(dir, addr, case)?;
    let skip = usize::try_from(SETTLE.as_secs())?;
    let take = usize::try_from(bench.effort.baseline.as_secs())?;
    let mut rates = Vec::new();
    for line in lines.skip(skip).take(take) {
        rates.push(line?.parse::<f64>()?);
        load.usage()?;
    }
    anyhow::ensure!(rates.len() == take, "the counting loop ended; see stderr.log");
    Ok(median(&rates))
}

/// Messages a second through the gateway: the median of its windows.
fn gateway(bench: &Bench, dir: &Path, addr: SocketAddr, case: &Case) -> anyhow::Result<f64> {
    let config = dir.join("tidegate.yaml");
    super::rest::write(&config, &document(dir, addr, case.qos))?;
    block(async {
        let mut windows = Windows::subscribe(addr).await?;
        let mut child = Child::tidegate(&["run", &config.display().to_string()], dir)?;
        let mut load = load(dir, addr, case)?;
        windows.listen(SETTLE).await?;
        windows.counts.clear();
        windows.listen(bench.effort.baseline + Duration::from_secs(2)).await?;
        child.usage()?;
        load.usage()?;
        // The first and the last window are not whole.
        let counts: Vec<f64> = windows.counts.values().copied().collect();
        anyhow::ensure!(counts.len() > 2, "no results came; see stderr.log");
        Ok(median(&counts[1..counts.len() - 1]))
    })
}

fn document(dir: &Path, addr: SocketAddr, qos: u8) -> String {
    format!(
        "version: 1\n\
         gateway: {{ name: bench }}\n\
         store: {{ path: \"{dir}/store\", commit_every: 1s }}\n\
         web: {{ listen: \"127.0.0.1:0\" }}\n\
         devices:\n  - name: feed\n    driver:\n      mqtt:\n        url: mqtt://{addr}\n        \
         topics: [ bench/in ]\n        qos: {qos}\n        points:\n          \
         - {{ name: sensor, type: string }}\n          - {{ name: value, type: f64 }}\n          \
         - {{ name: n, type: i64 }}\n\
         streams:\n  - name: each_second\n    from: [feed]\n    event_time: arrival\n    \
         window: {{ tumbling: {{ size: 1s }} }}\n    sql: |\n      \
         SELECT window_end() AS window_end, sensor, count(*) AS messages, avg(value) AS mean\n      \
         FROM feed GROUP BY sensor\n    to: [ {{ sink: out }} ]\n\
         sinks:\n  - name: out\n    driver:\n      mqtt: {{ url: \"mqtt://{addr}\", \
         topic: \"bench/out\", qos: {qos}, in_flight: 20 }}\n",
        dir = dir.display()
    )
}

/// What the gateway published: messages by the end of their window.
struct Windows {
    counts: BTreeMap<String, f64>,
    events: rumqttc::EventLoop,
    _client: AsyncClient,
}

impl Windows {
    async fn subscribe(addr: SocketAddr) -> anyhow::Result<Self> {
        let mut options = MqttOptions::new("bench-results", (addr.ip().to_string(), addr.port()));
        options.set_max_packet_size(1 << 20, 1 << 20);
        let (client, mut events) = AsyncClient::builder(options).capacity(16).build();
        client.subscribe("bench/out", QoS::AtLeastOnce).await?;
        while !matches!(events.poll().await?, Event::Incoming(Packet::SubAck(_))) {}
        Ok(Self { counts: BTreeMap::new(), events, _client: client })
    }

    async fn listen(&mut self, span: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + span;
        while let Ok(event) = tokio::time::timeout_at(until, self.events.poll()).await {
            let Event::Incoming(Packet::Publish(publish)) = event? else {
                continue;
            };
            let row: serde_json::Value = serde_json::from_slice(&publish.payload)?;
            let end = row.get("window_end").and_then(|v| v.as_str()).unwrap_or_default();
            let messages = row.get("messages").and_then(serde_json::Value::as_f64);
            *self.counts.entry(end.to_owned()).or_default() += messages.unwrap_or_default();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tidegate_config::{ProcessEnvironment, SourceFile, load_and_check};

    use super::*;
    use crate::planner::EnginePlanner;

    #[test]
    fn the_gateways_configuration_is_one() {
        let addr = SocketAddr::from(([127, 0, 0, 1], 1883));
        let text = document(&PathBuf::from("/tmp"), addr, 1);
        let file = SourceFile { name: "bench.yaml".to_owned(), text };
        let planner = EnginePlanner::default();
        let checked = load_and_check(&[file], &ProcessEnvironment, &planner);
        checked.map_err(|problems| problems.human()).unwrap();
    }
}
