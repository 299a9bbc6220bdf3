//! DataFusion's planner, with a count of the plans that it makes.
//!
//! Promise: every physical plan of a query's session goes through here, so that "planned once" is
//! something that can be seen and not something that is said.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use futures::future::{BoxFuture, FutureExt};

use crate::functions::RememberPlanner;

#[derive(Debug, Default)]
pub(crate) struct CountingPlanner {
    plans: AtomicU64,
}

impl CountingPlanner {
    pub(super) fn plans(&self) -> u64 {
        self.plans.load(Ordering::Relaxed)
    }
}

impl QueryPlanner for CountingPlanner {
    // Written out, as `async_trait` would write it.
    fn create_physical_plan<'me, 'plan, 'state, 'all>(
        &'me self,
        logical_plan: &'plan LogicalPlan,
        state: &'state dyn Session,
    ) -> BoxFuture<'all, Result<Arc<dyn ExecutionPlan>>>
    where
        'me: 'all,
        'plan: 'all,
        'state: 'all,
        Self: 'all,
    {
        self.plans.fetch_add(1, Ordering::Relaxed);
        async move {
            DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(RememberPlanner)])
                .create_physical_plan(logical_plan, state)
                .await
        }
        .boxed()
    }
}
