//! Ends planning that takes too long, from inside.
//!
//! A thread cannot be ended, and DataFusion's planner asks nobody. So each of its rules is put into
//! one that looks at the time before each node of the plan; when it is over the rule fails, and with
//! it the planning. Parsing, and the step from logical to physical operators, have no rules: they are
//! bounded by what [`super::guard`] lets through.

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{Analyzer, AnalyzerRule, Optimizer, OptimizerConfig, OptimizerRule};
use datafusion::physical_optimizer::optimizer::{
    PhysicalOptimizer, PhysicalOptimizerContext, PhysicalOptimizerRule,
};
use datafusion::physical_plan::ExecutionPlan;
use tokio::time::Instant;

use super::SqlError;

/// When one planning has to be over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at: Instant,
    max: Duration,
}

impl Deadline {
    /// From now on.
    pub(super) fn after(max: Duration) -> Self {
        Self { at: Instant::now() + max, max }
    }

    /// What is said where it has passed.
    pub(super) fn error(&self) -> Option<SqlError> {
        let hint = "join fewer tables, or name columns in place of `*`; what one stream computes \
                    another can read";
        let message = format!("it takes more than {:?} to plan this SQL", self.max);
        (Instant::now() >= self.at).then(|| SqlError::new(message).hint(hint))
    }

    fn look(&self) -> Result<()> {
        match self.error() {
            None => Ok(()),
            Some(error) => Err(DataFusionError::Plan(error.message)),
        }
    }

    /// Has all rules of a planner look at the time.
    pub(super) fn watch(self, builder: SessionStateBuilder) -> SessionStateBuilder {
        let analyzer = Analyzer::new().rules.into_iter();
        let analyzer = analyzer.map(|rule| Arc::new(Watched { rule, deadline: self }) as _);
        let optimizer = Optimizer::new().rules.into_iter();
        let optimizer = optimizer.map(|rule| Arc::new(Watched { rule, deadline: self }) as _);
        let physical = PhysicalOptimizer::new().rules.into_iter();
        let physical = physical.map(|rule| Arc::new(Watched { rule, deadline: self }) as _);
        builder
            .with_analyzer_rules(analyzer.collect())
            .with_optimizer_rules(optimizer.collect())
            .with_physical_optimizer_rules(physical.collect())
    }
}

/// A rule that looks at the time first.
#[derive(Debug)]
struct Watched<R: ?Sized> {
    deadline: Deadline,
    rule: Arc<R>,
}

impl AnalyzerRule for Watched<dyn AnalyzerRule + Send + Sync> {
    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        self.deadline.look()?;
        self.rule.analyze(plan, config)
    }

    fn name(&self) -> &str {
        self.rule.name()
    }
}

impl OptimizerRule for Watched<dyn OptimizerRule + Send + Sync> {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.rule.apply_order()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        self.deadline.look()?;
        self.rule.rewrite(plan, config)
    }
}

impl PhysicalOptimizerRule for Watched<dyn PhysicalOptimizerRule + Send + Sync> {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.deadline.look()?;
        self.rule.optimize(plan, config)
    }

    fn optimize_with_context(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        context: &dyn PhysicalOptimizerContext,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.deadline.look()?;
        self.rule.optimize_with_context(plan, context)
    }

    fn name(&self) -> &str {
        self.rule.name()
    }

    fn schema_check(&self) -> bool {
        self.rule.schema_check()
    }
}
