//! Which rows of a batch go to which sinks, as records.
//!
//! Promise: a route takes the rows for which its condition is true, in their order and under the
//! numbers that they have whether or not they are routed. A row that no route takes is counted. It
//! knows no windows and decides nothing about delivery.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, StringArray};
use arrow::compute::or;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use tidegate_config::check::with_text;
use tidegate_drivers::north::{Encode, Envelope, Int64Style};
use tidegate_engine::encode::{JsonOptions, Meta, json_rows_at};
use tidegate_engine::store::{Commit, OutboxRows};
use tidegate_engine::{Condition, Sql, rows_where};

/// A sink that rows go to.
#[derive(Debug, Clone)]
pub struct Target {
    /// The sink's name.
    pub sink: Arc<str>,
    /// How its records are written.
    pub encode: Encode,
    /// The durable counter of what is put into its outbox.
    pub results: Arc<str>,
    /// The condition that rows must meet, as SQL.
    pub when: Option<String>,
}

/// Rows on their way, and what their records say of them.
pub struct Routed<'a> {
    /// The rows.
    pub batch: &'a RecordBatch,
    /// `gateway/epoch`, the beginning of each record's id.
    pub id_prefix: &'a str,
    /// The stream that the records name.
    pub stream: &'a Arc<str>,
    /// The rows' quality.
    pub quality: &'static str,
    /// The number of the first row; the others follow without a gap.
    pub first_seq: u64,
    /// The window that they are of: start and end.
    pub window: Option<(i64, i64)>,
    /// When they were made, microseconds since 1970 UTC.
    pub created: i64,
}

/// Routes of rows of one form, planned.
#[derive(Debug, Default)]
pub struct Router(Vec<(Target, Option<Condition>)>);

/// What became of rows that were routed.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Rows that no route took, where there are routes.
    pub unrouted: u64,
    /// Why conditions could not be computed, in words; such rows are not taken.
    pub errors: Vec<String>,
}

impl Router {
    /// Plans the conditions of `targets` over rows with these columns.
    pub fn plan(sql: &Sql, targets: &[Target], columns: &SchemaRef) -> Result<Self, String> {
        let planned = targets.iter().map(|target| {
            let condition = target.when.as_ref().map(|text| sql.condition(text, columns));
            let condition = condition
                .transpose()
                .map_err(|error| format!("the condition of {}: {error}", target.sink))?;
            Ok((target.clone(), condition))
        });
        planned.collect::<Result<_, String>>().map(Self)
    }

    /// True without any route.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts rows into the outboxes of all sinks that they go to.
    pub fn put(&self, rows: &Routed<'_>, commit: &mut Commit) -> Result<Outcome, String> {
        let all = rows.batch.num_rows();
        let mut outcome = Outcome::default();
        let mut taken = BooleanArray::from(vec![false; all]);
        for (target, condition) in &self.0 {
            let mask = match condition {
                None => BooleanArray::from(vec![true; all]),
                Some(condition) => {
                    let (mask, failed) = condition.holds_each(rows.batch);
                    outcome.errors.extend(failed.first().map(|(_, error)| {
                        let (sink, count) = (&target.sink, failed.len());
                        format!("the condition of {sink} failed for {count} rows: {error}")
                    }));
                    mask
                }
            };
            put(target, rows, &mask, commit)?;
            taken = or(&taken, &mask).map_err(|error| error.to_string())?;
        }
        if !self.0.is_empty() {
            outcome.unrouted = (all - taken.true_count()) as u64;
        }
        Ok(outcome)
    }
}

/// Puts the rows of a mask into the outbox of a sink.
fn put(
    target: &Target,
    rows: &Routed<'_>,
    mask: &BooleanArray,
    commit: &mut Commit,
) -> Result<(), String> {
    let seqs: Vec<u64> = (rows.first_seq..)
        .zip(mask.values())
        .filter_map(|(seq, taken)| taken.then_some(seq))
        .collect();
    if seqs.is_empty() {
        return Ok(());
    }
    let taken = if seqs.len() == rows.batch.num_rows() {
        rows.batch.clone()
    } else {
        rows_where(rows.batch, mask).map_err(|error| error.to_string())?
    };
    let id_prefix = format!("{}/{}", rows.id_prefix, rows.stream);
    let bodies = bodies(&target.encode, &taken, id_prefix, rows.quality, &seqs)?;
    commit.counts.push((target.results.clone(), bodies.len() as u64));
    let mut rest = bodies.as_slice();
    // An outbox takes runs of numbers without a gap.
    for run in seqs.chunk_by(|a, b| a + 1 == *b) {
        let (first, others) = rest.split_at(run.len());
        rest = others;
        commit.outbox.push(OutboxRows {
            sink: target.sink.clone(),
            stream: rows.stream.clone(),
            first_seq: run[0],
            window: rows.window,
            created: rows.created,
            bodies: first.to_vec(),
        });
    }
    Ok(())
}

/// Writes the rows of a batch as a sink wants them.
fn bodies(
    encode: &Encode,
    batch: &RecordBatch,
    id_prefix: String,
    quality: &'static str,
    seqs: &[u64],
) -> Result<Vec<Bytes>, String> {
    let Encode::Json(json) = encode;
    // None of the sinks so far carries the id itself: MQTT 3.1.1 has no properties.
    let meta = match json.envelope.unwrap_or(Envelope::Meta) {
        Envelope::Meta => Some(Meta { id_prefix, quality }),
        Envelope::None => None,
    };
    let options = JsonOptions { int64_as_string: json.int64 == Int64Style::String, meta };
    json_rows_at(batch, &options, seqs).map_err(|e| format!("a result cannot be written: {e}"))
}

/// The longest text that a row is given to say why it is where it is.
const REASON_MAX: usize = 512;

/// A batch with one more column, the same text in each row, cut where it is longer than 512 bytes.
pub fn with_reason(batch: &RecordBatch, column: &str, text: &str) -> Result<RecordBatch, String> {
    let text = if text.len() > REASON_MAX {
        format!("{}…", &text[..text.floor_char_boundary(REASON_MAX - 3)])
    } else {
        text.to_owned()
    };
    let same = std::iter::repeat_n(text, batch.num_rows());
    let reasons: ArrayRef = Arc::new(StringArray::from_iter_values(same));
    let columns = batch.columns().iter().cloned().chain([reasons]).collect();
    RecordBatch::try_new(with_text(batch.schema_ref(), column), columns)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    fn target(sink: &str, when: Option<&str>) -> Target {
        Target {
            sink: sink.into(),
            encode: Encode::default(),
            results: format!("sink/{sink}/results").into(),
            when: when.map(str::to_owned),
        }
    }

    fn batch(values: &[Option<i64>]) -> RecordBatch {
        let schema = Schema::new(vec![Field::new("v", DataType::Int64, true)]);
        RecordBatch::try_new(Arc::new(schema), vec![Arc::new(Int64Array::from(values.to_vec()))])
            .unwrap()
    }

    fn put_all(targets: &[Target], batch: &RecordBatch) -> (Commit, Outcome) {
        let sql = Sql::new(1 << 20).unwrap();
        let router = Router::plan(&sql, targets, &batch.schema()).unwrap();
        let mut commit = Commit::default();
        let rows = Routed {
            batch,
            id_prefix: "gw/1",
            stream: &"s".into(),
            quality: "good",
            first_seq: 10,
            window: Some((0, 60)),
            created: 5,
        };
        let outcome = router.put(&rows, &mut commit).unwrap();
        (commit, outcome)
    }

    /// Sink, first number, bodies.
    fn lines(commit: &Commit) -> Vec<String> {
        let body = |body: &Bytes| String::from_utf8(body.to_vec()).unwrap();
        let line = |rows: &OutboxRows| {
            let bodies: Vec<_> = rows.bodies.iter().map(body).collect();
            format!("{} {} {}", rows.sink, rows.first_seq, bodies.join(" "))
        };
        commit.outbox.iter().map(line).collect()
    }

    #[test]
    fn each_route_takes_its_rows_under_the_numbers_that_they_have() {
        let rows = batch(&[Some(1), Some(300), Some(301), None, Some(2), Some(302)]);
        let (commit, outcome) = put_all(
            &[target("high", Some("v > 250")), target("low", Some("v = 1 OR v > 301"))],
            &rows,
        );
        let record = |seq: u64, v: i64| {
            format!("{{\"_id\":\"gw/1/s/{seq}\",\"_quality\":\"good\",\"v\":{v}}}")
        };
        let expected = [
            format!("high 11 {} {}", record(11, 300), record(12, 301)),
            format!("high 15 {}", record(15, 302)),
            format!("low 10 {}", record(10, 1)),
            format!("low 15 {}", record(15, 302)),
        ];
        assert_eq!(lines(&commit), expected);
        // NULL and 2 take no route.
        assert_eq!(outcome.unrouted, 2);
        let counts: Vec<_> = commit.counts.iter().map(|(name, n)| (&**name, *n)).collect();
        assert_eq!(counts, [("sink/high/results", 3), ("sink/low/results", 2)]);
    }

    #[test]
    fn a_route_without_a_condition_takes_all_and_nothing_is_unrouted() {
        let rows = batch(&[Some(1), Some(2)]);
        let (commit, outcome) =
            put_all(&[target("all", None), target("none", Some("v > 2"))], &rows);
        assert_eq!(commit.outbox.len(), 1);
        assert_eq!((commit.outbox[0].first_seq, commit.outbox[0].bodies.len()), (10, 2));
        assert_eq!(outcome.unrouted, 0);
        // Nothing is meant to go anywhere.
        assert_eq!(put_all(&[], &rows).1.unrouted, 0);
    }

    #[test]
    fn rows_whose_condition_fails_are_told_and_the_others_go() {
        let rows = batch(&[Some(0), Some(5)]);
        let (commit, outcome) = put_all(&[target("a", Some("10 / v = 2"))], &rows);
        assert_eq!((commit.outbox.len(), commit.outbox[0].first_seq), (1, 11));
        assert_eq!(outcome.unrouted, 1);
        assert_eq!(outcome.errors.len(), 1);
        assert!(outcome.errors[0].contains("condition of a failed for 1 rows"));
    }

    #[test]
    fn a_reason_is_one_column_and_bounded() {
        let rows = with_reason(&batch(&[Some(1), Some(2)]), "_reason", "late").unwrap();
        let (commit, _) = put_all(&[target("a", Some("_reason = 'late' AND v = 2"))], &rows);
        assert!(lines(&commit)[0].ends_with("\"v\":2,\"_reason\":\"late\"}"));
        let long = with_reason(&batch(&[Some(1)]), "_error", &"ä".repeat(1_000)).unwrap();
        let (commit, _) = put_all(&[target("a", None)], &long);
        let body = std::str::from_utf8(&commit.outbox[0].bodies[0]).unwrap();
        let text = body.split("\"_error\":\"").nth(1).unwrap().trim_end_matches("\"}");
        assert_eq!(text, format!("{}…", "ä".repeat(254)));
    }
}
