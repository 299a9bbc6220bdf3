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
mod constants;
mod deadline;
mod error;
mod expansion;
mod feed;
mod growth;
mod guard;
mod guarded;
mod incremental;
mod mode;
#[cfg(test)]
mod pieces;
mod planner;
mod pool;
mod process;
mod query;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod shapes;
mod share;
mod sides;
mod sum;
mod timed;
mod together;
mod whole;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemoryCatalogProvider, MemoryCatalogProviderList,
    MemorySchemaProvider, SchemaProvider,
};
use datafusion::error::DataFusionError;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::execution::{SessionStateDefaults, context::SQLOptions};
use datafusion::logical_expr::{LogicalPlan, ScalarUDF};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::Statement as SqlStatement;

pub use condition::{Condition, rows_where};
pub use error::SqlError;
pub use mode::Mode;
pub use process::Process;
pub use query::Query;
pub use sides::{Tables, latest_names};

use crate::functions::{self, BoundsCell, Memory};
use budget::Budget;
use deadline::Deadline;
use feed::Feed;
use guarded::guarded;
use incremental::{Incremental, Refusal};
pub(crate) use planner::CountingPlanner;
use pool::Bounded;
use share::Share;
use sides::Sides;
use whole::WholeNumbers;
pub(crate) use whole::as_operators;

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
    plan_max: Option<Duration>,
    /// Whether it plans as versions before did.
    as_before: bool,
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
        let (time_max, plan_max) = (TIME_MAX, None);
        let (config, as_before) = (config(), false);
        Ok(Self { runtime, config, scalars, memory_max, time_max, plan_max, as_before })
    }

    /// Makes planning fail that takes longer: for SQL that somebody tries. Streams that run were
    /// accepted before, and must not fail where a machine has much to do.
    #[must_use]
    pub fn planning_within(self, max: Duration) -> Self {
        Self { plan_max: Some(max), ..self }
    }

    /// A planner whose queries together may hold `memory_max` of the bytes of this one, and each of
    /// whose executions may take `time_max`. A query that asks for more fails, and others go on.
    pub fn share(&self, memory_max: usize, time_max: Duration) -> Result<Self, SqlError> {
        let share = Share::new(Arc::clone(&self.runtime.memory_pool), memory_max);
        let runtime = RuntimeEnvBuilder::from_runtime_env(&self.runtime)
            .with_memory_pool(Arc::new(share))
            .build_arc()?;
        let (config, scalars) = (self.config.clone(), self.scalars.clone());
        let (plan_max, as_before) = (self.plan_max, self.as_before);
        Ok(Self { runtime, config, scalars, memory_max, time_max, plan_max, as_before })
    }

    /// A planner as those were before whole numbers were kept from wrapping around: states that such
    /// made of open windows have a meaning in its plans.
    pub(crate) fn as_before(&self) -> Result<Self, SqlError> {
        Ok(Self { as_before: true, ..self.share(self.memory_max, self.time_max)? })
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
        guard::check(sql, windowed, &|name| tables.width(name))?;
        let deadline = self.plan_max.map(Deadline::after);
        let cell = Arc::new(BoundsCell::default());
        let feed = |table: &TableSchema| Arc::new(Feed::new(Arc::clone(&table.schema)));
        let feeds: Vec<Arc<Feed>> = tables.from.iter().map(feed).collect();
        let planner = Arc::new(CountingPlanner::default());
        let mut sides = Sides::new(tables, &feeds)?;
        let state = self.state(tables, &sides, windowed.then_some(&cell), &planner, deadline)?;
        let plan = on_a_deep_stack(|| {
            let as_before = self.as_before;
            let plan = Planned::new(&state, sql, tables, &sides, windowed, &cell, as_before);
            futures::executor::block_on(plan)
        });
        let plan = plan.map_err(|e| deadline.and_then(|at| at.error()).unwrap_or(e))?;
        sides.note(&plan.physical)?;
        let times: Vec<&str> = tables.from.iter().map(|table| table.time_column.as_str()).collect();
        let parts = windowed.then(|| Incremental::of(&plan.physical, &feeds, &times));
        let (mode, parts) = match parts {
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
            ordered: parts.as_ref().is_some_and(|parts| parts.ordered),
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
        let deadline = self.plan_max.map(Deadline::after);
        self.state(&none, &Sides::new(&none, &[])?, window, &Arc::default(), deadline)
    }

    fn state(
        &self,
        tables: &Tables<'_>,
        sides: &Sides,
        window: Option<&Arc<BoundsCell>>,
        planner: &Arc<CountingPlanner>,
        deadline: Option<Deadline>,
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
        let mut expr_planners = SessionStateDefaults::default_expr_planners();
        if self.as_before {
            expr_planners.insert(0, Arc::new(whole::Wrapping));
        } else {
            aggregates.push(sum::function());
            expr_planners.insert(0, Arc::new(WholeNumbers));
        }
        let builder = SessionStateBuilder::new();
        let builder = match deadline {
            Some(deadline) => deadline.watch(builder),
            None => builder,
        };
        Ok(builder
            .with_config(self.config.clone())
            .with_runtime_env(Arc::clone(&self.runtime))
            .with_catalog_list(Arc::new(catalogs))
            .with_query_planner(Arc::<CountingPlanner>::clone(planner))
            .with_expr_planners(expr_planners)
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
        thread.join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let message = "planning this SQL failed inside of the program";
            let hint = "this is a fault of tidegate: say it in another way, and tell its makers";
            Err(SqlError::new(format!("{message}: {}", text.unwrap_or("without a word")))
                .hint(hint))
        })
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
        as_before: bool,
    ) -> Result<Self, SqlError> {
        let plan = parsed(state, sql, tables).await?;
        check::plan(&plan, windowed, sides)
            .map_err(|e| if e.hint.is_none() { e.hint(known(tables)) } else { e })?;
        // Before constants are folded, and after projections are put together.
        growth::check(&plan)?;
        let plan = if as_before { plan } else { whole::negations(plan)? };
        let text = plan.clone();
        let plan = timed::with_times(plan, tables.from)?;
        let (plan, memory) = functions::rewrite(plan, cell, windowed)?;
        functions::share::check(&plan)?;
        let logical = state.optimize(&plan)?;
        growth::check(&logical)?;
        functions::share::check(&logical)?;
        let logical = if as_before {
            logical
        } else {
            constants::check(&logical, state)?;
            guarded(logical)?
        };
        let physical = state.query_planner().create_physical_plan(&logical, state).await?;
        constants::check_aggregates(&physical)?;
        let physical = feed::in_order(physical)?;
        let (physical, by_row) =
            if windowed { (physical, false) } else { sides.keep_order(physical)? };
        Ok(Self { text, logical, physical, by_row, memory })
    }
}

/// One SELECT as DataFusion plans it.
async fn parsed(
    state: &SessionState,
    sql: &str,
    tables: &Tables<'_>,
) -> Result<LogicalPlan, SqlError> {
    let dialect = &state.config_options().sql_parser.dialect;
    let statement = state.sql_to_statement(sql, dialect).map_err(|error| {
        if let DataFusionError::NotImplemented(_) = &error {
            return check::not_a_select();
        }
        let (error, (line, column)) = (SqlError::from(error), end_of(sql));
        let error = if error.message.ends_with("EOF") { error.at(line, column) } else { error };
        match tables.unquoted(sql) {
            Some(name) => error.hint(format!("a name with a hyphen needs quotes: \"{name}\"")),
            None => error,
        }
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
        if unknown { error.hint(known(tables)) } else { error }
    })?;
    SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false)
        .verify_plan(&plan)
        .map_err(|_| check::not_a_select())?;
    Ok(plan)
}

/// Which tables there are.
fn known(tables: &Tables<'_>) -> String {
    let names: Vec<&str> = tables.from.iter().map(|t| t.name.as_str()).collect();
    let lookups: Vec<&str> = tables.lookups.iter().map(|l| l.name()).collect();
    let tables = format!("tables of this stream: {}", names.join(", "));
    if lookups.is_empty() { tables } else { format!("{tables}; lookups: {}", lookups.join(", ")) }
}
