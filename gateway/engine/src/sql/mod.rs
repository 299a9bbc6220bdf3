//! SQL over named tables: refused early with a clear text, planned once, executed many times.
//!
//! Promise: a [`Query`] gives the same rows as a freshly planned one, whatever ran before it; a text
//! that could touch files, the network, the clock or the stack is refused when it is planned.
//! It knows nothing of watermarks, logs and sinks. How a window is computed is its secret.
//! Source: design page "The engine", sections A stream and Execution; DataFusion 55.2.

#[cfg(test)]
mod bombs;
mod budget;
mod check;
mod condition;
mod error;
mod expansion;
mod feed;
mod growth;
mod guard;
mod incremental;
mod mode;
#[cfg(test)]
mod pieces;
mod planner;
mod pool;
mod process;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod shapes;
mod share;
mod sides;
mod timed;
mod together;
mod workers;

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemoryCatalogProvider, MemoryCatalogProviderList,
    MemorySchemaProvider, SchemaProvider,
};
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::execution::{SessionStateDefaults, context::SQLOptions};
use datafusion::logical_expr::{LogicalPlan, ScalarUDF};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, displayable};
use datafusion::prelude::SessionConfig;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::Statement as SqlStatement;
use futures::{FutureExt, TryStreamExt};

pub use condition::{Condition, rows_where};
pub use error::SqlError;
pub use mode::Mode;
pub use process::Process;
pub use sides::{Tables, latest_names};

use crate::bytes::batch_bytes;
use crate::functions::{self, BoundsCell, Memory};
use crate::lookup::Lookup;
use crate::window::{Bounds, Window};
use budget::Budget;
use feed::Feed;
use incremental::{Incremental, Refusal};
pub(crate) use planner::CountingPlanner;
use pool::Bounded;
use share::Share;
use sides::Sides;
use together::Twin;
use workers::Workers;

/// A table that SQL may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSchema {
    /// The name in SQL.
    pub name: String,
    /// The columns, in order: `time`, `device`, `quality`, `seq`, … and the points.
    pub schema: SchemaRef,
    /// The column that is event time: `time`, or `received_at` where arrival is taken for it. Its
    /// type is `Timestamp(Microsecond, _)` and it has no nulls.
    pub time_column: String,
}

/// Functions that are left out: the length of their result is a number in the SQL, outside of every
/// memory pool (`repeat('x', 1000000000)` is folded while it is planned), or they give another
/// result each time, also when rows are read again after a restart.
const UNBOUNDED: [&str; 5] = ["repeat", "lpad", "rpad", "random", "uuid"];

/// Functions of the clock, which a plan that is kept would freeze.
const CLOCK_FUNCTIONS: [&str; 3] = ["now", "current_date", "current_time"];

/// How long one execution may take where nobody says.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Plans SQL. One per process, which holds the memory pool that all queries share, and one made from
/// it by [`Sql::share`] for each stream.
#[derive(Debug)]
pub struct Sql {
    runtime: Arc<RuntimeEnv>,
    config: SessionConfig,
    scalars: Vec<Arc<ScalarUDF>>,
    memory_max: usize,
    time_max: Duration,
}

impl Sql {
    /// Makes a planner whose queries together may hold `memory_max` bytes in their operators
    /// (groups, sorts, joins; not the rows given to them). Nothing is spilled to disk. One execution
    /// may take 10 s.
    pub fn new(memory_max: usize) -> Result<Self, SqlError> {
        let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(Bounded::new(memory_max)))
            .with_disk_manager_builder(disk)
            .build_arc()?;
        let mut scalars = SessionStateDefaults::default_scalar_functions();
        scalars.retain(|f| !CLOCK_FUNCTIONS.contains(&f.name()) && !UNBOUNDED.contains(&f.name()));
        Ok(Self { runtime, config: config(), scalars, memory_max, time_max: TIME_MAX })
    }

    /// A planner whose queries together may hold `memory_max` of the bytes of this one, and each of
    /// whose executions may take `time_max`. A query that asks for more fails, and others go on.
    pub fn share(&self, memory_max: usize, time_max: Duration) -> Result<Self, SqlError> {
        let share = Share::new(Arc::clone(&self.runtime.memory_pool), memory_max);
        let runtime = RuntimeEnvBuilder::from_runtime_env(&self.runtime)
            .with_memory_pool(Arc::new(share))
            .build_arc()?;
        let (config, scalars) = (self.config.clone(), self.scalars.clone());
        Ok(Self { runtime, config, scalars, memory_max, time_max })
    }

    /// Plans one SELECT over `tables`. `windowed` says whether it will run over windows; without
    /// one, whatever needs more than one row is refused. Blocks for some milliseconds and needs no
    /// runtime.
    pub fn plan(
        &self,
        sql: &str,
        tables: &[TableSchema],
        windowed: bool,
    ) -> Result<Query, SqlError> {
        self.plan_with(sql, &Tables { from: tables, latest: &[], lookups: &[] }, windowed)
    }

    /// The same where SQL may also look at each device's last row, by `latest('…')`, and at
    /// lookups. Without a window these are all that may be joined: each row stays by itself.
    pub fn plan_with(
        &self,
        sql: &str,
        tables: &Tables<'_>,
        windowed: bool,
    ) -> Result<Query, SqlError> {
        guard::check(sql, windowed)?;
        let cell = Arc::new(BoundsCell::default());
        let feed = |table: &TableSchema| Arc::new(Feed::new(Arc::clone(&table.schema)));
        let feeds: Vec<Arc<Feed>> = tables.from.iter().map(feed).collect();
        let planner = Arc::new(CountingPlanner::default());
        let mut sides = Sides::new(tables, &feeds)?;
        let state = self.state(tables, &sides, windowed.then_some(&cell), &planner)?;
        let plan = on_a_deep_stack(|| {
            futures::executor::block_on(Planned::new(&state, sql, tables, &sides, windowed, &cell))
        })?;
        sides.note(&plan.physical)?;
        let (mode, parts) = match windowed.then(|| Incremental::of(&plan.physical, &feeds)) {
            None => (Mode::Stateless, None),
            Some(_) if sides.are_read() => {
                let reason = "it looks at other tables when the window is over".to_owned();
                (Mode::Recompute { reason }, None)
            }
            Some(Ok(parts)) => (Mode::Incremental, Some(parts)),
            Some(Err(Refusal::Reason(reason))) => (Mode::Recompute { reason }, None),
            Some(Err(Refusal::Failed(error))) => return Err(error.into()),
        };
        Ok(Query {
            sql: sql.to_owned(),
            mode,
            parts,
            feeds,
            sides,
            warm: None,
            cell,
            context: state.task_ctx(),
            plan,
            planner,
            conditions: Vec::new(),
            twin: None,
            budget: Arc::new(Budget::new(self.time_max)),
            result_max: self.memory_max,
            process: None,
            workers: None,
        })
    }

    /// A state that knows no table.
    fn bare_state(&self, window: Option<&Arc<BoundsCell>>) -> Result<SessionState, SqlError> {
        let none = Tables { from: &[], latest: &[], lookups: &[] };
        self.state(&none, &Sides::new(&none, &[])?, window, &Arc::default())
    }

    fn state(
        &self,
        tables: &Tables<'_>,
        sides: &Sides,
        window: Option<&Arc<BoundsCell>>,
        planner: &Arc<CountingPlanner>,
    ) -> Result<SessionState, SqlError> {
        let schema = MemorySchemaProvider::new();
        for (name, provider) in sides.named(tables) {
            if schema.register_table(name.clone(), provider)?.is_some() {
                return Err(SqlError::new(format!("table `{name}` is given twice")));
            }
        }
        let catalog = MemoryCatalogProvider::new();
        catalog.register_schema("public", Arc::new(schema))?;
        let catalogs = MemoryCatalogProviderList::new();
        catalogs.register_catalog("datafusion".into(), Arc::new(catalog));

        let mut scalars = self.scalars.clone();
        scalars.extend(functions::scalars());
        scalars.extend(window.into_iter().flat_map(functions::window_functions));
        let mut aggregates = SessionStateDefaults::default_aggregate_functions();
        aggregates.extend(functions::aggregates());
        Ok(SessionStateBuilder::new()
            .with_config(self.config.clone())
            .with_runtime_env(Arc::clone(&self.runtime))
            .with_catalog_list(Arc::new(catalogs))
            .with_query_planner(Arc::<CountingPlanner>::clone(planner))
            .with_expr_planners(SessionStateDefaults::default_expr_planners())
            .with_scalar_functions(scalars)
            .with_aggregate_functions(aggregates)
            .with_window_functions(SessionStateDefaults::default_window_functions())
            .with_table_function_list(vec![sides.function()])
            .build())
    }
}

/// The settings that make a kept plan right. Each switch that is turned off would put something of
/// one execution into the plan, or spread rows over partitions.
fn config() -> SessionConfig {
    let mut config = SessionConfig::new()
        .with_target_partitions(1)
        .with_information_schema(false)
        .with_create_default_catalog_and_schema(false);
    let options = config.options_mut();
    options.optimizer.enable_dynamic_filter_pushdown = false;
    options.optimizer.enable_join_dynamic_filter_pushdown = false;
    options.optimizer.enable_topk_dynamic_filter_pushdown = false;
    options.optimizer.enable_aggregate_dynamic_filter_pushdown = false;
    options.optimizer.enable_topk_aggregation = false;
    options.optimizer.enable_distinct_aggregation_soft_limit = false;
    // The physical form keeps the subquery's value outside the operators that are reset.
    options.optimizer.enable_physical_uncorrelated_scalar_subquery = false;
    options.optimizer.enable_round_robin_repartition = false;
    options.execution.collect_statistics = false;
    options.execution.enable_recursive_ctes = false;
    options.execution.planning_concurrency = 1;
    // A partial aggregation that meets many groups would hand on a state for each row.
    options.execution.skip_partial_aggregation_probe_ratio_threshold = 2.0;
    // Reserved for merging spilled runs; nothing is spilled, and small pools must be able to sort.
    options.execution.sort_spill_reservation_bytes = 0;
    options.sql_parser.collect_spans = true;
    options.sql_parser.map_string_types_to_utf8view = false;
    config
}

/// Stack of the thread that plans. The planner and its optimizer recurse with the depth of the
/// syntax tree, some 30 KiB a level in a debug build; [`guard`] bounds the depth, and this is more
/// than enough for it, where a caller's 2 MiB are not.
const PLANNING_STACK: usize = 32 << 20;

/// Runs `plan` on a thread of its own and waits for it. A panic of the planner becomes an error:
/// no text may take the process down.
fn on_a_deep_stack<T: Send>(
    plan: impl FnOnce() -> Result<T, SqlError> + Send,
) -> Result<T, SqlError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("sql-planner".into())
            .stack_size(PLANNING_STACK)
            .spawn_scoped(scope, plan)
            .map_err(|error| SqlError::new(format!("no thread for planning: {error}")))?;
        let panicked = |_| Err(SqlError::new("DataFusion's planner panicked over this SQL"));
        thread.join().unwrap_or_else(panicked)
    })
}

/// Where a text ends, for the parser's errors that have no position because nothing is there.
fn end_of(sql: &str) -> (u64, u64) {
    let text = sql.trim_end();
    let last = text.rsplit('\n').next().unwrap_or(text);
    ((1 + text.matches('\n').count()) as u64, last.chars().count().max(1) as u64)
}

#[derive(Debug)]
struct Planned {
    /// As it came from the SQL text.
    text: LogicalPlan,
    logical: LogicalPlan,
    physical: Arc<dyn ExecutionPlan>,
    /// Rows have to be computed one by one, or their order would be lost.
    by_row: bool,
    memory: Memory,
}

impl Planned {
    async fn new(
        state: &SessionState,
        sql: &str,
        tables: &Tables<'_>,
        sides: &Sides,
        windowed: bool,
        cell: &Arc<BoundsCell>,
    ) -> Result<Self, SqlError> {
        let known = || {
            let names: Vec<&str> = tables.from.iter().map(|t| t.name.as_str()).collect();
            let lookups: Vec<&str> = tables.lookups.iter().map(|l| l.name()).collect();
            let tables = format!("tables of this stream: {}", names.join(", "));
            if lookups.is_empty() {
                return tables;
            }
            format!("{tables}; lookups: {}", lookups.join(", "))
        };
        let dialect = &state.config_options().sql_parser.dialect;
        let statement = state.sql_to_statement(sql, dialect).map_err(|error| {
            if let DataFusionError::NotImplemented(_) = &error {
                return check::not_a_select();
            }
            let (error, (line, column)) = (SqlError::from(error), end_of(sql));
            if error.message.ends_with("EOF") { error.at(line, column) } else { error }
        })?;
        let Statement::Statement(inner) = &statement else {
            return Err(check::not_a_select());
        };
        let SqlStatement::Query(_) = inner.as_ref() else {
            return Err(check::not_a_select());
        };
        let plan = state.statement_to_plan(statement).await.map_err(|e| {
            let error = SqlError::from(e);
            let unknown = error.message.contains("table") && error.message.contains("not found");
            if unknown { error.hint(known()) } else { error }
        })?;
        SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false)
            .with_allow_statements(false)
            .verify_plan(&plan)
            .map_err(|_| check::not_a_select())?;
        check::plan(&plan, windowed, sides)
            .map_err(|e| if e.hint.is_none() { e.hint(known()) } else { e })?;
        // Before constants are folded, and after projections are put together.
        growth::check(&plan)?;
        let text = plan.clone();
        let plan = timed::with_times(plan, tables.from)?;
        let (plan, memory) = functions::rewrite(plan, cell, windowed)?;
        let logical = state.optimize(&plan)?;
        growth::check(&logical)?;
        let physical = state.query_planner().create_physical_plan(&logical, state).await?;
        let physical = feed::in_order(physical)?;
        let (physical, by_row) =
            if windowed { (physical, false) } else { sides.keep_order(physical)? };
        Ok(Self { text, logical, physical, by_row, memory })
    }
}

/// A plan that ran without a window, whose joins still have the tables beside the rows as they built
/// them: a batch of one row is not to cost a look at each row of a lookup.
#[derive(Debug)]
struct Warm {
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
    sql: String,
    mode: Mode,
    /// Where it can be computed in pieces.
    parts: Option<Incremental>,
    feeds: Vec<Arc<Feed>>,
    sides: Sides,
    warm: Option<Warm>,
    cell: Arc<BoundsCell>,
    context: Arc<TaskContext>,
    plan: Planned,
    planner: Arc<CountingPlanner>,
    budget: Arc<Budget>,
    /// Bytes that one result may have.
    result_max: usize,
    /// Who makes other rows of the results.
    process: Option<Box<dyn Process>>,
    /// Who computes pieces of a batch at the same time.
    workers: Option<Workers>,
    /// Those of the stream's window.
    conditions: Vec<Condition>,
    /// What computes many windows at once.
    twin: Option<Twin>,
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
            "mode: {mode}{together}{beside}\nlogical plan:\n{}\nphysical plan:\n{}",
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
    async fn processed(
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
    async fn run_once(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Vec<RecordBatch>, SqlError> {
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

    async fn run(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Vec<RecordBatch>, SqlError> {
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
async fn run(
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
async fn unpanicked<T>(run: impl Future<Output = Result<T, SqlError>>) -> Result<T, SqlError> {
    AssertUnwindSafe(run).catch_unwind().await.unwrap_or_else(|_| {
        Err(SqlError::new("DataFusion panicked over these rows; the log has the place"))
    })
}
