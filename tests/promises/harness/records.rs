//! What leaves the gateway, as `design/wire.md` promises it: one JSON object a row, each with an
//! id that never changes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// One record as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// The MQTT topic; empty where it came by a file.
    pub(crate) topic: String,
    /// The bytes as text.
    pub(crate) text: String,
    /// The same as JSON.
    pub(crate) body: Value,
}

impl Record {
    /// Reads a record; anything but one JSON object is a failure.
    pub(crate) fn new(topic: &str, payload: &[u8]) -> Self {
        let text = String::from_utf8(payload.to_vec()).expect("UTF-8");
        let body = serde_json::from_str::<Value>(&text)
            .unwrap_or_else(|error| panic!("`{text}` on `{topic}` is not JSON: {error}"));
        assert!(body.is_object(), "`{text}` on `{topic}` is not one JSON object");
        Self { topic: topic.to_owned(), text, body }
    }

    /// The record's id.
    pub(crate) fn id(&self) -> &str {
        self.text_of("_id")
    }

    /// The id's parts: gateway, epoch, stream, sequence number.
    pub(crate) fn id_parts(&self) -> (&str, u64, &str, u64) {
        let parts: Vec<_> = self.id().split('/').collect();
        let [gateway, epoch, stream, seq] = parts[..] else { panic!("the id `{}`", self.id()) };
        (gateway, epoch.parse().expect("an epoch"), stream, seq.parse().expect("a number"))
    }

    /// Whether it only says that records are missing (`{"gap": …}`).
    pub(crate) fn is_gap(&self) -> bool {
        !self.body["gap"].is_null()
    }

    /// The stream that it is from.
    pub(crate) fn stream(&self) -> &str {
        self.id().split('/').nth(2).unwrap_or_else(|| panic!("the id `{}`", self.id()))
    }

    /// The first and the last number that are missing, and why, where this is the notice of a gap.
    pub(crate) fn gap(&self) -> Option<(u64, u64, &str)> {
        let gap = self.body.get("gap")?;
        let end = |name: &str| {
            let id = gap[name].as_str().unwrap_or_else(|| panic!("{name} in {}", self.text));
            let (stream, number) = id.rsplit_once('/').expect("an id");
            assert!(self.id().starts_with(&format!("{stream}/")), "{}", self.text);
            number.parse().expect("a number")
        };
        Some((end("from"), end("to"), gap["reason"].as_str().expect("a reason")))
    }

    /// A whole number.
    pub(crate) fn int(&self, name: &str) -> i64 {
        self.body[name].as_i64().unwrap_or_else(|| panic!("{name} in {}", self.text))
    }

    /// A number.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.body[name].as_f64().unwrap_or_else(|| panic!("{name} in {}", self.text))
    }

    /// A text.
    pub(crate) fn text_of(&self, name: &str) -> &str {
        self.body[name].as_str().unwrap_or_else(|| panic!("{name} in {}", self.text))
    }

    /// A point in time, microseconds since 1970 UTC.
    pub(crate) fn micros(&self, name: &str) -> i64 {
        micros(self.text_of(name))
    }
}

/// All lines of a text as records; the last one must be whole too.
pub(crate) fn lines(text: &str) -> Vec<Record> {
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is not whole");
    text.lines().map(|line| Record::new("", line.as_bytes())).collect()
}

/// The records of one stream, without notices of gaps.
pub(crate) fn of_stream(records: &[Record], stream: &str) -> Vec<Record> {
    let of_stream = |record: &&Record| record.stream() == stream && record.gap().is_none();
    records.iter().filter(of_stream).cloned().collect()
}

/// Panics unless each number of a stream up to the highest arrived, or is told to be missing, and
/// none both. Returns how many are missing, by reason.
pub(crate) fn assert_told(records: &[Record], stream: &str) -> BTreeMap<String, u64> {
    let mut missing = BTreeMap::new();
    let mut told = BTreeSet::new();
    let of_stream = records.iter().filter(|record| record.stream() == stream);
    for (from, to, reason) in of_stream.clone().filter_map(Record::gap) {
        for number in from..=to {
            if told.insert(number) {
                *missing.entry(reason.to_owned()).or_default() += 1;
            }
        }
    }
    let arrived: BTreeSet<_> =
        of_stream.filter(|r| r.gap().is_none()).map(|record| record.id_parts().3).collect();
    let both: Vec<_> = arrived.intersection(&told).collect();
    assert!(both.is_empty(), "told to be missing, and arrived: {both:?}");
    let all: BTreeSet<_> = arrived.union(&told).copied().collect();
    let (first, last) = (all.first().copied().unwrap_or(0), all.last().copied().unwrap_or(0));
    let silent: Vec<_> = (first..=last).filter(|number| !all.contains(number)).collect();
    assert!(silent.is_empty() && first <= 1, "missing from {first} to {last}: {silent:?}");
    missing
}

/// Panics where an id came with two different contents. Returns how many records came again.
pub(crate) fn repeated(records: &[Record]) -> usize {
    let mut seen = BTreeMap::new();
    let mut repeated = 0;
    for record in records {
        if let Some(before) = seen.insert(record.id(), &record.text) {
            assert_eq!(before, &record.text, "one id with two contents");
            repeated += 1;
        }
    }
    repeated
}

/// Records of one stream that come again after a kill -9 at most, from a sink without lanes that is
/// handed `deliver_rows` at once: 1,000 deliveries make its cursor durable, so that 999 were marked before
/// the last of those that were; that one, and one that was under way while the cursor was written.
pub(crate) fn again_max(deliver_rows: u64) -> u64 {
    999 + 2 * deliver_rows
}

/// How many records came again, for each time that the far side heard an earlier one than before:
/// there its sender has begun anew. The records are of one stream.
pub(crate) fn again(records: &[Record]) -> Vec<u64> {
    let (mut highest, mut last) = (None, None);
    let mut again = Vec::new();
    for number in records.iter().map(|record| record.id_parts().3) {
        if let Some(highest) = highest.filter(|_| last >= Some(number)) {
            again.push(highest + 1 - number);
        }
        highest = highest.max(Some(number));
        last = Some(number);
    }
    again
}

/// The values of a column in the order of their first arrival.
pub(crate) fn first_arrivals(records: &[Record], column: &str) -> Vec<i64> {
    let mut seen = BTreeSet::new();
    let values = records.iter().map(|record| record.int(column));
    values.filter(|value| seen.insert(*value)).collect()
}

/// Panics unless each of `first..=last` arrived, in this order of first arrivals, and nothing else.
pub(crate) fn assert_complete(records: &[Record], column: &str, first: i64, last: i64) {
    let arrived = first_arrivals(records, column);
    let set: BTreeSet<_> = arrived.iter().copied().collect();
    let missing: Vec<_> = (first..=last).filter(|value| !set.contains(value)).collect();
    assert!(missing.is_empty(), "lost of {first}..={last}: {missing:?}");
    let behind = arrived.windows(2).find(|pair| pair[0] > pair[1]);
    assert_eq!(behind, None, "first arrivals out of order");
    assert_eq!((arrived.first(), arrived.last()), (Some(&first), Some(&last)), "unknown values");
}

/// Panics unless the ids' numbers are one after the other, from the stream's first one on.
pub(crate) fn assert_contiguous(records: &[Record]) {
    let epochs: BTreeSet<_> = records.iter().map(|record| record.id_parts().1).collect();
    assert!(epochs.len() <= 1, "epochs {epochs:?}");
    assert_contiguous_over_epochs(records);
}

/// The same for a stream that had more than one epoch: its numbers go on where they were.
pub(crate) fn assert_contiguous_over_epochs(records: &[Record]) {
    let numbers: BTreeSet<_> = records.iter().map(|record| record.id_parts().3).collect();
    let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else {
        return;
    };
    let missing: Vec<_> = (*first..=*last).filter(|n| !numbers.contains(n)).collect();
    assert!(missing.is_empty(), "missing of {first}..={last}: {missing:?}");
    assert!(*first <= 1, "the first number is {first}");
}

/// Microseconds since 1970 UTC of a time as the gateway must write it: RFC 3339, microseconds, Z.
pub(crate) fn micros(text: &str) -> i64 {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000000Z", "the form of the time {text}");
    let number = |from: usize, to: usize| text[from..to].parse::<i64>().expect("digits");
    let (year, month, day) = (number(0, 4), number(5, 7), number(8, 10));
    let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let month_index = usize::try_from(month - 1).expect("a month");
    let days = (1970..year).map(|y| if leap(y) { 366 } else { 365 }).sum::<i64>()
        + before[month_index]
        + i64::from(month > 2 && leap(year))
        + day
        - 1;
    let seconds = days * 86_400 + number(11, 13) * 3600 + number(14, 16) * 60 + number(17, 19);
    seconds * 1_000_000 + number(20, 26)
}

#[test]
fn times_are_read_as_date_writes_them() {
    // `date -u -d @1541152486 --iso-8601=ns`, and the day after a leap day.
    assert_eq!(micros("2018-11-02T09:54:46.000000Z"), 1_541_152_486_000_000);
    assert_eq!(micros("2024-03-01T00:00:00.000001Z"), 1_709_251_200_000_001);
}

#[test]
fn what_comes_again_is_counted_from_the_highest() {
    let records: Vec<_> = [1, 2, 3, 2, 3, 4, 5, 3, 3, 6]
        .iter()
        .map(|n| Record::new("", format!("{{\"_id\": \"gw/7/s/{n}\"}}").as_bytes()))
        .collect();
    // Back to 2 at 3: two again. Back to 3 at 5: three, and once more.
    assert_eq!(again(&records), [2, 3, 3]);
}
