//! The SQL functions that Tidegate adds to DataFusion's.
//!
//! Promise: each is documented where it is defined and in the README, has worked examples as tests,
//! and keeps its meaning when aggregates are folded by pane (states merge in time order). Functions
//! know rows in the order that they are given; putting rows in order of time is the stream's part.
//! Source: design page "The engine", section Functions that industry needs.

mod arguments;
mod asked;
mod bounds;
mod edge;
mod finish;
mod good_ratio;
mod histogram;
mod json;
mod memory;
mod remember;
mod rewrite;
pub(crate) mod share;
mod span;
mod spans;
mod step;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use datafusion::execution::SessionStateDefaults;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF};

pub(crate) use bounds::BoundsCell;
pub(crate) use memory::{Memory, is_memory};
pub(crate) use remember::RememberPlanner;
pub(crate) use rewrite::rewrite;

use good_ratio::{Good, Told};

/// Aggregates that count rows, so that DISTINCT has no meaning in them.
pub(crate) const OF_ROWS: [&str; 2] = ["good_ratio", "good_count"];

/// DataFusion's function, and the name that is documented for it.
const PERCENTILE: (&str, &str) = ("approx_percentile_cont", "approx_percentile");

/// The names of all functions that are added to DataFusion's; the README has an example of each.
pub fn function_names() -> Vec<String> {
    let scalars = window_functions(&Arc::default()).into_iter().chain(scalars());
    let scalars = scalars.map(|function| function.name().to_owned());
    let aggregates = aggregates().into_iter().map(|function| match function.aliases() {
        [alias, ..] => alias.clone(),
        [] => function.name().to_owned(),
    });
    scalars.chain(aggregates).collect()
}

/// Whether an aggregate needs its rows in order of time, and its states merged in that order. Rows
/// of one state may come in any order; the times of two states must not overlap.
pub(crate) fn order_dependent(name: &str) -> bool {
    // What is summed stands behind a colon.
    let name = name.split(':').next().unwrap_or(name);
    asked::AGGREGATES.contains(&name) && name != asked::HISTOGRAM
}

/// The aggregates that take the value at the first or last time: `first(x, t)`, `last(x, t)`.
pub(crate) const EDGES: [&str; 2] = ["first", "last"];

/// Whether a function's value is a bound of the window that is being computed.
pub(crate) fn is_bound(name: &str) -> bool {
    name == "window_start" || name == "window_end"
}

/// `window_start()` and `window_end()` over one query's cell.
pub(crate) fn window_functions(cell: &Arc<BoundsCell>) -> Vec<Arc<ScalarUDF>> {
    vec![Arc::new(bounds::udf(cell, true)), Arc::new(bounds::udf(cell, false))]
}

/// Functions of a row; those that remember are for [`rewrite`] to replace.
pub(crate) fn scalars() -> Vec<Arc<ScalarUDF>> {
    asked::keeping().chain(json::udfs()).map(Arc::new).collect()
}

/// All aggregates; those over time and the histogram are for [`rewrite`] to replace.
pub(crate) fn aggregates() -> Vec<Arc<AggregateUDF>> {
    let percentile = SessionStateDefaults::default_aggregate_functions()
        .into_iter()
        .filter(|function| function.name() == PERCENTILE.0)
        .map(|function| function.as_ref().clone().with_aliases([PERCENTILE.1]));
    let own = [
        AggregateUDF::new_from_impl(edge::Edge::new(false)),
        AggregateUDF::new_from_impl(edge::Edge::new(true)),
        AggregateUDF::new_from_impl(Good::new(Told::Ratio)),
        AggregateUDF::new_from_impl(Good::new(Told::Count)),
    ];
    own.into_iter().chain(asked::aggregates()).chain(percentile).map(Arc::new).collect()
}
