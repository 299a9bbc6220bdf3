//! The nearest known word to a misspelt one.

/// The candidate that was probably meant by `word`: fewest edits, at most a third of its length.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let folded = fold(word);
    let allowed = (word.chars().count() / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|candidate| (edits(&folded, &fold(candidate)), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// "did you mean" for a misspelt word; else, the known ones, where there are a few.
pub(crate) fn suggest(word: &str, known: &[&str]) -> Option<String> {
    /// More names than these are no help on one line.
    const NAMED_MAX: usize = 16;
    if let Some(near) = nearest(word, known.iter().copied()) {
        return Some(format!("did you mean `{near}`?"));
    }
    (!known.is_empty() && known.len() <= NAMED_MAX).then(|| format!("known here: {}", list(known)))
}

/// Words in backticks with commas between them.
pub(crate) fn list(words: &[&str]) -> String {
    words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", ")
}

/// Case and the kind of dash do not matter.
fn fold(word: &str) -> Vec<char> {
    word.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
}

/// Edits from one word to the other: insertions, deletions, replacements, and swaps of two
/// neighbours (optimal string alignment).
fn edits(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let known = ["address", "register", "bit", "byte", "order"];
        assert_eq!(nearest("adress", known), Some("address"));
        assert_eq!(nearest("regsiter", known), Some("register"));
        assert_eq!(nearest("Bit", known), Some("bit"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(edits(&fold("abcd"), &fold("acbd")), 1);
        assert_eq!(edits(&fold("kitten"), &fold("sitting")), 3);
    }
}
