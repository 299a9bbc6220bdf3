//! Comma separated values, a line at a time.
//!
//! Source: RFC 4180, but for line breaks inside quotes, which a recording of measurements has not.

/// Cuts a line into its fields, which replace those in `fields`. False where a quote is not closed
/// or stands inside a field.
pub(super) fn split(line: &str, fields: &mut Vec<String>) -> bool {
    let mut used = 0;
    let mut rest = line;
    loop {
        if used == fields.len() {
            fields.push(String::new());
        }
        let field = &mut fields[used];
        field.clear();
        used += 1;
        if let Some(quoted) = rest.strip_prefix('"') {
            rest = quoted;
            loop {
                let Some(end) = rest.find('"') else { return false };
                field.push_str(&rest[..end]);
                rest = &rest[end + 1..];
                match rest.strip_prefix('"') {
                    Some(more) => {
                        field.push('"');
                        rest = more;
                    }
                    None => break,
                }
            }
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            if rest[..end].contains('"') {
                return false;
            }
            field.push_str(&rest[..end]);
            rest = &rest[end..];
        }
        let Some(more) = rest.strip_prefix(',') else {
            fields.truncate(used);
            return rest.is_empty();
        };
        rest = more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_rfc() {
        let mut fields = Vec::new();
        let mut of = |line: &str| split(line, &mut fields).then(|| fields.clone());
        for (line, right) in [
            ("aaa,bbb,ccc", &["aaa", "bbb", "ccc"][..]),
            (r#""aaa","b""bb","c,c""#, &["aaa", "b\"bb", "c,c"]),
            ("", &[""]),
            ("a,,", &["a", "", ""]),
            (r#""""#, &[""]),
        ] {
            assert_eq!(of(line).unwrap(), right, "{line}");
        }
        for line in [r#"a,"b"#, r#"a"b,c"#, r#""a"b"#] {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
