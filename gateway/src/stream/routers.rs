//! Where a stream's rows go: results, late rows and those that the SQL failed on, each to the sinks
//! of its routes, and results as rows to the streams that read them.
//!
//! Knows neither store nor clock, so that `tidegate test` sends rows the same way as the gateway.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use tidegate_config::check::{ERROR_COLUMN, REASON_COLUMN, with_text};
use tidegate_engine::store::Commit;
use tidegate_engine::{Counts, Effects, Sql, TableSchema};

use crate::chain::Upstream;
use crate::route::{Routed, Router, Target, with_reason};

/// Where the configuration sends a stream's rows.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    /// Where results go.
    pub results: Vec<Target>,
    /// Where late rows go.
    pub late: Vec<Target>,
    /// Where rows go that the SQL failed on.
    pub failed: Vec<Target>,
}

/// The same, planned with the stream's SQL: one router for each form that rows have.
#[derive(Debug, Default)]
pub struct Routers {
    results: Router,
    /// By table.
    late: Vec<Router>,
    /// By table.
    failed: Vec<Router>,
}

/// What records say of where they are from.
pub struct Who<'a> {
    /// The stream's name.
    pub stream: &'a Arc<str>,
    /// `gateway/epoch`, the beginning of each record id.
    pub id_prefix: &'a str,
    /// The durable counter of results that no route took.
    pub unrouted: &'a Arc<str>,
}

/// Rows that are no results.
struct Beside<'a> {
    /// What stands behind the stream's name.
    what: &'static str,
    quality: &'static str,
    first_seq: u64,
    created: i64,
    who: &'a Who<'a>,
}

impl Routers {
    /// Plans the conditions of a stream's routes: it reads `tables` and its results have `columns`.
    pub fn plan(
        sql: &Sql,
        tables: &[TableSchema],
        columns: &SchemaRef,
        routes: &Routes,
    ) -> Result<Self, String> {
        let side = |targets: &[Target], column: &str| {
            let form = tables.iter().map(|table| with_text(&table.schema, column));
            let planned = form.map(|columns| Router::plan(sql, targets, &columns));
            planned.collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            results: Router::plan(sql, &routes.results, columns)?,
            late: side(&routes.late, REASON_COLUMN)?,
            failed: side(&routes.failed, ERROR_COLUMN)?,
        })
    }

    /// Writes what came out for each sink, and for the streams that read it, to be committed at
    /// `now`. What was counted `before` numbers late and failed rows. Gives back why conditions
    /// failed, in words.
    pub fn put(
        &self,
        who: &Who<'_>,
        upstream: Option<&Upstream>,
        effects: &Effects,
        before: &Counts,
        now: i64,
        commit: &mut Commit,
    ) -> Result<Vec<String>, String> {
        let mut errors = Vec::new();
        for output in &effects.results {
            if let Some(upstream) = upstream {
                let rows = upstream.rows(output, now);
                commit.rows.push(rows.map_err(|e| format!("a result makes no row: {e}"))?);
            }
            let rows = Routed {
                batch: &output.batch,
                id_prefix: who.id_prefix,
                stream: who.stream,
                quality: output.quality,
                first_seq: output.first_seq,
                window: output.window.map(|w| (w.start, w.end)),
                created: now,
            };
            let outcome = self.results.put(&rows, commit)?;
            errors.extend(outcome.errors);
            if outcome.unrouted > 0 {
                commit.counts.push((who.unrouted.clone(), outcome.unrouted));
            }
        }
        let late = effects
            .late
            .iter()
            .map(|late| (&self.late[late.table], &late.batch, REASON_COLUMN, late.reason.name()));
        let first_seq = before.late + before.future;
        let beside = Beside { what: "late", quality: "uncertain", first_seq, created: now, who };
        errors.extend(beside.put(late, commit)?);
        let failed = effects.failed.iter().map(|failed| {
            (&self.failed[failed.table], &failed.batch, ERROR_COLUMN, &*failed.error)
        });
        let first_seq = before.failed_out;
        let beside = Beside { what: "error", quality: "bad", first_seq, created: now, who };
        errors.extend(beside.put(failed, commit)?);
        Ok(errors)
    }
}

impl Beside<'_> {
    /// Puts rows, with the reason in a column, into the outboxes of their sinks as those of a stream
    /// beside the one that they are from.
    fn put<'a>(
        mut self,
        rows: impl Iterator<Item = (&'a Router, &'a RecordBatch, &'a str, &'a str)>,
        commit: &mut Commit,
    ) -> Result<Vec<String>, String> {
        let stream: Arc<str> = format!("{}.{}", self.who.stream, self.what).into();
        let mut errors = Vec::new();
        for (router, batch, column, reason) in rows {
            if !router.is_empty() {
                let rows = Routed {
                    batch: &with_reason(batch, column, reason)?,
                    id_prefix: self.who.id_prefix,
                    stream: &stream,
                    quality: self.quality,
                    first_seq: self.first_seq,
                    window: None,
                    created: self.created,
                };
                errors.extend(router.put(&rows, commit)?.errors);
            }
            self.first_seq += batch.num_rows() as u64;
        }
        Ok(errors)
    }
}
