//! `first(x)` and `last(x)` over one table go by the table's time.
//!
//! Promise: the same results as by the order of the window's rows, which is that of their times; but
//! states then know their times, so that a window can be computed in pieces whose rows overlap. Over
//! a join or a union there is no one time, and the text stays what it is.

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan};

use super::TableSchema;
use crate::functions;

/// Gives each `first(x)` and `last(x)` its time where that is known.
pub(super) fn with_times(plan: LogicalPlan, tables: &[TableSchema]) -> Result<LogicalPlan> {
    plan.transform_up(|node| {
        let LogicalPlan::Aggregate(aggregate) = &node else {
            return Ok(Transformed::no(node));
        };
        let Some(time) = time_of(&aggregate.input, tables) else {
            return Ok(Transformed::no(node));
        };
        if !aggregate.aggr_expr.iter().any(lacks_time) {
            return Ok(Transformed::no(node));
        }
        let calls = aggregate.aggr_expr.iter().map(|expr| timed(expr, &time)).collect();
        let (input, groups) = (aggregate.input.clone(), aggregate.group_expr.clone());
        Ok(Transformed::yes(LogicalPlan::Aggregate(Aggregate::try_new(input, groups, calls)?)))
    })
    .data()
}

fn lacks_time(expr: &Expr) -> bool {
    let Expr::AggregateFunction(call) = expr else {
        return false;
    };
    let params = &call.params;
    functions::EDGES.contains(&call.func.name())
        && params.args.len() == 1
        && params.order_by.is_empty()
        && !params.distinct
}

/// The call with its time, under the name that it had.
fn timed(expr: &Expr, time: &Column) -> Expr {
    let Expr::AggregateFunction(AggregateFunction { func, params }) = expr else {
        return expr.clone();
    };
    if !lacks_time(expr) {
        return expr.clone();
    }
    let name = expr.schema_name().to_string();
    let mut params = params.clone();
    params.args.push(Expr::Column(time.clone()));
    Expr::AggregateFunction(AggregateFunction { func: func.clone(), params }).alias(name)
}

/// The column in which a plan hands on the event time of the one table that it reads.
fn time_of(plan: &LogicalPlan, tables: &[TableSchema]) -> Option<Column> {
    match plan {
        LogicalPlan::TableScan(scan) => {
            let table = tables.iter().find(|table| table.name == scan.table_name.table())?;
            Some(Column::new(Some(scan.table_name.clone()), &table.time_column))
        }
        LogicalPlan::Filter(filter) => time_of(&filter.input, tables),
        LogicalPlan::SubqueryAlias(alias) => {
            let time = time_of(&alias.input, tables)?;
            Some(Column::new(Some(alias.alias.clone()), time.name))
        }
        LogicalPlan::Projection(projection) => {
            let time = time_of(&projection.input, tables)?;
            projection.expr.iter().find_map(|expr| match expr {
                Expr::Column(column) if *column == time => Some(time.clone()),
                Expr::Alias(alias) if *alias.expr == Expr::Column(time.clone()) => {
                    Some(Column::new(alias.relation.clone(), &alias.name))
                }
                _ => None,
            })
        }
        _ => None,
    }
}
