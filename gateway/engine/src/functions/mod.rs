//! The SQL functions that Tidegate adds to DataFusion's.
//!
//! Promise: each is documented where it is defined, has worked examples as tests, and keeps its
//! meaning when aggregates are later folded by pane (states merge in time order). Functions know
//! rows in the order that they are given; putting rows in order of time is the stream's part.
//! Source: design page "The engine", section Functions that industry needs.

mod bounds;
mod edge;
mod good_ratio;

use std::sync::Arc;

use datafusion::logical_expr::{AggregateUDF, ScalarUDF};

pub(crate) use bounds::BoundsCell;

/// Name of [`good_ratio`], for the check that it is not used with DISTINCT.
pub(crate) const GOOD_RATIO: &str = "good_ratio";

/// `window_start()` and `window_end()` over one query's cell.
pub(crate) fn window_functions(cell: &Arc<BoundsCell>) -> Vec<Arc<ScalarUDF>> {
    vec![
        Arc::new(bounds::udf(cell, true)),
        Arc::new(bounds::udf(cell, false)),
    ]
}

/// `first`, `last` and `good_ratio`.
pub(crate) fn aggregates() -> Vec<Arc<AggregateUDF>> {
    vec![
        Arc::new(AggregateUDF::new_from_impl(edge::Edge::new(false))),
        Arc::new(AggregateUDF::new_from_impl(edge::Edge::new(true))),
        Arc::new(AggregateUDF::new_from_impl(good_ratio::GoodRatio::new())),
    ]
}
