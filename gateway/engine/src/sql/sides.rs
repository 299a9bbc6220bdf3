//! Tables that SQL may look at beside the rows that come: each device's last row, and lookups.
//!
//! Promise: within one execution such a table is the same wherever the SQL names it; and without a
//! window each row of the stream is joined by itself, in the order of the rows, so that results do
//! not depend on how rows were batched. It knows no log and no source of a lookup.
//! Source: design page "The engine", section Joins, lookups, processors.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{TableFunction, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::streaming::StreamingTableExec;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use super::TableSchema;
use super::feed::{Feed, told_in_order};
use crate::lookup::Lookup;

/// The name of the table function.
const LATEST: &str = "latest";

/// What SQL may name.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    /// The tables whose rows come to the stream.
    pub from: &'a [TableSchema],
    /// What `latest('name')` reads, by that name.
    pub latest: &'a [TableSchema],
    /// Tables that are loaded as a whole.
    pub lookups: &'a [Arc<Lookup>],
}

impl Tables<'_> {
    /// The first name with a hyphen that stands in a text, but nowhere in quotes.
    pub(super) fn unquoted(&self, sql: &str) -> Option<&str> {
        let names = self.from.iter().map(|table| table.name.as_str());
        let mut names = names.chain(self.lookups.iter().map(|lookup| lookup.name()));
        names.find(|name| {
            let quoted = format!("\"{name}\"");
            name.contains('-') && sql.contains(name) && !sql.contains(&quoted)
        })
    }

    /// How many columns the table of a name has; of one that is not known, as many as the widest that
    /// `latest` reads.
    pub(super) fn width(&self, name: &str) -> u64 {
        let of = |table: &TableSchema| table.schema.fields().len();
        let from = self.from.iter().find(|table| table.name == name).map(of);
        let lookup = || self.lookups.iter().find(|lookup| lookup.name() == name);
        let known = from.or_else(|| lookup().map(|lookup| lookup.schema().fields().len()));
        let width = known.or_else(|| self.latest.iter().map(of).max()).unwrap_or(0);
        width as u64
    }
}

/// The names in `latest('…')` of a text, each once, with line and column of the first, from 1. A
/// text that cannot be read has none; planning it tells why.
pub fn latest_names(sql: &str) -> Vec<(String, (u32, u32))> {
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location() else {
        return Vec::new();
    };
    let tokens: Vec<_> =
        tokens.iter().filter(|t| !matches!(t.token, Token::Whitespace(_))).collect();
    let mut names: Vec<(String, (u32, u32))> = Vec::new();
    for four in tokens.windows(4) {
        let (Token::Word(word), Token::LParen, Token::SingleQuotedString(name), Token::RParen) =
            (&four[0].token, &four[1].token, &four[2].token, &four[3].token)
        else {
            continue;
        };
        let called = word.quote_style.is_none() && word.value.eq_ignore_ascii_case(LATEST);
        if called && names.iter().all(|(known, _)| known != name) {
            let at = four[2].span.start;
            let place = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
            names.push((name.clone(), (place(at.line), place(at.column))));
        }
    }
    names
}

/// One table beside the rows that come.
#[derive(Debug)]
struct Side {
    feed: Arc<Feed>,
    provider: Arc<StreamingTable>,
    /// None for one that `latest` reads.
    lookup: Option<Arc<Lookup>>,
    /// Which load of the lookup was given out last.
    load: Option<u64>,
    /// The columns that the plan reads; none where it does not read the table.
    columns: Option<BTreeSet<usize>>,
}

/// All tables of one query.
#[derive(Debug)]
pub(super) struct Sides {
    from: Vec<Arc<StreamingTable>>,
    feeds: Vec<Arc<Feed>>,
    latest: Vec<(String, Side)>,
    lookups: Vec<Side>,
    /// Grows whenever a table beside the rows may have become another one.
    version: u64,
}

fn side(schema: &arrow::datatypes::SchemaRef, lookup: Option<Arc<Lookup>>) -> Result<Side> {
    let feed = Arc::new(Feed::new(Arc::clone(schema)));
    let provider = StreamingTable::try_new(Arc::clone(schema), vec![feed.clone()])?;
    Ok(Side { feed, provider: Arc::new(provider), lookup, load: None, columns: None })
}

impl Sides {
    /// Makes the tables, of which those in `feeds` are the ones whose rows come.
    pub(super) fn new(tables: &Tables<'_>, feeds: &[Arc<Feed>]) -> Result<Self> {
        let from = tables.from.iter().zip(feeds).map(|(table, feed)| {
            let schema = Arc::clone(&table.schema);
            Ok(Arc::new(StreamingTable::try_new(schema, vec![feed.clone()])?))
        });
        let latest = tables.latest.iter();
        let latest = latest.map(|table| Ok((table.name.clone(), side(&table.schema, None)?)));
        let lookups = tables.lookups.iter();
        let lookups = lookups.map(|lookup| side(lookup.schema(), Some(Arc::clone(lookup))));
        Ok(Self {
            from: from.collect::<Result<_>>()?,
            feeds: feeds.to_vec(),
            latest: latest.collect::<Result<_>>()?,
            lookups: lookups.collect::<Result<_>>()?,
            version: 0,
        })
    }

    /// What SQL names, with its name.
    pub(super) fn named(&self, tables: &Tables<'_>) -> Vec<(String, Arc<dyn TableProvider>)> {
        let from = tables.from.iter().zip(&self.from);
        let from = from.map(|(table, p)| (table.name.clone(), p.clone() as Arc<dyn TableProvider>));
        let lookups = tables.lookups.iter().zip(&self.lookups).map(|(lookup, side)| {
            (lookup.name().to_owned(), side.provider.clone() as Arc<dyn TableProvider>)
        });
        from.chain(lookups).collect()
    }

    /// `latest('…')`.
    pub(super) fn function(&self) -> Arc<TableFunction> {
        let known = self.latest.iter();
        let known = known.map(|(name, side)| (name.clone(), side.provider.clone())).collect();
        Arc::new(TableFunction::new(LATEST.into(), Arc::new(LatestFunction(known))))
    }

    /// Whether a node is a scan of a table whose rows come; `Some(false)` for another table.
    pub(super) fn scans_rows(&self, node: &LogicalPlan) -> Result<Option<bool>> {
        let LogicalPlan::TableScan(scan) = node else {
            return Ok(None);
        };
        let provider = datafusion::datasource::source_as_provider(&scan.source)?;
        let is = |table: &Arc<StreamingTable>| {
            std::ptr::addr_eq(Arc::as_ptr(table), Arc::as_ptr(&provider))
        };
        Ok(Some(self.from.iter().any(is)))
    }

    /// Whether a node is a scan of a lookup.
    pub(super) fn scans_lookup(&self, node: &LogicalPlan) -> Result<bool> {
        let LogicalPlan::TableScan(scan) = node else {
            return Ok(false);
        };
        let provider = datafusion::datasource::source_as_provider(&scan.source)?;
        let is =
            |side: &Side| std::ptr::addr_eq(Arc::as_ptr(&side.provider), Arc::as_ptr(&provider));
        Ok(self.lookups.iter().any(is))
    }

    /// Whether rows that come are read at or below a node, subqueries included.
    pub(super) fn reads_rows(&self, plan: &LogicalPlan) -> Result<bool> {
        let mut reads = false;
        plan.apply_with_subqueries(|node| {
            reads |= self.scans_rows(node)? == Some(true);
            Ok(if reads { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        Ok(reads)
    }

    /// For SQL without a window: puts the rows that come to the side of each join from which order is
    /// kept. True where a join keeps none, so that each row has to be computed by itself.
    pub(super) fn keep_order(
        &self,
        plan: Arc<dyn ExecutionPlan>,
    ) -> Result<(Arc<dyn ExecutionPlan>, bool)> {
        let mut by_row = false;
        let plan = plan
            .transform_up(|node| {
                let children = node.children();
                let [left, right] = children.as_slice() else {
                    return Ok(Transformed::no(node));
                };
                let (left_reads, right_reads) =
                    (reads(left, &self.feeds)?, reads(right, &self.feeds)?);
                if !(left_reads || right_reads) || !node.name().contains("Join") {
                    return Ok(Transformed::no(node));
                }
                let told = if left_reads {
                    vec![told_in_order(left), Arc::clone(right)]
                } else {
                    vec![Arc::clone(left), told_in_order(right)]
                };
                let kept = keep_in_join(&node, told, left_reads)?;
                by_row |= kept.is_none();
                Ok(kept.map_or_else(|| Transformed::no(node), Transformed::yes))
            })
            .data()?;
        Ok((plan, by_row))
    }

    /// Notes which of the tables the plan reads, and their columns.
    pub(super) fn note(&mut self, plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
        plan.apply(|node| {
            if let Some(scan) = node.downcast_ref::<StreamingTableExec>() {
                let all = self.latest.iter_mut().map(|(_, side)| side);
                for side in all.chain(&mut self.lookups).filter(|side| is_of(scan, &side.feed)) {
                    let columns = side.columns.get_or_insert_default();
                    match scan.projection() {
                        Some(read) => columns.extend(read.iter().copied()),
                        None => columns.extend(0..side.feed.width()),
                    }
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(())
    }

    /// The lookups that the plan reads.
    pub(super) fn lookups(&self) -> impl Iterator<Item = &Arc<Lookup>> {
        let read = self.lookups.iter().filter(|side| side.columns.is_some());
        read.filter_map(|side| side.lookup.as_ref())
    }

    /// The names in `latest` that the plan reads.
    pub(super) fn latest(&self) -> impl Iterator<Item = &str> {
        let read = self.latest.iter().filter(|(_, side)| side.columns.is_some());
        read.map(|(name, _)| name.as_str())
    }

    /// The columns that the plan reads of what `latest` reads at `index`.
    pub(super) fn latest_columns(&self, index: usize) -> BTreeSet<usize> {
        self.latest.get(index).and_then(|(_, side)| side.columns.clone()).unwrap_or_default()
    }

    /// Gives `latest` at `index` its rows, which stay until there are others.
    pub(super) fn set_latest(&mut self, index: usize, rows: RecordBatch) {
        if let Some((_, side)) = self.latest.get(index) {
            side.feed.fill(vec![rows]);
            self.version += 1;
        }
    }

    /// Gives each lookup that is read the rows that it has now.
    pub(super) fn fill_lookups(&mut self) {
        for side in self.lookups.iter_mut().filter(|side| side.columns.is_some()) {
            // The number first: rows that come in between are another load next time.
            let load = side.lookup.as_ref().map(|lookup| lookup.load());
            let rows = side.lookup.as_ref().and_then(|lookup| lookup.rows());
            side.feed.fill(rows.into_iter().collect());
            if side.load != load {
                side.load = load;
                self.version += 1;
            }
        }
    }

    /// Two executions with one version see the same tables beside the rows.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Whether the plan reads any of them.
    pub(super) fn are_read(&self) -> bool {
        self.latest().next().is_some() || self.lookups().next().is_some()
    }

    /// Lets go of the lookups' rows.
    pub(super) fn clear_lookups(&self) {
        for side in &self.lookups {
            side.feed.fill(Vec::new());
        }
    }
}

fn is_of(scan: &StreamingTableExec, feed: &Arc<Feed>) -> bool {
    scan.partitions().iter().any(|p| std::ptr::addr_eq(Arc::as_ptr(p), Arc::as_ptr(feed)))
}

/// The same join with the rows that come on its probe side; none where that keeps no order.
fn keep_in_join(
    node: &Arc<dyn ExecutionPlan>,
    children: Vec<Arc<dyn ExecutionPlan>>,
    swap: bool,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if node.downcast_ref::<HashJoinExec>().is_none() {
        return Ok(None);
    }
    let anew = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let node = Arc::clone(node).replace_children(children, anew)?;
    if !swap {
        return Ok(Some(node));
    }
    let Some(join) = node.downcast_ref::<HashJoinExec>() else {
        return Ok(None);
    };
    // `NOT IN (SELECT …)` with nulls works from one side only.
    Ok(join.swap_inputs(*join.partition_mode()).ok())
}

fn reads(plan: &Arc<dyn ExecutionPlan>, feeds: &[Arc<Feed>]) -> Result<bool> {
    let mut found = false;
    plan.apply(|node| {
        let scan = node.downcast_ref::<StreamingTableExec>();
        found |= scan.is_some_and(|scan| feeds.iter().any(|feed| is_of(scan, feed)));
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

#[derive(Debug)]
struct LatestFunction(Vec<(String, Arc<StreamingTable>)>);

impl TableFunctionImpl for LatestFunction {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let [Expr::Literal(ScalarValue::Utf8(Some(name)), _)] = args.exprs() else {
            return plan_err!(
                "`latest` takes the name of a table, a stream or a device in single quotes: \
                 latest('press')"
            );
        };
        let Some((_, table)) = self.0.iter().find(|(known, _)| known == name) else {
            return plan_err!("there is no table, stream or device `{name}` for `latest`");
        };
        Ok(Arc::clone(table) as Arc<dyn TableProvider>)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_text() {
        let sql = "SELECT * FROM m\nJOIN Latest( 'a' ) AS a ON true, latest('b'), latest('a') \
                   -- latest('no')\nWHERE x = 'latest(''c'')' AND latest > 1 AND \"latest\"('d') > \
                   0 AND latest(e) > 1";
        let expected = [("a".to_owned(), (2, 14)), ("b".to_owned(), (2, 41))];
        assert_eq!(latest_names(sql), expected);
        assert!(latest_names("SELECT 'open").is_empty());
    }
}
