//! Rows that were stamped while nobody knew the time of day, and what becomes of their times.
//!
//! Promise: such a row keeps the stamp of a monotonic clock, with the name of the machine's start that
//! this clock counts from, until it is known what has to be added, or that this will never be known.
//! That is decided once for each start and never again, and is applied whenever rows are read, so that
//! a row has the same time whoever reads it when. Knows the columns `time`, `received_at` and
//! `quality`, and no clock.
//! Source: design page "Architecture", section Time; fault F11.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::TimestampMicrosecondType;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

use super::format::{Reader, put_size};

/// By which clock rows were stamped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamps {
    /// The start of the machine since which its monotonic clock counts: the bytes of its boot id.
    pub boot: u128,
    /// What the rows' times are ahead of that clock, in microseconds.
    pub anchor: i64,
}

/// What is known of the monotonic clock of one start of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootTime {
    /// Nothing yet: its rows wait.
    Waiting,
    /// What must be added to it for microseconds since 1970 UTC.
    Set(i64),
    /// Nothing, and rows have been given out so: its rows keep their stamps, and are `uncertain`.
    Never,
}

/// How many starts are remembered. Rows of earlier ones are doubted, if any are still kept.
const BOOTS_MAX: usize = 64;

/// The starts that have rows, or had, in the order in which they came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Boots(Vec<(u128, BootTime)>);

impl Boots {
    /// Notes that there are rows of a start.
    pub(super) fn note(&mut self, boot: u128) {
        if self.0.iter().all(|(known, _)| *known != boot) {
            self.0.push((boot, BootTime::Waiting));
            let excess = self.0.len().saturating_sub(BOOTS_MAX);
            self.0.drain(..excess);
        }
    }

    /// Decides what becomes of the rows of a start; nothing where it has none, or was decided.
    pub(super) fn decide(&mut self, boot: u128, time: BootTime) {
        let waiting = self.0.iter_mut().find(|known| **known == (boot, BootTime::Waiting));
        if let Some((_, known)) = waiting {
            *known = time;
        }
    }

    /// Rows as they are to be read; `None` while they wait.
    pub(super) fn view(
        &self,
        stamps: Option<Stamps>,
        rows: RecordBatch,
    ) -> Option<Result<RecordBatch, ArrowError>> {
        let Some(stamps) = stamps else {
            return Some(Ok(rows));
        };
        match self.0.iter().find(|(boot, _)| *boot == stamps.boot) {
            Some((_, BootTime::Waiting)) => None,
            Some((_, BootTime::Set(ahead))) => {
                Some(moved(&rows, ahead.saturating_sub(stamps.anchor)))
            }
            Some((_, BootTime::Never)) | None => Some(doubted(&rows)),
        }
    }

    pub(super) fn all(&self) -> &[(u128, BootTime)] {
        &self.0
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + self.0.len() * 25);
        put_size(&mut out, self.0.len());
        for (boot, time) in &self.0 {
            out.extend_from_slice(&boot.to_le_bytes());
            let (kind, ahead) = match time {
                BootTime::Waiting => (0, 0),
                BootTime::Set(ahead) => (1, *ahead),
                BootTime::Never => (2, 0),
            };
            out.push(kind);
            out.extend_from_slice(&ahead.to_le_bytes());
        }
        out
    }

    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let mut reader = Reader(body);
        let count = reader.size()?;
        let mut boots = Vec::new();
        for _ in 0..count {
            let boot = u128::from_le_bytes(reader.take(16)?.try_into().ok()?);
            let time = match (reader.u8()?, reader.i64()?) {
                (0, _) => BootTime::Waiting,
                (1, ahead) => BootTime::Set(ahead),
                (2, _) => BootTime::Never,
                _ => return None,
            };
            boots.push((boot, time));
        }
        reader.0.is_empty().then_some(Self(boots))
    }
}

impl Stamps {
    pub(super) fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.boot.to_le_bytes());
        out.extend_from_slice(&self.anchor.to_le_bytes());
    }

    pub(super) fn take(reader: &mut Reader<'_>) -> Option<Self> {
        let boot = u128::from_le_bytes(reader.take(16)?.try_into().ok()?);
        Some(Self { boot, anchor: reader.i64()? })
    }
}

/// 2100-01-01T00:00:00Z: a source that says so of itself is not believed.
pub const LATEST: i64 = 4_102_444_800_000_000;

/// The rows with what was stamped by their arrival moved by `by` microseconds: `received_at`, and
/// `time` where it is the same; all of it in a table without `received_at`. The columns must be those
/// of a table.
pub fn moved(rows: &RecordBatch, by: i64) -> Result<RecordBatch, ArrowError> {
    let (times, arrived) = (times(rows, "time"), times(rows, "received_at"));
    let later = |at: &i64| at.saturating_add(by);
    let new_arrived = arrived.map(|arrived| arrived.iter().map(later).collect::<Vec<_>>());
    let new_times = match (times, arrived) {
        (Some(times), Some(arrived)) => {
            let own = |(time, arrived)| if time == arrived { later(time) } else { *time };
            Some(times.iter().zip(arrived).map(own).collect())
        }
        (times, _) => times.map(|times| times.iter().map(later).collect::<Vec<_>>()),
    };
    with(rows, &[("time", new_times.map(utc)), ("received_at", new_arrived.map(utc))])
}

/// The rows as those whose arrival nobody can tell the time of: `uncertain` where they were stamped by
/// it, and otherwise no earlier received than their own time, so that none is from the future. The
/// columns must be those of a table.
pub fn doubted(rows: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let (times, arrived) = (times(rows, "time"), times(rows, "received_at"));
    let by_arrival = |row: usize| match (times, arrived) {
        (Some(times), Some(arrived)) => times[row] == arrived[row],
        _ => true,
    };
    let quality = rows.column_by_name("quality").and_then(|q| q.as_string_opt::<i32>());
    let quality = quality.map(|quality| {
        let doubt = quality.iter().enumerate().map(|(row, quality)| match quality {
            Some("good") if by_arrival(row) => Some("uncertain"),
            quality => quality,
        });
        Arc::new(doubt.collect::<StringArray>()) as ArrayRef
    });
    let new_arrived = times.zip(arrived).map(|(times, arrived)| {
        let own = |(time, arrived): (&i64, &i64)| {
            if *time < LATEST { *time.max(arrived) } else { *arrived }
        };
        times.iter().zip(arrived).map(own).collect()
    });
    with(rows, &[("quality", quality), ("received_at", new_arrived.map(utc))])
}

fn times<'r>(rows: &'r RecordBatch, column: &str) -> Option<&'r [i64]> {
    let column = rows.column_by_name(column)?;
    Some(column.as_primitive_opt::<TimestampMicrosecondType>()?.values())
}

fn utc(times: Vec<i64>) -> ArrayRef {
    Arc::new(TimestampMicrosecondArray::from(times).with_timezone("UTC"))
}

/// The rows with other columns in the place of those of these names, where there are any.
fn with(rows: &RecordBatch, new: &[(&str, Option<ArrayRef>)]) -> Result<RecordBatch, ArrowError> {
    let columns = rows.schema_ref().fields().iter().zip(rows.columns());
    let columns = columns.map(|(field, column)| {
        let found = new.iter().find(|(name, _)| *name == field.name().as_str());
        found.and_then(|(_, new)| new.clone()).unwrap_or_else(|| Arc::clone(column))
    });
    RecordBatch::try_new(rows.schema(), columns.collect())
}

#[cfg(test)]
mod tests {
    use arrow::array::Int32Array;

    use super::*;

    fn polled(times: &[i64], qualities: &[&str]) -> RecordBatch {
        RecordBatch::try_from_iter([
            ("time", utc(times.to_vec())),
            ("quality", Arc::new(StringArray::from(qualities.to_vec())) as ArrayRef),
            ("n", Arc::new(Int32Array::from_iter_values((0..).take(times.len())))),
        ])
        .unwrap()
    }

    fn feed(rows: &[(i64, i64, &str)]) -> RecordBatch {
        let qualities: Vec<&str> = rows.iter().map(|row| row.2).collect();
        RecordBatch::try_from_iter([
            ("time", utc(rows.iter().map(|row| row.0).collect())),
            ("quality", Arc::new(StringArray::from(qualities)) as ArrayRef),
            ("received_at", utc(rows.iter().map(|row| row.1).collect())),
        ])
        .unwrap()
    }

    #[test]
    fn f11_what_arrival_stamped_is_moved_and_what_a_source_said_is_not() {
        let rows = polled(&[10, 20, i64::MAX], &["good", "bad", "uncertain"]);
        let expected = polled(&[1_010, 1_020, i64::MAX], &["good", "bad", "uncertain"]);
        assert_eq!(moved(&rows, 1_000).unwrap(), expected);
        let rows = feed(&[(10, 10, "good"), (7, 20, "good"), (5_000, 30, "good")]);
        let expected = feed(&[(1_010, 1_010, "good"), (7, 1_020, "good"), (5_000, 1_030, "good")]);
        assert_eq!(moved(&rows, 1_000).unwrap(), expected);
        let back = feed(&[(9, 9, "good"), (7, 19, "good"), (5_000, 29, "good")]);
        assert_eq!(moved(&rows, -1).unwrap(), back);
    }

    #[test]
    fn f11_what_arrival_stamped_is_doubted_and_what_a_source_said_is_not_from_the_future() {
        let rows = polled(&[10, 20, 30], &["good", "bad", "uncertain"]);
        let expected = polled(&[10, 20, 30], &["uncertain", "bad", "uncertain"]);
        assert_eq!(doubted(&rows).unwrap(), expected);
        // The last one says to be from after 2100: that nobody believes.
        let rows =
            feed(&[(10, 10, "good"), (7, 20, "good"), (5_000, 30, "good"), (LATEST, 40, "good")]);
        let expected =
            [(10, 10, "uncertain"), (7, 20, "good"), (5_000, 5_000, "good"), (LATEST, 40, "good")];
        assert_eq!(doubted(&rows).unwrap(), feed(&expected));
    }

    #[test]
    fn what_is_decided_is_final() {
        let mut boots = Boots::default();
        boots.decide(1, BootTime::Never);
        assert_eq!(boots, Boots::default(), "it has no rows");
        for boot in [1, 2, 1, 3] {
            boots.note(boot);
        }
        boots.decide(1, BootTime::Set(-5));
        boots.decide(1, BootTime::Never);
        boots.decide(2, BootTime::Never);
        let times = [(1, BootTime::Set(-5)), (2, BootTime::Never), (3, BootTime::Waiting)];
        assert_eq!(boots.all(), times);
        let bytes = boots.encode();
        assert_eq!(Boots::decode(&bytes), Some(boots.clone()));
        for end in 0..bytes.len() {
            assert_eq!(Boots::decode(&bytes[..end]), None, "cut at {end}");
        }
        (4..=70).for_each(|boot| boots.note(boot));
        assert_eq!((boots.all().len(), boots.all()[0].0), (64, 7), "the oldest are forgotten");
    }

    #[test]
    fn rows_are_seen_as_what_is_known_of_their_start() {
        let mut boots = Boots::default();
        (1..=3).for_each(|boot| boots.note(boot));
        boots.decide(2, BootTime::Set(1_000));
        boots.decide(3, BootTime::Never);
        let rows = polled(&[110], &["good"]);
        let seen = |boot| {
            let view = boots.view(Some(Stamps { boot, anchor: 100 }), rows.clone());
            view.map(Result::unwrap)
        };
        assert_eq!(seen(1), None);
        // 10 us after the machine's start, which was at 1,000.
        assert_eq!(seen(2), Some(polled(&[1_010], &["good"])));
        assert_eq!(seen(3), Some(polled(&[110], &["uncertain"])));
        assert_eq!(seen(4), seen(3), "nobody knows of that start");
        assert_eq!(boots.view(None, rows.clone()).map(Result::unwrap), Some(rows));
    }
}
