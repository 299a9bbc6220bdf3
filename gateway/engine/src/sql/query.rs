//! A planned query and its executions.
//!
//! Promise: an execution leaves nothing behind that the next one could see, but for what functions
//! remember, which a run that fails has not changed; it ends within its time and its memory, and a
//! panic of DataFusion is an error. It knows no text: planning is the parent's part.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, displayable};
use futures::{FutureExt, TryStreamExt};

use super::budget::{self, Budget};
use super::feed::Feed;
use super::incremental::Incremental;
use super::mode;
use super::sides::Sides;
use super::together::Twin;
use super::workers::Workers;
use super::{Condition, CountingPlanner, Mode, Planned, Process, Sql, SqlError, on_a_deep_stack};
use crate::bytes::batch_bytes;
use crate::functions::{BoundsCell, Memory};
use crate::lookup::Lookup;
use crate::window::{Bounds, Window};

/// A plan that ran without a window, whose joins still have the tables beside the rows as they built
/// them: a batch of one row is not to cost a look at each row of a lookup.
#[derive(Debug)]
pub(super) struct Warm {
    plan: Arc<dyn ExecutionPlan>,
    /// Of the tables beside the rows.
    version: u64,
    runs: u32,
}

/// Runs of a plan that is not reset at most: its metrics grow with each.
const WARM_RUNS: u32 = 1_000;

/// A planned SELECT.
#[derive(Debug)]
pub struct Query {
    pub(super) sql: String,
    pub(super) mode: Mode,
    /// Where it can be computed in pieces.
    pub(super) parts: Option<Incremental>,
    /// Whether it can be so and goes by the order of its rows.
    pub(super) ordered: bool,
    pub(super) feeds: Vec<Arc<Feed>>,
    pub(super) sides: Sides,
    pub(super) warm: Option<Warm>,
    pub(super) cell: Arc<BoundsCell>,
    pub(super) context: Arc<TaskContext>,
    pub(super) plan: Planned,
    pub(super) planner: Arc<CountingPlanner>,
    pub(super) budget: Arc<Budget>,
    /// Bytes that one result may have.
    pub(super) result_max: usize,
    /// Who makes other rows of the results.
    pub(super) process: Option<Box<dyn Process>>,
    /// Who computes pieces of a batch at the same time.
    pub(super) workers: Option<Workers>,
    /// Those of the stream's window.
    pub(super) conditions: Vec<Condition>,
    /// What computes many windows at once.
    pub(super) twin: Option<Twin>,
}

impl Query {
    /// Makes it compute many windows in one execution, where its SQL is such that this gives the
    /// same; otherwise they are computed one by one.
    pub(crate) fn with_twin(mut self, sql: &Sql) -> Result<Self, SqlError> {
        let [feed] = &self.feeds[..] else {
            return Ok(self);
        };
        if self.sides.are_read() {
            return Ok(self);
        }
        let (table, output) = (feed.schema(), self.plan.physical.schema());
        let state = sql.bare_state(Some(&self.cell))?;
        let twin = Twin::of(&self.plan.text, table, &output, &state, &self.cell);
        self.twin = on_a_deep_stack(|| Ok(futures::executor::block_on(twin)))?;
        Ok(self)
    }

    /// Makes it compute windows one by one.
    #[cfg(test)]
    pub(crate) fn without_twin(self) -> Self {
        Self { twin: None, ..self }
    }

    /// Whether it computes many windows in one execution.
    pub fn computes_together(&self) -> bool {
        self.twin.is_some()
    }

    /// Adds the conditions of the stream's window.
    pub(crate) fn with_conditions(self, conditions: Vec<Condition>) -> Self {
        Self { conditions, ..self }
    }

    /// The conditions of the stream's window, in the order in which it has them.
    pub(crate) fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// The columns of the result.
    pub fn schema(&self) -> SchemaRef {
        match &self.process {
            Some(process) => process.schema(),
            None => self.plan.physical.schema(),
        }
    }

    /// From now on `process` makes other rows of the results.
    pub fn set_process(&mut self, process: Box<dyn Process>) {
        self.process = Some(process);
        // It is given the results of one window at a time.
        self.twin = None;
    }

    /// Lets up to `count` workers compute pieces of a batch at the same time, on the threads of the
    /// runtime; results stay in the order of the rows. Changes nothing where the query runs over
    /// windows, remembers rows, or reads more than one table.
    pub fn set_workers(&mut self, count: usize) {
        self.workers = (count > 1 && !self.windowed() && !self.remembers())
            .then(|| {
                let (context, budget) = (&self.context, &self.budget);
                let plan = &self.plan.physical;
                Workers::of(count, plan, &self.feeds, context, budget, self.result_max)
            })
            .flatten();
    }

    /// Whether it was planned to run over windows.
    pub fn windowed(&self) -> bool {
        self.mode != Mode::Stateless
    }

    /// Its text.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// How it is computed over windows that are runs of panes; other kinds keep their rows.
    pub fn mode(&self) -> &Mode {
        &self.mode
    }

    /// How the query is computed and why, and its plans, as text for a person.
    pub fn explain(&self) -> String {
        let mode = match &self.mode {
            Mode::Stateless if self.remembers() => {
                "by row: each row is filtered and shaped by itself \
                 and by what functions remember of the rows before"
                    .to_owned()
            }
            mode => mode.to_string(),
        };
        let order = if self.ordered { mode::in_order() } else { String::new() };
        let together = match &self.twin {
            Some(_) => "; windows that are over together are computed in one execution",
            None => "",
        };
        let latest = self.sides.latest().map(|name| format!("latest('{name}')"));
        let lookups = self.sides.lookups().map(|lookup| lookup.name().to_owned());
        let beside: Vec<String> = latest.chain(lookups).collect();
        let beside = match beside.as_slice() {
            [] => String::new(),
            beside => format!("; looks at {}", beside.join(", ")),
        };
        format!(
            "mode: {mode}{order}{together}{beside}\nlogical plan:\n{}\nphysical plan:\n{}",
            self.plan.logical.display_indent(),
            displayable(self.plan.physical.as_ref()).indent(false)
        )
    }

    /// The lookups that the SQL reads. One that was never loaded is empty.
    pub fn lookups(&self) -> impl Iterator<Item = &Arc<Lookup>> {
        self.sides.lookups()
    }

    /// The columns that the SQL reads of what `latest` reads, by index as given to
    /// [`Sql::plan_with`].
    pub(crate) fn latest_columns(&self, index: usize) -> BTreeSet<usize> {
        self.sides.latest_columns(index)
    }

    /// Gives `latest` its rows, which stay until there are others.
    pub(crate) fn set_latest(&mut self, index: usize, rows: RecordBatch) {
        self.sides.set_latest(index, rows);
    }

    /// Says how the windows are made that this query runs over, before it first runs: functions
    /// over time need to know where a value holds that came before.
    pub fn over(&self, window: &Window) {
        self.cell.over(window);
    }

    /// Whether it has functions whose results depend on earlier runs, or on the bounds of the window
    /// that runs: it must run over one window at a time, in order of time.
    pub fn remembers(&self) -> bool {
        !self.plan.memory.is_empty()
    }

    /// What functions remember.
    pub(crate) fn memory(&self) -> &Memory {
        &self.plan.memory
    }

    /// How often a physical plan was made for this query: 1, however often it ran.
    pub fn plans(&self) -> u64 {
        self.planner.plans()
    }

    /// Runs the query over `inputs`: for each table, in the order given to [`Sql::plan`], its rows.
    /// `bounds` is what `window_start()` and `window_end()` return. The rows come in an order that
    /// depends on the inputs alone. Needs a tokio runtime, and gives others of its thread a turn every
    /// few milliseconds. An execution that takes longer, or whose result is larger, than the query's
    /// planner allows is an error. After an error (a panic of DataFusion is one) or a dropped future
    /// the query can be run again.
    ///
    /// # Panics
    /// Where `inputs` has not one entry per table, or `bounds` is given without a window or the
    /// other way round.
    pub async fn execute(
        &mut self,
        inputs: Vec<Vec<RecordBatch>>,
        bounds: Option<Bounds>,
    ) -> Result<Vec<RecordBatch>, SqlError> {
        assert_eq!(inputs.len(), self.feeds.len(), "rows for each table of the query");
        assert_eq!(bounds.is_some(), self.windowed(), "bounds exactly where there is a window");
        let result = self.compute(inputs, bounds).await;
        self.processed(result, bounds).await
    }

    /// What the program makes of results, where there is one.
    pub(super) async fn processed(
        &mut self,
        result: Result<Vec<RecordBatch>, SqlError>,
        bounds: Option<Bounds>,
    ) -> Result<Vec<RecordBatch>, SqlError> {
        match (&mut self.process, result) {
            (Some(process), Ok(results)) if !results.is_empty() => {
                process.process(results, bounds).await.map_err(SqlError::new)
            }
            (_, result) => result,
        }
    }

    async fn compute(
        &mut self,
        mut inputs: Vec<Vec<RecordBatch>>,
        bounds: Option<Bounds>,
    ) -> Result<Vec<RecordBatch>, SqlError> {
        if let Some(workers) = &mut self.workers {
            let rows = &mut inputs[workers.table];
            let pieces = workers.pieces(rows.iter().map(RecordBatch::num_rows).sum());
            if pieces > 1 {
                return workers.execute(std::mem::take(rows), pieces).await;
            }
        }
        if let Some(bounds) = bounds {
            self.cell.set(bounds);
        }
        self.sides.fill_lookups();
        self.plan.memory.begin();
        let result = self.run_over(inputs).await;
        self.settle(result.is_ok());
        for feed in &self.feeds {
            feed.fill(Vec::new());
        }
        self.sides.clear_lookups();
        result
    }

    /// Runs a plan whose functions may remember something; where it fails they have not.
    pub(super) async fn run_once(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
    ) -> Result<Vec<RecordBatch>, SqlError> {
        self.plan.memory.begin();
        let result = self.run(plan).await;
        self.settle(result.is_ok());
        result
    }

    /// Keeps what functions remember of a run that did not fail.
    fn settle(&self, done: bool) {
        if done {
            self.plan.memory.commit();
        } else {
            self.plan.memory.rollback();
        }
    }

    /// Runs the plan over all rows at once, or over each by itself.
    async fn run_over(
        &mut self,
        inputs: Vec<Vec<RecordBatch>>,
    ) -> Result<Vec<RecordBatch>, SqlError> {
        if !self.plan.by_row {
            for (feed, rows) in self.feeds.iter().zip(inputs) {
                feed.fill(rows);
            }
            return self.run_own().await;
        }
        let mut results = Vec::new();
        for (feed, batches) in self.feeds.clone().into_iter().zip(inputs) {
            for batch in batches {
                for row in 0..batch.num_rows() {
                    feed.fill(vec![batch.slice(row, 1)]);
                    results.extend(self.run_own().await?);
                }
            }
            feed.fill(Vec::new());
        }
        Ok(results)
    }

    /// Runs the query over many windows at once, in order: for each its bounds, and how many of the
    /// rows of the one table are its. Gives back the rows of each. An error says that one of them
    /// failed, not which.
    ///
    /// # Panics
    /// Where the query does not compute windows together.
    pub(crate) async fn execute_together(
        &mut self,
        inputs: Vec<Vec<RecordBatch>>,
        windows: Vec<(Bounds, usize)>,
    ) -> Result<Vec<Vec<RecordBatch>>, SqlError> {
        assert_eq!(inputs.len(), 1, "a query over one table");
        let failed = |error| SqlError::from(DataFusionError::from(error));
        let (mut results, lacks_empty) = match &self.twin {
            None => return Err(SqlError::new("this query computes one window at a time")),
            Some(twin) => {
                twin.fill(&inputs[0], &windows).map_err(failed)?;
                let result = self.run(&twin.physical).await;
                twin.clear();
                (twin.split(result?, windows.len()).map_err(failed)?, twin.lacks_empty())
            }
        };
        let mut first = 0;
        for (result, (bounds, rows)) in results.iter_mut().zip(windows) {
            if result.is_empty() && lacks_empty {
                let all = inputs[0].iter();
                let own = all.map(|batch| batch.slice(first, rows)).collect();
                *result = self.execute(vec![own], Some(bounds)).await?;
            }
            first += rows;
        }
        Ok(results)
    }

    /// Runs the query's own plan, with what its joins built the last time where that still holds.
    async fn run_own(&mut self) -> Result<Vec<RecordBatch>, SqlError> {
        // Rows that come are on the probe side of every join, of which nothing is kept.
        if self.windowed() || self.plan.by_row || !self.sides.are_read() {
            return self.run(&self.plan.physical).await;
        }
        let version = self.sides.version();
        let warm = self.warm.take();
        let warm = warm.filter(|warm| warm.version == version && warm.runs < WARM_RUNS);
        let (plan, runs) = match warm {
            Some(warm) => (warm.plan, warm.runs),
            None => (fresh(&self.plan.physical, &self.budget)?, 0),
        };
        let (context, budget) = (&self.context, &self.budget);
        let results = unpanicked(run_as_it_is(&plan, context, budget, self.result_max)).await?;
        self.warm = Some(Warm { plan, version, runs: runs + 1 });
        Ok(results)
    }

    pub(super) async fn run(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
    ) -> Result<Vec<RecordBatch>, SqlError> {
        unpanicked(run(plan, &self.context, &self.budget, self.result_max)).await
    }
}

/// A copy of a plan that has nothing of what the plan built (a join's table, a limit's count), and
/// that the budget interrupts.
fn fresh(
    plan: &Arc<dyn ExecutionPlan>,
    budget: &Arc<Budget>,
) -> Result<Arc<dyn ExecutionPlan>, SqlError> {
    Ok(budget::watched(reset_plan_states(Arc::clone(plan))?, budget)?)
}

/// Runs a fresh copy of a plan to its end, within its time and with results of at most `result_max`
/// bytes.
pub(super) async fn run(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    budget: &Arc<Budget>,
    result_max: usize,
) -> Result<Vec<RecordBatch>, SqlError> {
    run_as_it_is(&fresh(plan, budget)?, context, budget, result_max).await
}

/// The same with what the plan built before.
async fn run_as_it_is(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    budget: &Arc<Budget>,
    result_max: usize,
) -> Result<Vec<RecordBatch>, SqlError> {
    budget.begin();
    let (mut results, mut bytes) = (Vec::new(), 0);
    for partition in 0..plan.output_partitioning().partition_count() {
        let mut stream = plan.execute(partition, Arc::clone(context))?;
        while let Some(batch) = stream.try_next().await? {
            if batch.num_rows() == 0 {
                continue;
            }
            bytes += batch_bytes(&batch);
            if bytes > result_max {
                let share = "the SQL's share of memory (`limits.memory`)";
                let message = format!("the result has more than {result_max} bytes, {share}");
                return Err(SqlError::new(message).hint("does a join lack its condition?"));
            }
            results.push(batch);
        }
    }
    Ok(results)
}

/// Nothing that a run touches outlives it, so a panic leaves nothing half done.
pub(super) async fn unpanicked<T>(
    run: impl Future<Output = Result<T, SqlError>>,
) -> Result<T, SqlError> {
    AssertUnwindSafe(run).catch_unwind().await.unwrap_or_else(|_| {
        Err(SqlError::new("DataFusion panicked over these rows; the log has the place"))
    })
}
