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

/// The names of all functions that are added to DataFusion's; the README has an example of each.
pub fn function_names() -> Vec<String> {
    let scalars = window_functions(&Arc::default());
    let scalars = scalars.iter().map(|function| function.name().to_owned());
    scalars.chain(aggregates().iter().map(|function| function.name().to_owned())).collect()
}

/// `window_start()` and `window_end()` over one query's cell.
pub(crate) fn window_functions(cell: &Arc<BoundsCell>) -> Vec<Arc<ScalarUDF>> {
    vec![Arc::new(bounds::udf(cell, true)), Arc::new(bounds::udf(cell, false))]
}

/// `first`, `last` and `good_ratio`.
pub(crate) fn aggregates() -> Vec<Arc<AggregateUDF>> {
    vec![
        Arc::new(AggregateUDF::new_from_impl(edge::Edge::new(false))),
        Arc::new(AggregateUDF::new_from_impl(edge::Edge::new(true))),
        Arc::new(AggregateUDF::new_from_impl(good_ratio::GoodRatio::new())),
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{
        ArrayRef, Float64Array, StringArray, TimestampMicrosecondArray,
    };
    use datafusion::arrow::record_batch::RecordBatch;
    use datafusion::arrow::util::display::array_value_to_string;
    use datafusion::datasource::MemTable;
    use datafusion::prelude::{SessionConfig, SessionContext};

    /// Time, device, value.
    fn rows(rows: &[(i64, &str, Option<f64>)]) -> RecordBatch {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("t", Arc::new(rows.iter().map(|r| Some(r.0)).collect::<TimestampMicrosecondArray>())),
            ("d", Arc::new(StringArray::from_iter_values(rows.iter().map(|r| r.1)))),
            ("v", Arc::new(rows.iter().map(|r| r.2).collect::<Float64Array>())),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)))
            .unwrap()
    }

    /// Three partitions are folded by themselves and their states merged, as panes will be; with
    /// `skip` each row becomes a state of its own.
    async fn merged(skip: bool, sql: &str) -> Vec<String> {
        let mut config = SessionConfig::new().with_target_partitions(3);
        if skip {
            let execution = &mut config.options_mut().execution;
            execution.skip_partial_aggregation_probe_rows_threshold = 0;
            execution.skip_partial_aggregation_probe_ratio_threshold = 0.0;
        }
        let context = SessionContext::new_with_config(config);
        for function in super::aggregates() {
            context.register_udaf(function.as_ref().clone());
        }
        let parts = vec![
            vec![rows(&[(5, "a", Some(5.0)), (9, "a", None), (2, "b", Some(2.0))])],
            vec![rows(&[(1, "a", Some(1.0)), (8, "b", None)]), rows(&[(7, "a", Some(7.0))])],
            vec![rows(&[(6, "a", Some(6.0)), (3, "b", Some(3.0)), (4, "c", None)])],
        ];
        let table = MemTable::try_new(parts[0][0].schema(), parts).unwrap();
        context.register_table("m", Arc::new(table)).unwrap();
        let mut lines = Vec::new();
        for batch in context.sql(sql).await.unwrap().collect().await.unwrap() {
            for row in 0..batch.num_rows() {
                let cells = batch.columns().iter().map(|c| array_value_to_string(c, row).unwrap());
                lines.push(cells.collect::<Vec<_>>().join(" "));
            }
        }
        lines.sort();
        lines
    }

    #[tokio::test]
    async fn states_merge_in_order_of_time() {
        let sql = "SELECT d, first(v, t), last(v, t), good_ratio(v), \
                   last(v, t) FILTER (WHERE v < 6) FROM m GROUP BY d";
        let expected = ["a 1.0 7.0 0.8 5.0", "b 2.0 3.0 0.6666666666666666 3.0", "c   0.0 "];
        assert_eq!(merged(false, sql).await, expected);
        assert_eq!(merged(true, sql).await, expected);
        let sql = "SELECT first(v, t), last(v, t), good_ratio(v) FROM m";
        assert_eq!(merged(false, sql).await, ["1.0 7.0 0.6666666666666666"]);
        let none = "SELECT first(v), last(v, t), good_ratio(v) FROM m WHERE v > 99";
        assert_eq!(merged(false, none).await, ["  "]);
    }
}
