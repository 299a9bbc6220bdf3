//! Rows of one batch on several threads, where the SQL looks at one row at a time.
//!
//! Promise: the results are those of one thread, in the order of the rows, whichever piece is done
//! first. Each worker has a copy of the plan with a table of its own; it was planned once. What
//! remembers rows, or reads a table in two places, has no workers.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};

use super::SqlError;
use super::budget::Budget;
use super::feed::Feed;
use super::query::{run, unpanicked};

/// Rows of a piece at least: below, handing it over costs more than it saves.
const PIECE_ROWS: usize = 256;

/// Copies of a plan that work at the same time.
#[derive(Debug)]
pub(super) struct Workers {
    count: usize,
    /// The table that the plan reads, by its index.
    pub(super) table: usize,
    plan: Arc<dyn ExecutionPlan>,
    feed: Arc<Feed>,
    context: Arc<TaskContext>,
    allowed: Budget,
    result_max: usize,
    idle: Vec<Worker>,
}

#[derive(Debug)]
struct Worker {
    feed: Arc<Feed>,
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    budget: Arc<Budget>,
    result_max: usize,
}

impl Workers {
    /// Up to `count` workers over `plan`; none where it does not read exactly one of `feeds` once.
    pub(super) fn of(
        count: usize,
        plan: &Arc<dyn ExecutionPlan>,
        feeds: &[Arc<Feed>],
        context: &Arc<TaskContext>,
        budget: &Budget,
        result_max: usize,
    ) -> Option<Self> {
        let mut read = Vec::new();
        let walked = plan.apply(|node| {
            if let Some(table) = node.downcast_ref::<StreamingTableExec>() {
                read.extend(table.partitions().iter().map(|p| Arc::as_ptr(p).cast::<()>()));
            }
            Ok(TreeNodeRecursion::Continue)
        });
        let (Ok(_), [table]) = (walked, &read[..]) else {
            return None;
        };
        let table = feeds.iter().position(|feed| Arc::as_ptr(feed).cast::<()>() == *table)?;
        Some(Self {
            count,
            table,
            plan: Arc::clone(plan),
            feed: Arc::clone(&feeds[table]),
            context: Arc::clone(context),
            allowed: budget.another(),
            result_max,
            idle: Vec::new(),
        })
    }

    /// How many pieces so many rows are worth.
    pub(super) fn pieces(&self, rows: usize) -> usize {
        self.count.min(rows / PIECE_ROWS)
    }

    /// Computes rows in so many pieces. Needs a tokio runtime. When the future is dropped, pieces
    /// under way come to their end without anybody to hear of it.
    pub(super) async fn execute(
        &mut self,
        rows: Vec<RecordBatch>,
        pieces: usize,
    ) -> Result<Vec<RecordBatch>, SqlError> {
        let mut tasks = Vec::with_capacity(pieces);
        for rows in cut(rows, pieces) {
            let worker = match self.idle.pop() {
                Some(worker) => worker,
                None => self.another()?,
            };
            tasks.push(tokio::spawn(worker.execute(rows)));
        }
        let (mut results, mut failed) = (Vec::new(), None);
        for task in tasks {
            match task.await {
                Ok((worker, result)) => {
                    self.idle.push(worker);
                    match result {
                        Ok(batches) => results.extend(batches),
                        Err(error) => failed = failed.or(Some(error)),
                    }
                }
                Err(error) => failed = failed.or(Some(SqlError::new(error.to_string()))),
            }
        }
        failed.map_or(Ok(results), Err)
    }

    fn another(&self) -> Result<Worker, SqlError> {
        let feed = Arc::new(Feed::new(Arc::clone(self.feed.schema())));
        let plan = Arc::clone(&self.plan).transform_up(|node| {
            let Some(table) = node.downcast_ref::<StreamingTableExec>() else {
                return Ok(Transformed::no(node));
            };
            let projection = table.projection().as_ref().map(|columns| columns.to_vec());
            let copy = StreamingTableExec::try_new(
                Arc::clone(table.partition_schema()),
                vec![Arc::<Feed>::clone(&feed)],
                projection.as_ref(),
                table.projected_output_ordering(),
                table.is_infinite(),
                table.limit(),
            )?;
            let copy: Arc<dyn ExecutionPlan> = Arc::new(copy);
            Ok(Transformed::yes(copy))
        });
        Ok(Worker {
            plan: plan.data()?,
            feed,
            context: Arc::clone(&self.context),
            budget: Arc::new(self.allowed.another()),
            result_max: self.result_max,
        })
    }
}

impl Worker {
    async fn execute(self, rows: Vec<RecordBatch>) -> (Self, Result<Vec<RecordBatch>, SqlError>) {
        self.feed.fill(rows);
        let ran = run(&self.plan, &self.context, &self.budget, self.result_max);
        let result = unpanicked(ran).await;
        self.feed.fill(Vec::new());
        (self, result)
    }
}

/// Cuts rows into pieces of about equal length, in their order.
fn cut(batches: Vec<RecordBatch>, pieces: usize) -> Vec<Vec<RecordBatch>> {
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let length = rows.div_ceil(pieces.max(1)).max(1);
    let mut cut = vec![Vec::new()];
    let mut room = length;
    for batch in batches {
        let mut first = 0;
        while first < batch.num_rows() {
            if room == 0 {
                cut.push(Vec::new());
                room = length;
            }
            let taken = room.min(batch.num_rows() - first);
            if let Some(piece) = cut.last_mut() {
                piece.push(batch.slice(first, taken));
            }
            first += taken;
            room -= taken;
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::super::shapes::{rows, tables};
    use super::super::*;
    use super::*;

    fn numbers(batches: &[RecordBatch]) -> Vec<i64> {
        let column = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().clone();
        batches.iter().flat_map(|batch| column(batch).values().to_vec()).collect()
    }

    #[test]
    fn pieces_are_in_order_and_about_equal() {
        let batch = |from, to| {
            let column = Arc::new(Int64Array::from_iter_values(from..to)) as _;
            RecordBatch::try_from_iter([("n", column)]).unwrap()
        };
        let cut = cut(vec![batch(0, 5), batch(5, 6), batch(6, 11)], 3);
        let pieces: Vec<Vec<i64>> = cut.iter().map(|piece| numbers(piece)).collect();
        assert_eq!(pieces, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9, 10]]);
    }

    /// The first rows take much longer than the last ones, and come first all the same.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn results_keep_the_order_of_rows() {
        let sql = Sql::new(64 << 20).unwrap();
        // Nested calls that only rows below 1,000 pay for; rows divisible by 7 are left out.
        let slow = "length(replace(replace(replace(concat(device, n, v), 'a', 'bb'), 'b', 'cc'), 'c', 'd'))";
        let text = format!(
            "SELECT n, CASE WHEN n < 1000 THEN {slow} ELSE 0 END AS l FROM m WHERE n % 7 <> 0"
        );
        let all: Vec<_> = (0..4_000).map(|n| (n, "a", Some(1.0), n)).collect();
        let expected: Vec<i64> = (0..4_000).filter(|n| n % 7 != 0).collect();
        for count in [1, 4, 16] {
            let mut query = sql.plan(&text, &tables(), false).unwrap();
            query.set_workers(count);
            for _ in 0..3 {
                let inputs = vec![vec![rows(&all)], vec![]];
                let results = query.execute(inputs, None).await.unwrap();
                assert_eq!(numbers(&results), expected, "{count} workers");
            }
            assert_eq!(query.plans(), 1, "planned once, however many work");
            // The other table is not read: no row, and no failure.
            let other = query.execute(vec![vec![], vec![rows(&all)]], None).await.unwrap();
            assert_eq!(numbers(&other), Vec::<i64>::new());
        }
    }

    #[tokio::test]
    async fn a_piece_that_fails_fails_the_batch_and_no_other() {
        let sql = Sql::new(64 << 20).unwrap();
        let mut query = sql.plan("SELECT 10 / (n - 900) AS x FROM m", &tables(), false).unwrap();
        query.set_workers(4);
        let batch = |from: i64| {
            let all: Vec<_> = (from..from + 1_000).map(|n| (n, "a", None, n)).collect();
            vec![vec![rows(&all)], vec![]]
        };
        let error = query.execute(batch(0), None).await.unwrap_err();
        assert!(error.message.contains("Divide by zero"), "{error:?}");
        let rest = query.execute(batch(1_000), None).await.unwrap();
        assert_eq!(rest.iter().map(RecordBatch::num_rows).sum::<usize>(), 1_000);
    }
}
