//! The streams of one test, and virtual time.
//!
//! Promise: rows go from stream to stream as they do in the gateway, under log positions, at the same
//! virtual instant; time stops wherever a window may close by the clock alone. Nothing waits for real
//! time but programs (`process:`), which are asked as the gateway asks them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::array::RecordBatch;
use tidegate_config::{Document, StreamSection, StreamTest, TestRow};
use tidegate_engine::encode::{JsonOptions, json_rows};
use tidegate_engine::store::{Commit, LogRows};
use tidegate_engine::{Counts, Effects, Event, Query, Sql, Stream, StreamSpec};
use tokio::sync::mpsc;

use super::input;
use super::programs::{Programs, Started};
use crate::build::{lookups, routes, stream_spec};
use crate::chain::{self, StreamTables, Upstream};
use crate::ledger;
use crate::lookup::load_once;
use crate::process::{Losses, Program};
use crate::stream::{Routers, Who};

/// When a test's virtual time begins: 2000-01-01T00:00:00Z, the start of a day, an hour and every
/// window of a size that divides a day.
const START: i64 = 946_684_800_000_000;
/// Instants at which windows may close between two rows, at most.
const STEPS_MAX: u32 = 1_000_000;

/// What came of a test.
#[derive(Debug, Default)]
pub(super) struct Came {
    /// The results of the tested stream.
    pub(super) rows: Vec<serde_json::Value>,
    /// What the tested stream counted.
    pub(super) counts: Counts,
    /// On how many rows each stream failed, and why; those that did not fail as well.
    pub(super) failed: BTreeMap<String, (u64, Vec<String>)>,
    /// Failures of conditions of routes.
    pub(super) troubles: Vec<String>,
    /// What the sinks were sent, by their names.
    pub(super) sent: BTreeMap<String, Vec<serde_json::Value>>,
}

/// All streams of a test.
pub(super) struct World<'d> {
    document: &'d Document,
    test: &'d StreamTest,
    /// Each behind those that it reads.
    nodes: Vec<Node>,
    /// Rows so far, by table.
    positions: BTreeMap<String, u64>,
    now: i64,
    came: Came,
}

/// One stream.
struct Node {
    name: Arc<str>,
    id_prefix: String,
    unrouted: Arc<str>,
    spec: StreamSpec,
    stream: Stream,
    routers: Routers,
    upstream: Option<Upstream>,
    /// Told why the stream's program is away.
    away: mpsc::Receiver<String>,
    /// The program, where it was started for the test.
    started: Option<Started>,
}

impl<'d> World<'d> {
    /// Plans the streams, and starts their programs where the test asks for them.
    pub(super) async fn new(
        document: &'d Document,
        sql: &Sql,
        test: &'d StreamTest,
        programs: &Programs,
    ) -> Result<Self, String> {
        let run = document.test_run(test, &chain::latest);
        let run = run.ok_or_else(|| format!("there is no stream `{}`", test.stream))?;
        let tables = StreamTables::plan(document, sql);
        let lookups = lookups(document);
        let mut nodes = Vec::new();
        for at in run.streams {
            let section = &document.streams[at];
            let event_time = test.event_time.unwrap_or(section.event_time);
            let spec = stream_spec(document, section, event_time, &tables);
            let query = spec.plan_with(sql, &section.sql, &lookups).map_err(|e| e.to_string())?;
            for lookup in query.lookups() {
                load_once(document, lookup).await?;
            }
            let programs = test.programs.then_some(programs);
            let node = Node::new(document, (section, spec, query), sql, &tables, programs).await;
            nodes.push(node.map_err(|error| format!("the stream `{}`: {error}", section.name))?);
        }
        let positions = BTreeMap::new();
        Ok(Self { document, test, nodes, positions, now: START, came: Came::default() })
    }

    /// Takes all rows of the test, and lets time pass.
    pub(super) async fn run(mut self) -> Result<Came, String> {
        for (index, row) in self.test.input.iter().enumerate() {
            self.go_to(START + row.at.micros()).await?;
            let given = self.give(row).await;
            given.map_err(|error| format!("input row {}: {error}", index + 1))?;
        }
        if let Some(until) = self.test.until {
            self.go_to(START + until.micros()).await?;
        }
        let tested = self.nodes.iter().find(|node| *node.name == *self.test.stream.as_str());
        self.came.counts = tested.map_or_else(Counts::default, |node| node.stream.counts());
        for node in &self.nodes {
            self.came.failed.entry(node.name.to_string()).or_default().0 =
                node.stream.counts().failed;
        }
        Ok(self.came)
    }

    /// Lets time pass; it does not go back.
    async fn go_to(&mut self, to: i64) -> Result<(), String> {
        let to = to.max(self.now);
        for _ in 0..STEPS_MAX {
            let due = self.nodes.iter().filter_map(|node| node.stream.next_deadline(self.now));
            let Some(at) = due.min().filter(|at| *at < to) else {
                return self.tick(to).await;
            };
            self.tick(at).await?;
        }
        Err(format!("time does not come to {} s", (to - START) / 1_000_000))
    }

    async fn tick(&mut self, now: i64) -> Result<(), String> {
        self.now = now;
        for node in 0..self.nodes.len() {
            self.apply(node, Event::Tick).await?;
        }
        Ok(())
    }

    /// Hands a row of the test to all that read its table.
    async fn give(&mut self, row: &TestRow) -> Result<(), String> {
        let table = self.document.given_to(self.test, row);
        let table = table.ok_or("say which `table` the row belongs to")?.as_str();
        let reader = self.readers(table).next();
        let (node, index) = reader.ok_or_else(|| format!("nobody reads the table `{table}`"))?;
        let schema = &self.nodes[node].spec.tables[index];
        let position = self.positions.get(table).copied().unwrap_or(0);
        let times = (START + row.at.micros(), self.now);
        let batch = input::batch(self.document, schema, row, times, position)?;
        self.positions.insert(table.to_owned(), position + 1);
        for (node, table) in self.readers(table).collect::<Vec<_>>() {
            self.apply(node, Event::Rows { table, position, batch: batch.clone() }).await?;
        }
        Ok(())
    }

    /// Who reads a table: streams, and its index there.
    fn readers(&self, table: &str) -> impl Iterator<Item = (usize, usize)> {
        let index = move |node: &Node| node.spec.tables.iter().position(|t| t.name == table);
        self.nodes.iter().enumerate().filter_map(move |(at, node)| Some((at, index(node)?)))
    }

    /// Applies an event, and what comes of it to the streams behind.
    async fn apply(&mut self, node: usize, event: Event) -> Result<(), String> {
        let mut events = VecDeque::from([(node, event)]);
        while let Some((at, event)) = events.pop_front() {
            let (effects, commit) = self.nodes[at].apply(event, self.now, &mut self.came).await?;
            let (_, reasons) = self.came.failed.entry(self.nodes[at].name.to_string()).or_default();
            for reason in effects.failures.iter().map(ToString::to_string) {
                if !reasons.contains(&reason) {
                    reasons.push(reason);
                }
            }
            if *self.nodes[at].name == *self.test.stream.as_str() {
                for output in &effects.results {
                    self.came.rows.extend(objects(&output.batch, output.first_seq)?);
                }
            }
            for LogRows { table, position, batch, .. } in commit.rows {
                let event = |table| Event::Rows { table, position, batch: batch.clone() };
                events.extend(self.readers(&table).map(|(node, table)| (node, event(table))));
            }
        }
        Ok(())
    }
}

impl Node {
    async fn new(
        document: &Document,
        (section, spec, mut query): (&StreamSection, StreamSpec, Query),
        sql: &Sql,
        tables: &StreamTables,
        programs: Option<&Programs>,
    ) -> Result<Self, String> {
        let name: Arc<str> = section.name.as_str().into();
        let (told, away) = mpsc::channel(1);
        let mut started = None;
        if let (Some(process), Some(programs)) = (&section.process, programs) {
            started = programs.start(&name, process).await?;
            let socket = started.as_ref().map_or(process.socket.as_str().into(), Started::socket);
            query.set_process(Box::new(Program::new(
                socket,
                process.timeout.duration(),
                (query.schema(), process.schema()),
                name.to_string(),
                Losses::default(),
                told,
            )));
        }
        let schema = query.schema();
        let columns = tables.get(&name).cloned();
        Ok(Self {
            id_prefix: format!("{}/1", document.gateway.name),
            unrouted: ledger::unrouted(&name),
            routers: Routers::plan(sql, &spec.tables, &schema, &routes(document, section))?,
            upstream: columns.map(|columns| Upstream::new(name.clone(), columns, Arc::default())),
            stream: Stream::new(spec.clone(), query, START).map_err(|e| e.to_string())?,
            spec,
            name,
            away,
            started,
        })
    }

    /// Applies an event, and notes what the sinks are sent.
    async fn apply(
        &mut self,
        event: Event,
        now: i64,
        came: &mut Came,
    ) -> Result<(Effects, Commit), String> {
        let before = self.stream.counts();
        let effects = tokio::select! {
            biased;
            effects = self.stream.apply(event, now) => effects.map_err(|e| e.to_string())?,
            Some(why) = self.away.recv() => return Err(self.alone(&why)),
        };
        let who = Who { stream: &self.name, id_prefix: &self.id_prefix, unrouted: &self.unrouted };
        let (mut commit, upstream) = (Commit::default(), self.upstream.as_ref());
        let errors = self.routers.put(&who, upstream, &effects, &before, now, &mut commit)?;
        came.troubles
            .extend(errors.iter().map(|error| format!("the stream `{}`: {error}", self.name)));
        for rows in &commit.outbox {
            let sent = came.sent.entry(rows.sink.to_string()).or_default();
            for body in &rows.bodies {
                let mut record: serde_json::Value =
                    serde_json::from_slice(body).map_err(|e| e.to_string())?;
                if let Some(record) = record.as_object_mut() {
                    record.insert("_stream".to_owned(), (*rows.stream).into());
                }
                sent.push(record);
            }
        }
        Ok((effects, commit))
    }

    /// Why the stream has no program, and what to do.
    fn alone(&mut self, why: &str) -> String {
        let stream = &self.name;
        match &mut self.started {
            Some(started) => format!("the stream `{stream}`: {why}{}", started.ended()),
            None => format!(
                "the stream `{stream}`: {why}; run it, or have it started: `--program '{stream}=COMMAND \
                 {{socket}}'`"
            ),
        }
    }
}

/// Rows as JSON.
fn objects(batch: &RecordBatch, first_seq: u64) -> Result<Vec<serde_json::Value>, String> {
    let options = JsonOptions { int64_as_string: false, meta: None };
    let lines = json_rows(batch, &options, first_seq).map_err(|e| e.to_string())?;
    lines.iter().map(|line| serde_json::from_slice(line).map_err(|e| e.to_string())).collect()
}
