//! The names of sources, so laid out that rows of devices that take turns are told at once.
//!
//! Promise: a name is compared, never hashed, and those of a whole turn with one comparison of
//! bytes and one of lengths. It knows no marks and no time.

/// Names that are compared at once, after the first.
const TURN_MAX: usize = 64;

/// Texts of rows: that of row `n` is `bytes[offsets[n]..offsets[n + 1]]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Texts<'a> {
    pub(crate) offsets: &'a [i32],
    pub(crate) bytes: &'a [u8],
}

/// The names of sources, one after the other.
#[derive(Debug, Default)]
pub(super) struct Names {
    bytes: Vec<u8>,
    ends: Vec<i64>,
}

impl Names {
    pub(super) fn push(&mut self, name: &str) {
        self.bytes.extend(name.as_bytes());
        self.ends.push(i64::try_from(self.bytes.len()).unwrap_or(i64::MAX));
    }

    fn start(&self, at: usize) -> i64 {
        if at == 0 { 0 } else { self.ends[at - 1] }
    }

    fn between(&self, start: i64, end: i64) -> &[u8] {
        &self.bytes[place(start)..place(end)]
    }

    /// Whether the name of source `at` is `name`.
    pub(super) fn is(&self, at: usize, name: &str) -> bool {
        at < self.ends.len() && self.between(self.start(at), self.ends[at]) == name.as_bytes()
    }

    /// How many names from source `at` on are the texts of the rows from `row` on, one after the
    /// other. Not all that are may be found.
    pub(super) fn turn(&self, at: usize, texts: Texts, row: usize) -> usize {
        let Some(offsets) = texts.offsets.get(row..).filter(|_| at < self.ends.len()) else {
            return 0;
        };
        let (start, from) = (self.start(at), offsets.first().map_or(0, |from| i64::from(*from)));
        let (ends, offsets) = (&self.ends[at..], offsets.get(1..).unwrap_or_default());
        let most = ends.len().min(offsets.len());
        let mut found = 0;
        while found < most {
            let upto = if found == 0 { 1 } else { (found + TURN_MAX).min(most) };
            let pairs = ends[found..upto].iter().zip(&offsets[found..upto]);
            let lengths =
                |(end, offset): &(&i64, &i32)| **end - start == i64::from(**offset) - from;
            let upto = found + pairs.take_while(lengths).count();
            let Some(end) = upto.checked_sub(1).filter(|_| upto > found).map(|last| ends[last])
            else {
                break;
            };
            let first = if found == 0 { start } else { ends[found - 1] };
            let ours = self.between(first, end);
            let theirs = place(first - start + from)..place(end - start + from);
            if texts.bytes.get(theirs) != Some(ours) {
                break;
            }
            found = upto;
        }
        found
    }
}

fn place(at: i64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use arrow::array::StringArray;

    use super::*;

    #[test]
    fn a_turn_ends_where_names_differ() {
        let mut names = Names::default();
        for name in ["a", "bb", "", "c", "dd"] {
            names.push(name);
        }
        // Source, rows, names in a row from the second row on.
        let cases: [(usize, &[&str], usize); 9] = [
            (0, &["x", "a", "bb", "", "c", "dd"], 5),
            (0, &["x", "a", "bb", "", "c", "dd", "a"], 5),
            (0, &["x", "a", "bb", "", "c", "de"], 1),
            (0, &["x", "a", "bb", "c"], 2),
            (0, &["x", "b"], 0),
            (1, &["x", "bb", "", "c"], 3),
            (4, &["x", "dd", "a"], 1),
            (5, &["x", "a"], 0),
            (3, &["x"], 0),
        ];
        for (at, rows, expected) in cases {
            let rows = StringArray::from(rows.to_vec());
            let texts = Texts { offsets: rows.value_offsets(), bytes: rows.value_data() };
            assert_eq!(names.turn(at, texts, 1), expected, "{at} {rows:?}");
        }
        assert!(names.is(1, "bb") && names.is(2, "") && !names.is(0, "b") && !names.is(5, ""));
    }

    #[test]
    fn a_long_turn_is_found_to_its_end() {
        let mut names = Names::default();
        let all: Vec<String> = (0..1_000).map(|n| format!("device_{n}")).collect();
        for name in &all {
            names.push(name);
        }
        let mut rows = all.clone();
        rows[700] = "device_0".into();
        for (rows, least, most) in [(all, 1_000, 1_000), (rows, 700 - TURN_MAX, 700)] {
            let rows = StringArray::from(rows);
            let texts = Texts { offsets: rows.value_offsets(), bytes: rows.value_data() };
            let found = names.turn(0, texts, 0);
            assert!((least..=most).contains(&found), "{found}");
        }
    }
}
